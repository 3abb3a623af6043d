"""
A landmark's year
=================

Meteosat looks at the same coast every 15 minutes. Under a high sun, a low sun and by night its
channels say different things, so there is a classifier for each range of the solar zenith angle.
The images are synthetic, since real ones are not free to fetch; they are made from physics, and
their true clouds are known. With your own files the steps are the same (:doc:`/howto/landmarks`).
"""

# %%
# Forty days, 96 images each, of 20 x 26 pixels. ``cloud_mask_l2`` is a mask as an agency would
# deliver it, with its faults; ``cloud_truth`` is the truth, which only a synthetic scene has. A
# year takes ``synthetic_landmark(365)``, and the same commands some minutes.

import numpy as np

from undulatus.scenes import synthetic_landmark

scene = synthetic_landmark(40).compute()
print(scene)

# %%
# Learn from the mask. A quarter of the days is held out, and the model remembers which.

from undulatus.products import fit_scene, score_scene

model = fit_scene(scene, n_frequencies=50, pixels=15_000)
for found in score_scene(model, scene):
    if found.reference == "cloud_truth" and found.part == "all":
        print(
            f"{found.regime:6} model {found.scores.accuracy:.3f}, "
            f"mask it learned from {found.label_accuracy:.3f}"
        )

# %%
# Against the truth the model is right more often than the mask that it learned from under a higher
# sun, since it cannot repeat faults that have no pattern, and as often under a low one and by
# night. Its probabilities are those of the mask, not of the truth.
#
# Map every acquisition
# ---------------------

from undulatus.products import map_scene

maps = map_scene(model, scene)
print(*maps.data_vars, sep="\n")

# %%
# The share of cloud in every acquisition, by day and time of day.

import matplotlib.pyplot as plt

share = maps["cloud_probability"].mean(["y", "x"]).values.reshape(-1, 96)
figure, axis = plt.subplots(figsize=(9, 4.4), layout="constrained")
shown = axis.imshow(share, aspect="auto", cmap="Blues_r", extent=(0, 24, len(share), 0))
axis.set(xlabel="hour, UTC", ylabel="day", xticks=range(0, 25, 3), title="share of cloud")
figure.colorbar(shown)

# %%
# The acquisition in daylight in which model and mask differ most, beside the truth.

from undulatus.products.views import disagreement, most_disputed

by_day = scene["VIS006"].notnull().all(["y", "x"])
time = most_disputed(disagreement(scene, maps).where(by_day), 1)[0]
then, there = scene.sel(time=time), maps.sel(time=time)
panels = {
    "reflectance at 0.6 µm": (then["VIS006"], "gray", None),
    "mask it learned from": (then["cloud_mask_l2"], "Blues_r", 1),
    "probability of cloud": (there["cloud_probability"], "Blues_r", 1),
    "truth": (then["cloud_truth"], "Blues_r", 1),
}
figure, axes = plt.subplots(1, 4, figsize=(11, 3), layout="constrained")
for axis, (title, (values, colours, top)) in zip(axes, panels.items(), strict=True):
    axis.imshow(values, cmap=colours, vmin=0, vmax=top)
    axis.set(title=title, xticks=[], yticks=[])
figure.suptitle(str(np.datetime64(time, "m")))

# %%
# ``undulatus browse maps.zarr -o site`` makes a page for every acquisition, to look through the
# year.
