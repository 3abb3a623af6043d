"""Rows held back: which they are, and what they say about a posterior."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp.blocks import Block
from undulatus.gp.fourier import fourier_features
from undulatus.gp.logistic import expected_sigmoid
from undulatus.gp.posterior import Moments
from undulatus.gp.validation import HELD_BACK_ROWS, held_back_loss, hold_back

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
    moments = Moments(size * rng.normal(size=2 * D), root @ root.T)
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
    ignorant = Moments(np.zeros(8), moments.covariance)
    loss = held_back_loss(some_block(rng), frequencies, signal_variance, ignorant)
    assert_allclose(loss, np.log(2.0), rtol=1e-12)


def test_what_was_thought_impossible_costs_much_but_not_infinitely_much():
    rng = np.random.default_rng(0)
    loss = held_back_loss(some_block(rng), *some_posterior(rng, size=1e4))
    # A probability below exp(-745) is zero in double precision.
    assert 745 < loss < np.inf
