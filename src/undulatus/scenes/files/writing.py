"""Datasets to disk: Zarr, netCDF or GeoTIFF, atomically, block by block.

To add a format, list its suffixes in :data:`WRITERS`.
"""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pyproj
import xarray as xr
from dask.base import get_scheduler
from dask.callbacks import Callback
from xarray.backends import NetCDF4DataStore

from undulatus._files import (
    as_reading_errors,
    as_scene_errors,
    as_writing_errors,
    atomic_write,
    locked,
    require_folder,
    require_space,
)
from undulatus._progress import Stopped, watch_thread
from undulatus._system import count_cores, single_threaded_blas
from undulatus.errors import SceneError
from undulatus.scenes.files import NETCDF

Progress = Callable[[float, float], None]
"""Called with the number of tasks that are done, parts of one too, and of all tasks."""

COSTLY = "costly"
"""What the names of dask arrays begin with whose blocks take nearly all the time."""

GEOTIFF = (".tif", ".tiff", ".gtif", ".img", ".dat")
"""Suffixes of what GDAL writes: GeoTIFF, HFA (``.img``) and ENVI (``.dat``)."""

CONVENTIONS = "CF-1.11"
"""What the attributes of our files follow."""

KEPT_ENCODING = ("dtype", "scale_factor", "add_offset", "units", "calendar")
"""What is written as it was read; not chunks, for blocks in memory may be cut otherwise."""

POLL_SECONDS = 0.5
"""Time between two looks at how much a cluster has written."""


def write_dataset(
    dataset: xr.Dataset,
    path: str | os.PathLike[str],
    progress: Progress = lambda done, total: None,
    *,
    resume: bool = False,
    fingerprint: str = "",
    overwrite: bool = False,
) -> None:
    """Write a dataset as netCDF, Zarr or GeoTIFF, under a temporary name until it is whole.

    Attributes that no format can hold (a pyresample area) are left out; the projection is in the
    coordinate ``spatial_ref``. Blocks are computed in parallel, here or, if there is one, by a
    ``distributed.Client``; those of a Zarr are also written in parallel.

    Parameters
    ----------
    dataset : Dataset
        What to write; lazy variables are computed on the way.
    path : path
        A new ``.zarr`` folder, a ``.nc`` file, or a ``.tif``, ``.img`` (HFA) or ``.dat`` (ENVI)
        file, for which see :func:`undulatus.scenes.files.geotiff.write_geotiff`; codes with
        colours, floats and bits are in files of their own then
        (:func:`undulatus.scenes.files.geotiff.geotiff_paths`).
    progress : callable
        Called with the number of blocks that are done, and of all, or of dask's tasks where none
        is :data:`COSTLY`; for a GeoTIFF, of pixels.
    resume : bool
        Continue a ``.zarr`` that was interrupted: chunks that are finished and whole, by their
        checksums, stay, and only the others are computed. A finished store is checked and
        repaired likewise. If there is nothing to continue, everything is written.
    fingerprint : str
        What the values are made from, such as checksums of a model and a scene. Writing is
        resumed only with the same fingerprint; names, shapes, types, chunks, attributes other
        than ``history``, and values in memory are compared in any case.
    overwrite : bool
        Replace an output that exists, once the new one is whole: a file, or a ``.zarr`` that was
        written here.
    """
    path = Path(path)
    if path.suffix not in WRITERS:
        raise SceneError(
            f"{path} cannot be written: the name must end in one of {', '.join(WRITERS)}."
        )
    if resume and path.suffix not in RESUMABLE:
        resumable = ", ".join(RESUMABLE)
        raise SceneError(
            f"{path} cannot be resumed: only a {resumable} can. Write it again, or write a "
            f"{resumable}."
        )
    if not dataset.variables:
        raise SceneError(f"There is nothing to write to {path}: the dataset has no variables.")
    resuming = {"resume": resume, "fingerprint": fingerprint} if path.suffix in RESUMABLE else {}
    WRITERS[path.suffix](_writable(dataset), path, progress, overwrite=overwrite, **resuming)


def _writable(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset with attributes and encodings that every format can hold."""
    copy = dataset.copy()
    holders: list[Any] = [copy, *copy.variables.values()]
    for holder in holders:
        plain = {key: _plain(value) for key, value in holder.attrs.items()}
        holder.attrs = {key: value for key, value in plain.items() if value is not None}
    for variable in copy.variables.values():
        encoding = {key: v for key, v in variable.encoding.items() if key in KEPT_ENCODING}
        if isinstance(encoding.get("dtype"), np.dtype):
            # Zarr names the byte order, which netCDF takes for another than its own.
            encoding["dtype"] = encoding["dtype"].newbyteorder("=")
        # These are attributes of what was made here, and in the encoding of what was read.
        for key in ("_FillValue", "grid_mapping"):
            if key in variable.attrs:
                encoding[key] = variable.attrs.pop(key)
            elif key in variable.encoding:
                encoding[key] = variable.encoding[key]
        variable.encoding = encoding
    _describe_coordinates(copy)
    return copy


AXES = {"time": "T", "y": "Y", "x": "X"}
"""The attribute ``axis`` of coordinates along dimensions of these names."""


def _describe_coordinates(dataset: xr.Dataset) -> None:
    """Give coordinates what CF asks for: names, axes, no fill value, and how time is counted."""
    for axis in _axes_of_projection(dataset):
        variable = dataset.coords.variables.get(axis["axis"].lower())
        if variable is not None and "units" not in variable.attrs:
            variable.attrs = axis | variable.attrs
    for name, variable in dataset.coords.variables.items():
        if variable.dims == (name,):
            # xarray would add one; CF forbids it along dimensions, where nothing may be missing.
            variable.encoding["_FillValue"] = None
            if name in AXES:
                variable.attrs.setdefault("axis", AXES[str(name)])
        if variable.dtype.kind == "M":
            variable.attrs.setdefault("units_metadata", "leap_seconds: none")


def _axes_of_projection(dataset: xr.Dataset) -> list[dict[str, Any]]:
    """Return CF's attributes of x and y in the projection of a dataset, if it has one."""
    described = dataset.variables.get("spatial_ref")
    if described is None:
        return []
    try:
        return pyproj.CRS.from_cf(described.attrs).cs_to_cf()
    except (pyproj.exceptions.CRSError, KeyError):
        return []


def add_history(attributes: Mapping[Any, Any], made: str) -> dict[str, str]:
    """Return the history of data with these attributes, one step longer: when, by what, how.

    As CF recommends, the line is appended to those of the steps before.
    """
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{now} undulatus {version('undulatus')}: {made}"
    earlier = str(attributes.get("history", "")).rstrip("\n")
    return {"history": f"{earlier}\n{line}".lstrip("\n"), "Conventions": CONVENTIONS}


def _plain(value: Any) -> Any:
    """Return an attribute in a form that all formats can hold, or None."""
    if isinstance(value, (datetime.datetime, np.datetime64)):
        return str(value)
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, (list, tuple)):
        items = [_plain(item) for item in value]
        return items if all(isinstance(i, (str, int, float, np.number)) for i in items) else None
    if isinstance(value, np.ndarray):
        return value if value.dtype.kind in "iufSU" else None
    return value if isinstance(value, (str, int, float, np.number)) else None


def encoded_bytes(variable: xr.Variable) -> int:
    """Return how many bytes the variable takes as it is written, before compression."""
    dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
    return int(variable.size) * dtype.itemsize


# Formats


def _write_zarr(dataset: xr.Dataset, path: Path, progress: Progress, **resuming: Any) -> None:
    from undulatus.scenes.files.zarr_store import write_zarr

    require_folder(path)
    with as_scene_errors(path), locked(path):
        write_zarr(dataset, path, progress, **resuming)


def _write_geotiff(
    dataset: xr.Dataset, path: Path, progress: Progress, *, overwrite: bool
) -> None:
    from undulatus.scenes.files.geotiff import geotiff_paths, require_new_map, write_geotiff

    if not overwrite:
        require_new_map(dataset, path)
    paths = geotiff_paths(dataset, path)
    with ExitStack() as outputs:
        # The first is finished last: where it is, the others are.
        unfinished = [
            outputs.enter_context(atomic_write(each, overwrite=overwrite)) for each in paths
        ]
        write_geotiff(dataset, paths, unfinished, progress)


def _write_netcdf(dataset: xr.Dataset, path: Path, progress: Progress, *, overwrite: bool) -> None:
    with atomic_write(path, overwrite=overwrite) as unfinished:
        _fill_netcdf(_with_numbered_labels(dataset), path, unfinished, progress)


WRITERS: dict[str, Callable[..., None]] = {
    ".zarr": _write_zarr,
    **dict.fromkeys(NETCDF, _write_netcdf),
    **dict.fromkeys(GEOTIFF, _write_geotiff),
}
"""Writers by the suffix of the output; each is called with a dataset whose attributes every format
can hold, the path, a :data:`Progress` and ``overwrite``, and leaves the output whole or not at
all."""

RESUMABLE = (".zarr",)
"""Suffixes whose writers also take ``resume`` and ``fingerprint``, to continue later."""


# netCDF


NUMBERED = "_index"
"""What is added to the name of a coordinate of text to name its dimension in netCDF."""


def _with_numbered_labels(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset whose coordinates of text are along dimensions of other names.

    To CF a coordinate with the name of its dimension is numbers.
    """
    labels = [
        name for name, c in dataset.coords.items() if c.dims == (name,) and c.dtype == object
    ]
    return dataset.rename_dims({name: f"{name}{NUMBERED}" for name in labels})


def with_named_labels(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset as it was before it was written to netCDF."""
    return dataset.swap_dims(
        {
            f"{name}{NUMBERED}": name
            for name, c in dataset.coords.items()
            if c.dims == (f"{name}{NUMBERED}",)
        }
    )


def _fill_netcdf(dataset: xr.Dataset, path: Path, unfinished: Path, progress: Progress) -> None:
    require_space(path, sum(encoded_bytes(v) for v in dataset.variables.values()))
    deflated = {
        name: {"zlib": True, "complevel": 1} | array.encoding
        for name, array in dataset.data_vars.items()
    }
    # Like to_netcdf, but keeps write errors apart from errors in reading the inputs.
    with as_writing_errors(RuntimeError):
        store = NetCDF4DataStore.open(unfinished, mode="w", autoclose=uses_cluster())
    try:
        lazy = _NetcdfWriter()
        dataset.dump_to_store(store, writer=lazy, encoding=deflated)
        if uses_cluster():
            store.close()
        if lazy.sources:
            with as_reading_errors(), computing_in_threads(progress):
                da.store(lazy.sources, lazy.targets, lock=False)
    finally:
        with as_writing_errors(RuntimeError):
            store.close()


class _NetcdfWriter:
    """Writes the variables in memory that xarray gives it, and collects the lazy ones."""

    def __init__(self) -> None:
        self.sources: list[da.Array] = []
        self.targets: list[Any] = []

    def add(self, source: Any, target: Any, region: Any = None) -> None:
        if isinstance(source, da.Array):
            self.sources.append(source)
            self.targets.append(_NetcdfTarget(target))
        else:
            _NetcdfTarget(target)[...] = source


@dataclass(frozen=True)
class _NetcdfTarget:
    """A variable of a netCDF file, which takes care of its own locking."""

    variable: Any

    def __setitem__(self, region: Any, values: Any) -> None:
        with as_writing_errors(RuntimeError):
            self.variable[region] = values


# Computing


@contextmanager
def computing_in_threads(progress: Progress | None = None) -> Iterator[None]:
    """Let dask compute in threads that are waited for, even when one of them fails.

    dask's own threads would go on, and write into a folder that is being removed. Blocks run in
    parallel, so BLAS has one thread for each.
    """
    workers = dask.config.get("num_workers", None) or count_cores()
    count = TaskCount(progress or (lambda done, total: None))
    with (
        single_threaded_blas(),
        ThreadPoolExecutor(workers, initializer=watch_thread, initargs=(count.watch,)) as pool,
        dask.config.set(pool=pool),
        count,
    ):
        yield


class TaskCount(Callback):
    """Reports how many of dask's tasks in this process are done.

    If there are :data:`COSTLY` ones only these count, with the share of each under way that
    :func:`~undulatus._progress.report_block` reports. After an error or an interrupt they are
    stopped where they next report.
    """

    def __init__(self, progress: Progress) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._progress = progress
        self._counted: set[Any] = set()
        self._done = 0
        self._shares: dict[int, float] = {}
        self._lock = threading.Lock()
        self._stopped = False

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._stopped = kind is not None
        super().__exit__(kind, *error)  # type: ignore[no-untyped-call]

    def watch(self, share: float | None) -> None:
        """Take the share that the calling thread has done of its block."""
        if self._stopped:
            raise Stopped
        if share is not None:
            with self._lock:
                self._shares[threading.get_ident()] = share
                self._report()

    def _start_state(self, dsk: Any, state: Any) -> None:
        tasks = [*state["ready"], *state["waiting"]]
        names = [str(task[0] if isinstance(task, tuple) else task) for task in tasks]
        costly = {task for task, name in zip(tasks, names, strict=True) if name.startswith(COSTLY)}
        self._counted, self._done = costly or set(tasks), 0
        self._shares.clear()

    def _posttask(self, key: Any, result: Any, dsk: Any, state: Any, worker_id: Any) -> None:
        with self._lock:
            if key in self._counted:
                self._done += 1
                self._shares.pop(worker_id, None)
                self._report()

    def _report(self) -> None:
        # Rounded: sums in another order differ in their last digit, and progress never goes back.
        self._progress(round(self._done + sum(self._shares.values()), 9), len(self._counted))


def uses_cluster() -> bool:
    """Return whether a ``distributed.Client`` computes, not this process."""
    client = getattr(get_scheduler(), "__self__", None)
    return hasattr(client, "scheduler_info")


@contextmanager
def polling_progress(count: Callable[[], int], total: int, progress: Progress) -> Iterator[None]:
    """Report progress twice a second by counting what is done, where a cluster computes."""
    over = threading.Event()

    def poll() -> None:
        while not over.wait(POLL_SECONDS):
            progress(min(count(), total), total)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    progress(total, total)
