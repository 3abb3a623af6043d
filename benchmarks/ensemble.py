"""An ensemble against one model of D √M: rates of prediction, and the time of a fit.

python -m benchmarks.ensemble [--fits]

Random problem with 13 features, single precision. Predictors are RFF-GPC, since their rates do not
depend on how frequencies were found; calls of ensemble and single model alternate, and the
fastest of each counts. With ``--fits`` VFF-GPC is fitted to 30,000 rows with either. Prints a
table, with rates in millions of rows a second; a ratio below 1 means that the ensemble is slower.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from undulatus import RFFGPC, VFFGPC

Array = np.ndarray[Any, Any]

ENSEMBLES = ((5, 50), (4, 100), (5, 20))
"""Number of estimators, and frequencies of each."""

FEATURES, ROWS, TRAINING_ROWS = 13, 200_000, 30_000
REPEATS = 9


def draw(n: int, seed: int) -> tuple[Array, Array]:
    """Return rows of a random problem and their classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, FEATURES)).astype(np.float32)
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] + rng.normal(size=n) > 0.0


def alternate(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the seconds that each function takes at best, called in turn."""
    best = dict.fromkeys(functions, np.inf)
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            best[name] = min(best[name], time.perf_counter() - began)
    return best


def compare_rates(n_estimators: int, frequencies: int, threads: int) -> None:
    """Print the rates of probabilities and labels."""
    X, y = draw(3_000, 0)
    rows, _ = draw(ROWS, 1)
    models = {
        name: RFFGPC(d, n_estimators=m, precision="single", n_jobs=threads, random_state=0).fit(
            X, y
        )
        for name, m, d in sizes(n_estimators, frequencies)
    }
    for method in ("predict_proba", "predict"):
        calls = {n: partial(getattr(model, method), rows) for n, model in models.items()}
        print_line(
            n_estimators, frequencies, threads, method, alternate(calls, REPEATS), ROWS / 1e6
        )


def compare_fits(n_estimators: int, frequencies: int) -> None:
    """Print how many fits a second, which is less than one."""
    X, y = draw(TRAINING_ROWS, 0)
    models = {
        name: VFFGPC(d, n_estimators=m, precision="single", random_state=0)
        for name, m, d in sizes(n_estimators, frequencies)
    }
    calls = {name: partial(model.fit, X, y) for name, model in models.items()}
    print_line(n_estimators, frequencies, 0, "fit", alternate(calls, 1), 1.0)


def sizes(n_estimators: int, frequencies: int) -> tuple[tuple[str, int, int], ...]:
    """Return a name, M and D of the ensemble and of the single model."""
    single = round(frequencies * n_estimators**0.5)
    return ("ensemble", n_estimators, frequencies), ("single", 1, single)


def print_line(
    n_estimators: int,
    frequencies: int,
    threads: int,
    what: str,
    seconds: dict[str, float],
    size: float,
) -> None:
    """Print both rates and their ratio."""
    ensemble, single = (size / seconds[name] for name in ("ensemble", "single"))
    print(
        f"{n_estimators} x {frequencies:<4} {sizes(n_estimators, frequencies)[1][2]:6} "
        f"{threads or 'all':>7}  {what:13} {ensemble:9.3f} {single:7.3f} "
        f"{ensemble / single:6.2f}"
    )


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print("ensemble  single threads                ensemble  single  ratio")
    for n_estimators, frequencies in ENSEMBLES:
        for threads in (1, 2):
            compare_rates(n_estimators, frequencies, threads)
        if "--fits" in sys.argv[1:]:
            compare_fits(n_estimators, frequencies)


if __name__ == "__main__":
    main()
