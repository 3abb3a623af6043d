"""Where a Fourier classifier starts: from its last fit, or from frequencies and a lengthscale."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.rows import column_namer
from undulatus.estimators.training import Prepared
from undulatus.gp.blocks import PixelSource
from undulatus.gp.fourier import PHASE_LIMIT
from undulatus.gp.settling import Start, choose_start
from undulatus.gp.spectral import find_kernel, mean_distance
from undulatus.gp.stochastic import LEARNING_VARIANCE_LIMIT

Array = npt.NDArray[Any]

LEARNING_SHARE = 0.25
"""Share of a random kernel's best lengthscale from which frequencies are learned."""


def earlier_start(model: Any) -> Start | None:
    """Return where the last fit of ``model`` ended, if it is to go on from there."""
    if not (model.warm_start and hasattr(model, "frequencies_")):
        return None
    unit = model.frequencies_ * model.lengthscale_
    if unit.shape[0] != model.n_frequencies:
        raise InputError(
            f"warm_start=True goes on from {unit.shape[0]} frequencies, but n_frequencies "
            f"is {model.n_frequencies}. Set warm_start=False to fit anew."
        )
    return Start(unit, model.lengthscale_, model.signal_variance_)


def begin(
    model: Any,
    pixels: PixelSource,
    training: Prepared,
    earlier: Start | None,
    rng: np.random.Generator,
    stochastic: bool,
) -> Start:
    """Return the start of a fit, after a look whether any row lies too far out for it."""
    start = earlier or _search(model, pixels, training, rng, stochastic)
    if start.unit_frequencies.shape[1] != pixels.n_features:
        raise InputError(
            f"warm_start=True goes on from {start.unit_frequencies.shape[1]} features, but X has "
            f"{pixels.n_features}. Set warm_start=False to fit anew."
        )
    _require_reach(model, training, start)
    return start


def _search(
    model: Any,
    pixels: PixelSource,
    training: Prepared,
    rng: np.random.Generator,
    stochastic: bool,
) -> Start:
    unit = _unit_frequencies(model, rng)
    distance = mean_distance(training.variances)
    if not stochastic:
        return choose_start(pixels, unit, distance, rng)
    start = choose_start(pixels, unit, distance, rng, LEARNING_VARIANCE_LIMIT)
    if model._learns_frequencies:
        # Frequencies that move reach finer structure than random ones afford to start with.
        return replace(start, lengthscale=LEARNING_SHARE * start.lengthscale)
    return start


def _unit_frequencies(model: Any, rng: np.random.Generator) -> Array:
    shape = (model.n_frequencies, model.n_features_in_)
    if model.frequencies is None:
        return find_kernel(model.kernel).draw(rng, *shape)
    with as_input_errors("frequencies"):
        unit = np.array(model.frequencies, dtype=np.float64)
    if unit.shape != shape:
        raise InputError(
            f"frequencies must have shape {shape} (n_frequencies, features of X), "
            f"got {unit.shape}."
        )
    if not np.isfinite(unit).all():
        raise InputError("frequencies must be finite, but hold NaN or infinity.")
    return unit


def _require_reach(model: Any, training: Prepared, start: Start) -> None:
    # The box of the data tells whether any row could be too far out; then each is looked at.
    summary, frequencies = training.summary, start.at[0]
    box = training.standardisation(np.stack([summary.low, summary.high]), np.float64)
    reach = np.sqrt(np.sum(np.abs(box).max(axis=0) ** 2))
    if reach * np.linalg.norm(frequencies, axis=1).max() > PHASE_LIMIT:
        training.require_phases(frequencies, column_namer(model))
