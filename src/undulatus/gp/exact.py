r"""The exact Gaussian-process classifier: the same logistic bound with an n x n kernel matrix.

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

import numpy as np
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotri

from undulatus._system import available_memory, single_threaded_blas
from undulatus.errors import TooManyRowsError
from undulatus.gp.batch import Ascent, ascend
from undulatus.gp.blocks import Array
from undulatus.gp.bound import half_slope, offset
from undulatus.gp.kernels import Kernel
from undulatus.gp.passes import VARIANCE_LIMITS
from undulatus.gp.posterior import factorise

LENGTHSCALE_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales to try, as shares of the mean distance between pixels.

Without the 2 of :mod:`undulatus.gp.passes`: a try costs O(n³), and the ascent moves the
lengthscale afterwards. Learned frequencies keep theirs, so the search there goes wider.
"""

LENGTHSCALE_LIMITS = (1e-3, 1e3)
"""Lowest and highest lengthscale, as shares of the mean distance between pixels."""

MATRICES = 6
"""Matrices of n x n doubles held at the peak of a fit."""

SINGLE_THREAD_ROWS = 1000
"""Up to this many rows, BLAS runs on one thread: more only slow small matrices down."""


@dataclass(frozen=True)
class ExactPosterior:
    """α (n,), the diagonal of S (n,), the lower factor L of B (n, n), and its jitter."""

    alpha: Array
    roots: Array
    factor: Array
    jitter: float


@dataclass(frozen=True)
class ExactFit:
    """A fitted exact classifier, and how the fit went."""

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
        self.weighted_targets = weight * v
        self.weight = weight
        self.kernel = kernel
        self.xi = np.ones(len(x))
        low, high = np.log(LENGTHSCALE_LIMITS) + np.log(mean_distance)
        self.limits = [(np.log(VARIANCE_LIMITS[0]), np.log(VARIANCE_LIMITS[1])), (low, high)]

    def covariance(self, theta: Array) -> Array:
        """Return K at θ, (n, n)."""
        return np.exp(theta[0]) * self.kernel.correlation(self.squares / np.exp(2.0 * theta[1]))

    def solve(self, covariance: Array) -> tuple[float, ExactPosterior]:
        """Return the bound and the posterior for a covariance, at the current ξ."""
        roots = np.sqrt(2.0 * self.weight * half_slope(self.xi))
        scaled = covariance * roots[:, None]
        scaled *= roots[None, :]
        scaled[np.diag_indices_from(scaled)] += 1.0
        factor, jitter = factorise(scaled)
        targets = self.weighted_targets
        smoothed = covariance @ targets
        inner = solve_triangular(factor, roots * smoothed, lower=True)
        alpha = targets - roots * solve_triangular(factor, inner, lower=True, trans="T")
        # Eq. 8 (varGlobal) in function space: vᵗ(K⁻¹ + 2Λ)⁻¹v = vᵗKv - |L⁻¹SKv|².
        fitted = float(targets @ smoothed - inner @ inner)
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
        """Return the bound and its gradient at θ, with ξ fixed."""
        covariance = self.covariance(theta)
        bound, posterior = self.solve(covariance)
        # d log F / dK = (α αᵗ - S B⁻¹ S) / 2, contracted with dK for each hyperparameter.
        inverse, _ = dpotri(posterior.factor, lower=1)
        inverse = np.tril(inverse) + np.tril(inverse, -1).T
        inverse *= posterior.roots[:, None]
        inverse *= posterior.roots[None, :]
        twice_gradient = np.outer(posterior.alpha, posterior.alpha)
        twice_gradient -= inverse
        del inverse
        in_variance = 0.5 * float(np.vdot(twice_gradient, covariance))
        del covariance
        scaled = self.squares / np.exp(2.0 * theta[1])
        twice_gradient *= scaled
        slope = float(np.vdot(twice_gradient, self.kernel.slope(scaled)))
        in_lengthscale = -np.exp(theta[0]) * slope
        return bound, np.array([in_variance, in_lengthscale])


def fit_exact(
    x: Array,
    v: Array,
    weight: Array,
    kernel: Kernel,
    mean_distance: float,
    *,
    max_iter: int,
    tol: float,
    report: Callable[[Ascent], None] = lambda ascent: None,
) -> ExactFit:
    """Fit an exact GP classifier to standardised pixels ``x`` (n, d), v = y - 1/2 (n,).

    The fit starts from γ = 1 and the share of the mean distance with the best bound.
    """
    require_memory(len(x))
    with single_threaded_blas() if len(x) <= SINGLE_THREAD_ROWS else nullcontext():
        evidence = ExactEvidence(x, v, weight, kernel, mean_distance)
        theta = np.clip(_choose_theta(evidence, mean_distance), *np.transpose(evidence.limits))
        ascent = ascend(evidence, Ascent(theta), max_iter=max_iter, tol=tol, report=report)
        for _ in range(2):
            evidence.tighten(ascent.theta)
        bound, posterior = evidence.solve(evidence.covariance(ascent.theta))
    signal_variance, lengthscale = (float(value) for value in np.exp(ascent.theta))
    bounds = (*ascent.bounds, bound)
    return ExactFit(lengthscale, signal_variance, posterior, bounds, ascent.outcome)


def _choose_theta(evidence: ExactEvidence, mean_distance: float) -> Array:
    """Return log γ = 0 and the log lengthscale with the best bound."""
    tries = [np.array([0.0, np.log(share * mean_distance)]) for share in LENGTHSCALE_SHARES]
    return max(tries, key=lambda theta: evidence.solve(evidence.covariance(theta))[0])


def require_memory(n_rows: int) -> None:
    """Raise if an exact fit of ``n_rows`` pixels would not fit in memory."""
    needed, available = 8.0 * MATRICES * n_rows**2, available_memory()
    if needed > available:
        raise TooManyRowsError(n_rows, needed, available)


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


def squared_distances(x: Array, other: Array) -> Array:
    """Return |x_i - x'_j|², (n, m), never negative."""
    square = -2.0 * x @ other.T
    square += np.einsum("ij,ij->i", x, x)[:, None]
    square += np.einsum("ij,ij->i", other, other)[None, :]
    return np.maximum(square, 0.0, out=square)
