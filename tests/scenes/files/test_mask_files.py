"""Masks from files, brought to the pixels and times of a scene."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.files.mask_files import align_mask, open_mask
from undulatus.scenes.masks import decode, encode

NOON = np.datetime64("2010-06-01T12:00", "ns")
QUARTER = np.timedelta64(15, "m")


def image(values, **attrs):
    return xr.DataArray(np.asarray(values), dims=("y", "x"), attrs=attrs)


@pytest.fixture
def scene():
    """Four lines and five columns of 3 km, north up, at noon."""
    return xr.Dataset(
        {"VIS006": (("y", "x"), np.zeros((4, 5), np.float32))},
        coords={"y": [9e3, 6e3, 3e3, 0.0], "x": 3e3 * np.arange(5), "time": NOON},
    )


LABELS = np.random.default_rng(2).integers(0, 2, (4, 5)).astype(np.uint8)


def test_a_mask_may_be_upside_down_and_half_a_pixel_off(scene):
    mask = image(LABELS).assign_coords(y=scene["y"] + 1500.0, x=scene["x"] - 1500.0)
    assert_array_equal(align_mask(mask[::-1, ::-1], scene), LABELS)


def test_a_mask_of_a_larger_region_is_cut_to_the_scene(scene):
    wide = xr.DataArray(
        np.pad(LABELS, 3, constant_values=9),
        dims=("y", "x"),
        coords={"y": 3e3 * np.arange(6, -4, -1), "x": 3e3 * np.arange(-3, 8)},
    )
    aligned = align_mask(wide, scene)
    assert_array_equal(aligned, LABELS)
    assert_array_equal(aligned["y"], scene["y"])


def test_pixels_beyond_the_mask_are_missing(scene):
    mask = image(LABELS).assign_coords(y=scene["y"], x=scene["x"]).isel(x=slice(1, 4))
    aligned = align_mask(mask, scene)
    assert_array_equal(aligned[:, 1:4], LABELS[:, 1:4])
    assert_array_equal(aligned[:, [0, 4]], 255)
    assert aligned.dtype == np.uint8


def test_a_mask_of_another_region_or_size_is_refused(scene):
    with pytest.raises(SceneError, match="no pixel in common along x"):
        align_mask(image(LABELS).assign_coords(y=scene["y"], x=scene["x"] + 1e6), scene)
    with pytest.raises(SceneError, match="3 pixels along y, the scene 4"):
        align_mask(image(LABELS[:3]), scene)
    with pytest.raises(SceneError, match="rename them"):
        align_mask(image(LABELS).rename(y="ny"), scene)


def test_a_mask_of_another_time_is_refused(scene):
    with pytest.raises(SceneError, match="mask: 2010-06-01T12:15") as caught:
        align_mask(image(LABELS).assign_coords(time=NOON + QUARTER), scene)
    assert "scene: 2010-06-01T12:00" in str(caught.value)


def test_acquisitions_get_the_masks_of_their_times(scene):
    series = xr.concat([scene.assign_coords(time=NOON + i * QUARTER) for i in range(3)], "time")
    late = image(1 - LABELS).assign_coords(time=NOON + 2 * QUARTER)
    # A mask's clock may differ by the minutes of a scan.
    early = image(LABELS).assign_coords(time=NOON + np.timedelta64(5, "m"))
    aligned = align_mask(xr.concat([late, early], "time"), series)
    assert_array_equal(aligned, np.stack([LABELS, np.full((4, 5), 255), 1 - LABELS]))
    assert_array_equal(aligned["time"], series["time"])


def test_a_mask_without_a_time_cannot_belong_to_several_acquisitions(scene):
    series = xr.concat([scene, scene.assign_coords(time=NOON + QUARTER)], "time")
    with pytest.raises(SceneError, match="has no time coordinate"):
        align_mask(image(LABELS), series)


@pytest.mark.parametrize("store", ["netcdf", "zarr"])
def test_a_mask_is_found_in_a_file_and_keeps_its_codes(tmp_path, store):
    written = xr.Dataset(
        {"quality": image(LABELS + 0.5), "mask": encode(image(LABELS), "pps")},
    )
    if store == "netcdf":
        written.to_netcdf(path := tmp_path / "mask.nc")
    else:
        written.to_zarr(path := tmp_path / "mask.zarr", zarr_format=2)
    found = open_mask(path)
    assert found.dtype == np.uint8
    assert_array_equal(decode(found), LABELS)


def test_a_file_without_a_mask_is_named_with_what_it_holds(tmp_path):
    xr.Dataset({"quality": image(LABELS)}).to_netcdf(tmp_path / "other.nc")
    with pytest.raises(SceneError, match="found: quality") as caught:
        open_mask(tmp_path / "other.nc")
    assert "other.nc" in str(caught.value)


def test_a_file_that_is_no_mask_is_named(tmp_path):
    (tmp_path / "broken.nc").write_bytes(b"not a file of netCDF")
    with pytest.raises(SceneError, match=r"broken\.nc cannot be read"):
        open_mask(tmp_path / "broken.nc")
