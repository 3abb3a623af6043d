r"""How large the pixels of an image are on the Earth, whatever its projection makes of areas.

The corners of a pixel are put on the sphere that has the area of the ellipsoid, at their authalic
latitudes :math:`\beta` (Snyder 1987, Eqs. 3-11 to 3-13),

.. math:: q(\varphi) = (1 - e^2) \Bigl[\frac{\sin\varphi}{1 - e^2 \sin^2\varphi}
    + \frac{\operatorname{artanh}(e \sin\varphi)}{e}\Bigr], \qquad
    \sin\beta = \frac{q(\varphi)}{q(90°)}, \qquad R = a \sqrt{q(90°) / 2},

a map that keeps every area, poles and date line included; there the pixel is two triangles. Only
the course of its edges between the corners differs, which is nothing to speak of below a degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyproj

from undulatus.scenes.pixel_grid import PixelGrid

Array = npt.NDArray[Any]

KEPT = 1e-3
"""A projection that keeps areas to this share is taken at its word."""

STEP = 16
"""Areas are computed at every so many pixels and interpolated, where that is good enough."""

INTERPOLATED = 1e-4
"""Share by which interpolated areas may be wrong."""


@dataclass(frozen=True)
class PixelAreas:
    """The areas of the pixels of a grid, m²; NaN of those that are not wholly on the Earth."""

    grid: PixelGrid
    crs: pyproj.CRS
    geographic: pyproj.CRS
    """Of the same ellipsoid."""
    axis: float
    """Its longer semi-axis, m."""
    eccentricity: float

    @classmethod
    def of(cls, grid: PixelGrid) -> Self | None:
        """Return the areas of the pixels of a grid, or None if it is nowhere on the Earth."""
        if grid.crs is None:
            return None
        crs = pyproj.CRS.from_user_input(grid.crs.to_wkt())
        geographic, ellipsoid = crs.geodetic_crs, crs.get_geod()
        if geographic is None or ellipsoid is None:
            return None
        return cls(grid, crs, geographic, ellipsoid.a, float(np.sqrt(ellipsoid.es)))

    @cached_property
    def everywhere(self) -> float | None:
        """The area of every pixel, if the projection keeps areas; else None."""
        if not self.crs.is_projected:
            return None
        metres = self.crs.axis_info[0].unit_conversion_factor
        area = abs(self.grid.transform.determinant) * metres**2
        rows, columns = (np.unique(np.linspace(0, n - 1, 2 * STEP).astype(int))
                         for n in self.grid.shape)  # fmt: skip
        ratio = self.at(rows[:, None], columns) / area
        return float(area) if np.all(np.abs(ratio - 1.0) <= KEPT) else None

    def at(self, row: Array, column: Array) -> Array:
        """Return the areas of pixels; rows and columns broadcast."""
        down, across = np.broadcast_arrays(row, column)
        corners = ((0, 0), (0, 1), (1, 1), (1, 0))
        return self._area(*(self._vectors(down + i, across + j) for i, j in corners))

    def block(self, top: int, left: int, shape: tuple[int, int]) -> Array:
        """Return the areas of a block of pixels."""
        if self.everywhere is not None:
            return np.full(shape, self.everywhere)
        rows, columns = (np.unique(np.append(np.arange(0, n, STEP), n - 1)) for n in shape)
        known = self.at(top + rows[:, None], left + columns)
        found = np.asarray(_between(rows, shape[0]) @ known @ _between(columns, shape[1]).T)
        middle = np.ix_(*((at[1:] + at[:-1]) // 2 for at in (rows, columns)))
        exact = self.at(top + middle[0], left + middle[1])
        if np.isfinite(known).all() and np.all(
            np.abs(found[middle] - exact) <= INTERPOLATED * exact
        ):
            return found
        height, width = shape
        corners = self._vectors(
            top + np.arange(height + 1)[:, None], left + np.arange(width + 1)[None]
        )
        return self._area(corners[:-1, :-1], corners[:-1, 1:], corners[1:, 1:], corners[1:, :-1])

    @cached_property
    def _to_geographic(self) -> pyproj.Transformer:
        return pyproj.Transformer.from_crs(self.crs, self.geographic, always_xy=True)

    def _vectors(self, row: Array, column: Array) -> Array:
        """Return corners of pixels as places on the sphere, (..., 3), NaN if they are nowhere."""
        a, b, c, d, e, f = self.grid.transform[:6]
        x, y = a * column + b * row + c, d * column + e * row + f
        east, north = self._to_geographic.transform(x, y)
        east, north = (np.where(np.isfinite(one), one, np.nan) for one in (east, north))
        radians = self.geographic.axis_info[0].unit_conversion_factor
        # Grids of pixels around a pole begin half a pixel beyond it.
        latitude = np.clip(north * radians, -np.pi / 2, np.pi / 2)
        sine = self._authalic(np.sin(latitude)) / self._authalic(np.ones(1))
        cosine = np.sqrt(np.maximum(1.0 - sine**2, 0.0))
        longitude = east * radians
        return np.stack([cosine * np.cos(longitude), cosine * np.sin(longitude), sine], axis=-1)

    def _authalic(self, sine: Array) -> Array:
        """Return q of the sine of latitudes."""
        e = self.eccentricity
        if e == 0.0:
            return 2.0 * sine
        return np.asarray(
            (1.0 - e**2) * (sine / (1.0 - (e * sine) ** 2) + np.arctanh(e * sine) / e)
        )

    def _area(self, *corners: Array) -> Array:
        """Return the areas of four-cornered pixels on the sphere."""
        first, second, third, fourth = corners
        excess = _triangle(first, second, third) + _triangle(first, third, fourth)
        radius = self.axis**2 * self._authalic(np.ones(1)) / 2.0
        return np.asarray(np.abs(excess) * radius)


def _triangle(a: Array, b: Array, c: Array) -> Array:
    """Return the signed areas of triangles on the unit sphere (van Oosterom and Strackee 1983)."""
    # Differences first: the product of nearly parallel vectors would cancel.
    volume = np.sum(a * np.cross(b - a, c - a), axis=-1)
    sides = np.sum(a * b, axis=-1) + np.sum(b * c, axis=-1) + np.sum(c * a, axis=-1)
    return np.asarray(2.0 * np.arctan2(volume, 1.0 + sides))


def _between(known: Array, n: int) -> Array:
    """Return the weights that interpolate n values from those at some places, (n, known)."""
    return np.stack([np.interp(np.arange(n), known, one) for one in np.eye(len(known))], axis=1)
