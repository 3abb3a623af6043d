"""The Gaussian posterior of the weights, and the predictions it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_solve, eigh, rq

from undulatus.errors import NumericalError
from undulatus.gp.arrays import (
    Array,
    dot,
    double,
    expit,
    in_streams,
    is_tensor,
    mean_and_variance,
    namespace,
    row_dots,
    scratch,
)
from undulatus.gp.triangular import (
    factorise_in_place,
    invert_from_factor,
    invert_triangle,
    multiply_by_triangle,
)

JITTER_LADDER = (0.0, 1e-10, 1e-8, 1e-6, 1e-4, 1e-2)
"""Shares of the mean diagonal added in turn until a matrix can be factorised."""

PROBABILITY_PER_VARIANCE = 0.044
"""The steepest slope of the predictive probability in the latent variance."""

FIRST_VARIANCE = 0.2
"""The first stage of a tolerant prediction uses the directions that may add more than this to
a variance ..."""

FIRST_SHARE = 1.0 / 3.0
"""... if they are at most this share of all directions: beyond it, two stages are slower than
one."""


def factorise(matrix: Array) -> tuple[Array, float]:
    """Return the lower Cholesky factor of a symmetric matrix, and the jitter added to it.

    The matrix is converted to double precision. The jitter is an absolute number, zero
    whenever the matrix is numerically positive definite.
    """
    matrix = np.asarray(matrix, dtype=np.float64)
    mean_diagonal = float(np.mean(np.diagonal(matrix)))
    if np.isfinite(mean_diagonal):
        for share in JITTER_LADDER:
            jitter = share * mean_diagonal
            factor = np.array(matrix, order="F")
            factor[np.diag_indices_from(factor)] += jitter
            if factorise_in_place(factor) and np.isfinite(factor[-1, -1]):
                np.copyto(factor, 0.0, where=_above_diagonal(len(factor)))
                return factor, jitter
    raise NumericalError(len(matrix))


@dataclass(frozen=True, eq=False)
class Posterior:
    r"""Gaussian over whitened weights, :math:`N(m, A^{-1})` (Eq. 9, posterior).

    Attributes
    ----------
    mean : (k,) array, k = 2 D
        :math:`m = A^{-1} Z^\top (s v)`, with weights :math:`s` of the rows.
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
    def second_moment(self) -> Array:
        """The uncentred second moment A⁻¹ + m mᵗ, (k, k)."""
        return self.covariance + np.outer(self.mean, self.mean)

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
    return Posterior(
        mean=mean,
        root=root,
        log_determinant=log_determinant,
        quadratic=float(projected @ mean),
        jitter=jitter,
    )


@dataclass(frozen=True)
class WeightMoments:
    """Mean (k,) and covariance (k, k) of the weights: enough for learning, and cheaper."""

    mean: Array
    covariance: Array
    """Of tensors, both may be those of several members, with more axes in front."""

    @property
    def variance_ratio(self) -> Any:
        """(tr A⁻¹ + mᵗm) / k, the factor by which an EM step moves γ."""
        trace = self.covariance.diagonal(0, -2, -1).sum(-1)
        return (trace + dot(self.mean, self.mean)) / self.mean.shape[-1]

    @property
    def second_moment(self) -> Array:
        """The uncentred second moment A⁻¹ + m mᵗ, (k, k)."""
        moment = np.outer(self.mean, self.mean)
        moment += self.covariance
        return moment


def solve_moments(precision: Array, projected: Array) -> WeightMoments:
    """Return the moments with precision ``A`` (k, k) and ``A m`` = ``projected`` (k,)."""
    inverse, _ = factorise(precision)
    mean = cho_solve((inverse, True), projected)
    invert_from_factor(inverse)
    # Below the diagonal is the inverse, above it zeros; in place, since fresh memory slows other
    # threads down.
    lower = scratch("lower", inverse.shape, np.float64)
    np.copyto(lower, inverse)
    np.add(lower, lower.T, out=inverse)
    inverse[np.diag_indices_from(inverse)] *= 0.5
    return WeightMoments(mean, inverse)


def solve_moments_on_device(
    precision: Any, projected: Any, jitter: Any, streams: Sequence[Any]
) -> WeightMoments:
    """Return the moments with precisions ``A`` (M, k, k) and ``A m`` (M, k), all tensors.

    ``jitter`` (1,) is the share of the mean diagonal that is added; a matrix that cannot be
    factorised gives NaN. Nothing waits for the device. There, each matrix is factorised in a
    stream of its own: one takes hardly a hundredth of a card.
    """
    linalg, k = namespace(precision).linalg, precision.shape[-1]
    shift = jitter * precision.diagonal(0, -2, -1).mean(-1, keepdim=True)
    precision.diagonal(0, -2, -1).add_(shift)
    unit = namespace(precision).eye(k, dtype=precision.dtype, device=precision.device)

    def invert(matrix: Any) -> Any:
        factor, failed = linalg.cholesky_ex(matrix)
        factor = namespace(factor).where(failed > 0, np.nan, factor)
        return linalg.solve_triangular(factor, unit, upper=False)

    roots = namespace(precision).stack(in_streams(invert, precision, streams))
    covariance = roots.mT @ roots
    return WeightMoments((covariance @ projected[..., None])[..., 0], covariance)


@lru_cache(maxsize=8)
def _above_diagonal(k: int) -> Array:
    """Return which entries of a (k, k) matrix are above its diagonal."""
    return ~np.tri(k, dtype=bool)


# Prediction


def variance_root(posterior: Posterior, signal_variance: float, tolerance: float = 0.0) -> Array:
    r"""Return a (k, r) matrix R such that the latent variance is :math:`|R^\top z|^2`.

    With ``tolerance`` zero it is exact. Otherwise the directions of least posterior variance
    are dropped: with :math:`A^{-1} = U S U^\top` and :math:`|z|^2 = \gamma`, leaving out
    eigenvalues up to :math:`s` costs at most :math:`s\gamma` in variance, so at most 0.044
    times that in probability. ``tolerance`` bounds the error in probability.

    R is upper triangular: entries below the diagonal that ends in its last row and column
    are zero.
    """
    if tolerance == 0.0:
        return posterior.root.T
    eigenvalues, basis = eigh(posterior.covariance)
    kept = eigenvalues * signal_variance * PROBABILITY_PER_VARIANCE > tolerance
    truncated = basis[:, kept] * np.sqrt(eigenvalues[kept])
    # A rotation from the right does not change |Rᵗz|.
    return np.asarray(rq(truncated, mode="economic")[0]) if kept.any() else truncated


def latent_moments(
    z: Array, mean: Array, root: Array, *, overwrite: bool = False
) -> tuple[Array, Array]:
    """Return the mean and variance of the latent function at features ``z`` (n, k).

    Parameters
    ----------
    z : (n, k) array
        Its rows or its columns must be contiguous. Left as it is unless ``overwrite`` is true.
    mean : (k,) array
    root : (k, r) array
        From :func:`variance_root`, in the precision of ``z``; fastest in Fortran order.
    """
    if is_tensor(z):
        return mean_and_variance(z, mean, root)
    latent = z @ mean
    full_rows = z.shape[1] - root.shape[1]
    spread = z[:, full_rows:]
    if not overwrite:
        spread = scratch("spread", spread.shape, z.dtype)
        np.copyto(spread, z[:, full_rows:])
    root = np.asfortranarray(root)
    multiply_by_triangle(spread, root[full_rows:])
    if full_rows:
        spread += z[:, :full_rows] @ root[:full_rows]
    return latent, row_dots(spread, spread)


def share_of_tolerance(log_ratio: float) -> float:
    """Return the share of a tolerance in probability that roots may use when odds are multiplied.

    With t for the first term of :func:`predictive_log_odds` the slope of the probability in the
    variance is at most π/16 |t| ψ'(t + log r), and ψ' is at most 1/4.
    """
    steepest = PROBABILITY_PER_VARIANCE + np.pi / 64.0 * abs(log_ratio)
    return float(PROBABILITY_PER_VARIANCE / steepest)


@dataclass(frozen=True)
class StagedRoot:
    """A truncated root in two stages: the directions of largest variance, and the rest.

    ``first`` (k, r₁) and ``rest`` (k, r₂) hold eigenvectors times the square root of their
    eigenvalue; ``remainder`` bounds the variance that ``first`` leaves out.
    """

    first: Array
    rest: Array
    remainder: float


def stage_root(
    posterior: Posterior, signal_variance: float, tolerance: float, dtype: npt.DTypeLike
) -> StagedRoot | None:
    """Return the root for :func:`tolerant_probability`, or None if it would not be faster."""
    eigenvalues, basis = eigh(posterior.covariance)
    eigenvalues, basis = eigenvalues[::-1], basis[:, ::-1]
    kept = int(np.sum(eigenvalues * signal_variance * PROBABILITY_PER_VARIANCE > tolerance))
    first = min(int(np.sum(eigenvalues * signal_variance > FIRST_VARIANCE)), kept)
    if first > FIRST_SHARE * len(eigenvalues):
        return None
    root = (basis[:, :kept] * np.sqrt(eigenvalues[:kept])).astype(dtype)
    left_out = float(eigenvalues[first]) if first < len(eigenvalues) else 0.0
    return StagedRoot(
        np.ascontiguousarray(root[:, :first]),
        np.ascontiguousarray(root[:, first:]),
        max(left_out, 0.0) * signal_variance,
    )


def tolerant_probability(
    z: Array,
    mean: Array,
    shift: Array | float,
    root: StagedRoot,
    tolerance: float,
    fresh: Array | float = 0.0,
    log_ratio: float = 0.0,
) -> Array:
    """Return the probability of the second class at features ``z`` (n, k), within ``tolerance``.

    The probability is monotonic in the variance, which lies between that of the first
    directions and that plus the remainder. Where the probabilities at both ends differ by at
    most twice the tolerance, their middle is returned; only the other rows, close to the
    boundary, need the rest of the directions. ``shift`` is added to the latent mean, ``fresh`` to
    the variance, (n,) each, ``log_ratio`` to the log odds of the probability.
    """
    xp = namespace(z)
    latent = double(z @ mean) + shift
    spread = z @ root.first
    low = double(row_dots(spread, spread)) + fresh
    ends = tuple(
        expected_sigmoid(latent, variance, log_ratio) for variance in (low, low + root.remainder)
    )
    probability = 0.5 * (ends[0] + ends[1])
    unsure = xp.flatnonzero(xp.abs(ends[0] - ends[1]) > 2.0 * tolerance)
    if len(unsure):
        spread = z[unsure] @ root.rest
        variance = low[unsure] + row_dots(spread, spread)
        probability[unsure] = expected_sigmoid(latent[unsure], variance, log_ratio)
    return probability


def predictive_log_odds(mean: Array, variance: Array, log_ratio: Array | float = 0.0) -> Array:
    r"""Return :math:`\mu / \sqrt{1 + \tfrac{\pi}{8} s} + \log r`, the log odds of a prediction.

    The first term is the paper's Eq. 12, about the log odds of the mean of :math:`\psi(f)` over
    :math:`f \sim N(\mu, s)`. By Bayes' rule other frequencies of the classes multiply these odds
    by the ratio r.
    """
    return mean / namespace(variance).sqrt(1.0 + np.pi / 8.0 * variance) + log_ratio


def expected_sigmoid(mean: Array, variance: Array, log_ratio: float = 0.0) -> Array:
    """Return the probability with the log odds of :func:`predictive_log_odds`."""
    return expit(predictive_log_odds(mean, variance, log_ratio))


def expected_sigmoids(
    mean: Array, variance: Array, log_ratio: Array | float = 0.0
) -> tuple[Array, Array]:
    """Return the probabilities of the first class and of the second, by one exponential.

    Neither is one minus the other: that would round a tiny probability away.
    """
    xp = namespace(variance)
    scaled = predictive_log_odds(mean, variance, log_ratio)
    shrunk = xp.exp(-xp.abs(scaled))
    larger = 1.0 / (1.0 + shrunk)
    smaller = shrunk * larger
    positive = scaled > 0.0
    return xp.where(positive, smaller, larger), xp.where(positive, larger, smaller)
