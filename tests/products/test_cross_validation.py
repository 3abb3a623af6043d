"""Cross-validation of spectra over numbers of waves."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from undulatus.products.cross_validation import FREQUENCIES, cross_validate
from undulatus.scenes import synthetic_sounder


@pytest.fixture(scope="module")
def spectra():
    return synthetic_sounder(500, seed=2).load()


@pytest.fixture(scope="module")
def found(spectra):
    return cross_validate(
        spectra, methods=("rff", "gpc"), frequencies=(2, 5), folds=3, components=10
    )


def test_the_grid_is_the_papers():
    assert (*range(1, 11), 15, 20, 25, 50, 75, 100, 125, 150) == FREQUENCIES


def test_there_is_a_row_for_every_method_number_and_fold(found):
    rows = found.folds[["method", "frequencies", "fold"]].itertuples(index=False, name=None)
    assert sorted(rows) == sorted(
        (method, count, fold) for method in ("rff", "gpc") for count in (2, 5) for fold in range(3)
    )
    assert found.folds[["accuracy", "train_accuracy"]].stack().between(0.5, 1.0).all()


def test_means_over_folds_are_those_of_the_rows(found):
    of_five = found.folds.query("method == 'rff' and frequencies == 5")
    assert_allclose(
        found.by_frequencies().loc[("rff", 5), "nll"], of_five["nll"].mean(), rtol=1e-12
    )


def test_every_spectrum_is_scored_once_in_every_stratum(found, spectra):
    rff = found.strata.query("method == 'rff' and frequencies == 2")
    assert (rff.groupby("stratum")["samples"].sum() == spectra.sizes["sample"]).all()
    whole = rff.query("stratum == 'all'")["accuracy"].item()
    seasons = rff.query("stratum == 'season'")
    assert_allclose(np.average(seasons["accuracy"], weights=seasons["samples"]), whole)


def test_the_papers_solver_can_be_asked_for(spectra):
    few = spectra.isel(sample=slice(0, 200))
    found = cross_validate(
        few, methods=("vff",), frequencies=(2,), folds=2, components=5, solver="batch"
    )
    assert len(found.folds) == 2
