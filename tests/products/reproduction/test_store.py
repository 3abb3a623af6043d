"""Records survive whatever happens to the process that writes them."""

import json

import pytest

from undulatus.errors import InputError
from undulatus.products.reproduction.store import TrialStore, read_records


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
