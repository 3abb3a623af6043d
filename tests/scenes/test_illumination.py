"""The sun's zenith angle, and the four regimes that follow from it."""

import statistics
from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from undulatus._daylight import LOW_SUN, NIGHT, REGIMES
from undulatus.errors import SceneError
from undulatus.regimes import DAYLIGHT, MEDIAN, RegimeClassifier
from undulatus.scenes.illumination import (
    NO_REGIME,
    daytime_median,
    illumination,
    solar_zenith_angle,
    sun_normalised,
)

EDGE = 45.25  # a median that single precision holds exactly
EQUINOX, SOLSTICE, WINTER = (
    np.datetime64(day, "ns") for day in ("2010-03-20", "2010-06-21", "2010-12-21")
)
MINUTES = np.arange(1440) * np.timedelta64(1, "m")
angles = arrays(
    np.float32, st.integers(1, 30), elements=st.floats(0.0, 180.0, width=32) | st.just(np.nan)
)


def over_the_day(day, longitude, latitude):
    times = xr.DataArray(day + MINUTES, dims="time")
    return solar_zenith_angle(times, xr.DataArray(longitude), xr.DataArray(latitude)).values


# Regimes


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("edge", "below", "above"),
    [(EDGE, "high", "mid"), (LOW_SUN, "mid", "low"), (NIGHT, "low", "night")],
)
def test_an_angle_on_an_edge_belongs_to_the_regime_above_it(dtype, edge, below, above):
    edge = dtype(edge)
    nearest = np.array([np.nextafter(edge, dtype(0)), edge, np.nextafter(edge, dtype(180))])
    assert [REGIMES[code] for code in illumination(nearest, EDGE)] == [below, above, above]


@pytest.mark.parametrize("angle", [np.nan, np.inf, -np.inf])
def test_a_missing_angle_has_no_regime(angle):
    assert illumination(np.array([angle]), EDGE).tolist() == [NO_REGIME]


@given(angles, st.floats(1.0, 79.0))
def test_regimes_agree_with_those_of_the_classifier(angle, median):
    model = RegimeClassifier()
    numbers = {MEDIAN: median}
    model.regimes_ = tuple(
        replace(r, low=numbers.get(r.low, r.low), high=numbers.get(r.high, r.high))
        for r in DAYLIGHT
    )
    expected = np.where(np.isnan(angle), NO_REGIME, model.assign(angle).astype(int))
    assert_array_equal(illumination(angle, median), expected)


@given(angles)
def test_lazy_and_loaded_images_have_the_regimes_of_their_values(angle):
    image = xr.DataArray(angle[None], dims=("y", "x"))
    lazy = illumination(image.chunk(x=4), EDGE)
    assert isinstance(lazy.data, da.Array)
    for regime in (lazy, illumination(image, EDGE)):
        assert regime.dtype == np.uint8
        assert_array_equal(regime.values[0], illumination(angle, EDGE))
        assert regime.attrs["flag_meanings"].split() == list(REGIMES)


@given(angles)
def test_the_daytime_median_is_that_of_angles_below_80(angle):
    daytime = [float(a) for a in angle if a < 80.0]
    if daytime:
        # numpy averages the two middle values in single precision.
        assert_allclose(daytime_median(angle), statistics.median(daytime), rtol=1e-6)
    else:
        with pytest.raises(SceneError, match="no daytime"):
            daytime_median(angle)


def test_high_and_mid_are_equally_populated_and_80_itself_is_not_daytime():
    angle = np.array([10.0, 20.0, 30.0, 40.0, 80.0, 85.0, 120.0, np.nan])
    assert daytime_median(angle) == 25.0
    codes = illumination(angle, 25.0)
    assert np.bincount(codes[codes != NO_REGIME]).tolist() == [2, 2, 2, 1]


# The sun


def test_at_the_equinox_the_sun_passes_the_zenith_and_nadir_of_the_equator():
    angle = over_the_day(EQUINOX, 0.0, 0.0)
    # The sun's declination changes by 0.4° that day, and the sun moves 0.25° per minute.
    assert angle.min() < 0.4
    assert angle.max() > 179.6
    # Equation of time: solar noon is within 16 minutes of noon.
    assert abs(int(angle.argmin()) - 720) <= 16


def test_at_the_solstice_the_sun_is_overhead_at_the_tropic():
    for latitude in (-30.0, 0.0, 23.44, 60.0):
        noon = over_the_day(SOLSTICE, -15.9, latitude).min()
        # Half a minute from noon is 0.13° at most, near the zenith.
        assert_allclose(noon, abs(latitude - 23.44), atol=0.15)


def test_the_sun_stays_down_in_polar_night_and_up_in_polar_day():
    assert over_the_day(WINTER, 25.0, 80.0).min() > 90.0
    assert over_the_day(SOLSTICE, 25.0, 80.0).max() < 90.0


def test_fifteen_degrees_of_longitude_are_an_hour():
    times = xr.DataArray(EQUINOX + MINUTES[::60], dims="time")
    latitude = xr.DataArray(23.7)
    here = solar_zenith_angle(times, xr.DataArray(0.0), latitude)
    east = solar_zenith_angle(times - np.timedelta64(1, "h"), xr.DataArray(15.0), latitude)
    # In an hour the declination changes by 0.017°, and the equation of time by a second.
    assert_allclose(east.values, here.values, atol=0.03)


@given(st.floats(-180.0, 180.0), st.floats(-90.0, 90.0), st.integers(0, 365 * 24))
def test_zenith_angles_at_antipodes_add_up_to_180(longitude, latitude, hour):
    time = np.datetime64("2010-01-01", "ns") + np.timedelta64(hour, "h")
    here, there = (
        solar_zenith_angle(time, xr.DataArray(lon), xr.DataArray(lat))
        for lon, lat in ((longitude, latitude), (longitude + 180.0, -latitude))
    )
    # Steps of single precision are 1.5e-5 at 180.
    assert_allclose(here + there, 180.0, atol=4e-5)


@pytest.fixture(scope="module")
def disc():
    """Longitudes and latitudes of 6 x 8 pixels, some of them in space."""
    longitude, latitude = np.meshgrid(np.linspace(-70.0, 70.0, 8), np.linspace(60.0, -60.0, 6))
    longitude[0, 0] = latitude[0, 0] = np.inf
    longitude[5, 7] = np.nan
    latitude[2, 3] = -np.inf
    return xr.DataArray(longitude, dims=("y", "x")), xr.DataArray(latitude, dims=("y", "x"))


def test_only_pixels_in_space_have_a_missing_angle(disc):
    angle = solar_zenith_angle(EQUINOX, *disc)
    space = ~(np.isfinite(disc[0]) & np.isfinite(disc[1]))
    assert_array_equal(np.isnan(angle), space)
    assert angle.dtype == np.float32
    assert angle.attrs["units"] == "degree"


def test_an_unknown_time_gives_a_missing_angle(disc):
    times = xr.DataArray(np.array(["2010-06-01", "NaT"], "datetime64[ns]"), dims="time")
    angle = solar_zenith_angle(times, *disc)
    assert np.isfinite(angle[0]).any()
    assert np.isnan(angle[1]).all()


@pytest.mark.parametrize("chunks", [(1, 1), (4, 3), (6, 8)])
def test_the_angle_does_not_depend_on_chunks(disc, chunks):
    times = xr.DataArray(EQUINOX + MINUTES[::400], dims="time")
    longitude, latitude = (degrees.chunk(y=chunks[0], x=chunks[1]) for degrees in disc)
    lazy = solar_zenith_angle(times.chunk(time=1), longitude, latitude)
    assert isinstance(lazy.data, da.Array)
    assert_array_equal(lazy, solar_zenith_angle(times, *disc))


def test_each_scan_line_may_have_its_own_time(disc):
    lines = xr.DataArray(EQUINOX + MINUTES[:12:2], dims="y")
    angle = solar_zenith_angle(lines, *disc)
    for y in range(6):
        alone = solar_zenith_angle(lines.values[y], disc[0][y], disc[1][y])
        assert_array_equal(angle.transpose("y", "x")[y], alone)


# Reflectances


def test_reflectances_are_divided_by_the_cosine_of_88_degrees_at_least():
    angle = xr.DataArray(np.array([0.0, 60.0, 87.9, 88.0, 89.0, 89.999], np.float32), dims="x")
    reflectance = xr.DataArray(np.full(6, 3.0, np.float32), dims="x", attrs={"units": "%"})
    cosine = np.cos(np.radians(np.minimum(angle.values.astype(np.float64), 88.0)))
    found = sun_normalised(reflectance, angle)
    # The cosine of 88° magnifies the rounding of 1.5 radians by 1/0.035 = 29.
    assert_allclose(found, 3.0 / cosine, rtol=29 * 1.5 * 1.2e-7)
    assert found[-1] == found[-2] == found[-3]
    assert found.dtype == np.float32
    assert found.attrs == {"units": "%"}


def test_reflectances_are_missing_at_night():
    angle = xr.DataArray([89.0, 90.0, 120.0, np.nan], dims="x")
    found = sun_normalised(xr.DataArray([0.0, 0.0, 0.0, 0.0], dims="x"), angle)
    assert_array_equal(found, [0.0, np.nan, np.nan, np.nan])
