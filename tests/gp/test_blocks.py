"""How data enter: blocks in order, summaries without cancellation, BLAS given back."""

import os
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from threadpoolctl import ThreadpoolController, threadpool_limits

from undulatus.errors import InputError, NotFiniteError, PhaseTooLargeError, UndulatusError
from undulatus.gp import blocks
from undulatus.gp.blocks import (
    Pixels,
    Standardisation,
    block_rows,
    count_threads,
    map_blocks,
    require_finite,
    require_phases,
    single_threaded_blas,
    summarise,
)
from undulatus.gp.fourier import PHASE_LIMIT

seeds = st.integers(0, 2**32 - 1)


# Mapping


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 4))
def test_blocks_come_in_order_and_cover_every_row_once(n_rows, rows_per_block, threads):
    parts = list(map_blocks(lambda rows: rows, n_rows, rows_per_block, threads))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n_rows))
    assert all(part.stop - part.start == rows_per_block for part in parts[:-1])


def test_slow_blocks_do_not_overtake_each_other():
    def part(rows):
        time.sleep(0.002 * (rows.start % 3))
        return rows.start

    assert list(map_blocks(part, 30, 1, 4)) == list(range(30))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_no_more_than_two_blocks_a_thread_wait_to_be_taken(threads):
    lock, begun, taken, most = threading.Lock(), 0, 0, 0

    def part(rows):
        nonlocal begun, most
        with lock:
            begun += 1
            most = max(most, begun - taken)

    for _ in map_blocks(part, 200, 1, threads):
        with lock:
            taken += 1
        time.sleep(0.0005)
    assert begun == taken == 200
    # Two a thread, and the one that is being handed over.
    assert most <= 2 * threads + 1


def set_blas_threads(number):
    # The thread that sets a number may be the only one allowed to change it while it lives.
    setter = threading.Thread(
        target=threadpool_limits, args=(number,), kwargs={"user_api": "blas"}
    )
    setter.start()
    setter.join()


@pytest.fixture
def two_blas_threads():
    (before,) = set(blas_threads())
    set_blas_threads(2)
    assert set(blas_threads()) == {2}
    yield
    set_blas_threads(before)


@pytest.mark.usefixtures("two_blas_threads")
@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_block_reaches_the_caller_and_gives_blas_back(threads):
    before = blas_threads()

    def part(rows):
        if rows.start == 5:
            raise LookupError("the fifth")
        return rows.start

    found = []
    with pytest.raises(LookupError, match="the fifth"):
        found.extend(map_blocks(part, 50, 1, threads))
    assert found == [0, 1, 2, 3, 4]
    assert blas_threads() == before


@pytest.mark.usefixtures("two_blas_threads")
def test_a_caller_who_leaves_early_stops_the_blocks_and_gives_blas_back():
    before, begun = blas_threads(), []
    mapped = map_blocks(lambda rows: begun.append(rows.start), 1000, 1, 2)
    next(mapped)
    mapped.close()
    assert len(begun) <= 2 * 2 + 1
    assert blas_threads() == before


def test_the_rows_in_a_block_depend_on_the_model_alone():
    assert block_rows(200, 8) == 2560
    for n_features in (2, 50, 200, 5000, 10**6):
        for itemsize in (4, 8):
            rows = block_rows(n_features, itemsize)
            assert rows % 256 == 0
            assert 256 <= rows <= 8192


# Threads


def blas_threads():
    return [
        library["num_threads"]
        for library in ThreadpoolController().info()
        if library["user_api"] == "blas"
    ]


@pytest.mark.usefixtures("two_blas_threads")
def test_blas_is_held_to_one_thread_and_given_back():
    before = blas_threads()
    with single_threaded_blas():
        assert set(blas_threads()) == {1}
        with single_threaded_blas():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}
    assert blas_threads() == before


@pytest.mark.usefixtures("two_blas_threads")
def test_blas_is_given_back_after_an_error():
    before = blas_threads()
    with pytest.raises(LookupError), single_threaded_blas():
        raise LookupError
    assert blas_threads() == before


@pytest.fixture
def interleaved():
    """What two threads see when the second comes before the first goes, and goes after it."""
    first_in, second_in, first_out, second_out = (threading.Event() for _ in range(4))
    seen = {"before": set(blas_threads())}

    def first():
        with single_threaded_blas():
            first_in.set()
            second_in.wait(10)
        first_out.set()
        second_out.wait(10)
        seen["after both let go"] = set(blas_threads())

    def second():
        first_in.wait(10)
        with single_threaded_blas():
            second_in.set()
            first_out.wait(10)
            seen["after the first let go"] = set(blas_threads())
        second_out.set()

    workers = [threading.Thread(target=target) for target in (first, second)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
    return seen


def test_blas_stays_held_until_the_last_of_interleaved_threads_lets_go(
    two_blas_threads, interleaved
):
    assert interleaved["after the first let go"] == {1}


@pytest.mark.xfail(strict=True, reason="threadpoolctl lets only the first thread set it back")
def test_blas_is_given_back_by_whichever_thread_lets_go_last(two_blas_threads, interleaved):
    assert interleaved["after both let go"] == interleaved["before"]


@pytest.fixture
def four_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("n_jobs", "threads"), [(None, 4), (1, 1), (3, 3), (9, 9), (-1, 4), (-2, 3), (-4, 1), (-50, 1)]
)
def test_jobs_are_counted_as_scikit_learn_does(n_jobs, threads):
    assert count_threads(n_jobs) == threads


@pytest.mark.usefixtures("four_cores")
@pytest.mark.parametrize(
    ("limit", "threads"), [("2", 2), ("1", 1), ("16", 4), ("", 4), ("0", 4), ("many", 4)]
)
def test_the_environment_can_only_lower_the_cores(monkeypatch, limit, threads):
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert count_threads(None) == threads
    assert count_threads(-1) == threads


@pytest.mark.usefixtures("four_cores")
def test_jobs_that_are_asked_for_by_number_are_given_whatever_the_environment(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert count_threads(3) == 3


# Summaries


def name_of(column):
    return f"column {column}"


@given(seeds, st.integers(1, 300), st.booleans(), st.integers(1, 3))
def test_a_summary_is_that_of_numpy_under_any_blocking(seed, n, weighted, threads):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [1.0, 1e-3, 1e3] + [0.0, 1e6, -5.0]
    weight = rng.uniform(0.0, 2.0, n) if weighted else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "block_rows", lambda d, itemsize: int(rng.integers(1, 100)))
        found = summarise(x, weight, threads, name_of)
    mean = np.average(x, axis=0, weights=weight)
    variance = np.average((x - mean) ** 2, axis=0, weights=weight)
    assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-12)
    # Block means are rounded to some eps |mean|, and their differences enter squared: relative
    # to a variance s², an error of the order eps |mean| / s (1e-7 in the second column).
    eps = np.finfo(float).eps
    allowed = 1e-12 * variance + 16 * eps * np.abs(mean) * (np.sqrt(variance) + eps * np.abs(mean))
    assert np.all(np.abs(found.variance - variance) <= allowed)
    assert_array_equal(found.low, x.min(axis=0))
    assert_array_equal(found.high, x.max(axis=0))
    assert_allclose(found.total_weight, n if weight is None else weight.sum(), rtol=1e-12)


def test_a_mean_far_off_does_not_swallow_the_variance():
    rng = np.random.default_rng(0)
    deviations = rng.normal(size=(5000, 1))
    x = 1e8 + deviations
    found = summarise(x, None, 1, name_of)
    # Each value is rounded to 1.5e-8 when it is stored; the variance of 1 is off by no more.
    assert_allclose(found.variance, deviations.var(axis=0), rtol=1e-7)


def test_rows_of_no_weight_count_for_nothing_in_the_moments(monkeypatch):
    monkeypatch.setattr(blocks, "block_rows", lambda d, itemsize: 4)
    x = np.random.default_rng(0).normal(size=(40, 2))
    weight = np.repeat([0.0, 1.0, 0.0, 2.0, 0.0], 8)
    found = summarise(x, weight, 1, name_of)
    assert_allclose(found.mean, np.average(x, axis=0, weights=weight), rtol=1e-12)
    assert np.all(np.isfinite(found.variance))


def test_threads_do_not_change_a_bit_of_a_summary(monkeypatch):
    monkeypatch.setattr(blocks, "block_rows", lambda d, itemsize: 37)
    x = np.random.default_rng(0).normal(size=(1000, 4))
    one, three = (summarise(x, None, threads, name_of) for threads in (1, 3))
    for name in ("mean", "variance", "low", "high"):
        assert_array_equal(getattr(one, name), getattr(three, name))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_bad_value_is_named_by_row_and_column(monkeypatch, bad, threads):
    monkeypatch.setattr(blocks, "block_rows", lambda d, itemsize: 7)
    x = np.zeros((40, 3))
    x[23, 1] = x[31, 0] = bad
    kind = "NaN" if np.isnan(bad) else "infinity"
    with pytest.raises(NotFiniteError, match=f"{kind}.*row 23, column 1") as caught:
        summarise(x, None, threads, str)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, UndulatusError)
    assert isinstance(caught.value, ValueError)


def test_values_whose_sum_overflows_are_finite_all_the_same():
    require_finite(np.full((3, 2), 1e308), name_of)
    require_finite(np.full((3, 2), 3e38, dtype=np.float32), name_of)


@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.bool_, np.float32])
def test_whole_numbers_and_singles_are_finite(dtype):
    require_finite(np.ones((3, 2), dtype=dtype), name_of)


def test_opposite_infinities_do_not_cancel():
    with pytest.raises(NotFiniteError, match="infinity"):
        require_finite(np.array([[np.inf, -np.inf]]), name_of)


def test_the_row_of_a_bad_value_counts_from_the_start_of_the_data():
    with pytest.raises(NotFiniteError, match="row 105, column 'B02'"):
        require_finite(np.array([[0.0]] * 5 + [[np.nan]]), lambda i: "'B02'", first_row=100)


# Phases


def test_a_row_too_far_out_is_named_with_its_largest_column():
    x = np.ones((4, 3))
    x[2] = [0.0, -3.0 * PHASE_LIMIT, 1.0]
    with pytest.raises(PhaseTooLargeError, match=r"Row 12 .*(\n.*)*column 1") as caught:
        require_phases(x, np.eye(3), str, first_row=10)
    assert isinstance(caught.value, InputError)
    assert "standardize=True" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_within_reach_pass(dtype):
    x = np.full((2, 1), 0.99 * PHASE_LIMIT, dtype=dtype)
    require_phases(x, np.ones((5, 1)), str)
    require_phases(np.empty((0, 1), dtype), np.ones((5, 1)), str)


# Standardisation


def test_standardised_rows_have_mean_zero_and_unit_variance():
    x = np.random.default_rng(0).normal(size=(500, 3)) * [15.0, 0.2, 4.0] + [280.0, 0.4, -3.0]
    summary = summarise(x, None, 1, name_of)
    z = Standardisation(summary.mean, np.sqrt(summary.variance))(x, np.float64)
    assert_allclose(z.mean(axis=0), 0.0, atol=1e-12)
    assert_allclose(z.std(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize("stored", [np.float32, np.float64])
def test_kelvins_keep_their_digits_in_single_precision(stored):
    rng = np.random.default_rng(0)
    centre, scale = np.array([281.3]), np.array([0.37])
    kelvins = (centre + scale * rng.normal(size=(400, 1))).astype(stored)
    found = Standardisation(centre, scale)(kelvins, np.float32)
    assert found.dtype == np.float32
    exact = (kelvins.astype(np.float64) - centre) / scale
    # Nearby singles differ exactly, so what is left is the rounding of centre, scale and
    # quotient, for doubles of the quotient alone: 1e-4 would be lost by rounding 281 to half
    # a unit and dividing by 0.37 once for each row; here it is the same shift for all.
    eps = float(np.finfo(np.float32).eps)
    shift = eps / 2 * centre / scale if stored == np.float32 else 0.0
    assert np.all(np.abs(found - exact) <= shift + 1.5 * eps * np.abs(exact) + 1e-12)
    apart, exactly_apart = np.diff(found, axis=0), np.diff(exact, axis=0)
    assert np.all(np.abs(apart - exactly_apart) <= 8 * eps)


@pytest.mark.parametrize("stored", [np.int16, np.uint8, np.int32, np.bool_])
def test_whole_numbers_are_standardised_exactly(stored):
    rows = np.array([[0, 1], [1, 0], [1, 1]], dtype=stored)
    found = Standardisation(np.array([0.5, 0.25]), np.array([0.5, 2.0]))(rows, np.float64)
    assert_array_equal(found, (rows.astype(np.float64) - [0.5, 0.25]) / [0.5, 2.0])


def test_standardised_rows_are_contiguous_and_apart_from_what_they_came_from():
    rows = np.asfortranarray(np.random.default_rng(0).normal(size=(6, 3)))
    kept = rows.copy()
    found = Standardisation(np.zeros(3), np.ones(3))(rows, np.float64)
    assert found.flags.c_contiguous
    found += 1.0
    assert_array_equal(rows, kept)


# Pixels


def some_pixels(n=20, weight=None, dtype=np.float64, rows_per_block=6, threads=1):
    rng = np.random.default_rng(0)
    return Pixels(
        rng.normal(size=(n, 3)),
        rng.random(n) < 0.5,
        weight,
        Standardisation(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])),
        np.dtype(dtype),
        rows_per_block,
        threads,
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_block_holds_standardised_rows_signed_targets_and_weights(dtype):
    weight = np.linspace(0.5, 2.0, 20)
    pixels = some_pixels(weight=weight, dtype=dtype)
    block = pixels.block(slice(4, 9))
    expected = pixels.standardisation(pixels.rows[4:9], dtype)
    assert_array_equal(block.x, expected)
    assert_array_equal(block.v, np.where(pixels.positive[4:9], 0.5, -0.5))
    assert_array_equal(block.weight, weight[4:9].astype(dtype))
    assert {block.x.dtype, block.v.dtype, block.weight.dtype} == {np.dtype(dtype)}


def test_without_weights_every_pixel_weighs_one():
    assert_array_equal(some_pixels().block(slice(0, 5)).weight, np.ones(5))


def test_pixels_know_their_size():
    pixels = some_pixels(20)
    assert (pixels.n_rows, pixels.n_features) == (20, 3)


@pytest.mark.parametrize("threads", [1, 3])
def test_mapping_pixels_visits_every_block_in_order(threads):
    pixels = some_pixels(20, rows_per_block=6, threads=threads)
    starts = list(pixels.map(lambda block: (block.rows.start, len(block.x))))
    assert starts == [(0, 6), (6, 6), (12, 6), (18, 2)]


@pytest.mark.parametrize("weight", [None, np.arange(20.0)])
def test_taking_pixels_keeps_their_labels_and_weights(weight):
    pixels, chosen = some_pixels(weight=weight), np.array([1, 4, 17])
    taken, whole = pixels.take(chosen), pixels.block(slice(0, 20))
    block = taken.block(slice(0, 3))
    assert taken.n_rows == 3
    assert_array_equal(block.x, whole.x[chosen])
    assert_array_equal(block.v, whole.v[chosen])
    assert_array_equal(block.weight, whole.weight[chosen])
