"""Peak memory of a fit and a prediction from a memory map. Prints JSON.

python -m benchmarks.memory ROWS ITERATIONS SOLVER
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from benchmarks.measure import Meter
from undulatus import VFFGPC


def make_map(path: Path, n: int, d: int) -> np.memmap:
    """Return a read-only memory map of generated pixels."""
    rows = np.memmap(path, dtype=np.float32, mode="w+", shape=(n, d))
    rng = np.random.default_rng(0)
    for start in range(0, n, 100_000):
        stop = min(start + 100_000, n)
        rows[start:stop] = rng.standard_normal((stop - start, d), dtype=np.float32)
    rows.flush()
    del rows
    return np.memmap(path, dtype=np.float32, mode="r", shape=(n, d))


def measure(n: int, d: int, iterations: int, solver: str) -> dict[str, float | str]:
    """Return times, and peaks of memory above what imports and labels take."""
    with tempfile.TemporaryDirectory() as folder:
        rows = make_map(Path(folder) / "pixels.dat", n, d)
        y = np.empty(n, dtype=np.int8)
        for start in range(0, n, 100_000):
            part = rows[start : start + 100_000]
            y[start : start + 100_000] = np.sin(2.0 * part[:, 0]) + part[:, 1] * part[:, 2] > 0
        model = VFFGPC(100, n_estimators=1, solver=solver, max_iter=iterations, random_state=0)
        with Meter() as fitting:
            model.fit(rows, y)
        with Meter() as predicting:
            model.predict_proba(rows)
    return {
        "rows": n,
        "features": d,
        "D": 100,
        "solver": solver,
        "fit_seconds": fitting.seconds,
        "fit_peak_mb": fitting.peak_bytes / 2**20,
        "predict_seconds": predicting.seconds,
        "predict_peak_mb": predicting.peak_bytes / 2**20,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    n_rows, n_iterations, which = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    print(json.dumps(measure(n_rows, 16, n_iterations, which)))
