"""Training and test sets of the landmark experiment, and folds of the sounder experiment."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from sklearn.model_selection import StratifiedKFold

from undulatus.errors import SceneError
from undulatus.paper.problems import (
    open_landmark,
    open_problem,
    open_sounder,
    prepare_landmarks,
    prepare_sounder,
)
from undulatus.paper.scales import Grid, Scale
from undulatus.products.landmarks import choose_pixels
from undulatus.scenes.features import landmark_features

LANDMARK_SCALE = Scale(
    amount=4, runs=2, test_rows=300, seconds=60.0,
    grids=(Grid(("rff",), "stochastic", (200,), (4,), 2, ("high", "night")),),
)  # fmt: skip

SOUNDER_SCALE = Scale(
    amount=202, runs=3, test_rows=None, seconds=60.0,
    grids=(Grid(("rff",), "stochastic", (None,), (4,), 2),),
)  # fmt: skip


@pytest.fixture(scope="module")
def days():
    return open_landmark(None, LANDMARK_SCALE, 0)


@pytest.fixture(scope="module")
def prepared_landmarks(days, tmp_path_factory):
    folder = tmp_path_factory.mktemp("landmarks")
    return folder, prepare_landmarks(days, LANDMARK_SCALE, 0, folder)


@pytest.fixture(scope="module")
def split(days):
    return choose_pixels(days, "cloud_mask_l2", 0.25, 0, 2)


@pytest.mark.parametrize("regime", ["high", "night"])
def test_any_even_number_of_first_training_rows_is_balanced(prepared_landmarks, regime):
    for run in range(2):
        problem = open_problem(prepared_landmarks[0], regime, run)
        labels = problem.labels[problem.training]
        assert len(labels) >= 200
        for n in (2, 100, 200):
            assert np.count_nonzero(labels[:n]) == n / 2


def test_all_runs_share_a_test_set_from_days_they_do_not_learn_from(prepared_landmarks, split):
    one, two = (open_problem(prepared_landmarks[0], "high", run) for run in range(2))
    assert_array_equal(one.test, two.test)
    held_out = np.array(split.days, "datetime64[D]").astype(np.int64)
    assert np.isin(one.groups[one.test], held_out).all()
    for problem in (one, two):
        assert not np.isin(problem.groups[problem.training], held_out).any()
    assert set(one.training.tolist()) != set(two.training.tolist())


def test_the_test_set_has_the_natural_share_of_cloud_and_the_coast(prepared_landmarks, split):
    problem = open_problem(prepared_landmarks[0], "night", 0)
    all_pixels = split.labels[split.regimes["night"] & split.held_out[:, None, None]]
    share = np.mean(all_pixels == 1)
    # Five standard errors of a share of 300 pixels.
    assert np.mean(problem.labels[problem.test]) == pytest.approx(
        share, abs=5 * np.sqrt(share * (1 - share) / 300)
    )
    assert problem.coast[problem.test].any()
    assert len(problem.test) == 300
    assert problem.cloud_share == pytest.approx(split.shares["night"][1])


def test_features_labels_and_truth_are_those_of_the_scene(prepared_landmarks, days):
    problem = open_problem(prepared_landmarks[0], "high", 0)
    features = landmark_features(days).values.reshape(-1, 16)
    places = {row.tobytes(): index for index, row in enumerate(np.asarray(features, np.float32))}
    pixels = [places[row.tobytes()] for row in np.asarray(problem.features[problem.test])]
    for name, known in (("cloud_mask_l2", problem.labels), ("cloud_truth", problem.truth)):
        assert_array_equal(days[name].values.ravel()[pixels], known[problem.test])


def test_night_has_six_features_and_the_manifest_describes_every_part(prepared_landmarks):
    folder, manifest = prepared_landmarks
    assert open_problem(folder, "night", 0).features.shape[1] == 6
    assert set(manifest["parts"]) == {"high", "night"}
    assert manifest["parts"]["high"]["d"] == 16
    assert manifest["parts"]["high"]["rows"] >= 200
    assert "natural" in manifest["share_of_cloud"]
    assert not (folder / "low").exists()


def test_days_of_the_simulator_are_spread_over_its_year(days):
    dates = np.unique(days["time"].values.astype("datetime64[D]"))
    assert len(dates) == 4
    assert (np.diff(dates) >= np.timedelta64(91, "D")).all()


@pytest.fixture(scope="module")
def prepared_sounder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("iavisa")
    return folder, prepare_sounder(open_sounder(None, SOUNDER_SCALE, 0), SOUNDER_SCALE, 0, folder)


def test_folds_are_stratified_shuffled_and_of_one_size(prepared_sounder):
    problems = [open_problem(prepared_sounder[0], "spectra", fold) for fold in range(3)]
    X, y = problems[0].features, problems[0].labels
    expected = StratifiedKFold(3, shuffle=True, random_state=0).split(X, y)
    sizes = []
    for problem, (training, test) in zip(problems, expected, strict=True):
        assert set(problem.test.tolist()) == set(test.tolist())
        assert set(problem.training.tolist()) <= set(training.tolist())
        assert len(training) - len(problem.training) <= 1
        assert (np.diff(problem.training) < 0).any()
        sizes.append(len(problem.training))
    assert len(set(sizes)) == 1


def test_spectra_have_a_hundred_components_a_label_and_a_truth(prepared_sounder):
    folder, manifest = prepared_sounder
    problem = open_problem(folder, "spectra", 0)
    assert problem.features.shape == (202, 100)
    assert problem.cloud_share is None
    assert np.mean(problem.labels == problem.truth) > 0.8
    assert manifest["parts"]["spectra"]["rows"] == len(problem.training)
    assert manifest["spectra"] == 202


def test_too_few_spectra_of_a_class_are_refused(tmp_path):
    spectra = open_sounder(None, SOUNDER_SCALE, 0)
    cloudy = spectra.isel(sample=spectra["cloudy"].values == 1)
    with pytest.raises(SceneError, match="too few for 3 folds"):
        prepare_sounder(cloudy, SOUNDER_SCALE, 0, tmp_path)
