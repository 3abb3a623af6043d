"""Fitted models as functions of rows: moments by dense formulas, tapers, tolerances, torch."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import exact_moments, some_frequencies, some_gaussian

from undulatus.gp import posterior as posterior_module
from undulatus.gp.backends import HOST, make_backend, to_host
from undulatus.gp.exact import fit_exact
from undulatus.gp.kernels import KERNELS
from undulatus.gp.model import FunctionModel, WeightModel
from undulatus.gp.posterior import FourierFit, LatentFit, expected_sigmoid, solve_posterior
from undulatus.gp.taper import EXCESS

ENDS = np.outer([-2.0, -0.5, 0.7, 2.5], np.ones(2))
"""Smallest value, quartiles and largest value of two features."""

NO_SHIFT = np.zeros(1)

ROWS = 1.5 * np.random.default_rng(0).normal(size=(300, 2))
"""Some of them outside of the range."""

each_library = pytest.mark.parametrize("library", ["numpy", "torch"])


def backend(library, dtype=np.float64):
    if library == "numpy":
        return make_backend(dtype)
    pytest.importorskip("torch", reason="torch is not installed")
    return make_backend(dtype, "cpu")


def some_fit(seed=0, latents=1, taper=0.1):
    each = tuple(
        LatentFit(0.7 + c, some_gaussian([seed, c]).posterior, (), 0.5 * c - 0.3)
        for c in range(latents)
    )
    return FourierFit(some_frequencies(seed), 1.0, each, 1, "converged", (), taper)


def slow_moments(fits, x, latent_shift=0.0):
    """Latent means and variances (M, C, n), row by row as the docstring of gp/taper says."""
    means, variances = (np.empty((len(fits), len(fits[0].latents), len(x))) for _ in range(2))
    for m, fit in enumerate(fits):
        w = fit.frequencies
        deviations = fit.taper * np.sqrt(np.mean(w**2, axis=0))
        for i, row in enumerate(x):
            d = np.exp(-0.5 * np.sum((deviations * row) ** 2))
            if fit.taper:
                excess = np.maximum(-2.0 - row, 0.0) / 1.5 + np.maximum(row - 2.5, 0.0) / 1.8
                squares = np.sum(excess**2)
                d *= np.exp(-0.5 * EXCESS * squares**2 / (1.0 + squares))
            z = np.concatenate([np.cos(w @ row), np.sin(w @ row)]) / np.sqrt(len(w))
            for c, own in enumerate(fit.latents):
                gamma, S = own.signal_variance, own.posterior.covariance
                rest = (1.0 - d**2) * gamma
                shift = latent_shift * np.sqrt(1.0 + np.pi / 8.0 * rest)
                mean = d * np.sqrt(gamma) * z @ own.posterior.mean
                means[m, c, i] = own.prior_mean + shift + mean
                variances[m, c, i] = d**2 * gamma * z @ S @ z + rest
    return means, variances


@each_library
@pytest.mark.parametrize("latents", [1, 3])
@pytest.mark.parametrize("taper", [0.0, 0.1])
@pytest.mark.parametrize("latent_shift", [0.0, 0.6])
def test_moments_are_those_of_dense_formulas(library, latents, taper, latent_shift):
    fits = [some_fit(seed, latents, taper) for seed in range(2)]
    xp = backend(library)
    prepared = WeightModel(fits, ENDS, xp, NO_SHIFT, latent_shift=latent_shift)
    found = [to_host(own) for own in prepared.moments(xp.array(ROWS))]
    expected = slow_moments(fits, ROWS, latent_shift)
    for one, other in zip(found, expected, strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-11)
    assert_allclose(to_host(prepared.means(xp.array(ROWS))), expected[0], rtol=1e-9, atol=1e-11)
    assert (prepared.n_estimators, prepared.n_latents) == (2, latents)
    gammas = [[own.signal_variance for own in fit.latents] for fit in fits]
    assert_array_equal(to_host(prepared.largest_variance)[..., 0], gammas)


def test_estimators_may_differ_in_their_tapers():
    fits = [some_fit(0, taper=0.1), some_fit(1, taper=0.4)]
    found = WeightModel(fits, ENDS, HOST, NO_SHIFT).moments(ROWS)
    for one, other in zip(found, slow_moments(fits, ROWS), strict=True):
        assert_allclose(one, other, rtol=1e-9, atol=1e-11)


@each_library
def test_single_precision_follows_double(library):
    fits = [some_fit(seed, 3) for seed in range(2)]
    xp = backend(library, np.float32)
    mean, variance = WeightModel(fits, ENDS, xp, NO_SHIFT).moments(xp.array(ROWS))
    assert to_host(mean).dtype == np.float64
    exact_mean, exact_variance = slow_moments(fits, ROWS)
    assert_allclose(to_host(mean), exact_mean, rtol=1e-4, atol=1e-4)
    assert_allclose(to_host(variance), exact_variance, rtol=1e-4, atol=1e-4)


# Tolerances


def sure_posterior(k=10):
    """Its variances span five decades, so that most directions may be dropped."""
    rng = np.random.default_rng(3)
    basis, _ = np.linalg.qr(rng.normal(size=(k, k)))
    precision = (basis * 10.0 ** np.linspace(1.0, 6.0, k)) @ basis.T
    return solve_posterior((precision + precision.T) / 2, precision @ rng.normal(size=k))


@each_library
@pytest.mark.parametrize("taper", [0.0, 0.1])
@pytest.mark.parametrize("odds", [0.0, 1.5])
@pytest.mark.parametrize("tolerance", [1e-4, 1e-2])
def test_probabilities_are_within_their_tolerance(library, taper, odds, tolerance):
    fit = some_fit(taper=taper)
    fit = replace(fit, latents=(LatentFit(20.0, sure_posterior(), (), -0.7),))
    xp = backend(library)
    prepared = WeightModel([fit], ENDS, xp, np.array([odds]), tolerance, 0.2)
    mean, variance = (own[0, 0] for own in slow_moments([fit], ROWS, 0.2))
    exact = expected_sigmoid(mean, variance, odds)
    found_mean, found_variance = (to_host(own)[0, 0] for own in prepared.moments(xp.array(ROWS)))
    assert_allclose(found_mean, mean, rtol=1e-9, atol=1e-11)
    truncated = expected_sigmoid(found_mean, found_variance, odds)
    assert 0.0 < np.abs(truncated - exact).max() <= tolerance * (1 + 1e-9) + 1e-12


def test_a_root_is_found_once_for_a_posterior_and_a_tolerance(monkeypatch):
    calls, original = [], posterior_module.eigh

    def eigh(matrix):
        calls.append(matrix)
        return original(matrix)

    monkeypatch.setattr(posterior_module, "eigh", eigh)
    fit = some_fit(5, latents=3)
    for _ in range(2):
        for tolerance in (1e-3, 1e-2):
            WeightModel([fit], ENDS, HOST, NO_SHIFT, tolerance).moments(ROWS)
    assert len(calls) == 2 * 3


def test_limits_on_rows_are_those_of_the_longest_frequency_of_any_estimator():
    fits = [some_fit(0), replace(some_fit(1), frequencies=np.array([[3.0, 4.0]] * 5))]
    prepared = WeightModel(fits, ENDS, HOST, NO_SHIFT)
    assert_allclose(prepared.longest_row, 1e6 / 5.0)


# The exact process


def test_functions_have_the_moments_of_each_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    fits = []
    for c in range(3):
        v = np.where(np.digitize(np.sin(2.0 * x[:, 0]), [-0.4, 0.4]) == c, 0.5, -0.5)
        options = {"max_iter": 2, "tol": 1e-3, "log_odds": -0.7}
        fits.append(fit_exact(x, v, np.ones(40), KERNELS["matern52"], 2.0, **options))
    prepared = FunctionModel(x, KERNELS["matern52"], fits, np.zeros(3), 0.3)
    mean, variance = prepared.moments(ROWS)
    assert mean.shape == variance.shape == (1, 3, 300)
    for c, fit in enumerate(fits):
        own_mean, own_variance = exact_moments(
            ROWS, x, KERNELS["matern52"], fit.signal_variance, fit.lengthscale, fit.posterior
        )
        assert_allclose(mean[0, c], own_mean + fit.prior_mean + 0.3, rtol=1e-12, atol=1e-13)
        assert_allclose(variance[0, c], own_variance, rtol=1e-10, atol=1e-14)
        assert prepared.largest_variance[0, c, 0] == fit.signal_variance
    assert_allclose(prepared.means(ROWS), mean, rtol=1e-12)
