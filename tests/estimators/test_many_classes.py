"""More than two classes: one latent function each, over the same frequencies."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, logit
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from undulatus import GPC, RFFGPC, VFFGPC, load_model, save_model
from undulatus.errors import InputError
from undulatus.estimators.progress_line import ProgressLine
from undulatus.gp.backends import HOST
from undulatus.gp.data import Pixels
from undulatus.gp.inference import Gaussian, PosteriorConfig, WeightSpace, fit_posteriors
from undulatus.gp.likelihood import EXPECTED
from undulatus.gp.taper import frequency_deviations

QUICK = {"max_iter": 12, "random_state": 0}

MODELS = {
    "GPC": GPC(tol=1e-3),
    "batch RFFGPC": RFFGPC(20, n_estimators=1, solver="batch", **QUICK),
    "batch VFFGPC": VFFGPC(8, n_estimators=1, solver="batch", max_iter=10, random_state=0),
    "stochastic RFFGPC": RFFGPC(20, n_estimators=2, solver="stochastic", batch_size=64, **QUICK),
    "stochastic VFFGPC": VFFGPC(12, n_estimators=2, solver="stochastic", batch_size=64, **QUICK),
}

each_model = pytest.mark.parametrize("name", MODELS)

ignore_convergence = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

pytestmark = ignore_convergence

NAMES = np.array(["cloud", "land", "snow", "water"])


def rings(n, seed=0):
    """Rows of four classes: three sectors of a disc, and what is around it."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    sector = ((np.arctan2(X[:, 1], X[:, 0]) + np.pi) * 3 / (2 * np.pi)).astype(int) % 3
    y = np.where(np.hypot(*X.T) > 1.3, 3, sector)
    y[rng.random(n) < 0.05] = 0
    return X, NAMES[y]


@pytest.fixture(scope="module")
def data():
    return rings(500)


@pytest.fixture(scope="module")
def unseen():
    return rings(800, seed=1)


@pytest.fixture(scope="module")
def fitted(data):
    from sklearn.base import clone

    return {name: clone(model).fit(*data) for name, model in MODELS.items()}


@each_model
def test_classes_are_learned(name, fitted, unseen):
    model, (X, y) = fitted[name], unseen
    probability = model.predict_proba(X)
    assert_array_equal(model.classes_, NAMES)
    assert probability.shape == (800, 4)
    assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)
    assert np.all(probability >= 0.0)
    assert model.score(X, y) > 0.85
    assert log_loss(y, probability) < 0.6


@each_model
def test_labels_scores_and_probabilities_agree(name, fitted, unseen):
    model, (X, _) = fitted[name], unseen
    probability = model.predict_proba(X)
    assert_array_equal(model.predict(X), NAMES[probability.argmax(axis=1)])
    assert_allclose(np.exp(model.decision_function(X)), probability, rtol=1e-9, atol=1e-300)


@each_model
def test_there_is_a_latent_function_a_class(name, fitted, unseen):
    model, (X, _) = fitted[name], unseen
    mean, variance = model.latent_mean_and_variance(X)
    assert mean.shape == variance.shape == (800, 4)
    assert np.all(variance > 0.0)
    assert_allclose(model.latent_mean(X), mean, rtol=1e-4, atol=1e-4)
    both = model.predict_proba_and_variance(X)
    assert_array_equal(both[0], model.predict_proba(X))
    assert_array_equal(both[1], variance)
    full = model.predict_in_full(X)
    assert_array_equal(full.probabilities, both[0])
    assert_array_equal(full.mean, mean)
    assert_array_equal(full.variance, variance)
    assert full.ensemble_std.shape == (800,)


def test_an_estimator_makes_probabilities_against_the_rest_sum_to_one(fitted, unseen):
    model, (X, _) = fitted["batch VFFGPC"], unseen
    mean, variance = model.latent_mean_and_variance(X)
    against_rest = expit(mean / np.sqrt(1.0 + np.pi / 8.0 * variance))
    expected = against_rest / against_rest.sum(axis=1, keepdims=True)
    assert_allclose(model.predict_proba(X), expected, rtol=1e-9)


def test_an_ensemble_has_the_mean_of_its_estimators_probabilities(fitted, unseen):
    model, (X, _) = fitted["stochastic VFFGPC"], unseen
    alone = []
    for estimator in model.estimators_:
        single = VFFGPC(12, n_estimators=1)
        vars(single).update(vars(model) | {"estimators_": (estimator,), "n_estimators": 1})
        alone.append(single.predict_proba(X))
    assert_allclose(model.predict_proba(X), np.mean(alone, axis=0), rtol=1e-9)
    latent = [estimator.latents for estimator in model.estimators_]
    assert [len(own) for own in latent] == [4, 4]


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
def test_the_posterior_of_a_class_is_that_of_two_classes_at_its_frequencies(solver, data, unseen):
    """Given frequencies, a class against the rest is a fit of two classes."""
    X, y = data
    options = {"n_estimators": 1, "solver": solver, "tol": 1e-7, "random_state": 0, "warp": False}
    model = RFFGPC(15, **options).fit(X, y)
    (estimator,) = model.estimators_
    deviations = frequency_deviations(estimator.frequencies, estimator.taper)
    for code, own in enumerate(estimator.latents):
        positive = y == NAMES[code]
        pixels = Pixels(X, positive, None, model.standardisation_, HOST, 256)
        log_odds = logit(np.mean(positive))
        space = WeightSpace(pixels, estimator.frequencies, deviations, [log_odds])
        config = PosteriorConfig(EXPECTED, max_passes=200, tol=1e-9)
        (slow,), _ = fit_posteriors(space, [Gaussian(1.0)], config)
        # The bound is flat in γ: what it is to a few per cent, that is to a thousandth.
        assert_allclose(own.bounds[-1], slow.bounds[-1], rtol=3e-3)


def test_two_of_many_classes_swap_with_their_names(data, unseen):
    """What classes are called decides their order, not what is learned of them."""
    X, y = data
    names = dict(zip(NAMES, ["d", "c", "b", "a"], strict=True))
    renamed = np.array([names[label] for label in y])
    one, other = (RFFGPC(20, n_estimators=1, random_state=0).fit(X, own) for own in (y, renamed))
    assert_allclose(
        other.predict_proba(unseen[0])[:, ::-1], one.predict_proba(unseen[0]), atol=1e-4
    )


@each_model
def test_model_files_hold_many_classes(name, fitted, unseen, tmp_path):
    path = tmp_path / "model.safetensors"
    save_model(fitted[name], path)
    loaded = load_model(path)
    assert_array_equal(loaded.classes_, NAMES)
    assert_array_equal(loaded.predict_proba(unseen[0]), fitted[name].predict_proba(unseen[0]))
    assert_array_equal(loaded.lower_bounds_, fitted[name].lower_bounds_)
    assert loaded.lower_bound_ == fitted[name].lower_bound_


@pytest.mark.parametrize("name", ["GPC", "batch RFFGPC", "batch VFFGPC"])
def test_a_weight_of_two_equals_a_row_given_twice(name, data, unseen):
    from sklearn.base import clone

    X, y = data[0][:150], data[1][:150]
    twice = np.arange(150) % 3 == 0
    weighted = clone(MODELS[name]).fit(X, y, np.where(twice, 2.0, 1.0))
    repeated = clone(MODELS[name]).fit(np.concatenate([X, X[twice]]), [*y, *y[twice]])
    assert_allclose(
        weighted.predict_proba(unseen[0]), repeated.predict_proba(unseen[0]), atol=1e-6
    )


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_a_bit(threads, data, unseen):
    options = {"n_estimators": 2, "solver": "stochastic", "batch_size": 600, **QUICK}
    X, y = rings(1500)
    one, other = (VFFGPC(6, n_jobs=n, **options).fit(X, y) for n in (2, threads))
    assert_array_equal(one.predict_proba(unseen[0]), other.predict_proba(unseen[0]))


def test_a_dask_array_gives_the_model_of_an_array(data, unseen):
    X, y = rings(3000)
    options = {"n_estimators": 1, "solver": "stochastic", "precision": "double", **QUICK}
    whole = VFFGPC(6, **options).fit(X, y)
    for labels in (y, da.from_array(y, chunks=1000)):
        chunked = VFFGPC(6, **options).fit(da.from_array(X, chunks=(1000, 2)), labels)
        assert_array_equal(chunked.classes_, NAMES)
        assert_allclose(
            chunked.predict_proba(unseen[0]), whole.predict_proba(unseen[0]), atol=1e-6
        )


def test_checkpoints_continue_a_fit_of_many_classes(data, unseen, tmp_path):
    for solver in ("batch", "stochastic"):
        path = tmp_path / solver
        options = {"n_estimators": 1, "solver": solver, "random_state": 0}
        whole = VFFGPC(4, max_iter=6, **options).fit(*data)
        stopped = VFFGPC(4, max_iter=6, checkpoint=path, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProgressLine, "__call__", interrupt_at_two)
            with pytest.raises(KeyboardInterrupt):
                stopped.fit(*data)
        continued = stopped.fit(*data)
        assert_array_equal(continued.predict_proba(unseen[0]), whole.predict_proba(unseen[0]))
        assert continued.n_iter_ > 2


def interrupt_at_two(self, step, state, estimator=0):
    if step == 2:
        raise KeyboardInterrupt


def test_an_interrupted_exact_fit_is_kept_only_if_all_classes_have_got_that_far():
    X, y = rings(100)
    for latent, kept in ((0, False), (len(np.unique(y)) - 1, True)):
        lines = []

        def call(self, step, state, member=0, latent=latent, lines=lines):
            if self not in lines:
                lines.append(self)
            if lines.index(self) == latent:
                interrupt_at_two(self, step, state)

        model = GPC(on_interrupt="keep", tol=1e-8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ProgressLine, "__call__", call)
            if kept:
                with pytest.warns(ConvergenceWarning, match="Interrupted"):
                    model.fit(X, y)
                assert model.fit_report_["stopped"] == "interrupted"
            else:
                with pytest.raises(KeyboardInterrupt):
                    model.fit(X, y)
                assert len(lines) == 1
                assert not hasattr(model, "fit_report_")


def test_a_warm_start_goes_on(data):
    model = VFFGPC(6, n_estimators=2, warm_start=True, solver="stochastic", **QUICK).fit(*data)
    before = model.lower_bound_
    assert model.fit(*data).lower_bound_ > before - 0.05 * abs(before)


def test_groups_and_class_weights_go_with_many_classes(data, unseen):
    X, y = data
    model = VFFGPC(8, n_estimators=3, class_weight="balanced", solver="stochastic", **QUICK)
    model.fit(X, y, groups=np.arange(len(y)) % 10)
    assert model.score(*unseen) > 0.8


def test_prior_correction_multiplies_the_odds_of_classes(data, unseen):
    real = [0.4, 0.3, 0.2, 0.1]
    X, y = data
    plain = RFFGPC(15, n_estimators=1, random_state=0).fit(X, y)
    corrected = RFFGPC(15, n_estimators=1, random_state=0, prior_correction=real).fit(X, y)
    shares = np.array([np.mean(y == name) for name in NAMES])
    expected = plain.predict_proba(unseen[0]) * real / shares
    expected /= expected.sum(axis=1, keepdims=True)
    assert_allclose(corrected.predict_proba(unseen[0]), expected, rtol=1e-6)
    named = dict(zip(NAMES.tolist(), real, strict=True))
    same = RFFGPC(15, n_estimators=1, random_state=0, prior_correction=named).fit(X, y)
    assert_allclose(same.predict_proba(unseen[0]), expected, rtol=1e-6)


def test_far_away_the_probabilities_are_near_the_shares(data):
    model = VFFGPC(10, n_estimators=2, **QUICK).fit(*data)
    shares = np.array([np.mean(data[1] == name) for name in NAMES])
    far = model.predict_proba(1e4 * np.array([[1.0, -2.0], [-3.0, 1.0]]))
    assert_allclose(far, np.tile(shares, (2, 1)), rtol=1e-6)


# Bad input


@each_model
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.r_[np.zeros(60), np.ones(59), 2], r"has one of 2\.0. Add rows, merge"),
        (np.arange(120), "has one of 0, 1, 2, 3, 4 and 115 more"),
        (np.array(["a", 1, "b"] * 40, dtype=object), "text and numbers together"),
        (["a", 1, "b"] * 40, "text and numbers together"),
        (np.array(["a", None, "b"] * 40, dtype=object), "None or NaN in .* first in row 1"),
        (["a", "b", None] * 40, "None or NaN in .* first in row 2"),
        ([None] * 120, "None or NaN in .* first in row 0"),
        (np.array(["a", np.nan, "b"] * 40, dtype=object), "None or NaN in .* first in row 1"),
    ],
    ids=[
        *("one row", "as many classes as rows", "mixed", "mixed list"),
        *("None", "None in a list", "None alone", "NaN"),
    ],
)
def test_bad_labels_are_named(name, labels, message):
    from sklearn.base import clone

    with pytest.raises(InputError, match=message):
        clone(MODELS[name]).fit(np.arange(240.0).reshape(120, 2), labels)


@pytest.mark.parametrize("given", [[0.5, 0.5], [0.2] * 5, {"cloud": 0.5, "land": 0.5}])
def test_a_prior_correction_of_another_length_is_refused(given, data):
    with pytest.raises(InputError, match="prior_correction must"):
        RFFGPC(5, n_estimators=1, prior_correction=given).fit(*data)


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
@pytest.mark.parametrize("n_estimators", [1, 2])
def test_groups_that_leave_a_class_out_are_learned_from_all_the_same(data, solver, n_estimators):
    X, y = data
    # Each class is a group: holding one back would lose the class.
    model = VFFGPC(6, n_estimators=n_estimators, solver=solver, max_iter=5, random_state=0)
    model.fit(X, y, groups=y)
    assert model.classes_.tolist() == NAMES.tolist()
    assert np.mean(model.predict(X) == y) > 0.5


def test_a_class_without_weight_is_named(data):
    X, y = data
    with pytest.raises(InputError, match=r"none of positive weight of 'snow'(.|\n)*sample_weight"):
        RFFGPC(5, n_estimators=1).fit(X, y, np.where(y == "snow", 0.0, 1.0))


def test_a_model_that_lacks_a_latent_function_is_not_saved(fitted, tmp_path):
    model = fitted["batch VFFGPC"]
    estimator = model.estimators_[0]
    short = VFFGPC(8, n_estimators=1)
    vars(short).update(
        vars(model) | {"estimators_": (replace(estimator, latents=estimator.latents[:3]),)}
    )
    path = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match="3 latent functions, but its classes need 4"):
        save_model(short, path)
    assert not path.exists()
