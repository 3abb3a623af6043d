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

Fitted steps of a pipeline as affine maps, and the two ways back through them.

A step takes a row :math:`x` to :math:`y = M (x - c)`. A linear function :math:`w^\top y` is
:math:`(M^\top w)^\top (x - c)`: frequencies go back through :math:`M^\top`. What a row was is
known from :math:`y` by regression, :math:`x \approx c + B y`: covariances go back through
:math:`B`, :math:`\mathrm{Cov}(x, s) = B\,\mathrm{Cov}(y, s)` for any :math:`s` linear in
:math:`y`. For scalers :math:`B = M^{-1}`; for principal components it is the matrix that puts a
row together from them, as what they leave out is uncorrelated with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.estimators.fourier import FourierGPC
from undulatus.estimators.pca import SpectralPCA
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
    def phase_deviations(self) -> Array:
        """Standard deviation of each phase, radians, (D,), features taken as uncorrelated."""
        return np.asarray(np.linalg.norm(self.frequencies * self.deviation, axis=1))

    @property
    def weights(self) -> Array:
        """Standard deviation of each wave over the training rows, (D,)."""
        return wave_deviation(self.amplitudes, self.delays, self.phase_deviations)


def wave_deviation(amplitudes: Array, delays: Array, phase_deviations: Array) -> Array:
    """Return the standard deviation of a cos(φ - δ) for Gaussian φ of mean nought.

    The arguments (amplitude a, delay δ, deviation s of φ) broadcast.
    """
    # 1 - exp(-s²) without loss of digits; 1 - e c = (1 - e) + e (1 - c) likewise.
    varying = -np.expm1(-(phase_deviations**2))
    bend = varying + np.exp(-(phase_deviations**2)) * 2.0 * np.sin(delays) ** 2
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


STEPS = (
    SpectralPCA,
    PCA,
    IncrementalPCA,
    StandardScaler,
    MinMaxScaler,
    MaxAbsScaler,
    RobustScaler,
)
"""What is known to be affine."""


@dataclass(frozen=True)
class Affine:
    """One step, from d features to k; matrices of (d,) are diagonal."""

    centre: Array
    """What goes to nought, (d,)."""
    matrix: Array
    """M, (k, d) or (d,)."""
    restoring: Array
    """Bᵗ, (k, d) or (d,)."""
    left_out: Array
    """Variance of what goes in and does not come out, (d,)."""
    uncorrelated: bool
    """Whether what comes out is uncorrelated over the rows it was fitted on."""
    noise: Array | None = None
    """Noise of what goes in, (d,), if the step was told."""

    def carry_back(self, frequencies: Array) -> Array:
        """Return frequencies (D, k), radians per unit out, as radians per unit in, (D, d)."""
        return _times(frequencies, self.matrix)

    def restore(self, covariances: Array) -> Array:
        """Return covariances with what comes out, (D, k), as those with what goes in, (D, d)."""
        return _times(covariances, self.restoring)

    def restore_variances(self, variances: Array) -> Array:
        """Return variances of independent errors in what comes out, (D, k), as of what goes in."""
        return self.left_out + _times(variances, self.restoring**2)


def affine_steps(steps: Iterable[Any]) -> list[Affine]:
    """Return fitted transformers as affine maps in order; pipelines among them are unfolded."""
    found: list[Affine] = []
    for step in steps:
        if step is None or step == "passthrough":
            continue
        if isinstance(step, Pipeline):
            found += affine_steps(inner for _, inner in step.steps)
        else:
            found.append(_affine(step))
    return found


def _times(rows: Array, matrix: Array) -> Array:
    return np.asarray(rows * matrix if matrix.ndim == 1 else rows @ matrix)


def _affine(step: Any) -> Affine:
    if isinstance(step, SpectralPCA):
        noise = None if step.noise is None else step.noise_
        parts = step.components_ / step.noise_, step.components_ * step.noise_
        kept, share = step.explained_variance_.sum(), step.explained_variance_ratio_.sum()
        lost = kept / share - kept if share > 0.0 else 0.0
        left_out = step.noise_**2 * _left_out(step.components_, lost)
        return Affine(step.mean_, *parts, left_out, uncorrelated=True, noise=noise)
    if isinstance(step, (PCA, IncrementalPCA)):
        scale = np.ones(len(step.components_))
        if step.whiten:
            # As scikit-learn has it: components without variance are not divided by nought.
            scale = np.maximum(np.sqrt(step.explained_variance_), np.finfo(np.float64).eps)
        parts = step.components_ / scale[:, None], step.components_ * scale[:, None]
        lost = step.noise_variance_ * (step.n_features_in_ - len(scale))
        left_out = _left_out(step.components_, lost)
        return Affine(step.mean_, *parts, left_out, uncorrelated=True)
    if isinstance(step, (StandardScaler, RobustScaler, MaxAbsScaler, MinMaxScaler)):
        scale, centre = _scale_and_centre(step)
        return Affine(centre, 1.0 / scale, scale, np.zeros(len(scale)), uncorrelated=False)
    taken = ", ".join(kind.__name__ for kind in STEPS)
    raise InputError(
        f"Frequencies cannot be carried back through a {type(step).__name__}, which is not known "
        f"to be linear.\n  taken: {taken}\nFit a model with these before its classifier."
    )


def _left_out(components: Array, lost: float) -> Array:
    """Return the variance of each feature beyond the components, (d,), ``lost`` in all.

    It is taken as the same in every direction that was left out (Tipping & Bishop 1999,
    doi:10.1111/1467-9868.00196).
    """
    count, d = components.shape
    beyond = np.maximum(1.0 - np.sum(components**2, axis=0), 0.0)
    return np.asarray(beyond * max(lost, 0.0) / max(d - count, 1))


def _scale_and_centre(step: Any) -> tuple[Array, Array]:
    """Return what a scaler divides by, and what it subtracts before that, (d,) each."""
    scale, centre = step.scale_, None
    if isinstance(step, MinMaxScaler):
        return 1.0 / scale, -step.min_ / scale
    if isinstance(step, StandardScaler) and step.with_mean:
        centre = step.mean_
    elif isinstance(step, RobustScaler):
        centre = step.center_
    d = step.n_features_in_
    return np.ones(d) if scale is None else scale, np.zeros(d) if centre is None else centre
