"""A run of an experiment in its folder: its facts (``run.json``) and trials (``trials.jsonl``).

Trials are read as a table with a row each. A trial without a regime has the regime ``""``; one
without frequencies, as those of GPC, has ``D`` 0. ``row_seconds`` is the CPU time for a test row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from undulatus._daylight import REGIMES
from undulatus._files import write_text
from undulatus.errors import InputError
from undulatus.paper.scales import SOUNDER
from undulatus.paper.trials import DONE, read_records

FACTS_FILE, TRIALS_FILE, DATA_FOLDER = "run.json", "trials.jsonl", "data"

SOLVERS = ("batch", "stochastic")
"""Solvers of RFF-GPC and VFF-GPC: the paper's own algorithm, then ours."""

EXACT = "exact"
"""GPC's solver."""

METHOD_NAMES = {"vff": "VFF-GPC", "rff": "RFF-GPC", "gpc": "GPC"}
"""Methods, as readers see them."""

SETTING = ["regime", "method", "solver", "n", "D"]
"""Columns that are the same for all runs of a setting."""

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
"""Columns that a trial measures, and that are averaged over runs."""

FOLDS_DIFFER_BY = 2
"""Folds whose training sets differ by at most this many rows count as one size."""


@dataclass(frozen=True)
class RunFacts:
    """The contents of ``run.json``: what was run, on which data and which machine."""

    experiment: str
    """``"landmarks"`` or ``"iavisa"``."""
    scale: str
    seed: int
    data: dict[str, Any]
    """``path`` (None for a simulator), ``synthetic``, and the manifest of the prepared data."""
    environment: dict[str, Any]
    grid: dict[str, Any]
    """The scale's settings."""
    started: str
    seconds: float | None = None
    """Time it took, of all sessions together."""
    built_in: tuple[str, ...] = ()
    """Ids of claims that hold by construction on the run's data."""

    @property
    def synthetic(self) -> bool:
        """Whether the data are a simulator's."""
        return bool(self.data.get("synthetic", False))

    def write(self, out: Path) -> None:
        """Write ``run.json`` into the run's folder."""
        write_text(out / FACTS_FILE, json.dumps(asdict(self), indent=1) + "\n")


def read_facts(out: Path) -> RunFacts:
    """Read ``run.json`` from a run's folder."""
    path = out / FACTS_FILE
    if not path.is_file():
        raise InputError(f"{out} holds no run: it has no {FACTS_FILE}. Give the folder of a run.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        return RunFacts(**{**fields, "built_in": tuple(fields.get("built_in", ()))})
    except (ValueError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} does not describe a run ({error}). Start the run again in another folder."
        ) from error


@dataclass(frozen=True)
class Run:
    """A run: the facts about it, and its trials, done or not."""

    facts: RunFacts
    trials: pd.DataFrame

    @property
    def experiment(self) -> str:
        """``"landmarks"`` or ``"iavisa"``."""
        return self.facts.experiment

    @property
    def done(self) -> pd.DataFrame:
        """The trials that were completed."""
        return self.trials[self.trials["status"] == DONE]

    @property
    def not_done(self) -> pd.DataFrame:
        """The trials that were not."""
        return self.trials[self.trials["status"] != DONE]

    @property
    def solvers(self) -> tuple[str, ...]:
        """The solvers that RFF-GPC or VFF-GPC were trained with, the paper's first."""
        return tuple(name for name in SOLVERS if (self.done["solver"] == name).any())

    def by(self, solver: str) -> pd.DataFrame:
        """Return the completed trials of a solver, and those of GPC, which has its own."""
        return self.done[self.done["solver"].isin([solver, EXACT])]


def read_run(out: Path) -> Run:
    """Read a run from its folder."""
    return make_run(read_facts(out), read_records(out / TRIALS_FILE))


def make_run(facts: RunFacts, records: Iterable[Mapping[str, Any]]) -> Run:
    """Return the run that facts and records describe; of records with one id, the last counts."""
    complete = [{"status": DONE} | dict(record) for record in records]
    trials = pd.DataFrame(list({record["id"]: record for record in complete}.values()))
    for name in ("regime", "method", "solver", "status", "reason"):
        trials[name] = trials[name].fillna("").astype(str) if name in trials else ""
    for name in ("n", "D", "run"):
        counts = trials[name] if name in trials else pd.Series(0, trials.index)
        trials[name] = pd.to_numeric(counts).fillna(0).astype(np.int64)
    for name in (*MEASURES, "test_rows"):
        values = trials[name] if name in trials else pd.Series(np.nan, trials.index)
        trials[name] = pd.to_numeric(values).astype(float)
    trials["row_seconds"] = trials["predict_cpu_seconds"] / trials["test_rows"].fillna(1.0)
    if facts.experiment == SOUNDER:
        trials["n"] = _join_fold_sizes(trials["n"])
    return Run(facts, trials)


def _join_fold_sizes(sizes: pd.Series) -> pd.Series:
    """Replace sizes that differ only because folds do by the largest of them."""
    joined: dict[int, int] = {}
    larger: int | None = None
    for size in sorted(set(sizes), reverse=True):
        near = larger is not None and larger - size <= FOLDS_DIFFER_BY
        joined[size] = joined[larger] if near and larger is not None else size
        larger = size
    return sizes.map(joined).astype(np.int64)


def means(trials: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each setting: the means of its measures over runs.

    ``runs`` is the number of runs; ``accuracy_error`` the standard error of the mean accuracy,
    NaN where there was one run.
    """
    columns = [*SETTING, "runs", *MEASURES, "accuracy_error"]
    if trials.empty:
        return pd.DataFrame(columns=columns)
    groups = trials.groupby(SETTING)
    table = groups[list(MEASURES)].mean()
    table["runs"] = groups.size()
    table["accuracy_error"] = groups["accuracy"].sem()
    table = table.reset_index()[columns]
    order = {name: place for place, name in enumerate((*REGIMES, *METHOD_NAMES, *SOLVERS))}
    return table.sort_values(
        SETTING,
        key=lambda column: column.map(order).fillna(-1) if column.dtype != int else column,
    ).reset_index(drop=True)


def regimes_in(regimes: Iterable[str]) -> list[str]:
    """Return the regimes that occur, from the brightest to the darkest."""
    present = set(regimes)
    return [name for name in REGIMES if name in present]
