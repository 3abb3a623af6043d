r"""From atmosphere and surface to measured radiances: radiative transfer and the instrument.

**Radiance at the satellite**: the emission of every layer, of the surface, and of one level of
cloud. Over a surface of emissivity :math:`\epsilon` and temperature :math:`T_s`, with
transmittances :math:`t_l` from the bottom of layer :math:`l` to space,

.. math:: L_\mathrm{clear} = \sum_l B(T_l)\,(t_{l-1} - t_l)
    + t_s \bigl[\epsilon B(T_s) + (1 - \epsilon)(1 - t_s) B(T_a)
    + (1 - \epsilon)\, S\, t_s^{m}\bigr],

where the sky that the surface reflects is assumed to emit like the air above it, :math:`B(T_a)`,
and sunlight :math:`S` comes down along a path :math:`m` times that of the view. Cloud of effective
amount :math:`a` (its fraction times its emissivity) with its top at one level gives

.. math:: L = (1 - a)\, L_\mathrm{clear} + a \Bigl[\sum_{l\,\mathrm{above}} B(T_l)\,(t_{l-1} - t_l)
    + t_c \bigl(B(T_c) + \rho_c\, S\, t_c^{m}\bigr)\Bigr].

Everything is in single precision. Planck's law is interpolated between 12 Chebyshev temperatures,
which turns it into a matrix product; the error is below 2e-5 of the radiance at 300 K, well under
the instrument's noise.

**The instrument.** The noise of a channel, as a temperature at 280 K, is that of IASI on Metop-A
as 120 real spectra show it (``benchmarks/real_iasi.py``: what their ten leading components leave
over), to 5 %: 0.15 to 0.2 K in the first detector, 0.04 K where the second begins at 1200 cm⁻¹
and 0.3 K where it ends, 0.09 K where the third begins at 2000 cm⁻¹ and 2 K at the short-wave end.
Apodisation correlates neighbouring channels by 0.71, 0.25 and 0.04, as a Gaussian 0.5 cm⁻¹ wide
does to white noise on a grid of 0.25 cm⁻¹. Radiances are rounded, as in the Level 1C product,
which holds integers and a power of ten for each of five ranges (EUMETSAT, IASI Level 1 Product
Guide, EUM/OPS-EPS/MAN/04/0032). Ours are rounded to the next lower power of two, so that the last
bits are zero and files are smaller by a fifth. Steps stay below a third of the noise; rounding
adds less than 1 % to its variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.channels import NOISE_TEMPERATURE, WAVENUMBERS
from undulatus.scenes.radiometry import blackbody_radiance, radiance_slope
from undulatus.scenes.simulators.sounder.atmosphere import LAYERS
from undulatus.scenes.simulators.sounder.gases import cross_sections

Array = npt.NDArray[Any]

COLDEST, HOTTEST = 165.0, 345.0
"""Range of the interpolation of Planck's law, K."""

_NODES = 12
"""Temperatures it is interpolated between."""

_TILE = 256
"""Channels computed at once, so that their data stay in the processor's cache."""

SUNLIT = 2000.0
"""Wavenumber from which sunlight is included, cm⁻¹; below, it is negligible beside emission."""

_SUN_TEMPERATURE, _SUN_ANGLE = 5800.0, 6.79e-5
"""The sun's temperature, K, and solid angle, sr."""

NOISE_KNOTS = np.array(
    [
        [645, 0.340], [655, 0.270], [670, 0.190], [700, 0.165], [750, 0.165], [800, 0.151],
        [900, 0.155], [1000, 0.152], [1050, 0.160], [1100, 0.184], [1150, 0.199], [1160, 0.188],
        [1180, 0.075], [1190, 0.046], [1200, 0.039], [1220, 0.035], [1250, 0.036], [1300, 0.039],
        [1350, 0.043], [1400, 0.049], [1450, 0.058], [1500, 0.074], [1550, 0.088], [1600, 0.111],
        [1630, 0.125], [1645, 0.147], [1700, 0.144], [1750, 0.157], [1800, 0.185], [1850, 0.215],
        [1880, 0.252], [1940, 0.330], [1950, 0.312], [1960, 0.255], [1970, 0.187], [1980, 0.148],
        [1990, 0.116], [2025, 0.091], [2050, 0.103], [2100, 0.117], [2150, 0.144], [2200, 0.175],
        [2250, 0.208], [2300, 0.268], [2350, 0.335], [2400, 0.433], [2450, 0.580], [2500, 0.692],
        [2550, 0.797], [2600, 0.997], [2650, 1.225], [2700, 1.620], [2760, 2.150],
    ]
)  # fmt: skip
"""Wavenumber (cm⁻¹) and noise (K) of a scene at ``NOISE_TEMPERATURE``."""

ROUNDING_STEPS = np.array(
    [[645.0, 2**-7], [1480.0, 2**-10], [2252.0, 2**-14], [2385.0, 2**-10], [2680.0, 2**-14]]
)
"""First wavenumber (cm⁻¹) and step, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, of each range."""

_HALF_WIDTH = 3
"""Channels on either side that apodisation reaches to."""

_TAPS = np.exp(-(np.arange(-_HALF_WIDTH, _HALF_WIDTH + 1) ** 2) / 1.44)
"""A Gaussian whose autocorrelation at a lag of one channel is the square root of a half."""

_ROWS = 16
"""Spectra that noise is added to at once, for the processor's cache."""


@dataclass(frozen=True)
class Soundings:
    """What the instrument looks through in each sample, from the top of the air to the ground."""

    columns: Array
    """Of absorbers along the view, (samples, layers, absorbers), in 1e22 molecules per cm²."""
    layers: Array
    """Temperatures of the layers, K, (samples, layers)."""
    skin: Array
    air: Array
    """Temperatures of the surface and of the air just above it, K."""
    materials: Array
    """Shares of the surface's materials, (samples, materials)."""
    cloud_amount: Array
    """Fraction times emissivity, 0 to 1."""
    cloud_layer: Array
    """Index of the layer whose bottom is the cloud's top."""
    cloud_top: Array
    """Its temperature, K."""
    cloud_reflectance: Array
    """At the short-wave end of the spectrum."""
    sun_cosine: Array
    """Cosine of the sun's zenith angle, zero at night."""
    sun_path: Array
    """Length of the sun's path relative to that of the view."""


@cache
def _planck_nodes() -> tuple[Array, Array, Array]:
    """Return Chebyshev temperatures, their barycentric weights, and their radiances.

    The last are (nodes, channels) float32.
    """
    angles = np.pi * (np.arange(_NODES) + 0.5) / _NODES
    nodes = (COLDEST + HOTTEST) / 2.0 + (HOTTEST - COLDEST) / 2.0 * np.cos(angles)
    weights = np.sin(angles) * (-1.0) ** np.arange(_NODES)
    return nodes, weights, blackbody_radiance(WAVENUMBERS, nodes[:, None]).astype(np.float32)


def planck_weights(temperature: Array) -> Array:
    """Return the weight of each node at temperatures (K), (..., nodes) float32."""
    nodes, weights, _ = _planck_nodes()
    distance = np.asarray(temperature)[..., None] - nodes
    # Kept slightly off the nodes, where the barycentric formula would divide by zero.
    terms = weights / np.where(np.abs(distance) < 1e-7, 1e-7, distance)
    return (terms / terms.sum(axis=-1, keepdims=True)).astype(np.float32)


@cache
def _sunlight() -> Array:
    """Return the radiance of a white surface under the overhead sun, (channels,) float32."""
    sun = blackbody_radiance(WAVENUMBERS, np.array(_SUN_TEMPERATURE)) * _SUN_ANGLE / np.pi
    return np.where(WAVENUMBERS >= SUNLIT, sun, 0.0).astype(np.float32)


def radiances(soundings: Soundings, emissivities: Array) -> Array:
    """Return the radiance of every sample and channel, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, without noise.

    Parameters
    ----------
    soundings : Soundings
        Of n samples.
    emissivities : (materials, channels) array
        Of the surface's materials, float32.

    Returns
    -------
    (n, channels) array
        float32.
    """
    # Negative, so that transmittances are their exponentials.
    depths = np.ascontiguousarray(-soundings.columns.transpose(1, 0, 2), dtype=np.float32)
    temperatures = np.column_stack(
        [soundings.layers, soundings.cloud_top, soundings.air, soundings.skin]
    )
    weights = np.ascontiguousarray(planck_weights(temperatures).transpose(1, 0, 2))
    tops = [
        np.flatnonzero((soundings.cloud_layer == layer) & (soundings.cloud_amount > 0.0))
        for layer in range(LAYERS)
    ]
    spectra = np.empty((depths.shape[1], len(WAVENUMBERS)), np.float32)
    for start in range(0, len(WAVENUMBERS), _TILE):
        tile = slice(start, start + _TILE)
        spectra[:, tile] = _in_tile(tile, soundings, depths, weights, tops, emissivities[:, tile])
    return spectra


def _in_tile(
    tile: slice,
    soundings: Soundings,
    depths: Array,
    weights: Array,
    tops: list[Array],
    emissivities: Array,
) -> Array:
    planck = _planck_nodes()[2][:, tile]
    layers, (top, air, skin) = weights[:LAYERS], weights[LAYERS:]
    # Summation by parts: B_1 + sum of t_l (B_{l+1} - B_l), with B = 0 below the last layer.
    steps = np.diff(layers, axis=0, append=np.zeros_like(layers[:1]))
    total = layers[0] @ planck
    depth, cloud, through, term = (np.zeros_like(total) for _ in range(4))
    for layer, section in enumerate(cross_sections()[:, :, tile]):
        depth += np.matmul(depths[layer], section, out=term)
        np.exp(depth, out=through)
        rows = tops[layer]
        if len(rows):
            light = (top - layers[layer])[rows] @ planck + _reflected(soundings, tile, depth, rows)
            cloud[rows] = total[rows] + through[rows] * light
        np.matmul(steps[layer], planck, out=term)
        term *= through
        total += term
    sky = (1.0 - through) * (air @ planck) + _reflected(soundings, tile, depth)
    emissivity = soundings.materials.astype(np.float32) @ emissivities
    total += through * (emissivity * (skin @ planck) + (1.0 - emissivity) * sky)
    total += _upright(soundings.cloud_amount) * (cloud - total)
    return total


def _reflected(
    soundings: Soundings, tile: slice, depth: Array, cloud: Array | None = None
) -> Array | float:
    """Return the sunlight that reaches the ground, or that the rows ``cloud`` reflect."""
    sun = _sunlight()[tile]
    if not sun[-1]:
        return 0.0
    rows = slice(None) if cloud is None else cloud
    share = soundings.sun_cosine[rows]
    if cloud is not None:
        share = share * soundings.cloud_reflectance[rows]
    down = np.exp(depth[rows] * _upright(soundings.sun_path[rows]))
    return np.asarray(_upright(share) * down * sun)


def _upright(values: Array) -> Array:
    return values.astype(np.float32)[:, None]


@cache
def noise_radiance() -> Array:
    """Return each channel's noise, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, (channels,) float32."""
    kelvin = np.interp(WAVENUMBERS, *NOISE_KNOTS.T)
    slope = radiance_slope(WAVENUMBERS, np.array(NOISE_TEMPERATURE))
    return np.asarray(kelvin * slope, dtype=np.float32)


@cache
def _steps() -> Array:
    first, size = ROUNDING_STEPS.T
    return size[np.searchsorted(first, WAVENUMBERS, side="right") - 1].astype(np.float32)


def add_noise(spectra: Array, rng: np.random.Generator) -> None:
    """Add noise to spectra (n, channels) and round them to the product's steps, in place."""
    taps = (_TAPS / np.sqrt(np.sum(_TAPS**2))).astype(np.float32)
    channels = len(WAVENUMBERS)
    noise, steps, reciprocals = noise_radiance(), _steps(), 1.0 / _steps()
    for start in range(0, len(spectra), _ROWS):
        rows = spectra[start : start + _ROWS]
        white = rng.standard_normal((len(rows), channels + 2 * _HALF_WIDTH), dtype=np.float32)
        apodised = taps[0] * white[:, :channels]
        for shift, tap in enumerate(taps[1:], start=1):
            apodised += tap * white[:, shift : shift + channels]
        apodised *= noise
        rows += apodised
        rows *= reciprocals
        np.rint(rows, out=rows)
        rows *= steps
