"""Plain values, as JSON has them: read strictly, and checked against type hints.

A file from elsewhere may hold anything. Before its values are used they are compared with a hint
that says what each may be: ``int``, ``list[str]``, ``Literal["single", "double"]``, a TypedDict
for an object with known fields, or ``Annotated[float, Condition(...)]`` for a range.

>>> Share = Annotated[float, Condition("a share", lambda value: 0.0 <= value <= 1.0)]
>>> require(0.5, Share, "weight")
>>> require({"weight": [0.5, 2.0]}, dict[str, list[Share]], "header")
Traceback (most recent call last):
    ...
undulatus._plain.FormError: header.weight[1] is 2.0, but a share is expected
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

MOST_DIGITS = 20
"""Digits of a whole number, with its sign: all that 64 bits can hold."""

DEEPEST = 50
"""Lists and objects within each other."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class FormError(ValueError):
    """A value is not what its hint says, or a text is not plain JSON."""


@dataclass(frozen=True)
class Condition:
    """What more is true of a value than its type: in words, and as a function."""

    text: str
    holds: Callable[[Any], bool]


# Reading


def read_json(text: str) -> Any:
    """Return the value of a JSON text, or raise a :class:`FormError`.

    Beyond what JSON forbids, these are refused: NaN and infinity, numbers that no double or 64-bit
    integer can hold, a key given twice, deep nesting, and halves of characters.
    """
    try:
        value = json.loads(
            text,
            object_pairs_hook=_read_object,
            parse_float=_read_float,
            parse_int=_read_int,
            parse_constant=_refuse_constant,
        )
    except json.JSONDecodeError as error:
        raise FormError(str(error)) from error
    except RecursionError as error:
        raise FormError("lists or objects are nested too deeply") from error
    _require_shallow(value)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise FormError("a text holds half of a character") from error
    return value


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise FormError("a key is given twice")
    return found


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise FormError(f"the number {text[:30]} is too large")
    return value


def _read_int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise FormError(f"the number {text[:30]}... is too large")
    return int(text)


def _refuse_constant(text: str) -> NoReturn:
    raise FormError(f"{text} is not a number that JSON knows")


def _require_shallow(value: Any) -> None:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        if not level:
            return
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent)
            if isinstance(child, dict | list)
        ]
    raise FormError("lists or objects are nested too deeply")


# Checking


def require(value: Any, hint: Any, name: str) -> None:
    """Raise a :class:`FormError` that names the first part of a value that its hint forbids."""
    fault = _find_fault(value, hint, name)
    if fault is not None:
        raise FormError(fault)


def conforms(value: Any, hint: Any) -> bool:
    """Whether a value is what a hint says."""
    return _find_fault(value, hint, "") is None


def _find_fault(value: Any, hint: Any, name: str) -> str | None:
    """Return in words what is wrong with a value; None if nothing is."""
    if hint is Any:
        return None
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        fault = _find_fault(value, arguments[0], name)
        if fault is None and not all(each.holds(value) for each in arguments[1:]):
            fault = _fault(value, hint, name)
        return fault
    if origin in (Union, UnionType):
        return _find_fault_in_union(value, hint, name)
    if origin is Literal:
        known = any(type(value) is type(each) and value == each for each in arguments)
        return None if known else _fault(value, hint, name)
    if is_typeddict(hint):
        return _find_fault_in_fields(value, hint, name)
    if origin in (list, tuple):
        return _find_fault_in_list(value, hint, name)
    if origin is dict:
        if not isinstance(value, dict):
            return _fault(value, hint, name)
        items = [(key, each, arguments[1]) for key, each in value.items()]
        return _first_fault(items, f"{name}.")
    return None if _is_plain(value, hint) else _fault(value, hint, name)


def _is_plain(value: Any, kind: Any) -> bool:
    if kind in (None, NoneType):
        return value is None
    # bool is a kind of int, and whole numbers are real ones.
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


def _find_fault_in_union(value: Any, hint: Any, name: str) -> str | None:
    faults = [_find_fault(value, each, name) for each in get_args(hint)]
    if None in faults:
        return None
    # What is wrong inside of a list or an object says more than that it is one.
    return next(
        (text for text in faults if text and not text.startswith(f"{name} is ")),
        _fault(value, hint, name),
    )


def _find_fault_in_list(value: Any, hint: Any, name: str) -> str | None:
    kinds = get_args(hint)
    if not isinstance(value, list):
        return _fault(value, hint, name)
    if get_origin(hint) is list or kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(value)
    if len(kinds) != len(value):
        return _fault(value, hint, name)
    items = [(f"[{place}]", *pair) for place, pair in enumerate(zip(value, kinds, strict=True))]
    return _first_fault(items, name)


def _find_fault_in_fields(value: Any, hint: Any, name: str) -> str | None:
    if not isinstance(value, dict):
        return _fault(value, hint, name)
    fields, required = _fields_of(hint)
    missing = sorted(required - value.keys())
    if missing:
        return f"{name} lacks {', '.join(missing)}"
    odd = [key for key in value if key not in fields]
    if odd:
        return f"{name} has {reprlib.repr(odd[0])}, which is not known"
    return _first_fault([(key, each, fields[key]) for key, each in value.items()], f"{name}.")


def _first_fault(items: list[tuple[str, Any, Any]], prefix: str) -> str | None:
    for key, value, hint in items:
        fault = _find_fault(value, hint, f"{prefix}{key}")
        if fault is not None:
            return fault
    return None


@lru_cache(maxsize=100)
def _fields_of(hint: Any) -> tuple[dict[str, Any], frozenset[str]]:
    """Return the hints of a TypedDict's fields, and which of them must be there."""
    hints = get_type_hints(hint, include_extras=True)
    # Hints that are texts hide NotRequired from the class itself.
    spared = {name for name, own in hints.items() if get_origin(own) is NotRequired}
    fields = {name: get_args(own)[0] if name in spared else own for name, own in hints.items()}
    return fields, frozenset(hint.__required_keys__ - spared)


def _fault(value: Any, hint: Any, name: str) -> str:
    return f"{name} is {reprlib.repr(value)}, but {in_words(hint)} is expected"


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    None: "null",
    NoneType: "null",
}


def in_words(hint: Any) -> str:
    """Return what a hint says."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " and ".join(each.text for each in arguments[1:])
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, arguments))
    if origin is Literal:
        return " or ".join(json.dumps(each) for each in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a list of {len(arguments)}: {', '.join(map(in_words, arguments))}"
    if origin in (list, tuple):
        return f"a list (each {in_words(arguments[0])})"
    if origin is dict or is_typeddict(hint):
        return "an object"
    return _WORDS.get(hint, "any value")
