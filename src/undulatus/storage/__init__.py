"""A fitted model to one file and back: tensors, a JSON header, no code.

The header holds the type of the model, its parameters, classes and feature names, and the
versions of the package and of the schema. The tensors hold the rest, each with its SHA-256 (see
:mod:`undulatus._files`). ``docs/reference/model-file.md`` describes the schema.
"""

from __future__ import annotations

import os
import reprlib
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from undulatus._files import open_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.storage import earlier, schema
from undulatus.storage.codec import (
    Header,
    InvalidModelError,
    Tensors,
    build_model,
    describe_model,
    require_fields,
)

SCHEMA = 4
"""Version of what the header and tensors of a model hold ..."""

OLDEST_SCHEMA = 1
"""... and the first version that can be read."""

FORMAT = "undulatus-model"
"""Marks the file as one that holds a model."""

FAULTS = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    ArithmeticError,
    RecursionError,
)
"""Errors of a header that no check foresaw."""


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file, atomically.

    Takes GPC, RFFGPC, VFFGPC; a scikit-learn Pipeline that ends in one of them and whose other
    steps are StandardScaler, PCA, IncrementalPCA, SpectralPCA, SimpleImputer, OneHotEncoder, a
    ColumnTransformer of these (or of Pipelines of them) or ``"passthrough"``; and a
    RegimeClassifier of any of these. The file holds no code and loads on any machine; predictions
    after loading are bit-identical. A ``provenance_`` attribute, a dict of plain values that says
    what the model was fitted on, is saved too (tuples in it become lists). A Pipeline's ``memory``
    and the ``set_output`` of its steps are not. The file is read back before it gets its name: one
    that :func:`load_model` would refuse is not written.
    """
    # Imported late: scikit-learn's Pipeline loads much that no classifier needs.
    from undulatus.storage.composites import CODECS

    try:
        tensors, header = describe_model(model, CODECS)
    except InvalidModelError as error:
        raise _cannot_be_saved(str(error)) from error
    marks: Header = {"format": FORMAT, "schema": SCHEMA, "package_version": version("undulatus")}
    provenance = getattr(model, "provenance_", None)
    if provenance is not None:
        marks["provenance"] = _plain(provenance, "provenance_")
    # In this order: the header is read by people, too.
    write_tensors(path, tensors, {**marks, **header}, partial(_read_back, tensors, header, marks))


def _cannot_be_saved(reason: str) -> InputError:
    return InputError(
        f"The model cannot be saved, because it could not be loaded again: it {reason}\n"
        f"Fit it again, all steps together and on rows that are not all equal."
    )


def _read_back(tensors: Tensors, header: Header, marks: Header, unfinished: Path) -> None:
    """Raise an :class:`InputError` unless a file gives the model that it was written from."""
    from undulatus.storage.composites import CODECS

    try:
        model = load_model(unfinished)
    except ModelFileError as error:
        raise _cannot_be_saved(str(error).removeprefix(f"{unfinished}: ")) from error
    found, described = describe_model(model, CODECS)
    changed = [
        name
        for name in tensors
        if name not in found or not np.array_equal(found[name], tensors[name])
    ]
    changed += [name for name in header if described.get(name) != header[name]]
    if getattr(model, "provenance_", None) != marks.get("provenance"):
        changed.append("provenance_")
    if changed or set(found) != set(tensors):
        raise InputError(
            f"The model cannot be saved, because it would be another one when it is loaded: "
            f"{', '.join(changed[:5])} would change.\nUse labels, names and parameters that are "
            f"plain numbers and texts."
        )


def _plain(value: Any, name: str) -> Any:
    """Return a value of provenance as JSON has it; other types are refused by name."""
    if isinstance(value, dict):
        odd = [key for key in value if not isinstance(key, str)]
        if odd:
            raise InputError(
                f"{name} has the key {reprlib.repr(odd[0])}, but keys in a model file are texts. "
                f"Use str() of it."
            )
        return {str(key): _plain(item, f"{name}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{name}[{place}]") for place, item in enumerate(value)]
    if value is None or type(value) in (bool, int, str) or isinstance(value, float):
        if isinstance(value, float) and not np.isfinite(value):
            raise InputError(f"{name} is {value!r}, which no model file can hold. Use None.")
        return float(value) if isinstance(value, float) else value
    raise InputError(
        f"{name} is a {type(value).__name__}, but a model file holds plain values there: texts, "
        f"numbers, true and false, None, and lists and dicts of these. Convert it before saving "
        f"(numpy numbers and arrays by .tolist())."
    )


def load_model(path: str | os.PathLike[str]) -> Any:
    """Return the model that :func:`save_model` wrote, or raise a :class:`ModelFileError`.

    Every field of the file is compared with what it means before a tensor is read, and every
    tensor while it is read.
    """
    from undulatus.storage.composites import CODECS

    tensors, document = open_tensors(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ModelFileError(path, "is an undulatus file, but holds no model.")
    known = schema.Marks.__annotations__
    marks = {name: value for name, value in document.items() if name in known}
    header = {name: value for name, value in document.items() if name not in known}
    written = marks.get("schema")
    if type(written) is not int or not OLDEST_SCHEMA <= written <= SCHEMA:
        raise ModelFileError(
            path,
            f"has schema {reprlib.repr(written)}, but this version of undulatus reads schema "
            f"{OLDEST_SCHEMA} to {SCHEMA}. It was written by undulatus "
            f"{reprlib.repr(marks.get('package_version'))}: upgrade.",
        )
    if written <= earlier.LAST_SCHEMA:
        tensors, header = earlier.rename_tensors(tensors), earlier.rename_fields(header)
    try:
        require_fields(marks, schema.Marks)
        _require_provenance(marks.get("provenance", {}))
        model = build_model(tensors, header, CODECS)
    except ModelFileError:
        raise
    except (InvalidModelError, InputError) as error:
        raise ModelFileError(path, str(error)) from error
    except FAULTS as error:
        raise ModelFileError(path, f"has a broken header ({reprlib.repr(error)}).") from error
    if "provenance" in marks:
        model.provenance_ = marks["provenance"]
    return model


def _require_provenance(provenance: Header) -> None:
    known = schema.Provenance.__annotations__
    own = {name: value for name, value in provenance.items() if name in known}
    require_fields(own, schema.Provenance, "provenance")
