"""The batch solver, the paper's Algorithm 1, for RFF-GPC and VFF-GPC.

Each outer iteration tightens ξ and takes a few quasi-Newton steps on the hyperparameters θ,
until the bound stalls. :func:`ascend` is that loop for any evidence bound, also that of the
exact classifier; :class:`FourierEvidence` is the bound in feature space; :func:`fit_batch`
fits with the two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np
from scipy.optimize import minimize

from undulatus.gp.arrays import Array, to_host
from undulatus.gp.blocks import Block, Pixels
from undulatus.gp.bound import (
    Statistics,
    accumulate_each,
    bound_gradient,
    log_variance_gradient,
    tighten_each,
)
from undulatus.gp.held_back import Split, held_back_loss, leave_out
from undulatus.gp.passes import (
    SEARCH_PASSES,
    VARIANCE_LIMITS,
    FourierFit,
    Start,
    fit_posteriors,
    has_stalled,
    mean_of,
)
from undulatus.gp.posterior import Posterior, WeightMoments
from undulatus.gp.variational import fit_latents

TIGHTENINGS = 3
"""Updates of ξ in an outer iteration: each costs one pass, a step on θ two."""

INNER_STEPS = 10
"""Quasi-Newton steps on θ in an outer iteration."""

LENGTHSCALE_FACTOR = 1e3
"""How far the lengthscale of fixed frequencies may move from its start, either way."""

FINAL_PASSES = 20
"""Most exact passes at the final frequencies."""

EARLY_STOPPING_ROWS = 30
"""With fewer rows than this, none are held back."""

PATIENCE = 5
"""With held-back rows, the ascent ends after this many iterations without a lower loss."""


class Evidence(Protocol):
    """A bound on the log evidence in hyperparameters θ and local parameters ξ, which it stores."""

    limits: list[tuple[float, float]]
    """Lowest and highest value of each hyperparameter."""

    def tighten(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        ...

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound and its gradient at θ, with ξ fixed."""
        ...


@dataclass(frozen=True)
class Ascent:
    """The state of an ascent.

    ``outcome`` is ``"converged"``, ``"max_iter"`` or ``"interrupted"``; ``bounds`` holds the
    bound after each outer iteration. With held-back rows, ``losses`` holds their loss at the
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


def ascend(
    evidence: Evidence,
    ascent: Ascent,
    *,
    max_iter: int,
    tol: float,
    held_back_loss: Callable[[Array], float] | None = None,
    interruptible: bool = True,
    report: Callable[[Ascent], None] = lambda ascent: None,
) -> Ascent:
    """Continue ``ascent`` until the bound grows by less than ``tol`` of its size.

    ``held_back_loss`` is a function of θ; the ascent also ends when it has not fallen for
    ``PATIENCE`` iterations. ``report`` is called after every outer iteration, with a state
    that is enough, together with ξ, to continue from. If ``interruptible``, a KeyboardInterrupt
    ends the ascent at the last finished iteration.
    """
    try:
        if held_back_loss is not None and not ascent.losses:
            ascent = _record_loss(ascent, held_back_loss(ascent.theta))
        while ascent.outcome != "converged" and ascent.n_iter < max_iter:
            ascent = _iterate(evidence, ascent, tol)
            if held_back_loss is not None:
                ascent = _record_loss(ascent, held_back_loss(ascent.theta))
            report(ascent)
    except KeyboardInterrupt:
        if not (interruptible and ascent.bounds):
            raise
        ascent = replace(ascent, outcome="interrupted")
    return ascent


def _record_loss(ascent: Ascent, loss: float) -> Ascent:
    losses = (*ascent.losses, loss)
    iterations_since_best = len(losses) - 1 - int(np.argmin(losses))
    return replace(
        ascent,
        losses=losses,
        best_theta=ascent.theta if loss <= min(losses) else ascent.best_theta,
        outcome="converged" if iterations_since_best >= PATIENCE else ascent.outcome,
    )


def _iterate(evidence: Evidence, ascent: Ascent, tol: float) -> Ascent:
    for _ in range(TIGHTENINGS):
        bound = evidence.tighten(ascent.theta)
    unit = 1.0 / max(abs(bound), 1.0)
    best = (bound, ascent.theta)

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
        ascent.theta,
        jac=True,
        method="L-BFGS-B",
        bounds=evidence.limits,
        options={"maxiter": INNER_STEPS, "maxls": 5, "ftol": 0.01 * tol, "gtol": 0.0},
    )
    bound, theta = best
    bounds = (*ascent.bounds, bound)
    stalled = len(bounds) > 1 and has_stalled(bounds, tol)
    return replace(
        ascent, theta=theta, bounds=bounds, outcome="converged" if stalled else "max_iter"
    )


class FourierEvidence:
    """The bound of a Bayesian linear model over Fourier features, in θ and ξ.

    θ is (log γ, log σ) when the frequencies are fixed (RFF-GPC), and (log γ, w) when they are
    learned (VFF-GPC); the effective frequencies are then w/σ with σ fixed at its start, since
    only the ratio matters. With more than two classes there are C latent functions, each with its
    log γ and ξ, and their bounds are added; ``xi`` is (C n,), one after the other's.
    """

    def __init__(self, pixels: Pixels, start: Start, learn_frequencies: bool, xi: Array) -> None:
        self.pixels = pixels
        self.start = start
        self.learn_frequencies = learn_frequencies
        self.xi = xi
        self.n_latents = pixels.n_latents
        variance = (np.log(VARIANCE_LIMITS[0]), np.log(VARIANCE_LIMITS[1]))
        self.limits = [variance] * self.n_latents
        if learn_frequencies:
            self.limits += [(-np.inf, np.inf)] * start.unit_frequencies.size
        else:
            sigma, range_ = float(np.log(start.lengthscale)), np.log(LENGTHSCALE_FACTOR)
            self.limits.append((sigma - range_, sigma + range_))
        self._solved: tuple[Array, list[Statistics], list[Posterior]] | None = None

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

    def solve(self, theta: Array) -> tuple[list[Statistics], list[Posterior]]:
        """Return the statistics and posterior of each latent function at θ and the current ξ."""
        if self._solved is None or not np.array_equal(self._solved[0], theta):
            frequencies = self.frequencies(theta)
            variances = self.signal_variances(theta)
            self._store(
                theta, accumulate_each(self.pixels, frequencies, variances, self.xi_of_each)
            )
        assert self._solved is not None
        return self._solved[1:]

    def tighten(self, theta: Array) -> float:
        """Set ξ to its optimum under the posterior at θ; return the bound."""
        _, posteriors = self.solve(theta)
        variances, frequencies = self.signal_variances(theta), self.frequencies(theta)
        return self._store(
            theta, tighten_each(self.pixels, frequencies, variances, posteriors, self.xi_of_each)
        )

    def value_and_gradient(self, theta: Array) -> tuple[float, Array]:
        """Return the bound and its gradient at θ, with ξ fixed."""
        statistics, posteriors = self.solve(theta)
        frequencies = self.frequencies(theta)
        in_frequencies = bound_gradient(
            self.pixels, frequencies, self.signal_variances(theta), posteriors, self.xi_of_each
        )
        if self.learn_frequencies:
            rest = (in_frequencies / self.lengthscale(theta)).ravel()
        else:
            # Effective frequencies are w/σ: a step in log σ shrinks each by that share.
            rest = np.array([-np.sum(in_frequencies * frequencies)])
        in_variances = [log_variance_gradient(posterior) for posterior in posteriors]
        return _total_bound(statistics, posteriors), np.concatenate([in_variances, rest])

    def held_back_loss(self, block: Block, theta: Array) -> float:
        """Return the loss of held-back rows under the posteriors at θ."""
        _, posteriors = self.solve(theta)
        moments = [WeightMoments(own.mean, own.covariance) for own in posteriors]
        variances = self.signal_variances(theta)
        return held_back_loss(block, self.frequencies(theta), variances, moments)

    @property
    def xi_of_each(self) -> list[Array]:
        """The local parameters of each latent function, (n,), to read or write."""
        return list(self.xi.reshape(self.n_latents, -1))

    def _store(self, theta: Array, statistics: list[Statistics]) -> float:
        posteriors = [own.posterior() for own in statistics]
        self._solved = (theta.copy(), statistics, posteriors)
        return _total_bound(statistics, posteriors)


def _total_bound(statistics: list[Statistics], posteriors: list[Posterior]) -> float:
    pairs = zip(statistics, posteriors, strict=True)
    return sum(own.bound(posterior) for own, posterior in pairs)


@dataclass(frozen=True)
class BatchState:
    """A batch fit in progress: all that is needed to continue it."""

    start: Start
    ascent: Ascent
    xi: Array
    seed: int
    """Seed of the draw of held-back rows."""

    @property
    def n_iter(self) -> int:
        """Outer iterations done."""
        return self.ascent.n_iter

    @property
    def progress_text(self) -> str:
        """What a line of progress says."""
        return f"lower bound {self.ascent.bounds[-1]:.6g}"


def fit_batch(
    pixels: Pixels,
    start: Start,
    *,
    learn_frequencies: bool,
    max_iter: int,
    tol: float,
    early_stopping: bool,
    rng: np.random.Generator,
    variational: bool = True,
    spread: float = 0.0,
    log_odds: Array | float = 0.0,
    split: Split | None = None,
    resume: BatchState | None = None,
    interruptible: bool = True,
    report: Callable[[BatchState], None] = lambda state: None,
) -> FourierFit:
    """Fit by the paper's Algorithm 1, from ``start`` or continuing from ``resume``.

    With ``early_stopping``, frequencies are learned on four fifths of the pixels, as ``split``
    says or else drawn, and those with the lowest loss on the others are used; the posterior is
    that of all pixels, by :func:`~undulatus.gp.variational.fit_latents`, in which waves
    are damped by ``spread``, a share of their frequencies, and ``log_odds`` set the level. If
    ``interruptible``, a KeyboardInterrupt ends the fit at the last finished iteration or pass.
    """
    seed = int(rng.integers(2**63)) if resume is None else resume.seed
    learning, held_back = pixels, None
    if early_stopping and learn_frequencies and pixels.n_rows >= EARLY_STOPPING_ROWS:
        learning, held_back = _separate(pixels, seed, split)
    state = resume or _first_state(learning, start, learn_frequencies, seed)
    xi = learning.place.array(1.0 * state.xi)
    evidence = FourierEvidence(learning, state.start, learn_frequencies, xi)
    ascent = ascend(
        evidence,
        state.ascent,
        max_iter=max_iter,
        tol=tol,
        held_back_loss=None if held_back is None else partial(evidence.held_back_loss, held_back),
        interruptible=interruptible,
        report=lambda ascent: report(replace(state, ascent=ascent, xi=to_host(xi))),
    )
    return _finish(
        pixels,
        evidence,
        ascent,
        tol,
        early_stopped=held_back is not None,
        variational=variational,
        spread=spread,
        log_odds=np.broadcast_to(log_odds if variational else 0.0, pixels.n_latents),
        interruptible=interruptible,
    )


def _separate(pixels: Pixels, seed: int, split: Split | None) -> tuple[Pixels, Block]:
    """Return the pixels to learn from and the block held back."""
    if split is None:
        split = leave_out(pixels, 1, np.random.default_rng(seed))[0]
    learned, held = split
    held_pixels = pixels.take(held)
    # Rows that are not learned from get weight zero: no copy of the others is needed.
    return pixels.keep_weight_of(learned), held_pixels.pick(np.arange(held_pixels.n_rows))


def _first_state(pixels: Pixels, start: Start, learn_frequencies: bool, seed: int) -> BatchState:
    xi = pixels.place.ones(pixels.n_latents * pixels.n_rows)
    evidence = FourierEvidence(pixels, start, learn_frequencies, xi)
    # Steps on θ are wasted while ξ is far from tight.
    fits = fit_posteriors(
        pixels,
        start.frequencies,
        [start.signal_variance] * pixels.n_latents,
        evidence.xi_of_each,
        max_passes=SEARCH_PASSES,
    )
    variances = [fit.signal_variance for fit in fits]
    start = replace(start, signal_variance=mean_of(variances))
    return BatchState(start, Ascent(evidence.start_theta(variances)), xi, seed)


def _finish(
    pixels: Pixels,
    evidence: FourierEvidence,
    ascent: Ascent,
    tol: float,
    *,
    early_stopped: bool,
    variational: bool,
    spread: float,
    log_odds: Array,
    interruptible: bool,
) -> FourierFit:
    """Return the fit after exact passes over all pixels at the final frequencies."""
    theta = ascent.theta if ascent.best_theta is None else ascent.best_theta
    interrupted = ascent.outcome == "interrupted"
    frequencies = evidence.frequencies(theta)
    # Learned on other rows, or without damping and level: bounds of another model do not compare.
    anew = early_stopped or spread > 0.0 or bool(np.any(log_odds))
    latents, interrupted = fit_latents(
        pixels,
        frequencies,
        evidence.signal_variances(theta),
        evidence.xi_of_each,
        evidence.solve(theta)[1] if anew else None,
        spread=spread,
        log_odds=log_odds,
        interrupted=interrupted,
        interruptible=interruptible,
        max_passes=FINAL_PASSES,
        variational=variational,
        bound_tol=0.1 * tol,
        tol=tol,
    )
    if not anew and len(latents) == 1:
        # The same model's bounds, from the first iteration on.
        (only,) = latents
        latents = (replace(only, bounds=(*ascent.bounds, only.bounds[-1])),)
    return FourierFit(
        frequencies,
        evidence.lengthscale(theta),
        latents,
        ascent.n_iter,
        "interrupted" if interrupted else ascent.outcome,
        ascent.losses,
        spread,
    )
