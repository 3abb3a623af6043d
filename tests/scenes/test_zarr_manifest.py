"""The list of a store's objects: lines of many writers do not mix, and torn ones do not count."""

import json
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import zarr

from undulatus.scenes.unfinished import WritingError
from undulatus.scenes.zarr_manifest import NAME, Manifest, RecordingStore, append, chunk_keys


def test_lines_of_many_writers_do_not_mix(tmp_path):
    keys = [f"a/c/{number}" for number in range(500)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda key: append(tmp_path / NAME, {"key": key, "length": 1, "sha256": key}), keys
            )
        )
    found = Manifest.read(tmp_path / NAME).objects
    assert found == {key: (1, key) for key in keys}


def test_a_torn_line_does_not_count_nor_spoil_the_next(tmp_path):
    file = tmp_path / NAME
    append(file, {"key": "a/c/0", "length": 1, "sha256": "x"})
    with file.open("a") as lines:
        lines.write('\n{"key":"a/c/1","len')
    append(file, {"key": "a/c/2", "length": 1, "sha256": "x"})
    assert set(Manifest.read(file).objects) == {"a/c/0", "a/c/2"}


@pytest.mark.parametrize("line", ["17", "[]", "null", '{"key": "a"}', '{"grids": 3}', "\x00\xff"])
def test_a_line_that_says_something_else_does_not_count(tmp_path, line):
    file = tmp_path / NAME
    append(file, {"key": "a/c/0", "length": 1, "sha256": "x"})
    with file.open("a") as lines:
        lines.write("\n" + line)
    assert Manifest.read(file) == Manifest(objects={"a/c/0": (1, "x")})


def test_the_last_line_of_an_object_counts(tmp_path):
    for digest in ("first", "second"):
        append(tmp_path / NAME, {"key": "a/c/0", "length": 1, "sha256": digest})
    assert Manifest.read(tmp_path / NAME).objects == {"a/c/0": (1, "second")}


def test_chunks_are_named_as_zarr_names_them(tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(5, 3), chunks=(2, 3), dtype="f4")
    array[...] = 1
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("c/**/*")}
    assert set(chunk_keys("a", (3, 1))) <= files
    assert chunk_keys("scalar", ()) == ["scalar/c"]


def test_a_store_that_was_sent_elsewhere_records_there(tmp_path):
    (tmp_path / "a").mkdir()
    store = RecordingStore(tmp_path, tmp_path / "a" / NAME)
    sent = pickle.loads(pickle.dumps(store))
    zarr.create_array(sent, name="a", shape=(2,), chunks=(1,), dtype="u1")[...] = [1, 2]
    found = Manifest.read(tmp_path / "a" / NAME)
    assert set(found.objects) == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/1"}
    assert not found.damaged(tmp_path, found.objects)
    assert all(json.loads(line) for line in (tmp_path / "a" / NAME).read_text().split())


def test_a_store_tells_its_own_failures_from_those_of_others(tmp_path):
    (tmp_path / "a").mkdir()
    store = RecordingStore(tmp_path, tmp_path / "a" / NAME)
    array = zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="u1")
    # A file where a folder has to be.
    (tmp_path / "a" / "c").write_text("in the way")
    with pytest.raises(WritingError) as failed:
        array[...] = [1, 2]
    assert pickle.loads(pickle.dumps(failed.value)).errno == failed.value.errno
