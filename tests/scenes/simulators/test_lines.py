"""Lines of molecules: measured levels and lines, sum rules, and what the temperature does."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from undulatus.scenes.radiometry import C2
from undulatus.scenes.simulators.sounder.gases import BANDS, METHANE_BANDS
from undulatus.scenes.simulators.sounder.lines import (
    LinearBand,
    Top,
    _clebsch_gordan,
    _dipole,
    _hoenl_london,
    joined,
)

WATER = BANDS["H2O"][0]
ALL_BANDS = [band for bands in BANDS.values() for band in bands]

WATER_LEVELS = {
    (0, 0, 0): 0.0, (1, 0, 1): 23.794, (1, 1, 1): 37.137, (1, 1, 0): 42.372, (2, 0, 2): 70.091,
    (2, 1, 2): 79.496, (2, 1, 1): 95.176, (2, 2, 1): 134.902, (2, 2, 0): 136.164,
    (3, 0, 3): 136.762, (3, 1, 3): 142.278, (3, 3, 1): 285.219, (3, 3, 0): 285.419,
}  # fmt: skip
"""J, Ka, Kc: measured energies, cm⁻¹ (Tennyson et al. 2001)."""


@pytest.mark.parametrize("level", WATER_LEVELS)
def test_waters_levels_have_their_measured_energies_and_symmetries(level):
    j, ka, kc = level
    found = WATER.lower.levels(j)
    every = np.sort(np.concatenate([energies for energies, _ in found]))
    assert every[j + ka - kc] == pytest.approx(WATER_LEVELS[level], abs=0.03)
    # A half turn about b leaves a state as it is if Ka + Kc is even.
    own = found[(ka + kc) % 2][0]
    assert np.abs(own - WATER_LEVELS[level]).min() < 0.03


def test_waters_strongest_lines_lie_where_they_were_measured():
    lines = WATER.lines()
    strongest = np.sort(lines.positions[np.argsort(lines.strengths)[-6:]])
    measured = [1576.186, 1616.711, 1653.267, 1684.835, 1695.928, 1699.934, 1772.714]
    assert np.abs(strongest[:, None] - measured).min(axis=1).max() < 0.02


def test_lines_of_carbon_monoxide_and_dioxide_lie_where_they_were_measured():
    for gas, number, measured in (
        ("CO", 0, (2139.426, 2147.081)),
        ("CO2", 0, (668.159,)),
        ("CO2", 16, (2347.576, 2349.917)),
    ):
        positions = BANDS[gas][number].lines().positions
        assert np.abs(positions[:, None] - measured).min(axis=0).max() < 0.005


def test_a_symmetric_top_has_the_energies_of_its_formula():
    top = Top(3.0, 0.5, 0.5, (0.0,) * 5)
    for j in (0, 1, 6):
        found = np.sort(np.concatenate([energies for energies, _ in top.levels(j)]))
        k = np.arange(-j, j + 1)
        assert_allclose(found, np.sort(0.5 * j * (j + 1) + 2.5 * k**2), atol=1e-12)


@pytest.mark.parametrize("axis", ["a", "b"])
@pytest.mark.parametrize("j", [0, 1, 4])
def test_strengths_from_a_level_add_up_to_its_degeneracy(axis, j):
    total = sum(
        (_dipole(j, other, axis) ** 2).sum(axis=0) for other in range(max(j - 1, 0), j + 2)
    )
    assert_allclose(total, 2 * j + 1, rtol=1e-12)
    if axis == "a" and j:
        assert_allclose(_clebsch_gordan(j, np.array([0.0]), 0, j), 0.0)


@pytest.mark.parametrize("turns", [(0, 0), (1, 1), (2, 2), (0, 1), (1, 2)])
def test_branches_of_a_level_add_up_to_its_degeneracy(turns):
    levels = np.arange(turns[1] + 1.0, 20.0)
    total = sum(_hoenl_london(levels, change, *turns) for change in (-1, 0, 1))
    assert_allclose(total, 2 * levels + 1, rtol=1e-12)


def test_a_level_with_angular_momentum_reaches_one_without_by_branches_of_its_own():
    band = LinearBand(1.0, 720.805, (0.3906, 0.3913), (0.3902, 0.3902), (1, 0), 667.4, True)
    positions = band.lines().positions
    # Levels f have even J and make the Q branch; levels e have odd J and make P and R.
    q = 720.805 + (0.3902 - 0.3913) * np.array([6.0, 20.0, 42.0])
    r = 720.805 + 0.3902 * 6.0 - 0.3906 * 2.0
    assert np.abs(positions[:, None] - [*q, r]).min(axis=0).max() < 1e-4
    absent = 720.805 + 0.3902 * 12.0 - 0.3906 * 6.0
    assert np.abs(positions - absent).min() > 0.1


@pytest.mark.parametrize("band", ALL_BANDS, ids=lambda band: f"{band.centre:g}")
def test_lines_have_the_intensity_of_their_band_and_lie_around_its_centre(band):
    lines = band.lines()
    assert lines.strengths.sum() == pytest.approx(band.intensity, rel=1e-12)
    assert_allclose(lines.strengths_at(296.0), lines.strengths, rtol=1e-12)
    assert np.average(lines.positions, weights=lines.strengths) == pytest.approx(
        band.centre, abs=60.0
    )
    assert (lines.energies >= band.energy - 1e-9).all()


def test_cold_gas_absorbs_less_from_high_levels_and_more_from_low_ones():
    lines = joined(band.lines() for band in BANDS["CO2"][:2])
    colder = lines.strengths_at(200.0) / lines.strengths
    low = lines.energies < 50.0
    assert (colder[low] > 1.0).all()
    high = lines.energies > 600.0
    expected = 296.0 / 200.0 * np.exp(-C2 * lines.energies * (1 / 200.0 - 1 / 296.0))
    assert_allclose(colder, expected, rtol=1e-12)
    assert (colder[high] < 0.5).all()


def test_methane_has_its_branches_near_their_places():
    lines = METHANE_BANDS[0].lines(np.random.default_rng(0))
    assert lines.strengths.sum() == pytest.approx(METHANE_BANDS[0].intensity, rel=1e-12)
    for line in (1300.3, 1311.4, 1316.8, 1322.1):
        assert np.abs(lines.positions - line).min() < 0.2
    assert not np.any((lines.positions > 1307.0) & (lines.positions < 1310.5))
