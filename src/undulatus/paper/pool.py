"""A process that runs trials, seen from the one that started it.

Many trials in a few processes: within budgets, kept as they end, and resumed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from undulatus._system import ONE_THREAD_ENVIRONMENT, Usage, read_usage
from undulatus.paper.trials import (
    FAILED,
    OVER_MEMORY,
    OVER_TIME,
    Budgets,
    Record,
    Trial,
    TrialStore,
    expected_bytes,
    in_order,
    time_left,
)


class Worker:
    """A process that is given one trial at a time; not ready until it says so."""

    def __init__(self, data: Path) -> None:
        self.trial: Trial | None = None
        self.ready = False
        self.dead = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._unread = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "undulatus.paper.worker", str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # All cores are at work on other trials.
            env={**os.environ, **ONE_THREAD_ENVIRONMENT},
            # Ctrl-C is for whoever started it, who will end it.
            start_new_session=True,
        )

    def fileno(self) -> int:
        """Return where its answers come from, to wait for several at once."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def give(self, trial: Trial) -> None:
        """Let it run a trial."""
        assert self._process.stdin is not None
        self.trial = trial
        self._began = time.monotonic()
        self._before = read_usage(self._process.pid)
        # If it has died, the end of its answers will tell.
        with suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(trial.as_dict()) + "\n").encode())
            self._process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """Return its next answer once it is there; if it has died, what is to be said of that."""
        received = os.read(self.fileno(), 1 << 16)
        if not received:
            self.dead = True
            return {"status": FAILED, "reason": self._last_words()}
        self._unread += received
        line, end, rest = self._unread.partition(b"\n")
        if not end:
            return None
        self._unread = rest
        return dict(json.loads(line))

    def spent(self) -> Usage:
        """Return the CPU time its trial has taken, and the memory it holds."""
        now = read_usage(self._process.pid)
        if now is None or self._before is None:
            return Usage(time.monotonic() - self._began, 0.0)
        return Usage(now.seconds - self._before.seconds, now.bytes)

    def end(self) -> None:
        """End it, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]

    def _last_words(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        return f"its process ended with {how}: {lines[-1] if lines else 'it left no message'}"


LOOK_SECONDS = 0.1
"""How often it is looked whether a trial is over its budget."""


@dataclass(frozen=True)
class Standing:
    """How far a run is: trials done of how many, seconds left, and the last record."""

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
    progress: Callable[[Standing], None] = lambda standing: None,
) -> None:
    """Run the trials that an open store has no record of, and add one for each as it ends.

    Trials that failed are run again, and so are those over a budget that is larger now. Memory
    that trials are expected to take together stays within the budget too: a trial that needs it
    all runs alone.
    """
    store.forget(lambda record: _worth_another(record, budgets))
    _Run(trials, data, store, workers, budgets, progress).go()


def _worth_another(record: Record, budgets: Budgets) -> bool:
    if record["status"] == OVER_TIME:
        return budgets.seconds > record.get("budget_seconds", 0.0)
    if record["status"] == OVER_MEMORY:
        return budgets.bytes / 2**20 > record.get("budget_mb", 0.0)
    return bool(record["status"] == FAILED)


class _Run:
    def __init__(
        self,
        trials: Sequence[Trial],
        data: Path,
        store: TrialStore,
        workers: int,
        budgets: Budgets,
        progress: Callable[[Standing], None],
    ) -> None:
        self.trials = {trial.id: trial for trial in trials}
        self.waiting = in_order(t for t in self.trials.values() if t.id not in store.records)
        self.data, self.store, self.budgets, self.progress = data, store, budgets, progress
        self.most = min(workers, len(self.waiting))
        self.workers: list[Worker] = []

    def go(self) -> None:
        self._give_up([r for r in self.store.records.values() if r["id"] in self.trials])
        self._tell(None)
        try:
            while self.waiting or self._running():
                self._staff()
                for worker in self._answered():
                    self._hear(worker)
                self._stop_those_over()
        finally:
            for worker in self.workers:
                worker.end()

    def _running(self) -> list[tuple[Worker, Trial]]:
        return [(worker, worker.trial) for worker in self.workers if worker.trial is not None]

    def _staff(self) -> None:
        """Start processes as they are needed, and give trials to those that wait."""
        while len(self.workers) < min(self.most, len(self.waiting) + len(self._running())):
            self.workers.append(Worker(self.data))
        for worker in self.workers:
            if worker.ready and worker.trial is None:
                trial = self._next()
                if trial is not None:
                    worker.give(trial)

    def _next(self) -> Trial | None:
        """Return the first trial whose memory can be had; any, if none is running."""
        running = [trial for _, trial in self._running()]
        free = self.budgets.bytes - sum(map(expected_bytes, running))
        for index, trial in enumerate(self.waiting):
            if not running or expected_bytes(trial) <= free:
                return self.waiting.pop(index)
        return None

    def _answered(self) -> list[Worker]:
        return select.select(self.workers, [], [], LOOK_SECONDS)[0]

    def _hear(self, worker: Worker) -> None:
        answer = worker.read()
        if answer is None:
            return
        if "ready" in answer:
            worker.ready = True
            return
        trial, worker.trial = worker.trial, None
        if worker.dead:
            self._dismiss(worker)
        if trial is None:
            raise RuntimeError(f"A process for trials did not start: {answer['reason']}")
        self._keep(trial, answer)

    def _stop_those_over(self) -> None:
        for worker, trial in self._running():
            spent = worker.spent()
            mb, most_mb = spent.bytes / 2**20, self.budgets.bytes / 2**20
            if spent.seconds > self.budgets.seconds:
                reason = f"stopped after {spent.seconds:,.1f} s of CPU time: {self._allowed()}"
                self._dismiss(worker)
                self._keep(trial, {"status": OVER_TIME, "reason": reason})
            elif mb > most_mb:
                reason = f"stopped when it held {mb:,.0f} MB: {self._allowed()}"
                self._dismiss(worker)
                self._keep(trial, {"status": OVER_MEMORY, "reason": reason})

    def _allowed(self) -> str:
        return (
            f"the budget is {self.budgets.seconds:,.4g} s and "
            f"{self.budgets.bytes / 2**20:,.4g} MB a trial"
        )

    def _dismiss(self, worker: Worker) -> None:
        worker.end()
        self.workers.remove(worker)

    def _keep(self, trial: Trial, answer: dict[str, Any]) -> None:
        record = {
            **trial.asked(),
            **answer,
            **self._budget(answer),
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        self.store.append(record)
        self._give_up([record])
        self._tell(record)

    def _budget(self, answer: dict[str, Any]) -> dict[str, float]:
        """Return the budget a trial was over, so that a larger one can be told."""
        if answer["status"] == OVER_TIME:
            return {"budget_seconds": self.budgets.seconds}
        return {"budget_mb": self.budgets.bytes / 2**20} if answer["status"] == OVER_MEMORY else {}

    def _give_up(self, records: list[Record]) -> None:
        """Record as over budget what is certain to be: exact fits of more rows than such a one."""
        for over in records:
            if over["method"] != "gpc" or over["status"] not in (OVER_TIME, OVER_MEMORY):
                continue
            certain = [t for t in self.waiting if _certainly_larger(t, over)]
            self.waiting = [t for t in self.waiting if t not in certain]
            for trial in certain:
                reason = f"not run: {over['id']}, of fewer rows, was {over['status']}"
                status = {"status": over["status"], "reason": reason}
                self._keep(trial, status)

    def _tell(self, record: Record | None) -> None:
        left = [*self.waiting, *(trial for _, trial in self._running())]
        known = [r for r in self.store.records.values() if r["id"] in self.trials]
        seconds = time_left(left, known, self.trials) / max(self.most, 1)
        self.progress(Standing(len(known), len(self.trials), seconds, record))


def _certainly_larger(trial: Trial, over: Record) -> bool:
    """Say if an exact fit costs more than one that was over budget: n³ time, n² memory."""
    alike = trial.method == "gpc" and (trial.regime or "") == over.get("regime", "")
    return alike and trial.n > over["n"]
