"""An ensemble: how its members are fitted, and what they say together."""

import signal
import threading

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logit

from undulatus.gp import ensemble
from undulatus.gp.ensemble import (
    fit_members,
    pooled_log_odds,
    pooled_moments,
    pooled_probabilities,
)
from undulatus.gp.passes import FourierFit, LatentFit
from undulatus.gp.posterior import expected_sigmoid

# Fitting


def fit_named(name, outcome="converged"):
    return FourierFit(np.zeros((1, 1)), 1.0, (LatentFit(1.0, None, (float(name),)),), 1, outcome)


@pytest.mark.parametrize(
    ("threads", "shares"),
    [(1, [1, 1, 1, 1, 1]), (2, [1, 1, 1, 1, 2]), (3, [1, 1, 1, 1, 1]), (12, [2, 2, 2, 2, 2])],
)
def test_threads_are_shared_out_and_members_stay_in_order(threads, shares):
    given_threads = {}

    def fit(member, threads, check):
        given_threads[member] = threads
        return fit_named(member)

    fits = fit_members(fit, 5, threads)
    assert [fit.bounds[0] for fit in fits] == [0, 1, 2, 3, 4]
    assert [given_threads[member] for member in range(5)] == shares


def test_members_run_at_the_same_time():
    together = threading.Barrier(3, timeout=30)

    def fit(member, threads, check):
        together.wait()
        return fit_named(member)

    assert len(fit_members(fit, 3, 3)) == 3


def test_the_error_of_a_member_ends_the_others_and_is_raised():
    began = threading.Event()

    def fit(member, threads, check):
        if member == 1:
            assert began.wait(30)
            raise ValueError("member 1")
        began.set()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(member, "interrupted")

    with pytest.raises(ValueError, match="member 1"):
        fit_members(fit, 2, 2)


def _check_until_raised(check):
    for _ in range(3000):
        check()
        threading.Event().wait(0.01)


@pytest.fixture
def interrupt(monkeypatch):
    """A function that interrupts the main thread as soon as that waits for the members."""
    waiting = threading.Event()

    def wait(*arguments, **named):
        waiting.set()
        return real(*arguments, **named)

    real = ensemble.wait
    monkeypatch.setattr(ensemble, "wait", wait)

    def send():
        assert waiting.wait(30)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    return send


def test_an_interrupt_keeps_the_members_that_are_finished(interrupt):
    def fit(member, threads, check):
        if member < 2:
            return fit_named(member)
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(member, "interrupted")

    fits = fit_members(fit, 5, 1)
    assert [fit.bounds[0] for fit in fits] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        fit_members(fit, 5, 1, interruptible=False)


def test_an_interrupt_before_any_member_is_finished_keeps_those_under_way(interrupt):
    def fit(member, threads, check):
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(member, "interrupted")

    assert [fit.outcome for fit in fit_members(fit, 3, 1)] == ["interrupted"]


def test_a_member_that_was_interrupted_leaves_no_ensemble_unless_it_is_interruptible():
    def fit(member, threads, check):
        if member:
            raise KeyboardInterrupt
        return fit_named(member)

    assert len(fit_members(fit, 2, 1)) == 1
    with pytest.raises(KeyboardInterrupt):
        fit_members(fit, 2, 1, interruptible=False)


def test_an_interrupt_that_leaves_nothing_is_raised():
    def fit(member, threads, check):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_members(fit, 2, 1)


# Prediction

MEANS = np.random.default_rng(8).normal(size=(4, 50)) * 3.0
VARIANCES = np.random.default_rng(9).gamma(1.0, size=(4, 50))


def test_the_pooled_moments_are_those_of_the_mixture():
    mean, variance = pooled_moments(MEANS, VARIANCES)
    assert_allclose(mean, MEANS.mean(axis=0), rtol=1e-12)
    second = (VARIANCES + MEANS**2).mean(axis=0)
    # The oracle subtracts numbers of size up to about 100.
    assert_allclose(variance, second - mean**2, rtol=1e-10, atol=1e-12)
    assert np.all(variance >= VARIANCES.mean(axis=0))


def test_pooled_probabilities_are_the_means_of_the_members():
    pooled = pooled_probabilities(MEANS[:, None], VARIANCES[:, None])
    for found, sign in zip(pooled, (-1.0, 1.0), strict=True):
        expected = np.mean(expected_sigmoid(sign * MEANS, VARIANCES), axis=0)
        assert_allclose(found, expected, rtol=1e-12)


def test_the_pooled_log_odds_are_the_logit_of_the_mean_probability():
    probability = expected_sigmoid(MEANS, VARIANCES).mean(axis=0)
    # The oracle loses digits of 1 - p, which is above 1e-4 here.
    assert_allclose(
        pooled_log_odds(MEANS[:, None], VARIANCES[:, None]), logit(probability), rtol=1e-10
    )


def test_log_odds_keep_their_digits_where_probabilities_round_to_one():
    means, none = np.array([[[900.0]], [[1000.0]]]), np.zeros((2, 1, 1))
    # The first member gives the second class up most readily: exp(-900) / 2 + exp(-1000) / 2.
    assert_allclose(pooled_log_odds(means, none), 900.0 + np.log(2.0), rtol=1e-12)
    assert_allclose(pooled_log_odds(-means, none), -900.0 - np.log(2.0), rtol=1e-12)


def test_one_member_is_its_own_ensemble():
    mean, variance = pooled_moments(MEANS[:1], VARIANCES[:1])
    assert_array_equal(mean, MEANS[0])
    assert_array_equal(variance, VARIANCES[0])
