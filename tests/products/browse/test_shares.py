import numpy as np
import pytest
import xarray as xr

from undulatus.products.browse.shares import APART, LISTED, count_shares, differing_most


def block(**masks):
    return xr.Dataset({name: (("time", "y", "x"), mask) for name, mask in masks.items()})


def test_shares_count_the_pixels_that_masks_know():
    model = np.array([[[0, 1, 1, 255]]], np.uint8)
    l2 = np.array([[[0.0, 0.0, 1.0, 1.0]]])
    truth = np.array([[[0.0, 1.0, np.nan, 1.0]]])
    shares = count_shares(block(cloud_mask=model, cloud_mask_l2=l2, cloud_truth=truth))
    expected = {
        "cloud": 2 / 3,
        "l2_cloud": 1 / 2,
        "agreement": 2 / 3,
        "compared": 3 / 4,
        "model_right": 1,
        "l2_right": 2 / 3,
    }
    assert {name: values.item() for name, values in shares.items()} == pytest.approx(expected)


def test_an_image_without_a_known_pixel_has_no_share():
    shares = count_shares(block(cloud_mask=np.full((2, 3, 4), 255, np.uint8)))
    assert list(shares) == ["cloud"]
    assert np.isnan(shares["cloud"]).all()


def test_the_worst_come_first_and_far_apart():
    rng = np.random.default_rng(0)
    seconds = 900 * np.arange(2000)
    agreement = rng.uniform(size=2000)
    listed = differing_most(seconds, agreement, np.ones(2000))
    assert listed[0] == np.argmin(agreement)
    assert (np.diff(agreement[listed]) >= 0.0).all()
    assert np.diff(np.sort(seconds[listed])).min() >= APART
    assert len(listed) == LISTED
    # Nothing worse was passed over, but for what is close to one listed.
    worse = np.flatnonzero(agreement < agreement[listed[-1]])
    near = np.abs(seconds[worse, None] - seconds[listed]).min(axis=1) < APART
    assert near.all()


def test_masks_that_agree_or_have_little_in_common_are_not_listed():
    agreement = np.array([0.9, 1.0, np.nan, 0.1])
    compared = np.array([1.0, 1.0, 0.0, 0.4])
    assert differing_most(APART * np.arange(4), agreement, compared).tolist() == [0]
