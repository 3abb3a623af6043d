"""Random fields of waves: their sums, moments and drift."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.scenes.simulators.fields import Field, Series

STILL = (np.zeros_like, np.zeros_like)  # no meander
seeds = st.integers(0, 2**32 - 1)


def a_field(seed, **options):
    rng = np.random.default_rng(seed)
    defaults = {"scales": (8.0, 600.0), "slope": 0.67, "wind": (-15.0, 7.0), "lifetime": 20.0}
    return Field.draw(rng, **(defaults | options))


@given(seeds)
def test_a_field_is_the_naive_sum_of_its_waves(seed):
    field = a_field(seed, modes=5)
    rng = np.random.default_rng(seed)
    hours, (east, north) = rng.uniform(0.0, 8760.0, 4), rng.uniform(-40.0, 40.0, (2, 3))
    shift = rng.normal(0.0, 10.0, (4, 2))
    found = field(hours, east, north, shift)
    speed = 10.0 * np.hypot(*field.wind)
    for i, t in enumerate(hours):
        drift = [field.wind[d] * t + speed * field.meander[d](hours)[i] for d in (0, 1)]
        for j in range(3):
            place = (east[j] + shift[i, 0] - drift[0], north[j] + shift[i, 1] - drift[1])
            total = sum(
                a * np.cos(k[0] * place[0] + k[1] * place[1] + w * t + p)
                for a, k, w, p in zip(
                    field.amplitudes,
                    field.wavevectors,
                    field.frequencies,
                    field.phases,
                    strict=True,
                )
            )
            # Phases reach 0.8 rad/km times 16 km/h times a year, 1e5, known to 1e-11.
            assert_allclose(found[i, j], total, atol=1e-9)


@given(seeds)
def test_a_series_is_the_naive_sum_of_its_sinusoids(seed):
    series = Series.draw(np.random.default_rng(seed), 40.0, 400.0)
    for t in (0.0, 17.25, 8760.0):
        waves = zip(series.frequencies, series.phases, strict=True)
        naive = np.sqrt(2.0 / 40.0) * sum(np.cos(w * t + p) for w, p in waves)
        assert_allclose(series(np.array([t]))[0], naive, atol=1e-10)


@given(seeds)
def test_amplitudes_make_the_variance_one(seed):
    assert_allclose(np.sum(a_field(seed).amplitudes ** 2) / 2.0, 1.0, rtol=1e-12)


@given(seeds)
def test_wavelengths_periods_and_lifetimes_are_in_the_given_ranges(seed):
    field = a_field(seed)
    wavelengths = 2.0 * np.pi / np.hypot(*field.wavevectors.T)
    assert (wavelengths > 8.0 * (1 - 1e-12)).all()
    assert (wavelengths < 600.0 * (1 + 1e-12)).all()
    periods = 2.0 * np.pi / field.meander[0].frequencies
    assert ((periods > 40.0 * (1 - 1e-12)) & (periods < 400.0 * (1 + 1e-12))).all()
    assert not a_field(seed, lifetime=np.inf).frequencies.any()


def assert_mean_zero_and_variance_one(values):
    """Allow five standard errors: 1/sqrt(n) for the mean, at most sqrt(2/n) for the variance.

    A sum of cosines at random phases has a kurtosis below the normal's 3.
    """
    n = values.size
    assert abs(values.mean()) < 5.0 / np.sqrt(n)
    assert abs(values.var() - 1.0) < 5.0 * np.sqrt(2.0 / n)


def test_over_many_places_and_times_a_field_has_mean_zero_and_variance_one():
    rng = np.random.default_rng(1)
    # Places much farther apart than 600 km, at different times: independent draws.
    east, north = rng.uniform(-1e6, 1e6, (2, 4000))
    hours = rng.uniform(0.0, 1e6, 50)
    field = replace(a_field(0), meander=STILL)
    at = [field(hours[[i]], east[i::50], north[i::50]) for i in range(50)]
    assert_mean_zero_and_variance_one(np.concatenate(at, axis=1))


def test_over_many_times_a_series_has_mean_zero_and_variance_one():
    rng = np.random.default_rng(2)
    series = Series.draw(rng, 9.0, 300.0)
    assert_mean_zero_and_variance_one(series(rng.uniform(0.0, 1e7, 5000)))


def test_over_many_seeds_a_field_has_mean_zero_and_variance_one():
    here = np.zeros(1)
    values = [a_field(seed, modes=16)(here + 5.0, here, here)[0, 0] for seed in range(2000)]
    assert_mean_zero_and_variance_one(np.array(values))


@given(seeds, st.floats(0.0, 100.0))
def test_a_field_that_does_not_evolve_drifts_with_the_wind(seed, later):
    field = replace(a_field(seed, lifetime=np.inf), meander=STILL)
    rng = np.random.default_rng(seed)
    now, (east, north) = rng.uniform(0.0, 100.0, 3), rng.uniform(-40.0, 40.0, (2, 6))
    moved = field(now + later, east + field.wind[0] * later, north + field.wind[1] * later)
    # Phases up to 0.8 rad/km times 200 h times 17 km/h, about 3000, known to 1e-12.
    assert_allclose(moved, field(now, east, north), atol=1e-10)


@given(seeds)
def test_a_shift_evaluates_the_field_at_the_shifted_place(seed):
    field = a_field(seed)
    hours, here = np.array([3.0, 1000.0]), np.array([0.0, 5.0])
    shifted = field(hours, here, here, shift=np.full((2, 2), 4.0))
    assert_allclose(shifted, field(hours, here + 4.0, here + 4.0), atol=1e-10)


def test_a_field_without_wind_or_evolution_is_constant_in_time():
    field = a_field(0, wind=(0.0, 0.0), lifetime=np.inf)
    east = np.linspace(-40.0, 40.0, 9)
    first, last = field(np.array([0.0, 8000.0]), east, -east)
    assert_array_equal(first, last)


def test_short_waves_change_faster_than_long_ones():
    field = a_field(3, modes=4000, lifetime=20.0)
    wavelengths = 2.0 * np.pi / np.hypot(*field.wavevectors.T)
    # Scaled by wavelength^(2/3), the rates are normal with deviation 2 pi / 20 600^(2/3).
    scaled = field.frequencies * 20.0 / (2.0 * np.pi) * (wavelengths / 600.0) ** (2.0 / 3.0)
    assert_mean_zero_and_variance_one(scaled)


@pytest.mark.parametrize("part", [slice(0, 1), slice(3, 7), slice(9, 10)])
def test_times_computed_alone_equal_those_of_all(part):
    field, hours = a_field(5), np.linspace(0.0, 9.0, 10)
    east = np.linspace(-40.0, 40.0, 7)
    # Matrix products of other shapes may add 128 terms of size one in another order.
    assert_allclose(field(hours[part], east, east), field(hours, east, east)[part], atol=1e-12)
