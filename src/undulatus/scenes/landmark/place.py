"""The place: a coast like Dakhla's as Meteosat sees it, and where the sun and satellite stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pyorbital.astronomy import get_alt_az
from pyproj import CRS, Transformer

Array = npt.NDArray[Any]

ROWS, COLUMNS = 20, 26
CENTRE = (-15.9, 23.7)
"""Longitude and latitude of Dakhla, degrees."""
PIXEL = 3000.403
"""Spacing of SEVIRI's pixels in its projection, metres."""
GEOSTATIONARY = "+proj=geos +h=35785831 +lon_0=0 +a=6378169 +b=6356583.8 +units=m +sweep=y"
VIEW_ZENITH = np.radians(33.0)
"""Angle between Meteosat at 0° E and the zenith of Dakhla, from spherical geometry."""
VIEW_AZIMUTH = np.radians(144.7)
"""Bearing of the satellite, clockwise from north."""
_SUBPIXELS = 6


@dataclass(frozen=True)
class Place:
    """The pixels of the landmark, flat in the image's order, (p,)."""

    x: Array
    y: Array
    """Projection coordinates, metres, (columns,) and (rows,)."""
    longitude: Array
    latitude: Array
    east: Array
    north: Array
    """Distance from the centre, km."""
    land: Array
    """Share of the pixel that is land."""
    coast_distance: Array
    """Km inland from the mainland's coast, negative at sea."""


@cache
def landmark_place() -> Place:
    """Return the place, which is the same for every seed."""
    to_degrees = Transformer.from_crs(CRS(GEOSTATIONARY), CRS("EPSG:4326"), always_xy=True)
    x0, y0 = to_degrees.transform(*CENTRE, direction="INVERSE")
    x = (np.round(x0 / PIXEL) + np.arange(COLUMNS) - COLUMNS // 2) * PIXEL
    y = (np.round(y0 / PIXEL) - np.arange(ROWS) + ROWS // 2) * PIXEL
    east, north = _kilometres(*to_degrees.transform(*np.meshgrid(x, y)))
    longitude, latitude = to_degrees.transform(*np.meshgrid(x, y))
    offsets = ((np.arange(_SUBPIXELS) + 0.5) / _SUBPIXELS - 0.5) * PIXEL
    land = np.zeros((ROWS, COLUMNS))
    for right in offsets:
        for down in offsets:
            places = to_degrees.transform(*np.meshgrid(x + right, y + down))
            land += _is_land(*_kilometres(*places))
    return Place(
        x=x,
        y=y,
        longitude=longitude.ravel(),
        latitude=latitude.ravel(),
        east=east.ravel(),
        north=north.ravel(),
        land=(land / _SUBPIXELS**2).ravel(),
        coast_distance=(east - _coast(north)).ravel(),
    )


def _kilometres(longitude: Array, latitude: Array) -> tuple[Array, Array]:
    degree = 111.2
    east = (longitude - CENTRE[0]) * degree * np.cos(np.radians(CENTRE[1]))
    return east, (latitude - CENTRE[1]) * degree


def _coast(north: Array) -> Array:
    """Return how far east the mainland's coast lies, km."""
    return 5.0 + 0.35 * north + 1.6 * np.sin(north / 6.0) + 0.8 * np.sin(north / 2.3 + 1.0)


def _is_land(east: Array, north: Array) -> Array:
    coast = _coast(north)
    # A spit 4.5 km wide leaves the coast in the north and shuts in a bay, as at Dakhla.
    bay = 12.0 * np.clip((28.0 - north) / 10.0, 0.0, 1.0)
    spit = (np.abs(east - coast + bay) < 2.25) & (north > -9.0)
    return (east > coast) | spit


@dataclass(frozen=True)
class Sun:
    """Where the sun stands, (times, places)."""

    zenith: Array
    """Radians."""
    azimuth: Array
    """Radians clockwise from north."""

    @property
    def cosine(self) -> Array:
        """Cosine of the zenith angle; not positive at night."""
        return np.cos(self.zenith)

    def glint(self, wind: Array) -> Array:
        """Return the reflectance of sun glint off the sea (0 to 1), for a wind in m/s, (times,).

        Cox & Munk (1954) with an isotropic variance of slopes 0.003 + 0.00512 wind, and
        Schlick's form of Fresnel's reflectance of water.
        """
        mu, view = np.maximum(self.cosine, 0.02), np.cos(VIEW_ZENITH)
        towards = np.sin(self.zenith) * np.sin(VIEW_ZENITH) * np.cos(self.azimuth - VIEW_AZIMUTH)
        half = np.sqrt(np.clip((1.0 + mu * view + towards) / 2.0, 1e-6, 1.0))
        tilt = np.clip((mu + view) / (2.0 * half), 1e-3, 1.0)
        variance = (0.003 + 0.00512 * wind)[:, None]
        slopes = np.exp(-(1.0 / tilt**2 - 1.0) / variance) / (np.pi * variance)
        fresnel = 0.021 + 0.979 * (1.0 - half) ** 5
        return np.asarray(np.pi * fresnel * slopes / (4.0 * mu * view * tilt**4))


def sun_over(place: Place, time: Array) -> Sun:
    """Return the sun over every pixel at some times (datetime64), by pyorbital."""
    altitude, azimuth = get_alt_az(time[:, None], place.longitude, place.latitude)
    return Sun(np.pi / 2.0 - np.asarray(altitude), np.asarray(azimuth))
