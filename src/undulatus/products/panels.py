"""The panels of an acquisition: its layers as coloured images, and how they are drawn.

Pictures, video and pages show the same panels. All colour scales are fixed except that of the
uncertainty, which is the same for all acquisitions that are shown together, so that they can be
compared. A pixel without a value is transparent, and a hatched ground shows through.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.text import Text

from undulatus._daylight import NIGHT
from undulatus.products.layers import MASK, PROBABILITY, QUALITY, VARIANCE
from undulatus.products.legend import CLEAR_COLOUR, CLOUD_COLOUR, MapClass
from undulatus.products.predict import MISSING
from undulatus.products.views import (
    INFRARED,
    LABEL,
    NATURAL_COLOUR,
    MapView,
    blocks_of_time,
    time_text,
)
from undulatus.scenes.scene import ANGLE, CLOUD_TRUTH, LEVEL2_MASK

Array = npt.NDArray[Any]

CLEAR, CLOUD, DARK = CLEAR_COLOUR, CLOUD_COLOUR, "#1b1b2f"
"""Colours of masks, and of the night in natural colour."""

GROUND, HATCH = "#d9d9d9", "#737373"
"""Colours of the ground that shows through where pixels are missing."""

GAMMA = 1.7
"""Colours of images are stretched values to the power 1 / gamma, which brightens what is dark."""

HALO = [withStroke(linewidth=2.2, foreground="white", alpha=0.7)]
"""Drawn around the coastline, which crosses light and dark pixels."""

BRIGHTEST, GAMMA = 120.0, 1.8
"""The stretch of satpy's ``natural_color``: (reflectance / 120 %) to the power 1 / 1.8."""

MASKS = {"l2": LEVEL2_MASK, "truth": CLOUD_TRUTH, "label": LABEL, "model": MASK}
"""Panels that show masks or classes, and their layers."""

_LAYERS = {
    "rgb": {*NATURAL_COLOUR, ANGLE},
    "ir": {INFRARED},
    "probability": {PROBABILITY},
    "uncertainty": {VARIANCE},
    **{name: {layer} for name, layer in MASKS.items()},
}
"""Layers that each panel needs."""

TITLES = {
    "rgb": "RGB: natural colour",
    "ir": "IR 10.8 µm",
    "l2": "L2 mask",
    "truth": "true mask",
    "model": "model mask",
    "probability": "probability of cloud",
    "uncertainty": "uncertainty",
}
"""Titles of the panels of a map of clouds, in order, ..."""

_TITLES_OF_CLASSES = {
    **{name: TITLES[name] for name in ("rgb", "ir", "l2", "truth")},
    "label": "label",
    "model": "model classes",
    "probability": "probability of the class",
    "uncertainty": TITLES["uncertainty"],
}
"""... and of a map of other classes."""

_LONG_NAME, _LONGEST_NAME = 10, 26
"""Letters of a class's name beyond which the key has one column, and beyond which it is cut."""

_CLOUD_CLASSES = (MapClass(0, "clear", CLEAR), MapClass(1, "cloud", CLOUD))
"""The classes of cloud masks."""

_SAMPLED = 8
"""Acquisitions that the colour scale of the uncertainty is computed from."""


@dataclass(frozen=True)
class ColourScale:
    """How values become colours: a colour map of matplotlib between two values."""

    colours: str
    low: float
    high: float
    label: str
    extend: str = "neither"
    logarithmic: bool = False

    @property
    def ticks(self) -> list[float] | None:
        """Ticks of a logarithmic colour bar: 1, 2 and 5 times powers of ten; None if linear."""
        if not self.logarithmic:
            return None
        powers = 10.0 ** np.arange(np.floor(np.log10(self.low)), np.log10(self.high) + 1.0)
        marks = np.outer(powers, [1.0, 2.0, 5.0]).ravel()
        return [m for m in marks.tolist() if 0.999 * self.low <= m <= 1.001 * self.high]

    @property
    def norm(self) -> Any:
        """Matplotlib's norm between the two values."""
        return (LogNorm if self.logarithmic else Normalize)(self.low, self.high)

    def __call__(self, values: Array) -> Array:
        """Return values (...) as RGBA bytes (..., 4); missing values are transparent."""
        table = matplotlib.colormaps[self.colours](np.arange(256), bytes=True)
        seen = np.isfinite(values)
        known = np.clip(np.where(seen, values, self.low), self.low, self.high)
        share = np.asarray(self.norm(known.ravel())).reshape(known.shape)
        coloured = table[(share * 255.0 + 0.5).astype(np.uint8)]
        coloured[~seen] = 0
        return np.asarray(coloured)


COLOUR_SCALES = {
    "ir": ColourScale("gray_r", 240.0, 310.0, "brightness temperature, K", "both"),
    "probability": ColourScale("cividis", 0.0, 1.0, "0 clear, 1 cloud"),
    "uncertainty": ColourScale(
        "magma", 0.01, 1.0, "std. dev. of the latent function", "both", True
    ),
}


@dataclass(frozen=True)
class Acquisition:
    """One acquisition as it is shown: images, and the text beside them."""

    time: str
    sun: str
    """The solar zenith angle as text; empty if the scene has none."""
    regime: str
    """Names of the regimes; empty if the model has none."""
    accuracies: dict[str, float]
    """Of the L2 mask and of the model, against the truth; empty if that is not known."""
    images: dict[str, Array]
    """RGBA bytes (y, x, 4), by panel."""
    notes: dict[str, str]
    """Text in a panel that has nothing to show."""


def panel_names(view: MapView) -> tuple[str, ...]:
    """Return the panels that the view has layers for, in order."""
    return tuple(name for name in _titles(view) if _LAYERS[name] <= set(view.layers))


def panel_title(name: str, view: MapView) -> str:
    """Return the title of a panel."""
    return _titles(view)[name]


def _titles(view: MapView) -> dict[str, str]:
    return _TITLES_OF_CLASSES if view.classes else TITLES


def panel_classes(name: str, view: MapView) -> tuple[MapClass, ...]:
    """Return the classes that a panel of a mask shows."""
    return view.classes if name in ("label", "model") and view.classes else _CLOUD_CLASSES


def extra_key_lines(view: MapView) -> int:
    """Return how many lines the key of the classes needs below those of a colour bar."""
    return max(0, -(-len(view.classes) // _key_columns(view.classes)) - 2)


def _key_columns(classes: tuple[MapClass, ...]) -> int:
    return 1 if any(len(shown.name) > _LONG_NAME for shown in classes) else 2


def scales_for(view: MapView, chosen: Array) -> dict[str, ColourScale]:
    """Return the colour scales of the panels.

    That of the uncertainty spans 98 % of the values of a few acquisitions. The likeliest of k
    classes has a probability of 1/k or more.
    """
    scales = dict(COLOUR_SCALES)
    if view.classes:
        least = 1.0 / len(view.classes)
        scales["probability"] = ColourScale("cividis", least, 1.0, "of the class shown")
    spread = np.linspace(0, len(chosen) - 1, min(_SAMPLED, len(chosen))).astype(int)
    variance = view.layers[VARIANCE].isel(time=np.unique(chosen[spread])).values
    return scales | {"uncertainty": uncertainty_scale(variance)}


def uncertainty_scale(variance: Array) -> ColourScale:
    """Return the colour scale of standard deviations that spans 98 % of those given."""
    scale = COLOUR_SCALES["uncertainty"]
    known = variance[np.isfinite(variance) & (variance > 0.0)]
    if not known.size:
        return scale
    low, high = np.sqrt(np.quantile(known, [0.01, 0.99]))
    # One digit, so that the ends of the bar are easy to read.
    low, high = _one_digit(low, np.floor), _one_digit(max(high, 1.1 * low), np.ceil)
    return replace(scale, low=low, high=high)


def _one_digit(value: float, round_to: Any) -> float:
    step = 10.0 ** np.floor(np.log10(value))
    return float(round_to(value / step) * step)


def read_acquisitions(
    view: MapView, chosen: Array, scales: dict[str, ColourScale]
) -> Iterator[Acquisition]:
    """Yield acquisitions by their indices; one block of them is in memory at a time."""
    for numbers in blocks_of_time(view, chosen):
        yield from render_acquisitions(view, view.read(numbers), scales)


def render_acquisitions(
    view: MapView, block: xr.Dataset, scales: dict[str, ColourScale]
) -> Iterator[Acquisition]:
    """Yield the acquisitions of a block of the view's layers that is in memory."""
    images = {name: _image(name, view, block, scales) for name in panel_names(view)}
    arrays = {str(name): array.values for name, array in block.items()}
    for index, time in enumerate(block["time"].values):
        layers = {name: array[index] for name, array in arrays.items()}
        yield Acquisition(
            time=time_text(time),
            sun=_sun_text(layers[ANGLE]) if ANGLE in layers else "",
            regime=_regime_names(view, layers),
            accuracies=_accuracies(layers, ("L2",) if view.classes else ("L2", "model")),
            images={name: image[index] for name, image in images.items()},
            notes=_notes(layers),
        )


def _image(name: str, view: MapView, block: xr.Dataset, scales: dict[str, ColourScale]) -> Array:
    if name in MASKS:
        return _class_colours(block[MASKS[name]].values, panel_classes(name, view))
    if name == "rgb":
        return _natural_colour(block)
    if name == "uncertainty":
        return scales[name](np.sqrt(block[VARIANCE].values))
    return scales[name](block[INFRARED if name == "ir" else PROBABILITY].values)


def _natural_colour(block: xr.Dataset) -> Array:
    percent = np.stack([block[name].values for name in NATURAL_COLOUR], axis=-1)
    bright = np.clip(percent / BRIGHTEST, 0.0, 1.0) ** (1.0 / GAMMA)
    seen = np.isfinite(bright).all(axis=-1, keepdims=True)
    image = np.concatenate([np.where(seen, bright, 0.0), seen], axis=-1)
    image[block[ANGLE].values >= NIGHT] = (*to_rgb(DARK), 1.0)
    return (image * 255.0 + 0.5).astype(np.uint8)


def _class_colours(codes: Array, classes: tuple[MapClass, ...]) -> Array:
    """Return codes (...) as RGBA bytes (..., 4); what is not a code is transparent."""
    table = np.zeros((257, 4), np.uint8)
    for shown in classes:
        table[shown.code] = [*(round(255 * part) for part in to_rgb(shown.colour)), 255]
    whole = np.isfinite(codes) & (codes >= 0) & (codes <= 255)
    return table[np.where(whole, codes, 256).astype(np.intp)]


def _sun_text(angle: Array) -> str:
    known = angle[np.isfinite(angle)]
    if not known.size:
        return "solar zenith angle unknown"
    low, high = known.min(), known.max()
    if high - low < 2.0:
        return f"solar zenith angle {known.mean():.0f}°"
    return f"solar zenith angle {low:.0f} to {high:.0f}°"


def _regime_names(view: MapView, layers: dict[str, Array]) -> str:
    if not view.regimes:
        return ""
    quality = layers[QUALITY].astype(np.int64)
    known = np.unique(quality[(quality & MISSING) == 0])
    inside = [name for bits, value, name in view.regimes if ((known & bits) == value).any()]
    return ", ".join(inside)


def _accuracies(layers: dict[str, Array], compared: tuple[str, ...]) -> dict[str, float]:
    """Return the accuracies of masks of clouds, L2 and the model's, against the truth."""
    if CLOUD_TRUTH not in layers:
        return {}
    truth = layers[CLOUD_TRUTH]
    found = {}
    for who, name in (("L2", LEVEL2_MASK), ("model", MASK)):
        if who in compared and name in layers:
            mask = layers[name]
            known = ((mask == 0) | (mask == 1)) & ((truth == 0) | (truth == 1))
            if known.any():
                found[who] = float(np.mean(mask[known] == truth[known]))
    return found


def _notes(layers: dict[str, Array]) -> dict[str, str]:
    notes = {}
    angle = layers.get(ANGLE, np.zeros(0))
    if (angle >= NIGHT).any() and not (angle < NIGHT).any():
        notes["rgb"] = "night: no sunlight"
    classified = np.isfinite(layers[PROBABILITY]).any()
    if classified and not np.isfinite(layers[VARIANCE]).any():
        notes["uncertainty"] = "this model gives none"
    return notes


# Drawing


def caption_lines(acquisition: Acquisition) -> list[str]:
    """Return lines of text about an acquisition: sun, regime and accuracies."""
    lines = [acquisition.sun]
    if acquisition.regime:
        lines.append(f"regime: {acquisition.regime}")
    if acquisition.accuracies:
        lines += ["", "accuracy against the truth"]
        lines += [f"{who}: {100 * share:.1f} %" for who, share in acquisition.accuracies.items()]
    return lines


def box_ratio(shape: tuple[int, int]) -> float:
    """Return height / width of a panel: that of the image, within limits."""
    return float(np.clip(shape[0] / shape[1], 0.4, 1.4))


def place_axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Add axes to a figure; lengths are in inches, from the upper left corner."""
    across, down = figure.get_size_inches()
    return figure.add_axes(
        (left / across, 1 - (top + height) / down, width / across, height / down)
    )


class PanelImage:
    """A panel in its axes: an image on a hatched ground, with the coastline and a note on top."""

    def __init__(self, axis: Axes, view: MapView) -> None:
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
        """Show one panel of an acquisition."""
        self.image.set_data(acquisition.images[name])
        self.annotate(acquisition, name)

    def annotate(self, acquisition: Acquisition, name: str) -> None:
        """Write the note of a panel that has nothing to show."""
        self.note.set_text(acquisition.notes.get(name, ""))
        if name == "rgb":
            self.note.set(color="white", backgroundcolor=DARK)


def coastline(land: Array) -> tuple[Array, Array]:
    """Return x and y of the pixel edges between land and water, separated by NaN."""
    i, j = np.nonzero(land[:, 1:] != land[:, :-1])
    k, m = np.nonzero(land[1:] != land[:-1])
    ends, gap = np.array([-0.5, 0.5]), np.full((len(i) + len(k), 1), np.nan)
    x = np.concatenate([j[:, None] + [0.5, 0.5], m[:, None] + ends])
    y = np.concatenate([i[:, None] + ends, k[:, None] + [0.5, 0.5]])
    return np.hstack([x, gap]).ravel(), np.hstack([y, gap]).ravel()


def draw_key(
    figure: Figure, axis: Axes, name: str, view: MapView, scales: dict[str, ColourScale]
) -> None:
    """Draw the key of a panel's colours: a bar, a legend, or text."""
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
        classes = panel_classes(name, view)
        patches = [Patch(facecolor=shown.colour, edgecolor="black") for shown in classes]
        axis.legend(
            patches,
            [_short_name(shown.name) for shown in classes],
            loc="upper center" if len(classes) > 2 else "center",
            # The text begins at the axes' upper edge, which is that of the other keys.
            borderaxespad=0.0,
            borderpad=0.0,
            ncols=_key_columns(classes),
            frameon=False,
            fontsize=9.5,
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


def _short_name(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def draw_legend(axis: Axes, view: MapView, where: Any) -> None:
    """Draw the legend that all panels share: missing pixels, night, the coast."""
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
