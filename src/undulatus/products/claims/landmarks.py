"""What the paper says of clouds over landmarks, and how trials are held against it.

A claim about every regime holds if it does in each that was tried; what is clear is said in
:mod:`undulatus.products.claims.contrasts`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from undulatus.products.claims.contrasts import (
    PAIR,
    Estimate,
    differences,
    estimate,
    ratios,
    values_of,
)
from undulatus.products.claims.measured import NAMES
from undulatus.products.claims.phrasing import factor, points, repeats, share, span
from undulatus.products.claims.verdicts import Claim, Part, Verdict, all_of, untested
from undulatus.scenes.illumination import REGIMES

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
