"""Kinds of models: each knows how it becomes tensors and a header, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
