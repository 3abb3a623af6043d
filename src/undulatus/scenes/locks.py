"""One writer at a time: a file beside the output that says who is writing it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from undulatus.errors import SceneError

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]


def lock_of(path: Path) -> Path:
    """Return the name of the lock of an output, beside it."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only writer of ``path``, or say who else is.

    The lock is a file made exclusively, which names a process and its machine. That of a
    process of this machine that has ended is taken over; of another machine's nothing is known.
    """
    lock = lock_of(path)
    while not _made(lock):
        owner = _owner(lock)
        if owner is None:
            continue
        if not _has_ended(owner) or not _removed_stale(lock):
            raise SceneError(
                f"{path} is being written by process {owner.get('pid', '?')} on "
                f"{owner.get('host', 'an unknown machine')}. Wait for it, or write elsewhere.\n"
                f"If that process has ended, remove {lock}."
            )
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _made(lock: Path) -> bool:
    me = {"pid": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid())}
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, json.dumps(me).encode())
    finally:
        os.close(descriptor)
    return True


def _owner(lock: Path) -> dict[str, Any] | None:
    """Return what the lock says, nothing known if it is damaged, or None if it is gone."""
    try:
        found = json.loads(lock.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _has_ended(owner: dict[str, Any]) -> bool:
    if owner.get("host") != socket.gethostname() or not isinstance(owner.get("pid"), int):
        return False
    if os.name != "posix":  # pragma: no cover
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    # Another process may have been given the number since.
    return _started(owner["pid"]) != owner.get("started")


def _started(pid: int) -> str:
    """Return when a process started, in ticks of which boot, where the system tells."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "ended" if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _removed_stale(lock: Path) -> bool:
    """Remove the lock of a process that has ended, unless another took it over meanwhile."""
    if fcntl is None:  # pragma: no cover
        return False
    try:
        with lock.open() as file:
            # Whoever else found it stale waits here, and then finds another file in its place.
            fcntl.flock(file, fcntl.LOCK_EX)
            same = os.path.samestat(os.fstat(file.fileno()), lock.stat())
            if same and _has_ended(_owner(lock) or {}):
                lock.unlink()
    except FileNotFoundError:
        pass
    return True
