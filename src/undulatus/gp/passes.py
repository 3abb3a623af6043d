"""Rows held back from learning: they tell when frequencies begin to fit the noise.

Passes over all pixels at fixed frequencies, and the choice of where to start.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import entr, log_expit

from undulatus.gp.blocks import Block, Pixels, PixelSource
from undulatus.gp.bound import (
    Statistics,
    accumulate,
    best_variance_ratio,
    features_and_reach,
    tighten,
)
from undulatus.gp.posterior import Moments, Posterior

Array = npt.NDArray[Any]

HELD_BACK_ROWS = 2048

HELD_BACK_SHARE = 0.2
"""Rows held back: this share of few, that number of many; of groups, this share of the rows."""


def hold_back(
    n_rows: int, rng: np.random.Generator, groups: Array | None = None
) -> tuple[Array, Array]:
    """Return the rows to learn from and the rows to look at, sorted.

    Rows of one group (a day, an image) stay together: neighbours of what is learned would tell
    nothing of what is new. ``groups`` are numbers (n,) of at least two groups.
    """
    if groups is None:
        order = rng.permutation(n_rows)
        n_held = max(1, min(HELD_BACK_ROWS, int(HELD_BACK_SHARE * n_rows)))
        return np.sort(order[n_held:]), np.sort(order[:n_held])
    counts = np.bincount(groups)
    present = np.flatnonzero(counts)
    chosen, total = [], 0
    for group in rng.permutation(present):
        # A group that is most of the data would leave little to learn from.
        if total + counts[group] <= HELD_BACK_SHARE * n_rows:
            chosen.append(group)
            total += counts[group]
    spared = np.isin(groups, chosen or [present[np.argmin(counts[present])]])
    held = np.flatnonzero(spared)
    looked_at = rng.choice(held, min(len(held), HELD_BACK_ROWS), replace=False)
    return np.flatnonzero(~spared), np.sort(looked_at)


def number_groups(groups: Array) -> Array | None:
    """Return the number of the group of each row, (n,), or None where there are not two."""
    names, numbers = np.unique(groups, return_inverse=True)
    return np.asarray(numbers) if len(names) > 1 else None


def held_back_loss(
    block: Block, frequencies: Array, signal_variance: float, moments: Moments
) -> float:
    """Return the mean negative log likelihood (nats) of rows under a posterior of the weights."""
    covariance = moments.covariance.astype(block.x.dtype)
    z, reach = features_and_reach(block, frequencies, signal_variance, covariance)
    mean = z @ moments.mean.astype(z.dtype)
    variance = np.maximum(np.einsum("ij,ij->i", reach, z), 0.0)
    margin = 2.0 * block.v * mean / np.sqrt(1.0 + np.pi / 8.0 * variance)
    return float(-np.average(log_expit(margin.astype(np.float64)), weights=block.weight))


LENGTHSCALE_SHARES = (2.0, 1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales that are tried, as shares of the mean distance between pixels."""

SEARCH_ROWS = 8192

SEARCH_PASSES = 5

SETTLE_PASSES = 20

COARSENINGS = 2
"""How often a starting lengthscale may be doubled: back to that of random frequencies."""

VARIANCE_LIMITS = (1e-4, 1e6)


@dataclass(frozen=True)
class Start:
    """Where fitting begins: unit frequencies w (D, d), a lengthscale σ, a signal variance γ."""

    unit_frequencies: Array
    lengthscale: float
    signal_variance: float = 1.0

    @property
    def at(self) -> tuple[Array, float]:
        """Effective frequencies and signal variance."""
        return self.unit_frequencies / self.lengthscale, self.signal_variance


@dataclass(frozen=True)
class Settled:
    """The optimum in ξ and γ for given frequencies."""

    signal_variance: float
    statistics: Statistics
    posterior: Posterior
    bounds: tuple[float, ...]
    interrupted: bool = False


def settle(
    pixels: PixelSource,
    frequencies: Array,
    signal_variance: float,
    xi: Array | None,
    *,
    passes: int,
    tol: float = 0.0,
    variance_limit: float = VARIANCE_LIMITS[1],
    start: Posterior | None = None,
    interruptible: bool = False,
    report: Callable[[int, float], None] = lambda done, bound: None,
) -> Settled:
    """Tighten ξ (in place) and γ in turn, frequencies held, until the bound stalls.

    Each pass reads the pixels once and never lowers the bound. The first takes ξ as it
    is, or, given a posterior to ``start`` from, at its optimum under that one: then ``xi``
    may be None, and none is kept. If ``interruptible``, an interrupt after the first pass
    ends at the last finished one.
    """
    if start is None:
        assert xi is not None
        statistics = accumulate(pixels, frequencies, signal_variance, xi)
    else:
        statistics = tighten(pixels, frequencies, signal_variance, start, xi)
    posterior = statistics.posterior()
    settled = Settled(signal_variance, statistics, posterior, (statistics.bound(posterior),))
    try:
        for done in range(1, passes):
            report(done, settled.bounds[-1])
            settled = _settle_once(pixels, frequencies, settled, xi, variance_limit)
            if has_stalled(settled.bounds, tol):
                break
    except KeyboardInterrupt:
        if not interruptible:
            raise
        settled = replace(settled, interrupted=True)
    return settled


def _settle_once(
    pixels: PixelSource,
    frequencies: Array,
    settled: Settled,
    xi: Array | None,
    variance_limit: float,
) -> Settled:
    variance = settled.signal_variance
    statistics = tighten(pixels, frequencies, variance, settled.posterior, xi)
    ratio = best_variance_ratio(
        statistics,
        low=max(0.1, min(VARIANCE_LIMITS[0] / variance, 1.0)),
        high=min(10.0, max(variance_limit / variance, 1.0)),
    )
    statistics = statistics.rescale(ratio)
    posterior = statistics.posterior()
    bounds = (*settled.bounds, statistics.bound(posterior))
    return Settled(variance * ratio, statistics, posterior, bounds)


def settle_start(
    pixels: Pixels, start: Start, held_back: Block | None, variance_limit: float
) -> tuple[Start, Settled]:
    """Return where learning begins, and the optimum there on a few pixels.

    Frequencies so high that nothing carries over to the held-back pixels would only learn the
    noise, as they do among many features. While those pixels are likelier under the mere shares
    of their classes, the lengthscale is doubled, twice at most.
    """
    hopeless = np.inf if held_back is None else _share_loss(held_back)
    for left in reversed(range(COARSENINGS + 1)):
        frequencies, variance = start.at
        settled = settle(
            pixels,
            frequencies,
            min(variance, variance_limit),
            np.ones(pixels.n_rows, dtype=pixels.dtype),
            passes=SEARCH_PASSES,
            variance_limit=variance_limit,
        )
        if held_back is None or not left:
            break
        moments = settled.statistics.moments()
        if held_back_loss(held_back, frequencies, settled.signal_variance, moments) < hopeless:
            break
        start = replace(start, lengthscale=2.0 * start.lengthscale)
    return start, settled


def _share_loss(block: Block) -> float:
    """Return the mean negative log likelihood of rows under the shares of their classes."""
    share = float(np.average(block.v > 0, weights=block.weight))
    return float(entr(share) + entr(1.0 - share))


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
        lengthscale = share * mean_distance
        xi = np.ones(subset.n_rows, dtype=subset.dtype)
        tried = settle(
            subset,
            unit_frequencies / lengthscale,
            1.0,
            xi,
            passes=SEARCH_PASSES,
            variance_limit=variance_limit,
        )
        if tried.bounds[-1] > best_bound:
            best_bound = tried.bounds[-1]
            best = Start(unit_frequencies, lengthscale, tried.signal_variance)
    return best


def has_stalled(bounds: Sequence[float], tol: float) -> bool:
    """Whether the last step raised the bound by less than ``tol`` of its size.

    A hundred nats are added to the size: on a few rows, hundredths of a nat mean nothing.
    """
    return bounds[-1] - bounds[-2] < tol * (abs(bounds[-1]) + 100.0)


@dataclass(frozen=True)
class Fit:
    """A fitted classifier in feature space, and how it came about."""

    frequencies: Array
    lengthscale: float
    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]
    n_iter: int
    outcome: str
    held_back_losses: tuple[float, ...] = ()
