"""A fit in progress, saved to disk after every iteration so that it can be continued."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import numpy as np

from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.estimators.training import TrainingData
from undulatus.gp.batch import BatchState
from undulatus.gp.walk import Walk

State = TypeVar("State", BatchState, Walk)

LONGEST_TEXT = 60
"""Settings with a longer text than this are stored as a digest of it."""

_DIGEST = "sha256:"

_REASONS = {
    "max_iter": "the stochastic solver plans by it when its steps begin to shrink, so that a fit "
    "with another one is another fit"
}
"""Why a setting matters, where one may wonder."""


@dataclass(frozen=True)
class Fingerprint:
    """What a fit is known by: a digest of its data, and the text of each setting by its name."""

    data: str
    settings: dict[str, str]

    def differences(self, other: Fingerprint) -> list[str]:
        """Return in words what of this fit differs from ``other``."""
        words = ["the data"] if self.data != other.data else []
        for name in sorted({*self.settings, *other.settings}):
            own, others = self.settings.get(name), other.settings.get(name)
            if own == others:
                continue
            if any(text is None or text.startswith(_DIGEST) for text in (own, others)):
                words.append(name)
                continue
            reason = f": {_REASONS[name]}" if name in _REASONS else ""
            words.append(f"{name} ({own}, in the checkpoint {others}){reason}")
        return words


def fingerprint(data: TrainingData, settings: dict[str, Any]) -> Fingerprint:
    """Return the fingerprint of a fit: of its data the summary, some rows and all labels."""
    summary = data.overview.summary
    digest = hashlib.sha256()
    for array in (summary.mean, summary.variance, summary.low, summary.high):
        digest.update(np.ascontiguousarray(array).tobytes())
    for part in data.fingerprint_parts():
        digest.update(part)
    return Fingerprint(
        digest.hexdigest(), {name: _as_text(value) for name, value in settings.items()}
    )


def _as_text(value: Any) -> str:
    if isinstance(value, np.random.RandomState):
        # A continued fit takes its seeds from the checkpoint, as with None.
        return "RandomState"
    text = repr(value)
    return (
        text if len(text) <= LONGEST_TEXT else _DIGEST + hashlib.sha256(text.encode()).hexdigest()
    )


class Checkpoint(Generic[State]):
    """The state of one fit in one file.

    A state is a dataclass of arrays, plain values, tuples of plain values, and dataclasses of
    these. In the file every value is known by its path, such as ``position.frequencies``.
    A file that this fit cannot continue is refused, never overwritten.
    """

    def __init__(
        self, path: str | os.PathLike[str], fingerprint: Fingerprint, state: type[State]
    ) -> None:
        self._path = Path(path)
        self._fingerprint = fingerprint
        self._state: type[State] = state

    def save(self, state: State) -> None:
        """Write the state, atomically."""
        values = dict(_flatten(state))
        tensors = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
        plain = {name: v for name, v in values.items() if name not in tensors}
        header = {"fingerprint": asdict(self._fingerprint), "values": plain}
        write_tensors(self._path, tensors, header)

    def load(self) -> State | None:
        """Return the state to continue from, or None if there is no file yet."""
        if not self._path.exists():
            return None
        tensors, header = read_tensors(self._path)
        if not isinstance(header, dict) or "fingerprint" not in header:
            raise ModelFileError(
                self._path, "is not a checkpoint. Move it away, or choose another checkpoint."
            )
        written_for = header["fingerprint"]
        if not isinstance(written_for, dict) or set(written_for) != set(asdict(self._fingerprint)):
            raise self._refusal("was written by another version of undulatus")
        differences = self._fingerprint.differences(Fingerprint(**written_for))
        if differences:
            raise self._refusal("belongs to another fit", differences)
        values: dict[str, Any] = {**tensors, **header["values"]}
        if set(values) != set(_field_names(self._state)):
            raise self._refusal("was written by another version of undulatus")
        state: State = _build_state(self._state, values)
        return state

    def _refusal(self, reason: str, differences: Sequence[str] = ()) -> InputError:
        lines = "".join(f"  differs: {difference}\n" for difference in differences)
        return InputError(
            f"The checkpoint {self._path} {reason}, and is not overwritten.\n{lines}"
            f"Choose another checkpoint, or delete this one to start again (--restart on the "
            f"command line)."
        )


def count_iterations(path: str | os.PathLike[str]) -> int:
    """Return how many outer iterations are done in a checkpoint, of whatever fit it is."""
    tensors, header = read_tensors(path)
    plain = header.get("values") if isinstance(header, dict) else None
    values = {**tensors, **(plain if isinstance(plain, dict) else {})}
    for kind in (BatchState, Walk):
        if set(values) == set(_field_names(kind)):
            return int(_build_state(kind, values).n_iter)
    raise ModelFileError(path, "is not a checkpoint of this version of undulatus.")


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
