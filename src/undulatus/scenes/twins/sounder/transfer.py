r"""Radiance at the satellite: emission of every layer, of the surface, and of one level of cloud.

Over a surface of emissivity :math:`\epsilon` and temperature :math:`T_s`, with transmittances
:math:`t_l` from the bottom of layer :math:`l` to space,

.. math:: L_\mathrm{clear} = \sum_l B(T_l)\,(t_{l-1} - t_l)
    + t_s \bigl[\epsilon B(T_s) + (1 - \epsilon)(1 - t_s) B(T_a)
    + (1 - \epsilon)\, S\, t_s^{m}\bigr],

where the sky that the surface reflects is taken to shine as the air above it, :math:`B(T_a)`, and
the sun's light :math:`S` comes down through :math:`m` times the path that goes up. Cloud of
effective amount :math:`a` (its fraction times its emissivity) and top at one level gives

.. math:: L = (1 - a)\, L_\mathrm{clear} + a \Bigl[\sum_{l\,\mathrm{above}} B(T_l)\,(t_{l-1} - t_l)
    + t_c \bigl(B(T_c) + \rho_c\, S\, t_c^{m}\bigr)\Bigr].

Single precision all through. Planck's law is interpolated through 12 temperatures
(Chebyshev's), which turns it into a product of matrices; the error is below 2e-5 of the
radiance at 300 K, well under the instrument's noise.

The instrument: how noisy each channel is, how noise goes from channel to channel, and steps.

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

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.radiometry import blackbody_radiance, radiance_slope
from undulatus.scenes.twins.sounder.atmosphere import LAYERS
from undulatus.scenes.twins.sounder.gases import cross_sections

Array = npt.NDArray[Any]

COLDEST, HOTTEST = 165.0, 345.0
"""Range of temperatures of the interpolation, K."""

_NODES = 12

_TILE = 256
"""Channels worked on at once: what they need stays in the processor's cache."""

SUNLIT = 2000.0
"""Wavenumber from which the sun's reflection is counted, cm⁻¹; below it is lost in emission."""

_SUN_TEMPERATURE, _SUN_ANGLE = 5800.0, 6.79e-5
"""K and steradians."""


@dataclass(frozen=True)
class Column:
    """What is seen over some samples, from the top of the air to the ground."""

    columns: Array
    """Of absorbers along the view, (samples, layers, absorbers), in 1e22 molecules per cm²."""
    layers: Array
    """Temperatures of the layers, K, (samples, layers)."""
    skin: Array
    air: Array
    """Temperatures of the surface and of the air on it, K."""
    materials: Array
    """Shares of the surface's materials, (samples, materials)."""
    cloud_amount: Array
    """Fraction times emissivity, 0 to 1."""
    cloud_layer: Array
    """The layer whose bottom is the cloud's top."""
    cloud_top: Array
    """Its temperature, K."""
    cloud_reflectance: Array
    """In the short-wave end of the spectrum."""
    sun_cosine: Array
    """Cosine of the sun's zenith angle, nought at night."""
    sun_path: Array
    """Length of the sun's path down over that of the view up."""


@cache
def _planck_nodes() -> tuple[Array, Array, Array]:
    """Return Chebyshev's temperatures, their barycentric weights, and their radiances.

    The last is (nodes, channels) float32.
    """
    angles = np.pi * (np.arange(_NODES) + 0.5) / _NODES
    nodes = (COLDEST + HOTTEST) / 2.0 + (HOTTEST - COLDEST) / 2.0 * np.cos(angles)
    weights = np.sin(angles) * (-1.0) ** np.arange(_NODES)
    return nodes, weights, blackbody_radiance(WAVENUMBERS, nodes[:, None]).astype(np.float32)


def planck_weights(temperature: Array) -> Array:
    """Return what each node counts at some temperatures (K), (..., nodes) float32."""
    nodes, weights, _ = _planck_nodes()
    away = np.asarray(temperature)[..., None] - nodes
    # A hair off the nodes, where the barycentric formula would divide by nought.
    terms = weights / np.where(np.abs(away) < 1e-7, 1e-7, away)
    return (terms / terms.sum(axis=-1, keepdims=True)).astype(np.float32)


@cache
def _sunlight() -> Array:
    """Return the radiance of a white surface under the overhead sun, (channels,) float32."""
    sun = blackbody_radiance(WAVENUMBERS, np.array(_SUN_TEMPERATURE)) * _SUN_ANGLE / np.pi
    return np.where(WAVENUMBERS >= SUNLIT, sun, 0.0).astype(np.float32)


def radiances(column: Column, emissivities: Array) -> Array:
    """Return the radiance of every sample and channel, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹, without noise.

    Parameters
    ----------
    column : Column
        Of n samples.
    emissivities : (materials, channels) array
        Of the surface's materials, float32.

    Returns
    -------
    (n, channels) array
        float32.
    """
    # Negative, so that transmittances are plain exponentials.
    depths = np.ascontiguousarray(-column.columns.transpose(1, 0, 2), dtype=np.float32)
    temperatures = np.column_stack([column.layers, column.cloud_top, column.air, column.skin])
    weights = np.ascontiguousarray(planck_weights(temperatures).transpose(1, 0, 2))
    tops = [
        np.flatnonzero((column.cloud_layer == layer) & (column.cloud_amount > 0.0))
        for layer in range(LAYERS)
    ]
    spectra = np.empty((depths.shape[1], len(WAVENUMBERS)), np.float32)
    for start in range(0, len(WAVENUMBERS), _TILE):
        tile = slice(start, start + _TILE)
        spectra[:, tile] = _in_tile(tile, column, depths, weights, tops, emissivities[:, tile])
    return spectra


def _in_tile(
    tile: slice,
    column: Column,
    depths: Array,
    weights: Array,
    tops: list[Array],
    emissivities: Array,
) -> Array:
    planck = _planck_nodes()[2][:, tile]
    layers, (top, air, skin) = weights[:LAYERS], weights[LAYERS:]
    # Summed by parts: B_1 + sum of t_l (B_{l+1} - B_l), with nothing below the last layer.
    steps = np.diff(layers, axis=0, append=np.zeros_like(layers[:1]))
    total = layers[0] @ planck
    depth, cloud, through, term = (np.zeros_like(total) for _ in range(4))
    for layer, section in enumerate(cross_sections()[:, :, tile]):
        depth += np.matmul(depths[layer], section, out=term)
        np.exp(depth, out=through)
        rows = tops[layer]
        if len(rows):
            light = (top - layers[layer])[rows] @ planck + _reflected(column, tile, depth, rows)
            cloud[rows] = total[rows] + through[rows] * light
        np.matmul(steps[layer], planck, out=term)
        term *= through
        total += term
    sky = (1.0 - through) * (air @ planck) + _reflected(column, tile, depth)
    emissivity = column.materials.astype(np.float32) @ emissivities
    total += through * (emissivity * (skin @ planck) + (1.0 - emissivity) * sky)
    total += _upright(column.cloud_amount) * (cloud - total)
    return total


def _reflected(
    column: Column, tile: slice, depth: Array, cloud: Array | None = None
) -> Array | float:
    """Return the sun's light as it arrives at the ground, or as clouds reflect it."""
    sun = _sunlight()[tile]
    if not sun[-1]:
        return 0.0
    rows = slice(None) if cloud is None else cloud
    share = column.sun_cosine[rows]
    if cloud is not None:
        share = share * column.cloud_reflectance[rows]
    down = np.exp(depth[rows] * _upright(column.sun_path[rows]))
    return np.asarray(_upright(share) * down * sun)


def _upright(values: Array) -> Array:
    return values.astype(np.float32)[:, None]


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
