"""The same estimators on a device of torch: here torch's processor stands for a card."""

import warnings

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import GPC, RFFGPC, VFFGPC, estimators, load_model, save_model
from undulatus.errors import NotFiniteError, PhaseTooLargeError
from undulatus.estimators import compute_on, prediction
from undulatus.gp import backends
from undulatus.gp.minibatch import Batch

torch = pytest.importorskip("torch", reason="torch is not installed")
# Matrices here are small, and threads that wait for each other on a busy machine slow them.
torch.set_num_threads(1)
# These import torch.
from undulatus.gp.backends import streaming  # noqa: E402
from undulatus.gp.backends.torch import TorchBackend  # noqa: E402

CUDA = pytest.param(
    "cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
)


@pytest.fixture(params=["cpu", CUDA])
def device(request, monkeypatch):
    """The name of a device; where it is "cpu", `device=` takes it for torch's."""
    if request.param == "cpu":
        find = backends.find_device

        def find_cpu(device, X=None):
            return "cpu" if device == "cpu" else find(device, X)

        for module in (backends, estimators, prediction):
            monkeypatch.setattr(module, "find_device", find_cpu)
    return request.param


def rows(n=1500, classes=2):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3)) * [15.0, 0.2, 4.0] + [280.0, 0.4, -3.0]
    latent = np.sin((X[:, 0] - 280.0) / 8.0) + 4.0 * (X[:, 1] - 0.4)
    y = np.digitize(latent + 0.3 * rng.normal(size=n), [0.0, 0.8][: classes - 1])
    return X, y


def small(cls=VFFGPC, **options):
    return cls(8, **({"random_state": 0, "max_iter": 4, "n_estimators": 2} | options))


def quietly(function, *arguments, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*arguments, **named)


@pytest.mark.parametrize("cls", [VFFGPC, RFFGPC])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_fit_on_a_device_is_that_on_the_processor_but_for_rounding(device, cls, classes):
    X, y = rows(classes=classes)
    # In double precision: single rounds differently, and an optimisation takes another path.
    here = quietly(small(cls, precision="double").fit, X, y)
    there = quietly(small(cls, precision="double", device=device).fit, X, y)
    assert there.fit_report_["steps"] == here.fit_report_["steps"]
    assert isinstance(there.frequencies_, np.ndarray)
    assert_allclose(there.frequencies_, here.frequencies_, rtol=1e-4, atol=1e-6)
    probabilities = there.set_params(device=None).predict_proba(X)
    assert_allclose(probabilities, here.predict_proba(X), atol=1e-4)


def test_the_batch_solver_on_a_device_is_that_on_the_processor_but_for_rounding(device):
    X, y = rows(300)
    options = {"solver": "batch", "n_estimators": 1, "precision": "double"}
    here = quietly(small(**options).fit, X, y)
    there = quietly(small(**options, device=device).fit, X, y)
    assert_allclose(there.frequencies_, here.frequencies_, rtol=1e-5)
    assert_allclose(there.lower_bounds_, here.lower_bounds_, rtol=1e-8)


def test_weights_groups_and_few_rows_a_block_change_nothing_of_that(device, monkeypatch):
    X, y = rows()
    weight, groups = np.random.default_rng(1).integers(0, 3, size=len(X)), np.arange(len(X)) // 100
    here = quietly(small(precision="double").fit, X, y, weight, groups=groups)
    monkeypatch.setattr("undulatus.gp.data.RESIDENT_SHARE", 0.0)
    monkeypatch.setattr("undulatus.gp.data.DEVICE_BLOCK_BYTES", 16 * 8 * 300)
    there = quietly(small(precision="double", device=device).fit, X, y, weight, groups=groups)
    assert_allclose(there.predict_proba(X), here.predict_proba(X), atol=1e-4)


def test_two_fits_on_a_device_are_the_same_bit_for_bit(device):
    X, y = rows(40_000)
    one, other = (quietly(small(device=device, max_iter=2).fit, X, y) for _ in range(2))
    assert one.fit_report_["precision"] == "single"
    assert_array_equal(one.frequencies_, other.frequencies_)
    assert_array_equal(one.predict_proba(X[:100]), other.predict_proba(X[:100]))


@pytest.fixture(scope="module")
def fitted():
    return {
        (estimators, classes): quietly(small(n_estimators=estimators).fit, *rows(classes=classes))
        for estimators in (1, 2)
        for classes in (2, 3)
    }


METHODS = [
    "predict_proba",
    "decision_function",
    "latent_mean",
    "ensemble_std",
    "latent_mean_and_variance",
    "predict_proba_and_variance",
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n_estimators", [1, 2])
@pytest.mark.parametrize("classes", [2, 3])
def test_tensors_in_give_tensors_out_and_the_same_numbers(fitted, method, n_estimators, classes):
    model, (X, _) = fitted[n_estimators, classes], rows()
    here, there = getattr(model, method)(X), getattr(model, method)(torch.as_tensor(X))
    pairs = zip(here, there, strict=True) if isinstance(here, tuple) else [(here, there)]
    for one, other in pairs:
        assert isinstance(other, torch.Tensor)
        assert_allclose(other.numpy(), one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_labels_and_full_predictions_of_tensors_are_the_same(fitted, tolerance):
    X, y = rows()
    for model in fitted.values():
        model.set_params(variance_tolerance=tolerance)
        assert_array_equal(model.predict(torch.as_tensor(X)).numpy(), model.predict(X))
        here, there = model.predict_in_full(X), model.predict_in_full(torch.as_tensor(X))
        for name in ("probabilities", "mean", "variance", "ensemble_std"):
            # The faster prediction rounds the root of its remainder.
            assert_allclose(getattr(there, name).numpy(), getattr(here, name), atol=1e-6)
        model.set_params(variance_tolerance=0.0)
    model = fitted[1, 2]
    assert model.score(torch.as_tensor(X), torch.as_tensor(y)) == model.score(X, y)


def test_classes_that_are_text_come_back_as_numpys():
    X, y = rows(200)
    names = np.array(["clear", "cloud"])[y]
    model = quietly(small(n_estimators=1).fit, torch.as_tensor(X), names)
    assert set(model.predict(torch.as_tensor(X))) == {"clear", "cloud"}


def test_rows_in_memory_maps_slices_and_dask_go_to_the_device(device, fitted, tmp_path):
    X, _ = rows()
    np.save(tmp_path / "x.npy", X)
    model = fitted[2, 2]
    expected = model.predict_proba(X)
    model.set_params(device=device)
    try:
        for given in (X, X[::-1][::-1], np.load(tmp_path / "x.npy", mmap_mode="r")):
            found = model.predict_proba(given)
            assert isinstance(found, np.ndarray)
            assert_allclose(found, expected, atol=1e-9)
        chunked = model.predict_proba(da.from_array(X, chunks=(400, 3)))
        assert_allclose(chunked, expected, atol=1e-9)
    finally:
        model.set_params(device=None)


def test_dask_arrays_are_fitted_on_a_device(device):
    X, y = rows()
    chunked = da.from_array(X, chunks=(400, 3))
    options = {"precision": "double", "n_estimators": 1}
    here = quietly(small(**options).fit, chunked, y)
    there = quietly(small(**options, device=device).fit, chunked, y)
    assert_allclose(there.predict_proba(X), here.predict_proba(X), atol=1e-4)


@pytest.mark.parametrize(
    ("value", "error"), [(np.nan, NotFiniteError), (1e13, PhaseTooLargeError)]
)
def test_a_row_that_cannot_be_classified_is_named_on_a_device_too(device, fitted, value, error):
    X, _ = rows()
    X[1234, 1] = value
    model = fitted[1, 2]
    messages = []
    unwarped = quietly(small(n_estimators=1, warp=False).fit, *rows())
    for given in (X, torch.as_tensor(X)):
        with pytest.raises(error) as caught:
            unwarped.predict_proba(given)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "1234" in messages[0]
    assert model.out_of_domain(torch.as_tensor(rows()[0])).sum() == 0


def test_a_block_that_does_not_fit_is_halved_and_said(fitted, monkeypatch):
    X, _ = rows()
    model, real = fitted[2, 2], TorchBackend.stream_rows

    def short_of_memory(xp, read, blocks):
        for block, raw in real(xp, read, blocks):
            if block.stop - block.start > 800:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            yield block, raw

    monkeypatch.setattr(TorchBackend, "stream_rows", short_of_memory)
    monkeypatch.setattr(streaming, "FEWEST_ROWS", 100)
    with pytest.warns(UserWarning, match=r"1,500 rows do not fit .* blocks of 750"):
        found = model.predict_proba(torch.as_tensor(X))
    assert_allclose(found.numpy(), model.predict_proba(X), atol=1e-9)
    monkeypatch.setattr(streaming, "FEWEST_ROWS", 1000)
    with pytest.raises(torch.OutOfMemoryError):
        model.predict_proba(torch.as_tensor(X))


def test_files_know_no_device(device, tmp_path):
    X, y = rows(300)
    model = quietly(small(n_estimators=1, device=device).fit, X, y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    assert loaded.device is None
    compute_on(loaded, device)
    assert loaded.device == device
    assert_allclose(loaded.predict_proba(X), model.predict_proba(X), atol=1e-12)
    pipeline = make_pipeline(StandardScaler(), model)
    compute_on(pipeline, None)
    assert model.device is None


def test_a_fit_goes_on_from_a_checkpoint_on_another_device(device, tmp_path):
    X, y = rows()
    options = {"n_estimators": 2, "precision": "double", "checkpoint": tmp_path / "state"}
    whole = quietly(small(n_estimators=2, precision="double").fit, X, y)

    class StopError(Exception):
        pass

    def stop(batch):
        if len(batch._states) == 2 and batch._states[0].n_iter == 2:
            raise StopError
        return iterate(batch)

    iterate = Batch.iterate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "iterate", stop)
        with pytest.raises(StopError):
            quietly(small(**options, device=device).fit, X, y)
    assert (tmp_path / "state.1").exists()
    resumed = quietly(small(**options).fit, X, y)
    assert_allclose(resumed.frequencies_, whole.frequencies_, rtol=1e-4, atol=1e-6)


def test_an_interrupt_on_a_device_raises_or_keeps_the_best_so_far(device, monkeypatch):
    X, y = rows()
    iterate = Batch.iterate

    def interrupt(batch):
        # Before it, more candidates for the start go on the same way.
        if len(batch._states) == 2 and batch._states[0].n_iter == 2:
            raise KeyboardInterrupt
        return iterate(batch)

    monkeypatch.setattr(Batch, "iterate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        quietly(small(device=device, max_iter=4).fit, X, y)
    kept = quietly(small(device=device, max_iter=4, on_interrupt="keep").fit, X, y)
    assert kept.fit_report_["stopped"] == "interrupted"
    assert kept.n_iter_ == 2
    assert kept.predict_proba(X).shape == (len(X), 2)


def test_statistics_that_cannot_be_factorised_are_helped_by_a_jitter(device, monkeypatch):
    X, y = rows()
    solve, seen = TorchBackend.weight_moments, []

    def fail_without_jitter(xp, precisions, projected, jitter):
        mean, covariance = solve(xp, precisions, projected, jitter)
        seen.append(float(jitter[0]))
        return mean, torch.where(jitter == 0.0, torch.nan, covariance)

    monkeypatch.setattr(TorchBackend, "weight_moments", fail_without_jitter)
    helped = quietly(small(device=device, precision="double").fit, X, y)
    assert max(seen) > 0.0
    monkeypatch.undo()
    plain = quietly(small(precision="double").fit, X, y)
    # A jitter of 1e-10 of the mean diagonal.
    assert_allclose(helped.predict_proba(X), plain.predict_proba(X), atol=1e-3)


def test_the_exact_classifier_takes_tensors_to_the_processor():
    X, y = rows(100)
    model = GPC(max_iter=5)
    quietly(model.fit, torch.as_tensor(X), torch.as_tensor(y))
    assert isinstance(model.predict_proba(torch.as_tensor(X)), np.ndarray)


def test_tf32_is_single_precision_on_the_processor():
    X, y = rows(300)
    model = quietly(small(n_estimators=1, precision="tf32").fit, X, y)
    single = quietly(small(n_estimators=1, precision="single").fit, X, y)
    assert_array_equal(model.predict_proba(X), single.predict_proba(X))
