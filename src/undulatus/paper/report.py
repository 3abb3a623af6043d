"""The report of a run: one page with its data, the paper's claims and verdicts, figures, tables.

The page is self-contained: figures are embedded, and nothing is loaded over a network.
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from undulatus._files import write_text
from undulatus.paper.claims import SYMBOLS, Finding, tally
from undulatus.paper.figures import SOLVER_NAMES, WrittenFigure, data_statement, draw_figures
from undulatus.paper.runs import METHOD_NAMES, SETTING, Run, means, regimes_in
from undulatus.paper.scales import LANDMARKS, SOUNDER
from undulatus.paper.verdicts import FAILS, HOLDS, UNTESTED, count, digits, span
from undulatus.products.templates import render_template

TITLES = {LANDMARKS: "Clouds over landmarks", SOUNDER: "Clouds in spectra (IAVISA)"}

CLASSES = {HOLDS: "holds", FAILS: "fails", UNTESTED: "untested"}

PAPER = (
    "P. Morales-Álvarez, A. Pérez-Suay, R. Molina, G. Camps-Valls: Remote Sensing Image "
    "Classification with Large Scale Gaussian Processes. IEEE TGRS 56(2), 2018"
)


def write_report(out: Path, run: Run, findings: Sequence[Finding]) -> Path:
    """Draw the figures of a run into ``OUT/figures`` and write ``OUT/report/index.html``.

    ``findings`` are those of :func:`undulatus.paper.claims.judge_claims`. Returns the path of the
    page; an earlier page is replaced, whole.
    """
    figures = draw_figures(run, out / "figures")
    page = out / "report" / "index.html"
    page.parent.mkdir(exist_ok=True)
    write_text(page, render(run, findings, figures, out.name))
    return page


def render(
    run: Run, findings: Sequence[Finding], figures: Sequence[WrittenFigure], folder: str
) -> str:
    """Return the page; ``folder`` is the name of the run's folder."""
    return render_template(
        "undulatus.paper",
        "report.html.jinja",
        title=f"{TITLES[run.experiment]}, {run.facts.scale} scale",
        paper=PAPER,
        statement=data_statement(run),
        synthetic=run.facts.synthetic,
        counted=trials_counted(run),
        findings=findings,
        tally=tally(findings),
        solver_names=SOLVER_NAMES,
        symbols=SYMBOLS,
        classes=CLASSES,
        figures=[(figure, _embedded(figure.png)) for figure in figures],
        tables=means_tables(run),
        not_done=not_done_table(run),
        facts=_facts_text(run),
        command=command_of(run, folder),
    )


def _embedded(png: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")


def _facts_text(run: Run) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return the facts about a run in groups, as text."""
    facts = run.facts
    groups: dict[str, dict[str, Any]] = {
        "Run": {
            "experiment": facts.experiment,
            "scale": facts.scale,
            # A seed is a name, not an amount: no commas in it.
            "seed": str(facts.seed),
            "started": facts.started,
            "took": None if facts.seconds is None else timedelta(seconds=round(facts.seconds)),
        },
        "Data": facts.data,
        "Grid": facts.grid,
        "Environment": facts.environment,
    }
    return [(name, _fact_lines(group)) for name, group in groups.items() if group]


def command_of(run: Run, folder: str) -> str:
    """Return the command that repeats the run."""
    words = ["undulatus", "reproduce", run.experiment, "--scale", run.facts.scale]
    words += ["--seed", str(run.facts.seed)]
    path = run.facts.data.get("path")
    if path:
        words += ["--data", str(path)]
    return shlex.join([*words, "-o", folder])


@dataclass(frozen=True)
class Table:
    """A table of text; the first ``words`` columns are words, the others numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]
    words: int = 0


def _percent(value: float) -> str:
    return f"{100.0 * value:.2f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


COLUMNS: dict[str, tuple[str, Callable[[float], str]]] = {
    "accuracy": ("accuracy, %", _percent),
    "accuracy_error": ("± std. error", _percent),
    "train_accuracy": ("on training rows, %", _percent),
    "fit_cpu_seconds": ("CPU to train, s", digits),
    "predict_cpu_seconds": ("CPU to test, s", digits),
    "truth_accuracy": ("against truth, %", _percent),
    "label_accuracy": ("labels against truth, %", _percent),
    "coast_accuracy": ("coast against truth, %", _percent),
    "coast_label_accuracy": ("labels at coast, %", _percent),
    "nll": ("NLL", _three),
    "ece": ("ECE", _three),
    "auc": ("AUC", _three),
    "peak_mb": ("peak memory, MB", digits),
}
"""Heading and format of each measure in the tables of means."""


def means_tables(run: Run) -> list[Table]:
    """Return a table of means for each regime; measures that no trial has are left out."""
    table = means(run.done)
    if table.empty:
        return []
    shown = [name for name in COLUMNS if table[name].notna().any()]
    head = ["method", "solver", "n", "D", "runs", *(COLUMNS[name][0] for name in shown)]
    tables = []
    for regime in regimes_in(table["regime"]) or [""]:
        rows = [
            [
                METHOD_NAMES[row["method"]],
                row["solver"],
                count(row["n"]),
                count(row["D"]) if row["D"] else "",
                str(row["runs"]),
                *(_cell(name, row[name]) for name in shown),
            ]
            for row in table[table["regime"] == regime].to_dict("records")
        ]
        title = f"Illumination: {regime}" if regime else "All spectra"
        tables.append(Table(title, head, rows, words=2))
    return tables


def _cell(measure: str, value: float) -> str:
    return "" if pd.isna(value) else COLUMNS[measure][1](value)


def not_done_table(run: Run) -> Table | None:
    """Return the trials that were not done and why, similar ones in one row; None if all were."""
    if run.not_done.empty:
        return None
    alike = ["method", "solver", "n", "status", "reason"]
    rows = []
    for (method, solver, n, status, reason), trials in run.not_done.groupby(alike):
        where = regimes_in(trials["regime"])
        frequencies = [int(D) for D in trials["D"] if D > 0]
        words = [METHOD_NAMES.get(method, method), solver, ", ".join(where), status, reason]
        rows.append([*words, count(n), span(frequencies), str(len(trials))])
    head = ["method", "solver", "regimes", "what", "why", "n", "D", "trials"]
    return Table("Trials not done", head, rows, words=5)


def _fact_lines(facts: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return facts as names and lines of text; those that are None are left out."""
    return [(_name(name), _lines(value)) for name, value in facts.items() if value is not None]


def _name(name: str) -> str:
    return str(name).replace("_", " ")


def _lines(value: Any) -> list[str]:
    """Return a fact as lines: one for each entry of a mapping or of a list of mappings."""
    if isinstance(value, Mapping):
        return [f"{_name(name)}: {_line(entry)}" for name, entry in value.items()]
    if isinstance(value, list | tuple) and any(isinstance(entry, Mapping) for entry in value):
        return [_line(entry) for entry in value]
    return [_line(value)]


def _line(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_line(entry) for entry in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{_name(name)} {_line(entry)}" for name, entry in value.items() if entry)
    return str(value)


def trials_counted(run: Run) -> str:
    """Return how many trials and settings a run has, in words."""
    settings = len(run.done.groupby(SETTING)) if len(run.done) else 0
    return f"{len(run.done):,} trials done of {len(run.trials):,}, {settings:,} settings"
