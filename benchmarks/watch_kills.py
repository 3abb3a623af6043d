"""Kill ``undulatus watch`` at random moments and compare what it leaves with an undisturbed run.

python -m benchmarks.watch_kills KILLS [SEED]

A folder holds netCDF, Zarr and damaged files; when all are handled, some are replaced by other
content, which is handled too. Watchers are killed by SIGKILL, SIGTERM and SIGINT in turn and
started again until everything is done, in each format in turn, until there were enough kills. In
the end every value and attribute but the times in ``history``, the list of files and the results
in the ledger must be those of a watcher that was not killed, and no content may be listed twice.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import xarray as xr

from benchmarks.soak import COMMAND, make_data, result_counts
from undulatus.scenes import open_scene, write_dataset
from undulatus.scenes.files.opening import open_map

SUFFIXES = (".nc", ".zarr", ".tif")

SIGNALS = {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}
"""Signals, and the exit status that follows each."""


def fill(folder: Path, pool: list[Path]) -> None:
    """Put files of each kind into a folder."""
    folder.mkdir()
    for index in range(6):
        shutil.copy2(pool[index], folder / f"image-{index}.nc")
    for index in (6, 7):
        write_dataset(open_scene(pool[index]).load(), folder / f"image-{index}.zarr")
    (folder / "cut.nc").write_bytes(pool[8].read_bytes()[:5000])
    shutil.copy2(pool[9], folder / "image-6.nc")


def replace(folder: Path, pool: list[Path]) -> None:
    """Replace two files and a folder by other content, and mend the damaged file."""
    for index, name in enumerate(("image-0.nc", "image-3.nc", "cut.nc"), 10):
        hidden = folder / f".{name}"
        shutil.copyfile(pool[index], hidden)
        hidden.rename(folder / name)
    write_dataset(open_scene(pool[13]).load(), folder / ".new.zarr")
    shutil.rmtree(folder / "image-7.zarr")
    (folder / ".new.zarr").rename(folder / "image-7.zarr")


def start(folder: Path, model: Path, output: Path, suffix: str) -> subprocess.Popen[bytes]:
    """Start a watcher that ends when all is handled."""
    command = [*COMMAND, "watch", folder, model, "-o", output, "--suffix", suffix]
    command += ["--once", "--settle", "0", "--every", "0.2"]
    return subprocess.Popen(
        [str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def wait_until_watching(watcher: subprocess.Popen[bytes], output: Path) -> float:
    """Wait until the watcher says that it is at work, or has ended; return the time."""
    health = output / "health.txt"
    sign = f"process: {watcher.pid}\n"
    while watcher.poll() is None and not (health.exists() and sign in health.read_text()):
        time.sleep(0.005)
    return time.monotonic()


def run_to_end(folder: Path, model: Path, output: Path, suffix: str) -> float:
    """Run a watcher without a disturbance; return how many seconds it was at work."""
    watcher = start(folder, model, output, suffix)
    began = wait_until_watching(watcher, output)
    _, errors = watcher.communicate()
    if b"Traceback" in errors or watcher.returncode not in (0, 1):
        raise RuntimeError(errors.decode())
    return time.monotonic() - began


def run_with_kills(
    folder: Path,
    model: Path,
    output: Path,
    suffix: str,
    seconds: float,
    signals: Iterator[signal.Signals],
    rng: np.random.Generator,
) -> Counter[str]:
    """Kill and start watchers until one ends by itself; return how often by which signal.

    ``seconds`` is how long one takes.
    """
    kills: Counter[str] = Counter()
    while True:
        number = next(signals)
        watcher = start(folder, model, output, suffix)
        deadline = wait_until_watching(watcher, output) + rng.uniform(0.0, seconds)
        while watcher.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        if watcher.poll() is None:
            watcher.send_signal(number)
        _, errors = watcher.communicate()
        # A signal that comes when all is done changes nothing.
        by_itself = watcher.returncode in (0, 1)
        # While Python ends it does not listen any more.
        expected = (SIGNALS[number], -number)
        if b"Traceback" in errors or not (by_itself or watcher.returncode in expected):
            raise RuntimeError(f"status {watcher.returncode} after {number}: {errors.decode()}")
        if by_itself:
            return kills
        kills[number.name] += 1


def differences(one: Path, two: Path) -> list[str]:
    """Return what differs between the folders of two watchers."""
    found = []
    names = [sorted(str(p.relative_to(root)) for p in root.iterdir()) for root in (one, two)]
    if names[0] != names[1]:
        found.append(f"files: {set(names[0]) ^ set(names[1])}")
    hidden = [path.name for path in two.rglob(".*") if path.suffix != ".jsonl"]
    if hidden:
        found.append(f"left behind: {hidden}")
    for path in sorted(one.iterdir()):
        if path.suffix in SUFFIXES and (two / path.name).exists():
            here, there = content(path), content(two / path.name)
            if here != there:
                found.append(f"content: {path.name}")
    counts = [result_counts(root / "watch.jsonl") for root in (one, two)]
    if counts[0] != counts[1]:
        found.append(f"ledger: {(counts[0] - counts[1]) + (counts[1] - counts[0])}")
    return found


def content(path: Path) -> Any:
    """Return all values, types and attributes of a map but for its history."""
    if path.suffix == ".tif":
        with rasterio.open(path) as file:
            tags = {key: value for key, value in file.tags().items() if key != "history"}
            return file.read().tobytes(), tags, file.descriptions, file.profile["dtype"]
    with open_map(path) as written:
        return {name: _variable(array) for name, array in written.variables.items()}, {
            key: str(value) for key, value in written.attrs.items() if key != "history"
        }


def _variable(array: xr.Variable) -> Any:
    attrs = {key: str(value) for key, value in array.attrs.items()}
    return array.dims, str(array.dtype), np.asarray(array.values).tobytes(), attrs


def main(kills_wanted: int, seed: int) -> bool:
    """Kill so many watchers; print and return whether everything ended as undisturbed."""
    # Children of a shell's background job would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(seed)
    kills: Counter[str] = Counter()
    signals = itertools.cycle(SIGNALS)
    runs, faults = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        model, pool = make_data(root, 14)
        folder = root / "in"
        while kills.total() < kills_wanted:
            suffix = SUFFIXES[runs % len(SUFFIXES)]
            calm, rough = root / "calm", root / "rough"
            fill(folder, pool)
            for change in (lambda *_: None, replace):
                change(folder, pool)
                seconds = run_to_end(folder, model, calm, suffix)
                kills += run_with_kills(folder, model, rough, suffix, seconds, signals, rng)
            found = differences(calm, rough)
            runs += 1
            faults += found
            print(
                f"run {runs} ({suffix}): {dict(kills)} so far, {found or 'identical'}", flush=True
            )
            for path in (folder, calm, rough):
                shutil.rmtree(path)
    print(f"{kills.total()} kills in {runs} runs: {len(faults)} differences")
    return not faults


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    sys.exit(0 if main(numbers[0], numbers[1] if len(numbers) > 1 else 0) else 1)
