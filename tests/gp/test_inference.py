"""Inference at fixed frequencies: sites, posteriors, evidence, and the ascent to their optimum."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, log_expit
from tests.gp.problems import (
    BOUNDS,
    assert_same,
    central_differences,
    dense_divergence,
    dense_features,
    latent_moments,
    one_against_rest,
    plain,
    quadratic_bound,
    repeat_rows,
    sign_and_weight,
    slow_ascent,
    some_frequencies,
    some_gaussian,
    some_pixels,
)

from undulatus.gp import inference
from undulatus.gp.backends import HOST
from undulatus.gp.data import Pixels
from undulatus.gp.inference import (
    VARIANCE_LIMITS,
    AscentConfig,
    Gaussian,
    PosteriorConfig,
    WeightSpace,
    ascend,
    fit_posteriors,
    fit_quadratic,
    stall_limit,
)
from undulatus.gp.likelihood import EXPECTED, QUADRATIC, expected_log_sigmoid
from undulatus.gp.taper import prior_mean

seeds = st.integers(0, 2**32 - 1)
log_odds_values = st.sampled_from([None, -1.5, 2.0])
shares = st.sampled_from([0.0, 0.3])

each_bound = pytest.mark.parametrize(("bound", "slow"), BOUNDS.values(), ids=BOUNDS)

each_prior = pytest.mark.parametrize(
    ("share", "log_odds"),
    [(0.0, None), (0.0, -1.0), (0.2, None), (0.2, -1.0)],
    ids=["features", "prior mean", "tapered", "tapered with a prior mean"],
)


def some_space(seed=0, share=0.0, log_odds=None, D=5, scale=1.0, **options):
    pixels = some_pixels(seed, **options)
    deviations = np.array([share, 0.1]) if share else None
    odds = None if log_odds is None else [log_odds] * pixels.n_latents
    return WeightSpace(pixels, some_frequencies(seed, D=D, scale=scale), deviations, odds)


def dense(space):
    """Unit features, 1 - d², signs and weights."""
    features = dense_features(space.pixels.rows, space.frequencies, space.deviations)
    return *features, *sign_and_weight(space.pixels)


def fit(space, bound, signal_variance=1.0, **options):
    """The end of the ascent of two classes, after a pass by the quadratic bound at fixed γ."""
    start = Gaussian(signal_variance, space.prior_mean(0, signal_variance))
    if bound is EXPECTED:
        start = ascend(space, QUADRATIC, [start], AscentConfig(1))[0].gaussian
    return ascend(space, bound, [start], AscentConfig(**options))[0]


# Sites, one pass


@each_bound
@given(seed=seeds, share=shares, b=st.sampled_from([0.0, -0.8]), from_prior=st.booleans())
@settings(max_examples=20)
def test_a_pass_gives_the_sums_of_the_sites_of_all_rows(bound, slow, seed, share, b, from_prior):
    space = some_space(seed, share, weighted=True)
    z, untapered, sign, weight = dense(space)
    q = Gaussian(1.7, b) if from_prior else some_gaussian(seed, prior_mean=b)
    mean, variance = np.full(60, b), np.full(60, 1.7)
    if not from_prior:
        own_mean, own_variance = latent_moments(z, q.posterior, 1.7)
        mean, variance = own_mean + b, own_variance + 1.7 * untapered
    c, h, value = slow(mean, variance, sign)
    if bound.conjugate:  # What the Gaussian factors lack of the likelihood's bound.
        value = value - h * mean + 0.5 * c * (variance + mean**2)
    [(sites, found)] = space.evaluate(bound, [0], [q])
    options = {"rtol": 1e-10, "atol": 1e-11}
    assert_allclose(found, weight @ value, **options)
    assert_allclose(sites.gram, (z.T * (weight * c)) @ z, **options)
    assert_allclose(sites.projected, z.T @ (weight * h), **options)
    assert_allclose(sites.projected_precision, z.T @ (weight * c), **options)
    totals = [weight @ h, weight @ c, (weight * c) @ untapered]
    assert_allclose(sites.totals, totals, **options)


def test_precisions_of_the_sites_are_kept_where_that_is_wanted():
    kept = [np.full(60, np.nan) for _ in range(3)]
    space = replace(some_space(classes=3), precisions=kept)
    starts = [some_gaussian(latent) for latent in range(3)]
    space.evaluate(QUADRATIC, range(3), starts)
    z, *_ = dense(space)
    for own, q in zip(kept, starts, strict=True):
        mean, variance = latent_moments(z, q.posterior, 1.7)
        assert_allclose(own, quadratic_bound(mean, variance, 1.0)[0], rtol=1e-10)


def test_large_residuals_do_not_drown_in_single_precision():
    # Features of 1e4 deviations: sums of h = r + cμ would lose r, which is all that counts.
    spaces = [some_space(n=2000, dtype=dtype, weighted=True) for dtype in (float, np.float32)]
    q = some_gaussian()
    far = replace(q, posterior=replace(q.posterior, mean=1e3 * q.posterior.mean))
    (exact, single) = (space.evaluate(EXPECTED, [0], [far])[0][0] for space in spaces)
    m = np.sqrt(1.7) * far.posterior.mean
    residuals = [own.projected - own.gram @ m for own in (exact, single)]
    assert_allclose(residuals[1], residuals[0], atol=1e-4 * np.abs(residuals[0]).max())


# The posterior of sites, and its evidence


def papers_posterior(pixels, frequencies, gamma, xi):
    """log F, μ and Σ of the weights β by the paper: prior N(0, γI), Eqs. 8 and 9.

    C(ξ) is that below (varboundHere). A weight is a power of the likelihood.
    """
    z, _ = dense_features(pixels.rows, frequencies)
    sign, weight = sign_and_weight(pixels)
    lam = (expit(xi) - 0.5) / (2 * xi)
    Sigma = np.linalg.inv(z.T @ np.diag(2 * weight * lam) @ z + np.eye(z.shape[1]) / gamma)
    mu = Sigma @ z.T @ (weight * sign / 2)
    log_C = np.sum(weight * (lam * xi**2 + xi / 2 - np.log(1 + np.exp(xi))))
    fitted = mu @ np.linalg.solve(Sigma, mu) + np.linalg.slogdet(Sigma / gamma)[1]
    return log_C + 0.5 * fitted, mu, Sigma


@given(seed=seeds, weighted=st.booleans(), gamma=st.floats(0.1, 10.0))
@settings(max_examples=20)
def test_posterior_and_bound_are_those_of_the_paper(seed, weighted, gamma):
    space, q = some_space(seed, weighted=weighted), some_gaussian(seed)
    mean, variance = latent_moments(dense(space)[0], q.posterior, 1.7)
    xi = np.sqrt(variance + mean**2)
    [(sites, value)] = space.evaluate(QUADRATIC, [0], [q])
    solved = space.solve(0, sites, gamma)
    log_F, mu, Sigma = papers_posterior(space.pixels, space.frequencies, gamma, xi)
    assert_allclose(space.log_evidence(solved) + value, log_F, rtol=1e-10)
    # Our weights are whitened: β = sqrt(γ) times them.
    assert_allclose(np.sqrt(gamma) * solved.posterior.mean, mu, rtol=1e-9, atol=1e-11)
    assert_allclose(gamma * solved.posterior.covariance, Sigma, rtol=1e-9, atol=1e-11)


@each_bound
@given(seed=seeds, share=shares, log_odds=log_odds_values)
@settings(max_examples=20)
def test_posterior_and_evidence_of_sites_are_those_of_dense_integrals(
    bound, slow, seed, share, log_odds
):
    space, q, gamma = some_space(seed, share, log_odds, weighted=True), some_gaussian(seed), 2.3
    z, untapered, sign, weight = dense(space)
    mean, variance = latent_moments(z, q.posterior, 1.7)
    c, h, _ = slow(mean, variance + 1.7 * untapered, sign)
    c, h = weight * c, weight * h
    [(sites, _)] = space.evaluate(bound, [0], [q])
    solved = space.solve(0, sites, gamma)
    b = 0.0 if log_odds is None else prior_mean(log_odds, gamma)
    assert solved.prior_mean == b
    # f = b + sqrt(γ) z u, beside it an untapered part whose variance costs c/2 in each exponent.
    z = np.sqrt(gamma) * z
    covariance = np.linalg.inv(np.eye(10) + (z.T * c) @ z)
    projected = z.T @ (h - c * b)
    evidence = 0.5 * (projected @ covariance @ projected + np.linalg.slogdet(covariance)[1])
    evidence += h.sum() * b - 0.5 * c.sum() * b**2 - 0.5 * gamma * c @ untapered
    assert_allclose(solved.posterior.mean, covariance @ projected, rtol=1e-9, atol=1e-11)
    assert_allclose(solved.posterior.covariance, covariance, rtol=1e-9, atol=1e-11)
    assert_allclose(space.log_evidence(solved), evidence, rtol=1e-10, atol=1e-10)
    divergence = dense_divergence(solved.posterior.mean, covariance)
    assert_allclose(space.divergence(solved), divergence, rtol=1e-10, atol=1e-10)


@given(seed=seeds, share=shares, log_odds=log_odds_values, log_start=st.floats(-6.0, 6.0))
@settings(max_examples=20)
def test_the_best_ratio_of_signal_variances_beats_a_grid(seed, share, log_odds, log_start):
    space, gamma = some_space(seed, share, log_odds), float(np.exp(log_start))
    [(sites, _)] = space.evaluate(QUADRATIC, [0], [some_gaussian(seed)])

    def evidence(log_ratio):
        return space.log_evidence(space.solve(0, sites, gamma * float(np.exp(log_ratio))))

    best = np.log(space.best_ratio(0, sites, gamma))
    assert np.log(0.1) <= best <= np.log(10.0)
    grid = max(evidence(own) for own in np.linspace(np.log(0.1), np.log(10.0), 101))
    # The search ends within 1e-5 of the best logarithm; at an end of the range, where the
    # slope is not zero, this costs the slope times 1e-5.
    slope = abs(evidence(best + 1e-4) - evidence(best - 1e-4)) / 2e-4
    assert evidence(best) >= grid - 2e-5 * (1.0 + slope)
    assert evidence(best) >= evidence(0.0)


def test_without_rows_that_count_the_posterior_is_the_prior():
    pixels = some_pixels()
    space = WeightSpace(replace(pixels, weight=np.zeros(60)), some_frequencies())
    [(sites, value)] = space.evaluate(QUADRATIC, [0], [Gaussian(2.0)])
    solved = space.solve(0, sites, 2.0)
    assert_array_equal(solved.posterior.covariance, np.eye(10))
    assert space.log_evidence(solved) == space.divergence(solved) == value == 0.0
    assert space.best_ratio(0, sites, 2.0) == 1.0


@given(seed=seeds, share=shares, b=st.sampled_from([0.0, -1.5]))
@settings(max_examples=15)
def test_a_step_follows_the_gradient_of_the_expected_bound(seed, share, b):
    space, q = some_space(seed, share, n=20, D=3, weighted=True), some_gaussian(seed, 6, 1.7, b)
    z, untapered, sign, weight = dense(space)
    z = np.sqrt(1.7) * z

    def bound(mean, covariance):
        variance = np.einsum("ij,jk,ik->i", z, covariance, z) + 1.7 * untapered
        value = expected_log_sigmoid(sign * (z @ mean + b), variance)[0]
        return weight @ value - dense_divergence(mean, covariance)

    [(sites, value)] = space.evaluate(EXPECTED, [0], [q])
    mean, covariance = q.posterior.mean, q.posterior.covariance
    assert_allclose(value - space.divergence(q), bound(mean, covariance), rtol=1e-10)
    # Where the step leads: A' = A - 2 dL/dΣ, and A'm' = A'm + dL/dm.
    precision = 1.7 * sites.gram + np.eye(6)
    in_mean = np.sqrt(1.7) * (sites.projected - b * sites.projected_precision) - precision @ mean
    in_covariance = 0.5 * (np.linalg.inv(covariance) - precision)
    slope = central_differences(lambda m: bound(m, covariance), mean)
    assert_allclose(in_mean, slope, rtol=1e-6, atol=1e-7)
    for i, own in enumerate(np.diagonal(covariance)):
        unit = np.outer(np.eye(6)[i], np.eye(6)[i])
        step = 1e-5 * own
        up, down = (bound(mean, covariance + s * step * unit) for s in (1, -1))
        # Values of size 1e2 are rounded to 1e-14, and divided by twice the step.
        slack = 1e-8 + 1e-12 / (2 * step)
        assert_allclose(in_covariance[i, i], (up - down) / (2 * step), rtol=1e-6, atol=slack)


# The ascent, against the same loop on whole matrices


@each_bound
@each_prior
def test_the_ascent_ends_where_plain_steps_end(bound, slow, share, log_odds):
    space, gamma = some_space(2, share, log_odds, weighted=True), 1.8
    z, untapered, sign, weight = dense(space)
    b = space.prior_mean(0, gamma)
    end = fit(space, bound, gamma, max_passes=2000, variance_limit=gamma)
    value, mean, covariance = slow_ascent(
        slow, np.sqrt(gamma) * z, sign, weight, gamma * untapered, b
    )
    assert (end.gaussian.signal_variance, end.gaussian.prior_mean) == (gamma, b)
    assert_allclose(end.bounds[-1], value, rtol=1e-10)
    # Steps end when they change the bound by its rounding, 1e-14: its root for the rest.
    assert_allclose(end.gaussian.posterior.mean, mean, atol=1e-5)
    assert_allclose(end.gaussian.posterior.covariance, covariance, atol=1e-5)


@each_bound
@given(
    seed=seeds,
    scale=st.floats(-2.5, 1.0).map(lambda power: 10.0**power),
    signal_variance=st.floats(-3.0, 5.0).map(lambda power: 10.0**power),
    share=st.sampled_from([0.0, 0.1, 0.5]),
    log_odds=st.sampled_from([None, -5.0, -1.0, 3.0]),
)
@settings(max_examples=30)
def test_the_bound_never_falls_from_any_start(
    bound, slow, seed, scale, signal_variance, share, log_odds
):
    space = some_space(seed, share, log_odds, scale=scale)
    end = fit(space, bound, signal_variance)
    # The bound of exact factors is not compared between steps: it is rounded.
    slack = 1e-10 * np.abs(end.bounds).max() if bound.conjugate else 0.0
    assert np.all(np.diff(end.bounds) >= -slack)
    assert np.all(np.isfinite(end.gaussian.posterior.mean))


def test_a_limit_on_the_signal_variance_never_lowers_the_bound():
    space = some_space(730286, n=20, D=20, scale=0.1083)
    end = fit(space, QUADRATIC, 0.76, max_passes=3, variance_limit=0.83)
    assert np.all(np.diff(end.bounds) >= -1e-10 * np.abs(end.bounds).max())
    assert end.gaussian.signal_variance <= 0.83


@each_bound
@each_prior
@pytest.mark.parametrize("seed", range(2))
def test_no_other_signal_variance_has_a_better_bound(bound, slow, seed, share, log_odds):
    space = some_space(seed, share, log_odds, n=100)
    end = fit(space, bound, max_passes=300)
    z, untapered, sign, weight = dense(space)
    gamma, bounds = end.gaussian.signal_variance, []
    for own in (0.8 * gamma, gamma, 1.25 * gamma):
        b = space.prior_mean(0, own)
        bounds.append(slow_ascent(slow, np.sqrt(own) * z, sign, weight, own * untapered, b)[0])
    # The ascent may end where γ would still gain a little.
    assert end.bounds[-1] >= max(bounds) - 1e-3
    assert bounds[1] > max(bounds[0], bounds[2])


@pytest.mark.parametrize("seed", range(3))
def test_at_the_end_the_signal_variance_is_at_its_fixed_point(seed):
    space = some_space(seed, weighted=True)
    for bound in (QUADRATIC, EXPECTED):
        posterior = fit(space, bound, max_passes=1500).gaussian.posterior
        # γ = (tr A⁻¹ + mᵗm) γ / k; the search in its logarithm ends within 1e-5.
        squares = np.trace(posterior.covariance) + posterior.mean @ posterior.mean
        assert_allclose(squares / 10, 1.0, atol=1e-3)


def test_the_expected_bound_is_tighter_at_the_same_posterior():
    space = some_space()
    quadratic = fit(space, QUADRATIC, max_passes=100)
    (end,) = ascend(space, EXPECTED, [quadratic.gaussian], AscentConfig(1))
    assert len(end.bounds) == 1
    assert end.bounds[0] > quadratic.bounds[-1]
    assert end.gaussian is quadratic.gaussian


def test_the_first_step_from_a_posterior_found_elsewhere_keeps_its_signal_variance():
    space, q = some_space(), some_gaussian()
    without_sites = replace(q, sites=None)
    (kept,), (moved,) = (
        ascend(space, QUADRATIC, [own], AscentConfig(1)) for own in (without_sites, q)
    )
    assert kept.gaussian.signal_variance == q.signal_variance != moved.gaussian.signal_variance


def test_the_signal_variance_stays_within_its_limits():
    # A single frequency separates the labels: the bound keeps growing with γ.
    x = np.linspace(-1.4, 1.4, 30)[:, None]
    pixels = Pixels(x, x[:, 0] > 0, None, plain(1), HOST, 64)
    end = fit(WeightSpace(pixels, np.ones((1, 1))), QUADRATIC, max_passes=301)
    assert VARIANCE_LIMITS[0] <= end.gaussian.signal_variance <= VARIANCE_LIMITS[1] * (1 + 1e-12)
    assert np.all(np.isfinite(end.gaussian.posterior.mean))


def test_a_lower_limit_on_the_signal_variance_is_respected():
    space = some_space()
    limit = 0.5 * fit(space, QUADRATIC, max_passes=50).gaussian.signal_variance
    limited = fit(space, QUADRATIC, 0.2 * limit, max_passes=50, variance_limit=limit)
    assert_allclose(limited.gaussian.signal_variance, limit, rtol=1e-4)
    assert limited.gaussian.signal_variance <= limit


def test_the_paper_starts_from_unit_xi():
    space = some_space(weighted=True)
    (end,) = fit_quadratic(space, 2.5, AscentConfig(1))
    log_F, mu, Sigma = papers_posterior(space.pixels, space.frequencies, 2.5, np.ones(60))
    z, *_ = dense(space)
    xi = np.sqrt(np.einsum("ij,jk,ik->i", z, Sigma, z) + (z @ mu) ** 2)
    gamma = end.gaussian.signal_variance
    expected, mu, _ = papers_posterior(space.pixels, space.frequencies, gamma, xi)
    assert end.bounds[0] > log_F
    assert_allclose(end.bounds[0], expected, rtol=1e-10)
    assert_allclose(np.sqrt(gamma) * end.gaussian.posterior.mean, mu, rtol=1e-9, atol=1e-11)


def test_the_start_respects_the_limit_on_the_signal_variance():
    (end,) = fit_quadratic(some_space(), 1e5, AscentConfig(3, variance_limit=100.0))
    assert end.gaussian.signal_variance == 100.0


# Monte Carlo as an oracle


def sample_weights(z, sign, posterior, rng, n=30_000):
    """Weights (n / 5, k) from the true posterior, by Metropolis steps of an approximate shape."""

    def log_density(w):
        return np.sum(log_expit(sign * (z @ w))) - 0.5 * w @ w

    jumps = 2.38 / np.sqrt(len(posterior.mean)) * posterior.root.T
    w, kept = posterior.mean, []
    density = log_density(w)
    for i in range(n):
        proposed = w + jumps @ rng.normal(size=len(w))
        new_density = log_density(proposed)
        if np.log(rng.random()) < new_density - density:
            w, density = proposed, new_density
        if i % 5 == 0:
            kept.append(w)
    return np.array(kept)


def test_moments_are_those_of_markov_chains_where_the_quadratic_bound_is_too_sure():
    space = some_space(3, n=300, D=6, scale=0.7)
    end = fit(space, EXPECTED, max_passes=100).gaussian
    gamma = end.signal_variance
    ends = {"expected": end}
    ends["quadratic"] = fit(space, QUADRATIC, gamma, max_passes=300, variance_limit=gamma).gaussian
    rng = np.random.default_rng(0)
    z, _, sign, _ = dense(space)
    new, _ = dense_features(rng.normal(size=(100, 2)), space.frequencies)
    weights = sample_weights(np.sqrt(gamma) * z, sign, end.posterior, rng)
    latent = np.sqrt(gamma) * new @ weights.T
    mean, variance = latent.mean(axis=1), latent.var(axis=1)
    ratios, misses = {}, {}
    for name, own in ends.items():
        own_mean, own_variance = latent_moments(new, own.posterior, gamma)
        ratios[name] = np.median(own_variance / variance)
        misses[name] = np.median(np.abs(own_mean - mean) / np.sqrt(variance))
    # A chain in 12 dimensions forgets in about 50 steps: 600 draws, 6 % on a variance.
    assert 0.8 < ratios["expected"] < 1.2
    assert ratios["quadratic"] < 0.6
    assert misses["expected"] < 0.2


def test_the_bounds_lie_below_the_evidence_and_the_expected_one_is_close():
    # One frequency: the evidence is an integral over two weights, by Gauss-Hermite quadrature.
    space, gamma = some_space(1, n=25, D=1), 1.5
    z, _, sign, _ = dense(space)
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    u = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    log_likelihood = log_expit(sign * (np.sqrt(gamma) * u @ z.T)).sum(axis=1)
    evidence = np.log(np.outer(weights, weights).ravel() @ np.exp(log_likelihood))
    quadratic, expected = (
        fit(space, bound, gamma, max_passes=200, variance_limit=gamma).bounds[-1]
        for bound in (QUADRATIC, EXPECTED)
    )
    assert quadratic < expected < evidence
    assert evidence - expected < 0.3 * (evidence - quadratic)


def test_two_positives_among_twenty_thousand_are_as_rare_as_that():
    rng = np.random.default_rng(0)
    x, positive = rng.normal(size=(20_000, 2)), np.zeros(20_000, dtype=bool)
    positive[[5, 777]] = True
    pixels = Pixels(x, positive, None, plain(2), HOST, 4096)
    space = WeightSpace(pixels, some_frequencies(D=3, scale=0.1))
    shares = {}
    for bound in (QUADRATIC, EXPECTED):
        end = fit(space, bound, tol=1e-5).gaussian
        mean, variance = latent_moments(dense(space)[0], end.posterior, end.signal_variance)
        shares[bound] = expected_log_sigmoid(-mean, variance)[1].mean()
    # The prior pulls the weights towards zero, and so the share up, by a tenth or so.
    assert_allclose(shares[EXPECTED], 1e-4, rtol=0.2)
    assert shares[QUADRATIC] > 1e-3


# Steps that would lower the bound


@dataclass(frozen=True)
class Point:
    """A place on a line, with sites that are places too."""

    place: float

    def mix(self, other, share):
        return Point((1.0 - share) * self.place + share * other.place)


class Hill:
    """The bound -x²; from each place full steps go ``steepness`` times too far towards 0."""

    def __init__(self, steepness):
        self.steepness, self.places = steepness, []

    def evaluate(self, bound, latents, gaussians):
        (own,) = gaussians
        self.places.append(own.posterior)
        target = Point((1.0 - self.steepness) * own.posterior)
        return [(target, -(own.posterior**2))]

    def best_ratio(self, latent, sites, signal_variance):
        return 1.0

    def solve(self, latent, sites, signal_variance):
        return Gaussian(1.0, 0.0, sites.place, sites)

    def divergence(self, gaussian):
        return 0.0


def ascend_hill(steepness, **options):
    """Ascend a hill from 1; return the end, the places that were evaluated, and those kept."""
    hill = Hill(steepness)
    options = {"largest_share": 1.0} | options
    (end,) = ascend(hill, EXPECTED, [hill.solve(0, Point(1.0), 1.0)], AscentConfig(**options))
    return end, hill.places


def test_the_share_of_a_step_is_halved_until_the_bound_rises_and_then_grows_again():
    end, places = ascend_hill(7.0, max_passes=6)
    # Newton's step is 1: 7 and 3.5 times it go too far, 1.75 raises -x²; then 2.625 does not,
    # and half of that does.
    assert places == [1.0, -6.0, -2.5, -0.75, 1.21875, 0.234375]
    assert end.bounds == tuple(-(own**2) for own in (1.0, -0.75, 0.234375))
    assert end.gaussian.posterior == 0.234375


def test_a_direction_that_leads_down_ends_the_ascent_where_it_was():
    end, places = ascend_hill(-1.0)
    assert (end.gaussian.posterior, end.bounds) == (1.0, (-1.0,))
    assert places == [1.0, *(1.0 + 0.5**k for k in range(7))]


def test_an_ascent_ends_when_a_step_changes_little():
    end, _ = ascend_hill(0.5, max_passes=1000, tol=1e-4)
    # Each step gains three quarters of the last bound; 1e-4 of a hundred nats is 0.01.
    assert -end.bounds[-1] * 3 < 0.01 <= -end.bounds[-2] * 3
    assert len(end.bounds) == 6


def test_a_bound_that_falls_by_rounding_alone_has_stalled():
    # The step from 1 to -1.00001 lowers -x² by 2e-5, where a hundredth of the limit is 1e-4.
    end, places = ascend_hill(2.00001, tol=1e-4)
    assert (len(places), end.bounds) == (2, (-1.0,))


def test_steps_that_were_undone_count_as_passes():
    end, places = ascend_hill(7.0, max_passes=4)
    assert (len(places), len(end.bounds)) == (4, 2)


def test_steps_that_lower_the_bound_of_real_rows_are_undone():
    # Smooth features and labels without noise: γ grows without end, and full steps go too far.
    x = np.random.default_rng(1).normal(size=(300, 2))
    pixels = Pixels(x, np.sin(0.5 * x[:, 0]) > 0, None, plain(2), HOST, 64)
    space = WeightSpace(pixels, some_frequencies(1, D=10, scale=0.3))
    for gamma in (1.0, 1e3, 1e5):
        (start,) = fit_quadratic(space, gamma, AscentConfig(1, variance_limit=gamma))
        original, passes = space.evaluate, []
        counted = replace(space)
        object.__setattr__(
            counted, "evaluate", lambda *own, run=original, all=passes: all.append(1) or run(*own)
        )
        (end,) = ascend(counted, EXPECTED, [start.gaussian], AscentConfig())
        assert len(end.bounds) < len(passes)
        assert np.all(np.diff(end.bounds) >= 0.0)


def test_a_bound_has_stalled_when_it_grows_by_less_than_the_tolerance_of_its_size():
    # A share of 1e-4 of (1000 + 100) is 0.11; on a few rows hundredths of a nat do not count.
    assert_allclose(stall_limit(-1000.0, 1e-4), 0.11)
    assert_allclose(stall_limit(-0.1, 1e-4), 0.01001)
    # With a zero tolerance only a falling bound has.
    assert stall_limit(1.0, 0.0) == 0.0


def test_a_zero_tolerance_makes_all_passes_and_a_large_one_two():
    counts = {
        tol: len(fit(some_space(), QUADRATIC, max_passes=9, tol=tol).bounds) for tol in (0.0, 1e9)
    }
    assert counts == {0.0: 9, 1e9: 2}


# Blocks, threads, weights and precision


@each_bound
def test_the_size_of_blocks_does_not_matter(bound, slow):
    small, large = (
        fit(some_space(share=0.2, log_odds=-1.0, rows_per_block=rows), bound, max_passes=5)
        for rows in (7, 64)
    )
    assert_allclose(small.bounds, large.bounds, rtol=1e-10)
    # Sums in another order, and steps on them: rounding times the condition of A.
    one, other = small.gaussian.posterior, large.gaussian.posterior
    assert_allclose(one.mean, other.mean, rtol=1e-7, atol=1e-8)
    assert_allclose(one.root, other.root, rtol=1e-7, atol=1e-8)


@each_bound
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_threads_do_not_change_a_bit(bound, slow, dtype):
    one, three = (
        fit(some_space(share=0.2, log_odds=-1.0, threads=threads, dtype=dtype), bound)
        for threads in (1, 3)
    )
    assert_same(one, three)


@each_bound
def test_a_weight_equals_as_many_rows(bound, slow):
    counts = np.random.default_rng(0).integers(0, 4, 60)
    space = some_space(share=0.2, log_odds=-1.0)
    pixels = replace(space.pixels, weight=counts.astype(float))
    repeated = replace(space, pixels=repeat_rows(pixels, counts))
    one, other = (
        fit(own, bound, max_passes=10) for own in (replace(space, pixels=pixels), repeated)
    )
    assert_allclose(one.bounds, other.bounds, rtol=1e-10)
    one, other = one.gaussian.posterior, other.gaussian.posterior
    assert_allclose(one.mean, other.mean, rtol=1e-6, atol=1e-7)
    assert_allclose(one.root, other.root, rtol=1e-6, atol=1e-7)


@each_bound
def test_single_precision_follows_double(bound, slow):
    spaces = [some_space(n=2000, D=10, dtype=dtype, rows_per_block=256) for dtype in (float, "f4")]
    double, single = (fit(space, bound, tol=1e-6) for space in spaces)
    assert single.gaussian.posterior.mean.dtype == np.float64
    assert_allclose(single.bounds[-1], double.bounds[-1], rtol=1e-5)
    new, _ = dense_features(np.random.default_rng(5).normal(size=(50, 2)), spaces[0].frequencies)
    (mean, variance), (other_mean, other_variance) = (
        latent_moments(new, end.gaussian.posterior, end.gaussian.signal_variance)
        for end in (double, single)
    )
    # Both end where a step gains 1e-6 of the bound, 1e-3 nats: a thirtieth of a deviation.
    assert np.all(np.abs(other_mean - mean) < 0.05 * np.sqrt(variance))
    assert_allclose(other_variance, variance, rtol=0.05)


# The posteriors to predict with, of one latent function or of several

CONFIGS = {
    "expected": PosteriorConfig(EXPECTED, max_passes=40, tol=1e-6),
    "quadratic": PosteriorConfig(QUADRATIC, max_passes=40, tol=1e-4),
}

both_posteriors = pytest.mark.parametrize("posterior", CONFIGS)


def fit_each(space, posterior="expected", starts=None, report=lambda done, bound: None, **options):
    latents = range(space.pixels.n_latents)
    log_odds = [[-1.5, -1.0, -1.2, -0.5][latent] for latent in latents]
    gammas = [0.5, 1.0, 3.0, 8.0]
    starts = starts or [
        some_gaussian(latent, signal_variance=gammas[latent]) for latent in latents
    ]
    config = replace(CONFIGS[posterior], **options.pop("config", {}))
    return fit_posteriors(
        replace(space, log_odds=log_odds), starts, config, report=report, **options
    )


@both_posteriors
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_classes_fitted_together_are_those_fitted_one_by_one(posterior, share):
    space = some_space(share=share, classes=4, n=300, weighted=True)
    together, _ = fit_each(space, posterior)
    passes = []
    for latent, found in enumerate(together):
        alone = replace(
            space,
            pixels=one_against_rest(space.pixels, latent),
            log_odds=[[-1.5, -1.0, -1.2, -0.5][latent]],
        )
        start = some_gaussian(latent, signal_variance=[0.5, 1.0, 3.0, 8.0][latent])
        (expected,), _ = fit_posteriors(alone, [start], CONFIGS[posterior])
        assert_same(found, expected)
        passes.append(len(found.bounds))
    # Some converge earlier than others, and drop out.
    assert len(set(passes)) > 1


def test_a_pass_computes_the_features_of_a_block_once_for_all_classes(monkeypatch):
    calls, original = [], inference.tapered_features
    monkeypatch.setattr(
        inference, "tapered_features", lambda *given: calls.append(1) or original(*given)
    )
    space = some_space(classes=4, n=300)
    fit_each(space, posterior="quadratic", config={"max_passes": 3, "tol": 0.0})
    assert len(calls) == 3 * -(-300 // 16)


def test_large_gram_matrices_do_not_share_a_pass(monkeypatch):
    space = some_space(classes=4, n=300)
    together, _ = fit_each(space)
    monkeypatch.setattr(inference, "TOTAL_BYTES", 2 * 8 * 10**2)
    assert_same(fit_each(space)[0], together)


def test_the_posterior_of_the_quadratic_bound_has_no_prior_mean():
    (latent,), _ = fit_each(some_space(), posterior="quadratic")
    assert latent.prior_mean == 0.0
    (latent,), _ = fit_each(some_space())
    assert latent.prior_mean == prior_mean(-1.5, latent.signal_variance)


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_the_variational_posterior_starts_from_a_pass_by_the_quadratic_bound(share):
    space, start = some_space(share=share), some_gaussian()
    (found,), _ = fit_each(space, starts=[start])
    space = replace(space, log_odds=[-1.5])
    # Without sites of its own the start keeps its signal variance.
    (first,) = ascend(space, QUADRATIC, [replace(start, sites=None)], AscentConfig(1))
    (end,) = ascend(space, EXPECTED, [first.gaussian], AscentConfig(40, 1e-6))
    assert found.bounds == end.bounds
    assert_same(found.posterior, end.gaussian.posterior)


@both_posteriors
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupt_ends_all_at_the_last_finished_pass(posterior, classes, after):
    def report(done, bound):
        reported.append((done, bound))
        if done == after:
            raise KeyboardInterrupt

    reported, space = [], some_space(classes=classes, n=300)
    whole, interrupted = fit_each(space, posterior)
    assert not interrupted
    stopped, interrupted = fit_each(space, posterior, report=report)
    assert interrupted
    for own, full in zip(stopped, whole, strict=True):
        # Steps that were undone are reported, too, but have no bound.
        assert 1 <= len(own.bounds) <= after
        assert own.bounds == full.bounds[: len(own.bounds)]
    assert [done for done, _ in reported] == list(range(1, after + 1))
    assert_allclose(reported[-1][1], sum(own.bounds[-1] for own in stopped), rtol=1e-12)
    with pytest.raises(KeyboardInterrupt):
        fit_each(space, posterior, report=report, interruptible=False)


def test_the_end_of_an_interrupted_ascent_is_that_of_as_many_passes():
    def report(done, bound):
        if done == 3:
            raise KeyboardInterrupt

    space, starts = some_space(), [Gaussian(1.0)]
    (stopped,) = ascend(
        space, QUADRATIC, starts, AscentConfig(9), interruptible=True, report=report
    )
    (short,) = ascend(space, QUADRATIC, starts, AscentConfig(3))
    assert stopped.interrupted
    assert_same(replace(stopped, interrupted=False), short)


@both_posteriors
def test_an_interrupt_in_the_middle_of_a_pass_keeps_the_last_one(posterior, monkeypatch):
    calls, original = [], Pixels.total

    def interrupt(*given):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*given)

    config = {"tol": 0.0}
    whole, _ = fit_each(some_space(), posterior, config=config)
    monkeypatch.setattr(Pixels, "total", interrupt)
    (stopped,), interrupted = fit_each(some_space(), posterior, config=config)
    assert interrupted
    assert stopped.bounds == whole[0].bounds[: len(stopped.bounds)]


def test_an_interrupt_in_the_first_pass_is_always_raised(monkeypatch):
    def interrupt(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(Pixels, "total", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit_each(some_space(), posterior="quadratic")


@both_posteriors
def test_after_an_interrupt_one_pass_has_to_do(posterior):
    (latent,), interrupted = fit_each(some_space(), posterior, interrupted=True)
    assert interrupted
    assert len(latent.bounds) == 1
