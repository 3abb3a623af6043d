"""How good probabilities are: accuracy, likelihood, calibration, ranking.

:func:`score` is for two classes; :func:`score_classes` is for any number of them, with a confusion
matrix, the scores of each class, and a confidence interval of every score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

from undulatus.errors import InputError
from undulatus.products.intervals import (
    SUM_TOLERANCE,
    Estimate,
    Intervals,
    Rows,
    check_options,
    check_rows,
)

__all__ = [
    "BINS",
    "SUM_TOLERANCE",
    "ClassScores",
    "Estimate",
    "ManyClassScores",
    "Scores",
    "expected_calibration_error",
    "score",
    "score_classes",
]

Array = npt.NDArray[Any]

BINS = 15
"""Bins of a calibration error, of equal width in probability."""


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
    return _calibration_error(positive, probability, np.ones(len(probability)), bins)


def _calibration_error(positive: Array, probability: Array, weight: Array, bins: int) -> float:
    index = np.minimum((probability * bins).astype(int), bins - 1)
    gap = np.bincount(index, weights=weight * (probability - positive), minlength=bins)
    return float(np.abs(gap).sum() / weight.sum())


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
                *align_columns([list(pair) for pair in overall]),
                "",
                *align_columns([["class", *_CLASS_TITLES], *by_class]),
                "",
                *align_columns([["true \\ predicted", *self.classes, "all"], *matrix]),
            ]
        )


_CLASS_SCORES = ("producers_accuracy", "users_accuracy", "f1", "ece")

_CLASS_TITLES = ("producer's accuracy", "user's accuracy", "F1", "ECE")


def _plain(scores: ClassScores) -> dict[str, Any]:
    amounts = {"name": scores.name, "true": scores.true, "predicted": scores.predicted}
    return amounts | {name: getattr(scores, name).as_dict() for name in _CLASS_SCORES}


def _amount_text(amount: float) -> str:
    return f"{amount:,.0f}" if amount == np.rint(amount) else f"{amount:,.1f}"


def align_columns(rows: list[list[str]]) -> list[str]:
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
        come from whole groups, and are usually wider; with one group there are none.
    names : (k,) sequence of str, optional
        Names of the classes in tables; the classes as text if absent.
    confidence : float
        Probability with which an interval is to hold the score of the population.
    bins : int
        Bins of the calibration errors.

    Notes
    -----
    Shares (accuracy, producer's and user's accuracy) have Wilson's interval for the effective
    number of rows :math:`\hat p (1 - \hat p) / \hat V`, where :math:`\hat V` is the variance of
    the share by the sums of its residuals over groups. That is the number of rows, if they are
    not weighted or grouped. F1 is :math:`2 J / (1 + J)` of the share J of the rows rightly
    predicted as a class among those that are of it or predicted as it, and has its interval;
    that of kappa is made in the same way (:meth:`.intervals.Intervals.of_kappa`). NLL and Brier
    score have Student's interval of their logarithm.

    A calibration error has no interval. It is a sum of the sizes of gaps, which chance alone
    makes positive, so that it is too large by an amount that depends on the true gaps; none of the
    known intervals holds it as often as it says.

    Examples
    --------
    >>> probability = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.5, 0.2, 0.3]])
    >>> scores = score_classes(["land", "sea", "snow"], probability, ["land", "sea", "snow"])
    >>> scores.confusion
    array([[1, 0, 0],
           [0, 1, 0],
           [1, 0, 0]])
    >>> print(scores.accuracy)
    0.6667 (0.1185 to 0.9829)
    """
    rows = check_rows(y_true, probability, classes, weight, groups)
    check_options(confidence, bins)
    labels = tuple(map(str, rows.classes if names is None else names))
    if len(labels) != rows.k:
        raise InputError(
            f"names has {len(labels)} names, but there are {rows.k} classes. Give each one a name."
        )
    every, k, chances = np.arange(len(rows.codes)), rows.k, rows.probability
    cell = rows.codes * k + rows.predicted
    confusion = np.bincount(cell, weights=rows.weight, minlength=k * k).reshape(k, k)
    if weight is None:
        confusion = np.rint(confusion).astype(np.int64)
    true, top = chances[every, rows.codes], chances[every, rows.predicted]
    errors = [_without_interval(rows.codes == c, chances[:, c], rows, bins) for c in range(k)]
    intervals = Intervals(rows, confidence)
    return ManyClassScores(
        classes=labels,
        samples=len(rows.codes),
        groups=None if groups is None else rows.n_groups,
        confidence=confidence,
        confusion=confusion,
        by_class=tuple(
            ClassScores(
                name=label,
                true=confusion[c].sum().item(),
                predicted=confusion[:, c].sum().item(),
                producers_accuracy=intervals.of_share(rows.right, rows.codes == c),
                users_accuracy=intervals.of_share(rows.right, rows.predicted == c),
                f1=intervals.of_f1(c),
                ece=errors[c],
            )
            for c, label in enumerate(labels)
        ),
        accuracy=intervals.of_share(rows.right, np.ones(len(rows.codes), bool)),
        kappa=intervals.of_kappa(confusion),
        nll=intervals.of_loss(log_loss_of_rows(rows)),
        brier=intervals.of_loss(np.einsum("ij,ij->i", chances, chances) - 2.0 * true + 1.0),
        ece=_without_interval(rows.right, top, rows, bins),
        classwise_ece=Estimate(float(np.mean([one.value for one in errors])), np.nan, np.nan),
    )


def log_loss_of_rows(rows: Rows) -> Array:
    """Return the negative log likelihood of each row, (n,) nats."""
    true = rows.probability[np.arange(len(rows.codes)), rows.codes]
    # As scikit-learn's log_loss: certain and wrong is a large loss, not an infinite one.
    return np.asarray(-np.log(np.maximum(true, np.finfo(np.float64).eps)))


def _without_interval(happened: Array, chance: Array, rows: Rows, bins: int) -> Estimate:
    return Estimate(_calibration_error(happened, chance, rows.weight, bins), np.nan, np.nan)
