"""Where the pixels of an image are: its coordinate reference system and its affine transform.

An image says its places by coordinates ``x`` and ``y`` of one size of pixel, by a GeoTransform (as
GDAL and rioxarray write it, which may be rotated or sheared), or by the places of all pixels in
``xc`` and ``yc``. :class:`PixelGrid` reads any of these, and says why where none can be used.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import rasterio
import rioxarray  # noqa: F401 (gives images their .rio)
import xarray as xr
from affine import Affine
from pyproj import Transformer
from rasterio.errors import CRSError, NotGeoreferencedWarning
from rasterio.warp import transform_bounds

from undulatus.errors import SceneError
from undulatus.scenes.scene import DIRECTIONS

Array = npt.NDArray[Any]

MOST_UNEVEN = 0.05
"""Coordinates may deviate from a regular grid by this part of a pixel."""

COINCIDING = 0.1
"""Grids are the same if their edges are closer than this part of a pixel."""

ROW, COLUMN = "row", "column"
"""Coordinates that number the rows and columns of a rotated image, as cuts of it keep them."""

OF_ALL_PIXELS = (("xc", "yc"), ("x", "y"))
"""Coordinates (y, x) with the place of each pixel of a rotated image, as rioxarray has them."""


@dataclass(frozen=True)
class PixelGrid:
    """Where the pixels of an image are, and what messages call it.

    An image that does not say its places has the identity for a transform: its coordinates are
    columns and rows.
    """

    crs: Any
    transform: Affine
    shape: tuple[int, int]
    name: str
    placed: bool = True
    """Whether the image says where its pixels are, with a coordinate reference system or not."""
    problem: str = ""
    """Why they have no regular places, although the image says where they are."""

    @classmethod
    def of(cls, image: xr.DataArray | xr.Dataset) -> Self:
        """Return the grid of an image with the dimensions y and x."""
        shape = (image.sizes["y"], image.sizes["x"])
        source = image.attrs.get("source")
        name = "the image" if source is None else str(source)
        described = _grid_mapping(image)
        try:
            crs = image.rio.crs
        except (CRSError, ValueError, RuntimeError):
            crs = None
        try:
            if crs is None and {"crs_wkt", "spatial_ref", "grid_mapping_name"} & set(described):
                raise SceneError(
                    f"has a projection, which {image.rio.grid_mapping} describes, that is not a "
                    f"known one. Correct its attributes, or drop it."
                )
            transform = _transform(image, described)
            if transform is None and crs is not None:
                raise SceneError(_WITHOUT_PLACES)
        except SceneError as error:
            return cls.without_places(shape, name, str(error))
        if transform is None:
            return cls.without_places(shape, name)
        return cls(crs, transform, shape, name)

    @classmethod
    def of_raster(cls, file: Any, name: str) -> Self:
        """Return the grid of a file that rasterio has opened."""
        points, _ = file.gcps
        problem = ""
        if file.transform.is_identity and points:
            problem = _only_control_points(name)
        elif file.transform.is_identity and file.crs is not None:
            problem = _WITHOUT_PLACES
        if problem or (file.transform.is_identity and file.crs is None):
            return cls.without_places(file.shape, name, problem)
        return cls(file.crs, file.transform, file.shape, name)

    @classmethod
    def without_places(cls, shape: tuple[int, int], name: str, problem: str = "") -> Self:
        """Return the grid of an image whose pixels are known by row and column alone."""
        return cls(None, Affine.identity(), shape, name, placed=False, problem=problem)

    def require_regular(self) -> None:
        """Raise if the image says where its pixels are, but not as a transform can."""
        if self.problem:
            raise SceneError(f"{self.name} {self.problem}")

    @property
    def crs_text(self) -> str | None:
        """The coordinate reference system as a model keeps it."""
        return None if self.crs is None else str(self.crs.to_string())

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """West, south, east and north of the image."""
        return self.bounds_of(0, 0, self.shape[0] - 1, self.shape[1] - 1)

    def bounds_of(
        self, top: int, left: int, bottom: int, right: int
    ) -> tuple[float, float, float, float]:
        """Return west, south, east and north of a rectangle of pixels."""
        rows, columns = np.meshgrid([top, bottom + 1], [left, right + 1])
        x, y = _transformed(self.transform, columns, rows)
        return float(x.min()), float(y.min()), float(x.max()), float(y.max())

    def bounds_in(self, crs: Any) -> tuple[float, float, float, float] | None:
        """Return the bounds of the image in another system, or None if they cannot be said."""
        return reproject_bounds(self.bounds, self.crs, crs)

    def overlaps(self, other: PixelGrid) -> bool:
        """Return whether two images in the same coordinates have a place in common."""
        (w1, s1, e1, n1), (w2, s2, e2, n2) = self.bounds, other.bounds
        return w1 < e2 and w2 < e1 and s1 < n2 and s2 < n1

    def coincides(self, other: PixelGrid) -> bool:
        """Return whether two images have as many pixels between the same coordinates."""
        difference = np.abs(np.subtract(self.bounds, other.bounds))
        return self.shape == other.shape and bool(difference.max() < COINCIDING * self.pixel)

    @property
    def pixel(self) -> float:
        """The side of a pixel, if it were a square."""
        return float(np.sqrt(abs(self.transform.determinant)))

    def bounds_text(self) -> str:
        """Return where the image lies, for messages."""
        return bounds_text(self.bounds) if self.placed else "no known place"

    def window(self, bounds: Any) -> tuple[int, int, int, int]:
        """Return the first and last rows and columns (exclusive) that bounds touch, clipped."""
        west, south, east, north = bounds
        columns, rows = _transformed(~self.transform, *np.meshgrid([west, east], [south, north]))
        height, width = self.shape
        top, bottom = int(np.floor(rows.min())), int(np.ceil(rows.max()))
        left, right = int(np.floor(columns.min())), int(np.ceil(columns.max()))
        return (
            max(top, 0),
            min(max(bottom, top + 1), height),
            max(left, 0),
            min(max(right, left + 1), width),
        )

    def pixel_at(self, x: Array, y: Array) -> tuple[Array, Array]:
        """Return the rows and columns that hold points; -1 or too large if they lie outside."""
        # Where a projection cannot say a point, it is infinite.
        with np.errstate(invalid="ignore", over="ignore"):
            column, row = _transformed(~self.transform, np.asarray(x, float), np.asarray(y, float))
        row, column = (
            np.clip(np.nan_to_num(np.floor(place), nan=-1.0), -1.0, 2.0**53).astype(np.int64)
            for place in (row, column)
        )
        return row, column

    def centre_of(self, row: Array, column: Array) -> tuple[Array, Array]:
        """Return x and y of the centres of pixels."""
        return _transformed(self.transform, column + 0.5, row + 0.5)

    def holds(self, row: Array, column: Array) -> Array:
        """Return which of some rows and columns are in the image."""
        height, width = self.shape
        return (row >= 0) & (row < height) & (column >= 0) & (column < width)


def placed_by(grid: PixelGrid, image: xr.DataArray) -> xr.DataArray:
    """Return what rioxarray opened with the coordinates of its grid alone.

    Of a rotated image these are the numbers of rows and columns: the places of all pixels, as
    rioxarray gives them, take more memory than a band, and its x and y are wrong if rows run
    along x.
    """
    level = grid.transform.b == grid.transform.d == 0.0
    wrong = () if grid.placed and level else ("x", "y", "xc", "yc")
    image = image.drop_vars([name for name in wrong if name in image.coords])
    if not grid.placed or level:
        return image
    numbers = {ROW: ("y", np.arange(grid.shape[0])), COLUMN: ("x", np.arange(grid.shape[1]))}
    return image.assign_coords(numbers)


def quietly_opened(path: Any) -> Any:
    """Open a file with rasterio; that it has no georeference is no reason to warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path)


def reproject(x: Array, y: Array, source: Any, target: Any) -> tuple[Array, Array]:
    """Return points of one coordinate reference system in another; infinite where there is none.

    Both are what :meth:`rasterio.crs.CRS.from_user_input` takes; two that are None are the same.
    """
    if source is None or target is None:
        return x, y
    source, target = (rasterio.crs.CRS.from_user_input(crs) for crs in (source, target))
    if source == target:
        return x, y
    transformer = Transformer.from_crs(source.to_wkt(), target.to_wkt(), always_xy=True)
    return transformer.transform(x, y)


def reproject_bounds(
    bounds: Any, source: Any, target: Any
) -> tuple[float, float, float, float] | None:
    """Return bounds of one system in another, or None if they cannot be said there."""
    if source is None or target is None:
        west, south, east, north = bounds
        return west, south, east, north
    try:
        west, south, east, north = transform_bounds(source, target, *bounds)
    except rasterio.errors.RasterioError:
        return None
    # Across the antimeridian the west lies east of the east.
    finite = bool(np.isfinite([west, south, east, north]).all())
    return (west, south, east, north) if finite and west < east and south < north else None


def bounds_text(bounds: Any) -> str:
    """Return west, south, east and north for messages, with as many digits as tell them apart."""
    digits = 0 if np.ptp(bounds) > 1000.0 else 4
    west, south, east, north = (f"{value:,.{digits}f}" for value in bounds)
    return f"{west} to {east} east, {south} to {north} north"


def _transformed(transform: Any, across: Array, down: Array) -> tuple[Array, Array]:
    a, b, c, d, e, f = transform[:6]
    return a * across + b * down + c, d * across + e * down + f


# Where an image says its places

_WITHOUT_PLACES = (
    "has a coordinate reference system, but does not say where its pixels are. Give it "
    "coordinates or a transform (gdal_edit.py -a_ullr WEST NORTH EAST SOUTH, in Python "
    "image.assign_coords(x=..., y=...) or image.rio.write_transform(...))."
)


def _only_control_points(name: str) -> str:
    quoted = shlex.quote(name)
    return (
        f"has ground control points only, so its pixels lie on no regular grid. Warp it to one "
        f"first, which may be a small file that refers to it:\n"
        f"  gdalwarp -tps -t_srs EPSG:4326 -of VRT {quoted} warped.vrt"
    )


def _of_each_pixel(*names: Any) -> str:
    return (
        f"has a place for each pixel ({' and '.join(map(str, names))}), but lies on no regular "
        f"grid. Resample it to one (gdalwarp -geoloc, or pyresample)."
    )


def _grid_mapping(image: xr.DataArray | xr.Dataset) -> Mapping[Any, Any]:
    """Return the attributes that describe the projection of an image, none if there are none."""
    names = [name for name in image.rio.grid_mapping.split() if name in image.coords]
    return image.coords[names[0]].attrs if names else {}


def _transform(image: xr.DataArray | xr.Dataset, described: Mapping[Any, Any]) -> Affine | None:
    """Return what makes coordinates of columns and rows, or None if the image has none."""
    said = _geotransform(described)
    along = {dim: image.coords[dim] for dim in ("x", "y") if dim in image.coords}
    if len(along) == 2 and all(c.dims == (dim,) for dim, c in along.items()):
        if said is not None and not _is_level(said, image):
            raise SceneError(
                "has a rotated GeoTransform, but coordinates x and y as if it were not: which of "
                "them is right cannot be told. Drop the wrong ones (in Python image.drop_vars(["
                "'x', 'y']), or open the file with undulatus.scenes.open_image)."
            )
        return _from_axes(along["x"], along["y"], said)
    for across, down in OF_ALL_PIXELS:
        places = [image.coords[name] for name in (across, down) if name in image.coords]
        if len(places) == 2 and all(set(each.dims) == {"y", "x"} for each in places):
            return _from_places(places[0], places[1])
    if said is not None and not said.is_identity:
        if said.b == said.d == 0.0:
            raise SceneError(
                "has a GeoTransform, but no coordinates x and y: whether it is that of these rows "
                "and columns cannot be told. Give it coordinates, or drop the projection too (in "
                "Python image.drop_vars('spatial_ref')): pixels are then known by row and column."
            )
        return said * _cut(image)
    if "gcps" in described:
        raise SceneError(_only_control_points(str(image.attrs.get("source", "image.tif"))))
    lonlats = [str(n) for n, c in image.coords.items() if n in DIRECTIONS and c.ndim == 2]
    if lonlats:
        raise SceneError(_of_each_pixel(*lonlats))
    return None


def _geotransform(described: Mapping[Any, Any]) -> Affine | None:
    try:
        return Affine.from_gdal(*map(float, str(described["GeoTransform"]).split()))
    except (KeyError, ValueError, TypeError):
        return None


def _is_level(transform: Affine, image: xr.DataArray | xr.Dataset) -> bool:
    """Return whether rotation moves no pixel of an image by a part of it that counts."""
    moved = max(abs(transform.b) * image.sizes["y"], abs(transform.d) * image.sizes["x"])
    return bool(moved < MOST_UNEVEN * np.sqrt(abs(transform.determinant)))


def _from_axes(x: xr.DataArray, y: xr.DataArray, said: Affine | None) -> Affine:
    across, down = _step(x), _step(y)
    # A single row or column has the size that the file says, or that of the other side.
    across = across or (said.a if said is not None else 0.0) or abs(down or 1.0)
    down = down or (said.e if said is not None else 0.0) or -abs(across)
    west, north = float(x[0]) - across / 2, float(y[0]) - down / 2
    return Affine(across, 0.0, west, 0.0, down, north)


def _step(axis: xr.DataArray) -> float:
    """Return the distance of coordinates, or zero of only one; raise if it is not the same."""
    if axis.dtype.kind not in "iuf":
        raise SceneError(f"has a coordinate {axis.name} of {axis.dtype}, which are no numbers.")
    centres = np.asarray(axis.values, np.float64)
    if len(centres) == 1:
        return 0.0
    regular, step = np.linspace(centres[0], centres[-1], len(centres), retstep=True)
    # Single precision rounds coordinates of small pixels far from zero.
    rounding = np.spacing(np.abs(axis.values).max()) if axis.dtype.kind == "f" else 0.0
    away = np.abs(centres - regular).max() - rounding
    if not (step != 0.0 and away <= MOST_UNEVEN * abs(step)):
        gaps = np.diff(centres)
        raise SceneError(
            f"needs pixels of one size, but its coordinate {axis.name} is not regular: the steps "
            f"are from {np.min(gaps):g} to {np.max(gaps):g}. Resample it to a regular grid (in "
            f"Python image.interp or image.reindex), or drop its place (in Python "
            f"image.drop_vars(['x', 'y', 'spatial_ref'])): pixels are then known by row and "
            f"column alone."
        )
    return float(step)


def _from_places(across: xr.DataArray, down: xr.DataArray) -> Affine:
    """Return the transform of a grid that is given by the place of each pixel."""
    planes = [array.transpose("y", "x") for array in (across, down)]
    height, width = planes[0].shape

    def at(row: int, column: int) -> Array:
        return np.array([float(plane[row, column]) for plane in planes])

    first = at(0, 0)
    right = (at(0, width - 1) - first) / (width - 1) if width > 1 else np.full(2, np.nan)
    below = (at(height - 1, 0) - first) / (height - 1) if height > 1 else np.full(2, np.nan)
    # Of a single row or column: a square pixel, turned with the other side.
    right = np.where(np.isnan(right), [-below[1], below[0]], right)
    below = np.where(np.isnan(below), [right[1], -right[0]], below)
    corner = first - (right + below) / 2
    found = Affine(right[0], below[0], corner[0], right[1], below[1], corner[1])
    rows, columns = np.arange(height)[:, None] + 0.5, np.arange(width) + 0.5
    most = MOST_UNEVEN * np.sqrt(abs(found.determinant))
    expected = _transformed(found, columns, rows)
    away = max(np.abs(p.values - e).max() for p, e in zip(planes, expected, strict=True))
    if not (most > 0.0 and away <= most):
        raise SceneError(_of_each_pixel(across.name, down.name))
    return found


def _cut(image: xr.DataArray | xr.Dataset) -> Affine:
    """Return the part of a rotated image that is left of it, by its numbered rows and columns."""
    steps, starts = [], []
    for name, dim in ((COLUMN, "x"), (ROW, "y")):
        numbered = name in image.coords and image.coords[name].dims == (dim,)
        numbers = image.coords[name].values if numbered else np.arange(image.sizes[dim])
        step = int(numbers[1] - numbers[0]) if len(numbers) > 1 else 1
        if (np.diff(numbers) != step).any():
            raise SceneError(
                f"needs pixels of one size, but some of its {name}s were left out: {name} is not "
                f"regular. Take a cut without gaps."
            )
        steps.append(step)
        # The upper left corner of a pixel of so many rows and columns, about its centre.
        starts.append(float(numbers[0]) + 0.5 - step / 2)
    return Affine.translation(*starts) * Affine.scale(*steps)
