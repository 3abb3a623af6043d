"""Tiles of an image as files that a page opened from disk can load.

A page from disk may not fetch data, but it may load images and scripts:

- the planes of a tile (:mod:`undulatus.products.browse.pyramid`) are a script,
  ``tiles/LEVEL/ROW_COLUMN.js``, that calls ``undulatusTile(key, packed)``. The page colours them,
  so that any class can be shown, and reads what it says of a pixel from them;
- the image is ``tiles/LEVEL/ROW_COLUMN.webp``;
- the spectra of a tile of level 0 are a script, ``spectra/ROW_COLUMN.js``, that calls
  ``undulatusSpectra(key, lows, steps, packed)``. A value is the band's low plus its step times a
  number of 16 bits, of which 65,535 marks what is missing.

Arrays are packed as base64 of deflated bytes: differences along rows, with the sign in the lowest
bit, all lower bytes before all higher ones. Differences deflate to less, in less time.
"""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from undulatus.products.browse.image_map import known_pixels
from undulatus.products.browse.pyramid import TILE, Place, Pyramid
from undulatus.products.browse.sprites import BYTE_OF_ONE, MISSING_BYTE
from undulatus.scenes.files.windows import Bands

Array = npt.NDArray[Any]

LARGEST_NUMBER, MISSING_NUMBER = 65_534, 65_535
"""Of spectra: the largest value of a band in a tile, and the mark of a missing one."""

SPECTRA_STEPS = (1, 2, 4, 8, 16)
"""Spectra may be kept of every so many pixels, along rows and columns."""

_ENCODING: dict[str, Any] = {"format": "WEBP", "quality": 90, "method": 0}
"""Slower methods take twice the time and save a tenth of the space."""


def pack(values: Array) -> str:
    """Return an array of bytes or of 16-bit numbers, (..., x), as text."""
    signed = np.dtype(f"i{values.itemsize}")
    steps = values.copy()
    steps[..., 1:] -= values[..., :-1]
    folded = steps.view(signed)
    folded = (folded << 1) ^ (folded >> (8 * values.itemsize - 1))
    parts = folded.astype(signed.newbyteorder("<")).view(np.uint8)
    planes = parts.reshape(-1, values.itemsize).T
    # Runs and Huffman codes are all that differences have to offer.
    deflate = zlib.compressobj(1, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_RLE)
    data = deflate.compress(np.ascontiguousarray(planes).tobytes()) + deflate.flush()
    return base64.b64encode(data).decode("ascii")


@dataclass(frozen=True)
class TileWriter:
    """Writes the planes of tiles: values for the scripts, and then colours, if there are any."""

    folder: Path
    values: int
    """How many of the planes are values."""

    def make_folders(self, pyramid: Pyramid) -> None:
        """Make a folder for each level."""
        for level in range(pyramid.top + 1):
            (self.folder / str(level)).mkdir(parents=True)

    def write(self, place: Place, planes: Array) -> None:
        """Write the files of a tile."""
        level, row, column = place
        key = f"{level}/{row}_{column}"
        packed = pack(np.ascontiguousarray(planes[: self.values]))
        script = f'undulatusTile("{key}","{packed}");\n'
        (self.folder / f"{key}.js").write_text(script, encoding="ascii")
        if len(planes) > self.values:
            _as_image(planes[self.values :]).save(self.folder / f"{key}.webp", **_ENCODING)


def _as_image(colours: Array) -> Image.Image:
    """Return colours (3 or 1, y, x) as an image, transparent where they are missing."""
    known = colours[0] != MISSING_BYTE
    levels = np.where(known, colours, 0).astype(np.uint16)
    red_green_blue = (levels * 255 // BYTE_OF_ONE).astype(np.uint8)
    if len(colours) == 1:
        red_green_blue = np.repeat(red_green_blue, 3, axis=0)
    channels = [*red_green_blue]
    if not known.all():
        channels.append(np.where(known, np.uint8(255), np.uint8(0)))
    return Image.fromarray(np.stack(channels, axis=-1))


@dataclass(frozen=True)
class SpectraWriter:
    """Writes the spectra of every so many pixels of an image."""

    folder: Path
    bands: Bands
    step: int
    """Pixels from one spectrum to the next, of :data:`SPECTRA_STEPS`."""

    def write(self, rows: slice, columns: slice, values: Array) -> None:
        """Write the tiles of a window of the image, (band, y, x), as it is stored.

        The window begins where a tile begins.
        """
        _, height, width = values.shape
        for top in range(0, height, TILE):
            for left in range(0, width, TILE):
                part = values[:, top : top + TILE : self.step, left : left + TILE : self.step]
                row, column = (rows.start + top) // TILE, (columns.start + left) // TILE
                self._write_tile(f"{row}_{column}", part)

    def _write_tile(self, key: str, values: Array) -> None:
        numbers = np.empty(values.shape, np.uint16)
        lows, steps = [], []
        for band, each in enumerate(values):
            numbers[band], low, step = as_numbers(each, self.bands.fills[band])
            scale, offset = self.bands.scales[band], self.bands.offsets[band]
            lows.append(low * scale + offset)
            steps.append(step * scale)
        script = f'undulatusSpectra("{key}",{json.dumps(lows)},{json.dumps(steps)},"'
        with (self.folder / f"{key}.js").open("w", encoding="ascii") as file:
            file.writelines((script, pack(numbers), '");\n'))


def as_numbers(values: Array, fill: float) -> tuple[Array, float, float]:
    """Return values of a band as 16-bit numbers, and the low and the step to get them back.

    Whole numbers that differ by less than 65,535 are kept exactly; other values to half a step, a
    131,068th of their range.
    """
    known = known_pixels(values, fill)
    if not known.any():
        return np.full(values.shape, MISSING_NUMBER, np.uint16), 0.0, 1.0
    seen = values if known.all() else values[known]
    low, high = float(seen.min()), float(seen.max())
    exact = values.dtype.kind in "ui" and high - low <= LARGEST_NUMBER
    step = 1.0 if exact else (high - low) / LARGEST_NUMBER or 1.0
    if exact:
        numbers = (values.astype(np.int32) - np.int32(low)).astype(np.uint16)
    else:
        filled = np.where(known, values, low).astype(np.float64)
        numbers = np.rint((filled - low) / step).astype(np.uint16)
    return np.where(known, numbers, np.uint16(MISSING_NUMBER)), low, step
