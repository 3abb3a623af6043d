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
from undulatus.products.comparison import (
    Comparison,
    compare_classes,
    match_classes,
    require_alike,
)
from undulatus.products.image_pixels import gather_features, image_names, open_images
from undulatus.products.known_labels import (
    KnownPixels,
    basis_of,
    basis_of_both,
    known_pixels,
    known_to_both,
)
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
    comparison: Comparison | None = None
    """With another model, on the same pixels."""

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
            "against": None if self.comparison is None else self.comparison.as_dict(),
        }

    def table(self) -> str:
        """Return everything as text; the first line says what was scored."""
        parts = [self.basis.statement, *(f"Note: {note}" for note in self.notes), ""]
        parts.append(self.scores.table())
        if self.areas is not None:
            parts += ["", "For the whole map:", self.areas.table()]
        if self.comparison is not None:
            parts += ["", self.comparison.table()]
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
    against: Any = None,
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
    against : classifier, optional
        Another model of the same classes, to compare with on exactly the same pixels; it may have
        other bands. Groups that either of the two learned from are left out, and all scores are
        of the pixels that both can score.
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
    models = [model] if against is None else [model, against]
    columns = [np.arange(len(legend.classes))]
    if against is not None:
        require_alike(design)
        columns.append(_columns_of(against, legend))
    source = _find_labels(labels, provenance, opened)
    reading: dict[str, Any] = {
        "field": field, "group": group, "all_touched": all_touched,
        "leave_out": tuple(leave_out), "seed": seed,
    }  # fmt: skip
    pixels = known_pixels(opened, source, legend, provenance, **reading, progress=progress)
    known = [pixels]
    if against is not None:
        memories = (provenance, Provenance.of(against))
        known = list(known_to_both(pixels, opened, source, legend, memories, **reading))
    tables = [
        _gather(one, opened, known[0], which, progress)
        for one, which in zip(models, WHICH, strict=False)
    ]
    whole = _require_data(tables)
    notes = pixels.notes
    if not whole.all():
        notes += (f"{np.count_nonzero(~whole):,} labelled pixels without data are left out.",)
    known = [one.take(whole) for one in known]
    basis, scored = (
        basis_of(known[0], opened, provenance) if against is None else basis_of_both(*known)
    )
    pixels = known[0].take(scored)
    progress(f"classifying {len(pixels.row):,} labelled pixels")
    chances = [
        np.asarray(one.predict_proba(table[whole][scored]), float)[:, order]
        for one, table, order in zip(models, tables, columns, strict=True)
    ]
    probability = chances[0]
    weight = None if (pixels.weight == 1.0).all() else pixels.weight
    scores = score_classes(
        model.classes_[pixels.codes],
        probability,
        model.classes_,
        weight=weight,
        groups=pixels.groups,
        names=legend.names,
        confidence=confidence,
    )
    comparison = None
    if against is not None:
        comparison = compare_classes(
            model.classes_[pixels.codes],
            probability,
            chances[1],
            model.classes_,
            weight=weight,
            # Pixels that were drawn one by one are independent.
            groups=None if design == "simple" else pixels.groups,
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
        comparison,
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


WHICH = ("model", "other model (--against)")
"""What errors call two models."""


def _gather(
    model: Any, images: list[xr.DataArray], pixels: KnownPixels, which: str, progress: Progress
) -> pd.DataFrame:
    """Return the features of labelled pixels by name, (n, features)."""
    provenance = Provenance.of(model)
    recipe = _recipe_of(model, provenance)
    features = np.empty((len(pixels.row), len(recipe.names)), np.float32)
    names = image_names(images)
    try:
        for image in images:
            require_same_offset(image, provenance.processing_baseline)
        for i in np.unique(pixels.image):
            own = pixels.image == i
            progress(f"reading {np.count_nonzero(own):,} labelled pixels of {names[i]}")
            features[own] = gather_features(recipe, images[i], pixels.row[own], pixels.column[own])
    except SceneError as error:
        if which == WHICH[0]:
            raise
        raise SceneError(f"The {which} cannot be scored on these images. {error}") from None
    return pd.DataFrame(features, columns=list(recipe.names))


def _require_data(tables: list[pd.DataFrame]) -> Array:
    """Return which pixels have all features, (n,) bool; it is an error if none has."""
    whole = np.all([finite_rows(table.to_numpy()) for table in tables], axis=0)
    if not whole.any():
        raise SceneError(
            f"All {len(whole):,} labelled pixels are missing (nodata) in the image. Check that "
            f"the labels lie on its valid part."
        )
    return whole


def _columns_of(model: Any, legend: Legend) -> Array:
    """Return the columns of another model's probabilities in the order of a legend, (k,)."""
    if not hasattr(model, "predict_proba"):
        raise InputError(
            f"against is a {type(model).__name__}, but a fitted classifier is needed to compare "
            f"with: load_model(path) of a file."
        )
    return match_classes(legend.names, Legend.of(model).names, WHICH)


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
