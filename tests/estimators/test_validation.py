"""Rows that users pass: which can be sliced, how they are checked, how columns are named."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator, clone

from undulatus import GPC, RFFGPC, VFFGPC
from undulatus.errors import InputError, NotEnoughMemoryError, TooManyRowsError
from undulatus.estimators.validation import column_namer, is_sliceable, validate_rows


class SliceOnly:
    """Rows that can only be sliced."""

    def __init__(self, rows):
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("all rows were read at once")

    def __getitem__(self, key):
        return self._rows[key]


def test_something_with_a_shape_a_dtype_and_slices_is_sliceable():
    assert is_sliceable(SliceOnly(np.ones((3, 2))))


@pytest.mark.parametrize(
    "rows",
    [
        np.ones((3, 2)),
        [[1.0, 2.0]],
        pd.DataFrame({"a": [1.0]}),
        csr_matrix(np.eye(2)),
        SliceOnly(np.ones(3)),
        SliceOnly(np.ones((2, 2, 2))),
        "rows",
        None,
    ],
    ids=["array", "list", "table", "sparse", "1-D", "3-D", "string", "none"],
)
def test_arrays_tables_and_sparse_matrices_are_not_sliceable(rows):
    assert not is_sliceable(rows)


def test_sliceable_rows_are_checked_without_being_read():
    sliceable, estimator = SliceOnly(np.ones((3, 2))), BaseEstimator()
    assert validate_rows(estimator, sliceable, reset=True) is sliceable
    assert estimator.n_features_in_ == 2


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, np.bool_])
def test_sliceable_rows_may_hold_any_real_numbers(dtype):
    sliceable = SliceOnly(np.ones((3, 2), dtype=dtype))
    assert validate_rows(BaseEstimator(), sliceable, reset=True) is sliceable


@pytest.mark.parametrize("dtype", [np.complex128, "U3", object, "datetime64[s]"])
def test_sliceable_rows_without_real_numbers_are_refused(dtype):
    with pytest.raises(InputError, match="real numbers"):
        validate_rows(BaseEstimator(), SliceOnly(np.zeros((3, 2)).astype(dtype)), reset=True)


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_empty_rows_and_columns_are_refused(shape):
    with pytest.raises(InputError, match="minimum of 1 is required"):
        validate_rows(BaseEstimator(), SliceOnly(np.ones(shape)), reset=True)


def test_another_number_of_columns_is_refused():
    estimator = BaseEstimator()
    validate_rows(estimator, np.ones((3, 2)), reset=True)
    for rows in (SliceOnly(np.ones((3, 4))), np.ones((3, 4))):
        with pytest.raises(ValueError, match=r"4 features.*expecting 2"):
            validate_rows(estimator, rows, reset=False)


def test_values_are_not_checked_here():
    rows = np.array([[np.nan, np.inf]])
    assert_array_equal(validate_rows(BaseEstimator(), rows, reset=True), rows)


def test_an_array_is_not_copied():
    rows = np.ones((3, 2), dtype=np.float32)
    assert np.shares_memory(validate_rows(BaseEstimator(), rows, reset=True), rows)


def test_columns_without_names_are_called_by_number():
    estimator = BaseEstimator()
    validate_rows(estimator, np.ones((3, 2)), reset=True)
    assert column_namer(estimator)(1) == "1"


def test_columns_with_names_are_called_by_name():
    estimator = BaseEstimator()
    validate_rows(estimator, pd.DataFrame({"IR_108": [1.0], "VIS006": [2.0]}), reset=True)
    assert column_namer(estimator)(1) == "'VIS006'"


# Input that would be silently wrong

CLASSIFIERS = {
    "GPC": GPC(max_iter=2),
    "RFFGPC": RFFGPC(4, n_estimators=1, max_iter=2, random_state=0),
    "VFFGPC": VFFGPC(4, n_estimators=1, max_iter=2, random_state=0),
}
each_classifier = pytest.mark.parametrize("name", CLASSIFIERS)
each_fourier_classifier = pytest.mark.parametrize("name", ["RFFGPC", "VFFGPC"])
without_convergence = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def classifier(name, **params):
    return clone(CLASSIFIERS[name]).set_params(**params)


@pytest.fixture(scope="module")
def rows():
    X = np.random.default_rng(0).normal(size=(40, 3))
    return X, np.where(X[:, 0] + X[:, 1] > 0, "cloud", "clear")


def masked(values, n_masked):
    mask = np.zeros(np.shape(values), dtype=bool)
    mask.ravel()[:n_masked] = True
    return np.ma.masked_array(values, mask)


@without_convergence
@each_classifier
def test_masked_values_are_refused_wherever_they_are_passed(name, rows):
    X, y = rows
    fitted, weight = classifier(name).fit(X, y), np.ones(len(y))
    for call, found in [
        (lambda model: model.fit(masked(X, 5), y), "X has 5 of its 120 "),
        (lambda model: model.fit(SliceOnly(masked(X, 5)), y), "X has 5 of its 120 "),
        (lambda model: model.fit(X, masked(y, 2)), "y has 2 of its 40 "),
        (lambda model: model.fit(X, y, masked(weight, 1)), "sample_weight has 1 of its 40 "),
    ]:
        with pytest.raises(InputError, match=f"{found}values masked(.|\n)*Drop these rows"):
            call(classifier(name))
    for call in (
        fitted.predict,
        fitted.predict_proba,
        fitted.latent_mean_and_variance,
        lambda X: fitted.update(X, y),
        lambda X: fitted.predict(SliceOnly(X)),
        lambda X: fitted.predict(da.from_array(X, chunks=(40, 3))),
    ):
        with pytest.raises(InputError, match="X has 7 of its 120 values masked"):
            call(masked(X, 7))
    with pytest.raises(InputError, match="y has 2 of its 40 values masked"):
        fitted.update(X, masked(y, 2))
    with pytest.raises(InputError, match="sample_weight has 2 of its 40 values masked"):
        fitted.update(X, y, masked(weight, 2))


@without_convergence
@each_classifier
def test_a_masked_array_without_masked_values_is_an_array(name, rows):
    X, y = rows
    given = classifier(name).fit(masked(X, 0), masked(y, 0))
    expected = classifier(name).fit(X, y)
    assert_array_equal(given.predict_proba(masked(X, 0)), expected.predict_proba(X))


@pytest.mark.parametrize(
    ("of", "found"),
    [(0, "X has 5 of its 120"), (1, "y has 5 of its 40")],
)
def test_masked_values_in_chunks_are_refused(rows, of, found):
    arrays = [rows[0], rows[1] == "cloud"]
    arrays[of] = masked(arrays[of], 5)
    chunked = [da.from_array(array, chunks=40) for array in arrays]
    with pytest.raises(InputError, match=f"{found} values masked"):
        classifier("VFFGPC", solver="stochastic").fit(*chunked)


@each_classifier
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_filled", [1, 40], ids=["in one row", "in all rows"])
def test_the_fill_value_of_netcdf_is_never_learned_from(name, rows, dtype, n_filled):
    X, y = rows
    filled = X.astype(dtype)
    filled[:n_filled, 2] = 9.969209968386869e36
    with pytest.raises(InputError, match=r"column 2 .*9\.97e\+36\. Drop rows with fill values"):
        classifier(name).fit(filled, y)


@each_classifier
@pytest.mark.parametrize("factor", [np.nan, -1.0, np.inf, None, "heavy"])
def test_a_class_weight_that_is_no_weight_is_named(name, rows, factor):
    with pytest.raises(InputError, match=r"class_weight gives the class 'cloud' the weight"):
        classifier(name, class_weight={"clear": 1.0, "cloud": factor}).fit(*rows)


MISSING = {
    "None": None,
    "NaN": np.nan,
    "NA": pd.NA,
}


@each_classifier
@pytest.mark.parametrize("missing", MISSING.values(), ids=MISSING)
@pytest.mark.parametrize("kind", [list, lambda y: np.array(y, dtype=object), pd.Series])
def test_a_missing_label_is_refused(name, rows, missing, kind):
    y = rows[1].tolist()
    y[7] = missing
    with pytest.raises(InputError, match=r"Input y contains .*NaN.* Drop"):
        classifier(name).fit(rows[0], kind(y))


@each_fourier_classifier
@pytest.mark.parametrize(
    "groups",
    [
        ["a"] * 20 + [None] + ["b"] * 19,
        ["a"] * 20 + [np.nan] + ["b"] * 19,
        np.array(["a"] * 20 + [None] + ["b"] * 19, dtype=object),
        np.r_[np.zeros(20), np.nan, np.ones(19)],
        np.array(["2020-01-01"] * 20 + ["NaT"] + ["2020-01-02"] * 19, dtype="datetime64[D]"),
        pd.Series(["a"] * 20 + [pd.NA] + ["b"] * 19, dtype="string"),
    ],
    ids=["None", "NaN in text", "None in objects", "NaN", "NaT", "NA"],
)
def test_a_row_without_a_group_is_named(name, rows, groups):
    with pytest.raises(InputError, match=r"groups contains .*NaN.* in 1 of 40 rows.*row 20\."):
        classifier(name).fit(*rows, groups=groups)


def test_groups_of_text_and_numbers_are_refused(rows):
    with pytest.raises(InputError, match="groups holds text and numbers"):
        classifier("VFFGPC").fit(*rows, groups=["a", 1] * 20)


def test_a_row_without_a_group_is_named_in_chunks(rows):
    X, y, groups = (da.from_array(values, chunks=10) for values in (*rows, np.arange(40.0)))
    groups[27] = np.nan
    with pytest.raises(InputError, match=r"groups contains NaN.* in 1 of 10 rows.*row 27\."):
        classifier("VFFGPC", solver="stochastic").fit(X, y, groups=groups)


@without_convergence
@each_classifier
@pytest.mark.parametrize("weight", [1e200, 1e300, 1e308])
def test_weights_whose_sum_is_too_large_are_named(name, rows, weight):
    X, y = rows
    heavy = np.full(len(y), weight)
    with pytest.raises(InputError, match=r"weights of the rows are too large: up to 1e\+[23]0"):
        classifier(name).fit(X, y, heavy)
    with pytest.raises(InputError, match="weights of the rows are too large"):
        classifier(name, class_weight={"clear": weight, "cloud": weight}).fit(X, y)
    with pytest.raises(InputError, match="weights of the rows are too large"):
        classifier(name).fit(X, y).update(X, y, heavy)


@without_convergence
@each_fourier_classifier
@pytest.mark.parametrize("precision", ["single", "double"])
def test_weights_below_the_limit_are_fitted(name, rows, precision):
    X, y = rows
    fitted = classifier(name, precision=precision).fit(X, y, np.full(len(y), 2e28))
    assert np.all(np.isfinite(fitted.predict_proba(X)))


@each_fourier_classifier
@pytest.mark.parametrize(
    "size",
    [
        {"n_frequencies": 10**9},
        {"n_estimators": 10**9},
        {"n_estimators": 10**4, "n_frequencies": 10**4},
    ],
)
def test_a_model_too_large_for_memory_is_refused_before_it_is_made(name, rows, size):
    with pytest.raises(NotEnoughMemoryError, match=r"GiB \([\d,]+ bytes\).*available") as caught:
        classifier(name, **size).fit(*rows)
    assert isinstance(caught.value, InputError)
    for parameter, value in size.items():
        assert f"{parameter}={value}" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "module", "error"),
    [("VFFGPC", "ensemble", NotEnoughMemoryError), ("GPC", "exact", TooManyRowsError)],
)
@without_convergence
def test_memory_is_asked_for_each_class(name, module, error, rows, monkeypatch):
    X, y = rows
    many = np.arange(40) % 10
    model = classifier(name, **({} if name == "GPC" else {"n_frequencies": 40}))
    # Room for one latent function of 80 x 80 or 40 x 40 values, and not for ten.
    room = 8 * (80**2 * 15 + 40 * 3) if name == "VFFGPC" else 8 * 40**2 * 6
    monkeypatch.setattr(f"undulatus.gp.{module}.available_memory", lambda: float(room))
    model.fit(X, y)
    with pytest.raises(error):
        model.fit(X, many)
