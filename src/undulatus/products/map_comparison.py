"""Two maps of the same images compared on labelled pixels."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus.errors import InputError, SceneError
from undulatus.products.area import Design
from undulatus.products.basis import Basis, counted
from undulatus.products.comparison import (
    Comparison,
    compare_classes,
    match_classes,
    require_alike,
)
from undulatus.products.image_pixels import open_images
from undulatus.products.known_labels import UNITS, KnownPixels, known_pixels
from undulatus.products.mapped_areas import ClassMap, open_own_map
from undulatus.products.provenance import Provenance
from undulatus.scenes.pixel_grid import PixelGrid

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class MapComparison:
    """Two maps compared on labelled pixels, and what the comparison rests on."""

    basis: Basis
    comparison: Comparison
    notes: tuple[str, ...] = ()
    """What was left out, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            **self.basis.as_dict(),
            "notes": list(self.notes),
            "against": self.comparison.as_dict(),
        }

    def table(self) -> str:
        """Return everything as text; the first line says on what the maps are compared."""
        notes = [f"Note: {note}" for note in self.notes]
        return "\n".join([self.basis.statement, *notes, "", self.comparison.table()])


def compare_maps(
    first: str | os.PathLike[str],
    other: str | os.PathLike[str],
    image: Any,
    labels: Any,
    *,
    field: str | None = None,
    group: str | None = None,
    all_touched: bool = False,
    leave_out: Iterable[Any] = (),
    design: Design | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Callable[[str], None] = lambda line: None,
) -> MapComparison:
    """Compare two maps of an image by their accuracies on exactly the same labelled pixels.

    Maps do not say which labels their models learned from, so that all labels count: give some
    that are new to both, or compare the models (:func:`undulatus.products.score_image`).

    Parameters
    ----------
    first, other : path
        Maps of the same classes, as ``undulatus map`` wrote them.
    image : path, DataArray or Dataset
        What both are maps of.
    labels, field, group, all_touched, leave_out, design, confidence, seed, progress
        As :func:`undulatus.products.score_image` takes them.
    """
    require_alike(design)
    opened = open_images(image)
    if len(opened) != 1:
        raise InputError(f"Two maps are compared on one image, but {len(opened)} are given.")
    (mapped, legend), (mapped_other, legend_other) = (
        open_own_map(Path(path)) for path in (first, other)
    )
    order = match_classes(legend.names, legend_other.names, ("first map", "other map"))
    pixels = known_pixels(
        opened, labels, legend, Provenance(), field=field, group=group, all_touched=all_touched,
        leave_out=leave_out, seed=seed, progress=progress,
    )  # fmt: skip
    said = _classes_at(mapped, opened[0], pixels)
    # The place of each class of the other map in the legend of the first.
    back = np.append(np.argsort(order), np.nan)
    theirs = _classes_at(mapped_other, opened[0], pixels)
    theirs = back[np.where(np.isnan(theirs), -1, theirs).astype(np.intp)]
    known = np.isfinite(said) & np.isfinite(theirs)
    if not known.any():
        raise SceneError(
            f"No labelled pixel has a class in both maps, {first} and {other}. See whether the "
            f"labels lie on their valid parts."
        )
    notes = pixels.notes
    if not known.all():
        notes += (f"{np.count_nonzero(~known):,} labelled pixels without a class are left out.",)
    pixels, every = pixels.take(known), np.eye(len(legend.classes))
    comparison = compare_classes(
        pixels.codes,
        every[said[known].astype(np.intp)],
        every[theirs[known].astype(np.intp)],
        range(len(legend.classes)),
        weight=None if (pixels.weight == 1.0).all() else pixels.weight,
        groups=None if design == "simple" else pixels.groups,
        names=legend.names,
        likelihood=False,
        confidence=confidence,
    )
    return MapComparison(_basis_of(pixels), comparison, notes)


def _classes_at(mapped: ClassMap, image: xr.DataArray, pixels: KnownPixels) -> Array:
    """Return the place of the class of labelled pixels in a map, NaN for none, (n,)."""
    none = np.zeros(0, np.intp)
    mapped.require_made_by(image, none, none, none)
    row, column = pixels.row, pixels.column
    own, its = PixelGrid.of(mapped.places), PixelGrid.of(image)
    if not np.allclose(own.centre_of(row, column), its.centre_of(row, column)):
        raise SceneError(
            f"The rows of {mapped.name} run another way than those of the image, so that pixels "
            f"cannot be matched. Give the map in netCDF or Zarr, or the image with north up."
        )
    return np.asarray(mapped.places.data.vindex[row, column].compute())


def _basis_of(pixels: KnownPixels) -> Basis:
    noun = pixels.unit if pixels.unit in UNITS else f"{pixels.unit}="
    groups = counted(len(np.unique(pixels.unit_keys)), noun)
    return Basis(
        "unknown",
        f"Scored on {len(pixels.row):,} pixels of {groups}. Whether models learned from them is "
        f"unknown: maps do not say. Compare the models to leave out what they learned from.",
    )
