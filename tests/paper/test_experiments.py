"""Every scale has trials that can be run; a run is described, resumed, and kept from others."""

import json

import pytest

from undulatus._daylight import REGIMES
from undulatus.errors import InputError
from undulatus.paper import experiments
from undulatus.paper.experiments import Experiment, list_trials, reproduce
from undulatus.paper.scales import LANDMARK_SCALES, SOUNDER_SCALES, Grid, Scale
from undulatus.paper.trials import read_records
from undulatus.scenes import synthetic_landmark, synthetic_sounder

PARTS = {name: {"rows": 300_000, "d": 6 if name == "night" else 16} for name in REGIMES}

FOLDS = {"spectra": {"rows": 19_938, "d": 100}}


def settings_of(trials, *names):
    return {tuple(getattr(trial, name) for name in names) for trial in trials}


@pytest.mark.parametrize("scale", LANDMARK_SCALES)
def test_every_scale_has_every_method_and_regime(scale):
    trials = list_trials("landmarks", LANDMARK_SCALES[scale], PARTS, 0)
    assert settings_of(trials, "regime", "method") == {
        (regime, method) for regime in REGIMES for method in ("rff", "vff", "gpc")
    }
    folds = list_trials("iavisa", SOUNDER_SCALES[scale], FOLDS, 0)
    assert settings_of(folds, "method") == {("rff",), ("vff",), ("gpc",)}
    assert {trial.run for trial in trials} <= set(range(LANDMARK_SCALES[scale].runs))
    assert {trial.run for trial in folds} <= set(range(SOUNDER_SCALES[scale].runs))


def test_the_paper_scale_has_the_whole_landmark_grid_with_both_solvers():
    trials = list_trials("landmarks", LANDMARK_SCALES["paper"], PARTS, 0)
    fourier = [trial for trial in trials if trial.method != "gpc"]
    sizes, waves = (10_000, 50_000, 100_000, 300_000), (10, 25, 50, 100, 150, 200)
    assert len(fourier) == 2 * 2 * len(sizes) * len(waves) * 4 * 5
    assert settings_of(fourier, "n", "frequencies") == {(n, D) for n in sizes for D in waves}
    assert settings_of(trials, "n") >= {(5_000,), (15_000,)}
    assert len(trials) - len(fourier) == 3 * 4 * 5


def test_the_paper_scale_has_the_whole_sounder_grid_with_both_solvers():
    trials = list_trials("iavisa", SOUNDER_SCALES["paper"], FOLDS, 0)
    assert len([trial for trial in trials if trial.method == "vff"]) == 2 * 18 * 5
    exact = [trial for trial in trials if trial.method == "gpc"]
    assert settings_of(exact, "n", "whole") == {
        *((n, False) for n in (1_000, 5_000, 10_000, 15_000)),
        (19_938, True),
    }


def test_trials_that_need_more_rows_than_exist_are_left_out():
    parts = {name: facts | {"rows": 60_000} for name, facts in PARTS.items()}
    trials = list_trials("landmarks", LANDMARK_SCALES["paper"], parts, 0)
    assert max(trial.n for trial in trials) == 50_000


def test_an_inconsistent_grid_is_refused():
    with pytest.raises(ValueError, match="exact"):
        Grid(("gpc",), "exact", (1000,), (10,))
    with pytest.raises(ValueError, match="batch"):
        Grid(("gpc",), "batch", (1000,))


SCALE = Scale(
    amount=1, runs=2, test_rows=None, seconds=60.0,
    grids=(
        Grid(("rff",), "stochastic", (100, 200), (4,), 1, ("high",)),
        Grid(("rff",), "stochastic", (100,), (4,), 2, ("high",)),
    ),
)  # fmt: skip


@pytest.fixture
def prepared(monkeypatch, small_part):
    """An experiment on small data; returns the seeds with which they were prepared."""
    calls = []

    def prepare(opened, scale, seed, folder, progress):
        calls.append(seed)
        small_part(folder / "high")
        return {"parts": {"high": {"d": 3, "rows": 4000}}, "source": "drawn"}

    experiment = Experiment(
        {"quick": SCALE, "medium": SCALE}, lambda *given: None, prepare, "easy"
    )
    monkeypatch.setitem(experiments.EXPERIMENTS, "landmarks", experiment)
    return calls


@pytest.mark.parametrize("source", ["SEVIRI", "undulatus synthetic landmark, seed 3"])
def test_a_simulator_read_from_a_file_is_called_synthetic(
    tmp_path, monkeypatch, small_part, source
):
    def prepare(opened, scale, seed, folder, progress):
        small_part(folder / "high")
        return {"parts": {"high": {"d": 3, "rows": 4000}}, "source": source}

    made = Experiment({"quick": SCALE}, lambda *given: None, prepare, "easy")
    monkeypatch.setitem(experiments.EXPERIMENTS, "landmarks", made)
    reproduce("landmarks", tmp_path / "out", data=tmp_path, workers=1)
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    simulator = source != "SEVIRI"
    assert facts["data"]["synthetic"] == simulator
    assert facts["built_in"] == (["coast"] if simulator else [])
    assert facts["data"].get("difficulty") == ("easy" if simulator else None)


def test_a_run_keeps_its_records_and_facts_and_is_not_repeated(prepared, tmp_path):
    out = tmp_path / "new" / "out"
    assert reproduce("landmarks", out, workers=1) == {"done": 3}
    assert {record["id"] for record in read_records(out / "trials.jsonl")} == {
        "high-rff-stochastic-n100-D4-run0",
        "high-rff-stochastic-n100-D4-run1",
        "high-rff-stochastic-n200-D4-run0",
    }
    facts = json.loads((out / "run.json").read_text())
    assert facts["experiment"] == "landmarks"
    assert facts["built_in"] == ["coast"]
    assert facts["data"] | {"synthetic": True, "path": None, "source": "drawn"} == facts["data"]
    assert facts["grid"]["grids"][0]["sizes"] == [100, 200]
    assert facts["environment"]["cores"] >= 1
    assert facts["environment"]["blas"]
    assert facts["seconds"] > 0.0
    written = (out / "trials.jsonl").read_bytes()
    assert reproduce("landmarks", out) == {"done": 3}
    assert (out / "trials.jsonl").read_bytes() == written
    assert prepared == [0]
    again = json.loads((out / "run.json").read_text())
    assert again["started"] == facts["started"]
    assert again["seconds"] >= facts["seconds"]


def test_another_run_in_the_same_folder_is_refused_with_the_differences(prepared, tmp_path):
    def stop(progress):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reproduce("landmarks", tmp_path, progress=stop)
    assert json.loads((tmp_path / "run.json").read_text())["seconds"] > 0.0
    with pytest.raises(InputError, match=r"another run: scale quick, not medium; seed 0, not 1"):
        reproduce("landmarks", tmp_path, scale="medium", seed=1)
    with pytest.raises(InputError, match="data a simulator, not"):
        reproduce("landmarks", tmp_path, data=tmp_path)


def test_data_left_unfinished_are_prepared_again(prepared, tmp_path, monkeypatch):
    (tmp_path / ".data.unfinished" / "high").mkdir(parents=True)
    monkeypatch.setattr(experiments, "run_trials", lambda *given, **how: None)
    with pytest.raises(KeyError):  # No trial was run, so there are no records.
        reproduce("landmarks", tmp_path)
    assert not list(tmp_path.glob(".data*"))
    assert (tmp_path / "data" / "manifest.json").exists()


def test_the_sources_of_simulators_say_so():
    for simulator in (synthetic_landmark(1), synthetic_sounder(10)):
        assert simulator.attrs["source"].startswith(experiments.SIMULATOR_SOURCE)
