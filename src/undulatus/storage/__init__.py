"""A fitted model to one file and back: tensors, a JSON header, no code.

The header holds the kind of the model, its parameters, classes, feature names, the
version of the package and of this schema; the tensors hold the rest, each with
its SHA-256 (see :mod:`undulatus._files`). ``docs/model-file.md`` describes the schema.
"""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

from undulatus._files import read_tensors, write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.storage.codec import Misfit, build, describe

SCHEMA = 1

FORMAT = "undulatus-model"


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file, whole or not at all.

    Takes GPC, RFFGPC, VFFGPC; a scikit-learn Pipeline that ends in one of them and whose other
    steps are StandardScaler, PCA, IncrementalPCA, SpectralPCA or ``"passthrough"``; and a
    RegimeClassifier of any of these. The file holds no code and loads on any machine; predictions
    after loading are bit-identical. A ``provenance_`` attribute, a dict of plain values that says
    what the model was fitted on, is kept with it. A Pipeline's ``memory``, and what
    ``set_output`` asked of its steps, are not.
    """
    # Only now: with scikit-learn's Pipeline comes much that no classifier needs.
    from undulatus.storage.composites import MODELS

    try:
        tensors, header = describe(model, MODELS)
    except Misfit as error:
        raise InputError(
            f"The model cannot be saved, for it could not be loaded: it {error}\n"
            f"Fit it anew, as a whole and on rows that differ."
        ) from error
    marks = {"format": FORMAT, "schema": SCHEMA, "package_version": version("undulatus")}
    provenance = getattr(model, "provenance_", None)
    if provenance is not None:
        marks["provenance"] = provenance
    write_tensors(path, tensors, {**marks, **header})


def load_model(path: str | os.PathLike[str]) -> Any:
    """Return the model that :func:`save_model` wrote, or raise a :class:`ModelFileError`."""
    from undulatus.storage.composites import MODELS

    tensors, header = read_tensors(path)
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ModelFileError(path, "is an undulatus file, but holds no model.")
    if header.get("schema") != SCHEMA:
        raise ModelFileError(
            path,
            f"has schema {header.get('schema')!r}, but this version of undulatus reads schema "
            f"{SCHEMA}. It was written by undulatus {header.get('package_version')!r}: upgrade.",
        )
    try:
        model = build(tensors, header, MODELS)
        if "provenance" in header:
            model.provenance_ = dict(header["provenance"])
    except Misfit as error:
        raise ModelFileError(path, str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ModelFileError(path, f"has a broken header ({error!r}).") from error
    return model
