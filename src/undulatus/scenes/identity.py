"""What a dataset is, in words and checksums, by which it is known again before it is computed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

CHANGING = {"history"}
"""Attributes that tell when something was made, not what it is."""


def describe(dataset: xr.Dataset, fingerprint: str) -> dict[str, str]:
    """Return what a dataset is, in words and checksums, by which it is known again.

    Values that are not computed yet are not in it: ``fingerprint`` is to tell them.
    """
    attrs = {key: value for key, value in dataset.attrs.items() if key not in CHANGING}
    found = {"fingerprint": fingerprint, "attributes": _digest(attrs)}
    for name, variable in dataset.variables.items():
        about = [variable.attrs, variable.encoding]
        if variable.chunks is None:
            about.append({"values": _checksum(variable.values)})
        found[f"variable {name}"] = (
            f"{variable.dtype} {dict(variable.sizes)} in chunks of {_sizes(variable.chunks)}, "
            f"{_digest(about)}"
        )
    return found


def _sizes(chunks: tuple[tuple[int, ...], ...] | None) -> list[int] | None:
    return None if chunks is None else [max(sizes) for sizes in chunks]


def _checksum(values: npt.NDArray[Any]) -> str:
    content = repr(values.tolist()).encode() if values.dtype.kind == "O" else values.tobytes()
    return hashlib.sha256(content).hexdigest()


def _digest(about: Any) -> str:
    def plain(value: Any) -> Any:
        return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else str(value)

    return hashlib.sha256(json.dumps(about, sort_keys=True, default=plain).encode()).hexdigest()


def differences(one: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return in what two descriptions differ."""
    return [key for key in {**one, **other} if one.get(key) != other.get(key)]
