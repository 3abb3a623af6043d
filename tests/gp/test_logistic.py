"""The logistic likelihood, the parabola below it, and its expectation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.special import expit, log_expit

from undulatus.gp.logistic import expected_sigmoid, half_slope, log_sigmoid_bound, offset

reals = st.floats(-1e3, 1e3)
sizes = st.floats(0.0, 1e3)


def rounding(f, xi):
    """What the terms of the bound may lose: a few units in the last place of the largest."""
    return 1e-14 * (1.0 + abs(f) + 0.125 * f**2 + xi)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_half_slope_is_one_eighth_at_zero(dtype):
    found = half_slope(np.zeros(1, dtype=dtype))
    assert found.dtype == dtype
    # Zero is replaced by sqrt(eps)/8, where tanh(x)/x is 1 - eps/768.
    assert_allclose(found, 0.125, rtol=2 * np.finfo(dtype).eps)


@given(st.floats(1e-2, 1e3))
def test_the_half_slope_is_that_of_the_sigmoid(xi):
    # The paper's form (ψ(ξ) - 1/2) / (2ξ) cancels towards zero: at 1e-2 it has 13 digits left.
    assert_allclose(half_slope(np.array(xi)), (expit(xi) - 0.5) / (2.0 * xi), rtol=1e-12)


@given(st.floats(1e-30, 1e-2))
def test_the_half_slope_follows_its_series_near_zero(xi):
    # tanh(x)/x = 1 - x²/3 + 2x⁴/15 - ..., the next term below 1e-14 of the whole; replacing
    # the smallest ξ costs less than a unit in the last place.
    square = (xi / 2) ** 2
    series = (1 - square / 3 + 2 * square**2 / 15) / 8
    assert_allclose(half_slope(np.array(xi)), series, rtol=1e-14)


@given(reals)
def test_the_half_slope_is_even(xi):
    assert half_slope(np.array(-xi)) == half_slope(np.array(xi))


def test_the_offset_at_zero_is_minus_the_logarithm_of_two():
    assert_allclose(offset(np.zeros(1)), -np.log(2.0), rtol=1e-15)


@given(reals, sizes)
def test_the_parabola_never_exceeds_the_log_sigmoid(f, xi):
    bound = log_sigmoid_bound(np.array(f), np.array(xi))
    assert bound <= log_expit(f) + rounding(f, xi)


@given(sizes, st.sampled_from([-1.0, 1.0]))
def test_the_parabola_touches_the_log_sigmoid_at_both_signs(xi, sign):
    bound = log_sigmoid_bound(np.array(sign * xi), np.array(xi))
    assert_allclose(bound, log_expit(sign * xi), rtol=0, atol=rounding(xi, xi))


@given(reals)
def test_without_variance_the_expectation_is_the_sigmoid(mean):
    assert expected_sigmoid(np.array(mean), np.array(0.0)) == expit(mean)


@given(reals, st.floats(0.0, 1e6))
def test_the_expectation_is_symmetric(mean, variance):
    both = expected_sigmoid(np.array([mean, -mean]), np.full(2, variance))
    assert_allclose(both.sum(), 1.0, rtol=1e-12)


def test_the_expectation_approximates_the_integral():
    mean, variance = np.meshgrid(np.linspace(-8, 8, 65), np.geomspace(1e-3, 30, 40))
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    values = expit(mean[..., None] + np.sqrt(variance)[..., None] * nodes)
    integral = values @ (weights / weights.sum())
    # Matching a probit's slope at the origin leaves at most about 0.02 between the two.
    assert_allclose(expected_sigmoid(mean, variance), integral, rtol=0, atol=0.02)
