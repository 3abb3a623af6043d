"""The health file, as monitors and systemd read it."""

import os
import socket
import subprocess
import sys

import pytest

from undulatus.errors import InputError
from undulatus.products.watch.health import HealthFile, read_health
from undulatus.products.watch.ledger import utc_text


def facts(**changes):
    own = {"updated": utc_text(), "process": os.getpid(), "host": socket.gethostname()}
    return {"state": "waiting", **own, **changes}


def problem(folder, **changes):
    HealthFile(folder / "health.txt").write(facts(**changes))
    return read_health(folder, 300.0).problem


@pytest.fixture(scope="module")
def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("state", ["starting", "waiting", "mapping"])
def test_a_watcher_at_work_is_well(state, tmp_path):
    assert problem(tmp_path, state=state) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "stopped"}, "it is stopped"),
        ({"state": "trouble", "last error": "No space left"}, "trouble: No space left"),
        ({"updated": "2020-01-01T00:00:00Z"}, "no sign for"),
        ({"updated": "yesterday"}, "lacks the time"),
        ({"state": ""}, "no state"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_wrong_is_said(changes, said, tmp_path):
    assert said in problem(tmp_path, **changes)


def test_a_process_that_was_killed_is_missed_at_once(tmp_path, ended_process):
    assert "has ended" in problem(tmp_path, process=ended_process)
    assert problem(tmp_path, process=ended_process, host="elsewhere") == ""


def test_every_value_is_one_line_whatever_it_holds(tmp_path):
    HealthFile(tmp_path / "health.txt").write(facts(item="a\nstate: trouble \udcff"))
    lines = (tmp_path / "health.txt").read_text().splitlines()
    assert lines[-1] == r"item: a state: trouble \udcff"
    assert len(lines) == 5


def test_a_health_file_that_cannot_be_written_stops_nothing(tmp_path):
    HealthFile(tmp_path / "missing" / "health.txt").write(facts())
    with pytest.raises(InputError, match="cannot be read"):
        read_health(tmp_path / "missing", 300.0)


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_the_watcher_is_ready_and_alive(abstract, tmp_path, monkeypatch):
    address = f"@undulatus-{os.getpid()}" if abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(address.replace("@", "\0"))
        channel.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        health = HealthFile(tmp_path / "health.txt")
        heard = []
        for state in ("starting", "waiting", "stopped"):
            health.write(facts(state=state))
            heard.append(channel.recv(1000).decode())
    assert heard[0] == "STATUS=starting"
    assert heard[1] == "READY=1\nWATCHDOG=1\nSTATUS=waiting"
    assert heard[2] == "STOPPING=1\nSTATUS=stopped"
