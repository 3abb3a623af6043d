"""Whole files or none: atomic writing, errors of outputs and inputs, locks, logs, arrays."""

import errno
import hashlib
import json
import os
import pickle
import signal
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
from undulatus._files import (
    SAMPLE_BYTES,
    JsonLines,
    ReadingError,
    WritingError,
    _host_digest,
    as_reading_errors,
    as_scene_errors,
    as_writing_errors,
    atomic_write,
    content_digest,
    lock_path,
    locked,
    read_tensors,
    replacing,
    write_tensors,
    write_text,
)
from undulatus.errors import InputError, ModelFileError, SceneError, UndulatusError


def files_in(folder):
    return sorted(entry.name for entry in Path(folder).iterdir())


# Atomic writing


def failing(error):
    def fail(*args, **kwargs):
        raise error

    return fail


ERRORS = [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]


@pytest.mark.parametrize("function", ["fsync", "replace", "open"])
@pytest.mark.parametrize("error", ERRORS, ids=["full", "interrupted"])
@pytest.mark.parametrize("before", [None, "old"])
def test_a_failed_write_leaves_the_folder_as_it_was(
    tmp_path, monkeypatch, function, error, before
):
    path = tmp_path / "page.html"
    if before is not None:
        path.write_text(before)
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, function, failing(error))
        with pytest.raises(type(error)):
            write_text(path, "new")
    assert files_in(tmp_path) == ([] if before is None else ["page.html"])
    assert before is None or path.read_text() == before


def test_a_text_is_written_and_replaced_in_utf_8(tmp_path):
    for text in ("λ(ξ)\n", "ψ\n"):
        write_text(tmp_path / "page.html", text)
        assert (tmp_path / "page.html").read_bytes() == text.encode()
    assert files_in(tmp_path) == ["page.html"]


def test_a_process_that_is_killed_while_writing_leaves_no_file_of_that_name(tmp_path):
    code = """
import os, sys
from pathlib import Path
from undulatus._files import write_text

os.replace = lambda *names: os._exit(9)  # everything is written, nothing renamed
write_text(Path(sys.argv[1]), "text")
"""
    path = tmp_path / "page.html"
    run = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert run.returncode == 9
    assert not path.exists()


def test_what_killed_processes_left_is_removed_and_what_living_ones_write_is_not(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, *others = (
        tmp_path / f".page.unfinished-{host}-{process}-0a1b2c3d.html"
        for host, process in (
            (_host_digest(), ended.pid),
            (_host_digest(), os.getppid()),
            ("00000000", ended.pid),
        )
    )
    for path in (left, *others):
        path.touch()
    write_text(tmp_path / "page.html", "text")
    assert files_in(tmp_path) == sorted([*(path.name for path in others), "page.html"])


def test_a_file_is_replaced_through_a_link_which_stays(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "page.html", tmp_path / "latest.html"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert files_in(tmp_path) == ["elsewhere", "latest.html"]
    assert files_in(tmp_path / "elsewhere") == ["page.html"]


def test_two_writers_of_one_file_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "page.html"
    with replacing(path) as first, replacing(path) as second:
        assert first != second
        first.write_text("first")
        second.write_text("second")
    assert path.read_text() == "first"
    assert files_in(tmp_path) == ["page.html"]


@pytest.fixture
def umask():
    """A function that sets the umask until the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


@pytest.mark.parametrize("mask", [0o000, 0o002, 0o022, 0o027, 0o077], ids=oct)
def test_the_umask_decides_who_may_read_a_file(tmp_path, umask, mask):
    umask(mask)
    write_text(tmp_path / "written", "text")
    (tmp_path / "plain").touch()
    assert (tmp_path / "written").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_new_output_may_be_a_file_or_a_folder_and_replaces_nothing(tmp_path):
    for name in ("page.html", "site"):
        with atomic_write(tmp_path / name) as unfinished:
            assert not (tmp_path / name).exists()
            if name == "site":
                unfinished.mkdir()
                unfinished /= "index.html"
            unfinished.write_text("text")
        with (
            pytest.raises(SceneError, match=f"{name} exists already"),
            atomic_write(tmp_path / name),
        ):
            pytest.fail("it was given")
    assert files_in(tmp_path) == ["page.html", "site"]
    assert files_in(tmp_path / "site") == ["index.html"]


def test_what_a_killed_process_left_of_an_output_is_removed(tmp_path):
    (tmp_path / ".site.unfinished").mkdir()
    (tmp_path / ".site.unfinished" / "old.html").write_text("old")
    with atomic_write(tmp_path / "site") as unfinished:
        unfinished.mkdir()
    assert files_in(tmp_path / "site") == []


# Errors of outputs and of inputs

OUTPUT, INPUT = r"map\.nc could not be written: ", r"map\.nc was not written: one of its inputs"

BROKEN = [
    (OSError(errno.ENOSPC, "No space left on device"), OUTPUT),
    (OSError(errno.EIO, "Input/output error"), OUTPUT),
    (PermissionError(errno.EACCES, "denied", "{folder}/.map.unfinished.nc"), OUTPUT),
    (PermissionError(errno.EACCES, "denied", "{folder}/.map.nc.lock"), OUTPUT),
    (FileNotFoundError(errno.ENOENT, "No such file", "{folder}/scene.nc"), INPUT),
    (RuntimeError("NetCDF: HDF error"), INPUT),
    (WritingError("NetCDF: HDF error"), OUTPUT),
    (WritingError(errno.EIO, "Input/output error", "{folder}/scene.nc"), OUTPUT),
    (ReadingError("no such tile"), INPUT),
    (ReadingError(errno.EDQUOT, "over quota"), OUTPUT),
]


@pytest.mark.parametrize(("error", "message"), BROKEN, ids=lambda value: str(value)[:30])
def test_an_error_is_about_the_output_or_about_an_input(tmp_path, error, message):
    if getattr(error, "filename", None):
        error.filename = error.filename.format(folder=tmp_path)
    with pytest.raises(SceneError, match=message) as raised, as_scene_errors(tmp_path / "map.nc"):
        raise error
    full = error.args[0] in (errno.ENOSPC, errno.EDQUOT, "NetCDF: HDF error")
    assert ("Is the disk full?" in str(raised.value)) == (full and message == OUTPUT)


@pytest.mark.parametrize("error", [ValueError("bad"), RuntimeError("bad"), KeyboardInterrupt()])
def test_other_errors_stay_as_they_are(tmp_path, error):
    with (
        pytest.raises(type(error)) as raised,
        as_scene_errors(tmp_path / "map.nc"),
        as_reading_errors(),
        as_writing_errors(RuntimeError),
    ):
        raise error
    assert raised.value is error


def test_the_innermost_mark_of_an_error_counts_and_keeps_its_number_and_file():
    with pytest.raises(WritingError) as raised, as_reading_errors(), as_writing_errors():
        raise OSError(errno.EIO, "Input/output error", "scene.nc")
    assert (raised.value.errno, raised.value.filename) == (errno.EIO, "scene.nc")
    assert pickle.loads(pickle.dumps(raised.value)).errno == errno.EIO
    with pytest.raises(ReadingError, match="NetCDF: HDF error"), as_reading_errors():
        raise RuntimeError("NetCDF: HDF error")
    with pytest.raises(WritingError, match="tile"), as_writing_errors(LookupError):
        raise LookupError("tile")


# Locks


def test_a_second_writer_is_refused_with_the_name_of_the_first(tmp_path):
    path = tmp_path / "map.nc"
    with locked(path):
        with pytest.raises(SceneError, match=f"process {os.getpid()} on {socket.gethostname()}"):
            locked(path).__enter__()
        with locked(tmp_path / "another.nc"):
            pass
        assert lock_path(path).exists()
    assert not os.listdir(tmp_path)


def test_the_lock_is_released_when_writing_fails(tmp_path):
    with pytest.raises(ValueError, match="bad"), locked(tmp_path / "map.nc"):
        raise ValueError("bad")
    with locked(tmp_path / "map.nc"):
        pass


OLD_LOCK = json.dumps({"pid": 1, "host": socket.gethostname(), "started": "another boot 17"})


@pytest.mark.parametrize("content", ["", "torn {", f"1\n{socket.gethostname()}\n", OLD_LOCK])
def test_a_lock_file_that_was_left_behind_locks_nothing(tmp_path, content):
    lock_path(tmp_path / "map.nc").write_text(content)
    with locked(tmp_path / "map.nc"):
        assert lock_path(tmp_path / "map.nc").read_text().startswith(f"{os.getpid()}\n")
    assert not os.listdir(tmp_path)


HOLDING = """
import sys, time
from pathlib import Path
from undulatus._files import locked

with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_another_process_is_respected_until_it_is_killed(tmp_path):
    path = tmp_path / "map.nc"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(SceneError, match=f"being written by process {process.pid} on"):
            locked(path).__enter__()
    finally:
        process.send_signal(signal.SIGKILL)
        # Ended, but not waited for: the lock is free all the same.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert lock_path(path).exists()
    with locked(path):
        pass
    process.wait()
    process.stdout.close()
    assert not os.listdir(tmp_path)


def test_one_of_many_threads_gets_the_lock(tmp_path):
    path = tmp_path / "map.nc"
    held = []

    def attempt(_):
        try:
            lock = locked(path)
            lock.__enter__()
        except SceneError:
            return
        held.append(lock)

    for _ in range(3):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(attempt, range(8)))
        assert len(held) == 1
        held.pop().__exit__(None, None, None)
    assert not os.listdir(tmp_path)


# Logs


@pytest.fixture(params=[False, True], ids=["unsynced", "synced"])
def log(request, tmp_path):
    return JsonLines(tmp_path / "log.jsonl", sync=request.param)


def test_records_are_read_in_the_order_they_were_appended(log):
    assert log.read() == []
    for number in range(3):
        log.append({"number": number, "ξ": "λ\n"})
    assert log.read() == [{"number": number, "ξ": "λ\n"} for number in range(3)]
    assert log.count_lines() == 3


def test_records_of_many_writers_do_not_mix(log):
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: log.append({"number": number}), range(200)))
    assert sorted(record["number"] for record in log.read()) == list(range(200))


@pytest.mark.parametrize("strict", [False, True])
def test_a_last_line_that_was_cut_short_does_not_count(log, strict):
    log.append({"number": 0})
    with log.path.open("a") as lines:
        lines.write('\n{"number":1,"na')
    assert log.read(strict=strict) == [{"number": 0}]


def test_a_record_after_a_line_that_was_cut_short_is_read(log):
    log.append({"number": 0})
    with log.path.open("a") as lines:
        lines.write('\n{"number":1,"na')
    log.append({"number": 2})
    assert log.read() == [{"number": 0}, {"number": 2}]


def test_every_line_of_an_undamaged_log_is_a_record(log):
    log.append({"number": 0})
    log.rewrite([{"number": 1}])
    log.append({"number": 2})
    assert [json.loads(line)["number"] for line in log.path.read_text().splitlines()] == [1, 2]


@pytest.mark.parametrize("line", ["17", "[]", "null", "words", "\x00\xff"])
def test_a_line_that_is_not_a_record_is_skipped_or_named(log, line):
    log.append({"number": 0})
    with log.path.open("a") as lines:
        lines.write("\n" + line)
    log.append({"number": 2})
    assert log.read() == [{"number": 0}, {"number": 2}]
    with pytest.raises(InputError, match=r"log\.jsonl, line 3 is not a JSON object"):
        log.read(strict=True)


def test_all_records_are_replaced_at_once(log):
    for number in range(3):
        log.append({"number": number})
    log.rewrite([{"number": 7}])
    log.append({"number": 8})
    assert log.read(strict=True) == [{"number": 7}, {"number": 8}]
    assert files_in(log.path.parent) == ["log.jsonl"]


def test_a_record_that_json_cannot_hold_is_not_written(log):
    with pytest.raises(ValueError, match="JSON"):
        log.append({"bound": np.nan})
    assert log.read() == []


def test_a_log_can_be_sent_to_another_process(log):
    pickle.loads(pickle.dumps(log)).append({"number": 0})
    assert log.read() == [{"number": 0}]


# Files of arrays

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
    """Check that reading raises a ModelFileError that names the file; return its message."""
    with pytest.raises(ModelFileError) as caught:
        read_tensors(path)
    assert str(path) in str(caught.value)
    assert isinstance(caught.value, UndulatusError)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# Files of arrays: round trip


def test_arrays_and_header_are_read_as_they_were_written(written):
    tensors, header = read_tensors(written)
    assert header == HEADER
    assert set(tensors) == set(TENSORS)
    for name, array in TENSORS.items():
        assert tensors[name].dtype == array.dtype
        assert_array_equal(tensors[name], array)


def test_arrays_of_any_memory_layout_are_read_as_they_were_written(path):
    table = np.arange(12.0).reshape(3, 4)
    write_tensors(path, {"turned": table.T, "sparse": table[::2, ::3]}, {})
    tensors, _ = read_tensors(path)
    assert_array_equal(tensors["turned"], table.T)
    assert_array_equal(tensors["sparse"], table[::2, ::3])


def test_a_path_may_be_a_string(path):
    write_tensors(str(path), TENSORS, HEADER)
    assert read_tensors(str(path))[1] == HEADER


def test_a_file_of_arrays_can_be_replaced(written):
    write_tensors(written, {"other": np.ones(2)}, "short")
    tensors, header = read_tensors(written)
    assert header == "short"
    assert list(tensors) == ["other"]


# Files of arrays: damage


def test_a_file_cut_short_anywhere_is_refused(written):
    content = written.read_bytes()
    edge = body_start(content)
    for length in {*range(0, 40), *range(edge - 10, edge + 10), *range(0, len(content), 17)}:
        if length < len(content):
            written.write_bytes(content[:length])
            assert_refused(written)


def test_a_file_with_extra_bytes_is_refused(written):
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


def test_a_changed_number_in_the_header_is_found(path):
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
def test_random_bytes_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("bytes") / "arrays.undulatus"
    path.write_bytes(content)
    assert_refused(path)


# Files of arrays: files of other programs


def test_a_missing_file_is_reported_as_missing(path):
    assert "no such file" in assert_refused(path)


def test_a_folder_is_refused(tmp_path):
    assert_refused(tmp_path)


def test_a_renamed_pickle_is_refused_unread(path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("the pickle was run",))

    path.write_bytes(pickle.dumps(Trap()))
    assert_refused(path)


def test_a_safetensors_file_of_another_program_is_recognised_as_one(path):
    path.write_bytes(save_safetensors({"weight": np.ones(3)}))
    assert "not one of undulatus" in assert_refused(path)
    path.write_bytes(save_safetensors({"weight": np.ones(3)}, metadata={"format": "pt"}))
    assert "not one of undulatus" in assert_refused(path)


def forged(path, tensors, text):
    """Write a file with ``text`` in place of our JSON, and the right checksum of it."""
    value = f"{hashlib.sha256(text.encode()).hexdigest()} {text}"
    path.write_bytes(save_safetensors(tensors, metadata={"undulatus": value}))
    return path


TEXTS = ["", "{", "null", "[]", "3", "{}", '{"header": 1}', '{"header": 1, "sha256": null}']


@pytest.mark.parametrize("text", [*TEXTS, "[" * 100_000], ids=[*TEXTS, "deeply nested"])
def test_a_header_in_another_form_is_refused(path, text):
    assert "checksum" not in assert_refused(forged(path, {"weight": np.ones(3)}, text))


@pytest.mark.parametrize("value", [*TEXTS, " ", "0" * 64, f"{'0' * 64} {{}}", "ξ λ"])
def test_a_header_with_a_wrong_checksum_is_refused(path, value):
    path.write_bytes(save_safetensors({"weight": np.ones(3)}, metadata={"undulatus": value}))
    assert "checksum of its header" in assert_refused(path)


def test_tensors_that_the_header_does_not_list_are_refused(path):
    tensors = {"weight": np.ones(3)}
    for digests in ({}, {"weight": "0" * 64, "other": "0" * 64}):
        text = json.dumps({"header": {}, "sha256": digests})
        assert "other tensors" in assert_refused(forged(path, tensors, text))


@pytest.mark.parametrize(
    ("dtype", "name"), [(np.float16, "F16"), (np.int8, "I8"), (np.uint64, "U64")]
)
def test_types_of_numbers_that_no_model_uses_are_refused(path, dtype, name):
    array = np.ones(3, dtype=dtype)
    text = json.dumps({"header": {}, "sha256": {"weight": _files._digest(array)}})
    assert f"as {name}," in assert_refused(forged(path, {"weight": array}, text))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_that_are_not_finite_are_refused_by_name(path, bad, dtype):
    write_tensors(path, {"good": np.ones(2), "bad": np.array([1.0, bad], dtype=dtype)}, {})
    assert "NaN or infinity in 'bad'" in assert_refused(path)


# Files of arrays: writing


@pytest.mark.parametrize("error", ERRORS, ids=["full", "interrupted"])
def test_a_failed_write_leaves_the_file_of_arrays_that_was_there(written, monkeypatch, error):
    expected = ModelFileError if isinstance(error, OSError) else KeyboardInterrupt
    with monkeypatch.context() as patch:
        patch.setattr(_files.os, "fsync", failing(error))
        with pytest.raises(expected) as caught:
            write_tensors(written, {"other": np.ones(2)}, {})
    if isinstance(error, OSError):
        assert f"{written}: cannot be written: No space left" in str(caught.value)
    assert read_tensors(written)[1] == HEADER
    assert files_in(written.parent) == [written.name]


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


# Recognising what was replaced


def test_a_replaced_file_is_noticed_even_with_its_old_length_and_time(tmp_path):
    path = tmp_path / "scene.nc"
    content = bytearray(10 * SAMPLE_BYTES)
    path.write_bytes(content)
    before, facts = content_digest([path]), path.stat()
    assert content_digest([path]) == before
    for place in (0, len(content) // 2, len(content) - 1):
        content[place] = 1
        path.write_bytes(content)
        content[place] = 0
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
        assert content_digest([path]) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "a" / "b").write_bytes(b"longer"),
        lambda folder: os.utime(folder / "a" / "b", ns=(1, 1)),
        lambda folder: (folder / "a" / "b").rename(folder / "a" / "c"),
        lambda folder: (folder / "more").touch(),
    ],
    ids=["length", "time", "name", "another file"],
)
def test_a_changed_file_in_a_folder_is_noticed(tmp_path, change):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b").write_bytes(b"text")
    before = content_digest([tmp_path])
    assert content_digest([tmp_path]) == before
    change(tmp_path)
    assert content_digest([tmp_path]) != before
