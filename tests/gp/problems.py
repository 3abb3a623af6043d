"""Small problems, and slow oracles for them, that tests of several modules share."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
from numpy.testing import assert_array_equal
from scipy.special import expit, log_expit

from undulatus.gp import likelihood
from undulatus.gp.backends import make_backend
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.exact import exact_covariance
from undulatus.gp.inference import Gaussian, Sites
from undulatus.gp.posterior import solve_posterior


def plain(d):
    """The standardisation that changes nothing."""
    return Standardisation(np.zeros(d), np.ones(d))


def some_pixels(seed=0, n=60, d=2, classes=2, weighted=False, dtype=np.float64, **options):
    """Rows whose class is a band of a noisy sine of the first feature, unequal in size."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    score = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n)
    codes = score > 0 if classes == 2 else np.digitize(score, [-0.8, 0.1, 0.9][: classes - 1])
    weight = rng.uniform(0.2, 3.0, n) if weighted else None
    options = {"rows_per_block": 16, "n_classes": classes} | options
    return Pixels(x, codes, weight, plain(d), make_backend(dtype), **options)


def some_frequencies(seed=0, D=5, d=2, scale=1.0):
    return scale * np.random.default_rng([seed, 1]).normal(size=(D, d))


def some_gaussian(seed=0, k=10, signal_variance=1.7, prior_mean=0.0):
    """A posterior that is no optimum, of sites that are not its own."""
    rng = np.random.default_rng([*np.ravel(seed), 2])
    root = rng.normal(size=(k, k))
    posterior = solve_posterior(root @ root.T + np.eye(k), rng.normal(size=k))
    sites = Sites(root @ root.T / signal_variance, np.zeros(k), np.zeros(k), np.zeros(3))
    return Gaussian(signal_variance, prior_mean, posterior, sites)


def one_against_rest(pixels, latent):
    """The pixels of two classes that a latent function separates."""
    if pixels.n_latents == 1:
        return pixels
    return replace(pixels, codes=pixels.codes == latent, n_classes=2)


def repeat_rows(pixels, counts):
    """The same pixels, each given as often as its count, without weights."""
    rows = np.repeat(np.arange(pixels.n_rows), counts)
    return replace(pixels, rows=pixels.rows[rows], codes=pixels.codes[rows], weight=None)


def central_differences(function, point, step=1e-5):
    found = np.empty_like(point)
    for index in np.ndindex(point.shape):
        nudge = np.zeros_like(point)
        nudge[index] = step
        found[index] = (function(point + nudge) - function(point - nudge)) / (2 * step)
    return found


def assert_same(one, other):
    """The same to the last bit, also in dataclasses, tuples and lists."""
    if is_dataclass(one):
        for field in fields(one):
            assert_same(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            assert_same(mine, theirs)
    else:
        assert_array_equal(one, other)


# Dense formulas


def dense_features(x, frequencies, deviations=None):
    """Tapered features of unit signal variance, (n, 2 D), and 1 - d², (n,)."""
    phase = x @ frequencies.T
    z = np.hstack([np.cos(phase), np.sin(phase)]) / np.sqrt(len(frequencies))
    deviations = np.zeros(x.shape[1]) if deviations is None else deviations
    kept = np.exp(-0.5 * np.sum((deviations * x) ** 2, axis=1))
    return kept[:, None] * z, 1.0 - kept**2


def sign_and_weight(pixels):
    weight = np.ones(pixels.n_rows) if pixels.weight is None else pixels.weight
    return np.where(pixels.codes, 1.0, -1.0), weight


def quadratic_bound(mean, variance, sign):
    """Precisions, h and values of Jaakkola and Jordan's bound at its best ξ (Eqs. 6, 10)."""
    xi = np.sqrt(variance + mean**2)
    lam = (expit(xi) - 0.5) / (2.0 * xi)
    return 2.0 * lam, 0.5 * sign, 0.5 * sign * mean - 0.5 * xi - np.log1p(np.exp(-xi))


NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
NODE_WEIGHTS = NODE_WEIGHTS / NODE_WEIGHTS.sum()


def expected_bound(mean, variance, sign):
    """Precisions, h and values of E log ψ(±f), by the same quadrature as the package's."""
    deviation = np.sqrt(variance)
    f = (sign * mean)[:, None] + NODES * deviation[:, None]
    c = -((NODES * expit(-f)) @ NODE_WEIGHTS) / deviation
    return c, sign * (expit(-f) @ NODE_WEIGHTS) + c * mean, log_expit(f) @ NODE_WEIGHTS


BOUNDS = {
    "quadratic": (likelihood.QUADRATIC, quadratic_bound),
    "expected": (likelihood.EXPECTED, expected_bound),
}
"""The bounds of the package, each with a slow one."""


def latent_moments(z, posterior, scale=1.0):
    """Mean and variance of f = sqrt(scale) z u under a posterior of u."""
    variance = np.sum((z @ posterior.root.T) ** 2, axis=1)
    return np.sqrt(scale) * (z @ posterior.mean), scale * variance


def dense_divergence(mean, covariance):
    """KL(N(m, S) || N(0, I))."""
    log_determinant = np.linalg.slogdet(covariance)[1]
    return 0.5 * (np.trace(covariance) + mean @ mean - len(mean) - log_determinant)


def slow_ascent(bound, z, sign, weight, untapered=0.0, b=0.0, steps=3000):
    """Bound, mean and covariance of weights of z with the prior N(0, I), by half steps.

    The loop of the docstring of `gp/inference`, on whole matrices: f = b + z u + h, where h has
    the variance ``untapered``.
    """
    c, h = 0.25 * weight, 0.5 * weight * sign
    for _ in range(steps):
        covariance = np.linalg.inv(np.eye(z.shape[1]) + (z.T * c) @ z)
        mean = covariance @ (z.T @ (h - b * c))
        variance = np.einsum("ij,jk,ik->i", z, covariance, z) + untapered
        new_c, new_h, value = bound(z @ mean + b, variance, sign)
        step = np.abs(weight * new_c - c).max()
        c, h = 0.5 * (c + weight * new_c), 0.5 * (h + weight * new_h)
        if step < 1e-13:
            break
    return weight @ value - dense_divergence(mean, covariance), mean, covariance


def exact_moments(x, training, kernel, signal_variance, lengthscale, posterior):
    """The latent mean and variance of an exact process at rows, but for the prior mean."""
    cross = exact_covariance(training, x, kernel, signal_variance, lengthscale)
    return posterior.moments(cross, signal_variance)
