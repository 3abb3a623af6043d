r"""New rows for a fitted posterior: hyperparameters and all earlier rows stay.

What a posterior says of the new rows, :math:`N(\mu, W W^\top)`, is the prior of their latent
function. Each of them gets a Gaussian factor :math:`\exp(h f - \tfrac12 c f^2)` that stands for
its likelihood, found as in :mod:`undulatus.gp.variational` (or, for the posterior of the paper's
bound, with :math:`c = 2 s\lambda(\xi)` and :math:`h = s v`). For weights :math:`N(m, A^{-1})` over
features Z their terms are then added:

.. math:: A' = A + Z^\top \mathrm{diag}(c) Z, \qquad A' m' = A m + Z^\top (h - b c),

with the level b. Taking the same terms away forgets the rows again. The cost grows with the new
rows alone: the factors are found in the directions that the rows have, at most as many as there
are rows. Latent functions, those of several classes or members, are independent of each other:
their bounds add up, and one ascent finds the factors of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import qr

from undulatus.gp.arrays import Array
from undulatus.gp.bound import half_slope
from undulatus.gp.passes import LatentFit
from undulatus.gp.posterior import Posterior, factorise, solve_posterior
from undulatus.gp.triangular import invert_triangle, multiply_by_triangle
from undulatus.gp.variational import ascend_naturally, expected_log_sigmoid

BOUND_PASSES = 500
"""Most updates of ξ; each is a cheap step in few directions."""

START_PASSES = 5
"""Updates of ξ before the first step to the best Gaussian."""

VARIATIONAL_PASSES = 200
"""Most steps to the best Gaussian."""

SETTLED = 1e-11
"""Factors have settled when a step changes all of them by less than this share."""

ASCENT_TOL = 1e-6
"""Steps are guarded by the bound until one raises it by less than this share of its size: after
that its digits end before those of the factors."""

HISTORY = 5
"""Steps from which the next one is extrapolated."""

LARGEST_WEIGHT = {False: 1e7, True: 1e18}
"""Most that a row counts, over the signal variance: beyond it factors of the bound (False), whose
precision grows with the weight, or of the best Gaussian (True), where it grows with its logarithm,
leave no digits of what was learned before."""

STACK_BYTES = 32 * 2**20
"""Latent functions are solved for together while their roots take no more than this."""


@dataclass(frozen=True)
class NewRows:
    """What the posterior of one latent function says of new rows, and what they are.

    Its values at the rows have the mean ``mean`` (n,), the covariance W Wᵗ with W the ``root``
    (n, q), and the ``fresh`` variance (n,) beside it. Signs are 1 where a row is of the latent
    function's class, and -1 elsewhere; weights are (n,) too. The prior variance of the function
    is its ``signal_variance``.
    """

    mean: Array
    root: Array
    fresh: Array
    sign: Array
    weight: Array
    signal_variance: float


@dataclass(frozen=True)
class Factors:
    """The Gaussian factors of new rows: precisions c and c times their centres h.

    (n,) each, or (L, n) of L latent functions.
    """

    precision: Array
    projected: Array

    @property
    def both(self) -> Array:
        """One after the other, (L, 2 n)."""
        return np.concatenate([self.precision, self.projected], axis=1)


# Weights over Fourier features


def mean_and_root(latent: LatentFit, features: Array) -> tuple[Array, Array]:
    """Return what a posterior of weights says of rows with damped features Z (n, k).

    The mean (n,) includes the level; the root is (n, q), with q the lesser of n and k.
    """
    own = latent.posterior
    root = features @ own.root.T
    if len(root) < root.shape[1]:
        # Only the directions of the rows matter: rotated, they are as many as the rows.
        root = qr(root.T, mode="r", overwrite_a=True, check_finite=False)[0][: len(root)].T
    return features @ own.mean + latent.level, root


def combine(latent: LatentFit, features: Array, factors: Factors, sign: float) -> Posterior:
    """Return the posterior with the terms of rows added (``sign`` 1) or taken away (-1)."""
    own = latent.posterior
    # The inverse of the root L⁻¹ is L, and A = L Lᵗ.
    factor = np.array(own.root, order="F")
    invert_triangle(factor)
    precision = factor @ factor.T
    projected = precision @ own.mean
    # With roots on both sides the product is symmetric, which halves the work.
    scaled = features * np.sqrt(factors.precision)[:, None]
    precision += sign * (scaled.T @ scaled)
    pulled = factors.projected - latent.level * factors.precision
    return solve_posterior(precision, projected + sign * (features.T @ pulled))


# The factors


def find_factors(latents: Sequence[NewRows], variational: bool) -> list[Factors]:
    """Return the factors of the same new rows for each of several latent functions."""
    at_once = max(1, STACK_BYTES // max(latents[0].root.nbytes, 1))
    found = []
    for first in range(0, len(latents), at_once):
        problem = _Problem.stack(latents[first : first + at_once], LARGEST_WEIGHT[variational])
        factors = _fit_bound(problem, START_PASSES if variational else BOUND_PASSES)
        if variational:
            factors = _fit_variational(problem, factors)
        pairs = zip(factors.precision, factors.projected, strict=True)
        found += [Factors(*own) for own in pairs]
    return found


@dataclass(frozen=True)
class _Problem:
    """New rows as L latent functions see them: (L, n) each, and roots (L, n, q)."""

    mean: Array
    root: Array
    fresh: Array
    sign: Array
    weight: Array

    @classmethod
    def stack(cls, latents: Sequence[NewRows], largest_weight: float) -> _Problem:
        mean, root, fresh, sign = (
            np.stack([getattr(own, name) for own in latents])
            for name in ("mean", "root", "fresh", "sign")
        )
        weights = [np.minimum(own.weight, largest_weight / own.signal_variance) for own in latents]
        return cls(mean, root, fresh, sign, np.stack(weights))

    def solve(self, factors: Factors) -> tuple[Array, Array, float]:
        """Return latent means and variances (L, n) with these factors, and the divergence.

        The divergence is that from the old posteriors (nats), added up.
        """
        scaled = self.root * np.sqrt(factors.precision)[..., None]
        inner = np.swapaxes(scaled, 1, 2) @ scaled
        q = inner.shape[1]
        inner[:, range(q), range(q)] += 1.0
        lower = _factorise_all(inner)
        inverse, spread = _divide_all(self.root, lower)
        log_determinant = 2.0 * float(np.sum(np.log(np.diagonal(lower, axis1=1, axis2=2))))
        pulled = factors.projected - factors.precision * self.mean
        weights = inverse @ (np.swapaxes(self.root, 1, 2) @ pulled[..., None])
        mean = self.mean + (spread @ weights)[..., 0]
        variance = np.einsum("lij,lij->li", spread, spread)
        # |u|² of the mean, tr B⁻¹ and log|B| of the posterior N(u, B⁻¹) of the directions.
        centre = np.swapaxes(inverse, 1, 2) @ weights
        squares = float(np.vdot(centre, centre) + np.vdot(inverse, inverse))
        divergence = 0.5 * (squares - inner.shape[0] * q + log_determinant)
        return mean, variance + self.fresh, divergence


def _factorise_all(matrices: Array) -> Array:
    """Return the lower factors of matrices (L, q, q)."""
    try:
        return np.asarray(np.linalg.cholesky(matrices))
    except np.linalg.LinAlgError:
        # Weights so large that the 1 on the diagonal has drowned.
        return np.stack([factorise(own)[0] for own in matrices])


def _divide_all(roots: Array, lower: Array) -> tuple[Array, Array]:
    """Return L⁻¹ and W L⁻ᵗ of roots W (L, n, q) and lower factors L (L, q, q)."""
    if len(lower) > 1:
        # Small ones: for each by itself Python would take longer than the arithmetic.
        inverse = np.linalg.inv(lower)
        return inverse, roots @ np.swapaxes(inverse, 1, 2)
    alone, spread = np.array(lower[0], order="F"), np.array(roots[0], order="F")
    invert_triangle(alone)
    multiply_by_triangle(spread, np.asfortranarray(alone.T))
    return alone[None], spread[None]


@dataclass(frozen=True)
class _Step:
    """Factors, where a full step leads, and the bound."""

    factors: Factors
    target: Factors
    bound: float

    @property
    def change(self) -> float:
        """The largest change of a precision in a full step, as a share of it."""
        return _largest_change(self.factors.precision, self.target.precision)


def _largest_change(before: Array, after: Array) -> float:
    # Rows of weight zero have no precision, before and after.
    return float(np.max(np.abs(after - before) / np.maximum(before, np.finfo(np.float64).tiny)))


def _fit_bound(problem: _Problem, passes: int) -> Factors:
    """Return the factors of the quadratic bound, by updates of ξ that cannot overshoot."""
    projected = 0.5 * problem.weight * problem.sign
    precision = 0.25 * problem.weight
    for _ in range(passes):
        mean, variance, _ = problem.solve(Factors(precision, projected))
        tight = 2.0 * problem.weight * half_slope(np.sqrt(mean**2 + variance))
        change, precision = _largest_change(precision, tight), tight
        if change <= SETTLED:
            break
    return Factors(precision, projected)


def _fit_variational(problem: _Problem, start: Factors) -> Factors:
    """Return the factors of the best Gaussian posteriors."""
    sign, weight = problem.sign, problem.weight

    def evaluate(factors: Factors) -> _Step:
        mean, variance, divergence = problem.solve(factors)
        expected = expected_log_sigmoid((sign * mean).ravel(), variance.ravel())
        value, slope, curvature = (values.reshape(mean.shape) for values in expected)
        precision = weight * curvature
        target = Factors(precision, weight * sign * slope + precision * mean)
        return _Step(factors, target, float(np.vdot(weight, value)) - divergence)

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
        evaluate(start), advance, max_passes=VARIATIONAL_PASSES, tol=ASCENT_TOL
    )
    return _settle(evaluate, last)


def _settle(evaluate: Callable[[Factors], _Step], last: _Step) -> Factors:
    """Return the factors that a full step does not change, from some close to them.

    Steps are extrapolated from the last few (Anderson 1965, doi:10.1145/321296.321305): plain ones
    would halve the distance at best.
    """
    places: list[Array] = []
    steps: list[Array] = []
    best = last
    for _ in range(VARIATIONAL_PASSES):
        if last.change < best.change:
            best = last
        if best.change <= SETTLED:
            break
        own, target = last.factors.both, last.target.both
        places, steps = [*places, target][-HISTORY:], [*steps, target - own][-HISTORY:]
        guess = target
        if len(steps) > 1:
            changes = np.diff(steps, axis=0).transpose(1, 2, 0)
            shares = np.linalg.pinv(changes) @ steps[-1][..., None]
            guess = target - (np.diff(places, axis=0).transpose(1, 2, 0) @ shares)[..., 0]
        following = Factors(*np.split(guess, 2, axis=1))
        if np.any(following.precision < 0.5 * last.target.precision):
            # Too far: begin anew from a plain step.
            following, places, steps = last.target, [], []
        last = evaluate(following)
    return best.target
