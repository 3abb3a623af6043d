r"""The lower bound on the log evidence: the logistic bound, summed over blocks of pixels.

For any :math:`f` and :math:`\xi` (Jaakkola and Jordan),

.. math:: \log\psi(f) \ge \tfrac12 f - \lambda(\xi)\,(f^2 - \xi^2)
    - \tfrac12\xi - \log(1 + e^{-\xi}),
    \qquad \lambda(\xi) = \frac{\tanh(\xi/2)}{4\xi},

with equality at :math:`f = \pm\xi`. It is quadratic in :math:`f`, so a Gaussian prior on
:math:`f` gives a Gaussian posterior. With features :math:`Z` that carry the signal variance,
:math:`v = y - 1/2`, weights :math:`s` and :math:`\lambda = \lambda(\xi)` (Eqs. 8 and 9,
varGlobal and posterior, whitened):

.. math::
    A = Z^\top \mathrm{diag}(2 s\lambda) Z + I, \qquad m = A^{-1} Z^\top (s v), \\
    2 \log F = m^\top A m - \log|A|
        + 2 \sum_i s_i \bigl[\lambda_i\xi_i^2 - \tfrac12\xi_i - \log(1 + e^{-\xi_i})\bigr].

Here :math:`A` is k x k and :math:`m` has k entries, with :math:`k = 2D` features. Every sum over
pixels is a sum over blocks. The loop of Algorithm 1 that raises the bound is in
:mod:`undulatus.gp.batch`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dptsv
from scipy.optimize import minimize_scalar

from undulatus.gp.arrays import (
    Array,
    dot,
    double,
    empty_like,
    give_back,
    is_tensor,
    like,
    namespace,
    rounding,
    row_dots,
    scratch,
    to_host,
    weighted_gram,
)
from undulatus.gp.blocks import Block, Pixels, PixelSource
from undulatus.gp.damping import damping
from undulatus.gp.fourier import fourier_features, frequency_gradient, mean_gradient
from undulatus.gp.posterior import (
    Posterior,
    WeightMoments,
    latent_moments,
    solve_moments,
    solve_posterior,
)
from undulatus.gp.triangular import tridiagonalise

TOTAL_BYTES = 64 * 2**20
"""Latent functions share a pass as long as their Gram matrices take no more than this."""

TILE_WIDTH, MOST_STRIPS = 100, 2
"""Smallest width of the tiles of a gram matrix that threads share, and most strips of them."""

OUT_OF_REACH = 1e100
"""A loss that no other reaches, and that can be calculated with."""

# The bound on one logistic likelihood


def half_slope(xi: Array) -> Array:
    """Return λ(ξ) = tanh(ξ/2) / (4ξ), with its limit 1/8 at zero.

    It equals the paper's (ψ(ξ) - 1/2) / (2ξ), half the slope of the sigmoid's chord from 0 to ξ.
    """
    # tanh form: sigmoid(xi) - 1/2 cancels below 1e-8. tanh(x)/x is 1 to the last digit there.
    xp = namespace(xi)
    xi = xp.maximum(xp.abs(xi), rounding(xi) ** 0.5 / 8)
    return xp.tanh(0.5 * xi) / (4.0 * xi)


def offset(xi: Array) -> Array:
    """Return λ(ξ)ξ² - ξ/2 - log(1 + exp(-ξ)), the part of the bound that does not contain f.

    It equals log C of the paper, λ(ξ)ξ² + ξ/2 - log(1 + exp(ξ)), and cannot overflow.
    """
    xp = namespace(xi)
    return half_slope(xi) * xi**2 - 0.5 * xi - xp.log1p(xp.exp(-xi))


def log_sigmoid_bound(f: Array, xi: Array) -> Array:
    """Return the lower bound on log ψ(f) that touches it at f = ±ξ (ξ >= 0)."""
    return 0.5 * f - half_slope(xi) * f**2 + offset(xi)


# Sums over all pixels


@dataclass(frozen=True)
class Statistics:
    """Sums over pixels that determine the posterior and the bound.

    ``gram`` is Zᵗ diag(2sλ) Z (k, k), ``projected`` is Zᵗ(sv) (k,), and ``offset`` is the
    sum of the terms in ξ alone; all in double precision. With damped waves, ``fresh`` is the sum
    of 2sλ(1 - d²)γ.
    """

    gram: Array
    projected: Array
    offset: float
    fresh: float = 0.0

    def __add__(self, other: Statistics) -> Statistics:
        return Statistics(
            self.gram + other.gram,
            self.projected + other.projected,
            self.offset + other.offset,
            self.fresh + other.fresh,
        )

    def rescale(self, ratio: float) -> Statistics:
        """Return the statistics of features whose signal variance is ``ratio`` times as large."""
        return Statistics(
            self.gram * ratio, self.projected * np.sqrt(ratio), self.offset, self.fresh * ratio
        )

    def posterior(self) -> Posterior:
        """Return the posterior of the whitened weights."""
        return solve_posterior(self._precision(), self.projected)

    def moments(self) -> WeightMoments:
        """Return the posterior's mean and covariance alone, which is cheaper."""
        return solve_moments(self._precision(), self.projected)

    def _precision(self) -> Array:
        precision = self.gram.copy()
        precision[np.diag_indices_from(precision)] += 1.0
        return precision

    def bound(self, posterior: Posterior) -> float:
        """Return log F, the lower bound on the log evidence."""
        fitted = posterior.quadratic - posterior.log_determinant - self.fresh
        return 0.5 * fitted + self.offset


@dataclass(frozen=True)
class _Totals:
    """Statistics of several latent functions."""

    of_each: tuple[Statistics, ...]

    def __add__(self, other: _Totals) -> _Totals:
        pairs = zip(self.of_each, other.of_each, strict=True)
        return _Totals(tuple(own + new for own, new in pairs))


def total_of_each(
    pixels: PixelSource,
    function: Callable[..., Statistics],
    frequencies: Array,
    signal_variances: Sequence[float],
    parameters: Sequence[tuple[Any, ...]],
    *,
    latents: Sequence[int] | None = None,
    spread: Array | None = None,
) -> list[Statistics]:
    """Return the statistics of several latent functions, by one pass over all pixels.

    ``function(z, fresh, block, *parameters)`` is summed over blocks, with the features and the
    fresh variance of each latent function's γ, its targets, and its own ``parameters``. The
    features of a block are computed once. ``latents`` are their numbers, all if None; ``spread``
    (d,) damps the waves.
    """
    numbers = range(len(signal_variances)) if latents is None else latents
    each = list(zip(numbers, signal_variances, parameters, strict=True))
    at_once = max(1, TOTAL_BYTES // (8 * (2 * len(frequencies)) ** 2))
    totals: list[Statistics] = []
    for first in range(0, len(each), at_once):
        some = each[first : first + at_once]
        totals += pixels.total(
            _block_totals, _sum_totals, function, frequencies, spread, some
        ).of_each
    return totals


def _block_totals(
    block: Block,
    function: Callable[..., Statistics],
    frequencies: Array,
    spread: Array | None,
    latents: Sequence[tuple[int, float, tuple[Any, ...]]],
) -> _Totals:
    _, last, _ = latents[0]
    z, fresh = damped_features(block, frequencies, last, spread)
    found = []
    for latent, signal_variance, parameters in latents:
        fresh = rescale_features(z, fresh, signal_variance / last)
        last = signal_variance
        found.append(function(z, fresh, block.against_rest(latent), *parameters))
    return _Totals(tuple(found))


def _sum_totals(parts: Iterator[_Totals]) -> _Totals:
    total = list(next(parts).of_each)
    for part in parts:
        total = [sum_statistics(iter(pair)) for pair in zip(total, part.of_each, strict=True)]
    return to_host(_Totals(tuple(total)))


def accumulate(
    pixels: PixelSource, frequencies: Array, signal_variance: float, xi: Array
) -> Statistics:
    """Return the statistics of all pixels at fixed ξ (n,)."""
    return accumulate_each(pixels, frequencies, [signal_variance], [xi])[0]


def accumulate_each(
    pixels: PixelSource,
    frequencies: Array,
    signal_variances: Sequence[float],
    xi: Sequence[Array],
) -> list[Statistics]:
    """Return the statistics of each latent function at its own γ and fixed ξ (n,)."""
    parameters = [(own,) for own in xi]
    return total_of_each(pixels, _statistics_at, frequencies, signal_variances, parameters)


def _statistics_at(z: Array, fresh: Array, block: Block, xi: Array) -> Statistics:
    return block_statistics(z, block, xi[block.rows], fresh)


def tighten(
    pixels: PixelSource,
    frequencies: Array,
    signal_variance: float,
    posterior: Posterior,
    xi: Array | None = None,
    *,
    spread: Array | None = None,
    levels: tuple[float, float] = (0.0, 0.0),
) -> Statistics:
    """Return the statistics at the optimal ξ under ``posterior``, and write it to ``xi`` (n,).

    See :func:`tighten_each`.
    """
    own = [signal_variance], [posterior], [xi]
    return tighten_each(pixels, frequencies, *own, spread=spread, levels=[levels])[0]


def tighten_each(
    pixels: PixelSource,
    frequencies: Array,
    signal_variances: Sequence[float],
    posteriors: Sequence[Posterior],
    xi: Sequence[Array | None],
    *,
    latents: Sequence[int] | None = None,
    spread: Array | None = None,
    levels: Sequence[tuple[float, float]] | None = None,
) -> list[Statistics]:
    """Return each latent function's statistics at its optimal ξ, and write that to ``xi`` (n,).

    Pass None for ``xi`` when the next step does not need it: the posterior alone determines the
    next optimum. ``spread`` (d,) damps the waves (see :mod:`undulatus.gp.damping`); ``levels``
    are those under which a posterior was found, and that of its statistics, all 0 if None.
    """
    parameters = [
        (
            pixels.place.array(posterior.mean),
            pixels.place.fortran(posterior.root.T),
            own,
            own_levels,
        )
        for posterior, own, own_levels in zip(
            posteriors, xi, levels or [(0.0, 0.0)] * len(posteriors), strict=True
        )
    ]
    return total_of_each(
        pixels,
        _tight_statistics,
        frequencies,
        signal_variances,
        parameters,
        latents=latents,
        spread=spread,
    )


def _tight_statistics(
    z: Array,
    fresh: Array,
    block: Block,
    mean: Array,
    root: Array,
    xi: Array | None,
    levels: tuple[float, float],
) -> Statistics:
    # Through the triangle L⁻¹: half the work of the product with A⁻¹ + m mᵗ.
    latent, variance = latent_moments(z, mean, root)
    tight = namespace(z).sqrt(variance + fresh + (latent + levels[0]) ** 2)
    if xi is not None:
        xi[block.rows] = tight
    return block_statistics(z, block, tight, fresh, levels[1])


def bound_gradient(
    pixels: Pixels,
    frequencies: Array,
    signal_variances: Sequence[float],
    posteriors: Sequence[Posterior],
    xi: Sequence[Array],
) -> Array:
    r"""Return the gradient of log F in the frequencies, (D, d), by one product a latent function.

    .. math:: \partial \log F / \partial Z =
        (s v) m^\top - \mathrm{diag}(2 s\lambda)\, Z\, (A^{-1} + m m^\top)

    The posteriors must be those at these frequencies, γ and ξ. Their gradients are added.
    """
    place = pixels.place
    second_moments = [place.array(own.second_moment) for own in posteriors]
    means = [place.array(own.mean) for own in posteriors]

    def block_gradient(block: Block) -> Array:
        z, fresh = damped_features(block, frequencies, signal_variances[0], None)
        gradient, last = 0.0, signal_variances[0]
        for latent, own in enumerate(signal_variances):
            rescale_features(z, fresh, own / last)
            last, targets = own, block.against_rest(latent)
            product = moment_product(z, second_moments[latent])
            in_features = feature_gradient(product, targets, xi[latent][block.rows], means[latent])
            gradient = gradient + double(frequency_gradient(in_features, z, block.x))
        return to_host(gradient)

    total = np.zeros(frequencies.shape)
    for gradient in pixels.map(block_gradient):
        total += gradient
    return total


def log_variance_gradient(posterior: Posterior) -> float:
    """Return the gradient of log F in log γ: (tr A⁻¹ + mᵗm - k) / 2."""
    trace = float(np.sum(posterior.root**2))
    return 0.5 * (trace + float(posterior.mean @ posterior.mean) - len(posterior.mean))


def best_variance_ratio(statistics: Statistics, low: float = 0.1, high: float = 10.0) -> float:
    r"""Return the factor on γ, within [low, high], that maximises log F at fixed ξ.

    :math:`2 \log F(r) = r c^\top (I + r G)^{-1} c - \log|I + r G| - r f` plus terms in ξ alone,
    with the gram matrix G, c = ``projected`` and f = ``fresh``: no pass over the pixels.
    """
    if low >= high:
        return 1.0
    return best_gram_ratio(
        statistics.gram,
        [statistics.projected],
        low,
        high,
        lambda ratio: [1.0],
        lambda ratio: -ratio * statistics.fresh,
    )


def best_gram_ratio(
    gram: Array,
    vectors: Sequence[Array],
    low: float,
    high: float,
    shares: Callable[[float], Sequence[float]],
    rest: Callable[[float], float],
) -> float:
    r"""Return the r in [low, high] that maximises a bound under a gram matrix G (k, k).

    The bound is :math:`r c^\top (I + r G)^{-1} c - \log|I + r G|` plus a rest, where c is the sum
    of ``vectors`` (k,) by their shares; these and the rest may depend on r. r is 1 if that is
    better than the optimum found.
    """
    # In a basis where G is tridiagonal each r costs O(k); to find one is a third of the work of
    # an eigendecomposition.
    diagonal, beside, rotated = tridiagonalise(gram, np.column_stack(vectors))

    def loss(log_ratio: float) -> float:
        ratio = float(np.exp(log_ratio))
        c = rotated @ shares(ratio)
        factors, _, solved, failed = dptsv(1.0 + ratio * diagonal, ratio * beside, c)
        if failed:
            # By rounding alone: such a ratio is out of reach.
            return OUT_OF_REACH
        return float(np.sum(np.log(factors)) - ratio * (c @ solved)) - rest(ratio)

    return _best_ratio(loss, low, high)


def best_eigenvalue_ratio(
    eigenvalues: Array,
    low: float,
    high: float,
    projected: Callable[[float], Array],
    rest: Callable[[float], float],
) -> float:
    r"""Return the r in [low, high] that maximises a bound in the eigenbasis of the gram matrix.

    The bound is :math:`\sum_j [r c_j^2 / (1 + r e_j) - \log(1 + r e_j)]` plus a rest; the
    projections c and the rest may depend on r. r is 1 if that is better than the optimum found.
    """

    def loss(log_ratio: float) -> float:
        ratio = float(np.exp(log_ratio))
        scaled = ratio * eigenvalues
        fitted = ratio * projected(ratio) ** 2 / (1.0 + scaled)
        return float(np.sum(np.log1p(scaled) - fitted)) - rest(ratio)

    return _best_ratio(loss, low, high)


def _best_ratio(loss: Callable[[float], float], low: float, high: float) -> float:
    """Return the r in [low, high] with the least loss of its logarithm, or 1 if that is better."""
    limits = (float(np.log(low)), float(np.log(high)))
    optimum = minimize_scalar(loss, bounds=limits, method="bounded")
    return float(np.exp(optimum.x)) if optimum.fun < loss(0.0) else 1.0


# Sums over one block


def block_features(block: Block, frequencies: Array, signal_variance: float) -> Array:
    """Return a block's features, (n, k), in this thread's scratch."""
    shape = (*block.x.shape[:-1], 2 * frequencies.shape[-2])
    z = empty_like("z", tuple(shape), block.x)
    return fourier_features(block.x, frequencies, signal_variance, out=z)


def damped_features(
    block: Block, frequencies: Array, signal_variance: float, spread: Array | None
) -> tuple[Array, Array]:
    """Return a block's features d z, (n, k), and the fresh variance (1 - d²) γ, (n,).

    Without a ``spread`` (d,), d is 1 (see :mod:`undulatus.gp.damping`).
    """
    z = block_features(block, frequencies, signal_variance)
    if spread is None:
        return z, namespace(z).zeros_like(z[..., 0])
    share = damping(block.x, spread)
    z *= share[..., None]
    return z, (1.0 - share**2) * _per_row(signal_variance, z)


def moment_product(z: Array, moment: Array) -> Array:
    """Return the product z M (n, k) of features and a moment (k, k), in this thread's scratch."""
    return namespace(z).matmul(z, moment, out=empty_like("moment product", tuple(z.shape), z))


def rescale_features(z: Array, fresh: Array, ratio: float) -> Array:
    """Make features (n, k), in place, those of ``ratio`` times the signal variance.

    Returns the fresh variance (n,) for it.
    """
    if not is_tensor(ratio) and ratio == 1.0:
        return fresh
    z *= like(namespace(ratio).sqrt(ratio), z)
    return fresh * _per_row(ratio, z)


def block_statistics(
    z: Array, block: Block, xi: Array, fresh: Array | float = 0.0, level: float = 0.0
) -> Statistics:
    """Return the sums over one block, for features ``z`` (n, k) and local parameters ξ (n,).

    The latent function has a ``level`` beside its waves, and the ``fresh`` variance (n,).
    """
    precision = 2.0 * block.weight * half_slope(xi)
    target = block.weight * block.v
    constant = dot(double(block.weight), offset(double(xi)))
    constant = constant - 0.5 * level**2 * _sum(precision) + level * _sum(target)
    return Statistics(
        weighted_gram(z, precision),
        double(project(z, target - level * precision)),
        constant,
        _sum(precision * fresh),
    )


def sampled_gradient(
    z: Array, fresh: Array, block: Block, mean: Array, covariance: Array, sampled: int
) -> tuple[Array, Array]:
    r"""Return each pixel's precision 2sλ, and the gradient of log F in the frequencies.

    With the latent mean :math:`\mu_i = z_i^\top m` and :math:`\lambda_i = \lambda(\xi_i)`,

    .. math:: \partial \log F / \partial z_i = s_i (v_i - 2 \lambda_i \mu_i)\, m
        - 2 s_i \lambda_i\, A^{-1} z_i.

    The product with :math:`A^{-1}` is most of the work, so only the first rows are multiplied by
    it: their second terms stand for those of all rows, and their mean variance for the variance
    of each of the others in :math:`\xi^2 = z^\top A^{-1} z + \mu^2`.

    Parameters
    ----------
    z, fresh : (n, k) and (n,) arrays
        Features, and the fresh variance. These and all others may be those of several members,
        with one more axis in front.
    block : Block
        Of n rows.
    mean, covariance : (k,) and (k, k) arrays
        m and A⁻¹.
    sampled : int
        Rows that are multiplied by the covariance.

    Returns
    -------
    (n,) and (D, d) arrays
    """
    xp, own = namespace(z), z[..., :sampled, :]
    latent, product = (z @ mean[..., None])[..., 0], moment_product(own, covariance)
    variance = xp.empty_like(latent)
    variance[..., :sampled] = xp.maximum(row_dots(product, own), 0.0)
    variance[..., sampled:] = xp.mean(variance[..., :sampled], axis=-1)[..., None]
    xi = xp.sqrt(variance + fresh + latent**2)
    precision = 2.0 * block.weight * half_slope(xi)
    pull = block.weight * block.v - precision * latent
    product *= (precision[..., :sampled] * -(z.shape[-2] / sampled))[..., None]
    gradient = frequency_gradient(product, own, block.x[..., :sampled, :])
    gradient += mean_gradient(pull, mean, z, block.x)
    return precision, gradient


def blend_gram(
    gram: Array, scaled: Array, tile: tuple[slice, slice], keep: float, gain: float
) -> None:
    """Blend a tile of a gram matrix (k, k), and its mirror image, with that of features (n, k).

    It becomes ``keep`` times its last value plus ``gain`` times that of ``scaled``.
    """
    rows, columns = tile
    own = gram[rows, columns]
    product = scratch("product", own.shape, scaled.dtype)
    np.matmul(scaled[:, rows].T, scaled[:, columns], out=product)
    product *= gain
    own *= keep
    own += product
    if rows != columns:
        gram[columns, rows] = own.T


def gram_tiles(k: int) -> list[tuple[slice, slice]]:
    """Return the tiles of a gram matrix (k, k) on and below its diagonal."""
    strips = max(1, min(k // TILE_WIDTH, MOST_STRIPS))
    edges = np.linspace(0, k, strips + 1).astype(int).tolist()
    parts = [slice(*ends) for ends in itertools.pairwise(edges)]
    return [(rows, columns) for i, rows in enumerate(parts) for columns in parts[: i + 1]]


def project(z: Array, values: Array) -> Array:
    """Return Zᵗ values, (k,), or of several members (M, k)."""
    return z.T @ values if z.ndim == 2 else (z.mT @ values[..., None])[..., 0]


def _sum(values: Array) -> Any:
    """Return the sum over rows in double precision: a number, or a tensor of one a member."""
    total = values.sum(-1, dtype=namespace(values).float64)
    return total if is_tensor(total) else float(total)


def _per_row(value: Any, z: Array) -> Any:
    """Return a number in the precision of features, or those of members to multiply rows by."""
    return like(value, z) if not is_tensor(value) else like(value, z)[..., 0]


def feature_gradient(moment_product: Array, block: Block, xi: Array, mean: Array) -> Array:
    """Return one block's gradient of log F in its features, (n, k).

    ``moment_product`` is z (A⁻¹ + m mᵗ), the only product needed; it is overwritten.
    """
    gradient = moment_product
    gradient *= (-2.0 * block.weight * half_slope(xi))[..., None]
    outer = empty_like("outer", tuple(gradient.shape), gradient)
    targets, mean = (block.weight * block.v)[..., None], like(mean, gradient)[..., None, :]
    gradient += namespace(gradient).multiply(targets, mean, out=outer)
    return gradient


def sum_statistics(parts: Iterator[Statistics]) -> Statistics:
    """Return the sum of blocks' statistics, in order; the blocks' gram matrices are reused.

    The gram matrix of the sum is that of the first block: it may be given back.
    """
    total = next(parts)
    gram, projected = total.gram, 1.0 * total.projected
    constant, fresh = total.offset, total.fresh
    for part in parts:
        gram += part.gram
        projected += part.projected
        constant += part.offset
        fresh += part.fresh
        give_back(part.gram)
    return Statistics(gram, projected, constant, fresh)
