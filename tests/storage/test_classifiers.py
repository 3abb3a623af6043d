"""Classifiers saved to one file and loaded again, and files that are refused."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from dataclasses import is_dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as save_safetensors
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import GPC, RFFGPC, VFFGPC, FourierFeatures, load_model, save_model
from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.estimators import classifier
from undulatus.storage import SCHEMA, classifiers
from undulatus.storage.codec import memory_order

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODELS = {
    "GPC": lambda **params: GPC(max_iter=2, **params),
    "RFFGPC": lambda **params: RFFGPC(5, n_estimators=1, max_iter=2, random_state=0, **params),
    "VFFGPC": lambda **params: VFFGPC(4, n_estimators=1, max_iter=2, random_state=0, **params),
    "ensemble": lambda **params: VFFGPC(3, n_estimators=2, max_iter=2, random_state=0, **params),
}
PLAIN = {"posterior": "bound", "warp": False}
each_model = pytest.mark.parametrize("name", MODELS)
LABELS = {
    "strings": np.array(["clear", "cloud"]),
    "objects": np.array(["clear", "cloud"], dtype=object),
    "booleans": np.array([False, True]),
    "negative": np.array([-1, 1]),
    "small": np.array([3, 250], dtype=np.uint8),
    "floats": np.array([1.0, 2.0]),
    "singles": np.array([1.0, 2.0], dtype=np.float32),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.undulatus"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a saved model of each class, fitted to 30 rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 2))
    content = {}
    for name, make in MODELS.items():
        path = tmp_path_factory.mktemp(name) / "model.undulatus"
        save_model(make().fit(X, X[:, 0] > 0), path)
        content[name] = path.read_bytes()
    return content


def assert_refused(path):
    with pytest.raises(ModelFileError) as caught:
        load_model(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def assert_predicts_alike(one, other, X):
    assert_array_equal(one.predict(X), other.predict(X))
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))
    assert_array_equal(one.decision_function(X), other.decision_function(X))
    for a, b in zip(
        one.latent_mean_and_variance(X), other.latent_mean_and_variance(X), strict=True
    ):
        assert_array_equal(a, b)


def assert_same_value(one, other):
    if isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert_array_equal(one, other)
    else:
        assert type(one) is type(other)
        assert one == other


def test_every_classifier_with_a_codec_is_tested_here():
    assert {type(make()).__name__ for make in MODELS.values()} == set(classifiers.CODECS)


# Round trip


@each_model
@pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
def test_a_loaded_model_predicts_the_same_bits_as_the_saved_one(name, moons, path, labels):
    X, y = moons
    model = MODELS[name]().fit(X, labels[y])
    save_model(model, path)
    loaded = load_model(path)
    assert type(loaded) is type(model)
    assert_same_value(loaded.classes_, model.classes_)
    assert_predicts_alike(loaded, model, X)


@each_model
def test_every_fitted_attribute_is_restored(name, moons, path):
    X, y = moons
    model = MODELS[name]().fit(pd.DataFrame(X, columns=["IR_108", "VIS006"]), y)
    save_model(model, path)
    loaded = load_model(path)
    fitted = {key for key in vars(model) if key.endswith("_")}
    assert {key for key in vars(loaded) if key.endswith("_")} == fitted
    for key in fitted:
        assert_same_parts(getattr(loaded, key), getattr(model, key))


def assert_same_parts(found, expected):
    """Values are equal, down to the fields of records and the memory order of matrices."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert_array_equal(found, expected)
        assert memory_order(found) == memory_order(expected)
    elif isinstance(expected, tuple):
        for one, other in zip(found, expected, strict=True):
            assert_same_parts(one, other)
    elif is_dataclass(expected):
        assert_same_parts(tuple(vars(found).values()), tuple(vars(expected).values()))
    else:
        assert found == expected


@each_model
def test_a_single_row_gets_the_same_bits_after_loading(name, clouds, path):
    X, y = clouds
    model = MODELS[name]().fit(X, y)
    save_model(model, path)
    loaded = load_model(path)
    for row in range(10):
        assert_predicts_alike(loaded, model, X[row : row + 1])


@each_model
def test_single_precision_prior_shift_and_tolerance_are_restored(name, moons, path):
    X, y = moons
    params = {"prior_correction": {0: 0.9, 1: 0.1}, "class_weight": "balanced"}
    if name != "GPC":
        params |= {"precision": "single", "variance_tolerance": 1e-2}
    model = MODELS[name](**params).fit(X, y)
    save_model(model, path)
    assert_predicts_alike(load_model(path), model, X)


@each_model
def test_a_shift_of_the_latent_mean_as_earlier_versions_had_it_stays(name, moons, path):
    X, y = moons
    model = MODELS[name](prior_correction=[0.9, 0.1]).fit(X, y)
    corrected = model.predict_proba(X)
    save_model(model, path)
    tensors, header = read_tensors(path)
    header["prior_shift"] = header.pop("prior_log_ratio")
    write_tensors(path, tensors, header)
    earlier = load_model(path)
    # Too weak a correction, from 1/2 to 1/10, wherever there is variance.
    assert np.all(earlier.predict_proba(X)[:, 1] > corrected[:, 1])
    assert np.all(earlier.latent_mean(X) < model.latent_mean(X))
    save_model(earlier, path)
    assert_predicts_alike(load_model(path), earlier, X)
    assert "prior_shift" in read_tensors(path)[1]


def test_a_header_with_both_corrections_for_other_frequencies_is_refused(rewrite):
    assert_refused(rewrite(lambda tensors, header: header.update(prior_shift=0.5)))


def test_the_precision_of_predictions_is_restored(moons, path, monkeypatch):
    monkeypatch.setattr(classifier, "DOUBLE_PREDICTION_ROWS", 1)
    model = MODELS["RFFGPC"]().fit(*moons)
    assert model.fit_report_["prediction_precision"] == "single"
    save_model(model, path)
    assert_predicts_alike(load_model(path), model, moons[0])


@each_model
def test_feature_names_are_restored_and_required(name, moons, path):
    X, y = moons
    table = pd.DataFrame(X, columns=["IR_108", "Größe"])
    model = MODELS[name]().fit(table, y)
    save_model(model, path)
    loaded = load_model(path)
    assert_array_equal(loaded.feature_names_in_, ["IR_108", "Größe"])
    assert_predicts_alike(loaded, model, table)
    with pytest.raises(InputError, match="feature names"):
        loaded.predict(table[["Größe", "IR_108"]])


def test_a_model_without_feature_names_has_none_after_loading(moons, path):
    save_model(MODELS["RFFGPC"]().fit(*moons), path)
    assert not hasattr(load_model(path), "feature_names_in_")


PARAMS = {
    "class weights by number": {"class_weight": {0: 1.0, 1: 2.5}},
    "class weights by numpy number": {"class_weight": {np.int64(0): 1.0, np.int64(1): 2.5}},
    "class frequencies by number": {"prior_correction": {0: 0.25, 1: 0.75}},
    "class frequencies in a list": {"prior_correction": np.array([0.25, 0.75])},
    "frequencies": {"init_frequencies": np.random.default_rng(1).normal(size=(5, 2))},
    "numpy numbers": {"tol": np.float32(0.25), "batch_size": np.int64(64)},
    "early stopping": {"early_stopping": True},
    "no early stopping": {"early_stopping": False},
    "a warp and a taper": {"warp": np.True_, "taper": np.float64(0.25)},
    "neither warp nor taper": {"warp": False, "taper": 0},
    "interrupts": {"on_interrupt": "keep"},
    "numbers": {"n_jobs": -1, "variance_tolerance": 1e-3, "warm_start": True, "verbose": 0},
}


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_parameters_are_restored_with_their_types(moons, path, params):
    model = MODELS["RFFGPC"](**params).fit(*moons)
    save_model(model, path)
    loaded = load_model(path)
    for name, value in model.get_params().items():
        assert_same_value(getattr(loaded, name), value)


def test_a_file_that_does_not_say_what_an_interrupt_does_has_the_default(rewrite):
    path = rewrite(lambda tensors, header: header["params"].pop("on_interrupt"))
    assert load_model(path).on_interrupt == "raise"


@pytest.mark.parametrize("posterior", ["variational", "bound"])
def test_the_choice_of_the_posterior_is_restored(moons, path, posterior):
    save_model(MODELS["RFFGPC"](posterior=posterior).fit(*moons), path)
    assert load_model(path).posterior == posterior


def test_a_file_that_does_not_name_its_posterior_holds_the_bounds(rewrite):
    # Version 0.1.0 had no such parameter.
    path = rewrite(lambda tensors, header: header["params"].pop("posterior"))
    assert load_model(path).posterior == "bound"


def test_a_path_parameter_is_restored_as_a_string(moons, path, tmp_path):
    model = MODELS["RFFGPC"](checkpoint=tmp_path / "state").fit(*moons)
    save_model(model, path)
    assert load_model(path).checkpoint == str(tmp_path / "state")


def test_a_random_generator_parameter_is_not_saved(moons, path):
    model = RFFGPC(5, n_estimators=1, max_iter=2, random_state=np.random.RandomState(0)).fit(
        *moons
    )
    save_model(model, path)
    loaded = load_model(path)
    assert loaded.random_state is None
    assert_predicts_alike(loaded, model, moons[0])


def test_a_loaded_model_can_be_fitted_and_saved_again(moons, path):
    X, y = moons
    model = MODELS["VFFGPC"]().fit(X, y)
    save_model(model, path)
    loaded = load_model(path)
    first = path.read_bytes()
    save_model(loaded, path)
    assert path.read_bytes() == first
    assert_predicts_alike(loaded.fit(X, y), model, X)


def test_saving_twice_writes_the_same_bytes(moons, path):
    model = MODELS["RFFGPC"]().fit(*moons)
    save_model(model, path)
    first = path.read_bytes()
    save_model(model, path)
    assert path.read_bytes() == first


def test_a_model_of_labels_that_json_cannot_hold_is_refused(moons, path):
    X, y = moons
    labels = np.array(["2010-01-01", "2011-01-01"], dtype="datetime64[D]")[y]
    try:
        model = MODELS["RFFGPC"]().fit(X, labels)
    except InputError:
        return  # being refused in fit is just as good
    with pytest.raises(InputError, match="datetime64"):
        save_model(model, path)
    assert not path.exists()


# Models that cannot be saved


@each_model
def test_a_model_that_is_not_fitted_is_not_saved(name, path):
    with pytest.raises(NotFittedError):
        save_model(MODELS[name](), path)
    assert not path.exists()


@each_model
def test_a_model_whose_fit_failed_is_not_saved(name, moons, path):
    X, y = moons
    broken = X.copy()
    broken[3, 0] = np.nan
    model = MODELS[name]().fit(X, y)
    with pytest.raises(InputError):
        model.fit(broken, y)
    with pytest.raises(NotFittedError):
        save_model(model, path)
    assert not path.exists()


class Subclass(RFFGPC):
    pass


@pytest.mark.parametrize(
    "model", [LogisticRegression(), FourierFeatures(), Subclass(), "model", None], ids=str
)
def test_other_classes_of_models_are_refused_by_name(model, path):
    with pytest.raises(InputError, match=type(model).__name__) as caught:
        save_model(model, path)
    assert "GPC, RFFGPC, VFFGPC" in str(caught.value)
    assert not path.exists()


def test_a_folder_that_does_not_exist_is_an_error_that_names_the_file(moons, tmp_path):
    model = MODELS["RFFGPC"]().fit(*moons)
    with pytest.raises(ModelFileError, match="nowhere"):
        save_model(model, tmp_path / "nowhere" / "model.undulatus")


def test_saving_that_fails_keeps_the_model_that_was_there(moons, path, monkeypatch):
    X, y = moons
    model = MODELS["RFFGPC"]().fit(X, y)
    save_model(model, path)

    def fail(*names):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(ModelFileError, match="No space left"):
            save_model(MODELS["RFFGPC"]().fit(X, 1 - y), path)
    assert_predicts_alike(load_model(path), model, X)
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


# Files that cannot be loaded


def test_the_error_says_that_a_file_is_missing(path):
    assert "no such file" in assert_refused(path)


@each_model
def test_a_model_cut_short_anywhere_is_refused(name, saved, path):
    content = saved[name]
    for length in range(0, len(content), max(1, len(content) // 150)):
        path.write_bytes(content[:length])
        assert_refused(path)
    path.write_bytes(content[:-1])
    assert_refused(path)


@each_model
def test_a_flipped_bit_in_the_tensors_is_detected(name, saved, path):
    content = saved[name]
    start = 8 + int.from_bytes(content[:8], "little")
    rng = np.random.default_rng(0)
    for position in rng.integers(start, len(content), 150):
        flipped = bytearray(content)
        flipped[position] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        assert_refused(path)


@each_model
@given(data=st.data())
@settings(max_examples=150)
def test_a_flipped_bit_in_the_header_is_detected(name, saved, tmp_path_factory, data):
    content = bytearray(saved[name])
    start = 8 + int.from_bytes(content[:8], "little")
    position = data.draw(st.integers(0, start - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path_factory.mktemp("flipped") / "model.undulatus"
    path.write_bytes(content)
    assert_refused(path)


def test_a_renamed_pickle_is_refused(moons, path):
    path.write_bytes(pickle.dumps(MODELS["RFFGPC"]().fit(*moons)))
    assert_refused(path)


def test_a_safetensors_file_from_another_program_is_refused(path):
    path.write_bytes(save_safetensors({"weight": np.ones(3)}))
    assert "not one of undulatus" in assert_refused(path)


def test_a_checkpoint_is_not_loaded_as_a_model(moons, path):
    MODELS["RFFGPC"](checkpoint=path).fit(*moons)
    assert "holds no model" in assert_refused(path)


@pytest.fixture(params=MODELS)
def rewrite(request, saved, path):
    """Return a function that changes a saved model's tensors and header, with new checksums."""

    def change(alter):
        path.write_bytes(saved[request.param])
        tensors, header = read_tensors(path)
        alter(tensors, header)
        write_tensors(path, tensors, header)
        return path

    return change


@pytest.mark.parametrize("schema", [SCHEMA + 1, 0, None, "1"])
def test_the_error_names_an_unknown_schema_and_the_remedy(rewrite, schema):
    path = rewrite(lambda tensors, header: header.update(schema=schema))
    message = assert_refused(path)
    assert f"schema {schema!r}" in message
    assert "upgrade" in message


def test_an_unknown_kind_of_model_is_named(rewrite):
    path = rewrite(lambda tensors, header: header.update(kind="DeepGPC"))
    assert "'DeepGPC'" in assert_refused(path)


def own_key(key, header):
    """Posteriors of an ensemble are in its estimators, those of others in latent functions."""
    if key != "posterior":
        return key
    return "estimators" if "estimators" in header else "latents"


@pytest.mark.parametrize(
    "key",
    [
        *("format", "schema", "kind", "params", "classes", "feature_names", "n_features"),
        *("prior_log_ratio", "posterior", "fitted"),
    ],
)
def test_a_header_with_a_missing_key_is_refused(rewrite, key):
    assert_refused(rewrite(lambda tensors, header: header.pop(own_key(key, header))))


JUNK = [
    (key, junk)
    for key, junk in product(
        [
            *("params", "classes", "feature_names", "n_features"),
            *("prior_log_ratio", "posterior", "fitted"),
        ],
        [7, "junk", [1, 2, 3], {"junk": 1}],
    )
    if (key, junk) != ("prior_log_ratio", 7)  # a number is valid there
]


@pytest.mark.parametrize(("key", "junk"), JUNK, ids=str)
def test_a_header_with_a_junk_value_is_refused(rewrite, key, junk):
    assert_refused(rewrite(lambda tensors, header: header.update({own_key(key, header): junk})))


def test_missing_and_unexpected_tensors_are_named(rewrite, saved):
    def lose(tensors, header):
        del tensors["centre"]

    def add(tensors, header):
        tensors["extra"] = np.ones(2)

    assert "centre" in assert_refused(rewrite(lose))
    assert "extra" in assert_refused(rewrite(add))


def test_any_missing_tensor_is_a_model_file_error(rewrite):
    path = rewrite(lambda tensors, header: None)
    for name in read_tensors(path)[0]:

        def lose(tensors, header, name=name):
            del tensors[name]

        assert_refused(rewrite(lose))


def test_any_tensor_of_the_wrong_shape_or_dtype_is_refused(rewrite):
    path = rewrite(lambda tensors, header: None)
    for name in read_tensors(path)[0]:
        for spoil in (
            lambda array: array[..., None],
            lambda array: array.astype(np.float32),
            lambda array: np.repeat(array, 2, axis=-1) if array.ndim > 1 else array[None],
        ):

            def change(tensors, header, name=name, spoil=spoil):
                tensors[name] = spoil(tensors[name])

            assert_refused(rewrite(change))


def test_any_tensor_with_nan_is_named(rewrite):
    path = rewrite(lambda tensors, header: None)
    for name in read_tensors(path)[0]:

        def change(tensors, header, name=name):
            tensors[name] = tensors[name].copy()
            tensors[name].flat[-1] = np.nan

        assert f"'{name}'" in assert_refused(rewrite(change))


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_scales_and_variances_must_be_positive(rewrite, value):
    def spoil_scale(tensors, header):
        tensors["scale"] = np.full_like(tensors["scale"], value)

    def spoil_warp(tensors, header):
        tensors["warp_width"] = np.full_like(tensors["warp_width"], value)

    def spoil_variance(tensors, header):
        if "estimators" in header:
            header["estimators"][-1]["signal_variance"] = value
        else:
            header["latents"][0]["signal_variance"] = value

    expected = {
        spoil_scale: "not from 1e-30 to 40 in 'scale'",
        spoil_warp: "not positive in 'warp_width'",
        spoil_variance: f"signal_variance is {value}, but a positive number",
    }
    for spoil, words in expected.items():
        assert words in assert_refused(rewrite(spoil))


def test_a_wrong_number_of_classes_or_feature_names_is_refused(rewrite):
    def three_classes(tensors, header):
        header["classes"] = {"array": [1, 2, 3], "dtype": "<i8"}

    def one_name(tensors, header):
        header["feature_names"] = ["IR_108"]

    for spoil in (three_classes, one_name):
        assert_refused(rewrite(spoil))


@pytest.mark.parametrize("dtype", ["V8", "datetime64[s]", "nonsense", "O,O", ",i8"])
def test_classes_of_a_dtype_that_is_never_written_are_refused(rewrite, dtype):
    def spoil(tensors, header):
        header["classes"] = {"array": ["a", "b"], "dtype": dtype}

    assert_refused(rewrite(spoil))


def test_classes_too_large_for_their_dtype_are_refused(rewrite):
    def spoil(tensors, header):
        header["classes"] = {"array": [0, 2**70], "dtype": "<i8"}

    assert_refused(rewrite(spoil))


# Estimators, warps and prior means


def test_a_single_model_is_written_as_an_ensemble_of_one(saved, path):
    path.write_bytes(saved["VFFGPC"])
    tensors, header = read_tensors(path)
    assert header["schema"] == SCHEMA
    assert len(header["estimators"]) == 1
    assert {"0/frequencies", "0/posterior_root"} < set(tensors)
    assert load_model(path).n_estimators == 1


def test_each_estimator_of_an_ensemble_has_tensors_of_its_own(saved, path):
    path.write_bytes(saved["ensemble"])
    tensors, header = read_tensors(path)
    assert len(header["estimators"]) == 2
    assert {"0/frequencies", "0/posterior_root", "1/frequencies"} < set(tensors)


def test_an_ensemble_within_other_models_predicts_the_same_bits(moons, path):
    pipeline = make_pipeline(StandardScaler(), MODELS["ensemble"]()).fit(*moons)
    save_model(pipeline, path)
    assert_predicts_alike(load_model(path)[-1], pipeline[-1], moons[0])


@each_model
@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_a_warped_model_predicts_the_same_bits_away_from_its_data(name, clouds, path, factor):
    X, y = clouds
    params = {"prior_correction": [0.7, 0.3]} | ({} if name == "GPC" else {"taper": 0.1})
    model = MODELS[name](**params).fit(X, y)
    save_model(model, path)
    loaded = load_model(path)
    assert_same_parts(loaded.standardisation_, model.standardisation_)
    assert_predicts_alike(loaded, model, factor * X)


@each_model
def test_a_warp_is_written_only_where_there_is_one(name, moons, path):
    save_model(MODELS[name](warp=False).fit(*moons), path)
    assert not {"warp_middle", "warp_width"} & set(read_tensors(path)[0])
    assert load_model(path).standardisation_.warp is None


@pytest.mark.parametrize("name", ["warp_middle", "warp_width"])
def test_half_a_warp_is_refused_by_the_name_of_the_other_half(rewrite, name):
    path = rewrite(lambda tensors, header: tensors.pop(name))
    assert f"unexpected ones: {name}." in assert_refused(path)


@pytest.mark.parametrize("name", ["RFFGPC", "VFFGPC", "ensemble"])
def test_an_ensemble_from_before_warps_and_tapers_loads_as_the_paper_has_it(name, moons, path):
    # Development versions wrote schema 2 without these names.
    model = MODELS[name](taper=0.0, **PLAIN).fit(*moons)
    save_model(model, path)
    tensors, header = read_tensors(path)
    for parameter in ("warp", "taper"):
        del header["params"][parameter]
    for own in header["estimators"]:
        del own["taper"]
        for latent in own.get("latents", [own]):
            del latent["prior_mean"]
    write_tensors(path, tensors, header)
    loaded = load_model(path)
    assert (loaded.warp, loaded.taper, loaded.posterior) == (False, 0.0, "bound")
    assert {(fit.taper, fit.latents[0].prior_mean) for fit in loaded.estimators_} == {(0.0, 0.0)}
    assert_predicts_alike(loaded, model, moons[0])


def test_a_single_model_of_schema_1_loads_as_the_paper_has_it(moons, path):
    model = MODELS["RFFGPC"](taper=0.0, **PLAIN).fit(*moons)
    save_model(model, path)
    tensors, header = read_tensors(path)
    (own,) = header.pop("estimators")
    del header["edge_slope"], header["adaptation"]
    header["schema"] = 1
    header["posterior"] = own["posterior"]
    header["fitted"] |= {f"{key}_": own[key] for key in ("signal_variance", "lengthscale")}
    header["fitted"] |= {"bound_": model.lower_bound_, "n_iter_": own["n_iter"]}
    for parameter in ("warp", "taper", "n_estimators", "posterior"):
        del header["params"][parameter]
    header["params"]["frequencies"] = header["params"].pop("init_frequencies")
    tensors = {key.removeprefix("0/"): tensor for key, tensor in tensors.items()}
    tensors["bound_history"] = tensors.pop("lower_bounds")
    write_tensors(path, tensors, header)
    loaded = load_model(path)
    # Whatever the defaults become, such a file holds the paper's model.
    assert (loaded.n_estimators, loaded.posterior) == (1, "bound")
    assert (loaded.warp, loaded.taper) == (False, 0.0)
    assert_predicts_alike(loaded, model, moons[0])


def test_an_exact_model_without_a_prior_mean_has_one_of_zero(moons, path):
    model = MODELS["GPC"](**PLAIN).fit(*moons)
    save_model(model, path)
    tensors, header = read_tensors(path)
    (latent,), fitted = header.pop("latents"), header["fitted"]
    # As version 0.1.0 wrote it.
    header["posterior"] = {"jitter": latent["jitter"]}
    for name in ("signal_variance", "lengthscale"):
        fitted[f"{name}_"] = latent[name]
    del header["params"]["warp"]
    tensors = {name.removeprefix("0/"): tensor for name, tensor in tensors.items()}
    write_tensors(path, tensors, header | {"schema": 1})
    loaded = load_model(path)
    assert (loaded.prior_mean_, loaded.warp) == (0.0, False)
    assert_predicts_alike(loaded, model, moons[0])


def test_an_ensemble_without_estimators_is_refused(saved, path):
    path.write_bytes(saved["ensemble"])
    tensors, header = read_tensors(path)
    header["estimators"] = []
    write_tensors(path, {k: v for k, v in tensors.items() if "/" not in k}, header)
    assert "without estimators" in assert_refused(path)


# No code in the file


def test_a_model_is_plain_arrays_and_plain_json(saved):
    for content in saved.values():
        assert all(isinstance(array, np.ndarray) for array in load_safetensors(content).values())
        length = int.from_bytes(content[:8], "little")
        value = json.loads(content[8 : 8 + length])["__metadata__"]["undulatus"]
        digest, _, text = value.partition(" ")
        assert digest == hashlib.sha256(text.encode()).hexdigest()
        assert json.loads(text)["header"]["format"] == "undulatus-model"


def test_a_model_loads_where_nothing_can_be_unpickled(saved, tmp_path):
    code = """
import pickle, sys
import _pickle

def refuse(*args, **kwargs):
    raise SystemExit("something was unpickled")

class Refuse:
    __init__ = refuse

import numpy as np
from undulatus import load_model
for module in (pickle, _pickle):
    module.loads = module.load = refuse
    module.Unpickler = Refuse
for path in sys.argv[1:]:
    model = load_model(path)
    print(type(model).__name__, model.predict_proba(np.zeros((1, 2))).shape)
"""
    paths = []
    for name, content in saved.items():
        path = Path(tmp_path / name)
        path.write_bytes(content)
        paths.append(str(path))
    run = subprocess.run(
        [sys.executable, "-c", code, *paths], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    names = [type(MODELS[name]()).__name__ for name in saved]
    assert run.stdout.split("\n")[:-1] == [f"{name} (1, 2)" for name in names]
