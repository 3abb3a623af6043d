"""The health file, as monitors and systemd read it."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from undulatus.errors import InputError
from undulatus.products.watch.health import HealthFile, Limits, prometheus_text, read_health
from undulatus.products.watch.ledger import utc_text


def facts(**changes):
    own = {"updated": utc_text(), "process": os.getpid(), "host": socket.gethostname()}
    return {"state": "waiting", **own, **changes}


def problem(folder, **changes):
    HealthFile(folder / "health.txt").write(facts(**changes))
    return read_health(folder).problem


@pytest.fixture(scope="module")
def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.parametrize("state", ["starting", "waiting", "mapping", "finished"])
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
        read_health(tmp_path / "missing")


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


HOUR_AGO = utc_text(3600)


@pytest.mark.parametrize(
    ("changes", "limits", "status", "said"),
    [
        ({"last map": f"{HOUR_AGO} a.nc, 1.0 s"}, Limits(silent=1800), 4, "mapped nothing since"),
        ({"last map": f"{HOUR_AGO} a.nc, 1.0 s"}, Limits(silent=7200), 0, ""),
        ({"last map": "none", "started": HOUR_AGO}, Limits(silent=1800), 4, "nothing yet, for 6"),
        ({"last map": "none", "started": utc_text()}, Limits(silent=1800), 0, ""),
        ({"set aside": 3}, Limits(set_aside=2), 5, "3 items are set aside, more than 2"),
        ({"set aside": 2}, Limits(set_aside=2), 0, ""),
        (
            {"state": "stopped", "set aside": 3, "last map": f"{HOUR_AGO} a.nc, 1.0 s"},
            Limits(silent=1800, set_aside=2),
            1,
            "it is stopped; it mapped nothing since",
        ),
    ],
)
def test_silence_and_rot_are_seen_if_there_are_limits(changes, limits, status, said, tmp_path):
    HealthFile(tmp_path / "health.txt").write(facts(**changes))
    assert read_health(tmp_path).problem in ("", "it is stopped")
    found = read_health(tmp_path, limits)
    assert found.status == status
    assert said in found.problem


def test_health_as_json_has_numbers_and_the_verdict(tmp_path):
    more = {"set aside": 3, "latency s": "12.5", "out of domain %": "1.25", "free disk": "2.0 GiB"}
    HealthFile(tmp_path / "health.txt").write(facts(**more))
    found = json.loads(json.dumps(read_health(tmp_path, Limits(set_aside=1)).as_dict()))
    assert (found["well"], found["status"]) == (False, 5)
    assert found["problems"] == ["3 items are set aside, more than 1"]
    assert (found["set_aside"], found["latency_seconds"]) == (3, 12.5)
    assert (found["out_of_domain_percent"], found["state"]) == (1.25, "waiting")


def test_health_for_prometheus_is_in_base_units_and_cannot_be_forged(tmp_path):
    more = {"mapped": 7, "out of domain %": "1.25", "free disk": "2.0 GiB", "latency s": "none"}
    folder = 'a"b\\c'
    HealthFile(tmp_path / "health.txt", tmp_path / "m.prom").write(facts(folder=folder, **more))
    text = (tmp_path / "m.prom").read_text()
    values = dict(line.split(" ") for line in text.splitlines() if not re.match("#|.*info", line))
    assert values.pop("undulatus_watch_updated_timestamp_seconds").isdigit()
    assert values == {
        "undulatus_watch_well": "1",
        "undulatus_watch_status": "0",
        "undulatus_watch_mapped": "7",
        "undulatus_watch_out_of_domain_ratio": "0.0125",
        "undulatus_watch_free_disk_bytes": str(2**31),
    }
    assert r'folder="a\"b\\c"' in text
    HealthFile(tmp_path / "health.txt", tmp_path / "m.prom").write(facts(state="trouble"))
    assert "undulatus_watch_well 0" in (tmp_path / "m.prom").read_text()
    verdict = read_health(tmp_path)
    assert prometheus_text(verdict.facts, verdict.status) == (tmp_path / "m.prom").read_text()
