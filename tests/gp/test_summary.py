"""Mean, variance and range of features: any blocks, no cancellation, errors with a place."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError, NotFiniteError, UndulatusError
from undulatus.gp import summary
from undulatus.gp.summary import Spread, summarise

seeds = st.integers(0, 2**32 - 1)


def name_of(column):
    return f"column {column}"


@given(seeds, st.integers(1, 300), st.booleans(), st.integers(1, 3))
def test_a_summary_is_that_of_numpy_under_any_blocking(seed, n, weighted, threads):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3)) * [1.0, 1e-3, 1e3] + [0.0, 1e6, -5.0]
    weight = rng.uniform(0.0, 2.0, n) if weighted else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "block_rows", lambda d, itemsize: int(rng.integers(1, 100)))
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
    monkeypatch.setattr(summary, "block_rows", lambda d, itemsize: 4)
    x = np.random.default_rng(0).normal(size=(40, 2))
    weight = np.repeat([0.0, 1.0, 0.0, 2.0, 0.0], 8)
    found = summarise(x, weight, 1, name_of)
    assert_allclose(found.mean, np.average(x, axis=0, weights=weight), rtol=1e-12)
    assert np.all(np.isfinite(found.variance))


def test_threads_do_not_change_a_bit_of_a_summary(monkeypatch):
    monkeypatch.setattr(summary, "block_rows", lambda d, itemsize: 37)
    x = np.random.default_rng(0).normal(size=(1000, 4))
    one, three = (summarise(x, None, threads, name_of) for threads in (1, 3))
    for name in ("mean", "variance", "low", "high"):
        assert_array_equal(getattr(one, name), getattr(three, name))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_bad_value_is_named_by_row_and_column(monkeypatch, bad, threads):
    monkeypatch.setattr(summary, "block_rows", lambda d, itemsize: 7)
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


@given(seeds, st.integers(0, 5), st.integers(0, 5), st.floats(0.1, 10.0))
def test_a_heavier_part_counts_as_its_rows_at_that_weight(seed, n, m, factor):
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(n + m, 2)), rng.uniform(0.5, 2.0, n + m)
    both = Spread.of(x[:n], weight[:n]).times(factor) + Spread.of(x[n:], weight[n:])
    weight[:n] *= factor
    whole = Spread.of(x, weight)
    for name in ("total_weight", "mean", "squares", "low", "high"):
        assert_allclose(getattr(both, name), getattr(whole, name), rtol=1e-12, atol=1e-12)
