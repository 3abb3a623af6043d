"""What the machine has and what a process uses of it: cores, BLAS threads, memory."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import scipy.linalg  # noqa: F401  (loads SciPy's BLAS, so that the controller below sees it)
from threadpoolctl import ThreadpoolController

Result = TypeVar("Result")

ONE_THREAD_ENVIRONMENT = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Variables that hold the BLAS of a process to one thread, if they are set before it starts."""

M_MMAP_THRESHOLD = -3
"""The number of an option of glibc's mallopt: bytes from which memory is mapped by itself."""

CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
"""CPU time that a container may use, and the period it holds for, in microseconds."""


# Cores


def count_cores() -> int:
    """Return how many cores this process may use: its affinity and its container may limit it.

    Use it for processes, dask's workers (unless its ``num_workers`` is set) and threads that read
    files; for threads of a fit or a prediction use :func:`count_threads`.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    # "max 100000" if there is no limit.
    with suppress(OSError, ValueError):
        quota, period = map(int, CGROUP_QUOTA.read_text().split())
        cores = min(cores, max(1, quota // period))
    return cores


def count_threads(n_jobs: int | None) -> int:
    """Return how many threads ``n_jobs`` asks for, as scikit-learn counts them.

    None is all cores, or fewer if OMP_NUM_THREADS says so; below 0 it is cores + 1 + n_jobs. Use
    it for our own threads that do array work: they take the place of those of BLAS.
    """
    if n_jobs is not None and n_jobs > 0:
        return n_jobs
    cores = count_cores()
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdigit() and int(limit) > 0:
        cores = min(cores, int(limit))
    return cores if n_jobs is None else max(1, cores + 1 + n_jobs)


def processor_name() -> str:
    """Return the model of the processor, as far as the system says."""
    with suppress(OSError, StopIteration):
        return _proc_field("cpuinfo", "model name").strip()
    return platform.processor()


# BLAS


class _SingleThreadedBlas:
    """Hold BLAS and torch to one thread while any caller asks for it; restore both afterwards.

    Several fits may run at once, in threads. Some libraries have one setting for the process,
    which threadpoolctl lets no other thread change while the thread that set it lives: it is set
    and restored in threads that end at once. Others have one setting per thread: every caller
    sets its own. Torch, if it is there, has both: a new thread begins with the last one that was
    set anywhere.
    """

    def __init__(self) -> None:
        self._controller = ThreadpoolController()
        self._lock = threading.Lock()
        self._callers = 0
        self._limiter: Any = None
        self._torch_threads = 0
        self._own = threading.local()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._callers == 0:
                self._limiter = _in_short_thread(self._limit)
            self._callers += 1
        try:
            # In this order: threadpoolctl also restores the OpenMP that torch computes with.
            with self._limit_torch(), self._limit():
                yield
        finally:
            with self._lock:
                self._callers -= 1
                if self._callers == 0:
                    _in_short_thread(self._limiter.restore_original_limits)
                    self._torch_threads = 0

    @contextmanager
    def _limit_torch(self) -> Iterator[None]:
        # Not imported here: only who has tensors needs it.
        set_threads = getattr(sys.modules.get("torch"), "set_num_threads", None)
        if set_threads is None or getattr(self._own, "limited", False):
            yield
            return
        with self._lock:
            self._torch_threads = self._torch_threads or sys.modules["torch"].get_num_threads()
            threads = self._torch_threads
        self._own.limited = True
        set_threads(1)
        try:
            yield
        finally:
            set_threads(threads)
            self._own.limited = False

    def _limit(self) -> Any:
        return self._controller.limit(limits=1, user_api="blas")


def _in_short_thread(function: Callable[[], Result]) -> Result:
    """Call a function in a thread that ends with it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


single_threaded_blas = _SingleThreadedBlas()


def blas_libraries() -> list[str]:
    """Return the names and versions of the BLAS libraries in use."""
    libraries = ThreadpoolController().info()
    return sorted(
        {f"{x['internal_api']} {x['version']}" for x in libraries if x["user_api"] == "blas"}
    )


# Memory


def available_memory() -> float:
    """Return the bytes of memory that can still be taken without swapping."""
    with suppress(OSError, StopIteration):
        return _kilobytes(_proc_field("meminfo", "MemAvailable"))
    with suppress(ImportError):
        import psutil

        return float(psutil.virtual_memory().available)
    return total_memory()


def total_memory() -> float:
    """Return the bytes of memory of this machine."""
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def give_back_freed_memory() -> None:
    """Let glibc give arrays of a mebibyte and more back as soon as they are freed.

    Otherwise it learns to keep those of up to 32 MiB, and memory grows by the gaps between them:
    by a quarter over a map. New pages cost a map with few frequencies a quarter more CPU seconds.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**20)


def trim_memory() -> None:
    """Give memory that was freed back to the system: glibc keeps what lies between used blocks."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak_memory() -> float | None:
    """Restart :func:`peak_memory`, and return the bytes held now; None except on Linux."""
    gc.collect()
    # Memory that was freed but kept by the allocator would hide what is taken from now on.
    trim_memory()
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _kilobytes(_proc_field("self/status", "VmRSS"))
    except OSError:
        return None


def peak_memory() -> float:
    """Return the most bytes this process held since it started or the peak was reset (Linux)."""
    # Not getrusage's: that of a child starts at what its parent held.
    return _kilobytes(_proc_field("self/status", "VmHWM"))


@dataclass(frozen=True)
class Usage:
    """CPU seconds that a process has spent, and bytes of memory it holds."""

    seconds: float
    bytes: float


def read_usage(pid: int) -> Usage | None:
    """Return what a process uses, or None if it has ended; memory it shares does not count."""
    import psutil

    try:
        process = psutil.Process(pid)
        with process.oneshot():
            times, memory = process.cpu_times(), process.memory_info()
    except psutil.Error:
        return None
    # Pages of mapped files can be reclaimed at any time.
    return Usage(times.user + times.system, float(memory.rss - getattr(memory, "shared", 0)))


def _proc_field(file: str, name: str) -> str:
    with open(f"/proc/{file}") as lines:
        return next(line.partition(":")[2] for line in lines if line.startswith(name))


def _kilobytes(text: str) -> float:
    return 1024.0 * int(text.split()[0])
