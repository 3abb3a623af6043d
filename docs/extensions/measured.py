"""Directives that write tables from the records of the benchmarks and from the package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

COLUMNS = (
    ("accuracy", "accuracy", ".3f", 1.0),
    ("NLL", "nll", ".3f", 1.0),
    ("ECE", "ece", ".3f", 1.0),
    ("fit, s", "fit_seconds", ".1f", 1.0),
    ("labels, million a second", "labels_per_second", ".2f", 1e-6),
    ("probabilities, million a second", "probabilities_per_second", ".2f", 1e-6),
)


def make_table(rows: Iterable[Iterable[str]]) -> nodes.table:
    """Return a table whose first row is its head."""
    lines = [list(row) for row in rows]
    group = nodes.tgroup(cols=len(lines[0]))
    for _ in lines[0]:
        group += nodes.colspec(colwidth=1)
    built = [
        nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in line))
        for line in lines
    ]
    group += [nodes.thead("", built[0]), nodes.tbody("", *built[1:])]
    return nodes.table("", group)


def _cell(trial: dict[str, Any], name: str, form: str, scale: float) -> str:
    return format(trial[name] * scale, form) if name in trial else "-"


class BenchmarkDirective(Directive):
    """The table of one task, named by the argument, from the last full run."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        found = json.loads((RESULTS / "benchmark.json").read_text())
        trials = [
            t for t in found["trials"] if t["task"] == self.arguments[0] and t["effort"] == 1.0
        ]
        head = ["", *(title for title, *_ in COLUMNS)]
        rows = [
            [trial["contender"], *(_cell(trial, *column[1:]) for column in COLUMNS)]
            for trial in trials
        ]
        return [make_table([head, *rows])]


class MachineDirective(Directive):
    """When and on what the last full run was made."""

    def run(self) -> list[nodes.Node]:
        """Return a paragraph."""
        found = json.loads((RESULTS / "benchmark.json").read_text())
        machine = found["machine"]
        packages = ("scikit-learn", "lightgbm", "gpytorch", "rfflearn", "numpy", "scipy", "torch")
        versions = ", ".join(f"{name} {machine[name]}" for name in packages)
        text = (
            f"Run of {machine['date']} on {machine['cores']} cores of an {machine['cpu']}, "
            f"{found['minutes']:.0f} minutes in all, with {versions}."
        )
        return [nodes.paragraph("", text)]


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("benchmark", BenchmarkDirective)
    app.add_directive("benchmark-machine", MachineDirective)
    return {"parallel_read_safe": True}
