"""Your own image and labels: from labelled polygons of an image to a classifier of its pixels.

:func:`label_pixels` finds the labelled pixels of images, in groups that belong together
(polygons); :func:`fit_image` learns from most of the groups and keeps the others for scores.

>>> from undulatus.products import fit_image, map_scene
>>> from undulatus.scenes import open_image
>>> image = open_image("image.tif")  # doctest: +SKIP
>>> model = fit_image(image, "fields.gpkg", field="crop")  # doctest: +SKIP
>>> maps = map_scene(model, image)  # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from undulatus.errors import InputError, SceneError
from undulatus.estimators import forget_checkpoint, make_classifier
from undulatus.products.held_out_files import require_writable, write_held_out
from undulatus.products.holdout import hold_out_groups
from undulatus.products.image_pixels import (
    ImagePixels,
    gather_features,
    image_names,
    leave_out_missing,
    open_images,
    read_pixels,
)
from undulatus.products.legend import MOST_CLASSES, Legend
from undulatus.products.provenance import Provenance
from undulatus.products.usable_bands import screen_bands
from undulatus.scenes.files.images import (
    ALPHA,
    BASELINE,
    OTHER_GRIDS,
    has_offset,
)
from undulatus.scenes.image_features import ImageFeatures, choose_bands, pixel_size
from undulatus.scenes.pixel_grid import PixelGrid

Array = npt.NDArray[Any]

Class = int | str

Progress = Callable[[str], None]

MAX_PIXELS = {"vff": 50_000, "rff": 50_000, "gpc": 5_000}
"""Training pixels, at most, by method; the exact process cannot take more."""

PROFILE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the training spectra of a class that a model keeps."""


# Which are learned from


def draw_pixels(
    codes: Array, counts: Array, most: int, balance: bool, rng: np.random.Generator
) -> Array:
    """Return the numbers of the pixels to learn from, sorted: at most ``most``.

    Classes have their shares of all labelled pixels, ``counts``, or are as large as each other
    with ``balance``; a class that has fewer pixels gives all it has.
    """
    k = len(counts)
    shares = np.full(k, 1.0 / k) if balance else counts / counts.sum()
    available = np.bincount(codes, minlength=k)
    # A rare class still has enough to be learned, if it has them at all; others give way.
    least = min(100, most // k)
    each = np.maximum(np.rint(most * shares), least)
    beyond = each - least
    each -= np.ceil(max(each.sum() - most, 0.0) * beyond / max(beyond.sum(), 1.0))
    each = np.minimum(each, available)
    if balance:
        each = np.minimum(each, max(each[each > 0].min(), 1))
    chosen = [
        rng.choice(np.flatnonzero(codes == code), int(each[code]), replace=False)
        for code in range(k)
    ]
    return np.sort(np.concatenate(chosen))


def fit_image(
    images: Any,
    labels: Any,
    *,
    field: str | None = None,
    group: str | None = None,
    method: str = "vff",
    n_frequencies: int = 100,
    n_estimators: int = 8,
    bands: Iterable[str] | None = None,
    indices: Iterable[str] = (),
    windows: Iterable[int] = (),
    roles: Mapping[str, str] | None = None,
    holdout: float = 0.25,
    split: str | None = None,
    held_out_file: str | os.PathLike[str] | None = None,
    balance: bool = False,
    max_pixels: int | None = None,
    all_touched: bool = False,
    nodata: Iterable[float] | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    device: str | None = None,
    verbose: int = 0,
    progress: Progress = lambda line: None,
) -> Any:
    """Fit a classifier to the labelled pixels of images.

    Parameters
    ----------
    images : path, DataArray, Dataset, or list of these
        As :func:`undulatus.scenes.open_image` opens them, or as rioxarray, odc-stac or stackstac
        give them. Only pixels with labels are read.
    labels : path, GeoDataFrame, DataFrame or DataArray, or a list with one for each image
        Polygons, points, a raster, or a table (:func:`undulatus.scenes.files.labels.read_labels`).
    field : str, optional
        Field of the labels with the class; by default the only one, ``class`` or ``label``.
    group : str, optional
        Field of the labels that says which features belong together. By default a group is a
        polygon; without polygons, an image of several, or a square of the image if it is the
        only one, or if several show the same place.
    method : {"vff", "rff", "gpc"}
    n_frequencies, n_estimators : int
        Frequencies of an estimator, and estimators of the ensemble; each leaves out other groups
        for validation.
    bands : iterable of str, optional
        Bands to use, all by default: names, numbers from 1, ranges of either, and with a ``-``
        before it what to leave out (:func:`undulatus.scenes.image_features.choose_bands`).
    indices : iterable of str
        Spectral indices as further features, such as ``"NDVI"``.
    windows : iterable of int
        Widths of windows, in pixels, whose mean and deviation of each band are features.
    roles : mapping, optional
        Bands that indices need where their names do not tell, such as ``{"N": "band_4"}``.
    holdout : float
        Share of the pixels of each class that is kept for
        :func:`undulatus.products.score_image`, in whole groups; 0 for none.
    split : str, optional
        Field of the labels that says what is learned from and what is held out instead
        (``train`` and ``test``).
    held_out_file : path, optional
        File to write the labels to that are held out: .gpkg, .geojson, .fgb or .parquet; .csv or
        .parquet of labels in a table.
    balance : bool
        Learn from as many pixels of each class; probabilities are corrected for the shares of the
        classes in the labels.
    max_pixels : int, optional
        Training pixels, at most: 50,000, for GPC 5,000.
    all_touched : bool
        Whether pixels that a polygon only touches are in it.
    nodata : iterable of float, optional
        Values that mark missing pixels though no file says so: those that nothing measured has,
        such as -9999, in any band, others in all bands. By default such values are looked for
        (:func:`undulatus.scenes.image_features.find_fill_values`); none are with ``()``.
    seed : int
    checkpoint : path, optional
        The fit is saved as it goes; a fit of the same data continues there.
    device : str, optional
        Where to compute, such as ``"cuda"`` (see :class:`~undulatus.VFFGPC`).

    Returns
    -------
    classifier
        With names of features, and ``provenance_`` that says how features are made, which groups
        were learned from and held out, and the spectra of each class.
    """
    if not 0.0 <= holdout < 1.0:
        raise InputError(f"holdout is a share from 0 up to 1, but {holdout} was given.")
    model = make_classifier(
        method,
        n_frequencies,
        n_estimators=n_estimators,
        seed=seed,
        verbose=verbose,
        checkpoint=checkpoint,
        device=device,
    )
    most = max_pixels or MAX_PIXELS[method]
    opened = open_images(images)
    baseline = _common_baseline(opened)
    for name, image in zip(image_names(opened), opened, strict=True):
        if OTHER_GRIDS in image.attrs:
            progress(f"left out of {name}, for their grids: {image.attrs[OTHER_GRIDS]}")
        if ALPHA in image.attrs:
            progress(f"{image.attrs[ALPHA]} of {name} is alpha: where it is 0, pixels are missing")
    recipe = _make_recipe(opened, bands, indices, windows, roles)
    recipe = replace(recipe, nodata=tuple(map(float, nodata or ())))
    pixels = read_pixels(
        opened, labels, recipe, field=field, group=group, all_touched=all_touched,
        most=most, least_classes=2, seed=seed, progress=progress, split=split,
    )  # fmt: skip
    if held_out_file is not None:
        require_writable(Path(held_out_file), pixels.sources)
    recipe, features = screen_bands(
        recipe,
        pixels.features,
        lambda other: _gather_again(other, opened, pixels),
        look_for_fill=nodata is None,
        progress=progress,
    )
    pixels = leave_out_missing(replace(pixels, features=features), recipe, 2, progress)
    rng = np.random.default_rng(seed)
    held = _held_out(pixels, holdout, rng, progress)
    training = pixels.take(~held[pixels.groups])
    training = training.take(draw_pixels(training.codes, pixels.counts, most, balance, rng))
    _require_rows(training)
    shares = pixels.counts / pixels.counts.sum()
    if balance:
        model.set_params(prior_correction=shares.tolist())
    counted = {name: int(n) for name, n in zip(pixels.names, _counts(training), strict=True)}
    progress("training pixels: " + ", ".join(f"{name} {n:,}" for name, n in counted.items()))
    several = len(np.unique(training.groups)) > 1 and method != "gpc"
    table = pd.DataFrame(training.features, columns=list(recipe.names))
    model.fit(table, training.labels, **({"groups": training.groups} if several else {}))
    forget_checkpoint(model)
    if held_out_file is not None:
        names = {name for name, out in zip(pixels.group_names, held, strict=True) if out}
        write_held_out(Path(held_out_file), pixels.sources, names)
    used = np.zeros(len(held), bool)
    used[training.groups] = True
    model.provenance_ = Provenance(
        chain="image",
        method=method,
        label=_label_text(labels),
        field=field,
        split=split,
        images=image_names(opened),
        image_features=recipe.as_dict(),
        processing_baseline=baseline,
        group_unit=pixels.unit,
        crs=PixelGrid.of(opened[0]).crs_text,
        training_groups=_bounds_of(pixels, used),
        held_out_groups=_bounds_of(pixels, held),
        training_pixels=counted,
        class_shares=dict(zip(pixels.names, shares.tolist(), strict=True)),
        class_profiles=_class_profiles(training, recipe),
        seed=seed,
    ).as_dict()
    Legend(tuple(pixels.classes), names=pixels.names).attach_to(model)
    return model


def _common_baseline(images: list[xr.DataArray]) -> str | None:
    """Return the baseline of images whose offset was not applied; a mixture is an error."""
    found = [str(image.attrs[BASELINE]) for image in images if BASELINE in image.attrs]
    if len({has_offset(baseline) for baseline in found}) > 1:
        raise SceneError(
            f"The images are of Sentinel-2's processing baselines "
            f"{', '.join(sorted(set(found)))}: from 04.00 on, numbers are larger by 1000. Open "
            f"their SAFE folders, whose offset is applied, or set scale and offset of the bands."
        )
    return found[0] if found else None


def _make_recipe(
    images: list[xr.DataArray],
    bands: Iterable[str] | None,
    indices: Iterable[str],
    windows: Iterable[int],
    roles: Mapping[str, str] | None,
) -> ImageFeatures:
    names = [[str(name) for name in image["band"].values] for image in images]
    chosen = list(names[0] if bands is None else choose_bands(map(str, bands), names[0]))
    for image, own in zip(image_names(images), names, strict=True):
        lacking = [name for name in chosen if name not in own]
        more = [name for name in own if name not in chosen] if bands is None else []
        if lacking or more:
            raise SceneError(
                f"{image} has other bands than "
                + (f"{image_names(images)[0]}" if bands is None else "are asked for")
                + "."
                + (f"\n  missing: {', '.join(lacking)}" if lacking else "")
                + (f"\n  more: {', '.join(more)}" if more else "")
                + f"\n  found: {', '.join(own)}\nGive images of the same bands, or choose some "
                f"that all have (--bands, in Python bands=...)."
            )
    platform = str(images[0].attrs.get("platform_name", ""))
    recipe = ImageFeatures.choose(
        chosen, indices=indices, windows=windows, roles=roles, platform=platform
    )
    sizes = [pixel_size(image) for image in images] if recipe.windows else []
    known = [size for size in sizes if size is not None]
    return replace(recipe, pixel_size=known[0]) if known else recipe


def _gather_again(recipe: ImageFeatures, images: list[xr.DataArray], pixels: ImagePixels) -> Array:
    features = np.empty((len(pixels.row), len(recipe.names)), np.float32)
    for i, image in enumerate(images):
        own = pixels.image == i
        if own.any():
            features[own] = gather_features(recipe, image, pixels.row[own], pixels.column[own])
    return features


def _held_out(
    pixels: ImagePixels, holdout: float, rng: np.random.Generator, progress: Progress
) -> Array:
    """Return which groups are held out, (g,) bool."""
    held = np.zeros(len(pixels.group_names), bool)
    if pixels.said_held is not None:
        held = np.array([pixels.said_held[name] for name in pixels.group_names])
        sides = set(held[pixels.groups].tolist())
        if len(sides) == 1:
            raise SceneError(
                f"The labels say of all pixels of the image that they are "
                f"{'held out' if sides == {True} else 'to be learned from'}. Correct the field, "
                f"or leave it out (--split)."
            )
        _say_held_out(pixels, held, progress)
        return held
    if holdout == 0.0:
        progress("held out for undulatus score: nothing")
        return held
    chosen = hold_out_groups(pixels.codes, pixels.groups, len(pixels.classes), holdout, rng)
    held[: len(chosen)] = chosen
    _say_held_out(pixels, held, progress)
    return held


def _say_held_out(pixels: ImagePixels, held: Array, progress: Progress) -> None:
    """Say how many groups are held out, and which share of the pixels of each class."""
    out = held[pixels.groups]
    every = np.bincount(pixels.codes, minlength=len(pixels.classes))
    tested = np.bincount(pixels.codes[out], minlength=len(pixels.classes))
    shares = [
        f"{name} {part / whole:.0%}"
        for name, part, whole in zip(pixels.names, tested, every, strict=True)
        if part
    ]
    unit = f"{pixels.unit}s" if pixels.unit in ("polygon", "square", "image") else pixels.unit
    progress(
        f"held out for undulatus score: {np.count_nonzero(held)} of "
        f"{len(np.unique(pixels.groups))} {unit} ({', '.join(shares) or 'nothing'} of the pixels)"
    )
    lacking = [name for name, part in zip(pixels.names, tested, strict=True) if not part]
    if lacking:
        needed = f": a class needs two {unit} or more, and some pixels to spare"
        progress(
            f"nothing is held out of {', '.join(lacking)}"
            f"{needed if pixels.said_held is None else ''}"
        )


def _require_rows(training: ImagePixels) -> None:
    if len(training.classes) > MOST_CLASSES:
        raise SceneError(
            f"The labels have {len(training.classes)} classes, but a map has at most "
            f"{MOST_CLASSES}. Merge some of them, or name the field with the class (--field) if "
            f"these are numbers of polygons."
        )
    counts = _counts(training)
    few = [f"{name} {n}" for name, n in zip(training.names, counts, strict=True) if n < 2]
    if few:
        raise SceneError(
            f"Some classes have fewer than two pixels to learn from: {', '.join(few)}. Label more "
            f"of them{'' if training.said_held is None else ' to train on (--split)'}, or leave "
            f"these classes out."
        )


def _counts(pixels: ImagePixels) -> list[int]:
    return np.bincount(pixels.codes, minlength=len(pixels.classes)).tolist()


def _bounds_of(pixels: ImagePixels, chosen: Array) -> dict[str, list[float]]:
    names = [name for name, own in zip(pixels.group_names, chosen, strict=True) if own]
    return {name: pixels.bounds.get(name, []) for name in names}


def _label_text(labels: Any) -> str | None:
    """Return the file or the variable that was learned from, if it has a name."""
    if isinstance(labels, (str, os.PathLike)):
        return label_name(labels)
    name = getattr(labels, "name", None)
    return None if name is None else str(name)


def label_name(labels: str | os.PathLike[str]) -> str:
    """Return how a model remembers a file of labels: its path from here, or else its name."""
    path, here = Path(os.path.abspath(labels)), Path.cwd()
    return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name


def _class_profiles(training: ImagePixels, recipe: ImageFeatures) -> dict[str, Any]:
    spectra = training.features[:, : len(recipe.bands)].astype(np.float64)
    return {
        "features": list(recipe.bands),
        "quantiles": list(PROFILE_QUANTILES),
        "values": {
            name: np.quantile(spectra[training.codes == code], PROFILE_QUANTILES, axis=0).tolist()
            for code, name in enumerate(training.names)
        },
    }
