r"""The stochastic solver: frequencies learned on minibatches, then exact passes over all pixels.

The lengthscale to start from is found by a race: short walks (:mod:`undulatus.gp.walk`) from
several, of which those with the lower loss on held-back rows go on. A walk that has learned
nothing is begun again from half the lengthscale. The posterior at the frequencies found is that
of all pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import InitVar, dataclass, replace
from itertools import starmap
from typing import Any

import numpy as np

from undulatus._system import count_cores
from undulatus.gp.arrays import Array, to_host
from undulatus.gp.blocks import Pixels, PixelSource
from undulatus.gp.bound import Statistics
from undulatus.gp.damping import spreads
from undulatus.gp.held_back import Split, held_back_loss, leave_out, shares_entropy
from undulatus.gp.passes import SEARCH_ROWS, FourierFit, Start, fit_posteriors
from undulatus.gp.variational import fit_latents
from undulatus.gp.walk import Position, Walk, WalkSetup, first_state, iterate, walk

Runner = tuple[WalkSetup, Walk]
"""A walk of a race, and where it is."""

SAMPLE_ROWS = 1_000_000
"""Frequencies are learned on at most this many rows, drawn at random ..."""

SAMPLE_BYTES = 256 * 2**20
"""... and on at most this many bytes of them, in single precision."""

USUAL_PASSES, FINAL_PASSES = 12, 25
"""Exact passes after the frequencies were learned: how many there usually are, and at most."""

RACE_SHARES = (2.0, 1.0, 0.5, 0.25, 0.125, 0.0625)
"""Starting lengthscales of a race, as shares of the mean distance between pixels ..."""

USUAL_SHARE = 0.25
"""... and the one that wins unless another is much better: a longer one is ahead at first but, on
scenes that were not seen, behind at the end."""

RACE_ROUNDS = ((2, 3), (3, 2))
"""Iterations in each round of a race, and how many starts are left after it."""

RACE_FREQUENCIES = 32
"""A race is run with at most so many frequencies: which lengthscale wins hardly depends on it."""

RACE_ROWS = 2048
"""Rows on which a race finds the posterior at each start."""

RACE_SPLITS = 2
"""Every start is raced with so many choices of held-back rows: one alone may mislead."""

RACE_GAIN = 0.6
"""Another start is much better if its loss is less than this times that of the usual one."""

NOTHING_LEARNED = 0.98
"""A walk has learned nothing if its best loss is more than this share of what the shares of the
classes alone give ..."""

FRESH_STARTS = 2
"""... and then is begun again from half the lengthscale, so often at most. If none has learned
anything, the best of them counts."""

SPREAD_FACTORS = (1.0, 4.0, 8.0)
"""Factors on the spread that are compared on groups held back ..."""

SPREAD_GAIN = 0.9
"""... where a larger one has to bring the loss below this times that of the smallest: one model
gains from it more than a committee does."""

SPREAD_PASSES = 3
"""Passes at each spread."""


@dataclass
class StochasticFit:
    """A fit by the stochastic solver: the walks it takes, and the posterior at their end.

    ``pixels`` may be too many for memory: the frequencies are learned on ``sample``. With
    ``early_stopping``, those with the lowest loss on held-back pixels are used. ``split`` says
    which of the sample are held back; without it they are drawn. Waves are damped by ``spread``, a
    share of their frequencies, or by more if groups held back say so. The posterior is that of
    :func:`~undulatus.gp.variational.fit_latents`, with the levels of ``log_odds`` (C,). If
    ``interruptible``, a KeyboardInterrupt ends the fit at the last finished iteration or pass.
    """

    pixels: PixelSource
    start: Start
    learn_frequencies: bool
    batch_size: int
    max_iter: int
    tol: float
    early_stopping: bool
    rng: InitVar[np.random.Generator]
    variational: bool = True
    spread: float = 0.0
    log_odds: Array | float = 0.0
    sample: Pixels | None = None
    split: Split | None = None
    resume: Walk | None = None
    interruptible: bool = True
    report: Callable[[Walk], None] = lambda walk: None
    report_pass: Callable[[int, float], None] = lambda done, bound: None

    def __post_init__(self, rng: np.random.Generator) -> None:
        self.early_stopping = self.early_stopping and self.learn_frequencies
        self._seed = int(rng.integers(2**63)) if self.resume is None else self.resume.seed
        self._sample = draw_sample(self.pixels, rng) if self.sample is None else self.sample
        if self.split is None:
            self._split = leave_out(self._sample, 1, np.random.default_rng(self._seed))[0]
        else:
            self._split = self.split
        self._hopeless = NOTHING_LEARNED * shares_entropy(self._sample.pick(self._split[1]))
        self._ends: list[Walk] = []

    def next_walk(self) -> dict[str, Any] | None:
        """Return the settings of the next walk, as :func:`~.walk.walk` takes them, if any."""
        halvings = len(self._ends)
        if halvings and (self._is_enough(self._ends[-1]) or halvings > FRESH_STARTS):
            return None
        lengthscale = 0.5**halvings * self.start.lengthscale
        # Learned frequencies keep the lengthscale they started from: it tells which walk was
        # interrupted. Those before it are repeated, since they may have been better.
        goes_on = self.resume is not None and (
            not self.learn_frequencies or self.resume.position.lengthscale == lengthscale
        )
        unit = self.start.unit_frequencies
        if halvings:
            unit = along_features(unit)
        return {
            "pixels": self._sample,
            "split": self._split,
            "start": replace(self.start, unit_frequencies=unit, lengthscale=lengthscale),
            "learn_frequencies": self.learn_frequencies,
            "batch_size": self.batch_size,
            "max_iter": self.max_iter,
            "tol": self.tol,
            "early_stopping": self.early_stopping,
            "seed": self._seed,
            "n_total": self.pixels.n_rows,
            "spread": self.spread,
            "resume": self.resume if goes_on else None,
        }

    def take(self, end: Walk) -> None:
        """Take the end of the walk that :meth:`next_walk` asked for."""
        self._ends.append(end)

    def _is_enough(self, end: Walk) -> bool:
        """Whether no other walk should follow."""
        return (
            not self.early_stopping
            or end.outcome == "interrupted"
            or end.best_loss <= self._hopeless
        )

    def finish(self) -> FourierFit:
        """Return the fit, with the posterior of all pixels at the best end."""
        end = self._ends[-1]
        if not self._is_enough(end):
            end = min(self._ends, key=lambda end: end.best_loss)
        position = to_host(end.best if self.early_stopping else end.position)
        interrupted, spread = end.outcome == "interrupted", self.spread
        if self.early_stopping and self._sample.groups is not None and not interrupted:
            spread = settle_spread(self._sample, self._split, position, spread, self.pixels.n_rows)
        n_latents = self.pixels.n_latents
        latents, interrupted = fit_latents(
            self.pixels,
            position.frequencies,
            position.signal_variances.tolist(),
            [None] * n_latents,
            [own.posterior() for own in position.statistics],
            spread=spread,
            log_odds=np.broadcast_to(self.log_odds if self.variational else 0.0, n_latents),
            interrupted=interrupted,
            interruptible=self.interruptible,
            max_passes=FINAL_PASSES,
            variational=self.variational,
            # A pass costs as much as hundreds of minibatches, and the last ones change little.
            bound_tol=3.0 * self.tol,
            tol=3.0 * self.tol,
            report=self.report_pass,
        )
        return FourierFit(
            position.frequencies,
            position.lengthscale,
            latents,
            end.n_iter,
            "interrupted" if interrupted else end.outcome,
            tuple(end.losses.tolist()),
            spread,
        )


def fit_stochastic(pixels: PixelSource, start: Start, **options: Any) -> FourierFit:
    """Learn the frequencies on minibatches, then the posterior on all pixels by exact passes.

    For the options see :class:`StochasticFit`.
    """
    fit = StochasticFit(pixels, start, **options)
    while (plan := fit.next_walk()) is not None:
        fit.take(walk(**plan, interruptible=fit.interruptible, report=fit.report))
    return fit.finish()


def fit_together(fits: Sequence[StochasticFit]) -> tuple[FourierFit, ...]:
    """Return the fits of several members to the same pixels, whose walks go together on a device.

    After an interrupt those that have been finished are returned, if there are any.
    """
    from undulatus.gp.device_walk import walk_together

    plans = {i: plan for i, fit in enumerate(fits) if (plan := fit.next_walk()) is not None}
    while plans:
        members, max_iter = list(plans), fits[0].max_iter
        resumes = [plan.pop("resume") for plan in plans.values()]
        setups = [WalkSetup.plan(**plan) for plan in plans.values()]
        states = _at_once(
            lambda setup, resume: first_state(setup) if resume is None else resume,
            *(setups, resumes),
        )
        reports = [fits[member].report for member in members]
        ends = walk_together(
            setups, states, reports, max_iter=max_iter, interruptible=fits[0].interruptible
        )
        for member, end in zip(members, ends, strict=True):
            fits[member].take(end)
        plans = {i: plan for i in members if (plan := fits[i].next_walk()) is not None}
    return tuple(_at_once(StochasticFit.finish, fits))


def _at_once(function: Callable[..., Any], *arguments: Sequence[Any]) -> list[Any]:
    """Return a function of each of several members, whose work on the host is done at once."""
    with ThreadPoolExecutor(min(count_cores(), len(arguments[0]))) as pool:
        return list(pool.map(function, *arguments))


def along_features(unit_frequencies: Array) -> Array:
    """Return frequencies (D, d) along one feature each, as long as these on average.

    A wave in one of many features is hardly seen by waves that run through all of them.
    """
    frequencies, features = unit_frequencies.shape
    own = np.arange(frequencies), np.arange(frequencies) % features
    along = np.zeros_like(unit_frequencies)
    along[own] = np.sqrt(features) * unit_frequencies[own]
    return along


def draw_sample(pixels: PixelSource, rng: np.random.Generator) -> Pixels:
    """Return the pixels to learn frequencies on: all, or a random sample if there are many."""
    limit = min(SAMPLE_ROWS, SAMPLE_BYTES // (pixels.n_features * 4))
    if pixels.n_rows <= limit:
        return pixels.gather()
    # A sorted draw without replacement whose memory does not grow with the rows.
    gaps = rng.exponential(size=limit + 1)
    places = np.cumsum(gaps)[:-1] / gaps.sum()
    chosen = np.unique((places * pixels.n_rows).astype(np.int64))
    return pixels.take(chosen)


def settle_spread(
    pixels: Pixels, split: Split, position: Position, spread: float, n_total: int
) -> float:
    """Return how much waves should fade for groups held back: ``spread``, or a multiple of it.

    The posterior at each is that of some of the other rows, scaled to ``n_total``.
    """
    learning, held = split
    some = pixels.take(learning[:: -(-len(learning) // SEARCH_ROWS)])
    held_back, scale = pixels.pick(held), n_total / some.n_rows
    losses = {}
    for factor in SPREAD_FACTORS:
        own = spreads(position.frequencies, factor * spread)
        fits = fit_posteriors(
            some,
            position.frequencies,
            position.signal_variances.tolist(),
            [None] * some.n_latents,
            max_passes=SPREAD_PASSES,
            spread=own,
            initial_posteriors=[running.posterior() for running in position.statistics],
        )
        scaled = [
            Statistics(fit.statistics.gram * scale, fit.statistics.projected * scale, 0.0)
            for fit in fits
        ]
        losses[factor * spread] = held_back_loss(
            held_back,
            position.frequencies,
            [fit.signal_variance for fit in fits],
            [statistics.moments() for statistics in scaled],
            own,
        )
    best = min(losses, key=losses.__getitem__)
    return best if losses[best] < SPREAD_GAIN * losses[spread] else spread


def race(
    pixels: Pixels,
    unit_frequencies: Sequence[Array],
    mean_distance: float,
    splits: Sequence[Split],
    *,
    batch_size: int,
    seed: int,
    n_total: int,
    spread: float = 0.0,
) -> float:
    """Return the lengthscale from which short walks get furthest on held-back rows.

    All walk for a few iterations, the better ones and the usual one on, by successive halving
    (Jamieson & Talwalkar 2016). Each lengthscale walks with every choice of frequencies (D, d)
    and held-back rows, and their mean loss counts. Walks run on different threads.
    """
    on_device = pixels.device is not None
    one_thread = replace(pixels, threads=1)
    with ThreadPoolExecutor(pixels.threads) as pool:

        def begin(lengthscale: float, unit: Array, split: Split) -> Runner:
            setup = WalkSetup.plan(
                one_thread,
                split,
                Start(unit, lengthscale),
                learn_frequencies=True,
                batch_size=batch_size,
                max_iter=1000,
                tol=0.0,
                early_stopping=True,
                seed=seed,
                n_total=n_total,
                spread=spread,
                start_rows=RACE_ROWS,
            )
            return setup, first_state(setup)

        def go_on(runner: Runner, iterations: int) -> Runner:
            setup, state = runner
            for _ in range(iterations):
                state = iterate(setup, state)
            return setup, state

        def all_go_on(
            racing: dict[float, list[Runner]], iterations: int
        ) -> dict[float, list[Runner]]:
            if on_device:
                return _go_on_together(racing, iterations)
            every = [runner for own in racing.values() for runner in own]
            ahead = pool.map(go_on, every, [iterations] * len(every))
            return {key: [next(ahead) for _ in own] for key, own in racing.items()}

        usual = USUAL_SHARE * mean_distance
        every = [
            (share * mean_distance, unit, split)
            for share in RACE_SHARES
            for unit, split in zip(unit_frequencies, splits, strict=True)
        ]
        begun = starmap(begin, every) if on_device else pool.map(begin, *zip(*every, strict=True))
        racing: dict[float, list[Runner]] = {}
        for (lengthscale, *_), runner in zip(every, begun, strict=True):
            racing.setdefault(lengthscale, []).append(runner)
        for iterations, left in RACE_ROUNDS:
            racing = all_go_on(racing, iterations)
            losses = {
                lengthscale: float(np.mean([state.best_loss for _, state in runners]))
                for lengthscale, runners in racing.items()
            }
            best = sorted(losses, key=losses.__getitem__)[:left]
            racing = {key: runners for key, runners in racing.items() if key in {*best, usual}}
    return best[0] if losses[best[0]] < RACE_GAIN * losses[usual] else usual


def _go_on_together(
    racing: dict[float, list[Runner]], iterations: int
) -> dict[float, list[Runner]]:
    """Return all runners after so many iterations on a device, by their lengthscales."""
    from undulatus.gp.device_walk import walk_together

    setups, states = zip(*[runner for own in racing.values() for runner in own], strict=True)
    unheard = [lambda state: None] * len(setups)
    ends = walk_together(setups, states, unheard, max_iter=states[0].n_iter + iterations)
    runners = iter(zip(setups, ends, strict=True))
    return {lengthscale: [next(runners) for _ in own] for lengthscale, own in racing.items()}
