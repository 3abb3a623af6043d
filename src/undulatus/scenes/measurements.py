"""What spectra measure: the names of measurements, their units, and whether values fit them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.scenes.blackbody import brightness_temperature
from undulatus.scenes.channels import WAVENUMBERS, channel_order
from undulatus.scenes.radiance_units import RADIANCE_UNITS, radiance_factor

Array = npt.NDArray[Any]

RADIANCE, TEMPERATURE, SCORES = MEASUREMENTS = ("radiance", "brightness_temperature", "scores")
NOISE = "noise"
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
    due = "K" if array.name == TEMPERATURE else RADIANCE_UNITS
    units = array.attrs.get("units")
    if units is None:
        return [
            f"{array.name} has no units, where {due} is due: say so, if it is "
            f'(spectra["{array.name}"].attrs["units"] = "{due}").'
        ]
    if _factor(array) is not None:
        return []
    said = f"{array.name} is in {units!r}, where {due} is due"
    if array.name == TEMPERATURE and str(units) in _CELSIUS:
        return [f"{said}: add 273.15 and set its units."]
    if array.name == NOISE and str(units) in _KELVIN:
        return [
            f"{said}: multiply it by undulatus.scenes.blackbody.radiance_slope at the scene "
            f"temperature it holds for (280 K, by custom)."
        ]
    return [
        f"{said}. If that is what they are, spell it so; if not, convert them. Spellings that are "
        f"understood are listed in undulatus.scenes.radiance_units."
    ]


def _factor(array: xr.DataArray) -> float | None:
    units = str(array.attrs.get("units"))
    if array.name == TEMPERATURE:
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
    if name == TEMPERATURE:
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
    elif array.name == TEMPERATURE:
        attrs["units"] = "K"
    return values.where(np.isfinite(values)).assign_attrs(attrs)
