"""Pixels in dask arrays: single chunks, any chunks, any scheduler; only sums come back."""

import os
import threading

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import assert_same, some_gaussian
from threadpoolctl import threadpool_info

from undulatus.errors import InputError, NotFiniteError, PhaseTooLargeError
from undulatus.gp import dask_data
from undulatus.gp.backends import HOST, make_backend
from undulatus.gp.dask_data import (
    FAN_IN,
    ChunkedPixels,
    LabelledArrays,
    PixelReader,
    chunk_total,
    compute,
    concatenate_pixels,
    map_rows,
    require_phases_of_chunk,
    take_from_chunk,
)
from undulatus.gp.data import PHASE_LIMIT, Pixels, Standardisation
from undulatus.gp.inference import WeightSpace
from undulatus.gp.likelihood import QUADRATIC
from undulatus.gp.moments import LabelledChunk

N, D = 120, 3

STANDARDISATION = Standardisation(np.array([0.5, -1.0]), np.array([2.0, 3.0]))

chunk_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12).map(
    lambda sizes: (*sizes, max(N - sum(sizes), 0)) if sum(sizes) <= N else (N,)
)


# One chunk

PLAIN = Standardisation(np.zeros(2), np.ones(2))

CLASSES = np.array(["clear", "cloud"])

READER = PixelReader(np.array(["a", "b"]), np.array([1.0, 3.0]), PLAIN, HOST, 2)


def some_chunk(number=0, groups=("x", "y", "y", "x")):
    rows = np.arange(8.0).reshape(4, 2)
    labels, weight = np.array(["a", "b", "a", "b"]), np.array([1.0, 2.0, 0.0, 1.0])
    return LabelledChunk(number, 10 * number, rows, labels, weight, np.array(groups))


def test_a_chunk_becomes_its_pixels_of_positive_weight():
    chunk = some_chunk()
    pixels = READER(chunk)
    assert_array_equal(pixels.rows, chunk.rows[[0, 1, 3]])
    assert_array_equal(pixels.codes, [False, True, True])
    assert_array_equal(pixels.weight, [1.0, 6.0, 3.0])
    assert_array_equal(pixels.groups, ["x", "y", "x"])


def test_a_chunk_without_weights_is_not_copied():
    chunk = LabelledChunk(0, 0, np.ones((3, 2)), np.array(["a", "b", "b"]), None, None)
    pixels = PixelReader(np.array(["a", "b"]), None, PLAIN, HOST, 2)(chunk)
    assert pixels.rows is chunk.rows
    assert pixels.weight is None


def test_a_total_is_over_all_blocks_and_passes_the_parameters():
    seen = []

    def part(block, power, shift):
        seen.append(len(block.x))
        return [np.array([np.sum(block.x**power) + shift])]

    found = chunk_total(some_chunk(), READER, part, 2, 1.0)
    assert seen == [2, 1]
    assert found[0] == np.sum(some_chunk().rows[[0, 1, 3]] ** 2) + 2.0


def test_rows_are_numbered_among_those_of_positive_weight_and_concatenated():
    edges = np.array([0, 3, 6])
    chosen = np.array([1, 2, 5])
    parts = [take_from_chunk(some_chunk(i), READER, chosen, edges) for i in (0, 1)]
    joined = concatenate_pixels(parts, threads=2)
    assert_array_equal(joined.rows, some_chunk().rows[[1, 3, 3]])
    assert_array_equal(joined.weight, [6.0, 3.0, 3.0])
    assert_array_equal(joined.groups, [1, 0, 0])
    assert joined.threads == 2


def test_concatenated_rows_of_one_group_have_no_groups():
    parts = [READER(some_chunk(groups=("x",) * 4))]
    assert concatenate_pixels(parts, threads=1).groups is None


def test_a_row_too_far_out_is_named_unless_its_weight_is_zero():
    chunk = some_chunk(2)
    require_phases_of_chunk(chunk, READER, np.ones((1, 2)), str)
    chunk.rows[2] = 10.0 * PHASE_LIMIT
    require_phases_of_chunk(chunk, READER, np.ones((1, 2)), str)
    chunk.rows[3] = 10.0 * PHASE_LIMIT
    with pytest.raises(PhaseTooLargeError, match="Row 23 "):
        require_phases_of_chunk(chunk, READER, np.ones((1, 2)), str)


# Many chunks


def some_arrays(seed=0, n=N):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 2))
    labels = np.where(np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0, "cloud", "clear")
    return x, labels, rng.integers(0, 3, n).astype(float), rng.integers(0, 4, n)


def in_memory_and_chunked(
    sizes=(50, 30, 40), weighted=True, grouped=True, dtype=np.float64, factors=None
):
    x, labels, weight, groups = some_arrays()
    weight, groups = weight if weighted else None, groups if grouped else None
    cut = [None if a is None else da.from_array(a, chunks=(sizes,)) for a in (weight, groups)]
    rows = da.from_array(x, chunks=(sizes, (1, 1)))
    arrays = LabelledArrays.align(rows, da.from_array(labels, chunks=17), *cut)
    factors = None if factors is None else np.array(factors)
    reader = PixelReader(
        np.array(["clear", "cloud"]), factors, STANDARDISATION, make_backend(dtype), 16
    )
    positive = labels == "cloud"
    if factors is not None:
        weight = factors[positive.astype(int)] * (1.0 if weight is None else weight)
    kept = np.arange(N) if weight is None else np.flatnonzero(weight)
    used = np.add.reduceat(
        np.append(np.isin(np.arange(N), kept), False), np.cumsum([0, *sizes[:-1]])
    )
    used = tuple(int(u) if size else 0 for u, size in zip(used, sizes, strict=True))
    in_memory = Pixels(
        x[kept],
        positive[kept],
        None if weight is None else weight[kept],
        STANDARDISATION,
        make_backend(dtype),
        16,
        groups=None if groups is None else groups[kept],
    )
    return in_memory, ChunkedPixels(arrays, reader, used, threads=2)


def one_pass(pixels, seed=0):
    """The sites of a pass, and the sum of the values of the rows."""
    frequencies = np.random.default_rng(seed).normal(size=(D, 2))
    space = WeightSpace(pixels, frequencies, np.array([0.1, 0.2]))
    [found] = space.evaluate(QUADRATIC, [0], [some_gaussian(seed, 2 * D)])
    return found


# Passes


@given(chunk_sizes, st.booleans(), st.sampled_from([None, (0.5, 3.0)]))
@settings(max_examples=25)
def test_chunks_change_sums_only_by_rounding(sizes, weighted, factors):
    in_memory, chunked = in_memory_and_chunked(sizes, weighted, factors=factors)
    with dask.config.set(scheduler="synchronous"):
        found, expected = one_pass(chunked), one_pass(in_memory)
    assert chunked.n_rows == in_memory.n_rows
    assert_allclose(found[1], expected[1], rtol=1e-12)
    for name, part in vars(expected[0]).items():
        assert_allclose(getattr(found[0], name), part, rtol=1e-12, atol=1e-12)


def test_one_chunk_gives_the_same_bits_as_an_array():
    in_memory, chunked = in_memory_and_chunked((N,))
    assert_same(one_pass(chunked), one_pass(in_memory))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_schedulers_and_threads_do_not_change_a_bit(dtype):
    _, chunked = in_memory_and_chunked((7,) * 17 + (1,), dtype=dtype)
    with dask.config.set(scheduler="synchronous"):
        expected = one_pass(chunked)
    for workers in (1, 2, 5):
        with dask.config.set(scheduler="threads", num_workers=workers):
            assert_same(one_pass(chunked), expected)


def test_the_parameters_are_one_node_and_each_chunk_one_task(monkeypatch):
    graphs = []

    def compute(*collections):
        graphs.extend(dict(collection.__dask_graph__()) for collection in collections)
        return dask.compute(*collections)

    monkeypatch.setattr(dask_data, "dask", DaskWith(compute))
    n_chunks = 20
    _, labels, *_ = some_arrays()
    rows = da.map_blocks(np.sqrt, da.ones((N, 2), chunks=(N // n_chunks, 2)))
    arrays = LabelledArrays.align(rows, da.from_array(labels, chunks=N // n_chunks))
    reader = PixelReader(np.array(["clear", "cloud"]), None, STANDARDISATION, HOST, 16)
    one_pass(ChunkedPixels(arrays, reader, (N // n_chunks,) * n_chunks))
    (graph,) = graphs
    names = [key[0] if isinstance(key, tuple) else key for key in graph]
    assert sum(name.startswith("tuple-") for name in names) == 1
    # Reading a chunk and computing its rows is part of its task.
    assert sum(name.startswith("_run-") for name in names) == n_chunks
    sums = sum(name.startswith("_add-") for name in names)
    assert sums == -(-n_chunks // FAN_IN) + 1
    labels_nodes = n_chunks
    assert len(graph) <= 1 + n_chunks + sums + labels_nodes


class DaskWith:
    """dask with another compute."""

    def __init__(self, compute):
        self.compute = compute

    def __getattr__(self, name):
        return getattr(dask, name)


def test_a_chunk_task_limits_blas_to_one_thread():
    seen = []

    def threads(chunk):
        seen.extend(
            pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"
        )

    _, chunked = in_memory_and_chunked()
    dask.compute(chunked.arrays.each(threads))
    assert seen
    assert set(seen) == {1}


# Rows by number


@given(chunk_sizes, st.booleans(), st.data())
@settings(max_examples=25)
def test_taken_pixels_are_those_of_the_same_row_numbers_in_an_array(sizes, weighted, data):
    in_memory, chunked = in_memory_and_chunked(sizes, weighted)
    chosen = data.draw(st.sets(st.integers(0, in_memory.n_rows - 1), min_size=1))
    chosen = np.array(sorted(chosen))
    with dask.config.set(scheduler="synchronous"):
        found, expected = chunked.take(chosen), in_memory.take(chosen)
    assert_array_equal(found.rows, expected.rows)
    assert_array_equal(found.codes, expected.codes)
    assert (found.weight is None) == (expected.weight is None) == (not weighted)
    if weighted:
        assert_array_equal(found.weight, expected.weight)
    assert found.threads == 2
    # Groups are numbered again, in the same order; a single group counts as none.
    order = np.unique(expected.groups, return_inverse=True)[1]
    if order.any():
        assert_array_equal(found.groups, order)
    else:
        assert found.groups is None


def test_all_pixels_can_be_gathered():
    in_memory, chunked = in_memory_and_chunked()
    assert_array_equal(chunked.gather().rows, in_memory.rows)


def test_chunks_without_chosen_rows_are_not_read():
    read = []

    def note(x, block_id):
        read.append(block_id[0])
        return x

    rows = da.ones((30, 1), chunks=(10, 1)).map_blocks(note, meta=np.ones((0, 0)))
    arrays = LabelledArrays.align(rows, np.arange(30) % 2)
    reader = PixelReader(
        np.array([0, 1]), None, Standardisation(np.zeros(1), np.ones(1)), HOST, 16
    )
    ChunkedPixels(arrays, reader, (10, 10, 10)).take(np.array([3, 25]))
    assert sorted(read) == [0, 2]


# Functions and checks


def test_a_function_of_each_chunk_is_given_its_pixels():
    _, chunked = in_memory_and_chunked()
    sums = compute(chunked.each(lambda chunk, reader: reader(chunk).codes.sum()))
    in_memory, _ = in_memory_and_chunked()
    assert len(sums) == 3
    assert sum(sums) == in_memory.codes.sum()


def test_the_first_row_of_positive_weight_too_far_out_is_named():
    x, labels, _, _ = some_arrays()
    x[[20, 60, 110], 1] = 10.0 * PHASE_LIMIT
    weight = np.ones(N)
    weight[20] = 0.0
    arrays = LabelledArrays.align(da.from_array(x, chunks=(50, 2)), labels, weight)
    reader = PixelReader(CLASSES, None, STANDARDISATION, HOST, 16)
    chunked = ChunkedPixels(arrays, reader, (49, 50, 20))
    with pytest.raises(InputError, match=r"Row 60 .*\n.*column 1"):
        chunked.require_phases(np.ones((1, 2)), str)


def test_unknown_chunk_sizes_are_an_error_with_a_remedy():
    x = da.ones((30, 2), chunks=(10, 2))
    unknown = x[da.ones(30, chunks=10) > 0]
    with pytest.raises(InputError, match="compute_chunk_sizes"):
        LabelledArrays.align(unknown, np.ones(30))


@pytest.mark.parametrize("shape", [(29,), (30, 1), ()])
def test_labels_of_another_shape_are_an_error(shape):
    with pytest.raises(InputError, match="X has 30 rows, y has shape"):
        LabelledArrays.align(da.ones((30, 2), chunks=(10, 2)), da.ones(shape))


# Mapping rows


def test_mapped_rows_are_those_of_the_array_and_each_chunk_is_read_once():
    read, lock = [], threading.Lock()

    def note(x, block_id):
        with lock:
            read.append(block_id[0])
        return x

    x = np.arange(60.0).reshape(30, 2)
    rows = da.from_array(x, chunks=((10, 0, 20), (2,))).map_blocks(note, meta=np.ones((0, 0)))

    def double(part, first_row):
        assert part[0, 0] == 2 * first_row
        return 2.0 * part

    assert_array_equal(map_rows(double, rows, 2), 2.0 * x)
    assert sorted(read) == [0, 1, 2]


def test_of_several_errors_that_of_the_first_chunk_is_raised():
    slow = threading.Event()

    def refuse(part, first_row):
        if first_row == 10:
            slow.wait(5.0)
        if first_row:
            slow.set()
            raise NotFiniteError("NaN", first_row, "0")
        return part

    with (
        dask.config.set(scheduler="threads", num_workers=3),
        pytest.raises(NotFiniteError, match="row 10,"),
    ):
        map_rows(refuse, da.ones((30, 1), chunks=(10, 1)), 1)


def test_tasks_run_in_this_process_by_default():
    _, chunked = in_memory_and_chunked()
    (pids,) = dask.compute(chunked.arrays.each(lambda chunk: os.getpid()))
    assert set(pids) == {os.getpid()}
