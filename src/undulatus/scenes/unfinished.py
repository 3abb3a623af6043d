"""Outputs under a temporary name until they are whole, and errors that say what went wrong."""

from __future__ import annotations

import errno
import os
import shutil
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xarray as xr

from undulatus.errors import SceneError
from undulatus.scenes.locks import lock_of, locked

FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""What the system says when there is no room for what is to be written."""
READERS = {"getter", "getter_inline", "getter_nofancy", "get_duck_array", "__array__"}
"""Functions of dask's and xarray's that read a block of an input."""


class WritingError(OSError):
    """The system refused to write something of an output."""


def name_of_unfinished(path: Path) -> Path:
    """Return the name, beside ``path``, that it has until it is whole."""
    return path.with_name(f".{path.stem}.unfinished{path.suffix}")


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, renamed to it at the end, removed on any error."""
    require_folder(path)
    unfinished = name_of_unfinished(path)
    with as_scene_errors(path), locked(path):
        if path.exists():
            raise SceneError(f"{path} exists already. Remove it, or write elsewhere.")
        # Of a process that was killed: nobody else is writing now.
        remove(unfinished)
        try:
            yield unfinished
            settle(unfinished, path)
        finally:
            remove(unfinished)


def require_folder(path: Path) -> None:
    """Raise an error unless the folder of an output exists."""
    if not path.parent.is_dir():
        raise SceneError(f"The folder {path.parent} does not exist. Make it first.")


def require_space(path: Path, needed: int) -> None:
    """Raise an error if the disk has no room for ``needed`` bytes beside ``path``."""
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise SceneError(
            f"{path} does not fit on its disk.\n"
            f"  needed: {_size(needed)} before compression\n"
            f"  free: {_size(free)}\n"
            f"Free some space, or write to another disk."
        )


def encoded_bytes(variable: xr.Variable) -> int:
    """Return how many bytes the variable takes as it is written, before compression."""
    dtype = np.dtype(variable.encoding.get("dtype", variable.dtype))
    return int(variable.size) * dtype.itemsize


def _size(count: int) -> str:
    unit, name = (2**30, "GiB") if count >= 2**29 else (2**20, "MiB")
    return f"{count / unit:,.1f} {name}"


def settle(unfinished: Path, path: Path) -> None:
    """Give what is finished its name, once all of it is on the disk.

    One ``sync`` of everything took a tenth of the time of one ``fsync`` for each of a Zarr's
    2,000 chunks.
    """
    if unfinished.is_dir():
        os.sync()
    else:
        _flush(unfinished)
    unfinished.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(unfinished: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if unfinished.is_dir():
        # Workers elsewhere may still be writing into it.
        shutil.rmtree(unfinished, ignore_errors=True)
    else:
        unfinished.unlink(missing_ok=True)


@contextmanager
def as_scene_errors(path: Path) -> Iterator[None]:
    """Tell failures of the disk and of inputs as errors that name the output."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # RuntimeError is what netCDF raises on a full disk, and for a damaged input.
        if isinstance(error, RuntimeError) and not str(error).startswith("NetCDF"):
            raise
        raise SceneError(f"{path} {_what_went_wrong(error, path)}") from error


def _what_went_wrong(error: OSError | RuntimeError, path: Path) -> str:
    number = getattr(error, "errno", None)
    if number in FULL:
        return f"could not be written: {error}. Is the disk full?"
    if isinstance(error, WritingError) or not _is_of_an_input(error, path):
        # Libraries do not pass on what the system said.
        full = " Is the disk full?" if number is None else ""
        return f"could not be written: {error}.{full}"
    return f"was not written, for something it is made of cannot be read: {error}."


def _is_of_an_input(error: OSError | RuntimeError, path: Path) -> bool:
    named = getattr(error, "filename", None)
    if isinstance(named, (str, bytes, os.PathLike)):
        parts = Path(os.fsdecode(named)).parts
        ours = (path.name, f".{path.stem}.unfinished", lock_of(path).name)
        return not any(part.startswith(ours) for part in parts)
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name in READERS for frame, _ in frames)
