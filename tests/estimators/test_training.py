"""Rows that users pass: which can be sliced, how they are checked, how columns are named."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator

from undulatus.errors import InputError
from undulatus.estimators.training import column_namer, is_sliceable, validate_rows


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
