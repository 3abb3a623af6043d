"""A run as one page: what it ran on, what the paper claims and what came out, figures, tables.

The page needs nothing but itself: figures are in it, and it asks for nothing over a network.
"""

from __future__ import annotations

import base64
import os
import shlex
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from undulatus.products.claims.measured import Run, read_run
from undulatus.products.claims.registry import SYMBOLS, Finding, judge_claims, tally
from undulatus.products.claims.verdicts import FAILS, HOLDS, UNTESTED
from undulatus.products.report.figures import HOW, Drawn, data_statement, draw_figures
from undulatus.products.report.tables import (
    facts_of,
    lost_table,
    means_tables,
    trials_counted,
)

TEMPLATE = "report.html.jinja"
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
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = files("undulatus.products.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    scale = run.facts.get("scale", "unknown")
    return environment.from_string(text).render(
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
