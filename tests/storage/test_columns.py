"""Transformers of tables in a model file: columns apart, categories, missing values."""

from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from undulatus import RFFGPC, load_model, save_model
from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    # Of features without any value.
    pytest.mark.filterwarnings("ignore:Skipping features without any observed values"),
]


def table(rows=90):
    rng = np.random.default_rng(0)
    found = pd.DataFrame(
        {
            "B04": rng.normal(size=rows),
            "B08": rng.normal(size=rows),
            "soil": rng.choice(["clay", "peat", "sand"], rows),
            "slope": rng.integers(0, 3, rows),
            "empty": np.full(rows, np.nan),
        }
    )
    y = np.where(found["B04"] > 0, "wet", "dry")
    found.loc[::7, "B04"] = np.nan
    found.loc[::11, "soil"] = np.nan
    return found, y


X, Y = table()
NUMBERS = X[["B04", "B08", "slope"]]
NAMED = ["B04", "B08"]
frequent = SimpleImputer(strategy="most_frequent")
dense = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
CASES = {
    "pipelines of named columns": (
        ColumnTransformer(
            [
                ("bands", make_pipeline(SimpleImputer(), StandardScaler()), NAMED),
                ("kinds", make_pipeline(frequent, dense), ["soil"]),
            ]
        ),
        X,
    ),
    "the rest as it is": (
        ColumnTransformer(
            [
                ("bands", SimpleImputer(), ["B04"]),
                ("steps", OneHotEncoder(drop="first"), ["slope"]),
            ],
            remainder="passthrough",
            sparse_threshold=0,
        ),
        NUMBERS,
    ),
    "the rest transformed": (
        ColumnTransformer(
            [("steps", dense, ["slope"]), ("none", "drop", ["B08"])],
            remainder=SimpleImputer(strategy="constant", fill_value=-1.0),
        ),
        NUMBERS,
    ),
    "columns by number": (
        ColumnTransformer(
            [
                ("bands", make_pipeline(SimpleImputer(strategy="median"), PCA(1)), [0, 1]),
                ("steps", OneHotEncoder(sparse_output=False, dtype=np.float32), slice(2, 3)),
            ]
        ),
        NUMBERS.to_numpy(),
    ),
    "columns by their type": (
        ColumnTransformer(
            [
                ("numbers", SimpleImputer(), make_column_selector(dtype_include="number")),
                ("same", "passthrough", ["slope"]),
            ],
            transformer_weights={"numbers": 2.0},
        ),
        X,
    ),
    "no column": (ColumnTransformer([("a", SimpleImputer(), NAMED), ("b", dense, [])]), NUMBERS),
    "means": (SimpleImputer(), NUMBERS.to_numpy()),
    "a feature without values": (SimpleImputer(), X[[*NAMED, "empty"]]),
    "zeros for it": (SimpleImputer(keep_empty_features=True), X[[*NAMED, "empty"]]),
    "another mark": (SimpleImputer(missing_values=-9.0), np.nan_to_num(NUMBERS, nan=-9.0)),
    "single precision": (SimpleImputer(), NUMBERS.to_numpy(np.float32)),
    "categories": (dense, X[["slope"]]),
    "given categories": (
        OneHotEncoder(sparse_output=False, categories=[[0, 1, 2, 5]], drop="if_binary"),
        X[["slope"]],
    ),
    "categories of text": (dense, X[["soil", "slope"]].fillna({"soil": "none"})),
}
each_case = pytest.mark.parametrize("name", CASES)


def fitted(name):
    transformer, rows = CASES[name]
    steps = [clone(transformer), RFFGPC(3, n_estimators=1, random_state=0, max_iter=2)]
    return make_pipeline(*steps).fit(rows, Y), rows


@each_case
def test_a_pipeline_predicts_the_same_bits_after_loading(name, tmp_path):
    model, rows = fitted(name)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(loaded.predict_proba(rows), model.predict_proba(rows))
    assert_array_equal(loaded[0].get_feature_names_out(), model[0].get_feature_names_out())
    # Saved and loaded again it is the same; and it can be fitted again.
    save_model(loaded, tmp_path / "again")
    for before, after in zip(
        read_tensors(tmp_path / "model"), read_tensors(tmp_path / "again"), strict=True
    ):
        assert repr(before) == repr(after)
    assert_array_equal(clone(loaded).fit(rows, Y).predict_proba(rows), model.predict_proba(rows))


def test_columns_in_another_order_and_unknown_categories_are_taken_as_before(tmp_path):
    model, rows = fitted("pipelines of named columns")
    save_model(model, tmp_path / "model")
    other = rows[rows.columns[::-1]].assign(soil="gravel")
    loaded = load_model(tmp_path / "model")
    assert_array_equal(loaded.predict_proba(other), model.predict_proba(other))


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        (SimpleImputer(add_indicator=True), "add_indicator=True"),
        (OneHotEncoder(sparse_output=False, min_frequency=2), "infrequent categories"),
        (OneHotEncoder(sparse_output=False, dtype=np.int64), "gives int64"),
    ],
)
def test_what_a_file_has_no_place_for_is_named(transformer, message, tmp_path):
    rows = NUMBERS if isinstance(transformer, SimpleImputer) else NUMBERS[["slope"]]
    model = make_pipeline(transformer, RFFGPC(3, n_estimators=1, max_iter=2)).fit(rows, Y)
    with pytest.raises(InputError, match=message):
        save_model(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def parts(header):
    return header["steps"][0][1]


FORGED = {
    "a column that is not there": lambda own: own["transformers"][0][1].append("B99"),
    "a column by a number": lambda own: own["transformers"][0][1].__setitem__(0, 0),
    "a column that is a list": lambda own: own["transformers"][0][1].__setitem__(0, ["B04"]),
    "no transformer": lambda own: own["transformers"][0].__setitem__(2, "eval"),
    "a classifier": lambda own: own["transformers"][0][2].update(kind="RFFGPC"),
    "a ColumnTransformer in itself": lambda own: own["transformers"][0].__setitem__(
        2, deepcopy(own)
    ),
    "another remainder": lambda own: own.update(remainder=["drop"]),
    "an unknown parameter": lambda own: own["params"].update(verbosity=1),
    "transformers as a parameter": lambda own: own["params"].update(transformers="x"),
    "a weight that is a text": lambda own: own["params"].update(
        transformer_weights={"pairs": [["bands", "heavy"]]}
    ),
    "too many features": lambda own: own.update(n_features=10**9),
    "fewer features": lambda own: own.update(n_features=4),
    "a name twice": lambda own: own["feature_names"].__setitem__(1, "B04"),
    "two parts of one name": lambda own: own["transformers"][1].__setitem__(0, "bands"),
    "no steps": lambda own: own["transformers"][0][2].update(steps=[]),
    "steps that do not fit": lambda own: own["transformers"][0][2]["steps"].pop(),
    "statistics as a text": lambda own: imputer(own).update(statistics="12"),
    "statistics of another type": lambda own: imputer(own).update(statistics=["x", "y"]),
    "one statistic": lambda own: imputer(own).update(statistics=[1.0]),
    "an enormous statistic": lambda own: imputer(own).update(statistics=[1e99, 0.0]),
    "a type that is none": lambda own: imputer(own).update(kept_as="V8"),
    "no imputer's strategy": lambda own: imputer(own)["params"].update(strategy="code"),
    "no categories": lambda own: encoder(own).update(categories=[]),
    "empty categories": lambda own: encoder(own)["categories"][0].update(array=[]),
    "a category twice": lambda own: encoder(own)["categories"][0].update(array=["a", "a"]),
    "a type of numbers": lambda own: encoder(own).update(dtype="object"),
    "infrequent categories": lambda own: encoder(own)["params"].update(max_categories=2),
}


def imputer(own):
    return own["transformers"][0][2]["steps"][0][1]


def encoder(own):
    return own["transformers"][1][2]["steps"][1][1]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("columns") / "model"
    save_model(fitted("pipelines of named columns")[0], path)
    return path


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_part_is_an_error_that_names_the_file(forge, saved, tmp_path):
    tensors, header = read_tensors(saved)
    forge(parts(header))
    write_tensors(tmp_path / "forged", tensors, header)
    with pytest.raises(ModelFileError, match="forged"):
        load_model(tmp_path / "forged")
