"""Zarr written chunk by chunk, so that what was interrupted goes on where it stopped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr

from undulatus.errors import SceneError
from undulatus.scenes.computing import Progress, computed_here, is_elsewhere, polled
from undulatus.scenes.identity import describe, differences
from undulatus.scenes.unfinished import (
    as_scene_errors,
    encoded_bytes,
    name_of_unfinished,
    remove,
    require_space,
    settle,
)
from undulatus.scenes.zarr_manifest import (
    METADATA,
    NAME,
    Manifest,
    RecordingStore,
    append,
    chunk_keys,
    find_manifest,
    require_manifest,
    verify,
)

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
