"""Opening: scenes, maps and spectra are read as they were written; the rest is an error."""

import datetime
import errno
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import rasterio
import rasterio.shutil
import xarray as xr
from numpy.testing import assert_array_equal

from undulatus.errors import DamagedFileError, SceneError
from undulatus.scenes.channels import CHANNELS, RADIANCE_UNITS, WAVENUMBERS
from undulatus.scenes.files import opening
from undulatus.scenes.files.opening import (
    CONTIGUOUS_BYTES,
    SEVIRI,
    input_digest,
    open_data,
    open_map,
    open_raster_map,
    open_scene,
    open_spectra,
)
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.radiometry import blackbody_radiance
from undulatus.scenes.scene import BANDS, check_scene
from undulatus.scenes.simulators.landmark import synthetic_landmark
from undulatus.scenes.simulators.sounder import synthetic_sounder
from undulatus.scenes.spectra import check_spectra

both_formats = pytest.mark.parametrize("suffix", [".zarr", ".nc"])


@pytest.fixture(scope="module")
def simulator():
    """Five hours of a summer day of the simulator, in memory."""
    return synthetic_landmark(1, first_day=170).isel(time=slice(15, 35)).load()


def a_map():
    """Return something like a map: codes with a fill value, probabilities, bits, attributes."""
    rng = np.random.default_rng(0)
    dims = ("y", "x")
    probability = rng.random((6, 8)).astype(np.float32)
    probability[0, 0] = np.nan
    mask = np.where(np.isnan(probability), 255, probability > 0.5).astype(np.uint8)
    return xr.Dataset(
        {
            "cloud_mask": (
                dims,
                mask,
                {
                    "_FillValue": np.uint8(255),
                    "flag_values": np.array([0, 1], np.uint8),
                    "flag_meanings": "clear cloud",
                    "grid_mapping": "spatial_ref",
                },
            ),
            "cloud_probability": (
                dims,
                probability,
                {"units": "1", "_FillValue": np.float32(np.nan)},
            ),
            "quality_flag": (dims, rng.integers(0, 64, (6, 8)).astype(np.uint8)),
        },
        coords={
            "y": np.arange(6) * -3000.0,
            "x": np.arange(8) * 3000.0,
            "time": np.datetime64("2010-06-01T12:00", "ns"),
            "spatial_ref": ((), np.int32(0), {"grid_mapping_name": "geostationary"}),
        },
        attrs={
            "area": object(),
            "orbital_parameters": {"longitude": 0.0},
            "start_time": datetime.datetime(2010, 6, 1, 12),
            "end_time": np.datetime64("2010-06-01T12:15"),
            "georef_offset_corrected": True,
            "sensor": {"seviri"},
            "history": "made for a test",
            "line_times": [datetime.datetime(2010, 6, 1), "2010-06-02"],
            "extent": (1.0, 2.0),
            "modes": ["nominal", "GSICS"],
            "nothing": None,
        },
    )


def same_values(found, expected):
    assert set(found.variables) == set(expected.variables)
    for name, array in expected.variables.items():
        values = found[name].values
        if array.dtype.kind == "u" and values.dtype.kind == "f":
            # Codes with a fill value are read as floats, with NaN for missing.
            values = np.where(np.isnan(values), 255, values)
        assert_array_equal(values.astype(array.dtype), array.values, err_msg=name)


# Round trip


@both_formats
def test_a_scene_is_read_lazily_as_it_was_written(tmp_path, simulator, suffix):
    path = tmp_path / f"simulator{suffix}"
    write_dataset(simulator, path)
    with open_scene(path) as found:
        assert all(isinstance(found[name].data, da.Array) for name in BANDS)
        same_values(found, simulator)
        assert found.attrs == simulator.attrs
        for name in BANDS:
            assert found[name].attrs["units"] == BANDS[name].units
            assert found[name].encoding["grid_mapping"] == "spatial_ref"
        assert "spatial_ref" in found.coords
        assert found["spatial_ref"].attrs["grid_mapping_name"] == "geostationary"
        checked = check_scene(found)
        for name in BANDS:
            assert_array_equal(checked[name], check_scene(simulator)[name])


@both_formats
def test_a_map_is_read_as_it_was_written_without_what_no_file_can_hold(tmp_path, suffix):
    made = a_map()
    path = tmp_path / f"map{suffix}"
    write_dataset(made, path)
    how = {"engine": "zarr"} if suffix == ".zarr" else {}
    with xr.open_dataset(path, decode_coords="all", **how) as found:
        same_values(found, made)
        assert np.isnan(found["cloud_mask"].values[0, 0])
        assert found["cloud_mask"].attrs["flag_meanings"] == "clear cloud"
        assert found["cloud_mask"].encoding["grid_mapping"] == "spatial_ref"
        attrs = {key: np.asarray(value).tolist() for key, value in found.attrs.items()}
    assert attrs == {
        "start_time": "2010-06-01 12:00:00",
        "end_time": "2010-06-01T12:15",
        "georef_offset_corrected": 1,
        "history": "made for a test",
        "line_times": ["2010-06-01 00:00:00", "2010-06-02"],
        "extent": [1.0, 2.0],
        "modes": ["nominal", "GSICS"],
    }


@both_formats
def test_writing_does_not_change_the_dataset(tmp_path, suffix):
    made, before = a_map(), a_map()
    before.attrs["area"] = made.attrs["area"]
    write_dataset(made, tmp_path / f"map{suffix}")
    xr.testing.assert_identical(made, before)
    assert all(not array.encoding for array in made.variables.values())


@pytest.mark.parametrize("second", [".zarr", ".nc"])
@pytest.mark.parametrize("first", [".zarr", ".nc"])
def test_a_scene_that_was_read_can_be_written_to_either_format(tmp_path, simulator, first, second):
    write_dataset(simulator, tmp_path / f"first{first}")
    with open_scene(tmp_path / f"first{first}") as scene:
        write_dataset(scene, tmp_path / f"second{second}")
    with open_scene(tmp_path / f"second{second}") as found:
        same_values(found, simulator)
        assert found["VIS006"].encoding["dtype"] == np.int16
        assert found["VIS006"].encoding["grid_mapping"] == "spatial_ref"


@both_formats
def test_attributes_take_precedence_over_encoding(tmp_path, suffix):
    made = a_map()
    made["cloud_mask"].encoding = {"_FillValue": np.uint8(254), "grid_mapping": "elsewhere"}
    write_dataset(made, tmp_path / f"map{suffix}")
    how = {"engine": "zarr"} if suffix == ".zarr" else {}
    with xr.open_dataset(tmp_path / f"map{suffix}", decode_coords="all", **how) as found:
        assert found["cloud_mask"].encoding["_FillValue"] == 255
        assert found["cloud_mask"].encoding["grid_mapping"] == "spatial_ref"


@both_formats
def test_blocks_of_different_sizes_can_be_written(tmp_path, simulator, suffix):
    uneven = simulator.chunk(time=(3, 11, 6), y=(7, 13))
    write_dataset(uneven, tmp_path / f"simulator{suffix}")
    with open_scene(tmp_path / f"simulator{suffix}") as found:
        same_values(found, simulator)


def test_a_zarr_folder_may_have_any_name(tmp_path, simulator):
    write_dataset(simulator, tmp_path / "simulator.zarr")
    odd = tmp_path / "año 2010"
    (tmp_path / "simulator.zarr").rename(odd)
    same_values(open_scene(str(odd)), simulator)


def test_a_start_time_in_the_attributes_is_kept(tmp_path, simulator):
    image = simulator.isel(time=10, drop=True).drop_vars("solar_zenith_angle")
    image.attrs["start_time"] = datetime.datetime(2010, 6, 20, 6, 15)
    write_dataset(image, tmp_path / "image.nc")
    with open_scene(tmp_path / "image.nc") as found:
        assert_array_equal(
            check_scene(found)["solar_zenith_angle"], check_scene(image)["solar_zenith_angle"]
        )


@both_formats
def test_progress_is_reported_from_the_first_task_to_the_last(tmp_path, simulator, suffix):
    reported = []
    write_dataset(
        simulator.chunk(time=5),
        tmp_path / f"simulator{suffix}",
        lambda *counts: reported.append(counts),
    )
    total = reported[0][1]
    assert reported == [(done, total) for done in range(1, total + 1)]


# Damaged files


@pytest.fixture
def three(tmp_path, simulator):
    """Scenes of three times, the second of which is cut short."""
    paths = [tmp_path / f"{index}.nc" for index in range(3)]
    for index, path in enumerate(paths):
        write_dataset(simulator.isel(time=[index]), path)
    paths[1].write_bytes(paths[1].read_bytes()[:-1000])
    return paths


def test_damaged_scenes_are_left_out_and_listed_if_that_is_asked_for(three, simulator):
    for opening_function in (open_scene, open_data):
        with pytest.raises(DamagedFileError, match=r"1\.nc"):
            opening_function(three)
        found = opening_function(three, skip_damaged=True)
        assert_array_equal(found["time"], simulator["time"][[0, 2]])
        assert found.attrs["skipped_files"].startswith(f"{three[1]}: ")
    sound = open_scene([three[0], three[2]], skip_damaged=True)
    assert "skipped_files" not in sound.attrs


def test_what_the_system_refuses_is_no_damage(three, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(three[0]))

    monkeypatch.setattr(xr, "open_dataset", refuse)
    with pytest.raises(SceneError, match="Permission denied") as caught:
        open_scene(three, skip_damaged=True)
    assert not isinstance(caught.value, DamagedFileError)


def test_damaged_spectra_are_left_out_if_that_is_asked_for(tmp_path):
    spectra = synthetic_sounder(6)
    for name, part in (("a", slice(0, 3)), ("b", slice(3, 6))):
        write_dataset(spectra.isel(sample=part), tmp_path / f"{name}.nc")
    bad = tmp_path / "b.nc"
    bad.write_bytes(bad.read_bytes()[:-1000])
    for open_them in (open_spectra, open_data):
        with pytest.raises(DamagedFileError):
            open_them([tmp_path / "a.nc", bad])
        found = open_them([tmp_path / "a.nc", bad], skip_damaged=True)
        assert found.sizes["sample"] == 3
        assert found.attrs["skipped_files"].startswith(f"{bad}: ")


# Files that satpy wrote


def test_reflectances_that_satpy_wrote_are_divided_by_the_sun(tmp_path, monkeypatch, simulator):
    # Bands have the same names in its files, but are not divided by the sun yet.
    image = simulator.isel(time=10)
    for name in BANDS:
        image[name].attrs = {"units": BANDS[name].units, "modifiers": np.array([])}
    path = tmp_path / "Meteosat-9-seviri-20100620061500-20100620063000.nc"
    image.to_netcdf(path)
    asked = []
    fake = replace(SEVIRI, open=lambda path, **options: asked.append(options))
    monkeypatch.setattr(opening, "SENSORS", (fake,))
    open_scene(path)
    open_scene(path, calibration="GSICS")
    assert asked == [{}, {"calibration": "GSICS"}]


def test_a_file_without_bands_is_opened_as_it_is(tmp_path):
    write_dataset(a_map(), tmp_path / "map.nc")
    with open_scene(tmp_path / "map.nc") as opened:
        assert set(opened.data_vars) == set(a_map().data_vars)


def test_a_variable_without_chunks_is_read_in_rows(tmp_path):
    values = np.zeros((3000, 40, 50), np.float32)
    plain = xr.Dataset({"B02": (("y", "x", "z"), values)})
    plain.to_netcdf(tmp_path / "plain.nc", engine="netcdf4")
    with open_scene(tmp_path / "plain.nc") as opened:
        block = opened["B02"].data.chunksize
        assert np.prod(block) * 4 <= CONTIGUOUS_BYTES
        assert block[1:] == (40, 50)
        assert_array_equal(opened["B02"].values, values)


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_a_geotiff_is_opened_lazily_with_its_descriptions(tmp_path):
    values = np.arange(2 * 30 * 40, dtype=np.uint16).reshape(2, 30, 40)
    with rasterio.open(
        tmp_path / "image.tif", "w", driver="GTiff", count=2, height=30, width=40, dtype="uint16",
        nodata=0, crs="EPSG:32629", transform=rasterio.transform.from_origin(0, 30, 1, 1),
    ) as file:  # fmt: skip
        file.write(values)
        file.descriptions = ("B02", "B03")
    opened = open_data(tmp_path / "image.tif")["image"]
    assert opened.chunks is not None
    assert opened.attrs["long_name"] == ("B02", "B03")
    expected = values.astype(np.float32)
    expected[values == 0] = np.nan
    assert_array_equal(opened.values, expected)


def test_a_damaged_image_is_an_error_that_names_it(tmp_path):
    (tmp_path / "image.tif").write_bytes(b"II*\0 but no more")
    with pytest.raises(SceneError, match=r"image\.tif cannot be read"):
        open_data(tmp_path / "image.tif")


@pytest.mark.parametrize("name", ["map.zarr", "map.nc"])
def test_a_map_opens_in_either_format(tmp_path, name):
    write_dataset(a_map(), tmp_path / name)
    with open_map(tmp_path / name) as opened:
        assert set(opened.data_vars) == set(a_map().data_vars)


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_a_map_in_a_geotiff_opens_with_its_layers_as_floats(tmp_path):
    made = a_map().drop_vars("spatial_ref", errors="ignore")
    write_dataset(made, tmp_path / "map.tif")
    with open_raster_map(tmp_path / "map.tif") as opened:
        assert set(opened.data_vars) == set(made.data_vars)
        quality = opened["quality_flag"].sortby("y").sortby("x").values
    assert_array_equal(quality, made["quality_flag"].sortby("y").sortby("x").values)


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
def test_an_image_whose_bands_have_no_names_is_not_a_map(tmp_path):
    grid = {"height": 4, "width": 5, "transform": rasterio.transform.from_origin(0, 4, 1, 1)}
    with rasterio.open(tmp_path / "map.tif", "w", count=2, dtype="uint8", **grid) as file:
        file.write(np.zeros((2, 4, 5), np.uint8))
    with pytest.raises(SceneError, match="not a map: its bands have no names"):
        open_raster_map(tmp_path / "map.tif")


@pytest.mark.parametrize(("name", "message"), [("a.txt", "not a map"), ("b.nc", "does not exist")])
def test_a_path_that_is_not_a_map_is_refused(tmp_path, name, message):
    (tmp_path / "a.txt").write_text("words")
    with pytest.raises(SceneError, match=message):
        open_map(tmp_path / name)


# Unreadable files


def cut(path, simulator):
    write_dataset(simulator.isel(time=slice(2)), path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def torn(path, simulator):
    write_dataset(simulator.isel(time=slice(2)), path)
    (path / "zarr.json").write_text("{")


UNREADABLE = {
    "a truncated netCDF": ("scene.nc", cut),
    "a text named .nc": ("scene.nc", lambda path, simulator: path.write_text("once upon a time")),
    "an empty file named .nc": ("scene.nc", lambda path, simulator: path.touch()),
    "a folder named .nc": ("scene.nc", lambda path, simulator: path.mkdir()),
    "an empty folder named .zarr": ("scene.zarr", lambda path, simulator: path.mkdir()),
    "a text named .zarr": (
        "scene.zarr",
        lambda path, simulator: path.write_text("once upon a time"),
    ),
    "a Zarr with torn metadata": ("scene.zarr", torn),
    "a file of another kind": ("scene.txt", lambda path, simulator: path.write_text("hello")),
    "an empty folder": ("scenes", lambda path, simulator: path.mkdir()),
    "nothing": ("scene.nc", lambda path, simulator: None),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_scene_is_an_error_that_names_it(tmp_path, simulator, what):
    name, make = UNREADABLE[what]
    make(tmp_path / name, simulator)
    with pytest.raises(SceneError) as error:
        open_scene(tmp_path / name)
    assert str(tmp_path / name) in str(error.value)


# Spectra

RADIANCES = blackbody_radiance(WAVENUMBERS, np.linspace(240.0, 300.0, 6)[:, None])


def spectra(wavenumbers=WAVENUMBERS):
    return xr.Dataset(
        {
            "radiance": (
                ("sample", "channel"),
                RADIANCES.astype(np.float32),
                {"units": RADIANCE_UNITS},
            ),
            "noise": ("channel", np.full(CHANNELS, 0.2, np.float32), {"units": RADIANCE_UNITS}),
            "cloud_class": ("sample", np.array([0, 1, 2, 3, 0, 255], np.uint8)),
            "surface_type": ("sample", np.array([1, 18, 17, 17, 16, 2], np.uint8)),
        },
        coords={"wavenumber": ("channel", wavenumbers, {"units": "cm-1"})},
    )


@both_formats
@pytest.mark.parametrize("open_", [open_spectra, open_data])
def test_spectra_are_read_lazily_as_they_were_written(tmp_path, suffix, open_):
    given = check_spectra(spectra())
    write_dataset(given, tmp_path / f"spectra{suffix}")
    with open_(tmp_path / f"spectra{suffix}") as found:
        assert isinstance(found["radiance"].data, da.Array)
        checked = check_spectra(found)
        for name in ("radiance", "noise", "cloud_class", "cloudy", "wavenumber"):
            assert_array_equal(checked[name], given[name])


@both_formats
def test_several_files_of_spectra_are_concatenated(tmp_path, suffix):
    given = check_spectra(spectra())
    parts = [slice(0, 2), slice(2, 5), slice(5, 6)]
    paths = [tmp_path / f"part{i}{suffix}" for i in range(3)]
    for path, part in zip(paths, parts, strict=True):
        write_dataset(given.isel(sample=part), path)
    with open_spectra(paths) as found:
        assert found["radiance"].chunksizes["sample"] == (2, 3, 1)
        assert found["noise"].dims == ("channel",)
        assert_array_equal(check_spectra(found)["radiance"], given["radiance"])
        assert_array_equal(found["surface_type"], given["surface_type"])


def test_files_of_spectra_with_different_channels_do_not_fit_together(tmp_path):
    write_dataset(spectra(), tmp_path / "a.nc")
    write_dataset(spectra(WAVENUMBERS * 100.0), tmp_path / "b.nc")
    with pytest.raises(SceneError, match=r"a\.nc, b\.nc do not fit together: .*wavenumber"):
        open_spectra([tmp_path / "a.nc", tmp_path / "b.nc"])


@pytest.mark.parametrize("open_", [open_spectra, open_data])
def test_a_file_without_chunks_is_read_512_spectra_at_a_time(tmp_path, open_):
    many = xr.Dataset({"scores": (("sample", "component"), np.zeros((1300, 300), np.float32))})
    many.to_netcdf(tmp_path / "scores.nc", encoding={"scores": {"contiguous": True}})
    with open_(tmp_path / "scores.nc") as found:
        assert found["scores"].chunks == ((512, 512, 276), (300,))


UNREADABLE_SPECTRA = {
    "nothing": ("spectra.nc", lambda path: None, "does not exist"),
    "a text named .nc": ("spectra.nc", lambda path: path.write_text("hello"), "cannot be read"),
    "an empty .zarr": ("spectra.zarr", lambda path: path.mkdir(), "cannot be read"),
    "another name": ("spectra.txt", lambda path: path.touch(), "no known format"),
}


@pytest.mark.parametrize("what", UNREADABLE_SPECTRA)
def test_unreadable_spectra_are_an_error_that_names_them(tmp_path, what):
    name, make, message = UNREADABLE_SPECTRA[what]
    make(tmp_path / name)
    with pytest.raises(SceneError, match=message) as error:
        open_spectra(str(tmp_path / name))
    assert str(tmp_path / name) in str(error.value)


def test_an_empty_list_of_files_is_refused():
    with pytest.raises(SceneError, match="No file was given"):
        open_spectra([])


# What an input holds


def test_zarr_of_the_same_values_is_the_same_input_whenever_it_was_written(tmp_path, simulator):
    for name, made in (
        ("first", simulator),
        ("second", simulator),
        ("third", simulator.isel(time=[1])),
    ):
        write_dataset(made.assign_attrs(history=name), tmp_path / f"{name}.zarr")
    first, second, third = (
        input_digest(tmp_path / f"{name}.zarr") for name in ("first", "second", "third")
    )
    assert first == second != third


def test_zarr_with_another_scale_is_another_input(tmp_path, simulator):
    write_dataset(simulator, tmp_path / "kelvin.zarr")
    scaled = simulator.copy()
    scaled["IR_108"] = simulator["IR_108"] * 2
    scaled["IR_108"].encoding = dict(simulator["IR_108"].encoding)
    scaled["IR_108"].encoding["scale_factor"] = 2 * simulator["IR_108"].encoding["scale_factor"]
    scaled["IR_108"].encoding["add_offset"] = 2 * simulator["IR_108"].encoding.get(
        "add_offset", 0.0
    )
    write_dataset(scaled, tmp_path / "scaled.zarr")
    stores = [tmp_path / "kelvin.zarr", tmp_path / "scaled.zarr"]
    chunks = [(store / "IR_108/c/0/0/0").read_bytes() for store in stores]
    assert chunks[0] == chunks[1]
    assert len(set(map(input_digest, stores))) == 2


def test_a_vrt_is_another_input_when_a_file_that_it_refers_to_is_replaced(tmp_path):
    made = xr.Dataset({"a": (("y", "x"), np.zeros((4, 5), np.float32))}, attrs=a_map().attrs)
    made = made.assign_coords(y=np.arange(4.0)[::-1], x=np.arange(5.0))
    image, vrt = tmp_path / "image.tif", tmp_path / "image.vrt"
    made.rio.write_crs("EPSG:32630")["a"].rio.to_raster(image)
    rasterio.shutil.copy(image, vrt, driver="VRT")
    before = input_digest(vrt)
    assert input_digest(vrt) == before
    (made["a"] + 1).rio.write_crs("EPSG:32630").rio.to_raster(image)
    assert input_digest(vrt) != before
