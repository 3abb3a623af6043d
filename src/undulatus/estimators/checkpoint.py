"""A fit under way, kept on disk: written at every iteration, continued from when it fits."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from undulatus.estimators.classifier import Training
from undulatus.gp.ascent import Climb
from undulatus.gp.variational import Progress, Start
from undulatus.tensorfile import read_tensors, write_tensors


def fingerprint(training: Training, settings: dict[str, Any]) -> str:
    """Return a digest of the data (through its summary) and of all that steers the fit."""
    summary = training.summary
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=repr).encode())
    for array in (summary.mean, summary.variance, summary.low, summary.high):
        digest.update(np.ascontiguousarray(array).tobytes())
    digest.update(np.packbits(training.positive).tobytes())
    if training.weight is not None:
        digest.update(np.ascontiguousarray(training.weight).tobytes())
    return digest.hexdigest()


class Checkpoint:
    """The state of one batch fit in one file."""

    def __init__(self, path: str | os.PathLike[str], mark: str) -> None:
        self._path = Path(path)
        self._mark = mark

    def save(self, progress: Progress) -> None:
        """Write the state, atomically."""
        tensors = {
            "unit_frequencies": progress.start.unit_frequencies,
            "theta": progress.climb.theta,
            "bounds": np.array(progress.climb.bounds),
            "xi": progress.xi,
        }
        header = {
            "fingerprint": self._mark,
            "lengthscale": progress.start.lengthscale,
            "signal_variance": progress.start.signal_variance,
            "outcome": progress.climb.outcome,
        }
        write_tensors(self._path, tensors, header)

    def load(self) -> Progress | None:
        """Return the state to go on from, or None if there is none for this fit."""
        if not self._path.exists():
            return None
        tensors, header = read_tensors(self._path)
        if header.get("fingerprint") != self._mark:
            warnings.warn(
                f"The checkpoint {self._path} belongs to other data or settings; "
                f"the fit starts from the beginning and overwrites it.",
                stacklevel=4,
            )
            return None
        start = Start(
            tensors["unit_frequencies"], header["lengthscale"], header["signal_variance"]
        )
        bounds = tuple(tensors["bounds"].tolist())
        return Progress(start, Climb(tensors["theta"], bounds, header["outcome"]), tensors["xi"])
