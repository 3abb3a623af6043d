"""Measure what the checks of Zarr cost: opening a store and reading all of it. Prints a table.

python -m benchmarks.zarr_checks STORE.zarr

STORE.zarr is one that undulatus wrote, as by ``undulatus simulate landmarks``. Times are of the
processor, the least of five; chunks come from the system's cache, where checks weigh most.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import xarray as xr

from undulatus.scenes.files.zarr_reading import open_zarr


def unchecked(path: Path) -> xr.Dataset:
    """Open a store as xarray does."""
    return xr.open_dataset(path, engine="zarr", consolidated=False, chunks={})


def checked(path: Path) -> xr.Dataset:
    """Open a store as undulatus does."""
    return open_zarr(path, chunks={})


def least_seconds(act: Callable[[], Any]) -> float:
    """Return the least processor time of five runs."""
    taken = []
    for _ in range(5):
        start = time.process_time()
        act()
        taken.append(time.process_time() - start)
    return min(taken)


def main(path: Path) -> None:
    """Print processor times with and without checks, and that of the checksums alone."""
    content = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
    print(f"{len(content):,} files, {sum(map(len, content)) / 1e6:,.0f} MB")
    for name, way in (("unchecked", unchecked), ("checked", checked)):
        opening = least_seconds(lambda way=way: way(path))
        reading = least_seconds(lambda way=way: way(path).compute())
        print(f"{name:>10}: open {opening:.3f} s, open and read {reading:.2f} s")
    hashing = least_seconds(lambda: [hashlib.sha256(each).digest() for each in content])
    print(f"checksums of all bytes alone: {hashing:.3f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
