"""Where a fit starts, and how much of it to trust: lengthscales and tapers compared.

The lengthscale is that with the best bound or, where frequencies are learned on minibatches, the
winner of successive halving (Jamieson & Talwalkar 2016): short optimisations from several, of
which those with the lower validation loss go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice

import numpy as np

from undulatus.gp.backends import Array
from undulatus.gp.data import Pixels, PixelSource
from undulatus.gp.inference import (
    VARIANCE_LIMITS,
    AscentConfig,
    WeightSpace,
    ascend,
    fit_quadratic,
    unit_moments,
)
from undulatus.gp.likelihood import QUADRATIC
from undulatus.gp.minibatch import Config, Parameters, Start, Task, optimise, scaled_sums
from undulatus.gp.posterior import mean_of
from undulatus.gp.splits import Split, validation_loss
from undulatus.gp.taper import frequency_deviations


@dataclass(frozen=True)
class BoundSearch:
    """How a lengthscale is chosen by the bound."""

    shares: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25, 0.125)
    """Lengthscales to try, as shares of the mean distance between rows."""
    rows: int = 8192
    """Most rows on which they are compared."""
    passes: int = 4
    """Passes at each."""


@dataclass(frozen=True)
class HalvingSearch:
    """How a lengthscale is chosen by successive halving."""

    shares: tuple[float, ...] = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)
    """Lengthscales to try, as shares of the mean distance between rows ..."""
    usual: float = 0.25
    """... and the one that wins unless another is much better: a longer one is ahead at first but,
    on scenes that were not seen, behind at the end."""
    rounds: tuple[tuple[int, int], ...] = ((2, 3), (3, 2))
    """Iterations in each round, and how many candidates are left after it."""
    most_frequencies: int = 32
    """With at most so many frequencies: which lengthscale wins hardly depends on it."""
    rows: int = 2048
    """Rows on which the posterior at each start is found."""
    splits: int = 2
    """Every candidate learns with so many choices of validation rows: one alone may mislead."""
    gain: float = 0.6
    """Another candidate is much better if its loss is less than this times that of the usual."""


@dataclass(frozen=True)
class TaperSearch:
    """How a taper is chosen by groups left out for validation."""

    factors: tuple[float, ...] = (1.0, 4.0, 8.0)
    """Factors on the taper that are compared ..."""
    gain: float = 0.9
    """... where a larger one has to bring the loss below this times that of the smallest: one
    model gains from it more than an ensemble does."""
    rows: int = 8192
    passes: int = 3
    """At each taper."""


def choose_start(
    pixels: PixelSource,
    unit_frequencies: Array,
    mean_distance: float,
    rng: np.random.Generator,
    variance_limit: float = VARIANCE_LIMITS[1],
    search: BoundSearch = BoundSearch(),
) -> Start:
    """Return the lengthscale and signal variance with the best bound on a subset of rows."""
    if pixels.n_rows <= search.rows:
        subset = pixels.gather()
    else:
        subset = pixels.take(np.sort(rng.choice(pixels.n_rows, search.rows, replace=False)))
    best_bound, best = -np.inf, Start(unit_frequencies, mean_distance)
    config = AscentConfig(search.passes, variance_limit=variance_limit)
    for share in search.shares:
        start = Start(unit_frequencies, share * mean_distance)
        space = WeightSpace(subset, start.frequencies)
        ends = fit_quadratic(space, 1.0, config)
        bound = sum(end.bounds[-1] for end in ends)
        if bound > best_bound:
            variance = mean_of([end.gaussian.signal_variance for end in ends])
            best_bound, best = bound, replace(start, signal_variance=variance)
    return best


def choose_lengthscale(
    pixels: Pixels,
    unit_frequencies: Sequence[Array],
    mean_distance: float,
    splits: Sequence[Split],
    config: Config,
    seed: int,
    search: HalvingSearch = HalvingSearch(),
) -> float:
    """Return the lengthscale from which short optimisations get furthest on validation rows.

    Each learns with the first choices of frequencies (D, d) and validation rows, and the mean of
    their losses counts.
    """
    config = replace(config, max_iter=1000, tol=0.0, start_rows=search.rows)
    usual, device = search.usual * mean_distance, pixels.xp.on_device
    units = [unit[: search.most_frequencies] for unit in unit_frequencies[: search.splits]]
    one_thread = replace(pixels, threads=1)
    tasks = {
        share * mean_distance: [
            Task(one_thread, split, Start(unit, share * mean_distance), config, seed)
            for unit, split in zip(units, splits[: search.splits], strict=True)
        ]
        for share in search.shares
    }
    with ThreadPoolExecutor(1 if device else pixels.threads) as pool:
        begun = pool.map(Task.first_state, chain.from_iterable(tasks.values()))
        states = {key: list(islice(begun, len(units))) for key in tasks}
        for iterations, left in search.rounds:
            some = [task for key in states for task in tasks[key]]
            ahead = [state for own in states.values() for state in own]
            go_on = partial(optimise, max_iter=ahead[0].n_iter + iterations)
            # Candidates go on together on a device, on threads elsewhere.
            size = len(some) if device else 1
            groups = [slice(i, i + size) for i in range(0, len(some), size)]
            ends = chain.from_iterable(
                pool.map(go_on, [some[own] for own in groups], [ahead[own] for own in groups])
            )
            states = {key: list(islice(ends, len(units))) for key in states}
            losses = {
                key: float(np.mean([state.best_loss for state in own]))
                for key, own in states.items()
            }
            best = sorted(losses, key=losses.__getitem__)[:left]
            states = {key: own for key, own in states.items() if key in {*best, usual}}
    return best[0] if losses[best[0]] < search.gain * losses[usual] else usual


def choose_taper(
    pixels: Pixels,
    split: Split,
    parameters: Parameters,
    taper: float,
    n_total: int,
    search: TaperSearch = TaperSearch(),
) -> float:
    """Return the taper for groups left out: ``taper``, or a multiple of it.

    The posterior at each is that of some of the other rows, scaled to ``n_total``.
    """
    learning, left_out = split
    some = pixels.take(learning[:: -(-len(learning) // search.rows)])
    validation, scale = pixels.block(left_out), n_total / some.n_rows
    starts = parameters.gaussians()
    losses = {}
    for factor in search.factors:
        deviations = frequency_deviations(parameters.frequencies, factor * taper)
        space = WeightSpace(some, parameters.frequencies, deviations)
        ends = ascend(space, QUADRATIC, starts, AscentConfig(search.passes))
        scaled = Parameters(
            parameters.frequencies, parameters.lengthscale, *scaled_sums(ends, scale)
        )
        losses[factor * taper] = validation_loss(
            validation, parameters.frequencies, deviations, *unit_moments(scaled.gaussians())
        )
    best = min(losses, key=losses.__getitem__)
    return best if losses[best] < search.gain * losses[taper] else taper


def along_features(unit_frequencies: Array) -> Array:
    """Return frequencies (D, d) along one feature each, as long as these on average.

    A frequency along one of many features is hardly seen among those that run through all.
    """
    frequencies, features = unit_frequencies.shape
    own = np.arange(frequencies), np.arange(frequencies) % features
    along = np.zeros_like(unit_frequencies)
    along[own] = np.sqrt(features) * unit_frequencies[own]
    return along
