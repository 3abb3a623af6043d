"""How blocks are computed while they are written: threads, and what is told of progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dask
from dask.base import get_scheduler
from dask.callbacks import Callback
from dask.system import CPU_COUNT
from threadpoolctl import threadpool_limits

Progress = Callable[[int, int], None]


class _Told(Callback):
    """Tells how many of dask's tasks are done; it hears of this process alone."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._progress = progress
        self._total = 0

    def _start_state(self, dsk: Any, state: Any) -> None:
        self._total = len(state["ready"]) + len(state["waiting"])

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self._progress(len(state["finished"]), self._total)


@contextmanager
def computed_here(progress: Progress | None = None) -> Iterator[None]:
    """Compute in threads that are waited for, also when one of them fails.

    Those of dask's own would go on, and write into a folder that is being removed. Blocks run in
    parallel; BLAS would multiply their threads, so it has one.
    """
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    with (
        threadpool_limits(1),
        ThreadPoolExecutor(workers) as pool,
        dask.config.set(pool=pool),
        _Told(progress or _ignored),
    ):
        yield


def _ignored(done: int, total: int) -> None: ...


def is_elsewhere() -> bool:
    """Say if a ``distributed.Client`` computes, not this process."""
    client = getattr(get_scheduler(), "__self__", None)
    return hasattr(client, "scheduler_info")


@contextmanager
def polled(count: Callable[[], int], total: int, progress: Progress) -> Iterator[None]:
    """Tell progress twice a second by counting what is done, where tasks run elsewhere."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(0.5):
            progress(min(count(), total), total)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
    progress(total, total)
