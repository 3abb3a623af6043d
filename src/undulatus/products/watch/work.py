"""Where maps are made before they get their names: a hidden folder with one for each item.

Whatever else somebody puts there stays: a folder is removed if the ledger knows its item, or if it
holds the mark that it was made here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from undulatus._files import remove, remove_unfinished, write_text

WORK_NAME = ".watch"

MARK_NAME = ".made-by-undulatus-watch"
"""An empty file in each folder that was made here."""

_KEY = re.compile(r"[0-9a-f]{16}")
"""Names of folders of items: :func:`undulatus.products.watch.ledger.item_key`."""


@dataclass(frozen=True)
class WorkFolder:
    """The hidden folder of an output folder, of which there is one watcher at a time."""

    path: Path

    @property
    def trying(self) -> Path:
        """The file that says which item is being mapped."""
        return self.path / "trying.json"

    def begin(self, key: str) -> Path:
        """Return a new, empty folder for an item; what was left of an earlier attempt is gone."""
        work = self.path / key
        if work.is_dir() and is_ours(work):
            remove(work)
        work.mkdir()
        (work / MARK_NAME).touch()
        return work

    def folders(self) -> list[Path]:
        """Return the folders whose names are those of items, ours or not."""
        self.path.mkdir(exist_ok=True)
        return [
            each for each in self.path.iterdir() if each.is_dir() and _KEY.fullmatch(each.name)
        ]

    def remove_leftovers(self) -> None:
        """Remove what a killed process left of the file that says what is being mapped."""
        remove_unfinished(self.trying)

    def close(self) -> None:
        """Remove the folder, unless somebody put something there."""
        remove(self.trying)
        with suppress(OSError):
            self.path.rmdir()

    @contextmanager
    def counting_deaths(self, key: str) -> Iterator[int]:
        """Give how often in a row the process died in this block with the same key."""
        try:
            found = json.loads(self.trying.read_text())
            deaths = int(found["deaths"]) if found["key"] == key else 0
        except (OSError, ValueError, KeyError, TypeError):
            deaths = 0
        write_text(self.trying, json.dumps({"key": key, "deaths": deaths + 1}))
        try:
            yield deaths
        finally:
            with suppress(OSError):
                remove(self.trying)


def is_ours(work: Path) -> bool:
    """Return whether a folder was made here: it has the mark, or was to get it, and is empty."""
    return (work / MARK_NAME).exists() or not any(work.iterdir())
