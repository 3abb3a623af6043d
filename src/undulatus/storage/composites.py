"""Models made of models in a file: a scikit-learn Pipeline, a RegimeClassifier.

``CODECS`` lists every type of model that a file may hold.
"""

from __future__ import annotations

import math
import reprlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.storage import classifiers, schema, transformers
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
    find_codec,
    join_tensors,
    naming_part,
    require_fields,
    split_tensors,
)

# Pipelines: transformers, and one of our classifiers at the end


def _describe_pipeline(model: Any) -> tuple[Tensors, Header]:
    _require_codecs(model)
    _require_names([name for name, _ in model.steps])
    tensors, steps = {}, []
    # Tensors are named by the step's number: its name may hold a slash.
    for number, ((name, step), codecs) in enumerate(_with_codecs(model.steps)):
        described = step
        if not _is_passthrough(step):
            with naming_part(f"step {name!r}"):
                tensors[str(number)], described = describe_model(step, codecs)
        steps.append([name, described])
    _require_chain(model)
    wanted = model.transform_input
    header = {
        "steps": steps,
        "verbose": bool(model.verbose),
        "transform_input": None if wanted is None else [str(name) for name in wanted],
    }
    return join_tensors(tensors), header


def _build_pipeline(tensors: Stored, header: Header) -> Any:
    require_fields(header, schema.PipelineHeader)
    entries = header["steps"]
    _require_names([name for name, _ in entries])
    if not entries or _is_passthrough(entries[-1][1]):
        raise InvalidModelError("has no classifier as its last step.")
    numbers = [str(n) for n, (_, step) in enumerate(entries) if not _is_passthrough(step)]
    parts = split_tensors(tensors, numbers)
    steps = []
    for number, ((name, described), codecs) in enumerate(_with_codecs(entries)):
        step = described
        if not _is_passthrough(described):
            with naming_part(f"step {name!r}"):
                step = build_model(parts[str(number)], described, codecs)
        steps.append((name, step))
    model = Pipeline(steps, transform_input=header["transform_input"], verbose=header["verbose"])
    _require_chain(model)
    return model


def _with_codecs(steps: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Codec]]]:
    """Pair each step with the codecs it may have: transformers', and at the end classifiers'."""
    codecs = [transformers.CODECS] * (len(steps) - 1) + [classifiers.CODECS]
    return zip(steps, codecs, strict=True)


def _is_passthrough(step: Any) -> bool:
    return step is None or bool(step == "passthrough")


def _require_codecs(model: Any) -> None:
    if not model.steps:
        raise InputError("save_model cannot write a Pipeline without steps.")
    for (name, step), codecs in _with_codecs(model.steps):
        if codecs is classifiers.CODECS:
            find_codec(step, codecs, f" as the last step of a Pipeline, {name!r}")
        elif not _is_passthrough(step):
            find_codec(step, codecs, f" as step {name!r} of a Pipeline", ('"passthrough"',))


def _are_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _require_names(names: list[Any]) -> None:
    """Refuse step names that scikit-learn would refuse later, when the Pipeline is used."""
    taken = set(Pipeline([]).get_params(deep=False))
    if not _are_strings(names) or len({*names}) < len(names):
        raise InvalidModelError(
            f"has steps whose names are not strings, or not unique: {reprlib.repr(names)}."
        )
    if any("__" in name or name in taken for name in names):
        raise InvalidModelError(
            f"has steps with names that no step may have: {reprlib.repr(names)}."
        )


def _require_chain(model: Any) -> None:
    """Require that every step takes as many features as the one before it gives."""
    steps = [(name, step) for name, step in model.steps if not _is_passthrough(step)]
    for (name, step), (after, receiver) in pairwise(steps):
        given, taken = transformers.n_features_out(step), receiver.n_features_in_
        if given != taken:
            raise InvalidModelError(
                f"has step {name!r}, which gives {given} features, before {after!r}, "
                f"which takes {taken}."
            )


# RegimeClassifiers: the edges, and the classifier or Pipeline of each regime


def _describe_regimes(model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model, "estimators_")
    tensors, members = {}, []
    # Tensors are named by the regime's number: its name may hold a slash.
    for number, regime in enumerate(model.regimes_):
        with naming_part(f"regime {regime.name!r}"):
            tensors[str(number)], described = describe_model(
                model.estimators_[regime.name], PART_CODECS, f" in regime {regime.name!r}"
            )
            members.append(described)
    header = {
        "by": model.by,
        "blend": float(model.blend),
        "classes": encode_value(model.classes_),
        "regimes": [
            [regime.name, *map(repr, regime.edges), list(regime.features)]
            for regime in model.regimes_
        ],
        "members": members,
        "updates": [list(names) for names in getattr(model, "updates_", ())],
    }
    return join_tensors(tensors), header


def _build_regimes(tensors: Stored, header: Header) -> Any:
    require_fields(header, schema.Regimes)
    regimes = [
        Regime(name, _read_edge(low), _read_edge(high), tuple(features))
        for name, low, high, features in header["regimes"]
    ]
    estimators = {}
    for regime, own, described in _pair_parts(tensors, header, regimes):
        with naming_part(f"regime {regime.name!r}"):
            member = build_model(own, described, PART_CODECS)
            if _n_features_in(member) != len(regime.features or ()):
                raise InvalidModelError("names other features than its classifier has.")
        estimators[regime.name] = member
    model = RegimeClassifier.from_fitted(estimators, regimes, header["by"], float(header["blend"]))
    classes = decode_value(header["classes"])
    if classes.dtype != model.classes_.dtype or not np.array_equal(classes, model.classes_):
        raise InvalidModelError("has other classes than its classifiers.")
    updates = tuple(map(tuple, header.get("updates", ())))
    if updates:
        _require_updates(estimators, updates)
        model.updates_ = updates
    return model


def _read_edge(text: str) -> float:
    try:
        edge = float(text)
    except ValueError:
        edge = math.nan
    if repr(edge) != text or math.isnan(edge):
        raise InvalidModelError(f"has the edge {reprlib.repr(text)} of a regime.")
    return edge


def _pair_parts(
    tensors: Stored, header: Header, regimes: list[Regime]
) -> Iterator[tuple[Regime, Stored, Any]]:
    """Yield each regime with its tensors and the header of its classifier."""
    described = header["members"]
    # Up to schema 2 both were known by the regime's name.
    if isinstance(described, dict):
        keys: list[str] = [regime.name for regime in regimes]
        described = [described.get(key) for key in keys]
    else:
        keys = [str(number) for number in range(len(regimes))]
    if len(described) != len(regimes) or len(header["members"]) != len(regimes):
        raise InvalidModelError(
            f"has {len(regimes)} regimes and {len(header['members'])} classifiers."
        )
    parts = split_tensors(tensors, keys)
    yield from zip(regimes, (parts[key] for key in keys), described, strict=True)


def _require_updates(estimators: Any, updates: tuple[tuple[str, ...], ...]) -> None:
    """Require that each classifier holds the updates that the model says it has a part in."""
    for name, count in Counter(name for names in updates for name in names).items():
        if name not in estimators:
            raise InvalidModelError(f"has an update of the regime {name!r}, which it lacks.")
        member = estimators[name]
        last = member.steps[-1][1] if type(member) is Pipeline else member
        if len(getattr(last, "updates_", ())) < count:
            raise InvalidModelError(f"has {count} updates in regime {name!r}, which holds fewer.")


def _n_features_in(model: Any) -> int:
    # A Pipeline asks its first step, which may be "passthrough".
    if type(model) is Pipeline:
        return next(
            int(step.n_features_in_) for _, step in model.steps if not _is_passthrough(step)
        )
    return int(model.n_features_in_)


PART_CODECS: dict[str, Codec] = {
    **classifiers.CODECS,
    "Pipeline": Codec(Pipeline, _describe_pipeline, _build_pipeline),
}
"""What may be fitted in one regime."""

CODECS: dict[str, Codec] = {
    **PART_CODECS,
    "RegimeClassifier": Codec(RegimeClassifier, _describe_regimes, _build_regimes),
}
"""Every type of model that a file may hold."""
