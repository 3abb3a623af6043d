"""The pixels of a map as files that a page opened from disk can load.

A page from disk may not fetch data, but it may load images and scripts:

- the panels of a day are images, one for each kind of panel, with a tile per acquisition. All
  kinds in one image would take twice the space;
- the probabilities of a row of pixels are a script that calls ``undulatusRow(row, pieces)``. A
  piece is base64 of bytes (time, x), or (time, x, class) of a map of classes. A byte is the
  probability times 254, or 255 if it is missing.
"""

from __future__ import annotations

import base64
import math
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from PIL import Image

from undulatus.products.panels import Acquisition

Array = npt.NDArray[Any]

LONGEST_SIDE = 16_383
"""Pixels along a side of a WebP image, at most."""

BYTE_OF_ONE, MISSING_BYTE = 254, 255
"""How the probability 1 and a missing one are stored."""

_MOST_WAITING = 16
"""Sheets that may wait to be written, at most."""

_ENCODING: dict[str, Any] = {"format": "WEBP", "lossless": True, "quality": 20, "method": 1}
"""Slower settings take four times as long and save a twentieth of the space."""


@dataclass(frozen=True)
class Sheet:
    """Where the tiles of a day lie: row by row, in the order of time."""

    tile: tuple[int, int]
    """Rows and columns of a tile, pixels."""
    count: int
    """Tiles in a day, at most."""

    @property
    def columns(self) -> int:
        """Tiles side by side, such that a sheet is about square."""
        height, width = self.tile
        return min(self.count, math.ceil(math.sqrt(self.count * height / width)))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of a sheet, pixels."""
        height, width = self.tile
        return -(-self.count // self.columns) * height, self.columns * width

    def place(self, index: int) -> tuple[slice, slice]:
        """Return the rows and columns of a tile, by its index in the day."""
        height, width = self.tile
        down, across = divmod(index, self.columns)
        return (
            slice(down * height, (down + 1) * height),
            slice(across * width, (across + 1) * width),
        )


class SpriteWriter:
    """Writes ``DATE-PANEL.webp`` for each day, in threads, when the day is complete."""

    def __init__(self, folder: Path, sheet: Sheet, workers: int = 2) -> None:
        self._folder = folder
        self._sheet = sheet
        self._pool = ThreadPoolExecutor(workers)
        self._waiting: deque[Future[None]] = deque()
        self._date = ""
        self._index = 0
        self._images: dict[str, Array] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._write_day()
                while self._waiting:
                    self._waiting.popleft().result()
        finally:
            self._pool.shutdown(cancel_futures=True)

    def add(self, date: str, acquisition: Acquisition) -> None:
        """Add the next acquisition; dates must come in order."""
        if date != self._date:
            self._write_day()
            self._date, self._index = date, 0
            self._images = {
                name: np.zeros((*self._sheet.size, 4), np.uint8) for name in acquisition.images
            }
        tile = self._sheet.place(self._index)
        for name, image in acquisition.images.items():
            self._images[name][tile] = image
        self._index += 1

    def _write_day(self) -> None:
        for name, image in self._images.items():
            path = self._folder / f"{self._date}-{name}.webp"
            self._waiting.append(self._pool.submit(_write_image, path, image))
        self._images = {}
        while len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()


def _write_image(path: Path, image: Array) -> None:
    Image.fromarray(image).save(path, **_ENCODING)


class SeriesWriter:
    """Writes ``ROW.js`` for each row of the image, block of time by block."""

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
        """Add the next acquisitions, (time, y, x) or (time, y, x, class)."""
        values = as_bytes(probability)
        self._append([f'"{to_base64(values[:, row])}",\n' for row in range(len(self._paths))])

    def _append(self, texts: list[str]) -> None:
        # Opened anew each time: an image may have more rows than a process may open files.
        for path, text in zip(self._paths, texts, strict=True):
            with path.open("a", encoding="ascii") as file:
                file.write(text)


def as_bytes(probability: Array) -> Array:
    """Return probabilities as bytes: times 254, or 255 where they are not finite."""
    known = np.isfinite(probability)
    scaled = np.rint(np.clip(np.where(known, probability, 0.0), 0.0, 1.0) * BYTE_OF_ONE)
    return np.where(known, scaled, MISSING_BYTE).astype(np.uint8)


def to_base64(values: Array) -> str:
    """Return the bytes of an array, little-endian, in base64."""
    plain = np.ascontiguousarray(values)
    return base64.b64encode(plain.astype(plain.dtype.newbyteorder("<")).tobytes()).decode("ascii")
