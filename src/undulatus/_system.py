"""Cores, BLAS threads, memory and processes: what the machine has, and how much of it is used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads SciPy's BLAS, so that the controller below sees it)
from threadpoolctl import ThreadpoolController

Result = TypeVar("Result")


class _SingleThreadedBlas:
    """Hold BLAS to one thread for as long as anyone asks, and give it back after the last.

    Fits may run in several threads at once. Some libraries have one number for the process,
    which threadpoolctl lets no other thread change while the one that set it lives: it is set
    and given back in threads that end at once. Others have one for each thread: everyone who
    asks sets their own.
    """

    def __init__(self) -> None:
        self._controller = ThreadpoolController()
        self._lock = threading.Lock()
        self._holders = 0
        self._limiter: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._holders == 0:
                self._limiter = _in_passing(self._limit)
            self._holders += 1
        try:
            with self._limit():
                yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    _in_passing(self._limiter.restore_original_limits)

    def _limit(self) -> Any:
        return self._controller.limit(limits=1, user_api="blas")


def _in_passing(act: Callable[[], Result]) -> Result:
    """Return what a function returns in a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


single_threaded_blas = _SingleThreadedBlas()


def blas_libraries() -> list[str]:
    """Return the names and versions of the BLAS libraries in use."""
    libraries = ThreadpoolController().info()
    return sorted(
        {f"{x['internal_api']} {x['version']}" for x in libraries if x["user_api"] == "blas"}
    )


def count_threads(n_jobs: int | None) -> int:
    """Return how many threads ``n_jobs`` asks for: all cores for None, n + 1 + n_jobs below 0.

    The cores are those this process may use, or fewer if OMP_NUM_THREADS says so.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        cores = min(cores, int(limit))
    if n_jobs is None:
        return cores
    return n_jobs if n_jobs > 0 else max(1, cores + 1 + n_jobs)


def available_memory() -> float:
    """Return the bytes of memory a process may still take, as the system tells it."""
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return 1024.0 * int(line.split()[1])
    except OSError:
        pass
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


@dataclass(frozen=True)
class Usage:
    """CPU seconds a process has spent, and bytes of memory it holds."""

    seconds: float
    bytes: float


def read_usage(pid: int) -> Usage | None:
    """Return what a process has used, where the system tells it (Linux)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    # Pages of its own: those of mapped files can be had back at any time.
    held = next((x.split()[1] for x in status.splitlines() if x.startswith("RssAnon")), "0")
    return Usage(ticks / os.sysconf("SC_CLK_TCK"), 1024.0 * int(held))
