"""Which bands can be learned from, and which of their values are no measurements.

An empty band makes every pixel incomplete. A fill value that no file declares would be learned as
a class. A band that is the same at all labelled pixels tells nothing of classes and has no scale:
another value of it would move pixels of other images by any distance. All are left out, and said.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import SceneError
from undulatus.products.predict import finite_rows
from undulatus.scenes.image_features import ImageFeatures, find_fill_values, is_never_measured

Array = npt.NDArray[Any]

Progress = Callable[[str], None]


def screen_bands(
    recipe: ImageFeatures,
    features: Array,
    gather: Callable[[ImageFeatures], Array],
    *,
    look_for_fill: bool,
    progress: Progress,
) -> tuple[ImageFeatures, Array]:
    """Return the recipe that the values of labelled pixels allow, and the features it makes.

    Parameters
    ----------
    recipe : ImageFeatures
    features : (n, features) array
        By this recipe, NaN where missing.
    gather : callable
        Reads the features by another recipe.
    look_for_fill : bool
        Whether values that look like marks of missing data are taken for such.
    progress : callable
        Called with a line for all that is left out.
    """
    recipe, features = _without_empty(recipe, features, progress)
    recipe, features = _without_constant(recipe, features, progress)
    bands = features[:, : len(recipe.bands)]
    fills = find_fill_values(bands) if look_for_fill else ()
    if fills:
        recipe = replace(recipe, nodata=fills)
        _say_fill(recipe, bands, progress)
        # Windows that hold such values are others without them.
        features = gather(recipe) if recipe.windows else recipe.compute_rows(bands)
    return _without_constant(recipe, features, progress)


def missing_text(recipe: ImageFeatures, features: Array) -> str:
    """Return which bands pixels lack, for the end of a message."""
    absent = np.count_nonzero(~np.isfinite(features[:, : len(recipe.bands)]), axis=0)
    if not absent.any():
        return ""
    each = zip(recipe.bands, absent.tolist(), strict=True)
    return f" ({', '.join(f'{band} at {count:,}' for band, count in each if count)})"


def _without_empty(
    recipe: ImageFeatures, features: Array, progress: Progress
) -> tuple[ImageFeatures, Array]:
    there = np.asarray(np.isfinite(features[:, : len(recipe.bands)]).any(axis=0))
    empty = [band for band, some in zip(recipe.bands, there, strict=True) if not some]
    if not empty or len(empty) == len(there):
        return recipe, features
    needed = sorted(set(empty) & set(recipe.roles.values()))
    if needed:
        raise SceneError(
            f"{', '.join(recipe.indices)} need {', '.join(needed)}, without a value at any "
            f"labelled pixel. Leave these indices out, or name other bands for them (--role)."
        )
    progress(f"left out, without a value at any labelled pixel: {', '.join(empty)}")
    return _only(recipe, features, set(recipe.bands) - set(empty))


def _say_fill(recipe: ImageFeatures, bands: Array, progress: Progress) -> None:
    for value in recipe.nodata:
        anywhere = is_never_measured(value)
        marked = bands == np.float32(value)
        count = np.count_nonzero(marked.any(axis=1) if anywhere else marked.all(axis=1))
        progress(
            f"{count:,} labelled pixels ({count / len(bands):.0%}) hold {value:g} in "
            f"{'some or all' if anywhere else 'all'} bands, which no file declares as nodata: "
            f"taken as missing, here and in maps. Say --nodata none if these are values (in "
            f"Python nodata=()), or declare it (gdal_edit.py -a_nodata {value:g})"
        )


def _without_constant(
    recipe: ImageFeatures, features: Array, progress: Progress
) -> tuple[ImageFeatures, Array]:
    bands = features[finite_rows(features), : len(recipe.bands)]
    if len(bands) < 2:
        return recipe, features
    fixed = {
        band: value
        for band, value, same in zip(
            recipe.bands, bands[0].tolist(), (bands == bands[0]).all(axis=0), strict=True
        )
        if same
    }
    if len(fixed) == len(recipe.bands):
        raise SceneError(
            f"All bands have the same value at all labelled pixels, so they do not tell classes "
            f"apart: {_values_text(fixed)}. Is it the right image, and is it whole?"
        )
    # Whatever an index is made of is read for it, and says nothing beside.
    dropped = {band: v for band, v in fixed.items() if band not in recipe.roles.values()}
    if not dropped:
        return recipe, features
    progress(f"left out, with the same value at all labelled pixels: {_values_text(dropped)}")
    return _only(recipe, features, set(recipe.bands) - set(dropped))


def _values_text(values: dict[str, float]) -> str:
    return ", ".join(f"{band} ({value:g})" for band, value in values.items())


def _only(recipe: ImageFeatures, features: Array, bands: set[str]) -> tuple[ImageFeatures, Array]:
    """Return the recipe with some of its bands, and their columns."""
    fewer = replace(recipe, bands=tuple(band for band in recipe.bands if band in bands))
    names = list(recipe.names)
    return fewer, features[:, [names.index(name) for name in fewer.names]]
