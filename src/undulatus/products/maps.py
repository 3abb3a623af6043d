"""From a model and a scene to a map: mask, probability, variance and quality of every pixel.

A map is lazy when the scene is: blocks are classified when they are written or asked for, each
on one thread, and the result is the same for any chunks.
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
    Inputs,
    fill_values,
    find_inputs,
    predict_block,
    prepare_model,
    quality_attributes,
)
from undulatus.scenes.masks import encode
from undulatus.scenes.scene import MISSING_CODE, check_calibration

Array = npt.NDArray[Any]

BLOCK_PIXELS = 250_000
"""Pixels in a block of a scene that is not chunked yet."""

SLAB_PIXELS = 65_536
"""Pixels of a block whose features are side by side in memory at a time."""


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
        How ``cloud_mask`` is written: one of :data:`undulatus.scenes.masks.ENCODINGS`.
    mask : DataArray of bool, optional
        True where a pixel is to be left out. Pixels of NaN, or of the value that the attribute
        ``_FillValue`` gives, are left out anyway.

    Returns
    -------
    Dataset
        ``cloud_mask`` (uint8), ``cloud_probability`` and ``cloud_latent_variance`` (float32),
        ``quality_flag`` (uint8 bits), with the scene's coordinates and attributes. Pixels
        without all they need have no class: the mask's fill value, NaN, and a flag. The variance
        is NaN if the classifier has none.
    """
    if isinstance(dataset, xr.Dataset):
        check_calibration(dataset, getattr(model, "provenance_", {}).get("calibration_mode"))
    inputs = find_inputs(model, dataset)
    in_memory = not any(isinstance(array.data, da.Array) for array in inputs.arrays)
    blocks = [_in_blocks(array, inputs) for array in inputs.arrays]
    outer = blocks[0].chunks[: len(inputs.pixels)]
    extra = {
        name: _alike(array, inputs, outer)
        for name, array in (("sun", inputs.sun), ("mask", mask))
        if array is not None
    }
    fills = [
        fill_values(array, b.shape[-1]) for array, b in zip(inputs.arrays, blocks, strict=True)
    ]
    found = da.map_blocks(
        _classify,
        *(block.rechunk((*outer, -1)) for block in blocks),
        *extra.values(),
        model=prepare_model(model),
        names=inputs.names,
        fills=np.concatenate(fills),
        extra=tuple(extra),
        dtype=np.float32,
        chunks=(*outer, (3,)),
        meta=np.empty((0,) * (len(outer) + 1), np.float32),
    )
    result = _as_dataset(found, inputs.image, dataset, model, encoding)
    # What is in memory here is mapped here, also if a cluster is at hand.
    return result.compute(scheduler="threads") if in_memory else result


def _in_blocks(array: xr.DataArray, inputs: Inputs) -> da.Array:
    """Return an array in dask blocks, its features last, cut along its first dimension."""
    data = array.data
    if not isinstance(data, da.Array):
        each = int(np.prod([array.sizes[dim] for dim in inputs.pixels[1:]]))
        first = max(1, BLOCK_PIXELS // max(each, 1))
        data = da.from_array(data, chunks=(first, *([-1] * (data.ndim - 1))))
    return data if inputs.stacked else data[..., None]


def _alike(array: xr.DataArray, inputs: Inputs, chunks: tuple[Any, ...]) -> da.Array:
    """Return one more value a pixel, in the blocks of the features."""
    spread = array.broadcast_like(inputs.image).transpose(*inputs.pixels)
    data = spread.data if isinstance(spread.data, da.Array) else da.from_array(spread.data)
    return data.rechunk(chunks)[..., None]


def _classify(
    *blocks: Array,
    model: Any,
    names: tuple[str, ...] | None,
    fills: Array,
    extra: tuple[str, ...],
) -> Array:
    """Return probability, variance and quality of the pixels of a block, (..., 3)."""
    features = blocks[: len(blocks) - len(extra)]
    more = dict(zip(extra, blocks[len(features) :], strict=True))
    shape = features[0].shape[:-1]
    result = np.empty((*shape, 3), np.float32)
    rows = max(1, SLAB_PIXELS // max(int(np.prod(shape[1:])), 1))
    for first in range(0, shape[0], rows):
        slab = slice(first, first + rows)
        values = _side_by_side([block[slab] for block in features], fills)
        if "mask" in more:
            values = np.where(more["mask"][slab].reshape(-1, 1), np.float32(np.nan), values)
        sun = more["sun"][slab].ravel() if "sun" in more else None
        judged = predict_block(model, values, names, sun)
        result[slab] = np.stack(judged, axis=-1).reshape(result[slab].shape)
    return result


def _side_by_side(blocks: list[Array], fills: Array) -> Array:
    """Return features as columns, (pixels, features) float32, missing ones NaN."""
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
    found: da.Array,
    image: xr.DataArray,
    scene: xr.Dataset | xr.DataArray,
    model: Any,
    encoding: str,
) -> xr.Dataset:
    coords = {name: c for name, c in image.coords.items() if name != "feature"}
    grid = {"grid_mapping": "spatial_ref"} if "spatial_ref" in coords else {}

    def layer(index: int, **attrs: Any) -> xr.DataArray:
        return xr.DataArray(found[..., index], dims=image.dims, coords=coords, attrs=attrs | grid)

    probability = layer(0, long_name="probability of cloud", units="1")
    labels = (probability > 0.5).astype(np.uint8)
    labels = labels.where(probability.notnull(), np.uint8(MISSING_CODE))
    land = scene.get("land_mask") if isinstance(scene, xr.Dataset) else None
    mask = encode(labels, encoding, land)
    attributes = scene.attrs if isinstance(scene, xr.Dataset) else {}
    result = xr.Dataset(
        {
            "cloud_mask": mask.assign_attrs(
                grid, ancillary_variables="cloud_probability cloud_latent_variance quality_flag"
            ),
            "cloud_probability": probability,
            "cloud_latent_variance": layer(
                1, long_name="variance of the latent function, the log odds of cloud", units="1"
            ),
            "quality_flag": layer(2, **quality_attributes(model), **grid).astype(np.uint8),
        },
        attrs={**attributes, **_history(attributes, model)},
    )
    # Attributes of coordinates are lost on the way through computations.
    result = result.assign_coords({k: c for k, c in scene.coords.items() if k in result.coords})
    for name in ("cloud_probability", "cloud_latent_variance"):
        result[name].encoding = {"_FillValue": np.float32(np.nan)}
    return result


def _history(attributes: dict[Any, Any], model: Any) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{now} undulatus {version('undulatus')}: cloud mask by {type(model).__name__}"
    earlier = str(attributes.get("history", ""))
    return {"history": f"{earlier}\n{line}".strip(), "Conventions": "CF-1.11"}
