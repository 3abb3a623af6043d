r"""What gases absorb: cross sections per layer at the sounder's resolution, computed once.

Carbon dioxide, nitrous oxide, carbon monoxide, ozone and water's bending vibration have their
lines where nature has them, to a fraction of a channel
(:mod:`undulatus.scenes.simulators.sounder.lines`); methane's are near their places. Water's other
lines (far rotation, other isotopes) are scattered at random, from a fixed seed: they have the
texture of the real ones. A cross section is

.. math:: k(\nu, p) = \sum_i S_i\, (\chi L_{\gamma p} * G)(\nu - \nu_i),

with Lorentz's profile of half width :math:`\gamma p`, cut off in its far wings by :math:`\chi`
and convolved with the apodised instrument :math:`G`, a Gaussian 0.5 cm⁻¹ wide. Averaging cross
sections before Beer's law rather than after makes strong lines somewhat too broad. Strengths are
those at the temperatures of a temperate atmosphere: cold layers have fewer molecules in high
levels.

Band centres and constants: CO₂, Rothman et al. (1992); N₂O and CO, HITRAN (Gordon et al. 2022);
ozone, Flaud et al. (1990); water at rest, De Lucia, Helminger & Kirchhoff (1974), and bent,
fitted to the 24 lowest levels of Tennyson et al. (2001), within 0.02 cm⁻¹. Intensities are near
HITRAN's, to one or two digits. The continuum of water is that of Roberts, Selby & Biberman
(1976), doi:10.1364/AO.15.002085. The band that collisions induce in nitrogen is a Gaussian at its
position, about as deep as in Lafferty et al. (1996).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.simulators.sounder.atmosphere import (
    AIR_COLUMNS,
    DOBSON,
    HEIGHTS,
    LAYER_PRESSURES,
    LEVELS,
)
from undulatus.scenes.simulators.sounder.lines import (
    LinearBand,
    Lines,
    SphericalBand,
    Top,
    TopBand,
    joined,
)

Array = npt.NDArray[Any]

ABSORBERS = ("water lines", "water continuum", "ozone", "carbon monoxide", "well mixed")
"""What has a column of its own; the last is dry air, with the gases that hardly vary."""

MIXING_RATIOS = {"CO2": 390e-6, "CH4": 1.8e-6, "N2O": 0.32e-6}
"""Of the well-mixed gases, around 2010."""

_SEED = 645_2760

_STEP = 0.05
"""Of the grid on which lines are summed, cm⁻¹ ..."""

_LOWEST, _HIGHEST = 600.0, 2805.0
"""... and its ends, cm⁻¹."""

_RESOLUTION = 0.5
"""Full width of the apodised instrument at half its height, cm⁻¹."""


_CO2_GROUND, _CO2_BENT = (0.390219, 0.390219), (0.390639, 0.391254)
_CO2_LOW, _CO2_HIGH, _CO2_TWICE = (0.390482, 0.390482), (0.390188, 0.390188), (0.391667, 0.391667)
"""Rotational constants of CO₂ at rest, bent, and in the three states of twice that energy."""

_N2O_GROUND = (0.419011, 0.419011)

_CO2_BANDS = (
    # At 15 µm: 12-16-16, then 13-16-16 and 16-12-18.
    LinearBand(8.3e-18, 667.380, _CO2_GROUND, _CO2_BENT, (0, 1), 0.0, True),
    LinearBand(6.5e-19, 667.752, _CO2_BENT, _CO2_TWICE, (1, 2), 667.4, True),
    LinearBand(3.0e-20, 668.115, _CO2_TWICE, (0.39238, 0.39238), (2, 3), 1335.1, True),
    LinearBand(1.4e-19, 618.029, _CO2_BENT, _CO2_LOW, (1, 0), 667.4, True),
    LinearBand(1.5e-19, 720.805, _CO2_BENT, _CO2_HIGH, (1, 0), 667.4, True),
    LinearBand(2.2e-20, 647.062, _CO2_LOW, (0.39074, 0.39169), (0, 1), 1285.4, True),
    LinearBand(1.5e-20, 688.672, _CO2_HIGH, (0.39041, 0.39133), (0, 1), 1388.2, True),
    LinearBand(1.4e-20, 741.724, _CO2_TWICE, (0.39041, 0.39133), (2, 1), 1335.1, True),
    LinearBand(6.0e-21, 757.479, (0.39238, 0.39238), (0.39110, 0.39110), (3, 2), 2003.2, True),
    LinearBand(1.0e-21, 791.448, _CO2_LOW, (0.39041, 0.39133), (0, 1), 1285.4, True),
    LinearBand(8.2e-20, 648.478, (0.390237, 0.390237), (0.390611, 0.391216), (0, 1), 0.0, True),
    LinearBand(3.3e-20, 662.373, (0.368182, 0.368182), (0.368540, 0.369090), (0, 1)),
    # Lasers, then 2077 and 2093 cm⁻¹.
    LinearBand(1.8e-22, 960.959, _CO2_HIGH, (0.387141, 0.387141), (0, 0), 1388.2, True),
    LinearBand(2.2e-22, 1063.734, _CO2_LOW, (0.387141, 0.387141), (0, 0), 1285.4, True),
    LinearBand(2.0e-20, 2076.856, _CO2_GROUND, (0.39041, 0.39133), (0, 1), 0.0, True),
    LinearBand(1.0e-20, 2093.345, _CO2_BENT, (0.39110, 0.39110), (1, 2), 667.4, True),
    # At 4.3 µm.
    LinearBand(9.5e-17, 2349.143, _CO2_GROUND, (0.387141, 0.387141), (0, 0), 0.0, True),
    LinearBand(7.5e-18, 2336.632, _CO2_BENT, (0.387593, 0.388190), (1, 1), 667.4, True),
    LinearBand(3.2e-19, 2324.141, _CO2_TWICE, (0.388630, 0.388630), (2, 2), 1335.1, True),
    LinearBand(1.9e-19, 2327.433, _CO2_LOW, (0.387500, 0.387500), (0, 0), 1285.4, True),
    LinearBand(1.1e-19, 2326.598, _CO2_HIGH, (0.387060, 0.387060), (0, 0), 1388.2, True),
    LinearBand(1.0e-18, 2283.488, (0.390237, 0.390237), (0.387273, 0.387273), (0, 0), 0.0, True),
    LinearBand(8.0e-20, 2271.760, (0.390611, 0.391216), (0.387690, 0.388270), (1, 1), 648.5, True),
    LinearBand(3.4e-19, 2332.113, (0.368182, 0.368182), (0.365294, 0.365294)),
)

_N2O_BANDS = (
    LinearBand(9.2e-18, 1284.903, _N2O_GROUND, (0.417255, 0.417255)),
    LinearBand(3.9e-19, 1168.132, _N2O_GROUND, (0.419920, 0.419920)),
    LinearBand(5.7e-17, 2223.757, _N2O_GROUND, (0.415560, 0.415560)),
    LinearBand(6.0e-18, 2209.525, (0.419177, 0.419969), (0.415716, 0.416489), (1, 1), 588.8),
    LinearBand(3.1e-19, 2461.997, _N2O_GROUND, (0.418170, 0.418170)),
    LinearBand(1.3e-18, 2563.339, _N2O_GROUND, (0.415604, 0.415604)),
)

_OZONE_DISTORTION = (4.535e-7, -1.846e-6, 2.1175e-4, 6.966e-8, 3.232e-6)

_OZONE = Top(3.553666, 0.4452834, 0.3947518, _OZONE_DISTORTION)


_WATER = Top(
    27.88063, 14.52177, 9.27771,
    (1.25401e-3, -5.76775e-3, 3.24655e-2, 5.07365e-4, 1.36929e-3),
    (5.222e-7, -1.4037e-6, -1.69949e-5, 1.245206e-4, 2.60040e-7, -8.3941e-7, 3.65953e-5),
)  # fmt: skip

_WATER_BENT = Top(
    31.12474, 14.69379, 9.12573,
    (1.57678e-3, -8.20715e-3, 5.71228e-2, 6.48116e-4, 5.43146e-3),
    (5.210e-7, -1.4006e-6, -3.69379e-5, 2.752061e-4, 2.60040e-7, -8.3941e-7, 1.015180e-4),
)  # fmt: skip


def _ozone_band(
    intensity: float, centre: float, constants: tuple[float, float, float], axis: str
) -> TopBand:
    upper = Top(*constants, _OZONE_DISTORTION)
    return TopBand(intensity, centre, _OZONE, upper, axis, (1, 0))


BANDS: dict[str, tuple[LinearBand | TopBand, ...]] = {
    "CO2": _CO2_BANDS,
    "N2O": _N2O_BANDS,
    "CO": (LinearBand(9.8e-18, 2143.271, (1.922529,) * 2, (1.905026,) * 2, distortion=6.12e-6),),
    "O3": (
        _ozone_band(1.4e-17, 1042.084, (3.500550, 0.441298, 0.391386), "a"),
        _ozone_band(6.0e-19, 1103.137, (3.556700, 0.442738, 0.392558), "b"),
        _ozone_band(6.4e-19, 700.931, (3.607059, 0.443873, 0.391043), "b"),
        _ozone_band(1.1e-18, 2110.785, (3.503600, 0.438753, 0.389192), "a"),
    ),
    "H2O": (TopBand(1.04e-17, 1594.746, _WATER, _WATER_BENT, "b", (1, 3), 16),),
}
"""Bands whose lines have their true places."""

METHANE_BANDS = (
    SphericalBand(5.0e-18, 1306.1, 5.53, -0.05, 0.012),
    SphericalBand(6.0e-20, 1533.3, 10.48, 0.0, 0.05),
    SphericalBand(5.5e-20, 2612.0, 5.5, 0.0, 0.04),
    SphericalBand(4.0e-19, 2830.0, 10.48, 0.0, 0.05),
)

WATER_ENVELOPE = np.array(
    [
        [600, -19.9], [650, -20.2], [700, -20.7], [750, -21.3], [800, -21.8], [850, -22.4],
        [900, -22.8], [950, -23.2], [1000, -23.4], [1050, -23.2], [1100, -22.9], [1150, -22.5],
        [1200, -22.2], [1300, -21.8], [1400, -21.3], [1500, -20.8], [1595, -20.8], [1700, -20.8],
        [1850, -21.2], [2000, -21.9], [2050, -22.0], [2100, -21.8], [2150, -22.4],
        [2200, -23.0], [2300, -24.0], [2400, -24.6], [2500, -24.6], [2600, -23.9], [2700, -23.1],
        [2760, -22.8], [2810, -22.6],
    ]
)  # fmt: skip
"""Decimal logarithm of the strength of water's strong lines (cm per molecule) by wavenumber,
without those of the bending vibration, 1200 to 2050 cm⁻¹; beyond 2600 cm⁻¹ they are HDO's."""

_WATER_LINES_PER_WAVENUMBER = 0.8

_WATER_DECADES = 0.75
"""Mean number of decades, exponentially distributed, by which a line is weaker than the strong."""

_HALF_WIDTHS = {"H2O": 0.085, "CO2": 0.07, "O3": 0.075, "CH4": 0.06, "N2O": 0.075, "CO": 0.06}
"""Half widths at the surface's pressure, cm⁻¹."""

_WINGS = {"H2O": 25.0, "CO2": 4.0}
"""Where far wings end, cm⁻¹: beyond, water's are its continuum and CO₂'s are known to be weak."""

_SPACINGS = {"H2O": 0.5, "CO2": 0.5, "O3": 0.06, "CH4": 0.2, "N2O": 0.4, "CO": 0.5}
"""Spacing of lines as a channel sees them, cm⁻¹: at most the channel's own width."""

_DOPPLER = 8e-7
"""Doppler half width of lines, divided by their wavenumber."""


def _water_lines(rng: np.random.Generator) -> Lines:
    count = int(_WATER_LINES_PER_WAVENUMBER * (_HIGHEST - _LOWEST))
    positions = np.sort(rng.uniform(_LOWEST, _HIGHEST, count))
    strongest = np.interp(positions, *WATER_ENVELOPE.T)
    strengths = 10.0 ** (strongest - rng.exponential(_WATER_DECADES, count))
    return Lines(positions, strengths, np.zeros(count), 0.0)


def _mean_cross_sections(lines: Lines, half_width: float, wing: float) -> Array:
    """Return a gas's cross section in every layer, (layers, channels), cm² per molecule."""
    cells = round((_HIGHEST - _LOWEST) / _STEP)
    inside = (lines.positions > _LOWEST) & (lines.positions < _HIGHEST)
    index = ((lines.positions[inside] - _LOWEST) / _STEP).astype(int)
    padded = 2 * cells
    away = np.fft.fftfreq(padded, 1.0 / (padded * _STEP))
    sigma = _RESOLUTION / np.sqrt(8.0 * np.log(2.0))
    instrument = np.exp(-2.0 * (np.pi * sigma * np.fft.rfftfreq(padded, _STEP)) ** 2)
    chi = np.exp(-((away / wing) ** 2))
    channels = np.round((WAVENUMBERS - _LOWEST) / _STEP - 0.5).astype(int)
    layers = []
    for pressure, kelvin in zip(
        LAYER_PRESSURES / LAYER_PRESSURES.max(), reference_temperatures(), strict=True
    ):
        sticks = np.bincount(index, lines.strengths_at(kelvin)[inside], cells) / _STEP
        seen = np.fft.rfft(sticks, padded) * instrument
        width = half_width * pressure
        # Each cell holds the integral over it, since lines are narrower than cells high up.
        edges = np.arctan((away + _STEP / 2) / width) - np.arctan((away - _STEP / 2) / width)
        smeared = np.fft.irfft(seen * np.fft.rfft(edges / np.pi * chi), padded)
        layers.append(np.maximum(smeared[channels], 0.0))
    return np.array(layers)


def water_continuum(wavenumber: Array) -> Array:
    """Return water's self continuum at 296 K, cm² per molecule and atmosphere of vapour."""
    return np.asarray(1.25e-22 + 2.34e-19 * np.exp(-8.3e-3 * wavenumber))


def nitrogen_continuum(wavenumber: Array) -> Array:
    """Return the collision-induced absorption of nitrogen, cm² per molecule of air at 1 atm."""
    return np.asarray(4.0e-26 * np.exp(-(((wavenumber - 2335.0) / 62.0) ** 2)))


def _effective(mean: Array, columns: Array, half_width: float, spacing: float) -> Array:
    r"""Return cross sections whose optical depths add up to the effective ones of a channel.

    Lines are narrower than channels, and the narrower the thinner the air. With the mean cross
    section :math:`\bar k`, columns :math:`u` above and the mean half width :math:`\alpha` of
    the path (Curtis-Godson), Malkmus's (1967) model gives a channel's optical depth,

    .. math:: d = \frac{\pi\alpha}{2\delta}
        \Bigl(\sqrt{1 + 4 \bar k u \delta / \pi\alpha} - 1\Bigr).

    Returned is its increase from layer to layer, divided by the layer's column.

    Parameters
    ----------
    mean : (layers, channels) array
        cm² per molecule.
    columns : (layers,) array
        Of a reference atmosphere, molecules per cm².
    half_width, spacing : float
        Of lines, cm⁻¹.
    """
    width = np.hypot(half_width * LAYER_PRESSURES[:, None] / 1013.25, _DOPPLER * WAVENUMBERS)
    amount = np.cumsum(mean * columns[:, None], axis=0)
    weighted = np.cumsum(width * mean * columns[:, None], axis=0)
    alpha = np.pi * weighted / np.maximum(amount, 1e-30) / spacing
    depth = alpha / 2.0 * (np.sqrt(1.0 + 4.0 * amount / np.maximum(alpha, 1e-12)) - 1.0)
    growth = np.diff(depth, axis=0, prepend=0.0)
    return np.maximum(growth, 0.0) / columns[:, None]


@cache
def cross_sections() -> Array:
    """Return the cross section of every absorber, (layers, absorbers, channels) float32.

    In 1e-22 cm² per unit of column, so that they and the columns fit in single precision.
    """
    rng = np.random.default_rng(_SEED)
    lists: dict[str, Lines] = {
        "CH4": joined(band.lines(rng) for band in METHANE_BANDS),
        **{gas: joined(band.lines() for band in bands) for gas, bands in BANDS.items()},
    }
    lists["H2O"] = joined([lists["H2O"], _water_lines(rng)])
    columns = reference_columns()
    gases = {}
    for gas, lines in lists.items():
        mean = _mean_cross_sections(lines, _HALF_WIDTHS[gas], _WINGS.get(gas, 10.0))
        gases[gas] = _effective(mean, columns[gas], _HALF_WIDTHS[gas], _SPACINGS[gas])
    well_mixed = sum(ratio * gases[gas] for gas, ratio in MIXING_RATIOS.items())
    well_mixed = well_mixed + LAYER_PRESSURES[:, None] / 1013.25 * nitrogen_continuum(WAVENUMBERS)
    continuum = np.broadcast_to(water_continuum(WAVENUMBERS), well_mixed.shape)
    sections = [gases["H2O"], continuum, gases["O3"], gases["CO"], well_mixed]
    return np.ascontiguousarray(np.stack(sections, axis=1) * 1e22, dtype=np.float32)


def reference_temperatures() -> Array:
    """Return the temperatures of the layers of a temperate atmosphere, K, (layers,)."""
    return np.maximum(288.0 - 6.3 * HEIGHTS, 216.0 + 1.37 * (HEIGHTS - 12.0))


def reference_columns() -> dict[str, Array]:
    """Return the columns of each gas in a temperate atmosphere, molecules per cm², (layers,)."""
    water = AIR_COLUMNS * np.maximum(0.012 * np.exp(-HEIGHTS / 2.2), 5e-6)
    ozone = np.exp(-0.5 * ((HEIGHTS - 22.0) / 5.0) ** 2) - np.diff(LEVELS) * 0.001
    return {
        "H2O": water,
        "O3": 300.0 * DOBSON * ozone / ozone.sum(),
        "CO": 1e-7 * AIR_COLUMNS,
        **{gas: ratio * AIR_COLUMNS for gas, ratio in MIXING_RATIOS.items()},
    }
