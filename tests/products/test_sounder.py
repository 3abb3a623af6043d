"""The sounder chain: fit, map and score of spectra, and what is refused.

Cross-validation of spectra over numbers of waves.
"""

import copy
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import accuracy_score

from undulatus import load_model, save_model
from undulatus.errors import InputError, SceneError
from undulatus.estimators.pca import SpectralPCA
from undulatus.products.maps import map_scene
from undulatus.products.predict import MISSING, OUT_OF_RANGE
from undulatus.products.sounder import (
    FREQUENCIES,
    ChosenSpectra,
    cross_validate,
    fit_spectra,
    noise_of,
    score_spectra,
)
from undulatus.scenes import synthetic_sounder
from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.radiometry import brightness_temperature
from undulatus.scenes.sampling import cell_names
from undulatus.scenes.spectra import check_spectra

NAMES = ("cloud_mask", "cloud_probability", "cloud_latent_variance", "quality_flag")


@pytest.fixture(scope="module")
def spectra():
    """1,200 synthetic spectra in memory, in blocks of 300."""
    return synthetic_sounder(1200, seed=5).load().chunk(sample=300)


def fit(spectra, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_spectra(spectra, **{"components": 20, "n_frequencies": 4} | options)


@pytest.fixture(scope="module")
def sounder(spectra):
    return fit(spectra)


def test_a_model_tells_clear_from_cloudy_on_cells_it_has_not_seen(sounder, spectra):
    scored = score_spectra(sounder, spectra)[0]
    held_out = np.isin(cell_names(spectra), sounder.provenance_["held_out_cells"])
    assert scored.samples == held_out.sum()
    share = spectra["cloudy"].values[held_out].mean()
    # Better than to call everything cloudy, by more than two standard errors.
    assert scored.scores.accuracy > share + 2 * np.sqrt(share * (1 - share) / scored.samples)


def test_the_held_out_cells_were_not_learned_from(spectra):
    model = fit(spectra, seed=4)
    held_out = np.isin(cell_names(spectra), model.provenance_["held_out_cells"])
    changed = spectra.copy()
    flipped = np.where(held_out, 1 - spectra["cloudy"].values, spectra["cloudy"].values)
    changed["cloudy"] = spectra["cloudy"].copy(data=flipped)
    again = fit(changed, seed=4)
    assert_array_equal(again[-1].frequencies_, model[-1].frequencies_)
    assert_array_equal(again[0].components_, model[0].components_)


def test_a_map_of_spectra_says_what_the_pipeline_says_of_their_rows(sounder, spectra):
    result = map_scene(sounder, spectra)
    rows = spectra["radiance"].values
    assert tuple(result.data_vars) == NAMES
    assert [result[name].dims for name in NAMES] == [("sample",)] * 4
    expected = sounder.predict_proba(rows)[:, 1]
    assert_allclose(result["cloud_probability"].values, expected, atol=1e-5)
    _, variance = sounder[-1].predict_proba_and_variance(sounder[:-1].transform(rows))
    assert_allclose(result["cloud_latent_variance"].values, variance, rtol=1e-3, atol=1e-5)
    assert_array_equal(result["latitude"].values, spectra["latitude"].values)


@pytest.mark.parametrize("chunk", [1, 137, 1200])
def test_chunks_do_not_change_a_map_of_spectra(sounder, spectra, chunk):
    few = spectra.isel(sample=slice(0, 1200 if chunk > 1 else 40))
    expected = map_scene(sounder, few).compute()
    cut = map_scene(sounder, few.chunk(sample=chunk)).compute()
    for name in NAMES:
        assert_allclose(cut[name].values, expected[name].values, atol=1e-5)


def test_a_spectrum_with_a_missing_channel_has_no_class_and_is_not_learned_from(spectra):
    broken = spectra.copy(deep=True).load()
    broken["radiance"][{"sample": slice(0, 5), "channel": 4000}] = np.nan
    model = fit(broken.chunk(sample=300))
    assert model.provenance_["spectra_with_missing_values"] == 5
    result = map_scene(model, broken)
    assert (result["cloud_mask"].values[:5] == 255).all()
    assert np.isnan(result["cloud_probability"].values[:5]).all()
    assert (result["quality_flag"].values[:5] & MISSING).all()
    assert np.isfinite(result["cloud_probability"].values[5:]).all()


def test_a_spectrum_like_none_before_is_flagged(sounder, spectra):
    hot = spectra.isel(sample=slice(0, 20)).load().copy(deep=True)
    hot["radiance"] = hot["radiance"] * np.float32(1.5)
    quality = map_scene(sounder, hot)["quality_flag"].values
    assert (quality & OUT_OF_RANGE).all()


def test_a_saved_model_maps_bit_for_bit_alike(sounder, spectra, tmp_path):
    save_model(sounder, tmp_path / "sounder.undulatus")
    loaded = load_model(tmp_path / "sounder.undulatus")
    assert loaded.provenance_ == sounder.provenance_
    for name in NAMES:
        assert_array_equal(map_scene(loaded, spectra)[name], map_scene(sounder, spectra)[name])


def test_scores_of_strata_are_those_of_their_spectra(sounder, spectra):
    held_out = np.isin(cell_names(spectra), sounder.provenance_["held_out_cells"])
    kept = spectra.isel(sample=np.flatnonzero(held_out))
    probability = map_scene(sounder, kept)["cloud_probability"].values
    found = {(s.reference, s.stratum, s.value): s for s in score_spectra(sounder, spectra)}
    night = kept["day"].values == 0
    row = found["cloudy", "day", "night"]
    assert row.samples == night.sum()
    assert row.scores.accuracy == accuracy_score(
        kept["cloudy"].values[night], probability[night] > 0.5
    )
    truth = kept["effective_cloud_amount"].values > 0.0
    assert found["cloud_truth", "all", ""].scores.accuracy == accuracy_score(
        truth, probability > 0.5
    )


def test_other_spectra_than_those_of_the_fit_are_scored_whole(sounder, spectra):
    bare = spectra.drop_vars(["surface_type", "climate_zone", "season", "day"])
    assert score_spectra(sounder, bare)[0].samples == 1200


@pytest.mark.parametrize("method", ["rff", "gpc"])
def test_the_other_methods_go_the_same_way(spectra, method):
    few = spectra.isel(sample=slice(0, 300))
    model = fit(few, method=method)
    assert np.isfinite(map_scene(model, few)["cloud_latent_variance"].values).all()


def test_temperatures_are_reduced_in_units_of_their_noise(spectra):
    kelvin = spectra.isel(sample=slice(0, 300)).load()
    warm = brightness_temperature(WAVENUMBERS, kelvin["radiance"].values)
    # Noise makes a few radiances of the short-wave end negative, which have no temperature.
    usable = np.isfinite(warm).all(axis=1)
    kelvin = kelvin.drop_vars("radiance").assign(
        brightness_temperature=(("sample", "channel"), warm, {"units": "K"})
    )
    noise = noise_of(check_spectra(kelvin))
    # Of IASI's order: tenths of a kelvin in the window at 280 K.
    assert 0.05 < np.median(noise[(WAVENUMBERS > 800) & (WAVENUMBERS < 1000)]) < 0.5
    model = fit(kelvin)
    assert model.provenance_["measurement"] == "brightness_temperature"
    found = map_scene(model, kelvin)["cloud_mask"].values
    assert_array_equal(found == 255, ~usable)


def test_scores_of_principal_components_are_learned_from_as_they_are(spectra):
    few = spectra.isel(sample=slice(0, 600)).load()
    reduce = SpectralPCA(300, noise=few["noise"].values)
    scores = reduce.fit_transform(few["radiance"].values)
    sent = few.drop_dims("channel").assign(scores=(("sample", "component"), scores))
    model = fit(sent)
    assert model[0].n_features_in_ == 300
    assert model.provenance_["measurement"] == "scores"
    assert np.isfinite(map_scene(model, sent)["cloud_probability"].values).all()
    with pytest.raises(SceneError, match=r"fitted on scores, but these spectra hold radiance"):
        map_scene(model, few)


def test_rows_are_those_chosen_in_whatever_slices(spectra):
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(1200, 500, replace=False))
    told = []
    rows = ChosenSpectra(check_spectra(spectra), chosen, told.append)
    parts = [rows[first : first + 64] for first in range(0, 500, 64)]
    assert_array_equal(np.concatenate(parts), spectra["radiance"].values[chosen])
    assert len(told) >= 5


def test_a_model_of_other_channels_is_refused(sounder, spectra):
    sent = spectra.drop_dims("channel").assign(
        scores=(("sample", "component"), np.zeros((1200, 300), np.float32))
    )
    with pytest.raises(SceneError, match="fitted on radiance"):
        map_scene(sounder, sent)
    bare = copy.copy(sounder)
    del bare.provenance_
    with pytest.raises(SceneError, match="fitted on 8461 features"):
        map_scene(bare, sent)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.drop_vars(["cloudy", "cloud_class"]), "no 'cloudy' to learn from"),
        (lambda s: s.isel(channel=slice(0, 8000)), "missing: 461 of 8461 channels"),
        (lambda s: s.assign_coords(wavenumber=s["wavenumber"] + 5.0), "645"),
        (lambda s: s.assign(radiance=s["radiance"].assign_attrs(units="K")), "'K'"),
        (lambda s: s.isel(sample=np.flatnonzero(s["cloudy"].values)), "both are needed"),
    ],
    ids=["no label", "channels", "wavenumbers", "units", "one class"],
)
def test_spectra_that_cannot_be_learned_from_are_refused(spectra, change, says):
    few = spectra.isel(sample=slice(0, 200))
    with pytest.raises(SceneError, match=says):
        fit(change(few))


def test_a_label_of_many_classes_is_refused(spectra):
    with pytest.raises(SceneError, match="'cloud_class' has the values 0, 1, 2, 3"):
        fit(spectra, label="cloud_class")


def test_more_components_than_spectra_are_refused(spectra):
    with pytest.raises(InputError, match=r"1500 principal components were asked for"):
        fit(spectra, components=1500)


def test_an_unknown_method_is_refused(spectra):
    with pytest.raises(InputError, match="method must be one of vff, rff, gpc"):
        fit(spectra, method="svm")


@pytest.fixture(scope="module")
def spectra_of_cross_validation():
    return synthetic_sounder(500, seed=2).load()


@pytest.fixture(scope="module")
def found(spectra_of_cross_validation):
    return cross_validate(
        spectra_of_cross_validation,
        methods=("rff", "gpc"),
        frequencies=(2, 5),
        folds=3,
        components=10,
    )


def test_the_grid_is_the_papers():
    assert (*range(1, 11), 15, 20, 25, 50, 75, 100, 125, 150) == FREQUENCIES


def test_there_is_a_row_for_every_method_number_and_fold(found):
    rows = found.folds[["method", "frequencies", "fold"]].itertuples(index=False, name=None)
    assert sorted(rows) == sorted(
        (method, count, fold) for method in ("rff", "gpc") for count in (2, 5) for fold in range(3)
    )
    assert found.folds[["accuracy", "train_accuracy"]].stack().between(0.5, 1.0).all()


def test_means_over_folds_are_those_of_the_rows(found):
    of_five = found.folds.query("method == 'rff' and frequencies == 5")
    assert_allclose(
        found.by_frequencies().loc[("rff", 5), "nll"], of_five["nll"].mean(), rtol=1e-12
    )


def test_every_spectrum_is_scored_once_in_every_stratum(found, spectra_of_cross_validation):
    rff = found.strata.query("method == 'rff' and frequencies == 2")
    assert (
        rff.groupby("stratum")["samples"].sum() == spectra_of_cross_validation.sizes["sample"]
    ).all()
    whole = rff.query("stratum == 'all'")["accuracy"].item()
    seasons = rff.query("stratum == 'season'")
    assert_allclose(np.average(seasons["accuracy"], weights=seasons["samples"]), whole)


def test_the_papers_solver_can_be_asked_for(spectra_of_cross_validation):
    few = spectra_of_cross_validation.isel(sample=slice(0, 200))
    found = cross_validate(
        few, methods=("vff",), frequencies=(2,), folds=2, components=5, solver="batch"
    )
    assert len(found.folds) == 2
