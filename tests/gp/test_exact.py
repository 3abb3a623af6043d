"""The exact classifier: dense formulas, gradients, Fourier features as an oracle, memory."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit

from undulatus.errors import InputError, TooManyRowsError
from undulatus.gp import exact
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.bound import block_statistics
from undulatus.gp.damping import level
from undulatus.gp.exact import (
    ExactEvidence,
    exact_covariance,
    exact_moments,
    fit_exact,
    require_memory,
    squared_distances,
)
from undulatus.gp.fourier import fourier_features
from undulatus.gp.kernels import KERNELS, Kernel, mean_distance
from undulatus.gp.passes import PosteriorFit, fit_posterior
from undulatus.gp.posterior import expected_sigmoid, latent_moments, variance_root
from undulatus.gp.variational import (
    LARGEST_SHARE,
    WavePrior,
    ascend_naturally,
    expected_log_sigmoid,
    fit_variational,
)

seeds = st.integers(0, 2**32 - 1)
each_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)


def problem(seed=0, n=30, d=2, weighted=False):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    v = np.where(np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0, 0.5, -0.5)
    weight = rng.uniform(0.2, 3.0, n) if weighted else np.ones(n)
    return x, v, weight, mean_distance(x.var(axis=0))


def direct(K, v, weight, xi):
    """Bound, latent mean and covariance at the training pixels, by dense formulas.

    The bounded likelihood is exp(vᵗf - fᵗΛf), so the posterior is N((K⁻¹ + 2Λ)⁻¹ v,
    (K⁻¹ + 2Λ)⁻¹) and 2 log F = vᵗ(K⁻¹ + 2Λ)⁻¹v - log|I + 2ΛK| + 2 log C.
    """
    precision = 2 * weight * (expit(xi) - 0.5) / (2 * xi)
    # (K⁻¹ + P)⁻¹ = (I + KP)⁻¹ K needs no inverse of K, which is nearly singular.
    spread = np.linalg.solve(np.eye(len(v)) + K * precision, K)
    mean = spread @ (weight * v)
    log_C = np.sum(weight * (precision / weight / 2 * xi**2 + xi / 2 - np.log(1 + np.exp(xi))))
    log_determinant = np.linalg.slogdet(np.eye(len(v)) + K * precision)[1]
    return 0.5 * ((weight * v) @ mean - log_determinant) + log_C, mean, spread


# The evidence


@each_kernel
@given(seed=seeds, weighted=st.booleans())
@settings(max_examples=20)
def test_bound_and_moments_are_those_of_dense_formulas(kernel, seed, weighted):
    x, v, weight, distance = problem(seed, weighted=weighted)
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    evidence.xi = np.random.default_rng(seed).uniform(0.1, 3.0, len(x))
    theta = np.array([0.7, np.log(0.6 * distance)])
    K = np.exp(0.7) * kernel.correlation(
        np.sum((x[:, None] - x[None]) ** 2, axis=-1) / (0.6 * distance) ** 2
    )
    bound, posterior = evidence.solve(evidence.covariance(theta))
    expected_bound, expected_mean, expected_spread = direct(K, v, weight, evidence.xi)
    assert posterior.jitter == 0.0
    assert_allclose(bound, expected_bound, rtol=1e-10)
    mean, variance = exact_moments(x, x, kernel, np.exp(0.7), 0.6 * distance, posterior)
    # Matérn correlations have a cusp in the squared distance: off the diagonal, rounding of
    # |x|² - 2x·x' + |x'|² to 1e-15 moves them by up to sqrt(1e-15) at coinciding rows.
    assert_allclose(mean, expected_mean, rtol=0, atol=1e-6)
    assert_allclose(variance, np.diagonal(expected_spread), rtol=0, atol=1e-6)


@each_kernel
@given(seed=seeds, weighted=st.booleans())
@settings(max_examples=20)
def test_the_gradient_is_that_of_finite_differences(kernel, seed, weighted):
    x, v, weight, distance = problem(seed, n=20, weighted=weighted)
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    evidence.xi = np.random.default_rng(seed).uniform(0.1, 3.0, len(x))
    theta = np.array([0.4, np.log(0.7 * distance)])
    _, found = evidence.value_and_gradient(theta)
    step, expected = 1e-5, np.empty(2)
    for i in range(2):
        nudge = np.zeros(2)
        nudge[i] = step
        up, down = (evidence.value_and_gradient(theta + s * nudge)[0] for s in (1, -1))
        expected[i] = (up - down) / (2 * step)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@each_kernel
@given(seed=seeds, weighted=st.booleans())
@settings(max_examples=10)
def test_tightening_never_lowers_the_bound(kernel, seed, weighted):
    x, v, weight, distance = problem(seed, weighted=weighted)
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    theta = np.array([1.0, np.log(0.5 * distance)])
    bound = evidence.solve(evidence.covariance(theta))[0]
    for _ in range(5):
        tighter = evidence.tighten(theta)
        assert tighter >= bound - 1e-12 * abs(bound)
        bound = tighter


def test_tightening_sets_xi_to_the_posterior_second_moment():
    x, v, weight, distance = problem()
    evidence = ExactEvidence(x, v, weight, KERNELS["rbf"], distance)
    theta = np.array([1.0, np.log(0.5 * distance)])
    _, mean, spread = direct(evidence.covariance(theta), v, weight, evidence.xi)
    evidence.tighten(theta)
    assert_allclose(evidence.xi, np.sqrt(np.diagonal(spread) + mean**2), rtol=1e-8)


def test_a_weight_equals_as_many_rows():
    x, v, _, distance = problem(n=15)
    counts = np.random.default_rng(0).integers(1, 4, 15)
    rows = np.repeat(np.arange(15), counts)
    theta = np.array([0.5, np.log(distance)])
    kernel = KERNELS["rbf"]
    weighted = ExactEvidence(x, v, counts.astype(float), kernel, distance)
    repeated = ExactEvidence(x[rows], v[rows], np.ones(len(rows)), kernel, distance)
    assert_allclose(weighted.tighten(theta), repeated.tighten(theta), rtol=1e-10)
    assert_allclose(weighted.xi[rows], repeated.xi, rtol=1e-8)


# Fourier features as an oracle


def waves_as_a_kernel(frequencies):
    """The kernel of D given waves in one dimension: the mean of their cosines."""
    assert frequencies.shape[1] == 1

    def correlation(square):
        return np.mean(np.cos(np.sqrt(square)[..., None] * frequencies[:, 0]), axis=-1)

    return Kernel(draw=None, correlation=correlation, slope=None)


def test_in_one_dimension_weight_space_and_function_space_agree():
    x, v, weight, distance = problem(n=40, d=1)
    frequencies = np.random.default_rng(1).normal(size=(6, 1))
    gamma = 2.0
    plain = Standardisation(np.zeros(1), np.ones(1))
    pixels = Pixels(x, v > 0, None, plain, np.dtype(np.float64), 64)
    xi = np.ones(40)
    kernel = waves_as_a_kernel(frequencies)
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    theta = np.array([np.log(gamma), 0.0])
    fit = fit_posterior(pixels, frequencies, gamma, xi, max_passes=1)
    bound, posterior = evidence.solve(evidence.covariance(theta))
    assert_allclose(bound, fit.bounds[0], rtol=1e-10)
    new = np.linspace(-3, 3, 17)[:, None]
    z = fourier_features(new, frequencies, gamma)
    root = variance_root(fit.posterior, gamma)
    in_weights = latent_moments(z, fit.posterior.mean, root)
    in_functions = exact_moments(new, x, kernel, gamma, 1.0, posterior)
    # The variance in function space is a difference of terms of size γ: 1e-10 absolute.
    assert_allclose(in_functions[0], in_weights[0], rtol=1e-8, atol=1e-8)
    assert_allclose(in_functions[1], in_weights[1], rtol=1e-8, atol=1e-8)


@each_kernel
def test_more_random_features_approach_the_exact_classifier(kernel):
    x, v, weight, distance = problem(n=50)
    gamma, lengthscale = 3.0, 0.6 * distance
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    theta = np.log([gamma, lengthscale])
    _, posterior = evidence.solve(evidence.covariance(theta))
    new = np.random.default_rng(5).normal(size=(60, 2))
    exact_mean, exact_variance = exact_moments(new, x, kernel, gamma, lengthscale, posterior)
    plain = Standardisation(np.zeros(2), np.ones(2))
    pixels = Pixels(x, v > 0, None, plain, np.dtype(np.float64), 64)
    errors = {}
    for D in (20, 320):
        off = []
        for seed in range(5):
            frequencies = kernel.draw(np.random.default_rng(seed), D, 2) / lengthscale
            fit = fit_posterior(pixels, frequencies, gamma, np.ones(50), max_passes=1)
            z = fourier_features(new, frequencies, gamma)
            root = variance_root(fit.posterior, gamma)
            mean, variance = latent_moments(z, fit.posterior.mean, root)
            off.append(
                [
                    np.sqrt(np.mean((mean - exact_mean) ** 2)),
                    np.sqrt(np.mean((variance - exact_variance) ** 2)),
                ]
            )
        errors[D] = np.mean(off, axis=0)
    # Sixteen times the frequencies quarter the Monte-Carlo error; ask for a half.
    assert np.all(errors[320] < 0.5 * errors[20])


# Fitting


@each_kernel
@pytest.mark.parametrize("seed", range(2))
def test_the_bound_never_decreases(kernel, seed):
    x, v, weight, distance = problem(seed)
    fit = fit_exact(x, v, weight, kernel, distance, max_iter=15, tol=0.0)
    assert np.all(np.diff(fit.bounds) >= -1e-10 * np.abs(fit.bounds).max())


def test_the_hyperparameters_stay_within_their_limits():
    # Labels without structure push the lengthscale or the variance to a limit.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    v = np.where(rng.random(30) < 0.5, 0.5, -0.5)
    fit = fit_exact(x, v, np.ones(30), KERNELS["rbf"], 2.0, max_iter=60, tol=1e-8)
    # A logarithm and its exponential: a unit in the last place.
    low, high = np.array(exact.VARIANCE_LIMITS) * [1 - 1e-12, 1 + 1e-12]
    assert low <= fit.signal_variance <= high
    low, high = 2.0 * np.array(exact.LENGTHSCALE_LIMITS) * [1 - 1e-12, 1 + 1e-12]
    assert low <= fit.lengthscale <= high


def test_the_bounds_posterior_is_that_of_dense_formulas():
    x, v, weight, distance = problem()
    kernel = KERNELS["rbf"]
    fit = fit_exact(x, v, weight, kernel, distance, max_iter=10, tol=1e-4, variational=False)
    precision = fit.posterior.roots**2
    K = exact_covariance(x, x, kernel, fit.signal_variance, fit.lengthscale)
    spread = np.linalg.solve(np.eye(len(x)) + K * precision, K)
    mean, variance = exact_moments(
        x, x, kernel, fit.signal_variance, fit.lengthscale, fit.posterior
    )
    assert_allclose(mean, spread @ v, rtol=1e-7, atol=1e-7)
    assert_allclose(variance, np.diagonal(spread), rtol=1e-6, atol=1e-7)


def test_far_from_the_data_the_posterior_is_the_prior():
    x, v, weight, distance = problem()
    kernel = KERNELS["rbf"]
    fit = fit_exact(x, v, weight, kernel, distance, max_iter=5, tol=1e-4)
    mean, variance = exact_moments(
        np.full((1, 2), 1e4), x, kernel, fit.signal_variance, fit.lengthscale, fit.posterior
    )
    assert_allclose(mean, 0.0, atol=1e-12)
    assert_allclose(variance, fit.signal_variance, rtol=1e-12)


@each_kernel
@pytest.mark.parametrize("share", [0.03, 0.5, 0.9])
def test_far_from_the_data_the_probability_is_the_share_of_the_class(kernel, share):
    x, v, weight, distance = problem()
    log_odds = float(logit(share))
    fit = fit_exact(x, v, weight, kernel, distance, max_iter=5, tol=1e-4, log_odds=log_odds)
    far = np.full((1, 2), 1e6)
    mean, variance = exact_moments(
        far, x, kernel, fit.signal_variance, fit.lengthscale, fit.posterior
    )
    assert fit.level == level(log_odds, fit.signal_variance)
    # Correlations fall with the square of the distance at the slowest: 1e-12 of it is left.
    assert_allclose(expected_sigmoid(mean + fit.level, variance), share, rtol=1e-9)


def test_the_quadratic_bounds_posterior_has_no_level():
    x, v, weight, distance = problem()
    options = {"max_iter": 3, "tol": 1e-4, "variational": False}
    plain, asked = (
        fit_exact(x, v, weight, KERNELS["rbf"], distance, log_odds=log_odds, **options)
        for log_odds in (0.0, -2.0)
    )
    assert asked.level == 0.0
    assert_array_equal(asked.posterior.alpha, plain.posterior.alpha)


def test_an_interrupted_fit_keeps_its_last_iteration():
    def report(ascent):
        if ascent.n_iter == 2:
            raise KeyboardInterrupt

    x, v, weight, distance = problem()
    kernel = KERNELS["rbf"]
    stopped = fit_exact(x, v, weight, kernel, distance, max_iter=9, tol=0.0, report=report)
    # Without further passes, the posterior is the bound's.
    options = {"max_iter": 2, "tol": 0.0, "variational": False}
    short = fit_exact(x, v, weight, kernel, distance, **options)
    assert stopped.outcome == "interrupted"
    assert stopped.bounds == short.bounds
    assert_array_equal(stopped.posterior.alpha, short.posterior.alpha)


def test_starting_lengthscales_are_compared_at_tight_xi():
    x, v, weight, distance = problem(n=40)
    evidence = ExactEvidence(x, v, weight, KERNELS["rbf"], distance)
    found, xi = exact._choose_theta(evidence, distance), evidence.xi
    bounds = {}
    for share in exact.LENGTHSCALE_SHARES:
        theta = np.array([0.0, np.log(share * distance)])
        evidence.xi = np.ones(40)
        for _ in range(50):
            bounds[share] = evidence.tighten(theta)
    best = max(bounds, key=bounds.get)
    assert_allclose(found, [0.0, np.log(best * distance)], rtol=1e-12)
    # ξ stays where that lengthscale left it: tight to a hundredth of a nat.
    evidence.xi = xi
    assert bounds[best] - evidence.solve(evidence.covariance(found))[0] < 0.01


# The best Gaussian posterior


def variational_fit(seed=0, kernel="rbf", weighted=False, **options):
    x, v, weight, distance = problem(seed, n=40, weighted=weighted)
    options = {"max_iter": 5, "tol": 1e-9} | options
    return (x, v, weight), fit_exact(x, v, weight, KERNELS[kernel], distance, **options)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("log_odds", [0.0, -1.0])
def test_the_variational_posterior_is_at_its_fixed_point(kernel, weighted, log_odds, monkeypatch):
    monkeypatch.setattr(exact, "MAX_PASSES", 500)
    (x, v, weight), fit = variational_fit(kernel=kernel, weighted=weighted, log_odds=log_odds)
    mean, variance = exact_moments(
        x, x, KERNELS[kernel], fit.signal_variance, fit.lengthscale, fit.posterior
    )
    _, slope, curvature = expected_log_sigmoid(2 * v * (mean + fit.level), variance)
    # α = K⁻¹μ is the weighted residual, and S² the weighted curvature, to the last step's size:
    # it changed the bound by less than 1e-10 x 100 nats, and so these by its root or so.
    assert_allclose(fit.posterior.alpha, weight * 2 * v * slope, atol=1e-3)
    assert_allclose(fit.posterior.roots**2, weight * curvature, atol=1e-3)


@pytest.mark.parametrize("log_odds", [0.0, -1.0])
def test_the_variational_bound_is_that_of_dense_formulas(log_odds):
    (x, v, _), fit = variational_fit(log_odds=log_odds)
    K = exact_covariance(x, x, KERNELS["rbf"], fit.signal_variance, fit.lengthscale)
    spread = np.linalg.solve(np.eye(40) + K * fit.posterior.roots**2, K)
    mean = K @ fit.posterior.alpha
    value, _, _ = expected_log_sigmoid(2 * v * (mean + fit.level), np.diagonal(spread))
    # KL(N(μ, Σ) || N(0, K)), with K⁻¹Σ = (I + PK)⁻¹ in place of K⁻¹, which is nearly singular.
    share = np.linalg.inv(np.eye(40) + fit.posterior.roots[:, None] ** 2 * K)
    log_ratio = np.linalg.slogdet(share)[1]
    divergence = 0.5 * (np.trace(share) + mean @ fit.posterior.alpha - 40 - log_ratio)
    assert_allclose(fit.bounds[-1], value.sum() - divergence, rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_variational_bound_is_tighter_and_its_variance_larger(seed):
    (x, _, _), fit = variational_fit(seed)
    _, quadratic = variational_fit(seed, variational=False)
    assert fit.bounds[-1] > quadratic.bounds[-1]
    assert fit.bounds[:-1] == quadratic.bounds[:-1]
    variances = [
        exact_moments(x, x, KERNELS["rbf"], f.signal_variance, f.lengthscale, f.posterior)[1]
        for f in (fit, quadratic)
    ]
    assert np.median(variances[0] / variances[1]) > 1.2


@pytest.mark.parametrize("log_odds", [0.0, -1.5])
def test_the_best_gaussians_in_weight_space_and_function_space_agree(log_odds):
    x, v, weight, distance = problem(n=40, d=1)
    frequencies = np.random.default_rng(1).normal(size=(6, 1))
    plain = Standardisation(np.zeros(1), np.ones(1))
    pixels = Pixels(x, v > 0, None, plain, np.dtype(np.float64), 64)
    prior = WavePrior(frequencies, log_odds=log_odds)
    block = pixels.block(slice(0, 40))
    z = fourier_features(x, frequencies, 2.0)
    statistics = block_statistics(z, block, np.ones(40), level=prior.level(2.0))
    start = PosteriorFit(2.0, statistics, statistics.posterior(), ())
    (in_weights,) = fit_variational(pixels, [prior], [start], max_passes=40)
    evidence = ExactEvidence(x, v, weight, waves_as_a_kernel(frequencies), distance)
    first = exact._evaluate(evidence, np.array([np.log(2.0), 0.0]), log_odds, evidence.sites)
    step = partial(exact._step, evidence, log_odds)
    states = list(
        ascend_naturally(first, step, max_passes=40, tol=0.0, largest_share=LARGEST_SHARE)
    )
    # Each search for γ ends within 1e-5 of its logarithm, where the bound is flat.
    assert_allclose(states[-1].bound, in_weights.bounds[-1], rtol=1e-8)
    if log_odds == 0.0:  # The weights' start has no sum of precisions by themselves for a level.
        assert_allclose([state.bound for state in states[:6]], in_weights.bounds[:6], rtol=1e-8)
    assert_allclose(np.exp(states[-1].theta[0]), in_weights.signal_variance, rtol=1e-4)


def test_a_weighted_variational_posterior_is_that_of_repeated_rows():
    x, v, _, distance = problem(n=15)
    counts = np.random.default_rng(0).integers(1, 4, 15)
    rows = np.repeat(np.arange(15), counts)
    kernel, theta = KERNELS["rbf"], np.array([0.5, np.log(distance)])
    states = []
    for evidence in (
        ExactEvidence(x, v, counts.astype(float), kernel, distance),
        ExactEvidence(x[rows], v[rows], np.ones(len(rows)), kernel, distance),
    ):
        state = exact._evaluate(evidence, theta, 0.0, evidence.sites)
        for _ in range(3):
            state = exact._step(evidence, 0.0, state, 1.0)
        states.append(state)
    assert_allclose(states[0].bound, states[1].bound, rtol=1e-8)
    assert_allclose(states[0].theta, states[1].theta, rtol=0, atol=1e-4)


def test_an_interrupt_in_the_last_passes_keeps_the_last_step(monkeypatch):
    calls, original = [], exact._step

    def interrupt(*args):
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(exact, "_step", interrupt)
    _, fit = variational_fit()
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        variational_fit(interruptible=False)
    monkeypatch.undo()
    _, whole = variational_fit()
    _, quadratic = variational_fit(variational=False)
    assert fit.outcome == "interrupted"
    assert quadratic.bounds[-1] < fit.bounds[-1] < whole.bounds[-1]


# Distances and memory


@given(seeds)
def test_squared_distances_are_those_of_differences_and_never_negative(seed):
    rng = np.random.default_rng(seed)
    x, other = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    other[0] = x[0]
    found = squared_distances(x, other)
    assert np.all(found >= 0)
    expected = np.sum((x[:, None] - other[None]) ** 2, axis=-1)
    # Three terms, each of size |x|² up to 30 or so, are rounded.
    assert_allclose(found, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n_rows", [1000, 20_000])
def test_too_many_rows_are_an_error_with_the_numbers(monkeypatch, n_rows):
    needed = 8.0 * exact.MATRICES * n_rows**2
    monkeypatch.setattr(exact, "available_memory", lambda: needed - 1.0)
    with pytest.raises(TooManyRowsError) as caught:
        require_memory(n_rows)
    message = str(caught.value)
    assert f"{n_rows} training rows" in message
    assert f"{needed / 2**30:.1f} GiB" in message
    assert "RFFGPC or VFFGPC" in message
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, MemoryError)
    monkeypatch.setattr(exact, "available_memory", lambda: needed)
    require_memory(n_rows)


def test_too_many_rows_are_an_error_before_memory_is_allocated(monkeypatch):
    monkeypatch.setattr(exact, "available_memory", lambda: 1e3)
    monkeypatch.setattr(exact, "squared_distances", None)
    x, v, weight, distance = problem()
    with pytest.raises(TooManyRowsError):
        fit_exact(x, v, weight, KERNELS["rbf"], distance, max_iter=1, tol=0.0)


def test_the_available_memory_is_a_plausible_number_of_bytes():
    assert 2**20 < exact.available_memory() < 2**50
