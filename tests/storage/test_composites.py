"""Pipelines and RegimeClassifiers saved to one file and loaded again, and files refused."""

import json

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from undulatus import GPC, RFFGPC, VFFGPC, load_model, save_model
from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.estimators.pca import SpectralPCA
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.storage import classifiers
from undulatus.storage.transformers import LAYOUTS

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

CLASSIFIERS = {
    "GPC": lambda: GPC(max_iter=2),
    "RFFGPC": lambda: RFFGPC(5, n_estimators=1, max_iter=2, random_state=0),
    "VFFGPC": lambda: VFFGPC(4, n_estimators=1, max_iter=2, random_state=0),
}

CHAINS = {
    "nothing before": lambda: [],
    "scaled": lambda: [("scale", StandardScaler())],
    "reduced": lambda: [("scale", StandardScaler()), ("reduce", PCA(2, whiten=True))],
    "reduced in parts": lambda: [("reduce", IncrementalPCA(2)), ("scale", StandardScaler())],
    "spectral": lambda: [("components", SpectralPCA(2, noise=np.array([3.0, 0.1, 1.0])))],
    "twice": lambda: [("first", PCA(3)), ("second", SpectralPCA(2)), ("third", PCA(1))],
    "passthrough first": lambda: [("idle", "passthrough"), ("scale", StandardScaler())],
    "passthrough between": lambda: [
        ("scale", StandardScaler()),
        ("idle", None),
        ("reduce", PCA(2)),
    ],
    "passthrough alone": lambda: [("idle", "passthrough"), ("none", None)],
    "odd names": lambda: [("0", StandardScaler()), ("0/mean_", PCA(2)), ("ξ λ", PCA(2))],
}

each_chain = pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)


def pipeline(chain, classifier="RFFGPC", **params):
    return Pipeline([*chain(), ("classifier", CLASSIFIERS[classifier]())], **params)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.undulatus"


@pytest.fixture
def fitted(clouds):
    return pipeline(CHAINS["reduced"]).fit(*clouds)


def round_trip(model, path):
    save_model(model, path)
    return load_model(path)


def assert_predicts_alike(one, other, X):
    for method in ("predict", "predict_proba", "decision_function"):
        assert_array_equal(getattr(one, method)(X), getattr(other, method)(X))
    if len(one.steps) > 1:
        assert_array_equal(one[:-1].transform(X), other[:-1].transform(X))


# Round trip of Pipelines


def test_every_classifier_that_can_be_saved_is_tested_at_the_end_of_a_pipeline():
    assert set(CLASSIFIERS) == set(classifiers.CODECS)


@each_chain
@pytest.mark.parametrize("classifier", CLASSIFIERS)
def test_a_loaded_pipeline_predicts_the_same_bits_as_the_saved_one(
    chain, classifier, clouds, path
):
    X, y = clouds
    model = pipeline(chain, classifier).fit(X, np.array(["clear", "cloud"])[y])
    loaded = round_trip(model, path)
    assert type(loaded) is Pipeline
    assert_array_equal(loaded.classes_, model.classes_)
    for rows in (X, X[:1], X.astype(np.float32)):
        assert_predicts_alike(loaded, model, rows)


@each_chain
def test_steps_and_parameters_are_restored(chain, clouds, path):
    model = pipeline(chain).fit(*clouds)
    loaded = round_trip(model, path)
    assert [name for name, _ in loaded.steps] == [name for name, _ in model.steps]
    found, expected = loaded.get_params(), model.get_params()
    assert set(found) == set(expected)
    for name, value in expected.items():
        if hasattr(value, "get_params"):
            assert type(found[name]) is type(value)
        elif name != "steps":
            assert_array_equal(found[name], value)
            assert type(found[name]) is type(value)


@each_chain
def test_a_loaded_pipeline_can_be_fitted_and_saved_again(chain, clouds, path):
    X, y = clouds
    model = pipeline(chain).fit(X, y)
    loaded = round_trip(model, path)
    first = path.read_bytes()
    save_model(loaded, path)
    assert path.read_bytes() == first
    assert_predicts_alike(clone(loaded).fit(X, y), model, X)


def test_feature_names_are_restored_and_required(clouds, path):
    X, y = clouds
    table = pd.DataFrame(X, columns=["IR_108", "VIS006", "Größe"])
    loaded = round_trip(pipeline(CHAINS["scaled"]).fit(table, y), path)
    assert_array_equal(loaded.feature_names_in_, table.columns)
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(table[["Größe", "IR_108", "VIS006"]])


def test_the_provenance_of_a_pipeline_is_saved(fitted, path):
    fitted.provenance_ = {"label": "cloud_mask_l2", "held_out": ["2010-01-01"]}
    assert round_trip(fitted, path).provenance_ == fitted.provenance_
    assert not hasattr(round_trip(Pipeline(fitted.steps), path), "provenance_")


@pytest.mark.parametrize("verbose", [False, True])
def test_the_verbosity_of_a_pipeline_is_restored(fitted, path, verbose):
    assert round_trip(fitted.set_params(verbose=verbose), path).verbose is verbose


@pytest.mark.parametrize("wanted", [None, ["X_val"]])
def test_the_transform_input_of_a_pipeline_is_restored(fitted, path, wanted):
    assert round_trip(fitted.set_params(transform_input=wanted), path).transform_input == wanted


def test_the_memory_of_a_pipeline_is_not_saved(clouds, path, tmp_path):
    X, y = clouds
    model = pipeline(CHAINS["reduced"], memory=str(tmp_path / "cache")).fit(X, y)
    loaded = round_trip(model, path)
    assert loaded.memory is None
    assert_predicts_alike(loaded, model, X)
    assert b"cache" not in path.read_bytes()


# Models that cannot be saved


def assert_not_saved(model, path, error=InputError):
    with pytest.raises(error) as caught:
        save_model(model, path)
    assert not path.exists()
    return str(caught.value)


def test_a_pipeline_that_is_not_fitted_is_not_saved(path):
    for chain in CHAINS.values():
        assert_not_saved(pipeline(chain), path, NotFittedError)


def test_a_pipeline_whose_classifier_is_not_fitted_is_not_saved(fitted, path):
    fitted.steps[-1] = ("classifier", clone(fitted.steps[-1][1]))
    assert "RFFGPC" in assert_not_saved(fitted, path, NotFittedError)


class ScalerSubclass(StandardScaler):
    pass


@pytest.mark.parametrize(
    "step", [MinMaxScaler(), ScalerSubclass(), RFFGPC(), make_pipeline(PCA())], ids=str
)
def test_an_unknown_step_is_named_with_the_steps_that_can_be_saved(fitted, path, step):
    fitted.steps[1] = ("squeeze", step)
    message = assert_not_saved(fitted, path)
    assert f".{type(step).__name__} as step 'squeeze'" in message
    listed = ", ".join(layout.model.__name__ for layout in LAYOUTS)
    assert f'{listed}, "passthrough"' in message


class ClassifierSubclass(RFFGPC):
    pass


@pytest.mark.parametrize(
    "step",
    [
        LogisticRegression(),
        PCA(),
        ClassifierSubclass(),
        make_pipeline(RFFGPC()),
        "passthrough",
        None,
    ],
)
def test_an_unknown_last_step_is_named_with_the_classifiers_that_can_be_saved(fitted, path, step):
    fitted.steps[-1] = ("end", step)
    message = assert_not_saved(fitted, path)
    assert f".{type(step).__name__} as the last step of a Pipeline, 'end'" in message
    assert "GPC, RFFGPC, VFFGPC there" in message


def test_a_subclass_of_pipeline_is_refused_by_its_name(fitted, path):
    class PipelineSubclass(Pipeline):
        pass

    assert "PipelineSubclass" in assert_not_saved(PipelineSubclass(fitted.steps), path)


def test_a_pipeline_without_steps_is_refused(path):
    assert "without steps" in assert_not_saved(Pipeline([]), path)


def test_steps_fitted_apart_with_other_numbers_of_features_are_refused(fitted, clouds, path):
    fitted.steps[1] = ("reduce", PCA(1).fit(clouds[0]))
    message = assert_not_saved(fitted, path)
    assert "step 'reduce', which gives 1 features, before 'classifier', which takes 2" in message


def test_a_step_renamed_to_an_invalid_name_is_refused(fitted, path):
    fitted.steps[1] = ("re__duce", fitted.steps[1][1])
    assert "re__duce" in assert_not_saved(fitted, path)


# Files that cannot be loaded


@pytest.fixture
def refuse(fitted, path):
    """Return a function that changes a saved model, loads it, and returns the error message."""

    def error_message(alter):
        fitted.steps.insert(1, ("idle", "passthrough"))
        save_model(fitted, path)
        tensors, header = read_tensors(path)
        alter(tensors, header)
        write_tensors(path, tensors, header)
        with pytest.raises(ModelFileError) as caught:
            load_model(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    return error_message


@pytest.mark.parametrize("step", [0, 1, 2, 3])
def test_a_file_with_a_missing_step_is_refused(refuse, step):
    def lose(tensors, header):
        del header["steps"][step]

    refuse(lose)


def test_a_file_without_steps_is_refused(refuse):
    def lose(tensors, header):
        tensors.clear()
        header["steps"] = []

    assert "no classifier" in refuse(lose)


@pytest.mark.parametrize("name", ["1/mean_", "4/mean_", "mean_", "04/mean_"])
def test_a_tensor_of_a_passthrough_or_missing_step_is_named(refuse, name):
    message = refuse(lambda tensors, header: tensors.update({name: np.ones(3)}))
    assert f"belongs to no part of the model: {name!r}" in message


@pytest.mark.parametrize("kind", ["MinMaxScaler", "RFFGPC", "Pipeline", None, ["PCA"]], ids=str)
def test_an_unknown_kind_of_transformer_is_refused(refuse, kind):
    refuse(lambda tensors, header: header["steps"][0][1].update(kind=kind))


@pytest.mark.parametrize("kind", ["PCA", "Pipeline", "RegimeClassifier", "LogisticRegression"])
def test_an_unknown_kind_of_classifier_is_named(refuse, kind):
    message = refuse(lambda tensors, header: header["steps"][-1][1].update(kind=kind))
    assert f"step 'classifier', which holds a {kind!r}" in message


@pytest.mark.parametrize("step", [None, "passthrough", "junk", 7, [], {}], ids=str)
def test_a_last_step_that_is_no_classifier_is_refused(refuse, step):
    def alter(tensors, header):
        header["steps"][-1][1] = step

    refuse(alter)


@pytest.mark.parametrize("step", ["junk", 7, [], {}, True], ids=str)
def test_a_passthrough_step_replaced_by_junk_is_refused(refuse, step):
    def alter(tensors, header):
        header["steps"][1][1] = step

    refuse(alter)


@pytest.mark.parametrize("name", ["reduce", "a__b", "memory", "steps", 7, None, ["a"]], ids=str)
def test_invalid_step_names_are_refused(refuse, name):
    def alter(tensors, header):
        header["steps"][0][0] = name

    assert "names" in refuse(alter)


@pytest.mark.parametrize("key", ["kind", "steps", "verbose", "transform_input"])
@pytest.mark.parametrize("junk", [7, "junk", [1, 2, 3], {"junk": 1}], ids=str)
def test_a_header_with_a_junk_value_is_refused(refuse, key, junk):
    refuse(lambda tensors, header: header.update({key: junk}))


@pytest.mark.parametrize("key", ["kind", "steps", "verbose", "transform_input"])
def test_a_header_with_a_missing_key_is_refused(refuse, key):
    refuse(lambda tensors, header: header.pop(key))


def test_steps_that_do_not_fit_together_are_named(refuse):
    def alter(tensors, header):
        # One component fewer in every tensor and in the header.
        for key in [key for key in tensors if key.startswith("2/") and key != "2/mean_"]:
            tensors[key] = tensors[key][:1]
        header["steps"][2][1]["fitted"]["n_components_"] = 1

    message = refuse(alter)
    assert "step 'reduce', which gives 1 features, before 'classifier', which takes 2" in message


def test_a_first_step_with_fewer_features_than_the_next_is_refused(refuse):
    def alter(tensors, header):
        for key in [key for key in tensors if key.startswith("0/")]:
            tensors[key] = tensors[key][:2]
        header["steps"][0][1]["fitted"]["n_features_in_"] = 2

    assert "'scale', which gives 2 features, before 'reduce', which takes 3" in refuse(alter)


def test_a_file_cut_short_anywhere_is_refused(fitted, path):
    save_model(fitted, path)
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError):
            load_model(path)


def test_a_saved_pipeline_is_arrays_and_plain_json(fitted, path):
    save_model(fitted, path)
    tensors, header = read_tensors(path)
    assert {name.split("/")[0] for name in tensors} == {"0", "1", "2"}
    assert json.loads(json.dumps(header)) == header
    assert [name for name, _ in header["steps"]] == ["scale", "reduce", "classifier"]


# RegimeClassifiers

REGIMES = (Regime("day", 0.0, 90.0), Regime("day/night", 90.0, 180.0, ("BT9", "BT10")))

BEFORE = {
    "classifiers": [],
    "pipelines": [("scale", StandardScaler()), ("reduce", PCA(1))],
    "pipelines with passthrough first": [("idle", "passthrough"), ("reduce", PCA(1))],
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(3)
    columns = {name: rng.normal(size=300) for name in ("R1", "BT9", "BT10")}
    return pd.DataFrame({**columns, "angle": rng.uniform(0.0, 180.0, 300)})


@pytest.fixture(scope="module", params=BEFORE)
def fitted_regimes(request, table):
    member = RFFGPC(4, n_estimators=1, max_iter=2, random_state=0)
    if BEFORE[request.param]:
        member = Pipeline([*BEFORE[request.param], ("classifier", member)])
    noisy = table["BT9"] + np.random.default_rng(4).normal(size=300)
    return RegimeClassifier(member, REGIMES, by="angle").fit(table, noisy > 0)


def test_a_loaded_regime_classifier_predicts_the_same_bits_as_the_saved_one(
    fitted_regimes, table, path
):
    save_model(fitted_regimes, path)
    again = load_model(path)
    assert_array_equal(again.predict_proba(table), fitted_regimes.predict_proba(table))
    assert again.regimes_ == fitted_regimes.regimes_
    first = path.read_bytes()
    save_model(again, path)
    assert path.read_bytes() == first


def test_a_loaded_regime_classifier_can_be_fitted_again(fitted_regimes, table, path):
    save_model(fitted_regimes, path)
    labels = table["BT9"] > 0
    refitted = clone(load_model(path)).fit(table, labels)
    expected = clone(fitted_regimes).fit(table, labels)
    assert_array_equal(refitted.predict_proba(table), expected.predict_proba(table))


def test_a_regime_whose_features_differ_from_its_classifiers_is_named(fitted_regimes, path):
    save_model(fitted_regimes, path)
    tensors, header = read_tensors(path)
    header["regimes"][1][3] = ["BT9"]
    write_tensors(path, tensors, header)
    with pytest.raises(ModelFileError, match="regime 'day/night', which names other features"):
        load_model(path)


def test_a_step_that_cannot_be_saved_is_named_within_a_regime(table, path):
    member = Pipeline(
        [("squeeze", MinMaxScaler()), ("classifier", RFFGPC(4, n_estimators=1, random_state=0))]
    )
    noisy = table["BT9"] + np.random.default_rng(4).normal(size=300)
    model = RegimeClassifier(member, REGIMES, by="angle").fit(table, noisy > 0)
    with pytest.raises(InputError, match="MinMaxScaler as step 'squeeze'"):
        save_model(model, path)
    assert not path.exists()
