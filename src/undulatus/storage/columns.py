"""Transformers of tables in a file: columns apart, categories, and values that are missing.

They are restored by scikit-learn's own ``fit`` of one row, after which what the file holds takes
the place of what that row gave: so no attribute that only scikit-learn knows is in a file.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder
from sklearn.utils.validation import check_is_fitted

from undulatus.storage import schema, transformers
from undulatus.storage.codec import (
    Codec,
    Header,
    InvalidModelError,
    Stored,
    Tensors,
    build_model,
    decode_value,
    describe_model,
    encode_value,
    join_tensors,
    list_feature_names,
    naming_part,
    require_fields,
    restore_feature_names,
    restore_params,
    split_tensors,
)

NOT_TRANSFORMED = ("drop", "passthrough")
"""What stands for a transformer that there is none."""

REMAINDER = "remainder"
"""The part of a ColumnTransformer that takes all other columns."""

LARGEST = transformers.LARGEST["float64"]
"""Largest number that takes the place of a missing one, or that weighs columns."""

FLOATS = {"float64": np.float64, "float32": np.float32}
"""Types of numbers that an encoder gives."""


def n_features_out(model: Any) -> int:
    """Return how many features a transformer gives."""
    if isinstance(model, (ColumnTransformer, OneHotEncoder, SimpleImputer)):
        return len(model.get_feature_names_out())
    return transformers.n_features_out(model)


def _describe_params(model: Any, *besides: str) -> Header:
    params = model.get_params(deep=False)
    return {name: encode_value(own) for name, own in params.items() if name not in besides}


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and value != value


# SimpleImputer


def _describe_imputer(model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model)
    if model.add_indicator:
        raise InvalidModelError("has add_indicator=True, which a model file has no place for.")
    header = {
        "params": _describe_params(model, "missing_values"),
        # NaN, of a feature without values, is null.
        "statistics": [None if _is_nan(own) else own for own in model.statistics_.tolist()],
        "kept_as": model.statistics_.dtype.name,
        "fitted_on": model._fit_dtype.name,
        "feature_names": list_feature_names(model),
    }
    # NaN is what JSON has no word for, and scikit-learn's own mark of what is missing.
    if not _is_nan(model.missing_values):
        header["missing_values"] = encode_value(model.missing_values)
    return {}, header


def _build_imputer(tensors: Stored, header: Header) -> Any:
    _require_no_tensors(tensors)
    require_fields(header, schema.Imputer)
    params = dict(header["params"])
    if "missing_values" in params or params.get("add_indicator") is not False:
        raise InvalidModelError("has a wrong parameter.")
    model = restore_params(SimpleImputer, params)
    model.missing_values = decode_value(header.get("missing_values", float("nan")))
    given, numeric = header["statistics"], header["fitted_on"] != "object"
    if not given or any(isinstance(own, str) == numeric for own in given if own is not None):
        raise InvalidModelError(f"holds the statistics {reprlib.repr(given)}.")
    if any(abs(own) > LARGEST for own in given if isinstance(own, (int, float))):
        raise InvalidModelError(f"holds the statistics {reprlib.repr(given)}, which are enormous.")
    row = [(0.0 if numeric else "") if own is None else own for own in given]
    _fit_one_row(model, np.array([row], dtype=header["fitted_on"]))
    values = [math.nan if own is None else own for own in given]
    model.statistics_ = np.array(values, dtype=header["kept_as"])
    restore_feature_names(model, header["feature_names"])
    return model


# OneHotEncoder


def _describe_encoder(model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model)
    if model.min_frequency is not None or model.max_categories is not None:
        raise InvalidModelError("has infrequent categories, which a model file has no place for.")
    if np.dtype(model.dtype).name not in FLOATS:
        raise InvalidModelError(
            f"gives {np.dtype(model.dtype)}, but {' or '.join(FLOATS)} is due."
        )
    if any(value is None or _is_nan(value) for own in model.categories_ for value in own.tolist()):
        raise InvalidModelError("has a category that is NaN or None: impute it before.")
    return {}, {
        "params": _describe_params(model, "categories", "dtype"),
        "automatic": isinstance(model.categories, str),
        "dtype": np.dtype(model.dtype).name,
        "categories": [encode_value(own) for own in model.categories_],
        "feature_names": list_feature_names(model),
    }


def _build_encoder(tensors: Stored, header: Header) -> Any:
    _require_no_tensors(tensors)
    require_fields(header, schema.Encoder)
    params = header["params"]
    if {"categories", "dtype"} & set(params) or params.get("min_frequency", 1) is not None:
        raise InvalidModelError("has a wrong parameter.")
    model = restore_params(OneHotEncoder, params)
    if model.max_categories is not None:
        raise InvalidModelError("has infrequent categories.")
    model.dtype = FLOATS[header["dtype"]]
    categories = [decode_value(own) for own in header["categories"]]
    for own in categories:
        if own.ndim != 1 or not own.size or len(set(own.tolist())) < own.size:
            raise InvalidModelError("holds categories that are none, or some of them twice.")
    model.categories = categories
    first = np.array([own.tolist()[0] for own in categories], dtype=object)
    if all(own.dtype.kind in "fiu" for own in categories):
        first = first.astype(np.result_type(*categories))
    _fit_one_row(model, first[None])
    model.categories_ = categories
    if header["automatic"]:
        model.categories = "auto"
    restore_feature_names(model, header["feature_names"])
    return model


# ColumnTransformer, and Pipelines of transformers in it


def _describe_columns(model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model)
    if model.sparse_output_:
        raise InvalidModelError("gives sparse matrices: set sparse_threshold=0.")
    fitted = {name: part for name, part, _ in model.transformers_}
    names = list_feature_names(model)
    tensors, parts = {}, []
    for number, (name, part, _) in enumerate(model.transformers):
        columns = model._transformer_to_input_indices[name]
        chosen = [int(i) if names is None else names[i] for i in columns]
        with naming_part(f"transformer {name!r}"):
            tensors[str(number)], described = _describe_part(part, fitted.get(name), len(chosen))
        parts.append([name, chosen, described])
    with naming_part(f"transformer {REMAINDER!r}"):
        left = len(model._transformer_to_input_indices.get(REMAINDER, ()))
        tensors[REMAINDER], described = _describe_part(
            model.remainder, fitted.get(REMAINDER), left
        )
    header = {
        "params": _describe_params(model, "transformers", REMAINDER),
        "transformers": parts,
        REMAINDER: described,
        "n_features": int(model.n_features_in_),
        "feature_names": names,
    }
    return join_tensors(tensors), header


def _describe_part(part: Any, fitted: Any, n_columns: int) -> tuple[Tensors, Any]:
    if isinstance(part, str) or not n_columns:
        return {}, part if isinstance(part, str) else "drop"
    return describe_model(fitted, PART_CODECS, " in a ColumnTransformer")


def _build_columns(tensors: Stored, header: Header) -> Any:
    require_fields(header, schema.Columns)
    names, n = header["feature_names"], header["n_features"]
    entries = header["transformers"]
    if {"transformers", REMAINDER} & set(header["params"]):
        raise InvalidModelError("has a wrong parameter.")
    known = range(n) if names is None else names
    if names is not None and (len(names) != n or len({*names}) < n):
        raise InvalidModelError(f"names {len(names)} features, but has {n}, or one twice.")
    stored = split_tensors(tensors, [*map(str, range(len(entries))), REMAINDER])
    fitted = []
    for number, (name, columns, described) in enumerate(entries):
        if any(type(own) is not (int if names is None else str) for own in columns) or any(
            own not in known for own in columns
        ):
            raise InvalidModelError(f"has columns that it lacks: {reprlib.repr(columns)}.")
        with naming_part(f"transformer {name!r}"):
            part = _build_part(stored[str(number)], described)
            _require_width(part, len(columns))
        fitted.append((name, part, list(columns)))
    used = {own for _, _, columns in fitted for own in columns}
    remainder = _build_part(stored[REMAINDER], header[REMAINDER])
    _require_width(remainder, len([own for own in known if own not in used]))
    parts = [*fitted, (REMAINDER, remainder, [own for own in known if own not in used])]
    model = restore_params(ColumnTransformer, header["params"], {"transformers": []})
    model.transformers = [(name, _frozen(part), columns) for name, part, columns in fitted]
    model.remainder = _frozen(remainder)
    for weight in (model.transformer_weights or {}).values():
        if type(weight) not in (int, float) or not abs(weight) <= LARGEST:
            raise InvalidModelError(f"weighs columns by {reprlib.repr(weight)}.")
    _fit_one_row(model, _example(parts, known, names))
    model.sparse_output_ = False
    model.transformers_ = [
        (name, getattr(part, "estimator", part), columns)
        for name, part, columns in model.transformers_
    ]
    model.transformers = [(name, _unfitted(part), columns) for name, part, columns in fitted]
    model.remainder = _unfitted(remainder)
    return model


def _build_part(stored: Stored, described: Any) -> Any:
    if isinstance(described, str):
        if described not in NOT_TRANSFORMED or stored:
            raise InvalidModelError(f"holds {reprlib.repr(described)}, which is no transformer.")
        return described
    return build_model(stored, described, PART_CODECS)


def _require_width(part: Any, columns: int) -> None:
    if not isinstance(part, str) and part.n_features_in_ != columns:
        raise InvalidModelError(f"takes {part.n_features_in_} features, but has {columns}.")


def _frozen(part: Any) -> Any:
    return part if isinstance(part, str) else FrozenEstimator(part)


def _unfitted(part: Any) -> Any:
    return part if isinstance(part, str) else clone(part)


def _example(parts: Sequence[Any], known: Sequence[Any], names: list[str] | None) -> Any:
    """Return one row that every part can transform, a table if features have names."""
    row = dict.fromkeys(known, 0.0)
    for _, part, columns in parts:
        for step in [] if isinstance(part, str) else _steps(part):
            if isinstance(step, OneHotEncoder):
                values = [own.tolist()[0] for own in step.categories_]
                row |= zip(columns, values, strict=True)
                break
            if isinstance(step, SimpleImputer) and step._fit_dtype.kind == "O":
                row |= dict.fromkeys(columns, "")
    values = list(row.values())
    if names is None:
        text = any(isinstance(value, str) for value in values)
        return np.array([values], dtype=object if text else np.float64)
    import pandas as pd

    return pd.DataFrame([values], columns=names)


def _steps(part: Any) -> Iterator[Any]:
    yield from [step for _, step in part.steps] if isinstance(part, Pipeline) else [part]


def _describe_steps(model: Any) -> tuple[Tensors, Header]:
    tensors, steps = {}, []
    for number, (name, step) in enumerate(model.steps):
        with naming_part(f"step {name!r}"):
            tensors[str(number)], described = describe_model(step, CODECS, " in a Pipeline there")
        steps.append([name, described])
    return join_tensors(tensors), {"steps": steps}


def _build_steps(tensors: Stored, header: Header) -> Any:
    require_fields(header, schema.Steps)
    entries = header["steps"]
    names = [name for name, _ in entries]
    if not names or len({*names}) < len(names) or any("__" in name for name in names):
        raise InvalidModelError(f"has steps with the names {reprlib.repr(names)}.")
    stored = split_tensors(tensors, [str(number) for number in range(len(entries))])
    steps: list[tuple[str, Any]] = []
    for number, (name, described) in enumerate(entries):
        with naming_part(f"step {name!r}"):
            step = build_model(stored[str(number)], described, CODECS)
        if steps:
            _require_width(step, n_features_out(steps[-1][1]))
        steps.append((name, step))
    return Pipeline(steps)


def _fit_one_row(model: Any, row: Any) -> None:
    try:
        with np.errstate(all="ignore"):
            model.fit(row)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(f"does not take rows as it should: {error}") from error


def _require_no_tensors(tensors: Stored) -> None:
    if tensors:
        raise InvalidModelError(f"holds unexpected tensors: {', '.join(sorted(tensors)[:5])}.")


_OWN = {
    "SimpleImputer": Codec(SimpleImputer, _describe_imputer, _build_imputer),
    "OneHotEncoder": Codec(OneHotEncoder, _describe_encoder, _build_encoder),
}

CODECS: dict[str, Codec] = {**transformers.CODECS, **_OWN}
"""Transformers of all columns."""

PART_CODECS = {**CODECS, "Pipeline": Codec(Pipeline, _describe_steps, _build_steps)}
"""What may transform some columns."""

STEP_CODECS = {
    **CODECS,
    "ColumnTransformer": Codec(ColumnTransformer, _describe_columns, _build_columns),
}
"""What may be a step of a Pipeline before its classifier."""
