"""Data on disk, opened lazily whatever they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import xarray as xr
from zarr.errors import BaseZarrError

from undulatus._files import whole_or_not_at_all
from undulatus.errors import SceneError
from undulatus.scenes.files import iasi_native, satpy_files, seviri
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.files.zarr_store import verify
from undulatus.scenes.scene import BANDS
from undulatus.scenes.spectra import is_spectra, open_spectra

RASTERS = (".tif", ".tiff", ".vrt", ".jp2")
"""Names of images that are opened through rasterio."""

RASTER_BLOCK = 1024
"""Rows and columns read at a time from an image."""

CONTIGUOUS_BYTES = 16 * 2**20
"""Bytes read at a time from a variable that lies in its file in one piece."""

__all__ = ["open_data", "open_map", "open_scene", "verify", "whole_or_not_at_all", "write_dataset"]


def open_scene(path: str | os.PathLike[str], **options: Any) -> xr.Dataset:
    """Open a scene: Zarr or netCDF in the scene's own form, or SEVIRI files through satpy.

    Parameters
    ----------
    path : path
        A ``.zarr`` folder, a ``.nc`` file, or what
        :func:`undulatus.scenes.files.seviri.open_scene` reads, to which ``options`` go.
    """
    path = Path(path)
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    if path.suffix == ".zarr" or (path / "zarr.json").exists():
        # Consolidated or not, its metadata are there; xarray would warn about the latter.
        return _open(path, chunks={}, engine="zarr", consolidated=False)
    if path.suffix in (".nc", ".nc4"):
        scene = _open_netcdf(path)
        foreign = options or _is_satpys(scene) or satpy_files.guess(path)
        if not foreign or (set(BANDS) & set(scene.variables) and not _is_satpys(scene)):
            return scene
        scene.close()
    return seviri.open_scene(path, **options)


def open_data(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open spectra, a scene, or an image in GeoTIFF (as ``image``), whichever a path holds."""
    path = Path(path)
    if path.suffix.lower() in RASTERS:
        return _open_raster(path)
    if path.name.startswith(iasi_native.PREFIX):
        return open_spectra(path)
    opened = open_scene(path)
    # In rows that fit into memory, which files of spectra are not always kept in.
    return open_spectra(path) if is_spectra(opened) else opened


def open_map(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a map that :func:`write_dataset` wrote: a ``.zarr`` folder or a ``.nc`` file."""
    path = Path(path)
    if path.suffix in (".nc", ".nc4") and path.exists():
        return _open_netcdf(path)
    if path.exists() and not (path.suffix == ".zarr" or (path / "zarr.json").exists()):
        raise SceneError(
            f"{path} is no map: give the .zarr folder or .nc file that undulatus map wrote."
        )
    return open_scene(path)


def _is_satpys(scene: xr.Dataset) -> bool:
    """Say if satpy wrote the file: its reflectances are not divided by the sun's cosine yet."""
    bands = [scene[name].attrs for name in BANDS if name in scene]
    return any("modifiers" in attrs and "sun_normalised" not in attrs for attrs in bands)


def _open_raster(path: Path) -> xr.Dataset:
    import rioxarray

    # Digital numbers stay as they are: what marks missing ones is told in the attributes.
    chunks = {"band": -1, "y": RASTER_BLOCK, "x": RASTER_BLOCK}
    try:
        opened = rioxarray.open_rasterio(path, chunks=chunks)
    except (OSError, ValueError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    if not isinstance(opened, xr.DataArray):
        raise SceneError(
            f"{path} holds several images of different sizes. Open one of them with rioxarray, "
            f"and give it to undulatus.products.maps.map_scene."
        )
    return opened.to_dataset(name="image")


def _open_netcdf(path: Path) -> xr.Dataset:
    opened = _open(path, chunks=None, engine="netcdf4")
    return opened.assign(
        {
            name: array.chunk(_pieces(array))
            for name, array in opened.variables.items()
            if array.ndim and name not in opened.indexes
        }
    )


def _pieces(array: xr.Variable) -> dict[Any, int]:
    """Return how much of a variable to read at once: a chunk of the file, or some rows."""
    preferred = array.encoding.get("preferred_chunks")
    if preferred:
        return dict(preferred)
    row = max(array.nbytes // max(array.shape[0], 1), 1)
    return {array.dims[0]: max(1, CONTIGUOUS_BYTES // row)}


def _open(path: Path, **how: Any) -> xr.Dataset:
    try:
        opened = xr.open_dataset(path, decode_coords="all", **how)
    except (OSError, ValueError, KeyError, BaseZarrError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
    if not opened.variables:
        raise SceneError(
            f"{path} holds nothing: it is empty, or cut off. Fetch or write it again."
        )
    return opened
