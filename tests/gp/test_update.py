"""Rows added to a posterior and taken away: sites at their optimum, independence, forgetting."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from tests.gp.problems import (
    BOUNDS,
    dense_divergence,
    dense_features,
    expected_bound,
    some_frequencies,
    some_gaussian,
)

from undulatus.gp.likelihood import EXPECTED
from undulatus.gp.posterior import LatentFit, solve_posterior
from undulatus.gp.update import (
    NewRows,
    RowSpace,
    Sites,
    UpdateConfig,
    combine,
    find_sites,
    mean_and_root,
)

SLOW_BOUNDS = dict(BOUNDS.values())
each_bound = pytest.mark.parametrize("bound", SLOW_BOUNDS, ids=BOUNDS)


def some_latent(seed=0, gamma=1.7, b=-0.4):
    """A latent function over five frequencies."""
    return LatentFit(gamma, some_gaussian(seed).posterior, (), b)


def some_rows(seed=0, n=8, taper=0.2, gamma=1.7):
    """Tapered features of signal variance γ, the untapered variance, signs and weights."""
    rng = np.random.default_rng([seed, 9])
    deviations = np.full(2, taper)
    z, untapered = dense_features(rng.normal(size=(n, 2)), some_frequencies(seed), deviations)
    sign, weight = rng.choice([-1.0, 1.0], n), rng.uniform(0.3, 3.0, n)
    return np.sqrt(gamma) * z, gamma * untapered, sign, weight


def new_rows(latent, rows):
    z, untapered, sign, weight = rows
    return NewRows(*mean_and_root(latent, z), untapered, sign, weight, latent.signal_variance)


def dense_sites(latent, rows, posterior, bound):
    """The sites of the rows at a posterior of the weights, by the bound's formulas."""
    z, untapered, sign, weight = rows
    mean = z @ posterior.mean + latent.prior_mean
    variance = np.einsum("ij,jk,ik->i", z, posterior.covariance, z) + untapered
    precision, projected, _ = bound(mean, variance, sign)
    return Sites(weight * precision, weight * projected)


@pytest.mark.parametrize("n", [1, 8, 10, 30])
def test_what_a_posterior_says_of_rows_is_in_as_few_directions_as_there_are(n):
    latent, (z, *_) = some_latent(), some_rows(n=n)
    mean, root = mean_and_root(latent, z)
    assert root.shape == (n, min(n, 10))
    covariance = latent.posterior.covariance
    assert_allclose(root @ root.T, z @ covariance @ z.T, rtol=1e-10, atol=1e-12)
    assert_allclose(mean, z @ latent.posterior.mean + latent.prior_mean, rtol=1e-12)


@each_bound
@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize("b", [0.0, -0.8])
def test_at_the_end_a_full_step_does_not_change_the_sites(bound, n, b):
    latent, rows = some_latent(b=b), some_rows(n=n)
    (sites,) = find_sites([new_rows(latent, rows)], bound)
    posterior = combine(latent, rows[0], sites, 1.0)
    again = dense_sites(latent, rows, posterior, SLOW_BOUNDS[bound])
    assert_allclose(sites.precision, again.precision, rtol=1e-8)
    assert_allclose(sites.projected, again.projected, rtol=1e-8, atol=1e-9)


def test_an_update_is_the_best_gaussian_with_the_old_posterior_as_prior():
    latent, (z, untapered, sign, weight) = some_latent(), some_rows(n=4)
    old = latent.posterior
    prior = np.linalg.inv(old.covariance)

    # The optimum has A = prior + Zᵗ diag(c) Z: a search over c and h, one each a row.
    def unpack(theta):
        c, h = np.exp(theta[:4]), theta[4:]
        return solve_posterior(prior + z.T @ (c[:, None] * z), prior @ old.mean + z.T @ h)

    def loss(theta):
        q = unpack(theta)
        mean = z @ q.mean + latent.prior_mean
        variance = np.sum((z @ q.root.T) ** 2, axis=1) + untapered
        step = q.mean - old.mean
        divergence = np.trace(prior @ q.covariance) + step @ prior @ step - 10
        divergence += q.log_determinant - old.log_determinant
        return 0.5 * divergence - weight @ expected_bound(mean, variance, sign)[2]

    start = np.concatenate([np.full(4, np.log(0.2)), 0.5 * sign])
    best = unpack(minimize(loss, start, method="BFGS", options={"gtol": 1e-9}).x)
    rows = z, untapered, sign, weight
    (sites,) = find_sites([new_rows(latent, rows)], EXPECTED)
    found = combine(latent, z, sites, 1.0)
    assert_allclose(found.mean, best.mean, atol=1e-4)
    assert_allclose(found.covariance, best.covariance, atol=1e-4)


@pytest.mark.parametrize("n", [4, 30])
def test_posterior_evidence_and_divergence_of_rows_are_those_of_dense_formulas(n):
    latents = [some_latent(seed, b=0.3 * seed) for seed in range(2)]
    rows = [new_rows(own, some_rows(n=n)) for own in latents]
    space = RowSpace.stack(rows, 1e18)
    rng = np.random.default_rng(0)
    c, h = rng.uniform(0.1, 1.0, (2, n)), rng.normal(size=(2, n))
    solved = space.solve(0, Sites(c, h), 1.0)
    evidence = divergence = 0.0
    for own, p, target, mean, variance in zip(rows, c, h, *solved.posterior[:2], strict=True):
        W, q = own.root, own.root.shape[1]
        S = np.linalg.inv(np.eye(q) + (W.T * p) @ W)
        projected = W.T @ (target - p * own.mean)
        evidence += 0.5 * (projected @ S @ projected + np.linalg.slogdet(S)[1])
        evidence += target @ own.mean - 0.5 * p @ (own.mean**2 + own.prior_variance)
        divergence += dense_divergence(S @ projected, S)
        assert_allclose(mean, own.mean + W @ S @ projected, rtol=1e-9, atol=1e-11)
        expected = np.einsum("ij,jk,ik->i", W, S, W) + own.prior_variance
        assert_allclose(variance, expected, rtol=1e-9)
    assert_allclose(space.log_evidence(solved), evidence, rtol=1e-9)
    assert_allclose(space.divergence(solved), divergence, rtol=1e-9)


def test_terms_are_added_to_precision_and_projection():
    latent, (z, *_) = some_latent(), some_rows()
    rng = np.random.default_rng(0)
    sites = Sites(rng.uniform(0.1, 1.0, 8), rng.normal(size=8))
    found = combine(latent, z, sites, 1.0)
    precision = np.linalg.inv(latent.posterior.covariance)
    expected = precision + (z.T * sites.precision) @ z
    assert_allclose(np.linalg.inv(found.covariance), expected, rtol=1e-9, atol=1e-10)
    own = sites.projected - latent.prior_mean * sites.precision
    projected = precision @ latent.posterior.mean + z.T @ own
    assert_allclose(found.mean, np.linalg.solve(expected, projected), rtol=1e-9, atol=1e-11)


@each_bound
def test_rows_that_are_taken_away_leave_no_trace(bound):
    latent, rows = some_latent(), some_rows()
    (sites,) = find_sites([new_rows(latent, rows)], bound)
    updated = replace(latent, posterior=combine(latent, rows[0], sites, 1.0))
    before = combine(updated, rows[0], sites, -1.0)
    assert_allclose(before.mean, latent.posterior.mean, rtol=1e-9, atol=1e-11)
    assert_allclose(before.covariance, latent.posterior.covariance, rtol=1e-9, atol=1e-11)


@each_bound
def test_latent_functions_do_not_depend_on_each_other(bound):
    latents = [some_latent(seed, b=0.3 * seed) for seed in range(3)]
    rows = some_rows(n=25)
    together = find_sites([new_rows(own, rows) for own in latents], bound)
    alone = [find_sites([new_rows(own, rows)], bound)[0] for own in latents]
    one_by_one = UpdateConfig(stack_bytes=1)
    apart = find_sites([new_rows(own, rows) for own in latents], bound, one_by_one)
    # To the tolerance of the ascent.
    for one, other, same in zip(together, alone, apart, strict=True):
        for sites in (one, same):
            assert_allclose(sites.precision, other.precision, rtol=1e-9)
            assert_allclose(sites.projected, other.projected, rtol=1e-9, atol=1e-10)


@each_bound
def test_a_weight_equals_as_many_rows_and_zero_none(bound):
    latent, (z, untapered, sign, _) = some_latent(), some_rows()
    counts = np.array([1, 2, 0, 3, 1, 1, 2, 1])
    repeated = np.repeat(np.arange(8), counts)
    posteriors = []
    for own, weight in ((slice(None), counts.astype(float)), (repeated, np.ones(len(repeated)))):
        rows = z[own], untapered[own], sign[own], weight
        (sites,) = find_sites([new_rows(latent, rows)], bound)
        posteriors.append(combine(latent, z[own], sites, 1.0))
    assert_allclose(posteriors[0].mean, posteriors[1].mean, rtol=1e-7, atol=1e-9)
    assert_allclose(posteriors[0].covariance, posteriors[1].covariance, rtol=1e-7, atol=1e-9)


@each_bound
def test_a_row_may_outweigh_everything(bound):
    latent, (z, untapered, sign, _) = some_latent(), some_rows(n=3)
    rows = z, 0.0 * untapered, sign, np.full(3, 1e18)
    (sites,) = find_sites([new_rows(latent, rows)], bound)
    mean = z @ combine(latent, z, sites, 1.0).mean + latent.prior_mean
    assert np.all(sign * mean > 5.0)


@each_bound
def test_a_row_counts_at_most_so_much_that_what_was_learned_keeps_its_digits(bound):
    latent, (z, untapered, sign, _) = some_latent(), some_rows(n=3)
    config = UpdateConfig()
    most = config.largest_conjugate_weight if bound.conjugate else config.largest_weight
    most /= latent.signal_variance
    found = []
    for weight in (most, 1e6 * most):
        rows = z, untapered, sign, np.full(3, weight)
        found += find_sites([new_rows(latent, rows)], bound)
    assert_allclose(found[1].precision, found[0].precision, rtol=1e-12)
    assert_allclose(found[1].projected, found[0].projected, rtol=1e-12)
