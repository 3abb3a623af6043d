"""A scene and its map side by side: matched in time, upright, read in blocks, and compared.

Pictures, video and pages are drawn from a :class:`MapView`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._files import as_reading_errors
from undulatus.errors import SceneError
from undulatus.products.layers import (
    CLASS,
    CLASS_NAME,
    CLASS_PROBABILITY,
    CLASS_VARIANCE,
    MASK,
    PROBABILITY,
    QUALITY,
    VARIANCE,
)
from undulatus.products.legend import flag_names
from undulatus.products.maps import BLOCK_PIXELS
from undulatus.scenes.masks import decode, guess_encoding
from undulatus.scenes.scene import (
    ANGLE,
    CLOUD_TRUTH,
    DIMS,
    LEVEL2_MASK,
    acquisition_time,
    check_scene,
)
from undulatus.scenes.times import TimeSpan, parse_time

Array = npt.NDArray[Any]

NATURAL_COLOUR = ("IR_016", "VIS008", "VIS006")
"""Bands shown as red, green and blue: ice cloud is cyan, water cloud white, sand ochre."""

INFRARED = "IR_108"
"""The band shown in grey."""

LABEL = "class_label"
"""The layer with the label of a scene that has the classes of its map."""

TIME_TOLERANCE = np.timedelta64(15, "m")
"""How far outside a scene a time may lie and still be shown: SEVIRI's repeat cycle."""


@dataclass(frozen=True)
class MapClass:
    """A class of a map: its code, its name, and its colour as ``"#rrggbb"``."""

    code: int
    name: str
    colour: str


@dataclass(frozen=True)
class MapView:
    """The layers of a scene and its map that are shown, lazy: north up, east to the right."""

    layers: xr.Dataset
    """Bands, masks, probability and variance, (time, y, x).

    Maps of all classes have the names of a map of clouds here: ``cloud_mask`` holds the codes,
    the probability and the variance are those of the class shown. They also have
    ``class_probability`` (time, y, x, class_name).
    """
    land: Array | None
    """(y, x) bool, true on land."""
    regimes: tuple[tuple[int, int, str], ...]
    """For each regime its bits in ``quality_flag``, their value, and its name."""
    footnote: str
    """The scene's title; a simulator's says that it is one."""
    classes: tuple[MapClass, ...] = ()
    """The classes of the map; none for a map of clouds."""

    @property
    def times(self) -> Array:
        """When each acquisition was taken, UTC."""
        return np.asarray(self.layers["time"].values)

    def read(self, indices: Array) -> xr.Dataset:
        """Return the layers of some acquisitions, in memory."""
        with as_reading_errors():
            return self.layers.isel(time=indices).compute()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of an image."""
        return self.layers.sizes["y"], self.layers.sizes["x"]

    @property
    def span(self) -> str:
        """The first and the last time, as text."""
        return f"{time_text(self.times.min())} to {time_text(self.times.max())}"


def view_scene(scene: xr.Dataset, result: xr.Dataset) -> MapView:
    """Return the view of a scene and its map, at the times that both have.

    Parameters
    ----------
    scene : Dataset
        (time, y, x) or (y, x); ``cloud_mask_l2``, ``cloud_truth`` and ``land_mask`` are shown
        if it has them, and so is a label that has the ``flag_values`` and ``flag_meanings`` of
        the map's classes.
    result : Dataset
        What :func:`undulatus.products.maps.map_scene` made of it.
    """
    scene = check_scene(scene, (*NATURAL_COLOUR, INFRARED))
    _require_map(result)
    _require_same_size(scene, result)
    left = _with_time(_scene_layers(scene, result), scene)
    right = _with_time(_map_layers(result), result if left.sizes["time"] > 1 else left)
    left, right = xr.align(left, right, join="inner")
    if not left.sizes["time"]:
        raise SceneError(
            "The scene and the map have no acquisition in common: the map was made of another "
            "scene."
        )
    upright = upright_order(scene)
    land = None
    if "land_mask" in scene:
        land = np.asarray(scene["land_mask"].transpose("y", "x").isel(upright).values) > 0.5
    layers = left.assign(right.data_vars).isel(upright)
    return MapView(layers, land, _regime_bits(result), _footnote(scene), _map_classes(result))


def view_map(result: xr.Dataset) -> MapView:
    """Return the view of a map without its scene: mask, probability and variance alone."""
    _require_map(result)
    layers = _with_time(_map_layers(result), result).isel(upright_order(result))
    return MapView(layers, None, _regime_bits(result), _footnote(result), _map_classes(result))


def _footnote(dataset: xr.Dataset) -> str:
    return str(dataset.attrs.get("title") or dataset.attrs.get("platform_name", ""))


def _require_map(result: xr.Dataset) -> None:
    of_classes = CLASS in result
    needed = (CLASS, CLASS_PROBABILITY, CLASS_VARIANCE)
    needed = needed if of_classes else (MASK, PROBABILITY, VARIANCE)
    absent = [name for name in needed if name not in result]
    if absent:
        raise SceneError(
            f"The map has no {', '.join(absent)}. Make it with undulatus "
            f"map (in Python undulatus.products.maps.map_scene)."
        )
    dims = result[CLASS if of_classes else MASK].dims
    if not {"y", "x"} <= set(dims):
        raise SceneError(
            f"The map has dims {dims}, but only images with dims (time, y, x) or "
            f"(y, x) can be shown."
        )


def _require_same_size(scene: xr.Dataset, result: xr.Dataset) -> None:
    sizes = [" x ".join(str(each.sizes.get(d)) for d in ("y", "x")) for each in (scene, result)]
    if sizes[0] != sizes[1]:
        raise SceneError(
            f"The scene has {sizes[0]} pixels, but the map {sizes[1]}: it was made of another "
            f"scene."
        )


def _scene_layers(scene: xr.Dataset, result: xr.Dataset) -> xr.Dataset:
    wanted = (*NATURAL_COLOUR, INFRARED, ANGLE, LEVEL2_MASK, CLOUD_TRUTH)
    layers = scene[[name for name in wanted if name in scene]]
    labels = _labels_of_classes(scene, result) if CLASS in result else []
    return layers.assign({LABEL: labels[0]}) if labels else layers


def _labels_of_classes(scene: xr.Dataset, result: xr.Dataset) -> list[xr.DataArray]:
    """Return the variables of a scene that have the classes of a map, by their flags."""
    classes = flag_names(result[CLASS].attrs)
    return [
        array
        for name, array in scene.data_vars.items()
        if name not in (LEVEL2_MASK, CLOUD_TRUTH)
        and set(array.dims) == set(scene[INFRARED].dims)
        and flag_names(array.attrs) == classes
    ]


def _map_classes(result: xr.Dataset) -> tuple[MapClass, ...]:
    """Return the classes of a map by the attributes of its codes; none for a map of clouds."""
    if CLASS not in result:
        return ()
    attrs = result[CLASS].attrs
    codes = np.atleast_1d(attrs["flag_values"]).tolist()
    words = str(attrs["flag_meanings"]).split()
    names = map(str, result[CLASS_NAME].values) if CLASS_NAME in result.coords else words
    colours = str(attrs["flag_colors"]).split()
    return tuple(MapClass(*each) for each in zip(codes, names, colours, strict=True))


def _class_layers(result: xr.Dataset) -> xr.Dataset:
    """Return codes, all probabilities, and the probability and variance of the class shown."""
    probability, variance = result[CLASS_PROBABILITY], result[CLASS_VARIANCE]
    if CLASS_NAME not in probability.dims:
        probability = xr.concat([1.0 - probability, probability], CLASS_NAME)
    largest = probability.max(CLASS_NAME, skipna=False)
    if CLASS_NAME in variance.dims:
        variance = variance.where(probability == largest).max(CLASS_NAME)
    shown = result[[name for name in (QUALITY,) if name in result]]
    return shown.assign(
        {
            MASK: result[CLASS],
            CLASS_PROBABILITY: probability,
            PROBABILITY: largest,
            VARIANCE: variance,
        }
    )


def _map_layers(result: xr.Dataset) -> xr.Dataset:
    if CLASS in result:
        return _class_layers(result)
    mask = result[MASK]
    shown = result[[name for name in (PROBABILITY, VARIANCE, QUALITY) if name in result]]
    return shown.assign({MASK: decode(mask, guess_encoding(mask) or "cf")})


def _with_time(layers: xr.Dataset, source: xr.Dataset) -> xr.Dataset:
    """Return layers (time, y, x, ...) with no coordinate but the time.

    A single acquisition without a time takes it from ``source``.
    """
    if "time" not in layers.dims:
        moment = acquisition_time(source)
        when = np.datetime64("NaT", "ns") if moment is None else moment.values.min()
        layers = layers.drop_vars("time", errors="ignore").expand_dims(time=[when])
    if layers["time"].dtype.kind != "M":
        raise SceneError(
            "The times of the acquisitions are not dates. Map a scene whose times are, in UTC "
            "(in Python scene.assign_coords(time=...))."
        )
    bare = layers.drop_vars([name for name in layers.coords if name != "time"])
    return bare.transpose(*DIMS, ...)


def upright_order(scene: xr.Dataset) -> dict[str, slice]:
    """Return the indices that turn images upright: SEVIRI scans northwards and westwards."""
    return {
        dim: slice(None, None, -1)
        for dim, rises in (("y", False), ("x", True))
        if dim in scene.coords and bool(scene[dim][-1] > scene[dim][0]) != rises
    }


def _regime_bits(result: xr.Dataset) -> tuple[tuple[int, int, str], ...]:
    attrs = result[QUALITY].attrs if QUALITY in result else {}
    meanings = str(attrs.get("flag_meanings", "")).split()
    masks, values = (np.atleast_1d(attrs.get(f"flag_{name}", [])) for name in ("masks", "values"))
    return tuple(
        (int(bits), int(value), meaning.removeprefix("regime_"))
        for bits, value, meaning in zip(masks, values, meanings, strict=False)
        if meaning.startswith("regime_")
    )


# Choosing acquisitions


def nearest_acquisitions(view: MapView, times: Iterable[Any]) -> Array:
    """Return the index of the acquisition nearest to each time (UTC).

    Raises
    ------
    SceneError
        If a time lies outside the scene by more than ``TIME_TOLERANCE``.
    """
    found = []
    for time in times:
        when = parse_time(time)
        away = np.abs(view.times - when)
        inside = view.times.min() <= when <= view.times.max()
        if not inside and not away.min() <= TIME_TOLERANCE:
            raise SceneError(
                f"No acquisition was taken at {time}: the scene covers {view.span}. "
                f"Choose a time within."
            )
        found.append(int(np.argmin(away)))
    return np.array(found, np.intp)


def acquisitions_between(view: MapView, start: Any = None, end: Any = None) -> Array:
    """Return the indices of the acquisitions from ``start`` to ``end`` (UTC), both included.

    An ``end`` that is text without an hour, such as ``2010-07-14``, includes that whole day (or
    month).
    """
    inside = TimeSpan(start, end).contains(view.times)
    if not inside.any():
        raise SceneError(
            f"No acquisition was taken between {start} and {end}: the scene covers {view.span}. "
            f"Choose times within."
        )
    return np.flatnonzero(inside)


def time_text(time: np.datetime64) -> str:
    """Return a time as text: ``2010-07-14 12:00 UTC``."""
    if np.isnat(time):
        return "time unknown"
    return f"{np.datetime_as_string(time, 'm').replace('T', ' ')} UTC"


def blocks_of_time(view: MapView, chosen: Array) -> list[Array]:
    """Return indices of acquisitions in blocks that fit into memory, of whole chunks if possible.

    A block has at most :data:`~undulatus.products.maps.BLOCK_PIXELS` pixels.
    """
    most = max(1, BLOCK_PIXELS // int(np.prod(view.shape)))
    layer = INFRARED if INFRARED in view.layers else PROBABILITY
    chunk = max(view.layers[layer].chunksizes.get("time", (most,)))
    step = most // chunk * chunk if chunk <= most else -(-chunk // -(-chunk // most))
    return np.split(chosen, np.flatnonzero(np.diff(chosen // step)) + 1)


# Comparing masks


def disagreement(scene: xr.Dataset, result: xr.Dataset) -> xr.DataArray:
    """Return the share of pixels in which the model's mask differs from the Level-2 mask, (time,).

    Only pixels that both masks know count; NaN if there are none.
    """
    known = (scene[LEVEL2_MASK] <= 1) & (result[MASK] <= 1)
    differ = known & (scene[LEVEL2_MASK] != result[MASK])
    counted = known.sum(["y", "x"])
    return (differ.sum(["y", "x"]) / counted.where(counted > 0)).compute()


def most_disputed(shares: xr.DataArray, count: int) -> Array:
    """Return the times at which masks differ most, at most one a day, in order of time.

    ``shares`` is what :func:`disagreement` returned.
    """
    known = shares.dropna("time")
    order = known["time"].values[np.argsort(-known.values, kind="stable")]
    _, first = np.unique(order.astype("datetime64[D]"), return_index=True)
    return np.sort(order[np.sort(first)[:count]])
