"""A Level-2-like cloud mask: thresholds on forecasts, with the faults such masks have.

It follows the tests of Derrien & Le Gléau (2005): a pixel is cloudy if it is colder at 10.8 µm
than a forecast of the clear surface, brighter than the surface's climatology, or shows the
split-window difference of thin ice or, over the sea at night, a lower temperature at 3.9 than at
10.8 µm. That last test rarely fires here, as the simulator's droplets emit at 3.9 µm like black
bodies. Its faults come from what it does not know, not from random flips of the mask:

- the forecast of the skin temperature errs by 2.5 K over land by day and 4 K at night and
  under a low sun, 0.8 K at sea; errors extend over hundreds of km and last half a day;
- the land-sea atlas is off by up to a pixel, differently each time, so coast pixels are compared
  with the wrong surface and called cloudy where land and sea differ;
- thresholds leave a margin for the forecast's error, so thin and low cloud is missed;
- solar tests are weaker when the sun is low, off in glint, and absent at night.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.ndimage import shift

from undulatus._daylight import LOW_SUN
from undulatus.scenes.radiometry import DEFAULT_PLATFORM, THERMAL_BANDS
from undulatus.scenes.simulators.fields import Field, Series
from undulatus.scenes.simulators.landmark.radiation import EMISSION, emission
from undulatus.scenes.simulators.landmark.weather import COLUMNS, ROWS, Place, Sun, Weather

Array = npt.NDArray[Any]

LAND_ERROR_DAY, LAND_ERROR_DARK, SEA_ERROR = 2.5, 4.0, 0.8
"""Errors of the forecast of clear-sky temperature, K."""

COLD_LAND, COLD_SEA = 7.0, 4.0
"""A pixel this much colder than forecast is cloudy by day, K ..."""

DARK_MARGIN_LAND, DARK_MARGIN_SEA = 4.0, 1.0
"""... and so much more is needed at night and under a low sun, where brightness is no help."""

BRIGHT_LAND, BRIGHT_SEA = 10.0, 8.0
"""A pixel this much brighter than expected is cloudy, %: at 0.6 µm over land; at 0.8 µm over the
sea, divided by the sun's cosine, since haze brightens with the path through it."""

GLINT_LIMIT = 0.05
"""Reflectance of glint beyond which the test of brightness is off."""

SPLIT_WINDOW = 2.6
"""Difference between 10.8 and 12.0 µm that indicates thin ice, K."""

NIGHT_DROPLETS = 1.2
"""Difference between 10.8 and 3.9 µm that indicates low cloud over the sea at night, K."""


@dataclass(frozen=True)
class Forecast:
    """Errors of the forecast, of mean zero and variance one."""

    everywhere: Series
    """The part that all places share."""
    field: Field

    def error(self, hours: Array, place: Place) -> Array:
        """Return the error at times (hours), (times, places)."""
        shared = self.everywhere(hours)[:, None]
        return np.asarray(0.8 * shared + 0.6 * self.field(hours, place.east, place.north))


@cache
def draw_forecast(seed: int) -> Forecast:
    """Draw the forecast errors of a seed."""
    rng = np.random.default_rng([seed, 2011])
    return Forecast(
        Series.draw(rng, 9.0, 300.0),
        Field.draw(rng, scales=(80.0, 600.0), slope=1.0, wind=(8.0, 2.0), lifetime=12.0),
    )


def level2_mask(
    channels: dict[str, Array],
    place: Place,
    sun: Sun,
    weather: Weather,
    error: Array,
    rng: np.random.Generator,
) -> Array:
    """Return the mask, (times, places) bool, of simulated channels.

    ``error`` is that of the forecast, from :meth:`Forecast.error`.
    """
    land = _atlas(place, len(error), rng)
    night = sun.zenith >= np.pi / 2.0
    dark = np.degrees(sun.zenith) >= LOW_SUN
    land_error = np.where(dark, LAND_ERROR_DARK, LAND_ERROR_DAY)
    expected = np.where(
        land,
        _forecast(place, weather, 1.0) + land_error * error,
        _forecast(place, weather, 0.0) + SEA_ERROR * error,
    )
    threshold = np.where(
        land, COLD_LAND + DARK_MARGIN_LAND * dark, COLD_SEA + DARK_MARGIN_SEA * dark
    )
    cold = channels["IR_108"] < expected - threshold
    ice = channels["IR_108"] - channels["IR_120"] > SPLIT_WINDOW + 0.4 * error
    droplets = night & ~land & (channels["IR_108"] - channels["IR_039"] > NIGHT_DROPLETS)
    return cold | ice | droplets | _bright(channels, land, sun, weather, error)


def _bright(
    channels: dict[str, Array], land: Array, sun: Sun, weather: Weather, error: Array
) -> Array:
    low = np.degrees(sun.zenith) >= LOW_SUN
    over_land = channels["VIS006"] > 34.0 * (1.0 + 0.06 * error) + BRIGHT_LAND
    over_sea = channels["VIS008"] > 3.0 + BRIGHT_SEA / np.maximum(sun.cosine, 0.1)
    glint = sun.glint(weather.wind) > GLINT_LIMIT
    return np.where(land, over_land & ~low, over_sea & ~glint)


def _forecast(place: Place, weather: Weather, land: float) -> Array:
    """Return the clear-sky temperature at 10.8 µm of a surface that is all land, or all sea."""
    law = THERMAL_BANDS[DEFAULT_PLATFORM]["IR_108"]
    bare = replace(place, land=np.full_like(place.land, land))
    clear = replace(weather, layers=(), dust=np.full_like(weather.dust, 0.12))
    flat = np.zeros_like(place.land)
    return law.temperature(emission(law.radiance, EMISSION["IR_108"], bare, clear, flat))


def _atlas(place: Place, times: int, rng: np.random.Generator) -> Array:
    """Return the atlas of land at each time, shifted by up to a pixel along either axis."""
    land = (place.land > 0.5).reshape(ROWS, COLUMNS).astype(np.float64)
    moved = {
        (down, right): shift(land, (down, right), order=0, mode="nearest").ravel() > 0.5
        for down in (-1, 0, 1)
        for right in (-1, 0, 1)
    }
    shifts = rng.choice([-1, 0, 1], size=(times, 2), p=[0.1, 0.8, 0.1])
    return np.stack([moved[int(down), int(right)] for down, right in shifts])
