"""Gaussian-process classifiers in a file: GPC, RFFGPC and VFFGPC, all tensors float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from undulatus.estimators import GPC, RFFGPC, VFFGPC
from undulatus.gp.blocks import Standardisation
from undulatus.gp.exact import ExactPosterior
from undulatus.gp.posterior import Posterior
from undulatus.storage.codec import (
    Codec,
    Header,
    InvalidModelError,
    Tensors,
    decode_value,
    encode_value,
    list_feature_names,
    restore_feature_names,
    with_memory_order,
)

Shapes = dict[str, tuple[int | None, ...]]

FACTOR_ORDER = "F"
"""Memory order of LAPACK's factors."""

_PLAIN = ("signal_variance_", "lengthscale_", "bound_", "n_iter_", "fit_report_")
"""Fitted attributes that are plain values and go into the header."""


@dataclass(frozen=True)
class _ClassifierLayout:
    """The tensors of one classifier, their shapes, and how its posterior is restored."""

    model: type
    posterior_scalars: tuple[str, ...]
    tensors: Callable[[Any], Tensors]
    shapes: Callable[[Tensors, int], Shapes]
    restore: Callable[[Any, Tensors, dict[str, float]], None]


def _describe(layout: _ClassifierLayout, model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model, "posterior_")
    tensors = {
        "centre": model.standardisation_.centre,
        "scale": model.standardisation_.scale,
        "feature_quantiles": model.feature_quantiles_,
        "bound_history": model.bound_history_,
        **layout.tensors(model),
    }
    header = {
        "params": {
            name: encode_value(value) for name, value in model.get_params(deep=False).items()
        },
        "classes": encode_value(model.classes_),
        "feature_names": list_feature_names(model),
        "n_features": model.n_features_in_,
        "prior_shift": model._prior_shift,
        "posterior": {name: getattr(model.posterior_, name) for name in layout.posterior_scalars},
        "fitted": {name: getattr(model, name) for name in _PLAIN},
    }
    return {name: np.asarray(array) for name, array in tensors.items()}, header


def _build(layout: _ClassifierLayout, tensors: Tensors, header: Header) -> Any:
    params = {name: decode_value(value) for name, value in header["params"].items()}
    model = layout.model(**params)
    d = header["n_features"]
    shapes: Shapes = {"centre": (d,), "scale": (d,), "feature_quantiles": (None, d)}
    _require_shapes(tensors, {**shapes, "bound_history": (None,), **layout.shapes(tensors, d)})
    if not (tensors["scale"] > 0).all() or not header["fitted"]["signal_variance_"] > 0:
        raise InvalidModelError("holds a scale or signal variance that is not positive.")
    model.n_features_in_ = d
    restore_feature_names(model, header["feature_names"])
    model.classes_ = decode_value(header["classes"])
    if model.classes_.shape != (2,):
        raise InvalidModelError(
            f"holds classes of shape {model.classes_.shape}, but (2,) is expected."
        )
    model.standardisation_ = Standardisation(tensors["centre"], tensors["scale"])
    model.feature_quantiles_ = tensors["feature_quantiles"]
    model.bound_history_ = tensors["bound_history"]
    model._prior_shift = float(header["prior_shift"])
    for name in _PLAIN:
        setattr(model, name, header["fitted"][name])
    layout.restore(model, tensors, header["posterior"])
    return model


def _require_shapes(tensors: Tensors, shapes: Shapes) -> None:
    if set(tensors) != set(shapes):
        odd = ", ".join(sorted(set(tensors) ^ set(shapes)))
        raise InvalidModelError(f"lacks tensors, or has unexpected ones: {odd}.")
    for name, shape in shapes.items():
        found = tensors[name].shape
        fits = len(found) == len(shape) and all(
            expected in (None, size) for expected, size in zip(shape, found, strict=True)
        )
        if not fits or tensors[name].dtype != np.float64:
            raise InvalidModelError(
                f"holds {name!r} as {tensors[name].dtype} {found}, but {shape} is expected."
            )


def _fourier_tensors(model: Any) -> Tensors:
    return {
        "frequencies": model.frequencies_,
        "posterior_mean": model.posterior_.mean,
        "posterior_root": model.posterior_.root,
    }


def _fourier_shapes(tensors: Tensors, d: int) -> Shapes:
    k = 2 * len(tensors["frequencies"])
    return {"frequencies": (None, d), "posterior_mean": (k,), "posterior_root": (k, k)}


def _restore_fourier(model: Any, tensors: Tensors, scalars: dict[str, float]) -> None:
    model.frequencies_ = tensors["frequencies"]
    root = with_memory_order(tensors["posterior_root"], FACTOR_ORDER)
    model.posterior_ = Posterior(mean=tensors["posterior_mean"], root=root, **scalars)


def _exact_tensors(model: Any) -> Tensors:
    posterior = model.posterior_
    return {
        "training": model.training_,
        "alpha": posterior.alpha,
        "roots": posterior.roots,
        "factor": posterior.factor,
    }


def _exact_shapes(tensors: Tensors, d: int) -> Shapes:
    n = len(tensors["training"])
    return {"training": (None, d), "alpha": (n,), "roots": (n,), "factor": (n, n)}


def _restore_exact(model: Any, tensors: Tensors, scalars: dict[str, float]) -> None:
    model.training_ = tensors["training"]
    factor = with_memory_order(tensors["factor"], FACTOR_ORDER)
    model.posterior_ = ExactPosterior(
        alpha=tensors["alpha"], roots=tensors["roots"], factor=factor, **scalars
    )


def _fourier_layout(model: type) -> _ClassifierLayout:
    scalars = ("log_determinant", "quadratic", "jitter")
    return _ClassifierLayout(model, scalars, _fourier_tensors, _fourier_shapes, _restore_fourier)


_LAYOUTS = (
    _ClassifierLayout(GPC, ("jitter",), _exact_tensors, _exact_shapes, _restore_exact),
    _fourier_layout(RFFGPC),
    _fourier_layout(VFFGPC),
)

CODECS = {
    layout.model.__name__: Codec(layout.model, partial(_describe, layout), partial(_build, layout))
    for layout in _LAYOUTS
}
