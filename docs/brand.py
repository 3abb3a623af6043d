"""Draw the logo, the favicon and the social card: a cloud made of waves.

python docs/brand.py

The shape is the method's own kind of function, a sum of a few waves: each line of the cloud is a
cosine, and lines end where they leave the outline. Written to ``docs/_static``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "_static"

LIGHT, DARK, ACCENT = "#12324a", "#e8f1f8", "#1f8fcf"

PUFFS = ((0.24, 0.37, 0.15), (0.44, 0.53, 0.225), (0.72, 0.42, 0.215))
"""Circles of the outline: centre and radius, in a square of side 1."""

BASE = 0.22
"""Height of the flat foot of the cloud."""

Line = npt.NDArray[Any]


def _inside(x: Line, y: Line) -> Line:
    """Return which points lie in the cloud."""
    inside = np.zeros(x.shape, bool)
    for across, up, radius in PUFFS:
        inside |= (x - across) ** 2 + (y - up) ** 2 < radius**2
    left, right = PUFFS[0][0], PUFFS[-1][0]
    return (inside | ((x > left) & (x < right) & (y < 0.42))) & (y > BASE)


def waves(count: int, samples: int = 400) -> list[Line]:
    """Return the lines of the cloud, each (points, 2), from its foot to its top."""
    x = np.linspace(0.0, 1.0, samples)
    lines = []
    top = max(up + radius for _, up, radius in PUFFS)
    for k, height in enumerate(np.linspace(BASE + 0.025, top - 0.045, count)):
        y = height + 0.016 * np.cos(2 * np.pi * (3.2 * x + 0.13 * k))
        edges = np.flatnonzero(np.diff(_inside(x, y).astype(int)))
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            if last - first > samples * 0.05:
                lines.append(np.column_stack([x, y])[first + 1 : last + 1])
    return lines


def _svg(colour: str, count: int, width: float) -> str:
    """Return the cloud as a picture of 128 units, cut close to its lines."""
    paths = []
    for line in waves(count):
        points = " ".join(f"{128 * x:.1f},{128 * (1 - y):.1f}" for x, y in line[::4])
        paths.append(f'<polyline points="{points}"/>')
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="8 22 112 84" role="img" '
        f'aria-label="A cloud made of waves"><g fill="none" stroke="{colour}" '
        f'stroke-width="{width}" stroke-linecap="round" stroke-linejoin="round">'
        f"{''.join(paths)}</g></svg>\n"
    )


def _draw_card(path: Path) -> None:
    """Draw what a link to the documentation shows elsewhere, 1200 x 630."""
    figure = Figure(figsize=(12, 6.3), dpi=100, facecolor=LIGHT)
    axis = figure.add_axes((0.0, 0.1, 0.42, 0.8))
    for line in waves(9):
        axis.plot(*line.T, color=DARK, linewidth=7.5, solid_capstyle="round")
    axis.set(xlim=(0.0, 1.0), ylim=(0.1, 0.9), aspect="equal")
    axis.axis("off")
    figure.text(0.43, 0.60, "undulatus", color=DARK, fontsize=66, weight="bold")
    figure.text(
        0.433, 0.33, "Gaussian-process classification\nof satellite imagery,\n"
        "and how far to believe it", color="#a9d3ee", fontsize=25, linespacing=1.35,
    )  # fmt: skip
    figure.savefig(path, facecolor=LIGHT)


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for name, colour, count, width in (
        ("logo-light.svg", LIGHT, 8, 5.2),
        ("logo-dark.svg", DARK, 8, 5.2),
        ("favicon.svg", ACCENT, 4, 11.0),
    ):
        (FOLDER / name).write_text(_svg(colour, count, width))
    _draw_card(FOLDER / "card.png")


if __name__ == "__main__":
    main()
