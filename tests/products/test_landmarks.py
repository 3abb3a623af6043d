"""The landmark chain: which pixels are learned from, which are held out, and their scores."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import confusion_matrix

from undulatus import RFFGPC, load_model, save_model
from undulatus.errors import InputError, MissingBandsError, SceneError
from undulatus.products import Legend, landmarks, predict
from undulatus.products.landmarks import fit_scene, score_scene
from undulatus.products.maps import map_scene
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.scenes import features
from undulatus.scenes.sampling import near_coast, on_days
from undulatus.scenes.scene import check_scene

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
QUICK = {"method": "rff", "n_frequencies": 5, "pixels": 400, "n_estimators": 1}


@pytest.fixture(scope="module")
def scores(model, days):
    return score_scene(model, days)


def test_the_model_remembers_what_it_was_fitted_on(model, days):
    known = model.provenance_
    assert known["label"] == "cloud_mask_l2"
    assert known["calibration_mode"] == "synthetic"
    assert len(known["held_out_days"]) == 1
    assert all(count <= 2000 for count in known["training_pixels"].values())
    assert list(known["training_pixels"]) == ["high", "mid", "low", "night"]


def test_training_is_balanced_without_coastal_clouds_and_held_out_days(days, monkeypatch):
    seen = {}

    def spy(scene, split, drawn):
        seen.update(labels=split.labels, drawn=drawn)
        return real(scene, split, drawn)

    real = landmarks._training_rows
    monkeypatch.setattr(landmarks, "_training_rows", spy)
    model = fit_scene(days, **QUICK)
    held_out = on_days(days["time"].values, model.provenance_["held_out_days"])
    coast = near_coast(days["land_mask"].values, 2).ravel()
    for rows in seen["drawn"].values():
        labels = seen["labels"].ravel()[rows]
        assert set(labels.tolist()) == {0, 1}
        assert labels.mean() == 0.5
        time, pixel = np.divmod(rows, 20 * 26)
        assert not held_out[time].any()
        assert not coast[pixel][labels == 1].any()
        assert coast[pixel][labels == 0].any()


def test_probabilities_are_corrected_to_the_real_share_of_cloud(model):
    for name, member in model.estimators_.items():
        share = model.provenance_["cloud_share"][name]
        assert_allclose(member._prior_shift, np.log(share / (1.0 - share)), rtol=1e-9)


def test_one_seed_gives_one_model(days):
    one, other = fit_scene(days, **QUICK, seed=3), fit_scene(days, **QUICK, seed=3)
    assert_array_equal(
        one.estimators_["mid"].posterior_.mean, other.estimators_["mid"].posterior_.mean
    )
    assert one.provenance_["held_out_days"] == other.provenance_["held_out_days"]


def test_only_the_held_out_days_are_scored(model, days, scores):
    held_out = on_days(days["time"].values, model.provenance_["held_out_days"])
    assert held_out.sum() == 96
    part = days.isel(time=np.flatnonzero(held_out)).load()
    result = map_scene(model, part)
    night = (part["solar_zenith_angle"] >= 90.0).values
    right = (result["cloud_mask"] == part["cloud_truth"]).values[night].mean()
    row = next(
        row
        for row in scores
        if (row.regime, row.part, row.reference) == ("night", "all", "cloud_truth")
    )
    assert row.pixels == night.sum()
    assert_allclose(row.scores.accuracy, right, atol=1e-6)
    label = (part["cloud_mask_l2"] == part["cloud_truth"]).values[night].mean()
    assert_allclose(row.label_accuracy, label)


def test_every_regime_and_part_is_scored_against_label_and_truth(scores):
    found = {(row.regime, row.part, row.reference) for row in scores}
    assert found == {
        (regime, part, reference)
        for regime in ("high", "mid", "low", "night")
        for part in ("all", "coast", "away from coast")
        for reference in ("cloud_mask_l2", "cloud_truth")
    }
    assert all(row.label_accuracy is None for row in scores if row.reference == "cloud_mask_l2")


def test_coast_and_away_from_coast_add_up_to_all(scores):
    for regime in ("high", "night"):
        counts = {
            row.part: row.pixels
            for row in scores
            if row.regime == regime and row.reference == "cloud_truth"
        }
        assert counts["all"] == counts["coast"] + counts["away from coast"]


def test_a_saved_model_scores_the_same(model, days, scores, tmp_path):
    save_model(model, tmp_path / "m.undulatus")
    assert score_scene(load_model(tmp_path / "m.undulatus"), days) == scores


def test_a_scene_of_other_days_is_scored_whole(model, days, scores):
    moved = days.isel(time=slice(0, 96))
    moved = moved.assign_coords(time=moved["time"] + np.timedelta64(2000, "D"))
    rows = score_scene(model, moved.drop_vars(("land_mask", "cloud_truth")))
    assert sum(row.pixels for row in rows) == 96 * 20 * 26


def test_a_scene_without_a_land_mask_can_be_fitted(days):
    model = fit_scene(days.drop_vars("land_mask"), **QUICK)
    assert set(model.estimators_) == {"high", "mid", "low", "night"}


@pytest.mark.parametrize("method", ["vff", "gpc"])
def test_every_method_can_be_fitted(days, method):
    model = fit_scene(days, method=method, n_frequencies=4, pixels=120, n_estimators=1)
    assert {type(member).__name__ for member in model.estimators_.values()} == {
        {"vff": "VFFGPC", "gpc": "GPC"}[method]
    }


def test_every_regime_may_have_an_ensemble_that_leaves_out_days(days, tmp_path):
    model = fit_scene(days, **QUICK | {"n_estimators": 2})
    assert [len(member.estimators_) for member in model.estimators_.values()] == [2] * 4
    save_model(model, tmp_path / "m.undulatus")
    two = days.isel(time=slice(0, 40, 20))
    maps = [map_scene(m, two).compute() for m in (model, load_model(tmp_path / "m.undulatus"))]
    assert_array_equal(*(found["cloud_probability"].values for found in maps))


def test_missing_labels_and_pixels_are_left_out(days, monkeypatch):
    seen = {}

    def spy(scene, split, drawn):
        seen["rows"] = np.concatenate(list(drawn.values())) % (20 * 26) // 26
        seen["columns"], y, day = real(scene, split, drawn)
        return seen["columns"], y, day

    real = landmarks._training_rows
    monkeypatch.setattr(landmarks, "_training_rows", spy)
    holed = days.isel(time=slice(0, 288)).load().copy()
    holed["cloud_mask_l2"][:, :5] = 255
    holed["IR_120"][:, 10:12] = np.nan
    fit_scene(holed, **QUICK)
    assert seen["rows"].min() == 5
    # A pixel that lacks a channel may be drawn, but is not learned from.
    assert np.isin([10, 11], seen["rows"]).any()
    assert np.isfinite(seen["columns"]["BT10"]).all()
    assert len(seen["columns"]["BT10"]) < len(seen["rows"])


def test_a_scene_is_checked_once(model, days, monkeypatch):
    checks = []

    def check(scene):
        checks.append(scene)
        return check_scene(scene)

    for module in (landmarks, predict, features):
        monkeypatch.setattr(module, "check_scene", check)
    for use in (
        lambda: fit_scene(days, **QUICK),
        lambda: map_scene(model, days),
        lambda: score_scene(model, days),
    ):
        checks.clear()
        use()
        assert len(checks) == 1


def test_a_single_acquisition_cannot_be_fitted(days):
    with pytest.raises(SceneError, match="many acquisitions"):
        fit_scene(days.isel(time=0))


def test_a_missing_label_is_named(days):
    with pytest.raises(SceneError, match="'cloud_mask_l2' to learn from"):
        fit_scene(days.drop_vars("cloud_mask_l2"))


def test_a_regime_without_pixels_is_named(days):
    noons = days.isel(time=days["time"].dt.hour.isin([11, 12, 13]).values)
    with pytest.raises(SceneError, match=r"Regime 'low' has no .*\(clear 0, cloud 0\)"):
        fit_scene(noons, **QUICK)


def test_a_scene_of_nights_alone_is_refused(days):
    nights = days.isel(time=days["time"].dt.hour.isin([0, 1, 2]).values)
    with pytest.raises(SceneError, match="no daytime"):
        fit_scene(nights, **QUICK)


def test_an_unknown_method_is_refused(days):
    with pytest.raises(InputError, match="vff, rff, gpc"):
        fit_scene(days, method="svm")


def test_a_scene_without_anything_to_score_against_is_refused(model, days):
    with pytest.raises(SceneError, match="neither"):
        score_scene(model, days.drop_vars(("cloud_mask_l2", "cloud_truth")))


# More than two classes

SURFACES = ("sea", "land", "cloud")


@pytest.fixture(scope="module")
def surfaces(days):
    """Two days with a label of three classes; thermal channels are known day and night."""
    scene = days.isel(time=slice(0, 192)).compute()
    codes = xr.where(scene["cloud_truth"] == 1, 2, scene["land_mask"].astype(int))
    codes.attrs = {"flag_values": [0, 1, 2], "flag_meanings": " ".join(SURFACES)}
    return scene.assign(surface=codes.transpose("time", "y", "x"))


def thermal_table(scene):
    checked = check_scene(scene)
    columns = {name: checked[name].values.ravel() for name in ("IR_087", "IR_108", "IR_120")}
    return columns | {"solar_zenith_angle": checked["solar_zenith_angle"].values.ravel()}


@pytest.fixture(scope="module")
def surface_model(surfaces):
    table, y = thermal_table(surfaces), surfaces["surface"].values.ravel()
    some = np.random.default_rng(0).choice(len(y), 3000, replace=False)
    estimator = RFFGPC(10, n_estimators=1, max_iter=5, random_state=0)
    parts = (Regime("day", 0.0, 90.0), Regime("night", 90.0, 181.0))
    model = RegimeClassifier(estimator, parts)
    model.fit({name: column[some] for name, column in table.items()}, y[some])
    model.provenance_ = {"label": "surface"}
    return model


def test_many_classes_are_scored_by_regime_and_part_with_intervals_from_days(
    surface_model, surfaces
):
    rows = score_scene(surface_model, surfaces)
    parts = ("all", "coast", "away from coast")
    assert [(row.regime, row.part) for row in rows] == list(product(("day", "night"), parts))
    table, y = thermal_table(surfaces), surfaces["surface"].values.ravel()
    predicted = surface_model.predict(table)
    for row in rows:
        assert row.scores.classes == SURFACES
        assert row.scores.groups == 2
        if row.part == "all":
            own = (table["solar_zenith_angle"] < 90.0) == (row.regime == "day")
            assert row.pixels == own.sum()
            assert_array_equal(row.scores.confusion, confusion_matrix(y[own], predicted[own]))


def test_pixels_without_their_features_are_not_scored(surface_model, surfaces):
    broken = surfaces.copy(deep=True)
    broken["IR_108"][0, 0, :5] = np.nan
    rows = [row for row in score_scene(surface_model, broken) if row.part == "all"]
    assert sum(row.pixels for row in rows) == surfaces["surface"].size - 5


def test_a_model_of_many_classes_without_regimes_is_scored_everywhere(surfaces):
    table, y = thermal_table(surfaces), surfaces["surface"].values.ravel()
    frame = pd.DataFrame(table)[["IR_087", "IR_108", "IR_120"]]
    names = np.array(SURFACES)[y]
    model = RFFGPC(10, n_estimators=1, max_iter=5, random_state=0)
    model.fit(frame.iloc[::50], names[::50])
    rows = score_scene(model, surfaces, label="surface")
    assert {row.regime for row in rows} == {"all"}
    # Classes by name are those that the flags of the variable mean; they are sorted by name.
    assert rows[0].scores.classes == ("cloud", "land", "sea")
    expected = confusion_matrix(names, model.predict(frame), labels=["cloud", "land", "sea"])
    assert_array_equal(rows[0].scores.confusion, expected)


def test_many_classes_use_computed_features_too(days):
    scene = days.isel(time=slice(40, 60))
    computed = features.landmark_features(scene).sel(feature=["BT9", "BT9_mean3"])
    frame = pd.DataFrame(computed.values.reshape(-1, 2), columns=["BT9", "BT9_mean3"])
    y = np.digitize(frame["BT9"], np.quantile(frame["BT9"], [0.3, 0.6]))
    model = RFFGPC(10, n_estimators=1, max_iter=5, random_state=0).fit(frame.iloc[::10], y[::10])
    truth = xr.DataArray(y.reshape(computed.shape[:3]), dims=("time", "y", "x"))
    found = score_scene(model, scene.assign(warmth=truth), label="warmth")[0].scores
    assert_allclose(found.accuracy.value, np.mean(model.predict(frame) == y), rtol=1e-12)


def test_features_that_a_scene_cannot_give_many_classes_are_named(surfaces):
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    quick = RFFGPC(4, n_estimators=1, max_iter=2)
    with pytest.raises(MissingBandsError, match="B11"):
        score_scene(
            quick.fit(pd.DataFrame(X, columns=["B11", "BT9"]), y), surfaces, label="surface"
        )
    with pytest.raises(InputError, match="without names of features"):
        score_scene(RFFGPC(4, n_estimators=1, max_iter=2).fit(X, y), surfaces, label="surface")


# A chain of more than two classes


def fit_surfaces(scene, **options):
    return fit_scene(scene, label="surface", **QUICK | options)


@pytest.fixture(scope="module")
def month(days):
    """Four days with a label of three classes, of which the last is missing in one row."""
    codes = xr.where(days["cloud_truth"] == 1, 7, days["land_mask"].astype(int) + 2).load()
    codes = codes.transpose("time", "y", "x").astype(np.uint8)
    codes[:, 3] = 255
    codes.attrs = {"flag_values": [2, 3, 7], "flag_meanings": " ".join(SURFACES)}
    return days.assign(surface=codes)


@pytest.fixture(scope="module")
def chain(month):
    return fit_surfaces(month)


def test_a_chain_learns_as_many_classes_as_the_label_has(chain, month, tmp_path):
    legend = Legend.of(chain)
    assert (legend.names, legend.codes, legend.cloud) == (SURFACES, (2, 3, 7), "cloud")
    assert chain.classes_.tolist() == [2, 3, 7]
    save_model(chain, tmp_path / "m.undulatus")
    rows = score_scene(load_model(tmp_path / "m.undulatus"), month)
    assert {row.reference for row in rows} == {"surface"}
    assert {row.regime for row in rows} == {"high", "mid", "low", "night"}
    assert rows[0].scores.classes == SURFACES
    # Sea, land and cloud are easy to tell apart under a high sun, even for a small model.
    assert rows[0].scores.accuracy.value > 0.7
    result = map_scene(chain, month.isel(time=[48]).load())
    assert result["class"].attrs["flag_meanings"] == "sea land cloud"
    assert result["cloud_mask"].attrs["standard_name"] == "cloud_binary_mask"


def test_many_classes_are_drawn_in_balance_without_coastal_clouds(month, monkeypatch):
    seen = {}

    def spy(scene, split, drawn):
        seen.update(labels=split.labels, drawn=drawn)
        return real(scene, split, drawn)

    real = landmarks._training_rows
    monkeypatch.setattr(landmarks, "_training_rows", spy)
    fit_surfaces(month)
    coast = near_coast(month["land_mask"].values, 2).ravel()
    for rows in seen["drawn"].values():
        labels = seen["labels"].ravel()[rows]
        assert np.unique(labels, return_counts=True)[1].tolist() == [400 // 3] * 3
        at_coast = coast[rows % (20 * 26)]
        assert not at_coast[labels == 7].any()
        assert at_coast[labels == 3].any()


def test_probabilities_of_many_classes_are_corrected_to_their_real_shares(chain, month):
    split = landmarks.choose_pixels(check_scene(month), "surface", 0.25, 0, 2)
    for regime, member in chain.estimators_.items():
        shares = chain.provenance_["class_shares"][regime]
        assert_allclose(member.prior_correction, list(shares.values()), rtol=1e-12)
        inland = split.learnable[regime] & ~near_coast(month["land_mask"].values, 2)
        labels = split.labels[inland]
        expected = [np.mean(labels[labels != 255] == value) for value in (2, 3, 7)]
        assert_allclose(list(shares.values()), expected, rtol=1e-12)
        assert chain.provenance_["cloud_share"][regime] == shares["cloud"]


def test_without_a_cloudy_class_coasts_are_learned_from_as_they_are(month):
    plain = month.assign(surface=month["surface"].drop_attrs())
    split = landmarks.choose_pixels(check_scene(plain), "surface", 0.25, 0, 2)
    coast = near_coast(month["land_mask"].values, 2)
    assert split.cloud_shares is None
    assert (split.labels[split.learnable["night"] & coast] == 7).any()


def test_a_regime_that_lacks_a_class_is_named_with_the_class_and_its_counts(month):
    night = month["solar_zenith_angle"] >= 90.0
    codes = month["surface"].where(~night | (month["surface"] != 3), 255)
    codes = codes.transpose("time", "y", "x").astype(np.uint8).assign_attrs(month["surface"].attrs)
    with pytest.raises(
        SceneError, match=r"'night' has no training pixels of class 'land' .*land 0"
    ):
        fit_surfaces(month.assign(surface=codes))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda codes: codes + 0.5, "2.5, 3.5.* whole numbers"),
        (lambda codes: codes * 0 + 2, r"1 different values \(2\)"),
        (lambda codes: codes.astype(str), "values of type <U"),
        (lambda codes: codes.where(codes != 3, np.inf), "values inf, but"),
        (lambda codes: codes.isel(time=0), r"dimensions \(y, x\), but .*\(time, y, x\)"),
    ],
    ids=["fractions", "one class", "text", "infinity", "no time"],
)
def test_a_label_that_has_no_classes_is_refused(month, change, says):
    codes = change(month["surface"].where(month["surface"] != 255, 2).astype(float))
    with pytest.raises(SceneError, match=says):
        fit_surfaces(month.assign(surface=codes))


def test_a_mask_whose_flags_call_0_cloudy_is_not_mapped_the_wrong_way_round(days):
    mask = 1 - days["cloud_mask_l2"]
    mask.attrs = {"flag_values": [0, 1], "flag_meanings": "cloudy clear"}
    scene = days.assign(mask=mask)
    model = fit_scene(scene, label="mask", **QUICK)
    some = scene.isel(time=slice(0, 96, 8)).load()
    found = map_scene(model, some)["cloud_mask"]
    # The share of cloud is far from one half in some regimes: right side up, most pixels agree.
    assert float((found == some["cloud_truth"]).mean()) > 0.7
    assert score_scene(model, scene)[0].scores.accuracy.value > 0.7


def test_a_label_may_be_floats_with_nan_for_missing(month, chain):
    floats = month["surface"].astype(float).where(month["surface"] != 255)
    again = fit_surfaces(month.assign(surface=floats.assign_attrs(month["surface"].attrs)))
    assert_array_equal(
        again.estimators_["low"].frequencies_, chain.estimators_["low"].frequencies_
    )
    assert again.provenance_ == chain.provenance_


@pytest.mark.parametrize(
    ("attrs", "names"),
    [({"flag_values": [0, 1], "flag_meanings": "dry wet"}, ("dry", "wet")), ({}, ("0", "1"))],
)
def test_a_label_that_is_not_said_to_be_cloud_is_not_mapped_as_cloud(days, attrs, names):
    wet = days["cloud_mask_l2"].copy()
    wet.attrs = attrs
    scene = days.assign(wet=wet)
    model = fit_scene(scene, label="wet", **QUICK)
    assert Legend.of(model).names == names
    result = map_scene(model, scene.isel(time=[50]).load())
    codes = result["class" if attrs else "cloud_mask"]
    assert "standard_name" not in codes.attrs
    # Scores compare the probability of 1 with the label, whatever 1 is called.
    scores = score_scene(model, scene.isel(time=slice(0, 96)))
    assert {row.reference for row in scores} == {"wet", "cloud_truth"}
    assert np.mean([row.scores.accuracy for row in scores]) > 0.5
