"""Which samples there are: surface types, climate zones, seasons, day and night, classes of cloud.

Counts by surface type, climate zone and season are exactly those the paper gives for its 24,923
samples. Another number of samples has them in proportion, as always do the four classes, of which
the paper gives percentages. Types and zones are combined as on Earth: affinities between them are
fitted to both counts (iterative proportional fitting) and rounded without changing either. Zones
of the sea are bands of latitude, so no water is dry or cold. Seasons, classes and overpasses are
assigned at random. Metop passes at 9:30 and 21:30 local time; a sample is *day* if the sun is
above the horizon then.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from scipy.optimize import linprog

from undulatus._daylight import NIGHT
from undulatus.scenes.illumination import solar_zenith_angle

Array = npt.NDArray[Any]

SURFACE_TYPES = {
    "evergreen_needle_forest": 603, "evergreen_broad_forest": 876,
    "deciduous_needle_forest": 89, "deciduous_broad_forest": 324, "mixed_forest": 602,
    "closed_shrubs": 329, "open_shrubs": 1484, "woody_savannas": 768, "savannas": 656,
    "grassland": 886, "wetlands": 147, "crops": 1294, "urban": 44, "crop_mosaic": 1436,
    "snow_ice": 1443, "barren_desert": 1379, "water": 12150, "tundra": 413,
}  # fmt: skip
"""Samples of each type; the first has code 1."""

CLIMATE_ZONES = {"tropical": 7499, "dry": 3237, "temperate": 8150, "cold": 2205, "polar": 3832}
"""Samples of each zone; the first has code 1."""

SEASONS = {"spring": 5862, "summer": 6930, "autumn": 6662, "winter": 5469}
"""Samples of each season of the northern hemisphere; spring, March to May, has code 1."""

CLOUD_CLASSES = {"clear": 28, "partly_cloudy_low": 26, "partly_cloudy_high": 26, "cloudy": 20}
"""Percent of samples; the first has code 0."""

SAMPLES = sum(SURFACE_TYPES.values())

WATER, SNOW = 17, 15
"""Codes of surface types."""

_AFFINITIES = np.array(
    [
        [0, 0, 3, 6, 1], [9, 0, 1, 0, 0], [0, 0, 0, 6, 1], [1, 0, 5, 3, 0], [0, 0, 4, 5, 0.5],
        [1, 5, 3, 0.5, 0], [0.5, 8, 1, 1, 2], [5, 1, 3, 1, 0], [8, 2, 1, 0, 0],
        [1, 5, 3, 2, 0.5], [3, 0.5, 2, 2, 1], [2, 2, 5, 2, 0], [2, 2, 4, 2, 0],
        [4, 1, 4, 1, 0], [0, 0, 0.1, 0.3, 9], [0.2, 9, 0.3, 0.2, 0.1], [5, 0, 6, 0, 2],
        [0, 0, 0, 2, 6],
    ]
)  # fmt: skip
"""How common types (rows) are in zones (columns), before they are fitted to the counts."""

_LATITUDES = {
    1: (0.0, 23.5), 2: (15.0, 38.0), 3: (28.0, 55.0), 4: (45.0, 68.0), 5: (62.0, 85.0),
}  # fmt: skip
"""Range of the absolute latitude in each zone, degrees."""

_SOUTHERN_LAND = {1: 0.5, 2: 0.25, 3: 0.2, 4: 0.0, 5: 0.3}
"""Share of each zone's land in the southern hemisphere."""

_MIDDLE_MONTH = {1: 4, 2: 7, 3: 10, 4: 1}
"""Of each season."""

_YEAR = 2010


@dataclass(frozen=True)
class Strata:
    """Where and when every sample was taken, and its class, (samples,)."""

    surface_type: Array
    climate_zone: Array
    season: Array
    cloud_class: Array
    latitude: Array
    longitude: Array
    time: Array
    solar_zenith_angle: Array

    @property
    def day(self) -> Array:
        """Whether the sun is above the horizon."""
        return np.asarray(self.solar_zenith_angle < NIGHT)

    def part(self, rows: slice) -> Strata:
        """Return some of the samples."""
        return Strata(**{name: values[rows] for name, values in vars(self).items()})


def apportion(counts: Any, samples: int) -> Array:
    """Return counts in proportion that add up to ``samples``; the largest remainders round up."""
    exact = np.asarray(list(counts), dtype=float)
    exact = exact * (samples / exact.sum())
    whole = np.floor(exact + 1e-9).astype(int)
    last = np.argsort(whole - exact, kind="stable")[: samples - whole.sum()]
    whole[last] += 1
    return whole


def joint_counts(affinities: Array, rows: Array, columns: Array) -> Array:
    """Return integer counts with exactly these margins, next to the affinities fitted to them.

    A linear programme rounds the fit up or down, cell by cell. Its solution is integer because
    the margins are and its matrix is totally unimodular.
    """
    # Zeros stay nearly zero, but margins of few samples can always be met.
    fit = affinities + 1e-6
    for _ in range(200):
        fit = fit * (rows / np.maximum(fit.sum(axis=1), 1e-12))[:, None]
        fit = fit * (columns / np.maximum(fit.sum(axis=0), 1e-12))
    down = np.floor(fit)
    of_row = np.kron(np.eye(len(rows)), np.ones(len(columns)))
    of_column = np.kron(np.ones(len(rows)), np.eye(len(columns)))
    rounding = linprog(
        (down - fit).ravel(),
        A_eq=np.vstack([of_row, of_column]),
        b_eq=np.concatenate([rows - down.sum(axis=1), columns - down.sum(axis=0)]),
        bounds=(0, 1),
        method="highs-ds",
    )
    return (down + np.round(rounding.x).reshape(down.shape)).astype(int)


@lru_cache(maxsize=4)
def draw_strata(samples: int, seed: int) -> Strata:
    """Draw the strata of a number of samples, in random order."""
    rng = np.random.default_rng([seed, samples])
    types = apportion(SURFACE_TYPES.values(), samples)
    zones = apportion(CLIMATE_ZONES.values(), samples)
    together = rng.permutation(
        np.repeat(np.arange(90), joint_counts(_AFFINITIES, types, zones).ravel())
    )
    surface_type, climate_zone = together // 5 + 1, together % 5 + 1
    season = rng.permutation(np.repeat([1, 2, 3, 4], apportion(SEASONS.values(), samples)))
    classes = apportion(CLOUD_CLASSES.values(), samples)
    cloud_class = rng.permutation(np.repeat([0, 1, 2, 3], classes))
    latitude, longitude = _draw_coordinates(rng, surface_type, climate_zone)
    time = _draw_overpasses(rng, season, longitude)
    angle = solar_zenith_angle(xr.DataArray(time), xr.DataArray(longitude), xr.DataArray(latitude))
    strata = Strata(
        surface_type=surface_type.astype(np.uint8),
        climate_zone=climate_zone.astype(np.uint8),
        season=season.astype(np.uint8),
        cloud_class=cloud_class.astype(np.uint8),
        latitude=latitude.astype(np.float32),
        longitude=longitude.astype(np.float32),
        time=time,
        solar_zenith_angle=angle.values,
    )
    for values in vars(strata).values():
        values.setflags(write=False)
    return strata


def _draw_coordinates(
    rng: np.random.Generator, surface_type: Array, climate_zone: Array
) -> tuple[Array, Array]:
    """Draw latitudes and longitudes (degrees) that fit the zone, without a map of the land."""
    edges = np.array([_LATITUDES[zone] for zone in range(1, 6)])[climate_zone - 1]
    # Uniform in the sine of the latitude is uniform over the sphere.
    low, high = np.sin(np.radians(edges)).T
    latitude = np.degrees(np.arcsin(rng.uniform(low, high)))
    southern = np.array([_SOUTHERN_LAND[zone] for zone in range(1, 6)])[climate_zone - 1]
    southern = np.where(surface_type == WATER, 0.5, southern)
    latitude = np.where(rng.random(len(latitude)) < southern, -latitude, latitude)
    return latitude, rng.uniform(-180.0, 180.0, len(latitude))


def _draw_overpasses(rng: np.random.Generator, season: Array, longitude: Array) -> Array:
    months = (np.array([_MIDDLE_MONTH[code] for code in range(1, 5)])[season - 1] - 2) % 12
    months = (months + rng.integers(0, 3, len(season))) % 12
    # From the 2nd to the 27th, so that the date in UTC, a day off at most, is in the same month.
    days = rng.integers(1, 27, len(season))
    hour = np.where(rng.random(len(season)) < 0.5, 9.5, 21.5) + rng.uniform(-0.8, 0.8, len(season))
    start = (np.datetime64(f"{_YEAR}-01", "M") + months).astype("datetime64[D]") + days
    seconds = np.round((hour - longitude / 15.0) * 3600.0).astype("timedelta64[s]")
    return np.asarray(start.astype("datetime64[ns]") + seconds)
