r"""Where a stochastic ascent stands, and what the losses of held-back rows say of it.

Natural-gradient minibatches: frequencies learned in a time that does not grow with the data.

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

from undulatus.gp.blocks import Block, Pixels, PixelSource, map_blocks
from undulatus.gp.bound import (
    Statistics,
    add_up,
    block_statistics,
    feature_gradient,
    features_and_reach,
    tight_xi,
)
from undulatus.gp.fourier import frequency_gradient
from undulatus.gp.passes import (
    COARSENINGS,
    SEARCH_ROWS,
    Fit,
    Settled,
    Start,
    held_back_loss,
    hold_back,
    settle,
    settle_start,
)
from undulatus.gp.posterior import Moments

Array = npt.NDArray[Any]

WINDOW, WINDOW_OF_ONE_SCALE = 16, 2
"""Outer iterations averaged to see whether the held-back likelihood still grows, for learned
frequencies and for a lengthscale alone."""

SMOOTHING = 3
"""Losses averaged to say which place was the best."""

PATIENCE, WORSE = 8, 1.1
"""It gets worse when the median of so many losses after the least is so many times that."""

PLACE = ("frequencies", "lengthscale", "signal_variance", "gram", "projected")
"""What a walk moves, and remembers of its best place as ``best_frequencies`` and so on."""


@dataclass(frozen=True)
class Walk:
    """A stochastic ascent under way: all that is needed to go on from here.

    ``lengthscale`` is that of fixed frequencies, or the one at the start of learned ones;
    ``momentum`` and ``energy`` are Adam's, of the frequencies (D, d) and of the logarithms of
    the features' scales (d,); ``losses`` the mean negative log likelihood of held-back
    rows after each outer iteration; ``anneal_from`` the step from which the step
    size falls, or -1. What begins with ``best`` is from where the smoothed loss was least.

    A walk may begin again, from a coarser start: ``began`` is how many losses are from before.
    """

    step: int
    frequencies: Array
    lengthscale: float
    signal_variance: float
    gram: Array
    projected: Array
    momentum: Array
    energy: Array
    scale_momentum: Array
    scale_energy: Array
    losses: Array
    best_frequencies: Array
    best_signal_variance: float
    best_gram: Array
    best_projected: Array
    best_lengthscale: float
    seed: int
    """Of the rows held back and of the order of minibatches."""
    unit: float
    """Root mean square of the starting frequencies."""
    best_loss: float = np.inf
    best_iter: int = 0
    began: int = 0
    anneal_from: int = -1
    outcome: str = "max_iter"

    @property
    def statistics(self) -> Statistics:
        """The running statistics of the weights."""
        return Statistics(self.gram, self.projected, 0.0)

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return len(self.losses)

    @property
    def told(self) -> str:
        """How far it has come, in words."""
        return f"held-back NLL {self.losses[-1]:.4f}"

    def at_its_best(self) -> Walk:
        """Return the walk as it stood where the smoothed loss was least."""
        return replace(self, **{name: getattr(self, f"best_{name}") for name in PLACE})

    def begin_again(self, fresh: Walk) -> Walk:
        """Return another start with what this walk has seen: its losses, and its best place."""
        names = (f"best_{name}" for name in (*PLACE, "loss", "iter"))
        best = {name: getattr(self, name) for name in names}
        return replace(fresh, losses=self.losses, began=self.n_iter, **best)

    @property
    def smoothed(self) -> Array:
        """Means of the last losses after each iteration since it began."""
        losses = self.losses[self.began :]
        ends = range(1, len(losses) + 1)
        return np.array([losses[max(0, end - SMOOTHING) : end].mean() for end in ends])

    def after(self, loss: float) -> Walk:
        """Return the walk with one more loss, and this place remembered if it is the best."""
        state = replace(self, losses=np.append(self.losses, loss))
        last = float(state.smoothed[-1])
        if last >= self.best_loss:
            return state
        return replace(
            state,
            best_loss=last,
            best_iter=state.n_iter,
            **{f"best_{name}": getattr(self, name) for name in PLACE},
        )

    @property
    def worsens(self) -> bool:
        """Whether held-back rows have become less likely, and stay so."""
        smoothed = self.smoothed
        least = int(np.argmin(smoothed))
        since = self.losses[self.began + least + 1 :]
        if len(since) < PATIENCE:
            return False
        # The median: full steps throw up a bad loss now and then.
        return bool(np.median(since[-PATIENCE:]) > WORSE * smoothed[least])

    def stalls(self, window: int, tol: float) -> bool:
        """Say if the mean of so many losses is hardly below that of as many before."""
        losses = self.losses[self.began :]
        if len(losses) < 2 * window:
            return False
        before, now = losses[-2 * window : -window].mean(), losses[-window:].mean()
        return bool(before - now < tol * window * now)

    @property
    def helped(self) -> bool:
        """Whether its present start has led to the best place so far."""
        return self.best_iter > self.began


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


STOCHASTIC_PASSES = 10
"""Most exact passes after the frequencies were learned on minibatches."""


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
    resume: Walk | None = None,
    report: Callable[[Walk], None] = lambda walk: None,
    report_pass: Callable[[int, float], None] = lambda done, bound: None,
) -> Fit:
    """Learn the frequencies on minibatches, then the posterior on all pixels by exact passes.

    ``pixels`` may be too many for memory: the frequencies are learned on a sample. With
    ``early_stopping`` they are those for which held-back pixels were likeliest.
    """
    seed = int(rng.integers(2**63))
    sample = draw_sample(pixels, rng)
    walked = walk(
        sample,
        start,
        learn_frequencies=learn_frequencies,
        batch_size=batch_size,
        max_iter=max_iter,
        tol=tol,
        early_stopping=early_stopping and learn_frequencies,
        seed=seed,
        n_total=pixels.n_rows,
        resume=resume,
        report=report,
    )
    if early_stopping and learn_frequencies:
        walked = walked.at_its_best()
    settled = settle(
        pixels,
        walked.frequencies,
        walked.signal_variance,
        None,
        passes=STOCHASTIC_PASSES if walked.outcome != "interrupted" else 1,
        # A pass costs as much as hundreds of minibatches, and starts from a near posterior.
        tol=3.0 * tol,
        start=walked.statistics.posterior(),
        interruptible=True,
        report=report_pass,
    )
    return Fit(
        walked.frequencies,
        walked.lengthscale,
        settled.signal_variance,
        settled.posterior,
        settled.bounds,
        walked.n_iter,
        "interrupted" if settled.interrupted else walked.outcome,
        tuple(walked.losses.tolist()),
    )


def draw_sample(pixels: PixelSource, rng: np.random.Generator) -> Pixels:
    """Return pixels to learn frequencies on: all if at hand and few, or a random sample."""
    limit = min(SAMPLE_ROWS, SAMPLE_BYTES // (pixels.n_features * 4))
    if pixels.n_rows <= limit:
        return pixels.gather()
    # A sorted draw without replacement whose memory does not grow with the rows.
    gaps = rng.exponential(size=limit + 1)
    places = np.cumsum(gaps)[:-1] / gaps.sum()
    chosen = np.unique((places * pixels.n_rows).astype(np.int64))
    return pixels.take(chosen)
