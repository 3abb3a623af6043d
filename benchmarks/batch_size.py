"""How many rows a minibatch should have, by the number of training rows.

python -m benchmarks.batch_size [SEEDS]
"""

from __future__ import annotations

import sys
import time
import warnings
from itertools import product

import numpy as np
from sklearn.metrics import log_loss

from benchmarks.tasks import load
from undulatus import VFFGPC

BATCHES = (256, 512, 1024, 2048)
ROWS = (5_000, 20_000, 40_000, 100_000, 400_000)
TEST_ROWS = 40_000


def measure(name: str, rows: int, batch_size: int, seed: int) -> tuple[float, float]:
    """Return the test NLL and the seconds of a fit on ``rows`` random training rows."""
    task, rng = load(name), np.random.default_rng(seed)
    train = rng.choice(len(task.y), min(rows, len(task.y)), replace=False)
    test = rng.choice(len(task.y_test), min(TEST_ROWS, len(task.y_test)), replace=False)
    began = time.perf_counter()
    model = VFFGPC(50, n_estimators=1, batch_size=batch_size, random_state=seed)
    model.fit(task.X[train], task.y[train])
    seconds = time.perf_counter() - began
    return log_loss(task.y_test[test], model.predict_proba(task.X_test[test])), seconds


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    seeds = range(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    for name, rows, batch_size in product(("sentinel2", "covertype"), ROWS, BATCHES):
        results = [measure(name, rows, batch_size, seed) for seed in seeds]
        nll, seconds = np.mean(results, axis=0)
        print(f"{name}, {rows} rows, minibatches of {batch_size}: NLL {nll:.4f}, {seconds:.1f} s")
