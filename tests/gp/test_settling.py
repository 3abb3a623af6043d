"""Passes over all pixels at fixed frequencies, and the choice of where to start."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import settling
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.evidence import accumulate, log_variance_gradient, tighten
from undulatus.gp.settling import (
    LENGTHSCALE_SHARES,
    SEARCH_PASSES,
    VARIANCE_LIMITS,
    Start,
    choose_start,
    settle,
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


def test_a_lower_limit_on_the_signal_variance_is_kept():
    pixels, start = some_pixels(), some_start()
    free = settle(pixels, start.at[0], 1.0, np.ones(pixels.n_rows), passes=50)
    limit = 0.5 * free.signal_variance
    bound = settle(
        pixels, start.at[0], 0.1, np.ones(pixels.n_rows), passes=50, variance_limit=limit
    )
    assert_allclose(bound.signal_variance, limit, rtol=1e-12)


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
