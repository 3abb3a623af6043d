"""From what a user passes to ``fit`` to data ready to fit: checked, weighted, standardised.

Rows may be arrays, named tables, memory maps, dask arrays, or anything that can be sliced.
:mod:`undulatus.estimators.training_dask` prepares dask arrays without loading them.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import numpy as np
import sklearn
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    column_or_1d,
    validate_data,
)

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.class_frequencies import (
    class_factors,
    class_shares,
    class_totals,
    prior_shift,
)
from undulatus.gp.backends import Array, Backend, as_tensor, on_host, to_host
from undulatus.gp.data import (
    Pixels,
    PixelSource,
    Standardisation,
    Warp,
    read_rows,
    require_finite,
    unmasked,
)
from undulatus.gp.moments import (
    MOST_LABELS,
    FeatureSummary,
    apply_class_weights,
    encode,
    require_known,
    require_phases_of_rows,
    require_weights,
    summarise,
)
from undulatus.gp.splits import number_groups

MERGE_ROWS, MERGE_VALUES = 100_000, 4_000_000
"""Equal rows are merged before a batch fit up to this many rows, and values in them."""

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Levels of ``feature_quantiles_``."""

QUANTILE_ROWS = 100_000
"""Quantiles are estimated from at most this many rows."""

UNEVEN = 1e6
"""Weights this many times the median may be why other rows lie too far out."""

SMALLEST_EXTENT, LARGEST_EXTENT, HEAVIEST = 1e-15, 1e15, 1e37
"""Features that are not standardised may vary by no less and no more, and by no more than the last
times the weight of all rows: squares and sums of others do not fit into single precision."""

FINGERPRINT_ROWS = 1000
"""Rows that enter a fingerprint of the data."""

# Data ready to fit


@dataclass(frozen=True)
class DataOptions:
    """How data are prepared for one fit: parameters of the classifier, and names for errors."""

    classifier: str
    columns: Callable[[int], str]
    """The function from a column's number to what the user calls it."""
    class_weight: Any
    prior_correction: Any
    standardize: bool
    warp: bool
    """Whether to compress the tails of features that are standardised."""
    merge: bool
    """Whether to merge equal rows."""
    threads: int


@dataclass(frozen=True)
class Overview:
    """What one look at the training data gives: their classes and the spread of each feature."""

    summary: FeatureSummary
    standardisation: Standardisation
    variances: Array
    """Variances of the standardised features, (d,)."""
    classes: Array
    prior_shift: Array
    """Change of the log odds that undoes a changed class prior: of the second class, (1,), or
    with more than two classes the logarithm of the factor on each one's probability, (k,)."""
    quantiles: Array
    log_odds: Array
    """Logarithm of the odds of each latent function's class in the weight of all rows: of the
    second class, (1,), or of each, (k,)."""


class TrainingData(Protocol):
    """Data ready to fit, in memory or in chunks elsewhere."""

    @property
    def overview(self) -> Overview:
        """What is known of the data before the fit."""
        ...

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        ...

    def pixels(self, xp: Backend, rows_per_block: int, threads: int) -> PixelSource:
        """Return the pixels to fit on."""
        ...

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        ...

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Yield bytes of some rows and of all labels, weights and groups."""
        ...


@dataclass(frozen=True)
class RowData:
    """Labelled rows of positive weight, in memory or to be read in slices."""

    overview: Overview
    rows: Any
    codes: Array
    """Number of each row's class, (n,); bool for two classes."""
    weight: Array | None
    groups: Array | None
    """Number of the group of each row, if there are groups."""
    source: Any
    """The rows as given, before any was dropped or merged: error messages refer to these."""
    dropped: Array | None
    """Which rows of ``source`` have no weight, (n,) bool, if any."""

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return int(self.rows.shape[0])

    def pixels(self, xp: Backend, rows_per_block: int, threads: int) -> Pixels:
        """Return the pixels to fit on."""
        return Pixels(
            self.rows,
            self.codes,
            self.weight,
            self.overview.standardisation,
            xp,
            rows_per_block,
            threads,
            self.groups,
            len(self.overview.classes),
        )

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        require_phases_of_rows(
            self.source, self.dropped, self.overview.standardisation, frequencies, columns
        )

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Yield bytes of some rows and of all labels, weights and groups."""
        yield from fingerprint_parts(self.rows, self.codes, self.weight, self.groups)


def fingerprint_parts(
    rows: Any, codes: Array, weight: Array | None, groups: Array | None
) -> Iterator[bytes]:
    """Yield the bytes of all labels, weights and groups, and of some rows."""
    yield (np.packbits(codes) if codes.dtype == bool else codes).tobytes()
    for values in (weight, groups):
        if values is not None:
            yield np.ascontiguousarray(values).tobytes()
    some = spread_out(rows.shape[0], FINGERPRINT_ROWS)
    yield np.ascontiguousarray(to_host(read_rows(rows, some, FINGERPRINT_ROWS))).tobytes()


def prepare_rows(
    rows: Any, y: Any, sample_weight: Any, options: DataOptions, groups: Any = None
) -> RowData:
    """Return rows that passed :func:`validate_rows`, with labels and weights, ready to fit."""
    source = rows
    y, sample_weight, groups = map(on_host, (y, sample_weight, groups))
    with as_input_errors():
        classes, codes = encode_labels(options.classifier, y, rows.shape[0])
        weight = read_weights(sample_weight, rows.shape[0])
        totals = class_totals(codes, weight, len(classes))
        require_weight(options.classifier, classes, totals)
        observed = class_shares(codes, weight, len(classes))
        factors = class_factors(options.class_weight, classes, totals)
        weight = apply_class_weights(factors, codes, weight)
        if weight is not None:
            require_weights(weight)
    group = read_groups(groups, rows.shape[0])
    dropped = None
    if weight is not None and not weight.all():
        dropped = weight == 0
        used = np.flatnonzero(weight)
        # Rows of zero weight are dropped, but must be finite like the others.
        summarise(rows, None, options.threads, options.columns)
        rows = read_rows(rows, used, QUANTILE_ROWS)
        codes, weight = codes[used], weight[used]
        group = None if group is None else read_groups(group[used], len(used))
    require_rows(options.classifier, classes, class_totals(codes, None, len(classes)), totals)
    seen = look_over(rows, codes, weight, group, classes, observed, options)
    return RowData(*seen, group, source, dropped)


def is_small(options: DataOptions, n_rows: int, n_features: int) -> bool:
    """Whether so many rows are taken into memory before the fit, to merge equal ones."""
    return options.merge and n_rows <= MERGE_ROWS and n_rows * n_features <= MERGE_VALUES


def look_over(
    rows: Any,
    codes: Array,
    weight: Array | None,
    group: Array | None,
    classes: Array,
    observed: Array,
    options: DataOptions,
) -> tuple[Overview, Any, Array, Array | None]:
    """Return the overview of rows of positive weight; and rows, codes and weights, merged if few.

    ``observed`` are the classes' shares before class weights.
    """
    n, d = rows.shape
    # Equal rows of different groups must stay apart.
    if group is None and is_small(options, n, d):
        rows = to_host(read_rows(rows, np.arange(n), MERGE_ROWS))
        require_finite(rows, options.columns)
        rows, codes, weight = merge_equal_rows(rows, codes, weight)
    summary = summarise(rows, weight, options.threads, options.columns)
    chosen = spread_out(rows.shape[0], QUANTILE_ROWS)
    some = to_host(read_rows(rows, chosen, QUANTILE_ROWS))
    some_weight = None if weight is None else weight[chosen]
    trained = class_shares(codes, weight, len(classes))
    overview = Overview(
        summary,
        *standardise(summary, some, some_weight, options),
        classes=classes,
        prior_shift=prior_shift(options.prior_correction, classes, observed, trained),
        quantiles=quantiles(some, some_weight, summary),
        log_odds=log_odds(trained),
    )
    return overview, rows, codes, weight


def merge_equal_rows(
    rows: Array, codes: Array, weight: Array | None
) -> tuple[Array, Array, Array]:
    """Return distinct labelled rows in lexicographic order, each with its summed weight.

    A row given twice and a row of weight two are then the same data, bit for bit, and the
    order of rows does not matter.
    """
    table = np.column_stack([np.asarray(rows, dtype=np.float64), codes])
    distinct, index = np.unique(table, axis=0, return_inverse=True)
    total = np.bincount(index.ravel(), weights=weight, minlength=len(distinct))
    return distinct[:, :-1], distinct[:, -1].astype(codes.dtype), total.astype(np.float64)


def standardise(
    summary: FeatureSummary, some: Array, weight: Array | None, options: DataOptions
) -> tuple[Standardisation, Array]:
    """Return how features enter the model, and the variances they have then, (d,).

    A warp is found from ``some`` rows (m, d) and their weights: it is around the median, as wide
    as the mean distance from it.
    """
    if not options.standardize:
        _require_moderate(summary)
        # Kernels depend on differences alone, but phases of rows far from zero lose digits.
        varies = np.sqrt(summary.variance) > _rounding(summary.mean)
        return (
            Standardisation(summary.mean, np.ones_like(summary.mean)),
            np.where(varies, summary.variance, 0.0),
        )
    if options.warp:
        return _standardise_warped(some, weight)
    centre, scale = summary.mean, _positive_scale(summary.mean, summary.variance)
    return Standardisation(centre, scale), summary.variance / scale**2


def _require_moderate(summary: FeatureSummary) -> None:
    """Raise if features as they are would overflow, or be lost, in single precision."""
    extent = float(np.sqrt(summary.variance.sum()))
    heaviest = extent * max(summary.total_weight, 1.0)
    if extent > 0 and not (SMALLEST_EXTENT < extent < LARGEST_EXTENT and heaviest < HEAVIEST):
        raise InputError(
            f"The features vary by {extent:.3g} around their means, with weights of "
            f"{summary.total_weight:.3g} in total: too far from 1 to be used as they are. Rescale "
            f"them, or leave standardize=True."
        )


def _standardise_warped(some: Array, weight: Array | None) -> tuple[Standardisation, Array]:
    rows = some.astype(np.float64)
    middle = np.quantile(rows, 0.5, axis=0, weights=weight, method="inverted_cdf")
    distance = np.average(np.abs(rows - middle), axis=0, weights=weight)
    width = np.where(distance <= _rounding(middle), 1.0, distance)
    warp = Warp(middle, width)
    warped = warp(rows, np.float64)
    mean = np.average(warped, axis=0, weights=weight)
    variance = np.average((warped - mean) ** 2, axis=0, weights=weight)
    scale = _positive_scale(mean, variance)
    return Standardisation(mean, scale, warp), variance / scale**2


def _positive_scale(mean: Array, variance: Array) -> Array:
    """Return the deviation of each feature, or one where it varies by rounding only, (d,)."""
    scale = np.sqrt(variance)
    return np.where(scale <= _rounding(mean), 1.0, scale)


def _rounding(mean: Array) -> Array:
    """Return how far a constant may deviate from its mean by rounding, (d,)."""
    return np.asarray(10 * np.finfo(np.float64).eps * np.abs(mean))


def log_odds(shares: Array) -> Array:
    """Return the logarithm of the odds of the second class, (1,), or with more of each, (k,)."""
    if len(shares) == 2:
        return np.asarray(np.log(shares[1:] / shares[:1]))
    return np.asarray(np.log(shares) - np.log1p(-shares))


def spread_out(n_rows: int, most: int) -> Array:
    """Return at most ``most`` row numbers at equal distances, from the first on."""
    return np.arange(0, n_rows, -(-n_rows // most))


def quantiles(some: Array, weight: Array | None, summary: FeatureSummary) -> Array:
    """Return the quantiles of features, (7, d), from some rows and their weights.

    The smallest and largest value are those of all rows, from ``summary``.
    """
    values = np.quantile(
        some.astype(np.float64), QUANTILES, axis=0, weights=weight, method="inverted_cdf"
    )
    values[0], values[-1] = summary.low, summary.high
    return np.asarray(values)


# Rows


def validate_rows(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return ``X`` as something to slice; check its columns, but do not read its values.

    With ``reset``, set ``n_features_in_`` and ``feature_names_in_`` of the estimator; else
    compare with them.
    """
    tensor = as_tensor(X)
    if tensor is not None and hasattr(estimator, "device"):
        return _validate_tensor(estimator, tensor, reset=reset)
    if tensor is not None:
        X = to_host(tensor)
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
        return dask_array(X) if is_chunked(X) else X
    if np.ma.isMaskedArray(X):
        X = unmasked(X)
    return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)


def _validate_tensor(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return a tensor of rows, which stays on its device, in a type that it computes with."""
    if X.ndim != 2 or 0 in X.shape or X.is_complex():
        raise InputError(
            f"X must hold real numbers in rows and columns, with at least one of each: got "
            f"{X.dtype} of shape {tuple(X.shape)}."
        )
    _check_n_features(estimator, X, reset=reset)
    if not X.is_floating_point():
        return X.double()
    return X if X.element_size() >= 4 else X.float()


def is_sliceable(X: Any) -> bool:
    """Whether ``X`` is a two-dimensional array, other than numpy's, that is read in slices."""
    return (
        not isinstance(X, np.ndarray)
        and isinstance(getattr(X, "dtype", None), np.dtype)
        and len(getattr(X, "shape", ())) == 2
        and hasattr(X, "__getitem__")
        and not hasattr(X, "tocsr")
        and not hasattr(X, "iloc")
    )


def is_chunked(values: Any) -> bool:
    """Whether this is a dask array, or an xarray DataArray of one (neither is imported)."""
    if not hasattr(values, "__dask_graph__") or getattr(values, "chunks", None) is None:
        return False
    return hasattr(values, "rechunk") or _is_data_array(values)


def dask_array(values: Any) -> Any:
    """Return the dask array inside a DataArray; a dask array itself is returned as it is."""
    return values.data if _is_data_array(values) else values


def into_memory(values: Any) -> Any:
    """Compute a dask array or a DataArray of one; return anything else as it is."""
    return values.compute() if is_chunked(values) else values


def _is_data_array(values: Any) -> bool:
    return hasattr(values, "dims") and hasattr(values, "coords")


def column_namer(estimator: Any) -> Callable[[int], str]:
    """Return the function from a column's number to what the user calls it."""
    names = getattr(estimator, "feature_names_in_", None)
    return (lambda i: str(i)) if names is None else (lambda i: repr(str(names[i])))


def _check_names(estimator: Any, X: Any, *, reset: bool) -> None:
    """Keep the names along a DataArray's second dimension, or compare them with the fit's."""
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
    if not _is_data_array(X) or X.dims[1] not in X.coords:
        return None
    names = np.asarray(X.coords[X.dims[1]])
    return np.array(names.astype(str), dtype=object) if names.dtype.kind in "UOT" else None


# Labels, weights and groups


def encode_labels(classifier: str, y: Any, n_rows: int) -> tuple[Array, Array]:
    """Return the classes of ``y``, sorted, and the number of each row's; bool for two classes."""
    if y is None:
        raise InputError(f"{classifier} requires y to be passed, but the target y is None.")
    if hasattr(y, "isna") and bool(np.any(y.isna())):
        raise InputError("Input y contains NaN. Drop the rows without a label.")
    labels = unmasked(y, "y")
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
    if _may_be_mixed(y, labels):
        _require_one_type(np.asarray(y, dtype=object).ravel(), "y")
        if not isinstance(labels[0], str):
            # Numbers in an array of objects, as of a table with text elsewhere, are numbers.
            labels = np.array(labels.tolist())
    classes = _distinct(labels)
    require_classes(classifier, classes)
    return classes, encode(labels, classes)


def _may_be_mixed(given: Any, values: Array) -> bool:
    # Of a list of text and numbers, numpy makes text of both.
    return values.dtype.kind == "O" or (
        values.dtype.kind == "U" and isinstance(given, list | tuple)
    )


def _require_one_type(values: Array, name: str) -> None:
    """Raise if labels or groups are missing, or of types that cannot be compared."""
    require_known(values, name)
    kinds = {"text" if isinstance(value, str) else "number" for value in values.tolist()}
    if len(kinds) > 1:
        raise InputError(
            f"Unknown label type: {name} holds text and numbers together. Give all of them one "
            f"type."
        )


def require_classes(classifier: str, classes: Array) -> None:
    """Raise unless there are two classes or more, of a type that classes may have."""
    # Repeated, or many classes would be taken for numbers to regress on.
    try:
        check_classification_targets(np.repeat(classes, 3))
    except TypeError as error:
        # Of labels that are bytes.
        raise InputError(str(error)) from error
    if len(classes) >= MOST_LABELS:
        raise InputError(
            f"y holds {len(classes)} different labels or more, such as {classes[0]!r} and "
            f"{classes[-1]!r}. {classifier} takes at most {MOST_LABELS - 1} classes. Is y a "
            f"number to regress on, or an identifier?"
        )
    if len(classes) < 2:
        raise InputError(
            f"{classifier} needs two classes to separate, but y holds one class only: "
            f"{_name_some(classes)}."
        )


def require_weight(classifier: str, classes: Array, totals: Array) -> None:
    """Raise unless all classes have some weight."""
    if np.all(totals > 0):
        return
    if len(classes) == 2:
        raise InputError(
            f"{classifier} needs rows of both classes, but only one class "
            f"has rows of positive weight. Check sample_weight and class_weight."
        )
    raise InputError(
        f"{classifier} needs rows of all classes, but there are none of positive weight of "
        f"{_name_some(classes[totals == 0])}. Check sample_weight and class_weight."
    )


def require_rows(classifier: str, classes: Array, counts: Array, totals: Array) -> None:
    """Raise unless all classes have rows: two at least if there are more than two classes.

    A row whose weight is 2 counts as two.
    """
    require_weight(classifier, classes, counts)
    single = (counts < 2) & (totals < 2)
    if len(classes) > 2 and single.any():
        raise InputError(
            f"{classifier} needs two rows or more of each of {len(classes)} classes, but has one "
            f"of {_name_some(classes[single])}. Add rows, merge these classes, or drop them."
        )


def _name_some(classes: Array, most: int = 5) -> str:
    """Return the names of classes for a message."""
    named = ", ".join(repr(label) for label in classes[:most].tolist())
    return named if len(classes) <= most else f"{named} and {len(classes) - most} more"


def _distinct(labels: Array) -> Array:
    """Return the sorted distinct labels; a million at a time, so that memory stays bounded."""
    chunk = 1_000_000
    distinct = [np.unique(labels[i : i + chunk]) for i in range(0, len(labels), chunk)]
    return np.unique(np.concatenate(distinct))


def read_weights(sample_weight: Any, n_rows: int) -> Array | None:
    """Return the sample weights, (n,), or None if all are one."""
    if sample_weight is None:
        return None
    reference = np.empty((n_rows, 1), dtype=np.float64)
    if np.ma.isMaskedArray(sample_weight):
        sample_weight = unmasked(sample_weight, "sample_weight")
    weight = np.asarray(
        _check_sample_weight(sample_weight, reference, dtype=np.float64, ensure_non_negative=True)
    )
    require_weights(weight)
    if not weight.any():
        raise InputError("Sample weights must not all be zero: no row is left to fit.")
    return weight


def require_even_weights(weight: Array | None, error: InputError) -> None:
    """Raise if weights are so uneven that they, and no odd value, put a row too far out."""
    if weight is None or not weight.max() > UNEVEN * np.median(weight):
        return
    raise InputError(
        f"The weights of rows reach from {weight.min():g} to {weight.max():g}: the heaviest alone "
        f"say how features vary, and others lie too far from them.\n{error}\nThe cause may be "
        f"the weights: keep sample_weight and class_weight within a factor of {UNEVEN:g}."
    ) from error


def read_groups(groups: Any, n_rows: int) -> Array | None:
    """Return the number of each row's group, (n,), or None if there are fewer than two."""
    if groups is None:
        return None
    given = read_names(groups, "groups")
    if given.shape != (n_rows,):
        raise InputError(f"groups has shape {given.shape}, but ({n_rows},) is needed.")
    return number_groups(given)


def read_column(table: Any, name: str) -> Array:
    """Return a column of a table or mapping, (n,); raise, naming it, if values are masked."""
    return unmasked(table[name], repr(name))


def read_names(given: Any, name: str) -> Array:
    """Return labels or groups as an array; raise if some are masked or missing."""
    values = unmasked(given, name)
    require_known(values, name)
    if _may_be_mixed(given, values):
        _require_one_type(np.asarray(given, dtype=object).ravel(), name)
    return values


def warn_of_groups_for_splits_alone(classifier: str) -> None:
    """Warn if scikit-learn's model selection was given groups, which it keeps from this fit.

    It does so without metadata routing, and tells no estimator: only its own frames know. Those of
    other processes (``n_jobs``) are not seen.
    """
    routed = sklearn.get_config()["enable_metadata_routing"]
    frame: FrameType | None = None if routed else sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("sklearn.model_selection"):
            known = frame.f_locals
            given = known.get("groups", (known.get("params") or {}).get("groups"))
            if given is not None:
                warnings.warn(
                    f"groups split the rows, but {classifier} learns without them: what it holds "
                    f"back has rows of groups it learns from. Call sklearn.set_config("
                    f"enable_metadata_routing=True) first, which passes groups on; or "
                    f"set_fit_request(groups=False), too, if they are for the split alone.",
                    UserWarning,
                    stacklevel=3,
                )
                return
        frame = frame.f_back
