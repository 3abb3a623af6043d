"""Every scale asks for something that can be run, and the largest for the paper's grid."""

import pytest

from undulatus.products.reproduction.runs import list_trials
from undulatus.products.reproduction.scales import IAVISA, LANDMARKS, REGIMES, SCALES, Grid

PARTS = {name: {"rows": 300_000, "d": 6 if name == "night" else 16} for name in REGIMES}
FOLDS = {"spectra": {"rows": 19_938, "d": 100}}


def asked(trials, *names):
    return {tuple(getattr(trial, name) for name in names) for trial in trials}


@pytest.mark.parametrize("scale", SCALES)
def test_every_scale_has_every_method_and_regime(scale):
    trials = list_trials("landmarks", LANDMARKS[scale], PARTS, 0)
    assert asked(trials, "regime", "method") == {
        (regime, method) for regime in REGIMES for method in ("rff", "vff", "gpc")
    }
    folds = list_trials("iavisa", IAVISA[scale], FOLDS, 0)
    assert asked(folds, "method") == {("rff",), ("vff",), ("gpc",)}
    assert {trial.run for trial in trials} <= set(range(LANDMARKS[scale].runs))
    assert {trial.run for trial in folds} <= set(range(IAVISA[scale].runs))


def test_the_paper_s_landmark_grid_is_asked_for_whole_with_both_solvers():
    trials = list_trials("landmarks", LANDMARKS["paper"], PARTS, 0)
    fourier = [trial for trial in trials if trial.method != "gpc"]
    sizes, waves = (10_000, 50_000, 100_000, 300_000), (10, 25, 50, 100, 150, 200)
    assert len(fourier) == 2 * 2 * len(sizes) * len(waves) * 4 * 5
    assert asked(fourier, "n", "frequencies") == {(n, D) for n in sizes for D in waves}
    assert asked(trials, "n") >= {(5_000,), (15_000,)}
    assert len(trials) - len(fourier) == 3 * 4 * 5


def test_the_paper_s_sounder_grid_is_asked_for_whole_with_both_solvers():
    trials = list_trials("iavisa", IAVISA["paper"], FOLDS, 0)
    assert len([trial for trial in trials if trial.method == "vff"]) == 2 * 18 * 5
    exact = [trial for trial in trials if trial.method == "gpc"]
    assert asked(exact, "n", "whole") == {
        *((n, False) for n in (1_000, 5_000, 10_000, 15_000)),
        (19_938, True),
    }


def test_trials_of_more_rows_than_there_are_are_left_out():
    parts = {name: facts | {"rows": 60_000} for name, facts in PARTS.items()}
    trials = list_trials("landmarks", LANDMARKS["paper"], parts, 0)
    assert max(trial.n for trial in trials) == 50_000


def test_a_grid_that_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="exact"):
        Grid(("gpc",), "exact", (1000,), (10,))
    with pytest.raises(ValueError, match="batch"):
        Grid(("gpc",), "batch", (1000,))
