"""From a model and a scene to a map: the class of every pixel, and how far it may be believed.

A map is lazy if the scene is: blocks are classified when they are written or computed, each on one
thread, and the result is the same for any chunks. The layers of a map are in
:mod:`undulatus.products.layers`, the bits of its quality flag in
:mod:`undulatus.products.predict`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._progress import report_block, working_on
from undulatus.errors import InputError, SceneError
from undulatus.products.layers import CLASS, MASK, QUALITY, map_layers
from undulatus.products.legend import Legend
from undulatus.products.outside import require_inside
from undulatus.products.predict import (
    DOUBTFUL,
    LOW_CONFIDENCE,
    MISSING,
    OUT_OF_RANGE,
    Inputs,
    fill_values,
    find_inputs,
    predict_block,
    prediction_type,
    prepare_model,
    require_room_for_regimes,
)
from undulatus.scenes.files.writing import COSTLY, TaskCount, computing_in_threads

Array = npt.NDArray[Any]

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
    legend: Legend | None = None,
    mask: xr.DataArray | None = None,
    allow_outside: bool = False,
) -> xr.Dataset:
    """Return the map that a fitted classifier makes of a scene, an image, or spectra.

    Some pixels of a few blocks are read at once: if most of them are unlike those that the model
    learned from, an :class:`~undulatus.errors.OutsideTrainingError` names the bands that differ.

    Parameters
    ----------
    model : classifier
        A RegimeClassifier, one of ours, a Pipeline, or any scikit-learn classifier.
    dataset : Dataset or DataArray
        A scene of named variables, (time, y, x) or (y, x); an image with its bands along one
        dimension, as rioxarray opens it, (band, y, x); or spectra, (sample, channel).
        :func:`undulatus.products.predict.find_inputs` says how features are found in it.
    encoding : str
        Codes of ``cloud_mask``: one of :data:`undulatus.scenes.masks.ENCODINGS`. All but ``"cf"``
        need a model of which it is known which class is cloud.
    legend : Legend, optional
        Names, codes and colours of the classes, and which is cloud; by default what is known of
        the model (:meth:`undulatus.products.Legend.of`).
    mask : DataArray of bool, optional
        True where a pixel is left out; it may be of part of the scene, if it has coordinates.
        Pixels that are NaN, or have the value of the attribute ``_FillValue``, are left out
        anyway.
    allow_outside : bool
        Map pixels even if most of them are outside what the model learned from, and read none
        before.

    Returns
    -------
    Dataset
        With the scene's coordinates and attributes. Two classes of which one is cloud have
        ``cloud_mask`` (uint8), ``cloud_probability``, ``cloud_latent_variance`` and
        ``cloud_training_distance`` (float32), and ``quality_flag`` (bits, in uint8 or, with more
        than 15 regimes, uint16). So have the classes 0 and 1 if nothing else is known of them;
        attributes then do not speak of cloud.
        Other classes have ``class`` (uint8, with CF flags), ``class_probability``,
        ``class_latent_variance``, ``class_entropy`` (of the probabilities, nats),
        ``class_training_distance`` and ``quality_flag``. The probability is that of the second of
        two classes; of more classes, probabilities and variances have the dimension
        ``class_name``, and if one of them is cloud there are also ``cloud_mask``, cloud where its
        probability is above 1/2, and ``cloud_probability``.

        A pixel that lacks a feature has no class: a fill value, NaN, and a flag. The variance is
        NaN if the classifier has none, the distance
        (:meth:`undulatus.products.training_range.TrainingRange.distance`) if it is not one of
        ours. Maps of ensembles also have ``cloud_disagreement`` or ``class_disagreement``
        (float32), the standard deviation of the latent mean over the estimators, NaN where the
        classifier is a single model; of more than two classes it is that of the likeliest.
    """
    require_room_for_regimes(model)
    inputs = find_inputs(model, dataset)
    if mask is not None:
        mask = _matched(mask, inputs.image)
    named = Legend.of(model) if legend is None else legend.for_model(model)
    if not allow_outside:
        _require_inside(model, inputs, mask)
    predictions = _classify(model, inputs, mask)
    result = map_layers(predictions, inputs.image, dataset, model, named, encoding)
    # Data in memory are mapped here, even if a cluster is available.
    return result if inputs.lazy else result.compute(scheduler="threads")


def cloud_probability(model: Any, dataset: xr.Dataset) -> Array:
    """Return the probability of cloud of a checked scene or of checked spectra, computed.

    Of the classes 0 and 1, if neither is known to be cloud, it is that of 1, as in labels.
    """
    legend = Legend.of(model)
    cloud = legend.cloud_index
    if cloud is None and legend.classes == (0, 1):
        cloud = 1
    if cloud is None:
        raise InputError(
            f"Which class of the model is cloud is not known: it has "
            f"{', '.join(legend.names)}. Say so in a legend (--legend; "
            f"in Python undulatus.products.Legend(classes, cloud=...).attach_to(model))."
        )
    return class_probabilities(model, dataset, slice(cloud, cloud + 1))[..., 0]


def class_probabilities(model: Any, dataset: xr.Dataset, classes: slice = slice(None)) -> Array:
    """Return the probability of each class of a checked scene or of checked spectra, computed.

    The last axis is that of the classes; NaN where a feature is missing, or where no regime has
    the pixel.
    """
    inputs = find_inputs(model, dataset, checked=True)
    probability = _classify(model, inputs)["probability"][..., classes]
    how = {} if inputs.lazy else {"scheduler": "threads"}
    with working_on("classifying") as work, computing_in_threads(work.report):
        return np.asarray(probability.compute(**how))


COUNTED = (QUALITY, CLASS, MASK)
"""Layers from which the pixels of a map are counted."""

MOST_DOUBTFUL = 0.5
"""With a larger share of pixels of low confidence a map is said to be doubtful."""


@dataclass(frozen=True)
class MapSummary:
    """How many pixels a map has, and how far they may be believed.

    ``low_confidence`` and ``outside`` count pixels with a class, and are None in a map without
    ``quality_flag``. None is outside if the model was not one of ours, since it kept nothing to
    compare with. In a map of other classes than cloud, ``classes`` has the pixels of each by its
    name. Where a map is of spectra, ``what`` says so.
    """

    mapped: int
    missing: int
    low_confidence: int | None
    outside: int | None
    classes: Mapping[str, int] = field(default_factory=dict)
    what: str = "pixels"

    def __str__(self) -> str:
        pixels, mapped = max(self.mapped + self.missing, 1), max(self.mapped, 1)
        parts = [
            f"{self.mapped:,} {self.what} mapped",
            f"{self.missing:,} missing ({self.missing / pixels:.1%})",
        ]
        if self.low_confidence is not None and self.outside is not None:
            parts += [
                f"{self.low_confidence:,} of low confidence ({self.low_confidence / mapped:.1%})",
                f"{self.outside:,} outside what was learned ({self.outside / mapped:.1%})",
            ]
        shares = ", ".join(f"{name} {n / mapped:.1%}" for name, n in self.classes.items())
        return ", ".join(parts) + (f"; {shares}" if shares else "")

    @property
    def warning(self) -> str:
        """A sentence to say if most of the map is of low confidence; else empty."""
        doubtful = self.low_confidence or 0
        if not doubtful > MOST_DOUBTFUL * self.mapped:
            return ""
        return (
            f"Most of the map is doubtful: the class of {doubtful / self.mapped:.0%} of its "
            f"{self.what} has a probability below {1.0 - DOUBTFUL:g}. Label more where the model "
            f"is least sure (undulatus suggest), or take classes together that cannot be told "
            f"apart."
        )


def summarise_map(result: xr.Dataset) -> MapSummary:
    """Return how many pixels of a map are mapped, missing, of low confidence and outside.

    Reads ``quality_flag``, and ``class`` in a map that has it, block by block. In a map without
    the former, pixels are missing that have no class.
    """
    codes = next((result[name] for name in (CLASS, MASK) if name in result), None)
    counted: list[Any] = []
    if QUALITY in result:
        quality = da.asarray(result[QUALITY].data).astype(np.uint16)
        mapped = (quality & MISSING) == 0
        for bit in (LOW_CONFIDENCE, OUT_OF_RANGE):
            counted.append((mapped & ((quality & bit) > 0)).sum())
    elif codes is not None:
        values = np.atleast_1d(codes.attrs["flag_values"])
        mapped = da.isin(da.asarray(codes.data), values)
    else:
        raise SceneError(
            f"The pixels of a map are counted by one of {', '.join(COUNTED)}, but it has "
            f"{', '.join(map(str, result.data_vars))}."
        )
    counted += [mapped.sum(), (~mapped).sum()]
    names: list[str] = []
    if CLASS in result:
        own, attrs = da.asarray(result[CLASS].data), result[CLASS].attrs
        names = _names_of(attrs)
        counted += [(own == code).sum() for code in np.atleast_1d(attrs["flag_values"])]
    with working_on("counting pixels") as work, TaskCount(work.report):
        found = list(map(int, dask.compute(*counted)))
    doubtful, outside = (found.pop(0), found.pop(0)) if QUALITY in result else (None, None)
    pixels, missing, *each = found
    classes = dict(zip(names, each, strict=True))
    what = "spectra" if "sample" in result.dims else "pixels"
    return MapSummary(pixels, missing, doubtful, outside, classes, what)


def _names_of(attrs: Mapping[Any, Any]) -> list[str]:
    """Return what to call the classes of a map: their names, but for numbers their words."""
    words = str(attrs["flag_meanings"]).split()
    names = json.loads(attrs.get("class_names", "[]")) or words
    pairs = zip(words, names, strict=True)
    return [word if name[:1].isdigit() else name for word, name in pairs]


def _matched(mask: xr.DataArray, image: xr.DataArray) -> xr.DataArray:
    """Return a mask of the pixels of an image; beyond its own coordinates it leaves none out.

    A mask of other pixels is an error; one without a dimension is the same along it.
    """
    if not isinstance(mask, xr.DataArray):
        raise SceneError(
            f"The mask is a {type(mask).__name__}, but a DataArray is needed, whose dimensions "
            f"are known by name: xarray.DataArray(mask, dims={image.dims})."
        )
    partial = {}
    for dim in map(str, mask.dims):
        differs = ""
        if dim not in image.dims:
            differs = f"has a dimension {dim!r}, which the data do not have"
        elif dim in mask.indexes and dim in image.indexes:
            own, whole = mask.indexes[dim], image.indexes[dim]
            if own.equals(whole):
                continue
            partial[dim] = whole
            # Equal coordinates may repeat, as the times of two satellites do; others may not.
            if not (own.is_unique and whole.is_unique and own.isin(whole).all()):
                differs = f"has other coordinates along {dim} than the data"
        elif mask.sizes[dim] != image.sizes[dim]:
            differs = f"has {mask.sizes[dim]} pixels along {dim}, and the data {image.sizes[dim]}"
        if differs:
            raise SceneError(
                f"The mask {differs}. Give a mask of pixels of the data, with their coordinates."
            )
    return mask.reindex(partial, fill_value=False) if partial else mask


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
    """Return the predictions of all pixels, lazy, of :func:`prediction_type`."""
    blocks = _as_blocks(inputs, mask)
    known = prediction_type(model)
    return da.map_blocks(
        _classify_block,
        *blocks.features,
        *blocks.extra.values(),
        model=prepare_model(model),
        names=inputs.names,
        fills=blocks.fills,
        extra=tuple(blocks.extra),
        token=COSTLY,
        dtype=known,
        chunks=blocks.chunks,
        drop_axis=len(blocks.chunks),
        meta=np.empty((0,) * len(blocks.chunks), known),
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
    predictions = np.empty(shape, prediction_type(model))
    rows = max(1, SLAB_PIXELS // max(int(np.prod(shape[1:])), 1))
    for first in range(0, shape[0], rows):
        slab = slice(first, first + rows)
        values, sun = _as_rows([block[slab] for block in blocks], fills, extra)
        found = predict_block(model, values, names, sun)
        predictions[slab] = found.reshape(predictions[slab].shape)
        report_block(min(first + rows, shape[0]) / shape[0])
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
        # A value beyond single precision is infinite there, and missing.
        with np.errstate(over="ignore"):
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
    if not hasattr(model, "regimes_"):
        _require_common_pixels(values, inputs.names)
    first = inputs.arrays[0]
    measured = f"{first.name or 'values'} ({first.attrs.get('units', '1')})"
    require_inside(prepare_model(model), values, inputs.names, sun, measured)


def _require_common_pixels(values: Array, names: tuple[str, ...] | None) -> None:
    """Raise if every feature has values, but never in the same pixels."""
    finite = np.isfinite(values)
    if finite.any(axis=0).all() and not finite.all(axis=1).any():
        counts = np.count_nonzero(finite, axis=0)
        listed = [f"{name} in {count:,}" for name, count in zip(names or (), counts, strict=False)]
        raise SceneError(
            f"No pixel has a value of every band, of {len(values):,} looked at"
            f"{': ' if listed else ''}{', '.join(listed)}. Are they on different grids, "
            f"joined by xarray? Bring all bands to one grid first: with cdo or gdalwarp; in "
            f"Python by interp(...)."
        )


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
