"""What of a dataset a model is asked about: its features, matched by name, and the sun."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from undulatus.errors import InputError, MissingBandsError, SceneError
from undulatus.products.judging import feature_names
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.features import FEATURES, landmark_features
from undulatus.scenes.scene import ANGLE, BANDS, check_scene, find_zenith
from undulatus.scenes.spectra import check_spectra, is_spectra, measurement

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
    features = landmark_features(scene).sel(feature=list(names))
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
