"""Records of trials in a file that no crash spoils: one JSON object a line, each synced."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from undulatus.errors import InputError

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
