"""What stands before a classifier in a Pipeline: scalings and principal components in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from undulatus.estimators.pca import SpectralPCA
from undulatus.storage.codec import (
    Header,
    Kind,
    Misfit,
    Tensors,
    decode,
    encode,
    feature_names,
    in_order,
    order_of,
    restore_feature_names,
)

# What an attribute may be, besides an array, whose shape is spelled "d" for features in and "k"
# for features out: "kd" has a row for each component.
COUNT, NUMBER, TEXT, NOTHING = "a count", "a number", "a text", "nothing"

DTYPES = ("float64", "float32", "int64")


@dataclass(frozen=True)
class Layout:
    """The fitted attributes of one transformer, and parameters that are arrays, by their names.

    ``attributes`` tells the forms that each may have. Those ``optional`` are left out by some
    ways of fitting; those ``needed`` are there when the parameter they are listed under is set.
    """

    model: type
    attributes: Mapping[str, tuple[str, ...]]
    optional: tuple[str, ...] = ()
    needed: Mapping[str, str] = field(default_factory=dict)
    positive: tuple[str, ...] = ()
    not_negative: tuple[str, ...] = ()


_COMPONENTS = {
    "n_features_in_": (COUNT,),
    "n_components_": (COUNT,),
    "components_": ("kd",),
    "mean_": ("d",),
    "explained_variance_": ("k",),
    "explained_variance_ratio_": ("k",),
}

_SINGULAR = {**_COMPONENTS, "singular_values_": ("k",), "noise_variance_": (NUMBER,)}

LAYOUTS = (
    Layout(
        StandardScaler,
        {
            "n_features_in_": (COUNT,),
            "n_samples_seen_": (NUMBER, "d"),
            "mean_": ("d", NOTHING),
            "var_": ("d", NOTHING),
            "scale_": ("d", NOTHING),
        },
        needed={"with_mean": "mean_", "with_std": "scale_"},
        positive=("scale_",),
    ),
    Layout(
        PCA,
        {**_SINGULAR, "n_samples_": (COUNT,), "_fit_svd_solver": (TEXT,)},
        optional=("_fit_svd_solver",),
        not_negative=("explained_variance_",),
    ),
    Layout(
        IncrementalPCA,
        {
            **_SINGULAR,
            "n_samples_seen_": (NUMBER,),
            "var_": ("d",),
            "batch_size_": (COUNT,),
        },
        optional=("batch_size_",),
        not_negative=("explained_variance_",),
    ),
    Layout(
        SpectralPCA,
        {**_COMPONENTS, "n_samples_seen_": (COUNT,), "noise_": ("d",), "noise": ("d", NOTHING)},
        positive=("noise_", "noise"),
        not_negative=("explained_variance_",),
    ),
)


def features_out(transformer: Any) -> int:
    """Return how many features a transformer gives."""
    return int(getattr(transformer, "n_components_", transformer.n_features_in_))


def _describe(layout: Layout, model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model, [name for name in layout.attributes if name not in layout.optional])
    params = model.get_params(deep=False)
    values = {
        name: _as_array(params[name]) if name in params else getattr(model, name)
        for name in layout.attributes
        if hasattr(model, name)
    }
    _require_sound(layout, params, values)
    tensors = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    header = {
        "params": {name: encode(value) for name, value in params.items() if name not in values},
        "feature_names": feature_names(model),
        "fitted": {name: encode(value) for name, value in values.items() if name not in tensors},
        "order": {name: order_of(tensor) for name, tensor in tensors.items() if tensor.ndim == 2},
    }
    return tensors, header


def _build(layout: Layout, tensors: Tensors, header: Header) -> Any:
    fitted = {name: decode(value) for name, value in header["fitted"].items()}
    both = set(tensors) & set(fitted)
    if both:
        raise Misfit(f"holds as a tensor and in its header: {', '.join(sorted(both))}.")
    values = {**fitted, **tensors}
    params = {name: decode(value) for name, value in header["params"].items()}
    _require_sound(layout, params, values)
    for name, order in header["order"].items():
        values[name] = in_order(tensors[name], order)
    model = layout.model(**params)
    for name, value in values.items():
        setattr(model, name, value)
    restore_feature_names(model, header["feature_names"])
    return model


def _as_array(value: Any) -> Any:
    if value is None:
        return None
    array = np.asarray(value)
    known = array.dtype.name in DTYPES
    # Numbers out of old netCDF files have their bytes the other way round.
    return np.asarray(array, array.dtype.newbyteorder("=") if known else np.float64)


def _require_sound(layout: Layout, params: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Require every attribute in a form it may have, and no others."""
    odd = set(values) ^ set(layout.attributes)
    odd -= set(layout.optional) - set(values)
    if odd:
        raise Misfit(f"lacks tensors or has others than its kind needs: {', '.join(sorted(odd))}.")
    d = values["n_features_in_"]
    sizes = {"d": d, "k": values.get("n_components_", d)}
    for name, value in values.items():
        forms = [_with_sizes(form, sizes) for form in layout.attributes[name]]
        if not any(_has_form(value, form) for form in forms):
            due = " or ".join(map(str, forms))
            raise Misfit(f"holds {name!r} as {_brief(value)}, where {due} is due.")
    for parameter, name in layout.needed.items():
        if params[parameter] and values[name] is None:
            raise Misfit(f"lacks {name!r}, which {parameter} needs.")
    for name in layout.positive:
        if values[name] is not None and not (values[name] > 0).all():
            raise Misfit(f"holds {name!r} with numbers that are not positive.")
    for name in layout.not_negative:
        if not (values[name] >= 0).all():
            raise Misfit(f"holds {name!r} with numbers that are negative.")


def _with_sizes(form: str, sizes: Mapping[str, Any]) -> str | tuple[Any, ...]:
    if set(form) <= set(sizes):
        return tuple(sizes[letter] for letter in form)
    return form


def _has_form(value: Any, form: str | tuple[Any, ...]) -> bool:
    if isinstance(value, np.ndarray):
        usual = value.dtype.name in DTYPES and bool(np.isfinite(value).all())
        return usual and value.shape == form
    if value is None or isinstance(value, str):
        return form == (NOTHING if value is None else TEXT)
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        return False
    return form == NUMBER or (form == COUNT and isinstance(value, Integral) and int(value) > 0)


def _brief(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    finite = value.dtype.kind not in "fiu" or np.isfinite(value).all()
    return f"{value.dtype} {value.shape}{'' if finite else ' with NaN or infinity'}"


KINDS = {
    layout.model.__name__: Kind(layout.model, partial(_describe, layout), partial(_build, layout))
    for layout in LAYOUTS
}
