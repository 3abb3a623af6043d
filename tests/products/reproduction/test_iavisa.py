"""Folds of the sounder experiment."""

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from undulatus.errors import SceneError
from undulatus.products.reproduction.iavisa import open_sounder, prepare_iavisa
from undulatus.products.reproduction.problems import open_problem
from undulatus.products.reproduction.scales import Grid, Scale

SCALE = Scale(
    amount=202, runs=3, test_rows=None, seconds=60.0,
    grids=(Grid(("rff",), "stochastic", (None,), (4,), 2),),
)  # fmt: skip


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("iavisa")
    return folder, prepare_iavisa(open_sounder(None, SCALE, 0), SCALE, 0, folder)


def test_folds_are_those_of_cross_validation_but_shuffled_and_of_one_size(prepared):
    problems = [open_problem(prepared[0], "spectra", fold) for fold in range(3)]
    X, y = problems[0].features, problems[0].labels
    due = StratifiedKFold(3, shuffle=True, random_state=0).split(X, y)
    sizes = []
    for problem, (training, test) in zip(problems, due, strict=True):
        assert set(problem.test.tolist()) == set(test.tolist())
        assert set(problem.training.tolist()) <= set(training.tolist())
        assert len(training) - len(problem.training) <= 1
        assert (np.diff(problem.training) < 0).any()
        sizes.append(len(problem.training))
    assert len(set(sizes)) == 1


def test_spectra_have_a_hundred_components_a_label_and_a_truth(prepared):
    folder, facts = prepared
    problem = open_problem(folder, "spectra", 0)
    assert problem.features.shape == (202, 100)
    assert problem.cloud_share is None
    assert np.mean(problem.labels == problem.truth) > 0.8
    assert facts["parts"]["spectra"]["rows"] == len(problem.training)
    assert facts["spectra"] == 202


def test_too_few_spectra_of_a_class_are_told(tmp_path):
    spectra = open_sounder(None, SCALE, 0)
    with pytest.raises(SceneError, match="too few for 3 folds"):
        prepare_iavisa(spectra.isel(sample=spectra["cloudy"].values == 1), SCALE, 0, tmp_path)
