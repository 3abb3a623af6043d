"""Old maps are removed, nothing else is, and no item is mapped again for it."""

import os

import pytest

from undulatus._files import JsonLines
from undulatus.products.watch.arrivals import own_facts
from undulatus.products.watch.ledger import Ledger
from undulatus.products.watch.retention import remove_old

OLD, NEW, BEFORE = "2026-01-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-02-01T00:00:00Z"


@pytest.fixture
def place(tmp_path):
    """A ledger of old and new items, and their maps."""
    log = JsonLines(tmp_path / "watch.jsonl")
    log.append({"time": OLD, "settings": {"model": "m"}})
    for name, time, result in (
        ("here", OLD, "mapped"), ("gone", OLD, "mapped"), ("changed", OLD, "mapped"),
        ("new", NEW, "mapped"), ("bad", OLD, "set aside"), ("worse", OLD, "set aside"),
    ):  # fmt: skip
        output = tmp_path / f"{name}.nc"
        record = {"time": time, "input": name, "digest": "00", "facts": [1, 1], "result": result}
        if result == "mapped":
            output.write_text(name)
            made = {output.name: own_facts(output)}
            record |= {"outputs": [output.name], "made": made, "seconds": 1.0, "pixels": {}}
        log.append(record)
    (tmp_path / "changed.nc").write_text("improved by hand")
    (tmp_path / "mine.nc").write_text("mine")
    for name in ("bad", "worse", "other"):
        (tmp_path / f"{name}.txt").write_text("why")
    return tmp_path


def sweep(place, here, said):
    return remove_old(
        Ledger(place / "watch.jsonl"),
        place,
        set(here),
        BEFORE,
        lambda name: place / f"{name}.txt",
        said.append,
    )


def test_old_maps_go_and_what_is_not_as_it_was_made_stays(place):
    said = []
    removed = sweep(place, ["here", "new", "changed", "bad"], said)
    assert (removed.maps, removed.forgotten) == (2, 2)
    assert sorted(os.listdir(place)) == [
        "bad.txt", "changed.nc", "mine.nc", "new.nc", "other.txt", "watch.jsonl",
    ]  # fmt: skip
    assert len(said) == 1
    assert "changed.nc is old, but was changed" in said[0]


def test_items_that_are_still_here_are_known_for_ever_and_others_are_forgotten(place):
    sweep(place, ["here", "new", "changed", "bad"], [])
    ledger = Ledger(place / "watch.jsonl")
    assert sorted(ledger.done) == ["bad", "changed", "here", "new"]
    assert ledger.settings == {"model": "m"}
    assert ledger.items_set_aside == {"bad"}
    assert ledger.owner("here.nc") is None
    assert ledger.has("here", "00")
    again = sweep(place, ["here", "new", "changed", "bad"], [])
    assert (again.maps, again.forgotten) == (0, 0)


def test_nothing_is_forgotten_while_the_folder_is_empty(place):
    removed = sweep(place, [], [])
    assert (removed.maps, removed.forgotten) == (2, 0)
    assert len(Ledger(place / "watch.jsonl").done) == 6
