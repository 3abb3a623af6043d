r"""Natural-gradient minibatches: frequencies learned in a time that does not grow with the data.

The running posterior of the weights is kept as statistics :math:`(A - I, h)`, estimated
as if the whole data looked like recent minibatches of :math:`B` rows:

.. math:: A - I \leftarrow (1 - \rho)(A - I) + \rho \tfrac{n}{B} Z^\top \mathrm{diag}(2\lambda) Z,
    \qquad h \leftarrow (1 - \rho) h + \rho \tfrac{n}{B} Z^\top v,

which is a natural-gradient step in the evidence bound. The gradient in the frequencies
comes from the same product :math:`Z (A^{-1} + m m^\top)` that gives :math:`\xi`, and feeds
Adam; the signal variance follows its fixed point. When the likelihood of held-back rows
stalls, or the steps run out, the step size is annealed to zero. When it gets worse, the
frequencies had started so fine that they learned the noise: the walk begins again at twice the
lengthscale, or ends if that did not help. The best place on the way is remembered.

A minibatch is a function of the seed and the step alone, so a walk that is
interrupted goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.gp.blocks import Block, Pixels, map_blocks
from undulatus.gp.evidence import (
    Statistics,
    add_up,
    block_statistics,
    feature_gradient,
    features_and_reach,
    tight_xi,
)
from undulatus.gp.fourier import frequency_gradient
from undulatus.gp.posterior import Moments
from undulatus.gp.settling import COARSENINGS, SEARCH_ROWS, Settled, Start, settle_start
from undulatus.gp.validation import held_back_loss, hold_back
from undulatus.gp.walk import WINDOW, WINDOW_OF_ONE_SCALE, Walk

Array = npt.NDArray[Any]

STEPS_PER_ITERATION = 25
"""Minibatches in an outer iteration: after each, held-back rows are looked at."""
PIECE_ROWS = 512
"""A minibatch is cut into pieces of so many rows, one a thread, whatever the threads."""
SAMPLE_ROWS = 1_000_000
"""Frequencies are learned on at most so many rows, drawn at random ..."""
SAMPLE_BYTES = 256 * 2**20
"""... and on at most so many bytes of them, in single precision."""
FREQUENCY_STEP = 0.05
"""Largest step of a frequency, as a share of the starting frequencies' deviation."""
SCALE_STEP = 0.01
"""Largest step of the logarithm of a feature's scale."""
LEAST_RHO = 0.1
REFRESH = 2
"""Minibatches between two factorisations of the running posterior."""
VARIANCE_DAMPING = 0.1
LEARNING_VARIANCE_LIMIT = 100.0
"""Highest signal variance while frequencies move: a prior deviation of 10 in the logit. Beyond
it, waves cancel each other and a small step of the frequencies throws the posterior off."""
ANNEAL_SHARE = 0.4
"""Share of all steps over which the step size falls to zero."""
DECAY_MEAN, DECAY_SQUARE = 0.9, 0.99


@dataclass
class Course:
    """What stays the same during a walk (and the order of rows in the present epoch)."""

    pixels: Pixels
    learning: Array
    held_back: Block
    few: Pixels
    """Some of those to learn from, to begin with."""
    n_total: int
    """Rows that the posterior is to stand for."""
    start: Start
    coarsest: float
    """Longest lengthscale that may be started from."""
    learn_frequencies: bool
    batch_size: int
    max_steps: int
    tol: float
    early_stopping: bool
    seed: int
    pool: ThreadPoolExecutor
    _epoch: int = -1
    _order: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def minibatch(self, step: int) -> Array:
        """Return the row numbers of minibatch ``step``, counted from 0."""
        n, size = len(self.learning), min(self.batch_size, len(self.learning))
        epoch, place = divmod(step, n // size)
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(n)
        return self.learning[self._order[place * size : (place + 1) * size]]

    @property
    def scale(self) -> float:
        """How many rows one of a minibatch stands for."""
        return self.n_total / min(self.batch_size, len(self.learning))

    def step_share(self, step: int, anneal_from: int) -> float:
        """Return the share of the full step size at ``step``."""
        if anneal_from < 0:
            return 1.0
        return 0.5 * (1.0 + np.cos(np.pi * (step - anneal_from) / self.anneal_steps(anneal_from)))

    def anneal_steps(self, anneal_from: int) -> int:
        """Return over how many steps the step size falls, a whole number of iterations."""
        share = ANNEAL_SHARE / (1.0 - ANNEAL_SHARE)
        iterations = max(round(share * anneal_from / STEPS_PER_ITERATION), 1)
        return iterations * STEPS_PER_ITERATION


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
    resume: Walk | None = None,
    report: Callable[[Walk], None] = lambda walk: None,
) -> Walk:
    """Learn frequencies (or the lengthscale alone) and γ on minibatches of ``pixels``.

    ``n_total`` is the number of rows the posterior is to stand for. An interrupt
    ends the walk at the last finished iteration. With ``early_stopping`` the walk begins again
    from a coarser start, or ends, when the likelihood of held-back rows gets worse.
    """
    seed = seed if resume is None else resume.seed
    learning, held_back = hold_back(pixels.n_rows, np.random.default_rng(seed), pixels.groups)
    with ThreadPoolExecutor(pixels.threads) as pool:
        course = Course(
            pixels=pixels,
            learning=learning,
            held_back=pixels.pick(held_back),
            few=pixels.take(learning[:: -(-len(learning) // SEARCH_ROWS)]),
            n_total=n_total,
            start=start,
            coarsest=2.0**COARSENINGS * start.lengthscale,
            learn_frequencies=learn_frequencies,
            batch_size=batch_size,
            max_steps=max_iter * STEPS_PER_ITERATION,
            tol=tol,
            early_stopping=early_stopping,
            seed=seed,
            pool=pool,
        )
        state = _begin(course) if resume is None else resume
        try:
            while state.outcome == "max_iter" and state.n_iter < max_iter:
                state = _iterate(course, state)
                if state.outcome == "converged" and _may_begin_again(course, state):
                    state = _begin_again(course, state)
                report(state)
        except KeyboardInterrupt:
            if not state.n_iter:
                raise
            state = replace(state, outcome="interrupted")
    return state


def _begin(course: Course) -> Walk:
    """Return the start of a walk, where something carries over to held-back rows."""
    looked_at = course.held_back if course.learn_frequencies else None
    return _start(
        course, *settle_start(course.few, course.start, looked_at, LEARNING_VARIANCE_LIMIT)
    )


def _may_begin_again(course: Course, state: Walk) -> bool:
    """Say if a coarser start is worth a try: the last one was, and half the time is left."""
    return (
        course.early_stopping
        and state.worsens
        and state.helped
        and 2.0 * state.lengthscale <= course.coarsest
        and 2 * state.n_iter * STEPS_PER_ITERATION <= course.max_steps
    )


def _begin_again(course: Course, state: Walk) -> Walk:
    """Return the start of a walk at twice the lengthscale, the best place so far remembered."""
    coarser = replace(course.start, lengthscale=2.0 * state.lengthscale)
    fresh = _start(course, *settle_start(course.few, coarser, None, LEARNING_VARIANCE_LIMIT))
    return state.begin_again(fresh)


def _start(course: Course, start: Start, settled: Settled) -> Walk:
    """Return a walk that begins with the posterior of a few rows, as if they were all."""
    frequencies, _ = start.at
    scale = course.n_total / course.few.n_rows
    gram, projected = settled.statistics.gram * scale, settled.statistics.projected * scale
    return Walk(
        step=0,
        frequencies=frequencies,
        lengthscale=start.lengthscale,
        signal_variance=settled.signal_variance,
        gram=gram,
        projected=projected,
        momentum=np.zeros_like(frequencies),
        energy=np.zeros_like(frequencies),
        scale_momentum=np.zeros(frequencies.shape[1]),
        scale_energy=np.zeros(frequencies.shape[1]),
        losses=np.empty(0),
        best_frequencies=frequencies,
        best_signal_variance=settled.signal_variance,
        best_gram=gram,
        best_projected=projected,
        best_lengthscale=start.lengthscale,
        seed=course.seed,
        unit=float(np.sqrt(np.mean(frequencies**2))),
    )


def _iterate(course: Course, state: Walk) -> Walk:
    moments = state.statistics.moments()
    second_moment = moments.second_moment(course.pixels.dtype)
    for _ in range(STEPS_PER_ITERATION):
        state = _step(course, state, moments.mean, second_moment)
        if state.step % REFRESH == 0:
            state = _follow_variance(state, moments)
            moments = state.statistics.moments()
            second_moment = moments.second_moment(course.pixels.dtype)
    loss = held_back_loss(
        course.held_back, state.frequencies, state.signal_variance, state.statistics.moments()
    )
    state = state.after(loss)
    anneal_from, outcome = state.anneal_from, state.outcome
    if course.early_stopping and state.worsens:
        outcome = "converged"
    elif anneal_from < 0:
        steps = course.max_steps - state.began * STEPS_PER_ITERATION
        window = WINDOW if course.learn_frequencies else WINDOW_OF_ONE_SCALE
        if state.step >= (1.0 - ANNEAL_SHARE) * steps or state.stalls(window, course.tol):
            anneal_from = state.step
    elif state.step >= anneal_from + course.anneal_steps(anneal_from):
        outcome = "converged"
    return replace(state, anneal_from=anneal_from, outcome=outcome)


def _step(course: Course, state: Walk, mean: Array, second_moment: Array) -> Walk:
    chosen = course.minibatch(state.step)

    slopes: list[Array] = []

    def piece(rows: slice) -> tuple[Statistics, Array]:
        block = course.pixels.pick(chosen[rows])
        z, reach = features_and_reach(
            block, state.frequencies, state.signal_variance, second_moment
        )
        xi = tight_xi(z, reach)
        statistics = block_statistics(z, block, xi)
        return statistics, frequency_gradient(feature_gradient(reach, block, xi, mean), z, block.x)

    def pieces() -> Iterator[Statistics]:
        threads = course.pixels.threads
        for part, slope in map_blocks(piece, len(chosen), PIECE_ROWS, threads, course.pool):
            slopes.append(slope.astype(np.float64))
            yield part

    statistics = add_up(pieces())
    slope = np.sum(slopes, axis=0)
    step = state.step + 1
    rho = max(step**-0.6, LEAST_RHO)
    state = replace(
        state,
        step=step,
        gram=(1.0 - rho) * state.gram + (rho * course.scale) * statistics.gram,
        projected=(1.0 - rho) * state.projected + (rho * course.scale) * statistics.projected,
    )
    return _move(course, state, slope)


def _move(course: Course, state: Walk, slope: Array) -> Walk:
    """Take Adam's step: in the features' scales, and in each frequency where they are learned."""
    share = course.step_share(state.step, state.anneal_from)
    stretch = np.sum(slope * state.frequencies, axis=0)
    if not course.learn_frequencies:
        # One lengthscale for all features: RFF-GPC's frequencies keep their directions.
        stretch = np.full_like(stretch, stretch.sum())
    scale_momentum, scale_energy, direction = _adam(
        state.scale_momentum, state.scale_energy, stretch, state.step
    )
    growth = np.exp(SCALE_STEP * share * direction)
    frequencies, lengthscale = state.frequencies * growth, state.lengthscale
    momentum, energy = state.momentum, state.energy
    if course.learn_frequencies:
        momentum, energy, direction = _adam(momentum, energy, slope, state.step)
        frequencies = frequencies + FREQUENCY_STEP * state.unit * share * direction
    else:
        lengthscale /= float(growth[0])
    return replace(
        state,
        frequencies=frequencies,
        lengthscale=lengthscale,
        momentum=momentum,
        energy=energy,
        scale_momentum=scale_momentum,
        scale_energy=scale_energy,
    )


def _adam(momentum: Array, energy: Array, slope: Array, step: int) -> tuple[Array, Array, Array]:
    """Return Adam's moments after ``slope``, and its direction, of size about 1."""
    momentum = DECAY_MEAN * momentum + (1.0 - DECAY_MEAN) * slope
    energy = DECAY_SQUARE * energy + (1.0 - DECAY_SQUARE) * slope**2
    size = np.sqrt(energy / (1.0 - DECAY_SQUARE**step)) + np.finfo(np.float64).tiny
    return momentum, energy, momentum / (1.0 - DECAY_MEAN**step) / size


def _follow_variance(state: Walk, moments: Moments) -> Walk:
    """Move γ towards its fixed point, damped, and the statistics with it."""
    ratio = moments.variance_ratio**VARIANCE_DAMPING
    ratio = min(ratio, LEARNING_VARIANCE_LIMIT / state.signal_variance)
    moved = state.statistics.rescale(ratio)
    return replace(
        state,
        signal_variance=state.signal_variance * ratio,
        gram=moved.gram,
        projected=moved.projected,
    )
