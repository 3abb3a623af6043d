"""Validation rows: which are left out while frequencies are learned, and their loss."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import dense_features

from undulatus.gp.backends import HOST, make_backend
from undulatus.gp.data import Block, Pixels, Standardisation
from undulatus.gp.posterior import expected_sigmoid
from undulatus.gp.splits import (
    LARGEST_SHARE,
    VALIDATION_ROWS,
    digest_rows,
    leave_out,
    number_groups,
    shares_entropy,
    validation_loss,
)

seeds = st.integers(0, 2**32 - 1)


def pixels(rows, codes, weight=None, groups=None, n_classes=2):
    d = rows.shape[1]
    identity = Standardisation(np.zeros(d), np.ones(d))
    return Pixels(rows, codes, weight, identity, HOST, 256, groups=groups, n_classes=n_classes)


def random_pixels(n, seed=0, groups=None, share=0.4):
    rng = np.random.default_rng(seed)
    return pixels(rng.normal(size=(n, 3)), rng.random(n) < share, groups=groups)


def splits_of(data, n_estimators=5, seed=1):
    return leave_out(data, n_estimators, np.random.default_rng(seed))


def left_out(data, splits):
    """Return which rows each estimator does not learn from, (estimators, n) bool."""
    out = np.ones((len(splits), data.n_rows), bool)
    for i, (learning, _) in enumerate(splits):
        out[i, learning] = False
    return out


# What each estimator leaves out


def test_five_estimators_leave_out_each_row_once():
    data = random_pixels(1003)
    out = left_out(data, splits_of(data))
    assert_array_equal(out.sum(axis=0), 1)
    # A window holds a fifth of the rows, give or take one at either end.
    assert np.all(np.abs(out.sum(axis=1) - 1003 / 5) <= 2)


def test_validation_rows_are_never_learned_from():
    data = random_pixels(300)
    for learning, validation in splits_of(data):
        assert not set(learning) & set(validation)
        assert_array_equal(np.sort(np.concatenate([learning, validation])), np.arange(300))


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
    for learning, validation in splits_of(grouped):
        assert set(data.codes[learning]) == set(data.codes[validation]) == {True, False}


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
def test_estimators_learn_from_both_classes_and_validate_on_both_where_possible(
    labelled, n_estimators, grouped
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
    for learning, validation in splits_of(data, n_estimators):
        assert both(learning)
        assert len(validation)
        assert both(validation) or not possible


def _subsets(n):
    return (np.flatnonzero(bits) for bits in product([False, True], repeat=n))


def test_many_validation_rows_are_sampled_with_both_classes_among_them():
    data = random_pixels(12 * VALIDATION_ROWS, share=0.001)
    for learning, validation in splits_of(data):
        assert VALIDATION_ROWS <= len(validation) <= VALIDATION_ROWS + 1
        assert len(learning) < 0.81 * data.n_rows
        assert data.codes[validation].any()


# What a single model leaves out


def split_of(n_rows, seed=0, share=0.4):
    return splits_of(random_pixels(n_rows, seed, share=share), 1, seed)[0]


@given(st.integers(2, 3000), seeds)
def test_every_row_is_either_learned_from_or_validation(n_rows, seed):
    learning, validation = split_of(n_rows, seed)
    both = np.concatenate([learning, validation])
    # Where no row can be spared, all are learned from and left out.
    assert_array_equal(np.unique(both), np.arange(n_rows))
    if len(both) > n_rows:
        assert_array_equal(learning, validation)


@given(st.integers(2, 3000), seeds)
def test_both_parts_are_sorted(n_rows, seed):
    for part in split_of(n_rows, seed):
        assert np.all(np.diff(part) > 0)


@pytest.mark.parametrize("n_rows", [10, 57, 400, 5000, 10_000])
def test_a_fifth_is_validation_give_or_take_a_row_at_either_end_of_the_window(n_rows):
    learning, validation = split_of(n_rows)
    assert abs(len(validation) - 0.2 * n_rows) <= 2
    assert len(learning) + len(validation) == n_rows


def test_the_generator_determines_which_rows_are_validation():
    data = random_pixels(400)
    one, same, other = (splits_of(data, 1, seed)[0][1] for seed in (0, 0, 1))
    assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_every_row_is_equally_likely_to_be_validation():
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
    ((learning, validation),) = splits_of(random_pixels(len(groups), seed, groups), 1, seed)
    assert_array_equal(np.sort(np.concatenate([learning, validation])), np.arange(len(groups)))
    assert not np.isin(groups[validation], groups[learning]).any()


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


# The validation loss


def some_block(rng, n=9, d=3, weight=None, dtype=np.float64, classes=2):
    x, codes = rng.normal(size=(n, d)), rng.integers(0, classes, n)
    weight = np.ones(n) if weight is None else weight
    return Block(
        slice(0, n),
        x.astype(dtype),
        codes,
        weight.astype(dtype),
        make_backend(dtype),
        1 if classes == 2 else classes,
    )


def some_moments(rng, D=4, d=3, size=1.0, latents=1):
    """Frequencies, signal variances, and means and covariances of the weights of unit features."""
    roots = rng.normal(size=(latents, 2 * D, 2 * D)) / np.sqrt(2 * D)
    variances, means = rng.uniform(0.5, 3.0, latents), size * rng.normal(size=(latents, 2 * D))
    return rng.normal(size=(D, d)), variances, means, roots @ roots.mT


def slow_loss(block, frequencies, variances, means, covariances, deviations=None):
    """The loss one row at a time: the negative logarithm of the probability of its class."""
    total = 0.0
    z, untapered = dense_features(block.x, frequencies, deviations)
    for i, weight in enumerate(block.weight):
        own = [
            float(expected_sigmoid(z[i] @ mean, z[i] @ S @ z[i] + gamma * untapered[i]))
            for gamma, mean, S in zip(variances, means, covariances, strict=True)
        ]
        if block.n_latents == 1:
            likelihood = own[0] if block.codes[i] else 1.0 - own[0]
        else:
            likelihood = own[block.codes[i]] / sum(own)
        total -= weight * np.log(likelihood)
    return total / block.weight.sum()


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("tapered", [False, True])
@given(seed=seeds)
def test_the_loss_is_the_weighted_mean_over_rows(classes, tapered, seed):
    rng = np.random.default_rng(seed)
    block = some_block(rng, weight=rng.uniform(0.1, 5.0, 9), classes=classes)
    frequencies, *moments = some_moments(rng, latents=1 if classes == 2 else classes)
    deviations = rng.uniform(0.0, 0.5, 3) if tapered else None
    found = validation_loss(block, frequencies, deviations, *moments)
    assert_allclose(found, slow_loss(block, frequencies, *moments, deviations), rtol=1e-10)


@given(seeds)
def test_single_precision_follows_double(seed):
    losses = []
    for dtype in (np.float32, np.float64):
        rng = np.random.default_rng(seed)
        block = some_block(rng, dtype=dtype)
        frequencies, *moments = some_moments(rng)
        losses.append(validation_loss(block, frequencies, None, *moments))
    assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_a_weight_equals_as_many_rows_and_only_ratios_of_weights_count():
    rng = np.random.default_rng(0)
    times = rng.integers(1, 5, 9)
    block, (frequencies, *moments) = some_block(rng, weight=times), some_moments(rng)
    rows = np.repeat(np.arange(9), times)
    repeated = replace(block, x=block.x[rows], codes=block.codes[rows], weight=np.ones(len(rows)))
    expected = validation_loss(block, frequencies, None, *moments)
    for same in (repeated, replace(block, weight=10.0 * block.weight)):
        found = validation_loss(same, frequencies, None, *moments)
        assert_allclose(found, expected, rtol=1e-12)


def test_a_posterior_with_mean_zero_has_a_loss_of_log_two():
    rng = np.random.default_rng(0)
    frequencies, variances, means, covariances = some_moments(rng)
    loss = validation_loss(some_block(rng), frequencies, None, variances, 0.0 * means, covariances)
    assert_allclose(loss, np.log(2.0), rtol=1e-12)


def test_the_loss_of_a_row_thought_impossible_is_large_but_finite():
    rng = np.random.default_rng(0)
    block, (frequencies, *moments) = some_block(rng), some_moments(rng, size=1e5)
    # A probability below exp(-745) is zero in double precision.
    assert 745 < validation_loss(block, frequencies, None, *moments) < np.inf


@pytest.mark.parametrize("classes", [2, 3])
def test_the_loss_of_the_shares_alone_is_their_entropy(classes):
    rng = np.random.default_rng(1)
    block = some_block(rng, n=50, weight=rng.uniform(0.1, 5.0, 50), classes=classes)
    codes = block.codes.astype(int)
    shares = np.array([block.weight[codes == c].sum() for c in range(classes)])
    shares /= shares.sum()
    expected = np.average(-np.log(shares[codes]), weights=block.weight)
    assert_allclose(shares_entropy(block), expected, rtol=1e-12)
    assert shares_entropy(replace(block, codes=np.ones(50, dtype=bool))) == 0.0


def test_estimators_learn_from_and_validate_on_all_of_several_classes():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], [200, 80, 20])
    data = pixels(rng.normal(size=(300, 3)), codes, n_classes=3)
    for learning, validation in splits_of(data):
        for part in (learning, validation):
            counts = np.bincount(codes[part], minlength=3) / len(part)
            # A fifth of each class, give or take two rows.
            assert np.all(np.abs(counts - np.array([200, 80, 20]) / 300) <= 2.5 / len(part))
