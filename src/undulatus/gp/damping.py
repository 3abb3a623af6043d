r"""Back to the prior: how the latent function fades away from the training data.

A sum of waves goes on for ever with the variance it has among the training pixels. Here a share
:math:`d(x)` of it is kept, and the rest is drawn afresh from the prior at every pixel,

.. math:: f(x) = b + d(x)\, z(x)^\top w + \sqrt{1 - d(x)^2}\; h(x), \qquad h(x) \sim N(0, \gamma),

so that the prior variance is :math:`\gamma` everywhere. With the posterior :math:`N(m, A^{-1})` of
the weights, the latent mean is :math:`b + d\, z^\top m` and the variance
:math:`d^2 z^\top A^{-1} z + (1 - d^2)\gamma`: among the training pixels those of the waves, far
from them those of the prior.

The share is that of a wave whose frequency is known up to a Gaussian error: each component
:math:`w_k` has the deviation :math:`s_k`, a small share of what is typical of feature k. The
expectation of its cosine is :math:`e^{-r^2/2}` times the cosine at the mean, with
:math:`r^2 = \sum_k s_k^2 x_k^2`. Beyond the range of the training data r² grows faster: by
:math:`\kappa e_k^2` for each feature, where :math:`e_k` is the distance from the range in units of
that between its end and the nearest quartile.

The level :math:`b = \mathrm{logit}(\text{share}) \sqrt{1 + \pi\gamma/8}` makes the predictive
probability there the share of the class in the training data (Eq. 12 with variance γ).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undulatus.gp.blocks import Array

EXCESS = 4.0
"""κ, how much faster waves fade beyond the range of the training data."""

SMALLEST_MARGIN = 0.05
"""Smallest distance between a quartile and the end of the range, in standardised units: a feature
that hardly varied says nothing about other values."""


def spreads(frequencies: Array, share: float) -> Array:
    """Return the deviation s of each feature's frequencies, (d,), a share of their size."""
    return np.asarray(share * np.sqrt(np.mean(frequencies**2, axis=0)))


def damping(x: Array, spread: Array) -> Array:
    """Return the share d of the waves that is kept at pixels ``x`` (n, d).

    For s (d,) the result is (n,); for those of M members, (M, d), it is (M, n).
    """
    squares = (spread**2).astype(x.dtype)
    return np.asarray(np.exp(-0.5 * (squares @ (x * x).T)))


def level(log_odds: float, signal_variance: float) -> float:
    """Return b, with which the prior's predictive probability has these log odds."""
    return float(log_odds * np.sqrt(1.0 + np.pi / 8.0 * signal_variance))


@dataclass(frozen=True)
class TrainingRange:
    """The range of each standardised feature, and how fast waves fade beyond it, (d,) each."""

    low: Array
    high: Array
    below: Array
    """Distance from the lowest value to the first quartile."""
    above: Array
    """Distance from the third quartile to the highest value."""

    @classmethod
    def from_quantiles(cls, low: Array, first: Array, third: Array, high: Array) -> TrainingRange:
        """Return the range from smallest value, quartiles and largest value, (d,) each."""
        below, above = (np.maximum(gap, SMALLEST_MARGIN) for gap in (first - low, high - third))
        return cls(low, high, below, above)

    def damping(self, x: Array) -> Array | None:
        """Return the factor on the damping at ``x`` (n, d), or None if no pixel is outside."""
        low, high = self.low.astype(x.dtype), self.high.astype(x.dtype)
        outside = np.flatnonzero(((x < low) | (x > high)).any(axis=1))
        if not len(outside):
            return None
        rows = x[outside]
        excess = np.maximum(low - rows, 0.0) / self.below
        excess += np.maximum(rows - high, 0.0) / self.above
        factor = np.ones(len(x), dtype=x.dtype)
        factor[outside] = np.exp(-0.5 * EXCESS * np.einsum("ij,ij->i", excess, excess))
        return factor


@dataclass(frozen=True)
class Fading:
    """How the latent function of a fit returns to its prior, at prediction.

    A shift of the log odds (a change of the class prior) is added to the latent mean. Where the
    variance is fresh from the prior it is larger, so that it shifts the predictive log odds far
    from the training data, too.

    All are those of M members, with C latent functions each, at once.
    """

    spread: Array
    """Deviation of each feature's frequencies, (M, d); zeros if waves go on for ever."""
    training_range: TrainingRange | None
    signal_variance: Array
    """(M, C, 1)"""
    level: Array
    """(M, C, 1)"""
    shift: float = 0.0

    def share(self, x: Array) -> Array | None:
        """Return the share d of the waves that is kept, (M, 1, n); None if it is 1 everywhere."""
        if self.training_range is None or not self.spread.any():
            return None
        kept, within = damping(x, self.spread), self.training_range.damping(x)
        return (kept if within is None else kept * within)[..., None, :]

    def fresh_variance(self, share: Array) -> Array:
        """Return (1 - d²) γ, (M, C, n)."""
        return (1.0 - share**2) * np.asarray(self.signal_variance, dtype=share.dtype)

    def offset(self, fresh: Array) -> Array:
        """Return what is added to the waves: the level and the shift, (M, C, n)."""
        own = np.broadcast_to(np.asarray(self.level, dtype=fresh.dtype), fresh.shape)
        if self.shift == 0.0:
            return own
        return own + self.shift * np.sqrt(1.0 + np.pi / 8.0 * fresh)

    def mean(self, x: Array, wave_mean: Array) -> Array:
        """Return the latent means at ``x`` (n, d), given those of undamped waves, (M, C, n)."""
        share = self.share(x)
        if share is None:
            return wave_mean + (self.level + self.shift)
        return share * wave_mean + self.offset(self.fresh_variance(share))

    def moments(self, x: Array, wave_mean: Array, wave_variance: Array) -> tuple[Array, Array]:
        """Return latent means and variances, given those of the undamped waves, (M, C, n)."""
        share = self.share(x)
        if share is None:
            return wave_mean + (self.level + self.shift), wave_variance
        fresh = self.fresh_variance(share)
        return share * wave_mean + self.offset(fresh), share**2 * wave_variance + fresh
