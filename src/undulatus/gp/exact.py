r"""The exact Gaussian-process classifier: the same logistic bound with an n x n kernel matrix.

With :math:`K = \gamma k`, :math:`S = \mathrm{diag}(\sqrt{2 s\lambda})` and
:math:`B = I + S K S = L L^\top`,

.. math::
    \alpha = (I - S B^{-1} S K)\, s v, \qquad
    2 \log F = (s v)^\top K \alpha - \log|B| + 2\sum_i s_i\,[\dots],

the latent mean at :math:`x_*` is :math:`k_*^\top\alpha` and its variance
:math:`\gamma - |L^{-1} S k_*|^2`. Cost O(n³), memory O(n²).

Hyperparameters are learned with this bound. The posterior handed out may then be the best
Gaussian one, as in :mod:`undulatus.gp.inference`: of the same form, with other numbers in the
places of :math:`2\lambda` and :math:`v`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh, solve_triangular
from scipy.linalg.lapack import dpotri, dpstrf

from undulatus._system import available_memory, single_threaded_blas
from undulatus.errors import TooManyRowsError
from undulatus.gp.backends import HOST, Array
from undulatus.gp.batch import BatchConfig, Progress, maximise
from undulatus.gp.cholesky import factorise
from undulatus.gp.inference import (
    VARIANCE_LIMITS,
    AscentConfig,
    Gaussian,
    ascend,
    best_variance_ratio,
)
from undulatus.gp.kernels import Kernel
from undulatus.gp.likelihood import EXPECTED, QUADRATIC, Bound, lambda_xi, log_sigmoid_offset
from undulatus.gp.taper import prior_mean

LENGTHSCALE_SHARES = (1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales to try, as shares of the mean distance between pixels.

Without the 2 of :mod:`undulatus.gp.search`: a try costs O(n³), and the ascent moves the
lengthscale afterwards. Learned frequencies keep theirs, so the search there goes wider.
"""

LENGTHSCALE_LIMITS = (1e-3, 1e3)
"""Lowest and highest lengthscale, as shares of the mean distance between pixels."""

START_UPDATES = 5
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

    def moments(self, cross: Array, prior_variance: Array | float) -> tuple[Array, Array]:
        """Return the latent mean and variance at m rows, (m,) each.

        ``cross`` (n, m) is their prior covariance with the training rows.
        """
        known = solve_triangular(
            self.factor, self.roots[:, None] * cross, lower=True, overwrite_b=True
        )
        variance = prior_variance - np.einsum("ij,ij->j", known, known)
        return cross.T @ self.alpha, np.maximum(variance, 0.0)


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

    def take(self, kept: Array) -> Sites:
        """Return the sites of some of the pixels, by a mask or their numbers."""
        return Sites(self.precision[kept], self.projected[kept])

    def join(self, other: Sites) -> Sites:
        """Return these sites and those of more pixels, one after the other."""
        return Sites(
            np.concatenate([self.precision, other.precision]),
            np.concatenate([self.projected, other.projected]),
        )

    def about(self, prior_mean: float) -> Sites:
        """Return the sites of a latent function less its prior mean."""
        return Sites(self.precision, self.projected - prior_mean * self.precision)


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
    prior_mean: float = 0.0
    """The prior mean b of the latent function, to which its mean returns."""


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
        return Sites(2.0 * self.weight * lambda_xi(self.xi), self.weighted_targets)

    def solve(self, covariance: Array) -> tuple[float, ExactPosterior]:
        """Return the bound and the posterior for a covariance, at the current ξ."""
        posterior, fitted = self.sites.posterior(covariance)
        bound = 0.5 * (fitted - posterior.log_determinant) + float(
            self.weight @ log_sigmoid_offset(self.xi)
        )
        return bound, posterior

    def update_xi(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        covariance = self.covariance(theta)
        _, posterior = self.solve(covariance)
        mean, variance = posterior.moments(covariance.T, np.diagonal(covariance))
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
    bound: Bound = EXPECTED,
    log_odds: float = 0.0,
    interruptible: bool = True,
    report: Callable[[Progress], None] = lambda progress: None,
) -> ExactFit:
    """Fit an exact GP classifier to standardised rows ``x`` (n, d), v = y - 1/2 (n,).

    The fit starts from γ = 1 and the share of the mean distance with the best evidence by the
    paper's bound. The posterior is that of ``bound``: of the paper's, ``QUADRATIC``, with a prior
    mean of zero; of any other, of a latent function with the prior mean of ``log_odds``. If
    ``interruptible``, a KeyboardInterrupt ends the fit at the last finished iteration or step.
    """
    require_memory(len(x))
    with blas_threads(len(x)):
        evidence = ExactEvidence(x, v, weight, kernel, mean_distance)
        theta = np.clip(_choose_theta(evidence, mean_distance), *np.transpose(evidence.limits))
        progress = maximise(
            evidence,
            Progress(theta),
            BatchConfig(max_iter, tol),
            interruptible=interruptible,
            report=report,
        )
        for _ in range(2):
            evidence.update_xi(progress.theta)
        outcome = progress.outcome
        signal_variance, lengthscale = (float(value) for value in np.exp(progress.theta))
        if bound is not QUADRATIC and outcome != "interrupted":
            space = FunctionSpace(evidence, progress.theta[1], log_odds)
            start = space.solve(0, evidence.sites, signal_variance)
            (end,) = ascend(
                space, bound, [start], AscentConfig(tol=0.1 * tol), interruptible=interruptible
            )
            best, reached = end.gaussian, end.bounds[-1]
            posterior = best.posterior.posterior
            outcome = "interrupted" if end.interrupted else outcome
        else:
            reached, posterior = evidence.solve(evidence.covariance(progress.theta))
            best = Gaussian(signal_variance)
    return ExactFit(
        lengthscale,
        best.signal_variance,
        posterior,
        (*progress.bounds, reached),
        outcome,
        best.prior_mean,
    )


def _choose_theta(evidence: ExactEvidence, mean_distance: float) -> Array:
    """Return log γ = 0 and the log lengthscale with the best bound; ξ stays at its optimum there.

    Bounds are compared at tight ξ: at ξ = 1 they are loose by different amounts.
    """
    best_bound, best_theta, best_xi = -np.inf, np.zeros(2), evidence.xi
    for share in LENGTHSCALE_SHARES:
        theta = np.array([0.0, np.log(share * mean_distance)])
        evidence.xi = np.ones_like(best_xi)
        for _ in range(START_UPDATES):
            bound = evidence.update_xi(theta)
        if bound > best_bound:
            best_bound, best_theta, best_xi = bound, theta, evidence.xi
    evidence.xi = best_xi
    return best_theta


# The space of functions


class AtRows(NamedTuple):
    """A posterior, and the latent mean and variance that it gives at the training rows, (n,)."""

    posterior: ExactPosterior
    mean: Array
    variance: Array


@dataclass(frozen=True)
class FunctionSpace:
    """One latent function at the training rows: a space of :func:`undulatus.gp.inference.ascend`.

    Sites are those of the function with its prior mean.
    """

    evidence: ExactEvidence
    log_lengthscale: float
    log_odds: float

    def _covariance(self, signal_variance: float) -> Array:
        return self.evidence.covariance(np.array([np.log(signal_variance), self.log_lengthscale]))

    def evaluate(
        self, bound: Bound, latents: Sequence[int], gaussians: Sequence[Gaussian]
    ) -> list[tuple[Sites, float]]:
        """Return the sites at the Gaussian and the sum of the rows' values."""
        (own,), weight = gaussians, self.evidence.weight
        total = own.prior_mean + own.posterior.mean
        sign = np.where(self.evidence.weighted_targets > 0.0, 1.0, -1.0)
        precision, residual, value = bound.sites(total, own.posterior.variance, sign, HOST)
        sites = Sites(weight * precision, weight * (residual + precision * total))
        return [(sites, float(weight @ value))]

    def best_ratio(self, latent: int, sites: Sites, signal_variance: float) -> float:
        """Return the factor on γ, within its limits, that maximises the evidence of the sites.

        In the eigenbasis of S K S with the eigenvalues e, and q the projections of K^½ (h - b p),
        where b depends on rγ, 2 log Z(r) = Σ [r q² / (1 + r e) - log(1 + r e)] + b (2 Σh - b Σp).
        """
        roots = np.sqrt(sites.precision)
        scaled = _scale_both_sides(self._covariance(signal_variance), roots)
        eigenvalues, basis = eigh(scaled, overwrite_a=True)
        eigenvalues = np.maximum(eigenvalues, 0.0)
        projected = np.sqrt(eigenvalues) * (basis.T @ (sites.projected / roots))
        projected_precision = np.sqrt(eigenvalues) * (basis.T @ roots)
        target, precision = float(sites.projected.sum()), float(sites.precision.sum())

        def loss(log_ratio: float) -> float:
            ratio = float(np.exp(log_ratio))
            b = prior_mean(self.log_odds, ratio * signal_variance)
            shrunk = ratio * eigenvalues
            fitted = ratio * (projected - b * projected_precision) ** 2 / (1.0 + shrunk)
            rest = b * (2.0 * target - b * precision)
            return float(np.sum(np.log1p(shrunk) - fitted)) - rest

        return best_variance_ratio(loss, signal_variance)

    def solve(self, latent: int, sites: Sites, signal_variance: float) -> Gaussian:
        """Return the posterior at the training rows that sites give."""
        b = prior_mean(self.log_odds, signal_variance)
        covariance = self._covariance(signal_variance)
        posterior, _ = sites.about(b).posterior(covariance)
        return Gaussian(
            signal_variance,
            b,
            AtRows(posterior, *posterior.moments(covariance, np.diagonal(covariance))),
            sites,
        )

    def log_evidence(self, gaussian: Gaussian) -> float:
        """Return log E exp Σ (h f - p f²/2) under the prior, of the sites it was solved from."""
        b, sites, (posterior, mean, _) = gaussian.prior_mean, gaussian.sites, gaussian.posterior
        rest = b * (2.0 * sites.projected.sum() - b * sites.precision.sum())
        fitted = sites.about(b).projected @ mean - posterior.log_determinant
        return 0.5 * float(fitted + rest)

    def divergence(self, gaussian: Gaussian) -> float:
        """Return the Kullback-Leibler divergence from the prior (nats).

        Of N(μ, Σ) from N(0, K) with Σ⁻¹ = K⁻¹ + P: tr K⁻¹Σ = n - tr PΣ.
        """
        posterior, mean, variance = gaussian.posterior
        squares = float(mean @ posterior.alpha - gaussian.sites.precision @ variance)
        return 0.5 * (squares + float(posterior.log_determinant))


# Rows of a fitted classifier, added and taken away


def blas_threads(n_rows: int) -> AbstractContextManager[None]:
    """Return a context in which BLAS has the threads that suit matrices of so many rows."""
    return single_threaded_blas() if n_rows <= SINGLE_THREAD_ROWS else nullcontext()


def mean_and_root(fit: ExactFit, training: Array, x: Array, kernel: Kernel) -> tuple[Array, Array]:
    """Return what a fit to ``training`` (n, d) says of standardised rows ``x`` (m, d).

    The latent mean (m,) includes the prior mean; the root W (m, q) has W Wᵗ for the covariance.
    Of smooth functions q is far below m: rows near others are no new directions.
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
    return cross.T @ fit.posterior.alpha + fit.prior_mean, root


def sites_of(fit: ExactFit, training: Array, kernel: Kernel) -> Sites:
    """Return the sites of the training rows, those of a latent function less its prior mean.

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
