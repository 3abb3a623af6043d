"""Damaged files left out, if that was asked for, and what is known of them.

Many formats are read lazily: that a file can be opened says little. Where damaged files may be
left out, each is read through before it is joined with others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dask
import dask.array as da
import xarray as xr

from undulatus.errors import DamagedFileError, SceneError, UndulatusError, unreadable
from undulatus.scenes.files.images import open_image

SKIPPED = "skipped_files"
"""Attribute of what was read without some files: a line for each, with the reason."""

Skipped = dict[str, str]
"""The first line of the reason for each damaged file that was left out."""

_Path = TypeVar("_Path")
_Opened = TypeVar("_Opened")


@contextmanager
def skipping(name: str, skipped: Skipped | None) -> Iterator[None]:
    """Note a file that is damaged, and go on after the block; without ``skipped``, raise."""
    try:
        yield
    except DamagedFileError as error:
        if skipped is None:
            raise
        skipped[name] = (
            str(error).splitlines()[0].removeprefix(f"{name}: ").removeprefix(name).strip()
        )


def each_sound(
    paths: Iterable[_Path], opening: Callable[[_Path], _Opened], skipped: Skipped | None
) -> list[_Opened]:
    """Return what could be opened; raise if nothing could."""
    opened = []
    for path in paths:
        with skipping(str(path), skipped):
            opened.append(opening(path))
    require_some(opened, skipped)
    return opened


def require_some(opened: Iterable[Any], skipped: Skipped | None) -> None:
    """Raise if all files were left out."""
    if skipped and not list(opened):
        first, reason = next(iter(skipped.items()))
        raise SceneError(
            f"All {len(skipped):,} files are damaged, the first of which is {first}: {reason}"
        )


@contextmanager
def as_damaged(name: str) -> Iterator[None]:
    """Turn errors of the libraries that read a file into one that says that it is damaged."""
    try:
        yield
    except UndulatusError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        raise unreadable(name, error) from error


def read_through(data: xr.Dataset | xr.DataArray) -> None:
    """Read all values, block by block, and keep none."""
    arrays = data.variables.values() if isinstance(data, xr.Dataset) else [data.variable]
    blocks = [
        dask.delayed(_look)(block)
        for array in arrays
        if array.ndim
        for block in da.asarray(array.chunk().data).to_delayed().ravel()
    ]
    dask.compute(*blocks)


def _look(block: Any) -> bool:
    return block is not None


def leave_out_damaged(paths: Iterable[Path]) -> tuple[list[Path], Skipped]:
    """Return the images that can be read from the first to the last pixel, and the others.

    An error if none can.
    """
    skipped: Skipped = {}

    def whole(path: Path) -> Path:
        with as_damaged(str(path)):
            read_through(open_image(path))
        return path

    return each_sound(paths, whole, skipped), skipped


def note_skipped(data: xr.Dataset, skipped: Skipped | None) -> xr.Dataset:
    """Return data with the attribute that lists the files that were left out, if there are any."""
    if not skipped:
        return data
    lines = [f"{name}: {reason}" for name, reason in skipped.items()]
    earlier = data.attrs.get(SKIPPED)
    return data.assign_attrs({SKIPPED: "\n".join([earlier, *lines] if earlier else lines)})
