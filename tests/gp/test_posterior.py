"""The posterior of the weights: dense algebra, jitter, latent moments, and probabilities."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit

from undulatus.errors import NumericalError, UndulatusError
from undulatus.gp.backends import HOST, make_backend
from undulatus.gp.cholesky import JITTER_LADDER, factorise, solve_moments
from undulatus.gp.posterior import (
    PROBABILITY_PER_VARIANCE,
    FourierFit,
    LatentFit,
    expected_sigmoid,
    mean_of,
    share_of_tolerance,
    solve_posterior,
    variance_root,
)

seeds = st.integers(0, 2**32 - 1)
reals = st.floats(-1e3, 1e3)


# Factors and posteriors


def random_precision(rng, k, scale=10.0):
    root = rng.normal(size=(k, k)) * np.sqrt(scale)
    return root @ root.T + np.eye(k)


def indefinite(rng, k, smallest):
    """A symmetric matrix of mean diagonal near 1 with one negative eigenvalue, ``smallest``."""
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    values = np.append(np.full(k - 1, 1.0), smallest)
    matrix = (basis * values) @ basis.T
    return (matrix + matrix.T) / 2


@given(seeds, st.integers(1, 12))
def test_the_posterior_is_that_of_dense_algebra(seed, k):
    rng = np.random.default_rng(seed)
    precision, projected = random_precision(rng, k), rng.normal(size=k)
    found = solve_posterior(precision, projected)
    covariance = np.linalg.inv(precision)
    mean = covariance @ projected
    # The precision is I plus a gram of size 10 k: its condition stays near 1e3.
    assert found.jitter == 0.0
    assert_allclose(found.mean, mean, rtol=1e-10, atol=1e-12)
    assert_allclose(found.covariance, covariance, rtol=1e-10, atol=1e-12)
    log_determinant = -np.linalg.slogdet(precision)[1]
    divergence = 0.5 * (np.trace(covariance) + mean @ mean - k - log_determinant)
    assert_allclose(found.divergence, divergence, rtol=1e-10, atol=1e-10)
    assert_allclose(found.log_determinant, np.linalg.slogdet(precision)[1], rtol=1e-10, atol=1e-10)
    assert_allclose(found.quadratic, mean @ precision @ mean, rtol=1e-10)


@given(seeds)
def test_the_root_is_the_inverse_of_the_lower_factor(seed):
    rng = np.random.default_rng(seed)
    precision = random_precision(rng, 6)
    factor, jitter = factorise(precision)
    posterior = solve_posterior(precision, np.ones(6))
    assert jitter == 0.0
    assert_array_equal(factor, np.tril(factor))
    assert_array_equal(posterior.root, np.tril(posterior.root))
    assert_allclose(factor @ factor.T, precision, rtol=1e-12, atol=1e-12)
    assert_allclose(posterior.root @ factor, np.eye(6), atol=1e-12)


@given(seeds, st.integers(1, 12))
def test_moments_alone_are_those_of_the_posterior(seed, k):
    rng = np.random.default_rng(seed)
    precision, projected = random_precision(rng, k), rng.normal(size=k)
    kept = precision.copy()
    posterior = solve_posterior(precision, projected)
    mean, covariance = solve_moments(precision, projected)
    assert_array_equal(precision, kept)
    assert_array_equal(mean, posterior.mean)
    assert_array_equal(covariance, covariance.T)
    assert_allclose(covariance, posterior.covariance, rtol=1e-10, atol=1e-13)


def test_a_matrix_in_single_precision_is_factorised_in_double():
    matrix = random_precision(np.random.default_rng(0), 5).astype(np.float32)
    kept = matrix.copy()
    factor, _ = factorise(matrix)
    assert factor.dtype == np.float64
    assert_allclose(factor @ factor.T, matrix.astype(np.float64), rtol=1e-12)
    assert_array_equal(matrix, kept)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e12])
@pytest.mark.parametrize("share", JITTER_LADDER[1:])
def test_jitter_is_the_first_rung_that_suffices_relative_to_the_mean_diagonal(scale, share):
    # A negative eigenvalue of a third of this rung needs this rung, and no lower one suffices.
    matrix = scale * indefinite(np.random.default_rng(0), 8, -share / 3)
    factor, jitter = factorise(matrix)
    assert_allclose(jitter, share * np.mean(np.diagonal(matrix)), rtol=1e-12)
    lifted = matrix + jitter * np.eye(8)
    assert_allclose(factor @ factor.T, lifted, rtol=0, atol=1e-12 * scale)


def test_the_posterior_records_its_jitter():
    matrix = indefinite(np.random.default_rng(0), 8, -1e-7)
    posterior = solve_posterior(matrix, np.ones(8))
    assert_allclose(posterior.jitter, 1e-6 * np.mean(np.diagonal(matrix)), rtol=1e-12)
    assert np.all(np.isfinite(posterior.mean))


@pytest.mark.parametrize(
    "matrix",
    [
        np.full((3, 3), np.nan),
        np.diag([1.0, np.nan, 1.0]),
        np.array([[1.0, np.nan], [np.nan, 1.0]]),
        np.diag([1.0, np.inf]),
        -np.eye(3),
        np.zeros((3, 3)),
        np.diag([1.0, -1.0, 5.0]),
    ],
    ids=[
        "NaN",
        "NaN on diagonal",
        "NaN off diagonal",
        "infinite",
        "negative",
        "zero",
        "indefinite",
    ],
)
def test_a_matrix_that_cannot_be_factorised_is_an_error_with_a_remedy(matrix):
    with pytest.raises(NumericalError, match=f"{len(matrix)} x {len(matrix)}") as caught:
        factorise(matrix)
    assert isinstance(caught.value, UndulatusError)
    assert not isinstance(caught.value, np.linalg.LinAlgError)
    assert 'precision="double"' in str(caught.value)


# Latent moments, exact and truncated


def moments_by(posterior, root, z):
    return HOST.moments(z, posterior.mean, root)


@given(seeds, st.floats(0.01, 100.0))
def test_latent_moments_are_those_of_the_posterior(seed, signal_variance):
    rng = np.random.default_rng(seed)
    posterior = solve_posterior(random_precision(rng, 6), rng.normal(size=6))
    z = rng.normal(size=(9, 6))
    mean, variance = moments_by(posterior, variance_root(posterior, signal_variance, 0.0), z)
    assert_allclose(mean, z @ posterior.mean, rtol=1e-12)
    assert_allclose(variance, np.diagonal(z @ posterior.covariance @ z.T), rtol=1e-10)


@given(seeds, st.floats(0.0, 0.1))
def test_a_latent_variance_is_never_negative(seed, tolerance):
    rng = np.random.default_rng(seed)
    # Eigenvalues over sixteen decades: z'A⁻¹z formed directly would go below zero.
    basis, _ = np.linalg.qr(rng.normal(size=(8, 8)))
    precision = (basis * 10.0 ** rng.uniform(0, 16, 8)) @ basis.T
    posterior = solve_posterior((precision + precision.T) / 2, rng.normal(size=8))
    z = rng.normal(size=(20, 8))
    _, variance = moments_by(posterior, variance_root(posterior, 1.0, tolerance), z)
    assert np.all(variance >= 0)


@given(
    seeds,
    st.integers(1, 10),
    st.floats(0.0, 4.0),
    st.floats(0.01, 1e3),
    st.floats(1e-6, 0.1),
    st.floats(0.0, 50.0),
)
def test_truncation_changes_no_probability_by_more_than_the_tolerance(
    seed, k, decades, signal_variance, tolerance, push
):
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    precision = (basis * 10.0 ** rng.uniform(0, decades, k)) @ basis.T
    posterior = solve_posterior((precision + precision.T) / 2, push * rng.normal(size=k))
    # Random rows, and the eigenvectors of the posterior, which are the worst case.
    z = np.vstack([rng.normal(size=(50, k)), basis.T])
    z *= np.sqrt(signal_variance) / np.linalg.norm(z, axis=1, keepdims=True)
    exact, kept = (variance_root(posterior, signal_variance, t) for t in (0.0, tolerance))
    assert kept.shape[1] <= k
    probabilities = [expected_sigmoid(*moments_by(posterior, root, z)) for root in (exact, kept)]
    assert np.all(np.abs(probabilities[0] - probabilities[1]) <= tolerance + 1e-12)


@given(seeds, st.floats(0.5, 2.0))
def test_the_error_bound_holds_where_the_probability_is_steepest(seed, mean):
    # One direction whose variance is just small enough to be dropped.
    tolerance = 1e-3
    variance = 0.999 * tolerance / PROBABILITY_PER_VARIANCE
    assume(variance < 1.0)
    posterior = solve_posterior(np.array([[1.0 / variance]]), np.array([mean / variance]))
    root = variance_root(posterior, 1.0, tolerance)
    assert root.shape == (1, 0)
    z = np.ones((1, 1))
    exact = expected_sigmoid(*moments_by(posterior, variance_root(posterior, 1.0), z))
    dropped = expected_sigmoid(*moments_by(posterior, root, z))
    assert 0 < abs(exact - dropped)[0] <= tolerance


def test_the_steepest_slope_of_probability_in_variance_is_as_stated():
    mean, variance = np.meshgrid(np.linspace(-10, 10, 4001), np.linspace(1e-6, 5, 50))
    step = 1e-6
    up, down = (expected_sigmoid(mean, variance + s * step) for s in (0.5, -0.5))
    steepest = np.max(np.abs(up - down)) / step
    assert 0.99 * PROBABILITY_PER_VARIANCE < steepest <= PROBABILITY_PER_VARIANCE


def test_a_zero_tolerance_keeps_every_direction():
    posterior = solve_posterior(random_precision(np.random.default_rng(0), 5), np.ones(5))
    assert_array_equal(variance_root(posterior, 2.0), posterior.root.T)


# Roots and what is read of them


each_size = pytest.mark.parametrize("k", [1, 2, 61, 150])


def some_posterior(k):
    """A posterior whose eigenvalues span four decades, so that some may be dropped."""
    rng = np.random.default_rng(k)
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    precision = (basis * 10.0 ** rng.uniform(0, 4, k)) @ basis.T
    return solve_posterior((precision + precision.T) / 2, rng.normal(size=k)), rng


def some_roots(posterior):
    """The exact root and two truncated ones, the last without any columns."""
    variances = np.linalg.eigvalsh(posterior.covariance)
    tolerances = (0.0, np.median(variances), 2.0 * variances.max())
    return [variance_root(posterior, 1.0, t * PROBABILITY_PER_VARIANCE) for t in tolerances]


@each_size
@pytest.mark.parametrize("order", ["C", "F"])
def test_the_triangle_gives_the_same_variance_as_the_full_product(k, order):
    posterior, rng = some_posterior(k)
    z = np.array(rng.normal(size=(20, k)), order=order)
    for root in some_roots(posterior):
        kept = z.copy(order)
        mean, variance = HOST.moments(z, posterior.mean, root)
        assert_array_equal(z, kept)
        # Sums of k products and of r squares, in another order.
        assert_allclose(mean, z @ posterior.mean, rtol=1e-12, atol=1e-13)
        assert_allclose(variance, np.sum((z @ root) ** 2, axis=1), rtol=1e-12, atol=1e-15)
        overwriting = HOST.moments(kept, posterior.mean, root, overwrite=True)
        assert_allclose(overwriting[0], mean, rtol=1e-12, atol=1e-13)
        assert_allclose(overwriting[1], variance, rtol=1e-12, atol=1e-15)


@each_size
def test_a_root_is_zero_below_the_diagonal_that_ends_in_its_last_entry(k):
    posterior, _ = some_posterior(k)
    for root in some_roots(posterior):
        r = root.shape[1]
        assert root.shape == (k, r)
        assert_array_equal(root, np.triu(root, r - k))


@pytest.mark.parametrize("tolerance", [1e-4, 1e-2])
def test_a_truncated_root_has_the_directions_kept(tolerance):
    posterior, _ = some_posterior(90)
    variances, gamma = np.linalg.eigvalsh(posterior.covariance), 3.0
    root = variance_root(posterior, gamma, tolerance)
    kept = variances * gamma * PROBABILITY_PER_VARIANCE > tolerance
    assert 0 < kept.sum() < 90
    # Square if there are many: as fast as the exact one.
    few = kept.sum() < 45
    assert few == (tolerance == 1e-2)
    assert root.shape == (90, kept.sum() if few else 90)
    # What is left of the covariance: the eigenvalues that were kept.
    found = np.linalg.eigvalsh(root @ root.T)
    assert_allclose(found, np.where(kept, variances, 0.0), rtol=1e-9, atol=1e-15)


def test_moments_in_single_precision_follow_those_in_double():
    posterior, rng = some_posterior(69)
    root = variance_root(posterior, 1.0)
    z = rng.normal(size=(20, len(root)))
    exact = HOST.moments(z, posterior.mean, root)
    found = make_backend(np.float32).moments(
        *(a.astype(np.float32) for a in (z, posterior.mean, root))
    )
    assert found[1].dtype == np.float32
    for one, other in zip(found, exact, strict=True):
        assert_allclose(one, other, rtol=1e-4, atol=1e-4)


# Probabilities


@pytest.mark.parametrize("shift", [-4.0, 0.0, 0.5, 3.0])
def test_the_share_of_a_tolerance_allows_for_the_slope_where_odds_are_multiplied(shift):
    mean, variance = np.meshgrid(np.linspace(-20, 20, 4001), np.linspace(1e-6, 5, 50))
    up, down = (expected_sigmoid(mean, variance + s * 1e-6, shift) for s in (0.5, -0.5))
    steepest = np.max(np.abs(up - down)) / 1e-6
    # A bound, but no idle one: at most three times as steep as what there is.
    assert steepest * share_of_tolerance(shift) > 0.33 * PROBABILITY_PER_VARIANCE
    assert steepest * share_of_tolerance(shift) <= PROBABILITY_PER_VARIANCE


@given(reals)
def test_without_variance_the_expectation_is_the_sigmoid(mean):
    assert expected_sigmoid(np.array(mean), np.array(0.0)) == expit(mean)


@given(reals, st.floats(0.0, 1e6))
def test_the_expectation_is_symmetric(mean, variance):
    both = expected_sigmoid(np.array([mean, -mean]), np.full(2, variance))
    assert_allclose(both.sum(), 1.0, rtol=1e-12)


@given(st.floats(-8.0, 8.0), st.floats(0.0, 30.0), st.floats(-4.0, 4.0))
def test_a_shift_multiplies_the_odds(mean, variance, shift):
    plain, shifted = (
        expected_sigmoid(np.array(mean), np.array(variance), own) for own in (0.0, shift)
    )
    assert_allclose(logit(shifted), logit(plain) + shift, rtol=1e-8, atol=1e-10)


def test_the_expectation_approximates_the_integral():
    mean, variance = np.meshgrid(np.linspace(-8, 8, 65), np.geomspace(1e-3, 30, 40))
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    values = expit(mean[..., None] + np.sqrt(variance)[..., None] * nodes)
    integral = values @ (weights / weights.sum())
    # Matching a probit's slope at the origin leaves at most about 0.02 between the two.
    assert_allclose(expected_sigmoid(mean, variance), integral, rtol=0, atol=0.02)


# Fits


def test_the_bounds_of_several_latent_functions_add_up_and_the_last_counts_on():
    latents = (LatentFit(1.0, None, (-9.0, -5.0, -4.0)), LatentFit(3.0, None, (-2.0, -1.0)))
    fit = FourierFit(np.ones((1, 1)), 1.0, latents, 3, "converged")
    assert fit.bounds == (-11.0, -6.0, -5.0)
    assert fit.signal_variance == mean_of([1.0, 3.0]) == 2.0
    assert FourierFit(np.ones((1, 1)), 1.0, latents[1:], 3, "converged").bounds == (-2.0, -1.0)
