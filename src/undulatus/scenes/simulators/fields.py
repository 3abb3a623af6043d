r"""Random fields made of waves, which can be computed at any place and time alone.

A field is a sum of travelling plane waves drawn once from a seed,

.. math:: g(r, t) = \sum_k a_k \cos\bigl(k \cdot (r - s(t)) + \omega_k t + \varphi_k\bigr),

with a drift :math:`s(t)` in closed form. So any part of a year can be computed alone, and equals
that part of the whole. Each field has mean zero and variance one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Series:
    """A random function of time: sinusoids of many periods; mean zero, variance one."""

    frequencies: Array
    phases: Array

    @classmethod
    def draw(cls, rng: np.random.Generator, shortest: float, longest: float) -> Series:
        """Draw 40 sinusoids with periods (hours) spread evenly in their logarithm."""
        periods = np.exp(rng.uniform(np.log(shortest), np.log(longest), 40))
        return cls(2.0 * np.pi / periods, rng.uniform(0.0, 2.0 * np.pi, 40))

    def __call__(self, hours: Array) -> Array:
        """Return the values at times (hours), (n,)."""
        waves = np.cos(np.multiply.outer(hours, self.frequencies) + self.phases)
        return waves.sum(axis=-1) * np.sqrt(2.0 / len(self.frequencies))


@dataclass(frozen=True)
class Field:
    """A random function of place and time that drifts with a wind and evolves as it drifts."""

    wavevectors: Array
    """(K, 2), radians per km."""
    amplitudes: Array
    frequencies: Array
    """(K,), radians per hour."""
    phases: Array
    wind: Array
    """(2,), km per hour, eastwards and northwards."""
    meander: tuple[Series, Series]
    """Departure of the drift from a straight line, in units of ten hours of wind."""

    @classmethod
    def draw(
        cls,
        rng: np.random.Generator,
        *,
        scales: tuple[float, float],
        slope: float,
        wind: tuple[float, float] = (0.0, 0.0),
        lifetime: float = np.inf,
        modes: int = 128,
    ) -> Field:
        """Draw a field.

        Parameters
        ----------
        scales : (float, float)
            Shortest and longest wavelength, km.
        slope : float
            The variance per octave grows as wavelength to this power: 2/3 is turbulence.
        wind : (float, float)
            Mean drift eastwards and northwards, km per hour.
        lifetime : float
            Hours in which waves of the longest scale change; that time shrinks for shorter ones,
            as the wavelength to the power 2/3.
        modes : int
            How many waves.
        """
        wavelengths = np.exp(rng.uniform(np.log(scales[0]), np.log(scales[1]), modes))
        bearings = rng.uniform(0.0, 2.0 * np.pi, modes)
        numbers = 2.0 * np.pi / wavelengths
        variances = wavelengths**slope
        turnover = lifetime * (wavelengths / scales[1]) ** (2.0 / 3.0)
        return cls(
            wavevectors=numbers[:, None] * np.column_stack([np.cos(bearings), np.sin(bearings)]),
            amplitudes=np.sqrt(2.0 * variances / variances.sum()),
            frequencies=rng.normal(size=modes) * 2.0 * np.pi / turnover,
            phases=rng.uniform(0.0, 2.0 * np.pi, modes),
            wind=np.asarray(wind),
            meander=(Series.draw(rng, 40.0, 400.0), Series.draw(rng, 40.0, 400.0)),
        )

    def __call__(
        self, hours: Array, east: Array, north: Array, shift: Array | None = None
    ) -> Array:
        """Return the field at times and places, (times, places).

        Parameters
        ----------
        hours : (n,) array
        east, north : (p,) arrays
            Places, km.
        shift : (n, 2) array, optional
            Evaluate the field this far away (km, east and north), at each time.
        """
        speed = 10.0 * np.hypot(*self.wind)
        offset = -self.wind * hours[:, None] - speed * np.column_stack(
            [series(hours) for series in self.meander]
        )
        if shift is not None:
            offset = offset + shift
        in_time = offset @ self.wavevectors.T + np.outer(hours, self.frequencies) + self.phases
        in_space = self.wavevectors @ np.stack([east, north])
        # cos(a + b) expanded, so that times and places meet in one matrix product.
        return np.asarray(
            (np.cos(in_time) * self.amplitudes) @ np.cos(in_space)
            - (np.sin(in_time) * self.amplitudes) @ np.sin(in_space)
        )
