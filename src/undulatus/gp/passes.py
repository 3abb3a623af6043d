"""Exact passes over all pixels at fixed frequencies, and the start of a fit.

Both solvers use these: :func:`choose_start` picks a lengthscale, :func:`fit_posteriors` finds
the optimum in ξ and γ for given frequencies. The loop of Algorithm 1 is in
:mod:`undulatus.gp.batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from undulatus.gp.arrays import Array
from undulatus.gp.blocks import Pixels, PixelSource
from undulatus.gp.bound import (
    Statistics,
    accumulate_each,
    best_variance_ratio,
    tighten_each,
)
from undulatus.gp.posterior import Posterior

VARIANCE_LIMITS = (1e-4, 1e6)
"""Lowest and highest signal variance."""

LENGTHSCALE_SHARES = (2.0, 1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales to try, as shares of the mean distance between pixels."""

SEARCH_ROWS = 8192
"""Most pixels on which starting lengthscales are compared."""

SEARCH_PASSES = 5
"""Passes at each starting lengthscale."""


@dataclass(frozen=True)
class Start:
    """Where a fit starts: unit frequencies w (D, d), lengthscale σ, signal variance γ."""

    unit_frequencies: Array
    lengthscale: float
    signal_variance: float = 1.0

    @property
    def frequencies(self) -> Array:
        """Effective frequencies w/σ, (D, d)."""
        return self.unit_frequencies / self.lengthscale


@dataclass(frozen=True)
class LatentFit:
    """One latent function: its signal variance γ, the posterior of its weights, its level b.

    ``bounds`` holds the bound along the way.
    """

    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]
    level: float = 0.0
    """To which the latent mean returns away from the data."""


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
    held_back_losses: tuple[float, ...] = ()
    spread: float = 0.0
    """Deviation of frequencies as a share of their size: how fast waves fade; 0 is never."""

    @property
    def posterior(self) -> Posterior:
        """The posterior of the only latent function."""
        (only,) = self.latents
        return only.posterior

    @property
    def level(self) -> float:
        """The level of the only latent function."""
        (only,) = self.latents
        return only.level

    @property
    def signal_variance(self) -> float:
        """The signal variance, or the mean of those of several latent functions."""
        return mean_of([latent.signal_variance for latent in self.latents])

    @property
    def bounds(self) -> tuple[float, ...]:
        """The bound along the way, added up; a latent function that ended early keeps its last."""
        if len(self.latents) == 1:
            return self.latents[0].bounds
        longest = max(len(latent.bounds) for latent in self.latents)
        own = [np.pad(x.bounds, (0, longest - len(x.bounds)), mode="edge") for x in self.latents]
        return tuple(np.sum(own, axis=0).tolist())


def mean_of(values: Sequence[float]) -> float:
    """Return the mean; of a single value, the value itself to the last digit."""
    return values[0] if len(values) == 1 else float(np.mean(values))


@dataclass(frozen=True)
class PosteriorFit:
    """The optimum in ξ and γ for given frequencies, with the bound after each pass."""

    signal_variance: float
    statistics: Statistics
    posterior: Posterior
    bounds: tuple[float, ...]
    interrupted: bool = False


def fit_posterior(
    pixels: PixelSource,
    frequencies: Array,
    signal_variance: float,
    xi: Array | None,
    *,
    initial_posterior: Posterior | None = None,
    **options: Any,
) -> PosteriorFit:
    """Return the optimum in ξ and γ of two classes: see :func:`fit_posteriors`."""
    known = None if initial_posterior is None else [initial_posterior]
    own = [signal_variance], [xi]
    return fit_posteriors(pixels, frequencies, *own, initial_posteriors=known, **options)[0]


def fit_posteriors(
    pixels: PixelSource,
    frequencies: Array,
    signal_variances: Sequence[float],
    xi: Sequence[Array | None],
    *,
    max_passes: int,
    tol: float = 0.0,
    variance_limit: float = VARIANCE_LIMITS[1],
    spread: Array | None = None,
    initial_posteriors: Sequence[Posterior] | None = None,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> list[PosteriorFit]:
    """Update ξ (in place) and γ in turn at fixed frequencies, until the bound stalls.

    All latent functions go through the pixels together; one whose bound has stalled drops out.
    Each pass reads the pixels once and never lowers a bound. The first pass uses ``xi`` as
    given or, with ``initial_posteriors``, sets ξ to its optimum under these; then ``xi`` may hold
    None and ξ is not stored. A ``spread`` (d,) damps the waves. If ``interruptible``, a
    KeyboardInterrupt after the first pass ends the fits at the last finished pass.
    """
    if initial_posteriors is None:
        known = [own for own in xi if own is not None]
        statistics = accumulate_each(pixels, frequencies, signal_variances, known)
    else:
        statistics = tighten_each(
            pixels, frequencies, signal_variances, initial_posteriors, xi, spread=spread
        )
    posteriors = [own.posterior() for own in statistics]
    fits = [
        PosteriorFit(variance, own, posterior, (own.bound(posterior),))
        for variance, own, posterior in zip(signal_variances, statistics, posteriors, strict=True)
    ]
    going = list(range(len(fits)))
    try:
        for done in range(1, max_passes):
            report(done, sum(fit.bounds[-1] for fit in fits))
            last, own_xi = [fits[latent] for latent in going], [xi[latent] for latent in going]
            following = _next_pass(
                pixels, frequencies, going, last, own_xi, variance_limit, spread
            )
            for latent, fit in zip(going, following, strict=True):
                fits[latent] = fit
            going = [latent for latent in going if not has_stalled(fits[latent].bounds, tol)]
            if not going:
                break
    except KeyboardInterrupt:
        if not interruptible:
            raise
        fits = [replace(fit, interrupted=True) for fit in fits]
    return fits


def _next_pass(
    pixels: PixelSource,
    frequencies: Array,
    latents: Sequence[int],
    fits: Sequence[PosteriorFit],
    xi: Sequence[Array | None],
    variance_limit: float,
    spread: Array | None,
) -> list[PosteriorFit]:
    """Return the fits of some latent functions after one more pass."""
    variances, posteriors = zip(
        *[(fit.signal_variance, fit.posterior) for fit in fits], strict=True
    )
    tight = tighten_each(
        pixels, frequencies, variances, posteriors, xi, latents=latents, spread=spread
    )
    following = []
    for fit, statistics in zip(fits, tight, strict=True):
        variance = fit.signal_variance
        ratio = best_variance_ratio(statistics, *variance_ratio_limits(variance, variance_limit))
        statistics = statistics.rescale(ratio)
        posterior = statistics.posterior()
        bounds = (*fit.bounds, statistics.bound(posterior))
        following.append(PosteriorFit(variance * ratio, statistics, posterior, bounds))
    return following


def variance_ratio_limits(
    signal_variance: float, variance_limit: float = VARIANCE_LIMITS[1]
) -> tuple[float, float]:
    """Return the lowest and highest factor on γ in one pass."""
    low = max(0.1, min(VARIANCE_LIMITS[0] / signal_variance, 1.0))
    return low, min(10.0, max(variance_limit / signal_variance, 1.0))


def has_stalled(bounds: Sequence[float], tol: float) -> bool:
    """Whether the last step raised the bound by less than ``tol`` of its size."""
    return bounds[-1] - bounds[-2] < stall_limit(bounds[-1], tol)


def stall_limit(bound: float, tol: float) -> float:
    """Return the growth of a bound (nats) that is ``tol`` of its size.

    A hundred nats are added to the size: on a few rows, hundredths of a nat mean nothing.
    """
    return tol * (abs(bound) + 100.0)


def choose_start(
    pixels: PixelSource,
    unit_frequencies: Array,
    mean_distance: float,
    rng: np.random.Generator,
    variance_limit: float = VARIANCE_LIMITS[1],
) -> Start:
    """Return the lengthscale and signal variance with the best bound on a subset of pixels."""
    if pixels.n_rows <= SEARCH_ROWS:
        subset = pixels.gather()
    else:
        subset = pixels.take(np.sort(rng.choice(pixels.n_rows, SEARCH_ROWS, replace=False)))
    best_bound, best = -np.inf, Start(unit_frequencies, mean_distance)
    for share in LENGTHSCALE_SHARES:
        start = Start(unit_frequencies, share * mean_distance)
        fits = search_fits(subset, start, variance_limit)
        bound = sum(fit.bounds[-1] for fit in fits)
        if bound > best_bound:
            best_bound = bound
            variance = mean_of([fit.signal_variance for fit in fits])
            best = replace(start, signal_variance=variance)
    return best


def search_fits(pixels: Pixels, start: Start, variance_limit: float) -> list[PosteriorFit]:
    """Return the posterior and γ of each latent function after a few passes at a start."""
    n = pixels.n_latents
    return fit_posteriors(
        pixels,
        start.frequencies,
        [min(start.signal_variance, variance_limit)] * n,
        [pixels.place.ones(pixels.n_rows) for _ in range(n)],
        max_passes=SEARCH_PASSES,
        variance_limit=variance_limit,
    )
