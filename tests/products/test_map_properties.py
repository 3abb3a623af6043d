"""Maps of any scene: the same in any chunks, and what is missing stays missing.

``pytest tests/products/test_map_properties.py --hypothesis-profile search`` tries thousands.
"""

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import RFFGPC
from undulatus.products import map_scene
from undulatus.products.predict import MISSING, REGIME_SHIFT
from undulatus.regimes import Regime, RegimeClassifier

BANDS = ("B02", "B03", "B08")

TYPES = ("float64", "float32", "float16", ">f4", "int16", "uint8", "int64")

seeds = st.integers(0, 2**32 - 1)


def fit(columns, classes):
    rng = np.random.default_rng(len(classes))
    table = pd.DataFrame(50.0 + 30.0 * rng.normal(size=(90, len(columns))), columns=columns)
    labels = np.array(classes)[np.digitize(table.iloc[:, 0], [35.0, 65.0][: len(classes) - 1])]
    return RFFGPC(3, n_estimators=1, random_state=0).fit(table, labels)


@pytest.fixture(scope="module")
def models():
    """A model of two classes, one of three, and one of regimes of which the last lacks a band."""
    two, three = fit(BANDS, (0, 1)), fit(BANDS, ("field", "forest", "water"))
    regimes = (Regime("day", 0.0, 80.0, BANDS), Regime("night", 80.0, 120.0, BANDS[:2]))
    parts = {"day": two, "night": fit(BANDS[:2], (0, 1))}
    return {
        "two": two,
        "three": three,
        "regimes": RegimeClassifier.from_fitted(parts, regimes),
        "blended": RegimeClassifier.from_fitted(parts, regimes, blend=5.0),
    }


@st.composite
def images(draw):
    """Scenes of any size and type: times or none, values that are missing in any pattern."""
    rng = np.random.default_rng(draw(seeds))
    sizes = {"y": draw(st.integers(0, 9)), "x": draw(st.integers(1, 9))}
    if draw(st.booleans()):
        sizes = {"time": draw(st.integers(1, 4)), **sizes}
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    share, odd = draw(st.sampled_from([0.0, 0.1, 0.9, 1.0])), [np.nan, np.inf, -np.inf, 1e30]
    bands = {}
    for name in BANDS:
        values = np.clip(50.0 + 30.0 * rng.normal(size=tuple(sizes.values())), 0.0, 120.0)
        if dtype.kind == "f":
            with np.errstate(over="ignore"):
                lost = rng.choice(odd, values.shape).astype(dtype)
            values = np.where(rng.random(values.shape) < share, lost, values.astype(dtype))
        bands[name] = (tuple(sizes), values.astype(dtype))
    sun = rng.uniform(-10.0, 130.0, tuple(sizes.values()))
    bands["solar_zenith_angle"] = (
        tuple(sizes),
        np.where(rng.random(sun.shape) < 0.1, np.nan, sun),
    )
    scene = xr.Dataset(bands, {dim: np.arange(size) for dim, size in sizes.items()})
    if "time" in sizes:
        hours = draw(st.lists(st.integers(-(10**6), 10**6), min_size=sizes["time"], max_size=4))
        moments = np.array(hours[: sizes["time"]], "M8[h]").astype("M8[ns]")
        scene = scene.assign_coords(time=moments)
    return scene


def in_chunks(scene, draw):
    """Return a scene in chunks of any sizes, other ones for each band if it has some."""
    return scene.map(
        lambda band: band.chunk(
            {dim: draw(st.integers(1, max(size, 1))) for dim, size in band.sizes.items()}
        )
    )


def complete(model, scene):
    """Return which pixels have all that the model needs, by what the scene says of each."""
    usable = {
        name: np.isfinite(scene[name].values) & (np.abs(scene[name].values.astype(float)) < 1e15)
        for name in BANDS
    }
    every = usable["B02"] & usable["B03"]
    if not isinstance(model, RegimeClassifier):
        return every & usable["B08"]
    sun = scene["solar_zenith_angle"].values
    day, night = (sun >= 0.0) & (sun < 80.0), (sun >= 80.0) & (sun < 120.0)
    return (day & every & usable["B08"]) | (night & every)


@given(images(), st.sampled_from(["two", "three", "regimes", "blended"]), st.data())
def test_a_map_in_any_chunks_is_that_in_one_and_what_is_missing_stays_so(
    models, scene, name, data
):
    model = models[name]
    whole = map_scene(model, scene, allow_outside=True)
    with dask.config.set(scheduler="synchronous"):
        chunked = map_scene(model, in_chunks(scene, data.draw), allow_outside=True).compute()
    assert set(whole.data_vars) == set(chunked.data_vars)
    codes = "class" if name == "three" else "cloud_mask"
    for layer in whole.data_vars:
        assert whole[layer].dtype == chunked[layer].dtype
        # Sums of other blocks differ by rounding in single precision.
        assert_allclose(
            chunked[layer].astype(float), whole[layer].astype(float), rtol=1e-5, atol=1e-5
        )
    there = complete(model, scene)
    quality = whole["quality_flag"].values
    assert_array_equal((quality & MISSING) == 0, there)
    assert_array_equal(whole[codes].values != 255, there)
    probability = whole["class_probability" if name == "three" else "cloud_probability"]
    found = (
        np.isfinite(probability).all("class_name") if name == "three" else np.isfinite(probability)
    )
    assert_array_equal(found.values, there)
    if name == "regimes":
        assert_array_equal(quality >> REGIME_SHIFT, model.assign(scene["solar_zenith_angle"]) + 1)


@given(images(), st.sampled_from(["two", "three", "regimes"]), seeds)
def test_a_mask_takes_its_pixels_away_and_changes_no_others(models, scene, name, seed):
    rng = np.random.default_rng(seed)
    mask = xr.zeros_like(scene["B02"], dtype=bool)
    mask.values[...] = rng.random(mask.shape) < 0.5
    model = models[name]
    without = map_scene(model, scene, allow_outside=True)
    masked = map_scene(model, scene, mask=mask, allow_outside=True)
    lost = (masked["quality_flag"].values & MISSING) > 0
    expected = ((without["quality_flag"].values & MISSING) > 0) | mask.values
    assert_array_equal(lost, expected)
    codes = "class" if name == "three" else "cloud_mask"
    assert_array_equal(masked[codes].values[~lost], without[codes].values[~lost])
