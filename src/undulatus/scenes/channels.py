"""The channels of IASI: where they are, and what is wrong with wavenumbers that are not theirs.

How units of spectral radiance are spelled, and how many mW m⁻² sr⁻¹ (cm⁻¹)⁻¹ each is.

Blanks, dots, carets, stars, underscores and raised digits do not matter. After milliwatts
(``mW``) or watts (``W``) come, per cm⁻¹ or per m⁻¹ alike::

    m-2 sr-1 (cm-1)-1    m-2 sr-1 cm      cm m-2 sr-1
    /m2/sr/cm-1          /m2/sr/(cm-1)    /m2 sr cm-1
    /(m2 sr cm-1)        /(m2 sr (cm-1))  /(m2 sr)/cm-1    /(m2 sr)/(cm-1)

Per metre, ``W m-1 sr-1`` is understood too: what is left when metres are cancelled. But
``mW m-2 sr-1 cm-1`` is refused, since it may be meant per cm⁻¹ or per cm.

Where the air absorbs in the thermal infrared: the main bands of its gases, and the windows.

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
import xarray as xr

Array = npt.NDArray[Any]

CHANNELS = 8461

FIRST_WAVENUMBER, LAST_WAVENUMBER, CHANNEL_SPACING = 645.0, 2760.0, 0.25
"""Cm⁻¹."""

WAVENUMBERS = FIRST_WAVENUMBER + CHANNEL_SPACING * np.arange(CHANNELS)


WAVENUMBERS.setflags(write=False)

WAVENUMBER_ATTRIBUTES = {
    "standard_name": "sensor_band_central_radiation_wavenumber",
    "units": "cm-1",
}

_TOLERANCE = 0.01
"""How far a wavenumber may be from its channel's, cm⁻¹: single precision is far closer."""

_RANGES_NAMED = 3


def channel_order(wavenumber: Array) -> Array:
    """Return where each channel is among wavenumbers (cm⁻¹), (channels,); -1 where it is not."""
    nearest = np.round((wavenumber - FIRST_WAVENUMBER) / CHANNEL_SPACING)
    there = np.abs(wavenumber - FIRST_WAVENUMBER - CHANNEL_SPACING * nearest) <= _TOLERANCE
    there &= (nearest >= 0) & (nearest < CHANNELS)
    order = np.full(CHANNELS, -1)
    order[nearest[there].astype(int)] = np.flatnonzero(there)
    return order


def channel_problems(spectra: xr.Dataset) -> list[str]:
    """Say what is wrong with the coordinate ``wavenumber`` (channel) of spectra, and the remedy.

    More channels than there are, in any order, are no problem.
    """
    due = f"{FIRST_WAVENUMBER:g} to {LAST_WAVENUMBER:g} per cm by {CHANNEL_SPACING:g}"
    count = spectra.sizes["channel"]
    if "wavenumber" not in spectra.variables:
        remedy = "give the channels theirs (spectra.assign_coords(wavenumber=(...)))"
        if count == CHANNELS:
            remedy = (
                "if channels are in order, spectra.assign_coords(wavenumber="
                '("channel", undulatus.scenes.spectra.WAVENUMBERS))'
            )
        return [f"no wavenumber, so the {count} channels are not known ({due} is due): {remedy}."]
    array = spectra["wavenumber"]
    if array.dims != ("channel",) or array.dtype.kind not in "fiu":
        return [
            f"wavenumber has dims {array.dims} and type {array.dtype}, where one number a "
            f"channel is due: {due} (spectra.assign_coords(wavenumber=(...)))."
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
            f"wavenumber has {len(inside) - CHANNELS} channels twice, or between two: keep one "
            f"of each (spectra.drop_duplicates after spectra.swap_dims(channel='wavenumber'))."
        ]
    return []


def _mismatch(values: Array, order: Array) -> str:
    """Say how wavenumbers differ from the channels', the likeliest mistake first."""
    run = f"wavenumber runs from {values.min():g} to {values.max():g}"
    due = f"{FIRST_WAVENUMBER:g} to {LAST_WAVENUMBER:g} per cm"
    with np.errstate(divide="ignore"):
        inverse = 1.0 / values
    mistakes = {
        "is per metre, it seems: divide it by 100": values / 100.0,
        "holds wavelengths in µm, it seems: take 10000 / wavelength": 1e4 * inverse,
        "holds wavelengths in nm, it seems: take 10000000 / wavelength": 1e7 * inverse,
    }
    for says, mended in mistakes.items():
        inside = np.mean((mended > FIRST_WAVENUMBER - 1.0) & (mended < LAST_WAVENUMBER + 1.0))
        if inside > 0.9:
            return f"{run}, where {due} is due: it {says} (spectra.assign_coords(...))."
    if len(values) == CHANNELS:
        shift = np.median(np.sort(values) - WAVENUMBERS)
        shifted = np.abs(np.sort(values) - WAVENUMBERS - shift).max() <= _TOLERANCE
        if shifted and abs(shift) > _TOLERANCE:
            return (
                f"{run}, where {due} is due: all are shifted by {shift:+.4g}. Channel k of the "
                f"native files, from 1 on, is at 0.25 (k + 2579) per cm; subtract the shift if "
                f"they are miscounted, resample the spectra if not."
            )
    if (order >= 0).any():
        return f"{run}; {_absent(order)}. Use whole spectra, or the product's scores."
    by = f"{CHANNEL_SPACING:g}"
    return f"{run}, where {due} by {by} is due: resample the spectra to these channels."


def _absent(order: Array) -> str:
    missing = np.flatnonzero(order < 0)
    runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
    named = [f"{WAVENUMBERS[run[0]]:.2f}-{WAVENUMBERS[run[-1]]:.2f}" for run in runs]
    more = f" and {len(runs) - _RANGES_NAMED} more ranges" if len(runs) > _RANGES_NAMED else ""
    return (
        f"missing: {len(missing)} of {CHANNELS} channels, at {', '.join(named[:_RANGES_NAMED])}"
        f"{more} per cm"
    )


RADIANCE_UNITS = "mW m-2 sr-1 (cm-1)-1"
"""The units of radiances everywhere in undulatus."""

_PER_CM = (
    "m-2sr-1(cm-1)-1", "m-2sr-1cm", "cmm-2sr-1", "/m2/sr/cm-1", "/m2/sr/(cm-1)", "/m2srcm-1",
    "/(m2srcm-1)", "/(m2sr(cm-1))", "/(m2sr)/cm-1", "/(m2sr)/(cm-1)",
)  # fmt: skip

_PER_M = (*(form.replace("cm", "m") for form in _PER_CM), "m-1sr-1")

_FACTORS = {
    **{f"mW{form}": 1.0 for form in _PER_CM},
    **{f"W{form}": 1e3 for form in _PER_CM},
    # A metre holds a hundred centimetres, so a step of 1 cm⁻¹ is one of 100 m⁻¹.
    **{f"mW{form}": 1e2 for form in _PER_M},
    **{f"W{form}": 1e5 for form in _PER_M},
}

_PLAIN = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻−", "0123456789--", " .·*^_{}")  # noqa: RUF001


def radiance_factor(units: str) -> float | None:
    """Return what to multiply radiances in these units by, or None if they are not clear.

    >>> radiance_factor("mW/m^2/sr/cm^-1"), radiance_factor("W m-2 sr-1 (m-1)-1")
    (1.0, 100000.0)
    >>> radiance_factor("K") is None
    True
    """
    return _FACTORS.get(units.translate(_PLAIN))


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
"""Absorption bands, by where they begin."""

WINDOWS = (
    Region(WINDOW, 770.0, 980.0),
    Region(WINDOW, 1080.0, 1200.0),
    Region(WINDOW, 2400.0, 2700.0),
)
"""What is left between bands."""

GASES = tuple(dict.fromkeys(band.gas for band in ABSORPTION_BANDS))


def absorbers(wavenumber: Array) -> list[str]:
    """Return the gases in whose bands wavenumbers (n,) lie, with a space between; or "window".

    >>> absorbers(np.array([700.0, 900.0, 1300.0]))
    ['CO2', 'window', 'H2O CH4 N2O']
    """
    found: list[list[str]] = [[] for _ in wavenumber]
    for band in ABSORPTION_BANDS:
        for index in np.flatnonzero(band.holds(wavenumber)):
            found[index].append(band.gas)
    return [" ".join(gases) or WINDOW for gases in found]
