"""SEVIRI scenes, read lazily through satpy: calibrated, and divided by the sun's cosine.

satpy's reflectances are 100 π L / E, not divided by the cosine of the solar zenith angle; here
they are divided by it, at the time of each scan line. Such a reflectance has the attribute
``sun_normalised``, and is not divided again when it is read back
(:mod:`undulatus.scenes.normalisation`).

Every attribute of the result is a string or a number, as netCDF and Zarr need them, except the
pyresample ``area`` of the Dataset, which ``write_dataset`` leaves out. The projection is also in
the coordinate ``spatial_ref``.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.box import Box, Window
from undulatus.scenes.files.damaged import (
    Skipped,
    as_damaged,
    note_skipped,
    read_through,
    require_some,
    skipping,
)
from undulatus.scenes.files.mask_files import Cut, add_mask
from undulatus.scenes.files.satpy_files import (
    SATPY_CF,
    as_satpy_errors,
    check_calibration,
    common_reader,
    find_files,
    group_by_acquisition,
    group_name,
    groups_within,
    load_bands,
    load_missing_bands,
    missing_bands_error,
    only_lines,
)
from undulatus.scenes.files.series import join_series, shared_place
from undulatus.scenes.illumination import solar_zenith_angle
from undulatus.scenes.illumination import sun_normalised as divided_by_sun
from undulatus.scenes.normalisation import (
    NORMALISED,
    SUN_MODIFIERS,
    Statement,
    assumption,
    find_problems,
    find_statement,
    modifiers_of,
    warn_in_python,
)
from undulatus.scenes.scene import BANDS, REFLECTANCE, Band, acquisition_time
from undulatus.scenes.times import in_spans, parse_spans, span_text

CHUNKS = {"y": 464, "x": 3712}
"""One HRIT segment: sixteen features of a block are 110 MB."""

READ_AT_ONCE = 2**30
"""Bytes of a box, over all acquisitions, up to which it is read when it is opened. Thousands of
small images as lazy blocks would take longer to plan than to read."""

CHIP_PIXELS = 2**18
"""Pixels of a block of images that were read at once."""

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
    calibration: str | None = None,
    mask: Any = None,
    mask_encoding: str | None = None,
    time: str | Iterable[str] | None = None,
    box: Any = None,
    bands: Iterable[str] = tuple(BANDS),
    chunks: Mapping[str, int] = CHUNKS,
    sun_normalised: bool | None = None,
    skip_damaged: bool = False,
    say: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = warn_in_python,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> xr.Dataset:
    """Return a lazy scene: (y, x), or (time, y, x) for several acquisitions.

    Parameters
    ----------
    source : path, paths or satpy Scene
        A file, several files, a folder, or a Scene in memory, whose bands are loaded if they
        are not yet. Files are grouped into acquisitions, which are sorted by time.
    reader : str, optional
        One of :data:`undulatus.scenes.files.satpy_files.READERS`; guessed from names by default.
    calibration : str, optional
        How counts become radiances: nominal (default), GSICS or meirink-2023. For data that are
        already calibrated (a Scene, satpy_cf_nc), how that was done. It is kept in the attributes.
    mask : path, paths or DataArray, optional
        Level-2 cloud masks, which become ``cloud_mask_l2``: netCDF, HDF5, Zarr, or the GRIB of
        EUMETSAT's CLM. Each belongs to the acquisition within 7.5 minutes of its time.
    mask_encoding : str, optional
        One of :data:`undulatus.scenes.masks.ENCODINGS`; found from its attributes by default.
    time : str or list of str, optional
        Only acquisitions of these times, UTC: ``START/END``, or a month, day, hour or minute.
        Files whose names tell another time are not opened.
    box : four numbers or str, optional
        West, south, east and north in degrees: only the smallest window with all pixels therein.
        If it is small it is read at once, and of native files only its scan lines.
    bands : iterable of str
        Which of :data:`undulatus.scenes.scene.BANDS` to read.
    chunks : mapping
        Pixels of a block along each dimension.
    sun_normalised : bool, optional
        Whether reflectances are divided by the cosine of the solar zenith angle already. Needed
        where attributes do not tell (:mod:`undulatus.scenes.normalisation`); those of a sensor's
        own files are not.
    skip_damaged : bool
        Leave out acquisitions and masks that cannot be read, all of which are read through for
        it, and list them in the attribute ``skipped_files``.
    say : callable
        Is told in a line how many acquisitions have a mask.
    warn : callable
        Is told what is assumed of reflectances that do not say whether they are divided; by
        default a warning of Python's.
    progress : callable
        Is called with the number of acquisitions opened, and of all.
    """
    bands = tuple(bands)
    if unknown := set(bands) - set(BANDS):
        raise SceneError(
            f"There are no bands {', '.join(sorted(unknown))}. Choose from: {', '.join(BANDS)}."
        )
    cut_to = None if box is None else Box.of(box)
    skipped: Skipped | None = {} if skip_damaged else None
    how = _Opening(bands, calibration, dict(chunks), cut_to, sun_normalised, warn, skipped)
    spans = parse_spans(time)
    if hasattr(source, "available_dataset_names"):
        scene = load_missing_bands(source, bands)
        acquisitions = [("the Scene", how.acquisition(scene, "the Scene"))]
    else:
        files = find_files(source, reader, skipped)
        reader = reader or common_reader(files)
        if reader != SATPY_CF or calibration is not None:
            how.calibration = check_calibration(calibration or "nominal", reader)
        groups = groups_within(spans, group_by_acquisition(files, reader, bands, skipped))
        acquisitions = []
        for count, opened in enumerate(how.each(groups, reader), 1):
            acquisitions.append(opened)
            progress(count, len(groups))
        require_some(acquisitions, skipped)
    times = np.array([opened["time"].values for _, opened in acquisitions])
    inside = in_spans(spans, times)
    if not inside.any():
        raise SceneError(
            f"No acquisition was taken in the time that was asked for: they are of "
            f"{span_text(times)}."
        )
    joined = join_series([acquisitions[index] for index in np.flatnonzero(inside)])
    if how.at_once and "time" in joined.dims:
        chip = joined.sizes["y"] * joined.sizes["x"]
        joined = joined.chunk(time=max(1, CHIP_PIXELS // chip))
    if mask is not None:
        joined = add_mask(
            joined, mask, mask_encoding, cut=how.cut, at_once=how.at_once, skipped=skipped, say=say
        )
    return note_skipped(joined, skipped)


class _Opening:
    """How acquisitions are opened, and the grid of the first, which the others share."""

    def __init__(
        self,
        bands: tuple[str, ...],
        calibration: str | None,
        chunks: dict[str, int],
        box: Any,
        sun_normalised: bool | None,
        warn: Callable[[str], None],
        skipped: Skipped | None,
    ) -> None:
        self.bands, self.calibration, self.chunks, self.box = bands, calibration, chunks, box
        self.sun_normalised, self.warn, self.skipped = sun_normalised, warn, skipped
        self.cut: Cut | None = None
        self.at_once = False
        self._first: xr.Dataset | None = None
        self._assumed = False
        """Whether it was said what is assumed of reflectances: once is enough."""

    def each(self, groups: list[list[Path]], reader: str) -> Iterator[tuple[str, xr.Dataset]]:
        """Yield the name of each acquisition, and the acquisition."""
        for files in groups:
            name, before = str(files[0]), (self._first, self.cut, self.at_once)
            opened = None
            with skipping(group_name(files), self.skipped):
                opened = self._open(files, reader, name, len(groups))
            if opened is None:
                # What is damaged is no measure for others.
                self._first, self.cut, self.at_once = before
            else:
                yield name, opened

    def _open(self, files: list[Path], reader: str, name: str, count: int) -> xr.Dataset:
        if self.box is not None and self.cut is None:
            self._find_window(self._load(files, reader), name, count)
        if self.cut is None or not self.at_once:
            opened = self.acquisition(self._load(files, reader), name)
            if self.skipped is not None:
                with as_damaged(name):
                    read_through(opened)
            return opened
        rows, last = self.cut.window["y"], self.cut.rows
        # So little is read faster without threads.
        with (
            dask.config.set(scheduler="sync"),
            only_lines(files, reader, last - rows.stop, last - rows.start) as some,
        ):
            window = self.cut.window if some == files else {"x": self.cut.window["x"]}
            opened = self.acquisition(self._load(some, reader), name, window)
            with as_satpy_errors(f"{name} cannot be read by satpy's {reader}"):
                opened.load()
        return opened

    def _load(self, files: list[Path], reader: str) -> Any:
        return load_bands(files, reader, self.calibration or "nominal", self.bands)

    def _find_window(self, scene: Any, name: str, count: int) -> None:
        arrays = _checked(scene, self.bands, self.calibration, name, self.sun_normalised)
        whole = _acquisition(arrays, self.chunks, None, name)
        window = self.box.window(whole["longitude"], whole["latitude"])
        self.cut = Cut(window, whole.sizes["y"], whole.sizes["x"])
        pixels = np.prod([part.stop - part.start for part in window.values()])
        self.at_once = bool(4 * (len(self.bands) + 1) * pixels * count <= READ_AT_ONCE)

    def acquisition(self, scene: Any, name: str, window: Window | None = None) -> xr.Dataset:
        """Return one acquisition, cut to the window, on the grid of the first."""
        if self.box is not None and self.cut is None:
            self._find_window(scene, name, 1)
        arrays = _checked(scene, self.bands, self.calibration, name, self.sun_normalised)
        unsaid = [band for band, stated in _statements(arrays).items() if stated is None]
        if unsaid and not self._assumed:
            self._assumed = True
            self.warn(assumption(name, unsaid, normalised=False))
        if window is None and self.cut is not None:
            window = self.cut.window
        if window is not None:
            arrays = {band: _cut(array, window) for band, array in arrays.items()}
        opened = _acquisition(arrays, self.chunks, self._first, name)
        self._first = opened if self._first is None else self._first
        return opened


def _cut(array: xr.DataArray, window: Window) -> xr.DataArray:
    """Return a window of a band, and of its area."""
    cut = array.isel(window)
    area: Any = array.attrs.get("area")
    if area is not None:
        cut.attrs["area"] = area[window.get("y", slice(None)), window.get("x", slice(None))]
    return cut


def _checked(
    scene: Any,
    bands: tuple[str, ...],
    asked: str | None,
    name: str,
    sun_normalised: bool | None = None,
) -> dict[str, xr.DataArray]:
    """Return the bands of a satpy Scene, or raise an error that lists what is wrong with them.

    Without a calibration that was ``asked`` for, it is the one that the first band records. With
    ``sun_normalised``, reflectances have it as their attribute.
    """
    if any(band not in scene for band in bands):
        raise missing_bands_error(name, scene, bands)
    arrays = {band: scene[band] for band in bands}
    recorded = arrays[bands[0]].attrs.get("calibration_mode")
    calibration = str(asked or recorded or "nominal")
    problems = [
        problem
        for band, array in arrays.items()
        for problem in _problems(array, BANDS[band], calibration, sun_normalised)
    ] + find_problems(_statements(arrays), sun_normalised)
    if problems:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise SceneError(f"{name} cannot be used:\n{listed}")
    one_time = {
        band: array.isel(time=0) if "time" in array.dims else array
        for band, array in arrays.items()
    }
    said = {} if sun_normalised is None else {NORMALISED: int(sun_normalised)}
    return {
        band: array.rename(band).assign_attrs(calibration_mode=calibration, **said)
        for band, array in one_time.items()
    }


def _statements(arrays: Mapping[str, xr.DataArray]) -> dict[str, Statement | None]:
    """Return what reflectances say about whether they are divided by the sun's cosine."""
    return {
        band: find_statement(array.attrs)
        for band, array in arrays.items()
        if BANDS[band].quantity == REFLECTANCE
    }


def _problems(
    array: xr.DataArray, band: Band, calibration: str, sun_normalised: bool | None
) -> Iterator[str]:
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
    modifiers = modifiers_of(array.attrs)
    if modifiers and not (sun_normalised and {*modifiers} <= {*SUN_MODIFIERS}):
        yield (
            f"{band.name} was changed by satpy ({', '.join(modifiers)}), but undulatus itself "
            f"divides by the sun: load it without modifiers "
            f'(scene.load([satpy.DataQuery(name="{band.name}", modifiers=())])).'
        )
    recorded = array.attrs.get("calibration_mode", calibration)
    if recorded != calibration:
        yield (
            f"{band.name} was calibrated by {recorded!r}, not {calibration!r}: say so "
            f"(--calibration {recorded}, in Python calibration={recorded!r})."
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
    if first is None:
        place = _place(sample, opened, name)
    else:
        _require_projection(first, sample, name)
        place = shared_place(first, opened, name)
    opened = opened.assign_coords(place).assign_coords(_times(sample, opened, name))
    angle = solar_zenith_angle(
        opened.get("acq_time", opened["time"]), opened["longitude"], opened["latitude"]
    )
    for band, array in arrays.items():
        values, attrs = opened[band], _plain(array.attrs)
        if BANDS[band].quantity == REFLECTANCE:
            stated = find_statement(array.attrs)
            if stated is None or not stated.normalised:
                values = divided_by_sun(values, angle)
            attrs[NORMALISED] = 1
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


def _require_projection(first: xr.Dataset, array: xr.DataArray, name: str) -> None:
    """Raise if a band is seen from elsewhere than the first acquisition, on the same grid."""
    ours, theirs = (getattr(each.attrs.get("area"), "crs", None) for each in (first, array))
    if ours is not None and theirs is not None and ours != theirs:
        raise SceneError(
            f"{name} is in another projection than the first acquisition: {_origin(theirs)}, not "
            f"{_origin(ours)}.\nGive files of one service together, and others by themselves."
        )


def _origin(crs: Any) -> str:
    degrees = crs.to_cf().get("longitude_of_projection_origin")
    return crs.name if degrees is None else f"seen from {degrees:g} degrees east"
