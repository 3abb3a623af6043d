r"""New rows for a fitted posterior: frequencies, signal variance and all earlier rows stay.

A posterior :math:`N(m, A^{-1})` of the whitened weights is the prior of the new rows. Each of
them gets a Gaussian factor :math:`\exp(h f - \tfrac12 c f^2)` that stands for its likelihood,
found as in :mod:`undulatus.gp.variational` (or, for the posterior of the paper's bound, with
:math:`c = 2 s\lambda(\xi)` and :math:`h = s v`), and its terms are added:

.. math:: A' = A + Z^\top \mathrm{diag}(c) Z, \qquad A' m' = A m + Z^\top (h - b c),

with the level b. Taking the same terms away forgets the rows again. The cost grows with the new
rows alone: the factors are found in the directions that the rows have, at most as many as there
are rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr, solve_triangular

from undulatus.gp.blocks import Array
from undulatus.gp.bound import half_slope
from undulatus.gp.passes import LatentFit
from undulatus.gp.posterior import Posterior, factorise, solve_posterior
from undulatus.gp.variational import ascend_naturally, expected_log_sigmoid

BOUND_PASSES = 500
"""Most updates of ξ; each is a cheap step in few directions."""

START_PASSES = 10
"""Updates of ξ before the first step to the best Gaussian."""

VARIATIONAL_PASSES = 200
"""Most steps to the best Gaussian."""

SETTLED = 1e-12
"""Factors have settled when a step changes all of them by less than this share."""


@dataclass(frozen=True)
class NewRows:
    """Rows of a latent function: damped features (n, k), fresh variance, signs and weights (n,).

    Signs are 1 where a row is of the latent function's class, and -1 elsewhere.
    """

    features: Array
    fresh: Array
    sign: Array
    weight: Array


@dataclass(frozen=True)
class Factors:
    """The Gaussian factors of new rows: precisions c and c times their centres h, (n,) each."""

    precision: Array
    projected: Array


def add_rows(latent: LatentFit, rows: NewRows, variational: bool) -> tuple[Posterior, Factors]:
    """Return the posterior with the new rows, and the factors that stand for them."""
    factors = find_factors(latent, rows, variational)
    return combine(latent, rows.features, factors, 1.0), factors


def combine(latent: LatentFit, features: Array, factors: Factors, sign: float) -> Posterior:
    """Return the posterior with the terms of rows added (``sign`` 1) or taken away (-1)."""
    own = latent.posterior
    # The inverse of the root L⁻¹ is L, and A = L Lᵗ.
    factor = solve_triangular(own.root, np.eye(len(own.mean)), lower=True)
    precision = factor @ factor.T
    projected = precision @ own.mean
    scaled = features * factors.precision[:, None]
    precision += sign * (features.T @ scaled)
    pulled = factors.projected - latent.level * factors.precision
    return solve_posterior(precision, projected + sign * (features.T @ pulled))


# The factors


@dataclass(frozen=True)
class _Problem:
    """New rows in the directions they have, where the old posterior is N(0, I)."""

    features: Array
    """(n, q)"""
    offset: Array
    """Latent mean under the old posterior, (n,)."""
    rows: NewRows

    def solve(self, factors: Factors) -> tuple[Array, Array, float]:
        """Return latent means and variances (n,) with these factors, and the divergence.

        The divergence is that of the weights from the old posterior (nats).
        """
        inner = (self.features * factors.precision[:, None]).T @ self.features
        inner[np.diag_indices_from(inner)] += 1.0
        lower, _ = factorise(inner)
        pulled = factors.projected - factors.precision * self.offset
        weights = solve_triangular(lower, self.features.T @ pulled, lower=True)
        spread = solve_triangular(lower, self.features.T, lower=True)
        mean = self.offset + spread.T @ weights
        variance = np.einsum("ij,ij->j", spread, spread)
        # |u|² of the mean, tr B⁻¹ and log|B| of the weights' posterior N(u, B⁻¹).
        inverse = solve_triangular(lower, np.eye(len(lower)), lower=True)
        squares = float(np.sum((inverse.T @ weights) ** 2) + np.sum(inverse**2))
        log_determinant = 2.0 * float(np.sum(np.log(np.diagonal(lower))))
        return mean, variance + self.rows.fresh, 0.5 * (squares - len(lower) + log_determinant)


@dataclass(frozen=True)
class _Step:
    factors: Factors
    target: Factors
    bound: float


def find_factors(latent: LatentFit, rows: NewRows, variational: bool) -> Factors:
    """Return the factors of new rows, given the posterior of all others."""
    own = latent.posterior
    whitened = rows.features @ own.root.T
    if len(whitened) < whitened.shape[1]:
        # Only the directions of the rows matter: rotated, they are as many as the rows.
        whitened = qr(whitened.T, mode="r")[0][: len(whitened)].T
    offset = rows.features @ own.mean + latent.level
    problem = _Problem(np.ascontiguousarray(whitened), offset, rows)
    factors = _fit_bound(problem, START_PASSES if variational else BOUND_PASSES)
    return _fit_variational(problem, factors) if variational else factors


def _fit_bound(problem: _Problem, passes: int) -> Factors:
    """Return the factors of the quadratic bound, by updates of ξ that cannot overshoot."""
    rows = problem.rows
    projected = 0.5 * rows.weight * rows.sign
    precision = 0.25 * rows.weight
    for _ in range(passes):
        mean, variance, _ = problem.solve(Factors(precision, projected))
        tight = 2.0 * rows.weight * half_slope(np.sqrt(mean**2 + variance))
        settled = np.all(np.abs(tight - precision) <= SETTLED * precision)
        precision = tight
        if settled:
            break
    return Factors(precision, projected)


def _fit_variational(problem: _Problem, start: Factors) -> Factors:
    """Return the factors of the best Gaussian posterior."""
    rows = problem.rows

    def evaluate(factors: Factors) -> _Step:
        mean, variance, divergence = problem.solve(factors)
        value, slope, curvature = expected_log_sigmoid(rows.sign * mean, variance)
        precision = rows.weight * curvature
        target = Factors(precision, rows.weight * rows.sign * slope + precision * mean)
        return _Step(factors, target, float(rows.weight @ value) - divergence)

    def advance(last: _Step, share: float) -> _Step:
        mixed = (
            (1.0 - share) * own + share * new
            for own, new in (
                (last.factors.precision, last.target.precision),
                (last.factors.projected, last.target.projected),
            )
        )
        return evaluate(Factors(*mixed))

    *_, last = ascend_naturally(
        evaluate(start), advance, max_passes=VARIATIONAL_PASSES, tol=SETTLED
    )
    return last.target
