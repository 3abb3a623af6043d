"""What a scene is: an xarray Dataset of named bands, checked before it is used.

A scene has dims (time, y, x) or (y, x) and

- the bands of ``BANDS`` by satpy's names: reflectances in percent, divided by the cosine of
  the solar zenith angle (attribute ``sun_normalised`` = 1, taken for granted if nothing says
  otherwise) and missing (NaN) at night; brightness temperatures in kelvin;
- the coordinate ``time``, UTC, or ``start_time`` in the attributes of a single acquisition;
- ``longitude`` and ``latitude``, or a pyresample ``area`` in the attributes, or
  ``solar_zenith_angle`` in degrees itself;
- optionally the Level-2 mask ``cloud_mask_l2`` and, in a simulator, the true mask ``cloud_truth``
  (1 cloud, 0 clear, 255 missing), and ``land_mask`` (1 land, 0 water);
- optionally ``calibration_mode`` and ``platform_name`` in the attributes.
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
from undulatus.errors import NotRealNumbersError, SceneError
from undulatus.scenes.illumination import solar_zenith_angle
from undulatus.scenes.normalisation import NORMALISED, find_statement
from undulatus.scenes.times import with_parsed_times

Array = npt.NDArray[Any]

REFLECTANCE, TEMPERATURE = "reflectance", "brightness temperature"
"""What a band measures."""

UNITS = {REFLECTANCE: "%", TEMPERATURE: "K"}

ANGLE = "solar_zenith_angle"

LEVEL2_MASK = "cloud_mask_l2"
"""The Level-2 cloud mask: the label that classifiers learn from."""

CLOUD_TRUTH = "cloud_truth"
"""The true cloud mask, which only simulators have."""

DIMS = ("time", "y", "x")

CALIBRATIONS = ("nominal", "GSICS", "meirink-2023")
"""How counts of SEVIRI are made radiances."""

MISSING_CODE = 255
"""The value of masks, labels and strata that are missing."""

KELVIN = ("K", "kelvin", "Kelvin")
"""How kelvin may be spelled."""

CELSIUS = ("C", "degC", "°C", "celsius", "Celsius", "deg_C", "degree_Celsius", "degrees_Celsius")
"""How degrees Celsius may be spelled."""

_SPELLINGS = {"%": ("%", "percent", "per cent"), "K": KELVIN}

_CONVERTIBLE = {"%": ("1", "", "fraction", "none"), "K": CELSIUS}

_CALIBRATE = " Are they counts or radiances? Calibrate them first."

_LONLAT_CHUNK = 1024

_WINDOW = 64
"""Rows and columns of the window that values are read from ..."""

_ACQUISITIONS = 8
"""... in at most so many acquisitions."""


@dataclass(frozen=True)
class Band:
    """A band of a scene: its name, what it measures, and its centre in micrometres."""

    name: str
    quantity: str
    wavelength: float

    @property
    def units(self) -> str:
        """Percent or kelvin."""
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
"""The bands of the landmark features, SEVIRI's: another imager's files are opened with its nearest
bands under these names."""


def check_scene(scene: xr.Dataset, bands: Iterable[str] = tuple(BANDS)) -> xr.Dataset:
    """Return the scene in standard form, or raise a :class:`SceneError` that lists every problem.

    The result has the bands in float32 with dims (time, y, x) or (y, x), missing values for
    reflectances at night, and ``solar_zenith_angle`` in degrees. Only a small window of a few
    acquisitions is read, to see whether the values fit their units.
    """
    if not isinstance(scene, xr.Dataset):
        raise SceneError(
            f"A scene is an xarray Dataset with one variable per band, but a "
            f"{type(scene).__name__} was given. Convert a DataArray with a dimension of bands by "
            f'array.to_dataset(dim="bands").'
        )
    scene = with_parsed_times(scene)
    bands = tuple(bands)
    form_problems = {name: _form_problems(scene, name, bands) for name in bands if name in scene}
    sound = [name for name, problems in form_problems.items() if not problems]
    values = _read_window(scene, [*sound, *({ANGLE} & set(scene.variables))])
    problems = [
        *_missing_bands(scene, bands),
        *(problem for listed in form_problems.values() for problem in listed),
        *(problem for name in sound for problem in _value_problems(values[name], BANDS[name])),
        *_sun_problems(scene, values.get(ANGLE)),
    ]
    if problems:
        raise SceneError("The scene cannot be used:\n" + "\n".join(f"- {p}" for p in problems))
    return _in_standard_form(scene, bands)


def _in_standard_form(scene: xr.Dataset, bands: tuple[str, ...]) -> xr.Dataset:
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
        f"Bands have satpy's names: open a sensor's files with undulatus.scenes.open_scene, "
        f"or rename yours (scene.rename(...))."
    ]


def _form_problems(scene: xr.Dataset, name: str, bands: tuple[str, ...]) -> list[str]:
    array, band = scene[name], BANDS[name]
    if array.dtype.kind not in "fiub":
        return [str(NotRealNumbersError(name, array.dtype))]
    dims = set(array.dims)
    if not {"y", "x"} <= dims or dims - set(DIMS):
        return [
            f"{name} has dims {array.dims}; expected (time, y, x) or (y, x): "
            f"rename or select (scene.rename(...), scene.isel(...))."
        ]
    if "time" not in dims and any("time" in scene[b].dims for b in bands if b in scene):
        return [
            f"{name} has dims {array.dims}, but other bands have a time: give it one, or select "
            f"one (scene.isel(time=...))."
        ]
    units = array.attrs.get("units")
    if units is None:
        return [
            f"{name} has no units; expected {band.units}: if it is in {band.units}, say so "
            f'(scene["{name}"].attrs["units"] = "{band.units}").'
        ]
    if str(units) not in _SPELLINGS[band.units]:
        remedy = _conversion(band) if str(units) in _CONVERTIBLE[band.units] else _CALIBRATE
        return [f"{name} is in {units!r}; expected {band.units}.{remedy}"]
    stated = find_statement(array.attrs, scene.attrs)
    if band.quantity == REFLECTANCE and stated is not None and not stated.normalised:
        return [
            f"{name} is not divided by the cosine of the solar zenith angle ({stated.source}): "
            f"divide it, if that was not done after all "
            f"(undulatus.scenes.illumination.sun_normalised(reflectance, angle)), and say so "
            f'(scene["{name}"].attrs["{NORMALISED}"] = 1).'
        ]
    return []


def _conversion(band: Band) -> str:
    if band.quantity == REFLECTANCE:
        return f' Multiply it by 100 and set its units (scene["{band.name}"] * 100).'
    return f' Add 273.15 and set its units (scene["{band.name}"] + 273.15).'


def _value_problems(values: Array, band: Band) -> list[str]:
    """List values that do not fit their units: fractions as percent, Celsius as kelvin."""
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


def _read_window(scene: xr.Dataset, names: list[str]) -> dict[str, Array]:
    """Read a window in the middle of the image, at a few times, of all names at once."""
    windows: dict[str, Any] = {}
    for dim in ("y", "x"):
        middle, half = scene.sizes.get(dim, 0) // 2, _WINDOW // 2
        windows[dim] = slice(max(0, middle - half), middle + half)
    if "time" in scene.sizes:
        count = scene.sizes["time"]
        windows["time"] = np.linspace(0, count - 1, min(count, _ACQUISITIONS), dtype=int)
    window = scene[names].reset_coords()[names].isel(windows, missing_dims="ignore").compute()
    return {name: np.asarray(window[name].values) for name in names}


def _sun_problems(scene: xr.Dataset, angle: Array | None) -> list[str]:
    if angle is not None and angle.dtype.kind not in "fiu":
        return [str(NotRealNumbersError(ANGLE, angle.dtype))]
    if angle is not None:
        values = angle[np.isfinite(angle)]
        units = str(scene[ANGLE].attrs.get("units", ""))
        # An image right under the sun has angles below 3.2 degrees too: then units decide.
        radians = units.startswith("rad") or (
            not units.startswith(("deg", "°")) and values.max(initial=0.0) < np.pi
        )
        if values.size and (radians or values.min() < 0.0 or values.max() > 180.0):
            return [
                f"{ANGLE} lies between {values.min():.3g} and {values.max():.3g}; expected "
                f"degrees from 0 to 180: convert it (np.degrees(...)), or, if it is in degrees, "
                f'say so (scene["{ANGLE}"].attrs["units"] = "degree").'
            ]
        return []
    problems = []
    if acquisition_time(scene) is None:
        problems.append(
            "no time to compute the sun's position from: give the acquisitions a time in UTC, "
            "without a zone (scene.assign_coords(time=...)), or add solar_zenith_angle in degrees."
        )
    lonlats = find_lonlats(scene)
    if lonlats is None:
        problems.append(
            "no longitude and latitude, and no area: add them as variables over (y, x), "
            'a pyresample area as scene.attrs["area"], or solar_zenith_angle in degrees.'
        )
    problems.extend(
        str(NotRealNumbersError(array.name, array.dtype))
        for array in lonlats or ()
        if array.dtype.kind not in "fiu"
    )
    return problems


def find_zenith(scene: xr.Dataset) -> xr.DataArray:
    """Return the scene's own solar zenith angle, or compute it from its time and coordinates."""
    if ANGLE in scene:
        return scene[ANGLE]
    time, lonlats = acquisition_time(scene), find_lonlats(scene)
    if time is None or lonlats is None:
        raise SceneError("The scene cannot be used:\n- " + "\n- ".join(_sun_problems(scene, None)))
    # Where bands have different chunks, scene.chunksizes raises; unified ones do not.
    chunks = scene.unify_chunks().chunksizes
    with warnings.catch_warnings():
        # The angle has as many blocks as a band, but dask compares them with those of its inputs.
        warnings.simplefilter("ignore", da.PerformanceWarning)
        return solar_zenith_angle(*(_in_chunks(array, chunks) for array in (time, *lonlats)))


def _in_chunks(array: xr.DataArray, chunks: Mapping[Any, tuple[int, ...]]) -> xr.DataArray:
    # An index variable would stay in memory, and the angle with it.
    bare = xr.DataArray(array.variable.to_base_variable())
    sizes = {dim: chunks[dim] for dim in bare.dims if dim in chunks}
    return bare.chunk(sizes) if sizes else bare


def acquisition_time(scene: xr.Dataset) -> xr.DataArray | None:
    """Return the time (UTC) of each acquisition or scan line, or None if it is not known."""
    for name in ("acq_time", "time"):
        # pandas' times with a zone do not count: dask cannot hold them.
        if name in scene.variables and isinstance(scene[name].dtype, np.dtypes.DateTime64DType):
            return scene[name]
    if scene.sizes.get("time", 1) > 1:  # One start_time is not enough for several.
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
            raise SceneError(
                f"start_time is {moment!r}: write it as YYYY-MM-DDThh:mm:ss, UTC."
            ) from error
    if isinstance(moment, datetime.datetime) and moment.tzinfo is not None:
        moment = moment.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(moment, "ns")


DIRECTIONS = {
    **{"x": "east", "longitude": "east", "lon": "east"},
    **{"y": "north", "latitude": "north", "lat": "north"},
}
"""Names of coordinates, and where they grow."""

SAID = {
    "standard_name": {
        **dict.fromkeys(("longitude", "projection_x_coordinate", "grid_longitude"), "east"),
        **dict.fromkeys(("latitude", "projection_y_coordinate", "grid_latitude"), "north"),
    },
    "units": {
        **dict.fromkeys(("degrees_east", "degree_east", "degrees_E", "degree_E"), "east"),
        **dict.fromkeys(("degrees_north", "degree_north", "degrees_N", "degree_N"), "north"),
    },
    "axis": {"X": "east", "Y": "north"},
    "long_name": {
        **dict.fromkeys(("longitude", "Longitude"), "east"),
        **dict.fromkeys(("latitude", "Latitude"), "north"),
    },
}
"""Attributes of coordinates that tell where they grow, by CF or in words."""


def find_lonlats(scene: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray] | None:
    """Return longitude and latitude in degrees, (y, x), or None if they are not known."""
    for longitude, latitude in (("longitude", "latitude"), ("lon", "lat")):
        if longitude in scene.variables and latitude in scene.variables:
            require_directions(scene.variables)
            return scene[longitude], scene[latitude]
    for attrs in (scene.attrs, *(array.attrs for array in scene.data_vars.values())):
        area: Any = attrs.get("area")
        if hasattr(area, "get_lonlats"):
            east, north = area.get_lonlats(chunks=_LONLAT_CHUNK)
            return xr.DataArray(east, dims=("y", "x")), xr.DataArray(north, dims=("y", "x"))
    return None


def require_directions(coordinates: Mapping[Any, Any]) -> None:
    """Raise if the attributes of a coordinate say that it is another than its name says."""
    for name, direction in DIRECTIONS.items():
        attrs = coordinates[name].attrs if name in coordinates else {}
        for key, meanings in SAID.items():
            if meanings.get(str(attrs.get(key)), direction) != direction:
                raise SceneError(
                    f"The coordinate {name} grows to the {direction} by its name, but its "
                    f"attribute {key} is {attrs[key]!r}. Rename it or correct the attribute "
                    f"(ncrename -v or ncatted -a of a netCDF file; in Python rename(...) or "
                    f"assign_attrs(...))."
                )


def check_calibration(scene: xr.Dataset, fitted_on: str | None) -> None:
    """Raise if the scene's calibration differs from that of the data a model was fitted on."""
    found = scene.attrs.get("calibration_mode")
    if fitted_on is not None and found is not None and found != fitted_on:
        raise SceneError(
            f"The scene has calibration mode {found!r}, but the model was fitted on "
            f"{fitted_on!r}: reflectances differ by several percent between them.\n"
            f"{_calibration_remedy(fitted_on)} fit a model on {found!r} data."
        )


def _calibration_remedy(mode: str) -> str:
    if mode not in CALIBRATIONS:
        return "Files cannot be opened with that:"
    return (
        f"Open the scene with that calibration (--calibration {mode}, in Python "
        f"calibration={mode!r}), or"
    )
