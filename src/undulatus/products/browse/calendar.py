"""When acquisitions were taken, as cells of a table of days by times of day."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

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
