"""How often classes occur: in training, by their weights, and where a model will be used."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_class_weight

from undulatus.errors import InputError, as_input_errors
from undulatus.gp.data import count_latents

Array = npt.NDArray[Any]


def class_totals(codes: Array, weight: Array | None, n_classes: int) -> Array:
    """Return the weight of all rows of each class, (k,)."""
    return np.bincount(codes, weights=weight, minlength=n_classes).astype(np.float64)


def class_factors(class_weight: Any, classes: Array, totals: Array) -> Array | None:
    """Return the factor on the weight of each class's rows, (k,), or None if all are one."""
    if class_weight is None:
        return None
    if isinstance(class_weight, Mapping):
        _require_class_weights(class_weight)
    # One row per class, with the weight of the whole class, stands for all of its rows.
    factors = compute_class_weight(class_weight, classes=classes, y=classes, sample_weight=totals)
    return np.asarray(factors)


def _require_class_weights(given: Mapping[Any, Any]) -> None:
    for label, factor in given.items():
        if not (isinstance(factor, Real) and 0 <= float(factor) < np.inf):
            raise InputError(
                f"class_weight gives the class {label!r} the weight {factor!r}. Weights of "
                f"classes are finite numbers from 0 on."
            )


def class_shares(codes: Array, weight: Array | None, n_classes: int) -> Array:
    """Return the share of each class in the weight of all rows, (k,)."""
    if n_classes == 2:
        share = float(np.average(codes, weights=weight))
        return np.array([1.0 - share, share])
    totals = class_totals(codes, weight, n_classes)
    return np.asarray(totals / totals.sum())


def prior_shift(given: Any, classes: Array, observed: Array, trained: Array) -> Array:
    """Return the shift of the log odds to the class frequencies ``given``, if any.

    ``observed`` are the classes' shares in ``y``; ``trained`` those after class weights. It is
    that of the second class, (1,), or with more than two classes the logarithm of the factor on
    the probability of each, (k,).
    """
    if given is None:
        return np.zeros(count_latents(len(classes)))
    with as_input_errors("prior_correction"):
        real = _read_frequencies(given, classes, observed)
    if len(classes) > 2:
        return np.asarray(np.log(real) - np.log(trained))
    # For a logistic model a change of prior is exactly a shift of the log odds.
    return np.array([np.log(real[1] / real[0]) - np.log(trained[1] / trained[0])])


def _read_frequencies(given: Any, classes: Array, observed: Array) -> Array:
    """Return the real class frequencies that ``prior_correction`` gives, checked, (k,)."""
    if isinstance(given, str):
        return observed
    if isinstance(given, Mapping):
        missing = [label for label in classes.tolist() if label not in given]
        if missing or len(given) != len(classes):
            raise InputError(
                f"prior_correction must give the frequency of each class {classes.tolist()}, "
                f"got {dict(given)!r}."
            )
        given = [given[label] for label in classes.tolist()]
    values = np.asarray(given, dtype=float)
    k = len(classes)
    if values.shape != (k,) or not np.all(values > 0) or not np.isclose(values.sum(), 1.0):
        raise InputError(
            f"prior_correction must hold {'two' if k == 2 else k} positive class frequencies that "
            f"sum to 1, in the order of classes_ {classes.tolist()}; got {given!r}."
        )
    return values
