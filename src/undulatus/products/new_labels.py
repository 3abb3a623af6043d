"""Labels of an image added to a model of images, without a new fit.

:func:`adapt_image` makes of a shared model that of one new scene, from a few labels of it;
:func:`update_image` adds labels to the shared model for good.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from undulatus._plain import plain_text
from undulatus.errors import InputError, SceneError
from undulatus.estimators.adaptation import MOST_ROWS as MOST_SCENE_ROWS
from undulatus.estimators.adaptation import adapt
from undulatus.estimators.updates import MOST_ROWS
from undulatus.products.image_pixels import (
    ImagePixels,
    as_recorded,
    image_names,
    label_pixels,
    open_images,
)
from undulatus.products.images import Progress, draw_pixels, label_name
from undulatus.products.outside import OTHER_UNITS, require_inside
from undulatus.products.provenance import Provenance
from undulatus.scenes.files.images import require_same_offset
from undulatus.scenes.image_features import ImageFeatures, find_fill_values, is_never_measured
from undulatus.scenes.labelled_pixels import in_boxes
from undulatus.scenes.pixel_grid import PixelGrid, reproject, reproject_bounds

Array = npt.NDArray[Any]

PIXELS_PER_GROUP = 10
"""Pixels of one polygon, square or other group that tell about a scene: the others are like them,
and their labels come from the same hand."""


def adapt_image(
    model: Any,
    images: Any,
    labels: Any,
    *,
    field: str | None = None,
    group: str | None = None,
    all_touched: bool = False,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> Any:
    """Return the model of one new scene, from a few labels of it; the shared model stays.

    Some ten pixels are enough (:meth:`undulatus.VFFGPC.adapt`). Of each polygon ten pixels at most
    are drawn. Features without a class are left out, as are pixels in groups that were held out
    for scores.

    Parameters
    ----------
    model : classifier
        As :func:`undulatus.products.fit_image` returns it, or an adapted one: labels add up.
    images : path, DataArray, Dataset, or list of these
        Of one scene.
    labels : path, GeoDataFrame, DataFrame or DataArray, or a list with one for each image
        Of classes that the model knows; one class is enough.
    field : str, optional
        Field of the labels with the class; by default that of the fit.
    group, all_touched
        As :func:`undulatus.products.fit_image` takes them.
    seed : int
        Of the draw.

    Returns
    -------
    classifier
        Whose ``provenance_`` lists what it was adapted by, and these groups among those learned
        from.
    """
    found = _read_labels(model, images, labels, field, group, all_touched, seed, progress)
    pixels, rng = found.pixels, np.random.default_rng(seed)
    order = rng.permutation(len(pixels.codes))
    rank = pd.Series(pixels.groups[order]).groupby(pixels.groups[order]).cumcount().to_numpy()
    few = order[np.argsort(rank, kind="stable")][: np.count_nonzero(rank < PIXELS_PER_GROUP)]
    few = np.sort(few[:MOST_SCENE_ROWS])
    if len(few) < len(pixels.codes):
        progress(
            f"{len(few):,} of {len(pixels.codes):,} labelled pixels are drawn, {PIXELS_PER_GROUP} "
            f"at most of each {pixels.unit}: neighbours tell the same"
        )
    pixels = pixels.take(few)
    adapted = adapt(model, found.table(pixels), pixels.labels)
    return _remember(adapted, found, pixels, "adaptations", progress)


def update_image(
    model: Any,
    images: Any,
    labels: Any,
    *,
    field: str | None = None,
    group: str | None = None,
    all_touched: bool = False,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> Any:
    """Return a model of an image with more labels added, without a new fit.

    The given model stays as it is. Features without a class are left out, as are pixels in groups
    that were held out for scores, or learned from already.

    Parameters
    ----------
    model : classifier
        As :func:`undulatus.products.fit_image` returns it, or an updated one.
    images : path, DataArray, Dataset, or list of these
    labels : path, GeoDataFrame, DataFrame or DataArray, or a list with one for each image
        Of classes that the model knows; one class is enough.
    field : str, optional
        Field of the labels with the class; by default that of the fit.
    group, all_touched
        As :func:`undulatus.products.fit_image` takes them.
    seed : int
        Of the draw, if there are more pixels than an update takes.

    Returns
    -------
    classifier
        Whose ``provenance_`` lists the update, and the new groups among those learned from.
    """
    found = _read_labels(model, images, labels, field, group, all_touched, seed, progress)
    pixels = _leave_out_learned(found.pixels, found.provenance, progress)
    if len(pixels.codes) > MOST_ROWS:
        progress(
            f"{MOST_ROWS:,} of {len(pixels.codes):,} labelled pixels are drawn: fit again with "
            f"all labels to learn from more"
        )
        rng = np.random.default_rng(seed)
        pixels = pixels.take(draw_pixels(pixels.codes, pixels.counts, MOST_ROWS, False, rng))
    updated = model.update(found.table(pixels), pixels.labels)
    return _remember(updated, found, pixels, "updates", progress)


# Labels, as the model has them


@dataclass(frozen=True)
class _FoundLabels:
    """Labelled pixels of images, and what the model remembers."""

    pixels: ImagePixels
    provenance: Provenance
    feature_names: Sequence[str]
    label: str | None
    """Path of the labels, if they are a file."""
    images: list[str]

    def table(self, pixels: ImagePixels) -> pd.DataFrame:
        """Return the features of pixels by name."""
        return pd.DataFrame(pixels.features, columns=list(self.feature_names))


def _read_labels(
    model: Any,
    images: Any,
    labels: Any,
    field: str | None,
    group: str | None,
    all_touched: bool,
    seed: int,
    progress: Progress,
) -> _FoundLabels:
    """Return the labelled pixels that may be added, in the model's own features."""
    recipe, provenance = recipe_of(model)
    listed = images if isinstance(images, (list, tuple)) else [images]
    opened = open_for(provenance, listed)
    pixels = label_pixels(
        opened, labels, recipe, field=find_field(labels, field, provenance), group=group,
        all_touched=all_touched, most=MOST_ROWS, seed=seed, least_classes=1, progress=progress,
    )  # fmt: skip
    _require_known(model, pixels)
    pixels = _leave_out_fill(pixels, recipe, progress)
    pixels = _as_learned(pixels, provenance, PixelGrid.of(opened[0]).crs)
    pixels = _leave_out_held(pixels, provenance, opened, progress)
    require_inside(model, pixels.features, recipe.names, None, "values", OTHER_UNITS)
    is_file = isinstance(labels, (str, os.PathLike))
    label = label_name(labels) if is_file else None
    return _FoundLabels(pixels, provenance, recipe.names, label, image_names(opened))


def _remember(
    changed: Any, found: _FoundLabels, pixels: ImagePixels, field: str, progress: Progress
) -> Any:
    """Return a changed model, whose provenance lists the labels that were added."""
    counts = np.bincount(pixels.codes, minlength=len(pixels.classes)).tolist()
    counted = {name: n for name, n in zip(pixels.names, counts, strict=True) if n}
    progress("pixels added: " + ", ".join(f"{name} {n:,}" for name, n in counted.items()))
    record: dict[str, Any] = {"images": found.images, "pixels": counted}
    if found.label is not None:
        record = {"label": found.label, **record}
    known = [*(getattr(found.provenance, field) or []), record]
    names = [pixels.group_names[i] for i in np.unique(pixels.groups)]
    groups = {name: pixels.bounds.get(name, []) for name in names}
    # Scores leave out what was learned from, whenever that was.
    learned = (found.provenance.training_groups or {}) | groups
    changes = {field: known, "training_groups": learned}
    changed.provenance_ = changed.provenance_ | found.provenance.as_dict() | changes
    return changed


def recipe_of(model: Any) -> tuple[ImageFeatures, Provenance]:
    """Return how features of pixels are made, and what the model remembers."""
    provenance = Provenance.of(model)
    if provenance.image_features is None:
        raise InputError(
            f"The model is a {type(model).__name__} that was not fitted on labels of an image, so "
            f"it is not known which features of pixels it takes. Fit one with undulatus fit IMAGE "
            f"--label LABELS (in Python undulatus.products.fit_image), or add rows yourself with "
            f"model.update(X, y)."
        )
    return ImageFeatures.from_dict(provenance.image_features), provenance


def open_for(provenance: Provenance, images: Iterable[Any]) -> list[xr.DataArray]:
    """Return images as the model takes them."""
    opened = open_images(list(images))
    for image in opened:
        require_same_offset(image, provenance.processing_baseline)
    return opened


def is_held_out(provenance: Provenance, image: xr.DataArray, row: Array, column: Array) -> Array:
    """Return which pixels lie in the bounds of a group that was held out for scores."""
    grid = PixelGrid.of(image)
    if (grid.crs is None) != (provenance.crs is None):
        return np.zeros(len(row), bool)
    places = reproject(*grid.centre_of(row, column), grid.crs, provenance.crs)
    return in_boxes((provenance.held_out_groups or {}).values(), *places)


def find_field(labels: Any, field: str | None, provenance: Provenance) -> str | None:
    """Return the field that was named, or that of the fit if the labels have it."""
    if field is not None or provenance.field is None:
        return field
    first = labels[0] if isinstance(labels, (list, tuple)) else labels
    if isinstance(first, (str, os.PathLike)):
        return provenance.field if _has_field(Path(first), provenance.field) else None
    return provenance.field if provenance.field in getattr(first, "columns", ()) else None


def _has_field(path: Path, field: str) -> bool:
    import geopandas

    try:
        if path.suffix.lower() == ".csv":
            return field in map(plain_text, pd.read_csv(path, nrows=1).columns)
        return field in geopandas.read_file(path, rows=1).columns
    except Exception:  # A raster, or what cannot be read: the reader of labels says so.
        return False


def _require_known(model: Any, pixels: ImagePixels) -> None:
    known = model.classes_.tolist()
    strange = [label for label in pixels.classes if label not in known]
    if strange:
        raise InputError(
            f"The labels hold {', '.join(map(repr, strange[:5]))}, but the model knows "
            f"{', '.join(map(repr, known))}. A new class needs a new fit (undulatus fit) with all "
            f"labels."
        )


def _as_learned(pixels: ImagePixels, provenance: Provenance, crs: Any) -> ImagePixels:
    """Return pixels whose groups have the names and coordinates that the model has for them."""
    boxes = {
        name: list(reproject_bounds(box, crs, provenance.crs) or ()) if box else []
        for name in pixels.group_names
        for box in [pixels.bounds.get(name, [])]
    }
    if pixels.unit != "polygon":
        return replace(pixels, bounds=boxes)
    recorded = (provenance.training_groups or {}) | (provenance.held_out_groups or {})
    names = as_recorded(boxes, boxes.values(), recorded)
    return replace(
        pixels, group_names=tuple(names), bounds=dict(zip(names, boxes.values(), strict=True))
    )


def _leave_out_fill(pixels: ImagePixels, recipe: ImageFeatures, progress: Progress) -> ImagePixels:
    """Leave out pixels with values that nothing measured has; others are said that look like it.

    What marked missing pixels in the fit is missing already.
    """
    bands = pixels.features[:, : len(recipe.bands)]
    lost = np.zeros(len(bands), bool)
    for value in find_fill_values(bands):
        marked = bands == np.float32(value)
        never = is_never_measured(value)
        own = marked.any(axis=1) if never else marked.all(axis=1)
        lost |= own & never
        progress(
            f"{np.count_nonzero(own):,} labelled pixels hold {value:g}, which no file declares as "
            f"nodata: {'they are left out' if never else 'if they are missing, fit again'}"
        )
    return pixels.take(~lost)


def _leave_out_learned(
    pixels: ImagePixels, provenance: Provenance, progress: Progress
) -> ImagePixels:
    """Leave out polygons that the model learned from: their pixels would count twice."""
    if pixels.unit != "polygon":
        return pixels  # A square may have further points.
    known = set(provenance.training_groups or {})
    learned = np.array([name in known for name in pixels.group_names], bool)[pixels.groups]
    if learned.all():
        raise SceneError(
            "The model has learned from all of these polygons already. Give it new ones."
        )
    if learned.any():
        progress(
            f"{np.count_nonzero(learned):,} labelled pixels in polygons that the model has "
            f"learned from already are left out"
        )
    return pixels.take(~learned)


def _leave_out_held(
    pixels: ImagePixels, provenance: Provenance, images: list[xr.DataArray], progress: Progress
) -> ImagePixels:
    held_names = set(provenance.held_out_groups or {})
    of_group = np.array([name in held_names for name in pixels.group_names], bool)
    held = of_group[pixels.groups]
    for number, image in enumerate(images):
        own = np.flatnonzero(pixels.image == number)
        held[own] |= is_held_out(provenance, image, pixels.row[own], pixels.column[own])
    if held.all():
        raise SceneError(
            "All labelled pixels lie in groups that were held out for scores (undulatus score), "
            "which would no longer be new to the model. Label others, or fit again."
        )
    if held.any():
        progress(
            f"{np.count_nonzero(held):,} labelled pixels in groups held out for scores are left "
            f"out"
        )
    return pixels.take(~held)
