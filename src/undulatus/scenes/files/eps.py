"""Files in EUMETSAT's EPS native format: a chain of records, found once and read by position.

Every record begins with a header of 20 bytes, which says what the record is and how long it is.
The first record is the main product header, lines of text ``NAME = value``. All numbers are
big-endian.

Sizes in headers are checked against the file before anything is read, so nothing is read past its
end and no loop depends on what the file says. Files are read, not mapped: a file that is cut
while it is open then gives an error, where a map would end the process.

Facts about the format: EUMETSAT, *EPS Generic Product Format Specification*
(EPS.GGS.SPE.96167), version 7.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from undulatus.errors import DamagedFileError, SceneError, unreadable

Array = npt.NDArray[Any]

MAIN_HEADER, GLOBAL_DATA, MEASUREMENT = 1, 5, 8
"""Classes of records: the main product header, global internal data, measurements."""

DUMMY = 13
"""The instrument group of measurements that were lost."""

TIME = np.dtype([("day", ">u2"), ("millisecond", ">u4")])
"""A time: days since 2000, and milliseconds of the day."""

SCALED = np.dtype([("scale", "i1"), ("value", ">i4")])
"""A number of five bytes: an integer, and the power of ten that it is to be divided by."""

MISSING = -(2**31)
"""What a missing number of four bytes is."""

_RECORD_HEADER = struct.Struct(">4BI12x")

_LONGEST_HEADER = 2**16
"""Bytes that the main product header may have; it has 3,307."""

_MOST_RECORDS = 999_999
"""Records that the six digits of the main product header can count."""

_POWERS_OF_TEN = np.array([float(f"1e{power}") for power in range(-128, 129)])
"""Each the nearest number to it, which ``10.0**power`` is not for all."""

_DIGITS = 20
"""More than any number in the main product header has."""

_DAY = 86_401_000
"""Milliseconds of the longest day."""

_PACKED = {
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "packed by gzip",
    b"BZh": "packed by bzip2",
}


@dataclass(frozen=True)
class Source:
    """A file as it was when it was opened."""

    path: Path
    size: int
    """Bytes."""
    modified: int
    """When the file was last written, ns."""

    @classmethod
    def of(cls, path: Path) -> Source:
        """Return the file at a path, which must exist."""
        status = path.stat()
        return cls(path, status.st_size, status.st_mtime_ns)

    @contextmanager
    def opened(self) -> Iterator[BinaryIO]:
        """Open the file to read from it; raise a :class:`SceneError` if it has changed since."""
        try:
            with open(self.path, "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
                    raise SceneError(
                        f"{self.path} has changed since it was opened. Open it again."
                    )
                yield file
        except OSError as error:
            raise unreadable(self.path, error, ".") from error

    def read(self, file: BinaryIO, offset: int, array: Array) -> None:
        """Fill a contiguous array with the bytes at an offset; raise if there are too few."""
        room: Any = memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]
        file.seek(offset)
        while len(room):
            count = file.readinto(room)  # type: ignore[attr-defined]
            if not count:
                raise DamagedFileError(
                    f"{self.path} ends at byte {file.tell():,}, where more was expected. "
                    f"Fetch it again."
                )
            room = room[count:]


@dataclass(frozen=True)
class Record:
    """Where a record is, and what its header says that it is."""

    number: int
    """Counted from 1 in the file."""
    offset: int
    """Of its header, in bytes."""
    size: int
    """Bytes, with its header."""
    record_class: int
    group: int
    subclass: int
    version: int

    @property
    def place(self) -> str:
        """Where it is, for error messages."""
        return f"record {self.number} (at byte {self.offset:,})"


@dataclass(frozen=True)
class EpsFile:
    """A file's main product header and the places of its records."""

    source: Source
    header: dict[str, str]
    records: list[Record]

    @property
    def product(self) -> str:
        """The kind of product, such as ``"IASI_xxx_1C"``."""
        names = ("INSTRUMENT_ID", "PRODUCT_TYPE", "PROCESSING_LEVEL")
        return "_".join(self.text(name) for name in names)

    def text(self, name: str) -> str:
        """Return a value of the main product header."""
        if name not in self.header:
            raise self.damage(f"its main product header has no {name}")
        return self.header[name]

    def number(self, name: str) -> int:
        """Return a value of the main product header that is a whole number."""
        text = self.text(name)
        if not (text.isascii() and text.isdigit() and len(text) < _DIGITS):
            raise self.damage(f"its main product header says {name} = {text!r}, not a number")
        return int(text)

    def damage(self, what: str, record: Record | None = None) -> DamagedFileError:
        """Return the error that says what is wrong with the file, or with one of its records."""
        return _damage(self.source.path, what, record)

    def of_class(self, record_class: int) -> list[Record]:
        """Return the records of a class, in order."""
        return [record for record in self.records if record.record_class == record_class]


def open_records(path: Path) -> EpsFile:
    """Read the main product header of a file and find its records.

    The records must fill the file exactly, and the measurements must be as many as the main
    product header says: a file that was cut between two records is an error too.
    """
    source = Source.of(path)
    with source.opened() as file:
        first = _record_at(source, file, 1, 0)
        if first.record_class != MAIN_HEADER or first.size > _LONGEST_HEADER:
            raise _not_eps(path)
        opened = EpsFile(source, _main_header(source, file, first), [first])
        while (end := opened.records[-1].offset + opened.records[-1].size) < source.size:
            if len(opened.records) == _MOST_RECORDS:
                raise opened.damage(f"it has more than {_MOST_RECORDS:,} records")
            opened.records.append(_record_at(source, file, len(opened.records) + 1, end))
    found, expected = len(opened.of_class(MEASUREMENT)), opened.number("TOTAL_MDR")
    if found != expected:
        raise opened.damage(
            f"its main product header says that it has {expected:,} lines of measurements, but it "
            f"has {found:,}: it was cut off, or joined to another"
        )
    return opened


def decode_times(times: Array) -> Array:
    """Return times of type ``TIME`` as datetime64[ns], NaT where they are impossible."""
    milliseconds = times["day"].astype(np.int64) * 86_400_000 + times["millisecond"]
    found = np.datetime64("2000-01-01", "ns") + milliseconds.astype("timedelta64[ms]")
    return np.where(times["millisecond"] < _DAY, found, np.datetime64("NaT", "ns"))


def decode_scaled(numbers: Array) -> Array:
    """Return numbers of type ``SCALED`` in double precision, NaN where they are missing."""
    values = numbers["value"] * _POWERS_OF_TEN[128 - numbers["scale"].astype(int)]
    return np.where(numbers["value"] == MISSING, np.nan, values)


def _record_at(source: Source, file: BinaryIO, number: int, offset: int) -> Record:
    """Return the record whose header is at an offset, once it is known to lie in the file."""
    room = np.zeros(min(_RECORD_HEADER.size, source.size - offset), np.uint8)
    source.read(file, offset, room)
    if number == 1 and (len(room) < _RECORD_HEADER.size or room[0] != MAIN_HEADER):
        raise _not_eps(source.path, room.tobytes())
    if len(room) < _RECORD_HEADER.size:
        raise _damage(
            source.path,
            f"{len(room)} bytes are left at byte {offset:,}, after record {number - 1}, too few "
            f"for another record",
        )
    record_class, group, subclass, version, size = _RECORD_HEADER.unpack(room.tobytes())
    record = Record(number, offset, size, record_class, group, subclass, version)
    if size < _RECORD_HEADER.size:
        raise _damage(source.path, f"its header says that it has {size} bytes", record)
    if offset + size > source.size:
        raise _damage(
            source.path,
            f"its header says that it has {size:,} bytes, but the file ends after "
            f"{source.size - offset:,} of them",
            record,
        )
    return record


def _main_header(source: Source, file: BinaryIO, record: Record) -> dict[str, str]:
    text = np.empty(record.size - _RECORD_HEADER.size, np.uint8)
    source.read(file, _RECORD_HEADER.size, text)
    lines = text.tobytes().decode("ascii", errors="replace").splitlines()
    pairs = [line.partition("=") for line in lines]
    header = {name.strip(): value.strip() for name, equals, value in pairs if equals}
    if "PRODUCT_NAME" not in header:
        raise _not_eps(source.path)
    return header


def _not_eps(path: Path, beginning: bytes = b"") -> DamagedFileError:
    for magic, kind in _PACKED.items():
        if beginning.startswith(magic):
            return DamagedFileError(f"{path} is {kind}. Unpack it, and open what was in it.")
    return DamagedFileError(
        f"{path} is not in EUMETSAT's EPS native format: it does not begin with a main product "
        f"header. Use the file as EUMETSAT sends it, in the native format."
    )


def _damage(path: Path, what: str, record: Record | None = None) -> DamagedFileError:
    where = f", {record.place}" if record else ""
    return DamagedFileError(f"{path}{where}: {what}. Fetch the file again.")
