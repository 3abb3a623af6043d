"""Rows as users have them: arrays, named tables, memory maps, dask, or anything to slice.

Labels, weights and groups as users have them: checked, encoded, and what classes weigh.

From what a user passes to ``fit`` to data ready to fit: checks, scaling, merging.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    column_or_1d,
    validate_data,
)

from undulatus.errors import InputError, as_input_errors
from undulatus.gp.blocks import Pixels, PixelSource, Standardisation, read_rows, require_finite
from undulatus.gp.moments import (
    FeatureSummary,
    apply_class_weights,
    require_phases_of_rows,
    summarise,
)
from undulatus.gp.passes import number_groups


def is_sliceable(X: Any) -> bool:
    """Whether ``X`` is a two-dimensional array on disk or elsewhere, to be read in slices."""
    return (
        not isinstance(X, np.ndarray)
        and isinstance(getattr(X, "dtype", None), np.dtype)
        and len(getattr(X, "shape", ())) == 2
        and hasattr(X, "__getitem__")
        and not hasattr(X, "tocsr")
        and not hasattr(X, "iloc")
    )


def is_chunked(values: Any) -> bool:
    """Whether these are a dask array, or an xarray DataArray of one (neither is imported)."""
    if not hasattr(values, "__dask_graph__") or getattr(values, "chunks", None) is None:
        return False
    return hasattr(values, "rechunk") or _has_coordinates(values)


def bare(values: Any) -> Any:
    """Return the dask array in a DataArray, and a dask array as it is."""
    return values.data if _has_coordinates(values) else values


def _has_coordinates(values: Any) -> bool:
    return hasattr(values, "dims") and hasattr(values, "coords")


def into_memory(values: Any) -> Any:
    """Return the values of a dask array, or of a DataArray of one, and anything else as it is."""
    return values.compute() if is_chunked(values) else values


def _check_names(estimator: Any, X: Any, *, reset: bool) -> None:
    """Keep the names along a DataArray's second dimension, or check them against the fit's."""
    names = _coordinate_names(X)
    if names is None:
        _check_feature_names(estimator, X, reset=reset)
    elif reset:
        estimator.feature_names_in_ = names
    else:
        fitted = getattr(estimator, "feature_names_in_", names)
        if fitted.tolist() != names.tolist():
            raise InputError(
                f"X has the columns {', '.join(names)}, but {type(estimator).__name__} was fitted "
                f"on {', '.join(map(str, fitted))}. Select these, in this order."
            )


def _coordinate_names(X: Any) -> Any:
    if not _has_coordinates(X) or X.dims[1] not in X.coords:
        return None
    names = np.asarray(X.coords[X.dims[1]])
    return np.array(names.astype(str), dtype=object) if names.dtype.kind in "UOT" else None


def validate_rows(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return ``X`` as something to slice, its columns checked against the fit; values unread."""
    if is_sliceable(X):
        if X.dtype.kind not in "fiub":
            raise InputError(f"X must hold real numbers, got {X.dtype}.")
        if 0 in X.shape:
            raise InputError(
                f"Found array with {X.shape[0]} sample(s) and {X.shape[1]} feature(s) "
                f"(shape={tuple(X.shape)}) while a minimum of 1 is required."
            )
        _check_names(estimator, X, reset=reset)
        _check_n_features(estimator, X, reset=reset)
        return bare(X) if is_chunked(X) else X
    return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)


def column_namer(estimator: Any) -> Callable[[int], str]:
    """Return the function from a column's number to what a user would call it."""
    names = getattr(estimator, "feature_names_in_", None)
    return (lambda i: str(i)) if names is None else (lambda i: repr(str(names[i])))


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


MERGE_ROWS, MERGE_VALUES = 100_000, 4_000_000
"""Up to this many rows, and values in them, equal rows are merged before a batch fit."""

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Levels of `feature_quantiles_`."""

QUANTILE_ROWS = 100_000

FINGERPRINT_ROWS = 1000


@dataclass(frozen=True)
class Prepared:
    """Data ready to fit, wherever they are: what they are like, and how to standardise them.

    ``prior_shift`` is the change of the latent mean that undoes a changed class prior.
    """

    summary: FeatureSummary
    standardisation: Standardisation
    classes: Array
    prior_shift: float
    quantiles: Array

    @property
    def variances(self) -> Array:
        """Variances of the standardised features, (d,)."""
        return np.asarray(self.summary.variance / self.standardisation.scale**2)

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        raise NotImplementedError

    def pixels(self, dtype: np.dtype[Any], rows_per_block: int, threads: int) -> PixelSource:
        """Return the pixels to fit on."""
        raise NotImplementedError

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        raise NotImplementedError

    def marks(self) -> Iterator[bytes]:
        """Yield what tells these data from others: some rows, all labels, weights and groups."""
        raise NotImplementedError


@dataclass(frozen=True)
class Training(Prepared):
    """Rows of positive weight in memory, or to be sliced, and their class."""

    rows: Any
    positive: Array
    weight: Array | None
    groups: Array | None
    """Number of the group of each row, if there are groups."""
    source: Any
    """The rows as given, before any was dropped or merged: errors speak of these."""
    absent: Array | None
    """Which of those rows have no weight, (n,) bool, if any."""

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return int(self.rows.shape[0])

    def pixels(self, dtype: np.dtype[Any], rows_per_block: int, threads: int) -> Pixels:
        """Return the pixels to fit on."""
        return Pixels(
            self.rows,
            self.positive,
            self.weight,
            self.standardisation,
            dtype,
            rows_per_block,
            threads,
            self.groups,
        )

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        require_phases_of_rows(
            self.source, self.absent, self.standardisation, frequencies, columns
        )

    def marks(self) -> Iterator[bytes]:
        """Yield what tells these data from others: some rows, all labels, weights and groups."""
        yield from marks_of(self.rows, self.positive, self.weight, self.groups)


def marks_of(
    rows: Any, positive: Array, weight: Array | None, groups: Array | None
) -> Iterator[bytes]:
    """Yield the bytes of all labels, weights and groups, and of some rows."""
    yield np.packbits(positive).tobytes()
    for values in (weight, groups):
        if values is not None:
            yield np.ascontiguousarray(values).tobytes()
    some = spread_out(rows.shape[0], FINGERPRINT_ROWS)
    yield np.ascontiguousarray(read_rows(rows, some, FINGERPRINT_ROWS)).tobytes()


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
        observed = class_shares(positive, weight)
        factors = class_factors(model.class_weight, classes, class_totals(positive, weight))
        weight = apply_class_weights(factors, positive, weight)
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
        require_both(type(model).__name__, class_totals(positive, None))
    n, d = rows.shape
    # Equal rows of different groups are not one.
    if merge and group is None and n <= MERGE_ROWS and n * d <= MERGE_VALUES:
        rows = read_rows(rows, np.arange(n), MERGE_ROWS)
        require_finite(rows, columns)
        rows, positive, weight = merge_equal_rows(rows, positive, weight)
    summary = summarise(rows, weight, threads, columns)
    chosen = spread_out(rows.shape[0], QUANTILE_ROWS)
    some = read_rows(rows, chosen, QUANTILE_ROWS)
    return Training(
        summary=summary,
        standardisation=standardise(summary, model.standardize),
        classes=classes,
        prior_shift=prior_shift(
            model.prior_correction, classes, observed, class_shares(positive, weight)
        ),
        quantiles=quantiles(some, None if weight is None else weight[chosen], summary),
        rows=rows,
        positive=positive,
        weight=weight,
        groups=group,
        source=source,
        absent=absent,
    )


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


def standardise(summary: FeatureSummary, wanted: bool) -> Standardisation:
    """Return how to centre and scale features, or that they stay as they are."""
    if not wanted:
        return Standardisation(np.zeros_like(summary.mean), np.ones_like(summary.mean))
    scale = np.sqrt(summary.variance)
    # A column that only its rounding moves is constant.
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(summary.mean)
    return Standardisation(summary.mean, np.where(constant, 1.0, scale))


def spread_out(n_rows: int, most: int) -> Array:
    """Return at most so many row numbers, as far from each other as can be."""
    return np.arange(0, n_rows, -(-n_rows // most))


def quantiles(some: Array, weight: Array | None, summary: FeatureSummary) -> Array:
    """Return the quantiles of features, (7, d), from some rows and their weights."""
    found = np.quantile(
        some.astype(np.float64), QUANTILES, axis=0, weights=weight, method="inverted_cdf"
    )
    found[0], found[-1] = summary.low, summary.high
    return np.asarray(found)
