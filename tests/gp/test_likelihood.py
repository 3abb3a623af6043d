"""The two bounds on the logistic likelihood: inequalities, expectations, slopes, sites."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from scipy.integrate import quad
from scipy.special import expit, log_expit
from scipy.stats import norm
from tests.gp.problems import BOUNDS

from undulatus.gp.likelihood import (
    EXPECTED,
    POSTERIORS,
    QUADRATIC,
    expected_log_sigmoid,
    lambda_xi,
    log_sigmoid_offset,
)

reals = st.floats(-1e3, 1e3)
sizes = st.floats(0.0, 1e3)
signs = st.sampled_from([-1.0, 1.0])


# The quadratic bound


def log_sigmoid_bound(f, xi):
    """The quadratic lower bound on log ψ(f) that touches it at f = ±ξ (ξ >= 0)."""
    return 0.5 * f - lambda_xi(xi) * f**2 + log_sigmoid_offset(xi)


def rounding(f, xi):
    """Rounding error of the bound: a few units in the last place of its largest term."""
    return 1e-14 * (1.0 + abs(f) + 0.125 * f**2 + xi)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_lambda_is_one_eighth_at_zero(dtype):
    found = lambda_xi(np.zeros(1, dtype=dtype))
    assert found.dtype == dtype
    # Zero is replaced by sqrt(eps)/8, where tanh(x)/x is 1 - eps/768.
    assert_allclose(found, 0.125, rtol=2 * np.finfo(dtype).eps)


@given(st.floats(1e-2, 1e3))
def test_lambda_is_half_the_slope_of_a_chord_of_the_sigmoid(xi):
    # The paper's form (ψ(ξ) - 1/2) / (2ξ) cancels towards zero: at 1e-2 it has 13 digits left.
    assert_allclose(lambda_xi(np.array(xi)), (expit(xi) - 0.5) / (2.0 * xi), rtol=1e-12)


@given(st.floats(1e-30, 1e-2))
def test_lambda_follows_its_series_near_zero(xi):
    # tanh(x)/x = 1 - x²/3 + 2x⁴/15 - ..., the next term below 1e-14 of the whole; replacing
    # the smallest ξ costs less than a unit in the last place.
    square = (xi / 2) ** 2
    series = (1 - square / 3 + 2 * square**2 / 15) / 8
    assert_allclose(lambda_xi(np.array(xi)), series, rtol=1e-14)


@given(reals)
def test_lambda_is_even(xi):
    assert lambda_xi(np.array(-xi)) == lambda_xi(np.array(xi))


@given(st.floats(0.0, 30.0))
def test_the_offset_is_log_c_of_the_paper(xi):
    paper = lambda_xi(np.array(xi)) * xi**2 + xi / 2 - np.log(1 + np.exp(xi))
    assert_allclose(log_sigmoid_offset(np.array(xi)), paper, rtol=1e-12, atol=1e-14)


def test_the_offset_does_not_overflow():
    assert_allclose(log_sigmoid_offset(np.array([1e4])), -2500.0, rtol=1e-12)


@given(reals, sizes)
def test_the_parabola_never_exceeds_the_log_sigmoid(f, xi):
    bound = log_sigmoid_bound(np.array(f), np.array(xi))
    assert bound <= log_expit(f) + rounding(f, xi)


@given(sizes, signs)
def test_the_parabola_touches_the_log_sigmoid_at_both_signs(xi, sign):
    bound = log_sigmoid_bound(np.array(sign * xi), np.array(xi))
    assert_allclose(bound, log_expit(sign * xi), rtol=0, atol=rounding(xi, xi))


@given(st.floats(-20.0, 20.0), st.floats(0.01, 50.0), signs, st.floats(0.0, 30.0))
def test_quadratic_sites_are_the_expected_parabola_at_its_best_xi(mean, variance, sign, other):
    found = QUADRATIC.sites(*np.array([[mean], [variance], [sign]]), np)
    precision, residual, value = (part[0] for part in found)
    xi = np.sqrt(variance + mean**2)
    assert_allclose(precision, 2.0 * lambda_xi(xi), rtol=1e-12)
    assert_allclose(residual + precision * mean, 0.5 * sign, rtol=1e-12, atol=1e-12)
    # E (h f - c f²/2) + value is the expectation of the bound at ±f.
    expected = 0.5 * sign * mean - 0.5 * precision * xi**2 + value
    line, parabola = 0.5 * sign * mean, lambda_xi(xi) * (variance + mean**2)
    assert_allclose(expected, line - parabola + log_sigmoid_offset(xi), rtol=1e-12, atol=1e-12)
    # No other ξ gives more.
    worse = line - lambda_xi(np.array(other)) * xi**2 + log_sigmoid_offset(np.array(other))
    assert worse <= expected + rounding(mean, xi)


# Expectations of the log likelihood


def integrate(function, mean, variance):
    def integrand(f):
        return function(f) * norm.pdf(f, mean, np.sqrt(variance))

    edges = mean + np.sqrt(variance) * np.array([-12.0, 12.0])
    points = [p for p in (-1.0, 0.0, 1.0, mean) if edges[0] < p < edges[1]]
    return quad(integrand, *edges, points=points, limit=500, epsabs=1e-13)[0]


@pytest.mark.parametrize("mean", [-6.0, -1.0, 0.0, 0.5, 3.0, 12.0])
@pytest.mark.parametrize("variance", [1e-4, 0.1, 1.0, 6.0])
def test_expectations_are_those_of_adaptive_quadrature(mean, variance):
    found = expected_log_sigmoid(np.array([mean]), np.array([variance]))
    functions = (log_expit, lambda f: expit(-f), lambda f: expit(f) * expit(-f))
    expected = [integrate(function, mean, variance) for function in functions]
    # Sixteen nodes: the poles of ψ, 3.1 from the axis, are 1.3 deviations away at variance 6.
    assert_allclose(np.ravel(found), expected, rtol=0, atol=1e-8 if variance < 2 else 2e-4)


def test_a_wide_gaussian_sees_a_kink_of_the_right_slope():
    # ψ' has a width of 2 where nodes are 60 or more apart: it must not fall between them. As
    # the deviation grows, log ψ(f) tends to min(f, 0), and E ψ' to the density at zero.
    for mean in np.linspace(-100.0, 100.0, 21):
        value, slope, curvature = expected_log_sigmoid(np.array([mean]), np.array([1e4]))
        below = norm.cdf(-mean / 100.0)
        expected = mean * below - 100.0 * norm.pdf(mean / 100.0)
        # Quadrature of a kink by 16 nodes is good to a tenth or so of the deviation.
        assert_allclose(value, expected, atol=5.0)
        assert_allclose(slope, below, atol=0.15)
        assert 0.4 < curvature[0] / norm.pdf(mean, 0.0, 100.0) < 1.6


@given(st.floats(-30, 30), st.floats(1e-3, 1e3))
def test_slopes_are_those_of_finite_differences(mean, variance):
    def value(mean, variance):
        return expected_log_sigmoid(np.array([mean]), np.array([variance]))[0][0]

    _, slope, curvature = expected_log_sigmoid(np.array([mean]), np.array([variance]))
    step = 1e-5
    in_mean = (value(mean + step, variance) - value(mean - step, variance)) / (2 * step)
    step = 1e-4 * variance
    in_variance = (value(mean, variance + step) - value(mean, variance - step)) / (2 * step)
    # A value of size up to 60 is rounded to 1e-14, and divided by twice the step.
    assert_allclose(slope[0], in_mean, rtol=1e-6, atol=1e-8)
    assert_allclose(curvature[0], -2.0 * in_variance, rtol=1e-5, atol=1e-8 + 1e-13 / step)


def test_the_curvature_is_positive_however_sure_the_sigmoid():
    mean = np.array([-800.0, -60.0, -38.0, 38.0, 800.0])
    for variance in (0.0, 1e-8, 1.0):
        _, _, curvature = expected_log_sigmoid(mean, np.full(5, variance))
        assert np.all(curvature > 0.0)
        assert np.all(curvature < 1e-6)


@given(st.floats(-20.0, 20.0), st.floats(0.01, 50.0), signs)
def test_expected_sites_are_slope_and_curvature_on_the_side_of_the_class(mean, variance, sign):
    found = EXPECTED.sites(*np.array([[mean], [variance], [sign]]), np)
    value, slope, curvature = expected_log_sigmoid(np.array([sign * mean]), np.array([variance]))
    assert_allclose(found, [curvature, sign * slope, value], rtol=1e-12)


@pytest.mark.parametrize("bound", POSTERIORS.values(), ids=POSTERIORS)
@given(st.floats(-20.0, 20.0), st.floats(0.01, 50.0), signs)
def test_the_residual_is_the_slope_of_the_bound_in_the_mean(bound, mean, variance, sign):
    def value(mean):
        found = bound.sites(*np.array([[mean], [variance], [sign]]), np)
        if not bound.conjugate:
            return found.value[0]
        # E (h f - c f²/2) with h = r + cμ.
        slope, precision = found.residual[0], found.precision[0]
        return slope * mean + 0.5 * precision * (mean**2 - variance) + found.value[0]

    step = 1e-5
    slope = (value(mean + step) - value(mean - step)) / (2 * step)
    found = bound.sites(*np.array([[mean], [variance], [sign]]), np)
    assert_allclose(found.residual[0], slope, rtol=1e-6, atol=1e-8)


def test_each_posterior_is_that_of_a_bound_with_a_slow_one():
    assert set(POSTERIORS.values()) == {bound for bound, _ in BOUNDS.values()}


@given(st.floats(-20.0, 20.0), st.floats(0.01, 50.0), signs)
def test_the_expectation_is_the_tighter_bound(mean, variance, sign):
    at = np.array([[mean], [variance], [sign]])
    quadratic, expected = (bound.sites(*at, np) for bound in (QUADRATIC, EXPECTED))
    line = 0.5 * sign * mean - 0.5 * quadratic.precision[0] * (variance + mean**2)
    # The quadrature is good to 1e-3 of the deviation at these variances.
    slack = 2e-3 * np.sqrt(variance)
    assert expected.value[0] >= line + quadratic.value[0] - slack
