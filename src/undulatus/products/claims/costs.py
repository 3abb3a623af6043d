"""What the paper says of computing times over landmarks, and how trials are held against it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from undulatus.products.claims.contrasts import (
    CLEAR,
    Estimate,
    Reckoned,
    positive,
    reckon,
    values_of,
)
from undulatus.products.claims.measured import NAMES
from undulatus.products.claims.phrasing import count, digits, seconds, source, span
from undulatus.products.claims.verdicts import Claim, Part, Verdict, all_of, untested
from undulatus.scenes.illumination import REGIMES

LARGE, LARGE_EXACT = 300_000, 15_000
"""The paper's largest n for Fourier features, and for GPC."""
FLAT = 0.1
"""Largest exponent of n that counts as independence of it: tenfold rows, a quarter more time."""
LEAST_SPAN = 2.0
"""Largest n over smallest from which an exponent is taken."""
FASTER = 100.0


def cheaper_to_train(trials: pd.DataFrame) -> Verdict:
    """Hold if both methods on 300,000 rows train in less CPU time than GPC on 15,000.

    In each regime, with the most waves from which this can be told. Times at sizes that were not
    tried follow the growth of those that were, and are marked as extrapolated. Where theory and
    trials differ, the growth is the one less kind to the claim: ours at least as n, whose fixed
    costs hide it in small trials, GPC's at most as n cubed.
    """
    parts = []
    for regime in _regimes(trials):
        inside = trials[trials["regime"] == regime]
        exact = reckon(_by_size(inside, "gpc", "fit_cpu_seconds", 0), LARGE_EXACT, most=3.0)
        ours = {m: _largest(inside, m) for m in ("rff", "vff")}
        told = [
            f"{NAMES[m]} {seconds(at.seconds)} ({source(at)}; D = {D})"
            for m, (D, at) in _known(ours).items()
        ]
        if exact is None or len(told) < len(ours):
            continue
        text = f"{regime}: {', '.join(told)}; GPC {seconds(exact.seconds)} ({source(exact)})"
        cheaper = all(at.seconds < exact.seconds for _, at in _known(ours).values())
        parts.append(Part(cheaper, text))
    if not parts:
        return untested(
            f"Times at n = {count(LARGE)} and, for GPC, {count(LARGE_EXACT)} were not measured, "
            f"nor at two sizes near enough."
        )
    return all_of(parts, "CPU time, mean over runs")


def _known(
    found: dict[str, tuple[int, Reckoned | None]],
) -> dict[str, tuple[int, Reckoned]]:
    return {name: (D, at) for name, (D, at) in found.items() if at is not None}


def _largest(trials: pd.DataFrame, method: str) -> tuple[int, Reckoned | None]:
    """Return the most waves for which the time at the largest n can be told, and that time."""
    waves = trials.loc[trials["method"] == method, "D"].unique()
    for D in sorted(waves, reverse=True):
        at = reckon(_by_size(trials, method, "fit_cpu_seconds", D), LARGE, least=1.0)
        if at is not None:
            return int(D), at
    return 0, None


def _by_size(trials: pd.DataFrame, method: str, measure: str, D: int) -> dict[int, float]:
    """Return the mean of a measure by n."""
    chosen = trials[(trials["method"] == method) & (trials["D"] == D)]
    found = chosen.groupby("n")[measure].mean().dropna()
    return {int(n): float(value) for n, value in found.items()}


def flat_in_n(trials: pd.DataFrame) -> Verdict:
    r"""Hold if the time of a test row grows with the training rows as :math:`n^a`, |a| <= 0.1.

    The exponent is the slope of least squares in logarithms, common to all regimes, D and runs,
    and may be off by two of its standard errors. One that is less certain than 0.1 says nothing.
    """
    parts, rows, unsure = [], set(), False
    for method in ("vff", "rff"):
        logs = np.log(positive(values_of(trials, method, "row_seconds")))
        slope = _slope(logs)
        if slope is None:
            continue
        error = float(np.nan_to_num(slope.error))
        told = "" if np.isnan(slope.error) else f" ± {slope.error:.2f}"
        grows = f"{slope.mean:.2f}{told}".replace("-", "\N{MINUS SIGN}")
        good = abs(slope.mean) <= FLAT + CLEAR * error
        parts.append(Part(good, f"{NAMES[method]}: as n to the power {grows}"))
        unsure |= good and error > FLAT
        rows |= set(logs.index.get_level_values("n"))
    sizes = f"n = {span(rows)}; CPU time a test row"
    if not parts:
        return untested("No method was timed at two sizes n, one twice the other, with one D.")
    if unsure and all(part.good for part in parts):
        return untested("Times scatter too much for so few sizes and trials.", parts, sizes)
    return all_of(parts, sizes)


def _slope(logs: pd.Series) -> Estimate | None:
    """Return the common slope of logarithms of times against those of n, with its error."""
    table = logs.rename("time").reset_index()
    if table.empty or table["n"].max() < LEAST_SPAN * table["n"].min():
        return None
    table["size"] = np.log(table["n"])
    cells = table.groupby(["regime", "D", "run"])
    time, size = (table[name] - cells[name].transform("mean") for name in ("time", "size"))
    if not (size**2).sum() > 0.0:
        return None
    slope = (time * size).sum() / (size**2).sum()
    freedom = len(table) - cells.ngroups - 1
    scatter = ((time - slope * size) ** 2).sum() / freedom if freedom > 0 else np.nan
    return Estimate(float(slope), float(np.sqrt(scatter / (size**2).sum())), len(table))


def hundredfold(trials: pd.DataFrame) -> Verdict:
    """Hold if GPC on 15,000 rows takes over 100 times as long to test as each method.

    In each regime, against the most waves, which are slowest. GPC's time at a size that was not
    tried is followed there from smaller ones, as :math:`n^a` with a between 1 and 2.
    """
    parts = []
    for regime in _regimes(trials):
        inside = trials[trials["regime"] == regime]
        exact = reckon(_by_size(inside, "gpc", "row_seconds", 0), LARGE_EXACT, 1.0, 2.0)
        told, slowest = [], np.inf
        for method in ("rff", "vff"):
            chosen = inside[(inside["method"] == method) & (inside["row_seconds"] > 0.0)]
            if exact is None or chosen.empty:
                continue
            most = chosen["D"].max()
            ratio = exact.seconds / chosen.loc[chosen["D"] == most, "row_seconds"].mean()
            told.append(f"{digits(ratio)} times for {NAMES[method]} (D = {most})")
            slowest = min(slowest, ratio)
        if exact is not None and told:
            text = f"{regime}: {', '.join(told)}; GPC at {source(exact)}"
            parts.append(Part(bool(slowest > FASTER), text))
    if not parts:
        return untested(
            f"GPC's test time at n = {count(LARGE_EXACT)} was neither measured nor near enough "
            f"to two sizes that were, or no Fourier features were timed."
        )
    return all_of(parts, "CPU time a test row, mean over runs")


def _regimes(trials: pd.DataFrame) -> list[str]:
    return [regime for regime in REGIMES if (trials["regime"] == regime).any()]


CLAIMS = (
    Claim(
        "cheaper-than-gpc",
        "landmarks",
        "On 300,000 rows RFF-GPC and VFF-GPC take less time to train than GPC on 15,000.",
        cheaper_to_train,
    ),
    Claim(
        "test-time-flat",
        "landmarks",
        "The time RFF-GPC and VFF-GPC take to test does not depend on the rows they learned from.",
        flat_in_n,
    ),
    Claim(
        "hundredfold-faster",
        "landmarks",
        "RFF-GPC and VFF-GPC test over 100 times faster than GPC on 15,000 rows.",
        hundredfold,
    ),
)
