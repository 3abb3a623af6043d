"""Exact passes over all pixels at fixed frequencies, the start of a fit, and held-back rows.

Both solvers use these: :func:`choose_start` picks a lengthscale, :func:`fit_posterior` finds
the optimum in ξ and γ for given frequencies, and :func:`held_back_loss` shows when learned
frequencies begin to fit noise. The loop of Algorithm 1 is in :mod:`undulatus.gp.batch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import entr, log_expit

from undulatus.gp.blocks import Array, Block, Pixels, PixelSource
from undulatus.gp.bound import (
    Statistics,
    accumulate,
    best_variance_ratio,
    features_and_moment_product,
    tighten,
)
from undulatus.gp.posterior import Posterior, WeightMoments

VARIANCE_LIMITS = (1e-4, 1e6)
"""Lowest and highest signal variance."""

LENGTHSCALE_SHARES = (2.0, 1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales to try, as shares of the mean distance between pixels."""

SEARCH_ROWS = 8192
"""Most pixels on which starting lengthscales are compared."""

SEARCH_PASSES = 5
"""Passes at each starting lengthscale."""

LEARNING_SHARE = 0.25
"""The stochastic solver learns frequencies from this share of the best lengthscale found."""

COARSENINGS = round(-np.log2(LEARNING_SHARE))
"""How often a starting lengthscale may be doubled: twice undoes LEARNING_SHARE = 1/4."""

HELD_BACK_SHARE = 0.2
"""Share of the rows that is held back from learning ..."""

HELD_BACK_ROWS = 2048
"""... and the most rows on which the held-back loss is computed."""

Split = tuple[Array, Array]
"""Numbers of the rows to learn frequencies from and of those held back, each sorted."""


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
class FourierFit:
    """A fitted classifier in feature space, and how the fit went."""

    frequencies: Array
    lengthscale: float
    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]
    n_iter: int
    outcome: str
    held_back_losses: tuple[float, ...] = ()


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
    max_passes: int,
    tol: float = 0.0,
    variance_limit: float = VARIANCE_LIMITS[1],
    initial_posterior: Posterior | None = None,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> PosteriorFit:
    """Update ξ (in place) and γ in turn at fixed frequencies, until the bound stalls.

    Each pass reads the pixels once and never lowers the bound. The first pass uses ``xi`` as
    given or, with an ``initial_posterior``, sets ξ to its optimum under that posterior; then
    ``xi`` may be None and ξ is not stored. If ``interruptible``, a KeyboardInterrupt after
    the first pass ends the fit at the last finished pass.
    """
    if initial_posterior is None:
        assert xi is not None
        statistics = accumulate(pixels, frequencies, signal_variance, xi)
    else:
        statistics = tighten(pixels, frequencies, signal_variance, initial_posterior, xi)
    posterior = statistics.posterior()
    fit = PosteriorFit(signal_variance, statistics, posterior, (statistics.bound(posterior),))
    try:
        for done in range(1, max_passes):
            report(done, fit.bounds[-1])
            fit = _next_pass(pixels, frequencies, fit, xi, variance_limit)
            if has_stalled(fit.bounds, tol):
                break
    except KeyboardInterrupt:
        if not interruptible:
            raise
        fit = replace(fit, interrupted=True)
    return fit


def _next_pass(
    pixels: PixelSource,
    frequencies: Array,
    fit: PosteriorFit,
    xi: Array | None,
    variance_limit: float,
) -> PosteriorFit:
    variance = fit.signal_variance
    statistics = tighten(pixels, frequencies, variance, fit.posterior, xi)
    ratio = best_variance_ratio(statistics, *variance_ratio_limits(variance, variance_limit))
    statistics = statistics.rescale(ratio)
    posterior = statistics.posterior()
    bounds = (*fit.bounds, statistics.bound(posterior))
    return PosteriorFit(variance * ratio, statistics, posterior, bounds)


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
        fit = _search_fit(subset, start, variance_limit)
        if fit.bounds[-1] > best_bound:
            best_bound = fit.bounds[-1]
            best = replace(start, signal_variance=fit.signal_variance)
    return best


def coarsen_start(
    pixels: Pixels, start: Start, held_back: Block | None, variance_limit: float
) -> tuple[Start, PosteriorFit]:
    """Double the lengthscale, twice at most, until the fit says something on held-back pixels.

    Frequencies so high that nothing carries over to the held-back pixels would only learn
    noise, as happens with many features. The test: the held-back pixels must be likelier
    under the fit to ``pixels`` than under the mere shares of their classes. Without held-back
    pixels the start stays as it is. The fit at the returned start is returned too.
    """
    for coarsenings_left in reversed(range(COARSENINGS + 1)):
        fit = _search_fit(pixels, start, variance_limit)
        if held_back is None or not coarsenings_left:
            break
        moments = fit.statistics.moments()
        loss = held_back_loss(held_back, start.frequencies, fit.signal_variance, moments)
        if loss < _class_share_loss(held_back):
            break
        start = replace(start, lengthscale=2.0 * start.lengthscale)
    return start, fit


def _search_fit(pixels: Pixels, start: Start, variance_limit: float) -> PosteriorFit:
    return fit_posterior(
        pixels,
        start.frequencies,
        min(start.signal_variance, variance_limit),
        np.ones(pixels.n_rows, dtype=pixels.dtype),
        max_passes=SEARCH_PASSES,
        variance_limit=variance_limit,
    )


def hold_back(n_rows: int, rng: np.random.Generator, groups: Array | None = None) -> Split:
    """Return the row numbers to learn from and those held back, each sorted.

    Rows of one group (a day, an image) stay together: neighbours of learned rows would say
    nothing about new ones. ``groups`` are the group numbers (n,), of at least two groups.
    """
    if groups is None:
        order = rng.permutation(n_rows)
        n_held = max(1, min(HELD_BACK_ROWS, int(HELD_BACK_SHARE * n_rows)))
        return np.sort(order[n_held:]), np.sort(order[:n_held])
    counts = np.bincount(groups)
    present = np.flatnonzero(counts)
    chosen, total = [], 0
    for group in rng.permutation(present):
        # Skip a group that is most of the data: it would leave little to learn from.
        if total + counts[group] <= HELD_BACK_SHARE * n_rows:
            chosen.append(group)
            total += counts[group]
    is_held = np.isin(groups, chosen or [present[np.argmin(counts[present])]])
    held = np.flatnonzero(is_held)
    sample = rng.choice(held, min(len(held), HELD_BACK_ROWS), replace=False)
    return np.flatnonzero(~is_held), np.sort(sample)


def number_groups(groups: Array) -> Array | None:
    """Return each row's group as a number, (n,), or None if there are fewer than two groups."""
    names, numbers = np.unique(groups, return_inverse=True)
    return np.asarray(numbers) if len(names) > 1 else None


def held_back_loss(
    block: Block, frequencies: Array, signal_variance: float, moments: WeightMoments
) -> float:
    """Return the mean negative log likelihood (nats) of held-back rows under a posterior."""
    covariance = moments.covariance.astype(block.x.dtype)
    z, moment_product = features_and_moment_product(
        block, frequencies, signal_variance, covariance
    )
    mean = z @ moments.mean.astype(z.dtype)
    variance = np.maximum(np.einsum("ij,ij->i", moment_product, z), 0.0)
    margin = 2.0 * block.v * mean / np.sqrt(1.0 + np.pi / 8.0 * variance)
    return float(-np.average(log_expit(margin.astype(np.float64)), weights=block.weight))


def _class_share_loss(block: Block) -> float:
    """Return the mean negative log likelihood of rows under the shares of their classes."""
    share = float(np.average(block.v > 0, weights=block.weight))
    return float(entr(share) + entr(1.0 - share))
