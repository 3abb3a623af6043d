"""What a scene is: an xarray Dataset of named bands, checked before anything is made of it.

A scene has dims (time, y, x) or (y, x) and

- the bands of ``BANDS`` by satpy's names: reflectances in percent, divided by the cosine of
  the solar zenith angle and missing (NaN) at night; brightness temperatures in kelvin;
- ``time``, UTC, as a coordinate, or ``start_time`` in the attributes of a single acquisition;
- ``longitude`` and ``latitude``, or a pyresample ``area`` in the attributes, or
  ``solar_zenith_angle`` in degrees itself;
- where there is one, the Level-2 mask ``cloud_mask_l2`` (1 cloud, 0 clear, 255 missing), and
  ``land_mask`` (1 land, 0 water);
- in its attributes, where known, ``calibration_mode`` and ``platform_name``.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._daylight import NIGHT
from undulatus.errors import SceneError
from undulatus.scenes.illumination import solar_zenith_angle

Array = npt.NDArray[Any]

REFLECTANCE, TEMPERATURE = "reflectance", "brightness temperature"

UNITS = {REFLECTANCE: "%", TEMPERATURE: "K"}

_SPELLINGS = {"%": ("%", "percent", "per cent"), "K": ("K", "kelvin", "Kelvin")}

_CONVERTIBLE = {
    "%": ("1", "", "fraction", "none"),
    "K": ("C", "degC", "°C", "celsius", "Celsius", "deg_C", "degree_Celsius", "degrees_Celsius"),
}

_CALIBRATE = " Are they counts or radiances? Calibrate them first."

ANGLE = "solar_zenith_angle"

LEVEL2_MASK = "cloud_mask_l2"
"""The Level-2 cloud mask, which classifiers learn from."""

CLOUD_TRUTH = "cloud_truth"
"""The true mask, known for twins alone."""

DIMS = ("time", "y", "x")

MISSING_CODE = 255
"""The value of masks, labels and strata where nothing is known."""

_LONLAT_CHUNK = 1024

_WINDOW = 64

_ACQUISITIONS = 8


@dataclass(frozen=True)
class Band:
    """A band of a scene: its name, what it measures, and its centre in micrometres."""

    name: str
    quantity: str
    wavelength: float

    @property
    def units(self) -> str:
        """What values are in: percent or kelvin."""
        return UNITS[self.quantity]


BANDS = {
    band.name: band
    for band in (
        Band("VIS006", REFLECTANCE, 0.635),
        Band("VIS008", REFLECTANCE, 0.81),
        Band("IR_016", REFLECTANCE, 1.64),
        Band("IR_039", TEMPERATURE, 3.92),
        Band("IR_087", TEMPERATURE, 8.70),
        Band("IR_108", TEMPERATURE, 10.80),
        Band("IR_120", TEMPERATURE, 12.00),
    )
}


def check_scene(scene: xr.Dataset, bands: Iterable[str] = tuple(BANDS)) -> xr.Dataset:
    """Return the scene in order, or raise a :class:`SceneError` that lists all it lacks.

    The result has the bands in float32 with dims (time, y, x) or (y, x), night reflectances
    missing, and ``solar_zenith_angle`` in degrees. Nothing large is computed: a few small
    windows of the data are read to see whether the values fit their units.
    """
    if not isinstance(scene, xr.Dataset):
        raise SceneError(
            f"A scene is an xarray Dataset with one variable a band, but a "
            f"{type(scene).__name__} was given. A DataArray with a dimension of bands becomes one "
            f'by array.to_dataset(dim="bands").'
        )
    bands = tuple(bands)
    forms = {name: _form_problems(scene, name, bands) for name in bands if name in scene}
    sound = [name for name, found in forms.items() if not found]
    seen = _glimpse(scene, [*sound, *({ANGLE} & set(scene.variables))])
    problems = [
        *_missing_bands(scene, bands),
        *(problem for found in forms.values() for problem in found),
        *(problem for name in sound for problem in _value_problems(seen[name], BANDS[name])),
        *_sun_problems(scene, seen.get(ANGLE)),
    ]
    if problems:
        raise SceneError("The scene cannot be used:\n" + "\n".join(f"- {p}" for p in problems))
    return _in_order(scene, bands)


def _in_order(scene: xr.Dataset, bands: tuple[str, ...]) -> xr.Dataset:
    dims = tuple(dim for dim in DIMS if dim in scene[bands[0]].dims)
    ordered = scene.transpose(*dims, ...)
    angle = find_zenith(ordered)
    if set(dims) - set(angle.dims):
        angle = angle.broadcast_like(ordered[bands[0]])
    angle = angle.transpose(*dims)
    changed = {ANGLE: angle.astype(np.float32)}
    for name in bands:
        sun = [angle] if BANDS[name].quantity == REFLECTANCE else []
        changed[name] = xr.apply_ufunc(
            _tidy, ordered[name], *sun, dask="parallelized", output_dtypes=[np.float32]
        ).assign_attrs(ordered[name].attrs)
    return ordered.assign(changed)


def _tidy(values: Array, angle: Array | None = None) -> Array:
    """Return values in single precision, missing where not finite or, given an angle, at night."""
    values = values.astype(np.float32)
    there = np.isfinite(values)
    if angle is not None:
        # Some writers fill the night with zeros; a zero would be a black surface.
        there &= angle < NIGHT
    return np.where(there, values, np.float32(np.nan))


def _missing_bands(scene: xr.Dataset, bands: tuple[str, ...]) -> list[str]:
    missing = [name for name in bands if name not in scene]
    if not missing:
        return []
    return [
        f"missing: {', '.join(missing)}. Found: {', '.join(map(str, scene.data_vars)) or 'none'}. "
        f"Bands go by satpy's names: load them with undulatus.scenes.files.seviri.open_scene, "
        f"or rename yours (scene.rename(...))."
    ]


def _form_problems(scene: xr.Dataset, name: str, bands: tuple[str, ...]) -> list[str]:
    array, band = scene[name], BANDS[name]
    dims = set(array.dims)
    if not {"y", "x"} <= dims or dims - set(DIMS):
        return [
            f"{name} has dims {array.dims}, where (time, y, x) or (y, x) is due: "
            f"rename or select (scene.rename(...), scene.isel(...))."
        ]
    if "time" not in dims and any("time" in scene[b].dims for b in bands if b in scene):
        told = "but other bands have a time: give it one, or select one (scene.isel(time=...))."
        return [f"{name} has dims {array.dims}, {told}"]
    units = array.attrs.get("units")
    if units is None:
        return [
            f"{name} has no units, where {band.units} is due: say so, if it is "
            f'(scene["{name}"].attrs["units"] = "{band.units}").'
        ]
    if str(units) not in _SPELLINGS[band.units]:
        remedy = _conversion(band) if str(units) in _CONVERTIBLE[band.units] else _CALIBRATE
        return [f"{name} is in {units!r}, where {band.units} is due.{remedy}"]
    return []


def _conversion(band: Band) -> str:
    if band.quantity == REFLECTANCE:
        return f' Multiply it by 100 and set its units (scene["{band.name}"] * 100).'
    return f' Add 273.15 and set its units (scene["{band.name}"] + 273.15).'


def _value_problems(values: Array, band: Band) -> list[str]:
    """Say if values do not fit their units: fractions called percent, Celsius called kelvin."""
    values = values[np.isfinite(values)]
    if not values.size:
        return []
    middle = np.median(values)
    seen = f"{band.name} says {band.units}, but its values lie around {middle:.3g}"
    if band.quantity == TEMPERATURE and not 120.0 < middle < 400.0:
        remedy = _conversion(band) if -120.0 < middle < 100.0 else _CALIBRATE
        return [f"{seen}: they are not kelvin.{remedy}"]
    # The air alone reflects over 2 % at 0.6 µm, so a lit image with less is one of fractions.
    if band.name == "VIS006" and 0.0 < np.quantile(values, 0.9) < 1.6:
        return [f"{seen}: they look like fractions.{_conversion(band)}"]
    if band.quantity == REFLECTANCE and middle > 200.0:
        return [f"{seen}: no reflectance is so high.{_CALIBRATE}"]
    return []


def _glimpse(scene: xr.Dataset, names: list[str]) -> dict[str, Array]:
    """Return the values in a window amid the image, at a few times, all read at once."""
    windows: dict[str, Any] = {}
    for dim in ("y", "x"):
        middle, half = scene.sizes.get(dim, 0) // 2, _WINDOW // 2
        windows[dim] = slice(max(0, middle - half), middle + half)
    if "time" in scene.sizes:
        count = scene.sizes["time"]
        windows["time"] = np.linspace(0, count - 1, min(count, _ACQUISITIONS), dtype=int)
    seen = scene[names].reset_coords()[names].isel(windows, missing_dims="ignore").compute()
    return {name: np.asarray(seen[name].values) for name in names}


def _sun_problems(scene: xr.Dataset, angle: Array | None) -> list[str]:
    if angle is not None:
        values = angle[np.isfinite(angle)]
        units = str(scene[ANGLE].attrs.get("units", ""))
        # An image right under the sun has angles below 3.2 degrees everywhere, too.
        radians = units.startswith("rad") or (
            not units.startswith(("deg", "°")) and values.max(initial=0.0) < np.pi
        )
        if values.size and (radians or values.min() < 0.0 or values.max() > 180.0):
            return [
                f"{ANGLE} lies between {values.min():.3g} and {values.max():.3g}, where degrees "
                f"from 0 to 180 are due: convert it (np.degrees(...)), or, if degrees they are, "
                f'say so (scene["{ANGLE}"].attrs["units"] = "degree").'
            ]
        return []
    problems = []
    if acquisition_time(scene) is None:
        problems.append(
            "no time, so the sun cannot be placed: give the acquisitions a time in UTC, without a "
            "zone (scene.assign_coords(time=...)), or add solar_zenith_angle in degrees."
        )
    if _lonlats(scene) is None:
        problems.append(
            "no longitude and latitude, nor an area: add them as variables over (y, x), "
            'a pyresample area as scene.attrs["area"], or solar_zenith_angle in degrees.'
        )
    return problems


def find_zenith(scene: xr.Dataset) -> xr.DataArray:
    """Return the solar zenith angle a scene carries, or the one its time and place give."""
    if ANGLE in scene:
        return scene[ANGLE]
    time, place = acquisition_time(scene), _lonlats(scene)
    if time is None or place is None:
        raise SceneError("The scene cannot be used:\n- " + "\n- ".join(_sun_problems(scene, None)))
    # Unified: bands may come in different chunks, and then a scene has none of its own.
    chunks = scene.unify_chunks().chunksizes
    with warnings.catch_warnings():
        # As many blocks as a band has, but dask compares them with those of time and place alone.
        warnings.simplefilter("ignore", da.PerformanceWarning)
        return solar_zenith_angle(*(_in_chunks(array, chunks) for array in (time, *place)))


def _in_chunks(array: xr.DataArray, chunks: Mapping[Any, tuple[int, ...]]) -> xr.DataArray:
    # The variable of a dimension's own coordinate would stay in memory, and the angle with it.
    bare = xr.DataArray(array.variable.to_base_variable())
    sizes = {dim: chunks[dim] for dim in bare.dims if dim in chunks}
    return bare.chunk(sizes) if sizes else bare


def acquisition_time(scene: xr.Dataset) -> xr.DataArray | None:
    """Return when each acquisition, or each scan line, was taken (UTC), or None."""
    for name in ("acq_time", "time"):
        # Not pandas' times with a zone, which no chunk can hold.
        if name in scene.variables and isinstance(scene[name].dtype, np.dtypes.DateTime64DType):
            return scene[name]
    if scene.sizes.get("time", 1) > 1:  # one start_time cannot stand for many
        return None
    for attrs in (scene.attrs, *(array.attrs for array in scene.data_vars.values())):
        if attrs.get("start_time") is not None:
            return xr.DataArray(_utc(attrs["start_time"]))
    return None


def _utc(moment: Any) -> np.datetime64:
    if isinstance(moment, str):
        try:
            moment = datetime.datetime.fromisoformat(moment)
        except ValueError as error:
            told = f"start_time is {moment!r}: write it as YYYY-MM-DDThh:mm:ss, UTC."
            raise SceneError(told) from error
    if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(moment, "ns")


def _lonlats(scene: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray] | None:
    for longitude, latitude in (("longitude", "latitude"), ("lon", "lat")):
        if longitude in scene.variables and latitude in scene.variables:
            return scene[longitude], scene[latitude]
    for attrs in (scene.attrs, *(array.attrs for array in scene.data_vars.values())):
        area: Any = attrs.get("area")
        if hasattr(area, "get_lonlats"):
            east, north = area.get_lonlats(chunks=_LONLAT_CHUNK)
            return xr.DataArray(east, dims=("y", "x")), xr.DataArray(north, dims=("y", "x"))
    return None


def check_calibration(scene: xr.Dataset, fitted_on: str | None) -> None:
    """Raise if the scene was calibrated in another way than the data a model was fitted on."""
    found = scene.attrs.get("calibration_mode")
    if fitted_on is not None and found is not None and found != fitted_on:
        raise SceneError(
            f"The scene has calibration mode {found!r}, but the model was fitted on "
            f"{fitted_on!r}: their reflectances differ by several percent.\n"
            f"Open the scene with calibration={fitted_on!r}, or fit a model on {found!r} data."
        )
