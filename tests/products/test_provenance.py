"""What a model remembers of its fit, to plain values and back."""

import json

import pytest
from sklearn.linear_model import LogisticRegression

from undulatus.products.provenance import Provenance

SCENE = Provenance(
    chain="landmarks",
    method="vff",
    label="cloud_mask_l2",
    held_out_days=["2010-01-01"],
    training_pixels={"high": 10, "night": 20},
    cloud_share={"high": 0.5, "night": 0.25},
    seed=0,
    source="",
)
SPECTRA = Provenance(chain="sounder", measurement="radiance", cloud_share=0.5, held_out_cells=[])


def with_provenance(stored):
    model = LogisticRegression()
    model.provenance_ = stored
    return model


@pytest.mark.parametrize("provenance", [SCENE, SPECTRA, Provenance()])
def test_a_model_file_keeps_every_field(provenance):
    stored = json.loads(json.dumps(provenance.as_dict()))
    assert Provenance.of(with_provenance(stored)) == provenance


def test_unknown_fields_are_not_stored():
    assert SPECTRA.as_dict() == {
        "chain": "sounder",
        "measurement": "radiance",
        "cloud_share": 0.5,
        "held_out_cells": [],
    }


def test_entries_that_users_added_are_left_alone():
    assert Provenance.of(with_provenance({"note": "mine", "seed": 3})) == Provenance(seed=3)


def test_nothing_is_known_of_a_model_without_provenance():
    assert Provenance.of(LogisticRegression()) == Provenance()
