"""The layers of a map: predictions of pixels as variables with CF attributes.

A map of clouds has ``cloud_mask`` and its companions, one of other classes ``class`` and its own,
and also ``cloud_mask`` if one of more than two classes is cloud. A
:class:`~undulatus.products.legend.Legend` says which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import InputError
from undulatus.products.legend import CLEAR_COLOUR, Legend
from undulatus.products.predict import has_ensemble, quality_attributes
from undulatus.scenes.files.satpy_scene import place_of
from undulatus.scenes.files.writing import add_history
from undulatus.scenes.masks import ENCODINGS, encode
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]

MASK, PROBABILITY = "cloud_mask", "cloud_probability"
"""What a map of clouds says of a pixel, ..."""

VARIANCE, DISTANCE = "cloud_latent_variance", "cloud_training_distance"
"""... how far that can be trusted, ..."""

DISAGREEMENT = "cloud_disagreement"
"""... for an ensemble also how far its estimators differ, ..."""

QUALITY = "quality_flag"
"""... and the same in bits."""

CLASS, CLASS_PROBABILITY = "class", "class_probability"
"""The same of a map of other classes, ..."""

CLASS_VARIANCE, CLASS_DISTANCE = "class_latent_variance", "class_training_distance"
"""... which has also ..."""

CLASS_DISAGREEMENT, ENTROPY = "class_disagreement", "class_entropy"
"""... the entropy of the probabilities."""

CLASS_NAME = "class_name"
"""The dimension of layers that have a value for each class, and its coordinate.

It cannot be called ``class`` as the variable is: xarray takes a variable with the name of a
dimension for its coordinate.
"""


def map_layers(
    predictions: da.Array,
    image: xr.DataArray,
    scene: xr.Dataset | xr.DataArray,
    model: Any,
    legend: Legend,
    encoding: str,
) -> xr.Dataset:
    """Return predictions of pixels as a map.

    Parameters
    ----------
    predictions : dask array
        Of :func:`undulatus.products.predict.prediction_type`.
    image : DataArray
        One feature of all pixels, with the coordinates of the map.
    scene : Dataset or DataArray
        What is mapped; its attributes are kept.
    model : classifier
    legend : Legend
        Of the model's classes, in their order.
    encoding : str
        Codes of a cloud mask, one of :data:`undulatus.scenes.masks.ENCODINGS`.
    """
    layers = _Layers(predictions, image, legend)
    if legend.cloud is None:
        _require_plain(legend, encoding)
    land = scene.get("land_mask") if isinstance(scene, xr.Dataset) else None
    if len(legend.classes) == 2 and (legend.cloud is not None or legend.is_unnamed_pair):
        found = _cloud_layers(layers, encoding, land, has_ensemble(model))
    else:
        found = _class_layers(layers, has_ensemble(model))
        if legend.cloud is not None:
            found |= _mask_and_probability(layers, encoding, land)
    subject = "classes" if CLASS in found or legend.cloud is None else "cloud mask"
    found[QUALITY] = layers.of(
        "quality", long_name=f"quality of the {subject}", **quality_attributes(model)
    )
    first, *others = found
    found[first].attrs["ancillary_variables"] = " ".join(others)
    place = place_of(scene)
    attributes = place | (scene.attrs if isinstance(scene, xr.Dataset) else {})
    history = add_history(attributes, f"{subject} by {type(model).__name__}")
    result = xr.Dataset(found, attrs={**attributes, **history})
    # Computations lose the attributes of coordinates; times that were text are times by now.
    kept = {k: c for k, c in scene.coords.items() if k in result.coords}
    kept = {k: c for k, c in kept.items() if c.dtype == result[k].dtype}
    result = result.assign_coords(kept)
    for name, array in result.data_vars.items():
        if "area" in place:
            # satpy looks for it in each array.
            result[name].attrs["area"] = place["area"]
        if array.dtype == np.float32:
            result[name].encoding = {"_FillValue": np.float32(np.nan)}
    return result


def choose_layers(maps: xr.Dataset, names: Sequence[str]) -> xr.Dataset:
    """Return a map with some of its layers, in the order of the map."""
    lacking = [name for name in names if name not in maps.data_vars]
    if lacking:
        raise InputError(
            f"The map has no layer {', '.join(lacking)}.\n"
            f"  layers: {', '.join(map(str, maps.data_vars))}\nChoose some of these (--layers)."
        )
    chosen = maps[[name for name in maps.data_vars if name in names]]
    first, *others = chosen.data_vars.values()
    first.attrs.pop("ancillary_variables", None)
    if others:
        first.attrs["ancillary_variables"] = " ".join(str(array.name) for array in others)
    return chosen


@dataclass(frozen=True)
class _Layers:
    """Fields of predictions as DataArrays with the coordinates of the map."""

    predictions: da.Array
    image: xr.DataArray
    legend: Legend

    def of(self, field: str, index: int | None = None, **attrs: Any) -> xr.DataArray:
        """Return a field, or of a field with several values a pixel the one with this index."""
        values = self.predictions[field]
        return self.wrap(values if index is None else values[..., index], **attrs)

    def of_each_class(self, field: str, **attrs: Any) -> xr.DataArray:
        """Return a field with a value for each class, (class_name, ...)."""
        values = da.moveaxis(self.predictions[field], -1, 0)
        layer = self.wrap(values, **attrs)
        # Zarr has no specification for strings of a fixed length.
        names = np.array(self.legend.names, object)
        coordinate = (CLASS_NAME, names, {"long_name": "name of the class"})
        return layer.assign_coords({CLASS_NAME: coordinate})

    def computed(self, function: Any, dtype: Any, **attrs: Any) -> xr.DataArray:
        """Return what a function makes of blocks of predictions: a value for each pixel."""
        meta = np.empty((0,) * self.predictions.ndim, dtype)
        return self.wrap(
            da.map_blocks(function, self.predictions, dtype=dtype, meta=meta), **attrs
        )

    def wrap(self, values: da.Array, **attrs: Any) -> xr.DataArray:
        """Return values of pixels with their coordinates; those of classes come first."""
        coords = {name: c for name, c in self.image.coords.items() if name != "feature"}
        grid = {"grid_mapping": "spatial_ref"} if "spatial_ref" in coords else {}
        dims = (
            self.image.dims if values.ndim == self.image.ndim else (CLASS_NAME, *self.image.dims)
        )
        return xr.DataArray(values, dims=dims, coords=coords, attrs=attrs | grid)

    def distance(self) -> xr.DataArray:
        """Return the distance from the training data."""
        return self.of(
            "distance",
            long_name="distance from the training data, zero within them",
            units="1",
            comment="in units of the central 98 % of the training values of a feature",
        )

    def disagreement(self, of_what: str) -> xr.DataArray:
        """Return how far the estimators of an ensemble differ."""
        return self.of(
            "disagreement",
            long_name=f"standard deviation of the {of_what} over the members of the ensemble",
            units="1",
        )


# Two classes of which one is cloud, or that are called 0 and 1


def _cloud_layers(
    layers: _Layers, encoding: str, land: xr.DataArray | None, ensemble: bool
) -> dict[str, xr.DataArray]:
    cloud = _cloud_words(layers.legend)
    return {
        **_mask_and_probability(layers, encoding, land),
        VARIANCE: layers.of(
            "variance",
            0,
            long_name=f"variance of the latent function, the log odds of {cloud}",
            units="1",
        ),
        **({DISAGREEMENT: layers.disagreement(f"log odds of {cloud}")} if ensemble else {}),
        DISTANCE: layers.distance(),
    }


def _cloud_words(legend: Legend) -> str:
    return f"class {legend.names[1]}" if legend.cloud is None else "cloud"


def _mask_and_probability(
    layers: _Layers, encoding: str, land: xr.DataArray | None
) -> dict[str, xr.DataArray]:
    """Return the probability of cloud among any number of classes, and where it is above 1/2."""
    legend = layers.legend
    index = 1 if legend.cloud_index is None else legend.cloud_index
    probability = layers.of(
        "probability", index, long_name=f"probability of {_cloud_words(legend)}", units="1"
    )
    labels = (probability > 0.5).astype(np.uint8)
    labels = labels.where(probability.notnull(), np.uint8(MISSING_CODE))
    mask = encode(labels, encoding, land)
    cloud = legend.colours[index]
    clear = legend.colours[1 - index] if len(legend.classes) == 2 else CLEAR_COLOUR
    mask.attrs["flag_colors"] = ENCODINGS[encoding].flag_colors(clear, cloud)
    if legend.cloud is None:
        mask.attrs = {
            "long_name": "class",
            "flag_values": np.array([0, 1], np.uint8),
            "flag_meanings": legend.flag_meanings,
            "flag_colors": legend.flag_colors,
            "class_names": legend.class_names,
            "_FillValue": np.uint8(MISSING_CODE),
        }
    grid = {key: probability.attrs[key] for key in ("grid_mapping",) if key in probability.attrs}
    return {MASK: mask.assign_attrs(grid), PROBABILITY: probability}


def _require_plain(legend: Legend, encoding: str) -> None:
    if encoding != "cf":
        raise InputError(
            f"The encoding {encoding!r} is one of cloud masks, but it is not known which of the "
            f"model's classes ({', '.join(legend.names)}) is cloud. Say so in a legend (--legend, "
            f"in Python legend=Legend(classes, cloud=...)), or use the encoding 'cf'."
        )


# Any other classes


def _class_layers(layers: _Layers, ensemble: bool) -> dict[str, xr.DataArray]:
    legend = layers.legend
    codes, missing = np.array(legend.codes, np.uint8), np.uint8(legend.missing)

    def code(block: Array) -> Array:
        probability = block["probability"]
        likeliest = codes[np.argmax(probability, axis=-1)]
        return np.where(np.isnan(probability[..., 0]), missing, likeliest)

    classes = layers.computed(
        code,
        np.uint8,
        long_name="class",
        flag_values=codes,
        flag_meanings=legend.flag_meanings,
        flag_colors=legend.flag_colors,
        class_names=legend.class_names,
        _FillValue=missing,
    )
    entropy = layers.computed(
        _entropy,
        np.float32,
        long_name="entropy of the probabilities of the classes",
        units="1",
        comment="in nats",
    )
    return {
        CLASS: classes,
        **_of_classes(layers),
        ENTROPY: entropy,
        **({CLASS_DISAGREEMENT: layers.disagreement(_odds(legend))} if ensemble else {}),
        CLASS_DISTANCE: layers.distance(),
    }


def _of_classes(layers: _Layers) -> dict[str, xr.DataArray]:
    """Return probabilities and variances: of each class, or of the second of two."""
    if len(layers.legend.classes) > 2:
        return {
            CLASS_PROBABILITY: layers.of_each_class(
                "probability", long_name="probability of each class", units="1"
            ),
            CLASS_VARIANCE: layers.of_each_class(
                "variance", long_name="variance of the latent function of each class", units="1"
            ),
        }
    second = layers.legend.names[1]
    return {
        CLASS_PROBABILITY: layers.of(
            "probability", 1, long_name=f"probability of {second}", units="1"
        ),
        CLASS_VARIANCE: layers.of(
            "variance",
            0,
            long_name=f"variance of the latent function, the {_odds(layers.legend)}",
            units="1",
        ),
    }


def _odds(legend: Legend) -> str:
    if len(legend.classes) > 2:
        return "latent function of the likeliest class"
    return f"log odds of {legend.names[1]}"


def _entropy(block: Array) -> Array:
    """Return -Σ p log p of each pixel in nats, where p log p is 0 for p = 0."""
    p = block["probability"].astype(np.float64)
    return np.asarray(-np.sum(p * np.log(np.where(p == 0.0, 1.0, p)), axis=-1), np.float32)
