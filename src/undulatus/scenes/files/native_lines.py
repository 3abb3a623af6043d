"""SEVIRI's native format: a file that has only some scan lines of another, in the same format.

satpy reads all lines of a file to know when each was scanned. A chip needs a few of them; the
format can hold any rectangle of lines, so those are copied to a small file, which satpy reads.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from undulatus.errors import DamagedFileError

LINE_HEADER_BYTES = 27
"""Version, satellite, times, number, channel and quality of a line, after its packet headers."""

FULL_COLUMNS = 3712


def copy_lines(source: Path, folder: Path, first: int, last: int) -> Path | None:
    """Write lines of a native file (the first is number 0, in the south) to a file in ``folder``.

    Returns None for a file without the header of the archive, which always has all lines.

    Parameters
    ----------
    source : path
        A Level-1.5 file, whose name is kept.
    first, last : int
        The lines from ``first`` to ``last``, ``last`` included.
    """
    from satpy.readers import seviri_l1b_native, seviri_l1b_native_hdr

    native: Any = seviri_l1b_native
    if not native.has_archive_header(str(source)):
        return None
    layout = np.dtype(native.get_native_header(True))
    with source.open("rb") as file:
        header: Any = np.frombuffer(file.read(layout.itemsize), layout, count=1).copy()
        rectangle = header["15_SECONDARY_PRODUCT_HEADER"][0]
        lines, line_bytes = _number(rectangle, "NumberLinesVISIR"), _line_bytes(rectangle)
        trailer = np.dtype(seviri_l1b_native_hdr.native_trailer).itemsize
        needed = layout.itemsize + lines * line_bytes + trailer
        found = source.stat().st_size
        if found < needed:
            raise DamagedFileError(
                f"{source} is cut short: it has {found:,} bytes of {needed:,}. Fetch it again."
            )
        south = _number(rectangle, "SouthLineSelectedRectangle")
        _set_lines(header, south + first, south + last)
        file.seek(layout.itemsize + first * line_bytes)
        chosen = file.read((last - first + 1) * line_bytes)
        file.seek(layout.itemsize + lines * line_bytes)
        end = file.read(trailer)
    path = folder / source.name
    path.write_bytes(header.tobytes() + chosen + end)
    return path


def _number(rectangle: Any, name: str) -> int:
    return int(rectangle[name]["Value"])


def _line_bytes(rectangle: Any) -> int:
    """Return the bytes of a line of all channels, 10 bits a pixel."""
    from satpy.readers.seviri_l1b_native_hdr import GSDTRecords

    packet = np.dtype(GSDTRecords.gp_pk_header).itemsize + np.dtype(GSDTRecords.gp_pk_sh1).itemsize
    selected = rectangle["SelectedBandIDs"]["Value"].decode()
    west, east = (
        _number(rectangle, f"{side}ColumnSelectedRectangle") for side in ("West", "East")
    )
    columns = west - east + 1
    padded = -(-columns // 4) * 4
    record = packet + LINE_HEADER_BYTES
    total = selected[:11].count("X") * (record + padded * 10 // 8)
    if selected[11:12] == "X":
        wide = _number(rectangle, "NumberColumnsHRV")
        # The full disc is announced with all columns, but each line has half of them.
        wide = wide if columns < FULL_COLUMNS else wide // 2
        total += 3 * (record + wide * 10 // 8)
    return total


def _set_lines(header: Any, south: int, north: int) -> None:
    count = north - south + 1
    for name, value in {
        "SouthLineSelectedRectangle": south,
        "NorthLineSelectedRectangle": north,
        "NumberLinesVISIR": count,
        "NumberLinesHRV": 3 * count,
    }.items():
        header["15_SECONDARY_PRODUCT_HEADER"][name]["Value"] = str(value).encode()
