"""Planes of a large image as tiles at every zoom, made in one pass and in bounded memory.

A tile has 256 x 256 pixels. At level 0 each is a pixel of the image; a pixel of level l covers
2^l x 2^l of them; the last level is one tile. The image is read in square blocks, in an order in
which the four parts of a tile follow each other: a tile can be made from the tiles below it as
soon as these are finished, and only the unfinished ones of each level are in memory.

All planes are bytes, of which 255 marks what is missing. The first holds codes: a tile of the next
level has the commonest of four. The others hold shares of a scale: the mean of those that are
known. Beyond the edges of the image pixels are missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.products.browse.sprites import MISSING_BYTE

Array = npt.NDArray[Any]

TILE = 256
"""Pixels along a side of a tile."""

BLOCK_LEVEL = 2
"""A block is what a tile of this level covers: 1,024 x 1,024 pixels."""

_MOST_AHEAD = 2
"""Finished blocks that may wait for their turn."""

Place = tuple[int, int, int]
"""A tile: its level, and its row and column among the tiles of the level."""


@dataclass(frozen=True)
class Pyramid:
    """The tiles of an image with so many rows and columns."""

    shape: tuple[int, int]

    @property
    def top(self) -> int:
        """The last level, of one tile."""
        return max(0, int(np.ceil(np.log2(max(self.shape) / TILE))))

    @property
    def block_level(self) -> int:
        """The level of tiles that cover a block."""
        return min(BLOCK_LEVEL, self.top)

    def count(self, level: int) -> tuple[int, int]:
        """Return how many tiles a level has, down and across."""
        height, width = self.shape
        side = TILE << level
        return -(-height // side), -(-width // side)

    def parts(self, place: Place) -> list[Place]:
        """Return the up to four tiles that a tile is made from."""
        level, row, column = place
        down, across = self.count(level - 1)
        return [
            (level - 1, r, c)
            for r in (2 * row, 2 * row + 1)
            for c in (2 * column, 2 * column + 1)
            if r < down and c < across
        ]

    def blocks(self, place: Place | None = None) -> Iterator[Place]:
        """Yield the tiles that cover a block each, the parts of every tile one after the other."""
        place = place or (self.top, 0, 0)
        if place[0] == self.block_level:
            yield place
        else:
            for part in self.parts(place):
                yield from self.blocks(part)

    def window(self, place: Place) -> tuple[slice, slice]:
        """Return the rows and columns of the image that a tile covers."""
        level, row, column = place
        side = TILE << level
        rows, columns = (
            slice(index * side, min((index + 1) * side, size))
            for index, size in zip((row, column), self.shape, strict=True)
        )
        return rows, columns


def build_pyramid(
    pyramid: Pyramid,
    read: Callable[[slice, slice], Array],
    write: Callable[[Place, Array], None],
    *,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Read the image block by block, and write the tiles of all levels.

    Parameters
    ----------
    pyramid : Pyramid
    read : callable
        From rows and columns of the image to its planes, (planes, y, x) bytes.
    write : callable
        Takes the place of a tile and its planes, (planes, 256, 256).
    workers : int
        Threads; ``read`` and ``write`` are called from all of them.
    progress : callable
        Called with the number of blocks that are done, and of all blocks.
    """
    places = list(pyramid.blocks())

    def make_block(place: Place) -> Array:
        rows, columns = pyramid.window(place)
        return _write_block(pyramid, place, read(rows, columns), write)

    with ThreadPoolExecutor(workers) as pool:
        finished = _in_order(pool, make_block, places, workers + _MOST_AHEAD)
        counted = _counting(finished, len(places), progress)
        _finish((pyramid.top, 0, 0), pyramid, counted, write)


def _in_order(
    pool: ThreadPoolExecutor, make: Callable[[Place], Array], places: Iterable[Place], most: int
) -> Iterator[Array]:
    """Yield what is made of each place, in order, while at most so many are under way."""
    waiting: deque[Future[Array]] = deque()
    try:
        for place in places:
            waiting.append(pool.submit(make, place))
            if len(waiting) == most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


def _counting(
    blocks: Iterator[Array], total: int, progress: Callable[[int, int], None]
) -> Iterator[Array]:
    for done, block in enumerate(blocks, 1):
        progress(done, total)
        yield block


def _write_block(
    pyramid: Pyramid, place: Place, planes: Array, write: Callable[[Place, Array], None]
) -> Array:
    """Write the tiles of a block at all its levels, and return the last."""
    level, row, column = place
    side = TILE << level
    _, height, width = planes.shape
    if (height, width) != (side, side):
        edges = ((0, 0), (0, side - height), (0, side - width))
        planes = np.pad(planes, edges, constant_values=MISSING_BYTE)
    for low in range(level + 1):
        each = 1 << (level - low)
        down, across = pyramid.count(low)
        for r, c in np.ndindex(each, each):
            at = (low, row * each + r, column * each + c)
            if at[1] < down and at[2] < across:
                tile = planes[:, r * TILE : (r + 1) * TILE, c * TILE : (c + 1) * TILE]
                write(at, tile)
        if low < level:
            planes = halve(planes)
    return planes


def _finish(
    place: Place, pyramid: Pyramid, blocks: Iterator[Array], write: Callable[[Place, Array], None]
) -> Array:
    """Write a tile and all below it; the next blocks are its own."""
    if place[0] == pyramid.block_level:
        return next(blocks)
    whole: Array | None = None
    for part in pyramid.parts(place):
        tile = _finish(part, pyramid, blocks, write)
        if whole is None:
            whole = np.full((len(tile), 2 * TILE, 2 * TILE), MISSING_BYTE, np.uint8)
        top, left = TILE * (part[1] % 2), TILE * (part[2] % 2)
        whole[:, top : top + TILE, left : left + TILE] = tile
    assert whole is not None
    halved = halve(whole)
    write(place, halved)
    return halved


# Four pixels to one


def halve(planes: Array) -> Array:
    """Return planes (planes, 2 n, 2 m) at the next level, (planes, n, m).

    The first plane keeps the commonest code of four pixels, of two that are as common the one
    that comes first; the others the mean of the known values, rounded.
    """
    return np.concatenate([commonest(planes[0])[None], mean_of_known(planes[1:])])


def commonest(codes: Array) -> Array:
    """Return the commonest code of each 2 x 2 pixels; missing only if all four are."""
    a, b, c, d = (codes[i::2, j::2] for i in (0, 1) for j in (0, 1))
    chosen = a.copy()
    alone = (a == MISSING_BYTE) | ((a != b) & (a != c) & (a != d))
    second = alone & (b != MISSING_BYTE) & ((b == c) | (b == d))
    np.copyto(chosen, b, where=second)
    np.copyto(chosen, c, where=alone & ~second & (c != MISSING_BYTE) & (c == d))
    # The mark of what is missing is the largest code.
    least = np.minimum(np.minimum(a, b), np.minimum(c, d))
    return np.where(chosen == MISSING_BYTE, least, chosen)


def mean_of_known(planes: Array) -> Array:
    """Return the rounded mean of the known values of each 2 x 2 pixels."""
    shape = (*planes.shape[:-2], planes.shape[-2] // 2, planes.shape[-1] // 2)
    total, known = np.zeros(shape, np.uint16), np.zeros(shape, np.uint8)
    for i in (0, 1):
        for j in (0, 1):
            part = planes[..., i::2, j::2]
            seen = part != MISSING_BYTE
            total += np.where(seen, part, np.uint8(0))
            known += seen
    # Halves are rounded up.
    mean = (2 * total + known) // np.maximum(2 * known, 1)
    return np.where(known > 0, mean, MISSING_BYTE).astype(np.uint8)
