r"""Planck's law: from radiance to brightness temperature and back, for a sounder and an imager.

The channels of a sounder are narrow, so Planck's law holds as it is,

.. math:: B(\nu, T) = \frac{C_1 \nu^3}{\exp(C_2 \nu / T) - 1},

with wavenumbers :math:`\nu` in cm⁻¹ and radiances in mW m⁻² sr⁻¹ (cm⁻¹)⁻¹. The bands of an imager
are broad: SEVIRI's calibration uses an effective wavenumber :math:`\nu_c` and band corrections
:math:`\alpha, \beta` (K) of each instrument,

.. math:: L(T) = \frac{C_1 \nu_c^3}{\exp\bigl(C_2 \nu_c / (\alpha T + \beta)\bigr) - 1},

from EUMETSAT, "The conversion from effective radiances to equivalent brightness temperatures",
EUM/MET/TEN/11/0569.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

C1 = 1.19104273e-5
"""First radiation constant, mW m⁻² sr⁻¹ (cm⁻¹)⁻⁴."""

C2 = 1.43877523
"""Second radiation constant, K cm."""


def blackbody_radiance(wavenumber: Array, temperature: Array) -> Array:
    """Return B(ν, T), mW m⁻² sr⁻¹ (cm⁻¹)⁻¹; the arguments (cm⁻¹, K) broadcast."""
    return np.asarray(C1 * wavenumber**3 / np.expm1(C2 * wavenumber / temperature))


def brightness_temperature(wavenumber: Array, radiance: Array) -> Array:
    """Return the temperature (K) of a black body with this radiance; missing if not positive.

    The inverse of :func:`blackbody_radiance`. At the short-wave end of a spectrum, noise makes
    some radiances of cold scenes negative; these have no temperature.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        temperature = C2 * wavenumber / np.log1p(C1 * wavenumber**3 / radiance)
    return np.where(np.asarray(radiance) > 0.0, temperature, np.nan)


def radiance_slope(wavenumber: Array, temperature: Array) -> Array:
    """Return ∂B/∂T, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹ K⁻¹: it converts noise in K to noise of radiance."""
    x = C2 * wavenumber / temperature
    return np.asarray(
        blackbody_radiance(wavenumber, temperature) * x / -np.expm1(-x) / temperature
    )


@dataclass(frozen=True)
class ThermalBand:
    """An infrared band: its effective wavenumber (cm⁻¹) and its band corrections."""

    wavenumber: float
    alpha: float
    beta: float

    def radiance(self, temperature: Array) -> Array:
        """Return the radiance of a black body, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, at a temperature in K."""
        exponent = C2 * self.wavenumber / (self.alpha * temperature + self.beta)
        # Below about 40 K single precision overflows; the radiance is then zero, as it should be.
        with np.errstate(over="ignore"):
            return np.asarray(C1 * self.wavenumber**3 / np.expm1(exponent))

    def temperature(self, radiance: Array) -> Array:
        """Return the brightness temperature (K) of a radiance; the inverse of :meth:`radiance`."""
        ratio = C1 * self.wavenumber**3 / radiance
        return np.asarray((C2 * self.wavenumber / np.log1p(ratio) - self.beta) / self.alpha)


THERMAL_BANDS: dict[str, dict[str, ThermalBand]] = {
    "Meteosat-8": {
        "IR_039": ThermalBand(2567.330, 0.9956, 3.410),
        "IR_087": ThermalBand(1149.069, 0.9996, 0.179),
        "IR_108": ThermalBand(930.647, 0.9983, 0.625),
        "IR_120": ThermalBand(839.660, 0.9988, 0.397),
    },
    "Meteosat-9": {
        "IR_039": ThermalBand(2568.832, 0.9954, 3.438),
        "IR_087": ThermalBand(1148.620, 0.9996, 0.179),
        "IR_108": ThermalBand(931.700, 0.9983, 0.640),
        "IR_120": ThermalBand(836.445, 0.9988, 0.408),
    },
    "Meteosat-10": {
        "IR_039": ThermalBand(2547.771, 0.9915, 2.9002),
        "IR_087": ThermalBand(1148.130, 0.9996, 0.1714),
        "IR_108": ThermalBand(929.842, 0.9983, 0.6084),
        "IR_120": ThermalBand(838.659, 0.9988, 0.3882),
    },
    "Meteosat-11": {
        "IR_039": ThermalBand(2555.280, 0.9916, 2.9438),
        "IR_087": ThermalBand(1147.433, 0.9996, 0.1731),
        "IR_108": ThermalBand(931.122, 0.9983, 0.6256),
        "IR_120": ThermalBand(839.113, 0.9988, 0.4002),
    },
}

DEFAULT_PLATFORM = "Meteosat-9"
"""The operational satellite of 2010."""

SOLAR_RADIANCE_39 = 4.92
"""Radiance of a white surface under the overhead sun at 3.9 µm, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹.

EUMETSAT, "Conversion of the 3.9 µm radiance to reflectance", for the mean Sun-Earth distance;
it is the band's solar irradiance, 15.5 mW m⁻² (cm⁻¹)⁻¹, over π.
"""


def sun_earth_distance(time: Array) -> Array:
    """Return the distance to the sun at times (datetime64), astronomical units, to 0.1 %."""
    day = (time - time.astype("datetime64[Y]")) / np.timedelta64(1, "D")
    return np.asarray(1.0 - 0.0167 * np.cos(2.0 * np.pi * (day - 2.0) / 365.0))


def reflectance_39(
    brightness_39: Array,
    brightness_108: Array,
    cos_zenith: Array,
    distance: Array,
    platform: str = DEFAULT_PLATFORM,
) -> Array:
    r"""Return the reflectance at 3.9 µm, in percent, by subtracting the thermal part.

    .. math:: R_4 = 100\, \frac{L_{39}(T_{39}) - L_{39}(T_{108})}
                              {L_\odot\, \cos\theta_\odot / r^2}

    The surface or cloud top is assumed to emit at 3.9 µm like a black body at its 10.8 µm
    temperature (Setvák & Doswell 1991); the rest of the radiance was reflected. Rosenfeld &
    Lensky (1998) also subtract the thermal part from the denominator, for an emissivity of one
    minus the reflectance. That has a pole at a zenith angle of 79° over a surface at 300 K, so
    we leave it out; a classifier that also sees the 10.8 µm temperature loses nothing.

    Parameters
    ----------
    brightness_39, brightness_108 : arrays
        Brightness temperatures, K.
    cos_zenith : array
        Cosine of the solar zenith angle; where it is not positive (night) the result is missing.
    distance : array
        Sun-Earth distance, astronomical units.
    platform : str
        One of ``THERMAL_BANDS``.
    """
    band = THERMAL_BANDS[platform]["IR_039"]
    solar = band.radiance(brightness_39) - band.radiance(brightness_108)
    with np.errstate(divide="ignore", invalid="ignore"):
        reflectance = 100.0 * solar * distance**2 / (SOLAR_RADIANCE_39 * cos_zenith)
    return np.where(cos_zenith > 0.0, reflectance, np.nan)
