"""The landmark's place, sun and weather: a synthetic year over a coast like Dakhla's.

The place is what Meteosat at 0° E sees of the coast; the sun's position is pyorbital's; the
weather is three layers of cloud, dust, temperatures and moisture. Every number was chosen from the
literature before any classifier was scored on the simulator, and has not been changed since.

===============  ==============================================================================
surface          sea 16.5 to 21.5 °C, warmest in mid September (Canary upwelling, Mittelstaedt
                 1991), 1.5 K cooler at the coast; desert 23 ± 5 °C by season with a daily cycle
                 of about 24 K, sharp at noon and flat at night (Göttsche & Olesen 2001), damped by
                 the sea breeze within 30 km of the coast
low cloud        stratus and stratocumulus, tops at 0.6 to 1.4 km below the trade inversion,
                 most before dawn and in summer, over a quarter of the sea and a tenth of
                 the land (Klein & Hartmann 1993), drifting with the trade wind
middle cloud     tops at 4 to 6 km, one pixel in thirteen
high cloud       cirrus, mostly thin, tops at 9 to 12 km, one pixel in six (Sassen et al. 2008),
                 drifting with the jet
cloudy           an optical depth (0.6 µm) of 0.2 or more, the least that passive imagers can
                 detect (Karlsson & Håkansson 2018)
dust             optical depth 0.12 in the median, above 1 in summer's outbreaks (Tegen et al.
                 2013)
moisture         column water vapour of 10 to 35 kg m⁻², most in September
===============  ==============================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from pyorbital.astronomy import get_alt_az
from pyproj import CRS, Transformer

from undulatus.scenes.simulators.fields import Field, Series

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

CLOUD_DEPTH = 0.2
"""Optical depth from which a pixel is cloudy."""

LAPSE = 6.5
"""Fall of temperature with height, K per km."""

_SUBPIXELS = 6
"""Land is sampled so many times along either side of a pixel."""


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
    """Return the landmark's pixels, which are the same for every seed."""
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
            lonlats = to_degrees.transform(*np.meshgrid(x + right, y + down))
            land += _is_land(*_kilometres(*lonlats))
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
    # A spit 4.5 km wide leaves the coast in the north and encloses a bay, as at Dakhla.
    bay = 12.0 * np.clip((28.0 - north) / 10.0, 0.0, 1.0)
    spit = (np.abs(east - coast + bay) < 2.25) & (north > -9.0)
    return (east > coast) | spit


@dataclass(frozen=True)
class Sun:
    """The sun's position, (times, places)."""

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

        By Cox & Munk (1954), with an isotropic variance of slopes 0.003 + 0.00512 wind and
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
    """Return the sun's position over every pixel at times (datetime64), by pyorbital."""
    altitude, azimuth = get_alt_az(time[:, None], place.longitude, place.latitude)
    return Sun(np.pi / 2.0 - np.asarray(altitude), np.asarray(azimuth))


@dataclass(frozen=True)
class LayerModel:
    """A layer of cloud over the year: there is cloud where bias and random parts exceed zero."""

    field: Field
    thickness: Field
    """Departure of the top's height."""
    spells: Series
    """Cloudy and clear spells, which the whole landmark shares."""
    height: float
    """Mean and ..."""
    height_spread: float
    """... largest departure of the top's height, km."""
    depth: float
    """Scale of the optical depth."""
    sea_bias: float
    land_bias: float
    season: tuple[float, float]
    """Amplitude of the yearly cycle in the bias, and the day of its maximum."""
    daily: float
    """Amplitude of the daily cycle in the bias; the maximum is at 6 h solar time."""
    ice: bool


@dataclass(frozen=True)
class Layer:
    """A layer of cloud at given times: optical depth and top height (km), (times, places)."""

    depth: Array
    shadow: Array
    """Optical depth along the sun's beam to the ground."""
    height: Array
    ice: bool


@dataclass(frozen=True)
class Weather:
    """The state of surface and air at given times, (times, places) or (times,)."""

    layers: tuple[Layer, ...]
    dust: Array
    sea_temperature: Array
    land_temperature: Array
    air_temperature: Array
    water_vapour: Array
    wind: Array

    @property
    def cloudy(self) -> Array:
        """Which pixels are truly cloudy, (times, places)."""
        return np.asarray(sum(layer.depth for layer in self.layers) >= CLOUD_DEPTH)


@dataclass(frozen=True)
class Climate:
    """The random fields and series of one synthetic year."""

    layers: tuple[LayerModel, ...]
    dust: Field
    dust_events: Series
    land_anomaly: Series
    land_texture: Field
    sea_front: Field
    moisture: Series
    wind: Series

    def at(self, hours: Array, day_of_year: Array, place: Place, sun: Sun) -> Weather:
        """Return the weather at hours since the beginning of the year."""
        solar_hour = (hours + place.longitude.mean() / 15.0) % 24.0
        sea = (
            292.2
            + _season(day_of_year, 2.5, 258.0)
            - 1.5 * np.exp(-np.abs(place.coast_distance) / 15.0)
            + 0.5 * self.sea_front(hours, place.east, place.north)
        )
        inland = np.clip(place.coast_distance / 30.0, 0.0, 1.0)
        daily = _daily_cycle(solar_hour) * (9.5 + 3.5 * inland)
        land = (
            296.0
            + _season(day_of_year, 5.0, 205.0)
            + daily
            + 2.5 * self.land_anomaly(hours)[:, None]
            + self.land_texture(np.zeros(1), place.east, place.north)
        )
        vapour = 20.0 + _season(day_of_year, 6.0, 250.0)[:, 0] + 5.0 * self.moisture(hours)
        outbreaks = 0.7 * self.dust_events(hours)[:, None] + _season(day_of_year, 0.35, 200.0)
        haze = outbreaks + 0.7 * self.dust(hours, place.east, place.north)
        return Weather(
            layers=tuple(
                _layer(model, hours, day_of_year, solar_hour, place, sun) for model in self.layers
            ),
            dust=0.12 * np.exp(haze),
            sea_temperature=sea,
            land_temperature=land,
            air_temperature=(sea - 1.0).mean(axis=1, keepdims=True),
            water_vapour=np.clip(vapour, 10.0, 35.0),
            wind=np.clip(7.0 + 2.0 * self.wind(hours), 2.0, None),
        )


@cache
def draw_climate(seed: int) -> Climate:
    """Draw the climate of a seed's year."""
    rng = np.random.default_rng([seed, 2010])

    def layer(wind: tuple[float, float], lifetime: float, **fixed: Any) -> LayerModel:
        return LayerModel(
            field=Field.draw(rng, scales=(8.0, 600.0), slope=0.67, wind=wind, lifetime=lifetime),
            thickness=Field.draw(rng, scales=(60.0, 600.0), slope=1.0, wind=wind),
            spells=Series.draw(rng, 36.0, 700.0),
            **fixed,
        )

    low = layer(
        (-15.0, -18.0), 30.0, height=1.0, height_spread=0.4, depth=6.0, sea_bias=-0.72,
        land_bias=-1.25, season=(0.2, 195.0), daily=0.25, ice=False,
    )  # fmt: skip
    middle = layer(
        (12.0, -6.0), 20.0, height=5.0, height_spread=1.0, depth=4.0, sea_bias=-1.45,
        land_bias=-1.45, season=(0.2, 15.0), daily=0.0, ice=False,
    )  # fmt: skip
    high = layer(
        (60.0, 10.0), 20.0, height=10.5, height_spread=1.5, depth=0.9, sea_bias=-1.0,
        land_bias=-1.0, season=(0.15, 15.0), daily=0.0, ice=True,
    )  # fmt: skip
    return Climate(
        layers=(low, middle, high),
        dust=Field.draw(rng, scales=(100.0, 900.0), slope=1.0, wind=(-25.0, -5.0), lifetime=60.0),
        dust_events=Series.draw(rng, 60.0, 900.0),
        land_anomaly=Series.draw(rng, 60.0, 700.0),
        land_texture=Field.draw(rng, scales=(7.0, 40.0), slope=0.3),
        sea_front=Field.draw(rng, scales=(20.0, 200.0), slope=1.0, wind=(-1.0, -1.0)),
        moisture=Series.draw(rng, 60.0, 700.0),
        wind=Series.draw(rng, 30.0, 300.0),
    )


def _season(day_of_year: Array, amplitude: float, warmest: float) -> Array:
    return amplitude * np.cos(2.0 * np.pi * (day_of_year[:, None] - warmest) / 365.25)


def _daily_cycle(solar_hour: Array) -> Array:
    """Return the daily cycle of the land's temperature, about -0.7 to 1, warmest at 13 h."""
    angle = 2.0 * np.pi * (solar_hour[:, None] - 13.0) / 24.0
    return 0.87 * np.cos(angle) + 0.18 * np.cos(2.0 * angle)


def _layer(
    model: LayerModel,
    hours: Array,
    day_of_year: Array,
    solar_hour: Array,
    place: Place,
    sun: Sun,
) -> Layer:
    bias = np.where(place.land > 0.5, model.land_bias, model.sea_bias)
    bias = bias + _season(day_of_year, *model.season)
    bias = bias + model.daily * np.cos(2.0 * np.pi * (solar_hour[:, None] - 6.0) / 24.0)
    bias = bias + 0.6 * model.spells(hours)[:, None]

    def depth(shift: Array | None) -> Array:
        excess = bias + 0.8 * model.field(hours, place.east, place.north, shift)
        return np.asarray(model.depth * np.expm1(np.maximum(excess, 0.0)))

    # The sun's beam crosses the layer some way towards the sun, farther the lower the sun is.
    zenith, azimuth = sun.zenith.mean(axis=1), sun.azimuth.mean(axis=1)
    away = model.height * np.tan(np.minimum(zenith, np.radians(85.0)))
    towards = np.column_stack([away * np.sin(azimuth), away * np.cos(azimuth)])
    spread = model.thickness(hours, place.east, place.north)
    return Layer(
        depth=depth(None),
        shadow=depth(towards),
        height=model.height + model.height_spread * np.clip(spread / 2.0, -1.0, 1.0),
        ice=model.ice,
    )
