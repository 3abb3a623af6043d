"""The landmark chain: which pixels are learned from, which are held out, and their scores."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus import load_model, save_model
from undulatus.errors import InputError, SceneError
from undulatus.products import Legend, landmarks, predict
from undulatus.products.landmarks import fit_scene, score_scene
from undulatus.products.maps import map_scene
from undulatus.scenes import features
from undulatus.scenes.sampling import near_coast, on_days
from undulatus.scenes.scene import check_scene

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
QUICK = {"method": "rff", "n_frequencies": 5, "pixels": 400, "members": 1}


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

    def spy(scene, split, drawn, progress):
        seen.update(labels=split.labels, drawn=drawn)
        return real(scene, split, drawn, progress)

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
    model = fit_scene(days, method=method, n_frequencies=4, pixels=120, members=1)
    assert {type(member).__name__ for member in model.estimators_.values()} == {
        {"vff": "VFFGPC", "gpc": "GPC"}[method]
    }


def test_every_regime_may_have_a_committee_that_leaves_out_days(days, tmp_path):
    model = fit_scene(days, **QUICK | {"members": 2})
    assert [len(member.members_) for member in model.estimators_.values()] == [2] * 4
    save_model(model, tmp_path / "m.undulatus")
    two = days.isel(time=slice(0, 40, 20))
    maps = [map_scene(m, two).compute() for m in (model, load_model(tmp_path / "m.undulatus"))]
    assert_array_equal(*(found["cloud_probability"].values for found in maps))


def test_missing_labels_and_pixels_are_left_out(days, monkeypatch):
    seen = {}

    def spy(scene, split, drawn, progress):
        seen["rows"] = np.concatenate(list(drawn.values())) % (20 * 26) // 26
        seen["columns"], y, day = real(scene, split, drawn, progress)
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
    with pytest.raises(SceneError, match="Regime 'low' has 0 cloudy and 0 clear"):
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
