"""Every item is mapped once, whatever is wrong with it, with the disk, or with the process."""

import errno
import json
import os
import shutil
import warnings
from itertools import count

import numpy as np
import pytest
import xarray as xr

from undulatus import RFFGPC, save_model
from undulatus._files import JsonLines, WritingError
from undulatus.errors import InputError, SceneError
from undulatus.products.legend import Legend
from undulatus.products.map_files import ModelFile
from undulatus.products.watch import Arrivals, MapOptions, read_health, watcher, watching
from undulatus.products.watch.ledger import Ledger
from undulatus.scenes.files.opening import open_map
from undulatus.scenes.files.writing import write_dataset

NAMES = ("red", "green")


def image(shade, scale=1.0):
    """Bands whose sum says the class; ``shade`` moves all of them a bit."""
    rng = np.random.default_rng(3)
    bands = rng.normal(0.3 + 0.01 * shade, 0.05, (2, 12, 12)).astype(np.float32) * scale
    return xr.Dataset({name: (("y", "x"), band) for name, band in zip(NAMES, bands, strict=True)})


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rng = np.random.default_rng(0)
    X = rng.normal(0.3, 0.07, (400, 2))
    y = np.where(X.sum(axis=1) > 0.6, "bright", "dark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = RFFGPC(n_frequencies=5, n_estimators=1, random_state=0).fit(X, y)
    fitted.feature_names_in_ = np.array(NAMES, object)
    path = tmp_path_factory.mktemp("model") / "model.undulatus"
    save_model(fitted, path)
    return ModelFile.load(path)


class Chain:
    """A folder that is filled, a folder of maps, and watchers that come and go."""

    def __init__(self, root, model):
        self.folder, self.output, self.model = root / "in", root / "out", model
        self.folder.mkdir()
        self.said = []
        self.clock = count(1000.0, 1000.0)
        self.modified = count(1_000_000_000)

    def put(self, name, dataset):
        hidden = self.folder / f".{name}"
        write_dataset(dataset, hidden)
        self._show(hidden, name)

    def put_bytes(self, name, content):
        hidden = self.folder / f".{name}"
        hidden.write_bytes(content)
        self._show(hidden, name)

    def _show(self, hidden, name):
        shutil.rmtree(self.folder / name, ignore_errors=True)
        hidden.rename(self.folder / name)
        # Times of files are too coarse to tell what is written in one test.
        os.utime(self.folder / name, (next(self.modified),) * 2)

    def watching(self, output=None, suffix=".nc", model=None, **options):
        mapping = {key: options.pop(key) for key in ("encoding", "legend") if key in options}
        return watching(
            Arrivals(self.folder, settle=0.0),
            model or self.model,
            output or self.output,
            MapOptions(suffix=suffix, **mapping),
            say=self.said.append,
            **options,
        )

    def run(self, looks=1, **options):
        """Look some times, long after each other, and return the counts."""
        with self.watching(**options) as found:
            for _ in range(looks):
                found.look(next(self.clock))
        return found.counts

    def records(self, output=None):
        path = (output or self.output) / "watch.jsonl"
        return [record for record in JsonLines(path).read() if "input" in record]

    def results(self, output=None):
        return [(record["input"], record["result"]) for record in self.records(output)]

    def maps(self, output=None):
        return sorted(p.name for p in (output or self.output).iterdir() if p.suffix != ".jsonl")


@pytest.fixture
def chain(tmp_path, model):
    return Chain(tmp_path, model)


def values(path):
    with open_map(path) as found:
        attrs = {key: str(value) for key, value in found.attrs.items() if key != "history"}
        return {name: array.values.tobytes() for name, array in found.variables.items()}, attrs


def reason(chain, name):
    return (chain.output / "set-aside" / f"{name}.txt").read_text()


# What becomes of items


def test_each_item_is_mapped_once_and_a_restart_maps_only_what_is_new(chain):
    chain.put("a.nc", image(0))
    chain.put("b.zarr", image(1))
    assert chain.run(looks=2).mapped == 2
    first = values(chain.output / "a.nc")
    chain.put("c.nc", image(2))
    assert chain.run().mapped == 1
    assert chain.results() == [("a.nc", "mapped"), ("b.zarr", "mapped"), ("c.nc", "mapped")]
    assert chain.maps() == ["a.nc", "b.nc", "c.nc", "health.txt"]
    assert values(chain.output / "a.nc") == first
    record = chain.records()[0]
    assert record["outputs"] == ["a.nc"]
    assert record["model"] == chain.model.sha256
    assert record["pixels"]["mapped"] == 144
    assert sum(record["pixels"]["classes"].values()) == 144
    assert record["seconds"] > 0


def test_what_was_replaced_is_mapped_again_in_place_of_its_map(chain):
    for suffix in (".nc", ".zarr"):
        chain.put("a.nc", image(0))
        chain.run(suffix=suffix)
        before = values(chain.output / f"a{suffix}")
        chain.put("a.nc", image(3))
        assert chain.run(looks=2, suffix=suffix).mapped == 1
        assert values(chain.output / f"a{suffix}") != before
    # Of the earlier format nothing is left: it would be a map of the earlier content.
    assert chain.maps() == ["a.zarr", "health.txt"]
    assert chain.records()[2]["superseded"] == ["a.nc"]


def test_a_running_watcher_notices_what_was_replaced(chain):
    chain.put("a.nc", image(0))
    with chain.watching() as found:
        found.look(0.0)
        found.look(1.0)
        chain.put("a.nc", image(3))
        found.look(watcher.SECONDS_BETWEEN_CHECKS / 2)
        assert found.counts.mapped == 1
        found.look(watcher.SECONDS_BETWEEN_CHECKS)
        assert found.counts.mapped == 2


def test_what_was_only_moved_away_and_back_is_not_mapped_again(chain):
    chain.put("a.nc", image(0))
    chain.run()
    (chain.folder / "a.nc").rename(chain.folder / ".away")
    chain.run()
    (chain.folder / ".away").rename(chain.folder / "a.nc")
    assert chain.run().mapped == 0


BAD = {
    "cut short": (lambda: b"CDF\x01" + bytes(50), "empty or truncated"),
    "empty": (lambda: b"", "empty.nc"),
    "without a band": (lambda: image(0)[["red"]], "missing: green"),
    "in other units": (lambda: image(0, scale=255.0), "outside what the model learned"),
    "without a pixel": (lambda: image(0) * np.float32(np.nan), "No pixel of"),
}


def test_what_cannot_be_mapped_is_set_aside_with_its_reason_and_not_tried_again(chain):
    for name, (make, _) in BAD.items():
        made = make()
        put = chain.put_bytes if isinstance(made, bytes) else chain.put
        put(f"{name}.nc", made)
    assert chain.run(looks=2).set_aside == len(BAD)
    assert chain.run().set_aside == 0
    for (name, (_, said)), record in zip(BAD.items(), chain.records(), strict=True):
        assert record["input"] == f"{name}.nc"
        assert said in record["reason"]
        assert said in reason(chain, f"{name}.nc")
    assert sorted(p.name for p in chain.folder.iterdir()) == sorted(f"{n}.nc" for n in BAD)
    assert "Traceback" not in "".join(chain.said)


def test_what_was_set_aside_is_tried_again_when_asked_for_or_replaced(chain):
    chain.put_bytes("a.nc", b"CDF\x01")
    chain.put_bytes("b.nc", b"CDF\x01")
    chain.run()
    chain.put("a.nc", image(0))
    assert chain.run().mapped == 1
    assert sorted(p.name for p in (chain.output / "set-aside").iterdir()) == ["b.nc.txt"]
    assert chain.run(retry=True).set_aside == 1
    assert "set aside: 1\n" in (chain.output / "health.txt").read_text()


def test_an_error_that_nobody_thought_of_sets_one_item_aside_with_its_traceback(
    chain, monkeypatch
):
    chain.put("a.nc", image(0))
    with monkeypatch.context() as patched:
        patched.setattr(watcher, "map_of_file", lambda *_, **__: {}["odd"])
        assert chain.run().set_aside == 1
    assert "KeyError: 'odd'" in chain.records()[0]["reason"]
    assert "Traceback" in reason(chain, "a.nc")


def test_an_item_that_killed_the_process_again_and_again_is_set_aside(chain, tmp_path):
    chain.put("a.nc", image(0))

    def die(*_, **__):
        shutil.copytree(chain.output, tmp_path / "left")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watcher, "map_of_file", die)
        for _ in range(watcher.MOST_DEATHS):
            with pytest.raises(KeyboardInterrupt):
                chain.run()
            # What a process leaves that is killed, and has no time to tidy.
            shutil.rmtree(chain.output)
            (tmp_path / "left").rename(chain.output)
    assert chain.results() == []
    assert chain.run().set_aside == 1
    assert f"ended {watcher.MOST_DEATHS} times" in reason(chain, "a.nc")


# Names


def test_items_that_differ_in_their_endings_have_maps_of_their_own(chain):
    for name in ("a.nc", "a.zarr", "a.b.nc", "A.nc4"):
        chain.put(name, image(0))
    assert chain.run().mapped == 4
    assert chain.maps() == ["A.nc", "a.b.nc", "a.nc", "a.zarr.nc", "health.txt"]
    chain.put("a.zarr", image(1))
    assert chain.run().mapped == 1
    assert "a.zarr.nc" in chain.records()[-1]["outputs"]


def test_the_second_file_of_a_geotiff_is_nobody_elses(chain):
    for name in ("a_layers.nc", "a.nc", "b.nc", "b_layers.nc"):
        chain.put(name, image(0))
    assert chain.run(suffix=".tif").mapped == 4
    outputs = [record["outputs"] for record in chain.records()]
    assert outputs == [
        ["a_layers.tif", "a_layers_layers.tif"],
        ["a.nc.tif", "a.nc_layers.tif"],
        ["b.tif", "b_layers.tif"],
        ["b_layers.nc.tif", "b_layers.nc_layers.tif"],
    ]


def test_a_file_that_the_watcher_did_not_write_is_never_replaced(chain):
    chain.output.mkdir()
    (chain.output / "a.nc").write_text("mine")
    chain.put("a.nc", image(0))
    assert chain.run().set_aside == 1
    assert "did not write it" in reason(chain, "a.nc")
    assert (chain.output / "a.nc").read_text() == "mine"


# Faults that pass


def raising(error):
    def act(*_, **__):
        raise error

    return act


def failing(error):
    def write(*_, **__):
        raise SceneError("The map could not be written.") from error

    return write


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EIO, "Input/output error"),
        WritingError("NetCDF: HDF error"),
        MemoryError(),
    ],
    ids=["full disk", "failing disk", "failing library", "memory"],
)
def test_an_error_that_may_pass_sets_nothing_aside(error, chain, monkeypatch):
    chain.put("a.nc", image(0))
    with chain.watching() as found:
        with monkeypatch.context() as patched:
            patched.setattr(watcher.Watcher, "_write", failing(error))
            found.look(0.0)
            # It rests, then it is tried again, and rests for twice as long.
            for now in (1.0, watcher.FIRST_PAUSE, watcher.FIRST_PAUSE + 1.0):
                found.look(now)
            assert found.counts.failed == 2
            assert "trouble" in read_health(chain.output, 300.0).problem
        found.look(10_000.0)
        assert found.counts.mapped == 1
        assert read_health(chain.output, 300.0).problem == ""
    assert chain.results() == [("a.nc", "mapped")]


def test_a_disk_without_room_is_a_fault_that_passes(chain, monkeypatch):
    chain.put("a.nc", image(0))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 0))
        assert chain.run().failed == 1
    assert "does not fit on its disk" in chain.said[-1]
    assert chain.run().mapped == 1


def test_a_ledger_that_cannot_be_written_loses_nothing(chain, monkeypatch):
    chain.put("a.nc", image(0))
    chain.run(looks=0)

    with monkeypatch.context() as patched:
        patched.setattr(JsonLines, "append", raising(OSError(errno.ENOSPC, "full")))
        assert chain.run().failed == 1
    assert chain.maps() == ["health.txt"]
    assert chain.run().mapped == 1


def test_a_map_that_cannot_get_its_name_gets_it_later_and_is_not_made_again(chain, monkeypatch):
    chain.put("a.nc", image(0))
    with chain.watching() as found:
        with monkeypatch.context() as patched:
            patched.setattr(type(chain.output), "replace", raising(OSError(errno.EXDEV, "odd")))
            found.look(0.0)
            assert (found.counts.failed, found.counts.set_aside) == (1, 0)
            assert "a.nc" not in chain.maps()
        found.look(1.0)
        assert "a.nc" in chain.maps()
        assert read_health(chain.output, 300.0).problem == ""
    assert chain.results() == [("a.nc", "mapped")]


def test_a_folder_that_cannot_be_written_to_is_an_error_at_the_start(chain, monkeypatch):
    monkeypatch.setattr(JsonLines, "append", raising(OSError(errno.EROFS, "Read-only")))
    with pytest.raises(SceneError, match=r"could not be written"):
        chain.run()


def test_an_item_that_is_gone_is_forgotten(chain, monkeypatch):
    chain.put("a.nc", image(0))

    def vanish(*_, **__):
        (chain.folder / "a.nc").unlink()
        raise SceneError("It cannot be read.")

    monkeypatch.setattr(watcher, "map_of_file", vanish)
    counts = chain.run(looks=2)
    assert (counts.set_aside, counts.failed) == (0, 0)
    assert chain.said == ["gone a.nc: it was removed before it was mapped."]


def test_an_item_that_changes_while_it_is_mapped_is_mapped_as_it_is_in_the_end(chain, monkeypatch):
    chain.put("a.nc", image(0))
    write = watcher.Watcher._write

    def write_and_change(self, path, output):
        written = write(self, path, output)
        if not chain.said:
            chain.put("a.nc", image(3))
        return written

    monkeypatch.setattr(watcher.Watcher, "_write", write_and_change)
    assert chain.run(looks=2).mapped == 1
    assert chain.said[0].startswith("changed a.nc")
    chain.put("b.nc", image(3))
    chain.run()
    assert values(chain.output / "a.nc")[0] == values(chain.output / "b.nc")[0]


def test_a_folder_that_cannot_be_listed_is_trouble_until_it_is_back(chain):
    with chain.watching() as found:
        chain.folder.rename(chain.folder.with_name("away"))
        found.look(0.0)
        assert "No such file" in read_health(chain.output, 300.0).problem
        chain.folder.with_name("away").rename(chain.folder)
        found.look(1.0)
        assert read_health(chain.output, 300.0).problem == ""


def test_health_that_cannot_be_written_stops_nothing(chain, tmp_path):
    chain.put("a.nc", image(0))
    assert chain.run(health=tmp_path / "nowhere" / "health.txt").mapped == 1


# Restarts


@pytest.mark.parametrize("suffix", [".zarr", ".tif"])
def test_a_watcher_killed_at_any_moment_leaves_what_the_next_one_completes(
    suffix, chain, tmp_path, monkeypatch
):
    """The folder of maps at a moment is what a kill at that moment leaves."""
    # It waits for all that other programs write, too.
    monkeypatch.setattr(os, "sync", lambda: None)
    chain.put("a.nc", image(0))
    chain.put_bytes("b.nc", b"CDF\x01")
    chain.run(suffix=suffix)
    chain.put("a.nc", image(3))
    chain.put("b.nc", image(1))
    moments = []
    path_type = type(chain.output)

    def keep_before(patched, owner, method, matters=lambda *_: True):
        own = getattr(owner, method)

        def act(*args, **options):
            if matters(*args):
                moments.append((method, tmp_path / f"moment-{len(moments)}"))
                shutil.copytree(chain.output, moments[-1][1])
            return own(*args, **options)

        patched.setattr(owner, method, act)

    def is_a_map(path, target):
        return path.suffix == target.suffix == suffix and chain.output in (
            path.parent,
            target.parent,
        )

    with pytest.MonkeyPatch.context() as patched:
        keep_before(patched, watcher.Watcher, "_write")
        keep_before(patched, Ledger, "_append")
        keep_before(patched, path_type, "rename", lambda path, target: path.parent == chain.output)
        keep_before(patched, path_type, "replace", is_a_map)
        keep_before(patched, watcher, "remove", lambda path: path.parent.name == "set-aside")
        chain.run(suffix=suffix)
    expected = chain.maps(), sorted(chain.results()), contents(chain.output)
    tried = {method for method, _ in moments}
    assert tried >= {"_write", "_append", "replace", "remove"}
    assert ("rename" in tried) == (suffix == ".zarr")
    for name, output in moments:
        chain.run(output=output, suffix=suffix)
        found = chain.maps(output), sorted(chain.results(output)), contents(output)
        assert found == expected, name
        assert len({(r["input"], r["digest"]) for r in chain.records(output)}) == 4, name


def contents(output):
    found = {}
    for path in output.iterdir():
        if path.suffix in (".nc", ".zarr"):
            found[path.name] = values(path)
        elif path.suffix == ".tif":
            import rasterio

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with rasterio.open(path) as file:
                    found[path.name] = file.read().tobytes()
    return found


def test_what_a_killed_watcher_left_anywhere_is_removed(chain):
    chain.put("a.nc", image(0))
    chain.run()
    left = [
        ".health.unfinished-12ab.txt",
        "set-aside/.x.unfinished-12ab.txt",
        "set-aside/a.nc.txt",
    ]
    left += [".watch/0123456789abcdef/.a.unfinished.nc", ".watch/.trying.unfinished-12ab.json"]
    for name in left:
        (chain.output / name).parent.mkdir(parents=True, exist_ok=True)
        (chain.output / name).write_text("")
    chain.run()
    assert chain.maps() == ["a.nc", "health.txt", "set-aside"]
    assert list((chain.output / "set-aside").iterdir()) == []


def test_a_second_watcher_is_refused_and_told_which_process_is_first(chain):
    with chain.watching(), pytest.raises(SceneError, match=f"process {os.getpid()} on"):
        chain.run()


def test_another_model_is_refused_unless_it_is_asked_for(chain, model):
    chain.put("a.nc", image(0))
    chain.run()
    other = ModelFile(model.path, model.fitted, "f" * 64)
    with pytest.raises(InputError, match=r"(?s)model: f{64}, but .*--new-model"):
        chain.run(model=other)
    chain.put("b.nc", image(0))
    assert chain.run(model=other, new_model=True).mapped == 1
    assert [record["model"] for record in chain.records()] == [model.sha256, "f" * 64]
    assert chain.run(model=other).mapped == 0
    legend = Legend(("bright", "dark"), codes=(7, 8))
    with pytest.raises(InputError, match=r"legend: \{'classes'"):
        chain.run(model=other, legend=legend)


@pytest.mark.parametrize("place", [".", "maps"])
def test_maps_must_not_be_written_into_the_folder_that_is_watched(place, chain):
    with pytest.raises(InputError, match="maps would be taken for data"):
        chain.run(output=chain.folder / place)


def test_the_health_file_has_the_counts(chain):
    chain.put("a.nc", image(0))
    chain.put_bytes("b.nc", b"CDF\x01")
    chain.put_bytes("notes.txt", b"")
    chain.run()
    facts = dict(
        line.split(": ", 1) for line in (chain.output / "health.txt").read_text().splitlines()
    )
    assert (facts["mapped"], facts["set aside"], facts["waiting"]) == ("1", "1", "0")
    assert facts["ignored"] == "1, such as notes.txt"
    assert facts["state"] == "stopped"
    assert facts["process"] == str(os.getpid())
    assert facts["model sha256"] == chain.model.sha256
    assert "b.nc" in facts["last set aside"]
    assert "a.nc" in facts["last map"]
    assert json.dumps(facts["free disk"]).endswith('GiB"')


def test_once_is_not_well_as_long_as_an_item_that_is_there_is_set_aside(chain):
    chain.put_bytes("bad.nc", b"no netCDF")
    for _ in range(2):
        with chain.watching() as found:
            assert not found.run(0.01, once=True)
    (chain.folder / "bad.nc").unlink()
    with chain.watching() as found:
        assert found.run(0.01, once=True)


def test_a_folder_with_a_link_to_nowhere_is_not_passed_over(chain):
    write_dataset(image(0), chain.folder / "a.zarr")
    (chain.folder / "a.zarr" / "extra").symlink_to("/nowhere/at/all")
    assert chain.run(looks=2).set_aside == 1
    assert "extra" in (chain.output / "set-aside" / "a.zarr.txt").read_text()


@pytest.mark.parametrize("target", ["/nowhere/at/all.nc", "a.nc"])
def test_a_link_to_nowhere_is_said_and_is_not_well(chain, target):
    (chain.folder / "a.nc").symlink_to(target)
    with chain.watching() as found:
        assert not found.run(0.01, once=True)
    assert any("cannot look at a.nc" in line for line in chain.said)


def test_names_of_other_encodings_and_long_ones_are_set_aside_if_they_are_bad(chain):
    chain.put_bytes(os.fsdecode(b"caf\xe9.nc"), b"no netCDF")
    chain.put_bytes(f"{'n' * 240}.nc", b"no netCDF")
    assert chain.run(looks=2).set_aside == 2
    assert len(list((chain.output / "set-aside").iterdir())) == 2


def test_damaged_lines_of_the_ledger_are_said(chain):
    chain.put("a.nc", image(0))
    chain.run()
    with (chain.output / "watch.jsonl").open("a") as ledger:
        ledger.write('{"input": "b.n\n')
    chain.run()
    assert any("1 damaged lines" in line for line in chain.said)
