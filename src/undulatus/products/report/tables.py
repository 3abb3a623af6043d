"""The tables of a report: means, trials that were not done, and facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from undulatus.products.claims.measured import KEYS, NAMES, Run, means
from undulatus.products.claims.phrasing import count, digits, span
from undulatus.scenes.illumination import REGIMES


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
