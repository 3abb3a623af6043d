"""Pictures: drawn off screen, written whole, readable without colour vision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

Array = npt.NDArray[Any]

CLEAR, CLOUD = "#3b6e8f", "#f7f7f7"
MASK_COLOURS = ListedColormap([CLEAR, CLOUD])


def stretch(rgb: Array, low: float = 1.0, high: float = 99.0) -> Array:
    """Return an image (h, w, 3) scaled to [0, 1] between two percentiles of its values."""
    bottom, top = np.nanpercentile(rgb, [low, high])
    return np.clip((rgb - bottom) / max(top - bottom, 1e-12), 0.0, 1.0)


def draw_cloud_panels(
    path: Path,
    rgb: Array,
    label: Array,
    probability: Array,
    uncertainty: Array,
    *,
    title: str,
    split_row: int | None = None,
) -> None:
    """Write a PNG with RGB, label, probability and uncertainty side by side.

    Parameters
    ----------
    rgb : (h, w, 3) array
        Reflectances of red, green, blue; stretched here.
    label : (h, w) array
        1 is cloud.
    probability, uncertainty : (h, w) arrays
        Of cloud; the uncertainty is the standard deviation of the latent function.
    split_row : int, optional
        Row where the training half ends, drawn as a line.
    """
    height, width = label.shape
    figure = Figure(figsize=(16, 4 * height / width + 1.4), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=15)
    axes, keys = figure.subplots(2, 4, height_ratios=[4 * height / width, 0.12])
    axes[0].imshow(stretch(rgb))
    axes[0].set_title("RGB")
    axes[1].imshow(label, cmap=MASK_COLOURS, vmin=0, vmax=1, interpolation="nearest")
    axes[1].set_title("cloud mask used as label")
    shown = axes[2].imshow(probability, cmap="cividis", vmin=0, vmax=1)
    axes[2].set_title("probability of cloud")
    figure.colorbar(shown, cax=keys[2], orientation="horizontal")
    top = float(np.nanpercentile(uncertainty, 99.5))
    shown = axes[3].imshow(uncertainty, cmap="magma", vmin=0, vmax=top)
    axes[3].set_title("uncertainty: std. dev. of the latent function")
    figure.colorbar(shown, cax=keys[3], orientation="horizontal")
    patches = [Patch(facecolor=colour, edgecolor="black") for colour in (CLEAR, CLOUD)]
    keys[1].legend(patches, ["clear", "cloud"], loc="center", ncols=2, frameon=False)
    for key in keys[:2]:
        key.set_axis_off()
    for axis in axes:
        axis.set_xticks([])
        axis.set_yticks([])
        if split_row is not None:
            axis.axhline(split_row - 0.5, color="#d7191c", linewidth=1.2, linestyle="--")
            for text, row in (("train", split_row - 8), ("test", split_row + 8)):
                axis.text(
                    6,
                    row,
                    text,
                    color="white",
                    fontsize=10,
                    verticalalignment="bottom" if text == "train" else "top",
                    bbox={"facecolor": "black", "alpha": 0.6, "linewidth": 0, "pad": 2},
                )
    figure.savefig(path)
