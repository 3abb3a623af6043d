"""Images: one scale and NaN for what is missing, whatever the file."""

import numpy as np
import pytest
import rasterio
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from rasterio.control import GroundControlPoint

from undulatus.errors import SceneError
from undulatus.scenes import open_data, open_image
from undulatus.scenes.files.images import (
    as_image,
    band_names,
    each_time,
    require_same_offset,
    with_band_names,
)
from undulatus.scenes.files.opening import input_digest, is_data
from undulatus.scenes.files.windows import raster_bands


def test_an_image_is_lazy_with_the_names_of_its_bands(small_image, image_files):
    image = open_image(image_files / "image.tif")
    assert image.dims == ("band", "y", "x")
    assert image.chunks is not None
    assert band_names(image) == list(small_image.BANDS)
    assert image.rio.crs.to_epsg() == 32632
    assert_array_equal(image.values, small_image.values)


def test_scale_offset_and_nodata_of_a_file_give_the_same_reflectances(small_image, tmp_path):
    stored = np.rint((small_image.values + 0.1) / 0.0001).astype(np.int16)
    stored[:, 5, 7] = -9999
    path = small_image.write(
        tmp_path / "scaled.tif", values=stored, nodata=-9999, scale=(0.0001, -0.1)
    )
    image = open_image(path).values
    assert np.isnan(image[:, 5, 7]).all()
    expected = small_image.values.copy()
    expected[:, 5, 7] = np.nan
    assert_allclose(image, expected, atol=0.00006)  # Half a step, and single precision.


def test_bands_may_have_scales_of_their_own(small_image, tmp_path):
    path = tmp_path / "own.tif"
    small_image.write(path, values=np.ones((2, 4, 4), np.uint8), names=("a", "b"))
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (2.0, 3.0), (0.5, 0.0)
    assert_array_equal(open_image(path).values[:, 0, 0], [2.5, 3.0])


def test_netcdf_and_zarr_give_their_variables_as_bands(small_image, tmp_path):
    bands = {
        name: (("y", "x"), np.rint(values * 1000), {"units": "1"})
        for name, values in zip(small_image.BANDS, small_image.values, strict=True)
    }
    dataset = xr.Dataset(bands, coords={"y": np.arange(90.0)[::-1], "x": np.arange(120.0)})
    packed = {"dtype": "int16", "scale_factor": 10.0, "_FillValue": -999}
    dataset.to_netcdf(tmp_path / "image.nc", encoding=dict.fromkeys(bands, packed))
    dataset.to_zarr(tmp_path / "image.zarr", consolidated=False)
    exact = open_image(tmp_path / "image.zarr")
    assert band_names(exact) == list(small_image.BANDS)
    assert_array_equal(exact.values, np.rint(small_image.values * 1000).astype(np.float32))
    assert_allclose(open_image(tmp_path / "image.nc").values, exact.values, atol=5.0)


def test_a_dataset_as_odc_stac_loads_it_goes_in_as_it_is(small_image):
    numbers = np.rint(np.maximum(small_image.values, 0.001) * 10_000).astype(np.uint16)
    numbers[:, 0, 0] = 0
    dataset = xr.Dataset(
        {
            name: (("time", "y", "x"), band[None], {"nodata": 0, "units": "1"})
            for name, band in zip(("red", "green", "blue", "nir"), numbers, strict=True)
        },
        coords={
            "time": np.array(["2024-06-01"], "datetime64[ns]"),
            "y": np.arange(90.0)[::-1],
            "x": np.arange(120.0),
        },
    ).rio.write_crs("EPSG:32632")
    image = as_image(dataset)
    assert band_names(image) == ["red", "green", "blue", "nir"]
    assert image.rio.crs.to_epsg() == 32632
    assert np.isnan(image.values[:, 0, 0]).all()
    assert_array_equal(image.values[:, 1:, 1:], numbers[:, 1:, 1:].astype(np.float32))
    two = xr.concat(
        [dataset, dataset.assign_coords(time=dataset.time + np.timedelta64(5, "D"))], "time"
    )
    assert len(list(each_time(two))) == 2
    with pytest.raises(SceneError, match="has one time, but this has 2"):
        as_image(two)


def test_latitude_and_longitude_are_y_and_x(small_image):
    array = xr.DataArray(small_image.values, dims=("bands", "latitude", "longitude"))
    assert as_image(array).dims == ("band", "y", "x")


def test_degrees_without_a_reference_are_those_of_wgs_84(small_image):
    coords = {"latitude": 46.0 - 1e-4 * np.arange(90), "longitude": 9.0 + 1e-4 * np.arange(120)}
    array = xr.DataArray(small_image.values, coords=coords, dims=("bands", *coords))
    assert as_image(array).rio.crs == "EPSG:4326"
    assert as_image(array.rio.write_crs("EPSG:4258")).rio.crs == "EPSG:4258"


@pytest.mark.parametrize(
    ("name", "attrs"),
    [
        ("latitude", {"standard_name": "longitude"}),
        ("longitude", {"units": "degrees_north"}),
        ("latitude", {"axis": "X"}),
        ("latitude", {"long_name": "longitude"}),
        ("y", {"standard_name": "projection_x_coordinate"}),
    ],
)
def test_a_coordinate_that_says_it_is_another_is_refused(small_image, name, attrs):
    dims = ("band", "y", "x") if name == "y" else ("band", "latitude", "longitude")
    coords = {dims[1]: np.arange(90.0), dims[2]: np.arange(120.0)}
    array = xr.DataArray(small_image.values, coords=coords, dims=dims)
    with pytest.raises(SceneError, match=f"The coordinate {name} grows to the .* by its name"):
        as_image(array.assign_coords({name: array[name].assign_attrs(attrs)}))


def test_an_image_with_control_points_alone_is_refused_with_the_way_to_warp_it(
    small_image, tmp_path
):
    corners = [(0, 0), (0, 120), (90, 0), (90, 120)]
    points = [GroundControlPoint(r, c, *(small_image.transform * (c, r))) for r, c in corners]
    path = small_image.write(tmp_path / "a scene.tif", transform=None, gcps=points)
    with pytest.raises(
        SceneError, match=r"gdalwarp -tps -t_srs EPSG:4326 -of VRT '.*a scene\.tif'"
    ):
        open_image(path)


def test_bands_without_names_are_called_by_their_numbers(small_image, tmp_path):
    image = open_image(small_image.write(tmp_path / "plain.tif", names=None))
    assert band_names(image) is None
    assert band_names(with_band_names(image)) == ["band_1", "band_2", "band_3", "band_4"]


def test_two_bands_of_one_name_are_refused(small_image, tmp_path):
    path = small_image.write(tmp_path / "twice.tif", names=("B02", "B03", "B03", "B08"))
    with pytest.raises(SceneError, match=r"several bands with the same name \(B03\)"):
        with_band_names(open_image(path))


def test_what_is_not_an_image_is_said(tmp_path, small_image):
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(SceneError, match="no known format"):
        open_image(tmp_path / "notes.txt")
    with pytest.raises(SceneError, match="does not exist"):
        open_image(tmp_path / "absent.tif")
    path = small_image.write(tmp_path / "torn.tif")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(SceneError, match=r"torn\.tif cannot be read"):
        open_image(path)
    with pytest.raises(SceneError, match="dimensions y and x"):
        as_image(xr.DataArray(np.zeros((3, 4)), dims=("a", "b")))


@pytest.mark.parametrize(("fitted", "found"), [("02.14", "05.09"), ("04.00", "03.01")])
def test_numbers_of_another_baseline_are_refused(small_image, tmp_path, fitted, found):
    path = small_image.write(tmp_path / "numbers.tif")
    with rasterio.open(path, "r+") as file:
        file.update_tags(PROCESSING_BASELINE=found)
    image = open_image(path)
    require_same_offset(image, found)
    require_same_offset(image, None)
    with pytest.raises(
        SceneError, match=f"baseline {found}, but the model was fitted on {fitted}"
    ):
        require_same_offset(image, fitted)


# What a file itself marks as missing


def hide(small_image, path, kind):
    """Write the image without its first 40 columns, as a file may say it, and return its path."""
    shown = np.broadcast_to(np.arange(120) >= 40, (90, 120))
    if kind == "alpha":
        stacked = np.concatenate(
            [np.clip(small_image.values[:3] * 255, 0, 255), 255 * shown[None]]
        )
        return small_image.write(path, values=stacked.astype(np.uint8), names=None)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=kind == "internal"):
        small_image.write(path, nodata=-1.0 if kind == "nodata too" else None)
        with rasterio.open(path, "r+") as file:
            file.write_mask(shown)
    return path


@pytest.mark.parametrize("kind", ["internal", "beside it", "nodata too", "alpha"])
def test_what_a_mask_hides_is_missing(small_image, tmp_path, kind):
    path = hide(small_image, tmp_path / "masked.tif", kind)
    image = open_image(path)
    assert np.isnan(image.values[:, :, :40]).all()
    assert not np.isnan(image.values[:, :, 40:]).any()
    assert image.sizes["band"] == (3 if kind == "alpha" else 4)
    shown = raster_bands(path)
    assert len(shown.names) == image.sizes["band"]
    assert_array_equal(np.isnan(shown.read(slice(0, 90), slice(0, 120))), np.isnan(image.values))


def test_alpha_marks_what_is_missing_beside_a_nodata_value(small_image, tmp_path):
    path = hide(small_image, tmp_path / "both.tif", "alpha")
    with rasterio.open(path, "r+") as file:
        file.nodata = 255
    assert np.isnan(open_image(path).values[:, :, :40]).all()


@pytest.mark.parametrize("names", [None, ("B02", "B03", "B04", "B08")])
def test_a_fourth_band_of_bytes_is_not_alpha_because_gdal_calls_it_so(
    small_image, tmp_path, names
):
    values = np.clip(small_image.values * 255, 0, 255).astype(np.uint8)
    path = small_image.write(tmp_path / "bytes.tif", values=values, names=names)
    with rasterio.open(path) as file:
        assert file.colorinterp[3].name == "alpha"
    assert_array_equal(open_image(path).values, values)
    # A named band is one, whatever it holds.
    values[3] = 255
    small_image.write(path, values=values, names=names)
    assert open_image(path).sizes["band"] == (3 if names is None else 4)


@pytest.mark.parametrize("attrs", [{"valid_range": (0, 1000)}, {"valid_max": 1000}])
@pytest.mark.parametrize("packed", [{}, {"scale_factor": 0.001, "add_offset": -0.2}])
def test_values_outside_the_valid_range_of_a_variable_are_missing(tmp_path, attrs, packed):
    stored = np.array([[0, 1000], [1001, 30000]], np.int16)
    scale, offset = packed.get("scale_factor", 1.0), packed.get("add_offset", 0.0)
    attrs = {name: np.array(limit, np.int16) for name, limit in attrs.items()}
    band = (("y", "x"), stored * scale + offset, attrs)
    encoding = {"dtype": "int16", "_FillValue": np.int16(-1), **packed}
    xr.Dataset({"a": band, "b": band}).to_netcdf(
        tmp_path / "v.nc", encoding={"a": encoding, "b": encoding}
    )
    expected = np.array([[0.0, 1000.0], [np.nan, np.nan]]) * scale + offset
    for image in (
        open_image(tmp_path / "v.nc"),
        as_image(open_data(tmp_path / "v.nc")),
        as_image(xr.open_dataset(tmp_path / "v.nc", mask_and_scale=False)),
    ):
        assert_allclose(image.sel(band="a"), expected, atol=1e-6)


def test_a_valid_range_of_real_numbers_is_of_unpacked_values(tmp_path):
    stored = np.array([[0.0, 0.5], [1.0, 1.1]])
    band = (("y", "x"), stored, {"valid_range": np.array([0.0, 1.0])})
    packed = {"dtype": "int16", "scale_factor": 0.1, "_FillValue": np.int16(-1)}
    xr.Dataset({"a": band}).to_netcdf(tmp_path / "v.nc", encoding={"a": packed})
    assert_allclose(open_image(tmp_path / "v.nc")[0], [[0.0, 0.5], [1.0, np.nan]], atol=1e-6)
    # After arithmetic nobody knows any more what whole numbers were the range of.
    scaled = xr.DataArray(stored, dims=("y", "x"), attrs={"valid_range": [1, 10_000]})
    assert np.isfinite(as_image(scaled.to_dataset(name="a"))).all()


# Whatever GDAL opens


@pytest.mark.parametrize(
    ("name", "driver"),
    [("a.gtif", "GTiff"), ("a.img", "HFA"), ("a.dat", "ENVI"), ("a.bsq", "ENVI"), ("a", "ENVI")],
)
def test_images_of_any_name_that_gdal_opens_are_read(small_image, tmp_path, name, driver):
    path = small_image.write(tmp_path / name, driver=driver)
    assert_allclose(open_image(path), small_image.values)
    assert is_data(path)
    assert not is_data(tmp_path / "a.hdr")
    assert set(open_data(path)) == {"image"}
    before = input_digest(path)
    beside = tmp_path / "a.hdr"
    if driver == "ENVI":  # What it says is part of the image.
        beside.write_text(beside.read_text().replace("bands   = 4", "bands   = 3"))
        assert input_digest(path) != before


def test_bands_with_and_without_a_description(small_image, tmp_path):
    names = ("blue", None, "red", "")
    path = small_image.write(tmp_path / "some.tif", names=names)
    assert band_names(open_image(path)) == ["blue", "band_2", "red", "band_4"]
