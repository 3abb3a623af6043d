"""Scores of a model on labelled pixels of images, and what they rest on.

:func:`score_image` scores the groups of labels (polygons) that the fit held out, or that the model
has not seen; those that it learned from are left out unless there is nothing else, and the result
always says which it was.

>>> from undulatus.products import score_image
>>> found = score_image(model, "image.tif", "fields.gpkg")  # doctest: +SKIP
>>> print(found.basis.statement)  # doctest: +SKIP
Scored on 1,280 pixels of 20 polygons held out of the fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from undulatus.errors import InputError, SceneError
from undulatus.products.area import AreaEstimates, Design, estimate_areas
from undulatus.products.basis import Basis
from undulatus.products.image_pixels import gather_features, image_names, open_images
from undulatus.products.known_labels import KnownPixels, basis_of, known_pixels
from undulatus.products.legend import Legend
from undulatus.products.mapped_areas import (
    ClassMap,
    MappedAreas,
    classify_image,
    mapped_areas,
    open_class_map,
)
from undulatus.products.predict import feature_names, finite_rows
from undulatus.products.provenance import Provenance
from undulatus.products.scores import BINS, ManyClassScores, score_classes
from undulatus.scenes.files.images import require_same_offset
from undulatus.scenes.files.inputs import find_recorded
from undulatus.scenes.image_features import ImageFeatures

Array = npt.NDArray[Any]

Progress = Callable[[str], None]

LEAST_DIFFERENCE = 0.01
"""Labelled pixels whose areas differ by less count the same."""


@dataclass(frozen=True, eq=False)
class Reliability:
    """How often something happened that had a probability, in bins of equal width, (b,) each.

    ``probability`` and ``frequency`` are means over the rows of a bin, NaN where it has none.
    """

    name: str
    probability: Array
    frequency: Array
    rows: Array

    def as_dict(self) -> dict[str, Any]:
        """Return the bins that have rows, as plain values."""
        filled = self.rows > 0
        return {
            "name": self.name,
            "probability": self.probability[filled].tolist(),
            "frequency": self.frequency[filled].tolist(),
            "rows": self.rows[filled].tolist(),
        }


@dataclass(frozen=True, eq=False)
class ImageScores:
    """Scores of a model on labelled pixels, and estimates for the whole map."""

    basis: Basis
    """What was scored: say it wherever the scores are shown."""
    scores: ManyClassScores
    areas: AreaEstimates | None
    reliability: tuple[Reliability, ...]
    """Of the most probable class, then of each class."""
    colours: tuple[str, ...]
    """Of the classes, ``"#rrggbb"``."""
    images: tuple[str, ...]
    labels: str
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            **self.basis.as_dict(),
            "images": list(self.images),
            "labels": self.labels,
            "notes": list(self.notes),
            "scores": self.scores.as_dict(),
            "reliability": [one.as_dict() for one in self.reliability],
            "areas": None if self.areas is None else self.areas.as_dict(),
        }

    def table(self) -> str:
        """Return everything as text; the first line says what was scored."""
        parts = [self.basis.statement, *(f"Note: {note}" for note in self.notes), ""]
        parts.append(self.scores.table())
        if self.areas is not None:
            parts += ["", "For the whole map:", self.areas.table()]
        return "\n".join(parts)


def score_image(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    field: str | None = None,
    group: str | None = None,
    all_touched: bool = False,
    leave_out: Iterable[Any] = (),
    design: Design | None = None,
    areas: bool = True,
    maps: Any = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = lambda line: None,
    mapping: Callable[[float, float], None] | None = None,
) -> ImageScores:
    """Score a model on the labelled pixels of images that it has not learned from.

    Groups of labels are known again by their geometry, or by the field that says what belongs
    together. Those that the fit held out are scored, and those that the model has not seen;
    those that it learned from, or that overlap them, are left out. If nothing else is left, they
    are scored all the same, and the basis says so.

    Parameters
    ----------
    model : classifier
        As :func:`undulatus.products.fit_image` fits it, or any with names of bands as features.
    images : path, DataArray, Dataset, or list of these
    labels : path, GeoDataFrame, DataFrame or DataArray, or a list of them, optional
        One for all images, or one for each; by default the file that the model learned from.
    field, group : str, optional
        Fields of the labels with the class, and with what belongs together; by default as
        :func:`undulatus.products.fit_image` takes them, and those of the fit for its own labels.
    all_touched : bool
        Whether pixels that a polygon only touches are in it.
    leave_out : iterable
        Classes of the labels that the model does not have, which are not to be scored.
    design : {"simple", "stratified", "clusters"}, optional
        How the labelled places were drawn (:func:`undulatus.products.area.estimate_areas`). The
        clusters are the groups of labels.
    areas : bool
        Whether to estimate the areas of the classes, for which all pixels are mapped.
    maps : path or list of paths, optional
        Maps of the images by this model, as ``undulatus map`` wrote them. Without them, the images
        are classified here.
    confidence : float
        Of the intervals. Those of scores come from whole groups.
    seed : int
        Of pixels that are drawn where there are more than 200,000 of a class.
    progress : callable
        Called with lines of text.
    mapping : callable, optional
        Called with the work done and its total while pixels are mapped.
    """
    opened = open_images(images)
    provenance, legend = Provenance.of(model), Legend.of(model)
    for image in opened:
        require_same_offset(image, provenance.processing_baseline)
    source = _find_labels(labels, provenance, opened)
    pixels = known_pixels(
        opened, source, legend, provenance, field=field, group=group, all_touched=all_touched,
        leave_out=leave_out, seed=seed, progress=progress,
    )  # fmt: skip
    recipe = _recipe_of(model, provenance)
    features = _gather(opened, pixels, recipe, progress)
    whole = _require_data(features)
    notes = pixels.notes
    if not whole.all():
        notes += (f"{np.count_nonzero(~whole):,} labelled pixels without data are left out.",)
    pixels, features = pixels.take(whole), features[whole]
    basis, scored = basis_of(pixels, opened, provenance)
    pixels, features = pixels.take(scored), features[scored]
    progress(f"classifying {len(features):,} labelled pixels")
    table = pd.DataFrame(features, columns=list(recipe.names))
    probability = np.asarray(model.predict_proba(table), float)
    scores = score_classes(
        model.classes_[pixels.codes],
        probability,
        model.classes_,
        weight=None if (pixels.weight == 1.0).all() else pixels.weight,
        groups=pixels.groups,
        names=legend.names,
        confidence=confidence,
    )
    estimates = None
    if areas:
        said = probability.argmax(axis=1)
        found = _maps_of(model, opened, maps, pixels, said)
        mapped = mapped_areas(found, len(legend.classes), mapping)
        estimates = _estimate(mapped, pixels, said, legend, basis, design, confidence)
    return ImageScores(
        basis,
        scores,
        estimates,
        _reliability(pixels, probability, legend.names),
        legend.colours,
        tuple(image_names(opened)),
        str(source) if isinstance(source, (str, os.PathLike)) else "labels",
        notes,
    )


def _find_labels(labels: Any, provenance: Provenance, images: list[xr.DataArray]) -> Any:
    if labels is not None:
        return labels
    if provenance.label is None or provenance.chain != "image":
        raise InputError(
            "The model does not say which labels it learned from. Give labels to score against "
            "(--label FILE, in Python labels=...)."
        )
    folders = [Path(str(image.attrs["source"])).parent for image in images
               if "source" in image.attrs]  # fmt: skip
    found = find_recorded(provenance.label, Path.cwd(), *folders)
    if not found.exists():
        raise SceneError(
            f"The labels that the model learned from, {provenance.label}, are not found here or "
            f"beside the image. Give labels to score against (--label FILE, in Python "
            f"labels=...)."
        )
    return found


def _recipe_of(model: Any, provenance: Provenance) -> ImageFeatures:
    if provenance.image_features is not None:
        return ImageFeatures.from_dict(provenance.image_features)
    names = feature_names(model)
    if names is None:
        raise InputError(
            f"The {type(model).__name__} was fitted without names of features, so bands cannot be "
            f"matched to them. Fit it with fit_image, or on a table with named columns."
        )
    return ImageFeatures(names)


def _gather(
    images: list[xr.DataArray], pixels: KnownPixels, recipe: ImageFeatures, progress: Progress
) -> Array:
    """Return the features of labelled pixels, (n, features)."""
    features = np.empty((len(pixels.row), len(recipe.names)), np.float32)
    names = image_names(images)
    for i in np.unique(pixels.image):
        own = pixels.image == i
        progress(f"reading {np.count_nonzero(own):,} labelled pixels of {names[i]}")
        features[own] = gather_features(recipe, images[i], pixels.row[own], pixels.column[own])
    return features


def _require_data(features: Array) -> Array:
    """Return which pixels have all features, (n,) bool; it is an error if none has."""
    whole = finite_rows(features)
    if not whole.any():
        raise SceneError(
            f"All {len(whole):,} labelled pixels are missing (nodata) in the image. Check that "
            f"the labels lie on its valid part."
        )
    return whole


# The whole map, and calibration


def _estimate(
    mapped: MappedAreas,
    pixels: KnownPixels,
    said: Array,
    legend: Legend,
    basis: Basis,
    design: Design | None,
    confidence: float,
) -> AreaEstimates:
    k = len(legend.classes)
    _, clusters = np.unique(pixels.groups, return_inverse=True)
    cell = (clusters * k + said) * k + pixels.codes
    size = (int(clusters.max()) + 1) * k * k
    weight = pixels.weight * _relative_areas(mapped, pixels)
    cells = np.bincount(cell, weights=weight, minlength=size).reshape(-1, k, k)
    return estimate_areas(
        cells,
        mapped.areas,
        legend.names,
        design=design,
        unit=mapped.unit,
        group=pixels.cluster,
        confidence=confidence,
        notes=(*mapped.notes, *_doubts(basis, design, cells, pixels)),
    )


def _relative_areas(mapped: MappedAreas, pixels: KnownPixels) -> Array:
    """Return the areas of labelled pixels by their mean: chance takes pixels, not hectares."""
    area = np.ones(len(pixels.row))
    for i, areas in enumerate(mapped.of_pixels):
        own = pixels.image == i
        area[own] = np.nan_to_num(areas.at(pixels.row[own], pixels.column[own]))
    # Where they hardly differ, samples stay whole numbers.
    return (
        area / area.mean() if np.ptp(area) > LEAST_DIFFERENCE * area.mean() else 1.0 + 0.0 * area
    )


def _maps_of(
    model: Any, images: list[xr.DataArray], maps: Any, pixels: KnownPixels, said: Array
) -> list[ClassMap]:
    names = image_names(images)
    if maps is None:
        pairs = zip(images, names, strict=True)
        return [classify_image(model, image, name) for image, name in pairs]
    paths = [maps] if isinstance(maps, (str, os.PathLike)) else list(maps)
    if len(paths) != len(images):
        raise InputError(
            f"There are {len(images)} images, but {len(paths)} maps. Give one for each image, in "
            f"the same order."
        )
    found = [open_class_map(Path(path), model) for path in paths]
    for i, (one, image) in enumerate(zip(found, images, strict=True)):
        own = pixels.image == i
        one.require_made_by(image, pixels.row[own], pixels.column[own], said[own])
    return found


def _doubts(basis: Basis, design: Design | None, cells: Array, pixels: KnownPixels) -> list[str]:
    """Return what speaks against the sample."""
    doubts = []
    if basis.kind == "training":
        doubts.append(
            "The model was trained on this sample, so that accuracies are too high, and areas are "
            "too near to those that are mapped."
        )
    each = cells.sum() / len(cells)
    # Squares are ours: points in one of them were drawn by themselves.
    if design in ("simple", "stratified") and each >= 2.0 and pixels.cluster != "square":
        doubts.append(
            f"The design given takes each pixel as drawn by itself, but the labels come in groups "
            f"of {each:,.0f} pixels. If groups were drawn, standard errors are far too small: "
            f"--design clusters."
        )
    return doubts


def _reliability(
    pixels: KnownPixels, probability: Array, names: Sequence[str]
) -> tuple[Reliability, ...]:
    top = probability.argmax(axis=1)
    rows = np.arange(len(top))
    found = [_bins("most probable class", probability[rows, top], top == pixels.codes)]
    found += [_bins(name, probability[:, c], pixels.codes == c) for c, name in enumerate(names)]
    return tuple(found)


def _bins(name: str, chance: Array, happened: Array) -> Reliability:
    index = np.minimum((chance * BINS).astype(int), BINS - 1)
    rows = np.bincount(index, minlength=BINS)
    sums = [np.bincount(index, weights=values, minlength=BINS) for values in (chance, happened)]
    means = [np.where(rows > 0, total / np.maximum(rows, 1), np.nan) for total in sums]
    return Reliability(name, means[0], means[1], rows)
