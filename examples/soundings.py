"""
Soundings: clouds seen in the infrared
======================================

A sounder measures how warm the air is at many heights, in channels of the infrared, by day and
by night. This lesson takes a real orbit of HIRS on Metop-A. By day the instrument also has one
visible channel: it gives labels that the infrared channels do not know of.
"""

# %%
# The orbit, with labels where the visible channel is unambiguous: dark is clear, bright is
# cloudy. Places that may have snow, a low sun or the sun's glitter have none.

import numpy as np

from undulatus.products.orbit import LabelledViews, labelled_orbit

orbit = labelled_orbit()
views = LabelledViews.of(orbit)
print(orbit.sizes["sample"], "views,", len(views.y), "labelled,", f"{views.y.mean():.0%} cloudy")

# %%
# What clear and cloudy look like, channel by channel: brightness temperatures, median and the
# central half.

import matplotlib.pyplot as plt

wavenumber = orbit["wavenumber"].values
order = np.argsort(wavenumber)
figure, axis = plt.subplots(figsize=(9, 3.6), layout="constrained")
for kind, name, colour in ((0, "clear", "#2b6ca3"), (1, "cloudy", "#d9a520")):
    low, middle, high = np.quantile(views.X[views.y == kind], (0.25, 0.5, 0.75), axis=0)
    axis.plot(wavenumber[order], middle[order], marker="o", color=colour, label=name)
    axis.fill_between(wavenumber[order], low[order], high[order], color=colour, alpha=0.25)
axis.set(xlabel="wavenumber, per cm", ylabel="brightness temperature, K")
axis.legend(frameon=False)

# %%
# Hold out a whole stretch
# ------------------------
# Views beside each other are alike. So a stretch of five minutes, 2,000 km, is held out as a
# whole, and the estimators of the ensemble leave out whole stretches for validation
# (``groups``).

from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import VFFGPC
from undulatus.products.scores import score

stretch, learn, test = list(views.folds())[2]
vffgpc = VFFGPC(50, n_estimators=3, random_state=0)
vffgpc.fit(views.X[learn], views.y[learn], groups=views.stretch[learn])
others = {
    "boosting": HistGradientBoostingClassifier(random_state=0),
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)),
}
models = {"VFFGPC": vffgpc} | {
    name: other.fit(views.X[learn], views.y[learn]) for name, other in others.items()
}
print("held out:", stretch)
for name, model in models.items():
    found = score(views.y[test] == 1, model.predict_proba(views.X[test])[:, 1])
    print(f"{name:20} accuracy {found.accuracy:.3f}  NLL {found.nll:.3f}  ECE {found.ece:.3f}")

# %%
# Here logistic regression is right about as often as VFFGPC: nearly all that matters is how cold
# the window channels are. Over all stretches it is ahead (:doc:`/howto/soundings` has the table).
# Try the simple model first.
#
# By night, too
# -------------
# Labels need the sun, the infrared does not: the model classifies the whole orbit, its night
# side too. The deviation of the latent function says where that is a guess.

channels = orbit["brightness_temperature"].values
complete = np.isfinite(channels).all(axis=1)
longitude, latitude = orbit["longitude"].values[complete], orbit["latitude"].values[complete]
probability = vffgpc.predict_proba(channels[complete])[:, 1]
deviation = np.sqrt(vffgpc.latent_mean_and_variance(channels[complete])[1])

figure, axes = plt.subplots(2, 1, figsize=(9, 8.6), layout="constrained")
for axis, values, colours, title in (
    (axes[0], probability, "cividis", "probability of cloud"),
    (axes[1], deviation, "magma", "deviation of the latent function"),
):
    shown = axis.scatter(longitude, latitude, c=values, s=1.5, cmap=colours)
    axis.set(xlabel="longitude", ylabel="latitude", title=title)
    figure.colorbar(shown)
for name, rows in (("within 60°", abs(latitude) < 60), ("nearer the poles", abs(latitude) >= 60)):
    print(f"{name:16} median deviation {np.median(deviation[rows]):.2f}")

# %%
# All labels lie between 60° S and 60° N. Nearer the poles nearly everything is called cloud: snow
# is as cold as the tops of clouds, and the model has never seen any. The deviation is larger
# there, but not by so much that it would warn by itself. Do not map where nobody labelled.
#
# Spectra of thousands of channels go the same way, after
# a reduction to principal components: :doc:`/howto/soundings`.
