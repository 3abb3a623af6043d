"""Build the pages of a map of one image, a whole Sentinel-2 tile, and open them in Chromium.

python -m benchmarks.browse_image [SIDE] [FOLDER] [OPTIONS OF undulatus browse ...]

The image, SIDE x SIDE pixels of 13 bands, and a map of it with three classes are generated once
and kept in FOLDER. Prints JSON: time, peak of memory and size of the pages, and the time until
Chromium shows them (if it and selenium are installed).
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import psutil
import rioxarray  # noqa: F401 (gives datasets their .rio)
import xarray as xr

from benchmarks.tile import BANDS, make_bands
from undulatus.scenes.files.writing import write_dataset

CHUNK = 1_024

CLASSES = ("water", "land", "cloud")

OPENING_SECONDS = 60
"""How long to wait for the page."""

PIXELS = ("y", "x")


def make_image(path: Path, side: int) -> None:
    """Write the image as a tiled GeoTIFF of digital numbers."""
    import rasterio
    from rasterio.windows import Window

    profile = {
        **{"driver": "GTiff", "height": side, "width": side, "count": len(BANDS)},
        **{"dtype": "uint16", "nodata": 0, "tiled": True, "blockxsize": 512, "blockysize": 512},
        **{"compress": "deflate", "predictor": 2, "zlevel": 1, "num_threads": "all_cpus"},
        **{"crs": "EPSG:32630", "transform": rasterio.Affine(10, 0, 399_960, 0, -10, 4_500_000)},
    }
    with rasterio.open(path, "w", **profile, BIGTIFF="YES") as file:
        file.descriptions = BANDS
        for top, left in np.ndindex(*(-(-side // CHUNK),) * 2):
            rows = (top * CHUNK, min(side, (top + 1) * CHUNK))
            columns = (left * CHUNK, min(side, (left + 1) * CHUNK))
            block = make_bands({None: {"array-location": [(0, len(BANDS)), rows, columns]}})
            window = Window(columns[0], rows[0], columns[1] - columns[0], rows[1] - rows[0])
            file.write(block, window=window)


def make_predictions(block_info: Any = None) -> np.ndarray:
    """Return one block of probabilities, variances, entropy and distance, (8, y, x)."""
    _, (top, bottom), (left, right) = block_info[None]["array-location"]
    y, x = np.arange(top, bottom)[:, None] / 90.0, np.arange(left, right)[None] / 90.0
    rng = np.random.default_rng([top, left])
    noise = rng.standard_normal((3, bottom - top, right - left), dtype=np.float32)
    latent = np.stack([np.sin(y) + np.cos(x), np.sin(y + x), 1.5 * np.cos(0.7 * y - x)])
    latent = 3.0 * latent.astype(np.float32) + 0.5 * noise
    p = np.exp(latent - latent.max(axis=0))
    p /= p.sum(axis=0)
    variance = 0.02 + 0.3 * p * (1.0 - p) + 0.01 * noise**2
    entropy = -np.sum(p * np.log(np.maximum(p, 1e-30)), axis=0)
    distance = np.maximum(0.0, np.abs(latent[0]) - 6.5)
    return np.concatenate([p, variance, [entropy, distance]]).astype(np.float32)


def make_map(path: Path, side: int, image: Path) -> None:
    """Write the map as ``undulatus map`` does."""
    edges = da.core.normalize_chunks(CHUNK, (side,))[0]
    values = da.map_blocks(
        make_predictions, chunks=((8,), edges, edges), dtype=np.float32, meta=np.empty((0, 0, 0))
    )
    dims = {"coords": {"class_name": list(CLASSES)}, "dims": ("class_name", "y", "x")}
    codes = da.argmax(values[:3], axis=0).astype(np.uint8)
    quality = ((values[:3].max(axis=0) < 0.8) + 2 * (values[7] > 0.0)).astype(np.uint8)
    flags = {"flag_values": np.arange(3, dtype=np.uint8), "flag_meanings": " ".join(CLASSES)}
    colours = {"flag_colors": "#0072b2 #c8a165 #f7f7f7", "_FillValue": np.uint8(255)}
    axis = 10.0 * np.arange(side) + 5.0
    maps = xr.Dataset(
        {
            "class": (PIXELS, codes, flags | colours),
            "class_probability": xr.DataArray(values[:3], **dims),
            "class_latent_variance": xr.DataArray(values[3:6], **dims),
            "class_entropy": (PIXELS, values[6]),
            "class_training_distance": (PIXELS, values[7]),
            "quality_flag": (PIXELS, quality),
        },
        coords={"y": 4_500_000.0 - axis, "x": 399_960.0 + axis},
        attrs={"scene": str(image)},
    )
    write_dataset(maps.rio.write_crs("EPSG:32630"), path)


def build(command: list[str]) -> tuple[float, float, float]:
    """Run a command; return its seconds, those of its CPU, and its peak of resident bytes."""
    began, peak = time.perf_counter(), 0.0
    process = psutil.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None:
        with suppress(psutil.Error):
            peak = max(peak, process.memory_info().rss)
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(process.returncode)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, usage.ru_utime + usage.ru_stime, peak


def opening_seconds(page: Path) -> float | None:
    """Return the seconds until Chromium shows all panes; None without it."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and driver):
        return None
    from selenium import webdriver
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for argument in ("--headless=new", "--no-sandbox", "--window-size=1280,900"):
        options.add_argument(argument)
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        began = time.perf_counter()
        chrome.get(page.as_uri())
        WebDriverWait(chrome, OPENING_SECONDS, 0.01).until(
            lambda _: chrome.execute_script("return document.body.dataset.shown")
        )
        return time.perf_counter() - began
    finally:
        chrome.quit()


def measure(side: int, folder: Path, options: list[str]) -> dict[str, Any]:
    """Return what the pages take."""
    image, maps, site = (folder / f"{name}_{side}" for name in ("image", "map", "site"))
    image, maps = image.with_suffix(".tif"), maps.with_suffix(".tif")
    if not image.exists():
        make_image(image, side)
    if not maps.exists():
        make_map(maps, side, image)
    shutil.rmtree(site, ignore_errors=True)
    command = [sys.executable, "-m", "undulatus.cli", "browse", str(maps), "-o", str(site)]
    seconds, cpu_seconds, peak = build([*command, *options])
    files = [path for path in site.rglob("*") if path.is_file()]
    return {
        "pixels": side**2,
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "peak_mb": round(peak / 2**20),
        "files": len(files),
        "site_mb": round(sum(path.stat().st_size for path in files) / 2**20),
        "opening_seconds": opening_seconds(site / "index.html"),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = sys.argv[1:]
    where = Path(given[1] if len(given) > 1 else Path(tempfile.gettempdir()) / "undulatus_browse")
    where.mkdir(parents=True, exist_ok=True)
    print(json.dumps(measure(int(given[0]) if given else 10_980, where, given[2:]), indent=2))
