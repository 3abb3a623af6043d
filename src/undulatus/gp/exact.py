r"""The exact Gaussian-process classifier: the same logistic bound with an n x n kernel matrix.

With :math:`K = \gamma k`, :math:`S = \mathrm{diag}(\sqrt{2 s\lambda})` and
:math:`B = I + S K S = L L^\top`,

.. math::
    \alpha = (I - S B^{-1} S K)\, s v, \qquad
    2 \log F = (s v)^\top K \alpha - \log|B| + 2\sum_i s_i\,[\dots],

the latent mean at :math:`x_*` is :math:`k_*^\top\alpha` and its variance
:math:`\gamma - |L^{-1} S k_*|^2`. Cost O(n³), memory O(n²).

Hyperparameters are learned with this bound. The posterior handed out may then be the best
Gaussian one, as in :mod:`undulatus.gp.variational`: of the same form, with other numbers in the
places of :math:`2\lambda` and :math:`v`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.linalg import eigh, solve_triangular
from scipy.linalg.lapack import dpotri, dpstrf

from undulatus._system import available_memory, single_threaded_blas
from undulatus.errors import TooManyRowsError
from undulatus.gp.arrays import Array
from undulatus.gp.batch import Ascent, ascend
from undulatus.gp.bound import best_eigenvalue_ratio, half_slope, offset
from undulatus.gp.damping import level
from undulatus.gp.kernels import Kernel
from undulatus.gp.passes import VARIANCE_LIMITS, variance_ratio_limits
from undulatus.gp.posterior import factorise
from undulatus.gp.variational import (
    LARGEST_SHARE,
    MAX_PASSES,
    ascend_naturally,
    expected_log_sigmoid,
)

LENGTHSCALE_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales to try, as shares of the mean distance between pixels.

Without the 2 of :mod:`undulatus.gp.passes`: a try costs O(n³), and the ascent moves the
lengthscale afterwards. Learned frequencies keep theirs, so the search there goes wider.
"""

LENGTHSCALE_LIMITS = (1e-3, 1e3)
"""Lowest and highest lengthscale, as shares of the mean distance between pixels."""

START_TIGHTENINGS = 5
"""Updates of ξ at each starting lengthscale."""

MATRICES = 6
"""Matrices of n x n doubles held at the peak of a fit."""

ROOT_TOLERANCE = 1e-10
"""Variance that the root of new rows may leave out, as a share of the signal variance."""

SINGLE_THREAD_ROWS = 1000
"""Up to this many rows, BLAS runs on one thread: more only slow small matrices down."""


@dataclass(frozen=True)
class ExactPosterior:
    """α (n,), the diagonal of S (n,), the lower factor L of B (n, n), and its jitter."""

    alpha: Array
    roots: Array
    factor: Array
    jitter: float

    @property
    def log_determinant(self) -> float:
        """log|B|."""
        return 2.0 * float(np.sum(np.log(np.diagonal(self.factor))))

    def moments(self, covariance: Array) -> tuple[Array, Array]:
        """Return the latent mean and variance at the training pixels, (n,) each."""
        spread = solve_triangular(
            self.factor, self.roots[:, None] * covariance, lower=True, overwrite_b=True
        )
        variance = np.diagonal(covariance) - np.einsum("ij,ij->j", spread, spread)
        return covariance @ self.alpha, np.maximum(variance, 0.0)


@dataclass(frozen=True)
class Sites:
    """Gaussian factors exp(hᵢf - pᵢf²/2), one a pixel, that stand for the likelihood.

    ``precision`` holds p (n,) and ``projected`` h (n,). With them the posterior is
    N((K⁻¹ + P)⁻¹ h, (K⁻¹ + P)⁻¹).
    """

    precision: Array
    projected: Array

    def mix(self, other: Sites, share: float) -> Sites:
        """Return these sites moved towards ``other`` by a share of the way."""
        return Sites(
            (1.0 - share) * self.precision + share * other.precision,
            (1.0 - share) * self.projected + share * other.projected,
        )

    def posterior(self, covariance: Array) -> tuple[ExactPosterior, float]:
        """Return the posterior and hᵗ(K⁻¹ + P)⁻¹h for a covariance K (n, n)."""
        roots, targets = np.sqrt(self.precision), self.projected
        scaled = _scale_both_sides(covariance, roots)
        scaled[np.diag_indices_from(scaled)] += 1.0
        factor, jitter = factorise(scaled)
        smoothed = covariance @ targets
        inner = solve_triangular(factor, roots * smoothed, lower=True)
        alpha = targets - roots * solve_triangular(factor, inner, lower=True, trans="T")
        # Eq. 8 (varGlobal) in function space: vᵗ(K⁻¹ + 2Λ)⁻¹v = vᵗKv - |L⁻¹SKv|².
        fitted = float(targets @ smoothed - inner @ inner)
        return ExactPosterior(alpha, roots, factor, jitter), fitted

    def best_variance_ratio(
        self, covariance: Array, low: float, high: float, own_level: Callable[[float], float]
    ) -> float:
        """Return the factor on K, within [low, high], that maximises the evidence.

        ``projected`` is for a level of zero; ``own_level`` is the level for a factor.
        """
        roots = np.sqrt(self.precision)
        eigenvalues, basis = eigh(_scale_both_sides(covariance, roots), overwrite_a=True)
        eigenvalues = np.maximum(eigenvalues, 0.0)
        projected = np.sqrt(eigenvalues) * (basis.T @ (self.projected / roots))
        pull = np.sqrt(eigenvalues) * (basis.T @ roots)
        targets, precisions = float(self.projected.sum()), float(self.precision.sum())

        def rest(ratio: float) -> float:
            b = own_level(ratio)
            return 2.0 * b * targets - b**2 * precisions

        return best_eigenvalue_ratio(
            eigenvalues, low, high, lambda ratio: projected - own_level(ratio) * pull, rest
        )

    def take(self, kept: Array) -> Sites:
        """Return the sites of some of the pixels, by a mask or their numbers."""
        return Sites(self.precision[kept], self.projected[kept])

    def join(self, other: Sites) -> Sites:
        """Return these sites and those of more pixels, one after the other."""
        return Sites(
            np.concatenate([self.precision, other.precision]),
            np.concatenate([self.projected, other.projected]),
        )

    def at_level(self, own_level: float) -> Sites:
        """Return the sites of a latent function less its level."""
        return Sites(self.precision, self.projected - own_level * self.precision)


def _scale_both_sides(matrix: Array, factors: Array) -> Array:
    scaled = matrix * factors[:, None]
    scaled *= factors[None, :]
    return scaled


@dataclass(frozen=True)
class ExactFit:
    """A fitted exact classifier, and how the fit went."""

    lengthscale: float
    signal_variance: float
    posterior: ExactPosterior
    bounds: tuple[float, ...]
    outcome: str
    level: float = 0.0
    """The level b of the latent function, to which its mean returns."""


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

    @property
    def sites(self) -> Sites:
        """The sites of the bound at the current ξ."""
        return Sites(2.0 * self.weight * half_slope(self.xi), self.weighted_targets)

    def solve(self, covariance: Array) -> tuple[float, ExactPosterior]:
        """Return the bound and the posterior for a covariance, at the current ξ."""
        posterior, fitted = self.sites.posterior(covariance)
        bound = 0.5 * (fitted - posterior.log_determinant) + float(self.weight @ offset(self.xi))
        return bound, posterior

    def tighten(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        covariance = self.covariance(theta)
        _, posterior = self.solve(covariance)
        mean, variance = posterior.moments(covariance)
        self.xi = np.sqrt(variance + mean**2)
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
    variational: bool = True,
    log_odds: float = 0.0,
    interruptible: bool = True,
    report: Callable[[Ascent], None] = lambda ascent: None,
) -> ExactFit:
    """Fit an exact GP classifier to standardised pixels ``x`` (n, d), v = y - 1/2 (n,).

    The fit starts from γ = 1 and the share of the mean distance with the best bound. The
    posterior is the bound's or, if ``variational``, the best Gaussian one of a latent function
    with the level of ``log_odds`` (see :mod:`undulatus.gp.damping`). If ``interruptible``, a
    KeyboardInterrupt ends the fit at the last finished iteration or step.
    """
    require_memory(len(x))
    with blas_threads(len(x)):
        evidence = ExactEvidence(x, v, weight, kernel, mean_distance)
        theta = np.clip(_choose_theta(evidence, mean_distance), *np.transpose(evidence.limits))
        ascent = ascend(
            evidence,
            Ascent(theta),
            max_iter=max_iter,
            tol=tol,
            interruptible=interruptible,
            report=report,
        )
        for _ in range(2):
            evidence.tighten(ascent.theta)
        if variational and ascent.outcome != "interrupted":
            final = _fit_variational(evidence, ascent.theta, log_odds, 0.1 * tol, interruptible)
        else:
            log_odds = 0.0
            solved = evidence.solve(evidence.covariance(ascent.theta))
            final = _PosteriorFit(ascent.theta, *solved)
    signal_variance, lengthscale = (float(value) for value in np.exp(final.theta))
    return ExactFit(
        lengthscale,
        signal_variance,
        final.posterior,
        (*ascent.bounds, final.bound),
        "interrupted" if final.interrupted else ascent.outcome,
        level(log_odds, signal_variance),
    )


@dataclass(frozen=True)
class _PosteriorFit:
    """The posterior at hyperparameters θ, and its bound."""

    theta: Array
    bound: float
    posterior: ExactPosterior
    interrupted: bool = False


def _choose_theta(evidence: ExactEvidence, mean_distance: float) -> Array:
    """Return log γ = 0 and the log lengthscale with the best bound; ξ stays at its optimum there.

    Bounds are compared at tight ξ: at ξ = 1 they are loose by different amounts.
    """
    best_bound, best_theta, best_xi = -np.inf, np.zeros(2), evidence.xi
    for share in LENGTHSCALE_SHARES:
        theta = np.array([0.0, np.log(share * mean_distance)])
        evidence.xi = np.ones_like(best_xi)
        for _ in range(START_TIGHTENINGS):
            bound = evidence.tighten(theta)
        if bound > best_bound:
            best_bound, best_theta, best_xi = bound, theta, evidence.xi
    evidence.xi = best_xi
    return best_theta


# The best Gaussian posterior


@dataclass(frozen=True)
class _Evaluated:
    """Sites at hyperparameters θ, the bound of their posterior, and where a full step leads.

    Sites are those of a latent function with its level.

    The posterior itself is not kept: its factor is as large as K.
    """

    theta: Array
    sites: Sites
    target: Sites
    bound: float


def _fit_variational(
    evidence: ExactEvidence, theta: Array, log_odds: float, tol: float, interruptible: bool
) -> _PosteriorFit:
    """Return the best Gaussian posterior and γ, by steps from the posterior at the current ξ.

    The steps are those of :mod:`undulatus.gp.variational` in function space.
    """
    best = start = _evaluate(evidence, theta, log_odds, evidence.sites)
    step, interrupted = partial(_step, evidence, log_odds), False
    try:
        for state in ascend_naturally(
            start, step, max_passes=MAX_PASSES, tol=tol, largest_share=LARGEST_SHARE
        ):
            best = state
    except KeyboardInterrupt:
        if not interruptible:
            raise
        interrupted = True
    own = best.sites.at_level(level(log_odds, float(np.exp(best.theta[0]))))
    posterior, _ = own.posterior(evidence.covariance(best.theta))
    return _PosteriorFit(best.theta, best.bound, posterior, interrupted)


def _step(
    evidence: ExactEvidence, log_odds: float, current: _Evaluated, share: float
) -> _Evaluated:
    """Return the posterior and γ after a share of a step."""
    sites, variance = current.sites.mix(current.target, share), np.exp(current.theta[0])
    ratio = sites.best_variance_ratio(
        evidence.covariance(current.theta),
        *variance_ratio_limits(variance),
        lambda ratio: level(log_odds, ratio * variance),
    )
    theta = np.array([current.theta[0] + share * np.log(ratio), current.theta[1]])
    return _evaluate(evidence, theta, log_odds, sites)


def _evaluate(evidence: ExactEvidence, theta: Array, log_odds: float, sites: Sites) -> _Evaluated:
    """Return the bound of the posterior with these sites, and where a full step leads."""
    covariance, own_level = evidence.covariance(theta), level(log_odds, float(np.exp(theta[0])))
    posterior, _ = sites.at_level(own_level).posterior(covariance)
    mean, variance = posterior.moments(covariance)
    sign = np.where(evidence.weighted_targets > 0.0, 1.0, -1.0)
    total = mean + own_level
    value, slope, curvature = expected_log_sigmoid(sign * total, variance)
    # The divergence of N(μ, Σ) from N(0, K) with Σ⁻¹ = K⁻¹ + P: tr K⁻¹Σ = n - tr PΣ.
    squares = float(mean @ posterior.alpha - sites.precision @ variance)
    divergence = 0.5 * (squares + posterior.log_determinant)
    weight = evidence.weight
    target = Sites(weight * curvature, weight * (sign * slope + curvature * total))
    return _Evaluated(theta, sites, target, float(weight @ value) - divergence)


# Rows of a fitted classifier, added and taken away


def blas_threads(n_rows: int) -> AbstractContextManager[None]:
    """Return a context in which BLAS has the threads that suit matrices of so many rows."""
    return single_threaded_blas() if n_rows <= SINGLE_THREAD_ROWS else nullcontext()


def mean_and_root(fit: ExactFit, training: Array, x: Array, kernel: Kernel) -> tuple[Array, Array]:
    """Return what a fit to ``training`` (n, d) says of standardised rows ``x`` (m, d).

    The latent mean (m,) includes the level; the root W (m, q) has W Wᵗ for the covariance. Of
    smooth functions q is far below m: rows near others are no new directions.
    """
    cross = exact_covariance(training, x, kernel, fit.signal_variance, fit.lengthscale)
    known = solve_triangular(
        fit.posterior.factor, fit.posterior.roots[:, None] * cross, lower=True
    )
    covariance = _own_covariance(fit, x, kernel)
    covariance -= known.T @ known
    # Pivoted: ends where no variance that is left exceeds the tolerance.
    tolerance = ROOT_TOLERANCE * fit.signal_variance
    factor, pivots, rank, _ = dpstrf(covariance, tol=tolerance, lower=1)
    root = np.zeros((len(x), rank))
    root[pivots - 1] = np.tril(factor[:, :rank])
    return cross.T @ fit.posterior.alpha + fit.level, root


def sites_of(fit: ExactFit, training: Array, kernel: Kernel) -> Sites:
    """Return the sites of the training rows, those of a latent function less its level.

    With sites p and h, α is (I + PK)⁻¹h.
    """
    precision, alpha = fit.posterior.roots**2, fit.posterior.alpha
    return Sites(precision, alpha + precision * (_own_covariance(fit, training, kernel) @ alpha))


def with_sites(fit: ExactFit, training: Array, sites: Sites, kernel: Kernel) -> ExactFit:
    """Return the fit with other training rows (n, d) and their sites, hyperparameters held."""
    posterior, _ = sites.posterior(_own_covariance(fit, training, kernel))
    return replace(fit, posterior=posterior)


def _own_covariance(fit: ExactFit, x: Array, kernel: Kernel) -> Array:
    """Return the prior covariance of rows ``x`` (n, d) with each other, (n, n)."""
    squares = squared_distances(x, x)
    np.fill_diagonal(squares, 0.0)
    return fit.signal_variance * kernel.correlation(squares / fit.lengthscale**2)


def require_memory(n_rows: int, n_latents: int = 1) -> None:
    """Raise if an exact fit of ``n_rows`` pixels would not fit in memory.

    Each further latent function keeps a matrix.
    """
    needed = 8.0 * (MATRICES + n_latents - 1) * float(n_rows) ** 2
    available = available_memory()
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
