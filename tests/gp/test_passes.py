"""Passes at fixed frequencies, the start of a fit, and held-back rows."""

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
    has_stalled,
    held_back_loss,
    hold_back,
)
from undulatus.gp.posterior import WeightMoments, expected_sigmoid

seeds = st.integers(0, 2**32 - 1)


def some_pixels(seed=0, n=60, d=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, None, plain, np.dtype(np.float64), 16)


def some_start(seed=0, D=5, d=2):
    return Start(np.random.default_rng(seed).normal(size=(D, d)), 1.3, 1.7)


def fit_from(start, pixels, **options):
    """The posterior at a start, from ξ = 1."""
    return fit_posterior(
        pixels, start.frequencies, start.signal_variance, np.ones(pixels.n_rows), **options
    )


def assert_same_fit(one, other):
    assert one.bounds == other.bounds
    assert one.signal_variance == other.signal_variance
    assert_array_equal(one.posterior.mean, other.posterior.mean)
    assert_array_equal(one.posterior.root, other.posterior.root)
    assert_array_equal(one.statistics.gram, other.statistics.gram)


# Passes at fixed frequencies


@given(seed=seeds, signal_variance=st.floats(1e-3, 1e3))
@settings(max_examples=20)
def test_passes_never_lower_the_bound(seed, signal_variance):
    pixels, start = some_pixels(seed), some_start(seed)
    xi = np.ones(pixels.n_rows)
    fit = fit_posterior(pixels, start.frequencies, signal_variance, xi, max_passes=11)
    slack = 1e-10 * np.abs(fit.bounds).max()
    assert np.all(np.diff(fit.bounds) >= -slack)


def test_the_fit_holds_the_posterior_and_bound_at_the_last_xi():
    pixels, start = some_pixels(), some_start()
    xi = np.ones(pixels.n_rows)
    fit = fit_posterior(pixels, start.frequencies, 1.0, xi, max_passes=6)
    statistics = accumulate(pixels, start.frequencies, fit.signal_variance, xi)
    # The last statistics were rescaled rather than summed again: rounding.
    assert_allclose(fit.posterior.mean, statistics.posterior().mean, rtol=1e-9, atol=1e-12)
    assert_allclose(fit.bounds[-1], statistics.bound(statistics.posterior()), rtol=1e-12)


def test_many_passes_reach_a_stationary_point():
    pixels, start = some_pixels(), some_start()
    xi = np.ones(pixels.n_rows)
    fit = fit_posterior(pixels, start.frequencies, 1.0, xi, max_passes=2001, tol=0.0)
    # One more update of ξ changes nothing, and the slope in γ is zero (to 1e-5 in the search).
    again = xi.copy()
    tighten(pixels, start.frequencies, fit.signal_variance, fit.posterior, again)
    assert_allclose(again, xi, rtol=1e-3)
    assert abs(log_variance_gradient(fit.posterior)) < 1e-2


def test_the_signal_variance_stays_within_its_limits():
    # A single wave separates the labels: the bound keeps growing with γ.
    x = np.linspace(-1.4, 1.4, 30)[:, None]
    plain = Standardisation(np.zeros(1), np.ones(1))
    pixels = Pixels(x, x[:, 0] > 0, None, plain, np.dtype(np.float64), 64)
    fit = fit_posterior(pixels, np.ones((1, 1)), 1.0, np.ones(30), max_passes=301)
    assert VARIANCE_LIMITS[0] <= fit.signal_variance <= VARIANCE_LIMITS[1]
    assert np.all(np.isfinite(fit.posterior.mean))


def test_the_first_pass_counts_as_a_pass():
    pixels, start, reported = some_pixels(), some_start(), []
    fit = fit_from(
        start,
        pixels,
        max_passes=4,
        report=lambda done, bound: reported.append((done, bound)),
    )
    assert len(fit.bounds) == 4
    assert reported == list(enumerate(fit.bounds[:-1], start=1))
    once = fit_from(start, pixels, max_passes=1)
    assert once.bounds == fit.bounds[:1]
    assert once.signal_variance == start.signal_variance


def test_with_an_initial_posterior_xi_is_set_to_its_optimum_there():
    pixels, start = some_pixels(), some_start()
    known = fit_from(start, pixels, max_passes=50)
    xi = np.full(pixels.n_rows, np.nan)
    frequencies, variance = start.frequencies, known.signal_variance
    fit = fit_posterior(
        pixels, frequencies, variance, xi, max_passes=1, initial_posterior=known.posterior
    )
    assert np.all(np.isfinite(xi))
    assert fit.bounds[0] >= known.bounds[-1] - 1e-10 * abs(known.bounds[-1])


def test_passes_are_the_same_when_xi_is_not_stored():
    pixels, start = some_pixels(), some_start()
    known = fit_from(start, pixels, max_passes=2).posterior
    arguments = (pixels, start.frequencies, start.signal_variance)
    stored, not_stored = (
        fit_posterior(*arguments, xi, max_passes=4, initial_posterior=known)
        for xi in (np.ones(60), None)
    )
    assert_same_fit(stored, not_stored)


def test_a_lower_limit_on_the_signal_variance_is_respected():
    pixels, start = some_pixels(), some_start()
    free = fit_posterior(pixels, start.frequencies, 1.0, np.ones(pixels.n_rows), max_passes=50)
    limit = 0.5 * free.signal_variance
    limited = fit_posterior(
        pixels, start.frequencies, 0.1, np.ones(pixels.n_rows), max_passes=50, variance_limit=limit
    )
    # In each pass the search in the logarithm ends within 1e-5 of the limit.
    assert limited.signal_variance <= limit * (1 + 1e-12)
    assert_allclose(limited.signal_variance, limit, rtol=1e-4)


def test_a_limit_on_the_signal_variance_never_lowers_the_bound():
    pixels, unit = some_pixels(730286, n=20), some_start(730286, D=20).unit_frequencies
    fit = fit_posterior(
        pixels, 0.1083 * unit, 0.76, np.ones(20), max_passes=3, variance_limit=0.83
    )
    assert np.all(np.diff(fit.bounds) >= -1e-10 * np.abs(fit.bounds).max())


def test_a_zero_tolerance_makes_all_passes_and_a_large_one_two():
    pixels, start = some_pixels(), some_start()
    counts = {
        tol: len(fit_from(start, pixels, max_passes=9, tol=tol).bounds) for tol in (0.0, 1e9)
    }
    assert counts == {0.0: 9, 1e9: 2}


def test_a_bound_has_stalled_when_it_grows_by_less_than_the_tolerance_of_its_size():
    # A share of 1e-4 of (1000 + 100) is 0.11.
    assert has_stalled([-1000.10, -1000.0], 1e-4)
    assert not has_stalled([-1000.12, -1000.0], 1e-4)


def test_hundredths_of_a_nat_do_not_count_on_a_few_rows():
    assert has_stalled([-0.109, -0.1], 1e-4)
    assert not has_stalled([-0.12, -0.1], 1e-4)


def test_with_a_zero_tolerance_only_a_falling_bound_has_stalled():
    assert not has_stalled([1.0, 1.0], 0.0)
    assert has_stalled([1.0, 0.9], 0.0)


# Interrupts


def interrupt_in_report(monkeypatch, after):
    def report(done, bound):
        if done == after:
            raise KeyboardInterrupt

    return report


def interrupt_in_pass(monkeypatch, after):
    """Interrupt the pass after ``after`` when ξ of half of the pixels has been updated."""
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


def interrupt_in_algebra(monkeypatch, after):
    """Interrupt the pass after ``after`` between its sums and its posterior."""
    original, calls = Statistics.posterior, []

    def posterior(self):
        calls.append(None)
        if len(calls) == after + 1:
            raise KeyboardInterrupt
        return original(self)

    monkeypatch.setattr(Statistics, "posterior", posterior)
    return lambda done, bound: None


each_interrupt = pytest.mark.parametrize(
    "interrupt", [interrupt_in_report, interrupt_in_pass, interrupt_in_algebra]
)


@each_interrupt
@pytest.mark.parametrize("after", [1, 3])
def test_an_interrupt_ends_at_the_last_finished_pass(monkeypatch, interrupt, after):
    pixels, start = some_pixels(), some_start()
    short = fit_from(start, pixels, max_passes=after)
    with monkeypatch.context() as patch:
        report = interrupt(patch, after)
        stopped = fit_from(start, pixels, max_passes=9, interruptible=True, report=report)
    assert stopped.interrupted
    assert not short.interrupted
    assert_same_fit(stopped, short)


@each_interrupt
def test_an_interrupt_is_raised_unless_the_fit_is_interruptible(monkeypatch, interrupt):
    pixels, start = some_pixels(), some_start()
    report = interrupt(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt):
        fit_from(start, pixels, max_passes=9, report=report)


@pytest.mark.parametrize("from_posterior", [False, True])
def test_an_interrupt_in_the_first_pass_is_always_raised(monkeypatch, from_posterior):
    pixels, start = some_pixels(), some_start()
    known = fit_from(start, pixels, max_passes=1).posterior

    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(passes, "tighten" if from_posterior else "accumulate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fit_from(
            start,
            pixels,
            max_passes=9,
            initial_posterior=known if from_posterior else None,
            interruptible=True,
        )


# The start


def test_the_chosen_lengthscale_has_the_best_bound():
    pixels, unit = some_pixels(n=100), some_start().unit_frequencies
    distance = 2.0
    found = choose_start(pixels, unit, distance, np.random.default_rng(0))
    bounds = {}
    for share in LENGTHSCALE_SHARES:
        tried = fit_from(Start(unit, share * distance), pixels, max_passes=SEARCH_PASSES)
        bounds[share * distance] = (tried.bounds[-1], tried.signal_variance)
    best = max(bounds, key=lambda lengthscale: bounds[lengthscale][0])
    assert (found.lengthscale, found.signal_variance) == (best, bounds[best][1])
    assert_array_equal(found.unit_frequencies, unit)


def test_lengthscales_are_compared_on_a_subset_of_many_pixels(monkeypatch):
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


def fine_start(lengthscale, D=40, d=2):
    return Start(np.random.default_rng(1).normal(size=(D, d)), lengthscale)


def coarsened(lengthscale, held_back=True):
    pixels = some_pixels(n=200)
    block = pixels.pick(np.arange(150, 200)) if held_back else None
    return coarsen_start(pixels.take(np.arange(150)), fine_start(lengthscale), block, 100.0)


def test_a_start_that_predicts_held_back_pixels_is_kept():
    start, fit = coarsened(1.0)
    assert start.lengthscale == 1.0
    pixels = some_pixels(n=200).take(np.arange(150))
    same = fit_from(start, pixels, max_passes=SEARCH_PASSES, variance_limit=100.0)
    assert_array_equal(fit.statistics.gram, same.statistics.gram)


def test_a_start_that_says_nothing_on_held_back_pixels_is_coarsened():
    # Waves of a thirtieth of the distance between pixels are noise, those of an eighth are not.
    start, _ = coarsened(0.05)
    assert start.lengthscale in (0.1, 0.2)
    assert_array_equal(start.unit_frequencies, fine_start(0.05).unit_frequencies)


def test_a_start_is_coarsened_a_limited_number_of_times():
    start, _ = coarsened(1e-4)
    assert start.lengthscale == 1e-4 * 2.0**COARSENINGS


def test_without_held_back_pixels_a_start_is_not_coarsened():
    start, _ = coarsened(1e-4, held_back=False)
    assert start.lengthscale == 1e-4


# Which rows are held back


def split(n_rows, seed=0):
    return hold_back(n_rows, np.random.default_rng(seed))


@given(st.integers(2, 3000), seeds)
def test_every_row_is_either_learned_from_or_held_back(n_rows, seed):
    learning, held_back = split(n_rows, seed)
    assert_array_equal(np.sort(np.concatenate([learning, held_back])), np.arange(n_rows))


@given(st.integers(2, 3000), seeds)
def test_both_parts_are_sorted(n_rows, seed):
    for part in split(n_rows, seed):
        assert np.all(np.diff(part) > 0)


@pytest.mark.parametrize(
    ("n_rows", "n_held"),
    [(2, 1), (4, 1), (9, 1), (10, 2), (400, 80), (10_239, 2047), (10_240, 2048), (50_000, 2048)],
)
def test_a_fifth_is_held_back_but_at_least_one_row_and_at_most_2048(n_rows, n_held):
    assert len(split(n_rows)[1]) == n_held <= HELD_BACK_ROWS


def test_a_fifth_of_the_rows_is_rounded_down():
    for n_rows in range(5, 1000):
        assert len(split(n_rows)[1]) == n_rows // 5


def test_the_seed_determines_which_rows_are_held_back():
    for one, same in zip(split(400), split(400), strict=True):
        assert_array_equal(one, same)
    assert not np.array_equal(split(400)[1], split(400, seed=1)[1])


def test_every_row_is_equally_likely_to_be_held_back():
    rng, times = np.random.default_rng(0), 1000
    counts = np.zeros(50)
    for _ in range(times):
        counts[hold_back(50, rng)[1]] += 1
    # A count is binomial with share 1/5: five standard errors.
    assert_allclose(counts / times, 0.2, atol=5 * np.sqrt(0.2 * 0.8 / times))


# Which groups are held back


@given(seeds, st.integers(2, 30))
def test_rows_of_one_group_stay_together(seed, n_groups):
    rng = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, 300)])
    learning, held_back = hold_back(len(groups), rng, groups)
    assert_array_equal(np.sort(np.concatenate([learning, held_back])), np.arange(len(groups)))
    assert not np.isin(groups[held_back], groups[learning]).any()


@given(seeds, st.integers(2, 30))
def test_as_many_groups_are_held_back_as_fit_into_a_fifth_but_at_least_one(seed, n_groups):
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


def test_only_some_rows_of_large_groups_are_held_back_and_none_learned_from():
    groups = np.repeat(np.arange(10), 5000)
    learning, held_back = hold_back(len(groups), np.random.default_rng(0), groups)
    assert (len(learning), len(held_back)) == (40_000, HELD_BACK_ROWS)
    assert np.all(np.diff(held_back) > 0)
    # About half from each of the two groups: five standard errors of a share of 2,048.
    share = np.mean(groups[held_back] == groups[held_back[0]])
    assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(HELD_BACK_ROWS)


# The held-back loss


def some_block(rng, n=9, d=3, weight=None, dtype=np.float64):
    x, v = rng.normal(size=(n, d)), rng.choice([-0.5, 0.5], n)
    weight = np.ones(n) if weight is None else weight
    return Block(slice(0, n), x.astype(dtype), v.astype(dtype), weight.astype(dtype))


def some_posterior(rng, D=4, d=3, size=1.0):
    root = rng.normal(size=(2 * D, 2 * D)) / np.sqrt(2 * D)
    moments = WeightMoments(size * rng.normal(size=2 * D), root @ root.T)
    return rng.normal(size=(D, d)), float(rng.uniform(0.5, 3.0)), moments


def slow_loss(block, frequencies, signal_variance, moments):
    """The loss one row at a time: the negative logarithm of the probability of its class."""
    total = 0.0
    for x, v, weight in zip(block.x, block.v, block.weight, strict=True):
        z = fourier_features(x[None], frequencies, signal_variance)[0]
        variance = z @ moments.covariance @ z
        positive = float(expected_sigmoid(np.array(z @ moments.mean), np.array(variance)))
        total -= weight * np.log(positive if v > 0 else 1.0 - positive)
    return total / block.weight.sum()


@given(seeds)
def test_the_loss_is_the_weighted_mean_over_rows(seed):
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


def test_a_weight_equals_as_many_rows_and_only_ratios_of_weights_count():
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


def test_a_posterior_with_mean_zero_has_a_loss_of_log_two():
    rng = np.random.default_rng(0)
    frequencies, signal_variance, moments = some_posterior(rng)
    no_signal = WeightMoments(np.zeros(8), moments.covariance)
    loss = held_back_loss(some_block(rng), frequencies, signal_variance, no_signal)
    assert_allclose(loss, np.log(2.0), rtol=1e-12)


def test_the_loss_of_a_row_thought_impossible_is_large_but_finite():
    rng = np.random.default_rng(0)
    loss = held_back_loss(some_block(rng), *some_posterior(rng, size=1e4))
    # A probability below exp(-745) is zero in double precision.
    assert 745 < loss < np.inf
