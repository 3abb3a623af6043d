"""What is data in a folder, and when it is complete."""

import os

import pytest

from undulatus.products.watch.arrivals import UNFINISHED_ENDINGS, Arrivals, own_facts


def names(look):
    return [path.name for path in look.ready]


@pytest.fixture
def folder(tmp_path):
    return tmp_path


def write(path, text="x", modified=1_000):
    path.write_text(text)
    os.utime(path, (modified, modified))
    return path


def test_a_file_is_ready_when_it_has_not_changed_for_long_enough(folder):
    arrivals = Arrivals(folder, settle=5.0)
    path = write(folder / "a.nc")
    assert arrivals.look({}, 0.0).unsettled == 1
    assert names(arrivals.look({}, 4.9)) == []
    assert names(arrivals.look({}, 5.0)) == ["a.nc"]
    write(path, "xx", 1_001)
    assert names(arrivals.look({}, 6.0)) == []
    assert names(arrivals.look({}, 11.0)) == ["a.nc"]


@pytest.mark.parametrize("change", ["another file", "a longer file", "a later file"])
def test_a_folder_is_ready_when_nothing_in_it_has_changed(folder, change):
    arrivals = Arrivals(folder, settle=5.0)
    (folder / "a.zarr" / "b").mkdir(parents=True)
    chunk = write(folder / "a.zarr" / "b" / "0")
    arrivals.look({}, 0.0)
    if change == "another file":
        write(chunk.with_name("1"), "")
    else:
        write(chunk, "xx" if change == "a longer file" else "x", 1_000_000_000_000)
    assert names(arrivals.look({}, 5.0)) == []
    assert names(arrivals.look({}, 10.0)) == ["a.zarr"]


def test_names_of_unfinished_files_and_names_beside_the_pattern_are_left_out(folder):
    for ending in UNFINISHED_ENDINGS:
        write(folder / f"a.nc{ending}")
    for name in (".a.nc", "a.nc", "a.tif"):
        write(folder / name)
    assert names(Arrivals(folder, "*.nc", settle=0.0).look({}, 0.0)) == ["a.nc"]


def test_names_of_no_known_format_are_counted_and_one_is_named(folder):
    for name in ("readme.txt", "b.md5"):
        write(folder / name)
    (folder / "empty").mkdir()
    look = Arrivals(folder, settle=0.0).look({}, 0.0)
    assert (look.ready, look.ignored, look.example) == ([], 3, "b.md5")


def test_hrit_needs_a_folder_for_each_acquisition(folder):
    segment = "H-000-MSG2__-MSG2________-IR_108___-000001___-201006011200-__"
    write(folder / segment)
    (folder / "1200").mkdir()
    write(folder / "1200" / segment)
    look = Arrivals(folder, settle=0.0).look({}, 0.0)
    assert (names(look), look.segments, look.ignored) == (["1200"], 1, 0)


def test_what_was_modified_first_comes_first(folder):
    for name, modified in (("c.nc", 1), ("a.nc", 3), ("b.nc", 2), ("d.nc", 2)):
        write(folder / name, modified=modified)
    arrivals = Arrivals(folder, settle=0.0)
    assert names(arrivals.look({}, 0.0)) == ["c.nc", "b.nc", "d.nc", "a.nc"]


def test_what_is_done_returns_when_it_was_replaced_and_stays_so(folder):
    arrivals = Arrivals(folder, settle=5.0)
    path = write(folder / "a.nc")
    done = {"a.nc": own_facts(path)}
    assert arrivals.look(done, 0.0) == arrivals.look(done, 10.0)
    assert names(arrivals.look(done, 10.0)) == []
    write(path, modified=2_000)
    assert arrivals.look(done, 20.0, again=False).unsettled == 0
    assert arrivals.look(done, 30.0).unsettled == 1
    assert names(arrivals.look(done, 35.0, again=False)) == ["a.nc"]


def test_links_count_as_what_they_lead_to_and_pipes_as_nothing(folder, tmp_path_factory):
    elsewhere = write(tmp_path_factory.mktemp("elsewhere") / "real.nc")
    (folder / "link.nc").symlink_to(elsewhere)
    (folder / "nowhere.nc").symlink_to(folder / "missing")
    os.mkfifo(folder / "pipe.nc")
    assert names(Arrivals(folder, settle=0.0).look({}, 0.0)) == ["link.nc"]
