"""A classifier in a new scene: labels of it, and what they make of the shared model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError
from undulatus.gp.adapt import LabelledScene, SceneConfig, SceneFunctions, SceneWeights
from undulatus.gp.backends import Array
from undulatus.gp.likelihood import Bound
from undulatus.gp.posterior import LatentFit
from undulatus.gp.update import Sites, find_sites

MOST_ROWS = 2_000
"""Most labelled rows of a scene: beyond it a new fit learns more from them."""

ANOTHER_KIND = SceneConfig(deviation=4.0, level=2.0)
"""A scene that is hardly like those of training: another sensor, say."""

ANOTHER_KIND_NATS = 2.0
"""Labels that such a scene explains better by so much of their log probability are told."""

Prior = SceneWeights | SceneFunctions
"""Of one latent function in a scene."""

InScene = LatentFit | LabelledScene
"""One latent function in a scene, some rows of which are labelled."""


def find_scene_sites(
    priors: Sequence[Sequence[Prior]], signs: Array, weight: Array, bound: Bound
) -> Array:
    """Return precisions and projections of the rows' sites, (2, M, C, n)."""
    seen = [
        prior.scene.rows(sign, weight, prior.signal_variance)
        for of_fit in priors
        for prior, sign in zip(of_fit, signs, strict=True)
    ]
    with single_threaded_blas():
        sites = find_sites(seen, bound)
    found = np.array([[own.precision, own.projected] for own in sites])
    return found.reshape(len(priors), -1, 2, len(weight)).transpose(2, 0, 1, 3)


def in_scene(priors: Sequence[Sequence[Prior]], sites: Array) -> tuple[tuple[InScene, ...], ...]:
    """Return each estimator's latent functions, given the sites of the scene's rows."""
    with single_threaded_blas():
        return tuple(
            tuple(
                prior.given(Sites(c, h)) for prior, c, h in zip(of_fit, own_c, own_h, strict=True)
            )
            for of_fit, own_c, own_h in zip(priors, *sites, strict=True)
        )


def extended_by_scene(quantiles: Array, rows: Array) -> Array:
    """Return quantiles (q, d) whose ends reach as far as the scene may be expected to.

    Of n rows of a scene the extremes are about a share 1/n of their range from its own: twice
    that is allowed for.
    """
    low, high = rows.min(axis=0), rows.max(axis=0)
    margin = 2.0 * (high - low) / len(rows)
    extended = quantiles.copy()
    extended[0] = np.minimum(quantiles[0], low - margin)
    extended[-1] = np.maximum(quantiles[-1], high + margin)
    return extended


def labels_bound(
    priors: Sequence[Sequence[Prior]], sites: Array, signs: Array, weight: Array
) -> float:
    """Return the bound on the log probability of labels, the mean of the estimators' (nats)."""
    bounds = [
        prior.scene.bound(Sites(c, h), sign, weight)
        for of_fit, own_c, own_h in zip(priors, *sites, strict=True)
        for prior, c, h, sign in zip(of_fit, own_c, own_h, signs, strict=True)
    ]
    return float(np.sum(bounds)) / len(priors)


def warn_of_another_kind(gained: float) -> None:
    """Warn if labels are likelier, by so many nats, in a scene of another kind."""
    if gained > ANOTHER_KIND_NATS:
        times = "more than a thousand" if gained > np.log(1e3) else f"{np.exp(gained):.0f}"
        warnings.warn(
            f"These labels are {times} times likelier in a scene of another kind than in one like "
            f"those of training: another sensor or season, classes of another meaning, or labels "
            f"that are wrong or were given just where the map was. Look at the labels; if they "
            f"are right, a new fit with these rows among those of training, weighted up, may be "
            f"better than the adapted model.",
            UserWarning,
            stacklevel=3,
        )


def require_few(n_rows: int) -> None:
    """Raise unless there are as many labelled rows of a scene as it can take."""
    if not 0 < n_rows <= MOST_ROWS:
        raise InputError(
            f"A model is adapted to a scene by 1 to {MOST_ROWS:,} labelled rows of it, got "
            f"{n_rows:,}. Take some of them, or fit again with all."
        )


# Of whatever ends in a classifier


def adapt(model: Any, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """Return the model of one new scene, from a few labelled rows of it; the given one stays.

    Of a Pipeline, the last step is adapted, to what the others make of the rows; of all else it is
    ``model.adapt(X, y, sample_weight)`` (:meth:`undulatus.VFFGPC.adapt`).
    """
    return changed_by_labels(model, "adapt", X, y, sample_weight)


def changed_by_labels(model: Any, method: str, X: Any, y: Any, sample_weight: Any = None) -> Any:
    """Return what ``adapt`` or ``update`` makes of a classifier, or of the last of a Pipeline."""
    before, classifier = split_pipeline(model)
    if not hasattr(classifier, method):
        refused = {"adapt": "cannot be adapted to a scene", "update": "takes no updates"}[method]
        raise InputError(
            f"a {type(classifier).__name__} {refused}. Use a VFFGPC, RFFGPC or GPC, alone, in a "
            f"Pipeline, or in a RegimeClassifier, or fit again with all rows."
        )
    if before is not None:
        X = before.transform(X)
    return with_classifier(model, getattr(classifier, method)(X, y, sample_weight))


def split_pipeline(estimator: Any) -> tuple[Any, Any]:
    """Return the transformers of a Pipeline, None without any, and its classifier."""
    # Asked for its steps, since scikit-learn's pipelines load libraries that are not needed here.
    steps = getattr(estimator, "steps", [("", estimator)])
    return estimator[:-1] if len(steps) > 1 else None, steps[-1][1]


def with_classifier(estimator: Any, classifier: Any) -> Any:
    """Return a classifier, or a copy of the Pipeline that it is to be the end of."""
    if not hasattr(estimator, "steps"):
        return classifier
    changed = copy(estimator)
    changed.steps = [*estimator.steps[:-1], (estimator.steps[-1][0], classifier)]
    return changed
