"""Planck's law for sounder and imager, and the reflectance at 3.9 µm."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy import constants
from scipy.optimize import brentq

from undulatus.scenes.radiometry import (
    C1,
    C2,
    DEFAULT_PLATFORM,
    SOLAR_RADIANCE_39,
    THERMAL_BANDS,
    ThermalBand,
    blackbody_radiance,
    brightness_temperature,
    radiance_slope,
    reflectance_39,
    sun_earth_distance,
)
from undulatus.scenes.scene import BANDS, TEMPERATURE

TEMPERATURES = np.linspace(180.0, 340.0, 1601)
TEMPERATURES.setflags(write=False)

every_band = pytest.mark.parametrize(
    "band",
    [
        pytest.param(band, id=f"{platform}-{name}")
        for platform, bands in THERMAL_BANDS.items()
        for name, band in bands.items()
    ],
)


def test_every_platform_has_every_thermal_band_of_a_scene():
    thermal = {name for name, band in BANDS.items() if band.quantity == TEMPERATURE}
    assert all(set(bands) == thermal for bands in THERMAL_BANDS.values())
    assert DEFAULT_PLATFORM in THERMAL_BANDS


@every_band
def test_temperature_undoes_radiance(band):
    # dT/T is (T / C2 nu) dL/L, so less than the rounding of L: an identity.
    assert_allclose(band.temperature(band.radiance(TEMPERATURES)), TEMPERATURES, rtol=1e-12)


@every_band
def test_radiance_undoes_temperature(band):
    radiances = np.geomspace(*band.radiance(TEMPERATURES[[0, -1]]), 500)
    # dL/L is (C2 nu / T) dT/T, at most 21 roundings of T.
    assert_allclose(band.radiance(band.temperature(radiances)), radiances, rtol=1e-12)


@every_band
def test_radiance_grows_with_temperature(band):
    assert (np.diff(band.radiance(TEMPERATURES)) > 0.0).all()


@every_band
def test_without_band_corrections_radiance_is_plancks_law_in_si_units(band):
    nu, T = 100.0 * band.wavenumber, TEMPERATURES  # per metre
    exponent = constants.h * constants.c * nu / (constants.k * T)
    per_metre = 2.0 * constants.h * constants.c**2 * nu**3 / np.expm1(exponent)
    milliwatts_per_cm = 1e3 * 1e2 * per_metre
    # C2 was fixed before the SI of 2019 and is off by 1.2e-6, which counts `exponent` times over;
    # C1 is off by 2e-7.
    rtol = 1.2e-6 * exponent.max() + 3e-7
    assert_allclose(
        ThermalBand(band.wavenumber, 1.0, 0.0).radiance(T), milliwatts_per_cm, rtol=rtol
    )


def test_the_radiation_constants_agree_with_codata():
    # CODATA's values moved by some 1e-6 since EUMETSAT took theirs.
    assert_allclose(C1, 2.0 * constants.h * constants.c**2 * 1e11, rtol=1e-6)
    assert_allclose(C2, 1e2 * constants.h * constants.c / constants.k, rtol=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_body_near_zero_kelvin_has_no_radiance_and_gives_no_warning(dtype):
    band = THERMAL_BANDS[DEFAULT_PLATFORM]["IR_039"]
    assert band.radiance(np.array([0.0, 1.0], dtype)).tolist() == [0.0, 0.0]


def test_the_band_corrections_equal_satpys():
    calibration = pytest.importorskip("satpy.readers.core.seviri").CALIB
    numbers = {"Meteosat-8": 321, "Meteosat-9": 322, "Meteosat-10": 323, "Meteosat-11": 324}
    for platform, bands in THERMAL_BANDS.items():
        for name, band in bands.items():
            theirs = calibration[numbers[platform]][name]
            assert (band.wavenumber, band.alpha, band.beta) == (
                theirs["VC"],
                theirs["ALPHA"],
                theirs["BETA"],
            )


@pytest.mark.parametrize("platform", THERMAL_BANDS)
@given(
    reflectance=st.floats(0.0, 100.0),
    surface=st.floats(190.0, 330.0),
    cosine=st.floats(0.035, 1.0),
    distance=st.floats(0.983, 1.017),
)
def test_the_reflectance_is_recovered_from_the_radiance(
    platform, reflectance, surface, cosine, distance
):
    band = THERMAL_BANDS[platform]["IR_039"]
    sunlight = reflectance / 100.0 * SOLAR_RADIANCE_39 * cosine / distance**2
    seen = band.temperature(band.radiance(np.array(surface)) + sunlight)
    found = reflectance_39(seen, np.array(surface), np.array(cosine), distance, platform)
    # Radiances up to 8 with about 50 roundings of 1.1e-16, over sunlight of 4.92 * 0.035.
    assert_allclose(found, reflectance, atol=100 * 8 * 50 * 1.1e-16 / 0.17)


def test_equal_temperatures_give_zero_and_reflectance_grows_with_the_squared_distance():
    cold, warm, one = np.array(280.0), np.array(300.0), np.array(1.0)
    assert reflectance_39(cold, cold, one, one) == 0.0
    near, far = (reflectance_39(warm, cold, one, np.array(r)) for r in (1.0, 2.0))
    assert_allclose(far, 4.0 * near, rtol=1e-12)


def test_there_is_no_reflectance_without_sun():
    cosine = np.array([0.5, 0.0, -0.5, np.nan])
    found = reflectance_39(np.full(4, 300.0), np.full(4, 290.0), cosine, np.array(1.0))
    assert_array_equal(np.isnan(found), [False, True, True, True])


def test_a_missing_temperature_gives_a_missing_reflectance():
    missing, there = np.array([np.nan, 300.0]), np.array([290.0, np.nan])
    assert np.isnan(reflectance_39(missing, there, np.ones(2), np.ones(2))).all()


def test_the_distance_to_the_sun_follows_keplers_ellipse_to_a_thousandth():
    days = np.arange(0.0, 365.0, 5.0)
    times = np.datetime64("2010-01-01") + (days * 24).astype("timedelta64[h]")
    eccentricity, perihelion, year = 0.0167, 2.0, 365.26  # 3 January 2010, 0 h

    def kepler(day):
        mean = 2.0 * np.pi * (day - perihelion) / year
        anomaly = brentq(lambda e: e - eccentricity * np.sin(e) - mean, mean - 1.0, mean + 1.0)
        return 1.0 - eccentricity * np.cos(anomaly)

    # A cosine of the day omits terms of e^2 = 2.8e-4 and a quarter of a day in the year.
    assert_allclose(sun_earth_distance(times), [kepler(day) for day in days], atol=1e-3)


def test_the_distance_to_the_sun_at_an_unknown_time_is_missing():
    assert np.isnan(sun_earth_distance(np.array("NaT", "datetime64[ns]")))


wavenumbers = st.floats(645.0, 2760.0).map(np.array)

temperatures = st.floats(150.0, 350.0).map(np.array)


@given(wavenumbers, temperatures)
def test_the_brightness_temperature_of_a_black_body_is_its_temperature(wavenumber, temperature):
    radiance = blackbody_radiance(wavenumber, temperature)
    assert_allclose(brightness_temperature(wavenumber, radiance), temperature, rtol=1e-12)


@given(wavenumbers, temperatures)
def test_without_a_band_correction_both_forms_of_the_law_agree(wavenumber, temperature):
    band = ThermalBand(float(wavenumber), 1.0, 0.0)
    assert_allclose(
        blackbody_radiance(wavenumber, temperature), band.radiance(temperature), rtol=1e-12
    )


@given(wavenumbers, temperatures)
def test_the_slope_is_the_derivative_of_the_radiance(wavenumber, temperature):
    step = 1e-3
    ends = blackbody_radiance(wavenumber, temperature + np.array([-step, step]))
    # The third derivative over the first is below (C2 nu / T^2)^2 ~ 0.03 per K^2.
    quotient = (ends[1] - ends[0]) / (2 * step)
    assert_allclose(radiance_slope(wavenumber, temperature), quotient, rtol=1e-6)


def test_a_radiance_that_is_not_positive_has_a_missing_temperature():
    found = brightness_temperature(np.array(2700.0), np.array([-1.0, 0.0, np.nan, 0.1]))
    assert np.isnan(found).tolist() == [True, True, True, False]


def test_the_integral_over_wavenumbers_is_the_law_of_stefan_and_boltzmann():
    wavenumber = np.arange(0.5, 6000.0, 0.5)
    watts = np.pi * blackbody_radiance(wavenumber, np.array(300.0)).sum() * 0.5 / 1000.0
    # The radiation constants of 1998 are right to 2e-6; the sum omits 1e-7 at either end.
    assert_allclose(watts, 5.670374e-8 * 300.0**4, rtol=1e-5)
