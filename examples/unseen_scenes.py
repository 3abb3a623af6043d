"""
Unseen scenes: groups, the ensemble, and what uncertainty tells
=================================================================

A model is made to be used elsewhere: on other days, in other places. Scores on random pixels of
the places it learned from say little about that. This lesson scores models where they have seen
nothing.
"""

# %%
# The other half of an image
# --------------------------
# 3,000 pixels of the upper half of a Sentinel-2 image, to be scored on its lower half.
# ``groups`` tells the model which rows belong together, here squares of 64 x 64 pixels: each
# estimator of the ensemble validates on other groups while it learns, and stops when learning no
# longer carries over to them. Printed last is of how many rows a model is more than 90 % sure, and
# in how many of these it is wrong.

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from undulatus import VFFGPC
from undulatus.datasets import load_sentinel2_clouds
from undulatus.products.scores import score


def compare(X, y, groups, train, test):
    """Fit three models to the same rows, print their scores on others, and return them."""
    models = {
        "boosting": HistGradientBoostingClassifier(random_state=0).fit(X[train], y[train]),
        "one estimator": VFFGPC(50, n_estimators=1, random_state=0).fit(X[train], y[train]),
        "ensemble": VFFGPC(50, n_estimators=6, random_state=0).fit(
            X[train], y[train], groups=groups[train]
        ),
    }
    for name, model in models.items():
        likely = model.predict_proba(X[test])[:, 1]
        found, sure = score(y[test], likely), np.maximum(likely, 1 - likely) > 0.9
        wrong = np.count_nonzero((likely > 0.5)[sure] != y[test][sure])
        print(
            f"{name:10}  NLL {found.nll:.3f}  ECE {found.ece:.3f}  accuracy {found.accuracy:.3f}  "
            f"sure of {sure.sum():6,}, {wrong:5,} wrong"
        )
    return models


rng = np.random.default_rng(0)
image = load_sentinel2_clouds()
squares = image.row // 64 * 100 + image.column // 64
of_image = compare(
    image.X, image.y == 1, squares, rng.permutation(image.train)[:3000], image.test[::10]
)

# %%
# Another place
# -------------
# Harder: cover types of forest in four wilderness areas of Colorado. Area 2 is held out; 6,000
# random rows of the other three are learned from, without the columns that tell the area. The
# task is lodgepole pine against the rest.

from undulatus.datasets import load_covertype

data = load_covertype()
tells_area = np.array([name.startswith("Wilderness_Area") for name in data.feature_names])
area = data.X[:, tells_area].argmax(axis=1)
X, y = data.X[:, ~tells_area], data.y == 2
train = rng.permutation(np.flatnonzero(area != 2))[:6000]
test = rng.permutation(np.flatnonzero(area == 2))[:20_000]
compare(X, y, area, train, test)

share = y[train].mean()
nothing = -np.mean(np.log(np.where(y[test], share, 1 - share)))
print(f"knowing no more than that {share:.0%} are lodgepole pine: NLL {nothing:.3f}")

# %%
# In this area soils and heights go with other trees than elsewhere. The ensemble found that
# what it learned in one area does not carry over to another, and says nearly nothing; boosting
# has more labels right, and claims to be sure in thousands of rows in which it is wrong.
#
# Where it has never been
# -----------------------
# Back to the image. Move its pixels away from the training data, all bands at once. Boosting stays
# nearly as sure as it was. In our model the latent variance rises to that of the prior, and the
# probability returns to the share of the class in training: the model says that it does not know.

import matplotlib.pyplot as plt

ensemble = of_image["ensemble"]
direction = rng.normal(size=13) * image.X[image.train].std(axis=0)
steps = np.linspace(0, 3, 13)
rows = image.X[image.test[::400]]
certainty = {name: [] for name in of_image}
variance = []
for step in steps:
    moved = rows + step * direction
    for name, model in of_image.items():
        p = model.predict_proba(moved)[:, 1]
        certainty[name].append(np.maximum(p, 1 - p).mean())
    variance.append(ensemble.latent_mean_and_variance(moved)[1].mean())

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name, values in certainty.items():
    left.plot(steps, values, marker="o", label=name)
share = np.mean(image.y[image.train])
left.axhline(max(share, 1 - share), color="grey", linestyle=":", label="share in training")
left.set(xlabel="training deviations away", ylabel="mean probability of the likelier class")
left.legend(frameon=False)
right.plot(steps, variance, marker="o", color="tab:green")
right.set(xlabel="training deviations away", ylabel="latent variance of the ensemble")

# %%
# What it does not tell
# ---------------------
# The variance says how far a row is from what was learned. It does not contain the noise of
# labels: where two classes are mixed in one pixel, the probability is near 1/2 and the variance
# may be small. So pixels near 1/2 and pixels of large variance are mostly not the same ones.

pixels = image.X[image.test[::10]]
p = ensemble.predict_proba(pixels)[:, 1]
_, variance = ensemble.latent_mean_and_variance(pixels)
doubtful = np.abs(p - 0.5) < 0.2
strange = variance > np.quantile(variance, 0.9)
print(f"between 0.3 and 0.7: {doubtful.mean():.1%} of the pixels")
print(f"largest tenth of variances among these: {strange[doubtful].mean():.1%}")

# %%
# And a place can differ in ways that no feature shows. Then a model is wrong, and no uncertainty
# warns: held-out scenes are the only test. The larger comparison, on 226 scenes held out whole, is
# in :doc:`/benchmarks/index`; what the settings do, in :doc:`/explanation/changes`.
