"""Places of pixels: labels of any kind land in the right pixels of any image, or are refused."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import rasterio
import rioxarray
import xarray as xr
from numpy.testing import assert_array_equal
from rasterio.control import GroundControlPoint
from rasterio.errors import NotGeoreferencedWarning
from shapely.geometry import Polygon

from undulatus.errors import UndulatusError
from undulatus.scenes import open_image
from undulatus.scenes.files.images import as_image, with_band_names
from undulatus.scenes.files.labels import read_labels
from undulatus.scenes.pixel_grid import PixelGrid, reproject

geopandas = pytest.importorskip("geopandas")

CRS, OTHER = "EPSG:32632", "EPSG:4326"

SHAPE = (7, 9)

TRUTH = np.random.default_rng(5).integers(0, 4, SHAPE).astype(np.uint8)
"""Classes of the pixels; 0 is none."""

WEST, NORTH = 500_000.0, 5_200_000.0

TURNED = rasterio.Affine.rotation(30) * rasterio.Affine.shear(10, 0)

AFFINE = {
    "north up": rasterio.Affine(10, 0, WEST, 0, -10, NORTH),
    "south up": rasterio.Affine(10, 0, WEST, 0, 10, NORTH),
    "transposed": rasterio.Affine(0, 10, WEST, -10, 0, NORTH),
    "rotated": rasterio.Affine.translation(WEST, NORTH) * TURNED * rasterio.Affine.scale(10, -10),
}

IRREGULAR = {"x": WEST + 10.0 * np.arange(9), "y": NORTH - 10.0 * np.array([0, 1, 2, 6, 7, 8, 9])}

SOURCES = ("GeoTIFF", "world file", "netCDF", "DataArray")
LAYOUTS = (*AFFINE, "control points", "irregular")
LABELS = ("raster", "DataArray", "polygons", "points", "table")
SYSTEMS = ("same", "other", "none")

CANNOT_SAY = {
    ("GeoTIFF", "irregular"),
    ("world file", "irregular"),
    ("world file", "control points"),
}
"""What a format has no words for."""


def write(path, values, transform=None, crs=None, **profile):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(
            path, "w", driver="GTiff", height=values.shape[0], width=values.shape[1], count=1,
            dtype=values.dtype, crs=crs, transform=transform, **profile,
        ) as file:  # fmt: skip
            file.write(values, 1)
    return path


def write_world_file(path, transform):
    x, y = transform * (0.5, 0.5)
    lines = (transform.a, transform.d, transform.b, transform.e, x, y)
    path.with_suffix(".tfw").write_text("\n".join(map(repr, map(float, lines))))


def affine_of(source, layout):
    """Return the transform of an image; what is transposed in memory has other dimensions."""
    if layout == "transposed" and source in ("netCDF", "DataArray"):
        return AFFINE["north up"]
    return AFFINE.get(layout, AFFINE["north up"])


def make_image(source, layout, folder):
    """Return an image, opened as a user would."""
    values = np.arange(TRUTH.size, dtype=np.float32).reshape(SHAPE)
    path = folder / "image.tif"
    transform = affine_of(source, layout)
    if layout == "control points":
        corners = [(0, 0), (0, 9), (7, 0), (7, 9)]
        points = [GroundControlPoint(r, c, *(transform * (c, r))) for r, c in corners]
        write(path, values, crs=CRS, gcps=points)
    elif layout == "irregular":
        pass
    elif source == "world file":
        write(path, values)
        write_world_file(path, transform)
    else:
        write(path, values, transform, CRS)
    if source in ("GeoTIFF", "world file"):
        return with_band_names(open_image(path))
    if layout == "irregular":
        array = xr.DataArray(
            values[None], coords={"band": [1], **IRREGULAR}, dims=("band", "y", "x")
        )
        array = array.rio.write_crs(CRS)
    else:
        array = rioxarray.open_rasterio(path)
    if layout == "transposed":
        array = array.transpose("band", "x", "y")
    if source == "DataArray":
        return with_band_names(as_image(array))
    array.to_dataset(name="radiance").to_netcdf(folder / "image.nc")
    return with_band_names(open_image(folder / "image.nc"))


def some_pixels():
    """Return rows and columns of pixels with a class."""
    row, column = np.nonzero(TRUTH)
    return row[::2], column[::2]


def corners_of(transform, row, column):
    """Return a polygon of the inner half of a pixel."""
    inner = [(0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8)]
    return Polygon([transform * (column + right, row + down) for right, down in inner])


def fine_raster(transform, crs):
    """Return a raster that holds the classes of all pixels, with other and smaller pixels."""
    bounds = PixelGrid(rasterio.crs.CRS.from_user_input(CRS), transform, SHAPE, "").bounds
    west, south, east, north = (
        bounds if crs == CRS else rasterio.warp.transform_bounds(CRS, crs, *bounds)
    )
    # An odd number a pixel: the centre of a pixel lies in the middle of a smaller one.
    height, width = 231, 243
    own = rasterio.transform.from_bounds(west, south, east, north, width, height)
    columns, rows = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    x, y = own * (columns, rows)
    x, y = reproject(x, y, crs, CRS)
    column, row = (np.floor(place).astype(int) for place in ~transform * (x, y))
    inside = (row >= 0) & (row < SHAPE[0]) & (column >= 0) & (column < SHAPE[1])
    codes = np.where(inside, TRUTH[row.clip(0, SHAPE[0] - 1), column.clip(0, SHAPE[1] - 1)], 0)
    return codes.astype(np.uint8), own


def make_labels(kind, system, source, layout, folder):
    """Return labels, and the rows and columns that have one."""
    transform = affine_of(source, layout)
    everywhere = np.nonzero(TRUTH)
    crs = {"same": CRS, "other": OTHER}.get(system)
    if kind == "raster":
        path = folder / "labels.tif"
        if crs is None:  # By a world file, which has no coordinate reference system.
            write(path, TRUTH, nodata=0)
            write_world_file(path, transform)
        else:
            codes, own = fine_raster(transform, crs)
            write(path, codes, own, crs, nodata=0)
        return path, everywhere
    if kind == "DataArray":
        if crs is None:
            return xr.DataArray(TRUTH, dims=("y", "x"), attrs={"_FillValue": 0}), everywhere
        if system == "other":
            codes, own = fine_raster(transform, crs)
            found = rioxarray.open_rasterio(write(folder / "other.tif", codes, own, crs, nodata=0))
            # Not as the image is: the south first, and rows along x.
            return found.squeeze("band", drop=True).isel(y=slice(None, None, -1)).T, everywhere
        if layout == "irregular":
            found = xr.DataArray(TRUTH, coords=IRREGULAR, dims=("y", "x")).rio.write_crs(CRS)
            return found.assign_attrs(_FillValue=0).T, everywhere
        found = rioxarray.open_rasterio(
            write(folder / "same.tif", TRUTH, transform, crs, nodata=0)
        )
        if layout == "transposed" and source not in ("netCDF", "DataArray"):
            found = open_image(folder / "same.tif")
        return found.isel(y=slice(None, None, -1)).transpose("x", "y", "band"), everywhere
    row, column = some_pixels()
    classes = TRUTH[row, column].astype(int)
    if kind == "table" and system == "none":
        return pd.DataFrame({"row": row, "column": column, "class": classes}), (row, column)
    x, y = transform * (column + 0.4, row + 0.7)
    if kind == "table":
        names = ("x", "y") if system == "same" else ("longitude", "latitude")
        places = reproject(x, y, CRS, CRS if system == "same" else OTHER)
        return pd.DataFrame({**dict(zip(names, places, strict=True)), "class": classes}), (
            row,
            column,
        )
    if kind == "points":
        shapes = geopandas.points_from_xy(x, y)
    else:
        shapes = [corners_of(transform, *pixel) for pixel in zip(row, column, strict=True)]
    found = geopandas.GeoDataFrame({"class": classes}, geometry=list(shapes), crs=CRS)
    return (found.to_crs(crs) if crs else found.set_crs(None, allow_override=True)), (row, column)


def is_right(source, layout, kind, system):
    """Return whether labels of a kind can be laid on an image, and so must be."""
    if layout == "control points":
        return source != "GeoTIFF" and (kind, system) == ("table", "none")
    if layout == "irregular":
        return (kind, system) in {("table", "none"), ("DataArray", "same")}
    if source == "world file":
        # Only what has no reference system either, or the very same coordinates.
        without = (kind, system) in {(each, "none") for each in LABELS if each != "DataArray"}
        return without or (kind, system) in {("DataArray", "same"), ("table", "same")}
    return system != "none" or kind in ("table", "raster")


@pytest.mark.parametrize(
    ("source", "layout", "kind", "system"),
    [
        each
        for each in itertools.product(SOURCES, LAYOUTS, LABELS, SYSTEMS)
        if each[:2] not in CANNOT_SAY
    ],
)
def test_labels_land_in_their_pixels_or_are_refused(
    source, layout, kind, system, tmp_path, record_property
):
    def read():
        labels, expected = make_labels(kind, system, source, layout, tmp_path)
        return read_labels(labels, make_image(source, layout, tmp_path)), expected

    right = is_right(source, layout, kind, system)
    record_property("places", "right" if right else "refused")
    if not right:
        with pytest.raises(UndulatusError):
            read()
        return
    found, expected = read()
    assert_array_equal([found.row, found.column], expected)
    assert_array_equal(np.array(found.classes)[found.codes], TRUTH[expected])
