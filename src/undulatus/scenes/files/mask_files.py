"""Level-2 cloud masks from files, brought to the pixels and times of a scene."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.files.zarr_reading import open_zarr
from undulatus.scenes.masks import guess_encoding
from undulatus.scenes.scene import LEVEL2_MASK, MISSING_CODE

Array = npt.NDArray[Any]

MASK_NAMES = (LEVEL2_MASK, "cloud_mask", "cma_extended", "cma")
"""Variables that :func:`open_mask` takes for a mask, in order of preference."""

TOLERANCE = np.timedelta64(450, "s")
"""A mask belongs to an acquisition within half a repeat cycle of it."""


def open_mask(path: str | Path) -> xr.DataArray:
    """Return the mask in a netCDF file or a Zarr store, lazily, in the product's own codes."""
    try:
        # Not masked, so that codes stay integers; decode handles the fill values.
        how: dict[str, Any] = {"chunks": {}, "mask_and_scale": False}
        is_zarr = Path(path).is_dir()
        found = open_zarr(Path(path), **how) if is_zarr else xr.open_dataset(path, **how)
    except (OSError, ValueError) as error:
        raise SceneError(f"{path} cannot be read as a mask: {error}") from error
    for name in MASK_NAMES:
        if name in found:
            return found[name]
    recognised = [array for array in found.data_vars.values() if guess_encoding(array) is not None]
    if len(recognised) == 1:
        return recognised[0]
    raise SceneError(
        f"{path} has no variable that is recognised as a mask.\n"
        f"  found: {', '.join(map(str, found.data_vars)) or 'none'}\n"
        f"Open it with xarray, and pass the variable itself."
    )


def align_mask(mask: xr.DataArray, scene: xr.Dataset) -> xr.DataArray:
    """Return labels on the pixels and times of a scene, 255 where the mask has none.

    Grids of the same size that are less than a pixel apart are matched pixel by pixel, either way
    up: the georeferencing of Level-1.5 data and masks differed by half a pixel until 2017.
    """
    if not {"y", "x"} <= set(mask.dims):
        raise SceneError(f"The mask has dims {mask.dims}, but needs (y, x): rename them.")
    aligned = _align_times(mask, scene).reset_coords(drop=True)
    for dim in ("y", "x"):
        aligned = _align_pixels(aligned, scene, dim)
    coords = {dim: scene.coords[dim] for dim in aligned.dims if dim in scene.coords}
    return aligned.drop_vars("time", errors="ignore").assign_coords(coords)


def _align_times(mask: xr.DataArray, scene: xr.Dataset) -> xr.DataArray:
    several = "time" in scene["time"].dims
    wanted = np.atleast_1d(scene["time"].values)
    dated = mask if "time" in mask.dims else mask.expand_dims("time")
    if "time" not in mask.coords:
        if dated.sizes["time"] != wanted.size:
            raise SceneError(
                f"The mask has no time coordinate, and {dated.sizes['time']} times where the "
                f"scene has {wanted.size}: give it times (mask.assign_coords(time=...))."
            )
        return dated if several else dated.isel(time=0)
    dated = dated.sortby("time")
    index = dated.indexes["time"].get_indexer(wanted, method="nearest", tolerance=TOLERANCE)
    if (index < 0).all():
        raise SceneError(
            f"The mask and the scene have different times.\n"
            f"  mask: {_span(dated['time'].values)}\n  scene: {_span(wanted)}\n"
            f"Use the mask of the scene's time, or correct its own (mask.assign_coords(time=...))."
        )
    found = _select(dated, "time", index)
    return found if several else found.isel(time=0)


def _select(mask: xr.DataArray, dim: str, index: Array) -> xr.DataArray:
    """Select pixels by their index along a dimension; pixels with index -1 are missing."""
    found = mask.isel({dim: index}).drop_vars(dim)
    return found.where(xr.DataArray(index >= 0, dims=dim), np.uint8(MISSING_CODE))


def _span(times: Array) -> str:
    first, last = (np.datetime_as_string(times[i], unit="m") for i in (0, -1))
    return str(first) if first == last else f"{first} to {last}"


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
