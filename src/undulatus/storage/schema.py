"""What the fields and tensors of a model file may be.

Every object in a header is a TypedDict here: :func:`undulatus._plain.require` compares a file with
it before any tensor is read. Tensors have a :class:`Form`: their shape, and what is true of their
values. The limits are far beyond what a fit gives and keep every prediction from overflowing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt

from undulatus._files import RowCheck, StoredArray
from undulatus._plain import Condition
from undulatus.storage.codec import InvalidModelError, Tensors

Array = npt.NDArray[Any]

MOST_PARTS = 10_000
"""Estimators, classes, steps or regimes of one model, at most."""

MOST_BOUNDS = 1_000_000
"""Numbers in the history of a bound, at most."""


# Plain values


def _between(low: float, high: float) -> Condition:
    return Condition(f"a number from {low:g} to {high:g}", lambda value: low <= value <= high)


Count = Annotated[int, Condition("a whole number of 0 or more", lambda value: value >= 0)]

Size = Annotated[int, Condition("a whole number above 0", lambda value: value > 0)]

Positive = Annotated[
    float, Condition("a positive number up to 1e9", lambda value: 0.0 < value <= 1e9)
]

Variance = Positive

Lengthscale = Annotated[float, _between(1e-50, 1e50)]

Taper = Annotated[float, _between(0.0, 1e6)]

PriorMean = Annotated[float, _between(-1e9, 1e9)]

Shift = Annotated[float, _between(-1e4, 1e4)]

Jitter = Annotated[float, Condition("a number of 0 or more", lambda value: value >= 0.0)]

Outcome = Literal["converged", "max_iter", "interrupted"]


def _few(value: Any) -> bool:
    return len(value) <= MOST_PARTS


FEW = Condition(f"a list of at most {MOST_PARTS:,}", _few)


class Marks(TypedDict):
    """What any model file says of itself, beside the header of its model."""

    format: str
    schema: int
    package_version: str
    provenance: NotRequired[dict[str, Any]]


class EncodedArray(TypedDict):
    """An array of :func:`undulatus.storage.codec.encode_value`."""

    array: list[Any]
    dtype: str


# Classifiers


class _Classifier(TypedDict):
    kind: str
    params: dict[str, Any]
    classes: EncodedArray
    feature_names: list[str] | None
    n_features: Size
    prior_shift: NotRequired[Shift | list[Shift]]
    prior_log_ratio: NotRequired[Shift | list[Shift]]
    updates: NotRequired[Count]
    adaptation: NotRequired[bool]


class FitReport(TypedDict, total=False):
    """The fields of ``fit_report_`` that are known; there may be others."""

    solver: str
    precision: Literal["single", "double"]
    prediction_precision: Literal["single", "double"]
    steps: Count
    jitter: Jitter
    stopped: str
    rows: Count
    starting_lengthscale: float | list[float]
    validation_nll: list[float] | list[list[float]]


class _Fitted(TypedDict):
    fit_report_: dict[str, Any]


class _Posterior(TypedDict):
    log_determinant: float
    quadratic: float
    jitter: Jitter


class _Latent(TypedDict):
    """One latent function over Fourier features."""

    signal_variance: Variance
    prior_mean: NotRequired[PriorMean]
    posterior: _Posterior


class _Estimator(TypedDict):
    lengthscale: Lengthscale
    taper: NotRequired[Taper]
    n_iter: Count
    stopped: Outcome
    validation_nll: list[float]


class _EstimatorOfTwoClasses(_Estimator, _Latent):
    pass


class _EstimatorOfMoreClasses(_Estimator):
    latents: list[_Latent]


class FourierOfTwoClasses(_Classifier):
    """RFFGPC and VFFGPC."""

    estimators: Annotated[list[_EstimatorOfTwoClasses], FEW]
    edge_slope: NotRequired[Taper]
    fitted: _Fitted


class FourierOfMoreClasses(_Classifier):
    """RFFGPC and VFFGPC of more than two classes."""

    estimators: Annotated[list[_EstimatorOfMoreClasses], FEW]
    edge_slope: NotRequired[Taper]
    fitted: _Fitted


class _FittedBefore(_Fitted):
    signal_variance_: Variance
    lengthscale_: Lengthscale
    lower_bound_: NotRequired[float]


class _FittedFourierBefore(_FittedBefore):
    n_iter_: Count


class FourierBefore(_Classifier):
    """RFFGPC and VFFGPC in schema 1: one estimator of two classes."""

    posterior: _Posterior
    fitted: _FittedFourierBefore


class _ExactLatent(TypedDict):
    signal_variance: Variance
    lengthscale: Lengthscale
    prior_mean: PriorMean
    stopped: Outcome
    jitter: Jitter


class Exact(_Classifier):
    """GPC."""

    latents: Annotated[list[_ExactLatent], FEW]
    fitted: _Fitted


class _ExactPosteriorBefore(TypedDict):
    jitter: Jitter


class _FittedExactBefore(_FittedBefore):
    n_iter_: NotRequired[Count]
    prior_mean_: NotRequired[PriorMean]


class ExactBefore(_Classifier):
    """GPC in schema 1: one latent function."""

    posterior: _ExactPosteriorBefore
    fitted: _FittedExactBefore


# Models of models


class Transformer(TypedDict):
    """A step of a Pipeline."""

    kind: str
    params: dict[str, Any]
    feature_names: list[str] | None
    fitted: dict[str, Any]
    order: dict[str, str]


class Imputer(TypedDict):
    """A SimpleImputer, whose ``missing_values`` are NaN if it is not said."""

    kind: str
    params: dict[str, Any]
    missing_values: NotRequired[Any]
    statistics: Annotated[list[float | int | str | None], FEW]
    kept_as: Literal["float64", "float32", "int64", "object"]
    fitted_on: Literal["float64", "float32", "int64", "object"]
    feature_names: list[str] | None


class Encoder(TypedDict):
    """A OneHotEncoder."""

    kind: str
    params: dict[str, Any]
    automatic: bool
    dtype: Literal["float64", "float32"]
    categories: Annotated[list[EncodedArray], FEW]
    feature_names: list[str] | None


class Columns(TypedDict):
    """A ColumnTransformer: names, columns by name or number, and what transforms them."""

    kind: str
    params: dict[str, Any]
    transformers: Annotated[list[tuple[str, list[Any], Any]], FEW]
    remainder: Any
    n_features: Annotated[int, _between(1, 1_000_000)]
    feature_names: list[str] | None


class Steps(TypedDict):
    """A Pipeline of transformers only."""

    kind: str
    steps: Annotated[list[tuple[str, Any]], FEW]


class PipelineHeader(TypedDict):
    """A Pipeline; each step is one of its own kinds."""

    kind: str
    steps: Annotated[list[tuple[Any, Any]], FEW]
    verbose: bool
    transform_input: list[str] | None


class Regimes(TypedDict):
    """A RegimeClassifier; ``members`` is a mapping by name up to schema 2."""

    kind: str
    by: str
    blend: Annotated[float, Condition("a number of 0 or more", lambda value: value >= 0.0)]
    classes: EncodedArray
    regimes: Annotated[list[tuple[str, str, str, list[str]]], FEW]
    members: list[Any] | dict[str, Any]
    updates: NotRequired[list[list[str]]]


# What a model remembers of its fit


class LegendFields(TypedDict):
    """Names, codes and colours of classes."""

    classes: list[bool | int | float | str]
    names: NotRequired[list[str]]
    codes: NotRequired[list[int]]
    colours: NotRequired[list[str]]
    cloud: NotRequired[str | None]


class ClassProfiles(TypedDict):
    """Quantiles of the training values of each class."""

    features: list[str]
    quantiles: list[float]
    values: dict[str, list[list[float]]]


Window = Annotated[
    int,
    Condition("an odd number from 3 to 9,999", lambda value: 3 <= value < 10_000 and value % 2),
]


class ImageRecipe(TypedDict):
    """How features of an image are made."""

    bands: list[str]
    indices: NotRequired[list[str]]
    windows: NotRequired[list[Window]]
    roles: NotRequired[dict[str, str]]
    nodata: NotRequired[list[float]]
    pixel_size: NotRequired[tuple[Positive, Positive, Literal["", "m"]]]


class Provenance(TypedDict, total=False):
    """The fields that chains of this package set; a user's own may be any others."""

    chain: str | None
    method: str | None
    label: str | None
    legend: LegendFields | None
    class_profiles: ClassProfiles | None
    daytime_median_degrees: float | None
    held_out_days: list[str] | None
    training_days: list[str] | None
    coast_width: int | None
    training_pixels: dict[str, int] | None
    measurement: str | None
    units: str | None
    channels: int | None
    training_spectra: int | None
    spectra_with_missing_values: int | None
    images: list[str] | None
    field: str | None
    split: str | None
    image_features: ImageRecipe | None
    processing_baseline: str | None
    group_unit: str | None
    crs: str | None
    training_groups: dict[str, list[float]] | None
    held_out_groups: dict[str, list[float]] | None
    updates: list[dict[str, Any]] | None
    adaptations: list[dict[str, Any]] | None
    cloud_share: float | dict[str, float | None] | None
    class_shares: dict[str, Any] | None
    held_out_cells: list[str] | None
    training_cells: list[str] | None
    seed: int | None
    version: str | None
    command: str | None
    source: str | None
    platform_name: str | None
    calibration_mode: str | None
    channel_set: str | None
    wavenumbers: list[float] | None


# Tensors


@dataclass(frozen=True)
class Form:
    """The shape of a tensor of doubles, None for any size above 0, and what its rows hold."""

    shape: tuple[int | None, ...]
    check: RowCheck
    most_rows: float = inf

    def __str__(self) -> str:
        sizes = ", ".join("any" if size is None else str(size) for size in self.shape)
        most = "" if self.most_rows == inf else f" of at most {self.most_rows:,} rows"
        return f"float64 ({sizes}){most}"

    def fits(self, tensor: Any) -> bool:
        """Whether an array, read or not, has the type and the shape."""
        if tensor.dtype != np.float64 or len(tensor.shape) != len(self.shape):
            return False
        sizes = zip(self.shape, tensor.shape, strict=True)
        return tensor.shape[0] <= self.most_rows and all(
            found > 0 if expected is None else found == expected for expected, found in sizes
        )


Forms = dict[str, Form]


def read_forms(tensors: Mapping[str, StoredArray], forms: Forms) -> Tensors:
    """Return the values of tensors, which must be these and have these forms."""
    if set(tensors) != set(forms):
        odd = ", ".join(sorted(set(tensors) ^ set(forms))[:5])
        raise InvalidModelError(f"lacks tensors, or has unexpected ones: {odd}.")
    for name, form in forms.items():
        if not form.fits(tensors[name]):
            found = tensors[name]
            raise InvalidModelError(
                f"holds {name!r} as {found.dtype} {found.shape}, but {form} is expected."
            )
    return {name: tensors[name].read(form.check) for name, form in forms.items()}


def within(low: float, high: float) -> RowCheck:
    """Return the check that all numbers lie in [low, high]."""

    def check(rows: Array, first: int) -> str | None:
        fine = bool(((rows >= low) & (rows <= high)).all())
        return None if fine else f"numbers that are not from {low:g} to {high:g}"

    return check


def up_to(limit: float) -> RowCheck:
    """Return the check that no number is larger than a limit, of either sign."""
    return within(-limit, limit)


def positive(rows: Array, first: int) -> str | None:
    """Check that all numbers are positive."""
    return None if (rows > 0).all() else "numbers that are not positive"


def codes_below(count: int) -> RowCheck:
    """Return the check that all numbers are codes of so many classes."""

    def check(rows: Array, first: int) -> str | None:
        fine = ((rows >= 0) & (rows < count) & (rows == np.floor(rows))).all()
        return None if fine else f"numbers that are not codes of {count} classes"

    return check


def lower_triangle(limit: float) -> RowCheck:
    """Return the check of a triangular root: nothing above its diagonal, which is positive."""

    def check(rows: Array, first: int) -> str | None:
        places = np.arange(len(rows))
        if not (rows[places, first + places] > 0).all():
            return "a diagonal that is not positive"
        if np.triu(rows, first + 1).any():
            return "numbers above the diagonal of a triangle"
        return up_to(limit)(rows, first)

    return check


def triangle_form(stored: Mapping[str, StoredArray], name: str, k: int, limit: float) -> Form:
    """Return the form of a triangular root: its lower half by rows, or all of it in a square.

    Files up to schema 3 have the square.
    """
    if name in stored and len(stored[name].shape) == 2:
        return Form((k, k), lower_triangle(limit))
    return Form((k * (k + 1) // 2,), packed_triangle(limit))


def packed_triangle(limit: float) -> RowCheck:
    """Return the check of a triangular root's lower half, by rows, whose diagonal is positive."""

    def check(rows: Array, first: int) -> str | None:
        # The diagonal ends each row: the number n of it is at n (n + 3) / 2.
        start = max(0, int((np.sqrt(8.0 * first + 9.0) - 3.0) / 2.0) - 1)
        stop = int(np.sqrt(2.0 * (first + len(rows)))) + 2
        n = np.arange(start, stop)
        places = n * (n + 3) // 2 - first
        places = places[(places >= 0) & (places < len(rows))]
        if not (rows[places] > 0).all():
            return "a diagonal that is not positive"
        return up_to(limit)(rows, first)

    return check


def rising(rows: Array) -> bool:
    """Whether each column rises, but for rounding."""
    steps = np.diff(rows, axis=0)
    return bool((steps >= -1e-9 * np.abs(rows).max(axis=0)).all())
