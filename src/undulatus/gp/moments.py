"""Passes over the data before a fit: moments of the features, classes, and mistakes.

:func:`summarise` reads rows in memory or on disk, or those of one chunk; the moments of chunks add
up to those of the whole. So do the classes and weights that :func:`count_classes` finds in chunks
of labels, and the first mistake is named by its row in the whole.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from undulatus.errors import InputError
from undulatus.gp.backends import HOST, Array, Backend, backend_of, to_host
from undulatus.gp.data import (
    TINY,
    Standardisation,
    block_rows,
    map_blocks,
    require_finite,
    require_phases,
    unmasked,
)

LARGEST_VALUE = 9.9e36
"""No feature may be as large: 9.97e36 is netCDF's default fill value."""

LARGEST_WEIGHT = 1e30
"""All weights together may be this large: sums of more overflow in single precision."""

TENSOR_ROWS = 1_000_000
"""Rows on a device that are summarised at a time."""

MOST_LABELS = 1000
"""Most distinct labels that are collected: more are no classes."""


@dataclass(frozen=True)
class FeatureMoments:
    """Weighted moments of each feature, (d,), that can be added.

    ``squares`` are the sums of squares about the mean; ``low`` and ``high`` the smallest and
    largest value.
    """

    total_weight: float
    mean: Array
    squares: Array
    low: Array
    high: Array

    @classmethod
    def of_rows(cls, x: Array, weight: Array | None = None, xp: Backend = HOST) -> FeatureMoments:
        """Return the moments of double-precision rows (n, d); without rows, all are zero."""
        if not len(x):
            return cls.empty(x.shape[1])
        w = xp.ones_like(x[:, 0]) if weight is None else xp.double(weight)
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(w.sum())
            mean = w @ x / max(total, TINY)
            squares = w @ (x - mean) ** 2
        return cls(total, *map(to_host, (mean, squares, xp.amin(x, 0), xp.amax(x, 0))))

    @classmethod
    def empty(cls, d: int) -> FeatureMoments:
        """Return the moments of no rows."""
        return cls(0.0, np.zeros(d), np.zeros(d), np.full(d, np.inf), np.full(d, -np.inf))

    def __add__(self, other: FeatureMoments) -> FeatureMoments:
        # Chan's update: exact for blocks, without cancellation for a mean far from zero.
        total, w = self.total_weight, other.total_weight
        both = max(total + w, TINY)
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            squares = self.squares + (other.squares + step**2 * (total * w / both))
            mean = self.mean + step * (w / both)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return FeatureMoments(total + w, mean, squares, low, high)

    @property
    def variance(self) -> Array:
        """The weighted variance of each feature, (d,)."""
        return self.squares / max(self.total_weight, TINY)

    def require_moderate(self, columns: Callable[[int], str]) -> None:
        """Raise, naming the column, if values are too large to be used."""
        largest = np.maximum(self.high, -self.low)
        usable = np.isfinite(self.variance) & (largest < LARGEST_VALUE)
        if not usable.all():
            column = int(np.argmin(usable))
            raise InputError(
                f"Values in column {columns(column)} are too large to be used: up to "
                f"{largest[column]:.3g}. Drop rows with fill values, or rescale the column."
            )


def summarise(
    rows: Any,
    weight: Array | None,
    threads: int,
    columns: Callable[[int], str],
    first_row: int = 0,
) -> FeatureMoments:
    """Read the data once; raise, naming row and column, at the first value that is no number."""
    xp = backend_of(rows)

    def block_moments(block: slice) -> FeatureMoments:
        x = xp.double(unmasked(rows[block]))
        moments = FeatureMoments.of_rows(x, None if weight is None else weight[block], xp)
        # A NaN is both the smallest and the largest value.
        if not np.isfinite([moments.low, moments.high]).all():
            require_finite(to_host(x), columns, first_row + block.start)
        return moments

    n, d = rows.shape
    size = TENSOR_ROWS if xp.on_device else block_rows(d, 8)
    parts = map_blocks(block_moments, n, size, threads)
    total = reduce(operator.add, parts, FeatureMoments.empty(d))
    total.require_moderate(columns)
    return total


@dataclass(frozen=True)
class LabelledChunk:
    """A chunk of the user's data, in memory; its first row is row ``first_row`` of the whole.

    Rows (n, d) that are to be classified have no labels.
    """

    number: int
    first_row: int
    rows: Array
    labels: Any
    weight: Array | None
    groups: Array | None


@dataclass(frozen=True)
class ClassCounts:
    """What one pass over labels and weights in chunks finds; those of chunks can be added.

    Attributes
    ----------
    labels : array
        Distinct labels, sorted, at most ``MOST_LABELS``.
    totals : array
        Weight of the rows of each label.
    used : tuple of int
        Number of rows of positive weight in each chunk.
    """

    labels: Array
    totals: Array
    used: tuple[int, ...]

    def __add__(self, other: ClassCounts) -> ClassCounts:
        labels, totals = _add_up(
            np.concatenate([self.labels, other.labels]),
            np.concatenate([self.totals, other.totals]),
        )
        return ClassCounts(labels, totals, self.used + other.used)


def count_classes(chunk: LabelledChunk) -> ClassCounts:
    """Return the labels of one chunk that occur, with their weights, checked."""
    weight = np.ones(len(chunk.labels)) if chunk.weight is None else chunk.weight
    if not np.all((weight >= 0) & np.isfinite(weight)):
        raise InputError("Negative values, NaN or infinity in sample_weight.")
    require_known(chunk.labels, "y", chunk.first_row)
    if chunk.groups is not None:
        require_known(chunk.groups, "groups", chunk.first_row)
    return ClassCounts(*_add_up(chunk.labels, weight), (int(np.count_nonzero(weight)),))


def _add_up(labels: Array, weight: Array) -> tuple[Array, Array]:
    """Return distinct labels, sorted, and the weight of each."""
    distinct, numbers = np.unique(labels, return_inverse=True)
    totals = np.bincount(numbers, weight, len(distinct))
    return distinct[:MOST_LABELS], totals[:MOST_LABELS]


def require_weights(weight: Array) -> None:
    """Raise if weights >= 0, of rows or of classes, are all zero or too large to be added up."""
    with np.errstate(over="ignore"):
        total = float(np.sum(weight))
    if total == 0:
        raise InputError("Weights of rows must not all be zero: no row is left to fit.")
    if not total <= LARGEST_WEIGHT:
        raise InputError(
            f"The weights of the rows are too large: up to {np.max(weight):.3g}, and {total:.3g} "
            f"in all, where {LARGEST_WEIGHT:g} is the most. Divide sample_weight, or the numbers "
            f"of class_weight, by their mean."
        )


def require_known(values: Array, name: str, first_row: int = 0) -> None:
    """Raise, naming the first row, if labels or groups (n,) hold None, NaN, NaT or infinity."""
    kind = values.dtype.kind
    if kind == "O":
        missing = np.fromiter(map(_is_missing, values), dtype=bool, count=len(values))
    elif kind in "fcmM":
        missing = ~np.isfinite(values)
    else:
        return
    if missing.any():
        raise InputError(
            f"Input {name} contains {'NaN or infinity' if kind in 'fc' else 'None or NaN'} in "
            f"{np.count_nonzero(missing):,} of {len(values):,} rows, first in row "
            f"{first_row + int(np.argmax(missing))}. Drop these rows, or give them a "
            f"{'label' if name == 'y' else 'group'}."
        )


def _is_missing(value: Any) -> bool:
    # pandas' NA does not say whether it equals itself.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def encode(labels: Array, classes: Array) -> Array:
    """Return the number of each label in the sorted ``classes``, (n,); bool for two classes."""
    if len(classes) == 2:
        return np.asarray(labels == classes[1])
    smallest = np.min_scalar_type(len(classes) - 1)
    return np.searchsorted(classes, labels).astype(smallest)


def apply_class_weights(
    class_weights: Array | None, codes: Array, weight: Array | None
) -> Array | None:
    """Return the weights (n,) times the weight of each row's class; None means ones."""
    if class_weights is None:
        return weight
    own = class_weights[codes.astype(int)]
    return own if weight is None else weight * own


def require_phases_of_rows(
    rows: Any,
    absent: Array | None,
    standardisation: Standardisation,
    frequencies: Array,
    columns: Callable[[int], str],
    first_row: int = 0,
) -> None:
    """Raise, naming row and column, if a row lies too far out; rows ``absent`` (n,) may."""
    size = block_rows(rows.shape[1], 8)
    for start in range(0, rows.shape[0], size):
        x = standardisation(np.asarray(to_host(rows[start : start + size])), np.float64)
        if absent is not None:
            x[absent[start : start + size]] = 0.0
        require_phases(x, frequencies, columns, first_row + start)
