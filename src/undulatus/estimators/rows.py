"""Rows as users have them: arrays, named tables, memory maps, dask, or anything to slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.utils.validation import _check_feature_names, _check_n_features, validate_data

from undulatus.errors import InputError


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
