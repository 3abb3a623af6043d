"""What is done with one chunk, in the task that reads it: pixels, sums, shares, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.survey import Chunk, require_phases_of_rows, weigh_classes
from undulatus.gp.validation import number_groups

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
