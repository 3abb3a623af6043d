"""The surface: what it is made of, how its materials emit, and how warm it is.

Emissivities are interpolated between knots, set by hand to resemble the ECOSTRESS spectral library
(Meerdink et al. 2019): water close to Masuda's (1988), sand with the reststrahlen bands of quartz
between 1080 and 1250 cm⁻¹ and its doublet at 790. Every surface type is a mixture of materials.
Shares vary from sample to sample; in winter, in cold zones, snow covers land and ice the sea.

Temperatures of the air at the ground, K: the mean of the year, half the seasonal range, and the
spread from sample to sample, in round numbers typical of reanalyses.

=========  ================  ==================
zone       over the sea      over land
=========  ================  ==================
tropical   299.5, 1.0, 1.5   298.5, 1.5, 2.5
dry        294.0, 2.5, 2.5   297.0, 8.0, 4.0
temperate  288.5, 4.0, 4.5   286.5, 8.5, 4.5
cold       280.0, 4.0, 3.0   277.0, 14.0, 5.0
polar      274.0, 2.5, 2.5   260.0, 11.0, 6.0
=========  ================  ==================

The skin of land is warmer than its air by day and colder by night, more so the barer the land;
that of the sea differs by about half a kelvin.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.simulators.sounder.strata import SNOW, WATER, Strata

Array = npt.NDArray[Any]

MATERIALS = ("vegetation", "soil", "sand", "water", "snow")

_KNOTS = {
    "vegetation": [
        (645, 0.975), (800, 0.982), (1000, 0.983), (1250, 0.982), (1500, 0.975), (2000, 0.965),
        (2400, 0.960), (2760, 0.955),
    ],
    "soil": [
        (645, 0.965), (800, 0.970), (950, 0.965), (1050, 0.950), (1160, 0.940), (1230, 0.955),
        (1300, 0.970), (1500, 0.965), (2000, 0.900), (2400, 0.870), (2760, 0.860),
    ],
    "sand": [
        (645, 0.950), (740, 0.955), (775, 0.910), (788, 0.925), (800, 0.905), (830, 0.955),
        (950, 0.960), (1030, 0.930), (1080, 0.790), (1120, 0.720), (1150, 0.715), (1165, 0.770),
        (1180, 0.725), (1220, 0.790), (1250, 0.880), (1300, 0.965), (1360, 0.985), (1600, 0.950),
        (2000, 0.820), (2300, 0.750), (2500, 0.730), (2760, 0.700),
    ],
    "water": [
        (645, 0.955), (700, 0.968), (800, 0.985), (900, 0.991), (1000, 0.992), (1250, 0.986),
        (2000, 0.980), (2500, 0.976), (2760, 0.971),
    ],
    "snow": [
        (645, 0.970), (750, 0.975), (800, 0.980), (900, 0.993), (1000, 0.995), (1250, 0.991),
        (2000, 0.985), (2400, 0.978), (2760, 0.970),
    ],
}  # fmt: skip
"""Wavenumbers (cm⁻¹) and emissivities of each material."""

_MIXTURES = np.array(
    [
        [93, 7, 0, 0, 0], [98, 2, 0, 0, 0], [88, 12, 0, 0, 0], [90, 10, 0, 0, 0],
        [92, 8, 0, 0, 0], [60, 30, 10, 0, 0], [25, 45, 30, 0, 0], [75, 22, 3, 0, 0],
        [60, 32, 8, 0, 0], [60, 35, 5, 0, 0], [60, 5, 0, 35, 0], [65, 32, 3, 0, 0],
        [25, 70, 5, 0, 0], [72, 26, 2, 0, 0], [0, 2, 0, 3, 95], [0, 25, 75, 0, 0],
        [0, 0, 0, 100, 0], [50, 40, 0, 10, 0],
    ]
)  # fmt: skip
"""Percent of each material by surface type."""

_SEA = np.array(
    [[299.5, 1.0, 1.5], [294.0, 2.5, 2.5], [288.5, 4.0, 4.5], [280.0, 4.0, 3.0], [274.0, 2.5, 2.5]]
)

_LAND = np.array(
    [
        [298.5, 1.5, 2.5],
        [297.0, 8.0, 4.0],
        [286.5, 8.5, 4.5],
        [277.0, 14.0, 5.0],
        [260.0, 11.0, 6.0],
    ]
)
"""Air temperatures by zone, as in the table above."""

_WINTER_SNOW = np.array([0.0, 0.0, 0.10, 0.65, 0.75])
"""Share of land samples under snow in the zone's winter ..."""

_WINTER_ICE = 0.3
"""... and of polar sea samples under ice."""

SHARE_SPREAD = 0.5
"""Standard deviation of the logarithm of a material's share."""

HOTTEST_GROUND = 340.0
"""Upper limit of the skin's temperature, K: as hot as deserts get."""

SKIN_SPREAD_LAND, SKIN_SPREAD_SEA = 2.0, 0.6
"""Standard deviation of the difference between skin and air, K."""


@dataclass(frozen=True)
class Surface:
    """The surface of each sample, (samples,)."""

    materials: Array
    """Shares of ``MATERIALS``, (samples, materials)."""
    ground: Array
    """Temperature that the air's profile starts from, K."""
    inversion: Array
    """How much colder than that the air at the ground is, K."""
    skin: Array
    """Temperature of the surface itself, K."""


@cache
def emissivities() -> Array:
    """Return the emissivity of every material, (materials, channels) float32."""
    curves = [np.interp(WAVENUMBERS, *np.array(_KNOTS[name]).T) for name in MATERIALS]
    return np.array(curves, dtype=np.float32)


def draw_surface(rng: np.random.Generator, strata: Strata) -> Surface:
    """Draw the surface of each sample."""
    surface_index, zone = strata.surface_type - 1, strata.climate_zone - 1
    sea = strata.surface_type == WATER
    # From -1 in midwinter to 1 in midsummer, in either hemisphere.
    summer = np.array([0.0, 1.0, 0.0, -1.0])[strata.season - 1] * np.sign(strata.latitude)
    materials = _materials(rng, surface_index, zone, sea, summer)
    snowy = materials[:, MATERIALS.index("snow")]
    table = np.where(sea[:, None], _SEA[zone], _LAND[zone])
    ground = table[:, 0] + table[:, 1] * summer + table[:, 2] * rng.standard_normal(len(zone))
    ground = ground - 4.0 * (snowy > 0.5) * (strata.surface_type != SNOW)
    ground = np.minimum(ground, np.where(snowy > 0.5, 276.0, 330.0))
    ground = np.where(sea & (snowy < 0.5), np.maximum(ground, 271.4), ground)
    cosine = np.maximum(np.cos(np.radians(strata.solar_zenith_angle)), 0.0)
    bare = materials[:, 1] + 1.5 * materials[:, 2]
    inversion = _inversion(rng, sea & (snowy < 0.5), cosine, snowy, zone)
    return Surface(
        materials, ground, inversion, _skin(rng, ground - inversion, sea, cosine, bare, snowy)
    )


def _materials(
    rng: np.random.Generator, surface_index: Array, zone: Array, sea: Array, summer: Array
) -> Array:
    spread = np.exp(SHARE_SPREAD * rng.standard_normal((len(zone), len(MATERIALS))))
    shares = _MIXTURES[surface_index] * spread
    shares = shares / shares.sum(axis=1, keepdims=True)
    chance = np.where(sea, np.where(zone == 4, _WINTER_ICE, 0.0), _WINTER_SNOW[zone])
    covered = rng.random(len(zone)) < chance * np.clip(0.5 - summer, 0.0, 1.0)
    cover = np.where(covered, rng.uniform(0.4, 1.0, len(zone)), 0.0)[:, None]
    return np.asarray((1.0 - cover) * shares + cover * (np.arange(len(MATERIALS)) == 4))


def _inversion(
    rng: np.random.Generator, open_sea: Array, cosine: Array, snowy: Array, zone: Array
) -> Array:
    """Draw how much colder the air at the ground is: at night over land, most over snow."""
    strength = np.where(cosine > 0.1, 0.5, 2.5) + np.where(zone == 4, 2.0, 0.0) + 4.0 * snowy
    drawn = strength * rng.exponential(1.0, len(zone))
    return np.where(open_sea, 0.0, np.minimum(drawn, 18.0))


def _skin(
    rng: np.random.Generator, air: Array, sea: Array, cosine: Array, bare: Array, snowy: Array
) -> Array:
    warming = np.where(cosine > 0.05, cosine * (3.0 + 15.0 * bare), -1.0 - 3.0 * bare)
    warming = np.where(snowy > 0.5, -1.0, warming)
    noise = rng.standard_normal(len(air))
    land = air + warming + SKIN_SPREAD_LAND * (1.0 + bare) * noise
    land = np.minimum(land, np.where(snowy > 0.5, 273.5, HOTTEST_GROUND))
    return np.where(sea & (snowy < 0.5), air + 0.3 + SKIN_SPREAD_SEA * noise, land)
