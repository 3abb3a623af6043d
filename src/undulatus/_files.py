"""Files that are whole or not there: atomic writing, locks, logs of JSON lines, files of arrays.

Everything here is written under a temporary name beside its own, synced, and renamed, so that a
reader never sees half of it. What can take long to write (:func:`atomic_write`) is also
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
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from undulatus._plain import Condition, FormError, read_json, require
from undulatus._system import available_memory
from undulatus.errors import InputError, ModelFileError, SceneError, UndulatusError

Array = npt.NDArray[Any]

FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}
"""Error numbers of a full disk, a full quota, and a file larger than allowed."""

LOCK_SECONDS = 0.2
"""How long to try for a lock, which another process may be releasing just now."""

SAMPLE_BYTES = 2**16
"""Bytes in each of the samples by which a file is recognised."""

_DTYPES = {"F64": np.float64, "F32": np.float32, "I64": np.int64, "BOOL": np.bool_}
"""Types of arrays that a file of arrays may hold, as safetensors calls them."""

LONGEST_HEADER = 100_000_000
"""Bytes before the arrays of a file, as safetensors has it."""

PART_BYTES = 2**20
"""Arrays are read and checked by parts of about this size."""

_Size = Annotated[int, Condition("a size", lambda value: value >= 0)]

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


def remove_unfinished(path: Path) -> None:
    """Remove what any process left of :func:`replacing` a file of which this is the only writer.

    A process on another machine, or in a container that is gone, cannot be asked whether it lives.
    """
    stem, suffix = glob.escape(path.stem), glob.escape(path.suffix)
    for left in path.parent.glob(f".{stem}.unfinished-*{suffix}"):
        remove(left)


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
def atomic_write(path: Path) -> Iterator[Path]:
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
        ) from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


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
            line = f"{name} {facts.st_size} {facts.st_mtime_ns}\n"
            # Names need not be UTF-8.
            digest.update(line.encode("utf-8", "surrogateescape"))
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
        return list(self.each(strict=strict))

    def each(self, *, strict: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the records of :meth:`read`, one at a time."""
        if not self.path.exists():
            return
        bad = None
        with self.path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                if strict and bad is not None:
                    raise InputError(
                        f"{self.path}, line {bad} is not a JSON object. Remove the line."
                    )
                try:
                    record = json.loads(line)
                except ValueError:
                    record = None
                if isinstance(record, dict):
                    yield record
                else:
                    bad = number

    def rewrite(self, records: Iterable[dict[str, Any]]) -> None:
        """Replace all records, at once."""
        write_text(self.path, "".join(f"{_json(record)}\n" for record in records))

    def count_lines(self) -> int:
        """Return the number of lines, whether they are records or not."""
        return self.path.read_bytes().count(b"\n")


def _json(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(",", ":"), allow_nan=False)


# Files of arrays: safetensors, whose header holds our JSON and the SHA-256 of every array


def write_tensors(
    path: str | os.PathLike[str],
    tensors: dict[str, Array],
    header: Any,
    check: Callable[[Path], None] = lambda unfinished: None,
) -> None:
    """Write arrays and a JSON-able header to one file, or replace it.

    ``check`` is called with the finished file before that gets its name; if it raises, whatever
    was at ``path`` stays.
    """
    path = Path(path)
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    text = _header_text(header, {name: _digest(array) for name, array in tensors.items()})
    metadata = {_KEY: f"{_text_digest(text)} {text}"}
    try:
        with replacing(path) as unfinished:
            unfinished.write_bytes(save(tensors, metadata=metadata))
            check(unfinished)
    except OSError as error:
        raise ModelFileError(path, f"cannot be written: {error.strerror}.") from error


def _header_text(header: Any, digests: Mapping[str, str]) -> str:
    return json.dumps({"header": header, "sha256": digests}, allow_nan=False)


def is_tensor_file(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a file of undulatus, such as a model; whether it is sound is not said."""
    try:
        return _KEY in _open(path).metadata
    except ModelFileError:
        return False


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Array], Any]:
    """Return the arrays and the header of a file, or raise a :class:`ModelFileError`."""
    stored, header = open_tensors(path)
    return {name: tensor.read() for name, tensor in stored.items()}, header


def open_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, StoredArray], Any]:
    """Return the arrays of a file, not yet read, and its header.

    What the file says of its arrays agrees with its length; what they hold is checked when they
    are read.
    """
    file = _open(path)
    value = file.metadata.get(_KEY)
    if value is None:
        raise ModelFileError(path, "is a safetensors file, but not one of undulatus.")
    digest, _, text = value.partition(" ")
    if _text_digest(text) != digest:
        raise ModelFileError(
            path, "is damaged: the checksum of its header does not match. Use another copy."
        )
    try:
        document = read_json(text)
        require(document, _Document, "the header")
    except FormError as error:
        raise ModelFileError(path, f"has a broken header ({error}).") from error
    digests = document["sha256"]
    if set(digests) != set(file.entries):
        raise ModelFileError(path, "lists other tensors in its header than it holds.")
    stored = {}
    for name, entry in file.entries.items():
        if entry["dtype"] not in _DTYPES:
            raise ModelFileError(
                path, f"holds {name!r} as {entry['dtype'][:9]}, which no model uses."
            )
        stored[name] = StoredArray(
            path,
            name,
            np.dtype(_DTYPES[entry["dtype"]]),
            tuple(entry["shape"]),
            file.start + entry["data_offsets"][0],
            digests[name],
        )
    return stored, document["header"]


RowCheck = Callable[[Array, int], str | None]
"""Says in words what is wrong with some rows of an array, of which the first has this number."""


@dataclass(frozen=True)
class StoredArray:
    """An array in a file: its type and shape are known, its values can be read."""

    path: str | os.PathLike[str]
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    digest: str

    def read(self, check: RowCheck = lambda rows, first: None) -> Array:
        """Return the values, or raise a :class:`ModelFileError`.

        They are read, hashed and checked by parts: of a file that is refused, no more is in memory
        than the parts before the first that is wrong.
        """
        needed = prod(self.shape) * self.dtype.itemsize
        if needed > PART_BYTES and needed > available_memory():
            raise ModelFileError(
                self.path,
                f"holds {self.name!r} of {_size(needed)}, but {_size(int(available_memory()))} of "
                f"memory is available.",
            )
        digest = hashlib.sha256()
        with self._refusing(), Path(self.path).open("rb") as file:
            file.seek(self.offset)
            array = np.empty(self.shape, self.dtype)
            rows = array.reshape(1) if array.ndim == 0 else array
            step = max(1, PART_BYTES * len(rows) // max(needed, 1))
            for first in range(0, len(rows), step):
                part = rows[first : first + step]
                if file.readinto(part.reshape(-1).view(np.uint8).data) != part.nbytes:
                    raise EOFError("it has become shorter")
                digest.update(part.data)
                self._require(_find_fault(part) or check(part, first))
        if digest.hexdigest() != self.digest:
            raise ModelFileError(
                self.path,
                f"is damaged: the checksum of {self.name!r} does not match. Use another copy.",
            )
        return array

    def _require(self, fault: str | None) -> None:
        if fault is not None:
            raise ModelFileError(self.path, f"holds {fault} in {self.name!r}.")

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except UndulatusError:
            raise
        except (OSError, EOFError, MemoryError, ValueError) as error:
            raise ModelFileError(
                self.path, f"cannot be read at {self.name!r} ({error})."
            ) from error


def _find_fault(part: Array) -> str | None:
    """Return in words what no array may hold; None if there is nothing of it."""
    if part.dtype.kind == "f" and not np.isfinite(part).all():
        return "NaN or infinity"
    if part.dtype.kind == "b" and (part.view(np.uint8) > 1).any():
        return "bytes that are neither true nor false"
    return None


class _Entry(TypedDict):
    """What a safetensors file says of an array."""

    dtype: str
    shape: list[_Size]
    data_offsets: tuple[_Size, _Size]


class _Document(TypedDict):
    """Our JSON."""

    header: Any
    sha256: dict[str, str]


@dataclass(frozen=True)
class _TensorFile:
    metadata: dict[str, str]
    entries: dict[str, Any]
    start: int
    """Where the arrays begin."""


def _open(path: str | os.PathLike[str]) -> _TensorFile:
    """Return what a safetensors file says it holds, compared with its length."""
    try:
        _require_regular(path)
        with Path(path).open("rb") as file:
            length = os.fstat(file.fileno()).st_size
            start = int.from_bytes(file.read(8), "little") + 8
            if length < 8 or start > min(length, LONGEST_HEADER):
                raise FormError("the length of its header is wrong")
            text = file.read(start - 8)
        document = read_json(text.decode())
        require(document, dict[str, Any], "it")
        metadata = document.pop("__metadata__", {})
        require(metadata, dict[str, str], "its metadata")
        require(document, dict[str, _Entry], "its list of arrays")
        _require_layout(document, length - start)
    except (OSError, ValueError) as error:
        raise ModelFileError(
            path, f"is truncated, or not a file of undulatus ({error})."
        ) from error
    return _TensorFile(metadata, document, start)


def _require_regular(path: str | os.PathLike[str]) -> None:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else reason
        raise ModelFileError(path, f"{reason}.") from error
    if not stat.S_ISREG(mode):
        raise ModelFileError(path, "there is no such file: this is a folder or a device.")


def _require_layout(entries: Mapping[str, Any], length: int) -> None:
    """Require that arrays follow each other without gaps, each as long as its shape says."""
    end = 0
    for entry in sorted(entries.values(), key=itemgetter("data_offsets")):
        first, last = entry["data_offsets"]
        needed = last - first
        if entry["dtype"] in _DTYPES:
            needed = prod(entry["shape"]) * np.dtype(_DTYPES[entry["dtype"]]).itemsize
        if first != end or last < first or last - first != needed:
            raise FormError("the lengths of its arrays are wrong")
        end = last
    if end != length:
        raise FormError("the lengths of its arrays do not add up to its own")


def _digest(array: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
