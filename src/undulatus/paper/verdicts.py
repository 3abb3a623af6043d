"""What a claim is, and what can be said of it.

Differences and ratios of trials, each with its standard error; times at sizes not tried.

**What is clear.** Trials of two methods with one regime, size, number of frequencies and run saw
the same rows, so they are compared in pairs: within a run differences are averaged over all
settings that both were tried at, and over runs their mean and its standard error are taken; where
some settings had fewer runs, the error is that of the settings that had all. A difference is clear
if it has the sign that was claimed and is more than two standard errors from zero. Where there was
one run there is no standard error, and the sign alone is judged.

Numbers in words, for tables and sentences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
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


CLEAR = 2.0
"""Standard errors from zero."""

FARTHEST = 100.0
"""Growth with size is followed at most to this many times the largest size tried."""

SAME_SIZE = 0.02
"""A trial at a size this near to the one asked for, relatively, counts as one at that size."""

PAIR = ["regime", "n", "D", "run"]


@dataclass(frozen=True)
class Estimate:
    """A mean over runs; ``error`` is its standard error, NaN if there was one run."""

    mean: float
    error: float
    runs: int

    def above(self, bound: float = 0.0) -> bool:
        """Return whether the mean is above a bound by more than two standard errors."""
        return bool(self.mean - bound > CLEAR * np.nan_to_num(self.error))

    def times(self, factor: float) -> Estimate:
        """Return the estimate in another unit."""
        return Estimate(self.mean * factor, self.error * abs(factor), self.runs)


def estimate(values: pd.Series) -> Estimate | None:
    """Return the mean of values that have ``run`` and perhaps settings in their index.

    Settings count alike, however many runs they had. None if there are no values.
    """
    known = values.dropna()
    if known.empty:
        return None
    if known.index.nlevels == 1:
        return Estimate(float(known.mean()), float(known.sem()), len(known))
    table = known.unstack("run")
    by_run = table.dropna().mean()
    # No setting had all runs: how much runs differ cannot be told from how much settings do.
    error = float(by_run.sem()) if by_run.notna().all() else np.nan
    return Estimate(float(table.mean(axis="columns").mean()), error, table.shape[1])


def values_of(trials: pd.DataFrame, method: str, measure: str) -> pd.Series:
    """Return a measure of a method's trials, by regime, n, D and run."""
    chosen = trials[(trials["method"] == method) & trials[measure].notna()]
    return chosen.set_index(PAIR)[measure].sort_index()


def differences(trials: pd.DataFrame, method: str, other: str, measure: str) -> pd.Series:
    """Return what one method has more than another, in each setting and run both were tried at."""
    return (values_of(trials, method, measure) - values_of(trials, other, measure)).dropna()


def ratios(trials: pd.DataFrame, method: str, other: str, measure: str) -> pd.Series:
    """Return logarithms of ratios, in each setting and run both were tried at."""
    logs = (np.log(positive(values_of(trials, name, measure))) for name in (method, other))
    return (next(logs) - next(logs)).dropna()


def positive(seconds: pd.Series) -> pd.Series:
    """Return times that were long enough for the clock to see them."""
    return seconds[seconds > 0.0]


@dataclass(frozen=True)
class Reckoned:
    """Seconds at a size: measured, or followed there from smaller sizes.

    ``exponent`` is that of the growth, and ``sizes`` what it was fitted to; both are absent where
    the seconds were measured.
    """

    seconds: float
    n: int
    exponent: float | None = None
    sizes: tuple[int, ...] = ()

    @property
    def extrapolated(self) -> bool:
        """Whether no trial was done at this size."""
        return self.exponent is not None


def reckon(
    seconds: Mapping[int, float], n: int, least: float = 0.0, most: float = np.inf
) -> Reckoned | None:
    """Return the seconds at a size n, from those at some sizes.

    Where n was not tried, the growth :math:`t = t_1 (n / n_1)^a` is followed from the largest
    size tried, :math:`n_1`. The exponent :math:`a` is the slope of least squares in logarithms,
    kept between two bounds.

    Returns
    -------
    Reckoned or None
        None if fewer than two sizes were tried, or n is more than a hundred times the largest.
    """
    known = {size: value for size, value in sorted(seconds.items()) if value > 0.0}
    for size, value in known.items():
        if abs(size - n) <= SAME_SIZE * n:
            return Reckoned(value, size)
    if len(known) < 2 or n > FARTHEST * max(known):
        return None
    sizes, values = np.array(list(known)), np.array(list(known.values()))
    exponent = float(np.clip(np.polyfit(np.log(sizes), np.log(values), 1)[0], least, most))
    grown = values[-1] * (n / sizes[-1]) ** exponent
    return Reckoned(float(grown), n, exponent, tuple(int(size) for size in sizes))


def count(number: int) -> str:
    """Return 15000 as ``15,000``."""
    return f"{number:,}"


def span(numbers: Iterable[int]) -> str:
    """Return numbers as ``10``, ``10 and 25`` or ``10 to 200``."""
    known = sorted({int(number) for number in numbers})
    if len(known) <= 2:
        return " and ".join(count(number) for number in known)
    return f"{count(known[0])} to {count(known[-1])}"


def points(difference: Estimate) -> str:
    """Return a difference of shares as percentage points, with its error: ``+1.20 ± 0.10``."""
    percent = difference.times(100.0)
    error = "" if np.isnan(percent.error) else f" ± {percent.error:.2f}"
    return f"{percent.mean:+.2f}{error}".replace("-", "\N{MINUS SIGN}")


def factor(log: Estimate) -> str:
    """Return an estimate of a ratio's logarithm as ``2.9 times``, with the factor of its error."""
    error = "" if np.isnan(log.error) else f" (within a factor {np.exp(log.error):.2f})"
    return f"{digits(float(np.exp(log.mean)))} times{error}"


def share(value: float) -> str:
    """Return 0.8534 as ``85.3 %``."""
    return f"{100.0 * value:.1f} %"


def repeats(numbers: Iterable[int], noun: str = "run") -> str:
    """Return how many runs or folds settings had, and what one of them leaves unknown."""
    known = sorted(set(numbers))
    if known == [1]:
        return f"1 {noun}, so no standard error"
    unknown = ", no error where it was 1" if known[0] == 1 else ""
    return f"{span(known).replace('and', 'or')} {noun}s{unknown}"


def digits(value: float) -> str:
    """Return a positive number to two digits, never as a power of ten up to a hundred million."""
    if not np.isfinite(value):
        return "not known"
    if value >= 100.0:
        step = 10 ** (int(np.floor(np.log10(value))) - 1)
        return f"{round(value / step) * step:,}"
    return f"{value:.2g}"


def seconds(value: float) -> str:
    """Return seconds to two digits, with their unit."""
    return f"{digits(value)} s"


def source(reckoned: Reckoned) -> str:
    """Return how seconds at a size came about: measured, or by which growth from which sizes."""
    if not reckoned.extrapolated:
        return f"n = {count(reckoned.n)}"
    return (
        f"n = {count(reckoned.n)}, extrapolated as n^{reckoned.exponent:.1f} "
        f"from {span(reckoned.sizes)}"
    )
