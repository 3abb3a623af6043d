"""Trials have names that tell them apart, and records that the contract knows.

Guesses of time and memory: their order, and how trials that are done correct them.

Records survive whatever happens to the process that writes them.

A run is read back as it was written, also if it was cut short.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from undulatus.errors import InputError
from undulatus.paper.trials import (
    KEYS,
    Trial,
    TrialStore,
    expected_bytes,
    expected_seconds,
    in_order,
    make_run,
    means,
    read_records,
    read_run,
    time_left,
)


def test_a_trial_of_a_regime_is_named_by_all_that_sets_it_apart(trial):
    assert trial("vff", n=10_000, frequencies=50).id == "high-vff-stochastic-n10000-D50-run0"
    assert trial("gpc", n=5_000, run=3).id == "high-gpc-exact-n5000-run3"
    fold = Trial("iavisa", "rff", "batch", 19_938, 100, 2, 0, 5)
    assert fold.id == "rff-batch-n19938-D5-fold2"


def test_what_is_asked_has_a_regime_in_landmarks_and_all_where_all_rows_are_taken(trial):
    assert trial("gpc").asked() == {
        "id": "high-gpc-exact-n300-run0",
        "experiment": "landmarks",
        "regime": "high",
        "method": "gpc",
        "solver": "exact",
        "n": 300,
        "D": None,
        "d": 3,
        "run": 0,
        "seed": 0,
    }
    fold = Trial("iavisa", "gpc", "exact", 19_938, 100, 2, 0, whole=True)
    assert fold.asked()["all"] is True
    assert "regime" not in fold.asked()


def test_a_trial_is_rebuilt_from_its_fields(trial):
    assert Trial(**trial().as_dict()) == trial()
    assert replace(trial(), run=1).id != trial().id


def done(trial, seconds):
    return trial.asked() | {"status": "done", "fit_seconds": seconds, "predict_seconds": 0.0}


@pytest.mark.parametrize("method", ["rff", "gpc"])
def test_more_rows_take_more_time_and_memory(method, trial):
    less, more = trial(method, n=1000), trial(method, n=50_000)
    assert expected_seconds(less) < expected_seconds(more)
    assert expected_bytes(less) < expected_bytes(more)


def test_exact_fits_grow_as_the_cube_of_rows(trial):
    small, large = (expected_seconds(trial("gpc", n=n)) for n in (10_000, 20_000))
    assert large == pytest.approx(8.0 * small, rel=1e-3)


def test_cheap_trials_come_first_and_regimes_side_by_side(trial):
    regimes = ("high", "low")
    trials = [
        trial(n=n, frequencies=100, run=run, regime=regime)
        for regime in regimes
        for n in (500_000, 1000)
        for run in (0, 1)
    ]
    order = [(one.n, one.regime, one.run) for one in in_order(trials)]
    assert order[:2] == [(1000, "high", 0), (1000, "low", 0)]
    assert {one[0] for one in order[4:]} == {500_000}
    assert [one[2] for one in order[4:]] == [0, 0, 1, 1]


def test_a_first_run_that_is_dear_comes_before_the_fifth_of_half_its_price(trial):
    cheap, dear = trial("gpc", n=1000, run=4), trial("gpc", n=1200)
    assert in_order([cheap, dear]) == [dear, cheap]


def test_trials_that_took_twice_as_long_as_expected_double_the_time_left(trial):
    past, left = trial("gpc", n=100), trial("gpc", n=1000)
    known = {past.id: past, left.id: left}
    alone = time_left([left], [], known)
    records = [done(past, 2.0 * expected_seconds(past))]
    assert time_left([left], records, known) == pytest.approx(2.0 * alone)


def test_each_method_has_its_own_correction(trial):
    slow, fast, left = trial("gpc", n=100), trial("rff"), trial("rff", n=400)
    known = {one.id: one for one in (slow, fast, left)}
    records = [done(slow, 50.0 * expected_seconds(slow)), done(fast, expected_seconds(fast))]
    assert time_left([left], records, known) == pytest.approx(expected_seconds(left))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_text('{"id": "a", "status": "done"}\n{"id": "b", "status": "failed"}\n')
    return path


def test_a_record_is_in_the_file_when_append_returns(path):
    with TrialStore(path) as store:
        store.append({"id": "c", "status": "done"})
        assert [record["id"] for record in read_records(path)] == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_last_line_that_was_cut_short_is_dropped_and_written_anew(path, cut):
    with path.open("a") as file:
        file.write(json.dumps({"id": "c", "status": "done"})[:-cut])
    assert [record["id"] for record in read_records(path)] == ["a", "b"]
    with TrialStore(path) as store:
        assert set(store.records) == {"a", "b"}
        store.append({"id": "c", "status": "done"})
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a", "b", "c"]


def test_a_line_cut_just_before_its_end_counts_as_cut(path):
    with path.open("a") as file:
        file.write(json.dumps({"id": "c", "status": "done"}))
    assert [record["id"] for record in read_records(path)] == ["a", "b"]


def test_a_spoiled_line_in_the_middle_is_named_with_its_remedy(path):
    path.write_text('{"id": "a"}\nnonsense\n{"id": "b"}\n')
    with pytest.raises(InputError, match=r"line 2 .* Remove the line"):
        read_records(path)


def test_forgotten_records_leave_the_file(path):
    with TrialStore(path) as store:
        store.forget(lambda record: record["status"] == "failed")
        store.append({"id": "c", "status": "done"})
    assert [record["id"] for record in read_records(path)] == ["a", "c"]


def test_two_runs_cannot_write_to_one_folder(path):
    with TrialStore(path), pytest.raises(InputError, match="another run"):
        TrialStore(path).__enter__()
    with TrialStore(path) as store:
        assert len(store.records) == 2


def test_a_number_that_json_has_not_is_refused_before_anything_is_written(path):
    with TrialStore(path) as store, pytest.raises(ValueError, match="JSON"):
        store.append({"id": "c", "nll": float("nan")})
    assert len(read_records(path)) == 2


def write(out, facts, records, end=""):
    (out / "run.json").write_text(json.dumps(facts))
    (out / "trials.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records) + end)


def test_a_run_is_read_as_it_was_written(made_up, tmp_path):
    facts, records = made_up("landmarks")
    write(tmp_path, facts, records)
    run = read_run(tmp_path)
    assert run.facts == facts
    assert len(run.trials) == len(records)
    assert run.solvers == ("batch",)
    assert set(run.by("batch")["solver"]) == {"batch", "exact"}


def test_a_line_cut_as_it_was_written_is_no_trial(made_up, tmp_path):
    facts, records = made_up("landmarks")
    write(tmp_path, facts, records, end='{"id": "high-vff')
    assert len(read_run(tmp_path).trials) == len(records)


def test_a_broken_line_before_the_last_is_named(made_up, tmp_path):
    facts, records = made_up("landmarks")
    write(tmp_path, facts, records, end='{"id":\n{}\n')
    with pytest.raises(InputError, match=rf"trials.jsonl, line {len(records) + 1}: not a record"):
        read_run(tmp_path)


def test_a_folder_without_a_run_says_so(tmp_path):
    with pytest.raises(InputError, match=r"holds no run: there is no run.json"):
        read_run(tmp_path)


def test_a_run_before_its_first_trial_is_empty(made_up, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps(made_up("iavisa")[0]))
    run = read_run(tmp_path)
    assert run.trials.empty
    assert run.solvers == ()
    assert means(run.done).empty


def test_of_trials_with_one_id_the_last_counts(made_up):
    facts, records = made_up("landmarks")
    again = records[0] | {"accuracy": 0.123}
    run = make_run(facts, [*records, again])
    assert len(run.trials) == len(records)
    assert (run.trials["accuracy"] == 0.123).sum() == 1


def test_means_are_those_of_the_runs_of_each_setting(made_up):
    facts, records = made_up("landmarks")
    table = means(make_run(facts, records).done)
    assert not table.duplicated(KEYS).any()
    row = table.set_index(KEYS).loc[("mid", "vff", "batch", 50_000, 200)]
    # 0.94 + 0.0002 run - 0.004 - 0.001, over runs 0, 1 and 2.
    assert_allclose(row["accuracy"], 0.9352, rtol=1e-12)
    assert_allclose(row["accuracy_error"], 0.0002 / np.sqrt(3.0), rtol=1e-10)
    assert row["runs"] == 3
    assert list(table["regime"].unique()) == ["high", "mid", "low", "night"]


def test_sizes_of_landmarks_are_never_joined(made_up):
    facts, records = made_up("landmarks", lambda r: r | {"n": 1000 + r["run"]})
    assert set(make_run(facts, records).trials["n"]) == {1000, 1001, 1002}


def test_trials_that_were_not_done_are_kept_apart(made_up):
    def lost(record):
        return record | {"status": "over time budget"} if record["n"] == 15_000 else record

    run = make_run(*made_up("landmarks", lost))
    assert len(run.not_done) == 12
    assert set(run.not_done["n"]) == {15_000}
    assert len(run.done) + len(run.not_done) == len(run.trials)
