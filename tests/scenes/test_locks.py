"""Locks: one writer at a time, and none of a process that has ended."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from undulatus.errors import SceneError
from undulatus.scenes.locks import lock_of, locked


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
from undulatus.scenes.locks import locked
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
