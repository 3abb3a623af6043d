"""Panels as parts of the page: a canvas to draw on, the coast, and what the colours mean.

The page of the browser, with the scripts and numbers that it loads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import numpy.typing as npt
from bokeh.resources import Resources
from matplotlib.colors import to_hex

from undulatus.products.browse.calendar import Calendar, differing_most
from undulatus.products.browse.plots import plot_items
from undulatus.products.browse.sprites import Sheet, to_base64
from undulatus.products.panels import (
    BRIGHTEST,
    CLEAR,
    CLOUD,
    DARK,
    GAMMA,
    GROUND,
    HATCH,
    MASKS,
    TITLES,
    Acquisition,
    ColourScale,
    coastline,
    panel_names,
)
from undulatus.products.views import MapView
from undulatus.scenes.scene import LEVEL2_MASK

_STOPS = 33
"""Colours of which a bar is blended."""


def draw_panel(name: str, view: MapView, scales: dict[str, ColourScale], coast: str) -> str:
    """Return the HTML of a panel."""
    height, width = view.shape
    return f"""<figure class="panel" id="panel-{name}">
<figcaption>{escape(TITLES[name])}</figcaption>
<div class="frame">
<canvas width="{width}" height="{height}" data-panel="{name}" role="img"></canvas>
<svg viewBox="0 0 {width} {height}" preserveAspectRatio="none" aria-hidden="true">
<path class="halo" d="{coast}"/><path class="coast" d="{coast}"/>
<rect class="pixel-halo" width="1" height="1" x="-2"/>
<rect class="pixel" width="1" height="1" x="-2"/>
</svg>
<p class="note" hidden></p>
</div>
<div class="key">{_key(name, scales)}</div>
</figure>"""


def coast_path(view: MapView) -> str:
    """Return the edges between land and water as an SVG path, or nothing."""
    if view.land is None:
        return ""
    x, y = (part.reshape(-1, 3)[:, :2] + 0.5 for part in coastline(view.land))
    return "".join(
        f"M{x0:g} {y0:g}L{x1:g} {y1:g}" for (x0, x1), (y0, y1) in zip(x, y, strict=True)
    )


def ground_style() -> str:
    """Return the hatched ground that shows through where pixels are missing, as CSS."""
    return f"repeating-linear-gradient(-45deg, {GROUND} 0 5px, {HATCH} 5px 6px)"


def _key(name: str, scales: dict[str, ColourScale]) -> str:
    if name in MASKS:
        words = (("clear", CLEAR), ("cloud", CLOUD))
        return " ".join(
            f'<span><i class="swatch" style="background:{colour}"></i>{word}</span>'
            for word, colour in words
        )
    if name in scales:
        return _bar(scales[name])
    return (
        f"red 1.6, green 0.8, blue 0.6 µm; 0 to {BRIGHTEST:.0f} %, gamma {GAMMA}. "
        f'<span><i class="swatch" style="background:{DARK}"></i>night</span>'
    )


def _bar(scale: ColourScale) -> str:
    shares = np.linspace(0.0, 1.0, _STOPS)
    values = np.asarray(scale.norm.inverse(shares))
    blend = ", ".join(to_hex(colour[:3] / 255.0) for colour in scale(values))
    middle = f"{values[_STOPS // 2]:.{2 if scale.logarithmic else 3}g}"
    beyond = scale.extend == "both"
    marks = (f"{'≤ ' * beyond}{scale.low:g}", middle, f"{'≥ ' * beyond}{scale.high:g}")
    numbers = "".join(f"<span>{mark}</span>" for mark in marks)
    return (
        f'<div class="bar" style="background:linear-gradient(to right, {blend})"></div>'
        f'<div class="marks">{numbers}</div><div>{escape(scale.label)}'
        f"{' (logarithmic)' * scale.logarithmic}</div>"
    )


Array = npt.NDArray[Any]

WORDS = ("sun", "regime", "rgb", "uncertainty")
"""Said of an acquisition: two lines, and the notes of two panels."""

NARROWEST, WIDEST = 180, 380
"""A panel is at least as wide as its image, within these, screen pixels: two fit on a phone."""


@dataclass
class Contents:
    """What the page shows; the acquisitions are added as they are read."""

    view: MapView
    calendar: Calendar
    sheet: Sheet
    scales: dict[str, ColourScale]
    title: str
    words: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in WORDS})
    shares: dict[str, list[Array]] = field(default_factory=dict)

    def add(self, acquisitions: list[Acquisition], shares: dict[str, Array]) -> None:
        """Add the words and the shares of the next acquisitions."""
        for each in acquisitions:
            said = {"sun": each.sun, "regime": each.regime} | each.notes
            for name, lines in self.words.items():
                lines.append(said.get(name, ""))
        for name, values in shares.items():
            self.shares.setdefault(name, []).append(values)

    def share(self, name: str) -> Array:
        """Return a share of all acquisitions, (n,)."""
        return np.concatenate(self.shares[name])

    @property
    def differing(self) -> Array:
        """Where model and Level-2 mask differ most, the worst first."""
        if "agreement" not in self.shares:
            return np.zeros(0, np.int64)
        return differing_most(
            self.calendar.seconds, self.share("agreement"), self.share("compared")
        )

    @property
    def opening(self) -> int:
        """The acquisition shown first: amid the first day, while the sun is up."""
        day = np.flatnonzero(self.calendar.day == 0)
        lit = [number for number in day if not self.words["rgb"][number]] or day
        return int(lit[len(lit) // 2])


def write_page(folder: Path, contents: Contents, attributes: Mapping[Any, Any]) -> None:
    """Write the page into a folder: ``index.html`` and the scripts it loads."""
    source = files("undulatus.products.browse")
    for name in ("calendar.js", "pixel.js", "page.js", "page.css"):
        text = source.joinpath(name).read_text(encoding="utf-8")
        (folder / name).write_text(text, encoding="utf-8")
    scripts = Resources(mode="inline", log_level="warn", components=["bokeh"]).js_raw
    (folder / "bokeh.js").write_text("\n".join(scripts), encoding="utf-8")
    plots = plot_items(contents.calendar, contents.share("cloud"))
    (folder / "year.js").write_text(
        f"window.undulatusYear = {json.dumps(_numbers(contents))};\n"
        f"window.undulatusPlots = {json.dumps(plots)};\n",
        encoding="utf-8",
    )
    template = Template(source.joinpath("page.html").read_text(encoding="utf-8"))
    filled = template.substitute(_texts(contents, attributes))
    (folder / "index.html").write_text(filled, encoding="utf-8")


def _numbers(contents: Contents) -> dict[str, Any]:
    calendar, view = contents.calendar, contents.view
    first = int(calendar.seconds[0])
    return {
        "first": first,
        "seconds": to_base64((calendar.seconds - first).astype(np.uint32)),
        "slots": to_base64(calendar.slot.astype(np.uint16)),
        "step": calendar.step,
        "size": calendar.shape,
        "shape": view.shape,
        "columns": contents.sheet.columns,
        "titles": {name: TITLES[name] for name in panel_names(view)},
        "shares": {name: to_base64(contents.share(name)) for name in contents.shares},
        "words": {name: _compact(lines) for name, lines in contents.words.items()},
        "differing": contents.differing.tolist(),
        "opening": contents.opening,
        "land": None if view.land is None else to_base64(view.land.astype(np.uint8)),
    }


def _compact(lines: list[str]) -> dict[str, Any]:
    """Return lines, of which many are the same, as the different ones and their numbers."""
    words, numbers = np.unique(np.array(lines, dtype=np.str_), return_inverse=True)
    return {"lines": words.tolist(), "numbers": to_base64(numbers.astype(np.uint32))}


def _texts(contents: Contents, attributes: Mapping[Any, Any]) -> dict[str, str]:
    view = contents.view
    height, width = view.shape
    times = contents.calendar.seconds.astype("datetime64[s]")
    first, last = (np.datetime_as_string(t, "D") for t in times[[0, -1]])
    # Masks stand side by side, after what is measured or graded.
    panels = sorted(panel_names(view), key=lambda name: name in MASKS)
    made_of = f", from {contents.title}" if contents.title else ""
    return {
        "span": escape(first if first == last else f"{first} to {last}"),
        "summary": escape(
            f"{len(times):,} acquisition{'s'[: len(times) > 1]} of {height} x {width} pixels, "
            f"every {contents.calendar.step // 60} minutes{made_of}."
        ),
        "statement": _statement(contents, attributes),
        "panels": "\n".join(
            draw_panel(name, view, contents.scales, coast_path(view)) for name in panels
        ),
        "ground": ground_style(),
        "coast": "" if view.land is None else '<li><span class="coastline"></span>coastline</li>',
        "height": str(height),
        "width": str(width),
        "ratio": f"{width} / {height}",
        "panel": str(min(max(width, NARROWEST), WIDEST)),
        "few": "few" if contents.calendar.shape[0] <= 31 else "",
        "without_l2": "" if len(contents.differing) else "hidden",
    }


def _statement(contents: Contents, attributes: Mapping[Any, Any]) -> str:
    """Return what must be said of the data: that they are synthetic, or not all there."""
    said = []
    footnote = contents.view.footnote
    told = " ".join(
        str(attributes.get(key, "")) for key in ("title", "source", "calibration_mode")
    )
    if "synthetic" in told.lower():
        said.append(f"<strong>Synthetic data.</strong> {escape(footnote)}.")
    elif footnote:
        said.append(f"{escape(footnote)}.")
    shown = panel_names(contents.view)
    absent = [TITLES[name] for name in ("rgb", "ir", "l2") if name not in shown]
    if "ir" not in shown:
        said.append(
            f"<strong>Made without the scene</strong> of the map, so not shown: "
            f"{escape(', '.join(absent))} (undulatus browse --scene)."
        )
    elif absent:
        said.append(f"The scene has no {escape(LEVEL2_MASK)}: nothing to compare the model with.")
    return "\n".join(f'<p class="statement">{line}</p>' for line in said)
