"""Kernels and their spectral densities: one contract for every listed kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError
from undulatus.gp.features import fourier_features
from undulatus.gp.kernels import KERNELS, find_kernel, mean_distance

each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
seeds = st.integers(0, 2**32 - 1)


def squared_distances(x):
    return np.sum((x[:, None] - x[None]) ** 2, axis=-1)


@each_kernel
def test_features_recover_the_correlation_at_the_monte_carlo_rate(kernel):
    n_frequencies = 20_000
    x = np.random.default_rng(0).normal(size=(30, 4))
    z = fourier_features(x, kernel.draw(np.random.default_rng(1), n_frequencies, 4))
    # One entry is a mean of D cosines of variance at most 1: standard error at most 1/sqrt(D);
    # 435 pairs, so allow 5 of them.
    exact = kernel.correlation(squared_distances(x))
    assert_allclose(z @ z.T, exact, atol=5 / np.sqrt(n_frequencies))


@each_kernel
def test_the_correlation_is_one_at_zero_and_falls_from_there(kernel):
    square = np.linspace(0.0, 30.0, 200)
    correlation = kernel.correlation(square)
    assert correlation[0] == 1.0
    assert np.all(np.diff(correlation) < 0)
    assert np.all(correlation > 0)


@each_kernel
def test_the_slope_is_the_derivative_of_the_correlation(kernel):
    square, step = np.linspace(0.05, 20.0, 100), 1e-5
    difference = kernel.correlation(square + step) - kernel.correlation(square - step)
    assert_allclose(kernel.slope(square), difference / (2 * step), rtol=1e-6, atol=1e-8)


@each_kernel
def test_the_slope_is_finite_at_zero(kernel):
    slope = kernel.slope(np.zeros(1))
    # One-sided difference; the next term of a Matérn-3/2 kernel is of order sqrt(step).
    step = 1e-10
    difference = (kernel.correlation(np.full(1, step)) - 1.0) / step
    assert_allclose(slope, difference, rtol=1e-4)


@each_kernel
@given(seed=seeds, fewer=st.integers(1, 20), more=st.integers(0, 20), d=st.integers(1, 5))
def test_a_larger_number_of_frequencies_only_appends(kernel, seed, fewer, more, d):
    few = kernel.draw(np.random.default_rng(seed), fewer, d)
    many = kernel.draw(np.random.default_rng(seed), fewer + more, d)
    assert few.shape == (fewer, d)
    assert_array_equal(many[:fewer], few)


@each_kernel
def test_the_seed_determines_the_frequencies(kernel):
    first, second = (kernel.draw(np.random.default_rng(3), 8, 2) for _ in range(2))
    assert_array_equal(first, second)


@given(arrays(np.float64, (9, 3), elements=st.floats(-1e3, 1e3)))
def test_the_mean_distance_is_the_root_mean_square_over_all_pairs(x):
    pairs = np.sqrt(np.mean(squared_distances(x)))
    if pairs > 1e-6:  # below, the squares of the differences underflow against 1e3
        assert_allclose(mean_distance(x.var(axis=0)), pairs, rtol=1e-9)


def test_the_mean_distance_of_equal_rows_is_one():
    assert mean_distance(np.zeros(4)) == 1.0


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_found_by_its_name(name):
    assert find_kernel(name) is KERNELS[name]


def test_an_unknown_kernel_is_an_error_that_lists_the_choices():
    with pytest.raises(InputError, match="periodic") as caught:
        find_kernel("periodic")
    for name in KERNELS:
        assert name in str(caught.value)
