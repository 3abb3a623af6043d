"""Affine steps: frequencies and covariances go back through them as they should."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
)

from undulatus.errors import InputError
from undulatus.estimators.affine import STEPS, affine_steps
from undulatus.estimators.reduction import SpectralPCA

CHANNELS = 12
NOISE = np.linspace(0.5, 2.0, CHANNELS)
# One batch of all rows: over several, IncrementalPCA finds components only nearly.
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


def test_every_step_that_is_taken_is_tested():
    assert {name.split(",")[0] for name in STEPS_BY_NAME} >= {kind.__name__ for kind in STEPS}


@each_step
def test_frequencies_are_finite_differences_of_phases(rows, step):
    step.fit(rows)
    width = step.transform(rows[:1]).shape[1]
    frequencies = np.random.default_rng(1).normal(size=(3, width))
    shifted = rows[0] + np.eye(CHANNELS)
    change = (step.transform(shifted) - step.transform(rows[:1])) @ frequencies.T
    found = back_through(affine_steps([step]), frequencies, "carry_back")
    # A step of 1 on values of 250 that are transformed with 1e-16 leaves 1e-12 or so.
    assert_allclose(found, change.T, rtol=1e-9, atol=1e-11)


@each_step
def test_the_centre_goes_to_nought(rows, step):
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
def test_what_components_hold_and_leave_out_is_all_the_variance(rows, step):
    step.fit(rows)
    (affine,) = affine_steps([step])
    unit = NOISE if affine.noise is not None else np.ones(CHANNELS)
    held = step.explained_variance_ @ affine.restoring**2
    found = (held + affine.left_out) / unit**2
    exact = rows.var(axis=0, ddof=1) / unit**2
    assert_allclose(found.sum(), exact.sum(), rtol=1e-9)
    # One component of the signal and the noise are left out, not the same in all directions.
    assert_allclose(found, exact, rtol=0.25)


def test_scalers_leave_nothing_out(rows):
    (affine,) = affine_steps([StandardScaler().fit(rows)])
    assert not affine.left_out.any()
    assert not affine.uncorrelated


def test_noise_is_known_where_it_was_told(rows):
    told, untold = affine_steps([SpectralPCA(2, noise=NOISE).fit(rows), SpectralPCA(2).fit(rows)])
    assert_allclose(told.noise, NOISE)
    assert untold.noise is None


def test_a_step_that_is_not_linear_is_named_with_those_that_are_taken(rows):
    step = QuantileTransformer(n_quantiles=20).fit(rows)
    with pytest.raises(InputError, match=r"(?s)QuantileTransformer.*taken: SpectralPCA, PCA"):
        affine_steps([step])
