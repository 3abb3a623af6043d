"""The paper's figures, drawn again from trials."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from undulatus.products.claims.measured import EXACT, NAMES, Run, means
from undulatus.products.claims.phrasing import count, share, span
from undulatus.products.report.lines import (
    ACCURACY,
    LEARNED,
    PANELS,
    Look,
    Panel,
    draw_legend,
    draw_panel,
)
from undulatus.scenes.illumination import REGIMES

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
