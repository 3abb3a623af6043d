"""One trial: fit a classifier, time it, measure its memory, and score it."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from undulatus._system import peak_memory, reset_peak_memory
from undulatus.estimators import make_classifier
from undulatus.paper.problems import Problem, open_problem
from undulatus.paper.trials import DONE, FAILED, OVER_MEMORY, Record, Trial
from undulatus.products.scores import score

Array = npt.NDArray[Any]


def attempt(trial: Trial, data: Path) -> Record:
    """Run a trial and return the rest of its record; an error becomes a status and a reason."""
    try:
        return run_trial(trial, open_problem(data, trial.part, trial.run))
    except MemoryError as error:
        return {"status": OVER_MEMORY, "reason": " ".join(str(error).split()) or "no memory left"}
    except Exception as error:  # Any error: a trial that fails must not end the others.
        return {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}


def run_trial(trial: Trial, problem: Problem) -> Record:
    """Fit, time and score one classifier."""
    X_test, y_test = problem.features[problem.test], problem.labels[problem.test]
    fit = fit_trial(trial, problem)
    classifier = fit.classifier
    stopwatch = Stopwatch()
    probability = classifier.predict_proba(X_test)[:, 1]
    predict_seconds, predict_cpu_seconds = stopwatch.read()
    scores = score(y_test == 1, probability).as_dict()
    return {
        "status": DONE,
        **{name: _none_if_nan(scores[name]) for name in ("accuracy", "nll", "ece", "auc")},
        "train_accuracy": _train_accuracy(
            classifier, *_training_rows(trial, problem), problem.cloud_share
        ),
        **_score_against_truth(problem, probability > 0.5, y_test == 1),
        "fit_seconds": fit.seconds,
        "fit_cpu_seconds": fit.cpu_seconds,
        "predict_seconds": predict_seconds,
        "predict_cpu_seconds": predict_cpu_seconds,
        "test_rows": len(y_test),
        "n_iter": int(classifier.n_iter_),
        "stopped": str(classifier.fit_report_["stopped"]),
        "peak_mb": fit.peak_mb,
    }


@dataclass(frozen=True)
class TimedFit:
    """A fitted classifier, the time it took, and its peak of memory above that held before."""

    classifier: Any
    seconds: float
    cpu_seconds: float
    peak_mb: float | None


def fit_trial(trial: Trial, problem: Problem) -> TimedFit:
    """Fit the classifier of a trial."""
    X, y = _training_rows(trial, problem)
    classifier = _make_classifier(trial, problem)
    groups: dict[str, Any] = {}
    if problem.groups is not None and trial.method != "gpc":
        groups["groups"] = problem.groups[problem.training[: trial.n]]
    before = reset_peak_memory()
    stopwatch = Stopwatch()
    with warnings.catch_warnings():
        # The record says how the fit ended.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(X, y, **groups)
    seconds, cpu_seconds = stopwatch.read()
    peak_mb = None if before is None else max(peak_memory() - before, 0.0) / 2**20
    return TimedFit(classifier, seconds, cpu_seconds, peak_mb)


def _training_rows(trial: Trial, problem: Problem) -> tuple[Array, Array]:
    rows = problem.training[: trial.n]
    return np.asarray(problem.features[rows]), np.asarray(problem.labels[rows])


def _make_classifier(trial: Trial, problem: Problem) -> Any:
    # The paper's model: its claims are about one set of frequencies, without a taper.
    options: dict[str, Any] = {"posterior": "bound", "warp": False}
    if problem.cloud_share is not None:
        options["prior_correction"] = [1.0 - problem.cloud_share, problem.cloud_share]
    if trial.method == "gpc":
        return make_classifier("gpc", 0, seed=trial.seed).set_params(**options)
    count = int(trial.frequencies or 0)
    options |= {"n_estimators": 1, "taper": 0.0}
    options |= {"solver": trial.solver, "n_jobs": 1}
    options["init_frequencies"] = problem.frequencies[:count]
    # One precision for all sizes, because their times are compared.
    options["precision"] = "double" if trial.solver == "batch" else "single"
    # Runs also differ in their minibatches and in their validation rows.
    classifier = make_classifier(trial.method, count, seed=trial.seed + trial.run)
    return classifier.set_params(**options)


def _train_accuracy(classifier: Any, X: Array, y: Array, cloud_share: float | None) -> float:
    """Return the accuracy on training rows; balanced rows are weighted by the real cloud share."""
    right = classifier.predict(X) == y
    if cloud_share is None:
        return float(np.mean(right))
    return float(
        cloud_share * np.mean(right[y == 1]) + (1.0 - cloud_share) * np.mean(right[y == 0])
    )


def _score_against_truth(problem: Problem, predicted: Array, labelled: Array) -> Record:
    """Return how often the model and its labels are right, where the truth is known."""
    if problem.truth is None:
        return {}
    true = np.asarray(problem.truth[problem.test]) == 1
    accuracies = {
        "truth_accuracy": float(np.mean(predicted == true)),
        "label_accuracy": float(np.mean(labelled == true)),
    }
    coast = None if problem.coast is None else np.asarray(problem.coast[problem.test], bool)
    if coast is not None and coast.any():
        accuracies["coast_accuracy"] = float(np.mean(predicted[coast] == true[coast]))
        accuracies["coast_label_accuracy"] = float(np.mean(labelled[coast] == true[coast]))
    return accuracies


def _none_if_nan(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


class Stopwatch:
    """Wall and CPU time since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return wall and CPU seconds."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu
