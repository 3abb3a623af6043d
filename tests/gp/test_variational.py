"""The best Gaussian posterior: expectations, its optimum, MCMC as an oracle, steps taken back."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.special import expit, log_expit
from scipy.stats import norm

from undulatus.gp import bound, variational
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.bound import accumulate, log_variance_gradient, tighten
from undulatus.gp.damping import damping, level
from undulatus.gp.fourier import fourier_features
from undulatus.gp.passes import PosteriorFit, fit_posterior
from undulatus.gp.posterior import latent_moments, solve_posterior
from undulatus.gp.variational import (
    WavePrior,
    ascend_naturally,
    expected_log_sigmoid,
    fit_final_posteriors,
    fit_variational,
)

seeds = st.integers(0, 2**32 - 1)


def some_pixels(seed=0, n=60, d=2, dtype=np.float64, weight=None, block=16, threads=1):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, weight, plain, np.dtype(dtype), block, threads)


def some_frequencies(seed=0, D=5, d=2, scale=1.0):
    return scale * np.random.default_rng([seed, 1]).normal(size=(D, d))


def bound_fit(pixels, frequencies, signal_variance=1.0, passes=3):
    xi = np.ones(pixels.n_rows, dtype=pixels.dtype)
    return fit_posterior(pixels, frequencies, signal_variance, xi, max_passes=passes)


def fit(pixels, frequencies, signal_variance=1.0, passes=3, **options):
    start = bound_fit(pixels, frequencies, signal_variance, passes)
    return fit_one(pixels, WavePrior(frequencies), start, **options)


def fit_one(pixels, prior, start, **options):
    """The best Gaussian posterior of two classes."""
    return fit_variational(pixels, [prior], [start], **options)[0]


def moments(fit, frequencies, x):
    z = fourier_features(x, frequencies, fit.signal_variance)
    return latent_moments(z, fit.posterior.mean, fit.posterior.root.T)


# Expectations


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


# The bound and its optimum


def dense_bound(z, sign, weight, mean, covariance, level=0.0, fresh=0.0):
    """Σ s E log ψ(±f) - KL(N(m, Σ) || N(0, I)), written out."""
    latent, variance = z @ mean + level, np.einsum("ij,jk,ik->i", z, covariance, z) + fresh
    likelihood = weight @ expected_log_sigmoid(sign * latent, variance)[0]
    log_determinant = np.linalg.slogdet(covariance)[1]
    return likelihood - 0.5 * (np.trace(covariance) + mean @ mean - len(mean) - log_determinant)


def some_state(seed=0, weighted=True):
    """A posterior that is no optimum, with all that the bound needs; 3 frequencies, 20 pixels."""
    rng = np.random.default_rng(seed)
    weight = rng.uniform(0.2, 3.0, 20) if weighted else None
    pixels, frequencies = some_pixels(seed, n=20, weight=weight), some_frequencies(seed, D=3)
    root = rng.normal(size=(6, 6))
    posterior = solve_posterior(root @ root.T + np.eye(6), rng.normal(size=6))
    start = PosteriorFit(1.7, accumulate(pixels, frequencies, 1.7, np.ones(20)), posterior, (0.0,))
    z = fourier_features(pixels.rows, frequencies, 1.7)
    sign = np.where(pixels.codes, 1.0, -1.0)
    return pixels, frequencies, start, (z, sign, np.ones(20) if weight is None else weight)


def evaluate(pixels, prior, fit):
    return variational._evaluate(pixels, [prior], [0], [(fit.signal_variance, fit.posterior)])[0]


@given(seed=seeds, weighted=st.booleans())
@settings(max_examples=20)
def test_the_bound_of_a_pass_is_that_of_dense_formulas(seed, weighted):
    pixels, frequencies, start, dense = some_state(seed, weighted)
    found = evaluate(pixels, WavePrior(frequencies), start).bound
    posterior = start.posterior
    assert_allclose(found, dense_bound(*dense, posterior.mean, posterior.covariance), rtol=1e-10)


def damp(pixels, prior, signal_variance):
    """The share d of the waves at the pixels, and the level and fresh variance beside them."""
    spread = np.zeros(pixels.n_features) if prior.spread is None else prior.spread
    kept = damping(pixels.rows, spread)
    own = level(prior.log_odds, signal_variance)
    return kept, {"level": own, "fresh": (1.0 - kept**2) * signal_variance}


@given(seed=seeds, log_odds=st.floats(-4.0, 4.0), share=st.floats(0.0, 0.6))
@settings(max_examples=20)
def test_the_bound_with_damped_waves_and_a_level_is_that_of_dense_formulas(seed, log_odds, share):
    pixels, frequencies, start, (z, sign, weight) = some_state(seed)
    prior = WavePrior(frequencies, np.array([share, 0.1]), log_odds)
    kept, beside = damp(pixels, prior, start.signal_variance)
    found = evaluate(pixels, prior, start).bound
    dense, posterior = (kept[:, None] * z, sign, weight), start.posterior
    expected = dense_bound(*dense, posterior.mean, posterior.covariance, **beside)
    assert_allclose(found, expected, rtol=1e-10)


@given(seed=seeds, log_odds=st.sampled_from([0.0, -1.5]), share=st.sampled_from([0.0, 0.3]))
@settings(max_examples=20)
def test_a_step_follows_the_gradient_of_finite_differences(seed, log_odds, share):
    pixels, frequencies, start, (z, sign, weight) = some_state(seed)
    prior = WavePrior(frequencies, np.array([share, 0.1]) if share else None, log_odds)
    kept, beside = damp(pixels, prior, start.signal_variance)
    dense = kept[:, None] * z, sign, weight
    own_level = prior.level(start.signal_variance)
    target = evaluate(pixels, prior, start).target.statistics(own_level, 1.0)
    mean, covariance = start.posterior.mean, start.posterior.covariance
    # Where the step leads: A' = A - 2 dL/dΣ, and A'm' = A'm + dL/dm.
    in_mean = target.projected - (target.gram + np.eye(6)) @ mean
    in_covariance = 0.5 * (np.linalg.inv(covariance) - np.eye(6) - target.gram)
    step = 1e-5
    for i in range(6):
        nudge = step * np.eye(6)[i]
        up, down = (dense_bound(*dense, mean + s * nudge, covariance, **beside) for s in (1, -1))
        assert_allclose(in_mean[i], (up - down) / (2 * step), rtol=1e-6, atol=1e-7)
        nudge = step * covariance[i, i] * np.outer(np.eye(6)[i], np.eye(6)[i])
        up, down = (dense_bound(*dense, mean, covariance + s * nudge, **beside) for s in (1, -1))
        slope = (up - down) / (2 * step * covariance[i, i])
        # Values of size 1e2 are rounded to 1e-14, and divided by twice the step in Σ.
        slack = 1e-12 / (2 * step * covariance[i, i])
        assert_allclose(in_covariance[i, i], slope, rtol=1e-6, atol=1e-8 + slack)


each_prior = pytest.mark.parametrize(
    ("share", "log_odds"),
    [(0.0, 0.0), (0.0, -1.0), (0.2, 0.0), (0.2, -1.0)],
    ids=["waves", "level", "damped", "damped with a level"],
)


@each_prior
@pytest.mark.parametrize("seed", range(3))
def test_many_passes_reach_the_optimum(seed, share, log_odds):
    weight = np.random.default_rng(seed).uniform(0.2, 3.0, 60)
    pixels, frequencies = some_pixels(seed, weight=weight), some_frequencies(seed)
    prior = WavePrior(frequencies, np.full(2, share) if share else None, log_odds)
    fitted = fit_one(pixels, prior, start_of(pixels, prior), max_passes=200)
    kept, beside = damp(pixels, prior, fitted.signal_variance)
    z = kept[:, None] * fourier_features(pixels.rows, frequencies, fitted.signal_variance)
    sign = np.where(pixels.codes, 1.0, -1.0)
    mean, variance = latent_moments(z, fitted.posterior.mean, fitted.posterior.root.T)
    _, slope, curvature = expected_log_sigmoid(
        sign * (mean + beside["level"]), variance + beside["fresh"]
    )
    # At the optimum the gradient in m vanishes, and A is the curvature there. Steps end when
    # they change the bound by its rounding, 1e-14: a gradient of sqrt(1e-14 |A|), |A| < 1e3.
    assert_allclose(fitted.posterior.mean, z.T @ (weight * sign * slope), atol=1e-4)
    precision = np.eye(10) + (z.T * (weight * curvature)) @ z
    assert_allclose(fitted.posterior.covariance @ precision, np.eye(10), atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_many_passes_bring_the_signal_variance_to_its_fixed_point(seed):
    weight = np.random.default_rng(seed).uniform(0.2, 3.0, 60)
    pixels, frequencies = some_pixels(seed, weight=weight), some_frequencies(seed)
    fitted = fit(pixels, frequencies, max_passes=200)
    # The search in its logarithm ends within 1e-5.
    assert abs(log_variance_gradient(fitted.posterior)) < 1e-3


@each_prior
@pytest.mark.parametrize("seed", range(3))
def test_no_other_signal_variance_has_a_better_bound(seed, share, log_odds, monkeypatch):
    pixels, frequencies = some_pixels(seed, n=200), some_frequencies(seed)
    prior = WavePrior(frequencies, np.full(2, share) if share else None, log_odds)
    fitted = fit_one(pixels, prior, start_of(pixels, prior), max_passes=200)
    monkeypatch.setattr(variational._Sites, "best_variance_ratio", lambda *arguments: 1.0)
    for factor in (0.8, 1.0, 1.25):
        start = start_of(pixels, prior, factor * fitted.signal_variance)
        other = fit_one(pixels, prior, start, max_passes=200)
        # The ascent may end where γ would still gain a little.
        assert other.bounds[-1] <= fitted.bounds[-1] + 1e-3


def test_the_bound_is_tighter_than_the_quadratic_one_at_its_own_posterior():
    pixels, frequencies = some_pixels(), some_frequencies()
    start = bound_fit(pixels, frequencies, passes=100)
    fitted = fit_one(pixels, WavePrior(frequencies), start, max_passes=1)
    assert len(fitted.bounds) == 1
    assert fitted.bounds[0] > start.bounds[-1]
    assert_array_equal(fitted.posterior.mean, start.posterior.mean)


# Monte Carlo as an oracle


def sample_weights(z, sign, posterior, rng, n=30_000):
    """Weights (n / 5, k) from the true posterior: a random walk shaped by an approximate one."""

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


def test_mean_and_variance_are_those_of_markov_chains_where_the_bound_is_too_sure():
    pixels, frequencies = some_pixels(3, n=300), some_frequencies(3, D=6, scale=0.7)
    fitted = fit(pixels, frequencies, tol=1e-7)
    gamma, xi = fitted.signal_variance, np.ones(300)
    quadratic = accumulate(pixels, frequencies, gamma, xi).posterior()
    for _ in range(300):
        quadratic = tighten(pixels, frequencies, gamma, quadratic, xi).posterior()
    rng = np.random.default_rng(0)
    z = fourier_features(pixels.rows, frequencies, gamma)
    sign = np.where(pixels.codes, 1.0, -1.0)
    new = fourier_features(rng.normal(size=(100, 2)), frequencies, gamma)
    latent = new @ sample_weights(z, sign, fitted.posterior, rng).T
    mean, variance = latent.mean(axis=1), latent.var(axis=1)
    ratios, misses = {}, {}
    for name, posterior in {"bound": quadratic, "variational": fitted.posterior}.items():
        own_mean, own = latent_moments(new, posterior.mean, posterior.root.T)
        ratios[name] = np.median(own / variance)
        misses[name] = np.median(np.abs(own_mean - mean) / np.sqrt(variance))
    # A walk in 12 dimensions forgets in about 50 steps: 600 draws, 6 % on a variance.
    assert 0.8 < ratios["variational"] < 1.2
    assert ratios["bound"] < 0.6
    assert misses["variational"] < 0.2


def test_two_positives_among_twenty_thousand_are_as_rare_as_that():
    rng = np.random.default_rng(0)
    x, positive = rng.normal(size=(20_000, 2)), np.zeros(20_000, dtype=bool)
    positive[[5, 777]] = True
    plain = Standardisation(np.zeros(2), np.ones(2))
    pixels = Pixels(x, positive, None, plain, np.dtype(np.float64), 4096)
    frequencies = some_frequencies(D=3, scale=0.1)
    fitted = fit(pixels, frequencies, tol=1e-5)
    quadratic = bound_fit(pixels, frequencies, passes=len(fitted.bounds))
    shares = []
    for posterior in (fitted, quadratic):
        mean, variance = moments(posterior, frequencies, x)
        shares.append(expected_log_sigmoid(-mean, variance)[1].mean())
    # The prior pulls the weights towards zero, and so the share up, by a tenth or so.
    assert_allclose(shares[0], 1e-4, rtol=0.2)
    assert shares[1] > 1e-3


# Steps that never lower the bound


@given(
    seed=seeds,
    scale=st.floats(-2.5, 1.0).map(lambda power: 10.0**power),
    signal_variance=st.floats(-3.0, 5.0).map(lambda power: 10.0**power),
    passes=st.sampled_from([1, 3]),
)
@settings(max_examples=30)
def test_the_bound_never_falls_from_any_start(seed, scale, signal_variance, passes):
    pixels, frequencies = some_pixels(seed), some_frequencies(seed, scale=scale)
    fitted = fit(pixels, frequencies, signal_variance, passes)
    assert np.all(np.diff(fitted.bounds) >= 0.0)
    assert np.all(np.isfinite(fitted.posterior.mean))


@given(
    seed=seeds,
    scale=st.floats(-2.0, 1.0).map(lambda power: 10.0**power),
    signal_variance=st.floats(-2.0, 3.0).map(lambda power: 10.0**power),
    share=st.floats(0.0, 0.5),
    log_odds=st.floats(-5.0, 5.0),
)
@settings(max_examples=30)
def test_the_bound_never_falls_with_damped_waves_and_a_level(
    seed, scale, signal_variance, share, log_odds
):
    pixels, frequencies = some_pixels(seed), some_frequencies(seed, scale=scale)
    prior = WavePrior(frequencies, np.array([share, 0.1]), log_odds)
    fitted = fit_one(pixels, prior, start_of(pixels, prior, signal_variance))
    assert np.all(np.diff(fitted.bounds) >= 0.0)
    assert np.all(np.isfinite(fitted.posterior.mean))


@pytest.mark.parametrize("signal_variance", [1.0, 1e3, 1e5])
def test_steps_that_lower_the_bound_are_taken_back(monkeypatch, signal_variance):
    # Smooth waves and labels without noise: γ runs away, and full steps overshoot.
    x = np.random.default_rng(1).normal(size=(300, 2))
    plain = Standardisation(np.zeros(2), np.ones(2))
    pixels = Pixels(x, np.sin(0.5 * x[:, 0]) > 0, None, plain, np.dtype(np.float64), 64)
    frequencies = some_frequencies(1, D=10, scale=0.3)
    shares, original = [], variational._advance

    def step(*arguments):
        shares.append(arguments[-1][0].share)
        return original(*arguments)

    monkeypatch.setattr(variational, "_advance", step)
    fitted = fit(pixels, frequencies, signal_variance, passes=1)
    assert min(shares) < 1.0
    # That of the start, and one for each step that was kept.
    assert len(fitted.bounds) < 1 + len(shares)
    assert np.all(np.diff(fitted.bounds) >= 0.0)
    settled = bound_fit(pixels, frequencies, signal_variance, passes=100)
    assert fitted.bounds[-1] > settled.bounds[-1]


@dataclasses.dataclass(frozen=True)
class Point:
    place: float
    bound: float


def climb(steepness, max_passes=25, tol=0.0):
    """Ascend -x² from 1 by steps of ``steepness`` times Newton's; also return the shares tried."""
    shares = []

    def advance(point, share):
        shares.append(share)
        place = point.place * (1.0 - share * steepness)
        return Point(place, -(place**2))

    found = ascend_naturally(Point(1.0, -1.0), advance, max_passes=max_passes, tol=tol)
    return list(found), shares


def test_the_share_of_a_step_is_halved_until_the_bound_rises_and_then_grows_again():
    found, shares = climb(7.0, max_passes=6)
    # Newton's step is 1: 7 and 3.5 times it overshoot, 1.75 does not lower -x²; 2.625 does.
    assert shares == [1.0, 0.5, 0.25, 0.375, 0.1875]
    assert [point.place for point in found] == [1.0, -0.75, 0.234375]


def test_a_direction_that_leads_down_ends_the_ascent_where_it_was():
    found, shares = climb(-1.0)
    assert [point.place for point in found] == [1.0]
    assert shares == [0.5**k for k in range(7)]


def test_an_ascent_ends_when_a_step_changes_little():
    found, _ = climb(0.5, max_passes=1000, tol=1e-4)
    # Each step gains three quarters of the last bound; 1e-4 of a hundred nats is 0.01.
    assert -found[-1].bound * 3 < 0.01 <= -found[-2].bound * 3
    assert len(found) == 6


def test_the_passes_are_at_most_as_many_as_allowed():
    found, shares = climb(0.5, max_passes=4)
    assert (len(found), len(shares)) == (4, 3)


# Blocks, threads, weights and precision


def test_the_size_of_blocks_does_not_matter():
    frequencies = some_frequencies()
    small, large = (fit(some_pixels(block=block), frequencies, max_passes=5) for block in (7, 64))
    assert_allclose(small.bounds, large.bounds, rtol=1e-10)
    # Sums in another order, and steps on them: rounding times the condition of A.
    assert_allclose(small.posterior.mean, large.posterior.mean, rtol=1e-8, atol=1e-9)
    assert_allclose(small.posterior.root, large.posterior.root, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit(threads):
    frequencies = some_frequencies()
    one, several = (fit(some_pixels(threads=t), frequencies) for t in (1, threads))
    assert one.bounds == several.bounds
    assert_array_equal(one.posterior.mean, several.posterior.mean)
    assert_array_equal(one.posterior.root, several.posterior.root)


def test_a_weight_equals_as_many_rows():
    counts = np.random.default_rng(0).integers(1, 4, 60)
    weighted = some_pixels(weight=counts.astype(float))
    rows = np.repeat(np.arange(60), counts)
    repeated = dataclasses.replace(
        weighted, rows=weighted.rows[rows], codes=weighted.codes[rows], weight=None
    )
    frequencies = some_frequencies()
    one, other = (fit(pixels, frequencies, max_passes=10) for pixels in (weighted, repeated))
    assert_allclose(one.bounds, other.bounds, rtol=1e-10)
    assert_allclose(one.posterior.mean, other.posterior.mean, rtol=1e-7, atol=1e-8)
    assert_allclose(one.posterior.root, other.posterior.root, rtol=1e-7, atol=1e-8)


def test_single_precision_follows_double():
    frequencies = some_frequencies(D=10)
    double, single = (
        fit(some_pixels(n=2000, dtype=dtype, block=256), frequencies, tol=1e-6)
        for dtype in (np.float64, np.float32)
    )
    assert single.posterior.mean.dtype == np.float64
    assert_allclose(single.bounds[-1], double.bounds[-1], rtol=1e-5)
    x = np.random.default_rng(5).normal(size=(50, 2))
    means, variances = zip(*(moments(f, frequencies, x) for f in (double, single)), strict=True)
    # Both end where a step gains 1e-6 of the bound, 1e-3 nats: a thirtieth of a deviation.
    deviation = np.sqrt(variances[0])
    assert np.all(np.abs(means[1] - means[0]) < 0.05 * deviation)
    assert_allclose(variances[1], variances[0], rtol=0.05)


# The posterior handed out


def final(pixels, frequencies, spread=None, log_odds=0.0, **options):
    defaults = {"variational": True, "max_passes": 8, "bound_tol": 0.0, "tol": 1e-9}
    waves, xi = WavePrior(frequencies, spread), np.ones(pixels.n_rows)
    (found,) = fit_final_posteriors(
        pixels, waves, [log_odds], [1.0], [xi], None, **(defaults | options)
    )
    return found


def test_the_final_posterior_is_the_bounds_if_that_is_wanted():
    pixels, frequencies = some_pixels(), some_frequencies()
    found = final(pixels, frequencies, variational=False)
    expected = bound_fit(pixels, frequencies, passes=8)
    assert found.bounds == expected.bounds
    assert_array_equal(found.posterior.root, expected.posterior.root)


def start_of(pixels, prior, signal_variance=1.0):
    """The posterior after an update of ξ at fixed γ, from that of ξ = 1 without a level."""
    own = prior.level(signal_variance)
    xi = np.ones(pixels.n_rows)
    posterior = accumulate(pixels, prior.frequencies, signal_variance, xi).posterior()
    statistics = tighten(
        pixels,
        prior.frequencies,
        signal_variance,
        posterior,
        spread=prior.spread,
        levels=(0.0, own),
    )
    return PosteriorFit(signal_variance, statistics, statistics.posterior(), ())


@pytest.mark.parametrize("log_odds", [0.0, -2.0])
@pytest.mark.parametrize("spread", [None, np.array([0.3, 0.1])], ids=["undamped", "damped"])
def test_the_final_posterior_starts_from_a_few_passes_of_the_bound_at_fixed_variance(
    spread, log_odds
):
    pixels, frequencies = some_pixels(), some_frequencies()
    prior = WavePrior(frequencies, spread, log_odds)
    found = final(pixels, frequencies, spread=spread, log_odds=log_odds)
    options = {"max_passes": 8, "tol": 1e-9}
    expected = fit_one(pixels, prior, start_of(pixels, prior), **options)
    assert found.bounds == expected.bounds
    assert_array_equal(found.posterior.root, expected.posterior.root)


@pytest.mark.parametrize("after", [1, 2, 4])
@pytest.mark.parametrize("spread", [None, np.array([0.3, 0.1])], ids=["undamped", "damped"])
def test_an_interrupt_ends_at_the_last_finished_pass(after, spread):
    def report(done, bound):
        reported.append((done, bound))
        if done == after:
            raise KeyboardInterrupt

    reported = []
    pixels, frequencies = some_pixels(), some_frequencies()
    whole, stopped = (
        final(pixels, frequencies, spread=spread, **options)
        for options in ({}, {"report": report})
    )
    assert stopped.interrupted
    assert not whole.interrupted
    # Steps that were taken back are reported, too, but have no bound.
    assert 1 <= len(stopped.bounds) <= after
    assert stopped.bounds == whole.bounds[: len(stopped.bounds)]
    assert [done for done, _ in reported] == list(range(1, after + 1))
    assert reported[-1][1] == stopped.bounds[-1]


def test_an_interrupt_is_raised_unless_the_fit_is_interruptible():
    def report(done, bound):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(some_pixels(), some_frequencies(), report=report)


# Several latent functions at once


def many_classes(seed=0, n=400, dtype=np.float64, threads=1):
    """Pixels of four classes of different sizes, one of them easy to tell."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    codes = np.digitize(np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n), [-0.8, 0.1, 0.4])
    codes = np.where(x[:, 1] > 1.0, 3, codes)
    weight = rng.uniform(0.2, 2.0, n)
    plain = Standardisation(np.zeros(2), np.ones(2))
    return Pixels(x, codes, weight, plain, np.dtype(dtype), 64, threads, n_classes=4)


def fit_final(pixels, waves, latents, posteriors=None, **options):
    log_odds, variances = [-1.5, -1.0, -1.2, -0.5], [0.5, 1.0, 3.0, 8.0]
    defaults = {"variational": True, "max_passes": 40, "bound_tol": 1e-4, "tol": 1e-6}
    return fit_final_posteriors(
        pixels,
        waves,
        [log_odds[latent] for latent in latents],
        [variances[latent] for latent in latents],
        [np.ones(pixels.n_rows, pixels.dtype) for _ in latents],
        posteriors,
        **(defaults | options),
    )


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("spread", [None, np.array([0.3, 0.1])], ids=["undamped", "damped"])
def test_classes_fitted_together_are_those_fitted_one_by_one(variational, spread):
    pixels, waves = many_classes(), WavePrior(some_frequencies(), spread)
    together = fit_final(pixels, waves, range(4), variational=variational)
    passes = []
    for latent, found in enumerate(together):
        (alone,) = fit_final(pixels.against_rest(latent), waves, [latent], variational=variational)
        passes.append(len(alone.bounds))
        # The features are rescaled from one γ to the next: a rounding each.
        assert_allclose(found.bounds, alone.bounds, rtol=1e-10)
        assert_allclose(found.signal_variance, alone.signal_variance, rtol=1e-6)
        assert_allclose(found.posterior.mean, alone.posterior.mean, rtol=1e-5, atol=1e-6)
    # Some settle earlier than others, and drop out.
    assert len(set(passes)) > 1


@pytest.mark.parametrize("variational", [True, False])
def test_a_pass_computes_the_features_of_a_block_once_for_all_classes(variational, monkeypatch):
    calls, original = [], bound.fourier_features
    monkeypatch.setattr(
        bound,
        "fourier_features",
        lambda *args, **named: calls.append(1) or original(*args, **named),
    )
    pixels, waves = many_classes(), WavePrior(some_frequencies())
    found = fit_final(pixels, waves, range(4), variational=variational, max_passes=3)
    blocks = -(-pixels.n_rows // 64)
    # Without posteriors to start from: one pass at ξ = 1, and that of the start at fixed γ.
    start = 2 if variational else 0
    assert len(calls) == blocks * (start + 3)
    assert all(len(fit.bounds) == 3 for fit in found)


def test_large_gram_matrices_do_not_share_a_pass(monkeypatch):
    pixels, waves = many_classes(), WavePrior(some_frequencies())
    together = fit_final(pixels, waves, range(4))
    monkeypatch.setattr(bound, "TOTAL_BYTES", 2 * 8 * 10**2)
    in_pairs = fit_final(pixels, waves, range(4))
    for one, other in zip(together, in_pairs, strict=True):
        assert_allclose(one.bounds, other.bounds, rtol=1e-10)


def test_threads_do_not_change_a_bit_of_several_classes():
    waves = WavePrior(some_frequencies())
    one, other = (fit_final(many_classes(threads=n), waves, range(4)) for n in (1, 3))
    for own, same in zip(one, other, strict=True):
        assert own.bounds == same.bounds
        assert_array_equal(own.posterior.root, same.posterior.root)


@pytest.mark.parametrize("variational", [True, False])
def test_an_interrupt_ends_all_classes_at_the_last_finished_pass(variational):
    def report(done, bound):
        reported.append(bound)
        if done == 3:
            raise KeyboardInterrupt

    reported = []
    pixels, waves = many_classes(), WavePrior(some_frequencies())
    whole, stopped = (
        fit_final(pixels, waves, range(4), variational=variational, **options)
        for options in ({}, {"report": report})
    )
    for own, full in zip(stopped, whole, strict=True):
        assert own.interrupted
        assert own.bounds == full.bounds[: len(own.bounds)]
        assert 1 <= len(own.bounds) <= 3
    assert_allclose(reported[-1], sum(own.bounds[-1] for own in stopped), rtol=1e-12)
