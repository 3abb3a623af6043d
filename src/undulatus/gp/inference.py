r"""Inference at fixed frequencies: sites of the rows, the posterior they give, and the one ascent.

With features :math:`Z` of unit signal variance, weights :math:`s` of the rows, and their sites
:math:`\exp(h f - \tfrac12 c f^2)` (see :mod:`undulatus.gp.likelihood`), the latent function
:math:`f = b + \sqrt\gamma\, Z u` has the posterior :math:`u \sim N(m, A^{-1})` (Eqs. 8 and 9,
varGlobal and posterior, whitened),

.. math::
    A = I + \gamma Z^\top \mathrm{diag}(s c) Z, \qquad
    A m = \sqrt\gamma\, Z^\top s (h - c\, b).

Sites depend on latent moments, and these on the posterior: :func:`ascend` alternates between
them. Each pass over the rows raises a lower bound on the log evidence, by the paper's bound

.. math:: 2 \log F = m^\top A m - \log|A| + b\,(2 \textstyle\sum s h - b \sum s c)
        + 2 \sum_i s_i \bigl[\lambda_i\xi_i^2 - \tfrac12\xi_i - \log(1 + e^{-\xi_i})\bigr]

(with tapered features, :mod:`undulatus.gp.taper`, also :math:`- \gamma \sum s c\,(1 - d^2)`), or
by the tighter one over all Gaussians q of the weights,

.. math:: \log F = \sum_i s_i\, \mathbb E_q \log\psi(\pm f_i) - \mathrm{KL}(q \,\|\, N(0, I)).

Where the sites are (weights of features here, functions in :mod:`undulatus.gp.exact`, new rows in
:mod:`undulatus.gp.update`) is a *space*; the ascent is the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy.linalg.lapack import dptsv
from scipy.optimize import minimize_scalar

from undulatus.gp.backends import Array
from undulatus.gp.cholesky import tridiagonalise
from undulatus.gp.data import Block, PixelSource
from undulatus.gp.likelihood import QUADRATIC, Bound, RowSites
from undulatus.gp.posterior import LatentFit, Posterior, solve_posterior
from undulatus.gp.taper import prior_mean, tapered_features

TOTAL_BYTES = 64 * 2**20
"""Latent functions share a pass as long as their Gram matrices take no more than this."""

VARIANCE_LIMITS = (1e-4, 1e6)
"""Lowest and highest signal variance."""

OUT_OF_REACH = 1e100
"""A loss that no other reaches, and that can be calculated with."""


# Sites and posteriors


@dataclass(frozen=True)
class Sites:
    """Sums over rows of their sites, for any prior mean and signal variance."""

    gram: Array
    """Zᵗ diag(sc) Z, (k, k)."""
    projected: Array
    """Zᵗ(sh), (k,)."""
    projected_precision: Array
    """Zᵗ(sc), (k,)."""
    totals: Array
    """Σ sh, Σ sc and Σ sc(1 - d²), (3,)."""

    def mix(self, other: Sites, share: float) -> Sites:
        """Return these sites moved towards ``other`` by a share of the way."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Sites(*((1.0 - share) * mine + share * theirs for mine, theirs in pairs))


@dataclass(frozen=True)
class Gaussian:
    """An approximate posterior of a latent function, and the sites it was solved from."""

    signal_variance: float
    prior_mean: float = 0.0
    posterior: Any = None
    """Of what the space has. None is the prior: a start over weights, with conjugate bounds."""
    sites: Any = None
    """None: the first step keeps the signal variance (conjugate bounds)."""


def unit_moments(gaussians: Sequence[Gaussian]) -> tuple[Array, Array, Array]:
    """Return γ (C,), and mean √γ m (C, k) and covariance γ A⁻¹ (C, k, k) at unit features."""
    variances = np.array([own.signal_variance for own in gaussians])
    means = np.array([own.posterior.mean for own in gaussians])
    covariances = np.array([own.posterior.covariance for own in gaussians])
    return variances, np.sqrt(variances)[:, None] * means, variances[:, None, None] * covariances


class Space(Protocol):
    """Where the latent functions of a model live: from Gaussians to sites, and back.

    Sites have ``mix(other, share)``, which moves them towards others by a share of the way.
    ``latent`` is the number of the latent function, 0, ..., C - 1.
    """

    def evaluate(
        self, bound: Bound, latents: Sequence[int], gaussians: Sequence[Gaussian]
    ) -> list[tuple[Any, float]]:
        """Return, by one pass, the sites at each Gaussian and the sum of the rows' values."""

    def best_ratio(self, latent: int, sites: Any, signal_variance: float) -> float:
        """Return the factor on the signal variance that maximises the evidence of the sites."""

    def solve(self, latent: int, sites: Any, signal_variance: float) -> Gaussian:
        """Return the posterior that sites give."""

    def log_evidence(self, gaussian: Gaussian) -> float:
        """Return log E exp Σ (h f - c f²/2) under the prior, of the sites it was solved from."""

    def divergence(self, gaussian: Gaussian) -> float:
        """Return the Kullback-Leibler divergence from the prior (nats)."""


# The space of weights


@dataclass(frozen=True)
class WeightSpace:
    """Latent functions over the same Fourier features of rows, in memory or in chunks."""

    pixels: PixelSource
    frequencies: Array
    deviations: Array | None = None
    """Of each feature's frequencies, (d,), if features are tapered."""
    log_odds: Sequence[float] | None = None
    """Log odds of each latent function's class far from the training rows; None is a prior mean of
    zero."""
    precisions: Sequence[Array] | None = None
    """Where the precisions of each latent function's sites are written, (n,), if at all."""

    def evaluate(
        self, bound: Bound | None, latents: Sequence[int], gaussians: Sequence[Gaussian]
    ) -> list[tuple[Sites, float]]:
        """Return, by one pass, the sites at each Gaussian and the sum of the rows' values.

        Without a bound, the precisions of the sites are those in ``precisions``, their h is v,
        and Gaussians are priors.
        """
        xp, views = self.pixels.xp, []
        for latent, q in zip(latents, gaussians, strict=True):
            mean = root = None
            if q.posterior is not None:
                scale = np.sqrt(q.signal_variance)
                mean = xp.array(scale * q.posterior.mean)
                root = xp.array(np.asfortranarray(scale * q.posterior.root.T))
            written = None if self.precisions is None else self.precisions[latent]
            views.append(LatentView(latent, q.prior_mean, q.signal_variance, mean, root, written))
        # Latent functions go through the rows together as far as their Gram matrices leave memory.
        at_once = max(1, TOTAL_BYTES // (8 * (2 * len(self.frequencies)) ** 2))
        sums: list[Array] = []
        for first in range(0, len(views), at_once):
            some = views[first : first + at_once]
            sums += self.pixels.total(block_sums, self.frequencies, self.deviations, bound, some)
        found = []
        for q, gram, vectors, totals in zip(
            gaussians, sums[::3], sums[1::3], sums[2::3], strict=True
        ):
            (residual, precision), (target, total_precision, untapered, value) = vectors, totals
            # h = r + c μ at the latent mean μ of q, from the sums over all rows: in single
            # precision Zᵗ(scμ) would drown Zᵗ(sr).
            projected = residual + q.prior_mean * precision
            target = target + q.prior_mean * total_precision
            if q.posterior is not None:
                weights = np.sqrt(q.signal_variance) * q.posterior.mean
                projected += gram @ weights
                target += precision @ weights
            totals = np.array([target, total_precision, untapered])
            found.append((Sites(gram, projected, precision, totals), float(value)))
        return found

    def best_ratio(self, latent: int, sites: Sites, signal_variance: float) -> float:
        """Return the factor on γ, within its limits, that maximises the evidence of the sites.

        With G = γ ``gram`` and q = √γ Zᵗs(h - c b), where b depends on rγ,
        2 log Z(r) = r qᵗ(I + rG)⁻¹q - log|I + rG| + b (2 Σsh - b Σsc) - rγ Σsc(1 - d²).
        """
        target, precision, untapered = sites.totals
        # In a basis where G is tridiagonal each r costs O(k); to find one is a third of the work
        # of an eigendecomposition.
        vectors = np.column_stack([sites.projected, sites.projected_precision])
        diagonal, beside, rotated = tridiagonalise(
            signal_variance * sites.gram, np.sqrt(signal_variance) * vectors
        )

        def loss(log_ratio: float) -> float:
            ratio = float(np.exp(log_ratio))
            b = self.prior_mean(latent, ratio * signal_variance)
            q = rotated @ [1.0, -b]
            factors, _, solved, failed = dptsv(1.0 + ratio * diagonal, ratio * beside, q)
            if failed:
                # By rounding alone: such a ratio is out of reach.
                return OUT_OF_REACH
            rest = b * (2.0 * target - b * precision) - ratio * signal_variance * untapered
            return float(np.sum(np.log(factors)) - ratio * (q @ solved) - rest)

        return best_variance_ratio(loss, signal_variance)

    def prior_mean(self, latent: int, signal_variance: float) -> float:
        """Return b at a signal variance."""
        return 0.0 if self.log_odds is None else prior_mean(self.log_odds[latent], signal_variance)

    def solve(self, latent: int, sites: Sites, signal_variance: float) -> Gaussian:
        """Return the posterior of the whitened weights that sites give (Eq. 9)."""
        b = self.prior_mean(latent, signal_variance)
        # A = I + γ Zᵗ diag(sc) Z,  A m = √γ Zᵗ s(h - c b)
        precision = signal_variance * sites.gram
        precision[np.diag_indices_from(precision)] += 1.0
        projected = np.sqrt(signal_variance) * (sites.projected - b * sites.projected_precision)
        return Gaussian(signal_variance, b, solve_posterior(precision, projected), sites)

    def log_evidence(self, gaussian: Gaussian) -> float:
        """Return log E exp Σ (h f - c f²/2) under the prior, of the sites it was solved from."""
        posterior: Posterior = gaussian.posterior
        b, (target, precision, untapered) = gaussian.prior_mean, gaussian.sites.totals
        fitted = posterior.quadratic - posterior.log_determinant
        fitted += b * (2.0 * target - b * precision) - gaussian.signal_variance * untapered
        return float(0.5 * fitted)

    def divergence(self, gaussian: Gaussian) -> float:
        """Return the Kullback-Leibler divergence from the prior (nats)."""
        return float(gaussian.posterior.divergence)


class LatentView(NamedTuple):
    """One latent function as blocks of rows see it.

    Of N(m, A⁻¹ = R Rᵗ), ``mean`` is √γ m, (k,), and ``root`` is √γ R, (k, k), where blocks are
    and in their precision; both are None for the prior.
    """

    latent: int
    prior_mean: float
    signal_variance: float
    mean: Array | None
    root: Array | None
    precisions: Array | None
    """Where those of the sites of all rows are written, or read without a bound."""


def block_sums(
    block: Block,
    frequencies: Array,
    deviations: Array | None,
    bound: Bound | None,
    views: Sequence[LatentView],
) -> list[Array]:
    """Return sums over a block's rows for each latent function, in double precision.

    Three arrays each: Zᵗ diag(sc) Z, (k, k); Zᵗ(sr) and Zᵗ(sc), (2, k); and Σ sr, Σ sc,
    Σ sc(1 - d²) and the sum of the values of the rows, (4,).
    """
    xp, sums = block.xp, []
    z, untapered = tapered_features(block.x, frequencies, deviations, xp)
    weight = xp.double(block.weight)
    for view in views:
        v = xp.double(block.targets(view.latent))
        if bound is None:
            assert view.precisions is not None
            sites = RowSites(xp.double(view.precisions[block.rows]), v, 0.0 * v)
        else:
            if view.mean is None:
                mean, variance = xp.zeros_like(untapered), xp.ones_like(untapered)
                variance *= view.signal_variance
            else:
                mean, variance = xp.moments(z, view.mean, view.root)
                variance += view.signal_variance * untapered
            mean = xp.double(mean) + view.prior_mean
            sites = bound.sites(mean, xp.double(variance), 2.0 * v, xp)
            if view.precisions is not None:
                view.precisions[block.rows] = sites.precision
        residual, precision = weight * sites.residual, weight * sites.precision
        vectors = [xp.double(z.T @ xp.astype(own, z.dtype)) for own in (residual, precision)]
        totals = [residual, precision, precision * untapered, weight * sites.value]
        sums += [xp.gram(z, precision), xp.stack(vectors), xp.stack([own.sum() for own in totals])]
    return sums


# The signal variance


def best_variance_ratio(loss: Callable[[float], float], signal_variance: float) -> float:
    """Return the factor r on γ, within the limits of one pass, with the least loss of log r."""
    lowest, highest = VARIANCE_LIMITS
    low = max(0.1, min(lowest / signal_variance, 1.0))
    high = min(10.0, max(highest / signal_variance, 1.0))
    optimum = minimize_scalar(loss, bounds=(np.log(low), np.log(high)), method="bounded")
    return float(np.exp(optimum.x)) if optimum.fun < loss(0.0) else 1.0


# The ascent


@dataclass(frozen=True)
class AscentConfig:
    """How :func:`ascend` goes on and when it ends."""

    max_passes: int = 25
    """Most passes over the rows, those whose step was undone included."""
    tol: float = 0.0
    """The ascent ends when a step changes the bound by less than this share of its size."""
    largest_share: float = 0.9
    """Largest share of a step, unless the bound is conjugate: full ones go too far, and then too
    far back."""
    recovery: float = 1.5
    """Factor on the share of a step after each that raised the bound."""
    smallest_share: float = 1.0 / 64.0
    """The ascent ends when a smaller share would be needed to raise the bound."""
    rounding: float = 0.01
    """A bound that falls by less than this times the tolerance has stalled; if it falls by more,
    the step was too long."""
    variance_limit: float = VARIANCE_LIMITS[1]
    """Highest signal variance."""


@dataclass(frozen=True)
class Ascended:
    """Where the ascent of a latent function ended, and its bound on the way."""

    gaussian: Gaussian
    bounds: tuple[float, ...]
    interrupted: bool = False


class _Ascent:
    """The ascent of one latent function: what was kept, and the Gaussian to evaluate next."""

    def __init__(
        self, space: Space, latent: int, start: Gaussian, bound: Bound, config: AscentConfig
    ) -> None:
        self.space, self.latent, self.bound, self.config = space, latent, bound, config
        self.kept = self.next = start
        self.bounds: tuple[float, ...] = ()
        self.share = 1.0 if bound.conjugate else config.largest_share
        self.passes, self.ended = 0, False

    def take(self, target: Any, value: float) -> None:
        """Take the sites at the Gaussian that was evaluated, and the value of the rows there."""
        config = self.config
        self.passes += 1
        if self.bound.conjugate:
            # Its sites are exact factors: the next posterior's bound is known, and cannot fall.
            # γ stays until the sites are those of its own posterior.
            self.kept = self.next = self._step(
                target, move_variance=self.passes > 1 or self.kept.sites is not None
            )
            self.bounds += (self.space.log_evidence(self.kept) + value,)
            if len(self.bounds) > 1:
                growth = self.bounds[-1] - self.bounds[-2]
                self.ended = growth < stall_limit(self.bounds[-1], config.tol)
        elif not self.bounds:
            self.bounds, self.target = (value - self.space.divergence(self.next),), target
        else:
            bound = value - self.space.divergence(self.next)
            growth, limit = bound - self.bounds[-1], stall_limit(self.bounds[-1], config.tol)
            if growth >= 0.0:
                self.kept, self.target = self.next, target
                self.bounds += (bound,)
                self.share = min(config.recovery * self.share, config.largest_share)
            elif growth < -config.rounding * limit:
                # The step lowered the bound: it is undone, and the next one halved.
                self.share *= 0.5
                limit = 0.0
            self.ended = abs(growth) < limit or self.share < config.smallest_share
        self.ended |= self.passes >= config.max_passes
        if not (self.ended or self.bound.conjugate):
            self.next = self._step(self.kept.sites.mix(self.target, self.share))

    def _step(self, sites: Any, *, move_variance: bool = True) -> Gaussian:
        variance = self.kept.signal_variance
        if move_variance and variance < self.config.variance_limit:
            ratio = self.space.best_ratio(self.latent, sites, variance) ** self.share
            variance = min(variance * ratio, self.config.variance_limit)
        return self.space.solve(self.latent, sites, variance)


def ascend(
    space: Space,
    bound: Bound,
    starts: Sequence[Gaussian],
    config: AscentConfig,
    *,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> list[Ascended]:
    """Maximise the bound over Gaussian posteriors and γ, from ``starts``, one a latent function.

    All latent functions go through the rows together; one that has converged drops out. The bound
    of each never falls: with a conjugate bound it cannot, otherwise steps that lower it are
    undone and halved. If ``interruptible``, a KeyboardInterrupt after the first pass ends all at
    the last step that was kept.

    A start has a posterior and the sites that this was solved from. With a conjugate bound the
    sites may be missing: the first step then keeps γ. So may the posterior, which stands for the
    prior, where the space evaluates it (:class:`WeightSpace` does). With another bound the prior
    is no start, since steps mix sites: begin with a pass by a conjugate bound.
    """
    ascents = [_Ascent(space, i, start, bound, config) for i, start in enumerate(starts)]
    interrupted = False
    try:
        while active := [ascent for ascent in ascents if not ascent.ended]:
            if ascents[0].bounds:
                report(max(own.passes for own in ascents), sum(own.bounds[-1] for own in ascents))
            evaluated = space.evaluate(
                bound, [own.latent for own in active], [own.next for own in active]
            )
            for own, (target, value) in zip(active, evaluated, strict=True):
                own.take(target, value)
    except KeyboardInterrupt:
        if not (interruptible and all(own.bounds for own in ascents)):
            raise
        interrupted = True
    return [Ascended(own.kept, own.bounds, interrupted) for own in ascents]


def fit_quadratic(
    space: WeightSpace, signal_variance: float, config: AscentConfig
) -> list[Ascended]:
    """Return the posteriors of the paper's bound, started from ξ = 1 at all rows (Algorithm 1)."""
    latents = range(space.pixels.n_latents)
    # The prior of variance 1 has ξ² = 1.
    first = space.evaluate(QUADRATIC, latents, [Gaussian(1.0)] * len(latents))
    variance = min(signal_variance, config.variance_limit)
    starts = [space.solve(latent, first[latent][0], variance) for latent in latents]
    return ascend(space, QUADRATIC, starts, config)


def stall_limit(bound: float, tol: float) -> float:
    """Return the growth of a bound (nats) that is ``tol`` of its size.

    A hundred nats are added to the size: on a few rows, hundredths of a nat mean nothing.
    """
    return tol * (abs(bound) + 100.0)


# The posteriors to predict with


@dataclass(frozen=True)
class PosteriorConfig:
    """Which posterior is handed out at the final frequencies, and how long it is looked for."""

    bound: Bound
    """Whose posterior it is. The paper's, ``QUADRATIC``, has a prior mean of zero."""
    max_passes: int
    """Most passes over all rows by this bound."""
    tol: float
    """The passes end when one changes the bound by less than this share of its size."""


def fit_posteriors(
    space: WeightSpace,
    starts: Sequence[Gaussian],
    config: PosteriorConfig,
    *,
    interrupted: bool = False,
    interruptible: bool = True,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> tuple[tuple[LatentFit, ...], bool]:
    """Return the latent functions at the final frequencies, and whether a fit was interrupted.

    Each starts from its own posterior, without a prior mean. After an interrupt one pass has to
    do. If ``interruptible``, an interrupt of the passes ends them after the last finished one.
    """
    if config.bound is QUADRATIC:
        # As in the paper.
        space = replace(space, log_odds=None)
    if not config.bound.conjugate:
        # Unlike the steps that follow, this pass cannot overshoot, however far it has to go.
        # γ stays as it was learned: without sites of their own, starts keep it.
        starts = [replace(own, sites=None) for own in starts]
        starts = [own.gaussian for own in ascend(space, QUADRATIC, starts, AscentConfig(1))]
    ascent = AscentConfig(1 if interrupted else config.max_passes, config.tol)
    ends = ascend(space, config.bound, starts, ascent, interruptible=interruptible, report=report)
    latents = tuple(
        LatentFit(
            own.gaussian.signal_variance,
            own.gaussian.posterior,
            own.bounds,
            own.gaussian.prior_mean,
        )
        for own in ends
    )
    return latents, interrupted or any(own.interrupted for own in ends)
