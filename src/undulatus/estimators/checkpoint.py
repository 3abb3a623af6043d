"""A fit under way, kept on disk: written at every iteration, continued from when it fits."""

from __future__ import annotations

import hashlib
import os
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from undulatus._files import read_tensors, write_tensors
from undulatus.estimators.training import Prepared
from undulatus.gp.batch import BatchState
from undulatus.gp.stochastic import Walk

State = TypeVar("State", BatchState, Walk)


def fingerprint(training: Prepared, settings: dict[str, Any]) -> str:
    """Return a digest of the data (a summary, some rows, all labels) and of the settings."""
    summary = training.summary
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for array in (summary.mean, summary.variance, summary.low, summary.high):
        digest.update(np.ascontiguousarray(array).tobytes())
    for mark in training.marks():
        digest.update(mark)
    return digest.hexdigest()


class Checkpoint(Generic[State]):
    """The state of one fit, a flat dataclass of arrays and plain values, in one file."""

    def __init__(self, path: str | os.PathLike[str], mark: str, state: type[State]) -> None:
        self._path = Path(path)
        self._mark = mark
        self._state: type[State] = state

    def save(self, state: State) -> None:
        """Write the state, atomically."""
        values = {field.name: getattr(state, field.name) for field in fields(state)}
        tensors = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
        plain = {name: v for name, v in values.items() if name not in tensors}
        write_tensors(self._path, tensors, {"fingerprint": self._mark, "values": plain})

    def load(self) -> State | None:
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
        values: dict[str, Any] = {**tensors, **header["values"]}
        return self._state(**values)
