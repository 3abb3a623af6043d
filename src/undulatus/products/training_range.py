"""The values that a classifier learned from, and how far outside them a pixel lies.

A classifier keeps quantiles of its training features, nothing of how features go together. They
show two ways to lie outside:

- one feature has a value beyond all those of training;
- most features have rare values, beyond the central 98 % of training, all at once. Digital numbers
  given as reflectances are like this: each is a possible, very dark value, but never all of them.
  In training at most 4 % of the pixels can be like this, however features are correlated, as 2 %
  of the values of each feature are rare (Markov's inequality).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

ROUNDING = 1e-4
"""A value may leave the range by this share of it, as chunks round features differently, ..."""

SINGLE_ROUNDING = 4.0 * float(np.finfo(np.float32).eps)
"""... and by this share of its size, as maps hold features in single precision."""

FEW_FEATURES = 4
"""So many features at least must be rare to place a pixel outside, or all if there are fewer."""

FARTHEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TrainingRange:
    """Values of each feature in training, (d,) each.

    ``low`` and ``high`` are the 1 % and 99 % quantiles: what lies beyond them is rare.
    """

    lowest: Array
    low: Array
    median: Array
    high: Array
    highest: Array

    @classmethod
    def of(cls, classifier: Any) -> Self | None:
        """Return the range of a fitted classifier; None if it keeps no quantiles, as ours do."""
        quantiles = getattr(classifier, "feature_quantiles_", None)
        return None if quantiles is None else cls(*quantiles[[0, 1, 3, 5, 6]])

    @property
    def width(self) -> Array:
        """The unit of distances, (d,): the central 98 % of training, never zero."""
        central, whole = self.high - self.low, self.highest - self.lowest
        # A constant feature has a scale of one, as in standardisation.
        return np.where(central > 0.0, central, np.where(whole > 0.0, whole, 1.0))

    @property
    def slack(self) -> Array:
        """How far rounding may move a value of each feature, (d,)."""
        size = np.maximum(np.abs(self.lowest), np.abs(self.highest))
        return np.asarray(ROUNDING * (self.highest - self.lowest) + SINGLE_ROUNDING * size)

    @property
    def rare_features(self) -> int:
        """How many features with rare values place a pixel outside: more than half of them."""
        d = len(self.median)
        return min(d, max(FEW_FEATURES, d // 2 + 1))

    def is_rare(self, values: Array) -> Array:
        """Return which values lie beyond the central 98 % of training, (n, d) bool."""
        # In the type of the values: single precision compared with double is slow.
        with np.errstate(over="ignore"):
            low = (self.low - self.slack).astype(values.dtype)
            high = (self.high + self.slack).astype(values.dtype)
        return np.asarray((values < low) | (values > high))

    def distance(self, values: Array) -> Array:
        """Return how far each row of finite values, (n, d), lies outside, (n,) float32.

        Zero is inside. Otherwise it is the larger of the largest distance of a feature beyond
        all its values in training, and, where :attr:`rare_features` of them are rare, the
        distance beyond the central 98 % that so many features exceed; both in units of
        :attr:`width`.
        """
        count = np.count_nonzero(self.is_rare(values), axis=1)
        # A value beyond all of training is rare too: the other rows need no closer look.
        doubtful = np.flatnonzero(count)
        distance = np.zeros(len(values), np.float32)
        with np.errstate(over="ignore"):
            found = self._distance_of(values[doubtful].astype(np.float64), count[doubtful])
            distance[doubtful] = np.minimum(found, FARTHEST)
        return distance

    def _distance_of(self, values: Array, count: Array) -> Array:
        """Return the distance of rows of which ``count`` features are rare."""
        beyond = np.maximum(self.lowest - values, values - self.highest)
        beyond[beyond <= self.slack] = 0.0
        distance = np.max(beyond / self.width, axis=1, initial=0.0)
        enough = self.rare_features
        rows = np.flatnonzero(count >= enough)
        excess = np.maximum(self.low - values[rows], values[rows] - self.high) / self.width
        common = -np.partition(-excess, enough - 1, axis=1)[:, enough - 1]
        distance[rows] = np.maximum(distance[rows], common)
        return np.asarray(distance)
