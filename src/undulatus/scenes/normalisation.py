"""Whether reflectances are divided by the cosine of the solar zenith angle, as data say it.

Values do not tell: over a dark sea or under a high sun both are alike. In order of trust it is
told by an attribute that means just this, by satpy's ``modifiers``, and by words in names,
comments and history. If words say that they are not divided, nothing is assumed: who gave the data
must say what they hold.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

NORMALISED = "sun_normalised"
"""Our attribute of a reflectance: 1 if it is divided, 0 if not."""

_ATTRIBUTES = (NORMALISED, "sun_zenith_angle_correction_applied")
"""Attributes that mean just this; the second is that of PPS (level1c4pps)."""

SUN_MODIFIERS = ("sunz_corrected", "sunz_corrected_iso")
"""satpy's modifiers that divide by the cosine, and do nothing else up to 88 degrees."""

_TEXTS = ("name", "standard_name", "long_name", "comment", "description", "history")

_SUN = re.compile(
    r"sunz|(?:sun|solar) (?:zenith|normali[sz])|\bcos(?:ine)?\b|(?:by|for) the sun\b", re.I
)
_DONE = re.compile(r"sunz|normali[sz]|correct|divi[ds]", re.I)
_NOT_BEFORE = re.compile(
    r"\b(?:not|non|no|without|before|times|multiplied by|un(?:normali[sz]ed|corrected|divided))\b"
    r"[^.;,]*$",
    re.I,
)
_NOT_AFTER = re.compile(r"^[^.;,]*\b(?:not|none|no|false|off)\b", re.I)

_NEAR = 40
"""Characters around a mention of the sun in which it is said what was done."""

_SATPY = re.compile(r"\bsatpy\b", re.I)
"""In the ``history`` of what satpy's CF writer wrote, and in what people write of its files."""


@dataclass(frozen=True)
class Statement:
    """What is said of a reflectance.

    Attributes
    ----------
    normalised : bool
        Whether it is divided by the cosine of the solar zenith angle.
    source : str
        What says so, for messages.
    by_attribute, by_words : bool
        Whether an attribute that means just this says so, or only words.
    """

    normalised: bool
    source: str
    by_attribute: bool = False
    by_words: bool = False


def find_statement(
    attrs: Mapping[Hashable, Any], of_file: Mapping[Hashable, Any] | None = None
) -> Statement | None:
    """Return what the attributes of a band, and those of its file, say; None if nothing."""
    for key in _ATTRIBUTES:
        if key in attrs:
            normalised = str(attrs[key]).lower() in ("1", "1.0", "true", "yes")
            return Statement(normalised, f"{key} is {attrs[key]}", by_attribute=True)
    if "modifiers" in attrs:
        modifiers = modifiers_of(attrs)
        return Statement(bool(modifiers), f"modifiers are {', '.join(modifiers) or 'empty'}")
    texts = [(key, attrs[key]) for key in _TEXTS if key in attrs]
    texts += [(key, of_file[key]) for key in _TEXTS if of_file and key in of_file]
    for key, text in texts:
        normalised_by_text = _read(str(text))
        if normalised_by_text is not None:
            return Statement(normalised_by_text, f"{key} is {_short(text)!r}", by_words=True)
    named = [key for key, text in texts if _SATPY.search(str(text))]
    if named:
        return Statement(
            False,
            f"{named[0]} names satpy, whose reflectances are not divided unless by a modifier",
            by_words=True,
        )
    return None


def is_from_satpy(
    bands: Iterable[Mapping[Hashable, Any]], of_file: Mapping[Hashable, Any]
) -> bool:
    """Return whether satpy wrote bands, none of which has our attribute."""
    listed = list(bands)
    by_history = bool(listed) and "pytroll/satpy" in str(of_file.get("history", ""))
    wrote = by_history or any("modifiers" in attrs for attrs in listed)
    return wrote and not any(NORMALISED in attrs for attrs in listed)


def modifiers_of(attrs: Mapping[Hashable, Any]) -> tuple[str, ...]:
    """Return satpy's modifiers of a band, which its files hold as text or an empty array."""
    found = attrs.get("modifiers", ())
    return tuple(found.split()) if isinstance(found, str) else tuple(map(str, np.ravel(found)))


def find_problems(stated: Mapping[str, Statement | None], asked: bool | None) -> list[str]:
    """Return why it cannot be told whether bands are divided: a line for each reason.

    ``asked`` is what the user said. It counts for more than words, and may not contradict an
    attribute.
    """
    reasons: dict[str, list[str]] = {}
    for band, statement in stated.items():
        if statement is not None and (reason := _problem(statement, asked)):
            reasons.setdefault(reason, []).append(band)
    return [f"{', '.join(bands)} {reason}" for reason, bands in reasons.items()]


def _problem(stated: Statement, asked: bool | None) -> str:
    if asked is not None and stated.by_attribute and stated.normalised != asked:
        return (
            f"says otherwise than {_flag(asked)}: {stated.source}. Leave {_flag(asked)} out, or "
            f"correct the attribute."
        )
    if asked is not None or stated.normalised or not stated.by_words:
        return ""
    return (
        f"may not be divided by the cosine of the solar zenith angle: {stated.source}. Say which "
        f"it is: {_flag(False)}, to divide when it is read, or {_flag(True)} (in Python "
        f"{NORMALISED}=False or True; or an attribute {NORMALISED} of the band, 0 or 1)."
    )


def warn_in_python(line: str) -> None:
    """Say what is assumed to somebody who gave nothing to say it to."""
    warnings.warn(line, stacklevel=2)


def assumption(name: str, bands: Iterable[str], normalised: bool) -> str:
    """Return a line about bands that say nothing."""
    taken, other = (
        ("divided", f"if they are not: {_flag(False)}, in Python {NORMALISED}=False")
        if normalised
        else ("not divided", f"if they are: {_flag(True)}, in Python {NORMALISED}=True")
    )
    return (
        f"{', '.join(bands)} of {name}: taken as {taken} by the cosine of the solar zenith angle, "
        f"which their attributes do not say ({other})."
    )


def _flag(normalised: bool) -> str:
    return "--sun-normalised" if normalised else "--not-sun-normalised"


def _read(text: str) -> bool | None:
    """Return what a text says, None if nothing.

    >>> _read("TOA reflectance, not_sun-normalised"), _read("reflectance times cosine")
    (False, False)
    >>> _read("modifiers: sunz_corrected"), _read("divided by cos(sun zenith)")
    (True, True)
    >>> _read("toa_bidirectional_reflectance") is _read("not corrected for aerosol") is None
    True
    """
    plain = re.sub(r"[\s_\-]+", " ", text)
    for found in _SUN.finditer(plain):
        before = plain[max(0, found.start() - _NEAR) : found.start()]
        after = plain[found.end() : found.end() + _NEAR]
        if _NOT_BEFORE.search(before) or _NOT_AFTER.search(after):
            return False
        if _DONE.search(before + found.group() + after):
            return True
    return None


def _short(text: Any) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= 80 else f"{line[:77]}..."
