"""Ensembles: VFFGPC and RFFGPC with several estimators."""

from contextlib import contextmanager
from dataclasses import replace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import sklearn
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import logit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import RFFGPC, VFFGPC
from undulatus.errors import InputError
from undulatus.estimators import classifier
from undulatus.estimators.interpret import cosines_of
from undulatus.estimators.progress_line import ProgressLine
from undulatus.gp import model as gp_model
from undulatus.gp.posterior import scaled_mean
from undulatus.regimes import Regime, RegimeClassifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

COMMON = {"n_estimators": 3, "max_iter": 3, "random_state": 0}
MODELS = {
    "batch VFFGPC": VFFGPC(4, **COMMON),
    "batch RFFGPC": RFFGPC(6, **COMMON),
    "stochastic VFFGPC": VFFGPC(4, solver="stochastic", batch_size=40, **COMMON),
    "stochastic RFFGPC": RFFGPC(6, solver="stochastic", batch_size=40, **COMMON),
}
each_model = pytest.mark.parametrize("name", MODELS)
PRIORS = {"prior_correction": [0.8, 0.2]}


def model(name, **params):
    return clone(MODELS[name]).set_params(**params)


@pytest.fixture(scope="module")
def fitted(moons):
    """Each ensemble, fitted to two moons; its probabilities are corrected to other priors."""
    return {name: model(name, **PRIORS).fit(*moons) for name in MODELS}


def alone(ensemble, number):
    """Return a model whose only estimator is one of an ensemble."""
    single = clone(ensemble).set_params(n_estimators=1)
    vars(single).update(vars(ensemble) | {"n_estimators": 1})
    single.estimators_ = ensemble.estimators_[number : number + 1]
    return single


def assert_same_ensemble(one, other, X):
    assert one.fit_report_ == other.fit_report_
    assert_array_equal(one.lower_bounds_, other.lower_bounds_)
    assert_array_equal(one.frequencies_, other.frequencies_)
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))


@each_model
def test_the_ensemble_std_of_a_single_model_is_zero(name, fitted, moons):
    assert_array_equal(alone(fitted[name], 0).ensemble_std(moons[0]), 0.0)


# Estimators


@each_model
def test_estimators_have_frequencies_of_their_own(name, fitted):
    ensemble = fitted[name]
    d = ensemble.n_frequencies
    assert ensemble.frequencies_.shape == (3 * d, 2)
    for number, own in enumerate(ensemble.estimators_):
        assert_array_equal(ensemble.frequencies_[number * d : (number + 1) * d], own.frequencies)
    assert len(np.unique(ensemble.frequencies_[:, 0])) == 3 * d


@each_model
def test_attributes_of_an_ensemble_sum_up_its_estimators(name, fitted):
    ensemble = fitted[name]
    estimators = ensemble.estimators_
    # Rounding of a mean of three.
    assert_allclose(
        ensemble.signal_variance_, np.mean([m.signal_variance for m in estimators]), rtol=1e-12
    )
    product = np.prod([own.lengthscale for own in estimators])
    assert_allclose(ensemble.lengthscale_, product ** (1 / 3), rtol=1e-12)
    assert_allclose(ensemble.lower_bound_, np.mean([m.bounds[-1] for m in estimators]), rtol=1e-12)
    assert_allclose(ensemble.lower_bounds_[-1], ensemble.lower_bound_, rtol=1e-12)
    assert ensemble.n_iter_ == max(own.n_iter for own in estimators)
    losses = ensemble.fit_report_["validation_nll"]
    assert losses == [list(own.validation_losses) for own in estimators]
    assert not hasattr(ensemble, "posterior_")


def test_the_mean_history_extends_estimators_that_ended_early(fitted, moons):
    ensemble = alone(fitted["batch VFFGPC"], 0)
    ensemble.estimators_ = tuple(
        replace(own, latents=(replace(own.latents[0], bounds=bounds),))
        for own, bounds in zip(
            fitted["batch VFFGPC"].estimators_, [(-5.0, -4.0, -3.0), (-7.0,)], strict=False
        )
    )
    assert_allclose(ensemble.lower_bounds_, [-6.0, -5.5, -5.0], rtol=1e-12)


def test_estimators_leave_out_different_groups(moons, monkeypatch):
    X, y = moons
    seen = []
    real = classifier.leave_out
    monkeypatch.setattr(
        classifier, "leave_out", lambda *given: seen.append(real(*given)) or seen[-1]
    )
    groups = np.arange(120) % 15
    VFFGPC(3, n_estimators=5, max_iter=1, random_state=0).fit(X, y, groups=groups)
    left_out = [set(range(15)) - set(groups[learning]) for learning, _ in seen[0]]
    assert sorted(g for group in left_out for g in group) == list(range(15))


@each_model
def test_estimators_start_from_one_lengthscale_or_every_second_from_twice_that(name, fitted):
    first, second, third = fitted[name].fit_report_["starting_lengthscale"]
    assert first == third
    assert second == (2.0 if name == "stochastic VFFGPC" else 1.0) * first


@pytest.mark.parametrize("name", ["batch VFFGPC", "stochastic VFFGPC"])
def test_the_model_does_not_depend_on_the_number_of_threads(name, clouds):
    X, y = clouds
    one, *others = (model(name, n_jobs=jobs).fit(X, y) for jobs in (1, 2, 5))
    for other in others:
        assert_same_ensemble(other, one, X)


@pytest.mark.parametrize("name", ["batch VFFGPC", "batch RFFGPC"])
def test_a_weight_of_two_equals_a_row_given_twice(name, moons):
    X, y = moons
    weight = np.random.default_rng(0).integers(0, 4, size=len(y))
    weighted = model(name).fit(X, y, sample_weight=weight.astype(float))
    copies = np.random.default_rng(1).permutation(np.repeat(np.arange(len(y)), weight))
    repeated = model(name).fit(X[copies], y[copies])
    assert_array_equal(weighted.frequencies_, repeated.frequencies_)
    assert_array_equal(weighted.predict_proba(X), repeated.predict_proba(X))


def test_given_frequencies_are_shared_out_among_the_estimators(moons):
    unit = np.random.default_rng(5).normal(size=(18, 2))
    ensemble = model("batch RFFGPC", init_frequencies=unit).fit(*moons)
    for number, own in enumerate(ensemble.estimators_):
        part = unit[6 * number : 6 * number + 6]
        assert_allclose(own.frequencies * own.lengthscale, part, rtol=1e-12)
    with pytest.raises(InputError, match=r"\(18, 2\) \(n_estimators \* n_frequencies"):
        model("batch RFFGPC", init_frequencies=unit[:6]).fit(*moons)


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "five"])
def test_a_wrong_number_of_each_is_an_input_error(moons, wrong):
    with pytest.raises(InputError, match="n_estimators"):
        VFFGPC(3, n_estimators=wrong).fit(*moons)


# Prediction


@each_model
def test_the_probability_is_the_mean_of_the_estimators(name, fitted, moons):
    ensemble, X = fitted[name], moons[0]
    of_each = [alone(ensemble, number).predict_proba(X) for number in range(3)]
    # Rounding of a mean of three.
    assert_allclose(ensemble.predict_proba(X), np.mean(of_each, axis=0), rtol=1e-12)


@each_model
def test_labels_decisions_and_probabilities_agree(name, fitted, moons):
    ensemble, X = fitted[name], moons[0]
    second = ensemble.predict_proba(X)[:, 1]
    # The oracle loses digits of 1 - p where p is near 1.
    assert_allclose(ensemble.decision_function(X), logit(second), rtol=1e-6, atol=1e-9)
    assert_array_equal(ensemble.predict(X), (second > 0.5).astype(int))
    assert_array_equal(ensemble.predict(X), (ensemble.decision_function(X) > 0).astype(int))


def test_labels_need_variances_only_where_estimators_differ(fitted, moons, monkeypatch):
    ensemble, X = fitted["batch VFFGPC"], moons[0]
    means = np.array([alone(ensemble, number).latent_mean(X) for number in range(3)])
    largest = np.array([[fit.signal_variance] for fit in ensemble.estimators_])
    shift = ensemble._prior_shift[0]
    ends = np.array([scaled_mean(means, at * largest) + shift for at in (0.0, 1.0)])
    divided = (ends > 0).any(axis=(0, 1)) & (ends <= 0).any(axis=(0, 1))
    assert 0 < divided.sum() < 0.8 * len(X)
    seen = []
    real = gp_model.pooled_log_odds
    monkeypatch.setattr(
        gp_model, "pooled_log_odds", lambda *given: seen.append(given[0].shape[2]) or real(*given)
    )
    ensemble.predict(X)
    assert seen == [divided.sum()]


@each_model
def test_the_variance_follows_the_law_of_total_variance(name, fitted, moons):
    ensemble, X = fitted[name], moons[0]
    moments = [alone(ensemble, number).latent_mean_and_variance(X) for number in range(3)]
    means, variances = np.swapaxes(moments, 0, 1)
    mean, variance = ensemble.latent_mean_and_variance(X)
    assert_allclose(mean, means.mean(axis=0), rtol=1e-10, atol=1e-12)
    assert_allclose(variance, variances.mean(axis=0) + means.var(axis=0), rtol=1e-10)
    assert_allclose(ensemble.ensemble_std(X), means.std(axis=0), rtol=1e-6, atol=1e-12)
    # The same cosines, summed in another way.
    assert_allclose(ensemble.latent_mean(X), mean, rtol=1e-9, atol=1e-10)
    probability, again = ensemble.predict_proba_and_variance(X)
    assert_array_equal(again, variance)
    assert_array_equal(probability, ensemble.predict_proba(X))
    full = ensemble.predict_in_full(X)
    assert_array_equal(full.probabilities, probability)
    assert_array_equal(full.mean, mean)
    assert_array_equal(full.variance, variance)
    assert_allclose(full.ensemble_std, means.std(axis=0), rtol=1e-10, atol=1e-12)


@each_model
def test_estimators_whose_cosines_go_on_for_ever_differ_more_away_from_the_data(name, moons):
    X, y = moons
    ensemble = model(name, taper=0.0, warp=False).fit(X, y)
    assert ensemble.ensemble_std(5.0 * X).mean() > ensemble.ensemble_std(X).mean()


@pytest.mark.parametrize("tolerance", [1e-3, 1e-2])
def test_a_variance_tolerance_bounds_the_error_of_an_ensemble(clouds, tolerance):
    X, y = clouds
    ensemble = RFFGPC(30, n_estimators=3, max_iter=3, random_state=0).fit(X, y)
    exact = ensemble.predict_proba(X)
    ensemble.set_params(variance_tolerance=tolerance)
    found = ensemble.predict_proba(X)
    assert 0 < np.abs(found - exact).max() <= tolerance
    assert_array_equal(ensemble.predict(X), (found[:, 1] > 0.5).astype(int))


@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-9), ("single", 1e-5)])
def test_predictions_do_not_depend_on_the_blocks(clouds, precision, tolerance):
    X, y = clouds
    ensemble = model("batch VFFGPC", precision=precision).fit(X, y)
    rows = [ensemble.predict_proba(X[i : i + 7]) for i in range(0, len(X), 7)]
    assert_allclose(np.concatenate(rows), ensemble.predict_proba(X), rtol=0, atol=tolerance)


def test_the_cosines_of_all_estimators_sum_to_the_latent_mean(moons):
    X, y = moons
    ensemble = model("batch VFFGPC", posterior="bound", warp=False, taper=0.0).fit(X, y)
    cosines = cosines_of(ensemble)
    assert len(cosines.amplitudes) == 12
    phase = (X - cosines.centre) @ cosines.frequencies.T
    total = (cosines.amplitudes * np.cos(phase - cosines.delays)).sum(axis=1)
    assert_allclose(total, ensemble.latent_mean(X), rtol=1e-9, atol=1e-9)


def test_an_ensemble_in_each_regime_mixes_its_latent_moments(moons):
    X, y = moons
    table = pd.DataFrame(X, columns=["a", "b"]).assign(angle=np.linspace(0.0, 90.0, 120))
    regimes = (Regime("day", 0.0, 45.0, ("a", "b")), Regime("night", 45.0, 91.0, ("a", "b")))
    mixed = RegimeClassifier(model("batch RFFGPC"), regimes=regimes, by="angle", blend=10.0)
    mixed.fit(table, y)
    probability, variance = mixed.predict_proba_and_variance(table)
    assert_allclose(variance, mixed.latent_mean_and_variance(table)[1], rtol=1e-9)
    assert_array_equal(probability, mixed.predict_proba(table))


# Continuing, interrupts, progress


@contextmanager
def on_progress(call):
    """A context in which ``call(step, member)`` takes the place of progress lines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ProgressLine, "__call__", lambda self, step, state, estimator: call(step, estimator)
        )
        yield


@pytest.mark.parametrize("name", ["batch VFFGPC", "stochastic VFFGPC"])
def test_an_ensemble_continued_from_its_checkpoints_equals_the_uninterrupted_one(
    name, clouds, tmp_path
):
    X, y = clouds
    params = {"tol": 0.0, "max_iter": 5}
    whole = model(name, **params).fit(X, y)
    path = tmp_path / "state"

    def fail(step, member):
        if (step, member) == (2, 1):
            raise RuntimeError("killed")

    with on_progress(fail), pytest.raises(RuntimeError, match="killed"):
        model(name, checkpoint=path, n_jobs=1, **params).fit(X, y)
    # The first estimator is finished, the second under way.
    assert sorted(file.name for file in tmp_path.iterdir()) == ["state.1", "state.2"]
    steps = []
    with on_progress(lambda step, member: steps.append((member, step))):
        rest = model(name, checkpoint=path, **params).fit(X, y)
    assert sorted(steps) == [*((1, n) for n in (3, 4, 5)), *((2, n) for n in range(1, 6))]
    assert_same_ensemble(rest, whole, X)


def test_an_interrupted_ensemble_keeps_its_finished_estimators_and_continues(clouds):
    X, y = clouds
    ensemble = model("batch VFFGPC", n_jobs=1, warm_start=True, on_interrupt="keep")

    def interrupt(step, member):
        if member == 2:
            raise KeyboardInterrupt

    with (
        on_progress(interrupt),
        pytest.warns(ConvergenceWarning, match=r"ensemble of 2 estimators, of 3.*warm_start=True"),
    ):
        ensemble.fit(X, y)
    assert len(ensemble.estimators_) == 2
    assert ensemble.fit_report_["stopped"] == "interrupted"
    assert ensemble.score(X, y) > 0.7
    kept = ensemble.estimators_
    ensemble.fit(X, y)
    assert len(ensemble.estimators_) == 3
    for before, after in zip(kept, ensemble.estimators_, strict=False):
        assert after.lengthscale == before.lengthscale
        assert not np.array_equal(after.frequencies, before.frequencies)


@pytest.mark.parametrize("n_jobs", [1, 3])
def test_an_interrupted_ensemble_is_no_model_and_continues_to_the_same_bits(
    n_jobs, clouds, tmp_path
):
    X, y = clouds
    params = {"tol": 0.0, "max_iter": 5, "n_jobs": n_jobs}
    whole = model("stochastic VFFGPC", **params).fit(X, y)
    stopped = model("stochastic VFFGPC", checkpoint=tmp_path / "state", **params)

    def interrupt(step, member):
        if (step, member) == (2, 1):
            raise KeyboardInterrupt

    with on_progress(interrupt), pytest.raises(KeyboardInterrupt):
        stopped.fit(X, y)
    assert not hasattr(stopped, "estimators_")
    assert {file.name for file in tmp_path.iterdir()} >= {"state.2"}
    assert_same_ensemble(stopped.fit(X, y), whole, X)


def test_a_warm_start_continues_each_estimator_from_its_own_end(clouds):
    X, y = clouds
    # The paper's model, in which the bound is the one that learning raises.
    options = {"posterior": "bound", "warp": False, "taper": 0.0}
    ensemble = model("batch RFFGPC", warm_start=True, tol=0.0, **options).fit(X, y)
    first, bound = ensemble.estimators_, ensemble.lower_bound_
    ensemble.fit(X, y)
    for before, after in zip(first, ensemble.estimators_, strict=True):
        unit = before.frequencies * before.lengthscale
        assert_allclose(after.frequencies * after.lengthscale, unit, rtol=1e-12)
    assert ensemble.lower_bound_ >= bound - 1e-4 * (abs(bound) + 100)


def test_a_warm_start_with_fewer_estimators_is_refused(moons):
    ensemble = model("batch RFFGPC", warm_start=True).fit(*moons)
    with pytest.raises(InputError, match=r"3 estimators, but n_estimators is 2.*warm_start=False"):
        ensemble.set_params(n_estimators=2).fit(*moons)


def test_one_line_of_progress_counts_the_steps_of_all_estimators(moons, capsys):
    model("stochastic VFFGPC", verbose=2, tol=0.0).fit(*moons)
    lines = capsys.readouterr().err.splitlines()
    steps = [line for line in lines if "step" in line]
    assert all(line.startswith("VFFGPC: ") for line in lines)
    assert all("of about 3: validation NLL" in line for line in steps)
    assert {f"estimator {number} of 3, step" in "".join(steps) for number in (1, 2, 3)} == {True}
    assert any("estimator 1 of 3, pass 1 over all rows" in line for line in lines)


# Other ways in


@pytest.mark.parametrize("class_name", ["VFFGPC", "RFFGPC"])
def test_an_ensemble_of_a_dask_array_is_that_of_the_array(class_name, clouds):
    X, y = clouds
    ensemble = model(f"stochastic {class_name}")
    groups = np.arange(200) // 10
    expected = clone(ensemble).fit(X, y, groups=groups)
    chunks = da.from_array(X, chunks=(70, 3))
    found = clone(ensemble).fit(chunks, da.from_array(y, chunks=70), groups=groups)
    # As for one model: sums of chunks round differently.
    assert_allclose(found.predict_proba(X), expected.predict_proba(X), rtol=0, atol=1e-9)
    assert_allclose(found.predict_proba(chunks), found.predict_proba(X), rtol=0, atol=1e-12)


@pytest.fixture
def metadata_routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def test_groups_reach_the_ensemble_through_a_search_over_a_pipeline(
    moons, metadata_routing, monkeypatch
):
    X, y = moons
    groups = np.arange(120) % 12
    seen = []
    real = classifier.leave_out
    monkeypatch.setattr(
        classifier,
        "leave_out",
        lambda pixels, *rest: seen.append(pixels.groups) or real(pixels, *rest),
    )
    ensemble = VFFGPC(3, n_estimators=2, max_iter=1, random_state=0).set_fit_request(groups=True)
    pipeline = Pipeline([("scale", StandardScaler()), ("classify", ensemble)])
    search = GridSearchCV(pipeline, {"classify__n_frequencies": [2, 3]}, cv=GroupKFold(3))
    search.fit(X, y, groups=groups)
    # Three folds of two settings, and the best on all rows.
    assert [len(np.unique(groups)) for groups in seen] == [8] * 6 + [12]
