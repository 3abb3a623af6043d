"""A RegimeClassifier in a file: its edges, and the classifier of each regime."""

from __future__ import annotations

from typing import Any

from sklearn.utils.validation import check_is_fitted

from undulatus.regimes import Regime, RegimeClassifier
from undulatus.storage import gaussian, pipelines
from undulatus.storage.kinds import Header, Kind, Misfit, Tensors, build, describe, within
from undulatus.storage.parts import join, split
from undulatus.storage.values import decode, encode

MEMBERS: dict[str, Kind] = {**gaussian.KINDS, **pipelines.KINDS}


def _describe(model: Any) -> tuple[Tensors, Header]:
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


def _build(tensors: Tensors, header: Header) -> Any:
    regimes = tuple(
        Regime(str(name), float(low), float(high), tuple(map(str, features)))
        for name, low, high, features in header["regimes"]
    )
    parts = split(tensors, [regime.name for regime in regimes])
    estimators = {}
    for regime in regimes:
        with within(f"regime {regime.name!r}"):
            member = build(parts[regime.name], header["members"][regime.name], MEMBERS)
            if pipelines.features_in(member) != len(regime.features or ()):
                raise Misfit("names other features than its classifier has.")
        estimators[regime.name] = member
    model = RegimeClassifier.from_fitted(
        estimators, regimes, str(header["by"]), float(header["blend"])
    )
    model.classes_ = decode(header["classes"])
    return model


KINDS = {"RegimeClassifier": Kind(RegimeClassifier, _describe, _build)}
