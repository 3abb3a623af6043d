"""A process for trials, seen from outside."""

import os
import select

import numpy as np
import pytest

from undulatus.products.reproduction.worker import attempt
from undulatus.products.reproduction.workers import Worker, read_usage


def answer(worker):
    while True:
        select.select([worker], [], [], 60)
        found = worker.read()
        if found is not None:
            return found


@pytest.fixture(scope="module")
def worker(data):
    worker = Worker(data)
    assert answer(worker) == {"ready": True}
    yield worker
    worker.end()


def test_a_process_answers_as_the_trial_would_here(worker, data, trial):
    asked = trial(n=200)
    worker.give(asked)
    assert answer(worker)["nll"] == attempt(asked, data)["nll"]


def test_time_and_memory_of_a_trial_are_counted_from_its_start(worker, trial):
    worker.give(trial(n=200))
    assert worker.spent().seconds < 1.0
    answer(worker)
    assert worker.spent().bytes > 20e6


def test_a_process_that_dies_leaves_a_reason(worker, trial):
    worker.give(trial("gpc", n=4000))
    os.kill(worker._process.pid, 9)
    found = answer(worker)
    assert worker.dead
    assert found == {
        "status": "failed",
        "reason": "its process ended with signal SIGKILL: it left no message",
    }


def test_this_process_uses_time_and_memory_and_a_missing_one_none():
    usage = read_usage(os.getpid())
    assert usage.seconds > 0.1
    assert usage.bytes > 20e6
    assert read_usage(2**22 + 1) is None
    assert np.isfinite(usage.bytes)
