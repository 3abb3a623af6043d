"""What the paper says of clouds in spectra (IAVISA), and how trials are held against it.

Folds are to spectra what runs are to landmarks. RFF-GPC and VFF-GPC are judged at the most rows
they were tried with, and beside GPC at the most that both were; where a claim is about the best D,
at the one with the highest mean accuracy on the folds, as in the paper.
"""

from __future__ import annotations

import pandas as pd

from undulatus.paper.trials import NAMES
from undulatus.paper.verdicts import (
    Claim,
    Estimate,
    Part,
    Reckoned,
    Verdict,
    all_of,
    count,
    digits,
    estimate,
    points,
    reckon,
    repeats,
    share,
    source,
    untested,
    values_of,
)

AHEAD = 0.03
"""Share of spectra by which VFF-GPC leads."""

NEAR_FIVE = (3, 10)
"""D that is about five: within a factor of two."""

FEW, MANY = 2, 25
"""For a best D to be seen, one no larger and one no smaller than these must have been tried."""

LEARNED = 0.99
"""Share of training spectra that is about all."""

LARGE = 100
"""D from which over-fitting is to be seen, and RFF-GPC at its best."""

ENOUGH = 5_000
"""Rows from which what the paper found on 20,000 can be looked for: fewer bear fewer waves."""

WHOLE = 20_000
"""The paper's rows in a fold's training part."""

ENOUGH_EXACT = 10_000
"""Rows of GPC that the paper's RFF-GPC does not come up to."""

TRAIN_RATIO, TEST_RATIO = 100.0, 1000.0

AROUND = 10**0.5
"""A ratio is around another if it is not less by more than half a power of ten."""


def vff_over_gpc(trials: pd.DataFrame) -> Verdict:
    """Hold if the best VFF-GPC is clearly ahead of GPC on as many rows, by over 3 points.

    Where no number of rows was tried with both, and GPC had fewer, a lead proves nothing, but its
    lack does. On fewer than 5,000 rows nothing is said.
    """
    vff, gpc = _side_by_side(trials, "vff")
    if vff is None or gpc is None:
        return untested("VFF-GPC and GPC were not both tried.")
    gain = estimate(vff.accuracy - gpc.accuracy)
    if gain is None:
        return untested("VFF-GPC and GPC were not tried on the same folds.")
    part = Part(gain.above() and gain.mean > AHEAD, f"{_against(vff, gpc)}: {points(gain)} points")
    if vff.n < ENOUGH:
        return untested(_too_few(vff.n), [part], _folds(gain))
    if part.good and gpc.n < vff.n:
        why = f"GPC had {count(gpc.n)} rows, fewer than the {count(vff.n)} of VFF-GPC."
        return untested(why, [part], _folds(gain))
    return all_of([part], _folds(gain))


def best_near_five(trials: pd.DataFrame) -> Verdict:
    """Hold if the D of the highest mean accuracy of VFF-GPC is within a factor of two of five.

    On fewer than 5,000 rows nothing is said.
    """
    by_waves = _by_waves(trials, "vff", "accuracy")
    waves = list(by_waves.columns)
    low, high = NEAR_FIVE
    near = [D for D in waves if low <= D <= high]
    if not near or min(waves) > FEW or max(waves) < MANY:
        return untested(
            f"VFF-GPC was not tried with D of at most {FEW}, {low} to {high}, and at least {MANY}."
        )
    best, nearest = by_waves.mean().idxmax(), by_waves[near].mean().idxmax()
    text = f"best at D = {best}, {share(by_waves[best].mean())}"
    if best != nearest:
        text += f"; {share(by_waves[nearest].mean())} at D = {nearest}"
    ends = f"{share(by_waves[waves[0]].mean())} at D = {waves[0]} and "
    ends += f"{share(by_waves[waves[-1]].mean())} at D = {waves[-1]}"
    part, folds = Part(best in near, f"{text}; {ends}"), _folds(len(by_waves))
    n = int(trials.loc[trials["method"] == "vff", "n"].max())
    return untested(_too_few(n), [part], folds) if n < ENOUGH else all_of([part], folds)


def over_fits(trials: pd.DataFrame) -> Verdict:
    """Hold if from its best D to the largest VFF-GPC learns its rows, and is clearly worse.

    It has learned them if it is right in 99 % of them. Where it has not, or is not worse, with
    fewer waves than 100, nothing is said.
    """
    learned, test = (_by_waves(trials, "vff", name) for name in ("train_accuracy", "accuracy"))
    both = learned.columns.intersection(test.columns)
    if len(both) < 2:
        return untested("VFF-GPC's training accuracy is not known at two values of D.")
    best, most = test[both].mean().idxmax(), max(both)
    loss = estimate(test[best] - test[most])
    grown = learned[most].mean() - learned[min(both)].mean()
    assert loss is not None
    good = loss.above() and learned[most].mean() >= LEARNED and grown > 0.0
    text = f"from D = {best} to {most}, accuracy on training rows goes from "
    text += f"{share(learned[best].mean())} to {share(learned[most].mean())}, on others from "
    text += f"{share(test[best].mean())} to {share(test[most].mean())}: {points(loss)} points lost"
    if not good and most < LARGE:
        return untested(f"D ends at {most}, below {LARGE}.", [Part(good, text)], _folds(loss))
    return all_of([Part(good, text)], _folds(loss))


def rff_below_gpc(trials: pd.DataFrame) -> Verdict:
    """Hold if the best RFF-GPC is clearly less accurate than GPC on as many rows.

    Where GPC had fewer rows, and than 10,000, and is not ahead, nothing is said; nor where it is
    ahead of fewer waves than 100, with which RFF-GPC is bound to be behind.
    """
    rff, gpc = _side_by_side(trials, "rff")
    if rff is None or gpc is None:
        return untested("RFF-GPC and GPC were not both tried.")
    lead = estimate(gpc.accuracy - rff.accuracy)
    if lead is None:
        return untested("RFF-GPC and GPC were not tried on the same folds.")
    text = f"{_against(rff, gpc)}: GPC {points(lead)} points ahead"
    if not lead.above() and gpc.n < min(rff.n, ENOUGH_EXACT):
        why = f"GPC had {count(gpc.n)} rows, fewer than the {count(rff.n)} of RFF-GPC."
        return untested(why, [Part(False, text)], _folds(lead))
    most = _by_waves(trials, "rff", "accuracy", rff.n).columns.max()
    if lead.above() and most < LARGE:
        why = f"RFF-GPC was tried with D of at most {most}, below {LARGE}."
        return untested(why, [Part(True, text)], _folds(lead))
    return all_of([Part(lead.above(), text)], _folds(lead))


def times_lower(trials: pd.DataFrame) -> Verdict:
    """Hold if GPC takes about 100 times as long to train as the best VFF-GPC, and 1000 to test.

    About is at least a third of it (half a power of ten), on 20,000 rows. With fewer rows, GPC's
    times are followed there from two sizes, VFF-GPC's training time grows in proportion to the
    rows, its test time not at all; they are marked as extrapolated.
    """
    vff, gpc = _best(trials, "vff"), _exact(trials)
    if vff is None or gpc is None:
        return untested("VFF-GPC and GPC were not both tried.")
    exact = trials[trials["method"] == "gpc"].groupby("n")[["fit_cpu_seconds", "row_seconds"]]
    goal = vff.n if vff.n >= 0.9 * WHOLE else WHOLE
    fit, test = (
        reckon({int(n): float(v) for n, v in exact.mean()[name].dropna().items()}, goal, low, high)
        for name, low, high in (("fit_cpu_seconds", 0.0, 3.0), ("row_seconds", 1.0, 2.0))
    )
    ours = trials[(trials["method"] == "vff") & (trials["n"] == vff.n) & (trials["D"] == vff.D)]
    learning, testing = (ours[name].mean() for name in ("fit_cpu_seconds", "row_seconds"))
    if fit is None or test is None or not (learning > 0.0 and testing > 0.0):
        return untested(f"Times at n = {count(goal)} were neither measured nor can be told.")
    parts = [
        _ratio("train", fit, learning * goal / vff.n, TRAIN_RATIO, vff),
        _ratio("test", test, testing, TEST_RATIO, vff),
    ]
    return all_of(parts, "CPU time, mean over folds")


def _ratio(act: str, exact: Reckoned, ours: float, claimed: float, vff: _Best) -> Part:
    ratio = exact.seconds / ours
    text = f"to {act}, GPC ({source(exact)}) takes {digits(ratio)} times as long as "
    text += f"{NAMES['vff']} (D = {vff.D}, n = {count(vff.n)}"
    scaled = act == "train" and exact.n != vff.n
    text += ", extrapolated in proportion)" if scaled else ")"
    return Part(ratio * AROUND >= claimed, text)


class _Best:
    """The setting of a method with the highest mean accuracy, and its accuracies by run."""

    def __init__(self, method: str, n: int, D: int, accuracy: pd.Series) -> None:
        self.method, self.n, self.D, self.accuracy = method, n, D, accuracy

    def told(self, folds: pd.Index) -> str:
        """Return the setting and its accuracy on some folds."""
        waves = f"D = {self.D}, " if self.D else ""
        accuracy = share(self.accuracy[folds].mean())
        return f"{NAMES[self.method]} {accuracy} ({waves}n = {count(self.n)})"


def _by_waves(
    trials: pd.DataFrame, method: str, measure: str, n: int | None = None
) -> pd.DataFrame:
    """Return a measure at n, or the most, rows: a row a run, a column for each D, complete."""
    values = values_of(trials, method, measure)
    if values.empty:
        return pd.DataFrame()
    rows = values.index.get_level_values("n").max() if n is None else n
    table = values.xs(rows, level="n").droplevel("regime").unstack("D")
    return table.dropna(axis="columns")


def _best(trials: pd.DataFrame, method: str, n: int | None = None) -> _Best | None:
    by_waves = _by_waves(trials, method, "accuracy", n)
    if by_waves.empty:
        return None
    rows = int(trials.loc[trials["method"] == method, "n"].max()) if n is None else n
    D = int(by_waves.mean().idxmax())
    return _Best(method, rows, D, by_waves[D])


def _exact(trials: pd.DataFrame, n: int | None = None) -> _Best | None:
    values = values_of(trials, "gpc", "accuracy")
    if values.empty:
        return None
    rows = int(values.groupby("n").mean().idxmax()) if n is None else n
    return _Best("gpc", rows, 0, values.xs(rows, level="n").droplevel(["regime", "D"]))


def _side_by_side(trials: pd.DataFrame, method: str) -> tuple[_Best | None, _Best | None]:
    """Return the best of a method and of GPC, at the most rows tried with both if they suffice."""
    values = (values_of(trials, name, "accuracy") for name in (method, "gpc"))
    both = set.intersection(*(set(known.index.unique("n")) for known in values))
    n = max((n for n in both if n >= ENOUGH), default=None)
    return _best(trials, method, n), _exact(trials, n)


def _against(ours: _Best, theirs: _Best) -> str:
    """Return both in words, with their accuracies on the folds that both were tried on."""
    folds = ours.accuracy.index.intersection(theirs.accuracy.index)
    return f"{ours.told(folds)}, {theirs.told(folds)}"


def _too_few(n: int) -> str:
    return f"VFF-GPC had {count(n)} rows, fewer than {count(ENOUGH)}."


def _folds(known: Estimate | int) -> str:
    return repeats([known if isinstance(known, int) else known.runs], "fold")


CLAIMS = (
    Claim(
        "vff-over-gpc",
        "iavisa",
        "VFF-GPC is more accurate than GPC, by over 3 percentage points.",
        vff_over_gpc,
    ),
    Claim(
        "best-near-five", "iavisa", "VFF-GPC is at its best with about five waves.", best_near_five
    ),
    Claim(
        "over-fits",
        "iavisa",
        "With more waves VFF-GPC over-fits: it learns nearly all its training spectra, and is "
        "less often right on others.",
        over_fits,
    ),
    Claim(
        "rff-below-gpc",
        "iavisa",
        "With many features, RFF-GPC does not come up to GPC.",
        rff_below_gpc,
    ),
    Claim(
        "times-lower",
        "iavisa",
        "VFF-GPC takes about a hundredth of GPC's time to train, and a thousandth to test.",
        times_lower,
    ),
)
