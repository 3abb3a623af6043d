r"""A fitted model in one new scene: what differs there, from a few labelled rows of it.

Pixels of one scene err together: same air, same sun, same ground, same annotator. In a scene the
latent function is the shared one, a deviation of the scene's own, and a level,

.. math:: f_s(x) = f(x) + \delta(x) + \ell, \qquad \delta \sim GP(0, \rho^2 k(x, x')),
    \qquad \ell \sim N(0, \sigma^2),

with k the correlation of the model's kernel. What the fit says of f is its prior here. Over
features z of unit variance, :math:`f = b + \sqrt\gamma\, z^\top u`, that is

.. math:: u \sim N(m,\; A^{-1} + \tfrac{\rho^2}{\gamma} I), \qquad \ell \sim N(0, \sigma^2).

Rows of the scene get Gaussian factors :math:`\exp(h f - \tfrac12 c f^2)`, sites, found as for an
update (:mod:`undulatus.gp.update`); the rest is exact. With their prior mean μ and covariance K,

.. math:: P = (K + \mathrm{diag}(1/c))^{-1}, \qquad \alpha = P (h/c - \mu),

a value that has the prior covariance g with the rows gains the mean :math:`g^\top \alpha` and
loses the variance :math:`g^\top P g`. Deviation and level are tapered with the features: away from
the training data every scene is at the prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import block_diag, cho_factor, cho_solve, solve_triangular

from undulatus.gp.backends import HOST, Array
from undulatus.gp.cholesky import factorise
from undulatus.gp.exact import ExactFit, exact_covariance
from undulatus.gp.kernels import Kernel
from undulatus.gp.likelihood import EXPECTED
from undulatus.gp.posterior import LatentFit, Level, Posterior
from undulatus.gp.update import NewRows, Sites


@dataclass(frozen=True)
class SceneConfig:
    """How scenes differ: the prior of one of which no label is known."""

    deviation: float = 0.6
    """Standard deviation of a scene's own latent function around the shared one (logits)."""
    level: float = 0.5
    """Standard deviation of the level of a scene (logits)."""

    @property
    def variance(self) -> float:
        """The variance that a scene adds everywhere, ρ² + σ²."""
        return self.deviation**2 + self.level**2


SCENES = SceneConfig()


@dataclass(frozen=True)
class Scene:
    """What a scene is expected to be at some of its rows, before their labels are seen."""

    mean: Array
    """Of the latent function, μ (n,)."""
    covariance: Array
    """Of what rows have in common, (n, n)."""
    apart: Array
    """Variance of each row by itself, (n,), of which sites tell nothing."""

    def rows(self, sign: Array, weight: Array, signal_variance: float) -> NewRows:
        """Return the rows as an update has them, to find their sites."""
        variances, directions = np.linalg.eigh(self.covariance)
        root = directions * np.sqrt(np.maximum(variances, 0.0))
        return NewRows(self.mean, root, self.apart, sign, weight, signal_variance)

    def solve(self, sites: Sites) -> tuple[Array, Array]:
        """Return α, (n,), and P, (n, n), given the sites of the rows."""
        roots, covariance = np.sqrt(sites.precision), self.covariance
        # P = C^½ (I + C^½ K C^½)⁻¹ C^½: rows of weight zero have no 1/c.
        factor = cho_factor(np.eye(len(roots)) + roots[:, None] * covariance * roots, lower=True)
        gain = roots[:, None] * cho_solve(factor, np.diag(roots))
        pulled = sites.projected - sites.precision * self.mean
        return pulled - gain @ (covariance @ pulled), gain

    def bound(self, sites: Sites, sign: Array, weight: Array) -> float:
        """Return the bound on the log probability of the labels, E log p(y | f) - KL (nats)."""
        (alpha, gain), covariance = self.solve(sites), self.covariance
        mean = self.mean + covariance @ alpha
        variance = np.diag(covariance - covariance @ gain @ covariance) + self.apart
        roots = np.sqrt(sites.precision)
        scaled = np.eye(len(roots)) + roots[:, None] * covariance * roots
        # KL(q || prior) = (αᵗKα - tr PK + log|I + C^½ K C^½|) / 2
        divergence = alpha @ covariance @ alpha - np.sum(gain * covariance)
        divergence += np.linalg.slogdet(scaled)[1]
        value = EXPECTED.sites(mean, np.maximum(variance, 0.0), sign, HOST).value
        return float(weight @ value - 0.5 * divergence)


class SceneWeights:
    """The prior of a scene's weights and level, (u, ℓ), and some rows of it."""

    def __init__(
        self, latent: LatentFit, z: Array, untapered: Array, config: SceneConfig = SCENES
    ) -> None:
        """Take tapered features of unit variance, (n, k), and 1 - d², (n,)."""
        self.latent, self.config, self.signal_variance = latent, config, latent.signal_variance
        root, share = latent.posterior.root, np.sqrt(1.0 - untapered)
        features = np.sqrt(self.signal_variance) * z
        # The covariance of (u, ℓ) with the latent function at the rows, (k + 1, n).
        in_weights = root.T @ (root @ features.T) + self._own_variance * features.T
        self.with_rows = np.vstack([in_weights, config.level**2 * share])
        self.scene = Scene(
            latent.prior_mean + features @ latent.posterior.mean,
            np.column_stack([features, share]) @ self.with_rows,
            self.signal_variance * untapered,
        )

    @property
    def _own_variance(self) -> float:
        """Of each of the scene's weights, ρ²/γ."""
        return self.config.deviation**2 / self.signal_variance

    def given(self, sites: Sites) -> LatentFit:
        """Return the latent function of the scene, given the sites of the rows."""
        alpha, gain = self.scene.solve(sites)
        mean = np.append(self.latent.posterior.mean, 0.0) + self.with_rows @ alpha
        of_weights = self.latent.posterior.covariance
        of_weights[np.diag_indices_from(of_weights)] += self._own_variance
        covariance = block_diag(of_weights, self.config.level**2)
        covariance -= self.with_rows @ gain @ self.with_rows.T
        level = Level(
            float(mean[-1]),
            float(covariance[-1, -1]),
            covariance[:-1, -1].copy(),
            self.config.variance,
        )
        posterior = from_covariance(mean[:-1], covariance[:-1, :-1])
        return replace(self.latent, posterior=posterior, level=level)


class SceneFunctions:
    """The prior of a scene of an exact process, and some rows of it, (n, d) standardised."""

    def __init__(
        self,
        fit: ExactFit,
        training: Array,
        kernel: Kernel,
        x: Array,
        config: SceneConfig = SCENES,
    ) -> None:
        self.fit, self.training, self.kernel, self.x, self.config = (
            fit,
            training,
            kernel,
            x,
            config,
        )
        self.signal_variance = fit.signal_variance
        cross, own = self._prior(training), fit.posterior
        inner = solve_triangular(own.factor, own.roots[:, None] * cross, lower=True)
        # S L⁻ᵗ L⁻¹ S K(training, rows): what the training rows already say of these.
        self._known = own.roots[:, None] * solve_triangular(
            own.factor, inner, lower=True, trans="T"
        )
        mean = cross.T @ own.alpha + fit.prior_mean
        self.scene = Scene(mean, self.covariance(x), np.zeros(len(x)))

    def _prior(self, x: Array) -> Array:
        """Return the prior covariance of the shared latent function at ``x`` and the rows."""
        fit = self.fit
        return exact_covariance(x, self.x, self.kernel, fit.signal_variance, fit.lengthscale)

    def covariance(self, x: Array) -> Array:
        """Return the covariance of the scene's latent function at ``x`` (m, d) and the rows."""
        fit, config = self.fit, self.config
        shared = self._prior(x)
        deviation = config.deviation**2 / fit.signal_variance * shared
        with_training = exact_covariance(
            x, self.training, self.kernel, fit.signal_variance, fit.lengthscale
        )
        return shared - with_training @ self._known + deviation + config.level**2

    def given(self, sites: Sites) -> LabelledScene:
        """Return the scene with labels of its rows, which have these sites."""
        return LabelledScene(self, *self.scene.solve(sites))


@dataclass(frozen=True)
class LabelledScene:
    """A scene of an exact process of which some rows are labelled."""

    before: SceneFunctions
    alpha: Array
    gain: Array

    def moments(self, x: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Return latent mean and variance at ``x`` in the scene, given those shared, (m,) each."""
        covariance = self.before.covariance(x)
        told = np.einsum("ij,ij->i", covariance @ self.gain, covariance)
        return mean + covariance @ self.alpha, np.maximum(
            variance + self.prior_variance - told, 0.0
        )

    @property
    def prior_variance(self) -> float:
        """What the scene adds to the variance before its labels are seen."""
        return self.before.config.variance


def from_covariance(mean: Array, covariance: Array) -> Posterior:
    """Return the posterior with a mean (k,) and a covariance (k, k)."""
    # The root is lower triangular and RᵗR the covariance: Cholesky's factor from the last row up.
    factor, jitter = factorise(np.asfortranarray(covariance[::-1, ::-1]))
    root = np.asfortranarray(np.tril(factor)[::-1, ::-1].T)
    log_determinant = -2.0 * float(np.sum(np.log(np.diagonal(root))))
    quadratic = float(mean @ cho_solve((factor, True), mean[::-1])[::-1])
    return Posterior(mean, root, log_determinant, quadratic, jitter)
