"""A fit in progress, saved to disk and continued."""

from contextlib import nullcontext
from dataclasses import is_dataclass, replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from undulatus import RFFGPC, VFFGPC
from undulatus._files import write_tensors
from undulatus.errors import InputError, ModelFileError
from undulatus.estimators.checkpoint import (
    Checkpoint,
    count_iterations,
    differences,
    fingerprint,
)
from undulatus.estimators.progress_line import ProgressLine
from undulatus.estimators.training import Overview, RowData
from undulatus.gp.batch import BatchState, LocalParameters, Progress
from undulatus.gp.data import Standardisation
from undulatus.gp.minibatch import AdamState, Parameters, Start, State
from undulatus.gp.moments import summarise

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

BATCH = {"n_estimators": 1, "solver": "batch", "max_iter": 5, "tol": 0.0, "random_state": 1}
# Three minibatches per epoch, so that it matters where in an epoch the fit continues. Early
# stopping is on: "auto" turns it off for the batch solver only.
STOCHASTIC = BATCH | {"solver": "stochastic", "batch_size": 50}
MODELS = {
    "RFFGPC": RFFGPC(8, **BATCH),
    "VFFGPC": VFFGPC(6, **BATCH),
    "early VFFGPC": VFFGPC(6, **BATCH, early_stopping=True),
    "stochastic RFFGPC": RFFGPC(8, **STOCHASTIC),
    "stochastic VFFGPC": VFFGPC(6, **STOCHASTIC),
}
each_model = pytest.mark.parametrize("name", MODELS)
each_batch_model = pytest.mark.parametrize("name", ["RFFGPC", "VFFGPC", "early VFFGPC"])
each_stochastic_model = pytest.mark.parametrize("name", ["stochastic RFFGPC", "stochastic VFFGPC"])


def model(name, **params):
    return clone(MODELS[name]).set_params(**params)


def assert_same_model(one, other, X):
    assert one.fit_report_ == other.fit_report_
    assert_array_equal(one.lower_bounds_, other.lower_bounds_)
    assert_array_equal(one.frequencies_, other.frequencies_)
    assert_array_equal(one.posterior_.mean, other.posterior_.mean)
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))


def fit_and_interrupt(fitted, X, y, after):
    """Interrupt a fit after some iterations; it leaves a model if it is to keep one."""

    def call(self, step, state, estimator=0):
        if step == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProgressLine, "__call__", call)
        if fitted.on_interrupt == "raise":
            with pytest.raises(KeyboardInterrupt):
                fitted.fit(X, y)
            assert not hasattr(fitted, "estimators_")
        else:
            assert fitted.fit(X, y).n_iter_ == after


@pytest.fixture(scope="module")
def noise():
    """200 rows of 10 features, of which one is slightly informative."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 10))
    return X, (X[:, 0] + rng.normal(size=200) > 0).astype(int)


class Killed(BaseException):
    """Stands for the end of the process."""


# In the file


def batch_state(dtype=np.float64):
    rng = np.random.default_rng(0)
    return BatchState(
        start=Start(rng.normal(size=(3, 2)), 1.25, 0.75),
        progress=Progress(
            theta=rng.normal(size=7),
            bounds=(-3.5, -2.25),
            losses=(0.5, 0.25, 0.375),
            best_theta=rng.normal(size=7),
        ),
        local=LocalParameters(rng.random((1, 11)).astype(dtype), rng.normal(size=1)),
    )


def minibatch_state(dtype=np.float64):
    rng = np.random.default_rng(0)

    def parameters():
        frequencies, variances = rng.normal(size=(3, 2)).astype(dtype), np.array([0.75])
        gram, projected = rng.normal(size=(1, 6, 6)), rng.normal(size=(1, 6))
        return Parameters(frequencies, 1.25, variances, gram, projected)

    return State(
        step=50,
        parameters=parameters(),
        best=parameters(),
        frequency_adam=AdamState(rng.normal(size=(3, 2)), rng.random((3, 2))),
        scale_adam=AdamState(rng.normal(size=2), rng.random(2)),
        losses=np.array([0.5, 0.25]),
        seed=2**62,
        frequency_unit=0.5,
        best_loss=0.375,
    )


STATES = {BatchState: batch_state, State: minibatch_state}
each_state = pytest.mark.parametrize("make", STATES.values(), ids=["batch", "minibatches"])


def checkpoint(path, mark="mark", kind=BatchState):
    return Checkpoint(path, {"the data": mark, "kernel": "'rbf'"}, kind)


def assert_same_state(found, expected):
    assert type(found) is type(expected)
    for name, value in vars(expected).items():
        if is_dataclass(value):
            assert_same_state(getattr(found, name), value)
        elif isinstance(value, np.ndarray):
            assert getattr(found, name).dtype == value.dtype
            assert_array_equal(getattr(found, name), value)
        else:
            assert getattr(found, name) == value


@each_state
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_saved_state_is_loaded_bit_for_bit(tmp_path, make, dtype):
    state = make(dtype)
    checkpoint(tmp_path / "state", kind=type(state)).save(state)
    assert_same_state(checkpoint(tmp_path / "state", kind=type(state)).load(), state)


@each_state
def test_iterations_are_counted_in_the_checkpoint_of_any_fit(tmp_path, make):
    state = make()
    checkpoint(tmp_path / "state", kind=type(state)).save(state)
    assert count_iterations(tmp_path / "state") == state.n_iter == 2


def test_a_state_without_a_best_theta_is_loaded_as_it_was(tmp_path):
    state = batch_state()
    state = replace(state, progress=Progress(state.progress.theta, bounds=(-1.0,)))
    checkpoint(tmp_path / "state").save(state)
    assert_same_state(checkpoint(tmp_path / "state").load(), state)


@pytest.mark.parametrize("mark", ["mark", {"data": "mark", "settings": {"kernel": "'rbf'"}}])
def test_a_checkpoint_of_another_version_is_refused(tmp_path, mark):
    path = tmp_path / "state"
    values = {"step": 3, "seed": 1, "outcome": "max_iter"}
    write_tensors(path, {"frequencies": np.ones((3, 2))}, {"fingerprint": mark, "values": values})
    for kind in STATES:
        with pytest.raises(InputError, match=r"state was written by another version"):
            checkpoint(path, kind=kind).load()


def test_a_batch_state_is_not_continued_on_minibatches(tmp_path):
    checkpoint(tmp_path / "state").save(batch_state())
    with pytest.raises(InputError, match="not overwritten"):
        checkpoint(tmp_path / "state", kind=State).load()


@pytest.mark.parametrize("header", [{"kind": "VFFGPC"}, ["values"], "mark", None])
def test_a_file_that_is_no_checkpoint_is_an_error_and_is_not_overwritten(tmp_path, header):
    write_tensors(tmp_path / "model", {"mean": np.ones(3)}, header)
    with pytest.raises(ModelFileError, match=r"model: is not a checkpoint"):
        checkpoint(tmp_path / "model").load()
    with pytest.raises(ModelFileError, match=r"model: is not a checkpoint"):
        count_iterations(tmp_path / "model")


def test_without_a_file_there_is_nothing_to_continue(tmp_path):
    assert checkpoint(tmp_path / "state").load() is None


def test_the_state_of_another_fit_is_refused(tmp_path):
    checkpoint(tmp_path / "state", "one").save(batch_state())
    with pytest.raises(InputError, match=r"state belongs to another fit(.|\n)*differs: the data"):
        checkpoint(tmp_path / "state", "other").load()


def test_differences_show_short_values_and_only_name_long_ones():
    one = fingerprint(row_data(np.ones((4, 1))), {"kernel": "rbf", "tol": 0.1, "frequencies": "1"})
    other = fingerprint(
        row_data(np.ones((4, 1))), {"kernel": "matern32", "tol": 0.1, "frequencies": [1] * 90}
    )
    assert differences(one, other) == [
        "frequencies",
        "kernel ('rbf', in the checkpoint 'matern32')",
    ]
    assert differences(one, one) == []


def test_a_damaged_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "state"
    checkpoint(path).save(batch_state())
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ModelFileError, match="state"):
        checkpoint(path).load()


# In a fit


@each_model
@pytest.mark.parametrize(("after", "on_interrupt"), [(1, "raise"), (3, "keep")])
@pytest.mark.parametrize("precision", ["single", "double"])
def test_an_interrupted_and_continued_fit_equals_the_uninterrupted_one(
    name, clouds, tmp_path, after, on_interrupt, precision
):
    X, y = clouds
    whole = model(name, precision=precision).fit(X, y)
    path = tmp_path / "state"
    stopped = model(name, precision=precision, checkpoint=path, on_interrupt=on_interrupt)
    fit_and_interrupt(stopped, X, y, after)
    assert path.exists()
    continued = model(name, precision=precision, checkpoint=path).fit(X, y)
    assert_same_model(continued, whole, X)


@each_model
def test_a_killed_and_continued_fit_equals_the_uninterrupted_one(
    name, clouds, tmp_path, monkeypatch
):
    X, y = clouds
    whole = model(name).fit(X, y)
    path = tmp_path / "state"

    def call(self, step, state, estimator=0):
        if step == 2:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "__call__", call)
        with pytest.raises(Killed):
            model(name, checkpoint=path).fit(X, y)
    assert_same_model(model(name, checkpoint=path).fit(X, y), whole, X)


@each_stochastic_model
@pytest.mark.parametrize("on_interrupt", ["raise", "keep"])
def test_a_fit_interrupted_in_its_exact_passes_can_be_continued(
    name, on_interrupt, clouds, tmp_path, monkeypatch
):
    X, y = clouds
    whole = model(name).fit(X, y)
    path = tmp_path / "state"

    def note(self, *rest):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "note_pass", note)
        stopped = model(name, checkpoint=path, on_interrupt=on_interrupt)
        with pytest.raises(KeyboardInterrupt) if on_interrupt == "raise" else nullcontext():
            stopped.fit(X, y)
    if on_interrupt == "keep":
        assert stopped.fit_report_["stopped"] == "interrupted"
    assert_same_model(model(name, checkpoint=path).fit(X, y), whole, X)


@each_model
def test_a_finished_fit_is_not_fitted_again(name, clouds, tmp_path, monkeypatch):
    X, y = clouds
    path = tmp_path / "state"
    whole = model(name, checkpoint=path).fit(X, y)
    steps = []
    monkeypatch.setattr(
        ProgressLine, "__call__", lambda self, step, state, estimator: steps.append(step)
    )
    assert_same_model(model(name, checkpoint=path).fit(X, y), whole, X)
    assert steps == []


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
def test_a_fit_that_stops_early_may_be_interrupted_anywhere(solver, noise, tmp_path):
    X, y = noise
    stopping = VFFGPC(20, n_estimators=1, solver=solver, early_stopping=True, random_state=1)
    whole = clone(stopping).fit(X, y)
    losses = whole.fit_report_["validation_nll"]
    assert whole.n_iter_ < whole.max_iter
    assert min(losses) < losses[-1]
    # Before the best iteration, and in the iterations without improvement after it.
    for after in (1, whole.n_iter_ - 2):
        path = tmp_path / f"state{after}"
        fit_and_interrupt(clone(stopping).set_params(checkpoint=path), X, y, after)
        continued = clone(stopping).set_params(checkpoint=path).fit(X, y)
        assert_same_model(continued, whole, X)


@each_stochastic_model
def test_a_stochastic_fit_may_be_continued_with_other_threads(name, clouds, tmp_path):
    X, y = clouds
    whole = model(name).fit(X, y)
    path = tmp_path / "state"
    fit_and_interrupt(model(name, n_jobs=1, checkpoint=path), X, y, 2)
    assert_same_model(model(name, n_jobs=2, checkpoint=path).fit(X, y), whole, X)


def test_a_continued_fit_keeps_its_unit_frequencies_whatever_is_drawn(clouds, tmp_path):
    X, y = clouds
    name, path, generator = "stochastic RFFGPC", tmp_path / "state", np.random.RandomState(0)
    stopped = model(name, checkpoint=path, random_state=generator, on_interrupt="keep")
    fit_and_interrupt(stopped, X, y, 2)
    # The generator is drawn from a second time, as with random_state=None.
    continued = model(name, checkpoint=path, random_state=generator).fit(X, y)
    one, other = (m.frequencies_ * m.lengthscale_ for m in (stopped, continued))
    assert_allclose(other, one, rtol=1e-10)


@each_batch_model
def test_a_fit_may_be_continued_with_more_iterations_and_other_threads(name, clouds, tmp_path):
    X, y = clouds
    whole = model(name).fit(X, y)
    path = str(tmp_path / "state")
    model(name, max_iter=2, n_jobs=1, checkpoint=path).fit(X, y)
    continued = model(name, n_jobs=2, verbose=0, checkpoint=path).fit(X, y)
    assert_same_model(continued, whole, X)


@each_stochastic_model
@pytest.mark.parametrize("finished", [True, False])
def test_a_stochastic_fit_with_another_max_iter_is_refused_and_told_why(
    name, finished, clouds, tmp_path
):
    X, y = clouds
    path = tmp_path / "state"
    if finished:
        model(name, checkpoint=path).fit(X, y)
    else:
        fit_and_interrupt(model(name, checkpoint=path), X, y, 2)
    differing = r"max_iter \(30, in the checkpoint 5\): the stochastic solver plans by it"
    assert_refused(model(name, max_iter=30), (X, y), path, differing)


@each_model
def test_a_finished_fit_may_be_continued_with_another_posterior(name, clouds, tmp_path):
    X, y = clouds
    path = tmp_path / "state"
    model(name, checkpoint=path, posterior="bound").fit(X, y)
    other = model(name, checkpoint=path, posterior="variational").fit(X, y)
    assert_same_model(other, model(name, posterior="variational").fit(X, y), X)


@each_model
def test_a_checkpoint_does_not_change_the_model(name, clouds, tmp_path):
    X, y = clouds
    assert_same_model(
        model(name, checkpoint=tmp_path / "state").fit(X, y), model(name).fit(X, y), X
    )


CHANGES = {
    "features": lambda X, y, w: (X * 1.001, y, w),
    "labels": lambda X, y, w: (X, np.where(np.arange(len(y)) == 3, 1 - y, y), w),
    "weights": lambda X, y, w: (X, y, w + (np.arange(len(y)) == 5)),
    "fewer rows": lambda X, y, w: (X[:-1], y[:-1], w[:-1]),
}
SETTINGS = [
    {"kernel": "matern32"},
    {"n_frequencies": 7},
    {"random_state": 2},
    {"tol": 1e-3},
    {"standardize": False},
    {"warp": False},
    {"taper": 0.1},
    {"precision": "single"},
    {"class_weight": "balanced"},
    {"early_stopping": True},
    {"init_frequencies": np.ones((8, 3))},
]


def row_data(rows, weight=None):
    overview = Overview(
        summary=summarise(rows, None, 1, str),
        standardisation=Standardisation(np.zeros(1), np.ones(1)),
        variances=np.ones(1),
        classes=np.array([0, 1]),
        prior_shift=np.zeros(1),
        quantiles=np.zeros((7, 1)),
        log_odds=np.zeros(1),
    )
    return RowData(
        overview,
        rows=rows,
        codes=np.arange(len(rows)) % 2 == 0,
        weight=weight,
        groups=None,
        source=rows,
        dropped=None,
    )


@pytest.mark.parametrize("weight", [None, np.arange(8.0)], ids=["without", "with weights"])
def test_different_rows_with_the_same_summary_have_different_fingerprints(weight):
    rows = np.array([[-9.0], [9.0], [-5.0], [5.0], [1.0], [1.0], [3.0], [-3.0]])
    one, other = row_data(rows, weight), row_data(rows[[0, 1, 2, 3, 4, 5, 7, 6]], weight)
    for name in ("mean", "variance", "low", "high"):
        assert_array_equal(*(getattr(data.overview.summary, name) for data in (one, other)))
    assert fingerprint(one, {}) != fingerprint(other, {})
    assert fingerprint(one, {}) == fingerprint(row_data(rows.copy(), weight), {})


def test_a_fingerprint_of_many_rows_is_that_of_some():
    data = row_data(np.arange(4000.0)[:, None])
    mark = fingerprint(data, {})
    # Every fourth row counts, from the first on.
    for row in range(0, 4000, 100):
        changed = data.rows.copy()
        changed[row] += 0.5
        assert fingerprint(replace(data, rows=changed), {}) != mark


def assert_refused(other, arrays, path, differing):
    """Fit on the checkpoint of another fit: it is refused, and left as it is."""
    before = path.read_bytes()
    with pytest.raises(InputError, match=f"differs: {differing}(.|\n)*delete this one"):
        other.set_params(checkpoint=path).fit(*arrays)
    assert path.read_bytes() == before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_checkpoint_of_other_data_is_refused(clouds, tmp_path, change):
    X, y = clouds
    w, path = np.ones(len(y)), tmp_path / "state"
    model("RFFGPC", max_iter=2, checkpoint=path).fit(X, y, sample_weight=w)
    assert_refused(model("RFFGPC"), change(X, y, w), path, "the data")


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: next(iter(settings)))
def test_the_checkpoint_of_other_settings_is_refused_and_they_are_named(
    clouds, tmp_path, settings
):
    path = tmp_path / "state"
    model("RFFGPC", max_iter=2, checkpoint=path).fit(*clouds)
    assert_refused(model("RFFGPC", **settings), clouds, path, next(iter(settings)))


def test_a_random_fit_is_not_continued_by_a_learned_one(clouds, tmp_path):
    path = tmp_path / "state"
    model("RFFGPC", n_frequencies=6, max_iter=2, checkpoint=path).fit(*clouds)
    assert_refused(model("VFFGPC"), clouds, path, "class")


def test_a_batch_fit_is_not_continued_by_a_stochastic_one(clouds, tmp_path):
    path = tmp_path / "state"
    model("RFFGPC", max_iter=2, checkpoint=path).fit(*clouds)
    assert_refused(model("stochastic RFFGPC"), clouds, path, "batch_size")


def test_class_weights_by_numpy_integers_work_with_a_checkpoint(clouds, tmp_path):
    X, y = clouds
    weights = dict(zip(np.unique(y), [1.0, 2.0], strict=True))
    model("RFFGPC", class_weight=weights, checkpoint=tmp_path / "state").fit(X, y)


def test_a_folder_that_does_not_exist_is_an_error_that_names_the_file(clouds, tmp_path):
    with pytest.raises(ModelFileError, match=r"nowhere.*cannot be written"):
        model("RFFGPC", checkpoint=tmp_path / "nowhere" / "state").fit(*clouds)
