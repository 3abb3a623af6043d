"""From a model and a scene to a map: mask, probability, variance and quality of every pixel.

A map is lazy when the scene is: blocks are classified when they are written or asked for, each
on one thread, and the result is the same for any chunks.
"""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError, MissingBandsError
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.features import FEATURES, landmark_features
from undulatus.scenes.masks import encode
from undulatus.scenes.scene import (
    BANDS,
    MISSING_LABEL,
    check_calibration,
    check_scene,
    find_zenith,
)

Array = npt.NDArray[Any]

ANGLE = "solar_zenith_angle"
BLOCK_PIXELS = 250_000
"""Pixels in a block of a scene that is not chunked yet."""
DOUBTFUL = 0.2
"""A pixel is of low confidence if both classes are likelier than this."""
TERMINATOR = (85.0, 95.0)
"""Solar zenith angles, degrees, between which day turns to night."""
LOW_CONFIDENCE, OUT_OF_RANGE, NEAR_TERMINATOR, MISSING = 1, 2, 4, 8
REGIME_SHIFT = 4
"""The regime's number, counted from one, is written in the bits from here on; zero is none."""


def map_scene(model: Any, dataset: xr.Dataset, *, encoding: str = "cf") -> xr.Dataset:
    """Return the map that a fitted classifier makes of a scene.

    Parameters
    ----------
    model : classifier
        A RegimeClassifier, one of ours, or any scikit-learn classifier of two classes, the
        second being cloud, fitted on named features: those of
        :mod:`undulatus.scenes.features`, or variables of the dataset.
    dataset : Dataset
        A scene, (time, y, x) or (y, x).
    encoding : str
        How ``cloud_mask`` is written: one of :data:`undulatus.scenes.masks.ENCODINGS`.

    Returns
    -------
    Dataset
        ``cloud_mask`` (uint8), ``cloud_probability`` and ``cloud_latent_variance`` (float32),
        ``quality_flag`` (uint8 bits), with the scene's coordinates and attributes. Pixels
        without all they need have no class: the mask's fill value, NaN, and a flag.
    """
    names = _names(model)
    _require_two_classes(model)
    check_calibration(dataset, getattr(model, "provenance_", {}).get("calibration_mode"))
    features, angle = _inputs(dataset, names, model)
    in_memory = not isinstance(features.data, da.Array)
    features, angle = _in_blocks(features), _in_blocks(angle)
    found = da.map_blocks(
        _classify,
        features.data,
        angle.data[..., None].rechunk((*features.data.chunks[:-1], 1)),
        model=_on_one_thread(model),
        names=names,
        dtype=np.float32,
        chunks=(*features.data.chunks[:-1], (3,)),
        meta=np.empty((0,) * features.ndim, np.float32),
    )
    result = _as_dataset(found, features, dataset, model, encoding)
    return result.compute() if in_memory else result


def _names(model: Any) -> tuple[str, ...]:
    check_is_fitted(model)
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        raise InputError(
            f"The {type(model).__name__} was fitted without names of features, so bands cannot be "
            f"matched to them. Fit it on a table with named columns (a DataFrame)."
        )
    return tuple(str(name) for name in names)


def _require_two_classes(model: Any) -> None:
    if len(model.classes_) != 2:
        raise InputError(
            f"A map tells cloud from clear, but the model has {len(model.classes_)} classes."
        )


def _inputs(
    dataset: xr.Dataset, names: tuple[str, ...], model: Any
) -> tuple[xr.DataArray, xr.DataArray]:
    """Return the features the model knows, (..., feature), and the solar zenith angle."""
    wanted = [name for name in names if name != getattr(model, "by", None)]
    if all(name in dataset for name in wanted):
        dims = dataset[wanted[0]].dims
        parts = [dataset[name].transpose(*dims).astype(np.float32) for name in wanted]
        features = xr.concat(parts, "feature", coords="minimal", compat="override")
        features = features.transpose(..., "feature").assign_coords(feature=wanted)
        if isinstance(features.data, da.Array):
            features = features.chunk(feature=-1)
        return features, find_zenith(dataset).broadcast_like(parts[0]).transpose(*dims)
    if not set(wanted) <= set(FEATURES):
        absent = [name for name in wanted if name not in dataset]
        raise MissingBandsError("the scene", "The model", absent)
    scene = check_scene(dataset, tuple(BANDS))
    return landmark_features(scene).sel(feature=wanted), scene[ANGLE]


def _in_blocks(array: xr.DataArray) -> xr.DataArray:
    """Return the array in dask blocks, cut along its first dimension if it has none."""
    if isinstance(array.data, da.Array):
        return array
    each = int(np.prod(array.shape[1:3])) if array.ndim > 2 else array.shape[-1]
    first = max(1, BLOCK_PIXELS // max(each, 1))
    return array.chunk({array.dims[0]: first})


def _on_one_thread(model: Any) -> Any:
    """Return the model with its own threads off: blocks are what runs in parallel."""
    lean = copy.copy(model)
    if isinstance(model, RegimeClassifier):
        lean.estimators_ = {k: _on_one_thread(m) for k, m in model.estimators_.items()}
    elif "n_jobs" in model.get_params(deep=False):
        lean.set_params(n_jobs=1)
    return lean


def _classify(block: Array, angle: Array, model: Any, names: tuple[str, ...]) -> Array:
    """Return probability, variance and quality of the pixels of a block, (..., 3)."""
    by = getattr(model, "by", None)
    features = block.reshape(-1, block.shape[-1])
    sun = angle.reshape(-1)
    columns = dict(zip([n for n in names if n != by], features.T, strict=True))
    result = np.full((len(features), 3), np.nan, np.float32)
    quality = np.zeros(len(features), np.uint8)
    usable = np.zeros(len(features), bool)
    for rows, member, used, index in _parts(model, columns, sun):
        values = np.column_stack([columns[name][rows] for name in used])
        whole = np.isfinite(values).all(axis=1)
        quality[rows] |= np.uint8((index + 1) << REGIME_SHIFT)
        usable[rows[whole]] = True
        quality[rows[whole]] |= _beyond_training(member, values[whole])
    rows = np.flatnonzero(usable)
    if rows.size:
        table = {name: column[rows] for name, column in columns.items()}
        if by is not None:
            table[by] = sun[rows]
        result[rows, 0], result[rows, 1] = _predict(model, table)
        doubt = np.minimum(result[rows, 0], 1.0 - result[rows, 0]) > DOUBTFUL
        quality[rows[doubt]] |= LOW_CONFIDENCE
    quality[(sun >= TERMINATOR[0]) & (sun < TERMINATOR[1])] |= NEAR_TERMINATOR
    quality[~usable] |= MISSING
    result[:, 2] = quality
    return result.reshape(*block.shape[:-1], 3)


def _parts(
    model: Any, columns: dict[str, Array], sun: Array
) -> list[tuple[Array, Any, tuple[str, ...], int]]:
    """Return the rows each classifier is for, it, its features, and the number of its regime."""
    if not isinstance(model, RegimeClassifier):
        return [(np.arange(len(sun)), model, tuple(columns), -1)]
    assigned = model.assign(sun)
    return [
        (np.flatnonzero(assigned == index), model.estimators_[regime.name], regime.features, index)
        for index, regime in enumerate(model.regimes_)
        if regime.features
    ]


def _beyond_training(member: Any, values: Array) -> Array:
    ranges = getattr(member, "feature_quantiles_", None)
    if ranges is None:
        return np.zeros(len(values), np.uint8)
    beyond = ((values < ranges[0]) | (values > ranges[-1])).any(axis=1)
    return np.where(beyond, np.uint8(OUT_OF_RANGE), np.uint8(0))


def _predict(model: Any, table: dict[str, Array]) -> tuple[Array, Array]:
    """Return the probability of the second class, and the latent variance or NaN."""
    X: Any = table
    members = model.estimators_.values() if isinstance(model, RegimeClassifier) else [model]
    if not isinstance(model, RegimeClassifier):
        X = np.column_stack(list(table.values()))
    if all(hasattr(member, "predict_proba_and_variance") for member in members):
        probability, variance = _nameless(model).predict_proba_and_variance(X)
        return probability[:, 1], variance
    return _nameless(model).predict_proba(X)[:, 1], np.full(
        len(next(iter(table.values()))), np.nan
    )


def _nameless(model: Any) -> Any:
    """Return the model as if fitted without names: columns are matched here already."""
    if isinstance(model, RegimeClassifier) or not hasattr(model, "feature_names_in_"):
        return model
    bare = copy.copy(model)
    del bare.feature_names_in_
    return bare


def _as_dataset(
    found: da.Array, features: xr.DataArray, scene: xr.Dataset, model: Any, encoding: str
) -> xr.Dataset:
    dims = features.dims[:-1]
    coords = {name: c for name, c in features.coords.items() if "feature" not in c.dims}
    coords.pop("feature", None)
    grid = {"grid_mapping": "spatial_ref"} if "spatial_ref" in coords else {}

    def layer(index: int, **attrs: Any) -> xr.DataArray:
        return xr.DataArray(found[..., index], dims=dims, coords=coords, attrs=attrs | grid)

    probability = layer(0, long_name="probability of cloud", units="1")
    labels = (probability > 0.5).astype(np.uint8)
    labels = labels.where(probability.notnull(), np.uint8(MISSING_LABEL))
    mask = encode(labels, encoding, scene.get("land_mask"))
    result = xr.Dataset(
        {
            "cloud_mask": mask.assign_attrs(
                grid, ancillary_variables="cloud_probability cloud_latent_variance quality_flag"
            ),
            "cloud_probability": probability,
            "cloud_latent_variance": layer(
                1, long_name="variance of the latent function, the log odds of cloud", units="1"
            ),
            "quality_flag": layer(2, **_quality_attributes(model), **grid).astype(np.uint8),
        },
        attrs={**scene.attrs, **_history(scene, model)},
    )
    # Attributes of coordinates are lost on the way through computations.
    result = result.assign_coords({k: c for k, c in scene.coords.items() if k in result.coords})
    for name in ("cloud_probability", "cloud_latent_variance"):
        result[name].encoding = {"_FillValue": np.float32(np.nan)}
    return result


def _quality_attributes(model: Any) -> dict[str, Any]:
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


def _history(scene: xr.Dataset, model: Any) -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{now} undulatus {version('undulatus')}: cloud mask by {type(model).__name__}"
    earlier = str(scene.attrs.get("history", ""))
    return {"history": f"{earlier}\n{line}".strip(), "Conventions": "CF-1.11"}
