"""Transformers in a file, as steps of a Pipeline: scalers and principal components."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from undulatus._files import StoredArray
from undulatus.estimators.pca import SpectralPCA
from undulatus.storage import schema
from undulatus.storage.codec import (
    Codec,
    Header,
    InvalidModelError,
    Stored,
    Tensors,
    decode_value,
    encode_value,
    list_feature_names,
    memory_order,
    require_fields,
    restore_feature_names,
    restore_params,
    with_memory_order,
)

COUNT, NUMBER, TEXT, NOTHING = "a count", "a number", "a text", "nothing"
"""Forms of an attribute that is no array.

The form of an array is its shape, spelled with "d" for the features in and "k" for those out:
"kd" has a row for each component.
"""

DTYPES = ("float64", "float32", "int64")
"""What an array may hold."""

LARGEST = {"float64": 1e75, "float32": 1e12, "int64": 2**62}
"""Largest number by type: products of three do not overflow. What is to be positive is at least
one over it."""


@dataclass(frozen=True)
class TransformerLayout:
    """The fitted attributes of one transformer, and parameters that are arrays, by their names.

    ``attributes`` lists the forms that each may have. Some ways of fitting leave out the
    ``optional`` ones; ``needed`` maps a parameter to the attribute that it needs when it is set.
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
    TransformerLayout(
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
        not_negative=("var_",),
    ),
    TransformerLayout(
        PCA,
        {**_SINGULAR, "n_samples_": (COUNT,), "_fit_svd_solver": (TEXT,)},
        optional=("_fit_svd_solver",),
        not_negative=("explained_variance_",),
    ),
    TransformerLayout(
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
    TransformerLayout(
        SpectralPCA,
        {**_COMPONENTS, "n_samples_seen_": (COUNT,), "noise_": ("d",), "noise": ("d", NOTHING)},
        positive=("noise_", "noise"),
        not_negative=("explained_variance_",),
    ),
)
"""Every transformer that may be in a model file.

To add one, list it here, fit it in ``FITTED`` in ``tests/storage/test_transformers.py``, and name
it in the docstring of :func:`undulatus.storage.save_model` and in
``docs/reference/model-file.md``.
"""


def n_features_out(transformer: Any) -> int:
    """Return how many features a transformer gives."""
    return int(getattr(transformer, "n_components_", transformer.n_features_in_))


def _describe(layout: TransformerLayout, model: Any) -> tuple[Tensors, Header]:
    check_is_fitted(model, [name for name in layout.attributes if name not in layout.optional])
    params = model.get_params(deep=False)
    values = {
        name: _as_array(params[name]) if name in params else getattr(model, name)
        for name in layout.attributes
        if hasattr(model, name)
    }
    _require_valid(layout, params, values)
    _require_values(layout, values)
    tensors = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    header = {
        "params": {
            name: encode_value(value) for name, value in params.items() if name not in values
        },
        "feature_names": list_feature_names(model),
        "fitted": {
            name: encode_value(value) for name, value in values.items() if name not in tensors
        },
        "order": {
            name: memory_order(tensor) for name, tensor in tensors.items() if tensor.ndim == 2
        },
    }
    return tensors, header


def _build(layout: TransformerLayout, stored: Stored, header: Header) -> Any:
    require_fields(header, schema.Transformer)
    fitted = {name: decode_value(value) for name, value in header["fitted"].items()}
    both = set(stored) & set(fitted)
    if both:
        raise InvalidModelError(
            f"holds both as a tensor and in its header: {', '.join(sorted(both))}."
        )
    model = restore_params(layout.model, header["params"])
    _require_valid(layout, model.get_params(deep=False), {**fitted, **stored})
    orders = header["order"]
    if set(orders) != {name for name, tensor in stored.items() if len(tensor.shape) == 2}:
        raise InvalidModelError("holds a matrix without its order, or an order without a matrix.")
    tensors = {name: tensor.read() for name, tensor in stored.items()}
    values = {**fitted, **tensors}
    _require_values(layout, values)
    for name, order in orders.items():
        values[name] = with_memory_order(tensors[name], order)
    for name, value in values.items():
        setattr(model, name, value)
    restore_feature_names(model, header["feature_names"])
    return model


def _as_array(value: Any) -> Any:
    if value is None:
        return None
    array = np.asarray(value)
    known = array.dtype.name in DTYPES
    # Numbers from old netCDF files are big-endian.
    return np.asarray(array, array.dtype.newbyteorder("=") if known else np.float64)


def _require_valid(
    layout: TransformerLayout, params: Mapping[str, Any], values: Mapping[str, Any]
) -> None:
    """Require every attribute in a form it may have, and no unknown ones."""
    odd = set(values) ^ set(layout.attributes)
    odd -= set(layout.optional) - set(values)
    if odd:
        raise InvalidModelError(
            f"lacks attributes, or has unexpected ones: {', '.join(sorted(odd))}."
        )
    d = values["n_features_in_"]
    sizes = {"d": d, "k": values.get("n_components_", d)}
    for name, value in values.items():
        forms = [_with_sizes(form, sizes) for form in layout.attributes[name]]
        if not any(_has_form(value, form) for form in forms):
            expected = " or ".join(map(str, forms))
            raise InvalidModelError(
                f"holds {name!r} as {_value_text(value)}, but {expected} is expected."
            )
    for parameter, name in layout.needed.items():
        if params[parameter] and values[name] is None:
            raise InvalidModelError(f"lacks {name!r}, which {parameter} needs.")


def _require_values(layout: TransformerLayout, values: Mapping[str, Any]) -> None:
    """Require finite numbers with which no product overflows, positive where they must be."""
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    for name, array in arrays.items():
        if not (np.abs(array) <= LARGEST[array.dtype.name]).all():
            raise InvalidModelError(f"holds {name!r} as {_value_text(array)}.")
        least = 1.0 / LARGEST[array.dtype.name]
        if name in layout.positive and not (array >= least).all():
            raise InvalidModelError(f"holds {name!r} with numbers that are not positive.")
        if name in layout.not_negative and not (array >= 0).all():
            raise InvalidModelError(f"holds {name!r} with numbers that are negative.")


def _with_sizes(form: str, sizes: Mapping[str, Any]) -> str | tuple[Any, ...]:
    if set(form) <= set(sizes):
        return tuple(sizes[letter] for letter in form)
    return form


def _has_form(value: Any, form: str | tuple[Any, ...]) -> bool:
    if isinstance(value, np.ndarray | StoredArray):
        return value.dtype.name in DTYPES and value.shape == form
    if value is None or isinstance(value, str):
        return form == (NOTHING if value is None else TEXT)
    if isinstance(value, bool) or not isinstance(value, Real) or not np.isfinite(float(value)):
        return False
    return form == NUMBER or (form == COUNT and isinstance(value, Integral) and int(value) > 0)


def _value_text(value: Any) -> str:
    if isinstance(value, StoredArray):
        return f"{value.dtype} {value.shape}"
    if not isinstance(value, np.ndarray):
        return reprlib.repr(value)
    finite = value.dtype.kind not in "fiu" or np.isfinite(value).all()
    large = finite and value.dtype.kind == "f" and np.abs(value).max(initial=0.0) > 1e12
    odd = " with NaN or infinity" if not finite else " with enormous numbers" if large else ""
    return f"{value.dtype} {value.shape}{odd}"


CODECS = {
    layout.model.__name__: Codec(layout.model, partial(_describe, layout), partial(_build, layout))
    for layout in LAYOUTS
}
