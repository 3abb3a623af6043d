"""BUFR: the messages of a file, checked before they are decoded by eccodes.

A file is a row of messages, with anything between them, such as the headers of bulletins. A
message has six sections, and says how long it and each of them is. These lengths are compared with
the file, and the descriptors of the template with those of sounders, before eccodes sees a byte:
eccodes is C code, and ends the process on some of what it does not expect. A decoded message is a
table: one row for each subset (a view of the Earth), one column for each element, known by its
descriptor, the number that WMO's Manual on Codes (No. 306, volume I.2) gives it: 5001 is 0 05 001,
the latitude.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import DamagedFileError, SceneError, unreadable

Array = npt.NDArray[Any]

BEGINNING, END = b"BUFR", b"7777"
"""What a message begins and ends with."""

MOST_VALUES = 2**27
"""Values in a message at most: a gigabyte, 60 times those of 120 spectra of IASI."""

_MISSING = -1e99
"""eccodes's missing value is below this."""

_OPERATORS = 200_000
"""Descriptors from here on are operators; the values after the first are about other values."""

SEQUENCES = (
    *(301_011, 301_012, 301_013, 301_021, 310_008, 310_050, 310_051, 310_052, 310_053, 310_054),
    *(310_060, 340_001, 340_002, 340_003, 340_004, 340_007, 340_008),
)
"""Sequences that the templates of sounders are made of: others are not given to eccodes."""

QUALITY = (222_000, 223_000, 224_000, 225_000, 232_000, 235_000, 236_000, 237_000, 237_255)
"""Operators after which values are about other values, such as their quality."""

WIDEST = 24
"""Bits or digits by which a template may change its elements: of more, eccodes aborts."""

_FACTORS = (31_000, 31_001, 31_002)
"""Elements that say how often the following ones are repeated."""

_REMEDY = "Fetch the file again, or cut the message out (bufr_copy of eccodes)."

_DECODING = Lock()
"""eccodes is not thread-safe in every build."""


@dataclass(frozen=True)
class Message:
    """Where a message lies in its file, and what it says of itself."""

    path: Path
    number: int
    """Counted from 1."""
    start: int
    length: int
    """Bytes."""
    subsets: int
    template: int = 0
    """Bytes before its third section, which lists its elements."""

    def failure(self, problem: str, remedy: str = _REMEDY) -> DamagedFileError:
        """Return an error that names file and message."""
        return DamagedFileError(f"{self.path}, message {self.number}: {problem} {remedy}")


@dataclass(frozen=True)
class Decoded:
    """The elements of a message."""

    message: Message
    codes: Array
    """Descriptors of the columns, (elements,) int."""
    values: Array
    """(subsets, elements) float64, NaN where missing."""

    def find(self, *pattern: int) -> Array:
        """Return the columns at which a sequence of descriptors begins, (n,) int."""
        last = len(self.codes) - len(pattern) + 1
        here = np.ones(max(last, 0), bool)
        for place, code in enumerate(pattern):
            here &= self.codes[place : place + len(here)] == code
        return np.flatnonzero(here)

    def first(self, *codes: int) -> Array | None:
        """Return the first column with one of some descriptors, (subsets,), or None."""
        places = np.flatnonzero(np.isin(self.codes, codes))
        return self.values[:, places[0]] if len(places) else None

    def constant(self, columns: Array, meaning: str) -> Array:
        """Return values that must be the same in every subset, (columns,)."""
        chosen = self.values[:, columns]
        same = (chosen == chosen[:1]) | (np.isnan(chosen) & np.isnan(chosen[:1]))
        if not same.all():
            first = int(np.flatnonzero(~same.all(axis=0))[0]) + 1
            raise self.message.failure(
                f"{meaning} differ from view to view, from the {first:,}. of {len(columns):,} on, "
                f"so they are not what the template says: its producer wrote it wrongly."
            )
        return np.asarray(chosen[0])


def find_messages(path: Path) -> list[Message]:
    """Return the messages of a file, or raise a :class:`SceneError` if one is not whole."""
    try:
        with open(path, "rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise DamagedFileError(f"{path} is empty. Fetch it again.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                messages = list(_each_message(path, content))
    except OSError as error:
        raise unreadable(path, error, ".") from error
    if not messages:
        raise DamagedFileError(
            f"{path} holds no BUFR message: {BEGINNING.decode()} occurs nowhere in it. Is it "
            f"another format, or compressed (gunzip, bunzip2)?"
        )
    return messages


def _each_message(path: Path, content: mmap.mmap) -> Iterator[Message]:
    number, place = 0, content.find(BEGINNING)
    while place >= 0:
        number += 1
        message = _check(path, number, place, content)
        yield message
        place = content.find(BEGINNING, place + message.length)


def _check(path: Path, number: int, start: int, content: mmap.mmap) -> Message:
    """Return a message whose sections have the lengths that they say."""
    header = content[start : start + 8]
    length = int.from_bytes(header[4:7], "big")
    message = Message(path, number, start, length, 0)
    if len(header) < 8 or start + length > len(content):
        raise message.failure(
            f"it says that it is {length:,} bytes long, but the file ends after "
            f"{len(content) - start:,}: it is cut off.",
        )
    edition = header[7]
    if edition not in (2, 3, 4):
        raise message.failure(f"it is of BUFR edition {edition}; editions 2 to 4 are read.")
    if content[start + length - 4 : start + length] != END:
        raise message.failure(f"it does not end with {END.decode()} after {length:,} bytes.")
    place, stop, subsets, template = start + 8, start + length - len(END), 0, 0
    flag = content[place + (9 if edition == 4 else 7)]
    for section in (1, 2, 3, 4) if flag & 0x80 else (1, 3, 4):
        size = int.from_bytes(content[place : place + 3], "big")
        least = {1: 17, 2: 4, 3: 9, 4: 4}[section]
        if size < least or place + size > stop:
            raise message.failure(
                f"its section {section} says that it is {size:,} bytes long, but {least:,} to "
                f"{max(stop - place, 0):,} are possible."
            )
        if section == 3:
            template = place - start
            subsets = int.from_bytes(content[place + 4 : place + 6], "big")
            _check_template(message, content[place + 7 : place + size])
        place += size
    if place != stop:
        raise message.failure(f"its sections end {stop - place:,} bytes before it does.")
    if not subsets:
        raise message.failure("it holds no subset, so no view.")
    return Message(path, number, start, length, subsets, template)


def _check_template(message: Message, written: bytes) -> None:
    """Refuse descriptors that belong to no sounder, some of which eccodes does not survive."""
    codes = _descriptors(written)
    kind, group, number = codes // 100_000, codes // 1000 % 100, codes % 1000
    other = codes[(kind == 3) & ~np.isin(codes, SEQUENCES)]
    if len(other):
        raise message.failure(
            f"it is of the template {', '.join(f'{code:06d}' for code in other[:4])}, which is no "
            f"infrared sounder's.",
            "Give files of IASI, CrIS, AIRS or HIRS.",
        )
    widths = (kind == 2) & np.isin(group, (1, 2, 7)) & (number > 0)
    change = np.where(group == 7, number, np.abs(number - 128))
    wrong = (kind == 2) & ~np.isin(codes, QUALITY) & ~(widths & (change <= WIDEST) | (number == 0))
    if wrong.any():
        raise message.failure(
            f"its template has the operator {codes[wrong][0]:06d}, which no sounder's has."
        )
    for place in np.flatnonzero(kind == 1):
        delayed = number[place] == 0
        factor = codes[place + 1] if place + 1 < len(codes) else 0
        if place + group[place] + delayed >= len(codes) or (delayed and factor not in _FACTORS):
            raise message.failure("its template repeats more elements than it has.")


def decode(message: Message) -> Decoded:
    """Return the elements of a message, with replications written out."""
    codes_of = _eccodes(message.path)
    with open(message.path, "rb") as file:
        file.seek(message.start)
        content = _without_quality(message, file.read(message.length))
    with _DECODING:
        try:
            listed, values = _decode(codes_of, message, content)
        except codes_of.CodesInternalError as error:
            raise message.failure(
                f"eccodes cannot decode it ({error}): it is damaged, or of a template with tables "
                f"that eccodes {codes_of.codes_get_api_version()} does not have.",
                "Fetch it again, or update eccodes (pip install -U eccodes).",
            ) from error
    values[values < _MISSING] = np.nan
    return _as_table(message, listed, values)


def _without_quality(message: Message, content: bytes) -> bytes:
    """Return a message without what follows its first operator of quality, if it can be cut.

    Nothing of it is used, and eccodes does not survive all mistakes in it. The elements of
    compressed messages, and of a single subset, follow each other, so that the last can be left
    out; several subsets without compression are left as they are.
    """
    start = message.template
    size = int.from_bytes(content[start : start + 3], "big")
    is_compressed = bool(content[start + 6] & 0x40)
    codes = _descriptors(content[start + 7 : start + size])
    quality = np.flatnonzero(np.isin(codes, QUALITY))
    if not len(quality) or not (is_compressed or message.subsets == 1):
        return content
    kept = content[start + 3 : start + 7 + 2 * int(quality[0])]
    if content[7] < 4:
        # Sections of older editions have even lengths.
        kept += bytes((len(kept) + 3) % 2)
    cut = (len(kept) + 3).to_bytes(3, "big") + kept
    whole = content[:start] + cut + content[start + size :]
    return whole[:4] + len(whole).to_bytes(3, "big") + whole[7:]


def _descriptors(written: bytes) -> Array:
    """Return descriptors as numbers of six digits, from their two bytes each."""
    pairs = np.frombuffer(written[: len(written) // 2 * 2], ">u2").astype(int)
    return (pairs >> 14) * 100_000 + ((pairs >> 8) & 63) * 1000 + (pairs & 255)


def _decode(codes_of: Any, message: Message, content: bytes) -> tuple[Array, Array]:
    handle = codes_of.codes_new_from_message(content)
    try:
        # Without attributes of elements, such as their units: half of the time.
        codes_of.codes_set(handle, "skipExtraKeyAttributes", 1)
        codes_of.codes_set(handle, "unpack", 1)
        count = codes_of.codes_get_size(handle, "numericValues")
        if count > MOST_VALUES:
            raise message.failure(f"it unpacks to {count:,} values, which no instrument sends.")
        listed = codes_of.codes_get_array(handle, "expandedCodes")
        return listed, codes_of.codes_get_double_array(handle, "numericValues")
    finally:
        codes_of.codes_release(handle)


def _as_table(message: Message, listed: Array, values: Array) -> Decoded:
    """Return values as rows of subsets, if all of them have the same elements."""
    elements, factors = _written_out(message, listed.tolist(), values)
    if len(elements) * message.subsets != len(values):
        raise message.failure(
            f"its {message.subsets:,} subsets have different numbers of elements: "
            f"{len(values):,} values are no multiple of the {len(elements):,} of the first.",
            "Split it by subset (bufr_filter of eccodes).",
        )
    table = values.reshape(message.subsets, len(elements))
    decoded = Decoded(message, np.array(elements), table)
    if factors:
        decoded.constant(np.array(factors), "the numbers of channels")
    operators = np.flatnonzero(decoded.codes >= _OPERATORS)
    stop = int(operators[0]) if len(operators) else len(elements)
    return Decoded(message, decoded.codes[:stop], table[:, :stop])


def _written_out(
    message: Message, listed: list[int], values: Array
) -> tuple[list[int], list[int]]:
    """Return the descriptors of the first subset's values, and which of them are factors.

    eccodes lists a delayed replication once: its operator 1xx000, the factor, and the xx
    descriptors that follow so many times as the factor's value says.
    """
    elements: list[int] = []
    factors: list[int] = []
    pending = [(listed, 1)]
    while pending:
        part, times = pending.pop()
        if times > 1:
            pending.append((part, times - 1))
        for place, code in enumerate(part):
            if not 100_000 <= code < _OPERATORS:
                elements.append(code)
                continue
            size = code // 1000 - 100
            if part[place + 1] not in _FACTORS or len(elements) >= len(values):
                raise message.failure("its replications cannot be followed.")
            factors.append(len(elements))
            factor = values[len(elements)]
            elements.append(part[place + 1])
            inner, rest = part[place + 2 : place + 2 + size], part[place + 2 + size :]
            pending.append((rest, 1))
            if 0 < factor <= len(values):
                pending.append((inner, int(factor)))
            break
        if len(elements) > len(values):
            raise message.failure("its replications are longer than its data.")
    return elements, factors


def _eccodes(path: Path) -> Any:
    try:
        return _quiet_eccodes()
    except (ImportError, RuntimeError, OSError) as error:
        raise SceneError(
            f"{path} is BUFR, which is read by eccodes, and that is not installed ({error}): "
            f"pip install 'undulatus[sounder]'."
        ) from error


@cache
def _quiet_eccodes() -> Any:
    """Import eccodes, and keep it from writing to stderr what its exceptions say too."""
    import eccodes

    eccodes.codes_context_set_logging(_nowhere())
    return eccodes


@cache
def _nowhere() -> Any:
    """Return a file that swallows all; eccodes writes to it as long as the process lives."""
    return open(os.open(os.devnull, os.O_WRONLY), "wb", buffering=0, closefd=False)
