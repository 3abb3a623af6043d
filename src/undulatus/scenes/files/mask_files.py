"""Level-2 cloud masks from files, brought to the pixels and times of a scene."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.box import Window
from undulatus.scenes.files import NETCDF
from undulatus.scenes.files.damaged import (
    Skipped,
    as_damaged,
    read_through,
    require_some,
    skipping,
)
from undulatus.scenes.files.images import RASTERS
from undulatus.scenes.files.netcdf import open_netcdf
from undulatus.scenes.files.satpy_files import as_paths, as_satpy_errors, import_satpy
from undulatus.scenes.files.zarr_reading import open_zarr
from undulatus.scenes.masks import decode, guess_encoding
from undulatus.scenes.scene import LEVEL2_MASK, MISSING_CODE
from undulatus.scenes.times import NAME_MARGIN, span_text, time_in_name

Array = npt.NDArray[Any]

MASK_NAMES = (LEVEL2_MASK, "cloud_mask", "cma_extended", "cma", "CMa")
"""Variables that :func:`open_mask` takes for a mask, in order of preference."""

TOLERANCE = np.timedelta64(450, "s")
"""A mask belongs to an acquisition within half a repeat cycle of it."""


@dataclass(frozen=True)
class Cut:
    """The window that a scene was cut to, and the rows and columns that there were before."""

    window: Window
    rows: int
    columns: int


def add_mask(
    scene: xr.Dataset,
    mask: Any,
    encoding: str | None = None,
    *,
    cut: Cut | None = None,
    at_once: bool = False,
    skipped: Skipped | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> xr.Dataset:
    """Return a scene with a Level-2 mask as ``cloud_mask_l2``.

    Parameters
    ----------
    scene : Dataset
        One acquisition, or several.
    mask : path, paths or DataArray
        Files whose names tell a time that no acquisition is near are not opened. Several must
        have one size, and each a time.
    encoding : str, optional
        One of :data:`undulatus.scenes.masks.ENCODINGS`; found from its attributes by default.
    cut : Cut, optional
        How the scene was cut: masks of the whole that have no coordinates are cut alike.
    at_once : bool
        Whether to read masks now, and keep only the pixels of the scene.
    skipped : dict, optional
        Gets the files that cannot be read, which are left out; without it, they are an error.
    say : callable
        Is told how many acquisitions have a mask, and how many masks belong to none.
    """
    times = np.atleast_1d(scene["time"].values)
    given: list[Any] = [mask] if isinstance(mask, xr.DataArray) else as_paths(mask)
    near = [each for each in given if not isinstance(each, Path) or _may_belong(each, times)]
    if not near:
        raise _other_times(np.array([time_in_name(path.name) for path in given]), times)
    placed = []
    for each in near:  # A mask of the whole disc is 110 MB: one at a time.
        with skipping(str(each) if isinstance(each, Path) else "mask", skipped):
            in_memory = isinstance(each, xr.DataArray)
            labels = decode(each, encoding) if in_memory else _decoded(each, encoding, at_once)
            part = _place_mask(labels, scene, cut)
            if at_once or skipped is not None:
                with as_damaged(str(each)):
                    part = part.load() if at_once else part
                    read_through(part)
            placed.append(part)
    require_some(placed, skipped)
    aligned, index = _align_times(_joined(placed), scene)
    if index is not None:
        masks = len(given) - len(near) + sum(each["time"].size for each in placed)
        found = index[index >= 0]
        say(
            f"masks: {found.size:,} of {index.size:,} acquisitions have one, "
            f"{masks - np.unique(found).size:,} masks belong to none"
        )
    bands = next(iter(scene.data_vars.values()))
    coords = {dim: scene.coords[dim] for dim in aligned.dims if dim in scene.coords}
    labels = aligned.drop_vars("time", errors="ignore").assign_coords(coords)
    return scene.assign({LEVEL2_MASK: labels.chunk(bands.chunksizes)})


def _may_belong(path: Path, times: Array) -> bool:
    """Return whether the name of a mask tells no time, or one near an acquisition."""
    told = time_in_name(path.name)
    return told is None or bool(np.any(np.abs(times - told) <= TOLERANCE + NAME_MARGIN))


def _decoded(path: Path, encoding: str | None, at_once: bool) -> xr.DataArray:
    """Return the labels of a mask with a time: its own, or the one that its name tells."""
    try:
        labels = decode(_open_any(path, at_once), encoding)
    except SceneError as error:
        if str(path) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    told = time_in_name(path.name)
    if "time" in labels.coords or told is None:
        return labels
    return labels.assign_coords(time=told)


def _open_any(path: Path, at_once: bool) -> xr.DataArray:
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    if path.is_dir() or path.suffix in (*NETCDF, ".h5", ".zarr"):
        return open_mask(path)
    if path.suffix.lower() in RASTERS:
        raise SceneError(
            f"{path} is an image, but masks are GRIB (CLM), netCDF, HDF5 or Zarr. Labels "
            f"of images are given by --label (in Python label=...)."
        )
    mask = _read_grib(path)
    if at_once:
        return mask
    # satpy has read all of it: forget that, and read it again when it is needed.
    values = dask.delayed(lambda: np.asarray(_read_grib(path).values))()
    return mask.copy(data=da.from_delayed(values, mask.shape, mask.dtype))


def _read_grib(path: Path) -> xr.DataArray:
    with as_satpy_errors(f"{path} cannot be read by satpy's seviri_l2_grib"):
        scene = import_satpy().Scene(filenames=[str(path)], reader="seviri_l2_grib")
        scene.load(["cloud_mask"], upper_right_corner="NE")
        return scene["cloud_mask"]


def _joined(masks: list[xr.DataArray]) -> xr.DataArray:
    """Return masks along time; one without a time stays as it is."""
    if len(masks) == 1:
        return masks[0]
    if not all("time" in each.coords for each in masks):
        raise SceneError(
            "Several masks must each have a time, in their attributes or in their names: give "
            "them their original names (in Python, or combine them by xr.concat)."
        )
    return xr.concat(masks, "time", coords="minimal", compat="override", join="override")


def open_mask(path: str | Path) -> xr.DataArray:
    """Return the mask in a netCDF or HDF5 file or a Zarr store, lazily, in the product's codes."""
    path = Path(path)
    # Not masked, so that codes stay integers; decode handles the fill values.
    how: dict[str, Any] = {"chunks": {}, "mask_and_scale": False}
    found = open_zarr(path, **how) if path.is_dir() else open_netcdf(path, **how)
    for name in MASK_NAMES:
        if name in found:
            return _with_rows_and_columns(found[name])
    recognised = [array for array in found.data_vars.values() if guess_encoding(array) is not None]
    if len(recognised) == 1:
        return _with_rows_and_columns(recognised[0])
    raise SceneError(
        f"{path} has no variable that is recognised as a mask.\n"
        f"  found: {', '.join(map(str, found.data_vars)) or 'none'}\n"
        f"Call it {MASK_NAMES[1]} (ncrename -v; in Python, pass the variable itself)."
    )


def _with_rows_and_columns(mask: xr.DataArray) -> xr.DataArray:
    """Return a mask with dims y and x, which NWC SAF calls ny and nx, and HDF5 does not name."""
    if mask.ndim == 2 and all(str(dim).startswith("phony_dim") for dim in mask.dims):
        return mask.rename(dict(zip(mask.dims, ("y", "x"), strict=True)))
    return mask.rename({old: new for old, new in (("ny", "y"), ("nx", "x")) if old in mask.dims})


def align_mask(mask: xr.DataArray, scene: xr.Dataset) -> xr.DataArray:
    """Return labels on the pixels and times of a scene, 255 where the mask has none.

    Grids of the same size that are less than a pixel apart are matched pixel by pixel, either way
    up: the georeferencing of Level-1.5 data and masks differed by half a pixel until 2017.
    """
    aligned, _ = _align_times(_place_mask(mask, scene), scene)
    coords = {dim: scene.coords[dim] for dim in aligned.dims if dim in scene.coords}
    return aligned.drop_vars("time", errors="ignore").assign_coords(coords)


def _place_mask(mask: xr.DataArray, scene: xr.Dataset, cut: Cut | None = None) -> xr.DataArray:
    """Return labels on the pixels of a scene, with no coordinate but their time."""
    if not {"y", "x"} <= set(mask.dims):
        raise SceneError(
            f"The mask has dims {mask.dims}, but needs (y, x): rename them (ncrename -d)."
        )
    others = [name for name in mask.coords if name not in ("time", "y", "x")]
    placed = mask.drop_vars(others)
    whole = cut is not None and (mask.sizes["y"], mask.sizes["x"]) == (cut.rows, cut.columns)
    if cut is not None and whole and not {"y", "x"} <= set(mask.indexes):
        placed = placed.isel(cut.window)
    for dim in ("y", "x"):
        placed = _align_pixels(placed, scene, dim)
    return placed


def _align_times(mask: xr.DataArray, scene: xr.Dataset) -> tuple[xr.DataArray, Array | None]:
    """Return a mask at the times of a scene, and the index of each (-1 none) if it has times."""
    several = "time" in scene["time"].dims
    wanted = np.atleast_1d(scene["time"].values)
    dated = mask if "time" in mask.dims else mask.expand_dims("time")
    if "time" not in mask.coords:
        if dated.sizes["time"] != wanted.size:
            raise SceneError(
                f"The mask has no time coordinate, and {dated.sizes['time']} times where the "
                f"scene has {wanted.size}: choose scenes to match (--time), or give it times (in "
                f"Python mask.assign_coords(time=...))."
            )
        return (dated if several else dated.isel(time=0)), None
    dated = dated.sortby("time")
    times = dated.indexes["time"]
    if not times.is_unique:
        twice = np.datetime_as_string(dated["time"].values[times.duplicated()][0], unit="s")
        raise SceneError(f"Two masks have the time {twice}. Leave one out.")
    index = times.get_indexer(wanted, method="nearest", tolerance=TOLERANCE)
    if (index < 0).all():
        raise _other_times(dated["time"].values, wanted)
    found = _select(dated, "time", index)
    return (found if several else found.isel(time=0)), index


def _other_times(masks: Array, wanted: Array) -> SceneError:
    return SceneError(
        f"The mask and the scene have different times.\n"
        f"  mask: {span_text(masks)}\n  scene: {span_text(wanted)}\n"
        f"Use the mask of the scene's time (within 7.5 minutes), or correct its own "
        f"(in Python mask.assign_coords(time=...))."
    )


def _select(mask: xr.DataArray, dim: str, index: Array) -> xr.DataArray:
    """Select pixels by their index along a dimension; pixels with index -1 are missing."""
    found = mask.isel({dim: index}).drop_vars(dim)
    return found.where(xr.DataArray(index >= 0, dims=dim), np.uint8(MISSING_CODE))


def _align_pixels(mask: xr.DataArray, scene: xr.Dataset, dim: str) -> xr.DataArray:
    theirs, ours = (each.indexes.get(dim) for each in (mask, scene))
    if theirs is None or ours is None:
        if mask.sizes[dim] != scene.sizes[dim]:
            raise SceneError(
                f"The mask has {mask.sizes[dim]} pixels along {dim}, the scene "
                f"{scene.sizes[dim]}: crop or resample the mask to the scene."
            )
        return mask.drop_vars(dim, errors="ignore")
    pixel = abs(float(ours[1] - ours[0])) if ours.size > 1 else np.inf
    if theirs.size == ours.size:
        for step in (1, -1):
            if np.abs(theirs.values[::step] - ours.values).max() < pixel:
                return mask.isel({dim: slice(None, None, step)}).drop_vars(dim)
    index = theirs.get_indexer(ours, method="nearest", tolerance=pixel / 2)
    if (index < 0).all():
        raise SceneError(
            f"The mask and the scene have no pixel in common along {dim}: use a mask of the "
            f"scene's region and projection."
        )
    return _select(mask, dim, index)
