r"""What a fitted Fourier classifier responds to: its cosines, traced back through a pipeline.

The latent mean is a sum of D cosines of the features,

.. math:: f(x) = \sum_i a_i \cos(\phi_i - \delta_i), \qquad \phi_i = w_i^\top (x - \bar x),

with :math:`\bar x` the mean of the training rows, over which the phase :math:`\phi_i` has mean
zero and standard deviation :math:`s_i`. A large amplitude alone does not make a cosine matter: one
whose phase hardly varies acts like a constant. With a Gaussian phase,

.. math:: \mathrm{Var}[a \cos(\phi - \delta)]
    = \tfrac12 a^2 \bigl(1 - e^{-s^2}\bigr) \bigl(1 - e^{-s^2} \cos 2\delta\bigr),

whose root is the cosine's weight. Weights do not show whether cosines cancel each other. A
classifier of more than two classes has a latent function a class: the same frequencies, with
amplitudes, delays and weights of its own.

The deviation :math:`s_i^2 = \sum_c w_{ic}^2 \sigma_c^2` is exact for uncorrelated features, such
as principal components. A model keeps only the variances :math:`\sigma_c^2` of its features: where
they are correlated, a cosine of their difference gets too large a deviation, and perhaps weight.

Before the classifier, a pipeline has steps from a row :math:`x` to :math:`y = M (x - c)`. There
are two ways back through them:

- Frequencies: the phase :math:`w^\top y` is :math:`(M^\top w)^\top (x - c)`, so frequencies go
  back through :math:`M^\top`.
- Covariances: regression recovers the row as :math:`x \approx c + B y`, so that
  :math:`\mathrm{Cov}(x, s) = B\,\mathrm{Cov}(y, s)` for any :math:`s` linear in :math:`y`. For
  scalers :math:`B = M^{-1}`. For principal components :math:`B` puts a row together from them, as
  the part they leave out is uncorrelated with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.estimators.classifier import FourierGPC
from undulatus.estimators.exact import GPC
from undulatus.estimators.pca import SpectralPCA
from undulatus.gp.features import amplitudes_and_delays
from undulatus.gp.likelihood import POSTERIORS, QUADRATIC
from undulatus.gp.posterior import expected_sigmoid

Array = npt.NDArray[Any]

AFFINE_STEPS = (
    SpectralPCA,
    PCA,
    IncrementalPCA,
    StandardScaler,
    MinMaxScaler,
    MaxAbsScaler,
    RobustScaler,
)
"""Transformers that cosines can be traced back through."""

# Cosines


@dataclass(frozen=True)
class Cosines:
    r"""D cosines of d features, the largest weight first.

    The sign of a frequency is arbitrary. Here it points to where the latent mean rises on
    average, towards the second of two classes or the class whose latent function it is,
    :math:`0 \le \delta \le \pi`. Only on average: a cosine whose phase varies by several radians
    rises and falls.
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
    """Standard deviation of the features over the training rows, (d,)."""

    @property
    def phase_deviations(self) -> Array:
        """Standard deviation of each phase, radians, (D,), features taken as uncorrelated."""
        return np.asarray(np.linalg.norm(self.frequencies * self.deviation, axis=1))

    @property
    def weights(self) -> Array:
        """Standard deviation of each cosine over the training rows, (D,)."""
        return cosine_deviation(self.amplitudes, self.delays, self.phase_deviations)


def cosine_deviation(amplitudes: Array, delays: Array, phase_deviations: Array) -> Array:
    """Return the standard deviation of a cos(φ - δ) for Gaussian φ with mean zero.

    The arguments (amplitude a, delay δ, deviation s of φ) broadcast.
    """
    # 1 - exp(-s²) without loss of digits; 1 - e c = (1 - e) + e (1 - c) likewise.
    varying = -np.expm1(-(phase_deviations**2))
    bend = varying + np.exp(-(phase_deviations**2)) * 2.0 * np.sin(delays) ** 2
    return np.asarray(np.abs(amplitudes) * np.sqrt(0.5 * varying * bend))


def cosines_of(classifier: FourierGPC, latent: int | None = None) -> Cosines:
    """Return the cosines of a fitted RFFGPC or VFFGPC; of an ensemble, of all estimators.

    With more than two classes, ``latent`` says of which: its place in ``classes_``.
    """
    check_is_fitted(classifier)
    fits = classifier.estimators_
    count = len(fits[0].latents)
    if latent is None and count > 1:
        raise InputError(
            f"The classifier has {count} classes, with a latent function each. Say whose cosines: "
            f"latent=0 to {count - 1}, the place of the class in classes_."
        )
    latents = [fit.latents[latent or 0] for fit in fits]
    parts = [amplitudes_and_delays(own.posterior.mean, own.signal_variance) for own in latents]
    # The latent mean of an ensemble is the mean of its estimators'.
    amplitudes, delays = np.concatenate(parts, axis=1)
    centre, deviation = _distribution(classifier)
    # A warp is taken as linear around the middle of the features.
    origin, scale = classifier.standardisation_.linear_at(centre)
    frequencies = classifier.frequencies_ / scale
    delays = delays - frequencies @ (centre - origin)
    # cos(p) = cos(-p): take the sign for which the mean slope, a exp(-s²/2) sin(δ), is positive.
    delays = np.remainder(delays + np.pi, 2.0 * np.pi) - np.pi
    sign = np.where(delays < 0.0, -1.0, 1.0)
    frequencies, delays = frequencies * sign[:, None], delays * sign
    cosines = Cosines(frequencies, amplitudes / len(fits), delays, centre, deviation)
    order = np.argsort(-cosines.weights, kind="stable")
    return replace(
        cosines,
        frequencies=frequencies[order],
        amplitudes=cosines.amplitudes[order],
        delays=delays[order],
    )


def latent_functions(classifier: GPC | FourierGPC) -> tuple[Any, ...]:
    """Return the latent functions of a fitted classifier, those of its first estimator.

    Two classes have one, more have one a class.
    """
    check_is_fitted(classifier)
    if isinstance(classifier, GPC):
        return tuple(classifier.latents_)
    return tuple(classifier.estimators_[0].latents)


def class_shares(classifier: GPC | FourierGPC) -> Array | None:
    """Return the share of each class in the training rows, by their weight, (k,), if known.

    It is what the prior mean of a latent function was set by: the probability far from the
    training rows. The posterior of the paper's bound has none.
    """
    if POSTERIORS[classifier.posterior] is QUADRATIC:
        return None
    latents = latent_functions(classifier)
    mean = np.array([own.prior_mean for own in latents])
    variance = np.array([own.signal_variance for own in latents])
    shares = expected_sigmoid(mean, variance)
    return np.array([1.0 - shares[0], shares[0]]) if len(shares) == 1 else shares


def _distribution(classifier: FourierGPC) -> tuple[Array, Array]:
    """Return mean and deviation of the features; from quartiles where these are not known."""
    lowest, _, low, median, high, _, highest = classifier.feature_quantiles_
    standardisation = classifier.standardisation_
    if not classifier.standardize or standardisation.warp is not None:
        # The distance between the quartiles of a Gaussian with standard deviation one.
        return median, (high - low) / 1.3489795
    # A constant feature has a scale of one, but no deviation exceeds the range.
    return standardisation.centre, np.minimum(standardisation.scale, highest - lowest)


# Steps before the classifier


@dataclass(frozen=True)
class AffineStep:
    """A fitted step from d features to k; a matrix of shape (d,) is diagonal."""

    centre: Array
    """The row c that goes to zero, (d,)."""
    matrix: Array
    """M, (k, d) or (d,)."""
    restoring: Array
    """Bᵗ, (k, d) or (d,)."""
    left_out: Array
    """Variance of each input feature that the outputs do not explain, (d,)."""
    uncorrelated: bool
    """Whether the outputs are uncorrelated over the rows that the step was fitted on."""
    noise: Array | None = None
    """Noise of the input features, (d,), if the step knows it."""

    def carry_back(self, frequencies: Array) -> Array:
        """Turn frequencies per unit of outputs, (D, k), into those per unit of inputs, (D, d)."""
        return _multiply(frequencies, self.matrix)

    def restore(self, covariances: Array) -> Array:
        """Turn covariances with the outputs, (D, k), into covariances with the inputs, (D, d)."""
        return _multiply(covariances, self.restoring)

    def restore_variances(self, variances: Array) -> Array:
        """Turn variances of independent errors of the outputs, (D, k), into those of inputs."""
        return self.left_out + _multiply(variances, self.restoring**2)


def affine_steps(steps: Iterable[Any]) -> list[AffineStep]:
    """Return fitted transformers as affine maps, in order; a Pipeline gives several."""
    found: list[AffineStep] = []
    for step in steps:
        if step is None or step == "passthrough":
            continue
        if isinstance(step, Pipeline):
            found += affine_steps(inner for _, inner in step.steps)
        else:
            found.append(_affine_step(step))
    return found


def _multiply(rows: Array, matrix: Array) -> Array:
    return np.asarray(rows * matrix if matrix.ndim == 1 else rows @ matrix)


def _affine_step(step: Any) -> AffineStep:
    if isinstance(step, (SpectralPCA, PCA, IncrementalPCA)):
        return _principal_components(step)
    if isinstance(step, (StandardScaler, RobustScaler, MaxAbsScaler, MinMaxScaler)):
        scale, centre = step.scale_, None
        if isinstance(step, MinMaxScaler):
            scale, centre = 1.0 / step.scale_, -step.min_ / step.scale_
        elif isinstance(step, RobustScaler):
            centre = step.center_
        elif isinstance(step, StandardScaler) and step.with_mean:
            centre = step.mean_
        none = np.zeros(step.n_features_in_)
        scale, centre = none + 1.0 if scale is None else scale, none if centre is None else centre
        return AffineStep(centre, 1.0 / scale, scale, none, uncorrelated=False)
    taken = ", ".join(step_type.__name__ for step_type in AFFINE_STEPS)
    raise InputError(
        f"Frequencies cannot be carried back through a {type(step).__name__}, which is not known "
        f"to be linear.\n  supported: {taken}\nUse only these before the classifier."
    )


def _principal_components(step: Any) -> AffineStep:
    """Return the step from features, in units of their noise, to principal components.

    The variance outside the components is assumed equal in every direction that was left out
    (Tipping & Bishop 1999, doi:10.1111/1467-9868.00196).
    """
    components, spectral = step.components_, isinstance(step, SpectralPCA)
    unit = step.noise_ if spectral else np.ones(components.shape[1])
    scale = np.ones((len(components), 1))
    if not spectral and step.whiten:
        # As in scikit-learn: components without variance are not divided by zero.
        scale[:, 0] = np.maximum(np.sqrt(step.explained_variance_), np.finfo(np.float64).eps)
    kept, share = step.explained_variance_.sum(), step.explained_variance_ratio_.sum()
    lost = max(kept / share - kept, 0.0) if share > 0.0 else 0.0
    beyond = np.maximum(1.0 - np.sum(components**2, axis=0), 0.0)
    return AffineStep(
        step.mean_,
        components / scale / unit,
        components * scale * unit,
        unit**2 * beyond * lost / max(len(unit) - len(components), 1),
        uncorrelated=True,
        noise=unit if spectral and step.noise is not None else None,
    )
