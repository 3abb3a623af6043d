"""Rows as users have them: arrays, named tables, memory maps, or anything to slice."""

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
        _check_feature_names(estimator, X, reset=reset)
        _check_n_features(estimator, X, reset=reset)
        return X
    return validate_data(estimator, X, reset=reset, dtype="numeric", ensure_all_finite=False)


def column_namer(estimator: Any) -> Callable[[int], str]:
    """Return the function from a column's number to what a user would call it."""
    names = getattr(estimator, "feature_names_in_", None)
    return (lambda i: str(i)) if names is None else (lambda i: repr(str(names[i])))
