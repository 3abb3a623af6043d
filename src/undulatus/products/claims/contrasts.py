"""Differences and ratios of trials, each with its standard error; times at sizes not tried.

**What is clear.** Trials of two methods with one regime, size, number of frequencies and run saw
the same rows, so they are compared in pairs: within a run differences are averaged over all
settings that both were tried at, and over runs their mean and its standard error are taken; where
some settings had fewer runs, the error is that of the settings that had all. A difference is clear
if it has the sign that was claimed and is more than two standard errors from zero. Where there was
one run there is no standard error, and the sign alone is judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

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
