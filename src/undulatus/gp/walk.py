r"""A walk: frequencies learned on minibatches.

The running posterior of the weights is stored as statistics :math:`(A - I, h)`, estimated as
if all data looked like the recent minibatches of :math:`B` rows:

.. math:: A - I \leftarrow (1 - \rho)(A - I) + \rho \tfrac{n}{B} Z^\top \mathrm{diag}(2\lambda) Z,
    \qquad h \leftarrow (1 - \rho) h + \rho \tfrac{n}{B} Z^\top v,

which is a natural-gradient step in the evidence bound. The gradient in the frequencies comes
from the same product :math:`Z (A^{-1} + m m^\top)` that gives :math:`\xi`, and feeds Adam; the
signal variance follows its fixed point. The time does not grow with the data.

Every 25 minibatches the loss of held-back rows is computed. When it stalls, or when the steps
run out (later while it still falls fast), the step size is annealed to zero. When it gets worse,
the walk ends: it has begun to learn noise. The best position on the way, the start included, is
remembered.

With more than two classes there is a latent function a class, with statistics and a signal
variance of its own, over the same frequencies: the features are computed once, and the gradients
of all are added.

A minibatch depends on the seed and the step alone, so an interrupted walk continues as if it
had not been interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from undulatus.gp.arrays import Array, double, is_tensor, namespace, scratch
from undulatus.gp.blocks import Block, Pixels, Result
from undulatus.gp.bound import (
    Statistics,
    blend_gram,
    damped_features,
    gram_tiles,
    project,
    rescale_features,
    sampled_gradient,
)
from undulatus.gp.damping import spreads
from undulatus.gp.held_back import Split, held_back_loss
from undulatus.gp.passes import SEARCH_ROWS, Start, search_fits
from undulatus.gp.posterior import WeightMoments

Kept = TypeVar("Kept")
Item = TypeVar("Item")

Finish = Callable[[], list[Any]]
"""Waits for work that was begun, and returns its results."""

STEPS_PER_ITERATION = 25
"""Minibatches in an outer iteration; the held-back loss is computed after each iteration."""

PIECE_ROWS = 1024
"""Rows of a minibatch that one thread handles at a time, whatever the number of threads."""

MOST_THREADS = 4
"""Threads that share a minibatch, at most. With more, handing work over takes longer than it."""

COVARIANCE_ROWS = 512
"""Rows of a minibatch that are multiplied by the covariance of the weights, which is most of the
work. They stand for the others in what depends on it; the rest comes from all rows."""

FREQUENCY_STEP = 0.085
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

EPOCHS, FEWEST_ITERATIONS = 10, 12
"""A walk is planned to see each row so often, but for at least so many iterations."""

MORE_EPOCHS, STILL_FALLS = 15, 0.05
"""While the mean loss of the later half of its iterations is lower than that of the first half by
this share, a walk may see each row so often."""


@dataclass(frozen=True)
class Position:
    """Where a walk is: its hyperparameters, and the running statistics A - I and h there.

    ``lengthscale`` is that of fixed frequencies, or the starting one of learned frequencies. The
    others are those of each of C latent functions.
    """

    frequencies: Array
    lengthscale: float
    signal_variances: Array
    """(C,)"""
    gram: Array
    """(C, k, k)"""
    projected: Array
    """(C, k)"""

    @property
    def statistics(self) -> list[Statistics]:
        """The running statistics of the weights of each latent function."""
        pairs = zip(self.gram, self.projected, strict=True)
        return [Statistics(gram, projected, 0.0) for gram, projected in pairs]


@dataclass(frozen=True)
class AdamState:
    """Adam's running means of a gradient and of its square."""

    mean: Array
    square: Array

    @classmethod
    def zeros_like(cls, array: Array) -> AdamState:
        """Return the state before the first step."""
        return cls(np.zeros_like(array), np.zeros_like(array))

    def update(self, gradient: Array, step: Any) -> tuple[AdamState, Array]:
        """Return the state after ``gradient``, and the direction to step in, of size about 1."""
        mean = ADAM_DECAY_MEAN * self.mean + (1.0 - ADAM_DECAY_MEAN) * gradient
        square = ADAM_DECAY_SQUARE * self.square + (1.0 - ADAM_DECAY_SQUARE) * gradient**2
        root = namespace(square).sqrt(square / (1.0 - ADAM_DECAY_SQUARE**step))
        size = root + float(np.finfo(np.float64).tiny)
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
        return f"validation NLL {self.losses[-1]:.4f}"

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

    @property
    def loss_still_falls(self) -> bool:
        """Whether the loss of the later half of the iterations is well below that of the first."""
        half = self.n_iter // 2
        first, later = self.losses[:half], self.losses[half:]
        return half > 0 and bool(later.mean() < (1.0 - STILL_FALLS) * first.mean())

    def record_loss(self, loss: float) -> Walk:
        """Return the walk with one more loss, and with this position as the best if it is."""
        walk = replace(self, losses=np.append(self.losses, loss))
        smoothed = float(walk.smoothed_losses[-1])
        if smoothed >= self.best_loss:
            return walk
        return replace(walk, best=self.position, best_loss=smoothed, best_iter=walk.n_iter)


def walk(
    pixels: Pixels,
    start: Start,
    *,
    split: Split,
    max_iter: int,
    resume: Walk | None = None,
    interruptible: bool = True,
    report: Callable[[Walk], None] = lambda walk: None,
    **settings: Any,
) -> Walk:
    """Learn frequencies (or the lengthscale alone) and γ on minibatches of ``pixels``.

    ``split`` says which rows are held back; for ``settings`` see :class:`WalkSetup`. The posterior
    is scaled to ``n_total`` rows. With ``early_stopping``, the walk ends when the loss of
    held-back rows gets worse. If ``interruptible``, a KeyboardInterrupt ends it at the last
    finished iteration.
    """
    with Crew(min(pixels.threads, MOST_THREADS)) as crew:
        setup = WalkSetup.plan(pixels, split, start, max_iter=max_iter, crew=crew, **settings)
        state = first_state(setup) if resume is None else resume
        try:
            while state.outcome == "max_iter" and state.n_iter < max_iter:
                state = iterate(setup, state)
                report(state)
        except KeyboardInterrupt:
            if not (interruptible and state.n_iter):
                raise
            state = replace(state, outcome="interrupted")
    return state


class Solved(NamedTuple):
    """Moments of the weights of a latent function."""

    moments: WeightMoments
    rounded: tuple[Array, Array]
    """Mean and covariance in the precision of the features."""


class Crew:
    """The threads of a walk: the one that walks, and those that help it."""

    def __init__(self, threads: int = 1) -> None:
        self._helpers = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._helpers is not None:
            self._helpers.shutdown()

    def begin(
        self, function: Callable[[Item], Result], items: Sequence[Item]
    ) -> Callable[[], list[Result]]:
        """Begin ``function`` of each item; what is returned waits for the results, in order.

        Who waits does what no helper has begun, so that no thread is idle.
        """
        if self._helpers is None:
            results = [function(item) for item in items]
            return lambda: results
        begun = [self._helpers.submit(function, item) for item in items]
        own: dict[int, Result] = {}

        def finish() -> list[Result]:
            # From the end, where helpers come last.
            for place in reversed(range(len(items))):
                if place not in own and begun[place].cancel():
                    own[place] = function(items[place])
            return [
                own[place] if place in own else begun[place].result()
                for place in range(len(items))
            ]

        return finish


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
    planned_steps: int
    """After which a walk has ended, annealed, unless its loss still falls."""
    most_steps: int
    """After which it has ended anyway."""
    tol: float
    early_stopping: bool
    seed: int
    crew: Crew = field(default_factory=Crew)
    spread: float = 0.0
    """Deviation of frequencies, as a share of their size."""
    _solved: tuple[Position, list[Solved]] | None = None
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
        planned, most = (
            planned_iterations(len(learning), batch_size, max_iter, epochs)
            for epochs in (EPOCHS, MORE_EPOCHS)
        )
        return cls(
            pixels=pixels,
            learning=learning,
            held_back=pixels.pick(held_back),
            start_pixels=pixels.take(learning[:: -(-len(learning) // start_rows)]),
            start=start,
            batch_size=batch_size,
            planned_steps=planned * STEPS_PER_ITERATION,
            most_steps=most * STEPS_PER_ITERATION,
            **settings,
        )

    def solve(self, position: Position) -> list[Solved]:
        """Return the moments of the weights of each latent function; the last are remembered."""
        dtype = self.pixels.dtype

        def solve(own: Statistics) -> Solved:
            moments = own.moments()
            mean, covariance = moments.mean.astype(dtype), moments.covariance.astype(dtype)
            return Solved(moments, (mean, covariance))

        if self._solved is None or self._solved[0] is not position:
            self._solved = position, self.crew.begin(solve, position.statistics)()
        return self._solved[1]

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

    def must_anneal(self, state: Walk) -> bool:
        """Whether annealing from one iteration later on would not end in time."""
        later = state.step + STEPS_PER_ITERATION
        allowed = self.most_steps if state.loss_still_falls else self.planned_steps
        return later + self.anneal_steps(later) > allowed


def planned_iterations(n_rows: int, batch_size: int, max_iter: int, epochs: int = EPOCHS) -> int:
    """Return in how many outer iterations a walk sees each of its rows so often."""
    iterations = -(-epochs * n_rows // (batch_size * STEPS_PER_ITERATION))
    return min(max(iterations, FEWEST_ITERATIONS), max_iter)


def first_state(setup: WalkSetup) -> Walk:
    """Return a walk at its start, from the posterior of some rows, scaled to all."""
    start, rows = setup.start, setup.start_pixels
    fits = search_fits(rows, start, LEARNING_VARIANCE_LIMIT)
    frequencies, scale = start.frequencies, setup.n_total / rows.n_rows
    position = Position(
        frequencies,
        start.lengthscale,
        np.array([fit.signal_variance for fit in fits]),
        np.array([fit.statistics.gram * scale for fit in fits]),
        np.array([fit.statistics.projected * scale for fit in fits]),
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
        position.signal_variances.tolist(),
        [own.moments for own in setup.solve(position)],
        setup.spreads(position.frequencies),
    )


def iterate(setup: WalkSetup, state: Walk) -> Walk:
    """Return the walk after one more outer iteration."""
    solved = setup.solve(state.position)
    # Steps update the running statistics in place; those of the last position may be the best.
    gram, projected = state.position.gram.copy(), state.position.projected.copy()
    state = replace(state, position=replace(state.position, gram=gram, projected=projected))
    blended: Finish = list
    for _ in range(STEPS_PER_ITERATION):
        state, blended = _step(setup, state, solved, blended)
        if state.step % STEPS_PER_FACTORISATION == 0:
            blended()
            state = replace(state, position=_follow_variances(state.position, solved))
            solved = setup.solve(state.position)
    blended()
    return anneal_or_end(setup, state.record_loss(_loss_at(setup, state.position)))


def anneal_or_end(setup: WalkSetup, state: Walk) -> Walk:
    """Start to anneal when the loss stalls or the steps run out; end after that, or if worse."""
    if setup.early_stopping and state.loss_has_worsened:
        return replace(state, outcome="converged")
    if state.anneal_from is not None:
        annealed = state.step >= state.anneal_from + setup.anneal_steps(state.anneal_from)
        return replace(state, outcome="converged") if annealed else state
    window = STALL_WINDOW if setup.learn_frequencies else STALL_WINDOW_FIXED
    last_chance = setup.must_anneal(state)
    if last_chance or state.loss_has_stalled(window, setup.tol):
        return replace(state, anneal_from=state.step)
    return state


def _step(
    setup: WalkSetup, state: Walk, solved: Sequence[Solved], blended: Finish
) -> tuple[Walk, Finish]:
    """Return the walk after one minibatch: running statistics updated, frequencies moved.

    The running gram matrices are still being updated when the walk goes on: what is returned with
    it waits for that, and ``blended`` for those of the last minibatch.
    """
    position, chosen = state.position, setup.minibatch(state.step)
    spread, variances = setup.spreads(position.frequencies), position.signal_variances
    latents, k = range(len(variances)), position.gram.shape[-1]
    rounded = [own.rounded for own in solved]
    # Those of the last minibatch are still being read.
    name = f"minibatch {state.step % 2}"
    scaled = scratch(name, (len(latents), len(chosen), k), setup.pixels.dtype)

    def piece(first: int) -> tuple[list[Array], Array]:
        rows = slice(first, first + PIECE_ROWS)

        def keep(latent: int, z: Array, precision: Array) -> None:
            np.multiply(z, np.sqrt(precision)[:, None], out=scaled[latent, rows])

        block = setup.pixels.pick(chosen[rows])
        sampled = sampled_rows(len(block.x), len(chosen))
        _, projected, gradient = minibatch_sums(
            block, position.frequencies, variances.tolist(), rounded, spread, sampled, keep
        )
        return projected, gradient

    sums = setup.crew.begin(piece, range(0, len(chosen), PIECE_ROWS))
    projected, gradients = zip(*sums(), strict=True)
    step = state.step + 1
    rho = minibatch_weight(step)
    row_weight = setup.n_total / setup.batch_size

    def blend(place: tuple[int, tuple[slice, slice]]) -> None:
        latent, tile = place
        blend_gram(position.gram[latent], scaled[latent], tile, 1.0 - rho, rho * row_weight)

    blended()
    blended = setup.crew.begin(blend, [(own, tile) for own in latents for tile in gram_tiles(k)])
    follow(position.projected, np.sum(projected, axis=0), rho, row_weight)
    state = replace(state, step=step)
    return _move_frequencies(setup, state, np.sum(gradients, axis=0)), blended


def sampled_rows(rows: int, batch_rows: int) -> int:
    """Return how many of so many rows of a minibatch are multiplied by the covariance."""
    return -(-rows * COVARIANCE_ROWS // max(batch_rows, COVARIANCE_ROWS))


def minibatch_sums(
    block: Block,
    frequencies: Array,
    variances: Sequence[Any],
    moments: Sequence[tuple[Array, Array]],
    spread: Array | None,
    sampled: int,
    keep: Callable[[int, Array, Array], Kept],
) -> tuple[list[Kept], list[Array], Array]:
    """Return what is kept of each latent function, its Zᵗ(sv), and the frequencies' gradient.

    ``keep(latent, z, precision)`` returns what is needed for the gram matrix; features ``z`` are
    overwritten. ``moments`` are the mean and covariance of the weights of each. On a device all
    may be those of several members, with one more axis in front.
    """
    z, fresh = damped_features(block, frequencies, variances[0], spread)
    kept, projected = [], []
    gradient: Any = 0.0
    for latent, variance in enumerate(variances):
        if latent > 0:
            fresh = rescale_features(z, fresh, variance / variances[latent - 1])
        own = block.against_rest(latent)
        precision, in_frequencies = sampled_gradient(z, fresh, own, *moments[latent], sampled)
        kept.append(keep(latent, z, precision))
        projected.append(double(project(z, own.weight * own.v)))
        gradient = gradient + double(in_frequencies)
    return kept, projected, gradient


def minibatch_weight(step: int) -> float:
    """Return the weight ρ of a minibatch in the running statistics."""
    return max(step**-RHO_DECAY, MIN_RHO)


def follow(running: Array, new: Array, rho: Any, row_weight: float) -> None:
    """Move a running estimate, in place, towards that of a minibatch, which is overwritten."""
    running *= 1.0 - rho
    new *= rho * row_weight
    running += new


def _move_frequencies(setup: WalkSetup, state: Walk, gradient: Array) -> Walk:
    """Take Adam's step in the features' scales, and in each frequency if they are learned."""
    position = state.position
    share = setup.step_share(state.step, state.anneal_from)
    frequencies, growth, frequency_adam, scale_adam = moved_frequencies(
        position.frequencies,
        gradient,
        state.frequency_adam,
        state.scale_adam,
        state.step,
        share,
        state.frequency_unit if setup.learn_frequencies else None,
    )
    lengthscale = position.lengthscale
    if not setup.learn_frequencies:
        lengthscale /= float(growth[0])
    return replace(
        state,
        position=replace(position, frequencies=frequencies, lengthscale=lengthscale),
        frequency_adam=frequency_adam,
        scale_adam=scale_adam,
    )


def moved_frequencies(
    frequencies: Array,
    gradient: Array,
    frequency_adam: AdamState,
    scale_adam: AdamState,
    step: Any,
    share: Any,
    unit: Any,
) -> tuple[Array, Array, AdamState, AdamState]:
    """Return frequencies after Adam's step, how the features' scales grew, and Adam's states.

    ``unit`` is the root mean square of the starting frequencies, or None if only the lengthscale
    is learned. Tensors are those of several members: frequencies (M, D, d), scales (M, 1, d), and
    numbers (M, 1, 1).
    """
    xp = namespace(frequencies)
    in_scales = (gradient * frequencies).sum(-2, keepdims=is_tensor(gradient))
    if unit is None:
        # RFF-GPC: one lengthscale for all features, so that frequencies keep their directions.
        in_scales = xp.zeros_like(in_scales) + in_scales.sum(-1, keepdims=True)
    scale_adam, direction = scale_adam.update(in_scales, step)
    growth = xp.exp(SCALE_STEP * share * direction)
    frequencies = frequencies * growth
    if unit is not None:
        frequency_adam, direction = frequency_adam.update(gradient, step)
        frequencies = frequencies + FREQUENCY_STEP * unit * share * direction
    return frequencies, growth, frequency_adam, scale_adam


def rescale(gram: Array, projected: Array, ratio: Any) -> None:
    """Make running statistics, in place, those of ``ratio`` times the signal variance.

    With tensors of several, (..., k, k) and (..., k), the ratios are (..., 1, 1).
    """
    gram *= ratio
    projected *= ratio[..., 0] ** 0.5 if is_tensor(ratio) else ratio**0.5


def _follow_variances(position: Position, solved: Sequence[Solved]) -> Position:
    """Move each γ towards its fixed point, damped, and rescale the statistics in place."""
    variances = position.signal_variances.copy()
    for latent, own in enumerate(solved):
        ratio = own.moments.variance_ratio**VARIANCE_DAMPING
        ratio = min(ratio, LEARNING_VARIANCE_LIMIT / variances[latent])
        rescale(position.gram[latent], position.projected[latent], ratio)
        variances[latent] *= ratio
    return replace(position, signal_variances=variances)
