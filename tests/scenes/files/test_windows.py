"""Bands by windows: the values, names and places that rasterio and xarray give."""

from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest
import rasterio
import xarray as xr
from affine import Affine
from numpy.testing import assert_array_equal
from pyproj import CRS

from undulatus._files import ReadingError
from undulatus.errors import SceneError
from undulatus.scenes.files.windows import Grid, dataset_bands, on_one_grid, raster_bands

TRANSFORM = Affine(20.0, 0.0, 399_960.0, 0.0, -20.0, 4_500_000.0)


def write(path, values, transform=TRANSFORM, **profile):
    count, height, width = values.shape
    known = {"driver": "GTiff", "dtype": values.dtype, "crs": "EPSG:32630", "tiled": True}
    size = {"count": count, "height": height, "width": width, "transform": transform}
    tiles = {"blockxsize": 64, "blockysize": 64, "compress": "deflate"}
    with rasterio.open(path, "w", **known, **size, **tiles, **profile) as file:
        file.write(values)
        file.descriptions = ("red", *(None,) * (count - 1))
        file.update_tags(scene="a scene")
        file.update_tags(1, flag_values="3 7", long_name="a band")
    return path


@pytest.fixture
def values():
    return np.random.default_rng(0).integers(0, 9999, (3, 200, 330)).astype(np.uint16)


def test_windows_of_a_raster_are_read_by_several_threads_at_once(values, tmp_path):
    bands = raster_bands(write(tmp_path / "a.tif", values, nodata=7))
    windows = [(slice(r, r + 50), slice(c, c + 70)) for r in (0, 33, 150) for c in (0, 111, 260)]
    with ThreadPoolExecutor(3) as pool:
        for window, read in zip(windows, pool.map(lambda w: bands.read(*w), windows), strict=True):
            assert_array_equal(read, values[:, window[0], window[1]])
    assert bands.names == ("red", "band_2", "band_3")
    assert bands.shape == (200, 330)
    assert bands.fills == (7.0,) * 3
    assert bands.attrs["scene"] == "a scene"
    assert bands.band_attrs[0]["flag_values"].tolist() == [3, 7]
    assert bands.grid.crs_name == "WGS 84 / UTM zone 30N (EPSG:32630)"


def test_a_dataset_gives_the_bands_and_the_grid_of_the_raster_it_was_opened_from(values, tmp_path):
    path = write(tmp_path / "a.tif", values)
    raster = raster_bands(path)
    image = xr.Dataset(
        {name: (("y", "x"), da.from_array(values[n])) for n, name in enumerate(raster.names)},
        coords={
            "y": 4_500_000.0 - 20.0 * (np.arange(200) + 0.5),
            "x": 399_960.0 + 20.0 * (np.arange(330) + 0.5),
            "spatial_ref": ((), 0, {"crs_wkt": CRS.from_epsg(32630).to_wkt()}),
        },
    )
    bands = dataset_bands(image, {name: image[name] for name in raster.names})
    window = slice(10, 90), slice(200, 330)
    assert_array_equal(bands.read(*window), raster.read(*window))
    assert bands.grid.crs_name == raster.grid.crs_name
    assert on_one_grid([bands, raster])


@pytest.mark.parametrize(("up", "left"), [(True, False), (False, True), (True, True)])
def test_north_is_up_and_west_is_left_whatever_the_order_of_a_raster(values, tmp_path, up, left):
    upright = raster_bands(write(tmp_path / "upright.tif", values))
    turns = Affine.translation(330 * left, 200 * up) @ Affine.scale(1 - 2 * left, 1 - 2 * up)
    turned = values[:, :: -1 if up else 1, :: -1 if left else 1]
    bands = raster_bands(write(tmp_path / "turned.tif", turned, transform=TRANSFORM @ turns))
    window = slice(10, 90), slice(200, 330)
    assert_array_equal(bands.read(*window), upright.read(*window))
    assert on_one_grid([bands, upright])


def test_an_image_without_a_place_has_no_grid(values, tmp_path):
    profile = {"driver": "GTiff", "dtype": "uint16", "count": 3, "height": 200, "width": 330}
    with (
        pytest.warns(rasterio.errors.NotGeoreferencedWarning),
        rasterio.open(tmp_path / "a.tif", "w", **profile) as file,
    ):
        file.write(values)
    assert raster_bands(tmp_path / "a.tif").grid is None
    dataset = xr.Dataset({"a": (("y", "x"), values[0].astype(float))})
    assert dataset_bands(dataset, {"a": dataset["a"]}).grid is None
    uneven = dataset.assign_coords(y=np.arange(200.0) ** 2, x=np.arange(330.0))
    assert dataset_bands(uneven, {"a": uneven["a"]}).grid is None


@pytest.mark.parametrize(
    ("transform", "same"),
    [
        (TRANSFORM, True),
        (Affine(20.0, 0.0, 399_961.0, 0.0, -20.0, 4_500_000.0), True),
        (Affine(20.0, 0.0, 399_980.0, 0.0, -20.0, 4_500_000.0), False),
        (Affine(20.0, 0.0, 399_960.0, 0.0, -20.1, 4_500_000.0), False),
    ],
)
def test_grids_that_differ_by_a_tenth_of_a_pixel_are_others(transform, same):
    assert Grid(TRANSFORM).almost_equals(Grid(transform), (200, 330)) == same


def test_a_file_that_is_not_an_image_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "a.tif"
    path.write_text("not an image")
    with pytest.raises(SceneError, match=r"a\.tif cannot be read"):
        raster_bands(path)


def test_a_damaged_window_is_an_error_of_reading(values, tmp_path):
    path = write(tmp_path / "a.tif", values)
    bands = raster_bands(path)
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(ReadingError):
        bands.read(slice(0, 200), slice(0, 330))
