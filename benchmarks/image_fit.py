"""Time and memory of a fit to polygons of a large image, beside those of the classifier itself.

python -m benchmarks.image_fit [SIDE] [POLYGONS] [FOLDER]

The image, SIDE x SIDE pixels of the 13 bands of the Sentinel-2 image repeated (uint16, tiles of
512, deflate), is made once and kept in FOLDER: 2 GB for 10,980. The classifier is RFF-GPC with few
frequencies; what is measured is opening, finding the labelled pixels and reading them. Prints
JSON.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import rasterio
import shapely
from rasterio.windows import Window

from undulatus import RFFGPC, datasets
from undulatus._system import peak_memory
from undulatus.products.images import fit_image

Array = np.ndarray[Any, Any]

TILE = 512
PIXEL = 10.0
"""Metres."""


def make_image(path: Path, side: int) -> None:
    """Write the image if it is missing."""
    if path.exists():
        return
    data = datasets.load_sentinel2_clouds()
    height, width = data.shape
    numbers = np.clip(np.rint(10_000.0 * data.X), 1, 65_535).astype(np.uint16)
    image = numbers.reshape(height, width, -1).transpose(2, 0, 1)
    columns = np.arange(side) % width
    with rasterio.open(
        path, "w", driver="GTiff", width=side, height=side, count=len(image), dtype="uint16",
        nodata=0, crs="EPSG:32632", transform=rasterio.Affine(PIXEL, 0, 5e5, 0, -PIXEL, 5.2e6),
        tiled=True, blockxsize=TILE, blockysize=TILE, compress="deflate", zlevel=1, predictor=2,
        bigtiff="yes",
    ) as file:  # fmt: skip
        file.descriptions = tuple(data.feature_names)
        file.scales = (1e-4,) * len(image)
        for top in range(0, side, TILE):
            rows = np.arange(top, min(top + TILE, side)) % height
            strip = image[:, rows][:, :, columns]
            file.write(strip, window=Window(0, top, side, len(rows)))


def make_polygons(side: int, count: int) -> geopandas.GeoDataFrame:
    """Return squares of 20 to 60 pixels anywhere, of three classes."""
    rng = np.random.default_rng(0)
    width = PIXEL * rng.integers(20, 60, count)
    west = 5e5 + PIXEL * rng.integers(0, side - 60, count)
    north = 5.2e6 - PIXEL * rng.integers(0, side - 60, count)
    shapes = shapely.box(west, north - width, west + width, north)
    names = np.array(["a", "b", "c"])[np.arange(count) % 3]
    return geopandas.GeoDataFrame({"class": names}, geometry=shapes, crs="EPSG:32632")


def measure(path: Path, polygons: geopandas.GeoDataFrame) -> dict[str, Any]:
    """Return seconds beside those of the classifier, and the peak of memory before it."""
    found: dict[str, Any] = {"peak_mb_at_start": peak_memory() / 2**20}
    plain = RFFGPC.fit

    def timed(self: RFFGPC, *arguments: Any, **options: Any) -> RFFGPC:
        found["peak_mb"] = peak_memory() / 2**20
        began = time.perf_counter()
        plain(self, *arguments, **options)
        found["classifier_seconds"] = time.perf_counter() - began
        return self

    RFFGPC.fit = timed  # type: ignore[method-assign]
    began = time.perf_counter()
    model = fit_image(path, polygons, method="rff", n_frequencies=10, n_estimators=1)
    seconds = time.perf_counter() - began
    RFFGPC.fit = plain  # type: ignore[method-assign]
    found["training_pixels"] = sum(model.provenance_["training_pixels"].values())
    return found | {"seconds_beside": seconds - found["classifier_seconds"]}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = dict(enumerate(sys.argv[1:]))
    folder = Path(given.get(2, Path(tempfile.gettempdir()) / "undulatus_image"))
    folder.mkdir(parents=True, exist_ok=True)
    side, count = int(given.get(0, 10_980)), int(given.get(1, 200))
    make_image(folder / f"image_{side}.tif", side)
    print(json.dumps(measure(folder / f"image_{side}.tif", make_polygons(side, count)), indent=2))
