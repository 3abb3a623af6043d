"""Rows held back from learning: they tell when frequencies begin to fit the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_expit

from undulatus.gp.blocks import Block
from undulatus.gp.evidence import features_and_reach
from undulatus.gp.posterior import Moments

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
