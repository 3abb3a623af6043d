"""A process that runs trials one after the other: JSON lines in, JSON lines out.

    python -m undulatus.paper.worker OUT/data

It holds every library to one thread, so that CPU times compare, and ends at once when whoever
started it does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning

from undulatus._system import peak_memory, reset_peak_memory
from undulatus.estimators import METHODS, make_classifier
from undulatus.paper.problems import Problem, open_problem
from undulatus.paper.trials import DONE, FAILED, OVER_MEMORY, Trial
from undulatus.products.scores import score

Array = npt.NDArray[Any]


def attempt(trial: Trial, data: Path) -> dict[str, Any]:
    """Run a trial and return what is to be recorded of it, also if it fails."""
    try:
        return run_trial(trial, open_problem(data, trial.part, trial.run))
    except MemoryError as error:
        return {"status": OVER_MEMORY, "reason": " ".join(str(error).split()) or "no memory left"}
    except Exception as error:  # Anything: one trial that fails must not end the others.
        return {"status": FAILED, "reason": f"{type(error).__name__}: {error}"}


def run_trial(trial: Trial, problem: Problem) -> dict[str, Any]:
    """Fit, time and score one classifier."""
    X_test, y_test = problem.features[problem.test], problem.labels[problem.test]
    fit = fit_trial(trial, problem)
    classifier = fit.classifier
    predict = Clock()
    probability = classifier.predict_proba(X_test)[:, 1]
    predict_times = predict.read()
    scores = score(y_test == 1, probability).as_dict()
    return {
        "status": DONE,
        **{name: _plain(scores[name]) for name in ("accuracy", "nll", "ece", "auc")},
        "train_accuracy": _train_accuracy(classifier, *_rows(trial, problem), problem.cloud_share),
        **_against_truth(problem, probability > 0.5, y_test == 1),
        "fit_seconds": fit.seconds,
        "fit_cpu_seconds": fit.cpu_seconds,
        "predict_seconds": predict_times[0],
        "predict_cpu_seconds": predict_times[1],
        "test_rows": len(y_test),
        "n_iter": int(classifier.n_iter_),
        "stopped": str(classifier.fit_report_["stopped"]),
        "peak_mb": fit.peak_mb,
    }


@dataclass(frozen=True)
class Fit:
    """A fitted classifier, and what fitting it took; the peak is above what was held before."""

    classifier: Any
    seconds: float
    cpu_seconds: float
    peak_mb: float | None


def fit_trial(trial: Trial, problem: Problem) -> Fit:
    """Fit the classifier of a trial."""
    X, y = _rows(trial, problem)
    classifier = _classifier(trial, problem)
    extra: dict[str, Any] = {}
    if problem.groups is not None and trial.method != "gpc":
        extra["groups"] = problem.groups[problem.training[: trial.n]]
    before = reset_peak_memory()
    clock = Clock()
    with warnings.catch_warnings():
        # How it ended is in the record.
        warnings.simplefilter("ignore", ConvergenceWarning)
        classifier.fit(X, y, **extra)
    wall, cpu = clock.read()
    peak = None if before is None else max(peak_memory() - before, 0.0) / 2**20
    return Fit(classifier, wall, cpu, peak)


def _rows(trial: Trial, problem: Problem) -> tuple[Array, Array]:
    """Return what a trial learns from."""
    rows = problem.training[: trial.n]
    return np.asarray(problem.features[rows]), np.asarray(problem.labels[rows])


def _classifier(trial: Trial, problem: Problem) -> Any:
    how: dict[str, Any] = {}
    if problem.cloud_share is not None:
        how["prior_correction"] = [1.0 - problem.cloud_share, problem.cloud_share]
    if trial.method == "gpc":
        return make_classifier("gpc", 0, seed=trial.seed, **how)
    count = int(trial.frequencies or 0)
    how |= {"solver": trial.solver, "n_jobs": 1, "frequencies": problem.frequencies[:count]}
    # One precision for all sizes: times are compared between them.
    how["precision"] = "double" if trial.solver == "batch" else "single"
    # Runs differ in what else is drawn too: minibatches, and what is held back.
    return make_classifier(trial.method, count, seed=trial.seed + trial.run, **how)


def _train_accuracy(classifier: Any, X: Array, y: Array, cloud_share: float | None) -> float:
    """Return the accuracy on training rows; of balanced ones, under the real share of cloud."""
    right = classifier.predict(X) == y
    if cloud_share is None:
        return float(np.mean(right))
    return float(
        cloud_share * np.mean(right[y == 1]) + (1.0 - cloud_share) * np.mean(right[y == 0])
    )


def _against_truth(problem: Problem, called: Array, labelled: Array) -> dict[str, float]:
    """Return how often the model and its label are right, where the truth is known."""
    if problem.truth is None:
        return {}
    true = np.asarray(problem.truth[problem.test]) == 1
    found = {
        "truth_accuracy": float(np.mean(called == true)),
        "label_accuracy": float(np.mean(labelled == true)),
    }
    coast = None if problem.coast is None else np.asarray(problem.coast[problem.test], bool)
    if coast is not None and coast.any():
        found["coast_accuracy"] = float(np.mean(called[coast] == true[coast]))
        found["coast_label_accuracy"] = float(np.mean(labelled[coast] == true[coast]))
    return found


@dataclass(frozen=True)
class Clock:
    """Wall and CPU time since it was made."""

    wall: float
    cpu: float

    def __init__(self) -> None:
        object.__setattr__(self, "wall", time.perf_counter())
        object.__setattr__(self, "cpu", time.process_time())

    def read(self) -> tuple[float, float]:
        """Return wall and CPU seconds."""
        return time.perf_counter() - self.wall, time.process_time() - self.cpu


def _plain(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _warm_up() -> None:
    """Fit a few rows: imports and first calls are no part of any trial."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in METHODS:
            how: dict[str, Any] = {} if method == "gpc" else {"solver": "stochastic", "n_jobs": 1}
            classifier = make_classifier(method, 2, seed=0, max_iter=2, **how)
            classifier.fit(X, X[:, 0] > 0).predict_proba(X)


def main() -> None:
    """Run the trials that come in, until there are no more."""
    data = Path(sys.argv[1])
    # Whatever a library prints must not get between the records.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    asked: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        # Whoever asks is gone, perhaps killed in the middle of a trial: so is the trial.
        os._exit(0)

    _warm_up()
    threading.Thread(target=listen, daemon=True).start()
    answer: dict[str, Any] = {"ready": True}
    while True:
        out.write(json.dumps(answer) + "\n")
        out.flush()
        answer = attempt(Trial(**json.loads(asked.get())), data)


if __name__ == "__main__":
    main()
