"""Labels, weights and groups as users have them: checked, encoded, and what classes weigh."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from undulatus.errors import InputError, as_input_errors
from undulatus.gp.validation import number_groups

Array = npt.NDArray[Any]


def encode(name: str, y: Any, n_rows: int) -> tuple[Array, Array]:
    """Return the two classes of ``y``, sorted, and whether each row is of the second."""
    if y is None:
        raise InputError(f"{name} requires y to be passed, but the target y is None.")
    if hasattr(y, "isna") and bool(np.any(y.isna())):
        raise InputError("Input y contains NaN. Drop the rows without a label.")
    labels = np.asarray(y)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = column_or_1d(labels, warn=True)
    if labels.shape[:1] != (n_rows,):
        raise InputError(
            f"Found input variables with inconsistent numbers of samples: "
            f"X has {n_rows} rows, y has {labels.shape[:1]}."
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise InputError("Input y contains NaN or infinity. Drop the rows without a label.")
    if labels.ndim != 1:
        raise InputError(f"Unknown label type: y must be 1-D, got shape {labels.shape}.")
    classes = _distinct(labels)
    require_two(name, classes)
    return classes, np.asarray(labels == classes[1])


def require_two(name: str, classes: Array) -> None:
    """Raise unless there are two classes, of a type that classes may have."""
    check_classification_targets(classes)
    if len(classes) > 2:
        raise InputError(
            "Only binary classification is supported. The type of the target is multiclass "
            f"({len(classes)} classes). Use sklearn.multiclass.OneVsRestClassifier."
        )
    if len(classes) < 2:
        raise InputError(
            f"{name} needs two classes to separate, but y holds one class only: {classes[0]!r}."
        )


def require_both(name: str, totals: Array) -> None:
    """Raise unless both classes have some weight."""
    if not np.all(totals > 0):
        raise InputError(
            f"{name} needs rows of both classes, but only one class "
            f"has rows of positive weight. Check sample_weight and class_weight."
        )


def _distinct(labels: Array) -> Array:
    """Return the sorted distinct labels; memory does not grow with their number."""
    chunk = 1_000_000
    found = [np.unique(labels[i : i + chunk]) for i in range(0, len(labels), chunk)]
    return np.unique(np.concatenate(found))


def read_weights(sample_weight: Any, n_rows: int) -> Array | None:
    """Return the sample weights, (n,), or None for ones."""
    if sample_weight is None:
        return None
    reference = np.empty((n_rows, 1), dtype=np.float64)
    weight = np.asarray(
        _check_sample_weight(sample_weight, reference, dtype=np.float64, ensure_non_negative=True)
    )
    if not weight.any():
        raise InputError("Sample weights must not all be zero: no row is left to fit.")
    return weight


def read_groups(groups: Any, n_rows: int) -> Array | None:
    """Return the number of the group of each row, (n,), or None where there are not two."""
    if groups is None:
        return None
    given = np.asarray(groups)
    if given.shape != (n_rows,):
        raise InputError(f"groups has shape {given.shape}, where ({n_rows},) is due.")
    return number_groups(given)


def class_totals(positive: Array, weight: Array | None) -> Array:
    """Return the weight of all rows of each class, (2,)."""
    return np.bincount(positive, weights=weight, minlength=2).astype(np.float64)


def class_factors(class_weight: Any, classes: Array, totals: Array) -> Array | None:
    """Return what the rows of each class weigh, (2,), or None for one each."""
    if class_weight is None:
        return None
    # A class of so much weight in all counts as one row of that weight.
    factors = compute_class_weight(class_weight, classes=classes, y=classes, sample_weight=totals)
    return np.asarray(factors)


def class_shares(positive: Array, weight: Array | None) -> tuple[float, float]:
    """Return the share of each class in the weight of all rows."""
    share = float(np.average(positive, weights=weight))
    return 1.0 - share, share


def prior_shift(
    given: Any, classes: Array, observed: tuple[float, float], trained: tuple[float, float]
) -> float:
    """Return the shift of the latent mean to the class frequencies ``given``, if any.

    ``observed`` and ``trained`` are the classes' shares in ``y``, and in the fit.
    """
    if given is None:
        return 0.0
    with as_input_errors("prior_correction"):
        real = read_frequencies(given, classes, observed)
    # For a logistic model a change of prior is exactly a shift of the log odds.
    return float(np.log(real[1] / real[0]) - np.log(trained[1] / trained[0]))


def read_frequencies(
    given: Any, classes: Array, observed: tuple[float, float]
) -> tuple[float, float]:
    """Return the real class frequencies that ``prior_correction`` gives, checked."""
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
    if values.shape != (2,) or not np.all(values > 0) or not np.isclose(values.sum(), 1.0):
        raise InputError(
            f"prior_correction must hold two positive class frequencies that sum to 1, in the "
            f"order of classes_ {classes.tolist()}; got {given!r}."
        )
    return float(values[0]), float(values[1])
