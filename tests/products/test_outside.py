"""Scenes in other units, scaled or with swapped bands are refused, and the bands are named."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from numpy.testing import assert_array_equal
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from undulatus import RFFGPC, SpectralPCA
from undulatus.errors import OutsideTrainingError
from undulatus.products.maps import map_scene
from undulatus.products.predict import OUT_OF_RANGE

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

BANDS = ("B02", "B04", "B08", "T11", "T12")


def small():
    return RFFGPC(10, n_estimators=1, random_state=0, max_iter=3)


@pytest.fixture(scope="module")
def image():
    """Three bands of digital numbers and two of kelvins, (band, y, x)."""
    rng = np.random.default_rng(0)
    shape = (30, 40)
    counts = rng.gamma(4.0, 300.0, size=(3, *shape))
    kelvins = 280.0 + 10.0 * rng.normal(size=(2, *shape))
    values = np.concatenate([counts, kelvins]).astype(np.float32)
    return xr.DataArray(
        values, dims=("band", "y", "x"), coords={"band": list(BANDS)}, name="image"
    )


@pytest.fixture(scope="module")
def table(image):
    X = pd.DataFrame(image.values.reshape(len(BANDS), -1).T, columns=list(BANDS))
    return X, (X["B02"] > 1200).to_numpy()


@pytest.fixture(scope="module")
def classifier(table):
    return small().fit(*table)


def scaled(image, factor=1.0, shift=0.0, bands=BANDS):
    chosen = image["band"].isin(list(bands))
    return image.where(~chosen, image * factor + shift)


def outside_share(result):
    return float(((result["quality_flag"] & OUT_OF_RANGE) > 0).mean())


def test_the_scene_that_was_learned_from_is_not_refused(classifier, image):
    assert outside_share(map_scene(classifier, image)) < 0.02


def test_reflectances_for_digital_numbers_are_refused_and_named(classifier, image):
    reflectances = scaled(image, 1e-4)
    with pytest.raises(OutsideTrainingError) as error:
        map_scene(classifier, reflectances)
    lines = str(error.value).splitlines()
    assert lines[0].startswith("100% of 1,200 pixels looked at lie outside")
    name = lines[1].split(":")[0].strip()
    median = float(reflectances.sel(band=name).median())
    low, middle, high = classifier.feature_quantiles_[[1, 3, 5], BANDS.index(name)]
    assert lines[1] == (
        f"  {name}: median {median:.4g}, in training {low:.4g} to {high:.4g} (median {middle:.4g})"
    )
    assert "allow_outside=True" in lines[-1]


def test_celsius_for_kelvins_are_refused_and_only_those_bands_named(classifier, image):
    with pytest.raises(OutsideTrainingError) as error:
        map_scene(classifier, scaled(image, shift=-273.15, bands=("T11", "T12")))
    named = [line.split(":")[0].strip() for line in str(error.value).splitlines()[1:-1]]
    assert set(named) == {"T11", "T12"}


def test_swapped_bands_are_refused_and_named(classifier, image):
    swapped = image.assign_coords(band=["T11", "B04", "B08", "B02", "T12"])
    with pytest.raises(OutsideTrainingError, match=r"\n  T11: median 1\d\d\d, in training 2"):
        map_scene(classifier, swapped)


def test_they_are_mapped_with_a_flag_and_a_distance_if_that_is_allowed(classifier, image):
    result = map_scene(classifier, scaled(image, shift=1000.0), allow_outside=True)
    assert (result["cloud_training_distance"].values > 1.0).all()
    assert outside_share(result) == 1.0


def test_a_lazy_scene_is_refused_before_it_is_computed(classifier, image):
    with pytest.raises(OutsideTrainingError, match="T11"):
        map_scene(classifier, scaled(image, 1e-4).chunk(y=7))


@pytest.mark.parametrize("share", [0.45, 0.55])
def test_more_than_half_of_the_pixels_with_data_decide(classifier, image, share):
    rows = round(share * 20)
    some = image.copy(deep=True)
    some[:, :rows] *= 100.0
    some[:, 20:] = np.nan
    if share > 0.5:
        with pytest.raises(OutsideTrainingError, match="of 800 pixels"):
            map_scene(classifier, some)
    else:
        map_scene(classifier, some)


def test_masked_pixels_do_not_count(classifier, image):
    some = image.copy(deep=True)
    some[:, :20] *= 100.0
    bad = xr.zeros_like(image[0], dtype=bool)
    bad[:20] = True
    assert outside_share(map_scene(classifier, some, mask=bad)) < 0.02


def test_pixels_without_data_are_not_refused(classifier, image):
    assert (map_scene(classifier, image * np.nan)["cloud_mask"] == 255).all()


def test_bands_without_names_are_numbered(table, image):
    nameless = small().fit(table[0].to_numpy(), table[1])
    with pytest.raises(OutsideTrainingError, match=r"\n  band 5: median 7.606, in training 25"):
        map_scene(nameless, scaled(image, shift=-273.15).drop_vars("band"))


def test_behind_a_scaler_bands_are_named_in_their_own_units(classifier, table, image):
    model = make_pipeline(StandardScaler(), small())
    celsius = scaled(image, shift=-273.15, bands=("T11", "T12"))
    with pytest.raises(OutsideTrainingError) as behind:
        map_scene(model.fit(*table), celsius)
    with pytest.raises(OutsideTrainingError) as plain:
        map_scene(classifier, celsius)
    assert str(behind.value) == str(plain.value)


def test_behind_components_bands_are_named_with_their_mean(table, image):
    model = make_pipeline(PCA(3, random_state=0), small())
    with pytest.raises(
        OutsideTrainingError, match=r"\n  B04: median 0.109, in training about 1214"
    ):
        map_scene(model.fit(*table), scaled(image, 1e-4))


def test_behind_a_step_that_is_not_linear_components_are_named(table, image):
    step = FunctionTransformer(np.cbrt)
    model = make_pipeline(step, small()).fit(*table)
    with pytest.raises(OutsideTrainingError, match=r"\n  component \d: median"):
        map_scene(model, scaled(image, 1e-4))


def test_other_classifiers_have_no_range_to_leave(table, image):
    result = map_scene(LogisticRegression().fit(*table), scaled(image, 1e-4))
    assert result["cloud_training_distance"].isnull().all()
    assert outside_share(result) == 0.0


def test_spectra_are_named_by_what_they_measure(spectra_like):
    model, spectra = spectra_like
    assert outside_share(map_scene(model, spectra)) < 0.1
    with pytest.raises(
        OutsideTrainingError, match=r"\n  scores \(1\): median [\d.]+, in training"
    ):
        map_scene(model, spectra.assign(scores=(spectra["scores"] * 50.0).assign_attrs(units="1")))


@pytest.fixture(scope="module")
def spectra_like():
    rng = np.random.default_rng(0)
    rows = 10.0 + rng.normal(size=(300, 4)) @ rng.normal(size=(4, 300))
    rows += 0.1 * rng.normal(size=rows.shape)
    scores = xr.DataArray(rows.astype(np.float32), dims=("sample", "component"))
    model = make_pipeline(SpectralPCA(4), RFFGPC(5, n_estimators=1, random_state=0, max_iter=3))
    model.fit(rows, rows[:, 0] > 10.0)
    return model, xr.Dataset({"scores": scores.assign_attrs(units="1")})


# Scenes in regimes


@pytest.fixture(scope="module")
def noon(days):
    """Some acquisitions of a day, from night to noon, in memory."""
    return days.isel(time=slice(20, 60, 5)).load()


def test_an_ordinary_scene_of_night_and_day_is_not_refused(model, noon):
    assert outside_share(map_scene(model, noon)) < 0.1


def test_each_pixel_is_compared_with_its_own_regime(model, noon):
    # Temperatures of the night are those of the day to the other classifiers.
    warm = noon.assign({b: noon[b] + 25.0 for b in ("IR_039", "IR_087", "IR_108", "IR_120")})
    dark = (noon["solar_zenith_angle"] >= 90.0).any(("y", "x")).values
    night, day = warm.isel(time=dark), warm.isel(time=~dark)
    for part, regime in ((night, "night"), (day, "(high|mid|low)")):
        for band in ("IR_039", "IR_087", "IR_108", "IR_120"):
            part[band].attrs["units"] = "K"
        with pytest.raises(OutsideTrainingError, match=rf"\n  BT\w+: .* in regime {regime}"):
            map_scene(model, part)


# The sample


def test_on_a_small_scene_all_pixels_decide(classifier, image):
    """The decision by the sample is that of the quality flags of the whole map."""
    rng = np.random.default_rng(1)
    for share in rng.uniform(0.3, 0.7, 12):
        some = image.copy(deep=True)
        some.values[:, rng.random((30, 40)) < share] *= 100.0
        flagged = outside_share(map_scene(classifier, some, allow_outside=True))
        lazy = some.chunk(y=11, x=13)
        if flagged > 0.5:
            with pytest.raises(OutsideTrainingError):
                map_scene(classifier, lazy)
        else:
            flags = map_scene(classifier, lazy)["quality_flag"]
            assert_array_equal(outside_share(flags.to_dataset()), flagged)
