"""RFF-GPC and VFF-GPC: from pixels and frequencies to a posterior over waves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.gp.ascent import Climb, ascend, has_stalled
from undulatus.gp.blocks import Pixels
from undulatus.gp.evidence import (
    Statistics,
    accumulate,
    best_variance_ratio,
    gradient,
    log_variance_gradient,
    tighten,
)
from undulatus.gp.posterior import Posterior

Array = npt.NDArray[Any]

LENGTHSCALE_SHARES = (2.0, 1.0, 0.5, 0.25, 0.125)
"""Starting lengthscales that are tried, as shares of the mean distance between pixels."""
SEARCH_ROWS = 8192
SEARCH_PASSES = 4
SETTLE_PASSES = 20
VARIANCE_LIMITS = (1e-4, 1e6)


@dataclass(frozen=True)
class Start:
    """Where fitting begins: unit frequencies w (D, d), a lengthscale σ, a signal variance γ."""

    unit_frequencies: Array
    lengthscale: float
    signal_variance: float = 1.0

    @property
    def at(self) -> tuple[Array, float]:
        """Effective frequencies and signal variance."""
        return self.unit_frequencies / self.lengthscale, self.signal_variance


@dataclass(frozen=True)
class Fit:
    """A fitted classifier in feature space, and how it came about."""

    frequencies: Array
    lengthscale: float
    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]
    outcome: str


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

    def _at(self, theta: Array) -> tuple[Array, float]:
        return self.frequencies(theta), self.signal_variance(theta)

    def _keep(self, theta: Array, statistics: Statistics) -> float:
        posterior = statistics.posterior()
        self._solved = (theta.copy(), statistics, posterior)
        return statistics.bound(posterior)


@dataclass(frozen=True)
class Settled:
    """The optimum in ξ and γ for given frequencies."""

    signal_variance: float
    posterior: Posterior
    bounds: tuple[float, ...]


def settle(
    pixels: Pixels,
    frequencies: Array,
    signal_variance: float,
    xi: Array,
    *,
    passes: int,
    tol: float = 0.0,
) -> Settled:
    """Tighten ξ (in place) and γ in turn, frequencies held, until the bound stalls.

    Each pass reads the pixels once and never lowers the bound.
    """
    statistics = accumulate(pixels, frequencies, signal_variance, xi)
    posterior = statistics.posterior()
    bounds = [statistics.bound(posterior)]
    for _ in range(passes):
        statistics = tighten(pixels, frequencies, signal_variance, posterior, xi)
        ratio = best_variance_ratio(statistics)
        ratio = float(np.clip(signal_variance * ratio, *VARIANCE_LIMITS)) / signal_variance
        signal_variance *= ratio
        statistics = statistics.rescale(ratio)
        posterior = statistics.posterior()
        bounds.append(statistics.bound(posterior))
        if has_stalled(bounds, tol):
            break
    return Settled(signal_variance, posterior, tuple(bounds))


def choose_start(
    pixels: Pixels, unit_frequencies: Array, mean_distance: float, rng: np.random.Generator
) -> Start:
    """Return the lengthscale and signal variance with the best bound on a subset of pixels."""
    subset = pixels
    if pixels.n_rows > SEARCH_ROWS:
        subset = pixels.take(np.sort(rng.choice(pixels.n_rows, SEARCH_ROWS, replace=False)))
    best_bound, best = -np.inf, Start(unit_frequencies, mean_distance)
    for share in LENGTHSCALE_SHARES:
        lengthscale = share * mean_distance
        xi = np.ones(subset.n_rows, dtype=subset.dtype)
        tried = settle(subset, unit_frequencies / lengthscale, 1.0, xi, passes=SEARCH_PASSES)
        if tried.bounds[-1] > best_bound:
            best_bound = tried.bounds[-1]
            best = Start(unit_frequencies, lengthscale, tried.signal_variance)
    return best


@dataclass(frozen=True)
class Progress:
    """An ascent under way: all that is needed to go on from here."""

    start: Start
    climb: Climb
    xi: Array


def fit_batch(
    pixels: Pixels,
    start: Start,
    *,
    learn_frequencies: bool,
    max_iter: int,
    tol: float,
    resume: Progress | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Fit:
    """Fit by the paper's Algorithm 1, from ``start`` or from where ``resume`` stood."""
    if resume is None:
        xi = np.ones(pixels.n_rows, dtype=pixels.dtype)
        # Steps on the hyperparameters are wasted while ξ is far from tight.
        settled = settle(pixels, *start.at, xi, passes=SEARCH_PASSES)
        start = replace(start, signal_variance=settled.signal_variance)
    else:
        start, xi = resume.start, resume.xi.copy()
    evidence = FourierEvidence(pixels, start, learn_frequencies, xi)
    climb = ascend(
        evidence,
        Climb(evidence.theta, ()) if resume is None else resume.climb,
        max_iter=max_iter,
        tol=tol,
        report=lambda climb: report(Progress(start, climb, xi)),
    )
    frequencies = evidence.frequencies(climb.theta)
    settled = settle(
        pixels,
        frequencies,
        evidence.signal_variance(climb.theta),
        xi,
        passes=SETTLE_PASSES,
        tol=0.1 * tol,
    )
    return Fit(
        frequencies,
        evidence.lengthscale(climb.theta),
        settled.signal_variance,
        settled.posterior,
        (*climb.bounds, settled.bounds[-1]),
        climb.outcome,
    )
