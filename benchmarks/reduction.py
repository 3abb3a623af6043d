"""Compare ways to reduce spectra to components: time, memory, exactness. Prints tables.

python -m benchmarks.reduction IASI.zarr [COMPONENTS]

IASI.zarr is made by ``undulatus simulate sounder``. Each way runs in its own process. The angle is
the largest between its subspace and that of a full decomposition of the same 3,000 rows (first
table), or between its subspace of all rows and SpectralPCA's (second table).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA, IncrementalPCA

from undulatus._system import peak_memory
from undulatus.estimators.pca import SpectralPCA
from undulatus.scenes.files.opening import open_spectra

SUBSET = 3_000
BATCH = 1_024


def spectral(rows: Any, noise: np.ndarray, components: int) -> np.ndarray:
    """Sum the covariance in one pass, in double precision, then use Lanczos."""
    return SpectralPCA(components, noise=noise).fit(rows).components_


def incremental(rows: Any, noise: np.ndarray, components: int) -> np.ndarray:
    """scikit-learn's IncrementalPCA, a batch at a time."""
    model = IncrementalPCA(components)
    # A batch needs as many rows as components, so the last takes the rest.
    starts = range(0, max(rows.shape[0] - BATCH + 1, 1), BATCH)
    for start in starts:
        stop = rows.shape[0] if start == starts[-1] else start + BATCH
        model.partial_fit(np.asarray(rows[start:stop]) / noise)
    return model.components_


def randomised(rows: Any, noise: np.ndarray, components: int) -> np.ndarray:
    """scikit-learn's PCA with a random projection: all rows in memory, in single precision."""
    X = np.asarray(rows, dtype=np.float32)
    X /= noise.astype(np.float32)
    model = PCA(components, svd_solver="randomized", random_state=0, copy=False)
    return model.fit(X).components_


def covariance_eigh(rows: Any, noise: np.ndarray, components: int) -> np.ndarray:
    """scikit-learn's PCA through the whole covariance: all rows in memory."""
    X = np.asarray(rows, dtype=np.float32)
    X /= noise.astype(np.float32)
    model = PCA(components, svd_solver="covariance_eigh", copy=False)
    return model.fit(X).components_


def full(rows: Any, noise: np.ndarray, components: int) -> np.ndarray:
    """Decompose in full, in double precision: the oracle."""
    X = np.asarray(rows, dtype=np.float64) / noise
    return PCA(components, svd_solver="full", copy=False).fit(X).components_


WAYS = {f.__name__: f for f in (spectral, incremental, randomised, covariance_eigh, full)}


def run(way: str, path: str, components: int, count: int | None, output: str) -> None:
    """Reduce spectra in one way; print its time and peak memory."""
    opened = open_spectra(path)
    noise = opened["noise"].values.astype(np.float64)
    rows = opened["radiance"].data[:count]
    began = time.perf_counter()
    subspace = WAYS[way](rows, noise, components)
    seconds = time.perf_counter() - began
    np.save(output, subspace)
    peak = peak_memory() / 2**20
    print(json.dumps({"seconds": seconds, "peak_mb": peak}))


def compare(path: str, components: int, count: int | None, oracle: str, others: list[str]) -> None:
    """Print a table of ways on the first ``count`` rows, or on all if None."""
    print(f"\n{'way':18}{'seconds':>9}{'peak MB':>9}{'angle to ' + oracle + ', degrees':>28}")
    with tempfile.TemporaryDirectory() as folder:
        reference = None
        for way in (oracle, *others):
            output = str(Path(folder) / f"{way}.npy")
            arguments = [way, path, str(components), str(count or 0), output]
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.reduction", "--one", *arguments],
                capture_output=True,
                text=True,
            )
            if done.returncode:
                print(f"{way:18}  failed: {done.stderr.strip().splitlines()[-1:]}")
                continue
            cost, subspace = json.loads(done.stdout), np.load(output).astype(np.float64)
            reference = subspace if reference is None else reference
            angle = np.degrees(subspace_angles(subspace.T, reference.T).max())
            print(f"{way:18}{cost['seconds']:9.1f}{cost['peak_mb']:9.0f}{angle:28.2g}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        which, where, n_components, n_rows, out = sys.argv[2:]
        run(which, where, int(n_components), int(n_rows) or None, out)
    else:
        wanted = int(sys.argv[2]) if len(sys.argv) > 2 else 100
        others = ["spectral", "incremental", "randomised", "covariance_eigh"]
        compare(sys.argv[1], wanted, SUBSET, "full", others)
        compare(sys.argv[1], wanted, None, "spectral", others[1:])
