"""Zarr written chunk by chunk, with checksums, so that interrupted writing can be resumed.

Zarr reads a missing chunk as fill values without saying so, and a damaged one may still decode.
So the length and the SHA-256 of every object that is written, metadata too, go into a manifest
inside the store: a log of JSON lines in the folder of an array, where no reader of Zarr looks for
groups or arrays. Zarr's own crc32c codec would notice neither a lost chunk nor damaged metadata.
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
    JsonLines,
    as_reading_errors,
    as_scene_errors,
    as_writing_errors,
    finish,
    locked,
    remove,
    require_absent,
    require_space,
    unfinished_path,
)
from undulatus._system import count_cores
from undulatus.errors import SceneError
from undulatus.scenes.files.writing import (
    Progress,
    computing_in_threads,
    encoded_bytes,
    polling_progress,
    uses_cluster,
)

MANIFEST_NAME = ".undulatus-chunks.jsonl"

METADATA_NAME = "zarr.json"

CHANGING_ATTRIBUTES = {"history"}
"""Attributes that say when a dataset was made, not what it is."""

HOW_TO_CONTINUE = (
    "\nThe finished chunks are in {unfinished}: continue by writing again with resume=True "
    "(--resume on the command line), or remove it."
)

CHANGED_SOURCES = (
    "  fingerprint: the model, the input or the options that it was made from have changed, or an "
    "earlier version did not record the content of the input\n"
)

ChunkMasks = dict[str, npt.NDArray[np.bool_]]
"""For each lazy array, which of its chunks are selected, on the grid of chunks."""


# Writing


def write_zarr(
    dataset: xr.Dataset,
    path: Path,
    progress: Progress,
    *,
    resume: bool = False,
    fingerprint: str = "",
    overwrite: bool = False,
) -> None:
    """Write a dataset to a new Zarr store, or add what an earlier attempt left out.

    Until it is whole the store has a hidden name beside ``path``, and stays there if writing ends
    early. Only the caller may be writing there.
    """
    dataset = _with_even_chunks(dataset)
    description = describe(dataset, fingerprint)
    unfinished = unfinished_path(path)
    if overwrite:
        require_replaceable(path)
    if not _is_work_left(path, unfinished, description, resume, overwrite):
        return
    is_new = not unfinished.exists()
    missing = _missing_chunks(dataset, unfinished)
    try:
        with as_scene_errors(path):
            require_space(path, _bytes_to_write(dataset, missing))
            _write_missing(dataset, unfinished, description, missing, progress)
            finish(unfinished, path)
    except BaseException as error:
        if is_new and not _has_computed_chunks(unfinished, missing):
            remove(unfinished)
            raise
        remedy = HOW_TO_CONTINUE.format(unfinished=unfinished)
        if type(error) is SceneError:
            raise SceneError(f"{error}{remedy}") from error
        error.add_note(remedy.strip())
        raise


def _with_even_chunks(dataset: xr.Dataset) -> xr.Dataset:
    """Return the dataset in blocks of one size, as Zarr needs; joined scenes differ in theirs."""
    even = {
        name: variable.chunk({dim: max(sizes) for dim, sizes in variable.chunksizes.items()})
        for name, variable in dataset.variables.items()
        if variable.chunks is not None
    }
    return dataset.assign(even)


def require_replaceable(path: Path) -> None:
    """Raise an error if there is anything else than a store that was written here."""
    if path.exists() and find_manifest(path) is None:
        what = "folder" if path.is_dir() else "file"
        raise SceneError(
            f"{path} is a {what} that undulatus did not write, so it is not replaced. Give "
            f"another name."
        )


def _is_work_left(
    path: Path, unfinished: Path, description: dict[str, str], resume: bool, overwrite: bool
) -> bool:
    """Return whether anything has to be written; refuse what may not be touched."""
    if path.exists() and not overwrite:
        if not resume:
            require_absent(path)
        _require_same(path, description)
        if not verify(path):
            return False
        if unfinished.exists():
            raise SceneError(f"{path} is damaged, and {unfinished} exists too. Remove one.")
        # Nobody should read a damaged store while it is being repaired.
        path.rename(unfinished)
        return True
    if unfinished.exists() and not resume:
        raise SceneError(
            f"{path} was begun before, but not finished."
            f"{HOW_TO_CONTINUE.format(unfinished=unfinished)}"
        )
    if unfinished.exists():
        if Manifest.of(unfinished).description:
            _require_same(unfinished, description)
        else:
            remove(unfinished)
    return True


def _require_same(store: Path, description: dict[str, str]) -> None:
    found = Manifest.of(store, required=True).description
    differing = [k for k in {**description, **found} if description.get(k) != found.get(k)]
    if differing:
        raise SceneError(
            f"{store} holds another dataset than the one to write.\n"
            f"  differing: {', '.join(differing)}\n"
            f"{CHANGED_SOURCES if 'fingerprint' in differing else ''}"
            f"Remove it, or write elsewhere."
        )


def discard_unfinished(path: Path, fingerprint: str) -> bool:
    """Remove what was begun of a store with a fingerprint; return whether there was any."""
    unfinished = unfinished_path(path)
    if Manifest.of(unfinished).description.get("fingerprint") != fingerprint:
        return False
    with locked(path):
        remove(unfinished)
    return True


def _lazy_variables(dataset: xr.Dataset) -> dict[str, xr.Variable]:
    return {str(k): v for k, v in dataset.variables.items() if v.chunks is not None}


def _missing_chunks(dataset: xr.Dataset, unfinished: Path) -> ChunkMasks:
    """Return the chunks to write: if one variable lacks a block, all with such blocks write it."""
    manifest = Manifest.of(unfinished)
    together: dict[tuple[Any, ...], npt.NDArray[np.bool_]] = {}
    lazy = _lazy_variables(dataset)
    for name, variable in lazy.items():
        grid = [sum(size > 0 for size in sizes) for sizes in variable.chunks or ()]
        keys = chunk_keys(name, grid)
        damaged = set(manifest.damaged(unfinished, keys))
        mask = np.array([key in damaged for key in keys], bool).reshape(grid)
        blocks = (variable.dims, variable.chunks)
        together[blocks] = together.get(blocks, np.zeros(grid, bool)) | mask
    return {name: together[v.dims, v.chunks] for name, v in lazy.items()}


def _bytes_to_write(dataset: xr.Dataset, missing: ChunkMasks) -> int:
    """Return how many bytes have to be written, before compression."""
    total = 0.0
    for name, variable in dataset.variables.items():
        mask = missing.get(str(name))
        share = 1.0 if mask is None else float(mask.mean()) if mask.size else 0.0
        total += share * encoded_bytes(variable)
    return int(total)


def _has_computed_chunks(unfinished: Path, missing: ChunkMasks) -> bool:
    """Return whether a chunk of a lazy variable is finished: others are quick to write again."""
    return any(key.rpartition("/c")[0] in missing for key in Manifest.of(unfinished).objects)


def _write_missing(
    dataset: xr.Dataset,
    unfinished: Path,
    description: dict[str, str],
    missing: ChunkMasks,
    progress: Progress,
) -> None:
    file = find_manifest(unfinished)
    if file is None:
        file = unfinished / min(map(str, dataset.variables)) / MANIFEST_NAME
        file.parent.mkdir(parents=True)
    log = JsonLines(file)
    log.append({"description": description})
    arrays = _write_skeleton(dataset, RecordingStore(unfinished, log))
    log.append({"grids": {name: list(array.cdata_shape) for name, array in arrays.items()}})
    regions = list(_regions(dataset, arrays, missing))
    for name, mask in missing.items():
        # Zarr would read what is there before it writes the last, cut chunk of a row.
        for key in np.array(chunk_keys(name, mask.shape), object)[mask.reshape(-1)]:
            (unfinished / key).unlink(missing_ok=True)
    if regions:
        sources, targets, where = map(list, zip(*regions, strict=True))
        with as_reading_errors(), _reported(log, missing, progress):
            da.store(sources, targets, regions=where, lock=False)
    _require_all(unfinished)


def _write_skeleton(dataset: xr.Dataset, store: RecordingStore) -> dict[str, zarr.Array[Any]]:
    """Write metadata and what is in memory; return all arrays, lazy ones still to be filled."""
    # Chunks stay; metadata are quick to write again.
    for stale in [*store.root.glob(METADATA_NAME), *store.root.glob(f"*/{METADATA_NAME}")]:
        stale.unlink()
    for torn in store.root.rglob("*.partial"):
        torn.unlink()
    # Other readers take a lost chunk for Zarr's fill value: 0, a valid number, if it is not given
    # for integers; of floats it is NaN.
    missing_if_lost = {
        name: {**variable.encoding, "fill_value": variable.encoding["_FillValue"]}
        for name, variable in dataset.variables.items()
        if variable.encoding.get("_FillValue") is not None
    }
    with warnings.catch_warnings():
        # Readers expect consolidated metadata, though Zarr 3 has not agreed on them yet.
        warnings.filterwarnings("ignore", "Consolidated metadata")
        dataset.to_zarr(
            store,
            encoding=missing_if_lost,
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


def _regions(
    dataset: xr.Dataset, arrays: dict[str, zarr.Array[Any]], missing: ChunkMasks
) -> Iterator[tuple[da.Array, zarr.Array[Any], tuple[slice, ...]]]:
    """Yield values to compute, the array to write them to, and the region of it they fill."""
    for name, variable in _lazy_variables(dataset).items():
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
    """Yield boxes that cover every true element once, and no other."""
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
def _reported(log: JsonLines, missing: ChunkMasks, progress: Progress) -> Iterator[None]:
    """Report progress by dask's tasks, or, of a cluster, by the chunks that it has recorded."""
    if not uses_cluster():
        with computing_in_threads(progress):
            yield
        return
    total = sum(int(mask.sum()) for mask in missing.values())
    before = log.count_lines()
    with polling_progress(lambda: log.count_lines() - before, total, progress):
        yield


def _require_all(unfinished: Path) -> None:
    manifest = Manifest.of(unfinished)
    for key in manifest.expected():
        length, _ = manifest.objects.get(key, (-1, ""))
        if not (unfinished / key).exists() or (unfinished / key).stat().st_size != length:
            raise SceneError(f"{key} was lost while {unfinished} was written. Write it again.")


# Verifying


def verify(path: str | os.PathLike[str]) -> list[str]:
    """Return the keys of chunks and metadata of a Zarr store that are missing or damaged.

    The list is empty if everything is as it was written. What is damaged is made again by writing
    the same dataset with ``resume=True``.

    Parameters
    ----------
    path : path
        A store that :func:`undulatus.scenes.files.writing.write_dataset` wrote.
    """
    path = Path(path)
    manifest = Manifest.of(path, required=True)
    return manifest.damaged(path, manifest.expected())


@dataclass(frozen=True)
class Manifest:
    """What was written into a store.

    Attributes
    ----------
    description : dict
        What the dataset is: each part in words or as a checksum, see :func:`describe`.
    grids : dict
        The number of chunks along each dimension of each array.
    objects : dict
        Length in bytes and SHA-256 of each object when it was last written, by its key.
    """

    description: dict[str, str] = field(default_factory=dict)
    grids: dict[str, list[int]] = field(default_factory=dict)
    objects: dict[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, store: Path, *, required: bool = False) -> Self:
        """Read the manifest of a store; an empty one if it has none, or an error if required."""
        file = find_manifest(store)
        if file is not None:
            return cls.read(JsonLines(file))
        if required:
            raise SceneError(
                f"{store} has no list of its chunks, so it cannot be verified: undulatus did not "
                f"write it, or the list was lost. Write it again."
            )
        return cls()

    @classmethod
    def read(cls, log: JsonLines) -> Self:
        """Collect the records of a log; a later record of an object replaces an earlier one."""
        found = cls()
        for record in log.read():
            try:
                if "key" in record:
                    found.objects[record["key"]] = (record["length"], record["sha256"])
                else:
                    found.description.update(record.get("description", {}))
                    found.grids.update(record.get("grids", {}))
            except (ValueError, TypeError, KeyError):
                continue
        return found

    def expected(self) -> list[str]:
        """Return the keys of all objects that the store should have."""
        metadata = [key for key in self.objects if key.rpartition("/")[2] == METADATA_NAME]
        return metadata + [
            key for name, grid in self.grids.items() for key in chunk_keys(name, grid)
        ]

    def digest(self) -> str:
        """Return a checksum of the dataset, whenever it was written."""
        # The metadata of the store hold its history; those of its arrays are among the objects.
        values = {key: value for key, value in self.objects.items() if key != METADATA_NAME}
        return _json_digest([self.description, values])

    def damaged(self, root: Path, keys: Iterable[str]) -> list[str]:
        """Return those of the keys whose objects are not as they were written."""
        keys = list(keys)
        with ThreadPoolExecutor(count_cores()) as pool:
            intact = pool.map(lambda key: _is_intact(root / key, self.objects.get(key)), keys)
            return [key for key, whole in zip(keys, intact, strict=True) if not whole]


def _is_intact(file: Path, expected: tuple[int, str] | None) -> bool:
    try:
        if expected is None or file.stat().st_size != expected[0]:
            return False
        return hashlib.sha256(file.read_bytes()).hexdigest() == expected[1]
    except OSError:
        return False


def find_manifest(root: Path) -> Path | None:
    """Return the manifest's file in a store, or None."""
    return next(iter(sorted(root.glob(f"*/{MANIFEST_NAME}"))), None)


def chunk_keys(name: str, grid: Iterable[int]) -> list[str]:
    """Return the keys of an array's chunks, in order."""
    indices = itertools.product(*(range(count) for count in grid))
    return ["/".join([name, "c", *map(str, index)]) for index in indices]


class RecordingStore(LocalStore):
    """A folder of Zarr that records in a log what is written into it.

    Folders without metadata are not listed: chunks may be there before their array is.
    """

    def __init__(self, root: Path | str, log: JsonLines, *, read_only: bool = False) -> None:
        super().__init__(root, read_only=read_only)
        self.log = log

    def with_read_only(self, read_only: bool = False) -> Self:
        """Return the same store, to read from or to write to."""
        return type(self)(self.root, self.log, read_only=read_only)

    async def set(self, key: str, value: Buffer) -> None:
        """Write an object, then its record: an object without one counts as missing."""
        with as_writing_errors():
            await super().set(key, value)
            await asyncio.to_thread(self._record, key, value)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        """Write and record an object unless it exists."""
        if not await self.exists(key):
            await self.set(key, value)

    def set_sync(self, key: str, value: Buffer) -> None:
        """Write an object, then its record, without awaiting."""
        with as_writing_errors():
            super().set_sync(key, value)
            self._record(key, value)

    def _record(self, key: str, value: Buffer) -> None:
        content = value.as_numpy_array()
        digest = hashlib.sha256(content.data).hexdigest()
        self.log.append({"key": key, "length": len(content), "sha256": digest})

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        """List metadata, and folders that have some."""
        async for name in super().list_dir(prefix):
            if name == METADATA_NAME or (self.root / prefix / name / METADATA_NAME).exists():
                yield name


# Recognising a dataset


def describe(dataset: xr.Dataset, fingerprint: str) -> dict[str, str]:
    """Return what a dataset is, in words and checksums, to recognise it before it is computed.

    Values that are not computed yet are not part of it: ``fingerprint`` has to stand for them.
    """
    attrs = {key: value for key, value in dataset.attrs.items() if key not in CHANGING_ATTRIBUTES}
    description = {"fingerprint": fingerprint, "attributes": _json_digest(attrs)}
    for name, variable in dataset.variables.items():
        details = [variable.attrs, variable.encoding]
        if variable.chunks is None:
            details.append({"values": _values_digest(variable.values)})
        description[f"variable {name}"] = (
            f"{variable.dtype} {dict(variable.sizes)} in chunks of "
            f"{_chunk_shape(variable.chunks)}, {_json_digest(details)}"
        )
    return description


def _chunk_shape(chunks: tuple[tuple[int, ...], ...] | None) -> list[int] | None:
    return None if chunks is None else [max(sizes) for sizes in chunks]


def _values_digest(values: npt.NDArray[Any]) -> str:
    content = repr(values.tolist()).encode() if values.dtype.kind == "O" else values.tobytes()
    return hashlib.sha256(content).hexdigest()


def _json_digest(value: Any) -> str:
    def plain(item: Any) -> Any:
        return item.tolist() if isinstance(item, (np.ndarray, np.generic)) else str(item)

    return hashlib.sha256(json.dumps(value, sort_keys=True, default=plain).encode()).hexdigest()
