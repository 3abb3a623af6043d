"""Which pixels of a landmark's scene are learned from and which are tested on, by regime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.illumination import REGIMES, daytime_median, illumination
from undulatus.scenes.pixels import hold_out_days, near_coast
from undulatus.scenes.scene import ANGLE

Array = npt.NDArray[Any]

LABEL, TRUTH = "cloud_mask_l2", "cloud_truth"


@dataclass(frozen=True)
class LandmarkPixels:
    """Pixels of a scene by what they are for; arrays are (time, y, x) but for the acquisitions.

    ``regimes`` and ``learnable`` are bool arrays by regime: where it is, and what of it may be
    learned from. ``cloud_shares`` are those of the label on training days, away from the coast.
    """

    labels: Array
    angle: Array
    median: float
    held_out: Array
    """Acquisitions to test on, (time,) bool."""
    days: list[str]
    """The days they are of."""
    regimes: dict[str, Array]
    learnable: dict[str, Array]
    cloud_shares: dict[str, float]


def choose_pixels(
    scene: xr.Dataset, label: str, holdout: float, seed: int, coast_width: int
) -> LandmarkPixels:
    """Hold out whole days of a checked scene, and say which pixels of the others to learn from.

    Pixels within ``coast_width`` of the coast that the label calls cloudy are not learned from.
    The edge between high and mid is the median angle of the training days.
    """
    labels = read_labels(scene, label)
    training, held_out, days = hold_out_days(scene["time"].values, holdout, seed)
    coast = coast_of(scene, coast_width)[None]
    inland = training[:, None, None] & ~coast
    allowed = training[:, None, None] & ~(coast & (labels == 1))
    angle = np.asarray(scene[ANGLE].values)
    median = daytime_median(angle[training])
    codes = illumination(angle, median)
    regimes = {name: codes == index for index, name in enumerate(REGIMES)}
    return LandmarkPixels(
        labels,
        angle,
        median,
        held_out,
        days,
        regimes,
        {name: allowed & lit for name, lit in regimes.items()},
        {name: _cloud_share(name, labels[inland & lit]) for name, lit in regimes.items()},
    )


def require_times(scene: xr.Dataset) -> xr.Dataset:
    """Return the scene, or raise a :class:`SceneError` if it is a single acquisition."""
    if "time" not in scene.dims:
        raise SceneError(
            "To fit, a scene needs many acquisitions along the dimension time, but it has none. "
            "Open several files at once, or concatenate scenes along time."
        )
    return scene


def read_labels(scene: xr.Dataset, label: str) -> Array:
    """Return a mask of a scene, (time, y, x): 1 cloud, 0 clear, anything else missing."""
    if label not in scene:
        raise SceneError(
            f"The scene has no {label!r} to learn from. Found: "
            f"{', '.join(map(str, scene.data_vars))}. Open it with its mask "
            f"(undulatus.scenes.seviri.open_scene(..., mask=...)), or name another label."
        )
    return np.asarray(scene[label].transpose("time", "y", "x").values)


def coast_of(scene: xr.Dataset, width: int) -> Array:
    """Return which pixels lie so near the coast, (y, x) bool; none without a ``land_mask``."""
    if "land_mask" not in scene:
        return np.zeros((scene.sizes["y"], scene.sizes["x"]), bool)
    return near_coast(scene["land_mask"].transpose("y", "x").values, width)


def _cloud_share(regime: str, labels: Array) -> float:
    known = labels[(labels == 0) | (labels == 1)]
    clouds = np.count_nonzero(known == 1)
    if not 0 < clouds < known.size:
        raise SceneError(
            f"Regime {regime!r} has {clouds} cloudy and {known.size - clouds} clear training "
            f"pixels: it needs both to learn from. Use a scene of more days, or one that covers "
            f"this regime."
        )
    return clouds / known.size
