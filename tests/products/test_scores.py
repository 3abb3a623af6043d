"""Scores, compared with a calculation by hand and with scikit-learn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss, roc_auc_score

from undulatus.products.scores import Scores, expected_calibration_error, score

seeds = st.integers(0, 2**32 - 1)


def random_case(seed, n=200):
    rng = np.random.default_rng(seed)
    probability = rng.uniform(0.001, 0.999, n)
    positive = rng.random(n) < probability
    positive[:2] = [True, False]
    return positive, probability


def test_scores_of_four_pixels_are_those_calculated_by_hand():
    positive = np.array([True, False, True, False])
    probability = np.array([0.9, 0.2, 0.4, 0.6])
    found = score(positive, probability)
    assert found.accuracy == 0.5
    assert_allclose(found.nll, -np.log([0.9, 0.8, 0.4, 0.4]).mean(), rtol=1e-12)
    assert_allclose(found.brier, (0.01 + 0.04 + 0.36 + 0.36) / 4, rtol=1e-12)
    # Pairs of a positive and a negative: 0.9 beats both, 0.4 beats 0.2 only.
    assert found.auc == 0.75
    # Each pixel has a bin of its own: the gaps are 0.1, 0.2, 0.6, 0.6.
    assert_allclose(found.ece, 1.5 / 4, rtol=1e-12)


@given(seeds)
def test_scores_equal_those_of_scikit_learn(seed):
    positive, probability = random_case(seed)
    found = score(positive, probability)
    assert_allclose(found.accuracy, accuracy_score(positive, probability > 0.5), rtol=1e-12)
    assert_allclose(found.nll, log_loss(positive, probability), rtol=1e-12)
    assert_allclose(found.brier, brier_score_loss(positive, probability), rtol=1e-12)
    assert_allclose(found.auc, roc_auc_score(positive, probability), rtol=1e-12)


@given(seeds, st.integers(1, 30))
def test_the_calibration_error_is_the_mean_gap_over_bins(seed, bins):
    positive, probability = random_case(seed)
    total = 0.0
    for low in np.arange(bins) / bins:
        inside = (probability >= low) & (probability < low + 1 / bins)
        if inside.any():
            gap = abs(probability[inside].mean() - positive[inside].mean())
            total += gap * inside.mean()
    # A probability on an edge may fall into either bin by rounding: one row of 200.
    assert abs(expected_calibration_error(positive, probability, bins) - total) <= 2 / 200


def test_labels_drawn_from_the_probabilities_make_them_calibrated():
    rng = np.random.default_rng(0)
    n = 100_000
    probability = rng.beta(0.5, 0.5, n)
    positive = rng.random(n) < probability
    # A bin of n/15 rows has a gap of standard error at most 0.5 / sqrt(n/15); its mean size
    # is 0.8 of that, and 15 of them average to 0.0049: allow half as much again.
    assert expected_calibration_error(positive, probability) < 0.5 * np.sqrt(15 / n)


def test_overconfidence_is_a_calibration_error():
    rng = np.random.default_rng(0)
    positive = rng.random(20_000) < 0.7
    assert_allclose(expected_calibration_error(positive, np.full(20_000, 0.95)), 0.25, atol=0.02)


def test_certain_and_right_is_the_best_score():
    positive = np.array([True, False, True])
    found = score(positive, positive.astype(float))
    assert (found.accuracy, found.auc) == (1.0, 1.0)
    assert_allclose([found.nll, found.brier, found.ece], 0.0, atol=1e-12)


def test_certain_and_wrong_is_a_finite_score():
    found = score(np.array([True, False]), np.array([0.0, 1.0]))
    assert np.isfinite(found.nll)
    assert found.nll > 30
    assert found.brier == found.ece == 1.0


@pytest.mark.parametrize("label", [True, False])
def test_one_class_alone_has_no_auc(label):
    found = score(np.full(5, label), np.linspace(0.1, 0.9, 5))
    assert np.isnan(found.auc)
    assert np.isfinite([found.accuracy, found.nll, found.brier, found.ece]).all()


def test_labels_may_be_numbers():
    probability = np.array([0.9, 0.2, 0.4])
    numbers = score(np.array([1, 0, 1]), probability)
    assert numbers == score(np.array([True, False, True]), probability)


def test_scores_are_plain_numbers_by_name():
    found = score(*random_case(0)).as_dict()
    assert set(found) == set(Scores.__dataclass_fields__)
    assert all(type(value) is float for value in found.values())
