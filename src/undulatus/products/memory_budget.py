"""A promise on memory: how large blocks may be, and how many at a time, to stay below it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import dask
import xarray as xr
from dask.utils import format_bytes, parse_bytes

from undulatus._system import count_cores
from undulatus.errors import InputError, SceneError

BASE = 400 * 2**20
"""Bytes of the process itself: Python, the libraries, a model."""

COPIES = 4
"""How often the values of a block are in memory at once: as read, decoded, put together, and
while features are made of them."""

LARGEST_BLOCK = 256 * 2**20
"""Memory beyond which a larger block makes nothing faster."""

RESULT = 64
"""Bytes of a pixel's results, on their way to the file."""


def parse_size(text: str) -> int:
    """Return the bytes that a size such as ``2GB``, ``512 MiB`` or ``1e9`` stands for."""
    try:
        size = int(parse_bytes(text))
    except ValueError as error:
        raise InputError(f"{text!r} is no size. Write it as 2GB, 512MB or 1.5GiB.") from error
    if size <= 0:
        raise InputError(f"{text!r} is no size to work in. Give a number above nought.")
    return size


@dataclass(frozen=True)
class BlockPlan:
    """A dataset in blocks that fit, and how many of them may be worked on at once."""

    dataset: xr.Dataset
    workers: int


def plan_blocks(dataset: xr.Dataset, ram: int) -> BlockPlan:
    """Return a dataset cut so that work on it block by block stays below ``ram`` bytes.

    A block cannot be read in part: one that is too large as it lies on disk is an error that says
    how much it takes.
    """
    cores = int(dask.config.get("num_workers", None) or count_cores())
    chunks = {dim: max(sizes) for dim, sizes in dataset.unify_chunks().chunksizes.items()}
    room = ram - BASE
    least = _block_bytes(dataset, chunks)
    if room < least:
        raise SceneError(
            f"{format_bytes(ram)} of memory are too little: the program takes about "
            f"{format_bytes(BASE)}, and a block of these data, as it lies on disk, "
            f"{format_bytes(least)}. Allow {format_bytes(BASE + least)} or more, or write the "
            f"data in smaller chunks."
        )
    workers = max(1, min(cores, room // max(least, 1)))
    return BlockPlan(dataset.chunk(_grown(dataset, chunks, room // workers)), int(workers))


@contextmanager
def within_memory(ram: str | None, dataset: xr.Dataset) -> Iterator[xr.Dataset]:
    """Give a dataset in blocks that fit into a size such as ``2GB``, and hold dask to as many.

    Without a size the dataset is given as it is.
    """
    if ram is None:
        yield dataset
        return
    plan = plan_blocks(dataset, parse_size(ram))
    with dask.config.set(num_workers=plan.workers):
        yield plan.dataset


def _block_bytes(dataset: xr.Dataset, chunks: dict[object, int]) -> int:
    """Return the memory that work on one block of all variables takes."""
    values = pixels = 0
    for array in dataset.variables.values():
        if array.chunks is None:
            continue
        size = math.prod(min(chunks.get(d, n), n) for d, n in array.sizes.items())
        values += size * max(array.dtype.itemsize, 4)
        pixels = max(pixels, size)
    rows = "sample" if "sample" in chunks else None
    return COPIES * values + RESULT * (chunks[rows] if rows else pixels)


def _grown(dataset: xr.Dataset, chunks: dict[object, int], room: int) -> dict[object, int]:
    """Return larger blocks, whole numbers of those on disk, while they fit and are small."""
    grown = dict(chunks)
    for dim in reversed(list(chunks)):
        whole = dataset.sizes[str(dim)]
        while grown[dim] < whole:
            doubled = grown | {dim: min(2 * grown[dim], whole)}
            needed = _block_bytes(dataset, doubled)
            if needed > min(room, LARGEST_BLOCK):
                break
            grown = doubled
    return grown
