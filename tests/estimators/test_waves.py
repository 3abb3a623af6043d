"""Waves of a classifier: they sum to its latent mean, and their weights are what they move."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

from undulatus import RFFGPC, VFFGPC
from undulatus.estimators.waves import wave_deviation, waves_of


def deviation_and_error(samples):
    """The standard deviation of samples (n, ...), and its standard error by the delta method."""
    away = samples - samples.mean(axis=0)
    variance = np.mean(away**2, axis=0)
    error = np.sqrt((np.mean(away**4, axis=0) - variance**2) / len(samples))
    return np.sqrt(variance), error / (2.0 * np.sqrt(variance))


@pytest.mark.parametrize("turn", [0.05, 0.5, 1.0, 2.0, 6.0])
@pytest.mark.parametrize("delay", [0.0, 0.4, 1.5, 2.5, np.pi])
def test_the_weight_is_the_deviation_of_the_wave_over_gaussian_phases(turn, delay):
    phases = np.random.default_rng(0).normal(0.0, turn, 200_000)
    found, error = deviation_and_error(3.0 * np.cos(phases - delay))
    weight = wave_deviation(np.array(3.0), np.array(delay), np.array(turn))
    assert abs(weight - found) <= 5.0 * error


@given(st.floats(0.0, 1e3), st.floats(-np.pi, np.pi), st.floats(0.0, 50.0))
def test_no_weight_exceeds_the_amplitude(amplitude, delay, turn):
    weight = wave_deviation(np.array(amplitude), np.array(delay), np.array(turn))
    assert 0.0 <= weight <= amplitude * (1.0 + 1e-12)


def test_small_phases_keep_their_digits():
    # To first order a wave is a slope, a sin(delay); the next order is s² of it.
    weight = wave_deviation(np.array(2.0), np.array(1.0), np.array(1e-9))
    assert_allclose(weight, 2.0 * 1e-9 * np.sin(1.0), rtol=1e-12)


def test_a_wave_whose_phase_does_not_vary_has_no_weight():
    assert wave_deviation(np.array(5.0), np.array(1.0), np.array(0.0)) == 0.0


@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
@pytest.mark.parametrize("standardize", [True, False])
def test_waves_sum_to_the_latent_mean(clouds, kind, standardize):
    X, y = clouds
    X = X / [15.0, 0.2, 4.0]
    model = kind(7, standardize=standardize, max_iter=3, tol=1.0, random_state=0).fit(X, y)
    waves = waves_of(model)
    phases = (X - waves.centre) @ waves.frequencies.T
    found = np.cos(phases - waves.delays) @ waves.amplitudes
    assert_allclose(found, model.decision_function(X), rtol=1e-9, atol=1e-9)


def test_waves_are_ranked_and_point_towards_the_second_class(clouds):
    waves = waves_of(RFFGPC(20, random_state=0).fit(*clouds))
    assert (np.diff(waves.weights) <= 0.0).all()
    assert (waves.delays >= 0.0).all()
    assert (waves.delays <= np.pi).all()


def test_weights_are_the_deviations_of_waves_over_uncorrelated_training_rows():
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(4000, 6)) @ rng.normal(size=(6, 6))
    X = PCA(4).fit_transform(raw)
    model = RFFGPC(8, random_state=0, max_iter=3, tol=1.0).fit(X, X[:, 0] > X[:, 1])
    waves = waves_of(model)
    phases = (X - waves.centre) @ waves.frequencies.T
    assert_allclose(phases.std(axis=0), waves.turns, rtol=1e-9)
    found, error = deviation_and_error(waves.amplitudes * np.cos(phases - waves.delays))
    assert (np.abs(waves.weights - found) <= 5.0 * error).all()


def test_a_constant_feature_turns_no_phase(clouds):
    X, y = clouds
    with_constant = np.column_stack([X, np.full(len(X), 7.0)])
    waves = waves_of(RFFGPC(5, random_state=0).fit(with_constant, y))
    assert waves.deviation[-1] == 0.0
    assert_allclose(
        waves.turns, np.linalg.norm(waves.frequencies[:, :3] * X.std(axis=0), axis=1), rtol=1e-9
    )


def test_features_left_as_they_are_have_the_deviation_of_their_quartiles(clouds):
    X, y = clouds
    scaled = X / [15.0, 0.2, 4.0]
    waves = waves_of(RFFGPC(5, standardize=False, random_state=0).fit(scaled, y))
    # Quartiles of 200 Gaussian values have a standard error of 7 %; three features, so allow 4.
    assert_allclose(waves.deviation, scaled.std(axis=0), rtol=0.28)
    assert_array_equal(waves.centre, np.quantile(scaled, 0.5, axis=0, method="inverted_cdf"))


def test_an_unfitted_classifier_has_no_waves():
    with pytest.raises(NotFittedError):
        waves_of(RFFGPC())
