"""RegimeClassifier: assignment at the edges, blending, errors that name the regime, files."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import RFFGPC, VFFGPC, load_model, save_model
from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError, UndulatusError
from undulatus.estimators.progress_line import ProgressLine
from undulatus.regimes import DAYLIGHT, MEDIAN, Regime, RegimeClassifier

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

TWO = (Regime("day", 0.0, 90.0), Regime("night", 90.0, 180.0, ("BT9",)))


def small(n_frequencies=10):
    return RFFGPC(n_frequencies, n_estimators=1, random_state=0)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    n = 800
    return pd.DataFrame(
        {
            "R1": rng.normal(size=n),
            "BT9": rng.normal(280.0, 10.0, n),
            "solar_zenith_angle": rng.uniform(0.0, 179.0, n),
        }
    )


@pytest.fixture(scope="module")
def cloudy(table):
    dark = table["solar_zenith_angle"] >= 90.0
    rule = np.where(dark, table["BT9"] < 280.0, table["R1"] > 0.0)
    # Some labels are wrong: with perfectly separable classes a fit would not converge.
    return (rule ^ (np.random.default_rng(4).random(len(table)) < 0.05)).astype(int)


@pytest.fixture(scope="module")
def fitted(table, cloudy):
    return RegimeClassifier(small(), TWO).fit(table, cloudy)


def test_an_interrupt_in_one_regime_ends_the_fit_of_all(table, cloudy, monkeypatch):
    model = RegimeClassifier(small(), TWO).fit(table, cloudy)

    def call(self, step, state, estimator=0):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "__call__", call)
        with pytest.raises(KeyboardInterrupt):
            model.fit(table, cloudy)
    with pytest.raises(NotFittedError):
        model.predict(table)


def regime_at(angle, model):
    return model.assign(np.array([angle]))[0]


def test_each_regime_learns_its_own_rule(fitted, table, cloudy):
    assert fitted.score(table, cloudy) > 0.9
    assert list(fitted.estimators_) == ["day", "night"]
    assert fitted.estimators_["day"].n_features_in_ == 2
    assert fitted.estimators_["night"].n_features_in_ == 1


def test_a_regime_predicts_the_same_as_its_classifier_alone(fitted, table):
    day = (table["solar_zenith_angle"] < 90.0).to_numpy()
    alone = fitted.estimators_["day"]
    rows = table.loc[day, ["R1", "BT9"]].to_numpy()
    assert_array_equal(fitted.predict_proba(table)[day], alone.predict_proba(rows))
    assert_array_equal(fitted.predict(table)[day], alone.predict(rows))
    assert_array_equal(fitted.decision_function(table)[day], alone.decision_function(rows))
    mean, variance = fitted.latent_mean_and_variance(table)
    its_mean, its_variance = alone.latent_mean_and_variance(rows)
    assert_array_equal(mean[day], its_mean)
    # The variance is computed from the mean square.
    assert_allclose(variance[day], its_variance, rtol=1e-9, atol=1e-9)


def test_probability_and_variance_together_equal_those_of_two_calls(fitted, table):
    probability, variance = fitted.predict_proba_and_variance(table)
    assert_array_equal(probability, fitted.predict_proba(table))
    assert_allclose(variance, fitted.latent_mean_and_variance(table)[1], rtol=1e-9, atol=1e-9)


def test_the_condition_is_not_a_feature(fitted):
    assert all("solar_zenith_angle" not in regime.features for regime in fitted.regimes_)
    assert fitted.feature_names_in_.tolist() == ["R1", "BT9", "solar_zenith_angle"]


@pytest.mark.parametrize("edge", [0.0, 90.0])
def test_bins_are_half_open(fitted, edge):
    above = {0.0: 0, 90.0: 1}[edge]
    assert regime_at(edge, fitted) == above
    assert regime_at(np.nextafter(edge, -1.0), fitted) == above - 1
    assert regime_at(np.nextafter(edge, 999.0), fitted) == above


def test_values_outside_all_regimes_are_assigned_to_none(fitted):
    assert_array_equal(fitted.assign([-0.1, 180.0, np.nan]), [-1, -1, -1])


def test_daylight_splits_the_day_at_the_median_of_its_training_rows(table, cloudy):
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=len(table)) for name in DAYLIGHT[-1].features}
    full = table.assign(**columns)
    model = RegimeClassifier(LogisticRegression(max_iter=1000)).fit(full, cloudy)
    angles = table["solar_zenith_angle"].to_numpy()
    expected = np.median(angles[angles < 80.0])
    assert [regime.edges for regime in model.regimes_] == [
        (0.0, expected),
        (expected, 80.0),
        (80.0, 90.0),
        (90.0, np.inf),
    ]
    high, mid = (np.sum(model.assign(angles) == index) for index in (0, 1))
    assert abs(int(high) - int(mid)) <= 1


def test_probabilities_are_mixed_linearly_across_an_edge(table, cloudy):
    blended = RegimeClassifier(small(), TWO, blend=5.0).fit(table, cloudy)
    row = {"R1": np.full(5, 0.4), "BT9": np.full(5, 278.0)}
    angles = np.array([84.0, 85.0, 90.0, 92.5, 96.0])
    found = blended.predict_proba({**row, "solar_zenith_angle": angles})[:, 1]
    day = blended.estimators_["day"].predict_proba(np.column_stack(list(row.values())))[:, 1]
    night = blended.estimators_["night"].predict_proba(row["BT9"][:, None])[:, 1]
    share_of_night = np.array([0.0, 0.0, 0.5, 0.75, 1.0])
    assert_allclose(found, (1 - share_of_night) * day + share_of_night * night, rtol=1e-9)


def test_blended_moments_are_those_of_the_mixture(table, cloudy):
    blended = RegimeClassifier(small(), TWO, blend=5.0).fit(table, cloudy)
    row = {"R1": np.array([0.4]), "BT9": np.array([278.0])}
    mean, variance = blended.latent_mean_and_variance(
        {**row, "solar_zenith_angle": np.array([90.0])}
    )
    day = blended.estimators_["day"].latent_mean_and_variance(np.array([[0.4, 278.0]]))
    night = blended.estimators_["night"].latent_mean_and_variance(np.array([[278.0]]))
    assert_allclose(mean, (day[0] + night[0]) / 2)
    assert_allclose(variance, (day[1] + night[1]) / 2 + ((day[0] - night[0]) / 2) ** 2)
    _, together = blended.predict_proba_and_variance(
        {**row, "solar_zenith_angle": np.array([90.0])}
    )
    assert_allclose(together, variance)


def test_a_row_without_the_features_across_the_edge_uses_its_own_regime_only(table, cloudy):
    blended = RegimeClassifier(small(), TWO, blend=5.0).fit(table, cloudy)
    row = {
        "R1": np.array([np.nan]),
        "BT9": np.array([278.0]),
        "solar_zenith_angle": np.array([91.0]),
    }
    night = blended.estimators_["night"].predict_proba(np.array([[278.0]]))
    assert_allclose(blended.predict_proba(row), night)
    assert np.isfinite(blended.predict_proba_and_variance(row)[1]).all()


def test_labels_follow_the_blended_probability(table, cloudy):
    blended = RegimeClassifier(small(), TWO, blend=20.0).fit(table, cloudy)
    assert_array_equal(
        blended.predict(table), blended.classes_[blended.predict_proba(table).argmax(axis=1)]
    )


def test_a_missing_feature_of_the_rows_own_regime_is_an_error(fitted):
    row = {
        "R1": np.array([np.nan]),
        "BT9": np.array([278.0]),
        "solar_zenith_angle": np.array([30.0]),
    }
    with pytest.raises(InputError, match="NaN"):
        fitted.predict_proba(row)


@pytest.mark.parametrize("form", ["mapping", "structured"])
def test_any_table_with_named_columns_is_accepted(fitted, table, form):
    other = {name: table[name].to_numpy() for name in table}
    if form == "structured":
        other = table.to_records(index=False)
    assert_array_equal(fitted.predict(other), fitted.predict(table))


def test_the_order_of_columns_does_not_matter(fitted, table):
    assert_array_equal(
        fitted.predict_proba(table[table.columns[::-1]]), fitted.predict_proba(table)
    )


def test_each_regime_may_have_its_own_classifier(table, cloudy):
    own = {"day": LogisticRegression(), "night": small(5)}
    model = RegimeClassifier(own, TWO).fit(table, cloudy)
    assert type(model.estimators_["day"]) is LogisticRegression
    assert type(model.estimators_["night"]) is RFFGPC
    with pytest.raises(InputError, match="night"):
        RegimeClassifier({"day": LogisticRegression()}, TWO).fit(table, cloudy)


def test_the_default_classifier_is_vff():
    assert type(RegimeClassifier()._estimator_of(DAYLIGHT[0])) is VFFGPC


def test_weights_are_passed_to_the_classifiers(table, cloudy):
    weight = np.where(table["R1"] > 0.0, 1.0, 0.0) + 1e-3
    plain = RegimeClassifier(LogisticRegression(), TWO).fit(table, cloudy)
    weighted = RegimeClassifier(LogisticRegression(), TWO).fit(table, cloudy, weight)
    assert not np.allclose(
        plain.estimators_["day"].intercept_, weighted.estimators_["day"].intercept_
    )


def test_the_classifier_can_be_cloned(table, cloudy):
    model = RegimeClassifier(small(5), TWO, blend=1.0)
    again = clone(model)
    assert again.get_params(deep=False)["regimes"] == TWO
    assert again.set_params(estimator__n_frequencies=7).estimator.n_frequencies == 7


def test_an_unfitted_classifier_raises(table):
    with pytest.raises(NotFittedError):
        RegimeClassifier(regimes=TWO).predict(table)


# Errors


def test_an_array_without_names_is_refused(cloudy):
    with pytest.raises(InputError, match="named columns"):
        RegimeClassifier(regimes=TWO).fit(np.zeros((800, 3)), cloudy)


def test_a_missing_condition_is_named_with_the_columns_found(fitted, table):
    with pytest.raises(InputError, match=r"solar_zenith_angle.*\n.*R1, BT9"):
        fitted.predict(table.drop(columns="solar_zenith_angle"))


def test_a_table_without_rows_is_refused(fitted, table, cloudy):
    for call in (fitted.predict, fitted.predict_proba, lambda X: fitted.update(X, cloudy[:0])):
        with pytest.raises(InputError, match="no rows"):
            call(table[:0])


def test_a_missing_feature_is_named_with_its_regime(table, cloudy):
    with pytest.raises(InputError, match=r"'night'.*BT9"):
        RegimeClassifier(regimes=TWO).fit(table.drop(columns="BT9"), cloudy)


def test_rows_without_an_angle_are_counted(fitted, table):
    broken = table.assign(solar_zenith_angle=table["solar_zenith_angle"].where(table["R1"] < 2.0))
    count = int((table["R1"] >= 2.0).sum())
    with pytest.raises(InputError, match=f"NaN. in {count} of 800"):
        fitted.predict(broken)


def test_a_row_in_no_regime_is_an_error(fitted, table):
    with pytest.raises(InputError, match="1 rows lie in no regime"):
        fitted.predict(table.assign(solar_zenith_angle=[200.0, *table["solar_zenith_angle"][1:]]))


@pytest.mark.parametrize("kept", [0, 9])
def test_a_regime_with_too_few_rows_is_named_with_its_counts(table, cloudy, kept):
    night = np.flatnonzero(table["solar_zenith_angle"] >= 90.0)
    cloudy_night = night[cloudy[night] == 1]
    rows = np.setdiff1d(np.arange(800), cloudy_night[kept:])
    with pytest.raises(InputError, match=f"'night'.*{kept} of class 1; 10 of each are needed"):
        RegimeClassifier(small(5), TWO).fit(table.iloc[rows], cloudy[rows])


def test_an_error_in_a_classifier_names_its_regime(table, cloudy):
    broken = table.assign(BT9=np.where(np.arange(800) == 5, np.nan, table["BT9"]))
    with pytest.raises(UndulatusError, match=r"Regime '(day|night)'.*NaN"):
        RegimeClassifier(small(5), TWO).fit(broken, cloudy)


@pytest.mark.parametrize(
    ("regimes", "message"),
    [
        ((), "distinct"),
        ((Regime("a", 0.0, 1.0), Regime("a", 1.0, 2.0)), "distinct"),
        ((Regime("a", 0.0, 1.0), Regime("b", 2.0, 3.0)), "contiguous"),
        ((Regime("a", 3.0, 1.0), Regime("b", 1.0, 2.0)), "rising"),
        ((Regime("a", MEDIAN, 1.0), Regime("b", 1.0, 2.0)), "rising"),
        (
            (Regime("a", 0.0, MEDIAN), Regime("b", MEDIAN, MEDIAN), Regime("c", MEDIAN, 180.0)),
            "in a row",
        ),
        ((Regime("a", 200.0, MEDIAN), Regime("b", MEDIAN, 300.0)), "there are none"),
    ],
)
def test_invalid_regimes_are_refused(table, cloudy, regimes, message):
    with pytest.raises(InputError, match=message):
        RegimeClassifier(regimes=regimes).fit(table, cloudy)


@pytest.mark.parametrize("blend", [-1.0, 46.0])
def test_blending_beyond_half_the_narrowest_regime_is_refused(table, cloudy, blend):
    with pytest.raises(InputError, match="between 0 and half"):
        RegimeClassifier(regimes=TWO, blend=blend).fit(table, cloudy)


# In a file


@pytest.mark.parametrize("blend", [0.0, 3.0])
def test_a_loaded_model_predicts_the_same_bits(table, cloudy, blend, tmp_path):
    model = RegimeClassifier(small(), TWO, blend=blend).fit(table, cloudy)
    model.provenance_ = {"label": "cloud_mask_l2", "held_out_days": ["2010-01-01"]}
    save_model(model, tmp_path / "clouds.undulatus")
    again = load_model(tmp_path / "clouds.undulatus")
    assert_array_equal(again.predict_proba(table), model.predict_proba(table))
    assert again.provenance_ == model.provenance_
    assert again.regimes_ == model.regimes_
    assert_array_equal(again.feature_names_in_, model.feature_names_in_)
    refitted = clone(again).fit(table, cloudy)
    assert_array_equal(refitted.predict_proba(table), model.predict_proba(table))


def test_infinite_edges_are_restored(table, cloudy, tmp_path):
    open_ended = (Regime("day", 0.0, 90.0), Regime("night", 90.0, np.inf))
    model = RegimeClassifier(small(5), open_ended).fit(table, cloudy)
    save_model(model, tmp_path / "m.undulatus")
    assert load_model(tmp_path / "m.undulatus").regimes_[1].high == np.inf


def test_a_classifier_of_another_package_in_a_regime_cannot_be_saved(table, cloudy, tmp_path):
    model = RegimeClassifier(LogisticRegression(), TWO).fit(table, cloudy)
    with pytest.raises(InputError, match="LogisticRegression"):
        save_model(model, tmp_path / "m.undulatus")
    assert not list(tmp_path.iterdir())


def test_a_file_with_a_regime_without_classifier_is_refused(fitted, tmp_path):
    path = tmp_path / "m.undulatus"
    save_model(fitted, path)
    tensors, header = read_tensors(path)
    del header["members"][-1]
    write_tensors(path, tensors, header)
    with pytest.raises(ModelFileError, match="2 regimes and 1 classifiers"):
        load_model(path)


# More than two classes


@pytest.fixture(scope="module")
def surface(table):
    """Three classes, of which one in ten is wrong: cold, and among the others bright or dark."""
    wrong = np.random.default_rng(5).random(len(table)) < 0.1
    rule = np.where(table["BT9"] < 275.0, "cold", np.where(table["R1"] > 0.0, "bright", "dark"))
    return np.where(wrong, "dark", rule)


@pytest.mark.parametrize("blend", [0.0, 20.0])
def test_each_of_three_classes_has_the_moments_of_the_regimes_classifiers(table, surface, blend):
    regimes = (Regime("day", 0.0, 90.0), Regime("night", 90.0, 180.0))
    model = RegimeClassifier(small(), regimes, blend=blend).fit(table, surface)
    angle = table["solar_zenith_angle"].to_numpy()
    night = (angle >= 90.0) * 1.0 if not blend else np.clip(0.5 + (angle - 90.0) / 40.0, 0.0, 1.0)
    share = np.stack([1.0 - night, night])[:, :, None]
    X = table[["R1", "BT9"]].to_numpy()
    each = [model.estimators_[name] for name in ("day", "night")]
    expected = np.sum(share * [e.predict_proba(X) for e in each], axis=0)
    probability, variance = model.predict_proba_and_variance(table)
    # Sums of a few hundred waves, blocked in another way.
    assert_allclose(probability, expected, atol=1e-9)
    assert_allclose(model.predict_proba(table), expected, atol=1e-9)
    means, variances = np.stack([e.latent_mean_and_variance(X) for e in each], axis=1)
    mean = np.sum(share * means, axis=0)
    mixed = np.sum(share * (variances + means**2), axis=0) - mean**2
    found = model.latent_mean_and_variance(table)
    assert found[0].shape == found[1].shape == (len(table), 3)
    assert_allclose(found[0], mean, atol=1e-8)
    assert_allclose(found[1], mixed, atol=1e-8)
    assert_allclose(variance, mixed, atol=1e-8)
    assert_array_equal(model.predict(table), model.classes_[expected.argmax(axis=1)])
    assert model.decision_function(table).shape == (len(table), 3)


def test_regimes_of_three_classes_are_restored_from_a_file(table, surface, tmp_path):
    model = RegimeClassifier(small(), TWO).fit(table, surface)
    save_model(model, tmp_path / "model")
    assert_array_equal(
        load_model(tmp_path / "model").predict_proba(table), model.predict_proba(table)
    )


def test_regimes_with_different_classes_are_refused_and_listed(table, surface, cloudy):
    X = table[["R1", "BT9"]].to_numpy()
    members = {"day": small().fit(X, surface), "night": small().fit(X, cloudy)}
    regimes = (Regime("day", 0, 90, ("R1", "BT9")), Regime("night", 90, 180, ("R1", "BT9")))
    with pytest.raises(
        InputError, match=r"different classes\.\n  day: 'bright', 'cold', 'dark'\n"
    ):
        RegimeClassifier.from_fitted(members, regimes)


# Updates


def more_rows(n, seed, low=0.0, high=179.0):
    rng = np.random.default_rng(seed)
    rows = pd.DataFrame(
        {
            "R1": rng.normal(size=n),
            "BT9": rng.normal(280.0, 10.0, n),
            "solar_zenith_angle": rng.uniform(low, high, n),
        }
    )
    return rows, rng.integers(0, 2, n)


def refit(table, cloudy, **options):
    return RegimeClassifier(small(), TWO, **options).fit(table, cloudy)


@pytest.mark.parametrize("blend", [0.0, 20.0])
def test_an_update_gives_each_classifier_the_rows_of_its_regime(table, cloudy, blend):
    model = refit(table, cloudy, blend=blend)
    alone = {name: clone(small()) for name in model.estimators_}
    assigned = model.assign(table["solar_zenith_angle"])
    for index, (name, columns) in enumerate((("day", ["R1", "BT9"]), ("night", ["BT9"]))):
        own = assigned == index
        alone[name].fit(table.loc[own, columns].to_numpy(), cloudy[own])
    X, y = more_rows(30, seed=1)
    weight = np.random.default_rng(0).uniform(0.0, 3.0, 30)
    model = model.update(X, y, weight)
    day = (X["solar_zenith_angle"] < 90.0).to_numpy()
    for name, rows, columns in (("day", day, ["R1", "BT9"]), ("night", ~day, ["BT9"])):
        added = X.loc[rows, columns].to_numpy(), y[rows], weight[rows]
        alone[name] = alone[name].update(*added)
    rows = {"day": table[["R1", "BT9"]].to_numpy(), "night": table[["BT9"]].to_numpy()}
    for name, values in rows.items():
        assert_array_equal(
            model.estimators_[name].predict_proba(values), alone[name].predict_proba(values)
        )


def test_updates_of_regimes_are_forgotten_by_number_also_from_a_file(table, cloudy, tmp_path):
    model = refit(table, cloudy)
    plain = model.predict_proba(table)
    model = model.update(*more_rows(12, 1, high=80.0)).update(*more_rows(12, 2))
    model = model.update(*more_rows(12, 3, low=95.0))
    assert model.updates_ == (("day",), ("day", "night"), ("night",))
    path = tmp_path / "model.safetensors"
    save_model(model, path)
    model = load_model(path)
    assert_array_equal(model.predict_proba(table), load_model(path).predict_proba(table))
    model = model.forget(1)
    assert model.updates_ == (("day",), ("night",))
    # What is left are the rows of the first update by day, and of the third by night.
    left = {name: own.updates_ for name, own in model.estimators_.items()}
    assert_array_equal(left["day"][0].rows[:, 0], more_rows(12, 1, high=80.0)[0]["R1"])
    assert_array_equal(left["night"][0].rows[:, 0], more_rows(12, 3, low=95.0)[0]["BT9"])
    model = model.forget().forget(0)
    assert_allclose(model.predict_proba(table), plain, atol=1e-9)
    with pytest.raises(InputError, match="no update -1 to forget: the model has 0"):
        model.forget()
    assert not hasattr(
        model.fit(table, cloudy).update(*more_rows(5, 1)).fit(table, cloudy), "updates_"
    )


def test_updates_of_regimes_leave_the_model_as_it_is(table, cloudy):
    model = refit(table, cloudy)
    plain, members = model.predict_proba(table), dict(model.estimators_)
    once = model.update(*more_rows(12, 1))
    changed = once.predict_proba(table)
    assert np.abs(changed - plain).max() > 1e-6
    assert once.forget().updates_ == ()
    assert model.estimators_ == members
    assert not hasattr(model, "updates_")
    assert_array_equal(model.predict_proba(table), plain)
    assert_array_equal(once.predict_proba(table), changed)


def test_if_one_classifier_refuses_its_rows_none_is_changed(table, cloudy):
    model = refit(table, cloudy)
    before, members = model.predict_proba(table), dict(model.estimators_)
    X, y = more_rows(30, seed=1)
    X.loc[X["solar_zenith_angle"].idxmax(), "BT9"] = np.nan
    with pytest.raises(InputError, match=r"Regime 'night'(.|\n)*NaN"):
        model.update(X, y)
    with pytest.raises(InputError, match="Regime 'day': y holds 5"):
        model.update(more_rows(30, seed=1)[0], np.full(30, 5))
    with pytest.raises(InputError, match="y has shape"):
        model.update(X, y[:-1])
    with pytest.raises(InputError, match="sample_weight has shape"):
        model.update(X, y, np.ones(29))
    with pytest.raises(InputError, match="rows lie in no regime"):
        model.update(more_rows(3, 1, low=190.0, high=200.0)[0], y[:3])
    assert model.estimators_ == members
    assert_array_equal(model.predict_proba(table), before)
    assert not hasattr(model, "updates_")


def test_a_pipeline_in_a_regime_takes_updates(table, cloudy):
    pipeline = make_pipeline(StandardScaler(), small())
    model = RegimeClassifier(pipeline, TWO).fit(table, cloudy)
    plain = model.predict_proba(table)
    X, y = more_rows(20, 4)
    day = (X["solar_zenith_angle"] < 90.0).to_numpy()
    first, last = clone(pipeline[:-1]), clone(small())
    rows = table.loc[table["solar_zenith_angle"] < 90.0, ["R1", "BT9"]].to_numpy()
    last.fit(first.fit_transform(rows), cloudy[table["solar_zenith_angle"] < 90.0])
    last = last.update(first.transform(X.loc[day, ["R1", "BT9"]].to_numpy()), y[day])
    model = model.update(X, y)
    # Columns of another memory order are summed in another order.
    assert_allclose(
        model.estimators_["day"].predict_proba(rows),
        last.predict_proba(first.transform(rows)),
        atol=1e-9,
    )
    assert_allclose(model.forget().predict_proba(table), plain, atol=1e-9)


def test_the_last_step_of_a_pipeline_gets_the_weights_and_groups_of_its_regime(table, cloudy):
    groups = np.arange(len(table)) // 40
    weight = np.random.default_rng(0).uniform(0.5, 2.0, len(table))
    last = VFFGPC(5, n_estimators=1, random_state=0)
    model = RegimeClassifier(make_pipeline(StandardScaler(), last), TWO)
    model.fit(table, cloudy, sample_weight=weight, groups=groups)
    own = (table["solar_zenith_angle"] >= 90.0).to_numpy()
    rows = table.loc[own, ["BT9"]].to_numpy()
    scaled = StandardScaler().fit_transform(rows)
    alone = clone(last).fit(scaled, cloudy[own], sample_weight=weight[own], groups=groups[own])
    assert_array_equal(model.estimators_["night"].predict_proba(rows), alone.predict_proba(scaled))


def test_a_classifier_that_takes_no_updates_is_named(table, cloudy):
    model = RegimeClassifier(LogisticRegression(), TWO).fit(table, cloudy)
    with pytest.raises(InputError, match="Regime 'day': a LogisticRegression takes no updates"):
        model.update(*more_rows(10, 1))


def test_a_file_that_lacks_updates_of_a_regime_is_refused(table, cloudy, tmp_path):
    model = refit(table, cloudy).update(*more_rows(12, 2))
    model.updates_ = (*model.updates_, ("night",))
    path = tmp_path / "model.safetensors"
    reason = "has 2 updates in regime 'night', which holds fewer"
    with pytest.raises(InputError, match=reason):
        save_model(model, path)
    assert not path.exists()
    save_model(refit(table, cloudy).update(*more_rows(12, 2)), path)
    tensors, header = read_tensors(path)
    header["updates"].append(["night"])
    write_tensors(path, tensors, header)
    with pytest.raises(ModelFileError, match=reason):
        load_model(path)


@pytest.mark.parametrize("name", ["R1", "solar_zenith_angle"])
def test_masked_values_of_a_column_are_refused(fitted, table, cloudy, name):
    mask = np.arange(len(table)) < 3
    columns = {own: table[own].to_numpy() for own in table}
    columns[name] = np.ma.masked_array(columns[name], mask)
    for call in (RegimeClassifier(small(), TWO).fit, clone(fitted).fit):
        with pytest.raises(InputError, match=f"'{name}' has 3 of its 800 values masked"):
            call(columns, cloudy)
    for predict in (fitted.predict, fitted.predict_proba):
        with pytest.raises(InputError, match=f"'{name}' has 3 of its 800 values masked"):
            predict(columns)


def test_masked_and_missing_labels_weights_and_groups_are_refused(table, cloudy):
    unfitted = RegimeClassifier(small(), TWO)
    masked = np.ma.masked_array(cloudy, np.arange(len(cloudy)) < 2)
    with pytest.raises(InputError, match="y has 2 of its 800 values masked"):
        unfitted.fit(table, masked)
    for name in ("sample_weight", "groups"):
        with pytest.raises(InputError, match=f"{name} has 2 of its 800 values masked"):
            unfitted.fit(table, cloudy, **{name: masked})
    with pytest.raises(InputError, match=r"y contains None or NaN in 1 of 800 rows.*row 0\."):
        unfitted.fit(table, [None, *cloudy[1:]])
