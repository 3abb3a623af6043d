"""What the paper says of computing times over landmarks, and how trials are held against it.

What the paper says of clouds over landmarks, and how trials are held against it.

A claim about every regime holds if it does in each that was tried; what is clear is said in
:mod:`undulatus.paper.verdicts`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from undulatus._daylight import REGIMES
from undulatus.paper.trials import NAMES
from undulatus.paper.verdicts import (
    CLEAR,
    PAIR,
    Claim,
    Estimate,
    Part,
    Reckoned,
    Verdict,
    all_of,
    count,
    differences,
    digits,
    estimate,
    factor,
    points,
    positive,
    ratios,
    reckon,
    repeats,
    seconds,
    share,
    source,
    span,
    untested,
    values_of,
)

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
    for regime in _regimes_of_trials(trials):
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
    for regime in _regimes_of_trials(trials):
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


def _regimes_of_trials(trials: pd.DataFrame) -> list[str]:
    return [regime for regime in REGIMES if (trials["regime"] == regime).any()]


COST_CLAIMS = (
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

NEAR = 0.01
"""RFF-GPC is near GPC if it is at most this share of pixels behind."""

MOST_WAVES = 200
"""The paper's largest D."""

STALLED = 0.001
"""A doubling that brings less than this share of pixels brings nothing ..."""

STALLED_SHARE = 0.5
"""... and so does one that brings less than this part of what the first doubling did."""


def vff_more_accurate(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC is clearly ahead of RFF-GPC in each regime, at equal n and D."""
    found = differences(trials, "vff", "rff", "accuracy")
    if found.empty:
        return untested("VFF-GPC and RFF-GPC were not tried at one size.")
    parts = [
        Part(gain.above(), f"{regime} {points(gain)} points") for regime, gain in _by_regime(found)
    ]
    return all_of(parts, _sizes(found))


def rff_trains_faster(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC takes clearly more CPU time to train in each regime, at equal n and D."""
    found = ratios(trials, "vff", "rff", "fit_cpu_seconds")
    if found.empty:
        return untested("VFF-GPC and RFF-GPC were not timed at one size.")
    parts = [
        Part(log.above(), f"{regime}: VFF-GPC takes {factor(log)} as long")
        for regime, log in _by_regime(found)
    ]
    return all_of(parts, _sizes(found))


def rff_nears_gpc(trials: pd.DataFrame) -> Verdict:
    """Hold if RFF-GPC clearly nears GPC from the least to the most waves, and gets there.

    It is there if at most one percentage point is left, at the largest n that both were tried at.
    Where it nears GPC but has not got there with fewer waves than the paper's 200, nothing is
    said.
    """
    rff, gpc = (values_of(trials, method, "accuracy") for method in ("rff", "gpc"))
    behind = (gpc.droplevel("D") - rff).dropna().reorder_levels(PAIR)
    parts, used, far = [], [], False
    for regime in _regimes(behind):
        gaps = _at_most_rows(behind.loc[[regime]])
        waves = gaps.index.get_level_values("D")
        least, most = waves.min(), waves.max()
        first, last = (gaps.xs(D, level="D") for D in (least, most))
        start, end, nearer = estimate(first), estimate(last), estimate(first - last)
        if least == most or start is None or end is None or nearer is None:
            continue
        there = end.mean <= NEAR
        far |= nearer.above() and not there and most < MOST_WAVES
        text = f"{regime}: GPC is {points(start)} points ahead at D = {least}, {points(end)} at "
        good = there and (nearer.above() or start.mean <= 0.0)
        parts.append(Part(good, f"{text}D = {most}"))
        used.append(gaps)
    if not parts:
        return untested("RFF-GPC at two values of D and GPC were not tried at one n.")
    if far:
        why = f"RFF-GPC nears GPC, but with fewer waves than the paper's {MOST_WAVES}."
        return untested(why, parts, _sizes(pd.concat(used)))
    return all_of(parts, _sizes(pd.concat(used)))


def _at_most_rows(values: pd.Series) -> pd.Series:
    n = values.index.get_level_values("n")
    return values[n == n.max()]


def together(trials: pd.DataFrame) -> Verdict:
    """Hold if growing n and D together brings clearly more than either alone, which stalls.

    Alone means that the other stays at its least. It stalls if the last doubling of it brings
    less than 0.1 points, or less than half of what the first did. Regimes are averaged.
    """
    parts, used, short = [], [], False
    for method in ("vff", "rff"):
        values = values_of(trials, method, "accuracy")
        found = {regime: _grid(values.xs(regime)) for regime in _regimes(values)}
        grids = {regime: grid for regime, grid in found.items() if min(_shape(grid)) > 1}
        if not grids:
            continue
        gains = {regime: _gains(grid) for regime, grid in grids.items()}
        table = pd.concat(gains, names=["regime"])
        few = any(min(_shape(grid)) < 3 for grid in grids.values())
        gain = {name: estimate(table[name]) for name in table}
        parts.append(_joint(NAMES[method], gain, few))
        used += [
            pd.concat({(method, regime): grid.stack()}, names=["method", "regime"])
            for regime, grid in grids.items()
        ]
        short |= few
    if not parts:
        return untested("No method was tried at two sizes n and two values of D.")
    sizes = _sizes(pd.concat(used))
    if short and all(part.good for part in parts):
        why = "With fewer than three sizes n and values of D nothing can be seen to stall."
        return untested(why, parts, sizes)
    return all_of(parts, sizes)


def _grid(values: pd.Series) -> pd.DataFrame:
    """Return accuracies with a row for each D and run, and a column for each n, without gaps.

    Sizes at which few D were tried would leave few rows: as many are kept as leave the most.
    """
    table = values.unstack("n")
    grids = [table.iloc[:, :kept].dropna() for kept in range(table.shape[1], 0, -1)]
    return max(grids, key=lambda grid: (min(*_shape(grid), 3), grid.size))


def _shape(grid: pd.DataFrame) -> tuple[int, int]:
    return grid.index.get_level_values("D").nunique(), grid.shape[1]


def _gains(grid: pd.DataFrame) -> pd.DataFrame:
    """Return what growing n, D and both brings in each run, and per doubling at either end."""
    n, waves = sorted(grid.columns), sorted(grid.index.get_level_values("D").unique())
    few, many = (grid.xs(D, level="D") for D in (waves[0], waves[-1]))
    steps = pd.concat({D: grid.xs(D, level="D")[n[0]] for D in waves}, axis=1)
    gains = {
        "both": many[n[-1]] - few[n[0]],
        "n": few[n[-1]] - few[n[0]],
        "D": many[n[0]] - few[n[0]],
    }
    for name, table, sizes in (("n", few, n), ("D", steps, waves)):
        for end, (a, b) in (("first", sizes[:2]), ("last", sizes[-2:])):
            gains[f"{end} {name}"] = (table[b] - table[a]) / np.log2(b / a)
    for name in ("n", "D"):
        gains[f"over {name}"] = gains["both"] - gains[name]
    return pd.DataFrame(gains).dropna()


def _joint(name: str, gain: dict[str, Estimate | None], few: bool) -> Part:
    """Return whether both bring more than one; and, unless sizes are few, whether one stalls."""
    known = {key: value for key, value in gain.items() if value is not None}
    more = all(known[key].above() for key in ("both", "over n", "over D"))
    stalls = few or all(
        known[f"last {key}"].mean < max(STALLED, STALLED_SHARE * known[f"first {key}"].mean)
        for key in ("n", "D")
    )
    told = f"{name}: {points(known['both'])} points from both, {points(known['n'])} from n alone, "
    told += f"{points(known['D'])} from D alone; the last doubling alone brings "
    told += f"{points(known['last n'])} (n) and {points(known['last D'])} (D)"
    return Part(more and stalls, told)


def by_illumination(trials: pd.DataFrame) -> Verdict:
    """Hold if accuracy clearly falls from high to mid to low to night, over settings all had.

    Of RFF-GPC and VFF-GPC: GPC has few rows.
    """
    table = trials[trials["method"] != "gpc"].pivot_table(
        index=["method", "n", "D", "run"], columns="regime", values="accuracy"
    )
    missing = [regime for regime in REGIMES if regime not in table]
    table = table if missing else table.dropna()
    if missing or table.empty:
        what = f"no trials of {', '.join(missing)}" if missing else "no setting tried in all four"
        return untested(f"The order is of four regimes; there are {what}.")
    parts = []
    for brighter, darker in pairwise(REGIMES):
        fall = estimate(table[brighter] - table[darker])
        assert fall is not None
        text = f"{brighter} {share(table[brighter].mean())}, {darker} "
        text += f"{share(table[darker].mean())}: {points(fall)} points"
        parts.append(Part(fall.above(), text))
    return all_of(parts, _sizes(table["high"]))


def coast_corrected(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC is clearly right more often than its labels at the coast, in each regime.

    Right is against the truth, which only a twin has; the model is that of the most rows and
    waves.
    """
    model, label = (
        values_of(trials, "vff", name) for name in ("coast_accuracy", "coast_label_accuracy")
    )
    parts, used = [], []
    for regime in _regimes((model - label).dropna()):
        size = max((n, D) for _, n, D, _ in model.loc[[regime]].index)
        ours, theirs = (values.loc[(regime, *size)] for values in (model, label))
        gain = estimate(ours - theirs)
        assert gain is not None
        text = f"{regime}: {share(ours.mean())} against the mask's {share(theirs.mean())}, "
        parts.append(Part(gain.above(), f"{text}{points(gain)} points"))
        used.append(model.loc[[regime]].xs(size, level=("n", "D"), drop_level=False))
    if not parts:
        return untested("The truth at the coast is not known for these data.")
    return all_of(parts, _sizes(pd.concat(used)))


def _regimes(values: pd.Series) -> list[str]:
    known = set(values.index.get_level_values("regime"))
    return [regime for regime in REGIMES if regime in known]


def _by_regime(values: pd.Series) -> list[tuple[str, Estimate]]:
    found = [(regime, estimate(values.loc[[regime]])) for regime in _regimes(values)]
    return [(regime, value) for regime, value in found if value is not None]


def _sizes(values: pd.Series) -> str:
    """Return the sizes that values are from."""
    n, waves = (values.index.get_level_values(name) for name in ("n", "D"))
    settings = [name for name in values.index.names if name != "run"]
    with_waves = [D for D in waves if D > 0]
    frequencies = f"D = {span(with_waves)}; " if with_waves else ""
    return f"n = {span(n)}; {frequencies}{repeats(values.groupby(settings).size())}"


CLAIMS = (
    Claim(
        "vff-more-accurate",
        "landmarks",
        "VFF-GPC is more accurate than RFF-GPC.",
        vff_more_accurate,
    ),
    Claim(
        "rff-trains-faster",
        "landmarks",
        "RFF-GPC takes less time to train than VFF-GPC.",
        rff_trains_faster,
    ),
    Claim(
        "rff-nears-gpc",
        "landmarks",
        "With few features, RFF-GPC comes up to GPC on as many rows as its waves are increased.",
        rff_nears_gpc,
    ),
    Claim(
        "n-and-d-together",
        "landmarks",
        "Accuracy grows if rows and waves are increased together, and stalls if only one is.",
        together,
    ),
    Claim(
        "illumination",
        "landmarks",
        "The more light, the more accurate: high before mid, mid before low, low before night.",
        by_illumination,
    ),
    Claim(
        "coast",
        "landmarks",
        "Where the Level-2 mask takes the coast for cloud, VFF-GPC trained on it does not.",
        coast_corrected,
        "the twin's Level-2 mask errs along the coast by its making",
    ),
)
