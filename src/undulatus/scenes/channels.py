"""The channels of IASI: where they are, and what is wrong with wavenumbers that are not theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

Array = npt.NDArray[Any]

CHANNELS = 8461
FIRST, LAST, SPACING = 645.0, 2760.0, 0.25
"""Cm⁻¹."""
WAVENUMBERS = FIRST + SPACING * np.arange(CHANNELS)
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
    nearest = np.round((wavenumber - FIRST) / SPACING)
    there = np.abs(wavenumber - FIRST - SPACING * nearest) <= _TOLERANCE
    there &= (nearest >= 0) & (nearest < CHANNELS)
    order = np.full(CHANNELS, -1)
    order[nearest[there].astype(int)] = np.flatnonzero(there)
    return order


def channel_problems(spectra: xr.Dataset) -> list[str]:
    """Say what is wrong with the coordinate ``wavenumber`` (channel) of spectra, and the remedy.

    More channels than there are, in any order, are no problem.
    """
    due = f"{FIRST:g} to {LAST:g} per cm by {SPACING:g}"
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
    nearest = np.round((values - FIRST) / SPACING)
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
    due = f"{FIRST:g} to {LAST:g} per cm"
    with np.errstate(divide="ignore"):
        inverse = 1.0 / values
    mistakes = {
        "is per metre, it seems: divide it by 100": values / 100.0,
        "holds wavelengths in µm, it seems: take 10000 / wavelength": 1e4 * inverse,
        "holds wavelengths in nm, it seems: take 10000000 / wavelength": 1e7 * inverse,
    }
    for says, mended in mistakes.items():
        inside = np.mean((mended > FIRST - 1.0) & (mended < LAST + 1.0))
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
    return f"{run}, where {due} by {SPACING:g} is due: resample the spectra to these channels."


def _absent(order: Array) -> str:
    missing = np.flatnonzero(order < 0)
    runs = np.split(missing, np.flatnonzero(np.diff(missing) > 1) + 1)
    named = [f"{WAVENUMBERS[run[0]]:.2f}-{WAVENUMBERS[run[-1]]:.2f}" for run in runs]
    more = f" and {len(runs) - _RANGES_NAMED} more ranges" if len(runs) > _RANGES_NAMED else ""
    return (
        f"missing: {len(missing)} of {CHANNELS} channels, at {', '.join(named[:_RANGES_NAMED])}"
        f"{more} per cm"
    )
