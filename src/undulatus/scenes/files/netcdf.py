"""NetCDF files, and whether a classic one is as long as its header says.

NetCDF-4 is HDF5, whose library refuses a file that was cut short. The library of the classic
formats reads zeros beyond the end instead. Their layout is in the NetCDF User Guide, appendix B
("File Format Specifications"): all numbers are big-endian, and names and values are filled up to
4 bytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import xarray as xr

from undulatus.errors import DamagedFileError, UndulatusError, unreadable

VALUE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 4, 6: 8, 7: 1, 8: 2, 9: 4, 10: 8, 11: 8}
"""Bytes of a value by the number of its type."""

OFFSET_BYTES = {1: 4, 2: 8, 5: 8}
"""Bytes of an offset by the version of the format (classic, 64-bit offset, 64-bit data)."""


def open_netcdf(path: Path, **options: Any) -> xr.Dataset:
    """Open a netCDF (or HDF5) file with options of :func:`xarray.open_dataset`, if it is whole."""
    try:
        require_whole(path)
        return xr.open_dataset(path, engine="netcdf4", **options)
    except UndulatusError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(path, error) from error


def valid_limits(array: xr.DataArray) -> tuple[float, float] | None:
    """Return the smallest and the largest valid value that a variable's attributes declare.

    In the units of the array. Attributes of whole numbers are of the values as they are packed in
    the file, attributes of real numbers of the values after scale and offset (NetCDF User Guide,
    appendix A). Whole numbers say nothing of real ones whose file is no longer known.
    """
    attrs, encoding = array.attrs, array.encoding
    limits = attrs.get("valid_range", (attrs.get("valid_min"), attrs.get("valid_max")))
    if np.size(limits) != 2 or all(limit is None for limit in limits):
        return None
    whole = all(limit is None or np.asarray(limit).dtype.kind in "iu" for limit in limits)
    if whole and array.dtype.kind == "f" and "dtype" not in encoding:
        return None
    packed = encoding if whole and encoding.get("dtype") != array.dtype else {}
    scale, offset = packed.get("scale_factor", 1.0), packed.get("add_offset", 0.0)
    unsigned = str(packed.get("_Unsigned", "")).lower() == "true"
    found = []
    for limit, open_end in zip(limits, (-np.inf, np.inf), strict=True):
        value = np.asarray(open_end if limit is None else limit)
        if value.dtype.kind not in "iuf":
            return None
        if unsigned and value.dtype.kind == "i":
            value = value.astype(f"u{value.dtype.itemsize}")
        # Half a step of what is packed, and rounding to single precision, are within.
        slack = abs(scale) / 2 if packed else 4.0 * np.finfo(np.float32).eps * abs(float(value))
        found.append((float(value) * scale + offset, slack if np.isfinite(value) else 0.0))
    (low, below), (high, above) = sorted(found)
    return low - below, high + above


def within_valid_range(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset in blocks, whose real numbers outside their valid range are NaN."""
    cleaned = {}
    for name, array in dataset.data_vars.items():
        limits = valid_limits(array) if array.dtype.kind == "f" else None
        if limits is not None:
            cleaned[name] = array.where((array >= limits[0]) & (array <= limits[1]))
            cleaned[name].encoding = array.encoding
    return dataset.assign(cleaned)


def require_whole(path: Path) -> None:
    """Raise if a netCDF file of a classic format is shorter than its header says."""
    with open(path, "rb") as file:
        magic = file.read(4)
        if magic[:3] != b"CDF" or magic[-1] not in OFFSET_BYTES:
            return
        length = os.fstat(file.fileno()).st_size
        try:
            described = _Header(file, magic[-1], length).end
        except (EOFError, KeyError, IndexError) as error:
            raise DamagedFileError(
                f"{path} is damaged or cut short: its {length:,} bytes do not hold the header "
                f"of a netCDF file. Fetch or copy it again."
            ) from error
    if described > length:
        raise DamagedFileError(
            f"{path} is cut short: by its header it has {described:,} bytes, but there are "
            f"{length:,}. Fetch or copy it again."
        )


@dataclass
class _Header:
    """The header of a classic file, as far as it says where values end."""

    file: BinaryIO
    version: int
    length: int
    """Bytes in the file."""

    @property
    def end(self) -> int:
        """The byte after the last value."""
        records, unlimited = self._count(), 2 ** (64 if self.version == 5 else 32) - 1
        lengths = []
        for _ in self._list():
            self._skip_name()
            lengths.append(self._count())
        self._skip_attributes()
        ends, record_variables = [0], []
        for _ in self._list():
            self._skip_name()
            shape = [lengths[self._count()] for _ in range(self._count())]
            self._skip_attributes()
            value_bytes = VALUE_BYTES[self._number(4)]
            # The length that the header gives has no room for variables beyond 4 GB.
            self._count()
            begin = self._number(OFFSET_BYTES[self.version])
            if shape and shape[0] == 0:
                record_variables.append((begin, prod(shape[1:]) * value_bytes))
            else:
                ends.append(begin + prod(shape) * value_bytes)
        # A writer that did not know how many records there would be left their number open.
        if record_variables and records not in (0, unlimited):
            # A single variable of records is not filled up to 4 bytes.
            alone = len(record_variables) == 1
            record = sum(size if alone else _filled(size) for _, size in record_variables)
            ends += [begin + (records - 1) * record + size for begin, size in record_variables]
        return max(ends)

    def _number(self, size: int) -> int:
        found = self.file.read(size)
        if len(found) < size:
            raise EOFError
        return int.from_bytes(found, "big")

    def _count(self) -> int:
        return self._number(8 if self.version == 5 else 4)

    def _list(self) -> range:
        self._number(4)
        count = self._count()
        if count > self.length:
            raise EOFError
        return range(count)

    def _skip(self, size: int) -> None:
        self.file.seek(_filled(size), os.SEEK_CUR)

    def _skip_name(self) -> None:
        self._skip(self._count())

    def _skip_attributes(self) -> None:
        for _ in self._list():
            self._skip_name()
            value_bytes = VALUE_BYTES[self._number(4)]
            self._skip(self._count() * value_bytes)


def _filled(size: int) -> int:
    """Return a length filled up to 4 bytes."""
    return -(-size // 4) * 4
