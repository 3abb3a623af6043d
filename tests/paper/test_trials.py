"""Trials have names that tell them apart; their records survive crashes."""

import json
from dataclasses import replace

import pytest

from undulatus.errors import InputError, SceneError
from undulatus.paper.trials import Trial, open_store, read_records


def test_the_id_of_a_trial_names_every_setting(trial):
    assert trial("vff", n=10_000, frequencies=50).id == "high-vff-stochastic-n10000-D50-run0"
    assert trial("gpc", n=5_000, run=3).id == "high-gpc-exact-n5000-run3"
    fold = Trial("iavisa", "rff", "batch", 19_938, 100, 2, 0, 5)
    assert fold.id == "rff-batch-n19938-D5-fold2"


def test_a_record_names_the_regime_of_a_landmark_and_whether_all_rows_are_used(trial):
    assert trial("gpc").as_record() == {
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
    assert fold.as_record()["all"] is True
    assert "regime" not in fold.as_record()


def test_a_trial_is_rebuilt_from_its_fields(trial):
    assert Trial(**trial().as_dict()) == trial()
    assert replace(trial(), run=1).id != trial().id


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_text('{"id": "a", "status": "done"}\n{"id": "b", "status": "failed"}\n')
    return path


def test_a_record_is_in_the_file_when_append_returns(path):
    with open_store(path) as store:
        store.append({"id": "c", "status": "done"})
        assert [record["id"] for record in read_records(path)] == ["a", "b", "c"]


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_last_line_that_was_cut_short_is_dropped_and_can_be_written_again(path, cut):
    with path.open("a") as file:
        file.write(json.dumps({"id": "c", "status": "done"})[:-cut])
    assert [record["id"] for record in read_records(path)] == ["a", "b"]
    with open_store(path) as store:
        assert set(store.records) == {"a", "b"}
        store.append({"id": "c", "status": "done"})
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == ["a", "b", "c"]


def test_a_last_record_that_lacks_only_its_newline_counts(path):
    with path.open("a") as file:
        file.write(json.dumps({"id": "c", "status": "done"}))
    assert [record["id"] for record in read_records(path)] == ["a", "b", "c"]
    with open_store(path) as store:
        store.append({"id": "d", "status": "done"})
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == list("abcd")


def test_a_broken_line_is_named_with_its_remedy(path):
    path.write_text('{"id": "a"}\nnonsense\n{"id": "b"}\n')
    with pytest.raises(InputError, match=r"line 2 .* Remove the line"):
        read_records(path)


def test_dropped_records_leave_the_file(path):
    with open_store(path) as store:
        store.drop(lambda record: record["status"] == "failed")
        store.append({"id": "c", "status": "done"})
    assert [record["id"] for record in read_records(path)] == ["a", "c"]


def test_two_runs_cannot_write_to_one_folder(path):
    with open_store(path), pytest.raises(SceneError, match="is being written"):
        open_store(path).__enter__()
    with open_store(path) as store:
        assert len(store.records) == 2


def test_a_number_that_json_cannot_hold_is_refused_before_anything_is_written(path):
    with open_store(path) as store, pytest.raises(ValueError, match="JSON"):
        store.append({"id": "c", "nll": float("nan")})
    assert len(read_records(path)) == 2
