"""The data sets of the benchmark, as two-class problems with a fixed split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undulatus import datasets


@dataclass(frozen=True)
class Task:
    """Training and test rows of a two-class problem."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


TASKS = {
    "sentinel2": ("Sentinel-2 clouds, top half trains", datasets.load_sentinel2_clouds, 1),
    "covertype": ("Covertype, class 2 against the rest", datasets.load_covertype, 2),
    "satimage": ("Statlog Landsat, class 1 against the rest", datasets.load_satimage, 1),
}


def load(name: str, most_rows: int | None = None) -> Task:
    """Return a task with at most ``most_rows`` training rows, drawn at random."""
    _, loader, positive = TASKS[name]
    data = loader()
    y = (data.y == positive).astype(np.int64)
    train = data.train
    if most_rows is not None and len(train) > most_rows:
        train = np.sort(np.random.default_rng(0).choice(train, most_rows, replace=False))
    return Task(data.X[train], y[train], data.X[data.test], y[data.test])
