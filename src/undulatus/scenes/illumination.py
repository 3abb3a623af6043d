"""The sun's zenith angle, and the four regimes of illumination that follow from it.

The regimes are high, mid (from the daytime median on), low (from 80°) and night (from 90°).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from pyorbital.astronomy import sun_zenith_angle

from undulatus._daylight import LOW_SUN, NIGHT, REGIMES
from undulatus.errors import SceneError

Array = npt.NDArray[Any]

COSINE_FLOOR = float(np.cos(np.radians(88.0)))
"""Reflectances are divided by the sun's cosine, or by this if it is smaller."""

NO_REGIME = 255
"""The regime of a missing angle."""


def solar_zenith_angle(time: Any, longitude: xr.DataArray, latitude: xr.DataArray) -> xr.DataArray:
    """Return the angle between the sun and the zenith, degrees, per pixel and time.

    Parameters
    ----------
    time : DataArray or datetime64
        UTC: one time, one per acquisition (time), or one per scan line (y).
    longitude, latitude : DataArray
        Degrees; where they are not finite (off the Earth's disc), the angle is missing. If any of
        the three is a dask array, the angle is lazy.
    """
    angle = xr.apply_ufunc(
        _zenith,
        xr.DataArray(time),
        longitude,
        latitude,
        dask="parallelized",
        output_dtypes=[np.float32],
    )
    angle.name = "solar_zenith_angle"
    angle.attrs = {
        "standard_name": "solar_zenith_angle",
        "long_name": "solar zenith angle",
        "units": "degree",
    }
    return angle


def _zenith(time: Array, longitude: Array, latitude: Array) -> Array:
    on_earth = np.isfinite(longitude) & np.isfinite(latitude)
    # pyorbital warns about infinite coordinates, those of pixels in space.
    longitude, latitude = np.where(on_earth, longitude, 0.0), np.where(on_earth, latitude, 0.0)
    # Microseconds are enough: pyorbital counts days in floats anyway.
    when = np.asarray(time, dtype="datetime64[us]")
    angle = np.where(on_earth, sun_zenith_angle(when, longitude, latitude), np.nan)
    return np.where(np.isnat(when), np.nan, angle).astype(np.float32)


def daytime_median(angle: Array) -> float:
    """Return the median of the solar zenith angles below 80°: the edge between high and mid."""
    values = np.asarray(angle)
    daytime = values[values < LOW_SUN]
    if not daytime.size:
        raise SceneError(
            f"No solar zenith angle is below {LOW_SUN:g} degrees: there is no daytime to take the "
            f"median of. Fit on acquisitions that cover the day, or choose the regimes yourself."
        )
    return float(np.median(daytime))


def illumination(angle: Any, median: float) -> Any:
    """Return the regime of each angle as its index in ``REGIMES``; 255 where it is missing.

    Parameters
    ----------
    angle : array or DataArray
        Solar zenith angles, degrees.
    median : float
        The edge between high and mid, from :func:`daytime_median` of the training pixels.
    """
    edges = np.array([median, LOW_SUN, NIGHT])

    def code(values: Array) -> Array:
        # side="right": an angle equal to an edge goes to the bin above it.
        index = np.searchsorted(edges, values, side="right").astype(np.uint8)
        return np.where(np.isfinite(values), index, np.uint8(NO_REGIME))

    if not isinstance(angle, xr.DataArray):
        return code(np.asarray(angle))
    regime = xr.apply_ufunc(code, angle, dask="parallelized", output_dtypes=[np.uint8])
    regime.name = "illumination"
    regime.attrs = {
        "long_name": "regime of illumination",
        "flag_values": np.arange(len(REGIMES), dtype=np.uint8),
        "flag_meanings": " ".join(REGIMES),
        "_FillValue": np.uint8(NO_REGIME),
    }
    return regime


def sun_normalised(reflectance: xr.DataArray, angle: xr.DataArray) -> xr.DataArray:
    """Divide a reflectance by the cosine of the solar zenith angle, at least that of 88°.

    At night the result is missing, not zero.
    """
    cosine = np.cos(np.radians(angle))
    normalised = (reflectance / np.maximum(cosine, COSINE_FLOOR)).where(angle < NIGHT)
    return normalised.astype(np.float32).assign_attrs(reflectance.attrs)
