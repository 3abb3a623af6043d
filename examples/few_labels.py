"""
Few labels: where to add more
=============================

Labels cost time. Start with few, ask the model where more would tell it most, and add them
without a new fit.
"""

# %%
# Ten small squares of a Sentinel-2 image, five of cloud and five of clear sky: 490 labelled
# pixels that are much alike. The mask that came with the image plays the person who labels.

import numpy as np
import pandas as pd
import xarray as xr

from undulatus.datasets import load_sentinel2_clouds

data = load_sentinel2_clouds()
height, width = data.shape
image = xr.DataArray(
    data.X.reshape(height, width, -1).transpose(2, 0, 1),
    dims=("band", "y", "x"),
    coords={"band": list(data.feature_names)},
)
mask = data.y.reshape(height, width)


def label(rows, columns):
    """Return the class of pixels, as somebody who looks at the image would."""
    return pd.DataFrame({"row": rows, "column": columns, "class": mask[rows, columns]})


rng = np.random.default_rng(1)
squares, wanted = [], {0: 5, 1: 5}
while any(wanted.values()):
    top, left = rng.integers(height - 7), rng.integers(width - 7)
    rows, columns = np.mgrid[top : top + 7, left : left + 7].reshape(2, -1)
    kind = np.unique(mask[rows, columns])
    if len(kind) == 1 and wanted[int(kind[0])]:
        wanted[int(kind[0])] -= 1
        squares.append(label(rows, columns).assign(square=len(squares)))
first = pd.concat(squares, ignore_index=True)
print(first.groupby("class").size().to_string())

# %%
# A first model
# -------------

from undulatus.products import fit_image, suggest_labels, update_image
from undulatus.products.scores import score

model = fit_image(image, first, group="square", holdout=0.0)
elsewhere = rng.choice(mask.size, 20_000, replace=False)
table = pd.DataFrame(data.X[elsewhere], columns=data.feature_names)


def judge(model):
    """Score a model on 20,000 pixels from all over the image."""
    found = score(data.y[elsewhere] == 1, model.predict_proba(table)[:, 1])
    return f"accuracy {found.accuracy:.3f}  NLL {found.nll:.3f}"


print("ten squares:        ", judge(model))

# %%
# Ask it
# ------
# Each suggestion is a pixel; its ``information`` says how much a label there would tell. The
# command line writes the same as points to fill in with QGIS: ``undulatus suggest
# model.undulatus image.tif -n 50 -o points.gpkg``.

points = suggest_labels(model, image, 50)
print(points[["row", "column", "suggested", "probability", "information"]].head().round(3))

# %%
import matplotlib.pyplot as plt

figure, axis = plt.subplots(figsize=(4.6, 6.4), layout="constrained")
axis.imshow(np.clip(data.X[:, [3, 2, 1]].reshape(height, width, 3) / 0.75, 0, 1) ** 0.8)
axis.scatter(first["column"], first["row"], s=3, color="tab:orange", label="first labels")
axis.scatter(
    points["column"], points["row"], s=26, facecolor="none", edgecolor="tab:red", label="suggested"
)
axis.legend(loc="lower right")
axis.set(xticks=[], yticks=[])

# %%
# Answer, and update
# ------------------
# ``update_image`` reads the pixels under the new labels and adds them to the posterior: the
# frequencies stay as they are, so this takes milliseconds. ``model`` itself is not changed.

answers = label(points["row"].to_numpy(), points["column"].to_numpy())
print("50 suggested labels:", judge(update_image(model, image, answers)))

# %%
# What would other labels have brought? One more square, which is what people like to draw, and
# four draws of 50 pixels at random from the whole image.

top, left = 600, 250
rows, columns = np.mgrid[top : top + 7, left : left + 7].reshape(2, -1)
print("one more square:    ", judge(update_image(model, image, label(rows, columns))))
for draw in range(4):
    where = np.random.default_rng(draw).choice(mask.size, 50, replace=False)
    random = label(*np.divmod(where, width))
    print("50 random labels:   ", judge(update_image(model, image, random)))

# %%
# Labels from all over the image help, one more square hardly does. Suggested labels are about as
# good here as random ones: they have gained a few percent of the NLL over these in most cases
# that were measured, with five starts and eight draws each, and lost in some
# (:doc:`/howto/improve`). An update also keeps the frequencies that were learned from few
# labels: when you have labelled enough, fit again with all of them.
