"""The evidence bound: the logistic bound, the paper's equations, gradients, invariances."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import expit, log_expit

from undulatus.gp.arrays import recycling
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.bound import (
    Statistics,
    accumulate,
    best_variance_ratio,
    blend_gram,
    block_statistics,
    bound_gradient,
    damped_features,
    feature_gradient,
    gram_tiles,
    half_slope,
    log_sigmoid_bound,
    log_variance_gradient,
    offset,
    sampled_gradient,
    sum_statistics,
    tighten,
)
from undulatus.gp.damping import damping
from undulatus.gp.fourier import fourier_features, frequency_gradient

seeds = st.integers(0, 2**32 - 1)
reals = st.floats(-1e3, 1e3)
sizes = st.floats(0.0, 1e3)


# The logistic bound


def rounding(f, xi):
    """Rounding error of the bound: a few units in the last place of its largest term."""
    return 1e-14 * (1.0 + abs(f) + 0.125 * f**2 + xi)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_half_slope_is_one_eighth_at_zero(dtype):
    found = half_slope(np.zeros(1, dtype=dtype))
    assert found.dtype == dtype
    # Zero is replaced by sqrt(eps)/8, where tanh(x)/x is 1 - eps/768.
    assert_allclose(found, 0.125, rtol=2 * np.finfo(dtype).eps)


@given(st.floats(1e-2, 1e3))
def test_the_half_slope_is_that_of_the_sigmoid(xi):
    # The paper's form (ψ(ξ) - 1/2) / (2ξ) cancels towards zero: at 1e-2 it has 13 digits left.
    assert_allclose(half_slope(np.array(xi)), (expit(xi) - 0.5) / (2.0 * xi), rtol=1e-12)


@given(st.floats(1e-30, 1e-2))
def test_the_half_slope_follows_its_series_near_zero(xi):
    # tanh(x)/x = 1 - x²/3 + 2x⁴/15 - ..., the next term below 1e-14 of the whole; replacing
    # the smallest ξ costs less than a unit in the last place.
    square = (xi / 2) ** 2
    series = (1 - square / 3 + 2 * square**2 / 15) / 8
    assert_allclose(half_slope(np.array(xi)), series, rtol=1e-14)


@given(reals)
def test_the_half_slope_is_even(xi):
    assert half_slope(np.array(-xi)) == half_slope(np.array(xi))


def test_the_offset_at_zero_is_minus_the_logarithm_of_two():
    assert_allclose(offset(np.zeros(1)), -np.log(2.0), rtol=1e-15)


@given(reals, sizes)
def test_the_parabola_never_exceeds_the_log_sigmoid(f, xi):
    bound = log_sigmoid_bound(np.array(f), np.array(xi))
    assert bound <= log_expit(f) + rounding(f, xi)


@given(sizes, st.sampled_from([-1.0, 1.0]))
def test_the_parabola_touches_the_log_sigmoid_at_both_signs(xi, sign):
    bound = log_sigmoid_bound(np.array(sign * xi), np.array(xi))
    assert_allclose(bound, log_expit(sign * xi), rtol=0, atol=rounding(xi, xi))


# Problems and their oracle


def problem(seed=0, n=40, d=3, D=4, weighted=False, dtype=np.float64, rows_per_block=10**6):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    positive = x[:, 0] + 0.5 * rng.normal(size=n) > 0
    weight = rng.uniform(0.2, 3.0, n) if weighted else None
    pixels = Pixels(
        x,
        positive,
        weight,
        Standardisation(np.zeros(d), np.ones(d)),
        np.dtype(dtype),
        rows_per_block,
    )
    frequencies, xi = rng.normal(size=(D, d)), rng.uniform(0.1, 3.0, n).astype(dtype)
    return pixels, frequencies, float(rng.uniform(0.3, 5.0)), xi


def paper(pixels, frequencies, gamma, xi):
    """log F, μ and Σ of the weights β, by the paper's equations.

    Features without γ (feats_RFF), prior N(0, γI) on β, Σ and μ by (posterior), F by
    (varGlobal), C(ξ) below (varboundHere). Cosines come before sines here, which only
    permutes β. A weight is a power of the likelihood: it multiplies log C, Λ and v.
    """
    x = np.asarray(pixels.rows)
    weight = np.ones(len(x)) if pixels.weight is None else pixels.weight
    phase = x @ frequencies.T
    Z = np.hstack([np.cos(phase), np.sin(phase)]) / np.sqrt(len(frequencies))
    lam = (expit(xi) - 0.5) / (2 * xi)
    v = pixels.codes - 0.5
    k = Z.shape[1]
    Sigma = np.linalg.inv(Z.T @ np.diag(2 * weight * lam) @ Z + np.eye(k) / gamma)
    mu = Sigma @ Z.T @ (weight * v)
    log_C = np.sum(weight * (lam * xi**2 + xi / 2 - np.log(1 + np.exp(xi))))
    log_F = (
        log_C + 0.5 * np.linalg.slogdet(Sigma / gamma)[1] + 0.5 * mu @ np.linalg.solve(Sigma, mu)
    )
    return log_F, mu, Sigma


def test_the_oracle_has_the_same_features():
    pixels, frequencies, gamma, _ = problem()
    x = np.asarray(pixels.rows)
    z = fourier_features(x, frequencies, gamma)
    phase = x @ frequencies.T
    expected = np.sqrt(gamma / len(frequencies)) * np.hstack([np.cos(phase), np.sin(phase)])
    assert_allclose(z, expected, atol=1e-13)


def bound_at(pixels, frequencies, gamma, xi):
    statistics = accumulate(pixels, frequencies, gamma, xi)
    return statistics.bound(statistics.posterior())


def central_differences(function, point, step=1e-5):
    found = np.empty_like(point)
    for index in np.ndindex(point.shape):
        nudge = np.zeros_like(point)
        nudge[index] = step
        found[index] = (function(point + nudge) - function(point - nudge)) / (2 * step)
    return found


# Against the paper


@given(seeds, st.booleans())
def test_bound_and_posterior_are_those_of_the_paper(seed, weighted):
    pixels, frequencies, gamma, xi = problem(seed, weighted=weighted)
    statistics = accumulate(pixels, frequencies, gamma, xi)
    posterior = statistics.posterior()
    log_F, mu, Sigma = paper(pixels, frequencies, gamma, xi)
    assert_allclose(statistics.bound(posterior), log_F, rtol=1e-10)
    # Our weights are whitened: β = sqrt(γ) times them.
    assert_allclose(np.sqrt(gamma) * posterior.mean, mu, rtol=1e-10, atol=1e-12)
    assert_allclose(gamma * posterior.covariance, Sigma, rtol=1e-10, atol=1e-12)


@given(seeds)
def test_tightening_sets_xi_as_the_paper_does(seed):
    pixels, frequencies, gamma, xi = problem(seed)
    _, mu, Sigma = paper(pixels, frequencies, gamma, xi)
    posterior = accumulate(pixels, frequencies, gamma, xi).posterior()
    phase = np.asarray(pixels.rows) @ frequencies.T
    Z = np.hstack([np.cos(phase), np.sin(phase)]) / np.sqrt(len(frequencies))
    expected = np.sqrt(np.diagonal(Z @ Sigma @ Z.T) + (Z @ mu) ** 2)
    tighten(pixels, frequencies, gamma, posterior, xi)
    assert_allclose(xi, expected, rtol=1e-10)


def test_tightening_returns_the_statistics_at_the_new_xi():
    pixels, frequencies, gamma, xi = problem(rows_per_block=7)
    posterior = accumulate(pixels, frequencies, gamma, xi).posterior()
    found = tighten(pixels, frequencies, gamma, posterior, xi)
    again = accumulate(pixels, frequencies, gamma, xi)
    assert_array_equal(found.gram, again.gram)
    assert_array_equal(found.projected, again.projected)
    assert found.offset == again.offset


@given(seeds, st.booleans())
def test_tightening_never_lowers_the_bound(seed, weighted):
    pixels, frequencies, gamma, xi = problem(seed, weighted=weighted)
    statistics = accumulate(pixels, frequencies, gamma, xi)
    bound = statistics.bound(statistics.posterior())
    for _ in range(5):
        statistics = tighten(pixels, frequencies, gamma, statistics.posterior(), xi)
        tighter = statistics.bound(statistics.posterior())
        assert tighter >= bound - 1e-12 * abs(bound)
        bound = tighter


# Damped waves and a level


def features_and_product(block, frequencies, gamma, moment, spread):
    z, fresh = damped_features(block, frequencies, gamma, spread)
    return z, z @ moment, fresh


def tight_xi(z, product, fresh):
    return np.sqrt(np.sum(product * z, axis=1) + fresh)


LEVEL = -0.8


def damped_problem(seed=0, **options):
    """A problem with weights, in one block, and a spread (d,)."""
    pixels, frequencies, gamma, xi = problem(seed, weighted=True, **options)
    spread = np.random.default_rng([seed, 1]).uniform(0.0, 0.6, pixels.n_features)
    return pixels, frequencies, gamma, xi, spread


def dense_damped(pixels, frequencies, gamma, xi, spread, level):
    """log F, mean and covariance of the whitened weights, term by term.

    The likelihood of a row is exp(s (v f - λ(f² - ξ²) - ξ/2 - log(1 + exp(-ξ)))), averaged in
    the exponent over h, with f = b + d z'w + sqrt(1 - d²) h.
    """
    x, s, v = np.asarray(pixels.rows), pixels.weight, pixels.codes - 0.5
    kept = np.exp(-0.5 * np.sum((spread * x) ** 2, axis=1))
    Z = kept[:, None] * fourier_features(x, frequencies, gamma)
    lam = (expit(xi) - 0.5) / (2 * xi)
    covariance = np.linalg.inv(np.eye(Z.shape[1]) + Z.T @ np.diag(2 * s * lam) @ Z)
    projected = Z.T @ (s * (v - 2 * lam * level))
    mean = covariance @ projected
    constant = v * level - lam * (level**2 + (1 - kept**2) * gamma - xi**2)
    constant += -xi / 2 - np.log(1 + np.exp(-xi))
    log_F = s @ constant + 0.5 * (projected @ mean + np.linalg.slogdet(covariance)[1])
    return log_F, mean, covariance, Z, kept


def statistics_of_block(pixels, frequencies, gamma, xi, spread, level):
    block = pixels.block(slice(0, pixels.n_rows))
    z, fresh = damped_features(block, frequencies, gamma, spread)
    return block_statistics(z, block, xi, fresh, level)


@given(seeds)
def test_damped_features_are_a_share_of_the_waves_and_the_rest_is_fresh_variance(seed):
    pixels, frequencies, gamma, _, spread = damped_problem(seed)
    block = pixels.block(slice(0, pixels.n_rows))
    z, fresh = damped_features(block, frequencies, gamma, spread)
    kept = damping(block.x, spread)
    waves = fourier_features(block.x, frequencies, gamma)
    assert_allclose(z, kept[:, None] * waves, rtol=1e-12, atol=1e-14)
    # The prior variance of the waves and the fresh one make γ.
    assert_allclose(np.sum(z**2, axis=1) + fresh, gamma, rtol=1e-12)


def test_a_spread_of_zero_damps_nothing():
    pixels, frequencies, gamma, _, spread = damped_problem()
    block = pixels.block(slice(0, pixels.n_rows))
    plain = damped_features(block, frequencies, gamma, None)[0].copy()
    z, fresh = damped_features(block, frequencies, gamma, 0.0 * spread)
    assert_array_equal(z, plain)
    assert_array_equal(fresh, 0.0)


@given(seeds, st.sampled_from([0.0, LEVEL, 2.5]))
def test_damped_bound_and_posterior_are_those_of_dense_formulas(seed, level):
    given = damped_problem(seed)
    statistics = statistics_of_block(*given, level)
    posterior = statistics.posterior()
    log_F, mean, covariance, *_ = dense_damped(*given, level)
    assert_allclose(statistics.bound(posterior), log_F, rtol=1e-10)
    assert_allclose(posterior.mean, mean, rtol=1e-10, atol=1e-12)
    assert_allclose(posterior.covariance, covariance, rtol=1e-10, atol=1e-12)


@given(seeds)
def test_tightening_with_damped_waves_and_a_level_is_that_of_dense_formulas(seed):
    pixels, frequencies, gamma, xi, spread = damped_problem(seed, rows_per_block=7)
    _, mean, covariance, Z, kept = dense_damped(pixels, frequencies, gamma, xi, spread, LEVEL)
    posterior = statistics_of_block(pixels, frequencies, gamma, xi, spread, LEVEL).posterior()
    variance = np.einsum("ij,jk,ik->i", Z, covariance, Z) + (1 - kept**2) * gamma
    expected = np.sqrt(variance + (Z @ mean + LEVEL) ** 2)
    arguments = pixels, frequencies, gamma, posterior, xi
    found = tighten(*arguments, spread=spread, levels=(LEVEL, -2.0 * LEVEL))
    assert_allclose(xi, expected, rtol=1e-10)
    # ξ is that of the level it was found with; the statistics are those of the new one.
    again = statistics_of_block(pixels, frequencies, gamma, xi, spread, -2.0 * LEVEL)
    scale = np.abs(again.gram).max()
    assert_allclose(found.gram, again.gram, rtol=1e-12, atol=1e-12 * scale)
    assert_allclose(found.projected, again.projected, rtol=1e-12, atol=1e-12 * scale)
    assert_allclose(found.offset, again.offset, rtol=1e-12)


@given(seeds, st.sampled_from([0.0, LEVEL, 2.5]))
def test_tightening_never_lowers_the_bound_of_damped_waves_with_a_level(seed, level):
    pixels, frequencies, gamma, xi, spread = damped_problem(seed)
    statistics = statistics_of_block(pixels, frequencies, gamma, xi, spread, level)
    bound = statistics.bound(statistics.posterior())
    options = {"spread": spread, "levels": (level, level)}
    for _ in range(5):
        statistics = tighten(pixels, frequencies, gamma, statistics.posterior(), **options)
        tighter = statistics.bound(statistics.posterior())
        assert tighter >= bound - 1e-12 * abs(bound)
        bound = tighter


@given(seeds)
def test_xi_from_the_second_moment_is_that_of_tightening(seed):
    pixels, frequencies, gamma, xi, spread = damped_problem(seed)
    posterior = statistics_of_block(pixels, frequencies, gamma, xi, spread, 0.0).posterior()
    tighten(pixels, frequencies, gamma, posterior, xi, spread=spread)
    block, moment = pixels.block(slice(0, pixels.n_rows)), posterior.second_moment
    found = tight_xi(*features_and_product(block, frequencies, gamma, moment, spread))
    assert_allclose(found, xi, rtol=1e-10)


# Gradients


@given(seeds)
def test_the_gradient_in_damped_frequencies_is_that_of_finite_differences(seed):
    pixels, frequencies, gamma, xi, spread = damped_problem(seed, n=15, d=2, D=3)

    def bound(frequencies):
        statistics = statistics_of_block(pixels, frequencies, gamma, xi, spread, 0.0)
        return statistics.bound(statistics.posterior())

    posterior = statistics_of_block(pixels, frequencies, gamma, xi, spread, 0.0).posterior()
    block, moment = pixels.block(slice(0, 15)), posterior.second_moment
    z, product, _ = features_and_product(block, frequencies, gamma, moment, spread)
    in_features = feature_gradient(product, block, xi, posterior.mean)
    found = frequency_gradient(in_features, z, block.x)
    expected = central_differences(bound, frequencies)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@given(seeds)
def test_the_gradient_of_all_sampled_rows_is_that_of_the_bound(seed):
    pixels, frequencies, gamma, xi, spread = damped_problem(seed)
    posterior = statistics_of_block(pixels, frequencies, gamma, xi, spread, 0.0).posterior()
    block, moment = pixels.block(slice(0, pixels.n_rows)), posterior.second_moment
    z, product, fresh = features_and_product(block, frequencies, gamma, moment, spread)
    tight = tight_xi(z, product, fresh)
    expected = frequency_gradient(
        feature_gradient(product, block, tight, posterior.mean), z, block.x
    )
    moments = posterior.mean, posterior.covariance
    precision, found = sampled_gradient(z, fresh, block, *moments, pixels.n_rows)
    assert_allclose(precision, 2.0 * block.weight * half_slope(tight), rtol=1e-10)
    assert_allclose(found, expected, rtol=1e-10, atol=1e-10)


def test_the_gradient_of_sampled_rows_is_on_average_that_of_all():
    # Where all rows have the same weight, precision and variance, any order of the rows is a
    # sample: the mean over all cyclic shifts is the gradient of all rows.
    pixels, frequencies, gamma, _ = problem(3, n=12)
    block = pixels.block(slice(0, 12))
    z, fresh = damped_features(block, frequencies, gamma, None)
    z, k = z.copy(), z.shape[1]
    mean, covariance = np.zeros(k), 0.5 * np.eye(k)
    found = []
    for shift in range(12):
        order = np.roll(np.arange(12), shift)
        own = replace(block, x=block.x[order], v=block.v[order], weight=block.weight[order])
        found.append(sampled_gradient(z[order], fresh, own, mean, covariance, 3)[1])
    _, expected = sampled_gradient(z, fresh, block, mean, covariance, 12)
    assert_allclose(np.mean(found, axis=0), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [6, 100, 230, 430])
def test_tiles_blend_a_gram_matrix_with_that_of_new_features(k):
    rng = np.random.default_rng(0)
    scaled, before = rng.normal(size=(50, k)), rng.normal(size=(k, k))
    before += before.T
    gram = before.copy()
    for tile in gram_tiles(k):
        blend_gram(gram, scaled, tile, 0.7, 2.0)
    assert_allclose(gram, 0.7 * before + 2.0 * scaled.T @ scaled, rtol=1e-10, atol=1e-10)
    assert_array_equal(gram, gram.T)


@given(seeds, st.booleans())
def test_the_gradient_in_the_frequencies_is_that_of_finite_differences(seed, weighted):
    pixels, frequencies, gamma, xi = problem(seed, n=15, d=2, D=3, weighted=weighted)
    posterior = accumulate(pixels, frequencies, gamma, xi).posterior()
    found = bound_gradient(pixels, frequencies, [gamma], [posterior], [xi])
    expected = central_differences(lambda w: bound_at(pixels, w, gamma, xi), frequencies)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


@given(seeds, st.booleans())
def test_the_gradient_in_log_variance_is_that_of_finite_differences(seed, weighted):
    pixels, frequencies, gamma, xi = problem(seed, n=15, d=2, D=3, weighted=weighted)
    posterior = accumulate(pixels, frequencies, gamma, xi).posterior()
    expected = central_differences(
        lambda log_gamma: bound_at(pixels, frequencies, float(np.exp(log_gamma[0])), xi),
        np.log([gamma]),
    )
    assert_allclose(log_variance_gradient(posterior), expected[0], rtol=1e-6, atol=1e-8)


# Invariances


@given(seeds, st.integers(1, 4))
def test_a_weight_equals_as_many_rows(seed, most):
    pixels, frequencies, gamma, xi = problem(seed, n=20)
    counts = np.random.default_rng(seed).integers(0, most + 1, 20)
    counts[0] = most
    weighted = replace(pixels, weight=counts.astype(float))
    rows = np.repeat(np.arange(20), counts)
    repeated = replace(pixels, rows=pixels.rows[rows], codes=pixels.codes[rows])
    one = accumulate(weighted, frequencies, gamma, xi)
    other = accumulate(repeated, frequencies, gamma, xi[rows])
    assert_allclose(one.gram, other.gram, rtol=1e-12, atol=1e-12)
    assert_allclose(one.projected, other.projected, rtol=1e-12, atol=1e-12)
    assert_allclose(one.offset, other.offset, rtol=1e-12)
    posterior = one.posterior()
    assert_allclose(
        bound_gradient(weighted, frequencies, [gamma], [posterior], [xi]),
        bound_gradient(repeated, frequencies, [gamma], [posterior], [xi[rows]]),
        rtol=1e-10,
        atol=1e-10,
    )


@pytest.mark.parametrize("rows_per_block", [1, 7, 39, 40])
def test_the_block_size_changes_sums_only_by_rounding(rows_per_block):
    whole, frequencies, gamma, xi = problem(weighted=True)
    parts = replace(whole, rows_per_block=rows_per_block)
    one, other = (accumulate(pixels, frequencies, gamma, xi) for pixels in (whole, parts))
    assert_allclose(one.gram, other.gram, rtol=1e-12, atol=1e-12)
    assert_allclose(one.projected, other.projected, rtol=1e-12, atol=1e-12)
    assert_allclose(one.offset, other.offset, rtol=1e-12)
    posterior = one.posterior()
    gradients = [
        bound_gradient(pixels, frequencies, [gamma], [posterior], [xi])
        for pixels in (whole, parts)
    ]
    assert_allclose(*gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_does_not_change_a_bit(threads, dtype):
    single, frequencies, gamma, xi = problem(n=200, rows_per_block=7, dtype=dtype)
    many = replace(single, threads=threads)
    one, other = (accumulate(pixels, frequencies, gamma, xi) for pixels in (single, many))
    assert_array_equal(one.gram, other.gram)
    assert_array_equal(one.projected, other.projected)
    assert one.offset == other.offset
    posterior = one.posterior()
    gradients = [
        bound_gradient(pixels, frequencies, [gamma], [posterior], [xi])
        for pixels in (single, many)
    ]
    assert_array_equal(*gradients)
    tight = [xi.copy(), xi.copy()]
    for pixels, own in zip((single, many), tight, strict=True):
        tighten(pixels, frequencies, gamma, posterior, own)
    assert_array_equal(*tight)


def test_single_precision_follows_double():
    double, frequencies, gamma, xi = problem(n=500)
    single = replace(double, dtype=np.dtype(np.float32))
    one = accumulate(double, frequencies, gamma, xi)
    other = accumulate(single, frequencies, gamma, xi.astype(np.float32))
    assert other.gram.dtype == other.projected.dtype == np.float64
    scale = np.abs(one.gram).max()
    assert_allclose(other.gram, one.gram, rtol=0, atol=1e-4 * scale)
    assert_allclose(other.bound(other.posterior()), one.bound(one.posterior()), rtol=1e-4)
    posterior = one.posterior()
    exact = bound_gradient(double, frequencies, [gamma], [posterior], [xi])
    found = bound_gradient(single, frequencies, [gamma], [posterior], [xi.astype(np.float32)])
    assert_allclose(found, exact, rtol=0, atol=1e-4 * np.abs(exact).max())


def test_statistics_add_up_over_disjoint_pixels():
    pixels, frequencies, gamma, xi = problem(n=40)
    whole = accumulate(pixels, frequencies, gamma, xi)
    halves = [np.arange(25), np.arange(25, 40)]
    one, other = (accumulate(pixels.take(h), frequencies, gamma, xi[h]) for h in halves)
    total = sum_statistics(iter([one, other]))
    assert_allclose(total.gram, whole.gram, rtol=1e-12, atol=1e-12)
    assert_allclose(total.projected, whole.projected, rtol=1e-12, atol=1e-12)
    assert_allclose(total.offset, whole.offset, rtol=1e-12)


def test_the_gram_of_a_sum_is_that_of_its_first_part_and_nothing_else_of_it_changes():
    parts = [Statistics(np.eye(2), np.ones(2), 1.0), Statistics(3.0 * np.eye(2), np.ones(2), 2.0)]
    total = sum_statistics(iter(parts))
    assert total.gram is parts[0].gram
    assert_array_equal(total.gram, 4.0 * np.eye(2))
    assert_array_equal(parts[0].projected, np.ones(2))
    assert_array_equal(total.projected, [2.0, 2.0])
    assert total.offset == 3.0


def test_statistics_are_not_overwritten_by_later_ones():
    pixels, frequencies, gamma, xi = problem(rows_per_block=7)
    with recycling():
        first = accumulate(pixels, frequencies, gamma, xi)
        kept = replace(first, gram=first.gram.copy(), projected=first.projected.copy())
        for ratio in (2.0, 3.0):
            accumulate(pixels, frequencies, ratio * gamma, xi)
    assert_array_equal(first.gram, kept.gram)
    assert_array_equal(first.projected, kept.projected)


def test_recycled_arrays_do_not_change_a_bit():
    pixels, frequencies, gamma, xi = problem(rows_per_block=7)
    one = accumulate(pixels, frequencies, gamma, xi)
    with recycling():
        accumulate(pixels, 2.0 * frequencies, gamma, xi)
        other = accumulate(replace(pixels, threads=2), frequencies, gamma, xi)
    assert_array_equal(one.gram, other.gram)
    assert_array_equal(one.projected, other.projected)


# The signal variance


@given(seeds, st.floats(0.01, 100.0))
def test_rescaled_statistics_are_those_of_rescaled_features(seed, ratio):
    pixels, frequencies, gamma, xi = problem(seed)
    rescaled = accumulate(pixels, frequencies, gamma, xi).rescale(ratio)
    direct = accumulate(pixels, frequencies, gamma * ratio, xi)
    scale = np.abs(direct.gram).max()
    assert_allclose(rescaled.gram, direct.gram, rtol=1e-12, atol=1e-12 * scale)
    assert_allclose(rescaled.projected, direct.projected, rtol=1e-12, atol=1e-12 * scale)
    assert rescaled.offset == direct.offset


@given(seeds, st.floats(-6.0, 6.0))
def test_the_best_ratio_beats_a_grid_of_ratios(seed, log_start):
    pixels, frequencies, _, xi = problem(seed)
    statistics = accumulate(pixels, frequencies, float(np.exp(log_start)), xi)

    def bound(ratio):
        rescaled = statistics.rescale(ratio)
        return rescaled.bound(rescaled.posterior())

    best = best_variance_ratio(statistics)
    assert 0.1 <= best <= 10.0
    grid = max(bound(ratio) for ratio in np.geomspace(0.1, 10.0, 201))
    # The search ends within 1e-5 of the best logarithm; at an end of the range, where the
    # slope is not zero, this costs the slope times 1e-5.
    slope = abs(log_variance_gradient(statistics.rescale(best).posterior()))
    assert bound(best) >= grid - 2e-5 * (1.0 + slope)
    assert bound(best) >= bound(1.0)


def test_the_best_ratio_is_one_at_the_best_variance():
    pixels, frequencies, gamma, xi = problem(1)
    for _ in range(30):
        gamma *= best_variance_ratio(accumulate(pixels, frequencies, gamma, xi))
    statistics = accumulate(pixels, frequencies, gamma, xi)
    assert_allclose(best_variance_ratio(statistics), 1.0, rtol=1e-4)
    # A stationary point: the search resolves 1e-5, times a curvature of order k.
    assert abs(log_variance_gradient(statistics.posterior())) < 1e-3


def test_without_data_the_posterior_is_the_prior():
    statistics = Statistics(np.zeros((4, 4)), np.zeros(4), 0.0)
    posterior = statistics.posterior()
    assert_array_equal(posterior.covariance, np.eye(4))
    assert statistics.bound(posterior) == 0.0
    assert best_variance_ratio(statistics) == 1.0


def test_the_gradient_of_several_latent_functions_is_the_sum_of_theirs():
    rng = np.random.default_rng(0)
    plain = Standardisation(np.zeros(2), np.ones(2))
    pixels = Pixels(
        rng.normal(size=(50, 2)),
        rng.integers(0, 3, 50),
        None,
        plain,
        np.dtype(np.float64),
        16,
        n_classes=3,
    )
    frequencies, gammas = rng.normal(size=(4, 2)), [0.5, 2.0, 7.0]
    xi = list(rng.uniform(0.5, 2.0, (3, 50)))
    each = [pixels.against_rest(latent) for latent in range(3)]
    posteriors = [
        accumulate(own, frequencies, gamma, own_xi).posterior()
        for own, gamma, own_xi in zip(each, gammas, xi, strict=True)
    ]
    alone = [
        bound_gradient(own, frequencies, [gamma], [posterior], [own_xi])
        for own, gamma, posterior, own_xi in zip(each, gammas, posteriors, xi, strict=True)
    ]
    found = bound_gradient(pixels, frequencies, gammas, posteriors, xi)
    assert_allclose(found, np.sum(alone, axis=0), rtol=1e-10, atol=1e-12)
