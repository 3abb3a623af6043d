"""How blocks are computed while they are written: threads, and what is told of progress.

Datasets to disk: Zarr, netCDF or GeoTIFF, whole or not at all, and nothing lost on the way.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import xarray as xr
from dask.base import get_scheduler
from dask.callbacks import Callback

from undulatus._files import (
    as_scene_errors,
    locked,
    require_folder,
    require_space,
    whole_or_not_at_all,
)
from undulatus._system import count_cores, single_threaded_blas
from undulatus.errors import SceneError

Progress = Callable[[int, int], None]


class _Told(Callback):
    """Tells how many of dask's tasks are done; it hears of this process alone."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._progress = progress
        self._total = 0

    def _start_state(self, dsk: Any, state: Any) -> None:
        self._total = len(state["ready"]) + len(state["waiting"])

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        self._progress(len(state["finished"]), self._total)


@contextmanager
def computed_here(progress: Progress | None = None) -> Iterator[None]:
    """Compute in threads that are waited for, also when one of them fails.

    Those of dask's own would go on, and write into a folder that is being removed. Blocks run in
    parallel; BLAS would multiply their threads, so it has one.
    """
    workers = dask.config.get("num_workers", None) or count_cores()
    with (
        single_threaded_blas(),
        ThreadPoolExecutor(workers) as pool,
        dask.config.set(pool=pool),
        _Told(progress or _ignored),
    ):
        yield


def _ignored(done: int, total: int) -> None: ...


def is_elsewhere() -> bool:
    """Say if a ``distributed.Client`` computes, not this process."""
    client = getattr(get_scheduler(), "__self__", None)
    return hasattr(client, "scheduler_info")


@contextmanager
def polled(count: Callable[[], int], total: int, progress: Progress) -> Iterator[None]:
    """Tell progress twice a second by counting what is done, where tasks run elsewhere."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(0.5):
            progress(min(count(), total), total)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()
    progress(total, total)


NETCDF = (".nc", ".nc4")

GEOTIFF = (".tif", ".tiff")


def write_dataset(
    dataset: xr.Dataset,
    path: str | os.PathLike[str],
    progress: Progress = lambda done, total: None,
    *,
    resume: bool = False,
    fingerprint: str = "",
) -> None:
    """Write a dataset to ``.zarr``, ``.nc`` or ``.tif``, under a temporary name until it is whole.

    Attributes that no format can hold (a pyresample area) are left out; the projection is in the
    coordinate ``spatial_ref``. Blocks are computed in parallel, here or, if there is one, by a
    ``distributed.Client``; a Zarr's are written in parallel too.

    Parameters
    ----------
    dataset : Dataset
        What to write; lazy variables are computed on the way.
    path : path
        A new ``.zarr`` folder, a ``.nc`` file, or a ``.tif`` file, for which see
        :func:`undulatus.scenes.files.geotiff.write_geotiff`.
    progress : callable
        Told how many of how many tasks are done; of a GeoTIFF's, rows of chunks.
    resume : bool
        Go on with a ``.zarr`` that was interrupted: chunks that are finished and whole, by their
        checksums, stay, and only others are computed. Those of a finished one are checked
        likewise. Where there is nothing to go on with, all is written.
    fingerprint : str
        What the values are made from, such as checksums of a model and a scene. Writing is
        resumed only under the same one; names, shapes, types, chunks, attributes other than
        ``history``, and values in memory are compared in any case.
    """
    path = Path(path)
    if path.suffix not in (".zarr", *NETCDF, *GEOTIFF):
        raise SceneError(f"{path} is to be a .zarr folder, a .nc file or a .tif file: name it so.")
    if resume and path.suffix != ".zarr":
        raise SceneError(
            f"{path} cannot be resumed: only a .zarr can. Write it anew, or write a .zarr."
        )
    if not dataset.variables:
        raise SceneError(f"There is nothing to write to {path}: the dataset has no variables.")
    writable = _writable(dataset)
    if path.suffix == ".zarr":
        from undulatus.scenes.files.zarr_store import write_zarr

        require_folder(path)
        with as_scene_errors(path), locked(path):
            write_zarr(writable, path, progress, resume=resume, fingerprint=fingerprint)
        return
    with whole_or_not_at_all(path) as unfinished:
        if path.suffix in NETCDF:
            _write_netcdf(writable, path, unfinished, progress)
        else:
            from undulatus.scenes.files.geotiff import write_geotiff

            write_geotiff(writable, path, unfinished, progress)


def _write_netcdf(dataset: xr.Dataset, path: Path, unfinished: Path, progress: Progress) -> None:
    require_space(path, sum(encoded_bytes(v) for v in dataset.variables.values()))
    deflated = {
        name: {"zlib": True, "complevel": 1} | array.encoding
        for name, array in dataset.data_vars.items()
    }
    with computed_here(progress):
        dataset.to_netcdf(unfinished, engine="netcdf4", encoding=deflated)


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


def encoded_bytes(variable: xr.Variable) -> int:
    """Return how many bytes the variable takes as it is written, before compression."""
    dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
    return int(variable.size) * dtype.itemsize
