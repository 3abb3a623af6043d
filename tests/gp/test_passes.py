"""Rows held back: which they are, and what they say about a posterior.

Passes over all pixels at fixed frequencies, and the choice of where to start.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import passes
from undulatus.gp.blocks import Block, Pixels, Standardisation
from undulatus.gp.bound import Statistics, accumulate, log_variance_gradient, tighten
from undulatus.gp.fourier import fourier_features
from undulatus.gp.passes import (
    COARSENINGS,
    HELD_BACK_ROWS,
    LENGTHSCALE_SHARES,
    SEARCH_PASSES,
    VARIANCE_LIMITS,
    Start,
    choose_start,
    coarsen_start,
    fit_posterior,
    held_back_loss,
    hold_back,
)
from undulatus.gp.posterior import WeightMoments, expected_sigmoid

seeds = st.integers(0, 2**32 - 1)


def held(n_rows, seed=0):
    return hold_back(n_rows, np.random.default_rng(seed))


# Which rows
@given(st.integers(2, 3000), seeds)
def test_every_row_is_either_learned_from_or_held_back(n_rows, seed):
    learning, held_back = held(n_rows, seed)
    assert_array_equal(np.sort(np.concatenate([learning, held_back])), np.arange(n_rows))


@given(st.integers(2, 3000), seeds)
def test_both_parts_are_in_the_order_of_the_rows(n_rows, seed):
    for part in held(n_rows, seed):
        assert np.all(np.diff(part) > 0)


@pytest.mark.parametrize(
    ("n_rows", "n_held"),
    [(2, 1), (4, 1), (9, 1), (10, 2), (400, 80), (10_239, 2047), (10_240, 2048), (50_000, 2048)],
)
def test_a_fifth_is_held_back_but_at_least_one_row_and_never_many(n_rows, n_held):
    assert len(held(n_rows)[1]) == n_held <= HELD_BACK_ROWS


def test_of_any_number_of_rows_a_fifth_is_rounded_down():
    for n_rows in range(5, 1000):
        assert len(held(n_rows)[1]) == n_rows // 5


def test_one_seed_holds_back_the_same_rows_and_another_others():
    for one, same in zip(held(400), held(400), strict=True):
        assert_array_equal(one, same)
    assert not np.array_equal(held(400)[1], held(400, seed=1)[1])


def test_every_row_is_as_likely_to_be_held_back_as_any_other():
    rng, times = np.random.default_rng(0), 1000
    counts = np.zeros(50)
    for _ in range(times):
        counts[hold_back(50, rng)[1]] += 1
    # A count is binomial with share 1/5: five standard errors.
    assert_allclose(counts / times, 0.2, atol=5 * np.sqrt(0.2 * 0.8 / times))


# Which groups
@given(seeds, st.integers(2, 30))
def test_rows_of_one_group_stay_together(seed, n_groups):
    rng = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, 300)])
    learning, held_back = hold_back(len(groups), rng, groups)
    assert_array_equal(np.sort(np.concatenate([learning, held_back])), np.arange(len(groups)))
    assert not np.isin(groups[held_back], groups[learning]).any()


@given(seeds, st.integers(2, 30))
def test_as_many_groups_are_held_back_as_go_into_a_fifth_but_always_one(seed, n_groups):
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n_groups), 10)
    _, held_back = hold_back(len(groups), rng, groups)
    assert len(np.unique(groups[held_back])) == max(n_groups // 5, 1)


@given(seeds)
def test_a_group_that_is_most_of_the_data_is_never_held_back(seed):
    groups = np.repeat([0, 1], [900, 100])
    learning, held_back = hold_back(1000, np.random.default_rng(seed), groups)
    assert_array_equal(learning, np.arange(900))
    assert_array_equal(held_back, np.arange(900, 1000))


def test_of_large_groups_some_rows_are_looked_at_and_none_learned_from():
    groups = np.repeat(np.arange(10), 5000)
    learning, held_back = hold_back(len(groups), np.random.default_rng(0), groups)
    assert (len(learning), len(held_back)) == (40_000, HELD_BACK_ROWS)
    assert np.all(np.diff(held_back) > 0)
    # Of both groups about half: five standard errors of a share of 2,048.
    share = np.mean(groups[held_back] == groups[held_back[0]])
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(HELD_BACK_ROWS)


# What they say
def some_block(rng, n=9, d=3, weight=None, dtype=np.float64):
    x, v = rng.normal(size=(n, d)), rng.choice([-0.5, 0.5], n)
    weight = np.ones(n) if weight is None else weight
    return Block(slice(0, n), x.astype(dtype), v.astype(dtype), weight.astype(dtype))


def some_posterior(rng, D=4, d=3, size=1.0):
    root = rng.normal(size=(2 * D, 2 * D)) / np.sqrt(2 * D)
    moments = WeightMoments(size * rng.normal(size=2 * D), root @ root.T)
    return rng.normal(size=(D, d)), float(rng.uniform(0.5, 3.0)), moments


def slow_loss(block, frequencies, signal_variance, moments):
    """One row at a time: the probability of its class, and its negative logarithm."""
    total = 0.0
    for x, v, weight in zip(block.x, block.v, block.weight, strict=True):
        z = fourier_features(x[None], frequencies, signal_variance)[0]
        variance = z @ moments.covariance @ z
        positive = float(expected_sigmoid(np.array(z @ moments.mean), np.array(variance)))
        total -= weight * np.log(positive if v > 0 else 1.0 - positive)
    return total / block.weight.sum()


@given(seeds)
def test_the_loss_is_the_weighted_mean_of_what_each_row_costs(seed):
    rng = np.random.default_rng(seed)
    block, posterior = some_block(rng, weight=rng.uniform(0.1, 5.0, 9)), some_posterior(rng)
    assert_allclose(held_back_loss(block, *posterior), slow_loss(block, *posterior), rtol=1e-10)


@given(seeds)
def test_single_precision_follows_double(seed):
    weight = np.random.default_rng(seed).uniform(0.1, 5.0, 9)
    losses = []
    for dtype in (np.float32, np.float64):
        rng = np.random.default_rng(seed)
        block, posterior = some_block(rng, weight=weight, dtype=dtype), some_posterior(rng)
        losses.append(held_back_loss(block, *posterior))
    assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_weight_is_worth_as_many_rows_and_only_their_ratio_counts():
    rng = np.random.default_rng(0)
    times = rng.integers(1, 5, 9)
    block, posterior = some_block(rng, weight=times), some_posterior(rng)
    rows = np.repeat(np.arange(9), times)
    repeated = Block(slice(0, len(rows)), block.x[rows], block.v[rows], np.ones(len(rows)))
    tenfold = Block(block.rows, block.x, block.v, 10.0 * block.weight)
    for same in (repeated, tenfold):
        assert_allclose(
            held_back_loss(same, *posterior), held_back_loss(block, *posterior), rtol=1e-12
        )


def test_a_posterior_that_knows_nothing_costs_the_logarithm_of_two():
    rng = np.random.default_rng(0)
    frequencies, signal_variance, moments = some_posterior(rng)
    ignorant = WeightMoments(np.zeros(8), moments.covariance)
    loss = held_back_loss(some_block(rng), frequencies, signal_variance, ignorant)
    assert_allclose(loss, np.log(2.0), rtol=1e-12)


def test_what_was_thought_impossible_costs_much_but_not_infinitely_much():
    rng = np.random.default_rng(0)
    loss = held_back_loss(some_block(rng), *some_posterior(rng, size=1e4))
    # A probability below exp(-745) is zero in double precision.
    assert 745 < loss < np.inf


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
    settled = fit_posterior(pixels, start.frequencies, signal_variance, xi, max_passes=11)
    slack = 1e-10 * np.abs(settled.bounds).max()
    assert np.all(np.diff(settled.bounds) >= -slack)


def test_settling_hands_out_the_posterior_and_bound_at_its_own_xi():
    pixels, start = some_pixels(), some_start()
    xi = np.ones(pixels.n_rows)
    settled = fit_posterior(pixels, start.frequencies, 1.0, xi, max_passes=6)
    statistics = accumulate(pixels, start.frequencies, settled.signal_variance, xi)
    # The last statistics were rescaled rather than summed anew: rounding.
    assert_allclose(settled.posterior.mean, statistics.posterior().mean, rtol=1e-9, atol=1e-12)
    assert_allclose(settled.bounds[-1], statistics.bound(statistics.posterior()), rtol=1e-12)


def test_settling_long_enough_reaches_a_stationary_point():
    pixels, start = some_pixels(), some_start()
    xi = np.ones(pixels.n_rows)
    settled = fit_posterior(pixels, start.frequencies, 1.0, xi, max_passes=2001, tol=0.0)
    # In ξ: one more update moves nothing; in γ: no slope left (the search resolves 1e-5).
    again = xi.copy()
    tighten(pixels, start.frequencies, settled.signal_variance, settled.posterior, again)
    assert_allclose(again, xi, rtol=1e-3)
    assert abs(log_variance_gradient(settled.posterior)) < 1e-2


def test_the_signal_variance_stays_within_its_limits():
    # Labels that a single wave separates: the bound grows with γ for ever.
    x = np.linspace(-1.4, 1.4, 30)[:, None]
    plain = Standardisation(np.zeros(1), np.ones(1))
    pixels = Pixels(x, x[:, 0] > 0, None, plain, np.dtype(np.float64), 64)
    settled = fit_posterior(pixels, np.ones((1, 1)), 1.0, np.ones(30), max_passes=301)
    assert VARIANCE_LIMITS[0] <= settled.signal_variance <= VARIANCE_LIMITS[1]
    assert np.all(np.isfinite(settled.posterior.mean))


def test_a_pass_is_counted_from_the_first_look_at_the_pixels():
    pixels, start, told = some_pixels(), some_start(), []
    xi = np.ones(pixels.n_rows)
    settled = fit_posterior(
        pixels,
        start.frequencies,
        start.signal_variance,
        xi,
        max_passes=4,
        report=lambda done, bound: told.append((done, bound)),
    )
    assert len(settled.bounds) == 4
    assert told == list(enumerate(settled.bounds[:-1], start=1))
    once = fit_posterior(
        pixels, start.frequencies, start.signal_variance, np.ones(pixels.n_rows), max_passes=1
    )
    assert once.bounds == settled.bounds[:1]
    assert once.signal_variance == start.signal_variance


def test_settling_from_a_posterior_takes_xi_from_it():
    pixels, start = some_pixels(), some_start()
    known = fit_posterior(
        pixels, start.frequencies, start.signal_variance, np.ones(pixels.n_rows), max_passes=50
    )
    xi = np.full(pixels.n_rows, np.nan)
    frequencies, variance = start.frequencies, known.signal_variance
    settled = fit_posterior(
        pixels, frequencies, variance, xi, max_passes=1, initial_posterior=known.posterior
    )
    assert np.all(np.isfinite(xi))
    assert settled.bounds[0] >= known.bounds[-1] - 1e-10 * abs(known.bounds[-1])


def test_passes_from_a_posterior_are_the_same_when_no_xi_is_kept():
    pixels, start = some_pixels(), some_start()
    known = fit_posterior(
        pixels, start.frequencies, start.signal_variance, np.ones(pixels.n_rows), max_passes=2
    ).posterior
    kept, free = (
        fit_posterior(
            pixels,
            start.frequencies,
            start.signal_variance,
            xi,
            max_passes=4,
            initial_posterior=known,
        )
        for xi in (np.ones(60), None)
    )
    assert_same_settled(kept, free)


def test_a_lower_limit_on_the_signal_variance_is_kept():
    pixels, start = some_pixels(), some_start()
    free = fit_posterior(pixels, start.frequencies, 1.0, np.ones(pixels.n_rows), max_passes=50)
    limit = 0.5 * free.signal_variance
    bound = fit_posterior(
        pixels, start.frequencies, 0.1, np.ones(pixels.n_rows), max_passes=50, variance_limit=limit
    )
    # The search in the logarithm ends within 1e-5 of its limit, pass after pass.
    assert bound.signal_variance <= limit * (1 + 1e-12)
    assert_allclose(bound.signal_variance, limit, rtol=1e-4)


def test_a_limit_on_the_signal_variance_never_lowers_the_bound():
    pixels, unit = some_pixels(730286, n=20), some_start(730286, D=20).unit_frequencies
    settled = fit_posterior(
        pixels, 0.1083 * unit, 0.76, np.ones(20), max_passes=3, variance_limit=0.83
    )
    assert np.all(np.diff(settled.bounds) >= -1e-10 * np.abs(settled.bounds).max())


def test_a_zero_tolerance_settles_for_all_its_passes_and_a_large_one_for_two():
    pixels, start = some_pixels(), some_start()
    counts = {
        tol: len(
            fit_posterior(
                pixels,
                start.frequencies,
                start.signal_variance,
                np.ones(pixels.n_rows),
                max_passes=9,
                tol=tol,
            ).bounds
        )
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

    monkeypatch.setattr(passes, "tighten", tighten_half)
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
    short = fit_posterior(
        pixels, start.frequencies, start.signal_variance, np.ones(pixels.n_rows), max_passes=after
    )
    with monkeypatch.context() as patch:
        report = press(patch, after)
        stopped = fit_posterior(
            pixels,
            start.frequencies,
            start.signal_variance,
            np.ones(pixels.n_rows),
            max_passes=9,
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
        fit_posterior(
            pixels,
            start.frequencies,
            start.signal_variance,
            np.ones(pixels.n_rows),
            max_passes=9,
            report=report,
        )


@pytest.mark.parametrize("from_posterior", [False, True])
def test_an_interrupt_in_the_first_pass_is_passed_on_always(monkeypatch, from_posterior):
    pixels, start = some_pixels(), some_start()
    known = fit_posterior(
        pixels, start.frequencies, start.signal_variance, np.ones(pixels.n_rows), max_passes=1
    ).posterior

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "tighten" if from_posterior else "accumulate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit_posterior(
            pixels,
            start.frequencies,
            start.signal_variance,
            np.ones(pixels.n_rows),
            max_passes=9,
            initial_posterior=known if from_posterior else None,
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
        tried = fit_posterior(pixels, unit / (share * distance), 1.0, xi, max_passes=SEARCH_PASSES)
        bounds[share * distance] = (tried.bounds[-1], tried.signal_variance)
    best = max(bounds, key=lambda lengthscale: bounds[lengthscale][0])
    assert (found.lengthscale, found.signal_variance) == (best, bounds[best][1])
    assert_array_equal(found.unit_frequencies, unit)


def test_the_start_is_sought_on_a_subset_of_many_pixels(monkeypatch):
    monkeypatch.setattr(passes, "SEARCH_ROWS", 40)
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
    return coarsen_start(pixels.take(np.arange(150)), start_of(lengthscale), block, 100.0)


def test_a_start_that_tells_held_back_pixels_apart_is_kept_as_it_is():
    start, settled = settled_from(1.0)
    assert start.lengthscale == 1.0
    xi = np.ones(150)
    pixels = some_pixels(n=200).take(np.arange(150))
    same = fit_posterior(
        pixels,
        start.frequencies,
        start.signal_variance,
        xi,
        max_passes=SEARCH_PASSES,
        variance_limit=100.0,
    )
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
