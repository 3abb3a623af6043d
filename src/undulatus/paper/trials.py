"""A trial, its record, and the file of records.

A trial is one classifier, fitted on n rows and scored on others. Its record is a JSON object: the
settings of the trial, how it ended, and what was measured. ``trials.jsonl`` holds one a line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from undulatus.errors import InputError

try:
    import fcntl
except ModuleNotFoundError:  # Windows: two runs in one folder are then not kept apart.
    fcntl = None  # type: ignore[assignment]

DONE, OVER_TIME, OVER_MEMORY, FAILED = (
    "done",
    "over time budget",
    "over memory budget",
    "failed",
)
"""How a trial ended: the ``status`` of its record."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One classifier and the rows it is fitted on."""

    experiment: str
    method: str
    solver: str
    n: int
    d: int
    run: int
    seed: int
    frequencies: int | None = None
    """The paper's D; None for GPC."""
    regime: str | None = None
    whole: bool = False
    """Whether n is all rows there are."""

    @property
    def id(self) -> str:
        """A name that is the same whenever the trial is run."""
        words = [self.regime, self.method, self.solver, f"n{self.n}"]
        if self.frequencies is not None:
            words.append(f"D{self.frequencies}")
        words.append(f"{'run' if self.regime else 'fold'}{self.run}")
        return "-".join(word for word in words if word)

    @property
    def part(self) -> str:
        """The folder of the data it is fitted on."""
        return self.regime or "spectra"

    def as_record(self) -> Record:
        """Return the fields of its record that are known before it runs."""
        record: Record = {"id": self.id, "experiment": self.experiment}
        if self.regime:
            record["regime"] = self.regime
        record |= {"method": self.method, "solver": self.solver, "n": self.n}
        if self.whole:
            record["all"] = True
        return record | {"D": self.frequencies, "d": self.d, "run": self.run, "seed": self.seed}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, to send to another process."""
        return asdict(self)


class TrialStore:
    """The file of records, open in one process at a time.

    A record is appended with one write and synced to disk. A last line that a crash cut short is
    dropped when the file is opened again.
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
        """Add a record; it is on disk when this returns."""
        line = (json.dumps(record, allow_nan=False) + "\n").encode()
        if os.write(self._file, line) != len(line):
            raise OSError(f"{self.path}: a record was cut short. Is the disk full?")
        os.fsync(self._file)
        self.records[record["id"]] = record

    def drop(self, unwanted: Callable[[Record], bool]) -> None:
        """Remove records, so that their trials are run again."""
        kept = {name: record for name, record in self.records.items() if not unwanted(record)}
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


def read_records(path: Path) -> list[Record]:
    """Return the records in a file, none if there is no file.

    A last line without a newline was cut short as it was written, and is left out.
    """
    if not path.exists():
        return []
    *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise InputError(
                f"{path}: line {number} is not a record of a trial ({error}). Remove the line; "
                f"its trial will be run again."
            ) from error
    return records


def write_synced(path: Path, lines: Iterable[str]) -> None:
    """Write text and wait until it is on disk."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
