"""Labelled pixels of an image: where they are, of which class, and which belong together.

:class:`Draw` collects pixels class by class and keeps at most so many of each, however many there
are; :mod:`undulatus.scenes.files.labels` fills it from files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import SceneError
from undulatus.scenes.pixel_grid import PixelGrid

Array = npt.NDArray[Any]

Class = int | str

HELD_MARK = " (held out by the labels)"
"""What the names of squares end with whose pixels the labels say are held out."""

SQUARES = 10
"""A square of an image is a tenth of its longer side."""


@dataclass(frozen=True)
class LabelledPixels:
    """Labelled pixels of one image.

    ``row``, ``column``, ``codes`` and ``groups`` are (n,) int arrays; ``codes`` are places in
    ``classes``, ``groups`` in ``group_names``. ``bounds`` are west, south, east and north of each
    group in the image's coordinates, (g, 4).
    """

    row: Array
    column: Array
    codes: Array
    groups: Array
    classes: tuple[Class, ...]
    group_names: tuple[str, ...]
    bounds: Array
    counts: dict[Class, int]
    """Labelled pixels of each class, before some were drawn."""
    unit: str
    """What a group is: ``"polygon"``, ``"square"``, or the field that was named."""
    names: dict[Class, str] = field(default_factory=dict)
    """Names of classes that are numbers, where the labels say them."""
    notes: tuple[str, ...] = ()
    """What was left out, and why."""
    held_out: Array | None = None
    """Which groups the labels themselves say are held out, (g,) bool; None if they do not say."""
    features: Any = None
    """Polygons, points or rows of a table that have a class; None of rasters."""
    feature_groups: Array | None = None
    """The group of each feature, (f,) int; -1 for those without a labelled pixel."""


def in_boxes(boxes: Iterable[Any], x: Array, y: Array) -> Array:
    """Return which points lie in one of some boxes, (n,) bool; empty boxes hold none."""
    inside = np.zeros(len(x), bool)
    for west, south, east, north in filter(None, boxes):
        inside |= (x > west) & (x < east) & (y > south) & (y < north)
    return inside


class Draw:
    """Pixels of each class, at most so many: those with the smallest random numbers.

    The number of a pixel depends on the seed and its place alone, so that the draw does not
    depend on the order in which pixels are added, and memory holds few more than are drawn.
    """

    def __init__(self, most: int | None, seed: int) -> None:
        self._most, self._seed = most, np.uint64(seed)
        self._parts: dict[Class, list[tuple[Array, Array]]] = {}
        self.counts: dict[Class, int] = {}

    def add(self, label: Class, index: Array, group: Array | int) -> None:
        """Add pixels of a class by their place in the flattened image, and their groups."""
        groups = np.broadcast_to(np.asarray(group, np.int64), index.shape)
        parts = self._parts.setdefault(label, [])
        parts.append((index.astype(np.int64), groups))
        self.counts[label] = self.counts.get(label, 0) + len(index)
        if self._most is not None and sum(len(part) for part, _ in parts) > 4 * self._most + 10**6:
            self._parts[label] = [self._smallest(*self._joined(label))]

    def _joined(self, label: Class) -> tuple[Array, Array]:
        index, groups = zip(*self._parts[label], strict=True)
        return np.concatenate(index), np.concatenate(groups)

    def _smallest(self, index: Array, groups: Array) -> tuple[Array, Array]:
        if self._most is None or len(index) <= self._most:
            return index, groups
        chosen = np.argpartition(_random_numbers(index, self._seed), self._most)[: self._most]
        return index[chosen], groups[chosen]

    def drawn(self) -> tuple[tuple[Class, ...], Array, Array, Array, int]:
        """Return classes, places, codes and groups in the order of places, and pixels left out.

        A pixel in polygons of several classes is left out; in several of one class it counts once.
        """
        classes = tuple(sorted(self._parts, key=sort_key))
        parts = [self._smallest(*self._joined(label)) for label in classes]
        index = np.concatenate([i for i, _ in parts])
        groups = np.concatenate([g for _, g in parts])
        codes = np.repeat(np.arange(len(classes)), [len(i) for i, _ in parts])
        order = np.lexsort((groups, codes, index))
        index, codes, groups = index[order], codes[order], groups[order]
        first = np.r_[True, np.diff(index) != 0]
        run = np.cumsum(first) - 1
        disputed = np.zeros(run[-1] + 1 if len(run) else 0, bool)
        disputed[run[codes != codes[first][run]]] = True
        kept = first & ~disputed[run]
        return classes, index[kept], codes[kept], groups[kept], int(np.count_nonzero(disputed))


def sort_key(label: Class) -> tuple[bool, Any]:
    """Return what classes are sorted by: numbers come before text."""
    return isinstance(label, str), label


def _random_numbers(index: Array, seed: np.uint64) -> Array:
    """Return a well mixed number for each place (splitmix64)."""
    with np.errstate(over="ignore"):
        z = index.astype(np.uint64) + (seed + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))


def collect(
    draw: Draw,
    grid: PixelGrid,
    group_names: list[str],
    bounds: list[Any],
    unit: str,
    where: str,
    *,
    names: dict[Class, str] | None = None,
    notes: list[str] | None = None,
    held: Array | None = None,
) -> LabelledPixels:
    """Return what was drawn; groups that were not given are squares of the image.

    ``held`` says which groups are held out. Where they are not given, the pixels of group 1 are:
    they are in squares of their own.
    """
    if not draw.counts:
        raise SceneError(
            f"No pixel of {grid.name} has a label of {where}. Check that they are of the same "
            "place."
        )
    classes, index, codes, groups, disputed = draw.drawn()
    row, column = np.divmod(index, grid.shape[1])
    said = list(notes or [])
    if disputed:
        said.append(f"{disputed:,} pixels in polygons of several classes are left out")
    if not group_names:
        groups, group_names, bounds, held_squares = squares(row, column, grid, groups)
        held = None if held is None else held_squares
    return LabelledPixels(
        row,
        column,
        codes,
        groups,
        classes,
        tuple(group_names),
        np.asarray(bounds, np.float64).reshape(-1, 4),
        {label: draw.counts[label] for label in classes},
        unit,
        names or {},
        tuple(said),
        held,
    )


def squares(
    row: Array, column: Array, grid: PixelGrid, held: Array
) -> tuple[Array, list[str], list[Any], Array]:
    """Return the squares of an image that pixels lie in: numbers, names, bounds, which are held.

    Pixels with 1 in ``held`` are in other squares than those with 0.
    """
    side = max(1, -(-max(grid.shape) // SQUARES))
    across = -(-grid.shape[1] // side)
    number = (row // side) * across + column // side
    found, groups = np.unique(2 * number + held, return_inverse=True)
    names, bounds = [], []
    for square, out in zip(*(part.tolist() for part in np.divmod(found, 2)), strict=True):
        top, left = square // across * side, square % across * side
        name = f"square {square // across}, {square % across} of {side} pixels"
        names.append(name + HELD_MARK * out)
        bounds.append(grid.bounds_of(top, left, top + side - 1, left + side - 1))
    return groups, names, bounds, found % 2 == 1
