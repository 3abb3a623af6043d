"""Gaussian posteriors of the weights of Fourier features, and what they predict."""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
from scipy.linalg import cho_solve, eigh, rq

from undulatus._system import single_threaded_blas
from undulatus.gp.backends import HOST, Array, Backend
from undulatus.gp.cholesky import factorise, invert_triangle

PROBABILITY_PER_VARIANCE = 0.044
"""The steepest slope of the predictive probability in the latent variance."""

_ROOTS: WeakKeyDictionary[Posterior, dict[float, Array]] = WeakKeyDictionary()
"""Truncated roots by posterior and smallest variance: each takes an eigendecomposition."""


@dataclass(frozen=True, eq=False)
class Posterior:
    r"""Gaussian over whitened weights, :math:`N(m, A^{-1})` (Eq. 9, posterior).

    Attributes
    ----------
    mean : (k,) array, k = 2 D
        :math:`m = A^{-1} \sqrt\gamma\, Z^\top s (h - c\, b)`, with weights :math:`s` of the rows.
    root : (k, k) array
        Lower triangular :math:`L^{-1}` with :math:`A = L L^\top`, so that a variance
        :math:`|L^{-1} z|^2` cannot be negative.
    log_determinant, quadratic : float
        :math:`\log|A|` and :math:`m^\top A m`.
    jitter : float
        Added to the diagonal of :math:`A` to factorise it.
    """

    mean: Array
    root: Array
    log_determinant: float
    quadratic: float
    jitter: float

    @property
    def covariance(self) -> Array:
        """The covariance A⁻¹, (k, k)."""
        return np.asarray(self.root.T @ self.root)

    @property
    def divergence(self) -> float:
        """The Kullback-Leibler divergence from the prior N(0, I) (nats)."""
        squares = float(np.sum(self.root**2) + self.mean @ self.mean)
        return 0.5 * (squares - len(self.mean) + self.log_determinant)


def solve_posterior(precision: Array, projected: Array) -> Posterior:
    """Return the posterior with precision ``A`` (k, k) and ``A m`` = ``projected`` (k,)."""
    factor, jitter = factorise(precision)
    mean = cho_solve((factor, True), projected)
    log_determinant = 2.0 * float(np.sum(np.log(np.diagonal(factor))))
    root = factor
    invert_triangle(root)
    return Posterior(mean, root, log_determinant, float(projected @ mean), jitter)


# A fitted model


@dataclass(frozen=True, eq=False)
class Level:
    """The level of a scene, which a latent function has besides its weights (logits)."""

    mean: float
    variance: float
    covariance: Array
    """With the whitened weights, (k,)."""
    prior_variance: float
    """Of the scene's deviation and level, added up: beyond the signal variance, no more."""


@dataclass(frozen=True)
class LatentFit:
    """One latent function: its signal variance γ, the posterior of its weights, its prior mean b.

    ``bounds`` holds the bound along the way.
    """

    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]
    prior_mean: float = 0.0
    """To which the latent mean returns away from the data."""
    level: Level | None = None
    """Of the scene that the model was adapted to."""


@dataclass(frozen=True)
class FourierFit:
    """A fitted classifier in feature space, and how the fit went.

    Two classes have one latent function; more have one a class, over the same frequencies.
    """

    frequencies: Array
    lengthscale: float
    latents: tuple[LatentFit, ...]
    n_iter: int
    outcome: str
    validation_losses: tuple[float, ...] = ()
    taper: float = 0.0
    """Deviation of frequencies as a share of their size; 0 lets features go on for ever."""

    @property
    def signal_variance(self) -> float:
        """The signal variance, or the mean of those of several latent functions."""
        return mean_of([latent.signal_variance for latent in self.latents])

    @property
    def bounds(self) -> tuple[float, ...]:
        """The bound along the way, added up; a latent function that ended early keeps its last."""
        if len(self.latents) == 1:
            return self.latents[0].bounds
        return tuple(np.sum(same_length([own.bounds for own in self.latents]), axis=0).tolist())


def same_length(histories: list[tuple[float, ...]]) -> Array:
    """Return histories as rows of an array, in which the shorter ones keep their last value."""
    longest = max(map(len, histories))
    return np.array([np.pad(own, (0, longest - len(own)), mode="edge") for own in histories])


def mean_of(values: list[float]) -> float:
    """Return the mean; of a single value, the value itself to the last digit."""
    return values[0] if len(values) == 1 else float(np.mean(values))


# Prediction


def variance_root(posterior: Posterior, signal_variance: float, tolerance: float = 0.0) -> Array:
    r"""Return a (k, r) matrix R such that the latent variance is :math:`|R^\top z|^2`.

    With ``tolerance`` zero it is exact. Otherwise the directions of least posterior variance
    are dropped: with :math:`A^{-1} = U S U^\top` and :math:`|z|^2 = \gamma`, leaving out
    eigenvalues up to :math:`s` costs at most :math:`s\gamma` in variance, so at most 0.044
    times that in probability. ``tolerance`` bounds the error in probability.

    R is upper triangular: entries below the diagonal that ends in its last row and column
    are zero. If at most half the directions are dropped it is square, and its first columns are
    zero.
    """
    if tolerance == 0.0:
        return posterior.root.T
    smallest = tolerance / (signal_variance * PROBABILITY_PER_VARIANCE)
    roots = _ROOTS.setdefault(posterior, {})
    if smallest not in roots:
        with single_threaded_blas():
            eigenvalues, basis = eigh(posterior.covariance)
            kept = eigenvalues > smallest
            truncated = basis[:, kept] * np.sqrt(eigenvalues[kept])
            # A rotation from the right does not change |Rᵗz|.
            root = rq(truncated, mode="economic")[0] if kept.any() else truncated
            dropped = len(kept) - kept.sum()
            # A square triangle takes half the time of a rectangle of its size.
            few = 2 * dropped <= len(kept)
            roots[smallest] = np.pad(root, ((0, 0), (dropped, 0))) if few else root
    return roots[smallest]


def share_of_tolerance(shift: float) -> float:
    """Return the share of a tolerance in probability that roots may use when odds are multiplied.

    With t for the logit of Eq. 12 the slope of the probability in the variance is at most
    π/16 |t| ψ'(t + log r), and ψ' is at most 1/4.
    """
    steepest = PROBABILITY_PER_VARIANCE + np.pi / 64.0 * abs(shift)
    return float(PROBABILITY_PER_VARIANCE / steepest)


def expected_sigmoid(
    mean: Array, variance: Array, shift: float = 0.0, xp: Backend = HOST
) -> Array:
    r"""Return :math:`\psi\bigl(\mu / \sqrt{1 + \tfrac{\pi}{8} s}\bigr)`, the paper's Eq. 12.

    Approximates the mean of :math:`\psi(f)` over :math:`f \sim N(\mu, s)`. By Bayes' rule other
    frequencies of the classes multiply its odds by the ratio of theirs, exp(``shift``).
    """
    return xp.expit(scaled_mean(mean, variance, xp) + shift)


def scaled_mean(mean: Array, variance: Array, xp: Backend = HOST) -> Array:
    """Return μ / sqrt(1 + π/8 s), the logit of Eq. 12."""
    return mean / xp.sqrt(1.0 + np.pi / 8.0 * variance)
