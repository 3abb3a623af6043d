"""Cores, BLAS threads and memory: what is counted, limited and restored."""

import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from undulatus import _system
from undulatus._system import (
    ONE_THREAD_ENVIRONMENT,
    available_memory,
    blas_libraries,
    count_cores,
    count_threads,
    peak_memory,
    processor_name,
    read_usage,
    reset_peak_memory,
    single_threaded_blas,
    total_memory,
)

# Cores


@pytest.fixture
def quota(monkeypatch, tmp_path):
    """Four cores, in a container whose limit is set by the function returned."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(_system, "CGROUP_QUOTA", tmp_path / "cpu.max")
    return (tmp_path / "cpu.max").write_text


@pytest.mark.parametrize(
    ("limit", "cores"),
    [
        *(("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1)),
        *(("900000 100000", 4), ("", 4), ("nonsense", 4)),
    ],
)
def test_a_container_can_only_lower_the_cores(quota, limit, cores):
    quota(limit)
    assert count_cores() == cores


@pytest.mark.usefixtures("quota")
@pytest.mark.parametrize(
    ("n_jobs", "threads"), [(None, 4), (1, 1), (3, 3), (9, 9), (-1, 4), (-2, 3), (-4, 1), (-50, 1)]
)
def test_threads_are_counted_as_scikit_learn_counts_jobs(n_jobs, threads):
    assert count_threads(n_jobs) == threads


@pytest.mark.usefixtures("quota")
@pytest.mark.parametrize(
    ("limit", "threads"), [("2", 2), ("1", 1), ("16", 4), ("", 4), ("0", 4), ("many", 4)]
)
def test_the_environment_can_only_lower_the_threads(monkeypatch, limit, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert count_threads(None) == threads
    assert count_threads(-1) == threads


@pytest.mark.usefixtures("quota")
def test_a_positive_number_of_jobs_is_taken_as_it_is(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert count_threads(3) == 3


def test_the_processor_and_blas_have_names():
    assert isinstance(processor_name(), str)
    assert blas_libraries()


# BLAS


def test_blas_is_held_to_one_thread_and_restored(blas_threads):
    before = blas_threads()
    with single_threaded_blas():
        assert set(blas_threads()) == {1}
        with single_threaded_blas():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


def test_blas_is_restored_after_an_error(blas_threads):
    before = blas_threads()
    with pytest.raises(LookupError), single_threaded_blas():
        raise LookupError
    assert blas_threads() == before


def test_blas_stays_limited_until_the_last_of_interleaved_threads_leaves(blas_threads):
    first_in, second_in, first_out, end = (threading.Event() for _ in range(4))
    seen, before = [], blas_threads()

    def first():
        with single_threaded_blas():
            first_in.set()
            second_in.wait(10)
        first_out.set()
        end.wait(10)

    def second():
        first_in.wait(10)
        with single_threaded_blas():
            second_in.set()
            first_out.wait(10)
            seen.append(set(blas_threads()))

    workers = [threading.Thread(target=target) for target in (first, second)]
    for worker in workers:
        worker.start()
    workers[1].join(20)
    assert seen == [{1}]
    # The first thread is still alive, as those of a pool are.
    assert blas_threads() == before
    end.set()
    workers[0].join(20)


@pytest.fixture
def torch_threads():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield torch.get_num_threads
    torch.set_num_threads(before)


def test_torch_is_held_to_one_thread_like_blas(torch_threads):
    with single_threaded_blas():
        assert torch_threads() == 1
        with single_threaded_blas():
            assert torch_threads() == 1
        assert torch_threads() == 1
    assert torch_threads() == 3
    with pytest.raises(LookupError), single_threaded_blas():
        raise LookupError
    assert torch_threads() == 3


def test_torch_has_its_threads_again_in_threads_that_were_limited_together(torch_threads):
    both_in, seen = threading.Barrier(2, timeout=10), []

    def limited():
        with single_threaded_blas():
            both_in.wait()
            seen.append(torch_threads())
            both_in.wait()
        both_in.wait()
        seen.append(torch_threads())

    workers = [threading.Thread(target=limited) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    assert seen == [1, 1, 3, 3]
    assert torch_threads() == 3


def test_the_environment_of_a_process_holds_its_blas_to_one_thread():
    code = """
from threadpoolctl import threadpool_info
import undulatus._system
print({x["num_threads"] for x in threadpool_info() if x["user_api"] == "blas"})
"""
    environment = os.environ | ONE_THREAD_ENVIRONMENT
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout == "{1}\n"


# Memory


def test_available_memory_is_part_of_all_memory():
    assert 2**20 < available_memory() < total_memory() < 2**50


@pytest.mark.parametrize("installed", [True, False])
def test_memory_is_counted_without_proc_and_without_psutil(monkeypatch, installed):
    def no_proc(file, name):
        raise OSError

    monkeypatch.setattr(_system, "_proc_field", no_proc)
    if not installed:
        monkeypatch.setitem(sys.modules, "psutil", None)
    available = available_memory()
    assert 2**20 < available <= total_memory()
    assert (available == total_memory()) == (not installed)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
def test_the_peak_of_memory_counts_what_was_freed_again_but_not_what_was_held_before():
    for _ in range(2):
        before = reset_peak_memory()
        np.ones(4 * 2**20)
        # 32 MB, and a little that Python takes for itself.
        assert (peak_memory() - before) / 2**20 == pytest.approx(32.0, abs=3.0)
    before = reset_peak_memory()
    assert peak_memory() - before < 3 * 2**20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="an option of glibc")
def test_freed_memory_is_given_back():
    code = """
import numpy as np
from undulatus._system import give_back_freed_memory, peak_memory, reset_peak_memory
give_back_freed_memory()
# glibc keeps arrays up to the size of the largest that it has given back.
np.ones(30 * 2**20, np.uint8)
arrays, between = [], []
for _ in range(20):
    arrays.append(np.ones(10 * 2**20, np.uint8))
    between.append(np.ones(2**16, np.uint8))
before = peak_memory()
del arrays
# What does not fit into the gaps would come on top.
more = np.ones(150 * 2**20, np.uint8)
print(peak_memory() - before)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 2**20


def test_this_process_uses_time_and_memory_and_one_that_does_not_exist_uses_none():
    usage = read_usage(os.getpid())
    assert usage.seconds > 0.1
    assert 20e6 < usage.bytes < total_memory()
    assert read_usage(2**22 + 1) is None
