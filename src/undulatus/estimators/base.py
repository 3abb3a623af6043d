"""What the classifiers share besides prediction: parameters, checks of a fit, and corrections."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.adaptation import (
    ANOTHER_KIND,
    Prior,
    extended_by_scene,
    find_scene_sites,
    in_scene,
    labels_bound,
    require_few,
    warn_of_another_kind,
)
from undulatus.estimators.prediction import Predictor
from undulatus.estimators.training import DataOptions, Overview
from undulatus.estimators.updates import (
    Update,
    extended_range,
    find_update,
    read_rows,
    with_changes,
    without_update,
)
from undulatus.estimators.validation import column_namer, validate_rows
from undulatus.gp.adapt import SCENES, SceneConfig
from undulatus.gp.backends import Array
from undulatus.gp.kernels import KERNELS
from undulatus.gp.likelihood import POSTERIORS

SHARED_CONSTRAINTS: dict[str, list[Any]] = {
    "kernel": [StrOptions(set(KERNELS))],
    "standardize": ["boolean"],
    "warp": ["boolean"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "posterior": [StrOptions(set(POSTERIORS))],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "prior_correction": [dict, "array-like", StrOptions({"training"}), None],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "on_interrupt": [StrOptions({"raise", "keep"})],
}
"""Values that the parameters of every classifier may have, as scikit-learn spells them."""

JOBS_CONSTRAINT: list[Any] = [
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]
"""Values that ``n_jobs`` may have; see :func:`undulatus._system.count_threads`."""


class GaussianProcessClassifier(Predictor):
    """A classifier with the parameters in ``SHARED_CONSTRAINTS`` that its subclasses fit."""

    class_weight: Any
    prior_correction: Any
    standardize: bool
    warp: bool
    max_iter: int
    tol: float
    posterior: str
    on_interrupt: str
    updates_: tuple[Update, ...]
    adaptation_: Update
    """The labels of the scene that the model was adapted to, if it was to any."""
    scene_: tuple[tuple[Any, ...], ...]
    """Each estimator's latent functions there."""
    _prior_shift: Array
    """Of the log odds of the second class, (1,), or of the logarithm of each probability, (k,)."""
    _latent_shift: float = 0.0
    """Of the latent mean of two classes, in models that versions before 0.3 fitted."""

    @abstractmethod
    def _with_rows(self, rows: Array, signs: Array, weight: Array) -> tuple[dict[str, Any], Array]:
        """Return fitted attributes with new rows (n, d), and their sites, (2, M, C, n).

        Signs (C, n) are 1 where a row is of a latent function's class, and -1 elsewhere. The
        sites are precisions and these times the centres.
        """

    @abstractmethod
    def _scene_priors(self, rows: Array, config: SceneConfig) -> list[list[Prior]]:
        """Return what the model expects of a scene at rows (n, d), [M][C]."""

    @abstractmethod
    def _without_rows(self, position: int) -> dict[str, Any]:
        """Return fitted attributes without the rows of the update at a position."""

    @property
    def _keeps_on_interrupt(self) -> bool:
        return self.on_interrupt == "keep"

    # Corrections

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Return a new model with labelled rows added, without a new fit; this one stays as it is.

        Hyperparameters and what stands for earlier rows stay as they are; the posterior gets the
        terms of the new rows. Where they lie outside the training range, the range grows. An
        update of many rows, or of another kind of scene, is worth a new fit. Both models share the
        arrays that do not differ.

        Parameters
        ----------
        X : (n, d) array or table
            Features, as in ``fit``.
        y : (n,) array
            Classes the model knows.
        sample_weight : (n,) array, optional
            Weights >= 0: a correction that should outweigh many rows may be given a large one.
            ``class_weight`` does not apply.
        """
        check_is_fitted(self)
        if hasattr(self, "adaptation_"):
            raise InputError(
                "The model is that of a scene, which takes more labels by adapt(). To correct "
                "the shared model update forget(), and adapt that."
            )
        rows, codes, weight = read_rows(self, X, y, sample_weight)
        fitted, (precision, projected) = self._with_rows(rows, self._signs(codes), weight)
        range_before = self.feature_quantiles_[[0, -1]].copy()
        update = Update(rows, codes, weight, precision, projected, range_before)
        # Where rows were labelled is no longer outside what was learned.
        quantiles = extended_range(self.feature_quantiles_, range_before, [update])
        updates = (*getattr(self, "updates_", ()), update)
        return with_changes(self, fitted | {"feature_quantiles_": quantiles, "updates_": updates})

    def forget(self, update: int = -1) -> Self:
        """Return a new model without the rows of an update; this one stays as it is.

        By default it is the last one that is taken away; otherwise it is named by its number
        from 0. Of a model that was adapted to a scene it is the shared model.
        """
        check_is_fitted(self)
        if hasattr(self, "adaptation_"):
            quantiles = self.feature_quantiles_.copy()
            quantiles[[0, -1]] = self.adaptation_.range_before
            shared = with_changes(self, {"feature_quantiles_": quantiles})
            del shared.adaptation_, shared.scene_
            return shared
        updates: tuple[Update, ...] = getattr(self, "updates_", ())
        position = find_update(update, len(updates))
        fitted = self._without_rows(position)
        # The range is that before the first update, and of the rows that are left.
        first = updates[0].range_before
        left = without_update(updates, position)
        quantiles = extended_range(self.feature_quantiles_, first, left)
        changes = {"feature_quantiles_": quantiles, "updates_": tuple(left)}
        return with_changes(self, fitted | changes)

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Return the model of one new scene, from a few labelled rows of it; this one stays.

        A scene is what errs together: an image, a day, an orbit, a region. Its latent function is
        the shared one and a deviation of its own, as the kernel has it, by 0.6 logits, and a level
        by 0.5: ten labels tell which (:mod:`undulatus.gp.adapt`). What was learned stays, whatever
        the labels are; the training range grows by what the scene may hold. The labels of several
        calls add up. ``forget()`` returns the shared model. One class is enough.

        Parameters
        ----------
        X : (n, d) array or table
            Features of some rows of the scene, as in ``fit``; 2,000 at most.
        y : (n,) array
            Classes the model knows.
        sample_weight : (n,) array, optional
            Weights >= 0. ``class_weight`` does not apply.
        """
        check_is_fitted(self)
        rows, codes, weight = read_rows(self, X, y, sample_weight)
        shared, labels = self, getattr(self, "adaptation_", None)
        if labels is not None:
            shared = self.forget()
            rows, codes, weight = (
                np.concatenate(pair)
                for pair in ((labels.rows, rows), (labels.codes, codes), (labels.weight, weight))
            )
        require_few(len(rows))
        signs, bound = self._signs(codes), POSTERIORS[self.posterior]
        bounds = []
        for config in (ANOTHER_KIND, SCENES):
            priors = shared._scene_priors(rows, config)
            sites = find_scene_sites(priors, signs, weight, bound)
            bounds.append(labels_bound(priors, sites, signs, weight))
        warn_of_another_kind(bounds[0] - bounds[1])
        ends = shared.feature_quantiles_[[0, -1]].copy()
        return shared._in_scene(Update(rows, codes, weight, sites[0], sites[1], ends))

    def _in_scene(self, labels: Update) -> Self:
        """Return the model of a scene, given labelled rows of it and their sites."""
        priors = self._scene_priors(labels.rows, SCENES)
        scene = in_scene(priors, np.array([labels.precision, labels.projected]))
        quantiles = extended_by_scene(self.feature_quantiles_, labels.rows)
        return with_changes(
            self, {"scene_": scene, "adaptation_": labels, "feature_quantiles_": quantiles}
        )

    def _signs(self, codes: Array) -> Array:
        """Return 1 where a row is of a latent function's class, and -1 elsewhere, (C, n)."""
        latents = [True] if codes.dtype == bool else range(len(self.classes_))
        return np.array([np.where(codes == code, 1.0, -1.0) for code in latents])

    # Fitting

    def _forget_last_fit(self) -> None:
        """Delete fitted attributes, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def _check_input(self, X: Any, *, merge: bool, threads: int) -> tuple[Any, DataOptions]:
        """Check the parameters and ``X``; return rows to slice, and how to prepare them."""
        with as_input_errors():
            self._validate_params()
            rows = validate_rows(self, X, reset=True)
        options = DataOptions(
            classifier=type(self).__name__,
            columns=column_namer(self),
            class_weight=self.class_weight,
            prior_correction=self.prior_correction,
            standardize=self.standardize,
            warp=self.warp,
            merge=merge,
            threads=threads,
        )
        return rows, options

    def _keep_overview(self, overview: Overview) -> None:
        self.classes_ = overview.classes
        self.standardisation_ = overview.standardisation
        self.feature_quantiles_ = overview.quantiles
        self._prior_shift = overview.prior_shift

    def _warn_unless_converged(
        self, outcome: str, n_iter: int, found: str = "the best found so far"
    ) -> None:
        if outcome == "max_iter":
            warnings.warn(
                f"{type(self).__name__} stopped at max_iter={self.max_iter} before its bound "
                f"stalled. Increase max_iter, or tol (now {self.tol:g}) if this is good enough.",
                ConvergenceWarning,
                stacklevel=3,
            )
        elif outcome == "interrupted":
            remedy = " Fit again with warm_start=True to continue."
            warnings.warn(
                f"Interrupted after {n_iter} iterations: the model is {found}."
                f"{remedy if hasattr(self, 'warm_start') else ''}",
                ConvergenceWarning,
                stacklevel=3,
            )


def worst_outcome(outcomes: set[str]) -> str:
    """Return the outcome of a fit that has parts."""
    return next(name for name in ("interrupted", "max_iter", "converged") if name in outcomes)


def make_generator(random_state: Any) -> np.random.Generator:
    """Return a generator seeded by scikit-learn's ``random_state``."""
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max, size=4)
    return np.random.default_rng(seed)
