r"""The waves that a fitted Fourier classifier is made of, and how much each of them matters.

The latent mean is a sum of D waves of the features,

.. math:: f(x) = \sum_i a_i \cos(\phi_i - \delta_i), \qquad \phi_i = w_i^\top (x - \bar x),

with :math:`\bar x` the mean of the training rows. Over these the phase :math:`\phi_i` has
the mean nought and a deviation :math:`s_i`; how much a wave moves the latent mean is not its
amplitude alone, as one whose phase hardly varies acts like a constant. With a Gaussian phase,

.. math:: \mathrm{Var}[a \cos(\phi - \delta)]
    = \tfrac12 a^2 \bigl(1 - e^{-s^2}\bigr) \bigl(1 - e^{-s^2} \cos 2\delta\bigr),

whose root is the wave's weight. Waves may cancel each other: weights do not tell.

The deviation :math:`s_i^2 = \sum_c w_{ic}^2 \sigma_c^2` is that of uncorrelated features, such as
principal components. Of others only the variances :math:`\sigma_c^2` are kept with a model: where
features vary together, a wave of their difference gets too large a deviation, and its weight may
be too large with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from undulatus.estimators.fourier import FourierGPC
from undulatus.gp.fourier import amplitudes_and_delays

Array = npt.NDArray[Any]

_QUARTILES, _MEDIAN, _ENDS = [2, 4], 3, [0, -1]
"""Places among the levels of ``feature_quantiles_``."""
_QUARTILE_DISTANCE = 1.3489795
"""Between the quartiles of a Gaussian of deviation one."""


@dataclass(frozen=True)
class Waves:
    r"""D waves of d features, the weightiest first.

    A cosine does not tell a frequency from its negative: frequencies here point where the latent
    mean rises on average, towards the second class, :math:`0 \le \delta \le \pi`. On average
    alone: a wave whose phase varies by several radians rises and falls.
    """

    frequencies: Array
    """(D, d), radians per unit of a feature, as it enters the classifier."""
    amplitudes: Array
    """(D,)."""
    delays: Array
    """(D,), radians, at the mean of the features."""
    centre: Array
    """Mean of the features over the training rows, (d,)."""
    deviation: Array
    """Their standard deviations, (d,)."""

    @property
    def turns(self) -> Array:
        """Standard deviation of each phase, radians, (D,), features taken as uncorrelated."""
        return np.asarray(np.linalg.norm(self.frequencies * self.deviation, axis=1))

    @property
    def weights(self) -> Array:
        """Standard deviation of each wave over the training rows, (D,)."""
        return wave_deviation(self.amplitudes, self.delays, self.turns)


def wave_deviation(amplitudes: Array, delays: Array, turns: Array) -> Array:
    """Return the standard deviation of a cos(φ - δ) for Gaussian φ of mean nought.

    The arguments (amplitude a, delay δ, deviation s of φ) broadcast.
    """
    # 1 - exp(-s²) without loss of digits; 1 - e c = (1 - e) + e (1 - c) likewise.
    varying = -np.expm1(-(turns**2))
    bend = varying + np.exp(-(turns**2)) * 2.0 * np.sin(delays) ** 2
    return np.asarray(np.abs(amplitudes) * np.sqrt(0.5 * varying * bend))


def waves_of(classifier: FourierGPC) -> Waves:
    """Return the waves of a fitted RFFGPC or VFFGPC."""
    check_is_fitted(classifier, "posterior_")
    amplitudes, delays = amplitudes_and_delays(
        classifier.posterior_.mean, classifier.signal_variance_
    )
    standardisation = classifier.standardisation_
    frequencies = classifier.frequencies_ / standardisation.scale
    centre, deviation = _distribution(classifier)
    delays = delays - frequencies @ (centre - standardisation.centre)
    # cos(p) = cos(-p): the sign for which the mean slope, a exp(-s²/2) sin(δ), is positive.
    delays = np.remainder(delays + np.pi, 2.0 * np.pi) - np.pi
    sign = np.where(delays < 0.0, -1.0, 1.0)
    waves = Waves(frequencies * sign[:, None], amplitudes, delays * sign, centre, deviation)
    order = np.argsort(-waves.weights, kind="stable")
    return Waves(
        waves.frequencies[order],
        waves.amplitudes[order],
        waves.delays[order],
        centre,
        deviation,
    )


def _distribution(classifier: FourierGPC) -> tuple[Array, Array]:
    """Return mean and deviation of the features; from quartiles if they are not standardised."""
    quantiles = classifier.feature_quantiles_
    if not classifier.standardize:
        low, high = quantiles[_QUARTILES]
        return quantiles[_MEDIAN], (high - low) / _QUARTILE_DISTANCE
    standardisation = classifier.standardisation_
    lowest, highest = quantiles[_ENDS]
    # A constant feature has a scale of one; no deviation is larger than the range.
    return standardisation.centre, np.minimum(standardisation.scale, highest - lowest)
