"""Refuse to map pixels of which most are unlike those that the model learned from.

Digital numbers in place of reflectances, degrees Celsius for kelvins, bands in another order: a
classifier has an answer for them too. So some pixels are compared with the training's quantiles
before a map is made, and the error names the features that differ most.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline

from undulatus.errors import InputError, OutsideTrainingError
from undulatus.estimators.interpret import AffineStep, affine_steps
from undulatus.products.predict import reduce_features, rows_by_classifier
from undulatus.products.training_range import TrainingRange

Array = npt.NDArray[Any]

MOST = 0.5
"""A larger share of pixels outside is an error."""

OTHER_UNITS = 3.0
"""Pixels this far away, in widths of the training values, are not merely unusual."""

FEATURES_NAMED = 3
"""Features that the error names at most ..."""

LEAST_WEIGHT = 0.5
"""... of those that matter at least this much, beside the first."""

Line = tuple[float, str]
"""A line about a feature, and how much it matters."""


def require_inside(
    model: Any,
    values: Array,
    names: tuple[str, ...] | None,
    sun: Array | None,
    measured: str,
    beyond: float = 0.0,
) -> None:
    """Raise an :class:`OutsideTrainingError` if most pixels are outside what the model learned.

    Each pixel is compared with the classifier of its own regime; classifiers that keep no
    quantiles of their features are not asked.

    Parameters
    ----------
    model : classifier
        As :func:`undulatus.products.predict.prepare_model` returned it.
    values : (n, d) array
        Features of some pixels; those that lack a value do not count.
    names : tuple of str, optional
        Names of the columns.
    sun : (n,) array, optional
        Solar zenith angle, degrees, needed for a RegimeClassifier.
    measured : str
        What columns without names measure, with its unit, such as the radiance of channels.
    beyond : float
        Distance from training that counts as outside: 0 for maps, :data:`OTHER_UNITS` for labelled
        pixels, which may be new to the model, but not in other units.
    """
    compared = list(_compare(model, values, names, sun, beyond))
    outside = sum(part.outside for part in compared)
    looked_at = sum(len(part.rows) for part in compared)
    if outside <= MOST * looked_at:
        return
    lines = [
        (weight * part.outside, f"{line}{part.where}")
        for part in compared
        for weight, line in _feature_lines(part, measured)
    ]
    worst = sorted(lines, key=lambda line: -line[0])[:FEATURES_NAMED]
    named = [text for weight, text in worst if weight >= LEAST_WEIGHT * worst[0][0]]
    raise OutsideTrainingError(outside, looked_at, named, of_map=beyond == 0.0)


@dataclass(frozen=True)
class _Comparison:
    """Complete rows of one regime, as they are given and as the classifier sees them."""

    regime: str | None
    classifier: Any
    names: tuple[str, ...] | None
    rows: Array
    reduced: Array
    learned: TrainingRange
    outside: int

    @property
    def where(self) -> str:
        """The regime, for the end of a line."""
        return "" if self.regime is None else f" in regime {self.regime}"


def _compare(
    model: Any,
    values: Array,
    names: tuple[str, ...] | None,
    sun: Array | None,
    beyond: float,
) -> Iterator[_Comparison]:
    for regime, classifier, features, rows in rows_by_classifier(model, values, names, sun):
        if not len(rows):
            continue
        reduced, last = reduce_features(classifier, rows)
        learned = TrainingRange.of(last)
        if learned is not None:
            outside = int(np.count_nonzero(learned.distance(reduced) > beyond))
            yield _Comparison(regime, classifier, features, rows, reduced, learned, outside)


def _feature_lines(part: _Comparison, measured: str) -> Iterator[Line]:
    """Yield a line for each feature, in the user's units if scalers alone come before."""
    steps = _steps_before(part.classifier)
    shares = part.learned.is_rare(part.reduced).mean(axis=0)
    if steps is not None and all(step.matrix.ndim == 1 for step in steps):
        names = part.names or tuple(f"band {i}" for i in range(1, part.rows.shape[1] + 1))
        yield from _range_lines(_in_input_units(part.learned, steps), shares, part.rows, names)
        return
    if steps:
        yield from _mean_lines(steps[0].centre, part.rows, part.names, measured)
    components = tuple(f"component {i}" for i in range(1, part.reduced.shape[1] + 1))
    yield from _range_lines(part.learned, shares, part.reduced, components)


def _steps_before(classifier: Any) -> list[AffineStep] | None:
    """Return the steps of a Pipeline before its classifier, or None if one is not affine."""
    if not isinstance(classifier, Pipeline):
        return []
    try:
        return affine_steps(step for _, step in classifier.steps[:-1])
    except InputError:
        return None


def _in_input_units(learned: TrainingRange, scalers: list[AffineStep]) -> TrainingRange:
    quantiles = np.stack(list(vars(learned).values()))
    for scaler in reversed(scalers):
        quantiles = quantiles * scaler.restoring + scaler.centre
    return TrainingRange(*quantiles)


def _range_lines(
    learned: TrainingRange, shares: Array, values: Array, names: tuple[str, ...]
) -> Iterator[Line]:
    medians = np.median(values, axis=0)
    offsets = np.maximum(learned.low - medians, medians - learned.high) / learned.width
    # First the features that are rare in most pixels, and of these the farthest.
    weights = shares + 0.01 * np.clip(offsets / (1.0 + np.abs(offsets)), 0.0, None)
    for i, name in enumerate(names):
        yield (
            float(weights[i]),
            f"{name}: median {medians[i]:.4g}, in training {learned.low[i]:.4g} to "
            f"{learned.high[i]:.4g} (median {learned.median[i]:.4g})",
        )


def _mean_lines(
    centre: Array, rows: Array, names: tuple[str, ...] | None, measured: str
) -> Iterator[Line]:
    """Yield lines on what was measured, of which only the mean in training is known."""
    if names is None:
        names, rows = (measured,), rows.reshape(-1, 1)
        centre = np.array([np.median(centre)])
    for name, median, mean in zip(names, np.median(rows, axis=0), centre, strict=True):
        difference = abs(median - mean) / max(abs(median), abs(mean), np.finfo(float).tiny)
        yield (
            1.0 + float(difference),  # Before components, which have no meaning to the user.
            f"{name}: median {median:.4g}, in training about {mean:.4g}",
        )
