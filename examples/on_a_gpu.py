"""
On a GPU
========

What a Gaussian process of waves asks of a processor is matrix products, cosines and sines: what
graphics processors are made for. This lesson does the sums of one exact pass in torch, and says
on what it ran.
"""

# %%
# Torch runs the same lines on a GPU and on a CPU. undulatus does not need it.

import time

import numpy as np

try:
    import torch
except ModuleNotFoundError:
    torch = None

device = "cuda" if torch is not None and torch.cuda.is_available() else "cpu"
if torch is None:
    print("torch is not installed: this run shows what numpy does, and nothing else.")
else:
    print(f"This run used torch {torch.__version__} on: {device}")

# %%
# The work: 200,000 pixels of the Sentinel-2 image, 13 bands, 200 waves. Each pixel has 400
# features; the pass adds up their products, each weighted by how much the pixel's label tells.

from undulatus.datasets import load_sentinel2_clouds

pixels = load_sentinel2_clouds().X[:200_000]
rng = np.random.default_rng(0)
x = ((pixels - pixels.mean(axis=0)) / pixels.std(axis=0)).astype(np.float32)
waves = rng.normal(size=(13, 200)).astype(np.float32)
weight = rng.random(len(x), dtype=np.float32) / 4


def one_pass(xp, x, waves, weight, block=16_384):
    """Return the weighted Gram matrix of the features, block by block."""
    total = 0.0
    for first in range(0, len(x), block):
        phase = x[first : first + block] @ waves
        z = xp.concatenate([xp.cos(phase), xp.sin(phase)], axis=1)
        total = total + (z * weight[first : first + block, None]).T @ z
    return total


started = time.perf_counter()
expected = one_pass(np, x, waves, weight)
print(f"numpy: {len(x) / (time.perf_counter() - started) / 1e6:.2f} million pixels a second")

# %%
# The same function, with arrays of torch.

if torch is not None:
    arrays = [torch.from_numpy(array).to(device) for array in (x, waves, weight)]
    one_pass(torch, *arrays)  # the first call prepares the device
    started = time.perf_counter()
    found = one_pass(torch, *arrays).cpu().numpy()
    seconds = time.perf_counter() - started
    print(f"torch on {device}: {len(x) / seconds / 1e6:.2f} million pixels a second")
    print(f"largest difference: {np.abs(found - expected).max() / np.abs(expected).max():.1e}")

# %%
# On one H200 a whole pass at 200 waves took 43 million pixels a second, with the data in its
# memory (:doc:`/explanation/cost`).
