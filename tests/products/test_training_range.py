"""How far a pixel lies outside what a classifier learned from: by quantiles alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression

from undulatus import RFFGPC
from undulatus.products.training_range import TrainingRange

seeds = st.integers(0, 2**16)


def learned_from(rows):
    return TrainingRange(*np.quantile(rows, [0.0, 0.01, 0.5, 0.99, 1.0], axis=0))


def distance_one_by_one(learned, row):
    """The definition, feature by feature."""
    beyond, rare = [0.0], []
    for j, value in enumerate(row):
        excess = max(learned.lowest[j] - value, value - learned.highest[j])
        if excess > learned.slack[j]:
            beyond.append(excess / learned.width[j])
        excess = max(learned.low[j] - value, value - learned.high[j])
        if excess > learned.slack[j]:
            rare.append(excess / learned.width[j])
    if len(rare) >= learned.rare_features:
        beyond.append(sorted(rare)[-learned.rare_features])
    return max(beyond)


@given(seeds, st.integers(1, 9), st.floats(0.5, 3.0))
def test_the_distance_is_that_of_the_definition(seed, d, spread):
    rng = np.random.default_rng(seed)
    learned = learned_from(rng.normal(size=(200, d)))
    # A common part makes several features rare at once.
    rows = spread * (rng.normal(size=(50, d)) + rng.normal(size=(50, 1)))
    expected = [distance_one_by_one(learned, row) for row in rows]
    assert_allclose(learned.distance(rows), expected, rtol=1e-6)  # float32 has seven digits.


@given(seeds, st.integers(1, 12), st.floats(0.0, 1.0))
def test_few_training_rows_are_outside_however_features_are_correlated(seed, d, shared):
    rng = np.random.default_rng(seed)
    rows = (1.0 - shared) * rng.standard_cauchy((400, d)) + shared * rng.normal(size=(400, 1))
    # Markov: 2 % of each feature are rare, so at most 4 % of the rows have a half of them rare.
    # Of 400 rows, quantiles between two of them leave one row more at either end.
    assert np.mean(learned_from(rows).distance(rows) > 0.0) <= 2.0 * (0.02 + 2 / 400)


@pytest.mark.parametrize(
    ("d", "enough"), [(1, 1), (3, 3), (4, 4), (5, 4), (7, 4), (8, 5), (17, 9)]
)
def test_more_than_half_of_the_features_must_be_rare_and_four_if_there_are_so_many(d, enough):
    learned = TrainingRange(*(np.full(d, value) for value in (-9.0, -1.0, 0.0, 1.0, 9.0)))
    assert learned.rare_features == enough
    rows = np.zeros((2, d))
    rows[0, : enough - 1] = rows[1, :enough] = -2.0
    # One unit beyond the central range, which is two wide.
    assert_array_equal(learned.distance(rows), [0.0, 0.5])


def test_dark_values_within_the_extremes_are_outside_if_all_are_dark():
    rng = np.random.default_rng(0)
    counts = rng.gamma(5.0, 200.0, size=(5000, 6))
    counts[0] = 0.0  # One pixel was black, so that no reflectance is below all of training.
    learned = learned_from(counts)
    assert (learned.distance(counts / 10_000) > 0.0).all()
    assert np.mean(learned.distance(counts) > 0.0) < 0.01


def test_rounding_to_single_precision_does_not_leave_the_range():
    rng = np.random.default_rng(0)
    rows = 300.1 + 1e-3 * rng.normal(size=(100, 3))
    rows[:, 0] = 273.15  # A constant feature has no width.
    learned = learned_from(rows)
    outermost = np.stack([learned.lowest, learned.highest]).astype(np.float32)
    assert_array_equal(learned.distance(outermost), 0.0)
    # A constant feature counts in its own units; single precision holds 273.15 to 3e-5.
    beside = learned.distance(outermost + np.float32([1.0, 0.0, 0.0]))
    assert_allclose(beside, 1.0, atol=3e-5)


def test_the_farthest_values_have_a_finite_distance_and_no_rows_none():
    learned = learned_from(np.random.default_rng(0).normal(size=(100, 2)) * 1e-30)
    far = np.full((1, 2), np.finfo(np.float32).max)
    assert np.isfinite(learned.distance(far)).all()
    assert learned.distance(far[:0]).shape == (0,)


def test_only_classifiers_that_keep_quantiles_have_a_range(moons):
    X, y = moons
    classifier = RFFGPC(3, n_estimators=1, random_state=0).fit(X, y)
    learned = TrainingRange.of(classifier)
    assert_array_equal([learned.lowest, learned.highest], [X.min(axis=0), X.max(axis=0)])
    central = [learned.low, learned.median, learned.high]
    assert_array_equal(central, classifier.feature_quantiles_[[1, 3, 5]])
    assert TrainingRange.of(LogisticRegression().fit(X, y)) is None
