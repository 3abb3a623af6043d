"""Kinds of models: each knows how it becomes tensors and a header, and how it comes back.

Parameters, classes and names as JSON, and back with the types they had.

Models that are made of models: the tensors of each part under its name and a slash.

How a matrix lies in memory: products with it round differently when it lies otherwise.

An order is ``"C"``, row after row, or ``"F"``, column after column; with ``"-"`` before it when
the last row comes first.
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


class Misfit(ValueError):  # noqa: N818
    """Tensors and a header that make no model; the message goes on from the model's name."""


@dataclass(frozen=True)
class Kind:
    """One type of model, by no other name than its own, and the way to a file and back.

    ``describe`` returns the tensors of a fitted model and the header that tells what they are;
    ``build`` undoes it, or raises a :class:`Misfit`.
    """

    model: type
    describe: Callable[[Any], tuple[Tensors, Header]]
    build: Callable[[Tensors, Header], Any]


def require_kind(
    model: Any, kinds: Mapping[str, Kind], where: str = "", besides: tuple[str, ...] = ()
) -> Kind:
    """Return the kind of a model, or say what is taken, of ``kinds`` and ``besides``, ``where``.

    A subclass may hold more than its parent has a place for: it is of no kind.
    """
    kind = kinds.get(type(model).__name__)
    if kind is None or type(model) is not kind.model:
        raise InputError(
            f"save_model cannot write a {type(model).__module__}.{type(model).__name__}{where}; "
            f"it takes a fitted {', '.join([*kinds, *besides])}{' there' if where else ''}."
        )
    return kind


def describe(model: Any, kinds: Mapping[str, Kind], where: str = "") -> tuple[Tensors, Header]:
    """Return the tensors and the header of a model of one of ``kinds``."""
    kind = require_kind(model, kinds, where)
    tensors, header = kind.describe(model)
    return tensors, {"kind": kind.model.__name__, **header}


def build(tensors: Tensors, header: Header, kinds: Mapping[str, Kind]) -> Any:
    """Return the model that tensors and a header describe, which must be of one of ``kinds``."""
    if header["kind"] not in kinds:
        raise Misfit(f"holds a {header['kind']!r}, which is unknown here.")
    return kinds[header["kind"]].build(tensors, header)


@contextmanager
def within(part: str) -> Iterator[None]:
    """Name the part of a model that a :class:`Misfit` is about."""
    try:
        yield
    except Misfit as error:
        raise Misfit(f"has {part}, which {error}") from error


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


def join(parts: Mapping[str, Tensors]) -> Tensors:
    """Return the tensors of all parts.

    >>> join({"day": {"scale": 1}, "night": {"scale": 2}})
    {'day/scale': 1, 'night/scale': 2}
    """
    return {f"{name}/{key}": t for name, own in parts.items() for key, t in own.items()}


def split(tensors: Tensors, names: Iterable[str]) -> dict[str, Tensors]:
    """Return the tensors of each part by its name, which undoes :func:`join`."""
    parts: dict[str, Tensors] = {name: {} for name in names}
    for key, tensor in tensors.items():
        owners = [name for name in parts if key.startswith(f"{name}/")]
        if not owners:
            raise Misfit(f"holds a tensor that belongs to no part of the model: {key!r}.")
        # Of "day" and "day/haze", both of which the tensors of the second begin with.
        owner = max(owners, key=len)
        parts[owner][key.removeprefix(f"{owner}/")] = tensor
    return parts


ORDERS = ("C", "F", "-C", "-F")


def order_of(array: Array) -> str:
    """Return the order of an array; that of one without rows and columns is ``"C"``.

    >>> import numpy as np
    >>> order_of(np.ones((3, 2)).T), order_of(np.ones((3, 2))[::-1])
    ('F', '-C')
    """
    if array.ndim != 2 or array.flags.c_contiguous:
        return "C"
    row, column = array.strides
    return ("-" if row < 0 else "") + ("F" if abs(row) < abs(column) else "C")


def in_order(array: Array, order: str) -> Array:
    """Return an array of the same values that lies in memory in an order."""
    if order not in ORDERS:
        raise Misfit(f"holds a matrix in the order {order!r}, which is unknown.")
    if order.startswith("-"):
        return in_order(array[::-1], order[1:])[::-1]
    return array.copy(order="F" if order == "F" else "C")
