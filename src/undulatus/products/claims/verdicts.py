"""What a claim is, and what can be said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested at this scale"
WORDS = (HOLDS, FAILS, UNTESTED)


@dataclass(frozen=True)
class Verdict:
    """What trials say of a claim.

    ``word`` is one of :data:`WORDS`; ``numbers`` are what it rests on, ``sizes`` what these are
    from; ``why`` says in how many parts a claim holds, or why nothing can be said.
    """

    word: str
    numbers: tuple[str, ...] = ()
    sizes: str = ""
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, and how trials are held against it.

    ``judge`` takes the table of trials done with one solver, those of GPC among them.
    ``built_in`` is why the twin cannot but agree, where it was made so; empty elsewhere.
    """

    id: str
    experiment: str
    statement: str
    judge: Callable[[pd.DataFrame], Verdict]
    built_in: str = ""


@dataclass(frozen=True)
class Part:
    """One regime, method or comparison that a claim is about."""

    good: bool
    text: str


def all_of(parts: Sequence[Part], sizes: str) -> Verdict:
    """Return that a claim holds if all its parts do, with their numbers and sizes."""
    lines = tuple(part.text if part.good else f"{part.text} (fails)" for part in parts)
    good = sum(part.good for part in parts)
    why = f"Holds in {good} of {len(parts)}." if 0 < good < len(parts) else ""
    return Verdict(HOLDS if good == len(parts) else FAILS, lines, sizes, why)


def untested(why: str, parts: Sequence[Part] = (), sizes: str = "") -> Verdict:
    """Return that nothing can be said, and why, with what numbers there are."""
    return Verdict(UNTESTED, tuple(part.text for part in parts), sizes, why)
