"""
Your own image, from GeoTIFF to accuracy
========================================

You have an image and some polygons that say what is what. This lesson makes a map of all of it
that says of each pixel how sure it is, and measures how often the map is right.
"""

# %%
# An image and labels
# -------------------
# The files are an image of Sentinel-2, 856 x 512 pixels of 13 bands, and polygons of cloud and
# of clear sky in its upper half. Neither says where on Earth it was taken; your own may.

import tempfile
from pathlib import Path

from undulatus.products.demo import write_example

folder = Path(tempfile.mkdtemp())
image_path, labels_path = write_example(folder)
print(image_path.name, labels_path.name)

# %%
import geopandas

polygons = geopandas.read_file(labels_path)
print(polygons["class"].value_counts().to_string())

# %%
# Learn
# -----
# Only pixels under polygons are read. A quarter of the polygons is held out whole, since pixels
# of one polygon are alike, and a score on pixels beside those learned from would be too good.
#
# On the command line this is ``undulatus fit image.tif --label labels.gpkg -o model.undulatus``.

from undulatus import save_model
from undulatus.products import fit_image
from undulatus.scenes import open_image

image = open_image(image_path)
model = fit_image(image, labels_path)
save_model(model, folder / "model.undulatus")
print(model)

# %%
# Map
# ---
# The same as ``undulatus map model.undulatus image.tif -o map.tif``.

from undulatus.products import map_scene

maps = map_scene(model, image).compute()
print(maps)

# %%
# What the image shows, what the model says, and where to doubt it. The entropy of the
# probabilities is 0 where the model is certain and log 2 = 0.69 where cloud and clear are as
# likely. Of the lower half, below the line, the model has seen no label.

import matplotlib.pyplot as plt
import numpy as np

rgb = image.values[[3, 2, 1]].transpose(1, 2, 0)  # B04, B03, B02
cloud = maps["class_probability"]
figure, axes = plt.subplots(1, 3, figsize=(11, 6.2), layout="constrained")
axes[0].imshow(np.clip(rgb / 0.75, 0, 1) ** 0.8)
axes[0].set_title("image")
for axis, layer, colours, title in (
    (axes[1], cloud, "Blues_r", "probability of cloud"),
    (axes[2], maps["class_entropy"], "magma", "entropy: where to doubt"),
):
    shown = axis.imshow(layer, cmap=colours)
    figure.colorbar(shown, ax=axis, orientation="horizontal", shrink=0.8)
    axis.set_title(title)
for axis in axes:
    axis.axhline(428, color="tab:red", linewidth=1)
    axis.set_xticks([])
    axis.set_yticks([])

# %%
# How good is it?
# ---------------
# ``score_image`` uses the polygons that were held out, and begins with a line that says so.
# Intervals come from whole polygons. On the command line: ``undulatus score model.undulatus
# image.tif --label labels.gpkg``.

from undulatus.products import score_image

found = score_image(model, image, labels_path)
print(found.basis.statement)
print(found.scores.table())

# %%
# These polygons lie in the upper half, among those learned from. The mask that came with the
# image also covers the lower half, where the model has seen nothing: a harder test.

from undulatus.datasets import load_sentinel2_clouds
from undulatus.products.scores import score

data = load_sentinel2_clouds()
lower = data.test
harder = score(data.y[lower] == 1, cloud.values.ravel()[lower].astype(float))
print(f"accuracy {harder.accuracy:.4f}  NLL {harder.nll:.4f}  ECE {harder.ece:.4f}")

# %%
# Is doubt where the mistakes are? Sort the lower half by entropy and count mistakes in each
# tenth.

wrong = (cloud.values.ravel()[lower] > 0.5) != (data.y[lower] == 1)
order = np.argsort(maps["class_entropy"].values.ravel()[lower])
tenths = [wrong[part].mean() for part in np.array_split(order, 10)]
print("mistakes, from the surest tenth to the most doubtful:")
print("  ".join(f"{share:.1%}" for share in tenths))

# %%
# Most of the image can be believed without a look; nearly all mistakes are in the doubtful part,
# at the edges of clouds. Where labels would help most, the model can say itself: :doc:`few
# labels <few_labels>`. What else labels and images may be: :doc:`/howto/your-image`.
