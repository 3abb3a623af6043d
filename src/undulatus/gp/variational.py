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
from typing import Generic, Protocol, TypeVar

import numpy as np

from undulatus.gp.arrays import Array, dot, double, like, namespace, weighted_gram
from undulatus.gp.blocks import Block, PixelSource
from undulatus.gp.bound import (
    Statistics,
    accumulate_each,
    best_gram_ratio,
    tighten_each,
    total_of_each,
)
from undulatus.gp.damping import level, spreads
from undulatus.gp.passes import (
    LatentFit,
    PosteriorFit,
    fit_posteriors,
    stall_limit,
    variance_ratio_limits,
)
from undulatus.gp.posterior import Posterior, latent_moments

MAX_PASSES = 25
"""Most passes, those that were taken back included."""

LARGEST_SHARE = 0.9
"""Largest share of a step: full ones go too far, and then too far back."""

RECOVERY = 1.5
"""Factor on the share of a step after each that raised the bound, up to the largest share."""

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
    xp, mean = namespace(mean), double(mean)
    # Below 1e-6 the nodes are too close for the differences that make the curvature.
    deviation = xp.maximum(xp.sqrt(double(variance)), 1e-6)
    value, slope, curvature = (xp.zeros_like(mean) for _ in range(3))
    for node, weight in zip(_NODES.tolist(), _NODE_WEIGHTS.tolist(), strict=True):
        f = mean + node * deviation
        decay = xp.exp(-xp.abs(f))
        opposite = xp.where(f > 0.0, decay, 1.0) / (1.0 + decay)
        value += weight * (xp.minimum(f, 0.0) - xp.log(1.0 + decay))
        slope += weight * opposite
        # Not the mean of ψ'(f): between nodes that are far apart its peak would be missed.
        curvature -= weight * node * opposite
    # Where ψ is 1 or 0 to the last digit, rounding could make the curvature negative.
    return value, slope, xp.maximum(curvature / deviation, SMALLEST_CURVATURE)


# Steps that never lower the bound


class HasBound(Protocol):
    """A state of an ascent whose bound is known."""

    @property
    def bound(self) -> float:
        """The bound on the log evidence (nats)."""
        ...


State = TypeVar("State", bound=HasBound)


class NaturalAscent(Generic[State]):
    """An ascent by steps that never lower the bound.

    Its ``current`` state advances by a ``share`` of a full step, at most ``largest_share``, which
    is halved whenever the bound falls and grows again when it rises. It has ended when a step
    changes the bound by less than ``tol`` of its size, when a small share does not help, or after
    ``max_passes`` states, the start and those that were taken back included.
    """

    def __init__(
        self, start: State, max_passes: int, tol: float, largest_share: float = 1.0
    ) -> None:
        self.current = start
        self.share = largest_share
        self.passes = 1
        self.ended = max_passes <= 1
        self._max_passes = max_passes
        self._tol = tol
        self._largest_share = largest_share

    def consider(self, following: State) -> bool:
        """Take the state after the next step, or take it back; return whether it was kept."""
        growth = following.bound - self.current.bound
        limit = stall_limit(self.current.bound, self._tol)
        kept = growth >= 0.0
        if kept:
            self.current = following
            self.share = min(RECOVERY * self.share, self._largest_share)
        elif growth < -ROUNDING * limit:
            self.share *= 0.5
            limit = 0.0
        self.passes += 1
        self.ended = (
            abs(growth) < limit or self.share < SMALLEST_SHARE or self.passes >= self._max_passes
        )
        return kept


def ascend_naturally(
    start: State,
    advance: Callable[[State, float], State],
    *,
    max_passes: int,
    tol: float,
    largest_share: float = 1.0,
) -> Iterator[State]:
    """Yield ``start``, and the state after each step of a :class:`NaturalAscent` that was kept.

    ``advance(state, share)`` makes a share of a full step.
    """
    ascent = NaturalAscent(start, max_passes, tol, largest_share)
    yield start
    while not ascent.ended:
        if ascent.consider(advance(ascent.current, ascent.share)):
            yield ascent.current


# Passes over all pixels


def fit_latents(
    pixels: PixelSource,
    frequencies: Array,
    signal_variances: Sequence[float],
    xi: Sequence[Array | None],
    initial_posteriors: Sequence[Posterior] | None,
    *,
    spread: float,
    log_odds: Array,
    interrupted: bool,
    interruptible: bool,
    max_passes: int,
    variational: bool,
    bound_tol: float,
    tol: float,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> tuple[tuple[LatentFit, ...], bool]:
    """Return the latent functions at the final frequencies, and whether a fit was interrupted.

    Their posteriors are those of :func:`fit_final_posteriors`, each from its own signal variance,
    ξ or posterior. After an interrupt one pass has to do. If ``interruptible``, an interrupt of
    the passes ends them after the last finished one.
    """
    finals = fit_final_posteriors(
        pixels,
        WavePrior(frequencies, spreads(frequencies, spread) if spread else None),
        log_odds.tolist(),
        signal_variances,
        xi,
        initial_posteriors,
        variational=variational,
        interruptible=interruptible,
        max_passes=1 if interrupted else max_passes,
        bound_tol=bound_tol,
        tol=tol,
        report=report,
    )
    latents = tuple(
        LatentFit(
            final.signal_variance,
            final.posterior,
            final.bounds,
            level(own_log_odds, final.signal_variance),
        )
        for final, own_log_odds in zip(finals, log_odds.tolist(), strict=True)
    )
    return latents, interrupted or any(final.interrupted for final in finals)


def fit_final_posteriors(
    pixels: PixelSource,
    waves: WavePrior,
    log_odds: Sequence[float],
    signal_variances: Sequence[float],
    xi: Sequence[Array | None],
    initial_posteriors: Sequence[Posterior] | None,
    *,
    variational: bool,
    interruptible: bool = True,
    max_passes: int,
    bound_tol: float,
    tol: float,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> list[PosteriorFit]:
    """Return the posteriors to predict with, by passes at the final frequencies.

    They are those of the quadratic bound, to the tolerance ``bound_tol`` and without a level, or,
    if ``variational``, those of :func:`fit_variational` to the tolerance ``tol``, with the levels
    of ``log_odds``, started from a pass with the quadratic bound at fixed γ.
    """
    if not variational:
        return fit_posteriors(
            pixels,
            waves.frequencies,
            signal_variances,
            xi,
            max_passes=max_passes,
            tol=bound_tol,
            spread=waves.spread,
            initial_posteriors=initial_posteriors,
            interruptible=interruptible,
            report=report,
        )
    if initial_posteriors is None:
        known = [own for own in xi if own is not None]
        statistics = accumulate_each(pixels, waves.frequencies, signal_variances, known)
        initial_posteriors = [own.posterior() for own in statistics]
    priors = [replace(waves, log_odds=own) for own in log_odds]
    starts = _fit_starts(pixels, priors, signal_variances, initial_posteriors)
    return fit_variational(
        pixels,
        priors,
        starts,
        max_passes=max_passes,
        tol=tol,
        interruptible=interruptible,
        report=report,
    )


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


def _fit_starts(
    pixels: PixelSource,
    priors: Sequence[WavePrior],
    signal_variances: Sequence[float],
    posteriors: Sequence[Posterior],
) -> list[PosteriorFit]:
    """Return each posterior after a pass with the quadratic bound, at fixed γ.

    ``posteriors`` are those without a level. Unlike the steps that follow, this pass cannot
    overshoot, however far it has to go.
    """
    own = [prior.level(variance) for prior, variance in zip(priors, signal_variances, strict=True)]
    tight = tighten_each(
        pixels,
        priors[0].frequencies,
        signal_variances,
        posteriors,
        [None] * len(own),
        spread=priors[0].spread,
        levels=[(0.0, own_level) for own_level in own],
    )
    posteriors = [statistics.posterior() for statistics in tight]
    return [
        PosteriorFit(variance, statistics, posterior, (statistics.bound(posterior),))
        for variance, statistics, posterior in zip(
            signal_variances, tight, posteriors, strict=True
        )
    ]


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
        targets, precisions, fresh = self.sums

        def own_level(ratio: float) -> float:
            return prior.level(ratio * variance)

        def rest(ratio: float) -> float:
            b = own_level(ratio)
            return float(2.0 * b * targets - b**2 * precisions - ratio * fresh)

        return best_gram_ratio(
            self.gram,
            [self.projected, self.pull],
            *variance_ratio_limits(variance),
            lambda ratio: [1.0, -own_level(ratio)],
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
    priors: Sequence[WavePrior],
    starts: Sequence[PosteriorFit],
    *,
    max_passes: int = MAX_PASSES,
    tol: float = 0.0,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> list[PosteriorFit]:
    """Maximise the bound over Gaussian posteriors and γ at fixed frequencies, from ``starts``.

    All latent functions go through the pixels together, over the same waves; one that has settled
    drops out. Each pass reads the pixels once. The returned bounds are that of the start's
    posterior, then that after each step that was kept: they never fall. A fit ends when a step
    changes its bound by less than ``tol`` of its size. If ``interruptible``, a KeyboardInterrupt
    after the first pass ends all at the last step that was kept.
    """
    all_latents = range(len(priors))
    states = [(start.signal_variance, start.posterior) for start in starts]
    evaluated = _evaluate(pixels, priors, all_latents, states)
    ascents = [
        NaturalAscent(
            replace(first, sites=_sites_of(start, prior, first.target)),
            max_passes,
            tol,
            LARGEST_SHARE,
        )
        for start, prior, first in zip(starts, priors, evaluated, strict=True)
    ]
    pairs = zip(starts, evaluated, strict=True)
    fits = [replace(start, bounds=(first.bound,)) for start, first in pairs]
    try:
        while going := [latent for latent in all_latents if not ascents[latent].ended]:
            done = max(ascent.passes for ascent in ascents)
            report(done, sum(ascent.current.bound for ascent in ascents))
            for latent, state in zip(going, _advance(pixels, priors, going, ascents), strict=True):
                if ascents[latent].consider(state):
                    own_level = priors[latent].level(state.signal_variance)
                    fits[latent] = PosteriorFit(
                        state.signal_variance,
                        state.sites.statistics(own_level, 1.0),
                        state.posterior,
                        (*fits[latent].bounds, state.bound),
                    )
    except KeyboardInterrupt:
        if not interruptible:
            raise
        fits = [replace(fit, interrupted=True) for fit in fits]
    return fits


def _evaluate(
    pixels: PixelSource,
    priors: Sequence[WavePrior],
    latents: Sequence[int],
    states: Sequence[tuple[float, Posterior]],
) -> list[_Evaluated]:
    """Return the bounds of some latent functions' γ and posterior, and where full steps lead.

    By one pass.
    """
    levels = [
        priors[latent].level(variance)
        for latent, (variance, _) in zip(latents, states, strict=True)
    ]
    totals = total_of_each(
        pixels,
        _block_sums,
        priors[0].frequencies,
        [variance for variance, _ in states],
        [
            (
                own_level,
                pixels.place.array(posterior.mean),
                pixels.place.fortran(posterior.root.T),
            )
            for own_level, (_, posterior) in zip(levels, states, strict=True)
        ],
        latents=latents,
        spread=priors[0].spread,
    )
    return [
        _evaluated(total, own_level, *state)
        for total, own_level, state in zip(totals, levels, states, strict=True)
    ]


def _evaluated(
    total: Statistics, own_level: float, signal_variance: float, posterior: Posterior
) -> _Evaluated:
    """Return the bound and where a full step leads, from the sums over all pixels."""
    k = len(posterior.mean)
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
    z: Array, fresh: Array, block: Block, own_level: float, mean: Array, root: Array
) -> Statistics:
    """Return the sums over one block that a step needs.

    The Gram matrix is Zᵗ diag(sc) Z; stacked are Zᵗ(sr), Zᵗ(sc), and the sums of sr and sc; the
    offset is the expected log likelihood.
    """
    latent, variance = latent_moments(z, mean, root)
    xp, sign = namespace(z), 2.0 * double(block.v)
    value, slope, curvature = expected_log_sigmoid(sign * (latent + own_level), variance + fresh)
    weight = double(block.weight)
    residual, precision = weight * sign * slope, weight * curvature
    stacked = [double(z.T @ like(values, z)) for values in (residual, precision)]
    sums = xp.stack([residual.sum(), precision.sum()])
    return Statistics(
        weighted_gram(z, like(precision, z)),
        xp.concatenate([*stacked, sums]),
        dot(weight, value),
        dot(precision, double(fresh)),
    )


def _advance(
    pixels: PixelSource,
    priors: Sequence[WavePrior],
    latents: Sequence[int],
    ascents: Sequence[NaturalAscent[_Evaluated]],
) -> list[_Evaluated]:
    """Return some latent functions' posterior and γ after a share of a step, evaluated."""
    states, sites = [], []
    for latent in latents:
        current, share, prior = ascents[latent].current, ascents[latent].share, priors[latent]
        mixed, variance = current.sites.mix(current.target, share), current.signal_variance
        ratio = mixed.best_variance_ratio(prior, variance) ** share
        posterior = mixed.statistics(prior.level(ratio * variance), ratio).posterior()
        states.append((ratio * variance, posterior))
        sites.append(mixed.rescale(ratio))
    following = _evaluate(pixels, priors, latents, states)
    return [replace(state, sites=own) for state, own in zip(following, sites, strict=True)]
