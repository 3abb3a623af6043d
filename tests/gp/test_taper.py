"""Back to the prior: the share that is kept, the range of the training data, the prior mean."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit
from tests.gp.problems import latent_moments

from undulatus.gp.backends import HOST, make_backend
from undulatus.gp.features import fourier_features
from undulatus.gp.posterior import expected_sigmoid, solve_posterior
from undulatus.gp.taper import (
    EARLIER_EDGE_SLOPE,
    EXCESS,
    SMALLEST_MARGIN,
    Taper,
    frequency_deviations,
    kept_share,
    prior_mean,
    range_share,
    tapered_features,
)

seeds = st.integers(0, 2**32 - 1)
variances = st.floats(1e-3, 1e3)
log_odds_values = st.floats(-8.0, 8.0)

FAR = np.array([[1e3, -1e3], [0.0, 1e3]])
"""Rows where no feature is left: 1e3 times a deviation of 0.1 is a share of exp(-5000)."""


ENDS = np.outer([-2.0, -0.5, 0.7, 2.5], np.ones(2))
"""Smallest value, quartiles and largest value of two features."""


def some_taper(signal_variance=1.7, log_odds=-1.2, share=0.1, shift=0.0, dtype=np.float64):
    """The taper of one estimator with one latent function."""
    xp = make_backend(dtype)
    own = prior_mean(log_odds, signal_variance)
    return Taper(
        xp,
        xp.array(np.full((1, 2), share)) if share else None,
        xp.array(ENDS),
        xp.array([[[signal_variance]]]),
        xp.array([[[own]]]),
        shift,
    )


def some_posterior(seed=0, k=8):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(k, k))
    return solve_posterior(root @ root.T + np.eye(k), rng.normal(size=k))


def moments_at(x, taper, posterior, frequencies):
    """Latent mean and variance, (n,) each: of untapered features, then tapered."""
    z = fourier_features(x, frequencies, taper.signal_variance.item())
    mean, variance = latent_moments(z, posterior)
    return (
        own[0, 0] for own in taper.moments(taper.share(x), mean[None, None], variance[None, None])
    )


# The share of the features


@given(seeds, st.floats(0.01, 1.0))
def test_deviations_are_a_share_of_the_root_mean_square_of_each_features_frequencies(seed, share):
    frequencies = np.random.default_rng(seed).normal(size=(2, 6, 3)) * [0.1, 1.0, 10.0]
    expected = [[share * np.sqrt(np.mean(own**2)) for own in each.T] for each in frequencies]
    assert_allclose(frequency_deviations(frequencies, share), expected, rtol=1e-12)
    assert_allclose(frequency_deviations(frequencies[1], share), expected[1], rtol=1e-12)
    assert frequency_deviations(frequencies, 0.0) is None


def test_the_share_is_that_of_a_wave_whose_frequency_is_known_up_to_a_gaussian_error():
    rng, n = np.random.default_rng(0), 100_000
    x, mean, deviations = np.array([[0.7, -1.5]]), np.array([1.3, 0.4]), np.array([0.5, 0.2])
    waves = np.cos((mean + deviations * rng.normal(size=(n, 2))) @ x[0])
    # A cosine has a deviation below 1: five standard errors.
    expected = kept_share(x, deviations)[0] * np.cos(mean @ x[0])
    assert_allclose(waves.mean(), expected, atol=5 / np.sqrt(n))


@given(seeds)
def test_the_share_lies_between_zero_and_one_and_falls_away_from_the_middle(seed):
    rng = np.random.default_rng(seed)
    x, deviations = rng.normal(size=(9, 3)), rng.uniform(0.0, 1.0, 3)
    near, far = kept_share(x, deviations), kept_share(1.5 * x, deviations)
    assert np.all((far > 0.0) & (far <= near) & (near <= 1.0))
    assert_array_equal(kept_share(np.zeros((1, 3)), deviations), [1.0])


def test_shares_of_several_estimators_are_those_of_each():
    rng = np.random.default_rng(0)
    x, deviations = rng.normal(size=(2, 9, 3)), rng.uniform(0.0, 1.0, (2, 3))
    same_rows, own_rows = kept_share(x[0], deviations), kept_share(x, deviations)
    for i in range(2):
        assert_allclose(same_rows[i], kept_share(x[0], deviations[i]), rtol=1e-12)
        assert_allclose(own_rows[i], kept_share(x[i], deviations[i]), rtol=1e-12)


@given(seeds)
def test_the_prior_variance_of_tapered_features_and_the_rest_make_one(seed):
    rng = np.random.default_rng(seed)
    x, frequencies = 3.0 * rng.normal(size=(9, 3)), rng.normal(size=(4, 3))
    deviations = rng.uniform(0.0, 0.6, 3)
    z, untapered = tapered_features(x, frequencies, deviations, HOST)
    z = z.copy()  # It is in the workspace.
    assert_allclose(np.sum(z**2, axis=1) + untapered, 1.0, rtol=1e-12)
    kept = kept_share(x, deviations)
    expected = kept[:, None] * fourier_features(x, frequencies)
    assert_allclose(z, expected, rtol=1e-12, atol=1e-14)
    z, untapered = tapered_features(x, frequencies, None, HOST)
    assert_allclose(z.copy(), fourier_features(x, frequencies), rtol=1e-12, atol=1e-14)
    assert_array_equal(untapered, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tapers_have_the_precision_of_the_rows(dtype):
    x = 3.0 * np.random.default_rng(0).normal(size=(9, 2))
    exact, found = some_taper().share(x), some_taper(dtype=dtype).share(x.astype(dtype))
    assert found.dtype == dtype
    assert_allclose(found, exact, rtol=1e-12 if dtype == np.float64 else 1e-4)
    ones = np.ones((1, 1, 9), dtype)
    for part in some_taper(shift=0.5, dtype=dtype).moments(found, ones, ones):
        assert part.dtype == dtype


# The range of the training data


@given(seeds)
def test_within_the_range_features_are_not_tapered_any_further(seed):
    x = np.random.default_rng(seed).uniform(-2.0, 2.5, size=(20, 2))
    assert range_share(x, ENDS) is None
    assert range_share(np.array([[-2.0, -2.0], [2.5, 2.5]]), ENDS) is None
    assert_array_equal(some_taper().share(x)[0, 0], kept_share(x, np.full(2, 0.1)))


@given(st.floats(1e-3, 3.0), st.floats(1.01, 3.0), st.sampled_from([0, 1]))
def test_beyond_the_range_the_share_falls_with_the_distance(distance, factor, column):
    shares = []
    for excess in (distance, factor * distance):
        x = np.ones((2, 2))
        x[:, column] = [-2.0 - excess, 2.5 + excess]
        shares.append(range_share(x, ENDS))
        # In units of the distance between the end and its quartile: 1.5 below, 1.8 above.
        squares = (excess / np.array([1.5, 1.8])) ** 2
        expected = np.exp(-0.5 * EXCESS * squares**2 / (1.0 + squares))
        assert_allclose(shares[-1], expected, rtol=1e-10)
        # Models of earlier versions do not wait at the edge.
        earlier = range_share(x, ENDS, EARLIER_EDGE_SLOPE)
        assert_allclose(earlier, np.exp(-0.5 * EXCESS * squares), rtol=1e-10)
    assert np.all(shares[1] < shares[0])
    assert np.all(shares[0] < 1.0)


def test_a_row_within_the_range_is_not_tapered_because_another_is_outside():
    x = np.array([[0.0, 0.0], [9.0, 0.0], [2.5, -2.0]])
    found = range_share(x, ENDS)
    assert_array_equal(found[[0, 2]], 1.0)
    assert found[1] < 1e-6


def test_the_excess_of_all_features_adds_up():
    both, one, other = np.array([[3.0, -3.0], [3.0, 0.0], [0.0, -3.0]])[:, None]
    squares = [-np.log(range_share(x, ENDS, EARLIER_EDGE_SLOPE)) for x in (both, one, other)]
    assert_allclose(squares[0], squares[1] + squares[2], rtol=1e-12)
    assert (range_share(both, ENDS) < range_share(one, ENDS) * range_share(other, ENDS)).all()


def test_a_feature_that_hardly_varied_has_a_margin():
    constant = np.zeros((4, 1))
    assert range_share(np.zeros((1, 1)), constant) is None
    for sign in (-1.0, 1.0):
        found = range_share(np.array([[sign * SMALLEST_MARGIN]]), constant)
        assert_allclose(found, np.exp(-0.25 * EXCESS), rtol=1e-12)


# The prior


@given(seeds, variances)
def test_under_the_prior_the_variance_is_the_signal_variance_everywhere(seed, signal_variance):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(20, 2)) * rng.choice([0.1, 1.0, 10.0, 1e3], size=(20, 1))
    prior, taper = solve_posterior(np.eye(8), np.zeros(8)), some_taper(signal_variance)
    mean, variance = moments_at(x, taper, prior, rng.normal(size=(4, 2)))
    assert_allclose(variance, signal_variance, rtol=1e-12)
    assert_array_equal(mean, taper.prior_mean.item())


def test_drawn_functions_have_the_moments_that_are_stated():
    # f = b + d z'w + sqrt(1 - d²) h, drawn; inside, at the edge, and outside the range.
    rng, n = np.random.default_rng(0), 100_000
    x = np.array([[0.3, 0.2], [2.4, -1.9], [2.9, 0.0], [6.0, 1.0]])
    taper, posterior, frequencies = (
        some_taper(share=0.3),
        some_posterior(),
        rng.normal(size=(4, 2)),
    )
    kept = taper.share(x)[0, 0]
    w = posterior.mean + rng.normal(size=(n, 8)) @ posterior.root
    h = np.sqrt(1.7) * rng.normal(size=(n, 4))
    f = kept * (w @ fourier_features(x, frequencies, 1.7).T) + np.sqrt(1.0 - kept**2) * h
    f += taper.prior_mean.item()
    mean, variance = moments_at(x, taper, posterior, frequencies)
    # Five standard errors of a mean and of a variance.
    assert np.all(np.abs(f.mean(axis=0) - mean) < 5 * np.sqrt(variance / n))
    assert_allclose(f.var(axis=0), variance, rtol=5 * np.sqrt(2 / n))


@given(seeds, variances, log_odds_values)
def test_far_away_the_probability_is_the_share_of_the_class(seed, signal_variance, log_odds):
    taper = some_taper(signal_variance, log_odds)
    frequencies = np.random.default_rng(seed).normal(size=(4, 2))
    mean, variance = moments_at(FAR, taper, some_posterior(seed), frequencies)
    assert_array_equal(mean, taper.prior_mean.item())
    assert_allclose(variance, signal_variance, rtol=1e-12)
    assert_allclose(expected_sigmoid(mean, variance), expit(log_odds), rtol=1e-12)


@given(variances, log_odds_values, log_odds_values)
def test_far_away_a_shift_of_the_log_odds_is_added_to_them(signal_variance, log_odds, shift):
    taper = some_taper(signal_variance, log_odds, shift=shift)
    mean, variance = moments_at(FAR, taper, some_posterior(), np.ones((4, 2)))
    # Terms of size 8 times sqrt(1 + π/8 γ) are added and divided by that again.
    found = mean / np.sqrt(1.0 + np.pi / 8.0 * variance)
    assert_allclose(found, log_odds + shift, rtol=1e-12, atol=1e-13)


@given(st.floats(-3.0, 3.0))
def test_where_nothing_is_tapered_a_shift_is_added_to_the_latent_mean(shift):
    moments = np.full((1, 1, 1), 0.4), np.full((1, 1, 1), 0.9)
    plain, shifted = (
        some_taper(shift=own).moments(np.ones((1, 1, 1)), *moments) for own in (0.0, shift)
    )
    assert_allclose(shifted[0] - plain[0], shift, rtol=0, atol=1e-14)
    assert_array_equal(shifted[1], plain[1])


@given(seeds, st.floats(-3.0, 3.0))
def test_without_a_taper_nothing_but_prior_mean_and_shift_is_added(seed, shift):
    rng = np.random.default_rng(seed)
    taper, x = some_taper(share=0.0, shift=shift), 100.0 * rng.normal(size=(9, 2))
    own_mean, own_variance = rng.normal(size=(1, 1, 9)), rng.uniform(0.1, 2.0, (1, 1, 9))
    assert taper.share(x) is None
    mean, variance = taper.moments(taper.share(x), own_mean, own_variance)
    assert_array_equal(variance, own_variance)
    assert_array_equal(mean, own_mean + (taper.prior_mean + shift))


@given(seeds, st.floats(-3.0, 3.0))
def test_several_estimators_and_latent_functions_are_each_as_alone(seed, shift):
    rng = np.random.default_rng(seed)
    x, (mean, variance) = 3.0 * rng.normal(size=(9, 2)), rng.uniform(0.1, 2.0, (2, 2, 3, 9))
    gammas, b = rng.uniform(0.5, 3.0, (2, 3, 1)), rng.normal(size=(2, 3, 1))
    deviations = rng.uniform(0.0, 0.3, (2, 2))
    together = Taper(HOST, deviations, ENDS, gammas, b, shift)
    found = together.moments(together.share(x), mean, variance)
    for m, c in np.ndindex(2, 3):
        own = slice(m, m + 1), slice(c, c + 1)
        alone = Taper(HOST, deviations[m : m + 1], ENDS, gammas[own], b[own], shift)
        alone_moments = alone.moments(alone.share(x), mean[own], variance[own])
        for part, expected in zip(found, alone_moments, strict=True):
            assert_allclose(part[own], expected, rtol=1e-12)


@given(log_odds_values, variances)
def test_the_prior_mean_gives_the_prior_these_log_odds(log_odds, signal_variance):
    found = expected_sigmoid(np.array(prior_mean(log_odds, signal_variance)), signal_variance)
    assert_allclose(found, expit(log_odds), rtol=1e-12)


def test_without_log_odds_the_prior_mean_is_zero():
    assert prior_mean(0.0, 7.0) == 0.0
