"""The instrument: how noisy each channel is, how noise goes from channel to channel, and steps.

The noise of a channel, as a temperature at 280 K, follows the in-flight figure of IASI on
Metop-A (Hilton et al. 2012, doi:10.1175/BAMS-D-11-00027.1): about 0.2 K up to 2150 cm⁻¹, then
rising to over 1 K at the short-wave end. Apodisation correlates neighbouring channels by
0.71, 0.25 and 0.04, which is what a Gaussian 0.5 cm⁻¹ wide makes of white noise on a grid of
0.25 cm⁻¹. Radiances are rounded, as they are in the Level 1C product, which holds integers and a
power of ten for each of five ranges (EUMETSAT, IASI Level 1 Product Guide,
EUM/OPS-EPS/MAN/04/0032). Ours are rounded to the next lower power of two, so that last bits are
nought and files are smaller by a fifth. Steps stay below a tenth of the noise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.blackbody import radiance_slope
from undulatus.scenes.channels import WAVENUMBERS

Array = npt.NDArray[Any]

NOISE_KNOTS = np.array(
    [
        [645, 0.30], [670, 0.22], [750, 0.18], [1000, 0.20], [1150, 0.22], [1200, 0.15],
        [1500, 0.15], [1900, 0.18], [2150, 0.22], [2250, 0.30], [2400, 0.45], [2550, 0.80],
        [2760, 1.60],
    ]
)  # fmt: skip
"""Wavenumber (cm⁻¹) and noise (K) of a scene at ``NOISE_TEMPERATURE``."""
NOISE_TEMPERATURE = 280.0
STEPS = np.array(
    [[645.0, 2**-7], [1480.0, 2**-10], [2252.0, 2**-14], [2385.0, 2**-10], [2680.0, 2**-14]]
)
"""First wavenumber (cm⁻¹) and step, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, of each range."""
_REACH = 3
_TAPS = np.exp(-(np.arange(-_REACH, _REACH + 1) ** 2) / 1.44)
"""A Gaussian whose correlation with itself one channel on is the square root of a half."""
_ROWS = 16
"""Spectra worked on at once, for the processor's cache."""


@cache
def noise_radiance() -> Array:
    """Return each channel's noise, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, (channels,) float32."""
    kelvin = np.interp(WAVENUMBERS, *NOISE_KNOTS.T)
    slope = radiance_slope(WAVENUMBERS, np.array(NOISE_TEMPERATURE))
    return np.asarray(kelvin * slope, dtype=np.float32)


@cache
def _steps() -> Array:
    first, size = STEPS.T
    return size[np.searchsorted(first, WAVENUMBERS, side="right") - 1].astype(np.float32)


def measure(spectra: Array, rng: np.random.Generator) -> None:
    """Add noise to spectra (n, channels) and round them to the product's steps, in place."""
    taps = (_TAPS / np.sqrt(np.sum(_TAPS**2))).astype(np.float32)
    channels = len(WAVENUMBERS)
    noise, steps, reciprocals = noise_radiance(), _steps(), 1.0 / _steps()
    for start in range(0, len(spectra), _ROWS):
        rows = spectra[start : start + _ROWS]
        white = rng.standard_normal((len(rows), channels + 2 * _REACH), dtype=np.float32)
        apodised = taps[0] * white[:, :channels]
        for shift, tap in enumerate(taps[1:], start=1):
            apodised += tap * white[:, shift : shift + channels]
        apodised *= noise
        rows += apodised
        rows *= reciprocals
        np.rint(rows, out=rows)
        rows *= steps
