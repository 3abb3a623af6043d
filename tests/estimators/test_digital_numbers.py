"""Default models of an image's digital numbers: in other units, types and chunks, and in searches.

A model that was fitted to digital numbers should say of reflectances, or of numbers that were
scaled twice, what it knew before it saw any pixel: the shares of the classes.
"""

import dask.array as da
import numpy as np
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import RFFGPC, VFFGPC, load_model, save_model
from undulatus.estimators import classifier

DARKEST = np.array([700.0, 600.0, 500.0, 450.0, 400.0])
RANGE = np.array([60.0, 80.0, 100.0, 250.0, 150.0])


def draw_image(n, share, seed=0):
    """Return n pixels of five bands, some 700 to 6,000 each with a long tail, and their labels."""
    rng = np.random.default_rng(seed)
    brightness, own = rng.gamma(4.0, size=(n, 1)), rng.gamma(4.0, size=(n, 5))
    latent = brightness[:, 0] + 2.0 * np.sin(own[:, 3]) + 0.5 * own[:, 4]
    latent += 0.7 * rng.normal(size=n)
    X = np.round(DARKEST + RANGE * (brightness + own))
    return X, (latent > np.quantile(latent, 1.0 - share)).astype(int)


# A few iterations are enough where a model is compared with itself.
quick = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def small(kind=VFFGPC, **params):
    return kind(**({"n_frequencies": 8, "n_estimators": 3, "random_state": 0} | params))


# In other units

OTHER_UNITS = {"times 100": 100.0, "reflectances": 1e-4}
WEIGHTS = {
    "plain": {},
    "balanced": {"class_weight": "balanced"},
    "undone": {"class_weight": "balanced", "prior_correction": "training"},
    "weighted": {"class_weight": {0: 1.0, 1: 3.0}},
    "corrected": {"class_weight": {0: 1.0, 1: 3.0}, "prior_correction": [0.9, 0.1]},
}


def expected_share(y, class_weight=None, prior_correction=None):
    """Return the share of the second class that a model is told of, by hand."""
    if prior_correction is not None:
        return y.mean() if prior_correction == "training" else prior_correction[1]
    if class_weight == "balanced":
        return 0.5
    factor = 1.0 if class_weight is None else class_weight[1] / class_weight[0]
    return factor * y.mean() / (factor * y.mean() + 1.0 - y.mean())


@pytest.mark.parametrize("rows", [400, 800], ids=["batch", "stochastic"])
@pytest.mark.parametrize("share", [0.5, 0.15], ids=["even", "uneven"])
@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_pixels_in_other_units_have_the_prior_variance_and_the_class_shares(rows, share, weights):
    X, y = draw_image(rows, share)
    fitted = small(**weights).fit(X, y)
    assert fitted.score(X, y) > 0.6
    for factor in OTHER_UNITS.values():
        _, variance = fitted.latent_mean_and_variance(factor * X)
        assert np.all(variance >= 0.9 * fitted.signal_variance_)
        found = fitted.predict_proba(factor * X)[:, 1]
        assert_allclose(found, expected_share(y, **weights), rtol=0, atol=0.02)


@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
@pytest.mark.parametrize("factor", OTHER_UNITS.values(), ids=OTHER_UNITS)
def test_a_single_model_is_its_prior_in_other_units(kind, factor):
    X, y = draw_image(400, 0.15)
    fitted = small(kind, n_estimators=1, taper=0.2).fit(X, y)
    mean, variance = fitted.latent_mean_and_variance(factor * X)
    # What is left of the waves is exp(-r²/2), and the nearest pixels have r² > 20.
    assert_allclose(variance, fitted.signal_variance_, rtol=1e-4)
    assert_allclose(mean, fitted.estimators_[0].latents[0].prior_mean, atol=1e-3)
    assert_allclose(fitted.predict_proba(factor * X)[:, 1], 0.15, atol=1e-4)


def test_a_prior_correction_multiplies_the_odds_away_from_the_data_as_among_them():
    X, y = draw_image(400, 0.15)
    plain, corrected = (
        small(n_estimators=1, prior_correction=real).fit(X, y) for real in (None, [0.5, 0.5])
    )
    shift = logit(0.5) - logit(y.mean())
    far = corrected.predict_proba(100.0 * X)[:, 1]
    assert_allclose(far, expit(logit(plain.predict_proba(100.0 * X)[:, 1]) + shift), atol=1e-9)


def test_waves_that_go_on_for_ever_do_not_return_to_the_shares():
    X, y = draw_image(400, 0.15)
    fitted = small(n_estimators=1, taper=0.0).fit(X, y)
    assert np.all(np.abs(fitted.predict_proba(100.0 * X)[:, 1] - 0.15) > 0.1)


# Types, chunks and files


@quick
@pytest.mark.parametrize("rows", [400, 800], ids=["batch", "stochastic"])
def test_the_same_values_in_single_and_double_precision_give_the_same_bits(rows):
    X, y = draw_image(rows, 0.5)
    # Beyond what whole numbers need, and exact in single precision.
    X = np.sinh(X / 700.0).astype(np.float32)
    single, double = (small(max_iter=5).fit(X.astype(dtype), y) for dtype in ("f4", "f8"))
    assert single.standardisation_.warp is not None
    assert_array_equal(single.frequencies_, double.frequencies_)
    assert_array_equal(single.predict_proba(X), double.predict_proba(X.astype(np.float64)))


@quick
def test_a_dask_array_has_the_warp_and_the_model_of_the_array_in_it():
    X, y = draw_image(900, 0.3)
    weight = np.random.default_rng(1).integers(0, 3, len(y)).astype(float)
    options = {"solver": "stochastic", "max_iter": 3, "class_weight": "balanced"}
    expected = small(**options).fit(X, y, weight)
    chunks = [da.from_array(array, chunks=(250, *array.shape[1:])) for array in (X, y, weight)]
    found = small(**options).fit(*chunks)
    for name in ("middle", "width"):
        one, other = (getattr(m.standardisation_.warp, name) for m in (found, expected))
        assert_allclose(one, other, rtol=1e-12)
    assert_allclose(found.standardisation_.scale, expected.standardisation_.scale, rtol=1e-12)
    # Sums of chunks round differently.
    for factor in (1.0, *OTHER_UNITS.values()):
        assert_allclose(
            found.predict_proba(factor * X), expected.predict_proba(factor * X), atol=1e-9
        )


@quick
@pytest.mark.parametrize("rows", [400, 800], ids=["batch", "stochastic"])
def test_a_default_model_predicts_the_same_bits_from_its_file(rows, tmp_path):
    X, y = draw_image(rows, 0.15)
    fitted = small(prior_correction=[0.9, 0.1], max_iter=5).fit(X, y, groups=np.arange(rows) % 7)
    save_model(fitted, tmp_path / "model.undulatus")
    loaded = load_model(tmp_path / "model.undulatus")
    for factor in (1.0, 2.0, *OTHER_UNITS.values()):
        one, other = (model.predict_in_full(factor * X) for model in (loaded, fitted))
        for found, expected in zip(vars(one).values(), vars(other).values(), strict=True):
            assert_array_equal(found, expected)
        assert_array_equal(loaded.predict(factor * X), fitted.predict(factor * X))


# With scikit-learn's tools


@pytest.fixture
def metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@quick
@pytest.mark.usefixtures("metadata_routing")
def test_groups_reach_the_best_model_of_a_search_over_a_pipeline(monkeypatch):
    X, y = draw_image(300, 0.4)
    scene = np.repeat([f"scene {number}" for number in range(6)], 50)
    small_ensemble = small(n_frequencies=3, n_estimators=2, max_iter=2).set_fit_request(
        groups=True
    )
    pipeline = make_pipeline(StandardScaler(), small_ensemble)
    seen = []
    real = classifier.leave_out

    def spy(pixels, *rest):
        seen.append(len(np.unique(pixels.groups)))
        return real(pixels, *rest)

    monkeypatch.setattr(classifier, "leave_out", spy)
    grid = {"vffgpc__kernel": ["rbf", "matern32"]}
    search = GridSearchCV(pipeline, grid, cv=GroupKFold(3)).fit(X, y, groups=scene)
    # Three folds, each without two of the six scenes, of two settings; then all rows.
    assert seen == [4] * 6 + [6]
    direct = clone(search.best_estimator_).fit(X, y, groups=scene)
    without = clone(search.best_estimator_).fit(X, y)
    assert_array_equal(search.predict_proba(X), direct.predict_proba(X))
    assert not np.array_equal(search.predict_proba(X), without.predict_proba(X))


@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
@pytest.mark.parametrize("rows", [300, 1000, 3000])
def test_default_fits_of_ordinary_data_converge_without_a_warning(kind, rows):
    X, y = draw_image(rows, 0.3, seed=rows)
    # Warnings are errors here. All but the number of frequencies is the default.
    fitted = kind(10, random_state=0).fit(X, y)
    assert fitted.fit_report_["stopped"] == "converged"
    assert len(fitted.estimators_) == 8
