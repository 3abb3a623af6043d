"""Images to cloud-optimised GeoTIFF, a row of chunks at a time, and checked by reading back.

GDAL makes such a file only from another that is whole. So rows of chunks are computed one after
the other, each by all workers, and one writer puts them into plain tiles beside the output. From
these tiles the file is made, and compared with what was computed.
"""

from __future__ import annotations

import itertools
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import rasterio
import rasterio.shutil
import rioxarray  # noqa: F401 (gives datasets their .rio)
import xarray as xr
from affine import Affine
from rasterio._err import CPLE_BaseError
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.windows import Window

from undulatus._files import (
    WritingError,
    as_reading_errors,
    as_writing_errors,
    remove,
    require_space,
)
from undulatus.errors import SceneError
from undulatus.scenes.files.writing import Progress, computing_in_threads

TILE = 512
"""Pixels along a side of a tile."""

MOST_UNEVEN = 0.05
"""Coordinates may deviate from a regular grid by this part of a pixel."""

GDAL_ERRORS = (RasterioError, CPLE_BaseError)
"""What rasterio raises, besides errors of the system."""


def write_geotiff(dataset: xr.Dataset, path: Path, unfinished: Path, progress: Progress) -> None:
    """Write the variables of a dataset as bands of a cloud-optimised GeoTIFF.

    All bands are float32, with NaN for what is missing: fill values of codes become NaN too.
    A band's description is the variable's name, and its tags are the attributes: units, long
    name, values and meanings of flags. North is up and west is left, whatever the order of the
    coordinates ``y`` and ``x``, which must be regular; without them, or without a projection in
    ``spatial_ref``, the file has none either. Of the other coordinates only ``time`` is kept, as
    a tag. Overviews hold nearest pixels, since codes have no mean. Memory holds a row of chunks
    and GDAL's cache, a twentieth of the machine's memory unless ``GDAL_CACHEMAX`` is set.

    Parameters
    ----------
    dataset : Dataset
        Variables (y, x), or (time, y, x) with one time: integers of up to 16 bits, or floats,
        which are rounded to single precision.
    path, unfinished : path
        The output's name, for error messages, and the name to write to.
    progress : callable
        Called with the number of rows of chunks that are written, and of all rows.
    """
    image = _as_image(dataset, path)
    bands, (height, width) = len(image.data_vars), (image.sizes["y"], image.sizes["x"])
    profile = {
        "driver": "GTiff",
        "dtype": "float32",
        "nodata": np.nan,
        "count": bands,
        "height": height,
        "width": width,
        "tiled": True,
        "blockxsize": TILE,
        "blockysize": TILE,
        "BIGTIFF": "IF_SAFER",
        **_georeference(image, path),
    }
    # The plain tiles, the file, and its overviews, which are a third of it.
    require_space(path, bands * height * width * 4 * 7 // 3)
    scratch = unfinished.with_suffix(".scratch")
    remove(scratch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        try:
            scratch.mkdir()
            checks = _write_tiles(image, scratch / "tiles.tif", profile, progress)
            _make_cloud_optimised(scratch / "tiles.tif", scratch / "image.tif", checks)
            (scratch / "image.tif").rename(unfinished)
        finally:
            remove(scratch)


def _as_image(dataset: xr.Dataset, path: Path) -> xr.Dataset:
    """Return the dataset as bands (y, x) whose first pixel is the north-western one."""
    if dataset.sizes.get("time", 1) > 1:
        raise SceneError(
            f"{path} can hold one time, but the dataset has {dataset.sizes['time']}. "
            f"Choose one (dataset.isel(time=0)), or write a .zarr or a .nc."
        )
    image = dataset.isel(time=0) if "time" in dataset.dims else dataset
    image = image.set_coords({"spatial_ref"} & set(image.data_vars))
    for name, variable in image.data_vars.items():
        if set(variable.dims) != {"y", "x"} or not variable.size:
            raise SceneError(
                f"{name} is not an image (y, x): it has {dict(variable.sizes)}. "
                f"Drop it, or write a .zarr or a .nc."
            )
        kind, size = variable.dtype.kind, variable.dtype.itemsize
        if kind not in "buif" or (kind in "ui" and size > 2):
            raise SceneError(
                f"{name} is of type {variable.dtype}, which bands of float32 cannot hold. "
                f"Drop or convert it, or write a .zarr or a .nc."
            )
    if not image.data_vars:
        raise SceneError(
            f"There is no image to write to {path}: the dataset has only coordinates."
        )
    image = image.transpose("y", "x", ...)
    for dim, goes_up in (("y", False), ("x", True)):
        if dim in image.coords and (image[dim].values[-1] > image[dim].values[0]) != goes_up:
            image = image.isel({dim: slice(None, None, -1)})
    return image


def _georeference(image: xr.Dataset, path: Path) -> dict[str, Any]:
    if not {"y", "x"} <= set(image.coords):
        return {}
    try:
        crs = image.rio.crs
    except (ValueError, RuntimeError):
        crs = None
    if crs is None and set(image.rio.grid_mapping.split()) & set(image.coords):
        raise SceneError(
            f"{path} cannot have the projection that {image.rio.grid_mapping} describes, since it "
            f"is not a known one. Correct its attributes, or drop it to write without projection."
        )
    across, down = (_step(image[dim].values, dim, path) for dim in ("x", "y"))
    across = across or abs(down) or 1.0
    down = down or -across
    west = float(image["x"][0]) - across / 2
    north = float(image["y"][0]) - down / 2
    return {"crs": crs, "transform": Affine(across, 0.0, west, 0.0, down, north)}


def _step(centres: npt.NDArray[Any], dim: str, path: Path) -> float:
    """Return the size of a pixel, or zero if there is only one."""
    if len(centres) == 1:
        return 0.0
    regular, step = np.linspace(centres[0], centres[-1], len(centres), retstep=True)
    if not np.abs(centres - regular).max() <= MOST_UNEVEN * abs(step):
        raise SceneError(
            f"{path} needs pixels of one size, but the coordinate {dim} is not regular. "
            f"Resample, drop {dim}, or write a .zarr or a .nc."
        )
    return float(step)


def _strips(image: xr.Dataset) -> list[slice]:
    """Return the rows to compute together, so that no chunk is computed twice."""
    height = image.sizes["y"]
    ends = [
        set(itertools.accumulate(array.chunksizes["y"]))
        for array in image.data_vars.values()
        if array.chunks is not None
    ]
    edges = sorted(set.intersection(*ends)) if ends else [*range(TILE, height, TILE), height]
    return [slice(start, stop) for start, stop in itertools.pairwise([0, *edges])]


def _write_tiles(
    image: xr.Dataset, tiles: Path, profile: dict[str, Any], progress: Progress
) -> list[int]:
    """Compute and write all bands; return the checksum of each."""
    checks = [0] * len(image.data_vars)
    strips = _strips(image)
    with as_writing_errors(*GDAL_ERRORS):
        target = rasterio.open(tiles, "w", **profile)
    try:
        _label(target, image)
        with computing_in_threads():
            for done, rows in enumerate(strips, 1):
                with as_reading_errors():
                    strip = image.isel(y=rows).compute()
                window = Window(0, rows.start, image.sizes["x"], rows.stop - rows.start)
                for band, variable in enumerate(strip.data_vars.values(), 1):
                    values = _floats(variable)
                    checks[band - 1] = zlib.crc32(values.data, checks[band - 1])
                    with as_writing_errors(*GDAL_ERRORS):
                        target.write(values, band, window=window)
                progress(done, len(strips))
    finally:
        with as_writing_errors(*GDAL_ERRORS):
            target.close()
    return checks


def _floats(array: xr.DataArray) -> npt.NDArray[np.float32]:
    values = array.values.astype(np.float32)
    fill = array.encoding.get("_FillValue")
    if fill is not None:
        values[array.values == fill] = np.nan
    return np.ascontiguousarray(values)


def _label(target: Any, image: xr.Dataset) -> None:
    arrays = image.data_vars
    target.descriptions = tuple(str(name) for name in arrays)
    target.units = tuple(str(array.attrs.get("units", "")) for array in arrays.values())
    for band, array in enumerate(arrays.values(), 1):
        target.update_tags(band, **{key: _text(value) for key, value in array.attrs.items()})
    tags = {str(key): _text(value) for key, value in image.attrs.items()}
    if "time" in image.coords and image["time"].dtype.kind == "M":
        tags["time"] = str(image["time"].values.astype("datetime64[s]"))
        tags["TIFFTAG_DATETIME"] = tags["time"].replace("-", ":").replace("T", " ")
    target.update_tags(**tags)


def _text(value: Any) -> str:
    """Return an attribute as text; a list as CF writes flag meanings, with spaces."""
    return " ".join(map(str, value)) if isinstance(value, (list, np.ndarray)) else str(value)


def _make_cloud_optimised(tiles: Path, result: Path, checks: list[int]) -> None:
    """Make the final file from tiles, and read it back: GDAL does not report every failure."""
    with as_writing_errors(*GDAL_ERRORS):
        rasterio.shutil.copy(
            tiles,
            result,
            driver="COG",
            COMPRESS="DEFLATE",
            LEVEL=1,
            PREDICTOR="YES",
            BLOCKSIZE=TILE,
            OVERVIEW_RESAMPLING="NEAREST",
            BIGTIFF="IF_SAFER",
            NUM_THREADS="ALL_CPUS",
        )
        with rasterio.open(result) as written:
            if _checksums(written) != checks:
                raise WritingError("it reads back differently")


def _checksums(image: Any) -> list[int]:
    checks = [0] * image.count
    for top in range(0, image.height, TILE):
        window = Window(0, top, image.width, min(TILE, image.height - top))
        for index, values in enumerate(image.read(window=window)):
            checks[index] = zlib.crc32(values.data, checks[index])
    return checks
