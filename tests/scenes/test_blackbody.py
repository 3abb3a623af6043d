"""Planck's law channel by channel, and its inverse."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from undulatus.scenes.blackbody import blackbody_radiance, brightness_temperature, radiance_slope
from undulatus.scenes.planck import ThermalBand

wavenumbers = st.floats(645.0, 2760.0).map(np.array)
temperatures = st.floats(150.0, 350.0).map(np.array)


@given(wavenumbers, temperatures)
def test_the_brightness_temperature_of_a_black_body_is_its_temperature(wavenumber, temperature):
    radiance = blackbody_radiance(wavenumber, temperature)
    assert_allclose(brightness_temperature(wavenumber, radiance), temperature, rtol=1e-12)


@given(wavenumbers, temperatures)
def test_the_law_is_the_imagers_without_a_band_correction(wavenumber, temperature):
    band = ThermalBand(float(wavenumber), 1.0, 0.0)
    assert_allclose(
        blackbody_radiance(wavenumber, temperature), band.radiance(temperature), rtol=1e-12
    )


@given(wavenumbers, temperatures)
def test_the_slope_is_the_difference_quotient(wavenumber, temperature):
    step = 1e-3
    ends = blackbody_radiance(wavenumber, temperature + np.array([-step, step]))
    # The third derivative over the first is below (C2 nu / T^2)^2 ~ 0.03 per K^2.
    quotient = (ends[1] - ends[0]) / (2 * step)
    assert_allclose(radiance_slope(wavenumber, temperature), quotient, rtol=1e-6)


def test_a_radiance_that_is_not_positive_has_no_temperature():
    found = brightness_temperature(np.array(2700.0), np.array([-1.0, 0.0, np.nan, 0.1]))
    assert np.isnan(found).tolist() == [True, True, True, False]


def test_all_wavenumbers_together_give_the_law_of_stefan_and_boltzmann():
    wavenumber = np.arange(0.5, 6000.0, 0.5)
    watts = np.pi * blackbody_radiance(wavenumber, np.array(300.0)).sum() * 0.5 / 1000.0
    # The radiation constants are of 1998, right to 2e-6; the sum leaves out 1e-7 at either end.
    assert_allclose(watts, 5.670374e-8 * 300.0**4, rtol=1e-5)
