"""Whatever finite data a classifier is given, it refuses them in words or predicts soundly.

``pytest tests/estimators/test_properties.py --hypothesis-profile search`` tries thousands.
"""

import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from undulatus import GPC, RFFGPC, VFFGPC, load_model, save_model
from undulatus.errors import UndulatusError
from undulatus.gp.kernels import KERNELS
from undulatus.gp.likelihood import POSTERIORS

seeds = st.integers(0, 2**32 - 1)

powers = st.one_of(st.integers(-3, 3), st.integers(-40, 36), st.integers(-300, 300))
"""Powers of ten of the size of a column, and of its distance from zero."""

LABELS = (
    (0, 1, 2, 3),
    (-7, 0, 7, 2**40),
    (255, 3, 17, 64),
    (0.0, 1.0, -2.0, 1e6),
    ("cloud", "land", "", "été"),
    (False, True),
    (np.uint8(200), np.uint8(1), np.uint8(2)),
)
"""Sets of labels; a problem has the first two of one of them, or more."""

TYPES = ("float64", "float32", "float16", "int64", "int16", "uint8", "bool", ">f8", "<i4")


@st.composite
def tables(draw):
    """Finite features of any size and type: (n, d) of 2 to 24 rows and 1 to 6 columns."""
    rng = np.random.default_rng(draw(seeds))
    n, d = draw(st.integers(2, 24)), draw(st.integers(1, 6))
    columns = []
    for _ in range(d):
        kind = draw(st.sampled_from(["normal", "normal", "constant", "few", "ladder", "copy"]))
        # 10.0**-300 and so on are exact enough: sizes are what matters.
        scale, offset = 10.0 ** draw(powers), 10.0 ** draw(powers)
        values = {
            "normal": rng.normal(size=n),
            "constant": np.zeros(n),
            "few": rng.integers(-1, 2, n).astype(float),
            "ladder": np.exp(rng.uniform(-40, 40, n)),
            "copy": rng.normal(size=n),
        }[kind]
        with np.errstate(over="ignore"):
            columns.append(values * scale + draw(st.sampled_from([0.0, 1.0, -1.0])) * offset)
        if kind == "copy" and len(columns) > 1:
            columns[-1] = columns[0]
    x = np.column_stack(columns)
    assume(np.isfinite(x).all())
    dtype = np.dtype(draw(st.sampled_from(TYPES)))
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        x = np.clip(x, limits.min // 2, limits.max // 2)
    with np.errstate(over="ignore"):
        x = np.asarray(x.astype(dtype), order=draw(st.sampled_from("CF")))
    if draw(st.booleans()):
        x = x[rng.integers(0, n, n)]
    assume(np.isfinite(x).all())
    return x


@st.composite
def problems(draw):
    """Features, labels, and weights and groups or none: all finite, most of them unusual."""
    x = draw(tables())
    rng = np.random.default_rng(draw(seeds))
    known = draw(st.sampled_from(LABELS))
    k = draw(st.integers(2, len(known)))
    codes = rng.permutation(np.arange(len(x)) % k)
    if draw(st.booleans()):
        codes = np.minimum(codes, (rng.random(len(x)) < 0.2) * codes)
    y = np.array(known[:k])[codes]
    how = draw(st.sampled_from(["array", "array", "list", "object", "series", "category"]))
    as_given = {
        "array": lambda: y,
        "list": y.tolist,
        "object": lambda: y.astype(object),
        "series": lambda: pd.Series(y),
        "category": lambda: pd.Series(y).astype("category"),
    }[how]
    fit = {}
    if draw(st.booleans()):
        size = 10.0 ** draw(st.integers(-30, 30))
        fit["sample_weight"] = size * rng.choice([0.0, 1e-3, 1.0, 7.0], len(x))
    if draw(st.booleans()):
        fit["groups"] = rng.choice(
            np.array(draw(st.sampled_from([[0, 1], [5], ["a", "b", "c"], ["", "é"]]))), len(x)
        )
    return x, as_given(), fit


@st.composite
def classifiers(draw):
    """Small classifiers with any settings."""
    shared = {
        "kernel": draw(st.sampled_from(sorted(KERNELS))),
        "standardize": draw(st.booleans()),
        "warp": draw(st.booleans()),
        "posterior": draw(st.sampled_from(sorted(POSTERIORS, reverse=True))),
        "class_weight": draw(st.sampled_from([None, "balanced"])),
        "prior_correction": draw(st.sampled_from([None, "training"])),
        "max_iter": draw(st.integers(1, 4)),
        "random_state": draw(st.integers(0, 9)),
    }
    if draw(st.integers(0, 3)) == 0:
        return GPC(**shared)
    return draw(st.sampled_from([RFFGPC, VFFGPC]))(
        draw(st.integers(1, 4)),
        n_estimators=draw(st.integers(1, 2)),
        solver=draw(st.sampled_from(["auto", "batch", "batch", "stochastic"])),
        taper=draw(st.sampled_from(["auto", 0.0, 0.5])),
        precision=draw(st.sampled_from(["auto", "single", "double"])),
        early_stopping=draw(st.sampled_from(["auto", True, False])),
        variance_tolerance=draw(st.sampled_from([0.0, 1e-3])),
        batch_size=draw(st.sampled_from(["auto", 1, 5])),
        n_jobs=1,
        **shared,
    )


def fit_or_refuse(model, x, y, fit):
    """Return the fitted model, or None if it refused the data by an error of ours."""
    if isinstance(model, GPC):
        fit = {name: value for name, value in fit.items() if name != "groups"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            return model.fit(x, y, **fit)
        except UndulatusError:
            with pytest.raises(NotFittedError):
                model.predict(x)
            return None


def learned_from(x, fit):
    """Return the rows of positive weight: others may lie too far out to be predicted."""
    return x if "sample_weight" not in fit else x[fit["sample_weight"] > 0]


def assert_sound(model, x):
    """Assert that predictions are probabilities, variances and the labels these imply."""
    probabilities = model.predict_proba(x)
    assert probabilities.shape == (len(x), len(model.classes_))
    assert np.isfinite(probabilities).all()
    assert (probabilities >= 0.0).all()
    assert (probabilities <= 1.0).all()
    assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-12)
    mean, variance = model.latent_mean_and_variance(x)
    assert np.isfinite(mean).all()
    assert np.isfinite(variance).all()
    assert (variance >= 0.0).all()
    labels = np.searchsorted(model.classes_, model.predict(x))
    chosen = probabilities[np.arange(len(x)), labels]
    # Where the latent mean is a rounding away from zero, so are the probabilities from equal.
    assert (chosen >= probabilities.max(axis=1) - 1e-6).all()


@given(problems(), classifiers())
def test_any_finite_data_are_refused_or_give_probabilities_that_labels_follow(problem, model):
    x, y, fit = problem
    fitted = fit_or_refuse(model, x, y, fit)
    if fitted is not None:
        assert_sound(fitted, learned_from(x, fit))


@given(problems(), classifiers())
def test_a_model_of_any_finite_data_is_the_same_after_saving(tmp_path_factory, problem, model):
    x, y, fit = problem
    fitted = fit_or_refuse(model, x, y, fit)
    if fitted is None:
        return
    path = tmp_path_factory.mktemp("models") / "model.undulatus"
    save_model(fitted, path)
    loaded, x = load_model(path), learned_from(x, fit)
    assert loaded.classes_.tolist() == fitted.classes_.tolist()
    assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))
    assert_array_equal(loaded.predict(x), fitted.predict(x))


@given(problems(), classifiers(), tables())
def test_rows_unlike_any_in_training_are_refused_or_predicted_soundly(problem, model, others):
    x, y, fit = problem
    assume(others.shape[1] >= x.shape[1])
    others = others[:, : x.shape[1]]
    fitted = fit_or_refuse(model, x, y, fit)
    if fitted is None:
        return
    far = fitted.out_of_domain(others)
    if far.any():
        with pytest.raises(UndulatusError, match="too far"):
            fitted.predict_proba(others)
    if not far.all():
        assert_sound(fitted, others[~far])
