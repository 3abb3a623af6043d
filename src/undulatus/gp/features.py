"""Fourier features of rows, paired cosines and sines, and sums of them."""

from __future__ import annotations

import numpy as np

from undulatus.gp.backends import HOST, Array, Backend


def fourier_features(
    x: Array, frequencies: Array, signal_variance: float = 1.0, xp: Backend = HOST
) -> Array:
    r"""Map rows to paired cosines and sines of random projections.

    With :math:`D` frequencies :math:`w_i` drawn from the spectral density of a
    kernel :math:`k`, the map

    .. math:: z(x) = \sqrt{\gamma / D}
        \bigl[\cos w_1^\top x, \dots, \cos w_D^\top x,\;
              \sin w_1^\top x, \dots, \sin w_D^\top x\bigr]

    satisfies :math:`\mathbb E\,[z(x)^\top z(x')] = \gamma\, k(x - x')`.

    Parameters
    ----------
    x : (n, d) array
        Rows, already standardised.
    frequencies : (D, d) array
        One frequency per row, in radians per unit of ``x``.
    signal_variance : float
        Prior variance :math:`\gamma` of the latent function.

    Returns
    -------
    (n, 2 D) array
        All cosines first, then all sines, in the precision of ``x``.

    Notes
    -----
    Every row has squared norm ``signal_variance`` exactly, whatever the
    frequencies: the prior variance carries no Monte-Carlo error.

    Examples
    --------
    >>> z = fourier_features(np.zeros((1, 3)), np.ones((2, 3)))
    >>> z.round(3)
    array([[0.707, 0.707, 0.   , 0.   ]])
    """
    return float(np.sqrt(signal_variance / len(frequencies))) * xp.waves(x, frequencies)


def amplitudes_and_delays(mean: Array, signal_variance: float) -> tuple[Array, Array]:
    r"""Return the waves :math:`r_j \cos(p_j - \varphi_j)` that sum to the latent mean, (D,) each.

    ``mean`` (2 D,) weighs cosines and sines: :math:`a \cos p + b \sin p = r \cos(p - \varphi)`
    with :math:`r^2 = a^2 + b^2`. One cosine a frequency then replaces two.
    """
    d = len(mean) // 2
    amplitude = np.hypot(mean[:d], mean[d:]) * np.sqrt(signal_variance / d)
    return amplitude, np.arctan2(mean[d:], mean[:d])


def sum_of_waves(
    x: Array, frequencies: Array, amplitudes: Array, delays: Array, xp: Backend = HOST
) -> Array:
    """Return the latent mean (n,) at rows ``x`` (n, d), a sum of D delayed cosines."""
    return xp.cosines(xp.phases(x, frequencies, delays)) @ xp.astype(amplitudes, x.dtype)
