"""
A new place: a wrong map, ten clicks, a better one
==================================================

A model errs in a place that it does not know. This lesson labels ten pixels there at random,
adapts the model, and asks how much depends on which pixels these were.
"""

# %%
# Two places
# ----------
# Take quarters of a Sentinel-2 image for places. The lower right one has small clouds, and the
# model learns from 3,000 of its pixels. A bank of cloud, unlike any of these, covers half of the
# upper right one: the new place. The mask that came with the image plays the person who labels,
# and is the truth that maps are compared with.

import numpy as np

from undulatus import VFFGPC
from undulatus.datasets import load_sentinel2_clouds
from undulatus.products.scores import score

data = load_sentinel2_clouds()
height, width = data.shape
lower, right = data.row >= height // 2, data.column >= width // 2
squares = data.row // 32 * 100 + data.column // 32

rng = np.random.default_rng(0)
learn = rng.choice(np.flatnonzero(lower & right), 3000, replace=False)
model = VFFGPC(random_state=0)
model.fit(data.X[learn], data.y[learn], groups=squares[learn])


def judge(probability, truth):
    """Return NLL and accuracy of probabilities of cloud."""
    found = score(truth == 1, probability)
    return found.nll, found.accuracy


others = np.setdiff1d(np.flatnonzero(lower & right), learn)
X, y = data.X[right & ~lower], data.y[right & ~lower]
before = model.predict_proba(X)[:, 1]
known = judge(model.predict_proba(data.X[others])[:, 1], data.y[others])
print("where it learned       NLL {:.3f}  accuracy {:.3f}".format(*known))
print("the new place, before  NLL {:.3f}  accuracy {:.3f}".format(*judge(before, y)))

# %%
# Ten clicks
# ----------
# ``adapt`` returns the model of the new place, and leaves the other one as it is. On the command
# line this is ``undulatus adapt model.undulatus image.tif --label here.csv -o here.undulatus``.

import time

clicked = np.random.default_rng(7).choice(len(y), 10, replace=False)
began = time.perf_counter()
adapted = model.adapt(X[clicked], y[clicked])
print(f"adapted in {1000 * (time.perf_counter() - began):.0f} ms")

after = adapted.predict_proba(X)[:, 1]
print("the new place, after   NLL {:.3f}  accuracy {:.3f}".format(*judge(after, y)))

# %%
import matplotlib.pyplot as plt

shape = (height // 2, width - width // 2)
colours = plt.get_cmap("cividis")
figure, axes = plt.subplots(1, 4, figsize=(11, 5.7), layout="constrained")
axes[0].imshow(np.clip(X[:, [3, 2, 1]].reshape(*shape, 3) / 0.75, 0, 1) ** 0.8)
for kind, name, marker in ((0, "clear", "s"), (1, "cloud", "o")):
    row, column = np.divmod(clicked[y[clicked] == kind], shape[1])
    style = {"color": colours(float(kind)), "edgecolor": "white", "clip_on": False, "zorder": 3}
    axes[0].scatter(column, row, s=70, marker=marker, label=f"labelled {name}", **style)
legend = axes[0].legend(loc="upper left", bbox_to_anchor=(0, -0.02), frameon=False)
legend.set_in_layout(False)
for axis, values in zip(axes[1:], (before, after, y), strict=True):
    shown = axis.imshow(values.reshape(shape), cmap=colours, vmin=0, vmax=1)
titles = (
    "ten clicks",
    f"before: {judge(before, y)[1]:.0%} right",
    f"after: {judge(after, y)[1]:.0%} right",
    "truth",
)
for axis, title in zip(axes, titles, strict=True):
    axis.set(title=title, xticks=[], yticks=[])
bar = figure.colorbar(shown, ax=axes, orientation="horizontal", shrink=0.4, pad=0.02)
bar.set_label("probability of cloud")

# %%
# Most of the bank of cloud is found, and the south is as it was. Specks of ground that are taken
# for cloud stay so: ten clicks do not mend everything.
#
# Other clicks
# ------------
# Would ten others have done the same? Ten draws of ten, first at random, then where the map was
# wrong, which is what people like to click. Beside ``adapt`` are two rivals: a slope and a shift
# of the logit (Platt's two numbers), and ``update``, each label with the weight of 20 rows. Scores
# are on 4,000 pixels of the place; the last column counts in how many draws ``adapt`` warned that
# the place looks like one of another kind.

import warnings

import pandas as pd
from scipy.optimize import minimize
from scipy.special import expit, logit


def platt(p, clicked, label):
    """Return probabilities after a slope and a shift of their logit, held near 1 and 0."""
    f = logit(np.clip(p, 1e-6, 1 - 1e-6))

    def loss(v):
        misfit = np.logaddexp(0, (1 - 2 * label) * (v[0] * f[clicked] + v[1])).sum()
        return misfit + 2 * (v[0] - 1) ** 2 + v[1] ** 2 / 4.5

    slope, shift = minimize(loss, [1, 0]).x
    return expit(slope * f + shift)


def compare(place, n_draws=10):
    """Print the median and the worst scores of draws of ten clicks in a place."""
    rows = np.random.default_rng(0).choice(np.flatnonzero(place), 4000, replace=False)
    X, y = data.X[rows], data.y[rows]
    p = model.predict_proba(X)[:, 1]
    print("before: NLL {:.3f}  accuracy {:.3f}".format(*judge(p, y)))
    wrong = np.flatnonzero((p > 0.5) != y)
    table = []
    for clicks, pool in (("at random", len(y)), ("on mistakes", wrong)):
        scores, warned = {"adapt": [], "update": [], "Platt": []}, 0
        for draw in range(n_draws):
            clicked = np.random.default_rng(draw).choice(pool, 10, replace=False)
            few = X[clicked], y[clicked]
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                adapted = model.adapt(*few)
            warned += len(said)
            updated = model.update(*few, np.full(10, 20.0))
            scores["adapt"].append(judge(adapted.predict_proba(X)[:, 1], y))
            scores["update"].append(judge(updated.predict_proba(X)[:, 1], y))
            scores["Platt"].append(judge(platt(p, clicked, y[clicked]), y))
        for name, found in scores.items():
            nll, accuracy = np.transpose(found)
            table.append(
                {
                    "clicks": clicks,
                    "": name,
                    "NLL": np.median(nll),
                    "worst NLL": nll.max(),
                    "accuracy": np.median(accuracy),
                    "worst accuracy": accuracy.min(),
                    "warned": warned if name == "adapt" else "",
                }
            )
    print(pd.DataFrame(table).round(3).to_string(index=False))


compare(right & ~lower)

# %%
# With ``adapt`` each of the twenty draws made the map better. Clicks on mistakes tell the most,
# and it does not take them for the whole place. Platt's numbers do: much that was right goes
# wrong.
#
# Where a model is right already
# ------------------------------
# The same model, the same ten draws, in the lower left quarter, which is more like the one it
# learned from.

compare(lower & ~right)

# %%
# Here little is to be gained. ``adapt`` hardly changes the map, mostly for the better; the worst
# of its draws on mistakes costs as much as ``update`` does. ``update``, which was better in the
# first place, makes this one worse in every draw on mistakes, and Platt's numbers turn the map
# upside down.
#
# So begin with ``adapt``, and click at random if you can. It warns after clicks on mistakes
# wherever they are. If it warns after clicks at random, and the labels are right, the place is of
# another kind: ``update`` with a weight, or a new fit with these rows too, may be better still.
# Keep some labels aside to see. :doc:`/howto/new-place` says which is for what,
# :doc:`/explanation/scenes-differ` why.
