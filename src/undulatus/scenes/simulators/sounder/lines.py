r"""Where the lines of molecules are: quantum mechanics of rotors, from a few constants each.

**Linear molecules** (CO₂, N₂O, CO). With the constants :math:`B` and :math:`D` of the lower and
the upper state, energies are :math:`G + B J(J+1) - D J^2 (J+1)^2`; lines go from :math:`J` to
:math:`J - 1`, :math:`J` and :math:`J + 1` with the strengths of Hönl and London.

**Asymmetric tops** (ozone, water). Watson's Hamiltonian (A-reduction, representation Iʳ: the axis
:math:`a` is :math:`z`, and :math:`b` is :math:`x`) is diagonalised in the basis of symmetric tops,
separately for the states that a half turn about :math:`b` leaves as they are and those that it
turns around, which have different weights, as the atoms at the ends are alike. Strengths are the
matrix elements of the dipole along :math:`a` or :math:`b`.

**Methane** has the branches P, Q and R, each of whose levels is split at random into lines a few
tenths of a wavenumber apart, as tetrahedral forces split the real ones.

A strength at the temperature :math:`T`, for a band whose strength at 296 K is known, is

.. math:: S(T) = S(296)\, \frac{Q(296)}{Q(T)} \frac{e^{-c_2 E / T}}{e^{-c_2 E / 296}},

with :math:`E` the energy of the lower state and :math:`Q \propto T` (linear) or :math:`T^{3/2}`.

Checked in the tests: energies and lines of water and the strongest lines of CO₂ against measured
ones; and in ``docs/howto/soundings.md`` the whole simulator against real spectra.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from undulatus.scenes.radiometry import C2

Array = npt.NDArray[np.float64]

REFERENCE = 296.0
"""Temperature of tabulated strengths, K."""

_FAINTEST = 1e-5
"""Lines are left out that are weaker than this share of the strongest of their band."""


@dataclass(frozen=True)
class Lines:
    """Lines of a gas."""

    positions: Array
    """cm⁻¹."""
    strengths: Array
    """At 296 K, cm per molecule."""
    energies: Array
    """Of the lower state, cm⁻¹."""
    power: float
    """Of the temperature in the partition function."""

    def strengths_at(self, temperature: float) -> Array:
        """Return the strengths at a temperature (K), cm per molecule."""
        warmth = C2 * self.energies * (1.0 / REFERENCE - 1.0 / temperature)
        return self.strengths * (REFERENCE / temperature) ** self.power * np.exp(warmth)


def joined(parts: Iterable[Lines]) -> Lines:
    """Return the lines of several bands of a gas as one."""
    bands = list(parts)
    columns = [(band.positions, band.strengths, band.energies) for band in bands]
    positions, strengths, energies = (np.concatenate(c) for c in zip(*columns, strict=True))
    return Lines(positions, strengths, energies, bands[0].power)


@dataclass(frozen=True)
class LinearBand:
    """A vibration band of a linear molecule."""

    intensity: float
    """Sum over its lines at 296 K, cm per molecule."""
    centre: float
    """Difference of the vibrational energies, cm⁻¹."""
    lower: tuple[float, float]
    """Rotational constants (cm⁻¹) of the lower state's levels e and f; alike if it has l = 0."""
    upper: tuple[float, float]
    """Of the upper state's."""
    turns: tuple[int, int] = (0, 0)
    """Vibrational angular momentum l of the lower and the upper state."""
    energy: float = 0.0
    """Of the lower vibrational state, cm⁻¹."""
    alternate: bool = False
    """Every second level is missing, as the atoms at the ends are alike and have no spin."""
    distortion: float = 1.4e-7
    """Constant D, cm⁻¹."""

    def lines(self) -> Lines:
        """Return the lines of the branches P, Q and R."""
        start, end = self.turns
        parts = []
        for symmetry in (0, 1) if start else (0,):
            # Of every two levels, e has the one with the parity of l, and f the other.
            step, first = (2, start + symmetry) if self.alternate else (1, start)
            levels = np.arange(first, 110, step, dtype=float)
            for change in (-1, 0, 1):
                other = symmetry if change else 1 - symmetry
                if end or not other:
                    constants = self.lower[symmetry], self.upper[other]
                    parts.append(self._branch(levels, change, *constants))
        positions, strengths, energies = np.concatenate(parts, axis=1)
        return _of_intensity(self.intensity, positions, strengths, energies, 1.0)

    def _branch(self, levels: Array, change: int, lower: float, upper: float) -> Array:
        """Return positions, relative strengths and energies of lines, (3, lines)."""
        squares, others = levels * (levels + 1), (levels + change) * (levels + change + 1)
        energies = lower * squares - self.distortion * squares**2
        above = upper * others - self.distortion * others**2
        strengths = _hoenl_london(levels, change, *self.turns) * np.exp(-C2 * energies / REFERENCE)
        return np.array([self.centre + above - energies, strengths, self.energy + energies])


def _hoenl_london(levels: Array, change: int, start: int, end: int) -> Array:
    """Return the strengths of transitions of a linear molecule, without the population."""
    j, turn = levels, (end - start) * start
    if end == start:
        strengths = {
            -1: (j**2 - start**2) / np.maximum(j, 1.0),
            0: start**2 * (2.0 * j + 1.0) / np.maximum(j * (j + 1.0), 1.0),
            1: ((j + 1.0) ** 2 - start**2) / (j + 1.0),
        }
    else:
        strengths = {
            -1: (j - 1.0 - turn) * (j - turn) / np.maximum(2.0 * j, 1.0),
            0: (j + 1.0 + turn) * (j - turn) * (2 * j + 1.0) / np.maximum(2 * j * (j + 1.0), 1.0),
            1: (j + 2.0 + turn) * (j + 1.0 + turn) / (2.0 * (j + 1.0)),
        }
    # No level has J below l.
    return np.where(j + change >= end, strengths[change], 0.0)


def _of_intensity(
    intensity: float, positions: Array, strengths: Array, energies: Array, power: float
) -> Lines:
    kept = strengths > _FAINTEST * strengths.max()
    strengths = intensity * strengths[kept] / strengths[kept].sum()
    return Lines(positions[kept], strengths, energies[kept], power)


@dataclass(frozen=True)
class Top:
    """Constants of an asymmetric top, cm⁻¹."""

    a: float
    b: float
    c: float
    distortion: tuple[float, float, float, float, float]
    """Δ_J, Δ_JK, Δ_K, δ_J and δ_K."""
    sextic: tuple[float, float, float, float, float, float, float] = (0.0,) * 7
    """H_J, H_JK, H_KJ, H_K, h_J, h_JK and h_K."""

    def levels(self, j: int) -> list[tuple[Array, Array]]:
        """Return energies (states,) and vectors (2 J + 1, states) of the levels of one J.

        First the states that a half turn about b leaves as they are, then the others.
        """
        k = np.arange(-j, j + 1.0)
        square = j * (j + 1.0)
        d_j, d_jk, d_k, e_j, e_k = self.distortion
        h_j, h_jk, h_kj, h_k, i_j, i_jk, i_k = self.sextic
        diagonal = (
            (self.b + self.c) / 2 * square
            + (self.a - (self.b + self.c) / 2) * k**2
            - (d_j * square**2 + d_jk * square * k**2 + d_k * k**4)
            + h_j * square**3 + h_jk * square**2 * k**2 + h_kj * square * k**4 + h_k * k**6
        )  # fmt: skip
        low, high = k[:-2], k[2:]
        beside = (
            (self.b - self.c) / 4 - e_j * square - e_k / 2 * (low**2 + high**2)
            + i_j * square**2 + i_jk / 2 * square * (low**2 + high**2)
            + i_k / 2 * (low**4 + high**4)
        ) * np.sqrt((square - low * (low + 1)) * (square - (low + 1) * high))  # fmt: skip
        matrix = np.diag(diagonal)
        row = np.arange(2 * j - 1)
        matrix[row, row + 2] = matrix[row + 2, row] = beside
        signs = (1, -1) if j % 2 == 0 else (-1, 1)
        found = []
        for sign in signs:
            basis = _of_parity(j, sign)
            energies, vectors = np.linalg.eigh(basis.T @ matrix @ basis)
            found.append((energies, basis @ vectors))
        return found


def _of_parity(j: int, sign: int) -> Array:
    """Return the sums or differences of the states K and -K, (2 J + 1, states)."""
    upper = np.eye(2 * j + 1)[:, j:]
    mixed = (upper + sign * upper[::-1]) / np.sqrt(2.0)
    if sign < 0:
        return mixed[:, 1:]
    mixed[:, 0] /= np.sqrt(2.0)
    return mixed


@dataclass(frozen=True)
class TopBand:
    """A vibration band of an asymmetric top whose dipole changes along one axis."""

    intensity: float
    """Sum over its lines at 296 K, cm per molecule."""
    centre: float
    """cm⁻¹."""
    lower: Top
    upper: Top
    axis: str
    """``"a"`` or ``"b"``."""
    weights: tuple[int, int]
    """Of the lower state's levels that a half turn about b leaves as they are, and of others."""
    largest: int = 55
    """The largest J."""
    energy: float = 0.0
    """Of the lower vibrational state, cm⁻¹."""

    def lines(self) -> Lines:
        """Return all lines between levels of the two states."""
        lower = [self.lower.levels(j) for j in range(self.largest + 1)]
        upper = [self.upper.levels(j) for j in range(self.largest + 2)]
        parts = []
        for j in range(self.largest + 1):
            for other in range(max(j - 1, 0), j + 2):
                dipole = _dipole(j, other, self.axis)
                for symmetry, weight in enumerate(self.weights):
                    if not weight:
                        continue
                    # The dipole along a is turned around, and that along b is not.
                    partner = symmetry if self.axis == "b" else 1 - symmetry
                    energies, vectors = lower[j][symmetry]
                    above, ends = upper[other][partner]
                    strengths = weight * (ends.T @ dipole @ vectors) ** 2
                    strengths = strengths * np.exp(-C2 * energies / REFERENCE)
                    positions = self.centre + above[:, None] - energies
                    kept = strengths > 0.0
                    below = np.broadcast_to(energies, kept.shape)
                    parts.append(np.array([positions[kept], strengths[kept], below[kept]]))
        positions, strengths, energies = np.concatenate(parts, axis=1)
        return _of_intensity(self.intensity, positions, strengths, self.energy + energies, 1.5)


def _dipole(j: int, other: int, axis: str) -> Array:
    """Return the elements of the dipole between symmetric tops, (2 other + 1, 2 J + 1)."""
    matrix = np.zeros((2 * other + 1, 2 * j + 1))
    k = np.arange(-j, j + 1)
    for step in (0,) if axis == "a" else (-1, 1):
        inside = np.abs(k + step) <= other
        # Along x, (T(-1) - T(+1)) / √2.
        factor = 1.0 if axis == "a" else -step / np.sqrt(2.0)
        elements = _clebsch_gordan(j, k[inside].astype(float), step, other)
        matrix[k[inside] + step + other, np.flatnonzero(inside)] = factor * elements
    return np.sqrt(2.0 * j + 1.0) * matrix


def _clebsch_gordan(j: int, k: Array, step: int, other: int) -> Array:
    """Return ⟨J K, 1 step | other K + step⟩."""
    m = k + step
    if step == 0:
        return {
            1: np.sqrt((j - m + 1) * (j + m + 1) / ((2 * j + 1) * (j + 1.0))),
            0: m / np.sqrt(max(j * (j + 1.0), 1.0)),
            -1: -np.sqrt((j - m) * (j + m) / max(j * (2.0 * j + 1), 1.0)),
        }[other - j]
    m = step * m
    return {
        1: np.sqrt((j + m) * (j + m + 1) / ((2 * j + 1) * (2.0 * j + 2))),
        0: -step * np.sqrt((j + m) * (j - m + 1) / max(2.0 * j * (j + 1), 1.0)),
        -1: np.sqrt((j - m) * (j - m + 1) / max(2.0 * j * (2 * j + 1), 1.0)),
    }[other - j]


@dataclass(frozen=True)
class SphericalBand:
    """A vibration band of methane, whose lines are only near their places."""

    intensity: float
    """Sum over its lines at 296 K, cm per molecule."""
    centre: float
    """cm⁻¹."""
    spacing: float
    """Of the lines next to the centre, cm⁻¹."""
    curvature: float
    """How fast the spacing changes, cm⁻¹: half its second difference."""
    scatter: float
    """How far the lines that one level is split into spread, divided by J², cm⁻¹."""
    rotation: float = 5.241
    """Rotational constant, cm⁻¹."""

    def lines(self, rng: np.random.Generator) -> Lines:
        """Return lines, several for each level, whose shares and places are drawn."""
        j = np.arange(20.0)
        energies = self.rotation * j * (j + 1)
        population = (2 * j + 1) * np.exp(-C2 * energies / REFERENCE)
        # Branches P, Q and R; Q spreads to one side.
        steps = np.concatenate([-j, j + 1])
        outer = self.spacing * steps + self.curvature * steps**2
        away = np.concatenate([outer[:20], self.curvature / 2 * j * (j + 1), outer[20:]])
        strengths = np.concatenate([2 * j - 1, 2 * j + 1, 2 * j + 3]) * np.tile(population, 3)
        strengths[0] = 0.0
        level, below = np.tile(j, 3), np.tile(energies, 3)
        parts = rng.dirichlet(np.full(10, 0.5), len(away))
        split = self.scatter * level[:, None] ** 2 * rng.standard_normal(parts.shape)
        return _of_intensity(
            self.intensity,
            (self.centre + away[:, None] + split).ravel(),
            (strengths[:, None] * parts).ravel(),
            np.repeat(below, parts.shape[1]),
            1.5,
        )
