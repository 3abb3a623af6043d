"""Absorption bands and windows of the sounder's channels."""

import numpy as np
import pytest

from undulatus.scenes.channels import (
    ABSORPTION_BANDS,
    FIRST_WAVENUMBER,
    GASES,
    LAST_WAVENUMBER,
    WAVENUMBERS,
    WINDOW,
    WINDOWS,
    Region,
    absorbers,
)
from undulatus.scenes.simulators.sounder import gases

STRONG = 2e-18
"""Intensity in cm per molecule of bands that nearly hide the surface."""


def test_every_channel_lies_in_an_absorption_band_or_a_window():
    found = sum(region.holds(WAVENUMBERS).astype(int) for region in (*ABSORPTION_BANDS, *WINDOWS))
    assert (found > 0).all()


def test_windows_do_not_overlap_bands():
    for window in WINDOWS:
        for band in ABSORPTION_BANDS:
            assert window.high <= band.low or band.high <= window.low


def test_regions_lie_within_the_spectrum_and_are_sorted():
    for regions in (ABSORPTION_BANDS, WINDOWS):
        assert all(
            FIRST_WAVENUMBER <= region.low < region.high <= LAST_WAVENUMBER for region in regions
        )
        lows = [region.low for region in regions]
        assert lows == sorted(lows)


BANDS = {**gases.BANDS, "CH4": gases.METHANE_BANDS}


@pytest.mark.parametrize("gas", BANDS)
def test_strong_vibration_bands_of_the_simulator_lie_in_absorption_bands(gas):
    assert gas in GASES
    for vibration in BANDS[gas]:
        measured = FIRST_WAVENUMBER <= vibration.centre <= LAST_WAVENUMBER
        if measured and vibration.intensity >= STRONG:
            holding = [band for band in ABSORPTION_BANDS if band.holds(vibration.centre)]
            assert gas in {band.gas for band in holding}


def test_water_absorbs_more_in_its_band_than_in_windows():
    ground, water_lines = 0, gases.ABSORBERS.index("water lines")
    strength = np.log10(gases.cross_sections()[ground, water_lines])
    (band,) = (band for band in ABSORPTION_BANDS if band.gas == "H2O")
    outside = np.any([window.holds(WAVENUMBERS) for window in WINDOWS[1:]], axis=0)
    assert strength[band.holds(WAVENUMBERS)].mean() > strength[outside].mean() + 1.0


def test_absorbers_are_listed_by_band_and_windows_are_named():
    assert absorbers(np.array([645.0, 900.0, 2210.0, 2500.0])) == [
        "CO2",
        WINDOW,
        "CO N2O CO2",
        WINDOW,
    ]


def test_a_region_is_named_by_gas_and_range_and_includes_both_ends():
    region = Region("O3", 980.0, 1080.0)
    assert region.name == "O3 980-1080"
    held = region.holds(np.array([979.75, 980.0, 1080.0, 1080.25]))
    assert held.tolist() == [False, True, True, False]
