"""One file of arrays and a header: what is read is what was written, or an error.

Locks: one writer at a time, and none of a process that has ended.
"""

import hashlib
import json
import os
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from safetensors.numpy import save as save_safetensors

from undulatus import _files
from undulatus._files import lock_of, locked, read_tensors, write_tensors
from undulatus.errors import ModelFileError, SceneError, UndulatusError

TENSORS = {
    "matrix": np.random.default_rng(0).normal(size=(5, 3)),
    "single": np.arange(4, dtype=np.float32),
    "counts": np.array([1, -2, 3]),
    "mask": np.array([True, False]),
    "scalar": np.array(2.5),
    "none": np.empty((0, 3)),
}

HEADER = {"kind": "test", "numbers": [1, 2.5, None], "nested": {"ξ": "λ"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "arrays.undulatus"


@pytest.fixture
def written(path):
    write_tensors(path, TENSORS, HEADER)
    return path


def body_start(content):
    """Where the arrays begin: after eight bytes of length and a header that long."""
    return 8 + int.from_bytes(content[:8], "little")


def assert_refused(path):
    """Reading raises an error that names the file, and no other kind of error."""
    with pytest.raises(ModelFileError) as caught:
        read_tensors(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, UndulatusError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# Round trip
def test_arrays_and_header_come_back_as_they_went_in(written):
    tensors, header = read_tensors(written)
    assert header == HEADER
    assert set(tensors) == set(TENSORS)
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype
        assert_array_equal(tensors[name], array)


def test_arrays_of_any_layout_come_back(path):
    table = np.arange(12.0).reshape(3, 4)
    write_tensors(path, {"turned": table.T, "sparse": table[::2, ::3]}, {})
    tensors, _ = read_tensors(path)
    assert_array_equal(tensors["turned"], table.T)
    assert_array_equal(tensors["sparse"], table[::2, ::3])


def test_a_path_may_be_a_string(path):
    write_tensors(str(path), TENSORS, HEADER)
    assert read_tensors(str(path))[1] == HEADER


def test_a_file_is_written_over(written):
    write_tensors(written, {"other": np.ones(2)}, "short")
    tensors, header = read_tensors(written)
    assert header == "short"
    assert list(tensors) == ["other"]


# Damage
def test_a_file_cut_short_anywhere_is_refused(written):
    content = written.read_bytes()
    edge = body_start(content)
    for length in {*range(0, 40), *range(edge - 10, edge + 10), *range(0, len(content), 17)}:
        if length < len(content):
            written.write_bytes(content[:length])
            assert_refused(written)


def test_a_file_that_goes_on_is_refused(written):
    written.write_bytes(written.read_bytes() + b"\0\0\0\0")
    assert_refused(written)


def test_any_flipped_bit_of_an_array_is_found(written):
    content = written.read_bytes()
    for position in range(body_start(content), len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            written.write_bytes(flipped)
            assert_refused(written)


def test_another_number_in_the_header_is_found(path):
    write_tensors(path, {"weight": np.ones(2)}, {"signal_variance": 1.5})
    content = path.read_bytes()
    position = content.index(b"1.5")
    path.write_bytes(content[:position] + b"9.5" + content[position + 3 :])
    assert "checksum of its header" in assert_refused(path)


def test_any_flipped_bit_of_the_header_is_found(path):
    write_tensors(path, {"weight": np.ones(2)}, {"signal_variance": 1.5})
    content = path.read_bytes()
    for position in range(body_start(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            path.write_bytes(flipped)
            assert_refused(path)


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "arrays.undulatus"
    path.write_bytes(content)
    assert_refused(path)


# What others wrote
def test_a_missing_file_is_said_to_be_missing(path):
    assert "no such file" in assert_refused(path)


def test_a_folder_is_no_file(tmp_path):
    assert_refused(tmp_path)


def test_a_renamed_pickle_is_refused_unread(path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was run",))

    path.write_bytes(pickle.dumps(Trap()))
    assert_refused(path)


def test_a_safetensors_file_of_somebody_else_is_said_to_be_one(path):
    path.write_bytes(save_safetensors({"weight": np.ones(3)}))
    assert "not one of undulatus" in assert_refused(path)
    path.write_bytes(save_safetensors({"weight": np.ones(3)}, metadata={"format": "pt"}))
    assert "not one of undulatus" in assert_refused(path)


def forged(path, tensors, text):
    """A file with ``text`` where our JSON belongs, and the right checksum of it before."""
    value = f"{hashlib.sha256(text.encode()).hexdigest()} {text}"
    path.write_bytes(save_safetensors(tensors, metadata={"undulatus": value}))
    return path


TEXTS = ["", "{", "null", "[]", "3", "{}", '{"header": 1}', '{"header": 1, "sha256": null}']


@pytest.mark.parametrize("text", [*TEXTS, "[" * 100_000], ids=[*TEXTS, "deeply nested"])
def test_a_header_that_is_not_ours_is_refused(path, text):
    assert "checksum" not in assert_refused(forged(path, {"weight": np.ones(3)}, text))


@pytest.mark.parametrize("value", [*TEXTS, " ", "0" * 64, f"{'0' * 64} {{}}", "ξ λ"])
def test_a_header_without_its_right_checksum_is_refused(path, value):
    path.write_bytes(save_safetensors({"weight": np.ones(3)}, metadata={"undulatus": value}))
    assert "checksum of its header" in assert_refused(path)


def test_tensors_that_the_header_does_not_list_are_refused(path):
    tensors = {"weight": np.ones(3)}
    for digests in ({}, {"weight": "0" * 64, "other": "0" * 64}):
        text = json.dumps({"header": {}, "sha256": digests})
        assert "other tensors" in assert_refused(forged(path, tensors, text))


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint64])
def test_kinds_of_numbers_that_no_model_uses_are_refused(path, dtype):
    array = np.ones(3, dtype=dtype)
    text = json.dumps({"header": {}, "sha256": {"weight": _files._digest(array)}})
    assert np.dtype(dtype).name in assert_refused(forged(path, {"weight": array}, text))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_that_are_not_finite_are_refused_by_name(path, bad, dtype):
    write_tensors(path, {"good": np.ones(2), "bad": np.array([1.0, bad], dtype=dtype)}, {})
    assert "NaN or infinity in 'bad'" in assert_refused(path)


# Writing whole or not at all
def files_in(folder):
    return sorted(entry.name for entry in Path(folder).iterdir())


@pytest.mark.parametrize("function", ["fsync", "replace", "fdopen"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_write_that_fails_leaves_nothing_behind(path, monkeypatch, function, error):
    def fail(*args, **kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, function, fail)
        expected = ModelFileError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(expected) as caught:
            write_tensors(path, TENSORS, HEADER)
    if isinstance(error, OSError):
        assert f"{path}: cannot be written: No space left" in str(caught.value)
    assert files_in(path.parent) == []


def test_a_write_that_fails_leaves_the_file_that_was_there(written, monkeypatch):
    def fail(*args):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fsync", fail)
        with pytest.raises(ModelFileError):
            write_tensors(written, {"other": np.ones(2)}, {})
    assert read_tensors(written)[1] == HEADER
    assert files_in(written.parent) == [written.name]


def test_a_process_that_is_killed_while_writing_leaves_no_file_of_that_name(path):
    code = """
import os, sys
import numpy as np
from undulatus._files import write_tensors

os.replace = lambda *names: os._exit(9)  # all is written, nothing renamed
write_tensors(sys.argv[1], {"weight": np.ones(1000)}, {})
"""
    run = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert run.returncode == 9
    assert not path.exists()


@pytest.fixture
def umask():
    """A function that sets the umask until the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077], ids=oct)
def test_a_file_may_be_read_by_whom_the_umask_allows(path, umask, mask):
    umask(mask)
    write_tensors(path, TENSORS, HEADER)
    plain = path.with_name("plain")
    plain.touch()
    assert path.stat().st_mode == plain.stat().st_mode
    assert umask(mask) == mask  # as it was, after it was read


def test_a_header_that_is_no_json_writes_nothing(path):
    with pytest.raises((TypeError, ValueError)):
        write_tensors(path, TENSORS, {"bound": np.nan})
    assert files_in(path.parent) == []


def test_a_folder_that_does_not_exist_is_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "nowhere" / "arrays.undulatus"
    with pytest.raises(ModelFileError, match=r"arrays\.undulatus: cannot be written"):
        write_tensors(path, TENSORS, HEADER)


def test_a_folder_in_the_place_of_the_file_is_left_alone(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(ModelFileError, match="taken: cannot be written"):
        write_tensors(tmp_path / "taken", TENSORS, HEADER)
    assert files_in(tmp_path) == ["taken"]


def ended():
    """The number of a process that is no more."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_second_writer_is_refused_and_told_of_the_first(tmp_path):
    path = tmp_path / "map.nc"
    with locked(path):
        with pytest.raises(SceneError, match=f"process {os.getpid()} on {socket.gethostname()}"):
            locked(path).__enter__()
        with locked(tmp_path / "another.nc"):
            pass
        assert lock_of(path).exists()
    assert not os.listdir(tmp_path)


def test_the_lock_is_released_when_writing_fails(tmp_path):
    with pytest.raises(ValueError, match="bad"), locked(tmp_path / "map.nc"):
        raise ValueError("bad")
    with locked(tmp_path / "map.nc"):
        pass


@pytest.mark.parametrize("started", ["", "another boot 17"])
def test_the_lock_of_a_process_that_has_ended_is_taken_over(tmp_path, started):
    owner = {"pid": ended(), "host": socket.gethostname(), "started": started}
    lock_of(tmp_path / "map.nc").write_text(json.dumps(owner))
    with locked(tmp_path / "map.nc"):
        assert json.loads(lock_of(tmp_path / "map.nc").read_text())["pid"] == os.getpid()
    assert not os.listdir(tmp_path)


def test_a_number_that_another_process_has_now_does_not_hold_the_lock(tmp_path):
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "started": "another boot 17"}
    lock_of(tmp_path / "map.nc").write_text(json.dumps(owner))
    with locked(tmp_path / "map.nc"):
        pass


def test_a_process_that_was_killed_and_not_waited_for_has_ended(tmp_path):
    path = tmp_path / "map.nc"
    code = f"""
import os, signal
from pathlib import Path
from undulatus._files import locked
lock = locked(Path({str(path)!r}))
lock.__enter__()
os.kill(os.getpid(), signal.SIGKILL)
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert lock_of(path).exists()
    with locked(path):
        pass
    process.wait()


@pytest.mark.parametrize(
    "content", [json.dumps({"pid": 1, "host": "elsewhere"}), "", "torn {", "[1]"]
)
def test_a_lock_of_which_too_little_is_known_is_respected_and_named(tmp_path, content):
    lock = lock_of(tmp_path / "map.nc")
    lock.write_text(content)
    with pytest.raises(SceneError, match="remove") as refused:
        locked(tmp_path / "map.nc").__enter__()
    assert str(lock) in str(refused.value)
    assert lock.read_text() == content


def test_of_many_who_find_a_stale_lock_one_gets_it(tmp_path):
    path = tmp_path / "map.nc"
    owner = {"pid": ended(), "host": socket.gethostname(), "started": ""}
    held = []

    def attempt(_):
        try:
            lock = locked(path)
            lock.__enter__()
        except SceneError:
            return
        held.append(lock)

    for _ in range(20):
        lock_of(path).write_text(json.dumps(owner))
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(attempt, range(8)))
        assert len(held) == 1
        held.pop().__exit__(None, None, None)
