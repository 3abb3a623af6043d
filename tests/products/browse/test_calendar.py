import numpy as np
import pytest
import xarray as xr

from undulatus.products.browse.calendar import (
    MOST_LISTED,
    SECONDS_APART,
    class_pixel_shares,
    largest_differences,
    make_calendar,
    pixel_shares,
)
from undulatus.products.legend import MapClass


def times(*, start="2010-01-01", count, minutes):
    return np.datetime64(start, "s") + np.arange(count) * np.timedelta64(minutes, "m")


@pytest.mark.parametrize(("minutes", "steps"), [(15, 96), (5, 288), (60, 24), (1440, 1)])
def test_a_day_has_as_many_columns_as_steps(minutes, steps):
    calendar = make_calendar(times(count=3 * steps, minutes=minutes))
    assert calendar.step == 60 * minutes
    assert calendar.shape == (3, steps)
    table = calendar.table(np.arange(3.0 * steps))
    assert np.array_equal(table.ravel(), np.arange(3.0 * steps))


def test_missing_acquisitions_leave_their_cells_empty():
    whole = times(count=192, minutes=15)
    kept = np.delete(np.arange(192), [5, 6, 100])
    table = make_calendar(whole[kept]).table(np.ones(len(kept)))
    assert np.array_equal(np.flatnonzero(np.isnan(table)), [5, 6, 100])


def test_a_day_without_acquisitions_is_an_empty_row():
    whole = times(count=3 * 96, minutes=15)
    table = make_calendar(np.r_[whole[:96], whole[192:]]).table(np.ones(192))
    assert np.isnan(table[1]).all()
    assert (table[[0, 2]] == 1.0).all()


@pytest.mark.parametrize("offset", [0, 7, 763, 899])
def test_times_that_are_off_by_seconds_stay_in_their_columns(offset):
    rng = np.random.default_rng(0)
    # No time crosses midnight: it would belong to another day.
    jitter = rng.integers(0 if offset == 0 else -5, 1 if offset == 899 else 6, 192)
    seconds = np.datetime64("2010-01-01", "s") + 900 * np.arange(192) + offset + jitter
    calendar = make_calendar(seconds)
    assert calendar.step == 900
    assert len({*zip(calendar.day.tolist(), calendar.slot.tolist(), strict=True)}) == 192


def test_a_single_acquisition_makes_a_table():
    calendar = make_calendar(np.array(["2010-07-14T12:07"], "datetime64[ns]"))
    assert calendar.shape == (1, 96)
    assert np.isfinite(calendar.table(np.ones(1))).sum() == 1
    assert calendar.dates == ["2010-07-14"]


def block(**masks):
    return xr.Dataset({name: (("time", "y", "x"), mask) for name, mask in masks.items()})


def test_shares_are_of_the_pixels_that_the_masks_know():
    model = np.array([[[0, 1, 1, 255]]], np.uint8)
    l2 = np.array([[[0.0, 0.0, 1.0, 1.0]]])
    truth = np.array([[[0.0, 1.0, np.nan, 1.0]]])
    shares = pixel_shares(block(cloud_mask=model, cloud_mask_l2=l2, cloud_truth=truth))
    expected = {
        "cloud": 2 / 3,
        "l2_cloud": 1 / 2,
        "agreement": 2 / 3,
        "compared": 3 / 4,
        "model_right": 1,
        "l2_right": 2 / 3,
    }
    assert {name: values.item() for name, values in shares.items()} == pytest.approx(expected)


def test_shares_of_classes_are_of_the_pixels_that_have_one():
    classes = (MapClass(4, "sea", "#000000"), MapClass(7, "land", "#ffffff"))
    model = np.array([[[4, 7, 7, 255]]], np.uint8)
    label = np.array([[[4.0, 4.0, np.nan, 7.0]]])
    shares = class_pixel_shares(block(cloud_mask=model, class_label=label), classes)
    expected = {
        "model-0": 1 / 3,
        "model-1": 2 / 3,
        "label-0": 2 / 3,
        "label-1": 1 / 3,
        "agreement": 1 / 2,
        "compared": 1 / 2,
    }
    assert {name: values.item() for name, values in shares.items()} == pytest.approx(expected)


def test_an_image_without_a_known_pixel_has_no_share():
    shares = pixel_shares(block(cloud_mask=np.full((2, 3, 4), 255, np.uint8)))
    assert list(shares) == ["cloud"]
    assert np.isnan(shares["cloud"]).all()


def test_the_largest_differences_come_first_and_hours_apart():
    rng = np.random.default_rng(0)
    seconds = 900 * np.arange(2000)
    agreement = rng.uniform(size=2000)
    listed = largest_differences(seconds, agreement, np.ones(2000))
    assert listed[0] == np.argmin(agreement)
    assert (np.diff(agreement[listed]) >= 0.0).all()
    assert np.diff(np.sort(seconds[listed])).min() >= SECONDS_APART
    assert len(listed) == MOST_LISTED
    # A worse acquisition is left out only if it is close to a listed one.
    worse = np.flatnonzero(agreement < agreement[listed[-1]])
    near = np.abs(seconds[worse, None] - seconds[listed]).min(axis=1) < SECONDS_APART
    assert near.all()


def test_masks_that_agree_or_have_little_in_common_are_not_listed():
    agreement = np.array([0.9, 1.0, np.nan, 0.1])
    compared = np.array([1.0, 1.0, 0.0, 0.4])
    assert largest_differences(SECONDS_APART * np.arange(4), agreement, compared).tolist() == [0]
