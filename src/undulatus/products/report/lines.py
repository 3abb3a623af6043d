"""How trials are drawn: one colour and mark a method, wider and darker lines for more rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from undulatus.products.claims.measured import NAMES

COLOURS = {"vff": "#0072b2", "rff": "#d55e00", "gpc": "#2b2b2b"}
"""Told apart by all who see colours differently (Okabe & Ito 2008), and in grey by the marks."""
MARKS = {"vff": "o", "rff": "^", "gpc": "s"}
DASHES: dict[str, Any] = {"vff": "-", "rff": "-", "gpc": (0, (5, 2))}
NARROW, WIDE = 1.0, 3.4
"""Line widths of the fewest and the most rows, points ..."""
LEVEL = 2.2
"""... and of the most rows of GPC, whose lines cross the others."""
PALE = 0.5
"""How much white is in the colour of the fewest rows."""
TICKS_APART = 1.6
"""Ratio below which two numbers of waves share a tick."""


@dataclass(frozen=True)
class Panel:
    """What is drawn against what; ``x`` and ``y`` are columns of the table of means."""

    title: str
    x: str
    y: str

    @property
    def against_waves(self) -> bool:
        """Whether the panel is against D, of which GPC has none."""
        return self.x == "D"


LABELS = {
    "D": "number of waves D",
    "accuracy": "accuracy on test rows, %",
    "train_accuracy": "accuracy on training rows, %",
    "fit_cpu_seconds": "CPU time to train, s",
    "predict_cpu_seconds": "CPU time to test, s",
}
ACCURACY = Panel("Accuracy", "D", "accuracy")
TRAINING = Panel("Training time", "D", "fit_cpu_seconds")
TRADE = Panel("Accuracy for training time", "fit_cpu_seconds", "accuracy")
TESTING = Panel("Test time", "D", "predict_cpu_seconds")
LEARNED = Panel("Accuracy on training rows", "D", "train_accuracy")
PANELS = (ACCURACY, TRAINING, TRADE, TESTING)


class Look:
    """Widths and shades by number of rows, and limits of axes, the same in all of a run."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def sizes(self, method: str) -> list[int]:
        """Return the sizes n that are ranked together: those of GPC, or of the others."""
        alike = (self.table["method"] == "gpc") == (method == "gpc")
        return sorted(int(n) for n in self.table.loc[alike, "n"].unique())

    def rank(self, method: str, n: int) -> float:
        """Return 0 for the fewest rows, 1 for the most, in even steps between."""
        sizes = self.sizes(method)
        return sizes.index(n) / (len(sizes) - 1) if len(sizes) > 1 else 1.0

    def line(self, method: str, n: int) -> dict[str, Any]:
        """Return how a line of a method and number of rows is drawn."""
        rank = self.rank(method, n)
        wide = WIDE if method != "gpc" else LEVEL
        white = PALE * (1.0 - rank)
        colour = tuple(white + (1.0 - white) * part for part in to_rgb(COLOURS[method]))
        return {
            "color": colour,
            "linestyle": DASHES[method],
            "linewidth": NARROW + (wide - NARROW) * rank,
            "marker": MARKS[method],
            "markersize": 5.0 + 3.0 * rank,
            "markeredgecolor": "white",
            "markeredgewidth": 0.6,
        }

    def limits(self, column: str, regime: str) -> tuple[float, float]:
        """Return the limits of an axis: of accuracies in a regime, of times in all."""
        table = self.table
        if column in ("accuracy", "train_accuracy"):
            inside = table[table["regime"] == regime]
            error = inside["accuracy_error"].fillna(0.0)
            low, high = (100.0 * (inside[column] + sign * error) for sign in (-1.0, 1.0))
            edge = max(0.05 * (high.max() - low.min()), 0.2)
            return low.min() - edge, high.max() + edge
        known = table[column][table[column] > 0.0]
        return known.min() / 1.6, known.max() * 1.6


def draw_panel(axis: Axes, table: pd.DataFrame, panel: Panel, look: Look) -> None:
    """Draw means of a regime: a line for each method and n, and GPC across or as points."""
    waves = sorted({int(D) for D in look.table["D"] if D > 0})
    for method in ("gpc", "rff", "vff"):
        for n, rows in table[table["method"] == method].groupby("n"):
            style = look.line(method, int(n))
            known = rows.dropna(subset=[panel.y]).sort_values("D")
            if method == "gpc" and panel.against_waves:
                style.pop("marker")
                for value in _scaled(known, panel.y):
                    axis.axhline(value, **style)
            else:
                _draw_line(axis, known, panel, style)
    _set_axes(axis, panel, waves)


def _draw_line(axis: Axes, rows: pd.DataFrame, panel: Panel, style: dict[str, Any]) -> None:
    error = 100.0 * rows["accuracy_error"].fillna(0.0) if panel.y == "accuracy" else None
    x, y = _scaled(rows, panel.x), _scaled(rows, panel.y)
    axis.errorbar(x, y, error, **style, elinewidth=1.0, zorder=3)


def _scaled(rows: pd.DataFrame, column: str) -> pd.Series:
    return rows[column] * 100.0 if column.endswith("accuracy") else rows[column]


def _set_axes(axis: Axes, panel: Panel, waves: Sequence[int]) -> None:
    for name, which in ((panel.x, axis.xaxis), (panel.y, axis.yaxis)):
        if name.endswith("seconds"):
            (axis.set_xscale if which is axis.xaxis else axis.set_yscale)("log")
            which.set_major_locator(LogLocator(10.0, numticks=7))
    if panel.against_waves and waves:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator(_spread(waves)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
        axis.set_xlim(waves[0] / 1.15, waves[-1] * 1.15)
    axis.set_xlabel(LABELS[panel.x])
    axis.set_ylabel(LABELS[panel.y])
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _spread(waves: Sequence[int]) -> list[int]:
    """Return the numbers of waves that are far enough apart to be written, the last among them."""
    kept: list[int] = []
    for D in sorted(waves, reverse=True):
        if not kept or kept[-1] >= TICKS_APART * D:
            kept.append(D)
    return kept[::-1]


def draw_legend(figure: Figure, table: pd.DataFrame, look: Look, above: float) -> float:
    """Put one legend below all panels, so many inches above the edge; return its height.

    It has a column for each method and a line for each n.
    """
    columns = []
    for method in (name for name in NAMES if (table["method"] == name).any()):
        sizes = sorted(table.loc[table["method"] == method, "n"].unique())
        columns.append(
            [
                Line2D([], [], label=f"{NAMES[method]}, n = {n:,}", **look.line(method, int(n)))
                for n in sizes
            ]
        )
    tallest = max(len(column) for column in columns)
    blank = Line2D([], [], linestyle="", label=" ")
    handles = [line for c in columns for line in [*c, *[blank] * (tallest - len(c))]]
    figure.legend(
        handles=handles,
        loc="lower center",
        bbox_to_anchor=(0.5, above / figure.get_size_inches()[1]),
        borderaxespad=0.0,
        ncols=len(columns),
        frameon=False,
        fontsize=10,
        handlelength=3.2,
    )
    return 0.22 * tallest
