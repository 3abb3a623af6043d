"""Passes at fixed frequencies, and the start of a fit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import passes
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.bound import Statistics, accumulate, log_variance_gradient, tighten, tighten_each
from undulatus.gp.passes import (
    LENGTHSCALE_SHARES,
    SEARCH_PASSES,
    VARIANCE_LIMITS,
    Start,
    choose_start,
    fit_posterior,
    has_stalled,
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


@given(seed=seeds, share=st.floats(0.01, 0.5))
@settings(max_examples=20)
def test_passes_with_damped_waves_never_lower_the_bound(seed, share):
    pixels, start = some_pixels(seed), some_start(seed)
    first = fit_from(start, pixels, max_passes=1)
    fit = fit_from(
        start,
        pixels,
        max_passes=11,
        spread=np.full(2, share),
        initial_posterior=first.posterior,
    )
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

    def tighten_half(pixels, frequencies, variances, posteriors, xi, **options):
        calls.append(None)
        if len(calls) == after:
            half = pixels.n_rows // 2
            part, some = pixels.take(np.arange(half)), [own[:half] for own in xi]
            tighten_each(part, frequencies, variances, posteriors, some, **options)
            raise KeyboardInterrupt
        return tighten_each(pixels, frequencies, variances, posteriors, xi, **options)

    monkeypatch.setattr(passes, "tighten_each", tighten_half)
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

    def interrupt(*args, **options):
        raise KeyboardInterrupt

    name = "tighten_each" if from_posterior else "accumulate_each"
    monkeypatch.setattr(passes, name, interrupt)
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
