"""The paper's Algorithm 1: tighten ξ, take a few steps uphill, repeat until the bound stalls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

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


def has_stalled(bounds: Sequence[float], tol: float) -> bool:
    """Whether the last step raised the bound by less than ``tol`` of its size.

    A hundred nats are added to the size: on a few rows, hundredths of a nat mean nothing.
    """
    return bounds[-1] - bounds[-2] < tol * (abs(bounds[-1]) + 100.0)


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
