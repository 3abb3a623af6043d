"""Pictures of clouds: acquisitions in rows of panels, and one image beside its map.

They are drawn off screen, and can be read without colour vision.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from undulatus._files import atomic_write
from undulatus.errors import SceneError
from undulatus.products.panels import (
    CLEAR,
    CLOUD,
    GAMMA,
    Acquisition,
    ColourScale,
    PanelImage,
    box_ratio,
    caption_lines,
    draw_key,
    draw_legend,
    extra_key_lines,
    panel_names,
    panel_title,
    place_axes,
    read_acquisitions,
    scales_for,
)
from undulatus.products.views import MapView, nearest_acquisitions, view_scene

Array = npt.NDArray[Any]

MOST_ROWS = 24
"""The most acquisitions in a picture."""

MASK_COLOURS = ListedColormap([CLEAR, CLOUD])
"""The colour map of masks."""


def draw_acquisitions(
    path: str | Path,
    scene: xr.Dataset,
    result: xr.Dataset,
    times: Any = None,
    *,
    title: str,
) -> None:
    """Write a PNG or PDF with a row of panels for each acquisition.

    The panels are natural colour, infrared, the Level-2 and the true mask if the scene has them,
    the model's mask, its probability of cloud and the standard deviation of its latent function;
    for a map of other classes these, in the colours of their legend, and the probability and the
    standard deviation of the class shown.

    Parameters
    ----------
    path : path
        Ending in ``.png`` or ``.pdf``; written atomically.
    scene : Dataset
        (time, y, x) or (y, x).
    result : Dataset
        What :func:`undulatus.products.maps.map_scene` made of it.
    times : times, optional
        UTC, as text, datetime or datetime64; for each the nearest acquisition is drawn. Without
        times, all acquisitions are drawn.
    """
    path = Path(path)
    if path.suffix not in (".png", ".pdf"):
        raise SceneError(f"A picture is written to a .png or .pdf file, not to {path}: rename it.")
    view = view_scene(scene, result)
    chosen = choose_acquisitions(view, times)
    scales = scales_for(view, chosen)
    figure = _draw_rows(view, list(read_acquisitions(view, chosen, scales)), scales, title)
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished)


def choose_acquisitions(view: MapView, times: Any = None) -> Array:
    """Return the indices of the acquisitions nearest to times, or of all; see the picture."""
    if times is None:
        chosen = np.arange(len(view.times))
    else:
        chosen = nearest_acquisitions(view, times if np.ndim(times) else [times])
    if not 0 < len(chosen) <= MOST_ROWS:
        raise SceneError(
            f"A picture shows 1 to {MOST_ROWS} acquisitions, but {len(chosen)} were chosen. "
            f"Choose times, or write a video."
        )
    return chosen


def _draw_rows(
    view: MapView, shown: list[Acquisition], scales: dict[str, ColourScale], title: str
) -> Figure:
    """Return the figure; lengths are in inches, from the upper left corner."""
    names = panel_names(view)
    lines = 0.17 * extra_key_lines(view)
    text, wide, gap, head, foot = 2.1, 2.35, 0.1, 0.8, 1.15 + lines
    tall = max(wide * box_ratio(view.shape), 1.4)
    size = (text + len(names) * (wide + gap) + gap, head + len(shown) * (tall + gap) + foot)
    figure = Figure(figsize=size, dpi=120)
    figure.text(0.15 / size[0], 1 - 0.15 / size[1], title, fontsize=15, verticalalignment="top")
    for row, acquisition in enumerate(shown):
        top = head + row * (tall + gap)
        beside: dict[str, Any] = {
            "x": 0.15 / size[0],
            "verticalalignment": "top",
            "linespacing": 1.4,
        }
        figure.text(
            y=1 - top / size[1], s=acquisition.time, fontsize=10, fontweight="bold", **beside
        )
        caption = "\n".join(caption_lines(acquisition))
        figure.text(y=1 - (top + 0.23) / size[1], s=caption, fontsize=9.5, **beside)
        for column, name in enumerate(names):
            left = text + column * (wide + gap)
            axis = place_axes(figure, left, top, wide, tall)
            if row == 0:
                axis.set_title(panel_title(name, view), fontsize=11)
            PanelImage(axis, view).show(acquisition, name)
    below = head + len(shown) * (tall + gap)
    for column, name in enumerate(names):
        left = text + column * (wide + gap)
        key = place_axes(figure, left + 0.1, below + 0.06, wide - 0.2, 0.14)
        draw_key(figure, key, name, view, scales)
    shared = place_axes(figure, text, below + 0.62 + lines, size[0] - text, 0.25)
    draw_legend(shared, view, "center left")
    figure.text(0.15 / size[0], 0.1 / size[1], view.footnote, fontsize=9, style="italic")
    return figure


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
    """Write a PNG of one image: RGB, label, probability and uncertainty side by side.

    Parameters
    ----------
    rgb : (h, w, 3) array
        Reflectances of red, green and blue; their contrast is stretched here.
    label : (h, w) array
        1 is cloud.
    probability : (h, w) array
        Of cloud.
    uncertainty : (h, w) array
        Standard deviation of the latent function.
    split_row : int, optional
        First row of the test half; a line is drawn above it.
    """
    height, width = label.shape
    figure = Figure(figsize=(16, 4 * height / width + 1.4), dpi=110, layout="constrained")
    figure.suptitle(title, fontsize=15)
    axes, keys = figure.subplots(2, 4, height_ratios=[4 * height / width, 0.12])
    axes[0].imshow(stretch(rgb, 2.0, 98.0) ** (1.0 / GAMMA))
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
            _mark_split(axis, split_row)
    figure.savefig(path)


def _mark_split(axis: Axes, row: int) -> None:
    axis.axhline(row - 0.5, color="#d7191c", linewidth=1.2, linestyle="--")
    for text, beside, alignment in (("train", row - 8, "bottom"), ("test", row + 8, "top")):
        axis.text(
            6,
            beside,
            text,
            color="white",
            fontsize=10,
            verticalalignment=alignment,
            bbox={"facecolor": "black", "alpha": 0.6, "linewidth": 0, "pad": 2},
        )


def stretch(rgb: Array, low: float = 1.0, high: float = 99.0) -> Array:
    """Return an image (h, w, 3) in [0, 1]: two percentiles of its values become 0 and 1."""
    bottom, top = np.nanpercentile(rgb, [low, high])
    return np.clip((rgb - bottom) / max(top - bottom, 1e-12), 0.0, 1.0)
