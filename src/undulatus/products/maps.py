"""From a model and a scene to a map: the mask of every pixel, and how far it may be believed.

A map is lazy if the scene is: blocks are classified when they are written or computed, each on one
thread, and the result is the same for any chunks. The bits of the quality flag are in
:mod:`undulatus.products.predict`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.products.outside import require_inside
from undulatus.products.predict import (
    LOW_CONFIDENCE,
    MISSING,
    OUT_OF_RANGE,
    PREDICTION,
    Inputs,
    fill_values,
    find_inputs,
    has_committee,
    predict_block,
    prepare_model,
    quality_attributes,
)
from undulatus.scenes.masks import encode
from undulatus.scenes.scene import MISSING_CODE

Array = npt.NDArray[Any]

MASK, PROBABILITY = "cloud_mask", "cloud_probability"
"""What a map says of a pixel, ..."""

VARIANCE, DISTANCE = "cloud_latent_variance", "cloud_training_distance"
"""... how far that can be trusted, ..."""

DISAGREEMENT = "cloud_disagreement"
"""... for a committee also how far its members differ, ..."""

QUALITY = "quality_flag"
"""... and the same in bits."""

BLOCK_PIXELS = 250_000
"""Pixels in a block of a scene that is not chunked yet."""

SLAB_PIXELS = 65_536
"""Pixels of a block whose features are in one matrix at a time."""

SAMPLE_PIXELS, SAMPLE_VALUES = 50_000, 4_000_000
"""At most so many pixels, and values in them, are compared with training before a map ..."""

SAMPLE_BLOCKS = 8
"""... from at most so many blocks, if these are not all the pixels."""


def map_scene(
    model: Any,
    dataset: xr.Dataset | xr.DataArray,
    *,
    encoding: str = "cf",
    mask: xr.DataArray | None = None,
    allow_outside: bool = False,
) -> xr.Dataset:
    """Return the map that a fitted classifier makes of a scene, an image, or spectra.

    Some pixels of a few blocks are read at once: if most of them are unlike those that the model
    learned from, an :class:`~undulatus.errors.OutsideTrainingError` names the bands that differ.

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
    allow_outside : bool
        Map pixels even if most of them are outside what the model learned from, and read none
        before.

    Returns
    -------
    Dataset
        ``cloud_mask`` (uint8), ``cloud_probability``, ``cloud_latent_variance`` and
        ``cloud_training_distance`` (float32), ``quality_flag`` (uint8 bits), with the scene's
        coordinates and attributes. A pixel that lacks a feature has no class: the mask's fill
        value, NaN, and a flag. The variance is NaN if the classifier has none, the distance
        (:meth:`undulatus.products.training_range.TrainingRange.distance`) if it is not one of
        ours. Maps of committees also have ``cloud_disagreement`` (float32), the standard deviation
        of the latent mean over the members, NaN where the classifier is a single model.
    """
    inputs = find_inputs(model, dataset)
    if not allow_outside:
        _require_inside(model, inputs, mask)
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


@dataclass(frozen=True)
class MapSummary:
    """How many pixels a map has, and how far they may be believed.

    ``low_confidence`` and ``outside`` count pixels with a class. None is outside if the model was
    not one of ours, since it kept nothing to compare with.
    """

    mapped: int
    missing: int
    low_confidence: int
    outside: int

    def __str__(self) -> str:
        pixels, mapped = max(self.mapped + self.missing, 1), max(self.mapped, 1)
        return (
            f"{self.mapped:,} pixels mapped, {self.missing:,} missing "
            f"({self.missing / pixels:.1%}), {self.low_confidence:,} of low confidence "
            f"({self.low_confidence / mapped:.1%}), {self.outside:,} outside what was learned "
            f"({self.outside / mapped:.1%})"
        )


def summarise_map(result: xr.Dataset) -> MapSummary:
    """Return how many pixels of a map are mapped, missing, of low confidence and outside.

    Reads ``quality_flag`` alone, block by block.
    """
    quality = da.asarray(result[QUALITY].data).astype(np.uint8)
    mapped = (quality & MISSING) == 0
    counted = [
        mapped.sum(),
        (~mapped).sum(),
        (mapped & ((quality & LOW_CONFIDENCE) > 0)).sum(),
        (mapped & ((quality & OUT_OF_RANGE) > 0)).sum(),
    ]
    return MapSummary(*map(int, dask.compute(*counted)))


# Blocks of pixels


@dataclass(frozen=True)
class _Blocks:
    """Features in dask arrays of equal blocks, features last, and further values of each pixel."""

    features: list[da.Array]
    extra: dict[str, da.Array]
    """The solar zenith angle ``sun`` and the ``mask``, where there are any."""
    fills: Array
    """The value that marks a missing pixel in each feature; NaN for none."""

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of the blocks along the dimensions of pixels."""
        return tuple(self.features[0].chunks[:-1])


def _as_blocks(inputs: Inputs, mask: xr.DataArray | None) -> _Blocks:
    blocks = [_in_blocks(array, inputs) for array in inputs.arrays]
    outer = blocks[0].chunks[: len(inputs.pixels)]
    fills = [
        fill_values(array, b.shape[-1]) for array, b in zip(inputs.arrays, blocks, strict=True)
    ]
    return _Blocks(
        [block.rechunk((*outer, -1)) for block in blocks],
        {
            name: _in_the_same_blocks(array, inputs, outer)
            for name, array in (("sun", inputs.sun), ("mask", mask))
            if array is not None
        },
        np.concatenate(fills),
    )


def _classify(model: Any, inputs: Inputs, mask: xr.DataArray | None = None) -> da.Array:
    """Return the predictions of all pixels, lazy, of :data:`PREDICTION`."""
    blocks = _as_blocks(inputs, mask)
    return da.map_blocks(
        _classify_block,
        *blocks.features,
        *blocks.extra.values(),
        model=prepare_model(model),
        names=inputs.names,
        fills=blocks.fills,
        extra=tuple(blocks.extra),
        dtype=PREDICTION,
        chunks=blocks.chunks,
        drop_axis=len(blocks.chunks),
        meta=np.empty((0,) * len(blocks.chunks), PREDICTION),
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
    shape = blocks[0].shape[:-1]
    predictions = np.empty(shape, PREDICTION)
    rows = max(1, SLAB_PIXELS // max(int(np.prod(shape[1:])), 1))
    for first in range(0, shape[0], rows):
        slab = slice(first, first + rows)
        values, sun = _as_rows([block[slab] for block in blocks], fills, extra)
        found = predict_block(model, values, names, sun)
        predictions[slab] = found.reshape(predictions[slab].shape)
    return predictions


def _as_rows(
    blocks: list[Array], fills: Array, extra: tuple[str, ...]
) -> tuple[Array, Array | None]:
    """Return the features of pixels, (pixels, features), NaN where missing, and their sun."""
    features = blocks[: len(blocks) - len(extra)]
    more = dict(zip(extra, blocks[len(features) :], strict=True))
    values = _as_matrix(features, fills)
    if "mask" in more:
        values = np.where(more["mask"].reshape(-1, 1), np.float32(np.nan), values)
    return values, more["sun"].ravel() if "sun" in more else None


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


# Some pixels to compare with training


def _require_inside(model: Any, inputs: Inputs, mask: xr.DataArray | None) -> None:
    """Raise an error if most of some pixels are outside what the model learned from."""
    blocks = _as_blocks(inputs, mask)
    width = len(blocks.fills)
    windows = _spread_windows(blocks.chunks, min(SAMPLE_PIXELS, SAMPLE_VALUES // width))
    arrays = [*blocks.features, *blocks.extra.values()]
    how = {} if inputs.lazy else {"scheduler": "threads"}
    parts = dask.compute([[array[window] for array in arrays] for window in windows], **how)[0]
    rows = [_as_rows(part, blocks.fills, tuple(blocks.extra)) for part in parts]
    values = np.concatenate([value for value, _ in rows])
    suns = [sun for _, sun in rows if sun is not None]
    sun = np.concatenate(suns) if suns else None
    first = inputs.arrays[0]
    measured = f"{first.name or 'values'} ({first.attrs.get('units', '1')})"
    require_inside(prepare_model(model), values, inputs.names, sun, measured)


def _spread_windows(
    chunks: tuple[tuple[int, ...], ...], pixels: int
) -> Iterator[tuple[slice, ...]]:
    """Yield windows with about so many pixels in total: of everything, or of a few blocks.

    Blocks are spread over the whole, and pixels over each block. The choice is always the same.
    """
    if math.prod(sum(sizes) for sizes in chunks) <= pixels:
        yield tuple(slice(None) for _ in chunks)
        return
    chosen = _spread_blocks(tuple(len(sizes) for sizes in chunks))
    for block in chosen:
        size = [sizes[i] for i, sizes in zip(block, chunks, strict=True)]
        start = [sum(sizes[:i]) for i, sizes in zip(block, chunks, strict=True)]
        steps = _strides(size, max(1, pixels // len(chosen)))
        yield tuple(
            slice(begin, begin + length, step)
            for begin, length, step in zip(start, size, steps, strict=True)
        )


def _spread_blocks(counts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return some blocks of a grid, no row or column of it more often than it must be."""
    if math.prod(counts) <= SAMPLE_BLOCKS:
        return list(np.ndindex(*counts))
    # Multiples of powers of the root of g^(k+1) = g + 1 in k dimensions fill the unit cube evenly.
    root = 2.0
    for _ in range(50):
        root = (1.0 + root) ** (1.0 / (len(counts) + 1))
    shifts = root ** -np.arange(1.0, len(counts) + 1)
    places = (0.5 + np.outer(np.arange(SAMPLE_BLOCKS), shifts)) % 1.0
    found = (places * counts).astype(int)
    return sorted({tuple(map(int, block)) for block in found})


def _strides(sizes: list[int], pixels: int) -> list[int]:
    """Return the steps along each dimension that leave at most so many pixels of a block."""
    steps = [1] * len(sizes)
    while True:
        left = [-(-size // step) for size, step in zip(sizes, steps, strict=True)]
        if math.prod(left) <= pixels:
            return steps
        longest = int(np.argmax(left))
        # 2, 4, 7, 11, 17, 26: few common factors with the hours of a day or the lines of a sensor.
        steps[longest] = steps[longest] * 3 // 2 + 1


# The map as a dataset


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
    disagreement = layer(
        "disagreement",
        long_name="standard deviation of the log odds of cloud over the members of the committee",
        units="1",
    )
    of_committee = {DISAGREEMENT: disagreement} if has_committee(model) else {}
    uncertain = (PROBABILITY, VARIANCE, *of_committee, DISTANCE)
    related = {"ancillary_variables": " ".join((*uncertain, QUALITY))}
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
            **of_committee,
            DISTANCE: layer(
                "distance",
                long_name="distance from the training data, zero within them",
                units="1",
                comment="in units of the central 98 % of the training values of a feature",
            ),
            QUALITY: layer("quality", **quality_attributes(model)),
        },
        attrs={**attributes, **_history(attributes, model)},
    )
    # Computations lose the attributes of coordinates.
    result = result.assign_coords({k: c for k, c in scene.coords.items() if k in result.coords})
    for name in uncertain:
        result[name].encoding = {"_FillValue": np.float32(np.nan)}
    return result


def _history(attributes: dict[Any, Any], model: Any) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{now} undulatus {version('undulatus')}: cloud mask by {type(model).__name__}"
    earlier = str(attributes.get("history", ""))
    return {"history": f"{earlier}\n{line}".strip(), "Conventions": "CF-1.11"}
