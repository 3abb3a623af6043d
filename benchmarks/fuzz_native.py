"""Read mutated native files of IASI: each must be a SceneError, or spectra whose shapes are right.

python -m benchmarks.fuzz_native [FILES] [SEED]

Files of two lines, of each version of the format, are mutated: bytes flipped or set, sizes and
versions in headers replaced, parts cut off, moved, doubled or appended. All variables are
computed. Any other exception, a file that takes too long, infinite numbers or wrong shapes end
the run and leave the file behind.
"""

from __future__ import annotations

import shutil
import struct
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np

from benchmarks.iasi_writer import NAME, NativeFile, plausible_fields
from undulatus.errors import SceneError
from undulatus.scenes.channels import CHANNELS
from undulatus.scenes.files.opening import open_spectra

LONGEST, LONGEST_WAIT = 2.0, 120.0
"""Seconds of the processor, and by the clock, that one file may take; one takes milliseconds."""

PART = 5_000
"""Files after which a line is printed."""

Mutation = tuple[int, bytes]
"""Where bytes are written, and which."""


@dataclass
class Counted:
    """What came of the files."""

    errors: int = 0
    valid: int = 0
    slowest: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)


class Victim:
    """A file that is changed in place, read, and put right again."""

    def __init__(self, path: Path, version: int) -> None:
        counts = np.random.default_rng(version).integers(0, 20_000, (2, 120, CHANNELS))
        file = NativeFile(counts.astype(np.int16), plausible_fields(2), version=version, lost=(1,))
        self.path = file.write(path)
        self.content = path.read_bytes()
        self.starts = [0]
        while self.starts[-1] < len(self.content):
            size = struct.unpack_from(">I", self.content, self.starts[-1] + 4)[0]
            self.starts.append(self.starts[-1] + size)

    def change(self, mutations: list[Mutation], size: int) -> None:
        """Write some bytes into the file and cut or extend it to a size."""
        with open(self.path, "r+b") as file:
            for offset, content in mutations:
                file.seek(offset)
                file.write(content)
            file.truncate(size)

    def restore(self, mutations: list[Mutation], size: int) -> None:
        """Undo what ``change`` did."""
        with open(self.path, "r+b") as file:
            for offset, content in mutations:
                file.seek(offset)
                file.write(self.content[offset : offset + len(content)])
            if size < len(self.content):
                file.seek(size)
                file.write(self.content[size:])
            file.truncate(len(self.content))


def _headers(victim: Victim, rng: np.random.Generator) -> list[Mutation]:
    """Replace numbers in the headers of records."""
    start = int(rng.choice(victim.starts[:-1]))
    choice = rng.integers(3)
    if choice == 0:
        extremes = [0, 1, 19, 20, 21, 2**31 - 1, 2**31, 2**32 - 1, len(victim.content)]
        near = struct.unpack_from(">I", victim.content, start + 4)[0] + int(rng.integers(-30, 30))
        size = int(rng.choice([*extremes, max(near, 0), int(rng.integers(2**32))]))
        return [(start + 4, struct.pack(">I", size % 2**32))]
    if choice == 1:
        return [(start + int(rng.integers(4)), rng.bytes(1))]
    return [(start + int(rng.integers(20)), rng.bytes(int(rng.integers(1, 9))))]


def _text(victim: Victim, rng: np.random.Generator) -> list[Mutation]:
    """Change the text of the main product header."""
    offset = int(rng.integers(20, victim.starts[1]))
    some = [rng.bytes(3), b"\n", b"=", b"999999", b"-00001", b"\xff\xfe", b"      "]
    return [(offset, some[int(rng.integers(len(some)))])]


def _small_records(victim: Victim, rng: np.random.Generator) -> list[Mutation]:
    """Change the scale factors."""
    offset = victim.starts[6] + int(rng.integers(84))
    return [(offset, rng.bytes(int(rng.integers(1, 5))))]


def _line(victim: Victim, rng: np.random.Generator) -> list[Mutation]:
    """Change bytes of a line, most often where numbers are that matter."""
    start = victim.starts[int(rng.choice([8, 10]))]
    shift = {3: -599, 4: -480, 5: 0}[victim.content[victim.starts[8] + 3]]
    places = [
        (20, 10),
        (8942, 360),
        (255_260, 360),
        (255_893 + shift, 2880),
        (276_777 + shift, 13),
    ]
    places += [(276_790 + shift, 2_088_000), (2_365_790 + shift, 61_000), (20, 2_700_000)]
    first, count = places[int(rng.integers(len(places)))]
    offset = start + first + int(rng.integers(count))
    patterns = [b"\x80\0\0\0", b"\x7f\xff\xff\xff", b"\xff" * 5, b"\0" * 16, b"\x80", rng.bytes(9)]
    return [(offset, patterns[int(rng.integers(len(patterns)))])]


def _blocks(victim: Victim, rng: np.random.Generator) -> list[Mutation]:
    """Copy one part of the file over another."""
    count = int(rng.integers(1, 50_000))
    offset, other = rng.integers(0, len(victim.content) - count, 2)
    return [(int(offset), victim.content[other : other + count])]


MUTATIONS: tuple[Callable[[Victim, np.random.Generator], list[Mutation]], ...] = (
    _headers,
    _headers,
    _text,
    _small_records,
    _line,
    _line,
    _blocks,
)


def _size(victim: Victim, rng: np.random.Generator) -> int:
    """Return a size to cut or extend the file to: mostly its own."""
    choice = rng.random()
    if choice < 0.75:
        return len(victim.content)
    if choice < 0.85:
        return int(rng.integers(len(victim.content)))
    if choice < 0.95:
        near = int(rng.choice(victim.starts)) + int(rng.integers(-25, 26))
        return max(0, near)
    return len(victim.content) + int(rng.integers(1, 100))


def check_valid(spectra: Any) -> None:
    """Raise an AssertionError if spectra are not what a file of lines can hold."""
    samples = spectra.sizes["sample"]
    assert samples in (120, 240)
    assert spectra["radiance"].shape == (samples, CHANNELS)
    assert spectra["radiance"].dtype == np.float32
    for name, array in spectra.variables.items():
        assert array.shape == tuple(spectra.sizes[dim] for dim in array.dims), name
        if array.dtype.kind == "f":
            assert not np.isinf(array.values).any(), name
    assert np.nanmax(np.abs(spectra["radiance"].values), initial=0.0) <= 65_535.0


def fuzz(files: int, seed: int, folder: Path) -> Counted:
    """Read so many mutated files and count what came of them."""
    rng = np.random.default_rng(seed)
    victims = [Victim(folder / f"{version}_{NAME}", version) for version in (3, 4, 5)]
    counted = Counted()
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(files):
            victim = victims[int(rng.integers(3))]
            mutations = [
                change
                for _ in range(int(rng.integers(1, 4)))
                for change in MUTATIONS[int(rng.integers(len(MUTATIONS)))](victim, rng)
            ]
            size = _size(victim, rng)
            victim.change(mutations, size)
            began, busy = time.perf_counter(), time.process_time()
            try:
                check_valid(open_spectra(victim.path).load())
                counted.valid += 1
            except SceneError as error:
                if str(victim.path) not in str(error):
                    raise
                counted.errors += 1
                counted.kinds[_kind(str(error).replace(str(victim.path), ""))] += 1
            took, waited = time.process_time() - busy, time.perf_counter() - began
            assert took < LONGEST, f"{took:.1f} s of the processor"
            assert waited < LONGEST_WAIT, f"{waited:.1f} s"
            counted.slowest = max(counted.slowest, took)
            victim.restore(mutations, size)
    return counted


def _kind(message: str) -> str:
    """Return a message without its numbers."""
    return "".join("#" if letter.isdigit() else letter for letter in message)[:50]


def main(files: int, seed: int) -> None:
    """Read mutated files, 5,000 at a time, and print what came of them."""
    total = Counted()
    shared_memory = Path("/dev/shm")
    for part in range(0, files, PART):
        place = Path(tempfile.mkdtemp(dir=shared_memory if shared_memory.is_dir() else None))
        found = fuzz(min(PART, files - part), seed + part, place)
        shutil.rmtree(place)
        total.errors += found.errors
        total.valid += found.valid
        total.slowest = max(total.slowest, found.slowest)
        total.kinds += found.kinds
        done = total.errors + total.valid
        print(
            f"{done:,} mutated files: {total.errors:,} errors, {total.valid:,} read as valid "
            f"spectra; slowest {total.slowest * 1e3:.0f} ms of the processor",
            flush=True,
        )
    print(f"{len(total.kinds)} kinds of error; the most frequent:")
    for kind, times in total.kinds.most_common(12):
        print(f"  {times:7,}  {kind}")


if __name__ == "__main__":
    main(
        int(sys.argv[1]) if len(sys.argv) > 1 else 1_000,
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
    )
