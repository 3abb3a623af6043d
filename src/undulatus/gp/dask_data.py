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
    LabelledChunk,
    apply_class_weights,
    encode,
    require_phases_of_rows,
)
from undulatus.gp.splits import number_groups

FAN_IN = 8
"""Sums that are added in one task."""


@dataclass(frozen=True)
class LabelledArrays:
    """Dask arrays of rows (n, d), and of y, sample_weight and groups (n,) in the same row chunks.

    ``columns`` has those that are given, by these names.
    """

    rows: da.Array
    columns: dict[str, da.Array]

    @classmethod
    def align(
        cls, rows: Any, labels: Any, weight: Any = None, groups: Any = None
    ) -> LabelledArrays:
        """Return the arrays in the chunks of ``rows``, which are not split along columns.

        Arrays in memory are sent to the scheduler once, rather than with every graph.
        """
        rows, columns = whole_rows(rows), {}
        for name, given in ("y", labels), ("sample_weight", weight), ("groups", groups):
            if given is None:
                continue
            if np.shape(given) != rows.shape[:1]:
                raise InputError(
                    f"Found input variables with inconsistent numbers of samples: X has "
                    f"{rows.shape[0]} rows, {name} has shape {np.shape(given)}. If a size is "
                    f"nan, call {name}.compute_chunk_sizes() first."
                )
            if not isinstance(given, da.Array):
                given = da.from_array(np.asarray(given), chunks=(rows.chunks[0],)).persist()
            columns[name] = given.rechunk((rows.chunks[0],))
        return cls(rows, columns)

    def each(self, function: Callable[..., Any], *parameters: Any) -> list[Any]:
        """Return ``function(chunk, *parameters)`` of each chunk, as delayed values.

        A chunk is read and processed in one dask task.
        """
        first_rows = np.cumsum([0, *self.rows.chunks[0]], dtype=np.int64)
        task = function, parameters, first_rows, tuple(self.columns)
        results = da.map_blocks(
            _run,
            self.rows,
            *(da.map_blocks(_as_column, array, new_axis=1) for array in self.columns.values()),
            # One node of the graph, however many chunks there are. It is not traversed: it holds
            # no graphs, and may hold large arrays.
            task=dask.delayed(task, traverse=False, pure=True),
            dtype=object,
            meta=np.empty((0, 0), dtype=object),
            chunks=((1,) * self.rows.numblocks[0], (1,)),
        )
        return list(results.to_delayed(optimize_graph=True)[:, 0])

    def without_rows(self) -> LabelledArrays:
        """Return the columns alone: the only feature is y."""
        return replace(self, rows=da.map_blocks(_as_column, self.columns["y"], new_axis=1))


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
        return replace(self, reader=replace(self.reader, xp=xp, rows_per_block=size))

    def each(self, function: Callable[..., Any], *parameters: Any) -> list[Any]:
        """Return ``function(chunk, reader, *parameters)`` of each chunk with pixels, delayed."""
        parts = self.arrays.each(function, self.reader, *parameters)
        return [part for part, used in zip(parts, self.used, strict=True) if used]

    def total(self, function: Callable[..., list[Array]], *parameters: Any) -> list[Array]:
        """Return the sum over all blocks, in a tree of chunks, of the arrays ``function`` returns.

        It is called with a block and the parameters.
        """
        return list(tree_sum(self.each(chunk_total, function, *parameters), add_arrays))

    def take(self, chosen: Array) -> Pixels:
        """Return the pixels of the sorted row numbers ``chosen``, in memory."""
        edges = np.cumsum([0, *self.used])
        wanted = np.diff(np.searchsorted(chosen, edges)) > 0
        parts = self.arrays.each(take_from_chunk, self.reader, chosen, edges)
        taken = compute([parts[number] for number in np.flatnonzero(wanted)])
        return concatenate_pixels(taken, self.threads)

    def gather(self) -> Pixels:
        """Return all pixels, in memory."""
        return self.take(np.arange(self.n_rows))

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any pixel has lost its digits."""
        compute(self.each(require_phases_of_chunk, frequencies, columns))


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


def require_phases_of_chunk(
    chunk: LabelledChunk, reader: PixelReader, frequencies: Array, columns: Callable[[int], str]
) -> None:
    """Raise, naming row and column, if a row of positive weight lies too far out."""
    _, weight = reader.classes_and_weights(chunk)
    absent = None if weight is None else weight == 0
    require_phases_of_rows(
        chunk.rows, absent, reader.standardisation, frequencies, columns, chunk.first_row
    )


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
    """Return ``function(chunk, first_row)`` of all chunks, (n, width), reading each once."""
    parts = compute(LabelledArrays(whole_rows(rows), {}).each(_function_of_rows, function))
    output = np.empty((rows.shape[0], width), order="F")
    first = 0
    for part in parts:
        if part is not None:
            output[first : first + len(part)] = part
            first += len(part)
    return output


def _function_of_rows(
    chunk: LabelledChunk, function: Callable[[Array, int], Array]
) -> Array | None:
    return function(chunk.rows, chunk.first_row) if len(chunk.rows) else None


# Tasks and graphs


def _run(rows: Array, *columns: Array, task: tuple[Any, ...], block_id: tuple[int, ...]) -> Any:
    """Return a function of one chunk, given its rows and columns, or the error it causes.

    Errors are returned, not raised: that of the first chunk is to be raised, not of the fastest.
    """
    function, parameters, first_rows, names = task
    try:
        given = {
            name: unmasked(column, name)[:, 0] for name, column in zip(names, columns, strict=True)
        }
        weight = given.get("sample_weight")
        chunk = LabelledChunk(
            block_id[0],
            int(first_rows[block_id[0]]),
            unmasked(rows),
            given.get("y"),
            None if weight is None else weight.astype(np.float64),
            given.get("groups"),
        )
        # dask runs several chunks at a time, so a chunk needs no threads of its own.
        with single_threaded_blas():
            return function(chunk, *parameters)
    except InputError as error:
        return error


def _as_column(values: Array) -> Array:
    return values[:, None]


def tree_sum(parts: list[Any], add: Callable[[Any, Any], Any] = operator.add) -> Any:
    """Return the sum of delayed values; raise the first that is an error."""
    add_some = dask.delayed(_add, pure=True)
    while len(parts) > 1:
        parts = [add_some(parts[i : i + FAN_IN], add) for i in range(0, len(parts), FAN_IN)]
    return compute(parts)[0]


def add_arrays(own: list[Array], other: list[Array]) -> list[Array]:
    """Return the sums of arrays, new ones: the results of other tasks may be needed again."""
    return [a + b for a, b in zip(own, other, strict=True)]


def _add(parts: list[Any], add: Callable[[Any, Any], Any]) -> Any:
    return next((part for part in parts if isinstance(part, InputError)), None) or reduce(
        add, parts
    )


def compute(parts: list[Any]) -> list[Any]:
    """Return delayed values, computed; raise the first that is an error."""
    # distributed warns about large parameters in a graph. Setting this before it is imported
    # would hide its own defaults.
    large = {"distributed.admin.large-graph-warning-threshold": "1 GiB"}
    with dask.config.set(large) if "distributed" in sys.modules else nullcontext():
        computed = dask.compute(*parts)
    for part in computed:
        if isinstance(part, InputError):
            raise part
    return list(computed)


def load(arrays: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays in memory, those of dask computed together."""
    return tuple(dask.compute(*arrays, traverse=False))
