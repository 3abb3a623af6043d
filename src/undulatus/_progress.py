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
learning: regime night (2 of 2): 5 of 10 (75 %)
learning: done after 0 s
>>> LOGGER.removeHandler(shown)
>>> LOGGER.setLevel(logging.NOTSET)
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

LOGGER = logging.getLogger("undulatus")

FIRST_SECONDS = 2.0
"""Nothing is said of the time left before: opening files and starting threads is no pace."""


@dataclass(frozen=True)
class Progress:
    """How far a task is, and what of it is at work."""

    what: str
    """The task and its part at work, such as ``learning: regime night (4 of 4)``."""
    share: float | None
    """Of the whole task that is done, between 0 and 1; None if it is not known."""
    detail: str
    """Counts and values, such as ``estimator 1 of 8, step 3 of about 12: validation NLL 0.04``."""
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

    Parts of unlike cost go from ``index`` to ``index + size`` of ``count``. A part with the name
    of what it belongs to is not named twice.
    """

    def __init__(self, name: str, index: float = 0, count: float = 1, size: float = 1) -> None:
        self.name = name
        self._place = (index, count, size)
        self._within = _under_way.get()
        self._began = time.monotonic()
        self._reported = False
        self._rate = Rate(self._began, 0.0)
        if self._task._rate.share == 0.0:
            # What came before the first part with something to count tells nothing of the pace.
            self._task._rate = Rate(self._began, 0.0)

    def report(
        self, done: float, total: float | None = None, detail: str | None = None, **more: Any
    ) -> None:
        """Report how much is done, of how much, as :meth:`measure` says; any thread may."""
        if LOGGER.isEnabledFor(logging.DEBUG):
            tell(self.measure(done, total, detail, **more))

    def measure(
        self,
        done: float,
        total: float | None = None,
        detail: str | None = None,
        *,
        seconds_left: float | None = None,
        at_most: bool = False,
        earlier: float = 0.0,
    ) -> Progress:
        """Return how far the task is when so much of this work is done.

        ``detail`` replaces these numbers in what is shown; ``at_most`` says that less than
        ``total`` may be enough. The time left is estimated unless it is given: ``earlier`` is what
        was done before this work began, by one that it continues, and tells nothing of the pace.
        """
        share, task = self._share(done / total if total else None), self._task
        if earlier and total and not self._reported:
            task._rate = Rate(self._began, self._share(earlier / total) or 0.0)
        self._reported = True
        # A part that follows when all was done, such as a last check, has a share of nothing.
        share = None if share is None or share < task._rate.share else share
        if detail is None:
            counted = f"{int(done):,}"
            detail = counted if total is None else f"{counted} of {int(total):,}"
        if seconds_left is None and share is not None:
            seconds_left = task._rate.seconds_left(share, time.monotonic())
        # Other parts may take longer than this one.
        at_most = at_most and self._is_whole
        return Progress(self._path, share, detail, seconds_left, at_most)

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
        index, count, size = self._place
        if own is None and count == 1:
            return None
        share = (index + size * (own or 0.0)) / count
        return share if self._within is None else self._within._share(share)


def tell(progress: Progress) -> None:
    """Give progress to whoever listens."""
    LOGGER.debug("%s", progress, extra={"progress": progress})


class Rate:
    """How fast a task is: the pace of the later half of the time since it began.

    What came before, such as the parts that an earlier run had finished, is forgotten.
    """

    def __init__(self, began: float, share: float) -> None:
        self._began = began
        self._reports = deque([(began, share)])

    @property
    def share(self) -> float:
        """What was done at the last report."""
        return self._reports[-1][1]

    def seconds_left(self, share: float, now: float) -> float | None:
        """Take a report of how much is done; return the time left, or None if it is not known."""
        self._reports.append((now, share))
        while len(self._reports) > 2 and self._reports[1][0] <= (self._began + now) / 2.0:
            self._reports.popleft()
        then, at_first = self._reports[0]
        if now - self._began < FIRST_SECONDS or share == 1.0 or share <= at_first:
            return None
        return (now - then) / (share - at_first) * (1.0 - share)


_under_way: ContextVar[Work | None] = ContextVar("undulatus_work", default=None)


@contextmanager
def working_on(name: str, index: float = 0, count: float = 1, size: float = 1) -> Iterator[Work]:
    """Give a task to report about; those that begin meanwhile, in this context, are its parts."""
    work = Work(name, index, count, size)
    token = _under_way.set(work)
    try:
        yield work
    finally:
        _under_way.reset(token)
        work.close()


# Blocks of a computation


class Stopped(Exception):  # noqa: N818
    """Raised in a thread whose block nobody waits for any more."""


_of_thread = threading.local()


def watch_thread(watch: Callable[[float | None], None]) -> None:
    """Let ``watch`` be called, in this thread, with what :func:`report_block` is given."""
    _of_thread.watch = watch


def report_block(share: float | None = None) -> None:
    """Report the share of its block that this thread has done, if a pool of threads watches it.

    To be called every few seconds at least: it raises :class:`Stopped` after an interrupt.
    """
    watch = getattr(_of_thread, "watch", None)
    if watch is not None:
        watch(share)


def duration_text(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"
