"""Mean, variance and range of each feature, from one look at the rows.

A first look at labelled rows: classes, weights, the spread of each class, what is wrong.

Surveys of parts add up to that of the whole, so that one reduction over chunks tells all that
is to be known before a fit, whatever the classes will turn out to weigh.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError
from undulatus.gp.blocks import (
    Standardisation,
    block_rows,
    map_blocks,
    require_finite,
    require_phases,
)

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Summary:
    """Weighted mean and variance, smallest and largest value of each feature, (d,) each."""

    mean: Array
    variance: Array
    low: Array
    high: Array
    total_weight: float


@dataclass(frozen=True)
class Spread:
    """Sums that add up to a summary: ``squares`` are weighted squares about the mean, (d,)."""

    total_weight: float
    mean: Array
    squares: Array
    low: Array
    high: Array

    @classmethod
    def of(cls, x: Array, weight: Array | None = None) -> Spread:
        """Return the spread of rows (n, d) of double precision; of no rows, nothing's."""
        d = x.shape[1]
        if not len(x):
            return cls.of_nothing(d)
        w = np.ones(len(x)) if weight is None else np.asarray(weight, dtype=np.float64)
        total = float(w.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = w @ x / total if total > 0 else np.zeros(d)
            return cls(total, mean, w @ (x - mean) ** 2, x.min(axis=0), x.max(axis=0))

    @classmethod
    def of_nothing(cls, d: int) -> Spread:
        """Return what adds nothing."""
        return cls(0.0, np.zeros(d), np.zeros(d), np.full(d, np.inf), np.full(d, -np.inf))

    def __add__(self, other: Spread) -> Spread:
        # Chan's update: exact for blocks, and no cancellation for far-off means.
        total, w = self.total_weight, other.total_weight
        both = max(total + w, np.finfo(float).tiny)
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            squares = self.squares + (other.squares + step**2 * (total * w / both))
            mean = self.mean + step * (w / both)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Spread(total + w, mean, squares, low, high)

    def times(self, factor: float) -> Spread:
        """Return the spread of the same rows, each ``factor`` times as heavy."""
        return replace(
            self, total_weight=self.total_weight * factor, squares=self.squares * factor
        )

    def summary(self, columns: Callable[[int], str]) -> Summary:
        """Return the summary; raise, naming the column, if values were too large for it."""
        variance = self.squares / max(self.total_weight, np.finfo(float).tiny)
        if not np.isfinite(variance).all():
            column = int(np.argmin(np.isfinite(variance)))
            raise InputError(
                f"Values in column {columns(column)} are too large to be used: up to "
                f"{max(self.high[column], -self.low[column]):.3g}. Rescale the column."
            )
        return Summary(self.mean, variance, self.low, self.high, self.total_weight)


def summarise(
    rows: Any, weight: Array | None, threads: int, columns: Callable[[int], str]
) -> Summary:
    """Read the data once; raise, with row and column, at the first NaN or infinity."""
    n, d = rows.shape

    def part(block: slice) -> Spread:
        x = np.asarray(rows[block], dtype=np.float64)
        require_finite(x, columns, first_row=block.start)
        return Spread.of(x, None if weight is None else weight[block])

    total = Spread.of_nothing(d)
    for spread in map_blocks(part, n, block_rows(d, 8), threads):
        total = total + spread
    return total.summary(columns)


MOST_LABELS = 100
"""Distinct labels beyond this many are not told apart: two are all that can be used."""


@dataclass(frozen=True)
class Chunk:
    """Rows as a user has them, in memory, from the row number ``first_row`` on."""

    number: int
    first_row: int
    rows: Array
    labels: Array
    weight: Array | None
    groups: Array | None


@dataclass(frozen=True)
class Survey:
    """What one look tells.

    Attributes
    ----------
    labels : array
        Distinct labels, sorted; of too many, some.
    spreads : tuple of Spread
        Of the rows of positive weight with each label; empty when there are too many labels.
    used : tuple of int
        Rows of positive weight in each chunk.
    error : InputError or None
        The first mistake in the data, if any.
    """

    labels: Array
    spreads: tuple[Spread, ...]
    used: tuple[int, ...]
    error: InputError | None

    def __add__(self, other: Survey) -> Survey:
        labels = np.unique(np.concatenate([self.labels, other.labels]))[:MOST_LABELS]
        spreads: dict[Any, Spread] = {}
        for survey in (self, other):
            for label, spread in zip(survey.labels.tolist(), survey.spreads, strict=False):
                spreads[label] = spreads[label] + spread if label in spreads else spread
        known = len(labels) <= 2
        return Survey(
            labels,
            tuple(spreads[label] for label in labels.tolist()) if known else (),
            self.used + other.used,
            self.error or other.error,
        )


def survey(chunk: Chunk, columns: Callable[[int], str]) -> Survey:
    """Return what a look at one chunk tells; rows of no weight must be finite like the others."""
    found = Survey(np.unique(chunk.labels[:0]), (), (0,), None)
    try:
        _require_usable(chunk)
        found = replace(found, labels=np.unique(chunk.labels)[:MOST_LABELS])
        if len(found.labels) <= 2:
            found = replace(found, spreads=_spreads(chunk, found.labels, columns))
    except InputError as error:
        # Returned, not raised: of several chunks the first is to be blamed, not the fastest.
        return replace(found, labels=found.labels[:0], error=error)
    used = len(chunk.rows) if chunk.weight is None else int(np.count_nonzero(chunk.weight))
    return replace(found, used=(used,))


def _require_usable(chunk: Chunk) -> None:
    if chunk.labels.dtype.kind == "f" and not np.isfinite(chunk.labels).all():
        raise InputError("Input y contains NaN or infinity. Drop the rows without a label.")
    if chunk.weight is not None and not np.isfinite(chunk.weight).all():
        raise InputError("Input sample_weight contains NaN or infinity.")
    if chunk.weight is not None and np.any(chunk.weight < 0):
        raise InputError("Negative values in data passed to `sample_weight`.")


def _spreads(chunk: Chunk, labels: Array, columns: Callable[[int], str]) -> tuple[Spread, ...]:
    n, d = chunk.rows.shape
    spreads = [Spread.of_nothing(d) for _ in labels]
    size = block_rows(d, 8)
    for start in range(0, n, size):
        block = slice(start, start + size)
        x = np.asarray(chunk.rows[block], dtype=np.float64)
        require_finite(x, columns, chunk.first_row + start)
        weight = None if chunk.weight is None else chunk.weight[block]
        for i, label in enumerate(labels):
            of_label = chunk.labels[block] == label
            if weight is not None:
                of_label &= weight > 0
            own = None if weight is None else weight[of_label]
            spreads[i] = spreads[i] + Spread.of(x[of_label], own)
    return tuple(spreads)


def weigh_classes(factors: Array | None, positive: Array, weight: Array | None) -> Array | None:
    """Return the weights (n,) times those of the classes."""
    if factors is None:
        return weight
    factor = factors[positive.astype(int)]
    return factor if weight is None else weight * factor


def require_phases_of_rows(
    rows: Any,
    absent: Array | None,
    standardisation: Standardisation,
    frequencies: Array,
    columns: Callable[[int], str],
    first_row: int = 0,
) -> None:
    """Raise, naming row and column, if any row but those ``absent`` (n,) lies too far out."""
    size = block_rows(rows.shape[1], 8)
    for start in range(0, rows.shape[0], size):
        x = standardisation(np.asarray(rows[start : start + size]), np.float64)
        if absent is not None:
            x[absent[start : start + size]] = 0.0
        require_phases(x, frequencies, columns, first_row + start)
