"""A box of longitudes and latitudes, and the part of a grid that it cuts out."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any, Self

import dask
import numpy as np
import xarray as xr

from undulatus.errors import SceneError

Window = dict[str, slice]
"""Rows and columns of a grid: a slice of ``y`` and one of ``x``."""


@dataclass(frozen=True)
class Box:
    """Longitudes from ``west`` to ``east`` and latitudes from ``south`` to ``north``, in degrees.

    A ``west`` that is larger than ``east`` crosses the 180th meridian.
    """

    west: float
    south: float
    east: float
    north: float

    def __post_init__(self) -> None:
        sound = all(np.isfinite(astuple(self))) and -90 <= self.south < self.north <= 90
        if (
            not sound
            or self.west == self.east
            or not -180 <= self.west <= 180 >= self.east >= -180
        ):
            raise SceneError(
                f"{self} is not a box of degrees: write WEST,SOUTH,EAST,NORTH, longitudes from "
                f"-180 to 180 and latitudes from -90 to 90, such as -17,23,-15.5,24.5."
            )

    @classmethod
    def of(cls, given: Any) -> Self:
        """Return the box of four numbers, or of text such as ``-17,23,-15.5,24.5``."""
        if isinstance(given, cls):
            return given
        parts = given.split(",") if isinstance(given, str) else list(given)
        try:
            west, south, east, north = map(float, parts)
        except ValueError as error:
            raise SceneError(
                f"{given!r} is not a box: write WEST,SOUTH,EAST,NORTH in degrees, such as "
                f"-17,23,-15.5,24.5."
            ) from error
        return cls(west, south, east, north)

    def __str__(self) -> str:
        return ",".join(f"{degrees:g}" for degrees in astuple(self))

    def contains(self, longitude: Any, latitude: Any) -> Any:
        """Return which points lie in the box, its edges included."""
        east_of, west_of = longitude >= self.west, longitude <= self.east
        across = east_of & west_of if self.west < self.east else east_of | west_of
        return across & (latitude >= self.south) & (latitude <= self.north)

    def window(self, longitude: xr.DataArray, latitude: xr.DataArray) -> Window:
        """Return the smallest window (y, x) that has all pixels whose centres are in the box."""
        inside = self.contains(longitude, latitude)
        rows, columns = dask.compute(inside.any("x"), inside.any("y"))
        if not rows.any():
            reach = dask.compute(longitude.min(), longitude.max(), latitude.min(), latitude.max())
            west, east, south, north = (float(value) for value in reach)
            raise SceneError(
                f"No pixel lies in the box {self} (west, south, east, north): the data reach from "
                f"{west:.1f} to {east:.1f} east and from {south:.1f} to {north:.1f} north."
            )
        return {"y": _reach(rows.values), "x": _reach(columns.values)}


def _reach(chosen: Any) -> slice:
    places = np.flatnonzero(chosen)
    return slice(int(places[0]), int(places[-1]) + 1)
