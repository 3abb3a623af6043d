"""What a fitted classifier says of pixels: probability, variance and quality of each.

The classifier may be one of ours, a :class:`~undulatus.regimes.RegimeClassifier`, a Pipeline that
ends in a classifier, or any of scikit-learn's. A pixel that lacks a value gets no class.

What of a dataset a model is asked about: its features, matched by name, and the sun.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError, MissingBandsError, SceneError
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.features import FEATURES, landmark_features
from undulatus.scenes.scene import ANGLE, BANDS, check_scene, find_zenith
from undulatus.scenes.spectra import check_spectra, is_spectra, measurement

Array = npt.NDArray[Any]

DOUBTFUL = 0.2
"""A pixel is of low confidence if both classes are likelier than this."""

TERMINATOR = (85.0, 95.0)
"""Solar zenith angles, degrees, between which day turns to night."""

LOW_CONFIDENCE, OUT_OF_RANGE, NEAR_TERMINATOR, MISSING = 1, 2, 4, 8

ROUNDING = 1e-4
"""Share of the training range by which a value may leave it: blocks are rounded differently."""

REGIME_SHIFT = 4
"""The regime's number, counted from one, is written in the bits from here on; zero is none."""


def feature_names(model: Any) -> tuple[str, ...] | None:
    """Return the names of the features a classifier of two classes was fitted on, if it had any.

    The column that assigns regimes is not a feature.
    """
    check_is_fitted(model)
    if len(model.classes_) != 2:
        raise InputError(
            f"A map tells cloud from clear, but the model has {len(model.classes_)} classes."
        )
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return None
    return tuple(str(name) for name in names if name != getattr(model, "by", None))


def prepare_model(model: Any) -> Any:
    """Return the model as blocks need it: on one thread, its columns matched already."""
    lean = copy.copy(model)
    if isinstance(model, RegimeClassifier):
        lean.estimators_ = {
            name: prepare_model(member) for name, member in model.estimators_.items()
        }
        return lean
    if isinstance(model, Pipeline):
        lean.steps = [(name, prepare_model(step)) for name, step in model.steps]
        return lean
    if not hasattr(model, "get_params"):
        return model  # A step that lets everything through.
    if "n_jobs" in model.get_params(deep=False):
        # Blocks are what runs in parallel.
        lean.set_params(n_jobs=1)
    if hasattr(lean, "feature_names_in_"):
        del lean.feature_names_in_
    return lean


def predict_block(
    model: Any, values: Array, names: tuple[str, ...] | None, sun: Array | None
) -> tuple[Array, Array, Array]:
    """Return probability of the second class, latent variance and quality of pixels, (n,) each.

    Parameters
    ----------
    model : classifier
        As :func:`prepare` returned it.
    values : (n, d) array
        Features of pixels; one that is not finite is missing.
    names : tuple of str, optional
        What the columns are; a RegimeClassifier needs them.
    sun : (n,) array, optional
        Solar zenith angle, degrees; a RegimeClassifier needs it.

    Returns
    -------
    probability, variance : (n,) float32 arrays
        NaN where nothing can be said. The variance is NaN if the classifier has none.
    quality : (n,) uint8 array
    """
    probability = np.full(len(values), np.nan, np.float32)
    variance = probability.copy()
    if isinstance(model, RegimeClassifier):
        assert names is not None
        assert sun is not None
        quality = _judge_regimes(model, values, names, sun, probability, variance)
    else:
        quality = _judge_all(model, values, probability, variance)
    quality[np.minimum(probability, 1.0 - probability) > DOUBTFUL] |= LOW_CONFIDENCE
    quality[np.isnan(probability)] |= MISSING
    if sun is not None:
        quality[(sun >= TERMINATOR[0]) & (sun < TERMINATOR[1])] |= NEAR_TERMINATOR
    return probability, variance, quality


def _judge_all(model: Any, values: Array, probability: Array, variance: Array) -> Array:
    """Set probability and variance where all values are there; return what is out of range."""
    quality = np.zeros(len(values), np.uint8)
    whole = _finite_rows(values)
    if whole.any():
        reduced, member = _reduce(model, values if whole.all() else values[whole])
        probability[whole], variance[whole] = _predict(member, reduced, [member], len(reduced))
        quality[whole] = _beyond_training(member, reduced)
    return quality


def _judge_regimes(
    model: RegimeClassifier,
    values: Array,
    names: tuple[str, ...],
    sun: Array,
    probability: Array,
    variance: Array,
) -> Array:
    quality = np.zeros(len(values), np.uint8)
    usable = np.zeros(len(values), bool)
    assigned = model.assign(sun)
    for index, regime in enumerate(model.regimes_):
        rows = np.flatnonzero(assigned == index)
        columns = np.array([names.index(name) for name in regime.features or ()])
        own = values[np.ix_(rows, columns)]
        whole = _finite_rows(own)
        quality[rows] = np.uint8((index + 1) << REGIME_SHIFT)
        usable[rows[whole]] = True
        if whole.any():
            reduced, member = _reduce(model.estimators_[regime.name], own[whole])
            quality[rows[whole]] |= _beyond_training(member, reduced)
    rows = np.flatnonzero(usable)
    if rows.size:
        table = {name: values[rows, column] for column, name in enumerate(names)}
        members = list(model.estimators_.values())
        table[model.by] = sun[rows]
        probability[rows], variance[rows] = _predict(model, table, members, rows.size)
    return quality


def _finite_rows(values: Array) -> Array:
    """Return which rows have no missing value, (n,) bool."""
    # A sum is finite unless a value is not (or it overflows, which the second look settles).
    with np.errstate(over="ignore", invalid="ignore"):
        whole = np.isfinite(values @ np.ones(values.shape[1], values.dtype))
    doubtful = np.flatnonzero(~whole)
    whole[doubtful] = np.isfinite(values[doubtful]).all(axis=1)
    return np.asarray(whole)


def _reduce(model: Any, values: Array) -> tuple[Array, Any]:
    """Return what the last step of a Pipeline sees of the values, and that step."""
    if not isinstance(model, Pipeline):
        return values, model
    reduced = model[:-1].transform(values) if len(model.steps) > 1 else values
    return np.asarray(reduced), model.steps[-1][1]


def _beyond_training(member: Any, values: Array) -> Array:
    ranges = getattr(member, "feature_quantiles_", None)
    if ranges is None:
        return np.zeros(len(values), np.uint8)
    slack = ROUNDING * (ranges[-1] - ranges[0])
    low, high = ranges[0] - slack, ranges[-1] + slack
    beyond = np.zeros(len(values), bool)
    # Most features of most blocks stay inside, which their extremes tell for less.
    for column in np.flatnonzero((values.min(axis=0) < low) | (values.max(axis=0) > high)):
        beyond |= (values[:, column] < low[column]) | (values[:, column] > high[column])
    return np.where(beyond, np.uint8(OUT_OF_RANGE), np.uint8(0))


def _predict(model: Any, X: Any, members: list[Any], count: int) -> tuple[Array, Array]:
    """Return the probability of the second class, and the latent variance or NaN."""
    if all(hasattr(member, "predict_proba_and_variance") for member in members):
        probability, variance = model.predict_proba_and_variance(X)
        return probability[:, 1], variance
    return model.predict_proba(X)[:, 1], np.full(count, np.nan)


def quality_attributes(model: Any) -> dict[str, Any]:
    """Return what the bits of ``quality_flag`` mean, as CF has it."""
    flags = {
        "low_confidence": LOW_CONFIDENCE,
        "outside_training_range": OUT_OF_RANGE,
        "terminator": NEAR_TERMINATOR,
        "missing_channel": MISSING,
    }
    masks, values, meanings = list(flags.values()), list(flags.values()), list(flags)
    regimes = getattr(model, "regimes_", ())
    for index, regime in enumerate(regimes):
        masks.append((2 ** len(regimes).bit_length() - 1) << REGIME_SHIFT)
        values.append((index + 1) << REGIME_SHIFT)
        meanings.append(f"regime_{regime.name}")
    return {
        "long_name": "quality of the cloud mask",
        "flag_masks": np.array(masks, np.uint8),
        "flag_values": np.array(values, np.uint8),
        "flag_meanings": " ".join(meanings),
    }


BAND_DIMS = ("band", "bands", "feature")
"""Names of the dimension of an image that holds all its bands in one array."""


@dataclass(frozen=True)
class Inputs:
    """Features of pixels, lazy if the dataset is.

    ``arrays`` is one array a feature, or one array of all, with the features along its last
    dimension; ``pixels`` are the other dimensions. ``sun`` is the solar zenith angle, if it is
    known.
    """

    arrays: tuple[xr.DataArray, ...]
    pixels: tuple[Hashable, ...]
    names: tuple[str, ...] | None
    sun: xr.DataArray | None = None

    @property
    def stacked(self) -> bool:
        """Whether all features are in one array."""
        return self.arrays[0].ndim > len(self.pixels)

    @property
    def image(self) -> xr.DataArray:
        """One feature of all pixels: what has the coordinates of the map."""
        first = self.arrays[0]
        return first.isel({first.dims[-1]: 0}, drop=True) if self.stacked else first


def find_inputs(model: Any, dataset: xr.Dataset | xr.DataArray) -> Inputs:
    """Return what a fitted model needs of a dataset, or say what is not there.

    Spectra are taken whole. An image with its bands along a dimension gives them by their names
    (its coordinate, or the descriptions that GeoTIFF has), or in their order if the model was
    fitted without names. Of a dataset, variables are taken by their names, or their ``long_name``;
    where they are not there, the features of :mod:`undulatus.scenes.features` are computed.
    """
    names = feature_names(model)
    if isinstance(dataset, xr.Dataset) and is_spectra(dataset):
        return _of_spectra(model, dataset)
    image = _with_bands(dataset)
    if image is not None:
        found = _of_bands(model, image, names)
    elif names is None:
        raise InputError(
            f"The {type(model).__name__} was fitted without names of features, so bands cannot be "
            f"matched to them. Fit it on a table with named columns (a DataFrame)."
        )
    else:
        assert isinstance(dataset, xr.Dataset)
        found, dataset = _of_variables(dataset, names) or _of_landmark(dataset, names)
    return Inputs(found.arrays, found.pixels, found.names, _find_sun(model, dataset, found))


def _of_spectra(model: Any, dataset: xr.Dataset) -> Inputs:
    spectra = check_spectra(dataset)
    measured = measurement(spectra)
    wanted = getattr(model, "provenance_", {}).get("measurement", measured)
    if wanted != measured:
        raise SceneError(
            f"The model was fitted on {wanted}, but these spectra hold {measured}. Give it "
            f"{wanted}, or fit another model."
        )
    array = spectra[measured]
    _require_count(model, array.shape[1], f"spectra of {array.shape[1]} {array.dims[1]}s")
    return Inputs((array,), ("sample",), None, spectra.get(ANGLE))


def _with_bands(dataset: xr.Dataset | xr.DataArray) -> xr.DataArray | None:
    """Return the one array of a dataset that has all bands, if there is one."""
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
            f"(image.rename(...)), or give a Dataset of named bands."
        )
    return None


def _of_bands(model: Any, image: xr.DataArray, names: tuple[str, ...] | None) -> Inputs:
    pixels, dim = image.dims[:-1], image.dims[-1]
    if names is None:
        _require_count(model, image.sizes[dim], f"an image of {image.sizes[dim]} bands")
        return Inputs((image,), pixels, None)
    own = _band_names(image, str(dim))
    if own is None:
        raise SceneError(
            f"The model knows its bands by name ({', '.join(names)}), but those of the image have "
            f'none. Name them: image.assign_coords({dim}=["...", ...]).'
        )
    absent = [name for name in names if name not in own]
    if absent:
        raise MissingBandsError("the image", "The model", absent)
    order = [own.index(name) for name in names]
    if order != list(range(len(own))):
        image = image.isel({dim: order})
    return Inputs((image,), pixels, names)


def _band_names(image: xr.DataArray, dim: str) -> list[str] | None:
    if dim in image.coords and image[dim].dtype.kind in "UO":
        return [str(name) for name in image[dim].values]
    told = image.attrs.get("long_name")
    if isinstance(told, (tuple, list)) and len(told) == image.sizes[dim]:
        return [str(name) for name in told]
    return None


def _of_variables(dataset: xr.Dataset, names: tuple[str, ...]) -> tuple[Inputs, xr.Dataset] | None:
    """Return the variables of these names, or None if they are to be computed from bands."""
    by_description = {
        str(array.attrs["long_name"]): name
        for name, array in dataset.data_vars.items()
        if isinstance(array.attrs.get("long_name"), str)
    }
    wanted = [name if name in dataset else by_description.get(name) for name in names]
    if None not in wanted:
        dims = dataset[wanted[0]].dims
        arrays = [dataset[name].broadcast_like(dataset[wanted[0]]) for name in wanted]
        columns = tuple(array.transpose(*dims) for array in arrays)
        return Inputs(columns, dims, names), dataset
    if not set(names) <= set(FEATURES):
        absent = [name for name, found in zip(names, wanted, strict=True) if found is None]
        raise MissingBandsError("the scene", "The model", absent)
    return None


def _of_landmark(dataset: xr.Dataset, names: tuple[str, ...]) -> tuple[Inputs, xr.Dataset]:
    scene = check_scene(dataset, tuple(BANDS))
    features = landmark_features(scene, checked=True).sel(feature=list(names))
    return Inputs((features,), features.dims[:-1], names), scene


def _find_sun(
    model: Any, dataset: xr.Dataset | xr.DataArray, found: Inputs
) -> xr.DataArray | None:
    """Return the solar zenith angle of each pixel: for regimes always, else if it is there."""
    carried = isinstance(dataset, xr.Dataset) and ANGLE in dataset
    if not (carried or isinstance(model, RegimeClassifier)):
        return None
    if isinstance(dataset, xr.DataArray):
        dataset = dataset.to_dataset(name="image")
    angle = find_zenith(dataset)
    return angle.broadcast_like(found.image).transpose(*found.pixels)


def _require_count(model: Any, count: int, what: str) -> None:
    if model.n_features_in_ != count:
        raise SceneError(
            f"The model was fitted on {model.n_features_in_} features, but was given {what}. Give "
            f"it what it was fitted on, in the same order."
        )


def fill_values(array: xr.DataArray, width: int) -> np.ndarray:
    """Return the value that marks a missing pixel in each feature of an array, NaN for none.

    Values that were decoded when a file was opened are NaN already, and are not meant.
    """
    marks = [array.attrs.get(name) for name in ("_FillValue", "missing_value", "nodata")]
    mark = next((value for value in marks if value is not None), np.nan)
    return np.full(width, mark, dtype=np.float64)
