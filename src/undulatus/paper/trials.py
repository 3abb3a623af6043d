"""What a trial is: one classifier, fitted on so many rows and scored on others.

How long trials take and how much memory, before they are run: to order them, and to wait.

Records of trials in a file that no crash spoils: one JSON object a line, each synced.

What a run of trials measured, read back from its folder.

A run keeps ``run.json``, the facts about it, and ``trials.jsonl``, one trial a line. Trials are a
table here, a row each. A trial without a regime has the regime ``""``; one without frequencies,
as those of GPC, has ``D`` 0. ``row_seconds`` is the CPU time a test row took.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Self

import numpy as np
import pandas as pd

from undulatus._daylight import REGIMES
from undulatus.errors import InputError

DONE = "done"

OVER_TIME = "over time budget"

OVER_MEMORY = "over memory budget"

FAILED = "failed"


@dataclass(frozen=True)
class Trial:
    """One fit and what it is fitted on; ``frequencies`` is the paper's D, which GPC has not."""

    experiment: str
    method: str
    solver: str
    n: int
    d: int
    run: int
    seed: int
    frequencies: int | None = None
    regime: str | None = None
    whole: bool = False
    """Whether these are all rows there are."""

    @property
    def id(self) -> str:
        """A name that stays the same from one session to the next."""
        parts = [self.regime, self.method, self.solver, f"n{self.n}"]
        if self.frequencies is not None:
            parts.append(f"D{self.frequencies}")
        parts.append(f"{'run' if self.regime else 'fold'}{self.run}")
        return "-".join(part for part in parts if part)

    @property
    def part(self) -> str:
        """The folder of the data it is fitted on."""
        return self.regime or "spectra"

    def asked(self) -> dict[str, Any]:
        """Return the part of its record that is known before it is run."""
        record: dict[str, Any] = {"id": self.id, "experiment": self.experiment}
        if self.regime:
            record["regime"] = self.regime
        record |= {"method": self.method, "solver": self.solver, "n": self.n}
        if self.whole:
            record["all"] = True
        return record | {"D": self.frequencies, "d": self.d, "run": self.run, "seed": self.seed}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, to be sent to another process."""
        return asdict(self)


@dataclass(frozen=True)
class Budgets:
    """What a trial may take before it is stopped: seconds of CPU time, and bytes of memory."""

    seconds: float
    bytes: float


MATRICES = 6
"""Arrays of n x n doubles that an exact fit holds at its worst moment."""

PROCESS_BYTES = 300e6
"""What a process holds besides."""

GPC_LEAST, GPC_SECONDS, GPC_ROWS = 0.5, 30.0, 1000
"""Least, and more seconds of an exact fit on so many rows, as measured on a core of a server."""

PASS_SECONDS = 1.2e-10
"""Of a row and a pair of features, in a pass over the data; likewise."""

STOCHASTIC_SECONDS, STEPS_ROWS, PASSES = 1.0, 2_000_000, 20
"""Least, rows the stochastic solver draws, and passes it takes over all rows afterwards."""

BATCH_SECONDS, BATCH_PASSES = 2.0, 2_000
"""Least, and passes of the batch solver."""


def expected_seconds(trial: Trial) -> float:
    """Return a rough guess of the CPU seconds a trial takes.

    Within a method the guesses are in proportion, which is all that is asked of them: trials that
    are done tell by how much they are off (:func:`time_left`).
    """
    if trial.method == "gpc":
        return float(GPC_LEAST + GPC_SECONDS * (trial.n / GPC_ROWS) ** 3)
    features = 2.0 * int(trial.frequencies or 1)
    pairs = features * (features + trial.d)
    if trial.solver == "batch":
        return BATCH_SECONDS + PASS_SECONDS * BATCH_PASSES * trial.n * pairs
    return STOCHASTIC_SECONDS + PASS_SECONDS * (STEPS_ROWS + PASSES * trial.n) * pairs


def expected_bytes(trial: Trial) -> float:
    """Return a guess of the memory a trial's process holds at its worst moment."""
    if trial.method == "gpc":
        return PROCESS_BYTES + 8.0 * MATRICES * trial.n**2
    return PROCESS_BYTES + 12.0 * trial.n * trial.d + 200.0 * float(trial.frequencies or 1) ** 2


def in_order(trials: Iterable[Trial]) -> list[Trial]:
    """Return cheap trials first, first runs before others, regimes side by side.

    A later run of a trial waits until what is as dear as all its runs so far has had its turn.
    """

    def turn(trial: Trial) -> tuple[float, int]:
        return expected_seconds(trial) * (1 + trial.run), trial.run

    return sorted(trials, key=turn)


def time_left(
    left: Iterable[Trial], records: Iterable[Mapping[str, Any]], known: Mapping[str, Trial]
) -> float:
    """Return the seconds one process needs for some trials, by what others of their kind took."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for record in records:
        trial = known.get(record["id"])
        if trial is not None and record["status"] == DONE:
            took = record["fit_seconds"] + record["predict_seconds"]
            ratios.setdefault((trial.method, trial.solver), []).append(
                took / expected_seconds(trial)
            )
    overall = median([r for found in ratios.values() for r in found]) if ratios else 1.0

    def ratio(trial: Trial) -> float:
        # Of many, those done last are most like those to come: small trials are mostly overhead.
        found = ratios.get((trial.method, trial.solver))
        return median(found[-7:]) if found else overall

    return sum(expected_seconds(trial) * ratio(trial) for trial in left)


try:
    import fcntl
except ModuleNotFoundError:  # Windows: two runs in one folder are then not kept apart.
    fcntl = None  # type: ignore[assignment]

Record = dict[str, Any]


class TrialStore:
    """The file of records, opened by one process at a time.

    Records are appended whole, by one write that is synced to disk. A last line that a crash
    cut short is dropped when the file is opened again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records: dict[str, Record] = {}

    def __enter__(self) -> Self:
        self._lock = os.open(self.path.with_name(".lock"), os.O_CREAT | os.O_RDWR, 0o644)
        self._require_alone()
        self.records = {record["id"]: record for record in read_records(self.path)}
        self._rewrite()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)
        os.close(self._lock)

    def append(self, record: Record) -> None:
        """Add a record; when this returns it is on disk."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: a record was cut short. Is the disk full?")
        os.fsync(self._file)
        self.records[record["id"]] = record

    def forget(self, which: Callable[[Record], bool]) -> None:
        """Drop records, so that their trials are run again."""
        kept = {name: record for name, record in self.records.items() if not which(record)}
        if len(kept) < len(self.records):
            os.close(self._file)
            self.records = kept
            self._rewrite()

    def _rewrite(self) -> None:
        fresh = self.path.with_name(f".{self.path.name}.new")
        write_synced(fresh, (json.dumps(record) + "\n" for record in self.records.values()))
        fresh.replace(self.path)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)

    def _require_alone(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InputError(
                f"{self.path.parent} is being written by another run. Wait for it to end, or "
                f"write to another folder."
            ) from error


def write_synced(path: Path, parts: Iterable[str]) -> None:
    """Write text and wait until it is on disk."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def read_records(path: Path) -> list[Record]:
    """Return the records of a file; a last line without its end was cut short, and is not one."""
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}: line {number} is no record of a trial ({error}). Remove the line; its "
                f"trial will be run again."
            ) from error
    return records


FACTS, TRIALS = "run.json", "trials.jsonl"

SOLVERS = ("batch", "stochastic")
"""Of RFF-GPC and VFF-GPC: the paper's own algorithm, then ours."""

EXACT = "exact"

NAMES = {"vff": "VFF-GPC", "rff": "RFF-GPC", "gpc": "GPC"}
"""Methods, as they are shown."""

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
