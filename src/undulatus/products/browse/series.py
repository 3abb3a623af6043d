"""Probabilities of each pixel through time, one file a row of the image.

Pages that are opened from disk may not fetch data, but they may load scripts: a file calls
``undulatusRow(row, pieces)``, where a piece is base64 of bytes (time, x). A byte is the
probability times 254, or 255 where it is missing.
"""

from __future__ import annotations

import base64
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

FINEST, MISSING_BYTE = 254, 255


def as_bytes(probability: Array) -> Array:
    """Return probabilities as bytes: times 254, 255 where they are not finite."""
    seen = np.isfinite(probability)
    scaled = np.rint(np.clip(np.where(seen, probability, 0.0), 0.0, 1.0) * FINEST)
    return np.where(seen, scaled, MISSING_BYTE).astype(np.uint8)


def to_base64(values: Array) -> str:
    """Return the bytes of an array, little-endian, in base64."""
    plain = np.ascontiguousarray(values)
    return base64.b64encode(plain.astype(plain.dtype.newbyteorder("<")).tobytes()).decode("ascii")


class SeriesWriter:
    """Writes ``ROW.js`` of each row of the image, growing with time."""

    def __init__(self, folder: Path, rows: int) -> None:
        self._paths = [folder / f"{row}.js" for row in range(rows)]
        for row, path in enumerate(self._paths):
            path.write_text(f"undulatusRow({row},[\n", encoding="ascii")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._append(["]);\n"] * len(self._paths))

    def add(self, probability: Array) -> None:
        """Add the next acquisitions, (time, y, x)."""
        values = as_bytes(probability)
        self._append([f'"{to_base64(values[:, row])}",\n' for row in range(len(self._paths))])

    def _append(self, texts: list[str]) -> None:
        # Not kept open: an image may have more rows than a process may have files.
        for path, text in zip(self._paths, texts, strict=True):
            with path.open("a", encoding="ascii") as file:
                file.write(text)
