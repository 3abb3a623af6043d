"""Scenes in Zarr and netCDF, several at once: joined, of some times, of a box, with masks."""

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.scenes.files.opening import open_data, open_scene
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.masks import encode
from undulatus.scenes.scene import BANDS, check_scene
from undulatus.scenes.simulators.landmark import synthetic_landmark


@pytest.fixture(scope="module")
def simulator():
    """Six acquisitions of a summer day, in memory."""
    return synthetic_landmark(1, first_day=170).isel(time=slice(40, 46)).load()


@pytest.fixture(scope="module")
def parts(tmp_path_factory, simulator):
    """The last three acquisitions, the first two, and the third alone, in that order."""
    folder = tmp_path_factory.mktemp("parts")
    chosen = {"c.zarr": slice(3, 6), "a.nc": slice(0, 2), "b.nc": 2}
    for name, times in chosen.items():
        write_dataset(simulator.isel(time=times), folder / name)
    return [folder / name for name in chosen]


def test_scenes_of_one_place_are_joined_in_the_order_of_time(parts, simulator):
    joined = open_data(parts)
    assert_array_equal(joined["time"], simulator["time"])
    assert joined["land_mask"].dims == ("y", "x")
    ours, expected = check_scene(joined), check_scene(simulator)
    for name in (*BANDS, "solar_zenith_angle", "longitude"):
        # Bands are rounded as they are written.
        np.testing.assert_allclose(ours[name], expected[name], rtol=1e-3, atol=0.02)
    assert_array_equal(joined["cloud_mask_l2"].fillna(255), simulator["cloud_mask_l2"])


def test_a_span_of_stored_scenes_is_selected(parts, simulator):
    first, last = (np.datetime_as_string(simulator["time"].values[i], unit="m") for i in (1, 3))
    assert_array_equal(open_scene(parts, time=f"{first}/{last}")["time"], simulator["time"][1:4])
    with pytest.raises(SceneError, match="No acquisition was taken in the time"):
        open_scene(parts, time="1999")


def test_a_box_of_stored_scenes_is_cut(parts, simulator):
    west, north = float(simulator["longitude"][4, 5]), float(simulator["latitude"][4, 5])
    east, south = float(simulator["longitude"][12, 15]), float(simulator["latitude"][12, 15])
    part = open_scene(parts, box=(west, south, east, north))
    assert {4, 12} <= set(simulator.indexes["y"].get_indexer(part["y"]))
    assert part.sizes["y"] < simulator.sizes["y"]
    assert part["land_mask"].shape == part["longitude"].shape
    bare = parts[0].with_name("bare.nc")
    write_dataset(simulator.drop_vars(["longitude", "latitude"]), bare)
    with pytest.raises(SceneError, match="no longitude and latitude"):
        open_scene(bare, box=(0, 0, 1, 1))


def test_a_mask_is_added_to_stored_scenes(parts, simulator, tmp_path):
    labels = (simulator["IR_108"] < 280.0).astype("u1").drop_vars(["longitude", "latitude"])
    encode(labels, "cf").to_dataset(name="cloud_mask").to_netcdf(tmp_path / "mask.nc")
    joined = open_scene(parts, mask=tmp_path / "mask.nc")
    assert_array_equal(joined["cloud_mask_l2"], labels)


def test_a_scene_with_only_a_start_time_is_matched_by_it(simulator, tmp_path):
    image = simulator.isel(time=0, drop=True).drop_vars(["solar_zenith_angle", "cloud_mask_l2"])
    write_dataset(image.assign_attrs(start_time="2010-06-20T10:00"), tmp_path / "image.nc")
    labels = encode(image["land_mask"], "cf").assign_coords(time=np.datetime64("2010-06-20T10:05"))
    labels.to_dataset(name="cloud_mask").to_netcdf(tmp_path / "mask.nc")
    how = {"mask": tmp_path / "mask.nc", "time": "2010-06-20T10"}
    assert_array_equal(open_scene(tmp_path / "image.nc", **how)["cloud_mask_l2"], labels)
    write_dataset(image, tmp_path / "untimed.nc")
    with pytest.raises(SceneError, match=r"untimed\.nc has no time"):
        open_scene(tmp_path / "untimed.nc", **how)


def changed(simulator, path, **attrs):
    scene = simulator.isel(time=slice(0, 2)).assign_coords(
        time=simulator["time"][:2] - np.timedelta64(1, "D")
    )
    write_dataset(scene.assign_attrs(attrs), path)
    return path


def test_scenes_that_differ_are_not_joined(parts, simulator, tmp_path):
    other = changed(simulator, tmp_path / "other.nc", platform_name="Meteosat-11")
    with pytest.raises(SceneError, match=r"platform .*other\.nc of Meteosat-11: give"):
        open_scene([*parts, other])
    other = changed(simulator, tmp_path / "gsics.nc", calibration_mode="GSICS")
    with pytest.raises(SceneError, match=r"of calibration .*gsics\.nc of GSICS"):
        open_scene([*parts, other])
    for name, scene, message in (
        ("less.nc", simulator.drop_vars("IR_039"), "different variables: only one has IR_039"),
        ("smaller.nc", simulator.isel(y=slice(9)), r"smaller\.nc is on another grid"),
        ("again.nc", simulator, r"Two acquisitions have the time .*a\.nc and "),
    ):
        write_dataset(scene.isel(time=0), tmp_path / name)
        with pytest.raises(SceneError, match=message):
            open_scene([parts[1], tmp_path / name])


def test_a_calibration_that_is_not_recorded_is_what_was_said(simulator, tmp_path):
    path = changed(simulator, tmp_path / "gsics.nc", calibration_mode="GSICS")
    with pytest.raises(SceneError, match=r"by 'GSICS', not 'nominal': leave --calibration out"):
        open_scene(path, calibration="nominal")
    plain = simulator.isel(time=0)
    del plain.attrs["calibration_mode"]
    write_dataset(plain, tmp_path / "plain.nc")
    opened = open_scene(tmp_path / "plain.nc", calibration="nominal")
    assert opened.attrs["calibration_mode"] == "nominal"


def test_a_stored_scene_has_no_reader(parts):
    with pytest.raises(SceneError, match="leave out --reader"):
        open_scene(parts[0], reader="seviri_l1b_nc")


def test_what_is_of_several_kinds_is_named(parts, tmp_path):
    xr.Dataset({"scores": (("sample", "component"), np.zeros((5, 3)))}).to_netcdf(
        tmp_path / "spectra.nc"
    )
    with pytest.raises(SceneError, match="DATA are of several kinds") as caught:
        open_data([parts[0], tmp_path / "spectra.nc"])
    assert f"{parts[0]} is a scene" in str(caught.value)
    assert "spectra.nc is spectra" in str(caught.value)
