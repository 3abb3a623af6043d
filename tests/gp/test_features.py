"""Fourier features: exact norms, correct digits, sums of waves, and gradients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.gp.backends import HOST, make_backend
from undulatus.gp.backends.numpy import SINGLE_PHASE_LIMIT
from undulatus.gp.data import PHASE_LIMIT
from undulatus.gp.features import amplitudes_and_delays, fourier_features, sum_of_waves
from undulatus.gp.taper import tapered_features

SINGLE = make_backend(np.float32)

seeds = st.integers(0, 2**32 - 1)


@given(seeds, st.floats(0.01, 100.0))
def test_every_pixel_has_exactly_the_prior_variance(seed, signal_variance):
    rng = np.random.default_rng(seed)
    z = fourier_features(rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), signal_variance)
    assert_allclose(np.sum(z**2, axis=1), signal_variance, rtol=1e-12)


def test_all_cosines_come_first_and_then_all_sines():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(11, 3)), rng.normal(size=(4, 3))
    z = fourier_features(x, w, 2.5)
    expected = np.sqrt(2.5 / 4) * np.hstack([np.cos(x @ w.T), np.sin(x @ w.T)])
    assert_allclose(z, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_keep_the_precision_of_the_pixels(dtype):
    rng = np.random.default_rng(0)
    z = fourier_features(rng.normal(size=(5, 2)).astype(dtype), rng.normal(size=(3, 2)), 1.7)
    assert z.dtype == dtype


@given(seeds)
def test_unit_features_of_several_estimators_are_those_of_each(seed):
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(1, 7, 3)), rng.normal(size=(1, 5, 3))
    z = tapered_features(x, w, None, HOST)[0].copy()  # It is in the workspace.
    assert z.shape == (1, 7, 10)
    assert_allclose(z[0], fourier_features(x[0], w[0]), rtol=1e-12, atol=1e-14)
    assert_allclose(np.sum(z**2, axis=-1), 1.0, rtol=1e-12)


# With t = tan(P/2) known to u relative, cos moves by at most u (4t²/(1+t²)² <= 1) and sin by
# u/2. Numpy promises its tangent to 4 units in the last place; square, sum, quotient and last
# difference or product add at most 4 rounding errors of a quantity no larger than 2.
UNITS_IN_THE_LAST_PLACE = 8


def awkward_phases(dtype, limit):
    """Phases up to a limit, and the floats around quarter turns, where t is 0, ±1 or ∞."""
    rng = np.random.default_rng(0)
    quarters = (np.arange(-400, 401) * (np.pi / 2)).astype(dtype)
    near = [quarters]
    for _ in range(3):
        near += [np.nextafter(near[-1], dtype(np.inf))]
    near += [-column for column in near]
    far = np.round(np.linspace(1, limit / np.pi, 3000)) // 2 * 2 + 1
    everywhere = rng.uniform(-limit, limit, 20_000)
    around_zero = rng.normal(size=2000) * 10.0 ** rng.uniform(-12, 0, 2000)
    everything = [*near, (far * np.pi).astype(dtype), everywhere, around_zero]
    return np.concatenate([column.astype(dtype) for column in everything])[:, None]


@pytest.mark.parametrize(
    ("dtype", "limit"), [(np.float64, PHASE_LIMIT), (np.float32, SINGLE_PHASE_LIMIT)]
)
def test_the_half_angle_form_is_as_accurate_as_cos_and_sin(dtype, limit):
    phase = awkward_phases(dtype, limit)
    pair = HOST.cosines_and_sines(phase)
    assert pair.dtype == dtype
    # The phases are exact, so their double-precision cos and sin are the reference.
    exact = phase.astype(np.float64)
    tolerance = UNITS_IN_THE_LAST_PLACE * np.finfo(dtype).eps
    assert_allclose(pair[:, :1], np.cos(exact), rtol=0, atol=tolerance)
    assert_allclose(pair[:, 1:], np.sin(exact), rtol=0, atol=tolerance)


@given(st.floats(-PHASE_LIMIT, PHASE_LIMIT))
def test_cosine_and_sine_lie_on_the_unit_circle(phase):
    cosine, sine = HOST.cosines_and_sines(np.array([[phase]]))[0]
    assert abs(cosine**2 + sine**2 - 1.0) < 8 * np.finfo(float).eps


@given(seeds, st.floats(1.0, 1e5))
def test_single_precision_phases_of_far_rows_are_correct(seed, distance):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(9, 3)).astype(np.float32)
    x[::2] *= np.float32(distance)
    w, delays = rng.normal(size=(6, 3)), rng.uniform(-np.pi, np.pi, 6)
    exact = x.astype(np.float64) @ w.T - delays
    turn = SINGLE.phases(x, w, delays).astype(np.float64) - exact
    turn -= 2 * np.pi * np.round(turn / (2 * np.pi))
    # For near rows the frequencies, products and sums are rounded, each no larger than the sum
    # of |x||w|; the phases of far rows are reduced in double and rounded once, below a turn.
    size = np.abs(x).astype(np.float64) @ np.abs(w).T + np.pi
    longest = np.linalg.norm(x, axis=1, keepdims=True) * np.linalg.norm(w, axis=1).max()
    near = longest <= SINGLE_PHASE_LIMIT * 1.001
    allowed = np.finfo(np.float32).eps * np.where(near, 4 * size, 2 * np.pi)
    assert np.all(np.abs(turn) <= allowed)


def test_single_precision_phases_that_cancel_are_correct():
    x = np.array([[1e4, 1.001e4]], dtype=np.float32)
    w = np.array([[1.0, -1.0]]) / 3.0
    turn = SINGLE.phases(x, w).astype(np.float64) - x.astype(np.float64) @ w.T
    turn -= 2 * np.pi * np.round(turn / (2 * np.pi))
    # Products of 3,000 cancel to 3: the row counts as far, and its phase is rounded once.
    assert np.abs(turn) <= 2 * np.pi * np.finfo(np.float32).eps


def test_double_precision_phases_are_plain_products():
    rng = np.random.default_rng(0)
    x, w, delays = rng.normal(size=(5, 3)) * 1e4, rng.normal(size=(4, 3)), rng.normal(size=4)
    assert_array_equal(HOST.phases(x, w), x @ w.T)
    # Products of up to 1e5 are added in another order.
    assert_allclose(HOST.phases(x, w, delays), x @ w.T - delays, rtol=0, atol=1e-10)


def test_no_pixels_give_no_phases():
    for dtype in (np.float32, np.float64):
        assert HOST.phases(np.empty((0, 3), dtype), np.ones((4, 3))).shape == (0, 4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_waves_are_the_features_without_their_scale(dtype):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(50, 3)).astype(dtype), rng.normal(size=(5, 3))
    x[7] *= 1e4  # A far row in single precision.
    found = HOST.waves(x, w, by_column=True).copy("K")
    assert found.dtype == dtype
    assert found.flags.f_contiguous
    # Phases below 20, or reduced to a turn, as sums of three products in another order.
    tolerance = 100 * np.finfo(dtype).eps
    near = np.arange(len(x)) != 7 if dtype == np.float64 else slice(None)
    expected = fourier_features(x, w, signal_variance=5.0)
    assert_allclose(found[near], expected[near], rtol=0, atol=tolerance)


@given(seeds, st.floats(0.01, 100.0))
def test_the_sum_of_waves_is_the_latent_mean(seed, signal_variance):
    rng = np.random.default_rng(seed)
    x, w, mean = rng.normal(size=(8, 3)), rng.normal(size=(5, 3)), rng.normal(size=10)
    given_waves = amplitudes_and_delays(mean, signal_variance)
    expected = fourier_features(x, w, signal_variance) @ mean
    # The error of each wave is a few units in the last place of its amplitude.
    assert_allclose(
        sum_of_waves(x, w, *given_waves),
        expected,
        rtol=0,
        atol=1e-13 * (1 + np.sum(given_waves[0])),
    )


def test_the_sum_of_waves_in_single_precision_follows_the_double_one():
    rng = np.random.default_rng(0)
    x, w, mean = rng.normal(size=(50, 3)), rng.normal(size=(5, 3)), rng.normal(size=10)
    given_waves = amplitudes_and_delays(mean, 3.0)
    single = sum_of_waves(x.astype(np.float32), w, *given_waves)
    assert single.dtype == np.float32
    assert_allclose(single, sum_of_waves(x, w, *given_waves), rtol=0, atol=1e-4)
