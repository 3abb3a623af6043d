"""A process for trials, seen from outside.

Many trials: every one is recorded, whatever becomes of it, and none is run twice.
"""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from undulatus.paper.pool import Worker, run_trials
from undulatus.paper.trials import Budgets, TrialStore, read_records
from undulatus.paper.worker import attempt


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


AMPLE = Budgets(600.0, 64e9)


@pytest.fixture
def run(data, tmp_path):
    """Run trials, and return what was recorded, by id, and what was told on the way."""

    def run(trials, budgets=AMPLE, workers=1, folder=data):
        told = []
        with TrialStore(tmp_path / "trials.jsonl") as store:
            run_trials(
                trials, folder, store, workers=workers, budgets=budgets, progress=told.append
            )
            return dict(store.records), told

    return run


def test_trials_are_done_once_and_how_far_they_are_is_told(run, trial, data):
    trials = [trial(n=200, run=run) for run in range(2)] + [trial("gpc", n=60)]
    records, told = run(trials, workers=2)
    assert {record["status"] for record in records.values()} == {"done"}
    for one in trials:
        assert records[one.id]["nll"] == attempt(one, data)["nll"]
        assert records[one.id].items() >= one.asked().items()
    assert [standing.done for standing in told] == [0, 1, 2, 3]
    assert told[0].seconds_left > told[-1].seconds_left == 0.0
    again, told = run(trials)
    assert again == records
    assert [(standing.done, standing.total) for standing in told] == [(3, 3)]


def test_what_failed_is_tried_again_and_the_rest_is_not(run, trial, tmp_path, small_part):
    trials = [trial(n=100), trial(n=100, regime="low")]
    folder = tmp_path / "data"
    small_part(folder / "high")
    records, _ = run(trials, folder=folder)
    assert [records[one.id]["status"] for one in trials] == ["done", "failed"]
    assert "low" in records[trials[1].id]["reason"]
    small_part(folder / "low")
    mended, _ = run(trials, folder=folder)
    assert mended[trials[0].id] == records[trials[0].id]
    assert mended[trials[1].id]["status"] == "done"
    assert len(read_records(tmp_path / "trials.jsonl")) == 2


def test_trials_over_the_time_budget_are_stopped_and_larger_ones_not_begun(run, trial):
    sizes = (1500, 2500, 4000)
    trials = [trial("gpc", n=n) for n in sizes]
    records, told = run([*trials, trial(n=100)], Budgets(0.5, 64e9))
    stopped, *others = (records[one.id] for one in trials)
    assert {record["status"] for record in (stopped, *others)} == {"over time budget"}
    assert "of CPU time: the budget is 0.5 s" in stopped["reason"]
    for record in others:
        assert record["reason"] == f"not run: {stopped['id']}, of fewer rows, was over time budget"
    assert records[trial(n=100).id]["status"] == "done"
    assert told[-1].done == told[-1].total == 4
    with_less, _ = run(trials, Budgets(0.4, 64e9))
    assert with_less == records


def test_trials_over_the_memory_budget_are_stopped_and_run_again_with_a_larger_one(run, trial):
    # Distances and the kernel alone are two arrays of 3500² doubles, 187 MB.
    trials = [trial("gpc", n=3500), trial("gpc", n=4000)]
    records, _ = run(trials, Budgets(600.0, 200 * 2**20))
    assert {record["status"] for record in records.values()} == {"over memory budget"}
    assert "MB: the budget is" in records[trials[0].id]["reason"]
    assert "not run" in records[trials[1].id]["reason"]
    more, _ = run(trials, Budgets(0.2, 64e9))
    assert {record["status"] for record in more.values()} == {"over time budget"}


SCRIPT = """
import sys
from pathlib import Path
from undulatus.paper.pool import run_trials
from undulatus.paper.trials import TrialStore
from undulatus.paper.trials import Budgets, Trial

trials = [Trial("landmarks", "rff", "stochastic", n, 3, run, 0, 5, "high")
          for n in (200, 300) for run in range(2)]
with TrialStore(Path(sys.argv[2])) as store:
    run_trials(trials, Path(sys.argv[1]), store, workers=1, budgets=Budgets(600.0, 64e9),
               progress=lambda s: print(s.done, flush=True))
"""


def children_of(pid):
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_a_run_that_was_killed_goes_on_to_the_same_end(run, trial, data, tmp_path):
    store = tmp_path / "trials.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(data), str(store)], stdout=subprocess.PIPE, text=True
    )
    with process:
        while int(process.stdout.readline()) < 1:
            pass
        workers = children_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
    before = {record["id"]: record for record in read_records(store)}
    assert 1 <= len(before) < 4
    assert len(workers) == 1
    deadline = time.monotonic() + 20.0
    while any(_alive(pid) for pid in workers):
        assert time.monotonic() < deadline, "a worker outlived the run it worked for"
        time.sleep(0.05)
    trials = [trial(n=n, run=run) for n in (200, 300) for run in range(2)]
    after, _ = run(trials)
    assert set(after) == {one.id for one in trials}
    assert after.items() >= before.items()
    for one in trials:
        assert after[one.id]["accuracy"] == attempt(one, data)["accuracy"]


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
