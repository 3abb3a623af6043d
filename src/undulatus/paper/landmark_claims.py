"""The paper's claims about clouds over landmarks, and how trials are tested against them.

A claim about every regime holds if it does in each that was tried; what is clear is defined in
:mod:`undulatus.paper.verdicts`.

To add a claim, add an entry to ``CLAIMS`` at the end of this module, and a case to ``CASES`` in
``tests/paper/test_claims.py``.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pandas as pd

from undulatus._daylight import REGIMES
from undulatus.paper.runs import METHOD_NAMES, regimes_in
from undulatus.paper.scales import LANDMARKS
from undulatus.paper.verdicts import (
    CLEAR,
    PAIRED_BY,
    Claim,
    Comparison,
    Estimate,
    TimeAtSize,
    Verdict,
    all_hold,
    count,
    differences,
    digits,
    estimate,
    log_ratios,
    points,
    positive,
    ratio_text,
    runs_text,
    seconds_text,
    share,
    size_text,
    span,
    time_at_size,
    untested,
    values_of,
)

NEAR = 0.01
"""RFF-GPC is near GPC if it is behind by at most this share of pixels."""

MOST_FREQUENCIES = 200
"""The paper's largest D."""

STALLED = 0.001
"""Accuracy stalls if a doubling of n or D adds less than this share of pixels ..."""

STALLED_SHARE = 0.5
"""... or less than this part of what the first doubling added."""

STALL_SIZES = 3
"""Least number of sizes n, and of values of D, that can show a stall."""

LARGEST, LARGEST_EXACT = 300_000, 15_000
"""The paper's largest n for Fourier features, and for GPC."""

FLAT = 0.1
"""Time does not depend on n if it grows as n to at most this power: a quarter for tenfold n."""

LEAST_SPAN = 2.0
"""Least ratio of the largest n to the smallest from which an exponent is taken."""

FASTER = 100.0
"""How many times faster than GPC the paper's methods test."""


def vff_more_accurate(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC is clearly ahead of RFF-GPC in each regime, at equal n and D."""
    gains = differences(trials, "vff", "rff", "accuracy")
    if gains.empty:
        return untested("VFF-GPC and RFF-GPC were not tried at the same sizes.")
    comparisons = [
        Comparison(gain.above(), f"{regime} {points(gain)} points")
        for regime, gain in _by_regime(gains)
    ]
    return all_hold(comparisons, _sizes(gains))


def rff_trains_faster(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC takes clearly more CPU time to train in each regime, at equal n and D."""
    logs = log_ratios(trials, "vff", "rff", "fit_cpu_seconds")
    if logs.empty:
        return untested("VFF-GPC and RFF-GPC were not timed at the same sizes.")
    comparisons = [
        Comparison(log.above(), f"{regime}: VFF-GPC takes {ratio_text(log)} as long")
        for regime, log in _by_regime(logs)
    ]
    return all_hold(comparisons, _sizes(logs))


def rff_nears_gpc(trials: pd.DataFrame) -> Verdict:
    """Hold if RFF-GPC clearly nears GPC from the fewest to the most frequencies, and reaches it.

    It reaches GPC if it is at most one percentage point behind, at the largest n tried with both.
    There is no verdict if it nears GPC without reaching it, with fewer frequencies than the
    paper's 200.
    """
    rff, gpc = (values_of(trials, method, "accuracy") for method in ("rff", "gpc"))
    behind = (gpc.droplevel("D") - rff).dropna().reorder_levels(PAIRED_BY)
    comparisons, used, too_few = [], [], False
    for regime in _regimes_of(behind):
        gaps = _at_largest_n(behind.loc[[regime]])
        frequencies = gaps.index.get_level_values("D")
        fewest, most = frequencies.min(), frequencies.max()
        first, last = (gaps.xs(D, level="D") for D in (fewest, most))
        start, end, nearer = estimate(first), estimate(last), estimate(first - last)
        if fewest == most or start is None or end is None or nearer is None:
            continue
        reached = end.mean <= NEAR
        too_few |= nearer.above() and not reached and most < MOST_FREQUENCIES
        text = f"{regime}: GPC is {points(start)} points ahead at D = {fewest}, {points(end)} at "
        holds = reached and (nearer.above() or start.mean <= 0.0)
        comparisons.append(Comparison(holds, f"{text}D = {most}"))
        used.append(gaps)
    if not comparisons:
        return untested("No n was tried both with GPC and with two values of D of RFF-GPC.")
    if too_few:
        why = f"RFF-GPC nears GPC, but with fewer frequencies than the paper's {MOST_FREQUENCIES}."
        return untested(why, comparisons, _sizes(pd.concat(used)))
    return all_hold(comparisons, _sizes(pd.concat(used)))


def _at_largest_n(values: pd.Series) -> pd.Series:
    n = values.index.get_level_values("n")
    return values[n == n.max()]


def grow_together(trials: pd.DataFrame) -> Verdict:
    """Hold if growing n and D together gains clearly more than either alone, which stalls.

    Alone means that the other stays at its least. It stalls if its last doubling gains less than
    0.1 points, or less than half of what the first did. Regimes are averaged.
    """
    comparisons, used, any_short = [], [], False
    for method in ("vff", "rff"):
        values = values_of(trials, method, "accuracy")
        tables = {regime: _complete_table(values.xs(regime)) for regime in _regimes_of(values)}
        tables = {regime: table for regime, table in tables.items() if min(_shape(table)) > 1}
        if not tables:
            continue
        gains = pd.concat({r: _gains(table) for r, table in tables.items()}, names=["regime"])
        short = any(min(_shape(table)) < STALL_SIZES for table in tables.values())
        estimates = {name: estimate(gains[name]) for name in gains}
        comparisons.append(_compare_gains(METHOD_NAMES[method], estimates, short))
        used += [
            pd.concat({(method, regime): table.stack()}, names=["method", "regime"])
            for regime, table in tables.items()
        ]
        any_short |= short
    if not comparisons:
        return untested("No method was tried at two sizes n and two values of D.")
    sizes = _sizes(pd.concat(used))
    if any_short and all(comparison.holds for comparison in comparisons):
        why = "Fewer than three sizes n or values of D cannot show that accuracy stalls."
        return untested(why, comparisons, sizes)
    return all_hold(comparisons, sizes)


def _complete_table(values: pd.Series) -> pd.DataFrame:
    """Return accuracies with a row for each D and run, and a column for each n, without gaps.

    A large n that was tried with few D would leave few rows: the largest sizes are left out as
    long as that leaves more to compare.
    """
    table = values.unstack("n")
    tables = [table.iloc[:, :kept].dropna() for kept in range(table.shape[1], 0, -1)]
    return max(tables, key=lambda table: (min(*_shape(table), STALL_SIZES), table.size))


def _shape(table: pd.DataFrame) -> tuple[int, int]:
    return table.index.get_level_values("D").nunique(), table.shape[1]


def _gains(table: pd.DataFrame) -> pd.DataFrame:
    """Return the gains of each run from growing n, D and both, and from single doublings."""
    n, frequencies = sorted(table.columns), sorted(table.index.get_level_values("D").unique())
    fewest, most = (table.xs(D, level="D") for D in (frequencies[0], frequencies[-1]))
    at_least_n = pd.concat({D: table.xs(D, level="D")[n[0]] for D in frequencies}, axis=1)
    gains = {
        "both": most[n[-1]] - fewest[n[0]],
        "n": fewest[n[-1]] - fewest[n[0]],
        "D": most[n[0]] - fewest[n[0]],
    }
    for name, accuracies, sizes in (("n", fewest, n), ("D", at_least_n, frequencies)):
        for end, (a, b) in (("first", sizes[:2]), ("last", sizes[-2:])):
            gains[f"{end} {name}"] = (accuracies[b] - accuracies[a]) / np.log2(b / a)
    for name in ("n", "D"):
        gains[f"over {name}"] = gains["both"] - gains[name]
    return pd.DataFrame(gains).dropna()


def _compare_gains(name: str, gains: dict[str, Estimate | None], short: bool) -> Comparison:
    """Compare growth of both with growth of one; only tables that are not short can stall."""
    known = {key: value for key, value in gains.items() if value is not None}
    more = all(known[key].above() for key in ("both", "over n", "over D"))
    stalls = short or all(
        known[f"last {key}"].mean < max(STALLED, STALLED_SHARE * known[f"first {key}"].mean)
        for key in ("n", "D")
    )
    text = f"{name}: {points(known['both'])} points from both, {points(known['n'])} from n alone, "
    text += f"{points(known['D'])} from D alone; the last doubling alone brings "
    text += f"{points(known['last n'])} (n) and {points(known['last D'])} (D)"
    return Comparison(more and stalls, text)


def by_illumination(trials: pd.DataFrame) -> Verdict:
    """Hold if accuracy clearly falls from high to mid to low to night, in settings all four had.

    GPC is left out: it has few rows.
    """
    table = trials[trials["method"] != "gpc"].pivot_table(
        index=["method", "n", "D", "run"], columns="regime", values="accuracy"
    )
    missing = [regime for regime in REGIMES if regime not in table]
    if missing:
        return untested(f"There are no trials of {', '.join(missing)}.")
    table = table.dropna()
    if table.empty:
        return untested("No setting was tried in all four regimes.")
    comparisons = []
    for brighter, darker in pairwise(REGIMES):
        fall = estimate(table[brighter] - table[darker])
        assert fall is not None
        text = f"{brighter} {share(table[brighter].mean())}, {darker} "
        text += f"{share(table[darker].mean())}: {points(fall)} points"
        comparisons.append(Comparison(fall.above(), text))
    return all_hold(comparisons, _sizes(table["high"]))


def coast_corrected(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC is clearly right more often than its labels at the coast, in each regime.

    Right means equal to the truth, which only a simulator has. The model with the most rows and
    frequencies counts.
    """
    model, label = (
        values_of(trials, "vff", name) for name in ("coast_accuracy", "coast_label_accuracy")
    )
    comparisons, used = [], []
    for regime in _regimes_of((model - label).dropna()):
        size = max((n, D) for _, n, D, _ in model.loc[[regime]].index)
        ours, theirs = (values.loc[(regime, *size)] for values in (model, label))
        gain = estimate(ours - theirs)
        assert gain is not None
        text = f"{regime}: {share(ours.mean())} against the mask's {share(theirs.mean())}, "
        comparisons.append(Comparison(gain.above(), f"{text}{points(gain)} points"))
        used.append(model.loc[[regime]].xs(size, level=("n", "D"), drop_level=False))
    if not comparisons:
        return untested("The truth at the coast is not known for these data.")
    return all_hold(comparisons, _sizes(pd.concat(used)))


def cheaper_to_train(trials: pd.DataFrame) -> Verdict:
    """Hold if both methods on 300,000 rows train in less CPU time than GPC on 15,000.

    Each regime is compared at the most frequencies for which the time is known. Times at sizes
    that were not tried follow the growth of those that were, and are marked as extrapolated.
    Exponents are bounded against the claim: ours is at least 1, because fixed costs hide the
    growth in small trials; GPC's is at most 3.
    """
    comparisons = []
    for regime in regimes_in(trials["regime"]):
        inside = trials[trials["regime"] == regime]
        by_size = _means_by_size(inside, "gpc", "fit_cpu_seconds", 0)
        exact = time_at_size(by_size, LARGEST_EXACT, most=3.0)
        ours = {method: _time_with_most_frequencies(inside, method) for method in ("rff", "vff")}
        known = {method: found for method, found in ours.items() if found is not None}
        if exact is None or len(known) < len(ours):
            continue
        times = [
            f"{METHOD_NAMES[method]} {seconds_text(time.seconds)} ({size_text(time)}; D = {D})"
            for method, (D, time) in known.items()
        ]
        gpc = f"GPC {seconds_text(exact.seconds)} ({size_text(exact)})"
        cheaper = all(time.seconds < exact.seconds for _, time in known.values())
        comparisons.append(Comparison(cheaper, f"{regime}: {', '.join(times)}; {gpc}"))
    if not comparisons:
        return untested(
            f"No times at n = {count(LARGEST)}, or at {count(LARGEST_EXACT)} for GPC, were "
            f"measured or could be extrapolated."
        )
    return all_hold(comparisons, "CPU time, mean over runs")


def _time_with_most_frequencies(
    trials: pd.DataFrame, method: str
) -> tuple[int, TimeAtSize] | None:
    """Return the most frequencies for which the time at the largest n is known, and that time."""
    frequencies = trials.loc[trials["method"] == method, "D"].unique()
    for D in sorted(frequencies, reverse=True):
        by_size = _means_by_size(trials, method, "fit_cpu_seconds", D)
        time = time_at_size(by_size, LARGEST, least=1.0)
        if time is not None:
            return int(D), time
    return None


def _means_by_size(trials: pd.DataFrame, method: str, measure: str, D: int) -> dict[int, float]:
    chosen = trials[(trials["method"] == method) & (trials["D"] == D)]
    by_size = chosen.groupby("n")[measure].mean().dropna()
    return {int(n): float(value) for n, value in by_size.items()}


def flat_in_n(trials: pd.DataFrame) -> Verdict:
    r"""Hold if the time for a test row grows with the training rows as :math:`n^a`, a within ±0.1.

    The exponent is the least-squares slope in logarithms, common to all regimes, D and runs; it
    may exceed the bound by two standard errors. With a standard error above 0.1 there is no
    verdict.
    """
    comparisons, rows, unsure = [], set(), False
    for method in ("vff", "rff"):
        logs = np.log(positive(values_of(trials, method, "row_seconds")))
        slope = _slope(logs)
        if slope is None:
            continue
        error = float(np.nan_to_num(slope.error))
        with_error = "" if np.isnan(slope.error) else f" ± {slope.error:.2f}"
        power = f"{slope.mean:.2f}{with_error}".replace("-", "\N{MINUS SIGN}")
        holds = abs(slope.mean) <= FLAT + CLEAR * error
        text = f"{METHOD_NAMES[method]}: as n to the power {power}"
        comparisons.append(Comparison(holds, text))
        unsure |= holds and error > FLAT
        rows |= set(logs.index.get_level_values("n"))
    sizes = f"n = {span(rows)}; CPU time a test row"
    if not comparisons:
        return untested("No method was timed at two sizes n, one twice the other, with one D.")
    if unsure and all(comparison.holds for comparison in comparisons):
        return untested("Times scatter too much for so few sizes and trials.", comparisons, sizes)
    return all_hold(comparisons, sizes)


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


def hundredfold_faster(trials: pd.DataFrame) -> Verdict:
    """Hold if GPC on 15,000 rows takes over 100 times as long to test as each method.

    Each regime is compared at the most frequencies, which are slowest. GPC's time at a size that
    was not tried is extrapolated as :math:`n^a` with a between 1 and 2.
    """
    comparisons = []
    for regime in regimes_in(trials["regime"]):
        inside = trials[trials["regime"] == regime]
        by_size = _means_by_size(inside, "gpc", "row_seconds", 0)
        exact = time_at_size(by_size, LARGEST_EXACT, 1.0, 2.0)
        ratios, texts = [], []
        for method in ("rff", "vff"):
            chosen = inside[(inside["method"] == method) & (inside["row_seconds"] > 0.0)]
            if exact is None or chosen.empty:
                continue
            most = chosen["D"].max()
            ratio = exact.seconds / chosen.loc[chosen["D"] == most, "row_seconds"].mean()
            ratios.append(ratio)
            texts.append(f"{digits(ratio)} times for {METHOD_NAMES[method]} (D = {most})")
        if exact is not None and ratios:
            text = f"{regime}: {', '.join(texts)}; GPC at {size_text(exact)}"
            comparisons.append(Comparison(bool(min(ratios) > FASTER), text))
    if not comparisons:
        return untested(
            f"RFF-GPC and VFF-GPC were not timed, or no test time of GPC at n = "
            f"{count(LARGEST_EXACT)} was measured or could be extrapolated."
        )
    return all_hold(comparisons, "CPU time a test row, mean over runs")


def _regimes_of(values: pd.Series) -> list[str]:
    return regimes_in(values.index.get_level_values("regime"))


def _by_regime(values: pd.Series) -> list[tuple[str, Estimate]]:
    estimates = [(regime, estimate(values.loc[[regime]])) for regime in _regimes_of(values)]
    return [(regime, value) for regime, value in estimates if value is not None]


def _sizes(values: pd.Series) -> str:
    """Return the sizes and numbers of runs that values are from."""
    n, frequencies = (values.index.get_level_values(name) for name in ("n", "D"))
    settings = [name for name in values.index.names if name != "run"]
    used = [D for D in frequencies if D > 0]
    frequencies_text = f"D = {span(used)}; " if used else ""
    return f"n = {span(n)}; {frequencies_text}{runs_text(values.groupby(settings).size())}"


CLAIMS = (
    Claim(
        "vff-more-accurate",
        LANDMARKS,
        "VFF-GPC is more accurate than RFF-GPC.",
        vff_more_accurate,
    ),
    Claim(
        "rff-trains-faster",
        LANDMARKS,
        "RFF-GPC takes less time to train than VFF-GPC.",
        rff_trains_faster,
    ),
    Claim(
        "rff-nears-gpc",
        LANDMARKS,
        "With few features, RFF-GPC becomes as accurate as GPC on the same rows as frequencies "
        "are added.",
        rff_nears_gpc,
    ),
    Claim(
        "n-and-d-together",
        LANDMARKS,
        "Accuracy grows if rows and frequencies are increased together, and stalls if only one "
        "is.",
        grow_together,
    ),
    Claim(
        "illumination",
        LANDMARKS,
        "The more light, the more accurate: high before mid, mid before low, low before night.",
        by_illumination,
    ),
    Claim(
        "coast",
        LANDMARKS,
        "Where the Level-2 mask takes the coast for cloud, VFF-GPC trained on it does not.",
        coast_corrected,
        "the simulator's Level-2 mask was made to err along the coast",
    ),
    Claim(
        "cheaper-than-gpc",
        LANDMARKS,
        "On 300,000 rows RFF-GPC and VFF-GPC take less time to train than GPC on 15,000.",
        cheaper_to_train,
    ),
    Claim(
        "test-time-flat",
        LANDMARKS,
        "The test time of RFF-GPC and VFF-GPC does not depend on the number of training rows.",
        flat_in_n,
    ),
    Claim(
        "hundredfold-faster",
        LANDMARKS,
        "RFF-GPC and VFF-GPC test over 100 times faster than GPC on 15,000 rows.",
        hundredfold_faster,
    ),
)
"""In the order in which they are reported."""
