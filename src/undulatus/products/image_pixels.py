"""Labelled pixels of images: where they are, their features, and which belong together.

A group, such as a polygon, is known again by its key in other images and in later scores.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import rasterio
import xarray as xr

from undulatus._progress import working_on
from undulatus.errors import InputError, SceneError
from undulatus.products.memory_budget import GDAL_CACHE
from undulatus.products.predict import finite_rows
from undulatus.products.usable_bands import missing_text
from undulatus.scenes.files.images import each_time, open_image, with_band_names
from undulatus.scenes.files.labels import read_labels
from undulatus.scenes.image_features import ImageFeatures
from undulatus.scenes.labelled_pixels import HELD_MARK, LabelledPixels
from undulatus.scenes.pixel_grid import PixelGrid, reproject_bounds

Array = npt.NDArray[Any]

Class = int | str

Progress = Callable[[str], None]

SAME_BOUNDS = 0.01
"""Polygons are the same if their bounds differ by less than this part of their longer side."""


@dataclass(frozen=True)
class LabelSource:
    """Polygons, points or rows of a table that label an image, and the group of each, (f,)."""

    name: str
    features: Any
    groups: Array


@dataclass(frozen=True)
class ImagePixels:
    """Labelled pixels of one or several images, with their features.

    Arrays are (n, ...): ``features`` float32, ``codes`` places in ``classes``, ``groups`` in
    ``group_names``, ``image`` the number of the image.
    """

    features: Array
    codes: Array
    groups: Array
    image: Array
    row: Array
    column: Array
    classes: tuple[Class, ...]
    names: tuple[str, ...]
    """Of the classes."""
    group_names: tuple[str, ...]
    bounds: dict[str, list[float]]
    """West, south, east and north of each group in the coordinates of the first image."""
    counts: Array
    """Labelled pixels of each class, before some were drawn, (k,)."""
    unit: str
    said_held: dict[str, bool] | None = None
    """Whether the labels themselves say that a group is held out; None if they do not."""
    sources: tuple[LabelSource, ...] = ()
    """What was labelled in each image; nothing of rasters."""

    @property
    def labels(self) -> Array:
        """The class of each pixel."""
        return np.array(self.classes)[self.codes]

    def take(self, rows: Array) -> ImagePixels:
        """Return some of the pixels, by number or as a mask."""
        of_pixels = ("features", "codes", "groups", "image", "row", "column")
        values = {name: value for name, value in vars(self).items() if name not in of_pixels}
        return ImagePixels(**{name: getattr(self, name)[rows] for name in of_pixels}, **values)


def open_images(images: Any) -> list[xr.DataArray]:
    """Return images with named bands, from a path, a DataArray, a Dataset, or a list of these.

    A source of several times gives an image for each.
    """
    many = isinstance(images, Sequence) and not isinstance(images, str)
    opened: list[xr.DataArray] = []
    for source in images if many else [images]:
        if isinstance(source, (str, os.PathLike)):
            opened.append(with_band_names(open_image(source)))
        else:
            opened += [with_band_names(image) for image in each_time(source)]
    if not opened:
        raise InputError("No image was given. Give a path, or a list of them.")
    return opened


def image_names(images: list[xr.DataArray]) -> list[str]:
    """Return what to call images: the ends of their paths that differ, or ``image 1`` and so on.

    A model remembers these names: they are the same wherever the images lie.
    """
    paths = [Path(str(image.attrs.get("source", ""))) for image in images]
    known = {path for path in paths if path.name}
    count = 1
    while len({path.parts[-count:] for path in known}) < len(known):
        count += 1
    return [
        "/".join(path.parts[-count:]) if path.name else f"image {number}"
        for number, path in enumerate(paths, 1)
    ]


def label_pixels(
    images: list[xr.DataArray],
    labels: Any,
    recipe: ImageFeatures,
    *,
    field: str | None = None,
    group: str | None = None,
    all_touched: bool = False,
    most: int = 1_000_000,
    least_classes: int = 2,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> ImagePixels:
    """Return the labelled pixels of images, at most ``most`` of each class, with their features.

    Pixels that lack a feature are left out.

    Parameters
    ----------
    images : list of DataArray
        As :func:`open_images` returns them.
    labels : path, GeoDataFrame, DataFrame or DataArray, or a list with one for each image
    recipe : ImageFeatures
    field, group, all_touched
        As :func:`undulatus.scenes.files.labels.read_labels` takes them.
    """
    pixels = read_pixels(
        images, labels, recipe, field=field, group=group, all_touched=all_touched, most=most,
        least_classes=least_classes, seed=seed, progress=progress,
    )  # fmt: skip
    return leave_out_missing(pixels, recipe, least_classes, progress)


def read_pixels(
    images: list[xr.DataArray],
    labels: Any,
    recipe: ImageFeatures,
    *,
    field: str | None,
    group: str | None,
    all_touched: bool,
    most: int,
    least_classes: int,
    seed: int,
    progress: Progress,
    split: str | None = None,
) -> ImagePixels:
    """Return the labelled pixels of images as :func:`label_pixels`, missing ones too."""
    sources = one_each(labels, len(images))
    found = labels_of_images(
        images, sources, field, group, all_touched, most, seed, progress, split
    )
    classes, names = _all_classes(found, sources, least_classes)
    names_of_images = image_names(images)
    unit = next(iter(found.values())).unit
    apart = len(found) > 1 and split is None and unit == "square"
    if apart and not _overlap([images[i] for i in found]):
        unit = "image"
    first_crs = PixelGrid.of(images[0]).crs
    parts: list[dict[str, Array]] = []
    keys: list[Array] = []
    bounds: dict[str, list[float]] = {}
    held: dict[str, bool] = {}
    labelled: list[LabelSource] = []
    for i, own in found.items():
        progress(f"reading {len(own.row):,} labelled pixels of {names_of_images[i]}")
        features = gather_features(recipe, images[i], own.row, own.column)
        if unit == "image":
            named = [names_of_images[i]] * len(own.group_names)
        else:
            named = group_keys(own, images[i], names_of_images[i])
            _add_bounds(bounds, named, own, PixelGrid.of(images[i]).crs, first_crs)
        keys.append(np.array(named, object)[own.groups])
        _add_held(held, named, own)
        if own.features is not None:
            source = sources[i]
            name = str(source) if isinstance(source, (str, os.PathLike)) else str(id(source))
            each = np.array([*named, ""], object)[own.feature_groups]
            labelled.append(LabelSource(name, own.features, each))
        parts.append(
            {
                "features": features,
                "codes": np.array([classes.index(label) for label in own.classes])[own.codes],
                "image": np.full(len(own.row), i),
                "row": own.row,
                "column": own.column,
            }
        )
    # In the order of pixels, which does not depend on the projection of the labels.
    groups, group_names = pd.factorize(np.concatenate(keys).astype(str).astype(object))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    counts = np.array(
        [sum(own.counts.get(label, 0) for own in found.values()) for label in classes]
    )
    return ImagePixels(
        **joined,
        groups=groups,
        classes=classes,
        names=names,
        group_names=tuple(map(str, group_names)),
        bounds=bounds,
        counts=counts,
        unit=unit,
        said_held=None if split is None else held,
        sources=tuple(labelled),
    )


def leave_out_missing(
    pixels: ImagePixels, recipe: ImageFeatures, least_classes: int, progress: Progress
) -> ImagePixels:
    """Return the pixels that have all features, and the classes that have such pixels."""
    whole = finite_rows(pixels.features)
    lacking = missing_text(recipe, pixels.features[~whole])
    if not whole.any():
        raise SceneError(
            f"All {len(whole):,} labelled pixels are missing (nodata) in the image{lacking}. "
            f"See whether these bands hold anything there, and whether the labels lie on its "
            f"valid part."
        )
    if whole.all():
        return pixels
    progress(
        f"{np.count_nonzero(~whole):,} labelled pixels are missing in the image and left "
        f"out{lacking}"
    )
    kept = pixels.take(whole)
    left = np.bincount(kept.codes, minlength=len(kept.classes)) > 0
    if left.all():
        return kept
    lost = ", ".join(name for name, there in zip(kept.names, left, strict=True) if not there)
    if np.count_nonzero(left) < least_classes:
        raise SceneError(
            f"All labelled pixels of {lost} are missing (nodata) in the image, and a classifier "
            f"needs two classes. Check that the labels lie on its valid part."
        )
    progress(f"left out, with all pixels missing in the image: {lost}")
    return replace(
        kept,
        codes=(np.cumsum(left) - 1)[kept.codes],
        classes=tuple(c for c, there in zip(kept.classes, left, strict=True) if there),
        names=tuple(name for name, there in zip(kept.names, left, strict=True) if there),
        counts=kept.counts[left],
    )


def gather_features(
    recipe: ImageFeatures, image: xr.DataArray, row: Array, column: Array
) -> Array:
    """Return the features of some pixels of an image, (n, features), with GDAL's cache small."""
    with rasterio.Env(GDAL_CACHEMAX=GDAL_CACHE), working_on("reading pixels") as work:
        return recipe.gather(image, row, column, work.report)


def one_each(labels: Any, count: int) -> list[Any]:
    """Return the source of labels of each of some images: their own, or one for all."""
    listed = isinstance(labels, Sequence) and not isinstance(labels, str)
    if not listed:
        return [labels] * count
    if len(labels) not in (1, count):
        raise InputError(
            f"There are {count} images, but {len(labels)} sources of labels. Give one for all, or "
            f"one for each image."
        )
    return list(labels) * (count if len(labels) == 1 else 1)


def labels_of_images(
    images: list[xr.DataArray],
    sources: list[Any],
    field: str | None,
    group: str | None,
    all_touched: bool,
    most: int,
    seed: int,
    progress: Progress,
    split: str | None = None,
) -> dict[int, LabelledPixels]:
    """Return the labels of each image that has any; it is an error if none has."""
    found: dict[int, LabelledPixels] = {}
    last: SceneError | None = None
    for i, (image, source) in enumerate(zip(images, sources, strict=True)):
        try:
            found[i] = read_labels(
                source, image, field=field, group=group, split=split, all_touched=all_touched,
                most=most, seed=seed,
            )  # fmt: skip
        except SceneError as error:
            if len(images) == 1:
                raise
            progress(f"{image_names(images)[i]} is left out: {error}")
            last = error
            continue
        for note in found[i].notes:
            progress(note)
    if not found:
        assert last is not None
        raise SceneError(f"None of {len(images)} images can be used; the last: {last}")
    return found


def _all_classes(
    found: dict[int, LabelledPixels], sources: list[Any], least: int
) -> tuple[tuple[Class, ...], tuple[str, ...]]:
    classes = {label for own in found.values() for label in own.classes}
    if len({type(label) for label in classes}) > 1:
        raise SceneError(
            f"The classes of some images are numbers, those of others text: "
            f"{', '.join(map(repr, classes))}. Use one of them."
        )
    if len(classes) < least:
        where = sources[0] if isinstance(sources[0], (str, os.PathLike)) else "The labels"
        raise SceneError(
            f"{where} has only one class on the image, {next(iter(classes))!r}, but a classifier "
            f"needs two. Label pixels of another class too; in a raster of labels, pixels with "
            "its "
            f"nodata value have no label."
        )
    ordered = tuple(sorted(classes))
    meant = {label: name for own in found.values() for label, name in own.names.items()}
    return ordered, tuple(meant.get(label, str(label)) for label in ordered)


def group_keys(own: LabelledPixels, image: xr.DataArray, name: str) -> list[str]:
    """Return the key of each group of an image's labels, by which it is known again.

    Squares are known by their place, whatever the image is called; without a georeference by the
    name of its file.
    """
    if own.unit != "square":
        return list(own.group_names)
    if PixelGrid.of(image).crs is None:
        return [f"{Path(name).name}: {square}" for square in own.group_names]
    said = [False] * len(own.group_names) if own.held_out is None else own.held_out.tolist()
    return [
        "square " + " ".join(f"{v:.10g}" for v in box) + HELD_MARK * held
        for box, held in zip(own.bounds.tolist(), said, strict=True)
    ]


def _add_held(held: dict[str, bool], keys: list[str], own: LabelledPixels) -> None:
    """Add what the labels of an image say is held out to what those before said."""
    for key, out in zip(keys, [] if own.held_out is None else own.held_out.tolist(), strict=False):
        if held.setdefault(key, out) != out:
            raise SceneError(
                f"The labels say of {key} in one image that it is held out, and in another that "
                f"it is to be learned from. Say the same of it in both."
            )


def _add_bounds(
    bounds: dict[str, list[float]], keys: list[str], own: LabelledPixels, crs: Any, target: Any
) -> None:
    """Add the bounds of the groups of an image's labels to those of the images before."""
    for group in np.unique(own.groups).tolist():
        found = reproject_bounds(own.bounds[group].tolist(), crs, target)
        if found is None:
            continue
        before = bounds.get(keys[group], found)
        bounds[keys[group]] = [
            *map(min, found[:2], before[:2]),
            *map(max, found[2:], before[2:]),
        ]


def as_recorded(
    keys: Iterable[str], boxes: Iterable[Any], recorded: Mapping[str, list[float]]
) -> list[str]:
    """Return the keys of polygons, by which a model may know them under another key.

    Keys differ where the model is of an earlier version, or formats round coordinates; a polygon
    with the same bounds, in the coordinates of the fit, is the same.
    """
    names = [name for name, box in recorded.items() if box]
    corners = np.array([recorded[name] for name in names], np.float64).reshape(-1, 4)
    found = []
    for key, box in zip(keys, boxes, strict=True):
        same = np.zeros(0, np.intp)
        if key not in recorded and len(box):
            most = SAME_BOUNDS * max(box[2] - box[0], box[3] - box[1])
            same = np.flatnonzero(np.abs(corners - box).max(axis=1, initial=0.0) < most)
        found.append(names[same[0]] if len(same) == 1 else key)
    return found


def _overlap(images: list[xr.DataArray]) -> bool:
    """Return whether images show the same place, as far as is known."""
    grids = [PixelGrid.of(image) for image in images]
    return any(
        one.crs is not None and one.crs == other.crs and one.overlaps(other)
        for one, other in itertools.combinations(grids, 2)
    )
