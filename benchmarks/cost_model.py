"""A model of the cost of fits and maps, fitted to measurements here, and applied to archives.

python -m benchmarks.cost_model

It measures seconds a row of a pass and of a prediction (one core, single precision) for
several numbers of frequencies D and features d, and fits the coefficients of

    pass, variance   = a k² + b k d + c k + e        k = 2D
    labels           =        u k d + v k + w d + z

by least squares of relative errors. Prints the measurements, the fit, its largest error, and a
table of archives.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from undulatus import RFFGPC
from undulatus._system import single_threaded_blas
from undulatus.gp.backends import make_backend
from undulatus.gp.data import Pixels, block_rows
from undulatus.gp.inference import Gaussian, WeightSpace
from undulatus.gp.likelihood import QUADRATIC

GRID = [(50, 6), (50, 16), (100, 6), (100, 16), (100, 54), (200, 16), (200, 54)]
ROWS = 100_000
TERMS = {
    "pass": ("kk", "kd", "k", "1"),
    "variance": ("kk", "kd", "k", "1"),
    "labels": ("kd", "k", "d", "1"),
}
ARCHIVES = {
    "SEVIRI, full discs of a year": {
        "rows": 35_040 * 3_712**2, "D": 200, "d": 16, "read": 7 * 2, "write": 10,
    },
    "IASI, three Metops since 2007": {
        "rows": 34 * 365 * 1_300_000, "D": 5, "d": 100, "read": 2 * 8_461, "write": 10,
    },
    "Sentinel-2, Europe once": {
        "rows": 1_100 * 10_980**2, "D": 100, "d": 13, "read": 13 * 2, "write": 10,
    },
}  # fmt: skip
"""Rows, size of the model, and bytes read and written for each row."""
WORKERS = (1, 16, 256)
PASSES = 5
"""Typical number of passes of a fit."""
GPU_ROWS = {
    ("pass", 200): 43.5e6,
    ("variance", 200): 84.3e6,
    ("pass", 100): 133.5e6,
    ("variance", 100): 232.2e6,
}
"""Rows a second of one H200, by kind of work and D, measured with the same products in torch."""
MAP_SHARE = 0.85
"""Rate of a map from disk to disk, as a share of the predictor's; from benchmarks.tile."""
SPECTRUM_SECONDS = 2 / 13_213
"""Seconds of one core to reduce and classify a spectrum; from benchmarks.sounder_day."""


def best(work: Callable[[], Any], repeats: int = 3) -> float:
    """Return the shortest time of a few runs, seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def measure(n_frequencies: int, d: int) -> dict[str, float]:
    """Return seconds a row on one core, by kind of work."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, d), dtype=np.float32)
    y = X[:, 0] + X[:, 1] * X[:, 2] > 0
    model = RFFGPC(
        n_frequencies, n_estimators=1, max_iter=2, precision="single", n_jobs=1, random_state=0
    )
    model.fit(X[:20_000], y[:20_000])
    xp, size = make_backend(np.float32), block_rows(2 * n_frequencies, 4)
    space = WeightSpace(Pixels(X, y, None, model.standardisation_, xp, size), model.frequencies_)
    gaussian = Gaussian(model.signal_variance_, posterior=model.posterior_)
    return {
        "pass": best(
            lambda: space.evaluate(QUADRATIC, [0], [gaussian])) / ROWS,
        "variance": best(lambda: model.predict_proba_and_variance(X)) / ROWS,
        "labels": best(lambda: model.predict(X)) / ROWS,
    }  # fmt: skip


def terms(n_frequencies: int, d: int) -> dict[str, float]:
    """Return the terms of the cost model."""
    k = 2.0 * n_frequencies
    return {"kk": k * k, "kd": k * d, "k": k, "d": float(d), "1": 1.0}


def fit(measured: dict[tuple[int, int], dict[str, float]]) -> dict[str, dict[str, float]]:
    """Return the coefficients of each kind of work, in seconds a row; none is negative."""
    from scipy.optimize import nnls

    coefficients = {}
    for kind, names in TERMS.items():
        seconds = np.array([row[kind] for row in measured.values()])
        rows = np.array([[terms(*place)[name] for name in names] for place in measured])
        # Errors are relative: each equation is divided by the measured time.
        solution, _ = nnls(rows / seconds[:, None], np.ones(len(seconds)))
        coefficients[kind] = dict(zip(names, solution.tolist(), strict=True))
    return coefficients


def predict(fitted: dict[str, float], n_frequencies: int, d: int) -> float:
    """Return seconds a row of a kind of work."""
    return sum(value * terms(n_frequencies, d)[name] for name, value in fitted.items())


def main() -> None:
    """Measure, fit, and print."""
    with single_threaded_blas():
        measured = {place: measure(*place) for place in GRID}
    fitted = fit(measured)
    print("| D | d | " + " | ".join(f"{kind}, µs a row" for kind in TERMS) + " |")
    print("|---|---|" + "---|" * len(TERMS))
    errors = []
    for (D, d), row in measured.items():
        cells = []
        for kind, seconds in row.items():
            modelled = predict(fitted[kind], D, d)
            errors.append(abs(modelled / seconds - 1))
            cells.append(f"{seconds * 1e6:.3f} ({modelled * 1e6:.3f})")
        print(f"| {D} | {d} | " + " | ".join(cells) + " |")
    print(f"\nlargest error of the model: {max(errors):.0%}")
    for kind, values in fitted.items():
        terms_text = ", ".join(f"{value * 1e12:.3g} {name}" for name, value in values.items())
        print(f"{kind}: {terms_text} (1e-12 s)")
    print_archives(fitted)


def print_archives(fitted: dict[str, dict[str, float]]) -> None:
    """Print the hours of maps and of fits, for workers of one core and for one GPU."""
    columns = [*(f"{w} worker{'s' * (w > 1)}" for w in WORKERS), "one GPU"]
    for kind, title in (("variance", "map"), ("pass", f"fit, {PASSES} passes")):
        print(f"\n| {title} | rows | read | " + " | ".join(columns) + " |")
        print("|---|---|---|" + "---|" * len(columns))
        passes = PASSES if kind == "pass" else 1
        for name, facts in ARCHIVES.items():
            each = predict(fitted[kind], facts["D"], facts["d"]) * passes
            each = each / MAP_SHARE if kind == "variance" else each
            if name.startswith("IASI"):
                each = SPECTRUM_SECONDS * passes
            read = facts["rows"] * facts["read"] * passes
            rates = [read / facts["rows"] / each * workers for workers in WORKERS]
            hours = [facts["rows"] * each / workers / 3600 for workers in WORKERS]
            per_second = GPU_ROWS.get((kind, facts["D"]))
            if per_second is None:
                on_gpu = "as fast as spectra are read"
            else:
                gpu_hours = passes * facts["rows"] / per_second / 3600
                on_gpu = f"{gpu_hours:,.1f} h at {facts['read'] * per_second / 1e6:,.0f} MB/s"
            on_workers = [
                f"{h:,.1f} h at {r / 1e6:,.0f} MB/s" for h, r in zip(hours, rates, strict=True)
            ]
            print(
                f"| {name} | {facts['rows']:.2g} | {read / 1e12:,.1f} TB | "
                + " | ".join([*on_workers, on_gpu])
                + " |"
            )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
