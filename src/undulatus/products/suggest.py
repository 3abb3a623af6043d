r"""Where labels of an image would tell a model most.

A label at a pixel with latent mean and variance :math:`\mu, s` tells about

.. math:: I = \tfrac12 \log(1 + c s), \qquad c = \frac{p (1 - p)}{\sqrt{1 + \pi s / 8}},

nats of its latent function, where p is the predictive probability and c the expected curvature of
the likelihood; with more than two classes, the sum over their latent functions. The variance
holds what the estimators of an ensemble disagree on, and grows to that of the prior outside of
training. The pixels with the largest information are alike, and do not stand for the image: the
points are the middles of clusters, each with about an equal part of all pixels and of their
information. Clusters are made in coordinates in which pixels are near if a label of one tells
about the other (:mod:`undulatus.estimators.coordinates`), and if they look alike.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr
from scipy.spatial import cKDTree
from scipy.special import entr, expit
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from undulatus._files import replacing
from undulatus._plain import cell_text
from undulatus.errors import InputError, SceneError
from undulatus.estimators.coordinates import posterior_coordinates
from undulatus.products.image_pixels import gather_features, image_names
from undulatus.products.images import Progress
from undulatus.products.new_labels import find_field, is_held_out, open_for, recipe_of
from undulatus.products.outside import OTHER_UNITS, require_inside
from undulatus.products.predict import finite_rows
from undulatus.products.training_range import TrainingRange
from undulatus.scenes.files.labels import read_labels
from undulatus.scenes.pixel_grid import PixelGrid

Array = npt.NDArray[Any]

CANDIDATES = 20_000
"""Pixels that points are chosen from, about: one in each square of the image."""

MOST_POINTS = 1_000
"""More points than this nobody labels before they ask again."""

STARTS = 4
"""Starts of k-means, of which the best counts; one ..."""

MANY_POINTS = 100
"""... if there are more points than this."""

ROUNDS = 30
"""Most rounds of k-means: the points need not be the best ones."""

SPACING = 0.1
"""Points are so far apart, of the distance they would have if spread evenly, ..."""

MIDDLE = 0.1
"""... if one of the pixels in the middle of a cluster is, this share of it."""

SMALLEST = 1e-30
"""Keeps sizes above zero."""

FIELD = "class"
"""Name of the field to fill in, if that of the training labels is not known."""

SUFFIXES = (".gpkg", ".geojson", ".csv")
"""Formats in which points are written."""


# Where labels would help most


def suggest_labels(
    model: Any,
    image: Any,
    n: int = 50,
    *,
    labels: Any = None,
    field: str | None = None,
    seed: int = 0,
    progress: Progress = lambda line: None,
) -> pd.DataFrame:
    """Return the points of an image whose labels would help a model most.

    Parameters
    ----------
    model : classifier
        Of an image, as :func:`undulatus.products.fit_image` returns it.
    image : path, DataArray or Dataset
        Some pixels all over it are read, block by block; those that lack a band are left out.
    n : int
        Points, at most: fewer if the image has fewer different pixels.
    labels : path, GeoDataFrame, DataFrame or DataArray, optional
        Labels there are already: no points are near them. None are in groups that were held out
        for scores, in any case.
    field : str, optional
        Field of ``labels`` with the class, and of the points; by default that of the fit.
    seed : int

    Returns
    -------
    GeoDataFrame, or DataFrame of an image without coordinate reference system
        A row for each point, those with most information first: the field to fill in (``class``),
        ``suggested`` (the likeliest class) with its ``probability``, ``disagreement`` (of the
        estimators, see :func:`undulatus.products.map_scene`), ``entropy`` of the probabilities and
        ``information`` (nats), ``distance`` outside of training, ``rank`` from 1, ``row`` and
        ``column`` from zero, and the centre of the pixel as geometry.
    """
    if not 1 <= n <= MOST_POINTS:
        raise InputError(
            f"n is the number of points, from 1 to {MOST_POINTS:,}, but {n:,} was given. Label "
            f"some, and ask again: what helps most changes."
        )
    recipe, provenance = recipe_of(model)
    (opened,) = open_for(provenance, [image])
    rng = np.random.default_rng(seed)
    row, column = _spread_pixels((opened.sizes["y"], opened.sizes["x"]), rng)
    allowed = ~is_held_out(provenance, opened, row, column)
    spacing = SPACING * float(np.sqrt(opened.sizes["y"] * opened.sizes["x"] / n))
    if labels is not None:
        own = read_labels(labels, opened, field=find_field(labels, field, provenance))
        allowed &= _is_far(row, column, own.row, own.column, spacing)
    row, column = row[allowed], column[allowed]
    progress(f"reading {len(row):,} pixels of {image_names([opened])[0]}")
    features = gather_features(recipe, opened, row, column)
    whole = finite_rows(features)
    if not whole.any():
        raise SceneError(
            "There is no pixel to suggest: all are missing (nodata), held out for scores, or near "
            "labels that there are already."
        )
    row, column, features = row[whole], column[whole], features[whole]
    named = pd.DataFrame(features, columns=list(recipe.names))
    require_inside(model, named.to_numpy(), recipe.names, None, "values", OTHER_UNITS)
    progress(f"choosing {n:,} of {len(named):,} pixels")
    # Sums in a fixed order: the same points for any number of threads.
    with threadpool_limits(1):
        table = _describe(model, named)
        told = table["information"].to_numpy()
        # Half of the weight is that of all pixels alike, so that the points stand for the image:
        # labels of doubtful pixels alone would make the model doubt all others.
        weight = told + max(float(told.mean()), SMALLEST)
        coordinates = _coordinates(model, named, rng)
        places = np.stack([row, column], axis=1).astype(np.float64)
        chosen = _choose(coordinates, weight, places, n, spacing, seed)
    table = table.assign(row=row, column=column).iloc[chosen]
    table = table.sort_values("information", ascending=False, kind="stable", ignore_index=True)
    table.insert(0, field or provenance.field or FIELD, _empty_classes(model, len(table)))
    table.insert(table.columns.get_loc("row"), "rank", np.arange(1, len(table) + 1))
    return _with_places(table, opened)


def write_points(points: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write suggested points to a .gpkg, .geojson or .csv file, or replace it."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"Points are written to {', '.join(SUFFIXES)}, but not to {path}.")
    located = hasattr(points, "geometry")
    if suffix != ".csv" and not located:
        raise SceneError(
            f"The image has no coordinate reference system, or no regular places, so points have "
            f"no place in {path}. Write their rows and columns to a .csv."
        )
    with replacing(path) as unfinished:
        if suffix == ".csv":
            table = points.drop(columns="geometry") if located else points
            table.map(cell_text).rename(columns=cell_text).to_csv(unfinished, index=False)
        else:
            driver = "GPKG" if suffix == ".gpkg" else "GeoJSON"
            points.to_file(unfinished, driver=driver, layer=path.stem)


def _spread_pixels(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Array, Array]:
    """Return rows and columns of pixels, one at random in each square of an image."""
    side = max(1, int(np.sqrt(shape[0] * shape[1] / CANDIDATES)))
    top, left = (grid.ravel() for grid in np.mgrid[: shape[0] : side, : shape[1] : side])
    # The last squares may be smaller.
    height, width = np.minimum(side, shape[0] - top), np.minimum(side, shape[1] - left)
    return top + rng.integers(height), left + rng.integers(width)


def _is_far(
    row: Array, column: Array, other_row: Array, other_column: Array, least: float
) -> Array:
    """Return which pixels are at least so many pixels away from all others."""
    others = cKDTree(np.stack([other_row, other_column], axis=1))
    distance, _ = others.query(np.stack([row, column], axis=1), distance_upper_bound=least)
    return np.asarray(distance >= least)


def _describe(model: Any, features: pd.DataFrame) -> pd.DataFrame:
    """Return what the model says of pixels, a row each."""
    found = model.predict_in_full(features)
    likeliest = np.argmax(found.probabilities, axis=1)
    learned = TrainingRange.of(model)
    assert learned is not None
    return pd.DataFrame(
        {
            "suggested": model.classes_[likeliest],
            "probability": np.max(found.probabilities, axis=1),
            "disagreement": found.ensemble_std,
            "entropy": entr(found.probabilities).sum(axis=1),
            "information": information(found.mean, found.variance),
            "distance": learned.distance(features.to_numpy()).astype(np.float64),
        }
    )


def information(mean: Array, variance: Array) -> Array:
    """Return what labels tell about latent functions with these moments (n,) or (n, k), nats.

    >>> information(np.array([0.0, 3.0, 0.0]), np.array([1.0, 1.0, 0.0])).round(3)
    array([0.096, 0.028, 0.   ])
    """
    flattening = np.sqrt(1.0 + np.pi / 8.0 * variance)
    p = expit(mean / flattening)
    gained = 0.5 * np.log1p(p * (1.0 - p) / flattening * variance)
    return np.asarray(gained.reshape(len(gained), -1).sum(axis=1))


def _coordinates(model: Any, features: pd.DataFrame, rng: np.random.Generator) -> Array:
    """Return coordinates of pixels by the posterior covariance and by their own features.

    Both have the same mean square: a model of few labels may take pixels for alike that are not.
    """
    parts = [
        posterior_coordinates(model, features, rng),
        model.standardisation_(features.to_numpy(), np.float64),
    ]
    sizes = [np.sqrt(np.mean(np.sum(part**2, axis=1))) for part in parts]
    return np.hstack([part / max(size, SMALLEST) for part, size in zip(parts, sizes, strict=True)])


def _choose(
    coordinates: Array, weight: Array, places: Array, n: int, spacing: float, seed: int
) -> list[int]:
    """Return the numbers of at most ``n`` pixels: the middles of clusters weighted by ``weight``.

    In the middle of a cluster, the first pixel that is far enough in space from those chosen
    before is taken, or the very middle if none is.
    """
    distinct = len(np.unique(coordinates, axis=0))
    starts = STARTS if n <= MANY_POINTS else 1
    clusters = KMeans(min(n, distinct), n_init=starts, max_iter=ROUNDS, random_state=seed)
    clusters.fit(coordinates, sample_weight=weight)
    away = np.sum((coordinates - clusters.cluster_centers_[clusters.labels_]) ** 2, axis=1)
    total = np.bincount(clusters.labels_, weight, len(clusters.cluster_centers_))
    chosen: list[int] = []
    for cluster in np.argsort(-total, kind="stable"):
        own = np.flatnonzero(clusters.labels_ == cluster)
        if not len(own):
            continue
        own = own[np.argsort(away[own], kind="stable")][: max(1, int(MIDDLE * len(own)))]
        apart = (
            cKDTree(places[chosen]).query(places[own])[0] >= spacing
            if chosen
            else np.ones(len(own), bool)
        )
        chosen.append(int(own[np.argmax(apart)]))
    return chosen


def _empty_classes(model: Any, count: int) -> Any:
    """Return a column without classes, of their type."""
    if isinstance(model.classes_.tolist()[0], str):
        return pd.Series([None] * count, dtype=object)
    return pd.Series([pd.NA] * count, dtype="Int64")


def _with_places(table: pd.DataFrame, image: xr.DataArray) -> pd.DataFrame:
    grid = PixelGrid.of(image)
    if grid.crs is None:
        return table
    import geopandas

    x, y = grid.centre_of(table["row"].to_numpy(), table["column"].to_numpy())
    points = geopandas.points_from_xy(x, y)
    return geopandas.GeoDataFrame(table, geometry=points, crs=grid.crs.to_wkt())
