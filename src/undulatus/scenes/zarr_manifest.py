"""What was written into a Zarr store: length and SHA-256 of every object of it.

A chunk that is missing is read as fill values, without a word; one that is damaged may decode.
So every object that is written is recorded in a file of JSON lines inside the store, one line
each, by one appending write: threads, and processes on one file system, do not mix them. The
file lies in the folder of an array, into which no reader of Zarr looks for groups or arrays.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dask.system import CPU_COUNT
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from undulatus.errors import SceneError
from undulatus.scenes.unfinished import WritingError

NAME = ".undulatus-chunks.jsonl"
METADATA = "zarr.json"


@dataclass(frozen=True)
class Manifest:
    """What the lines say: of what dataset, in how many chunks, and each object as it was last.

    Attributes
    ----------
    description : dict
        What the dataset is, each part in words or as a checksum.
    grids : dict
        The number of chunks along each dimension of each array.
    objects : dict
        Length in bytes and SHA-256 of each object, by its key.
    """

    description: dict[str, str] = field(default_factory=dict)
    grids: dict[str, list[int]] = field(default_factory=dict)
    objects: dict[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read the lines that are whole: a process may have been killed in the midst of one."""
        found = cls()
        for line in file.read_bytes().splitlines():
            try:
                entry = json.loads(line)
                if "key" in entry:
                    found.objects[entry["key"]] = (entry["length"], entry["sha256"])
                else:
                    found.description.update(entry.get("description", {}))
                    found.grids.update(entry.get("grids", {}))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
        return found

    def expected(self) -> list[str]:
        """Return the keys of all objects that there should be."""
        metadata = [key for key in self.objects if key.rpartition("/")[2] == METADATA]
        return metadata + [
            key for name, grid in self.grids.items() for key in chunk_keys(name, grid)
        ]

    def damaged(self, root: Path, keys: Iterable[str]) -> list[str]:
        """Return those of the keys whose objects are not as they were written."""
        keys = list(keys)
        with ThreadPoolExecutor(CPU_COUNT) as pool:
            right = pool.map(lambda key: _holds(root / key, self.objects.get(key)), keys)
            return [key for key, whole in zip(keys, right, strict=True) if not whole]


def chunk_keys(name: str, grid: Iterable[int]) -> list[str]:
    """Return the keys of an array's chunks, in order."""
    indices = itertools.product(*(range(count) for count in grid))
    return ["/".join([name, "c", *map(str, index)]) for index in indices]


def _holds(file: Path, expected: tuple[int, str] | None) -> bool:
    try:
        if expected is None or file.stat().st_size != expected[0]:
            return False
        return hashlib.sha256(file.read_bytes()).hexdigest() == expected[1]
    except OSError:
        return False


def find_manifest(root: Path) -> Path | None:
    """Return the file of lines in a store, or None if it has none."""
    return next(iter(sorted(root.glob(f"*/{NAME}"))), None)


def require_manifest(root: Path) -> Path:
    """Return the file of lines in a store, which is to have one."""
    file = find_manifest(root)
    if file is None:
        raise SceneError(
            f"{root} has no list of its chunks, so it cannot be verified: undulatus did not write "
            f"it, or lost more than chunks. Write it anew."
        )
    return file


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of chunks of a Zarr store that are missing or not as they were written.

    Names of metadata too. None is damaged where the list is empty; what is may be made again
    by writing the same dataset with ``resume=True``.

    Parameters
    ----------
    path : path
        A store that :func:`undulatus.scenes.writing.write_dataset` wrote.
    """
    path = Path(path)
    manifest = Manifest.read(require_manifest(path))
    return manifest.damaged(path, manifest.expected())


def append(file: Path, entry: dict[str, Any]) -> None:
    """Add a line to a manifest by one write, so that lines of several writers do not mix."""
    # The break comes first: it ends a line that was cut short.
    line = b"\n" + json.dumps(entry, separators=(",", ":")).encode()
    # Opened anew: what holds no descriptor can be sent to other processes.
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        if os.write(descriptor, line) != len(line):
            raise WritingError(f"{file} has a line that is cut short")
    finally:
        os.close(descriptor)


class RecordingStore(LocalStore):
    """A folder of Zarr that records what is written into it, and tells its own failures apart.

    Folders without metadata are not listed: chunks may be there before their array is.
    """

    def __init__(self, root: Path | str, manifest: Path, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self.manifest = manifest

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same store to read from, or to write to."""
        return type(self)(self.root, self.manifest, read_only=read_only)

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object, then its line: without one it counts as missing."""
        try:
            await super().set(key, value)
            await asyncio.to_thread(self._record, key, value)
        except OSError as error:
            raise WritingError(*error.args) from error

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write and record an object unless it is there."""
        if not await self.exists(key):
            await self.set(key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write an object, then its line, without awaiting."""
        try:
            super().set_sync(key, value)
            self._record(key, value)
        except OSError as error:
            raise WritingError(*error.args) from error

    def _record(self, key: str, value: Buffer) -> None:
        content = value.as_numpy_array()
        digest = hashlib.sha256(content.data).hexdigest()
        append(self.manifest, {"key": key, "length": len(content), "sha256": digest})

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List what has metadata, or is it."""
        async for name in super().list_dir(prefix):
            if name == METADATA or (self.root / prefix / name / METADATA).exists():
                yield name
