"""How good probabilities are: accuracy, likelihood, calibration, ranking.

:func:`score` is for two classes; :func:`score_classes` is for any number of them, with a confusion
matrix, the scores of each class, and a confidence interval of every score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf
from scipy.stats import norm
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from undulatus.errors import InputError

Array = npt.NDArray[Any]

BINS = 15
"""Bins of a calibration error, of equal width in probability."""

REPLICATES = 1_000
"""Resamples of a bootstrap."""

MOST_UNITS = 2_048
"""The most units that a bootstrap draws from; rows or groups beyond are put together at random."""

SUM_TOLERANCE = 1e-4
"""How far the probabilities of a row may be from a sum of one: single precision is well within."""


# Two classes


@dataclass(frozen=True)
class Scores:
    """Scores of probabilities against labels.

    ``accuracy`` and ``auc`` are best at 1; ``nll`` (mean negative log likelihood, nats),
    ``brier`` (mean squared error of the probability) and ``ece`` are best at 0.
    """

    accuracy: float
    nll: float
    ece: float
    brier: float
    auc: float

    def as_dict(self) -> dict[str, float]:
        """Return the scores by name."""
        return asdict(self)


def expected_calibration_error(positive: Array, probability: Array, bins: int = BINS) -> float:
    """Return the mean gap between probability and frequency over bins of equal width.

    Each bin is weighted by its share of the rows.
    """
    index = _bin_of(probability, bins)
    gap = np.bincount(index, weights=probability - positive, minlength=bins)
    return float(np.abs(gap).sum() / len(probability))


def _bin_of(probability: Array, bins: int) -> Array:
    return np.minimum((probability * bins).astype(int), bins - 1)


def score(positive: Array, probability: Array) -> Scores:
    """Score the probability of the positive class, (n,), against the truth, (n,) bool.

    ``auc`` is NaN if only one class is present.
    """
    positive = np.asarray(positive, dtype=bool)
    both = np.column_stack([1.0 - probability, probability])
    return Scores(
        accuracy=float(np.mean((probability > 0.5) == positive)),
        nll=float(log_loss(positive, both, labels=[False, True])),
        ece=expected_calibration_error(positive, probability),
        brier=float(brier_score_loss(positive, probability)),
        auc=float(roc_auc_score(positive, probability)) if 0 < positive.mean() < 1 else np.nan,
    )


# Any number of classes


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


@dataclass(frozen=True)
class ClassScores:
    """Scores of one class against the rest.

    ``producers_accuracy`` is the share of the rows of the class that were predicted as such (its
    recall), ``users_accuracy`` the share of the rows predicted as the class that are of it (its
    precision), ``f1`` their harmonic mean; all are best at 1. ``ece`` is the calibration error of
    the class's probability, best at 0. ``true`` and ``predicted`` are rows, or weights of rows.
    """

    name: str
    true: float
    predicted: float
    producers_accuracy: Estimate
    users_accuracy: Estimate
    f1: Estimate
    ece: Estimate


@dataclass(frozen=True, eq=False)
class ManyClassScores:
    r"""Scores of the probabilities of k classes, each with its confidence interval.

    With :math:`p_{ic}` the probability of class c in row i and :math:`y_{ic}` one for the true
    class and zero for the others, the NLL is the mean of :math:`-\log \sum_c y_{ic} p_{ic}` and
    the Brier score the mean of :math:`\sum_c (p_{ic} - y_{ic})^2`, between 0 and 2: for two
    classes it is twice that of :func:`score`.
    """

    classes: tuple[str, ...]
    """Names of the classes, in the order of the columns of the probability."""
    samples: int
    """Number of rows."""
    groups: int | None
    """Number of groups, if rows were resampled by group."""
    confidence: float
    """Of the intervals."""
    confusion: Array
    """(k, k): rows or their weight, by true class (row) and predicted class (column)."""
    by_class: tuple[ClassScores, ...]
    accuracy: Estimate
    """Share of the rows whose most probable class is the true one."""
    kappa: Estimate
    """Cohen's: accuracy beyond that of chance with the same shares of classes, best at 1."""
    nll: Estimate
    """Mean negative log likelihood, nats."""
    brier: Estimate
    ece: Estimate
    """Calibration error of the largest probability, as that of being right."""
    classwise_ece: Estimate
    """Mean over the classes of the calibration error of each (Kull et al. 2019,
    doi:10.48550/arXiv.1910.12656)."""

    @property
    def overall(self) -> dict[str, Estimate]:
        """The scores of all classes together, by name."""
        names = ("accuracy", "kappa", "nll", "brier", "ece", "classwise_ece")
        return {name: getattr(self, name) for name in names}

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, in which NaN is None."""
        return {
            "classes": list(self.classes),
            "samples": self.samples,
            "groups": self.groups,
            "confidence": self.confidence,
            "confusion": self.confusion.tolist(),
            **{name: estimate.as_dict() for name, estimate in self.overall.items()},
            "by_class": [_plain(one) for one in self.by_class],
        }

    def as_row(self) -> dict[str, float]:
        """Return all scores in one flat row, such as one of a CSV file.

        Columns are ``accuracy``, ``accuracy_low``, ``accuracy_high`` and so on, and for each
        class ``f1_snow`` with its ends, and so on.
        """
        named = dict(self.overall)
        for one in self.by_class:
            named |= {f"{score}_{one.name}": getattr(one, score) for score in _CLASS_SCORES}
        row: dict[str, float] = {"samples": self.samples}
        for name, estimate in named.items():
            row |= {name: estimate.value}
            row |= {f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        return row

    def table(self) -> str:
        """Return the scores as aligned text: overall, class by class, the confusion matrix."""
        titles = ("accuracy", "kappa", "NLL", "Brier", "ECE, top class", "ECE, classwise")
        overall = zip(titles, map(str, self.overall.values()), strict=True)
        counted = f"{self.samples:,} rows"
        if self.groups is not None:
            counted += f" in {self.groups:,} groups"
        by_class = [
            [one.name, *(str(getattr(one, name)) for name in _CLASS_SCORES)]
            for one in self.by_class
        ]
        matrix = [
            [name, *map(_amount_text, row), _amount_text(row.sum())]
            for name, row in zip(self.classes, self.confusion, strict=True)
        ]
        columns = self.confusion.sum(axis=0)
        matrix.append(["all", *map(_amount_text, columns), _amount_text(columns.sum())])
        return "\n".join(
            [
                f"{counted}, intervals of {self.confidence:.4g} confidence",
                *_aligned([list(pair) for pair in overall]),
                "",
                *_aligned([["class", *_CLASS_TITLES], *by_class]),
                "",
                *_aligned([["true \\ predicted", *self.classes, "all"], *matrix]),
            ]
        )


_CLASS_SCORES = ("producers_accuracy", "users_accuracy", "f1", "ece")

_CLASS_TITLES = ("producer's accuracy", "user's accuracy", "F1", "ECE")


def _plain(scores: ClassScores) -> dict[str, Any]:
    amounts = {"name": scores.name, "true": scores.true, "predicted": scores.predicted}
    return amounts | {name: getattr(scores, name).as_dict() for name in _CLASS_SCORES}


def _amount_text(amount: float) -> str:
    return f"{amount:,.0f}" if amount == np.rint(amount) else f"{amount:,.1f}"


def _aligned(rows: list[list[str]]) -> list[str]:
    """Return lines of aligned cells: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [text.rjust(width) for text, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines


def score_classes(
    y_true: npt.ArrayLike,
    probability: npt.ArrayLike,
    classes: Sequence[Any] | Array,
    *,
    weight: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    names: Sequence[str] | None = None,
    confidence: float = 0.95,
    bins: int = BINS,
    replicates: int = REPLICATES,
    rng: int | np.random.Generator = 0,
) -> ManyClassScores:
    r"""Score the probabilities of two or more classes against the true ones.

    Parameters
    ----------
    y_true : (n,) array
        True classes.
    probability : (n, k) array
        Of each class, as ``predict_proba`` returns it; rows sum to one. The prediction is the
        most probable class, the first of several.
    classes : (k,) sequence
        Class of each column of ``probability``, such as ``model.classes_``.
    weight : (n,) array, optional
        Weight of each row.
    groups : (n,) array, optional
        Group of each row, such as its day or scene. Rows of a group are alike: intervals then
        come from whole groups, and are usually wider. With fewer than about 20 groups they are
        still too narrow; with one group there are none.
    names : (k,) sequence of str, optional
        Names of the classes in tables; the classes as text if absent.
    confidence : float
        Probability with which an interval is to hold the score of the population.
    bins : int
        Bins of the calibration errors.
    replicates : int
        Resamples of the bootstrap.
    rng : int or Generator
        Seed of the bootstrap.

    Notes
    -----
    Proportions (accuracy, producer's and user's accuracy) have Wilson's interval for the effective
    number of rows :math:`\hat p (1 - \hat p) / \hat V`, where :math:`\hat V` is the variance of
    the proportion by the sums of its residuals over groups. That is the number of rows, if they
    are not weighted or grouped.

    The other scores have percentiles of a bootstrap over rows or groups; more than 2,048 of them
    are first put together in that many units at random, so that a million rows take seconds.
    Noise makes the size of a gap larger in the mean, so a calibration error is too large. Its
    interval is that of the error without this noise: it reaches to zero where the error may be
    all noise. Every interval is extended to hold its own score.

    Examples
    --------
    >>> probability = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.2, 0.3]])
    >>> scores = score_classes(["land", "sea", "snow"], probability, ["land", "sea", "snow"])
    >>> scores.confusion
    array([[1, 0, 0],
           [0, 1, 0],
           [1, 0, 0]])
    >>> print(scores.accuracy)
    0.6667 (0.2077 to 0.9385)
    """
    rows = _check_rows(y_true, probability, classes, weight, groups)
    _check_options(confidence, bins, replicates)
    labels = tuple(map(str, rows.classes if names is None else names))
    if len(labels) != rows.k:
        raise InputError(
            f"names has {len(labels)} names, but there are {rows.k} classes. Give each one a name."
        )
    # Every score is a function of sums over rows: of all rows, and of resampled units of them.
    intervals = _resample(rows, confidence, bins, replicates, np.random.default_rng(rng))
    confusion = intervals.total.cells[0]
    if weight is None:
        confusion = np.rint(confusion).astype(np.int64)
    return ManyClassScores(
        classes=labels,
        samples=len(rows.codes),
        groups=None if groups is None else rows.n_groups,
        confidence=confidence,
        confusion=confusion,
        by_class=_score_each_class(rows, labels, confusion, intervals),
        accuracy=intervals.of_share(rows.right, np.ones(len(rows.codes), bool)),
        kappa=intervals.of(_kappa)[0],
        nll=intervals.of(lambda sums: sums.mean(sums.nll))[0],
        brier=intervals.of(lambda sums: sums.mean(sums.brier))[0],
        ece=intervals.of_gaps(_top_class_gaps)[0],
        classwise_ece=intervals.of_gaps(_classwise_gaps)[0],
    )


def _score_each_class(
    rows: _Rows, labels: tuple[str, ...], confusion: Array, intervals: _Intervals
) -> tuple[ClassScores, ...]:
    f1, errors = intervals.of(_f1), intervals.of_gaps(_class_gaps)
    return tuple(
        ClassScores(
            name=label,
            true=confusion[c].sum().item(),
            predicted=confusion[:, c].sum().item(),
            producers_accuracy=intervals.of_share(rows.right, rows.codes == c),
            users_accuracy=intervals.of_share(rows.right, rows.predicted == c),
            f1=f1[c],
            ece=errors[c],
        )
        for c, label in enumerate(labels)
    )


# Rows that can be scored


@dataclass(frozen=True)
class _Rows:
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
        return len(self.classes)

    @property
    def right(self) -> Array:
        return np.asarray(self.codes == self.predicted)


def _check_rows(y_true: Any, probability: Any, classes: Any, weight: Any, groups: Any) -> _Rows:
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
    return _Rows(
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


def _check_options(confidence: float, bins: int, replicates: int) -> None:
    if not 0.0 < confidence < 1.0:
        raise InputError(
            f"confidence is {confidence!r}, but it must be between 0 and 1, such as 0.95."
        )
    for name, value in (("bins", bins), ("replicates", replicates)):
        if value < 1:
            raise InputError(f"{name} is {value!r}, but it must be 1 or more.")


# Sums that scores are functions of


@dataclass(frozen=True)
class _Sums:
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

    def resample(self, counts: Array) -> _Sums:
        """Return the sums in which unit u occurs ``counts[r, u]`` times, for each resample r."""
        counts = counts.astype(np.float64)
        return _Sums(*(np.tensordot(counts, sums, 1) for sums in vars(self).values()))

    def mean(self, sums: Array) -> Array:
        """Divide sums, (u, ...), by the weight of all rows."""
        total = self.cells.sum(axis=(1, 2))
        return np.asarray(sums / total.reshape(-1, *[1] * (sums.ndim - 1)))


def _sum_by_unit(rows: _Rows, unit: Array, count: int, bins: int) -> _Sums:
    """Return the sums over the rows of each of ``count`` units, given the unit of each row."""

    def add(values: Array, part: Array | int = 0, parts: int = 1) -> Array:
        total = np.bincount(unit * parts + part, weights=values, minlength=count * parts)
        return total.reshape(count, parts)

    def gaps(chance: Array, happened: Array) -> Array:
        return add(rows.weight * (chance - happened), _bin_of(chance, bins), bins)

    k, every_row = rows.k, np.arange(len(rows.codes))
    true = rows.probability[every_row, rows.codes]
    square = np.einsum("ij,ij->i", rows.probability, rows.probability)
    chances = rows.probability.T
    return _Sums(
        cells=add(rows.weight, rows.codes * k + rows.predicted, k * k).reshape(count, k, k),
        # As scikit-learn's log_loss: certain and wrong is a large loss, not an infinite one.
        nll=add(-rows.weight * np.log(np.maximum(true, np.finfo(np.float64).eps))),
        brier=add(rows.weight * (square - 2.0 * true + 1.0)),
        top_gaps=gaps(rows.probability[every_row, rows.predicted], rows.right)[:, None],
        class_gaps=np.stack([gaps(chances[c], rows.codes == c) for c in range(k)], axis=1),
    )


def _ratio(above: Array, below: Array) -> Array:
    """Divide, with NaN for 0/0."""
    empty = below == 0.0
    return np.where(empty, np.nan, above / np.where(empty, 1.0, below))


def _kappa(sums: _Sums) -> Array:
    cells = sums.cells / sums.cells.sum(axis=(1, 2), keepdims=True)
    chance = np.einsum("uij,uki->u", cells, cells)[:, None]
    right = np.einsum("uii->u", cells)[:, None]
    # Rounding leaves a remainder where all rows are of one class and predicted as such.
    return _ratio(right - chance, np.where(1.0 - chance < 1e-12, 0.0, 1.0 - chance))


def _f1(sums: _Sums) -> Array:
    both = sums.cells.sum(axis=1) + sums.cells.sum(axis=2)
    return _ratio(2.0 * np.einsum("uii->ui", sums.cells), both)


def _top_class_gaps(sums: _Sums) -> Array:
    return sums.mean(sums.top_gaps)


def _class_gaps(sums: _Sums) -> Array:
    return sums.mean(sums.class_gaps)


def _classwise_gaps(sums: _Sums) -> Array:
    gaps = _class_gaps(sums)
    return gaps.reshape(len(gaps), 1, -1) / gaps.shape[1]


# Intervals


@dataclass(frozen=True)
class _Intervals:
    """What confidence intervals of scores are made from; without ``resampled`` there are none."""

    rows: _Rows
    total: _Sums
    resampled: _Sums | None
    confidence: float

    def of(self, score_of: Callable[[_Sums], Array]) -> list[Estimate]:
        """Return the m scores that a function gives of sums, (u, m), with bootstrap intervals."""
        values = score_of(self.total)[0]
        if self.resampled is None:
            return [Estimate(float(value), np.nan, np.nan) for value in values]
        again = score_of(self.resampled)
        return [
            _between(float(value), column, self.confidence)
            for value, column in zip(values, again.T, strict=True)
        ]

    def of_gaps(self, gaps_of: Callable[[_Sums], Array]) -> list[Estimate]:
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
    rows: _Rows, among: Array, weight: Array, residual: Array, variance: float
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


def _resample(
    rows: _Rows, confidence: float, bins: int, replicates: int, rng: np.random.Generator
) -> _Intervals:
    count = min(rows.n_groups, MOST_UNITS)
    unit = rows.groups
    if rows.n_groups > count:
        unit = (rng.permutation(rows.n_groups) % count)[rows.groups]
    units = _sum_by_unit(rows, unit, count, bins)
    total = units.resample(np.ones((1, count)))
    if count == 1:
        return _Intervals(rows, total, None, confidence)
    drawn = rng.multinomial(count, np.full(count, 1.0 / count), size=replicates)
    # A resample of nothing but rows without weight has no scores.
    weights = units.cells.sum(axis=(1, 2))
    resampled = units.resample(drawn[drawn @ weights > 0.0])
    return _Intervals(rows, total, resampled, confidence)


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
