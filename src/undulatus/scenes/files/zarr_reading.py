"""Zarr read with checks: a chunk that was lost or damaged is an error, never values.

Zarr reads a missing chunk as fill values without saying so, and a damaged one may still decode.
Stores that :mod:`undulatus.scenes.files.zarr_store` wrote list their objects: all must be there in
their lengths when a store is opened, and the bytes of each are held against their SHA-256 whenever
they are read. Of stores of other programs, where a missing chunk may be meant, a chunk that was
there at opening must be there when it is read, and must decode.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import xarray as xr
import zarr
from xarray.backends import ZarrStore
from xarray.backends.zarr import ZarrArrayWrapper
from xarray.core.indexing import LazilyIndexedArray
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.errors import BaseZarrError
from zarr.storage import LocalStore

from undulatus.errors import DamagedFileError, UndulatusError, unreadable
from undulatus.scenes.files.zarr_store import (
    MANIFEST_NAME,
    METADATA_NAME,
    Manifest,
    find_manifest,
)

Objects = dict[str, tuple[int, str] | None]
"""Length and SHA-256 of the objects of a store by their keys; None where they are not known."""

BLOSC_HEADER = 16
"""Bytes that a chunk of Blosc begins with; the last four say how long it is."""

REMEDY = "Restore it from a copy, or make the store again."


def open_zarr(path: Path, **options: Any) -> xr.Dataset:
    """Open a folder of Zarr whose chunks are checked when they are read.

    Parameters
    ----------
    path : path
        A folder.
    options
        Passed to :func:`xarray.open_dataset`.
    """
    # Workers may be in another folder.
    path = path.absolute()
    try:
        store = CheckedStore(path, _objects_of(path))
        # Whether its metadata are consolidated or not, these can be read; xarray would warn.
        group = _CheckedGroup.open_group(store, mode="r", consolidated=False)
        return xr.open_dataset(group, engine="store", **options)
    except UndulatusError:
        raise
    except (OSError, ValueError, KeyError, TypeError, BaseZarrError) as error:
        raise unreadable(path, error) from error


def _objects_of(path: Path) -> Objects:
    """Return what is to be expected of a store; raise if it is incomplete already."""
    found = dict(_listed(path))
    if find_manifest(path) is None:
        return dict.fromkeys(found)
    manifest = Manifest.of(path)
    # A line of the list may be lost as well: what either part of it names has to be there.
    keys = dict.fromkeys([*manifest.expected(), *manifest.objects])
    bad = [key for key in keys if found.get(key) != manifest.objects.get(key, (-1, ""))[0]]
    if bad:
        raise _damage(path, bad[0], found.get(bad[0]), manifest.objects.get(bad[0]), len(bad))
    return dict.fromkeys(found) | manifest.objects


def _listed(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the key and the length of every object in a store."""
    folders = [("", os.fspath(path))]
    while folders:
        prefix, folder = folders.pop()
        if not os.path.isdir(folder):
            continue
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append((f"{prefix}{entry.name}/", entry.path))
                elif entry.name != MANIFEST_NAME:
                    yield f"{prefix}{entry.name}", entry.stat().st_size


def _damage(
    root: Path, key: str, length: int | None, written: tuple[int, str] | None, count: int = 1
) -> DamagedFileError:
    """Return the error for an object of a store that is not as it was written."""
    if length is None:
        what, found = "is missing", "no such file"
    elif written is None:
        what, found = "is not in the list of what was written", f"{length:,} bytes"
    elif length != written[0]:
        what, found = "is damaged", f"{length:,} bytes"
    else:
        what, found = "is damaged", "the same length, but another SHA-256"
    if count > 1:
        what += f", one of {count:,} that are not as they were written"
    if written is not None:
        found += f"\n  written: {written[0]:,} bytes"
    remedy, file = REMEDY, find_manifest(root)
    if file is not None:
        remedy += (
            f"\nIf another program changed the store on purpose, remove {file}: it is read "
            f"without checks then."
        )
    return DamagedFileError(
        f"{root}: {_name(key)} {what}.\n  file: {root / key}\n  found: {found}\n{remedy}"
    )


def _name(key: str) -> str:
    array, _, chunk = key.partition("/")
    return f"chunk {chunk} of {array}" if _is_chunk(key) else f"the metadata {key}"


def _is_chunk(key: str) -> bool:
    """Return whether an object is a chunk of an array; metadata of format 2 begin with a dot."""
    array, _, name = key.rpartition("/")
    return bool(array) and name != METADATA_NAME and not name.startswith(".")


class CheckedStore(LocalStore):
    """A folder of Zarr whose objects are read only if they are as they were written.

    It can be sent to other processes, which then check what they read.

    Parameters
    ----------
    root : path
        The folder.
    objects : dict
        What to expect of each object; others may be missing.
    """

    by_blosc = False
    """Whether chunks are as Blosc compressed them, and so say how long they are."""

    def __init__(self, root: Path, objects: Objects, *, read_only: bool = True) -> None:
        super().__init__(root, read_only=read_only)
        self.objects = objects

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same store: reading is all it is for."""
        return self

    def only(self, name: str) -> CheckedStore:
        """Return the store with what one array needs, to be sent with it."""
        own = {key: value for key, value in self.objects.items() if key.startswith(f"{name}/")}
        return CheckedStore(self.root, own)

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read an object and check it."""
        try:
            value = await super().get(key, prototype, byte_range)
        except OSError as error:
            raise self._unreadable(key, error) from error
        if key in self.objects:
            # Not in zarr's only event loop, where all threads would wait for it.
            await asyncio.to_thread(self._check, key, value, byte_range)
        return value

    def get_sync(
        self,
        key: str,
        *,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Read an object and check it, without awaiting."""
        try:
            value = super().get_sync(key, prototype=prototype, byte_range=byte_range)
        except OSError as error:
            raise self._unreadable(key, error) from error
        if key in self.objects:
            self._check(key, value, byte_range)
        return value

    def _check(self, key: str, value: Buffer | None, byte_range: ByteRequest | None) -> None:
        written = self.objects[key]
        if value is None:
            raise _damage(self.root, key, None, written)
        # Parts have no checksum: of shards, which only other programs write.
        if byte_range is not None:
            return
        content = value.as_numpy_array()
        if self.by_blosc and _is_chunk(key):
            self._check_blosc(key, content[:BLOSC_HEADER].tobytes(), len(content))
        if written is None:
            return
        if len(content) != written[0] or hashlib.sha256(content.data).hexdigest() != written[1]:
            raise _damage(self.root, key, len(content), written)

    def _check_blosc(self, key: str, header: bytes, length: int) -> None:
        """Raise if a chunk is not as long as it says: Blosc would read beyond its end."""
        written = int.from_bytes(header[BLOSC_HEADER - 4 :], "little")
        if length < BLOSC_HEADER or length != written:
            said = f", where its header says {written:,}" if length >= BLOSC_HEADER else ""
            raise self._unreadable(key, f"{length:,} bytes{said}", "cannot be decoded")

    def _unreadable(
        self, key: str, found: object, what: str = "cannot be read"
    ) -> DamagedFileError:
        return DamagedFileError(
            f"{self.root}: {_name(key)} {what}.\n  file: {self.root / key}\n"
            f"  found: {found}\n{REMEDY}"
        )


class _CheckedGroup(ZarrStore):
    """Xarray's view of a group, whose arrays name their chunks in errors."""

    __slots__ = ()

    def open_store_variable(self, name: str) -> xr.Variable:
        variable: xr.Variable = super().open_store_variable(name)  # type: ignore[no-untyped-call]
        store: Any = self.zarr_group.store
        own = store.only(name)
        array = zarr.open_array(own, path=name, mode="r")
        own.by_blosc = _is_by_blosc(array)
        return variable._replace(data=LazilyIndexedArray(_CheckedArray(array)))  # type: ignore[no-untyped-call]


def _is_by_blosc(array: zarr.Array[Any]) -> bool:
    """Return whether whole objects of an array are what Blosc made of a chunk."""
    if array.shards is not None or not array.compressors:
        return False
    # By name: those of format 2, and of other extensions, are classes of their own.
    return type(array.compressors[-1]).__name__ in ("Blosc", "BloscCodec")


class _CheckedArray(ZarrArrayWrapper):
    """An array that says which of its chunks cannot be decoded."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        try:
            return super().__getitem__(key)  # type: ignore[no-untyped-call]
        except (UndulatusError, MemoryError):
            raise
        except Exception as error:
            # Codecs raise what they like.
            chunk = self._broken_chunk(key.tuple)
            if chunk is None:
                raise
            root, name = self._array.store.root, f"{self._array.path}/{chunk}"
            raise DamagedFileError(
                f"{root}: {_name(name)} cannot be decoded.\n  file: {root / name}\n"
                f"  found: {error}\n{REMEDY}"
            ) from error

    def _broken_chunk(self, key: tuple[Any, ...]) -> str | None:
        """Return the first chunk of a selection that cannot be decoded by itself."""
        shape, sizes = self._array.shape, self._array.shards or self._array.chunks
        touched = [
            np.unique(np.arange(length)[index] // size).tolist()
            for length, index, size in zip(shape, key, sizes, strict=True)
        ]
        for place in itertools.product(*touched):
            region = tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, sizes, strict=True))
            try:
                self._array[region]
            except Exception:
                return str(self._array.metadata.encode_chunk_key(place))
        return None
