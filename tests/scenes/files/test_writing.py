"""Writing: whole or not at all, in every format, and errors that name output and cause."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import pytest
import rasterio
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from undulatus._progress import report_block
from undulatus.errors import SceneError
from undulatus.scenes.files.writing import COSTLY, RESUMABLE, WRITERS, write_dataset

# One suffix of each writer.
FORMATS = list({writer: suffix for suffix, writer in reversed(WRITERS.items())}.values())
every_format = pytest.mark.parametrize("suffix", FORMATS)
files = pytest.mark.parametrize("suffix", [s for s in FORMATS if s not in RESUMABLE])


def lazy(block, blocks=4):
    """Return a dataset of blocks, one above the other, each made by ``block(values, number)``."""

    def numbered(values, block_info=None):
        if not block_info:
            return values
        return block(values, block_info[0]["chunk-location"][0])

    values = da.ones((blocks, 50), chunks=(1, 50)).map_blocks(numbered, meta=np.empty((0, 0)))
    return xr.Dataset({"values": (("y", "x"), values)})


def failing(error, at=3):
    def block(values, number):
        if number == at:
            raise error
        return values

    return lazy(block)


class Costly:
    """A dataset of blocks that take a hundred steps each, and what is done of them."""

    def __init__(self, blocks=4, seconds=0.0):
        self.steps, self.reports = 0, []
        self._seconds = seconds
        values = da.ones((blocks, 50), chunks=(1, 50))
        costly = values.map_blocks(self._block, token=COSTLY, meta=np.empty((0, 0)))
        # Two layers, and tasks beside the costly ones.
        layers = {"values": costly + 1.0, "doubled": 2.0 * costly}
        self.dataset = xr.Dataset({name: (("y", "x"), own) for name, own in layers.items()})

    def _block(self, values, block_info=None):
        if not block_info:
            return values
        for step in range(100):
            time.sleep(self._seconds)
            self.steps += 1
            report_block((step + 1) / 100)
        return values * np.arange(50)

    def report(self, done, total):
        self.reports.append(done / total)


def interrupting(share):
    """Return what interrupts once, as Ctrl-C does, when so much is done."""
    sent = []

    def progress(done, total):
        if done / total > share and not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def left_in(folder):
    """Return what is in a folder, without an unfinished Zarr that can be resumed."""
    return [name for name in os.listdir(folder) if name != ".scene.unfinished.zarr"]


def values_in(path):
    if path.suffix == ".tif":
        with rasterio.open(path) as image:
            return image.read(1)
    with xr.open_dataset(path, engine="zarr" if path.suffix == ".zarr" else "netcdf4") as found:
        return found["values"].values


# Round trip


@given(
    shape=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    chunks=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    suffix=st.sampled_from(FORMATS),
)
@settings(max_examples=25)
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
def test_any_chunks_are_read_as_they_were_written(tmp_path_factory, shape, chunks, suffix):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    path = tmp_path_factory.mktemp("any") / f"scene{suffix}"
    dataset = xr.Dataset({"values": (("y", "x"), da.from_array(values, chunks=chunks))})
    write_dataset(dataset, path)
    found = values_in(path)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, values)
    assert os.listdir(path.parent) == [path.name]


# Refusals


@every_format
def test_an_existing_output_is_refused_and_left_alone(tmp_path, suffix):
    path = tmp_path / f"taken{suffix}"
    path.write_text("mine")
    with pytest.raises(SceneError, match=r"taken\.\w+ exists already\. Remove it"):
        write_dataset(lazy(lambda values, number: values), path)
    assert path.read_text() == "mine"
    assert os.listdir(tmp_path) == [path.name]


@every_format
def test_a_missing_folder_is_refused_and_not_made(tmp_path, suffix):
    with pytest.raises(SceneError, match=r"folder .*nowhere does not exist\. Make it"):
        write_dataset(lazy(lambda values, number: values), tmp_path / "nowhere" / f"a{suffix}")
    assert not os.listdir(tmp_path)


def test_an_unknown_suffix_is_refused(tmp_path):
    with pytest.raises(SceneError, match=r"a\.png cannot be written") as error:
        write_dataset(lazy(lambda values, number: values), tmp_path / "a.png")
    assert all(suffix in str(error.value) for suffix in WRITERS)
    assert not os.listdir(tmp_path)


@every_format
def test_an_empty_dataset_is_refused(tmp_path, suffix):
    with pytest.raises(SceneError, match="no variables"):
        write_dataset(xr.Dataset(), tmp_path / f"scene{suffix}")
    assert not os.listdir(tmp_path)


@files
def test_only_a_zarr_can_be_resumed(tmp_path, suffix):
    with pytest.raises(SceneError, match=r"cannot be resumed: only a \.zarr can"):
        write_dataset(lazy(lambda values, number: values), tmp_path / f"a{suffix}", resume=True)
    assert not os.listdir(tmp_path)


@every_format
def test_a_dataset_that_does_not_fit_on_the_disk_is_refused_before_it_is_computed(
    tmp_path, monkeypatch, suffix
):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=5 * 2**20))
    big = lazy(lambda values, number: values).pad(y=(0, 30_000), mode="edge")
    asked = failing(ValueError("computed"), at=0)
    # 8 bytes for a float64, or 4 for a band, written twice, with overviews of a third.
    needed = asked["values"].size * (8 if suffix != ".tif" else 4 * 7 / 3)
    assert needed < 5 * 2**20 < big["values"].size * 8
    with pytest.raises(SceneError, match=r"needed: 11\.4|needed: 13\.4") as error:
        write_dataset(big, tmp_path / f"scene{suffix}")
    assert "free: 5.0 MiB" in str(error.value)
    assert "another disk" in str(error.value)
    assert not os.listdir(tmp_path)


# Failures


@every_format
@pytest.mark.parametrize("kind", [ValueError, RuntimeError])
def test_a_block_that_fails_leaves_no_output(tmp_path, suffix, kind):
    with dask.config.set(num_workers=1), pytest.raises(kind, match="bad block") as raised:
        write_dataset(failing(kind("bad block"), at=1), tmp_path / f"scene{suffix}")
    assert not left_in(tmp_path)
    notes = "".join(getattr(raised.value, "__notes__", []))
    assert ("resume=True" in notes) == (suffix == ".zarr")


@every_format
def test_blocks_that_still_run_when_one_fails_leave_nothing_behind(tmp_path, suffix):
    def block(values, number):
        if number == 0:
            raise ValueError("bad block")
        time.sleep(0.2)
        return values

    with dask.config.set(num_workers=4), pytest.raises(ValueError, match="bad block"):
        write_dataset(lazy(block).chunk(y=4), tmp_path / f"scene{suffix}")
    time.sleep(0.3)
    assert not os.listdir(tmp_path)


@every_format
def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_no_output(tmp_path, suffix):
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(SceneError, match=rf"scene\{suffix} could not be written: .* full\?"):
        write_dataset(failing(full), tmp_path / f"scene{suffix}")
    assert not left_in(tmp_path)


@every_format
def test_progress_is_what_is_done_of_costly_blocks_and_of_each_under_way(tmp_path, suffix):
    costly = Costly()
    write_dataset(costly.dataset, tmp_path / f"out{suffix}", costly.report)
    # A share of each step of each block: 400, and none goes back.
    assert costly.reports == sorted(costly.reports)
    assert len(set(costly.reports)) >= 400
    assert np.diff([0.0, *costly.reports]).max() <= 0.01


@every_format
def test_an_interrupt_ends_the_blocks_under_way(tmp_path, suffix):
    costly = Costly(seconds=0.01)
    with dask.config.set(num_workers=2), pytest.raises(KeyboardInterrupt):
        write_dataset(costly.dataset, tmp_path / f"out{suffix}", interrupting(0.3))
    assert 120 <= costly.steps < 200


def test_what_an_interrupt_left_is_continued(tmp_path):
    costly = Costly(seconds=0.001)
    with dask.config.set(num_workers=1), pytest.raises(KeyboardInterrupt):
        write_dataset(costly.dataset, tmp_path / "out.zarr", interrupting(0.6))
    before, costly.steps = costly.steps, 0
    write_dataset(costly.dataset, tmp_path / "out.zarr", costly.report, resume=True)
    assert before < 400
    # Two blocks were whole, and only the others are shares of what is left.
    assert costly.steps == 200
    assert costly.reports[-1] == 1.0
    assert costly.reports == sorted(costly.reports)
    with xr.open_zarr(tmp_path / "out.zarr") as written:
        xr.testing.assert_equal(written["doubled"].compute(), costly.dataset["doubled"].compute())


@every_format
def test_an_interrupted_write_leaves_no_output(tmp_path, suffix):
    def interrupt(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dataset(lazy(lambda v, number: v), tmp_path / f"scene{suffix}", interrupt)
    assert not left_in(tmp_path)


@every_format
@pytest.mark.parametrize("how", ["gone", "torn"])
def test_an_input_that_cannot_be_read_is_reported_as_an_input(tmp_path, suffix, how):
    source, output = tmp_path / "source.nc", tmp_path / f"scene{suffix}"
    values = np.random.default_rng(0).normal(size=(400, 50))
    xr.Dataset({"values": (("y", "x"), values)}).to_netcdf(
        source, encoding={"values": {"zlib": True, "chunksizes": (100, 50)}}
    )
    if how == "gone":

        def block(values, number):
            raise FileNotFoundError(errno.ENOENT, "No such file", str(tmp_path / "gone.nc"))

        opened = lazy(block)
    else:
        content = bytearray(source.read_bytes())
        content[-20_000:] = b"\0" * 20_000
        source.write_bytes(content)
        opened = xr.open_dataset(source, chunks={"y": 100})
    with opened, pytest.raises(SceneError, match="one of its inputs cannot be read"):
        write_dataset(opened, output)
    assert not output.exists()


LIMITED = """
import resource, sys
import dask.array as da, numpy as np, xarray as xr
from undulatus.errors import SceneError
from undulatus.scenes.files.writing import write_dataset

def noise(values, block_info=None):
    return np.random.default_rng(0).random(values.shape, np.float32)

values = da.ones((4, 100_000), chunks=(1, 100_000), dtype="f4").map_blocks(noise, dtype="f4")
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
for path in sys.argv[1:]:
    try:
        write_dataset(xr.Dataset({"values": (("y", "x"), values)}), path)
    except SceneError as error:
        print(str(error).replace("\\n", " "))
"""


def test_a_file_larger_than_allowed_is_an_error_and_leaves_nothing_behind(tmp_path):
    paths = [str(tmp_path / f"scene{suffix}") for suffix in FORMATS]
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, check=True
    )
    messages = run.stdout.splitlines()
    assert len(messages) == len(FORMATS)
    for path, line in zip(paths, messages, strict=True):
        assert line.startswith(f"{path} could not be written: ")
        assert line.endswith("Is the disk full?")
    assert not os.listdir(tmp_path)


SLOW = """
import sys, time
import dask.array as da, numpy as np, xarray as xr
from undulatus.scenes.files.writing import write_dataset

def slow(values, block_info=None):
    if block_info and block_info[0]["chunk-location"][0]:
        print("half", flush=True)
        time.sleep(60)
    return values

values = da.ones((2, 9), chunks=(1, 9)).map_blocks(slow, meta=np.empty((0, 0)))
write_dataset(xr.Dataset({"values": (("y", "x"), values)}), sys.argv[1])
"""


@files
def test_a_file_whose_writer_was_killed_can_be_written_anew(tmp_path, suffix):
    path = tmp_path / f"scene{suffix}"
    writer = subprocess.Popen(
        [sys.executable, "-c", SLOW, str(path)], stdout=subprocess.PIPE, text=True
    )
    with writer:
        try:
            assert writer.stdout.readline() == "half\n"
            with pytest.raises(SceneError, match=rf"being written by process {writer.pid} on"):
                write_dataset(lazy(lambda values, number: values), path)
        finally:
            writer.send_signal(signal.SIGKILL)
    assert not path.exists()
    write_dataset(lazy(lambda values, number: values), path)
    assert os.listdir(tmp_path) == [path.name]


MEMORY = """
import resource, sys
import dask, dask.array as da, numpy as np, xarray as xr
from undulatus.scenes.files.writing import write_dataset

def noise(values, block_info=None):
    return np.random.default_rng(0).random(values.shape, np.float32)

def dataset(blocks):
    ones = da.ones((blocks * 200, 4_000), chunks=(200, 4_000), dtype="f4")
    return xr.Dataset({"values": (("y", "x"), ones.map_blocks(noise, dtype="f4"))})

dask.config.set(num_workers=2)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
write_dataset(dataset(2), sys.argv[1] + "/warm" + sys.argv[2])
before = peak()
write_dataset(dataset(30), sys.argv[1] + "/scene" + sys.argv[2])
print(peak() - before)
"""


@pytest.mark.parametrize("suffix", [".zarr", ".tif"])
def test_memory_holds_a_few_blocks_of_many(tmp_path, suffix):
    environment = os.environ | {"GDAL_CACHEMAX": "16"}
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), suffix],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    # 96 MB in blocks of 3 MB; two workers hold a few each, GDAL's cache 16 MB.
    assert int(run.stdout) < 60e6
