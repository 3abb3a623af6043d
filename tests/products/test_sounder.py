"""The sounder chain: fit, map and score of spectra, and what is refused."""

import copy
import warnings

import numpy as np
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import entropy
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.pipeline import make_pipeline

from undulatus import RFFGPC, load_model, save_model
from undulatus.errors import InputError, SceneError
from undulatus.estimators.pca import SpectralPCA
from undulatus.products import Legend, predict
from undulatus.products import sounder as sounder_chain
from undulatus.products.explain import explain, summary_lines
from undulatus.products.maps import map_scene
from undulatus.products.predict import MISSING, OUT_OF_RANGE
from undulatus.products.scores import ManyClassScores
from undulatus.products.sounder import (
    ChosenSpectra,
    channel_noise,
    fit_spectra,
    score_spectra,
)
from undulatus.scenes import synthetic_sounder
from undulatus.scenes.channels import WAVENUMBERS
from undulatus.scenes.radiometry import brightness_temperature
from undulatus.scenes.sampling import cell_names
from undulatus.scenes.spectra import check_spectra

NAMES = (
    "cloud_mask",
    "cloud_probability",
    "cloud_latent_variance",
    "cloud_training_distance",
    "quality_flag",
)


@pytest.fixture(scope="module")
def spectra():
    """1,200 synthetic spectra in memory, in blocks of 300."""
    return synthetic_sounder(1200, seed=5).load().chunk(sample=300)


def fit(spectra, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        defaults = {"components": 20, "n_frequencies": 4, "n_estimators": 1}
        return fit_spectra(spectra, **defaults | options)


@pytest.fixture(scope="module")
def sounder(spectra):
    return fit(spectra)


def test_an_ensemble_beats_always_cloudy_on_cells_it_has_not_seen(spectra):
    model = fit(spectra, n_estimators=8)
    scored = score_spectra(model, spectra)[0]
    held_out = np.isin(cell_names(spectra), model.provenance_["held_out_cells"])
    assert scored.samples == held_out.sum()
    share = spectra["cloudy"].values[held_out].mean()
    assert scored.scores.accuracy > share
    # What knowing the share alone would give.
    assert scored.scores.nll < 0.85 * entropy([share, 1 - share])


def test_held_out_cells_are_not_learned_from(spectra):
    model = fit(spectra, seed=4)
    held_out = np.isin(cell_names(spectra), model.provenance_["held_out_cells"])
    changed = spectra.copy()
    flipped = np.where(held_out, 1 - spectra["cloudy"].values, spectra["cloudy"].values)
    changed["cloudy"] = spectra["cloudy"].copy(data=flipped)
    again = fit(changed, seed=4)
    assert_array_equal(again[-1].frequencies_, model[-1].frequencies_)
    assert_array_equal(again[0].components_, model[0].components_)


def test_a_map_of_spectra_has_the_probabilities_and_variances_of_the_pipeline(sounder, spectra):
    result = map_scene(sounder, spectra)
    rows = spectra["radiance"].values
    assert tuple(result.data_vars) == NAMES
    assert [result[name].dims for name in NAMES] == [("sample",)] * 5
    expected = sounder.predict_proba(rows)[:, 1]
    # As good as a score in single precision: see the next test.
    assert_allclose(result["cloud_probability"].values, expected, atol=5e-5)
    _, variance = sounder[-1].predict_proba_and_variance(sounder[:-1].transform(rows))
    assert_allclose(result["cloud_latent_variance"].values, variance, rtol=1e-3, atol=1e-5)
    assert_array_equal(result["latitude"].values, spectra["latitude"].values)


@pytest.mark.parametrize("chunk", [1, 137, 1200])
def test_chunks_do_not_change_a_map_of_spectra(sounder, spectra, chunk):
    few = spectra.isel(sample=slice(0, 1200 if chunk > 1 else 40))
    expected = map_scene(sounder, few).compute()
    cut = map_scene(sounder, few.chunk(sample=chunk)).compute()
    # A score sums 8,461 channels in single precision, which is good to 1e-4 of the deviation of
    # the last component. Waves of 2 radians a deviation and amplitude 1 make it 2e-4 of the
    # latent mean, and a quarter of that in probability.
    for name in NAMES:
        assert_allclose(cut[name].values, expected[name].values, atol=5e-5)


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


def test_a_spectrum_outside_the_training_range_is_flagged(sounder, spectra):
    hot = spectra.isel(sample=slice(0, 20)).load().copy(deep=True)
    hot["radiance"] = hot["radiance"] * np.float32(1.5)
    quality = map_scene(sounder, hot, allow_outside=True)["quality_flag"].values
    assert (quality & OUT_OF_RANGE).all()


def test_a_saved_model_makes_the_same_map_bit_for_bit(sounder, spectra, tmp_path):
    save_model(sounder, tmp_path / "sounder.undulatus")
    loaded = load_model(tmp_path / "sounder.undulatus")
    assert loaded.provenance_ == sounder.provenance_
    for name in NAMES:
        assert_array_equal(map_scene(loaded, spectra)[name], map_scene(sounder, spectra)[name])


def test_the_scores_of_a_stratum_are_those_of_its_spectra(sounder, spectra):
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


def test_spectra_that_share_no_cell_with_the_held_out_ones_are_all_scored(sounder, spectra):
    bare = spectra.drop_vars(["surface_type", "climate_zone", "season", "day"])
    assert score_spectra(sounder, bare)[0].samples == 1200


@pytest.mark.parametrize("method", ["rff", "gpc"])
def test_the_other_methods_make_maps_with_variances(spectra, method):
    few = spectra.isel(sample=slice(0, 300))
    model = fit(few, method=method)
    assert np.isfinite(map_scene(model, few)["cloud_latent_variance"].values).all()


def test_temperatures_are_reduced_in_units_of_their_noise(spectra):
    kelvin = spectra.isel(sample=slice(0, 300)).load()
    warm = brightness_temperature(WAVENUMBERS, kelvin["radiance"].values)
    # Noise makes a few short-wave radiances negative, which have no temperature.
    usable = np.isfinite(warm).all(axis=1)
    kelvin = kelvin.drop_vars("radiance").assign(
        brightness_temperature=(("sample", "channel"), warm, {"units": "K"})
    )
    noise = channel_noise(check_spectra(kelvin))
    # IASI's noise is some tenths of a kelvin in the window at 280 K.
    assert 0.05 < np.median(noise[(WAVENUMBERS > 800) & (WAVENUMBERS < 1000)]) < 0.5
    model = fit(kelvin)
    assert model.provenance_["measurement"] == "brightness_temperature"
    found = map_scene(model, kelvin)["cloud_mask"].values
    assert_array_equal(found == 255, ~usable)


def test_principal_component_scores_are_learned_from_as_they_are_sent(spectra):
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


def test_any_slices_give_the_chosen_rows(spectra):
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(1200, 500, replace=False))
    rows = ChosenSpectra(check_spectra(spectra), chosen)
    parts = [rows[first : first + 64] for first in range(0, 500, 64)]
    assert_array_equal(np.concatenate(parts), spectra["radiance"].values[chosen])


def test_spectra_are_checked_once(sounder, spectra, monkeypatch):
    checks = []

    def check(spectra):
        checks.append(spectra)
        return check_spectra(spectra)

    for module in (sounder_chain, predict):
        monkeypatch.setattr(module, "check_spectra", check)
    some = spectra.isel(sample=slice(0, 300))
    for use in (
        lambda: fit(some, method="rff"),
        lambda: map_scene(sounder, some),
        lambda: score_spectra(sounder, some),
    ):
        checks.clear()
        use()
        assert len(checks) == 1


def test_spectra_of_another_measurement_or_size_are_refused(sounder, spectra):
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
        (lambda s: s.isel(sample=np.flatnonzero(s["cloudy"].values)), r"1 different values \(1\)"),
    ],
    ids=["no label", "channels", "wavenumbers", "units", "one class"],
)
def test_spectra_that_cannot_be_learned_from_are_refused(spectra, change, says):
    few = spectra.isel(sample=slice(0, 200))
    with pytest.raises(SceneError, match=says):
        fit(change(few))


def test_a_class_that_is_in_no_training_spectrum_is_named_with_counts(spectra, sounder):
    held_out = np.isin(cell_names(spectra), sounder.provenance_["held_out_cells"])
    rare = spectra["cloud_class"].where(held_out | (spectra["cloud_class"] != 2), 0)
    rare = rare.astype(np.uint8).assign_attrs(spectra["cloud_class"].attrs)
    words = r"no 'cloud_class' of class 'partly_cloudy_high' .*partly_cloudy_high 0, cloudy"
    with pytest.raises(SceneError, match=words):
        fit(spectra.assign(cloud_class=rare), label="cloud_class")


def test_a_label_that_is_not_one_of_spectra_is_refused(spectra):
    with pytest.raises(SceneError, match=r"'noise' has the dimensions \(channel\).*\(sample\)"):
        fit(spectra, label="noise")


def test_more_components_than_spectra_are_refused(spectra):
    with pytest.raises(InputError, match=r"1500 principal components were asked for"):
        fit(spectra, components=1500)


def test_an_unknown_method_is_refused(spectra):
    with pytest.raises(InputError, match="method must be one of vff, rff, gpc"):
        fit(spectra, method="svm")


# More than two classes


@pytest.fixture(scope="module")
def cloud_types(spectra):
    """A model of the four cloud classes, with every fourth cell held out."""
    cells = cell_names(spectra)
    held_out = np.unique(cells)[::4]
    learned = ~np.isin(cells, held_out)
    model = make_pipeline(SpectralPCA(15), RFFGPC(10, n_estimators=1, max_iter=5, random_state=0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(spectra["radiance"].values[learned], spectra["cloud_class"].values[learned])
    model.provenance_ = {"label": "cloud_class", "held_out_cells": held_out.tolist()}
    return model


def test_a_chain_learns_the_four_cloud_classes_and_scores_them_without_a_label(spectra, tmp_path):
    model = fit(spectra, label="cloud_class", n_frequencies=8)
    save_model(model, tmp_path / "m.undulatus")
    loaded = load_model(tmp_path / "m.undulatus")
    legend = Legend.of(loaded)
    assert legend.names == ("clear", "partly_cloudy_low", "partly_cloudy_high", "cloudy")
    assert (legend.codes, legend.cloud) == ((0, 1, 2, 3), None)
    shares = loaded.provenance_["class_shares"]
    assert list(shares) == list(legend.names)
    assert_allclose(sum(shares.values()), 1.0, rtol=1e-12)
    rows = score_spectra(loaded, spectra)
    held_out = np.isin(cell_names(spectra), loaded.provenance_["held_out_cells"])
    assert rows[0].samples == held_out.sum()
    assert rows[0].reference == "cloud_class"
    # The most frequent of the classes has a share of 0.28.
    assert rows[0].scores.accuracy.low > 0.35
    result = map_scene(loaded, spectra)
    assert_array_equal(result["class"], model.predict(spectra["radiance"].values))


def test_many_classes_are_scored_on_the_held_out_cells_by_stratum(cloud_types, spectra):
    cells = cell_names(spectra)
    kept = spectra.isel(
        sample=np.flatnonzero(np.isin(cells, cloud_types.provenance_["held_out_cells"]))
    )
    rows = score_spectra(cloud_types, spectra)
    found = {(row.stratum, row.value): row for row in rows}
    assert {row.reference for row in rows} == {"cloud_class"}
    everything = found["all", ""].scores
    assert isinstance(everything, ManyClassScores)
    assert everything.classes == tuple(spectra["cloud_class"].attrs["flag_meanings"].split())
    assert everything.groups == len(np.unique(cell_names(kept)))
    predicted = cloud_types.predict(kept["radiance"].values)
    assert_array_equal(everything.confusion, confusion_matrix(kept["cloud_class"], predicted))
    night = kept["day"].values == 0
    assert found["day", "night"].samples == night.sum()
    assert_array_equal(
        found["day", "night"].scores.confusion,
        confusion_matrix(kept["cloud_class"].values[night], predicted[night], labels=range(4)),
    )


def test_spectra_with_a_missing_value_or_label_are_not_scored(cloud_types, spectra):
    some = spectra.isel(sample=slice(0, 300)).load().copy(deep=True)
    some = some.drop_vars(["surface_type", "climate_zone", "season", "day"])
    some["radiance"][3, 7] = np.nan
    some["cloud_class"][4:6] = 255
    assert score_spectra(cloud_types, some)[0].samples == 297


def test_many_classes_need_a_label_that_holds_them(cloud_types, spectra):
    some = spectra.isel(sample=slice(0, 300))
    nameless = copy.copy(cloud_types)
    nameless.provenance_ = {}
    with pytest.raises(SceneError, match=r"4 classes, but does not say.*--label"):
        score_spectra(nameless, some)
    assert score_spectra(nameless, some, label="cloud_class")[0].samples == 300
    with pytest.raises(SceneError, match=r"no 'type' to score against"):
        score_spectra(nameless, some, label="type")
    with pytest.raises(SceneError, match=r"(?s)'surface_type' has values.*classes: 0, 1, 2, 3"):
        score_spectra(nameless, some, label="surface_type")


def test_many_classes_of_another_measurement_are_refused(cloud_types, spectra):
    other = copy.copy(cloud_types)
    other.provenance_ = cloud_types.provenance_ | {"measurement": "scores"}
    with pytest.raises(SceneError, match=r"fitted on scores, but these spectra hold radiance"):
        score_spectra(other, spectra)


# Other instruments


@pytest.fixture(scope="module")
def few_channels():
    """400 views of 12 channels, cold where it is cloudy, over an hour of one day."""
    rng = np.random.default_rng(0)
    cloudy = rng.integers(0, 2, 400)
    wavenumber = np.linspace(670.0, 2600.0, 12)
    values = 280.0 + rng.normal(size=(400, 12)) - 25.0 * cloudy[:, None]
    times = np.datetime64("2018-11-22T12:00", "ns") + np.arange(400) * np.timedelta64(9, "s")
    return xr.Dataset(
        {
            "brightness_temperature": (("sample", "channel"), values, {"units": "K"}),
            "cloudy": ("sample", cloudy.astype(np.uint8)),
        },
        {"wavenumber": ("channel", wavenumber), "time": ("sample", times)},
        {"channel_set": "HIRS, 12 channels"},
    )


def test_a_model_of_other_channels_is_scored_on_held_out_stretches_and_remembers_them(
    few_channels, tmp_path
):
    save_model(fit(few_channels, components=12), tmp_path / "m.undulatus")
    model = load_model(tmp_path / "m.undulatus")
    assert model.provenance_["channel_set"] == "HIRS, 12 channels"
    assert_allclose(model.provenance_["wavenumbers"], few_channels["wavenumber"])
    assert all(cell.startswith("2018-11-22 12:") for cell in model.provenance_["held_out_cells"])
    assert score_spectra(model, few_channels)[0].scores.accuracy > 0.98
    # Regions without a channel are not named.
    assert "window 1080-1200" not in "\n".join(summary_lines(explain(model)))
    other = few_channels.assign_coords(wavenumber=few_channels["wavenumber"] + 0.5)
    with pytest.raises(SceneError, match=r"other channels .*channel 1 is at 670\.50"):
        map_scene(model, other)
