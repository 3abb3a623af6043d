"""The acquisitions of a map in time: a table of days by times of day, and shares of pixels.

The page colours each cell of the table by the share of cloud, or of a class, in its acquisition,
and lists the acquisitions in which the model and the Level-2 mask, or a label, differ most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.products.layers import MASK
from undulatus.products.legend import MapClass
from undulatus.products.views import LABEL
from undulatus.scenes.scene import CLOUD_TRUTH, LEVEL2_MASK

Array = npt.NDArray[Any]

DAY = 86_400
"""Seconds in a day."""

DEFAULT_STEP = 900
"""Seconds between acquisitions, for a map that has only one."""

_ALMOST_A_STEP = 15 / 16
"""Times later than this share of a step count as the next multiple of it."""

MOST_LISTED = 40
"""Acquisitions in the list of the largest differences, at most."""

SECONDS_APART = 3 * 3600
"""Least time between two acquisitions in the list; otherwise one cloud would fill it."""

LEAST_COMPARED = 0.5
"""Share of the image that both masks must know for an acquisition to be listed."""


@dataclass(frozen=True)
class Calendar:
    """A table with one row per day (UTC) and one column per time step.

    Cells may be empty. If two acquisitions fall into one cell, it shows the first.
    """

    seconds: Array
    """(n,) int64, since 1970, strictly increasing."""
    step: int
    """Seconds: the commonest time between acquisitions, in whole minutes, at most a day."""

    @property
    def day(self) -> Array:
        """The row of each acquisition, (n,)."""
        return self.seconds // DAY - self.seconds[0] // DAY

    @property
    def slot(self) -> Array:
        """The column of each acquisition, (n,); times may be off by a fraction of the step."""
        of_day = self.seconds % DAY
        mean_direction = np.exp(2j * np.pi * of_day / self.step).mean()
        phase = float(np.angle(mean_direction)) / (2.0 * np.pi) % 1.0
        # Times just before a multiple of the step are meant to be on it.
        phase -= phase > _ALMOST_A_STEP
        columns = np.rint(of_day / self.step - phase).astype(np.int64)
        last = self.shape[1] - 1
        columns -= min(columns.min(), max(0, columns.max() - last))
        return np.clip(columns, 0, last)

    @property
    def shape(self) -> tuple[int, int]:
        """Days from the first to the last, and steps in a day."""
        return int(self.day[-1]) + 1, -(-DAY // self.step)

    @property
    def dates(self) -> list[str]:
        """The date of each acquisition, such as ``2010-07-14``."""
        return np.datetime_as_string(self.seconds.astype("datetime64[s]"), "D").tolist()

    def table(self, values: Array) -> Array:
        """Return values (n,) in their cells, float32; empty cells are NaN."""
        cells = np.full(self.shape, np.nan, np.float32)
        # Backwards, so that the first acquisition of a cell is written last.
        cells[self.day[::-1], self.slot[::-1]] = values[::-1]
        return cells


def make_calendar(times: Array) -> Calendar:
    """Return the table for strictly increasing times, (n,) datetime64."""
    seconds = times.astype("datetime64[s]").astype(np.int64)
    minutes = np.rint(np.diff(seconds) / 60.0).astype(np.int64)
    if not minutes.size:
        return Calendar(seconds, DEFAULT_STEP)
    steps, counts = np.unique(minutes, return_counts=True)
    return Calendar(seconds, int(np.clip(60 * steps[np.argmax(counts)], 60, DAY)))


def pixel_shares(block: xr.Dataset) -> dict[str, Array]:
    """Return shares of pixels in each acquisition, (n,) float32, NaN where no pixel is known.

    ``cloud`` and ``l2_cloud``: pixels with cloud, among those that the mask knows.
    ``agreement``: pixels where both masks agree, among those that both know; ``compared``: pixels
    that both know, among all. ``model_right`` and ``l2_right``: pixels where the mask agrees with
    the truth.
    """
    masks = {
        name: _labels(block[name]) for name in (MASK, LEVEL2_MASK, CLOUD_TRUTH) if name in block
    }
    shares = {"cloud": _share(masks[MASK] == 1, masks[MASK] >= 0)}
    if LEVEL2_MASK in masks:
        both = (masks[MASK] >= 0) & (masks[LEVEL2_MASK] >= 0)
        shares["l2_cloud"] = _share(masks[LEVEL2_MASK] == 1, masks[LEVEL2_MASK] >= 0)
        shares["agreement"] = _share(masks[MASK] == masks[LEVEL2_MASK], both)
        shares["compared"] = both.mean(axis=1, dtype=np.float32)
    if CLOUD_TRUTH in masks:
        for name, mask in (("model_right", MASK), ("l2_right", LEVEL2_MASK)):
            if mask in masks:
                known = (masks[mask] >= 0) & (masks[CLOUD_TRUTH] >= 0)
                shares[name] = _share(masks[mask] == masks[CLOUD_TRUTH], known)
    return shares


def class_pixel_shares(block: xr.Dataset, classes: tuple[MapClass, ...]) -> dict[str, Array]:
    """Return shares of pixels of a map of classes as :func:`pixel_shares` does.

    ``model-0``, ``model-1`` and so on are those of each class, ``label-0`` and so on those of a
    label; ``agreement`` and ``compared`` are of model and label.
    """
    codes = [shown.code for shown in classes]
    found = {"model": _as_rows(block[MASK])}
    if LABEL in block:
        found["label"] = _as_rows(block[LABEL])
    known = {name: np.isin(values, codes) for name, values in found.items()}
    shares = {
        f"{name}-{place}": _share(values == code, known[name])
        for name, values in found.items()
        for place, code in enumerate(codes)
    }
    if LABEL in block:
        both = known["model"] & known["label"]
        shares["agreement"] = _share(found["model"] == found["label"], both)
        shares["compared"] = both.mean(axis=1, dtype=np.float32)
    return shares


def _as_rows(layer: xr.DataArray) -> Array:
    return np.asarray(layer.values.reshape(layer.shape[0], -1))


def _labels(mask: xr.DataArray) -> Array:
    """Return 0 for clear, 1 for cloud and -1 for unknown, (n, pixels)."""
    values = _as_rows(mask)
    return np.select([values == 0, values == 1], [0, 1], -1).astype(np.int8)


def _share(counted: Array, known: Array) -> Array:
    total = known.sum(axis=1)
    share = (counted & known).sum(axis=1) / np.maximum(total, 1)
    return np.where(total > 0, share, np.nan).astype(np.float32)


def largest_differences(seconds: Array, agreement: Array, compared: Array) -> Array:
    """Return the indices of the acquisitions where two masks differ most, the worst first.

    An acquisition is left out if the masks agree everywhere, if they have less than half of the
    image in common, or if a worse acquisition is less than three hours away.
    """
    ranked = np.argsort(agreement, kind="stable")
    listed: list[int] = []
    for index in ranked[(agreement[ranked] < 1.0) & (compared[ranked] >= LEAST_COMPARED)]:
        if all(abs(seconds[index] - seconds[other]) >= SECONDS_APART for other in listed):
            listed.append(int(index))
        if len(listed) == MOST_LISTED:
            break
    return np.array(listed, np.int64)
