"""SEVIRI scenes, read lazily through satpy: calibrated, and divided by the sun's cosine.

satpy's reflectances are 100 π L / E, not divided by the cosine of the solar zenith angle; here
they are divided by it, at the time of each scan line. Such a reflectance has the attribute
``sun_normalised``, and is not divided again when it is read back.

Every attribute of the result is a string or a number, as netCDF and Zarr need them, except the
pyresample ``area`` of the Dataset, which ``write_dataset`` leaves out. The projection is also in
the coordinate ``spatial_ref``.
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
from undulatus.scenes.files import NETCDF
from undulatus.scenes.files.mask_files import align_mask, open_mask
from undulatus.scenes.files.satpy_files import (
    as_paths,
    as_satpy_errors,
    check_calibration,
    common_reader,
    find_files,
    group_by_acquisition,
    import_satpy,
    load_bands,
    load_missing_bands,
    missing_bands_error,
)
from undulatus.scenes.illumination import solar_zenith_angle, sun_normalised
from undulatus.scenes.scene import BANDS, LEVEL2_MASK, REFLECTANCE, Band, acquisition_time

CHUNKS = {"y": 464, "x": 3712}
"""One HRIT segment: sixteen features of a block are 110 MB."""

_SCENE_ATTRIBUTES = (
    *("platform_name", "sensor", "start_time", "end_time"),
    *("georef_offset_corrected", "calibration_mode"),
)

_BAND_ATTRIBUTES = (
    "standard_name",
    "long_name",
    "units",
    "wavelength",
    "calibration",
    "resolution",
)


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
    """Return a lazy scene: (y, x), or (time, y, x) for several acquisitions.

    Parameters
    ----------
    source : path, paths or satpy Scene
        A file, several files, a folder, or a Scene in memory, whose bands are loaded if they
        are not yet. Files are grouped into acquisitions, which are sorted by time.
    reader : str, optional
        One of :data:`undulatus.scenes.files.satpy_files.READERS`; guessed from names by default.
    calibration : str
        How counts become radiances: nominal, GSICS or meirink-2023. For data that are already
        calibrated (a Scene, satpy_cf_nc), how that was done. It is kept in the attributes.
    mask : path, paths or DataArray, optional
        A Level-2 cloud mask, which becomes ``cloud_mask_l2``: netCDF, Zarr, or the GRIB of
        EUMETSAT's CLM.
    mask_encoding : str, optional
        One of :data:`undulatus.scenes.masks.ENCODINGS`; found from its attributes by default.
    bands : iterable of str
        Which of :data:`undulatus.scenes.scene.BANDS` to read.
    chunks : mapping
        Pixels of a block along each dimension.
    """
    bands = tuple(bands)
    if unknown := set(bands) - set(BANDS):
        raise SceneError(
            f"There are no bands {', '.join(sorted(unknown))}. Choose from: {', '.join(BANDS)}."
        )
    if hasattr(source, "available_dataset_names"):
        loaded = [("the Scene", load_missing_bands(source, bands))]
    else:
        files = find_files(source, reader)
        reader = reader or common_reader(files)
        calibration = check_calibration(calibration, reader)
        groups = group_by_acquisition(files, reader)
        loaded = [
            (str(group[0]), load_bands(group, reader, calibration, bands)) for group in groups
        ]
    acquisitions: list[xr.Dataset] = []
    for name, scene in loaded:
        arrays = _checked(scene, bands, calibration, name)
        first = acquisitions[0] if acquisitions else None
        acquisitions.append(_acquisition(arrays, dict(chunks), first, name))
    opened = _sorted_by_time(acquisitions)
    if mask is not None:
        labels = _mask(mask, mask_encoding, opened)
        opened[LEVEL2_MASK] = labels.chunk(opened[bands[0]].chunksizes)
    return opened


def _checked(
    scene: Any, bands: tuple[str, ...], calibration: str, name: str
) -> dict[str, xr.DataArray]:
    """Return the bands of a satpy Scene, or raise an error that lists what is wrong with them."""
    if any(band not in scene for band in bands):
        raise missing_bands_error(name, scene, bands)
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
        yield f"{band.name} has dims {dict(array.sizes)}, but must be one image (y, x)."
    expected = "reflectance" if band.quantity == REFLECTANCE else "brightness_temperature"
    found = str(_plain(array.attrs).get("calibration", expected))
    units = str(array.attrs.get("units", band.units))
    if found != expected or "sr" in units or "count" in units:
        yield (
            f"{band.name} holds {found} in {units!r}, but must hold {expected}: load it so "
            f'(scene.load(["{band.name}"], calibration="{expected}")).'
        )
    modifiers = array.attrs.get("modifiers", ())
    modifiers = modifiers.split() if isinstance(modifiers, str) else list(modifiers)
    if modifiers:
        yield (
            f"{band.name} was changed by satpy ({', '.join(modifiers)}), but undulatus itself "
            f"divides by the sun: load it without modifiers "
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
    """Return one acquisition as a scene, on the grid of the first acquisition if there is one."""
    sample = next(iter(arrays.values()))
    try:
        bare = xr.align(*(_bare(array) for array in arrays.values()), join="exact")
    except ValueError as error:
        raise SceneError(
            f"{name} has bands on different grids: load all of them the same way up, or resample "
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
    opened.attrs = {key: shared[key] for key in _SCENE_ATTRIBUTES if key in shared}
    if sample.attrs.get("area") is not None:
        opened.attrs["area"] = sample.attrs["area"]
    return opened


def _plain(attrs: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the attributes that are kept, as strings and numbers."""
    plain: dict[str, Any] = {}
    for key in (*_BAND_ATTRIBUTES, *_SCENE_ATTRIBUTES):
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
    """Return a band with only the coordinates y and x of its projection."""
    area: Any = array.attrs.get("area")
    coords = {dim: array[dim].values for dim in ("y", "x") if dim in array.coords}
    if not coords and hasattr(area, "get_proj_vectors"):
        coords["x"], coords["y"] = area.get_proj_vectors()
    return xr.DataArray(array.data, dims=array.dims, coords=coords)


def _times(array: xr.DataArray, opened: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """Return the time of the acquisition, and those of its scan lines if they are known."""
    moment = acquisition_time(array.reset_coords(drop=True).to_dataset(name="band"))
    if moment is None and "time" in array.coords:
        moment = array["time"]
    if moment is None or np.isnat(moment.values):
        raise SceneError(f"{name} has no time: set its start_time attribute.")
    times = {"time": xr.DataArray(moment.values.astype("datetime64[ns]"))}
    for line in ("acq_time", f"{array.name}_acq_time"):
        if line in array.coords and array[line].dims == ("y",):
            taken = xr.DataArray(array[line].data, dims="y")
            if taken.chunks is not None:
                taken = taken.chunk(y=opened.chunksizes["y"])
            # Lost lines have no time of their own.
            times["acq_time"] = taken.where(taken.notnull(), times["time"])
    return times


def _place(array: xr.DataArray, opened: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """Return longitude and latitude, and the projection if there is one."""
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
            f"{name} has no position: give its bands an area (a pyresample "
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
                f"{name} is on another grid than the first acquisition (along {dim}).\n"
                f"Open them separately, or resample them to one grid with satpy."
            )
    shared = ("y", "x", "longitude", "latitude", "spatial_ref")
    return {key: first.coords[key] for key in shared if key in first.coords}


def _sorted_by_time(acquisitions: list[xr.Dataset]) -> xr.Dataset:
    if len(acquisitions) == 1:
        return acquisitions[0]
    ordered = sorted(acquisitions, key=lambda each: each["time"].values)
    for earlier, later in pairwise(each["time"].values for each in ordered):
        if earlier == later:
            raise SceneError(f"Two acquisitions have the time {earlier}. Leave one out.")
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
    given = [mask] if isinstance(mask, xr.DataArray) else [_open_mask(p) for p in as_paths(mask)]
    decoded = [masks.decode(each, encoding) for each in given]
    if len(decoded) == 1:
        return align_mask(decoded[0], opened)
    if not all("time" in each.coords and each.sizes == decoded[0].sizes for each in decoded):
        raise SceneError(
            "Several masks must have one size, and each must have a time: combine them with "
            'xarray (xr.concat(..., dim="time")), and pass the result.'
        )
    together = xr.concat(decoded, "time", coords="minimal", compat="override", join="override")
    return align_mask(together, opened)


def _open_mask(path: Path) -> xr.DataArray:
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    if path.is_dir() or path.suffix in (*NETCDF, ".h5", ".zarr"):
        return open_mask(path)
    with as_satpy_errors(f"{path} cannot be read by satpy's seviri_l2_grib"):
        scene = import_satpy().Scene(filenames=[str(path)], reader="seviri_l2_grib")
        scene.load(["cloud_mask"], upper_right_corner="NE")
        return scene["cloud_mask"]
