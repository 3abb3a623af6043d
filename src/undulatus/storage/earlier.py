"""Headers and tensors of model files up to schema 3, in the names of this version."""

from __future__ import annotations

from typing import Any, TypeVar

from undulatus.storage.codec import Header

Value = TypeVar("Value")

LAST_SCHEMA = 3
"""The last schema whose files are renamed here."""

_FIELDS = {
    "committee": "estimators",
    "spread": "taper",
    "level": "prior_mean",
    "level_": "prior_mean_",
    "bound_": "lower_bound_",
    "held_back_nll": "validation_nll",
}
"""Fields of a classifier, of its estimators, and of its report."""

_PARAMETERS = {
    "n_members": "n_estimators",
    "spread": "taper",
    "frequencies": "init_frequencies",
}

_TENSORS = {"bound_history": "lower_bounds"}
"""Last parts of the names of tensors."""


def rename_fields(header: Header) -> Header:
    """Return the header of a model, whatever it holds, with the fields of this version."""
    renamed: Header = _renamed(header, _FIELDS)
    return renamed


def rename_tensors(tensors: dict[str, Value]) -> dict[str, Value]:
    """Return the tensors of a model with the names of this version."""
    found = {}
    for name, tensor in tensors.items():
        path, slash, last = name.rpartition("/")
        found[path + slash + _TENSORS.get(last, last)] = tensor
    return found


def _renamed(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, list):
        return [_renamed(item, names) for item in value]
    if not isinstance(value, dict):
        return value
    # Classifiers of regimes were known by the regimes' names, which are the user's.
    return {
        names.get(key, key): {own: _renamed(item, _FIELDS) for own, item in part.items()}
        if key == "members" and isinstance(part, dict)
        else _renamed(part, _PARAMETERS if key == "params" else names)
        for key, part in value.items()
    }
