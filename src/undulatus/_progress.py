"""How far work has come, as records of Python's logging.

Estimators, products and commands report here, to the logger ``undulatus``, whose handlers decide
what is shown: the commands' own show a bar, or a line every few seconds. The package adds no
handler by itself. Records of progress are of level DEBUG and have an attribute ``progress``, a
:class:`Progress`, or None when a task is over.

>>> import logging
>>> class Shown(logging.Handler):
...     def emit(self, record):
...         print(record.getMessage())
>>> shown = Shown()
>>> LOGGER.addHandler(shown)
>>> LOGGER.setLevel(logging.DEBUG)
>>> with working_on("learning"):
...     for index, name in enumerate(["day", "night"]):
...         with working_on(f"regime {name} ({index + 1} of 2)", index, 2) as part:
...             part.report(5, 10)
learning: regime day (1 of 2): 5 of 10 (25 %)
learning: regime night (2 of 2): 5 of 10 (75 %), about 0 s left
learning: done after 0 s
>>> LOGGER.removeHandler(shown)
>>> LOGGER.setLevel(logging.NOTSET)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

LOGGER = logging.getLogger("undulatus")


@dataclass(frozen=True)
class Progress:
    """How far a task is, and what of it is at work."""

    what: str
    """The task and its part at work, such as ``learning: regime night (4 of 4)``."""
    share: float | None
    """Of the whole task that is done, between 0 and 1; None if it is not known."""
    detail: str
    """Counts and values, such as ``step 3 of at most 200, member 1: validation NLL 0.04``."""
    seconds_left: float | None
    at_most: bool
    """Whether it may be over sooner."""

    @property
    def time_left(self) -> str:
        """The time left in words, empty if it is not known."""
        if self.seconds_left is None:
            return ""
        return f"{'at most' if self.at_most else 'about'} {duration_text(self.seconds_left)} left"

    def __str__(self) -> str:
        share = "" if self.share is None else f" ({100 * self.share:.0f} %)"
        left = f", {self.time_left}" if self.time_left else ""
        return f"{self.what}: {self.detail}{share}{left}"


class Work:
    """A task, or a part of the one under way where it is made: ``index`` of ``count`` parts.

    A part with the name of what it belongs to is not named twice.
    """

    def __init__(self, name: str, index: int = 0, count: int = 1) -> None:
        self.name = name
        self._place = (index, count)
        self._within = _under_way.get()
        self._began = time.monotonic()
        self._first: tuple[float, float] | None = None

    def report(
        self,
        done: int,
        total: int | None = None,
        detail: str | None = None,
        *,
        seconds_left: float | None = None,
        at_most: bool = False,
    ) -> None:
        """Report how much is done, of how much; any thread may call this.

        ``detail`` replaces these numbers in what is shown; ``at_most`` says that less than
        ``total`` may be enough. The time left is estimated unless it is given.
        """
        if not LOGGER.isEnabledFor(logging.DEBUG):
            return
        share = self._share(done / total if total else None)
        if detail is None:
            detail = f"{done:,}" if total is None else f"{done:,} of {total:,}"
        if seconds_left is None:
            seconds_left = self._task._seconds_left(share)
        # Other parts may take longer than this one.
        at_most = at_most and self._is_whole
        progress = Progress(self._path, share, detail, seconds_left, at_most)
        LOGGER.debug("%s", progress, extra={"progress": progress})

    def close(self) -> None:
        """Say that the task is over; the end of a part is not told."""
        if self._within is None:
            took = duration_text(time.monotonic() - self._began)
            LOGGER.debug("%s: done after %s", self.name, took, extra={"progress": None})

    @property
    def _task(self) -> Work:
        return self if self._within is None else self._within._task

    @property
    def _is_whole(self) -> bool:
        return self._place[1] == 1 and (self._within is None or self._within._is_whole)

    @property
    def _path(self) -> str:
        names, work = [self.name], self._within
        while work is not None:
            names.append(work.name)
            work = work._within
        return ": ".join(dict.fromkeys(reversed(names)))

    def _share(self, own: float | None) -> float | None:
        """Return the share of the whole task from that of this part."""
        index, count = self._place
        if own is None and count == 1:
            return None
        share = (index + (own or 0.0)) / count
        return share if self._within is None else self._within._share(share)

    def _seconds_left(self, share: float | None) -> float | None:
        """Return the time left at the pace since the first report, late in a resumed fit."""
        if share is None or share == 1.0:
            return None
        now = time.monotonic()
        if self._first is None:
            self._first = (now, share)
        began, at_first = self._first
        return (now - began) / (share - at_first) * (1.0 - share) if share > at_first else None


_under_way: ContextVar[Work | None] = ContextVar("undulatus_work", default=None)


@contextmanager
def working_on(name: str, index: int = 0, count: int = 1) -> Iterator[Work]:
    """Give a task to report about; those that begin meanwhile, in this context, are its parts."""
    work = Work(name, index, count)
    token = _under_way.set(work)
    try:
        yield work
    finally:
        _under_way.reset(token)
        work.close()


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
