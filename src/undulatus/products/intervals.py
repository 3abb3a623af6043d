"""Rows that can be scored, the sums that scores are functions of, and confidence intervals.

:func:`check_rows` checks what was given, :func:`resample` sums it over units of rows and draws
these again; :class:`Intervals` gives every score of :mod:`undulatus.products.scores` its interval.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf
from scipy.stats import norm

from undulatus.errors import InputError

Array = npt.NDArray[Any]

MOST_UNITS = 2_048
"""The most units that a bootstrap draws from; rows or groups beyond are put together at random."""

SUM_TOLERANCE = 1e-4
"""How far the probabilities of a row may be from a sum of one: single precision is well within."""


@dataclass(frozen=True)
class Estimate:
    """A score with the ends of its confidence interval.

    All are NaN where the score is 0/0, as the recall of a class that does not occur; the ends are
    NaN where the rows say nothing about them, as when all belong to one group.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if np.isnan(self.value):
            return "-"
        if np.isnan(self.low):
            return f"{self.value:.4f}"
        return f"{self.value:.4f} ({self.low:.4f} to {self.high:.4f})"

    def as_dict(self) -> dict[str, float | None]:
        """Return the three numbers by name; None for NaN, which JSON does not have."""
        return {name: None if np.isnan(v) else v for name, v in asdict(self).items()}


# Rows that can be scored


@dataclass(frozen=True)
class Rows:
    """Checked rows; codes and predictions are columns of the probability."""

    classes: list[Any]
    codes: Array
    predicted: Array
    probability: Array
    weight: Array
    groups: Array
    """Numbered from zero; without groups, every row is one of its own."""
    n_groups: int
    grouped: bool

    @property
    def k(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def right(self) -> Array:
        """Which rows are predicted as what they are, (n,) bool."""
        return np.asarray(self.codes == self.predicted)


def check_rows(y_true: Any, probability: Any, classes: Any, weight: Any, groups: Any) -> Rows:
    """Return the rows that :func:`undulatus.products.scores.score_classes` was given, checked."""
    columns = np.asarray(classes).tolist()
    if len(columns) < 2 or len(set(columns)) < len(columns):
        raise InputError(
            f"classes must name two or more different classes, but it is {_some(columns)}. Give "
            f"the class of each column of the probability, such as model.classes_."
        )
    y = np.asarray(y_true)
    if y.ndim != 1 or len(y) == 0:
        raise InputError(
            f"y_true has shape {y.shape}, but (n,) is needed: the class of one row or more."
        )
    chances = _check_probability(probability, len(y), len(columns))
    weights = np.ones(len(y)) if weight is None else _check_weight(weight, len(y))
    number, n_groups = np.arange(len(y)), len(y)
    if groups is not None:
        given = _check_length(groups, "groups", len(y))
        found, number = np.unique(given, return_inverse=True)
        n_groups = len(found)
    return Rows(
        classes=columns,
        codes=_encode(y, columns),
        predicted=chances.argmax(axis=1),
        probability=chances,
        weight=weights,
        groups=number,
        n_groups=n_groups,
        grouped=groups is not None,
    )


def _check_length(values: Any, name: str, n: int) -> Array:
    array = np.asarray(values)
    if array.shape != (n,):
        raise InputError(
            f"{name} has shape {array.shape}, but y_true has {n:,} rows. Give one value a row."
        )
    return array


def _check_weight(weight: Any, n: int) -> Array:
    weights = _check_length(weight, "weight", n).astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0.0))
    if bad.any():
        row = int(bad.argmax())
        raise InputError(
            f"weight is {weights[row]:g} in row {row}, but weights are finite and not negative. "
            f"Give such rows a weight of 0, or drop them."
        )
    if weights.sum() == 0.0:
        raise InputError("weight is 0 in every row. Give one row or more a positive weight.")
    return weights


def _check_probability(probability: Any, n: int, k: int) -> Array:
    chances = np.asarray(probability, dtype=np.float64)
    if chances.ndim != 2 or chances.shape[1] != k:
        raise InputError(
            f"probability has shape {chances.shape}, but there are {k} classes. Give one column "
            f"a class, (n, {k}), as predict_proba returns them."
        )
    if len(chances) != n:
        raise InputError(
            f"probability has {len(chances):,} rows, but y_true has {n:,}. Give both for the "
            f"same rows."
        )
    missing = ~np.isfinite(chances).all(axis=1)
    if missing.any():
        raise InputError(
            f"probability is NaN or infinite in {missing.sum():,} of {n:,} rows, first in row "
            f"{missing.argmax()}. Leave out rows without a prediction."
        )
    sums = chances.sum(axis=1)
    bad = (chances < 0.0).any(axis=1) | (np.abs(sums - 1.0) > SUM_TOLERANCE)
    if bad.any():
        row = int(bad.argmax())
        values = ", ".join(f"{value:.6g}" for value in chances[row, :6])
        raise InputError(
            f"{bad.sum():,} of {n:,} rows of probability are not probabilities that sum to one, "
            f"first row {row}: {values}{', ...' if k > 6 else ''} (sum {sums[row]:.6g}). Divide "
            f"each row by its sum, or give what predict_proba returns."
        )
    return chances


def _encode(y: Array, classes: list[Any]) -> Array:
    """Return the column of each true class, (n,)."""
    column = {label: index for index, label in enumerate(classes)}
    codes = np.array([column.get(label, -1) for label in y.tolist()])
    if (codes < 0).any():
        strange = list(dict.fromkeys(y[codes < 0].tolist()))
        raise InputError(
            f"y_true has {np.count_nonzero(codes < 0):,} rows of classes that the probability "
            f"does not have: {_some(strange)}.\n  classes: {_some(classes)}\nLeave these rows "
            f"out, or score a model that was fitted on all classes."
        )
    return codes


def _some(values: list[Any], most: int = 10) -> str:
    text = ", ".join(map(repr, values[:most]))
    return f"{text} and {len(values) - most} more" if len(values) > most else text or "empty"


def check_options(confidence: float, bins: int, replicates: int) -> None:
    """Raise an error that names an option out of its range."""
    if not 0.0 < confidence < 1.0:
        raise InputError(
            f"confidence is {confidence!r}, but it must be between 0 and 1, such as 0.95."
        )
    for name, value in (("bins", bins), ("replicates", replicates)):
        if value < 1:
            raise InputError(f"{name} is {value!r}, but it must be 1 or more.")


# Sums that scores are functions of


@dataclass(frozen=True)
class Sums:
    """Weighted sums over rows, for each of u units or resamples of them.

    ``cells`` (u, k, k) are weights by true and predicted class, ``nll`` and ``brier`` (u, 1) sums
    of those; ``top_gaps`` (u, 1, bins) and ``class_gaps`` (u, k, bins) are probability less truth,
    for the most probable class and for each class.
    """

    cells: Array
    nll: Array
    brier: Array
    top_gaps: Array
    class_gaps: Array

    def resample(self, counts: Array) -> Sums:
        """Return the sums in which unit u occurs ``counts[r, u]`` times, for each resample r."""
        counts = counts.astype(np.float64)
        return Sums(*(np.tensordot(counts, sums, 1) for sums in vars(self).values()))

    def mean(self, sums: Array) -> Array:
        """Divide sums, (u, ...), by the weight of all rows."""
        total = self.cells.sum(axis=(1, 2))
        return np.asarray(sums / total.reshape(-1, *[1] * (sums.ndim - 1)))


def _sum_by_unit(rows: Rows, unit: Array, count: int, bins: int) -> Sums:
    """Return the sums over the rows of each of ``count`` units, given the unit of each row."""

    def add(values: Array, part: Array | int = 0, parts: int = 1) -> Array:
        total = np.bincount(unit * parts + part, weights=values, minlength=count * parts)
        return total.reshape(count, parts)

    def gaps(chance: Array, happened: Array) -> Array:
        return add(rows.weight * (chance - happened), bin_of(chance, bins), bins)

    k, every_row = rows.k, np.arange(len(rows.codes))
    true = rows.probability[every_row, rows.codes]
    square = np.einsum("ij,ij->i", rows.probability, rows.probability)
    chances = rows.probability.T
    return Sums(
        cells=add(rows.weight, rows.codes * k + rows.predicted, k * k).reshape(count, k, k),
        # As scikit-learn's log_loss: certain and wrong is a large loss, not an infinite one.
        nll=add(-rows.weight * np.log(np.maximum(true, np.finfo(np.float64).eps))),
        brier=add(rows.weight * (square - 2.0 * true + 1.0)),
        top_gaps=gaps(rows.probability[every_row, rows.predicted], rows.right)[:, None],
        class_gaps=np.stack([gaps(chances[c], rows.codes == c) for c in range(k)], axis=1),
    )


def bin_of(probability: Array, bins: int) -> Array:
    """Return the bin of each probability, among bins of equal width."""
    return np.minimum((probability * bins).astype(int), bins - 1)


# Intervals


@dataclass(frozen=True)
class Intervals:
    """What confidence intervals of scores are made from; without ``resampled`` there are none."""

    rows: Rows
    total: Sums
    resampled: Sums | None
    confidence: float

    def of(self, score_of: Callable[[Sums], Array]) -> list[Estimate]:
        """Return the m scores that a function gives of sums, (u, m), with bootstrap intervals."""
        values = score_of(self.total)[0]
        if self.resampled is None:
            return [Estimate(float(value), np.nan, np.nan) for value in values]
        again = score_of(self.resampled)
        return [
            _between(float(value), column, self.confidence)
            for value, column in zip(values, again.T, strict=True)
        ]

    def of_gaps(self, gaps_of: Callable[[Sums], Array]) -> list[Estimate]:
        """Return the m sums of the sizes of gaps, (u, m, b), with intervals for those of no noise.

        The size of a gap is too large in the mean, as noise makes it larger more often than
        smaller: resamples are shifted to the sum less the noise in it. The interval begins at zero
        where noise alone could make the sum as large.
        """
        gaps = gaps_of(self.total)[0]
        values = np.abs(gaps).sum(axis=1)
        if self.resampled is None:
            return [Estimate(float(value), np.nan, np.nan) for value in values]
        again = gaps_of(self.resampled)
        sizes = np.abs(again).sum(axis=2)
        noise = _noise_in_size(gaps, again.std(axis=0)).sum(axis=1)
        shifted = np.maximum(sizes - sizes.mean(axis=0) + values - noise, 0.0)
        alone = np.abs(again - gaps).sum(axis=2)
        most = np.quantile(alone, 0.5 + 0.5 * self.confidence, axis=0)
        found = [
            _between(float(value), column, self.confidence)
            for value, column in zip(values, shifted.T, strict=True)
        ]
        return [
            replace(one, low=0.0) if one.value <= limit else one
            for one, limit in zip(found, most, strict=True)
        ]

    def of_share(self, success: Array, among: Array) -> Estimate:
        """Return the share of successes among some rows, both (n,) bool, with Wilson's interval.

        Wilson (1927), doi:10.1080/01621459.1927.10502953.
        """
        weight = self.rows.weight[among]
        if weight.sum() == 0.0:
            return Estimate(np.nan, np.nan, np.nan)
        happened = success[among].astype(np.float64)
        share = min(float(weight @ happened / weight.sum()), 1.0)
        n = _effective_rows(self.rows, among, weight, happened - share, share * (1.0 - share))
        if n is None:
            return Estimate(share, np.nan, np.nan)
        z = float(norm.ppf(0.5 + 0.5 * self.confidence))
        middle = (share + z * z / (2.0 * n)) / (1.0 + z * z / n)
        half = z * np.sqrt(share * (1.0 - share) / n + z * z / (4.0 * n * n)) / (1.0 + z * z / n)
        low, high = max(middle - half, 0.0), min(middle + half, 1.0)
        # By rounding alone could the share be outside, where it is 0 or 1.
        return Estimate(share, float(min(low, share)), float(max(high, share)))


def _effective_rows(
    rows: Rows, among: Array, weight: Array, residual: Array, variance: float
) -> float | None:
    """Return how many independent, equal rows know a share as well; None of a single group."""
    groups = rows.groups[among]
    sizes = np.bincount(groups, weights=weight)
    present = np.count_nonzero(sizes)
    if rows.grouped and present < 2:
        return None
    independent = _kish(weight)
    spread = float(np.sum(np.bincount(groups, weights=weight * residual) ** 2))
    if rows.grouped:
        spread *= present / (present - 1)
    if variance == 0.0 or spread == 0.0:
        # No residuals to see by how alike the rows of a group are: take them as the same.
        return _kish(sizes)
    # Groups never count for more than their rows would: that would be chance.
    found = variance * weight.sum() ** 2 / spread
    return min(found, independent) if rows.grouped else found


def _kish(weight: Array) -> float:
    """Return (Σw)² / Σw², the number of equal weights that a mean is as precise with."""
    return float(weight.sum() ** 2 / np.sum(weight**2))


def resample(
    rows: Rows, confidence: float, bins: int, replicates: int, rng: np.random.Generator
) -> Intervals:
    """Return the sums of all rows, and those of resamples of at most ``MOST_UNITS`` units."""
    count = min(rows.n_groups, MOST_UNITS)
    unit = rows.groups
    if rows.n_groups > count:
        unit = (rng.permutation(rows.n_groups) % count)[rows.groups]
    units = _sum_by_unit(rows, unit, count, bins)
    total = units.resample(np.ones((1, count)))
    if count == 1:
        return Intervals(rows, total, None, confidence)
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=replicates)
    # A resample of nothing but rows without weight has no scores.
    weights = units.cells.sum(axis=(1, 2))
    resampled = units.resample(drawn[drawn @ weights > 0.0])
    return Intervals(rows, total, resampled, confidence)


def _noise_in_size(gaps: Array, deviation: Array) -> Array:
    """Return by how much noise of this deviation enlarges the size of gaps in the mean.

    A Gaussian of mean γ and deviation σ has the mean size σ√(2/π) exp(-γ²/2σ²) + γ erf(γ/σ√2). For
    γ² stands the square of the gap less that of the noise.
    """
    true = np.sqrt(np.maximum(gaps**2 - deviation**2, 0.0))
    ratio = true / np.where(deviation > 0.0, deviation * np.sqrt(2.0), 1.0)
    size = deviation * np.sqrt(2.0 / np.pi) * np.exp(-(ratio**2)) + true * erf(ratio)
    return np.where(deviation > 0.0, size - true, 0.0)


def _between(value: float, again: Array, confidence: float) -> Estimate:
    """Return a score with percentiles of its resamples, which always hold the score itself."""
    again = again[np.isfinite(again)]
    if np.isnan(value) or len(again) == 0:
        return Estimate(value, np.nan, np.nan)
    low, high = np.quantile(again, [0.5 - 0.5 * confidence, 0.5 + 0.5 * confidence])
    return Estimate(value, float(min(low, value)), float(max(high, value)))
