r"""Frequencies learned on minibatches, by natural-gradient variational inference and Adam.

The posterior of the weights is kept as running sums of the rows' sites, estimated as if all data
looked like the recent minibatches of :math:`B` rows,

.. math:: G \leftarrow (1 - \rho)\, G + \rho \tfrac{n}{B} Z^\top \mathrm{diag}(2 s \lambda) Z,
    \qquad h \leftarrow (1 - \rho)\, h + \rho \tfrac{n}{B} Z^\top (s v),

with :math:`s` their weights and :math:`v = y - \tfrac12`, which is a natural-gradient step in the
paper's bound. Its gradient in the frequencies (:mod:`undulatus.gp.gradients`) comes from the same
product :math:`Z A^{-1}` that gives :math:`\xi`, and feeds Adam; the signal variance follows its
fixed point. The time does not grow with the data.

After every iteration of 25 minibatches the loss of validation rows is computed. When it stalls,
or when the steps run out (later while it still falls fast), the step size is annealed to zero.
When it gets worse the optimisation ends: it has begun to learn noise. The best parameters on the
way, those at the start included, are remembered.

:class:`Batch` takes the steps of M estimators at once, whose arrays have one more axis in front,
and one for the C latent functions after that. On the processor M is 1 and estimators learn in
threads of their own; on a device all learn together. A minibatch depends on the seed and the step
alone, so an optimisation that was interrupted continues as if it had not been.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from undulatus.errors import NumericalError
from undulatus.gp.backends import Array
from undulatus.gp.backends.numpy import SINGLE_PHASE_LIMIT
from undulatus.gp.cholesky import JITTER_LADDER
from undulatus.gp.data import Block, Pixels
from undulatus.gp.gradients import bound_gradient
from undulatus.gp.inference import Ascended, AscentConfig, Gaussian, WeightSpace, fit_quadratic
from undulatus.gp.likelihood import quadratic_sites
from undulatus.gp.posterior import solve_posterior
from undulatus.gp.splits import Split, validation_loss
from undulatus.gp.taper import frequency_deviations, tapered_features


@dataclass(frozen=True)
class Config:
    """How frequencies are learned on minibatches."""

    batch_size: int
    """Rows in a minibatch."""
    max_iter: int
    """Most iterations."""
    tol: float
    """The loss has stalled when it falls by less than this share of itself in an iteration."""
    n_total: int
    """Number of rows that the posterior is scaled to."""
    learn_frequencies: bool = True
    """Whether frequencies are learned, or only one lengthscale of theirs."""
    early_stopping: bool = True
    """Whether the validation loss ends the optimisation when it gets worse."""
    taper: float = 0.0
    """Deviation of frequencies, as a share of their size."""
    start_rows: int = 8192
    """Most rows that the posterior at the start is found from."""
    start_passes: int = 4
    """Passes over these rows that find the posterior at the start."""
    steps_per_iteration: int = 25
    """Minibatches in an iteration."""
    epochs: int = 10
    """How often an optimisation is planned to see each row."""
    fewest_iterations: int = 12
    """Fewest iterations that an optimisation is planned for."""
    more_epochs: int = 15
    """How often an optimisation whose loss still falls may see each row."""
    still_falls: float = 0.05
    """The loss still falls if its mean over the later half of the iterations is lower than that
    over the first half by this share."""
    piece_rows: int = 1024
    """Rows of a minibatch that one thread handles at a time, whatever the number of threads."""
    most_threads: int = 4
    """Threads that share a minibatch, at most. With more, handing work over takes longer."""
    covariance_rows: int = 512
    """Rows of a minibatch that are multiplied by the covariance of the weights, which is most of
    the work. They stand for the others in what depends on it."""
    frequency_step: float = 0.085
    """Largest step of a frequency, as a share of the starting frequencies' root mean square."""
    scale_step: float = 0.01
    """Largest step of the logarithm of a feature's scale."""
    mean_decay: float = 0.9
    """Adam's decay rate of the mean of the gradient."""
    square_decay: float = 0.99
    """Adam's decay rate of the mean of the gradient's square."""
    weight_decay: float = 0.6
    """The weight of a minibatch in the running sums is the step's number to the power of minus
    this, if that is not below the smallest weight."""
    smallest_weight: float = 0.1
    """Smallest weight of a minibatch in the running sums."""
    steps_per_factorisation: int = 4
    """Minibatches between two factorisations of the running posterior."""
    variance_exponent: float = 0.1
    """Exponent of the factor by which the signal variance follows its fixed point."""
    variance_limit: float = 100.0
    """Highest signal variance while frequencies move: a prior deviation of 10 in the logit.
    Beyond it features cancel each other, and a small step throws the posterior off."""
    anneal_share: float = 0.4
    """Share of all steps over which the step size falls to zero."""
    stall_window: int = 16
    """Iterations whose mean loss is compared with that of as many before, to see whether it has
    stalled, while frequencies are learned."""
    stall_window_fixed: int = 2
    """The same number of iterations where only the lengthscale is learned."""
    smoothing: int = 3
    """Losses averaged to find the best parameters."""
    worsening_window: int = 8
    """Losses after the smallest one whose median says whether the loss has got worse."""
    worsening_factor: float = 1.1
    """The loss has got worse when that median exceeds this times the smallest loss."""
    far_share: float = 0.25
    """Phases on a device are in double precision if one reaches this share of where single
    precision ends: frequencies move before it is looked at again."""

    def anneal_steps(self, anneal_from: int) -> int:
        """Return over how many steps the step size falls, a whole number of iterations."""
        share = self.anneal_share / (1.0 - self.anneal_share)
        iterations = max(round(share * anneal_from / self.steps_per_iteration), 1)
        return iterations * self.steps_per_iteration

    def planned_steps(self, epochs: int, n_rows: int) -> int:
        """Return how many steps show each of ``n_rows`` rows ``epochs`` times.

        Within the limits on iterations.
        """
        size = min(self.batch_size, n_rows)
        iterations = -(-epochs * n_rows // (size * self.steps_per_iteration))
        iterations = min(max(iterations, self.fewest_iterations), self.max_iter)
        return iterations * self.steps_per_iteration


# The state of one estimator


@dataclass(frozen=True)
class Start:
    """Where a fit starts: unit frequencies w (D, d), lengthscale σ, signal variance γ."""

    unit_frequencies: Array
    lengthscale: float
    signal_variance: float = 1.0

    @property
    def frequencies(self) -> Array:
        """Effective frequencies w/σ, (D, d)."""
        return self.unit_frequencies / self.lengthscale


@dataclass(frozen=True)
class Parameters:
    """What is learned: hyperparameters, and the running sums of sites at unit features.

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

    def gaussians(self) -> list[Gaussian]:
        """Return the posterior of each latent function under the running sums."""
        found = []
        for variance, gram, projected in zip(
            self.signal_variances.tolist(), self.gram, self.projected, strict=True
        ):
            precision = variance * gram + np.eye(len(gram))
            posterior = solve_posterior(precision, np.sqrt(variance) * projected)
            found.append(Gaussian(variance, posterior=posterior))
        return found


def scaled_sums(ends: Sequence[Ascended], scale: float) -> tuple[Array, Array, Array]:
    """Return signal variances (C,), and sums of sites (C, k, k) and (C, k) times a scale."""
    gaussians = [end.gaussian for end in ends]
    return (
        np.array([own.signal_variance for own in gaussians]),
        np.array([own.sites.gram * scale for own in gaussians]),
        np.array([own.sites.projected * scale for own in gaussians]),
    )


@dataclass(frozen=True)
class AdamState:
    """Adam's running means of a gradient and of its square."""

    mean: Array
    square: Array


@dataclass(frozen=True)
class State:
    """An optimisation in progress: all that is needed to continue it.

    ``best`` are the parameters with the lowest smoothed loss, ``best_loss``, reached after
    ``best_iter`` iterations; before the first, they are those at the start. ``losses`` holds the
    loss of validation rows after each iteration.
    """

    step: int
    parameters: Parameters
    best: Parameters
    frequency_adam: AdamState
    """Of the frequencies, (D, d)."""
    scale_adam: AdamState
    """Of the logarithms of the features' scales, (d,)."""
    losses: Array
    seed: int
    """Of the order of minibatches."""
    frequency_unit: float
    """Root mean square of the starting frequencies."""
    best_loss: float = np.inf
    best_iter: int = 0
    anneal_from: int | None = None
    """Step from which the step size falls."""
    outcome: str = "max_iter"

    @property
    def n_iter(self) -> int:
        """Iterations done."""
        return len(self.losses)

    @property
    def progress_text(self) -> str:
        """What a line of progress says."""
        return f"validation NLL {self.losses[-1]:.4f}"


# One estimator's rows


@dataclass
class Task:
    """The rows that one estimator learns from and validates on, and where it starts."""

    pixels: Pixels
    """In memory, standardised."""
    split: Split
    start: Start
    config: Config
    seed: int
    resume: State | None = None
    """Where an earlier optimisation was interrupted."""
    _epoch: int = -1
    _order: Array = field(default_factory=lambda: np.empty(0, dtype=np.int64))

    def __post_init__(self) -> None:
        self.validation: Block = self.pixels.block(self.split[1])
        self.batch_rows = min(self.config.batch_size, len(self.split[0]))

    def first_state(self) -> State:
        """Return the state at the start, whose posterior is that of some rows, scaled to all.

        Of one that was interrupted, it is the state to continue from.
        """
        if self.resume is not None:
            return self.resume
        config, frequencies = self.config, self.start.frequencies
        learning = self.split[0]
        some = self.pixels.take(learning[:: -(-len(learning) // config.start_rows)])
        ends = fit_quadratic(
            WeightSpace(some, frequencies),
            self.start.signal_variance,
            AscentConfig(config.start_passes, variance_limit=config.variance_limit),
        )
        scale = config.n_total / some.n_rows
        parameters = Parameters(frequencies, self.start.lengthscale, *scaled_sums(ends, scale))
        zeros = AdamState(*np.zeros((2, *frequencies.shape)))
        state = State(
            step=0,
            parameters=parameters,
            best=parameters,
            frequency_adam=zeros,
            scale_adam=AdamState(zeros.mean[0], zeros.square[0]),
            losses=np.empty(0),
            seed=self.seed,
            frequency_unit=float(np.sqrt(np.mean(frequencies**2))),
        )
        # Without a step, but with the jitter that the first factorisation may need on a device.
        return replace(state, best_loss=Batch([self], [state]).losses_after(0)[0])

    def minibatch(self, step: int) -> Array:
        """Return the row numbers of minibatch ``step``, counted from 0."""
        learning, size = self.split[0], self.batch_rows
        epoch, place = divmod(step, len(learning) // size)
        if self._epoch != epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([self.seed, epoch]).permutation(len(learning))
        return learning[self._order[place * size : (place + 1) * size]]

    def record(self, state: State, loss: float) -> State:
        """Return the state with one more loss, and what it means for the step size and the end."""
        config, losses = self.config, np.append(state.losses, loss)
        n = len(losses)
        smoothed = [losses[max(0, end - config.smoothing) : end].mean() for end in range(1, n + 1)]
        state = replace(state, losses=losses)
        if smoothed[-1] < state.best_loss:
            state = replace(
                state, best=state.parameters, best_loss=float(smoothed[-1]), best_iter=n
            )
        lowest = int(np.argmin(smoothed))
        if config.early_stopping and n - lowest > config.worsening_window:
            # The median: full steps give an outlying loss now and then.
            median = np.median(losses[-config.worsening_window :])
            if median > config.worsening_factor * smoothed[lowest]:
                return replace(state, outcome="converged")
        if state.anneal_from is not None:
            annealed = state.step >= state.anneal_from + config.anneal_steps(state.anneal_from)
            return replace(state, outcome="converged") if annealed else state
        window = config.stall_window if config.learn_frequencies else config.stall_window_fixed
        stalled = False
        if n >= 2 * window:
            before, now = losses[-2 * window : -window].mean(), losses[-window:].mean()
            stalled = before - now < config.tol * window * now
        # While the loss still falls there are more steps; annealing must end with the last one.
        half, epochs = n // 2, config.epochs
        if half and losses[half:].mean() < (1.0 - config.still_falls) * losses[:half].mean():
            epochs = config.more_epochs
        later = state.step + config.steps_per_iteration
        end = later + config.anneal_steps(later)
        if stalled or end > config.planned_steps(epochs, len(self.split[0])):
            return replace(state, anneal_from=state.step)
        return state


def optimise(
    tasks: Sequence[Task],
    states: Sequence[State],
    *,
    max_iter: int,
    interruptible: bool = False,
    reports: Sequence[Callable[[State], None]] | None = None,
) -> list[State]:
    """Return the states in which tasks have ended, or have done ``max_iter`` iterations.

    On a device, all go on together; elsewhere they are one after the other. A task's report
    is called after each of its iterations. If ``interruptible``, a
    KeyboardInterrupt ends all at their last finished iteration.
    """
    states, first = list(states), tasks[0]
    threads = min(first.pixels.threads, first.config.most_threads)
    going = list(range(len(tasks)))

    def is_active(number: int) -> bool:
        return states[number].outcome == "max_iter" and states[number].n_iter < max_iter

    try:
        with ThreadPoolExecutor(threads) if threads > 1 else nullcontext() as pool:
            while going := [i for i in going if is_active(i)]:
                # Those behind go first: one that was resumed may be ahead.
                n_iter = min(states[i].n_iter for i in going)
                group = [i for i in going if states[i].n_iter == n_iter]
                group = group if first.pixels.xp.on_device else group[:1]
                ahead = {states[i].n_iter for i in going} - {n_iter}
                batch = Batch([tasks[i] for i in group], [states[i] for i in group], pool)
                together = group
                # One that has ended goes along unseen, until half of them have.
                while 2 * len(together) > len(group) and n_iter not in ahead:
                    for i, state in zip(group, batch.iterate(), strict=True):
                        if i in together:
                            states[i] = state
                            if reports is not None:
                                reports[i](state)
                    n_iter += 1
                    together = [i for i in together if is_active(i)]
    except KeyboardInterrupt:
        if not (interruptible and all(state.n_iter for state in states)):
            raise
        for i in filter(is_active, range(len(tasks))):
            states[i] = replace(states[i], outcome="interrupted")
    return states


# The steps of several estimators


class Batch:
    """M estimators that have taken equally many steps, and go on together.

    Each has C latent functions over D frequencies in d features. Their parameters are arrays that
    stay where they are, since steps that were recorded on a device change them there.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        states: Sequence[State],
        pool: ThreadPoolExecutor | None = None,
    ) -> None:
        self._tasks, self._states, self._pool = list(tasks), list(states), pool
        first = tasks[0]
        self._config = first.config
        self._pixels = first.pixels
        xp = self._pixels.xp
        # Estimators may have fewer rows to learn from than a minibatch is to have.
        self._batch_rows = min(task.batch_rows for task in tasks)
        learned = [
            (
                own.parameters.frequencies,
                own.parameters.signal_variances,
                own.parameters.gram,
                own.parameters.projected,
                own.frequency_adam.mean,
                own.frequency_adam.square,
                own.scale_adam.mean,
                own.scale_adam.square,
            )
            for own in states
        ]
        self._learned = [
            xp.stack([xp.move(own) for own in each]) for each in zip(*learned, strict=True)
        ]
        self._frequencies, self._variances, self._gram, self._projected, *adam = self._learned
        self._adam, self._scale_adam = adam[:2], [own[:, None] for own in adam[2:]]
        if xp.on_device:
            # Phases need double precision if rows reach far, or might before long.
            longest = float((self._pixels.rows**2).sum(-1).max()) ** 0.5
            fastest = float((self._frequencies**2).sum(-1).max()) ** 0.5
            far = longest * fastest > self._config.far_share * SINGLE_PHASE_LIMIT
            self._pixels = replace(self._pixels, xp=replace(xp, double_phases=far))
        self._xp = xp = self._pixels.xp
        self._lengthscales = xp.move(np.array([own.parameters.lengthscale for own in states]))
        self._units = xp.move(np.array([own.frequency_unit for own in states]))[:, None, None]
        m, c, k = self._projected.shape
        # Of the weights of unit features: √γ m and γ A⁻¹.
        self._mean = xp.array(np.zeros((m, c, k)))
        self._covariance = xp.array(np.zeros((m, c, k, k)))
        self._ratio = xp.move(np.ones((m, c)))
        steps = self._config.steps_per_iteration
        self._order = xp.move(np.zeros((steps, m, self._batch_rows), dtype=np.int64))
        # Of each step: its number, the weight of its minibatch, the share of the full step size.
        self._numbers = xp.move(np.ones((steps, 3, m)))
        self._next = xp.move(np.zeros(1, dtype=np.int64))
        self._jitter = xp.move(np.zeros(1))
        self._eye = xp.move(np.eye(k))
        moments = (self._mean, self._covariance, self._ratio)
        self._changing = [*self._learned, self._lengthscales, *moments, self._next]
        self._recorded: tuple[Callable[[], None], ...] = ()
        self._find_moments()

    # An iteration

    def iterate(self) -> list[State]:
        """Return the states of all estimators after one more iteration."""
        config, first = self._config, self._states[0].step + 1
        # Of the coming steps: their rows, their numbers, the weights of their minibatches (ρ), and
        # the shares of the full step size.
        for row, step in enumerate(range(first, first + config.steps_per_iteration)):
            chosen = [task.minibatch(step - 1)[: self._batch_rows] for task in self._tasks]
            shares = np.ones(len(self._states))
            for estimator, state in enumerate(self._states):
                if state.anneal_from is not None:
                    done, steps = step - state.anneal_from, config.anneal_steps(state.anneal_from)
                    shares[estimator] = 0.5 * (1.0 + np.cos(np.pi * done / steps))
            rho = max(step**-config.weight_decay, config.smallest_weight)
            numbers = np.stack([np.full_like(shares, step), np.full_like(shares, rho), shares])
            self._order[row] = self._xp.move(np.array(chosen))
            self._numbers[row] = self._xp.move(numbers)
        losses = self.losses_after(config.steps_per_iteration)
        if not np.isfinite(losses).all():
            raise NumericalError(self._gram.shape[-1])
        states = []
        for estimator, (task, state) in enumerate(zip(self._tasks, self._states, strict=True)):
            lengthscale = state.parameters.lengthscale
            if not config.learn_frequencies:
                lengthscale = float(self._lengthscales[estimator])
            # Copies: the next steps change the arrays.
            frequencies, variances, gram, projected, *adam = (
                1.0 * array[estimator] for array in self._learned
            )
            after = replace(
                state,
                step=state.step + config.steps_per_iteration,
                parameters=Parameters(frequencies, lengthscale, variances, gram, projected),
                frequency_adam=AdamState(*adam[:2]),
                scale_adam=AdamState(*adam[2:]),
            )
            states.append(task.record(after, losses[estimator]))
        self._states = states
        return states

    def losses_after(self, steps: int) -> list[float]:
        """Return the losses of validation rows after more steps, planned in ``_order``.

        On a device they are repeated with as much jitter as factorisations need.
        """
        xp, config, first = self._xp, self._config, self._states[0].step + 1
        if steps and not self._recorded:
            move = partial(self._find_moments, move_variances=True)
            parts = (self._take_step, move, self._find_moments)
            self._recorded = tuple(xp.repeated(own, self._changing) for own in parts)
        before = [array.clone() for array in self._changing] if xp.on_device else []
        for jitter in JITTER_LADDER if xp.on_device else (0.0,):
            if jitter:
                for array, old in zip(self._changing, before, strict=True):
                    array.copy_(old)
                self._jitter.fill_(jitter)
                self._find_moments()
            self._next[0] = 0
            for step in range(first, first + steps):
                take_step, move_variances, find_moments = self._recorded
                take_step()
                if step % config.steps_per_factorisation == 0:
                    move_variances()
                elif step == first + steps - 1:
                    find_moments()
            losses = self.losses()
            if np.isfinite(losses).all():
                break
        return losses

    def losses(self) -> list[float]:
        """Return the losses of the estimators' validation rows."""
        config, xp = self._config, self._xp
        losses = []
        with xp.products():
            for i, task in enumerate(self._tasks):
                block, frequencies = replace(task.validation, xp=xp), self._frequencies[i]
                deviations = frequency_deviations(frequencies, config.taper, xp)
                moments = self._variances[i], self._mean[i], self._covariance[i]
                losses.append(validation_loss(block, frequencies, deviations, *moments))
        return losses

    # What is repeated

    def _take_step(self) -> None:
        """Take one minibatch: update the running sums, move the frequencies."""
        config, xp = self._config, self._xp
        chosen = self._order[self._next][0]
        number, rho, share = self._numbers[self._next][0][..., None, None]
        size = self._batch_rows if xp.on_device else config.piece_rows
        pieces = [slice(i, i + size) for i in range(0, self._batch_rows, size)]
        run = self._pool.map if self._pool and len(pieces) > 1 else map
        parts = list(run(lambda rows: self._sums(chosen[:, rows]), pieces))
        gram, projected, gradient = (sum(part[i] for part in parts) for i in range(3))
        row_weight = config.n_total / self._batch_rows
        for running, new, weight in (
            (self._gram, gram, rho[..., None]),
            (self._projected, projected, rho),
        ):
            running *= 1.0 - weight
            new *= weight * row_weight
            running += new
        # Adam's step in the features' scales, and in each frequency if they are learned.
        in_scales = (gradient * self._frequencies).sum(-2, keepdims=True)
        if not config.learn_frequencies:
            # RFF-GPC: one lengthscale for all features, so that frequencies keep their directions.
            in_scales = xp.zeros_like(in_scales) + in_scales.sum(-1, keepdims=True)
        direction = self._direction(self._scale_adam, in_scales, number)
        growth = xp.exp(config.scale_step * share * direction)
        self._frequencies *= growth
        if config.learn_frequencies:
            direction = self._direction(self._adam, gradient, number)
            self._frequencies += config.frequency_step * self._units * share * direction
        self._lengthscales /= growth[:, 0, 0]
        self._next += 1

    def _sums(self, chosen: Array) -> tuple[Array, Array, Array]:
        """Return sums of some rows (M, n): Gram matrices, Zᵗ(sv), and the gradient (M, D, d)."""
        config, xp = self._config, self._xp
        deviations = frequency_deviations(self._frequencies, config.taper, xp)
        with xp.products():
            block = self._pixels.block(chosen)
            z, untapered = tapered_features(block.x, self._frequencies, deviations, xp)
            rows = z.shape[-2]
            sampled = -(
                -rows * config.covariance_rows // max(self._batch_rows, config.covariance_rows)
            )
            grams, projections, gradient = [], [], xp.zeros_like(self._frequencies)
            for latent in range(self._variances.shape[1]):
                v, mean = block.targets(latent), self._mean[:, latent]
                product = xp.multiply(z[:, :sampled], self._covariance[:, latent])
                # The mean variance of the first rows stands for that of the others.
                variance = xp.empty_like(untapered)
                variance[:, :sampled] = xp.maximum(xp.row_dots(product, z[:, :sampled]), 0.0)
                variance[:, sampled:] = xp.mean(variance[:, :sampled], axis=-1)[:, None]
                variance += xp.astype(self._variances[:, latent, None], z.dtype) * untapered
                sites = quadratic_sites((z @ mean[..., None])[..., 0], variance, 2.0 * v, xp)
                residual, precision = block.weight * sites.residual, block.weight * sites.precision
                gradient = gradient + xp.double(
                    bound_gradient(z, block.x, residual, precision, mean, product, xp)
                )
                grams.append(xp.gram(z, precision))
                target = (block.weight * v)[..., None]
                projections.append(xp.double((z.mT @ target)[..., 0]))
        gram, projected = (xp.stack(own).swapaxes(0, 1) for own in (grams, projections))
        return gram, projected, gradient

    def _direction(self, adam: list[Any], gradient: Any, step: Any) -> Any:
        """Update Adam's means in place; return the direction to step in, of size about 1."""
        decays = (self._config.mean_decay, self._config.square_decay)
        for running, decay, new in zip(adam, decays, (gradient, gradient**2), strict=True):
            running *= decay
            running += (1.0 - decay) * new
        mean, square = (
            running / (1.0 - decay**step) for running, decay in zip(adam, decays, strict=True)
        )
        return mean / (self._xp.sqrt(square) + float(np.finfo(np.float64).tiny))

    def _find_moments(self, *, move_variances: bool = False) -> None:
        """Find the moments of the weights under the running sums: A = I + γG, A m = √γ h.

        Before that, each γ may be moved towards its fixed point (tr A⁻¹ + mᵗm) / k, damped.
        """
        xp, config = self._xp, self._config
        if move_variances:
            limit = config.variance_limit / self._variances
            self._variances *= xp.minimum(self._ratio**config.variance_exponent, limit)
        variance = self._variances[..., None]
        precisions = variance[..., None] * self._gram + self._eye
        projected = xp.sqrt(variance) * self._projected
        mean, covariance = xp.weight_moments(precisions, projected, self._jitter)
        trace = covariance.diagonal(0, -2, -1).sum(-1)
        self._ratio[...] = (trace + (mean * mean).sum(-1)) / mean.shape[-1]
        self._mean[...] = xp.sqrt(variance) * mean
        self._covariance[...] = variance[..., None] * covariance
