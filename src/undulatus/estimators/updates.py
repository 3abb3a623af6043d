"""Corrections of a fitted model: rows added without a new fit, and forgotten again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.training import column_namer, read_weights, validate_rows
from undulatus.gp.arrays import on_host, to_host
from undulatus.gp.blocks import Standardisation, require_finite, require_phases, unmasked
from undulatus.gp.damping import damping, spreads
from undulatus.gp.fourier import fourier_features
from undulatus.gp.moments import encode
from undulatus.gp.passes import FourierFit
from undulatus.gp.update import Factors, NewRows, combine, find_factors, mean_and_root

Array = npt.NDArray[Any]

Result = TypeVar("Result")

MOST_ROWS = 20_000
"""Most rows of one update: a new fit is the better way for more."""

LATENTS_AT_ONCE = 24
"""Latent functions whose factors are found together, on one thread: for few at a time, Python
would take longer than the arithmetic."""


@dataclass(frozen=True)
class Update:
    """Rows that were added to a model, with the factors that stand for them.

    ``rows`` (n, d) are as given, ``codes`` (n,) number their classes, ``weight`` (n,) weighs them.
    ``precision`` and ``projected`` are (members, latent functions, n): each factor is
    exp(h f - c f²/2).
    """

    rows: Array
    codes: Array
    weight: Array
    precision: Array
    projected: Array
    range_before: Array
    """Smallest and largest training value of each feature before, (2, d)."""


class UpdatesMixin(ABC):
    """Updates of a classifier with latent functions, which says how its posterior changes."""

    classes_: Array
    feature_quantiles_: Array
    standardisation_: Standardisation
    fit_report_: dict[str, Any]
    posterior: str
    updates_: tuple[Update, ...]

    @abstractmethod
    def _with_rows(self, rows: Array, signs: Array, weight: Array) -> tuple[dict[str, Any], Array]:
        """Return fitted attributes with new rows (n, d), and their factors.

        Signs (C, n) are 1 where a row is of a latent function's class, and -1 elsewhere. The
        factors, (2, M, C, n), are precisions and these times the centres.
        """

    @abstractmethod
    def _without_rows(self, position: int) -> dict[str, Any]:
        """Return fitted attributes without the rows of the update at a position."""

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
            Weights >= 0: a correction that should outweigh many rows may be given a large one. A
            row counts at most 1e7 (``posterior="bound"``) or 1e18 times, over the signal
            variance. ``class_weight`` does not apply.
        """
        check_is_fitted(self)
        rows, codes, weight = _read(self, X, y, sample_weight)
        latents = [True] if codes.dtype == bool else range(len(self.classes_))
        signs = np.array([np.where(codes == code, 1.0, -1.0) for code in latents])
        fitted, (precision, projected) = self._with_rows(rows, signs, weight)
        range_before = self.feature_quantiles_[[0, -1]].copy()
        update = Update(rows, codes, weight, precision, projected, range_before)
        # Where rows were labelled is no longer outside what was learned.
        quantiles = _extend(self.feature_quantiles_, range_before, [update])
        return self._changed(fitted, quantiles, (*getattr(self, "updates_", ()), update))

    def forget(self, update: int = -1) -> Self:
        """Return a new model without the rows of an update; this one stays as it is.

        By default it is the last one that is taken away; otherwise it is named by its number
        from 0.
        """
        check_is_fitted(self)
        updates = list(getattr(self, "updates_", ()))
        position = find_update(update, len(updates))
        fitted = self._without_rows(position)
        # The range is that before the first update, and of the rows that are left.
        first = updates[0].range_before
        updates.pop(position)
        if updates:
            updates[0] = replace(updates[0], range_before=first)
        quantiles = _extend(self.feature_quantiles_, first, updates)
        return self._changed(fitted, quantiles, tuple(updates))

    def _changed(
        self, fitted: dict[str, Any], quantiles: Array, updates: tuple[Update, ...]
    ) -> Self:
        """Return a copy with other fitted attributes; what does not differ is shared."""
        changed = copy(self)
        # No method changes an array, but users may change parameters and the report.
        own = {*self.get_params(deep=False), "fit_report_"}  # type: ignore[attr-defined]
        vars(changed).update(deepcopy({name: vars(self)[name] for name in own}))
        vars(changed).update(fitted, feature_quantiles_=quantiles, updates_=updates)
        return changed


def find_update(number: int, known: int) -> int:
    """Return the position of an update, numbered from 0 or backwards from -1, of those known."""
    if not -known <= number < known:
        raise InputError(
            f"There is no update {number} to forget: the model has {known}. Updates are "
            f"numbered from 0; -1 is the last one."
        )
    return number % known


def _extend(quantiles: Array, ends: Array, updates: Sequence[Update]) -> Array:
    """Return quantiles whose ends (2, d) are those given, and reach the rows of updates."""
    extended = quantiles.copy()
    extended[0] = np.min([ends[0], *(own.rows.min(axis=0) for own in updates)], axis=0)
    extended[-1] = np.max([ends[1], *(own.rows.max(axis=0) for own in updates)], axis=0)
    return extended


def _read(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
    """Return rows, numbers of classes and weights, checked."""
    with as_input_errors():
        given = validate_rows(model, X, reset=False)
        if given.shape[0] > MOST_ROWS:
            raise InputError(
                f"An update takes at most {MOST_ROWS:,} rows, got {given.shape[0]:,}. Fit again "
                f"with all rows: what is learned from them is better, too."
            )
        rows = np.asarray(unmasked(to_host(given[:])), dtype=np.float64)
        require_finite(rows, column_namer(model))
        y, sample_weight = on_host(y), on_host(sample_weight)
        labels = unmasked(y, "y")
        if labels.shape != (len(rows),):
            raise InputError(f"y has shape {labels.shape}, but ({len(rows)},) is needed.")
        unknown = sorted(set(labels.tolist()) - set(model.classes_.tolist()), key=str)
        if unknown:
            raise InputError(
                f"y holds {', '.join(map(repr, unknown[:5]))}, but the model knows the classes "
                f"{', '.join(map(repr, model.classes_.tolist()))}. A new class needs a new fit."
            )
        weight = read_weights(sample_weight, len(rows))
    codes = encode(labels.astype(model.classes_.dtype), model.classes_)
    return rows, codes, np.ones(len(rows)) if weight is None else weight


# Members of Fourier features


def add_to_members(
    model: Any, rows: Array, signs: Array, weight: Array
) -> tuple[tuple[FourierFit, ...], Array]:
    """Return the members with new rows, and the factors that stand for these, (2, M, C, n)."""
    variational = model.posterior == "variational"
    features = _features_by_member(model, rows)

    def change(members: Sequence[FourierFit]) -> list[tuple[FourierFit, Array]]:
        known = [features(fit) for fit in members]
        seen = [
            NewRows(
                *mean_and_root(own, z),
                (1.0 - share**2) * own.signal_variance,
                sign,
                weight,
                own.signal_variance,
            )
            for fit, (share, waves) in zip(members, known, strict=True)
            for own, sign, z in zip(fit.latents, signs, _scaled(fit, waves), strict=True)
        ]
        found = iter(find_factors(seen, variational))
        changed = []
        for fit, (_, waves) in zip(members, known, strict=True):
            factors = [next(found) for _ in fit.latents]
            new = _combined(fit, waves, factors, 1.0)
            changed.append((new, np.array([[f.precision, f.projected] for f in factors])))
        return changed

    size = max(1, LATENTS_AT_ONCE // len(signs))
    parts = [model.members_[i : i + size] for i in range(0, len(model.members_), size)]
    changed = [pair for part in _map(change, parts, model) for pair in part]
    members, factors = zip(*changed, strict=True)
    return members, np.array(factors).transpose(2, 0, 1, 3)


def take_from_members(model: Any, gone: Update) -> tuple[FourierFit, ...]:
    """Return the members without the rows of an update."""
    features = _features_by_member(model, gone.rows)

    def change(member: int) -> FourierFit:
        fit = model.members_[member]
        terms = zip(gone.precision[member], gone.projected[member], strict=True)
        return _combined(fit, features(fit)[1], [Factors(*own) for own in terms], -1.0)

    return tuple(_map(change, range(len(model.members_)), model))


def _map(function: Callable[[Any], Result], items: Sequence[Any], model: Any) -> list[Result]:
    """Return the function of each item, computed on the model's threads."""
    threads = min(count_threads(model.n_jobs), len(items))
    with single_threaded_blas():
        if threads == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(function, items))


def _features_by_member(model: Any, rows: Array) -> Callable[[FourierFit], tuple[Array, Array]]:
    """Return a function to the share of waves kept, (n,), and a member's damped features (n, k).

    The features are those of a signal variance of 1.
    """
    x, columns = model.standardisation_(rows, np.float64), column_namer(model)

    def features(fit: FourierFit) -> tuple[Array, Array]:
        require_phases(x, fit.frequencies, columns, 0)
        share = damping(x, spreads(fit.frequencies, fit.spread))
        return share, share[:, None] * fourier_features(x, fit.frequencies)

    return features


def _scaled(fit: FourierFit, waves: Array) -> list[Array]:
    """Return a member's features of each latent function, (n, k)."""
    return [np.sqrt(own.signal_variance) * waves for own in fit.latents]


def _combined(
    fit: FourierFit, waves: Array, factors: Sequence[Factors], sign: float
) -> FourierFit:
    """Return a member with the terms of rows added to each latent function, or taken away."""
    latents = [
        replace(own, posterior=combine(own, z, terms, sign))
        for own, z, terms in zip(fit.latents, _scaled(fit, waves), factors, strict=True)
    ]
    return replace(fit, latents=tuple(latents))
