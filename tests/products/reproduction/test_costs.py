"""Guesses of time and memory: their order, and how trials that are done correct them."""

import pytest

from undulatus.products.reproduction.costs import (
    expected_bytes,
    expected_seconds,
    in_order,
    time_left,
)


def done(trial, seconds):
    return trial.asked() | {"status": "done", "fit_seconds": seconds, "predict_seconds": 0.0}


@pytest.mark.parametrize("method", ["rff", "gpc"])
def test_more_rows_take_more_time_and_memory(method, trial):
    less, more = trial(method, n=1000), trial(method, n=50_000)
    assert expected_seconds(less) < expected_seconds(more)
    assert expected_bytes(less) < expected_bytes(more)


def test_exact_fits_grow_as_the_cube_of_rows(trial):
    small, large = (expected_seconds(trial("gpc", n=n)) for n in (10_000, 20_000))
    assert large == pytest.approx(8.0 * small, rel=1e-3)


def test_cheap_trials_come_first_and_regimes_side_by_side(trial):
    regimes = ("high", "low")
    trials = [
        trial(n=n, frequencies=100, run=run, regime=regime)
        for regime in regimes
        for n in (500_000, 1000)
        for run in (0, 1)
    ]
    order = [(one.n, one.regime, one.run) for one in in_order(trials)]
    assert order[:2] == [(1000, "high", 0), (1000, "low", 0)]
    assert {one[0] for one in order[4:]} == {500_000}
    assert [one[2] for one in order[4:]] == [0, 0, 1, 1]


def test_a_first_run_that_is_dear_comes_before_the_fifth_of_half_its_price(trial):
    cheap, dear = trial("gpc", n=1000, run=4), trial("gpc", n=1200)
    assert in_order([cheap, dear]) == [dear, cheap]


def test_trials_that_took_twice_as_long_as_expected_double_the_time_left(trial):
    past, left = trial("gpc", n=100), trial("gpc", n=1000)
    known = {past.id: past, left.id: left}
    alone = time_left([left], [], known)
    records = [done(past, 2.0 * expected_seconds(past))]
    assert time_left([left], records, known) == pytest.approx(2.0 * alone)


def test_each_method_has_its_own_correction(trial):
    slow, fast, left = trial("gpc", n=100), trial("rff"), trial("rff", n=400)
    known = {one.id: one for one in (slow, fast, left)}
    records = [done(slow, 50.0 * expected_seconds(slow)), done(fast, expected_seconds(fast))]
    assert time_left([left], records, known) == pytest.approx(expected_seconds(left))
