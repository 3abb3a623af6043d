"""What is remembered of each item."""

import pytest

from undulatus.errors import InputError
from undulatus.products.watch.ledger import Ledger, item_key

ONE, TWO = "01" * 32, "02" * 32


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "watch.jsonl")


def again(ledger):
    return Ledger(ledger.path)


def test_everything_is_known_again_after_a_restart(ledger):
    ledger.record_settings({"model": "abc"})
    ledger.record_map("a.nc", ONE, (5, 6), ["a.tif", "a_layers.tif"], seconds=1.0)
    ledger.record_fault("b.nc", TWO, (7, 8), "It is damaged.")
    read = again(ledger)
    assert read == ledger
    assert (read.mapped, read.set_aside) == (1, 1)
    assert read.has("a.nc", ONE)
    assert not read.has("a.nc", TWO)
    assert read.owner("a_layers.tif") == "a.nc"
    assert read.outputs_of("a.nc") == ["a.tif", "a_layers.tif"]
    assert read.settings == {"model": "abc"}


def test_the_last_record_of_an_item_counts(ledger):
    ledger.record_map("a.nc", ONE, (5, 6), ["a.nc"])
    ledger.record_fault("a.nc", TWO, (7, 8), "It is damaged.")
    assert (ledger.mapped, ledger.set_aside) == (0, 1)
    assert ledger.outputs_of("a.nc") == ["a.nc"]
    ledger.record_map("a.nc", ONE, (5, 6), ["a.zarr"])
    assert (ledger.mapped, ledger.set_aside) == (1, 0)
    assert ledger.outputs_of("a.nc") == ["a.zarr"]
    assert again(ledger) == ledger


def test_only_what_was_set_aside_is_forgotten(ledger):
    ledger.record_map("a.nc", ONE, (5, 6), ["a.nc"])
    ledger.record_fault("b.nc", TWO, (7, 8), "It is damaged.")
    ledger.forget_faults()
    assert list(ledger.done) == ["a.nc"]
    assert not ledger.has("b.nc", TWO)


def test_a_map_is_recovered_only_if_it_is_the_latest_of_its_item(ledger):
    ledger.record_map("a.nc", ONE, (5, 6), ["a.nc"])
    assert ledger.recover_map(item_key("a.nc", ONE))["outputs"] == ["a.nc"]
    assert ledger.recover_map(item_key("a.nc", TWO)) is None
    ledger.record_map("a.nc", TWO, (5, 6), ["a.nc"])
    assert ledger.recover_map(item_key("a.nc", ONE)) is None


def test_a_record_that_reached_the_disk_counts_even_if_an_error_was_raised(ledger):
    other = again(ledger)
    ledger.record_map("a.nc", ONE, (5, 6), ["a.nc"])
    assert other.recover_map(item_key("a.nc", ONE))
    assert other.has("a.nc", ONE)


def test_a_line_that_was_cut_short_is_a_record_that_never_was(ledger):
    ledger.record_map("a.nc", ONE, (5, 6), ["a.nc"])
    ledger.record_map("b.nc", ONE, (5, 6), ["b.nc"])
    ledger.path.write_bytes(ledger.path.read_bytes()[:-20])
    assert list(again(ledger).done) == ["a.nc"]


def test_a_line_of_something_else_is_named(ledger):
    ledger.path.write_text('{"input": "a.nc"}\n')
    with pytest.raises(InputError, match=r"watch\.jsonl has a line .*a\.nc"):
        again(ledger)
