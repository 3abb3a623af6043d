"""Labels in rasters and arrays: a class for each pixel, on a grid of their own.

The pixel of an image has the class of the pixel of the labels that its centre lies in. Labels are
taken by row and column only if neither they nor the image say where their pixels are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import xarray as xr
from rasterio.windows import Window

from undulatus.errors import SceneError
from undulatus.scenes.files.images import with_image_dims
from undulatus.scenes.labelled_pixels import Class, Draw, LabelledPixels, collect
from undulatus.scenes.pixel_grid import (
    COLUMN,
    OF_ALL_PIXELS,
    ROW,
    PixelGrid,
    quietly_opened,
    reproject,
)
from undulatus.scenes.scene import DIRECTIONS

Array = npt.NDArray[Any]

STRIP_PIXELS = 2_000_000
"""Pixels of a polygon or a raster that are looked at together."""

NODES = 32
"""Every so many pixels are reprojected, and those between are interpolated, ..."""

INTERPOLATED = 0.01
"""... if that moves them by less than this part of a pixel of the labels."""

PLACES = (*OF_ALL_PIXELS[0], *DIRECTIONS, ROW, COLUMN)
"""Coordinates that say where pixels are."""

Read = Callable[[Window], tuple[Array, Array]]
"""Returns the codes of a window of labels, (y, x), and which of its pixels have a label."""


def strips(top: int, bottom: int, left: int, right: int) -> Iterator[Window]:
    """Return windows of whole rows that cover a rectangle, of so many pixels each."""
    rows = max(1, STRIP_PIXELS // max(right - left, 1))
    for first in range(top, bottom, rows) if left < right else ():
        yield Window(left, first, right - left, min(rows, bottom - first))


def read_raster(path: Path, grid: PixelGrid, draw: Draw) -> LabelledPixels:
    """Return the labelled pixels of an image with this grid by a raster of codes."""
    try:
        with quietly_opened(path) as file:
            if file.count > 1:
                raise SceneError(
                    f"{path} has {file.count} bands, but a raster of labels has one, the class of "
                    f"each pixel. Is it the image?"
                )
            names = _flag_names(file.tags() | file.tags(1))
            nodata = file.nodata

            def read(window: Window) -> tuple[Array, Array]:
                known = file.dataset_mask(window=window) > 0
                return _whole_numbers(file.read(1, window=window), known, str(path))

            own = PixelGrid.of_raster(file, str(path))
            notes = _require_comparable(own, grid)
            _lay(read, own, grid, draw)
    except (rasterio.errors.RasterioError, OSError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    notes += _notes_on_codes(draw.counts, nodata, path)
    marked = (
        f" (its nodata, {nodata:g}, marks pixels without a label)" if nodata is not None else ""
    )
    return collect(draw, grid, [], [], "square", f"{path}{marked}", names=names, notes=notes)


def _notes_on_codes(counts: dict[Class, int], nodata: float | None, path: Path) -> list[str]:
    """Return what a user may not expect of the codes of a raster."""
    if nodata is not None:
        return [f"{path}: pixels of its nodata value, {nodata:g}, have no label"]
    likely = max(counts, key=lambda label: counts[label], default=None)
    if likely not in (0, 255):
        return []
    return [
        f"{path} has no nodata value, so {likely}, its commonest code, is a class. If it means no "
        f"label, say so (gdal_edit.py -a_nodata {likely} {path.name})"
    ]


def read_array(
    labels: xr.DataArray, image: xr.DataArray, grid: PixelGrid, draw: Draw
) -> LabelledPixels:
    """Return the labelled pixels of an image by labels that are open already, (y, x)."""
    plane = with_image_dims(labels).squeeze(drop=True)
    if set(plane.dims) != {"y", "x"}:
        raise SceneError(
            f"Labels are one value a pixel, with the dimensions y and x, but these have "
            f"{labels.dims}. Rename them (in Python labels.rename(...))."
        )
    plane = plane.transpose("y", "x")
    marks = {plane.attrs.get(name) for name in ("_FillValue", "missing_value", "nodata")}
    marks |= {plane.rio.nodata, plane.encoding.get("_FillValue")}
    values = np.asarray(plane.values)
    known = np.ones(values.shape, bool)
    for mark in marks - {None}:
        known &= values != mark
    codes, known = _whole_numbers(values, known, str(labels.name or "The array of labels"))

    def read(window: Window) -> tuple[Array, Array]:
        part = window.toslices()
        return codes[part], known[part]

    where = f"{labels.name or 'the labels'}"
    if grid.problem and _same_places(plane, image):
        # Whatever the grid, these are the same pixels.
        _lay(read, grid, grid, draw)
        notes = []
    else:
        own = PixelGrid.of(plane.assign_attrs(source=where))
        notes = _require_comparable(own, grid)
        _lay(read, own, grid, draw)
    names = _flag_names(labels.attrs)
    return collect(draw, grid, [], [], "square", where, names=names, notes=notes)


def _same_places(labels: xr.DataArray, image: xr.DataArray) -> bool:
    """Return whether labels say of their places all that an image says of its own."""
    names = [name for name in PLACES if name in image.coords or name in labels.coords]
    own, its = (each.coords.get(each.rio.grid_mapping) for each in (labels, image))
    if own is None or its is None:
        same_system = own is its
    else:
        same_system = its.variable.identical(own.variable)
    return (same_system or bool(names and own is None)) and all(
        name in image.coords
        and name in labels.coords
        and labels.coords[name].variable.equals(image.coords[name].variable)
        for name in names
    )


def _whole_numbers(values: Array, known: Array, where: str) -> tuple[Array, Array]:
    """Return codes of classes, and which are known: what is not finite is none."""
    if values.dtype.kind not in "fiub":
        raise SceneError(f"{where} holds {values.dtype}, but classes are whole numbers.")
    known = known & np.isfinite(values)
    codes = np.where(known, values, 0)
    broken = np.flatnonzero(codes != np.rint(codes))
    if len(broken):
        raise SceneError(
            f"{where} holds fractions, such as {codes.flat[broken[0]]:g}, but classes are whole "
            f"numbers. Is it the image, or a map of probabilities?"
        )
    return codes.astype(np.int64), known


def _flag_names(attrs: Any) -> dict[Class, str]:
    """Return names of codes, as CF's ``flag_values`` and ``flag_meanings`` give them."""
    values, meanings = attrs.get("flag_values", ()), str(attrs.get("flag_meanings", "")).split()
    listed = values.split() if isinstance(values, str) else np.atleast_1d(values).tolist()
    return {int(float(value)): name for value, name in zip(listed, meanings, strict=False)}


# From the grid of the labels to that of the image


def _require_comparable(own: PixelGrid, grid: PixelGrid) -> list[str]:
    """Return notes on how labels are laid on an image, or raise if their places do not tell."""
    own.require_regular()
    grid.require_regular()
    if own.placed != grid.placed:
        lacking, other = (grid, own) if own.placed else (own, grid)
        raise SceneError(
            f"{lacking.name} has no georeference, but {other.name} has one, so it cannot be told "
            f"where the labels lie. Give both the same (gdal_edit.py -a_srs CRS -a_ullr WEST "
            f"NORTH EAST SOUTH FILE; in Python labels.assign_coords(y=image.y, x=image.x))."
        )
    if not own.placed:
        if own.shape != grid.shape:
            raise SceneError(
                f"{own.name} and {grid.name} have no georeference, and different rows and columns "
                f"({own.shape[0]} x {own.shape[1]}, {grid.shape[0]} x {grid.shape[1]}), so it "
                f"cannot be told where the labels lie. Give both a coordinate reference system."
            )
        return [
            f"neither {own.name} nor {grid.name} has a georeference: labels are taken by row and "
            f"column"
        ]
    if (own.crs is None) == (grid.crs is None):
        return []
    lacking, other = (own, grid) if own.crs is None else (grid, own)
    if not own.coincides(grid):
        raise SceneError(
            f"{lacking.name} has no coordinate reference system, but {other.name} is in "
            f"{other.crs}, and their bounds are not the same, so it cannot be told where the "
            f"labels lie.\n  {own.name}: {own.bounds_text()}\n  {grid.name}: "
            f"{grid.bounds_text()}\nSay which it is in (gdal_edit.py -a_srs CRS FILE; in Python "
            f"rio.write_crs(...))."
        )
    return [
        f"{lacking.name} has no coordinate reference system; it has the coordinates of "
        f"{other.name}, and is taken to be in {other.crs}"
    ]


def _lay(read: Read, own: PixelGrid, grid: PixelGrid, draw: Draw) -> None:
    """Add the labels of all pixels of an image whose centres lie in labels with their own grid."""
    same = own.transform == grid.transform and own.shape == grid.shape
    direct = same and (own.crs == grid.crs or None in (own.crs, grid.crs))
    waiting = list(strips(*_covered(own, grid)))[::-1]
    while waiting:
        window = waiting.pop()
        if direct:
            _add_codes(*read(window), window, grid, draw)
            continue
        row, column = own.pixel_at(*_centres(window, grid, own))
        inside = own.holds(row, column)
        if not inside.any():
            continue
        (top, bottom), (left, right) = (
            (int(place[inside].min()), int(place[inside].max()) + 1) for place in (row, column)
        )
        if (bottom - top) * (right - left) > 4 * STRIP_PIXELS and window.height * window.width > 1:
            # Labels are finer than the image, or turned.
            waiting += _halves(window)
            continue
        codes, known = read(Window(left, top, right - left, bottom - top))
        place = np.where(inside, row - top, 0), np.where(inside, column - left, 0)
        _add_codes(codes[place], inside & known[place], window, grid, draw)


def _centres(window: Window, grid: PixelGrid, own: PixelGrid) -> tuple[Array, Array]:
    """Return x and y of the centres of a window's pixels in the system of the labels, (y, x).

    Between every so many pixels they are interpolated, if that is as good as exact.
    """
    rows, columns = (np.arange(part.start, part.stop) for part in window.toslices())
    if own.crs is None or own.crs == grid.crs:
        return grid.centre_of(*np.ix_(rows, columns))

    def exact(rows: Array, columns: Array) -> Array:
        x, y = grid.centre_of(*np.ix_(rows, columns))
        return np.array(reproject(x, y, grid.crs, own.crs))

    nodes = [np.arange(each[0], each[-1] + NODES + 1, NODES) for each in (rows, columns)]
    known = exact(*nodes)
    # The middle of a cell is farthest from all of its nodes.
    middles = exact(*(each[:-1] + NODES / 2 for each in nodes))
    mean = (known[:, :-1] + known[:, 1:])[..., :-1] + (known[:, :-1] + known[:, 1:])[..., 1:]
    with np.errstate(invalid="ignore"):
        away = np.abs(middles - mean / 4).max()
    if not away < INTERPOLATED * own.pixel:
        x, y = exact(rows, columns)
        return x, y
    (i, down), (j, across) = (np.divmod(each - each[0], NODES) for each in (rows, columns))
    down, across = down[:, None] / NODES, across / NODES
    along = known[:, i] * (1.0 - down) + known[:, i + 1] * down
    x, y = along[..., j] * (1.0 - across) + along[..., j + 1] * across
    return x, y


def _covered(own: PixelGrid, grid: PixelGrid) -> tuple[int, int, int, int]:
    """Return the rows and columns of an image that its labels may lie in."""
    bounds = own.bounds
    if own.crs is not None and grid.crs is not None and own.crs != grid.crs:
        found = own.bounds_in(grid.crs)
        if found is None:
            return 0, grid.shape[0], 0, grid.shape[1]
        bounds = found
    top, bottom, left, right = grid.window(bounds)
    height, width = grid.shape
    # Edges of reprojected bounds are curved.
    return max(top - 2, 0), min(bottom + 2, height), max(left - 2, 0), min(right + 2, width)


def _halves(window: Window) -> list[Window]:
    left, top, width, height = window.col_off, window.row_off, window.width, window.height
    if height >= width:
        cut = height // 2
        return [Window(left, top, width, cut), Window(left, top + cut, width, height - cut)]
    cut = width // 2
    return [Window(left, top, cut, height), Window(left + cut, top, width - cut, height)]


def _add_codes(codes: Array, known: Array, window: Window, grid: PixelGrid, draw: Draw) -> None:
    for value in np.unique(codes[known]).tolist():
        row, column = np.nonzero(known & (codes == value))
        index = (row + window.row_off) * grid.shape[1] + column + window.col_off
        draw.add(int(value), index, 0)
