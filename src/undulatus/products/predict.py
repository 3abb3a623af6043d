"""From a dataset to predictions: what a model needs of it, and what the model says of each pixel.

:func:`find_inputs` matches the features that a fitted classifier needs with what a dataset has;
:func:`predict_block` gives probabilities, variances and quality of a block of pixels. The
classifier may be one of ours, a :class:`~undulatus.regimes.RegimeClassifier`, a Pipeline that ends
in a classifier, or any of scikit-learn's. A pixel that lacks a value gets no class.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import (
    InputError,
    MissingBandsError,
    NotRealNumbersError,
    PhaseTooLargeError,
    SceneError,
)
from undulatus.products.provenance import Provenance
from undulatus.products.training_range import TrainingRange
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.features import FEATURES, landmark_features
from undulatus.scenes.files.images import (
    BAND_DIMS,
    as_image,
    band_names,
    require_same_offset,
    with_band_names,
)
from undulatus.scenes.image_features import LARGEST_MEASURED, ImageFeatures
from undulatus.scenes.scene import ANGLE, check_calibration, check_scene, find_zenith
from undulatus.scenes.spectra import CHANNEL_SET, check_spectra, is_spectra, measurement

Array = npt.NDArray[Any]

LOW_CONFIDENCE, OUT_OF_RANGE, NEAR_TERMINATOR, MISSING = 1, 2, 4, 8
"""Bits of the quality."""

REGIME_SHIFT = 4
"""The bits from here on hold the number of the regime, counted from one; zero is no regime."""

FEW_REGIMES, MOST_REGIMES = (2 ** (bits - REGIME_SHIFT) - 1 for bits in (8, 16))
"""As many as the rest of eight bits can number, and of sixteen, which models of more have."""

DOUBTFUL = 0.2
"""A pixel has low confidence if the other classes have more than this probability together."""

NOT_MEASURED = LARGEST_MEASURED
"""A larger value that is also as many widths outside what was learned is a fill value that nobody
declared, such as 1e20, 1e30 or 9.97e36: the pixel is missing."""

SAME_CHANNEL = 0.1
"""A channel is the same if its wavenumber differs by no more than this, cm⁻¹."""

TERMINATOR = (85.0, 95.0)
"""Solar zenith angles, degrees, between which day turns to night."""


def prediction_type(model: Any) -> np.dtype[Any]:
    """Return the structured type of what a model says of a pixel.

    The probability of each class, the variance of each latent function (two classes have one), the
    standard deviation of the latent mean over the estimators of an ensemble, the distance from
    what was learned (:meth:`~undulatus.products.training_range.TrainingRange.distance`), and bits
    of quality.
    """
    n_classes = len(model.classes_)
    return np.dtype(
        [
            ("probability", np.float32, (n_classes,)),
            ("variance", np.float32, (_count_latents(n_classes),)),
            ("disagreement", np.float32),
            ("distance", np.float32),
            ("quality", _quality_type(model)),
        ],
        align=True,
    )


def _quality_type(model: Any) -> type[np.unsignedinteger[Any]]:
    return np.uint8 if len(getattr(model, "regimes_", ())) <= FEW_REGIMES else np.uint16


def _count_latents(n_classes: int) -> int:
    return 1 if n_classes == 2 else n_classes


# What a model needs of a dataset


@dataclass(frozen=True)
class Inputs:
    """Features of pixels, lazy if the dataset is.

    ``arrays`` has one array for each feature, or one array of all features, which are then its
    last dimension; ``pixels`` are the other dimensions. ``sun`` is the solar zenith angle, if
    known.
    """

    arrays: tuple[xr.DataArray, ...]
    pixels: tuple[Hashable, ...]
    names: tuple[str, ...] | None
    sun: xr.DataArray | None = None

    def __post_init__(self) -> None:
        for array in self.arrays:
            if array.dtype.kind not in "fiub":
                raise NotRealNumbersError(array.name or "The image", array.dtype)

    @property
    def stacked(self) -> bool:
        """Whether all features are in one array."""
        return self.arrays[0].ndim > len(self.pixels)

    @property
    def lazy(self) -> bool:
        """Whether any feature is still to be computed."""
        return any(isinstance(array.data, da.Array) for array in self.arrays)

    @property
    def image(self) -> xr.DataArray:
        """One feature of all pixels, with the coordinates of the map."""
        first = self.arrays[0]
        return first.isel({first.dims[-1]: 0}, drop=True) if self.stacked else first


def find_inputs(
    model: Any, dataset: xr.Dataset | xr.DataArray, *, checked: bool = False
) -> Inputs:
    """Return what a fitted model needs of a dataset, or raise an error that names what is missing.

    Spectra are taken whole. An image with its bands along a dimension gives them by their names
    (its coordinate, or the descriptions of a GeoTIFF), or in their order if the model was
    fitted without names. A dataset gives variables by their names, or by their ``long_name``;
    where it lacks them, the features of :mod:`undulatus.scenes.features` are computed.

    Parameters
    ----------
    model : classifier
    dataset : Dataset or DataArray
    checked : bool
        The dataset comes from ``check_scene`` or ``check_spectra``: do not check it again.
    """
    names = feature_names(model)
    provenance = Provenance.of(model)
    if provenance.image_features is not None:
        return _image_inputs(dataset, provenance)
    if isinstance(dataset, xr.Dataset):
        check_calibration(dataset, provenance.calibration_mode)
        _require_kind(provenance, dataset)
        if is_spectra(dataset):
            return _spectra_inputs(model, dataset if checked else check_spectra(dataset))
    image = _stacked_image(dataset)
    if image is not None:
        inputs = _band_inputs(model, image, names)
        return replace(inputs, sun=_find_sun(model, dataset, inputs))
    assert isinstance(dataset, xr.Dataset)
    if names is None:
        raise InputError(
            f"The {type(model).__name__} was fitted without names of features, so bands cannot be "
            f"matched to them.\n  found: {', '.join(map(str, dataset.data_vars))}\n"
            f"Fit another model to data whose bands have names (undulatus fit; in Python on a "
            f"table with named columns, a DataFrame)."
        )
    variables = _variable_inputs(dataset, names)
    if variables is None:
        dataset = dataset if checked else check_scene(dataset)
        variables = _landmark_inputs(dataset, names)
    return replace(variables, sun=_find_sun(model, dataset, variables))


def _require_kind(provenance: Provenance, dataset: xr.Dataset) -> None:
    """Raise an error if a model of spectra is given a scene, or a model of scenes spectra."""
    of_spectra, spectra = provenance.chain == "sounder", is_spectra(dataset)
    stacked = any(set(BAND_DIMS) & set(array.dims) for array in dataset.data_vars.values())
    if provenance.chain is None or of_spectra == spectra or stacked:
        return
    kinds = ("spectra", "a scene") if of_spectra else ("a scene", "spectra")
    raise SceneError(
        f"The model was fitted on {kinds[0]}, but was given {kinds[1]}. Give it {kinds[0]}, or "
        f"another model."
    )


def feature_names(model: Any) -> tuple[str, ...] | None:
    """Return the names of the features that a classifier was fitted on, if any.

    The column that assigns regimes is not a feature.
    """
    check_is_fitted(model)
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return None
    return tuple(str(name) for name in names if name != getattr(model, "by", None))


def _image_inputs(dataset: xr.Dataset | xr.DataArray, provenance: Provenance) -> Inputs:
    """Return the features of an image, made as for the fit."""
    assert provenance.image_features is not None
    image = with_band_names(as_image(dataset))
    require_same_offset(image, provenance.processing_baseline)
    features = ImageFeatures.from_dict(provenance.image_features).of(image)
    return Inputs((features,), ("y", "x"), tuple(map(str, features["feature"].values)))


def _spectra_inputs(model: Any, spectra: xr.Dataset) -> Inputs:
    measured = measurement(spectra)
    wanted = Provenance.of(model).measurement or measured
    if wanted != measured:
        raise SceneError(
            f"The model was fitted on {wanted}, but these spectra hold {measured}. Give it "
            f"{wanted}, or fit another model."
        )
    array = spectra[measured]
    _require_count(model, array.shape[1], f"spectra of {array.shape[1]} {array.dims[1]}s")
    _require_wavenumbers(Provenance.of(model), spectra)
    return Inputs((array,), ("sample",), None, spectra.get(ANGLE))


def _require_wavenumbers(provenance: Provenance, spectra: xr.Dataset) -> None:
    """Raise an error if channels that are not all of IASI's lie elsewhere than in training."""
    if provenance.wavenumbers is None:
        return
    found, learned = spectra["wavenumber"].values, np.array(provenance.wavenumbers)
    farthest = int(np.argmax(np.abs(found - learned)))
    if abs(found[farthest] - learned[farthest]) > SAME_CHANNEL:
        raise SceneError(
            f"The model was fitted on {provenance.channel_set}, but these spectra have other "
            f"channels ({spectra.attrs.get(CHANNEL_SET, 'of IASI')}): channel {farthest + 1} is "
            f"at {found[farthest]:.2f} per cm, in training at {learned[farthest]:.2f}. "
            f"Instruments of the same name differ between satellites: fit a model for each."
        )


def _stacked_image(dataset: xr.Dataset | xr.DataArray) -> xr.DataArray | None:
    """Return the one array of a dataset that has all bands, if there is one, with bands last."""
    if isinstance(dataset, xr.DataArray):
        arrays = [dataset]
    else:
        arrays = [array for array in dataset.data_vars.values() if array.ndim > 1]
    for array in arrays if len(arrays) == 1 else []:
        for dim in BAND_DIMS:
            if dim in array.dims:
                return array.transpose(..., dim)
    if isinstance(dataset, xr.DataArray):
        raise SceneError(
            f"An image in one array has its bands along a dimension named "
            f"{', '.join(map(repr, BAND_DIMS))}, but this one has {dataset.dims}: rename it "
            f"(ncrename -d of a netCDF file; in Python image.rename(...)), or give a Dataset of "
            f"named bands."
        )
    return None


def _band_inputs(model: Any, image: xr.DataArray, names: tuple[str, ...] | None) -> Inputs:
    pixels, dim = image.dims[:-1], image.dims[-1]
    present = band_names(image)
    if names is None:
        _require_no_names(model, image, present)
        _require_count(model, image.sizes[dim], f"an image of {image.sizes[dim]} bands")
        _require_order(image, str(dim))
        return Inputs((image,), pixels, None)
    if present is None:
        raise SceneError(
            f"The model knows its bands by name ({', '.join(names)}), but those of the image have "
            f"none. Name them: in a file by the descriptions of its bands, in Python by "
            f'image.assign_coords({dim}=["...", ...]).'
        )
    absent = [name for name in names if name not in present]
    if absent:
        raise MissingBandsError("the image", "The model", absent, present)
    twice = sorted({name for name in names if present.count(name) > 1})
    if twice:
        raise SceneError(
            f"The image has several bands with the same name ({', '.join(twice)}), so the model "
            f"cannot tell which to take.\n  found: {', '.join(present)}\nGive each band its own "
            f"name: in a file by the descriptions of its bands, in Python by "
            f'image.assign_coords({dim}=["...", ...]).'
        )
    order = [present.index(name) for name in names]
    if order != list(range(len(present))):
        image = image.isel({dim: order})
    return Inputs((image,), pixels, names)


def _require_no_names(model: Any, image: xr.DataArray, present: list[str] | None) -> None:
    """Refuse to match named bands with features that have no names."""
    if present is not None:
        dim = image.dims[-1]
        of_coordinate = dim in image.coords and image[dim].dtype.kind in "UOT"
        drop = f'image.drop_vars("{dim}")' if of_coordinate else 'del image.attrs["long_name"]'
        raise SceneError(
            f"The image has named bands, but the model was fitted without names, so it cannot be "
            f"told whether they are in the model's order.\n"
            f"  found: {', '.join(present)}\n"
            f"  the model: a {type(model).__name__} of {model.n_features_in_} features without "
            f"names\n"
            f"Fit it on a table with these names as columns (a DataFrame). If you are sure of the "
            f"order, drop the names: {drop}."
        )


def _require_order(image: xr.DataArray, dim: str) -> None:
    """Refuse bands whose numbers do not rise: they are not in the order of their file."""
    numbers = image[dim].values if dim in image.coords else np.arange(image.sizes[dim])
    if numbers.dtype.kind in "iuf" and not (np.diff(numbers) > 0).all():
        raise SceneError(
            f"The bands of the image are in another order than their numbers, and the model was "
            f"fitted without names, so it cannot be told which is which.\n"
            f"  found: {', '.join(map(str, numbers.tolist()))}\n"
            f'Sort them (image.sortby("{dim}")), or fit the model on a table with named columns '
            f"(a DataFrame) and name the bands."
        )


def _variable_inputs(dataset: xr.Dataset, names: tuple[str, ...]) -> Inputs | None:
    """Return the variables of these names, or None if they are computed from a scene's bands."""
    by_description: dict[str, list[Hashable]] = {}
    for name, array in dataset.data_vars.items():
        if isinstance(array.attrs.get("long_name"), str):
            by_description.setdefault(array.attrs["long_name"], []).append(name)
    wanted: list[Hashable | None] = [
        name if name in dataset else _only_variable(name, by_description.get(name, []))
        for name in names
    ]
    if None not in wanted:
        # One that has all dimensions: others may be the same for all rows, or all times.
        whole = max((dataset[name] for name in wanted), key=lambda array: array.ndim)
        _require_one_grid(dataset, wanted, whole)
        arrays = [dataset[name].broadcast_like(whole) for name in wanted]
        return Inputs(tuple(array.transpose(*whole.dims) for array in arrays), whole.dims, names)
    if not set(names) <= set(FEATURES):
        absent = [name for name, found in zip(names, wanted, strict=True) if found is None]
        raise MissingBandsError("the scene", "The model", absent)
    return None


def _require_one_grid(
    dataset: xr.Dataset, wanted: list[Hashable | None], whole: xr.DataArray
) -> None:
    """Raise if a band has dimensions of its own, as those of a coarser grid have."""
    for name in wanted:
        band = dataset[name]
        if not set(band.dims) <= set(whole.dims):
            raise SceneError(
                f"{name} and {whole.name} are on different grids.\n"
                f"  {name}: {_shape_text(band)}\n  {whole.name}: {_shape_text(whole)}\n"
                f"Bring all bands to one grid first, that of {whole.name}: with cdo or gdalwarp; "
                f"in Python by scene[{str(name)!r}].interp(...)."
            )


def _shape_text(array: xr.DataArray) -> str:
    return ", ".join(f"{size} along {dim}" for dim, size in array.sizes.items())


def _only_variable(description: str, variables: list[Hashable]) -> Hashable | None:
    """Return the variable with a description, if there is one; several are an error."""
    if len(variables) > 1:
        raise SceneError(
            f"The model needs {description}, but several variables have that as long_name: "
            f"{', '.join(map(str, variables))}. Rename the right one to {description}."
        )
    return variables[0] if variables else None


def _landmark_inputs(scene: xr.Dataset, names: tuple[str, ...]) -> Inputs:
    features = landmark_features(scene, checked=True).sel(feature=list(names))
    return Inputs((features,), features.dims[:-1], names)


def _find_sun(
    model: Any, dataset: xr.Dataset | xr.DataArray, inputs: Inputs
) -> xr.DataArray | None:
    """Return each pixel's solar zenith angle: if the dataset has it, or the model needs it."""
    present = isinstance(dataset, xr.Dataset) and ANGLE in dataset
    if not (present or isinstance(model, RegimeClassifier)):
        return None
    if isinstance(dataset, xr.DataArray):
        dataset = dataset.to_dataset(name="image")
    angle = find_zenith(dataset)
    return angle.broadcast_like(inputs.image).transpose(*inputs.pixels)


def _require_count(model: Any, count: int, given: str) -> None:
    if model.n_features_in_ != count:
        raise SceneError(
            f"The model was fitted on {model.n_features_in_} features, but was given {given}. "
            f"Give it what it was fitted on, in the same order."
        )


def fill_values(array: xr.DataArray, width: int) -> Array:
    """Return the value that marks missing pixels in each feature of an array; NaN for none.

    Only a value in ``attrs`` counts: one that was decoded when the file was opened has left NaN
    in its place.
    """
    marks = [array.attrs.get(name) for name in ("_FillValue", "missing_value", "nodata")]
    mark = next((value for value in marks if value is not None), np.nan)
    return np.full(width, mark, dtype=np.float64)


# What a model says of pixels


def prepare_model(model: Any) -> Any:
    """Return a copy of the model for blocks: on one thread, and taking columns without names.

    Blocks run in parallel, and their columns are in the model's order already.
    """
    copied = copy.copy(model)
    if isinstance(model, RegimeClassifier):
        fitted = model.estimators_.items()
        copied.estimators_ = {name: prepare_model(own) for name, own in fitted}
        return copied
    if isinstance(model, Pipeline):
        copied.steps = [(name, prepare_model(step)) for name, step in model.steps]
        return copied
    if not hasattr(model, "get_params"):
        return model  # The step "passthrough".
    if "n_jobs" in model.get_params(deep=False):
        copied.set_params(n_jobs=1)
    if hasattr(copied, "feature_names_in_"):
        del copied.feature_names_in_
    return copied


def predict_block(
    model: Any, values: Array, names: tuple[str, ...] | None, sun: Array | None
) -> Array:
    """Return what is known of pixels, (n,) of :func:`prediction_type`.

    Parameters
    ----------
    model : classifier
        As :func:`prepare_model` returned it.
    values : (n, d) array
        Features of pixels; a value that is not finite is missing.
    names : tuple of str, optional
        Names of the columns, needed for a RegimeClassifier.
    sun : (n,) array, optional
        Solar zenith angle, degrees, needed for a RegimeClassifier.

    Returns
    -------
    (n,) structured array
        All but the quality is NaN where a value is missing; where one is too large for the pixel
        to be classified, so is all but the quality and the distance. The variance is NaN too
        where the classifier has none, the disagreement where it is not an ensemble, and the
        distance where it keeps no quantiles of its features.
    """
    predictions = np.zeros(len(values), prediction_type(model))
    for field in ("probability", "variance", "disagreement", "distance"):
        predictions[field] = np.nan
    if isinstance(model, RegimeClassifier):
        assert names is not None
        assert sun is not None
        _predict_by_regime(model, values, names, sun, predictions)
    else:
        _predict_alike(model, values, predictions)
    lost = np.flatnonzero(predictions["distance"] > NOT_MEASURED)
    lost = lost[(np.abs(values[lost]) > NOT_MEASURED).any(axis=1)]
    for field in ("probability", "variance", "disagreement"):
        predictions[field][lost] = np.nan
    # Column by column: numpy's maximum along so short an axis takes several times as long.
    largest, quality = reduce(np.maximum, predictions["probability"].T), predictions["quality"]
    quality[1.0 - largest > DOUBTFUL] |= LOW_CONFIDENCE
    quality[predictions["distance"] > 0.0] |= OUT_OF_RANGE
    quality[np.isnan(largest)] |= MISSING
    if sun is not None:
        quality[(sun >= TERMINATOR[0]) & (sun < TERMINATOR[1])] |= NEAR_TERMINATOR
    return predictions


def _predict_alike(model: Any, values: Array, predictions: Array) -> None:
    """Predict all pixels that have every value with one model."""
    complete = finite_rows(values)
    if complete.any():
        reduced, classifier = reduce_features(
            model, values if complete.all() else values[complete]
        )
        probability, variance, _, disagreement = _predict_rows(classifier, reduced)
        predictions["probability"][complete] = probability
        predictions["variance"][complete] = variance
        predictions["disagreement"][complete] = disagreement
        predictions["distance"][complete] = _training_distance(classifier, reduced)


def _predict_by_regime(
    model: RegimeClassifier, values: Array, names: tuple[str, ...], sun: Array, predictions: Array
) -> None:
    """Predict pixels with the classifiers of their regimes, mixed where regimes are blended."""
    condition = sun.astype(np.float64)
    assigned = model.assign(condition)
    complete = np.zeros(len(values), bool)
    # Probabilities, second moments and means of latent functions, disagreement of estimators, and
    # the shares they count with.
    k = len(model.classes_)
    c = _count_latents(k)
    total, weight = np.zeros((len(values), k + 2 * c + 1)), np.zeros(len(values))
    for index, (regime, rows, share) in enumerate(model.shares(condition, assigned)):
        inside = assigned[rows] == index
        predictions["quality"][rows[inside]] = (index + 1) << REGIME_SHIFT
        columns = np.array([names.index(name) for name in regime.features or ()], np.intp)
        own = values[np.ix_(rows, columns)]
        finite = finite_rows(own)
        if not finite.any():
            continue
        rows, share, inside = rows[finite], share[finite], inside[finite]
        complete[rows[inside]] = True
        reduced, classifier = reduce_features(model.estimators_[regime.name], own[finite])
        predictions["distance"][rows[inside]] = _training_distance(classifier, reduced[inside])
        total[rows] += share[:, None] * _moments(classifier, reduced, bool(model.blend))
        weight[rows] += share
    mixed = total[complete] / weight[complete, None]
    probability, second, mean, disagreement = np.split(mixed, [k, k + c, k + 2 * c], axis=1)
    predictions["probability"][complete] = probability
    predictions["variance"][complete] = np.maximum(second - mean**2, 0.0)
    predictions["disagreement"][complete] = disagreement[:, 0]


def _moments(classifier: Any, values: Array, blended: bool) -> Array:
    """Return what mixes linearly: probabilities, second moments, means and disagreement.

    Without blending the means count as 0, so that the second moments are the variances.
    """
    probability, variance, mean, disagreement = _predict_rows(classifier, values)
    if not blended or np.isnan(mean).all():
        mean = np.zeros(mean.shape)
    return np.column_stack([probability, variance + mean**2, mean, disagreement])


def rows_by_classifier(
    model: Any, values: Array, names: tuple[str, ...] | None, sun: Array | None
) -> Iterator[tuple[str | None, Any, tuple[str, ...] | None, Array]]:
    """Yield the name of each regime, its classifier, its features and its complete rows.

    A model without regimes has one classifier for all rows. Parameters are those of
    :func:`predict_block`.
    """
    if not isinstance(model, RegimeClassifier):
        yield None, model, names, values[finite_rows(values)]
        return
    assert names is not None
    assert sun is not None
    assigned = model.assign(sun)
    for index, regime in enumerate(model.regimes_):
        features = tuple(regime.features or ())
        own = values[assigned == index][:, [names.index(name) for name in features]]
        yield regime.name, model.estimators_[regime.name], features, own[finite_rows(own)]


def finite_rows(values: Array) -> Array:
    """Return which rows have no missing value, (n,) bool."""
    # A row's sum is finite unless a value is not, or it overflows: only such rows are looked at
    # value by value.
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(values @ np.ones(values.shape[1], values.dtype))
    doubtful = np.flatnonzero(~finite)
    finite[doubtful] = np.isfinite(values[doubtful]).all(axis=1)
    return np.asarray(finite)


def reduce_features(model: Any, values: Array) -> tuple[Array, Any]:
    """Return the values as the last step of a Pipeline sees them, and that step."""
    if not isinstance(model, Pipeline):
        return values, model
    reduced = model[:-1].transform(values) if len(model.steps) > 1 else values
    return np.asarray(reduced), model.steps[-1][1]


def _training_distance(classifier: Any, values: Array) -> Array | float:
    learned = TrainingRange.of(classifier)
    return np.nan if learned is None else learned.distance(values)


def _predict_rows(classifier: Any, values: Array) -> tuple[Array, Array, Array, Array]:
    """Return probabilities (n, k), latent variances and means (n, k or 1), and disagreement (n,).

    What the classifier does not have is NaN.
    """
    n = len(values)
    absent = np.full(n, np.nan)
    if not hasattr(classifier, "predict_in_full"):
        probabilities = classifier.predict_proba(values)
        unknown = np.full((n, _count_latents(probabilities.shape[1])), np.nan)
        return probabilities, unknown, unknown, absent
    try:
        found = classifier.predict_in_full(values)
    except PhaseTooLargeError:
        return _predict_near_rows(classifier, values)
    disagreement = found.ensemble_std if has_ensemble(classifier) else absent
    variance, mean = (latent.reshape(n, -1) for latent in (found.variance, found.mean))
    return found.probabilities, variance, mean, disagreement


def _predict_near_rows(classifier: Any, values: Array) -> tuple[Array, Array, Array, Array]:
    """Return what :func:`_predict_rows` does, NaN for rows that are too far out to be classified.

    One broken pixel, such as a fill value that nobody declared, then leaves the others a map.
    """
    near = ~classifier.out_of_domain(values)
    n, k = len(values), len(classifier.classes_)
    probabilities, disagreement = np.full((n, k), np.nan), np.full(n, np.nan)
    variance, mean = np.full((2, n, _count_latents(k)), np.nan)
    if near.any():
        found = _predict_rows(classifier, values[near])
        probabilities[near], variance[near], mean[near], disagreement[near] = found
    return probabilities, variance, mean, disagreement


def has_ensemble(model: Any) -> bool:
    """Whether any classifier of a fitted model is an ensemble, which has disagreement."""
    if isinstance(model, RegimeClassifier):
        return any(map(has_ensemble, model.estimators_.values()))
    if isinstance(model, Pipeline):
        return has_ensemble(model.steps[-1][1])
    return len(getattr(model, "estimators_", ())) > 1


def require_room_for_regimes(model: Any) -> None:
    """Raise if a model has more regimes than the quality flag of a map can number."""
    regimes = len(getattr(model, "regimes_", ()))
    if regimes > MOST_REGIMES:
        raise InputError(
            f"The model has {regimes} regimes, but the quality flag of a map has room for "
            f"{MOST_REGIMES}. Fit a model with fewer regimes."
        )


def quality_attributes(model: Any) -> dict[str, Any]:
    """Return the CF attributes that explain the bits of the quality."""
    flags = {
        "low_confidence": LOW_CONFIDENCE,
        "outside_training_range": OUT_OF_RANGE,
        "terminator": NEAR_TERMINATOR,
        "missing_channel": MISSING,
    }
    masks, values, meanings = list(flags.values()), list(flags.values()), list(flags)
    require_room_for_regimes(model)
    regimes = getattr(model, "regimes_", ())
    for index, regime in enumerate(regimes):
        masks.append((2 ** len(regimes).bit_length() - 1) << REGIME_SHIFT)
        values.append((index + 1) << REGIME_SHIFT)
        meanings.append(f"regime_{regime.name}")
    bits = _quality_type(model)
    return {
        "flag_masks": np.array(masks, bits),
        "flag_values": np.array(values, bits),
        "flag_meanings": " ".join(meanings),
    }
