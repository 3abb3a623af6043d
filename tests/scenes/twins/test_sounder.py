"""The synthetic sounder: its counts, its physics, its noise, and that any part is the whole's."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.radiometry import blackbody_radiance, brightness_temperature
from undulatus.scenes.spectra import check_spectra, open_spectra
from undulatus.scenes.twins.sounder import (
    BLOCK,
    TRUTH_VARIABLES,
    _draw_state,
    atmosphere,
    strata,
    surface,
    synthetic_sounder,
    transfer,
)
from undulatus.scenes.twins.sounder.atmosphere import HEIGHTS, LAYERS, LEVELS, draw_air
from undulatus.scenes.twins.sounder.gases import ABSORBERS, cross_sections

SAMPLES = 600
WINDOW = (WAVENUMBERS > 880) & (WAVENUMBERS < 980)
CARBON_DIOXIDE = (WAVENUMBERS > 680) & (WAVENUMBERS < 690)


@pytest.fixture(scope="module")
def twin():
    """Six hundred spectra: two whole blocks and a part of one."""
    loaded = synthetic_sounder(SAMPLES).load()
    for array in loaded.data_vars.values():
        array.values.setflags(write=False)
    return loaded


@pytest.fixture(scope="module")
def column():
    """What is seen over one block of samples, without noise."""
    return _draw_state(0, SAMPLES, 0).column


def temperatures(spectra, channels):
    """Mean brightness temperatures of some channels, (samples,)."""
    radiance = spectra[:, channels].astype(float)
    return np.nanmean(brightness_temperature(WAVENUMBERS[channels], radiance), axis=1)


# Counts


COUNTS = {
    "surface_type": (1, [*strata.SURFACE_TYPES.values()]),
    "climate_zone": (1, [7499, 3237, 8150, 2205, 3832]),
    "season": (1, [5862, 6930, 6662, 5469]),
    "cloud_class": (0, [6978, 6480, 6480, 4985]),
}


@pytest.mark.parametrize("name", COUNTS)
def test_the_papers_counts_are_met_exactly(name):
    first, counts = COUNTS[name]
    found = np.bincount(synthetic_sounder()[name], minlength=first + len(counts))[first:]
    assert found.tolist() == counts


def test_the_papers_table_adds_up_and_starts_with_needles():
    assert sum(strata.SURFACE_TYPES.values()) == 24_923
    assert strata.SURFACE_TYPES["water"] == 12_150
    assert list(strata.SURFACE_TYPES).index("water") + 1 == strata.WATER
    assert list(strata.SURFACE_TYPES).index("snow_ice") + 1 == strata.SNOW


@given(st.integers(1, 40_000))
def test_other_numbers_have_the_same_proportions_to_a_sample(samples):
    drawn = strata.draw_strata(samples, 0)
    for name, counts in (
        ("surface_type", strata.SURFACE_TYPES),
        ("climate_zone", strata.CLIMATE_ZONES),
        ("season", strata.SEASONS),
    ):
        due = np.array([*counts.values()]) * samples / 24_923
        found = np.bincount(getattr(drawn, name), minlength=len(counts) + 1)[1:]
        assert found.sum() == samples
        assert (np.abs(found - due) < 1.0).all()


def test_surface_types_are_in_climates_where_they_exist():
    twin = synthetic_sounder()
    kind, zone = twin["surface_type"].values, twin["climate_zone"].values
    share = {
        "snow and tundra, cold or polar": np.isin(zone[np.isin(kind, (15, 18))], (4, 5)),
        "desert, dry": zone[kind == 16] == 2,
        "broad evergreen forest, tropical": zone[kind == 2] == 1,
        "water, in no zone of the land": np.isin(zone[kind == 17], (1, 3, 5)),
    }
    assert {name: bool(found.mean() > 0.85) for name, found in share.items()} == dict.fromkeys(
        share, True
    )


def test_about_half_is_day_and_day_is_where_the_sun_is_up(twin):
    whole = synthetic_sounder()
    assert 0.45 < whole["day"].values.mean() < 0.55
    drawn = strata.draw_strata(SAMPLES, 0)
    assert_array_equal(twin["day"], drawn.solar_zenith_angle < 90.0)


def test_seasons_are_months_and_latitudes_fit_zones(twin):
    months = twin["time"].dt.month.values
    seasons = {1: (3, 4, 5), 2: (6, 7, 8), 3: (9, 10, 11), 4: (12, 1, 2)}
    for season, due in seasons.items():
        assert set(months[twin["season"].values == season]) == set(due)
    tropical = twin["climate_zone"].values == 1
    assert np.abs(twin["latitude"].values[tropical]).max() <= 23.5
    assert np.abs(twin["latitude"].values[twin["climate_zone"].values == 5]).min() >= 62.0


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 30))
def test_joint_counts_have_both_margins(seed, rows, columns):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (rows, columns))
    affinities = rng.random((rows, columns)) * (rng.random((rows, columns)) < 0.7)
    found = strata.joint_counts(affinities, counts.sum(axis=1), counts.sum(axis=0))
    assert_array_equal(found.sum(axis=1), counts.sum(axis=1))
    assert_array_equal(found.sum(axis=0), counts.sum(axis=0))
    assert (found >= 0).all()


# Parts and wholes


@pytest.mark.parametrize("chunk", [100, 256, 600, 4096])
def test_values_do_not_depend_on_chunks(twin, chunk):
    again = synthetic_sounder(SAMPLES, chunk=chunk)
    # One sample of each block, and those at their edges.
    some = [0, 255, 256, 511, 512, 599]
    for name in ("radiance", *TRUTH_VARIABLES):
        assert_array_equal(again[name].isel(sample=some), twin[name].isel(sample=some))


@pytest.mark.parametrize("part", [slice(0, 1), slice(250, 262), slice(590, 600)])
def test_a_part_equals_that_part_of_the_whole_bit_for_bit(twin, part):
    again = synthetic_sounder(SAMPLES, chunk=64)["radiance"].isel(sample=part)
    assert again.values.tobytes() == twin["radiance"].values[part].tobytes()


def test_other_seeds_are_other_spectra(twin):
    other = synthetic_sounder(SAMPLES, seed=1)
    assert not np.array_equal(other["cloud_class"], twin["cloud_class"])
    both = da.stack([synthetic_sounder(20, seed=seed)["radiance"].data for seed in (0, 1)])
    first, second = both.compute()
    assert not np.isclose(first, second).all(axis=1).any()


def test_nothing_is_made_before_it_is_asked_for(monkeypatch):
    def refuse(*given):
        raise AssertionError("made")

    monkeypatch.setattr(transfer, "_in_tile", refuse)
    lazy = synthetic_sounder(1_000)
    assert isinstance(lazy["radiance"].data, da.Array)
    assert lazy["radiance"].dtype == np.float32
    assert lazy["radiance"].chunks[0] == (512, 488)
    with pytest.raises(AssertionError, match="made"):
        lazy["radiance"].isel(sample=0).compute()


def test_what_the_user_changes_is_not_what_is_drawn_next(twin):
    changed = synthetic_sounder(SAMPLES)
    for name in ("noise", "latitude", "surface_type"):
        changed[name].values[:] = 3
        assert_array_equal(synthetic_sounder(SAMPLES)[name], twin[name])


@pytest.mark.parametrize("asked", [{"samples": 0}, {"chunk": 0}, {"seed": -1}])
def test_what_cannot_be_made_is_refused(asked):
    with pytest.raises(InputError, match=r"cannot be made\. Ask for one or more"):
        synthetic_sounder(**asked)


# The contract


def test_the_twin_is_in_order_and_says_that_it_is_a_twin(twin):
    checked = check_spectra(twin)
    assert_array_equal(checked["radiance"], twin["radiance"])
    assert_array_equal(checked["cloudy"], twin["cloud_class"] > 0)
    assert "no satellite took these spectra" in twin.attrs["title"]
    for name in ("cloud_class", "surface_type", "climate_zone", "season", "day"):
        meanings = twin[name].attrs["flag_meanings"].split()
        assert len(meanings) == len(twin[name].attrs["flag_values"])
        assert set(np.unique(twin[name])) <= set(twin[name].attrs["flag_values"].tolist())


def test_the_twin_comes_back_from_zarr_bit_for_bit_and_smaller(tmp_path, twin):
    path = tmp_path / "twin.zarr"
    part = synthetic_sounder(SAMPLES).isel(sample=slice(0, 300))
    write_dataset(part, path)
    found = open_spectra(path)
    assert found["radiance"].chunks[0] == (300,)
    assert_array_equal(found["radiance"], twin["radiance"][:300])
    assert_array_equal(check_spectra(found)["cloud_class"], twin["cloud_class"][:300])
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    # Some 2.3 of 4 bytes are left.
    assert size < 0.65 * 300 * CHANNELS * 4


# Gases and air


def test_bands_are_where_they_are_in_real_spectra(column):
    depth = np.einsum("la,lac->ac", column.columns.mean(axis=0), cross_sections().astype(float))

    def mean(absorber, low, high):
        inside = (low < WAVENUMBERS) & (high > WAVENUMBERS)
        return depth[ABSORBERS.index(absorber), inside].mean()

    for low, high in ((650, 690), (2320, 2370)):
        assert mean("well mixed", low, high) > 4.0
    for low, high in ((800, 950), (1100, 1150), (2400, 2450)):
        assert mean("well mixed", low, high) < 0.3
    assert mean("well mixed", 1300, 1310) > 5 * mean("well mixed", 1180, 1200)
    assert mean("well mixed", 2190, 2250) > 5 * mean("well mixed", 2120, 2160)
    assert mean("ozone", 1020, 1060) > 20 * mean("ozone", 880, 980)
    assert mean("water lines", 1400, 1800) > 50 * mean("water lines", 880, 980)
    assert mean("water lines", 650, 750) > 5 * mean("water lines", 880, 980)
    assert mean("carbon monoxide", 2100, 2180) > 100 * mean("carbon monoxide", 1900, 2000)
    assert mean("water continuum", 800, 850) > mean("water continuum", 1100, 1150)


def test_air_is_coldest_at_the_tropopause_and_wettest_in_the_tropics():
    zone = np.repeat([1, 3, 5], 200)
    ground = np.repeat([300.0, 287.0, 260.0], 200)
    air = draw_air(np.random.default_rng(0), zone, ground, np.zeros(600))
    coldest = HEIGHTS[air.temperature.argmin(axis=1)]
    assert np.median(coldest[:200]) > np.median(coldest[200:400]) > np.median(coldest[400:])
    vapour = air.vapour.reshape(3, 200).mean(axis=1)
    # Tropical, temperate and arctic means, kg m-2, in wide bounds.
    assert (vapour > [30.0, 10.0, 1.0]).all()
    assert (vapour < [60.0, 30.0, 8.0]).all()
    ozone = air.columns[:, :, ABSORBERS.index("ozone")].sum(axis=1) * 1e22 / 2.687e16
    assert (ozone > 180.0).all()
    assert (ozone < 480.0).all()


def test_the_temperature_of_a_height_is_that_of_the_layers_about_it(column):
    air = draw_air(np.random.default_rng(0), np.full(3, 3), np.full(3, 288.0), np.zeros(3))
    layers = np.array([4, 10, LAYERS - 1])
    found = air.temperature_at(HEIGHTS[layers])
    assert_allclose(found, air.temperature[np.arange(3), layers], rtol=1e-12)


# Transfer


def slow_radiance(column, row):
    """The integral in double precision, layer by layer, for one sample."""
    sections, emissivities = cross_sections().astype(float), surface.emissivities().astype(float)
    sun = blackbody_radiance(WAVENUMBERS, np.array(5800.0)) * 6.79e-5 / np.pi
    sun = np.where(WAVENUMBERS >= 2000.0, sun, 0.0) * column.sun_cosine[row]
    depth, above, total, cloud = np.zeros(CHANNELS), np.ones(CHANNELS), 0.0, 0.0
    for layer in range(LAYERS):
        depth = depth + column.columns[row, layer] @ sections[layer]
        below = np.exp(-depth)
        total = total + blackbody_radiance(WAVENUMBERS, column.layers[row, layer]) * (
            above - below
        )
        above = below
        down = sun * np.exp(-depth * column.sun_path[row])
        if layer == column.cloud_layer[row]:
            top = blackbody_radiance(WAVENUMBERS, column.cloud_top[row])
            cloud = total + below * (top + column.cloud_reflectance[row] * down)
    emissivity = column.materials[row] @ emissivities
    sky = (1.0 - above) * blackbody_radiance(WAVENUMBERS, column.air[row]) + down
    ground = emissivity * blackbody_radiance(WAVENUMBERS, column.skin[row])
    total = total + above * (ground + (1.0 - emissivity) * sky)
    return (1.0 - column.cloud_amount[row]) * total + column.cloud_amount[row] * cloud


def test_radiances_are_the_integral_over_the_layers(column):
    found = transfer.radiances(column, surface.emissivities())
    rows = range(0, BLOCK, 16)
    expected = np.array([slow_radiance(column, row) for row in rows])
    # Single precision over 25 layers of up to 150 mW is some 1e-4; noise is 100 times that.
    assert np.abs((found[rows] - expected) / transfer.noise_radiance()).max() < 0.01


def test_plancks_law_is_interpolated_to_a_thousandth_of_the_noise():
    kelvin = np.linspace(170.0, 340.0, 1001)
    nodes = transfer._planck_nodes()[2].astype(float)
    found = transfer.planck_weights(kelvin).astype(float) @ nodes
    exact = blackbody_radiance(WAVENUMBERS, kelvin[:, None])
    # Single-precision weights of up to a few times one: 1e-6 of the hottest, 250 mW.
    assert np.abs((found - exact) / transfer.noise_radiance()).max() < 0.005
    assert_allclose(transfer.planck_weights(kelvin).sum(axis=1), 1.0, rtol=1e-6)


def test_the_window_is_warmer_than_carbon_dioxide_in_clear_warm_scenes(twin):
    clear = (twin["effective_cloud_amount"].values == 0.0) & (twin["climate_zone"].values == 1)
    spectra = twin["radiance"].values[clear]
    assert (temperatures(spectra, WINDOW) > temperatures(spectra, CARBON_DIOXIDE) + 40.0).all()


def test_opaque_channels_do_not_see_the_surface_and_windows_do(column):
    clear = replace(column, cloud_amount=np.zeros(BLOCK))
    warmer = replace(clear, skin=column.skin + 10.0)
    first = transfer.radiances(clear, surface.emissivities())
    second = transfer.radiances(warmer, surface.emissivities())
    seen = temperatures(second, WINDOW) - temperatures(first, WINDOW)
    hidden = temperatures(second, CARBON_DIOXIDE) - temperatures(first, CARBON_DIOXIDE)
    # Of the wettest air, seen aslant, a tenth gets through.
    assert (seen > 0.8).all()
    assert np.median(seen) > 6.0
    assert np.abs(hidden).max() < 0.05


def test_high_cloud_lowers_the_window_and_low_cloud_less(column):
    first = transfer.radiances(
        replace(column, cloud_amount=np.zeros(BLOCK)), surface.emissivities()
    )

    def under(kilometres):
        layer = np.abs(LEVELS[1:] - kilometres).argmin()
        clouded = replace(
            column,
            cloud_amount=np.full(BLOCK, 0.5),
            cloud_layer=np.full(BLOCK, layer),
            cloud_top=column.layers[:, layer],
        )
        spectra = transfer.radiances(clouded, surface.emissivities())
        return temperatures(spectra, WINDOW) - temperatures(first, WINDOW)

    warm = column.skin > 285.0
    assert (under(10.0)[warm] < -15.0).all()
    assert np.median(under(2.0)[warm]) < -2.0
    assert (under(10.0)[warm] < under(2.0)[warm]).all()


def test_overcast_hides_the_surface_altogether(column):
    overcast = replace(column, cloud_amount=np.ones(BLOCK))
    warmer = replace(overcast, skin=column.skin + 20.0)
    first = transfer.radiances(overcast, surface.emissivities())
    second = transfer.radiances(warmer, surface.emissivities())
    # What is left is rounding: total + (cloud - total) in single precision.
    assert_allclose(first, second, atol=1e-4)


def test_the_sun_is_seen_by_day_and_above_2000_per_cm_alone(column):
    dark = replace(column, sun_cosine=np.zeros(BLOCK))
    day = column.sun_cosine > 0.3
    lit = transfer.radiances(column, surface.emissivities())
    unlit = transfer.radiances(dark, surface.emissivities())
    assert_array_equal(lit[:, WAVENUMBERS < 1990.0], unlit[:, WAVENUMBERS < 1990.0])
    assert_array_equal(lit[column.sun_cosine == 0.0], unlit[column.sun_cosine == 0.0])
    short = WAVENUMBERS > 2500.0
    assert (lit[day][:, short].mean(axis=1) > unlit[day][:, short].mean(axis=1)).all()


def test_sand_is_dark_between_1100_and_1250_per_cm():
    emissivity = dict(zip(surface.MATERIALS, surface.emissivities(), strict=True))
    quartz = (WAVENUMBERS > 1100.0) & (WAVENUMBERS < 1220.0)
    assert emissivity["sand"][quartz].max() < 0.82
    assert emissivity["sand"][WINDOW].min() > 0.94
    for name in ("water", "vegetation", "snow"):
        assert emissivity[name][quartz].min() > 0.97


# Clouds


def test_clouds_are_what_their_class_says(twin):
    drawn = synthetic_sounder(4096)
    found, amount = drawn["cloud_class"].values, drawn["effective_cloud_amount"].values
    height = drawn["cloud_top_height"].values
    low, high = (
        (found == atmosphere.LOW) & (amount > 0.0),
        (found == atmosphere.HIGH) & (amount > 0.0),
    )
    assert height[low].min() >= 1.0
    assert height[low].max() <= 3.0
    assert height[high].min() >= 6.0
    assert height[high].max() <= 13.0
    assert amount[low | high].max() <= 0.7
    assert amount[low].min() >= 0.06
    assert amount[high].min() >= 0.02
    assert amount[found == atmosphere.CLOUDY].min() >= 0.35
    assert np.isnan(height[amount == 0.0]).all()


def test_analysts_err_as_often_as_it_is_written():
    drawn = synthetic_sounder(8192)
    found, amount = drawn["cloud_class"].values, drawn["effective_cloud_amount"].values
    clear, partly = found == atmosphere.CLEAR, np.isin(found, (atmosphere.LOW, atmosphere.HIGH))
    assert amount[clear].max() <= atmosphere.MISSED_AMOUNT
    for share, count, due in (
        ((amount[clear] > 0.0).mean(), clear.sum(), atmosphere.MISSED),
        ((amount[partly] == 0.0).mean(), partly.sum(), atmosphere.MISTAKEN),
    ):
        assert abs(share - due) < 5.0 * np.sqrt(due * (1.0 - due) / count)


# The instrument


@pytest.fixture(scope="module")
def noise():
    """Nothing but noise, 400 spectra of it."""
    spectra = np.zeros((400, CHANNELS), np.float32)
    transfer.measure(spectra, np.random.default_rng(0))
    return spectra


def test_the_noise_of_channels_is_what_is_said(noise, twin):
    assert_array_equal(twin["noise"], transfer.noise_radiance())
    ratio = noise.std(axis=0) / transfer.noise_radiance()
    # Of 8461 channels, some 3000 are independent: the mean's error is 1 / sqrt(2 * 400 * 3000).
    assert abs(ratio.mean() - 1.0) < 5.0 / np.sqrt(2 * 400 * 3000) + 1e-3
    # One channel's is 1 / sqrt(2 * 400); of thousands, allow five and a half.
    assert np.abs(ratio - 1.0).max() < 5.5 / np.sqrt(2 * 400)


def test_the_noise_of_neighbours_is_correlated_by_apodisation(noise):
    scaled = noise / transfer.noise_radiance()
    for lag, due in ((1, 0.707), (2, 0.25), (3, 0.044), (6, 0.0), (20, 0.0)):
        found = np.mean(scaled[:, lag:] * scaled[:, :-lag])
        # 400 x 3000 independent products, taps cut at three channels.
        assert abs(found - due) < 5.0 / np.sqrt(400 * 3000) + 2e-3


def test_noise_in_kelvin_has_the_shape_of_iasis():
    kelvin = np.interp([700.0, 1000.0, 1400.0, 2100.0, 2400.0, 2760.0], *transfer.NOISE_KNOTS.T)
    assert (kelvin[:4] < 0.25).all()
    assert kelvin[3] < kelvin[4] < 1.0 < kelvin[5]


def test_radiances_are_rounded_to_steps_below_a_tenth_of_the_noise(twin):
    steps = transfer._steps().astype(float)
    assert (steps < 0.1 * transfer.noise_radiance()).all()
    ratio = twin["radiance"].values[:20].astype(float) / steps
    assert_array_equal(ratio, np.round(ratio))
