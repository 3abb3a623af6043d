"""What trials are fitted on, as plain arrays on disk that processes share page by page.

A part (a regime, or all spectra) is a folder of ``.npy`` files: ``features`` (rows, d),
``labels`` (rows,), where known ``truth``, ``coast`` and ``groups`` (rows,), and for each run the
rows to learn from in order (``training-0``), so that a larger n contains a smaller, the rows to
test on (``test-0``), and the starting frequencies (``frequencies-0``), so that a larger D contains
a smaller.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FACTS = "facts.json"
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Problem:
    """Rows, and which of them one run learns from and tests on."""

    features: Array
    labels: Array
    training: Array
    test: Array
    frequencies: Array
    """Unit frequencies of an RBF kernel, (largest D, d)."""
    truth: Array | None = None
    coast: Array | None = None
    groups: Array | None = None
    """What is held back together while frequencies are learned: the day of a pixel."""
    cloud_share: float | None = None
    """Real share of cloud, where training rows are balanced."""


def write_part(
    folder: Path,
    columns: dict[str, Array],
    runs: list[tuple[Array, Array]],
    *,
    most_frequencies: int,
    seed: int,
    cloud_share: float | None = None,
) -> None:
    """Write a part: its columns, and the rows to learn from and to test on of each run."""
    folder.mkdir(parents=True)
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    d = columns["features"].shape[1]
    for run, (training, test) in enumerate(runs):
        np.save(folder / f"training-{run}.npy", training)
        np.save(folder / f"test-{run}.npy", test)
        # The spectral density of an RBF kernel of lengthscale 1 is the standard normal.
        drawn = np.random.default_rng([seed, run]).standard_normal((most_frequencies, d))
        np.save(folder / f"frequencies-{run}.npy", drawn)
    (folder / FACTS).write_text(json.dumps({"cloud_share": cloud_share}))


def open_problem(data: Path, part: str, run: int) -> Problem:
    """Open what a run of a part learns from and tests on, memory-mapped."""
    folder = data / part

    def read(name: str) -> Array:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    def read_if_known(name: str) -> Array | None:
        return read(name) if (folder / f"{name}.npy").exists() else None

    return Problem(
        read("features"),
        read("labels"),
        read(f"training-{run}"),
        read(f"test-{run}"),
        read(f"frequencies-{run}"),
        read_if_known("truth"),
        read_if_known("coast"),
        read_if_known("groups"),
        json.loads((folder / FACTS).read_text())["cloud_share"],
    )


def read_manifest(data: Path) -> dict[str, Any]:
    """Return what was prepared: parts with their rows and features, and facts of the data."""
    return dict(json.loads((data / MANIFEST).read_text(encoding="utf-8")))
