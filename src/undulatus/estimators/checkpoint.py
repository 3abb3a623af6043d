"""A fit in progress, saved to disk after every iteration so that it can be continued."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np

from undulatus._files import read_tensors, write_tensors
from undulatus.errors import ModelFileError
from undulatus.estimators.training import TrainingData
from undulatus.gp.batch import BatchState
from undulatus.gp.stochastic import Walk

State = TypeVar("State", BatchState, Walk)


def fingerprint(data: TrainingData, settings: dict[str, Any]) -> str:
    """Return a digest of the settings and of the data: its summary, some rows, all labels."""
    summary = data.overview.summary
    digest = hashlib.sha256(repr(sorted(settings.items())).encode())
    for array in (summary.mean, summary.variance, summary.low, summary.high):
        digest.update(np.ascontiguousarray(array).tobytes())
    for part in data.fingerprint_parts():
        digest.update(part)
    return digest.hexdigest()


class Checkpoint(Generic[State]):
    """The state of one fit in one file.

    A state is a dataclass of arrays, plain values, tuples of plain values, and dataclasses of
    these. In the file every value is known by its path, such as ``position.frequencies``.
    """

    def __init__(self, path: str | os.PathLike[str], digest: str, state: type[State]) -> None:
        self._path = Path(path)
        self._fingerprint = digest
        self._state: type[State] = state

    def save(self, state: State) -> None:
        """Write the state, atomically."""
        values = dict(_flatten(state))
        tensors = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
        plain = {name: v for name, v in values.items() if name not in tensors}
        write_tensors(self._path, tensors, {"fingerprint": self._fingerprint, "values": plain})

    def load(self) -> State | None:
        """Return the state to continue from, or None if there is none for this fit."""
        if not self._path.exists():
            return None
        tensors, header = read_tensors(self._path)
        if not isinstance(header, dict) or "fingerprint" not in header:
            raise ModelFileError(
                self._path, "is not a checkpoint. Move it away, or choose another checkpoint."
            )
        if header["fingerprint"] != self._fingerprint:
            self._warn("belongs to other data or settings")
            return None
        values: dict[str, Any] = {**tensors, **header["values"]}
        if set(values) != set(_field_names(self._state)):
            self._warn("was written by another version of undulatus")
            return None
        state: State = _build_state(self._state, values)
        return state

    def _warn(self, reason: str) -> None:
        warnings.warn(
            f"The checkpoint {self._path} {reason}; "
            f"the fit starts from the beginning and overwrites it.",
            stacklevel=5,
        )


def _flatten(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if is_dataclass(value):
            yield from _flatten(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _field_names(kind: Any, prefix: str = "") -> Iterator[str]:
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            yield from _field_names(hint, f"{prefix}{name}.")
        else:
            yield prefix + name


def _build_state(kind: Any, values: dict[str, Any], prefix: str = "") -> Any:
    def value_of(name: str, hint: Any) -> Any:
        if is_dataclass(hint):
            return _build_state(hint, values, f"{prefix}{name}.")
        value = values[prefix + name]
        # JSON knows no tuples.
        return tuple(value) if isinstance(value, list) else value

    return kind(**{name: value_of(name, hint) for name, hint in get_type_hints(kind).items()})
