"""The user's command gets what it is told as it is, and nothing of it is ever run."""

import json
import sys
from pathlib import Path

import pytest

from undulatus.products.watch import alarm
from undulatus.products.watch.alarm import Alarm

RECORD = """
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith("UNDULATUS_")}
json.dump([sys.argv[2:], told], open(sys.argv[1], "w"))
"""

EVIL = "$(touch pwned); touch pwned #' \" | & \n --help"


def test_names_and_reasons_are_passed_on_and_never_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = []
    item = tmp_path / EVIL.replace("/", "")
    Alarm([sys.executable, "-c", RECORD, "told.json"], said.append)(
        item, f"{EVIL}\0", Path("reason.txt")
    )
    words, told = json.loads((tmp_path / "told.json").read_text())
    assert words == [str(item), str(tmp_path / "reason.txt")]
    assert told["UNDULATUS_ITEM"] == words[0]
    assert told["UNDULATUS_REASON_FILE"] == words[1]
    assert told["UNDULATUS_REASON"] == EVIL
    assert not (tmp_path / "pwned").exists()
    assert said == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("print('first'); print('no mail today'); exit(3)", "status 3: no mail today."),
        ("import time; time.sleep(60)", "timed out"),
    ],
)
def test_a_command_that_fails_is_told_of_and_stops_nothing(code, expected, monkeypatch):
    monkeypatch.setattr(alarm, "MOST_SECONDS", 0.5 if "sleep" in code else 60.0)
    said = []
    Alarm([sys.executable, "-c", code], said.append)(Path("a"), "why", Path("b"))
    assert len(said) == 1
    assert expected in said[0]


def test_a_command_that_is_gone_is_told_of():
    said = []
    Alarm(["/no/such/program"], said.append)(Path("a"), "why", Path("b"))
    assert "No such file" in said[0]
