"""The time and memory that a block of code takes in this process."""

from __future__ import annotations

import os
import threading
import time
from types import TracebackType
from typing import Self

from undulatus._system import read_usage


def anonymous_memory() -> float:
    """Return the bytes of anonymous memory this process holds."""
    usage = read_usage(os.getpid())
    assert usage is not None
    return usage.bytes


class Meter:
    """Wall and CPU seconds of a block, and its peak of anonymous memory above that held before."""

    def __enter__(self) -> Self:
        self._before = self._peak = anonymous_memory()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.seconds = time.perf_counter() - self._wall
        self.cpu_seconds = time.process_time() - self._cpu
        self._stop.set()
        self._thread.join()
        self.peak_bytes = max(self._peak, anonymous_memory()) - self._before

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self._peak = max(self._peak, anonymous_memory())
