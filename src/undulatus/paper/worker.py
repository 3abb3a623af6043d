"""A process that runs trials one after the other: both ends of it.

The process is ``python -m undulatus.paper.worker OUT/data``. It reads a trial as a line of JSON
from standard input and writes the record as a line of JSON to standard output. It holds every
library to one thread, so that CPU times compare, and ends when the process that started it does.
:class:`Worker` is the other end, in the process that started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from undulatus._system import ONE_THREAD_ENVIRONMENT, Usage, read_usage
from undulatus.estimators import METHODS, make_classifier
from undulatus.paper.fitting import attempt
from undulatus.paper.trials import FAILED, Record, Trial


class Worker:
    """A worker process, which takes one trial at a time once it has said that it is ready."""

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
            # The other cores run other trials.
            env={**os.environ, **ONE_THREAD_ENVIRONMENT},
            # Ctrl-C goes to the process that started it, which then ends it.
            start_new_session=True,
        )

    def fileno(self) -> int:
        """Return the file descriptor of its answers, for ``select``."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def start(self, trial: Trial) -> None:
        """Start a trial."""
        assert self._process.stdin is not None
        self.trial = trial
        self._began = time.monotonic()
        self._before = read_usage(self._process.pid)
        # If the process has died, `read` finds out.
        with suppress(BrokenPipeError):
            self._process.stdin.write((json.dumps(trial.as_dict()) + "\n").encode())
            self._process.stdin.flush()

    def read(self) -> Record | None:
        """Return its next answer, None if that is not complete yet.

        The answer of a process that has died is a status and a reason.
        """
        received = os.read(self.fileno(), 1 << 16)
        if not received:
            self.dead = True
            return {"status": FAILED, "reason": self._reason_of_death()}
        self._unread += received
        line, end, rest = self._unread.partition(b"\n")
        if not end:
            return None
        self._unread = rest
        return dict(json.loads(line))

    def usage(self) -> Usage:
        """Return the CPU time its trial has taken, and the memory it holds."""
        now = read_usage(self._process.pid)
        if now is None or self._before is None:
            return Usage(time.monotonic() - self._began, 0.0)
        return Usage(now.seconds - self._before.seconds, now.bytes)

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(BrokenPipeError):
                pipe.close()  # type: ignore[union-attr]

    def _reason_of_death(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        how = f"status {status}" if status >= 0 else f"signal {signal.Signals(-status).name}"
        return f"its process ended with {how}: {lines[-1] if lines else 'it left no message'}"


def main() -> None:
    """Run the trials that arrive on standard input until it closes."""
    data = Path(sys.argv[1])
    # Libraries that print must not write between the records.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: SimpleQueue[str] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            lines.put(line)
        # The process that started this one has ended: end too, even in the middle of a trial.
        os._exit(0)

    _warm_up()
    threading.Thread(target=listen, daemon=True).start()
    answer: Record = {"ready": True}
    while True:
        out.write(json.dumps(answer) + "\n")
        out.flush()
        answer = attempt(Trial(**json.loads(lines.get())), data)


def _warm_up() -> None:
    """Fit a few rows, so that no trial is charged for imports and first calls."""
    X = np.random.default_rng(0).normal(size=(60, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for method in METHODS:
            options: dict[str, Any] = {"posterior": "bound", "max_iter": 2}
            if method != "gpc":
                options |= {"solver": "stochastic", "n_jobs": 1}
            classifier = make_classifier(method, 2, seed=0).set_params(**options)
            classifier.fit(X, X[:, 0] > 0).predict_proba(X)


if __name__ == "__main__":
    main()
