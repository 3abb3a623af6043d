"""Maps: lazy, the same for any chunks, with no class where a value is missing, safe from kills."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import xarray.testing.strategies as xrst
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline

from undulatus import RFFGPC, save_model
from undulatus.errors import InputError, SceneError
from undulatus.products import maps
from undulatus.products.maps import MapSummary, map_scene, summarise_map
from undulatus.products.predict import (
    LOW_CONFIDENCE,
    MISSING,
    NEAR_TERMINATOR,
    OUT_OF_RANGE,
    REGIME_SHIFT,
)
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.features import FEATURES, landmark_features
from undulatus.scenes.files.opening import open_map
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.files.zarr_store import verify

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

NAMES = (
    "cloud_mask",
    "cloud_probability",
    "cloud_latent_variance",
    "cloud_training_distance",
    "quality_flag",
)
BANDS = ("IR_087", "IR_108")

MAP_SLOWLY = """
import sys, time
import undulatus.products.maps as maps
from undulatus.cli import main

predict_block = maps.predict_block

def predict_slowly(*given):
    time.sleep(0.15)
    return predict_block(*given)

maps.predict_block = predict_slowly
main({command!r})
"""


@pytest.fixture(scope="module")
def noon(days):
    """Some acquisitions around sunrise and noon of a day, in memory."""
    return days.isel(time=slice(20, 60, 5)).load()


@pytest.fixture(scope="module")
def mapped(model, noon):
    return map_scene(model, noon)


def test_a_map_has_the_documented_names_types_and_coordinates(mapped, noon):
    assert tuple(mapped.data_vars) == NAMES
    floats = [np.float32] * 3
    assert [mapped[name].dtype for name in NAMES] == [np.uint8, *floats, np.uint8]
    for name in NAMES:
        assert mapped[name].dims == ("time", "y", "x")
    for name in ("time", "y", "x", "longitude", "latitude", "spatial_ref"):
        xr.testing.assert_identical(mapped.coords[name].variable, noon.coords[name].variable)


def test_attributes_of_the_scene_are_kept_and_history_grows(model, noon):
    dated = noon.assign_attrs(history="2010-01-01 taken")
    result = map_scene(model, dated)
    assert result.attrs["platform_name"] == "Meteosat-9"
    assert result.attrs["title"] == noon.attrs["title"]
    lines = result.attrs["history"].split("\n")
    assert lines[0] == "2010-01-01 taken"
    assert "RegimeClassifier" in lines[1]


def pixel_table(scene):
    """Return one row per pixel: its features and solar zenith angle."""
    values = landmark_features(scene).values.reshape(-1, len(FEATURES))
    angle = scene["solar_zenith_angle"].values.ravel()
    return pd.DataFrame(values, columns=FEATURES).assign(solar_zenith_angle=angle)


def test_a_map_has_the_predictions_of_the_model_for_a_table(model, noon, mapped):
    table = pixel_table(noon)
    day = (table["solar_zenith_angle"] < 90.0).to_numpy()
    expected = model.predict_proba(table[day])[:, 1]
    # Single precision holds seven digits.
    assert_allclose(mapped["cloud_probability"].values.ravel()[day], expected, atol=1e-6)
    variance = model.latent_mean_and_variance(table[day])[1]
    assert_allclose(
        mapped["cloud_latent_variance"].values.ravel()[day], variance, rtol=1e-4, atol=1e-6
    )
    assert_array_equal(mapped["cloud_mask"].values.ravel()[day], expected > 0.5)


@pytest.fixture(scope="module")
def blended(model):
    """The same model, with regimes blended over four degrees on either side of their edges."""
    return RegimeClassifier.from_fitted(model.estimators_, model.regimes_, blend=4.0)


@pytest.fixture(scope="module")
def dawn(days):
    return days.isel(time=slice(28, 36)).load()


def test_a_map_blends_regimes_as_the_model_does(model, blended, dawn):
    table = pixel_table(dawn)
    probability, variance = blended.predict_proba_and_variance(table)
    result = map_scene(blended, dawn)
    assert_allclose(result["cloud_probability"].values.ravel(), probability[:, 1], atol=1e-6)
    assert_allclose(result["cloud_latent_variance"].values.ravel(), variance, rtol=1e-4, atol=1e-6)
    switched = map_scene(model, dawn)["cloud_probability"]
    assert not np.allclose(result["cloud_probability"], switched)


def test_in_a_blend_a_pixel_that_lacks_features_of_its_own_regime_has_no_class(blended, dawn):
    angle = dawn["solar_zenith_angle"].values
    near_night = (angle >= 86.0) & (angle < 90.0)
    assert near_night.any()
    blind = dawn.assign(VIS006=xr.full_like(dawn["VIS006"], np.nan))
    assert (map_scene(blended, blind)["cloud_mask"].values[near_night] == 255).all()


def test_regimes_of_pipelines_have_the_map_of_their_classifiers(model, noon, mapped):
    pipelines = {name: Pipeline([("only", m)]) for name, m in model.estimators_.items()}
    result = map_scene(RegimeClassifier.from_fitted(pipelines, model.regimes_), noon)
    for name in NAMES:
        assert_array_equal(result[name].values, mapped[name].values)


def test_nothing_is_computed_before_it_is_asked_for(model, days):
    def refuse(*_, **__):
        raise AssertionError("computed")

    # Only a few pixels are read, to check units and ranges.
    lazy = map_scene(model, days)
    assert all(dask.is_dask_collection(lazy[name].data) for name in NAMES)
    with dask.config.set(scheduler=refuse), pytest.raises(AssertionError, match="computed"):
        lazy["cloud_mask"].load()


@pytest.mark.parametrize(("times", "rows", "columns"), [(1, 20, 26), (8, 7, 9), (3, 5, 26)])
def test_chunks_do_not_change_a_map(model, noon, mapped, times, rows, columns):
    cut = map_scene(model, noon.chunk(time=times, y=rows, x=columns))
    for name in NAMES:
        assert_allclose(cut[name].values, mapped[name].values, atol=1e-5)
    assert_array_equal(cut["quality_flag"].values & MISSING, mapped["quality_flag"] & MISSING)


def test_one_acquisition_without_a_time_dimension_has_the_same_map(model, noon, mapped):
    one = map_scene(model, noon.isel(time=3))
    assert one["cloud_mask"].dims == ("y", "x")
    assert_array_equal(one["cloud_mask"].values, mapped["cloud_mask"].isel(time=3).values)


@pytest.mark.parametrize("band", ["VIS006", "IR_108"])
def test_a_pixel_without_a_channel_has_no_class(model, noon, mapped, band):
    broken = noon.copy()
    broken[band] = noon[band].copy()
    broken[band][{"time": -1, "y": 7, "x": 9}] = np.nan
    result = map_scene(model, broken).isel(time=-1)
    assert result["cloud_mask"].values[7, 9] == 255
    assert np.isnan(result["cloud_probability"].values[7, 9])
    assert np.isnan(result["cloud_latent_variance"].values[7, 9])
    assert result["quality_flag"].values[7, 9] & MISSING
    elsewhere = np.ones((20, 26), bool)
    elsewhere[5:10, 7:12] = False
    assert_array_equal(
        result["cloud_probability"].values[elsewhere],
        mapped["cloud_probability"].isel(time=-1).values[elsewhere],
    )


def test_at_night_a_pixel_needs_no_reflectances(model, noon, mapped):
    dark = (noon["solar_zenith_angle"] >= 90.0).values
    assert dark.any()
    assert np.isnan(noon["VIS006"].values[dark]).all()
    assert np.isfinite(mapped["cloud_probability"].values[dark]).all()


def test_a_chunk_of_missing_pixels_has_no_class(model, noon):
    empty = noon.chunk(time=1).copy()
    for band in ("VIS006", "VIS008", "IR_016", "IR_039", "IR_087", "IR_108", "IR_120"):
        empty[band] = empty[band].where(empty["time"] != empty["time"][2])
    result = map_scene(model, empty).isel(time=2)
    assert (result["cloud_mask"] == 255).all()
    assert result["cloud_probability"].isnull().all()


def test_a_pixel_off_the_disc_has_no_class(model, noon):
    scene = noon.drop_vars("solar_zenith_angle").copy()
    scene["longitude"] = scene["longitude"].where(scene["x"] != scene["x"][0], np.inf)
    result = map_scene(model, scene)
    assert (result["cloud_mask"].isel(x=0) == 255).all()
    assert (result["cloud_mask"].isel(x=1) != 255).all()


def test_quality_flags_low_confidence_range_terminator_and_regime(model, noon, mapped):
    quality, probability = mapped["quality_flag"].values, mapped["cloud_probability"].values
    doubt = np.minimum(probability, 1 - probability) > 0.2
    assert_array_equal((quality & LOW_CONFIDENCE) > 0, doubt)
    angle = noon["solar_zenith_angle"].values
    assert_array_equal((quality & NEAR_TERMINATOR) > 0, (angle >= 85.0) & (angle < 95.0))
    assert_array_equal(quality >> REGIME_SHIFT, model.assign(angle) + 1)
    hot = noon.copy()
    hot["IR_108"] = noon["IR_108"] + 100.0
    beyond = map_scene(model, hot, allow_outside=True)["quality_flag"].values
    assert ((beyond & OUT_OF_RANGE) > 0).all()
    assert ((quality & OUT_OF_RANGE) > 0).mean() < 0.5


def test_quality_flags_can_be_read_by_their_attributes(mapped):
    attrs = mapped["quality_flag"].attrs
    assert len(attrs["flag_masks"]) == len(attrs["flag_values"])
    assert attrs["flag_meanings"].split() == [
        "low_confidence",
        "outside_training_range",
        "terminator",
        "missing_channel",
        "regime_high",
        "regime_mid",
        "regime_low",
        "regime_night",
    ]


@pytest.mark.parametrize(("encoding", "cloud"), [("cf", 1), ("pps", 1), ("eumetsat-clm", 2)])
def test_the_mask_has_the_codes_of_the_chosen_encoding(model, noon, mapped, encoding, cloud):
    coded = map_scene(model, noon, encoding=encoding)["cloud_mask"]
    assert_array_equal(coded.values == cloud, mapped["cloud_mask"].values == 1)
    if encoding == "eumetsat-clm":
        land = np.broadcast_to(noon["land_mask"].values == 1, coded.shape)
        clear = mapped["cloud_mask"].values == 0
        assert_array_equal(coded.values[clear & land], 1)
        assert_array_equal(coded.values[clear & ~land], 0)


def test_another_calibration_is_refused_with_its_remedy(model, noon):
    other = noon.assign_attrs(calibration_mode="GSICS")
    with pytest.raises(SceneError, match=r"'GSICS'.*'synthetic'(.|\n)*fit a model on"):
        map_scene(model, other)


def test_a_missing_band_is_named(model, noon):
    with pytest.raises(SceneError, match="missing: IR_016"):
        map_scene(model, noon.drop_vars("IR_016"))


def test_wrong_units_are_refused(model, noon):
    celsius = noon.copy()
    celsius["IR_108"] = (noon["IR_108"] - 273.15).assign_attrs(units="K")
    with pytest.raises(SceneError, match="not kelvin"):
        map_scene(model, celsius)


@pytest.fixture(scope="module")
def plain_table(noon):
    table = pd.DataFrame({name: noon[name].values.ravel() for name in BANDS})
    return table, noon["cloud_truth"].values.ravel()


def test_any_classifier_with_named_bands_makes_maps(noon, plain_table):
    logistic = LogisticRegression(max_iter=5000).fit(*plain_table)
    result = map_scene(logistic, noon)
    expected = logistic.predict_proba(plain_table[0])[:, 1]
    assert_allclose(result["cloud_probability"].values.ravel(), expected, atol=1e-5)
    assert result["cloud_latent_variance"].isnull().all()


def test_one_of_ours_on_bands_gives_variance_too(noon, plain_table):
    ours = RFFGPC(5, n_estimators=1, random_state=0).fit(*plain_table)
    result = map_scene(ours, noon.chunk(time=2))
    _, variance = ours.latent_mean_and_variance(plain_table[0])
    assert_allclose(result["cloud_latent_variance"].values.ravel(), variance, rtol=1e-4)


def test_a_classifier_without_names_is_refused_with_its_remedy(noon, plain_table):
    nameless = LogisticRegression(max_iter=5000).fit(plain_table[0].to_numpy(), plain_table[1])
    with pytest.raises(InputError, match="DataFrame"):
        map_scene(nameless, noon)


def test_bands_that_a_scene_lacks_are_named(noon, plain_table):
    renamed = plain_table[0].rename(columns={"IR_087": "WV_062"})
    with pytest.raises(SceneError, match="missing: WV_062"):
        map_scene(LogisticRegression(max_iter=5000).fit(renamed, plain_table[1]), noon)


@pytest.fixture(scope="module")
def bands():
    """A model of two bands, fitted on noisy labels."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(400, 2)), columns=list(BANDS))
    return RFFGPC(8, n_estimators=1, random_state=0).fit(
        table, table["IR_108"] + rng.normal(size=400) > 0
    )


@st.composite
def images(draw):
    """Two bands of any dims, shape and attributes, with missing values, and sizes of chunks."""
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
    # Of a few pixels, most may happen to lie outside.
    whole = map_scene(bands, image, allow_outside=True)
    cut = map_scene(bands, image.chunk(cuts), allow_outside=True).compute()
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
    """Two workers in processes of their own, restarted when they die."""
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
    # Nothing is read before the map is written.
    write_dataset(map_scene(model, fatal, allow_outside=True), tmp_path / "map.zarr")
    assert os.path.exists(killed)
    assert not verify(tmp_path / "map.zarr")
    with open_map(tmp_path / "map.zarr") as written:
        for name in NAMES:
            assert_array_equal(written[name].values, expected[name].values)


@pytest.mark.slow
def test_a_killed_map_leaves_no_finished_output_and_can_be_resumed(
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
    # Finished chunks are not made again, except those under way when it was killed.
    kept = sum(
        (output / path.relative_to(hidden)).stat().st_mtime_ns == when
        for path, when in finished.items()
    )
    assert kept >= len(finished) - 2
    with open_map(output) as written:
        for name in NAMES:
            assert_array_equal(written[name].values, expected[name].values)


# What is read before a map, and what is said of it after


@pytest.mark.parametrize("counts", [(3, 2), (40,), (30, 30), (2, 500), (12, 9, 11)])
def test_a_few_blocks_are_spread_over_the_whole(counts):
    blocks = np.array(maps._spread_blocks(counts))
    assert len(np.unique(blocks, axis=0)) == len(blocks) <= maps.SAMPLE_BLOCKS
    assert ((blocks >= 0) & (blocks < counts)).all()
    for axis, count in enumerate(counts):
        # No stretch of more than half of the blocks is left out, along any dimension.
        ends = np.concatenate([[-1], np.unique(blocks[:, axis]), [count]])
        assert np.diff(ends).max() <= count // 2 + 1


@pytest.mark.parametrize("chunks", [((480,) * 9, (20,), (26,)), ((999,), (1001,)), ((7,) * 9000,)])
def test_a_sample_has_about_the_pixels_that_were_asked_for(chunks):
    shape = tuple(sum(sizes) for sizes in chunks)
    taken = np.zeros(shape, bool)
    for window in maps._spread_windows(chunks, 5000):
        assert not taken[window].any()
        taken[window] = True
    blocks = min(np.prod([len(sizes) for sizes in chunks]), maps.SAMPLE_BLOCKS)
    largest = blocks * np.prod([max(sizes) for sizes in chunks])
    # Each stride grows by less than half at a time, plus rounding at the ends of short dimensions.
    assert min(5000 / 3, largest) <= taken.sum() <= 5000


def test_a_small_scene_is_its_own_sample():
    assert list(maps._spread_windows(((20, 20), (30,)), 1200)) == [(slice(None),) * 2]


def test_only_a_few_blocks_of_a_large_scene_are_read_before_it_is_mapped(bands):
    read = []

    def values(block_info=None):
        read.append(block_info[None]["chunk-location"])
        return np.zeros((100, 100), np.float32)

    lazy = da.map_blocks(values, chunks=((100,) * 30, (100,) * 30), dtype=np.float32)
    read.clear()
    map_scene(bands, xr.Dataset(dict.fromkeys(BANDS, (("y", "x"), lazy))))
    assert 0 < len(read) <= maps.SAMPLE_BLOCKS


def test_a_summary_counts_the_flags_of_a_map(model, noon):
    broken = noon.copy()
    broken["IR_108"] = noon["IR_108"].where(noon["x"] != noon["x"][0])
    result = map_scene(model, broken)
    quality = result["quality_flag"].values
    mapped = quality[(quality & MISSING) == 0]
    found = summarise_map(result)
    assert found.mapped == mapped.size
    assert found.missing == quality.size - mapped.size > 0
    assert found.low_confidence == np.count_nonzero(mapped & LOW_CONFIDENCE) > 0
    assert found.outside == np.count_nonzero(mapped & OUT_OF_RANGE)
    assert summarise_map(map_scene(model, broken.chunk(time=3))) == found


def test_a_summary_reads_in_one_line_and_survives_an_empty_map():
    assert str(MapSummary(900, 100, 45, 9)) == (
        "900 pixels mapped, 100 missing (10.0%), 45 of low confidence (5.0%), "
        "9 outside what was learned (1.0%)"
    )
    assert str(MapSummary(0, 0, 0, 0)).startswith("0 pixels mapped, 0 missing (0.0%)")
