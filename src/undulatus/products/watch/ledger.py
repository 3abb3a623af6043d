"""What became of each item: a log of JSON lines, and what of it is kept in memory.

A line for each item that was mapped or set aside is on disk before anything follows from it; the
last line of an item counts. In memory an item takes about 450 bytes.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from undulatus._files import JsonLines
from undulatus.errors import InputError
from undulatus.products.watch.arrivals import Facts

LEDGER_NAME = "watch.jsonl"

MAPPED = "mapped"
SET_ASIDE = "set aside"
EXPIRED = "expired"
"""Its map was removed because it was old."""

RECENT = 100
"""Maps over which the latency and the shares of pixels are taken."""

_OF_RECENT = ("time", "outputs", "seconds", "latency", "pixels")


@dataclass
class Ledger:
    """The log of a watched folder, read once and appended to.

    Parameters
    ----------
    path : path
        The file, which need not exist.

    Attributes
    ----------
    done : dict
        The facts of each item that was mapped or set aside, by its name.
    settings : dict
        What maps depend on besides the data, as last recorded.
    """

    path: Path
    done: dict[str, Facts] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    damaged: int = 0
    """Lines that say nothing, as one that a full disk cut short."""
    _digests: dict[str, bytes] = field(default_factory=dict)
    _set_aside: set[str] = field(default_factory=set)
    _owners: dict[str, str] = field(default_factory=dict)
    """The item that each output is a map of."""
    recent: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT))
    """The last records of maps, without what is long."""

    def __post_init__(self) -> None:
        self._log = JsonLines(self.path, sync=True)
        count = 0
        for record in self._log.each():
            count += 1
            try:
                self._take(record)
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self.path} has a line that undulatus watch did not write: {record}. Remove "
                    f"the line, or move the file away and give a new OUT."
                ) from error
        if self.path.exists():
            self.damaged = self._log.count_lines() - count

    def _take(self, record: dict[str, Any]) -> None:
        if "settings" in record:
            self.settings = dict(record["settings"])
            return
        name = record["input"]
        size, modified = record["facts"]
        self.done[name] = (int(size), int(modified))
        self._digests[name] = bytes.fromhex(record["digest"])
        if record["result"] == SET_ASIDE:
            self._set_aside.add(name)
            return
        self._set_aside.discard(name)
        for output in record.get("superseded", ()):
            self._owners.pop(output, None)
        if record["result"] == MAPPED:
            self.recent.append({key: record[key] for key in _OF_RECENT if key in record})
        self._owners.update(dict.fromkeys(record["outputs"], name))

    # Recording

    def record_settings(self, settings: dict[str, Any]) -> None:
        """Record what maps depend on besides the data."""
        self._append({"settings": settings})

    def record_map(
        self, name: str, digest: str, facts: Facts, outputs: Iterable[str], **more: Any
    ) -> dict[str, Any]:
        """Record that an item is mapped to outputs, which may still lack their final names."""
        outputs = list(outputs)
        record = {"input": name, "digest": digest, "facts": list(facts), "result": MAPPED}
        record |= {"outputs": outputs, **more}
        if superseded := [old for old in self.outputs_of(name) if old not in outputs]:
            record["superseded"] = superseded
        self._append(record)
        return record

    def record_fault(self, name: str, digest: str, facts: Facts, reason: str, **more: Any) -> None:
        """Record that an item is set aside."""
        record = {"input": name, "digest": digest, "facts": list(facts), "result": SET_ASIDE}
        self._append(record | {"reason": reason, **more})

    def _append(self, record: dict[str, Any]) -> None:
        timed = {"time": utc_text(), **record}
        self._log.append(timed)
        self._take(timed)

    def record_expiry(self, name: str, record: dict[str, Any]) -> None:
        """Record that the map of an item was removed; it is not made again."""
        kept = {key: record[key] for key in ("input", "digest", "facts")}
        self._append(kept | {"result": EXPIRED, "outputs": [], "superseded": record["outputs"]})

    def forget(self, names: set[str], before: str) -> None:
        """Forget items, and what was before a time of others but their last record and settings.

        The log is written again, atomically.
        """
        last = {name: record for name, record in self.last_records().items() if name not in names}
        settings = [record for record in self._log.each() if "settings" in record][-1:]
        kept = [
            record
            for record in self._log.each()
            if record in settings
            or ("input" in record and record["input"] not in names and record["time"] >= before)
            or ("input" in record and last.get(record["input"]) == record)
        ]
        if self.path.exists() and len(kept) < self._log.count_lines():
            self._log.rewrite(kept)
        for name in names:
            self.done.pop(name, None)
            self._digests.pop(name, None)
            self._set_aside.discard(name)
            for output in self.outputs_of(name):
                del self._owners[output]

    def refresh(self, name: str, facts: Facts) -> None:
        """Note the facts of an item whose content is still the same."""
        self.done[name] = facts

    def forget_faults(self) -> None:
        """Forget the items that were set aside, so that they are tried again."""
        for name in self._set_aside:
            del self.done[name], self._digests[name]
        self._set_aside.clear()

    # Asking

    def last_records(self) -> dict[str, dict[str, Any]]:
        """Return the last record of each item, from the disk."""
        return {record["input"]: record for record in self._log.each() if "input" in record}

    @property
    def mapped(self) -> int:
        """How many items are mapped."""
        return len(self.done) - len(self._set_aside)

    @property
    def set_aside(self) -> int:
        """How many items are set aside."""
        return len(self._set_aside)

    @property
    def items_set_aside(self) -> frozenset[str]:
        """The names of the items that are set aside."""
        return frozenset(self._set_aside)

    def is_mapped(self, name: str) -> bool:
        """Return whether an item is mapped, in its latest content."""
        return name in self.done and name not in self._set_aside

    def has(self, name: str, digest: str) -> bool:
        """Return whether an item with this content was mapped or set aside."""
        return self._digests.get(name) == bytes.fromhex(digest)

    def owner(self, output: str) -> str | None:
        """Return the item that an output is a map of, or None."""
        return self._owners.get(output)

    def outputs_of(self, name: str) -> list[str]:
        """Return the outputs of an item."""
        return [output for output, owner in self._owners.items() if owner == name]

    def recover_map(self, key: str) -> dict[str, Any] | None:
        """Return the last record of an item, if it is that of a map with this :func:`item_key`.

        It counts, even if the error of a disk was all that was heard of its writing.
        """
        for name, record in self.last_records().items():
            if record["result"] == MAPPED and item_key(name, record["digest"]) == key:
                self._take(record)
                return record
        return None


def item_key(name: str, digest: str) -> str:
    """Return a short name for an item with a certain content."""
    return hashlib.sha256(f"{name} {digest}".encode("utf-8", "surrogateescape")).hexdigest()[:16]


def utc_text(seconds_ago: float = 0.0) -> str:
    """Return the time in UTC, to the second: now, or some seconds ago."""
    moment = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
