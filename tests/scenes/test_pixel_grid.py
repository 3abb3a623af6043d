"""Places of pixels: labels of any kind land in the right pixels of any image, or are refused."""

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
import rasterio
import rioxarray
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from rasterio.control import GroundControlPoint
from rasterio.errors import NotGeoreferencedWarning
from shapely.geometry import Polygon

from undulatus.errors import SceneError, UndulatusError
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


# Grids


def rotated(folder):
    return open_image(
        write(folder / "rotated.tif", TRUTH.astype(np.float32), AFFINE["rotated"], CRS)
    )


@pytest.mark.parametrize(
    "cut",
    [
        {"y": slice(2, 6), "x": slice(3, 9)},
        {"y": slice(1, None, 2), "x": slice(None, None, 3)},
        {"y": slice(None, None, -1), "x": slice(4, 5)},
    ],
)
def test_a_cut_of_a_rotated_image_keeps_its_place(tmp_path, cut):
    whole = rotated(tmp_path)
    rows, columns = (np.arange(whole.sizes[dim])[cut[dim]] for dim in ("y", "x"))
    grid, part = PixelGrid.of(whole), PixelGrid.of(whole.isel(cut))
    own = np.meshgrid(np.arange(len(rows)), np.arange(len(columns)), indexing="ij")
    assert_allclose(part.centre_of(*own), grid.centre_of(*np.ix_(rows, columns)), rtol=1e-12)
    assert_array_equal(part.pixel_at(*part.centre_of(*own)), own)


def test_what_rioxarray_opens_has_the_place_that_the_file_has(tmp_path):
    opened = rotated(tmp_path)
    by_rioxarray = rioxarray.open_rasterio(tmp_path / "rotated.tif").isel(y=slice(1, 5))
    ours = PixelGrid.of(opened.isel(y=slice(1, 5)))
    assert_allclose(PixelGrid.of(by_rioxarray).transform, ours.transform, rtol=1e-9, atol=1e-6)


def test_coordinates_in_single_precision_are_regular_as_far_as_they_are_known():
    # Steps of 1e-4 degrees at 179 degrees, where single precision has steps of 1.5e-5.
    x = np.linspace(179.0, 179.01, 101).astype(np.float32)
    image = xr.DataArray(
        np.zeros((3, 101)), coords={"y": [3.0, 2.0, 1.0], "x": x}, dims=("y", "x")
    )
    assert PixelGrid.of(image).transform.a == pytest.approx(1e-4, rel=1e-3)


def level(image):
    there = placed_at(image, x=10.0 * np.arange(9), y=-10.0 * np.arange(7)).rio.write_crs(CRS)
    return there.rio.write_transform()


def placed_at(image, **coords):
    return image.drop_vars("spatial_ref").assign_coords(coords)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda i: placed_at(i, x=np.r_[0:4, 5:10], y=np.arange(7)), "x is not regular.*1 to 2"),
        (lambda i: placed_at(i, x=list("abcdefghi"), y=np.arange(7)), "which are no numbers"),
        (lambda i: i.assign_coords(x=np.arange(9), y=np.arange(7)), "cannot be told"),
        (lambda i: i.isel(y=[0, 1, 4]), "rows were left out"),
        (lambda i: level(i).drop_vars(["x", "y"]), "has a GeoTransform, but no coordinates"),
        (lambda i: i.drop_vars("spatial_ref").rio.write_crs(CRS), "does not say where its pixels"),
    ],
    ids=["gap", "text", "both", "rows", "dropped", "none"],
)
def test_an_image_without_regular_places_says_why(tmp_path, change, words):
    grid = PixelGrid.of(change(rotated(tmp_path)))
    assert not grid.placed
    with pytest.raises(SceneError, match=words):
        grid.require_regular()


def test_places_of_all_pixels_that_are_no_grid_are_refused(tmp_path):
    image = rioxarray.open_rasterio(write(tmp_path / "a.tif", TRUTH, AFFINE["rotated"], CRS))
    bent = image.assign_coords(xc=image["xc"] + 2.0 * np.arange(9) ** 2)
    bent = bent.assign_coords(spatial_ref=bent["spatial_ref"].drop_attrs())
    assert "lies on no regular grid" in PixelGrid.of(bent.rio.write_crs(CRS)).problem


def test_points_that_a_projection_cannot_say_lie_outside():
    grid = PixelGrid(rasterio.crs.CRS.from_user_input(CRS), AFFINE["north up"], SHAPE, "image")
    row, column = grid.pixel_at(np.array([np.inf, np.nan, 1e300]), np.array([np.inf, 0.0, -1e300]))
    assert not grid.holds(row, column).any()
