r"""Clear or cloudy by day, from the brightness of a sounder's visible channel.

HIRS has one visible channel, at 0.69 µm, beside its infrared ones: a label for cloud that owes
nothing to the infrared. Its *brightness* is its radiance divided by the cosine of the sun's zenith
angle. It is close to a reflectance in per cent: the sea has 3 to 8, forest and grass 5 to 12,
thick cloud 40 to 75. So a view is

- **clear** below :data:`DARK`, which is just above the brightness of the bare surface;
- **cloudy** above :data:`BRIGHT`, which no bare sea or vegetation reaches;
- **between** otherwise: thin or broken cloud, haze, desert. These have no label.

Labels are given only where brightness can mean nothing else: the sun at least 20° above the
horizon, land or sea alone in the cell of 0.1°, no glitter of the sun on the sea (the direction of
view at least 25° from the mirrored sun), and no place that may have snow or ice, which is as
bright as cloud: the sea beyond 60° of latitude and land beyond 45°. A radiance that is missing by
day is mostly that of the darkest sea, which calibration put below zero; it is not taken as a
label.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.scene import MISSING_CODE
from undulatus.scenes.spectra import CLOUDY

Array = npt.NDArray[Any]

DARK = {"sea": 8.0, "land": 12.0}
"""Brightness below which a view is clear ..."""

BRIGHT = {"sea": 20.0, "land": 28.0}
"""... and above which it is cloudy, by surface."""

LOWEST_SUN = 20.0
"""Least solar elevation, degrees."""

GLITTER = 25.0
"""Least angle between the view and the mirrored sun, over the sea, degrees."""

NO_SNOW = {"sea": 60.0, "land": 45.0}
"""Latitudes up to which there is no snow or ice, degrees."""

KINDS = ("clear", "cloudy", "between", "snow_or_ice", "glitter", "coast", "low_sun", "missing")
"""What a view is, by its code in ``view_kind``; the first two are labels."""

_NEEDED = ("visible_radiance", "solar_zenith_angle", "satellite_zenith_angle")


def label_by_brightness(spectra: xr.Dataset, land_share: Array) -> xr.Dataset:
    """Return spectra with labels from their visible channel.

    Added are ``cloudy`` (0, 1, or 255 where there is no label), ``view_kind`` (which of ``KINDS``
    a view is), ``brightness``, and ``land_share`` in per cent.

    Parameters
    ----------
    spectra : Dataset
        As :func:`undulatus.scenes.open_spectra` opens files of HIRS.
    land_share : (rows, columns) array
        Per cent of land in cells of the globe, from north to south and from 180° W to the east,
        as :func:`undulatus.datasets.load_land_share` returns them.
    """
    absent = [name for name in _NEEDED if name not in spectra.variables]
    if absent:
        raise SceneError(
            f"The spectra have no {', '.join(absent)}, so brightness cannot tell cloud. Give "
            f"files of HIRS, whose twentieth channel is visible."
        )
    zenith = spectra["solar_zenith_angle"].values.astype(np.float64)
    cosine = np.cos(np.radians(zenith))
    brightness = spectra["visible_radiance"].values / np.where(cosine > 0.0, cosine, np.nan)
    land = share_at(land_share, spectra["latitude"].values, spectra["longitude"].values)
    kind = _kinds(spectra, brightness, zenith, land)
    cloudy = np.where(kind < 2, kind, MISSING_CODE).astype(np.uint8)
    labelled = spectra.assign(
        brightness=("sample", brightness.astype(np.float32)),
        land_share=("sample", land, {"units": "percent"}),
        view_kind=(
            "sample",
            kind.astype(np.uint8),
            {
                "flag_values": np.arange(len(KINDS), dtype=np.uint8),
                "flag_meanings": " ".join(KINDS),
            },
        ),
    )
    meanings = {"flag_values": np.array([0, 1], np.uint8), "flag_meanings": "clear cloudy"}
    labelled[CLOUDY] = ("sample", cloudy, meanings)
    return labelled


def share_at(land_share: Array, latitude: Array, longitude: Array) -> Array:
    """Return the share of land at places (degrees), in the shape and type of the arguments.

    Places that are not finite have that of the south pole; they have no label anyway.
    """
    rows, columns = land_share.shape
    row = np.nan_to_num((90.0 - latitude) * rows / 180.0, nan=rows - 1.0)
    column = np.nan_to_num((longitude + 180.0) * columns / 360.0)
    return np.asarray(
        land_share[np.clip(row.astype(int), 0, rows - 1), column.astype(int) % columns]
    )


def glitter_angle(spectra: xr.Dataset) -> Array:
    """Return the angle between the direction of view and the mirrored sun, degrees, (sample,)."""
    names = (
        *("solar_zenith_angle", "satellite_zenith_angle"),
        *("solar_azimuth_angle", "satellite_azimuth_angle"),
    )
    sun, view, sun_azimuth, view_azimuth = (
        np.radians(spectra[name].values.astype(np.float64)) for name in names
    )
    cosine = np.cos(sun) * np.cos(view) - np.sin(sun) * np.sin(view) * np.cos(
        sun_azimuth - view_azimuth
    )
    return np.degrees(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _kinds(spectra: xr.Dataset, brightness: Array, zenith: Array, land: Array) -> Array:
    """Return the index of each view in ``KINDS``: the last reason not to label it counts."""
    is_land = land > 50
    dark, bright, poleward = (
        np.where(is_land, limits["land"], limits["sea"]) for limits in (DARK, BRIGHT, NO_SNOW)
    )
    kind = np.where(brightness < dark, 0, np.where(brightness > bright, 1, 2))
    reasons = {
        "snow_or_ice": np.abs(spectra["latitude"].values) > poleward,
        "glitter": ~is_land & (glitter_angle(spectra) < GLITTER),
        "coast": (land > 0) & (land < 100),
        "low_sun": ~(zenith < 90.0 - LOWEST_SUN),
        "missing": (zenith < 90.0 - LOWEST_SUN) & ~np.isfinite(brightness),
    }
    for name, applies in reasons.items():
        kind[applies] = KINDS.index(name)
    return kind
