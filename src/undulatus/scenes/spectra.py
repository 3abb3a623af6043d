"""What spectra measure: the names of measurements, their units, and whether values fit them.

What spectra are: an xarray Dataset of a sounder's channels, checked before it is used.

Spectra have dims (sample, channel), the coordinate ``wavenumber`` (channel) from 645 to 2760 cm⁻¹
by 0.25, and one measurement:

- ``radiance``, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹; other units of spectral radiance are converted where their
  spelling leaves no doubt (:mod:`undulatus.scenes.channels` lists the spellings);
- or ``brightness_temperature``, K;
- or ``scores`` (sample, component), principal components as EUMETSAT sends them: 90, 120 and 90
  of the three bands, 300 in all. There are no channels then.

They may have ``noise`` (channel), each channel's standard deviation in units of radiance, and

- labels: ``cloud_class`` (0 clear, 1 partly cloudy low, 2 partly cloudy high, 3 cloudy) and
  ``cloudy`` (0 or 1), which follows from the class if it is not there;
- strata: ``surface_type`` (1 to 18), ``climate_zone`` (1 to 5), ``season`` (1 to 4), ``day`` (0
  or 1); in these and the labels, 255 is missing;
- ``latitude``, ``longitude`` and ``time``, each (sample).

A value that is not finite is a missing one, which is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from zarr.errors import BaseZarrError

from undulatus.errors import SceneError
from undulatus.scenes.channels import (
    CHANNEL_SPACING,
    CHANNELS,
    FIRST_WAVENUMBER,
    LAST_WAVENUMBER,
    RADIANCE_UNITS,
    WAVENUMBER_ATTRIBUTES,
    WAVENUMBERS,
    channel_order,
    channel_problems,
    radiance_factor,
)
from undulatus.scenes.files import iasi_native
from undulatus.scenes.radiometry import brightness_temperature
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]

RADIANCE, BRIGHTNESS_TEMPERATURE, SCORES = MEASUREMENTS = (
    "radiance",
    "brightness_temperature",
    "scores",
)

NOISE = "noise"

CLOUDY, CLOUD_CLASS = "cloudy", "cloud_class"
"""Labels: cloud or none, and the four classes it follows from."""

CLOUD_AMOUNT = "effective_cloud_amount"
"""Cloud fraction times emissivity: the truth, known for twins alone."""

_KELVIN = ("K", "kelvin", "Kelvin")

_CELSIUS = ("C", "degC", "°C", "celsius", "Celsius", "deg_C", "degree_Celsius", "degrees_Celsius")

_WINDOW = slice(620, 1421, 20)
"""Channels from 800 to 1000 cm⁻¹, where air is clear ..."""

_PLAUSIBLE = (185.0, 345.0)
"""... and the median brightness temperature of any place on Earth lies between these, K."""

_GLIMPSED = 64

_OTHER_UNITS = {
    1e5: "W m-2 sr-1 (m-1)-1",
    1e3: "W m-2 sr-1 (cm-1)-1",
    1e-3: "µW m-2 sr-1 (cm-1)-1",
    1e-5: "radiances converted once already",
}


def units_problems(array: xr.DataArray) -> list[str]:
    """Say if a measurement's units are not told, or not those due."""
    due = "K" if array.name == BRIGHTNESS_TEMPERATURE else RADIANCE_UNITS
    units = array.attrs.get("units")
    if units is None:
        return [
            f"{array.name} has no units, where {due} is due: say so, if it is "
            f'(spectra["{array.name}"].attrs["units"] = "{due}").'
        ]
    if _factor(array) is not None:
        return []
    said = f"{array.name} is in {units!r}, where {due} is due"
    if array.name == BRIGHTNESS_TEMPERATURE and str(units) in _CELSIUS:
        return [f"{said}: add 273.15 and set its units."]
    if array.name == NOISE and str(units) in _KELVIN:
        return [
            f"{said}: multiply it by undulatus.scenes.radiometry.radiance_slope at the scene "
            f"temperature it holds for (280 K, by custom)."
        ]
    return [
        f"{said}. If that is what they are, spell it so; if not, convert them. Spellings that are "
        f"understood are listed in undulatus.scenes.channels."
    ]


def _factor(array: xr.DataArray) -> float | None:
    units = str(array.attrs.get("units"))
    if array.name == BRIGHTNESS_TEMPERATURE:
        return 1.0 if units in _KELVIN else None
    return radiance_factor(units)


def noise_problems(noise: xr.DataArray) -> list[str]:
    """Say what is wrong with the noise of channels."""
    if noise.dims != ("channel",):
        return [f"noise has dims {noise.dims}, where (channel) is due: one value a channel."]
    units = units_problems(noise)
    if units:
        return units
    if not (noise.values > 0.0).all():
        return ["noise has values that are not above nought: give every channel's, or none."]
    return []


def value_problems(spectra: xr.Dataset, name: str) -> list[str]:
    """Say if radiances or temperatures do not fit their units, from 64 spectra amid the others."""
    order = channel_order(spectra["wavenumber"].values)[_WINDOW]
    middle = spectra.sizes["sample"] // 2
    some = slice(max(0, middle - _GLIMPSED // 2), middle + _GLIMPSED // 2)
    array = spectra[name].isel(sample=some, channel=order).transpose("sample", "channel")
    values = array.values.astype(np.float64)
    if not np.isfinite(values).any():
        return []
    said = (
        f"{name} says {array.attrs['units']}, but its values lie around "
        f"{np.nanmedian(values):.3g} at 800 to 1000 per cm"
    )
    if name == BRIGHTNESS_TEMPERATURE:
        return _temperature_problems(values, said)
    return _radiance_problems(values * (_factor(array) or 1.0), said)


def _temperature_problems(values: Array, said: str) -> list[str]:
    middle = float(np.nanmedian(values))
    if _is_plausible(middle):
        return []
    if _is_plausible(middle + 273.15):
        return [f"{said}: they look like degrees Celsius. Add 273.15."]
    return [f"{said}: they are not kelvin. Are they radiances? Then name them so."]


def _radiance_problems(values: Array, said: str) -> list[str]:
    if np.nanmax(values) <= 0.0:
        return [
            f"{said}, and none is above nought. Was a mean subtracted, or a sign lost? Give the "
            f"radiances themselves."
        ]
    temperatures = {
        factor: np.nanmedian(brightness_temperature(WAVENUMBERS[_WINDOW], values * factor))
        for factor in (1.0, *_OTHER_UNITS)
    }
    fitting = [factor for factor, kelvin in temperatures.items() if _is_plausible(kelvin)]
    if 1.0 in fitting:
        return []
    if fitting:
        return [f"{said}: they look like {_OTHER_UNITS[fitting[0]]}. Convert them, or say so."]
    return [f"{said}: no radiance of the Earth is such. Are they counts? Calibrate them first."]


def _is_plausible(temperature: float) -> bool:
    return bool(_PLAUSIBLE[0] < temperature < _PLAUSIBLE[1])


def in_units(array: xr.DataArray) -> xr.DataArray:
    """Return a measurement or noise in canonical units and float32, missing where not finite."""
    factor = 1.0 if array.name == SCORES else _factor(array)
    values = array.astype(np.float32)
    if factor not in (1.0, None):
        values = values * np.float32(factor)
    attrs = dict(array.attrs)
    if array.name in (RADIANCE, NOISE):
        attrs["units"] = RADIANCE_UNITS
    elif array.name == BRIGHTNESS_TEMPERATURE:
        attrs["units"] = "K"
    return values.where(np.isfinite(values)).assign_attrs(attrs)


__all__ = [
    "CHANNELS",
    "CHANNEL_SPACING",
    "CODES",
    "COMPONENTS",
    "FIRST_WAVENUMBER",
    "LAST_WAVENUMBER",
    "MEASUREMENTS",
    "RADIANCE_UNITS",
    "WAVENUMBERS",
    "check_spectra",
    "is_spectra",
    "measurement",
    "open_spectra",
]

COMPONENTS = (90, 120, 90)
"""Principal components of each band, as EUMETSAT sends them since 2021."""

CODES = {
    CLOUD_CLASS: range(4),
    CLOUDY: range(2),
    "surface_type": range(1, 19),
    "climate_zone": range(1, 6),
    "season": range(1, 5),
    "day": range(2),
}
"""Values of labels and strata."""

ROWS = 512
"""Spectra in a chunk, where a file has no chunks of its own: 17 MB."""


def check_spectra(spectra: xr.Dataset) -> xr.Dataset:
    """Return the spectra in order, or raise a :class:`SceneError` that lists all they lack.

    The result has its measurement in float32 and in canonical units, with dims (sample, channel)
    and channels by increasing wavenumber, labels and strata in uint8, and ``cloudy`` wherever
    there is ``cloud_class``. What is lazy stays so: only 64 spectra are looked at, and the codes.
    """
    if not isinstance(spectra, xr.Dataset):
        raise SceneError(
            f"Spectra are an xarray Dataset with dims (sample, channel), but a "
            f"{type(spectra).__name__} was given. A DataArray of radiances becomes one by "
            f'array.to_dataset(name="radiance").'
        )
    found = [name for name in MEASUREMENTS if name in spectra]
    if len(found) != 1:
        problems = [_not_one_measurement(spectra, found)]
    elif found[0] == SCORES:
        problems = _scores_problems(spectra[SCORES])
    else:
        problems = _spectra_problems(spectra, found[0])
    for name in CODES:
        if name in spectra:
            problems += _code_problems(spectra[name], name)
    if problems:
        raise SceneError("The spectra cannot be used:\n" + "\n".join(f"- {p}" for p in problems))
    return _in_order(spectra, found[0])


def is_spectra(dataset: xr.Dataset) -> bool:
    """Say if a dataset is meant to hold spectra, right or wrong, rather than an image."""
    return "sample" in dataset.dims or any(name in dataset for name in MEASUREMENTS)


def measurement(spectra: xr.Dataset) -> str:
    """Return which of ``MEASUREMENTS`` checked spectra hold."""
    return next(name for name in MEASUREMENTS if name in spectra)


def _not_one_measurement(spectra: xr.Dataset, found: list[str]) -> str:
    if found:
        return (
            f"{' and '.join(found)} are there, where one is due: leave the others out "
            f"(spectra.drop_vars(...))."
        )
    return (
        f"missing: {RADIANCE}, {BRIGHTNESS_TEMPERATURE} or {SCORES}. Found: "
        f"{', '.join(map(str, spectra.data_vars)) or 'none'}. Rename what you have "
        f"(spectra.rename(...))."
    )


def _scores_problems(scores: xr.DataArray) -> list[str]:
    if set(scores.dims) != {"sample", "component"}:
        return [_dims_problem(scores, "component")]
    due, count = sum(COMPONENTS), scores.sizes["component"]
    if count != due:
        bands = " + ".join(map(str, COMPONENTS))
        return [
            f"{SCORES} has {count} components, where {due} are due ({bands} of the three bands): "
            f"take the global ones of every band and leave local ones out "
            f"(spectra.isel(component=...))."
        ]
    return _emptiness(scores)


def _spectra_problems(spectra: xr.Dataset, name: str) -> list[str]:
    array = spectra[name]
    problems = units_problems(array)
    if set(array.dims) != {"sample", "channel"}:
        return [_dims_problem(array, "channel"), *problems]
    samples, channels = array.sizes["sample"], array.sizes["channel"]
    if samples == CHANNELS != channels:
        return [
            f"{name} has {samples} samples and {channels} channels: the names of its dims are "
            f"exchanged (spectra.rename(sample='channel', channel='sample')).",
            *problems,
        ]
    problems += channel_problems(spectra) + _emptiness(array)
    if not problems:
        problems += value_problems(spectra, name)
    if NOISE in spectra:
        problems += noise_problems(spectra[NOISE])
    return problems


def _dims_problem(array: xr.DataArray, second: str) -> str:
    remedy = "spectra.rename_dims(...), or spectra.stack(sample=[...]) of several"
    if "wavenumber" in array.dims:
        remedy = f'spectra.swap_dims(wavenumber="{second}")'
    return f"{array.name} has dims {array.dims}, where (sample, {second}) is due: {remedy}."


def _emptiness(array: xr.DataArray) -> list[str]:
    if array.sizes["sample"]:
        return []
    return [f"{array.name} has no samples: choose others, or another file."]


def _code_problems(array: xr.DataArray, name: str) -> list[str]:
    if array.dims != ("sample",):
        return [f"{name} has dims {array.dims}, where (sample) is due: one code a sample."]
    due = CODES[name]
    if array.dtype.kind not in "fiub":
        return [f"{name} is of type {array.dtype}, where {due[0]} to {due[-1]} are due: code it."]
    values = np.unique(array.values.astype(np.float64))
    wrong = values[~np.isin(values, [*due, MISSING_CODE]) & np.isfinite(values)]
    if not len(wrong):
        return []
    return [
        f"{name} has values such as {wrong[0]:g}, where {due[0]} to {due[-1]} are due, and "
        f"{MISSING_CODE} for missing: recode it."
    ]


def _in_order(spectra: xr.Dataset, name: str) -> xr.Dataset:
    ordered = spectra.transpose("sample", "component" if name == SCORES else "channel", ...)
    if name != SCORES:
        order = channel_order(spectra["wavenumber"].values)
        if not np.array_equal(order, np.arange(spectra.sizes["channel"])):
            ordered = ordered.isel(channel=order)
        exact = ("channel", WAVENUMBERS, dict(WAVENUMBER_ATTRIBUTES))
        ordered = ordered.assign_coords(wavenumber=exact)
    for measured in (name, NOISE):
        if measured in ordered:
            ordered[measured] = in_units(ordered[measured])
    for code in CODES:
        if code in ordered:
            ordered[code] = _as_codes(ordered[code])
    if CLOUD_CLASS in ordered and CLOUDY not in ordered:
        classes = ordered[CLOUD_CLASS]
        cloudy = (classes > 0).where(classes != MISSING_CODE, MISSING_CODE).astype(np.uint8)
        ordered[CLOUDY] = cloudy.assign_attrs(flag_values=[0, 1], flag_meanings="clear cloudy")
    return ordered


def _as_codes(array: xr.DataArray) -> xr.DataArray:
    # Codes with a fill value are read from files as floats, and missing.
    values = array.where(np.isfinite(array), MISSING_CODE) if array.dtype.kind == "f" else array
    return values.astype(np.uint8).assign_attrs(array.attrs)


def open_spectra(source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> xr.Dataset:
    """Open spectra lazily: Zarr, netCDF, or IASI Level 1C as EUMETSAT sends it.

    Parameters
    ----------
    source : path or list of paths
        ``.zarr`` folders and ``.nc`` files in the form that :func:`check_spectra` describes, or
        native files (``IASI_xxx_1C_...``), which are read through CODA if it is installed.
        Several are put together sample by sample.
    """
    if isinstance(source, (str, os.PathLike)):
        return _open_one(Path(source))
    paths = [Path(path) for path in source]
    if not paths:
        raise SceneError("No file was given to read spectra from. Give a path, or a list of them.")
    parts = [_open_one(path) for path in paths]
    if len(parts) == 1:
        return parts[0]
    try:
        return xr.concat(
            parts, "sample", data_vars="minimal", coords="minimal", compat="equals", join="exact",
            combine_attrs="drop_conflicts",
        )  # fmt: skip
    except (ValueError, KeyError) as error:
        names = ", ".join(path.name for path in paths)
        raise SceneError(
            f"{names} do not fit together: {error}. Open them one by one, and mend what differs."
        ) from error


def _open_one(path: Path) -> xr.Dataset:
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    if path.name.startswith(iasi_native.PREFIX) or path.suffix == ".nat":
        return iasi_native.open_native(path)
    how: dict[str, Any] = {"engine": "netcdf4"}
    if path.suffix == ".zarr" or (path / "zarr.json").exists():
        how = {"engine": "zarr", "consolidated": False}
    elif path.suffix not in (".nc", ".nc4"):
        raise SceneError(
            f"{path} has a name that tells no format: spectra are read from .zarr, .nc, and "
            f"native files named {iasi_native.PREFIX}_... Rename or convert it."
        )
    try:
        opened = xr.open_dataset(path, chunks=None, decode_coords="all", **how)
    except (OSError, ValueError, KeyError, BaseZarrError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    return opened.chunk(_chunks(opened))


def _chunks(opened: xr.Dataset) -> dict[Any, int]:
    """Return how many rows to read at once: as many as the file keeps together, or 512."""
    if not opened.data_vars:
        return {}
    largest = max(opened.data_vars.values(), key=lambda array: array.size)
    rows = largest.dims[0] if largest.dims else "sample"
    return {rows: largest.encoding.get("preferred_chunks", {}).get(rows, ROWS)}
