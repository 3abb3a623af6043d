"""What is done with one chunk, in the task that reads it: pixels, sums, shares, errors.

Pixels in dask arrays: each chunk is read where it is computed on, and only sums come back.

The one place where dask enters the mathematics; imported when a dask array is given. A chunk's
task is a pure function of the chunk and of one node of parameters, goes through the chunk in
the blocks of :mod:`undulatus.gp.blocks`, and can be run again elsewhere when a worker is lost.
Sums are added in a tree whose shape is a function of the chunks alone: any scheduler, and any
number of workers, gives the same bits.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Concatenate, ParamSpec, TypeVar

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError
from undulatus.gp.blocks import Block, Pixels, Standardisation, recycling
from undulatus.gp.moments import Chunk, Survey, require_phases_of_rows, survey, weigh_classes
from undulatus.gp.passes import number_groups

Array = npt.NDArray[Any]

Result = TypeVar("Result")


@dataclass(frozen=True)
class Reading:
    """How a chunk becomes pixels: the second class's label, the classes' weights, and the rest."""

    second: Any
    factors: Array | None
    standardisation: Standardisation
    dtype: np.dtype[Any]
    rows_per_block: int

    def __call__(self, chunk: Chunk) -> Pixels:
        """Return the chunk's pixels of positive weight."""
        positive, weight = self.weigh(chunk)
        rows, groups = chunk.rows, chunk.groups
        if weight is not None and not weight.all():
            used = np.flatnonzero(weight)
            rows, positive, weight = rows[used], positive[used], weight[used]
            groups = None if groups is None else groups[used]
        return Pixels(
            rows,
            positive,
            weight,
            self.standardisation,
            self.dtype,
            self.rows_per_block,
            groups=groups,
        )

    def weigh(self, chunk: Chunk) -> tuple[Array, Array | None]:
        """Return which rows of a chunk are of the second class, and the weights of all."""
        positive = np.asarray(chunk.labels == self.second)
        return positive, weigh_classes(self.factors, positive, chunk.weight)


def total_of_chunk(
    chunk: Chunk,
    reading: Reading,
    part: Callable[..., Result],
    add_up: Callable[[Iterator[Result]], Result],
    parameters: tuple[Any, ...],
    named: dict[str, Any],
) -> Result:
    """Return the parts of a chunk's blocks, added up."""
    return reading(chunk).total(part, add_up, *parameters, **named)


def take_from_chunk(chunk: Chunk, reading: Reading, chosen: Array, edges: Array) -> Pixels:
    """Return a chunk's share of the row numbers ``chosen``; ``edges`` are those of chunks."""
    first, last = np.searchsorted(chosen, edges[chunk.number : chunk.number + 2])
    return reading(chunk).take(chosen[first:last] - edges[chunk.number])


def digest_of_chunk(chunk: Chunk, reading: Reading, digest: Callable[[Pixels], str]) -> str:
    """Return a digest of a chunk's pixels."""
    return digest(reading(chunk))


def far_row_of_chunk(
    chunk: Chunk, reading: Reading, frequencies: Array, columns: Callable[[int], str]
) -> InputError | None:
    """Return the error that names a chunk's first row too far out, if there is one."""
    _, weight = reading.weigh(chunk)
    absent = None if weight is None else weight == 0
    try:
        require_phases_of_rows(
            chunk.rows, absent, reading.standardisation, frequencies, columns, chunk.first_row
        )
    except InputError as error:
        return error
    return None


def join(parts: list[Pixels], threads: int) -> Pixels:
    """Return pixels one after the other; their groups are numbered anew."""
    one = parts[0]
    return replace(
        one,
        rows=np.concatenate([part.rows for part in parts]),
        positive=np.concatenate([part.positive for part in parts]),
        weight=None if one.weight is None else np.concatenate([part.weight for part in parts]),
        groups=None
        if one.groups is None
        else number_groups(np.concatenate([part.groups for part in parts])),
        threads=threads,
    )


Parameters = ParamSpec("Parameters")

FAN_IN = 8
"""Sums that are added in one task."""


@dataclass(frozen=True)
class Work:
    """What is to be done with each chunk: one node in the graph, however many the chunks."""

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
        chunk = Chunk(number, first_row, np.asarray(rows), labels, weight, groups)
        # dask runs several chunks at a time; a chunk needs no more threads of its own.
        with single_threaded_blas(), recycling():
            return self.function(chunk, *self.parameters)


@dataclass(frozen=True)
class Chunks:
    """Dask arrays of rows (n, d), labels, weights and groups (n,), chunked alike along rows."""

    rows: da.Array
    labels: da.Array
    weight: da.Array | None
    groups: da.Array | None

    @classmethod
    def of(cls, rows: Any, labels: Any, weight: Any = None, groups: Any = None) -> Chunks:
        """Return the arrays in the chunks of ``rows``, whole along columns.

        Arrays in memory are handed to the scheduler once, rather than with every graph.
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
        """Return ``function(chunk, *parameters)`` of each chunk, still to be computed."""
        arrays = [self.labels, self.weight, self.groups]
        work = Work(
            function, parameters, self.first_rows, self.weight is not None, self.groups is not None
        )
        columns = [_as_column(array) for array in arrays if array is not None]
        return _map_chunks(work, self.rows, *columns)

    def survey(self, columns: Callable[[int], str]) -> Survey:
        """Return what one look at everything tells."""
        (found,) = dask.compute(_add_in_tree(self.each(survey, columns)))
        return found


@dataclass(frozen=True)
class ChunkedPixels:
    """Labelled pixels in dask arrays; rows of no weight are passed over, and not numbered.

    Attributes
    ----------
    chunks : Chunks
        The data as the user has them.
    reading : Reading
        How they become pixels, in each chunk's task.
    used : tuple of int
        Rows of positive weight in each chunk.
    threads : int
        Of pixels that were taken into memory.
    """

    chunks: Chunks
    reading: Reading
    used: tuple[int, ...]
    threads: int = 1

    @property
    def n_rows(self) -> int:
        """Number of pixels."""
        return sum(self.used)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return int(self.chunks.rows.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The working precision of blocks."""
        return self.reading.dtype

    def total(
        self,
        part: Callable[Concatenate[Block, Parameters], Result],
        add_up: Callable[[Iterator[Result]], Result],
        *parameters: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Return ``part(block, *parameters)`` of all blocks, added up in a tree of chunks."""
        sums = self.chunks.each(total_of_chunk, self.reading, part, add_up, parameters, named)
        with _large_parameters():
            (found,) = dask.compute(_add_in_tree(self._where_used(sums)))
        return found

    def take(self, chosen: Array) -> Pixels:
        """Return the pixels of the sorted row numbers ``chosen``, in memory."""
        edges = np.cumsum([0, *self.used])
        wanted = np.diff(np.searchsorted(chosen, edges)) > 0
        parts = self.chunks.each(take_from_chunk, self.reading, chosen, edges)
        with _large_parameters():
            (found,) = dask.compute(
                [part for part, want in zip(parts, wanted, strict=True) if want]
            )
        return join(found, self.threads)

    def gather(self) -> Pixels:
        """Return all pixels, in memory."""
        return self.take(np.arange(self.n_rows))

    def digests(self, digest: Callable[[Pixels], str]) -> list[str]:
        """Return a digest of the pixels of each chunk that has any."""
        parts = self.chunks.each(digest_of_chunk, self.reading, digest)
        (found,) = dask.compute(self._where_used(parts))
        return list(found)

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any pixel has lost its digits."""
        parts = self.chunks.each(far_row_of_chunk, self.reading, frequencies, columns)
        (errors,) = dask.compute(parts)
        for error in filter(None, errors):
            raise error

    def _where_used(self, parts: list[Any]) -> list[Any]:
        return [part for part, used in zip(parts, self.used, strict=True) if used]


def whole_rows(rows: da.Array) -> da.Array:
    """Return the same array, in chunks of whole rows of known number."""
    if np.isnan(sum(rows.chunks[0])):
        raise InputError(
            "The sizes of X's chunks are unknown, and so is the number of its rows. "
            "Call X.compute_chunk_sizes() first (and y's, if it came about in the same way)."
        )
    return rows.rechunk({1: -1})


def map_rows(function: Callable[[Array, int], Array], rows: da.Array, width: int) -> Array:
    """Return ``function(chunk, first_row)`` of all chunks, (n, width): each is read once.

    An :class:`InputError` in several chunks is raised for the first of them.
    """
    rows = whole_rows(rows)
    first_rows = np.cumsum([0, *rows.chunks[0]], dtype=np.int64)
    with _large_parameters():
        (parts,) = dask.compute(_map_chunks(RowWork(function, first_rows, width), rows))
    output = np.empty((rows.shape[0], width), order="F")
    for first_row, part in zip(first_rows, parts, strict=False):
        if isinstance(part, InputError):
            raise part
        output[first_row : first_row + len(part)] = part
    return output


@dataclass(frozen=True)
class RowWork:
    """A function of rows, for each chunk."""

    function: Callable[[Array, int], Array]
    first_rows: Array
    width: int

    def __call__(self, number: int, rows: Array) -> Array | InputError:
        """Return the function of one chunk's rows, or what is wrong with them."""
        if not len(rows):
            return np.empty((0, self.width))
        try:
            with single_threaded_blas():
                return self.function(np.asarray(rows), int(self.first_rows[number]))
        except InputError as error:
            return error


def _large_parameters() -> Any:
    """Keep distributed from warning of parameters, which travel once, as of data in a graph."""
    # Its settings come with its import, which a setting made before would hide.
    if "distributed" not in sys.modules:
        return nullcontext()
    return dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GiB"})


def _map_chunks(work: Any, rows: da.Array, *columns: da.Array) -> list[Any]:
    """Return the work on each chunk, still to be done, reading and all in one task."""
    results = da.map_blocks(
        _do,
        rows,
        *columns,
        # Not traversed: it holds no graphs, and may hold large arrays.
        work=dask.delayed(work, traverse=False, pure=True),
        dtype=object,
        meta=np.empty((0, 0), dtype=object),
        chunks=((1,) * rows.numblocks[0], (1,)),
    )
    return list(results.to_delayed(optimize_graph=True)[:, 0])


def _do(*arrays: Array, work: Any, block_id: tuple[int, ...]) -> Any:
    return work(block_id[0], *arrays)


def _as_column(array: da.Array) -> da.Array:
    return da.map_blocks(
        _stand_up,
        array,
        new_axis=1,
        chunks=(array.chunks[0], (1,)),
        meta=np.empty((0, 0), dtype=array.dtype),
    )


def _stand_up(values: Array) -> Array:
    return np.asarray(values)[:, None]


def _add_in_tree(parts: list[Any]) -> Any:
    add = dask.delayed(_add, pure=True)
    while len(parts) > 1:
        parts = [add(parts[i : i + FAN_IN]) for i in range(0, len(parts), FAN_IN)]
    return parts[0]


def _add(parts: list[Any]) -> Any:
    # By `+`, which makes a new sum: what comes from other tasks may be needed there again.
    return reduce(operator.add, parts)
