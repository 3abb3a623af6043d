"""The exact classifier: dense formulas, gradients, features as an oracle, memory, row updates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit
from tests.gp.problems import (
    BOUNDS,
    assert_same,
    dense_features,
    exact_moments,
    latent_moments,
    plain,
    slow_ascent,
)

from undulatus.errors import InputError, TooManyRowsError
from undulatus.gp import exact
from undulatus.gp.backends import HOST
from undulatus.gp.data import Pixels
from undulatus.gp.exact import (
    ExactEvidence,
    FunctionSpace,
    exact_covariance,
    fit_exact,
    mean_and_root,
    require_memory,
    sites_of,
    squared_distances,
    with_sites,
)
from undulatus.gp.inference import AscentConfig, Gaussian, WeightSpace, ascend
from undulatus.gp.kernels import KERNELS, Kernel, mean_distance
from undulatus.gp.likelihood import EXPECTED, QUADRATIC, expected_log_sigmoid
from undulatus.gp.posterior import expected_sigmoid
from undulatus.gp.taper import prior_mean

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
    covariance = np.linalg.solve(np.eye(len(v)) + K * precision, K)
    mean = covariance @ (weight * v)
    log_C = np.sum(weight * (precision / weight / 2 * xi**2 + xi / 2 - np.log(1 + np.exp(xi))))
    log_determinant = np.linalg.slogdet(np.eye(len(v)) + K * precision)[1]
    return 0.5 * ((weight * v) @ mean - log_determinant) + log_C, mean, covariance


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
    expected_bound, expected_mean, expected_covariance = direct(K, v, weight, evidence.xi)
    assert posterior.jitter == 0.0
    assert_allclose(bound, expected_bound, rtol=1e-10)
    mean, variance = exact_moments(x, x, kernel, np.exp(0.7), 0.6 * distance, posterior)
    # Matérn correlations have a cusp in the squared distance: off the diagonal, rounding of
    # |x|² - 2x·x' + |x'|² to 1e-15 moves them by up to sqrt(1e-15) at coinciding rows.
    assert_allclose(mean, expected_mean, rtol=0, atol=1e-6)
    assert_allclose(variance, np.diagonal(expected_covariance), rtol=0, atol=1e-6)


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
def test_updating_xi_never_lowers_the_bound(kernel, seed, weighted):
    x, v, weight, distance = problem(seed, weighted=weighted)
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    theta = np.array([1.0, np.log(0.5 * distance)])
    bound = evidence.solve(evidence.covariance(theta))[0]
    for _ in range(5):
        tighter = evidence.update_xi(theta)
        assert tighter >= bound - 1e-12 * abs(bound)
        bound = tighter


def test_updating_xi_sets_xi_to_the_posterior_second_moment():
    x, v, weight, distance = problem()
    evidence = ExactEvidence(x, v, weight, KERNELS["rbf"], distance)
    theta = np.array([1.0, np.log(0.5 * distance)])
    _, mean, covariance = direct(evidence.covariance(theta), v, weight, evidence.xi)
    evidence.update_xi(theta)
    assert_allclose(evidence.xi, np.sqrt(np.diagonal(covariance) + mean**2), rtol=1e-8)


def test_a_weight_equals_as_many_rows():
    x, v, _, distance = problem(n=15)
    counts = np.random.default_rng(0).integers(1, 4, 15)
    rows = np.repeat(np.arange(15), counts)
    theta = np.array([0.5, np.log(distance)])
    kernel = KERNELS["rbf"]
    weighted = ExactEvidence(x, v, counts.astype(float), kernel, distance)
    repeated = ExactEvidence(x[rows], v[rows], np.ones(len(rows)), kernel, distance)
    assert_allclose(weighted.update_xi(theta), repeated.update_xi(theta), rtol=1e-10)
    assert_allclose(weighted.xi[rows], repeated.xi, rtol=1e-8)


# Fourier features as an oracle


def features_as_a_kernel(frequencies):
    """The kernel of D given frequencies in one dimension: the mean of their cosines."""
    assert frequencies.shape[1] == 1

    def correlation(square):
        return np.mean(np.cos(np.sqrt(square)[..., None] * frequencies[:, 0]), axis=-1)

    return Kernel(draw=None, correlation=correlation, slope=None)


@pytest.mark.parametrize(("bound", "slow"), BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("log_odds", [0.0, -1.5])
def test_the_ascents_over_weights_and_over_functions_are_the_same(bound, slow, log_odds):
    """Each step has the same bound and γ; at fixed γ both end where plain steps on ZZᵗ do."""
    x, v, weight, distance = problem(n=40, d=1, weighted=True)
    frequencies = np.random.default_rng(1).normal(size=(6, 1))
    pixels = Pixels(x, v > 0, weight, plain(1), HOST, 64)
    weights = WeightSpace(pixels, frequencies, log_odds=[log_odds])
    evidence = ExactEvidence(x, v, weight, features_as_a_kernel(frequencies), distance)
    functions = FunctionSpace(evidence, 0.0, log_odds)
    for limit in (1e6, 2.0):
        config = AscentConfig(30 if limit > 2.0 else 2000, variance_limit=limit)
        ends = []
        for space in (weights, functions):
            [(sites, _)] = space.evaluate(bound, [0], [space.solve(0, flat_sites(space), 2.0)])
            ends += ascend(space, bound, [space.solve(0, sites, 2.0)], config)
        in_weights, in_functions = ends
        # Each search for γ ends within 1e-5 of its logarithm, where the bound is flat.
        count = min(len(end.bounds) for end in ends)
        assert_allclose(in_functions.bounds[:count], in_weights.bounds[:count], rtol=1e-6)
        gammas = [end.gaussian.signal_variance for end in ends]
        assert_allclose(gammas[1], gammas[0], rtol=1e-3)
        assert_allclose(
            in_functions.gaussian.prior_mean, in_weights.gaussian.prior_mean, rtol=1e-3
        )
    z, _ = dense_features(x, frequencies)
    b = prior_mean(log_odds, 2.0)
    value, mean, covariance = slow_ascent(slow, np.sqrt(2.0) * z, np.sign(v), weight, b=b)
    at_rows = in_functions.gaussian.posterior
    assert_allclose(in_functions.bounds[-1], value, rtol=1e-10)
    assert_allclose(at_rows.mean, np.sqrt(2.0) * z @ mean, atol=1e-5)
    assert_allclose(at_rows.variance, 2.0 * np.einsum("ij,jk,ik->i", z, covariance, z), atol=1e-5)
    # And away from the training rows.
    new = np.linspace(-3, 3, 17)[:, None]
    z, _ = dense_features(new, frequencies)
    expected = latent_moments(z, in_weights.gaussian.posterior, 2.0)
    kernel, posterior = features_as_a_kernel(frequencies), at_rows.posterior
    for one, other in zip(
        exact_moments(new, x, kernel, 2.0, 1.0, posterior), expected, strict=True
    ):
        assert_allclose(one, other, atol=1e-5)


def flat_sites(space):
    """The sites of the prior of variance 1, without a mean."""
    if isinstance(space, WeightSpace):
        return space.evaluate(QUADRATIC, [0], [Gaussian(1.0)])[0][0]
    return space.evidence.sites


@given(seed=seeds, log_odds=st.sampled_from([0.0, -1.5]), log_start=st.floats(-4.0, 4.0))
@settings(max_examples=15)
def test_evidence_divergence_and_the_best_ratio_are_those_of_dense_formulas(
    seed, log_odds, log_start
):
    x, v, weight, distance = problem(seed, n=20, weighted=True)
    space = FunctionSpace(ExactEvidence(x, v, weight, KERNELS["rbf"], distance), 0.3, log_odds)
    gamma = float(np.exp(log_start))
    rng = np.random.default_rng(seed)
    p, h = rng.uniform(0.05, 0.5, 20), rng.normal(size=20)
    sites = exact.Sites(p, h)

    def evidence(gamma):
        # log E exp Σ (h f - p f²/2) of f ~ N(b, K).
        K, b = space._covariance(gamma), prior_mean(log_odds, gamma)
        own = h - b * p
        covariance = np.linalg.solve(np.eye(20) + K * p, K)
        log_determinant = np.linalg.slogdet(np.eye(20) + K * p)[1]
        return (
            0.5 * (own @ covariance @ own - log_determinant) + b * h.sum() - 0.5 * b**2 * p.sum()
        )

    solved = space.solve(0, sites, gamma)
    assert_allclose(space.log_evidence(solved), evidence(gamma), rtol=1e-9, atol=1e-9)
    K = space._covariance(gamma)
    covariance = np.linalg.solve(np.eye(20) + K * p, K)
    mean = covariance @ (h - prior_mean(log_odds, gamma) * p)
    # KL(N(μ, Σ) || N(0, K)), with K⁻¹Σ = (I + PK)⁻¹ in place of K⁻¹, which is nearly singular.
    share = np.linalg.inv(np.eye(20) + p[:, None] * K)
    divergence = 0.5 * (np.trace(share) + mean @ solved.posterior.posterior.alpha - 20)
    divergence -= 0.5 * np.linalg.slogdet(share)[1]
    assert_allclose(space.divergence(solved), divergence, rtol=1e-8, atol=1e-8)
    assert_allclose(solved.posterior.mean, mean, atol=1e-8)
    assert_allclose(solved.posterior.variance, np.diagonal(covariance), atol=1e-8)
    best = space.best_ratio(0, sites, gamma)
    assert 0.1 <= best <= 10.0
    grid = max(evidence(gamma * ratio) for ratio in np.geomspace(0.1, 10.0, 101))
    slope = abs(evidence(gamma * best * 1.0001) - evidence(gamma * best / 1.0001)) / 2e-4
    assert evidence(gamma * best) >= grid - 2e-5 * (1.0 + slope)


@each_kernel
def test_more_random_features_approach_the_exact_classifier(kernel):
    x, v, weight, distance = problem(n=50)
    gamma, lengthscale = 3.0, 0.6 * distance
    evidence = ExactEvidence(x, v, weight, kernel, distance)
    _, posterior = evidence.solve(evidence.covariance(np.log([gamma, lengthscale])))
    new = np.random.default_rng(5).normal(size=(60, 2))
    exact_mean, exact_variance = exact_moments(new, x, kernel, gamma, lengthscale, posterior)
    pixels = Pixels(x, v > 0, None, plain(2), HOST, 64)
    errors = {}
    for D in (20, 320):
        off = []
        for seed in range(5):
            frequencies = kernel.draw(np.random.default_rng(seed), D, 2) / lengthscale
            space = WeightSpace(pixels, frequencies)
            [(sites, _)] = space.evaluate(QUADRATIC, [0], [Gaussian(1.0)])
            z, _ = dense_features(new, frequencies)
            mean, variance = latent_moments(z, space.solve(0, sites, gamma).posterior, gamma)
            pairs = ((mean, exact_mean), (variance, exact_variance))
            off.append([np.sqrt(np.mean((one - other) ** 2)) for one, other in pairs])
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
    fit = fit_exact(x, v, weight, kernel, distance, max_iter=10, tol=1e-4, bound=QUADRATIC)
    precision = fit.posterior.roots**2
    K = exact_covariance(x, x, kernel, fit.signal_variance, fit.lengthscale)
    covariance = np.linalg.solve(np.eye(len(x)) + K * precision, K)
    mean, variance = exact_moments(
        x, x, kernel, fit.signal_variance, fit.lengthscale, fit.posterior
    )
    assert_allclose(mean, covariance @ v, rtol=1e-7, atol=1e-7)
    assert_allclose(variance, np.diagonal(covariance), rtol=1e-6, atol=1e-7)


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
    assert fit.prior_mean == prior_mean(log_odds, fit.signal_variance)
    # Correlations fall with the square of the distance at the slowest: 1e-12 of it is left.
    assert_allclose(expected_sigmoid(mean + fit.prior_mean, variance), share, rtol=1e-9)


def test_the_quadratic_bounds_posterior_has_no_prior_mean():
    x, v, weight, distance = problem()
    options = {"max_iter": 3, "tol": 1e-4, "bound": QUADRATIC}
    plain, asked = (
        fit_exact(x, v, weight, KERNELS["rbf"], distance, log_odds=log_odds, **options)
        for log_odds in (0.0, -2.0)
    )
    assert asked.prior_mean == 0.0
    assert_array_equal(asked.posterior.alpha, plain.posterior.alpha)


def test_an_interrupted_fit_keeps_its_last_iteration():
    def report(progress):
        if progress.n_iter == 2:
            raise KeyboardInterrupt

    x, v, weight, distance = problem()
    kernel = KERNELS["rbf"]
    stopped = fit_exact(x, v, weight, kernel, distance, max_iter=9, tol=0.0, report=report)
    # Without further passes, the posterior is the bound's.
    options = {"max_iter": 2, "tol": 0.0, "bound": QUADRATIC}
    short = fit_exact(x, v, weight, kernel, distance, **options)
    assert stopped.outcome == "interrupted"
    assert stopped.bounds == short.bounds
    assert_array_equal(stopped.posterior.alpha, short.posterior.alpha)


def test_starting_lengthscales_are_compared_at_updated_xi():
    x, v, weight, distance = problem(n=40)
    evidence = ExactEvidence(x, v, weight, KERNELS["rbf"], distance)
    found, xi = exact._choose_theta(evidence, distance), evidence.xi
    bounds = {}
    for share in exact.LENGTHSCALE_SHARES:
        theta = np.array([0.0, np.log(share * distance)])
        evidence.xi = np.ones(40)
        for _ in range(50):
            bounds[share] = evidence.update_xi(theta)
    best = max(bounds, key=bounds.get)
    assert_allclose(found, [0.0, np.log(best * distance)], rtol=1e-12)
    # ξ stays where that lengthscale left it: good to a hundredth of a nat.
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
    monkeypatch.setattr(exact, "AscentConfig", lambda tol: AscentConfig(500, tol))
    (x, v, weight), fit = variational_fit(kernel=kernel, weighted=weighted, log_odds=log_odds)
    mean, variance = exact_moments(
        x, x, KERNELS[kernel], fit.signal_variance, fit.lengthscale, fit.posterior
    )
    _, slope, curvature = expected_log_sigmoid(2 * v * (mean + fit.prior_mean), variance)
    # α = K⁻¹μ is the weighted residual, and S² the weighted curvature, to the last step's size:
    # it changed the bound by less than 1e-10 x 100 nats, and so these by its root or so.
    assert_allclose(fit.posterior.alpha, weight * 2 * v * slope, atol=1e-3)
    assert_allclose(fit.posterior.roots**2, weight * curvature, atol=1e-3)


@pytest.mark.parametrize("log_odds", [0.0, -1.0])
def test_the_variational_bound_is_that_of_dense_formulas(log_odds):
    (x, v, _), fit = variational_fit(log_odds=log_odds)
    K = exact_covariance(x, x, KERNELS["rbf"], fit.signal_variance, fit.lengthscale)
    covariance = np.linalg.solve(np.eye(40) + K * fit.posterior.roots**2, K)
    mean = K @ fit.posterior.alpha
    value, _, _ = expected_log_sigmoid(2 * v * (mean + fit.prior_mean), np.diagonal(covariance))
    # KL(N(μ, Σ) || N(0, K)), with K⁻¹Σ = (I + PK)⁻¹ in place of K⁻¹, which is nearly singular.
    share = np.linalg.inv(np.eye(40) + fit.posterior.roots[:, None] ** 2 * K)
    log_ratio = np.linalg.slogdet(share)[1]
    divergence = 0.5 * (np.trace(share) + mean @ fit.posterior.alpha - 40 - log_ratio)
    assert_allclose(fit.bounds[-1], value.sum() - divergence, rtol=1e-8)


@pytest.mark.parametrize("seed", range(3))
def test_the_variational_bound_is_tighter_and_its_variance_larger(seed):
    (x, _, _), fit = variational_fit(seed)
    _, quadratic = variational_fit(seed, bound=QUADRATIC)
    assert fit.bounds[-1] > quadratic.bounds[-1]
    assert fit.bounds[:-1] == quadratic.bounds[:-1]
    variances = [
        exact_moments(x, x, KERNELS["rbf"], f.signal_variance, f.lengthscale, f.posterior)[1]
        for f in (fit, quadratic)
    ]
    assert np.median(variances[0] / variances[1]) > 1.2


def test_a_weighted_variational_posterior_is_that_of_repeated_rows():
    x, v, _, distance = problem(n=15)
    counts = np.random.default_rng(0).integers(1, 4, 15)
    rows = np.repeat(np.arange(15), counts)
    ends = []
    for chosen, times in ((slice(None), counts.astype(float)), (rows, np.ones(len(rows)))):
        evidence = ExactEvidence(x[chosen], v[chosen], times, KERNELS["rbf"], distance)
        space = FunctionSpace(evidence, np.log(distance), -0.5)
        start = space.solve(0, evidence.sites, 1.6)
        ends += ascend(space, EXPECTED, [start], AscentConfig(4))
    assert_allclose(ends[0].bounds, ends[1].bounds, rtol=1e-8)
    gammas = [end.gaussian.signal_variance for end in ends]
    assert_allclose(gammas[0], gammas[1], rtol=1e-4)


def test_an_interrupt_in_the_last_passes_keeps_the_last_step(monkeypatch):
    calls, original = [], FunctionSpace.evaluate

    def interrupt(*given):
        calls.append(None)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*given)

    monkeypatch.setattr(FunctionSpace, "evaluate", interrupt)
    _, fit = variational_fit()
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        variational_fit(interruptible=False)
    monkeypatch.undo()
    _, whole = variational_fit()
    _, quadratic = variational_fit(bound=QUADRATIC)
    assert fit.outcome == "interrupted"
    assert quadratic.bounds[-1] < fit.bounds[-1] < whole.bounds[-1]


# Rows of a fitted classifier


def test_what_a_fit_says_of_new_rows_is_the_conditional_of_their_joint_prior():
    (x, _, _), fit = variational_fit(weighted=True, log_odds=-1.0)
    kernel, new = KERNELS["rbf"], np.random.default_rng(9).normal(size=(6, 2))
    new[3] = new[4]
    mean, root = mean_and_root(fit, x, new, kernel)
    both = np.concatenate([x, new])
    K = exact_covariance(both, both, kernel, fit.signal_variance, fit.lengthscale)
    cross, p = K[:40, 40:], fit.posterior.roots**2
    covariance = K[40:, 40:] - cross.T @ np.linalg.solve(np.diag(1.0 / p) + K[:40, :40], cross)
    assert_allclose(root @ root.T, covariance, atol=1e-8)
    own, variance = exact_moments(
        new, x, kernel, fit.signal_variance, fit.lengthscale, fit.posterior
    )
    assert_allclose(mean, own + fit.prior_mean, rtol=1e-10)
    assert_allclose(np.sum(root**2, axis=1), variance, atol=1e-8)


def test_the_sites_of_a_fit_give_the_fit():
    (x, _, _), fit = variational_fit(weighted=True, log_odds=-1.0)
    sites = sites_of(fit, x, KERNELS["rbf"])
    again = with_sites(fit, x, sites, KERNELS["rbf"])
    assert_allclose(again.posterior.alpha, fit.posterior.alpha, rtol=1e-7, atol=1e-9)
    assert_allclose(again.posterior.factor, fit.posterior.factor, rtol=1e-8, atol=1e-10)
    # In another order, in parts, and with one row fewer.
    order = np.random.default_rng(0).permutation(40)
    moved = with_sites(fit, x[order], sites.take(order), KERNELS["rbf"])
    assert_allclose(moved.posterior.alpha, fit.posterior.alpha[order], rtol=1e-6, atol=1e-8)
    joined = sites.take(slice(0, 30)).join(sites.take(slice(30, 40)))
    assert_same(joined, sites)
    fewer = with_sites(fit, x[1:], sites.take(np.arange(40) > 0), KERNELS["rbf"])
    K = exact_covariance(x, x, KERNELS["rbf"], fit.signal_variance, fit.lengthscale)[1:, 1:]
    alpha = np.linalg.solve(np.eye(39) + sites.precision[1:, None] * K, sites.projected[1:])
    assert_allclose(fewer.posterior.alpha, alpha, rtol=1e-7, atol=1e-9)


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


def test_each_further_latent_function_keeps_a_matrix(monkeypatch):
    needed = 8.0 * (exact.MATRICES + 2) * 1000.0**2
    monkeypatch.setattr(exact, "available_memory", lambda: needed)
    require_memory(1000, 3)
    with pytest.raises(TooManyRowsError):
        require_memory(1000, 4)
