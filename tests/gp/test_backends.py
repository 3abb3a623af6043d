"""One set of names for numpy's arrays and torch's tensors, and what they compute."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError
from undulatus.gp import arrays, bound, committee, damping, fourier, posterior, variational
from undulatus.gp.arrays import Place, find_device, mean_and_variance, to_host, weighted_gram
from undulatus.gp.blocks import Block, Pixels, Standardisation, Warp, rows_on_device

torch = pytest.importorskip("torch", reason="torch is not installed")
torch.set_num_threads(1)

HERE = Place(np.dtype(np.float64))
THERE = Place(np.dtype(np.float64), "cpu")
SINGLE_THERE = Place(np.dtype(np.float32), "cpu")


def both(function, *values):
    """The result for numpy's arrays, and that for tensors, as numpy's."""
    here = function(*(np.array(value, dtype=float) for value in values))
    there = function(*(THERE.array(np.asarray(value)) for value in values))
    return here, to_host(there)


def assert_same(function, *values, rtol=1e-12, atol=1e-13):
    for here, there in zip(*map(as_tuple, both(function, *values)), strict=True):
        assert_allclose(there, here, rtol=rtol, atol=atol)


def as_tuple(values):
    return values if isinstance(values, tuple) else (values,)


rng = np.random.default_rng(0)
VALUES = np.concatenate([[0.0, 1e-9, -30.0, 30.0], rng.normal(size=50) * 4.0])
X = rng.normal(size=(37, 3))
W = rng.normal(size=(5, 3))
MEANS, VARIANCES = rng.normal(size=(3, 1, 40)), rng.random((3, 1, 40)) * 4.0
MEANS_OF_3, VARIANCES_OF_3 = rng.normal(size=(4, 3, 40)), rng.random((4, 3, 40)) * 4.0


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (bound.half_slope, [VALUES]),
        (bound.offset, [np.abs(VALUES)]),
        (variational.expected_log_sigmoid, [VALUES, 0.1 + np.abs(VALUES)]),
        (posterior.expected_sigmoid, [VALUES, np.abs(VALUES)]),
        (posterior.expected_sigmoids, [VALUES, np.abs(VALUES)]),
        (committee.pooled_moments, [MEANS, VARIANCES]),
        (committee.pooled_probabilities, [MEANS, VARIANCES]),
        (committee.pooled_log_odds, [MEANS, VARIANCES]),
        (committee.pooled_probabilities, [MEANS_OF_3, VARIANCES_OF_3]),
        (committee.pooled_log_probabilities, [MEANS_OF_3, VARIANCES_OF_3]),
        (fourier.fourier_features, [X, W]),
        (fourier.waves, [X, W]),
        (damping.damping, [X, np.array([0.1, 0.2, 0.3])]),
        (arrays.expit, [VALUES]),
        (arrays.log_expit, [VALUES]),
    ],
)  # fmt: skip
def test_functions_of_a_block_are_the_same_of_tensors(function, values):
    assert_same(function, *values)


def test_warped_rows_are_the_same_of_tensors():
    middle, width = np.array([1.0, -2.0, 0.0]), np.array([0.5, 2.0, 1.0])
    standardisation = Standardisation(np.ones(3), np.full(3, 2.0), Warp(middle, width))
    rows = np.vstack([X * 100.0, [[1e30, -1e30, 0.0]]])
    there = standardisation.on(THERE)(THERE.array(rows), np.float64)
    assert_allclose(to_host(there), standardisation(rows, np.float64), rtol=1e-12)


@pytest.mark.parametrize("n", [1, 100, 4096, 4097, 9000])
@pytest.mark.parametrize("k", [2, 128, 130, 300])
def test_gram_matrices_by_strips_and_parts_are_those_of_whole_products(n, k):
    z, weights = np.random.default_rng(n).normal(size=(n, k)), np.random.default_rng(k).random(n)
    found = to_host(weighted_gram(THERE.array(z), THERE.array(weights)))
    assert_allclose(found, z.T @ (z * weights[:, None]), rtol=1e-11, atol=1e-10)
    assert_allclose(found, found.T, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("k", [2, 16, 127, 128, 129, 400])
@pytest.mark.parametrize("left_out", [0, 1, 37])
def test_means_and_variances_by_strips_are_those_of_whole_products(k, left_out):
    own = np.random.default_rng(k)
    r = max(k - left_out, 1)
    # Zero below the diagonal that ends in the last row and column.
    root = np.triu(own.normal(size=(k, r)), r - k)
    z, mean = own.normal(size=(23, k)), own.normal(size=k)
    found = mean_and_variance(*map(THERE.array, (z, mean, root)))
    assert_allclose(to_host(found[0]), z @ mean, rtol=1e-10, atol=1e-10)
    assert_allclose(to_host(found[1]), np.sum((z @ root) ** 2, axis=1), rtol=1e-10)


def test_phases_of_far_rows_keep_their_digits_on_a_device():
    x = X.astype(np.float32)
    x[3] *= 1e5
    exact = fourier.fourier_features(x.astype(np.float64), W)
    there = SINGLE_THERE.array(x)
    for needed in (None, True):
        context = arrays.phases_in_double(needed) if needed else arrays.nullcontext()
        with context:
            assert_allclose(to_host(fourier.fourier_features(there, W)), exact, atol=1e-4)
    with arrays.phases_in_double(False):
        assert np.abs(to_host(fourier.fourier_features(there, W)) - exact).max() > 1e-3


def some_pixels(n=500, classes=2, **options):
    own = np.random.default_rng(n)
    codes = own.integers(classes, size=n)
    return Pixels(
        own.normal(size=(n, 3)) * 3.0 + 1.0,
        codes.astype(bool) if classes == 2 else codes,
        own.random(n),
        Standardisation(np.ones(3), np.full(3, 2.0)),
        np.dtype(np.float64),
        64,
        n_classes=classes,
        **options,
    )


@pytest.mark.parametrize("classes", [2, 3])
def test_a_pass_on_a_device_gives_the_same_statistics(classes):
    pixels = some_pixels(classes=classes)
    spread, c = np.array([0.1, 0.1, 0.2]), pixels.n_latents
    own = np.random.default_rng(1)
    roots = [np.tril(own.normal(size=(10, 10))) for _ in range(c)]
    posteriors = [posterior.Posterior(own.normal(size=10), root, 0, 0, 0) for root in roots]
    arguments = W, [1.5] * c, posteriors, [None] * c
    here = bound.tighten_each(pixels, *arguments, spread=spread, levels=[(0.3, -0.2)] * c)
    for resident in (True, False):
        there = pixels.on("cpu", False, 5)
        if not resident:
            there = arrays.replace(pixels, device="cpu", rows_per_block=100)
        found = bound.tighten_each(there, *arguments, spread=spread, levels=[(0.3, -0.2)] * c)
        for one, other in zip(here, found, strict=True):
            assert isinstance(other.gram, np.ndarray)
            assert isinstance(other.offset, float)
            assert_allclose(other.gram, one.gram, rtol=1e-9, atol=1e-12)
            assert_allclose(other.projected, one.projected, rtol=1e-9, atol=1e-12)
            assert_allclose([other.offset, other.fresh], [one.offset, one.fresh], rtol=1e-9)


def test_members_in_front_are_computed_as_each_alone():
    own = np.random.default_rng(2)
    x, v = own.normal(size=(2, 30, 3)), own.choice([-0.5, 0.5], size=(2, 30))
    frequencies, mean = own.normal(size=(2, 5, 3)), own.normal(size=(2, 10))
    root = own.normal(size=(2, 10, 10))
    covariance = root @ root.mT / 30.0
    variances = np.array([0.7, 1.9])

    def block(rows, targets):
        return Block(slice(0, 30), rows, targets, rows[..., 0] * 0.0 + 0.8)

    move, spread = THERE.array, np.full((2, 3), 0.05)
    z, fresh = bound.damped_features(
        block(move(x), move(v)), move(frequencies), move(variances)[:, None, None], move(spread)
    )
    there = bound.sampled_gradient(
        z, fresh, block(move(x), move(v)), move(mean), move(covariance), 11
    )
    for i in range(2):
        z, fresh = bound.damped_features(
            block(x[i], v[i]), frequencies[i], float(variances[i]), spread[i]
        )
        here = bound.sampled_gradient(z, fresh, block(x[i], v[i]), mean[i], covariance[i], 11)
        for one, other in zip(here, there, strict=True):
            assert_allclose(to_host(other[i]), one, rtol=1e-10, atol=1e-12)


def test_moments_on_a_device_are_those_of_each_matrix_and_failures_are_marked():
    own = np.random.default_rng(3)
    z = own.normal(size=(3, 20, 6))
    precision, projected = z.mT @ z + np.eye(6), own.normal(size=(3, 6))
    bad = precision.copy()
    bad[1] = -bad[1]
    for given, failed in ((precision, []), (bad, [1])):
        found = to_host(
            posterior.solve_moments_on_device(
                THERE.array(given.copy()), THERE.array(projected), THERE.array(np.zeros(1)), []
            )
        )
        for i in range(3):
            if i in failed:
                assert np.isnan(found.covariance[i]).all()
                continue
            one = posterior.solve_moments(given[i], projected[i])
            assert_allclose(found.mean[i], one.mean, rtol=1e-9)
            assert_allclose(found.covariance[i], one.covariance, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "u1", "u2", "i4", "?"])
def test_rows_of_any_type_arrive_on_a_device_unchanged(dtype):
    rows = (np.abs(X) * 20).astype(dtype)
    rows.setflags(write=False)
    blocks = [slice(0, 20), slice(20, 37)]
    parts = [to_host(part) for _, part in rows_on_device(rows, blocks, THERE)]
    assert_array_equal(np.concatenate(parts), rows.astype(float))


@pytest.mark.parametrize(
    ("device", "words"), [("gpu", "no device of torch"), ("cuda", "torch finds none")]
)
def test_a_device_that_is_not_there_is_an_error_with_a_remedy(device, words):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InputError, match=words):
        find_device(device)


def test_without_torch_a_device_is_an_error_that_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="undulatus\\[gpu\\]"):
        find_device("cuda")
    assert find_device(None, np.zeros(3)) is None
    assert find_device("cpu") is None


def test_arrays_of_other_libraries_are_followed_to_their_device_alone():
    in_memory = SimpleNamespace(__dlpack_device__=lambda: (1, 0))
    assert arrays.as_tensor(in_memory) is None
    assert arrays.as_tensor([1.0]) is None
    assert find_device(None, torch.ones(3)) == "cpu"
