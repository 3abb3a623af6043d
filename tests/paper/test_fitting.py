"""One trial: what is fitted, what is scored, and what is recorded if it fails."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.paper import fitting
from undulatus.paper.fitting import attempt, run_trial
from undulatus.paper.problems import open_problem

MEASURED = {
    *("accuracy", "train_accuracy", "nll", "ece", "auc", "truth_accuracy", "label_accuracy"),
    *("coast_accuracy", "coast_label_accuracy", "fit_seconds", "fit_cpu_seconds"),
    *("predict_seconds", "predict_cpu_seconds", "test_rows", "n_iter", "stopped", "peak_mb"),
}


@pytest.fixture
def fits(monkeypatch):
    """The arguments of every fit."""
    seen = []
    make = fitting.make_classifier

    def spy(*arguments, **options):
        classifier = make(*arguments, **options)
        fit = classifier.fit

        def record(X, y, **extra):
            seen.append({"X": X, "y": y, "extra": extra, "options": classifier.get_params()})
            return fit(X, y, **extra)

        classifier.fit = record
        return classifier

    monkeypatch.setattr(fitting, "make_classifier", spy)
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "rff", "n": 1000},
        {"method": "vff", "n": 1000, "solver": "batch"},
        {"method": "gpc", "n": 200},
    ],
    ids=lambda settings: settings["method"],
)
def test_every_method_is_scored_and_timed(settings, data, trial):
    record = attempt(trial(**settings), data)
    assert record["status"] == "done", record
    assert set(record) == MEASURED | {"status"}
    assert record["accuracy"] > 0.7
    assert record["truth_accuracy"] > record["accuracy"]
    assert record["label_accuracy"] == pytest.approx(0.9, abs=0.04)
    assert record["test_rows"] == 500


def test_a_larger_n_contains_the_smaller_and_a_larger_d_its_frequencies(data, trial, fits):
    problem = open_problem(data, "high", 0)
    for size, count in ((100, 3), (200, 3), (200, 7)):
        run_trial(trial(n=size, frequencies=count), problem)
    assert_array_equal(fits[0]["X"], fits[1]["X"][:100])
    assert_array_equal(
        fits[1]["options"]["init_frequencies"], fits[2]["options"]["init_frequencies"][:3]
    )
    assert len(fits[2]["options"]["init_frequencies"]) == 7


def test_runs_differ_in_training_rows_and_frequencies_but_not_in_test_rows(data, trial):
    one, two = open_problem(data, "high", 0), open_problem(data, "high", 1)
    assert (one.training[:100] != two.training[:100]).any()
    assert (one.frequencies != two.frequencies).any()
    assert_array_equal(one.test, two.test)


@pytest.mark.parametrize("method", ["vff", "rff", "gpc"])
def test_trials_hand_out_the_papers_posterior(method, data, trial, fits):
    run_trial(trial(method, n=50), open_problem(data, "high", 0))
    assert fits[0]["options"]["posterior"] == "bound"


def test_fourier_classifiers_hold_back_whole_groups_and_use_one_thread(data, trial, fits):
    problem = open_problem(data, "high", 0)
    run_trial(trial("vff", n=100), problem)
    run_trial(trial("gpc", n=50), problem)
    assert_array_equal(fits[0]["extra"]["groups"], problem.training[:100] // 50)
    assert fits[0]["options"]["n_jobs"] == 1
    assert fits[1]["extra"] == {}
    assert fits[0]["options"]["prior_correction"] == [0.6, 0.4]


def test_training_accuracy_is_weighted_by_the_natural_share_of_cloud():
    class Cloudy:
        def predict(self, X):
            return np.ones(len(X))

    y = np.array([0, 0, 1, 1])
    assert fitting._train_accuracy(Cloudy(), np.zeros((4, 1)), y, 0.3) == pytest.approx(0.3)
    assert fitting._train_accuracy(Cloudy(), np.zeros((4, 1)), y, None) == pytest.approx(0.5)


def test_the_same_trial_gives_the_same_scores(data, trial):
    one, two = (attempt(trial("vff", n=200), data) for _ in range(2))
    assert one["nll"] == two["nll"]


def test_an_error_becomes_a_failed_record_with_its_message(data, trial):
    record = attempt(trial(regime="nowhere"), data)
    assert record["status"] == "failed"
    assert "FileNotFoundError" in record["reason"]
    assert "nowhere" in record["reason"]


def test_too_little_memory_counts_as_over_budget_and_not_as_a_failure(data, trial, monkeypatch):
    monkeypatch.setattr("undulatus.gp.exact.available_memory", lambda: 1e3)
    record = attempt(trial("gpc", n=100), data)
    assert record["status"] == "over memory budget"
    assert "100 training rows" in record["reason"]
