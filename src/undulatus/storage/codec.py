"""How a model becomes tensors and a JSON header, and how it is built from them again.

A :class:`Codec` does this for one type of model. It uses the functions here to write values as
JSON, to name the tensors of a model within a model, and to keep the memory order of matrices.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from undulatus._files import StoredArray
from undulatus._plain import FormError, require
from undulatus.errors import InputError

Array = npt.NDArray[Any]

Tensors = dict[str, Array]

Stored = dict[str, StoredArray]
"""Tensors of a file that are not yet read."""

Tensor = TypeVar("Tensor", Array, StoredArray)

Header = dict[str, Any]

MEMORY_ORDERS = ("C", "F", "-C", "-F")
"""``"C"`` is row by row, ``"F"`` column by column; with ``"-"`` the last row comes first."""


LONGEST_LABEL = 10_000
"""Characters of a class that is a text, and of its type."""

MOST_THREADS = 1024
"""Threads that a file may ask for by ``n_jobs``."""

MOST_BYTES = 2**26
"""Bytes of an array in a header."""

_ITEMS: dict[str, type] = {"b": bool, "i": int, "u": int, "f": float, "U": str, "O": str}
"""What JSON has for the items of an array, by the kind of its dtype."""


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
    build: Callable[[Stored, Header], Any]


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


def build_model(tensors: Stored, header: Any, codecs: Mapping[str, Codec]) -> Any:
    """Return the model that tensors and a header describe; it must have one of ``codecs``."""
    kind = header.get("kind") if isinstance(header, dict) else None
    if not isinstance(kind, str) or kind not in codecs:
        raise InvalidModelError(f"holds a {reprlib.repr(kind)}, which is not known here.")
    return codecs[kind].build(tensors, header)


def require_fields(value: Any, hint: Any, name: str = "header") -> None:
    """Raise an :class:`InvalidModelError` unless a part of a header is what a hint says."""
    try:
        require(value, hint, name)
    except FormError as error:
        raise InvalidModelError(f"has a broken header: {error}.") from error


def restore_params(kind: type, described: Header, earlier: Header | None = None) -> Any:
    """Return an unfitted model with the parameters of a header, which it must take.

    ``earlier`` has those that files did not name before they existed.
    """
    params = {name: decode_value(value) for name, value in described.items()}
    if "device" in params:
        raise InvalidModelError("names a device to compute on, which no model file does.")
    try:
        model: Any = kind(**((earlier or {}) | params))
        model._validate_params()
    except (TypeError, ValueError) as error:
        raise InvalidModelError(f"has a wrong parameter: {error}") from error
    if abs(getattr(model, "n_jobs", None) or 1) > MOST_THREADS:
        raise InvalidModelError(f"asks for {model.n_jobs} threads.")
    return model


# Models within models


@contextmanager
def naming_part(part: str) -> Iterator[None]:
    """Add to an :class:`InvalidModelError` which part of the model it is about."""
    try:
        yield
    except InvalidModelError as error:
        raise InvalidModelError(f"has {part}, which {error}") from error


def join_tensors(parts: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the tensors of all parts, each under the name of its part and a slash.

    >>> join_tensors({"day": {"scale": 1}, "night": {"scale": 2}})
    {'day/scale': 1, 'night/scale': 2}
    """
    return {f"{name}/{key}": t for name, own in parts.items() for key, t in own.items()}


def split_tensors(
    tensors: dict[str, Tensor], names: Iterable[str]
) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each part by its name: the inverse of :func:`join_tensors`."""
    parts: dict[str, dict[str, Tensor]] = {name: {} for name in names}
    for key, tensor in tensors.items():
        owner = _find_owner(key, parts)
        parts[owner][key.removeprefix(f"{owner}/")] = tensor
    return parts


def _find_owner(key: str, names: Mapping[str, Any]) -> str:
    # "day/haze/scale" begins with the names of both parts "day" and "day/haze".
    owner, slash, _ = key.rpartition("/")
    while slash and owner not in names:
        owner, slash, _ = owner.rpartition("/")
    if not slash:
        raise InvalidModelError(
            f"holds a tensor that belongs to no part of the model: {reprlib.repr(key)}."
        )
    return owner


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
    if isinstance(value, list):
        raise InvalidModelError(f"holds the list {reprlib.repr(value)} as a value.")
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return _decode_pairs(value)
    if not {"array", "dtype"} <= set(value) <= {"array", "dtype", "scalar"}:
        raise InvalidModelError(f"holds {reprlib.repr(value)}, which is no value.")
    array = _decode_array(value["array"], value["dtype"])
    if "scalar" not in value:
        return array
    if value["scalar"] is not True or array.shape != (1,):
        raise InvalidModelError(f"holds {reprlib.repr(value)}, which is no number.")
    return array[0]


def _decode_pairs(value: dict[str, Any]) -> dict[Any, Any]:
    require_fields(value, dict[str, list[tuple[Any, Any]]], "value")
    pairs = [(decode_value(key), decode_value(item)) for key, item in value["pairs"]]
    for key, _ in pairs:
        if isinstance(key, dict | np.ndarray):
            raise InvalidModelError(f"holds the key {reprlib.repr(key)}.")
    found = dict(pairs)
    if set(value) != {"pairs"} or len(found) < len(pairs):
        raise InvalidModelError(f"holds {reprlib.repr(value)}, which is no mapping.")
    return found


def _decode_array(items: Any, name: Any) -> Array:
    """Return an array, whose items are of one type, from the list and its dtype."""
    known = isinstance(name, str) and re.fullmatch(
        r"object|[<>|]b1|[<>|][iu][1248]|[<>][f][248]|[<>]U\d{1,5}", name
    )
    if not known or not isinstance(items, list):
        raise InvalidModelError(f"holds an array of the dtype {reprlib.repr(name)}.")
    dtype, flat = np.dtype(name), items
    while flat and isinstance(flat[0], list):
        if not all(isinstance(item, list) for item in flat):
            raise InvalidModelError("holds an array whose rows differ.")
        flat = [item for row in flat for item in row]
    if not all(type(item) is _ITEMS[dtype.kind] for item in flat):
        raise InvalidModelError(f"holds an array of {name} with items of another type.")
    longest = max(map(len, flat), default=0) if dtype.kind in "UO" else 0
    if longest > LONGEST_LABEL or dtype.itemsize * len(flat) > MOST_BYTES:
        raise InvalidModelError(f"holds an array of {name} that is too large.")
    try:
        with np.errstate(over="raise"):
            array = np.array(items, dtype=dtype)
    except (ValueError, OverflowError, FloatingPointError) as error:
        raise InvalidModelError(f"holds an array of {name} that is none ({error}).") from error
    if array.tolist() != items:
        raise InvalidModelError(f"holds an array that does not fit its dtype {name}.")
    return array


def list_feature_names(model: Any) -> list[str] | None:
    """Return the names of the features that a model was fitted on, if they had any."""
    names = getattr(model, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def restore_feature_names(model: Any, names: Any) -> None:
    """Set the feature names, if any, of a model whose ``n_features_in_`` is set."""
    if names is None:
        return
    require_fields(names, list[str], "feature_names")
    if len(names) != model.n_features_in_:
        raise InvalidModelError(f"names {len(names)} features, but has {model.n_features_in_}.")
    if len({*names}) < len(names):
        # scikit-learn takes no table with such columns.
        raise InvalidModelError("names a feature twice.")
    model.feature_names_in_ = np.array(names, dtype=object)


# Memory order: products with a matrix round differently when it lies otherwise in memory


def memory_order(array: Array) -> str:
    """Return which of ``MEMORY_ORDERS`` a matrix has; ``"C"`` for arrays that are no matrix.

    >>> import numpy as np
    >>> memory_order(np.ones((3, 2)).T), memory_order(np.ones((3, 2))[::-1])
    ('F', '-C')
    """
    # A single row or column lies the same way in either order.
    if array.ndim != 2 or array.flags.c_contiguous or 1 in array.shape:
        return "C"
    row, column = array.strides
    return ("-" if row < 0 else "") + ("F" if abs(row) < abs(column) else "C")


def pack_triangle(matrix: Array) -> Array:
    """Return the lower half of a square matrix, row by row: what is above it is zero."""
    return np.concatenate([row[: i + 1] for i, row in enumerate(matrix)])


def unpack_triangle(values: Array, order: str) -> Array:
    """Return the matrix that :func:`pack_triangle` was given, in a memory order.

    Files up to schema 3 have the matrix itself.
    """
    if values.ndim == 2:
        return with_memory_order(values, order)
    k = int(np.sqrt(2.0 * len(values)))
    matrix = np.zeros((k, k), order="F" if order == "F" else "C")
    end = 0
    for i in range(k):
        matrix[i, : i + 1] = values[end : end + i + 1]
        end += i + 1
    return matrix


def with_memory_order(array: Array, order: str) -> Array:
    """Return a copy of an array that has one of ``MEMORY_ORDERS``."""
    if order not in MEMORY_ORDERS:
        raise InvalidModelError(
            f"holds a matrix in the order {reprlib.repr(order)}, which is unknown."
        )
    if order.startswith("-"):
        return with_memory_order(array[::-1], order[1:])[::-1]
    return array.copy(order="F" if order == "F" else "C")
