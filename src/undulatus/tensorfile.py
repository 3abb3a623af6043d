"""One file of named arrays and a JSON header: no code in it, checked on reading, written whole.

The format is safetensors. Its header carries our JSON, which holds the SHA-256
of every tensor, so that a flipped bit is found as well as a truncated file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from undulatus.errors import ModelFileError

Array = npt.NDArray[Any]

ALLOWED_DTYPES = ("float64", "float32", "int64", "bool")
_KEY = "undulatus"


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Array], header: Any) -> None:
    """Write arrays and a JSON-able header to ``path``: under a temporary name, synced, renamed."""
    path = Path(path)
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    digests = {name: _digest(array) for name, array in tensors.items()}
    text = json.dumps({"header": header, "sha256": digests}, allow_nan=False)
    payload = save(tensors, metadata={_KEY: f"{_text_digest(text)} {text}"})
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ModelFileError(path, f"cannot be written: {error.strerror}.") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(payload)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ModelFileError(path, f"cannot be written: {error.strerror}.") from error
        raise


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], Any]:
    """Return the arrays and the header of a file, or raise a :class:`ModelFileError`."""
    if not Path(path).is_file():
        raise ModelFileError(path, "there is no such file.")
    try:
        with safe_open(path, framework="numpy") as file:
            value = (file.metadata() or {}).get(_KEY)
            if value is None:
                raise ModelFileError(path, "is a safetensors file, but not one of undulatus.")
            digest, _, text = value.partition(" ")
            if _text_digest(text) != digest:
                raise ModelFileError(
                    path,
                    "is damaged: the checksum of its header does not match. Use another copy.",
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        document = json.loads(text)
        header, digests = document["header"], document["sha256"]
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise ModelFileError(
            path, f"is truncated, or no undulatus file at all ({error})."
        ) from error
    except (json.JSONDecodeError, KeyError, RecursionError) as error:
        raise ModelFileError(path, f"has a broken header ({error}).") from error
    if not isinstance(digests, dict) or set(digests) != set(tensors):
        raise ModelFileError(path, "lists other tensors in its header than it holds.")
    for name, array in tensors.items():
        if array.dtype.name not in ALLOWED_DTYPES:
            raise ModelFileError(path, f"holds {name!r} as {array.dtype}, which no model uses.")
        if _digest(array) != digests[name]:
            raise ModelFileError(
                path, f"is damaged: the checksum of {name!r} does not match. Use another copy."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelFileError(path, f"holds NaN or infinity in {name!r}.")
    return tensors, header
