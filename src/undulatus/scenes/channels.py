"""The channels of IASI: their wavenumbers, the units of their radiances, and what absorbs there.

**Units.** How spectral radiance may be spelled: blanks, dots, carets, stars, underscores and
raised digits do not matter. After milliwatts (``mW``) or watts (``W``) come, per cm⁻¹ or per m⁻¹
alike::

    m-2 sr-1 (cm-1)-1    m-2 sr-1 cm      cm m-2 sr-1
    /m2/sr/cm-1          /m2/sr/(cm-1)    /m2 sr cm-1
    /(m2 sr cm-1)        /(m2 sr (cm-1))  /(m2 sr)/cm-1    /(m2 sr)/(cm-1)

``W m-1 sr-1``, which is per m⁻¹ with metres cancelled, is understood too. ``mW m-2 sr-1 cm-1`` is
refused, since it may mean per cm⁻¹ or per cm.

**Absorption.** Regions are those for which IASI was designed (CNES, IASI, *Spectral resolution*,
https://iasi.cnes.fr/en/IASI/spectral_res.htm; Hilton et al. 2012,
doi:10.1175/BAMS-D-11-00027.1), each widened, to about ten wavenumbers, to where the gas still
shows in a spectrum of the whole column. Bands overlap. Windows lie between them and show the
surface or a cloud. Weaker bands (N₂O at 2460 and 2563 cm⁻¹) and water lines in windows are left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

Array = npt.NDArray[Any]

CHANNELS = 8461
"""How many there are."""

FIRST_WAVENUMBER, LAST_WAVENUMBER, CHANNEL_SPACING = 645.0, 2760.0, 0.25
"""All in cm⁻¹."""

WAVENUMBERS = FIRST_WAVENUMBER + CHANNEL_SPACING * np.arange(CHANNELS)
"""Of every channel, cm⁻¹; read-only."""

WAVENUMBERS.setflags(write=False)

WAVENUMBER_ATTRIBUTES = {
    "standard_name": "sensor_band_central_radiation_wavenumber",
    "units": "cm-1",
}

RADIANCE_UNITS = "mW m-2 sr-1 (cm-1)-1"
"""The units of radiances everywhere in undulatus."""

NOISE_TEMPERATURE = 280.0
"""Scene temperature (K) at which, by convention, noise of radiance is converted to kelvin."""

WINDOW = "window"
"""What a region without an absorbing gas is called."""

_TOLERANCE = 0.01
"""How far a wavenumber may be from its channel's, cm⁻¹: rounding to float32 is far smaller."""

_RANGES_NAMED = 3
"""Ranges of missing channels that a message lists."""

_PER_CM = (
    "m-2sr-1(cm-1)-1", "m-2sr-1cm", "cmm-2sr-1", "/m2/sr/cm-1", "/m2/sr/(cm-1)", "/m2srcm-1",
    "/(m2srcm-1)", "/(m2sr(cm-1))", "/(m2sr)/cm-1", "/(m2sr)/(cm-1)",
)  # fmt: skip

_PER_M = (*(form.replace("cm", "m") for form in _PER_CM), "m-1sr-1")

_FACTORS = {
    **{f"mW{form}": 1.0 for form in _PER_CM},
    **{f"W{form}": 1e3 for form in _PER_CM},
    # 1 cm⁻¹ is 100 m⁻¹, so radiance per cm⁻¹ is 100 times that per m⁻¹.
    **{f"mW{form}": 1e2 for form in _PER_M},
    **{f"W{form}": 1e5 for form in _PER_M},
}
"""To multiply by, for ``RADIANCE_UNITS``."""

_PLAIN = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--", " .·*^_{}")  # noqa: RUF001


@dataclass(frozen=True)
class Region:
    """A range of wavenumbers (cm⁻¹), ends included, and the gas that absorbs there."""

    gas: str
    """Its formula, or ``"window"``."""
    low: float
    high: float

    @property
    def name(self) -> str:
        """Gas and range, such as ``"O3 980-1080"``."""
        return f"{self.gas} {self.low:g}-{self.high:g}"

    def holds(self, wavenumber: Array) -> Array:
        """Return which wavenumbers (cm⁻¹) lie in the region, in the shape given."""
        return np.asarray((wavenumber >= self.low) & (wavenumber <= self.high))


ABSORPTION_BANDS = (
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
"""Sorted by lower end."""

WINDOWS = (
    Region(WINDOW, 770.0, 980.0),
    Region(WINDOW, 1080.0, 1200.0),
    Region(WINDOW, 2400.0, 2700.0),
)
"""The ranges between absorption bands."""

GASES = tuple(dict.fromkeys(band.gas for band in ABSORPTION_BANDS))


def absorbers(wavenumber: Array) -> list[str]:
    """Return the gases that absorb at wavenumbers (n,), separated by spaces, or ``"window"``.

    >>> absorbers(np.array([700.0, 900.0, 1300.0]))
    ['CO2', 'window', 'H2O CH4 N2O']
    """
    found: list[list[str]] = [[] for _ in wavenumber]
    for band in ABSORPTION_BANDS:
        for index in np.flatnonzero(band.holds(wavenumber)):
            found[index].append(band.gas)
    return [" ".join(gases) or WINDOW for gases in found]


def radiance_factor(units: str) -> float | None:
    """Return the factor from these units to ``RADIANCE_UNITS``, or None if they are ambiguous.

    >>> radiance_factor("mW/m^2/sr/cm^-1"), radiance_factor("W m-2 sr-1 (m-1)-1")
    (1.0, 100000.0)
    >>> radiance_factor("K") is None
    True
    """
    return _FACTORS.get(units.translate(_PLAIN))


def channel_order(wavenumber: Array) -> Array:
    """Return the index of each channel in wavenumbers (cm⁻¹), (channels,); -1 if it is absent."""
    nearest = np.round((wavenumber - FIRST_WAVENUMBER) / CHANNEL_SPACING)
    exact = np.abs(wavenumber - FIRST_WAVENUMBER - CHANNEL_SPACING * nearest) <= _TOLERANCE
    exact &= (nearest >= 0) & (nearest < CHANNELS)
    order = np.full(CHANNELS, -1)
    order[nearest[exact].astype(int)] = np.flatnonzero(exact)
    return order


def channel_problems(spectra: xr.Dataset) -> list[str]:
    """List what is wrong with the coordinate ``wavenumber`` (channel) of spectra, with remedies.

    Additional channels and any order are accepted.
    """
    expected = f"{FIRST_WAVENUMBER:g} to {LAST_WAVENUMBER:g} per cm by {CHANNEL_SPACING:g}"
    if "wavenumber" not in spectra.variables:
        return [_no_wavenumber(spectra.sizes["channel"], expected)]
    array = spectra["wavenumber"]
    if array.dims != ("channel",) or array.dtype.kind not in "fiu":
        return [
            f"wavenumber has dims {array.dims} and type {array.dtype}; expected one number per "
            f"channel, {expected} (spectra.assign_coords(wavenumber=(...)))."
        ]
    values = array.values.astype(np.float64)
    if not np.isfinite(values).all():
        return [
            f"wavenumber is not finite in {np.sum(~np.isfinite(values))} channels: leave them out "
            f"(spectra.isel(channel=np.isfinite(spectra['wavenumber'])))."
        ]
    order = channel_order(values)
    if (order < 0).any():
        return [_mismatch(values, order)]
    nearest = np.round((values - FIRST_WAVENUMBER) / CHANNEL_SPACING)
    inside = nearest[(nearest >= 0) & (nearest < CHANNELS)]
    if len(inside) != CHANNELS:
        return [
            f"wavenumber has {len(inside) - CHANNELS} duplicates, or channels between two of "
            f"ours: keep one of each (spectra.drop_duplicates after "
            f"spectra.swap_dims(channel='wavenumber'))."
        ]
    return []


def _no_wavenumber(count: int, expected: str) -> str:
    remedy = "assign one (spectra.assign_coords(wavenumber=(...)))"
    if count == CHANNELS:
        remedy = (
            "if the channels are in order, spectra.assign_coords(wavenumber="
            '("channel", undulatus.scenes.channels.WAVENUMBERS))'
        )
    return f"no wavenumber for the {count} channels; expected {expected}: {remedy}."


def _mismatch(values: Array, order: Array) -> str:
    """Describe how wavenumbers differ from the channels', trying the likeliest mistakes first."""
    extent = f"wavenumber runs from {values.min():g} to {values.max():g}"
    expected = f"expected {FIRST_WAVENUMBER:g} to {LAST_WAVENUMBER:g} per cm"
    with np.errstate(divide="ignore"):
        inverse = 1.0 / values
    mistakes = {
        "seems to be per metre: divide it by 100": values / 100.0,
        "seems to hold wavelengths in µm: use 10000 / wavelength": 1e4 * inverse,
        "seems to hold wavelengths in nm: use 10000000 / wavelength": 1e7 * inverse,
    }
    for mistake, corrected in mistakes.items():
        inside = (corrected > FIRST_WAVENUMBER - 1.0) & (corrected < LAST_WAVENUMBER + 1.0)
        if np.mean(inside) > 0.9:
            return f"{extent}; {expected}: it {mistake} (spectra.assign_coords(...))."
    if len(values) == CHANNELS:
        shift = np.median(np.sort(values) - WAVENUMBERS)
        shifted = np.abs(np.sort(values) - WAVENUMBERS - shift).max() <= _TOLERANCE
        if shifted and abs(shift) > _TOLERANCE:
            return (
                f"{extent}; {expected}: all are shifted by {shift:+.4g}. Channel k of the "
                f"native files, counted from 1, is at 0.25 (k + 2579) per cm. Subtract the shift "
                f"if the channels are miscounted; otherwise resample the spectra."
            )
    if (order >= 0).any():
        return f"{extent}; {_absent(order)}. Use whole spectra, or the product's scores."
    step = f"{CHANNEL_SPACING:g}"
    return f"{extent}; {expected} by {step}: resample the spectra to these channels."


def _absent(order: Array) -> str:
    missing = np.flatnonzero(order < 0)
    runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
    named = [f"{WAVENUMBERS[run[0]]:.2f}-{WAVENUMBERS[run[-1]]:.2f}" for run in runs]
    more = f" and {len(runs) - _RANGES_NAMED} more ranges" if len(runs) > _RANGES_NAMED else ""
    return (
        f"missing: {len(missing)} of {CHANNELS} channels, at {', '.join(named[:_RANGES_NAMED])}"
        f"{more} per cm"
    )
