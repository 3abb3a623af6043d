r"""The gradient of a bound in the frequencies (Eq. 11): one formula for both bounds.

With the residuals :math:`r` and precisions :math:`c` of the rows' sites, and a posterior
:math:`N(m, S)` of the weights of unit features :math:`z_i`,

.. math:: \partial \log F / \partial z_i = s_i r_i\, m - s_i c_i\, S z_i,

and a step in a phase :math:`p = w^\top x` rotates a pair of features, so that

.. math:: \partial f/\partial P = \partial f/\partial Z_{\sin} \circ Z_{\cos}
    - \partial f/\partial Z_{\cos} \circ Z_{\sin}, \qquad
    \partial f/\partial W = (\partial f/\partial P)^\top X.
"""

from __future__ import annotations

from undulatus.gp.backends import Array, Backend


def bound_gradient(
    z: Array,
    x: Array,
    residual: Array,
    precision: Array,
    mean: Array,
    product: Array,
    xp: Backend,
) -> Array:
    """Return the gradient of a bound in the frequencies, (D, d), from some rows.

    All may be those of several estimators, with one more axis in front.

    Parameters
    ----------
    z, x : (n, 2 D) and (n, d) arrays
        Unit features and rows.
    residual, precision : (n,) arrays
        s r, and s c for the rows of ``product``.
    mean : (2 D,) array
        m, of the weights of unit features.
    product : (q, 2 D) array
        S z of the first q rows, which is overwritten. Fewer than n rows stand for all.
    """
    rows = product.shape[-2]
    product *= xp.astype(precision[..., :rows] * -(z.shape[-2] / rows), z.dtype)[..., None]
    gradient = rotate_back(product, z[..., :rows, :]).mT @ x[..., :rows, :]
    return gradient + mean_gradient(xp.astype(residual, z.dtype), mean, z, x)


def rotate_back(in_features: Array, z: Array) -> Array:
    """Return the gradient in the phases, (n, D), given that in the features, which is overwritten.

    Both are (n, 2 D): ∂f/∂P = ∂f/∂Z_sin ∘ Z_cos - ∂f/∂Z_cos ∘ Z_sin.
    """
    d = z.shape[-1] // 2
    in_cosines, in_sines = in_features[..., :d], in_features[..., d:]
    in_sines *= z[..., :d]
    in_cosines *= z[..., d:]
    in_sines -= in_cosines
    return in_sines


def mean_gradient(residual: Array, mean: Array, z: Array, x: Array) -> Array:
    r"""Return the gradient in the frequencies of :math:`\sum_i r_i z_i^\top m`, (D, d).

    As :func:`rotate_back` of :math:`r\, m^\top`, by one product with the features.
    """
    d = mean.shape[-1] // 2
    product = z.mT @ (residual[..., None] * x)
    in_cosines, in_sines = product[..., :d, :], product[..., d:, :]
    return mean[..., d:, None] * in_cosines - mean[..., :d, None] * in_sines
