r"""New rows for a fitted posterior: hyperparameters and all earlier rows stay.

What a posterior says of the new rows, :math:`N(\mu, W W^\top)`, is the prior of their latent
function. Each of them gets a Gaussian factor :math:`\exp(h f - \tfrac12 c f^2)` that stands for
its likelihood, a site, found by :func:`undulatus.gp.inference.ascend`. For weights
:math:`N(m, A^{-1})` over features Z their terms are then added:

.. math:: A' = A + Z^\top \mathrm{diag}(c) Z, \qquad A' m' = A m + Z^\top (h - b c),

with the prior mean b. Taking the same terms away forgets the rows again. The cost grows with the
new rows alone: the sites are found in the directions that the rows have, at most as many as there
are rows. Latent functions, those of several classes or estimators, are independent of each other:
their bounds add up, and one ascent finds the sites of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import qr

from undulatus.gp.backends import HOST, Array
from undulatus.gp.cholesky import factorise, invert_triangle, multiply_by_triangle
from undulatus.gp.inference import AscentConfig, Gaussian, ascend
from undulatus.gp.likelihood import QUADRATIC, Bound
from undulatus.gp.posterior import LatentFit, Posterior, solve_posterior


@dataclass(frozen=True)
class UpdateConfig:
    """How the sites of new rows are found."""

    start_passes: int = 5
    """Passes by a conjugate bound, which cannot overshoot, before the first step by another."""
    ascent_tol: float = 1e-6
    """Steps are guarded by the bound until one raises it by less than this share of its size:
    after that its digits end before those of the sites."""
    smallest_change: float = 1e-11
    """Sites have converged when a step changes all of them by less than this share ..."""
    most_steps: int = 500
    """... or after so many."""
    history: int = 5
    """Steps from which the next one is extrapolated."""
    largest_weight: float = 1e18
    """Most that a row counts, over the signal variance: beyond it sites of the best Gaussian,
    whose precision grows with the logarithm of the weight, leave no digits of what was learned
    before."""
    largest_conjugate_weight: float = 1e7
    """The same for sites of a conjugate bound, whose precision grows with the weight itself."""
    stack_bytes: int = 32 * 2**20
    """Latent functions are solved for together while their roots take no more than this."""


@dataclass(frozen=True)
class NewRows:
    """What the posterior of one latent function says of new rows, and what they are.

    Its values at the rows have the mean ``mean`` (n,), the covariance W Wᵗ with W the ``root``
    (n, q), and the ``prior_variance`` (n,) beside it. Signs are 1 where a row is of the latent
    function's class, and -1 elsewhere; weights are (n,) too. The prior variance of
    the function is its ``signal_variance``.
    """

    mean: Array
    root: Array
    prior_variance: Array
    sign: Array
    weight: Array
    signal_variance: float


@dataclass(frozen=True)
class Sites:
    """The Gaussian factors of new rows: precisions c and c times their centres h.

    (n,) each, or (L, n) of L latent functions.
    """

    precision: Array
    projected: Array

    def mix(self, other: Sites, share: float) -> Sites:
        """Return these sites moved towards ``other`` by a share of the way."""
        return Sites(
            (1.0 - share) * self.precision + share * other.precision,
            (1.0 - share) * self.projected + share * other.projected,
        )


# Weights over Fourier features


def mean_and_root(latent: LatentFit, features: Array) -> tuple[Array, Array]:
    """Return what a posterior of weights says of rows with tapered features Z (n, k).

    The mean (n,) includes the prior mean; the root is (n, q), with q the lesser of n and k.
    """
    own = latent.posterior
    root = features @ own.root.T
    if len(root) < root.shape[1]:
        # Only the directions of the rows matter: rotated, they are as many as the rows.
        root = qr(root.T, mode="r", overwrite_a=True, check_finite=False)[0][: len(root)].T
    return features @ own.mean + latent.prior_mean, root


def combine(latent: LatentFit, features: Array, factors: Sites, sign: float) -> Posterior:
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
    pulled = factors.projected - latent.prior_mean * factors.precision
    return solve_posterior(precision, projected + sign * (features.T @ pulled))


# The sites


def find_sites(
    latents: Sequence[NewRows], bound: Bound, config: UpdateConfig = UpdateConfig()
) -> list[Sites]:
    """Return the sites of the same new rows for each of several latent functions."""
    largest = config.largest_conjugate_weight if bound.conjugate else config.largest_weight
    # Steps of a conjugate bound cannot overshoot.
    safe = bound if bound.conjugate else QUADRATIC
    at_once = max(1, config.stack_bytes // max(latents[0].root.nbytes, 1))
    found = []
    for first in range(0, len(latents), at_once):
        some = latents[first : first + at_once]
        space = RowSpace.stack(some, largest)
        start = space.solve(0, Sites(0.25 * space.weight, 0.5 * space.weight * space.sign), 1.0)
        (end,) = ascend(space, safe, [start], AscentConfig(config.start_passes))
        if not bound.conjugate:
            ascent = AscentConfig(config.most_steps, config.ascent_tol, largest_share=1.0)
            (end,) = ascend(space, bound, [end.gaussian], ascent)
        sites = _converge(space, bound, end.gaussian.sites, config)
        found += [Sites(*own) for own in zip(sites.precision, sites.projected, strict=True)]
    return found


class _Directions(NamedTuple):
    """The posteriors N(u, B⁻¹) of the directions of L latent functions, as the rows see them."""

    mean: Array
    variance: Array
    divergence: float
    """From the earlier posteriors (nats), added up."""


@dataclass(frozen=True)
class RowSpace:
    """L latent functions at new rows, as one: (L, n) each, and roots (L, n, q)."""

    mean: Array
    root: Array
    prior_variance: Array
    sign: Array
    weight: Array

    @classmethod
    def stack(cls, latents: Sequence[NewRows], largest_weight: float) -> RowSpace:
        """Return the space of several latent functions."""
        mean, root, prior_variance, sign = (
            np.stack([getattr(own, name) for own in latents])
            for name in ("mean", "root", "prior_variance", "sign")
        )
        weights = [np.minimum(own.weight, largest_weight / own.signal_variance) for own in latents]
        return cls(mean, root, prior_variance, sign, np.stack(weights))

    def evaluate(
        self, bound: Bound, latents: Sequence[int], gaussians: Sequence[Gaussian]
    ) -> list[tuple[Sites, float]]:
        """Return the sites at the Gaussian and the sum of the rows' values."""
        (own,) = gaussians
        mean, variance, _ = own.posterior
        precision, residual, value = (
            self.weight * part for part in bound.sites(mean, variance, self.sign, HOST)
        )
        return [(Sites(precision, residual + precision * mean), float(value.sum()))]

    def best_ratio(self, latent: int, sites: Sites, signal_variance: float) -> float:
        """Return 1: an update leaves hyperparameters as they are."""
        return 1.0

    def solve(self, latent: int, sites: Sites, signal_variance: float) -> Gaussian:
        """Return the posterior of the directions that sites give."""
        scaled = self.root * np.sqrt(sites.precision)[..., None]
        inner = np.swapaxes(scaled, 1, 2) @ scaled
        q = inner.shape[1]
        inner[:, range(q), range(q)] += 1.0
        lower = _factorise_all(inner)
        inverse, spread = _divide_all(self.root, lower)
        log_determinant = 2.0 * float(np.sum(np.log(np.diagonal(lower, axis1=1, axis2=2))))
        pulled = sites.projected - sites.precision * self.mean
        weights = inverse @ (np.swapaxes(self.root, 1, 2) @ pulled[..., None])
        mean = self.mean + (spread @ weights)[..., 0]
        variance = np.einsum("lij,lij->li", spread, spread) + self.prior_variance
        # |u|² of the mean, tr B⁻¹ and log|B|.
        centre = np.swapaxes(inverse, 1, 2) @ weights
        squares = float(np.vdot(centre, centre) + np.vdot(inverse, inverse))
        divergence = 0.5 * (squares - inner.shape[0] * q + log_determinant)
        return Gaussian(1.0, 0.0, _Directions(mean, variance, divergence), sites)

    def log_evidence(self, gaussian: Gaussian) -> float:
        """Return log E exp Σ (h f - c f²/2) under the earlier posterior.

        It is E_q Σ (h f - c f²/2) - KL, whatever the space.
        """
        (mean, variance, divergence), sites = gaussian.posterior, gaussian.sites
        squares = mean**2 + variance
        return float(np.sum(sites.projected * mean - 0.5 * sites.precision * squares)) - divergence

    def divergence(self, gaussian: Gaussian) -> float:
        """Return the Kullback-Leibler divergence from the earlier posterior (nats)."""
        return float(gaussian.posterior.divergence)


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


def _converge(space: RowSpace, bound: Bound, sites: Sites, config: UpdateConfig) -> Sites:
    """Return the sites that a full step does not change, from some close to them.

    Steps are extrapolated from the last few (Anderson 1965, doi:10.1145/321296.321305): plain ones
    would halve the distance at best.
    """
    targets: list[Array] = []
    steps: list[Array] = []
    best, least = sites, np.inf
    for _ in range(config.most_steps):
        [(target, _)] = space.evaluate(bound, [0], [space.solve(0, sites, 1.0)])
        # As a share; rows of weight zero have no precision, before and after.
        smallest = np.maximum(sites.precision, np.finfo(np.float64).tiny)
        change = float(np.max(np.abs(target.precision - sites.precision) / smallest))
        if change < least:
            best, least = target, change
        if least <= config.smallest_change:
            break
        guess = np.concatenate([target.precision, target.projected], axis=1)
        step = guess - np.concatenate([sites.precision, sites.projected], axis=1)
        targets, steps = [*targets, guess][-config.history :], [*steps, step][-config.history :]
        if len(steps) > 1:
            changes = np.diff(steps, axis=0).transpose(1, 2, 0)
            shares = np.linalg.pinv(changes) @ step[..., None]
            guess = guess - (np.diff(targets, axis=0).transpose(1, 2, 0) @ shares)[..., 0]
        sites = Sites(*np.split(guess, 2, axis=1))
        if np.any(sites.precision < 0.5 * target.precision):
            # Too far: begin anew from a plain step.
            sites, targets, steps = target, [], []
    return best
