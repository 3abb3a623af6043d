"""
When boosting is the better choice
==================================

No method is best everywhere. Here are two tasks on which gradient boosting beats this package,
with the same rows for both, and what they have in common.
"""

# %%
# A table of many kinds
# ---------------------
# Cover types of forest from heights, distances, angles, and 44 columns of zeros and ones, on
# rows drawn at random: test rows are like training rows, boundaries are sharp and go along
# single features. Trees are made for that.

import time

import numpy as np
from sklearn.ensemble import HistGradientBoostingClassifier

from undulatus import VFFGPC
from undulatus.datasets import load_covertype
from undulatus.products.scores import score

data = load_covertype()
y = data.y == 2
rng = np.random.default_rng(0)


def compare(train, test, groups=None):
    """Fit both to the same rows and print their scores on others."""
    models = {
        "boosting, defaults": HistGradientBoostingClassifier(random_state=0),
        "boosting, larger": HistGradientBoostingClassifier(
            max_iter=300, max_leaf_nodes=63, learning_rate=0.1, random_state=0
        ),
        "VFFGPC, one estimator": VFFGPC(100, n_estimators=1, random_state=0),
    }
    for name, model in models.items():
        started = time.process_time()
        with_groups = {"groups": groups} if groups is not None and "VFF" in name else {}
        model.fit(data.X[train], y[train], **with_groups)
        seconds = time.process_time() - started
        found = score(y[test], model.predict_proba(data.X[test])[:, 1])
        print(
            f"{name:20} accuracy {found.accuracy:.3f}  NLL {found.nll:.3f}  "
            f"ECE {found.ece:.3f}  {seconds:5.1f} s of processor"
        )


rows = rng.permutation(len(y))
compare(rows[:25_000], rows[25_000:55_000])

# %%
# Boosting that was made larger is ahead, and its default is quicker.
#
# A place that is like another in one feature
# -------------------------------------------
# Area 3 of the same data is the lowest. Height alone decides there, and trees have learned from
# other areas that low means no lodgepole pine. A Gaussian process sees rows beyond what it
# learned and says that it does not know; here, boosting's guess is right.

tells_area = np.array([name.startswith("Wilderness_Area") for name in data.feature_names])
area = data.X[:, tells_area].argmax(axis=1)
train = rng.permutation(np.flatnonzero(area != 3))[:10_000]
test = rng.permutation(np.flatnonzero(area == 3))[:20_000]
data.X[:, tells_area] = 0.0
compare(train, test, groups=area[train])

# %%
# In area 2 it is the other way round: there boosting is as sure, and wrong
# (:doc:`unseen scenes <unseen_scenes>`).
#
# How to choose
# -------------
# Take boosting
#
# - for tables of columns of many kinds, whose test rows are like their training rows,
# - if only the label counts and nobody asks how sure it is,
# - if a model has to be fitted in a second, over and over.
#
# Take this package
#
# - for other scenes, days and places than those with labels,
# - if probabilities are used: for areas, for thresholds that change, for merging with other
#   data,
# - if somebody must know where the map is a guess,
# - for maps of many millions of pixels on processors: labels come 10 to 80 times as fast
#   (:doc:`/benchmarks/index`).
#
# Take logistic regression if a plane will do, as for :doc:`soundings <soundings>`. Try all
# three: they share scikit-learn's interface, so that is one line each.
