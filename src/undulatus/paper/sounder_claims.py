"""The paper's claims about clouds in spectra (IAVISA), and how trials are tested against them.

Spectra have folds where landmarks have runs. RFF-GPC and VFF-GPC are taken at the most rows they
were tried with; beside GPC, at the most that both were. The best D is the one with the highest
mean accuracy on the folds, as in the paper.

To add a claim, add an entry to ``CLAIMS`` at the end of this module, and a case to ``CASES`` in
``tests/paper/test_claims.py``.
"""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from undulatus.paper.runs import METHOD_NAMES
from undulatus.paper.scales import SOUNDER
from undulatus.paper.verdicts import (
    Claim,
    Comparison,
    TimeAtSize,
    Verdict,
    all_hold,
    count,
    digits,
    estimate,
    points,
    runs_text,
    share,
    size_text,
    time_at_size,
    untested,
    values_of,
)

LEAD = 0.03
"""Share of spectra by which the paper's VFF-GPC leads GPC."""

NEAR_FIVE = (3, 10)
"""D that counts as about five: within a factor of two."""

FEW, MANY = 2, 25
"""A best D can be seen if one at most FEW and one at least MANY were tried."""

ALL_LEARNED = 0.99
"""Share of training spectra that counts as about all."""

MANY_FREQUENCIES = 100
"""Least D that can show over-fitting, or RFF-GPC at its best."""

ENOUGH = 5_000
"""Least rows for claims that the paper makes about 20,000: with fewer, the best D is smaller."""

WHOLE = 20_000
"""The paper's training rows in a fold."""

ENOUGH_EXACT = 10_000
"""Least rows of a GPC that may be compared with RFF-GPC on more."""

TRAIN_RATIO, TEST_RATIO = 100.0, 1000.0
"""How many times as long GPC takes to train and to test in the paper."""

ABOUT = 10**0.5
"""A ratio is about another if it is less by at most this factor, half a power of ten."""


def vff_over_gpc(trials: pd.DataFrame) -> Verdict:
    """Hold if the best VFF-GPC is clearly ahead of GPC on as many rows, by over 3 points.

    If no size was tried with both and GPC had fewer rows, a lead proves nothing, but a missing
    lead does. With fewer than 5,000 rows there is no verdict.
    """
    vff, gpc = _side_by_side(trials, "vff")
    if vff is None or gpc is None:
        return untested("VFF-GPC and GPC were not both tried.")
    lead = estimate(vff.accuracy - gpc.accuracy)
    if lead is None:
        return untested("VFF-GPC and GPC were not tried on the same folds.")
    text = f"{_accuracies(vff, gpc)}: {points(lead)} points"
    comparison = Comparison(lead.above() and lead.mean > LEAD, text)
    if vff.n < ENOUGH:
        return untested(_too_few_rows(vff.n), [comparison], _folds(lead.runs))
    if comparison.holds and gpc.n < vff.n:
        why = f"GPC had {count(gpc.n)} rows, fewer than the {count(vff.n)} of VFF-GPC."
        return untested(why, [comparison], _folds(lead.runs))
    return all_hold([comparison], _folds(lead.runs))


def best_near_five(trials: pd.DataFrame) -> Verdict:
    """Hold if the D of the highest mean accuracy of VFF-GPC is within a factor of two of five.

    With fewer than 5,000 rows there is no verdict.
    """
    by_frequencies = _by_frequencies(trials, "vff", "accuracy")
    frequencies = list(by_frequencies.columns)
    low, high = NEAR_FIVE
    near = [D for D in frequencies if low <= D <= high]
    if not near or min(frequencies) > FEW or max(frequencies) < MANY:
        return untested(
            f"VFF-GPC was not tried with D of at most {FEW}, {low} to {high}, and at least {MANY}."
        )
    best, nearest = by_frequencies.mean().idxmax(), by_frequencies[near].mean().idxmax()
    text = f"best at D = {best}, {share(by_frequencies[best].mean())}"
    if best != nearest:
        text += f"; {share(by_frequencies[nearest].mean())} at D = {nearest}"
    ends = f"{share(by_frequencies[frequencies[0]].mean())} at D = {frequencies[0]} and "
    ends += f"{share(by_frequencies[frequencies[-1]].mean())} at D = {frequencies[-1]}"
    comparisons, folds = [Comparison(best in near, f"{text}; {ends}")], _folds(len(by_frequencies))
    n = int(trials.loc[trials["method"] == "vff", "n"].max())
    if n < ENOUGH:
        return untested(_too_few_rows(n), comparisons, folds)
    return all_hold(comparisons, folds)


def over_fits(trials: pd.DataFrame) -> Verdict:
    """Hold if VFF-GPC at its largest D has learned its training rows, and is clearly worse.

    It has learned them if it is right in 99 % of them; it is worse if its test accuracy is below
    that of its best D. If it has not, or is not, with fewer than 100 frequencies, there is no
    verdict.
    """
    learned, test = (
        _by_frequencies(trials, "vff", name) for name in ("train_accuracy", "accuracy")
    )
    both = learned.columns.intersection(test.columns)
    if len(both) < 2:
        return untested("VFF-GPC's training accuracy is not known at two values of D.")
    best, most = test[both].mean().idxmax(), max(both)
    loss = estimate(test[best] - test[most])
    grown = learned[most].mean() - learned[min(both)].mean()
    assert loss is not None
    holds = loss.above() and learned[most].mean() >= ALL_LEARNED and grown > 0.0
    text = f"from D = {best} to {most}, accuracy on training rows goes from "
    text += f"{share(learned[best].mean())} to {share(learned[most].mean())}, on others from "
    text += f"{share(test[best].mean())} to {share(test[most].mean())}: {points(loss)} points lost"
    comparisons, folds = [Comparison(holds, text)], _folds(loss.runs)
    if not holds and most < MANY_FREQUENCIES:
        return untested(f"D ends at {most}, below {MANY_FREQUENCIES}.", comparisons, folds)
    return all_hold(comparisons, folds)


def rff_below_gpc(trials: pd.DataFrame) -> Verdict:
    """Hold if the best RFF-GPC is clearly less accurate than GPC on as many rows.

    There is no verdict if GPC is not ahead but had fewer rows than RFF-GPC and than 10,000, nor if
    it is ahead of a RFF-GPC with fewer than 100 frequencies, which is bound to be behind.
    """
    rff, gpc = _side_by_side(trials, "rff")
    if rff is None or gpc is None:
        return untested("RFF-GPC and GPC were not both tried.")
    lead = estimate(gpc.accuracy - rff.accuracy)
    if lead is None:
        return untested("RFF-GPC and GPC were not tried on the same folds.")
    text = f"{_accuracies(rff, gpc)}: GPC {points(lead)} points ahead"
    comparisons, folds = [Comparison(lead.above(), text)], _folds(lead.runs)
    if not lead.above() and gpc.n < min(rff.n, ENOUGH_EXACT):
        why = f"GPC had {count(gpc.n)} rows, fewer than the {count(rff.n)} of RFF-GPC."
        return untested(why, comparisons, folds)
    most = _by_frequencies(trials, "rff", "accuracy", rff.n).columns.max()
    if lead.above() and most < MANY_FREQUENCIES:
        why = f"RFF-GPC was tried with D of at most {most}, below {MANY_FREQUENCIES}."
        return untested(why, comparisons, folds)
    return all_hold(comparisons, folds)


def times_lower(trials: pd.DataFrame) -> Verdict:
    """Hold if GPC takes about 100 times as long to train as the best VFF-GPC, and 1000 to test.

    About means at least a third (half a power of ten), on 20,000 rows. With fewer rows, times are
    extrapolated and marked so: GPC's from two sizes; VFF-GPC's training time in proportion to the
    rows, while its test time stays.
    """
    vff, gpc = _best_setting(trials, "vff"), _best_exact(trials)
    if vff is None or gpc is None:
        return untested("VFF-GPC and GPC were not both tried.")
    exact = trials[trials["method"] == "gpc"].groupby("n")[["fit_cpu_seconds", "row_seconds"]]
    goal = vff.n if vff.n >= 0.9 * WHOLE else WHOLE
    fit, test = (
        time_at_size(
            {int(n): float(v) for n, v in exact.mean()[name].dropna().items()}, goal, low, high
        )
        for name, low, high in (("fit_cpu_seconds", 0.0, 3.0), ("row_seconds", 1.0, 2.0))
    )
    ours = trials[(trials["method"] == "vff") & (trials["n"] == vff.n) & (trials["D"] == vff.D)]
    learning, testing = (ours[name].mean() for name in ("fit_cpu_seconds", "row_seconds"))
    if fit is None or test is None or not (learning > 0.0 and testing > 0.0):
        return untested(f"No times at n = {count(goal)} were measured or could be extrapolated.")
    comparisons = [
        _compare_times("train", fit, learning * goal / vff.n, TRAIN_RATIO, vff),
        _compare_times("test", test, testing, TEST_RATIO, vff),
    ]
    return all_hold(comparisons, "CPU time, mean over folds")


def _compare_times(
    act: str, exact: TimeAtSize, ours: float, claimed: float, vff: _Setting
) -> Comparison:
    ratio = exact.seconds / ours
    text = f"to {act}, GPC ({size_text(exact)}) takes {digits(ratio)} times as long as "
    text += f"{METHOD_NAMES['vff']} (D = {vff.D}, n = {count(vff.n)}"
    scaled = act == "train" and exact.n != vff.n
    text += ", extrapolated in proportion)" if scaled else ")"
    return Comparison(ratio * ABOUT >= claimed, text)


@dataclass(frozen=True)
class _Setting:
    """A method with n rows and D frequencies (0 for GPC), and its accuracies by fold."""

    method: str
    n: int
    D: int
    accuracy: pd.Series

    def text(self, folds: pd.Index) -> str:
        """Return the setting and its accuracy on some folds."""
        frequencies = f"D = {self.D}, " if self.D else ""
        accuracy = share(self.accuracy[folds].mean())
        return f"{METHOD_NAMES[self.method]} {accuracy} ({frequencies}n = {count(self.n)})"


def _by_frequencies(
    trials: pd.DataFrame, method: str, measure: str, n: int | None = None
) -> pd.DataFrame:
    """Return a measure at n rows (None: the most): a row for each fold, a column for each D.

    A D that lacks a fold is left out.
    """
    values = values_of(trials, method, measure)
    if values.empty:
        return pd.DataFrame()
    rows = values.index.get_level_values("n").max() if n is None else n
    table = values.xs(rows, level="n").droplevel("regime").unstack("D")
    return table.dropna(axis="columns")


def _best_setting(trials: pd.DataFrame, method: str, n: int | None = None) -> _Setting | None:
    """Return a method with the D of its highest mean accuracy, at n rows (None: the most)."""
    by_frequencies = _by_frequencies(trials, method, "accuracy", n)
    if by_frequencies.empty:
        return None
    rows = int(trials.loc[trials["method"] == method, "n"].max()) if n is None else n
    D = int(by_frequencies.mean().idxmax())
    return _Setting(method, rows, D, by_frequencies[D])


def _best_exact(trials: pd.DataFrame, n: int | None = None) -> _Setting | None:
    """Return GPC with n rows (None: the n of its highest mean accuracy)."""
    values = values_of(trials, "gpc", "accuracy")
    if values.empty:
        return None
    rows = int(values.groupby("n").mean().idxmax()) if n is None else n
    return _Setting("gpc", rows, 0, values.xs(rows, level="n").droplevel(["regime", "D"]))


def _side_by_side(trials: pd.DataFrame, method: str) -> tuple[_Setting | None, _Setting | None]:
    """Return the best of a method and of GPC, at the most rows tried with both if they suffice."""
    values = (values_of(trials, name, "accuracy") for name in (method, "gpc"))
    both = set.intersection(*(set(known.index.unique("n")) for known in values))
    n = max((n for n in both if n >= ENOUGH), default=None)
    return _best_setting(trials, method, n), _best_exact(trials, n)


def _accuracies(ours: _Setting, theirs: _Setting) -> str:
    """Return both settings with their accuracies on the folds that both were tried on."""
    folds = ours.accuracy.index.intersection(theirs.accuracy.index)
    return f"{ours.text(folds)}, {theirs.text(folds)}"


def _too_few_rows(n: int) -> str:
    return f"VFF-GPC had {count(n)} rows, fewer than {count(ENOUGH)}."


def _folds(number: int) -> str:
    return runs_text([number], "fold")


CLAIMS = (
    Claim(
        "vff-over-gpc",
        SOUNDER,
        "VFF-GPC is more accurate than GPC, by over 3 percentage points.",
        vff_over_gpc,
    ),
    Claim(
        "best-near-five",
        SOUNDER,
        "VFF-GPC is at its best with about five frequencies.",
        best_near_five,
    ),
    Claim(
        "over-fits",
        SOUNDER,
        "With more frequencies VFF-GPC over-fits: it is right on nearly all training spectra, and "
        "less often on others.",
        over_fits,
    ),
    Claim(
        "rff-below-gpc",
        SOUNDER,
        "With many features, RFF-GPC stays less accurate than GPC.",
        rff_below_gpc,
    ),
    Claim(
        "times-lower",
        SOUNDER,
        "VFF-GPC takes about a hundredth of GPC's time to train, and a thousandth to test.",
        times_lower,
    ),
)
"""In the order in which they are reported."""
