"""SEVIRI through satpy: a small image over Dakhla, in memory and in real files."""

import datetime
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import ClassVar

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pyorbital.astronomy import sun_zenith_angle

from undulatus.errors import DamagedFileError, SceneError
from undulatus.scenes import masks
from undulatus.scenes.features import landmark_features
from undulatus.scenes.files import opening, satpy_files, seviri
from undulatus.scenes.files.satpy_files import READERS
from undulatus.scenes.files.seviri import open_scene
from undulatus.scenes.illumination import COSINE_FLOOR
from undulatus.scenes.radiometry import THERMAL_BANDS
from undulatus.scenes.scene import BANDS, check_scene

satpy = pytest.importorskip("satpy")
pyresample = pytest.importorskip("pyresample")

# satpy writes bounds of times as fractions of days, and xarray warns about them.
pytestmark = pytest.mark.filterwarnings("ignore:Times can't be serialized:UserWarning")

NOON = datetime.datetime(2010, 6, 1, 12, 0)
SHAPE = (20, 26)
STEP = 3000.403165817
GEOS = "+proj=geos +lon_0=0 +h=35785831 +a=6378169 +b=6356583.8 +units=m"
REFLECTANCES = [name for name, band in BANDS.items() if band.units == "%"]
THERMAL = [name for name, band in BANDS.items() if band.units == "K"]
SOME = ("VIS006", "IR_108")
QUARTER = datetime.timedelta(minutes=15)


@pytest.fixture(scope="module")
def area():
    """Twenty lines and twenty-six columns of SEVIRI's grid around 23.7 N, 15.9 W."""
    west, south = -1_566_000.0 - 13 * STEP, 2_488_000.0 - 10 * STEP
    extent = (west, south, west + 26 * STEP, south + 20 * STEP)
    found = pyresample.AreaDefinition("dakhla", "Dakhla", "geos", GEOS, 26, 20, extent)
    longitude, latitude = found.get_lonlats()
    assert_allclose([longitude.mean(), latitude.mean()], [-15.9, 23.7], atol=0.2)
    return found


@pytest.fixture(scope="module")
def images():
    """What the instrument saw: reflectances before division by the sun (%), and kelvins."""
    rng = np.random.default_rng(3)
    seen = {
        name: rng.uniform(5.0, 60.0, SHAPE) if name in REFLECTANCES else rng.normal(285, 8, SHAPE)
        for name in BANDS
    }
    for name in seen:
        seen[name] = seen[name].astype(np.float32)
        seen[name].setflags(write=False)
    return seen


@pytest.fixture(scope="module")
def satpy_scene(area, images):
    """A function that makes a satpy Scene; its keywords become attributes of every band."""

    def make(start=NOON, bands=tuple(BANDS), line_times=None, **attrs):
        scene = satpy.Scene()
        x, y = area.get_proj_vectors()
        for name in bands:
            kind = "reflectance" if name in REFLECTANCES else "brightness_temperature"
            array = xr.DataArray(
                da.from_array(images[name], chunks=(10, 13)),
                dims=("y", "x"),
                coords={"y": y, "x": x},
                attrs={
                    "name": name,
                    "area": area,
                    "units": BANDS[name].units,
                    "calibration": kind,
                    "standard_name": f"toa_{kind}",
                    "wavelength": satpy.dataset.dataid.WavelengthRange(0.56, 0.635, 0.71),
                    "platform_name": "Meteosat-9",
                    "sensor": "seviri",
                    "start_time": start,
                    "end_time": start + QUARTER,
                    "modifiers": (),
                    "orbital_parameters": {"projection_longitude": 0.0},
                    **attrs,
                },
            )
            if line_times is not None:
                array = array.assign_coords(acq_time=("y", line_times))
            scene[name] = array
        return scene

    return make


def save(scene, folder, start=NOON):
    """Write a Scene with satpy's CF writer, under a name that its reader recognises."""
    end = start + QUARTER
    path = folder / f"Meteosat-9-seviri-{start:%Y%m%d%H%M%S}-{end:%Y%m%d%H%M%S}.nc"
    scene.save_datasets(writer="cf", filename=str(path))
    return path


@pytest.fixture(scope="module")
def series(tmp_path_factory, satpy_scene):
    """Files of three acquisitions with every band, a quarter of an hour apart."""
    folder = tmp_path_factory.mktemp("series")
    starts = [NOON - QUARTER, NOON, NOON + QUARTER]
    return {start: save(satpy_scene(start), folder, start) for start in starts}


def zenith(area, time):
    longitude, latitude = area.get_lonlats()
    return sun_zenith_angle(np.datetime64(time), longitude, latitude)


def by_hand(area, images, start=NOON):
    """Return what a scene should be, computed with numpy."""
    angle = zenith(area, start)
    cosine = np.maximum(np.cos(np.radians(angle)), COSINE_FLOOR)
    arrays = {
        name: np.where(angle < 90.0, image / cosine, np.nan) if name in REFLECTANCES else image
        for name, image in images.items()
    }
    return xr.Dataset(
        {name: (("y", "x"), array, {"units": BANDS[name].units}) for name, array in arrays.items()}
        | {"solar_zenith_angle": (("y", "x"), angle)},
        coords={"time": np.datetime64(start, "ns")},
        attrs={"platform_name": "Meteosat-9"},
    )


def no_scheduler(*args, **kwargs):
    raise AssertionError("something was computed")


def test_features_from_satpy_files_are_those_from_the_arrays(area, images, series):
    opened = open_scene(series[NOON])
    expected = landmark_features(by_hand(area, images))
    # Longitudes, and so cosines, are rounded to float32.
    assert_allclose(landmark_features(opened), expected, rtol=1e-4, atol=1e-4)
    assert opened["VIS006"].dims == ("y", "x")
    assert opened["time"].values == np.datetime64("2010-06-01T12:00")


def test_a_scene_in_memory_and_its_file_open_alike(series, satpy_scene):
    from_memory, from_file = open_scene(satpy_scene()), open_scene(series[NOON])
    xr.testing.assert_equal(from_memory, from_file)
    assert from_memory["VIS006"].attrs == from_file["VIS006"].attrs


def test_nothing_is_computed_on_opening(series, satpy_scene):
    lines = np.full(20, np.datetime64(NOON, "ns"))
    clm = xr.DataArray(da.zeros(SHAPE, dtype="u1"), dims=("y", "x"))
    with dask.config.set(scheduler=no_scheduler):
        open_scene(satpy_scene(line_times=lines), mask=clm, mask_encoding="eumetsat-clm")
        opened = open_scene(list(series.values()), bands=SOME)
        assert all(isinstance(array.data, da.Array) for array in opened.data_vars.values())
        assert all(array.dtype == np.float32 for array in opened.data_vars.values())


def test_all_variables_have_the_requested_blocks(tmp_path, satpy_scene):
    lines = np.full(20, np.datetime64(NOON, "ns"))
    path = save(satpy_scene(bands=SOME, line_times=lines), tmp_path)
    clm = xr.DataArray(np.zeros(SHAPE, "u1"), dims=("y", "x"))
    opened = open_scene(
        path, bands=SOME, chunks={"y": 7, "x": 26}, mask=clm, mask_encoding="eumetsat-clm"
    )
    # xarray raises an error if blocks differ between variables.
    assert opened.chunksizes == {"y": (7, 7, 6), "x": (26,)}


def test_an_opened_scene_needs_no_correction(satpy_scene):
    opened = open_scene(satpy_scene())
    checked = check_scene(opened)
    for name in BANDS:
        assert_array_equal(checked[name], opened[name])


def test_pixels_without_sun_have_temperatures_but_no_reflectances(area, images, satpy_scene):
    minutes = [NOON - datetime.timedelta(minutes=minute) for minute in range(0, 480)]
    sunrise = min(minutes, key=lambda time: abs(zenith(area, time).mean() - 90.0))
    opened = open_scene(satpy_scene(sunrise))
    night = opened["solar_zenith_angle"].values >= 90.0
    assert 0.2 < night.mean() < 0.8
    for name in REFLECTANCES:
        assert_array_equal(np.isnan(opened[name]), night)
        # Within two degrees of the horizon the cosine is that of 88 degrees.
        assert_allclose(
            opened[name].values[~night], images[name][~night] / COSINE_FLOOR, rtol=1e-6
        )
    for name in THERMAL:
        assert_array_equal(opened[name], images[name])


def test_each_scan_line_has_the_sun_of_its_own_time(area, satpy_scene):
    lines = np.datetime64(NOON, "ns") + np.arange(20)[::-1] * np.timedelta64(36, "s")
    lines[4] = np.datetime64("NaT")
    opened = open_scene(satpy_scene(line_times=lines))
    lines[4] = np.datetime64(NOON, "ns")
    longitude, latitude = area.get_lonlats()
    expected = sun_zenith_angle(lines[:, None], longitude, latitude)
    # The sun moves up to three degrees in twelve minutes; float32 longitudes err by 1e-6.
    assert_allclose(opened["solar_zenith_angle"], expected, atol=1e-4)
    assert_array_equal(opened["acq_time"], lines)


def test_scan_lines_keep_their_times_in_satpy_files(tmp_path, satpy_scene):
    lines = np.datetime64(NOON, "ns") + np.arange(20) * np.timedelta64(1, "s")
    scene = satpy_scene(bands=SOME, line_times=lines)
    from_memory = open_scene(scene, bands=SOME)
    from_file = open_scene(save(scene, tmp_path), bands=SOME)
    assert_array_equal(from_file["acq_time"], lines)
    assert_array_equal(from_file["solar_zenith_angle"], from_memory["solar_zenith_angle"])


def test_features_of_scan_lines_with_times_are_those_of_the_acquisition(satpy_scene):
    lines = np.full(20, np.datetime64(NOON, "ns"))
    timed = landmark_features(open_scene(satpy_scene(line_times=lines)))
    assert_array_equal(timed.values, landmark_features(open_scene(satpy_scene())).values)


def test_pixels_in_space_have_no_position_and_no_sun(area, images, satpy_scene):
    beyond = area.copy(area_extent=(-4_400_000.0, 2_400_000.0, -3_400_000.0, 4_400_000.0))
    scene = satpy_scene(area=beyond)
    x, y = beyond.get_proj_vectors()
    for name in BANDS:
        scene[name] = scene[name].assign_coords(y=y, x=x)
    opened = open_scene(scene)
    space = ~np.isfinite(beyond.get_lonlats()[0])
    assert 0 < space.sum() < space.size
    for name in ("longitude", "latitude", "solar_zenith_angle", "VIS006"):
        assert_array_equal(np.isnan(opened[name].values), space)


@pytest.mark.parametrize("through_a_file", [False, True])
def test_reflectances_are_not_divided_by_the_sun_twice(
    tmp_path, area, satpy_scene, through_a_file
):
    once = open_scene(satpy_scene(), bands=SOME)
    back = satpy.Scene()
    for name in SOME:
        back[name] = once[name].assign_attrs(name=name, area=area)
    twice = open_scene(save(back, tmp_path) if through_a_file else back, bands=SOME)
    for name in SOME:
        assert_array_equal(twice[name], once[name])
        assert twice[name].attrs.get("sun_normalised") == once[name].attrs.get("sun_normalised")


def without(path, *attributes, **added):
    """Rewrite a file without attributes of its bands, and with others."""
    opened = xr.load_dataset(path)
    for name in BANDS:
        for attribute in attributes:
            opened[name].attrs.pop(attribute, None)
        opened[name].attrs |= added
    opened.to_netcdf(path)
    return path


def test_what_satpy_wrote_is_known_by_its_content_under_any_name(tmp_path, series):
    renamed = tmp_path / "image.nc"
    shutil.copy(series[NOON], renamed)
    for options in ({}, {"reader": "satpy_cf_nc"}):
        opened = opening.open_scene(renamed, **options)
        xr.testing.assert_identical(opened, opening.open_scene(series[NOON]))
        assert opened["VIS006"].attrs["sun_normalised"] == 1
    assert opening.open_scene(tmp_path, reader="satpy_cf_nc").sizes == opened.sizes


def test_a_file_of_satpy_without_its_modifiers_is_refused_until_it_is_said_what_it_is(
    tmp_path, satpy_scene, series
):
    path = without(save(satpy_scene(), tmp_path), "modifiers")
    for name in (path, Path(shutil.copy(path, tmp_path / "image.nc"))):
        with pytest.raises(SceneError, match="VIS006, VIS008, IR_016 may not be") as caught:
            opening.open_scene(name)
        assert "history names satpy" in str(caught.value)
        assert "--not-sun-normalised" in str(caught.value)
        divided = opening.open_scene(name, sun_normalised=False)
        xr.testing.assert_equal(divided, opening.open_scene(series[NOON]))
        as_it_is = opening.open_scene(name, sun_normalised=True)
        assert_array_equal(as_it_is["VIS006"], xr.load_dataset(name)["VIS006"])


def test_sunz_corrected_bands_are_taken_if_somebody_says_that_they_are(satpy_scene, images):
    scene = satpy_scene(bands=SOME, modifiers=("sunz_corrected",))
    assert_array_equal(open_scene(scene, bands=SOME, sun_normalised=True)["VIS006"],
                       images["VIS006"])  # fmt: skip
    more = satpy_scene(bands=SOME, modifiers=("sunz_corrected", "rayleigh_corrected"))
    with pytest.raises(SceneError, match="VIS006 was changed by satpy"):
        open_scene(more, bands=SOME, sun_normalised=True)


def test_a_scene_without_modifiers_is_divided_and_that_is_said_once(satpy_scene):
    scene, said = satpy_scene(bands=SOME), []
    del scene["VIS006"].attrs["modifiers"]
    found = open_scene(scene, bands=SOME, warn=said.append)
    xr.testing.assert_equal(found, open_scene(satpy_scene(bands=SOME), bands=SOME))
    assert len(said) == 1
    assert said[0].startswith("VIS006 of the Scene: taken as not divided by the cosine")


@pytest.mark.parametrize("modifier", ["sunz_corrected", "effective_solar_pathlength_corrected"])
@pytest.mark.parametrize("through_a_file", [False, True])
def test_what_satpy_divided_by_the_sun_is_refused(tmp_path, satpy_scene, modifier, through_a_file):
    scene = satpy_scene(bands=SOME, modifiers=(modifier,))
    with pytest.raises(SceneError, match=f"VIS006 was changed by satpy .{modifier}") as caught:
        open_scene(save(scene, tmp_path) if through_a_file else scene, bands=SOME)
    assert "modifiers=()" in str(caught.value)


@pytest.mark.parametrize(
    ("calibration", "units"),
    [("counts", "count"), ("radiance", "mW m-2 sr-1 (cm-1)-1"), (None, "mW m-2 sr-1 (cm-1)-1")],
)
def test_counts_and_radiances_are_refused_with_their_remedy(satpy_scene, calibration, units):
    scene = satpy_scene(calibration=calibration, units=units)
    with pytest.raises(SceneError, match=r'load\(\["IR_108"\], .*"brightness_temperature"'):
        open_scene(scene)


def test_attributes_name_the_platform_and_the_calibration(satpy_scene):
    opened = open_scene(satpy_scene(), calibration="GSICS")
    assert opened.attrs["calibration_mode"] == "GSICS"
    assert opened.attrs["platform_name"] in THERMAL_BANDS
    assert opened["IR_108"].attrs["units"] == "K"
    assert opened["IR_108"].attrs["standard_name"] == "toa_brightness_temperature"


def test_a_recorded_calibration_contradicts_another(satpy_scene):
    with pytest.raises(SceneError, match="calibration='GSICS'"):
        open_scene(satpy_scene(calibration_mode="GSICS"), calibration="nominal")


def test_missing_bands_are_named(tmp_path, satpy_scene):
    some = [name for name in BANDS if name not in ("IR_016", "IR_087")]
    path = save(satpy_scene(bands=some), tmp_path)
    with pytest.raises(SceneError, match="missing: IR_016, IR_087") as caught:
        open_scene(path)
    assert str(path) in str(caught.value)
    assert set(open_scene(path, bands=some).data_vars) == {*some, "solar_zenith_angle"}


def test_a_band_that_does_not_exist_is_refused(satpy_scene):
    with pytest.raises(SceneError, match="no bands IR_999"):
        open_scene(satpy_scene(), bands=["IR_999"])


def test_bands_that_are_not_loaded_yet_are_loaded(series):
    scene = satpy.Scene(filenames=[str(series[NOON])], reader="satpy_cf_nc")
    scene.load(["VIS006"])
    assert set(BANDS) <= set(open_scene(scene).data_vars)


def test_acquisitions_are_sorted_by_time(area, images, series):
    starts = [NOON + QUARTER, NOON - QUARTER, NOON]
    opened = open_scene([series[start] for start in starts], bands=SOME)
    assert opened["VIS006"].dims == ("time", "y", "x")
    assert opened["longitude"].dims == ("y", "x")
    assert_array_equal(opened["time"], np.array(sorted(starts), "datetime64[ns]"))
    for index, start in enumerate(sorted(starts)):
        expected = by_hand(area, images, start)
        assert_allclose(opened["VIS006"][index], expected["VIS006"], rtol=1e-4)
    assert opened.attrs["platform_name"] == "Meteosat-9"
    assert "start_time" not in opened.attrs


def test_a_series_has_the_features_of_its_acquisitions(series):
    paths = [series[NOON], series[NOON + QUARTER]]
    together = landmark_features(open_scene(paths))
    for index, path in enumerate(paths):
        assert_array_equal(together[index], landmark_features(open_scene(path)))


def test_a_folder_of_files_is_a_series(series):
    folder = series[NOON].parent
    (folder / "notes.txt").write_text("not a scene")
    assert open_scene(folder, bands=SOME).sizes["time"] == 3


def test_two_acquisitions_of_the_same_time_are_refused(series):
    with pytest.raises(SceneError, match=r"have the time 2010-06-01T12:00:00: .*\.nc, twice\."):
        open_scene([series[NOON], series[NOON]], bands=SOME)


def test_acquisitions_on_different_grids_are_refused(tmp_path, area, series, satpy_scene):
    later = satpy_scene(NOON + QUARTER, bands=SOME)
    for name in SOME:
        moved = later[name].assign_coords(y=later[name]["y"] + 3 * STEP)
        later[name] = moved.assign_attrs(area=area.copy(area_extent=_moved(area)))
    path = save(later, tmp_path, NOON + QUARTER)
    with pytest.raises(SceneError, match="another grid than the first") as caught:
        open_scene([series[NOON], path], bands=SOME)
    assert str(path) in str(caught.value)


def _moved(area):
    west, south, east, north = area.area_extent
    return (west, south + 3 * STEP, east, north + 3 * STEP)


def test_bands_on_different_grids_are_refused(satpy_scene):
    scene = satpy_scene()
    scene["IR_120"] = scene["IR_120"].isel(y=slice(None, None, -1))
    with pytest.raises(SceneError, match="bands on different grids"):
        open_scene(scene)


def test_a_scene_without_a_time_or_a_position_is_refused(satpy_scene):
    with pytest.raises(SceneError, match="start_time"):
        open_scene(satpy_scene(start_time=None))
    with pytest.raises(SceneError, match="has no position"):
        open_scene(satpy_scene(area=None))


def test_bands_without_a_projection_are_placed_by_their_longitudes(area, satpy_scene):
    scene = satpy_scene(bands=SOME)
    longitude, latitude = area.get_lonlats()
    for name in SOME:
        bare = scene[name].drop_vars(["y", "x"]).assign_attrs(area=None)
        scene[name] = bare.assign_coords(
            longitude=(("y", "x"), longitude), latitude=(("y", "x"), latitude)
        )
    placed, projected = open_scene(scene, bands=SOME), open_scene(satpy_scene(), bands=SOME)
    assert_array_equal(placed["VIS006"], projected["VIS006"])
    assert "area" not in placed.attrs
    assert "grid_mapping" not in placed["VIS006"].attrs


def test_a_scene_in_memory_is_not_changed(images, satpy_scene):
    scene = satpy_scene()
    before = {name: dict(scene[name].attrs) for name in BANDS}
    open_scene(scene).compute()
    for name in BANDS:
        assert scene[name].attrs == before[name]
        assert_array_equal(scene[name], images[name])


@pytest.mark.parametrize("store", ["netcdf", "zarr"])
def test_everything_but_the_area_can_be_written(tmp_path, satpy_scene, store):
    scene = open_scene(satpy_scene(), mask=xr.DataArray(np.zeros(SHAPE, "u1"), dims=("y", "x")),
                       mask_encoding="cf")  # fmt: skip
    del scene.attrs["area"]
    if store == "netcdf":
        scene.to_netcdf(tmp_path / "scene.nc")
        back = xr.open_dataset(tmp_path / "scene.nc")
    else:
        scene.to_zarr(tmp_path / "scene.zarr", consolidated=False)
        back = xr.open_zarr(tmp_path / "scene.zarr", consolidated=False)
    with back:
        assert back.attrs == scene.attrs
        assert_array_equal(landmark_features(back), landmark_features(scene))


class Recorder:
    """Stands in for satpy's Scene, and remembers how it was made."""

    made: ClassVar[list] = []

    def __init__(self, filenames, reader, reader_kwargs=None):
        self.made.append((reader, len(filenames), reader_kwargs))
        self.filenames = filenames

    def available_dataset_names(self):
        return list(BANDS)

    def load(self, names, **kwargs):
        raise OSError("the disc is gone")


@pytest.fixture
def recorder(monkeypatch):
    monkeypatch.setattr(satpy, "Scene", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    return Recorder.made


NATIVE = "MSG2-SEVI-MSG15-0100-NA-20100601121241.123000000Z-NA.nat"
NETCDF = "W_XX-EUMETSAT-Darmstadt,VIS+IR+HRV+IMAGERY,MSG2+SEVIRI_C_EUMG_20100601120000.nc"
SEGMENT = "H-000-MSG2__-MSG2________-{}-{}___-201006011200-{}"


@pytest.mark.parametrize(
    ("name", "calibration", "reader", "kwargs"),
    [
        (NATIVE, "nominal", "seviri_l1b_native", {"calib_mode": "nominal"}),
        (NATIVE, "gsics", "seviri_l1b_native", {"calib_mode": "GSICS"}),
        (NATIVE, "meirink-2023", "seviri_l1b_native", {"calib_mode": "meirink-2023"}),
        (NETCDF, "nominal", "seviri_l1b_nc", {}),
    ],
)
def test_the_reader_is_guessed_from_the_name_of_a_file(
    tmp_path, recorder, name, calibration, reader, kwargs
):
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SceneError, match="the disc is gone"):
        open_scene(tmp_path / name, calibration=calibration)
    assert recorder == [(reader, 1, kwargs)]


def touch_segments(folder, *, without=()):
    """Make files with the names of an acquisition of three bands, but for some."""
    parts = [
        (band, f"00000{n}") for band in ("IR_108___", "VIS006___", "HRV______") for n in (1, 2)
    ]
    for band, segment in [*parts, ("_________", "PRO___"), ("_________", "EPI___")]:
        if (band.strip("_"), segment.strip("_")) not in without:
            (folder / SEGMENT.format(band, segment, "__")).write_bytes(b"x")


def test_a_folder_of_segments_is_one_acquisition_without_bands_that_are_not_needed(
    tmp_path, recorder
):
    touch_segments(tmp_path)
    with pytest.raises(
        SceneError, match=r"\(and 5 more\) cannot be read by satpy's seviri_l1b_hrit"
    ):
        open_scene(tmp_path)
    assert recorder == [("seviri_l1b_hrit", 6, {"calib_mode": "nominal"})]


def test_segments_that_are_missing_are_named(tmp_path, recorder):
    touch_segments(tmp_path, without={("", "EPI"), ("IR_108", "000002")})
    with pytest.raises(SceneError, match="missing: epilogue; IR_108 segment 2\n"):
        open_scene(tmp_path)
    assert recorder == []


def test_compressed_segments_need_a_library(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / SEGMENT.format("IR_108___", "000001", "C_")).write_bytes(b"x")
    with pytest.raises(SceneError, match="pip install pyPublicDecompWT"):
        open_scene(tmp_path)


def test_netcdf_has_only_nominal_coefficients(tmp_path):
    (tmp_path / NETCDF).write_bytes(b"x")
    with pytest.raises(SceneError, match="cannot calibrate by 'GSICS'"):
        open_scene(tmp_path / NETCDF, calibration="GSICS")


def test_a_name_without_a_reader_gets_the_list_of_readers(tmp_path):
    path = tmp_path / "picture.dat"
    path.write_bytes(b"x")
    with pytest.raises(SceneError, match="from which no reader can be guessed") as caught:
        open_scene(path)
    assert all(reader in str(caught.value) for reader in READERS)


def test_files_for_two_readers_are_refused(tmp_path):
    for name in (NATIVE, NETCDF):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(SceneError, match=r"need several readers.*\n.*--reader"):
        open_scene(tmp_path)
    with pytest.raises(SceneError, match="seviri_l1b_native"):
        open_scene(tmp_path, reader="seviri_l1b_native")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("nowhere.nat", "nowhere.nat does not exist"),
        (".", "folder without SEVIRI files"),
        (3, "from a int"),
        ([], "from a list"),
    ],
)
def test_an_unusable_source_is_refused_with_the_reason(tmp_path, monkeypatch, source, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SceneError, match=message):
        open_scene(source)


def test_a_reader_that_does_not_exist_is_refused():
    with pytest.raises(SceneError, match="No reader 'seviri'"):
        open_scene("x.nat", reader="seviri")


def test_an_empty_file_is_named(tmp_path):
    (tmp_path / NATIVE).touch()
    with pytest.raises(SceneError, match=r"Z-NA\.nat is empty"):
        open_scene(tmp_path / NATIVE)


@pytest.mark.parametrize("kept", [0.5, 0.01])
def test_a_truncated_file_is_named(tmp_path, series, kept):
    content = series[NOON].read_bytes()
    cut = tmp_path / series[NOON].name
    cut.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SceneError, match=r"cannot be read: .*NetCDF") as caught:
        open_scene(cut)
    assert str(cut) in str(caught.value)
    assert caught.value.__cause__ is not None


def test_without_satpy_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / NATIVE).write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "satpy", None)
    with pytest.raises(SceneError, match=r'pip install "undulatus\[seviri\]"'):
        open_scene(tmp_path / NATIVE)


@pytest.fixture
def native(tmp_path, seviri_files):
    counts = np.random.default_rng(5).integers(300, 700, (12, 11, 16))
    return seviri_files.write_native(tmp_path / NATIVE, counts)


no_orbit = pytest.mark.filterwarnings("ignore:No orbit polynomial valid:UserWarning")


@no_orbit
def test_a_native_file_is_read_as_by_satpy_but_divided_by_the_sun_and_north_up(native):
    opened = open_scene(native)
    plain = satpy.Scene(filenames=[str(native)], reader="seviri_l1b_native")
    plain.load(list(BANDS))
    cosine = np.cos(np.radians(opened["solar_zenith_angle"].values))
    for name in BANDS:
        upright = plain[name].values[::-1, ::-1]
        expected = upright / cosine if name in REFLECTANCES else upright
        assert_allclose(opened[name], expected, rtol=1e-6)
        assert opened[name].dtype == np.float32
    assert opened["y"][0] > opened["y"][-1]
    assert opened["x"][0] < opened["x"][-1]
    assert_array_equal(np.diff(opened["acq_time"]), np.timedelta64(-600, "ms"))
    assert_allclose(opened["latitude"].mean(), 23.7, atol=0.3)
    assert_allclose(opened["longitude"].mean(), -15.9, atol=0.3)
    assert opened.attrs["platform_name"] == "Meteosat-9"
    assert opened.attrs["area"].shape == opened["VIS006"].shape


@no_orbit
def test_the_calibration_changes_the_bands_it_is_for(native):
    nominal, gsics, meirink = (
        open_scene(native, calibration=mode, bands=SOME)
        for mode in ("nominal", "GSICS", "meirink-2023")
    )
    assert_array_equal(gsics["VIS006"], nominal["VIS006"])
    assert_array_equal(meirink["IR_108"], nominal["IR_108"])
    assert (gsics["IR_108"] > nominal["IR_108"]).all()
    assert not np.allclose(meirink["VIS006"], nominal["VIS006"])
    assert [s.attrs["calibration_mode"] for s in (gsics, meirink)] == ["GSICS", "meirink-2023"]


@no_orbit
def test_missing_bands_of_a_native_file_are_named(tmp_path, seviri_files):
    seviri_files.write_native(tmp_path / NATIVE, np.full((12, 9, 16), 500))
    with pytest.raises(
        SceneError, match=r"Z-NA\.nat lacks bands\.\n  missing: IR_120\n"
    ) as caught:
        open_scene(tmp_path / NATIVE)
    assert "satpy: Channel IR_120 not available in the file" in str(caught.value)


@no_orbit
@pytest.mark.parametrize("kept", [0.1, 0.6])
def test_a_truncated_native_file_is_named(native, kept):
    content = native.read_bytes()
    native.write_bytes(content[: int(kept * len(content))])
    with pytest.raises(SceneError, match=r"Z-NA\.nat cannot be read by satpy's seviri_l1b_native"):
        open_scene(native)


CLM = xr.DataArray(
    np.random.default_rng(1).integers(0, 4, SHAPE).astype(np.float64),
    dims=("y", "x"),
    attrs={"standard_name": "cloud_classification", "start_time": NOON},
)


def test_a_mask_is_decoded_and_aligned_with_the_scene(satpy_scene):
    opened = open_scene(satpy_scene(), mask=CLM, bands=SOME)
    assert_array_equal(opened["cloud_mask_l2"], masks.decode(CLM))
    assert opened["cloud_mask_l2"].dtype == np.uint8


def test_a_mask_is_read_from_a_file(tmp_path, satpy_scene):
    written = masks.encode(masks.decode(CLM), "cf").rename("cloud_mask")
    written.to_netcdf(tmp_path / "mask.nc")
    opened = open_scene(satpy_scene(), mask=tmp_path / "mask.nc", bands=SOME)
    assert_array_equal(opened["cloud_mask_l2"], masks.decode(CLM))


def test_masks_of_several_files_are_matched_to_acquisitions(tmp_path, series):
    starts = [NOON, NOON + QUARTER]
    found = []
    for index, start in enumerate(starts):
        mask = (CLM + index).assign_attrs(
            standard_name="cloud_classification", start_time=str(start)
        )
        found.insert(0, tmp_path / f"mask{index}.nc")
        mask.rename("cloud_mask").to_netcdf(found[0])
    opened = open_scene([series[start] for start in starts], mask=found, bands=SOME)
    assert_array_equal(opened["cloud_mask_l2"][0], masks.decode(CLM, "eumetsat-clm"))
    assert_array_equal(opened["cloud_mask_l2"][1], masks.decode(CLM + 1, "eumetsat-clm"))


def test_a_mask_that_cannot_be_read_is_named(tmp_path, satpy_scene):
    scene = satpy_scene()
    with pytest.raises(SceneError, match=r"none\.grb does not exist"):
        open_scene(scene, mask=tmp_path / "none.grb")
    name = "MSG2-SEVI-MSGCLMK-0100-0100-20100601120000.000000000Z-NA.grb"
    (tmp_path / name).write_bytes(b"GRIB, but not for long")
    with pytest.raises(SceneError, match=f"{name} cannot be read by satpy's seviri_l2_grib"):
        open_scene(scene, mask=tmp_path / name)


# Boxes and times


@no_orbit
@pytest.mark.parametrize("at_once", [True, False])
def test_a_box_has_the_pixels_of_the_whole_that_lie_in_it(native, monkeypatch, at_once):
    monkeypatch.setattr(seviri, "READ_AT_ONCE", 2**30 if at_once else 0)
    whole = open_scene(native).load()
    west, south, east, north = box = (-16.05, 23.6, -15.85, 23.8)
    part = open_scene(native, box=box)
    assert all((array.chunks is None) == at_once for array in part.data_vars.values())
    inside = (whole["longitude"] >= west) & (whole["longitude"] <= east)
    inside &= (whole["latitude"] >= south) & (whole["latitude"] <= north)
    rows, columns = (np.flatnonzero(inside.any(dim).values) for dim in ("x", "y"))
    assert 1 < len(rows) < 12
    assert 1 < len(columns) < 16
    expected = whole.isel(y=rows, x=columns)
    # The grid of a copy of some lines is computed from its own corner, in metres as float32.
    xr.testing.assert_allclose(part, expected, rtol=1e-5)
    assert_array_equal(part["acq_time"], expected["acq_time"])
    assert part.attrs["area"].shape == part["VIS006"].shape


@no_orbit
def test_only_the_lines_of_a_box_are_read_from_a_native_file(native, monkeypatch):
    seen = []
    copy = satpy_files.copy_lines
    monkeypatch.setattr(
        satpy_files, "copy_lines", lambda *args: seen.append(args[2:]) or copy(*args)
    )
    part = open_scene(native, box=(-16.05, 23.6, -15.85, 23.8))
    (first, last), *_ = seen
    assert last - first + 1 == part.sizes["y"]


def test_a_box_without_pixels_says_where_the_data_are(satpy_scene):
    with pytest.raises(SceneError, match="No pixel lies in the box 10,40,12,42") as caught:
        open_scene(satpy_scene(), box="10,40,12,42")
    assert "reach from -16.3 to -15.5 east" in str(caught.value)


def test_only_acquisitions_of_a_span_are_opened(series, monkeypatch):
    opened, load = [], satpy_files._load_cf
    monkeypatch.setattr(
        satpy_files, "_load_cf", lambda file, bands: opened.append(file) or load(file, bands)
    )
    with pytest.raises(SceneError, match=r"their names tell 2010-06-01T11:45 to 2010-06-01T12:15"):
        open_scene(list(series.values()), time="2011")
    assert opened == []


def test_acquisitions_outside_a_span_are_left_out_though_names_are_near(series):
    paths = list(series.values())
    assert open_scene(paths, time="2010-06-01T12:00", bands=SOME)["time"] == np.datetime64(NOON)
    after = open_scene(paths, time="2010-06-01T12:00/2010-06-01", bands=SOME)
    assert after.sizes["time"] == 2
    with pytest.raises(SceneError, match="they are of 2010-06-01T11:45 to 2010-06-01T12:15"):
        open_scene(paths, time="2010-06-01T12:01", bands=SOME)


@no_orbit
def test_files_of_two_platforms_or_services_are_not_joined(tmp_path, seviri_files):
    counts = np.full((8, 11, 8), 500)
    late = NOON + QUARTER
    one = seviri_files.write_native(tmp_path / NATIVE, counts)
    other = tmp_path / seviri_files.native_name(late, "MSG3")
    seviri_files.write_native(other, counts, start=late, satellite=323)
    with pytest.raises(SceneError, match=r"is of platform Meteosat-9, .*of Meteosat-10: give"):
        open_scene([one, other])
    seviri_files.write_native(other, counts, start=late, longitude=45.5)
    with pytest.raises(SceneError, match=r"seen from 45\.5 degrees east, not seen from 0"):
        open_scene([one, other])
    seviri_files.write_native(other, counts[:4], start=late)
    with pytest.raises(SceneError, match="4 pixels, the first has 8"):
        open_scene([one, other])


@no_orbit
def test_segments_are_read_as_the_native_file_of_the_same_counts(tmp_path, seviri_files):
    counts = np.random.default_rng(8).integers(300, 700, (64, 11, 64))
    opened = open_scene(seviri_files.write_hrit(tmp_path / "hrit", counts), bands=SOME)
    seviri_files.write_native(tmp_path / NATIVE, counts)
    native = open_scene(tmp_path / NATIVE, bands=SOME)
    assert_array_equal(opened["IR_108"], native["IR_108"])
    assert_array_equal(opened["acq_time"], native["acq_time"])
    part = open_scene(tmp_path / "hrit", bands=SOME, box=(-30, -30, 30, 30))
    assert part.sizes["y"] < 64
    xr.testing.assert_allclose(part, opened.sel(y=part["y"], x=part["x"]))


def test_several_masks_are_counted(tmp_path, series):
    paths = []
    for minutes in (0, 15, 120):
        mask = masks.encode(masks.decode(CLM).drop_vars("time"), "cf").rename("cloud_mask")
        moment = NOON + datetime.timedelta(minutes=minutes)
        paths.append(tmp_path / f"mask_{moment:%Y%m%dT%H%M%SZ}.nc")
        mask.to_netcdf(paths[-1])
    said = []
    opened = open_scene(list(series.values()), mask=paths, bands=SOME, say=said.append)
    assert said == ["masks: 2 of 3 acquisitions have one, 1 masks belong to none"]
    assert (opened["cloud_mask_l2"][0] == 255).all()
    assert_array_equal(opened["cloud_mask_l2"][2], masks.decode(CLM))
    with pytest.raises(SceneError, match="mask: 2010-06-01T14:00\n  scene: 2010-06-01T11:45 to"):
        open_scene(list(series.values()), mask=paths[2:], bands=SOME)
    (tmp_path / "again").mkdir()
    twice = tmp_path / "again" / paths[0].name
    twice.write_bytes(paths[0].read_bytes())
    with pytest.raises(SceneError, match="Two masks have the time 2010-06-01T12:00:00"):
        open_scene(list(series.values()), mask=[*paths, twice], bands=SOME)


def test_a_mask_of_the_whole_without_coordinates_is_cut_with_the_scene(satpy_scene):
    box = (-16.05, 23.6, -15.85, 23.8)
    whole, part = (open_scene(satpy_scene(), mask=CLM, bands=SOME, box=b) for b in (None, box))
    expected = whole.sel(y=part["y"], x=part["x"])
    assert part.sizes["y"] < 20
    assert_array_equal(part["cloud_mask_l2"], expected["cloud_mask_l2"])


@no_orbit
@pytest.mark.parametrize("box", [None, (-0.5, -0.5, 0.5, 0.5)])
def test_the_cloud_mask_of_eumetsat_is_read_from_grib(tmp_path, seviri_files, box):
    codes = np.random.default_rng(0).integers(0, 4, (64, 64))
    clm = tmp_path / "MSG2-SEVI-MSGCLMK-0100-0100-20100601120000.000000000Z-NA.grb"
    seviri_files.write_clm(clm, codes)
    counts = np.full((64, 11, 64), 400)
    # Both have the sub-satellite point in their middle.
    seviri_files.write_native(tmp_path / NATIVE, counts, first_line=1825, first_column=1825)
    opened = open_scene(tmp_path / NATIVE, mask=clm, bands=SOME, box=box)
    if box is not None:
        whole = open_scene(tmp_path / NATIVE, bands=SOME)
        rows, columns = (
            whole.indexes[dim].get_indexer(opened[dim], method="nearest") for dim in ("y", "x")
        )
        codes = codes[np.ix_(rows, columns)]
        assert codes.shape < (64, 64)
    expected = np.select([codes == 3, codes == 2], [255, 1], 0)
    assert_array_equal(opened["cloud_mask_l2"], expected)


def test_acquisitions_without_all_segments_are_left_out_if_that_is_asked_for(
    tmp_path, seviri_files
):
    counts = np.full((64, 11, 64), 300)
    for start in (NOON, NOON + QUARTER):
        seviri_files.write_hrit(tmp_path / "hrit", counts, start=start)
    lost = next((tmp_path / "hrit").glob("*IR_016*000003*201006011200*"))
    lost.unlink()
    with pytest.raises(DamagedFileError, match="IR_016 segment 3"):
        open_scene(tmp_path / "hrit", bands=(*SOME, "IR_016"))
    found = open_scene(tmp_path / "hrit", bands=(*SOME, "IR_016"), skip_damaged=True)
    assert found["time"] == np.datetime64(NOON + QUARTER)
    assert "not a whole acquisition" in found.attrs["skipped_files"]
    assert (
        "skipped_files" not in open_scene(tmp_path / "hrit", bands=SOME, skip_damaged=True).attrs
    )
