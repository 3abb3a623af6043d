"""Run many trials in a few processes, within budgets of time and memory.

Each record is kept as its trial ends, so a run that was interrupted can go on. The order of trials
and the time left follow from rough costs that are known before a trial runs.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from undulatus.paper.trials import (
    DONE,
    FAILED,
    OVER_MEMORY,
    OVER_TIME,
    Record,
    Trial,
    TrialStore,
)
from undulatus.paper.worker import Worker

POLL_SECONDS = 0.1
"""How often running trials are checked against their budgets."""

MATRICES = 6
"""Arrays of n x n doubles that an exact fit holds at its peak."""

PROCESS_BYTES = 300e6
"""Memory a process holds besides its trial."""

GPC_LEAST, GPC_SECONDS, GPC_ROWS = 0.5, 30.0, 1000
"""Seconds of any exact fit, and of one on this many rows, as measured on a core of a server."""

PASS_SECONDS = 1.2e-10
"""Seconds for a row and a pair of features in a pass over the data, on the same core."""

STOCHASTIC_SECONDS, STEPS_ROWS, PASSES = 1.0, 2_000_000, 20
"""Stochastic solver: least seconds, rows it draws, and full passes it makes afterwards."""

BATCH_SECONDS, BATCH_PASSES = 2.0, 2_000
"""Batch solver: least seconds, and full passes."""

RECENT_TRIALS = 7
"""Latest trials of a method that correct the time expected for its next ones."""


@dataclass(frozen=True)
class Budgets:
    """The most a trial may take: seconds of CPU time, and bytes of memory."""

    seconds: float
    bytes: float

    @property
    def mb(self) -> float:
        """Megabytes of memory."""
        return self.bytes / 2**20

    def __str__(self) -> str:
        return f"the budget is {self.seconds:,.4g} s and {self.mb:,.4g} MB a trial"


@dataclass(frozen=True)
class RunProgress:
    """How far a run is: trials with a record, all trials, seconds left, and the last record."""

    done: int
    total: int
    seconds_left: float
    record: Record | None = None


def run_trials(
    trials: Sequence[Trial],
    data: Path,
    store: TrialStore,
    *,
    workers: int,
    budgets: Budgets,
    progress: Callable[[RunProgress], None] = lambda progress: None,
) -> None:
    """Run the trials that an open store has no record of; add a record as each ends.

    Trials that failed are run again, and so are those that exceeded a budget which is larger now.
    The memory that concurrent trials are expected to take stays within the budget: a trial that
    needs all of it runs alone.
    """
    store.drop(lambda record: _worth_repeating(record, budgets))
    _Pool(trials, data, store, workers, budgets, progress).run()


def _worth_repeating(record: Record, budgets: Budgets) -> bool:
    if record["status"] == OVER_TIME:
        return budgets.seconds > record.get("budget_seconds", 0.0)
    if record["status"] == OVER_MEMORY:
        return budgets.mb > record.get("budget_mb", 0.0)
    return bool(record["status"] == FAILED)


class _Pool:
    def __init__(
        self,
        trials: Sequence[Trial],
        data: Path,
        store: TrialStore,
        workers: int,
        budgets: Budgets,
        progress: Callable[[RunProgress], None],
    ) -> None:
        self.trials = {trial.id: trial for trial in trials}
        self.waiting = cheapest_first(t for t in self.trials.values() if t.id not in store.records)
        self.data, self.store, self.budgets, self.progress = data, store, budgets, progress
        self.most_workers = min(workers, len(self.waiting))
        self.workers: list[Worker] = []

    def run(self) -> None:
        self._skip_larger([r for r in self.store.records.values() if r["id"] in self.trials])
        self._report_progress(None)
        try:
            while self.waiting or self._running():
                self._start_trials()
                for worker in select.select(self.workers, [], [], POLL_SECONDS)[0]:
                    self._receive(worker)
                self._stop_over_budget()
        finally:
            for worker in self.workers:
                worker.end()

    def _running(self) -> list[tuple[Worker, Trial]]:
        return [(worker, worker.trial) for worker in self.workers if worker.trial is not None]

    def _start_trials(self) -> None:
        """Start processes as they are needed, and give a trial to each that is idle."""
        needed = min(self.most_workers, len(self.waiting) + len(self._running()))
        while len(self.workers) < needed:
            self.workers.append(Worker(self.data))
        for worker in self.workers:
            if worker.ready and worker.trial is None:
                trial = self._next_trial()
                if trial is not None:
                    worker.start(trial)

    def _next_trial(self) -> Trial | None:
        """Take the first waiting trial that fits in memory; if nothing runs, the first of all."""
        running = [trial for _, trial in self._running()]
        free = self.budgets.bytes - sum(map(expected_bytes, running))
        for index, trial in enumerate(self.waiting):
            if not running or expected_bytes(trial) <= free:
                return self.waiting.pop(index)
        return None

    def _receive(self, worker: Worker) -> None:
        answer = worker.read()
        if answer is None:
            return
        if "ready" in answer:
            worker.ready = True
            return
        trial, worker.trial = worker.trial, None
        if worker.dead:
            self._end(worker)
        if trial is None:
            raise RuntimeError(f"A worker process did not start: {answer['reason']}")
        self._record(trial, answer)

    def _stop_over_budget(self) -> None:
        for worker, trial in self._running():
            usage = worker.usage()
            mb = usage.bytes / 2**20
            if usage.seconds > self.budgets.seconds:
                status = OVER_TIME
                reason = f"stopped after {usage.seconds:,.1f} s of CPU time: {self.budgets}"
            elif mb > self.budgets.mb:
                status = OVER_MEMORY
                reason = f"stopped when it held {mb:,.0f} MB: {self.budgets}"
            else:
                continue
            self._end(worker)
            self._record(trial, {"status": status, "reason": reason})

    def _end(self, worker: Worker) -> None:
        worker.end()
        self.workers.remove(worker)

    def _record(self, trial: Trial, answer: Record) -> None:
        record = {
            **trial.as_record(),
            **answer,
            **self._exceeded_budget(answer["status"]),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.store.append(record)
        self._skip_larger([record])
        self._report_progress(record)

    def _exceeded_budget(self, status: str) -> dict[str, float]:
        """Return the budget that was exceeded, for a later run to compare its own with."""
        if status == OVER_TIME:
            return {"budget_seconds": self.budgets.seconds}
        return {"budget_mb": self.budgets.mb} if status == OVER_MEMORY else {}

    def _skip_larger(self, records: list[Record]) -> None:
        """Record exact fits that are larger than one over budget as over budget too."""
        for over in records:
            if over["method"] != "gpc" or over["status"] not in (OVER_TIME, OVER_MEMORY):
                continue
            larger = [trial for trial in self.waiting if _costs_more(trial, over)]
            self.waiting = [trial for trial in self.waiting if trial not in larger]
            for trial in larger:
                reason = f"not run: {over['id']}, of fewer rows, was {over['status']}"
                self._record(trial, {"status": over["status"], "reason": reason})

    def _report_progress(self, record: Record | None) -> None:
        left = [*self.waiting, *(trial for _, trial in self._running())]
        known = [r for r in self.store.records.values() if r["id"] in self.trials]
        seconds = seconds_left(left, known, self.trials) / max(self.most_workers, 1)
        self.progress(RunProgress(len(known), len(self.trials), seconds, record))


def _costs_more(trial: Trial, over: Record) -> bool:
    """Return whether an exact fit has more rows than one of its regime: n³ time, n² memory."""
    alike = trial.method == "gpc" and (trial.regime or "") == over.get("regime", "")
    return alike and trial.n > over["n"]


def expected_seconds(trial: Trial) -> float:
    """Return a rough guess of the CPU seconds a trial takes.

    Only ratios within a method matter: :func:`seconds_left` corrects the guesses by the trials
    that are done.
    """
    if trial.method == "gpc":
        return float(GPC_LEAST + GPC_SECONDS * (trial.n / GPC_ROWS) ** 3)
    features = 2.0 * int(trial.frequencies or 1)
    pairs = features * (features + trial.d)
    if trial.solver == "batch":
        return BATCH_SECONDS + PASS_SECONDS * BATCH_PASSES * trial.n * pairs
    return STOCHASTIC_SECONDS + PASS_SECONDS * (STEPS_ROWS + PASSES * trial.n) * pairs


def expected_bytes(trial: Trial) -> float:
    """Return a guess of the most memory that a trial's process holds."""
    if trial.method == "gpc":
        return PROCESS_BYTES + 8.0 * MATRICES * trial.n**2
    return PROCESS_BYTES + 12.0 * trial.n * trial.d + 200.0 * float(trial.frequencies or 1) ** 2


def cheapest_first(trials: Iterable[Trial]) -> list[Trial]:
    """Return trials in the order to run them: cheap ones and first runs first.

    Run r of a trial (from 0) counts as r + 1 times as expensive as it is: first runs of more
    expensive settings come before it.
    """

    def turn(trial: Trial) -> tuple[float, int]:
        return expected_seconds(trial) * (1 + trial.run), trial.run

    return sorted(trials, key=turn)


def seconds_left(
    left: Iterable[Trial], records: Iterable[Record], known: Mapping[str, Trial]
) -> float:
    """Return the seconds one process needs for some trials, judging by similar ones done."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for record in records:
        trial = known.get(record["id"])
        if trial is not None and record["status"] == DONE:
            took = record["fit_seconds"] + record["predict_seconds"]
            ratio = took / expected_seconds(trial)
            ratios.setdefault((trial.method, trial.solver), []).append(ratio)
    overall = median([ratio for some in ratios.values() for ratio in some]) if ratios else 1.0

    def correction(trial: Trial) -> float:
        # The latest are most like those to come: small trials are mostly overhead.
        alike = ratios.get((trial.method, trial.solver))
        return median(alike[-RECENT_TRIALS:]) if alike else overall

    return sum(expected_seconds(trial) * correction(trial) for trial in left)
