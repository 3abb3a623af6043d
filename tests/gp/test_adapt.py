"""A scene's latent function against the exact process with that prior, and its bound."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from tests.gp.problems import dense_features, some_frequencies, some_gaussian

from undulatus.gp.adapt import SceneConfig, SceneFunctions, SceneWeights, from_covariance
from undulatus.gp.backends import HOST
from undulatus.gp.exact import exact_covariance, fit_exact
from undulatus.gp.kernels import find_kernel
from undulatus.gp.likelihood import EXPECTED, QUADRATIC
from undulatus.gp.model import FunctionModel, WeightModel
from undulatus.gp.posterior import FourierFit, LatentFit
from undulatus.gp.update import Sites, find_sites

GAMMA, PRIOR_MEAN, TAPER = 1.7, -0.4, 0.2
SCENES = [SceneConfig(), SceneConfig(0.0, 0.0), SceneConfig(2.0, 0.0), SceneConfig(0.0, 1.5)]
each_scene = pytest.mark.parametrize("config", SCENES, ids=str)


def some_problem(seed=0, n=12, far=300):
    """A latent function over five frequencies, labelled rows of a scene, and others of it."""
    rng = np.random.default_rng([seed, 5])
    latent = LatentFit(GAMMA, some_gaussian(seed).posterior, (), PRIOR_MEAN)
    x = rng.normal(size=(n + far, 2))
    sign, weight = rng.choice([-1.0, 1.0], n), rng.uniform(0.3, 3.0, n)
    return latent, x, sign, weight


def prior_of(latent, x, config, seed=0):
    """The dense mean and covariance of a scene at rows, as the docstring of the module says."""
    frequencies = some_frequencies(seed)
    deviations = TAPER * np.sqrt(np.mean(frequencies**2, axis=0))
    z, untapered = dense_features(x, frequencies, deviations)
    share = np.sqrt(1.0 - untapered)
    own = latent.posterior
    covariance = GAMMA * z @ own.covariance @ z.T
    covariance += config.deviation**2 * z @ z.T + config.level**2 * np.outer(share, share)
    return PRIOR_MEAN + np.sqrt(GAMMA) * z @ own.mean, covariance, z, untapered


def conditioned(mean, covariance, sites):
    """Dense moments of rows, the first of which have sites: N(mean, covariance) times these."""
    n = len(sites.precision)
    gain = np.linalg.solve(covariance[:n, :n] + np.diag(1.0 / sites.precision), covariance[:n])
    means = mean + gain.T @ (sites.projected / sites.precision - mean[:n])
    return means, covariance - covariance[:n].T @ gain


def label(prior, sign, weight, bound=EXPECTED):
    rows = prior.scene.rows(sign, weight, prior.signal_variance)
    return find_sites([rows], bound)[0]


@each_scene
@pytest.mark.parametrize("bound", [EXPECTED, QUADRATIC], ids=["expected", "quadratic"])
def test_scene_over_features_is_the_exact_process(config, bound):
    latent, x, sign, weight = some_problem()
    n = len(sign)
    mean, covariance, z, untapered = prior_of(latent, x, config)
    prior = SceneWeights(latent, z[:n], untapered[:n], config)
    assert_allclose(prior.scene.mean, mean[:n], atol=1e-12)
    sites = label(prior, sign, weight, bound)
    frequencies = some_frequencies(0)
    fit = FourierFit(frequencies, 1.0, (prior.given(sites),), 1, "converged", (), TAPER)
    ends = np.array([[-9.0, -9.0], [-1.0, -1.0], [1.0, 1.0], [9.0, 9.0]])
    model = WeightModel((fit,), ends, HOST, np.zeros(1))
    means, variances = model.moments(x)
    slow_means, slow_covariance = conditioned(mean, covariance, sites)
    assert_allclose(means[0, 0], slow_means, atol=1e-9)
    # What features lack of the prior's variance is drawn anew for each row.
    assert_allclose(variances[0, 0], np.diag(slow_covariance) + GAMMA * untapered, atol=1e-9)
    assert_allclose(model.means(x)[0, 0], slow_means, atol=1e-9)
    assert_allclose(model.largest_variance, [[[GAMMA + config.variance]]], rtol=1e-12)


@each_scene
def test_sites_are_a_fixed_point_of_the_dense_posterior(config):
    latent, x, sign, weight = some_problem(1)
    n = len(sign)
    mean, covariance, z, untapered = prior_of(latent, x[:n], config, 1)
    sites = label(SceneWeights(latent, z, untapered, config), sign, weight)
    means, posterior = conditioned(mean, covariance, sites)
    expected = EXPECTED.sites(means, np.diag(posterior) + GAMMA * untapered, sign, HOST)
    assert_allclose(sites.precision, weight * expected.precision, rtol=1e-6)


@each_scene
def test_bound_is_the_expected_likelihood_less_the_divergence(config):
    latent, x, sign, weight = some_problem(2, n=6)
    n = len(sign)
    mean, covariance, z, untapered = prior_of(latent, x[:n], config, 2)
    prior = SceneWeights(latent, z, untapered, config)
    sites = label(prior, sign, weight)
    means, posterior = conditioned(mean, covariance, sites)
    value = EXPECTED.sites(means, np.diag(posterior) + GAMMA * untapered, sign, HOST).value
    ratio = np.linalg.solve(covariance, posterior)
    gap = means - mean
    divergence = 0.5 * (
        np.trace(ratio) - n - np.linalg.slogdet(ratio)[1] + gap @ np.linalg.solve(covariance, gap)
    )
    assert_allclose(prior.scene.bound(sites, sign, weight), weight @ value - divergence, atol=1e-8)


def test_bound_is_below_the_log_probability_of_the_labels():
    latent, x, sign, _ = some_problem(3, n=3)
    mean, covariance, z, untapered = prior_of(latent, x[:3], SCENES[0], 3)
    prior = SceneWeights(latent, z, untapered, SCENES[0])
    bound = prior.scene.bound(label(prior, sign, np.ones(3)), sign, np.ones(3))
    total = covariance + GAMMA * np.diag(untapered)
    draws = multivariate_normal(mean, total, seed=0).rvs(400_000)
    probability = np.mean(np.prod(1.0 / (1.0 + np.exp(-sign * draws)), axis=1))
    assert bound <= np.log(probability) + 0.01
    assert bound > np.log(probability) - 0.1


def test_labels_without_weight_say_nothing():
    latent, x, sign, _ = some_problem(4)
    _, _, z, untapered = prior_of(latent, x[: len(sign)], SCENES[0], 4)
    prior = SceneWeights(latent, z, untapered, SCENES[0])
    n = len(sign)
    alone = prior.given(Sites(np.zeros(n), np.zeros(n)))
    assert_allclose(alone.posterior.mean, latent.posterior.mean, atol=1e-12)
    expected = latent.posterior.covariance + SCENES[0].deviation ** 2 / GAMMA * np.eye(
        len(latent.posterior.mean)
    )
    assert_allclose(alone.posterior.covariance, expected, atol=1e-9)
    assert alone.level.mean == 0.0
    assert_allclose(alone.level.variance, SCENES[0].level ** 2)


@each_scene
def test_scene_of_an_exact_process_is_that_of_all_rows_at_once(config):
    rng = np.random.default_rng(0)
    x, kernel = rng.normal(size=(80, 2)), find_kernel("rbf")
    v = np.where(np.sin(2 * x[:, 0]) + x[:, 1] > 0, 0.5, -0.5)
    fit = fit_exact(x, v, np.ones(80), kernel, 2.0, max_iter=5, tol=1e-3)
    rows, others = rng.normal(size=(12, 2)), rng.normal(size=(300, 2))
    sign = rng.choice([-1.0, 1.0], 12)
    prior = SceneFunctions(fit, x, kernel, rows, config)
    sites = label(prior, sign, np.ones(12))
    model = FunctionModel(x, kernel, [fit], np.zeros(1), scenes=[prior.given(sites)])
    means, variances = model.moments(others)
    # All rows at once: deviations and levels among the scene's rows alone.
    every = np.concatenate([x, rows, others])
    covariance = exact_covariance(every, every, kernel, fit.signal_variance, fit.lengthscale)
    in_scene = np.arange(len(every)) >= len(x)
    both = np.outer(in_scene, in_scene)
    share = config.deviation**2 / fit.signal_variance
    covariance = covariance * (1.0 + share * both) + config.level**2 * both
    # The training rows have the sites that the fit ended with, α = h - p (f - b).
    precision = fit.posterior.roots**2
    own = covariance[:80, :80]
    projected = fit.posterior.alpha + precision * (own @ fit.posterior.alpha)
    all_sites = Sites(
        np.append(precision, sites.precision),
        np.append(projected + precision * fit.prior_mean, sites.projected),
    )
    slow = conditioned(np.full(len(every), fit.prior_mean), covariance, all_sites)
    assert_allclose(means[0, 0], slow[0][92:], atol=1e-7)
    assert_allclose(variances[0, 0], np.diag(slow[1])[92:], atol=1e-7)
    largest = fit.signal_variance + config.variance
    assert_allclose(model.largest_variance, [[[largest]]], rtol=1e-12)


def test_posterior_from_its_covariance():
    own = some_gaussian(6).posterior
    found = from_covariance(own.mean, own.covariance)
    assert_allclose(found.root, own.root, atol=1e-9)
    assert_allclose(found.log_determinant, own.log_determinant)
    assert_allclose(found.quadratic, own.mean @ np.linalg.solve(own.covariance, own.mean))
