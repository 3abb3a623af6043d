"""How trials are drawn: one colour and mark a method, wider and darker lines for more rows.

The paper's figures, drawn again from trials.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from undulatus._daylight import REGIMES
from undulatus.paper.trials import EXACT, NAMES, Run, means
from undulatus.paper.verdicts import count, share, span

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


DPI = 150

HOW = {"batch": "the paper's algorithm (batch)", "stochastic": "our algorithm (stochastic)"}

MAPS = "maps"
"""Classification maps, drawn elsewhere from a model, as PNG and PDF."""


@dataclass(frozen=True)
class Drawn:
    """A figure, where it was written, and what to say of it to who reads or cannot see it."""

    name: str
    title: str
    png: Path
    pdf: Path
    caption: str
    alt: str


def draw_figures(run: Run, folder: Path) -> list[Drawn]:
    """Draw every figure there are trials for, as PNG and PDF, and say what they show."""
    folder.mkdir(parents=True, exist_ok=True)
    table = means(run.done)
    if table.empty:
        return []
    look = Look(table)
    solvers = run.solvers or ("batch",)
    drawn = [_draw_comparison(run, table, look, solver, folder) for solver in solvers]
    if run.experiment == "iavisa" and table["train_accuracy"].notna().any():
        drawn.append(_draw_overfitting(run, table, look, solvers, folder))
    maps = folder / MAPS
    if maps.with_suffix(".png").is_file():
        drawn.append(_maps(run, maps))
    return drawn


def _draw_comparison(
    run: Run, table: pd.DataFrame, look: Look, solver: str, folder: Path
) -> Drawn:
    """Draw accuracy and times against D, and one against the other, a row for each regime."""
    shown = table[table["solver"].isin([solver, EXACT])]
    ours = shown[shown["solver"] == solver]
    # Rows with GPC alone would show nothing of this solver.
    inside = set((ours if len(ours) else shown)["regime"])
    regimes = [name for name in (*REGIMES, "") if name in inside]
    landmarks = run.experiment == "landmarks"
    rows, columns = (len(regimes), 4) if landmarks else (2, 2)
    figure = Figure(figsize=(4.3 * columns, 3.3 * rows + 2.0), dpi=DPI)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, regime in enumerate(regimes):
        inside = shown[shown["regime"] == regime]
        for place, panel in enumerate(PANELS):
            axis = axes[row, place] if landmarks else axes.flat[place]
            _draw(axis, inside, panel, look, regime)
            axis.set_title(f"{regime}: {_lower(panel.title)}" if regime else panel.title)
    title = f"{_subject(run)}, {HOW[solver]}"
    name = f"{run.experiment}-{solver}"
    png, pdf = _finish(figure, run, shown, look, title, folder / name)
    caption = (
        f"{_what(shown, run)} "
        f"Lines are wider and darker the more rows a method learned from. GPC has no waves: its "
        f"lines are level, its points single. Bars are standard errors."
    )
    return Drawn(name, title, png, pdf, caption, _alt(shown, regimes))


def _draw_overfitting(
    run: Run, table: pd.DataFrame, look: Look, solvers: Iterable[str], folder: Path
) -> Drawn:
    """Draw accuracy on training rows beside that on others, a row for each solver."""
    solvers = list(solvers)
    size = (9.2, 3.4 * len(solvers) + 1.9)
    figure = Figure(figsize=size, dpi=DPI)
    axes = figure.subplots(len(solvers), 2, squeeze=False, sharey=True)
    for row, solver in zip(axes, solvers, strict=True):
        shown = table[table["solver"].isin([solver, EXACT])]
        for axis, panel in zip(row, (LEARNED, ACCURACY), strict=True):
            draw_panel(axis, shown, panel, look)
            where = "training rows" if panel is LEARNED else "test rows"
            axis.set_title(f"{solver}: {where}")
            axis.set_ylabel("accuracy, %")
            axis.tick_params(labelleft=True)
    title = f"{_subject(run)}: accuracy on training and on test rows"
    png, pdf = _finish(figure, run, table, look, title, folder / "overfitting")
    caption = (
        f"Accuracy on the rows a method learned from (left) and on others (right), against the "
        f"number of waves. Where the left rises and the right falls, it over-fits. "
        f"{_what(table, run)}"
    )
    vff = table[table["method"] == "vff"]
    ends = (
        f"{solver}: at D = {last.D}, {share(last.train_accuracy)} of training and "
        f"{share(last.accuracy)} of test rows"
        for solver, rows in vff.groupby("solver")
        for last in [rows.sort_values("D").iloc[-1]]
    )
    alt = f"Lines of accuracy against D on training and on test rows. VFF-GPC, {'; '.join(ends)}."
    return Drawn("overfitting", title, png, pdf, caption, alt)


def _draw(axis: Axes, inside: pd.DataFrame, panel: Panel, look: Look, regime: str) -> None:
    draw_panel(axis, inside, panel, look)
    axis.set_ylim(look.limits(panel.y, regime))
    if not panel.against_waves:
        axis.set_xlim(look.limits(panel.x, regime))


def _finish(
    figure: Figure, run: Run, shown: pd.DataFrame, look: Look, title: str, path: Path
) -> tuple[Path, Path]:
    """Add title, legend and notes, which have a strip of their own, and write the figure twice."""
    wide, tall = figure.get_size_inches()
    notes = [line for note in _notes(run) for line in textwrap.wrap(note, int(wide * 12))]
    below = 0.1 + 0.19 * len(notes)
    figure.suptitle(title, fontsize=15)
    for place, line in enumerate(notes):
        y = (below - 0.03 - 0.19 * place) / tall
        figure.text(0.5, y, line, fontsize=9.5, style="italic", ha="center", va="top")
    strip = below + 0.1 + draw_legend(figure, shown, look, below)
    room = (0.0, strip / tall, 1.0, 1.0 - strip / tall)
    figure.set_layout_engine("constrained", rect=room, w_pad=0.1, h_pad=0.08)
    png, pdf = path.with_suffix(".png"), path.with_suffix(".pdf")
    figure.savefig(png)
    # Where things are has been settled.
    figure.set_layout_engine("none")
    figure.savefig(pdf)
    return png, pdf


def _notes(run: Run) -> list[str]:
    """Return what must be known to read a figure: which data, and which trials are not on it."""
    notes = [data_statement(run)]
    lost = run.not_done
    for (method, n), rows in lost.groupby(["method", "n"]):
        where = [name for name in REGIMES if (rows["regime"] == name).any()]
        why = " or ".join(sorted(set(rows["status"])))
        inside = f" ({', '.join(where)})" if where else ""
        waves = sorted({int(D) for D in rows["D"] if D > 0})
        with_waves = f", D = {span(waves)}" if waves else ""
        notes.append(
            f"Not shown: {len(rows)} trials of {NAMES[method]}, n = {count(n)}{with_waves}"
            f"{inside}: {why}."
        )
    return notes


def data_statement(run: Run) -> str:
    """Return which data a run is of, and that no satellite took them where none did."""
    data = run.facts.get("data", {})
    kind = "synthetic: no satellite took these" if run.synthetic else "measured"
    return f"Data: {data.get('source', 'unknown')} ({kind})."


def _subject(run: Run) -> str:
    what = "Clouds over landmarks" if run.experiment == "landmarks" else "Clouds in spectra"
    return f"{what} ({run.facts.get('scale', 'unknown')} scale)"


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _what(table: pd.DataFrame, run: Run) -> str:
    noun = "fold" if run.experiment == "iavisa" else "run"
    runs = span(table["runs"]).replace("and", "or")
    rows = run.done["test_rows"].dropna().astype(int)
    tested = f" Tests are of {span(rows)} rows." if len(rows) else ""
    return f"Each point is the mean of {runs} {noun}{'' if runs == '1' else 's'}.{tested}"


def _alt(shown: pd.DataFrame, regimes: Iterable[str]) -> str:
    """Return in words the best accuracy of each method, where, and the time it took."""
    told = []
    for regime in regimes:
        inside = shown[shown["regime"] == regime].dropna(subset=["accuracy"])
        best = [
            f"{NAMES[row.method]} {share(row.accuracy)} (n = {count(row.n)}"
            + (f", D = {row.D})" if row.D else ")")
            for row in _best_of(inside)
        ]
        told.append(f"{regime + ': ' if regime else ''}{', '.join(best)}")
    return (
        "Line plots of accuracy and of CPU times to train and to test against the number of "
        f"waves, and of accuracy against training time. Best accuracies: {'; '.join(told)}."
    )


def _best_of(inside: pd.DataFrame) -> Iterable[Any]:
    best = inside.loc[inside.groupby("method")["accuracy"].idxmax()]
    return best.sort_values("accuracy", ascending=False).itertuples()


def _maps(run: Run, path: Path) -> Drawn:
    title = "Classification maps"
    caption = (
        f"Acquisitions of days that were not learned from, two under each sun: one in which the "
        f"model's mask and the Level-2 mask differ as much as they mostly do, and the one in "
        f"which they differ most. The model is, under each sun, the RFF-GPC or VFF-GPC that was "
        f"right most often. {data_statement(run)}"
    )
    alt = "Rows of acquisitions: images, Level-2 mask, the model's mask, probability, uncertainty."
    return Drawn(MAPS, title, path.with_suffix(".png"), path.with_suffix(".pdf"), caption, alt)
