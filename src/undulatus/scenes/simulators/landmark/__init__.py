"""The synthetic landmark: a year over a coast like Dakhla's, with the truth known.

A simulator of the paper's data, which are not public: 35,040 acquisitions of 20 x 26 pixels, one
every quarter of an hour, with seven SEVIRI channels, a Level-2-like mask with the faults of real
ones, and the true mask. The modules of this package say what is in it and why: :mod:`weather
<undulatus.scenes.simulators.landmark.weather>` makes place, sun and clouds, :mod:`radiation
<undulatus.scenes.simulators.landmark.radiation>` the channels, and :mod:`level2
<undulatus.scenes.simulators.landmark.level2>` the mask. Any part of the year can be computed
alone, and equals that part of the whole bit for bit: weather is a closed form of time, and noise
is drawn day by day.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import pyproj
import xarray as xr

from undulatus.errors import InputError
from undulatus.scenes.radiometry import DEFAULT_PLATFORM, sun_earth_distance
from undulatus.scenes.scene import (
    ANGLE,
    BANDS,
    CLOUD_TRUTH,
    DIMS,
    LEVEL2_MASK,
    MISSING_CODE,
    TEMPERATURE,
)
from undulatus.scenes.simulators.landmark.level2 import draw_forecast, level2_mask
from undulatus.scenes.simulators.landmark.radiation import solar_channels, thermal_channels
from undulatus.scenes.simulators.landmark.weather import (
    COLUMNS,
    GEOSTATIONARY,
    ROWS,
    draw_climate,
    landmark_place,
    sun_over,
)

Array = npt.NDArray[Any]

YEAR = 2010

DAYS = 365

TIMES_A_DAY = 96

DAYS_A_CHUNK = 5
"""Days in a chunk of time: 1 MB per band."""

_VARIABLES = (*BANDS, ANGLE, LEVEL2_MASK, CLOUD_TRUTH)

_RESOLUTION = 0.01
"""Values are multiples of this (percent, kelvin, degrees), so that they fit in two bytes."""


def synthetic_landmark(
    days: int = DAYS, *, first_day: int = 0, seed: int = 0, chunk_days: int = DAYS_A_CHUNK
) -> xr.Dataset:
    """Return a synthetic scene (time, y, x) of dask arrays.

    Parameters
    ----------
    days : int
        How many days.
    first_day : int
        The first of them; 0 is 1 January 2010.
    seed : int
        Each seed is another year of weather over the same coast.
    chunk_days : int
        Days in a dask chunk. The values do not depend on it.
    """
    if not (first_day >= 0 and days >= 1 and first_day + days <= DAYS and chunk_days >= 1):
        raise InputError(
            f"The synthetic year has days 0 to {DAYS - 1}, but {days} from day {first_day} on, "
            f"{chunk_days} per chunk, were requested. Request at least one day, all of that year."
        )
    edges = [*range(first_day, first_day + days, chunk_days), first_day + days]
    chunks = tuple((after - before) * TIMES_A_DAY for before, after in pairwise(edges))
    starts = da.from_array(np.array(edges[:-1]), chunks=1)
    counts = da.from_array(np.diff(edges), chunks=1)
    whole = da.map_blocks(
        _make_days,
        starts,
        counts,
        seed=seed,
        dtype=np.float32,
        new_axis=[1, 2, 3],
        chunks=(chunks, (ROWS,), (COLUMNS,), (len(_VARIABLES),)),
        meta=np.empty((0, 0, 0, 0), np.float32),
    )
    return _as_scene(whole, first_day, days, seed)


def _as_scene(whole: da.Array, first_day: int, days: int, seed: int) -> xr.Dataset:
    place = landmark_place()
    time = _times(first_day, days)
    scene = xr.Dataset(
        coords={
            "time": ("time", time, {"standard_name": "time"}),
            "y": ("y", place.y, {"standard_name": "projection_y_coordinate", "units": "m"}),
            "x": ("x", place.x, {"standard_name": "projection_x_coordinate", "units": "m"}),
            "longitude": (("y", "x"), place.longitude.reshape(ROWS, COLUMNS)),
            "latitude": (("y", "x"), place.latitude.reshape(ROWS, COLUMNS)),
            "spatial_ref": ((), np.int32(0), pyproj.CRS(GEOSTATIONARY).to_cf()),
        },
        attrs={
            "title": "Synthetic landmark (simulator): no satellite took these images",
            "source": f"undulatus synthetic landmark, seed {seed}",
            "platform_name": DEFAULT_PLATFORM,
            "sensor": "seviri",
            "calibration_mode": "synthetic",
            "Conventions": "CF-1.11",
        },
    )
    scene["longitude"].attrs = {"standard_name": "longitude", "units": "degrees_east"}
    scene["latitude"].attrs = {"standard_name": "latitude", "units": "degrees_north"}
    for index, name in enumerate(_VARIABLES):
        values = whole[..., index]
        if name.startswith("cloud"):
            values = values.astype(np.uint8)
        scene[name] = (DIMS, values, _attributes(name))
        scene[name].encoding = _encoding(name)
    land = (place.land > 0.5).reshape(ROWS, COLUMNS)
    scene["land_mask"] = (("y", "x"), land.astype(np.uint8), {"long_name": "land mask"})
    scene["land_mask"].attrs |= {
        "flag_values": np.array([0, 1], np.uint8),
        "flag_meanings": "water land",
    }
    return scene


def _times(first_day: int, days: int) -> Array:
    start = np.datetime64(f"{YEAR}-01-01T00:00", "ns") + np.timedelta64(first_day, "D")
    return np.asarray(start + np.arange(days * TIMES_A_DAY) * np.timedelta64(15, "m"))


def _attributes(name: str) -> dict[str, Any]:
    if name in BANDS:
        band = BANDS[name]
        standard = {
            "%": "toa_bidirectional_reflectance",
            "K": "toa_brightness_temperature",
        }[band.units]
        attributes: dict[str, Any] = {"standard_name": standard, "units": band.units}
        if band.units == "%":
            attributes["sun_normalised"] = 1
        else:
            attributes["units_metadata"] = "temperature: on_scale"
        return attributes | {"wavelength": f"{band.wavelength} µm", "grid_mapping": "spatial_ref"}
    if name == ANGLE:
        return {"standard_name": name, "units": "degree"}
    long_name = "Level-2-like cloud mask" if name == LEVEL2_MASK else "true cloud mask"
    return {
        "long_name": long_name,
        "standard_name": "cloud_binary_mask",
        "flag_values": np.array([0, 1], np.uint8),
        "flag_meanings": "clear cloud",
    }


def _encoding(name: str) -> dict[str, Any]:
    if name.startswith("cloud"):
        return {"_FillValue": np.uint8(MISSING_CODE)}
    if name in BANDS and BANDS[name].quantity == TEMPERATURE:
        # Signed integers end at 327.67 K, but sunlit desert at 3.9 µm is hotter.
        return {"dtype": "uint16", "scale_factor": _RESOLUTION, "_FillValue": np.uint16(65535)}
    return {"dtype": "int16", "scale_factor": _RESOLUTION, "_FillValue": np.int16(-32768)}


def _make_days(start: Array, count: Array, seed: int) -> Array:
    days = range(int(start[0]), int(start[0] + count[0]))
    return np.concatenate([_make_day(day, seed) for day in days])


def _make_day(day: int, seed: int) -> Array:
    """Return all variables of one day, (96, rows, columns, variables) float32."""
    place, time = landmark_place(), _times(day, 1)
    hours = day * 24.0 + np.arange(TIMES_A_DAY) * 0.25
    sun = sun_over(place, time)
    climate = draw_climate(seed)
    weather = climate.at(hours, hours / 24.0, place, sun)
    rng = np.random.default_rng([seed, day])
    texture = 0.08 * climate.land_texture(np.zeros(1), place.east, place.north)[0]
    distance = sun_earth_distance(time)[:, None]
    channels = {
        **solar_channels(place, sun, weather, texture, rng),
        **thermal_channels(place, sun, weather, texture, distance, rng),
    }
    error = draw_forecast(seed).error(hours, place)
    variables = {
        **channels,
        ANGLE: np.degrees(sun.zenith),
        LEVEL2_MASK: level2_mask(channels, place, sun, weather, error, rng),
        CLOUD_TRUTH: weather.cloudy,
    }
    whole = np.stack([variables[name] for name in _VARIABLES], axis=-1).astype(np.float64)
    whole = np.round(whole / _RESOLUTION) * _RESOLUTION
    return whole.reshape(TIMES_A_DAY, ROWS, COLUMNS, len(_VARIABLES)).astype(np.float32)
