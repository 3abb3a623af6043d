"""Classes in the labels of scenes and spectra: to learn from, and to score against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.products.legend import MOST_CLASSES, Legend, flag_names, legend_of_label
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


def require_dims(variable: xr.DataArray, *dims: str) -> xr.DataArray:
    """Return a label with dims in this order, or raise a :class:`SceneError` if it has others."""
    if set(variable.dims) != set(dims):
        raise SceneError(
            f"{variable.name!r} has the dimensions ({', '.join(map(str, variable.dims))}), but a "
            f"label has ({', '.join(dims)}). Give one with these, or name another (--label, in "
            f"Python label=...)."
        )
    return variable.transpose(*dims)


# To learn from


def label_legend(variable: xr.DataArray, values: Array) -> Legend:
    """Return the legend of a label: a class for each of its values but missing ones.

    Parameters
    ----------
    variable : DataArray
        The label, with its attributes. NaN, 255 and its ``_FillValue`` are missing.
    values : array
        Its values, in memory: whole numbers.
    """
    if values.dtype.kind not in "biuf":
        raise SceneError(
            f"{variable.name!r} has values of type {values.dtype}, but a label to learn from has "
            f"whole numbers. Number the classes, and name them by flag_values and flag_meanings."
        )
    found = [value for value in np.unique(values).tolist() if not _is_missing(value, variable)]
    odd = [value for value in found if not float(value).is_integer()]
    if odd:
        listed = ", ".join(f"{value:g}" for value in odd[:6])
        raise SceneError(
            f"{variable.name!r} has the values {listed}, but a label to learn from has whole "
            f"numbers, one for each class."
        )
    if not 2 <= len(found) <= MOST_CLASSES:
        listed = ", ".join(str(int(value)) for value in found[:6]) or "none"
        raise SceneError(
            f"{variable.name!r} has {len(found)} different values ({listed}"
            f"{', ...' * (len(found) > 6)}), but 2 to {MOST_CLASSES} classes can be learned. Use "
            f"more data, or name another label."
        )
    classes = tuple(int(value) for value in found)
    return legend_of_label(str(variable.name), variable.attrs, classes)


def label_shares(legend: Legend, labels: Array, where: str, remedy: str) -> tuple[float, ...]:
    """Return the share of each class in labels, (n,), missing ones left out.

    ``where`` and ``remedy`` are words of the error that names a class that has no label.
    """
    counts = [int(np.count_nonzero(labels == value)) for value in legend.classes]
    lacking = [name for name, count in zip(legend.names, counts, strict=True) if not count]
    if lacking:
        listed = ", ".join(f"{n} {count:,}" for n, count in zip(legend.names, counts, strict=True))
        raise SceneError(
            f"{where} of class {' or '.join(map(repr, lacking))} to learn from ({listed}). "
            f"{remedy}, or set the labels of {'this class' if len(lacking) == 1 else 'these'} to "
            f"{MISSING_CODE} (missing)."
        )
    others = [count / sum(counts) for count in counts[1:]]
    return (1 - sum(others), *others)


# To score against


def is_scored_as_mask(model: Any) -> bool:
    """Return whether a fitted model is scored as one of two classes, the second of a mask.

    It is if its classes are 0 and 1, unless 0 is known to be cloud, or if they are names and one
    is known to be cloud. All others are scored class by class.
    """
    legend = Legend.of(model)
    if legend.classes == (0, 1):
        return legend.cloud_index != 0
    named = all(isinstance(value, str) for value in legend.classes)
    return len(legend.classes) == 2 and named and legend.cloud is not None


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


def require_mask(variable: xr.DataArray) -> None:
    """Raise a :class:`SceneError` unless a label has 0, 1 and missing values alone."""
    values = np.unique(np.asarray(variable.values)).tolist()
    found = [value for value in values if not _is_missing(value, variable)]
    if not set(found) <= {0, 1}:
        raise SceneError(
            f"{variable.name!r} has the values {', '.join(map(str, found[:6]))}, but a "
            f"mask has 0 (clear) and 1 (cloudy), and {MISSING_CODE} where it is missing: recode "
            f"it, or name another (--label, in Python label=...)."
        )


def read_classes(variable: xr.DataArray, classes: Array) -> TrueClasses:
    """Return the true classes that a variable holds, as numbers or as names.

    A model's classes are values of the variable, or the names that its ``flag_meanings`` give to
    its ``flag_values``. NaN, 255 and the variable's ``_FillValue`` are missing; any other value
    that is not a class of the model is an error.
    """
    values, wanted = np.asarray(variable.values), np.asarray(classes).tolist()
    meanings = flag_names(variable.attrs)
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


def _is_missing(value: Any, variable: xr.DataArray) -> bool:
    # NaN alone differs from itself.
    return bool(value != value) or value in (MISSING_CODE, variable.attrs.get("_FillValue"))
