"""Reduce and classify a day of IASI spectra, with probability and variance. Prints a summary.

python -m benchmarks.sounder_day MODEL [SPECTRA] [THREADS]

Synthetic spectra are generated chunk by chunk on all cores, which is timed separately. MODEL is a
model of spectra, from ``undulatus fit``. The matrix product of spectra and components is also
timed alone, on the same blocks and as many threads.
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import dask
import numpy as np

from undulatus._system import count_threads, peak_memory, single_threaded_blas
from undulatus.products.maps import map_scene
from undulatus.scenes import synthetic_sounder
from undulatus.storage import load_model

DAY = 1_300_000
CHUNK, BLOCK = 8_192, 512


def product_seconds(spectra: np.ndarray, weights: np.ndarray, threads: int) -> float:
    """Return the time of the matrix product of spectra and components alone."""
    blocks = [spectra[i : i + BLOCK] for i in range(0, len(spectra), BLOCK)]
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(lambda block: block @ weights, blocks):
            pass
    return time.perf_counter() - began


def measure(path: str, count: int, threads: int) -> None:
    """Classify ``count`` spectra and print rates."""
    model = load_model(path)
    weights = np.ascontiguousarray((model[0].components_ / model[0].noise_).T, np.float32)
    day = synthetic_sounder(count, seed=1, chunk=BLOCK)
    keep = ["radiance", "noise"]
    making = mapping = product = 0.0
    clouds = width = 0
    with single_threaded_blas():
        for first in range(0, count, CHUNK):
            began = time.perf_counter()
            part = day[keep].isel(sample=slice(first, first + CHUNK)).compute()
            made = time.perf_counter()
            with dask.config.set(num_workers=threads):
                result = map_scene(model, part.chunk(sample=BLOCK)).compute()
            mapped = time.perf_counter()
            making, mapping = making + made - began, mapping + mapped - made
            product += product_seconds(part["radiance"].values, weights, threads)
            clouds += int(np.count_nonzero(result["cloud_mask"] == 1))
            width = part["radiance"].nbytes // part.sizes["sample"]
            assert np.isfinite(result["cloud_latent_variance"].values).all()
            if first // CHUNK % 20 == 0:
                done = first + part.sizes["sample"]
                print(f"{done:,} spectra, {mapping:.0f} s (and {making:.0f} s making)", flush=True)
    peak = peak_memory() / 2**20
    print(f"spectra: {count:,} of {width // 4:,} channels, {count * width / 1e9:.1f} GB")
    print(f"reduced and classified in {mapping:.1f} s (making them took {making:.0f} s more)")
    print(f"rate: {count / mapping:,.0f} spectra/s, {count * width / mapping / 1e9:.2f} GB/s")
    print(f"matrix product: {product:.1f} s, {product / mapping:.0%} of it")
    print(f"cloudy: {clouds / count:.1%}; peak memory of the process: {peak:,.0f} MB")


if __name__ == "__main__":
    spectra = int(sys.argv[2]) if len(sys.argv) > 2 else DAY
    measure(sys.argv[1], spectra, count_threads(int(sys.argv[3]) if len(sys.argv) > 3 else None))
