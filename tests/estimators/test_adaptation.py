"""A model adapted to a new scene by a few labels of it."""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import GPC, RFFGPC, VFFGPC, adapt, load_model, save_model
from undulatus.errors import InputError
from undulatus.regimes import Regime, RegimeClassifier

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:These labels are:UserWarning"),
]


def draw(n, seed=0, classes=2, shift=0.0):
    """Rows of a scene, whose score is shifted against that of the others."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    score = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.3 * rng.normal(size=n) + shift
    return X, np.digitize(score, np.linspace(-1.0, 1.0, classes + 1)[1:-1])


@cache
def fitted(kind, classes=2):
    X, y = draw(300, classes=classes)
    options = {"n_frequencies": 12, "max_iter": 10} if kind is not GPC else {"max_iter": 10}
    if kind is VFFGPC:
        options |= {"n_estimators": 2}
    return kind(random_state=0, **options).fit(X, y)


def nll(model, X, y):
    p = model.predict_proba(X)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return float(-np.mean(np.log(p)))


each_model = pytest.mark.parametrize("kind", [VFFGPC, RFFGPC, GPC])
each_number = pytest.mark.parametrize("classes", [2, 4])


@each_model
@each_number
def test_ten_labels_of_another_scene_help_there(kind, classes):
    model = fitted(kind, classes)
    X, y = draw(500, 1, classes, shift=0.8)
    adapted = model.adapt(X[:10], y[:10])
    assert nll(adapted, X[10:], y[10:]) < 0.95 * nll(model, X[10:], y[10:])


@each_model
@each_number
def test_labels_of_calls_add_up_and_are_forgotten(kind, classes):
    model, (X, y) = fitted(kind, classes), draw(40, 1, classes, shift=0.8)
    before = model.predict_proba(X)
    twice = model.adapt(X[:10], y[:10]).adapt(X[10:20], y[10:20])
    assert_allclose(
        twice.predict_proba(X), model.adapt(X[:20], y[:20]).predict_proba(X), rtol=1e-9
    )
    assert_array_equal(model.predict_proba(X), before)
    assert_array_equal(twice.forget().predict_proba(X), before)
    assert_array_equal(twice.forget().feature_quantiles_, model.feature_quantiles_)


@each_model
@each_number
def test_labels_decisions_and_probabilities_agree(kind, classes):
    model, (X, y) = fitted(kind, classes), draw(400, 1, classes, shift=0.8)
    adapted = model.adapt(X[:10], y[:10])
    p, decision = adapted.predict_proba(X), adapted.decision_function(X)
    assert_array_equal(adapted.predict(X), adapted.classes_[p.argmax(axis=1)])
    assert_allclose(p.sum(axis=1), 1.0)
    found = decision > 0 if classes == 2 else decision.argmax(axis=1)
    assert_array_equal(adapted.classes_[found.astype(int)], adapted.predict(X))
    assert (adapted.latent_mean_and_variance(X)[1] >= 0.0).all()


@each_model
@each_number
def test_files_hold_adapted_models(kind, classes, tmp_path):
    model, (X, y) = fitted(kind, classes), draw(30, 1, classes, shift=0.8)
    adapted = model.adapt(X[:10], y[:10], np.linspace(0.5, 2.0, 10))
    save_model(adapted, tmp_path / "here.undulatus")
    found = load_model(tmp_path / "here.undulatus")
    assert_array_equal(found.predict_proba(X), adapted.predict_proba(X))
    assert_array_equal(found.forget().predict_proba(X), model.predict_proba(X))
    more = found.adapt(X[10:20], y[10:20]).predict_proba(X)
    assert_array_equal(more, adapted.adapt(X[10:20], y[10:20]).predict_proba(X))


@each_model
def test_weights_are_repeated_rows(kind):
    model, (X, y) = fitted(kind), draw(30, 1, shift=0.8)
    weighted = model.adapt(X[:5], y[:5], [1.0, 2.0, 1.0, 3.0, 0.0])
    chosen = [0, 1, 1, 2, 3, 3, 3]
    assert_allclose(
        weighted.predict_proba(X), model.adapt(X[chosen], y[chosen]).predict_proba(X), rtol=1e-5
    )


def test_one_class_is_enough():
    model, (X, y) = fitted(VFFGPC), draw(200, 1)
    ones = X[y == 1]
    adapted = model.adapt(ones[:5], np.ones(5, int))
    assert (adapted.latent_mean(X) > model.latent_mean(X)).mean() > 0.9


def test_labels_extend_the_range_of_training():
    model, (X, y) = fitted(VFFGPC), draw(10, 1)
    X = X + 6.0
    adapted = model.adapt(X, y)
    assert (adapted.feature_quantiles_[-1] > X.max(axis=0)).all()
    assert_array_equal(adapted.feature_quantiles_[:-1], model.feature_quantiles_[:-1])


def test_far_from_all_data_a_scene_is_at_the_prior():
    model, (X, y) = fitted(VFFGPC), draw(10, 1)
    adapted = model.adapt(X, y)
    far = np.full((1, 3), 1e4)
    assert_allclose(adapted.predict_proba(far), model.predict_proba(far), atol=1e-9)


def test_labels_of_another_kind_of_scene_are_told():
    model, (X, y) = fitted(VFFGPC), draw(60, 1)
    with pytest.warns(UserWarning, match="times likelier in a scene of another kind"):
        model.adapt(X, 1 - y)


@pytest.mark.filterwarnings("error")
def test_labels_like_those_of_training_are_not_told():
    model, (X, y) = fitted(VFFGPC), draw(20, 1)
    model.adapt(X, y)


@pytest.mark.parametrize(
    ("X", "y", "words"),
    [
        (np.zeros((0, 3)), [], "minimum of 1 is required"),
        (np.zeros((2, 3)), [0, 7], "y holds 7, but the model knows the classes 0, 1"),
        (np.zeros((2, 2)), [0, 1], "2 features"),
        (np.full((2, 3), np.nan), [0, 1], "NaN"),
        (np.zeros((2, 3)), [0], "y has shape"),
        (np.full((2, 3), np.inf), [0, 1], "infinity"),
        (np.zeros((2_001, 3)), np.zeros(2_001, int), "1 to 2,000 labelled rows"),
    ],
)
def test_what_cannot_be_labels_of_a_scene(X, y, words):
    model = fitted(RFFGPC)
    with pytest.raises(InputError, match=words):
        model.adapt(X, y)


def test_scene_takes_no_update():
    model, (X, y) = fitted(RFFGPC), draw(10, 1)
    with pytest.raises(InputError, match="takes more labels by adapt"):
        model.adapt(X, y).update(X, y)


def test_updated_model_is_adapted():
    model, (X, y) = fitted(RFFGPC), draw(30, 1, shift=0.8)
    updated = model.update(X[:10], y[:10])
    adapted = updated.adapt(X[10:20], y[10:20])
    assert_array_equal(adapted.forget().predict_proba(X), updated.predict_proba(X))
    assert_allclose(adapted.forget().forget().predict_proba(X), model.predict_proba(X), rtol=1e-8)


def test_new_fit_forgets_the_scene():
    model, (X, y) = fitted(RFFGPC), draw(300)
    again = model.adapt(X[:10], y[:10]).fit(X, y)
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_last_step_of_a_pipeline_is_adapted(tmp_path):
    X, y = draw(300)
    pipeline = make_pipeline(StandardScaler(), RFFGPC(12, random_state=0, max_iter=5)).fit(X, y)
    X_new, y_new = draw(30, 1, shift=0.8)
    adapted = adapt(pipeline, X_new[:10], y_new[:10])
    expected = pipeline[-1].adapt(pipeline[:-1].transform(X_new[:10]), y_new[:10])
    assert_array_equal(
        adapted.predict_proba(X_new), expected.predict_proba(pipeline[:-1].transform(X_new))
    )
    save_model(adapted, tmp_path / "here.undulatus")
    found = load_model(tmp_path / "here.undulatus")
    assert_array_equal(found.predict_proba(X_new), adapted.predict_proba(X_new))


def test_regimes_with_labels_are_adapted(tmp_path):
    def table(n, seed, shift=0.0):
        X, y = draw(n, seed, shift=shift)
        angle = np.random.default_rng(seed).uniform(0.0, 180.0, n)
        return pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "angle": angle}), y

    X, y = table(400, 0)
    parts = [Regime("day", 0.0, 90.0, ("a", "b")), Regime("night", 90.0, 180.0, ("a", "b"))]
    model = RegimeClassifier(RFFGPC(12, random_state=0, max_iter=5), parts, by="angle").fit(X, y)
    X_new, y_new = table(60, 1, shift=0.8)
    of_day = np.flatnonzero(X_new["angle"] < 90.0)
    adapted = model.adapt(X_new.iloc[of_day[:10]], y_new[of_day[:10]])
    before, after = model.predict_proba(X_new), adapted.predict_proba(X_new)
    changed = (before != after).any(axis=1)
    assert_array_equal(changed, X_new["angle"] < 90.0)
    assert_array_equal(adapted.forget().predict_proba(X_new), before)
    assert_array_equal(adapt(model, X_new, y_new).classes_, model.classes_)
    save_model(adapted, tmp_path / "here.undulatus")
    found = load_model(tmp_path / "here.undulatus")
    assert_array_equal(found.predict_proba(X_new), after)


def test_other_classifiers_cannot_be_adapted():
    X, y = draw(50)
    with pytest.raises(InputError, match="LogisticRegression cannot be adapted"):
        adapt(LogisticRegression().fit(X, y), X[:5], y[:5])
