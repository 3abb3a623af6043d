r"""The stochastic solver: frequencies learned on minibatches, then exact passes over all pixels.

The running posterior of the weights is stored as statistics :math:`(A - I, h)`, estimated as
if all data looked like the recent minibatches of :math:`B` rows:

.. math:: A - I \leftarrow (1 - \rho)(A - I) + \rho \tfrac{n}{B} Z^\top \mathrm{diag}(2\lambda) Z,
    \qquad h \leftarrow (1 - \rho) h + \rho \tfrac{n}{B} Z^\top v,

which is a natural-gradient step in the evidence bound. The gradient in the frequencies comes
from the same product :math:`Z (A^{-1} + m m^\top)` that gives :math:`\xi`, and feeds Adam; the
signal variance follows its fixed point. The time does not grow with the data.

Every 25 minibatches the loss of held-back rows is computed. When it stalls, or when the steps
run out, the step size is annealed to zero. When it gets worse, the walk ends: it has begun to
learn noise. The best position on the way, the start included, is remembered. The lengthscale to
start from is found by a race: short walks from several, of which those with the lower loss go on.
A walk that has learned nothing is begun again from half the lengthscale.

A minibatch depends on the seed and the step alone, so an interrupted walk continues as if it
had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from undulatus.gp.blocks import Array, Block, Pixels, PixelSource, give_back, map_blocks
from undulatus.gp.bound import (
    Statistics,
    block_statistics,
    feature_gradient,
    features_and_moment_product,
    sum_statistics,
    tight_xi,
)
from undulatus.gp.damping import level, spreads
from undulatus.gp.fourier import frequency_gradient
from undulatus.gp.held_back import Split, held_back_loss, leave_out, shares_entropy
from undulatus.gp.passes import SEARCH_ROWS, FourierFit, Start, fit_posterior, search_fit
from undulatus.gp.posterior import WeightMoments
from undulatus.gp.variational import fit_final_posterior

SAMPLE_ROWS = 1_000_000
"""Frequencies are learned on at most this many rows, drawn at random ..."""

SAMPLE_BYTES = 256 * 2**20
"""... and on at most this many bytes of them, in single precision."""

STEPS_PER_ITERATION = 25
"""Minibatches in an outer iteration; the held-back loss is computed after each iteration."""

PIECE_ROWS = 512
"""Rows of a minibatch that one thread handles at a time, whatever the number of threads."""

FREQUENCY_STEP = 0.1
"""Largest step of a frequency, as a share of the starting frequencies' root mean square."""

SCALE_STEP = 0.01
"""Largest step of the logarithm of a feature's scale."""

ADAM_DECAY_MEAN, ADAM_DECAY_SQUARE = 0.9, 0.99
"""Adam's decay rates for the mean of the gradient and of its square."""

RHO_DECAY, MIN_RHO = 0.6, 0.1
"""The weight of a minibatch in the running statistics is max(step^-0.6, 0.1)."""

STEPS_PER_FACTORISATION = 4
"""Minibatches between two factorisations of the running posterior."""

VARIANCE_DAMPING = 0.1
"""Exponent of the factor by which the signal variance follows its fixed point."""

LEARNING_VARIANCE_LIMIT = 100.0
"""Highest signal variance while frequencies move: a prior deviation of 10 in the logit. Beyond
it, waves cancel each other and a small step of the frequencies throws the posterior off."""

ANNEAL_SHARE = 0.4
"""Share of all steps over which the step size falls to zero."""

STALL_WINDOW, STALL_WINDOW_FIXED = 16, 2
"""Outer iterations averaged to see whether the loss still falls: for learned frequencies, and
for fixed ones, of which only the lengthscale is learned."""

SMOOTHING = 3
"""Losses averaged to find the best position."""

WORSENING_WINDOW, WORSENING_FACTOR = 8, 1.1
"""Learning has got worse when the median of the last 8 losses after the smallest smoothed loss
exceeds 1.1 times that loss."""

FINAL_PASSES = 25
"""Most exact passes after the frequencies were learned."""

EPOCHS, FEWEST_ITERATIONS = 15, 12
"""A walk is planned to see each row so often, but for at least so many iterations."""

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


@dataclass(frozen=True)
class Position:
    """Where a walk is: its hyperparameters, and the running statistics A - I and h there.

    ``lengthscale`` is that of fixed frequencies, or the starting one of learned frequencies.
    """

    frequencies: Array
    lengthscale: float
    signal_variance: float
    gram: Array
    projected: Array

    @property
    def statistics(self) -> Statistics:
        """The running statistics of the weights."""
        return Statistics(self.gram, self.projected, 0.0)


@dataclass(frozen=True)
class AdamState:
    """Adam's running means of a gradient and of its square."""

    mean: Array
    square: Array

    @classmethod
    def zeros_like(cls, array: Array) -> AdamState:
        """Return the state before the first step."""
        return cls(np.zeros_like(array), np.zeros_like(array))

    def update(self, gradient: Array, step: int) -> tuple[AdamState, Array]:
        """Return the state after ``gradient``, and the direction to step in, of size about 1."""
        mean = ADAM_DECAY_MEAN * self.mean + (1.0 - ADAM_DECAY_MEAN) * gradient
        square = ADAM_DECAY_SQUARE * self.square + (1.0 - ADAM_DECAY_SQUARE) * gradient**2
        size = np.sqrt(square / (1.0 - ADAM_DECAY_SQUARE**step)) + np.finfo(np.float64).tiny
        return AdamState(mean, square), mean / (1.0 - ADAM_DECAY_MEAN**step) / size


@dataclass(frozen=True)
class Walk:
    """A stochastic ascent in progress: all that is needed to continue it.

    ``best`` is the position with the lowest smoothed loss, ``best_loss``, reached after
    ``best_iter`` iterations; before the first, it is the start. ``losses`` holds the loss of
    held-back rows after each outer iteration.
    """

    step: int
    position: Position
    best: Position
    frequency_adam: AdamState
    """Of the frequencies, (D, d)."""
    scale_adam: AdamState
    """Of the logarithms of the features' scales, (d,)."""
    losses: Array
    seed: int
    """Of the draw of held-back rows and of the order of minibatches."""
    frequency_unit: float
    """Root mean square of the starting frequencies."""
    best_loss: float = np.inf
    best_iter: int = 0
    anneal_from: int | None = None
    """Step from which the step size falls."""
    outcome: str = "max_iter"

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return len(self.losses)

    @property
    def progress_text(self) -> str:
        """What a line of progress says."""
        return f"held-back NLL {self.losses[-1]:.4f}"

    @property
    def smoothed_losses(self) -> Array:
        """Mean of the last three losses after each iteration."""
        ends = range(1, self.n_iter + 1)
        return np.array([self.losses[max(0, end - SMOOTHING) : end].mean() for end in ends])

    @property
    def loss_has_worsened(self) -> bool:
        """Whether the loss has risen since its smallest value, and stays up."""
        smoothed = self.smoothed_losses
        lowest = int(np.argmin(smoothed))
        since = self.losses[lowest + 1 :]
        if len(since) < WORSENING_WINDOW:
            return False
        # The median: full steps give an outlying loss now and then.
        median = np.median(since[-WORSENING_WINDOW:])
        return bool(median > WORSENING_FACTOR * smoothed[lowest])

    def loss_has_stalled(self, window: int, tol: float) -> bool:
        """Whether the mean of the last ``window`` losses is hardly below that of those before."""
        if self.n_iter < 2 * window:
            return False
        before, now = self.losses[-2 * window : -window].mean(), self.losses[-window:].mean()
        return bool(before - now < tol * window * now)

    def record_loss(self, loss: float) -> Walk:
        """Return the walk with one more loss, and with this position as the best if it is."""
        walk = replace(self, losses=np.append(self.losses, loss))
        smoothed = float(walk.smoothed_losses[-1])
        if smoothed >= self.best_loss:
            return walk
        return replace(walk, best=self.position, best_loss=smoothed, best_iter=walk.n_iter)


def fit_stochastic(
    pixels: PixelSource,
    start: Start,
    *,
    learn_frequencies: bool,
    batch_size: int,
    max_iter: int,
    tol: float,
    early_stopping: bool,
    rng: np.random.Generator,
    variational: bool = True,
    spread: float = 0.0,
    log_odds: float = 0.0,
    sample: Pixels | None = None,
    split: Split | None = None,
    resume: Walk | None = None,
    report: Callable[[Walk], None] = lambda walk: None,
    report_pass: Callable[[int, float], None] = lambda done, bound: None,
) -> FourierFit:
    """Learn the frequencies on minibatches, then the posterior on all pixels by exact passes.

    ``pixels`` may be too many for memory: the frequencies are learned on a sample, drawn here
    unless one is given. With ``early_stopping``, the frequencies with the lowest loss on
    held-back pixels are used. ``split`` says which of the sample are held back; without it they
    are drawn. Waves are damped by ``spread``, a share of their frequencies, or by more if groups
    held back say so. The posterior is that of
    :func:`~undulatus.gp.variational.fit_final_posterior`, with the level of ``log_odds``.
    """
    early_stopping = early_stopping and learn_frequencies
    seed = int(rng.integers(2**63)) if resume is None else resume.seed
    if sample is None:
        sample = draw_sample(pixels, rng)
    if split is None:
        split = leave_out(sample, 1, np.random.default_rng(seed))[0]
    hopeless = NOTHING_LEARNED * shares_entropy(sample.pick(split[1]))
    ends: list[Walk] = []
    for halvings in range(1 + FRESH_STARTS):
        lengthscale = 0.5**halvings * start.lengthscale
        # Learned frequencies keep the lengthscale they started from: it tells which walk was
        # interrupted. Those before it are repeated, since they may have been better.
        goes_on = resume is not None and (
            not learn_frequencies or resume.position.lengthscale == lengthscale
        )
        end = walk(
            sample,
            replace(start, lengthscale=lengthscale),
            learn_frequencies=learn_frequencies,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=tol,
            early_stopping=early_stopping,
            seed=seed,
            n_total=pixels.n_rows,
            spread=spread,
            split=split,
            resume=resume if goes_on else None,
            report=report,
        )
        ends.append(end)
        if not early_stopping or end.outcome == "interrupted" or end.best_loss <= hopeless:
            break
    else:
        end = min(ends, key=lambda end: end.best_loss)
    position = end.best if early_stopping else end.position
    if early_stopping and sample.groups is not None and end.outcome != "interrupted":
        spread = settle_spread(sample, split, position, spread, pixels.n_rows)
    own_log_odds = log_odds if variational else 0.0
    final = fit_final_posterior(
        pixels,
        position.frequencies,
        position.signal_variance,
        None,
        variational=variational,
        max_passes=1 if end.outcome == "interrupted" else FINAL_PASSES,
        # A pass costs as much as hundreds of minibatches, and the bound's settle slowly.
        bound_tol=3.0 * tol,
        tol=tol,
        spread=spreads(position.frequencies, spread) if spread else None,
        log_odds=own_log_odds,
        initial_posterior=position.statistics.posterior(),
        report=report_pass,
    )
    return FourierFit(
        position.frequencies,
        position.lengthscale,
        final.signal_variance,
        final.posterior,
        final.bounds,
        end.n_iter,
        "interrupted" if final.interrupted else end.outcome,
        tuple(end.losses.tolist()),
        spread,
        level(own_log_odds, final.signal_variance),
    )


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


def walk(
    pixels: Pixels,
    start: Start,
    *,
    learn_frequencies: bool,
    batch_size: int,
    max_iter: int,
    tol: float,
    early_stopping: bool,
    seed: int,
    n_total: int,
    split: Split,
    spread: float = 0.0,
    resume: Walk | None = None,
    report: Callable[[Walk], None] = lambda walk: None,
) -> Walk:
    """Learn frequencies (or the lengthscale alone) and γ on minibatches of ``pixels``.

    ``split`` says which rows are held back. The posterior is scaled to ``n_total`` rows. With
    ``early_stopping``, the walk ends when the loss of held-back rows gets worse. A
    KeyboardInterrupt ends it at the last finished iteration.
    """
    with ThreadPoolExecutor(pixels.threads) as pool:
        setup = WalkSetup.plan(
            pixels,
            split,
            start,
            learn_frequencies=learn_frequencies,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=tol,
            early_stopping=early_stopping,
            seed=seed,
            n_total=n_total,
            spread=spread,
            pool=pool,
        )
        state = first_state(setup) if resume is None else resume
        try:
            while state.outcome == "max_iter" and state.n_iter < max_iter:
                state = _iterate(setup, state)
                report(state)
        except KeyboardInterrupt:
            if not state.n_iter:
                raise
            state = replace(state, outcome="interrupted")
    return state


def settle_spread(
    pixels: Pixels, split: Split, position: Position, spread: float, n_total: int
) -> float:
    """Return how much waves should fade for groups held back: ``spread``, or a multiple of it.

    The posterior at each is that of some of the other rows, scaled to ``n_total``.
    """
    learning, held = split
    some = pixels.take(learning[:: -(-len(learning) // SEARCH_ROWS)])
    held_back, start = pixels.pick(held), position.statistics.posterior()
    losses = {}
    for factor in SPREAD_FACTORS:
        own = spreads(position.frequencies, factor * spread)
        fit = fit_posterior(
            some,
            position.frequencies,
            position.signal_variance,
            None,
            max_passes=SPREAD_PASSES,
            spread=own,
            initial_posterior=start,
        )
        scale = n_total / some.n_rows
        moments = Statistics(
            fit.statistics.gram * scale, fit.statistics.projected * scale, 0.0
        ).moments()
        losses[factor * spread] = held_back_loss(
            held_back, position.frequencies, fit.signal_variance, moments, own
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
    one_thread = replace(pixels, threads=1)
    with ThreadPoolExecutor(pixels.threads) as pool, ThreadPoolExecutor(1) as unused:

        def begin(lengthscale: float) -> list[tuple[WalkSetup, Walk]]:
            setups = [
                WalkSetup.plan(
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
                    pool=unused,
                    start_rows=RACE_ROWS,
                )
                for unit, split in zip(unit_frequencies, splits, strict=True)
            ]
            return [(setup, first_state(setup)) for setup in setups]

        def go_on(
            runners: list[tuple[WalkSetup, Walk]], iterations: int
        ) -> list[tuple[WalkSetup, Walk]]:
            for _ in range(iterations):
                runners = [(setup, _iterate(setup, state)) for setup, state in runners]
            return runners

        lengthscales = [share * mean_distance for share in RACE_SHARES]
        usual = USUAL_SHARE * mean_distance
        racing = dict(zip(lengthscales, pool.map(begin, lengthscales), strict=True))
        for iterations, left in RACE_ROUNDS:
            ahead = pool.map(go_on, racing.values(), [iterations] * len(racing))
            racing = dict(zip(racing, ahead, strict=True))
            losses = {
                lengthscale: float(np.mean([state.best_loss for _, state in runners]))
                for lengthscale, runners in racing.items()
            }
            best = sorted(losses, key=losses.__getitem__)[:left]
            racing = {key: runners for key, runners in racing.items() if key in {*best, usual}}
    return best[0] if losses[best[0]] < RACE_GAIN * losses[usual] else usual


@dataclass
class WalkSetup:
    """What stays the same during a walk (the order of rows is cached for the current epoch)."""

    pixels: Pixels
    learning: Array
    """Numbers of the rows to learn from."""
    held_back: Block
    start_pixels: Pixels
    """Some of the rows to learn from, on which the start is fitted."""
    n_total: int
    """Number of rows the posterior is scaled to."""
    start: Start
    learn_frequencies: bool
    batch_size: int
    max_steps: int
    tol: float
    early_stopping: bool
    seed: int
    spread: float
    """Deviation of frequencies, as a share of their size."""
    pool: ThreadPoolExecutor
    _epoch: int = -1
    _order: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    @classmethod
    def plan(
        cls,
        pixels: Pixels,
        split: Split,
        start: Start,
        *,
        batch_size: int,
        max_iter: int,
        start_rows: int = SEARCH_ROWS,
        **settings: Any,
    ) -> WalkSetup:
        """Return the setup of a walk over the rows of ``split`` of at most ``max_iter``.

        The posterior at the start is found from at most ``start_rows``.
        """
        learning, held_back = split
        batch_size = min(batch_size, len(learning))
        seen = -(-EPOCHS * len(learning) // (batch_size * STEPS_PER_ITERATION))
        iterations = min(max(seen, FEWEST_ITERATIONS), max_iter)
        return cls(
            pixels=pixels,
            learning=learning,
            held_back=pixels.pick(held_back),
            start_pixels=pixels.take(learning[:: -(-len(learning) // start_rows)]),
            start=start,
            batch_size=batch_size,
            max_steps=iterations * STEPS_PER_ITERATION,
            **settings,
        )

    def spreads(self, frequencies: Array) -> Array | None:
        """Return the deviation of each feature's frequencies, (d,), if waves are damped."""
        return spreads(frequencies, self.spread) if self.spread else None

    def minibatch(self, step: int) -> Array:
        """Return the row numbers of minibatch ``step``, counted from 0."""
        n, size = len(self.learning), self.batch_size
        epoch, place = divmod(step, n // size)
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(n)
        return self.learning[self._order[place * size : (place + 1) * size]]

    def step_share(self, step: int, anneal_from: int | None) -> float:
        """Return the share of the full step size at ``step``."""
        if anneal_from is None:
            return 1.0
        return 0.5 * (1.0 + np.cos(np.pi * (step - anneal_from) / self.anneal_steps(anneal_from)))

    def anneal_steps(self, anneal_from: int) -> int:
        """Return over how many steps the step size falls, a whole number of iterations."""
        share = ANNEAL_SHARE / (1.0 - ANNEAL_SHARE)
        iterations = max(round(share * anneal_from / STEPS_PER_ITERATION), 1)
        return iterations * STEPS_PER_ITERATION

    def must_anneal(self, step: int) -> bool:
        """Whether annealing from one iteration later on would not end within the most steps."""
        later = step + STEPS_PER_ITERATION
        return later + self.anneal_steps(later) > self.max_steps


def first_state(setup: WalkSetup) -> Walk:
    """Return a walk at its start, from the posterior of some rows, scaled to all."""
    start, rows = setup.start, setup.start_pixels
    fit = search_fit(rows, start, LEARNING_VARIANCE_LIMIT)
    frequencies, scale = start.frequencies, setup.n_total / rows.n_rows
    position = Position(
        frequencies,
        start.lengthscale,
        fit.signal_variance,
        fit.statistics.gram * scale,
        fit.statistics.projected * scale,
    )
    return Walk(
        step=0,
        position=position,
        best=position,
        frequency_adam=AdamState.zeros_like(frequencies),
        scale_adam=AdamState.zeros_like(frequencies[0]),
        losses=np.empty(0),
        seed=setup.seed,
        frequency_unit=float(np.sqrt(np.mean(frequencies**2))),
        best_loss=_loss_at(setup, position),
    )


def _loss_at(setup: WalkSetup, position: Position) -> float:
    """Return the loss of the held-back rows at a position."""
    return held_back_loss(
        setup.held_back,
        position.frequencies,
        position.signal_variance,
        position.statistics.moments(),
        setup.spreads(position.frequencies),
    )


def _iterate(setup: WalkSetup, state: Walk) -> Walk:
    # Steps update the running statistics in place; those of the last position may be the best.
    gram, projected = state.position.gram.copy(), state.position.projected.copy()
    state = replace(state, position=replace(state.position, gram=gram, projected=projected))
    moments = state.position.statistics.moments()
    second_moment = moments.second_moment.astype(setup.pixels.dtype)
    for _ in range(STEPS_PER_ITERATION):
        state = _step(setup, state, moments.mean, second_moment)
        if state.step % STEPS_PER_FACTORISATION == 0:
            state = replace(state, position=_follow_variance(state.position, moments))
            moments = state.position.statistics.moments()
            second_moment = moments.second_moment.astype(setup.pixels.dtype)
    return _anneal_or_end(setup, state.record_loss(_loss_at(setup, state.position)))


def _anneal_or_end(setup: WalkSetup, state: Walk) -> Walk:
    """Start to anneal when the loss stalls or the steps run out; end after that, or if worse."""
    if setup.early_stopping and state.loss_has_worsened:
        return replace(state, outcome="converged")
    if state.anneal_from is not None:
        annealed = state.step >= state.anneal_from + setup.anneal_steps(state.anneal_from)
        return replace(state, outcome="converged") if annealed else state
    window = STALL_WINDOW if setup.learn_frequencies else STALL_WINDOW_FIXED
    last_chance = setup.must_anneal(state.step)
    if last_chance or state.loss_has_stalled(window, setup.tol):
        return replace(state, anneal_from=state.step)
    return state


def _step(setup: WalkSetup, state: Walk, mean: Array, second_moment: Array) -> Walk:
    """Return the walk after one minibatch: running statistics updated, frequencies moved."""
    position, chosen = state.position, setup.minibatch(state.step)
    gradients: list[Array] = []
    spread = setup.spreads(position.frequencies)

    def piece(rows: slice) -> tuple[Statistics, Array]:
        block = setup.pixels.pick(chosen[rows])
        z, moment_product, fresh = features_and_moment_product(
            block, position.frequencies, position.signal_variance, second_moment, spread
        )
        xi = tight_xi(z, moment_product, fresh)
        statistics = block_statistics(z, block, xi)
        in_features = feature_gradient(moment_product, block, xi, mean)
        return statistics, frequency_gradient(in_features, z, block.x)

    def pieces() -> Iterator[Statistics]:
        threads = setup.pixels.threads
        for statistics, gradient in map_blocks(
            piece, len(chosen), PIECE_ROWS, threads, setup.pool
        ):
            gradients.append(gradient.astype(np.float64))
            yield statistics

    statistics = sum_statistics(pieces())
    step = state.step + 1
    rho = max(step**-RHO_DECAY, MIN_RHO)
    row_weight = setup.n_total / setup.batch_size
    for running, new in (
        (position.gram, statistics.gram),
        (position.projected, statistics.projected),
    ):
        running *= 1.0 - rho
        new *= rho * row_weight
        running += new
    give_back(statistics.gram)
    state = replace(state, step=step)
    return _move_frequencies(setup, state, np.sum(gradients, axis=0))


def _move_frequencies(setup: WalkSetup, state: Walk, gradient: Array) -> Walk:
    """Take Adam's step in the features' scales, and in each frequency if they are learned."""
    position, frequency_adam = state.position, state.frequency_adam
    share = setup.step_share(state.step, state.anneal_from)
    in_scales = np.sum(gradient * position.frequencies, axis=0)
    if not setup.learn_frequencies:
        # RFF-GPC: one lengthscale for all features, so that frequencies keep their directions.
        in_scales = np.full_like(in_scales, in_scales.sum())
    scale_adam, direction = state.scale_adam.update(in_scales, state.step)
    growth = np.exp(SCALE_STEP * share * direction)
    frequencies, lengthscale = position.frequencies * growth, position.lengthscale
    if setup.learn_frequencies:
        frequency_adam, direction = frequency_adam.update(gradient, state.step)
        frequencies = frequencies + FREQUENCY_STEP * state.frequency_unit * share * direction
    else:
        lengthscale /= float(growth[0])
    return replace(
        state,
        position=replace(position, frequencies=frequencies, lengthscale=lengthscale),
        frequency_adam=frequency_adam,
        scale_adam=scale_adam,
    )


def _follow_variance(position: Position, moments: WeightMoments) -> Position:
    """Move γ towards its fixed point, damped, and rescale the statistics, in place, with it."""
    ratio = moments.variance_ratio**VARIANCE_DAMPING
    ratio = min(ratio, LEARNING_VARIANCE_LIMIT / position.signal_variance)
    rescaled = position.gram, position.projected
    for values, factor in zip(rescaled, (ratio, np.sqrt(ratio)), strict=True):
        values *= factor
    return replace(position, signal_variance=position.signal_variance * ratio)
