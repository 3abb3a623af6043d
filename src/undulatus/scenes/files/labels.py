"""Labelled pixels of an image: from polygons, points, a raster on any grid, or a table.

:func:`read_labels` gives the row, the column, the class and the group of each labelled pixel. A
group is what belongs together, so that a whole one is held out: a polygon, or a square of the
image where there are no polygons, or what a field of the labels says.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.features
import shapely
import xarray as xr
from rasterio.windows import transform as window_transform

from undulatus.errors import InputError, SceneError
from undulatus.scenes.files.images import RASTERS, is_raster
from undulatus.scenes.files.label_fields import (
    NAMED,
    Wanted,
    as_classes,
    find_field,
    flags_of_groups,
    held_flags,
    notes_on_labels,
    read_csv,
    some,
)
from undulatus.scenes.files.label_rasters import read_array, read_raster, strips
from undulatus.scenes.labelled_pixels import (
    Class,
    Draw,
    LabelledPixels,
    collect,
    sort_key,
    squares,
)
from undulatus.scenes.pixel_grid import PixelGrid, bounds_text, reproject

Array = npt.NDArray[Any]

VECTORS = (".gpkg", ".geojson", ".json", ".shp", ".fgb", ".parquet", ".geoparquet")
"""Suffixes of polygons and points, as geopandas reads them; ``.parquet`` may be a table, too."""

TABLES = (".csv", ".parquet")

PLACES = (("row", "column"), ("x", "y"), ("longitude", "latitude"), ("lon", "lat"))
"""Columns of a table that say where a pixel is: its number from zero, the image's coordinates, or
degrees."""

SEGMENTS = 200
"""Edges of polygons that reach far beyond an image are cut into parts of its size over this."""


def is_label_file(path: Path) -> bool:
    """Return whether labels may be read from a path: by its suffix, or because GDAL opens it."""
    return path.suffix.lower() in (*VECTORS, *TABLES) or is_raster(path)


def read_labels(
    source: Any,
    image: xr.DataArray,
    *,
    field: str | None = None,
    group: str | None = None,
    split: str | None = None,
    all_touched: bool = False,
    most: int | None = None,
    seed: int = 0,
) -> LabelledPixels:
    """Return the labelled pixels of an image.

    Parameters
    ----------
    source : path, GeoDataFrame, DataFrame or DataArray
        Polygons or points in GeoPackage, GeoJSON, Shapefile or GeoParquet; a raster on any grid,
        whose nearest pixels are taken; or a table (CSV, Parquet) with the columns ``row`` and
        ``column`` (from zero), ``x`` and ``y`` (as the image's coordinates), or ``longitude`` and
        ``latitude``.
    image : DataArray
        As :func:`undulatus.scenes.open_image` opens it.
    field : str, optional
        Field or column with the class; by default the only one there is, ``class`` or ``label``.
        Features without a class are left out, and so are pixels in polygons of several classes.
    group : str, optional
        Field that says which features belong together; by default every polygon is a group.
    split : str, optional
        Field that says of each feature whether it is to be learned from (``train``) or held out
        (``test``; :func:`undulatus.scenes.files.label_fields.held_flags` knows other words).
    all_touched : bool
        Whether a pixel is in a polygon that touches it, or only if it holds its centre.
    most : int, optional
        Draw at most so many pixels of each class at random.
    seed : int
    """
    grid, draw = PixelGrid.of(image), Draw(most, seed)
    wanted = Wanted(field, group, split, all_touched)
    if isinstance(source, xr.DataArray):
        _require_no_split(split, "An array of labels")
        return read_array(source, image, grid, draw)
    if isinstance(source, (str, os.PathLike)):
        return _read_file(Path(source), grid, wanted, draw)
    if hasattr(source, "geometry"):
        return _read_features(source, grid, wanted, draw, "labels")
    if hasattr(source, "columns"):
        return _read_table(source, grid, wanted, draw, "labels")
    raise InputError(
        f"Labels are a file, a GeoDataFrame, a DataFrame or a DataArray, but a "
        f"{type(source).__name__} was given."
    )


def _require_no_split(split: str | None, what: str) -> None:
    if split is not None:
        raise SceneError(
            f"{what} has no field {split!r} that says what is held out: polygons, points and "
            f"tables have fields. Leave --split out, and squares of the image are held out."
        )


def _read_file(path: Path, grid: PixelGrid, wanted: Wanted, draw: Draw) -> LabelledPixels:
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return _read_table(read_csv(path), grid, wanted, draw, str(path))
    if suffix not in VECTORS:
        if is_raster(path):
            _require_no_split(wanted.split, f"{path} is a raster, and")
            return read_raster(path, grid, draw)
        raise SceneError(
            f"{path} has a name of no known format, and GDAL does not open it: labels are read "
            f"from {', '.join(dict.fromkeys((*VECTORS, *TABLES)))} and rasters "
            f"({', '.join(RASTERS)}, ENVI with its .hdr and others)."
        )
    features = _open_features(path)
    if not hasattr(features, "geometry"):
        return _read_table(features, grid, wanted, draw, str(path))
    return _read_features(features, grid, wanted, draw, str(path))


def _open_features(path: Path) -> Any:
    """Return a GeoDataFrame, or a DataFrame of a Parquet file without geometry."""
    import geopandas
    import pandas
    import pyogrio

    try:
        if path.suffix not in (".parquet", ".geoparquet"):
            layers = [str(name) for name, _ in pyogrio.list_layers(path)]
            if len(layers) > 1:
                raise SceneError(
                    f"{path} has several layers: {', '.join(layers)}. Save the one with the "
                    f"labels to a file of its own (in QGIS: Export, Save Features As)."
                )
            return geopandas.read_file(path)
        try:
            return geopandas.read_parquet(path)
        except ValueError:  # Parquet without the metadata of GeoParquet.
            return pandas.read_parquet(path)
    except SceneError:
        raise
    except Exception as error:  # What pyogrio and pyarrow raise has no common base.
        raise SceneError(f"{path} cannot be read: {error}") from error


# Polygons and points


def _read_features(
    features: Any,
    grid: PixelGrid,
    wanted: Wanted,
    draw: Draw,
    where: str,
) -> LabelledPixels:
    fields = [str(name) for name in features.columns if name != features.geometry.name]
    chosen = find_field(fields, wanted, where)
    _require_geometries(features, where)
    labels = as_classes(features[chosen], where, chosen)
    notes = notes_on_labels(labels, "features")
    kept = [i for i, label in enumerate(labels) if label is not None]
    # Known by their number among all features, as messages name them.
    whole = features.geometry.iloc[kept].set_axis(kept)
    kinds = set(whole.geom_type)
    strange = kinds - {"Polygon", "MultiPolygon", "Point", "MultiPoint"}
    if strange:
        raise SceneError(
            f"{where} has {', '.join(sorted(strange))} features, but labels are polygons or "
            "points."
        )
    notes += _require_places(features, grid, where)
    points = kinds <= {"Point", "MultiPoint"}
    parts = whole.explode(index_parts=False)
    if len(parts) > len(whole) and wanted.group is None and not points:
        several = np.bincount(parts.index)
        notes.append(
            f"{np.count_nonzero(several > 1):,} features of several parts are split into "
            f"{several[several > 1].sum():,} polygons, each a group of its own"
        )
    shapes = _on_grid(parts, grid, where)
    rows = features.iloc[parts.index].set_geometry(parts.to_numpy(), crs=features.crs)
    groups = _feature_groups(rows, shapes, wanted, points, where)
    found, inside = dict.fromkeys(kept, 0), set()
    for part, (i, shape) in enumerate(shapes.items()):
        label = labels[i]
        assert label is not None
        number = groups.numbers[part]
        if shape.is_empty:
            continue
        if shape.geom_type == "Point":
            found[i] += _add_point(shape, label, number, grid, draw)
        else:
            found[i] += _add_polygon(shape, label, number, grid, wanted.all_touched, draw)
            if _is_inside(shape, grid):
                inside.add(i)
    outside = [i for i, count in found.items() if count == 0]
    small = [i for i in outside if i in inside]
    if small:
        _refuse_small(small, where)
    if outside:
        notes.append(f"{len(outside):,} features outside the image are left out")
    unit = wanted.group or ("square" if points else "polygon")
    collected = collect(
        draw, grid, groups.names, groups.bounds, unit, where, notes=notes, held=groups.held
    )
    if groups.names:
        return replace(collected, features=rows, feature_groups=groups.numbers)
    x, y = (get(shapes.to_numpy()) for get in (shapely.get_x, shapely.get_y))
    return _with_features(collected, rows, grid, *grid.pixel_at(x, y), groups.numbers)


def _with_features(
    found: LabelledPixels, rows: Any, grid: PixelGrid, row: Array, column: Array, numbers: Array
) -> LabelledPixels:
    """Return labelled pixels in squares with the points or rows that they are of."""
    inside = grid.holds(row, column)
    square, names, _, _ = squares(row[inside], column[inside], grid, numbers[inside])
    places = {name: number for number, name in enumerate(found.group_names)}
    feature_groups = np.full(len(row), -1)
    feature_groups[inside] = np.array([places.get(name, -1) for name in names], int)[square]
    return replace(found, features=rows, feature_groups=feature_groups)


def _require_geometries(features: Any, where: str) -> None:
    if not len(features):
        raise SceneError(f"{where} has no features. Label some, and save it again.")
    shapes = features.geometry
    empty = (shapes.isna() | shapes.is_empty).to_numpy()
    if empty.any():
        raise SceneError(
            f"{where} has {np.count_nonzero(empty)} features without geometry, such as feature "
            f"{some(np.flatnonzero(empty))} (counted from 0). Remove them."
        )
    invalid = ~shapes.is_valid.to_numpy()
    if invalid.any():
        reasons = shapes[invalid].is_valid_reason()
        listed = "".join(
            f"\n  feature {i}: {reason}"
            for i, reason in zip(np.flatnonzero(invalid)[:NAMED], reasons, strict=False)
        )
        raise SceneError(
            f"{where} has invalid geometries: {np.count_nonzero(invalid)} of "
            f"{len(shapes)}.{listed}\n"
            f"Mend them (in QGIS: Fix geometries; in Python: features.make_valid())."
        )


def _require_places(features: Any, grid: PixelGrid, where: str) -> list[str]:
    """Return notes on the places of features, or raise if they cannot be those of the image."""
    grid.require_regular()
    if features.crs is None and grid.crs is not None:
        raise SceneError(
            f"{where} has no coordinate reference system, but {grid.name} is in {grid.crs}. Say "
            f"which it is in (in QGIS: Assign projection; in Python: features.set_crs(...))."
        )
    if features.crs is not None and grid.crs is None:
        lacking = "coordinate reference system" if grid.placed else "georeference"
        raise SceneError(
            f"{grid.name} has no {lacking}, but {where} is in {features.crs.to_string()}, so it "
            f"cannot be told where the labels lie. Give an image with one (gdal_edit.py -a_srs "
            f"CRS), or a table of labels with the columns row and column."
        )
    return _notes_on_places(grid)


def _notes_on_places(grid: PixelGrid) -> list[str]:
    if grid.placed:
        return []
    return [
        f"{grid.name} has no georeference: coordinates of labels are taken as columns and rows, "
        f"from its upper left corner"
    ]


def _on_grid(shapes: Any, grid: PixelGrid, where: str) -> Any:
    """Return shapes in the coordinates of the image; what lies far outside may be empty."""
    found = shapes
    if grid.crs is not None and rasterio.crs.CRS.from_user_input(shapes.crs) != grid.crs:
        found = _near(shapes, grid).to_crs(grid.crs.to_wkt())
        edges = found.bounds.to_numpy()
        broken = ~found.is_empty & ~np.isfinite(edges).all(axis=1)
        lost = broken & ~np.isfinite(edges).any(axis=1)
        found = found.where(~lost, shapely.Polygon())
        if (broken & ~lost).any():
            raise SceneError(
                f"Feature {some(shapes.index[broken & ~lost])} of {where} (counted from 0) "
                f"reaches to where {grid.crs} has no coordinates. Cut it to the image "
                f"(in QGIS: Clip)."
            )
    west, south, east, north = found.total_bounds
    own = grid.bounds
    # Of shapes that are all empty, bounds are not numbers.
    if not (west <= own[2] and east >= own[0] and south <= own[3] and north >= own[1]):
        raise SceneError(_elsewhere(shapes, grid, where))
    return found


def _near(shapes: Any, grid: PixelGrid) -> Any:
    """Return shapes cut to the surroundings of the image, where they reach beyond them.

    A polygon of a continent need not have coordinates in the projection of a town.
    """
    box = grid.bounds_in(shapes.crs.to_wkt())
    if box is None:
        return shapes
    west, south, east, north = box
    wide, high = east - west, north - south
    around = np.array([west - wide, south - high, east + wide, north + high])
    edges = shapes.bounds.to_numpy()
    beyond = (edges[:, :2] < around[:2]).any(axis=1) | (edges[:, 2:] > around[2:]).any(axis=1)
    beyond &= (shapes.geom_type != "Point").to_numpy()
    if not beyond.any():
        return shapes
    cut = shapely.intersection(shapes.to_numpy()[beyond], shapely.box(*around))
    near = shapes.to_numpy().copy()
    # Straight edges are curved in another projection; a buffer of none drops mere touches.
    near[beyond] = shapely.segmentize(shapely.buffer(cut, 0.0), max(wide, high) / SEGMENTS)
    return type(shapes)(near, index=shapes.index, crs=shapes.crs)


def _elsewhere(shapes: Any, grid: PixelGrid, where: str) -> str:
    """Return what to say of labels that do not overlap the image."""
    told = {where: (shapes.total_bounds, shapes.crs), grid.name: (grid.bounds, grid.crs)}
    lines = []
    for name, (bounds, crs) in told.items():
        line = f"\n  {name}: {bounds_text(bounds)}"
        if crs is not None:
            line += f", in {crs.to_string()}"
            if getattr(crs, "is_geographic", False) and np.abs(bounds).max() > 360.0:
                line += ", which are no degrees: it is in another coordinate reference system"
        lines.append(line)
    return (
        "The labels do not overlap the image. Give labels of the same place, and see whether "
        "both have the coordinate reference system that they are in." + "".join(lines)
    )


@dataclass(frozen=True)
class _Groups:
    """The groups of features: the number of each feature's, names, and bounds by number.

    Without names, the number is 1 if a feature is held out. ``held`` are the groups that are, if
    the labels say so.
    """

    numbers: Array
    names: list[str]
    bounds: list[Any]
    held: Array | None


def _feature_groups(rows: Any, shapes: Any, wanted: Wanted, points: bool, where: str) -> _Groups:
    """Return groups by the values of a field, or of each polygon; other points have none yet.

    ``rows`` are in their own coordinates, ``shapes`` in those of the image.
    """
    flags = None if wanted.split is None else held_flags(rows[wanted.split], where)
    if wanted.group is None and points:
        return _Groups(np.zeros(len(rows), int) if flags is None else flags * 1, [], [], flags)
    if wanted.group is None:
        keys = [f"polygon {_digest(shape)}" for shape in _in_degrees(rows.geometry)]
    else:
        keys = [f"{wanted.group}={value}" for value in rows[wanted.group].tolist()]
    found, numbers = np.unique(np.array(keys), return_inverse=True)
    boxes = shapes.bounds.to_numpy()
    bounds = [
        # What is empty has no bounds.
        (
            *np.fmin.reduce(boxes[numbers == i, :2]),
            *np.fmax.reduce(boxes[numbers == i, 2:]),
        )
        for i in range(len(found))
    ]
    held = None if flags is None else flags_of_groups(numbers, found.tolist(), flags, where)
    return _Groups(numbers, [str(name) for name in found], bounds, held)


def _in_degrees(shapes: Any) -> Any:
    """Return shapes in coordinates by which they are known in any image and projection."""
    return shapes if shapes.crs is None else shapes.to_crs(4326)


def _digest(shape: Any) -> str:
    # Formats differ in the order of rings, and GeoJSON has 7 digits of a degree; -0.0 is 0.0.
    corners = np.unique(np.round(shapely.get_coordinates(shape), 7) + 0.0, axis=0)
    return hashlib.sha256(corners.astype("<f8").tobytes()).hexdigest()[:12]


def _add_point(point: Any, label: Class, number: int, grid: PixelGrid, draw: Draw) -> int:
    row, column = grid.pixel_at(np.array([point.x]), np.array([point.y]))
    inside = grid.holds(row, column)
    if inside.any():
        draw.add(label, row * grid.shape[1] + column, number)
    return int(np.count_nonzero(inside))


def _add_polygon(
    shape: Any, label: Class, number: int, grid: PixelGrid, all_touched: bool, draw: Draw
) -> int:
    top, bottom, left, right = grid.window(shape.bounds)
    if top >= bottom or left >= right:
        return 0
    added = 0
    for window in strips(top, bottom, left, right):
        inside = rasterio.features.geometry_mask(
            [shape],
            out_shape=(window.height, window.width),
            transform=window_transform(window, grid.transform),
            all_touched=all_touched,
            invert=True,
        )
        row, column = np.nonzero(inside)
        index = (row + window.row_off) * grid.shape[1] + column + window.col_off
        if len(index):
            draw.add(label, index, number)
            added += len(index)
    return added


def _is_inside(shape: Any, grid: PixelGrid) -> bool:
    west, south, east, north = shape.bounds
    corners = grid.pixel_at(np.array([west, west, east, east]), np.array([south, north] * 2))
    return bool(grid.holds(*corners).all())


def _refuse_small(small: list[int], where: str) -> None:
    raise SceneError(
        f"{len(small)} polygons of {where} hold no centre of a pixel, such as feature "
        f"{some(small)}: they are smaller than a pixel.\nDraw them larger, or take every pixel "
        f"that a polygon touches (--all-touched, in Python all_touched=True)."
    )


# Tables


def _read_table(
    table: Any, grid: PixelGrid, wanted: Wanted, draw: Draw, where: str
) -> LabelledPixels:
    columns = [str(name) for name in table.columns]
    place = next((pair for pair in PLACES if set(pair) <= set(columns)), None)
    if place is None:
        raise SceneError(
            f"{where} does not say where its pixels are. Found: {', '.join(columns)}. Give the "
            f"columns row and column (from zero), x and y (as the image's coordinates), or "
            f"longitude and latitude."
        )
    chosen = find_field([name for name in columns if name not in place], wanted, where)
    labels = as_classes(table[chosen], where, chosen)
    notes = notes_on_labels(labels, "rows")
    row, column = _places(table, place, grid, where)
    if place == ("x", "y"):
        notes += _notes_on_places(grid)
    inside = grid.holds(row, column)
    if not inside.any():
        raise SceneError(
            f"No row of {where} lies in {grid.name}, whose bounds are {grid.bounds_text()} "
            f"and whose size is {grid.shape[0]} rows x {grid.shape[1]} columns."
        )
    if not inside.all():
        notes.append(f"{np.count_nonzero(~inside):,} rows outside the image are left out")
    known = inside & np.array([label is not None for label in labels])
    row, column, rows = row[known], column[known], table[known]
    flags = None if wanted.split is None else held_flags(rows[wanted.split], where)
    numbers = np.zeros(len(row), np.int64) if flags is None else flags * 1
    names: list[str] = []
    bounds: list[Any] = []
    if wanted.group is not None:
        values, numbers = np.unique(rows[wanted.group].astype(str), return_inverse=True)
        names = [f"{wanted.group}={value}" for value in values]
        if flags is not None:
            flags = flags_of_groups(numbers, names, flags, where)
        for i in range(len(names)):
            own = numbers == i
            top, left, bottom, right = (
                int(f(x[own])) for f in (np.min, np.max) for x in (row, column)
            )
            bounds.append(grid.bounds_of(top, left, bottom, right))
    pairs = zip(labels, known, strict=True)
    present = [label for label, there in pairs if there and label is not None]
    for label in sorted(set(present), key=sort_key):
        own = np.array([other == label for other in present])
        draw.add(label, (row * grid.shape[1] + column)[own], numbers[own])
    unit = wanted.group or "square"
    found = collect(draw, grid, names, bounds, unit, where, notes=notes, held=flags)
    if names:
        return replace(found, features=rows, feature_groups=numbers)
    return _with_features(found, rows, grid, row, column, numbers)


def _places(
    table: Any, place: tuple[str, str], grid: PixelGrid, where: str
) -> tuple[Array, Array]:
    first, second = (_numbers(table[name], where) for name in place)
    if place == ("row", "column"):
        for name, values in zip(place, (first, second), strict=True):
            broken = np.flatnonzero(values != np.rint(values))
            if len(broken):
                raise SceneError(
                    f"The {name} of a pixel is a whole number, but {where} has "
                    f"{values[broken[0]]:g}. Call positions in the image's coordinates x and y."
                )
        # Far outside of any image, and still a whole number.
        row, column = np.clip([first, second], -1.0, 2.0**53).astype(np.int64)
        return row, column
    grid.require_regular()
    if place == ("x", "y"):
        return grid.pixel_at(first, second)
    if grid.crs is None:
        raise SceneError(
            f"{where} has {place[0]} and {place[1]}, but {grid.name} has no coordinate reference "
            f"system. Give the columns row and column."
        )
    return grid.pixel_at(*reproject(first, second, "EPSG:4326", grid.crs))


def _numbers(values: Any, where: str) -> Array:
    """Return a column as numbers, or raise an error that names what is none."""
    import pandas as pd

    numbers = pd.to_numeric(values, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    broken = np.flatnonzero(~np.isfinite(numbers))
    if len(broken):
        raise SceneError(
            f"The column {values.name!r} of {where} says where pixels are, but row "
            f"{broken[0] + 1} of it has {values.iloc[broken[0]]!r} there. Give a number."
        )
    return numbers
