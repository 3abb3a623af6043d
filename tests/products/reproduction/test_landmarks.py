"""Training and test sets of the landmark experiment."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from undulatus.products.landmark_pixels import choose_pixels
from undulatus.products.reproduction.landmarks import open_landmark, prepare_landmarks
from undulatus.products.reproduction.problems import open_problem
from undulatus.products.reproduction.scales import Grid, Scale
from undulatus.scenes.features import landmark_features

SCALE = Scale(
    amount=4, runs=2, test_rows=300, seconds=60.0,
    grids=(Grid(("rff",), "stochastic", (200,), (4,), 2, ("high", "night")),),
)  # fmt: skip


@pytest.fixture(scope="module")
def days(days):
    return days.compute().chunk({"time": 192})


@pytest.fixture(scope="module")
def prepared(days, tmp_path_factory):
    folder = tmp_path_factory.mktemp("landmarks")
    return folder, prepare_landmarks(days, SCALE, 0, folder)


@pytest.fixture(scope="module")
def split(days):
    return choose_pixels(days, "cloud_mask_l2", 0.25, 0, 2)


@pytest.mark.parametrize("regime", ["high", "night"])
def test_any_even_number_of_first_training_rows_is_balanced(prepared, regime):
    for run in range(2):
        problem = open_problem(prepared[0], regime, run)
        labels = problem.labels[problem.training]
        assert len(labels) >= 200
        for n in (2, 100, 200):
            assert np.count_nonzero(labels[:n]) == n / 2


def test_the_test_set_is_fixed_and_from_days_that_no_run_learns_from(prepared, split):
    one, two = (open_problem(prepared[0], "high", run) for run in range(2))
    assert_array_equal(one.test, two.test)
    held_out = np.array(split.days, "datetime64[D]").astype(np.int64)
    assert np.isin(one.groups[one.test], held_out).all()
    for problem in (one, two):
        assert not np.isin(problem.groups[problem.training], held_out).any()
    assert set(one.training.tolist()) != set(two.training.tolist())


def test_the_test_set_has_the_natural_share_of_cloud_and_the_coast(prepared, split):
    problem = open_problem(prepared[0], "night", 0)
    all_pixels = split.labels[split.regimes["night"] & split.held_out[:, None, None]]
    share = np.mean(all_pixels == 1)
    # Five standard errors of a share of 300 pixels.
    assert np.mean(problem.labels[problem.test]) == pytest.approx(
        share, abs=5 * np.sqrt(share * (1 - share) / 300)
    )
    assert problem.coast[problem.test].any()
    assert len(problem.test) == 300
    assert problem.cloud_share == pytest.approx(split.cloud_shares["night"])


def test_features_labels_and_truth_are_those_of_the_scene(prepared, days):
    problem = open_problem(prepared[0], "high", 0)
    features = landmark_features(days).values.reshape(-1, 16)
    places = {row.tobytes(): index for index, row in enumerate(np.asarray(features, np.float32))}
    found = [places[row.tobytes()] for row in np.asarray(problem.features[problem.test])]
    for name, known in (("cloud_mask_l2", problem.labels), ("cloud_truth", problem.truth)):
        assert_array_equal(days[name].values.ravel()[found], known[problem.test])


def test_night_has_six_features_and_facts_say_what_there_is(prepared):
    folder, facts = prepared
    assert open_problem(folder, "night", 0).features.shape[1] == 6
    assert set(facts["parts"]) == {"high", "night"}
    assert facts["parts"]["high"]["d"] == 16
    assert facts["parts"]["high"]["rows"] >= 200
    assert "natural" in facts["share_of_cloud"]
    assert not (folder / "low").exists()


def test_days_of_the_twin_are_spread_over_its_year():
    scene = open_landmark(None, SCALE, 0)
    found = np.unique(scene["time"].values.astype("datetime64[D]"))
    assert len(found) == 4
    assert (np.diff(found) >= np.timedelta64(91, "D")).all()
