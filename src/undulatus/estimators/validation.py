"""Checks of what a user passes: rows ``X``, labels ``y``, weights and groups.

Rows may be arrays, named tables, memory maps, dask arrays, or anything that can be sliced.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import sklearn
from sklearn.utils.validation import (
    _check_feature_names,
    _check_n_features,
    _check_sample_weight,
    column_or_1d,
    validate_data,
)

from undulatus.errors import InputError
from undulatus.gp.backends import Array, as_tensor, on_host, to_host
from undulatus.gp.data import unmasked
from undulatus.gp.moments import encode, require_known, require_weights
from undulatus.gp.splits import number_groups

UNEVEN = 1e6
"""Weights this many times the median may be why other rows lie too far out."""

# Rows


def validate_rows(estimator: Any, X: Any, *, reset: bool) -> Any:
    """Return ``X`` as something to slice; check its columns, but do not read its values.

    With ``reset``, set ``n_features_in_`` and ``feature_names_in_`` of the estimator; else
    compare with them. A tensor stays on its device if the estimator computes there.
    """
    tensor = as_tensor(X)
    if tensor is not None and not hasattr(estimator, "device"):
        X, tensor = to_host(tensor), None
    if tensor is None and not is_sliceable(X):
        X = unmasked(X) if np.ma.isMaskedArray(X) else X
        return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)
    rows = X if tensor is None else tensor
    real = rows.dtype.kind in "fiub" if tensor is None else not rows.is_complex()
    if not real or len(rows.shape) != 2 or 0 in rows.shape:
        raise InputError(
            f"X must hold real numbers in rows and columns, of which a minimum of 1 is required "
            f"each: got {rows.dtype} of shape {tuple(rows.shape)}."
        )
    if _is_data_array(X):
        # The names along its second dimension, as columns of a table.
        _check_feature_names(estimator, X.get_index(X.dims[1]).to_frame().T, reset=reset)
    elif tensor is None:
        _check_feature_names(estimator, X, reset=reset)
    _check_n_features(estimator, rows, reset=reset)
    if tensor is None:
        return dask_array(X) if is_chunked(X) else X
    if not rows.is_floating_point():
        return rows.double()
    return rows if rows.element_size() >= 4 else rows.float()


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


# Labels, weights and groups


def encode_labels(classifier: str, y: Any, n_rows: int) -> tuple[Array, Array]:
    """Return the classes of ``y``, sorted, and the number of each row's; bool for two classes."""
    if y is None:
        raise InputError(f"{classifier} requires y to be passed, but the target y is None.")
    labels = column_or_1d(read_names(y, "y"), warn=True)
    if labels.shape != (n_rows,):
        raise InputError(
            f"Found input variables with inconsistent numbers of samples: "
            f"X has {n_rows} rows, y has {len(labels)}."
        )
    if labels.dtype.kind == "O" and not isinstance(labels[0], str):
        # Numbers in an array of objects, as of a table with text elsewhere, are numbers.
        labels = np.array(labels.tolist())
    # A million at a time, so that memory stays bounded.
    chunk = 1_000_000
    distinct = [np.unique(labels[i : i + chunk]) for i in range(0, n_rows, chunk)]
    classes = np.unique(np.concatenate(distinct))
    return classes, encode(labels, classes)


def read_weights(sample_weight: Any, n_rows: int) -> Array | None:
    """Return the sample weights, (n,), or None if all are one."""
    if sample_weight is None:
        return None
    given = on_host(sample_weight)
    if np.ma.isMaskedArray(given):
        given = unmasked(given, "sample_weight")
    weight: Array = _check_sample_weight(
        given, np.empty((n_rows, 1)), dtype=np.float64, ensure_non_negative=True
    )
    require_weights(weight)
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
    return np.asarray(unmasked(on_host(table[name]), repr(name)))


def read_names(given: Any, name: str) -> Array:
    """Return labels or groups as an array; raise if some are masked, missing, or of two types."""
    values = known = unmasked(on_host(given), name)
    # Of a list of text and numbers, numpy makes text of both.
    if values.dtype.kind == "U" and isinstance(given, list | tuple):
        known = np.array(given, dtype=object)
    require_known(known.ravel(), name)
    if known.dtype.kind == "O" and len({isinstance(value, str) for value in known.flat}) > 1:
        raise InputError(
            f"Unknown label type: {name} holds text and numbers together. Give all of them one "
            f"type."
        )
    return values


def warn_of_groups_for_splits_alone(classifier: str) -> None:
    """Warn if scikit-learn's model selection was given groups, which it keeps from this fit.

    It does so without metadata routing, and tells no estimator: only its own frames know. Those of
    other processes (``n_jobs``) are not seen.
    """
    if sklearn.get_config()["enable_metadata_routing"]:
        return
    for caller in inspect.stack(context=0):
        known = caller.frame.f_locals
        if not caller.frame.f_globals.get("__name__", "").startswith("sklearn.model_selection"):
            continue
        if known.get("groups", (known.get("params") or {}).get("groups")) is not None:
            warnings.warn(
                f"groups split the rows, but {classifier} learns without them: its validation "
                f"rows are of groups it learns from. Call sklearn.set_config("
                f"enable_metadata_routing=True) first, which passes groups on; or "
                f"set_fit_request(groups=False), too, if they are for the split alone.",
                UserWarning,
                stacklevel=3,
            )
            return
