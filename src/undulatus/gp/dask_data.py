"""Pixels in dask arrays: each chunk is read where it is processed, and only sums come back.

This is the only module of :mod:`undulatus.gp` that uses dask; it is imported when a dask array
is given. The task of a chunk is a pure function of the chunk and of one node of parameters. It
goes through the chunk in the blocks of :mod:`undulatus.gp.data`, and can run again elsewhere
when a worker is lost. Sums are added in a tree whose shape depends on the chunks alone: any
scheduler, with any number of workers, gives the same bits.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import dask
import dask.array as da
import numpy as np

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError
from undulatus.gp.backends import Array, Backend, make_backend
from undulatus.gp.data import (
    Pixels,
    Standardisation,
    count_latents,
    device_block_rows,
    unmasked,
)
from undulatus.gp.moments import (
    ClassMoments,
    LabelledChunk,
    apply_class_weights,
    class_moments,
    encode,
    require_phases_of_rows,
)
from undulatus.gp.splits import number_groups

FAN_IN = 8
"""Sums that are added in one task."""


@dataclass(frozen=True)
class LabelledArrays:
    """Dask arrays of rows (n, d), labels, weights and groups (n,), with the same row chunks."""

    rows: da.Array
    labels: da.Array
    weight: da.Array | None
    groups: da.Array | None

    @classmethod
    def align(
        cls, rows: Any, labels: Any, weight: Any = None, groups: Any = None
    ) -> LabelledArrays:
        """Return the arrays in the chunks of ``rows``, which are not split along columns.

        Arrays in memory are sent to the scheduler once, rather than with every graph.
        """
        rows = whole_rows(rows)

        def like_rows(given: Any, name: str) -> da.Array | None:
            if given is None:
                return None
            if np.shape(given)[:1] != rows.shape[:1] or len(np.shape(given)) != 1:
                raise InputError(
                    f"Found input variables with inconsistent numbers of samples: X has "
                    f"{rows.shape[0]} rows, {name} has shape {np.shape(given)}. If a size is "
                    f"nan, call {name}.compute_chunk_sizes() first."
                )
            if isinstance(given, da.Array):
                return given.rechunk((rows.chunks[0],))
            return da.from_array(np.asarray(given), chunks=(rows.chunks[0],)).persist()

        aligned = like_rows(labels, "y")
        assert aligned is not None
        return cls(rows, aligned, like_rows(weight, "sample_weight"), like_rows(groups, "groups"))

    @property
    def first_rows(self) -> Array:
        """Number of the first row of each chunk, (chunks,)."""
        return np.cumsum([0, *self.rows.chunks[0][:-1]], dtype=np.int64)

    def each(self, function: Callable[..., Any], *parameters: Any) -> list[Any]:
        """Return ``function(chunk, *parameters)`` of each chunk, as delayed values."""
        task = ChunkTask(
            function, parameters, self.first_rows, self.weight is not None, self.groups is not None
        )
        arrays = [self.labels, self.weight, self.groups]
        columns = [_as_column(array) for array in arrays if array is not None]
        return _map_chunks(task, self.rows, *columns)

    def class_moments(self, columns: Callable[[int], str]) -> ClassMoments:
        """Return what one pass over all chunks finds."""
        (total,) = dask.compute(_tree_sum(self.each(class_moments, columns), _add))
        return total


@dataclass(frozen=True)
class PixelReader:
    """Turns a chunk into pixels of classes that are known by their sorted ``labels``."""

    labels: Array
    class_weights: Array | None
    standardisation: Standardisation
    xp: Backend
    rows_per_block: int

    def __call__(self, chunk: LabelledChunk) -> Pixels:
        """Return the chunk's pixels of positive weight."""
        codes, weight = self.classes_and_weights(chunk)
        rows, groups = chunk.rows, chunk.groups
        if weight is not None and not weight.all():
            used = np.flatnonzero(weight)
            rows, codes, weight = rows[used], codes[used], weight[used]
            groups = None if groups is None else groups[used]
        return Pixels(
            rows,
            codes,
            weight,
            self.standardisation,
            self.xp,
            self.rows_per_block,
            groups=groups,
            n_classes=len(self.labels),
        )

    def classes_and_weights(self, chunk: LabelledChunk) -> tuple[Array, Array | None]:
        """Return the number of each row's class, and its weight."""
        codes = encode(chunk.labels, self.labels)
        return codes, apply_class_weights(self.class_weights, codes, chunk.weight)


@dataclass(frozen=True)
class ChunkedPixels:
    """Labelled pixels in dask arrays; rows of weight zero are skipped and not numbered.

    Attributes
    ----------
    arrays : LabelledArrays
        The data as the user passed them.
    reader : PixelReader
        Turns them into pixels, in each chunk's task.
    used : tuple of int
        Number of rows of positive weight in each chunk.
    threads : int
        For pixels that are taken into memory.
    """

    arrays: LabelledArrays
    reader: PixelReader
    used: tuple[int, ...]
    threads: int = 1

    @property
    def n_rows(self) -> int:
        """Number of pixels."""
        return sum(self.used)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return int(self.arrays.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The working precision of blocks."""
        return self.reader.xp.dtype

    @property
    def xp(self) -> Backend:
        """Where blocks are computed, and in which precision."""
        return self.reader.xp

    @property
    def n_latents(self) -> int:
        """Number of latent functions: one for two classes, otherwise one a class."""
        return count_latents(len(self.reader.labels))

    def on(self, device: str, tf32: bool, n_frequencies: int) -> ChunkedPixels:
        """Return the same pixels, computed on a device in each chunk's task."""
        size = device_block_rows(n_frequencies, self.dtype.itemsize)
        xp = make_backend(self.dtype, device, tf32)
        reader = replace(self.reader, xp=xp, rows_per_block=size)
        return replace(self, reader=reader)

    def total(self, function: Callable[..., list[Array]], *parameters: Any) -> list[Array]:
        """Return the sum over all blocks, in a tree of chunks, of the arrays ``function`` returns.

        It is called with a block and the parameters.
        """
        totals = self.arrays.each(chunk_total, self.reader, function, *parameters)
        with _large_parameters():
            (total,) = dask.compute(_tree_sum(self._where_used(totals), _add_arrays))
        return list(total)

    def take(self, chosen: Array) -> Pixels:
        """Return the pixels of the sorted row numbers ``chosen``, in memory."""
        edges = np.cumsum([0, *self.used])
        wanted = np.diff(np.searchsorted(chosen, edges)) > 0
        parts = self.arrays.each(take_from_chunk, self.reader, chosen, edges)
        with _large_parameters():
            (taken,) = dask.compute(
                [part for part, want in zip(parts, wanted, strict=True) if want]
            )
        return concatenate_pixels(taken, self.threads)

    def gather(self) -> Pixels:
        """Return all pixels, in memory."""
        return self.take(np.arange(self.n_rows))

    def digests(self, digest: Callable[[Pixels], str]) -> list[str]:
        """Return a digest of the pixels of each chunk that has any."""
        parts = self.arrays.each(chunk_digest, self.reader, digest)
        (digests,) = dask.compute(self._where_used(parts))
        return list(digests)

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any pixel has lost its digits."""
        parts = self.arrays.each(far_row_error, self.reader, frequencies, columns)
        (errors,) = dask.compute(parts)
        for error in filter(None, errors):
            raise error

    def _where_used(self, parts: list[Any]) -> list[Any]:
        return [part for part, used in zip(parts, self.used, strict=True) if used]


# Functions of one chunk, run in its task


def chunk_total(
    chunk: LabelledChunk,
    reader: PixelReader,
    function: Callable[..., list[Array]],
    *parameters: Any,
) -> list[Array]:
    """Return the sum over the chunk's blocks of the arrays that a function returns of each."""
    return reader(chunk).total(function, *parameters)


def take_from_chunk(
    chunk: LabelledChunk, reader: PixelReader, chosen: Array, edges: Array
) -> Pixels:
    """Return the chunk's part of the row numbers ``chosen``; ``edges`` are the chunks' edges."""
    first, last = np.searchsorted(chosen, edges[chunk.number : chunk.number + 2])
    return reader(chunk).take(chosen[first:last] - edges[chunk.number])


def chunk_digest(
    chunk: LabelledChunk, reader: PixelReader, digest: Callable[[Pixels], str]
) -> str:
    """Return a digest of the chunk's pixels."""
    return digest(reader(chunk))


def far_row_error(
    chunk: LabelledChunk, reader: PixelReader, frequencies: Array, columns: Callable[[int], str]
) -> InputError | None:
    """Return the error that names the chunk's first row that lies too far out, if any."""
    _, weight = reader.classes_and_weights(chunk)
    absent = None if weight is None else weight == 0
    try:
        require_phases_of_rows(
            chunk.rows, absent, reader.standardisation, frequencies, columns, chunk.first_row
        )
    except InputError as error:
        return error
    return None


def concatenate_pixels(parts: list[Pixels], threads: int) -> Pixels:
    """Return the pixels one part after the other, with their groups numbered again."""
    first = parts[0]
    return replace(
        first,
        rows=np.concatenate([part.rows for part in parts]),
        codes=np.concatenate([part.codes for part in parts]),
        weight=None if first.weight is None else np.concatenate([part.weight for part in parts]),
        groups=None
        if first.groups is None
        else number_groups(np.concatenate([part.groups for part in parts])),
        threads=threads,
    )


# Rows to rows


def whole_rows(rows: da.Array) -> da.Array:
    """Return the same array in chunks of whole rows; raise if their sizes are unknown."""
    if np.isnan(sum(rows.chunks[0])):
        raise InputError(
            "The sizes of X's chunks are unknown, and so is the number of its rows. "
            "Call X.compute_chunk_sizes() first (and do the same for y if it was made alike)."
        )
    return rows.rechunk({1: -1})


def map_rows(function: Callable[[Array, int], Array], rows: da.Array, width: int) -> Array:
    """Return ``function(chunk, first_row)`` of all chunks, (n, width), reading each once.

    If several chunks raise an :class:`InputError`, that of the first chunk is raised.
    """
    rows = whole_rows(rows)
    first_rows = np.cumsum([0, *rows.chunks[0]], dtype=np.int64)
    with _large_parameters():
        (parts,) = dask.compute(_map_chunks(RowsTask(function, first_rows, width), rows))
    output = np.empty((rows.shape[0], width), order="F")
    for first_row, part in zip(first_rows, parts, strict=False):
        if isinstance(part, InputError):
            raise part
        output[first_row : first_row + len(part)] = part
    return output


# Tasks and graphs


@dataclass(frozen=True)
class ChunkTask:
    """A function of labelled chunks: one node in the graph, however many chunks there are."""

    function: Callable[..., Any]
    parameters: tuple[Any, ...]
    first_rows: Array
    weighted: bool
    grouped: bool

    def __call__(self, number: int, rows: Array, *columns: Array) -> Any:
        """Return the function of one chunk, given its rows, labels, weights and groups."""
        rest = [np.asarray(column)[:, 0] for column in columns]
        labels = rest.pop(0)
        weight = rest.pop(0).astype(np.float64) if self.weighted else None
        groups = rest.pop(0) if self.grouped else None
        first_row = int(self.first_rows[number])
        chunk = LabelledChunk(number, first_row, unmasked(rows), labels, weight, groups)
        # dask runs several chunks at a time, so a chunk needs no threads of its own.
        with single_threaded_blas():
            return self.function(chunk, *self.parameters)


@dataclass(frozen=True)
class RowsTask:
    """A function of the rows of each chunk."""

    function: Callable[[Array, int], Array]
    first_rows: Array
    width: int

    def __call__(self, number: int, rows: Array) -> Array | InputError:
        """Return the function of one chunk's rows, or the error they cause."""
        if not len(rows):
            return np.empty((0, self.width))
        try:
            with single_threaded_blas():
                return self.function(unmasked(rows), int(self.first_rows[number]))
        except InputError as error:
            return error


def _map_chunks(task: ChunkTask | RowsTask, rows: da.Array, *columns: da.Array) -> list[Any]:
    """Return the delayed result of each chunk, which is read and processed in one dask task."""
    results = da.map_blocks(
        _run_task,
        rows,
        *columns,
        # Not traversed: it holds no graphs, and may hold large arrays.
        task=dask.delayed(task, traverse=False, pure=True),
        dtype=object,
        meta=np.empty((0, 0), dtype=object),
        chunks=((1,) * rows.numblocks[0], (1,)),
    )
    return list(results.to_delayed(optimize_graph=True)[:, 0])


def _run_task(*arrays: Array, task: ChunkTask | RowsTask, block_id: tuple[int, ...]) -> Any:
    return task(block_id[0], *arrays)


def _as_column(array: da.Array) -> da.Array:
    return da.map_blocks(
        _add_axis,
        array,
        new_axis=1,
        chunks=(array.chunks[0], (1,)),
        meta=np.empty((0, 0), dtype=array.dtype),
    )


def _add_axis(values: Array) -> Array:
    return unmasked(values, "y, sample_weight or groups")[:, None]


def _tree_sum(parts: list[Any], add: Callable[[list[Any]], Any]) -> Any:
    add_some = dask.delayed(add, pure=True)
    while len(parts) > 1:
        parts = [add_some(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return parts[0]


# By `+`, not in place: the results of other tasks may be needed again there.


def _add(parts: list[Any]) -> Any:
    return reduce(operator.add, parts)


def _add_arrays(parts: list[list[Array]]) -> list[Array]:
    return [reduce(operator.add, own) for own in zip(*parts, strict=True)]


def _large_parameters() -> Any:
    """Return a context in which distributed does not warn about large parameters in a graph."""
    # Setting this before distributed is imported would hide its own defaults.
    if "distributed" not in sys.modules:
        return nullcontext()
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"})
