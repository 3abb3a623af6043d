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

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import rasterio
import xarray as xr

from undulatus._progress import working_on
from undulatus.errors import InputError, SceneError
from undulatus.estimators import forget_checkpoint, make_classifier
from undulatus.products.legend import Legend
from undulatus.products.memory_budget import GDAL_CACHE
from undulatus.products.predict import finite_rows
from undulatus.products.provenance import Provenance
from undulatus.scenes.files.images import (
    BASELINE,
    OTHER_GRIDS,
    each_time,
    has_offset,
    open_image,
    with_band_names,
)
from undulatus.scenes.files.labels import read_labels
from undulatus.scenes.image_features import ImageFeatures
from undulatus.scenes.labelled_pixels import LabelledPixels, PixelGrid

Array = npt.NDArray[Any]

Class = int | str

Progress = Callable[[str], None]

MAX_PIXELS = {"vff": 50_000, "rff": 50_000, "gpc": 5_000}
"""Training pixels, at most, by method; the exact process cannot take more."""

PROFILE_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of the training spectra of a class that a model keeps."""


# Labelled pixels


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
    counts: Array
    """Labelled pixels of each class, before some were drawn, (k,)."""
    unit: str
    missing: int
    """Pixels that were left out since they lack a feature."""

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
    """Return what to call images: their paths, or ``image 1`` and so on."""
    return [str(image.attrs.get("source", f"image {i}")) for i, image in enumerate(images, 1)]


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

    Parameters
    ----------
    images : list of DataArray
        As :func:`open_images` returns them.
    labels : path, GeoDataFrame, DataFrame or DataArray, or a list with one for each image
    recipe : ImageFeatures
    field, group, all_touched
        As :func:`undulatus.scenes.files.labels.read_labels` takes them.
    """
    sources = one_each(labels, len(images))
    found = labels_of_images(images, sources, field, group, all_touched, most, seed, progress)
    classes, names = _all_classes(found, sources, least_classes)
    names_of_images = image_names(images)
    unit = next(iter(found.values())).unit
    if unit == "square" and len(found) > 1 and not _overlap([images[i] for i in found]):
        unit = "image"
    parts: list[dict[str, Array]] = []
    keys: list[Array] = []
    bounds: dict[str, list[float]] = {}
    for i, own in found.items():
        progress(f"reading {len(own.row):,} labelled pixels of {names_of_images[i]}")
        features = gather_features(recipe, images[i], own.row, own.column)
        if unit == "image":
            keys.append(np.full(len(own.row), names_of_images[i], object))
        else:
            named = group_keys(own, images[i], names_of_images[i])
            bounds |= dict(zip(named, own.bounds.tolist(), strict=True))
            keys.append(np.array(named, object)[own.groups])
        parts.append(
            {
                "features": features,
                "codes": np.array([classes.index(label) for label in own.classes])[own.codes],
                "image": np.full(len(own.row), i),
                "row": own.row,
                "column": own.column,
            }
        )
    group_names, groups = np.unique(np.concatenate(keys).astype(str), return_inverse=True)
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    whole = finite_rows(joined["features"])
    counts = np.array(
        [sum(own.counts.get(label, 0) for own in found.values()) for label in classes]
    )
    pixels = ImagePixels(
        **joined,
        groups=groups,
        classes=classes,
        names=names,
        group_names=tuple(map(str, group_names)),
        bounds=bounds,
        counts=counts,
        unit=unit,
        missing=int(np.count_nonzero(~whole)),
    )
    if not whole.any():
        raise SceneError(
            f"All {len(whole):,} labelled pixels are missing (nodata) in the image. Check that "
            f"the labels lie on its valid part."
        )
    if pixels.missing:
        progress(f"{pixels.missing:,} labelled pixels are missing in the image and left out")
    return pixels.take(whole)


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
) -> dict[int, LabelledPixels]:
    """Return the labels of each image that has any; it is an error if none has."""
    found: dict[int, LabelledPixels] = {}
    last: SceneError | None = None
    for i, (image, source) in enumerate(zip(images, sources, strict=True)):
        try:
            found[i] = read_labels(
                source, image, field=field, group=group, all_touched=all_touched, most=most,
                seed=seed,
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
    if image.rio.crs is None:
        return [f"{Path(name).name}: {square}" for square in own.group_names]
    return ["square " + " ".join(f"{v:.10g}" for v in box) for box in own.bounds.tolist()]


def _overlap(images: list[xr.DataArray]) -> bool:
    """Return whether images show the same place, as far as is known."""
    grids = [PixelGrid.of(image) for image in images]
    return any(
        one.crs is not None and one.crs == other.crs and one.overlaps(other)
        for one, other in itertools.combinations(grids, 2)
    )


# Which are learned from


def hold_out_groups(
    codes: Array, groups: Array, n_classes: int, share: float, rng: np.random.Generator
) -> Array:
    """Return which groups are held out, (g,) bool: about a share of those of each class.

    Of a class in two groups or more, at least one is held out and one is not; a class in a single
    group stays in training.
    """
    count = int(groups.max()) + 1
    present = np.zeros((count, n_classes), bool)
    present[groups, codes] = True
    held = np.zeros(count, bool)
    by_rarity = np.argsort(present.sum(axis=0), kind="stable")
    for code in by_rarity:
        own = rng.permutation(np.flatnonzero(present[:, code]))
        wanted = max(1, round(share * len(own))) if len(own) > 1 else 0
        for candidate in own:
            if np.count_nonzero(held[own]) >= wanted:
                break
            # Every class that the candidate has must keep a group to learn from.
            left = present[~held].sum(axis=0) - present[candidate]
            if not held[candidate] and (left[present[candidate]] > 0).all():
                held[candidate] = True
    return held


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
    members: int = 8,
    bands: Iterable[str] | None = None,
    indices: Iterable[str] = (),
    windows: Iterable[int] = (),
    roles: Mapping[str, str] | None = None,
    holdout: float = 0.25,
    balance: bool = False,
    max_pixels: int | None = None,
    all_touched: bool = False,
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
    n_frequencies, members : int
        Waves of a member, and members of the ensemble; each holds back other groups.
    bands : iterable of str, optional
        Bands to use; all by default.
    indices : iterable of str
        Spectral indices as further features, such as ``"NDVI"``.
    windows : iterable of int
        Widths of windows, in pixels, whose mean and deviation of each band are features.
    roles : mapping, optional
        Bands that indices need where their names do not tell, such as ``{"N": "band_4"}``.
    holdout : float
        Share of whole groups kept for :func:`undulatus.products.score_image`; 0 for none.
    balance : bool
        Learn from as many pixels of each class; probabilities are corrected for the shares of the
        classes in the labels.
    max_pixels : int, optional
        Training pixels, at most: 50,000, for GPC 5,000.
    all_touched : bool
        Whether pixels that a polygon only touches are in it.
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
        n_estimators=members,
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
    recipe = _make_recipe(opened, bands, indices, windows, roles)
    pixels = label_pixels(
        opened, labels, recipe, field=field, group=group, all_touched=all_touched,
        most=most, seed=seed, progress=progress,
    )  # fmt: skip
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
    used = np.zeros(len(held), bool)
    used[training.groups] = True
    model.provenance_ = Provenance(
        chain="image",
        method=method,
        label=_label_text(labels),
        field=field,
        images=image_names(opened),
        image_features=recipe.as_dict(),
        processing_baseline=baseline,
        group_unit=pixels.unit,
        crs=_crs_text(opened[0]),
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
    chosen = list(names[0] if bands is None else dict.fromkeys(bands))
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
    return ImageFeatures.choose(
        chosen, indices=indices, windows=windows, roles=roles, platform=platform
    )


def _held_out(
    pixels: ImagePixels, holdout: float, rng: np.random.Generator, progress: Progress
) -> Array:
    count = len(pixels.group_names)
    if holdout == 0.0:
        return np.zeros(count, bool)
    held = hold_out_groups(pixels.codes, pixels.groups, len(pixels.classes), holdout, rng)
    tested = np.unique(pixels.codes[held[pixels.groups]])
    lacking = [name for i, name in enumerate(pixels.names) if i not in tested]
    unit = f"{pixels.unit}s" if pixels.unit in ("polygon", "square", "image") else pixels.unit
    progress(f"held out for undulatus score: {np.count_nonzero(held)} of {count} {unit}")
    if lacking:
        progress(
            f"none could be held out of {', '.join(lacking)}: a class needs two {unit} or more"
        )
    return held


def _require_rows(training: ImagePixels) -> None:
    counts = _counts(training)
    few = [f"{name} {n}" for name, n in zip(training.names, counts, strict=True) if n < 2]
    if few:
        raise SceneError(
            f"Some classes have fewer than two pixels to learn from: {', '.join(few)}. Label more "
            f"of them, or leave these classes out."
        )


def _counts(pixels: ImagePixels) -> list[int]:
    return np.bincount(pixels.codes, minlength=len(pixels.classes)).tolist()


def _bounds_of(pixels: ImagePixels, chosen: Array) -> dict[str, list[float]]:
    names = [name for name, own in zip(pixels.group_names, chosen, strict=True) if own]
    return {name: pixels.bounds.get(name, []) for name in names}


def _label_text(labels: Any) -> str | None:
    """Return the file or the variable that was learned from, if it has a name."""
    if isinstance(labels, (str, os.PathLike)):
        return str(Path(labels).absolute())
    name = getattr(labels, "name", None)
    return None if name is None else str(name)


def _crs_text(image: xr.DataArray) -> str | None:
    return None if image.rio.crs is None else str(image.rio.crs.to_string())


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
