"""How a watcher is: a text file of ``key: value`` lines that people and monitors read.

The file is replaced at once, so that a reader never sees half of it. Under systemd the same beats
tell the service manager that the watcher is ready and alive.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from undulatus._files import write_text
from undulatus.errors import InputError

HEALTH_NAME = "health.txt"

STARTING, WAITING, MAPPING = "starting", "waiting", "mapping"

TROUBLE, STOPPED = "trouble", "stopped"

HEALTHY = (STARTING, WAITING, MAPPING)

SECONDS_BETWEEN_BEATS = 1.0
"""Least time between two beats while an item is being mapped."""


@dataclass
class HealthFile:
    """The text file, which is written again and again.

    Parameters
    ----------
    path : path
        The file. If it cannot be written, its age shows it.
    """

    path: Path
    _last: float = -1e9

    def write(self, facts: dict[str, Any]) -> None:
        """Replace the file, and tell systemd."""
        self._last = time.monotonic()
        lines = [f"{key}: {_one_line(value)}" for key, value in facts.items()]
        with suppress(OSError):
            write_text(self.path, "\n".join(lines) + "\n")
        state = facts["state"]
        words = {STOPPED: "STOPPING=1", STARTING: ""}.get(state, "READY=1\nWATCHDOG=1")
        tell_service_manager(f"{words}\nSTATUS={_one_line(state)}".strip())

    def is_due(self) -> bool:
        """Return whether the last beat is long enough ago for another."""
        return time.monotonic() - self._last >= SECONDS_BETWEEN_BEATS


def _one_line(value: Any) -> str:
    text = " ".join(str(value).split())
    return text.encode("utf-8", "backslashreplace").decode()


def tell_service_manager(text: str) -> None:
    """Send a message of sd_notify(3), if systemd started this process and wants to hear it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        # A leading @ stands for the zero byte of an abstract address.
        channel.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        channel.sendall(text.encode())


# Reading


@dataclass(frozen=True)
class Verdict:
    """What a health file says, and whether all is well."""

    text: str
    problem: str
    """Empty if all is well."""


def read_health(path: Path, most_seconds: float) -> Verdict:
    """Return what the health file of an output folder says, or the file itself.

    Parameters
    ----------
    path : path
        The folder, or the file.
    most_seconds : float
        The age from which on the watcher counts as stuck.
    """
    file = path / HEALTH_NAME if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read: {error}. Is it the folder that undulatus watch writes to?"
        ) from error
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return Verdict(text, _problem(facts, most_seconds))


def _problem(facts: dict[str, str], most_seconds: float) -> str:
    state = facts.get("state", "")
    if state == TROUBLE:
        return f"it has trouble: {facts.get('last error', 'not known')}"
    if state not in HEALTHY:
        return f"it is {state}" if state else "its health file has no state"
    try:
        updated = datetime.strptime(facts["updated"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        process = int(facts["process"])
    except (KeyError, ValueError):
        return "its health file lacks the time or the process"
    if facts.get("host") == socket.gethostname() and not psutil.pid_exists(process):
        return f"its process {process} has ended without a word"
    age = (datetime.now(UTC) - updated).total_seconds()
    return f"it has given no sign for {age:,.0f} s" if age > most_seconds else ""
