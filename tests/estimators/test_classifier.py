"""RFFGPC and VFFGPC: frequencies, precision, determinism, solvers, restarts, interrupts."""

from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from undulatus import RFFGPC, VFFGPC, UndulatusError
from undulatus.errors import InputError, PhaseTooLargeError
from undulatus.estimators import classifier, training
from undulatus.estimators.classifier import BATCH_ROWS
from undulatus.estimators.progress_line import ProgressLine
from undulatus.gp import data, learning
from undulatus.gp.backends import make_backend
from undulatus.gp.kernels import KERNELS, mean_distance
from undulatus.gp.minibatch import Batch, Config
from undulatus.gp.search import BoundSearch, HalvingSearch, choose_start
from undulatus.gp.taper import range_share

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

MODELS = {
    "RFFGPC": RFFGPC(8, n_estimators=1, solver="batch", max_iter=4, random_state=0),
    "VFFGPC": VFFGPC(6, n_estimators=1, solver="batch", max_iter=4, random_state=0),
}
each_model = pytest.mark.parametrize("name", MODELS)
# The paper's model, in which the posterior handed out is the one that was learned with.
PAPER = {"posterior": "bound", "warp": False, "taper": 0.0}


def model(name, **params):
    return clone(MODELS[name]).set_params(**params)


def assert_same_model(one, other, X):
    assert_array_equal(one.frequencies_, other.frequencies_)
    assert_array_equal(one.lower_bounds_, other.lower_bounds_)
    assert_array_equal(one.posterior_.mean, other.posterior_.mean)
    assert_array_equal(one.posterior_.root, other.posterior_.root)
    assert_array_equal(one.predict_proba(X), other.predict_proba(X))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 256 rows, the smallest possible, so that a few hundred rows make several."""
    monkeypatch.setattr(data, "BLOCK_BYTES", 1)


@pytest.fixture
def no_merging(monkeypatch):
    """Rows are read from where they are, in their own order, as large data are."""
    monkeypatch.setattr(training, "MERGE_ROWS", 0)


@pytest.fixture(scope="module")
def many():
    """700 rows: three blocks of 256, the last one short."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(700, 3)) * [15.0, 0.2, 4.0] + [280.0, 0.4, -3.0]
    y = (np.sin((X[:, 0] - 280.0) / 8.0) + 4.0 * (X[:, 1] - 0.4) > 0.2).astype(int)
    X.setflags(write=False)
    return X, y


# Frequencies


def test_given_frequencies_stay_as_they_are_in_rff(moons):
    unit = np.random.default_rng(5).normal(size=(8, 2))
    fitted = model("RFFGPC", init_frequencies=unit).fit(*moons)
    assert_allclose(fitted.frequencies_ * fitted.lengthscale_, unit, rtol=1e-12)


def test_vff_starts_from_given_frequencies_and_moves_them(moons):
    unit = np.random.default_rng(5).normal(size=(6, 2))
    given = model("VFFGPC", init_frequencies=unit).fit(*moons)
    listed = model("VFFGPC", init_frequencies=unit.tolist(), random_state=99).fit(*moons)
    assert_same_model(given, listed, moons[0])
    assert not np.allclose(given.frequencies_ * given.lengthscale_, unit)
    assert given.lengthscale_ == given.fit_report_["starting_lengthscale"]


def test_more_frequencies_extend_fewer_of_the_same_seed(moons):
    few, many = (model("RFFGPC", n_frequencies=D).fit(*moons) for D in (5, 9))
    unit_few, unit_many = (m.frequencies_ * m.lengthscale_ for m in (few, many))
    assert_allclose(unit_many[:5], unit_few, rtol=1e-12)


def test_learned_frequencies_raise_the_bound_above_random_ones(moons):
    random = model("RFFGPC", n_frequencies=3, max_iter=30).fit(*moons)
    learned = model("VFFGPC", n_frequencies=3, max_iter=30).fit(*moons)
    assert learned.lower_bound_ > random.lower_bound_


@each_model
@pytest.mark.parametrize(
    "wrong",
    [np.ones(2), np.ones((7, 2)), np.ones((50, 3)), np.ones((2, 8)), np.full((1, 2), np.nan)],
    ids=["1-D", "too few", "too many", "transposed", "NaN"],
)
def test_the_error_for_invalid_frequencies_names_the_parameter(name, moons, wrong):
    D = 1 if np.isnan(wrong).any() else MODELS[name].n_frequencies + 3
    with pytest.raises(InputError, match="frequencies must"):
        model(name, n_frequencies=D, init_frequencies=wrong).fit(*moons)


@pytest.mark.parametrize("wrong", [[["a", "b"]], [[1.0, 2.0], [3.0]]], ids=["words", "ragged"])
def test_the_error_for_frequencies_that_are_no_matrix_names_the_parameter(moons, wrong):
    with pytest.raises(InputError, match="frequencies"):
        model("RFFGPC", init_frequencies=wrong, n_frequencies=len(wrong)).fit(*moons)


@each_model
def test_more_features_than_rows_are_allowed(name, moons):
    X, y = moons
    fitted = model(name, n_frequencies=40).fit(X[:30], y[:30])
    assert np.all(np.isfinite(fitted.predict_proba(X)))


@each_model
@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_classifies(name, moons, kernel):
    X, y = moons
    assert model(name, kernel=kernel, n_frequencies=20).fit(X, y).score(X, y) > 0.8


# Rows too far out


@each_model
def test_a_row_too_far_out_is_named_in_prediction(name, moons):
    X, y = moons
    table = pd.DataFrame(X, columns=["IR_108", "VIS006"])
    fitted = model(name, warp=False).fit(table, y)
    far = table.copy()
    far.loc[9, "VIS006"] = 1e10
    for predict in (fitted.predict, fitted.predict_proba):
        with pytest.raises(PhaseTooLargeError, match=r"Row 9 (.|\n)*column 'VIS006'") as caught:
            predict(far)
        assert isinstance(caught.value, UndulatusError)
        assert isinstance(caught.value, ValueError)


@each_model
@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_fill_value_is_named_in_either_precision(name, moons, precision):
    X, y = moons
    fitted = model(name, precision=precision, warp=False).fit(X, y)
    filled = X.copy()
    filled[4, 0] = 9.96921e36
    with pytest.raises(PhaseTooLargeError, match=r"Row 4 (.|\n)*column 0"):
        fitted.predict(filled)


def test_a_value_beyond_single_precision_is_named(moons):
    X, y = moons
    fitted = model("RFFGPC", precision="single", warp=False).fit(X, y)
    filled = X.copy()
    filled[4, 0] = 1e300
    with pytest.raises(PhaseTooLargeError, match=r"Row 4 (.|\n)*column 0"):
        fitted.predict(filled)


@each_model
@pytest.mark.parametrize("standardize", [True, False])
def test_an_offset_of_the_features_does_not_change_the_model(name, moons, standardize):
    X, y = moons
    # Multiples of 1/64 around zero and around 300: no rounding in the offset.
    X = np.round(64 * X) / 64
    near = model(name, standardize=standardize).fit(X, y)
    far = model(name, standardize=standardize).fit(X + 300.0, y)
    # The two means differ by their rounding, 1e-13, and the fits by what that becomes.
    assert_allclose(far.frequencies_, near.frequencies_, rtol=1e-6, atol=1e-8)
    assert_allclose(far.predict_proba(X + 300.0), near.predict_proba(X), atol=1e-6)


HIGH_FREQUENCIES = 1e6 * np.ones((8, 2))


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
def test_a_row_too_far_out_is_named_in_fitting(moons, solver):
    X, y = moons
    far = X.copy()
    far[9, 1] = 1e3
    with pytest.raises(PhaseTooLargeError, match=r"Row 9 (.|\n)*column 1"):
        model("RFFGPC", solver=solver, standardize=False, init_frequencies=HIGH_FREQUENCIES).fit(
            far, y
        )


def test_a_row_of_zero_weight_is_not_named_instead_of_another(moons):
    X, y = moons
    far, weight = X.copy(), np.ones(len(y))
    far[9, 1], far[5, 0], weight[5] = 1e3, 1e6, 0.0
    with pytest.raises(PhaseTooLargeError, match=r"Row 9 (.|\n)*column 1"):
        model("RFFGPC", standardize=False, init_frequencies=HIGH_FREQUENCIES).fit(
            far, y, sample_weight=weight
        )


def test_rows_in_range_are_fitted_even_if_a_corner_of_their_box_is_not(moons, monkeypatch):
    X, y = moons
    far = X.copy()
    far[9], far[5] = [0.0, 30.0], [30.0, 0.0]
    fitted = model("RFFGPC", standardize=False).fit(far, y)
    longest = np.linalg.norm(fitted.frequencies_ * fitted.lengthscale_, axis=1).max()
    longest /= fitted.fit_report_["starting_lengthscale"]
    # The largest phase of a row is 30 x longest at the start; of a corner, sqrt(2) times that.
    monkeypatch.setattr(data, "PHASE_LIMIT", 1.2 * 30 * longest)
    monkeypatch.setattr(classifier, "PHASE_LIMIT", 1.2 * 30 * longest)
    assert_same_model(model("RFFGPC", standardize=False).fit(far, y), fitted, X)
    monkeypatch.setattr(data, "PHASE_LIMIT", 0.9 * 30 * longest)
    monkeypatch.setattr(classifier, "PHASE_LIMIT", 0.9 * 30 * longest)
    with pytest.raises(PhaseTooLargeError):
        model("RFFGPC", standardize=False).fit(far, y)


# Determinism


@each_model
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("precision", ["single", "double"])
def test_one_seed_gives_one_model_for_any_number_of_threads(name, many, precision):
    X, y = many
    one, two, three = (
        model(name, n_jobs=n, precision=precision, max_iter=2).fit(X, y) for n in (1, 2, 3)
    )
    assert_same_model(one, two, X)
    assert_same_model(one, three, X)


@each_model
def test_another_seed_gives_another_model(name, moons):
    one, other = (model(name, random_state=seed).fit(*moons) for seed in (0, 1))
    assert not np.array_equal(one.frequencies_, other.frequencies_)


@each_model
def test_a_generator_seeds_like_its_seed(name, moons):
    by_number = model(name, random_state=5).fit(*moons)
    by_generator = model(name, random_state=np.random.RandomState(5)).fit(*moons)
    assert_same_model(by_number, by_generator, moons[0])


@each_model
def test_fitting_draws_from_no_global_generator(name, moons):
    np.random.seed(0)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    model(name).fit(*moons)
    assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


# Blocks and precision


@each_model
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize(("precision", "tolerance"), [("double", 1e-9), ("single", 1e-5)])
def test_prediction_does_not_depend_on_how_rows_are_blocked(name, many, precision, tolerance):
    X, y = many
    fitted = model(name, precision=precision).fit(X, y)
    whole = fitted.predict_proba(X)
    edges = [0, 1, 2, 9, 255, 256, 300, 513, 700]
    parts = [fitted.predict_proba(X[a:b]) for a, b in pairwise(edges)]
    assert_allclose(np.concatenate(parts), whole, rtol=0, atol=tolerance)
    rows = [fitted.predict_proba(X[i : i + 1]) for i in range(0, 700, 37)]
    assert_allclose(np.concatenate(rows), whole[::37], rtol=0, atol=tolerance)
    labels = np.concatenate([fitted.predict(X[a:b]) for a, b in pairwise(edges)])
    sure = np.abs(whole[:, 1] - 0.5) > tolerance
    assert_array_equal(labels[sure], fitted.predict(X)[sure])


@each_model
@pytest.mark.parametrize("precision", ["single", "double"])
def test_prediction_does_not_depend_on_the_order_of_rows(name, many, precision):
    X, y = many
    fitted = model(name, precision=precision).fit(X, y)
    order = np.random.default_rng(0).permutation(len(X))
    tolerance = 1e-9 if precision == "double" else 1e-5
    assert_allclose(
        fitted.predict_proba(X[order]), fitted.predict_proba(X)[order], rtol=0, atol=tolerance
    )


@each_model
def test_single_precision_follows_double(name, many):
    X, y = many
    double, single = (model(name, precision=p, max_iter=3).fit(X, y) for p in ("double", "single"))
    assert double.fit_report_["precision"] == "double"
    assert single.fit_report_["precision"] == "single"
    # Features agree to about 1e-6, but two ascents amplify rounding, to lengthscales that
    # differ by up to 3 %: the models are close everywhere, and closer on average.
    gap = np.abs(single.predict_proba(X) - double.predict_proba(X))
    assert gap.max() < 0.1
    assert gap.mean() < 0.005
    # The same posterior in single precision: rounding of features and root, 1e-4.
    single.estimators_ = double.estimators_
    assert_allclose(single.predict_proba(X), double.predict_proba(X), rtol=0, atol=1e-4)


def test_automatic_precision_is_decided_by_the_training_rows_alone(monkeypatch, many):
    X, y = many
    monkeypatch.setattr(classifier, "DOUBLE_ROWS", 700)
    exact = model("RFFGPC", precision="auto", max_iter=1).fit(X, y)
    monkeypatch.setattr(classifier, "DOUBLE_ROWS", 699)
    fast = model("RFFGPC", precision="auto", max_iter=1).fit(X, y)
    assert exact.fit_report_["precision"] == "double"
    assert fast.fit_report_["precision"] == "single"
    # The number of rows to predict makes no difference.
    assert_allclose(fast.predict_proba(X[:1]), fast.predict_proba(X)[:1], rtol=0, atol=1e-5)


@each_model
def test_a_model_of_many_rows_predicts_in_single_precision(name, many, monkeypatch):
    X, y = many
    monkeypatch.setattr(classifier, "DOUBLE_PREDICTION_ROWS", 699)
    fast, exact = (model(name, precision=p, max_iter=2).fit(X, y) for p in ("auto", "double"))
    assert fast.fit_report_["precision"] == exact.fit_report_["precision"] == "double"
    assert fast.fit_report_["prediction_precision"] == "single"
    assert exact.fit_report_["prediction_precision"] == "double"
    assert_array_equal(fast.posterior_.mean, exact.posterior_.mean)
    gap = np.abs(fast.predict_proba(X) - exact.predict_proba(X)).max()
    assert 0.0 < gap <= 1e-5


def test_a_model_predicts_in_double_precision_if_it_has_few_rows_or_single_is_worse(
    many, monkeypatch
):
    X, y = many
    monkeypatch.setattr(classifier, "DOUBLE_PREDICTION_ROWS", 700)
    few = model("RFFGPC", max_iter=1).fit(X, y)
    monkeypatch.setattr(classifier, "DOUBLE_PREDICTION_ROWS", 699)
    monkeypatch.setattr(classifier, "SINGLE_ERROR", 0.0)
    worse = model("RFFGPC", max_iter=1).fit(X, y)
    for fitted in (few, worse):
        assert fitted.fit_report_["prediction_precision"] == "double"
        assert_array_equal(fitted.predict_proba(X), few.predict_proba(X))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_a_model_that_does_not_say_predicts_in_the_precision_of_its_training(many, precision):
    fitted = model("RFFGPC", precision=precision, max_iter=1).fit(*many)
    expected = fitted.predict_proba(many[0])
    del fitted.fit_report_["prediction_precision"]
    assert_array_equal(fitted.predict_proba(many[0]), expected)


# Kinds of input


@each_model
def test_rows_may_have_any_memory_layout_or_be_a_memory_map(name, many, tmp_path):
    X, y = many
    fitted = model(name).fit(X, y)
    stored = np.memmap(tmp_path / "rows", dtype=np.float64, mode="w+", shape=X.shape)
    stored[:] = X
    mapped = np.memmap(tmp_path / "rows", dtype=np.float64, mode="r", shape=X.shape)
    for rows in (np.asfortranarray(X), mapped, X[:, :][::1], X.tolist()):
        assert_same_model(model(name).fit(rows, y), fitted, X)
        assert_array_equal(fitted.predict_proba(rows), fitted.predict_proba(X))


@each_model
@pytest.mark.usefixtures("small_blocks", "no_merging")
def test_a_memory_map_is_fitted_without_merging_as_an_array_is(name, many, tmp_path):
    X, y = many
    np.save(tmp_path / "rows.npy", X)
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert_same_model(model(name).fit(mapped, y), model(name).fit(X, y), X)


@each_model
@pytest.mark.parametrize("stored", ["<f4", ">f4", "<i2"])
def test_a_model_does_not_depend_on_the_type_that_numbers_are_stored_in(name, many, stored):
    X, y = many
    rows = np.round(X * [10, 1000, 100]).astype(stored)
    doubles = rows.astype(np.float64)
    fitted, same = model(name).fit(rows, y), model(name).fit(doubles, y)
    assert_same_model(fitted, same, doubles)
    assert_array_equal(fitted.predict_proba(rows), same.predict_proba(doubles))


@each_model
def test_named_columns_are_remembered_and_required(name, moons):
    X, y = moons
    table = pd.DataFrame(X, columns=["IR_108", "VIS006"])
    fitted = model(name).fit(table, y)
    assert_array_equal(fitted.feature_names_in_, ["IR_108", "VIS006"])
    assert_array_equal(fitted.predict_proba(table), model(name).fit(X, y).predict_proba(X))
    with pytest.raises(InputError, match="feature names"):
        fitted.predict(table[["VIS006", "IR_108"]])


@each_model
def test_another_number_of_columns_is_an_input_error(name, moons):
    X, y = moons
    fitted = model(name).fit(X, y)
    with pytest.raises(InputError, match=r"3 features.*expecting 2"):
        fitted.predict(np.ones((4, 3)))


def search_few_rows(monkeypatch):
    """Choose a start on 200 rows."""
    few = partial(choose_start, search=BoundSearch(rows=200))
    monkeypatch.setattr(classifier, "choose_start", few)


class SliceOnly:
    """Rows that can only be sliced, and that record the size of each slice."""

    def __init__(self, rows):
        self._rows = rows
        self.shape, self.dtype = rows.shape, rows.dtype
        self.slices = []

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("all rows were read at once")

    def __getitem__(self, key):
        assert isinstance(key, slice), "rows were read by number"
        part = self._rows[key]
        self.slices.append((key, len(part)))
        return part


@each_model
@pytest.mark.usefixtures("small_blocks")
def test_sliceable_rows_are_predicted_block_by_block(name, many):
    X, y = many
    fitted = model(name).fit(X, y)
    sliceable = SliceOnly(X)
    assert_array_equal(fitted.predict_proba(sliceable), fitted.predict_proba(X))
    assert_array_equal(fitted.predict(sliceable), fitted.predict(X))
    assert max(size for _, size in sliceable.slices) <= 256


@each_model
@pytest.mark.usefixtures("small_blocks", "no_merging")
def test_sliceable_rows_are_fitted_block_by_block(name, many, monkeypatch):
    X, y = many
    monkeypatch.setattr(training, "QUANTILE_ROWS", 100)
    search_few_rows(monkeypatch)
    sliceable = SliceOnly(X)
    assert_same_model(model(name).fit(sliceable, y), model(name).fit(X, y), X)
    # Blocks of 256, every seventh row for quantiles, and 200 rows to choose a start.
    assert max(size for _, size in sliceable.slices) <= 256


@each_model
def test_few_sliceable_rows_are_fitted_like_an_array(name, moons):
    X, y = moons
    assert_same_model(model(name).fit(SliceOnly(X), y), model(name).fit(X, y), X)


@each_model
def test_sliceable_rows_may_have_zero_weights(name, moons):
    X, y = moons
    weight = np.arange(len(y)) % 3
    sliced = model(name).fit(SliceOnly(X), y, sample_weight=weight)
    assert_same_model(sliced, model(name).fit(X, y, sample_weight=weight), X)


# Faster variances


@each_model
@pytest.mark.parametrize("tolerance", [1e-6, 1e-3, 1e-2])
def test_a_truncated_variance_moves_no_probability_by_more_than_the_tolerance(
    name, clouds, tolerance
):
    X, y = clouds
    exact = model(name, n_frequencies=30).fit(X, y)
    fast = model(name, n_frequencies=30, variance_tolerance=tolerance).fit(X, y)
    assert fast.lower_bound_ == exact.lower_bound_
    new = np.concatenate([X, X + 5.0, X * 0.98])
    off = np.abs(fast.predict_proba(new) - exact.predict_proba(new))
    assert off.max() <= tolerance + 1e-12
    assert_array_equal(fast.predict(new), exact.predict(new))
    if tolerance == 1e-2:
        assert off.max() > 0  # the tolerance is in use


# Warm starts


@each_model
def test_a_warm_start_continues_from_the_last_fit(name, clouds):
    X, y = clouds
    fitted = model(name, warm_start=True, max_iter=2, **PAPER).fit(X, y)
    bound = fitted.lower_bound_
    for _ in range(3):
        fitted.fit(X, y)
        # The exact passes start again from ξ = 1, and stop within the tolerance of the optimum.
        assert fitted.lower_bound_ >= bound - 1e-4 * (abs(bound) + 100)
        bound = fitted.lower_bound_


@each_model
def test_without_a_warm_start_a_second_fit_is_like_the_first(name, clouds):
    X, y = clouds
    once = model(name).fit(X, y)
    again = model(name).fit(*clouds).fit(X, y)
    assert_same_model(once, again, X)


@each_model
def test_a_warm_start_keeps_its_frequencies_on_other_data(name, clouds):
    X, y = clouds
    fitted = model(name, warm_start=True, max_iter=1).fit(X[:150], y[:150])
    unit = fitted.frequencies_ * fitted.lengthscale_
    fitted.fit(X[50:], y[50:])
    if name == "RFFGPC":
        assert_allclose(fitted.frequencies_ * fitted.lengthscale_, unit, rtol=1e-10)
    assert fitted.frequencies_.shape == unit.shape


def test_a_warm_start_with_another_number_of_frequencies_is_refused(moons):
    fitted = model("RFFGPC", warm_start=True).fit(*moons)
    with pytest.raises(InputError, match=r"8 frequencies, but n_frequencies is 9"):
        fitted.set_params(n_frequencies=9).fit(*moons)


def test_a_warm_start_with_other_columns_is_an_input_error(moons, clouds):
    fitted = model("RFFGPC", warm_start=True).fit(*moons)
    with pytest.raises(InputError, match=r"2 features, but X has 3.*warm_start=False"):
        fitted.fit(*clouds)


# Interrupts


@pytest.fixture
def interrupt(monkeypatch):
    """A context that interrupts fits as soon as the second iteration is done."""

    def call(self, step, state, estimator=0):
        if step == 2:
            raise KeyboardInterrupt

    @contextmanager
    def context():
        with monkeypatch.context() as patch:
            patch.setattr(ProgressLine, "__call__", call)
            yield

    return context


@each_model
def test_an_interrupt_keeps_the_finished_iterations_and_warns(name, clouds, interrupt):
    X, y = clouds
    short = model(name, max_iter=2, tol=0.0, **PAPER).fit(X, y)
    stopped = model(name, max_iter=20, tol=0.0, on_interrupt="keep", **PAPER)
    with interrupt(), pytest.warns(ConvergenceWarning, match=r"after 2 .*warm_start=True"):
        stopped.fit(X, y)
    assert stopped.n_iter_ == 2
    assert stopped.fit_report_["stopped"] == "interrupted"
    assert_array_equal(stopped.lower_bounds_[:2], short.lower_bounds_[:2])
    assert_array_equal(stopped.frequencies_, short.frequencies_)
    # The last exact passes are left out: nearly the same labels.
    assert np.mean(stopped.predict(X) == short.predict(X)) > 0.95


@each_model
def test_an_interrupt_keeps_the_prior_mean_and_the_taper(name, clouds, interrupt):
    X, y = clouds
    stopped = model(name, max_iter=20, tol=0.0, on_interrupt="keep")
    with interrupt(), pytest.warns(ConvergenceWarning, match="Interrupted after 2"):
        stopped.fit(X, y)
    (estimator,) = stopped.estimators_
    assert estimator.taper == 0.02
    # Far from the data only the prior is left, and its mean gives the shares of the classes.
    assert_allclose(stopped.predict_proba(1e6 * X)[:, 1], y.mean(), rtol=1e-6)


@each_model
def test_an_interrupted_fit_continues_with_a_warm_start(name, clouds, interrupt):
    X, y = clouds
    fitted = model(name, max_iter=6, tol=0.0, warm_start=True, on_interrupt="keep", **PAPER)
    with interrupt():
        fitted.fit(X, y)
    bound = fitted.lower_bound_
    assert fitted.fit(X, y).lower_bound_ >= bound - 1e-4 * (abs(bound) + 100)


# Parameters


@each_model
@pytest.mark.parametrize(
    "wrong",
    [
        {"n_frequencies": 0},
        {"n_frequencies": 2.5},
        {"solver": "exact"},
        {"precision": "half"},
        {"batch_size": 0},
        {"early_stopping": "never"},
        {"early_stopping": 5},
        {"taper": -0.1},
        {"taper": "wide"},
        {"variance_tolerance": -1e-3},
        {"checkpoint": 5},
        {"n_jobs": 1.5},
        {"n_jobs": 0},
        {"warm_start": "yes"},
    ],
    ids=str,
)
def test_invalid_parameters_are_named(name, moons, wrong):
    (parameter,) = wrong
    with pytest.raises(InputError, match=parameter):
        model(name, **wrong).fit(*moons)


@each_model
@pytest.mark.parametrize("n_jobs", [-2, -1, 1, 2, None])
def test_any_nonzero_number_of_jobs_is_allowed(name, moons, n_jobs):
    model(name, n_jobs=n_jobs, max_iter=1).fit(*moons)


# Choice of the solver


@each_model
def test_the_automatic_solver_is_batch_for_a_few_rows(name, moons):
    X, y = moons
    automatic = model(name, solver="auto", early_stopping=False).fit(X, y)
    assert automatic.fit_report_["solver"] == "batch"
    assert automatic.fit_report_["validation_nll"] == []
    assert_same_model(automatic, model(name, solver="batch").fit(X, y), X)


@each_model
@pytest.mark.parametrize(
    ("distinct", "times", "solver"),
    [
        (BATCH_ROWS, 1, "batch"),
        (BATCH_ROWS, 2, "batch"),
        (BATCH_ROWS + 1, 1, "stochastic"),
    ],
    ids=["few", "few, twice", "many"],
)
def test_the_automatic_solver_is_chosen_by_the_number_of_distinct_rows(
    name, distinct, times, solver
):
    X = np.repeat(np.arange(float(distinct)), times)[:, None]
    automatic = model(name, solver="auto", n_frequencies=2, max_iter=1).fit(X, X[:, 0] % 7 < 3)
    assert automatic.fit_report_["solver"] == solver
    assert automatic.fit_report_["rows"] == distinct


# Early stopping


def test_early_stopping_is_the_default_unless_the_solver_is_batch(moons):
    X, y = moons
    automatic, batched, early = (
        model("VFFGPC", **params).fit(X, y)
        for params in ({"solver": "auto"}, {"solver": "batch"}, {"early_stopping": True})
    )
    # The start has a loss, too.
    assert len(automatic.fit_report_["validation_nll"]) == automatic.n_iter_ + 1
    assert batched.fit_report_["validation_nll"] == []
    assert_same_model(automatic, early, X)


def test_the_batch_solver_never_lowers_its_bound(clouds):
    fitted = model("VFFGPC", max_iter=15, tol=0.0, **PAPER).fit(*clouds)
    history = fitted.lower_bounds_
    assert len(history) == fitted.n_iter_ + 1
    assert np.all(np.diff(history) >= -1e-10 * np.abs(history).max())


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
def test_early_stopping_has_no_effect_on_random_frequencies(solver, many):
    options = {"solver": solver, "batch_size": 64, "max_iter": 6}
    early, whole = (
        model("RFFGPC", early_stopping=stops, **options).fit(*many) for stops in (True, False)
    )
    assert_same_model(early, whole, many[0])
    assert early.fit_report_ == whole.fit_report_


def test_a_row_of_weight_two_equals_the_row_given_twice_with_early_stopping(clouds):
    X, y = clouds
    weight = np.random.default_rng(0).integers(1, 4, len(y))
    rows = np.repeat(np.arange(len(y)), weight)
    weighted, repeated = (
        model("VFFGPC", solver="auto").fit(*data) for data in ((X, y, weight), (X[rows], y[rows]))
    )
    assert len(weighted.fit_report_["validation_nll"]) > 0
    assert weighted.fit_report_ == repeated.fit_report_
    assert_same_model(weighted, repeated, X)


@pytest.mark.usefixtures("small_blocks")
def test_one_seed_gives_one_model_with_early_stopping_for_any_number_of_threads(many):
    X, y = many
    options = {"early_stopping": True, "max_iter": 2}
    one, two = (model("VFFGPC", n_jobs=n, **options).fit(X, y) for n in (1, 2))
    assert one.fit_report_ == two.fit_report_
    assert_same_model(one, two, X)


def mostly_noise(seed, n):
    """Rows of 30 features, of which one is informative."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 30))
    return X, (rng.random(n) < 1.0 / (1.0 + np.exp(-1.5 * X[:, 0]))).astype(int)


def test_early_stopping_keeps_a_default_model_from_fitting_noise():
    X, y = mostly_noise(1, 400)
    new, truth = mostly_noise(2, 2000)
    early, whole = (
        VFFGPC(n_estimators=1, max_iter=20, early_stopping=stops, random_state=0).fit(X, y)
        for stops in ("auto", False)
    )
    assert early.n_iter_ < whole.n_iter_
    loss_early, loss_whole = (
        -np.mean(np.log(fitted.predict_proba(new)[np.arange(len(new)), truth]))
        for fitted in (early, whole)
    )
    # Guessing has a loss of log 2. A mean of 2,000 losses near 1 has an error of 0.02.
    assert loss_early < np.log(2.0)
    assert loss_whole > loss_early + 0.1


# Minibatches


def minibatch_model(name, **params):
    """A model with the stochastic solver and minibatches smaller than the data."""
    return model(name, **({"solver": "stochastic", "batch_size": 64, "max_iter": 3} | params))


@pytest.mark.parametrize(("small_up_to", "batch_size"), [(10_000, 256), (1_000, 2048)])
def test_few_training_rows_get_small_minibatches(small_up_to, batch_size, monkeypatch):
    monkeypatch.setattr(classifier, "SMALL_BATCH_ROWS", small_up_to)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3_000, 2))
    y = X[:, 0] > np.sin(3.0 * X[:, 1])
    auto, given = (
        minibatch_model("VFFGPC", batch_size=size).fit(X, y) for size in ("auto", batch_size)
    )
    assert_array_equal(auto.frequencies_, given.frequencies_)


@each_model
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("precision", ["single", "double"])
def test_one_seed_gives_one_minibatch_model_for_any_number_of_threads(
    name, many, precision, monkeypatch
):
    X, y = many
    # A minibatch is three pieces of up to 256 rows; a pass over all, three blocks of 256.
    monkeypatch.setattr(classifier, "Config", partial(Config, piece_rows=256))
    one, two, three = (
        minibatch_model(name, n_jobs=n, precision=precision, batch_size=600).fit(X, y)
        for n in (1, 2, 3)
    )
    for other in (two, three):
        assert_same_model(one, other, X)
        assert one.fit_report_ == other.fit_report_


@each_model
def test_another_seed_gives_another_minibatch_model(name, many):
    one, same, other = (minibatch_model(name, random_state=seed).fit(*many) for seed in (0, 0, 1))
    assert_same_model(one, same, many[0])
    assert not np.array_equal(one.frequencies_, other.frequencies_)


@pytest.fixture(scope="module")
def logistic():
    """1,500 rows of one feature with overlapping classes, the second one rarer."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 1))
    y = (rng.random(1500) < 1.0 / (1.0 + np.exp(-(1.5 * X[:, 0] - 1.5)))).astype(int)
    X.setflags(write=False)
    return X, y


@each_model
def test_a_weight_counts_as_that_many_rows_on_minibatches(name, logistic):
    X, y = logistic
    weight = np.where(y == 1, 4, 1) + np.random.default_rng(1).integers(0, 2, len(y))
    rows = np.repeat(np.arange(len(y)), weight)
    options = {"batch_size": 256, "max_iter": 10}
    weighted = (
        minibatch_model(name, **options).fit(X, y, sample_weight=weight).predict_proba(X)[:, 1]
    )
    repeated = minibatch_model(name, **options).fit(X[rows], y[rows]).predict_proba(X)[:, 1]
    plain = minibatch_model(name, **options).fit(X, y).predict_proba(X)[:, 1]
    # Different minibatches give two samples of the same curve. 1,500 rows determine ten waves
    # to sqrt(0.25 x 10 / 1,500) = 0.04.
    assert np.mean(np.abs(weighted - repeated)) < 0.04
    # Four times the odds move a probability of 0.5 by 0.3.
    assert np.mean(np.abs(weighted - plain)) > 0.1


@each_model
def test_class_weights_equal_the_same_sample_weights_on_minibatches(name, logistic):
    X, y = logistic
    by_class = minibatch_model(name, class_weight={0: 0.5, 1: 3.0}).fit(X, y)
    by_sample = minibatch_model(name).fit(X, y, sample_weight=np.where(y == 1, 3.0, 0.5))
    assert_same_model(by_class, by_sample, X)


@each_model
def test_balanced_classes_are_equally_likely_on_minibatches(name, logistic):
    X, y = logistic
    plain, balanced = (
        minibatch_model(name, class_weight=weights, max_iter=10).fit(X, y).predict_proba(X)[:, 1]
        for weights in (None, "balanced")
    )
    # A logistic fit reproduces the (weighted) class shares, but for the pull of the prior.
    assert abs(plain.mean() - y.mean()) < 0.03
    shares = [balanced[y == 0].mean(), balanced[y == 1].mean()]
    assert abs(np.mean(shares) - 0.5) < 0.03


@each_model
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sample_rows", [10**6, 300], ids=["all", "a sample"])
def test_sliceable_rows_are_never_read_whole_by_the_stochastic_solver(
    name, many, monkeypatch, sample_rows, tmp_path
):
    X, y = many
    monkeypatch.setattr(training, "QUANTILE_ROWS", 100)
    search_few_rows(monkeypatch)
    monkeypatch.setattr(learning, "SAMPLE_ROWS", sample_rows)
    monkeypatch.setattr(training, "FINGERPRINT_ROWS", 100)
    sliceable = SliceOnly(X)
    sliced = minibatch_model(name, checkpoint=tmp_path / "state").fit(sliceable, y)
    assert_same_model(sliced, minibatch_model(name).fit(X, y), X)
    # Blocks of 256, or slices of 100 from which every seventh row is taken.
    assert max(size for _, size in sliceable.slices) <= 256


@each_model
@pytest.mark.usefixtures("small_blocks")
def test_exact_passes_never_lower_the_bound(name, many):
    for seed in range(3):
        fitted = minibatch_model(name, precision="double", tol=0.0, random_state=seed).fit(*many)
        assert len(fitted.lower_bounds_) > 2
        assert fitted.lower_bound_ == fitted.lower_bounds_[-1]
        slack = 1e-10 * np.abs(fitted.lower_bounds_).max()
        assert np.all(np.diff(fitted.lower_bounds_) >= -slack)


@each_model
def test_the_fit_report_holds_the_losses_of_validation_rows(name, many):
    fitted = minibatch_model(name, max_iter=20).fit(*many)
    report = fitted.fit_report_
    losses = report["validation_nll"]
    assert report["solver"] == "stochastic"
    assert report["steps"] == fitted.n_iter_ * Config.steps_per_iteration
    assert report["stopped"] == "converged"
    assert len(losses) == fitted.n_iter_
    assert all(type(loss) is float for loss in losses)
    # Guessing has a loss of log 2.
    assert 0 < min(losses) < np.log(2.0)


@each_model
def test_the_stochastic_solver_warns_when_it_stops_at_max_iter(name, many):
    with pytest.warns(ConvergenceWarning, match="max_iter=1"):
        fitted = minibatch_model(name, max_iter=1).fit(*many)
    assert fitted.fit_report_["stopped"] == "max_iter"


@each_model
def test_two_moons_are_solved_on_minibatches(name):
    X, y = make_moons(1000, noise=0.15, random_state=1)
    fitted = minibatch_model(name, n_frequencies=20, max_iter=15).fit(X[:600], y[:600])
    assert fitted.score(X[600:], y[600:]) > 0.95


def test_vff_starts_from_one_of_the_lengthscales_compared(many):
    fitted = minibatch_model("VFFGPC", max_iter=1).fit(*many)
    # Standardised features have variance 1 each.
    shares = np.array(HalvingSearch.shares) * mean_distance(np.ones(3))
    start = fitted.fit_report_["starting_lengthscale"]
    assert np.isclose(start, shares, rtol=1e-9).sum() == 1


def test_the_starting_lengthscale_is_the_same_for_any_number_of_threads(many):
    starts = {
        minibatch_model("VFFGPC", max_iter=1, n_jobs=jobs)
        .fit(*many)
        .fit_report_["starting_lengthscale"]
        for jobs in (1, 2, 3)
    }
    assert len(starts) == 1


def test_rff_changes_only_the_lengthscale_on_minibatches(many):
    unit = np.random.default_rng(5).normal(size=(8, 3))
    fitted = minibatch_model("RFFGPC", init_frequencies=unit).fit(*many)
    assert_allclose(fitted.frequencies_ * fitted.lengthscale_, unit, rtol=1e-10)
    assert fitted.lengthscale_ != fitted.fit_report_["starting_lengthscale"]


@each_model
def test_a_warm_start_continues_from_the_last_fit_on_minibatches(name, many):
    X, y = many
    fitted = minibatch_model(name, warm_start=True).fit(X, y)
    lengthscale, unit = fitted.lengthscale_, fitted.frequencies_ * fitted.lengthscale_
    fitted.fit(X, y)
    assert fitted.fit_report_["starting_lengthscale"] == lengthscale
    if name == "RFFGPC":
        assert_allclose(fitted.frequencies_ * fitted.lengthscale_, unit, rtol=1e-10)


# Interrupts on minibatches


def assert_usable(fitted, X):
    probability = fitted.predict_proba(X)
    assert np.all((probability >= 0) & (probability <= 1))
    assert_allclose(probability.sum(axis=1), 1.0, rtol=1e-12)


@each_model
def test_an_interrupt_on_minibatches_keeps_the_finished_iterations(name, many, interrupt):
    X, y = many
    whole = minibatch_model(name, max_iter=20).fit(X, y)
    stopped = minibatch_model(name, max_iter=20, on_interrupt="keep")
    with interrupt(), pytest.warns(ConvergenceWarning, match=r"after 2 .*warm_start=True"):
        stopped.fit(X, y)
    report = stopped.fit_report_
    assert (stopped.n_iter_, report["stopped"]) == (2, "interrupted")
    assert report["validation_nll"] == whole.fit_report_["validation_nll"][:2]
    # One exact pass is done, so that the posterior is that of all rows.
    assert len(stopped.lower_bounds_) == 1
    assert_usable(stopped, X)


@each_model
def test_an_interrupt_in_the_exact_passes_keeps_the_last_finished_one(name, many, monkeypatch):
    X, y = many
    whole = minibatch_model(name, tol=0.0).fit(X, y)
    stopped = minibatch_model(name, tol=0.0, on_interrupt="keep")

    def note(self, number, *rest):
        if number == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ProgressLine, "note_pass", note)
        with pytest.warns(ConvergenceWarning, match="Interrupted after 3"):
            stopped.fit(X, y)
    assert stopped.fit_report_["stopped"] == "interrupted"
    assert_array_equal(stopped.lower_bounds_, whole.lower_bounds_[:2])
    assert_array_equal(stopped.frequencies_, whole.frequencies_)
    assert_usable(stopped, X)


@each_model
def test_an_interrupt_before_the_first_minibatches_are_done_leaves_no_model(
    name, many, monkeypatch
):
    X, y = many

    def interrupt(*args):
        raise KeyboardInterrupt

    fitted = minibatch_model(name)
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "iterate", interrupt)
        with pytest.raises(KeyboardInterrupt):
            fitted.fit(X, y)
    with pytest.raises(NotFittedError):
        fitted.predict(X)


# Cached roots of the variance


@each_model
def test_predicting_leaves_the_model_as_it_was(name, moons):
    X, y = moons
    fitted = model(name).fit(X, y)
    before = vars(fitted).copy()
    fitted.predict_proba(X)
    assert vars(fitted) == before


@each_model
def test_a_model_fitted_again_does_not_reuse_old_variances(name, moons, monkeypatch):
    X, y = moons
    # A new posterior may have the memory address of the last one: about one refit in 300.
    monkeypatch.setattr(classifier, "id", lambda thing: 0, raising=False)
    fitted = model(name).fit(X, y)
    fitted.predict_proba(X)
    other = (X[:, 0] > 0).astype(int)
    assert_same_model(fitted.fit(X, other), model(name).fit(X, other), X)


@each_model
def test_another_tolerance_takes_effect_without_another_fit(name, clouds):
    X, y = clouds
    fitted = model(name).fit(X, y)
    for tolerance in (0.0, 1e-2, 0.0):
        fitted.set_params(variance_tolerance=tolerance)
        anew = model(name, variance_tolerance=tolerance).fit(X, y)
        assert_array_equal(fitted.predict_proba(X), anew.predict_proba(X))


# Groups


@pytest.fixture(scope="module")
def days_of_noise():
    """Ten days of 60 rows: on each day another feature moves the labels."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(600, 12))
    day = np.repeat(np.arange(10), 60)
    rule = X[:, 0] + 1.5 * X[np.arange(600), 1 + day % 10] > 0
    return X, rule.astype(int), day


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
def test_whole_groups_are_left_out_together(days_of_noise, monkeypatch, solver):
    X, y, day = days_of_noise
    seen = []
    real = classifier.leave_out

    def spy(pixels, n_estimators, rng):
        splits = real(pixels, n_estimators, rng)
        seen.append((pixels.groups, *splits[0]))
        return splits

    monkeypatch.setattr(classifier, "leave_out", spy)
    days = [f"day {d}" for d in day]
    minibatch_model("VFFGPC", solver=solver, early_stopping=True).fit(X, y, groups=days)
    groups, learning_rows, validation_rows = seen[0]
    assert not set(groups[learning_rows]) & set(groups[validation_rows])


@pytest.mark.parametrize("solver", ["batch", "stochastic"])
def test_groups_of_zero_weight_do_not_count(days_of_noise, solver):
    X, y, day = days_of_noise
    weight = (day == 0).astype(float)
    fitted = minibatch_model("VFFGPC", solver=solver, early_stopping=True)
    assert fitted.fit(X, y, sample_weight=weight, groups=day).score(X[day == 0], y[day == 0]) > 0.5


def test_a_single_group_counts_as_none(days_of_noise):
    X, y, _ = days_of_noise
    one, none = (
        VFFGPC(5, n_estimators=1, solver="stochastic", max_iter=2, random_state=0).fit(
            X, y, groups=groups
        )
        for groups in (np.zeros(600), None)
    )
    assert_array_equal(one.frequencies_, none.frequencies_)


def test_groups_of_another_length_are_refused(days_of_noise):
    X, y, day = days_of_noise
    with pytest.raises(InputError, match="groups has shape"):
        VFFGPC(5).fit(X, y, groups=day[:-1])


def test_sliceable_rows_may_have_groups(days_of_noise):
    X, y, day = days_of_noise
    fitted = VFFGPC(5, n_estimators=1, max_iter=2, random_state=0)
    sliced = clone(fitted).fit(SliceOnly(X), y, groups=day)
    assert_array_equal(sliced.frequencies_, fitted.fit(X, y, groups=day).frequencies_)


def test_no_training_row_is_beyond_the_range_in_the_precision_of_prediction():
    rng = np.random.default_rng(0)
    X = np.c_[rng.random((3_000, 2)), rng.integers(0, 2, (3_000, 6))].astype(np.float32)
    y = X[:, 0] + X[:, 2] > 1.0
    fitted = VFFGPC(5, n_estimators=1, precision="single", max_iter=2, random_state=0).fit(X, y)
    x = fitted.standardisation_(X, np.float32)
    ends = fitted._model(make_backend(np.float32)).taper.ends
    assert range_share(x, ends) is None
