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
import unicodedata
from collections.abc import Callable, Hashable
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


# Tables of text

_FORMULA = ("=", "+", "-", "@")
"""What a text begins with that a spreadsheet would take for a formula."""


def cell_text(value: Any) -> Any:
    r"""Return a value for a cell of a CSV file that no program can take for a command.

    A text that begins like a formula gets an apostrophe in front, and control characters, which
    could command a terminal, are escaped. Numbers stay, as text too. :func:`plain_text` is the
    inverse but for control characters.

    >>> cell_text("=1+1"), cell_text("-1.5"), cell_text("\x1b[2J"), cell_text(-1.5)
    ("'=1+1", '-1.5', '\\x1b[2J', -1.5)
    """
    if not isinstance(value, str):
        return value
    text = "".join(
        c.encode("unicode_escape").decode() if unicodedata.category(c) in ("Cc", "Cs") else c
        for c in value
    )
    # One that has apostrophes already gets one more, so that reading it takes the right one away.
    return f"'{text}" if _is_formula(text.lstrip("'")) else text


def plain_text(value: Any) -> Any:
    """Return the value that :func:`cell_text` was given, from a cell of a CSV file."""
    if isinstance(value, str) and value[:1] == "'" and _is_formula(value.lstrip("'")):
        return value[1:]
    return value


def _is_formula(text: str) -> bool:
    return text.startswith(_FORMULA) and not re.fullmatch(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?", text)


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
    for _ in range(DEEPEST + 1):
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

Fault = tuple[str, str]
"""Where in a value something is wrong, such as ``.weight[1]``, and what."""

Finder = Callable[[Any], Fault | None]


def require(value: Any, hint: Any, name: str) -> None:
    """Raise a :class:`FormError` that names the first part of a value that its hint forbids."""
    fault = _finder(hint)(value)
    if fault is not None:
        raise FormError(f"{name}{fault[0]} {fault[1]}")


@lru_cache(maxsize=1000)
def _finder(hint: Any) -> Finder:
    """Return the function that finds what is wrong with a value, made once for each hint."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: None
    if origin is Annotated:
        return _finder_of_conditions(hint)
    if origin in (Union, UnionType):
        return _finder_of_union(hint)
    if origin is Literal:
        known = {(type(each), each) for each in arguments}
        return lambda value: (
            None
            if isinstance(value, Hashable) and (type(value), value) in known
            else _fault(value, hint)
        )
    if is_typeddict(hint):
        return _finder_of_fields(hint)
    if origin in (list, tuple):
        return _finder_of_list(hint)
    if origin is dict:
        each = _finder(arguments[1])
        return lambda value: (
            _first_fault([(f".{key}", item, each) for key, item in value.items()])
            if isinstance(value, dict)
            else _fault(value, hint)
        )
    # bool is a kind of int, and whole numbers are real ones.
    kinds = {None: (NoneType,), float: (int, float)}.get(hint, (hint,))
    return lambda value: None if type(value) in kinds else _fault(value, hint)


def _finder_of_conditions(hint: Any) -> Finder:
    kind, *conditions = get_args(hint)
    find = _finder(kind)

    def finder(value: Any) -> Fault | None:
        fault = find(value)
        if fault is None and not all(each.holds(value) for each in conditions):
            fault = _fault(value, hint)
        return fault

    return finder


def _finder_of_union(hint: Any) -> Finder:
    finders = [_finder(each) for each in get_args(hint)]

    def finder(value: Any) -> Fault | None:
        faults = []
        for find in finders:
            fault = find(value)
            if fault is None:
                return None
            faults.append(fault)
        # What is wrong inside of a list or an object says more than that it is one.
        inside = [fault for fault in faults if fault[0] or not fault[1].startswith("is ")]
        return inside[0] if inside else _fault(value, hint)

    return finder


def _finder_of_list(hint: Any) -> Finder:
    kinds = get_args(hint)
    alike = get_origin(hint) is list or kinds[-1] is Ellipsis
    finders = [_finder(each) for each in (kinds[:1] if alike else kinds)]

    def finder(value: Any) -> Fault | None:
        if not isinstance(value, list) or not (alike or len(value) == len(finders)):
            return _fault(value, hint)
        own = finders * len(value) if alike else finders
        for place, (item, find) in enumerate(zip(value, own, strict=True)):
            fault = find(item)
            if fault is not None:
                return f"[{place}]{fault[0]}", fault[1]
        return None

    return finder


def _finder_of_fields(hint: Any) -> Finder:
    hints = get_type_hints(hint, include_extras=True)
    # Hints that are texts hide NotRequired from the class itself.
    spared = {name for name, own in hints.items() if get_origin(own) is NotRequired}
    required = hint.__required_keys__ - spared
    fields = {
        name: _finder(get_args(own)[0] if name in spared else own) for name, own in hints.items()
    }

    def finder(value: Any) -> Fault | None:
        if not isinstance(value, dict):
            return _fault(value, hint)
        missing = sorted(required - value.keys())
        if missing:
            return "", f"lacks {', '.join(missing)}"
        odd = [key for key in value if key not in fields]
        if odd:
            return "", f"has {reprlib.repr(odd[0])}, which is not known"
        return _first_fault([(f".{key}", item, fields[key]) for key, item in value.items()])

    return finder


def _first_fault(items: list[tuple[str, Any, Finder]]) -> Fault | None:
    for place, value, find in items:
        fault = find(value)
        if fault is not None:
            return place + fault[0], fault[1]
    return None


def _fault(value: Any, hint: Any) -> Fault:
    return "", f"is {reprlib.repr(value)}, but {in_words(hint)} is expected"


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
