"""From a model and a scene to a map: mask, probability, variance and quality of every pixel.

A map is lazy if the scene is: blocks are classified when they are written or computed, each on one
thread, and the result is the same for any chunks. The bits of the quality flag are in
:mod:`undulatus.products.predict`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.products.predict import (
    PREDICTION,
    Inputs,
    fill_values,
    find_inputs,
    predict_block,
    prepare_model,
    quality_attributes,
)
from undulatus.scenes.masks import encode
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]

MASK, PROBABILITY = "cloud_mask", "cloud_probability"
"""What a map says of a pixel, ..."""

VARIANCE, QUALITY = "cloud_latent_variance", "quality_flag"
"""... and how far that can be trusted."""

BLOCK_PIXELS = 250_000
"""Pixels in a block of a scene that is not chunked yet."""

SLAB_PIXELS = 65_536
"""Pixels of a block whose features are in one matrix at a time."""


def map_scene(
    model: Any,
    dataset: xr.Dataset | xr.DataArray,
    *,
    encoding: str = "cf",
    mask: xr.DataArray | None = None,
) -> xr.Dataset:
    """Return the map that a fitted classifier makes of a scene, an image, or spectra.

    Parameters
    ----------
    model : classifier
        A RegimeClassifier, one of ours, a Pipeline, or any scikit-learn classifier of two classes,
        the second being cloud.
    dataset : Dataset or DataArray
        A scene of named variables, (time, y, x) or (y, x); an image with its bands along one
        dimension, as rioxarray opens it, (band, y, x); or spectra, (sample, channel).
        :func:`undulatus.products.predict.find_inputs` says how features are found in it.
    encoding : str
        Codes of ``cloud_mask``: one of :data:`undulatus.scenes.masks.ENCODINGS`.
    mask : DataArray of bool, optional
        True where a pixel is left out. Pixels that are NaN, or have the value of the attribute
        ``_FillValue``, are left out anyway.

    Returns
    -------
    Dataset
        ``cloud_mask`` (uint8), ``cloud_probability`` and ``cloud_latent_variance`` (float32),
        ``quality_flag`` (uint8 bits), with the scene's coordinates and attributes. A pixel that
        lacks a feature has no class: the mask's fill value, NaN, and a flag. The variance is NaN
        if the classifier has none.
    """
    inputs = find_inputs(model, dataset)
    predictions = _classify(model, inputs, mask)
    result = _as_dataset(predictions, inputs.image, dataset, model, encoding)
    # Data in memory are mapped here, even if a cluster is available.
    return result if inputs.lazy else result.compute(scheduler="threads")


def cloud_probability(model: Any, dataset: xr.Dataset) -> Array:
    """Return the probability of cloud of a checked scene or of checked spectra, computed."""
    inputs = find_inputs(model, dataset, checked=True)
    probability = _classify(model, inputs)["probability"]
    how = {} if inputs.lazy else {"scheduler": "threads"}
    return np.asarray(probability.compute(**how))


def _classify(model: Any, inputs: Inputs, mask: xr.DataArray | None = None) -> da.Array:
    """Return the predictions of all pixels, lazy, of :data:`PREDICTION`."""
    blocks = [_in_blocks(array, inputs) for array in inputs.arrays]
    outer = blocks[0].chunks[: len(inputs.pixels)]
    extra = {
        name: _in_the_same_blocks(array, inputs, outer)
        for name, array in (("sun", inputs.sun), ("mask", mask))
        if array is not None
    }
    fills = [
        fill_values(array, b.shape[-1]) for array, b in zip(inputs.arrays, blocks, strict=True)
    ]
    return da.map_blocks(
        _classify_block,
        *(block.rechunk((*outer, -1)) for block in blocks),
        *extra.values(),
        model=prepare_model(model),
        names=inputs.names,
        fills=np.concatenate(fills),
        extra=tuple(extra),
        dtype=PREDICTION,
        chunks=outer,
        drop_axis=len(outer),
        meta=np.empty((0,) * len(outer), PREDICTION),
    )


def _in_blocks(array: xr.DataArray, inputs: Inputs) -> da.Array:
    """Return an array in dask blocks, with its features last."""
    data = array.data
    if not isinstance(data, da.Array):
        each = int(np.prod([array.sizes[dim] for dim in inputs.pixels[1:]]))
        first = max(1, BLOCK_PIXELS // max(each, 1))
        data = da.from_array(data, chunks=(first, *([-1] * (data.ndim - 1))))
    return data if inputs.stacked else data[..., None]


def _in_the_same_blocks(array: xr.DataArray, inputs: Inputs, chunks: tuple[Any, ...]) -> da.Array:
    """Return one more value for each pixel, in the blocks of the features."""
    spread = array.broadcast_like(inputs.image).transpose(*inputs.pixels)
    data = spread.data if isinstance(spread.data, da.Array) else da.from_array(spread.data)
    return data.rechunk(chunks)[..., None]


def _classify_block(
    *blocks: Array,
    model: Any,
    names: tuple[str, ...] | None,
    fills: Array,
    extra: tuple[str, ...],
) -> Array:
    """Return the predictions of the pixels of a block."""
    features = blocks[: len(blocks) - len(extra)]
    more = dict(zip(extra, blocks[len(features) :], strict=True))
    shape = features[0].shape[:-1]
    predictions = np.empty(shape, PREDICTION)
    rows = max(1, SLAB_PIXELS // max(int(np.prod(shape[1:])), 1))
    for first in range(0, shape[0], rows):
        slab = slice(first, first + rows)
        values = _as_matrix([block[slab] for block in features], fills)
        if "mask" in more:
            values = np.where(more["mask"][slab].reshape(-1, 1), np.float32(np.nan), values)
        sun = more["sun"][slab].ravel() if "sun" in more else None
        found = predict_block(model, values, names, sun)
        predictions[slab] = found.reshape(predictions[slab].shape)
    return predictions


def _as_matrix(blocks: list[Array], fills: Array) -> Array:
    """Return features as columns, (pixels, features) float32, with NaN for fill values."""
    marked = np.isfinite(fills).any()
    if len(blocks) == 1 and blocks[0].dtype == np.float32 and not marked:
        return blocks[0].reshape(-1, len(fills))
    values = np.empty((blocks[0][..., 0].size, len(fills)), np.float32)
    start = 0
    for block in blocks:
        columns = slice(start, start + block.shape[-1])
        raw = block.reshape(-1, block.shape[-1])
        values[:, columns] = raw
        if marked:
            values[:, columns][raw == fills[columns]] = np.nan
        start = columns.stop
    return values


def _as_dataset(
    predictions: da.Array,
    image: xr.DataArray,
    scene: xr.Dataset | xr.DataArray,
    model: Any,
    encoding: str,
) -> xr.Dataset:
    coords = {name: c for name, c in image.coords.items() if name != "feature"}
    grid = {"grid_mapping": "spatial_ref"} if "spatial_ref" in coords else {}

    def layer(field: str, **attrs: Any) -> xr.DataArray:
        return xr.DataArray(predictions[field], dims=image.dims, coords=coords, attrs=attrs | grid)

    probability = layer("probability", long_name="probability of cloud", units="1")
    labels = (probability > 0.5).astype(np.uint8)
    labels = labels.where(probability.notnull(), np.uint8(MISSING_CODE))
    land = scene.get("land_mask") if isinstance(scene, xr.Dataset) else None
    related = {"ancillary_variables": f"{PROBABILITY} {VARIANCE} {QUALITY}"}
    attributes = scene.attrs if isinstance(scene, xr.Dataset) else {}
    result = xr.Dataset(
        {
            MASK: encode(labels, encoding, land).assign_attrs(grid, **related),
            PROBABILITY: probability,
            VARIANCE: layer(
                "variance",
                long_name="variance of the latent function, the log odds of cloud",
                units="1",
            ),
            QUALITY: layer("quality", **quality_attributes(model)),
        },
        attrs={**attributes, **_history(attributes, model)},
    )
    # Computations lose the attributes of coordinates.
    result = result.assign_coords({k: c for k, c in scene.coords.items() if k in result.coords})
    for name in (PROBABILITY, VARIANCE):
        result[name].encoding = {"_FillValue": np.float32(np.nan)}
    return result


def _history(attributes: dict[Any, Any], model: Any) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{now} undulatus {version('undulatus')}: cloud mask by {type(model).__name__}"
    earlier = str(attributes.get("history", ""))
    return {"history": f"{earlier}\n{line}".strip(), "Conventions": "CF-1.11"}
