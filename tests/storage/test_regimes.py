"""Regimes whose classifiers are Pipelines, and regimes with slashes in their names."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from undulatus import RFFGPC, load_model, save_model
from undulatus.errors import InputError, ModelFileError
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.tensorfile import read_tensors, write_tensors

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

REGIMES = (Regime("day", 0.0, 90.0), Regime("day/night", 90.0, 180.0, ("BT9", "BT10")))
BEFORE = {
    "classifiers": [],
    "pipelines": [("scale", StandardScaler()), ("reduce", PCA(1))],
    "pipelines idle at first": [("idle", "passthrough"), ("reduce", PCA(1))],
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    columns = {name: rng.normal(size=300) for name in ("R1", "BT9", "BT10")}
    return pd.DataFrame({**columns, "angle": rng.uniform(0.0, 180.0, 300)})


@pytest.fixture(scope="module", params=BEFORE)
def fitted(request, table):
    member = RFFGPC(4, max_iter=2, random_state=0)
    if BEFORE[request.param]:
        member = Pipeline([*BEFORE[request.param], ("classifier", member)])
    noisy = table["BT9"] + np.random.default_rng(4).normal(size=300)
    return RegimeClassifier(member, REGIMES, by="angle").fit(table, noisy > 0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.undulatus"


def test_loaded_regimes_predict_bit_for_bit_what_the_saved_ones_did(fitted, table, path):
    save_model(fitted, path)
    again = load_model(path)
    assert_array_equal(again.predict_proba(table), fitted.predict_proba(table))
    assert again.regimes_ == fitted.regimes_
    first = path.read_bytes()
    save_model(again, path)
    assert path.read_bytes() == first


def test_loaded_regimes_can_be_fitted_again(fitted, table, path):
    save_model(fitted, path)
    labels = fitted.predict(table)
    refitted = clone(load_model(path)).fit(table, labels)
    expected = clone(fitted).fit(table, labels)
    assert_array_equal(refitted.predict_proba(table), expected.predict_proba(table))


def test_a_regime_of_other_features_than_its_classifier_is_named(fitted, path):
    save_model(fitted, path)
    tensors, header = read_tensors(path)
    header["regimes"][1][3] = ["BT9"]
    write_tensors(path, tensors, header)
    with pytest.raises(ModelFileError, match="regime 'day/night', which names other features"):
        load_model(path)


def test_a_pipeline_that_cannot_be_saved_is_named_by_its_step(table, path):
    member = Pipeline([("squeeze", MinMaxScaler()), ("classifier", RFFGPC(4, random_state=0))])
    noisy = table["BT9"] + np.random.default_rng(4).normal(size=300)
    model = RegimeClassifier(member, REGIMES, by="angle").fit(table, noisy > 0)
    with pytest.raises(InputError, match="MinMaxScaler as step 'squeeze'"):
        save_model(model, path)
    assert not path.exists()
