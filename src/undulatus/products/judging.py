"""What a fitted classifier says of pixels: probability, variance and quality of each.

The classifier may be one of ours, a :class:`~undulatus.regimes.RegimeClassifier`, a Pipeline that
ends in a classifier, or any of scikit-learn's. A pixel that lacks a value gets no class.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.regimes import RegimeClassifier

Array = npt.NDArray[Any]

DOUBTFUL = 0.2
"""A pixel is of low confidence if both classes are likelier than this."""
TERMINATOR = (85.0, 95.0)
"""Solar zenith angles, degrees, between which day turns to night."""
LOW_CONFIDENCE, OUT_OF_RANGE, NEAR_TERMINATOR, MISSING = 1, 2, 4, 8
ROUNDING = 1e-4
"""Share of the training range by which a value may leave it: blocks are rounded differently."""
REGIME_SHIFT = 4
"""The regime's number, counted from one, is written in the bits from here on; zero is none."""


def feature_names(model: Any) -> tuple[str, ...] | None:
    """Return the names of the features a classifier of two classes was fitted on, if it had any.

    The column that assigns regimes is not a feature.
    """
    check_is_fitted(model)
    if len(model.classes_) != 2:
        raise InputError(
            f"A map tells cloud from clear, but the model has {len(model.classes_)} classes."
        )
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return None
    return tuple(str(name) for name in names if name != getattr(model, "by", None))


def prepare(model: Any) -> Any:
    """Return the model as blocks need it: on one thread, its columns matched already."""
    lean = copy.copy(model)
    if isinstance(model, RegimeClassifier):
        lean.estimators_ = {name: prepare(member) for name, member in model.estimators_.items()}
        return lean
    if isinstance(model, Pipeline):
        lean.steps = [(name, prepare(step)) for name, step in model.steps]
        return lean
    if not hasattr(model, "get_params"):
        return model  # A step that lets everything through.
    if "n_jobs" in model.get_params(deep=False):
        # Blocks are what runs in parallel.
        lean.set_params(n_jobs=1)
    if hasattr(lean, "feature_names_in_"):
        del lean.feature_names_in_
    return lean


def judge(
    model: Any, values: Array, names: tuple[str, ...] | None, sun: Array | None
) -> tuple[Array, Array, Array]:
    """Return probability of the second class, latent variance and quality of pixels, (n,) each.

    Parameters
    ----------
    model : classifier
        As :func:`prepare` returned it.
    values : (n, d) array
        Features of pixels; one that is not finite is missing.
    names : tuple of str, optional
        What the columns are; a RegimeClassifier needs them.
    sun : (n,) array, optional
        Solar zenith angle, degrees; a RegimeClassifier needs it.

    Returns
    -------
    probability, variance : (n,) float32 arrays
        NaN where nothing can be said. The variance is NaN if the classifier has none.
    quality : (n,) uint8 array
    """
    probability = np.full(len(values), np.nan, np.float32)
    variance = probability.copy()
    if isinstance(model, RegimeClassifier):
        assert names is not None
        assert sun is not None
        quality = _judge_regimes(model, values, names, sun, probability, variance)
    else:
        quality = _judge_all(model, values, probability, variance)
    quality[np.minimum(probability, 1.0 - probability) > DOUBTFUL] |= LOW_CONFIDENCE
    quality[np.isnan(probability)] |= MISSING
    if sun is not None:
        quality[(sun >= TERMINATOR[0]) & (sun < TERMINATOR[1])] |= NEAR_TERMINATOR
    return probability, variance, quality


def _judge_all(model: Any, values: Array, probability: Array, variance: Array) -> Array:
    """Set probability and variance where all values are there; return what is out of range."""
    quality = np.zeros(len(values), np.uint8)
    whole = _finite_rows(values)
    if whole.any():
        reduced, member = _reduce(model, values if whole.all() else values[whole])
        probability[whole], variance[whole] = _predict(member, reduced, [member], len(reduced))
        quality[whole] = _beyond_training(member, reduced)
    return quality


def _judge_regimes(
    model: RegimeClassifier,
    values: Array,
    names: tuple[str, ...],
    sun: Array,
    probability: Array,
    variance: Array,
) -> Array:
    quality = np.zeros(len(values), np.uint8)
    usable = np.zeros(len(values), bool)
    assigned = model.assign(sun)
    for index, regime in enumerate(model.regimes_):
        rows = np.flatnonzero(assigned == index)
        columns = np.array([names.index(name) for name in regime.features or ()])
        own = values[np.ix_(rows, columns)]
        whole = _finite_rows(own)
        quality[rows] = np.uint8((index + 1) << REGIME_SHIFT)
        usable[rows[whole]] = True
        if whole.any():
            reduced, member = _reduce(model.estimators_[regime.name], own[whole])
            quality[rows[whole]] |= _beyond_training(member, reduced)
    rows = np.flatnonzero(usable)
    if rows.size:
        table = {name: values[rows, column] for column, name in enumerate(names)}
        members = list(model.estimators_.values())
        table[model.by] = sun[rows]
        probability[rows], variance[rows] = _predict(model, table, members, rows.size)
    return quality


def _finite_rows(values: Array) -> Array:
    """Return which rows have no missing value, (n,) bool."""
    # A sum is finite unless a value is not (or it overflows, which the second look settles).
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.isfinite(values @ np.ones(values.shape[1], values.dtype))
    doubtful = np.flatnonzero(~whole)
    whole[doubtful] = np.isfinite(values[doubtful]).all(axis=1)
    return np.asarray(whole)


def _reduce(model: Any, values: Array) -> tuple[Array, Any]:
    """Return what the last step of a Pipeline sees of the values, and that step."""
    if not isinstance(model, Pipeline):
        return values, model
    reduced = model[:-1].transform(values) if len(model.steps) > 1 else values
    return np.asarray(reduced), model.steps[-1][1]


def _beyond_training(member: Any, values: Array) -> Array:
    ranges = getattr(member, "feature_quantiles_", None)
    if ranges is None:
        return np.zeros(len(values), np.uint8)
    slack = ROUNDING * (ranges[-1] - ranges[0])
    low, high = ranges[0] - slack, ranges[-1] + slack
    beyond = np.zeros(len(values), bool)
    # Most features of most blocks stay inside, which their extremes tell for less.
    for column in np.flatnonzero((values.min(axis=0) < low) | (values.max(axis=0) > high)):
        beyond |= (values[:, column] < low[column]) | (values[:, column] > high[column])
    return np.where(beyond, np.uint8(OUT_OF_RANGE), np.uint8(0))


def _predict(model: Any, X: Any, members: list[Any], count: int) -> tuple[Array, Array]:
    """Return the probability of the second class, and the latent variance or NaN."""
    if all(hasattr(member, "predict_proba_and_variance") for member in members):
        probability, variance = model.predict_proba_and_variance(X)
        return probability[:, 1], variance
    return model.predict_proba(X)[:, 1], np.full(count, np.nan)


def quality_attributes(model: Any) -> dict[str, Any]:
    """Return what the bits of ``quality_flag`` mean, as CF has it."""
    flags = {
        "low_confidence": LOW_CONFIDENCE,
        "outside_training_range": OUT_OF_RANGE,
        "terminator": NEAR_TERMINATOR,
        "missing_channel": MISSING,
    }
    masks, values, meanings = list(flags.values()), list(flags.values()), list(flags)
    regimes = getattr(model, "regimes_", ())
    for index, regime in enumerate(regimes):
        masks.append((2 ** len(regimes).bit_length() - 1) << REGIME_SHIFT)
        values.append((index + 1) << REGIME_SHIFT)
        meanings.append(f"regime_{regime.name}")
    return {
        "long_name": "quality of the cloud mask",
        "flag_masks": np.array(masks, np.uint8),
        "flag_values": np.array(values, np.uint8),
        "flag_meanings": " ".join(meanings),
    }
