"""A committee: what its members leave out, how they are fitted, and what they say together."""

import signal
import threading
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logit

from undulatus.gp import committee
from undulatus.gp.blocks import Pixels, Standardisation
from undulatus.gp.committee import (
    digest_rows,
    fit_members,
    leave_out,
    pooled_log_odds,
    pooled_moments,
    pooled_probabilities,
)
from undulatus.gp.passes import HELD_BACK_ROWS, FourierFit
from undulatus.gp.posterior import expected_sigmoid


def pixels(rows, positive, weight=None, groups=None):
    d = rows.shape[1]
    identity = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(rows, positive, weight, identity, np.dtype(float), 256, groups=groups)


def random_pixels(n, seed=0, groups=None, share=0.4):
    rng = np.random.default_rng(seed)
    return pixels(rng.normal(size=(n, 3)), rng.random(n) < share, groups=groups)


def splits_of(data, n_members=5, seed=1):
    return leave_out(data, n_members, np.random.default_rng(seed))


def left_out(data, splits):
    """Return which rows each member does not learn from, (members, n) bool."""
    out = np.ones((len(splits), data.n_rows), bool)
    for member, (learning, _) in enumerate(splits):
        out[member, learning] = False
    return out


# What each member leaves out


def test_five_members_leave_out_each_row_once():
    data = random_pixels(1003)
    out = left_out(data, splits_of(data))
    assert_array_equal(out.sum(axis=0), 1)
    # A window holds a fifth of the rows, give or take one at either end.
    assert np.all(np.abs(out.sum(axis=1) - 1003 / 5) <= 2)


def test_held_back_rows_are_never_learned_from():
    data = random_pixels(300)
    for learning, held_back in splits_of(data):
        assert not set(learning) & set(held_back)
        assert_array_equal(np.sort(np.concatenate([learning, held_back])), np.arange(300))


def test_each_window_has_its_share_of_both_classes():
    data = random_pixels(1000, share=0.02)
    per_window = left_out(data, splits_of(data))[:, data.positive].sum(axis=1)
    assert np.all(np.abs(per_window - np.sum(data.positive) / 5) <= 2)


def test_groups_leave_as_a_whole_and_each_once():
    groups = np.random.default_rng(2).integers(40, size=800)
    data = random_pixels(800, groups=groups)
    out = left_out(data, splits_of(data))
    assert_array_equal(out.sum(axis=0), 1)
    for group in range(40):
        of_group = out[:, groups == group]
        assert np.all(of_group.all(axis=1) | ~of_group.any(axis=1))


def test_a_group_that_is_most_of_the_data_is_never_left_out():
    groups = np.where(np.arange(400) < 300, 0, np.arange(400))
    data = random_pixels(400, groups=groups)
    out = left_out(data, splits_of(data))
    assert not out[:, :300].any()
    assert_array_equal(out[:, 300:].sum(axis=0), 1)


def test_few_groups_are_each_left_out_by_someone():
    groups = np.arange(90) % 3
    out = left_out(data := random_pixels(90, groups=groups), splits_of(data))
    assert out.any(axis=1).all()
    assert out.any(axis=0).all()


def test_groups_of_one_class_each_give_way_to_rows():
    data = random_pixels(200)
    grouped = pixels(data.rows, data.positive, groups=data.positive.astype(int))
    for learning, held_back in splits_of(grouped):
        assert set(data.positive[learning]) == set(data.positive[held_back]) == {True, False}


def test_the_order_is_drawn():
    data = random_pixels(200)
    one, other = (left_out(data, splits_of(data, seed=seed)) for seed in (1, 2))
    assert (one != other).any()
    assert_array_equal(one, left_out(data, splits_of(data, seed=1)))


def test_a_weight_of_two_leaves_like_a_row_given_twice_in_any_order():
    once = random_pixels(150)
    weight = np.random.default_rng(4).integers(1, 4, size=150)
    weighted = pixels(once.rows, once.positive, weight.astype(float))
    copies = np.random.default_rng(5).permutation(np.repeat(np.arange(150), weight))
    repeated = pixels(once.rows[copies], once.positive[copies])
    assert_array_equal(
        left_out(weighted, splits_of(weighted))[:, copies], left_out(repeated, splits_of(repeated))
    )


def test_equal_rows_of_different_classes_leave_together():
    rows = np.random.default_rng(6).normal(size=(60, 2))
    data = pixels(np.concatenate([rows, rows]), np.repeat([False, True], 60))
    out = left_out(data, splits_of(data))
    assert_array_equal(out[:, :60], out[:, 60:])


@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=2, max_size=12),
    st.integers(1, 6),
    st.booleans(),
)
def test_members_learn_from_both_classes_and_hold_back_both_where_possible(
    labelled, n_members, grouped
):
    units, positive = (np.array(column) for column in zip(*labelled, strict=True))
    if positive.all() or not positive.any():
        positive[0] = not positive[0]
    rows = np.arange(len(units))[:, None] if grouped else units[:, None]
    data = pixels(rows.astype(float), positive, groups=units if grouped else None)
    distinct, counts = np.unique(units, return_counts=True)
    movable = distinct[counts <= committee.LARGEST_SHARE * len(units)]

    def both(chosen):
        return len(set(positive[chosen])) == 2

    choices = [np.isin(units, movable[list(keep)]) for keep in _subsets(len(movable))]
    possible = any(both(chosen) and both(~chosen) for chosen in choices)
    for learning, held_back in splits_of(data, n_members):
        assert both(learning)
        assert len(held_back)
        assert both(held_back) or not possible


def _subsets(n):
    return (np.flatnonzero(bits) for bits in product([False, True], repeat=n))


def test_many_held_back_rows_are_sampled_with_both_classes_among_them():
    data = random_pixels(12 * HELD_BACK_ROWS, share=0.001)
    for learning, held_back in splits_of(data):
        assert HELD_BACK_ROWS <= len(held_back) <= HELD_BACK_ROWS + 1
        assert len(learning) < 0.81 * data.n_rows
        assert data.positive[held_back].any()


def test_a_digest_depends_on_values_but_not_on_their_type():
    rows = np.array([[0.0, 1.5], [-0.0, 1.5], [1.5, 0.0], [300.25, -7.0]])
    digests = digest_rows(rows, 3)
    assert digests[0] == digests[1]
    assert len(set(digests.tolist())) == 3
    assert_array_equal(digest_rows(rows.astype(np.float32), 3), digests)
    assert (digest_rows(rows, 4) != digests).all()


def test_digests_are_spread_evenly():
    rows = np.arange(10_000.0)[:, None] * 1e-3
    places = digest_rows(rows, 0) / 2.0**64
    # Five standard errors of a uniform mean and of the share below a tenth.
    assert abs(places.mean() - 0.5) < 5 * np.sqrt(1 / 12 / 10_000)
    assert abs((places < 0.1).mean() - 0.1) < 5 * np.sqrt(0.09 / 10_000)


# Fitting


def fit_named(name, outcome="converged"):
    return FourierFit(np.zeros((1, 1)), 1.0, 1.0, None, (float(name),), 1, outcome)


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

    real = committee.wait
    monkeypatch.setattr(committee, "wait", wait)

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


def test_an_interrupt_before_any_member_is_finished_keeps_those_under_way(interrupt):
    def fit(member, threads, check):
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            _check_until_raised(check)
        return fit_named(member, "interrupted")

    assert [fit.outcome for fit in fit_members(fit, 3, 1)] == ["interrupted"]


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
    pooled = pooled_probabilities(MEANS, VARIANCES)
    for found, sign in zip(pooled, (-1.0, 1.0), strict=True):
        expected = np.mean(expected_sigmoid(sign * MEANS, VARIANCES), axis=0)
        assert_allclose(found, expected, rtol=1e-12)


def test_the_pooled_log_odds_are_the_logit_of_the_mean_probability():
    probability = expected_sigmoid(MEANS, VARIANCES).mean(axis=0)
    # The oracle loses digits of 1 - p, which is above 1e-4 here.
    assert_allclose(pooled_log_odds(MEANS, VARIANCES), logit(probability), rtol=1e-10)


def test_log_odds_keep_their_digits_where_probabilities_round_to_one():
    means = np.array([[900.0], [1000.0]])
    # The first member gives the second class up most readily: exp(-900) / 2 + exp(-1000) / 2.
    assert_allclose(pooled_log_odds(means, np.zeros((2, 1))), 900.0 + np.log(2.0), rtol=1e-12)
    assert_allclose(pooled_log_odds(-means, np.zeros((2, 1))), -900.0 - np.log(2.0), rtol=1e-12)


def test_one_member_is_its_own_committee():
    mean, variance = pooled_moments(MEANS[:1], VARIANCES[:1])
    assert_array_equal(mean, MEANS[0])
    assert_array_equal(variance, VARIANCES[0])
