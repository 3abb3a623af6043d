"""A model is explained by the channels it depends on, whatever steps come before it."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from undulatus import GPC, RFFGPC, VFFGPC
from undulatus.errors import InputError
from undulatus.estimators.interpret import cosines_of
from undulatus.estimators.pca import SpectralPCA
from undulatus.products.explain.cosines import by_regime, explain, overall_importance
from undulatus.products.explain.table import strongest
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.scenes.channels import ABSORPTION_BANDS, CHANNELS, WAVENUMBERS, WINDOWS
from undulatus.scenes.radiometry import blackbody_radiance, brightness_temperature, radiance_slope

NOISE_K = 0.2
OZONE = "O3 980-1080"
# Cosines in features that are linear in those given, so that covariances are exact.
PLAIN = {"n_estimators": 1, "warp": False, "taper": 0.0, "posterior": "bound", "random_state": 0}


@pytest.fixture(scope="module")
def spectra():
    """300 spectra (K) whose regions vary independently; the class is that of the ozone band."""
    rng = np.random.default_rng(0)
    chosen = [*ABSORPTION_BANDS[:3], *ABSORPTION_BANDS[7:8], *WINDOWS]
    shapes = np.array([region.holds(WAVENUMBERS) for region in chosen], dtype=np.float64)
    factors = rng.normal(size=(300, len(chosen)))
    names = [region.name for region in chosen]
    kelvins = 260.0 + 5.0 * factors @ shapes + NOISE_K * rng.normal(size=(300, CHANNELS))
    kelvins.setflags(write=False)
    return kelvins, (factors[:, names.index(OZONE)] > 0.0).astype(int)


def fit(X, y, *steps, classifier=None, measurement=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        last = VFFGPC(3, solver="batch", max_iter=15, **PLAIN)
        model = make_pipeline(*steps, classifier or last).fit(X, y)
    if measurement:
        model.provenance_ = {"measurement": measurement}
    return model


@pytest.fixture(scope="module")
def ozone_model(spectra):
    X, y = spectra
    return fit(X, y, SpectralPCA(7, noise=np.full(CHANNELS, NOISE_K)))


def pattern_of_rows(model, X):
    """Return Cov(x, phase) / deviation of the phase, computed from rows, and the phases."""
    cosines = cosines_of(model[-1])
    phases = (model[:-1].transform(X) - cosines.centre) @ cosines.frequencies.T
    phases = phases - phases.mean(axis=0)
    return phases.T @ (X - X.mean(axis=0)) / len(X) / phases.std(axis=0)[:, None], phases


# Spectra


def test_a_class_that_depends_on_one_band_is_explained_by_that_band(spectra, ozone_model):
    (found,) = explain(ozone_model)
    (first, mean), (_, next_mean), *_ = strongest(found, found.pattern[0])
    assert first == OZONE
    # One deviation of the phase goes with +5 K of the band, one deviation of its temperature.
    assert 4.0 < mean < 5.5
    assert abs(next_mean) < 2.0
    assert strongest(found, found.importance)[0][0] == OZONE


def test_radiances_are_explained_in_kelvin(spectra):
    kelvins, y = spectra
    radiance = blackbody_radiance(WAVENUMBERS, kelvins)
    noise = NOISE_K * radiance_slope(WAVENUMBERS, np.full(CHANNELS, 260.0))
    (found,) = explain(fit(radiance, y, SpectralPCA(7, noise=noise), measurement="radiance"))
    assert (found.measurement, found.unit) == ("radiance", "K")
    first, mean = strongest(found, found.pattern[0])[0]
    assert first == OZONE
    # Planck's law is curved: over 5 K, its slope varies by a few percent.
    assert 3.5 < mean < 5.5
    exact = brightness_temperature(WAVENUMBERS, radiance.mean(axis=0))
    assert_allclose(found.mean_spectrum, exact, rtol=1e-6)


def test_patterns_are_covariances_of_channels_with_phases(spectra, ozone_model):
    (found,) = explain(ozone_model)
    expected, phases = pattern_of_rows(ozone_model, spectra[0])
    assert_allclose(found.phase_deviations, phases.std(axis=0), rtol=1e-8)
    assert_allclose(found.pattern, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_frequencies_are_turns_of_the_phase_by_the_noise_of_one_channel(spectra, ozone_model):
    (found,) = explain(ozone_model)
    assert found.frequency_step == "noise"
    X = spectra[0][:1]
    cosines = cosines_of(ozone_model[-1])
    reduce = ozone_model[:-1]
    for channel in (0, 1500, 8460):
        shifted = X.copy()
        shifted[0, channel] += NOISE_K
        turned = (reduce.transform(shifted) - reduce.transform(X)) @ cosines.frequencies.T
        assert_allclose(found.frequency[:, channel], turned[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("recorded", [None, "brightness_temperature"])
def test_temperatures_are_recognised_if_recorded_or_by_their_mean(spectra, ozone_model, recorded):
    if recorded is None:
        model = ozone_model
    else:
        model = fit(*spectra, SpectralPCA(7), measurement=recorded)
    (found,) = explain(model)
    assert found.measurement == "brightness_temperature"
    assert_allclose(found.mean_spectrum, spectra[0].mean(axis=0), rtol=1e-6)
    assert_allclose(found.wavenumbers, WAVENUMBERS)


def test_radiances_are_recognised_by_their_mean(spectra):
    radiance = blackbody_radiance(WAVENUMBERS, spectra[0])
    (found,) = explain(fit(radiance, spectra[1], SpectralPCA(7)))
    assert found.measurement == "radiance"


def test_channels_without_components_have_a_direction_but_no_pattern(spectra):
    X, y = spectra
    quick = RFFGPC(3, n_estimators=1, random_state=0)
    (found,) = explain(fit(X, y, StandardScaler(), classifier=quick))
    assert found.pattern is None
    assert found.wavenumbers is not None
    assert_allclose(np.sum(found.profile**2, axis=1), 1.0, rtol=1e-9)
    assert_allclose(found.importance.sum(), 1.0, rtol=1e-9)


# Steps before the classifier


@pytest.fixture(scope="module")
def table():
    """500 rows of 6 features that vary together, in different units."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(500, 6)) @ rng.normal(size=(6, 6)) * [1.0, 5.0, 20.0, 1.0, 0.1, 3.0]
    return rows + 100.0, (rows[:, 0] + rows[:, 3] > 0.0).astype(int)


CHAINS = {
    "whitened": (PCA(6, whiten=True),),
    "scaled, whitened": (StandardScaler(), PCA(6, whiten=True)),
    "spectral": (SpectralPCA(6, noise=np.arange(1.0, 7.0)),),
    "reduced, scaled": (PCA(6), StandardScaler()),
    "reduced twice": (SpectralPCA(6), PCA(6)),
    "nested": (make_pipeline(StandardScaler(), PCA(6)), "passthrough"),
}


@pytest.mark.parametrize("steps", CHAINS.values(), ids=CHAINS)
def test_patterns_of_features_are_their_correlations_with_phases(table, steps):
    X, y = table
    model = fit(X, y, *steps, classifier=RFFGPC(4, **PLAIN))
    (found,) = explain(model)
    _, phases = pattern_of_rows(model, X)
    expected = np.corrcoef(np.hstack([phases, X]).T)[:4, 4:]
    assert found.unit == "standard deviations"
    # Some variances divide by n rows, others by n - 1.
    assert_allclose(found.pattern, expected, rtol=3e-3, atol=1e-6)


@pytest.mark.parametrize("steps", CHAINS.values(), ids=CHAINS)
def test_frequencies_of_features_are_turns_by_their_deviation_or_noise(table, steps):
    X, y = table
    model = fit(X, y, *steps, classifier=RFFGPC(4, **PLAIN))
    (found,) = explain(model)
    step = X.std(axis=0) if found.frequency_step != "noise" else np.arange(1.0, 7.0)
    shifted = model[:-1].transform(X[:1] + np.diag(step)) - model[:-1].transform(X[:1])
    turned = shifted @ cosines_of(model[-1]).frequencies.T
    assert_allclose(found.frequency, turned.T, rtol=3e-3, atol=1e-6)


def test_a_step_that_is_not_linear_is_refused(table):
    model = fit(*table, QuantileTransformer(n_quantiles=50), classifier=RFFGPC(2, n_estimators=1))
    with pytest.raises(InputError, match="QuantileTransformer"):
        explain(model)


# Scores, features, regimes


def test_scores_are_named_by_band_and_component():
    X = np.random.default_rng(0).normal(size=(300, 300))
    X[:, 95] *= 8.0
    y = (X[:, 95] > 0.0).astype(int)
    (found,) = explain(fit(X, y, SpectralPCA(5), measurement="scores"))
    assert (found.measurement, found.wavenumbers, found.mean_spectrum) == ("scores", None, None)
    assert strongest(found, found.importance)[0][0] == "band 2 component 6"
    assert (found.names[0], found.names[-1]) == ("band 1 component 1", "band 3 component 90")
    assert found.frequency_step == "noise"


def test_the_feature_that_a_class_depends_on_is_the_most_important():
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(400, 4)) + 280.0, columns=["a", "b", "c", "d"])
    y = (np.abs(table["c"] - 280.0) > 0.7).astype(int)
    model = VFFGPC(5, n_estimators=1, solver="batch", max_iter=20, tol=1e-2, random_state=0).fit(
        table, y
    )
    (found,) = explain(model)
    assert found.names == ("a", "b", "c", "d")
    assert_allclose(found.importance.sum(), 1.0, rtol=1e-9)
    assert found.names[found.importance.argmax()] == "c"
    assert found.importance.max() > 0.6


@pytest.fixture(scope="module")
def regimes():
    """The class depends on "R1" by day and on "BT9" by night, when "R1" is no feature."""
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=600) for name in ("R1", "BT9", "BT10")}
    table = pd.DataFrame({**columns, "angle": rng.uniform(0.0, 180.0, 600)})
    y = np.where(table["angle"] < 90.0, table["R1"], table["BT9"]) + rng.normal(size=600) > 0.0
    parts = (
        Regime("day", 0.0, 90.0),
        Regime("night", 90.0, 180.0, features=("BT9", "BT10")),
    )
    estimator = VFFGPC(4, n_estimators=1, solver="batch", max_iter=30, tol=1e-2, random_state=0)
    model = RegimeClassifier(estimator, parts, by="angle").fit(table, y)
    model.provenance_ = {"label": "cloudy"}
    return model


def test_every_regime_is_explained_by_its_own_features(regimes):
    day, night = explain(regimes)
    assert (day.regime, night.regime) == ("day", "night")
    assert day.names == ("R1", "BT9", "BT10")
    assert night.names == ("BT9", "BT10")
    assert day.names[day.importance.argmax()] == "R1"
    assert night.names[night.importance.argmax()] == "BT9"
    assert day.towards == "cloudy = True"


def test_models_without_names_number_their_features(moons):
    (found,) = explain(RFFGPC(5, n_estimators=1, random_state=0).fit(*moons))
    assert found.names == ("x0", "x1")
    assert (found.regime, found.towards, found.measurement) == ("", "class 1", "")
    assert found.pattern is None
    assert_allclose(found.shares.sum(), 1.0, rtol=1e-12)


def test_the_cosines_of_an_ensemble_are_those_of_its_members(moons):
    (found,) = explain(RFFGPC(5, n_estimators=3, random_state=0).fit(*moons))
    assert len(found.weights) == 15
    assert_allclose(found.shares.sum(), 1.0, rtol=1e-12)


# More than two classes


@pytest.fixture(scope="module")
def seasons():
    """The class "spring" depends on "a" alone, "autumn" from "summer" on "b"; "c" is noise."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(900, 3)), columns=["a", "b", "c"])
    y = np.where(table["a"] > 0.4, "spring", np.where(table["b"] > 0.0, "summer", "autumn"))
    model = VFFGPC(6, n_estimators=1, solver="batch", max_iter=15, tol=1e-2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(table, y)


def test_every_class_is_explained_by_its_own_latent_function(seasons):
    found = explain(seasons)
    assert [one.of_class for one in found] == ["autumn", "spring", "summer"]
    assert [one.towards for one in found] == ["class autumn", "class spring", "class summer"]
    importance = {one.of_class: dict(zip(one.names, one.importance, strict=True)) for one in found}
    assert importance["spring"]["a"] > 0.7
    for name in ("autumn", "summer"):
        assert importance[name]["b"] > importance["spring"]["b"]
        assert importance[name]["c"] < 0.2


def test_the_importance_for_all_classes_is_that_of_all_their_cosines_by_weight(seasons):
    found = explain(seasons)
    expected, total = np.zeros(3), 0.0
    for one in found:
        for weight, profile in zip(one.weights, one.profile, strict=True):
            expected += weight * profile**2
            total += weight
    assert_allclose(overall_importance(found), expected / total, rtol=1e-12)
    assert_allclose(overall_importance(found).sum(), 1.0, rtol=1e-9)


def test_the_importance_of_one_explanation_alone_is_its_own(spectra, ozone_model):
    found = explain(ozone_model)
    assert_allclose(overall_importance(found), found[0].importance, rtol=1e-12)


def test_classes_of_regimes_are_explained_regime_by_regime():
    rng = np.random.default_rng(0)
    table = {"a": rng.normal(size=600), "b": rng.normal(size=600)}
    table["angle"] = rng.uniform(0.0, 2.0, 600)
    parts = (Regime("near", 0.0, 1.0), Regime("far", 1.0, 2.0))
    y = np.digitize(np.where(table["angle"] < 1.0, table["a"], table["b"]), [-0.5, 0.5])
    quick = RFFGPC(5, n_estimators=1, tol=1.0, random_state=0)
    groups = by_regime(explain(RegimeClassifier(quick, parts, by="angle").fit(table, y)))
    assert [[one.heading for one in group] for group in groups] == [
        [f"regime {name}, class {number}" for number in range(3)] for name in ("near", "far")
    ]


# Models without cosines


@pytest.mark.parametrize("model", [GPC(), LogisticRegression()], ids=["GPC", "LogisticRegression"])
def test_a_model_without_frequencies_is_an_error_that_lists_those_accepted(moons, model):
    message = rf"(?s){type(model).__name__}.*accepted: RFFGPC, VFFGPC"
    fitted = model.fit(*moons)
    with pytest.raises(InputError, match=message):
        explain(fitted)
    with pytest.raises(InputError, match=message):
        explain(make_pipeline(StandardScaler(), fitted))


def test_an_error_names_the_regime_without_frequencies():
    rng = np.random.default_rng(0)
    table = {"a": rng.normal(size=200), "angle": rng.uniform(0.0, 2.0, 200)}
    parts = (Regime("near", 0.0, 1.0), Regime("far", 1.0, 2.0))
    estimators = {"near": RFFGPC(5, n_estimators=1), "far": LogisticRegression()}
    model = RegimeClassifier(estimators, parts, by="angle").fit(table, table["a"] > 0.0)
    with pytest.raises(InputError, match=r"Regime 'far': A LogisticRegression"):
        explain(model)


def test_a_model_that_is_not_fitted_is_refused():
    with pytest.raises(NotFittedError):
        explain(make_pipeline(PCA(2), RFFGPC()))
