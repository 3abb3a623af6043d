"""The batch solver, the paper's Algorithm 1, for RFF-GPC and VFF-GPC.

Each outer iteration updates ξ a few times and takes a few quasi-Newton steps on the
hyperparameters θ, until the bound stalls. :func:`maximise` is that loop for any evidence bound,
also that of the exact classifier; :class:`FourierEvidence` is the bound in feature space;
:func:`fit_batch` fits with the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from scipy.optimize import minimize

from undulatus.gp.backends import Array, to_host
from undulatus.gp.data import Block, Pixels
from undulatus.gp.gradients import bound_gradient
from undulatus.gp.inference import (
    VARIANCE_LIMITS,
    AscentConfig,
    Gaussian,
    PosteriorConfig,
    WeightSpace,
    fit_posteriors,
    fit_quadratic,
    stall_limit,
    unit_moments,
)
from undulatus.gp.likelihood import QUADRATIC, Bound
from undulatus.gp.minibatch import Start
from undulatus.gp.posterior import FourierFit, mean_of
from undulatus.gp.splits import Split, validation_loss
from undulatus.gp.taper import frequency_deviations, tapered_features


@dataclass(frozen=True)
class BatchConfig:
    """How the bound is maximised in hyperparameters θ and local parameters ξ."""

    max_iter: int
    tol: float
    """The ascent ends when an iteration raises the bound by less than this share of its size."""
    updates_xi: int = 3
    """Updates of ξ in an outer iteration: each costs one pass, a step on θ two."""
    inner_steps: int = 10
    """Quasi-Newton steps on θ in an outer iteration."""
    patience: int = 5
    """With validation rows, the ascent ends after so many iterations without a lower loss."""


LENGTHSCALE_FACTOR = 1e3
"""How far the lengthscale of fixed frequencies may move from its start, either way."""

START_PASSES = 4
"""Passes before the first iteration: steps on θ are wasted while ξ is far from its best."""


class Evidence(Protocol):
    """A bound on the log evidence in hyperparameters θ and local parameters ξ, which it stores."""

    limits: list[tuple[float, float]]
    """Lowest and highest value of each hyperparameter."""

    def update_xi(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        ...

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound and its gradient at θ, with ξ fixed."""
        ...


@dataclass(frozen=True)
class Progress:
    """The state of an ascent.

    ``outcome`` is ``"converged"``, ``"max_iter"`` or ``"interrupted"``; ``bounds`` holds the
    bound after each outer iteration. With validation rows, ``losses`` holds their loss at the
    start and after each iteration, and ``best_theta`` the hyperparameters of the lowest.
    """

    theta: Array
    bounds: tuple[float, ...] = ()
    outcome: str = "max_iter"
    losses: tuple[float, ...] = ()
    best_theta: Array | None = None

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return len(self.bounds)


def maximise(
    evidence: Evidence,
    progress: Progress,
    config: BatchConfig,
    *,
    validation_loss: Callable[[Array], float] | None = None,
    interruptible: bool = True,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Raise the evidence until the bound grows by less than ``tol`` of its size.

    ``validation_loss`` is a function of θ; the ascent also ends when it has not fallen for some
    iterations. ``report`` is called after every outer iteration, with a state that is enough,
    together with ξ, to continue from. If ``interruptible``, a KeyboardInterrupt ends the ascent at
    the last finished iteration.
    """

    def with_loss(progress: Progress) -> Progress:
        if validation_loss is None:
            return progress
        losses = (*progress.losses, validation_loss(progress.theta))
        iterations_since_best = len(losses) - 1 - int(np.argmin(losses))
        return replace(
            progress,
            losses=losses,
            best_theta=progress.theta if losses[-1] <= min(losses) else progress.best_theta,
            outcome="converged" if iterations_since_best >= config.patience else progress.outcome,
        )

    try:
        if not progress.losses:
            progress = with_loss(progress)
        while progress.outcome != "converged" and progress.n_iter < config.max_iter:
            progress = with_loss(_iterate(evidence, progress, config))
            report(progress)
    except KeyboardInterrupt:
        if not (interruptible and progress.bounds):
            raise
        progress = replace(progress, outcome="interrupted")
    return progress


def _iterate(evidence: Evidence, progress: Progress, config: BatchConfig) -> Progress:
    for _ in range(config.updates_xi):
        bound = evidence.update_xi(progress.theta)
    unit = 1.0 / max(abs(bound), 1.0)
    best = (bound, progress.theta)

    def loss(theta: Array) -> tuple[float, Array]:
        nonlocal best
        value, gradient = evidence.value_and_gradient(theta)
        if value > best[0]:
            best = (value, theta.copy())
        return -value * unit, -gradient * unit

    # Keep the best point evaluated, not the result: after a failed line search L-BFGS-B
    # returns the start of the line with the value at its end.
    minimize(
        loss,
        progress.theta,
        jac=True,
        method="L-BFGS-B",
        bounds=evidence.limits,
        options={
            "maxiter": config.inner_steps,
            "maxls": 5,
            "ftol": 0.01 * config.tol,
            "gtol": 0.0,
        },
    )
    bound, theta = best
    bounds = (*progress.bounds, bound)
    stalled = len(bounds) > 1 and bound - bounds[-2] < stall_limit(bound, config.tol)
    return replace(
        progress, theta=theta, bounds=bounds, outcome="converged" if stalled else "max_iter"
    )


@dataclass(frozen=True)
class LocalParameters:
    """The quadratic bound of every row at its ξ: what stays fixed while θ moves."""

    precision: Array
    """2 λ(ξ), (C, n)."""
    offsets: Array
    """Sum over rows of what the bound has beside f, (C,)."""


class FourierEvidence:
    """The bound of a Bayesian linear model over Fourier features, in θ and ξ.

    θ is (log γ, log σ) when the frequencies are fixed (RFF-GPC), and (log γ, w) when they are
    learned (VFF-GPC); the effective frequencies are then w/σ with σ fixed at its start, since
    only the ratio matters. With more than two classes there are C latent functions, each with its
    log γ and ξ, and their bounds are added.
    """

    def __init__(
        self, pixels: Pixels, start: Start, learn_frequencies: bool, local: LocalParameters
    ) -> None:
        self.pixels = pixels
        self.start = start
        self.learn_frequencies = learn_frequencies
        self.local = local
        self.n_latents = pixels.n_latents
        variance = (np.log(VARIANCE_LIMITS[0]), np.log(VARIANCE_LIMITS[1]))
        self.limits = [variance] * self.n_latents
        if learn_frequencies:
            self.limits += [(-np.inf, np.inf)] * start.unit_frequencies.size
        else:
            sigma, range_ = float(np.log(start.lengthscale)), np.log(LENGTHSCALE_FACTOR)
            self.limits.append((sigma - range_, sigma + range_))
        self._solved: tuple[Array, list[Gaussian]] | None = None

    def start_theta(self, signal_variances: Sequence[float]) -> Array:
        """Return the hyperparameters θ at the start, with the signal variances given."""
        log_variances = np.log(signal_variances)
        if self.learn_frequencies:
            return np.concatenate([log_variances, self.start.unit_frequencies.ravel()])
        return np.append(log_variances, np.log(self.start.lengthscale))

    def lengthscale(self, theta: Array) -> float:
        """Return σ at θ."""
        return self.start.lengthscale if self.learn_frequencies else float(np.exp(theta[-1]))

    def frequencies(self, theta: Array) -> Array:
        """Return the effective frequencies at θ, (D, d)."""
        unit = self.start.unit_frequencies
        if self.learn_frequencies:
            unit = theta[self.n_latents :].reshape(unit.shape)
        return unit / self.lengthscale(theta)

    def signal_variances(self, theta: Array) -> list[float]:
        """Return γ of each latent function at θ."""
        return [float(np.exp(own)) for own in theta[: self.n_latents]]

    def gaussians(self, theta: Array) -> list[Gaussian]:
        """Return the posterior of each latent function at θ and the current ξ."""
        if self._solved is None or not np.array_equal(self._solved[0], theta):
            self._solve(theta, None, [Gaussian(1.0)] * self.n_latents)
        assert self._solved is not None
        return self._solved[1]

    def _solve(self, theta: Array, bound: Bound | None, gaussians: list[Gaussian]) -> list[float]:
        """Keep the posteriors of the sites at some Gaussians; return the values of the rows."""
        space = WeightSpace(
            self.pixels, self.frequencies(theta), precisions=list(self.local.precision)
        )
        sites, values = zip(*space.evaluate(bound, range(self.n_latents), gaussians), strict=True)
        solved = map(space.solve, range(self.n_latents), sites, self.signal_variances(theta))
        self._solved = theta.copy(), list(solved)
        return list(values)

    def bound(self, theta: Array) -> float:
        """Return the bound at θ and the current ξ."""
        space = WeightSpace(self.pixels, self.frequencies(theta))
        evidence = sum(space.log_evidence(own) for own in self.gaussians(theta))
        return float(evidence + np.sum(self.local.offsets))

    def update_xi(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        self.local.offsets[:] = self._solve(theta, QUADRATIC, self.gaussians(theta))
        return self.bound(theta)

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound and its gradient at θ, with ξ fixed."""
        gaussians, frequencies = self.gaussians(theta), self.frequencies(theta)
        in_frequencies = evidence_gradient(
            self.pixels, frequencies, gaussians, self.local.precision
        )
        if self.learn_frequencies:
            rest = (in_frequencies / self.lengthscale(theta)).ravel()
        else:
            # Effective frequencies are w/σ: a step in log σ shrinks each by that share.
            rest = np.array([-np.sum(in_frequencies * frequencies)])
        # In log γ: (tr A⁻¹ + mᵗm - k) / 2.
        in_variances = [
            0.5 * float(np.sum(own.root**2) + own.mean @ own.mean - len(own.mean))
            for own in (gaussian.posterior for gaussian in gaussians)
        ]
        return self.bound(theta), np.concatenate([in_variances, rest])

    def validation_loss(self, block: Block, theta: Array) -> float:
        """Return the loss of validation rows under the posteriors at θ."""
        variances, *moments = unit_moments(self.gaussians(theta))
        return validation_loss(
            block, self.frequencies(theta), None, variances, *map(block.xp.move, moments)
        )


def evidence_gradient(
    pixels: Pixels, frequencies: Array, gaussians: Sequence[Gaussian], precision: Array
) -> Array:
    """Return the gradient of the quadratic bound in the frequencies, (D, d), at fixed ξ.

    The posteriors must be those at these frequencies and precisions 2λ(ξ), (C, n); the gradients
    of all latent functions are added.
    """
    moments = [pixels.xp.array(own) for own in unit_moments(gaussians)[1:]]
    [gradient] = pixels.total(_block_gradient, frequencies, *moments, precision)
    return np.asarray(gradient)


def _block_gradient(
    block: Block, frequencies: Array, means: Array, covariances: Array, precision: Array
) -> list[Array]:
    xp = block.xp
    z, _ = tapered_features(block.x, frequencies, None, xp)
    gradient = xp.double(np.zeros(frequencies.shape))
    for own, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        weighted = block.weight * precision[own][block.rows]
        residual = block.weight * block.targets(own) - weighted * (z @ mean)
        product = xp.multiply(z, covariance)
        gradient += xp.double(bound_gradient(z, block.x, residual, weighted, mean, product, xp))
    return [gradient]


# The fit


@dataclass(frozen=True)
class BatchState:
    """A batch fit in progress: all that is needed to continue it."""

    start: Start
    progress: Progress
    local: LocalParameters

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return self.progress.n_iter

    @property
    def progress_text(self) -> str:
        """What a line of progress says."""
        return f"lower bound {self.progress.bounds[-1]:.6g}"


@dataclass
class BatchFit:
    """One estimator's fit by Algorithm 1, from ``start`` or continuing from ``resume``.

    With a ``split``, frequencies are learned on its first rows, and those with the lowest loss on
    the others are used; the posterior is that of all rows, in which features are tapered and
    ``log_odds`` (C,) set the prior means.
    """

    pixels: Pixels
    start: Start
    config: BatchConfig
    learn_frequencies: bool
    posterior: PosteriorConfig
    log_odds: Array
    taper: float = 0.0
    split: Split | None = None
    resume: BatchState | None = None
    interruptible: bool = True
    report: Callable[[BatchState], None] = lambda state: None
    report_pass: Callable[[int, float], None] = lambda done, bound: None


def fit_batch(fit: BatchFit) -> FourierFit:
    """Return the fit; an interruptible one ends at its last iteration or pass at Ctrl-C."""
    learning, loss, learns = fit.pixels, None, fit.learn_frequencies
    if fit.split is not None:
        # Rows that are not learned from get weight zero: no copy of the others is needed.
        learning = fit.pixels.keep_weight_of(fit.split[0])
    state = fit.resume
    if state is None:
        n = learning.n_latents
        local = LocalParameters(learning.xp.array(np.zeros((n, learning.n_rows))), np.zeros(n))
        space = WeightSpace(learning, fit.start.frequencies, precisions=list(local.precision))
        ends = fit_quadratic(space, fit.start.signal_variance, AscentConfig(START_PASSES))
        variances = [end.gaussian.signal_variance for end in ends]
        start = replace(fit.start, signal_variance=mean_of(variances))
        theta = FourierEvidence(learning, start, learns, local).start_theta(variances)
        state = BatchState(start, Progress(theta), local)
    local = LocalParameters(
        learning.xp.move(1.0 * state.local.precision), 1.0 * state.local.offsets
    )
    evidence = FourierEvidence(learning, state.start, learns, local)
    if fit.split is not None:
        left_out = fit.pixels.take(fit.split[1])
        loss = partial(evidence.validation_loss, left_out.block(slice(0, left_out.n_rows)))
    progress = maximise(
        evidence,
        state.progress,
        fit.config,
        validation_loss=loss,
        interruptible=fit.interruptible,
        report=lambda now: fit.report(BatchState(state.start, now, to_host(local))),
    )
    theta = progress.theta if progress.best_theta is None else progress.best_theta
    frequencies = evidence.frequencies(theta)
    deviations = frequency_deviations(frequencies, fit.taper)
    latents, interrupted = fit_posteriors(
        WeightSpace(fit.pixels, frequencies, deviations, fit.log_odds.tolist()),
        evidence.gaussians(theta),
        fit.posterior,
        interrupted=progress.outcome == "interrupted",
        interruptible=fit.interruptible,
        report=fit.report_pass,
    )
    papers = fit.posterior.bound is QUADRATIC and not (fit.split or fit.taper)
    if papers and len(latents) == 1:
        # The same model's bounds, from the first iteration on.
        latents = (replace(latents[0], bounds=(*progress.bounds, latents[0].bounds[-1])),)
    return FourierFit(
        frequencies,
        evidence.lengthscale(theta),
        latents,
        progress.n_iter,
        "interrupted" if interrupted else progress.outcome,
        progress.losses,
        fit.taper,
    )


def batch_posterior(bound: Bound, tol: float) -> PosteriorConfig:
    """Return how the posterior is found after Algorithm 1."""
    # Steps to conjugate sites are short: one changes little long before the last.
    return PosteriorConfig(bound, max_passes=20, tol=0.1 * tol if bound.conjugate else tol)
