r"""Two models, or two maps, compared on the same rows by paired differences.

What is hard for one model is hard for another, so that a difference of scores is known much better
than either score. :func:`compare_classes` gives each difference a standard error and an interval
from whole groups of rows.

With weights w, and a score of each model that is a ratio of sums over rows,
:math:`\theta = \sum_i w_i a_i / \sum_i w_i b_i`, such as the accuracy (a is one where the model is
right, and b is one), the standard error of :math:`\theta_2 - \theta_1` is that of the jackknife
that leaves out one of m groups g at a time,

.. math:: s^2 = \frac{m - 1}{m} \sum_g
    \bigl[(\theta_{2,-g} - \theta_{1,-g}) - (\theta_2 - \theta_1)\bigr]^2 .
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import t

from undulatus.errors import InputError
from undulatus.products.intervals import (
    TINY,
    Rows,
    check_options,
    check_rows,
    degrees_of_freedom,
    jackknife,
)
from undulatus.products.scores import align_columns, log_loss_of_rows

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Difference:
    """A score of two models on the same rows, and how the second differs from the first.

    ``value`` is the second minus the first. ``standard_error``, ``low`` and ``high`` are NaN where
    the rows do not say how far it varies: too few groups, or no row on which the two differ.
    """

    first: float
    second: float
    value: float
    standard_error: float
    low: float
    high: float
    groups: int
    """Groups, or rows without groups, that have rows of the score."""

    @property
    def is_beyond_chance(self) -> bool:
        """Whether there is an interval, which does not hold zero."""
        return bool(self.low > 0.0 or self.high < 0.0)

    def as_dict(self) -> dict[str, float | None]:
        """Return the numbers by name; None for NaN, which JSON does not have."""
        return {name: None if np.isnan(v) else v for name, v in asdict(self).items()}

    def cells(self) -> list[str]:
        """Return the numbers as text, a dash for what is not known."""
        plain = [f"{v:.4f}" for v in (self.first, self.second)]
        ends = f"{self.low:+.4f} to {self.high:+.4f}"
        cells = [*plain, f"{self.value:+.4f}", f"{self.standard_error:.4f}", ends]
        return ["-" if "nan" in cell else cell for cell in cells]


@dataclass(frozen=True)
class ClassDifferences:
    """Differences in the accuracies of one class."""

    name: str
    producers_accuracy: Difference
    users_accuracy: Difference


@dataclass(frozen=True)
class Comparison:
    """Paired differences in the scores of two models on the same rows."""

    names: tuple[str, str]
    """What to call the two."""
    samples: int
    groups: int | None
    confidence: float
    accuracy: Difference
    nll: Difference | None
    """Of the mean negative log likelihood, nats; None of maps, which have no probabilities."""
    by_class: tuple[ClassDifferences, ...]

    @property
    def differences(self) -> Iterator[tuple[str, Difference]]:
        """The differences with their titles."""
        yield "accuracy (higher is better)", self.accuracy
        if self.nll is not None:
            yield "NLL (nats, lower is better)", self.nll
        for one in self.by_class:
            yield f"producer's accuracy, {one.name}", one.producers_accuracy
            yield f"user's accuracy, {one.name}", one.users_accuracy

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What the differences in accuracy and NLL say, a sentence each."""
        said = [self._verdict("Accuracy", self.accuracy, 1.0)]
        if self.nll is not None:
            said.append(self._verdict("NLL", self.nll, -1.0))
        return tuple(said)

    def _verdict(self, score: str, difference: Difference, sign: float) -> str:
        better = self.names[int(sign * difference.value > 0.0)]
        if difference.is_beyond_chance:
            ends = sorted((abs(difference.low), abs(difference.high)))
            return (
                f"{score}: {better} is better by {abs(difference.value):.4f} "
                f"({ends[0]:.4f} to {ends[1]:.4f})."
            )
        if not np.isnan(difference.low):
            return f"{score}: the difference, {difference.value:+.4f}, is within what chance does."
        if difference.groups < fewest_groups(self.confidence):
            unit = "rows" if self.groups is None else "groups"
            return (
                f"{score}: {difference.groups} {unit} are too few to tell a difference from "
                f"chance; it takes {fewest_groups(self.confidence)}."
            )
        if abs(difference.value) > np.sqrt(TINY):
            return (
                f"{score}: {better} is better by {abs(difference.value):.4f} in every row alike."
            )
        return f"{score}: the two do not differ in any row."

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, in which NaN is None."""
        return {
            "names": list(self.names),
            "samples": self.samples,
            "groups": self.groups,
            "confidence": self.confidence,
            "accuracy": self.accuracy.as_dict(),
            "nll": None if self.nll is None else self.nll.as_dict(),
            "by_class": [
                {
                    "name": one.name,
                    "producers_accuracy": one.producers_accuracy.as_dict(),
                    "users_accuracy": one.users_accuracy.as_dict(),
                }
                for one in self.by_class
            ],
            "verdicts": list(self.verdicts),
        }

    @property
    def heading(self) -> str:
        """What is compared, and on what."""
        rows = f"{self.samples:,} rows"
        if self.groups is not None:
            rows += f" in {self.groups:,} groups"
        first, second = self.names
        return (
            f"{second} against {first} on the same {rows}; differences are {second} minus {first}"
        )

    @property
    def head(self) -> list[str]:
        """The titles of the columns of numbers."""
        return [*self.names, "difference", "standard error", f"{self.confidence:.4g} interval"]

    def table(self) -> str:
        """Return the differences as aligned text, and last what they say."""
        rows = [[title, *difference.cells()] for title, difference in self.differences]
        return "\n".join([self.heading, *align_columns([["", *self.head], *rows]), *self.verdicts])


def fewest_groups(confidence: float) -> int:
    """Return how many groups it takes to tell a difference from chance.

    All of m groups favour the same one of two equal models in one of :math:`2^{m-1}` samples.
    """
    return 1 + int(np.ceil(-np.log2(1.0 - confidence)))


def compare_classes(
    y_true: npt.ArrayLike,
    first: npt.ArrayLike,
    second: npt.ArrayLike,
    classes: Sequence[Any] | Array,
    *,
    weight: npt.ArrayLike | None = None,
    groups: npt.ArrayLike | None = None,
    names: Sequence[str] | None = None,
    called: tuple[str, str] = ("first", "other"),
    likelihood: bool = True,
    confidence: float = 0.95,
) -> Comparison:
    """Compare the probabilities of classes by two models for the same rows.

    Parameters
    ----------
    y_true : (n,) array
        True classes.
    first, second : (n, k) array
        Probability of each class by each model.
    classes : (k,) sequence
        Class of each column of both.
    weight, groups, names, confidence
        As :func:`undulatus.products.scores.score_classes` takes them. Standard errors and
        intervals come from whole groups.
    called : (str, str)
        What to call the two models.
    likelihood : bool
        Whether to compare the NLL; False where the probabilities of maps are 0 and 1.

    Notes
    -----
    Intervals are Student's. Degrees of freedom are those of as many groups, or fewer if a few make
    most of the variance; groups never count for more than their rows. There is no interval from
    fewer groups than can tell a difference from chance (:func:`fewest_groups`).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.integers(0, 2, 400)
    >>> good = 0.1 + 0.8 * np.eye(2)[np.where(rng.random(400) < 0.9, y, 1 - y)]
    >>> poor = 0.1 + 0.8 * np.eye(2)[np.where(rng.random(400) < 0.7, y, 1 - y)]
    >>> found = compare_classes(y, poor, good, [0, 1], groups=np.arange(400) // 10)
    >>> found.verdicts[0]
    'Accuracy: other is better by 0.2225 (0.1666 to 0.2784).'
    """
    check_options(confidence, 1)
    both = [check_rows(y_true, p, classes, weight, groups) for p in (first, second)]
    rows = both[0]
    every = np.ones(len(rows.codes), bool)

    def of_means(values: list[Array], among: list[Array]) -> Difference:
        return _difference(rows, values, among, confidence)

    return Comparison(
        names=called,
        samples=len(rows.codes),
        groups=None if groups is None else rows.n_groups,
        confidence=confidence,
        accuracy=of_means([one.right for one in both], [every, every]),
        nll=of_means([log_loss_of_rows(one) for one in both], [every, every])
        if likelihood
        else None,
        by_class=tuple(
            ClassDifferences(
                name=str(name),
                producers_accuracy=of_means([one.right for one in both], [rows.codes == c] * 2),
                users_accuracy=of_means(
                    [one.right for one in both], [one.predicted == c for one in both]
                ),
            )
            for c, name in enumerate(rows.classes if names is None else names)
        ),
    )


def _difference(
    rows: Rows, values: list[Array], among: list[Array], confidence: float
) -> Difference:
    """Return the difference of the means of values, each over some of the rows, (n,) both."""
    means, moved, alone = [], np.zeros(rows.n_groups), np.zeros(len(rows.codes))
    for sign, value, chosen in zip((-1.0, 1.0), values, among, strict=True):
        weight = rows.weight * chosen
        total = weight.sum()
        if total == 0.0:
            means.append(np.nan)
            continue
        means.append(float(weight @ value / total))
        residual = weight * (value - means[-1])
        sums = np.bincount(rows.groups, weights=residual, minlength=rows.n_groups)
        sizes = np.bincount(rows.groups, weights=weight, minlength=rows.n_groups)
        moved += sign * jackknife(sums, sizes) / total
        alone += sign * residual / total
    weight = rows.weight * (among[0] | among[1])
    sizes = np.bincount(rows.groups, weights=weight, minlength=rows.n_groups)
    difference, m = means[1] - means[0], int(np.count_nonzero(sizes))
    # Groups never count for more than their rows: that would be chance.
    error = float(np.sqrt(max(np.sum(moved**2), np.sum(alone**2))))
    if np.isnan(difference) or m < fewest_groups(confidence) or error <= np.sqrt(TINY):
        return Difference(means[0], means[1], difference, np.nan, np.nan, np.nan, m)
    half = error * float(t.ppf(0.5 + 0.5 * confidence, degrees_of_freedom(moved**2, sizes)))
    ends = difference - half, difference + half
    return Difference(means[0], means[1], difference, error, *ends, groups=m)


def match_classes(
    wanted: Sequence[str], found: Sequence[str], which: tuple[str, str] = ("first", "other")
) -> Array:
    """Return where the classes of one are among those of another, (k,), by name.

    It is an error, which calls the two what ``which`` says, if one has classes that the other
    lacks.
    """
    if set(wanted) != set(found):
        sides = ((which[0], wanted, found), (which[1], found, wanted))
        listed = "".join(
            f"\n  only the {name} has: {', '.join(only)}"
            for name, own, other in sides
            if (only := [each for each in own if each not in other])
        )
        raise InputError(
            f"The two have other classes, so that they cannot be compared.{listed}\n"
            f"Compare those of the same classes; classes are known by name."
        )
    return np.array([list(found).index(name) for name in wanted])


def require_alike(design: str | None) -> None:
    """Raise if a sampling design gives labels unlike weights."""
    if design == "stratified":
        raise InputError(
            "With --design stratified (design=...) a label counts by the area of the mapped class "
            "that it was drawn in, but a comparison counts all labels alike. Leave out the "
            "design, or the comparison (--against)."
        )
