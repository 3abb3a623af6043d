"""Many classes in scenes and spectra: which variable holds the true ones, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.products.provenance import Provenance
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TrueClasses:
    """The true class of each pixel or spectrum.

    ``codes`` has the shape of the variable: the place of the class in a model's ``classes_``, and
    -1 where it is missing. ``names`` are those of the classes, for tables.
    """

    codes: Array
    names: tuple[str, ...]


def has_many_classes(model: Any) -> bool:
    """Return whether a fitted model has more than two classes."""
    return len(model.classes_) > 2


def find_label(model: Any, dataset: xr.Dataset, given: str | None) -> str:
    """Return the variable with the true classes: as given, or as the model remembers."""
    label = given or Provenance.of(model).label
    if label is None:
        raise SceneError(
            f"The model has {len(model.classes_)} classes, but does not say which variable it "
            f"learned them from. Name it (--label, in Python label=...)."
        )
    if label not in dataset:
        raise SceneError(
            f"There is no {label!r} to score against. Found: "
            f"{', '.join(map(str, dataset.data_vars))}. Add it, or name another (--label, in "
            f"Python label=...)."
        )
    return label


def read_classes(variable: xr.DataArray, classes: Array) -> TrueClasses:
    """Return the true classes that a variable holds, as numbers or as names.

    A model's classes are values of the variable, or the names that its ``flag_meanings`` give to
    its ``flag_values``. NaN, 255 and the variable's ``_FillValue`` are missing; any other value
    that is not a class of the model is an error.
    """
    values, wanted = np.asarray(variable.values), np.asarray(classes).tolist()
    meanings = _meanings(variable)
    found = [value for value in np.unique(values).tolist() if not _is_missing(value, variable)]
    by_name = bool(found) and not any(value in wanted for value in found)
    places = {value: meanings.get(value) if by_name else value for value in found}
    strange = [value for value, place in places.items() if place not in wanted]
    if strange:
        raise SceneError(
            f"{variable.name!r} has values that are not among the model's classes: "
            f"{', '.join(map(str, strange[:6]))}.\n  classes: {', '.join(map(str, wanted))}\n"
            f"Set them to {MISSING_CODE} (missing), or name another variable (--label, in Python "
            f"label=...)."
        )
    codes = np.full(values.shape, -1, dtype=np.int64)
    for value, place in places.items():
        codes[values == value] = wanted.index(place)
    return TrueClasses(codes, tuple(str(meanings.get(label, label)) for label in wanted))


def _meanings(variable: xr.DataArray) -> dict[Any, str]:
    """Return the names of values, by CF's ``flag_values`` and ``flag_meanings``."""
    names = str(variable.attrs.get("flag_meanings", "")).split()
    values = np.atleast_1d(variable.attrs.get("flag_values", []))
    return dict(zip(values.tolist(), names, strict=False))


def _is_missing(value: Any, variable: xr.DataArray) -> bool:
    # NaN alone differs from itself.
    return bool(value != value) or value in (MISSING_CODE, variable.attrs.get("_FillValue"))
