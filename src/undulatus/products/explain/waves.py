r"""What a model looks at: its waves, carried back to the channels or features they are made of.

A classifier of Fourier features is a sum of waves , and a wave
is known by its frequency :math:`w_i`. Where components of spectra were classified, the frequency
goes back through them to every channel. Two curves then say
different things of a wave (Haufe et al. 2014, doi:10.1016/j.neuroimage.2013.10.067):

- the *frequency* is the filter: by how many radians the phase turns if one channel alone changes
  by its noise. Channels of a spectrum never change alone, and a filter of correlated channels
  looks like noise, because it has to cancel what neighbours share;
- the *pattern* is what the filter finds: the change of each channel :math:`x_c` that goes with
  one standard deviation :math:`s_i` of the phase :math:`\phi_i` over the training rows,

  .. math:: p_{ic} = \mathrm{Cov}(x_c, \phi_i) / s_i,

  which can be laid beside absorption bands. With components :math:`e_k` of variances
  :math:`\lambda_k`, in units of the noise :math:`\sigma_c`, and frequencies :math:`w_{ik}` per
  component, :math:`p_{ic} = \sigma_c \sum_k e_{kc} \lambda_k w_{ik} / s_i`.

A pattern needs the covariance of what is classified, which is known of principal components: they
are uncorrelated. Without them features are taken as uncorrelated, and there is the direction
:math:`w_{ic} \sigma_c / s_i` alone, :math:`\sigma_c` being the standard deviation of a feature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.estimators.fourier import FourierGPC
from undulatus.estimators.interpret import Affine, Waves, affine_steps, waves_of
from undulatus.products.provenance import Provenance
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.channels import CHANNELS, WAVENUMBERS
from undulatus.scenes.radiometry import brightness_temperature, radiance_slope
from undulatus.scenes.spectra import BRIGHTNESS_TEMPERATURE, COMPONENTS, RADIANCE, SCORES

Array = npt.NDArray[Any]

KELVIN = "K"

DEVIATIONS = "standard deviations"

NOISE = "noise"

_COLDEST = 100.0
"""K: radiances of the short-wave end are far below, and no spectrum is as cold as that."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """The D waves of a classifier over d channels or features, the weightiest first.

    All signs point where the latent mean rises on average, towards ``towards``; that says little
    of a wave that turns by several radians.
    """

    regime: str
    """Where the classifier is used; empty if everywhere."""
    towards: str
    """The second class, as words."""
    measurement: str
    """``"radiance"``, ``"brightness_temperature"``, ``"scores"``, or empty: other features."""
    names: tuple[str, ...]
    """Of the channels or features."""
    wavenumbers: Array | None
    """Of the channels, cm⁻¹, (d,); None where there are none."""
    mean: Array | None
    """The mean spectrum, K, (d,); None where there is none."""
    weights: Array
    """Standard deviation of each wave over the training rows, in the latent function, (D,)."""
    amplitudes: Array
    """(D,)."""
    phase_deviations: Array
    """Standard deviation of each wave's phase, radians, (D,)."""
    frequency: Array
    """Radians by which the phase turns with one ``frequency_step`` of a channel, (D, d)."""
    frequency_step: str
    """``"noise"`` where it is known, else ``"standard deviations"``."""
    pattern: Array | None
    """Change of the channels with one deviation of the phase, (D, d); None if not known."""
    unit: str
    """Of the pattern: ``"K"``, or ``"standard deviations"``, and it is a correlation then."""

    @property
    def shares(self) -> Array:
        """Share of each wave in the sum of the weights, (D,)."""
        return np.asarray(self.weights / max(self.weights.sum(), np.finfo(np.float64).tiny))

    @property
    def profile(self) -> Array:
        """The pattern; where there is none the direction, whose squares sum to one, (D, d)."""
        if self.pattern is not None:
            return self.pattern
        return np.asarray(self.frequency / _safe(self.phase_deviations)[:, None])

    @property
    def importance(self) -> Array:
        """All waves together, each by its share, (d,).

        The root of the mean square of patterns in K; the mean square of those without unit,
        which is how much of the phases' variance goes with a feature. For directions these sum
        to one.
        """
        square = self.shares @ self.profile**2
        return np.asarray(np.sqrt(square) if self.unit == KELVIN else square)


def explain(model: Any) -> tuple[Explanation, ...]:
    """Return what a model looks at: one explanation, or one for each regime.

    Parameters
    ----------
    model : RFFGPC, VFFGPC, a Pipeline that ends in one, or a RegimeClassifier of these
        Fitted. Steps before the classifier are components or scalers. Rows of 8,461 features are
        IASI's channels, unless ``provenance_["measurement"]`` says otherwise; whether they are
        radiances or brightness temperatures is seen from their mean, unless it is said there.
    """
    provenance = Provenance.of(model)
    if not isinstance(model, RegimeClassifier):
        return (_explain_one(model, getattr(model, "feature_names_in_", None), provenance),)
    check_is_fitted(model, "estimators_")
    found = []
    for regime in model.regimes_:
        member = model.estimators_[regime.name]
        try:
            found.append(_explain_one(member, regime.features, provenance, regime.name))
        except InputError as error:
            raise InputError(f"Regime {regime.name!r}: {error}") from error
    return tuple(found)


def _explain_one(model: Any, names: Any, provenance: Provenance, regime: str = "") -> Explanation:
    classifier, steps = _taken_apart(model)
    waves = waves_of(classifier)
    mean, frequencies = waves.centre[None], waves.frequencies
    for step in reversed(steps):
        mean = step.centre + step.restore(mean)
        frequencies = step.carry_back(frequencies)
    spread = _spread(waves, steps)
    noise = steps[0].noise if steps else None
    label, second = provenance.label, classifier.classes_[1]
    measurement = _measurement(provenance.measurement, mean[0])
    is_spectrum = measurement in (RADIANCE, BRIGHTNESS_TEMPERATURE)
    kelvins, per_unit = None, _safe(spread)
    if is_spectrum:
        kelvins, per_unit = _in_kelvins(measurement, mean[0])
    pattern = _pattern(waves, steps)
    if measurement == SCORES and pattern is not None:
        # EUMETSAT's components are of radiances divided by their noise.
        noise = np.ones(len(spread))
    return Explanation(
        regime=regime,
        towards=f"{label} = {second}" if label else f"class {second}",
        measurement=measurement,
        names=_names(measurement, names, len(spread)),
        wavenumbers=WAVENUMBERS if is_spectrum else None,
        mean=kelvins,
        weights=waves.weights,
        amplitudes=waves.amplitudes,
        phase_deviations=waves.phase_deviations,
        frequency=frequencies * (spread if noise is None else noise),
        frequency_step=DEVIATIONS if noise is None else NOISE,
        pattern=None if pattern is None else pattern / per_unit,
        unit=KELVIN if is_spectrum and pattern is not None else DEVIATIONS,
    )


def _taken_apart(model: Any) -> tuple[FourierGPC, list[Affine]]:
    """Return the classifier at the end of a model, and the steps before it."""
    before: list[Any] = []
    while isinstance(model, Pipeline):
        *steps, (_, model) = model.steps
        before += [step for _, step in steps]
    if not isinstance(model, FourierGPC):
        raise InputError(
            f"A {type(model).__name__} has no frequencies to explain it by.\n"
            f"  taken: RFFGPC, VFFGPC, a Pipeline that ends in one, a RegimeClassifier of these"
        )
    check_is_fitted(model, "posterior_")
    return model, affine_steps(before)


def _spread(waves: Waves, steps: list[Affine]) -> Array:
    """Return the standard deviation of each channel over the training rows, (d,)."""
    mixed = any(step.restoring.ndim == 2 for step in steps)
    parts = np.diag(waves.deviation) if mixed else waves.deviation[None]
    left_out = np.zeros((1, len(waves.deviation)))
    for step in reversed(steps):
        parts = step.restore(parts)
        left_out = step.restore_variances(left_out)
    return np.sqrt(np.sum(parts**2, axis=0) + left_out[0])


def _pattern(waves: Waves, steps: list[Affine]) -> Array | None:
    """Return Cov(x, φ) / s in units of the channels, (D, d); None if there are no components."""
    if not any(step.uncorrelated for step in steps):
        return None
    pattern = waves.frequencies * waves.deviation**2 / _safe(waves.phase_deviations)[:, None]
    for step in reversed(steps):
        pattern = step.restore(pattern)
    return pattern


def _safe(values: Array) -> Array:
    """Return what to divide by: nought over nought is to be nought."""
    return np.where(values == 0.0, 1.0, values)


def _measurement(told: Any, mean: Array) -> str:
    if told == SCORES:
        return SCORES if len(mean) == sum(COMPONENTS) else ""
    if len(mean) != CHANNELS:
        return ""
    if told in (RADIANCE, BRIGHTNESS_TEMPERATURE):
        return str(told)
    return BRIGHTNESS_TEMPERATURE if mean.min() > _COLDEST else RADIANCE


def _in_kelvins(measurement: str, mean: Array) -> tuple[Array, Array]:
    """Return the mean spectrum, K, and by how much channels change with a kelvin there."""
    if measurement == BRIGHTNESS_TEMPERATURE:
        return mean, np.ones(len(mean))
    kelvins = brightness_temperature(WAVENUMBERS, mean)
    return kelvins, radiance_slope(WAVENUMBERS, kelvins)


def _names(measurement: str, names: Any, d: int) -> tuple[str, ...]:
    if measurement == SCORES:
        return tuple(
            f"band {band} component {number}"
            for band, count in enumerate(COMPONENTS, 1)
            for number in range(1, count + 1)
        )
    if measurement:
        return tuple(f"{wavenumber:.2f}" for wavenumber in WAVENUMBERS)
    return tuple(f"x{number}" for number in range(d)) if names is None else tuple(map(str, names))
