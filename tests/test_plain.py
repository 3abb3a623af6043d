"""Plain values: JSON that is read strictly, and hints that values are compared with."""

import json
import re
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from undulatus._plain import (
    DEEPEST,
    Condition,
    FormError,
    cell_text,
    in_words,
    plain_text,
    read_json,
    require,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",))),
    lambda own: st.lists(own, max_size=3) | st.dictionaries(st.text("abc"), own, max_size=3),
    max_leaves=8,
)


@given(plain)
def test_any_plain_value_is_read_as_it_was_written(value):
    assert read_json(json.dumps(value)) == value


REFUSED = {
    "NaN": ("[NaN]", "NaN"),
    "infinity": ('{"a": -Infinity}', "-Infinity"),
    "a float that overflows": ("1e999", "1e999 is too large"),
    "a huge whole number": ("9" * 400, "too large"),
    "a key twice": ('{"a": 1, "b": {"c": 1, "c": 1}}', "twice"),
    "half a character": (r'["\ud800"]', "half of a character"),
    "deep lists": ("[" * (DEEPEST + 1) + "]" * (DEEPEST + 1), "nested too deeply"),
    "very deep lists": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "deep objects": ('{"a":' * 100 + "1" + "}" * 100, "nested too deeply"),
    "half a list": ("[1,", "Expecting value"),
    "two values": ("1 2", "Extra data"),
    "nothing": ("", "Expecting value"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_plain_json_is_refused(text, reason):
    with pytest.raises(FormError, match=reason):
        read_json(text)


@pytest.mark.parametrize("text", [r'"\ud83d\ude00"', "[" * DEEPEST + "]" * DEEPEST])
def test_whole_characters_and_shallow_lists_are_read(text):
    read_json(text)


Share = Annotated[float, Condition("a share", lambda value: 0.0 <= value <= 1.0)]


class Member(TypedDict):
    name: str
    weight: NotRequired[Share]


FITTING = [
    (3, int),
    (3, float),
    (0.5, float),
    (True, bool),
    (None, None),
    ("a", str | None),
    (None, str | None),
    ([], list[int]),
    ([1, 2], list[int]),
    (["a", 1], tuple[str, int]),
    ([1.0, 2.0], tuple[float, ...]),
    ({"a": 1}, dict[str, int]),
    ("single", Literal["single", "double"]),
    (0.5, Share),
    ({"name": "a"}, Member),
    ({"name": "a", "weight": 1}, Member),
    (object(), Any),
]


@pytest.mark.parametrize(("value", "hint"), FITTING)
def test_a_value_that_fits_its_hint_passes(value, hint):
    require(value, hint, "it")


WRONG = [
    (True, int, "it is True, but a whole number is expected"),
    (True, float, "it is True, but a number is expected"),
    (1, bool, "it is 1, but true or false is expected"),
    (0.5, int, "it is 0.5, but a whole number"),
    ("1", float, "it is '1', but a number"),
    (0, None, "it is 0, but null"),
    (1, str | None, "it is 1, but a text or null"),
    ((), list[int], r"it is \(\), but a list"),
    ([1, "a"], list[int], r"it\[1\] is 'a', but a whole number"),
    (["a"], tuple[str, int], "but a list of 2: a text, a whole number"),
    ({"a": {"b": []}}, dict[str, dict[str, int]], r"it.a.b is \[\], but"),
    ([], dict[str, int], "but an object is expected"),
    ("both", Literal["single", "double"], 'but "single" or "double" is expected'),
    (True, Literal[1, 2], "it is True"),
    ([], Literal["a"], r"it is \[\]"),
    (2, Share, "it is 2, but a share"),
    ("a", Share, "it is 'a', but a number"),
    ({}, Member, "it lacks name"),
    ({"name": "a", "odd": 1}, Member, "it has 'odd', which is not known"),
    ([{"name": "a", "weight": 2}], list[Member], r"it\[0\].weight is 2, but a share"),
    ([1, "a"], None | list[int], r"it\[1\] is 'a'"),
]


@pytest.mark.parametrize(("value", "hint", "words"), WRONG)
def test_a_value_that_does_not_fit_is_named_with_what_is_expected(value, hint, words):
    with pytest.raises(FormError, match=words):
        require(value, hint, "it")


def test_a_long_value_is_shown_in_short():
    with pytest.raises(FormError) as caught:
        require(["a" * 10**6] * 1000, dict[str, int], "it")
    assert len(str(caught.value)) < 500


def test_every_kind_of_hint_is_said_in_words():
    for _, hint in FITTING:
        assert in_words(hint)


# Cells of tables


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("forêt", "forêt"),
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("+1+1", "'+1+1"),
        ("-x", "'-x"),
        ("-1.5e3", "-1.5e3"),
        ("'quoted'", "'quoted'"),
        ("\t=1", "\\t=1"),
        ("a\x1b[31mb\x00\x9b", "a\\x1b[31mb\\x00\\x9b"),
        (-2, -2),
        (None, None),
    ],
)
def test_a_cell_is_no_formula_and_no_command_to_a_terminal(given, written):
    assert cell_text(given) == written


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=6))
def test_a_cell_without_control_characters_is_read_back_as_it_was(text):
    assert plain_text(cell_text(text)) == text


@given(st.text(alphabet="'=+-@1.a\x1b\t", max_size=6))
def test_no_cell_begins_like_a_formula_but_a_number(text):
    written = cell_text(text)
    number = re.fullmatch("[+-][0-9.]+", written)
    assert number or written[:1] not in ("=", "+", "-", "@", "\t", "\r")
    assert not any(ord(c) < 32 for c in written)
