"""Errors that a user can correct; every message says how."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class UndulatusError(Exception):
    """The base of all errors that a user can correct."""

    def __reduce__(self) -> tuple[Any, ...]:
        # pickle would call the class with `args`, which is the message and not what `__init__`
        # takes: without this an error could not be sent from another process.
        return _restored, (type(self), self.args)


class InputError(UndulatusError, ValueError):
    """The data or a parameter cannot be used as given."""


class PhaseTooLargeError(InputError):
    """A value is so large that no digit of its cosines, or of distances to it, is correct."""

    def __init__(self, row: int, column: str, value: float) -> None:
        super().__init__(
            f"Row {row} is too far from the training data to be classified.\n"
            f"  largest value: {value:.6g} (standardised) in column {column}\n"
            f"Mask fill values first, rescale the column, or leave standardize=True."
        )


class NotFiniteError(InputError):
    """The data contain NaN or infinity."""

    def __init__(self, found: str, row: int, column: str) -> None:
        super().__init__(
            f"Input X contains {found}: first at row {row}, column {column}.\n"
            f"Drop or mask such rows before fitting or predicting."
        )


class NumericalError(UndulatusError, ArithmeticError):
    """A posterior could not be factorised even with the largest jitter."""

    def __init__(self, size: int) -> None:
        super().__init__(
            f"The {size} x {size} posterior precision is not positive definite, "
            f"even with the largest jitter.\n"
            f"Check the features for duplicated or enormous columns, "
            f'or fit with precision="double".'
        )


class TooManyRowsError(InputError, MemoryError):
    """An exact Gaussian process on this many rows would not fit in memory."""

    def __init__(self, rows: int, needed: float, available: float) -> None:
        super().__init__(
            f"GPC is exact and needs about {needed / 2**30:.1f} GiB for {rows} training rows, "
            f"but {available / 2**30:.1f} GiB of memory is available.\n"
            f"Fit on a subset, or use RFFGPC or VFFGPC, whose memory does not grow with the rows."
        )


class NotEnoughMemoryError(InputError, MemoryError):
    """A model as large as asked for would not fit in memory."""

    def __init__(self, model: str, needed: float, available: float, advice: str) -> None:
        super().__init__(
            f"{model} needs about {needed / 2**30:,.1f} GiB ({needed:,.0f} bytes), but "
            f"{available / 2**30:,.1f} GiB of memory is available.\n{advice}"
        )


class ModelFileError(UndulatusError, ValueError):
    """A model file cannot be read or written."""

    def __init__(self, path: object, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


class SceneError(InputError):
    """A scene, spectra, a map or an output file cannot be used or written as it is."""


class DamagedFileError(SceneError):
    """A file is damaged, cut short or incomplete: another copy of it may be sound."""


class NotRealNumbersError(SceneError):
    """A band or a coordinate holds text, objects or complex numbers."""

    def __init__(self, name: object, dtype: Any) -> None:
        held = "text" if dtype.kind in "UST" else dtype
        super().__init__(
            f"{name} holds {held}, which are not real numbers. Convert it (in Python "
            f'.astype("float32")); of complex numbers give the amplitudes.'
        )


class MissingBandsError(SceneError):
    """The scene lacks bands that the model was fitted on."""

    def __init__(
        self, scene: str, model: str, missing: Iterable[str], found: Iterable[str] = ()
    ) -> None:
        listed = f"  found: {', '.join(found)}\n" if found else ""
        super().__init__(
            f"{model} needs bands that {scene} does not have.\n"
            f"  missing: {', '.join(missing)}\n{listed}"
            f"Use a scene with these bands, name them (the descriptions of a GeoTIFF's bands), or "
            f"fit a new model without them."
        )


class OutsideTrainingError(SceneError):
    """Most pixels are unlike those that the model learned from."""

    def __init__(
        self, outside: int, looked_at: int, features: Iterable[str], *, of_map: bool = True
    ) -> None:
        listed = "".join(f"\n  {line}" for line in features)
        anyway = ", or map them all the same (--allow-outside, in Python allow_outside=True)"
        super().__init__(
            f"{outside / looked_at:.0%} of {looked_at:,} pixels looked at lie outside what the "
            f"model learned from: other units or scale, or other bands?{listed}\n"
            f"Give the values as in training{anyway if of_map else ''}."
        )


class DatasetError(UndulatusError):
    """A data set could not be fetched, or is not the expected one."""


def unreadable(path: object, error: Exception, remedy: str = "") -> SceneError:
    """Return the error of a file that cannot be read: damaged, unless the system says why."""
    by_system = isinstance(error, OSError) and (error.errno or 0) > 0
    kind = SceneError if by_system else DamagedFileError
    return kind(f"{path} cannot be read: {error}{remedy}")


def _restored(kind: type[UndulatusError], args: tuple[Any, ...]) -> UndulatusError:
    error = kind.__new__(kind)
    error.args = args
    return error


@contextmanager
def as_input_errors(parameter: str = "") -> Iterator[None]:
    """Turn a ``ValueError`` about input into an :class:`InputError` that names the parameter."""
    try:
        yield
    except UndulatusError:
        raise
    except ValueError as error:
        raise InputError(f"{parameter}: {error}" if parameter else str(error)) from error
