"""Bands of one image, read window by window from several threads at once.

Pages of large images read every pixel once, in squares. dask would read each band by itself, one
after the other, and GDAL would keep a twentieth of the machine's memory; here all bands of a
window are read together, and memory holds little more than the windows.
"""

from __future__ import annotations

import os
import threading
import warnings
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
from rasterio.errors import NotGeoreferencedWarning
from rasterio.windows import Window

from undulatus._files import as_reading_errors
from undulatus.errors import SceneError
from undulatus.scenes.files.geotiff import GDAL_ERRORS, MOST_UNEVEN

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

    Bands without a description are called ``band_1`` and so on.
    """
    handles = threading.local()
    cache = {} if "GDAL_CACHEMAX" in os.environ else {"GDAL_CACHEMAX": CACHE_MEGABYTES}

    def read_window(rows: slice, columns: slice) -> Array:
        with rasterio.Env(**cache):
            # A handle of GDAL serves one thread at a time.
            if not hasattr(handles, "file"):
                handles.file = _open(path)
            return np.asarray(handles.file.read(window=Window.from_slices(rows, columns)))

    try:
        file = _open(path)
    except GDAL_ERRORS as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    with file:
        numbered = [f"band_{number}" for number in range(1, file.count + 1)]
        placed = file.crs is not None or file.transform != Affine.identity()
        return Bands(
            tuple(a or b for a, b in zip(file.descriptions, numbered, strict=True)),
            file.shape,
            Grid(file.transform, _crs(file.crs and file.crs.to_wkt())) if placed else None,
            file.tags(),
            tuple(
                _attributes(file.tags(number) | file.tags(number, ns="IMAGERY"))
                | ({"units": units} if units else {})
                for number, units in zip(file.indexes, file.units, strict=True)
            ),
            tuple(np.nan if fill is None else fill for fill in file.nodatavals),
            file.scales,
            file.offsets,
            read_window,
        )


def _open(path: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path)


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
    steps: list[float] = []
    for dim in ("x", "y"):
        centres = np.asarray(dataset[dim].values) if dim in dataset.coords else np.zeros(0)
        if len(centres) < 2 or centres.dtype.kind not in "iuf":
            return None
        regular, step = np.linspace(centres[0], centres[-1], len(centres), retstep=True)
        if not np.abs(centres - regular).max() <= MOST_UNEVEN * abs(step):
            return None
        steps.append(float(step))
    across, down = steps
    west = float(dataset["x"][0]) - across / 2
    north = float(dataset["y"][0]) - down / 2
    mapping: Any = dataset.coords.get("spatial_ref")
    wkt = None if mapping is None else mapping.attrs.get("crs_wkt")
    return Grid(Affine(across, 0.0, west, 0.0, down, north), _crs(wkt))


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
