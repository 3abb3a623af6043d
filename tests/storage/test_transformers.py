"""Transformers saved before a classifier in a Pipeline, and files that are refused."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import RFFGPC, load_model, save_model
from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.estimators.pca import SpectralPCA
from undulatus.storage.transformers import CODECS, LAYOUTS, NUMBER, TEXT

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

D = 40
RNG = np.random.default_rng(5)
X = RNG.normal(size=(150, D)) * RNG.uniform(0.5, 4.0, D) + RNG.normal(size=D)
X.setflags(write=False)
Y = (X[:, 0] + RNG.normal(size=150) > X[:, 0].mean()).astype(int)
GAPPY = np.where(RNG.random(X.shape) < 0.05, np.nan, X)
SINGLE = X.astype(np.float32)
NAMED = pd.DataFrame(X, columns=[f"ch{number}" for number in range(D)])
NOISE = RNG.uniform(0.5, 2.0, D)

FITTED = {
    "StandardScaler": {
        "usual": lambda: StandardScaler().fit(X),
        "mean only": lambda: StandardScaler(with_std=False).fit(X),
        "scale only": lambda: StandardScaler(with_mean=False).fit(X),
        "neither": lambda: StandardScaler(with_mean=False, with_std=False).fit(X),
        "weights": lambda: StandardScaler().fit(X, sample_weight=np.linspace(0.0, 1.0, 150)),
        "gaps": lambda: StandardScaler().fit(GAPPY),
        "gaps, neither": lambda: StandardScaler(with_mean=False, with_std=False).fit(GAPPY),
        "single": lambda: StandardScaler().fit(SINGLE),
        "names": lambda: StandardScaler().fit(NAMED),
        "a constant feature": lambda: StandardScaler().fit(X * (np.arange(D) > 0)),
        "parts": lambda: StandardScaler().partial_fit(X[:70]).partial_fit(X[70:]),
    },
    "PCA": {
        "usual": lambda: PCA(7).fit(X),
        "all": lambda: PCA().fit(X),
        "whole decomposition": lambda: PCA(7, svd_solver="full").fit(X),
        "arpack": lambda: PCA(7, svd_solver="arpack", random_state=0).fit(X),
        "randomised": lambda: PCA(7, svd_solver="randomized", random_state=0).fit(X),
        "a share": lambda: PCA(0.9).fit(X),
        "mle": lambda: PCA("mle").fit(X),
        "white": lambda: PCA(np.int64(7), whiten=True).fit(X),
        "single": lambda: PCA(7, whiten=True).fit(SINGLE),
        "names": lambda: PCA(7).fit(NAMED),
        "one": lambda: PCA(1).fit(X),
    },
    "IncrementalPCA": {
        "usual": lambda: IncrementalPCA(7).fit(X),
        "all": lambda: IncrementalPCA(batch_size=50).fit(X),
        "white": lambda: IncrementalPCA(7, whiten=True, batch_size=np.int64(30)).fit(X),
        "single": lambda: IncrementalPCA(7).fit(SINGLE),
        "names": lambda: IncrementalPCA(7).fit(NAMED),
        "parts": lambda: IncrementalPCA(7).partial_fit(X[:70]).partial_fit(X[70:]),
    },
    "SpectralPCA": {
        "usual": lambda: SpectralPCA(7).fit(X),
        "noise": lambda: SpectralPCA(7, noise=NOISE, n_jobs=1).fit(X),
        "noise in single precision": lambda: SpectralPCA(7, noise=NOISE.astype("f4")).fit(X),
        "noise of whole numbers": lambda: SpectralPCA(7, noise=np.arange(1, D + 1)).fit(X),
        "single": lambda: SpectralPCA(7, noise=NOISE).fit(SINGLE),
        "names": lambda: SpectralPCA(7).fit(NAMED),
    },
}
each_fit = pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=f"{kind}-{way}")
        for kind, ways in FITTED.items()
        for way, make in ways.items()
    ],
)
each_kind = pytest.mark.parametrize("kind", CODECS)


def test_every_transformer_with_a_codec_is_tested_here():
    assert set(FITTED) == set(CODECS)


@pytest.mark.parametrize("kind", CODECS)
def test_every_transformer_is_in_the_documentation(kind):
    page = Path(__file__).parents[2] / "docs" / "reference" / "model-file.md"
    assert f'`"{kind}"`' in page.read_text()
    assert kind in save_model.__doc__


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.undulatus"


def before_a_classifier(transformer, rows=X):
    """A fitted Pipeline of a fitted transformer and a classifier of its output."""
    classifier = RFFGPC(3, n_estimators=1, max_iter=1, random_state=0).fit(
        transformer.transform(rows), Y
    )
    return Pipeline([("before", transformer), ("classifier", classifier)])


def loaded(transformer, path):
    rows = NAMED if hasattr(transformer, "feature_names_in_") else X
    save_model(before_a_classifier(transformer, rows), path)
    return load_model(path).named_steps["before"]


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
    assert_array_equal(found, expected)


# Round trip


@each_fit
def test_every_attribute_and_parameter_is_restored_with_its_type(make, path):
    transformer = make()
    found = loaded(transformer, path)
    assert type(found) is type(transformer)
    assert set(vars(found)) == set(vars(transformer))
    for name, value in vars(transformer).items():
        assert_same(getattr(found, name), value)


@each_fit
@pytest.mark.parametrize("rows", [X, SINGLE], ids=["double", "single"])
def test_rows_are_transformed_to_the_same_bits_after_loading(make, rows, path):
    transformer = make()
    if hasattr(transformer, "feature_names_in_"):
        rows = NAMED.astype(rows.dtype)
    found = loaded(transformer, path)
    for some in (rows, rows[:1], rows[3:20]):
        expected = transformer.transform(some)
        assert found.transform(some).dtype == expected.dtype
        assert_array_equal(found.transform(some), expected)


@each_fit
def test_a_loaded_transformer_is_saved_to_the_same_bytes(make, path):
    loaded(make(), path)
    first = path.read_bytes()
    save_model(load_model(path), path)
    assert path.read_bytes() == first


@each_kind
def test_a_loaded_transformer_can_be_fitted_again(kind, path):
    transformer = FITTED[kind]["usual"]()
    again = loaded(transformer, path).fit(SINGLE)
    expected = clone(transformer).fit(SINGLE)
    for name, value in vars(expected).items():
        assert_same(getattr(again, name), value)


@pytest.mark.parametrize(
    "kind", [kind for kind in CODECS if hasattr(CODECS[kind].model, "partial_fit")]
)
def test_a_loaded_transformer_can_learn_from_more_rows(kind, path):
    transformer = FITTED[kind]["gaps" if "gaps" in FITTED[kind] else "usual"]()
    found = loaded(transformer, path).partial_fit(X[:50])
    for name, value in vars(transformer.partial_fit(X[:50])).items():
        assert_same(getattr(found, name), value)


def test_noise_is_saved_as_a_tensor_not_as_text(path):
    save_model(before_a_classifier(SpectralPCA(7, noise=NOISE).fit(X)), path)
    tensors, header = read_tensors(path)
    assert_array_equal(tensors["0/noise"], NOISE)
    assert str(NOISE[0]) not in json.dumps(header)


@pytest.mark.parametrize("noise", [NOISE.tolist(), NOISE.astype(">f8")], ids=["list", "swapped"])
def test_noise_given_otherwise_is_restored_as_a_native_array(noise, path):
    found = loaded(SpectralPCA(7, noise=noise).fit(X), path)
    assert_same(found.noise, NOISE)


# Transformers that cannot be saved


@each_kind
def test_a_transformer_that_is_not_fitted_is_not_saved(kind, path):
    model = before_a_classifier(FITTED[kind]["usual"]())
    model.steps[0] = ("before", clone(model.steps[0][1]))
    with pytest.raises(NotFittedError, match=kind):
        save_model(model, path)
    assert not path.exists()


@each_kind
def test_a_transformer_alone_is_not_saved(kind, path):
    with pytest.raises(InputError, match=f"{kind}; it takes a fitted GPC"):
        save_model(FITTED[kind]["usual"](), path)


def test_a_transformer_that_holds_nan_is_not_saved(path):
    model = before_a_classifier(PCA(7).fit(X))
    model.named_steps["before"].explained_variance_ratio_[2] = np.nan
    with pytest.raises(InputError, match=r"'before'.*explained_variance_ratio_.*NaN"):
        save_model(model, path)
    assert not path.exists()


def test_a_transformer_with_attributes_of_different_sizes_is_not_saved(path):
    model = before_a_classifier(PCA(7).fit(X))
    model.named_steps["before"].mean_ = np.zeros(D + 1)
    with pytest.raises(InputError, match=r"'mean_' as float64 \(41,\), but \(40,\) is expected"):
        save_model(model, path)


def test_a_scaler_whose_parameters_changed_after_fit_is_not_saved(path):
    model = before_a_classifier(StandardScaler(with_std=False).fit(X))
    model.set_params(before__with_std=True)
    with pytest.raises(InputError, match="lacks 'scale_', which with_std needs"):
        save_model(model, path)


# Files that cannot be loaded


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a Pipeline with each transformer."""
    content = {}
    for kind in CODECS:
        path = tmp_path_factory.mktemp(kind) / "model.undulatus"
        way = "noise" if kind == "SpectralPCA" else "usual"
        save_model(before_a_classifier(FITTED[kind][way]()), path)
        content[kind] = path.read_bytes()
    return content


@pytest.fixture
def refuse(saved, path):
    """Return a function that changes a saved model, loads it, and returns the error message."""

    def error_message(kind, alter):
        path.write_bytes(saved[kind])
        tensors, header = read_tensors(path)
        alter(tensors, header["steps"][0][1])
        write_tensors(path, tensors, header)
        with pytest.raises(ModelFileError) as caught:
            load_model(path)
        assert str(path) in str(caught.value)
        return str(caught.value)

    return error_message


def own_tensors(content, path):
    path.write_bytes(content)
    return [name for name in read_tensors(path)[0] if name.startswith("0/")]


@each_kind
def test_a_missing_tensor_is_named_with_its_step(kind, saved, path, refuse):
    for name in own_tensors(saved[kind], path):
        message = refuse(kind, lambda tensors, header, name=name: tensors.pop(name))
        assert "'before'" in message
        assert name.removeprefix("0/") in message


@each_kind
def test_an_unexpected_tensor_is_named(kind, refuse):
    message = refuse(kind, lambda tensors, header: tensors.update({"0/extra": np.ones(2)}))
    assert "extra" in message


SPOILS = {
    "one more dimension": lambda array: array[..., None],
    "one short": lambda array: array[..., :-1],
    "none": lambda array: array[:0],
    "a number": lambda array: array.ravel()[0],
    "booleans": lambda array: array > 0,
}


@each_kind
@pytest.mark.parametrize("spoil", SPOILS.values(), ids=SPOILS)
def test_a_tensor_of_the_wrong_shape_or_type_is_named(kind, spoil, saved, path, refuse):
    def alter(tensors, header, name):
        tensors[name] = np.ascontiguousarray(spoil(tensors[name]))
        if tensors[name].size == 1:
            tensors[name] = tensors[name].reshape(())

    for name in own_tensors(saved[kind], path):
        message = refuse(kind, partial(alter, name=name))
        assert name.removeprefix("0/") in message


@each_kind
def test_a_tensor_with_nan_is_named(kind, saved, path, refuse):
    def alter(tensors, header, name):
        tensors[name] = np.full_like(tensors[name], np.nan)

    for name in own_tensors(saved[kind], path):
        assert f"'{name}'" in refuse(kind, partial(alter, name=name))


POSITIVE = [("StandardScaler", "scale_"), ("SpectralPCA", "noise_"), ("SpectralPCA", "noise")]
NOT_NEGATIVE = [(kind, "explained_variance_") for kind in CODECS if kind.endswith("PCA")]


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(*which, 0.0) for which in POSITIVE] + [(*which, -1.0) for which in POSITIVE + NOT_NEGATIVE],
)
def test_scales_and_noise_must_be_positive_and_variances_not_negative(kind, name, value, refuse):
    def alter(tensors, header):
        tensors[f"0/{name}"] = tensors[f"0/{name}"].copy()
        tensors[f"0/{name}"][3] = value

    assert f"holds {name!r} with numbers that are" in refuse(kind, alter)


FORMS = {layout.model.__name__: layout.attributes for layout in LAYOUTS}
JUNK = [None, "junk", 0, -3, 2.5, True, [7], {"junk": 1}, {"array": [1, 2], "dtype": "<i8"}]
HARMLESS = {NUMBER: (int, float), TEXT: (str,)}
INFINITE = {"array": ["inf"], "dtype": "<f8", "scalar": True}


@each_kind
@pytest.mark.parametrize("junk", [*JUNK, INFINITE], ids=str)
def test_invalid_counts_and_numbers_are_refused(kind, junk, saved, path, refuse):
    path.write_bytes(saved[kind])
    _, header = read_tensors(path)
    for name in header["steps"][0][1]["fitted"]:
        if not any(type(junk) in HARMLESS.get(form, ()) for form in FORMS[kind][name]):
            refuse(kind, lambda tensors, header, name=name: header["fitted"].update({name: junk}))


@each_kind
@pytest.mark.parametrize("key", ["kind", "params", "feature_names", "fitted", "order"])
def test_a_header_with_a_missing_key_is_refused(kind, key, refuse):
    refuse(kind, lambda tensors, header: header.pop(key))


@each_kind
@pytest.mark.parametrize("junk", [7, "junk", [1, 2, 3], {"junk": 1}], ids=str)
@pytest.mark.parametrize("key", ["kind", "params", "feature_names", "fitted", "order"])
def test_a_header_with_a_junk_value_is_refused(kind, key, junk, refuse):
    refuse(kind, lambda tensors, header: header.update({key: junk}))


@each_kind
def test_an_attribute_in_the_header_and_the_tensors_is_refused(kind, refuse):
    def alter(tensors, header):
        header["fitted"]["mean_"] = None

    assert "mean_" in refuse(kind, alter)


def test_a_scaler_without_an_attribute_that_its_parameters_need_is_refused(refuse):
    def alter(tensors, header):
        del tensors["0/scale_"]
        header["fitted"]["scale_"] = None

    assert "lacks 'scale_', which with_std needs" in refuse("StandardScaler", alter)
