"""What is done with one chunk: pixels of some weight, their share of sums and rows, errors."""

import numpy as np
from numpy.testing import assert_array_equal

from undulatus.errors import PhaseTooLargeError
from undulatus.gp.blocks import Standardisation
from undulatus.gp.fourier import PHASE_LIMIT
from undulatus.gp.reading import (
    Reading,
    digest_of_chunk,
    far_row_of_chunk,
    join,
    take_from_chunk,
    total_of_chunk,
)
from undulatus.gp.survey import Chunk

PLAIN = Standardisation(np.zeros(2), np.ones(2))
READING = Reading("b", np.array([1.0, 3.0]), PLAIN, np.dtype(float), 2)


def some_chunk(number=0, groups=("x", "y", "y", "x")):
    rows = np.arange(8.0).reshape(4, 2)
    labels, weight = np.array(["a", "b", "a", "b"]), np.array([1.0, 2.0, 0.0, 1.0])
    return Chunk(number, 10 * number, rows, labels, weight, np.array(groups))


def test_a_chunk_becomes_its_pixels_of_some_weight():
    chunk = some_chunk()
    pixels = READING(chunk)
    assert_array_equal(pixels.rows, chunk.rows[[0, 1, 3]])
    assert_array_equal(pixels.positive, [False, True, True])
    assert_array_equal(pixels.weight, [1.0, 6.0, 3.0])
    assert_array_equal(pixels.groups, ["x", "y", "x"])


def test_a_chunk_without_weights_is_not_copied():
    chunk = Chunk(0, 0, np.ones((3, 2)), np.array(["a", "b", "b"]), None, None)
    pixels = Reading("b", None, PLAIN, np.dtype(float), 2)(chunk)
    assert pixels.rows is chunk.rows
    assert pixels.weight is None


def test_a_total_goes_over_all_blocks_with_the_parameters():
    seen = []

    def part(block, power, shift=0.0):
        seen.append(len(block.x))
        return float(np.sum(block.x**power)) + shift

    found = total_of_chunk(some_chunk(), READING, part, sum, (2,), {"shift": 1.0})
    assert seen == [2, 1]
    assert found == np.sum(some_chunk().rows[[0, 1, 3]] ** 2) + 2.0


def test_rows_are_taken_by_their_number_among_those_of_some_weight_and_joined():
    edges = np.array([0, 3, 6])
    chosen = np.array([1, 2, 5])
    parts = [take_from_chunk(some_chunk(i), READING, chosen, edges) for i in (0, 1)]
    joined = join(parts, threads=2)
    assert_array_equal(joined.rows, some_chunk().rows[[1, 3, 3]])
    assert_array_equal(joined.weight, [6.0, 3.0, 3.0])
    assert_array_equal(joined.groups, [1, 0, 0])
    assert joined.threads == 2


def test_one_group_is_as_good_as_none_among_joined_rows():
    parts = [READING(some_chunk(groups=("x",) * 4))]
    assert join(parts, threads=1).groups is None


def test_a_digest_is_of_the_pixels():
    assert digest_of_chunk(some_chunk(), READING, lambda pixels: str(pixels.n_rows)) == "3"


def test_a_row_too_far_out_is_an_error_returned_unless_it_weighs_nothing():
    chunk = some_chunk(2)
    assert far_row_of_chunk(chunk, READING, np.ones((1, 2)), str) is None
    chunk.rows[2] = 10.0 * PHASE_LIMIT
    assert far_row_of_chunk(chunk, READING, np.ones((1, 2)), str) is None
    chunk.rows[3] = 10.0 * PHASE_LIMIT
    error = far_row_of_chunk(chunk, READING, np.ones((1, 2)), str)
    assert isinstance(error, PhaseTooLargeError)
    assert "Row 23 " in str(error)
