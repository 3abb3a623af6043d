r"""The exact Gaussian-process classifier: the same logistic bound, an n x n kernel.

With :math:`K = \gamma k`, :math:`S = \mathrm{diag}(\sqrt{2 s\lambda})` and
:math:`B = I + S K S = L L^\top`,

.. math::
    \alpha = (I - S B^{-1} S K)\, s v, \qquad
    2 \log F = (s v)^\top K \alpha - \log|B| + 2\sum_i s_i\,[\dots],

the latent mean at :math:`x_*` is :math:`k_*^\top\alpha` and its variance
:math:`\gamma - |L^{-1} S k_*|^2`. Cost O(n³), memory O(n²).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotri

from undulatus._system import available_memory, single_threaded_blas
from undulatus.errors import TooManyRowsError
from undulatus.gp.batch import Climb, ascend
from undulatus.gp.bound import half_slope, offset
from undulatus.gp.kernels import Kernel
from undulatus.gp.posterior import factorise

Array = npt.NDArray[Any]

MATRICES = 6
"""Arrays of n x n doubles alive at the worst moment of a fit."""

VARIANCE_LIMITS = (1e-4, 1e6)

LENGTHSCALE_LIMITS = (1e-3, 1e3)
"""Lowest and highest lengthscale, as shares of the mean distance between pixels."""

SMALL = 1000

START_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales that are tried, as shares of the mean distance between pixels."""


def require_memory(n_rows: int) -> None:
    """Raise if an exact fit of ``n_rows`` pixels would not fit in memory."""
    needed, available = 8.0 * MATRICES * n_rows**2, available_memory()
    if needed > available:
        raise TooManyRowsError(n_rows, needed, available)


def squared_distances(x: Array, other: Array) -> Array:
    """Return |x_i - x'_j|², (n, m), never negative."""
    square = -2.0 * x @ other.T
    square += np.einsum("ij,ij->i", x, x)[:, None]
    square += np.einsum("ij,ij->i", other, other)[None, :]
    return np.maximum(square, 0.0, out=square)


@dataclass(frozen=True)
class ExactPosterior:
    """α (n,), the roots S (n,), the lower factor L of B (n, n), and the jitter it took."""

    alpha: Array
    roots: Array
    factor: Array
    jitter: float


@dataclass(frozen=True)
class ExactFit:
    """A fitted exact classifier, and how it came about."""

    lengthscale: float
    signal_variance: float
    posterior: ExactPosterior
    bounds: tuple[float, ...]
    outcome: str


class ExactEvidence:
    """The bound of an exact GP classifier, in θ = (log γ, log lengthscale) and ξ."""

    def __init__(
        self, x: Array, v: Array, weight: Array, kernel: Kernel, mean_distance: float
    ) -> None:
        self.squares = squared_distances(x, x)
        np.fill_diagonal(self.squares, 0.0)
        self.pull = weight * v
        self.weight = weight
        self.kernel = kernel
        self.xi = np.ones(len(x))
        low, high = np.log(LENGTHSCALE_LIMITS) + np.log(mean_distance)
        self.limits = [(np.log(VARIANCE_LIMITS[0]), np.log(VARIANCE_LIMITS[1])), (low, high)]

    def covariance(self, theta: Array) -> Array:
        """Return K at θ, (n, n)."""
        return np.exp(theta[0]) * self.kernel.correlation(self.squares / np.exp(2.0 * theta[1]))

    def solve(self, covariance: Array) -> tuple[float, ExactPosterior]:
        """Return the bound and the posterior for a covariance, at the present ξ."""
        roots = np.sqrt(2.0 * self.weight * half_slope(self.xi))
        scaled = covariance * roots[:, None]
        scaled *= roots[None, :]
        scaled[np.diag_indices_from(scaled)] += 1.0
        factor, jitter = factorise(scaled)
        reached = covariance @ self.pull
        inner = solve_triangular(factor, roots * reached, lower=True)
        alpha = self.pull - roots * solve_triangular(factor, inner, lower=True, trans="T")
        # Eq. varGlobal in function space: vᵗ(K⁻¹ + 2Λ)⁻¹v = vᵗKv - |L⁻¹SKv|².
        fitted = float(self.pull @ reached - inner @ inner)
        log_determinant = 2.0 * float(np.sum(np.log(np.diagonal(factor))))
        bound = 0.5 * (fitted - log_determinant) + float(self.weight @ offset(self.xi))
        return bound, ExactPosterior(alpha, roots, factor, jitter)

    def tighten(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        covariance = self.covariance(theta)
        _, posterior = self.solve(covariance)
        spread = solve_triangular(
            posterior.factor, posterior.roots[:, None] * covariance, lower=True, overwrite_b=True
        )
        variance = np.diagonal(covariance) - np.einsum("ij,ij->j", spread, spread)
        mean = covariance @ posterior.alpha
        del spread
        self.xi = np.sqrt(np.maximum(variance, 0.0) + mean**2)
        return self.solve(covariance)[0]

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound at θ and its gradient, ξ held."""
        covariance = self.covariance(theta)
        bound, posterior = self.solve(covariance)
        # d log F / dK = (α αᵗ - S B⁻¹ S) / 2, contracted with dK for each hyperparameter.
        inverse, _ = dpotri(posterior.factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        inverse *= posterior.roots[:, None]
        inverse *= posterior.roots[None, :]
        toward = np.outer(posterior.alpha, posterior.alpha)
        toward -= inverse
        del inverse
        amplitude = 0.5 * float(np.vdot(toward, covariance))
        del covariance
        scaled = self.squares / np.exp(2.0 * theta[1])
        toward *= scaled
        stretch = -np.exp(theta[0]) * float(np.vdot(toward, self.kernel.slope(scaled)))
        return bound, np.array([amplitude, stretch])


def fit_exact(
    x: Array,
    v: Array,
    weight: Array,
    kernel: Kernel,
    mean_distance: float,
    *,
    max_iter: int,
    tol: float,
    start: tuple[float, float] | None = None,
    report: Callable[[Climb], None] = lambda climb: None,
) -> ExactFit:
    """Fit an exact GP classifier to standardised pixels ``x`` (n, d), v = y - 1/2 (n,).

    ``start`` is a signal variance and a lengthscale; without it, the best of a
    few shares of the mean distance.
    """
    require_memory(len(x))
    # Threads only slow small matrices down.
    with single_threaded_blas() if len(x) <= SMALL else nullcontext():
        return _fit_exact(x, v, weight, kernel, mean_distance, max_iter, tol, start, report)


def _fit_exact(
    x: Array,
    v: Array,
    weight: Array,
    kernel: Kernel,
    mean_distance: float,
    max_iter: int,
    tol: float,
    start: tuple[float, float] | None,
    report: Callable[[Climb], None],
) -> ExactFit:
    evidence = ExactEvidence(x, v, weight, kernel, mean_distance)
    if start is None:
        tries = [np.array([0.0, np.log(share * mean_distance)]) for share in START_SHARES]
        theta = max(tries, key=lambda theta: evidence.solve(evidence.covariance(theta))[0])
    else:
        theta = np.log(np.array(start))
    theta = np.clip(theta, *np.transpose(evidence.limits))
    climb = ascend(evidence, Climb(theta, ()), max_iter=max_iter, tol=tol, report=report)
    for _ in range(2):
        bound = evidence.tighten(climb.theta)
    bound, posterior = evidence.solve(evidence.covariance(climb.theta))
    signal_variance, lengthscale = (float(value) for value in np.exp(climb.theta))
    return ExactFit(lengthscale, signal_variance, posterior, (*climb.bounds, bound), climb.outcome)


def exact_moments(
    x: Array,
    training: Array,
    kernel: Kernel,
    signal_variance: float,
    lengthscale: float,
    posterior: ExactPosterior,
) -> tuple[Array, Array]:
    """Return the latent mean and variance at standardised pixels ``x`` (m, d)."""
    cross = exact_covariance(x, training, kernel, signal_variance, lengthscale)
    spread = solve_triangular(posterior.factor, posterior.roots[:, None] * cross.T, lower=True)
    variance = signal_variance - np.einsum("ij,ij->j", spread, spread)
    return cross @ posterior.alpha, np.maximum(variance, 0.0)


def exact_covariance(
    x: Array, training: Array, kernel: Kernel, signal_variance: float, lengthscale: float
) -> Array:
    """Return the prior covariance of pixels ``x`` (m, d) with the training pixels, (m, n)."""
    scaled = squared_distances(x, training) / lengthscale**2
    return signal_variance * kernel.correlation(scaled)
