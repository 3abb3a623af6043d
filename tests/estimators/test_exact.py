"""GPC compared with scikit-learn's classifier and with random features, and its limits."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.preprocessing import StandardScaler

from undulatus import GPC, RFFGPC
from undulatus.errors import InputError, TooManyRowsError
from undulatus.estimators.progress_line import ProgressLine
from undulatus.gp import exact
from undulatus.gp.kernels import KERNELS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def problem():
    X, y = make_moons(500, noise=0.25, random_state=2)
    return X[:120], y[:120], X[120:], y[120:]


@pytest.mark.parametrize("posterior", ["variational", "bound"])
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_gpc_agrees_with_scikit_learn_at_the_same_hyperparameters(seed, posterior):
    X, y = make_moons(420, noise=0.25, random_state=seed)
    ours = GPC(tol=1e-6, posterior=posterior, warp=False).fit(X[:120], y[:120])
    scaler = StandardScaler().fit(X[:120])
    kernel = ours.signal_variance_ * RBF(ours.lengthscale_)
    theirs = GaussianProcessClassifier(kernel, optimizer=None)
    theirs.fit(scaler.transform(X[:120]), y[:120])
    found = ours.predict_proba(X[120:])[:, 1]
    expected = theirs.predict_proba(scaler.transform(X[120:]))[:, 1]
    # Laplace's method uses the curvature at the mode, ours its mean under the posterior or that
    # of a parabola below the sigmoid: Gaussian approximations, whose probabilities differ by a
    # few hundredths.
    assert np.mean((found > 0.5) == (expected > 0.5)) >= 0.97
    assert np.mean(np.abs(found - expected)) < 0.06
    assert np.max(np.abs(found - expected)) < 0.2


def test_gpc_agrees_with_scikit_learn_when_each_learns_its_hyperparameters(problem):
    X, y, X_test, _ = problem
    scaler = StandardScaler().fit(X)
    theirs = GaussianProcessClassifier(1.0 * RBF(1.0), random_state=0).fit(scaler.transform(X), y)
    ours = GPC(tol=1e-6, warp=False).fit(X, y)
    found = ours.predict_proba(X_test)[:, 1]
    expected = theirs.predict_proba(scaler.transform(X_test))[:, 1]
    # The bound gets looser as the latent function grows, so it prefers a smaller signal
    # variance than Laplace's method (9 against 34 here): slopes differ by about a third.
    assert np.mean((found > 0.5) == (expected > 0.5)) >= 0.97
    assert np.mean(np.abs(found - expected)) < 0.08


def test_random_features_approach_the_exact_classifier(problem):
    X, y, X_test, _ = problem
    exactly = GPC(tol=1e-6).fit(X, y).predict_proba(X_test)[:, 1]
    options = {"n_estimators": 1, "solver": "batch", "taper": 0.0, "tol": 1e-6}
    off = {
        D: np.mean(
            [
                np.abs(
                    RFFGPC(D, random_state=seed, **options).fit(X, y).predict_proba(X_test)[:, 1]
                    - exactly
                ).mean()
                for seed in range(3)
            ]
        )
        for D in (4, 100)
    }
    assert off[100] < 0.5 * off[4]
    assert off[100] < 0.03


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_classifies(problem, kernel):
    X, y, X_test, y_test = problem
    assert GPC(kernel=kernel, max_iter=10).fit(X, y).score(X_test, y_test) > 0.9


def test_equal_rows_are_merged(moons):
    X, y = moons
    fitted = GPC(max_iter=2).fit(np.vstack([X, X]), np.concatenate([y, y]))
    assert fitted.training_.shape == X.shape
    assert fitted.fit_report_["rows"] == len(X)


def test_equal_rows_of_different_classes_are_not_merged():
    X = np.array([[0.0], [0.0], [1.0], [2.0]])
    fitted = GPC(max_iter=2).fit(X, [0, 1, 1, 0])
    assert len(fitted.training_) == 4


def test_the_training_rows_are_standardised_by_their_weights(moons):
    X, y = moons
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    fitted = GPC(max_iter=1, warp=False).fit(X, y, sample_weight=weight)
    mean = np.average(X, axis=0, weights=weight)
    deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
    order = np.lexsort(((X - mean) / deviation).T[::-1])
    found = fitted.training_[np.lexsort(fitted.training_.T[::-1])]
    assert_allclose(found, ((X - mean) / deviation)[order], rtol=1e-9, atol=1e-12)


def test_tails_are_compressed_before_rows_are_standardised_by_their_weights(moons):
    X, y = moons
    X = np.sinh(3.0 * X)
    weight = np.random.default_rng(2).integers(1, 4, len(y))
    fitted = GPC(max_iter=1).fit(X, y, sample_weight=weight)
    rows = np.repeat(X, weight, axis=0)
    # An odd number of rows: the middle one is the median.
    assert len(rows) % 2
    middle = np.median(rows, axis=0)
    width = np.abs(rows - middle).mean(axis=0)
    warped, all_warped = (np.arcsinh((values - middle) / width) for values in (X, rows))
    expected = (warped - all_warped.mean(axis=0)) / all_warped.std(axis=0)
    found = fitted.training_[np.lexsort(fitted.training_.T[::-1])]
    assert_allclose(found, expected[np.lexsort(expected.T[::-1])], rtol=1e-9, atol=1e-12)


def test_rows_are_centred_but_not_scaled_without_standardize(moons):
    X, y = moons
    fitted = GPC(max_iter=2, standardize=False).fit(X, y)
    expected = np.sort(X - X.mean(axis=0), axis=0)
    assert_allclose(np.sort(fitted.training_, axis=0), expected, rtol=1e-12, atol=1e-12)


def test_the_seed_has_no_effect(moons):
    X, y = moons
    one, other = (GPC(max_iter=2, random_state=seed).fit(X, y) for seed in (0, 1))
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def test_prediction_does_not_depend_on_how_rows_are_blocked(problem):
    X, y, X_test, _ = problem
    fitted = GPC(max_iter=3).fit(X, y)
    whole = fitted.predict_proba(X_test)
    parts = [fitted.predict_proba(X_test[i : i + 7]) for i in range(0, len(X_test), 7)]
    assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("posterior", ["variational", "bound"])
def test_far_from_the_data_the_classes_have_their_shares_or_are_equally_likely(clouds, posterior):
    X, y = clouds
    fitted = GPC(max_iter=3, posterior=posterior).fit(X, y)
    # Only the best Gaussian posterior has a prior mean.
    expected = y.mean() if posterior == "variational" else 0.5
    assert_allclose(fitted.predict_proba(np.full((1, 3), 1e6))[0, 1], expected, rtol=1e-9)


def test_too_many_rows_for_memory_are_refused(monkeypatch, moons):
    monkeypatch.setattr(exact, "available_memory", lambda: 2.0**19)
    with pytest.raises(
        TooManyRowsError, match=r"120 training rows(.|\n)*RFFGPC or VFFGPC"
    ) as caught:
        GPC().fit(*moons)
    assert isinstance(caught.value, InputError)


def test_an_interrupt_keeps_the_finished_iterations(moons, monkeypatch):
    X, y = moons
    # An interrupted fit hands out the bound's posterior, without further passes.
    short = GPC(max_iter=2, tol=0.0, posterior="bound").fit(X, y)

    def call(self, step, state, estimator=0):
        if step == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProgressLine, "__call__", call)
    stopped = GPC(max_iter=9, tol=0.0, on_interrupt="keep")
    with pytest.warns(ConvergenceWarning, match="Interrupted after 2"):
        stopped.fit(X, y)
    assert stopped.fit_report_["stopped"] == "interrupted"
    assert_array_equal(stopped.predict_proba(X), short.predict_proba(X))
