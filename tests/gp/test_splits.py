"""Rows held back from learning: which they are, and their loss."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp.data import Block, Pixels, Standardisation
from undulatus.gp.damping import damping
from undulatus.gp.fourier import fourier_features
from undulatus.gp.held_back import (
    HELD_BACK_ROWS,
    LARGEST_SHARE,
    digest_rows,
    held_back_loss,
    leave_out,
    number_groups,
)
from undulatus.gp.posterior import WeightMoments, expected_sigmoid

seeds = st.integers(0, 2**32 - 1)


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
    per_window = left_out(data, splits_of(data))[:, data.codes].sum(axis=1)
    assert np.all(np.abs(per_window - np.sum(data.codes) / 5) <= 2)


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
    grouped = pixels(data.rows, data.codes, groups=data.codes.astype(int))
    for learning, held_back in splits_of(grouped):
        assert set(data.codes[learning]) == set(data.codes[held_back]) == {True, False}


def test_the_order_is_drawn():
    data = random_pixels(200)
    one, other = (left_out(data, splits_of(data, seed=seed)) for seed in (1, 2))
    assert (one != other).any()
    assert_array_equal(one, left_out(data, splits_of(data, seed=1)))


def test_a_weight_of_two_leaves_like_a_row_given_again_later():
    once = random_pixels(150)
    weight = np.random.default_rng(4).integers(1, 4, size=150)
    weighted = pixels(once.rows, once.codes, weight.astype(float))
    again = np.random.default_rng(5).permutation(np.repeat(np.arange(150), weight - 1))
    copies = np.concatenate([np.arange(150), again])
    repeated = pixels(once.rows[copies], once.codes[copies])
    assert_array_equal(
        left_out(weighted, splits_of(weighted))[:, copies], left_out(repeated, splits_of(repeated))
    )


def test_units_do_not_change_what_is_left_out():
    data = random_pixels(150)
    other = pixels(273.15 + data.rows / 7.0, data.codes)
    assert_array_equal(left_out(data, splits_of(data)), left_out(other, splits_of(other)))


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
    movable = distinct[counts <= LARGEST_SHARE * len(units)]

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
        assert data.codes[held_back].any()


# What a single model leaves out


def split_of(n_rows, seed=0, share=0.4):
    return splits_of(random_pixels(n_rows, seed, share=share), 1, seed)[0]


@given(st.integers(2, 3000), seeds)
def test_every_row_is_either_learned_from_or_held_back(n_rows, seed):
    learning, held_back = split_of(n_rows, seed)
    both = np.concatenate([learning, held_back])
    # Where no row can be spared, all are learned from and held back.
    assert_array_equal(np.unique(both), np.arange(n_rows))
    if len(both) > n_rows:
        assert_array_equal(learning, held_back)


@given(st.integers(2, 3000), seeds)
def test_both_parts_are_sorted(n_rows, seed):
    for part in split_of(n_rows, seed):
        assert np.all(np.diff(part) > 0)


@pytest.mark.parametrize("n_rows", [10, 57, 400, 5000, 10_000])
def test_a_fifth_is_held_back_give_or_take_a_row_at_either_end_of_the_window(n_rows):
    learning, held_back = split_of(n_rows)
    assert abs(len(held_back) - 0.2 * n_rows) <= 2
    assert len(learning) + len(held_back) == n_rows


def test_the_generator_determines_which_rows_are_held_back():
    data = random_pixels(400)
    one, same, other = (splits_of(data, 1, seed)[0][1] for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_every_row_is_equally_likely_to_be_held_back():
    rng, times = np.random.default_rng(0), 1000
    data = random_pixels(50)
    counts = np.zeros(50)
    for _ in range(times):
        counts[leave_out(data, 1, rng)[0][1]] += 1
    # The window holds 10 of 50 rows, give or take one: a binomial count, five standard errors.
    assert_allclose(counts / times, 0.2, atol=5 * np.sqrt(0.2 * 0.8 / times))


@given(seeds, st.integers(2, 30))
def test_rows_of_one_group_stay_together(seed, n_groups):
    rng = np.random.default_rng(seed)
    groups = np.concatenate([np.arange(n_groups), rng.integers(0, n_groups, 300)])
    ((learning, held_back),) = splits_of(random_pixels(len(groups), seed, groups), 1, seed)
    assert_array_equal(np.sort(np.concatenate([learning, held_back])), np.arange(len(groups)))
    assert not np.isin(groups[held_back], groups[learning]).any()


def test_groups_are_numbered_unless_there_is_only_one():
    assert_array_equal(number_groups(np.array(["b", "a", "c", "a"])), [1, 0, 2, 0])
    assert number_groups(np.array([7, 7, 7])) is None


# Digests


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


# The held-back loss


def some_block(rng, n=9, d=3, weight=None, dtype=np.float64):
    x, v = rng.normal(size=(n, d)), rng.choice([-0.5, 0.5], n)
    weight = np.ones(n) if weight is None else weight
    return Block(slice(0, n), x.astype(dtype), v.astype(dtype), weight.astype(dtype))


def loss_of(block, frequencies, signal_variance, moments, spread=None):
    return held_back_loss(block, frequencies, [signal_variance], [moments], spread)


def some_posterior(rng, D=4, d=3, size=1.0):
    root = rng.normal(size=(2 * D, 2 * D)) / np.sqrt(2 * D)
    moments = WeightMoments(size * rng.normal(size=2 * D), root @ root.T)
    return rng.normal(size=(D, d)), float(rng.uniform(0.5, 3.0)), moments


def slow_loss(block, frequencies, signal_variance, moments, spread=None):
    """The loss one row at a time: the negative logarithm of the probability of its class."""
    total = 0.0
    spread = np.zeros(block.x.shape[1]) if spread is None else spread
    for x, v, weight in zip(block.x, block.v, block.weight, strict=True):
        z = fourier_features(x[None], frequencies, signal_variance)[0]
        kept = damping(x[None], spread)[0]
        mean = kept * z @ moments.mean
        variance = kept**2 * z @ moments.covariance @ z + (1.0 - kept**2) * signal_variance
        positive = float(expected_sigmoid(mean, variance))
        total -= weight * np.log(positive if v > 0 else 1.0 - positive)
    return total / block.weight.sum()


@given(seeds)
def test_the_loss_is_the_weighted_mean_over_rows(seed):
    rng = np.random.default_rng(seed)
    block, posterior = some_block(rng, weight=rng.uniform(0.1, 5.0, 9)), some_posterior(rng)
    assert_allclose(loss_of(block, *posterior), slow_loss(block, *posterior), rtol=1e-10)


@given(seeds)
def test_the_loss_with_damped_waves_is_that_of_damped_moments(seed):
    rng = np.random.default_rng(seed)
    block, posterior = some_block(rng, weight=rng.uniform(0.1, 5.0, 9)), some_posterior(rng)
    spread = rng.uniform(0.0, 0.5, 3)
    found, expected = (loss(block, *posterior, spread) for loss in (loss_of, slow_loss))
    assert_allclose(found, expected, rtol=1e-10)


@given(seeds)
def test_single_precision_follows_double(seed):
    weight = np.random.default_rng(seed).uniform(0.1, 5.0, 9)
    losses = []
    for dtype in (np.float32, np.float64):
        rng = np.random.default_rng(seed)
        block, posterior = some_block(rng, weight=weight, dtype=dtype), some_posterior(rng)
        losses.append(loss_of(block, *posterior))
    assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_weight_equals_as_many_rows_and_only_ratios_of_weights_count():
    rng = np.random.default_rng(0)
    times = rng.integers(1, 5, 9)
    block, posterior = some_block(rng, weight=times), some_posterior(rng)
    rows = np.repeat(np.arange(9), times)
    repeated = Block(slice(0, len(rows)), block.x[rows], block.v[rows], np.ones(len(rows)))
    tenfold = Block(block.rows, block.x, block.v, 10.0 * block.weight)
    for same in (repeated, tenfold):
        assert_allclose(loss_of(same, *posterior), loss_of(block, *posterior), rtol=1e-12)


def test_a_posterior_with_mean_zero_has_a_loss_of_log_two():
    rng = np.random.default_rng(0)
    frequencies, signal_variance, moments = some_posterior(rng)
    no_signal = WeightMoments(np.zeros(8), moments.covariance)
    loss = loss_of(some_block(rng), frequencies, signal_variance, no_signal)
    assert_allclose(loss, np.log(2.0), rtol=1e-12)


def test_the_loss_of_a_row_thought_impossible_is_large_but_finite():
    rng = np.random.default_rng(0)
    loss = loss_of(some_block(rng), *some_posterior(rng, size=1e4))
    # A probability below exp(-745) is zero in double precision.
    assert 745 < loss < np.inf
