"""A fitted model to one file and back: tensors, a JSON header, no code.

The header holds the type of the model, its parameters, classes and feature names, and the
versions of the package and of the schema. The tensors hold the rest, each with its SHA-256 (see
:mod:`undulatus._files`). ``docs/model-file.md`` describes the schema.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.storage.codec import InvalidModelError, build_model, describe_model

SCHEMA = 2
"""Version of what the header and tensors of a model hold ..."""

OLDEST_SCHEMA = 1
"""... and the first version that can be read."""

FORMAT = "undulatus-model"
"""Marks the file as one that holds a model."""


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file, whole or not at all.

    Takes GPC, RFFGPC, VFFGPC; a scikit-learn Pipeline that ends in one of them and whose other
    steps are StandardScaler, PCA, IncrementalPCA, SpectralPCA or ``"passthrough"``; and a
    RegimeClassifier of any of these. The file holds no code and loads on any machine; predictions
    after loading are bit-identical. A ``provenance_`` attribute, a dict of plain values that says
    what the model was fitted on, is saved too. A Pipeline's ``memory`` and the ``set_output`` of
    its steps are not.
    """
    # Imported late: scikit-learn's Pipeline loads much that no classifier needs.
    from undulatus.storage.composites import CODECS

    try:
        tensors, header = describe_model(model, CODECS)
    except InvalidModelError as error:
        raise InputError(
            f"The model cannot be saved, because it could not be loaded again: it {error}\n"
            f"Fit it again, all steps together and on rows that are not all equal."
        ) from error
    marks = {"format": FORMAT, "schema": SCHEMA, "package_version": version("undulatus")}
    provenance = getattr(model, "provenance_", None)
    if provenance is not None:
        marks["provenance"] = provenance
    write_tensors(path, tensors, {**marks, **header})


def load_model(path: str | os.PathLike[str]) -> Any:
    """Return the model that :func:`save_model` wrote, or raise a :class:`ModelFileError`."""
    from undulatus.storage.composites import CODECS

    tensors, header = read_tensors(path)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError(path, "is an undulatus file, but holds no model.")
    if header.get("schema") not in range(OLDEST_SCHEMA, SCHEMA + 1):
        raise ModelFileError(
            path,
            f"has schema {header.get('schema')!r}, but this version of undulatus reads schema "
            f"{OLDEST_SCHEMA} to {SCHEMA}. It was written by undulatus "
            f"{header.get('package_version')!r}: upgrade.",
        )
    try:
        model = build_model(tensors, header, CODECS)
        if "provenance" in header:
            model.provenance_ = dict(header["provenance"])
    except InvalidModelError as error:
        raise ModelFileError(path, str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ModelFileError(path, f"has a broken header ({error!r}).") from error
    return model
