"""Sentinel-2 Level-1C and Level-2A products: SAFE folders as reflectances on the 10 m grid.

Reflectance is (number + offset) / quantification value. Since processing baseline 04.00 (January
2022) the offset is -1000 in most bands, before it was none; both are read from the product's own
metadata, so that images of all baselines are on one scale.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import rioxarray
import xarray as xr

from undulatus.errors import SceneError, unreadable

Array = npt.NDArray[Any]

BANDS = (
    "B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12",
)  # fmt: skip
"""The bands in the order of their ``bandId`` in the metadata."""

CHUNKS = {"y": 2048, "x": 2048}
"""Rows and columns of a band that are read at a time, as in its file, or several of them."""

BLOCK = 1098
"""Rows and columns of a block at 10 m: whole pixels at 20 m and 60 m, a tenth of a tile."""

NO_DATA = 0
"""The number of pixels that were not measured, in every baseline."""


def recognises(path: Path) -> bool:
    """Return whether a folder is a Sentinel-2 product."""
    return path.is_dir() and _metadata_file(path) is not None


def _metadata_file(folder: Path) -> Path | None:
    return next(iter(sorted(folder.glob("MTD_MSIL*.xml"))), None)


def open_folder(folder: Path) -> xr.DataArray:
    """Open a SAFE folder as reflectances, (band, y, x) float32, lazy, on the grid of 10 m.

    Bands of 20 m and 60 m are repeated, pixel by pixel. Level-2A has no B10. Pixels that were not
    measured are NaN.
    """
    metadata = _metadata_file(folder)
    assert metadata is not None
    scale, offsets, baseline, platform = _read_metadata(metadata)
    files = _band_files(folder)
    if "B02" not in files:
        raise SceneError(
            f"{folder} lacks the image of band B02, whose grid of 10 m is needed. Found: "
            f"{', '.join(files) or 'no band'}. Fetch the product again."
        )
    reference = _open_band(files["B02"])
    bands, names = [], []
    for name in (band for band in BANDS if band in files):
        data = _on_grid(_open_band(files[name]), reference.shape, files[name])
        bands.append(_reflectance(data, scale, offsets.get(name, 0.0)))
        names.append(name)
    image = xr.DataArray(
        da.stack(bands),
        dims=("band", "y", "x"),
        coords={
            "band": np.array(names, object),
            **{name: c for name, c in reference.coords.items() if name != "band"},
        },
        attrs={
            "units": "1",
            "platform_name": platform,
            "sentinel2_baseline": baseline,
            "long_name": tuple(names),
        },
    )
    return image.chunk({"band": -1})


def _read_metadata(path: Path) -> tuple[float, dict[str, float], str, str]:
    """Return the quantification value, the offset of each band, the baseline and the platform."""
    try:
        root = ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, OSError) as error:
        raise unreadable(path, error, ". Fetch the product again.") from error

    def text(*tags: str) -> str | None:
        return next((e.text for tag in tags for e in root.iter(tag) if e.text), None)

    scale = text("QUANTIFICATION_VALUE", "BOA_QUANTIFICATION_VALUE")
    baseline = text("PROCESSING_BASELINE")
    if scale is None or baseline is None:
        raise SceneError(
            f"{path} says neither how reflectances are scaled nor by which baseline the product "
            f"was made. It is not the metadata of a Sentinel-2 product, or damaged."
        )
    offsets = {
        BANDS[int(element.attrib["band_id"])]: float(element.text or 0.0)
        for tag in ("RADIO_ADD_OFFSET", "BOA_ADD_OFFSET")
        for element in root.iter(tag)
    }
    if not offsets and float(baseline) >= 4.0:
        raise SceneError(
            f"{path} is of baseline {baseline}, which has an offset, but does not say which. "
            "Fetch "
            f"the product again."
        )
    return float(scale), offsets, baseline, text("SPACECRAFT_NAME") or "Sentinel-2"


def _band_files(folder: Path) -> dict[str, Path]:
    """Return the finest image of each band."""
    found: dict[str, tuple[int, Path]] = {}
    for path in sorted(folder.glob("GRANULE/*/IMG_DATA/**/*.jp2")):
        match = re.search(r"_(B\d[\dA])(?:_(\d\d)m)?$", path.stem)
        if match is None:
            continue
        resolution = int(match[2] or 0)
        if match[1] not in found or resolution < found[match[1]][0]:
            found[match[1]] = (resolution, path)
    return {name: path for name, (_, path) in found.items()}


def _open_band(path: Path) -> xr.DataArray:
    try:
        opened = rioxarray.open_rasterio(path, chunks=CHUNKS)
    except (OSError, ValueError) as error:
        raise unreadable(path, error, ". Fetch the product again.") from error
    assert isinstance(opened, xr.DataArray)
    return opened.isel(band=0, drop=True)


def _on_grid(band: xr.DataArray, shape: tuple[int, ...], path: Path) -> da.Array:
    """Return a band on the finest grid: each of its pixels repeated."""
    factor = shape[0] // band.shape[0]
    if factor < 1 or tuple(factor * size for size in band.shape) != shape:
        raise SceneError(
            f"{path} has {band.shape[0]} x {band.shape[1]} pixels, which do not divide the grid "
            f"of {shape[0]} x {shape[1]}. Fetch the product again."
        )
    # Blocks of the coarse grid under one block of the fine one.
    coarse = band.data.rechunk(max(1, BLOCK // factor))
    if factor == 1:
        return coarse
    fine = tuple(tuple(factor * size for size in sizes) for sizes in coarse.chunks)
    repeated = da.map_blocks(_repeat, coarse, factor=factor, chunks=fine, dtype=coarse.dtype)
    return repeated.rechunk(BLOCK)


def _repeat(block: Array, factor: int) -> Array:
    return np.asarray(block.repeat(factor, axis=0).repeat(factor, axis=1))


def _reflectance(numbers: da.Array, scale: float, offset: float) -> da.Array:
    values = (numbers.astype(np.float32) + np.float32(offset)) / np.float32(scale)
    return da.where(numbers == NO_DATA, np.float32(np.nan), values)
