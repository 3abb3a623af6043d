"""How a panel is drawn in its axes, for pictures and video alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from undulatus.products.figures import CLEAR, CLOUD
from undulatus.products.panels import (
    BRIGHTEST,
    DARK,
    GAMMA,
    MASKS,
    Acquisition,
    Scale,
)
from undulatus.products.views import View

Array = npt.NDArray[Any]

GROUND, HATCH = "#d9d9d9", "#737373"
"""What shows through where pixels are missing."""
HALO = [withStroke(linewidth=2.2, foreground="white", alpha=0.7)]
"""Around the coastline, which crosses light and dark."""


def words_of(acquisition: Acquisition) -> list[str]:
    """Return lines about an acquisition, besides its time: sun, regime and accuracies."""
    lines = [acquisition.sun]
    if acquisition.regime:
        lines.append(f"regime: {acquisition.regime}")
    if acquisition.accuracies:
        lines += ["", "accuracy against the truth"]
        lines += [f"{who}: {100 * share:.1f} %" for who, share in acquisition.accuracies.items()]
    return lines


def box_ratio(shape: tuple[int, int]) -> float:
    """Return the height of a panel's box for a width of one: the image's, within limits."""
    return float(np.clip(shape[0] / shape[1], 0.4, 1.4))


def place(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes at so many inches from the upper left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes(
        (left / across, 1 - (top + height) / down, width / across, height / down)
    )


class Shown:
    """An image in its axes, on a hatched ground, under the coastline and a note."""

    def __init__(self, axis: Axes, view: View) -> None:
        self.axis = axis
        axis.set(xticks=[], yticks=[])
        axis.patch.set(facecolor=GROUND, edgecolor=HATCH, hatch="////", linewidth=0)
        blank = np.zeros((*view.shape, 4), np.uint8)
        self.image = axis.imshow(blank, interpolation="nearest")
        self.coast = Line2D([], [], color="black", linewidth=0.9, path_effects=HALO)
        if view.land is not None:
            self.coast.set_data(*coastline(view.land))
        axis.add_line(self.coast)
        self.note: Text = axis.text(
            0.5,
            0.5,
            "",
            transform=axis.transAxes,
            fontsize=10,
            horizontalalignment="center",
            verticalalignment="center",
            bbox={"facecolor": GROUND, "linewidth": 0, "pad": 4},
        )

    def show(self, acquisition: Acquisition, name: str) -> None:
        """Show a panel of an acquisition."""
        self.image.set_data(acquisition.images[name])
        self.annotate(acquisition, name)

    def annotate(self, acquisition: Acquisition, name: str) -> None:
        """Say what there is to say in a panel that has nothing to show."""
        self.note.set_text(acquisition.notes.get(name, ""))
        if name == "rgb":
            self.note.set(color="white", backgroundcolor=DARK)


def coastline(land: Array) -> tuple[Array, Array]:
    """Return x and y of the pixels' edges between land and water, with NaN between edges."""
    i, j = np.nonzero(land[:, 1:] != land[:, :-1])
    k, m = np.nonzero(land[1:] != land[:-1])
    ends, gap = np.array([-0.5, 0.5]), np.full((len(i) + len(k), 1), np.nan)
    x = np.concatenate([j[:, None] + [0.5, 0.5], m[:, None] + ends])
    y = np.concatenate([i[:, None] + ends, k[:, None] + [0.5, 0.5]])
    return np.hstack([x, gap]).ravel(), np.hstack([y, gap]).ravel()


def draw_key(figure: Figure, axis: Axes, name: str, scales: dict[str, Scale]) -> None:
    """Draw what the colours of a panel mean."""
    if name in scales:
        scale = scales[name]
        colours = ScalarMappable(scale.norm, scale.colours)
        bar = figure.colorbar(colours, cax=axis, orientation="horizontal", extend=scale.extend)
        bar.set_label(scale.label, fontsize=9)
        bar.ax.tick_params(labelsize=8.5)
        if scale.ticks is not None:
            bar.set_ticks(scale.ticks, labels=[f"{mark:g}" for mark in scale.ticks])
            bar.minorticks_off()
        return
    axis.set_axis_off()
    if name in MASKS:
        patches = [Patch(facecolor=colour, edgecolor="black") for colour in (CLEAR, CLOUD)]
        axis.legend(
            patches, ["clear", "cloud"], loc="center", ncols=2, frameon=False, fontsize=9.5
        )
    else:
        axis.text(
            0.5,
            1.0,
            f"red 1.6, green 0.8, blue 0.6 µm\n0 to {BRIGHTEST:.0f} %, gamma {GAMMA}",
            transform=axis.transAxes,
            fontsize=9,
            linespacing=1.3,
            horizontalalignment="center",
            verticalalignment="top",
        )


def draw_legend(axis: Axes, view: View, where: Any) -> None:
    """Draw what is the same in all panels: missing pixels, night, the coast."""
    axis.set_axis_off()
    handles: list[Any] = [
        Patch(facecolor=GROUND, edgecolor=HATCH, hatch="//////", linewidth=0),
        Patch(facecolor=DARK),
    ]
    labels = ["missing", "night: no sunlight"]
    if view.land is not None:
        handles.append(Line2D([], [], color="black", linewidth=1.2))
        labels.append("coastline")
    axis.legend(handles, labels, loc=where, ncols=3, frameon=False, fontsize=9.5)
