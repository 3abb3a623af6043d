"""Whole files or none: atomic writing, one writer at a time, and a checked file of arrays.

One writer at a time: a file beside the output that says who is writing it.

Outputs under a temporary name until they are whole, and errors that say what went wrong.

One file of named arrays and a JSON header: no code in it, checked on reading, written whole.

The format is safetensors. Its header carries our JSON, which holds the SHA-256
of every tensor, so that a flipped bit is found as well as a truncated file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import socket
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from undulatus.errors import ModelFileError, SceneError

try:
    import fcntl
except ModuleNotFoundError:  # pragma: no cover
    fcntl = None  # type: ignore[assignment]


def lock_of(path: Path) -> Path:
    """Return the name of the lock of an output, beside it."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only writer of ``path``, or say who else is.

    The lock is a file made exclusively, which names a process and its machine. That of a
    process of this machine that has ended is taken over; of another machine's nothing is known.
    """
    lock = lock_of(path)
    while not _made(lock):
        owner = _owner(lock)
        if owner is None:
            continue
        if not _has_ended(owner) or not _removed_stale(lock):
            raise SceneError(
                f"{path} is being written by process {owner.get('pid', '?')} on "
                f"{owner.get('host', 'an unknown machine')}. Wait for it, or write elsewhere.\n"
                f"If that process has ended, remove {lock}."
            )
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)


def _made(lock: Path) -> bool:
    me = {"pid": os.getpid(), "host": socket.gethostname(), "started": _started(os.getpid())}
    try:
        descriptor = os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError:
        return False
    try:
        os.write(descriptor, json.dumps(me).encode())
    finally:
        os.close(descriptor)
    return True


def _owner(lock: Path) -> dict[str, Any] | None:
    """Return what the lock says, nothing known if it is damaged, or None if it is gone."""
    try:
        found = json.loads(lock.read_text())
    except FileNotFoundError:
        return None
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _has_ended(owner: dict[str, Any]) -> bool:
    if owner.get("host") != socket.gethostname() or not isinstance(owner.get("pid"), int):
        return False
    if os.name != "posix":  # pragma: no cover
        return False
    try:
        os.kill(owner["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    # Another process may have been given the number since.
    return _started(owner["pid"]) != owner.get("started")


def _started(pid: int) -> str:
    """Return when a process started, in ticks of which boot, where the system tells."""
    try:
        # The name of the program, in brackets, may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    return "ended" if fields[0] in "ZX" else f"{boot} {fields[19]}"


def _removed_stale(lock: Path) -> bool:
    """Remove the lock of a process that has ended, unless another took it over meanwhile."""
    if fcntl is None:  # pragma: no cover
        return False
    try:
        with lock.open() as file:
            # Whoever else found it stale waits here, and then finds another file in its place.
            fcntl.flock(file, fcntl.LOCK_EX)
            same = os.path.samestat(os.fstat(file.fileno()), lock.stat())
            if same and _has_ended(_owner(lock) or {}):
                lock.unlink()
    except FileNotFoundError:
        pass
    return True


FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""What the system says when there is no room for what is to be written."""

READERS = {"getter", "getter_inline", "getter_nofancy", "get_duck_array", "__array__"}
"""Functions of dask's and xarray's that read a block of an input."""


class WritingError(OSError):
    """The system refused to write something of an output."""


def name_of_unfinished(path: Path) -> Path:
    """Return the name, beside ``path``, that it has until it is whole."""
    return path.with_name(f".{path.stem}.unfinished{path.suffix}")


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, renamed to it at the end, removed on any error."""
    require_folder(path)
    unfinished = name_of_unfinished(path)
    with as_scene_errors(path), locked(path):
        if path.exists():
            raise SceneError(f"{path} exists already. Remove it, or write elsewhere.")
        # Of a process that was killed: nobody else is writing now.
        remove(unfinished)
        try:
            yield unfinished
            settle(unfinished, path)
        finally:
            remove(unfinished)


def require_folder(path: Path) -> None:
    """Raise an error unless the folder of an output exists."""
    if not path.parent.is_dir():
        raise SceneError(f"The folder {path.parent} does not exist. Make it first.")


def require_space(path: Path, needed: int) -> None:
    """Raise an error if the disk has no room for ``needed`` bytes beside ``path``."""
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise SceneError(
            f"{path} does not fit on its disk.\n"
            f"  needed: {_size(needed)} before compression\n"
            f"  free: {_size(free)}\n"
            f"Free some space, or write to another disk."
        )


def _size(count: int) -> str:
    unit, name = (2**30, "GiB") if count >= 2**29 else (2**20, "MiB")
    return f"{count / unit:,.1f} {name}"


def settle(unfinished: Path, path: Path) -> None:
    """Give what is finished its name, once all of it is on the disk.

    One ``sync`` of everything took a tenth of the time of one ``fsync`` for each of a Zarr's
    2,000 chunks.
    """
    if unfinished.is_dir():
        os.sync()
    else:
        _flush(unfinished)
    unfinished.rename(path)
    _flush(path.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(unfinished: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if unfinished.is_dir():
        # Workers elsewhere may still be writing into it.
        shutil.rmtree(unfinished, ignore_errors=True)
    else:
        unfinished.unlink(missing_ok=True)


@contextmanager
def as_scene_errors(path: Path) -> Iterator[None]:
    """Tell failures of the disk and of inputs as errors that name the output."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # RuntimeError is what netCDF raises on a full disk, and for a damaged input.
        if isinstance(error, RuntimeError) and not str(error).startswith("NetCDF"):
            raise
        raise SceneError(f"{path} {_what_went_wrong(error, path)}") from error


def _what_went_wrong(error: OSError | RuntimeError, path: Path) -> str:
    number = getattr(error, "errno", None)
    if number in FULL:
        return f"could not be written: {error}. Is the disk full?"
    if isinstance(error, WritingError) or not _is_of_an_input(error, path):
        # Libraries do not pass on what the system said.
        full = " Is the disk full?" if number is None else ""
        return f"could not be written: {error}.{full}"
    return f"was not written, for something it is made of cannot be read: {error}."


def _is_of_an_input(error: OSError | RuntimeError, path: Path) -> bool:
    named = getattr(error, "filename", None)
    if isinstance(named, (str, bytes, os.PathLike)):
        parts = Path(os.fsdecode(named)).parts
        ours = (path.name, f".{path.stem}.unfinished", lock_of(path).name)
        return not any(part.startswith(ours) for part in parts)
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code.co_name in READERS for frame, _ in frames)


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
