"""What scores of scenes and spectra rest on."""

import numpy as np
import pytest
import xarray as xr

from undulatus.products import score_scene, score_spectra, scoring_basis
from undulatus.products.basis import counted, scored_spectra, scored_times
from undulatus.products.provenance import Provenance
from undulatus.products.sounder import fit_spectra
from undulatus.scenes import synthetic_landmark, synthetic_sounder
from undulatus.scenes.sampling import cell_names, on_days

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


class Remembers:
    """A model that only remembers."""

    def __init__(self, **stored):
        self.provenance_ = stored


def times(*days):
    return xr.Dataset(coords={"time": np.array(days, "datetime64[ns]")})


@pytest.fixture(scope="module")
def spectra():
    return synthetic_sounder(300, seed=0).compute()


@pytest.fixture(scope="module")
def sounder(spectra):
    return fit_spectra(spectra, method="rff", n_estimators=1, components=10, seed=0)


def test_the_days_of_a_fit_are_held_out_or_learned_from(model, days):
    known = Provenance.of(model)
    every = np.unique(days["time"].values.astype("datetime64[D]")).astype(str)
    assert sorted(known.held_out_days + known.training_days) == every.tolist()
    basis = scoring_basis(model, days)
    assert basis.kind == "held out"
    assert basis.statement == "Scored on 96 acquisitions of 1 day held out of the fit."


def test_a_scene_of_training_days_is_called_that_and_scored_whole(model, days):
    trained = on_days(days["time"].values, Provenance.of(model).training_days)
    scene = days.isel(time=np.flatnonzero(trained)).compute()
    basis = scoring_basis(model, scene)
    assert basis.kind == "training"
    assert "that the model was TRAINED on: 288 acquisitions of 3 days" in basis.statement
    assert "say nothing about other days" in basis.statement
    rows = [row for row in score_scene(model, scene) if row.part == "all"]
    label = scene["cloud_mask_l2"].values
    scored = sum(row.pixels for row in rows if row.reference == "cloud_mask_l2")
    assert scored == np.count_nonzero(label <= 1)


def test_new_days_are_scored_without_the_training_days_beside_them(model, days):
    trained = on_days(days["time"].values, Provenance.of(model).training_days)
    other = synthetic_landmark(7, seed=1).isel(time=slice(6 * 96, 7 * 96))
    joined = xr.concat([days.isel(time=np.flatnonzero(trained)), other], "time",
                       data_vars="minimal", coords="minimal", compat="override",
                       join="override").compute()  # fmt: skip
    basis, chosen = scored_times(model, joined)
    assert basis.kind == "new"
    assert "96 acquisitions of 1 day that the model has not seen" in basis.statement
    assert "(left out: 288 acquisitions of 3 days that it was trained on)" in basis.statement
    assert np.count_nonzero(chosen) == 96
    assert score_scene(model, joined) == score_scene(model, other.compute())


def test_a_model_that_does_not_say_is_not_guessed_about():
    older = Remembers(held_out_days=["2010-01-01"])
    assert scoring_basis(older, times("2010-01-01")).kind == "held out"
    basis = scoring_basis(older, times("2010-01-02", "2010-01-03"))
    assert basis.kind == "unknown"
    assert "trained on them is unknown" in basis.statement
    assert scoring_basis(Remembers(), times("2010-01-01")).kind == "unknown"


def test_cells_of_spectra_are_held_out_learned_from_or_new(sounder, spectra):
    known = Provenance.of(sounder)
    cells = cell_names(spectra)
    assert set(known.training_cells) | set(known.held_out_cells) == set(cells)
    assert not set(known.training_cells) & set(known.held_out_cells)
    assert scoring_basis(sounder, spectra).kind == "held out"
    trained = np.isin(cells, known.training_cells)
    learned = spectra.isel(sample=np.flatnonzero(trained))
    basis = scoring_basis(sounder, learned)
    assert basis.kind == "training"
    assert (
        f"TRAINED on: {trained.sum()} spectra of {len(known.training_cells)} cells of strata"
        in (basis.statement)
    )
    assert score_spectra(sounder, learned)[0].samples == trained.sum()
    elsewhere = learned.assign(season=("sample", np.full(learned.sizes["sample"], 9, np.uint8)))
    assert scoring_basis(sounder, elsewhere).kind == "new"


class Remembering:
    """A model that remembers cells in time."""

    def __init__(self, training, held_out=()):
        self.provenance_ = {"training_cells": list(training), "held_out_cells": list(held_out)}


def views(*times):
    return xr.Dataset(coords={"time": ("sample", np.array(times, "datetime64[ns]"))})


def test_a_day_is_known_to_a_model_that_learned_a_stretch_of_it_and_the_reverse():
    day, other = views("2018-11-22T12:00", "2018-11-23T12:00"), views("2018-11-22T15:00")
    stretch = Remembering(["2018-11-22 11:45"], ["2018-11-22 15:00"])
    basis, chosen = scored_spectra(stretch, day)
    assert (basis.kind, chosen.tolist()) == ("new", [False, True])
    assert scored_spectra(stretch, other)[0].kind == "held out"
    assert scored_spectra(Remembering(["2018-11-22"]), other)[0].kind == "training"
    assert scored_spectra(Remembering([]), other)[0].kind == "new"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "polygon", "1 polygon"),
        (1200, "polygon", "1,200 polygons"),
        (2, "cell of strata", "2 cells of strata"),
        (2, "spectrum", "2 spectra"),
        (1, "site=", "1 group by site"),
        (3, "site=", "3 groups by site"),
    ],
)
def test_things_are_counted_in_plain_words(number, noun, text):
    assert counted(number, noun) == text
