"""Bands of one image, read window by window from several threads at once.

Pages of large images read every pixel once, in squares. dask would read each band by itself, one
after the other, and GDAL would keep a twentieth of the machine's memory; here all bands of a
window are read together, and memory holds little more than the windows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import xarray as xr
from affine import Affine
from pyproj import CRS
from pyproj.exceptions import CRSError
from rasterio.windows import Window

from undulatus._files import as_reading_errors
from undulatus.errors import SceneError
from undulatus.scenes.files.geotiff import GDAL_ERRORS
from undulatus.scenes.files.images import alpha_band, has_mask
from undulatus.scenes.pixel_grid import PixelGrid, quietly_opened

Array = npt.NDArray[Any]

CACHE_MEGABYTES = 64
"""GDAL keeps so much of what it has read, unless ``GDAL_CACHEMAX`` is set: enough for the blocks
that a window cuts."""

_NUMBERS = ("flag_values", "flag_masks")
"""Tags of bands that are lists of whole numbers."""


@dataclass(frozen=True)
class Grid:
    """Where the pixels of an image lie."""

    transform: Affine
    """From columns and rows, counted from the upper left corner, to x and y."""
    crs: CRS | None = None

    @property
    def crs_name(self) -> str:
        """The name of the projection, with its code if it has one; empty if it is not known."""
        if self.crs is None:
            return ""
        code = self.crs.to_authority()
        return f"{self.crs.name} ({':'.join(code)})" if code else self.crs.name

    def almost_equals(self, other: Grid, shape: tuple[int, int]) -> bool:
        """Return whether the corners of both are within a tenth of a pixel."""
        height, width = shape
        corners = np.array([(0, 0, 1), (width, 0, 1), (0, height, 1)], float)
        ours, others = (np.reshape([*each.transform], (3, 3)) for each in (self, other))
        size = np.sqrt(abs(np.linalg.det(ours)))
        return bool(np.abs(corners @ (ours - others).T).max() < 0.1 * size)


@dataclass(frozen=True)
class Bands:
    """Bands of one image on one grid.

    Attributes
    ----------
    names : tuple of str
    shape : tuple of int
        Rows and columns.
    grid : Grid or None
        None if the image has none, or an irregular one.
    attrs : mapping
        Of the whole image.
    band_attrs : tuple of mappings
        Of each band; ``flag_values`` and ``flag_masks`` are arrays.
    fills : tuple of float
        The value that marks a missing pixel in each band; NaN where none does. A pixel that is NaN
        is missing in any case.
    scales, offsets : tuple of float
        A pixel's value is what is read, times the scale, plus the offset.
    """

    names: tuple[str, ...]
    shape: tuple[int, int]
    grid: Grid | None
    attrs: Mapping[str, Any]
    band_attrs: tuple[Mapping[str, Any], ...]
    fills: tuple[float, ...]
    scales: tuple[float, ...]
    offsets: tuple[float, ...]
    read_window: Callable[[slice, slice], Array]

    def read(self, rows: slice, columns: slice) -> Array:
        """Return all bands of a window as they are stored, (band, y, x)."""
        with as_reading_errors():
            return self.read_window(rows, columns)


# Files that rasterio opens


def raster_bands(path: Path) -> Bands:
    """Return the bands of a GeoTIFF or another image that rasterio opens.

    Bands without a description are called ``band_1`` and so on. North is up and west is left, as
    in maps, unless the image is rotated.
    An alpha band is none of them: what it marks as missing, or a mask of the file, is NaN.
    """
    handles = threading.local()
    cache = {} if "GDAL_CACHEMAX" in os.environ else {"GDAL_CACHEMAX": CACHE_MEGABYTES}

    def read_window(rows: slice, columns: slice) -> Array:
        with rasterio.Env(**cache):
            # A handle of GDAL serves one thread at a time.
            if not hasattr(handles, "file"):
                handles.file = quietly_opened(path)
            stored = [
                slice(size - part.stop, size - part.start) if turned else part
                for size, part, turned in zip(shape, (rows, columns), (up, left), strict=True)
            ]
            window = Window.from_slices(*stored)
            values = handles.file.read(shown, window=window, masked=masked)
            values = values.astype(np.float64).filled(np.nan) if masked else np.asarray(values)
            return values[:, :: -1 if up else 1, :: -1 if left else 1]

    try:
        file = quietly_opened(path)
    except GDAL_ERRORS as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    with file:
        alpha = alpha_band(file)
        masked = has_mask(file) or alpha is not None
        shown = [number for number in file.indexes if number != alpha]
        grid, shape, transform = PixelGrid.of_raster(file, str(path)), file.shape, file.transform
        level = grid.placed and transform.b == transform.d == 0.0
        up, left = level and transform.e > 0.0, level and transform.a < 0.0
        if up or left:
            transform *= Affine.translation(left * shape[1], up * shape[0])
            transform *= Affine.scale(-1 if left else 1, -1 if up else 1)
        return Bands(
            tuple(file.descriptions[number - 1] or f"band_{number}" for number in shown),
            shape,
            Grid(transform, _crs(file.crs and file.crs.to_wkt())) if grid.placed else None,
            file.tags(),
            tuple(
                _attributes(file.tags(number) | file.tags(number, ns="IMAGERY"))
                | ({"units": units} if units else {})
                for number in shown
                for units in file.units[number - 1 : number]
            ),
            tuple(np.nan if (m := file.nodatavals[n - 1]) is None else m for n in shown),
            tuple(file.scales[number - 1] for number in shown),
            tuple(file.offsets[number - 1] for number in shown),
            read_window,
        )


def _attributes(tags: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: np.array(text.split(), np.int64) if name in _NUMBERS and _is_listed(text) else text
        for name, text in tags.items()
    }


def _is_listed(text: str) -> bool:
    return all(part.isascii() and part.isdigit() and len(part) < 19 for part in text.split())


def _crs(wkt: str | None) -> CRS | None:
    try:
        return CRS.from_wkt(wkt) if wkt else None
    except CRSError:
        return None


# Datasets


def dataset_bands(dataset: xr.Dataset, arrays: Mapping[str, xr.DataArray]) -> Bands:
    """Return arrays (y, x) of a dataset as bands under the given names.

    Fill values and scales have been applied when the dataset was opened.
    """
    first = next(iter(arrays.values()))
    count = len(arrays)

    def read_window(rows: slice, columns: slice) -> Array:
        window = {"y": rows, "x": columns}
        cut = xr.Dataset(
            {
                str(i): (("y", "x"), array.isel(window).transpose("y", "x").data)
                for i, array in enumerate(arrays.values())
            }
        )
        # Windows are read in parallel; each by one thread.
        loaded = cut.compute(scheduler="synchronous")
        return np.stack([loaded[str(i)].values for i in range(count)])

    return Bands(
        tuple(arrays),
        (first.sizes["y"], first.sizes["x"]),
        _regular_grid(dataset),
        dataset.attrs,
        tuple(array.attrs for array in arrays.values()),
        (np.nan,) * count,
        (1.0,) * count,
        (0.0,) * count,
        read_window,
    )


def _regular_grid(dataset: xr.Dataset) -> Grid | None:
    grid = PixelGrid.of(dataset)
    if not grid.placed:
        return None
    return Grid(grid.transform, _crs(grid.crs and grid.crs.to_wkt()))


def on_one_grid(bands: Sequence[Bands]) -> bool:
    """Return whether all have the same shape, and the same grid where it is known."""
    first, *others = bands
    return all(
        each.shape == first.shape
        and (
            each.grid is None
            or first.grid is None
            or first.grid.almost_equals(each.grid, first.shape)
        )
        for each in others
    )
