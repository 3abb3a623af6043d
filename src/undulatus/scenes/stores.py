"""Scenes on disk: opened lazily whatever they are; written by :mod:`undulatus.scenes.writing`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import xarray as xr
from zarr.errors import BaseZarrError

from undulatus.errors import SceneError
from undulatus.scenes import iasi_native, seviri
from undulatus.scenes.scene import BANDS
from undulatus.scenes.spectra import MEASUREMENTS, is_spectra, open_spectra
from undulatus.scenes.unfinished import whole_or_not_at_all
from undulatus.scenes.writing import write_dataset
from undulatus.scenes.zarr_manifest import verify

__all__ = ["open_data", "open_scene", "verify", "whole_or_not_at_all", "write_dataset"]


def open_scene(path: str | os.PathLike[str], **options: Any) -> xr.Dataset:
    """Open a scene: Zarr or netCDF in the scene's own form, or SEVIRI files through satpy.

    Parameters
    ----------
    path : path
        A ``.zarr`` folder, a ``.nc`` file, or what
        :func:`undulatus.scenes.seviri.open_scene` reads, to which ``options`` go.
    """
    path = Path(path)
    if not path.exists():
        raise SceneError(f"{path} does not exist. Check its name and folder.")
    if path.suffix == ".zarr" or (path / "zarr.json").exists():
        # Consolidated or not, its metadata are there; xarray would warn about the latter.
        return _open(path, engine="zarr", consolidated=False)
    if path.suffix in (".nc", ".nc4"):
        scene = _open(path, engine="netcdf4")
        known = {*BANDS, *MEASUREMENTS} & set(scene.variables)
        if known and not (options or _is_satpys(scene)):
            return scene
        scene.close()
    return seviri.open_scene(path, **options)


def open_data(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open spectra or a scene, whichever a path holds."""
    path = Path(path)
    if path.name.startswith(iasi_native.PREFIX):
        return open_spectra(path)
    opened = open_scene(path)
    # In rows that fit into memory, which files of spectra are not always kept in.
    return open_spectra(path) if is_spectra(opened) else opened


def _is_satpys(scene: xr.Dataset) -> bool:
    """Say if satpy wrote the file: its reflectances are not divided by the sun's cosine yet."""
    bands = [scene[name].attrs for name in BANDS if name in scene]
    return any("modifiers" in attrs and "sun_normalised" not in attrs for attrs in bands)


def _open(path: Path, **how: Any) -> xr.Dataset:
    try:
        return xr.open_dataset(path, chunks={}, decode_coords="all", **how)
    except (OSError, ValueError, KeyError, BaseZarrError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error
