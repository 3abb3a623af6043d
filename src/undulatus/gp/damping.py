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

from dataclasses import dataclass, replace

import numpy as np

from undulatus.gp.arrays import Array, Place, is_tensor, like, namespace, row_dots

EXCESS = 4.0
"""κ, how much faster waves fade beyond the range of the training data."""

SMALLEST_MARGIN = 0.05
"""Smallest distance between a quartile and the end of the range, in standardised units: a feature
that hardly varied says nothing about other values."""


def spreads(frequencies: Array, share: float) -> Array:
    """Return the deviation s of each feature's frequencies, (d,), a share of their size."""
    xp = namespace(frequencies)
    return share * xp.sqrt(xp.mean(frequencies**2, axis=-2))


def damping(x: Array, spread: Array) -> Array:
    """Return the share d of the waves that is kept at pixels ``x`` (n, d).

    For s (d,) the result is (n,); for those of M members, (M, d), it is (M, n), and the pixels
    may be those of each member, (M, n, d).
    """
    squares = like(spread**2, x)
    if x.ndim > 2:
        return namespace(x).exp(-0.5 * (x * x @ squares[..., None])[..., 0])
    return namespace(x).exp(-0.5 * (squares @ (x * x).T))


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

    def on(self, place: Place) -> TrainingRange:
        """Return the same, with its numbers on the device where pixels will be."""
        return TrainingRange(*map(place.array, (self.low, self.high, self.below, self.above)))

    def damping(self, x: Array) -> Array | None:
        """Return the factor on the damping at ``x`` (n, d), or None if no pixel is outside."""
        if is_tensor(x):
            # To find the rows outside would wait for the card.
            return self._damping_of(x)
        outside = np.flatnonzero(((x < like(self.low, x)) | (x > like(self.high, x))).any(axis=1))
        if not len(outside):
            return None
        factor = np.ones(len(x), dtype=x.dtype)
        factor[outside] = self._damping_of(x[outside])
        return factor

    def _damping_of(self, x: Array) -> Array:
        xp = namespace(x)
        excess = xp.maximum(like(self.low, x) - x, 0.0) / like(self.below, x)
        excess += xp.maximum(x - like(self.high, x), 0.0) / like(self.above, x)
        return xp.exp(-0.5 * EXCESS * row_dots(excess, excess))


@dataclass(frozen=True)
class Fading:
    """How the latent function of a fit returns to its prior, at prediction.

    Models that versions before 0.3 corrected for other frequencies of two classes have a shift of
    the latent mean, which is larger where the variance is fresh from the prior.

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

    def on(self, place: Place) -> Fading:
        """Return the same, with its numbers on the device where pixels will be."""
        if not place.on_card:
            return self
        if not np.any(self.spread):
            return replace(self, training_range=None, level=place.array(self.level))
        return Fading(
            place.array(self.spread),
            self.training_range and self.training_range.on(place),
            place.array(self.signal_variance),
            place.array(self.level),
            self.shift,
        )

    def share(self, x: Array) -> Array | None:
        """Return the share d of the waves that is kept, (M, 1, n); None if it is 1 everywhere."""
        if self.training_range is None or (not is_tensor(x) and not self.spread.any()):
            return None
        kept, within = damping(x, self.spread), self.training_range.damping(x)
        return (kept if within is None else kept * within)[..., None, :]

    def fresh_variance(self, share: Array) -> Array:
        """Return (1 - d²) γ, (M, C, n)."""
        return (1.0 - share**2) * like(self.signal_variance, share)

    def offset(self, fresh: Array) -> Array:
        """Return what is added to the waves: the level and the shift, (M, C, n)."""
        xp = namespace(fresh)
        own = xp.broadcast_to(like(self.level, fresh), fresh.shape)
        if self.shift == 0.0:
            return own
        return own + self.shift * xp.sqrt(1.0 + np.pi / 8.0 * fresh)

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
