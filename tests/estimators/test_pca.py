"""SpectralPCA: the components of a full decomposition, in units of the noise."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from undulatus import RFFGPC
from undulatus.errors import InputError
from undulatus.estimators.pca import SpectralPCA


@pytest.fixture(scope="module")
def spectra():
    """600 rows of 300 channels: ten directions of falling variance, and noise."""
    rng = np.random.default_rng(0)
    noise = rng.uniform(0.5, 2.0, 300)
    weights = rng.normal(size=(600, 10)) * 30.0 / 1.6 ** np.arange(10)
    signal = weights @ rng.normal(size=(10, 300))
    return 250.0 + noise * (signal + rng.normal(size=(600, 300))), noise


@pytest.fixture(scope="module")
def full(spectra):
    X, noise = spectra
    return PCA(10, svd_solver="full").fit(X / noise)


@parametrize_with_checks([SpectralPCA(n_components=1)])
def test_scikit_learns_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.parametrize("block", [512, 64, 7])
def test_the_components_are_those_of_a_full_decomposition(spectra, full, block, monkeypatch):
    monkeypatch.setattr(SpectralPCA, "block_rows", block)
    X, noise = spectra
    found = SpectralPCA(10, noise=noise).fit(X)
    assert subspace_angles(found.components_.T, full.components_.T).max() < 1e-9
    assert_allclose(found.explained_variance_, full.explained_variance_, rtol=1e-10)
    assert_allclose(found.explained_variance_ratio_, full.explained_variance_ratio_, rtol=1e-10)
    assert_allclose(found.mean_, X.mean(axis=0), rtol=1e-12)


def test_scores_are_those_of_a_full_decomposition_up_to_signs(spectra, full):
    X, noise = spectra
    found = SpectralPCA(10, noise=noise).fit(X)
    signs = np.sign(np.sum(found.components_ * full.components_, axis=1))
    expected = full.transform(X / noise) * signs
    assert_allclose(found.transform(X), expected, atol=1e-9)
    single = found.transform(X.astype(np.float32))
    assert single.dtype == np.float32
    # Values of 250 are known to 1e-5 in single precision, and a score sums 300 of them.
    assert_allclose(single, expected, atol=1e-2)


def test_a_few_features_are_decomposed_without_lanczos(spectra):
    X, noise = spectra
    found = SpectralPCA(5, noise=noise[:20]).fit(X[:, :20])
    expected = PCA(5, svd_solver="full").fit(X[:, :20] / noise[:20])
    assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-10)


def test_a_few_rows_give_the_same_components_by_their_products(spectra):
    X, noise = spectra
    few = X[:60]
    found = SpectralPCA(8, noise=noise).fit(few)
    expected = PCA(8, svd_solver="full").fit(few / noise)
    assert subspace_angles(found.components_.T, expected.components_.T).max() < 1e-9
    assert_allclose(found.explained_variance_, expected.explained_variance_, rtol=1e-10)
    assert_allclose(found.explained_variance_ratio_, expected.explained_variance_ratio_)
    assert_allclose(found.mean_, few.mean(axis=0), rtol=1e-12)
    largest = np.abs(found.components_).argmax(axis=1)
    assert (found.components_[np.arange(8), largest] > 0.0).all()


def test_a_large_offset_costs_no_digits(spectra, full):
    X, noise = spectra
    found = SpectralPCA(10, noise=noise).fit(X + 1e4)
    assert_allclose(found.explained_variance_, full.explained_variance_, rtol=1e-8)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_and_blocks_do_not_change_the_scores(spectra, threads):
    X, noise = spectra
    found = SpectralPCA(10, noise=noise, n_jobs=threads).fit(X)
    assert_array_equal(found.transform(X)[100:110], found.transform(X[:512])[100:110])


def test_rows_are_read_in_slices(spectra, tmp_path):
    X, noise = spectra
    np.save(tmp_path / "x.npy", X)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert_array_equal(
        SpectralPCA(3, noise=noise).fit(mapped).components_,
        SpectralPCA(3, noise=noise).fit(X).components_,
    )


def test_outputs_are_named(spectra):
    found = SpectralPCA(3, noise=spectra[1]).set_output(transform="pandas").fit(spectra[0])
    names = ["spectralpca0", "spectralpca1", "spectralpca2"]
    assert list(found.get_feature_names_out()) == names
    assert list(found.transform(spectra[0]).columns) == names


def test_a_classifier_can_follow_in_a_pipeline(spectra):
    X, noise = spectra
    rng = np.random.default_rng(1)
    y = X @ rng.normal(size=300) / noise.mean() + rng.normal(size=600) * 100.0
    y = (y > np.median(y)).astype(int)
    model = make_pipeline(SpectralPCA(5, noise=noise), RFFGPC(10, n_estimators=1, random_state=0))
    assert model.fit(X, y).score(X, y) > 0.6


@pytest.mark.parametrize("noise", [np.ones(299), np.zeros(300), np.full(300, np.nan)])
def test_noise_must_be_positive_for_every_feature(spectra, noise):
    with pytest.raises(InputError, match="noise must hold a positive number"):
        SpectralPCA(3, noise=noise).fit(spectra[0])


def test_more_components_than_features_are_refused(spectra):
    with pytest.raises(InputError, match="n_components=301"):
        SpectralPCA(301).fit(spectra[0])


def test_zero_jobs_are_refused(spectra):
    with pytest.raises(InputError, match="n_jobs"):
        SpectralPCA(3, n_jobs=0).fit(spectra[0])


def test_a_missing_value_is_named_by_row_and_column(spectra):
    X = spectra[0].copy()
    X[530, 7] = np.nan
    with pytest.raises(InputError, match="row 530, column 7"):
        SpectralPCA(3).fit(X)
