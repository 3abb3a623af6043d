"""The paper's Algorithm 1: tighten ξ, take a few steps uphill, repeat until the bound stalls.

RFF-GPC and VFF-GPC: from pixels and frequencies to a posterior over waves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from undulatus.gp.blocks import Block, Pixels
from undulatus.gp.bound import Statistics, accumulate, gradient, log_variance_gradient, tighten
from undulatus.gp.passes import (
    SEARCH_PASSES,
    SETTLE_PASSES,
    VARIANCE_LIMITS,
    Fit,
    Start,
    has_stalled,
    held_back_loss,
    hold_back,
    settle,
)
from undulatus.gp.posterior import Moments, Posterior

Array = npt.NDArray[Any]

INNER_STEPS = 10
"""Quasi-Newton steps on the hyperparameters in an outer iteration."""

TIGHTENINGS = 3
"""Updates of ξ in an outer iteration: each costs one pass, a step on the hyperparameters two."""

PATIENCE = 5
"""With a judge, the ascent ends after so many iterations without a new best."""


class Evidence(Protocol):
    """A bound on the log evidence, in hyperparameters θ and local parameters ξ that it keeps."""

    limits: list[tuple[float, float]]
    """Lowest and highest value of each hyperparameter."""

    def tighten(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        ...

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound at θ and its gradient, ξ held."""
        ...


@dataclass(frozen=True)
class Climb:
    """Where an ascent is, or ended.

    ``outcome`` is ``"converged"``, ``"max_iter"`` or ``"interrupted"``; ``bounds``
    holds the bound after each outer iteration, ``losses`` the judge's word on the start and
    after each, and ``best`` the hyperparameters it liked best.
    """

    theta: Array
    bounds: tuple[float, ...]
    outcome: str = "max_iter"
    losses: tuple[float, ...] = ()
    best: Array | None = None

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return len(self.bounds)


def ascend(
    evidence: Evidence,
    start: Climb,
    *,
    max_iter: int,
    tol: float,
    judge: Callable[[Array], float] | None = None,
    report: Callable[[Climb], None] = lambda climb: None,
) -> Climb:
    """Maximise the bound from ``start`` until it grows by less than ``tol`` of itself.

    A ``judge`` of hyperparameters, least for the best, ends the ascent when it finds nothing
    better for some iterations. ``report`` is called after every outer iteration; what it is
    given is enough, together with ξ, to go on from there. An interrupt ends the ascent at the
    last finished iteration.
    """
    climb = start
    try:
        if judge is not None and not climb.losses:
            climb = _judge(climb, judge)
        while climb.outcome != "converged" and climb.n_iter < max_iter:
            climb = _iterate(evidence, climb, tol)
            if judge is not None:
                climb = _judge(climb, judge)
            report(climb)
    except KeyboardInterrupt:
        if not climb.bounds:
            raise
        climb = replace(climb, outcome="interrupted")
    return climb


def _judge(climb: Climb, judge: Callable[[Array], float]) -> Climb:
    losses = (*climb.losses, judge(climb.theta))
    best = climb.theta if losses[-1] <= min(losses) else climb.best
    gives_up = len(losses) - 1 - int(np.argmin(losses)) >= PATIENCE
    return replace(
        climb, losses=losses, best=best, outcome="converged" if gives_up else climb.outcome
    )


def _iterate(evidence: Evidence, climb: Climb, tol: float) -> Climb:
    for _ in range(TIGHTENINGS):
        before = evidence.tighten(climb.theta)
    unit = 1.0 / max(abs(before), 1.0)

    best = (before, climb.theta)

    def loss(theta: Array) -> tuple[float, Array]:
        nonlocal best
        value, gradient = evidence.value_and_gradient(theta)
        if value > best[0]:
            best = (value, theta.copy())
        return -value * unit, -gradient * unit

    # The best point seen is kept, not what is returned: a failed line search pairs the
    # start of its line with the value of its end.
    minimize(
        loss,
        climb.theta,
        jac=True,
        method="L-BFGS-B",
        bounds=evidence.limits,
        options={"maxiter": INNER_STEPS, "maxls": 5, "ftol": 0.01 * tol, "gtol": 0.0},
    )
    bound, theta = best
    bounds = (*climb.bounds, bound)
    stalled = len(bounds) > 1 and has_stalled(bounds, tol)
    return replace(
        climb, theta=theta, bounds=bounds, outcome="converged" if stalled else "max_iter"
    )


LEAST_ROWS = 30
"""Of fewer rows the batch solver holds none back."""


class FourierEvidence:
    """The bound of a Bayesian linear model over Fourier features, in θ and ξ.

    θ is (log γ, log σ) when the frequencies are fixed, RFF-GPC, and (log γ, w)
    when they are learned, VFF-GPC, whose effective frequencies are w/σ with σ
    as it started (the two only ever act through their ratio).
    """

    def __init__(self, pixels: Pixels, start: Start, learn_frequencies: bool, xi: Array) -> None:
        self.pixels = pixels
        self.start = start
        self.learn_frequencies = learn_frequencies
        self.xi = xi
        variance = (np.log(VARIANCE_LIMITS[0]), np.log(VARIANCE_LIMITS[1]))
        if learn_frequencies:
            self.limits = [variance, *[(-np.inf, np.inf)] * start.unit_frequencies.size]
        else:
            sigma = float(np.log(start.lengthscale))
            self.limits = [variance, (sigma - np.log(1e3), sigma + np.log(1e3))]
        self._solved: tuple[Array, Statistics, Posterior] | None = None

    @property
    def theta(self) -> Array:
        """The hyperparameters at the start."""
        log_variance = np.log(self.start.signal_variance)
        if self.learn_frequencies:
            return np.concatenate([[log_variance], self.start.unit_frequencies.ravel()])
        return np.array([log_variance, np.log(self.start.lengthscale)])

    def lengthscale(self, theta: Array) -> float:
        """Return σ at θ."""
        return self.start.lengthscale if self.learn_frequencies else float(np.exp(theta[1]))

    def frequencies(self, theta: Array) -> Array:
        """Return the effective frequencies at θ, (D, d)."""
        unit = self.start.unit_frequencies
        if self.learn_frequencies:
            unit = theta[1:].reshape(unit.shape)
        return unit / self.lengthscale(theta)

    def signal_variance(self, theta: Array) -> float:
        """Return γ at θ."""
        return float(np.exp(theta[0]))

    def solve(self, theta: Array) -> tuple[Statistics, Posterior]:
        """Return the statistics and posterior at θ and the present ξ."""
        if self._solved is None or not np.array_equal(self._solved[0], theta):
            self._keep(theta, accumulate(self.pixels, *self._at(theta), self.xi))
        assert self._solved is not None
        return self._solved[1:]

    def tighten(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        _, posterior = self.solve(theta)
        return self._keep(theta, tighten(self.pixels, *self._at(theta), posterior, self.xi))

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound at θ and its gradient, ξ held."""
        statistics, posterior = self.solve(theta)
        frequencies, variance = self._at(theta)
        toward = gradient(self.pixels, frequencies, variance, posterior, self.xi)
        if self.learn_frequencies:
            rest = (toward / self.lengthscale(theta)).ravel()
        else:
            # W = w/σ: a step in log σ shrinks every frequency by that share.
            rest = np.array([-np.sum(toward * frequencies)])
        slope = np.concatenate([[log_variance_gradient(posterior)], rest])
        return statistics.bound(posterior), slope

    def loss_of(self, block: Block, theta: Array) -> float:
        """Return the mean negative log likelihood of other pixels under the posterior at θ."""
        _, posterior = self.solve(theta)
        moments = Moments(posterior.mean, posterior.covariance)
        return held_back_loss(block, *self._at(theta), moments)

    def _at(self, theta: Array) -> tuple[Array, float]:
        return self.frequencies(theta), self.signal_variance(theta)

    def _keep(self, theta: Array, statistics: Statistics) -> float:
        posterior = statistics.posterior()
        self._solved = (theta.copy(), statistics, posterior)
        return statistics.bound(posterior)


@dataclass(frozen=True)
class BatchState:
    """A batch ascent under way: all that is needed to go on from here."""

    unit_frequencies: Array
    lengthscale: float
    signal_variance: float
    theta: Array
    bounds: Array
    xi: Array
    outcome: str
    losses: Array
    best: Array
    seed: int
    """Of the draw of pixels that are held back."""

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return len(self.bounds)

    @property
    def told(self) -> str:
        """How far it has come, in words."""
        return f"bound {self.bounds[-1]:.6g}"

    @property
    def start(self) -> Start:
        """Where the ascent began."""
        return Start(self.unit_frequencies, self.lengthscale, self.signal_variance)

    @property
    def climb(self) -> Climb:
        """Where the ascent stands."""
        best = self.best if self.best.size else None
        bounds, losses = tuple(self.bounds.tolist()), tuple(self.losses.tolist())
        return Climb(self.theta, bounds, self.outcome, losses, best)

    def after(self, climb: Climb) -> BatchState:
        """Return the state when the ascent has come to ``climb``."""
        return replace(
            self,
            theta=climb.theta,
            bounds=np.array(climb.bounds),
            outcome=climb.outcome,
            losses=np.array(climb.losses),
            best=np.empty(0) if climb.best is None else climb.best,
        )


def fit_batch(
    pixels: Pixels,
    start: Start,
    *,
    learn_frequencies: bool,
    max_iter: int,
    tol: float,
    early_stopping: bool,
    rng: np.random.Generator,
    resume: BatchState | None = None,
    report: Callable[[BatchState], None] = lambda state: None,
) -> Fit:
    """Fit by the paper's Algorithm 1, from ``start`` or from where ``resume`` stood.

    With ``early_stopping``, frequencies are learned on four fifths of the pixels and taken from
    where the others' likelihood was best; the posterior is that of all pixels.
    """
    learning, held_back = pixels, None
    seed = int(rng.integers(2**63)) if resume is None else resume.seed
    if early_stopping and learn_frequencies and pixels.n_rows >= LEAST_ROWS:
        kept, spared = hold_back(pixels.n_rows, np.random.default_rng(seed), pixels.groups)
        some = pixels.take(spared)
        # No copy: what is not learned from weighs nothing.
        learning, held_back = pixels.keep(kept), some.pick(np.arange(some.n_rows))
    begun = resume or _begin_batch(learning, start, learn_frequencies, seed)
    xi = begun.xi.copy()
    begun = replace(begun, xi=xi)
    evidence = FourierEvidence(learning, begun.start, learn_frequencies, xi)
    climb = ascend(
        evidence,
        begun.climb,
        max_iter=max_iter,
        tol=tol,
        judge=None if held_back is None else lambda theta: evidence.loss_of(held_back, theta),
        report=lambda climb: report(begun.after(climb)),
    )
    theta = climb.theta if climb.best is None else climb.best
    settled = settle(
        pixels,
        evidence.frequencies(theta),
        evidence.signal_variance(theta),
        xi,
        passes=SETTLE_PASSES if climb.outcome != "interrupted" else 1,
        tol=0.1 * tol,
        start=None if held_back is None else evidence.solve(theta)[1],
        interruptible=True,
    )
    return Fit(
        evidence.frequencies(theta),
        evidence.lengthscale(theta),
        settled.signal_variance,
        settled.posterior,
        (*climb.bounds, settled.bounds[-1]) if held_back is None else settled.bounds,
        climb.n_iter,
        "interrupted" if settled.interrupted else climb.outcome,
        climb.losses,
    )


def _begin_batch(pixels: Pixels, start: Start, learn_frequencies: bool, seed: int) -> BatchState:
    xi = np.ones(pixels.n_rows, dtype=pixels.dtype)
    # Steps on the hyperparameters are wasted while ξ is far from tight.
    settled = settle(pixels, *start.at, xi, passes=SEARCH_PASSES)
    start = replace(start, signal_variance=settled.signal_variance)
    return BatchState(
        start.unit_frequencies,
        start.lengthscale,
        start.signal_variance,
        FourierEvidence(pixels, start, learn_frequencies, xi).theta,
        bounds=np.empty(0),
        xi=xi,
        outcome="max_iter",
        losses=np.empty(0),
        best=np.empty(0),
        seed=seed,
    )
