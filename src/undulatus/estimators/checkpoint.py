"""A fit in progress, saved to disk after every iteration so that it can be continued."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from operator import attrgetter
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

_SHAPES = {
    "start.unit_frequencies": "Dd",
    "progress.theta": "t",
    "progress.best_theta": "t",
    "local.precision": "Cn",
    "local.offsets": "C",
    "parameters.frequencies": "Dd",
    "parameters.signal_variances": "C",
    "parameters.gram": "Ckk",
    "parameters.projected": "Ck",
    "best.frequencies": "Dd",
    "best.signal_variances": "C",
    "best.gram": "Ckk",
    "best.projected": "Ck",
    "frequency_adam.mean": "Dd",
    "frequency_adam.square": "Dd",
    "scale_adam.mean": "d",
    "scale_adam.square": "d",
    "losses": "i",
}
"""Shapes of the arrays of a state.

D frequencies of d columns, k = 2 D features, C latent functions, n rows, i iterations, and t
hyperparameters of Algorithm 1.
"""

_POSITIVE = ("lengthscale", "signal_variance", "signal_variances", "frequency_unit")
"""Last parts of the names of values that are positive."""


class _Header(TypedDict):
    fingerprint: dict[str, str]
    n_iter: int
    values: dict[str, Any]


def fingerprint(
    data: TrainingData, settings: Mapping[str, Any], longest_text: int = 60
) -> dict[str, str]:
    """Return what a fit is known by: a digest of its data, and the text of each setting.

    The digest is of the summary, some rows and all labels. Of a setting with a longer text than
    ``longest_text`` a digest is kept, too.
    """
    summary = data.overview.summary
    digest = hashlib.sha256()
    for array in (summary.mean, summary.variance, summary.low, summary.high):
        digest.update(np.ascontiguousarray(array).tobytes())
    for part in data.fingerprint_parts():
        digest.update(part)
    texts = {"the data": f"sha256:{digest.hexdigest()}"}
    for name, value in settings.items():
        # A continued fit takes its seeds from the checkpoint, as with None.
        text = "RandomState" if isinstance(value, np.random.RandomState) else repr(value)
        if len(text) > longest_text:
            text = f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
        texts[name] = text
    return texts


def differences(fit: Mapping[str, str], stored: Mapping[str, str]) -> list[str]:
    """Return in words where the fingerprint of a fit differs from that in a checkpoint."""
    words = []
    for name in sorted(fit.keys() | stored.keys()):
        here, there = fit.get(name), stored.get(name)
        if here == there:
            continue
        if here is None or there is None or "sha256:" in here + there:
            words.append(name)
        else:
            words.append(f"{name} ({here}, in the checkpoint {there})")
        if name == "max_iter":
            words[-1] += (
                ": the stochastic solver plans by it when its steps begin to shrink, so that a "
                "fit with another one is another fit"
            )
    return words


@dataclass(frozen=True)
class Checkpoint(Generic[State]):
    """The state of one fit in one file.

    A state is a dataclass of arrays, plain values, tuples of plain values, and dataclasses of
    these. In the file every value is known by its path, such as ``parameters.frequencies``.
    A file that this fit cannot continue is refused, never overwritten.
    """

    path: Path
    fingerprint: dict[str, str]
    state: type[State]
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Those in the shapes of the arrays, by the letters of ``_SHAPES``, as far as known."""

    def save(self, state: State) -> None:
        """Write the state, atomically."""
        values = {name: attrgetter(name)(state) for name in _find_hints(self.state)}
        tensors = {name: v for name, v in values.items() if isinstance(v, np.ndarray)}
        plain = {name: v for name, v in values.items() if name not in tensors}
        header = {"fingerprint": self.fingerprint, "n_iter": state.n_iter, "values": plain}
        write_tensors(self.path, tensors, header)

    def load(self) -> State | None:
        """Return the state to continue from, or None if there is no file yet."""
        if not self.path.exists():
            return None
        tensors, header = open_tensors(self.path)
        if not isinstance(header, dict) or "fingerprint" not in header:
            raise ModelFileError(
                self.path, "is not a checkpoint. Move it away, or choose another checkpoint."
            )
        try:
            require(header, _Header, "header")
        except FormError as error:
            raise self._refusal("was written by another version of undulatus") from error
        found = differences(self.fingerprint, header["fingerprint"])
        if found:
            raise self._refusal("belongs to another fit", found)
        values: dict[str, Any] = header["values"] | tensors
        if set(values) != set(_find_hints(self.state)):
            raise self._refusal("was written by another version of undulatus")
        try:
            state: State = _read_state(self.state, values, dict(self.sizes))
            if state.n_iter != header["n_iter"]:
                raise FormError(f"n_iter is {header['n_iter']}, but {state.n_iter} are there")
        except FormError as error:
            raise ModelFileError(self.path, f"is a damaged checkpoint: {error}.") from error
        return state

    def _refusal(self, reason: str, differences: Sequence[str] = ()) -> InputError:
        lines = "".join(f"  differs: {difference}\n" for difference in differences)
        return InputError(
            f"The checkpoint {self.path} {reason}, and is not overwritten.\n{lines}"
            f"Choose another checkpoint, or delete this one to start again (--restart on the "
            f"command line)."
        )


def count_iterations(path: str | os.PathLike[str]) -> int:
    """Return how many outer iterations are done in a checkpoint, of whatever fit it is."""
    _, header = open_tensors(path)
    try:
        require(header, _Header, "header")
    except FormError as error:
        reason = "is not a checkpoint of this version of undulatus."
        raise ModelFileError(path, reason) from error
    return int(header["n_iter"])


def _find_hints(kind: Any) -> dict[str, Any]:
    """Return the type hint of every value of a state by its path."""
    hints: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        inner = _find_hints(hint) if is_dataclass(hint) else {}
        hints |= {f"{name}.{path}": own for path, own in inner.items()} or {name: hint}
    return hints


def _read_state(
    kind: Any, values: Mapping[str, Any], sizes: dict[str, int], prefix: str = ""
) -> Any:
    """Return the dataclass whose fields are the values at paths that begin with ``prefix``."""
    parts = []
    for name, hint in get_type_hints(kind).items():
        path = prefix + name
        if is_dataclass(hint):
            parts.append(_read_state(hint, values, sizes, f"{path}."))
        else:
            parts.append(_read_value(path, hint, values[path], sizes))
    return kind(*parts)


def _read_value(name: str, hint: Any, value: Any, sizes: dict[str, int]) -> Any:
    """Return a value, or a :class:`FormError` unless it suits its field; note new ``sizes``."""
    if isinstance(value, StoredArray) and name in _SHAPES:
        axes, shape = _SHAPES[name], value.shape
        fits = value.dtype.kind == "f" and len(shape) == len(axes)
        if not fits or any(
            sizes.setdefault(*own) != own[1] for own in zip(axes, shape, strict=True)
        ):
            raise FormError(f"{name} has the type {value.dtype} and the shape {value.shape}")
        value = value.read()
    else:
        require(value, hint, name)
    if name.rpartition(".")[2] in _POSITIVE and not np.all(np.asarray(value) > 0):
        raise FormError(f"{name} holds numbers that are not positive")
    # JSON knows no tuples.
    return tuple(value) if isinstance(value, list) else value
