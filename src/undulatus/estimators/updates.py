"""Corrections of a fitted model: rows added without a new fit, and forgotten again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.training import column_namer, read_weights, validate_rows
from undulatus.gp.blocks import count_latents, require_finite, require_phases
from undulatus.gp.damping import damping, spreads
from undulatus.gp.fourier import fourier_features
from undulatus.gp.moments import encode
from undulatus.gp.passes import FourierFit, LatentFit
from undulatus.gp.update import Factors, NewRows, add_rows, combine

Array = npt.NDArray[Any]

MOST_ROWS = 20_000
"""Most rows of one update: a new fit is the better way for more."""


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


def add(model: Any, X: Any, y: Any, sample_weight: Any = None) -> None:
    """Add labelled rows to the posterior of a fitted model."""
    rows, codes, weight = _read(model, X, y, sample_weight)
    range_before = model.feature_quantiles_[[0, -1]].copy()
    quantiles = model.feature_quantiles_.copy()
    # Where rows were labelled is no longer outside what was learned.
    quantiles[0] = np.minimum(quantiles[0], rows.min(axis=0))
    quantiles[-1] = np.maximum(quantiles[-1], rows.max(axis=0))
    variational = model.posterior == "variational"
    found: list[list[Factors]] = []

    def change(fit: FourierFit, latent: int, of_rows: NewRows) -> LatentFit:
        own = fit.latents[latent]
        posterior, factors = add_rows(own, of_rows, variational)
        found[-1].append(factors)
        return replace(own, posterior=posterior)

    members = []
    with single_threaded_blas():
        for fit in model.members_:
            found.append([])
            members.append(_change_latents(model, fit, rows, codes, weight, change))
    precision, projected = (
        np.array([[getattr(own, name) for own in member] for member in found])
        for name in ("precision", "projected")
    )
    model.members_ = tuple(members)
    model.feature_quantiles_ = quantiles
    model.updates_ = (
        *getattr(model, "updates_", ()),
        Update(rows, codes, weight, precision, projected, range_before),
    )


def forget(model: Any, number: int = -1) -> None:
    """Take the rows of one update away again; the others and their factors stay."""
    updates = list(getattr(model, "updates_", ()))
    if not -len(updates) <= number < len(updates):
        raise InputError(
            f"There is no update {number} to forget: the model has {len(updates)}. Updates are "
            f"numbered from 0; -1 is the last one."
        )
    position = number % len(updates)
    gone = updates.pop(position)

    def change_by(member: int) -> Callable[[FourierFit, int, NewRows], LatentFit]:
        def change(fit: FourierFit, latent: int, of_rows: NewRows) -> LatentFit:
            factors = Factors(gone.precision[member, latent], gone.projected[member, latent])
            own = fit.latents[latent]
            return replace(own, posterior=combine(own, of_rows.features, factors, -1.0))

        return change

    with single_threaded_blas():
        model.members_ = tuple(
            _change_latents(model, fit, gone.rows, gone.codes, gone.weight, change_by(member))
            for member, fit in enumerate(model.members_)
        )
    # The range is that before the first update, and of the rows that are left.
    first = gone.range_before if position == 0 else updates[0].range_before
    if updates and position == 0:
        updates[0] = replace(updates[0], range_before=first)
    quantiles = model.feature_quantiles_.copy()
    quantiles[[0, -1]] = first
    for update in updates:
        quantiles[0] = np.minimum(quantiles[0], update.rows.min(axis=0))
        quantiles[-1] = np.maximum(quantiles[-1], update.rows.max(axis=0))
    model.feature_quantiles_ = quantiles
    model.updates_ = tuple(updates)


def _read(model: Any, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
    """Return rows, numbers of classes and weights, checked."""
    with as_input_errors():
        given = validate_rows(model, X, reset=False)
        if given.shape[0] > MOST_ROWS:
            raise InputError(
                f"An update takes at most {MOST_ROWS:,} rows, got {given.shape[0]:,}. Fit again "
                f"with all rows: frequencies learned from them are better, too."
            )
        rows = np.asarray(given[:], dtype=np.float64)
        require_finite(rows, column_namer(model))
        labels = np.asarray(y)
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


def _change_latents(
    model: Any,
    fit: FourierFit,
    rows: Array,
    codes: Array,
    weight: Array,
    change: Callable[[FourierFit, int, NewRows], LatentFit],
) -> FourierFit:
    """Return a member with each latent function changed, given the rows in its own terms."""
    x = model.standardisation_(rows, np.float64)
    require_phases(x, fit.frequencies, column_namer(model), 0)
    share = damping(x, spreads(fit.frequencies, fit.spread))
    plain = share[:, None] * fourier_features(x, fit.frequencies)
    latents = []
    for latent in range(count_latents(len(model.classes_))):
        variance = fit.latents[latent].signal_variance
        positive = codes if codes.dtype == bool else codes == latent
        of_rows = NewRows(
            np.sqrt(variance) * plain,
            (1.0 - share**2) * variance,
            np.where(positive, 1.0, -1.0),
            weight,
        )
        latents.append(change(fit, latent, of_rows))
    return replace(fit, latents=tuple(latents))
