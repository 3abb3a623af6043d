"""
A tile on dask
==============

Images larger than memory are read and mapped in chunks. This lesson maps an image of 17 million
pixels from Zarr to Zarr, and never holds all of it.
"""

# %%
# A real image of 856 x 512 pixels stands in for a large one: it is repeated until it has 4,096 x
# 4,096 pixels of 4 bands. Nothing is computed yet.

import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
import xarray as xr

from undulatus import VFFGPC
from undulatus.datasets import load_sentinel2_clouds

data = load_sentinel2_clouds()
bands = ["B02", "B04", "B08", "B11"]
columns = [data.feature_names.index(band) for band in bands]
small = data.X[:, columns].reshape(*data.shape, 4).transpose(2, 0, 1)
large = da.tile(da.from_array(small), (1, 5, 8))[:, :4096, :4096].rechunk((1, 1024, 1024))
image = xr.Dataset({band: (("y", "x"), large[i]) for i, band in enumerate(bands)})
print(image)

# %%
# It goes to disk once, as an archive would hold it. Zarr that undulatus writes carries a
# checksum for each chunk, and a damaged or lost one is an error later, never a wrong map.

from undulatus.scenes import open_data, write_dataset

folder = Path(tempfile.mkdtemp())
write_dataset(image, folder / "image.zarr")

# %%
# A model of these four bands, by name. One estimator of 50 frequencies makes the fastest maps.

import pandas as pd

rows = np.random.default_rng(0).permutation(data.train)[:20_000]
table = pd.DataFrame(data.X[rows][:, columns], columns=bands)
classes = np.where(data.y[rows] == 1, "cloud", "clear")
model = VFFGPC(50, n_estimators=1, random_state=0).fit(table, classes)

# %%
# ``map_scene`` is lazy: it returns at once. Writing computes the map chunk by chunk, on all
# cores.

from undulatus.products import map_scene

maps = map_scene(model, open_data(folder / "image.zarr"))
print(maps["class_probability"])

# %%
started = time.perf_counter()
write_dataset(maps, folder / "map.zarr")
seconds = time.perf_counter() - started
pixels = image.sizes["y"] * image.sizes["x"]
print(f"{pixels / 1e6:.0f} million pixels in {seconds:.0f} s, with probability and variance")

# %%
# Every fourth pixel of the map in both directions, as it is on disk. Only what is drawn is
# computed or read.

import matplotlib.pyplot as plt

drawn = open_data(folder / "map.zarr")["class_probability"][::4, ::4]
figure, axis = plt.subplots(figsize=(6.4, 5.4), layout="constrained")
shown = axis.imshow(drawn, cmap="Blues_r")
axis.set(xticks=[], yticks=[], title="probability of cloud")
figure.colorbar(shown)

# %%
# The command line does this too, and ``--memory-limit`` holds it below a limit: ``undulatus map
# model.undulatus image.zarr -o map.zarr --memory-limit 1GB``. With ``--resume`` a map that was
# interrupted goes on, chunk by chunk.
#
# A fit on chunks
# ---------------
# ``fit`` takes dask arrays, too. Frequencies are learned from a sample, and the posterior from
# all rows, chunk by chunk. The model does not depend on how many threads or workers there are.

X = da.from_array(data.X, chunks=(100_000, 13))
y = da.from_array(data.y, chunks=100_000)
from_chunks = VFFGPC(30, n_estimators=1, random_state=0).fit(X[data.train], y[data.train])
print(f"accuracy on the other half: {from_chunks.score(data.X[data.test], data.y[data.test]):.3f}")

# %%
# With ``client = distributed.Client(...)`` before it, the same lines run on a cluster:
# :doc:`/howto/cluster`. What a pass and a map cost, and what whole archives would take:
# :doc:`/explanation/cost`.
