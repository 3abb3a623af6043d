"""The gradient of a bound in the frequencies, against finite differences of both bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from tests.gp.problems import (
    central_differences,
    dense_features,
    sign_and_weight,
    some_frequencies,
    some_gaussian,
    some_pixels,
)

from undulatus.gp.backends import HOST, make_backend
from undulatus.gp.gradients import bound_gradient
from undulatus.gp.likelihood import EXPECTED, POSTERIORS, QUADRATIC

seeds = st.integers(0, 2**32 - 1)


def problem(seed, n=15, D=3):
    """Rows, taper, and a posterior N(m, S) of the weights of unit features that is no optimum."""
    pixels, frequencies = some_pixels(seed, n=n, weighted=True), some_frequencies(seed, D=D)
    gaussian = some_gaussian(seed, 2 * D)
    mean = np.sqrt(1.7) * gaussian.posterior.mean
    return pixels, frequencies, mean, 1.7 * gaussian.posterior.covariance


def sites_at(bound, pixels, frequencies, mean, covariance, kept=1.0, b=0.0):
    """Tapered features z, and the weighted residuals, precisions and value of a bound there."""
    sign, weight = sign_and_weight(pixels)
    z = kept * dense_features(pixels.rows, frequencies)[0]
    variance = np.einsum("ij,jk,ik->i", z, covariance, z) + 1.7 * (1.0 - np.ravel(kept) ** 2)
    latent = z @ mean + b
    precision, residual, value = bound.sites(latent, variance, sign, HOST)
    if bound.conjugate:
        # E (h f - c f²/2) with h = r + cμ.
        value = value + residual * latent + 0.5 * precision * (latent**2 - variance)
    return z, weight * residual, weight * precision, weight @ value


@pytest.mark.parametrize("bound", POSTERIORS.values(), ids=POSTERIORS)
@pytest.mark.parametrize("taper", [0.0, 0.3])
@given(seed=seeds)
@settings(max_examples=20)
def test_the_gradient_is_that_of_finite_differences(bound, taper, seed):
    pixels, frequencies, mean, covariance = problem(seed)
    # The share of the features that is kept depends on the rows; b and the posterior stay.
    kept = np.exp(-0.5 * taper * np.sum(pixels.rows**2, axis=1, keepdims=True))

    def value(frequencies):
        return sites_at(bound, pixels, frequencies, mean, covariance, kept, -0.7)[-1]

    z, residual, precision, _ = sites_at(bound, pixels, frequencies, mean, covariance, kept, -0.7)
    found = bound_gradient(z, pixels.rows, residual, precision, mean, z @ covariance, HOST)
    # Sums of 15 values of size 10 are rounded to 1e-14, and divided by twice the step.
    assert_allclose(found, central_differences(value, frequencies), rtol=1e-6, atol=1e-7)


def test_some_rows_stand_for_all_on_average():
    pixels, frequencies, mean, covariance = problem(3, n=12)
    z, residual, precision, _ = sites_at(QUADRATIC, pixels, frequencies, mean, covariance)
    # The mean over all cyclic shifts of three of twelve rows is the sum over the twelve.
    found = []
    for shift in range(12):
        own = np.roll(np.arange(12), shift)
        found.append(
            bound_gradient(
                z[own], pixels.rows[own], residual[own], precision[own], mean,
                z[own[:3]] @ covariance, HOST,
            )
        )  # fmt: skip
    expected = bound_gradient(z, pixels.rows, residual, precision, mean, z @ covariance, HOST)
    assert_allclose(np.mean(found, axis=0), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_estimators_in_front_are_computed_as_each_alone(library):
    arrays = []
    for seed in (0, 1, 2):
        pixels, frequencies, mean, covariance = problem(seed, n=20)
        z, residual, precision, _ = sites_at(EXPECTED, pixels, frequencies, mean, covariance)
        arrays.append((z, pixels.rows, residual, precision, mean, (z @ covariance)[:7]))
    alone = [bound_gradient(*(own.copy() for own in each), HOST) for each in arrays]
    together = [np.stack(own) for own in zip(*arrays, strict=True)]
    xp = HOST
    if library == "torch":
        pytest.importorskip("torch", reason="torch is not installed")
        xp = make_backend(np.float64, "cpu")
    found = bound_gradient(*map(xp.array, together), xp)
    assert_allclose(np.asarray(found), alone, rtol=1e-10, atol=1e-12)
