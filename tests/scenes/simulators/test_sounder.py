"""The sounder simulator: parts equal the whole; its counts, physics and noise."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.datasets import load_iasi_spectra
from undulatus.errors import InputError
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.files.opening import open_spectra
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.radiometry import blackbody_radiance, brightness_temperature
from undulatus.scenes.simulators.sounder import (
    BLOCK,
    TRUTH_VARIABLES,
    _draw_state,
    atmosphere,
    strata,
    surface,
    synthetic_sounder,
    transfer,
)
from undulatus.scenes.simulators.sounder.atmosphere import HEIGHTS, LAYERS, LEVELS, draw_air
from undulatus.scenes.simulators.sounder.gases import ABSORBERS, cross_sections
from undulatus.scenes.spectra import check_spectra

SAMPLES = 600
WINDOW = (WAVENUMBERS > 880) & (WAVENUMBERS < 980)
CARBON_DIOXIDE = (WAVENUMBERS > 680) & (WAVENUMBERS < 690)


@pytest.fixture(scope="module")
def simulator():
    """Six hundred spectra: two whole blocks and part of a third."""
    loaded = synthetic_sounder(SAMPLES).load()
    for array in loaded.data_vars.values():
        array.values.setflags(write=False)
    return loaded


@pytest.fixture(scope="module")
def soundings():
    """One block of samples, without noise."""
    return _draw_state(0, SAMPLES, 0).soundings


def temperatures(spectra, channels):
    """Return the mean brightness temperature of channels, (samples,)."""
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


def test_the_papers_table_of_surface_types_adds_up():
    assert sum(strata.SURFACE_TYPES.values()) == 24_923
    assert strata.SURFACE_TYPES["water"] == 12_150
    assert list(strata.SURFACE_TYPES).index("water") + 1 == strata.WATER
    assert list(strata.SURFACE_TYPES).index("snow_ice") + 1 == strata.SNOW


@given(st.integers(1, 40_000))
def test_other_numbers_have_the_same_proportions_to_within_a_sample(samples):
    drawn = strata.draw_strata(samples, 0)
    for name, counts in (
        ("surface_type", strata.SURFACE_TYPES),
        ("climate_zone", strata.CLIMATE_ZONES),
        ("season", strata.SEASONS),
    ):
        expected = np.array([*counts.values()]) * samples / 24_923
        found = np.bincount(getattr(drawn, name), minlength=len(counts) + 1)[1:]
        assert found.sum() == samples
        assert (np.abs(found - expected) < 1.0).all()


def test_surface_types_are_in_climate_zones_where_they_exist():
    simulator = synthetic_sounder()
    surface_type, zone = simulator["surface_type"].values, simulator["climate_zone"].values
    fitting = {
        "snow and tundra: cold or polar": np.isin(zone[np.isin(surface_type, (15, 18))], (4, 5)),
        "desert: dry": zone[surface_type == 16] == 2,
        "broad evergreen forest: tropical": zone[surface_type == 2] == 1,
        "water: not dry or cold": np.isin(zone[surface_type == 17], (1, 3, 5)),
    }
    assert not [name for name, fits in fitting.items() if fits.mean() <= 0.85]


def test_about_half_is_day_and_day_means_that_the_sun_is_up(simulator):
    whole = synthetic_sounder()
    assert 0.45 < whole["day"].values.mean() < 0.55
    drawn = strata.draw_strata(SAMPLES, 0)
    assert_array_equal(simulator["day"], drawn.solar_zenith_angle < 90.0)


def test_months_fit_seasons_and_latitudes_fit_zones(simulator):
    months = simulator["time"].dt.month.values
    seasons = {1: (3, 4, 5), 2: (6, 7, 8), 3: (9, 10, 11), 4: (12, 1, 2)}
    for season, expected in seasons.items():
        assert set(months[simulator["season"].values == season]) == set(expected)
    tropical = simulator["climate_zone"].values == 1
    assert np.abs(simulator["latitude"].values[tropical]).max() <= 23.5
    assert (
        np.abs(simulator["latitude"].values[simulator["climate_zone"].values == 5]).min() >= 62.0
    )


@given(st.integers(0, 2**32), st.integers(1, 30), st.integers(1, 30))
def test_joint_counts_have_both_margins(seed, rows, columns):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 50, (rows, columns))
    affinities = rng.random((rows, columns)) * (rng.random((rows, columns)) < 0.7)
    found = strata.joint_counts(affinities, counts.sum(axis=1), counts.sum(axis=0))
    assert_array_equal(found.sum(axis=1), counts.sum(axis=1))
    assert_array_equal(found.sum(axis=0), counts.sum(axis=0))
    assert (found >= 0).all()


# Parts and the whole


@pytest.mark.parametrize("chunk", [100, 256, 600, 4096])
def test_values_do_not_depend_on_chunks(simulator, chunk):
    again = synthetic_sounder(SAMPLES, chunk=chunk)
    # Samples on either side of the edges of blocks.
    some = [0, 255, 256, 511, 512, 599]
    for name in ("radiance", *TRUTH_VARIABLES):
        assert_array_equal(again[name].isel(sample=some), simulator[name].isel(sample=some))


@pytest.mark.parametrize("part", [slice(0, 1), slice(250, 262), slice(590, 600)])
def test_a_part_equals_that_part_of_the_whole_bit_for_bit(simulator, part):
    again = synthetic_sounder(SAMPLES, chunk=64)["radiance"].isel(sample=part)
    assert again.values.tobytes() == simulator["radiance"].values[part].tobytes()


def test_another_seed_gives_other_spectra(simulator):
    other = synthetic_sounder(SAMPLES, seed=1)
    assert not np.array_equal(other["cloud_class"], simulator["cloud_class"])
    both = da.stack([synthetic_sounder(20, seed=seed)["radiance"].data for seed in (0, 1)])
    first, second = both.compute()
    assert not np.isclose(first, second).all(axis=1).any()


def test_spectra_are_lazy(monkeypatch):
    def refuse(*given):
        raise AssertionError("computed")

    monkeypatch.setattr(transfer, "_in_tile", refuse)
    lazy = synthetic_sounder(1_000)
    assert isinstance(lazy["radiance"].data, da.Array)
    assert lazy["radiance"].dtype == np.float32
    assert lazy["radiance"].chunks[0] == (512, 488)
    with pytest.raises(AssertionError, match="computed"):
        lazy["radiance"].isel(sample=0).compute()


def test_modifying_a_simulator_does_not_change_the_next_one(simulator):
    changed = synthetic_sounder(SAMPLES)
    for name in ("noise", "latitude", "surface_type"):
        changed[name].values[:] = 3
        assert_array_equal(synthetic_sounder(SAMPLES)[name], simulator[name])


@pytest.mark.parametrize("options", [{"samples": 0}, {"chunk": 0}, {"seed": -1}])
def test_impossible_numbers_are_refused(options):
    with pytest.raises(InputError, match=r"Cannot make .* Request at least one of each"):
        synthetic_sounder(**options)


# The dataset


def test_the_simulator_is_in_standard_form_and_named_as_a_simulator(simulator):
    checked = check_spectra(simulator)
    assert_array_equal(checked["radiance"], simulator["radiance"])
    assert_array_equal(checked["cloudy"], simulator["cloud_class"] > 0)
    assert "no satellite took these spectra" in simulator.attrs["title"]
    for name in ("cloud_class", "surface_type", "climate_zone", "season", "day"):
        meanings = simulator[name].attrs["flag_meanings"].split()
        assert len(meanings) == len(simulator[name].attrs["flag_values"])
        assert set(np.unique(simulator[name])) <= set(
            simulator[name].attrs["flag_values"].tolist()
        )


def test_the_simulator_is_read_back_from_zarr_bit_for_bit_and_is_compressed(tmp_path, simulator):
    path = tmp_path / "simulator.zarr"
    part = synthetic_sounder(SAMPLES).isel(sample=slice(0, 300))
    write_dataset(part, path)
    found = open_spectra(path)
    assert found["radiance"].chunks[0] == (300,)
    assert_array_equal(found["radiance"], simulator["radiance"][:300])
    assert_array_equal(check_spectra(found)["cloud_class"], simulator["cloud_class"][:300])
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    # About 2.3 of 4 bytes are left.
    assert size < 0.65 * 300 * CHANNELS * 4


# Gases and air


def test_absorption_is_strong_where_it_is_in_real_spectra(soundings):
    depth = np.einsum("la,lac->ac", soundings.columns.mean(axis=0), cross_sections().astype(float))

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
    # Wide bounds of tropical, temperate and arctic means, kg m-2.
    assert (vapour > [30.0, 10.0, 1.0]).all()
    assert (vapour < [60.0, 30.0, 8.0]).all()
    ozone = air.columns[:, :, ABSORBERS.index("ozone")].sum(axis=1) * 1e22 / 2.687e16
    assert (ozone > 180.0).all()
    assert (ozone < 480.0).all()


def test_the_temperature_at_the_height_of_a_layer_is_that_of_the_layer():
    air = draw_air(np.random.default_rng(0), np.full(3, 3), np.full(3, 288.0), np.zeros(3))
    layers = np.array([4, 10, LAYERS - 1])
    found = air.temperature_at(HEIGHTS[layers])
    assert_allclose(found, air.temperature[np.arange(3), layers], rtol=1e-12)


# Transfer


def slow_radiance(soundings, row):
    """Return the radiances of one sample by summing layers in double precision."""
    sections, emissivities = cross_sections().astype(float), surface.emissivities().astype(float)
    sun = blackbody_radiance(WAVENUMBERS, np.array(5800.0)) * 6.79e-5 / np.pi
    sun = np.where(WAVENUMBERS >= 2000.0, sun, 0.0) * soundings.sun_cosine[row]
    depth, above, total, cloud = np.zeros(CHANNELS), np.ones(CHANNELS), 0.0, 0.0
    for layer in range(LAYERS):
        depth = depth + soundings.columns[row, layer] @ sections[layer]
        below = np.exp(-depth)
        total = total + blackbody_radiance(WAVENUMBERS, soundings.layers[row, layer]) * (
            above - below
        )
        above = below
        down = sun * np.exp(-depth * soundings.sun_path[row])
        if layer == soundings.cloud_layer[row]:
            top = blackbody_radiance(WAVENUMBERS, soundings.cloud_top[row])
            cloud = total + below * (top + soundings.cloud_reflectance[row] * down)
    emissivity = soundings.materials[row] @ emissivities
    sky = (1.0 - above) * blackbody_radiance(WAVENUMBERS, soundings.air[row]) + down
    ground = emissivity * blackbody_radiance(WAVENUMBERS, soundings.skin[row])
    total = total + above * (ground + (1.0 - emissivity) * sky)
    return (1.0 - soundings.cloud_amount[row]) * total + soundings.cloud_amount[row] * cloud


def test_radiances_agree_with_a_sum_over_layers_in_double_precision(soundings):
    found = transfer.radiances(soundings, surface.emissivities())
    rows = range(0, BLOCK, 16)
    expected = np.array([slow_radiance(soundings, row) for row in rows])
    # Rounding to float32 over 25 layers of up to 150 mW is about 1e-4; noise is 100 times that.
    assert np.abs((found[rows] - expected) / transfer.noise_radiance()).max() < 0.01


def test_plancks_law_is_interpolated_to_well_below_the_noise():
    kelvin = np.linspace(170.0, 340.0, 1001)
    nodes = transfer._planck_nodes()[2].astype(float)
    found = transfer.planck_weights(kelvin).astype(float) @ nodes
    exact = blackbody_radiance(WAVENUMBERS, kelvin[:, None])
    # Weights in float32, up to a few times one: 1e-6 of the largest radiance, 250 mW.
    assert np.abs((found - exact) / transfer.noise_radiance()).max() < 0.005
    assert_allclose(transfer.planck_weights(kelvin).sum(axis=1), 1.0, rtol=1e-6)


def test_the_window_is_warmer_than_carbon_dioxide_in_clear_warm_scenes(simulator):
    clear = (simulator["effective_cloud_amount"].values == 0.0) & (
        simulator["climate_zone"].values == 1
    )
    spectra = simulator["radiance"].values[clear]
    assert (temperatures(spectra, WINDOW) > temperatures(spectra, CARBON_DIOXIDE) + 40.0).all()


def test_opaque_channels_do_not_see_the_surface_and_windows_do(soundings):
    clear = replace(soundings, cloud_amount=np.zeros(BLOCK))
    warmer = replace(clear, skin=soundings.skin + 10.0)
    first = transfer.radiances(clear, surface.emissivities())
    second = transfer.radiances(warmer, surface.emissivities())
    seen = temperatures(second, WINDOW) - temperatures(first, WINDOW)
    hidden = temperatures(second, CARBON_DIOXIDE) - temperatures(first, CARBON_DIOXIDE)
    # The wettest air, on a slant path, still lets a tenth through.
    assert (seen > 0.8).all()
    assert np.median(seen) > 6.0
    assert np.abs(hidden).max() < 0.05


def test_high_cloud_cools_the_window_more_than_low_cloud(soundings):
    first = transfer.radiances(
        replace(soundings, cloud_amount=np.zeros(BLOCK)), surface.emissivities()
    )

    def under(kilometres):
        layer = np.abs(LEVELS[1:] - kilometres).argmin()
        clouded = replace(
            soundings,
            cloud_amount=np.full(BLOCK, 0.5),
            cloud_layer=np.full(BLOCK, layer),
            cloud_top=soundings.layers[:, layer],
        )
        spectra = transfer.radiances(clouded, surface.emissivities())
        return temperatures(spectra, WINDOW) - temperatures(first, WINDOW)

    warm = soundings.skin > 285.0
    assert (under(10.0)[warm] < -15.0).all()
    assert np.median(under(2.0)[warm]) < -2.0
    assert (under(10.0)[warm] < under(2.0)[warm]).all()


def test_overcast_hides_the_surface_completely(soundings):
    overcast = replace(soundings, cloud_amount=np.ones(BLOCK))
    warmer = replace(overcast, skin=soundings.skin + 20.0)
    first = transfer.radiances(overcast, surface.emissivities())
    second = transfer.radiances(warmer, surface.emissivities())
    # The difference is rounding of total + (cloud - total) in single precision.
    assert_allclose(first, second, atol=1e-4)


def test_sunlight_contributes_only_by_day_and_above_2000_per_cm(soundings):
    dark = replace(soundings, sun_cosine=np.zeros(BLOCK))
    day = soundings.sun_cosine > 0.3
    lit = transfer.radiances(soundings, surface.emissivities())
    unlit = transfer.radiances(dark, surface.emissivities())
    assert_array_equal(lit[:, WAVENUMBERS < 1990.0], unlit[:, WAVENUMBERS < 1990.0])
    assert_array_equal(lit[soundings.sun_cosine == 0.0], unlit[soundings.sun_cosine == 0.0])
    short = WAVENUMBERS > 2500.0
    assert (lit[day][:, short].mean(axis=1) > unlit[day][:, short].mean(axis=1)).all()


def test_sand_has_a_low_emissivity_between_1100_and_1250_per_cm():
    emissivity = dict(zip(surface.MATERIALS, surface.emissivities(), strict=True))
    quartz = (WAVENUMBERS > 1100.0) & (WAVENUMBERS < 1220.0)
    assert emissivity["sand"][quartz].max() < 0.82
    assert emissivity["sand"][WINDOW].min() > 0.94
    for name in ("water", "vegetation", "snow"):
        assert emissivity[name][quartz].min() > 0.97


# Clouds


def test_clouds_fit_their_class():
    drawn = synthetic_sounder(4096)
    found, amount = drawn["cloud_class"].values, drawn["effective_cloud_amount"].values
    height = drawn["cloud_top_height"].values
    low = (found == atmosphere.PARTLY_LOW) & (amount > 0.0)
    high = (found == atmosphere.PARTLY_HIGH) & (amount > 0.0)
    assert height[low].min() >= 1.0
    assert height[low].max() <= 3.0
    assert height[high].min() >= 6.0
    assert height[high].max() <= 13.0
    assert amount[low | high].max() <= 0.7
    assert amount[low].min() >= 0.06
    assert amount[high].min() >= 0.02
    assert amount[found == atmosphere.OVERCAST].min() >= 0.35
    assert np.isnan(height[amount == 0.0]).all()


def test_analysts_err_as_often_as_documented():
    drawn = synthetic_sounder(8192)
    found, amount = drawn["cloud_class"].values, drawn["effective_cloud_amount"].values
    clear = found == atmosphere.CLEAR
    partly = np.isin(found, (atmosphere.PARTLY_LOW, atmosphere.PARTLY_HIGH))
    assert amount[clear].max() <= atmosphere.MISSED_AMOUNT
    for share, count, expected in (
        ((amount[clear] > 0.0).mean(), clear.sum(), atmosphere.MISSED),
        ((amount[partly] == 0.0).mean(), partly.sum(), atmosphere.MISTAKEN),
    ):
        assert abs(share - expected) < 5.0 * np.sqrt(expected * (1.0 - expected) / count)


# The instrument


@pytest.fixture(scope="module")
def noise():
    """400 spectra of noise alone."""
    spectra = np.zeros((400, CHANNELS), np.float32)
    transfer.add_noise(spectra, np.random.default_rng(0))
    return spectra


def test_the_noise_of_channels_has_the_stated_deviation(noise, simulator):
    assert_array_equal(simulator["noise"], transfer.noise_radiance())
    ratio = noise.std(axis=0) / transfer.noise_radiance()
    # About 3000 of 8461 channels are independent: the mean's error is 1 / sqrt(2 * 400 * 3000).
    assert abs(ratio.mean() - 1.0) < 5.0 / np.sqrt(2 * 400 * 3000) + 1e-3
    # One channel's error is 1 / sqrt(2 * 400); for thousands of channels, allow 5.5 of them.
    assert np.abs(ratio - 1.0).max() < 5.5 / np.sqrt(2 * 400)


def test_the_noise_of_neighbours_is_correlated_by_apodisation(noise):
    scaled = noise / transfer.noise_radiance()
    for lag, expected in ((1, 0.707), (2, 0.25), (3, 0.044), (6, 0.0), (20, 0.0)):
        found = np.mean(scaled[:, lag:] * scaled[:, :-lag])
        # 400 x 3000 independent products; the filter is cut off at three channels.
        assert abs(found - expected) < 5.0 / np.sqrt(400 * 3000) + 2e-3


def test_noise_in_kelvin_has_the_shape_of_iasis():
    kelvin = np.interp([700.0, 1000.0, 1400.0, 2100.0, 2400.0, 2760.0], *transfer.NOISE_KNOTS.T)
    assert (kelvin[:4] < 0.25).all()
    assert kelvin[3] < kelvin[4] < 1.0 < kelvin[5]


def test_each_detector_begins_with_less_noise_than_the_one_before_it_ends_with():
    end, begin = (np.interp(at, *transfer.NOISE_KNOTS.T) for at in ((1150, 1940), (1210, 2025)))
    assert (end > 3.0 * begin).all()


@pytest.mark.network
def test_the_noise_is_that_of_real_spectra_to_a_tenth(fetched):
    pytest.importorskip("eccodes")
    path = fetched(load_iasi_spectra).iasi
    spectra = check_spectra(open_spectra(path))["radiance"].values.astype(float)
    scaled = spectra / transfer.noise_radiance()
    centred = scaled - scaled.mean(axis=0)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    rest = centred - (left[:, :10] * values[:10]) @ right[:10]
    # 109 degrees of freedom, and means over 40 channels, of which about 15 are independent.
    means = (rest**2).sum(axis=0)[:8440].reshape(-1, 40).mean(axis=1) / 109
    assert np.quantile(np.abs(np.sqrt(means) - 1.0), 0.95) < 0.1


def test_radiances_are_rounded_to_steps_below_a_third_of_the_noise(simulator):
    steps = transfer._steps().astype(float)
    assert (3.0 * steps < transfer.noise_radiance()).all()
    ratio = simulator["radiance"].values[:20].astype(float) / steps
    assert_array_equal(ratio, np.round(ratio))
