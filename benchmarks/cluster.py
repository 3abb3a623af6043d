"""Fit from Zarr on one and on two workers: times of passes, their ratio, peaks of memory.

python -m benchmarks.cluster [ROWS] [D] [FOLDER] [WORKERS ...]

Prints JSON. The data are generated once, chunk by chunk, and kept in FOLDER.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import psutil
import zarr
from distributed import Client, LocalCluster

from undulatus import VFFGPC
from undulatus.gp.dask_data import ChunkedPixels

FEATURES = 16
CHUNK_ROWS = 500_000


def make_store(folder: Path, n: int) -> Path:
    """Return the path of a Zarr store of ``n`` rows and classes; make it if it is missing."""
    path = folder / f"pixels_{n}_by_{FEATURES}.zarr"
    if (path / "done").exists():
        return path
    group = zarr.open_group(path, mode="w")
    rows = group.create_array(
        "X", shape=(n, FEATURES), chunks=(CHUNK_ROWS, FEATURES), dtype="float32"
    )
    classes = group.create_array("y", shape=(n,), chunks=(CHUNK_ROWS,), dtype="int8")
    for start in range(0, n, CHUNK_ROWS):
        rng = np.random.default_rng([n, start])
        part = rng.standard_normal((min(CHUNK_ROWS, n - start), FEATURES), dtype=np.float32)
        latent = np.sin(2.0 * part[:, 0]) + part[:, 1] * part[:, 2]
        noise = rng.standard_normal(len(part), dtype=np.float32)
        rows[start : start + len(part)] = part
        classes[start : start + len(part)] = latent + 0.3 * noise > 0
    (path / "done").touch()
    return path


class Peaks:
    """Peak memory and CPU seconds of this process and of others, while a block runs."""

    def __init__(self, others: list[int]) -> None:
        self._processes = [psutil.Process(), *map(psutil.Process, others)]
        self.bytes = [0] * len(self._processes)

    def _sample(self) -> None:
        for i, process in enumerate(self._processes):
            self.bytes[i] = max(self.bytes[i], process.memory_info().rss)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Sample ten times a second until the block ends."""
        stop = threading.Event()

        def keep_sampling() -> None:
            while not stop.wait(0.1):
                self._sample()

        thread = threading.Thread(target=keep_sampling, daemon=True)
        thread.start()
        before = self._cpu_seconds()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            self.cpu_seconds = [
                now - then for now, then in zip(self._cpu_seconds(), before, strict=True)
            ]

    def _cpu_seconds(self) -> list[float]:
        spent = [process.cpu_times() for process in self._processes]
        return [own.user + own.system for own in spent]


@contextmanager
def timed_passes() -> Iterator[list[float]]:
    """Collect the seconds of each pass."""
    original, seconds = ChunkedPixels.total, []

    def total(self: ChunkedPixels, *args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        result = original(self, *args, **named)
        seconds.append(time.perf_counter() - began)
        return result

    ChunkedPixels.total = total  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        ChunkedPixels.total = original  # type: ignore[method-assign]


def measure(store: Path, n_frequencies: int, n_workers: int) -> dict[str, Any]:
    """Return the times and peaks of a fit on ``n_workers`` workers of one thread each."""
    X, y = (da.from_zarr(str(store), component=name) for name in ("X", "y"))
    with (
        LocalCluster(
            n_workers=n_workers, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
        timed_passes() as passes,
    ):
        peaks = Peaks(list(client.run(os.getpid).values()))
        model = VFFGPC(n_frequencies, n_estimators=1, max_iter=20, random_state=0)
        began = time.perf_counter()
        with peaks.watch():
            model.fit(X, y)
        seconds = time.perf_counter() - began
    return {
        "workers": n_workers,
        "seconds": seconds,
        "pass_seconds": passes,
        # On a busy machine CPU times show how the load was shared; wall times do not.
        "client_cpu_seconds": peaks.cpu_seconds[0],
        "worker_cpu_seconds": peaks.cpu_seconds[1:],
        "client_peak_mb": peaks.bytes[0] / 2**20,
        "worker_peaks_mb": [peak / 2**20 for peak in peaks.bytes[1:]],
        "bound": model.lower_bound_,
    }


def main(n_rows: int, n_frequencies: int, folder: Path, workers: list[int]) -> dict[str, Any]:
    """Return the measurements, and the speed-up from the first number of workers to the last."""
    store = make_store(folder, n_rows)
    runs = [measure(store, n_frequencies, count) for count in workers]
    first, last = runs[0], runs[-1]
    return {
        "rows": n_rows,
        "features": FEATURES,
        "D": n_frequencies,
        "chunk_rows": CHUNK_ROWS,
        "runs": runs,
        "pass_ratio": float(np.mean(first["pass_seconds"]) / np.mean(last["pass_seconds"])),
        "ratio": first["seconds"] / last["seconds"],
        "same_model": len({run["bound"] for run in runs}) == 1,
    }


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    given = sys.argv[1:] + [""] * 3
    where = Path(given[2] or Path(tempfile.gettempdir()) / "undulatus_cluster")
    counts = [int(count) for count in sys.argv[4:]] or [1, 2]
    results = main(int(given[0] or 50_000_000), int(given[1] or 100), where, counts)
    print(json.dumps(results, indent=1))
