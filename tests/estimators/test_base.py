"""What all three classifiers have in common: weights, classes, priors, input, prediction."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logit
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.class_weight import compute_class_weight

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures, UndulatusError
from undulatus.errors import InputError, PhaseTooLargeError
from undulatus.estimators import classifier, exact, training
from undulatus.estimators.progress_line import ProgressLine
from undulatus.estimators.training import QUANTILES
from undulatus.gp import model as gp_model
from undulatus.gp.kernels import KERNELS
from undulatus.gp.likelihood import POSTERIORS, Bound
from undulatus.gp.posterior import expected_sigmoid

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODELS = {
    "GPC": GPC(max_iter=4),
    "RFFGPC": RFFGPC(8, n_estimators=1, solver="batch", max_iter=4, random_state=0),
    "VFFGPC": VFFGPC(6, n_estimators=1, solver="batch", max_iter=4, random_state=0),
}


each_model = pytest.mark.parametrize("name", MODELS)


def model(name, **params):
    return clone(MODELS[name]).set_params(**params)


def without_taper(name, **params):
    """A model whose waves go on for ever, as those of an exact process do within the data."""
    return model(name, **params, **({} if name == "GPC" else {"taper": 0.0}))


def assert_same_model(one, other, X):
    """The same hyperparameters, bounds and predictions, bit for bit."""
    assert one.lower_bound_ == other.lower_bound_
    assert one.lengthscale_ == other.lengthscale_
    assert one.signal_variance_ == other.signal_variance_
    assert_array_equal(one.classes_, other.classes_)
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))


# Weights


@each_model
def test_a_row_of_weight_two_equals_the_row_given_twice(name, clouds):
    X, y = clouds
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    repeated = np.repeat(np.arange(len(y)), weight)
    weighted = model(name).fit(X, y, sample_weight=weight)
    twice = model(name).fit(X[repeated], y[repeated])
    assert_same_model(weighted, twice, X)


@each_model
def test_a_row_of_zero_weight_equals_an_absent_row(name, clouds):
    X, y = clouds
    weight = np.random.default_rng(0).integers(0, 2, len(y))
    weighted = model(name).fit(X, y, sample_weight=weight)
    absent = model(name).fit(X[weight == 1], y[weight == 1], sample_weight=np.ones(weight.sum()))
    assert_same_model(weighted, absent, X)


@each_model
def test_the_order_of_rows_does_not_matter(name, clouds):
    X, y = clouds
    order = np.random.default_rng(0).permutation(len(y))
    assert_same_model(model(name).fit(X, y), model(name).fit(X[order], y[order]), X)


@each_model
def test_class_weights_equal_the_same_sample_weights(name, clouds):
    X, y = clouds
    by_class = model(name, class_weight={0: 0.5, 1: 3.0}).fit(X, y)
    by_sample = model(name).fit(X, y, sample_weight=np.where(y == 1, 3.0, 0.5))
    assert_same_model(by_class, by_sample, X)


@each_model
def test_balanced_class_weights_are_those_of_scikit_learn(name, clouds):
    X, y = clouds
    balanced = model(name, class_weight="balanced").fit(X, y)
    weights = compute_class_weight("balanced", classes=np.array([0, 1]), y=y)
    explicit = model(name, class_weight=dict(enumerate(weights))).fit(X, y)
    assert_same_model(balanced, explicit, X)


@each_model
def test_class_and_sample_weights_multiply(name, clouds):
    X, y = clouds
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    both = model(name, class_weight={0: 2.0, 1: 0.25}).fit(X, y, sample_weight=weight)
    product = model(name).fit(X, y, sample_weight=weight * np.where(y == 1, 0.25, 2.0))
    assert_same_model(both, product, X)


@each_model
def test_a_class_without_weight_is_an_input_error(name, moons):
    X, y = moons
    for failing in (
        lambda: model(name).fit(X, y, sample_weight=(y == 1).astype(float)),
        lambda: model(name, class_weight={0: 0.0, 1: 1.0}).fit(X, y),
    ):
        with pytest.raises(InputError, match=r"both classes.*sample_weight and class_weight"):
            failing()


@each_model
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (-1.0, "[Nn]egative"),
        (0.0, "zero"),
        (np.nan, "NaN"),
        (np.inf, "infinity"),
        (np.ones(3), "sample_weight"),
    ],
    ids=["negative", "zero", "NaN", "infinite", "too few"],
)
def test_invalid_weights_are_input_errors(name, moons, weight, message):
    X, y = moons
    weight = np.full(len(y), weight) if np.isscalar(weight) else weight
    with pytest.raises(InputError, match=message):
        model(name).fit(X, y, sample_weight=weight)


# Class priors


def rare_event_problem(n, rng):
    """One feature, logistic truth: about one row in twelve is positive."""
    X = rng.normal(size=(n, 1))
    probability = 1.0 / (1.0 + np.exp(-(1.5 * X[:, 0] - 3.2)))
    return X, (rng.random(n) < probability).astype(int)


def calibration_error(y, probability, bins=15):
    index = np.minimum((probability * bins).astype(int), bins - 1)
    gaps = [
        abs(np.sum(probability[index == b]) - np.sum(y[index == b]))
        for b in range(bins)
        if np.any(index == b)
    ]
    return sum(gaps) / len(y)


def test_prior_correction_undoes_balanced_class_weights():
    rng = np.random.default_rng(0)
    X, y = rare_event_problem(1500, rng)
    X_test, y_test = rare_event_problem(4000, rng)
    options = {"max_iter": 15, "class_weight": "balanced"}
    errors = {}
    for correction in (None, "training"):
        fitted = model("RFFGPC", prior_correction=correction, **options).fit(X, y)
        errors[correction] = calibration_error(y_test, fitted.predict_proba(X_test)[:, 1])
    # Balanced weights multiply the odds by about 11, which puts the mean probability near 0.37
    # where the frequency is 0.08. After correction only sampling error is left: 15 bins of 4,000
    # rows (below 0.01), and a curve fitted to 120 positive rows (a standard error near 0.01).
    assert errors[None] > 0.15
    assert errors["training"] < 0.03


@each_model
def test_prior_correction_multiplies_the_odds_of_the_probability(name, clouds):
    """Bayes' rule for a probability in which the latent function is integrated out."""
    X, y = clouds
    plain = without_taper(name, class_weight="balanced").fit(X, y)
    mean, variance = plain.latent_mean_and_variance(X)
    # Where the variance is large, a shift of the latent mean would be too weak.
    assert variance.max() > 1.0
    share = y.mean()
    expected = {
        "training": np.log(share / (1 - share)),
        (0.9, 0.1): np.log(0.1 / 0.9),
    }
    for real, shift in expected.items():
        real = real if isinstance(real, str) else list(real)
        corrected = without_taper(name, class_weight="balanced", prior_correction=real)
        corrected.fit(X, y)
        # Balanced weights make the shares equal up to rounding: log odds of 0.
        probability = corrected.predict_proba(X)
        odds, before = (p[:, 1] / p[:, 0] for p in (probability, plain.predict_proba(X)))
        assert_allclose(odds, before * np.exp(shift), rtol=1e-10)
        scores = corrected.decision_function(X)
        assert_allclose(scores, np.log(odds), rtol=1e-9, atol=1e-12)
        assert_array_equal(corrected.predict(X), corrected.classes_[(scores > 0).astype(int)])
        assert_array_equal(corrected.predict(X), corrected.classes_[probability.argmax(axis=1)])
        # The latent function is that of the training data.
        assert_array_equal(corrected.latent_mean_and_variance(X), [mean, variance])


@each_model
def test_prior_correction_is_relative_to_the_training_shares(name, clouds):
    X, y = clouds
    plain, corrected = (
        without_taper(name, prior_correction=real).fit(X, y) for real in (None, [0.8, 0.2])
    )
    shift = np.log(0.2 / 0.8) - np.log(y.mean() / (1 - y.mean()))
    before = logit(plain.predict_proba(X)[:, 1])
    assert_allclose(corrected.decision_function(X), before + shift, rtol=1e-9, atol=1e-9)


def test_labels_of_a_corrected_model_need_variances_only_near_their_boundary(clouds, monkeypatch):
    X, y = clouds
    corrected = model("RFFGPC", prior_correction=[0.9, 0.1]).fit(X, y)
    seen, real = [], gp_model.pooled_log_odds
    monkeypatch.setattr(
        gp_model, "pooled_log_odds", lambda *given: seen.append(given[0].shape[2]) or real(*given)
    )
    labels = corrected.predict(X)
    assert 0 < sum(seen) < len(X) / 2
    assert_array_equal(labels, corrected.predict_proba(X).argmax(axis=1))


def test_prior_correction_by_label_follows_the_classes(moons):
    X, y = moons
    labels = np.where(y == 1, "clear", "cloud")
    by_label = model("RFFGPC", prior_correction={"cloud": 0.7, "clear": 0.3}).fit(X, labels)
    by_order = model("RFFGPC", prior_correction=[0.3, 0.7]).fit(X, labels)
    assert_array_equal(by_label.classes_, ["clear", "cloud"])
    assert_same_model(by_label, by_order, X)


@pytest.mark.parametrize(
    "wrong",
    [
        {0: 0.5},
        {0: 0.2, 1: 0.3, 2: 0.5},
        {"a": 0.5, "b": 0.5},
        [0.5, 0.6],
        [-0.5, 1.5],
        [1.0, 0.0],
        [0.2, 0.3, 0.5],
        [np.nan, 1.0],
        "testing",
        0.3,
    ],
    ids=str,
)
def test_the_error_for_invalid_class_frequencies_names_the_parameter(moons, wrong):
    with pytest.raises(InputError, match="prior_correction"):
        model("RFFGPC", prior_correction=wrong).fit(*moons)


@pytest.mark.parametrize("wrong", [["many", "few"], {0: "many", 1: "few"}], ids=str)
def test_the_error_for_class_frequencies_in_words_names_parameter_and_word(moons, wrong):
    with pytest.raises(InputError, match=r"prior_correction.*many"):
        model("RFFGPC", prior_correction=wrong).fit(*moons)


# Labels


LABELS = {
    "strings": np.array(["clear", "cloud"]),
    "objects": np.array(["clear", "cloud"], dtype=object),
    "booleans": np.array([False, True]),
    "negative": np.array([-1, 1]),
    "small": np.array([3, 250], dtype=np.uint8),
    "floats": np.array([1.0, 2.0]),
}


@each_model
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_labels_of_any_type_are_predicted_with_that_type(name, moons, labels):
    X, y = moons
    numbers = model(name).fit(X, y)
    fitted = model(name).fit(X, labels[y])
    assert_array_equal(fitted.classes_, labels)
    assert fitted.classes_.dtype == labels.dtype
    found = fitted.predict(X)
    assert found.dtype == labels.dtype
    assert_array_equal(found, labels[numbers.predict(X)])
    assert_array_equal(fitted.predict_proba(X), numbers.predict_proba(X))


def test_labels_may_be_a_pandas_series_or_a_list(moons):
    X, y = moons
    words = np.array(["clear", "cloud"])[y]
    for labels in (pd.Series(words), pd.Series(words, dtype="category"), words.tolist()):
        found = model("RFFGPC").fit(X, labels).predict(X)
        assert set(found) <= {"clear", "cloud"}


@each_model
def test_one_class_is_an_error_that_names_it(name, moons):
    X, _ = moons
    with pytest.raises(InputError, match=r"two classes.*one class.*cloud"):
        model(name).fit(X, ["cloud"] * len(X))


@each_model
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "requires y"),
        (np.zeros(7), "inconsistent numbers"),
        (np.linspace(0, 1, 120), "[Uu]nknown label type"),
        (np.where(np.arange(120) == 5, np.nan, 1.0), "y contains NaN"),
        (pd.Series([None, *["cloud"] * 119]), "y contains None or NaN"),
        (np.zeros((120, 2), dtype=int), "label type|y should be"),
    ],
    ids=["none", "too few", "continuous", "NaN", "missing", "two columns"],
)
def test_invalid_labels_are_input_errors(name, moons, labels, message):
    X, _ = moons
    with pytest.raises(InputError, match=message) as caught:
        model(name).fit(X, labels)
    assert isinstance(caught.value, UndulatusError)
    assert isinstance(caught.value, ValueError)


# Values


@each_model
@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_bad_value_is_named_by_row_and_column_in_fit_and_predict(name, moons, bad, kind):
    X, y = moons
    broken = X.copy()
    broken[17, 1] = bad
    fitted = model(name).fit(X, y)
    for failing in (
        lambda: model(name).fit(broken, y),
        lambda: fitted.predict(broken),
        lambda: fitted.predict_proba(broken),
    ):
        with pytest.raises(InputError, match=f"{kind}.*row 17, column 1") as caught:
            failing()
        assert isinstance(caught.value, UndulatusError)
        assert isinstance(caught.value, ValueError)


@each_model
def test_a_bad_value_is_named_by_the_name_of_its_column(name, moons):
    X, y = moons
    table = pd.DataFrame(X, columns=["IR_108", "VIS006"])
    broken = table.copy()
    broken.loc[3, "VIS006"] = np.nan
    fitted = model(name).fit(table, y)
    for failing in (lambda: model(name).fit(broken, y), lambda: fitted.predict(broken)):
        with pytest.raises(InputError, match="row 3, column 'VIS006'"):
            failing()


@each_model
@pytest.mark.parametrize("row", [2, 17], ids=["without weight", "with weight"])
def test_a_bad_value_is_named_by_its_row_whatever_the_weights(name, moons, row):
    X, y = moons
    broken, weight = X.copy(), np.ones(len(y))
    broken[row, 1], weight[:5] = np.nan, 0.0
    with pytest.raises(InputError, match=f"row {row}, column 1"):
        model(name).fit(broken, y, sample_weight=weight)


@each_model
@pytest.mark.parametrize("value", [1e200, -1e200, 1e308])
def test_values_too_large_to_be_fitted_are_named_by_their_column(name, moons, value):
    X, y = moons
    table = pd.DataFrame(X, columns=["IR_108", "VIS006"])
    table.loc[3, "VIS006"] = value
    with pytest.raises(InputError, match=r"column 'VIS006' .*too large.*1e\+[23]0[08]"):
        model(name).fit(table, y)


@each_model
@pytest.mark.parametrize("value", [1e308, -1e308])
def test_a_row_too_far_out_to_be_predicted_is_named_without_a_warp(name, moons, value):
    X, y = moons
    fitted = model(name, warp=False).fit(X, y)
    far = X.copy()
    far[9, 1] = value
    for predict in (fitted.predict, fitted.predict_proba, fitted.latent_mean_and_variance):
        with pytest.raises(PhaseTooLargeError, match=r"Row 9 (.|\n)*column 1"):
            predict(far)


@each_model
@pytest.mark.parametrize("value", [1e12, -1e36, 1e308])
def test_a_warped_model_returns_to_the_class_shares_however_far_out_a_row_is(name, clouds, value):
    X, y = clouds
    # The taper is one with which a single feature, twenty warped deviations away, is enough.
    fitted = model(name, **({} if name == "GPC" else {"taper": 0.5})).fit(X, y)
    far = X[:1].copy()
    far[0, 0] = value
    _, variance = fitted.latent_mean_and_variance(far)
    assert_allclose(variance, fitted.signal_variance_, rtol=1e-9)
    assert_allclose(fitted.predict_proba(far)[0, 1], y.mean(), rtol=1e-9)


@each_model
def test_a_constant_column_does_no_harm(name, moons):
    X, y = moons
    wide = np.column_stack([X, np.full(len(X), 273.15)])
    fitted = model(name).fit(wide, y)
    assert fitted.n_features_in_ == 3
    probability = fitted.predict_proba(wide)[:, 1]
    assert np.all(np.isfinite(probability))
    assert np.mean((probability > 0.5) == y) > 0.8


@each_model
def test_with_constant_columns_only_the_larger_class_is_predicted(name):
    X, y = np.ones((30, 2)), np.arange(30) % 3 == 0
    probability = model(name).fit(X, y).predict_proba(X)[:, 1]
    # Without information all rows get one probability, on the side of the larger class.
    assert_allclose(probability, probability[0])
    assert 0.0 < probability[0] < 0.5


@each_model
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_units_do_not_matter_when_features_are_standardised(name, clouds, offset):
    X, y = clouds
    one = model(name).fit(X, y)
    other = model(name).fit(X * 4.0 + offset, y)
    # The offset rounds data to 1e-12 of a deviation; the iterations of a fit amplify this.
    assert_allclose(other.predict_proba(X * 4.0 + offset), one.predict_proba(X), rtol=0, atol=1e-5)


# Prediction


@each_model
def test_the_ways_to_predict_agree(name, clouds):
    X, y = clouds
    fitted = model(name).fit(X, y)
    mean, variance = fitted.latent_mean_and_variance(X)
    probability = fitted.predict_proba(X)
    assert mean.shape == variance.shape == (len(X),)
    assert probability.shape == (len(X), 2)
    assert np.all(variance >= 0)
    # The mean is computed in two ways, each a sum of waves or kernels of size 10 or so.
    assert_allclose(fitted.decision_function(X), mean, rtol=0, atol=1e-10)
    assert_allclose(probability[:, 1], expected_sigmoid(mean, variance), rtol=1e-12)
    assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)
    sure = np.abs(mean) > 1e-9
    expected = fitted.classes_[np.argmax(probability, axis=1)]
    assert_array_equal(fitted.predict(X)[sure], expected[sure])


@each_model
def test_a_latent_variance_is_at_most_the_prior_one(name, clouds):
    X, y = clouds
    fitted = model(name).fit(X, y)
    far = X + np.random.default_rng(0).normal(size=X.shape) * 100.0
    _, variance = fitted.latent_mean_and_variance(far)
    assert np.all(variance <= fitted.signal_variance_ * (1 + 1e-12))


@each_model
def test_a_problem_of_two_moons_is_solved(name):
    X, y = make_moons(400, noise=0.15, random_state=1)
    fitted = model(name, max_iter=20)
    if name != "GPC":
        fitted.set_params(n_frequencies=20)
    assert fitted.fit(X[:200], y[:200]).score(X[200:], y[200:]) > 0.95


@each_model
def test_an_unfitted_model_raises(name, moons):
    X, _ = moons
    unfitted = model(name)
    for predict in (
        unfitted.predict,
        unfitted.predict_proba,
        unfitted.decision_function,
        unfitted.latent_mean_and_variance,
    ):
        with pytest.raises(NotFittedError):
            predict(X)


@each_model
@pytest.mark.parametrize("again", [False, True], ids=["first", "again"])
def test_a_failed_fit_leaves_no_half_fitted_model(name, moons, again):
    X, y = moons
    broken = X.copy()
    broken[3, 0] = np.nan
    failing = {
        "values": lambda fitted: fitted.fit(broken, y),
        "labels": lambda fitted: fitted.fit(X, np.zeros(len(y))),
        "weights": lambda fitted: fitted.fit(X, y, sample_weight=-np.ones(len(y))),
        "parameters": lambda fitted: fitted.set_params(tol=-1.0).fit(X, y),
    }
    for fail in failing.values():
        fitted = model(name)
        if again:
            fitted.fit(X, y)
        with pytest.raises(InputError):
            fail(fitted)
        for predict in (fitted.predict, fitted.predict_proba, fitted.decision_function):
            with pytest.raises(NotFittedError):
                predict(X)


@each_model
def test_an_interrupt_before_the_first_iteration_leaves_no_half_fitted_model(
    name, moons, monkeypatch
):
    X, y = moons
    fitted = model(name).fit(X, y)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        for solver in (exact, classifier):
            for function in ("fit_exact", "fit_batch"):
                patch.setattr(solver, function, interrupt, raising=False)
        with pytest.raises(KeyboardInterrupt):
            fitted.fit(X, y)
    with pytest.raises(NotFittedError):
        fitted.predict(X)
    assert_same_model(fitted.fit(X, y), model(name).fit(X, y), X)


@each_model
def test_an_interrupted_fit_ends_and_leaves_no_model(name, moons, monkeypatch):
    X, y = moons
    fitted, steps = model(name, tol=0.0), []

    def call(self, step, state, estimator=0):
        steps.append(step)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "__call__", call)
        with pytest.raises(KeyboardInterrupt):
            fitted.fit(X, y)
        with pytest.raises(KeyboardInterrupt):
            cross_val_score(fitted, X, y)
    # The first fold was the last.
    assert steps == [1, 1]
    with pytest.raises(NotFittedError):
        fitted.predict(X)


# Parameters and attributes


@pytest.mark.parametrize("estimator", [GPC, RFFGPC, VFFGPC, FourierFeatures])
def test_the_docstring_lists_every_kernel(estimator):
    listed = ", ".join(f'"{name}"' for name in KERNELS)
    assert f"kernel : {{{listed}}}, " in estimator.__doc__


@pytest.mark.parametrize("estimator", [GPC, RFFGPC, VFFGPC])
def test_the_docstring_lists_every_posterior(estimator):
    listed = ", ".join(f'"{name}"' for name in POSTERIORS)
    assert f"posterior : {{{listed}}}, " in estimator.__doc__


@pytest.mark.parametrize("name", ["GPC", "RFFGPC", "VFFGPC", "minibatches"])
@pytest.mark.parametrize("posterior", POSTERIORS)
def test_the_posterior_is_found_by_the_bound_that_is_listed(name, posterior, moons, monkeypatch):
    """A fit, an update and a model of a scene take the bound from the list, whatever it is."""
    listed, calls = POSTERIORS["variational"], []

    def sites(*given):
        calls.append(1)
        return listed.sites(*given)

    options = {"posterior": posterior}
    if name == "minibatches":
        name, options = "VFFGPC", options | {"solver": "stochastic"}
    (X, y), new = moons, Bound(sites, conjugate=False)
    by_hand = model(name, **options | {"posterior": "variational"}).fit(X, y)
    monkeypatch.setitem(POSTERIORS, posterior, new)
    fitted = model(name, **options).fit(X, y)
    assert_same_model(fitted, by_hand, X)
    for change in ("update", "adapt"):
        calls.clear()
        changed = getattr(fitted, change)(X[:5], y[:5])
        assert calls
        expected = getattr(by_hand, change)(X[:5], y[:5])
        assert_array_equal(changed.predict_proba(X), expected.predict_proba(X))


@each_model
@pytest.mark.parametrize(
    "wrong",
    [
        {"max_iter": 0},
        {"tol": -1.0},
        {"kernel": "periodic"},
        {"posterior": "laplace"},
        {"standardize": "yes"},
        {"warp": "yes"},
        {"class_weight": "unbalanced"},
        {"random_state": "seed"},
        {"verbose": -1},
        {"on_interrupt": "stop"},
    ],
    ids=str,
)
def test_invalid_parameters_are_named(name, moons, wrong):
    (parameter,) = wrong
    with pytest.raises(InputError, match=parameter):
        model(name, **wrong).fit(*moons)


@each_model
def test_the_best_gaussian_posterior_has_a_tighter_bound_and_a_larger_variance(name, moons):
    best, quadratic = (
        without_taper(name, posterior=posterior).fit(*moons)
        for posterior in ("variational", "bound")
    )
    # Learning is the same: only the posterior handed out, and its γ, differ.
    assert best.lengthscale_ == quadratic.lengthscale_
    if name == "GPC":
        assert_array_equal(best.lower_bounds_[:-1], quadratic.lower_bounds_[:-1])
    else:
        assert_array_equal(best.frequencies_, quadratic.frequencies_)
    assert best.lower_bound_ == best.lower_bounds_[-1] > quadratic.lower_bound_
    variances = [m.latent_mean_and_variance(moons[0])[1] for m in (best, quadratic)]
    assert np.median(variances[0] / variances[1]) > 1.2


@each_model
@pytest.mark.parametrize("posterior", ["variational", "bound"])
def test_the_history_of_the_bound_never_falls(name, moons, posterior):
    for make in (model, without_taper):
        history = make(name, posterior=posterior).fit(*moons).lower_bounds_
        assert np.all(np.diff(history) >= -1e-10 * np.abs(history).max())


def weighted_quantiles(values, weight, levels):
    """For each level, the smallest value with that share of the weight at or below it."""
    order = np.argsort(values)
    share = np.cumsum(weight[order]) / weight.sum()
    reached = [values[order][np.argmax(share >= level)] for level in levels]
    return [values.min(), *reached[1:-1], values.max()]


@each_model
def test_feature_quantiles_are_those_of_the_rows(name, clouds):
    X, y = clouds
    found = model(name).fit(X, y).feature_quantiles_
    assert_array_equal(found, np.quantile(X, QUANTILES, axis=0, method="inverted_cdf"))


@each_model
def test_feature_quantiles_are_weighted(name, clouds):
    X, y = clouds
    weight = np.random.default_rng(0).uniform(0.0, 3.0, len(y))
    found = model(name).fit(X, y, sample_weight=weight).feature_quantiles_
    for column in range(X.shape[1]):
        expected = weighted_quantiles(X[:, column], weight, QUANTILES)
        assert_array_equal(found[:, column], expected)


def test_feature_quantiles_count_merged_rows():
    X = np.concatenate([np.zeros(80), np.arange(1.0, 21.0)])[:, None]
    fitted = model("RFFGPC").fit(X, X[:, 0] > 10)
    expected = np.quantile(X, QUANTILES, axis=0, method="inverted_cdf")
    assert_array_equal(fitted.feature_quantiles_, expected)


@pytest.mark.parametrize("merge_rows", [0, 10**6], ids=["as they are", "merged"])
def test_extremes_are_exact_when_quantiles_come_from_some_rows(clouds, monkeypatch, merge_rows):
    X, y = clouds
    monkeypatch.setattr(training, "MERGE_ROWS", merge_rows)
    monkeypatch.setattr(training, "QUANTILE_ROWS", 10)
    found = model("RFFGPC").fit(X, y).feature_quantiles_
    assert_array_equal(found[[0, -1]], [X.min(axis=0), X.max(axis=0)])
    assert np.all(np.diff(found, axis=0) >= 0)
    for column in range(X.shape[1]):
        assert set(found[:, column]) <= set(X[:, column])


@each_model
def test_the_fit_report_holds_plain_values(name, clouds):
    X, y = clouds
    fitted = model(name).fit(X, y)
    report = fitted.fit_report_
    assert {"solver", "precision", "steps", "jitter", "stopped", "rows"} <= set(report)
    assert report["solver"] == ("exact" if name == "GPC" else "batch")
    assert report["precision"] == "double"
    assert report["steps"] == fitted.n_iter_ <= 4
    assert report["stopped"] in ("converged", "max_iter")
    assert report["rows"] == len(X)
    assert all(isinstance(value, (int, float, str, list)) for value in report.values())


@each_model
def test_the_history_of_the_bound_ends_at_the_bound(name, clouds):
    paper = without_taper(name, posterior="bound").fit(*clouds)
    assert len(paper.lower_bounds_) == paper.n_iter_ + 1
    for fitted in (paper, model(name).fit(*clouds)):
        assert fitted.lower_bounds_[-1] == fitted.lower_bound_
        # A bound on the evidence of 200 labels cannot exceed certainty.
        assert fitted.lower_bound_ < 0


@each_model
def test_a_fit_that_did_not_converge_warns(name, clouds):
    with pytest.warns(ConvergenceWarning, match="max_iter=1.*tol"):
        model(name, max_iter=1, tol=0.0).fit(*clouds)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = model(name, max_iter=500, tol=1e-2).fit(*clouds)
    assert fitted.fit_report_["stopped"] == "converged"


@each_model
def test_the_evidence_of_structured_labels_exceeds_that_of_shuffled_ones(name, clouds):
    X, y = clouds
    shuffled = np.random.default_rng(0).permutation(y)
    assert model(name).fit(X, y).lower_bound_ > model(name).fit(X, shuffled).lower_bound_


# With scikit-learn's tools


@each_model
def test_a_classifier_works_in_a_pipeline_and_a_search(name, moons):
    X, y = moons
    pipeline = make_pipeline(MinMaxScaler(), model(name))
    assert pipeline.fit(X, y).score(X, y) > 0.8
    step = name.lower()
    search = GridSearchCV(pipeline, {f"{step}__kernel": ["rbf", "matern32"]}, cv=2)
    assert search.fit(X, y).best_params_[f"{step}__kernel"] in ("rbf", "matern32")


@each_model
def test_sample_weights_can_be_passed_through_a_pipeline(name, moons):
    X, y = moons
    weight = np.where(y == 1, 2.0, 1.0)
    step = name.lower()
    pipeline = make_pipeline(MinMaxScaler(), model(name))
    pipeline.fit(X, y, **{f"{step}__sample_weight": weight})
    direct = model(name).fit(MinMaxScaler().fit_transform(X), y, sample_weight=weight)
    assert_array_equal(pipeline.predict_proba(X), direct.predict_proba(pipeline[0].transform(X)))


@each_model
def test_a_clone_has_the_parameters_and_is_not_fitted(name, moons):
    fitted = model(name, tol=0.01, class_weight={0: 1.0, 1: 2.0}).fit(*moons)
    simulator = clone(fitted)
    assert simulator.get_params() == fitted.get_params()
    assert not hasattr(simulator, "classes_")


@each_model
def test_fit_changes_neither_parameters_nor_data(name, moons):
    X, y = moons  # read-only, so that writing to them would raise
    fitted = model(name, class_weight={0: 1.0, 1: 2.0})
    before = fitted.get_params()
    fitted.fit(X, y)
    assert fitted.get_params() == before


# The progress line


@each_model
def test_a_fit_is_silent_by_default(name, moons, capsys):
    model(name).fit(*moons)
    assert capsys.readouterr() == ("", "")


@each_model
@pytest.mark.parametrize("verbose", [1, 2])
def test_progress_is_one_line_per_iteration_and_pass_on_standard_error(
    name, moons, capsys, verbose
):
    fitted = model(name, max_iter=3, tol=0.0, verbose=verbose).fit(*moons)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    steps, passes = lines[: fitted.n_iter_], lines[fitted.n_iter_ :]
    assert all(line.startswith(f"{name}: step") for line in steps)
    assert all(line.startswith(f"{name}: pass") for line in passes)
    assert bool(passes) == (name != "GPC")


@pytest.mark.parametrize("posterior", ["variational", "bound"])
def test_the_stochastic_solver_reports_iterations_and_exact_passes(moons, capsys, posterior):
    options = {"n_estimators": 1, "solver": "stochastic", "max_iter": 2, "random_state": 0}
    fitted = RFFGPC(4, verbose=2, posterior=posterior, **options).fit(*moons)
    lines = capsys.readouterr().err.splitlines()
    steps = [line for line in lines if "RFFGPC: step" in line]
    passes = [line for line in lines if "RFFGPC: pass" in line]
    assert len(steps) == fitted.n_iter_ == 2
    assert all("of about 2: validation NLL" in line for line in steps)
    assert steps + passes == lines
    # A step that would lower the bound is taken back: its pass shows the same bound again.
    reported = [float(line.split("bound ")[1].split(",")[0]) for line in passes]
    assert np.unique(reported).tolist() == [
        float(f"{bound:.6g}") for bound in fitted.lower_bounds_[:-1]
    ]
    if posterior == "bound":
        assert len(reported) == len(fitted.lower_bounds_) - 1
