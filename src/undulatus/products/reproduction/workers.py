"""A process that runs trials, seen from the one that started it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undulatus.products.reproduction.trials import FAILED, Trial

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""What holds BLAS to one thread: all cores are at work on other trials."""


@dataclass(frozen=True)
class Usage:
    """CPU seconds a process has spent, and bytes of memory it holds."""

    seconds: float
    bytes: float


def read_usage(pid: int) -> Usage | None:
    """Return what a process has used, where the system tells it (Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    # Pages of its own: those of mapped files can be had back at any time.
    held = next((x.split()[1] for x in status.splitlines() if x.startswith("RssAnon")), "0")
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), 1024.0 * int(held))


class Worker:
    """A process that is given one trial at a time; not ready until it says so."""

    def __init__(self, data: Path) -> None:
        self.trial: Trial | None = None
        self.ready = False
        self.dead = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        self._unread = b""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "undulatus.products.reproduction.worker", str(data)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **ONE_THREAD},
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
