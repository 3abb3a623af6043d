"""Moments of features and classes: any blocks, no cancellation, mistakes named by row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError, NotFiniteError, UndulatusError
from undulatus.gp import moments
from undulatus.gp.data import PHASE_LIMIT, Standardisation
from undulatus.gp.moments import (
    MOST_LABELS,
    FeatureMoments,
    LabelledChunk,
    apply_class_weights,
    count_classes,
    require_phases_of_rows,
    summarise,
)

seeds = st.integers(0, 2**32 - 1)

MOMENTS = ("total_weight", "mean", "squares", "low", "high")


# Summaries


def name_of(column):
    return f"column {column}"


@given(seeds, st.integers(1, 300), st.booleans(), st.integers(1, 3))
def test_a_summary_is_that_of_numpy_whatever_the_blocks(seed, n, weighted, threads):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [1.0, 1e-3, 1e3] + [0.0, 1e6, -5.0]
    weight = rng.uniform(0.0, 2.0, n) if weighted else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moments, "block_rows", lambda d, itemsize: int(rng.integers(1, 100)))
        found = summarise(x, weight, threads, name_of)
    mean = np.average(x, axis=0, weights=weight)
    variance = np.average((x - mean) ** 2, axis=0, weights=weight)
    assert_allclose(found.mean, mean, rtol=1e-12, atol=1e-12)
    # Block means are rounded to eps |mean| or so, and their differences enter squared: relative
    # to a variance s², an error of the order eps |mean| / s (1e-7 in the second column).
    eps = np.finfo(float).eps
    allowed = 1e-12 * variance + 16 * eps * np.abs(mean) * (np.sqrt(variance) + eps * np.abs(mean))
    assert np.all(np.abs(found.variance - variance) <= allowed)
    assert_array_equal(found.low, x.min(axis=0))
    assert_array_equal(found.high, x.max(axis=0))
    assert_allclose(found.total_weight, n if weight is None else weight.sum(), rtol=1e-12)


def test_a_mean_far_from_zero_does_not_spoil_the_variance():
    rng = np.random.default_rng(0)
    deviations = rng.normal(size=(5000, 1))
    x = 1e8 + deviations
    found = summarise(x, None, 1, name_of)
    # Each value is rounded to 1.5e-8 when stored, which changes a variance of 1 by no more.
    assert_allclose(found.variance, deviations.var(axis=0), rtol=1e-7)


def test_rows_of_weight_zero_do_not_count_in_the_moments(monkeypatch):
    monkeypatch.setattr(moments, "block_rows", lambda d, itemsize: 4)
    x = np.random.default_rng(0).normal(size=(40, 2))
    weight = np.repeat([0.0, 1.0, 0.0, 2.0, 0.0], 8)
    found = summarise(x, weight, 1, name_of)
    assert_allclose(found.mean, np.average(x, axis=0, weights=weight), rtol=1e-12)
    assert np.all(np.isfinite(found.variance))


def test_threads_do_not_change_a_bit_of_a_summary(monkeypatch):
    monkeypatch.setattr(moments, "block_rows", lambda d, itemsize: 37)
    x = np.random.default_rng(0).normal(size=(1000, 4))
    one, three = (summarise(x, None, threads, name_of) for threads in (1, 3))
    for name in ("mean", "variance", "low", "high"):
        assert_array_equal(getattr(one, name), getattr(three, name))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_bad_value_is_named_by_row_and_column(monkeypatch, bad, threads):
    monkeypatch.setattr(moments, "block_rows", lambda d, itemsize: 7)
    x = np.zeros((40, 3))
    x[23, 1] = x[31, 0] = bad
    kind = "NaN" if np.isnan(bad) else "infinity"
    with pytest.raises(NotFiniteError, match=f"{kind}.*row 23, column 1") as caught:
        summarise(x, None, threads, str)
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, UndulatusError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [1e200, 1e308])
def test_a_variance_that_overflows_is_an_error_that_names_its_column(value):
    x = np.random.default_rng(0).normal(size=(50, 2))
    x[3:9, 1] = value
    with pytest.raises(
        InputError, match=rf"column {name_of(1)} .* {value:.3g}".replace("+", r"\+")
    ):
        summarise(x, None, 2, name_of)


@given(seeds, st.integers(0, 5), st.integers(0, 5))
def test_moments_of_parts_add_up_to_those_of_the_whole(seed, n, m):
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(n + m, 2)), rng.uniform(0.5, 2.0, n + m)
    both = FeatureMoments.of_rows(x[:n], weight[:n]) + FeatureMoments.of_rows(x[n:], weight[n:])
    whole = FeatureMoments.of_rows(x, weight)
    for name in MOMENTS:
        assert_allclose(getattr(both, name), getattr(whole, name), rtol=1e-12, atol=1e-12)


def test_a_bad_value_of_a_chunk_is_named_by_its_row_in_the_whole():
    x = np.zeros((9, 2))
    x[7, 1] = np.nan
    with pytest.raises(NotFiniteError, match="row 107, column 1"):
        summarise(x, None, 1, str, 100)


# Classes


def some_chunk(seed=0, n=30, weighted=True, labels=("clear", "cloud")):
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 3, n).astype(float) if weighted else None
    return LabelledChunk(0, 100, rng.normal(size=(n, 2)), rng.choice(labels, n), weight, None)


def cut(chunk, *edges):
    for start, stop in zip((0, *edges), (*edges, len(chunk.rows)), strict=True):
        part = slice(start, stop)
        weight = None if chunk.weight is None else chunk.weight[part]
        yield LabelledChunk(0, 100 + start, chunk.rows[part], chunk.labels[part], weight, None)


def sum_of(chunks):
    first, *rest = map(count_classes, chunks)
    return sum(rest, start=first)


@given(seeds, st.booleans(), st.integers(0, 30), st.integers(0, 30))
def test_classes_of_chunks_add_up_to_those_of_the_whole(seed, weighted, one, other):
    chunk = some_chunk(seed, weighted=weighted)
    low, high = sorted((one, other))
    whole, parts = count_classes(chunk), sum_of(cut(chunk, low, high))
    assert_array_equal(parts.labels, whole.labels)
    assert_array_equal(parts.totals, whole.totals)
    assert sum(parts.used) == whole.used[0]


def test_the_weight_of_a_class_is_that_of_its_rows():
    chunk = some_chunk()
    found = count_classes(chunk)
    assert found.used == (np.count_nonzero(chunk.weight),)
    assert found.labels.tolist() == ["clear", "cloud"]
    for label, total in zip(found.labels, found.totals, strict=True):
        assert total == chunk.weight[chunk.labels == label].sum()


def test_of_many_labels_some_are_collected():
    chunk = some_chunk(n=9000, labels=np.arange(MOST_LABELS + 100))
    found = sum_of(cut(chunk, 150))
    assert len(found.labels) == len(found.totals) == MOST_LABELS


def test_chunks_of_two_different_classes_each_have_four_classes_together():
    parts = [some_chunk(labels=labels) for labels in (("a", "b"), ("c", "d"), ("a", "b"))]
    found = sum_of(parts)
    assert found.labels.tolist() == ["a", "b", "c", "d"]
    once, twice = (parts[part].weight.sum() for part in (1, 0))
    assert_allclose(found.totals[:2].sum(), 2.0 * twice)
    assert_allclose(found.totals[2:].sum(), once)


@pytest.mark.parametrize(
    ("labels", "weight", "message"),
    [
        ([0.0, np.nan], None, "y contains NaN"),
        ([0.0, 1.0], [1.0, np.inf], "infinity in sample_weight"),
        ([0.0, 1.0], [1.0, np.nan], "NaN or infinity in sample_weight"),
        ([0.0, 1.0], [1.0, -1.0], "Negative values.*sample_weight"),
    ],
)
def test_unusable_labels_and_weights_are_errors(labels, weight, message):
    weight = None if weight is None else np.array(weight)
    chunk = LabelledChunk(0, 0, np.zeros((2, 1)), np.array(labels), weight, None)
    with pytest.raises(InputError, match=message):
        count_classes(chunk)


# Weights and far rows


def test_class_weights_multiply_sample_weights():
    positive, weight = np.array([True, False, True]), np.array([1.0, 2.0, 0.0])
    class_weights = np.array([3.0, 5.0])
    assert apply_class_weights(None, positive, weight) is weight
    assert_array_equal(apply_class_weights(class_weights, positive, None), [5.0, 3.0, 5.0])
    assert_array_equal(apply_class_weights(class_weights, positive, weight), [5.0, 6.0, 0.0])


def test_a_row_too_far_out_is_named_by_its_row_in_the_whole_unless_absent():
    rows, plain = np.zeros((20, 1)), Standardisation(np.zeros(1), np.ones(1))
    rows[[4, 11]] = 2.0 * PHASE_LIMIT
    absent = np.arange(20) == 4
    with pytest.raises(InputError, match="Row 104 "):
        require_phases_of_rows(rows, None, plain, np.ones((1, 1)), str, 100)
    with pytest.raises(InputError, match="Row 111 "):
        require_phases_of_rows(rows, absent, plain, np.ones((1, 1)), str, 100)
    absent[11] = True
    require_phases_of_rows(rows, absent, plain, np.ones((1, 1)), str, 100)
