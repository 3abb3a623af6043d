"""What spectra are: an xarray Dataset of a sounder's channels, checked before it is used.

Spectra have dims (sample, channel), the coordinate ``wavenumber`` (channel) from 645 to 2760 cm⁻¹
in steps of 0.25, and one measurement. Other channels than all of IASI's, of another instrument or
a selection, are accepted if the attribute ``channel_set`` of the dataset names them, such as
``"HIRS, 19 channels"``; each then has a wavenumber of its own. Measurements are:

- ``radiance``, mW m⁻² sr⁻¹ (cm⁻¹)⁻¹; other units of spectral radiance are converted where their
  spelling is unambiguous (:mod:`undulatus.scenes.channels` lists the spellings);
- or ``brightness_temperature``, K;
- or ``scores`` (sample, component), principal components as EUMETSAT sends them: 90, 120 and 90
  of the three bands, 300 in all. There are no channels then.

They may have ``noise`` (channel), each channel's standard deviation in units of radiance, and

- labels: ``cloud_class`` (0 clear, 1 partly cloudy low, 2 partly cloudy high, 3 cloudy) and
  ``cloudy`` (0 or 1), which is derived from the class if it is absent;
- strata: ``surface_type`` (1 to 18), ``climate_zone`` (1 to 5), ``season`` (1 to 4), ``day`` (0
  or 1); in these and the labels, 255 is missing;
- ``latitude``, ``longitude`` and ``time``, each (sample);
- ``line``, ``step`` (0 to 29) and ``pixel`` (0 to 3), each (sample): the place in a swath, to
  which :func:`as_swath` brings spectra back.

Values that are not finite are missing, which is allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.channels import (
    CHANNELS,
    RADIANCE_UNITS,
    WAVENUMBER_ATTRIBUTES,
    WAVENUMBERS,
    channel_order,
    channel_problems,
    radiance_factor,
)
from undulatus.scenes.radiometry import brightness_temperature
from undulatus.scenes.scene import CELSIUS, KELVIN, MISSING_CODE

Array = npt.NDArray[Any]

RADIANCE, BRIGHTNESS_TEMPERATURE, SCORES = "radiance", "brightness_temperature", "scores"

MEASUREMENTS = (RADIANCE, BRIGHTNESS_TEMPERATURE, SCORES)

NOISE = "noise"

CHANNEL_SET = "channel_set"
"""The attribute of a dataset that names its channels, if they are not IASI's 8,461."""

COMPONENTS = (90, 120, 90)
"""Principal components of each band, as EUMETSAT sends them since 2021."""

CLOUDY, CLOUD_CLASS = "cloudy", "cloud_class"
"""The label that classifiers learn from, and the four classes it is derived from."""

CLOUD_AMOUNT = "effective_cloud_amount"
"""The true cloud fraction times emissivity, which only simulators have."""

FLAGGED_ATTRIBUTES = {
    "flag_values": np.array([0, 1], np.uint8),
    "flag_meanings": "good flagged_as_bad",
}
"""Of the variable ``flagged``: which spectra their producer says are bad."""

STEPS, PIXELS = 30, 4
"""Steps of a scan line of IASI, and pixels of a step."""

CODES = {
    CLOUD_CLASS: range(4),
    CLOUDY: range(2),
    "surface_type": range(1, 19),
    "climate_zone": range(1, 6),
    "season": range(1, 5),
    "day": range(2),
}
"""Values of labels and strata."""

_WINDOW, _WINDOW_CHANNELS = (800.0, 1000.0), 41
"""Wavenumbers where the air is transparent, cm⁻¹, and how many channels there are read ..."""

_PLAUSIBLE = (185.0, 345.0)
"""... and median brightness temperatures lie between these anywhere on Earth, K."""

_SPECTRA_READ = 64
"""Spectra read to see whether values fit their units."""

_OTHER_UNITS = {
    1e5: "W m-2 sr-1 (m-1)-1",
    1e3: "W m-2 sr-1 (cm-1)-1",
    1e-3: "µW m-2 sr-1 (cm-1)-1",
    1e-5: "radiances that were converted already",
}
"""Units that radiances may really be in, by their factor to ours."""


def check_spectra(spectra: xr.Dataset) -> xr.Dataset:
    """Return spectra in standard form, or raise a :class:`SceneError` that lists every problem.

    The result has its measurement in float32 and in canonical units, with dims (sample, channel)
    and channels by increasing wavenumber, labels and strata in uint8, and ``cloudy`` wherever
    there is ``cloud_class``. Lazy data stay lazy: only the codes and 64 spectra are read.
    """
    if not isinstance(spectra, xr.Dataset):
        raise SceneError(
            f"Spectra are an xarray Dataset with dims (sample, channel), but a "
            f"{type(spectra).__name__} was given. Convert a DataArray of radiances by "
            f'array.to_dataset(name="radiance").'
        )
    present = [name for name in MEASUREMENTS if name in spectra]
    if len(present) != 1:
        problems = [_not_one_measurement(spectra, present)]
    elif present[0] == SCORES:
        problems = _scores_problems(spectra[SCORES])
    else:
        problems = _channel_data_problems(spectra, present[0])
    for name in CODES:
        if name in spectra:
            problems += _code_problems(spectra[name], name)
    if problems:
        raise SceneError("The spectra cannot be used:\n" + "\n".join(f"- {p}" for p in problems))
    return _in_standard_form(spectra, present[0])


def is_spectra(dataset: xr.Dataset) -> bool:
    """Return whether a dataset is meant to hold spectra, valid or not, rather than an image."""
    return "sample" in dataset.dims or any(name in dataset for name in MEASUREMENTS)


def as_swath(spectra: xr.Dataset) -> xr.Dataset:
    """Return spectra of whole scan lines with dims (line, step, pixel) in place of ``sample``.

    Samples must be in the order in which IASI scans, as files are opened; lines of several files
    follow one another, and ``line`` is the number of a line in its file. Lazy data stay lazy.

    Examples
    --------
    >>> place = np.arange(240)
    >>> spectra = xr.Dataset(
    ...     {"latitude": ("sample", np.repeat([10.0, 20.0], 120))},
    ...     {
    ...         "line": ("sample", place // 120),
    ...         "step": ("sample", place // 4 % 30),
    ...         "pixel": ("sample", place % 4),
    ...     },
    ... )
    >>> as_swath(spectra)["latitude"].shape
    (2, 30, 4)
    """
    absent = [name for name in ("line", "step", "pixel") if name not in spectra.coords]
    if absent:
        raise SceneError(
            f"The spectra have no {' and '.join(absent)}, so their places in a swath are not "
            f"known. Open them from IASI's native files."
        )
    place = spectra["step"].values.astype(np.int64) * PIXELS + spectra["pixel"].values
    whole = STEPS * PIXELS
    if len(place) % whole or (place.reshape(-1, whole) != np.arange(whole)).any():
        raise SceneError(
            f"The spectra are not whole scan lines of {whole}, in the order of the scan. Select "
            f"lines, not spectra (in Python spectra.isel(sample=spectra['line'] < 10))."
        )
    dims = ("line", "step", "pixel")
    swath = {
        name: (array.dims, array.data, array.attrs)
        if "sample" not in array.dims
        else _reshaped(array, dims)
        for name, array in spectra.variables.items()
        if name not in dims
    }
    coords = {name: swath.pop(name) for name in spectra.coords if name in swath}
    coords["line"] = ("line", spectra["line"].values[::whole], dict(spectra["line"].attrs))
    coords["step"] = ("step", np.arange(STEPS), {})
    coords["pixel"] = ("pixel", np.arange(PIXELS), {})
    return xr.Dataset(swath, coords, spectra.attrs)


def _reshaped(array: xr.Variable, dims: tuple[str, ...]) -> tuple[Any, ...]:
    first = array.transpose("sample", ...)
    shape = (-1, STEPS, PIXELS, *first.shape[1:])
    return (*dims, *first.dims[1:]), first.data.reshape(shape), array.attrs


def measurement(spectra: xr.Dataset) -> str:
    """Return which of ``MEASUREMENTS`` checked spectra hold."""
    return next(name for name in MEASUREMENTS if name in spectra)


def _in_standard_form(spectra: xr.Dataset, name: str) -> xr.Dataset:
    ordered = spectra.transpose("sample", "component" if name == SCORES else "channel", ...)
    if name != SCORES:
        order = _channel_order(spectra)
        if not np.array_equal(order, np.arange(spectra.sizes["channel"])):
            ordered = ordered.isel(channel=order)
        if CHANNEL_SET not in spectra.attrs:
            exact = ("channel", WAVENUMBERS, dict(WAVENUMBER_ATTRIBUTES))
            ordered = ordered.assign_coords(wavenumber=exact)
    for measured in (name, NOISE):
        if measured in ordered:
            ordered[measured] = _in_canonical_units(ordered[measured])
    for code in CODES:
        if code in ordered:
            ordered[code] = _as_codes(ordered[code])
    if CLOUD_CLASS in ordered and CLOUDY not in ordered:
        classes = ordered[CLOUD_CLASS]
        cloudy = (classes > 0).where(classes != MISSING_CODE, MISSING_CODE).astype(np.uint8)
        ordered[CLOUDY] = cloudy.assign_attrs(flag_values=[0, 1], flag_meanings="clear cloudy")
    return ordered


def _channel_order(spectra: xr.Dataset) -> Array:
    """Return the channels by increasing wavenumber."""
    values = spectra["wavenumber"].values
    return np.argsort(values) if CHANNEL_SET in spectra.attrs else channel_order(values)


def _in_canonical_units(array: xr.DataArray) -> xr.DataArray:
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


def _factor(array: xr.DataArray) -> float | None:
    units = str(array.attrs.get("units"))
    if array.name == BRIGHTNESS_TEMPERATURE:
        return 1.0 if units in KELVIN else None
    return radiance_factor(units)


def _as_codes(array: xr.DataArray) -> xr.DataArray:
    # xarray reads codes with a fill value as floats, with NaN where they are missing.
    values = array.where(np.isfinite(array), MISSING_CODE) if array.dtype.kind == "f" else array
    return values.astype(np.uint8).assign_attrs(array.attrs)


def _not_one_measurement(spectra: xr.Dataset, present: list[str]) -> str:
    if present:
        return (
            f"found {' and '.join(present)}; expected one measurement: leave the others out "
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
    count = scores.sizes["component"]
    if count != sum(COMPONENTS):
        bands = " + ".join(map(str, COMPONENTS))
        return [
            f"{SCORES} has {count} components; expected {sum(COMPONENTS)} ({bands} of the three "
            f"bands): take the global ones of every band and leave local ones out "
            f"(spectra.isel(component=...))."
        ]
    return _empty_problems(scores)


def _channel_data_problems(spectra: xr.Dataset, name: str) -> list[str]:
    array = spectra[name]
    problems = _units_problems(array)
    if set(array.dims) != {"sample", "channel"}:
        return [_dims_problem(array, "channel"), *problems]
    samples, channels = array.sizes["sample"], array.sizes["channel"]
    is_other_set = CHANNEL_SET in spectra.attrs
    if samples == CHANNELS != channels and not is_other_set:
        return [
            f"{name} has {samples} samples and {channels} channels: its dims are swapped "
            f"(spectra.rename(sample='channel', channel='sample')).",
            *problems,
        ]
    problems += _other_set_problems(spectra) if is_other_set else channel_problems(spectra)
    problems += _empty_problems(array)
    if not problems:
        problems += _value_problems(spectra, name)
    if NOISE in spectra:
        problems += _noise_problems(spectra[NOISE])
    return problems


def _other_set_problems(spectra: xr.Dataset) -> list[str]:
    """List what is wrong with the wavenumbers of channels that are not all of IASI's."""
    named = spectra.attrs[CHANNEL_SET]
    values = spectra["wavenumber"].values if "wavenumber" in spectra.variables else np.empty(0)
    if values.shape != (spectra.sizes["channel"],) or values.dtype.kind not in "fiu":
        return [
            f"the {spectra.sizes['channel']} channels of {named} have no wavenumber each: assign "
            f"it in cm⁻¹ (spectra.assign_coords(wavenumber=('channel', ...)))."
        ]
    if not (np.isfinite(values) & (values > 0.0)).all() or len(np.unique(values)) < len(values):
        return [
            f"wavenumber of {named} must be a positive number of cm⁻¹, another for every channel; "
            f"it runs from {values.min():g} to {values.max():g}: correct it, or drop channels."
        ]
    return []


def _dims_problem(array: xr.DataArray, second: str) -> str:
    remedy = "spectra.rename_dims(...), or spectra.stack(sample=[...]) for several dims"
    if "wavenumber" in array.dims:
        remedy = f'spectra.swap_dims(wavenumber="{second}")'
    return f"{array.name} has dims {array.dims}; expected (sample, {second}): {remedy}."


def _empty_problems(array: xr.DataArray) -> list[str]:
    if array.sizes["sample"]:
        return []
    return [f"{array.name} has no samples: select others, or use another file."]


def _units_problems(array: xr.DataArray) -> list[str]:
    expected = "K" if array.name == BRIGHTNESS_TEMPERATURE else RADIANCE_UNITS
    units = array.attrs.get("units")
    if units is None:
        return [
            f"{array.name} has no units; expected {expected}: if they are right, say so "
            f'(spectra["{array.name}"].attrs["units"] = "{expected}").'
        ]
    if _factor(array) is not None:
        return []
    problem = f"{array.name} is in {units!r}; expected {expected}"
    if array.name == BRIGHTNESS_TEMPERATURE and str(units) in CELSIUS:
        return [f"{problem}: add 273.15 and set its units."]
    if array.name == NOISE and str(units) in KELVIN:
        return [
            f"{problem}: multiply it by undulatus.scenes.radiometry.radiance_slope at the scene "
            f"temperature it refers to (usually 280 K)."
        ]
    return [
        f"{problem}. If the values are right, spell the units so; if not, convert them. "
        f"undulatus.scenes.channels lists the spellings that are understood."
    ]


def _noise_problems(noise: xr.DataArray) -> list[str]:
    if noise.dims != ("channel",):
        return [f"noise has dims {noise.dims}; expected (channel): one value per channel."]
    problems = _units_problems(noise)
    if problems:
        return problems
    if not (noise.values > 0.0).all():
        return ["noise has values that are not positive: give it for every channel, or drop it."]
    return []


def _value_problems(spectra: xr.Dataset, name: str) -> list[str]:
    """List values that do not fit their units, judged by 64 spectra from the middle."""
    order = _channel_order(spectra)
    wavenumber = spectra["wavenumber"].values[order]
    inside = np.flatnonzero((wavenumber >= _WINDOW[0]) & (wavenumber <= _WINDOW[1]))
    inside = inside[:: max(1, len(inside) // _WINDOW_CHANNELS)]
    if not len(inside):
        return []
    middle = spectra.sizes["sample"] // 2
    some = slice(max(0, middle - _SPECTRA_READ // 2), middle + _SPECTRA_READ // 2)
    array = spectra[name].isel(sample=some, channel=order[inside])
    array = array.transpose("sample", "channel")
    values = array.values.astype(np.float64)
    if not np.isfinite(values).any():
        return []
    problem = (
        f"{name} says {array.attrs['units']}, but its values lie around "
        f"{np.nanmedian(values):.3g} at 800 to 1000 per cm"
    )
    if name == BRIGHTNESS_TEMPERATURE:
        return _temperature_problems(values, problem)
    return _radiance_problems(wavenumber[inside], values * (_factor(array) or 1.0), problem)


def _temperature_problems(values: Array, problem: str) -> list[str]:
    middle = float(np.nanmedian(values))
    if _is_plausible(middle):
        return []
    if _is_plausible(middle + 273.15):
        return [f"{problem}: they look like degrees Celsius. Add 273.15."]
    return [f"{problem}: they are not kelvin. If they are radiances, rename them."]


def _radiance_problems(wavenumber: Array, values: Array, problem: str) -> list[str]:
    if np.nanmax(values) <= 0.0:
        return [
            f"{problem}, and none is positive. Was a mean subtracted, or a sign lost? Give the "
            f"radiances themselves."
        ]
    temperatures = {
        factor: np.nanmedian(brightness_temperature(wavenumber, values * factor))
        for factor in (1.0, *_OTHER_UNITS)
    }
    fitting = [factor for factor, kelvin in temperatures.items() if _is_plausible(kelvin)]
    if 1.0 in fitting:
        return []
    if fitting:
        return [
            f"{problem}: they look like {_OTHER_UNITS[fitting[0]]}. Convert them, or correct the "
            f"units."
        ]
    return [f"{problem}: the Earth has no such radiances. Are they counts? Calibrate them first."]


def _is_plausible(temperature: float) -> bool:
    return bool(_PLAUSIBLE[0] < temperature < _PLAUSIBLE[1])


def _code_problems(array: xr.DataArray, name: str) -> list[str]:
    if array.dims != ("sample",):
        return [f"{name} has dims {array.dims}; expected (sample): one code per sample."]
    codes = CODES[name]
    expected = f"expected {codes[0]} to {codes[-1]}"
    if array.dtype.kind not in "fiub":
        return [f"{name} is of type {array.dtype}; {expected}: turn it into numbers."]
    values = np.unique(array.values.astype(np.float64))
    wrong = values[~np.isin(values, [*codes, MISSING_CODE]) & np.isfinite(values)]
    if not len(wrong):
        return []
    return [
        f"{name} has values such as {wrong[0]:g}; {expected}, and {MISSING_CODE} for missing: "
        f"recode it."
    ]
