"""
Many classes
============

Land cover of Landsat, six kinds of soil and crop, by neighbourhoods of 3 x 3 pixels in four
bands. The data are the Statlog set with its official split: 4,435 neighbourhoods to learn from,
2,000 to test on.
"""

# %%
# Nothing changes when there are more than two classes: ``fit`` takes as many as there are, of
# any type.

import numpy as np

from undulatus import VFFGPC
from undulatus.datasets import load_satimage

NAMES = np.array(
    ["red soil", "cotton crop", "grey soil", "damp grey soil", "stubble", "very damp grey soil"]
)
data = load_satimage()
X, train, test = data.X, data.train, data.test
y = NAMES[np.searchsorted(np.unique(data.y), data.y)]
model = VFFGPC(50, n_estimators=3, random_state=0).fit(X[train], y[train])
probability = model.predict_proba(X[test])
print(probability.shape, model.classes_)

# %%
# Scores of each class come with intervals. ``NLL`` is the mean of minus the logarithm of the
# probability of the true class, and ``ECE`` how far probabilities are from frequencies; both are
# best at 0.

from undulatus.products.scores import score_classes

found = score_classes(y[test], probability, model.classes_)
print(found.table())

# %%
# Which classes are taken for each other, and is the model doubtful there? Each dot is a test
# pixel, by its two largest probabilities; mistakes are red.

import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
shares = found.confusion / found.confusion.sum(axis=1, keepdims=True)
left.imshow(shares, cmap="Blues", vmin=0, vmax=1)
for row, column in np.ndindex(shares.shape):
    left.text(
        column, row, f"{shares[row, column]:.0%}", ha="center", va="center",
        color="white" if shares[row, column] > 0.5 else "black", fontsize=8,
    )  # fmt: skip
left.set_xticks(range(6), model.classes_, rotation=30, ha="right")
left.set_yticks(range(6), model.classes_)
left.set(title="true class (rows) and predicted class", xlabel="predicted")
second, first = np.sort(probability, axis=1)[:, -2:].T
wrong = model.classes_[probability.argmax(axis=1)] != y[test]
right.scatter(first[~wrong], second[~wrong], s=4, color="#8fb8d8", label="right")
right.scatter(first[wrong], second[wrong], s=9, color="#c8442e", label="wrong")
right.set(xlabel="largest probability", ylabel="second largest", title="test pixels")
right.legend(frameon=False)

# %%
# Of the pixels with a largest probability above 0.95, and of the others:

sure = first > 0.95
print(f"{sure.mean():.0%} of pixels above 0.95: {wrong[sure].mean():.1%} wrong")
print(f"{(~sure).mean():.0%} of pixels below:      {wrong[~sure].mean():.1%} wrong")

# %%
# ``VFFGPC()`` itself has eight estimators of 100 frequencies, which take longer and are right more
# often; the figures are in :doc:`/explanation/many-classes`.
