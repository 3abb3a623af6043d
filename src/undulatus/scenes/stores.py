"""Scenes on disk: opened lazily whatever they are, written whole or not at all."""

from __future__ import annotations

import datetime
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from dask.callbacks import Callback
from dask.system import CPU_COUNT
from threadpoolctl import threadpool_limits
from zarr.errors import BaseZarrError

from undulatus.errors import SceneError
from undulatus.scenes import iasi_native, seviri
from undulatus.scenes.scene import BANDS
from undulatus.scenes.spectra import MEASUREMENTS, is_spectra, open_spectra

Progress = Callable[[int, int], None]


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


def open_map(path: str | os.PathLike[str]) -> xr.Dataset:
    """Open a map that :func:`write_dataset` wrote: a ``.zarr`` folder or a ``.nc`` file."""
    path = Path(path)
    if path.suffix in (".nc", ".nc4") and path.exists():
        return _open(path, engine="netcdf4")
    if path.exists() and not (path.suffix == ".zarr" or (path / "zarr.json").exists()):
        raise SceneError(
            f"{path} is no map: give the .zarr folder or .nc file that undulatus map wrote."
        )
    return open_scene(path)


def _is_satpys(scene: xr.Dataset) -> bool:
    """Say if satpy wrote the file: its reflectances are not divided by the sun's cosine yet."""
    bands = [scene[name].attrs for name in BANDS if name in scene]
    return any("modifiers" in attrs and "sun_normalised" not in attrs for attrs in bands)


def _open(path: Path, **how: Any) -> xr.Dataset:
    try:
        return xr.open_dataset(path, chunks={}, decode_coords="all", **how)
    except (OSError, ValueError, KeyError, BaseZarrError) as error:
        raise SceneError(f"{path} cannot be read: {error}") from error


class _Told(Callback):
    """Tells how many of dask's tasks are done."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._progress = progress
        self._total = 0

    def _start_state(self, dsk: Any, state: Any) -> None:
        self._total = len(state["ready"]) + len(state["waiting"])

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self._progress(len(state["finished"]), self._total)


def write_dataset(
    dataset: xr.Dataset,
    path: str | os.PathLike[str],
    progress: Progress = lambda done, total: None,
) -> None:
    """Write a dataset to ``.zarr`` or ``.nc``, under a temporary name until it is whole.

    Attributes that neither format can hold (a pyresample area) are left out; the projection
    is in the coordinate ``spatial_ref``. ``progress`` is told how many tasks of how many are done.
    """
    path = Path(path)
    writable = _writable(dataset)
    # Blocks run in parallel; BLAS would multiply their threads.
    with (
        whole_or_not_at_all(path) as unfinished,
        threadpool_limits(1),
        _Told(progress),
        _threads_that_end(),
    ):
        if path.suffix == ".zarr":
            with warnings.catch_warnings():
                # Readers expect consolidated metadata, though Zarr 3 has yet to agree on them.
                warnings.filterwarnings("ignore", "Consolidated metadata")
                _evenly(writable).to_zarr(unfinished, consolidated=True)
        elif path.suffix in (".nc", ".nc4"):
            deflated = {
                name: {"zlib": True, "complevel": 1} | array.encoding
                for name, array in writable.data_vars.items()
            }
            writable.to_netcdf(unfinished, engine="netcdf4", encoding=deflated)
        else:
            raise SceneError(f"{path} is to be a .zarr folder or a .nc file: name it so.")


@contextmanager
def _threads_that_end() -> Iterator[None]:
    """Compute in threads that are waited for, also when one of them fails.

    Those of dask's own would go on, and write into a folder that is being removed.
    """
    workers = dask.config.get("num_workers", None) or CPU_COUNT
    with ThreadPoolExecutor(workers) as pool, dask.config.set(pool=pool):
        yield


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, renamed to it at the end, removed on any error."""
    if path.exists():
        raise SceneError(f"{path} exists already. Remove it, or write elsewhere.")
    if not path.parent.is_dir():
        raise SceneError(f"The folder {path.parent} does not exist. Make it first.")
    unfinished = path.with_name(f".{path.stem}.unfinished-{os.getpid()}{path.suffix}")
    try:
        yield unfinished
        unfinished.rename(path)
    except OSError as error:
        raise SceneError(f"{path} could not be written: {error}") from error
    except RuntimeError as error:
        # What netCDF raises on a full disk.
        if not str(error).startswith("NetCDF"):
            raise
        raise SceneError(f"{path} could not be written: {error}. Is the disk full?") from error
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        else:
            unfinished.unlink(missing_ok=True)


def _writable(dataset: xr.Dataset) -> xr.Dataset:
    copy = dataset.copy()
    holders: list[Any] = [copy, *copy.variables.values()]
    for holder in holders:
        plain = {key: _plain(value) for key, value in holder.attrs.items()}
        holder.attrs = {key: value for key, value in plain.items() if value is not None}
    # Not chunks: those of the file the data came from would not fit those in memory.
    kept = ("dtype", "scale_factor", "add_offset", "units", "calendar")
    for variable in copy.variables.values():
        encoding = {key: v for key, v in variable.encoding.items() if key in kept}
        if isinstance(encoding.get("dtype"), np.dtype):
            # Zarr names the order of bytes, which netCDF takes for another than its own.
            encoding["dtype"] = encoding["dtype"].newbyteorder("=")
        # Both stand in the attributes of what was made here, in the encoding of what was read.
        for key in ("_FillValue", "grid_mapping"):
            if key in variable.attrs:
                encoding[key] = variable.attrs.pop(key)
            elif key in variable.encoding:
                encoding[key] = variable.encoding[key]
        variable.encoding = encoding
    return copy


def _evenly(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset in blocks of one size, as Zarr's are; put together, scenes' differ."""
    even = {
        name: variable.chunk({dim: max(sizes) for dim, sizes in variable.chunksizes.items()})
        for name, variable in dataset.variables.items()
        if variable.chunks is not None
    }
    return dataset.assign(even)


def _plain(value: Any) -> Any:
    """Return an attribute in a form that both formats can hold, or None."""
    if isinstance(value, (datetime.datetime, np.datetime64)):
        return str(value)
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (list, tuple)):
        held = all(isinstance(_plain(item), (str, int, float, np.number)) for item in value)
        return [_plain(item) for item in value] if held else None
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "iufSU" else None
    return value if isinstance(value, (str, int, float, np.number)) else None
