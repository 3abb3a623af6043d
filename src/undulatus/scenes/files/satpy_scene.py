"""Maps as satpy has its data: DataArrays with an area, in a Scene."""

from __future__ import annotations

import datetime
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.files.satpy_files import import_satpy
from undulatus.scenes.scene import acquisition_time, find_lonlats

_SPACE = {"y", "x"}

_SHARED = ("platform_name", "sensor", "end_time")


def to_satpy(maps: xr.Dataset, scene: Any = None) -> Any:
    """Return a map as a satpy Scene, whose resampling, composites and writers then work on it.

    Parameters
    ----------
    maps : Dataset
        Of one time, (y, x): the area in its attributes, its projection (``spatial_ref`` and the
        coordinates ``y`` and ``x``), or its longitude and latitude say where it is.
    scene : Scene, optional
        One to add the layers to, such as that which was mapped; by default a new one.

    Returns
    -------
    Scene
        With a DataArray for each layer, of the same values and attributes and with ``area``,
        ``start_time``, ``platform_name`` and ``sensor``. A layer that has a value for each class
        is one DataArray for each, such as ``class_probability_forest``.
    """
    if maps.sizes.get("time", 1) > 1:
        raise SceneError(
            f"A satpy Scene is of one time, but this map has {maps.sizes['time']:,}: choose one "
            f"(maps.isel(time=0))."
        )
    one = maps.isel(time=0) if "time" in maps.dims else maps
    shared = {key: one.attrs[key] for key in _SHARED if key in one.attrs}
    shared |= {"area": _find_area(one), "modifiers": ()}
    # Scan lines have times of their own, which begin later.
    moment = acquisition_time(one.drop_vars("acq_time", errors="ignore"))
    if moment is not None:
        start = moment.values.astype("datetime64[us]").item()
        shared = {"start_time": start, "end_time": start} | shared
    if isinstance(shared.get("end_time"), str):
        shared["end_time"] = datetime.datetime.fromisoformat(shared["end_time"])
    made = import_satpy().Scene() if scene is None else scene
    for name, layer in _layers(one):
        bare = layer.drop_vars([key for key in layer.coords if key not in ("y", "x")])
        attrs = {key: v for key, v in layer.attrs.items() if key != "ancillary_variables"}
        made[name] = bare.rename(name).assign_attrs(attrs | shared | {"name": name})
    return made


def _layers(maps: xr.Dataset) -> Iterator[tuple[str, xr.DataArray]]:
    for name, array in maps.data_vars.items():
        others = [dim for dim in array.dims if dim not in _SPACE]
        if not others and {*array.dims} >= _SPACE:
            yield str(name), array.transpose("y", "x")
        elif len(others) == 1 and {*array.dims} >= _SPACE:
            for index, value in enumerate(array[others[0]].values):
                part = array.isel({others[0]: index}, drop=True)
                yield f"{name}_{value}", part.transpose("y", "x")


def _find_area(maps: xr.Dataset) -> Any:
    """Return the area of a map as pyresample has it."""
    area = maps.attrs.get("area")
    if area is not None:
        return area
    geometry: Any = importlib.import_module("pyresample.geometry")
    reference = maps.coords.get("spatial_ref")
    if reference is not None and {*maps.indexes} >= _SPACE:
        pyproj: Any = importlib.import_module("pyproj")
        crs = pyproj.CRS.from_cf(reference.attrs)
        (west, east), (north, south) = (_edges(maps[dim].values) for dim in ("x", "y"))
        extent = (west, south, east, north)
        height, width = maps.sizes["y"], maps.sizes["x"]
        return geometry.AreaDefinition("map", "of a map", "map", crs, width, height, extent)
    place = find_lonlats(maps)
    if place is None:
        raise SceneError(
            "The map does not say where it is: give it the area of what was mapped "
            '(maps.attrs["area"]), a projection, or longitude and latitude.'
        )
    longitude, latitude = (each.transpose("y", "x") for each in place)
    return geometry.SwathDefinition(longitude, latitude)


def _edges(centres: Any) -> tuple[float, float]:
    """Return the outer edges of the first and the last pixel."""
    if len(centres) < 2:
        raise SceneError("A map of a single row or column does not tell the size of its pixels.")
    steps = np.diff(centres)
    if np.ptp(steps) > 1e-3 * abs(steps.mean()):
        raise SceneError("The rows or columns of the map are not equally far apart: resample it.")
    half = steps.mean() / 2
    return float(centres[0] - half), float(centres[-1] + half)


def place_of(data: xr.Dataset | xr.DataArray) -> dict[str, Any]:
    """Return what says where and when something is, in the attributes of it or of its bands."""
    bands = list(data.data_vars.values()) if isinstance(data, xr.Dataset) else []
    for holder in (data, *bands):
        if holder.attrs.get("area") is not None:
            keys = ("area", "start_time", *_SHARED)
            return {key: holder.attrs[key] for key in keys if key in holder.attrs}
    return {}
