"""The landmark simulator: parts equal the whole, and the mask has the faults of a real one."""

from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from pyproj import Geod

from undulatus.errors import InputError
from undulatus.scenes.files.opening import open_scene
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.illumination import solar_zenith_angle
from undulatus.scenes.radiometry import DEFAULT_PLATFORM, SOLAR_RADIANCE_39, THERMAL_BANDS
from undulatus.scenes.sampling import near_coast
from undulatus.scenes.scene import BANDS, REFLECTANCE, check_scene
from undulatus.scenes.simulators.landmark import synthetic_landmark
from undulatus.scenes.simulators.landmark.level2 import _atlas
from undulatus.scenes.simulators.landmark.radiation import (
    EMISSION,
    NEAR,
    SOLAR,
    SOLAR_NOISE,
    VIEW,
    solar_channels,
    thermal_channels,
)
from undulatus.scenes.simulators.landmark.weather import (
    CENTRE,
    CLOUD_DEPTH,
    COLUMNS,
    LAPSE,
    PIXEL,
    ROWS,
    VIEW_AZIMUTH,
    VIEW_ZENITH,
    Layer,
    Place,
    Sun,
    Weather,
    draw_climate,
    landmark_place,
    sun_over,
)

REFLECTANCES = [name for name, band in BANDS.items() if band.quantity == REFLECTANCE]

THERMAL = [name for name in BANDS if name not in REFLECTANCES]

VARIABLES = [*BANDS, "solar_zenith_angle", "cloud_mask_l2", "cloud_truth"]

FIRST_DAY, DAYS = 100, 3


@pytest.fixture(scope="module")
def whole():
    """Three days in April, computed as one block."""
    return synthetic_landmark(DAYS, first_day=FIRST_DAY, chunk_days=DAYS).load()


@pytest.fixture(scope="module")
def year():
    """A day of every second month, in memory."""
    parts = [synthetic_landmark(1, first_day=day) for day in range(10, 365, 60)]
    return xr.concat(
        parts, "time", data_vars="minimal", coords="minimal", compat="override"
    ).load()


def assert_same(part, of):
    for name in VARIABLES:
        assert_array_equal(part[name].values, of[name].values, err_msg=name)
    assert_array_equal(part["time"], of["time"])


# Parts and the whole


@pytest.mark.parametrize("chunk_days", [1, 2, 5])
def test_values_do_not_depend_on_chunks(whole, chunk_days):
    scene = synthetic_landmark(DAYS, first_day=FIRST_DAY, chunk_days=chunk_days)
    sizes = [96 * n for n in {1: [1, 1, 1], 2: [2, 1], 5: [3]}[chunk_days]]
    assert scene.chunksizes["time"] == tuple(sizes)
    assert_same(scene.compute(), whole)


@settings(max_examples=4)
@given(st.data())
def test_days_computed_alone_equal_those_of_the_whole(whole, data):
    start = data.draw(st.integers(0, DAYS - 1))
    count = data.draw(st.integers(1, DAYS - start))
    alone = synthetic_landmark(count, first_day=FIRST_DAY + start)
    days = slice(96 * start, 96 * (start + count))
    assert_same(alone.compute(), whole.isel(time=days))


def test_pixels_and_times_computed_alone_equal_those_of_the_whole(whole):
    window = {"time": slice(130, 140), "y": slice(3, 5), "x": [0, 25]}
    part = synthetic_landmark(DAYS, first_day=FIRST_DAY, chunk_days=1).isel(window).compute()
    assert_same(part, whole.isel(window))


def test_values_do_not_depend_on_threads(whole):
    with dask.config.set(scheduler="synchronous"):
        alone = synthetic_landmark(1, first_day=FIRST_DAY).compute()
    assert_same(alone, whole.isel(time=slice(96)))


def test_the_seed_determines_the_weather_but_not_sun_and_land(whole):
    again, other = (synthetic_landmark(1, first_day=FIRST_DAY, seed=seed) for seed in (0, 1))
    first = whole.isel(time=slice(96))
    assert_same(again.compute(), first)
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
    "options",
    [
        {"days": 0},
        {"days": -1},
        {"days": 366},
        {"days": 2, "first_day": 364},
        {"first_day": -1, "days": 1},
        {"days": 1, "chunk_days": 0},
    ],
)
def test_days_outside_the_year_are_refused(options):
    with pytest.raises(InputError, match="days 0 to 364"):
        synthetic_landmark(**options)


# The scene


def test_a_year_is_35040_lazy_acquisitions_of_20_by_26_pixels():
    scene = synthetic_landmark()
    assert dict(scene.sizes) == {"time": 35_040, "y": 20, "x": 26}
    assert scene["time"].values[0] == np.datetime64("2010-01-01T00:00")
    assert scene["time"].values[-1] == np.datetime64("2010-12-31T23:45")
    assert set(np.diff(scene["time"].values)) == {np.timedelta64(15, "m")}
    assert all(isinstance(scene[name].data, da.Array) for name in VARIABLES)


def test_names_types_and_attributes_are_those_of_a_scene(whole):
    for name, band in BANDS.items():
        assert whole[name].dtype == np.float32
        assert whole[name].attrs["units"] == band.units
        assert whole[name].dims == ("time", "y", "x")
    for name in ("cloud_mask_l2", "cloud_truth", "land_mask"):
        assert whole[name].dtype == np.uint8
        assert set(np.unique(whole[name])) == {0, 1}
        assert_array_equal(whole[name].attrs["flag_values"], [0, 1])
    assert "simulator" in whole.attrs["title"]
    assert whole.attrs["source"].endswith("seed 0")
    assert whole["spatial_ref"].attrs["grid_mapping_name"] == "geostationary"


def test_it_is_a_valid_scene_in_standard_form(whole):
    checked = check_scene(whole)
    for name in THERMAL:
        assert_array_equal(checked[name], whole[name])
    # Angles are rounded to 0.01°: one just below 90 may read 90, which the check takes for night.
    lit = whole["solar_zenith_angle"] < 90.0
    for name in REFLECTANCES:
        assert_array_equal(checked[name], whole[name].where(lit))
        assert np.isfinite(whole[name].where(lit, 0.0)).all()
        assert np.isnan(whole[name].where(whole["solar_zenith_angle"] > 90.0)).all()
        assert_array_equal(np.isnan(checked[name]), ~lit)


def test_the_solar_zenith_angle_follows_from_time_and_coordinates(whole):
    computed = solar_zenith_angle(whole["time"], whole["longitude"], whole["latitude"])
    # Rounded to 0.01; pyorbital's two formulas agree to single precision.
    gap = np.abs(computed.transpose("time", "y", "x") - whole["solar_zenith_angle"])
    assert gap.max() < 0.0051


def test_values_are_in_the_range_of_the_earths(year):
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
def test_two_bytes_per_value_are_lossless(tmp_path, whole, suffix):
    scene = whole.isel(time=slice(20, 80))
    write_dataset(scene, tmp_path / f"simulator{suffix}")
    with open_scene(tmp_path / f"simulator{suffix}") as found:
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
    """Truth, Level 2, angles, coast and land of ``year``, (time, y, x)."""
    land = year["land_mask"].values == 1
    return {
        "truth": year["cloud_truth"].values == 1,
        "level2": year["cloud_mask_l2"].values == 1,
        "angle": year["solar_zenith_angle"].values,
        "coast": np.broadcast_to(near_coast(land, 1), year["cloud_truth"].shape),
        "land": np.broadcast_to(land, year["cloud_truth"].shape),
    }


def test_about_a_third_of_the_pixels_is_cloudy_and_more_at_sea_than_on_land(masks):
    truth, land = masks["truth"], masks["land"]
    assert 0.15 < truth.mean() < 0.55
    assert truth[~land].mean() > truth[land].mean()


def test_level_2_mostly_agrees_with_the_truth(masks):
    agreement = (masks["truth"] == masks["level2"]).mean()
    assert 0.8 < agreement < 0.98


def test_by_day_level_2_is_worst_at_the_coast_because_of_false_clouds(masks):
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


def test_clear_sea_is_darker_than_desert_and_its_temperature_steadier(year, masks):
    clear = ~masks["truth"] & ~masks["coast"]
    noon, land = clear & (masks["angle"] < 50.0), masks["land"]
    for name in REFLECTANCES:
        values = year[name].values
        # Except for one percent of glint and dust on one side, and of shadow on the other.
        assert np.quantile(values[noon & ~land], 0.99) < np.quantile(values[noon & land], 0.01)
    heat = year["IR_108"].values
    assert heat[clear & ~land].std() < heat[clear & land].std()


def test_cloud_is_brighter_and_colder_than_clear_sky(year, masks):
    sea, noon = ~masks["land"] & ~masks["coast"], masks["angle"] < 50.0
    truth = masks["truth"]
    visible, heat = year["VIS006"].values, year["IR_108"].values
    assert visible[sea & noon & truth].mean() > 2.0 * visible[sea & noon & ~truth].mean()
    assert heat[sea & truth].mean() < heat[sea & ~truth].mean() - 5.0


# The physics, over one pixel of sea and one of land

SEA, LAND = 0, 1

each_solar_band = pytest.mark.parametrize("name", SOLAR)

each_thermal_band = pytest.mark.parametrize("name", EMISSION)


class Noiseless:
    """A generator whose noise is zero."""

    def standard_normal(self, shape):
        return np.zeros(shape)


def two_pixels():
    """Make one pixel of sea and one of land."""
    nowhere = np.zeros(2)
    land = np.array([0.0, 1.0])
    return Place(nowhere, nowhere, nowhere, nowhere, nowhere, nowhere, land, 30.0 * (2 * land - 1))


def a_sun(zenith, azimuth=0.0):
    """Place the sun over both pixels at one time, degrees."""
    return Sun(np.full((1, 2), np.radians(zenith)), np.full((1, 2), np.radians(azimuth)))


def a_layer(depth, height=1.0, *, ice=False, shadow=None):
    shadow = depth if shadow is None else shadow
    return Layer(*(np.full((1, 2), float(v)) for v in (depth, shadow, height)), ice)


def a_weather(*layers, dust=0.0, sea=292.0, land=300.0, vapour=0.0, wind=7.0):
    return Weather(
        layers=layers,
        dust=np.full((1, 2), float(dust)),
        sea_temperature=np.full((1, 2), float(sea)),
        land_temperature=np.full((1, 2), float(land)),
        air_temperature=np.full((1, 1), 291.0),
        water_vapour=np.full(1, float(vapour)),
        wind=np.full(1, float(wind)),
    )


def reflectances(sun, weather, texture=0.0):
    """Return each solar channel over sea and land, percent, without noise."""
    channels = solar_channels(two_pixels(), sun, weather, np.full(2, texture), Noiseless())
    return {name: values[0] for name, values in channels.items()}


def temperatures(sun, weather):
    """Return each thermal channel over sea and land, K, without noise."""
    one = np.ones((1, 1))
    channels = thermal_channels(two_pixels(), sun, weather, np.zeros(2), one, Noiseless())
    return {name: values[0] for name, values in channels.items()}


# With the sun behind the satellite, far from glint.
NOON, MIDNIGHT = a_sun(30.0, np.degrees(VIEW_AZIMUTH)), a_sun(150.0)


# Place and sun


def test_the_place_is_20_by_26_pixels_around_dakhla_with_north_up():
    place = landmark_place()
    assert (place.y.size, place.x.size) == (ROWS, COLUMNS) == (20, 26)
    assert place.longitude.shape == place.land.shape == (ROWS * COLUMNS,)
    assert_allclose(np.diff(place.x), PIXEL)
    assert_allclose(np.diff(place.y), -PIXEL)
    assert (np.diff(place.latitude.reshape(ROWS, COLUMNS), axis=0) < 0).all()
    assert (np.diff(place.longitude.reshape(ROWS, COLUMNS), axis=1) > 0).all()
    middle = ROWS // 2 * COLUMNS + COLUMNS // 2
    # Within half a pixel, which the slant view stretches to about 2 km, 0.02°.
    assert_allclose([place.longitude[middle], place.latitude[middle]], CENTRE, atol=0.02)


def test_distances_agree_with_those_on_the_ellipsoid():
    place = landmark_place()
    n = place.longitude.size
    bearing, _, metres = Geod(ellps="WGS84").inv(
        np.full(n, CENTRE[0]), np.full(n, CENTRE[1]), place.longitude, place.latitude
    )
    # A sphere of 111.2 km per degree differs from the ellipsoid by up to 0.5 % of 50 km.
    assert_allclose(place.east, metres / 1e3 * np.sin(np.radians(bearing)), atol=0.3)
    assert_allclose(place.north, metres / 1e3 * np.cos(np.radians(bearing)), atol=0.3)


def test_there_are_pixels_of_land_of_sea_and_of_both():
    land = landmark_place().land
    assert land.min() == 0.0
    assert land.max() == 1.0
    assert 0.05 < np.mean((land > 0.0) & (land < 1.0)) < 0.3
    assert 0.3 < land.mean() < 0.7


def test_the_view_angles_agree_with_the_geometry():
    longitude, latitude = np.radians(CENTRE)
    up = np.array(
        [
            np.cos(latitude) * np.cos(longitude),
            np.cos(latitude) * np.sin(longitude),
            np.sin(latitude),
        ]
    )
    radius = 6371.0
    towards = np.array([35786.0 + 6378.0, 0.0, 0.0]) - radius * up
    towards /= np.linalg.norm(towards)
    east = np.array([-np.sin(longitude), np.cos(longitude), 0.0])
    north = np.cross(up, east)
    zenith = np.degrees(np.arccos(towards @ up))
    azimuth = np.degrees(np.arctan2(towards @ east, towards @ north))
    # Both are given to a tenth of a degree.
    assert_allclose(np.degrees([VIEW_ZENITH, VIEW_AZIMUTH]), [zenith, azimuth], atol=0.1)


def test_the_sun_is_in_the_east_in_the_morning_and_in_the_west_in_the_evening():
    times = np.array(["2010-03-20T08:00", "2010-03-20T18:00"], "datetime64[ns]")
    azimuth = np.degrees(sun_over(landmark_place(), times).azimuth) % 360.0
    assert (abs(azimuth[0] - 90.0) < 30.0).all()
    assert (abs(azimuth[1] - 270.0) < 30.0).all()


# Glint


@given(st.floats(0.0, 85.0), st.floats(0.0, 360.0), st.floats(2.0, 15.0))
def test_glint_agrees_with_cox_and_munk_computed_by_vectors(zenith, azimuth, wind):
    def direction(theta, phi):
        return np.array([np.sin(theta) * np.sin(phi), np.sin(theta) * np.cos(phi), np.cos(theta)])

    to_sun = direction(np.radians(zenith), np.radians(azimuth))
    to_eye = direction(VIEW_ZENITH, VIEW_AZIMUTH)
    facet = (to_sun + to_eye) / np.linalg.norm(to_sun + to_eye)
    variance = 0.003 + 0.00512 * wind
    slope_squared = (facet[0] ** 2 + facet[1] ** 2) / facet[2] ** 2
    density = np.exp(-slope_squared / variance) / (np.pi * variance)
    fresnel = 0.021 + 0.979 * (1.0 - facet @ to_sun) ** 5
    expected = np.pi * fresnel * density / (4.0 * to_sun[2] * to_eye[2] * facet[2] ** 4)
    found = a_sun(zenith, azimuth).glint(np.array([wind]))
    # The exponent reaches hundreds, and the slope has lost some digits.
    assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


def test_glint_is_brightest_at_the_mirror_angle_and_wind_spreads_it():
    mirror = a_sun(np.degrees(VIEW_ZENITH), np.degrees(VIEW_AZIMUTH) + 180.0)
    beside = a_sun(np.degrees(VIEW_ZENITH), np.degrees(VIEW_AZIMUTH) + 90.0)
    calm, windy = np.array([3.0]), np.array([12.0])
    assert mirror.glint(calm)[0, 0] > mirror.glint(windy)[0, 0] > beside.glint(windy)[0, 0]
    assert beside.glint(calm)[0, 0] < beside.glint(windy)[0, 0]


@each_solar_band
def test_glint_brightens_the_sea_and_not_the_land(name):
    mirror = a_sun(np.degrees(VIEW_ZENITH), np.degrees(VIEW_AZIMUTH) + 180.0)
    away = a_sun(np.degrees(VIEW_ZENITH), np.degrees(VIEW_AZIMUTH))
    bright, dark = reflectances(mirror, a_weather())[name], reflectances(away, a_weather())[name]
    assert bright[SEA] > dark[SEA] + 5.0
    assert_allclose(bright[LAND], dark[LAND], rtol=1e-12)


# Solar channels


@each_solar_band
def test_in_clear_air_rayleigh_scattering_is_added_to_the_surface(name):
    band, mu = SOLAR[name], np.cos(np.radians(30.0))
    slant = 1.0 / mu + 1.0 / VIEW
    air = 0.75 / (4.0 * (mu + VIEW)) * (1.0 - np.exp(-band.rayleigh * slant))
    glint = NOON.glint(np.array([7.0]))[0, 0]
    surface = np.array([band.sea + glint, band.land * 1.1])
    expected = 100.0 * (air + np.exp(-0.5 * band.rayleigh * slant) * surface)
    assert_allclose(reflectances(NOON, a_weather(), texture=0.1)[name], expected, rtol=1e-12)


@each_solar_band
def test_clear_sea_is_darker_than_desert(name):
    clear = reflectances(NOON, a_weather(dust=0.12))[name]
    assert clear[SEA] < 0.3 * clear[LAND]


@each_solar_band
def test_thicker_dust_brightens_the_sea_more(name):
    seen = [reflectances(NOON, a_weather(dust=dust))[name][SEA] for dust in (0.0, 0.1, 0.5, 2.0)]
    assert (np.diff(seen) > 0.0).all()


@each_solar_band
@pytest.mark.parametrize("ice", [False, True])
def test_thicker_cloud_brightens_the_sea_more_up_to_its_own_reflectance(name, ice):
    depths = (0.0, 0.2, 1.0, 5.0, 30.0, 1e6)
    seen = [reflectances(NOON, a_weather(a_layer(d, ice=ice)))[name][SEA] for d in depths]
    assert (np.diff(seen) > 0.0).all()
    band = SOLAR[name]
    slant = 1.0 / np.cos(np.radians(30.0)) + 1.0 / VIEW
    veil = np.exp(-0.5 * band.rayleigh * slant)
    white = 100.0 * veil * (band.ice if ice else band.droplets)
    # Air adds its own 0 to 4 %; beyond a depth of 1e6 the surface adds less than 1e-4.
    assert white - 1e-2 < seen[-1] < white + 4.0


def test_ice_absorbs_more_than_droplets_at_1_6_micrometres_but_not_at_0_6():
    water, ice = (
        reflectances(NOON, a_weather(a_layer(depth, ice=ice)))
        for ice, depth in ((False, 20.0 * 0.115 / 0.075), (True, 20.0))
    )
    assert_allclose(water["VIS006"], ice["VIS006"], rtol=1e-12)
    assert (ice["IR_016"] < 0.7 * water["IR_016"]).all()


@each_solar_band
def test_a_cloud_between_sun_and_ground_darkens_the_ground(name):
    lit, shaded = (
        reflectances(NOON, a_weather(a_layer(0.0, shadow=shadow)))[name] for shadow in (0.0, 5.0)
    )
    assert (shaded < lit).all()
    # The cloud itself is not in view; the ground gets the light it lets through.
    assert (shaded > 0.0).all()


def test_optical_depths_of_layers_of_the_same_phase_add_up():
    together = reflectances(NOON, a_weather(a_layer(5.0)))
    apart = reflectances(NOON, a_weather(a_layer(2.0), a_layer(3.0)))
    for name in SOLAR:
        assert_allclose(apart[name], together[name], rtol=1e-12)


@pytest.mark.parametrize(("zenith", "lit"), [(0.0, True), (89.99, True), (90.01, False)])
def test_reflectances_are_missing_if_and_only_if_the_sun_is_down(zenith, lit):
    found = reflectances(a_sun(zenith), a_weather(a_layer(1.0)))
    assert all(np.isfinite(values).all() == lit for values in found.values())


# Thermal channels


@each_thermal_band
@pytest.mark.parametrize("surface", [280.0, 295.0, 310.0])
def test_in_dry_clean_air_the_surface_emits_by_its_emissivity(name, surface):
    band, law = EMISSION[name], THERMAL_BANDS[DEFAULT_PLATFORM][name]
    found = temperatures(MIDNIGHT, a_weather(sea=surface, land=surface))[name]
    emitted = law.radiance(np.array(surface))
    expected = law.temperature(np.array([band.sea, band.land]) * emitted)
    assert_allclose(found, expected, rtol=1e-12)


@each_thermal_band
@pytest.mark.parametrize("height", [1.0, 5.0, 10.5])
def test_thick_cloud_has_the_temperature_of_its_top(name, height):
    found = temperatures(MIDNIGHT, a_weather(a_layer(1e4, height), vapour=30.0, dust=1.0))[name]
    assert_allclose(found, 291.0 - 4.0 - LAPSE * height, rtol=1e-12)


@each_thermal_band
@pytest.mark.parametrize("ice", [False, True])
def test_thicker_cloud_looks_colder(name, ice):
    depths = (0.0, 0.2, 1.0, 5.0, 20.0)
    seen = [temperatures(MIDNIGHT, a_weather(a_layer(d, 9.0, ice=ice)))[name] for d in depths]
    assert (np.diff(seen, axis=0) < 0.0).all()


def test_vapour_and_dust_make_warm_ground_look_colder():
    clear = temperatures(MIDNIGHT, a_weather(land=310.0))
    for weather in (a_weather(land=310.0, vapour=30.0), a_weather(land=310.0, dust=2.0)):
        for name, values in temperatures(MIDNIGHT, weather).items():
            assert values[LAND] < clear[name][LAND]


def test_thin_ice_has_a_larger_split_window_difference_than_clear_sky():
    clear = temperatures(MIDNIGHT, a_weather())
    thin = temperatures(MIDNIGHT, a_weather(a_layer(1.0, 10.5, ice=True)))
    split = {name: t["IR_108"] - t["IR_120"] for name, t in (("clear", clear), ("thin", thin))}
    assert (split["thin"] > split["clear"] + 1.0).all()


def test_sunlight_is_added_at_3_9_micrometres_alone():
    weather = a_weather(dust=0.1, vapour=20.0)
    day, night = temperatures(NOON, weather), temperatures(MIDNIGHT, weather)
    for name in ("IR_087", "IR_108", "IR_120"):
        assert_array_equal(day[name], night[name])
    law = THERMAL_BANDS[DEFAULT_PLATFORM]["IR_039"]
    added = law.radiance(day["IR_039"]) - law.radiance(night["IR_039"])
    share = added / (SOLAR_RADIANCE_39 * np.cos(np.radians(30.0)))
    # Through dust, clear desert reflects a little less than its 17 %, and the sea almost nothing.
    assert_allclose(share[LAND], NEAR.land, rtol=0.1)
    assert share[SEA] < 0.1


# Noise

MANY = 20_000


def many_times(zenith, weather):
    """Make desert, sun and weather at many times that differ in noise alone."""
    place = replace(two_pixels(), land=np.ones(1))
    sun = Sun(np.full((MANY, 1), np.radians(zenith)), np.zeros((MANY, 1)))
    dry = np.zeros(MANY)
    column = {
        name: np.full((MANY, 1), getattr(weather, name)[0, LAND])
        for name in ("dust", "sea_temperature", "land_temperature")
    }
    return place, sun, replace(weather, water_vapour=dry, wind=dry + 7.0, **column), np.zeros(1)


@each_thermal_band
def test_thermal_noise_meets_the_specification_at_300_kelvin(name):
    law, band = THERMAL_BANDS[DEFAULT_PLATFORM][name], EMISSION[name]
    # Ground whose brightness temperature is 300 K.
    warm = law.temperature(law.radiance(np.array(300.0)) / band.land)
    night = many_times(150.0, a_weather(land=warm))
    seen = thermal_channels(*night, np.ones((1, 1)), np.random.default_rng(0))[name]
    # Five standard errors, and 1e-2 of the noise for the curvature of Planck's law.
    assert abs(seen.mean() - 300.0) < band.noise * (5.0 / np.sqrt(MANY) + 1e-2)
    assert abs(seen.std() / band.noise - 1.0) < 5.0 / np.sqrt(2.0 * MANY) + 1e-2


@each_solar_band
@pytest.mark.parametrize("zenith", [0.0, 60.0, 80.0])
def test_solar_noise_grows_as_the_sun_sinks(name, zenith):
    day = many_times(zenith, a_weather())
    seen = solar_channels(*day, np.random.default_rng(1))[name]
    expected = 100.0 * SOLAR_NOISE / np.cos(np.radians(zenith))
    assert abs(seen.std() / expected - 1.0) < 5.0 / np.sqrt(2.0 * MANY)


# Weather


@pytest.mark.parametrize("depths", [(0.0, 0.0), (0.1, 0.09), (0.1, 0.11), (3.0, 0.0)])
def test_a_pixel_is_cloudy_if_its_total_optical_depth_reaches_the_limit(depths):
    weather = a_weather(*(a_layer(depth) for depth in depths))
    assert (weather.cloudy == (sum(depths) >= CLOUD_DEPTH)).all()


@pytest.fixture(scope="module")
def a_week():
    """The landmark and its hourly weather in a week of July."""
    hours = 24.0 * 185.0 + np.arange(168.0)
    times = np.datetime64("2010-01-01", "ns") + (hours * 60).astype("timedelta64[m]")
    place = landmark_place()
    return place, draw_climate(0).at(hours, hours / 24.0, place, sun_over(place, times))


def test_the_weather_is_in_physical_ranges(a_week):
    _, weather = a_week
    assert (weather.dust > 0.0).all()
    assert ((weather.water_vapour >= 10.0) & (weather.water_vapour <= 35.0)).all()
    assert (weather.wind >= 2.0).all()
    assert ((weather.sea_temperature > 286.0) & (weather.sea_temperature < 298.0)).all()
    for layer, (low, high) in zip(weather.layers, [(0.6, 1.4), (4, 6), (9, 12)], strict=True):
        assert (layer.depth >= 0.0).all()
        assert (layer.shadow >= 0.0).all()
        assert ((layer.height >= low) & (layer.height <= high)).all()


def test_the_desert_is_warmest_after_noon_and_its_daily_range_grows_inland(a_week):
    place, weather = a_week
    by_hour = weather.land_temperature.reshape(7, 24, -1).mean(axis=0)
    # 13 h solar time is 14 h UTC at 15.9° W.
    assert abs(int(by_hour.mean(axis=1).argmax()) - 14) <= 1
    daily_range = by_hour.max(axis=0) - by_hour.min(axis=0)
    far, near = place.coast_distance > 25.0, place.coast_distance < 5.0
    assert daily_range[far].min() > daily_range[near].max()
    assert 15.0 < daily_range.max() < 32.0


def test_the_shadow_is_the_cloud_where_the_suns_beam_crosses_the_layer():
    place, climate = landmark_place(), draw_climate(0)
    hours = 24.0 * 185.0 + np.arange(0.0, 240.0, 6.0)
    overhead = Sun(*np.zeros((2, hours.size, place.land.size)))
    slanted = Sun(overhead.zenith + np.radians(60.0), overhead.azimuth + np.radians(110.0))
    under, aside = (climate.at(hours, hours / 24.0, place, sun) for sun in (overhead, slanted))
    for index, model in enumerate(climate.layers):
        straight, oblique = under.layers[index], aside.layers[index]
        assert_array_equal(straight.shadow, straight.depth)
        assert_array_equal(oblique.depth, straight.depth)
        # At a zenith angle of 60° the beam crosses the layer at height times tan 60° sunwards.
        away = model.height * np.tan(np.radians(60.0))
        moved = replace(
            place,
            east=place.east + away * np.sin(np.radians(110.0)),
            north=place.north + away * np.cos(np.radians(110.0)),
        )
        there = climate.at(hours, hours / 24.0, moved, overhead).layers[index].depth
        assert (there > 0.0).any()
        # Depths up to 100, from sums of waves with phases up to 1e5 that are known to 1e-11.
        assert_allclose(oblique.shadow, there, atol=1e-7)


# Level 2


def test_the_atlas_of_level_2_is_usually_right_and_off_by_a_pixel_at_most():
    land = (landmark_place().land > 0.5).reshape(ROWS, COLUMNS)
    steps = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
    times = 2000
    atlas = _atlas(landmark_place(), times, np.random.default_rng(0)).reshape(-1, ROWS, COLUMNS)
    inside = slice(1, -1)
    moves = np.array(
        [
            (atlas == np.roll(land, step, axis=(0, 1)))[:, inside, inside].all(axis=(1, 2))
            for step in steps
        ]
    )
    assert (moves.sum(axis=0) == 1).all()
    # Unmoved with a chance of 0.8 along either axis: five standard errors.
    unmoved = moves[steps.index((0, 0))].mean()
    assert abs(unmoved - 0.64) < 5.0 * np.sqrt(0.64 * 0.36 / times)
