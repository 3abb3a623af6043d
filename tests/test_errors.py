"""Errors that users can mend."""

import pickle

import pytest

from undulatus.errors import (
    InputError,
    MissingBandsError,
    ModelFileError,
    NotFiniteError,
    NumericalError,
    PhaseTooLargeError,
    TooManyRowsError,
)

ERRORS = [
    InputError("Rescale the column."),
    PhaseTooLargeError(3, "'BT9'", 1e9),
    NotFiniteError("NaN", 3, "'BT9'"),
    NumericalError(40),
    TooManyRowsError(10, 1e12, 1e9),
    ModelFileError("day.undulatus", "is not a model file."),
    MissingBandsError("msg4.nc", "day.undulatus", ["IR_016"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_from_another_process_as_it_was(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)
