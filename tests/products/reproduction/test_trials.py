"""Trials have names that tell them apart, and records that the contract knows."""

from dataclasses import replace

from undulatus.products.reproduction.trials import Trial


def test_a_trial_of_a_regime_is_named_by_all_that_sets_it_apart(trial):
    assert trial("vff", n=10_000, frequencies=50).id == "high-vff-stochastic-n10000-D50-run0"
    assert trial("gpc", n=5_000, run=3).id == "high-gpc-exact-n5000-run3"
    fold = Trial("iavisa", "rff", "batch", 19_938, 100, 2, 0, 5)
    assert fold.id == "rff-batch-n19938-D5-fold2"


def test_what_is_asked_has_a_regime_in_landmarks_and_all_where_all_rows_are_taken(trial):
    assert trial("gpc").asked() == {
        "id": "high-gpc-exact-n300-run0",
        "experiment": "landmarks",
        "regime": "high",
        "method": "gpc",
        "solver": "exact",
        "n": 300,
        "D": None,
        "d": 3,
        "run": 0,
        "seed": 0,
    }
    fold = Trial("iavisa", "gpc", "exact", 19_938, 100, 2, 0, whole=True)
    assert fold.asked()["all"] is True
    assert "regime" not in fold.asked()


def test_a_trial_is_rebuilt_from_its_fields(trial):
    assert Trial(**trial().as_dict()) == trial()
    assert replace(trial(), run=1).id != trial().id
