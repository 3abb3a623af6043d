"""One pass over the rows before a fit: moments of the features, classes, and mistakes.

:func:`summarise` reads rows in memory or on disk. For rows in chunks, :func:`class_moments`
gives the moments of each class in one chunk, and those of chunks add up to those of the whole:
one reduction finds the classes, how to standardise under any class weights, and the first
mistake in the data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from undulatus.errors import InputError
from undulatus.gp.backends import Array, is_tensor, make_backend, to_host
from undulatus.gp.data import (
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
class FeatureSummary:
    """Weighted mean and variance, smallest and largest value of each feature, (d,) each."""

    mean: Array
    variance: Array
    low: Array
    high: Array
    total_weight: float


@dataclass(frozen=True)
class FeatureMoments:
    """Moments of features that can be added; ``squares`` are weighted, about the mean, (d,)."""

    total_weight: float
    mean: Array
    squares: Array
    low: Array
    high: Array

    @classmethod
    def of_rows(cls, x: Array, weight: Array | None = None) -> FeatureMoments:
        """Return the moments of double-precision rows (n, d); without rows, all are zero."""
        d = x.shape[1]
        if not len(x):
            return cls.empty(d)
        w = np.ones(len(x)) if weight is None else np.asarray(weight, dtype=np.float64)
        total = float(w.sum())
        with np.errstate(over="ignore", invalid="ignore"):
            mean = w @ x / total if total > 0 else np.zeros(d)
            return cls(total, mean, w @ (x - mean) ** 2, x.min(axis=0), x.max(axis=0))

    @classmethod
    def empty(cls, d: int) -> FeatureMoments:
        """Return the moments of no rows."""
        return cls(0.0, np.zeros(d), np.zeros(d), np.full(d, np.inf), np.full(d, -np.inf))

    def __add__(self, other: FeatureMoments) -> FeatureMoments:
        # Chan's update: exact for blocks, without cancellation for a mean far from zero.
        total, w = self.total_weight, other.total_weight
        both = max(total + w, np.finfo(float).tiny)
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            squares = self.squares + (other.squares + step**2 * (total * w / both))
            mean = self.mean + step * (w / both)
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return FeatureMoments(total + w, mean, squares, low, high)

    def reweight(self, factor: float) -> FeatureMoments:
        """Return the moments of the same rows with ``factor`` times their weights."""
        return replace(
            self, total_weight=self.total_weight * factor, squares=self.squares * factor
        )

    def summary(self, columns: Callable[[int], str]) -> FeatureSummary:
        """Return the summary; raise, naming the column, if its values are too large."""
        variance = self.squares / max(self.total_weight, np.finfo(float).tiny)
        largest = np.maximum(self.high, -self.low)
        usable = np.isfinite(variance) & (largest < LARGEST_VALUE)
        if not usable.all():
            column = int(np.argmin(usable))
            raise InputError(
                f"Values in column {columns(column)} are too large to be used: up to "
                f"{largest[column]:.3g}. Drop rows with fill values, or rescale the column."
            )
        return FeatureSummary(self.mean, variance, self.low, self.high, self.total_weight)


def summarise(
    rows: Any, weight: Array | None, threads: int, columns: Callable[[int], str]
) -> FeatureSummary:
    """Read the data once; raise, naming row and column, at the first NaN or infinity."""
    n, d = rows.shape

    def block_moments(block: slice) -> FeatureMoments:
        if is_tensor(rows):
            return _moments_of_tensor(rows[block], weight, block, columns)
        x = np.asarray(unmasked(rows[block]), dtype=np.float64)
        require_finite(x, columns, first_row=block.start)
        return FeatureMoments.of_rows(x, None if weight is None else weight[block])

    total = FeatureMoments.empty(d)
    size = TENSOR_ROWS if is_tensor(rows) else block_rows(d, 8)
    for moments in map_blocks(block_moments, n, size, threads):
        total = total + moments
    return total.summary(columns)


def _moments_of_tensor(
    rows: Any, weight: Array | None, block: slice, columns: Callable[[int], str]
) -> FeatureMoments:
    """Return the moments of rows on a device, computed there."""
    xp = make_backend(np.float64, str(rows.device))
    x = xp.double(rows)
    if not bool(xp.isfinite(x.sum())):
        require_finite(to_host(x), columns, first_row=block.start)
    w = xp.ones_like(x[:, 0]) if weight is None else xp.double(weight[block])
    total = float(w.sum())
    mean = w @ x / max(total, float(np.finfo(float).tiny))
    found = mean, w @ (x - mean) ** 2, x.amin(0), x.amax(0)
    return FeatureMoments(total, *map(to_host, found))


@dataclass(frozen=True)
class LabelledChunk:
    """A chunk of the user's data, in memory; its first row is row ``first_row`` of the whole."""

    number: int
    first_row: int
    rows: Array
    labels: Array
    weight: Array | None
    groups: Array | None


@dataclass(frozen=True)
class ClassMoments:
    """What one pass over chunks of labelled rows finds; those of chunks can be added.

    Attributes
    ----------
    labels : array
        Distinct labels, sorted, at most ``MOST_LABELS``.
    moments : tuple of FeatureMoments
        For each label, of its rows of positive weight; empty if there are too many labels.
    used : tuple of int
        Number of rows of positive weight in each chunk.
    error : InputError or None
        The first mistake in the data, if any.
    """

    labels: Array
    moments: tuple[FeatureMoments, ...]
    used: tuple[int, ...]
    error: InputError | None

    def __add__(self, other: ClassMoments) -> ClassMoments:
        labels = np.unique(np.concatenate([self.labels, other.labels]))[:MOST_LABELS]
        moments: dict[Any, FeatureMoments] = {}
        for part in (self, other):
            for label, own in zip(part.labels.tolist(), part.moments, strict=False):
                moments[label] = moments[label] + own if label in moments else own
        return ClassMoments(
            labels,
            tuple(moments[label] for label in labels.tolist())
            if len(labels) < MOST_LABELS
            else (),
            self.used + other.used,
            self.error or other.error,
        )


def class_moments(chunk: LabelledChunk, columns: Callable[[int], str]) -> ClassMoments:
    """Return the class moments of one chunk; rows of weight zero must be finite too."""
    no_labels = np.unique(chunk.labels[:0])
    try:
        _require_usable(chunk)
        labels = np.unique(chunk.labels)[:MOST_LABELS]
        few = len(labels) < MOST_LABELS
        moments = _moments_by_label(chunk, labels, columns) if few else ()
    except InputError as error:
        # Returned, not raised: the error to report is that of the first chunk, not the fastest.
        return ClassMoments(no_labels, (), (0,), error)
    used = len(chunk.rows) if chunk.weight is None else int(np.count_nonzero(chunk.weight))
    return ClassMoments(labels, moments, (used,), None)


def _require_usable(chunk: LabelledChunk) -> None:
    if chunk.labels.dtype.kind == "f" and not np.isfinite(chunk.labels).all():
        raise InputError("Input y contains NaN or infinity. Drop the rows without a label.")
    if chunk.weight is not None and not np.isfinite(chunk.weight).all():
        raise InputError("Input sample_weight contains NaN or infinity.")
    if chunk.weight is not None and np.any(chunk.weight < 0):
        raise InputError("Negative values in data passed to `sample_weight`.")
    if chunk.weight is not None:
        require_weights(chunk.weight)
    if chunk.groups is not None:
        require_known(chunk.groups, "groups", chunk.first_row)
    if chunk.labels.dtype.kind == "O":
        require_known(chunk.labels, "y", chunk.first_row)


def require_weights(weight: Array) -> None:
    """Raise if weights, which are finite and not negative, are too large to be added up."""
    largest = float(np.max(weight, initial=0.0))
    if largest * len(weight) > LARGEST_WEIGHT:
        with np.errstate(over="ignore"):
            total = float(np.sum(weight))
        if total > LARGEST_WEIGHT:
            raise InputError(
                f"The weights of the rows are too large: up to {largest:.3g}, and {total:.3g} in "
                f"all, where {LARGEST_WEIGHT:g} is the most. Divide sample_weight, or the numbers "
                f"of class_weight, by their mean."
            )


def require_known(values: Array, name: str, first_row: int = 0) -> None:
    """Raise, naming the first row, if labels or groups (n,) hold None, NaN or NaT."""
    kind = values.dtype.kind
    if kind == "O":
        missing = np.fromiter(map(_is_missing, values), dtype=bool, count=len(values))
    elif kind in "fcmM":
        missing = np.asarray(values != values)
    else:
        return
    if missing.any():
        raise InputError(
            f"Input {name} contains None or NaN in {np.count_nonzero(missing):,} of "
            f"{len(values):,} rows, first in row {first_row + int(np.argmax(missing))}. Drop "
            f"these rows, or give them a {'label' if name == 'y' else 'group'}."
        )


def _is_missing(value: Any) -> bool:
    # pandas' NA does not say whether it equals itself.
    return value is None or type(value).__name__ == "NAType" or bool(value != value)


def _moments_by_label(
    chunk: LabelledChunk, labels: Array, columns: Callable[[int], str]
) -> tuple[FeatureMoments, ...]:
    n, d = chunk.rows.shape
    moments = [FeatureMoments.empty(d) for _ in labels]
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
            moments[i] = moments[i] + FeatureMoments.of_rows(x[of_label], own)
    return tuple(moments)


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
