"""One trial: what is fitted, what is scored, and what is told if it fails."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.paper import worker
from undulatus.paper.problems import open_problem
from undulatus.paper.worker import attempt, run_trial

MEASURED = {
    *("accuracy", "train_accuracy", "nll", "ece", "auc", "truth_accuracy", "label_accuracy"),
    *("coast_accuracy", "coast_label_accuracy", "fit_seconds", "fit_cpu_seconds"),
    *("predict_seconds", "predict_cpu_seconds", "test_rows", "n_iter", "stopped", "peak_mb"),
}


@pytest.fixture
def fits(monkeypatch):
    """What each classifier is given to fit."""
    seen = []
    make = worker.make_classifier

    def spy(*arguments, **how):
        classifier = make(*arguments, **how)
        fit = classifier.fit

        def tell(X, y, **extra):
            seen.append({"X": X, "y": y, "extra": extra, "how": how})
            return fit(X, y, **extra)

        classifier.fit = tell
        return classifier

    monkeypatch.setattr(worker, "make_classifier", spy)
    return seen


@pytest.mark.parametrize(
    "asked",
    [
        {"method": "rff", "n": 1000},
        {"method": "vff", "n": 1000, "solver": "batch"},
        {"method": "gpc", "n": 200},
    ],
    ids=lambda asked: asked["method"],
)
def test_every_method_is_scored_and_timed(asked, data, trial):
    record = attempt(trial(**asked), data)
    assert record["status"] == "done", record
    assert set(record) == MEASURED | {"status"}
    assert record["accuracy"] > 0.7
    assert record["truth_accuracy"] > record["accuracy"]
    assert record["label_accuracy"] == pytest.approx(0.9, abs=0.04)
    assert record["test_rows"] == 500


def test_a_larger_n_contains_a_smaller_and_more_waves_the_frequencies_of_a_smaller(
    data, trial, fits
):
    problem = open_problem(data, "high", 0)
    for size, count in ((100, 3), (200, 3), (200, 7)):
        run_trial(trial(n=size, frequencies=count), problem)
    assert_array_equal(fits[0]["X"], fits[1]["X"][:100])
    assert_array_equal(fits[1]["how"]["frequencies"], fits[2]["how"]["frequencies"][:3])
    assert len(fits[2]["how"]["frequencies"]) == 7


def test_runs_differ_in_rows_and_frequencies_but_not_in_what_is_tested(data, trial):
    one, two = open_problem(data, "high", 0), open_problem(data, "high", 1)
    assert (one.training[:100] != two.training[:100]).any()
    assert (one.frequencies != two.frequencies).any()
    assert_array_equal(one.test, two.test)


def test_fourier_classifiers_hold_back_groups_and_take_one_thread(data, trial, fits):
    problem = open_problem(data, "high", 0)
    run_trial(trial("vff", n=100), problem)
    run_trial(trial("gpc", n=50), problem)
    assert_array_equal(fits[0]["extra"]["groups"], problem.training[:100] // 50)
    assert fits[0]["how"]["n_jobs"] == 1
    assert fits[1]["extra"] == {}
    assert fits[0]["how"]["prior_correction"] == [0.6, 0.4]


def test_accuracy_on_balanced_training_rows_is_under_the_real_share_of_cloud(data, trial, fits):
    class Cloudy:
        def predict(self, X):
            return np.ones(len(X))

    y = np.array([0, 0, 1, 1])
    assert worker._train_accuracy(Cloudy(), np.zeros((4, 1)), y, 0.3) == pytest.approx(0.3)
    assert worker._train_accuracy(Cloudy(), np.zeros((4, 1)), y, None) == pytest.approx(0.5)


def test_the_same_trial_gives_the_same_scores(data, trial):
    one, two = (attempt(trial("vff", n=200), data) for _ in range(2))
    assert one["nll"] == two["nll"]


def test_an_error_is_told_in_words(data, trial):
    record = attempt(trial(regime="nowhere"), data)
    assert record["status"] == "failed"
    assert "FileNotFoundError" in record["reason"]
    assert "nowhere" in record["reason"]


def test_too_little_memory_is_a_budget_not_a_failure(data, trial, monkeypatch):
    monkeypatch.setattr("undulatus.gp.exact.available_memory", lambda: 1e3)
    record = attempt(trial("gpc", n=100), data)
    assert record["status"] == "over memory budget"
    assert "100 training rows" in record["reason"]
