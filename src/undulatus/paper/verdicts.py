"""What claims are made of: verdicts, comparisons of trials with errors, and numbers in words.

**What is clear.** Trials of two methods with one regime, size, number of frequencies and run saw
the same rows, so they are compared in pairs: within a run differences are averaged over all
settings that both were tried at, and over runs their mean and its standard error are taken; where
some settings had fewer runs, the error is that of the settings that had all. A difference is clear
if it has the sign that was claimed and is more than two standard errors from zero. One run has no
standard error; its sign alone counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested at this scale"

WORDS = (HOLDS, FAILS, UNTESTED)

CLEAR = 2.0
"""Standard errors from zero at which a difference is clear."""

FARTHEST = 100.0
"""Times are extrapolated to at most this many times the largest size tried."""

SAME_SIZE = 0.02
"""Two sizes count as one if they differ by at most this share."""

PAIRED_BY = ["regime", "n", "D", "run"]
"""Trials of two methods that agree in these are compared."""


@dataclass(frozen=True)
class Verdict:
    """What trials say about a claim.

    ``word`` is one of :data:`WORDS`; ``numbers`` are the evidence, ``sizes`` the trials they come
    from; ``why`` says how many comparisons hold, or why there is no verdict.
    """

    word: str
    numbers: tuple[str, ...] = ()
    sizes: str = ""
    why: str = ""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, in our words, and the function that tests it.

    ``verdict_on`` takes the table of trials done with one solver, those of GPC included.
    ``built_in`` says why the claim holds by construction on the simulator; it is empty if it does
    not.
    """

    id: str
    experiment: str
    statement: str
    verdict_on: Callable[[pd.DataFrame], Verdict]
    built_in: str = ""


@dataclass(frozen=True)
class Comparison:
    """One comparison that a claim makes, for a regime or a method: whether it holds, in words."""

    holds: bool
    text: str


def all_hold(comparisons: Sequence[Comparison], sizes: str) -> Verdict:
    """Return the verdict on a claim that holds if all of its comparisons do."""
    lines = tuple(c.text if c.holds else f"{c.text} (fails)" for c in comparisons)
    number = sum(c.holds for c in comparisons)
    why = f"Holds in {number} of {len(comparisons)}." if 0 < number < len(comparisons) else ""
    return Verdict(HOLDS if number == len(comparisons) else FAILS, lines, sizes, why)


def untested(why: str, comparisons: Sequence[Comparison] = (), sizes: str = "") -> Verdict:
    """Return that there is no verdict, and why, with the numbers there are."""
    return Verdict(UNTESTED, tuple(c.text for c in comparisons), sizes, why)


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
    """Return the mean of values, which are indexed by ``run`` and perhaps by settings.

    Settings count equally, however many runs they had. None if there are no values.
    """
    known = values.dropna()
    if known.empty:
        return None
    if known.index.nlevels == 1:
        return Estimate(float(known.mean()), float(known.sem()), len(known))
    table = known.unstack("run")
    by_run = table.dropna().mean()
    # If no setting had all runs, differences between runs and settings cannot be told apart.
    error = float(by_run.sem()) if by_run.notna().all() else np.nan
    return Estimate(float(table.mean(axis="columns").mean()), error, table.shape[1])


def values_of(trials: pd.DataFrame, method: str, measure: str) -> pd.Series:
    """Return a measure of a method's trials, by regime, n, D and run."""
    chosen = trials[(trials["method"] == method) & trials[measure].notna()]
    return chosen.set_index(PAIRED_BY)[measure].sort_index()


def differences(trials: pd.DataFrame, method: str, other: str, measure: str) -> pd.Series:
    """Return by how much a method exceeds another, in each setting and run both were tried at."""
    return (values_of(trials, method, measure) - values_of(trials, other, measure)).dropna()


def log_ratios(trials: pd.DataFrame, method: str, other: str, measure: str) -> pd.Series:
    """Return logarithms of ratios, in each setting and run both were tried at."""
    logs = (np.log(positive(values_of(trials, name, measure))) for name in (method, other))
    return (next(logs) - next(logs)).dropna()


def positive(seconds: pd.Series) -> pd.Series:
    """Leave out times too short for the clock to measure."""
    return seconds[seconds > 0.0]


@dataclass(frozen=True)
class TimeAtSize:
    """Seconds at a size n, measured or extrapolated from smaller sizes.

    An extrapolated time has the ``exponent`` of its growth and the ``sizes`` it was fitted to.
    """

    seconds: float
    n: int
    exponent: float | None = None
    sizes: tuple[int, ...] = ()

    @property
    def extrapolated(self) -> bool:
        """Whether there was no trial at this size."""
        return self.exponent is not None


def time_at_size(
    seconds: Mapping[int, float], n: int, least: float = 0.0, most: float = np.inf
) -> TimeAtSize | None:
    """Return the seconds at size n, given those at some sizes.

    If n was not tried, the growth :math:`t = t_1 (n / n_1)^a` is followed from the largest size
    tried, :math:`n_1`. The exponent :math:`a` is the least-squares slope in logarithms, clipped
    to [``least``, ``most``].

    Returns
    -------
    TimeAtSize or None
        None if fewer than two sizes were tried, or n is more than a hundred times the largest.
    """
    known = {size: value for size, value in sorted(seconds.items()) if value > 0.0}
    for size, value in known.items():
        if abs(size - n) <= SAME_SIZE * n:
            return TimeAtSize(value, size)
    if len(known) < 2 or n > FARTHEST * max(known):
        return None
    sizes, values = np.array(list(known)), np.array(list(known.values()))
    exponent = float(np.clip(np.polyfit(np.log(sizes), np.log(values), 1)[0], least, most))
    grown = values[-1] * (n / sizes[-1]) ** exponent
    return TimeAtSize(float(grown), n, exponent, tuple(int(size) for size in sizes))


def count(number: int) -> str:
    """Return 15000 as ``15,000``."""
    return f"{number:,}"


def span(numbers: Iterable[int]) -> str:
    """Return numbers as ``10``, ``10 and 25`` or ``10 to 200``."""
    known = sorted({int(number) for number in numbers})
    if len(known) <= 2:
        return " and ".join(count(number) for number in known)
    return f"{count(known[0])} to {count(known[-1])}"


def share(value: float) -> str:
    """Return 0.8534 as ``85.3 %``."""
    return f"{100.0 * value:.1f} %"


def digits(value: float) -> str:
    """Return a positive number to two digits, without a power of ten up to a hundred million."""
    if not np.isfinite(value):
        return "not known"
    if value >= 100.0:
        step = 10 ** (int(np.floor(np.log10(value))) - 1)
        return f"{round(value / step) * step:,}"
    return f"{value:.2g}"


def points(difference: Estimate) -> str:
    """Return a difference of shares as percentage points, with its error: ``+1.20 ± 0.10``."""
    percent = difference.times(100.0)
    error = "" if np.isnan(percent.error) else f" ± {percent.error:.2f}"
    return f"{percent.mean:+.2f}{error}".replace("-", "\N{MINUS SIGN}")


def ratio_text(log: Estimate) -> str:
    """Return an estimate of a ratio's logarithm as ``2.9 times``, with the factor of its error."""
    error = "" if np.isnan(log.error) else f" (within a factor {np.exp(log.error):.2f})"
    return f"{digits(float(np.exp(log.mean)))} times{error}"


def seconds_text(value: float) -> str:
    """Return seconds to two digits, with their unit."""
    return f"{digits(value)} s"


def size_text(time: TimeAtSize) -> str:
    """Return the size of a time and, if extrapolated, the exponent and the sizes it came from."""
    if not time.extrapolated:
        return f"n = {count(time.n)}"
    return f"n = {count(time.n)}, extrapolated as n^{time.exponent:.1f} from {span(time.sizes)}"


def runs_text(numbers: Iterable[int], noun: str = "run") -> str:
    """Return how many runs or folds settings had, with a note on those that had one."""
    known = sorted(set(numbers))
    if known == [1]:
        return f"1 {noun}, so no standard error"
    note = ", no error where it was 1" if known[0] == 1 else ""
    return f"{span(known).replace('and', 'or')} {noun}s{note}"
