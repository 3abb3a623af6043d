"""Cosines of a classifier sum to its latent mean, and go back through the steps of a pipeline."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from undulatus import GPC, RFFGPC, VFFGPC
from undulatus.errors import InputError
from undulatus.estimators.interpret import (
    AFFINE_STEPS,
    affine_steps,
    class_shares,
    cosine_deviation,
    cosines_of,
    latent_functions,
)
from undulatus.estimators.pca import SpectralPCA

# Cosines that go on for ever, in features that enter the model without a warp.
PLAIN = {"n_estimators": 1, "random_state": 0, "warp": False, "taper": 0.0, "posterior": "bound"}


def deviation_and_error(samples):
    """The standard deviation of samples (n, ...), and its standard error by the delta method."""
    away = samples - samples.mean(axis=0)
    variance = np.mean(away**2, axis=0)
    error = np.sqrt((np.mean(away**4, axis=0) - variance**2) / len(samples))
    return np.sqrt(variance), error / (2.0 * np.sqrt(variance))


@pytest.mark.parametrize("turn", [0.05, 0.5, 1.0, 2.0, 6.0])
@pytest.mark.parametrize("delay", [0.0, 0.4, 1.5, 2.5, np.pi])
def test_the_weight_is_the_deviation_of_the_cosine_over_gaussian_phases(turn, delay):
    phases = np.random.default_rng(0).normal(0.0, turn, 200_000)
    found, error = deviation_and_error(3.0 * np.cos(phases - delay))
    weight = cosine_deviation(np.array(3.0), np.array(delay), np.array(turn))
    assert abs(weight - found) <= 5.0 * error


@given(st.floats(0.0, 1e3), st.floats(-np.pi, np.pi), st.floats(0.0, 50.0))
def test_no_weight_exceeds_the_amplitude(amplitude, delay, turn):
    weight = cosine_deviation(np.array(amplitude), np.array(delay), np.array(turn))
    assert 0.0 <= weight <= amplitude * (1.0 + 1e-12)


def test_weights_of_small_phases_keep_their_digits():
    # To first order a cosine is a slope, a sin(delay); the next order is s² of it.
    weight = cosine_deviation(np.array(2.0), np.array(1.0), np.array(1e-9))
    assert_allclose(weight, 2.0 * 1e-9 * np.sin(1.0), rtol=1e-12)


def test_a_cosine_whose_phase_does_not_vary_has_no_weight():
    assert cosine_deviation(np.array(5.0), np.array(1.0), np.array(0.0)) == 0.0


@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
@pytest.mark.parametrize("standardize", [True, False])
def test_cosines_sum_to_the_latent_mean(clouds, kind, standardize):
    X, y = clouds
    X = X / [15.0, 0.2, 4.0]
    model = kind(7, standardize=standardize, max_iter=3, tol=1.0, **PLAIN).fit(X, y)
    cosines = cosines_of(model)
    phases = (X - cosines.centre) @ cosines.frequencies.T
    found = np.cos(phases - cosines.delays) @ cosines.amplitudes
    assert_allclose(found, model.decision_function(X), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
def test_cosines_and_the_prior_mean_sum_to_the_latent_mean(clouds, kind):
    X, y = clouds
    options = PLAIN | {"posterior": "variational"}
    model = kind(7, max_iter=3, tol=1.0, **options).fit(X, y)
    cosines = cosines_of(model)
    phases = (X - cosines.centre) @ cosines.frequencies.T
    found = (
        np.cos(phases - cosines.delays) @ cosines.amplitudes
        + model.estimators_[0].latents[0].prior_mean
    )
    assert model.estimators_[0].latents[0].prior_mean < -0.5
    assert_allclose(found, model.latent_mean(X), rtol=1e-9, atol=1e-9)


def test_cosines_of_warped_features_have_the_value_and_slope_of_the_latent_mean_at_the_medians(
    clouds,
):
    X, y = clouds
    model = RFFGPC(7, **(PLAIN | {"warp": True})).fit(X, y)
    cosines = cosines_of(model)
    medians = model.feature_quantiles_[3]
    assert_array_equal(cosines.centre, medians)
    # At the medians all phases are zero.
    value = cosines.amplitudes @ np.cos(cosines.delays)
    slope = (cosines.amplitudes * np.sin(cosines.delays)) @ cosines.frequencies
    assert_allclose(model.latent_mean(medians[None]), value, rtol=1e-9)
    step = 1e-5 * np.diag(X.std(axis=0))
    difference = model.latent_mean(medians + step) - model.latent_mean(medians - step)
    assert_allclose(difference / (2.0 * step.diagonal()), slope, rtol=1e-6, atol=1e-8)


def test_cosines_are_sorted_by_weight_and_point_towards_the_second_class(clouds):
    cosines = cosines_of(RFFGPC(20, n_estimators=1, random_state=0).fit(*clouds))
    assert (np.diff(cosines.weights) <= 0.0).all()
    assert (cosines.delays >= 0.0).all()
    assert (cosines.delays <= np.pi).all()


def test_weights_are_the_deviations_of_cosines_over_uncorrelated_training_rows():
    rng = np.random.default_rng(0)
    raw = rng.normal(size=(4000, 6)) @ rng.normal(size=(6, 6))
    X = PCA(4).fit_transform(raw)
    model = RFFGPC(8, max_iter=3, tol=1.0, **PLAIN).fit(X, X[:, 0] > X[:, 1])
    cosines = cosines_of(model)
    phases = (X - cosines.centre) @ cosines.frequencies.T
    assert_allclose(phases.std(axis=0), cosines.phase_deviations, rtol=1e-9)
    found, error = deviation_and_error(cosines.amplitudes * np.cos(phases - cosines.delays))
    assert (np.abs(cosines.weights - found) <= 5.0 * error).all()


def test_a_constant_feature_adds_nothing_to_a_phase(clouds):
    X, y = clouds
    with_constant = np.column_stack([X, np.full(len(X), 7.0)])
    cosines = cosines_of(RFFGPC(5, **PLAIN).fit(with_constant, y))
    assert cosines.deviation[-1] == 0.0
    assert_allclose(
        cosines.phase_deviations,
        np.linalg.norm(cosines.frequencies[:, :3] * X.std(axis=0), axis=1),
        rtol=1e-9,
    )


def test_without_standardisation_deviations_come_from_quartiles(clouds):
    X, y = clouds
    scaled = X / [15.0, 0.2, 4.0]
    cosines = cosines_of(RFFGPC(5, standardize=False, **PLAIN).fit(scaled, y))
    # Quartiles of 200 Gaussian values have a standard error of 7 %; three features, so allow 4.
    assert_allclose(cosines.deviation, scaled.std(axis=0), rtol=0.28)
    assert_array_equal(cosines.centre, np.quantile(scaled, 0.5, axis=0, method="inverted_cdf"))


# More than two classes


def three_classes(rows=400):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, 3))
    return X, np.array(["land", "sea", "snow"])[np.digitize(X[:, 0] + X[:, 1] ** 2, [0.0, 1.5])]


@pytest.mark.parametrize("kind", [RFFGPC, VFFGPC])
@pytest.mark.parametrize("posterior", ["bound", "variational"])
def test_cosines_and_the_level_of_each_class_sum_to_its_latent_mean(kind, posterior):
    X, y = three_classes()
    options = PLAIN | {"posterior": posterior, "solver": "batch"}
    model = kind(7, max_iter=3, tol=1.0, **options).fit(X, y)
    latent_mean = model.latent_mean(X)
    for place, own in enumerate(model.estimators_[0].latents):
        cosines = cosines_of(model, place)
        phases = (X - cosines.centre) @ cosines.frequencies.T
        found = np.cos(phases - cosines.delays) @ cosines.amplitudes + own.prior_mean
        assert_allclose(found, latent_mean[:, place], rtol=1e-9, atol=1e-9)


def test_cosines_of_many_classes_need_to_know_whose():
    model = RFFGPC(4, tol=1.0, **PLAIN).fit(*three_classes())
    with pytest.raises(InputError, match=r"3 classes, with a latent function each.*latent=0 to 2"):
        cosines_of(model)


@pytest.mark.parametrize("kind", [GPC(tol=1.0), RFFGPC(5, n_estimators=2, tol=1.0)])
@pytest.mark.parametrize("k", [2, 3])
def test_the_shares_of_classes_are_those_of_the_training_rows(kind, k):
    X, y = three_classes(150)
    y = y if k == 3 else np.where(y == "snow", "snow", "other")
    model = clone(kind).fit(X, y)
    _, counts = np.unique(y, return_counts=True)
    assert_allclose(class_shares(model), counts / 150, rtol=1e-9)
    assert len(latent_functions(model)) == (1 if k == 2 else 3)


def test_the_posterior_of_the_bound_does_not_know_the_shares_of_classes():
    model = RFFGPC(4, tol=1.0, **PLAIN).fit(*three_classes())
    assert class_shares(model) is None


def test_cosines_of_an_unfitted_classifier_are_an_error():
    with pytest.raises(NotFittedError):
        cosines_of(RFFGPC())


# Steps before the classifier

CHANNELS = 12

NOISE = np.linspace(0.5, 2.0, CHANNELS)

# One batch of all rows: with several, the components of IncrementalPCA are approximate.
STEPS_BY_NAME = {
    "SpectralPCA": SpectralPCA(4),
    "SpectralPCA, noise": SpectralPCA(4, noise=NOISE),
    "PCA": PCA(4),
    "PCA, whitened": PCA(4, whiten=True),
    "IncrementalPCA": IncrementalPCA(4, batch_size=300),
    "IncrementalPCA, whitened": IncrementalPCA(4, whiten=True, batch_size=300),
    "StandardScaler": StandardScaler(),
    "StandardScaler, no mean": StandardScaler(with_mean=False),
    "StandardScaler, no scale": StandardScaler(with_std=False),
    "StandardScaler, nothing": StandardScaler(with_mean=False, with_std=False),
    "MinMaxScaler": MinMaxScaler((-2.0, 3.0)),
    "MaxAbsScaler": MaxAbsScaler(),
    "RobustScaler": RobustScaler(),
    "RobustScaler, nothing": RobustScaler(with_centering=False, with_scaling=False),
    "scaled, reduced": make_pipeline(StandardScaler(), PCA(4, whiten=True)),
    "reduced, scaled": make_pipeline(SpectralPCA(4, noise=NOISE), StandardScaler()),
    "reduced twice": make_pipeline(PCA(8), PCA(4)),
    "nested, with a gap": make_pipeline("passthrough", make_pipeline(MinMaxScaler(), PCA(4))),
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    signal = rng.normal(size=(300, 5)) * [9.0, 5.0, 3.0, 2.0, 1.0]
    rows = 250.0 + signal @ rng.normal(size=(5, CHANNELS)) + NOISE * rng.normal(size=(300, 12))
    rows.setflags(write=False)
    return rows


def back_through(steps, values, method):
    for step in reversed(steps):
        values = getattr(step, method)(values)
    return values


each_step = pytest.mark.parametrize("step", STEPS_BY_NAME.values(), ids=STEPS_BY_NAME)


def test_every_supported_step_is_tested():
    assert {name.split(",")[0] for name in STEPS_BY_NAME} >= {
        kind.__name__ for kind in AFFINE_STEPS
    }


@each_step
def test_frequencies_are_finite_differences_of_phases(rows, step):
    step.fit(rows)
    width = step.transform(rows[:1]).shape[1]
    frequencies = np.random.default_rng(1).normal(size=(3, width))
    shifted = rows[0] + np.eye(CHANNELS)
    change = (step.transform(shifted) - step.transform(rows[:1])) @ frequencies.T
    found = back_through(affine_steps([step]), frequencies, "carry_back")
    # A difference of 1 between values of 250, each rounded to 1e-16, is known to about 1e-12.
    assert_allclose(found, change.T, rtol=1e-9, atol=1e-11)


@each_step
def test_the_centre_is_transformed_to_zero(rows, step):
    step.fit(rows)
    steps = affine_steps([step])
    width = step.transform(rows[:1]).shape[1]
    centre = np.zeros((1, width))
    for one in reversed(steps):
        centre = one.centre + one.restore(centre)
    assert_allclose(step.transform(centre), 0.0, atol=1e-9)


@each_step
def test_covariances_with_a_phase_are_restored_exactly(rows, step):
    step.fit(rows)
    out = step.transform(rows)
    phase = out @ np.random.default_rng(2).normal(size=out.shape[1])
    expected = (rows - rows.mean(axis=0)).T @ (phase - phase.mean()) / len(rows)
    given = (out - out.mean(axis=0)).T @ (phase - phase.mean()) / len(rows)
    found = back_through(affine_steps([step]), given[None], "restore")[0]
    assert_allclose(found, expected, rtol=1e-8, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize(
    "step",
    [SpectralPCA(4), SpectralPCA(4, noise=NOISE), PCA(4), IncrementalPCA(4, batch_size=300)],
    ids=str,
)
def test_components_and_the_rest_add_up_to_the_variance(rows, step):
    step.fit(rows)
    (affine,) = affine_steps([step])
    unit = NOISE if affine.noise is not None else np.ones(CHANNELS)
    held = step.explained_variance_ @ affine.restoring**2
    found = (held + affine.left_out) / unit**2
    exact = rows.var(axis=0, ddof=1) / unit**2
    assert_allclose(found.sum(), exact.sum(), rtol=1e-9)
    # The rest, one component of the signal and the noise, is not equal in all directions.
    assert_allclose(found, exact, rtol=0.25)


def test_scalers_leave_no_variance_out(rows):
    (affine,) = affine_steps([StandardScaler().fit(rows)])
    assert not affine.left_out.any()
    assert not affine.uncorrelated


def test_noise_is_known_if_it_was_given(rows):
    given, absent = affine_steps([SpectralPCA(2, noise=NOISE).fit(rows), SpectralPCA(2).fit(rows)])
    assert_allclose(given.noise, NOISE)
    assert absent.noise is None


def test_a_nonlinear_step_is_named_with_the_supported_ones(rows):
    step = QuantileTransformer(n_quantiles=20).fit(rows)
    with pytest.raises(InputError, match=r"(?s)QuantileTransformer.*supported: SpectralPCA, PCA"):
        affine_steps([step])
