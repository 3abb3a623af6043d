"""Coordinates whose inner products are the posterior covariance."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from undulatus import GPC, RFFGPC
from undulatus.estimators.coordinates import posterior_coordinates

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

WIDTH = 20_000


@pytest.fixture(scope="module", params=[2, 3], ids=["two classes", "three classes"])
def model_and_rows(request, moons):
    X, y = moons
    labels = y if request.param == 2 else y + (X[:, 0] > 1.0)
    model = RFFGPC(8, n_estimators=3, random_state=0).fit(X, labels)
    # The last rows lie outside of training, where the latent function fades to its prior.
    return model, np.concatenate([X[:20], [[5.0, 5.0], [40.0, -40.0]]])


def test_squared_lengths_are_the_variances_added_up_over_classes(model_and_rows):
    model, rows = model_and_rows
    found = posterior_coordinates(model, rows, np.random.default_rng(0), WIDTH)
    variance = model.latent_mean_and_variance(rows)[1].reshape(len(rows), -1).sum(axis=1)
    # A squared length is a mean of WIDTH squares of one Gaussian each: its standard deviation is
    # at most sqrt(2 / WIDTH) of it, and 22 rows allow for five of them.
    assert_allclose(np.sum(found**2, axis=1), variance, rtol=5 * np.sqrt(2 / WIDTH))


def test_a_label_at_a_near_row_lowers_the_variance_more(model_and_rows):
    model, rows = model_and_rows
    found = posterior_coordinates(model, rows, np.random.default_rng(0), 2_000)
    cosine = found @ found[0] / np.linalg.norm(found, axis=1) / np.linalg.norm(found[0])
    before = model.latent_mean_and_variance(rows)[1].reshape(len(rows), -1).sum(axis=1)
    updated = model.update(rows[:1], model.predict(rows[:1]), sample_weight=[5.0])
    # The variance of one estimator: that of an ensemble also has what its estimators differ by.
    after = updated.latent_mean_and_variance(rows)[1].reshape(len(rows), -1).sum(axis=1)
    nearest, farthest = np.argsort(-np.abs(cosine))[1], np.argmin(np.abs(cosine))
    assert (after / before)[nearest] < (after / before)[farthest]


def test_the_exact_classifier_gives_its_standardised_features(moons):
    X, y = moons
    model = GPC(max_iter=2).fit(X[:30], y[:30])
    found = posterior_coordinates(model, X[:30], np.random.default_rng(0))
    assert_allclose(found, model.standardisation_(X[:30], np.float64))
