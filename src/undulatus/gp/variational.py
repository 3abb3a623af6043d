"""RFF-GPC and VFF-GPC: from pixels and frequencies to a posterior over waves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.gp.ascent import Climb, ascend
from undulatus.gp.blocks import Block, Pixels, PixelSource
from undulatus.gp.evidence import (
    Statistics,
    accumulate,
    gradient,
    log_variance_gradient,
    tighten,
)
from undulatus.gp.posterior import Moments, Posterior
from undulatus.gp.settling import SEARCH_PASSES, SETTLE_PASSES, VARIANCE_LIMITS, Start, settle
from undulatus.gp.stochastic import SAMPLE_BYTES, SAMPLE_ROWS, walk
from undulatus.gp.validation import held_back_loss, hold_back
from undulatus.gp.walk import Walk

Array = npt.NDArray[Any]

STOCHASTIC_PASSES = 10
"""Most exact passes after the frequencies were learned on minibatches."""
LEAST_ROWS = 30
"""Of fewer rows the batch solver holds none back."""


@dataclass(frozen=True)
class Fit:
    """A fitted classifier in feature space, and how it came about."""

    frequencies: Array
    lengthscale: float
    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]
    n_iter: int
    outcome: str
    held_back_losses: tuple[float, ...] = ()


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
