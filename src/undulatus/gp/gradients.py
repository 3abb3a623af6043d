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
    rows, d = product.shape[-2], z.shape[-1] // 2
    # Of the second term, ∂f/∂Z = -sc Z S; of the first, r mᵗ by one product with the features.
    product *= xp.astype(precision[..., :rows] * -(z.shape[-2] / rows), z.dtype)[..., None]
    in_phases, in_cosines = product[..., d:], product[..., :d]
    in_phases *= z[..., :rows, :d]
    in_cosines *= z[..., :rows, d:]
    in_phases -= in_cosines
    weighted = z.mT @ (xp.astype(residual, z.dtype)[..., None] * x)
    rotated = mean[..., d:, None] * weighted[..., :d, :]
    rotated -= mean[..., :d, None] * weighted[..., d:, :]
    return in_phases.mT @ x[..., :rows, :] + rotated
