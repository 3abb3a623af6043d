"""RFF-GPC and VFF-GPC in feature space: the evidence, the ascent, and going on from a state."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp import variational
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.evidence import accumulate
from undulatus.gp.settling import Start, settle
from undulatus.gp.variational import (
    BatchState,
    FourierEvidence,
    draw_sample,
    fit_batch,
    fit_stochastic,
)

seeds = st.integers(0, 2**32 - 1)
both_methods = pytest.mark.parametrize("learn_frequencies", [False, True], ids=["RFF", "VFF"])


def some_pixels(seed=0, n=60, d=2, dtype=np.float64, threads=1, rows_per_block=16):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = np.sin(2.0 * x[:, 0]) + 0.3 * rng.normal(size=n) > 0
    plain = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(x, positive, None, plain, np.dtype(dtype), rows_per_block, threads)


def some_start(seed=0, D=5, d=2, lengthscale=1.3, signal_variance=1.7):
    return Start(np.random.default_rng(seed).normal(size=(D, d)), lengthscale, signal_variance)


def some_evidence(learn_frequencies, seed=0, **changes):
    pixels, start = some_pixels(seed, **changes), some_start(seed)
    xi = np.random.default_rng(seed).uniform(0.1, 3.0, pixels.n_rows)
    return FourierEvidence(pixels, start, learn_frequencies, xi)


def log_evidence_bound(pixels, frequencies, signal_variance, xi):
    statistics = accumulate(pixels, frequencies, signal_variance, xi)
    return statistics.bound(statistics.posterior())


# The evidence


@both_methods
def test_theta_describes_the_start(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    start = evidence.start
    frequencies, signal_variance = start.at
    assert_allclose(evidence.frequencies(evidence.theta), frequencies, rtol=1e-14)
    assert_allclose(evidence.signal_variance(evidence.theta), signal_variance, rtol=1e-14)
    assert_allclose(evidence.lengthscale(evidence.theta), start.lengthscale, rtol=1e-14)
    assert len(evidence.limits) == len(evidence.theta)
    size = 1 + start.unit_frequencies.size if learn_frequencies else 2
    assert len(evidence.theta) == size


@both_methods
@given(seed=seeds)
@settings(max_examples=15)
def test_the_gradient_is_that_of_finite_differences(learn_frequencies, seed):
    evidence = some_evidence(learn_frequencies, seed, n=25)
    theta = evidence.theta + 0.1
    _, found = evidence.value_and_gradient(theta)
    step, expected = 1e-5, np.empty_like(theta)
    for i in range(len(theta)):
        nudge = np.zeros_like(theta)
        nudge[i] = step
        up, down = (evidence.value_and_gradient(theta + s * nudge)[0] for s in (1, -1))
        expected[i] = (up - down) / (2 * step)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@both_methods
def test_the_value_is_the_bound_at_the_effective_frequencies(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    theta = evidence.theta - 0.2
    value, _ = evidence.value_and_gradient(theta)
    direct = log_evidence_bound(
        evidence.pixels,
        evidence.frequencies(theta),
        evidence.signal_variance(theta),
        evidence.xi,
    )
    assert value == direct


@both_methods
def test_tightening_changes_what_the_value_is_taken_at(learn_frequencies):
    evidence = some_evidence(learn_frequencies)
    theta = evidence.theta
    before, _ = evidence.value_and_gradient(theta)
    tight = evidence.tighten(theta)
    assert tight > before
    assert evidence.value_and_gradient(theta)[0] == tight


# Fitting


@both_methods
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_never_decreases(learn_frequencies, seed):
    fit = fit_batch(
        some_pixels(seed),
        some_start(seed),
        learn_frequencies=learn_frequencies,
        max_iter=15,
        tol=0.0,
    )
    slack = 1e-10 * np.abs(fit.bounds).max()
    assert np.all(np.diff(fit.bounds) >= -slack)


def test_random_frequencies_keep_their_directions():
    start = some_start()
    fit = fit_batch(some_pixels(), start, learn_frequencies=False, max_iter=5, tol=0.0)
    assert_allclose(fit.frequencies, start.unit_frequencies / fit.lengthscale, rtol=1e-12)
    assert fit.lengthscale != start.lengthscale


def test_learned_frequencies_raise_the_bound_above_random_ones():
    pixels, start = some_pixels(n=120), some_start(D=3)
    random, learned = (
        fit_batch(pixels, start, learn_frequencies=learn, max_iter=30, tol=1e-6)
        for learn in (False, True)
    )
    assert learned.lengthscale == start.lengthscale
    assert learned.bounds[-1] > random.bounds[-1]


@pytest.fixture
def last_xi(monkeypatch):
    """ξ as the last passes over the pixels left it."""
    kept = {}

    def keep(pixels, frequencies, signal_variance, xi, **options):
        settled = settle(pixels, frequencies, signal_variance, xi, **options)
        kept["xi"] = xi
        return settled

    monkeypatch.setattr(variational, "settle", keep)
    return kept


def assert_posterior_of_all_pixels(fit, pixels, xi):
    statistics = accumulate(pixels, fit.frequencies, fit.signal_variance, xi)
    posterior = statistics.posterior()
    # The last statistics were rescaled to the last γ rather than summed anew: rounding.
    assert_allclose(fit.bounds[-1], statistics.bound(posterior), rtol=1e-12)
    assert_allclose(fit.posterior.mean, posterior.mean, rtol=1e-10, atol=1e-12)
    assert_allclose(fit.posterior.covariance, posterior.covariance, rtol=1e-10, atol=1e-12)


@both_methods
def test_the_posterior_handed_out_is_the_one_at_the_bound_handed_out(learn_frequencies, last_xi):
    pixels = some_pixels()
    fit = fit_batch(
        pixels, some_start(), learn_frequencies=learn_frequencies, max_iter=20, tol=1e-5
    )
    assert_posterior_of_all_pixels(fit, pixels, last_xi["xi"])


@both_methods
@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_fit(learn_frequencies, threads):
    fits = [
        fit_batch(
            some_pixels(threads=t, rows_per_block=7),
            some_start(),
            learn_frequencies=learn_frequencies,
            max_iter=3,
            tol=0.0,
        )
        for t in (1, threads)
    ]
    assert fits[0].bounds == fits[1].bounds
    assert_array_equal(fits[0].frequencies, fits[1].frequencies)
    assert_array_equal(fits[0].posterior.mean, fits[1].posterior.mean)
    assert_array_equal(fits[0].posterior.root, fits[1].posterior.root)


@both_methods
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_resumed_fit_is_the_uninterrupted_one_bit_for_bit(learn_frequencies, dtype):
    pixels, start, kept = some_pixels(dtype=dtype), some_start(), []

    def keep(state):
        kept.append(replace(state, xi=state.xi.copy()))

    options = {"learn_frequencies": learn_frequencies, "max_iter": 6, "tol": 0.0}
    whole = fit_batch(pixels, start, report=keep, **options)
    for state in kept[:-1:2]:
        rest = fit_batch(pixels, start, resume=state, **options)
        assert rest.bounds == whole.bounds
        assert_array_equal(rest.frequencies, whole.frequencies)
        assert_array_equal(rest.posterior.mean, whole.posterior.mean)
        assert rest.signal_variance == whole.signal_variance


def test_resuming_leaves_the_state_it_was_given_alone():
    pixels, start = some_pixels(), some_start()
    evidence = FourierEvidence(pixels, start, True, np.ones(pixels.n_rows))
    state = BatchState(
        start.unit_frequencies,
        start.lengthscale,
        start.signal_variance,
        evidence.theta,
        np.empty(0),
        np.ones(pixels.n_rows),
        "max_iter",
    )
    fit_batch(pixels, start, learn_frequencies=True, max_iter=1, tol=0.0, resume=state)
    assert_array_equal(state.xi, np.ones(pixels.n_rows))
    assert_array_equal(state.theta, evidence.theta)


def test_an_interrupted_fit_ends_at_the_last_finished_iteration():
    def report(state):
        if state.n_iter == 2:
            raise KeyboardInterrupt

    options = {"learn_frequencies": True, "tol": 0.0}
    pixels, start = some_pixels(), some_start()
    stopped = fit_batch(pixels, start, max_iter=10, report=report, **options)
    short = fit_batch(pixels, start, max_iter=2, **options)
    assert stopped.outcome == "interrupted"
    assert stopped.n_iter == 2
    assert stopped.bounds[:2] == short.bounds[:2]
    assert_array_equal(stopped.frequencies, short.frequencies)
    # One more look at the data for the posterior, none to tighten it: the bound stays.
    assert_allclose(stopped.bounds[-1], stopped.bounds[-2], rtol=1e-12)


def test_an_interrupt_while_a_batch_fit_settles_keeps_the_last_finished_pass(monkeypatch):
    def interrupt(*args, **options):
        def press(done, bound):
            if done == 3:
                raise KeyboardInterrupt

        if options.get("interruptible"):
            options["report"] = press
        return settle(*args, **options)

    pixels, start = some_pixels(), some_start()
    options = {"learn_frequencies": True, "tol": 0.0, "max_iter": 2}
    whole = fit_batch(pixels, start, **options)
    monkeypatch.setattr(variational, "settle", interrupt)
    stopped = fit_batch(pixels, start, **options)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert stopped.bounds[:2] == whole.bounds[:2]
    assert whole.bounds[1] < stopped.bounds[-1] < whole.bounds[-1]


def test_the_outcome_says_why_the_fit_stopped():
    pixels, start = some_pixels(), some_start()
    short = fit_batch(pixels, start, learn_frequencies=False, max_iter=1, tol=1e-12)
    long = fit_batch(pixels, start, learn_frequencies=False, max_iter=500, tol=1e-3)
    assert (short.outcome, long.outcome) == ("max_iter", "converged")


def test_single_precision_follows_double():
    start = some_start()
    fits = [
        fit_batch(some_pixels(dtype=dtype), start, learn_frequencies=False, max_iter=30, tol=1e-5)
        for dtype in (np.float64, np.float32)
    ]
    assert fits[1].posterior.mean.dtype == np.float64
    # Both stop within a tenth of 1e-5 x (|bound| + 100) a step of the same maximum.
    assert_allclose(fits[1].bounds[-1], fits[0].bounds[-1], rtol=1e-3)


# On minibatches


def minibatches(pixels, start=None, seed=0, **options):
    defaults = {"learn_frequencies": True, "batch_size": 64, "max_iter": 3, "tol": 0.0}
    rng = np.random.default_rng(seed)
    return fit_stochastic(pixels, start or some_start(), rng=rng, **(defaults | options))


@both_methods
def test_exact_passes_end_a_stochastic_fit_and_never_lower_the_bound(learn_frequencies):
    pixels, passes = some_pixels(n=300), []
    fit = minibatches(
        pixels,
        learn_frequencies=learn_frequencies,
        report_pass=lambda done, bound: passes.append((done, bound)),
    )
    assert np.all(np.diff(fit.bounds) >= -1e-10 * np.abs(fit.bounds).max())
    assert [bound for _, bound in passes] == list(fit.bounds[: len(passes)])
    assert [done for done, _ in passes] == list(range(1, len(passes) + 1))


@both_methods
def test_the_posterior_of_a_stochastic_fit_is_that_of_all_pixels(learn_frequencies, last_xi):
    pixels = some_pixels(n=300)
    fit = minibatches(pixels, learn_frequencies=learn_frequencies)
    assert_posterior_of_all_pixels(fit, pixels, last_xi["xi"])


def test_a_stochastic_fit_of_random_frequencies_keeps_their_directions():
    start = some_start()
    fit = minibatches(some_pixels(n=300), start, learn_frequencies=False)
    assert_allclose(fit.frequencies, start.unit_frequencies / fit.lengthscale, rtol=1e-10)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_do_not_change_a_bit_of_a_stochastic_fit(threads):
    one, other = (
        minibatches(some_pixels(n=1500, threads=t, rows_per_block=256), batch_size=1200)
        for t in (1, threads)
    )
    assert one.bounds == other.bounds
    assert one.held_back_losses == other.held_back_losses
    assert_array_equal(one.frequencies, other.frequencies)
    assert_array_equal(one.posterior.mean, other.posterior.mean)


def test_a_resumed_stochastic_fit_is_the_uninterrupted_one_bit_for_bit():
    pixels, kept = some_pixels(n=300), []
    whole = minibatches(pixels, report=kept.append)
    assert [walk.n_iter for walk in kept] == [1, 2, 3]
    for walk in kept:
        rest = minibatches(pixels, resume=walk)
        assert rest.bounds == whole.bounds
        assert rest.held_back_losses == whole.held_back_losses
        assert_array_equal(rest.posterior.mean, whole.posterior.mean)


def test_an_interrupted_stochastic_fit_still_sees_all_pixels_once():
    def report(walk):
        if walk.n_iter == 2:
            raise KeyboardInterrupt

    pixels = some_pixels(n=300)
    stopped = minibatches(pixels, max_iter=10, report=report)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", 2)
    assert len(stopped.bounds) == 1
    assert np.all(np.isfinite(stopped.posterior.mean))


def test_an_interrupt_in_the_exact_passes_keeps_the_last_finished_one():
    def report_pass(done, bound):
        if done == 2:
            raise KeyboardInterrupt

    pixels = some_pixels(n=300)
    stopped = minibatches(pixels, report_pass=report_pass)
    whole = minibatches(pixels)
    assert (stopped.outcome, stopped.n_iter) == ("interrupted", whole.n_iter)
    assert stopped.bounds == whole.bounds[:2]
    assert_array_equal(stopped.frequencies, whole.frequencies)
    assert np.all(np.isfinite(stopped.posterior.mean))


# The sample that frequencies are learned on


def test_few_pixels_in_memory_are_their_own_sample():
    pixels = some_pixels(n=50)
    assert draw_sample(pixels, np.random.default_rng(0)) is pixels


def test_many_pixels_are_sampled_in_order_and_without_repeats(monkeypatch):
    monkeypatch.setattr(variational, "SAMPLE_ROWS", 200)
    pixels = some_pixels(n=1000)
    sample = draw_sample(pixels, np.random.default_rng(0))
    rows = {tuple(row): i for i, row in enumerate(pixels.rows)}
    found = [rows[tuple(row)] for row in sample.rows]
    # Draws that fall in the same row are one: a tenth or so of 200 from 1,000.
    assert 150 < len(found) <= 200
    assert found == sorted(set(found))
    # As likely early as late: the mean of 180 uniform draws, standard error 289/13 = 22.
    assert abs(np.mean(found) - 499.5) < 5 * 22
    assert_array_equal(sample.positive, pixels.positive[found])


def test_the_bytes_of_a_sample_are_limited_too(monkeypatch):
    monkeypatch.setattr(variational, "SAMPLE_BYTES", 100 * 2 * 4)
    sample = draw_sample(some_pixels(n=1000, d=2), np.random.default_rng(0))
    assert sample.n_rows <= 100
