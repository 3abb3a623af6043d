"""Time the reading of IASI's native files beside CODA, the page cache, and Zarr. Prints a summary.

python -m benchmarks.native_reader [LINES] [FOLDER]

An orbit's file (750 lines, 2 GB; 8 lines at least) with spectra of the simulator is written into
FOLDER (a temporary one by default), with 13 links to it for a day. Everything is read from the
page cache, on one thread, in seconds of the processor; classification, opening and what all cores
give together are by the clock too. Ways are timed by turns, and the fastest turn of each counts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import dask
import dask.array as da
import numpy as np

from benchmarks import coda_oracle
from benchmarks.iasi_writer import NAME, NativeFile, counts_of, plausible_fields
from undulatus.products.maps import map_scene
from undulatus.products.sounder import fit_spectra
from undulatus.scenes import open_spectra, synthetic_sounder, write_dataset
from undulatus.scenes.files import iasi_native

ORBIT, ORBITS = 750, 14
TURNS = 5
CORE_TURNS = 20
CLASSIFIED = (1, 2, 4, ORBITS)
"""Files that are classified together."""
CODA_LINES = 20
SPECTRUM_OFFSET, SPECTRUM_BYTES = 276_790, 2_088_000
"""Of the spectra in a line of version 5."""
RADIANCES = 120 * 8461 * 4
"""Bytes of the radiances of a line."""


def write_day(folder: Path, lines: int) -> list[Path]:
    """Write the file of an orbit, and links to it until a day is full."""
    simulator = synthetic_sounder(2_400, seed=1).load()
    counts = counts_of(simulator["radiance"].values.astype(np.float64)).reshape(20, 120, -1)
    some = [counts[line % len(counts)] for line in range(lines)]
    first = folder / NAME
    if not first.exists():
        NativeFile(some, plausible_fields(lines)).write(first)
    paths = [first, *(folder / NAME.replace("M01", f"M01_{n}") for n in range(1, ORBITS))]
    for path in paths[1:]:
        if not path.exists():
            os.link(first, path)
    return paths


@contextmanager
def timed(seconds: dict[str, list[tuple[float, float]]], name: str) -> Iterator[None]:
    """Add the wall-clock and processor seconds of a block to a list."""
    began, busy = time.perf_counter(), time.process_time()
    yield
    taken = (time.perf_counter() - began, time.process_time() - busy)
    seconds.setdefault(name, []).append(taken)


def by_turns(ways: dict[str, Callable[[], object]], turns: int) -> dict[str, tuple[float, float]]:
    """Return the least wall-clock and processor seconds of each way."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(turns):
        for name, way in ways.items():
            with timed(seconds, name):
                way()
    return {
        name: (min(wall for wall, _ in all_of), min(busy for _, busy in all_of))
        for name, all_of in seconds.items()
    }


def block_by_block(
    ways: dict[str, Callable[[np.ndarray], object]], blocks: list[np.ndarray]
) -> dict[str, float]:
    """Return the least processor seconds of each way for each block, summed over blocks."""
    totals = dict.fromkeys(ways, 0.0)
    for block in blocks:
        for name, way in ways.items():
            taken = []
            for _ in range(TURNS):
                began = time.process_time()
                way(block)
                taken.append(time.process_time() - began)
            totals[name] += min(taken)
    return totals


def compare_reading(path: Path, folder: Path) -> None:
    """Time radiances against bytes from the page cache, and CODA.

    The page cache gives the bytes of the counts, half of what radiances take, and as many bytes as
    the radiances have: each in new arrays of a block.
    """
    starts = _starts(path)
    lines = _lines(path)
    size = len(starts) * SPECTRUM_BYTES
    blocks = np.split(starts, range(4, len(starts), 4))

    def page_cache(block: np.ndarray) -> None:
        room = np.empty((len(block), SPECTRUM_BYTES), np.uint8)
        with open(path, "rb", buffering=0) as file:
            for start, row in zip(block, room, strict=True):
                file.seek(int(start) + SPECTRUM_OFFSET)
                file.readinto(row)

    def as_many_bytes(block: np.ndarray) -> None:
        room = np.empty(len(block) * RADIANCES, np.uint8)
        with open(path, "rb", buffering=0) as file:
            file.seek(min(int(block[0]), path.stat().st_size - len(room)))
            file.readinto(room)

    def radiances(block: np.ndarray) -> None:
        iasi_native._radiances(lines, block)

    ways = {
        "page cache, counts": page_cache,
        "page cache, as many bytes": as_many_bytes,
        "radiances": radiances,
    }
    found = block_by_block(ways, blocks)
    by_dask = partial(compute, open_spectra(path)["radiance"].data, 1)
    found["radiances by dask"] = by_turns({"dask": by_dask}, TURNS)["dask"][1]
    print(f"{len(starts)} lines, {size / 1e9:.2f} GB of counts")
    whole = len(starts) * RADIANCES
    counts, bytes_ = list(found.values())[:2]
    for name, seconds in found.items():
        print(
            f"  {name:26} {seconds:6.3f} s, {whole / seconds / 1e9:6.2f} GB/s as radiances; "
            f"{counts / seconds:4.0%} of the page cache's rate in lines, {bytes_ / seconds:4.0%} "
            f"in bytes delivered"
        )
    why_not = coda_oracle.why_not(folder)
    if why_not:
        print(f"  {why_not}")
        return
    _, about = coda_oracle.fetch(path, ["GS1cSpect"], folder, lines=CODA_LINES, keep=False)
    coda = about["seconds"]["GS1cSpect"] / len(about["lines"])
    ours = found["radiances by dask"] / len(starts)
    print(f"  CODA: {coda * 1e3:.1f} ms a line; ours {ours * 1e3:.2f} ms: {coda / ours:.0f} times")


def compute(radiances: da.Array, threads: int) -> None:
    """Compute all radiances of a file, block by block, and drop them."""
    # A copy, as a view would keep the whole block in memory.
    corner = da.map_blocks(lambda block: block[:1, :1].copy(), radiances, chunks=(1, 1))
    with dask.config.set(scheduler="threads", num_workers=threads):
        corner.compute()


def compare_cores(path: Path) -> None:
    """Time all radiances of a file on more and more threads beside one read of the same file.

    The file is read on one thread, from its first byte to its last, into memory of 16 MiB.
    """
    room = np.empty(2**24, np.uint8)
    radiances = open_spectra(path)["radiance"].data

    def read() -> None:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(room):
                pass

    ways: dict[str, Callable[[], object]] = {"page cache, the file": read}
    for threads in range(1, (os.cpu_count() or 1) + 1):
        ways[f"radiances, threads: {threads}"] = partial(compute, radiances, threads)
    found = by_turns(ways, CORE_TURNS)
    for name, (wall, busy) in found.items():
        print(
            f"  {name:26} {wall:6.3f} s by the clock, {busy:6.3f} s of processors; "
            f"{path.stat().st_size / wall / 1e9:5.2f} GB/s of the file"
        )


def _lines(path: Path) -> iasi_native.Lines:
    opened = iasi_native.open_records(path)
    return iasi_native._check_lines(opened, opened.of_class(iasi_native.MEASUREMENT))


def _starts(path: Path) -> np.ndarray:
    opened = iasi_native.open_records(path)
    return np.array([record.offset for record in opened.of_class(iasi_native.MEASUREMENT)])


def compare_classifying(paths: list[Path], folder: Path) -> None:
    """Time the opening of a day, and the classification of files beside the same in Zarr.

    Of one file, of two, of four and of the day: printed one after another.
    """
    opened = by_turns({"open": lambda: open_spectra(paths)}, 3)
    count = open_spectra(paths).sizes["sample"]
    print(f"a day of {len(paths)} files, {count:,} spectra, opened in {opened['open'][0]:.2f} s")
    model = fit_spectra(synthetic_sounder(2_400, seed=2), components=100)
    store = folder / "orbit.zarr"
    if not store.exists():
        write_dataset(open_spectra(paths[0])[["radiance"]], store)

    def classify(sources: list[Path]) -> None:
        clouds = map_scene(model, open_spectra(sources)[["radiance"]], allow_outside=True)
        clouds["cloud_probability"].sum().compute()

    for files in CLASSIFIED:
        native, stores = paths[:files], [store] * files
        ways: dict[str, Callable[[], object]] = {
            "native": partial(classify, native),
            "Zarr": partial(classify, stores),
        }
        found = by_turns(ways, turns=1)
        for name, (wall, busy) in found.items():
            print(
                f"  {files:2} files classified from {name:7} {wall:6.1f} s, {busy:6.1f} s of "
                f"processors ({wall / found['Zarr'][0]:.2f} and {busy / found['Zarr'][1]:.2f} of "
                f"Zarr's)",
                flush=True,
            )


def measure(lines: int, folder: Path) -> None:
    """Write the files and print all times."""
    paths = write_day(folder, lines)
    compare_reading(paths[0], folder)
    compare_cores(paths[0])
    compare_classifying(paths, folder)


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else ORBIT
    if len(sys.argv) > 2:
        measure(wanted, Path(sys.argv[2]))
    else:
        with tempfile.TemporaryDirectory() as made:
            measure(wanted, Path(made))
