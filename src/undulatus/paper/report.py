"""The tables of a report: means, trials that were not done, and facts.

A run as one page: what it ran on, what the paper claims and what came out, figures, tables.

The page needs nothing but itself: figures are in it, and it asks for nothing over a network.

A run of the paper's experiments as one page, with its figures drawn again.
"""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd

from undulatus._daylight import REGIMES
from undulatus.paper.claims import SYMBOLS, Finding, judge_claims, tally
from undulatus.paper.figures import HOW, Drawn, data_statement, draw_figures
from undulatus.paper.trials import KEYS, NAMES, Run, means, read_run
from undulatus.paper.verdicts import FAILS, HOLDS, UNTESTED, count, digits, span
from undulatus.products.templates import render_template


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
"""How means are written, by measure."""


def means_tables(run: Run) -> list[Table]:
    """Return a table of means for each regime; measures nobody took are left out."""
    table = means(run.done)
    shown = [name for name in COLUMNS if table[name].notna().any()]
    head = ["method", "solver", "n", "D", "runs", *(COLUMNS[name][0] for name in shown)]
    tables = []
    for regime in [name for name in (*REGIMES, "") if (table["regime"] == name).any()]:
        rows = [
            [
                NAMES[row["method"]],
                row["solver"],
                count(row["n"]),
                count(row["D"]) if row["D"] else "",
                str(row["runs"]),
                *(_written(name, row[name]) for name in shown),
            ]
            for row in table[table["regime"] == regime].to_dict("records")
        ]
        title = f"Illumination: {regime}" if regime else "All spectra"
        tables.append(Table(title, head, rows, words=2))
    return tables


def _written(measure: str, value: float) -> str:
    return "" if pd.isna(value) else COLUMNS[measure][1](value)


def lost_table(run: Run) -> Table | None:
    """Return which trials were not done and why, alike ones in one row; None if all were."""
    lost = run.not_done
    if lost.empty:
        return None
    alike = ["method", "solver", "n", "status", "reason"]
    rows = []
    for (method, solver, n, status, reason), trials in lost.groupby(alike):
        where = [name for name in REGIMES if (trials["regime"] == name).any()]
        waves = [int(D) for D in trials["D"] if D > 0]
        what = [NAMES.get(method, method), solver, ", ".join(where), status, reason]
        rows.append([*what, count(n), span(waves), str(len(trials))])
    head = ["method", "solver", "regimes", "what", "why", "n", "D", "trials"]
    return Table("Trials not done", head, rows, words=5)


def facts_of(told: Mapping[str, Any]) -> list[tuple[str, list[str]]]:
    """Return facts as names and lines of text; what is not known is left out."""
    return [(_name(name), _lines(value)) for name, value in told.items() if value is not None]


def _name(name: str) -> str:
    return str(name).replace("_", " ")


def _lines(value: Any) -> list[str]:
    """Return a fact as lines: one, or one for each part of a fact that has parts with parts."""
    if isinstance(value, Mapping):
        return [f"{_name(name)}: {_line(part)}" for name, part in value.items()]
    if isinstance(value, list | tuple) and any(isinstance(part, Mapping) for part in value):
        return [_line(part) for part in value]
    return [_line(value)]


def _line(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(_line(part) for part in value)
    if isinstance(value, Mapping):
        return "; ".join(f"{_name(name)} {_line(part)}" for name, part in value.items() if part)
    return str(value)


def trials_counted(run: Run) -> str:
    """Return how many trials and settings a run has, in words."""
    settings = len(run.done.groupby(KEYS)) if len(run.done) else 0
    return f"{len(run.done):,} trials done of {len(run.trials):,}, {settings:,} settings"


TITLES = {"landmarks": "Clouds over landmarks", "iavisa": "Clouds in spectra (IAVISA)"}

CLASSES = {HOLDS: "holds", FAILS: "fails", UNTESTED: "untested"}

PAPER = (
    "P. Morales-Álvarez, A. Pérez-Suay, R. Molina, G. Camps-Valls: Remote Sensing Image "
    "Classification with Large Scale Gaussian Processes. IEEE TGRS 56(2), 2018"
)


def write_report(out: Path) -> Path:
    """Draw the figures of a run into ``OUT/figures`` and write ``OUT/report/index.html``.

    Returns
    -------
    Path
        Of the page. One that is there already is replaced, whole.
    """
    run = read_run(out)
    drawn = draw_figures(run, out / "figures")
    page = out / "report" / "index.html"
    page.parent.mkdir(exist_ok=True)
    unfinished = page.with_name(f".index.unfinished-{os.getpid()}.html")
    unfinished.write_text(render(run, judge_claims(run), drawn, out.name), encoding="utf-8")
    unfinished.replace(page)
    return page


def render(run: Run, findings: list[Finding], drawn: list[Drawn], folder: str) -> str:
    """Return the page; ``folder`` is the name of the run's folder."""
    scale = run.facts.get("scale", "unknown")
    return render_template(
        "undulatus.paper",
        "report.html.jinja",
        title=f"{TITLES[run.experiment]}, {scale} scale",
        paper=PAPER,
        statement=data_statement(run),
        synthetic=run.synthetic,
        counted=trials_counted(run),
        findings=findings,
        tally=tally(findings),
        how=HOW,
        symbols=SYMBOLS,
        classes=CLASSES,
        figures=[(figure, _embedded(figure.png)) for figure in drawn],
        tables=means_tables(run),
        lost=lost_table(run),
        facts=_facts(run),
        command=command_of(run, folder),
    )


def _embedded(png: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(png.read_bytes()).decode("ascii")


def _facts(run: Run) -> list[tuple[str, list[tuple[str, list[str]]]]]:
    """Return what is known of the run, in groups."""
    told = run.facts
    took = told.get("seconds")
    about: dict[str, Any] = {
        "experiment": run.experiment,
        "scale": told.get("scale"),
        # A seed is a name, not an amount: no commas in it.
        "seed": str(told["seed"]) if told.get("seed") is not None else None,
        "started": told.get("started"),
        "took": str(timedelta(seconds=round(took))) if took is not None else None,
    }
    groups = {
        "Run": about,
        "Data": told.get("data", {}),
        "Grid": told.get("grid", {}),
        "Environment": told.get("environment", {}),
    }
    return [(name, facts_of(group)) for name, group in groups.items() if group]


def command_of(run: Run, folder: str) -> str:
    """Return the command that makes the run again: as it was given, or as it must have been."""
    if "command" in run.facts:
        return str(run.facts["command"])
    words = ["undulatus", "reproduce", run.experiment, "--scale", str(run.facts.get("scale"))]
    if run.facts.get("seed") is not None:
        words += ["--seed", str(run.facts["seed"])]
    path = run.facts.get("data", {}).get("path")
    if path:
        words += ["--data", str(path)]
    return shlex.join([*words, "-o", folder])


__all__ = ["write_report"]
