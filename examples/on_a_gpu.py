"""
On a GPU
========

A Gaussian process in Fourier features takes matrix products, cosines and sines: what graphics
processors are made for. ``device="cuda"`` computes there, and the model is the same but for
rounding. This lesson says on what it ran.
"""

# %%
# torch brings the device; undulatus does not need it otherwise. Without a GPU the same lines run
# on the CPU, and show no more than that results agree.

try:
    import torch
except ModuleNotFoundError:
    torch = None

device = "cuda" if torch is not None and torch.cuda.is_available() else None
if torch is None:
    print("This run had no torch: everything below is numpy's.")
else:
    where = torch.cuda.get_device_name() if device else "no GPU, torch on the CPU"
    print(f"This run had torch {torch.__version__} and {where}.")

# %%
# Fit
# ---
# 4,000 pixels of a Sentinel-2 image, on the device if there is one and on the CPU without.

import time

import numpy as np

from undulatus import VFFGPC
from undulatus.datasets import load_sentinel2_clouds

data = load_sentinel2_clouds()
rows = np.random.default_rng(0).permutation(data.train)[:4000]
X, y = data.X[rows], data.y[rows]


def timed(name, work):
    """Print how long it takes, and return what it returns."""
    started = time.perf_counter()
    result = work()
    print(f"{name}: {time.perf_counter() - started:.2f} s")
    return result


model = timed("fit", lambda: VFFGPC(50, n_estimators=1, random_state=0, device=device).fit(X, y))

# %%
# Predict
# -------
# Arrays that are on a device already are used where they are, and results stay there: here tensors
# of torch, on the GPU or, without one, in the processor's memory.

pixels = data.X[::8]
expected = timed("numpy", lambda: model.set_params(device=None).predict_proba(pixels))
if torch is not None:
    tensor = torch.from_numpy(pixels).to(device or "cpu")
    model.predict_proba(tensor[:1000])  # the first call prepares the device
    found = timed("torch", lambda: model.predict_proba(tensor))
    print(type(found).__name__, "on", found.device)
    print(f"largest difference: {np.abs(found.cpu().numpy() - expected).max():.1e}")

# %%
# A model knows nothing of the device: save it where it was fitted, load it anywhere. What a pass
# costs on either is in :doc:`/explanation/cost`.
