"""The twin: any part of it is that part of the whole, and it has the faults it says it has."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from undulatus.errors import InputError
from undulatus.scenes.illumination import solar_zenith_angle
from undulatus.scenes.pixels import near_coast
from undulatus.scenes.scene import BANDS, REFLECTANCE, check_scene
from undulatus.scenes.stores import open_scene, write_dataset
from undulatus.scenes.synthetic_landmark import synthetic_landmark

REFLECTANCES = [name for name, band in BANDS.items() if band.quantity == REFLECTANCE]
THERMAL = [name for name in BANDS if name not in REFLECTANCES]
LAYERS = [*BANDS, "solar_zenith_angle", "cloud_mask_l2", "cloud_truth"]
FIRST, DAYS = 100, 3


@pytest.fixture(scope="module")
def whole():
    """Three days in April, made as one block."""
    return synthetic_landmark(DAYS, first_day=FIRST, chunk_days=DAYS).load()


@pytest.fixture(scope="module")
def year():
    """A day of every second month, in memory."""
    parts = [synthetic_landmark(1, first_day=day) for day in range(10, 365, 60)]
    return xr.concat(
        parts, "time", data_vars="minimal", coords="minimal", compat="override"
    ).load()


def same(part, of):
    for name in LAYERS:
        assert_array_equal(part[name].values, of[name].values, err_msg=name)
    assert_array_equal(part["time"], of["time"])


# Parts and the whole


@pytest.mark.parametrize("chunk_days", [1, 2, 5])
def test_the_chunks_do_not_change_a_bit(whole, chunk_days):
    scene = synthetic_landmark(DAYS, first_day=FIRST, chunk_days=chunk_days)
    sizes = [96 * n for n in {1: [1, 1, 1], 2: [2, 1], 5: [3]}[chunk_days]]
    assert scene.chunksizes["time"] == tuple(sizes)
    same(scene.compute(), whole)


@settings(max_examples=4)
@given(st.data())
def test_any_days_alone_are_those_days_of_the_whole(whole, data):
    start = data.draw(st.integers(0, DAYS - 1))
    count = data.draw(st.integers(1, DAYS - start))
    alone = synthetic_landmark(count, first_day=FIRST + start)
    days = slice(96 * start, 96 * (start + count))
    same(alone.compute(), whole.isel(time=days))


def test_a_few_pixels_and_times_alone_are_those_of_the_whole(whole):
    place = {"time": slice(130, 140), "y": slice(3, 5), "x": [0, 25]}
    part = synthetic_landmark(DAYS, first_day=FIRST, chunk_days=1).isel(place).compute()
    same(part, whole.isel(place))


def test_the_threads_that_make_it_do_not_change_a_bit(whole):
    with dask.config.set(scheduler="synchronous"):
        alone = synthetic_landmark(1, first_day=FIRST).compute()
    same(alone, whole.isel(time=slice(96)))


def test_the_same_seed_is_the_same_year_and_another_is_another(whole):
    again, other = (synthetic_landmark(1, first_day=FIRST, seed=seed) for seed in (0, 1))
    first = whole.isel(time=slice(96))
    same(again.compute(), first)
    other = other.compute()
    assert_array_equal(other["solar_zenith_angle"], first["solar_zenith_angle"])
    assert_array_equal(other["land_mask"], first["land_mask"])
    for name in (*THERMAL, "cloud_mask_l2", "cloud_truth"):
        assert (other[name] != first[name]).mean() > 0.01, name


def test_days_of_one_seed_differ(whole):
    for name in THERMAL:
        first, second = (whole[name][96 * day : 96 * (day + 1)].values for day in (0, 1))
        assert (first != second).mean() > 0.9


@pytest.mark.parametrize(
    "asked",
    [
        {"days": 0},
        {"days": -1},
        {"days": 366},
        {"days": 2, "first_day": 364},
        {"first_day": -1, "days": 1},
        {"days": 1, "chunk_days": 0},
    ],
)
def test_days_that_are_not_in_the_year_are_refused(asked):
    with pytest.raises(InputError, match="days 0 to 364"):
        synthetic_landmark(**asked)


# What it is


def test_a_year_is_35040_acquisitions_of_20_by_26_pixels_and_none_is_made_yet():
    scene = synthetic_landmark()
    assert dict(scene.sizes) == {"time": 35_040, "y": 20, "x": 26}
    assert scene["time"].values[0] == np.datetime64("2010-01-01T00:00")
    assert scene["time"].values[-1] == np.datetime64("2010-12-31T23:45")
    assert set(np.diff(scene["time"].values)) == {np.timedelta64(15, "m")}
    assert all(isinstance(scene[name].data, da.Array) for name in LAYERS)


def test_names_types_and_attributes_are_those_of_a_scene(whole):
    for name, band in BANDS.items():
        assert whole[name].dtype == np.float32
        assert whole[name].attrs["units"] == band.units
        assert whole[name].dims == ("time", "y", "x")
    for name in ("cloud_mask_l2", "cloud_truth", "land_mask"):
        assert whole[name].dtype == np.uint8
        assert set(np.unique(whole[name])) == {0, 1}
        assert_array_equal(whole[name].attrs["flag_values"], [0, 1])
    assert "twin" in whole.attrs["title"]
    assert whole.attrs["source"].endswith("seed 0")
    assert whole["spatial_ref"].attrs["grid_mapping_name"] == "geostationary"


def test_it_passes_the_check_of_scenes_and_is_not_changed_by_it(whole):
    checked = check_scene(whole)
    for name in THERMAL:
        assert_array_equal(checked[name], whole[name])
    # Angles are rounded to 0.01°: one just below 90 may read 90, and is night to the check.
    lit = whole["solar_zenith_angle"] < 90.0
    for name in REFLECTANCES:
        assert_array_equal(checked[name], whole[name].where(lit))
        assert np.isfinite(whole[name].where(lit, 0.0)).all()
        assert np.isnan(whole[name].where(whole["solar_zenith_angle"] > 90.0)).all()
        assert_array_equal(np.isnan(checked[name]), ~lit)


def test_the_sun_stands_where_time_and_place_put_it(whole):
    computed = solar_zenith_angle(whole["time"], whole["longitude"], whole["latitude"])
    # Rounded to 0.01, and by two formulas of pyorbital's that agree to single precision.
    gap = np.abs(computed.transpose("time", "y", "x") - whole["solar_zenith_angle"])
    assert gap.max() < 0.0051


def test_values_are_those_of_the_earth(year):
    for name in THERMAL:
        assert year[name].min() >= 180.0
        assert year[name].max() <= 340.0
    for name in REFLECTANCES:
        lit = year[name].values[year["solar_zenith_angle"].values < 80.0]
        assert lit.min() > -2.0  # noise
        assert lit.max() < 110.0
    assert year["solar_zenith_angle"].min() >= 0.0
    assert year["solar_zenith_angle"].max() <= 180.0


# On disk


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
def test_two_bytes_a_value_lose_nothing(tmp_path, whole, suffix):
    scene = whole.isel(time=slice(20, 80))
    write_dataset(scene, tmp_path / f"twin{suffix}")
    with open_scene(tmp_path / f"twin{suffix}") as found:
        for name in (*BANDS, "solar_zenith_angle"):
            assert found[name].encoding["dtype"].itemsize == 2
            assert_array_equal(found[name].values.astype(np.float32), scene[name].values)
        for name in ("cloud_mask_l2", "cloud_truth", "land_mask"):
            assert_array_equal(found[name].values.astype(np.uint8), scene[name].values)


def test_the_hottest_pixel_of_many_years_fits_in_two_bytes(tmp_path):
    # Day 197 of seed 46 reaches 328.4 K at 3.9 µm, beyond 2^15 hundredths.
    hot = synthetic_landmark(1, first_day=197, seed=46).isel(time=slice(48, 60)).load()
    assert hot["IR_039"].max() > 327.68
    write_dataset(hot, tmp_path / "hot.zarr")
    found = open_scene(tmp_path / "hot.zarr")["IR_039"].values.astype(np.float32)
    assert_array_equal(found, hot["IR_039"].values)


# Truth and Level 2


@pytest.fixture(scope="module")
def masks(year):
    """Truth, Level 2, angles, coast and land of the sample of the year, (time, y, x)."""
    land = year["land_mask"].values == 1
    return {
        "truth": year["cloud_truth"].values == 1,
        "level2": year["cloud_mask_l2"].values == 1,
        "angle": year["solar_zenith_angle"].values,
        "coast": np.broadcast_to(near_coast(land, 1), year["cloud_truth"].shape),
        "land": np.broadcast_to(land, year["cloud_truth"].shape),
    }


def test_a_third_of_the_pixels_is_cloudy_and_more_of_the_sea_than_of_the_land(masks):
    truth, land = masks["truth"], masks["land"]
    assert 0.15 < truth.mean() < 0.55
    assert truth[~land].mean() > truth[land].mean()


def test_level_2_agrees_with_the_truth_mostly_but_not_always(masks):
    agreement = (masks["truth"] == masks["level2"]).mean()
    assert 0.8 < agreement < 0.98


def test_level_2_is_worst_at_the_coast_by_day_where_it_sees_clouds_that_are_none(masks):
    wrong = masks["truth"] != masks["level2"]
    day = masks["angle"] < 80.0
    at_coast, away = day & masks["coast"], day & ~masks["coast"]
    assert wrong[at_coast].mean() > 2.0 * wrong[away].mean()
    false = masks["level2"] & ~masks["truth"]
    assert false[at_coast].mean() > 2.0 * false[away].mean()


def test_level_2_misses_more_cloud_at_night_than_by_day(masks):
    missed = ~masks["level2"]
    night, day = masks["angle"] >= 90.0, masks["angle"] < 80.0
    assert missed[masks["truth"] & night].mean() > 2.0 * missed[masks["truth"] & day].mean()


def test_clear_sea_is_darker_than_desert_by_day_and_its_temperature_steadier(year, masks):
    clear = ~masks["truth"] & ~masks["coast"]
    noon, land = clear & (masks["angle"] < 50.0), masks["land"]
    for name in REFLECTANCES:
        values = year[name].values
        # But for a hundredth of glint and dust on one side, and of shadow on the other.
        assert np.quantile(values[noon & ~land], 0.99) < np.quantile(values[noon & land], 0.01)
    heat = year["IR_108"].values
    assert heat[clear & ~land].std() < heat[clear & land].std()


def test_cloud_is_brighter_and_colder_than_clear_sky(year, masks):
    sea, noon = ~masks["land"] & ~masks["coast"], masks["angle"] < 50.0
    truth = masks["truth"]
    visible, heat = year["VIS006"].values, year["IR_108"].values
    assert visible[sea & noon & truth].mean() > 2.0 * visible[sea & noon & ~truth].mean()
    assert heat[sea & truth].mean() < heat[sea & ~truth].mean() - 5.0
