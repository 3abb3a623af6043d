"""Kill commands at random moments, resume them, and compare what they leave in the end.

python -m benchmarks.kills [N] [--what fit,map,update] [--seed N] [--json PATH]

Each command runs once undisturbed. Then it is killed at random moments (SIGKILL, SIGTERM and
SIGINT in turn), given again with its option to continue until it ends by itself, and begun afresh,
until N kills are done in all. Two kills of three come after the command has finished the first
part of its result, such as a chunk of a map. It fails if a result differs by a bit from that of
the undisturbed run, if a reader could have seen half of it, if SIGTERM and Ctrl-C do not end a
command with status 143 and 130, or if a file is left that the undisturbed run does not leave. To
try one more command, list it in ``KINDS``.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import rasterio

from undulatus.cli.session import INTERRUPTED, TERMINATED
from undulatus.scenes import synthetic_landmark, write_dataset

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)

ENDS_WITH = {signal.SIGTERM: TERMINATED, signal.SIGINT: INTERRUPTED}
"""The exit status after a signal that a command hears."""

LONGEST_SECONDS = 300.0
"""A command that takes longer hangs."""


@dataclass(frozen=True)
class Kind:
    """A command to kill.

    Attributes
    ----------
    inputs : callable
        Makes what the command needs in an empty folder.
    command : tuple of str
        Arguments of ``undulatus``, run in a copy of that folder.
    again : tuple of str
        Further arguments after a kill.
    output : str
        What it writes. Until it is whole there must be none.
    same : callable
        What of an output must be the same, to the bit.
    parts : str
        Pattern of the parts that it finishes one after the other; empty if it has none.
    """

    inputs: Callable[[Path], None]
    command: tuple[str, ...]
    again: tuple[str, ...]
    output: str
    same: Callable[[Path], bytes]
    parts: str = ""


def undulatus(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command in a folder, whose standard error is kept."""
    return subprocess.Popen(
        [sys.executable, "-m", "undulatus.cli", *arguments],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(folder: Path, *arguments: str) -> None:
    """Run a command to its end; raise if it fails."""
    process = undulatus(folder, *arguments)
    _, errors = process.communicate(timeout=LONGEST_SECONDS)
    if process.returncode:
        raise RuntimeError(f"undulatus {' '.join(arguments)} failed:\n{errors}")


def make_scene(folder: Path) -> None:
    """Write four synthetic days, in four blocks."""
    write_dataset(synthetic_landmark(4, chunk_days=1), folder / "days.zarr")


def make_scene_and_model(folder: Path) -> None:
    """Write twelve synthetic days, in as many blocks, and a model of them."""
    write_dataset(synthetic_landmark(12, chunk_days=1), folder / "days.zarr")
    few = ("--method", "rff", "-D", "60", "--n-estimators", "2", "--seed", "1")
    finished(folder, "fit", "days.zarr", *few, "-o", "clouds.undulatus")


def make_image_and_model(folder: Path) -> None:
    """Write an image, a model of some of its pixels, and labels of others."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, (6, 6)).repeat(10, axis=0).repeat(10, axis=1)
    bands = (0.1 * truth + 0.02 * rng.normal(size=(3, *truth.shape)) + 0.2).astype(np.float32)
    with rasterio.open(
        folder / "image.tif", "w", driver="GTiff", width=60, height=60, count=3, dtype="float32",
        crs="EPSG:32632", transform=rasterio.Affine(10.0, 0, 5e5, 0, -10.0, 5.2e6),
    ) as file:  # fmt: skip
        file.write(bands)
        file.descriptions = ("B02", "B03", "B04")
    row, column = np.indices(truth.shape).reshape(2, -1)
    table = pd.DataFrame({"row": row, "column": column, "class": truth.ravel()})
    for name, chosen in (("first", row < 30), ("more", row >= 50)):
        table[chosen].to_csv(folder / f"{name}.csv", index=False)
    few = ("-D", "10", "--n-estimators", "2", "--max-pixels", "400")
    finished(folder, "fit", "image.tif", "--label", "first.csv", *few, "-o", "image.undulatus")


def bytes_of_values(store: Path) -> bytes:
    """Return the objects of a Zarr but for its metadata, which hold the time of writing."""
    chunks = sorted(path for path in store.rglob("c/**/*") if path.is_file())
    if not chunks:
        raise RuntimeError(f"{store} holds no chunks.")
    return b"".join(str(path.relative_to(store)).encode() + path.read_bytes() for path in chunks)


KINDS = {
    "fit": Kind(
        make_scene,
        ("fit", "days.zarr", "-D", "20", "--n-estimators", "2", "-o", "new.undulatus"),
        ("--resume",),
        "new.undulatus",
        Path.read_bytes,
        ".new.undulatus.checkpoint*",
    ),
    "map": Kind(
        make_scene_and_model,
        ("map", "clouds.undulatus", "days.zarr", "-o", "map.zarr"),
        ("--resume",),
        "map.zarr",
        bytes_of_values,
        ".map.unfinished.zarr/cloud_mask/c/*/0/0",
    ),
    "update": Kind(
        make_image_and_model,
        ("update", "image.undulatus", "image.tif", "--label", "more.csv", "-o", "new.undulatus"),
        (),
        "new.undulatus",
        Path.read_bytes,
    ),
}


@dataclass
class Record:
    """What was found about one kind."""

    kills: Counter[str] = field(default_factory=Counter)
    finished_first: int = 0
    """Commands that ended before their kill."""
    inside: int = 0
    """Kills that left some parts finished and others not."""
    results: int = 0
    """Results that were compared after all kills."""
    problems: list[str] = field(default_factory=list)


def listing(folder: Path) -> list[str]:
    """Return all names in a folder, hidden ones too."""
    return sorted(path.name for path in folder.iterdir())


@dataclass
class Trial:
    """Kills of one kind."""

    kind: Kind
    folder: Path
    rng: random.Random
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        self.inputs = self.folder / "inputs"
        self.inputs.mkdir(parents=True)
        self.kind.inputs(self.inputs)
        undisturbed = self.begin()
        start = time.monotonic()
        process = undulatus(undisturbed, *self.kind.command)
        self._await_part(process, undisturbed, 0)
        at_work = time.monotonic()
        _, errors = process.communicate(timeout=LONGEST_SECONDS)
        if process.returncode:
            raise RuntimeError(f"undulatus {' '.join(self.kind.command)} failed:\n{errors}")
        self.seconds, self.at_work = time.monotonic() - start, time.monotonic() - at_work
        self.expected = self.kind.same(undisturbed / self.kind.output)
        self.names = listing(undisturbed)

    def begin(self) -> Path:
        """Return a new folder with the inputs; always of one name, which results may hold."""
        folder = self.folder / "work"
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(self.inputs, folder)

    def run(self, most_kills: int) -> None:
        """Kill a command until it ends by itself, or until there were so many kills."""
        folder, kills = self.begin(), 0
        output = folder / self.kind.output
        while kills < most_kills and not output.exists():
            kills += self._kill_once(folder, kills > 0)
        if not output.exists():
            finished(folder, *self.kind.command, *self.kind.again)
        self._compare(folder)

    def _kill_once(self, folder: Path, again: bool) -> int:
        """Run the command, kill it at a random moment, and return whether it was in time."""
        done = self.record.kills.total()
        sent, wait = SIGNALS[done % len(SIGNALS)], self.rng.uniform(0.0, self.seconds)
        start, before = time.monotonic(), self._count_parts(folder)
        process = undulatus(folder, *self.kind.command, *(self.kind.again if again else ()))
        if self.kind.parts and done // len(SIGNALS) % 3:
            self._await_part(process, folder, before)
            # Half of the time: what an earlier run finished is not done again.
            wait = self.rng.uniform(0.0, self.at_work / 2.0)
        try:
            _, errors = process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            process.send_signal(sent)
            _, errors = process.communicate(timeout=LONGEST_SECONDS)
        code = process.returncode
        if code == 0:
            self.record.finished_first += 1
            # The first run reads its libraries from the disk.
            self.seconds = min(self.seconds, time.monotonic() - start)
            return 0
        self.record.kills[sent.name] += 1
        self.record.inside += self._count_parts(folder) > 0
        # While Python itself starts, Ctrl-C ends it as any other signal does, or with an error.
        starting = "Fatal Python error: init_" in errors
        allowed = {-sent, ENDS_WITH.get(sent, -sent)}
        if (code not in allowed and not starting) or (code > 0 and "Traceback" in errors):
            self.record.problems.append(f"{sent.name} gave exit status {code}:\n{errors}")
        return 1

    def _await_part(self, process: subprocess.Popen[str], folder: Path, before: int) -> None:
        """Wait until a command has finished one more part, or has ended."""
        while self.kind.parts and process.poll() is None and self._count_parts(folder) <= before:
            time.sleep(0.002)

    def _count_parts(self, folder: Path) -> int:
        return sum(1 for _ in folder.glob(self.kind.parts)) if self.kind.parts else 0

    def _compare(self, folder: Path) -> None:
        self.record.results += 1
        if self.kind.same(folder / self.kind.output) != self.expected:
            self.record.problems.append("the result differs from that of the undisturbed run")
        stray = sorted({*listing(folder)} - {*self.names})
        if stray:
            self.record.problems.append(f"left behind: {', '.join(stray)}")


def try_kinds(kills: int, names: list[str], seed: int, folder: Path) -> dict[str, Record]:
    """Do so many kills over some kinds, and print a line for each result."""
    trials = {name: Trial(KINDS[name], folder / name, random.Random(seed)) for name in names}
    for name, trial in trials.items():
        print(f"{name}: {trial.seconds:.1f} s undisturbed", flush=True)
    while (left := kills - sum(t.record.kills.total() for t in trials.values())) > 0:
        name, trial = min(trials.items(), key=lambda pair: pair[1].record.kills.total())
        trial.run(left)
        print(
            f"{name}: {trial.record.kills.total()} kills, {trial.record.results} results, "
            f"{len(trial.record.problems)} problems",
            flush=True,
        )
    return {name: trial.record for name, trial in trials.items()}


def main() -> None:
    """Kill as asked for, and exit with status 1 if anything was lost or left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kills", nargs="?", type=int, default=200)
    parser.add_argument("--what", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Children of a shell's background job would ignore Ctrl-C, as this process does.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        records = try_kinds(options.kills, options.what.split(","), options.seed, Path(folder))
    problems = 0
    for name, record in records.items():
        kinds = ", ".join(f"{count} {sent}" for sent, count in record.kills.items())
        print(
            f"{name}: {record.kills.total()} kills ({kinds}; {record.inside} with some parts "
            f"finished), {record.results} results, all alike"
            if not record.problems
            else f"{name}: {len(record.problems)} problems\n" + "\n".join(record.problems)
        )
        problems += len(record.problems)
    if options.json is not None:
        options.json.write_text(json.dumps({k: vars(r) for k, r in records.items()}, indent=2))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
