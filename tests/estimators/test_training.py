"""What counts as rows, what they are checked for, and what their columns are called."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix
from sklearn.base import BaseEstimator

from undulatus.errors import InputError
from undulatus.estimators.training import column_namer, is_sliceable, validate_rows


class Shelf:
    """Rows that can only be sliced."""

    def __init__(self, rows):
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("the rows were asked for all at once")

    def __getitem__(self, key):
        return self._rows[key]


def test_something_with_a_shape_a_dtype_and_slices_is_sliceable():
    assert is_sliceable(Shelf(np.ones((3, 2))))


@pytest.mark.parametrize(
    "rows",
    [
        np.ones((3, 2)),
        [[1.0, 2.0]],
        pd.DataFrame({"a": [1.0]}),
        csr_matrix(np.eye(2)),
        Shelf(np.ones(3)),
        Shelf(np.ones((2, 2, 2))),
        "rows",
        None,
    ],
    ids=["array", "list", "table", "sparse", "flat", "cube", "string", "none"],
)
def test_arrays_tables_and_sparse_matrices_are_not_sliceable_but_validated(rows):
    assert not is_sliceable(rows)


def test_sliceable_rows_are_checked_without_being_read():
    shelf, estimator = Shelf(np.ones((3, 2))), BaseEstimator()
    assert validate_rows(estimator, shelf, reset=True) is shelf
    assert estimator.n_features_in_ == 2


@pytest.mark.parametrize("dtype", [np.float32, np.int16, np.uint8, np.bool_])
def test_sliceable_rows_may_hold_any_real_numbers(dtype):
    shelf = Shelf(np.ones((3, 2), dtype=dtype))
    assert validate_rows(BaseEstimator(), shelf, reset=True) is shelf


@pytest.mark.parametrize("dtype", [np.complex128, "U3", object, "datetime64[s]"])
def test_sliceable_rows_that_hold_no_real_numbers_are_refused(dtype):
    with pytest.raises(InputError, match="real numbers"):
        validate_rows(BaseEstimator(), Shelf(np.zeros((3, 2)).astype(dtype)), reset=True)


@pytest.mark.parametrize("shape", [(0, 2), (3, 0)])
def test_no_rows_and_no_columns_are_refused(shape):
    with pytest.raises(InputError, match="minimum of 1 is required"):
        validate_rows(BaseEstimator(), Shelf(np.ones(shape)), reset=True)


def test_another_number_of_columns_is_refused():
    estimator = BaseEstimator()
    validate_rows(estimator, np.ones((3, 2)), reset=True)
    for rows in (Shelf(np.ones((3, 4))), np.ones((3, 4))):
        with pytest.raises(ValueError, match=r"4 features.*expecting 2"):
            validate_rows(estimator, rows, reset=False)


def test_values_are_left_for_the_blocks_to_read():
    rows = np.array([[np.nan, np.inf]])
    assert_array_equal(validate_rows(BaseEstimator(), rows, reset=True), rows)


def test_an_array_is_not_copied():
    rows = np.ones((3, 2), dtype=np.float32)
    assert np.shares_memory(validate_rows(BaseEstimator(), rows, reset=True), rows)


def test_columns_without_names_go_by_their_number():
    estimator = BaseEstimator()
    validate_rows(estimator, np.ones((3, 2)), reset=True)
    assert column_namer(estimator)(1) == "1"


def test_columns_with_names_go_by_them():
    estimator = BaseEstimator()
    validate_rows(estimator, pd.DataFrame({"IR_108": [1.0], "VIS006": [2.0]}), reset=True)
    assert column_namer(estimator)(1) == "'VIS006'"
