"""Errors that users can correct."""

import pickle

import numpy as np
import pytest

from undulatus import errors
from undulatus.errors import (
    DamagedFileError,
    DatasetError,
    InputError,
    MissingBandsError,
    ModelFileError,
    NotEnoughMemoryError,
    NotFiniteError,
    NotRealNumbersError,
    NumericalError,
    OutsideTrainingError,
    PhaseTooLargeError,
    SceneError,
    TooManyRowsError,
    UndulatusError,
    as_input_errors,
)

ERRORS = [
    InputError("Rescale the column."),
    PhaseTooLargeError(3, "'BT9'", 1e9),
    NotFiniteError("NaN", 3, "'BT9'"),
    NumericalError(40),
    TooManyRowsError(10, 1e12, 1e9),
    NotEnoughMemoryError("VFFGPC", 1e12, 1e9, "Ask for fewer frequencies."),
    ModelFileError("day.undulatus", "is not a model file."),
    SceneError("map.nc exists already."),
    DamagedFileError("image.nc is cut short."),
    NotRealNumbersError("IR_108", np.dtype(object)),
    DatasetError("The index does not answer."),
    MissingBandsError("msg4.nc", "day.undulatus", ["IR_016"]),
    OutsideTrainingError(60, 80, ["VIS006: median 0.08"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_can_be_sent_from_another_process(error):
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_every_error_is_listed_above():
    listed = {type(error) for error in ERRORS} | {UndulatusError}
    defined = {value for value in vars(errors).values() if isinstance(value, type)}
    assert {kind for kind in defined if issubclass(kind, Exception)} == listed


def test_a_value_error_becomes_an_input_error_that_names_the_parameter():
    with pytest.raises(InputError, match=r"^kernel: unknown$"), as_input_errors("kernel"):
        raise ValueError("unknown")
    with pytest.raises(NumericalError), as_input_errors("kernel"):
        raise NumericalError(3)
