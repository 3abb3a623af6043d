r"""The Gaussian posterior of the weights that is nearest to the true one.

The bound of :mod:`undulatus.gp.bound` is quadratic in the latent function, which makes learning
frequencies fast, but its parabolas are too steep: the variance of its posterior is too small.
The passes here start from that posterior and maximise, over all Gaussians
:math:`q = N(m, A^{-1})` of the whitened weights, the tighter bound

.. math:: \log F = \sum_i s_i\, \mathbb E_q \log\psi(\pm f_i) - \mathrm{KL}(q \,\|\, N(0, I)).

With :math:`c_i = \mathbb E_q\,\psi'(f_i)` and residuals
:math:`r_i = y_i - \mathbb E_q\,\psi(f_i)`, its natural gradient leads to

.. math:: A = I + Z^\top \mathrm{diag}(s c) Z, \qquad A m = Z^\top s (r + c \mu),

where :math:`\mu_i = z_i^\top m` is the latent mean under :math:`q` but for its level: the
products of the other bound with other numbers a pixel. A full step is nearly Newton's. It is
halved when it lowers the bound, so that the bound never falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from scipy.linalg import eigh

from undulatus.gp.blocks import Array, Block, PixelSource
from undulatus.gp.bound import (
    Statistics,
    accumulate,
    best_eigenvalue_ratio,
    damped_features,
    sum_statistics,
    tighten,
    weighted_gram,
)
from undulatus.gp.damping import level, spreads
from undulatus.gp.passes import (
    LatentFit,
    PosteriorFit,
    fit_posterior,
    stall_limit,
    variance_ratio_limits,
)
from undulatus.gp.posterior import Posterior, latent_moments

START_PASSES = 3
"""Passes with the quadratic bound before the first step from its posterior."""

MAX_PASSES = 25
"""Most passes, those that were taken back included."""

SMALLEST_SHARE = 1.0 / 64.0
"""The fit ends when a smaller share of a step would be needed to raise the bound."""

ROUNDING = 0.01
"""A bound that falls by less than this times the tolerance has stalled; if it falls by more, the
step was too long."""

SMALLEST_CURVATURE = 1e-18
"""A floor on E ψ'(f), so that every pixel keeps some precision."""

_NODES, _NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(16)
_NODE_WEIGHTS = _NODE_WEIGHTS / _NODE_WEIGHTS.sum()


# Expectations under a Gaussian


def expected_log_sigmoid(mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    r"""Return :math:`\mathbb E \log\psi(f)` for :math:`f \sim N(\mu, s)`, and its slopes.

    Gauss-Hermite quadrature in double precision.

    Returns
    -------
    value, slope, curvature : (n,) arrays
        The expectation; its derivative in :math:`\mu`, which is
        :math:`\mathbb E\,\psi(-f)`; and -2 times its derivative in :math:`s`, which is
        :math:`\mathbb E\,\psi'(f)` and never negative.
    """
    mean = mean.astype(np.float64)
    # Below 1e-6 the nodes are too close for the differences that make the curvature.
    deviation = np.maximum(np.sqrt(variance.astype(np.float64)), 1e-6)
    value, slope, curvature = (np.zeros(len(mean)) for _ in range(3))
    for node, weight in zip(_NODES, _NODE_WEIGHTS, strict=True):
        f = mean + node * deviation
        decay = np.exp(-np.abs(f))
        opposite = np.where(f > 0.0, decay, 1.0) / (1.0 + decay)
        value += weight * (np.minimum(f, 0.0) - np.log(1.0 + decay))
        slope += weight * opposite
        # Not the mean of ψ'(f): between nodes that are far apart its peak would be missed.
        curvature -= weight * node * opposite
    # Where ψ is 1 or 0 to the last digit, rounding could make the curvature negative.
    return value, slope, np.maximum(curvature / deviation, SMALLEST_CURVATURE)


# Steps that never lower the bound


class HasBound(Protocol):
    """A state of an ascent whose bound is known."""

    @property
    def bound(self) -> float:
        """The bound on the log evidence (nats)."""
        ...


State = TypeVar("State", bound=HasBound)


def ascend_naturally(
    start: State,
    advance: Callable[[State, float], State],
    *,
    max_passes: int,
    tol: float,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> Iterator[State]:
    """Yield ``start``, and the state after each step that did not lower the bound.

    ``advance(state, share)`` makes a share of a full step; the share is halved whenever the
    bound falls. The ascent ends when a step changes the bound by less than ``tol`` of its
    size, when a small share does not help, or after ``max_passes`` states, ``start`` and those
    that were taken back included.
    """
    current, share = start, 1.0
    yield current
    for done in range(1, max_passes):
        report(done, current.bound)
        following = advance(current, share)
        growth, limit = following.bound - current.bound, stall_limit(current.bound, tol)
        if growth >= 0.0:
            current = following
            yield current
        elif growth < -ROUNDING * limit:
            share *= 0.5
            limit = 0.0
        if abs(growth) < limit or share < SMALLEST_SHARE:
            return


# Passes over all pixels


def fit_final_posterior(
    pixels: PixelSource,
    frequencies: Array,
    signal_variance: float,
    xi: Array | None,
    *,
    variational: bool,
    max_passes: int,
    bound_tol: float,
    tol: float,
    spread: Array | None = None,
    log_odds: float = 0.0,
    initial_posterior: Posterior | None = None,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> PosteriorFit:
    """Return the posterior to predict with, by interruptible passes at the final frequencies.

    It is that of the quadratic bound, to the tolerance ``bound_tol`` and without a level, or, if
    ``variational``, that of :func:`fit_variational` to the tolerance ``tol``, with the level of
    ``log_odds``, started from a few passes with the quadratic bound at fixed γ.
    """
    if not variational:
        return fit_posterior(
            pixels,
            frequencies,
            signal_variance,
            xi,
            max_passes=max_passes,
            tol=bound_tol,
            spread=spread,
            initial_posterior=initial_posterior,
            interruptible=True,
            report=report,
        )
    if initial_posterior is None:
        assert xi is not None
        initial_posterior = accumulate(pixels, frequencies, signal_variance, xi).posterior()
    prior = WavePrior(frequencies, spread, log_odds)
    start = _fit_start(pixels, prior, signal_variance, initial_posterior)
    if start.interrupted:
        return start
    return fit_variational(
        pixels,
        prior,
        start,
        max_passes=max_passes,
        tol=tol,
        interruptible=True,
        report=report,
    )


def fit_latents(
    pixels: PixelSource,
    frequencies: Array,
    signal_variances: Sequence[float],
    xi: Sequence[Array | None],
    initial_posteriors: Sequence[Posterior | None],
    *,
    spread: float,
    log_odds: Array,
    interrupted: bool,
    max_passes: int,
    **options: Any,
) -> tuple[tuple[LatentFit, ...], bool]:
    """Return the latent functions at the final frequencies, and whether a fit was interrupted.

    Each is that of :func:`fit_final_posterior`, from its own signal variance, ξ or posterior.
    After an interrupt one pass has to do.
    """
    latents = []
    for latent, own_log_odds in enumerate(log_odds.tolist()):
        final = fit_final_posterior(
            pixels.against_rest(latent),
            frequencies,
            signal_variances[latent],
            xi[latent],
            max_passes=1 if interrupted else max_passes,
            spread=spreads(frequencies, spread) if spread else None,
            log_odds=own_log_odds,
            initial_posterior=initial_posteriors[latent],
            **options,
        )
        interrupted = interrupted or final.interrupted
        own_level = level(own_log_odds, final.signal_variance)
        latents.append(LatentFit(final.signal_variance, final.posterior, final.bounds, own_level))
    return tuple(latents), interrupted


@dataclass(frozen=True)
class WavePrior:
    """What of the latent function stays the same in the passes (see :mod:`.damping`)."""

    frequencies: Array
    spread: Array | None = None
    """Deviation of each feature's frequencies, (d,), if waves are damped."""
    log_odds: float = 0.0
    """Log odds of the second class far from the training data."""

    def level(self, signal_variance: float) -> float:
        """Return the level b of the latent function."""
        return level(self.log_odds, signal_variance)


def _fit_start(
    pixels: PixelSource,
    prior: WavePrior,
    signal_variance: float,
    posterior: Posterior,
) -> PosteriorFit:
    """Return the posterior after a few passes with the quadratic bound, at fixed γ.

    ``posterior`` is one without a level. Unlike the steps that follow, these passes cannot
    overshoot, however far they have to go. An interrupt ends them after the last finished one.
    """
    own = prior.level(signal_variance)
    fit = None
    try:
        for last in (0.0, *[own] * (START_PASSES - 1)):
            statistics = tighten(
                pixels,
                prior.frequencies,
                signal_variance,
                posterior,
                spread=prior.spread,
                levels=(last, own),
            )
            posterior = statistics.posterior()
            bound = statistics.bound(posterior)
            fit = PosteriorFit(signal_variance, statistics, posterior, (bound,))
    except KeyboardInterrupt:
        if fit is None:
            raise
        return replace(fit, interrupted=True)
    assert fit is not None
    return fit


@dataclass(frozen=True)
class _Sites:
    """Sums over pixels of the Gaussian factors that stand for the likelihood, for any level.

    With c_i the precision of a pixel's factor and h_i that times its centre, both times its
    weight: ``gram`` Zᵗ diag(c) Z, ``projected`` Zᵗh, ``pull`` Zᵗc, and the sums of h, of c, and of
    c times the fresh variance. At the level b the posterior has A = I + gram, A m = Zᵗ(h - b c).
    """

    gram: Array
    projected: Array
    pull: Array
    sums: Array
    """Of h, c, and c times the fresh variance, (3,)."""

    def mix(self, other: _Sites, share: float) -> _Sites:
        """Return these sites moved towards ``other`` by a share of the way."""
        return _Sites(
            *(
                (1.0 - share) * own + share * new
                for own, new in zip(self._arrays, other._arrays, strict=True)
            )
        )

    @property
    def _arrays(self) -> tuple[Array, ...]:
        return self.gram, self.projected, self.pull, self.sums

    def best_variance_ratio(self, prior: WavePrior, variance: float) -> float:
        """Return the factor on γ with the best bound; the level moves with γ."""
        eigenvalues, basis = eigh(self.gram)
        projected, pull = basis.T @ self.projected, basis.T @ self.pull
        targets, precisions, fresh = self.sums

        def own_level(ratio: float) -> float:
            return prior.level(ratio * variance)

        def rest(ratio: float) -> float:
            b = own_level(ratio)
            return float(2.0 * b * targets - b**2 * precisions - ratio * fresh)

        return best_eigenvalue_ratio(
            np.maximum(eigenvalues, 0.0),
            *variance_ratio_limits(variance),
            lambda ratio: projected - own_level(ratio) * pull,
            rest,
        )

    def statistics(self, own_level: float, ratio: float) -> Statistics:
        """Return the statistics at a level, for a signal variance ``ratio`` times as large."""
        return Statistics(self.gram, self.projected - own_level * self.pull, 0.0).rescale(ratio)

    def rescale(self, ratio: float) -> _Sites:
        """Return the sites of features whose signal variance is ``ratio`` times as large."""
        root = np.sqrt(ratio)
        sums = self.sums * np.array([1.0, 1.0, ratio])
        return _Sites(self.gram * ratio, self.projected * root, self.pull * root, sums)


@dataclass(frozen=True)
class _Evaluated:
    """A posterior with the sites it came from, its bound, and where a full step leads."""

    signal_variance: float
    sites: _Sites
    posterior: Posterior
    target: _Sites
    bound: float


def fit_variational(
    pixels: PixelSource,
    prior: WavePrior,
    start: PosteriorFit,
    *,
    max_passes: int = MAX_PASSES,
    tol: float = 0.0,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> PosteriorFit:
    """Maximise the bound over Gaussian posteriors and γ at fixed frequencies, from ``start``.

    Each pass reads the pixels once. The returned bounds are that of the start's posterior, then
    that after each step that was kept: they never fall. The fit ends when a step changes the
    bound by less than ``tol`` of its size. If ``interruptible``, a KeyboardInterrupt after the
    first pass ends it at the last step that was kept.
    """
    first = _evaluate(pixels, prior, start.signal_variance, start.posterior)
    first = replace(first, sites=_sites_of(start, prior, first.target))
    fit = replace(start, bounds=(first.bound,))
    try:
        for kept in ascend_naturally(
            first,
            lambda last, share: _advance(pixels, prior, last, share),
            max_passes=max_passes,
            tol=tol,
            report=report,
        ):
            if kept is not first:
                statistics = kept.sites.statistics(prior.level(kept.signal_variance), 1.0)
                fit = PosteriorFit(
                    kept.signal_variance, statistics, kept.posterior, (*fit.bounds, kept.bound)
                )
    except KeyboardInterrupt:
        if not interruptible:
            raise
        fit = replace(fit, interrupted=True)
    return fit


def _evaluate(
    pixels: PixelSource, prior: WavePrior, signal_variance: float, posterior: Posterior
) -> _Evaluated:
    """Return the bound of a posterior and where a full step leads, by one pass."""
    own_level, k = prior.level(signal_variance), len(posterior.mean)
    total = pixels.total(
        _block_sums,
        sum_statistics,
        prior.frequencies,
        signal_variance,
        prior.spread,
        own_level,
        posterior.mean.astype(pixels.dtype),
        posterior.root.T.astype(pixels.dtype, order="F"),
    )
    residuals, pull, sums = np.split(total.projected, [k, 2 * k])
    # Zᵗ(scμ) from the sum over all pixels: in single precision it would drown Zᵗ(sr).
    projected = residuals + total.gram @ posterior.mean + own_level * pull
    targets = sums[0] + pull @ posterior.mean + own_level * sums[1]
    target = _Sites(total.gram, projected, pull, np.array([targets, sums[1], total.fresh]))
    bound = total.offset - posterior.divergence
    return _Evaluated(signal_variance, target, posterior, target, bound)


def _sites_of(start: PosteriorFit, prior: WavePrior, target: _Sites) -> _Sites:
    """Return the sites of the start's posterior; what it did not sum up is that of ``target``."""
    own = prior.level(start.signal_variance)
    projected = start.statistics.projected + own * target.pull
    return replace(target, gram=start.statistics.gram, projected=projected)


def _block_sums(
    block: Block,
    frequencies: Array,
    signal_variance: float,
    spread: Array | None,
    own_level: float,
    mean: Array,
    root: Array,
) -> Statistics:
    """Return the sums over one block that a step needs.

    The Gram matrix is Zᵗ diag(sc) Z; stacked are Zᵗ(sr), Zᵗ(sc), and the sums of sr and sc; the
    offset is the expected log likelihood.
    """
    z, fresh = damped_features(block, frequencies, signal_variance, spread)
    latent, variance = latent_moments(z, mean, root)
    sign = np.where(block.v > 0.0, 1.0, -1.0)
    value, slope, curvature = expected_log_sigmoid(sign * (latent + own_level), variance + fresh)
    weight = block.weight.astype(np.float64)
    residual, precision = weight * sign * slope, weight * curvature
    stacked = [z.T @ values.astype(z.dtype) for values in (residual, precision)]
    return Statistics(
        weighted_gram(z, precision.astype(z.dtype)),
        np.concatenate([*stacked, [residual.sum(), precision.sum()]]).astype(np.float64),
        float(weight @ value),
        float(precision @ fresh),
    )


def _advance(
    pixels: PixelSource, prior: WavePrior, current: _Evaluated, share: float
) -> _Evaluated:
    """Return the posterior and γ after a share of a step, evaluated."""
    mixed, variance = current.sites.mix(current.target, share), current.signal_variance
    ratio = mixed.best_variance_ratio(prior, variance) ** share
    posterior = mixed.statistics(prior.level(ratio * variance), ratio).posterior()
    evaluated = _evaluate(pixels, prior, ratio * variance, posterior)
    return replace(evaluated, sites=mixed.rescale(ratio))
