"""Panels as parts of the page: a canvas to draw on, the coast, and what the colours mean."""

from __future__ import annotations

from html import escape

import numpy as np
from matplotlib.colors import to_hex

from undulatus.products.figures import CLEAR, CLOUD
from undulatus.products.panel_axes import GROUND, HATCH, coastline
from undulatus.products.panels import BRIGHTEST, DARK, GAMMA, MASKS, TITLES, Scale
from undulatus.products.views import View

_STOPS = 33
"""Colours of which a bar is blended."""


def draw_panel(name: str, view: View, scales: dict[str, Scale], coast: str) -> str:
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


def coast_path(view: View) -> str:
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


def _key(name: str, scales: dict[str, Scale]) -> str:
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


def _bar(scale: Scale) -> str:
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
