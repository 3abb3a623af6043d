"""One contender on one task, in its own process. Prints a line of JSON."""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.contenders import CONTENDERS
from benchmarks.measure import Meter
from undulatus.products.scores import score


def rate(function: Any, X: np.ndarray, least_seconds: float = 1.0) -> float:
    """Return the rows a second of a prediction, the best of repeated calls."""
    best, spent = np.inf, 0.0
    while spent < least_seconds:
        began = time.perf_counter()
        function(X)
        took = time.perf_counter() - began
        best, spent = min(best, took), spent + took
    return len(X) / best


def run(task_name: str, contender: str, effort: float, most_rows: int | None) -> dict[str, Any]:
    """Fit, score and time one contender."""
    task = tasks.load(task_name, most_rows)
    # A tiny fit first, so that imports and first calls are not timed.
    few = np.r_[np.flatnonzero(task.y == 0)[:100], np.flatnonzero(task.y == 1)[:100]]
    CONTENDERS[contender](task.X[few], task.y[few], 0.01)
    with Meter() as meter:
        model = CONTENDERS[contender](task.X, task.y, effort)
    result: dict[str, Any] = {
        "task": task_name,
        "contender": contender,
        "effort": effort,
        "rows": len(task.y),
        "fit_seconds": meter.seconds,
        "fit_cpu_seconds": meter.cpu_seconds,
        "fit_peak_mb": meter.peak_bytes / 2**20,
    }
    if hasattr(model, "fit_report_"):
        result["solver"] = model.fit_report_["solver"]
        result["steps"] = model.fit_report_["steps"]
    # rfflearn's classifier has no probabilities: only its accuracy is known.
    has_probability = hasattr(model, "predict_proba")
    if has_probability:
        scores = score(task.y_test == 1, model.predict_proba(task.X_test)[:, 1]).as_dict()
    else:
        scores = {"accuracy": float(np.mean(model.predict(task.X_test) == task.y_test))}
    result.update(scores)
    if hasattr(model, "snapshots"):
        curve, final = [], model.state()
        for seconds, state in model.snapshots:
            model.restore(state)
            nll = score(task.y_test == 1, model.predict_proba(task.X_test)[:, 1]).nll
            curve.append((seconds, nll))
        result["curve"] = curve
        model.restore(final)
    if effort == 1.0:
        some = task.X_test[:: max(1, len(task.X_test) // 200_000)]
        result["labels_per_second"] = rate(model.predict, some)
        if has_probability:
            result["probabilities_per_second"] = rate(model.predict_proba, some)
        if hasattr(model, "variance_tolerance"):
            model.set_params(variance_tolerance=1e-3)
            result["probabilities_per_second_tolerant"] = rate(model.predict_proba, some)
    return result


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _, name, who, share, rows = sys.argv
    print(json.dumps(run(name, who, float(share), int(rows) or None)))
