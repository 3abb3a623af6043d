"""Estimates over runs, times at sizes that were not tried, and numbers in words."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from undulatus.paper.verdicts import Estimate, estimate, time_at_size


def by_run(*values):
    return pd.Series(values, pd.Index(range(len(values)), name="run"))


def test_an_estimate_is_the_mean_with_its_standard_error():
    found = estimate(by_run(1.0, 2.0, 6.0))
    assert (found.mean, found.runs) == (3.0, 3)
    assert_allclose(found.error, np.sqrt(7.0 / 3.0), rtol=1e-12)


def by_setting(values):
    index = pd.MultiIndex.from_tuples(values, names=["D", "run"])
    return pd.Series(list(values.values()), index)


def test_settings_count_equally_and_the_error_is_between_the_means_of_runs():
    found = estimate(by_setting({(10, 0): 1.0, (50, 0): 3.0, (10, 1): 2.0, (50, 1): 6.0}))
    # Runs 2 and 4: mean 3, error 1.
    assert (found.mean, found.error, found.runs) == (3.0, 1.0, 2)


def test_a_setting_with_fewer_runs_counts_in_the_mean_but_not_in_the_error():
    found = estimate(by_setting({(10, 0): 1.0, (10, 1): 3.0, (50, 0): 100.0}))
    assert (found.mean, found.error, found.runs) == (51.0, 1.0, 2)


def test_there_is_no_error_if_no_setting_had_all_runs():
    found = estimate(by_setting({(10, 0): 1.0, (50, 1): 3.0}))
    assert found.mean == 2.0
    assert np.isnan(found.error)


def test_only_the_sign_of_a_single_run_counts():
    assert np.isnan(estimate(by_run(1.0)).error)
    assert estimate(by_run(1.0)).above()
    assert not estimate(by_run(-1.0)).above()
    assert not estimate(by_run(0.0)).above()


def test_no_runs_have_no_estimate():
    assert estimate(by_run()) is None
    assert estimate(by_run(np.nan)) is None


@pytest.mark.parametrize(("mean", "clear"), [(2.1, True), (1.9, False), (-2.1, False)])
def test_a_difference_is_clear_beyond_two_standard_errors(mean, clear):
    assert Estimate(mean, 1.0, 5).above() is clear
    assert Estimate(mean + 3.0, 1.0, 5).above(3.0) is clear


@given(st.floats(0.1, 3.5), st.floats(1e-9, 1e3))
def test_a_power_law_is_followed_exactly(exponent, first):
    known = {n: first * (n / 1000) ** exponent for n in (1000, 2000, 5000)}
    found = time_at_size(known, 15_000)
    assert found.extrapolated
    assert found.sizes == (1000, 2000, 5000)
    # Logarithms up to 30 have errors of 1e-14; the slope divides them by a span of 1.6.
    assert_allclose(found.exponent, exponent, rtol=0, atol=1e-12)
    assert_allclose(found.seconds, first * 15.0**exponent, rtol=1e-10)


def test_a_size_that_was_tried_is_not_extrapolated():
    found = time_at_size({1000: 1.0, 14_990: 7.0}, 15_000)
    assert (found.seconds, found.n, found.extrapolated) == (7.0, 14_990, False)


def test_exponents_are_clipped_to_their_bounds():
    assert time_at_size({1000: 1.0, 2000: 1.0}, 4000, least=1.0).seconds == 2.0
    assert time_at_size({1000: 1.0, 2000: 8.0}, 4000, most=2.0).seconds == 32.0


@pytest.mark.parametrize("known", [{}, {1000: 1.0}, {100: 1.0, 140: 2.0}, {1000: 0.0, 2000: 1.0}])
def test_one_size_or_a_hundredfold_distance_is_not_extrapolated(known):
    assert time_at_size(known, 15_000) is None
