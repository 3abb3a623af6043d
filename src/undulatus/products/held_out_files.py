"""Labels that a fit held out, in a file of their own: to score other models on, elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from undulatus._files import replacing
from undulatus._plain import cell_text
from undulatus.errors import InputError, SceneError
from undulatus.products.image_pixels import LabelSource

DRIVERS = {".gpkg": "GPKG", ".geojson": "GeoJSON", ".fgb": "FlatGeobuf"}
"""What writes polygons and points, by suffix."""


def require_writable(path: Path, sources: Sequence[LabelSource]) -> None:
    """Raise if labels cannot be written to a path: by its suffix, or since they are a raster."""
    if not sources:
        raise SceneError(
            "Labels in a raster are held out in squares of the image, so there are no polygons, "
            "points or rows to write to a file."
        )
    located = all(hasattr(source.features, "geometry") for source in sources)
    suffixes = (*DRIVERS, ".parquet") if located else (".csv", ".parquet")
    if path.suffix.lower() not in suffixes:
        kind = "Polygons and points" if located else "Rows of a table"
        raise InputError(
            f"{kind} that are held out are written to {', '.join(suffixes)}, but not to {path}."
        )


def write_held_out(path: Path, sources: Sequence[LabelSource], groups: set[str]) -> None:
    """Write the polygons, points or rows of the groups that are held out, once each."""
    parts: dict[str, list[Any]] = {}
    for source in sources:
        rows = source.features[[group in groups for group in source.groups]]
        parts.setdefault(source.name, []).append(rows)
    kept = []
    for own in parts.values():
        # Of several images, each sees the labels anew.
        rows = pd.concat(own)
        shapes = rows.geometry.to_wkb() if hasattr(rows, "geometry") else ""
        kept.append(rows[~pd.DataFrame({"row": rows.index, "shape": shapes}).duplicated().values])
    held, suffix = pd.concat(kept), path.suffix.lower()
    with replacing(path) as unfinished, warnings.catch_warnings():
        # Labels without a coordinate reference system are written as they are.
        warnings.filterwarnings("ignore", "'crs' was not provided")
        if suffix == ".csv":
            held.map(cell_text).rename(columns=cell_text).to_csv(unfinished, index=False)
        elif suffix == ".parquet":
            held.to_parquet(unfinished, index=False)
        else:
            held.to_file(unfinished, driver=DRIVERS[suffix], layer=path.stem)
