"""Labelled pixels of an image: from polygons, points, a raster on any grid, or a table.

:func:`read_labels` gives the row, the column, the class and the group of each labelled pixel. A
group is what belongs together, so that a whole one is held out: a polygon, or a square of the
image where there are no polygons, or what a field of the labels says.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.features
import xarray as xr
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning
from rasterio.vrt import WarpedVRT
from rasterio.windows import Window
from rasterio.windows import transform as window_transform

from undulatus._plain import plain_text
from undulatus.errors import InputError, SceneError
from undulatus.scenes.files.images import RASTERS
from undulatus.scenes.labelled_pixels import (
    Class,
    Draw,
    LabelledPixels,
    PixelGrid,
    bounds_text,
    collect,
    sort_key,
)

Array = npt.NDArray[Any]

VECTORS = (".gpkg", ".geojson", ".json", ".shp", ".fgb", ".parquet", ".geoparquet")
"""Suffixes of polygons and points, as geopandas reads them; ``.parquet`` may be a table, too."""

TABLES = (".csv", ".parquet")

LABEL_FILES = tuple(dict.fromkeys((*VECTORS, *TABLES, *RASTERS)))
"""Suffixes of files that labels are read from."""

FIELDS = ("class", "label")
"""Fields with the class, if none is named and there are several."""

PLACES = (("row", "column"), ("x", "y"), ("longitude", "latitude"), ("lon", "lat"))
"""Columns of a table that say where a pixel is: its number from zero, the image's coordinates, or
degrees."""

STRIP_PIXELS = 4_000_000
"""Pixels of a polygon or a raster that are looked at together."""

NAMED = 5
"""Features that an error names, at most."""


def read_labels(
    source: Any,
    image: xr.DataArray,
    *,
    field: str | None = None,
    group: str | None = None,
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
    all_touched : bool
        Whether a pixel is in a polygon that touches it, or only if it holds its centre.
    most : int, optional
        Draw at most so many pixels of each class at random.
    seed : int
    """
    grid = PixelGrid.of(image)
    if isinstance(source, xr.DataArray):
        found = _read_array(source, image, grid, Draw(most, seed))
    elif isinstance(source, (str, os.PathLike)):
        found = _read_file(Path(source), grid, field, group, all_touched, Draw(most, seed))
    elif hasattr(source, "geometry"):
        found = _read_features(source, grid, field, group, all_touched, Draw(most, seed), "labels")
    elif hasattr(source, "columns"):
        found = _read_table(source, grid, field, group, Draw(most, seed), "labels")
    else:
        raise InputError(
            f"Labels are a file, a GeoDataFrame, a DataFrame or a DataArray, but a "
            f"{type(source).__name__} was given."
        )
    return found


def _read_file(
    path: Path,
    grid: PixelGrid,
    field: str | None,
    group: str | None,
    all_touched: bool,
    draw: Draw,
) -> LabelledPixels:
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    suffix = path.suffix.lower()
    if suffix in RASTERS:
        return _read_raster(path, grid, draw)
    if suffix == ".csv":
        return _read_table(_read_csv(path), grid, field, group, draw, str(path))
    if suffix not in VECTORS:
        raise SceneError(
            f"{path} has a name of no known format: labels are read from {', '.join(LABEL_FILES)}."
        )
    features = _open_features(path)
    if not hasattr(features, "geometry"):
        return _read_table(features, grid, field, group, draw, str(path))
    return _read_features(features, grid, field, group, all_touched, draw, str(path))


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


def _read_csv(path: Path) -> Any:
    import pandas

    try:
        # As undulatus suggest writes texts that a spreadsheet would take for formulas.
        return pandas.read_csv(path).map(plain_text).rename(columns=plain_text)
    except (OSError, ValueError) as error:
        raise SceneError(f"{path} cannot be read as a table: {error}") from error


# Polygons and points


def _read_features(
    features: Any,
    grid: PixelGrid,
    field: str | None,
    group: str | None,
    all_touched: bool,
    draw: Draw,
    where: str,
) -> LabelledPixels:
    fields = [str(name) for name in features.columns if name != features.geometry.name]
    chosen = _find_field(fields, field, where)
    _require_field(fields, group, where)
    _require_geometries(features, where)
    labels = _as_classes(features[chosen], where, chosen)
    notes = _notes_on_labels(labels, "features")
    kept = [i for i, label in enumerate(labels) if label is not None]
    shapes = _on_grid(features.iloc[kept], grid, where).geometry
    kinds = set(shapes.geom_type)
    strange = kinds - {"Polygon", "MultiPolygon", "Point", "MultiPoint"}
    if strange:
        raise SceneError(
            f"{where} has {', '.join(sorted(strange))} features, but labels are polygons or "
            "points."
        )
    _require_overlap(shapes, grid, where)
    points = kinds <= {"Point", "MultiPoint"}
    groups = _feature_groups(features.iloc[kept], shapes, group, points)
    outside, small = 0, []
    for place, (i, shape) in enumerate(zip(kept, shapes, strict=True)):
        label = labels[i]
        assert label is not None
        number = groups.numbers[place] if groups.names else 0
        if shape.geom_type.endswith("Point"):
            count = _add_points(shape, label, number, grid, draw)
        else:
            count = _add_polygon(shape, label, number, grid, all_touched, draw)
            if count == 0 and _is_inside(shape, grid):
                small.append(i)
        outside += count == 0
    if small:
        _refuse_small(features, small, where)
    if outside:
        notes.append(f"{outside:,} features outside the image are left out")
    unit = group or ("square" if points else "polygon")
    return collect(draw, grid, groups.names, groups.bounds, unit, where, notes=notes)


def _find_field(fields: list[str], field: str | None, where: str) -> str:
    _require_field(fields, field, where)
    if field is not None:
        return field
    if len(fields) == 1:
        return fields[0]
    found = next((name for name in FIELDS if name in fields), None)
    if found is None:
        raise SceneError(
            f"Which field of {where} has the class? Found: {', '.join(fields) or 'none'}. Name it "
            f"(--field NAME, in Python field=...)."
        )
    return found


def _require_field(fields: list[str], field: str | None, where: str) -> None:
    if field is not None and field not in fields:
        raise SceneError(f"{where} has no field {field!r}. Found: {', '.join(fields) or 'none'}.")


def _require_geometries(features: Any, where: str) -> None:
    if not len(features):
        raise SceneError(f"{where} has no features. Label some, and save it again.")
    shapes = features.geometry
    empty = (shapes.isna() | shapes.is_empty).to_numpy()
    if empty.any():
        raise SceneError(
            f"{where} has {np.count_nonzero(empty)} features without geometry, such as feature "
            f"{_some(np.flatnonzero(empty))} (counted from 0). Remove them."
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


def _on_grid(features: Any, grid: PixelGrid, where: str) -> Any:
    """Return features in the coordinates of the image, or raise if that cannot be done."""
    if features.crs is None and grid.crs is not None:
        raise SceneError(
            f"{where} has no coordinate reference system, but {grid.name} is in {grid.crs}. Say "
            f"which it is in (in QGIS: Assign projection; in Python: features.set_crs(...))."
        )
    if features.crs is not None and grid.crs is None:
        raise SceneError(
            f"{grid.name} has no georeference, but {where} is in {features.crs.to_string()}, so "
            "it "
            f"cannot be told where the labels lie. Give an image with a georeference, or a table "
            f"of labels with the columns row and column."
        )
    return features if grid.crs is None else features.to_crs(grid.crs.to_wkt())


def _as_classes(column: Any, where: str, name: str) -> list[Class | None]:
    """Return the class of each feature: whole numbers or text, None where there is none."""
    raw = [None if _is_absent(value) else value for value in column.tolist()]
    present = [value for value in raw if value is not None]
    if not present:
        raise SceneError(f"The field {name!r} of {where} is empty: no feature has a class.")
    if all(isinstance(value, str) for value in present):
        return [None if value is None else value.strip() for value in raw]
    if any(isinstance(value, str) for value in present):
        raise SceneError(
            f"The field {name!r} of {where} holds both text and numbers: "
            f"{_some(sorted({repr(value) for value in present}))}. Use one of them."
        )
    if any(float(value) != int(value) for value in present):
        raise SceneError(
            f"The field {name!r} of {where} holds fractions: {_some(sorted(set(present)))}. "
            "Classes "
            f"are whole numbers or text."
        )
    return [None if value is None else int(value) for value in raw]


def _is_absent(value: Any) -> bool:
    # NaN and NaT alone differ from themselves; pandas' NA cannot be compared.
    if value is None or type(value).__name__ == "NAType":
        return True
    return bool(value != value) or (isinstance(value, str) and not value.strip())


def _notes_on_labels(labels: list[Class | None], what: str) -> list[str]:
    absent = sum(label is None for label in labels)
    return [f"{absent:,} {what} without a class are left out"] if absent else []


def _require_overlap(shapes: Any, grid: PixelGrid, where: str) -> None:
    west, south, east, north = shapes.total_bounds
    own = grid.bounds
    if east < own[0] or west > own[2] or north < own[1] or south > own[3]:
        raise SceneError(
            f"The labels do not overlap the image. Give labels of the same place, and see whether "
            f"both have the coordinate reference system that they are in.\n"
            f"  {where}: {bounds_text((west, south, east, north))}\n"
            f"  {grid.name}: {bounds_text(own)}"
            + ("" if grid.crs is None else f"\n  both in {grid.crs}")
        )


@dataclass(frozen=True)
class _Groups:
    """The groups of features: the number of each feature's, names, and bounds by number."""

    numbers: Array
    names: list[str]
    bounds: list[Any]


def _feature_groups(features: Any, shapes: Any, group: str | None, points: bool) -> _Groups:
    """Return groups by a field, or of each polygon; points without a field have none yet.

    ``features`` are in their own coordinates, ``shapes`` in those of the image.
    """
    if group is None and points:
        return _Groups(np.empty(0, np.int64), [], [])
    if group is None:
        # By its own coordinates, a polygon is known again in other images.
        keys = [f"polygon {_digest(shape)}" for shape in features.geometry]
    else:
        keys = [f"{group}={value}" for value in features[group].tolist()]
    names, numbers = np.unique(np.array(keys), return_inverse=True)
    boxes = shapes.bounds.to_numpy()
    bounds = [
        (*boxes[numbers == i, :2].min(axis=0), *boxes[numbers == i, 2:].max(axis=0))
        for i in range(len(names))
    ]
    return _Groups(numbers, [str(name) for name in names], bounds)


def _digest(shape: Any) -> str:
    # Formats differ in the order of rings and in the last digits of coordinates.
    text = ",".join(f"{value:.7g}" for value in (*shape.bounds, shape.area))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _add_points(shape: Any, label: Class, number: int, grid: PixelGrid, draw: Draw) -> int:
    points = getattr(shape, "geoms", [shape])
    row, column = grid.pixel_at(
        np.array([point.x for point in points]), np.array([point.y for point in points])
    )
    inside = grid.holds(row, column)
    if inside.any():
        draw.add(label, (row * grid.shape[1] + column)[inside], number)
    return int(np.count_nonzero(inside))


def _add_polygon(
    shape: Any, label: Class, number: int, grid: PixelGrid, all_touched: bool, draw: Draw
) -> int:
    top, bottom, left, right = grid.window(shape.bounds)
    if top >= bottom or left >= right:
        return 0
    added = 0
    for window in _strips(top, bottom, left, right):
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


def _strips(top: int, bottom: int, left: int, right: int) -> Iterator[Window]:
    rows = max(1, STRIP_PIXELS // (right - left))
    for first in range(top, bottom, rows):
        yield Window(left, first, right - left, min(rows, bottom - first))


def _is_inside(shape: Any, grid: PixelGrid) -> bool:
    west, south, east, north = shape.bounds
    own = grid.bounds
    return bool(west >= own[0] and east <= own[2] and south >= own[1] and north <= own[3])


def _refuse_small(features: Any, small: list[int], where: str) -> None:
    raise SceneError(
        f"{len(small)} polygons of {where} hold no centre of a pixel, such as feature "
        f"{_some(small)}: they are smaller than a pixel.\nDraw them larger, or take every pixel "
        f"that a polygon touches (--all-touched, in Python all_touched=True)."
    )


# Rasters


def _read_raster(path: Path, grid: PixelGrid, draw: Draw) -> LabelledPixels:
    try:
        with _quietly_opened(path) as file:
            if file.count > 1:
                raise SceneError(
                    f"{path} has {file.count} bands, but a raster of labels has one, the class of "
                    f"each pixel. Is it the image?"
                )
            if file.dtypes[0].startswith(("float", "complex")):
                raise SceneError(
                    f"{path} is of type {file.dtypes[0]}, but labels are whole numbers."
                )
            names = _flag_names(file.tags() | file.tags(1))
            nodata = file.nodata
            with _same_grid(file, grid, path) as labels:
                for window in _strips(0, grid.shape[0], 0, grid.shape[1]):
                    known = labels.dataset_mask(window=window) > 0
                    _add_codes(labels.read(1, window=window), known, window, grid, draw)
    except (rasterio.errors.RasterioError, OSError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    notes = _notes_on_codes(draw.counts, nodata, path)
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


def _quietly_opened(path: Path) -> Any:
    with warnings.catch_warnings():
        # That both lack a georeference is no reason to warn.
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        return rasterio.open(path)


def _same_grid(file: Any, grid: PixelGrid, path: Path) -> Any:
    """Return a raster on the grid of the image, as nearest pixels."""
    same = file.shape == grid.shape
    if file.crs is None and grid.crs is None and same:
        return file
    if file.crs is None or grid.crs is None:
        lacking, other = (path, grid.name) if file.crs is None else (grid.name, path)
        if same:
            return file
        raise SceneError(
            f"{lacking} has no georeference, and other rows and columns than {other}, so it "
            "cannot "
            f"be told where the labels lie. Give both a coordinate reference system."
        )
    # What lies outside has no label, even if the file itself has no nodata.
    return WarpedVRT(
        file,
        crs=grid.crs,
        transform=grid.transform,
        height=grid.shape[0],
        width=grid.shape[1],
        resampling=Resampling.nearest,
        **({"add_alpha": True} if file.nodata is None else {}),
    )


def _add_codes(codes: Array, known: Array, window: Window, grid: PixelGrid, draw: Draw) -> None:
    for value in np.unique(codes[known]).tolist():
        row, column = np.nonzero(known & (codes == value))
        index = (row + window.row_off) * grid.shape[1] + column + window.col_off
        draw.add(int(value), index, 0)


def _flag_names(attrs: Any) -> dict[Class, str]:
    """Return names of codes, as CF's ``flag_values`` and ``flag_meanings`` give them."""
    values, meanings = attrs.get("flag_values", ()), str(attrs.get("flag_meanings", "")).split()
    listed = values.split() if isinstance(values, str) else np.atleast_1d(values).tolist()
    return {int(float(value)): name for value, name in zip(listed, meanings, strict=False)}


def _read_array(
    labels: xr.DataArray, image: xr.DataArray, grid: PixelGrid, draw: Draw
) -> LabelledPixels:
    """Read labels that are open already: on the image's own grid, or on one that is known."""
    plane = labels.squeeze(drop=True)
    if plane.ndim != 2:
        raise SceneError(f"Labels are one value a pixel, (y, x), but these have {labels.dims}.")
    if plane.shape != grid.shape:
        if plane.rio.crs is None or grid.crs is None:
            raise SceneError(
                f"The labels have {plane.shape[0]} x {plane.shape[1]} pixels, the image has "
                f"{grid.shape[0]} x {grid.shape[1]}, and not both have a coordinate reference "
                "system."
            )
        plane = plane.rio.reproject_match(image, resampling=Resampling.nearest)
    marks = {plane.attrs.get(name) for name in ("_FillValue", "missing_value", "nodata")}
    marks |= {plane.rio.nodata, plane.encoding.get("_FillValue")}
    values = np.asarray(plane.values)
    known = np.isfinite(values) if values.dtype.kind == "f" else np.ones(values.shape, bool)
    for mark in marks - {None}:
        known &= values != mark
    if values.dtype.kind == "f" and np.any(values[known] != np.rint(values[known])):
        raise SceneError("The labels hold fractions, but classes are whole numbers.")
    codes = np.where(known, values, 0).astype(np.int64)
    for value in np.unique(codes[known]).tolist():
        draw.add(int(value), np.flatnonzero(known & (codes == value)), 0)
    where = f"{labels.name or 'the labels'}"
    return collect(draw, grid, [], [], "square", where, names=_flag_names(labels.attrs))


# Tables


def _read_table(
    table: Any, grid: PixelGrid, field: str | None, group: str | None, draw: Draw, where: str
) -> LabelledPixels:
    columns = [str(name) for name in table.columns]
    place = next((pair for pair in PLACES if set(pair) <= set(columns)), None)
    if place is None:
        raise SceneError(
            f"{where} does not say where its pixels are. Found: {', '.join(columns)}. Give the "
            f"columns row and column (from zero), x and y (as the image's coordinates), or "
            f"longitude and latitude."
        )
    chosen = _find_field([name for name in columns if name not in place], field, where)
    _require_field(columns, group, where)
    labels = _as_classes(table[chosen], where, chosen)
    notes = _notes_on_labels(labels, "rows")
    row, column = _places(table, place, grid, where)
    inside = grid.holds(row, column)
    if not inside.any():
        raise SceneError(
            f"No row of {where} lies in {grid.name}, whose bounds are {grid.bounds_text()} "
            f"and whose size is {grid.shape[0]} rows x {grid.shape[1]} columns."
        )
    if not inside.all():
        notes.append(f"{np.count_nonzero(~inside):,} rows outside the image are left out")
    known = inside & np.array([label is not None for label in labels])
    row, column, numbers = row[known], column[known], np.zeros(np.count_nonzero(known), np.int64)
    names: list[str] = []
    bounds: list[Any] = []
    if group is not None:
        values, numbers = np.unique(table[group][known].astype(str), return_inverse=True)
        names = [f"{group}={value}" for value in values]
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
    return collect(draw, grid, names, bounds, group or "square", where, notes=notes)


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
    if place == ("x", "y"):
        return grid.pixel_at(first, second)
    if grid.crs is None:
        raise SceneError(
            f"{where} has {place[0]} and {place[1]}, but {grid.name} has no georeference. Give "
            f"the columns row and column."
        )
    from pyproj import Transformer

    transformer = Transformer.from_crs("EPSG:4326", grid.crs.to_wkt(), always_xy=True)
    return grid.pixel_at(*transformer.transform(first, second))


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


def _some(values: Any) -> str:
    listed = [str(value) for value in values]
    return ", ".join(listed[:NAMED]) + (", ..." if len(listed) > NAMED else "")
