"""Passes over all pixels at fixed frequencies, and the choice of where to start."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import settling
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.evidence import Statistics, accumulate, log_variance_gradient, tighten
from undulatus.gp.settling import (
    COARSENINGS,
    LENGTHSCALE_SHARES,
    SEARCH_PASSES,
    VARIANCE_LIMITS,
    Start,
    choose_start,
    settle,
    settle_start,
)

seeds = st.integers(0, 2**32 - 1)


def some_pixels(seed=0, n=60, d=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, None, plain, np.dtype(np.float64), 16)


def some_start(seed=0, D=5, d=2):
    return Start(np.random.default_rng(seed).normal(size=(D, d)), 1.3, 1.7)


# Settling


@given(seed=seeds, signal_variance=st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_settling_never_lowers_the_bound(seed, signal_variance):
    pixels, start = some_pixels(seed), some_start(seed)
    xi = np.ones(pixels.n_rows)
    settled = settle(pixels, start.at[0], signal_variance, xi, passes=11)
    slack = 1e-10 * np.abs(settled.bounds).max()
    assert np.all(np.diff(settled.bounds) >= -slack)


def test_settling_hands_out_the_posterior_and_bound_at_its_own_xi():
    pixels, start = some_pixels(), some_start()
    xi = np.ones(pixels.n_rows)
    settled = settle(pixels, start.at[0], 1.0, xi, passes=6)
    statistics = accumulate(pixels, start.at[0], settled.signal_variance, xi)
    # The last statistics were rescaled rather than summed anew: rounding.
    assert_allclose(settled.posterior.mean, statistics.posterior().mean, rtol=1e-9, atol=1e-12)
    assert_allclose(settled.bounds[-1], statistics.bound(statistics.posterior()), rtol=1e-12)


def test_settling_long_enough_reaches_a_stationary_point():
    pixels, start = some_pixels(), some_start()
    xi = np.ones(pixels.n_rows)
    settled = settle(pixels, start.at[0], 1.0, xi, passes=2001, tol=0.0)
    # In ξ: one more update moves nothing; in γ: no slope left (the search resolves 1e-5).
    again = xi.copy()
    tighten(pixels, start.at[0], settled.signal_variance, settled.posterior, again)
    assert_allclose(again, xi, rtol=1e-3)
    assert abs(log_variance_gradient(settled.posterior)) < 1e-2


def test_the_signal_variance_stays_within_its_limits():
    # Labels that a single wave separates: the bound grows with γ for ever.
    x = np.linspace(-1.4, 1.4, 30)[:, None]
    plain = Standardisation(np.zeros(1), np.ones(1))
    pixels = Pixels(x, x[:, 0] > 0, None, plain, np.dtype(np.float64), 64)
    settled = settle(pixels, np.ones((1, 1)), 1.0, np.ones(30), passes=301)
    assert VARIANCE_LIMITS[0] <= settled.signal_variance <= VARIANCE_LIMITS[1]
    assert np.all(np.isfinite(settled.posterior.mean))


def test_a_pass_is_counted_from_the_first_look_at_the_pixels():
    pixels, start, told = some_pixels(), some_start(), []
    xi = np.ones(pixels.n_rows)
    settled = settle(
        pixels, *start.at, xi, passes=4, report=lambda done, bound: told.append((done, bound))
    )
    assert len(settled.bounds) == 4
    assert told == list(enumerate(settled.bounds[:-1], start=1))
    once = settle(pixels, *start.at, np.ones(pixels.n_rows), passes=1)
    assert once.bounds == settled.bounds[:1]
    assert once.signal_variance == start.signal_variance


def test_settling_from_a_posterior_takes_xi_from_it():
    pixels, start = some_pixels(), some_start()
    known = settle(pixels, *start.at, np.ones(pixels.n_rows), passes=50)
    xi = np.full(pixels.n_rows, np.nan)
    frequencies, variance = start.at[0], known.signal_variance
    settled = settle(pixels, frequencies, variance, xi, passes=1, start=known.posterior)
    assert np.all(np.isfinite(xi))
    assert settled.bounds[0] >= known.bounds[-1] - 1e-10 * abs(known.bounds[-1])


def test_passes_from_a_posterior_are_the_same_when_no_xi_is_kept():
    pixels, start = some_pixels(), some_start()
    known = settle(pixels, *start.at, np.ones(pixels.n_rows), passes=2).posterior
    kept, free = (
        settle(pixels, *start.at, xi, passes=4, start=known) for xi in (np.ones(60), None)
    )
    assert_same_settled(kept, free)


def test_a_lower_limit_on_the_signal_variance_is_kept():
    pixels, start = some_pixels(), some_start()
    free = settle(pixels, start.at[0], 1.0, np.ones(pixels.n_rows), passes=50)
    limit = 0.5 * free.signal_variance
    bound = settle(
        pixels, start.at[0], 0.1, np.ones(pixels.n_rows), passes=50, variance_limit=limit
    )
    # The search in the logarithm ends within 1e-5 of its limit, pass after pass.
    assert bound.signal_variance <= limit * (1 + 1e-12)
    assert_allclose(bound.signal_variance, limit, rtol=1e-4)


def test_a_limit_on_the_signal_variance_never_lowers_the_bound():
    pixels, unit = some_pixels(730286, n=20), some_start(730286, D=20).unit_frequencies
    settled = settle(pixels, 0.1083 * unit, 0.76, np.ones(20), passes=3, variance_limit=0.83)
    assert np.all(np.diff(settled.bounds) >= -1e-10 * np.abs(settled.bounds).max())


def test_a_zero_tolerance_settles_for_all_its_passes_and_a_large_one_for_two():
    pixels, start = some_pixels(), some_start()
    counts = {
        tol: len(settle(pixels, *start.at, np.ones(pixels.n_rows), passes=9, tol=tol).bounds)
        for tol in (0.0, 1e9)
    }
    assert counts == {0.0: 9, 1e9: 2}


# Interrupts


def assert_same_settled(one, other):
    assert one.bounds == other.bounds
    assert one.signal_variance == other.signal_variance
    assert_array_equal(one.posterior.mean, other.posterior.mean)
    assert_array_equal(one.posterior.root, other.posterior.root)
    assert_array_equal(one.statistics.gram, other.statistics.gram)


def press_in_report(monkeypatch, after):
    def report(done, bound):
        if done == after:
            raise KeyboardInterrupt

    return report


def press_in_pass(monkeypatch, after):
    """Ctrl-C in the pass after ``after``, when ξ of half of the pixels is new already."""
    calls = []

    def tighten_half(pixels, frequencies, signal_variance, posterior, xi):
        calls.append(None)
        if len(calls) == after:
            half = pixels.n_rows // 2
            part = pixels.take(np.arange(half))
            tighten(part, frequencies, signal_variance, posterior, xi[:half])
            raise KeyboardInterrupt
        return tighten(pixels, frequencies, signal_variance, posterior, xi)

    monkeypatch.setattr(settling, "tighten", tighten_half)
    return lambda done, bound: None


def press_in_algebra(monkeypatch, after):
    """Ctrl-C when the pixels of the pass after ``after`` are read, and its posterior is due."""
    original, calls = Statistics.posterior, []

    def posterior(self):
        calls.append(None)
        if len(calls) == after + 1:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(Statistics, "posterior", posterior)
    return lambda done, bound: None


KEYS = [press_in_report, press_in_pass, press_in_algebra]
each_key = pytest.mark.parametrize("press", KEYS, ids=lambda press: press.__name__)


@each_key
@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupt_ends_at_the_last_finished_pass(monkeypatch, press, after):
    pixels, start = some_pixels(), some_start()
    short = settle(pixels, *start.at, np.ones(pixels.n_rows), passes=after)
    with monkeypatch.context() as patch:
        report = press(patch, after)
        stopped = settle(
            pixels,
            *start.at,
            np.ones(pixels.n_rows),
            passes=9,
            interruptible=True,
            report=report,
        )
    assert stopped.interrupted
    assert not short.interrupted
    assert_same_settled(stopped, short)


@each_key
def test_an_interrupt_is_passed_on_unless_it_may_end_the_passes(monkeypatch, press):
    pixels, start = some_pixels(), some_start()
    report = press(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        settle(pixels, *start.at, np.ones(pixels.n_rows), passes=9, report=report)


@pytest.mark.parametrize("from_posterior", [False, True])
def test_an_interrupt_in_the_first_pass_is_passed_on_always(monkeypatch, from_posterior):
    pixels, start = some_pixels(), some_start()
    known = settle(pixels, *start.at, np.ones(pixels.n_rows), passes=1).posterior

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(settling, "tighten" if from_posterior else "accumulate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        settle(
            pixels,
            *start.at,
            np.ones(pixels.n_rows),
            passes=9,
            start=known if from_posterior else None,
            interruptible=True,
        )


# Starting


def test_the_start_is_the_share_of_the_distance_with_the_best_bound():
    pixels, unit = some_pixels(n=100), some_start().unit_frequencies
    distance = 2.0
    found = choose_start(pixels, unit, distance, np.random.default_rng(0))
    bounds = {}
    for share in LENGTHSCALE_SHARES:
        xi = np.ones(pixels.n_rows)
        tried = settle(pixels, unit / (share * distance), 1.0, xi, passes=SEARCH_PASSES)
        bounds[share * distance] = (tried.bounds[-1], tried.signal_variance)
    best = max(bounds, key=lambda lengthscale: bounds[lengthscale][0])
    assert (found.lengthscale, found.signal_variance) == (best, bounds[best][1])
    assert_array_equal(found.unit_frequencies, unit)


def test_the_start_is_sought_on_a_subset_of_many_pixels(monkeypatch):
    monkeypatch.setattr(settling, "SEARCH_ROWS", 40)
    seen = []
    original = Pixels.take

    def take(self, chosen):
        seen.append(chosen)
        return original(self, chosen)

    monkeypatch.setattr(Pixels, "take", take)
    pixels = some_pixels(n=100)
    choose_start(pixels, some_start().unit_frequencies, 2.0, np.random.default_rng(0))
    (chosen,) = seen
    assert len(np.unique(chosen)) == 40
    assert_array_equal(chosen, np.sort(chosen))


def start_of(lengthscale, D=40, d=2):
    return Start(np.random.default_rng(1).normal(size=(D, d)), lengthscale)


def settled_from(lengthscale, held_back=True):
    pixels = some_pixels(n=200)
    block = pixels.pick(np.arange(150, 200)) if held_back else None
    return settle_start(pixels.take(np.arange(150)), start_of(lengthscale), block, 100.0)


def test_a_start_that_tells_held_back_pixels_apart_is_kept_as_it_is():
    start, settled = settled_from(1.0)
    assert start.lengthscale == 1.0
    xi = np.ones(150)
    pixels = some_pixels(n=200).take(np.arange(150))
    same = settle(pixels, *start.at, xi, passes=SEARCH_PASSES, variance_limit=100.0)
    assert_array_equal(settled.statistics.gram, same.statistics.gram)


def test_a_start_that_tells_held_back_pixels_nothing_is_made_coarser():
    # Waves of a thirtieth of the distance between pixels are noise to them, and of an eighth not.
    start, _ = settled_from(0.05)
    assert start.lengthscale in (0.1, 0.2)
    assert_array_equal(start.unit_frequencies, start_of(0.05).unit_frequencies)


def test_a_start_is_made_coarser_so_often_and_no_more():
    start, _ = settled_from(1e-4)
    assert start.lengthscale == 1e-4 * 2.0**COARSENINGS


def test_random_frequencies_are_not_made_coarser():
    start, _ = settled_from(1e-4, held_back=False)
    assert start.lengthscale == 1e-4
