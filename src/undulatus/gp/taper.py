r"""Back to the prior: how the latent function is tapered away from the training data.

A sum of cosines goes on for ever with the variance it has among the training rows. Here a share
:math:`d(x)` of it is kept, and the rest is drawn from the prior at every row,

.. math:: f(x) = b + d(x)\, z(x)^\top w + \sqrt{1 - d(x)^2}\; h(x), \qquad h(x) \sim N(0, \gamma),

so that the prior variance is :math:`\gamma` everywhere. With the posterior :math:`N(m, A^{-1})` of
the weights, the latent mean is :math:`b + d\, z^\top m` and the variance
:math:`d^2 z^\top A^{-1} z + (1 - d^2)\gamma`: among the training rows those of the features, far
from them those of the prior.

The share is that of a wave whose frequency is known up to a Gaussian error: each component
:math:`w_k` has the deviation :math:`s_k`, a small share of what is typical of feature k. The
expectation of its cosine is :math:`e^{-r^2/2}` times the cosine at the mean, with
:math:`r^2 = \sum_k s_k^2 x_k^2`. Beyond the range of the training data r² grows faster: by
:math:`\kappa E^2 / (1 + E)` with :math:`E = \sum_k e_k^2`, where :math:`e_k` is the distance from
the range in units of that between its end and the nearest quartile. The ends of a range are the
extremes of a sample: what lies just outside says little, what lies far outside is something else.

The prior mean :math:`b = \mathrm{logit}(\text{share}) \sqrt{1 + \pi\gamma/8}` makes the predictive
probability there the share of the class in the training data (Eq. 12 with variance γ).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from undulatus.gp.backends import HOST, Array, Backend

EXCESS = 4.0
"""κ, how much faster the taper falls far beyond the range of the training data."""

EDGE_SLOPE, EARLIER_EDGE_SLOPE = 0.0, 1.0
"""How fast it begins to fall at the edge, as a share of κ; the second is that of models that
versions before 0.3 fitted."""

SMALLEST_MARGIN = 0.05
"""Smallest distance between a quartile and the end of the range, in standardised units: a feature
that hardly varied says nothing about other values."""


def frequency_deviations(frequencies: Array, taper: float, xp: Backend = HOST) -> Array | None:
    """Return the deviation s of each feature's frequencies, (d,), ``taper`` times their size.

    None without a taper. Of several estimators, (M, D, d), it is (M, d).
    """
    return taper * xp.sqrt(xp.mean(frequencies**2, axis=-2)) if taper else None


def kept_share(x: Array, deviations: Array, xp: Backend = HOST) -> Array:
    """Return the share d of the features that is kept at rows ``x`` (n, d).

    For s (d,) the result is (n,); for those of M estimators, (M, d), it is (M, n), and the rows
    may be those of each estimator, (M, n, d). Both are in the same precision.
    """
    squares = deviations**2
    if x.ndim > 2:
        return xp.exp(-0.5 * (x * x @ squares[..., None])[..., 0])
    return xp.exp(-0.5 * (squares @ (x * x).T))


def tapered_features(
    x: Array, frequencies: Array, deviations: Array | None, xp: Backend
) -> tuple[Array, Array]:
    """Return features d z of unit signal variance, (n, k), and 1 - d², (n,).

    The features are in the workspace. Without ``deviations`` (d,), d is 1. All may be those of
    several estimators, with one more axis in front.
    """
    z = xp.waves(x, frequencies)
    z *= float(1.0 / np.sqrt(frequencies.shape[-2]))
    if deviations is None:
        return z, xp.zeros_like(z[..., 0])
    share = kept_share(x, xp.astype(deviations, x.dtype), xp)
    z *= share[..., None]
    return z, 1.0 - share**2


def prior_mean(log_odds: float, signal_variance: float) -> float:
    """Return b, with which the prior's predictive probability has these log odds."""
    return float(log_odds * np.sqrt(1.0 + np.pi / 8.0 * signal_variance))


def range_share(
    x: Array, ends: Array, edge_slope: float = EDGE_SLOPE, xp: Backend = HOST
) -> Array | None:
    """Return the factor on the share at ``x`` (n, d), or None if no row is outside the range.

    ``ends`` (4, d) are the smallest value, the quartiles and the largest value of each feature,
    ``edge_slope`` the slope there, as a share of κ.
    """
    low, first, third, high = ends
    # To find the rows outside would wait for a device.
    outside: Array | slice = slice(None)
    if not xp.on_device:
        outside = np.flatnonzero(((x < low) | (x > high)).any(axis=1))
        if not len(outside):
            return None
    excess = xp.maximum(low - x[outside], 0.0) / xp.maximum(first - low, SMALLEST_MARGIN)
    excess += xp.maximum(x[outside] - high, 0.0) / xp.maximum(high - third, SMALLEST_MARGIN)
    factor = xp.ones_like(x[:, 0])
    squares = xp.row_dots(excess, excess)
    # κ E (E + slope) / (E + 1), which is 4 E of earlier models.
    factor[outside] = xp.exp(-0.5 * EXCESS * squares * ((squares + edge_slope) / (squares + 1.0)))
    return factor


@dataclass(frozen=True)
class Taper:
    """How the latent functions of M estimators, C each, return to their priors at prediction.

    Arrays are where rows are, and in their precision.
    """

    xp: Backend
    deviations: Array | None
    """Of each feature's frequencies, (M, d); None if features go on for ever."""
    ends: Array
    """Smallest value, quartiles and largest value of each standardised feature, (4, d)."""
    signal_variance: Array
    """(M, C, 1)"""
    prior_mean: Array
    """(M, C, 1)"""
    shift: float = 0.0
    """Added to the log odds by models of earlier versions: more to the mean where the variance is
    that of the prior."""
    edge_slope: float = EDGE_SLOPE
    """How fast it begins to fall at the edge of the range, as a share of κ."""

    def share(self, x: Array) -> Array | None:
        """Return the share d of the features that is kept, (M, 1, n); None if it is 1."""
        if self.deviations is None:
            return None
        kept, within = (
            kept_share(x, self.deviations, self.xp),
            range_share(x, self.ends, self.edge_slope, self.xp),
        )
        return (kept if within is None else kept * within)[..., None, :]

    def moments(
        self, share: Array | None, mean: Array, variance: Array | float
    ) -> tuple[Array, Any]:
        """Return latent means and variances, given those of untapered features, (M, C, n)."""
        if share is None:
            return mean + (self.prior_mean + self.shift), variance
        untapered = (1.0 - share**2) * self.signal_variance
        prior_mean = self.prior_mean
        if self.shift:
            prior_mean = prior_mean + self.shift * self.xp.sqrt(1.0 + np.pi / 8.0 * untapered)
        return share * mean + prior_mean, share**2 * variance + untapered
