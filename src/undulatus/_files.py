"""Files that are whole or not there: atomic writing, locks, logs of JSON lines, files of arrays.

Everything here is written under a temporary name beside its own, synced, and renamed, so that a
reader never sees half of it. What can take long to write (:func:`whole_or_not_at_all`) is also
locked, so that a second writer is refused at once.
"""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from undulatus.errors import InputError, ModelFileError, SceneError

Array = npt.NDArray[Any]

FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Error numbers of a full disk, a full quota, and a file larger than allowed."""

LOCK_SECONDS = 0.2
"""How long to try for a lock, which another process may be releasing just now."""

SAMPLE_BYTES = 2**16
"""Bytes in each of the samples by which a file is recognised."""

ALLOWED_DTYPES = ("float64", "float32", "int64", "bool")
"""Types of arrays that a file of arrays may hold."""

_KEY = "undulatus"
"""Where the metadata of a safetensors file holds our JSON."""


# Atomic writing


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``, which is renamed to ``path`` at the end.

    Until then, and after an error, whatever was at ``path`` stays. Where ``path`` is a link, the
    file that it leads to is replaced, and the link stays. What a process of this machine
    that was killed left under its temporary name is removed.
    """
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    host, process = _host_digest(), os.getpid()
    _sweep(path, host, process)
    word = f"unfinished-{host}-{process}-{secrets.token_hex(4)}"
    with _renamed_at_the_end(_beside(path, word), path) as given:
        yield given


@lru_cache(1024)
def _sweep(path: Path, host: str, own_process: int) -> None:
    """Remove temporary files of ``path`` whose processes have ended, once in each process."""
    pattern = f".{glob.escape(path.stem)}.unfinished-{host}-*-*{glob.escape(path.suffix)}"
    for left in path.parent.glob(pattern):
        process = left.name.removeprefix(f".{path.stem}.unfinished-{host}-").partition("-")[0]
        if process.isdigit() and not _lives(int(process)):
            with suppress(OSError):
                left.unlink()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _host_digest() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, or replace it."""
    with replacing(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def whole_or_not_at_all(path: Path) -> Iterator[Path]:
    """Give a temporary path beside a new output, which is renamed to ``path`` at the end.

    An output that exists, or that another process is writing, is refused. Errors of the disk and
    of inputs become a :class:`SceneError` that names the output.
    """
    require_folder(path)
    with as_scene_errors(path), locked(path):
        if path.exists():
            raise SceneError(f"{path} exists already. Remove it, or write elsewhere.")
        unfinished = unfinished_path(path)
        # Left by a process that was killed: nobody else can be writing it now.
        remove(unfinished)
        with _renamed_at_the_end(unfinished, path):
            yield unfinished


def unfinished_path(path: Path) -> Path:
    """Return the hidden name, beside ``path``, that an output has until it is whole."""
    return _beside(path, "unfinished")


def _beside(path: Path, word: str) -> Path:
    return path.with_name(f".{path.stem}.{word}{path.suffix}")


@contextmanager
def _renamed_at_the_end(unfinished: Path, path: Path) -> Iterator[Path]:
    try:
        yield unfinished
        finish(unfinished, path)
    finally:
        remove(unfinished)


def finish(unfinished: Path, path: Path) -> None:
    """Sync a finished file or folder, then give it its name."""
    if unfinished.is_dir():
        # One sync of everything took a tenth of the time of an fsync for each of 2,000 files.
        os.sync()
    else:
        _sync(unfinished)
    os.replace(unfinished, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        # Workers elsewhere may still be writing into it.
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


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


# Recognising what was replaced


def content_digest(paths: Iterable[Path]) -> str:
    """Return a checksum that changes when one of the files, or a file in a folder, is replaced.

    It covers names, lengths and times of modification, and the beginning, the middle and the end
    of files that are named themselves: to read all bytes would take as long as to use them.
    """
    digest = hashlib.sha256()
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.is_file()) or [path]
        for file in files:
            facts = file.stat()
            name = file.relative_to(path) if file != path else path.name
            digest.update(f"{name} {facts.st_size} {facts.st_mtime_ns}\n".encode())
        if path.is_file():
            digest.update(_sample(path))
    return digest.hexdigest()


def _sample(path: Path) -> bytes:
    parts = []
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        for start in (0, (end - SAMPLE_BYTES) // 2, end - SAMPLE_BYTES):
            file.seek(max(0, start))
            parts.append(file.read(SAMPLE_BYTES))
    return b"".join(parts)


# Errors of an output, and of the inputs it is made from


class WritingError(OSError):
    """An output could not be written."""


class ReadingError(OSError):
    """Something that an output is made of could not be read."""


@contextmanager
def as_writing_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of the system, and those of a library's ``kinds``, into writing errors."""
    with _as(WritingError, OSError, *kinds):
        yield


@contextmanager
def as_reading_errors() -> Iterator[None]:
    """Turn errors of the system and netCDF into reading errors; writing errors pass unchanged."""
    with _as(ReadingError, OSError, RuntimeError):
        yield


@contextmanager
def _as(kind: type[OSError], *kinds: type[Exception]) -> Iterator[None]:
    try:
        yield
    except (WritingError, ReadingError):
        raise
    except kinds as error:
        if isinstance(error, RuntimeError) and not _is_from_netcdf(error):
            raise
        if isinstance(error, OSError) and error.errno is not None:
            raise kind(error.errno, error.strerror, error.filename) from error
        raise kind(str(error)) from error


def _is_from_netcdf(error: Exception) -> bool:
    """Return whether netCDF raised a RuntimeError: for a full disk, or a damaged file."""
    return str(error).startswith("NetCDF")


@contextmanager
def as_scene_errors(path: Path) -> Iterator[None]:
    """Turn errors of the disk and of inputs into a :class:`SceneError` that names the output."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_from_netcdf(error):
            raise
        number = getattr(error, "errno", None)
        if number not in FULL and _is_about_an_input(error, path):
            raise SceneError(
                f"{path} was not written: one of its inputs cannot be read: {error}."
            ) from error
        # Libraries do not always pass on what the system said.
        hint = " Is the disk full?" if number in FULL or number is None else ""
        reason = str(error).rstrip(".")
        raise SceneError(f"{path} could not be written: {reason}.{hint}") from error


def _is_about_an_input(error: OSError | RuntimeError, path: Path) -> bool:
    if isinstance(error, (WritingError, ReadingError)):
        return isinstance(error, ReadingError)
    named = getattr(error, "filename", None)
    if isinstance(named, (str, bytes, os.PathLike)):
        ours = (path.name, f".{path.stem}.unfinished", lock_path(path).name)
        return not any(part.startswith(ours) for part in Path(os.fsdecode(named)).parts)
    # Whoever writes netCDF says so by a WritingError.
    return isinstance(error, RuntimeError)


# Locks


def lock_path(path: Path) -> Path:
    """Return the name of the lock of an output, beside it."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Be the only writer of ``path``, or raise an error that says who else is.

    The kernel holds the lock for this process, and releases it however the process ends. The
    lock's file says which process that is; a file that was left behind locks nothing.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    file = lock_path(path)
    lock = FileLock(file, timeout=LOCK_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        # Where no file can be made there is no other writer either: that is an OSError.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o644))
        raise SceneError(
            f"{path} is being written by {_writer(file)}. Wait for it, or write elsewhere."
        ) from error
    try:
        # Without kernel locks, as on some network disks, filelock keeps its own such file.
        if not isinstance(lock, SoftFileLock):
            file.write_text(f"{os.getpid()}\n{socket.gethostname()}\n")
        yield
    finally:
        # Removed while it is still held: whoever opened it meanwhile notices, and opens a new one.
        if not isinstance(lock, SoftFileLock):
            with suppress(OSError):
                file.unlink()
        lock.release()


def _writer(file: Path) -> str:
    try:
        process, host, *_ = file.read_text().splitlines()
    except (OSError, ValueError):
        return "another process"
    return f"process {process} on {host}"


# Logs


@dataclass(frozen=True)
class JsonLines:
    """A log in a file: one JSON object a line, which no crash spoils.

    A record is appended by one write, so that those of several threads, or of processes on one
    file system, do not mix. A line that a killed process cut short does not count.

    Parameters
    ----------
    path : path
        The file, which need not exist.
    sync : bool
        Whether each record is on disk when :meth:`append` returns.
    """

    path: Path
    sync: bool = False

    def append(self, record: dict[str, Any]) -> None:
        """Add a record."""
        line = _json(record).encode() + b"\n"
        # Opened for each record: a log without an open file can be sent to other processes.
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if os.lseek(descriptor, 0, os.SEEK_END) > 0:
                os.lseek(descriptor, -1, os.SEEK_END)
                if os.read(descriptor, 1) != b"\n":
                    # The last line was cut short; a new one must not continue it.
                    line = b"\n" + line
            if os.write(descriptor, line) != len(line):
                raise WritingError(errno.ENOSPC, "a record was cut short", str(self.path))
            if self.sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, *, strict: bool = False) -> list[dict[str, Any]]:
        """Return the records in order; none if there is no file.

        Lines that are not JSON objects are skipped. With ``strict`` such a line is an
        :class:`InputError`, unless it is the last, which may have been cut short.
        """
        text = self.path.read_text("utf-8", errors="replace") if self.path.exists() else ""
        lines = text.rstrip().split("\n")
        records = []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                records.append(record)
            elif strict and line.strip() and number < len(lines):
                raise InputError(
                    f"{self.path}, line {number} is not a JSON object. Remove the line."
                )
        return records

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace all records, at once."""
        write_text(self.path, "".join(f"{_json(record)}\n" for record in records))

    def count_lines(self) -> int:
        """Return the number of lines, whether they are records or not."""
        return self.path.read_bytes().count(b"\n")


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


# Files of arrays: safetensors, whose header holds our JSON and the SHA-256 of every array


def write_tensors(path: str | os.PathLike[str], tensors: dict[str, Array], header: Any) -> None:
    """Write arrays and a JSON-able header to one file, or replace it."""
    path = Path(path)
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    digests = {name: _digest(array) for name, array in tensors.items()}
    text = json.dumps({"header": header, "sha256": digests}, allow_nan=False)
    payload = save(tensors, metadata={_KEY: f"{_text_digest(text)} {text}"})
    try:
        with replacing(path) as unfinished:
            unfinished.write_bytes(payload)
    except OSError as error:
        raise ModelFileError(path, f"cannot be written: {error.strerror}.") from error


def is_tensor_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of undulatus, such as a model; whether it is sound is not said."""
    if not Path(path).is_file():
        return False
    try:
        with safe_open(path, framework="numpy") as file:
            return _KEY in (file.metadata() or {})
    except (SafetensorError, OSError):
        return False


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], Any]:
    """Return the arrays and the header of a file, or raise a :class:`ModelFileError`."""
    if not Path(path).is_file():
        raise ModelFileError(path, "there is no such file.")
    try:
        with safe_open(path, framework="numpy") as file:
            text = _checked_header(path, (file.metadata() or {}).get(_KEY))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        document = json.loads(text)
        header, digests = document["header"], document["sha256"]
    except (SafetensorError, OSError, TypeError, AttributeError) as error:
        raise ModelFileError(
            path, f"is truncated, or not a file of undulatus ({error})."
        ) from error
    except (json.JSONDecodeError, KeyError, RecursionError) as error:
        raise ModelFileError(path, f"has a broken header ({error}).") from error
    if not isinstance(digests, dict) or set(digests) != set(tensors):
        raise ModelFileError(path, "lists other tensors in its header than it holds.")
    for name, array in tensors.items():
        _check_tensor(path, name, array, digests[name])
    return tensors, header


def _checked_header(path: str | os.PathLike[str], value: str | None) -> str:
    if value is None:
        raise ModelFileError(path, "is a safetensors file, but not one of undulatus.")
    digest, _, text = value.partition(" ")
    if _text_digest(text) != digest:
        raise ModelFileError(
            path, "is damaged: the checksum of its header does not match. Use another copy."
        )
    return text


def _check_tensor(path: str | os.PathLike[str], name: str, array: Array, digest: str) -> None:
    if array.dtype.name not in ALLOWED_DTYPES:
        raise ModelFileError(path, f"holds {name!r} as {array.dtype}, which no model uses.")
    if _digest(array) != digest:
        raise ModelFileError(
            path, f"is damaged: the checksum of {name!r} does not match. Use another copy."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ModelFileError(path, f"holds NaN or infinity in {name!r}.")


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
