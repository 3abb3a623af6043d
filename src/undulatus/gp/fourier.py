"""Fourier features of pixels, paired cosines and sines, and the gradient back through them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.gp.arrays import (
    Array,
    all_digits,
    double,
    double_phases,
    is_single,
    is_tensor,
    like,
    namespace,
    scratch,
)

SINGLE_PHASE_LIMIT = 512.0
"""Largest length of x times w for which a single-precision phase is good to 1e-4."""


def phases(
    x: Array, frequencies: Array, shift: Array | None = None, *, by_wave: bool = False
) -> Array:
    """Return x Wᵗ (+ shift), (n, D), in the dtype of ``x``, with correct digits throughout.

    The array is this thread's scratch: the next call overwrites it. Rows are contiguous or, if
    ``by_wave``, columns. Rows whose phases are too large for single precision are computed in
    double and reduced to one turn before rounding.
    """
    w = like(frequencies, x)
    if is_tensor(x):
        phase = _phases_of_tensor(x, frequencies, w, by_wave)
        return phase if shift is None else phase + like(shift, x)
    phase = _scratch("phase", (len(x), len(w)), x.dtype, by_wave)
    rows = x
    if shift is not None:
        # As the frequency of a feature that is 1: the product adds it on the way.
        rows, w = _with_ones(x), np.column_stack([w, shift.astype(x.dtype, copy=False)])
    if by_wave:
        np.matmul(w, rows.T, out=phase.T)
    else:
        np.matmul(rows, w.T, out=phase)
    if x.dtype == np.float32 and phase.size:
        far = _far_rows(x, frequencies)
        if len(far):
            exact = x[far].astype(np.float64) @ frequencies.astype(np.float64).T
            if shift is not None:
                exact += shift
            phase[far] = np.remainder(exact, 2.0 * np.pi)
    return phase


def _with_ones(x: Array) -> Array:
    """Return rows with one more feature that is 1, in this thread's scratch."""
    rows = _scratch("with ones", (len(x), x.shape[1] + 1), x.dtype, True)
    rows[:, :-1] = x
    rows[:, -1] = 1.0
    return rows


def _phases_of_tensor(x: Any, frequencies: Any, w: Any, by_wave: bool) -> Any:
    """Return x Wᵗ, (n, D) or of several members (M, n, D); computed in double if asked for."""
    needed = double_phases()
    if needed is None:
        longest = float(namespace(w).linalg.vector_norm(w, axis=-1).max())
        needed = float((x * x).sum(-1).max()) > (SINGLE_PHASE_LIMIT / max(longest, 1e-12)) ** 2
    with all_digits():
        if is_single(x) and needed:
            w = double(w if is_single(frequencies) else frequencies)
            phase = namespace(x).remainder(_outer(double(x), w, by_wave), 2.0 * np.pi)
            return like(phase, x)
        return _outer(x, w, by_wave)


def _outer(x: Any, w: Any, by_wave: bool) -> Any:
    """Return x wᵗ, whose columns are contiguous if they are to be by wave."""
    return (w @ x.mT).mT if by_wave else x @ w.mT


def far_row(frequencies: Array) -> float:
    """Return the length of a row beyond which its phases need double precision."""
    return SINGLE_PHASE_LIMIT / max(float(np.linalg.norm(frequencies, axis=1).max()), 1e-12)


def _far_rows(x: Array, frequencies: Array) -> Array:
    """Return the numbers of the rows whose phases need double precision."""
    # Bound by |x||w|, not |x·w|: products that cancel lose as many digits as a large sum.
    limit = far_row(frequencies) ** 2
    # No row is longer than one of largest values throughout, which is cheaper to find.
    if x.shape[1] * float(max(x.max(), -x.min())) ** 2 <= limit:
        return np.empty(0, np.intp)
    return np.flatnonzero(np.einsum("ij,ij->i", x, x) > limit)


def _scratch(name: str, shape: tuple[int, int], dtype: npt.DTypeLike, by_column: bool) -> Array:
    """Return this thread's array called ``name``, its rows contiguous, or its columns."""
    return scratch(name, shape[::-1], dtype).T if by_column else scratch(name, shape, dtype)


def cosines_and_sines(phase: Any, out: Array | None = None) -> Any:
    """Return [cos P, sin P], (n, 2D); in ``out`` if given.

    In double precision both come from one tangent of the half angle, t = tan(P/2): cos P =
    (1 - t²)/(1 + t²) and sin P = 2t/(1 + t²). Numpy vectorises its double tangent but not its
    double cosine and sine; the absolute error is a few units in the last place of 1.
    """
    *rows, d = phase.shape
    pair = out
    if pair is None and is_tensor(phase):
        pair = phase.new_empty((*rows, 2 * d))
    elif pair is None:
        pair = np.empty((*rows, 2 * d), dtype=phase.dtype)
    cosine, sine = pair[..., :d], pair[..., d:]
    if is_single(phase) or is_tensor(phase):
        xp = namespace(phase)
        xp.cos(phase, out=cosine)
        xp.sin(phase, out=sine)
        return pair
    n = len(phase)
    by_column = not phase.flags.c_contiguous
    tangent, share = (
        _scratch(name, (n, d), phase.dtype, by_column) for name in ("tangent", "share")
    )
    np.multiply(phase, 0.5, out=tangent)
    np.tan(tangent, out=tangent)
    np.multiply(tangent, tangent, out=share)
    share += 1.0
    np.divide(2.0, share, out=share)
    np.multiply(tangent, share, out=sine)
    np.subtract(share, 1.0, out=cosine)
    return pair


def waves(x: Any, frequencies: Array) -> Any:
    """Return [cos P, sin P], (n, 2D), each wave contiguous: the features without their scale.

    The fastest way to features that are needed once. The array is this thread's scratch: the
    next call overwrites it.
    """
    if is_tensor(x):
        pair = x.new_empty((2 * len(frequencies), len(x)))
        phase = phases(x, frequencies, by_wave=True)
        cosines_and_sines(phase, pair.T)
        return pair.T
    pair = _scratch("waves", (len(x), 2 * len(frequencies)), x.dtype, True)
    return cosines_and_sines(phases(x, frequencies, by_wave=True), pair)


def fourier_features(
    x: Array, frequencies: Array, signal_variance: float = 1.0, out: Array | None = None
) -> Array:
    r"""Map pixels to paired cosines and sines of random projections.

    With :math:`D` frequencies :math:`w_i` drawn from the spectral density of a
    kernel :math:`k`, the map

    .. math:: z(x) = \sqrt{\gamma / D}
        \bigl[\cos w_1^\top x, \dots, \cos w_D^\top x,\;
              \sin w_1^\top x, \dots, \sin w_D^\top x\bigr]

    satisfies :math:`\mathbb E\,[z(x)^\top z(x')] = \gamma\, k(x - x')`.

    Parameters
    ----------
    x : (n, d) array
        Pixels, one per row, already standardised.
    frequencies : (D, d) array
        One frequency per row, in radians per unit of ``x``.
    signal_variance : float
        Prior variance :math:`\gamma` of the latent function.
    out : (n, 2 D) array, optional
        Where to write the features.

    Returns
    -------
    (n, 2 D) array
        All cosines first, then all sines, in the dtype of ``x``.

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
    z = cosines_and_sines(phases(x, frequencies), out)
    z *= like(namespace(signal_variance).sqrt(signal_variance / frequencies.shape[-2]), x)
    return z


def amplitudes_and_delays(mean: Array, signal_variance: float) -> tuple[Array, Array]:
    r"""Return the waves :math:`r_j \cos(p_j - \varphi_j)` that sum to the latent mean, (D,) each.

    ``mean`` (2 D,) weighs cosines and sines: :math:`a \cos p + b \sin p = r \cos(p - \varphi)`
    with :math:`r^2 = a^2 + b^2`. One cosine a frequency then replaces two.
    """
    d = len(mean) // 2
    amplitude = np.hypot(mean[:d], mean[d:]) * np.sqrt(signal_variance / d)
    return amplitude, np.arctan2(mean[d:], mean[:d])


def sum_of_waves(x: Array, frequencies: Array, amplitudes: Array, delays: Array) -> Array:
    """Return the latent mean (n,) at pixels ``x`` (n, d), a sum of D delayed cosines."""
    wave = phases(x, frequencies, -delays)
    if is_single(wave) or is_tensor(wave):
        namespace(wave).cos(wave, out=wave)
    else:
        # Half-angle form, as in `cosines_and_sines`: numpy's double cosine is slow.
        wave *= 0.5
        np.tan(wave, out=wave)
        wave *= wave
        wave += 1.0
        np.divide(2.0, wave, out=wave)
        wave -= 1.0
    return wave @ like(amplitudes, x)


def frequency_gradient(feature_gradient: Array, z: Array, x: Array) -> Array:
    r"""Return the gradient in the frequencies, given that in the features.

    A step in phase rotates each pair: :math:`\partial f/\partial P =
    \partial f/\partial Z_{\sin} \circ Z_{\cos} - \partial f/\partial Z_{\cos} \circ Z_{\sin}`,
    and :math:`\partial f/\partial W = (\partial f/\partial P)^\top X`.

    Parameters
    ----------
    feature_gradient, z : (n, 2 D) arrays
        The gradient in the features (overwritten), and the features.
    x : (n, d) array
        The pixels.

    Returns
    -------
    (D, d) array
    """
    d = z.shape[-1] // 2
    in_cosines, in_sines = feature_gradient[..., :d], feature_gradient[..., d:]
    in_sines *= z[..., :d]
    in_cosines *= z[..., d:]
    in_sines -= in_cosines
    return in_sines.mT @ x


def mean_gradient(pull: Array, mean: Array, z: Array, x: Array) -> Array:
    r"""Return the gradient in the frequencies of :math:`\sum_i c_i z_i^\top m`, (D, d).

    As :func:`frequency_gradient` of :math:`c\, m^\top`, by one product with the features. All may
    be those of several members, with one more axis in front.

    Parameters
    ----------
    pull : (n,) array
        c, what pulls at the latent mean of each pixel.
    mean : (2 D,) array
        m, the mean of the weights.
    z, x : (n, 2 D) and (n, d) arrays
        Features and pixels.
    """
    d = mean.shape[-1] // 2
    product = z.mT @ (pull[..., None] * x)
    in_cosines, in_sines = product[..., :d, :], product[..., d:, :]
    return mean[..., d:, None] * in_cosines - mean[..., :d, None] * in_sines
