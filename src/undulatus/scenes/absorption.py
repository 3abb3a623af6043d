"""Where the air absorbs in the thermal infrared: the main bands of its gases, and the windows.

The regions are those for which IASI was designed (CNES, IASI, *Spectral resolution*,
https://iasi.cnes.fr/en/IASI/spectral_res.htm; Hilton et al. 2012,
doi:10.1175/BAMS-D-11-00027.1), each widened to where the gas is still seen in a spectrum of the
whole column, to ten wavenumbers or so. Bands overlap; windows lie between them, where the surface
or a cloud is seen. Weaker bands (N₂O at 2460 and 2563 cm⁻¹) and lines of water in windows are
left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WINDOW = "window"


@dataclass(frozen=True)
class Region:
    """A range of wavenumbers (cm⁻¹), both ends in it, and the gas that absorbs there."""

    gas: str
    """Its formula, or ``"window"``."""
    low: float
    high: float

    @property
    def name(self) -> str:
        """Gas and range, such as ``"O3 980-1080"``."""
        return f"{self.gas} {self.low:g}-{self.high:g}"

    def holds(self, wavenumber: Array) -> Array:
        """Say which wavenumbers (cm⁻¹) lie in the region, in the shape given."""
        return np.asarray((wavenumber >= self.low) & (wavenumber <= self.high))


BANDS = (
    Region("CO2", 645.0, 770.0),
    Region("O3", 980.0, 1080.0),
    Region("H2O", 1200.0, 2050.0),
    Region("CH4", 1230.0, 1380.0),
    Region("N2O", 1240.0, 1310.0),
    Region("CO", 2050.0, 2225.0),
    Region("N2O", 2150.0, 2270.0),
    Region("CO2", 2200.0, 2400.0),
    Region("CH4", 2700.0, 2760.0),
)
"""Absorption bands, by where they begin."""
WINDOWS = (
    Region(WINDOW, 770.0, 980.0),
    Region(WINDOW, 1080.0, 1200.0),
    Region(WINDOW, 2400.0, 2700.0),
)
"""What is left between bands."""
GASES = tuple(dict.fromkeys(band.gas for band in BANDS))


def absorbers(wavenumber: Array) -> list[str]:
    """Return the gases in whose bands wavenumbers (n,) lie, with a space between; or "window".

    >>> absorbers(np.array([700.0, 900.0, 1300.0]))
    ['CO2', 'window', 'H2O CH4 N2O']
    """
    found: list[list[str]] = [[] for _ in wavenumber]
    for band in BANDS:
        for index in np.flatnonzero(band.holds(wavenumber)):
            found[index].append(band.gas)
    return [" ".join(gases) or WINDOW for gases in found]
