"""The paper's figures, drawn again from trials: one colour and mark for each method.

Lines are wider and darker the more rows a method learned from.
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

from undulatus.paper.runs import EXACT, METHOD_NAMES, Run, means, regimes_in
from undulatus.paper.scales import LANDMARKS, SOUNDER
from undulatus.paper.verdicts import count, share, span

COLOURS = {"vff": "#0072b2", "rff": "#d55e00", "gpc": "#2b2b2b"}
"""Distinct also for colour-blind readers (Okabe & Ito 2008); in grey the marks differ."""

MARKS = {"vff": "o", "rff": "^", "gpc": "s"}

DASHES: dict[str, Any] = {"vff": "-", "rff": "-", "gpc": (0, (5, 2))}

NARROW, WIDE = 1.0, 3.4
"""Line widths of the fewest and the most rows, points ..."""

WIDE_GPC = 2.2
"""... and of the most rows of GPC, whose level lines cross the others."""

PALE = 0.5
"""Share of white in the colour of the fewest rows."""

TICKS_APART = 1.6
"""Two values of D in a smaller ratio do not both get a tick."""

DPI = 150

SOLVER_NAMES = {
    "batch": "the paper's algorithm (batch)",
    "stochastic": "our algorithm (stochastic)",
}

MAPS = "maps"
"""File name of the classification maps, which :mod:`undulatus.paper.best_maps` draws."""


@dataclass(frozen=True)
class Panel:
    """What is drawn against what; ``x`` and ``y`` are columns of the table of means."""

    title: str
    x: str
    y: str

    @property
    def against_frequencies(self) -> bool:
        """Whether the panel is against D, of which GPC has none."""
        return self.x == "D"


LABELS = {
    "D": "number of frequencies D",
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


@dataclass(frozen=True)
class WrittenFigure:
    """A figure: its files, its caption, and its text for readers who cannot see it."""

    name: str
    title: str
    png: Path
    pdf: Path
    caption: str
    alt: str


def draw_figures(run: Run, folder: Path) -> list[WrittenFigure]:
    """Draw every figure that there are trials for, as PNG and PDF."""
    folder.mkdir(parents=True, exist_ok=True)
    table = means(run.done)
    if table.empty:
        return []
    style = FigureStyle(table)
    solvers = run.solvers or ("batch",)
    figures = [_draw_comparison(run, table, style, solver, folder) for solver in solvers]
    if run.experiment == SOUNDER and table["train_accuracy"].notna().any():
        figures.append(_draw_overfitting(run, table, style, solvers, folder))
    maps = folder / MAPS
    if maps.with_suffix(".png").is_file():
        figures.append(_written_maps(run, maps))
    return figures


def _draw_comparison(
    run: Run, table: pd.DataFrame, style: FigureStyle, solver: str, folder: Path
) -> WrittenFigure:
    """Draw accuracy and times against D, and accuracy against time, a row for each regime."""
    shown = table[table["solver"].isin([solver, EXACT])]
    ours = shown[shown["solver"] == solver]
    # A row with GPC alone would show nothing of this solver.
    regimes = regimes_in((ours if len(ours) else shown)["regime"]) or [""]
    landmarks = run.experiment == LANDMARKS
    rows, columns = (len(regimes), 4) if landmarks else (2, 2)
    figure = Figure(figsize=(4.3 * columns, 3.3 * rows + 2.0), dpi=DPI)
    axes = figure.subplots(rows, columns, squeeze=False)
    for row, regime in enumerate(regimes):
        inside = shown[shown["regime"] == regime]
        for place, panel in enumerate(PANELS):
            axis = axes[row, place] if landmarks else axes.flat[place]
            _draw_with_limits(axis, inside, panel, style, regime)
            axis.set_title(f"{regime}: {_lower(panel.title)}" if regime else panel.title)
    title = f"{_subject(run)}, {SOLVER_NAMES[solver]}"
    name = f"{run.experiment}-{solver}"
    png, pdf = _finish(figure, run, shown, style, title, folder / name)
    caption = (
        f"{_points_text(shown, run)} "
        f"Lines are wider and darker the more rows a method learned from. GPC has no frequencies: "
        f"its lines are level, its points single. Bars are standard errors."
    )
    return WrittenFigure(name, title, png, pdf, caption, _alt(shown, regimes))


def _draw_overfitting(
    run: Run, table: pd.DataFrame, style: FigureStyle, solvers: Iterable[str], folder: Path
) -> WrittenFigure:
    """Draw accuracy on training rows beside that on others, a row for each solver."""
    solvers = list(solvers)
    size = (9.2, 3.4 * len(solvers) + 1.9)
    figure = Figure(figsize=size, dpi=DPI)
    axes = figure.subplots(len(solvers), 2, squeeze=False, sharey=True)
    for row, solver in zip(axes, solvers, strict=True):
        shown = table[table["solver"].isin([solver, EXACT])]
        for axis, panel in zip(row, (LEARNED, ACCURACY), strict=True):
            draw_panel(axis, shown, panel, style)
            where = "training rows" if panel is LEARNED else "test rows"
            axis.set_title(f"{solver}: {where}")
            axis.set_ylabel("accuracy, %")
            axis.tick_params(labelleft=True)
    title = f"{_subject(run)}: accuracy on training and on test rows"
    png, pdf = _finish(figure, run, table, style, title, folder / "overfitting")
    caption = (
        f"Accuracy on the rows a method learned from (left) and on others (right), against the "
        f"number of frequencies. Where the left rises and the right falls, it over-fits. "
        f"{_points_text(table, run)}"
    )
    vff = table[table["method"] == "vff"]
    ends = (
        f"{solver}: at D = {last.D}, {share(last.train_accuracy)} of training and "
        f"{share(last.accuracy)} of test rows"
        for solver, rows in vff.groupby("solver")
        for last in [rows.sort_values("D").iloc[-1]]
    )
    alt = f"Lines of accuracy against D on training and on test rows. VFF-GPC, {'; '.join(ends)}."
    return WrittenFigure("overfitting", title, png, pdf, caption, alt)


def _written_maps(run: Run, path: Path) -> WrittenFigure:
    title = "Classification maps"
    caption = (
        f"Acquisitions of held-out days, two under each sun: one in which the "
        f"model's mask and the Level-2 mask differ by about the median, and the one in which they "
        f"differ most. The model is, under each sun, the most accurate RFF-GPC or VFF-GPC. "
        f"{data_statement(run)}"
    )
    alt = "Rows of acquisitions: images, Level-2 mask, the model's mask, probability, uncertainty."
    return WrittenFigure(
        MAPS, title, path.with_suffix(".png"), path.with_suffix(".pdf"), caption, alt
    )


def _draw_with_limits(
    axis: Axes, inside: pd.DataFrame, panel: Panel, style: FigureStyle, regime: str
) -> None:
    draw_panel(axis, inside, panel, style)
    axis.set_ylim(style.limits(panel.y, regime))
    if not panel.against_frequencies:
        axis.set_xlim(style.limits(panel.x, regime))


def _finish(
    figure: Figure, run: Run, shown: pd.DataFrame, style: FigureStyle, title: str, path: Path
) -> tuple[Path, Path]:
    """Add the title, and legend and notes in a strip below; write the figure twice."""
    wide, tall = figure.get_size_inches()
    notes = [line for note in _notes(run) for line in textwrap.wrap(note, int(wide * 12))]
    below = 0.1 + 0.19 * len(notes)
    figure.suptitle(title, fontsize=15)
    for place, line in enumerate(notes):
        y = (below - 0.03 - 0.19 * place) / tall
        figure.text(0.5, y, line, fontsize=9.5, style="italic", ha="center", va="top")
    strip = below + 0.1 + draw_method_legend(figure, shown, style, below)
    room = (0.0, strip / tall, 1.0, 1.0 - strip / tall)
    figure.set_layout_engine("constrained", rect=room, w_pad=0.1, h_pad=0.08)
    png, pdf = path.with_suffix(".png"), path.with_suffix(".pdf")
    figure.savefig(png)
    # The layout is final: do not compute it again.
    figure.set_layout_engine("none")
    figure.savefig(pdf)
    return png, pdf


class FigureStyle:
    """Widths and shades by number of rows, and limits of axes, the same in all of a run."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table

    def sizes(self, method: str) -> list[int]:
        """Return the sizes n of GPC, or of the other methods together."""
        alike = (self.table["method"] == "gpc") == (method == "gpc")
        return sorted(int(n) for n in self.table.loc[alike, "n"].unique())

    def rank(self, method: str, n: int) -> float:
        """Return 0 for the fewest rows, 1 for the most, in even steps between."""
        sizes = self.sizes(method)
        return sizes.index(n) / (len(sizes) - 1) if len(sizes) > 1 else 1.0

    def line(self, method: str, n: int) -> dict[str, Any]:
        """Return the style of the line of a method and number of rows."""
        rank = self.rank(method, n)
        wide = WIDE if method != "gpc" else WIDE_GPC
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
        """Return the limits of an axis: of accuracies in one regime, of times in all."""
        table = self.table
        if column in ("accuracy", "train_accuracy"):
            inside = table[table["regime"] == regime]
            error = inside["accuracy_error"].fillna(0.0)
            low, high = (100.0 * (inside[column] + sign * error) for sign in (-1.0, 1.0))
            edge = max(0.05 * (high.max() - low.min()), 0.2)
            return low.min() - edge, high.max() + edge
        known = table[column][table[column] > 0.0]
        return known.min() / 1.6, known.max() * 1.6


def draw_panel(axis: Axes, table: pd.DataFrame, panel: Panel, style: FigureStyle) -> None:
    """Draw the means of a regime: a line for each method and n; GPC has level lines or points."""
    frequencies = sorted({int(D) for D in style.table["D"] if D > 0})
    for method in ("gpc", "rff", "vff"):
        for n, rows in table[table["method"] == method].groupby("n"):
            line = style.line(method, int(n))
            known = rows.dropna(subset=[panel.y]).sort_values("D")
            if method == "gpc" and panel.against_frequencies:
                line.pop("marker")
                for value in _scaled(known, panel.y):
                    axis.axhline(value, **line)
            else:
                _draw_line(axis, known, panel, line)
    _set_axes(axis, panel, frequencies)


def _draw_line(axis: Axes, rows: pd.DataFrame, panel: Panel, line: dict[str, Any]) -> None:
    error = 100.0 * rows["accuracy_error"].fillna(0.0) if panel.y == "accuracy" else None
    x, y = _scaled(rows, panel.x), _scaled(rows, panel.y)
    axis.errorbar(x, y, error, **line, elinewidth=1.0, zorder=3)


def _scaled(rows: pd.DataFrame, column: str) -> pd.Series:
    return rows[column] * 100.0 if column.endswith("accuracy") else rows[column]


def _set_axes(axis: Axes, panel: Panel, frequencies: Sequence[int]) -> None:
    for name, which in ((panel.x, axis.xaxis), (panel.y, axis.yaxis)):
        if name.endswith("seconds"):
            (axis.set_xscale if which is axis.xaxis else axis.set_yscale)("log")
            which.set_major_locator(LogLocator(10.0, numticks=7))
    if panel.against_frequencies and frequencies:
        axis.set_xscale("log")
        axis.xaxis.set_major_locator(FixedLocator(_ticks(frequencies)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
        axis.set_xlim(frequencies[0] / 1.15, frequencies[-1] * 1.15)
    axis.set_xlabel(LABELS[panel.x])
    axis.set_ylabel(LABELS[panel.y])
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _ticks(frequencies: Sequence[int]) -> list[int]:
    """Return numbers of frequencies far enough apart for ticks; the largest is one of them."""
    kept: list[int] = []
    for D in sorted(frequencies, reverse=True):
        if not kept or kept[-1] >= TICKS_APART * D:
            kept.append(D)
    return kept[::-1]


def draw_method_legend(
    figure: Figure, table: pd.DataFrame, style: FigureStyle, above: float
) -> float:
    """Put one legend below all panels, ``above`` inches above the edge; return its height.

    It has a column for each method and a line for each n.
    """
    columns = []
    for method, name in METHOD_NAMES.items():
        if not (table["method"] == method).any():
            continue
        sizes = sorted(table.loc[table["method"] == method, "n"].unique())
        columns.append(
            [
                Line2D(
                    [],
                    [],
                    label=f"{name}, n = {n:,}",
                    **style.line(method, int(n)),
                )
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


def _notes(run: Run) -> list[str]:
    """Return the notes that a reader of a figure needs: the data, and the trials left out."""
    notes = [data_statement(run)]
    for (method, n), rows in run.not_done.groupby(["method", "n"]):
        where = regimes_in(rows["regime"])
        why = " or ".join(sorted(set(rows["status"])))
        inside = f" ({', '.join(where)})" if where else ""
        frequencies = sorted({int(D) for D in rows["D"] if D > 0})
        with_d = f", D = {span(frequencies)}" if frequencies else ""
        notes.append(
            f"Not shown: {len(rows)} trials of {METHOD_NAMES[method]}, n = {count(n)}{with_d}"
            f"{inside}: {why}."
        )
    return notes


def data_statement(run: Run) -> str:
    """Return the source of a run's data, and whether they are measured or synthetic."""
    kind = "synthetic: no satellite took these" if run.facts.synthetic else "measured"
    return f"Data: {run.facts.data.get('source', 'unknown')} ({kind})."


def _subject(run: Run) -> str:
    what = "Clouds over landmarks" if run.experiment == LANDMARKS else "Clouds in spectra"
    return f"{what} ({run.facts.scale} scale)"


def _lower(title: str) -> str:
    return title[0].lower() + title[1:]


def _points_text(table: pd.DataFrame, run: Run) -> str:
    noun = "fold" if run.experiment == SOUNDER else "run"
    runs = span(table["runs"]).replace("and", "or")
    rows = run.done["test_rows"].dropna().astype(int)
    tested = f" Tests are of {span(rows)} rows." if len(rows) else ""
    return f"Each point is the mean of {runs} {noun}{'' if runs == '1' else 's'}.{tested}"


def _alt(shown: pd.DataFrame, regimes: Iterable[str]) -> str:
    """Return in words the best accuracy of each method, and at which size."""
    accuracies = []
    for regime in regimes:
        inside = shown[shown["regime"] == regime].dropna(subset=["accuracy"])
        best = [
            f"{METHOD_NAMES[row.method]} {share(row.accuracy)} (n = {count(row.n)}"
            + (f", D = {row.D})" if row.D else ")")
            for row in _best_of(inside)
        ]
        accuracies.append(f"{regime + ': ' if regime else ''}{', '.join(best)}")
    return (
        "Line plots of accuracy and of CPU times to train and to test against the number of "
        "frequencies, and of accuracy against training time. "
        f"Best accuracies: {'; '.join(accuracies)}."
    )


def _best_of(inside: pd.DataFrame) -> Iterable[Any]:
    best = inside.loc[inside.groupby("method")["accuracy"].idxmax()]
    return best.sort_values("accuracy", ascending=False).itertuples()
