"""A fitted model to one file and back: tensors, a JSON header, no code.

The header holds the kind of the model, its parameters, classes, feature names, the
version of the package and of this schema; the tensors hold the rest, each with
its SHA-256 (see :mod:`undulatus.tensorfile`). ``docs/model-file.md`` describes the schema.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError, ModelFileError
from undulatus.estimators import GPC, RFFGPC, VFFGPC
from undulatus.gp.blocks import Standardisation
from undulatus.gp.exact import ExactPosterior
from undulatus.gp.posterior import Posterior
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.tensorfile import read_tensors, write_tensors

Array = npt.NDArray[Any]

SCHEMA = 1
FORMAT = "undulatus-model"
REGIMES = "RegimeClassifier"

_SCALARS = ("signal_variance_", "lengthscale_", "bound_", "n_iter_", "fit_report_")


def save_model(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted classifier to one file, whole or not at all.

    Takes GPC, RFFGPC, VFFGPC, and a RegimeClassifier of them. The file holds no code and loads
    on any machine; predictions after loading are bit-identical. A ``provenance_`` attribute,
    a dict of plain values that says what the model was fitted on, is kept with it.
    """
    tensors, header = _describe(model)
    marks = {"format": FORMAT, "schema": SCHEMA, "package_version": version("undulatus")}
    provenance = getattr(model, "provenance_", None)
    if provenance is not None:
        marks["provenance"] = provenance
    write_tensors(path, tensors, {**marks, **header})


def load_model(path: str | os.PathLike[str]) -> Any:
    """Return the model that :func:`save_model` wrote, or raise a :class:`ModelFileError`."""
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
        model = _build(path, tensors, header)
        if "provenance" in header:
            model.provenance_ = dict(header["provenance"])
    except ModelFileError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ModelFileError(path, f"has a broken header ({error!r}).") from error
    return model


def _describe(model: Any) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the tensors of a model, and the part of the header that tells what they are."""
    if type(model) is RegimeClassifier:
        return _describe_regimes(model)
    kind = type(model).__name__
    if kind not in _LAYOUTS or type(model) is not _LAYOUTS[kind].model:
        raise InputError(
            f"save_model cannot write a {type(model).__module__}.{kind}; it takes a fitted "
            f"{', '.join(_LAYOUTS)}, or a RegimeClassifier of them."
        )
    check_is_fitted(model, "posterior_")
    layout = _LAYOUTS[kind]
    tensors = {
        "centre": model.standardisation_.centre,
        "scale": model.standardisation_.scale,
        "feature_quantiles": model.feature_quantiles_,
        "bound_history": model.bound_history_,
        **layout.tensors(model),
    }
    names = getattr(model, "feature_names_in_", None)
    header = {
        "kind": kind,
        "params": {name: _encode(value) for name, value in model.get_params(deep=False).items()},
        "classes": _encode(model.classes_),
        "feature_names": None if names is None else [str(name) for name in names],
        "n_features": model.n_features_in_,
        "prior_shift": model._prior_shift,
        "posterior": {name: getattr(model.posterior_, name) for name in layout.posterior_scalars},
        "fitted": {name: getattr(model, name) for name in _SCALARS},
    }
    return {name: np.asarray(array) for name, array in tensors.items()}, header


def _build(path: Any, tensors: dict[str, Array], header: dict[str, Any]) -> Any:
    if header["kind"] == REGIMES:
        return _build_regimes(path, tensors, header)
    if header["kind"] not in _LAYOUTS:
        raise ModelFileError(path, f"holds a {header['kind']!r}, which is unknown here.")
    layout = _LAYOUTS[header["kind"]]
    params = {name: _decode(value) for name, value in header["params"].items()}
    model = layout.model(**params)
    d = header["n_features"]
    shapes = {"centre": (d,), "scale": (d,), "feature_quantiles": (None, d)}
    _require_shapes(
        path, tensors, {**shapes, "bound_history": (None,), **layout.shapes(tensors, d)}
    )
    if not (tensors["scale"] > 0).all() or not header["fitted"]["signal_variance_"] > 0:
        raise ModelFileError(path, "holds a scale or signal variance that is not positive.")
    model.n_features_in_ = d
    if header["feature_names"] is not None:
        names = np.array(header["feature_names"], dtype=object)
        if names.shape != (d,):
            raise ModelFileError(path, f"names {len(names)} features, but has {d}.")
        model.feature_names_in_ = names
    model.classes_ = _decode(header["classes"])
    if model.classes_.shape != (2,):
        raise ModelFileError(path, f"holds {model.classes_.shape} classes where two are due.")
    model.standardisation_ = Standardisation(tensors["centre"], tensors["scale"])
    model.feature_quantiles_ = tensors["feature_quantiles"]
    model.bound_history_ = tensors["bound_history"]
    model._prior_shift = float(header["prior_shift"])
    for name in _SCALARS:
        setattr(model, name, header["fitted"][name])
    layout.restore(model, tensors, header["posterior"])
    return model


def _describe_regimes(model: Any) -> tuple[dict[str, Array], dict[str, Any]]:
    check_is_fitted(model, "estimators_")
    tensors, members = {}, {}
    for name, member in model.estimators_.items():
        its_tensors, members[name] = _describe(member)
        tensors.update({f"{name}/{key}": array for key, array in its_tensors.items()})
    header = {
        "kind": REGIMES,
        "by": model.by,
        "blend": model.blend,
        "classes": _encode(model.classes_),
        "regimes": [
            [regime.name, *map(repr, regime.edges), list(regime.features)]
            for regime in model.regimes_
        ],
        "members": members,
    }
    return tensors, header


def _build_regimes(path: Any, tensors: dict[str, Array], header: dict[str, Any]) -> Any:
    regimes = tuple(
        Regime(str(name), float(low), float(high), tuple(map(str, features)))
        for name, low, high, features in header["regimes"]
    )
    estimators = {}
    for regime in regimes:
        prefix = f"{regime.name}/"
        own = {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
        member = _build(path, own, header["members"][regime.name])
        if member.n_features_in_ != len(regime.features or ()):
            raise ModelFileError(path, f"names other features for {regime.name!r} than it has.")
        estimators[regime.name] = member
    known = tuple(f"{regime.name}/" for regime in regimes)
    if any(not key.startswith(known) for key in tensors):
        raise ModelFileError(path, "holds tensors that belong to no regime.")
    # The edges found in fit are as good a recipe for another fit as the ones asked for.
    recipe = {name: clone(member) for name, member in estimators.items()}
    model = RegimeClassifier(recipe, regimes, str(header["by"]), float(header["blend"]))
    model.classes_ = _decode(header["classes"])
    model.regimes_ = regimes
    model.estimators_ = estimators
    model.feature_names_in_ = model._columns()
    model.n_features_in_ = len(model.feature_names_in_)
    return model


def _require_shapes(
    path: Any, tensors: dict[str, Array], shapes: dict[str, tuple[int | None, ...]]
) -> None:
    if set(tensors) != set(shapes):
        odd = ", ".join(sorted(set(tensors) ^ set(shapes)))
        raise ModelFileError(path, f"lacks tensors or has others than its kind needs: {odd}.")
    for name, shape in shapes.items():
        found = tensors[name].shape
        fits = len(found) == len(shape) and all(
            due in (None, size) for due, size in zip(shape, found, strict=True)
        )
        if not fits or tensors[name].dtype != np.float64:
            raise ModelFileError(
                path, f"holds {name!r} as {tensors[name].dtype} {found}, where {shape} is due."
            )


@dataclass(frozen=True)
class _Layout:
    """How one kind of model is laid out in tensors."""

    model: Callable[..., Any]
    posterior_scalars: tuple[str, ...]
    tensors: Callable[[Any], dict[str, Array]]
    shapes: Callable[[dict[str, Array], int], dict[str, tuple[int | None, ...]]]
    restore: Callable[[Any, dict[str, Array], dict[str, float]], None]


def _fourier_tensors(model: Any) -> dict[str, Array]:
    return {
        "frequencies": model.frequencies_,
        "posterior_mean": model.posterior_.mean,
        "posterior_root": model.posterior_.root,
    }


def _fourier_shapes(tensors: dict[str, Array], d: int) -> dict[str, tuple[int | None, ...]]:
    k = 2 * len(tensors["frequencies"])
    return {"frequencies": (None, d), "posterior_mean": (k,), "posterior_root": (k, k)}


def _restore_fourier(model: Any, tensors: dict[str, Array], scalars: dict[str, float]) -> None:
    model.frequencies_ = tensors["frequencies"]
    model.posterior_ = Posterior(
        mean=tensors["posterior_mean"], root=tensors["posterior_root"], **scalars
    )


def _exact_tensors(model: Any) -> dict[str, Array]:
    posterior = model.posterior_
    return {
        "training": model.training_,
        "alpha": posterior.alpha,
        "roots": posterior.roots,
        "factor": posterior.factor,
    }


def _exact_shapes(tensors: dict[str, Array], d: int) -> dict[str, tuple[int | None, ...]]:
    n = len(tensors["training"])
    return {"training": (None, d), "alpha": (n,), "roots": (n,), "factor": (n, n)}


def _restore_exact(model: Any, tensors: dict[str, Array], scalars: dict[str, float]) -> None:
    model.training_ = tensors["training"]
    model.posterior_ = ExactPosterior(
        alpha=tensors["alpha"], roots=tensors["roots"], factor=tensors["factor"], **scalars
    )


def _fourier_layout(model: Callable[..., Any]) -> _Layout:
    scalars = ("log_determinant", "quadratic", "jitter")
    return _Layout(model, scalars, _fourier_tensors, _fourier_shapes, _restore_fourier)


_LAYOUTS = {
    "GPC": _Layout(GPC, ("jitter",), _exact_tensors, _exact_shapes, _restore_exact),
    "RFFGPC": _fourier_layout(RFFGPC),
    "VFFGPC": _fourier_layout(VFFGPC),
}


def _encode(value: Any) -> Any:
    """Return a JSON form of a parameter or of classes that :func:`_decode` undoes exactly."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return {"array": [value.item()], "dtype": value.dtype.str, "scalar": True}
    if isinstance(value, dict):
        return {"pairs": [[_encode(key), _encode(item)] for key, item in value.items()]}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.random.RandomState):
        return None  # A generator's state seeds further fits, not predictions.
    array = np.asarray(value)
    if array.dtype == object and all(isinstance(item, str) for item in array.ravel()):
        return {"array": array.tolist(), "dtype": "object"}
    if array.dtype.kind in "biufU":
        return {"array": array.tolist(), "dtype": array.dtype.str}
    raise InputError(
        f"A model file holds numbers, booleans and strings, but not {array.dtype} like {value!r}. "
        f"Convert the labels, or the parameter, before fitting."
    )


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {_decode(key): _decode(item) for key, item in value["pairs"]}
    try:
        dtype = np.dtype(value["dtype"])
    except SyntaxError as error:
        raise ValueError(f"dtype {value['dtype']!r} in the header") from error
    if dtype.kind not in "biufUO":
        raise ValueError(f"dtype {dtype} in the header")
    array = np.array(value["array"], dtype=dtype)
    return array[0] if value.get("scalar") else array
