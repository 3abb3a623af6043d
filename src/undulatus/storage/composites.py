"""A scikit-learn Pipeline in a file: transformers in a row, and one of our classifiers.

A RegimeClassifier in a file: its edges, and the classifier of each regime.

Every kind of model that a file may hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.storage import classifiers, transformers
from undulatus.storage.codec import (
    Header,
    Kind,
    Misfit,
    Tensors,
    build,
    decode,
    describe,
    encode,
    join,
    require_kind,
    split,
    within,
)


def features_in(model: Any) -> int:
    """Return how many features a classifier takes, or a Pipeline of steps that may be idle."""
    if type(model) is Pipeline:
        return next(step.n_features_in_ for _, step in model.steps if not _is_idle(step))
    return model.n_features_in_


def _is_idle(step: Any) -> bool:
    return step is None or bool(step == "passthrough")


def _describe_pipeline(model: Any) -> tuple[Tensors, Header]:
    _require_kinds(model)
    _require_names([name for name, _ in model.steps])
    tensors, steps = {}, []
    # By number: a name may hold a slash.
    for number, ((name, step), kinds) in enumerate(_with_kinds(model.steps)):
        described = step
        if not _is_idle(step):
            with within(f"step {name!r}"):
                tensors[str(number)], described = describe(step, kinds)
        steps.append([name, described])
    _require_chain(model)
    wanted = model.transform_input
    header = {
        "steps": steps,
        "verbose": bool(model.verbose),
        "transform_input": None if wanted is None else [str(name) for name in wanted],
    }
    return join(tensors), header


def _build_pipeline(tensors: Tensors, header: Header) -> Any:
    entries = header["steps"]
    _require_names([name for name, _ in entries])
    if not entries or _is_idle(entries[-1][1]):
        raise Misfit("has no classifier as its last step.")
    busy = [str(number) for number, (_, step) in enumerate(entries) if not _is_idle(step)]
    parts = split(tensors, busy)
    steps = []
    for number, ((name, described), kinds) in enumerate(_with_kinds(entries)):
        step = described
        if not _is_idle(described):
            with within(f"step {name!r}"):
                step = build(parts[str(number)], described, kinds)
        steps.append((name, step))
    wanted, verbose = header["transform_input"], header["verbose"]
    if not isinstance(verbose, bool) or not (wanted is None or _are_strings(wanted)):
        raise Misfit(f"is verbose as {verbose!r}, or transforms {wanted!r}, which cannot be.")
    model = Pipeline(steps, transform_input=wanted, verbose=verbose)
    _require_chain(model)
    return model


def _with_kinds(steps: Sequence[Any]) -> Iterator[tuple[Any, dict[str, Kind]]]:
    """Pair every step with the kinds it may be of: transformers, and a classifier at the end."""
    kinds = [transformers.KINDS] * (len(steps) - 1) + [classifiers.KINDS]
    return zip(steps, kinds, strict=True)


def _require_kinds(model: Any) -> None:
    if not model.steps:
        raise InputError("save_model cannot write a Pipeline without steps.")
    for (name, step), kinds in _with_kinds(model.steps):
        if kinds is classifiers.KINDS:
            require_kind(step, kinds, f" as the last step of a Pipeline, {name!r}")
        elif not _is_idle(step):
            require_kind(step, kinds, f" as step {name!r} of a Pipeline", ('"passthrough"',))


def _are_strings(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _require_names(names: list[Any]) -> None:
    """Refuse names that scikit-learn would, when it came to use them."""
    taken = set(Pipeline([]).get_params(deep=False))
    if not _are_strings(names) or len({*names}) < len(names):
        raise Misfit(f"has steps whose names are not strings, or not unique: {names!r}.")
    if any("__" in name or name in taken for name in names):
        raise Misfit(f"has steps of names that no step may have: {names!r}.")


def _require_chain(model: Any) -> None:
    """Require that every step takes as many features as the one before it gives."""
    busy = [(name, step) for name, step in model.steps if not _is_idle(step)]
    for (name, step), (after, receiver) in pairwise(busy):
        given, due = transformers.features_out(step), receiver.n_features_in_
        if given != due:
            raise Misfit(
                f"has step {name!r}, which gives {given} features, before {after!r}, "
                f"which takes {due}."
            )


PIPELINES = {"Pipeline": Kind(Pipeline, _describe_pipeline, _build_pipeline)}

MEMBERS: dict[str, Kind] = {**classifiers.KINDS, **PIPELINES}


def _describe_regimes(model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model, "estimators_")
    tensors, members = {}, {}
    for name, member in model.estimators_.items():
        with within(f"regime {name!r}"):
            tensors[name], members[name] = describe(member, MEMBERS, f" in regime {name!r}")
    header = {
        "by": model.by,
        "blend": model.blend,
        "classes": encode(model.classes_),
        "regimes": [
            [regime.name, *map(repr, regime.edges), list(regime.features)]
            for regime in model.regimes_
        ],
        "members": members,
    }
    return join(tensors), header


def _build_regimes(tensors: Tensors, header: Header) -> Any:
    regimes = tuple(
        Regime(str(name), float(low), float(high), tuple(map(str, features)))
        for name, low, high, features in header["regimes"]
    )
    parts = split(tensors, [regime.name for regime in regimes])
    estimators = {}
    for regime in regimes:
        with within(f"regime {regime.name!r}"):
            member = build(parts[regime.name], header["members"][regime.name], MEMBERS)
            if features_in(member) != len(regime.features or ()):
                raise Misfit("names other features than its classifier has.")
        estimators[regime.name] = member
    model = RegimeClassifier.from_fitted(
        estimators, regimes, str(header["by"]), float(header["blend"])
    )
    model.classes_ = decode(header["classes"])
    return model


REGIMES = {"RegimeClassifier": Kind(RegimeClassifier, _describe_regimes, _build_regimes)}

MODELS: dict[str, Kind] = {**classifiers.KINDS, **PIPELINES, **REGIMES}
