"""Run ``undulatus watch`` for a while and see whether it grows. Prints a table and a verdict.

python -m benchmarks.soak MINUTES [SECONDS_BETWEEN_FILES]

A folder is fed with acquisitions of the synthetic landmark: netCDF that is copied in two parts,
Zarr, netCDF that is cut short or in other units, and files that are replaced after they were
mapped. Inputs and maps of some minutes ago are removed, as an operational chain does. Memory, open
files and threads of the watcher are sampled every few seconds; at the end the ledger must list
every content once, with the result it should have, and the watcher must end with status 0.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from undulatus._files import JsonLines
from undulatus.scenes import open_scene, write_dataset

COMMAND = [sys.executable, "-m", "undulatus.cli"]

EVERY = 0.5
"""Seconds between looks."""

KEPT_SECONDS = 240.0
"""Inputs and maps are removed after so long."""

SAMPLE_SECONDS = 5.0

WARM_UP = 0.2
"""Share of the run after which nothing may grow any more."""

MOST_GROWTH = 0.02
"""Growth of memory that counts as flat, from the first to the last third after the warm-up."""

MAPPED, SET_ASIDE = "mapped", "set aside"


def make_data(folder: Path, acquisitions: int) -> tuple[Path, list[Path]]:
    """Write a small model and files of one acquisition each, and return their paths."""
    quiet: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL}
    quiet["stderr"] = subprocess.DEVNULL
    year, model = folder / "year.zarr", folder / "clouds.undulatus"
    subprocess.run([*COMMAND, "simulate", "landmarks", "--days", "4", "-o", year], **quiet)
    small = ["--method", "rff", "-D", "20", "--n-estimators", "2", "--holdout", "0.5"]
    subprocess.run([*COMMAND, "fit", year, *small, "-o", model], **quiet)
    scene = open_scene(year)
    pool = folder / "pool"
    pool.mkdir()
    paths = [pool / f"{index:03}.nc" for index in range(acquisitions)]
    for index, path in enumerate(paths):
        write_dataset(scene.isel(time=slice(index, index + 1)).compute(), path)
    return model, paths


def result_counts(ledger: Path) -> Counter[tuple[str, str, str]]:
    """Return how often the ledger lists each name, content and result."""
    records = [record for record in JsonLines(ledger).read() if "input" in record]
    return Counter((r["input"], r["digest"], r["result"]) for r in records)


@dataclass
class Feeder:
    """Puts files into a folder, and knows what should become of each."""

    folder: Path
    output: Path
    pool: list[Path]
    fed: int = 0
    expected: Counter[tuple[str, str]] = field(default_factory=Counter)
    half: deque[tuple[Path, bytes]] = field(default_factory=deque)
    """Files of which a part is still to be copied."""
    to_replace: deque[Path] = field(default_factory=deque)
    old: deque[tuple[float, str]] = field(default_factory=deque)

    def step(self) -> None:
        """Feed one more file, complete one, replace one, remove old ones."""
        now = time.monotonic()
        if self.half:
            path, rest = self.half.popleft()
            with path.open("ab") as file:
                file.write(rest)
        index, self.fed = self.fed, self.fed + 1
        source = self.pool[index % len(self.pool)]
        name = f"acquisition-{index:06}"
        kind = index % 20
        if kind == 7:
            self._place(name, source.read_bytes()[:5000])
            self.expected[f"{name}.nc", SET_ASIDE] += 1
        elif kind == 11:
            self._place_other_units(name, source)
            self.expected[f"{name}.nc", SET_ASIDE] += 1
        elif kind in (3, 13):
            self._place_zarr(name, source)
            self.expected[f"{name}.zarr", MAPPED] += 1
        else:
            content = source.read_bytes()
            middle = len(content) // 2
            path = self.folder / f"{name}.nc"
            path.write_bytes(content[:middle])
            self.half.append((path, content[middle:]))
            self.expected[f"{name}.nc", MAPPED] += 1
            if kind == 17:
                self.to_replace.append(path)
        self.old.append((now, name))
        self._replace()
        self._purge(now)

    def _place(self, name: str, content: bytes) -> None:
        hidden = self.folder / f".{name}.nc"
        hidden.write_bytes(content)
        hidden.rename(self.folder / f"{name}.nc")

    def _place_other_units(self, name: str, source: Path) -> None:
        scene = open_scene(source).load()
        for band in ("IR_108", "IR_120", "IR_087", "IR_039"):
            if band in scene:
                scene[band] = scene[band] - 273.15
        hidden = self.folder / f".{name}.nc"
        write_dataset(scene, hidden)
        hidden.rename(self.folder / f"{name}.nc")

    def _place_zarr(self, name: str, source: Path) -> None:
        hidden = self.folder / f".{name}.zarr"
        write_dataset(open_scene(source).load(), hidden)
        hidden.rename(self.folder / f"{name}.zarr")

    def _replace(self) -> None:
        # Once it has its map: what is replaced before is never seen.
        while self.to_replace and (self.output / self.to_replace[0].name).exists():
            path = self.to_replace.popleft()
            self._place(path.stem, self.pool[(self.fed * 7) % len(self.pool)].read_bytes())
            self.expected[path.name, MAPPED] += 1

    def _purge(self, now: float) -> None:
        while (
            self.old and now - self.old[0][0] > KEPT_SECONDS and self._is_handled(self.old[0][1])
        ):
            _, name = self.old.popleft()
            for path in (*self.folder.glob(f"{name}.*"), *self.output.glob(f"{name}.*")):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _is_handled(self, name: str) -> bool:
        """Return whether an item has a map or a reason that is younger than its content."""
        (path,) = self.folder.glob(f"{name}.*")
        made = (self.output / f"{name}.nc", self.output / "set-aside" / f"{path.name}.txt")
        changed = path.stat().st_mtime
        return any(file.exists() and file.stat().st_mtime > changed for file in made)

    def finish(self) -> None:
        """Complete what is half copied."""
        for path, rest in self.half:
            with path.open("ab") as file:
                file.write(rest)
        self.half.clear()


@dataclass
class Samples:
    """Memory in MiB, open files and threads of a process, from time to time."""

    process: psutil.Process
    rows: list[tuple[float, float, int, int, int]] = field(default_factory=list)

    def take(self, start: float, fed: int) -> None:
        """Add a sample."""
        with self.process.oneshot():
            memory = self.process.memory_info().rss / 2**20
            files, threads = self.process.num_fds(), self.process.num_threads()
        self.rows.append((time.monotonic() - start, memory, files, threads, fed))

    def report(self) -> bool:
        """Print a table and return whether all is flat after the warm-up."""
        rows = np.array(self.rows)
        print("  minutes      fed  MiB (median, most)  open files (least, median, most)  threads")
        for part in np.array_split(rows, min(10, len(rows))):
            minutes, memory, files, threads, fed = part.T
            print(
                f"{minutes[-1] / 60:9.1f} {fed[-1]:8.0f} {np.median(memory):9.1f} "
                f"{memory.max():9.1f} {files.min():15.0f} {np.median(files):7.0f} "
                f"{files.max():6.0f} {threads.max():12.0f}"
            )
        rows = rows[rows[:, 0] >= WARM_UP * rows[-1, 0]]
        first, _, last = np.array_split(rows, 3)
        slope = np.polyfit(rows[:, 0] / 3600, rows[:, 1], 1)[0]
        each = np.polyfit(rows[:, 4], rows[:, 1] * 1024, 1)[0]
        growth = np.median(last[:, 1]) / np.median(first[:, 1]) - 1
        print(f"memory after the warm-up: {slope:+.1f} MiB an hour, {each:+.2f} KiB a file;")
        print(f"  last third against first: {growth:+.2%}")
        # At any moment a few more are in use, while an item is mapped: what leaks stays.
        same = all(last[:, column].min() <= first[:, column].min() for column in (2, 3))
        same = same and all(
            np.median(last[:, column]) <= np.median(first[:, column]) + 1 for column in (2, 3)
        )
        print(f"open files and threads: {'no more' if same else 'MORE'} than at first")
        return bool(growth <= MOST_GROWTH and same)


def check(feeder: Feeder, output: Path) -> bool:
    """Print and return whether every content was handled once, as it should be."""
    counts = result_counts(output / "watch.jsonl")
    repeated = [key for key, count in counts.items() if count > 1]
    found: Counter[tuple[str, str]] = Counter()
    for (name, _, result), count in counts.items():
        found[name, result] += count
    lost = feeder.expected - found
    more = found - feeder.expected
    print(f"{feeder.fed:,} files fed, {sum(feeder.expected.values()):,} contents; handled:")
    print(f"  {sum(n for (_, r), n in found.items() if r == MAPPED):,} mapped,", end=" ")
    print(f"{sum(n for (_, r), n in found.items() if r == SET_ASIDE):,} set aside")
    print(f"  lost {sum(lost.values())}, repeated {len(repeated)}, otherwise {sum(more.values())}")
    for kind, names in (("lost", lost), ("otherwise", more), ("repeated", repeated)):
        for name in list(names)[:5]:
            print(f"    {kind}: {name}")
    stray = [path for path in output.iterdir() if path.name.startswith(".")]
    print(f"  stray files: {[path.name for path in stray]}")
    return not (repeated or lost or more or stray)


def main(minutes: float, pause: float) -> bool:
    """Feed and sample for some minutes; print and return whether all went well."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("SOAK_FOLDER")) as scratch:
        root = Path(scratch)
        model, pool = make_data(root, 96)
        folder, output = root / "in", root / "out"
        folder.mkdir()
        command = [*COMMAND, "watch", str(folder), str(model), "-o", str(output)]
        # The second half of a file comes with the next one: until then it is not complete.
        command += ["--every", str(EVERY), "--settle", str(2.0 * pause)]
        with (root / "log.txt").open("w") as log:
            watcher = subprocess.Popen(command, stdout=log, stderr=log)
        feeder, samples = Feeder(folder, output, pool), Samples(psutil.Process(watcher.pid))
        while not (output / "health.txt").exists():
            time.sleep(0.2)
        start = sampled = time.monotonic()
        while time.monotonic() - start < 60 * minutes:
            next_one = time.monotonic() + pause
            feeder.step()
            if time.monotonic() - sampled >= SAMPLE_SECONDS:
                sampled = time.monotonic()
                samples.take(start, feeder.fed)
            time.sleep(max(0.0, next_one - time.monotonic()))
        feeder.finish()
        wait_until_done(output, sum(feeder.expected.values()))
        watcher.send_signal(signal.SIGTERM)
        status = watcher.wait(timeout=60)
        print((output / "health.txt").read_text())
        flat, right = samples.report(), check(feeder, output)
        print(f"exit status after SIGTERM: {status}")
        print(json.dumps({"flat": flat, "right": right, "status": status}))
        if not right:
            shutil.copy(root / "log.txt", "soak-log.txt")
        return flat and right and status == 0


def wait_until_done(output: Path, contents: int) -> None:
    """Wait until the ledger has as many contents, or does not grow for two minutes."""
    count, since = -1, time.monotonic()
    while time.monotonic() - since < 120:
        found = len(result_counts(output / "watch.jsonl"))
        if found != count:
            count, since = found, time.monotonic()
        if count >= contents:
            return
        time.sleep(1)


if __name__ == "__main__":
    arguments = [float(word) for word in sys.argv[1:]]
    sys.exit(0 if main(arguments[0], arguments[1] if len(arguments) > 1 else 0.5) else 1)
