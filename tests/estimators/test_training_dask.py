"""Fits on dask arrays give the model of an array, for any chunks, scheduler or lost worker."""

import os
import pickle
import signal
from functools import partial

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from undulatus import GPC, RFFGPC, VFFGPC
from undulatus.errors import InputError, NotFiniteError, PhaseTooLargeError
from undulatus.estimators import classifier, training
from undulatus.estimators.progress_line import ProgressLine
from undulatus.gp import dask_data, learning
from undulatus.gp.search import BoundSearch, choose_start

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

COMMON = {"n_estimators": 1, "solver": "stochastic", "max_iter": 3, "batch_size": 200}
COMMON |= {"random_state": 0}
MODELS = {"RFFGPC": RFFGPC(6, **COMMON), "VFFGPC": VFFGPC(6, **COMMON)}
each_model = pytest.mark.parametrize("name", MODELS)
each_precision = pytest.mark.parametrize("precision", ["single", "double"])
# Rounding of sums over other chunks, after a few iterations from the same sample.
TOLERANCE = {"double": 1e-9, "single": 1e-5}


def model(name, **params):
    return clone(MODELS[name]).set_params(**params)


@pytest.fixture(scope="module")
def data():
    """900 rows of 3 features in kelvins and reflectances, weights (some zero) and days."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(900, 3)) * [15.0, 0.2, 4.0] + [280.0, 0.4, -3.0]
    latent = np.sin((X[:, 0] - 280.0) / 8.0) + 4.0 * (X[:, 1] - 0.4) - 0.4
    y = np.where(latent + 0.4 * rng.normal(size=900) > 0, "cloud", "clear")
    weight = rng.integers(0, 3, 900).astype(float)
    arrays = X, y, weight, np.repeat(np.arange(18), 50)
    for array in arrays:
        array.setflags(write=False)
    return arrays


def search_few_rows(monkeypatch, rows):
    """Choose a start by the bound on so many rows."""
    few = partial(choose_start, search=BoundSearch(rows=rows))
    monkeypatch.setattr(classifier, "choose_start", few)


def chunked(*arrays, sizes=(400, 300, 200)):
    return tuple(da.from_array(array, chunks=(sizes, *array.shape[1:])) for array in arrays)


def assert_same_model(one, other, X):
    assert one.fit_report_ == other.fit_report_
    assert_array_equal(one.lower_bounds_, other.lower_bounds_)
    assert_array_equal(one.frequencies_, other.frequencies_)
    assert_array_equal(one.posterior_.mean, other.posterior_.mean)
    assert_array_equal(one.posterior_.root, other.posterior_.root)
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def assert_near_model(one, other, X, tolerance):
    assert_allclose(one.predict_proba(X), other.predict_proba(X), rtol=0, atol=tolerance)
    assert_array_equal(one.classes_, other.classes_)
    assert one.fit_report_["rows"] == other.fit_report_["rows"]
    assert_allclose(one.feature_quantiles_, other.feature_quantiles_, rtol=1e-12)


# The model of an array


@each_model
@each_precision
@pytest.mark.parametrize("early_stopping", [False, True])
def test_a_dask_array_gives_the_model_of_the_array_in_it(name, data, precision, early_stopping):
    X, y, *_ = data
    options = {"precision": precision, "early_stopping": early_stopping}
    expected = model(name, **options).fit(X, y)
    assert_near_model(
        model(name, **options).fit(*chunked(X, y)), expected, X, TOLERANCE[precision]
    )


@each_model
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"class_weight": "balanced"},
        {"class_weight": {"clear": 3.0}, "prior_correction": "training"},
        {"prior_correction": {"clear": 0.8, "cloud": 0.2}, "standardize": False},
        # In double throughout: where minibatches are in single, the last digit of a mean moves a
        # probability by up to 1e-6, and the few passes of the bound do not take that back.
        {"warp": False, "taper": 0.0, "posterior": "bound", "precision": "double"},
        {"variance_tolerance": 1e-3, "n_jobs": 2},
    ],
    ids=lambda options: "-".join(options),
)
def test_weights_classes_and_groups_count_as_in_arrays(name, data, options):
    X, y, weight, groups = data
    X = (X - 250.0) / 50.0 if options.get("standardize") is False else X
    expected = model(name, **options).fit(X, y, weight, groups)
    fX, fy, fweight, fgroups = chunked(X, y, weight, groups)
    assert_near_model(model(name, **options).fit(fX, fy, fweight, fgroups), expected, X, 1e-9)
    # Labels, weights and groups may be arrays in memory.
    assert_near_model(model(name, **options).fit(fX, y, weight, groups), expected, X, 1e-9)


@each_model
def test_the_sample_depends_on_row_numbers_and_seed_only(name, data, monkeypatch):
    X, y, weight, _ = data
    monkeypatch.setattr(learning, "SAMPLE_ROWS", 300)
    search_few_rows(monkeypatch, 100)
    expected = model(name).fit(X, y, weight)
    for sizes in [(900,), (7, 893), (300, 0, 300, 300)]:
        found = model(name).fit(*chunked(X, y, weight, sizes=sizes))
        assert_near_model(found, expected, X, 1e-9)


@given(st.lists(st.integers(0, 899), max_size=12))
@settings(max_examples=8)
def test_chunks_change_a_model_by_rounding_only(data, edges):
    X, y, weight, _ = data
    sizes = tuple(np.diff([0, *sorted(edges), 900]).tolist())
    with dask.config.set(scheduler="synchronous"):
        one, other = (
            model("VFFGPC", max_iter=1, n_jobs=1).fit(*chunked(X, y, weight, sizes=cut))
            for cut in ((900,), sizes)
        )
    assert_near_model(one, other, X, 1e-9)


def test_labels_in_other_chunks_and_columns_in_several_are_rechunked(data):
    X, y, *_ = data
    expected = model("RFFGPC").fit(*chunked(X, y, sizes=(500, 400)))
    rows = da.from_array(X, chunks=((500, 400), (2, 1)))
    assert_same_model(model("RFFGPC").fit(rows, da.from_array(y, chunks=77)), expected, X)


def test_a_few_rows_are_fitted_in_memory(data):
    few = [array[:300] for array in data[:3]]
    options = {"n_estimators": 1, "max_iter": 2, "random_state": 0}
    expected = VFFGPC(6, **options).fit(*few)
    found = VFFGPC(6, **options).fit(*chunked(*few, sizes=(200, 100)))
    assert found.fit_report_["solver"] == "batch"
    assert_same_model(found, expected, few[0])


@pytest.mark.parametrize("sizes", [(900,), (500, 7, 393)], ids=str)
@pytest.mark.parametrize("balance", [None, {"clear": 2.0, "cloud": 1.0}], ids=["even", "weighted"])
@pytest.mark.parametrize("grouped", [False, True], ids=["rows", "groups"])
@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
def test_the_model_does_not_depend_on_the_kind_of_array(data, sizes, balance, grouped, twice):
    """To the bit: where equal rows are merged, too, and where rows have no weight or groups."""
    X, y, weight, groups = data
    if twice:
        # So few distinct rows that they are fitted in one batch.
        X, y = (np.concatenate([values[:450]] * 2) for values in (X, y))
    rows = (X, y, weight, *([groups] if grouped else []))
    options = {"class_weight": balance, "n_estimators": 2, "max_iter": 2, "random_state": 0}
    expected = VFFGPC(6, **options).fit(*rows)
    found = VFFGPC(6, **options).fit(*chunked(*rows, sizes=sizes))
    assert found.fit_report_ == expected.fit_report_
    assert (found.fit_report_["solver"] == "batch") == (twice and not grouped)
    assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
    assert_array_equal(found.feature_quantiles_, expected.feature_quantiles_)


def test_far_rows_of_few_chunks_are_named_as_given(data):
    X, y, weight, _ = (array.copy() for array in data)
    # Rows without weight are left out, but numbered.
    weight[:100], weight[700], X[700, 1] = 0.0, 1.0, 1e5
    far = {"standardize": False, "init_frequencies": 1e6 * np.ones((6, 3)), "solver": "auto"}
    with pytest.raises(PhaseTooLargeError, match=r"Row 700 (.|\n)*column 1"):
        model("RFFGPC", **far).fit(*chunked(X - X[0], y, weight))


def test_the_automatic_solver_reads_many_rows_in_chunks(data, monkeypatch):
    monkeypatch.setattr(training, "MERGE_ROWS", 500)
    X, y, *_ = data
    found = model("VFFGPC", solver="auto").fit(*chunked(X, y))
    assert_same_model(found, model("VFFGPC").fit(*chunked(X, y)), X)
    assert found.fit_report_["solver"] == "stochastic"


def test_gpc_loads_dask_arrays_into_memory(data):
    X, y, *_ = data
    expected = GPC(max_iter=2).fit(X[:60], y[:60])
    found = GPC(max_iter=2).fit(*chunked(X[:60], y[:60], sizes=(40, 20)))
    assert_array_equal(found.predict_proba(X), expected.predict_proba(X))
    assert_array_equal(found.predict_proba(chunked(X)[0]), expected.predict_proba(X))


def test_a_warm_start_continues_from_the_last_fit(data):
    X, y, *_ = data
    warm = model("VFFGPC", warm_start=True).fit(*chunked(X, y))
    start = warm.lengthscale_
    warm.fit(*chunked(X, y))
    assert warm.fit_report_["starting_lengthscale"] == start


# Names


def named(X, dims=("pixel", "feature")):
    return xr.DataArray(X, dims=dims, coords={dims[1]: ["BT9", "R1", "BT10"]})


@pytest.mark.parametrize("solver", ["auto", "stochastic"])
def test_a_labelled_array_names_its_columns(data, solver):
    X, y, *_ = data
    rows = named(X).chunk({"pixel": 300})
    fitted = model("RFFGPC", solver=solver).fit(rows, xr.DataArray(y, dims="pixel").chunk(300))
    assert fitted.feature_names_in_.tolist() == ["BT9", "R1", "BT10"]
    assert_array_equal(fitted.predict_proba(rows), fitted.predict_proba(named(X)))
    with pytest.raises(InputError, match="same order as they were in fit"):
        fitted.predict(rows[:, ::-1])


def test_a_labelled_array_without_names_has_none(data):
    X, y, *_ = data
    fitted = model("RFFGPC").fit(xr.DataArray(X).chunk(300), y)
    assert not hasattr(fitted, "feature_names_in_")
    assert_same_model(fitted, model("RFFGPC").fit(*chunked(X, y, sizes=(300,) * 3)), X)


def test_a_bad_value_is_named_by_its_column(data):
    X, y, *_ = data
    X = X.copy()
    X[700, 1] = np.nan
    with pytest.raises(NotFiniteError, match="row 700, column 'R1'"):
        model("RFFGPC").fit(named(X).chunk({"pixel": 300}), y)


# Memory


def test_nothing_as_long_as_the_data_comes_to_the_client(monkeypatch, tmp_path):
    n, few, sizes = 30_000, 200, []
    for module, limit in [
        (learning, "SAMPLE_ROWS"),
        (training, "QUANTILE_ROWS"),
        (training, "FINGERPRINT_ROWS"),
        (classifier, "COMPARED_ROWS"),
    ]:
        monkeypatch.setattr(module, limit, few)
    search_few_rows(monkeypatch, few)
    compute = dask.compute

    def spy(*collections):
        found = compute(*collections)
        sizes.append(len(pickle.dumps(found)))
        return found

    monkeypatch.setattr(dask, "compute", spy)
    X = da.random.default_rng(0).normal(size=(n, 2), chunks=(2_000, 2))
    y, weight = (X[:, 0] > 0).astype(np.int8), da.ones(n, chunks=1_000)
    model("VFFGPC", checkpoint=tmp_path / "state").fit(X, y, weight)
    # Class moments, quantiles, a fingerprint, a search for the start, a sample, and passes.
    assert len(sizes) > 6
    assert max(sizes) < n / 2


# Schedulers


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": ":0"}
    with (
        distributed.LocalCluster(processes=True, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.slow
@each_model
@each_precision
def test_a_scheduler_does_not_change_a_bit(name, data, precision, client):
    X, y, weight, groups = data
    arrays = chunked(X, y, weight, groups, sizes=(90,) * 10)
    with dask.config.set(scheduler="synchronous"):
        expected = model(name, precision=precision).fit(*arrays)
    for workers in (1, 4):
        with dask.config.set(scheduler="threads", num_workers=workers):
            assert_same_model(model(name, precision=precision).fit(*arrays), expected, X)
    with client.as_current():
        assert_same_model(model(name, precision=precision).fit(*arrays), expected, X)
        # Arrays in memory are sent to the workers once.
        assert_same_model(
            model(name, precision=precision).fit(arrays[0], y, weight, groups), expected, X
        )
        found = expected.predict_proba(arrays[0])
        assert_allclose(found, expected.predict_proba(X), rtol=0, atol=TOLERANCE[precision])


@pytest.mark.slow
def test_an_error_on_a_worker_is_raised_here(data, client):
    X, y, *_ = data
    bad = X.copy()
    bad[[500, 800], 2] = np.inf
    fitted = model("RFFGPC").fit(X, y)
    with client.as_current():
        with pytest.raises(NotFiniteError, match="row 500, column 2"):
            model("RFFGPC").fit(*chunked(bad, y))
        with pytest.raises(NotFiniteError, match="row 500, column 2"):
            fitted.predict(chunked(bad)[0])


@pytest.mark.slow
@pytest.mark.parametrize("reads", [1, 5, 6])
def test_a_killed_worker_causes_a_retry_and_the_same_bits(data, client, tmp_path, reads):
    X, y, *_ = data
    flag, log = str(tmp_path / "flag"), str(tmp_path / "log")

    def kill_once(part, block_id):
        """Kill this worker once, when chunk 3 is read for the ``reads``-th time.

        The first four reads are for class moments, quantiles, search and sample; then passes.
        """
        if block_id[0] == 3:
            with open(log, "a") as lines:
                lines.write(f"{os.getpid()}\n")
            with open(log) as lines:
                times = len(lines.readlines())
            if times == reads and not os.path.exists(flag):
                open(flag, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)
        return part

    fX, fy = chunked(X, y, sizes=(90,) * 10)
    with dask.config.set(scheduler="synchronous"):
        expected = model("VFFGPC").fit(fX, fy)
    with client.as_current():
        client.wait_for_workers(2)
        found = model("VFFGPC").fit(da.map_blocks(kill_once, fX, meta=np.empty((0, 0))), fy)
    assert os.path.exists(flag)
    assert_same_model(found, expected, X)


# Continuing a fit


def stop_after(fitted, arrays, after):
    def call(self, step, state, estimator=0):
        if step == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLine, "__call__", call)
        with pytest.raises(KeyboardInterrupt):
            fitted.fit(*arrays)


@each_model
@pytest.mark.parametrize("after", [1, 2])
def test_a_fit_continued_from_its_checkpoint_gives_the_same_bits(name, data, tmp_path, after):
    X, y, weight, groups = data
    arrays, path = chunked(X, y, weight, groups), tmp_path / "state"
    whole = model(name).fit(*arrays)
    stop_after(model(name, checkpoint=path), arrays, after)
    assert path.exists()
    steps = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ProgressLine, "__call__", lambda self, step, state, estimator: steps.append(step)
        )
        rest = model(name, checkpoint=path).fit(*arrays)
    assert steps[0] == after + 1
    assert_same_model(rest, whole, X)


@pytest.mark.parametrize("what", ["rows", "labels", "weights", "groups"])
def test_a_checkpoint_of_other_data_is_refused(data, tmp_path, what):
    arrays, path = [array.copy() for array in data], tmp_path / "state"
    arrays[3] = arrays[3].astype(str).astype(object)
    model("RFFGPC", checkpoint=path).fit(*chunked(*arrays))
    # The same data are continued.
    model("RFFGPC", checkpoint=path).fit(*chunked(*arrays))
    used = np.flatnonzero(arrays[2])[5]
    other = "cloud" if arrays[1][used] == "clear" else "clear"
    changes = {"rows": 281.0, "labels": other, "weights": 7.0, "groups": "another day"}
    arrays[list(changes).index(what)][used] = changes[what]
    with pytest.raises(InputError, match="differs: the data"):
        model("RFFGPC", checkpoint=path).fit(*chunked(*arrays))


def test_progress_shows_exact_passes(data, capsys):
    X, y, *_ = data
    model("VFFGPC", verbose=2).fit(*chunked(X, y))
    written = capsys.readouterr().err
    assert "step 3 of about 3" in written
    assert "pass 1 over all rows" in written


# Errors


def test_the_batch_solver_needs_data_in_memory(data):
    X, y, *_ = data
    with pytest.raises(InputError, match=r'solver="batch".*X\.compute\(\).*solver="stochastic"'):
        model("VFFGPC", solver="batch").fit(*chunked(X, y))


def test_chunks_of_unknown_size_are_refused_with_a_remedy(data):
    X, y, *_ = data
    fX, fy = chunked(X, y)
    unknown = fX[fy == "cloud"]
    with pytest.raises(InputError, match=r"X\.compute_chunk_sizes\(\)"):
        model("RFFGPC").fit(unknown, fy)
    with pytest.raises(InputError, match=r"y\.compute_chunk_sizes\(\)"):
        model("RFFGPC").fit(fX, fy[fy == "cloud"])
    with pytest.raises(InputError, match=r"X\.compute_chunk_sizes\(\)"):
        model("RFFGPC").fit(X, y).predict(unknown)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda X, y, w: (X, None, None), "y to be passed"),
        (lambda X, y, w: (X, y[:-1], None), "inconsistent numbers of samples"),
        (lambda X, y, w: (X, y[:, None], None), "inconsistent numbers of samples"),
        (lambda X, y, w: (X, y, w[:-1]), "sample_weight has shape"),
        (lambda X, y, w: (X, y, -w), "Negative values"),
        (lambda X, y, w: (X, y, w / 0.0), "NaN or infinity"),
        (lambda X, y, w: (X, y, 0 * w), "must not all be zero"),
        (lambda X, y, w: (X, y, w * (y == "clear")), "rows of both classes"),
        (lambda X, y, w: (X, da.zeros(900, chunks=300), None), "one class only"),
        (lambda X, y, w: (X, X[:, 0], None), "Unknown label type"),
        (lambda X, y, w: (X, da.full(900, np.nan, chunks=300), None), "y contains NaN"),
        (lambda X, y, w: (X.astype(complex), y, None), "real numbers"),
        (lambda X, y, w: (X[:0], y[:0], None), "minimum of 1"),
        (lambda X, y, w: (X * 1e300, y, None), "too large"),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_invalid_input_is_refused_as_for_arrays(data, wrong, message):
    arrays = wrong(*chunked(*data[:3]))
    with pytest.raises(InputError, match=message):
        model("RFFGPC").fit(*arrays)


def test_a_class_of_zero_weight_is_refused(data):
    with pytest.raises(InputError, match="rows of both classes"):
        model("RFFGPC", class_weight={"clear": 0.0}).fit(*chunked(*data[:2]))


def test_a_row_too_far_out_is_named(data):
    X, y, *_ = data
    X = X.copy()
    X[800, 1] = 1e5
    high_frequencies = 1e6 * np.ones((6, 3))
    with pytest.raises(PhaseTooLargeError, match=r"Row 800 (.|\n)*column 1"):
        model("RFFGPC", standardize=False, init_frequencies=high_frequencies).fit(
            *chunked(X - X[0], y)
        )


def test_a_failed_fit_leaves_no_model(data):
    X, y, *_ = data
    fitted = model("RFFGPC").fit(*chunked(X, y))
    with pytest.raises(InputError):
        fitted.fit(*chunked(np.full_like(X, np.nan), y))
    assert not hasattr(fitted, "posterior_")


# Prediction


@each_model
@pytest.mark.parametrize("tolerance", [0.0, 1e-3])
def test_prediction_reads_each_chunk_once_and_equals_that_of_an_array(name, data, tolerance):
    X, y, *_ = data
    fitted = model(name, variance_tolerance=tolerance).fit(X, y)
    read = []

    def note(part, block_id):
        read.append(block_id[0])
        return part

    rows = da.map_blocks(note, *chunked(X), meta=np.empty((0, 0)))
    for method in (
        "predict",
        "predict_proba",
        "decision_function",
        "latent_mean_and_variance",
        "predict_proba_and_variance",
    ):
        found, expected = (getattr(fitted, method)(given) for given in (rows, X))
        if method == "predict":
            assert_array_equal(found, expected)
        elif isinstance(expected, tuple):
            for one, other in zip(found, expected, strict=True):
                assert_allclose(one, other, rtol=1e-9, atol=1e-9)
        else:
            assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
        assert sorted(read) == [0, 1, 2]
        read.clear()


def test_dask_is_not_used_for_rows_in_an_array(data, monkeypatch):
    X, y, *_ = data
    monkeypatch.setattr(dask_data, "LabelledArrays", None)
    model("RFFGPC").fit(X, y).predict(X)
