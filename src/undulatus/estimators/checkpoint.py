"""A fit in progress, saved to disk after every iteration so that it can be continued."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, get_type_hints

import numpy as np

from undulatus._files import StoredArray, open_tensors, write_tensors
from undulatus._plain import FormError, require
from undulatus.errors import InputError, ModelFileError
from undulatus.estimators.training import TrainingData
from undulatus.gp.batch import BatchState
from undulatus.gp.minibatch import State as MinibatchState

State = TypeVar("State", BatchState, MinibatchState)

LONGEST_TEXT = 60
"""Settings with a longer text than this are stored as a digest of it."""

_DIGEST = "sha256:"

_REASONS = {
    "max_iter": "the stochastic solver plans by it when its steps begin to shrink, so that a fit "
    "with another one is another fit"
}
"""Why a setting matters, where one may wonder."""

_PARAMETERS = {
    "frequencies": "Dd",
    "signal_variances": "C",
    "gram": "Ckk",
    "projected": "Ck",
}

_SHAPES = {
    "start.unit_frequencies": "Dd",
    "progress.theta": "t",
    "progress.best_theta": "t",
    "local.precision": "Cn",
    "local.offsets": "C",
    **{f"{own}.{name}": s for own in ("parameters", "best") for name, s in _PARAMETERS.items()},
    **{f"frequency_adam.{name}": "Dd" for name in ("mean", "square")},
    **{f"scale_adam.{name}": "d" for name in ("mean", "square")},
    "losses": "i",
}
"""Shapes of the arrays of a state, a letter for each size: see :func:`state_sizes`."""

_POSITIVE = ("lengthscale", "signal_variance", "signal_variances", "frequency_unit")
"""Last parts of the names of values that are positive."""


class _Fingerprint(TypedDict):
    data: str
    settings: dict[str, str]


def state_sizes(
    n_frequencies: int, n_features: int, n_latents: int, n_rows: int, *, learns: bool
) -> dict[str, int]:
    """Return the sizes of the arrays in the state of a fit, by their letters.

    ``learns`` says whether frequencies are hyperparameters, or the lengthscale alone.
    """
    own = n_frequencies * n_features if learns else 1
    return {
        "D": n_frequencies,
        "d": n_features,
        "C": n_latents,
        "k": 2 * n_frequencies,
        "t": n_latents + own,
        "n": n_rows,
    }


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
    these. In the file every value is known by its path, such as ``parameters.frequencies``.
    A file that this fit cannot continue is refused, never overwritten. ``sizes`` are those of
    :func:`state_sizes`, as far as they are known.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fingerprint: Fingerprint,
        state: type[State],
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self._path = Path(path)
        self._fingerprint = fingerprint
        self._state: type[State] = state
        self._sizes = dict(sizes or {})

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
        tensors, header = open_tensors(self._path)
        if not isinstance(header, dict) or "fingerprint" not in header:
            raise ModelFileError(
                self._path, "is not a checkpoint. Move it away, or choose another checkpoint."
            )
        written_for = header["fingerprint"]
        if not isinstance(written_for, dict) or set(written_for) != set(asdict(self._fingerprint)):
            raise self._refusal("was written by another version of undulatus")
        try:
            require(written_for, _Fingerprint, "fingerprint")
        except FormError as error:
            raise ModelFileError(self._path, f"has a broken header: {error}.") from error
        differences = self._fingerprint.differences(Fingerprint(**written_for))
        if differences:
            raise self._refusal("belongs to another fit", differences)
        values = _all_values(tensors, header)
        if set(values) != set(_HINTS[self._state]):
            raise self._refusal("was written by another version of undulatus")
        state: State = _read_state(self._path, self._state, values, self._sizes)
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
    values = _all_values(*open_tensors(path))
    for kind in (BatchState, MinibatchState):
        if set(values) == set(_HINTS[kind]):
            return int(_read_state(path, kind, values, {}).n_iter)
    raise ModelFileError(path, "is not a checkpoint of this version of undulatus.")


def _all_values(tensors: Mapping[str, StoredArray], header: Any) -> dict[str, Any]:
    plain = header.get("values") if isinstance(header, dict) else None
    return {**(plain if isinstance(plain, dict) else {}), **tensors}


def _read_state(
    path: str | os.PathLike[str], kind: Any, values: dict[str, Any], sizes: Mapping[str, int]
) -> Any:
    """Return the state that values make, once each is what its field and its name say."""
    known = dict(sizes)
    try:
        for name, hint in _HINTS[kind].items():
            _require_value(name, hint, values[name], known)
        if known.get("k", 0) != 2 * known.get("D", 0) and "k" in known:
            raise FormError("the sizes of its arrays do not fit each other")
        arrays = {
            name: value.read() for name, value in values.items() if isinstance(value, StoredArray)
        }
        for name, array in arrays.items():
            if name.rpartition(".")[2] in _POSITIVE and not (array > 0).all():
                raise FormError(f"{name} holds numbers that are not positive")
    except FormError as error:
        raise ModelFileError(path, f"is a damaged checkpoint: {error}.") from error
    return _build_state(kind, {**values, **arrays})


def _require_value(name: str, hint: Any, value: Any, sizes: dict[str, int]) -> None:
    """Raise a :class:`FormError` unless a value, maybe an array not yet read, suits its field."""
    if isinstance(value, StoredArray):
        found = zip(_SHAPES.get(name, ""), value.shape, strict=False)
        fits = value.dtype.kind == "f" and len(value.shape) == len(_SHAPES.get(name, ""))
        if not fits or not all(size == sizes.setdefault(letter, size) for letter, size in found):
            raise FormError(f"{name} has the type {value.dtype} and the shape {value.shape}")
        return
    if name in _SHAPES and not (value is None and name == "progress.best_theta"):
        raise FormError(f"{name} is no array")
    if name not in _SHAPES:
        require(value, hint, name)
        if name.rpartition(".")[2] in _POSITIVE and not value > 0:
            raise FormError(f"{name} is {value}, but a positive number is expected")


def _find_hints(kind: Any) -> dict[str, Any]:
    """Return the type hint of every value of a state by its path."""
    found: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint):
            found |= {f"{name}.{path}": own for path, own in _find_hints(hint).items()}
        else:
            found[name] = hint
    return found


_HINTS: dict[Any, dict[str, Any]] = {
    kind: _find_hints(kind) for kind in (BatchState, MinibatchState)
}


def _flatten(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields(state):
        value = getattr(state, field.name)
        if is_dataclass(value):
            yield from _flatten(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, value


def _build_state(kind: Any, values: dict[str, Any], prefix: str = "") -> Any:
    def value_of(name: str, hint: Any) -> Any:
        if is_dataclass(hint):
            return _build_state(hint, values, f"{prefix}{name}.")
        value = values[prefix + name]
        # JSON knows no tuples.
        return tuple(value) if isinstance(value, list) else value

    return kind(**{name: value_of(name, hint) for name, hint in get_type_hints(kind).items()})
