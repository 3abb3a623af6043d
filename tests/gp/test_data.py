"""Pixels in blocks: their order, their digits, checks of values, rows by number."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError, NotFiniteError, PhaseTooLargeError
from undulatus.gp.backends import make_backend
from undulatus.gp.data import (
    FARTHEST,
    PHASE_LIMIT,
    Pixels,
    Standardisation,
    Warp,
    block_rows,
    map_blocks,
    read_rows,
    require_finite,
    require_lengths,
    require_phases,
    unmasked,
)

seeds = st.integers(0, 2**32 - 1)


# Mapping blocks


@given(st.integers(0, 60), st.integers(1, 20), st.integers(1, 4))
def test_blocks_come_in_order_and_cover_every_row_once(n_rows, rows_per_block, threads):
    parts = list(map_blocks(lambda rows: rows, n_rows, rows_per_block, threads))
    assert [i for part in parts for i in range(part.start, part.stop)] == list(range(n_rows))
    assert all(part.stop - part.start == rows_per_block for part in parts[:-1])


def test_blocks_come_in_order_whatever_their_speed():
    def part(rows):
        time.sleep(0.002 * (rows.start % 3))
        return rows.start

    assert list(map_blocks(part, 30, 1, 4)) == list(range(30))


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_at_most_two_blocks_per_thread_are_in_progress(threads):
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
    # Two per thread, and the one that is being yielded.
    assert most <= 2 * threads + 1


def test_a_given_pool_is_used_and_stays_open():
    def part(rows):
        return rows.start, threading.current_thread().name

    with ThreadPoolExecutor(2, thread_name_prefix="given") as pool:
        for _ in range(3):
            starts, names = zip(*map_blocks(part, 20, 3, 2, pool), strict=True)
            assert starts == tuple(range(0, 20, 3))
            assert all(name.startswith("given") for name in names)


@pytest.mark.parametrize("leave", ["by an error", "early"])
def test_a_given_pool_stays_open_after_an_error_or_an_early_end(leave):
    def part(rows):
        if rows.start == 5 and leave == "by an error":
            raise LookupError("the fifth")
        return rows.start

    with ThreadPoolExecutor(2) as pool:
        mapped = map_blocks(part, 50, 1, 2, pool)
        if leave == "early":
            next(mapped)
            mapped.close()
        else:
            with pytest.raises(LookupError, match="the fifth"):
                list(mapped)
        assert pool.submit(lambda: "alive").result(10) == "alive"


def test_with_one_thread_blocks_run_in_the_calling_thread():
    def part(rows):
        return threading.current_thread()

    with ThreadPoolExecutor(1) as pool:
        assert set(map_blocks(part, 20, 3, 1, pool)) == {threading.current_thread()}


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_block_is_raised_and_blas_restored(threads, blas_threads):
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


def test_an_early_end_stops_the_blocks_and_restores_blas(blas_threads):
    before, begun = blas_threads(), []
    mapped = map_blocks(lambda rows: begun.append(rows.start), 1000, 1, 2)
    next(mapped)
    mapped.close()
    assert len(begun) <= 2 * 2 + 1
    assert blas_threads() == before


def test_the_number_of_rows_in_a_block_is_limited_and_a_multiple_of_256():
    assert block_rows(200, 8) == 10_240
    for n_features in (2, 50, 200, 5000, 10**6):
        for itemsize in (4, 8):
            rows = block_rows(n_features, itemsize)
            assert rows % 256 == 0
            assert 256 <= rows <= 16_384


# Finite values


def name_of(column):
    return f"column {column}"


def test_finite_values_whose_sum_overflows_pass():
    require_finite(np.full((3, 2), 1e308), name_of)
    require_finite(np.full((3, 2), 3e38, dtype=np.float32), name_of)


@pytest.mark.parametrize("dtype", [np.int16, np.uint8, np.bool_, np.float32])
def test_integers_and_single_precision_values_pass(dtype):
    require_finite(np.ones((3, 2), dtype=dtype), name_of)


def test_opposite_infinities_do_not_cancel():
    with pytest.raises(NotFiniteError, match="infinity"):
        require_finite(np.array([[np.inf, -np.inf]]), name_of)


def test_the_row_of_a_bad_value_is_counted_from_the_first_row_of_the_data():
    with pytest.raises(NotFiniteError, match="row 105, column 'B02'"):
        require_finite(np.array([[0.0]] * 5 + [[np.nan]]), lambda i: "'B02'", first_row=100)


# Lengths of rows


def test_a_row_too_far_out_is_an_error_with_its_number_and_largest_column():
    x = np.ones((4, 3))
    x[2] = [0.0, -3.0 * PHASE_LIMIT, 1.0]
    with pytest.raises(PhaseTooLargeError, match=r"Row 12 .*(\n.*)*column 1") as caught:
        require_phases(x, np.eye(3), str, first_row=10)
    assert isinstance(caught.value, InputError)
    assert "standardize=True" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_within_the_limit_pass(dtype):
    x = np.full((2, 1), 0.99 * PHASE_LIMIT, dtype=dtype)
    require_phases(x, np.ones((5, 1)), str)


def test_the_longest_frequency_sets_the_limit():
    x = np.full((1, 2), 0.1 * PHASE_LIMIT)
    require_phases(x, np.eye(2), str)
    with pytest.raises(PhaseTooLargeError):
        require_phases(x, np.array([[1.0, 0.0], [0.0, 10.0]]), str)


def test_with_zero_frequencies_any_row_passes():
    require_phases(np.full((2, 1), 1e3 * PHASE_LIMIT), np.zeros((3, 1)), str)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_may_be_as_long_as_the_limit_but_not_longer(dtype):
    x = np.array([[1.0, 1.0], [3.0, -4.0], [0.0, 2.0]], dtype=dtype)
    require_lengths(x, 5.0, str)
    with pytest.raises(PhaseTooLargeError, match=r"Row 101 .*\n.*-4 .*column 1"):
        require_lengths(x, np.nextafter(5.0, 0.0), str, first_row=100)


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e200, np.nan])
def test_a_length_that_overflows_is_too_long(value):
    x = np.array([[1.0, 1.0], [0.0, value]])
    with pytest.raises(PhaseTooLargeError, match=r"Row 1 .*\n.*column 1"):
        require_lengths(x, 1e150, str)


def test_the_error_names_row_value_and_column_with_a_remedy():
    message = str(PhaseTooLargeError(7, "'IR_108'", -1.5e9))
    assert message.startswith("Row 7 ")
    assert "-1.5e+09 (standardised) in column 'IR_108'" in message
    assert "Mask fill values" in message


# Standardisation


def test_standardised_rows_have_mean_zero_and_unit_variance():
    x = np.random.default_rng(0).normal(size=(500, 3)) * [15.0, 0.2, 4.0] + [280.0, 0.4, -3.0]
    z = Standardisation(x.mean(axis=0), x.std(axis=0))(x, np.float64)
    assert_allclose(z.mean(axis=0), 0.0, atol=1e-12)
    assert_allclose(z.std(axis=0), 1.0, rtol=1e-12)


@pytest.mark.parametrize("stored", [np.float32, np.float64])
def test_kelvins_keep_their_digits_in_single_precision(stored):
    rng = np.random.default_rng(0)
    centre, scale = np.array([300.0003]), np.array([0.001])
    kelvins = (centre + scale * rng.normal(size=(400, 1))).astype(stored)
    found = Standardisation(centre, scale)(kelvins, np.float32)
    assert found.dtype == np.float32
    exact = (kelvins.astype(np.float64) - centre) / scale
    # Differences of nearby doubles are exact: what is left is the rounding of the quotient.
    assert_allclose(found, exact, rtol=np.finfo(np.float32).eps)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", ["<f8", ">f8", "<f4", ">f4", "<i2", ">i2"])
def test_equal_numbers_are_standardised_alike_whatever_type_they_are_stored_in(stored, dtype):
    rows = np.random.default_rng(0).integers(29_000, 31_000, size=(50, 3)).astype("<i8")
    standardisation = Standardisation(rows.mean(axis=0), np.array([0.3, 7.1, 900.0]))
    expected = standardisation(rows, dtype)
    assert_array_equal(standardisation(rows.astype(stored), dtype), expected)


@pytest.mark.parametrize("stored", [np.int16, np.uint8, np.int32, np.bool_])
def test_integers_are_standardised_exactly(stored):
    rows = np.array([[0, 1], [1, 0], [1, 1]], dtype=stored)
    found = Standardisation(np.array([0.5, 0.25]), np.array([0.5, 2.0]))(rows, np.float64)
    assert_array_equal(found, (rows.astype(np.float64) - [0.5, 0.25]) / [0.5, 2.0])


@pytest.mark.parametrize("order", ["C", "F"])
def test_standardised_rows_are_a_copy_with_contiguous_features(order):
    rows = np.array(np.random.default_rng(0).normal(size=(6, 3)), order=order)
    kept = rows.copy()
    found = Standardisation(np.zeros(3), np.ones(3))(rows, np.float64)
    assert found.flags.f_contiguous
    found += 1.0
    assert_array_equal(rows, kept)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_values_that_overflow_become_infinite_without_a_warning(dtype):
    found = Standardisation(np.zeros(2), np.full(2, 1e-3))(np.array([[1e308, -1e37]]), dtype)
    assert found[0, 0] == np.inf
    assert np.isinf(found[0, 1]) == (dtype == np.float32)


# Warped features


def warped(middle=(280.0, 0.1), width=(5.0, 0.01), centre=(0.2, 1.5), scale=(1.1, 0.6)):
    arrays = (np.array(values) for values in (middle, width, centre, scale))
    warp = Warp(next(arrays), next(arrays))
    return Standardisation(*arrays, warp)


@given(seeds)
def test_a_warped_feature_is_the_standardised_asinh_of_its_distance_from_the_middle(seed):
    rows = np.random.default_rng(seed).normal(size=(9, 2)) * [30.0, 3.0] + [280.0, 0.0]
    expected = (np.arcsinh((rows - [280.0, 0.1]) / [5.0, 0.01]) - [0.2, 1.5]) / [1.1, 0.6]
    assert_allclose(warped()(rows, np.float64), expected, rtol=1e-12, atol=1e-12)
    # The phases of single precision: an asinh of up to 10 is rounded to 1e-6.
    assert_allclose(warped()(rows, np.float32), expected, rtol=1e-6, atol=1e-5)


def test_the_given_rows_are_not_overwritten_by_a_warp():
    rows = np.random.default_rng(0).normal(size=(6, 2))
    kept = rows.copy()
    warped()(rows, np.float64)
    warped().linear_at(rows[0])
    assert_array_equal(rows, kept)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_warp_keeps_the_order_of_values(dtype):
    values = np.concatenate([-np.geomspace(1e20, 1e-3, 200), [0.0], np.geomspace(1e-3, 1e20, 200)])
    found = warped()(np.stack([values, values], axis=1), dtype)
    assert np.all(np.diff(found, axis=0) >= 0.0)
    # Within the width around the middle, and a thousand widths from it, values differ.
    for column, (middle, width) in enumerate([(280.0, 5.0), (0.1, 0.01)]):
        ladder = np.zeros((100, 2))
        ladder[:, column] = middle + width * np.linspace(-1e3, 1e3, 100)
        assert np.all(np.diff(warped()(ladder, dtype)[:, column]) > 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", ["<f8", ">f8", "<f4", ">f4", "<i2", ">i2"])
def test_equal_numbers_are_warped_alike_whatever_type_they_are_stored_in(stored, dtype):
    rows = np.random.default_rng(0).integers(-30_000, 30_000, size=(50, 2))
    assert_array_equal(warped()(rows.astype(stored), dtype), warped()(rows, dtype))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_huge_values_stay_finite_and_do_not_differ_beyond_the_end_of_a_warp(dtype):
    huge = np.finfo(np.float64).max
    rows = np.array([[huge, huge], [1e300, 1e300], [-huge, -huge], [-1e300, -1e300]])
    found = warped()(rows, dtype)
    assert np.all(np.isfinite(found))
    ends = (np.arcsinh(np.array([FARTHEST, -FARTHEST]))[:, None] - [0.2, 1.5]) / [1.1, 0.6]
    assert_allclose(found[::2], ends, rtol=1e-12 if dtype == np.float64 else 1e-6)
    assert_array_equal(found[::2], found[1::2])


@given(seeds, st.booleans())
def test_the_affine_map_at_a_row_touches_the_standardisation_there(seed, with_warp):
    standardisation = warped()
    if not with_warp:
        standardisation = Standardisation(standardisation.centre, standardisation.scale)
    rng = np.random.default_rng(seed)
    point = np.array([280.0, 0.1]) + rng.normal(size=2) * [20.0, 0.05]
    centre, scale = standardisation.linear_at(point)
    value = standardisation(point[None], np.float64)[0]
    # The centre is a difference of terms of size |point|, divided by the scale.
    slack = 1e-13 * (1.0 + np.abs(point / scale))
    assert np.all(np.abs((point - centre) / scale - value) <= slack)
    step = 1e-5 * np.array([5.0, 0.01])
    up, down = (standardisation((point + s * step)[None], np.float64)[0] for s in (1, -1))
    # A value of size 10 is rounded to 1e-15, after a raw value of size 280 was to 3e-14.
    assert_allclose(1.0 / scale, (up - down) / (2 * step), rtol=1e-6)


# Rows by number


class Sliceable:
    """Rows that can only be sliced, and that record which slices were read."""

    def __init__(self, rows):
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype
        self.read = []

    def __getitem__(self, key):
        assert isinstance(key, slice), "rows can only be read in slices"
        part = self._rows[key]
        self.read.append((key.start, len(part)))
        return part


@given(st.integers(1, 40), st.integers(1, 50), st.data())
def test_rows_read_by_number_are_the_same_from_an_array_and_from_slices(n, rows_per_block, data):
    rows = np.arange(2.0 * n).reshape(n, 2)
    chosen = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1)))), dtype=int)
    sliceable = Sliceable(rows)
    assert_array_equal(read_rows(sliceable, chosen, rows_per_block), rows[chosen])
    assert_array_equal(read_rows(rows, chosen, rows_per_block), rows[chosen])
    assert all(size <= rows_per_block for _, size in sliceable.read)
    # Slices that hold none of the chosen rows are not read.
    assert [start // rows_per_block for start, _ in sliceable.read] == sorted(
        set(chosen // rows_per_block)
    )


def test_no_rows_at_all_keep_their_columns_and_dtype():
    found = read_rows(Sliceable(np.ones((5, 3), dtype=np.int16)), np.empty(0, dtype=int), 2)
    assert found.shape == (0, 3)
    assert found.dtype == np.int16


# Pixels


def some_pixels(n=20, weight=None, dtype=np.float64, rows_per_block=6, threads=1, hold=np.array):
    rng = np.random.default_rng(0)
    return Pixels(
        hold(rng.normal(size=(n, 3))),
        rng.random(n) < 0.5,
        weight,
        Standardisation(np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])),
        make_backend(dtype),
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
    assert_array_equal(block.v, np.where(pixels.codes[4:9], 0.5, -0.5))
    assert_array_equal(block.weight, weight[4:9].astype(dtype))
    assert {block.x.dtype, block.v.dtype, block.weight.dtype} == {np.dtype(dtype)}


def test_without_weights_every_weight_is_one():
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
@pytest.mark.parametrize("hold", [np.array, Sliceable])
def test_taking_pixels_keeps_their_labels_and_weights(weight, hold):
    pixels, chosen = some_pixels(weight=weight, hold=hold), np.array([1, 4, 17])
    taken, whole = pixels.take(chosen), pixels.block(slice(0, 20))
    block = taken.block(slice(0, 3))
    assert taken.n_rows == 3
    assert taken.in_memory
    assert_array_equal(block.x, whole.x[chosen])
    assert_array_equal(block.v, whole.v[chosen])
    assert_array_equal(block.weight, whole.weight[chosen])


@pytest.mark.parametrize("weight", [None, np.arange(20.0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_picked_pixels_are_in_the_requested_order(weight, dtype):
    pixels, chosen = some_pixels(weight=weight, dtype=dtype), np.array([17, 1, 4, 1])
    picked, whole = pixels.pick(chosen), pixels.block(slice(0, 20))
    assert picked.rows == slice(0, 4)
    for name in ("x", "v", "weight"):
        found = getattr(picked, name)
        assert found.dtype == dtype
        assert_array_equal(found, getattr(whole, name)[chosen])


@pytest.mark.parametrize("weight", [None, np.arange(1.0, 21.0)])
def test_only_the_chosen_pixels_keep_their_weight(weight):
    pixels, chosen = some_pixels(weight=weight), np.array([1, 4, 17])
    kept = pixels.keep_weight_of(chosen)
    assert kept.rows is pixels.rows
    assert_array_equal(np.flatnonzero(kept.weight), chosen)
    assert_array_equal(kept.weight[chosen], pixels.pick(chosen).weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("hold", [np.array, Sliceable])
@pytest.mark.parametrize("with_warp", [False, True])
def test_pixels_standardised_once_and_for_all_are_those_read_in_blocks(dtype, hold, with_warp):
    pixels = some_pixels(weight=np.arange(20.0), dtype=dtype, hold=hold)
    if with_warp:
        warp = Warp(np.array([0.5, 0.0, -0.5]), np.array([0.1, 0.2, 3.0]))
        pixels = replace(pixels, standardisation=replace(pixels.standardisation, warp=warp))
    # In the other precision they are rounded once, as blocks in that precision are.
    for own in (np.float32, np.float64):
        expected = replace(pixels, xp=make_backend(own))
        found = pixels.standardised(own)
        assert found.in_memory
        assert found.standardisation is None
        assert found.rows.dtype == found.dtype == own
        for rows in (slice(0, 6), slice(3, 20)):
            one, other = found.block(rows), expected.block(rows)
            assert_array_equal(one.x, other.x)
            assert_array_equal(one.v, other.v)
            assert_array_equal(one.weight, other.weight)
        if hold is np.array:
            assert_array_equal(found.pick(np.array([7, 2])).x, expected.pick(np.array([7, 2])).x)


def test_arrays_and_memory_maps_are_in_memory_and_slices_are_not(tmp_path):
    np.save(tmp_path / "rows.npy", np.ones((3, 2)))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert some_pixels().in_memory
    assert some_pixels(hold=lambda rows: mapped).in_memory
    assert not some_pixels(hold=Sliceable).in_memory


def of_three_classes(**options):
    pixels = some_pixels(**options)
    codes = np.random.default_rng(1).integers(0, 3, pixels.n_rows).astype(np.uint8)
    return replace(pixels, codes=codes, n_classes=3)


def test_with_more_than_two_classes_each_latent_function_has_its_own_targets():
    pixels = of_three_classes(weight=np.arange(1.0, 21.0))
    assert (pixels.n_latents, some_pixels().n_latents) == (3, 1)
    block = pixels.block(slice(4, 15))
    assert_array_equal(block.codes, pixels.codes[4:15])
    for latent in range(3):
        expected = np.where(pixels.codes[4:15] == latent, 0.5, -0.5)
        one = block.against_rest(latent)
        assert_array_equal(one.v, expected)
        assert one.codes is None
        alone = pixels.against_rest(latent)
        assert alone.n_latents == 1
        assert_array_equal(alone.block(slice(4, 15)).v, expected)
        assert_array_equal(alone.block(slice(4, 15)).weight, block.weight)
    two = some_pixels()
    assert two.against_rest(0) is two
    block = two.block(slice(0, 5))
    assert block.against_rest(0) is block


def test_rows_of_several_estimators_are_picked_at_once():
    pixels = of_three_classes(weight=np.arange(1.0, 21.0)).standardised(np.float64)
    chosen = np.array([[3, 1, 17], [0, 1, 2]])
    picked = pixels.pick(chosen)
    assert picked.x.shape == (2, 3, 3)
    for i in range(2):
        own = pixels.pick(chosen[i])
        assert_array_equal(picked.x[i], own.x)
        assert_array_equal(picked.weight[i], own.weight)
        assert_array_equal(picked.against_rest(1).v[i], own.against_rest(1).v)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_total_is_over_all_blocks_in_order_with_the_parameters(threads):
    pixels = some_pixels(20, rows_per_block=6, threads=threads)
    seen = []

    def add_up(parts):
        seen.extend(parts)
        return len(seen)

    found = pixels.total(lambda block, a, b: (block.rows.start, a + b), add_up, 1, 2)
    assert (found, seen) == (4, [(0, 3), (6, 3), (12, 3), (18, 3)])


@pytest.mark.parametrize("hold", [np.array, Sliceable])
def test_pixels_on_a_device_are_the_same_in_other_blocks(hold):
    pytest.importorskip("torch", reason="torch is not installed")
    pixels = some_pixels(weight=np.arange(20.0), hold=hold)
    there = pixels.on("cpu", False, 5)
    assert there.in_memory
    assert there.standardisation is None
    whole, (block,) = pixels.block(slice(0, 20)), list(there.map(lambda block: block))
    for name in ("x", "v", "weight"):
        assert_allclose(np.asarray(getattr(block, name)), getattr(whole, name), rtol=1e-12)
    taken = there.take(np.array([1, 4, 17]))
    assert_allclose(np.asarray(taken.pick(np.arange(3)).x), whole.x[[1, 4, 17]], rtol=1e-12)


def test_masked_values_are_an_error():
    with pytest.raises(InputError, match="2 of its 6 values masked"):
        unmasked(np.ma.masked_greater(np.arange(6.0).reshape(3, 2), 3.5))
    assert_array_equal(unmasked(np.ma.array([1.0, 2.0])), [1.0, 2.0])
