r"""What a model looks at: its cosines, carried back to the channels or features of its input.

A classifier on Fourier features is a sum of cosines (:mod:`undulatus.estimators.interpret`), and a
cosine has a frequency :math:`w_i`. If a model classifies components of spectra, the frequency is
carried back through them to every channel. Two curves then describe a cosine (Haufe et al. 2014,
doi:10.1016/j.neuroimage.2013.10.067):

- the *frequency* is the filter: by how many radians the phase turns when one channel alone changes
  by its noise. Channels of a spectrum never change alone, and a filter of correlated channels
  looks like noise, because it has to cancel what neighbours share;
- the *pattern* is what the filter responds to: the change of each channel :math:`x_c` that goes
  with one standard deviation :math:`s_i` of the phase :math:`\phi_i` over the training rows,

  .. math:: p_{ic} = \mathrm{Cov}(x_c, \phi_i) / s_i,

  which can be compared with absorption bands. With components :math:`e_k` of variances
  :math:`\lambda_k`, in units of the noise :math:`\sigma_c`, and frequencies :math:`w_{ik}` per
  component, :math:`p_{ic} = \sigma_c \sum_k e_{kc} \lambda_k w_{ik} / s_i`.

A pattern needs the covariance of the classifier's input. Principal components are uncorrelated, so
theirs is known. Without them, features are taken as uncorrelated, and a cosine has only a
*direction*, :math:`w_{ic} \sigma_c / s_i`, where :math:`\sigma_c` is the standard deviation of a
feature.

A classifier of more than two classes has a latent function a class, over the same cosines, which
weigh differently for each: there is an explanation a class, and :func:`overall_importance` says
how much a channel or feature counts in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.estimators.classifier import FourierGPC
from undulatus.estimators.interpret import AffineStep, Cosines, affine_steps, cosines_of
from undulatus.products.provenance import Provenance
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.radiometry import brightness_temperature, radiance_slope
from undulatus.scenes.spectra import BRIGHTNESS_TEMPERATURE, COMPONENTS, RADIANCE, SCORES

Array = npt.NDArray[Any]

KELVIN, DEVIATIONS = "K", "standard deviations"
"""Units of a pattern."""

NOISE_STEP = "noise"
"""Step of a channel by which frequencies are given, where the noise is known."""

_COLDEST = 100.0
"""Mean spectra in K are above this everywhere; radiances at the short-wave end are far below."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The D cosines of a classifier over d channels or features, in order of falling weight.

    Signs are such that the latent mean rises on average, towards ``towards``. They mean little for
    a cosine whose phase varies by several radians.
    """

    regime: str
    """Where the classifier is used; empty if it is used everywhere."""
    towards: str
    """The second of two classes, or that of the latent function, such as ``"cloudy = 1"``."""
    measurement: str
    """``"radiance"``, ``"brightness_temperature"``, ``"scores"``, or empty for other features."""
    names: tuple[str, ...]
    """Names of the channels or features."""
    wavenumbers: Array | None
    """Wavenumbers of the channels, cm⁻¹, (d,); None if the features are not channels."""
    mean_spectrum: Array | None
    """In K, (d,); None if the features are not channels."""
    weights: Array
    """Standard deviation of each cosine over the training rows, (D,)."""
    amplitudes: Array
    """(D,)."""
    phase_deviations: Array
    """Standard deviation of each cosine's phase over the training rows, radians, (D,)."""
    frequency: Array
    """By how much the phase turns per ``frequency_step`` of a channel, radians, (D, d)."""
    frequency_step: str
    """``"noise"`` if it is known, otherwise ``"standard deviations"``."""
    pattern: Array | None
    """Change of each channel with one deviation of the phase, (D, d); None if not known."""
    unit: str
    """Of the pattern: ``"K"``, or ``"standard deviations"`` if it is a correlation."""
    of_class: str = ""
    """The class whose latent function this is; empty if there are two, which have one."""

    @property
    def heading(self) -> str:
        """The regime and the class, where there are several."""
        parts = (("regime", self.regime), ("class", self.of_class))
        return ", ".join(f"{what} {name}" for what, name in parts if name)

    @property
    def shares(self) -> Array:
        """Share of each cosine in the sum of all weights, (D,)."""
        return np.asarray(self.weights / max(self.weights.sum(), np.finfo(np.float64).tiny))

    @property
    def profile(self) -> Array:
        """The pattern, or else the direction, whose squares sum to one, (D, d)."""
        if self.pattern is not None:
            return self.pattern
        return np.asarray(self.frequency / _or_one(self.phase_deviations)[:, None])

    @property
    def importance(self) -> Array:
        """How much each channel or feature counts in all cosines together, by their shares, (d,).

        For patterns in K, the root of their mean square. Otherwise the mean square, which is the
        share of the phases' variance that goes with a feature; for directions it sums to one.
        """
        square = self.shares @ self.profile**2
        return np.asarray(np.sqrt(square) if self.unit == KELVIN else square)


def overall_importance(explanations: Sequence[Explanation]) -> Array:
    """Return how much each channel or feature counts for all classes of a regime, (d,).

    As :attr:`Explanation.importance`, by the weights of the cosines of all latent functions.
    """
    total = sum(float(one.weights.sum()) for one in explanations)
    square = sum(one.weights @ one.profile**2 for one in explanations)
    square = np.asarray(square / max(total, np.finfo(np.float64).tiny))
    return np.asarray(np.sqrt(square) if explanations[0].unit == KELVIN else square)


def by_regime(explanations: Sequence[Explanation]) -> list[list[Explanation]]:
    """Return the explanations of each regime together: one for each latent function."""
    return [list(group) for _, group in groupby(explanations, key=lambda one: one.regime)]


def explain(model: Any) -> tuple[Explanation, ...]:
    """Return what a model looks at: one explanation, or one for each regime.

    With more than two classes there is one for each class, or for each class of each regime.

    Parameters
    ----------
    model : RFFGPC, VFFGPC, a Pipeline that ends in one, or a RegimeClassifier of these
        Fitted. Steps before the classifier are components or scalers. 8,461 features are taken
        as IASI's channels, and those of other instruments are known by
        ``provenance_["wavenumbers"]``, unless ``provenance_["measurement"]`` says otherwise;
        without it, radiances and brightness temperatures are distinguished by their mean.
    """
    provenance = Provenance.of(model)
    if not isinstance(model, RegimeClassifier):
        return tuple(_explain_one(model, getattr(model, "feature_names_in_", None), provenance))
    check_is_fitted(model, "estimators_")
    explanations: list[Explanation] = []
    for regime in model.regimes_:
        fitted = model.estimators_[regime.name]
        try:
            explanations += _explain_one(fitted, regime.features, provenance, regime.name)
        except InputError as error:
            raise InputError(f"Regime {regime.name!r}: {error}") from error
    return tuple(explanations)


def _explain_one(
    model: Any, names: Any, provenance: Provenance, regime: str = ""
) -> list[Explanation]:
    """Explain each latent function of a model."""
    classifier, steps = _split_model(model)
    classes = classifier.classes_.tolist()
    if len(classes) == 2:
        cosines = cosines_of(classifier)
        return [_explain_cosines(cosines, steps, names, provenance, regime, classes[1])]
    return [
        replace(
            _explain_cosines(
                cosines_of(classifier, place), steps, names, provenance, regime, label
            ),
            of_class=str(label),
        )
        for place, label in enumerate(classes)
    ]


def _explain_cosines(
    cosines: Cosines,
    steps: list[AffineStep],
    names: Any,
    provenance: Provenance,
    regime: str,
    rising: Any,
) -> Explanation:
    """Explain one latent function, which rises towards the class ``rising``."""
    mean, frequencies = cosines.centre[None], cosines.frequencies
    for step in reversed(steps):
        mean = step.centre + step.restore(mean)
        frequencies = step.carry_back(frequencies)
    deviations = _deviations(cosines, steps)
    noise = steps[0].noise if steps else None
    label = provenance.label
    wavenumbers = np.array(provenance.wavenumbers or WAVENUMBERS)
    measurement = _find_measurement(provenance.measurement, mean[0], len(wavenumbers))
    is_spectrum = measurement in (RADIANCE, BRIGHTNESS_TEMPERATURE)
    kelvins, per_unit = None, _or_one(deviations)
    if is_spectrum:
        kelvins, per_unit = _in_kelvins(measurement, wavenumbers, mean[0])
    pattern = _pattern(cosines, steps)
    if measurement == SCORES and pattern is not None:
        # EUMETSAT computes its components from radiances divided by their noise.
        noise = np.ones(len(deviations))
    return Explanation(
        regime=regime,
        towards=f"{label} = {rising}" if label else f"class {rising}",
        measurement=measurement,
        names=_names(measurement, wavenumbers, names, len(deviations)),
        wavenumbers=wavenumbers if is_spectrum else None,
        mean_spectrum=kelvins,
        weights=cosines.weights,
        amplitudes=cosines.amplitudes,
        phase_deviations=cosines.phase_deviations,
        frequency=frequencies * (deviations if noise is None else noise),
        frequency_step=DEVIATIONS if noise is None else NOISE_STEP,
        pattern=None if pattern is None else pattern / per_unit,
        unit=KELVIN if is_spectrum and pattern is not None else DEVIATIONS,
    )


def _split_model(model: Any) -> tuple[FourierGPC, list[AffineStep]]:
    """Return the classifier at the end of a model, and the steps before it in order."""
    before: list[Any] = []
    while isinstance(model, Pipeline):
        *steps, (_, model) = model.steps
        before += [step for _, step in steps]
    if not isinstance(model, FourierGPC):
        raise InputError(
            f"A {type(model).__name__} has no frequencies and cannot be explained.\n"
            f"  accepted: RFFGPC, VFFGPC, a Pipeline that ends in one, a RegimeClassifier of these"
        )
    check_is_fitted(model)
    return model, affine_steps(before)


def _deviations(cosines: Cosines, steps: list[AffineStep]) -> Array:
    """Return the standard deviation of each channel over the training rows, (d,)."""
    mixed = any(step.restoring.ndim == 2 for step in steps)
    parts = np.diag(cosines.deviation) if mixed else cosines.deviation[None]
    left_out = np.zeros((1, len(cosines.deviation)))
    for step in reversed(steps):
        parts = step.restore(parts)
        left_out = step.restore_variances(left_out)
    return np.sqrt(np.sum(parts**2, axis=0) + left_out[0])


def _pattern(cosines: Cosines, steps: list[AffineStep]) -> Array | None:
    """Return Cov(x, φ) / s in units of the channels, (D, d); None without components."""
    if not any(step.uncorrelated for step in steps):
        return None
    pattern = (
        cosines.frequencies * cosines.deviation**2 / _or_one(cosines.phase_deviations)[:, None]
    )
    for step in reversed(steps):
        pattern = step.restore(pattern)
    return pattern


def _or_one(values: Array) -> Array:
    """Return divisors with zeros replaced by one: 0/0 counts as 0 here."""
    return np.where(values == 0.0, 1.0, values)


def _find_measurement(recorded: str | None, mean: Array, channels: int) -> str:
    """Return what the features are, as recorded or else by their number and mean."""
    if recorded == SCORES:
        return SCORES if len(mean) == sum(COMPONENTS) else ""
    if len(mean) != channels:
        return ""
    if recorded in (RADIANCE, BRIGHTNESS_TEMPERATURE):
        return str(recorded)
    return BRIGHTNESS_TEMPERATURE if mean.min() > _COLDEST else RADIANCE


def _in_kelvins(measurement: str, wavenumbers: Array, mean: Array) -> tuple[Array, Array]:
    """Return the mean spectrum in K, and the change of each channel per kelvin there."""
    if measurement == BRIGHTNESS_TEMPERATURE:
        return mean, np.ones(len(mean))
    kelvins = brightness_temperature(wavenumbers, mean)
    return kelvins, radiance_slope(wavenumbers, kelvins)


def _names(measurement: str, wavenumbers: Array, names: Any, d: int) -> tuple[str, ...]:
    if measurement == SCORES:
        return tuple(
            f"band {band} component {number}"
            for band, count in enumerate(COMPONENTS, 1)
            for number in range(1, count + 1)
        )
    if measurement:
        return tuple(f"{wavenumber:.2f}" for wavenumber in wavenumbers)
    return tuple(f"x{number}" for number in range(d)) if names is None else tuple(map(str, names))
