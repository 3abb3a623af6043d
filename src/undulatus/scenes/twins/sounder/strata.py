"""Which samples there are: surface types, climate zones, seasons, day and night, classes of cloud.

Counts by surface type, climate zone and season are those the paper gives of its 24,923 samples,
exactly; another number of samples has them in proportion, and so have the four classes, of
which the paper gives percent. Types and zones go together as on Earth: affinities between them
are fitted to both counts (iterative proportional fitting) and rounded without changing either.
Zones of the sea are bands of latitude, so that no water is dry or cold. Seasons, classes and
overpasses are dealt out at random. Metop passes at 9:30 and 21:30 local time; what is called day
is what has the sun above the horizon then.
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
"""Samples of each type; the first is number 1."""

CLIMATE_ZONES = {"tropical": 7499, "dry": 3237, "temperate": 8150, "cold": 2205, "polar": 3832}

SEASONS = {"spring": 5862, "summer": 6930, "autumn": 6662, "winter": 5469}
"""The north's: spring is March to May."""

CLOUD_CLASSES = {"clear": 28, "partly_cloudy_low": 26, "partly_cloudy_high": 26, "cloudy": 20}
"""Percent of samples; the first is number 0."""

SAMPLES = sum(SURFACE_TYPES.values())

WATER = 17

SNOW = 15

_AFFINITIES = np.array(
    [
        [0, 0, 3, 6, 1], [9, 0, 1, 0, 0], [0, 0, 0, 6, 1], [1, 0, 5, 3, 0], [0, 0, 4, 5, 0.5],
        [1, 5, 3, 0.5, 0], [0.5, 8, 1, 1, 2], [5, 1, 3, 1, 0], [8, 2, 1, 0, 0],
        [1, 5, 3, 2, 0.5], [3, 0.5, 2, 2, 1], [2, 2, 5, 2, 0], [2, 2, 4, 2, 0],
        [4, 1, 4, 1, 0], [0, 0, 0.1, 0.3, 9], [0.2, 9, 0.3, 0.2, 0.1], [5, 0, 6, 0, 2],
        [0, 0, 0, 2, 6],
    ]
)  # fmt: skip
"""How well types (rows) and zones go together, before they are fitted to the counts."""

_LATITUDES = {
    1: (0.0, 23.5), 2: (15.0, 38.0), 3: (28.0, 55.0), 4: (45.0, 68.0), 5: (62.0, 85.0),
}  # fmt: skip

_SOUTHERN_LAND = {1: 0.5, 2: 0.25, 3: 0.2, 4: 0.0, 5: 0.3}

_MIDMONTH = {1: 4, 2: 7, 3: 10, 4: 1}

_YEAR = 2010


@dataclass(frozen=True)
class Strata:
    """What is known of every sample before any of it is seen, (samples,)."""

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
        """Where the sun is above the horizon."""
        return np.asarray(self.solar_zenith_angle < NIGHT)

    def part(self, rows: slice) -> Strata:
        """Return some of the samples."""
        return Strata(**{name: values[rows] for name, values in vars(self).items()})


def share(counts: Any, samples: int) -> Array:
    """Return counts in proportion that add up to ``samples``; the largest remainders round up."""
    exact = np.asarray(list(counts), dtype=float)
    exact = exact * (samples / exact.sum())
    whole = np.floor(exact + 1e-9).astype(int)
    last = np.argsort(whole - exact, kind="stable")[: samples - whole.sum()]
    whole[last] += 1
    return whole


def joint_counts(affinities: Array, rows: Array, columns: Array) -> Array:
    """Return whole counts that have both margins exactly and lie next to the affinities' fit.

    The fit is rounded up or down cell by cell by a linear programme: margins that are whole
    leave it whole corners only (its matrix is totally unimodular).
    """
    # Structural zeros stay all but zero, yet margins of few samples can always be met.
    fit = affinities + 1e-6
    for _ in range(200):
        fit = fit * (rows / np.maximum(fit.sum(axis=1), 1e-12))[:, None]
        fit = fit * (columns / np.maximum(fit.sum(axis=0), 1e-12))
    down = np.floor(fit)
    of_row = np.kron(np.eye(len(rows)), np.ones(len(columns)))
    of_column = np.kron(np.ones(len(rows)), np.eye(len(columns)))
    found = linprog(
        (down - fit).ravel(),
        A_eq=np.vstack([of_row, of_column]),
        b_eq=np.concatenate([rows - down.sum(axis=1), columns - down.sum(axis=0)]),
        bounds=(0, 1),
        method="highs-ds",
    )
    return (down + np.round(found.x).reshape(down.shape)).astype(int)


@lru_cache(maxsize=4)
def draw_strata(samples: int, seed: int) -> Strata:
    """Draw the strata of so many samples, in random order."""
    rng = np.random.default_rng([seed, samples])
    types, zones = share(SURFACE_TYPES.values(), samples), share(CLIMATE_ZONES.values(), samples)
    together = rng.permutation(
        np.repeat(np.arange(90), joint_counts(_AFFINITIES, types, zones).ravel())
    )
    surface_type, climate_zone = together // 5 + 1, together % 5 + 1
    season = rng.permutation(np.repeat([1, 2, 3, 4], share(SEASONS.values(), samples)))
    cloud_class = rng.permutation(np.repeat([0, 1, 2, 3], share(CLOUD_CLASSES.values(), samples)))
    latitude, longitude = _places(rng, surface_type, climate_zone)
    time = _overpasses(rng, season, longitude)
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


def _places(
    rng: np.random.Generator, surface_type: Array, climate_zone: Array
) -> tuple[Array, Array]:
    """Draw latitudes and longitudes (degrees) that fit the zone; there is no map of the land."""
    edges = np.array([_LATITUDES[zone] for zone in range(1, 6)])[climate_zone - 1]
    # Even in the sine of the latitude is even over the sphere.
    low, high = np.sin(np.radians(edges)).T
    latitude = np.degrees(np.arcsin(rng.uniform(low, high)))
    southern = np.array([_SOUTHERN_LAND[zone] for zone in range(1, 6)])[climate_zone - 1]
    southern = np.where(surface_type == WATER, 0.5, southern)
    latitude = np.where(rng.random(len(latitude)) < southern, -latitude, latitude)
    return latitude, rng.uniform(-180.0, 180.0, len(latitude))


def _overpasses(rng: np.random.Generator, season: Array, longitude: Array) -> Array:
    months = (np.array([_MIDMONTH[code] for code in range(1, 5)])[season - 1] - 2) % 12
    months = (months + rng.integers(0, 3, len(season))) % 12
    # From the 2nd to the 27th: the date in UTC may be the day before or after, the month not.
    days = rng.integers(1, 27, len(season))
    hour = np.where(rng.random(len(season)) < 0.5, 9.5, 21.5) + rng.uniform(-0.8, 0.8, len(season))
    start = (np.datetime64(f"{_YEAR}-01", "M") + months).astype("datetime64[D]") + days
    seconds = np.round((hour - longitude / 15.0) * 3600.0).astype("timedelta64[s]")
    return np.asarray(start.astype("datetime64[ns]") + seconds)
