"""Maps are the same however they are cut, on whatever they run, and whoever is killed."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import xarray.testing.strategies as xrst
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import RFFGPC, save_model
from undulatus.products.maps import map_scene
from undulatus.scenes.stores import open_map, verify, write_dataset

NAMES = ("cloud_mask", "cloud_probability", "cloud_latent_variance", "quality_flag")
BANDS = ("IR_087", "IR_108")


@pytest.fixture(scope="module")
def bands():
    """A model of two bands, fitted on rows that are hard to tell apart."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(400, 2)), columns=list(BANDS))
    return RFFGPC(8, random_state=0).fit(table, table["IR_108"] + rng.normal(size=400) > 0)


@st.composite
def images(draw):
    """Two bands of any dims, shape and attributes, with missing values, and a way to cut them."""
    dims = draw(xrst.dimension_names(min_dims=1, max_dims=3))
    shape = [draw(st.integers(1, 9)) for _ in dims]
    attrs = draw(xrst.attrs())
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    values = rng.normal(size=(2, *shape)).astype(np.float32)
    values[:, rng.random(shape) < 0.2] = np.nan
    coords = {dim: np.arange(size) for dim, size in zip(dims, shape, strict=True)}
    image = xr.Dataset(
        {name: (dims, value) for name, value in zip(BANDS, values, strict=True)}, coords, attrs
    )
    cuts = {dim: draw(st.integers(1, size)) for dim, size in zip(dims, shape, strict=True)}
    return image, cuts


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(images())
def test_any_dims_chunks_and_attributes_give_the_same_map_and_are_kept(bands, given_image):
    image, cuts = given_image
    whole, cut = map_scene(bands, image), map_scene(bands, image.chunk(cuts)).compute()
    missing = np.isnan(image["IR_108"].values)
    for name in NAMES:
        assert cut[name].dims == image["IR_108"].dims
        assert_allclose(cut[name].values, whole[name].values, atol=1e-6)
    assert_array_equal(cut["cloud_mask"].values == 255, missing)
    for key in set(image.attrs) - {"history", "Conventions"}:
        assert key in cut.attrs
    xr.testing.assert_identical(
        cut.coords.to_dataset().drop_attrs(), image.coords.to_dataset().drop_attrs()
    )


@pytest.fixture
def cluster():
    """Two workers in processes of their own, which are started again when they die."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as made,
        Client(made),
    ):
        yield


@pytest.fixture(scope="module")
def expected(model, days):
    return map_scene(model, days.compute(scheduler="threads"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_killed_in_the_middle_of_a_map_costs_a_retry(
    model, days, expected, cluster, tmp_path
):
    killed = str(tmp_path / "killed")

    def kill_once(values, block_info=None):
        if block_info and block_info[0]["chunk-location"][0] == 1:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)
        return values

    fatal = days.copy()
    fatal["IR_108"] = days["IR_108"].copy(
        data=days["IR_108"].data.map_blocks(kill_once, dtype=np.float32)
    )
    write_dataset(map_scene(model, fatal), tmp_path / "map.zarr")
    assert os.path.exists(killed)
    assert not verify(tmp_path / "map.zarr")
    with open_map(tmp_path / "map.zarr") as written:
        for name in NAMES:
            assert_array_equal(written[name].values, expected[name].values)


MAP_SLOWLY = """
import sys, time
import undulatus.products.maps as maps
from undulatus.cli import main

judge = maps.judge

def judge_slowly(*given):
    time.sleep(0.15)
    return judge(*given)

maps.judge = judge_slowly
main({command!r})
"""


@pytest.mark.slow
def test_a_killed_map_leaves_nothing_that_looks_finished_and_goes_on(
    model, days, expected, tmp_path
):
    days.chunk(time=12).to_zarr(tmp_path / "days.zarr", consolidated=False)
    save_model(model, tmp_path / "model.undulatus")
    output = tmp_path / "map.zarr"
    paths = [str(tmp_path / name) for name in ("model.undulatus", "days.zarr")]
    command = ["map", *paths, "-o", str(output)]
    run = subprocess.Popen(
        [sys.executable, "-c", MAP_SLOWLY.format(command=command)],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    chunks = "cloud_probability/c/*/*/*"
    hidden = tmp_path / ".map.unfinished.zarr"
    while run.poll() is None and len(list(hidden.glob(chunks))) < 5:
        time.sleep(0.02)
    run.kill()
    run.wait()
    assert not output.exists()
    finished = {path: path.stat().st_mtime_ns for path in hidden.glob(chunks)}
    assert finished
    code = f"from undulatus.cli import main\nmain({[*command, '--resume']!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not verify(output)
    # What was finished was not made again, but for what was under way when it was killed.
    kept = sum(
        (output / path.relative_to(hidden)).stat().st_mtime_ns == when
        for path, when in finished.items()
    )
    assert kept >= len(finished) - 2
    with open_map(output) as written:
        for name in NAMES:
            assert_array_equal(written[name].values, expected[name].values)
