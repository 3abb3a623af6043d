"""What a run of trials measured, read back from its folder.

A run keeps ``run.json``, the facts about it, and ``trials.jsonl``, one trial a line. Trials are a
table here, a row each. A trial without a regime has the regime ``""``; one without frequencies,
as those of GPC, has ``D`` 0. ``row_seconds`` is the CPU time a test row took.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from undulatus.errors import InputError
from undulatus.scenes.illumination import REGIMES

FACTS, TRIALS = "run.json", "trials.jsonl"
SOLVERS = ("batch", "stochastic")
"""Of RFF-GPC and VFF-GPC: the paper's own algorithm, then ours."""
EXACT = "exact"
NAMES = {"vff": "VFF-GPC", "rff": "RFF-GPC", "gpc": "GPC"}
"""Methods, as they are shown."""
DONE = "done"
KEYS = ["regime", "method", "solver", "n", "D"]
"""What is the same for all runs of a setting."""
MEASURES = (
    "accuracy",
    "train_accuracy",
    "truth_accuracy",
    "coast_accuracy",
    "coast_label_accuracy",
    "label_accuracy",
    "nll",
    "ece",
    "auc",
    "fit_cpu_seconds",
    "predict_cpu_seconds",
    "peak_mb",
)
FOLDS_DIFFER_BY = 2
"""Rows: parts of data in folds are of one size but for this."""


@dataclass(frozen=True)
class Run:
    """A run: the facts about it, and its trials, done or not."""

    facts: dict[str, Any]
    trials: pd.DataFrame

    @property
    def experiment(self) -> str:
        """``"landmarks"`` or ``"iavisa"``."""
        return str(self.facts["experiment"])

    @property
    def synthetic(self) -> bool:
        """Whether the data are a twin's."""
        return bool(self.facts.get("data", {}).get("synthetic", False))

    @property
    def done(self) -> pd.DataFrame:
        """The trials that came to their end."""
        return self.trials[self.trials["status"] == DONE]

    @property
    def not_done(self) -> pd.DataFrame:
        """The trials that did not."""
        return self.trials[self.trials["status"] != DONE]

    @property
    def solvers(self) -> tuple[str, ...]:
        """The solvers that RFF-GPC or VFF-GPC were trained with, the paper's first."""
        return tuple(name for name in SOLVERS if (self.done["solver"] == name).any())

    def by(self, solver: str) -> pd.DataFrame:
        """Return the trials done with a solver, and those of GPC, which has its own."""
        return self.done[self.done["solver"].isin([solver, EXACT])]


def read_run(out: Path) -> Run:
    """Read a run from its folder."""
    path = out / FACTS
    if not path.is_file():
        raise InputError(f"{out} holds no run: there is no {FACTS} in it. Name a run's folder.")
    return make_run(json.loads(path.read_text(encoding="utf-8")), _records(out / TRIALS))


def make_run(facts: Mapping[str, Any], records: Iterable[Mapping[str, Any]]) -> Run:
    """Return the run that facts and records tell of; of trials with one id, the last counts."""
    known = [{"status": DONE} | dict(record) for record in records]
    trials = pd.DataFrame(list({record["id"]: record for record in known}.values()))
    for name in ("regime", "method", "solver", "status", "reason"):
        trials[name] = trials[name].fillna("").astype(str) if name in trials else ""
    for name in ("n", "D", "run"):
        whole = trials[name] if name in trials else pd.Series(0, trials.index)
        trials[name] = pd.to_numeric(whole).fillna(0).astype(np.int64)
    for name in (*MEASURES, "test_rows"):
        given = trials[name] if name in trials else pd.Series(np.nan, trials.index)
        trials[name] = pd.to_numeric(given).astype(float)
    trials["row_seconds"] = trials["predict_cpu_seconds"] / trials["test_rows"].fillna(1.0)
    if facts.get("experiment") == "iavisa":
        trials["n"] = _one_size(trials["n"])
    return Run(dict(facts), trials)


def _records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            # The last line may have been cut as it was written.
            if number < len(lines):
                raise InputError(f"{path}, line {number}: not a record ({error}).") from error
    return records


def _one_size(sizes: pd.Series) -> pd.Series:
    """Return sizes with those that folds alone make differ called by the largest of them."""
    called: dict[int, int] = {}
    larger: int | None = None
    for size in sorted(set(sizes), reverse=True):
        near = larger is not None and larger - size <= FOLDS_DIFFER_BY
        called[size] = called[larger] if near and larger is not None else size
        larger = size
    return sizes.map(called).astype(np.int64)


def means(trials: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each setting: the means over its runs, their number and errors.

    ``runs`` is how many there were; ``accuracy_error`` the standard error of the mean accuracy,
    NaN where there was one run.
    """
    columns = [*KEYS, "runs", *MEASURES, "accuracy_error"]
    if trials.empty:
        return pd.DataFrame(columns=columns)
    groups = trials.groupby(KEYS)
    table = groups[list(MEASURES)].mean()
    table["runs"] = groups.size()
    table["accuracy_error"] = groups["accuracy"].sem()
    table = table.reset_index()[columns]
    order = {name: place for place, name in enumerate((*REGIMES, *NAMES, *SOLVERS))}
    return table.sort_values(
        KEYS, key=lambda column: column.map(order).fillna(-1) if column.dtype != int else column
    ).reset_index(drop=True)
