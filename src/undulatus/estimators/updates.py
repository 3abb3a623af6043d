"""Corrections of a fitted model: rows added without a new fit, and forgotten again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from undulatus._system import count_threads, single_threaded_blas
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.validation import column_namer, read_weights, validate_rows
from undulatus.gp.backends import HOST, Array, on_host, to_host
from undulatus.gp.data import require_finite, unmasked
from undulatus.gp.likelihood import Bound
from undulatus.gp.moments import encode
from undulatus.gp.posterior import FourierFit
from undulatus.gp.taper import frequency_deviations, tapered_features
from undulatus.gp.update import NewRows, Sites, combine, find_sites, mean_and_root

Result = TypeVar("Result")

Model = TypeVar("Model")

MOST_ROWS = 20_000
"""Most rows of one update: a new fit is the better way for more."""

LATENTS_AT_ONCE = 24
"""Latent functions whose sites are found together, on one thread: for few at a time, Python
would take longer than the arithmetic."""


@dataclass(frozen=True)
class Update:
    """Rows that were added to a model, with the sites that stand for them.

    ``rows`` (n, d) are as given, ``codes`` (n,) number their classes, ``weight`` (n,) weighs them.
    ``precision`` and ``projected`` are (estimators, latent functions, n): each site is
    exp(h f - c f²/2).
    """

    rows: Array
    codes: Array
    weight: Array
    precision: Array
    projected: Array
    range_before: Array
    """Smallest and largest training value of each feature before, (2, d)."""


def find_update(number: int, known: int) -> int:
    """Return the position of an update, numbered from 0 or backwards from -1, of those known."""
    if not -known <= number < known:
        raise InputError(
            f"There is no update {number} to forget: the model has {known}. Updates are "
            f"numbered from 0; -1 is the last one."
        )
    return number % known


def with_changes(model: Model, fitted: dict[str, Any]) -> Model:
    """Return a copy of a model with other fitted attributes; what does not differ is shared."""
    changed = copy(model)
    # No method changes an array, but users may change parameters and the report.
    own = {*model.get_params(deep=False), "fit_report_"}  # type: ignore[attr-defined]
    vars(changed).update(deepcopy({name: vars(model)[name] for name in own}))
    vars(changed).update(fitted)
    return changed


def extended_range(quantiles: Array, ends: Array, updates: Sequence[Update]) -> Array:
    """Return quantiles whose ends (2, d) are those given, and reach the rows of updates."""
    extended = quantiles.copy()
    extended[0] = np.min([ends[0], *(own.rows.min(axis=0) for own in updates)], axis=0)
    extended[-1] = np.max([ends[1], *(own.rows.max(axis=0) for own in updates)], axis=0)
    return extended


def without_update(updates: Sequence[Update], position: int) -> list[Update]:
    """Return the updates but one; the first remembers the range before any."""
    left = [own for i, own in enumerate(updates) if i != position]
    if left:
        left[0] = replace(left[0], range_before=updates[0].range_before)
    return left


def read_rows(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
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


# Ensembles over Fourier features


def add_to_ensemble(
    fits: Sequence[FourierFit],
    x: Array,
    signs: Array,
    weight: Array,
    bound: Bound,
    n_jobs: int | None,
) -> tuple[tuple[FourierFit, ...], Array]:
    """Return the estimators with new rows, and the sites that stand for these, (2, M, C, n).

    Rows x (n, d) are standardised; signs (C, n) are those of each latent function.
    """

    def change(some: Sequence[FourierFit]) -> list[tuple[FourierFit, Array]]:
        features = [own_features(fit, x) for fit in some]
        seen = [
            NewRows(
                *mean_and_root(own, np.sqrt(own.signal_variance) * z),
                untapered * own.signal_variance,
                sign,
                weight,
                own.signal_variance,
            )
            for fit, (z, untapered) in zip(some, features, strict=True)
            for own, sign in zip(fit.latents, signs, strict=True)
        ]
        found, changed = iter(find_sites(seen, bound)), []
        for fit, (z, _) in zip(some, features, strict=True):
            sites = [next(found) for _ in fit.latents]
            new = _combined(fit, z, sites, 1.0)
            changed.append((new, np.array([[own.precision, own.projected] for own in sites])))
        return changed

    size = max(1, LATENTS_AT_ONCE // len(signs))
    parts = [fits[i : i + size] for i in range(0, len(fits), size)]
    changed = [pair for part in _map(change, parts, n_jobs) for pair in part]
    combined, sites = zip(*changed, strict=True)
    return combined, np.array(sites).transpose(2, 0, 1, 3)


def take_from_ensemble(
    fits: Sequence[FourierFit], x: Array, gone: Update, n_jobs: int | None
) -> tuple[FourierFit, ...]:
    """Return the estimators without the rows of an update, which are standardised in x (n, d)."""

    def change(number: int) -> FourierFit:
        terms = zip(gone.precision[number], gone.projected[number], strict=True)
        z, _ = own_features(fits[number], x)
        return _combined(fits[number], z, [Sites(*own) for own in terms], -1.0)

    return tuple(_map(change, range(len(fits)), n_jobs))


def _map(
    function: Callable[[Any], Result], items: Sequence[Any], n_jobs: int | None
) -> list[Result]:
    """Return the function of each item, computed on the model's threads."""
    threads = min(count_threads(n_jobs), len(items))
    with single_threaded_blas():
        if threads == 1:
            return [function(item) for item in items]
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(function, items))


def own_features(fit: FourierFit, x: Array) -> tuple[Array, Array]:
    """Return tapered features of unit signal variance, (n, k), and 1 - d², (n,)."""
    deviations = frequency_deviations(fit.frequencies, fit.taper)
    z, untapered = tapered_features(x, fit.frequencies, deviations, HOST)
    return z.copy(), untapered


def _combined(fit: FourierFit, z: Array, sites: Sequence[Sites], sign: float) -> FourierFit:
    """Return an estimator with the sites of rows added to each latent function, or taken away."""
    latents = [
        replace(own, posterior=combine(own, np.sqrt(own.signal_variance) * z, terms, sign))
        for own, terms in zip(fit.latents, sites, strict=True)
    ]
    return replace(fit, latents=tuple(latents))
