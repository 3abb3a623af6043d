"""When acquisitions were taken, as cells of a table of days by times of day.

What is counted in an acquisition: cloud, agreement with the Level-2 mask, accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.products.maps import MASK
from undulatus.scenes.scene import CLOUD_TRUTH, LEVEL2_MASK

Array = npt.NDArray[Any]

DAY = 86_400
"""Seconds."""

USUAL_STEP = 900
"""Between acquisitions where there is but one, seconds."""

_NEARLY = 15 / 16
"""Of a step."""


@dataclass(frozen=True)
class Calendar:
    """A table with a row a day (UTC) and a column a step of time.

    Two acquisitions may fall into one cell, which then stands for the first, and cells may be
    empty.
    """

    seconds: Array
    """(n,) int64, since 1970, strictly increasing."""
    step: int
    """Seconds: the commonest time between acquisitions, in whole minutes, at most a day."""

    @property
    def day(self) -> Array:
        """The row of each acquisition."""
        return self.seconds // DAY - self.seconds[0] // DAY

    @property
    def slot(self) -> Array:
        """The column of each acquisition; times may waver about a multiple of the step."""
        of_day = self.seconds % DAY
        turn = np.exp(2j * np.pi * of_day / self.step).mean()
        phase = float(np.angle(turn)) / (2.0 * np.pi) % 1.0
        # Just before a multiple of the step, they are meant to be on it.
        phase -= phase > _NEARLY
        columns = np.rint(of_day / self.step - phase).astype(np.int64)
        most = self.shape[1] - 1
        columns -= min(columns.min(), max(0, columns.max() - most))
        return np.clip(columns, 0, most)

    @property
    def shape(self) -> tuple[int, int]:
        """Days from the first to the last, and steps in a day."""
        return int(self.day[-1]) + 1, -(-DAY // self.step)

    def table(self, values: Array) -> Array:
        """Return values (n,) in their cells, float32; empty cells are NaN."""
        cells = np.full(self.shape, np.nan, np.float32)
        # Backwards, so that the first of a cell stays.
        cells[self.day[::-1], self.slot[::-1]] = values[::-1]
        return cells

    @property
    def dates(self) -> list[str]:
        """The date of each acquisition: ``2010-07-14``."""
        return np.datetime_as_string(self.seconds.astype("datetime64[s]"), "D").tolist()


def make_calendar(times: Array) -> Calendar:
    """Return the table of times (n,) datetime64, which increase strictly."""
    seconds = times.astype("datetime64[s]").astype(np.int64)
    minutes = np.rint(np.diff(seconds) / 60.0).astype(np.int64)
    if not minutes.size:
        return Calendar(seconds, USUAL_STEP)
    found, counts = np.unique(minutes, return_counts=True)
    return Calendar(seconds, int(np.clip(60 * found[np.argmax(counts)], 60, DAY)))


LISTED = 40
"""Acquisitions listed where the masks differ most."""

APART = 3 * 3600
"""Between any two of them, seconds, or one cloud would fill the list."""

ENOUGH = 0.5
"""Share of the image that two masks must have in common to be compared in the list."""


def count_shares(block: xr.Dataset) -> dict[str, Array]:
    """Return shares of pixels, (n,) float32 each, NaN where no pixel is known.

    ``cloud`` and ``l2_cloud``: of the pixels that the mask knows, those with cloud. ``agreement``:
    of the pixels that both know, those where they agree; ``compared``: those of all pixels.
    ``model_right`` and ``l2_right``: agreement with the truth.
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


def _labels(mask: xr.DataArray) -> Array:
    """Return 0 clear, 1 cloud, -1 neither, (n, pixels)."""
    values = mask.values.reshape(mask.shape[0], -1)
    return np.select([values == 0, values == 1], [0, 1], -1).astype(np.int8)


def _share(counted: Array, known: Array) -> Array:
    whole = known.sum(axis=1)
    found = (counted & known).sum(axis=1) / np.maximum(whole, 1)
    return np.where(whole > 0, found, np.nan).astype(np.float32)


def differing_most(seconds: Array, agreement: Array, compared: Array) -> Array:
    """Return the numbers of acquisitions where two masks differ most, the worst first.

    Those whose masks have less than half of the image in common are passed over, and so are
    those where all agree, or within three hours of a worse one.
    """
    ranked = np.argsort(agreement, kind="stable")
    taken: list[int] = []
    for number in ranked[(agreement[ranked] < 1.0) & (compared[ranked] >= ENOUGH)]:
        if all(abs(seconds[number] - seconds[other]) >= APART for other in taken):
            taken.append(int(number))
        if len(taken) == LISTED:
            break
    return np.array(taken, np.int64)
