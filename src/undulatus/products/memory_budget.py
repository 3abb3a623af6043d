"""Work within a memory limit: how large blocks may be, and how many at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dask
import rasterio
import xarray as xr
from dask.utils import format_bytes, parse_bytes

from undulatus._system import count_cores, give_back_freed_memory
from undulatus.errors import InputError, SceneError
from undulatus.scenes.files.images import BAND_DIMS

PROCESS_BYTES = 400 * 2**20
"""Bytes of the process itself: Python, the libraries, a model."""

COPIES = 4
"""Copies of a block's values in memory at once: as read, decoded, stacked, and as features."""

LARGEST_BLOCK = 256 * 2**20
"""Bytes beyond which a larger block is no faster."""

GDAL_CACHE = 32 * 2**20
"""Bytes of tiles that GDAL keeps; its own default is a twentieth of the machine's memory."""

RESULT_BYTES = 64
"""Bytes of a pixel's results until they are written, for two classes, ..."""

CLASS_BYTES = 24
"""... and more of each further class: its probability and variance, thrice each."""


def parse_size(text: str) -> int:
    """Return the bytes that a size such as ``2GB``, ``512 MiB`` or ``1e9`` stands for."""
    try:
        # dask takes a unit without a number, and even no text at all, for one of it.
        size = int(parse_bytes(text if any(map(str.isdigit, text)) else "none"))
    except (ValueError, OverflowError) as error:
        raise InputError(f"{text!r} is not a size. Write it as 2GB, 512MB or 1.5GiB.") from error
    if size <= 0:
        raise InputError(f"{text!r} is not a size: it must be above zero, such as 2GB.")
    return size


@dataclass(frozen=True)
class BlockPlan:
    """A dataset in blocks that fit into memory, and how many of them may be processed at once."""

    dataset: xr.Dataset
    workers: int


def plan_blocks(dataset: xr.Dataset, memory_limit: int, n_classes: int = 2) -> BlockPlan:
    """Return a dataset in blocks so that processing it stays below ``memory_limit`` bytes.

    ``n_classes`` are those of the model that maps it. A chunk on disk cannot be read in part: if
    one is too large, an error says how much memory it needs.
    """
    cores = int(dask.config.get("num_workers", None) or count_cores())
    chunks = {dim: max(sizes) for dim, sizes in dataset.unify_chunks().chunksizes.items()}
    room = memory_limit - PROCESS_BYTES
    result_bytes = RESULT_BYTES + CLASS_BYTES * (n_classes - 2)
    least = _block_bytes(dataset, chunks, result_bytes)
    if room < least:
        raise SceneError(
            f"{format_bytes(memory_limit)} of memory are too little: the program needs about "
            f"{format_bytes(PROCESS_BYTES)}, and one chunk of these data on disk "
            f"{format_bytes(least)}. Allow {format_bytes(PROCESS_BYTES + least)} or more, or "
            f"write the data in smaller chunks."
        )
    workers = max(1, min(cores, room // max(least, 1)))
    grown = _enlarge(dataset, chunks, room // workers, result_bytes)
    return BlockPlan(dataset.chunk(grown), int(workers))


@contextmanager
def within_memory(
    memory_limit: str | None, dataset: xr.Dataset, n_classes: int = 2
) -> Iterator[xr.Dataset]:
    """Yield a dataset in blocks that fit into a size such as ``2GB``, and limit dask's threads.

    Without a size the dataset stays as it is. ``n_classes`` are those of the model that maps it.
    """
    if memory_limit is None:
        yield dataset
        return
    plan = plan_blocks(dataset, parse_size(memory_limit), n_classes)
    give_back_freed_memory()
    with dask.config.set(num_workers=plan.workers), rasterio.Env(GDAL_CACHEMAX=GDAL_CACHE):
        yield plan.dataset


def _block_bytes(
    dataset: xr.Dataset, chunks: dict[object, int], result_bytes: int = RESULT_BYTES
) -> int:
    """Return the memory that one block of all variables needs while it is processed."""
    values = pixels = 0
    for array in dataset.variables.values():
        if array.chunks is None:
            continue
        size = math.prod(min(chunks.get(d, n), n) for d, n in array.sizes.items())
        values += size * max(array.dtype.itemsize, 4)
        # The bands of an image in one array are of the same pixels.
        bands = math.prod(
            min(chunks.get(d, 1), n) for d, n in array.sizes.items() if d in BAND_DIMS
        )
        pixels = max(pixels, size // max(bands, 1))
    rows = "sample" if "sample" in chunks else None
    return COPIES * values + result_bytes * (chunks[rows] if rows else pixels)


def _enlarge(
    dataset: xr.Dataset, chunks: dict[object, int], room: int, result_bytes: int
) -> dict[object, int]:
    """Return blocks of several chunks each, as large as fits and makes work faster."""
    grown = dict(chunks)
    for dim in reversed(list(chunks)):
        whole = dataset.sizes[str(dim)]
        while grown[dim] < whole:
            doubled = grown | {dim: min(2 * grown[dim], whole)}
            needed = _block_bytes(dataset, doubled, result_bytes)
            if needed > min(room, LARGEST_BLOCK):
                break
            grown = doubled
    return grown
