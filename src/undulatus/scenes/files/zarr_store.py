"""What a dataset is, in words and checksums, by which it is known again before it is computed.

What was written into a Zarr store: length and SHA-256 of every object of it.

A chunk that is missing is read as fill values, without a word; one that is damaged may decode.
So every object that is written is recorded in a file of JSON lines inside the store, one line
each, by one appending write: threads, and processes on one file system, do not mix them. The
file lies in the folder of an array, into which no reader of Zarr looks for groups or arrays.

Zarr written chunk by chunk, so that what was interrupted goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import warnings
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from undulatus._files import (
    WritingError,
    as_scene_errors,
    name_of_unfinished,
    remove,
    require_space,
    settle,
)
from undulatus._system import count_cores
from undulatus.errors import SceneError
from undulatus.scenes.files.writing import (
    Progress,
    computed_here,
    encoded_bytes,
    is_elsewhere,
    polled,
)

CHANGING = {"history"}
"""Attributes that tell when something was made, not what it is."""


def describe(dataset: xr.Dataset, fingerprint: str) -> dict[str, str]:
    """Return what a dataset is, in words and checksums, by which it is known again.

    Values that are not computed yet are not in it: ``fingerprint`` is to tell them.
    """
    attrs = {key: value for key, value in dataset.attrs.items() if key not in CHANGING}
    found = {"fingerprint": fingerprint, "attributes": _digest(attrs)}
    for name, variable in dataset.variables.items():
        about = [variable.attrs, variable.encoding]
        if variable.chunks is None:
            about.append({"values": _checksum(variable.values)})
        found[f"variable {name}"] = (
            f"{variable.dtype} {dict(variable.sizes)} in chunks of {_sizes(variable.chunks)}, "
            f"{_digest(about)}"
        )
    return found


def _sizes(chunks: tuple[tuple[int, ...], ...] | None) -> list[int] | None:
    return None if chunks is None else [max(sizes) for sizes in chunks]


def _checksum(values: npt.NDArray[Any]) -> str:
    content = repr(values.tolist()).encode() if values.dtype.kind == "O" else values.tobytes()
    return hashlib.sha256(content).hexdigest()


def _digest(about: Any) -> str:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)

    return hashlib.sha256(json.dumps(about, sort_keys=True, default=plain).encode()).hexdigest()


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return in what two descriptions differ."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]


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
        with ThreadPoolExecutor(count_cores()) as pool:
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
        A store that :func:`undulatus.scenes.files.writing.write_dataset` wrote.
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


Missing = dict[str, npt.NDArray[np.bool_]]
"""Which chunks of each lazy array are to be made, on its grid."""

CONTINUE = (
    "\nWhat is finished lies in {unfinished}: go on with it by writing again with resume=True "
    "(--resume on the command line), or remove it."
)


def write_zarr(
    dataset: xr.Dataset,
    path: Path,
    progress: Progress,
    *,
    resume: bool = False,
    fingerprint: str = "",
) -> None:
    """Write a dataset to a new Zarr store, or make what is missing of an earlier attempt.

    Until it is whole the store lies under a hidden name beside ``path``, where it stays if
    writing ends early. Only the caller may be writing there.
    """
    dataset = _evenly(dataset)
    description = describe(dataset, fingerprint)
    unfinished = name_of_unfinished(path)
    if not _is_to_be_made(path, unfinished, description, resume):
        return
    is_new = not unfinished.exists()
    missing = _missing(dataset, unfinished)
    try:
        with as_scene_errors(path):
            require_space(path, _bytes(dataset, missing))
            _make(dataset, unfinished, description, missing, progress)
            settle(unfinished, path)
    except BaseException as error:
        if is_new and not _chunks_in(unfinished, missing):
            remove(unfinished)
            raise
        remedy = CONTINUE.format(unfinished=unfinished)
        if type(error) is SceneError:
            raise SceneError(f"{error}{remedy}") from error
        error.add_note(remedy.strip())
        raise


def _evenly(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset in blocks of one size, as Zarr's are; put together, scenes' differ."""
    even = {
        name: variable.chunk({dim: max(sizes) for dim, sizes in variable.chunksizes.items()})
        for name, variable in dataset.variables.items()
        if variable.chunks is not None
    }
    return dataset.assign(even)


def _is_to_be_made(
    path: Path, unfinished: Path, description: dict[str, str], resume: bool
) -> bool:
    """Find what there is already, refuse what may not be touched, and say if work is left."""
    if path.exists():
        if not resume:
            raise SceneError(f"{path} exists already. Remove it, or write elsewhere.")
        _require_same(path, description)
        if not verify(path):
            return False
        if unfinished.exists():
            raise SceneError(f"{path} is damaged, and {unfinished} is there too. Remove one.")
        # What is damaged is not to be read while it is being mended.
        path.rename(unfinished)
        return True
    if unfinished.exists() and not resume:
        raise SceneError(
            f"{path} was begun before, and not finished.{CONTINUE.format(unfinished=unfinished)}"
        )
    if unfinished.exists():
        if not _recorded(unfinished).description:
            remove(unfinished)
        else:
            _require_same(unfinished, description)
    return True


def _require_same(store: Path, description: dict[str, str]) -> None:
    found = Manifest.read(require_manifest(store)).description
    differing = differences(description, found)
    if differing:
        raise SceneError(
            f"{store} holds something else than what is to be written.\n"
            f"  differing: {', '.join(differing)}\n"
            f"Remove it, or write elsewhere."
        )


def _recorded(store: Path) -> Manifest:
    file = find_manifest(store)
    return Manifest() if file is None else Manifest.read(file)


def _lazy(dataset: xr.Dataset) -> dict[str, xr.Variable]:
    return {str(k): v for k, v in dataset.variables.items() if v.chunks is not None}


def _missing(dataset: xr.Dataset, unfinished: Path) -> Missing:
    """Find the chunks to be made: a block's of all variables, if one of them is not whole."""
    manifest = _recorded(unfinished)
    together: dict[tuple[Any, ...], npt.NDArray[np.bool_]] = {}
    lazy = _lazy(dataset)
    for name, variable in lazy.items():
        grid = [sum(size > 0 for size in sizes) for sizes in variable.chunks or ()]
        keys = chunk_keys(name, grid)
        damaged = set(manifest.damaged(unfinished, keys))
        mask = np.array([key in damaged for key in keys], bool).reshape(grid)
        block = (variable.dims, variable.chunks)
        together[block] = together.get(block, np.zeros(grid, bool)) | mask
    return {name: together[v.dims, v.chunks] for name, v in lazy.items()}


def _bytes(dataset: xr.Dataset, missing: Missing) -> int:
    """Return how many bytes are to be written, before compression."""
    total = 0.0
    for name, variable in dataset.variables.items():
        mask = missing.get(str(name))
        share = 1.0 if mask is None else float(mask.mean()) if mask.size else 0.0
        total += share * encoded_bytes(variable)
    return int(total)


def _chunks_in(unfinished: Path, missing: Missing) -> bool:
    """Say if a lazy chunk is finished: others are quick to make again."""
    return any(key.rpartition("/c")[0] in missing for key in _recorded(unfinished).objects)


def _make(
    dataset: xr.Dataset,
    unfinished: Path,
    description: dict[str, str],
    missing: Missing,
    progress: Progress,
) -> None:
    file = find_manifest(unfinished)
    if file is None:
        file = unfinished / min(map(str, dataset.variables)) / NAME
        file.parent.mkdir(parents=True)
    append(file, {"description": description})
    arrays = _write_skeleton(dataset, RecordingStore(unfinished, file))
    append(file, {"grids": {name: list(array.cdata_shape) for name, array in arrays.items()}})
    parts = list(_parts(dataset, arrays, missing))
    for name, mask in missing.items():
        # Zarr would read what is there before it writes the last, cut chunk of a row.
        for key in np.array(chunk_keys(name, mask.shape), object)[mask.reshape(-1)]:
            (unfinished / key).unlink(missing_ok=True)
    if parts:
        sources, targets, regions = map(list, zip(*parts, strict=True))
        with _progress_of(file, missing, progress):
            da.store(sources, targets, regions=regions, lock=False)
    _require_all(unfinished)


def _write_skeleton(dataset: xr.Dataset, store: RecordingStore) -> dict[str, zarr.Array[Any]]:
    """Write metadata and what is in memory; return all arrays, those still to be filled too."""
    # Chunks stay; metadata, which are quick, are made anew.
    for stale in [*store.root.glob(METADATA), *store.root.glob(f"*/{METADATA}")]:
        stale.unlink()
    for torn in store.root.rglob("*.partial"):
        torn.unlink()
    with warnings.catch_warnings():
        # Readers expect consolidated metadata, though Zarr 3 has yet to agree on them.
        warnings.filterwarnings("ignore", "Consolidated metadata")
        dataset.to_zarr(
            store,
            mode="a",
            compute=False,
            consolidated=True,
            zarr_format=3,
            # A chunk of fill values that has no object looks like one that was lost.
            write_empty_chunks=True,
        )
    with zarr.config.set({"array.write_empty_chunks": True}):
        return {
            str(name): zarr.open_array(store, path=str(name), mode="r+")
            for name in dataset.variables
        }


def _parts(
    dataset: xr.Dataset, arrays: dict[str, zarr.Array[Any]], missing: Missing
) -> Iterator[tuple[da.Array, zarr.Array[Any], tuple[slice, ...]]]:
    """Yield what is to be computed, where to, and which region of that it is."""
    for name, variable in _lazy(dataset).items():
        source = xr.conventions.encode_cf_variable(variable, name=name).data
        if source.dtype != arrays[name].dtype:
            raise SceneError(f"{name} is of type {source.dtype}: load it before writing.")
        edges = [np.cumsum([0, *sizes]) for sizes in source.chunks]
        for box in boxes(missing[name]):
            region = tuple(
                slice(int(edge[part.start]), int(edge[part.stop]))
                for edge, part in zip(edges, box, strict=True)
            )
            yield source[region], arrays[name], region


def boxes(mask: npt.NDArray[np.bool_]) -> Iterator[tuple[slice, ...]]:
    """Yield boxes that cover what is true, each of it once, and nothing else."""
    left = np.array(mask)
    while left.any():
        corner = np.unravel_index(int(left.argmax()), left.shape)
        box = [slice(int(i), int(i) + 1) for i in corner]
        for axis in reversed(range(left.ndim)):
            while box[axis].stop < left.shape[axis]:
                beside = box.copy()
                beside[axis] = slice(box[axis].stop, box[axis].stop + 1)
                if not left[tuple(beside)].all():
                    break
                box[axis] = slice(box[axis].start, box[axis].stop + 1)
        left[tuple(box)] = False
        yield tuple(box)


@contextmanager
def _progress_of(file: Path, missing: Missing, progress: Progress) -> Iterator[None]:
    if not is_elsewhere():
        with computed_here(progress):
            yield
        return
    total = sum(int(mask.sum()) for mask in missing.values())
    before = file.read_bytes().count(b"\n")
    with polled(lambda: file.read_bytes().count(b"\n") - before, total, progress):
        yield


def _require_all(unfinished: Path) -> None:
    manifest = _recorded(unfinished)
    for key in manifest.expected():
        length, _ = manifest.objects.get(key, (-1, ""))
        if not (unfinished / key).exists() or (unfinished / key).stat().st_size != length:
            raise SceneError(f"{key} was lost on its way into {unfinished}.")
