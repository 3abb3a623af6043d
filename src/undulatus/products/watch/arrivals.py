"""A folder that others fill: which of its entries are data, and which of these are complete.

Nobody says when a file that is being copied is complete, so it counts as complete when it has not
changed for some seconds. The folder is listed again and again, which works on every disk; the
notices of the kernel do not reach over a network.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from undulatus.scenes.files.opening import is_data, is_hrit_segment

UNFINISHED_ENDINGS = (
    *(".tmp", ".temp", ".part", ".partial", ".filepart", ".crdownload"),
    *(".unfinished", ".incomplete", ".inprogress", ".lock", "~"),
)
"""Endings of names that programs give to files until these are complete."""

Facts = tuple[int, int]
"""Length in bytes and time of modification in ns of a file, or of a folder itself."""

_State = tuple[int, int, int]
"""Number of files, their bytes together, and the latest time of modification among them."""

_READY, _UNSETTLED, _UNREADABLE = "ready", "unsettled", "unreadable"
_IGNORED, _SEGMENT = "ignored", "segment"


@dataclass(frozen=True)
class Look:
    """What was found in the folder.

    Attributes
    ----------
    ready : list of paths
        Complete data, those that were modified first at the beginning.
    unsettled : int
        Data that changed lately.
    unreadable : list of str
        Names of entries that cannot be looked at, such as links to nowhere.
    ignored : int
        Entries whose names are of no known format.
    example : str
        One of the ignored names.
    segments : int
        Segments of HRIT outside a folder of their acquisition.
    """

    ready: list[Path]
    unsettled: int = 0
    unreadable: list[str] = field(default_factory=list)
    ignored: int = 0
    example: str = ""
    segments: int = 0


@dataclass
class Arrivals:
    """The entries of a folder, from look to look.

    Parameters
    ----------
    folder : path
        The folder. Folders in it count as one item each, if they hold data.
    pattern : str
        What the names must match, such as ``*.nc``. Names that begin with a dot or have an ending
        of ``UNFINISHED_ENDINGS`` are always left out.
    settle : float
        Seconds for which an item must not have changed.
    """

    folder: Path
    pattern: str = "*"
    settle: float = 5.0
    _pending: dict[str, tuple[_State, float]] = field(default_factory=dict)
    """Of each item that is not done: what it was like, and since when it has been so."""

    def look(self, done: Mapping[str, Facts], now: float, *, again: bool = True) -> Look:
        """List the folder.

        Parameters
        ----------
        done : mapping
            Items that need no work, as long as their facts are these.
        now : float
            The time in seconds, by a clock that is never set.
        again : bool
            Whether the facts of ``done`` are compared; if not, their names suffice.
        """
        before, self._pending = self._pending, {}
        found: dict[str, list[tuple[int, Path]]] = defaultdict(list)
        with os.scandir(self.folder) as entries:
            for entry in entries:
                known = not again and entry.name in done and entry.name not in before
                if known or not self._is_wanted(entry.name):
                    continue
                path = self.folder / entry.name
                try:
                    facts = own_facts(path)
                    if done.get(entry.name) != facts:
                        found[self._kind(path, before, now)].append((facts[1], path))
                except OSError as error:
                    gone = isinstance(error, FileNotFoundError) and not path.is_symlink()
                    if not gone:
                        found[_UNREADABLE].append((0, path))
        ignored = [path.name for _, path in found[_IGNORED]]
        return Look(
            [path for _, path in sorted(found[_READY])],
            unsettled=len(found[_UNSETTLED]),
            unreadable=[path.name for _, path in found[_UNREADABLE]],
            ignored=len(ignored),
            example=min(ignored, default=""),
            segments=len(found[_SEGMENT]),
        )

    def _kind(self, path: Path, before: Mapping[str, tuple[_State, float]], now: float) -> str:
        """Return what an entry is, and keep in mind what it is like."""
        if is_hrit_segment(path):
            return _SEGMENT
        # Whoever reads a pipe waits for ever.
        if not (path.is_file() or path.is_dir()) or not is_data(path):
            return _IGNORED
        state = _state(path)
        was, since = before.get(path.name, (None, now))
        since = since if was == state else now
        self._pending[path.name] = (state, since)
        return _READY if now - since >= self.settle else _UNSETTLED

    def _is_wanted(self, name: str) -> bool:
        unfinished = name.startswith(".") or name.lower().endswith(UNFINISHED_ENDINGS)
        return not unfinished and fnmatchcase(name, self.pattern)


def own_facts(path: Path) -> Facts:
    """Return the facts of a file, or of a folder itself, not of what is in it."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def arrival_time(path: Path) -> float:
    """Return when the last part of an item was put where it is, in seconds since 1970.

    That is when its name or its content changed last, which copying with its times does not hide.
    """
    inside = [file for file in path.rglob("*") if not file.is_symlink()] if path.is_dir() else []
    return max(each.stat().st_ctime for each in (path, *inside))


def _state(path: Path) -> _State:
    """Return the number, the bytes and the latest change of a file, or of all in a folder."""
    if not path.is_dir():
        size, modified = own_facts(path)
        return 1, size, modified
    count = size = 0
    latest = own_facts(path)[1]
    for folder, _, names in os.walk(path):
        latest = max(latest, own_facts(Path(folder))[1])
        for name in names:
            file = Path(folder, name)
            # A link to nowhere does not change either.
            status = file.lstat() if file.is_symlink() and not file.exists() else file.stat()
            length, modified = status.st_size, status.st_mtime_ns
            count, size, latest = count + 1, size + length, max(latest, modified)
    return count, size, latest
