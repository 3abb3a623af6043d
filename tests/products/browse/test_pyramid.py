"""Tiles at every zoom: all pixels are in them, and each level is made of the one below."""

import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.products.browse import pyramid as module
from undulatus.products.browse.pyramid import (
    TILE,
    Pyramid,
    build_pyramid,
    commonest,
    halve,
    mean_of_known,
)

MISSING = 255


def planes_of(shape, seed=0):
    """Return codes of four classes, and two planes of values, with missing pixels."""
    rng = np.random.default_rng(seed)
    planes = rng.integers(0, 255, (3, *shape)).astype(np.uint8)
    planes[0] %= 4
    planes[:, rng.random(shape) < 0.2] = MISSING
    return planes


def tiles_of(planes, workers=2):
    """Return all tiles by their places, and the windows that were read."""
    found, windows, lock = {}, [], threading.Lock()

    def read(rows, columns):
        with lock:
            windows.append((rows, columns))
        return planes[:, rows, columns]

    def write(place, tile):
        with lock:
            assert place not in found
            found[place] = tile.copy()

    build_pyramid(Pyramid(planes.shape[1:]), read, write, workers=workers)
    return found, windows


def assembled(tiles, level, shape):
    """Return a level as one image, without what lies beyond the edges."""
    down, across = Pyramid(shape).count(level)
    rows = [
        np.concatenate([tiles[level, row, column] for column in range(across)], axis=-1)
        for row in range(down)
    ]
    height, width = (-(-size // 2**level) for size in shape)
    return np.concatenate(rows, axis=-2)[:, :height, :width]


SHAPES = [(300, 1300), (1, 1), (256, 256), (257, 255), (1030, 40), (1025, 2049)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_tiles_of_level_zero_are_the_image_and_each_level_halves_the_one_below(shape):
    planes = planes_of(shape)
    tiles, _ = tiles_of(planes)
    assert_array_equal(assembled(tiles, 0, shape), planes)
    for level in range(Pyramid(shape).top):
        below = assembled(tiles, level, shape)
        edges = ((0, 0), (0, below.shape[1] % 2), (0, below.shape[2] % 2))
        expected = halve(np.pad(below, edges, constant_values=MISSING))
        assert_array_equal(assembled(tiles, level + 1, shape), expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_pixel_is_read_once_and_the_last_level_is_one_tile(shape):
    tiles, windows = tiles_of(planes_of(shape))
    counted = np.zeros(shape, int)
    for window in windows:
        counted[window] += 1
    assert (counted == 1).all()
    assert [place for place in tiles if place[0] == Pyramid(shape).top] == [
        (Pyramid(shape).top, 0, 0)
    ]
    assert all(tile.shape == (3, TILE, TILE) for tile in tiles.values())


@pytest.mark.parametrize("level", [0, 1, 3])
def test_tiles_are_the_same_for_any_size_of_blocks_and_number_of_threads(level, monkeypatch):
    planes = planes_of((700, 1300))
    expected, _ = tiles_of(planes, workers=1)
    monkeypatch.setattr(module, "BLOCK_LEVEL", level)
    found, windows = tiles_of(planes, workers=3)
    side = TILE << level
    assert all(rows.stop - rows.start <= side for rows, _ in windows)
    assert set(found) == set(expected)
    for place, tile in expected.items():
        assert_array_equal(found[place], tile)


def test_few_blocks_are_in_memory_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "BLOCK_LEVEL", 0)
    read, finished, most = [], [], [0]
    shape = (256 * 16, 256 * 16)

    def write(place, tile):
        if place[0] == 0:
            finished.append(place)

    def block(rows, columns):
        read.append(rows)
        return np.zeros((2, TILE, TILE), np.uint8)

    def progress(done, total):
        # Blocks that were read but have not had their turn.
        most[0] = max(most[0], len(read) - done)
        assert total == 256

    build_pyramid(Pyramid(shape), block, write, workers=2, progress=progress)
    assert len(finished) == 256
    assert most[0] <= 4


def test_an_error_in_a_block_ends_the_work():
    def read(rows, columns):
        raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        build_pyramid(Pyramid((5000, 5000)), read, lambda place, tile: None, workers=2)


@pytest.mark.parametrize(
    ("four", "expected"),
    [
        ([1, 2, 2, 2], 2),
        ([1, 1, 2, 2], 1),
        ([2, 1, 1, 2], 2),
        ([3, 1, 1, 2], 1),
        ([3, 0, 1, 1], 1),
        ([3, 1, 0, 2], 3),
        ([MISSING, 2, 1, 1], 1),
        ([MISSING, MISSING, 3, MISSING], 3),
        ([MISSING, 1, MISSING, 1], 1),
        ([MISSING, MISSING, 2, 1], 1),
        ([MISSING] * 4, MISSING),
    ],
)
def test_a_code_is_the_commonest_of_those_known_or_the_first(four, expected):
    assert commonest(np.array(four, np.uint8).reshape(2, 2)).item() == expected


def test_a_value_is_the_rounded_mean_of_those_known():
    rng = np.random.default_rng(0)
    planes = rng.integers(0, 255, (2, 40, 60)).astype(np.uint8)
    planes[rng.random(planes.shape) < 0.4] = MISSING
    found = mean_of_known(planes)
    parts = planes.reshape(2, 20, 2, 30, 2).transpose(0, 1, 3, 2, 4).reshape(2, 20, 30, 4)
    for index in np.ndindex(2, 20, 30):
        known = [int(value) for value in parts[index] if value != MISSING]
        mean = int(np.floor(np.mean(known) + 0.5)) if known else MISSING
        assert found[index] == mean
