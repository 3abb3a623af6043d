r"""Planck's law channel by channel: radiances, brightness temperatures and the slope between them.

.. math:: B(\nu, T) = \frac{C_1 \nu^3}{\exp(C_2 \nu / T) - 1}

with wavenumbers :math:`\nu` in cm⁻¹ and radiances in mW m⁻² sr⁻¹ (cm⁻¹)⁻¹. A sounder's channels
are narrow, so no band correction is due, as it is for an imager (:mod:`undulatus.scenes.planck`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.planck import C1, C2

Array = npt.NDArray[Any]


def blackbody_radiance(wavenumber: Array, temperature: Array) -> Array:
    """Return B(ν, T), mW m⁻² sr⁻¹ (cm⁻¹)⁻¹; the arguments (cm⁻¹, K) broadcast."""
    return np.asarray(C1 * wavenumber**3 / np.expm1(C2 * wavenumber / temperature))


def brightness_temperature(wavenumber: Array, radiance: Array) -> Array:
    """Return the temperature (K) of a black body with this radiance; missing if not positive.

    The inverse of :func:`blackbody_radiance`. Noise makes radiances of cold scenes negative at
    the short-wave end of a spectrum, and no temperature belongs to those.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        temperature = C2 * wavenumber / np.log1p(C1 * wavenumber**3 / radiance)
    return np.where(np.asarray(radiance) > 0.0, temperature, np.nan)


def radiance_slope(wavenumber: Array, temperature: Array) -> Array:
    """Return ∂B/∂T, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹ K⁻¹, which turns noise in K into noise of radiance."""
    x = C2 * wavenumber / temperature
    return np.asarray(
        blackbody_radiance(wavenumber, temperature) * x / -np.expm1(-x) / temperature
    )
