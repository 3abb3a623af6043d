"""What the satellite sees: the seven channels over a surface, dust and clouds.

**Solar channels.** Surface, cloud and dust are layers that scatter without loss except for the
factors below, each with a two-stream reflectance x / (1 + x), x = β τ / μ (Coakley & Chýlek 1975),
β = (1 - g) / 2. The air above adds Rayleigh's path reflectance. The sea glints (Cox & Munk 1954).
Clouds between the ground and the sun shade it.

**Thermal channels.** The surface emits according to its emissivity, moist air absorbs and emits,
dust and each layer of cloud absorb by 1 - exp(-κ τ / 2 μ) and emit at their temperature.

**Noise.** As SEVIRI's specification has it: 0.35, 0.28, 0.25, 0.37 K at 300 K; 0.12 % of
reflectance before the division by the sun's cosine, which makes it grow as the sun sinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.illumination import COSINE_FLOOR
from undulatus.scenes.radiometry import DEFAULT_PLATFORM, SOLAR_RADIANCE_39, THERMAL_BANDS
from undulatus.scenes.simulators.landmark.weather import LAPSE, VIEW_ZENITH, Place, Sun, Weather

Array = npt.NDArray[Any]

VIEW = float(np.cos(VIEW_ZENITH))
"""Cosine of the satellite's zenith angle."""

SOLAR_NOISE = 0.0012
"""Of reflectance (0 to 1), before the division by the sun's cosine."""

_WATER_BACKSCATTER, _ICE_BACKSCATTER, _DUST_BACKSCATTER = 0.075, 0.115, 0.14
"""(1 - g) / 2 for g = 0.85, 0.77 and 0.72."""

_LOWEST_SUN = 0.1
"""Lower limit of the sun's cosine: a plane-parallel path is too long, as the Earth is round."""


@dataclass(frozen=True)
class SolarBand:
    """A channel of reflected sunlight: reflectances (0 to 1), and scattering and absorption."""

    land: float
    sea: float
    rayleigh: float
    """Optical depth of the air."""
    droplets: float
    ice: float
    """Reflectance of thick cloud, as a share of that of one that does not absorb."""
    dust: float
    """Optical depth of dust, as a share of that at 0.6 µm."""
    dust_albedo: float


@dataclass(frozen=True)
class EmissionBand:
    """A thermal channel: emissivities, and absorption by vapour, cloud and dust."""

    land: float
    sea: float
    vapour: float
    """Optical depth of water vapour, per kg m⁻²."""
    droplets: float
    ice: float
    """Optical depth of cloud, as a share of half that at 0.6 µm."""
    dust: float
    """Optical depth of dust, as a share of that at 0.6 µm."""
    noise: float
    """K at 300 K."""


SOLAR = {
    "VIS006": SolarBand(0.32, 0.020, 0.055, 1.00, 1.00, 1.00, 0.93),
    "VIS008": SolarBand(0.41, 0.012, 0.018, 1.00, 1.00, 0.95, 0.95),
    "IR_016": SolarBand(0.52, 0.008, 0.001, 0.80, 0.45, 0.80, 0.97),
}
"""Bright sand (Govaerts et al. 2004) and clear water; droplets of 10 µm, crystals of 30 µm."""

NEAR = SolarBand(0.17, 0.020, 0.0, 0.18, 0.04, 0.4, 0.9)
"""The reflected part of the 3.9 µm channel."""

EMISSION = {
    "IR_039": EmissionBand(0.83, 0.975, 0.0040, 0.90, 0.90, 0.20, 0.35),
    "IR_087": EmissionBand(0.86, 0.985, 0.0105, 1.00, 0.85, 0.20, 0.28),
    "IR_108": EmissionBand(0.95, 0.990, 0.0080, 1.00, 1.00, 0.30, 0.25),
    "IR_120": EmissionBand(0.965, 0.985, 0.0120, 1.10, 1.15, 0.22, 0.37),
}
"""Quartz is dark at 8.7 µm (Trigo et al. 2008); dust absorbs most near 10.8 µm, ice near 12."""


def solar_channels(
    place: Place, sun: Sun, weather: Weather, texture: Array, rng: np.random.Generator
) -> dict[str, Array]:
    """Return reflectances in percent, divided by the sun's cosine; missing at night.

    ``texture`` (places,) is the relative departure of the desert's brightness from its mean.
    """
    cosine = sun.cosine
    # Beyond 88° the light still weakens, but the cosine that reflectances are divided by does not.
    seen = cosine / np.maximum(cosine, COSINE_FLOOR)
    channels = {}
    for name, band in SOLAR.items():
        reflectance = _reflectance(band, place, sun, weather, texture)
        noise = SOLAR_NOISE * rng.standard_normal(reflectance.shape)
        value = 100.0 * (reflectance * seen + noise / np.maximum(cosine, COSINE_FLOOR))
        channels[name] = np.where(cosine > 0.0, value, np.nan)
    return channels


def _reflectance(
    band: SolarBand, place: Place, sun: Sun, weather: Weather, texture: Array
) -> Array:
    mu = np.maximum(sun.cosine, _LOWEST_SUN)
    sea = band.sea + sun.glint(weather.wind)
    surface = place.land * band.land * (1.0 + texture) + (1.0 - place.land) * sea
    cloud, white = _cloud(band, weather, mu)
    shade, _ = _cloud(band, weather, mu, shadow=True)
    seen = white * cloud + (1.0 - shade) * (1.0 - cloud) * surface / (1.0 - cloud * surface)
    x = _DUST_BACKSCATTER * band.dust * weather.dust / mu
    dust = x / (1.0 + x)
    absorbed = np.exp(-(1.0 - band.dust_albedo) * band.dust * weather.dust * (1 / mu + 1 / VIEW))
    seen = band.dust_albedo * dust + absorbed * (1.0 - dust) ** 2 * seen / (1.0 - dust * seen)
    slant = 1.0 / mu + 1.0 / VIEW
    air = 0.75 / (4.0 * (mu + VIEW)) * -np.expm1(-band.rayleigh * slant)
    return np.asarray(air + np.exp(-0.5 * band.rayleigh * slant) * seen)


def _cloud(
    band: SolarBand, weather: Weather, mu: Array, *, shadow: bool = False
) -> tuple[Array, Array]:
    """Return the two-stream reflectance of all layers, and their whiteness in this band."""
    total: Array = np.zeros_like(mu)
    bright: Array = np.zeros_like(mu)
    for layer in weather.layers:
        backscatter = _ICE_BACKSCATTER if layer.ice else _WATER_BACKSCATTER
        x = backscatter * (layer.shadow if shadow else layer.depth) / mu
        total = total + x
        bright = bright + x * (band.ice if layer.ice else band.droplets)
    return total / (1.0 + total), bright / np.maximum(total, 1e-12)


def thermal_channels(
    place: Place,
    sun: Sun,
    weather: Weather,
    texture: Array,
    distance: Array,
    rng: np.random.Generator,
) -> dict[str, Array]:
    """Return brightness temperatures, K; by day, that at 3.9 µm includes reflected sunlight.

    ``distance`` (times, 1) is that of the sun, astronomical units.
    """
    channels = {}
    for name, band in EMISSION.items():
        law = THERMAL_BANDS[DEFAULT_PLATFORM][name]
        radiance = emission(law.radiance, band, place, weather, texture)
        if name == "IR_039":
            lit = np.maximum(sun.cosine, 0.0)
            reflected = _reflectance(NEAR, place, sun, weather, texture)
            radiance = radiance + reflected * SOLAR_RADIANCE_39 * lit / distance**2
        # The detector's noise is in radiance, so cold scenes are noisier in temperature.
        error = band.noise * float(law.radiance(np.array(300.5)) - law.radiance(np.array(299.5)))
        radiance = radiance + error * rng.standard_normal(radiance.shape)
        channels[name] = law.temperature(np.maximum(radiance, law.radiance(np.array(180.0))))
    return channels


def emission(
    planck: Any, band: EmissionBand, place: Place, weather: Weather, texture: Array
) -> Array:
    """Return the radiance emitted towards the satellite; ``planck`` is a channel's Planck law."""
    clear = np.exp(-band.vapour * weather.water_vapour[:, None] / VIEW)
    air = planck(weather.air_temperature - 12.0)
    land_emissivity = band.land * (1.0 + 0.3 * (1.0 - band.land) * texture)
    surface = place.land * land_emissivity * planck(weather.land_temperature) + (
        1.0 - place.land
    ) * band.sea * planck(weather.sea_temperature)
    reflected = (1.0 - np.where(place.land > 0.5, band.land, band.sea)) * (1.0 - clear) * air
    radiance = clear * (surface + reflected) + (1.0 - clear) * air
    hidden = -np.expm1(-band.dust * weather.dust / VIEW)
    radiance = radiance * (1.0 - hidden) + hidden * planck(weather.air_temperature - 15.0)
    for layer in weather.layers:
        share = band.ice if layer.ice else band.droplets
        hidden = -np.expm1(-share * layer.depth / (2.0 * VIEW))
        # Low cloud lies below the inversion, and is cooler than the lapse rate alone gives.
        top = weather.air_temperature - 4.0 - LAPSE * layer.height
        radiance = radiance * (1.0 - hidden) + hidden * planck(top)
    return np.asarray(radiance)
