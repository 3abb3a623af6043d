"""numpy and torch behind one set of names: the same numbers, wherever they are computed."""

import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from tests.gp.problems import some_frequencies, some_gaussian, some_pixels

from undulatus.errors import InputError
from undulatus.gp import backends, ensemble, features, likelihood, posterior, taper
from undulatus.gp.backends import HOST, find_device, make_backend, same_library, to_host
from undulatus.gp.backends.numpy import Workspace
from undulatus.gp.cholesky import solve_moments
from undulatus.gp.data import Standardisation, Warp
from undulatus.gp.inference import WeightSpace
from undulatus.gp.likelihood import POSTERIORS

torch = pytest.importorskip("torch", reason="torch is not installed")
torch.set_num_threads(1)

THERE = make_backend(np.float64, "cpu")
SINGLE_THERE = make_backend(np.float32, "cpu")


rng = np.random.default_rng(0)
VALUES = np.concatenate([[0.0, 1e-9, -30.0, 30.0], rng.normal(size=50) * 4.0])
SIGNS = np.sign(VALUES + 0.1)
X = rng.normal(size=(37, 3))
W = rng.normal(size=(5, 3))
MEANS, VARIANCES = rng.normal(size=(3, 1, 40)), rng.random((3, 1, 40)) * 4.0
MEANS_OF_3, VARIANCES_OF_3 = rng.normal(size=(4, 3, 40)), rng.random((4, 3, 40)) * 4.0
SHIFT, SHIFTS = np.array([0.7]), np.array([0.1, -0.5, 0.3])
DEVIATIONS = np.array([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("function", "values"),
    [
        (likelihood.lambda_xi, [VALUES]),
        (likelihood.log_sigmoid_offset, [np.abs(VALUES)]),
        (likelihood.expected_log_sigmoid, [VALUES, 0.1 + np.abs(VALUES)]),
        *(
            (bound.sites, [VALUES, 0.1 + np.abs(VALUES), SIGNS])
            for bound in POSTERIORS.values()
        ),
        (lambda m, s, xp: posterior.expected_sigmoid(m, s, 0.7, xp), [VALUES, np.abs(VALUES)]),
        (ensemble.pooled_moments, [MEANS, VARIANCES]),
        (ensemble.pooled_probabilities, [MEANS, VARIANCES, SHIFT]),
        (ensemble.pooled_log_odds, [MEANS, VARIANCES, SHIFT]),
        (ensemble.pooled_probabilities, [MEANS_OF_3, VARIANCES_OF_3, SHIFTS]),
        (ensemble.pooled_log_probabilities, [MEANS_OF_3, VARIANCES_OF_3, SHIFTS]),
        (lambda x, w, xp: features.fourier_features(x, w, 1.7, xp), [X, W]),
        (lambda x, w, xp: xp.waves(x, w), [X, W]),
        (lambda x, w, a, b, xp: features.sum_of_waves(x, w, a, b, xp), [X, W, W[:, 0], W[:, 1]]),
        (taper.kept_share, [X, DEVIATIONS]),
        (taper.kept_share, [np.stack([X, X]), np.stack([DEVIATIONS, 2.0 * DEVIATIONS])]),
        (taper.tapered_features, [X, W, DEVIATIONS]),
        (lambda w, xp: taper.frequency_deviations(w, 0.3, xp), [np.stack([W, 2.0 * W])]),
        (lambda x, xp: xp.expit(x), [VALUES]),
        (lambda x, xp: xp.log_expit(x), [VALUES]),
        (lambda x, xp: xp.maximum(x, 0.5), [VALUES]),
        (lambda x, xp: xp.minimum(x, 0.5), [VALUES]),
        (lambda x, xp: xp.std(x, axis=0), [X]),
        (lambda x, xp: xp.flatnonzero(x > 0.0), [VALUES]),
        (lambda x, xp: xp.logsumexp(x, axis=1, keepdims=True), [MEANS_OF_3]),
        (lambda x, xp: xp.row_dots(x, 2.0 * x), [X]),
        (lambda x, xp: xp.multiply(x, x.T @ x), [X]),
    ],
)  # fmt: skip
def test_functions_of_a_block_are_the_same_of_tensors(function, values):
    def as_tuple(found):
        return [
            np.array(to_host(own)) for own in (found if isinstance(found, tuple) else (found,))
        ]

    here = as_tuple(function(*(np.array(value, dtype=float) for value in values), HOST))
    there = as_tuple(function(*map(THERE.array, values), THERE))
    for one, other in zip(here, there, strict=True):
        assert_allclose(other, one, rtol=1e-12, atol=1e-13)


def test_warped_rows_are_the_same_of_tensors():
    middle, width = np.array([1.0, -2.0, 0.0]), np.array([0.5, 2.0, 1.0])
    standardisation = Standardisation(np.ones(3), np.full(3, 2.0), Warp(middle, width))
    rows = np.vstack([X * 100.0, [[1e30, -1e30, 0.0]]])
    there = standardisation(THERE.array(rows), np.float64, THERE)
    assert_allclose(to_host(there), standardisation(rows, np.float64), rtol=1e-12)


@pytest.mark.parametrize("n", [1, 100, 4096, 4097, 9000])
@pytest.mark.parametrize("k", [2, 128, 130, 300])
def test_gram_matrices_are_products_with_weights(n, k):
    z, weights = np.random.default_rng(n).normal(size=(n, k)), np.random.default_rng(k).random(n)
    expected = z.T @ (z * weights[:, None])
    here, there = HOST.gram(z, weights), to_host(THERE.gram(THERE.array(z), THERE.array(weights)))
    for found in (here, there):
        assert_allclose(found, expected, rtol=1e-11, atol=1e-10)
        assert_allclose(found, found.T, rtol=1e-10, atol=1e-11)
    several = THERE.array(np.stack([z, 2.0 * z])), THERE.array(np.stack([weights, weights]))
    assert_allclose(
        to_host(THERE.gram(*several)), [expected, 4.0 * expected], rtol=1e-11, atol=1e-9
    )
    assert_allclose(HOST.gram(z[None], weights[None]), [expected], rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("k", [2, 16, 127, 128, 129, 400])
@pytest.mark.parametrize("left_out", [0, 1, 37])
@pytest.mark.parametrize("order", ["C", "F"])
def test_latent_moments_by_triangles_are_those_of_whole_products(k, left_out, order):
    own = np.random.default_rng(k)
    r = max(k - left_out, 1)
    # Zero below the diagonal that ends in the last row and column.
    root = np.triu(own.normal(size=(k, r)), r - k)
    z, mean = np.array(own.normal(size=(23, k)), order=order), own.normal(size=k)
    there = THERE.moments(*map(THERE.array, (z, mean, root)))
    kept = z.copy()
    for found in (
        HOST.moments(z, mean, root),
        there,
        HOST.moments(kept, mean, root, overwrite=True),
    ):
        assert_allclose(to_host(found[0]), z @ mean, rtol=1e-10, atol=1e-10)
        assert_allclose(to_host(found[1]), np.sum((z @ root) ** 2, axis=1), rtol=1e-10)


def test_phases_of_far_rows_keep_their_digits_on_a_device():
    x = X.astype(np.float32)
    x[3] *= 1e5
    exact = features.fourier_features(x.astype(np.float64), W)
    for needed in (None, True, False):
        xp = replace(SINGLE_THERE, double_phases=needed)
        off = np.abs(to_host(features.fourier_features(xp.array(x), W, xp=xp)) - exact).max()
        assert off < 1e-4 if needed is not False else off > 1e-3


@pytest.mark.parametrize("bound", POSTERIORS.values(), ids=POSTERIORS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("resident", [True, False])
def test_a_pass_on_a_device_gives_the_same_sites(bound, classes, resident):
    pixels = some_pixels(n=500, classes=classes, weighted=True)
    there = (
        pixels.on("cpu", False, 5) if resident else replace(pixels, xp=THERE, rows_per_block=100)
    )
    latents = range(pixels.n_latents)
    q = [some_gaussian(c, prior_mean=0.3 * c - 0.2) for c in latents]
    deviations = np.array([0.1, 0.2])
    here, found = (
        WeightSpace(own, some_frequencies(), deviations).evaluate(bound, latents, q)
        for own in (pixels, there)
    )
    for (sites, value), (other, other_value) in zip(here, found, strict=True):
        assert_allclose(other_value, value, rtol=1e-10)
        for name, part in vars(sites).items():
            assert isinstance(getattr(other, name), np.ndarray)
            assert_allclose(getattr(other, name), part, rtol=1e-9, atol=1e-11)


def test_moments_of_weights_are_those_of_each_matrix_and_failures_are_marked():
    own = np.random.default_rng(3)
    z = own.normal(size=(2, 3, 20, 6))
    precision, projected = z.mT @ z + np.eye(6), own.normal(size=(2, 3, 6))
    here = HOST.weight_moments(precision, projected, None)
    bad = precision.copy()
    bad[1, 0] *= -1.0
    for given in (precision, bad):
        there = THERE.weight_moments(*map(THERE.array, (given.copy(), projected, np.zeros(1))))
        for index in np.ndindex(2, 3):
            mean, covariance = (to_host(part)[index] for part in there)
            if given is bad and index == (1, 0):
                assert np.isnan(covariance).all()
                continue
            expected = solve_moments(precision[index], projected[index])
            for found in ((mean, covariance), [part[index] for part in here]):
                assert_allclose(found[0], expected[0], rtol=1e-9)
                assert_allclose(found[1], expected[1], rtol=1e-9, atol=1e-12)


def test_jitter_on_a_device_is_a_share_of_the_mean_diagonal():
    precision, ones = 3.0 * np.eye(4)[None, None], np.ones((1, 1, 4))
    found = THERE.weight_moments(*map(THERE.array, (precision, ones, np.array([0.5]))))
    assert_allclose(to_host(found[1])[0, 0], np.eye(4) / 4.5, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f8", "u1", "u2", "i4", "?"])
def test_rows_of_any_type_arrive_on_a_device_unchanged(dtype):
    rows = (np.abs(X) * 20).astype(dtype)
    rows.setflags(write=False)
    blocks = [slice(0, 20), slice(20, 37)]
    parts = [to_host(part) for _, part in THERE.stream_rows(lambda block: rows[block], blocks)]
    assert_array_equal(np.concatenate(parts), rows.astype(float))


# Rows to results on a device


def on_device(longest_row=1e6, xp=SINGLE_THERE, make=None):
    from undulatus.gp.backends.streaming import RowFunctionOnDevice

    checked = []

    def columns(xp):
        return make or (lambda x: (xp.waves(x, W)[:, 0], 2.0 * x[:, 1]))

    standardisation = Standardisation(np.ones(3), np.full(3, 2.0))
    function = RowFunctionOnDevice(
        columns, 2, standardisation, xp, longest_row,
        lambda first, raw: checked.append((first, raw.copy())),
    )  # fmt: skip
    return function, checked


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("rows_per_block", [1, 5, 36, 37, 100])
def test_columns_of_blocks_are_those_of_all_rows(resident, rows_per_block):
    x = X.copy()
    # A far row, whose phases need double precision.
    x[7] = 1e4
    function, checked = on_device()
    found = function(torch.from_numpy(x) if resident else x, rows_per_block)
    assert isinstance(found, torch.Tensor) == resident
    own = ((x - 1.0) / 2.0).astype(np.float32)
    expected = np.stack([np.cos(own.astype(float) @ W[0]), 2.0 * own[:, 1]], axis=1)
    assert_allclose(to_host(found), expected, rtol=1e-6, atol=1e-5)
    assert checked == []


def test_blocks_with_values_that_cannot_be_are_checked():
    x = X.copy()
    x[12, 1], x[30] = np.nan, 1e9
    function, checked = on_device()
    function(x, 10, first_row=100)
    assert [first for first, _ in checked] == [110, 130]
    assert_array_equal(checked[0][1], x[10:20])


def test_a_block_that_does_not_fit_is_halved(monkeypatch):
    from undulatus.gp.backends import streaming

    monkeypatch.setattr(streaming, "FEWEST_ROWS", 4)
    sizes = []

    def refuse(limit):
        def columns(x):
            sizes.append(len(x))
            if len(x) > limit:
                raise torch.OutOfMemoryError
            return x[:, 0], x[:, 1]

        return columns

    function, _ = on_device(make=refuse(10))
    with pytest.warns(UserWarning, match="going on with blocks of"):
        found = function(X, 32)
    assert_allclose(found, (X[:, :2] - 1.0) / 2.0, rtol=1e-6)
    assert max(sizes) == 32
    function, _ = on_device(make=refuse(2))
    with pytest.raises(torch.OutOfMemoryError), pytest.warns(UserWarning, match="do not fit"):
        function(X, 32)


# Devices and other libraries


@pytest.mark.parametrize(
    ("device", "words"), [("gpu", "no device of torch"), ("cuda", "torch finds none")]
)
def test_a_device_that_is_not_there_is_an_error_with_a_remedy(device, words):
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InputError, match=words):
        find_device(device)


def test_without_torch_a_device_is_an_error_that_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "undulatus.gp.backends.torch", None)
    monkeypatch.delattr(backends, "torch", raising=False)
    with pytest.raises(InputError, match="undulatus\\[gpu\\]"):
        find_device("cuda")
    assert find_device(None, np.zeros(3)) is None
    assert find_device("cpu") is None


def test_arrays_of_other_libraries_are_followed_to_their_device_alone():
    in_memory = SimpleNamespace(__dlpack_device__=lambda: (1, 0))
    assert backends.as_tensor(in_memory) is None
    assert backends.as_tensor([1.0]) is None
    assert find_device(None, torch.ones(3)) == "cpu"
    assert same_library(torch.ones(2), torch.zeros(1)).tolist() == [1.0, 1.0]
    assert backends.on_host(X) is X
    assert_array_equal(backends.on_host(torch.ones(2)), [1.0, 1.0])


def test_dataclasses_and_tuples_of_tensors_come_back_as_arrays():
    found = to_host((SHIFT, THERE.array(SHIFT), replace(some_gaussian(), sites=THERE.array(X))))
    assert_array_equal(found[1], SHIFT)
    assert_array_equal(found[2].sites, X)
    assert to_host(THERE.array(np.float64(2.0))) == 2.0


# A thread's workspace


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 4), (12,), (0, 4), (1, 1, 5)])
def test_an_array_of_the_workspace_has_the_requested_shape_and_dtype(shape, dtype):
    workspace = Workspace()
    found = workspace.take("phases", shape, dtype)
    assert (found.shape, found.dtype) == (shape, dtype)
    assert found.flags.c_contiguous
    assert found.flags.aligned
    assert workspace.take("phases", shape, dtype, by_column=True).flags.f_contiguous


def test_the_workspace_shares_memory_only_under_the_same_name():
    workspace = Workspace()
    one = workspace.take("phases", (4, 5), np.float64)
    again, smaller = (workspace.take("phases", shape, np.float32) for shape in ((4, 5), (3,)))
    assert np.shares_memory(one, again)
    assert np.shares_memory(one, smaller)
    assert not np.shares_memory(one, workspace.take("features", (4, 5), np.float64))
    one[...] = 7.0
    larger = workspace.take("phases", (400, 5), np.float64)
    larger[...] = 0.0
    assert_array_equal(one, 7.0)


def in_another_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_every_thread_has_its_own_workspace():
    def take():
        return HOST.workspace.take("phases", (8,), np.float64)

    assert np.shares_memory(take(), take())
    assert not np.shares_memory(take(), in_another_thread(take))
