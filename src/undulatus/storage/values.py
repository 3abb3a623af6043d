"""Parameters, classes and names as JSON, and back with the types they had."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from undulatus.errors import InputError
from undulatus.storage.kinds import Misfit


def encode(value: Any) -> Any:
    """Return a JSON form of a parameter or of classes that :func:`decode` undoes exactly.

    >>> encode(np.float32(0.5))
    {'array': [0.5], 'dtype': '<f4', 'scalar': True}
    """
    # Before numbers and strings, which float64 and str_ are too.
    if isinstance(value, np.generic):
        return {"array": [value.item()], "dtype": value.dtype.str, "scalar": True}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {"pairs": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.random.RandomState):
        return None  # A generator's state seeds further fits, not predictions.
    array = np.asarray(value)
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        return {"array": array.tolist(), "dtype": "object"}
    if array.dtype.kind in "biufU":
        return {"array": array.tolist(), "dtype": array.dtype.str}
    raise InputError(
        f"A model file holds numbers, booleans and strings, but not {array.dtype} like {value!r}. "
        f"Convert the labels, or the parameter, before fitting."
    )


def decode(value: Any) -> Any:
    """Return what :func:`encode` was given."""
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {decode(key): decode(item) for key, item in value["pairs"]}
    try:
        dtype = np.dtype(value["dtype"])
    except SyntaxError as error:
        raise ValueError(f"dtype {value['dtype']!r} in the header") from error
    if dtype.kind not in "biufUO":
        raise ValueError(f"dtype {dtype} in the header")
    array = np.array(value["array"], dtype=dtype)
    return array[0] if value.get("scalar") else array


def feature_names(model: Any) -> list[str] | None:
    """Return the names of the features that a model was fitted on, if they had any."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def restore_feature_names(model: Any, names: Any) -> None:
    """Give a model, whose ``n_features_in_`` is known, the names of its features, if any."""
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Misfit("holds names of features that are no strings.")
    if len(names) != model.n_features_in_:
        raise Misfit(f"names {len(names)} features, but has {model.n_features_in_}.")
    model.feature_names_in_ = np.array(names, dtype=object)
