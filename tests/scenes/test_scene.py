"""Checking a scene: every defect is named with its remedy, and little data is read."""

import datetime

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus._daylight import NIGHT
from undulatus.errors import SceneError
from undulatus.scenes.illumination import solar_zenith_angle
from undulatus.scenes.scene import (
    BANDS,
    REFLECTANCE,
    acquisition_time,
    check_calibration,
    check_scene,
    find_zenith,
)

REFLECTANCES = [name for name, band in BANDS.items() if band.quantity == REFLECTANCE]
THERMAL = [name for name in BANDS if name not in REFLECTANCES]
NOON = np.datetime64("2010-06-01T13:00", "ns")


def a_scene(times=4, rows=6, columns=5):
    """Make a valid scene around Dakhla at noon, in memory."""
    rng = np.random.default_rng(11)
    dims, shape = ("time", "y", "x"), (times, rows, columns)
    longitude, latitude = np.meshgrid(np.linspace(-17, -15, columns), np.linspace(25, 23, rows))
    scene = xr.Dataset(
        {
            name: (dims, rng.uniform(5.0, 60.0, shape).astype(np.float32), {"units": "%"})
            if name in REFLECTANCES
            else (dims, rng.uniform(230.0, 310.0, shape).astype(np.float32), {"units": "K"})
            for name in BANDS
        },
        coords={
            "time": NOON + np.arange(times) * np.timedelta64(15, "m"),
            "longitude": (("y", "x"), longitude),
            "latitude": (("y", "x"), latitude),
        },
        attrs={"platform_name": "Meteosat-9"},
    )
    return scene


def one_image():
    return a_scene().isel(time=0, drop=True)


def with_values(name, function):
    def change(scene):
        scene[name] = function(scene[name]).assign_attrs(scene[name].attrs)
        return scene

    return change


def with_units(name, units):
    def change(scene):
        scene[name].attrs["units"] = units
        return scene

    return change


def without_units(scene):
    del scene["IR_087"].attrs["units"]
    return scene


def with_angle(function, **attrs):
    def change(scene):
        angle = solar_zenith_angle(scene["time"], scene["longitude"], scene["latitude"])
        angle.attrs = attrs
        return scene.assign(solar_zenith_angle=function(angle).assign_attrs(attrs))

    return change


DEFECTS = {
    "a missing band": (
        lambda scene: scene.drop_vars("IR_016"),
        ["missing: IR_016", "open_scene", "rename"],
    ),
    "an unknown dimension": (
        lambda scene: scene.assign(VIS006=scene["VIS006"].rename(x="column")),
        ["VIS006 has dims ('time', 'y', 'column')", "scene.rename"],
    ),
    "a dimension too many": (
        lambda scene: scene.assign(IR_108=scene["IR_108"].expand_dims("level")),
        ["IR_108 has dims ('level', 'time', 'y', 'x')", "scene.isel"],
    ),
    "a band without the time of the others": (
        lambda scene: scene.assign(IR_120=scene["IR_120"].isel(time=0, drop=True)),
        ["IR_120 has dims ('y', 'x')", "other bands have a time", "scene.isel(time=...)"],
    ),
    "no units": (
        without_units,
        ["IR_087 has no units; expected K", 'scene["IR_087"].attrs["units"] = "K"'],
    ),
    "fractions by their units": (
        with_units("VIS008", "1"),
        ["VIS008 is in '1'; expected %", 'scene["VIS008"] * 100'],
    ),
    "Celsius by its units": (
        with_units("IR_108", "degC"),
        ["IR_108 is in 'degC'; expected K", 'scene["IR_108"] + 273.15'],
    ),
    "radiances by their units": (
        with_units("IR_108", "mW m-2 sr-1 (cm-1)-1"),
        ["IR_108 is in 'mW", "expected K", "Calibrate"],
    ),
    "fractions labelled percent": (
        with_values("VIS006", lambda array: array / 100.0),
        ["VIS006 says %", "fractions", 'scene["VIS006"] * 100'],
    ),
    "Celsius labelled kelvin": (
        with_values("IR_120", lambda array: array - 273.15),
        ["IR_120 says K", "not kelvin", 'scene["IR_120"] + 273.15'],
    ),
    "counts labelled percent": (
        with_values("VIS008", lambda array: array * 10.0),
        ["VIS008 says %", "no reflectance is so high", "counts"],
    ),
    "counts labelled kelvin": (
        with_values("IR_039", lambda array: array + 300.0),
        ["IR_039 says K", "not kelvin", "counts"],
    ),
    "no time": (
        lambda scene: scene.drop_vars("time"),
        ["no time", "scene.assign_coords(time=...)", "solar_zenith_angle"],
    ),
    "one start_time for many acquisitions": (
        lambda scene: scene.drop_vars("time").assign_attrs(start_time="2010-06-01T13:00"),
        ["no time", "scene.assign_coords(time=...)"],
    ),
    "a time that is a number": (
        lambda scene: scene.assign_coords(time=np.arange(scene.sizes["time"])),
        ["no time"],
    ),
    "a time that is a name": (
        lambda scene: scene.assign_coords(time=[f"scene {i}" for i in range(len(scene["time"]))]),
        ["the coordinate time: 'scene 0' is not a time", "2010-07-14T12:00"],
    ),
    "a band of objects": (
        with_values("IR_108", lambda array: array.astype(object)),
        ["IR_108 holds object", "not real numbers", '.astype("float32")'],
    ),
    "a band of text": (
        with_values("VIS006", lambda array: array.astype(str)),
        ["VIS006 holds text", "not real numbers"],
    ),
    "an angle of objects": (
        with_angle(lambda angle: angle.astype(object)),
        ["solar_zenith_angle holds object", "not real numbers"],
    ),
    "a latitude of objects": (
        lambda scene: scene.assign_coords(latitude=scene["latitude"].astype(object)),
        ["latitude holds object", "not real numbers"],
    ),
    "no coordinates": (
        lambda scene: scene.drop_vars(["longitude", "latitude"]),
        ["no longitude and latitude, and no area", 'scene.attrs["area"]'],
    ),
    "no latitude": (
        lambda scene: scene.drop_vars("latitude"),
        ["no longitude and latitude, and no area"],
    ),
    "an angle in radians": (
        with_angle(np.radians),
        ["solar_zenith_angle lies between", "expected degrees from 0 to 180", "np.degrees"],
    ),
    "an angle with the units radian": (
        with_angle(np.radians, units="radian"),
        ["solar_zenith_angle lies between", "np.degrees"],
    ),
    "an elevation instead of a zenith angle": (
        with_angle(lambda angle: angle - 90.0, units="degree"),
        ["solar_zenith_angle lies between -", "expected degrees from 0 to 180"],
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_named_with_its_remedy(defect):
    change, words = DEFECTS[defect]
    with pytest.raises(SceneError) as error:
        check_scene(change(a_scene()))
    message = str(error.value)
    assert message.startswith("The scene cannot be used:")
    assert message.count("\n- ") == 1, "one defect is one line"
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    "written",
    [
        lambda times: times.astype("datetime64[s]").astype(str),
        lambda times: times.astype("datetime64[s]").astype(str).astype(object),
        lambda times: times.astype("datetime64[s]").astype(datetime.datetime),
        lambda times: pd.DatetimeIndex(times).tz_localize("UTC").tz_convert("Asia/Tokyo"),
    ],
    ids=["text", "text as objects", "datetimes", "with a zone"],
)
def test_times_of_other_types_are_the_same_times(written):
    scene = a_scene()
    other = scene.assign_coords(time=("time", written(scene["time"].values)))
    xr.testing.assert_identical(check_scene(other), check_scene(scene))


def test_several_defects_are_listed_at_once():
    chosen = [
        "a missing band",
        "no units",
        "Celsius labelled kelvin",
        "fractions by their units",
        "no time",
        "no coordinates",
    ]
    scene = a_scene()
    for defect in chosen:
        scene = DEFECTS[defect][0](scene)
    with pytest.raises(SceneError) as error:
        check_scene(scene)
    assert str(error.value).count("\n- ") == len(chosen)
    for defect in chosen:
        assert DEFECTS[defect][1][0] in str(error.value)


def test_a_data_array_is_refused_with_the_way_to_convert_it():
    with pytest.raises(SceneError, match=r"DataArray was given.*to_dataset"):
        check_scene(a_scene().to_dataarray("bands"))


def test_only_the_bands_asked_for_are_checked():
    scene = a_scene()[["IR_108"]].assign(VIS006=a_scene()["VIS006"].astype(str))
    assert check_scene(scene, ["IR_108"])["IR_108"].dtype == np.float32


# Valid scenes


@pytest.mark.parametrize("make", [a_scene, one_image], ids=["(time, y, x)", "(y, x)"])
def test_a_valid_scene_is_returned_in_standard_form_and_not_modified(make):
    scene = make().assign_attrs(start_time="2010-06-01T13:00")
    before = scene.copy(deep=True)
    dims = scene["VIS006"].dims
    checked = check_scene(scene.transpose(..., dims[0]))
    assert all(checked[name].dims == dims for name in (*BANDS, "solar_zenith_angle"))
    assert all(checked[name].dtype == np.float32 for name in (*BANDS, "solar_zenith_angle"))
    assert all(checked[name].attrs == before[name].attrs for name in BANDS)
    for name in BANDS:
        assert_array_equal(checked[name], before[name])
    assert checked.attrs == scene.attrs
    xr.testing.assert_identical(scene, before)


def test_checking_a_checked_scene_changes_nothing():
    checked = check_scene(a_scene())
    xr.testing.assert_identical(check_scene(checked), checked)


def test_zero_reflectances_at_night_become_missing_and_temperatures_stay():
    scene = a_scene(times=2).assign_coords(time=[NOON, NOON + np.timedelta64(12, "h")])
    for name in REFLECTANCES:
        scene[name][1] = 0.0
    checked = check_scene(scene)
    assert (checked["solar_zenith_angle"][1] >= NIGHT).all()
    for name in BANDS:
        assert np.isfinite(checked[name][0]).all()
        assert np.isnan(checked[name][1]).all() == (name in REFLECTANCES)


def test_pixels_without_a_solar_zenith_angle_have_missing_reflectances():
    scene = a_scene()
    scene["longitude"][0, 0] = np.inf
    checked = check_scene(scene)
    assert np.isnan(checked["VIS006"][:, 0, 0]).all()
    assert np.isfinite(checked["VIS006"][:, 1:, 1:]).all()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_values_that_are_not_finite_become_missing(value):
    scene = a_scene()
    for name in BANDS:
        scene[name][0, 2, 2] = value
    checked = check_scene(scene)
    assert all(np.isnan(checked[name][0, 2, 2]) for name in BANDS)
    assert all(np.isfinite(checked[name][1:]).all() for name in BANDS)


@pytest.mark.parametrize("name", BANDS)
def test_a_band_may_be_missing_everywhere(name):
    scene = a_scene()
    scene[name][:] = np.nan
    assert np.isnan(check_scene(scene)[name]).all()


@pytest.mark.parametrize(
    ("name", "units"), [("VIS006", "percent"), ("IR_108", "kelvin"), ("IR_108", "Kelvin")]
)
def test_units_may_be_spelled_out(name, units):
    assert check_scene(with_units(name, units)(a_scene()))[name].attrs["units"] == units


# The sun


@pytest.mark.parametrize("dims", [("time", "y", "x"), ("y", "x"), ("time",), ()])
def test_the_scenes_own_angle_is_used_and_broadcast_to_the_bands(dims):
    scene = a_scene()
    rest = [dim for dim in ("time", "y", "x") if dim not in dims]
    angle = with_angle(lambda a: a.mean(rest), units="degree")(scene)["solar_zenith_angle"]
    found = check_scene(scene.assign(solar_zenith_angle=angle))["solar_zenith_angle"]
    expected = angle.broadcast_like(scene["VIS006"]).transpose("time", "y", "x")
    assert_array_equal(found, expected.astype(np.float32))


def test_small_angles_in_degrees_are_not_mistaken_for_radians():
    # At Dakhla, near the tropic, all angles of an image fall below 1° at noon in June.
    scene = a_scene(times=1)
    angle = xr.full_like(scene["VIS006"], 0.5).assign_attrs(units="degree")
    assert check_scene(scene.assign(solar_zenith_angle=angle)) is not None


def test_the_angle_may_be_missing_everywhere():
    scene = a_scene()
    angle = xr.full_like(scene["VIS006"], np.nan)
    assert np.isnan(check_scene(scene.assign(solar_zenith_angle=angle))["VIS006"]).all()


MOMENTS = {
    "a string": "2010-06-01T13:00:00",
    "a string with a zone": "2010-06-01T15:00:00+02:00",
    "a naive datetime": datetime.datetime(2010, 6, 1, 13),
    "an aware datetime": datetime.datetime(
        2010, 6, 1, 15, tzinfo=datetime.timezone(datetime.timedelta(hours=2))
    ),
    "a datetime64": np.datetime64("2010-06-01T13:00"),
    "a pandas Timestamp": pd.Timestamp("2010-06-01T13:00"),
    "an aware Timestamp": pd.Timestamp("2010-06-01T15:00", tz="Europe/Madrid"),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
@pytest.mark.parametrize("on", ["the scene", "a band"])
def test_the_start_time_of_an_image_is_read_as_utc(moment, on):
    scene = one_image()
    (scene if on == "the scene" else scene["IR_039"]).attrs["start_time"] = moment
    expected = solar_zenith_angle(NOON, scene["longitude"], scene["latitude"])
    assert_array_equal(check_scene(scene)["solar_zenith_angle"], expected)


def test_a_start_time_that_is_not_a_time_is_refused():
    with pytest.raises(SceneError, match=r"start_time is 'noon'.*YYYY-MM-DD"):
        check_scene(one_image().assign_attrs(start_time="noon"))


def test_times_of_scan_lines_take_precedence_over_those_of_acquisitions():
    lines = NOON + np.arange(6) * np.timedelta64(1, "h")
    scene = a_scene(times=1).assign_coords(acq_time=("y", lines))
    assert_array_equal(acquisition_time(scene), lines)
    angle = check_scene(scene)["solar_zenith_angle"]
    assert angle.dims == ("time", "y", "x")
    for y in range(6):
        alone = solar_zenith_angle(lines[y], scene["longitude"][y], scene["latitude"][y])
        assert_array_equal(angle[0, y], alone)


def test_coordinates_may_be_axes_named_lon_and_lat():
    scene = a_scene().drop_vars(["longitude", "latitude"])
    axes = scene.assign(lon=("x", np.linspace(-17, -15, 5)), lat=("y", np.linspace(25, 23, 6)))
    assert_array_equal(
        check_scene(axes)["solar_zenith_angle"], check_scene(a_scene())["solar_zenith_angle"]
    )


def test_a_latitude_that_says_it_is_a_longitude_is_refused():
    scene = a_scene()
    scene["latitude"].attrs["standard_name"] = "longitude"
    with pytest.raises(SceneError, match="latitude grows to the north by its name, but"):
        check_scene(scene)


class Area:
    """The one method of a pyresample area that is used."""

    def __init__(self, scene):
        self._degrees = scene["longitude"].values, scene["latitude"].values

    def get_lonlats(self, chunks):
        return tuple(da.from_array(degrees, chunks=chunks) for degrees in self._degrees)


@pytest.mark.parametrize("on", ["the scene", "a band"])
def test_an_area_gives_the_same_angle_as_longitudes_and_latitudes(on):
    scene = a_scene()
    placed = scene.drop_vars(["longitude", "latitude"])
    (placed if on == "the scene" else placed["IR_039"]).attrs["area"] = Area(scene)
    angle = check_scene(placed)["solar_zenith_angle"]
    assert isinstance(angle.data, da.Array)
    assert_array_equal(angle, check_scene(scene)["solar_zenith_angle"])


def test_an_area_of_pyresample_gives_the_same_angle_as_its_coordinates():
    pyresample = pytest.importorskip("pyresample")
    extent = (-1.6e6, 2.4e6, -1.5e6, 2.5e6)
    geos = "+proj=geos +lon_0=0 +h=35785831 +a=6378169 +b=6356583.8 +units=m"
    area = pyresample.AreaDefinition("dakhla", "Dakhla", "geos", geos, 5, 6, extent)
    scene = a_scene().drop_vars(["longitude", "latitude"]).assign_attrs(area=area)
    longitude, latitude = area.get_lonlats()
    placed = a_scene().assign_coords(
        longitude=(("y", "x"), longitude), latitude=(("y", "x"), latitude)
    )
    assert_array_equal(
        check_scene(scene)["solar_zenith_angle"], check_scene(placed)["solar_zenith_angle"]
    )


def test_without_a_time_no_angle_is_computed():
    with pytest.raises(SceneError, match="no time"):
        find_zenith(a_scene().drop_vars("time"))


# Laziness


@settings(max_examples=8)
@given(st.data())
def test_bands_may_have_chunks_of_different_sizes(data):
    scene = a_scene(2, 3, 3)
    for name in data.draw(st.sets(st.sampled_from(list(BANDS)), min_size=1)):
        sizes = {dim: data.draw(st.integers(1, size)) for dim, size in scene.sizes.items()}
        scene[name] = scene[name].chunk(sizes)
    checked, expected = check_scene(scene).compute(), check_scene(a_scene(2, 3, 3))
    for name in (*BANDS, "solar_zenith_angle"):
        assert_array_equal(checked[name], expected[name])


class Counted:
    """An array that counts how many of its values were read."""

    def __init__(self, shape, value):
        self.shape, self.dtype, self.ndim = shape, np.dtype(np.float32), len(shape)
        self.value, self.read = value, 0

    def __getitem__(self, key):
        sizes = [len(range(*k.indices(n))) for k, n in zip(key, self.shape, strict=True)]
        self.read += int(np.prod(sizes))
        return np.full(sizes, self.value, np.float32)


def test_little_of_a_large_scene_is_read():
    shape, chunk = (20, 500, 600), (1, 100, 100)
    bands = {name: Counted(shape, 30.0 if name in REFLECTANCES else 280.0) for name in BANDS}
    scene = xr.Dataset(
        {
            name: (("time", "y", "x"), da.from_array(counted, chunk, name=name, meta=np.empty(0)))
            for name, counted in bands.items()
        },
        coords={
            "time": NOON + np.arange(20) * np.timedelta64(15, "m"),
            "longitude": ("x", np.linspace(-20, -10, 600)),
            "latitude": ("y", np.linspace(30, 20, 500)),
        },
    )
    for name, band in BANDS.items():
        scene[name].attrs["units"] = band.units
    checked = check_scene(scene)
    assert all(isinstance(checked[name].data, da.Array) for name in (*BANDS, "solar_zenith_angle"))
    for counted in bands.values():
        # Of 6e6 pixels: eight acquisitions of a window of 64 x 64, which may touch four chunks.
        assert 0 < counted.read <= 8 * 4 * 100 * 100


def test_blocks_shared_by_several_bands_are_computed_once():
    made = []

    def make(block_info=None):
        if block_info:
            made.append(block_info[None]["chunk-location"])
        return np.full((1, 4, 4, len(BANDS)), 150.0, np.float32)

    whole = da.map_blocks(
        make, chunks=((1, 1), (4,), (4,), (len(BANDS),)), dtype=np.float32, meta=np.empty(0)
    )
    scene = xr.Dataset(
        {
            name: (("time", "y", "x"), whole[..., index], {"units": band.units})
            for index, (name, band) in enumerate(BANDS.items())
        }
        | {"solar_zenith_angle": (("time",), [30.0, 40.0])}
    )
    check_scene(scene)
    assert len(made) == 2


# Calibration


@pytest.mark.parametrize("fitted_on", [None, "nominal"])
@pytest.mark.parametrize("found", [{}, {"calibration_mode": "nominal"}])
def test_a_calibration_that_agrees_or_is_unknown_is_accepted(fitted_on, found):
    check_calibration(a_scene().assign_attrs(found), fitted_on)


def test_a_different_calibration_is_refused_with_its_remedy():
    scene = a_scene().assign_attrs(calibration_mode="GSICS")
    with pytest.raises(SceneError, match=r"'GSICS'.*'nominal'(.|\n)*calibration='nominal'"):
        check_calibration(scene, "nominal")
