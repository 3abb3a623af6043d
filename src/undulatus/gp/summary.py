"""Mean, variance and range of each feature, from one look at the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError
from undulatus.gp.blocks import block_rows, map_blocks, require_finite

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
