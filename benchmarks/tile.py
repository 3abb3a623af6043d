"""Map a Sentinel-2 tile from Zarr to Zarr in bounded memory; compare with prediction in memory.

python -m benchmarks.tile [SIDE] [D] [FOLDER]

The image, SIDE x SIDE pixels of 13 bands, is generated once and kept in FOLDER. Prints JSON: the
rates of the predictor on pixels in memory and of the whole map, with probability and variance.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import xarray as xr

from undulatus import VFFGPC
from undulatus._system import peak_memory
from undulatus.products.maps import map_scene
from undulatus.products.memory_budget import within_memory
from undulatus.scenes.files.opening import open_scene
from undulatus.scenes.files.writing import write_dataset

BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")
CHUNK = 1_024
MEMORY_LIMIT = "2GB"
IN_MEMORY = 4_000_000
"""Pixels that the predictor is timed on."""


def make_bands(block_info: Any = None) -> np.ndarray:
    """Return one block of all bands: digital numbers of smooth fields with noise."""
    (_, _), (top, bottom), (left, right) = block_info[None]["array-location"]
    y, x = np.arange(top, bottom)[:, None] / 300.0, np.arange(left, right)[None] / 300.0
    rng = np.random.default_rng([top, left])
    field = np.sin(y) * np.cos(x) + 0.5 * np.sin(2.3 * y + x)
    bands = np.empty((len(BANDS), *field.shape), np.uint16)
    for band in range(len(BANDS)):
        noise = 150.0 * rng.standard_normal(field.shape, dtype=np.float32)
        bands[band] = np.clip(2000.0 + 900.0 * (1.0 + 0.1 * band) * field + noise, 1, 60_000)
    return bands


def make_tile(path: Path, side: int) -> None:
    """Write the image if it is missing."""
    if path.exists():
        return
    edges = da.core.normalize_chunks(CHUNK, (side,))[0]
    bands = da.map_blocks(
        make_bands, chunks=((len(BANDS),), edges, edges), dtype=np.uint16, meta=np.empty((0, 0, 0))
    )
    image = xr.DataArray(bands, dims=("band", "y", "x"), coords={"band": list(BANDS)})
    write_dataset(image.to_dataset("band"), path)


def fit(image: xr.Dataset, n_frequencies: int) -> VFFGPC:
    """Return a model fitted to a corner of the image."""
    corner = image.isel(y=slice(0, CHUNK), x=slice(0, CHUNK)).load()
    table = pd.DataFrame({name: corner[name].values.ravel()[::20] for name in BANDS})
    bright = table["B02"] + np.random.default_rng(0).normal(0.0, 300.0, len(table)) > 2200.0
    return VFFGPC(n_frequencies, n_estimators=1, random_state=0).fit(
        table.astype(np.float32), bright
    )


def measure(side: int, n_frequencies: int, folder: Path) -> dict[str, Any]:
    """Return rates, in millions of pixels a second, and peaks of memory."""
    path, output = folder / f"tile_{side}.zarr", folder / f"map_{side}_{n_frequencies}.zarr"
    make_tile(path, side)
    image = open_scene(path)
    model = fit(image, n_frequencies)
    rows = np.random.default_rng(0).normal(2000.0, 800.0, (IN_MEMORY // 8, len(BANDS)))
    rows = np.tile(rows.astype(np.float32), (8, 1))
    bare = VFFGPC(n_frequencies)
    vars(bare).update(vars(model))
    del bare.feature_names_in_
    began = time.perf_counter()
    bare.predict_proba_and_variance(rows)
    in_memory = len(rows) / (time.perf_counter() - began) / 1e6
    del rows
    before = peak_memory()
    began = time.perf_counter()
    with within_memory(MEMORY_LIMIT, image) as fitting:
        write_dataset(map_scene(model, fitting), output)
    seconds = time.perf_counter() - began
    return {
        "pixels": side**2,
        "D": n_frequencies,
        "seconds": seconds,
        "map_mpx_a_second": side**2 / seconds / 1e6,
        "in_memory_mpx_a_second": in_memory,
        "share": side**2 / seconds / 1e6 / in_memory,
        "peak_mb_before": before / 2**20,
        "peak_mb": peak_memory() / 2**20,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = dict(enumerate(sys.argv[1:]))
    where = Path(given.get(2, Path(tempfile.gettempdir()) / "undulatus_tile"))
    where.mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(int(given.get(0, 10_980)), int(given.get(1, 100)), where), indent=2))
