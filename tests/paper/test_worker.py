"""A worker process, seen from the process that started it."""

import os
import select

import pytest

from undulatus.paper.fitting import attempt
from undulatus.paper.worker import Worker


def answer(worker):
    while True:
        select.select([worker], [], [], 60)
        record = worker.read()
        if record is not None:
            return record


@pytest.fixture(scope="module")
def worker(data):
    worker = Worker(data)
    assert answer(worker) == {"ready": True}
    yield worker
    worker.end()


def test_a_worker_returns_the_same_scores_as_a_trial_run_here(worker, data, trial):
    one = trial(n=200)
    worker.start(one)
    assert answer(worker)["nll"] == attempt(one, data)["nll"]


def test_the_time_of_a_trial_is_counted_from_its_start(worker, trial):
    worker.start(trial(n=200))
    assert worker.usage().seconds < 1.0
    answer(worker)
    assert worker.usage().bytes > 20e6


def test_a_worker_that_dies_leaves_a_reason(worker, trial):
    worker.start(trial("gpc", n=4000))
    os.kill(worker._process.pid, 9)
    record = answer(worker)
    assert worker.dead
    assert record == {
        "status": "failed",
        "reason": "its process ended with signal SIGKILL: it left no message",
    }
