"""The smallest patch: GDAL's sieve of the whole image, whatever its blocks."""

import dask.array as da
import numpy as np
import pytest
import rasterio.features
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus.errors import InputError, SceneError
from undulatus.products.sieve import Sieve, sieve_map


def a_map(values, name="class"):
    """Return a map with codes 10, 20 and 30, and 255 where there is no class."""
    attrs = {"flag_values": np.array([10, 20, 30], np.uint8), "flag_meanings": "a b c"}
    codes = xr.DataArray(values, dims=("time", "y", "x")[-np.ndim(values) :], attrs=attrs)
    layer = xr.zeros_like(codes, np.float32)
    return xr.Dataset({name: codes, "class_entropy": layer})


def drawn(seed, shape=(23, 31)):
    return np.random.default_rng(seed).choice(np.array([10, 20, 30, 255], np.uint8), shape)


@given(
    st.integers(0, 2**32 - 1),
    st.integers(2, 30),
    st.sampled_from([4, 8]),
    st.integers(1, 12),
    st.integers(1, 12),
)
def test_blocks_make_no_difference(seed, size, connectivity, rows, columns):
    values = drawn(seed)
    expected = rasterio.features.sieve(values, size, mask=values != 255, connectivity=connectivity)
    lazy = a_map(da.from_array(values, chunks=(rows, columns)))
    for maps in (a_map(values), lazy):
        found = sieve_map(maps, Sieve(size, connectivity))
        assert_array_equal(found["class"].values, expected)
        # Where there is no class there is none afterwards, and nowhere else.
        assert_array_equal(found["class"].values == 255, values == 255)
    assert found["class"].chunks == lazy["class"].chunks


def test_a_patch_takes_the_class_of_its_largest_neighbour_across_blocks():
    values = np.full((8, 12), 10, np.uint8)
    values[:, 6:] = 20
    values[3:5, 5:8] = 30
    found = sieve_map(a_map(da.from_array(values, chunks=(4, 6))), Sieve(7))["class"].values
    assert 30 not in found
    # The two halves are of 46 and 44 pixels.
    assert (found[3:5, 5:8] == 10).all()


def test_corners_join_pixels_into_a_patch_only_if_asked_for():
    values = np.full((6, 6), 10, np.uint8)
    np.fill_diagonal(values, 20)
    assert (sieve_map(a_map(values), Sieve(6, 4))["class"].values == 10).all()
    assert_array_equal(sieve_map(a_map(values), Sieve(6, 8))["class"].values, values)


def test_each_time_is_sieved_by_itself_and_an_empty_one_stays():
    values = np.stack([drawn(1), np.full((23, 31), 255, np.uint8), drawn(2)])
    found = sieve_map(a_map(values), Sieve(9))["class"].values
    for plane, own in zip(found, values, strict=True):
        if (own != 255).any():
            alone = sieve_map(a_map(own), Sieve(9))["class"].values
            assert_array_equal(plane, alone)
        else:
            assert_array_equal(plane, own)


def test_other_layers_stay_and_the_sieve_is_recorded():
    maps = a_map(drawn(0), "cloud_mask")
    found = sieve_map(maps, Sieve(4))
    assert found["class_entropy"].identical(maps["class_entropy"])
    assert "4 pixels, 4-connected" in found["cloud_mask"].attrs["comment"]
    assert "comment" not in maps["cloud_mask"].attrs


@pytest.mark.parametrize(("size", "connectivity"), [(1, 4), (0, 8), (5, 6)])
def test_what_is_no_sieve_is_refused(size, connectivity):
    with pytest.raises(InputError, match="2 pixels or more, and 4 or 8"):
        Sieve(size, connectivity)


def test_spectra_and_maps_without_classes_have_no_patches():
    spectra = xr.Dataset({"class": ("sample", np.zeros(3, np.uint8), {"flag_values": [0]})})
    with pytest.raises(SceneError, match="class is no image"):
        sieve_map(spectra, Sieve(2))
    with pytest.raises(SceneError, match="without class or cloud_mask"):
        sieve_map(a_map(drawn(0))[["class_entropy"]], Sieve(2))
