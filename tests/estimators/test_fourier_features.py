"""FourierFeatures before a linear model."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import FourierFeatures
from undulatus.errors import InputError, PhaseTooLargeError
from undulatus.gp.kernels import KERNELS


def test_every_row_has_norm_one(clouds):
    X, _ = clouds
    z = FourierFeatures(7, random_state=0).fit_transform(X)
    assert z.shape == (len(X), 14)
    assert_allclose(np.sum(z**2, axis=1), 1.0, rtol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_inner_products_approximate_the_kernel(moons, kernel):
    X, _ = moons
    X = X[:30]
    features = FourierFeatures(20_000, kernel=kernel, lengthscale=0.7, random_state=0).fit(X)
    z = features.transform(X)
    square = np.sum((X[:, None] - X[None]) ** 2, axis=-1) / 0.7**2
    # Standard error at most 1/sqrt(2 D); 435 pairs, so allow 5 of them.
    exact = KERNELS[kernel].correlation(square)
    assert_allclose(z @ z.T, exact, atol=5 / np.sqrt(2 * 20_000))


def test_the_automatic_lengthscale_is_half_the_mean_distance(clouds):
    X, _ = clouds
    features = FourierFeatures(5, random_state=0).fit(X)
    pairs = np.sum((X[:, None] - X[None]) ** 2, axis=-1)
    assert_allclose(features.lengthscale_, 0.5 * np.sqrt(pairs.mean()), rtol=1e-10)


def test_the_automatic_lengthscale_is_scikit_learns_gamma_scale(clouds):
    X = StandardScaler().fit_transform(clouds[0])
    features = FourierFeatures(20_000, random_state=0).fit(X)
    z = features.transform(X[:30])
    exact = rbf_kernel(X[:30], gamma=1.0 / (X.shape[1] * X.var()))
    assert_allclose(z @ z.T, exact, atol=5 / np.sqrt(2 * 20_000))


def test_a_given_lengthscale_is_used():
    X = np.random.default_rng(0).normal(size=(20, 3))
    one, two = (FourierFeatures(5, lengthscale=s, random_state=0).fit(X) for s in (1.0, 2.0))
    assert (one.lengthscale_, two.lengthscale_) == (1.0, 2.0)
    assert_allclose(one.frequencies_, 2.0 * two.frequencies_, rtol=1e-12)


def test_equal_rows_get_a_lengthscale_of_one_half():
    features = FourierFeatures(5, random_state=0).fit(np.ones((4, 2)))
    assert features.lengthscale_ == 0.5


def test_more_frequencies_extend_fewer_of_the_same_seed(moons):
    few, many = (FourierFeatures(D, random_state=0).fit(moons[0]) for D in (5, 9))
    assert_array_equal(many.frequencies_[:5], few.frequencies_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_precision_of_the_rows_is_kept(moons, dtype):
    X = moons[0].astype(dtype)
    features = FourierFeatures(5, random_state=0).fit(X)
    z = features.transform(X)
    assert z.dtype == dtype
    exact = features.transform(X.astype(np.float64))
    # A phase of 10 or so is rounded to 1e-6 in single precision.
    assert_allclose(z, exact, rtol=0, atol=1e-14 if dtype == np.float64 else 1e-5)


def test_integer_rows_are_accepted():
    X = np.arange(12, dtype=np.int16).reshape(6, 2)
    features = FourierFeatures(5, random_state=0).fit(X)
    assert_allclose(features.transform(X), features.transform(X.astype(float)), atol=1e-5)


def test_columns_and_features_are_named(moons):
    table = pd.DataFrame(moons[0], columns=["IR_108", "VIS006"])
    features = FourierFeatures(2, random_state=0).fit(table)
    assert_array_equal(features.feature_names_in_, ["IR_108", "VIS006"])
    names = features.get_feature_names_out()
    assert_array_equal(names, [f"fourierfeatures{i}" for i in range(4)])
    out = features.set_output(transform="pandas").transform(table)
    assert list(out.columns) == list(names)


def test_a_linear_model_on_the_features_is_nonlinear_in_the_rows(moons):
    X, y = moons
    linear = LogisticRegression().fit(X, y).score(X, y)
    features = FourierFeatures(50, random_state=0)
    nonlinear = make_pipeline(StandardScaler(), features, LogisticRegression(C=10)).fit(X, y)
    assert nonlinear.score(X, y) > linear


@pytest.mark.parametrize(("bad", "kind"), [(np.nan, "NaN"), (np.inf, "infinity")])
def test_a_bad_value_is_named_by_row_and_column(moons, bad, kind):
    table = pd.DataFrame(moons[0], columns=["IR_108", "VIS006"])
    features = FourierFeatures(5, random_state=0).fit(table)
    broken = table.copy()
    broken.loc[6, "VIS006"] = bad
    for failing in (lambda: features.transform(broken), lambda: FourierFeatures(5).fit(broken)):
        with pytest.raises(InputError, match=f"{kind}.*row 6, column 'VIS006'"):
            failing()


def test_a_row_too_far_out_is_named(moons):
    features = FourierFeatures(5, random_state=0).fit(moons[0])
    far = moons[0].copy()
    far[8, 1] = 1e12
    with pytest.raises(PhaseTooLargeError, match=r"Row 8 (.|\n)*column 1"):
        features.transform(far)


def test_an_unfitted_transformer_raises(moons):
    with pytest.raises(NotFittedError):
        FourierFeatures().transform(moons[0])


@pytest.mark.parametrize(
    "wrong",
    [{"n_frequencies": 0}, {"kernel": "linear"}, {"lengthscale": 0.0}, {"lengthscale": "long"}],
    ids=str,
)
def test_invalid_parameters_are_named(moons, wrong):
    (parameter,) = wrong
    with pytest.raises(InputError, match=parameter):
        FourierFeatures(**wrong).fit(moons[0])
