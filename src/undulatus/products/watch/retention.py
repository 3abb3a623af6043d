"""Old maps of a watcher removed, and what is kept of items that are gone forgotten.

Only files that the ledger says were made are removed, and only if they are as they were made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from undulatus._files import remove
from undulatus.products.watch.arrivals import own_facts
from undulatus.products.watch.ledger import MAPPED, Ledger

SECONDS_BETWEEN_SWEEPS = 86_400.0
"""Old maps are looked for at the start, and then once a day."""


@dataclass
class Removed:
    """What was removed."""

    maps: int = 0
    forgotten: int = 0
    """Items that are no longer in the watched folder."""

    def __str__(self) -> str:
        return f"{self.maps:,} old maps removed, {self.forgotten:,} items that are gone forgotten"


def remove_old(
    ledger: Ledger,
    output: Path,
    here: set[str],
    before: str,
    reason_file: Callable[[str], Path],
    warn: Callable[[str], None],
) -> Removed:
    """Remove the maps that were made before a time, and forget items that are gone since.

    Parameters
    ----------
    ledger : Ledger
        What was made of each item.
    output : path
        The folder of the maps.
    here : set of str
        Names in the watched folder. Their items are never forgotten, or they would be mapped
        again; and none are if no item is here, as on a disk that is not mounted.
    before : str
        A time as :func:`undulatus.products.watch.ledger.utc_text` writes it.
    reason_file : callable
        Gives the file with the reason why an item was set aside.
    warn : callable
        Is told of maps that are not as they were made, and stay.
    """
    removed = Removed()
    last = ledger.last_records()
    old = {name: record for name, record in last.items() if record["time"] < before}
    for name, record in old.items():
        outputs = record["outputs"] if record["result"] == MAPPED else ()
        for each in outputs:
            if ledger.owner(each) == name:
                made = record.get("made", {}).get(each)
                removed.maps += _remove_map(output / each, made, warn)
        if outputs and name in here:
            ledger.record_expiry(name, record)
    gone = {name for name in old if name not in here} if here & last.keys() else set()
    for name in gone:
        if last[name]["result"] != MAPPED:
            remove(reason_file(name))
    removed.forgotten = len(gone)
    ledger.forget(gone, before)
    return removed


def _remove_map(path: Path, made: Any, warn: Callable[[str], None]) -> bool:
    """Remove a file or a folder that was made; return whether it was there."""
    if not path.exists():
        return False
    # Of a folder only its name is known, and those that earlier versions made.
    if made is not None and list(own_facts(path)) != made:
        warn(f"{path} is old, but was changed since it was made: it stays.")
        return False
    remove(path)
    return True
