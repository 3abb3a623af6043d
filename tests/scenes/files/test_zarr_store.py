"""Zarr by chunks: interrupted writing is resumed, and damage is found and repaired."""

import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from undulatus._files import JsonLines, WritingError
from undulatus.errors import SceneError
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.files.zarr_store import (
    MANIFEST_NAME,
    Manifest,
    RecordingStore,
    boxes,
    chunk_keys,
    verify,
)

GOLDEN = Path(__file__).parents[2] / "golden"

# A string, so that a process that is killed can make the same dataset.
SOURCE = """
import os, time, uuid
import dask.array as da, numpy as np, xarray as xr

def blocks(folder, stop_at=None):
    '''Return a map of 4 x 3 blocks; a block of its two lazy variables is computed once.'''
    def compute(values, block_info=None):
        if not block_info:
            return values
        row, column = block_info[0]["chunk-location"][:2]
        if stop_at is not None and (row * 3 + column) % 12 in stop_at:
            os.write(1, b"stopped\\n")
            time.sleep(60)
        name = f"{row} {column} {uuid.uuid4()}"
        with open(os.path.join(folder, name), "w"):
            pass
        noise = np.random.default_rng([row, column]).normal(size=values.shape)
        return noise.astype("f4")

    found = da.ones((11, 9, 2), chunks=(3, 3, 2), dtype="f4").map_blocks(
        compute, meta=np.empty((0, 0, 0), "f4")
    )
    return xr.Dataset(
        {
            "probability": (("y", "x"), found[..., 0], {"units": "1"}),
            "mask": (("y", "x"), (found[..., 1] > 0).astype("u1"), {"_FillValue": np.uint8(255)}),
            "land": (("y", "x"), np.arange(99).reshape(11, 9) % 2),
        },
        coords={"y": np.arange(11.0), "x": np.arange(9.0)},
        attrs={"history": f"made at {time.time()}", "title": "twelve blocks"},
    )
"""

namespace = {}
exec(SOURCE, namespace)

blocks = namespace["blocks"]

KILLED = f"""{SOURCE}
import sys, dask
from undulatus.scenes.files.writing import write_dataset
dask.config.set(num_workers=2)
write_dataset(blocks(sys.argv[1], stop_at=(4, 5)), sys.argv[2], fingerprint="a model")
"""


def computed(folder):
    """Return the blocks that were computed since the last call, one entry for each time."""
    names = sorted(os.listdir(folder))
    for name in names:
        (folder / name).unlink()
    return [tuple(map(int, name.split()[:2])) for name in names]


@pytest.fixture
def marks(tmp_path):
    folder = tmp_path / "computed"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A store that was written without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "marks").mkdir()
    write_dataset(blocks(folder / "marks"), folder / "map.zarr")
    assert len(os.listdir(folder / "marks")) == 12
    return folder / "map.zarr"


def content(store):
    """Return every object of a store, without the manifest and the time it was made."""
    found = {
        str(file.relative_to(store)): file.read_bytes()
        for file in store.rglob("*")
        if file.is_file() and file.name != MANIFEST_NAME
    }
    text = found.pop("zarr.json").decode()
    before, _, rest = text.partition("made at ")
    return {**found, "zarr.json": before + rest.partition('"')[2]}


def stopped_early(marks, path, at=(1, 1)):
    """Write a store that lacks some blocks; return its path."""
    dataset = blocks(marks)

    def fail(values, block_info=None):
        if block_info and block_info[0]["chunk-location"] == at:
            raise ValueError("stop")
        return values

    for name in ("probability", "mask"):
        dataset[name].data = dataset[name].data.map_blocks(fail, dtype=dataset[name].dtype)
    with dask.config.set(num_workers=1), pytest.raises(ValueError, match="stop"):
        write_dataset(dataset, path)
    unfinished = path.with_name(f".{path.stem}.unfinished.zarr")
    assert not path.exists()
    assert unfinished.is_dir()
    return unfinished


# Killed


@contextlib.contextmanager
def killed(process):
    """Kill a process at the end of the context, with SIGKILL."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)


def test_a_killed_write_is_resumed_and_ends_as_if_it_had_not_been_killed(tmp_path, marks, whole):
    path = tmp_path / "map.zarr"
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(marks), str(path)], stdout=subprocess.PIPE, text=True
    )
    with writer, killed(writer):
        assert writer.stdout.readline() == "stopped\n"
        assert writer.stdout.readline() == "stopped\n"
        with pytest.raises(SceneError, match=f"being written by process {writer.pid} on"):
            write_dataset(blocks(marks), path, resume=True, fingerprint="a model")
    assert not path.exists()
    finished = computed(marks)
    assert 0 < len(finished) < 12

    with pytest.raises(SceneError, match="begun before") as begun:
        write_dataset(blocks(marks), path, fingerprint="a model")
    assert str(tmp_path / ".map.unfinished.zarr") in str(begun.value)
    assert "--resume" in str(begun.value)
    assert "remove it" in str(begun.value)
    assert not computed(marks)

    write_dataset(blocks(marks), path, resume=True, fingerprint="a model")
    again = computed(marks)
    # At most two blocks were computed but not yet written; none is computed twice in one call.
    assert len(set(again)) == len(again) <= 12 - len(finished) + 2
    assert set(again) | set(finished) == {(row, column) for row in range(4) for column in range(3)}
    assert content(path) == content(whole)
    assert not verify(path)
    assert sorted(os.listdir(tmp_path)) == ["computed", "map.zarr"]


def test_resuming_without_an_earlier_attempt_writes_everything(tmp_path, marks, whole):
    write_dataset(blocks(marks), tmp_path / "map.zarr", resume=True)
    assert len(computed(marks)) == 12
    assert content(tmp_path / "map.zarr") == content(whole)


def test_an_unfinished_store_without_a_manifest_is_written_anew(tmp_path, marks, whole):
    (tmp_path / ".map.unfinished.zarr" / "probability").mkdir(parents=True)
    write_dataset(blocks(marks), tmp_path / "map.zarr", resume=True)
    assert content(tmp_path / "map.zarr") == content(whole)


def test_progress_of_resumed_writing_counts_the_tasks_that_are_left(tmp_path, marks):
    stopped_early(marks, tmp_path / "map.zarr")
    reported = []
    write_dataset(
        blocks(marks), tmp_path / "map.zarr", lambda *counts: reported.append(counts), resume=True
    )
    total = reported[0][1]
    assert reported == [(done, total) for done in range(1, total + 1)]


# Damage


def truncated(chunk):
    chunk.write_bytes(chunk.read_bytes()[:-1])


def flipped(chunk):
    changed = bytearray(chunk.read_bytes())
    changed[len(changed) // 2] ^= 1
    chunk.write_bytes(changed)


DAMAGE = {"truncated": truncated, "flipped": flipped, "deleted": Path.unlink}

each_damage = pytest.mark.parametrize("damage", DAMAGE)


@each_damage
def test_damage_to_an_unfinished_store_is_found_and_made_again(tmp_path, marks, whole, damage):
    path = tmp_path / "map.zarr"
    unfinished = stopped_early(marks, path)
    there = sorted(unfinished.glob("probability/c/*/*"))
    assert 0 < len(there) < 12
    row, column = map(int, there[0].parts[-2:])
    DAMAGE[damage](there[0])
    computed(marks)
    write_dataset(blocks(marks), path, resume=True)
    again = computed(marks)
    assert (row, column) in again
    assert len(set(again)) == len(again) < 12
    assert content(path) == content(whole)


@each_damage
@pytest.mark.parametrize("chunk", ["mask/c/3/2", "probability/c/0/1"])
def test_damage_to_a_finished_store_is_found_and_made_again(tmp_path, marks, whole, damage, chunk):
    path = shutil.copytree(whole, tmp_path / "map.zarr")
    assert not verify(path)
    DAMAGE[damage](path / chunk)
    assert verify(path) == [chunk]
    write_dataset(blocks(marks), path, resume=True)
    assert computed(marks) == [tuple(map(int, chunk.split("/")[2:]))]
    assert content(path) == content(whole)
    assert not verify(path)


@each_damage
@pytest.mark.parametrize("key", ["zarr.json", "mask/zarr.json", "land/c/0/0", "y/c/0"])
def test_damage_to_metadata_and_to_values_in_memory_is_repaired(
    tmp_path, marks, whole, damage, key
):
    path = shutil.copytree(whole, tmp_path / "map.zarr")
    DAMAGE[damage](path / key)
    assert verify(path) == [key]
    write_dataset(blocks(marks), path, resume=True)
    assert not computed(marks)
    assert content(path) == content(whole)
    assert not verify(path)


def test_a_finished_store_that_is_whole_is_left_alone(tmp_path, marks, whole):
    path = shutil.copytree(whole, tmp_path / "map.zarr")
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    write_dataset(blocks(marks), path, resume=True)
    assert not computed(marks)
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before


def test_a_damaged_store_is_kept_when_repairing_it_fails(tmp_path, marks, whole, monkeypatch):
    path = shutil.copytree(whole, tmp_path / "map.zarr")
    (path / "y/c/0").unlink()
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0))
        with pytest.raises(SceneError, match="does not fit") as refused:
            write_dataset(blocks(marks), path, resume=True)
    assert "--resume" in str(refused.value)
    write_dataset(blocks(marks), path, resume=True)
    assert not computed(marks)
    assert content(path) == content(whole)


def test_zarr_reads_a_missing_chunk_as_fill_values_without_an_error(tmp_path, whole):
    # This is why there is a manifest; should Zarr change, it may not be needed.
    path = shutil.copytree(whole, tmp_path / "map.zarr")
    (path / "probability/c/0/0").unlink()
    with xr.open_zarr(path) as found:
        assert np.isnan(found["probability"].values[:3, :3]).all()


def test_a_chunk_of_fill_values_is_written_too(tmp_path):
    empty = da.full((4, 4), np.nan, chunks=2)
    write_dataset(xr.Dataset({"empty": (("y", "x"), empty)}), tmp_path / "map.zarr")
    assert len(list((tmp_path / "map.zarr").glob("empty/c/*/*"))) == 4


def test_a_damaged_store_without_lazy_chunks_is_kept_when_repairing_it_fails(
    tmp_path, monkeypatch
):
    path = tmp_path / "map.zarr"
    dataset = xr.Dataset({"a": ("x", np.arange(4.0)), "b": ("x", np.arange(4.0))})
    write_dataset(dataset, path)
    (path / "a/c/0").unlink()
    usage = shutil.disk_usage(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=0))
        with pytest.raises(SceneError, match="does not fit"):
            write_dataset(dataset, path, resume=True)
    assert (tmp_path / ".map.unfinished.zarr/b/c/0").exists()


def test_a_store_of_another_program_cannot_be_verified_or_resumed(tmp_path, marks):
    path = tmp_path / "map.zarr"
    blocks(marks).to_zarr(path, consolidated=False)
    with pytest.raises(SceneError, match="no list of its chunks"):
        verify(path)
    with pytest.raises(SceneError, match="no list of its chunks"):
        write_dataset(blocks(marks), path, resume=True)


# Another dataset

OTHERS = {
    "variable probability": lambda ds: ds.assign(probability=ds["probability"].astype("f8")),
    "variable mask": lambda ds: ds.chunk(y=4),
    "variable extra": lambda ds: ds.assign(extra=ds["mask"] + 1),
    "variable land": lambda ds: ds.assign(land=1 - ds["land"]),
    "variable y": lambda ds: ds.assign_coords(y=ds["y"] + 1),
    "attributes": lambda ds: ds.assign_attrs(title="thirteen blocks"),
    "fingerprint": lambda ds: ds,
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("state", ["finished", "unfinished"])
def test_a_store_of_another_dataset_is_not_resumed(tmp_path, marks, whole, what, state):
    path = tmp_path / "map.zarr"
    store = path if state == "finished" else path.with_name(".map.unfinished.zarr")
    shutil.copytree(whole, store)
    other = OTHERS[what](blocks(marks))
    fingerprint = "another model" if what == "fingerprint" else ""
    with pytest.raises(SceneError, match=f"differing: .*{what}") as refused:
        write_dataset(other, path, resume=True, fingerprint=fingerprint)
    assert str(store) in str(refused.value)
    assert content(store) == content(whole)
    assert not computed(marks)


# Readers


def test_readers_see_only_the_dataset_and_get_no_warning(whole):
    for consolidated in (True, False):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with xr.open_zarr(whole, consolidated=consolidated) as found:
                assert set(found.variables) == {"probability", "mask", "land", "y", "x"}
            with xr.open_datatree(whole, engine="zarr", consolidated=consolidated) as tree:
                assert not tree.children


# Any dataset


@given(st.data())
@settings(max_examples=25)
def test_resuming_restores_any_lost_chunks_of_any_grid(tmp_path_factory, data):
    shape = data.draw(st.lists(st.integers(0, 7), max_size=3))
    chunks = data.draw(st.tuples(*(st.integers(1, 7) for _ in shape)))
    values = np.random.default_rng(0).normal(size=shape)
    dims = [f"d{axis}" for axis in range(len(shape))]
    lazy = da.from_array(values, chunks=chunks)
    dataset = xr.Dataset({"a": (dims, lazy), "b": (dims, lazy * 2), "c": ("t", np.arange(3))})
    path = tmp_path_factory.mktemp("any") / "map.zarr"
    write_dataset(dataset, path)
    first = content(path)
    keys = sorted(key for key in first if "/c" in key)
    lost = data.draw(st.lists(st.sampled_from(keys), unique=True))
    for key in lost:
        (path / key).unlink()
    assert sorted(verify(path)) == sorted(lost)
    write_dataset(dataset, path, resume=True)
    assert content(path) == first
    with xr.open_zarr(path) as found:
        np.testing.assert_array_equal(found["a"].values, values)
        np.testing.assert_array_equal(found["b"].values, values * 2)


@given(arrays.arrays(bool, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)))
def test_boxes_cover_every_missing_chunk_once_and_no_other(mask):
    covered = np.zeros(mask.shape, int)
    for box in boxes(mask):
        covered[box] += 1
    np.testing.assert_array_equal(covered, mask.astype(int))


# A cluster


@pytest.fixture(scope="module")
def cluster():
    """Two worker processes of one thread each."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client


def test_a_cluster_writes_the_same_reports_progress_and_resumes(tmp_path, marks, whole, cluster):
    path = tmp_path / "map.zarr"
    reported = []
    write_dataset(blocks(marks), path, lambda *counts: reported.append(counts))
    assert reported[-1] == (24, 24)
    assert len(computed(marks)) == 12
    assert content(path) == content(whole)
    for chunk in ("mask/c/1/1", "probability/c/2/0"):
        (path / chunk).unlink()
    write_dataset(blocks(marks), path, resume=True)
    assert computed(marks) == [(1, 1), (2, 0)]
    assert content(path) == content(whole)


def test_the_work_of_a_killed_worker_is_done_by_another(tmp_path, marks, whole, cluster):
    path, killed = tmp_path / "map.zarr", str(tmp_path / "killed")
    dataset = blocks(marks)

    def kill_once(values, block_info=None):
        if block_info and block_info[0]["chunk-location"] == (2, 1):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return values

    mask = dataset["mask"]
    mask.data = mask.data.map_blocks(kill_once, dtype=mask.dtype)
    write_dataset(dataset, path)
    assert os.path.exists(killed)
    assert content(path) == content(whole)
    assert not verify(path)


# The manifest


@pytest.fixture
def log(tmp_path):
    return JsonLines(tmp_path / MANIFEST_NAME)


@pytest.mark.parametrize("record", [{"key": "a"}, {"grids": 3}, {"other": 1}])
def test_a_record_in_another_form_does_not_count(log, record):
    log.append({"key": "a/c/0", "length": 1, "sha256": "x"})
    log.append(record)
    assert Manifest.read(log) == Manifest(objects={"a/c/0": (1, "x")})


def test_the_last_record_of_an_object_counts(log):
    for digest in ("first", "second"):
        log.append({"key": "a/c/0", "length": 1, "sha256": digest})
    assert Manifest.read(log).objects == {"a/c/0": (1, "second")}


@pytest.mark.parametrize("store", sorted(GOLDEN.glob("*/*.zarr")), ids=lambda path: path.name)
def test_stores_of_earlier_versions_are_verified(tmp_path, store):
    copy = shutil.copytree(store, tmp_path / store.name)
    assert not verify(copy)
    chunk = min(file for file in copy.glob("*/c/**/*") if file.is_file())
    flipped(chunk)
    assert verify(copy) == [str(chunk.relative_to(copy))]


def test_chunks_have_the_keys_that_zarr_gives_them(tmp_path):
    array = zarr.create_array(tmp_path / "a", shape=(5, 3), chunks=(2, 3), dtype="f4")
    array[...] = 1
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("c/**/*")}
    assert set(chunk_keys("a", (3, 1))) <= files
    assert chunk_keys("scalar", ()) == ["scalar/c"]


def test_a_store_that_was_sent_to_another_process_still_records(tmp_path):
    (tmp_path / "a").mkdir()
    log = JsonLines(tmp_path / "a" / MANIFEST_NAME)
    store = RecordingStore(tmp_path, log)
    sent = pickle.loads(pickle.dumps(store))
    zarr.create_array(sent, name="a", shape=(2,), chunks=(1,), dtype="u1")[...] = [1, 2]
    found = Manifest.read(log)
    assert set(found.objects) == {"zarr.json", "a/zarr.json", "a/c/0", "a/c/1"}
    assert not found.damaged(tmp_path, found.objects)


def test_a_store_that_cannot_write_raises_a_writing_error(tmp_path):
    (tmp_path / "a").mkdir()
    store = RecordingStore(tmp_path, JsonLines(tmp_path / "a" / MANIFEST_NAME))
    array = zarr.create_array(store, name="a", shape=(2,), chunks=(1,), dtype="u1")
    # A file where zarr needs a folder.
    (tmp_path / "a" / "c").write_text("in the way")
    with pytest.raises(WritingError) as failed:
        array[...] = [1, 2]
    assert pickle.loads(pickle.dumps(failed.value)).errno == failed.value.errno
