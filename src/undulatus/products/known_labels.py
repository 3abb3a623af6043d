"""Labelled pixels of images, and what a model knows of them.

A group of labels (a polygon) was held out of a model's fit, was learned from, overlaps such a
group, or is new. :func:`known_pixels` tells which, and :func:`basis_of` what to score;
:func:`known_to_both` and :func:`basis_of_both` do so for two models that are compared.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import SceneError
from undulatus.products.basis import Basis, counted, training_basis, unknown_basis
from undulatus.products.image_pixels import (
    as_recorded,
    group_keys,
    image_names,
    labels_of_images,
    one_each,
)
from undulatus.products.legend import Legend
from undulatus.products.provenance import Provenance
from undulatus.scenes.labelled_pixels import LabelledPixels, in_boxes
from undulatus.scenes.pixel_grid import PixelGrid, reproject

Array = npt.NDArray[Any]

Progress = Callable[[str], None]

MOST_PIXELS = 200_000
"""Pixels of a class of an image that are scored, at most; with more, some are drawn."""

UNITS = ("polygon", "square", "image")
"""What a group of labels is, if it is not what a field says."""

HELD_OUT, NEW, OVERLAPS, TRAINED, UNKNOWN = range(5)
"""What a group of labels is to a model."""


@dataclass(frozen=True)
class KnownPixels:
    """Labelled pixels of all images, and what a model knows of them; arrays are (n,)."""

    image: Array
    row: Array
    column: Array
    codes: Array
    """Places in the classes of the model."""
    groups: Array
    """Numbers of groups, the same in all images."""
    known_as: Array
    """What the group of a pixel is to the model, ``HELD_OUT`` and so on."""
    unit_keys: Array
    """What the model would hold out whole: groups, or images."""
    weight: Array
    """Labelled pixels that one stands for; their mean is one."""
    unit: str
    """What the model would hold out whole: ``"polygon"``, a field of the labels, and so on."""
    cluster: str
    """What a group is."""
    notes: tuple[str, ...]

    def take(self, rows: Array) -> KnownPixels:
        """Return some of the pixels, by number or as a mask."""
        arrays = {k: v[rows] for k, v in vars(self).items() if isinstance(v, np.ndarray)}
        return KnownPixels(**(vars(self) | arrays))


def known_pixels(
    images: list[xr.DataArray],
    source: Any,
    legend: Legend,
    provenance: Provenance,
    *,
    field: str | None = None,
    group: str | None = None,
    all_touched: bool = False,
    leave_out: Iterable[Any] = (),
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> KnownPixels:
    """Return the labelled pixels of images with the classes of a model, and what it knows of them.

    Parameters
    ----------
    images : list of DataArray
        As :func:`undulatus.products.images.open_images` returns them.
    source
        Labels of all images, or a list with those of each.
    legend : Legend
        Of the model.
    provenance : Provenance
        Of the model.
    field, group, all_touched, leave_out, seed, progress
        As :func:`undulatus.products.score_image` takes them.
    """
    found = _read(images, source, provenance, field, group, all_touched, seed, progress)
    return _label(images, found, legend, provenance, tuple(map(str, leave_out)))


def _read(
    images: list[xr.DataArray],
    source: Any,
    provenance: Provenance,
    field: str | None,
    group: str | None,
    all_touched: bool,
    seed: int,
    progress: Progress,
) -> dict[int, LabelledPixels]:
    """Return the labels of each image, in the groups of the fit if the labels tell them."""
    field = _class_field(source, field, provenance)
    sources = one_each(source, len(images))

    def read(by: str | None, split: str | None = None) -> dict[int, LabelledPixels]:
        return labels_of_images(
            images, sources, field, by, all_touched, MOST_PIXELS, seed, progress, split
        )

    unit = provenance.group_unit
    # Squares are held out in part where the labels say so; other groups as a whole.
    split = provenance.split if unit == "square" else None
    by = unit if group is None and unit not in UNITS else group
    if by == group and split is None:
        return read(group)
    try:
        return read(by, split)
    except SceneError:
        # Other labels need not have the fields, and are scored in groups of their own.
        return read(group)


def _class_field(source: Any, field: str | None, provenance: Provenance) -> str | None:
    """Return the field that was named, or that of the fit for its own labels."""
    own = isinstance(source, (str, os.PathLike)) and _ends_alike(source, provenance.label or "")
    return field or (provenance.field if own else None)


def _label(
    images: list[xr.DataArray],
    found: dict[int, LabelledPixels],
    legend: Legend,
    provenance: Provenance,
    leave_out: tuple[str, ...],
) -> KnownPixels:
    """Return the pixels of all images with the classes of the model."""
    names = image_names(images)
    parts, keys, notes = [], [], []
    places = _places(found, legend, leave_out)
    for i, own in found.items():
        groups = group_keys(own, images[i], names[i])
        known_as = _known_as(own, groups, images[i], names[i], provenance)
        by_image = provenance.group_unit == "image"
        codes = np.array([places[label] for label in own.classes])[own.codes]
        drawn = np.bincount(own.codes, minlength=len(own.classes))
        counts = np.array([own.counts[label] for label in own.classes])
        kept = codes >= 0
        parts.append(
            {
                "image": np.full(len(own.row), i)[kept],
                "row": own.row[kept],
                "column": own.column[kept],
                "codes": codes[kept],
                "known_as": known_as[kept],
                "weight": _weights(counts, drawn)[own.codes][kept],
            }
        )
        named = np.array(groups, object)[own.groups][kept]
        keys.append((named, np.full(len(named), names[i], object) if by_image else named))
        if not kept.all():
            notes.append(f"{np.count_nonzero(~kept):,} pixels of {', '.join(leave_out)} left out")
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    if not len(joined["row"]):
        raise SceneError("No labelled pixel is left of the classes of the model.")
    joined["weight"] = joined["weight"] / joined["weight"].mean()
    every_key = np.concatenate([key for key, _ in keys]).astype(str)
    unit_keys = np.concatenate([key for _, key in keys]).astype(str)
    cluster = next(iter(found.values())).unit
    return KnownPixels(
        **joined,
        groups=np.unique(every_key, return_inverse=True)[1],
        unit_keys=unit_keys,
        unit="image" if provenance.group_unit == "image" else cluster,
        cluster=cluster if cluster in UNITS else "group",
        notes=tuple(notes),
    )


def _weights(counts: Array, drawn: Array) -> Array:
    """Return how many pixels of its class a scored one stands for, (k,)."""
    return np.where(counts > MOST_PIXELS, counts / np.maximum(drawn, 1), 1.0)


def _places(
    found: dict[int, LabelledPixels], legend: Legend, leave_out: tuple[str, ...]
) -> dict[Any, int]:
    """Return the place of each class of the labels in the model's classes, -1 if it is left out.

    A class is known by its value, or by its name in the legend.
    """
    by_text = {str(value): place for place, value in enumerate(legend.classes)}
    by_name = {name: place for place, name in enumerate(legend.names)} | by_text
    wanted = list(dict.fromkeys(label for own in found.values() for label in own.classes))
    meant = {label: name for own in found.values() for label, name in own.names.items()}
    places = {
        label: -1
        if {str(label), meant.get(label)} & set(leave_out)
        else by_name.get(str(label), by_name.get(meant.get(label, ""), None))
        for label in wanted
    }
    absent = set(leave_out) - {str(label) for label in wanted} - set(meant.values())
    if absent:
        raise SceneError(
            f"{', '.join(sorted(absent))} cannot be left out: the labels have "
            f"{', '.join(map(str, wanted))}."
        )
    strange = [str(label) for label, place in places.items() if place is None]
    if strange:
        raise SceneError(
            f"The labels have classes that the model does not have: {', '.join(strange)}.\n"
            f"  classes of the model: {', '.join(legend.names)}\n"
            f"Correct the labels, name another field (--field), or leave these classes out "
            f"(--leave-out {','.join(strange)}, in Python leave_out=...)."
        )
    return {label: place for label, place in places.items() if place is not None}


def _known_as(
    own: LabelledPixels,
    keys: list[str],
    image: xr.DataArray,
    name: str,
    provenance: Provenance,
) -> Array:
    """Return what each labelled pixel of an image is to the model, (n,) int."""
    known = _groups_known_as(own, keys, image, name, provenance)
    inside = own.unit == "square" and provenance.group_unit == "polygon"
    places = _places_in(own, image, name, provenance) if inside else None
    if places is None:
        return known[own.groups]
    # Points, rasters and tables have no groups of their own: each pixel stands for itself.
    learned = in_boxes((provenance.training_groups or {}).values(), *places)
    return np.where(learned, OVERLAPS, NEW)


def _groups_known_as(
    own: LabelledPixels,
    keys: list[str],
    image: xr.DataArray,
    name: str,
    provenance: Provenance,
) -> Array:
    """Return what each group of an image's labels is to the model, (g,) int."""
    training, unit = provenance.training_groups, provenance.group_unit
    held_out = provenance.held_out_groups or {}
    if training is None or unit is None:
        return np.full(len(keys), UNKNOWN)
    if unit == "image":
        meant = _recorded_as(image, name, [*training, *held_out])
        # One that was moved may have the name of several: then it may have been learned from.
        status = TRAINED if meant & set(training) else HELD_OUT if meant else NEW
        return np.full(len(keys), status)
    if unit not in UNITS and own.unit != unit:
        return np.full(len(keys), UNKNOWN)
    grid = PixelGrid.of(image)
    if unit == own.unit == "polygon" and grid.crs_text == provenance.crs:
        keys = as_recorded(keys, own.bounds.tolist(), training | held_out)
    known = np.array(
        [HELD_OUT if key in held_out else TRAINED if key in training else NEW for key in keys]
    )
    if unit not in UNITS:
        return known
    if (grid.crs is None) != (provenance.crs is None):
        return np.where(known == NEW, UNKNOWN, known)
    places = _places_in(own, image, name, provenance)
    if places is None:
        return known
    order = np.argsort(own.groups, kind="stable")
    ends = np.searchsorted(own.groups[order], np.arange(len(keys) + 1))
    x, y = places[0][order], places[1][order]

    def touches(g: int, boxes: list[list[float]]) -> bool:
        pixels = slice(ends[g], ends[g + 1])
        return _hold_one_of(np.array(boxes, float).reshape(-1, 4), x[pixels], y[pixels])

    # Squares of images of the same name need not be of the same place.
    bounds = held_out | training
    for g in np.flatnonzero(known != NEW).tolist() if unit == "square" else ():
        if bounds[keys[g]] and not touches(g, [bounds[keys[g]]]):
            known[g] = NEW
    learned = [box for box in training.values() if box]
    for g in np.flatnonzero(known == NEW).tolist():
        if touches(g, learned):
            known[g] = OVERLAPS
    return known


def _recorded_as(image: xr.DataArray, name: str, recorded: Iterable[str]) -> set[str]:
    """Return which of the recorded images an image is, or may be if they were moved."""
    whole, names = image.attrs.get("source", name), set(recorded)
    exact = {other for other in names if _ends_alike(whole, other)}
    return exact or {
        other
        for other in names
        if Path(whole).name == Path(other).name and not Path(other).exists()
    }


def _ends_alike(path: str | os.PathLike[str], recorded: str) -> bool:
    """Return whether a path ends as one that a model remembers, which may be a name alone."""
    parts = Path(recorded).parts
    return bool(parts) and Path(os.path.abspath(path)).parts[-len(parts) :] == parts


def _places_in(
    own: LabelledPixels, image: xr.DataArray, name: str, provenance: Provenance
) -> tuple[Array, Array] | None:
    """Return x and y of pixels in the coordinates of the fit, or None if they are not known."""
    grid = PixelGrid.of(image)
    crs = grid.crs
    x, y = grid.centre_of(own.row, own.column)
    if crs is None:
        # Rows and columns of other images are other places.
        return (x, y) if _recorded_as(image, name, provenance.images or []) else None
    return reproject(x, y, crs, provenance.crs)


def _hold_one_of(boxes: Array, x: Array, y: Array) -> bool:
    """Return whether one of some boxes, (b, 4), holds one of some pixels, both perhaps none."""
    if not len(x):
        return False
    west, south, east, north = boxes.T
    near = (west < x.max()) & (east > x.min()) & (south < y.max()) & (north > y.min())
    return any(
        bool(((x > west[b]) & (x < east[b]) & (y > south[b]) & (y < north[b])).any())
        for b in np.flatnonzero(near)
    )


# What is scored


def basis_of(
    pixels: KnownPixels, images: list[xr.DataArray], provenance: Provenance
) -> tuple[Basis, Array]:
    """Return the basis of scores, and which pixels they are of, (n,) bool."""
    noun = pixels.unit if pixels.unit in UNITS else f"{pixels.unit}="

    def groups(*kinds: int) -> str:
        own = np.isin(pixels.known_as, kinds)
        return counted(len(np.unique(pixels.unit_keys[own])), noun)

    def has(kind: int) -> bool:
        return bool((pixels.known_as == kind).any())

    scored = np.isin(pixels.known_as, (HELD_OUT, NEW))
    amount = f"{np.count_nonzero(scored):,} pixels"
    left = []
    if has(TRAINED):
        left.append(f"{groups(TRAINED)} that it was trained on")
    if has(OVERLAPS):
        left.append(_overlapping(pixels, groups(OVERLAPS), provenance))
    ending = f" (left out: {', '.join(left)})." if left else "."
    if has(HELD_OUT):
        also = f" and of {groups(NEW)} that the model has not seen" if has(NEW) else ""
        statement = f"Scored on {amount} of {groups(HELD_OUT)} held out of the fit{also}{ending}"
        return Basis("held out", statement), scored
    if has(NEW):
        statement = f"Scored on labels that the model has not seen: {amount} of {groups(NEW)}"
        if provenance.group_unit not in UNITS:
            statement += ", none of which has the name of a group that it was trained on"
        return Basis("new", statement + ending), scored
    everything = np.ones(len(scored), bool)
    amount = f"{len(scored):,} pixels of {groups(TRAINED, OVERLAPS, UNKNOWN)}"
    if has(UNKNOWN):
        return unknown_basis(amount, _why_unknown(provenance)), everything
    others = [
        name
        for image, name in zip(images, image_names(images), strict=True)
        if not _recorded_as(image, name, provenance.images or [])
    ]
    if len(others) == len(images):
        amount += ", in images of other names than those of the fit"
    if has(OVERLAPS):
        amount += f" ({_overlapping(pixels, groups(OVERLAPS), provenance)})"
    return training_basis(amount, "places"), everything


def _overlapping(pixels: KnownPixels, groups: str, provenance: Provenance) -> str:
    if pixels.unit == "square" and provenance.group_unit == "polygon":
        return f"{np.count_nonzero(pixels.known_as == OVERLAPS):,} pixels in training polygons"
    return f"{groups} overlapping training {provenance.group_unit}s"


def _why_unknown(provenance: Provenance) -> str:
    if provenance.training_groups is None:
        return "it does not say what it learned from"
    if provenance.group_unit in UNITS:
        return "either its images or these have no georeference to compare places by"
    return (
        f"its fit held out whole groups by the field {provenance.group_unit!r}, by which these "
        f"labels are not grouped (--group)"
    )


# Two models

NOT_SAID_BY_BOTH = (
    "one of the two does not say what it learned from, or in groups that these labels do not have"
)


def known_to_both(
    pixels: KnownPixels,
    images: list[xr.DataArray],
    source: Any,
    legend: Legend,
    provenances: tuple[Provenance, Provenance],
    *,
    field: str | None,
    group: str | None,
    all_touched: bool,
    leave_out: Iterable[Any],
    seed: int,
) -> tuple[KnownPixels, KnownPixels]:
    """Return the labelled pixels that two models share, with what each of them knows of them.

    Parameters
    ----------
    pixels : KnownPixels
        As the first model knows them.
    images, source, legend
        As :func:`known_pixels` takes them; the legend is that of the first model.
    provenances : pair of Provenance
        Of the first model and of the second.
    field, group, all_touched, leave_out, seed
        As those ``pixels`` were read with.
    """
    first, second = provenances
    other = known_pixels(
        images, source, legend, second, field=_class_field(source, field, first), group=group,
        all_touched=all_touched, leave_out=leave_out, seed=seed,
    )  # fmt: skip
    place = [np.stack([one.image, one.row, one.column], axis=1) for one in (pixels, other)]
    both = np.concatenate(place)
    _, number = np.unique(both, axis=0, return_inverse=True)
    ours, theirs = np.split(number.ravel(), [len(place[0])])
    _, here, there = np.intersect1d(ours, theirs, assume_unique=True, return_indices=True)
    order = np.argsort(here)
    return pixels.take(here[order]), other.take(there[order])


def basis_of_both(first: KnownPixels, second: KnownPixels) -> tuple[Basis, Array]:
    """Return the basis on which two models are compared, and which pixels it is of, (n,) bool.

    A group that either of them learned from, in part too, is left out: also where nothing else is
    left, which is an error.
    """
    known = np.stack([first.known_as, second.known_as])
    by_each = np.isin(known, (TRAINED, OVERLAPS))
    learned = np.asarray(by_each.any(axis=0))
    if first.cluster != "square":
        # The groups of the two models may differ. Pixels of squares were labelled by themselves.
        learned = np.isin(first.groups, first.groups[learned])
    unknown = (known == UNKNOWN).any(axis=0) & ~learned
    noun = first.unit if first.unit in UNITS else f"{first.unit}="

    def amount(own: Array) -> str:
        return counted(len(np.unique(first.unit_keys[own])), noun)

    learned_by = [
        f"{amount(own)} by the {which}"
        for own, which in zip(by_each, ("first", "other"), strict=True)
    ]
    if learned.all():
        raise SceneError(
            f"The two models have no {first.unit} of the labels in common that neither has "
            f"learned from: of {amount(learned)}, {' and '.join(learned_by)} were learned from.\n"
            f"Give labels that are new to both (--label FILE, in Python labels=...), or fit both "
            f"with the same --seed or --split, which hold out the same."
        )
    scored = ~learned & ~unknown
    if not scored.any():
        scored = unknown
    left = f" (left out, as learned from: {', '.join(learned_by)})" if learned.any() else ""
    doubtful = np.count_nonzero(unknown & ~scored)
    ending = (
        f"{left}; {doubtful:,} pixels that one may know are left out." if doubtful else f"{left}."
    )
    size = f"{np.count_nonzero(scored):,} pixels of {amount(scored)}"
    if unknown[scored].any():
        return unknown_basis(f"{size}{left}", NOT_SAID_BY_BOTH), scored
    held = (known[:, scored] == HELD_OUT).any()
    how = "that neither model has learned from" if held else "that neither model has seen"
    return Basis("held out" if held else "new", f"Scored on {size} {how}{ending}"), scored
