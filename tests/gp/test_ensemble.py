"""An ensemble: how its estimators are fitted, and what they say together."""

import signal
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logit

from undulatus.errors import NotEnoughMemoryError
from undulatus.gp import ensemble
from undulatus.gp.ensemble import (
    fit_ensemble,
    pooled_log_odds,
    pooled_log_probabilities,
    pooled_moments,
    pooled_probabilities,
    require_memory,
)
from undulatus.gp.posterior import FourierFit, LatentFit, expected_sigmoid

# Fitting


def fit_named(name, outcome="converged"):
    return FourierFit(np.zeros((1, 1)), 1.0, (LatentFit(1.0, None, (float(name),)),), 1, outcome)


@pytest.mark.parametrize(
    ("threads", "shares"),
    [(1, [1, 1, 1, 1, 1]), (2, [1, 1, 1, 1, 2]), (3, [1, 1, 1, 1, 1]), (12, [2, 2, 2, 2, 2])],
)
def test_threads_are_shared_out_and_estimators_stay_in_order(threads, shares):
    given_threads = {}

    def fit(number, threads, check):
        given_threads[number] = threads
        return fit_named(number)

    fits = fit_ensemble(fit, 5, threads)
    assert [fit.bounds[0] for fit in fits] == [0, 1, 2, 3, 4]
    assert [given_threads[number] for number in range(5)] == shares


def test_estimators_run_at_the_same_time():
    together = threading.Barrier(3, timeout=30)

    def fit(number, threads, check):
        together.wait()
        return fit_named(number)

    assert len(fit_ensemble(fit, 3, 3)) == 3


def test_the_error_of_an_estimator_ends_the_others_and_is_raised():
    began = threading.Event()

    def fit(number, threads, check):
        if number == 1:
            assert began.wait(30)
            raise ValueError("estimator 1")
        began.set()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(number, "interrupted")

    with pytest.raises(ValueError, match="estimator 1"):
        fit_ensemble(fit, 2, 2)


def _check_until_raised(check):
    for _ in range(3000):
        check()
        threading.Event().wait(0.01)


@pytest.fixture
def interrupt(monkeypatch):
    """A function that interrupts the main thread as soon as that waits for the estimators."""
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


def test_an_interrupt_keeps_the_estimators_that_are_finished(interrupt):
    def fit(number, threads, check):
        if number < 2:
            return fit_named(number)
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(number, "interrupted")

    fits = fit_ensemble(fit, 5, 1)
    assert [fit.bounds[0] for fit in fits] == [0, 1]
    with pytest.raises(KeyboardInterrupt):
        fit_ensemble(fit, 5, 1, interruptible=False)


def test_an_interrupt_before_any_member_is_finished_keeps_those_under_way(interrupt):
    def fit(number, threads, check):
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(number, "interrupted")

    assert [fit.outcome for fit in fit_ensemble(fit, 3, 1)] == ["interrupted"]


def test_an_estimator_that_was_interrupted_leaves_no_ensemble_unless_it_is_interruptible():
    def fit(number, threads, check):
        if number:
            raise KeyboardInterrupt
        return fit_named(number)

    assert len(fit_ensemble(fit, 2, 1)) == 1
    with pytest.raises(KeyboardInterrupt):
        fit_ensemble(fit, 2, 1, interruptible=False)


def test_an_interrupt_that_leaves_nothing_is_raised():
    def fit(number, threads, check):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_ensemble(fit, 2, 1)


# Prediction

MEANS = np.random.default_rng(8).normal(size=(4, 50)) * 3.0
VARIANCES = np.random.default_rng(9).gamma(1.0, size=(4, 50))
NO_SHIFT = np.zeros(1)


def test_the_pooled_moments_are_those_of_the_mixture():
    mean, variance = pooled_moments(MEANS, VARIANCES)
    assert_allclose(mean, MEANS.mean(axis=0), rtol=1e-12)
    second = (VARIANCES + MEANS**2).mean(axis=0)
    # The oracle subtracts numbers of size up to about 100.
    assert_allclose(variance, second - mean**2, rtol=1e-10, atol=1e-12)
    assert np.all(variance >= VARIANCES.mean(axis=0))


@given(st.floats(-4.0, 4.0))
def test_pooled_probabilities_are_the_means_of_the_estimators(shift):
    pooled = pooled_probabilities(MEANS[:, None], VARIANCES[:, None], np.array([shift]))
    for found, sign in zip(pooled, (-1.0, 1.0), strict=True):
        expected = np.mean(expected_sigmoid(sign * MEANS, VARIANCES, sign * shift), axis=0)
        assert_allclose(found, expected, rtol=1e-12)


def test_the_shift_multiplies_the_odds_of_the_second_class_of_each_estimator():
    one, plain, shifted = MEANS[:1, None], NO_SHIFT, np.array([np.log(3.0)])
    for function in (pooled_probabilities, pooled_log_odds):
        before, after = (function(one, VARIANCES[:1, None], own) for own in (plain, shifted))
        if function is pooled_log_odds:
            assert_allclose(after - before, np.log(3.0), rtol=1e-10)
        else:
            assert_allclose(after[1] / after[0], 3.0 * before[1] / before[0], rtol=1e-10)


@given(st.floats(-4.0, 4.0))
def test_the_pooled_log_odds_are_the_logit_of_the_mean_probability(shift):
    probability = expected_sigmoid(MEANS, VARIANCES, shift).mean(axis=0)
    found = pooled_log_odds(MEANS[:, None], VARIANCES[:, None], np.array([shift]))
    # The oracle loses digits of 1 - p, which is above 1e-6 here.
    assert_allclose(found, logit(probability), rtol=1e-8, atol=1e-10)


def test_log_odds_keep_their_digits_where_probabilities_round_to_one():
    means, none = np.array([[[900.0]], [[1000.0]]]), np.zeros((2, 1, 1))
    # The first estimator is less sure of the second class: exp(-900) / 2 + exp(-1000) / 2.
    assert_allclose(pooled_log_odds(means, none, NO_SHIFT), 900.0 + np.log(2.0), rtol=1e-12)
    assert_allclose(pooled_log_odds(-means, none, NO_SHIFT), -900.0 - np.log(2.0), rtol=1e-12)


def test_neither_of_two_probabilities_is_rounded_away():
    means, none = np.array([[[300.0]]]), np.zeros((1, 1, 1))
    first, second = pooled_probabilities(means, none, NO_SHIFT)
    assert_allclose([first[0], second[0]], [np.exp(-300.0), 1.0], rtol=1e-12)


def test_more_than_two_classes_share_the_probability_of_each_estimator():
    rng = np.random.default_rng(3)
    means, variances = rng.normal(size=(4, 3, 50)) * 2.0, rng.gamma(1.0, size=(4, 3, 50))
    factors = np.array([0.5, 1.0, 4.0])
    own = expected_sigmoid(means, variances) * factors[:, None]
    expected = np.mean(own / own.sum(axis=1, keepdims=True), axis=0)
    found = pooled_probabilities(means, variances, np.log(factors))
    assert_allclose(found, expected, rtol=1e-12)
    assert_allclose(np.sum(found, axis=0), 1.0, rtol=1e-12)
    logs = pooled_log_probabilities(means, variances, np.log(factors))
    assert_allclose(logs, np.log(expected), rtol=1e-11, atol=1e-13)


def test_one_estimator_is_its_own_ensemble():
    mean, variance = pooled_moments(MEANS[:1], VARIANCES[:1])
    assert_array_equal(mean, MEANS[0])
    assert_array_equal(variance, VARIANCES[0])


# Memory


@pytest.mark.parametrize(("threads", "at_once"), [(1, 1), (2, 2), (8, 3)])
def test_an_ensemble_that_needs_too_much_memory_is_an_error(monkeypatch, threads, at_once):
    # Three estimators of four latent functions over 10 frequencies of 7 features.
    needed = 8.0 * (3 * (4 * 20**2 + 10 * 7) + at_once * ensemble.MATRICES * 20**2)
    monkeypatch.setattr(ensemble, "available_memory", lambda: needed)
    require_memory("VFFGPC", 3, 10, 7, 4, threads)
    monkeypatch.setattr(ensemble, "available_memory", lambda: needed - 1.0)
    with pytest.raises(NotEnoughMemoryError, match=r"n_frequencies=10.*4 latent functions"):
        require_memory("VFFGPC", 3, 10, 7, 4, threads)
