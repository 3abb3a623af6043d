"""Scenes of SEVIRI, read through satpy: calibrated, divided by the sun, lazy.

satpy gives reflectances of 100 π L / E, not divided by the cosine of the solar zenith angle;
here they are, with each scan line's own time. A reflectance so divided says so by the attribute
``sun_normalised``, and is not divided again when it comes back.

Every attribute of the result is a string or a number, as netCDF and Zarr want them, but for the
pyresample ``area`` in the attributes of the Dataset: drop it before writing. The projection stays
in the coordinate ``spatial_ref``.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes import masks
from undulatus.scenes.files.mask_files import open_mask, place
from undulatus.scenes.files.satpy_files import (
    by_acquisition,
    calibration_of,
    find_files,
    import_satpy,
    lacking,
    load,
    load_more,
    paths_of,
    reader_of,
    reading,
)
from undulatus.scenes.illumination import solar_zenith_angle, sun_normalised
from undulatus.scenes.scene import BANDS, LEVEL2_MASK, REFLECTANCE, Band, acquisition_time

CHUNKS = {"y": 464, "x": 3712}
"""One HRIT segment: a block of sixteen features is then 110 MB."""

_OF_SCENE = (
    *("platform_name", "sensor", "start_time", "end_time"),
    *("georef_offset_corrected", "calibration_mode"),
)

_OF_BANDS = ("standard_name", "long_name", "units", "wavelength", "calibration", "resolution")


def open_scene(
    source: Any,
    *,
    reader: str | None = None,
    calibration: str = "nominal",
    mask: Any = None,
    mask_encoding: str | None = None,
    bands: Iterable[str] = tuple(BANDS),
    chunks: Mapping[str, int] = CHUNKS,
) -> xr.Dataset:
    """Return a scene, (y, x), or (time, y, x) of several acquisitions; pixels are read later.

    Parameters
    ----------
    source : path, paths or satpy Scene
        A file, several, a folder of them, or a Scene in memory, whose bands are loaded if they
        are not yet. Files are sorted into acquisitions, and those by time.
    reader : str, optional
        One of :data:`undulatus.scenes.files.satpy_files.READERS`; by default guessed from names.
    calibration : str
        How counts become radiances: nominal, GSICS or meirink-2023. Of data that are calibrated
        already (a Scene, satpy_cf_nc), say how they were. It is kept in the attributes.
    mask : path, paths or DataArray, optional
        A Level-2 cloud mask: netCDF, Zarr, or the GRIB of EUMETSAT's CLM. It becomes
        ``cloud_mask_l2``.
    mask_encoding : str, optional
        One of :data:`undulatus.scenes.masks.ENCODINGS`; by default the one its attributes tell.
    bands : iterable of str
        Those of :data:`undulatus.scenes.scene.BANDS` to read.
    chunks : mapping
        Pixels a block, by dimension.
    """
    bands = tuple(bands)
    if unknown := set(bands) - set(BANDS):
        raise SceneError(
            f"There are no bands {', '.join(sorted(unknown))}. Choose from: {', '.join(BANDS)}."
        )
    if hasattr(source, "available_dataset_names"):
        loaded = [("the Scene", load_more(source, bands))]
    else:
        files = find_files(source, reader)
        reader = reader or reader_of(files)
        calibration = calibration_of(calibration, reader)
        groups = by_acquisition(files, reader)
        loaded = [(str(group[0]), load(group, reader, calibration, bands)) for group in groups]
    acquisitions: list[xr.Dataset] = []
    for name, scene in loaded:
        arrays = _checked(scene, bands, calibration, name)
        first = acquisitions[0] if acquisitions else None
        acquisitions.append(_acquisition(arrays, dict(chunks), first, name))
    opened = _in_order_of_time(acquisitions)
    if mask is not None:
        labels = _mask(mask, mask_encoding, opened)
        opened[LEVEL2_MASK] = labels.chunk(opened[bands[0]].chunksizes)
    return opened


def _checked(
    scene: Any, bands: tuple[str, ...], calibration: str, name: str
) -> dict[str, xr.DataArray]:
    """Return the bands of a satpy Scene as it has them, or say why they cannot be used."""
    if any(band not in scene for band in bands):
        raise lacking(name, scene, bands)
    arrays = {band: scene[band] for band in bands}
    problems = [
        problem
        for band, array in arrays.items()
        for problem in _problems(array, BANDS[band], calibration)
    ]
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise SceneError(f"{name} cannot be used:\n{listed}")
    one_time = {
        band: array.isel(time=0) if "time" in array.dims else array
        for band, array in arrays.items()
    }
    return {
        band: array.rename(band).assign_attrs(calibration_mode=calibration)
        for band, array in one_time.items()
    }


def _problems(array: xr.DataArray, band: Band, calibration: str) -> Iterator[str]:
    if {*array.dims} - {"time"} != {"y", "x"} or array.sizes.get("time", 1) > 1:
        yield f"{band.name} has dims {dict(array.sizes)}, where one image over (y, x) is due."
    due = "reflectance" if band.quantity == REFLECTANCE else "brightness_temperature"
    found = str(_plain(array.attrs).get("calibration", due))
    units = str(array.attrs.get("units", band.units))
    if found != due or "sr" in units or "count" in units:
        yield (
            f"{band.name} holds {found} in {units!r}, where {due} is due: load it so "
            f'(scene.load(["{band.name}"], calibration="{due}")).'
        )
    modifiers = array.attrs.get("modifiers", ())
    modifiers = modifiers.split() if isinstance(modifiers, str) else list(modifiers)
    if modifiers:
        yield (
            f"{band.name} was changed by satpy ({', '.join(modifiers)}), where the sun is divided "
            f"out here: load it without modifiers "
            f'(scene.load([satpy.DataQuery(name="{band.name}", modifiers=())])).'
        )
    recorded = array.attrs.get("calibration_mode", calibration)
    if recorded != calibration:
        yield (
            f"{band.name} was calibrated by {recorded!r}, not {calibration!r}: "
            f"say so (calibration={recorded!r})."
        )


def _acquisition(
    arrays: dict[str, xr.DataArray], chunks: dict[str, int], first: xr.Dataset | None, name: str
) -> xr.Dataset:
    """Return one acquisition as a scene, on the grid of the first if there is one before it."""
    sample = next(iter(arrays.values()))
    try:
        bare = xr.align(*(_bare(array) for array in arrays.values()), join="exact")
    except ValueError as error:
        raise SceneError(
            f"{name} has bands on different grids: load all of them one way up, or resample "
            f"them with satpy.\n{error}"
        ) from error
    opened = xr.Dataset(dict(zip(arrays, bare, strict=True))).chunk(chunks)
    place = _place(sample, opened, name) if first is None else _shared_place(first, opened, name)
    opened = opened.assign_coords(place).assign_coords(_times(sample, opened, name))
    angle = solar_zenith_angle(
        opened.get("acq_time", opened["time"]), opened["longitude"], opened["latitude"]
    )
    for band, array in arrays.items():
        values, attrs = opened[band], _plain(array.attrs)
        if BANDS[band].quantity == REFLECTANCE:
            if str(array.attrs.get("sun_normalised", 0)) != "1":
                values = sun_normalised(values, angle)
            attrs["sun_normalised"] = 1
        if "spatial_ref" in opened.coords:
            attrs["grid_mapping"] = "spatial_ref"
        opened[band] = values.astype(np.float32)
        opened[band].attrs = attrs
    opened["solar_zenith_angle"] = angle
    shared = _plain(sample.attrs)
    opened.attrs = {key: shared[key] for key in _OF_SCENE if key in shared}
    if sample.attrs.get("area") is not None:
        opened.attrs["area"] = sample.attrs["area"]
    return opened


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the attributes worth keeping, as strings and numbers."""
    plain: dict[str, Any] = {}
    for key in (*_OF_BANDS, *_OF_SCENE):
        value: Any = attrs.get(key)
        if isinstance(value, datetime.datetime):
            value = value.isoformat()
        elif isinstance(value, (set, frozenset)):
            value = " ".join(sorted(value))
        elif isinstance(value, (bool, np.bool_)):
            value = int(value)
        elif hasattr(value, "to_cf"):
            value = value.to_cf()
        elif hasattr(value, "name"):
            value = value.name
        if value is not None:
            plain[key] = value
    return plain


def _bare(array: xr.DataArray) -> xr.DataArray:
    """Return a band with no coordinates but the projection's y and x."""
    area: Any = array.attrs.get("area")
    coords = {dim: array[dim].values for dim in ("y", "x") if dim in array.coords}
    if not coords and hasattr(area, "get_proj_vectors"):
        coords["x"], coords["y"] = area.get_proj_vectors()
    return xr.DataArray(array.data, dims=array.dims, coords=coords)


def _times(array: xr.DataArray, opened: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """Return the time of the acquisition, and of its scan lines where they are known."""
    moment = acquisition_time(array.reset_coords(drop=True).to_dataset(name="band"))
    if moment is None and "time" in array.coords:
        moment = array["time"]
    if moment is None or np.isnat(moment.values):
        raise SceneError(f"{name} does not say when it was taken: set its start_time attribute.")
    times = {"time": xr.DataArray(moment.values.astype("datetime64[ns]"))}
    for line in ("acq_time", f"{array.name}_acq_time"):
        if line in array.coords and array[line].dims == ("y",):
            taken = xr.DataArray(array[line].data, dims="y")
            if taken.chunks is not None:
                taken = taken.chunk(y=opened.chunksizes["y"])
            # Lines that were lost have no time of their own.
            times["acq_time"] = taken.where(taken.notnull(), times["time"])
    return times


def _place(array: xr.DataArray, opened: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """Return longitude and latitude, and the projection where there is one."""
    area: Any = array.attrs.get("area")
    place: dict[str, xr.DataArray] = {}
    blocks = tuple(opened.chunksizes[dim] for dim in ("y", "x"))
    if hasattr(area, "get_proj_vectors"):
        place["spatial_ref"] = xr.DataArray(np.int32(0), attrs=area.crs.to_cf())
        lonlats = area.get_lonlats(chunks=blocks)
    elif {"longitude", "latitude"} <= set(array.coords):
        lonlats = (array["longitude"].data, array["latitude"].data)
    elif hasattr(area, "get_lonlats"):
        lonlats = area.get_lonlats(chunks=blocks)
    else:
        raise SceneError(
            f"{name} does not say where it lies: give its bands an area (a pyresample "
            f"AreaDefinition in their attributes), or longitude and latitude as coordinates."
        )
    for which, direction, values in zip(
        ("longitude", "latitude"), ("east", "north"), lonlats, strict=True
    ):
        degrees = xr.DataArray(xr.Variable(("y", "x"), values)).chunk(y=blocks[0], x=blocks[1])
        place[which] = degrees.where(np.isfinite(degrees)).astype(np.float32)
        place[which].attrs = {"standard_name": which, "units": f"degrees_{direction}"}
    return place


def _shared_place(first: xr.Dataset, opened: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    for dim in ("y", "x"):
        same = opened.sizes[dim] == first.sizes[dim]
        if same and dim in first.coords and dim in opened.coords:
            gaps = np.abs(first[dim].values - opened[dim].values)
            same = gaps.max() <= 0.5 * np.abs(np.diff(first[dim].values)).max(initial=0.0)
        if not same:
            raise SceneError(
                f"{name} lies on another grid than the first acquisition (along {dim}).\n"
                f"Open them apart, or resample them to one grid with satpy."
            )
    shared = ("y", "x", "longitude", "latitude", "spatial_ref")
    return {key: first.coords[key] for key in shared if key in first.coords}


def _in_order_of_time(acquisitions: list[xr.Dataset]) -> xr.Dataset:
    if len(acquisitions) == 1:
        return acquisitions[0]
    ordered = sorted(acquisitions, key=lambda each: each["time"].values)
    for earlier, later in pairwise(each["time"].values for each in ordered):
        if earlier == later:
            raise SceneError(f"Two acquisitions are of {earlier}. Leave one of them out.")
    timed = all("acq_time" in each.coords for each in ordered)
    return xr.concat(
        ordered if timed else [each.drop_vars("acq_time", errors="ignore") for each in ordered],
        dim="time",
        data_vars="all",
        coords=["acq_time"] if timed else "minimal",
        compat="override",
        join="override",
        combine_attrs="drop_conflicts",
    )


def _mask(mask: Any, encoding: str | None, opened: xr.Dataset) -> xr.DataArray:
    given = [mask] if isinstance(mask, xr.DataArray) else [_open_mask(p) for p in paths_of(mask)]
    decoded = [masks.decode(each, encoding) for each in given]
    if len(decoded) == 1:
        return place(decoded[0], opened)
    if not all("time" in each.coords and each.sizes == decoded[0].sizes for each in decoded):
        raise SceneError(
            "Several masks must be of one size, and each say of when it is: put them together "
            'with xarray (xr.concat(..., dim="time")), and pass that.'
        )
    together = xr.concat(decoded, "time", coords="minimal", compat="override", join="override")
    return place(together, opened)


def _open_mask(path: Path) -> xr.DataArray:
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    if path.is_dir() or path.suffix in (".nc", ".nc4", ".h5", ".zarr"):
        return open_mask(path)
    with reading(f"{path} cannot be read by satpy's seviri_l2_grib"):
        scene = import_satpy().Scene(filenames=[str(path)], reader="seviri_l2_grib")
        scene.load(["cloud_mask"], upper_right_corner="NE")
        return scene["cloud_mask"]
