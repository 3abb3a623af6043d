"""Acquisitions of one place joined along time: on one grid, of one platform and calibration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.box import Box
from undulatus.scenes.files.damaged import Skipped
from undulatus.scenes.files.mask_files import Cut, add_mask
from undulatus.scenes.illumination import sun_normalised as divided_by_sun
from undulatus.scenes.normalisation import (
    NORMALISED,
    assumption,
    find_problems,
    find_statement,
    warn_in_python,
)
from undulatus.scenes.scene import (
    BANDS,
    REFLECTANCE,
    acquisition_time,
    find_lonlats,
    find_zenith,
)
from undulatus.scenes.times import in_spans, parse_spans, span_text, with_parsed_times

STATIC = ("land_mask",)
"""Variables that have no time in any scene."""

PLACE = ("y", "x", "longitude", "latitude", "spatial_ref")
"""Coordinates that all acquisitions share."""

_KINDS = {
    "platform_name": "platform",
    "calibration_mode": "calibration",
}
"""Attributes that must be the same in all acquisitions, and what errors call them."""

_ORIGIN = "longitude_of_projection_origin"


def shared_place(first: xr.Dataset, opened: xr.Dataset, name: str) -> dict[str, xr.DataArray]:
    """Return the coordinates of the first acquisition, or raise if another is on another grid."""
    for dim in ("y", "x"):
        same = opened.sizes[dim] == first.sizes[dim]
        if same and dim in first.coords and dim in opened.coords:
            gaps = np.abs(first[dim].values - opened[dim].values)
            same = gaps.max() <= 0.5 * np.abs(np.diff(first[dim].values)).max(initial=0.0)
        if not same:
            raise SceneError(
                f"{name} is on another grid than the first acquisition (along {dim}: "
                f"{opened.sizes[dim]:,} pixels, the first has {first.sizes[dim]:,}).\n"
                f"Give files of one scan mode and one region together, and others by themselves."
            )
    return {key: first.coords[key] for key in PLACE if key in first.coords}


def join_series(acquisitions: Sequence[tuple[str, xr.Dataset]]) -> xr.Dataset:
    """Return one Dataset of all acquisitions, sorted by time; a single one stays as it is.

    Parameters
    ----------
    acquisitions : sequence of (str, Dataset)
        The name of each, for errors, and its Dataset: one acquisition, (y, x) with a scalar
        ``time``, or several, (time, y, x).
    """
    if len(acquisitions) == 1:
        return acquisitions[0][1]
    _require_one_kind(acquisitions)
    parts = [(name, _with_times(name, part)) for name, part in acquisitions]
    first = parts[0][1]
    for name, part in parts[1:]:
        if lacking := {*first.data_vars} ^ {*part.data_vars}:
            raise SceneError(
                f"{name} and {parts[0][0]} have different variables: only one has "
                f"{', '.join(sorted(map(str, lacking)))}."
            )
    _require_different_times(parts)
    timed = all("acq_time" in part.coords for _, part in parts)
    dropped = {*PLACE} - {"y", "x"} | {*STATIC} | (set() if timed else {"acq_time"})
    joined = xr.concat(
        [part.drop_vars(dropped, errors="ignore").drop_indexes("y", errors="ignore")
         .drop_indexes("x", errors="ignore") for _, part in parts],
        dim="time",
        data_vars="all",
        coords="minimal" if not timed else ["acq_time"],
        compat="override",
        join="override",
        combine_attrs="drop_conflicts",
    )  # fmt: skip
    kept = {key: first[key] for key in (*PLACE, *STATIC) if key in first.variables}
    joined = joined.assign({k: v for k, v in kept.items() if k in STATIC}).assign_coords(
        {k: v for k, v in kept.items() if k in PLACE}
    )
    return joined if joined.indexes["time"].is_monotonic_increasing else joined.sortby("time")


def join_stored(
    scenes: Sequence[tuple[str, xr.Dataset]],
    *,
    calibration: str | None = None,
    mask: Any = None,
    mask_encoding: str | None = None,
    time: Any = None,
    box: Any = None,
    sun_normalised: bool | None = None,
    reader: str | None = None,
    skipped: Skipped | None = None,
    say: Callable[[str], None] = lambda line: None,
    warn: Callable[[str], None] = warn_in_python,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> xr.Dataset:
    """Return scenes of Zarr and netCDF as one, of some times and of a box, with a mask.

    The options are those of :func:`undulatus.scenes.files.seviri.open_scene`.
    """
    if reader is not None:
        raise SceneError(
            f"{scenes[0][0]} is a scene, which needs no reader: leave out --reader (in Python, "
            f"reader=...)."
        )
    scenes = [(name, with_parsed_times(scene)) for name, scene in scenes]
    for name, scene in scenes[1:]:
        shared_place(scenes[0][1], scene, name)
    scenes = _normalised(scenes, sun_normalised, warn)
    joined = _calibrated(join_series(scenes), calibration, scenes[0][0])
    joined = _at_times(joined, time, scenes[0][0])
    cut = None
    if box is not None:
        place = find_lonlats(joined)
        if place is None:
            raise SceneError(f"{scenes[0][0]} has no longitude and latitude to cut a box from.")
        cut = Cut(Box.of(box).window(*place), joined.sizes["y"], joined.sizes["x"])
        joined = joined.isel(cut.window)
    progress(len(scenes), len(scenes))
    if mask is None:
        return joined
    if "time" not in joined.coords:
        joined = joined.assign_coords(time=_moment(joined, scenes[0][0]))
    return add_mask(joined, mask, mask_encoding, cut=cut, skipped=skipped, say=say)


def _normalised(
    scenes: Sequence[tuple[str, xr.Dataset]], asked: bool | None, warn: Callable[[str], None]
) -> list[tuple[str, xr.Dataset]]:
    """Return scenes whose reflectances are divided by the cosine of the solar zenith angle.

    Those that are known not to be are divided. Raises if a scene may not be, and does not say.
    """
    found = []
    silent: dict[str, list[str]] = {}
    for name, scene in scenes:
        stated = {
            band.name: find_statement(scene[band.name].attrs, scene.attrs)
            for band in BANDS.values()
            if band.name in scene and band.quantity == REFLECTANCE
        }
        if problems := find_problems(stated, asked):
            listed = "\n".join(f"- {problem}" for problem in problems)
            raise SceneError(f"{name} cannot be used:\n{listed}")
        changed = {}
        for band, statement in stated.items():
            normalised = statement.normalised if asked is None and statement else asked
            if normalised is None:
                silent.setdefault(name, []).append(band)
                continue
            array = scene[band]
            if not normalised:
                array = divided_by_sun(array, find_zenith(scene)).transpose(*array.dims)
            changed[band] = array.assign_attrs({NORMALISED: 1})
        found.append((name, scene.assign(changed)))
    if silent:
        first, bands = next(iter(silent.items()))
        more = f" and {len(silent) - 1:,} more" if len(silent) > 1 else ""
        warn(assumption(f"{first}{more}", bands, normalised=True))
    return found


def _calibrated(scene: xr.Dataset, asked: str | None, name: str) -> xr.Dataset:
    """Return a scene with the calibration that it has, as far as it is known."""
    recorded = scene.attrs.get("calibration_mode")
    if asked is None or recorded == asked:
        return scene
    if recorded is not None:
        raise SceneError(
            f"{name} was calibrated by {recorded!r}, not {asked!r}: leave --calibration out, or "
            f"open the sensor's own files."
        )
    return scene.assign_attrs(calibration_mode=asked)


def _at_times(scene: xr.Dataset, time: Any, name: str) -> xr.Dataset:
    spans = parse_spans(time)
    if not spans:
        return scene
    times = np.atleast_1d(_moment(scene, name).values)
    inside = in_spans(spans, times)
    if not inside.any():
        raise SceneError(
            f"No acquisition was taken in the time that was asked for: they are of "
            f"{span_text(times)}."
        )
    return scene.isel(time=np.flatnonzero(inside)) if "time" in scene.dims else scene


def _moment(scene: xr.Dataset, name: str) -> xr.DataArray:
    """Return the time of a scene, or its times."""
    moment = scene["time"] if "time" in scene.coords else acquisition_time(scene)
    if moment is None:
        raise SceneError(
            f"{name} has no time, by which acquisitions and masks are chosen and joined: write it "
            f"with one (in Python scene.assign_coords(time=...))."
        )
    return moment if "time" in moment.dims or not moment.ndim else moment.min()


def _with_times(name: str, part: xr.Dataset) -> xr.Dataset:
    """Return a scene along the dimension time."""
    if "time" in part.dims:
        return part
    moment = _moment(part, name)
    static = {key: part[key] for key in STATIC if key in part}
    varying = part.drop_vars(["time", *static], errors="ignore")
    return varying.expand_dims(time=[moment.values]).assign(static)


def _require_one_kind(acquisitions: Sequence[tuple[str, xr.Dataset]]) -> None:
    def compare(kind: str, found: list[Any]) -> None:
        known = [(name, value) for name, value in found if value is not None]
        for name, value in known[1:]:
            if value != known[0][1]:
                raise SceneError(
                    f"{known[0][0]} is of {kind} {known[0][1]}, {name} of {value}: give files of "
                    f"one {kind} together, and others by themselves."
                )

    for attribute, kind in _KINDS.items():
        compare(kind, [(name, each.attrs.get(attribute)) for name, each in acquisitions])
    origins = [
        (name, each.coords["spatial_ref"].attrs.get(_ORIGIN))
        for name, each in acquisitions
        if "spatial_ref" in each.coords
    ]
    compare(
        "longitude of projection", [(n, None if o is None else round(o, 2)) for n, o in origins]
    )


def _require_different_times(parts: Sequence[tuple[str, xr.Dataset]]) -> None:
    seen: dict[Any, str] = {}
    for name, part in parts:
        for time in part["time"].values:
            if time in seen:
                where = f"{seen[time]} and {name}" if seen[time] != name else f"{name}, twice"
                moment = np.datetime_as_string(time, unit="s")
                raise SceneError(
                    f"Two acquisitions have the time {moment}: {where}. Leave one out."
                )
            seen[time] = name
