"""From what a user passes to ``fit`` to data ready to fit: labels, weights, scaling, merging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.rows import column_namer, validate_rows
from undulatus.gp.blocks import Standardisation, read_rows, require_finite
from undulatus.gp.summary import Summary, summarise

Array = npt.NDArray[Any]

MERGE_ROWS, MERGE_VALUES = 100_000, 4_000_000
"""Up to this many rows, and values in them, equal rows are merged before a batch fit."""
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Levels of `feature_quantiles_`."""
QUANTILE_ROWS = 100_000


@dataclass(frozen=True)
class Training:
    """Data ready to fit: rows of positive weight, their class, and how to standardise them.

    ``prior_shift`` is the change of the latent mean that undoes a changed class prior.
    """

    rows: Any
    positive: Array
    weight: Array | None
    summary: Summary
    standardisation: Standardisation
    classes: Array
    prior_shift: float
    quantiles: Array
    groups: Array | None
    """Number of the group of each row, if there are groups."""
    source: Any
    """The rows as given, before any was dropped or merged: errors speak of these."""
    absent: Array | None
    """Which of those rows have no weight, (n,) bool, if any."""

    @property
    def variances(self) -> Array:
        """Variances of the standardised features, (d,)."""
        return np.asarray(self.summary.variance / self.standardisation.scale**2)


def prepare(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    merge: bool,
    threads: int,
    groups: Any = None,
) -> Training:
    """Return the data of ``fit``, checked against the parameters of ``model``."""
    with as_input_errors():
        rows = source = validate_rows(model, X, reset=True)
        classes, positive = encode(type(model).__name__, y, rows.shape[0])
        weight = read_weights(sample_weight, rows.shape[0])
        observed = _class_shares(positive, weight)
        weight = weigh_classes(model.class_weight, classes, positive, weight)
    group = read_groups(groups, rows.shape[0])
    columns = column_namer(model)
    absent = None
    if weight is not None and not weight.all():
        absent = weight == 0
        # Rows of no weight are as good as absent, but must be finite like the others.
        used = np.flatnonzero(weight)
        summarise(rows, None, threads, columns)
        rows = read_rows(rows, used, QUANTILE_ROWS)
        positive, weight = positive[used], weight[used]
        group = None if group is None else read_groups(group[used], len(used))
        if positive.all() or not positive.any():
            raise InputError(
                f"{type(model).__name__} needs rows of both classes, but only one class "
                f"has rows of positive weight. Check sample_weight and class_weight."
            )
    n, d = rows.shape
    # Equal rows of different groups are not one.
    if merge and group is None and n <= MERGE_ROWS and n * d <= MERGE_VALUES:
        rows = read_rows(rows, np.arange(n), MERGE_ROWS)
        require_finite(rows, columns)
        rows, positive, weight = merge_equal_rows(rows, positive, weight)
    summary = summarise(rows, weight, threads, columns)
    shift = 0.0
    if model.prior_correction is not None:
        with as_input_errors("prior_correction"):
            real = read_frequencies(model.prior_correction, classes, observed)
        trained = _class_shares(positive, weight)
        # For a logistic model a change of prior is exactly a shift of the log odds.
        shift = float(np.log(real[1] / real[0]) - np.log(trained[1] / trained[0]))
    return Training(
        rows=rows,
        positive=positive,
        weight=weight,
        summary=summary,
        standardisation=_standardise(summary, model.standardize),
        classes=classes,
        prior_shift=shift,
        quantiles=_quantiles(rows, weight, summary),
        groups=group,
        source=source,
        absent=absent,
    )


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
    return classes, np.asarray(labels == classes[1])


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
    names, numbers = np.unique(np.asarray(groups), return_inverse=True)
    if numbers.shape != (n_rows,):
        raise InputError(f"groups has shape {numbers.shape}, where ({n_rows},) is due.")
    return np.asarray(numbers) if len(names) > 1 else None


def weigh_classes(
    class_weight: Any, classes: Array, positive: Array, weight: Array | None
) -> Array | None:
    """Return the weights (n,) times those of the classes."""
    if class_weight is None:
        return weight
    of_class = compute_class_weight(
        class_weight, classes=classes, y=classes[positive.astype(int)], sample_weight=weight
    )
    factor = np.asarray(of_class[positive.astype(int)])
    return factor if weight is None else weight * factor


def _distinct(labels: Array) -> Array:
    """Return the sorted distinct labels; memory does not grow with their number."""
    chunk = 1_000_000
    found = [np.unique(labels[i : i + chunk]) for i in range(0, len(labels), chunk)]
    return np.unique(np.concatenate(found))


def _class_shares(positive: Array, weight: Array | None) -> tuple[float, float]:
    share = float(np.average(positive, weights=weight))
    return 1.0 - share, share


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


def merge_equal_rows(
    rows: Array, positive: Array, weight: Array | None
) -> tuple[Array, Array, Array]:
    """Return distinct labelled rows in lexicographic order, each with its summed weight.

    A row given twice and a row of weight two then are the same data, bit for bit,
    and so is any order of rows.
    """
    table = np.column_stack([np.asarray(rows, dtype=np.float64), positive])
    distinct, index = np.unique(table, axis=0, return_inverse=True)
    total = np.bincount(index.ravel(), weights=weight, minlength=len(distinct))
    return distinct[:, :-1], distinct[:, -1] > 0.5, total.astype(np.float64)


def _standardise(summary: Summary, wanted: bool) -> Standardisation:
    if not wanted:
        return Standardisation(np.zeros_like(summary.mean), np.ones_like(summary.mean))
    scale = np.sqrt(summary.variance)
    # A column that only its rounding moves is constant.
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(summary.mean)
    return Standardisation(summary.mean, np.where(constant, 1.0, scale))


def _quantiles(rows: Any, weight: Array | None, summary: Summary) -> Array:
    chosen = np.arange(0, rows.shape[0], -(-rows.shape[0] // QUANTILE_ROWS))
    some = read_rows(rows, chosen, QUANTILE_ROWS).astype(np.float64)
    found = np.quantile(
        some,
        QUANTILES,
        axis=0,
        weights=None if weight is None else weight[chosen],
        method="inverted_cdf",
    )
    found[0], found[-1] = summary.low, summary.high
    return np.asarray(found)
