r"""Coordinates of rows in which those are near of which a label of one tells about the other.

The latent functions of an ensemble have the posterior covariance

.. math:: k(x, x') = \frac1M \sum_i \bigl[ z_i(x)^\top A_i^{-1} z_i(x')
    + (\mu_i(x) - \mu(x)) (\mu_i(x') - \mu(x')) \bigr],

of what the estimators do not know and what they disagree on, added up over the latent functions of
the classes. It is an inner product of many coordinates, here of few: a random projection keeps
inner products, up to an error of one over the square root of their number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from undulatus.estimators.validation import validate_rows
from undulatus.gp.backends import HOST, Array, to_host
from undulatus.gp.features import fourier_features

WIDTH = 128
"""Coordinates of a row."""


def posterior_coordinates(
    model: Any, X: Any, rng: np.random.Generator, width: int = WIDTH
) -> Array:
    """Return coordinates of rows whose inner products are about their posterior covariance.

    Parameters
    ----------
    model : RFFGPC, VFFGPC or GPC
        Fitted. A GPC has no frequencies: coordinates are its standardised features.
    X : (n, d) array or table
    rng : Generator
        Of the projection.
    width : int

    Returns
    -------
    (n, width) array
        Where the latent function is tapered away from training, the part from the prior is that of
        features, too, so that rows there are near only if they are alike.
    """
    check_is_fitted(model)
    rows = to_host(validate_rows(model, X, reset=False)[:])
    x = model.standardisation_(np.asarray(rows), np.float64)
    if not hasattr(model, "n_frequencies"):
        return np.asarray(x)
    fits = model.estimators_
    kept = model._model(HOST).taper.share(x)
    shares = np.ones((len(fits), 1, len(x))) if kept is None else kept
    coordinates = np.zeros((len(x), width))
    means = np.empty((len(fits), len(fits[0].latents), len(x)))
    for number, (fit, share) in enumerate(zip(fits, shares[:, 0], strict=True)):
        features = fourier_features(x, fit.frequencies)
        known, untapered = share[:, None], np.sqrt(1.0 - share**2)[:, None]
        for latent, own in enumerate(fit.latents):
            scale = np.sqrt(own.signal_variance)
            of_posterior, of_prior = rng.normal(scale=scale, size=(2, features.shape[1], width))
            coordinates += known * (features @ (own.posterior.root.T @ of_posterior))
            if kept is not None:
                coordinates += untapered * (features @ of_prior)
            means[number, latent] = own.prior_mean + scale * share * (
                features @ own.posterior.mean
            )
    for apart in np.moveaxis(means - means.mean(axis=0), 1, 0):
        coordinates += apart.T @ rng.normal(size=(len(fits), width))
    return coordinates / np.sqrt(width * len(fits))
