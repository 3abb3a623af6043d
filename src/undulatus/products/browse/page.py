"""The page of the browser: what it shows, and the scripts and numbers that it loads."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.resources import Resources
from matplotlib.colors import to_hex

from undulatus.products.browse.calendar import Calendar, largest_differences
from undulatus.products.browse.plots import FEW_DAYS, plot_items
from undulatus.products.browse.sprites import Sheet, to_base64
from undulatus.products.panels import (
    BRIGHTEST,
    DARK,
    GAMMA,
    GROUND,
    HATCH,
    MASKS,
    Acquisition,
    ColourScale,
    coastline,
    panel_classes,
    panel_names,
    panel_title,
)
from undulatus.products.templates import render_template
from undulatus.products.views import MapView
from undulatus.scenes.scene import LEVEL2_MASK

Array = npt.NDArray[Any]

PACKAGE = "undulatus.products.browse"

ASSETS = ("calendar.js", "pixel.js", "page.js", "page.css")
"""Files that are copied beside the page as they are."""

TEXTS = ("sun", "regime", "rgb", "uncertainty")
"""Texts of each acquisition: two lines of its description, and the notes of two panels."""

NARROWEST, WIDEST = 180, 380
"""A panel is at least as wide as its image, within these, screen pixels: two fit on a phone."""

_GRADIENT_COLOURS = 33
"""Colours from which a colour bar is blended."""


@dataclass
class Contents:
    """What the page shows; acquisitions are added as they are read."""

    view: MapView
    calendar: Calendar
    sheet: Sheet
    scales: dict[str, ColourScale]
    title: str
    texts: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in TEXTS})
    shares: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, acquisitions: list[Acquisition], shares: dict[str, Array]) -> None:
        """Add the texts and the shares of the next acquisitions."""
        for each in acquisitions:
            texts = {"sun": each.sun, "regime": each.regime} | each.notes
            for name, lines in self.texts.items():
                lines.append(texts.get(name, ""))
        for name, values in shares.items():
            self.shares.setdefault(name, []).append(values)

    def share(self, name: str) -> Array:
        """Return a share for all acquisitions, (n,)."""
        return np.concatenate(self.shares[name])

    @property
    def differences(self) -> Array:
        """Indices of the acquisitions where model and Level-2 mask or label differ most."""
        if "agreement" not in self.shares:
            return np.zeros(0, np.int64)
        return largest_differences(
            self.calendar.seconds, self.share("agreement"), self.share("compared")
        )

    @property
    def opening_share(self) -> str:
        """The share shown first: of cloud, or of the class whose share changes most."""
        if not self.view.classes:
            return "cloud"
        names = [f"model-{place}" for place in range(len(self.view.classes))]
        # Acquisitions without a known pixel have no share.
        return max(names, key=lambda name: float(np.nan_to_num(self.share(name)).std()))

    @property
    def opening(self) -> int:
        """Index of the acquisition shown first: in sunlight, in the middle of the first day."""
        day = np.flatnonzero(self.calendar.day == 0)
        lit = [index for index in day if not self.texts["rgb"][index]] or day
        return int(lit[len(lit) // 2])


def write_page(folder: Path, contents: Contents, attributes: Mapping[Any, Any]) -> None:
    """Write ``index.html`` and the scripts it loads into a folder.

    ``attributes`` are those of the map and its scene: they say how the map was made, and whether
    the data are synthetic.
    """
    for name in ASSETS:
        text = files(PACKAGE).joinpath(name).read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")
    scripts = Resources(mode="inline", log_level="warn", components=["bokeh"]).js_raw
    (folder / "bokeh.js").write_text("\n".join(scripts), encoding="utf-8")
    share = contents.share(contents.opening_share)
    plots = plot_items(contents.calendar, share, contents.view.classes)
    (folder / "data.js").write_text(
        f"window.undulatusData = {json.dumps(_script_data(contents))};\n"
        f"window.undulatusPlots = {json.dumps(plots)};\n",
        encoding="utf-8",
    )
    page = render_template(PACKAGE, "page.html.jinja", **_template_values(contents, attributes))
    (folder / "index.html").write_text(page, encoding="utf-8")


def _script_data(contents: Contents) -> dict[str, Any]:
    """Return what the scripts read: times, shares and texts of all acquisitions."""
    calendar, view = contents.calendar, contents.view
    first = int(calendar.seconds[0])
    return {
        "first": first,
        "seconds": to_base64((calendar.seconds - first).astype(np.uint32)),
        "slots": to_base64(calendar.slot.astype(np.uint16)),
        "step": calendar.step,
        "table": calendar.shape,
        "shape": view.shape,
        "columns": contents.sheet.columns,
        "titles": {name: panel_title(name, view) for name in panel_names(view)},
        "classes": [shown.name for shown in view.classes],
        "opening_share": contents.opening_share,
        "few_days": calendar.shape[0] <= FEW_DAYS,
        "shares": {name: to_base64(contents.share(name)) for name in contents.shares},
        "texts": {name: _without_repeats(lines) for name, lines in contents.texts.items()},
        "differences": contents.differences.tolist(),
        "opening": contents.opening,
        "land": None if view.land is None else to_base64(view.land.astype(np.uint8)),
    }


def _without_repeats(lines: list[str]) -> dict[str, Any]:
    """Return the different lines, and for each line its index among them."""
    different, indices = np.unique(np.array(lines, dtype=np.str_), return_inverse=True)
    return {"lines": different.tolist(), "indices": to_base64(indices.astype(np.uint32))}


def _template_values(contents: Contents, attributes: Mapping[Any, Any]) -> dict[str, Any]:
    view = contents.view
    height, width = view.shape
    times = contents.calendar.seconds.astype("datetime64[s]")
    first, last = (np.datetime_as_string(t, "D") for t in times[[0, -1]])
    # Masks come last, side by side.
    names = sorted(panel_names(view), key=lambda name: name in MASKS)
    source = f", from {contents.title}" if contents.title else ""
    keys = {name: _colour_key(name, view, contents.scales) for name in names}
    return {
        "subject": "Class maps" if view.classes else "Cloud maps",
        "classes": view.classes,
        "opening_share": contents.opening_share,
        "reference": "label" if view.classes else "L2",
        "span": first if first == last else f"{first} to {last}",
        "summary": f"{len(times):,} acquisition{'s'[: len(times) > 1]} of {height} x {width} "
        f"pixels, every {contents.calendar.step // 60} minutes{source}.",
        "statements": list(_statements(contents, attributes)),
        "panels": [(name, panel_title(name, view), keys[name]) for name in names],
        "class_key": keys["model"],
        "coast": _coast_path(view),
        "ground": f"repeating-linear-gradient(-45deg, {GROUND} 0 5px, {HATCH} 5px 6px)",
        "height": height,
        "width": width,
        "panel_width": min(max(width, NARROWEST), WIDEST),
        "few_days": contents.calendar.shape[0] <= FEW_DAYS,
        "has_differences": len(contents.differences) > 0,
        "history": attributes.get("history", ""),
    }


def _statements(contents: Contents, attributes: Mapping[Any, Any]) -> Iterator[tuple[str, str]]:
    """Give what a reader must know of the data, each with its first words, which are bold."""
    footnote = contents.view.footnote
    described = " ".join(
        str(attributes.get(key, "")) for key in ("title", "source", "calibration_mode")
    )
    if "synthetic" in described.lower():
        yield "Synthetic data.", f"{footnote}."
    elif footnote:
        yield "", f"{footnote}."
    view = contents.view
    shown = panel_names(view)
    compared = "label" if view.classes else "l2"
    absent = [panel_title(name, view) for name in ("rgb", "ir", compared) if name not in shown]
    if "ir" not in shown:
        yield (
            "Made without the scene",
            f"of the map, so these are not shown: {', '.join(absent)} (undulatus browse --scene).",
        )
    elif absent and view.classes:
        yield (
            "",
            "The scene has no label with the flag_values and flag_meanings of these classes: "
            "there is nothing to compare the model's with.",
        )
    elif absent:
        yield "", f"The scene has no {LEVEL2_MASK}: there is no mask to compare the model's with."


def _coast_path(view: MapView) -> str:
    """Return the edges between land and water as an SVG path; empty if there is no land mask."""
    if view.land is None:
        return ""
    x, y = (part.reshape(-1, 3)[:, :2] + 0.5 for part in coastline(view.land))
    return "".join(
        f"M{x0:g} {y0:g}L{x1:g} {y1:g}" for (x0, x1), (y0, y1) in zip(x, y, strict=True)
    )


@dataclass(frozen=True)
class ColourKey:
    """What the colours of a panel mean: a colour bar with three numbers, swatches, a text."""

    text: str = ""
    gradient: str = ""
    """Colours of the bar, from left to right, as CSS."""
    numbers: tuple[str, ...] = ()
    """Below the bar: left, middle, right."""
    swatches: tuple[tuple[str, str], ...] = ()
    """Colours and what they stand for."""


def _colour_key(name: str, view: MapView, scales: dict[str, ColourScale]) -> ColourKey:
    if name in MASKS:
        shown = panel_classes(name, view)
        return ColourKey(swatches=tuple((each.colour, each.name) for each in shown))
    if name in scales:
        return _bar_key(scales[name])
    bands = f"red 1.6, green 0.8, blue 0.6 µm; 0 to {BRIGHTEST:.0f} %, gamma {GAMMA}."
    return ColourKey(bands, swatches=((DARK, "night"),))


def _bar_key(scale: ColourScale) -> ColourKey:
    values = np.asarray(scale.norm.inverse(np.linspace(0.0, 1.0, _GRADIENT_COLOURS)))
    middle = f"{values[_GRADIENT_COLOURS // 2]:.{2 if scale.logarithmic else 3}g}"
    open_ended = scale.extend == "both"
    return ColourKey(
        scale.label + " (logarithmic)" * scale.logarithmic,
        ", ".join(to_hex(colour[:3] / 255.0) for colour in scale(values)),
        (f"{'≤ ' * open_ended}{scale.low:g}", middle, f"{'≥ ' * open_ended}{scale.high:g}"),
    )
