"""How a model becomes tensors and a JSON header, and how it is built from them again.

A :class:`Codec` does this for one type of model. It uses the functions here to write values as
JSON, to name the tensors of a model within a model, and to keep the memory order of matrices.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError

Array = npt.NDArray[Any]

Tensors = dict[str, Array]

Header = dict[str, Any]

MEMORY_ORDERS = ("C", "F", "-C", "-F")
"""``"C"`` is row by row, ``"F"`` column by column; with ``"-"`` the last row comes first."""


class InvalidModelError(ValueError):
    """Tensors and a header that make no model; the message continues after the model's name."""


# Models


@dataclass(frozen=True)
class Codec:
    """One type of model, how it is written to a file, and how it is read.

    ``describe`` returns the tensors of a fitted model and a header for them; ``build`` returns
    the model, or raises an :class:`InvalidModelError`.
    """

    model: type
    describe: Callable[[Any], tuple[Tensors, Header]]
    build: Callable[[Tensors, Header], Any]


def find_codec(
    model: Any, codecs: Mapping[str, Codec], where: str = "", besides: tuple[str, ...] = ()
) -> Codec:
    """Return the codec of a model.

    If it has none, the error lists ``codecs`` and ``besides`` as what can be written ``where``. A
    subclass has no codec: it may hold more than its parent's file has a place for.
    """
    codec = codecs.get(type(model).__name__)
    if codec is None or type(model) is not codec.model:
        raise InputError(
            f"save_model cannot write a {type(model).__module__}.{type(model).__name__}{where}; "
            f"it takes a fitted {', '.join([*codecs, *besides])}{' there' if where else ''}."
        )
    return codec


def describe_model(
    model: Any, codecs: Mapping[str, Codec], where: str = ""
) -> tuple[Tensors, Header]:
    """Return the tensors and the header of a model that has one of ``codecs``."""
    codec = find_codec(model, codecs, where)
    tensors, header = codec.describe(model)
    return tensors, {"kind": codec.model.__name__, **header}


def build_model(tensors: Tensors, header: Header, codecs: Mapping[str, Codec]) -> Any:
    """Return the model that tensors and a header describe; it must have one of ``codecs``."""
    if header["kind"] not in codecs:
        raise InvalidModelError(f"holds a {header['kind']!r}, which is not known here.")
    return codecs[header["kind"]].build(tensors, header)


# Models within models


@contextmanager
def naming_part(part: str) -> Iterator[None]:
    """Add to an :class:`InvalidModelError` which part of the model it is about."""
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"has {part}, which {error}") from error


def join_tensors(parts: Mapping[str, Tensors]) -> Tensors:
    """Return the tensors of all parts, each under the name of its part and a slash.

    >>> join_tensors({"day": {"scale": 1}, "night": {"scale": 2}})
    {'day/scale': 1, 'night/scale': 2}
    """
    return {f"{name}/{key}": t for name, own in parts.items() for key, t in own.items()}


def split_tensors(tensors: Tensors, names: Iterable[str]) -> dict[str, Tensors]:
    """Return the tensors of each part by its name: the inverse of :func:`join_tensors`."""
    parts: dict[str, Tensors] = {name: {} for name in names}
    for key, tensor in tensors.items():
        owners = [name for name in parts if key.startswith(f"{name}/")]
        if not owners:
            raise InvalidModelError(
                f"holds a tensor that belongs to no part of the model: {key!r}."
            )
        # "day/haze/scale" begins with the names of both parts "day" and "day/haze".
        owner = max(owners, key=len)
        parts[owner][key.removeprefix(f"{owner}/")] = tensor
    return parts


# Values


def encode_value(value: Any) -> Any:
    """Return a parameter or classes as JSON, from which :func:`decode_value` restores the type.

    >>> encode_value(np.float32(0.5))
    {'array': [0.5], 'dtype': '<f4', 'scalar': True}
    """
    # Before numbers and strings: float64 and str_ are subclasses of float and str.
    if isinstance(value, np.generic):
        return {"array": [value.item()], "dtype": value.dtype.str, "scalar": True}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {"pairs": [[encode_value(key), encode_value(v)] for key, v in value.items()]}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.random.RandomState):
        return None  # A generator's state affects further fits, not predictions.
    array = np.asarray(value)
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        return {"array": array.tolist(), "dtype": "object"}
    if array.dtype.kind in "biufU":
        return {"array": array.tolist(), "dtype": array.dtype.str}
    raise InputError(
        f"A model file holds numbers, booleans and strings, but not {array.dtype} like {value!r}. "
        f"Convert the labels, or the parameter, before fitting."
    )


def decode_value(value: Any) -> Any:
    """Return the value that :func:`encode_value` was given."""
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {decode_value(key): decode_value(item) for key, item in value["pairs"]}
    try:
        dtype = np.dtype(value["dtype"])
    except SyntaxError as error:
        raise ValueError(f"dtype {value['dtype']!r} in the header") from error
    if dtype.kind not in "biufUO":
        raise ValueError(f"dtype {dtype} in the header")
    array = np.array(value["array"], dtype=dtype)
    return array[0] if value.get("scalar") else array


def list_feature_names(model: Any) -> list[str] | None:
    """Return the names of the features that a model was fitted on, if they had any."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def restore_feature_names(model: Any, names: Any) -> None:
    """Set the feature names, if any, of a model whose ``n_features_in_`` is set."""
    if names is None:
        return
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidModelError("holds names of features that are not strings.")
    if len(names) != model.n_features_in_:
        raise InvalidModelError(f"names {len(names)} features, but has {model.n_features_in_}.")
    model.feature_names_in_ = np.array(names, dtype=object)


# Memory order: products with a matrix round differently when it lies otherwise in memory


def memory_order(array: Array) -> str:
    """Return which of ``MEMORY_ORDERS`` a matrix has; ``"C"`` for arrays that are no matrix.

    >>> import numpy as np
    >>> memory_order(np.ones((3, 2)).T), memory_order(np.ones((3, 2))[::-1])
    ('F', '-C')
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return "C"
    row, column = array.strides
    return ("-" if row < 0 else "") + ("F" if abs(row) < abs(column) else "C")


def with_memory_order(array: Array, order: str) -> Array:
    """Return a copy of an array that has one of ``MEMORY_ORDERS``."""
    if order not in MEMORY_ORDERS:
        raise InvalidModelError(f"holds a matrix in the order {order!r}, which is unknown.")
    if order.startswith("-"):
        return with_memory_order(array[::-1], order[1:])[::-1]
    return array.copy(order="F" if order == "F" else "C")
