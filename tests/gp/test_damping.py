"""Back to the prior: the share of the waves, the range of the training data, the level."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit

from undulatus.gp.bound import Statistics
from undulatus.gp.damping import (
    EXCESS,
    SMALLEST_MARGIN,
    Fading,
    TrainingRange,
    damping,
    level,
    spreads,
)
from undulatus.gp.fourier import fourier_features
from undulatus.gp.posterior import expected_sigmoid, latent_moments, solve_posterior

seeds = st.integers(0, 2**32 - 1)
variances = st.floats(1e-3, 1e3)
log_odds_values = st.floats(-8.0, 8.0)

FAR = np.array([[1e3, -1e3], [0.0, 1e3]])
"""Pixels where no wave is left: 1e3 times a spread of 0.1 is a share of exp(-5000)."""


def some_range(d=2):
    return TrainingRange.from_quantiles(
        np.full(d, -2.0), np.full(d, -0.5), np.full(d, 0.7), np.full(d, 2.5)
    )


def fading(signal_variance=1.7, log_odds=-1.2, share=0.1, shift=0.0):
    spread = np.full(2, share)
    own = level(log_odds, signal_variance)
    return Fading(spread, some_range(), signal_variance, own, shift)


def some_posterior(seed=0, k=8):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(k, k))
    return solve_posterior(root @ root.T + np.eye(k), rng.normal(size=k))


def moments_at(x, fade, posterior, frequencies):
    """Latent mean and variance at pixels: of the waves, then damped."""
    z = fourier_features(x, frequencies, fade.signal_variance)
    waves = latent_moments(z, posterior.mean, posterior.root.T)
    return fade.moments(x, *waves)


# The share of the waves


@given(seeds, st.floats(0.0, 1.0))
def test_the_spread_is_a_share_of_the_root_mean_square_of_each_features_frequencies(seed, share):
    frequencies = np.random.default_rng(seed).normal(size=(6, 3)) * [0.1, 1.0, 10.0]
    expected = [share * np.sqrt(np.mean(column**2)) for column in frequencies.T]
    assert_allclose(spreads(frequencies, share), expected, rtol=1e-12)


def test_the_share_is_that_of_a_wave_whose_frequency_is_known_up_to_a_gaussian_error():
    rng, n = np.random.default_rng(0), 100_000
    x, mean, spread = np.array([[0.7, -1.5]]), np.array([1.3, 0.4]), np.array([0.5, 0.2])
    waves = np.cos((mean + spread * rng.normal(size=(n, 2))) @ x[0])
    # A cosine has a deviation below 1: five standard errors.
    expected = damping(x, spread)[0] * np.cos(mean @ x[0])
    assert_allclose(waves.mean(), expected, atol=5 / np.sqrt(n))


@given(seeds)
def test_the_share_lies_between_zero_and_one_and_falls_away_from_the_middle(seed):
    rng = np.random.default_rng(seed)
    x, spread = rng.normal(size=(9, 3)), rng.uniform(0.0, 1.0, 3)
    near, far = damping(x, spread), damping(1.5 * x, spread)
    assert np.all((far > 0.0) & (far <= near) & (near <= 1.0))
    assert_array_equal(damping(np.zeros((1, 3)), spread), [1.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_share_has_the_precision_of_the_pixels(dtype):
    x = np.random.default_rng(0).normal(size=(9, 2))
    exact = fading().share(3.0 * x)
    found = fading().share((3.0 * x).astype(dtype))
    assert found.dtype == dtype
    assert_allclose(found, exact, rtol=1e-12 if dtype == np.float64 else 1e-4)
    waves = np.ones(9, dtype), np.ones(9, dtype)
    for part in fading(shift=0.5).moments((3.0 * x).astype(dtype), *waves):
        assert part.dtype == dtype


# The range of the training data


@given(seeds)
def test_within_the_range_waves_are_not_damped_any_further(seed):
    x = np.random.default_rng(seed).uniform(-2.0, 2.5, size=(20, 2))
    assert some_range().damping(x) is None
    edges = np.array([[-2.0, -2.0], [2.5, 2.5]])
    assert some_range().damping(edges) is None
    assert_array_equal(fading().share(x)[0], damping(x, fading().spread))


@given(st.floats(1e-3, 3.0), st.floats(1.01, 3.0), st.sampled_from([0, 1]))
def test_beyond_the_range_the_damping_grows_with_the_distance(distance, factor, column):
    inside = np.array([1.0, 1.0])
    shares = []
    for excess in (distance, factor * distance):
        x = np.tile(inside, (2, 1))
        x[:, column] = [-2.0 - excess, 2.5 + excess]
        shares.append(some_range().damping(x))
        # In units of the distance between the end and its quartile: 1.5 below, 1.8 above.
        expected = np.exp(-0.5 * EXCESS * (excess / np.array([1.5, 1.8])) ** 2)
        assert_allclose(shares[-1], expected, rtol=1e-10)
    assert np.all(shares[1] < shares[0])
    assert np.all(shares[0] < 1.0)


def test_a_pixel_within_the_range_is_not_damped_because_another_is_outside():
    x = np.array([[0.0, 0.0], [9.0, 0.0], [2.5, -2.0]])
    found = some_range().damping(x)
    assert_array_equal(found[[0, 2]], 1.0)
    assert found[1] < 1e-6


def test_the_excess_of_all_features_adds_up():
    both, one, other = np.array([[3.0, -3.0], [3.0, 0.0], [0.0, -3.0]])[:, None]
    within = some_range()
    product = within.damping(one) * within.damping(other)
    assert_allclose(within.damping(both), product, rtol=1e-12)


def test_a_feature_that_hardly_varied_has_a_margin():
    constant = np.zeros(1)
    within = TrainingRange.from_quantiles(constant, constant, constant, constant)
    assert_array_equal(within.below, SMALLEST_MARGIN)
    assert_array_equal(within.above, SMALLEST_MARGIN)
    assert within.damping(np.zeros((1, 1))) is None
    found = within.damping(np.array([[SMALLEST_MARGIN]]))
    assert_allclose(found, np.exp(-0.5 * EXCESS), rtol=1e-12)


# The prior


@given(seeds, variances)
def test_under_the_prior_the_variance_is_the_signal_variance_everywhere(seed, signal_variance):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2)) * rng.choice([0.1, 1.0, 10.0, 1e3], size=(20, 1))
    prior = Statistics(np.zeros((8, 8)), np.zeros(8), 0.0).posterior()
    fade = fading(signal_variance)
    mean, variance = moments_at(x, fade, prior, rng.normal(size=(4, 2)))
    assert_allclose(variance, signal_variance, rtol=1e-12)
    assert_array_equal(mean, fade.level)


def test_drawn_functions_have_the_moments_that_are_stated():
    # f = b + d z'w + sqrt(1 - d²) h, drawn; inside, at the edge, and outside the range.
    rng, n = np.random.default_rng(0), 100_000
    x = np.array([[0.3, 0.2], [2.4, -1.9], [2.9, 0.0], [6.0, 1.0]])
    fade, posterior, frequencies = fading(share=0.3), some_posterior(), rng.normal(size=(4, 2))
    kept = fade.share(x)[0]
    z = fourier_features(x, frequencies, fade.signal_variance)
    w = posterior.mean + rng.normal(size=(n, 8)) @ posterior.root
    h = np.sqrt(fade.signal_variance) * rng.normal(size=(n, 4))
    f = fade.level + kept * (w @ z.T) + np.sqrt(1.0 - kept**2) * h
    (mean,), (variance,) = moments_at(x, fade, posterior, frequencies)
    # Five standard errors of a mean and of a variance.
    assert np.all(np.abs(f.mean(axis=0) - mean) < 5 * np.sqrt(variance / n))
    assert_allclose(f.var(axis=0), variance, rtol=5 * np.sqrt(2 / n))


@given(seeds, variances, log_odds_values)
def test_far_away_the_probability_is_the_share_of_the_class(seed, signal_variance, log_odds):
    fade = fading(signal_variance, log_odds)
    frequencies = np.random.default_rng(seed).normal(size=(4, 2))
    mean, variance = moments_at(FAR, fade, some_posterior(seed), frequencies)
    assert_array_equal(mean, fade.level)
    assert_allclose(variance, signal_variance, rtol=1e-12)
    assert_allclose(expected_sigmoid(mean, variance), expit(log_odds), rtol=1e-12)
    assert_array_equal(fade.mean(FAR, np.ones(2)), mean)


@given(variances, log_odds_values, log_odds_values)
def test_far_away_a_shift_of_the_log_odds_is_added_to_them(signal_variance, log_odds, shift):
    fade = fading(signal_variance, log_odds, shift=shift)
    mean, variance = moments_at(FAR, fade, some_posterior(), np.ones((4, 2)))
    # Terms of size 8 times sqrt(1 + π/8 γ) are added and divided by that again.
    found = mean / np.sqrt(1.0 + np.pi / 8.0 * variance)
    assert_allclose(found, log_odds + shift, rtol=1e-12, atol=1e-13)


@given(seeds, st.floats(-3.0, 3.0))
def test_where_nothing_is_damped_a_shift_is_added_to_the_latent_mean(seed, shift):
    x = np.zeros((1, 2))
    waves = np.array([0.4]), np.array([0.9])
    plain, shifted = (fading(shift=s).moments(x, *waves) for s in (0.0, shift))
    assert_allclose(shifted[0] - plain[0], shift, rtol=0, atol=1e-14)
    assert_array_equal(shifted[1], plain[1])


@given(seeds, st.floats(-3.0, 3.0))
def test_a_zero_spread_changes_nothing_but_level_and_shift(seed, shift):
    rng = np.random.default_rng(seed)
    fade, x = fading(share=0.0, shift=shift), 100.0 * rng.normal(size=(9, 2))
    waves = rng.normal(size=9), rng.uniform(0.1, 2.0, 9)
    assert fade.share(x) is None
    mean, variance = fade.moments(x, *waves)
    assert_array_equal(variance, waves[1])
    assert_array_equal(mean, waves[0] + (fade.level + shift))
    assert_array_equal(fade.mean(x, waves[0]), mean)


@given(seeds, st.floats(-3.0, 3.0))
def test_the_mean_alone_is_that_of_both_moments(seed, shift):
    rng = np.random.default_rng(seed)
    fade, x = fading(shift=shift), 3.0 * rng.normal(size=(9, 2))
    waves = rng.normal(size=9), rng.uniform(0.1, 2.0, 9)
    assert_array_equal(fade.mean(x, waves[0]), fade.moments(x, *waves)[0])


@given(log_odds_values, variances)
def test_the_level_gives_the_prior_these_log_odds(log_odds, signal_variance):
    found = expected_sigmoid(np.array(level(log_odds, signal_variance)), signal_variance)
    assert_allclose(found, expit(log_odds), rtol=1e-12)


def test_without_log_odds_there_is_no_level():
    assert level(0.0, 7.0) == 0.0
