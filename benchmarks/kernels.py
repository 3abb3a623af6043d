"""Rates of the hot loops, their growth, and the cost of a pixel. Prints JSON."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from undulatus import VFFGPC
from undulatus._system import count_threads, single_threaded_blas
from undulatus.gp.backends import make_backend
from undulatus.gp.data import Pixels, Standardisation, block_rows
from undulatus.gp.inference import Gaussian, WeightSpace
from undulatus.gp.learning import draw_sample
from undulatus.gp.likelihood import QUADRATIC
from undulatus.gp.minibatch import Config, Start, Task, optimise
from undulatus.gp.posterior import solve_posterior
from undulatus.gp.splits import leave_out


def best_seconds(function: Callable[[], object], repeats: int) -> float:
    """Return the shortest time of ``repeats`` runs."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times)


def product_rate() -> float:
    """Return the operations a second of a large float32 matrix product on all cores."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8192, 2048), dtype=np.float32)
    b = rng.standard_normal((2048, 2048), dtype=np.float32)
    out = np.empty((8192, 2048), dtype=np.float32)
    return 2 * 8192 * 2048**2 / best_seconds(lambda: np.matmul(a, b, out=out), 5)


def make_pixels(n: int, d: int, n_frequencies: int) -> Pixels:
    """Return generated pixels whose class depends on a sine and a product."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((n, d), dtype=np.float32)
    positive = np.sin(2.0 * rows[:, 0]) + rows[:, 1] * rows[:, 2] > 0
    return Pixels(
        rows,
        positive,
        None,
        Standardisation(np.zeros(d), np.ones(d)),
        make_backend(np.float32),
        block_rows(2 * n_frequencies, 4),
        count_threads(None),
    )


def pass_seconds(n: int, d: int, n_frequencies: int, repeats: int = 3) -> float:
    """Return the time of one full pass: the sites of all rows and their sums."""
    pixels = make_pixels(n, d, n_frequencies)
    frequencies = np.random.default_rng(2).standard_normal((n_frequencies, d)) / np.sqrt(d)
    k = 2 * n_frequencies
    gaussian = Gaussian(1.0, posterior=solve_posterior(np.eye(k), np.ones(k)))
    space = WeightSpace(pixels, frequencies)
    return best_seconds(lambda: space.evaluate(QUADRATIC, [0], [gaussian]), repeats)


def minibatch_seconds(n: int, d: int, n_frequencies: int, iterations: int) -> float:
    """Return the time of an optimisation on minibatches, drawing its sample included."""
    pixels = make_pixels(n, d, n_frequencies)
    unit = np.random.default_rng(2).standard_normal((n_frequencies, d))

    def run() -> None:
        with single_threaded_blas():
            sample = draw_sample(pixels, np.random.default_rng(0))
            (split,) = leave_out(sample, 1, np.random.default_rng(0))
            config = Config(2048, iterations, tol=0.0, n_total=n, early_stopping=False)
            standardised = sample.standardised(np.float32)
            task = Task(standardised, split, Start(unit, 4.0), config, seed=0)
            optimise([task], [task.first_state()], max_iter=iterations)

    return best_seconds(run, 1)


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return the slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def prediction_costs(n: int, d: int, n_frequencies: int) -> dict[str, float]:
    """Return nanoseconds a pixel for labels, probabilities, and probabilities with tolerance."""
    pixels = make_pixels(n, d, n_frequencies)
    model = VFFGPC(
        n_frequencies,
        n_estimators=1,
        solver="stochastic",
        max_iter=4,
        random_state=0,
        precision="single",
    )
    model.fit(pixels.rows[:60_000], pixels.codes[:60_000])
    costs = {
        "labels": best_seconds(lambda: model.predict(pixels.rows), 3),
        "probabilities": best_seconds(lambda: model.predict_proba(pixels.rows), 3),
    }
    model.set_params(variance_tolerance=1e-3)
    costs["tolerant probabilities"] = best_seconds(lambda: model.predict_proba(pixels.rows), 3)
    return {name: 1e9 * seconds / n for name, seconds in costs.items()}


def rff_against_sampler(n: int) -> dict[str, Any]:
    """Return fit times and test NLL of RFF-GPC and of random features with logistic regression."""
    from benchmarks import tasks
    from benchmarks.contenders import CONTENDERS
    from undulatus.products.scores import score

    task = tasks.load("covertype", n)
    results = {}
    for name in ("RFF-GPC D=200", "RBFSampler 400 + logistic"):
        began = time.perf_counter()
        model = CONTENDERS[name](task.X, task.y, 1.0)
        seconds = time.perf_counter() - began
        nll = score(task.y_test == 1, model.predict_proba(task.X_test)[:, 1]).nll
        results[name] = {"fit_seconds": seconds, "nll": nll}
    return results


def measure(quick: bool) -> dict[str, Any]:
    """Return all measurements of this module."""
    n_hot = 50_000 if quick else 300_000
    top = 10**6 if quick else 10**7
    rate = product_rate()
    k = 400
    seconds = pass_seconds(n_hot, 16, 200)
    hot = 3.0 * n_hot * k**2 / seconds
    rows = [10**5, top // 10, top] if not quick else [10**5, 3 * 10**5, top]
    by_rows = [pass_seconds(n, 16, 50, repeats=2) for n in rows]
    by_minibatches = [minibatch_seconds(n, 16, 50, 40) for n in rows]
    widths = [25, 50, 100, 200, 400]
    by_width = [pass_seconds(n_hot // 3, 16, width) for width in widths]
    return {
        "product_gflops": rate / 1e9,
        "hot_pass": {"rows": n_hot, "D": 200, "seconds": seconds, "gflops": hot / 1e9},
        "hot_pass_share": hot / rate,
        "pass_by_rows": {"rows": rows, "seconds": by_rows, "exponent": exponent(rows, by_rows)},
        "minibatches_by_rows": {
            "rows": rows,
            "seconds": by_minibatches,
            "exponent": exponent(rows, by_minibatches),
        },
        "pass_by_frequencies": {
            "D": widths,
            "seconds": by_width,
            "exponent": exponent(widths, by_width),
        },
        "nanoseconds_a_pixel": prediction_costs(n_hot, 16, 200),
        "rff_against_sampler": rff_against_sampler(n_hot),
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print(json.dumps(measure(quick="quick" in sys.argv[1:])))
