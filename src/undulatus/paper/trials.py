"""A trial, its record, and the file of records.

A trial is one classifier, fitted on n rows and scored on others. Its record is a JSON object: the
settings of the trial, how it ended, and what was measured. ``trials.jsonl`` holds one a line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from undulatus._files import JsonLines, locked

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


@dataclass(frozen=True)
class TrialStore:
    """The records of a run by id, in memory and in their file; see :func:`open_store`."""

    log: JsonLines
    records: dict[str, Record]

    def append(self, record: Record) -> None:
        """Add a record; it is on disk when this returns."""
        self.log.append(record)
        self.records[record["id"]] = record

    def drop(self, unwanted: Callable[[Record], bool]) -> None:
        """Remove records, so that their trials are run again."""
        names = [name for name, record in self.records.items() if unwanted(record)]
        for name in names:
            del self.records[name]
        if names:
            self.log.rewrite(self.records.values())


@contextmanager
def open_store(path: Path) -> Iterator[TrialStore]:
    """Open a file of records, which need not exist, as its only writer.

    A last line that a crash cut short is dropped.
    """
    with locked(path):
        log = JsonLines(path, sync=True)
        records = {record["id"]: record for record in read_records(path)}
        log.rewrite(records.values())
        yield TrialStore(log, records)


def read_records(path: Path) -> list[Record]:
    """Return the records in a file, none if there is no file.

    A last line that was cut short as it was written is left out.
    """
    return JsonLines(path).read(strict=True)
