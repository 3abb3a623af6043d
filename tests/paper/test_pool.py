"""Every trial gets one record, whatever happens to it; guesses of cost set the order."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from undulatus.paper.fitting import attempt
from undulatus.paper.pool import (
    Budgets,
    cheapest_first,
    expected_bytes,
    expected_seconds,
    run_trials,
    seconds_left,
)
from undulatus.paper.trials import open_store, read_records

AMPLE = Budgets(600.0, 64e9)


@pytest.fixture
def run(data, tmp_path):
    """Run trials; return the records by id, and the reports of progress."""

    def run(trials, budgets=AMPLE, workers=1, folder=data):
        reports = []
        with open_store(tmp_path / "trials.jsonl") as store:
            run_trials(
                trials, folder, store, workers=workers, budgets=budgets, progress=reports.append
            )
            return dict(store.records), reports

    return run


def test_trials_are_run_once_and_progress_is_reported(run, trial, data):
    trials = [trial(n=200, run=run) for run in range(2)] + [trial("gpc", n=60)]
    records, reports = run(trials, workers=2)
    assert {record["status"] for record in records.values()} == {"done"}
    for one in trials:
        assert records[one.id]["nll"] == attempt(one, data)["nll"]
        assert records[one.id].items() >= one.as_record().items()
    assert [report.done for report in reports] == [0, 1, 2, 3]
    assert reports[0].seconds_left > reports[-1].seconds_left == 0.0
    again, reports = run(trials)
    assert again == records
    assert [(report.done, report.total) for report in reports] == [(3, 3)]


def test_only_trials_that_failed_are_run_again(run, trial, tmp_path, small_part):
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


def test_trials_over_the_time_budget_are_stopped_and_larger_ones_skipped(run, trial):
    sizes = (1500, 2500, 4000)
    trials = [trial("gpc", n=n) for n in sizes]
    records, reports = run([*trials, trial(n=100)], Budgets(0.5, 64e9))
    stopped, *others = (records[one.id] for one in trials)
    assert {record["status"] for record in (stopped, *others)} == {"over time budget"}
    assert "of CPU time: the budget is 0.5 s" in stopped["reason"]
    for record in others:
        assert record["reason"] == f"not run: {stopped['id']}, of fewer rows, was over time budget"
    assert records[trial(n=100).id]["status"] == "done"
    assert reports[-1].done == reports[-1].total == 4
    with_less, _ = run(trials, Budgets(0.4, 64e9))
    assert with_less == records


def test_trials_over_the_memory_budget_run_again_under_a_larger_one(run, trial):
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
from undulatus.paper.pool import Budgets, run_trials
from undulatus.paper.trials import Trial, open_store

trials = [Trial("landmarks", "rff", "stochastic", n, 3, run, 0, 5, "high")
          for n in (200, 300) for run in range(2)]
with open_store(Path(sys.argv[2])) as store:
    run_trials(trials, Path(sys.argv[1]), store, workers=1, budgets=Budgets(600.0, 64e9),
               progress=lambda s: print(s.done, flush=True))
"""


def children_of(pid):
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")
def test_a_run_that_was_killed_ends_with_the_same_results(run, trial, data, tmp_path):
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


def done(trial, seconds):
    return trial.as_record() | {"status": "done", "fit_seconds": seconds, "predict_seconds": 0.0}


@pytest.mark.parametrize("method", ["rff", "gpc"])
def test_more_rows_take_more_time_and_memory(method, trial):
    less, more = trial(method, n=1000), trial(method, n=50_000)
    assert expected_seconds(less) < expected_seconds(more)
    assert expected_bytes(less) < expected_bytes(more)


def test_the_time_of_exact_fits_grows_as_the_cube_of_rows(trial):
    small, large = (expected_seconds(trial("gpc", n=n)) for n in (10_000, 20_000))
    assert large == pytest.approx(8.0 * small, rel=1e-3)


def test_cheap_trials_come_first_and_regimes_alternate(trial):
    regimes = ("high", "low")
    trials = [
        trial(n=n, frequencies=100, run=run, regime=regime)
        for regime in regimes
        for n in (500_000, 1000)
        for run in (0, 1)
    ]
    order = [(one.n, one.regime, one.run) for one in cheapest_first(trials)]
    assert order[:2] == [(1000, "high", 0), (1000, "low", 0)]
    assert {one[0] for one in order[4:]} == {500_000}
    assert [one[2] for one in order[4:]] == [0, 0, 1, 1]


def test_a_first_run_comes_before_the_fifth_run_of_a_trial_half_as_expensive(trial):
    fifth, first = trial("gpc", n=1000, run=4), trial("gpc", n=1200)
    assert cheapest_first([fifth, first]) == [first, fifth]


def test_trials_that_took_twice_as_long_as_expected_double_the_seconds_left(trial):
    past, left = trial("gpc", n=100), trial("gpc", n=1000)
    known = {past.id: past, left.id: left}
    alone = seconds_left([left], [], known)
    records = [done(past, 2.0 * expected_seconds(past))]
    assert seconds_left([left], records, known) == pytest.approx(2.0 * alone)


def test_the_time_left_is_corrected_by_trials_of_the_same_method(trial):
    slow, fast, left = trial("gpc", n=100), trial("rff"), trial("rff", n=400)
    known = {one.id: one for one in (slow, fast, left)}
    records = [done(slow, 50.0 * expected_seconds(slow)), done(fast, expected_seconds(fast))]
    assert seconds_left([left], records, known) == pytest.approx(expected_seconds(left))
