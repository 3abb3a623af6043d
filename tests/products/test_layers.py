"""Layers of maps: which class is cloud, names, flags and codes of any classes, in every format."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import rasterio
import rioxarray  # noqa: F401 (gives arrays their .rio)
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.linear_model import LogisticRegression

from undulatus import RFFGPC, load_model, save_model
from undulatus.errors import InputError
from undulatus.products import Legend, map_scene
from undulatus.products.maps import summarise_map
from undulatus.products.predict import LOW_CONFIDENCE, MISSING
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.scenes.files.opening import open_map
from undulatus.scenes.files.writing import write_dataset

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")

BANDS = ["B02", "B08"]
SURFACES = ("land", "open water", "snow")


def small(**options):
    return RFFGPC(10, **({"n_estimators": 1, "random_state": 0, "max_iter": 5} | options))


@pytest.fixture(scope="module")
def image():
    """Two bands of a projected image, one of whose pixels is missing."""
    values = np.random.default_rng(0).normal(size=(2, 30, 40)).astype(np.float32)
    values[:, 3, 4] = np.nan
    return xr.DataArray(
        values,
        dims=("band", "y", "x"),
        coords={"band": BANDS, "y": 30.0 - np.arange(30), "x": np.arange(40.0)},
    ).rio.write_crs("EPSG:32629")


@pytest.fixture(scope="module")
def rows(image):
    return pd.DataFrame(image.values.reshape(2, -1).T, columns=BANDS)


@pytest.fixture(scope="module")
def table():
    return pd.DataFrame(np.random.default_rng(1).normal(size=(600, 2)), columns=BANDS)


@pytest.fixture(scope="module")
def bright(table):
    """Noisy labels: true where B02 is large."""
    return (table["B02"] + 0.5 * np.random.default_rng(2).normal(size=600) > 0).to_numpy()


@pytest.fixture(scope="module")
def surfaces(table, bright):
    snow = table["B08"] > 0.8
    return small(n_estimators=2).fit(
        table, np.where(snow, "snow", np.where(bright, *SURFACES[:2]))
    )


def known(image):
    return np.isfinite(image.values[0]).ravel()


# Which class is cloud


def test_a_class_is_not_cloud_by_its_name_or_position(table, bright, image):
    model = small().fit(table, np.where(bright, "cloud", "land"))
    result = map_scene(model, image)
    assert result["class"].attrs["flag_meanings"] == "cloud land"
    assert not [name for name in result if name.startswith("cloud")]
    assert not any("standard_name" in array.attrs for array in result.data_vars.values())


def test_cloud_is_the_class_that_a_legend_says_and_not_the_second(table, bright, image, rows):
    model = small().fit(table, np.where(bright, "cloud", "land"))
    assert list(model.classes_) == ["cloud", "land"]
    Legend(("cloud", "land"), cloud="cloud").attach_to(model)
    result = map_scene(model, image)
    seen = known(image)
    expected = model.predict_proba(rows[seen])[:, 0]
    assert_allclose(result["cloud_probability"].values.ravel()[seen], expected, atol=1e-6)
    assert_array_equal(
        result["cloud_mask"].values.ravel()[seen] == 1, model.predict(rows[seen]) == "cloud"
    )
    assert result["cloud_mask"].attrs["standard_name"] == "cloud_binary_mask"


def test_a_model_of_0_and_1_keeps_its_layers_but_does_not_claim_cloud(table, bright, image):
    result = map_scene(small().fit(table, bright.astype(int)), image)
    assert list(result) == [
        "cloud_mask",
        "cloud_probability",
        "cloud_latent_variance",
        "cloud_training_distance",
        "quality_flag",
    ]
    mask = result["cloud_mask"]
    assert_array_equal(mask.attrs["flag_values"], [0, 1])
    assert mask.attrs["flag_meanings"] == "class_0 class_1"
    assert mask.attrs["_FillValue"] == mask.values[3, 4] == 255
    for array in result.data_vars.values():
        assert "standard_name" not in array.attrs
        assert "cloud" not in array.attrs["long_name"]
    assert "cloud" not in result.attrs["history"]


@pytest.mark.parametrize("cloud", [0, 1])
def test_a_legend_says_which_of_0_and_1_is_cloud(table, bright, image, rows, cloud):
    model = small().fit(table, bright.astype(int))
    names = ("cloud", "ground") if cloud == 0 else ("ground", "cloud")
    result = map_scene(model, image, legend=Legend((0, 1), names, cloud="cloud"), encoding="pps")
    seen = known(image)
    expected = model.predict_proba(rows[seen])[:, cloud]
    assert_allclose(result["cloud_probability"].values.ravel()[seen], expected, atol=1e-6)
    assert result["cloud_mask"].attrs["flag_meanings"].startswith("cloud_free cloudy")


def test_a_chain_records_that_its_labels_are_clouds(model, days, tmp_path):
    assert Legend.of(model).names == ("clear", "cloud")
    without = load_model_of_before(model, tmp_path)
    for each in (model, without):
        mask = map_scene(each, days.isel(time=[50]).load())["cloud_mask"]
        assert mask.attrs["standard_name"] == "cloud_binary_mask"
        assert mask.attrs["flag_meanings"] == "clear cloud"


def load_model_of_before(model, folder):
    """Return the model as a version that knew no legends stored it."""
    stored = dict(model.provenance_)
    try:
        del model.provenance_["legend"]
        save_model(model, folder / "before")
    finally:
        model.provenance_ = stored
    return load_model(folder / "before")


@pytest.mark.parametrize("classes", [(0, 1), ("land", "water"), ("clear", "cloud")])
def test_codes_of_cloud_masks_need_to_know_which_class_is_cloud(table, bright, image, classes):
    model = small().fit(table, np.array(classes)[bright.astype(int)])
    with pytest.raises(InputError, match=r"'pps'(.|\n)*not known(.|\n)*cloud="):
        map_scene(model, image, encoding="pps")


# Other classes


def test_two_other_classes_have_the_probability_of_the_second(table, bright, image, rows):
    model = small().fit(table, np.where(bright, "water", "land"))
    result = map_scene(model, image)
    assert list(result) == [
        "class",
        "class_probability",
        "class_latent_variance",
        "class_entropy",
        "class_training_distance",
        "quality_flag",
    ]
    seen = known(image)
    probability, variance = model.predict_proba_and_variance(rows[seen])
    assert_allclose(result["class_probability"].values.ravel()[seen], probability[:, 1], atol=1e-6)
    assert_allclose(result["class_latent_variance"].values.ravel()[seen], variance, rtol=1e-4)
    assert result["class_probability"].attrs["long_name"] == "probability of water"
    assert result["class"].attrs["flag_meanings"] == "land water"
    assert not any("standard_name" in array.attrs for array in result.data_vars.values())


def test_each_of_three_classes_has_its_probability_and_variance(surfaces, image, rows):
    result = map_scene(surfaces, image)
    seen = known(image)
    expected = surfaces.predict_in_full(rows[seen])
    for name, values in (
        ("class_probability", expected.probabilities),
        ("class_latent_variance", expected.variance),
    ):
        assert result[name].dims == ("class_name", "y", "x")
        assert list(result["class_name"].values) == list(SURFACES)
        # Single precision holds seven digits.
        found = result[name].values.reshape(3, -1)[:, seen].T
        assert_allclose(found, values, rtol=1e-4, atol=1e-6)
    found = result["class"].values.ravel()
    assert_array_equal(np.array(SURFACES)[found[seen]], surfaces.predict(rows[seen]))
    assert_allclose(
        result["class_disagreement"].values.ravel()[seen], expected.ensemble_std, rtol=1e-3
    )
    assert_array_equal(found == 255, ~seen)


def test_the_entropy_is_that_of_the_probabilities_in_nats(surfaces, image):
    result = map_scene(surfaces, image)
    p = result["class_probability"].values.astype(np.float64)
    assert_allclose(result["class_entropy"], -np.sum(p * np.log(p), axis=0), atol=1e-6)
    assert np.nanmax(result["class_entropy"]) <= np.log(3) + 1e-6


def test_a_class_that_is_certain_has_no_entropy(table, image):
    class Certain(LogisticRegression):
        def predict_proba(self, X):
            return np.tile([0.0, 1.0, 0.0], (len(X), 1))

    labels = np.array(SURFACES)[np.arange(600) % 3]
    result = map_scene(Certain().fit(table, labels), image)
    assert np.nanmax(result["class_entropy"]) == 0.0
    assert result["class_latent_variance"].isnull().all()


def test_quality_flags_and_their_summary_count_doubtful_pixels(surfaces, image):
    result = map_scene(surfaces, image)
    doubtful = result["class_probability"].max("class_name").values < 0.8
    quality = result["quality_flag"]
    assert_array_equal((quality.values & LOW_CONFIDENCE) > 0, doubtful)
    assert quality.values[3, 4] & MISSING
    assert quality.attrs["long_name"] == "quality of the classes"
    found = summarise_map(result)
    assert (found.mapped, found.missing) == (1199, 1)
    assert found.low_confidence == doubtful.sum()
    counts = np.bincount(result["class"].values.ravel(), minlength=3)[:3]
    assert found.classes == dict(zip(("land", "open water", "snow"), counts, strict=True))
    assert str(found).endswith(f"snow {counts[2] / 1199:.1%}")


def test_a_lazy_map_of_classes_is_lazy_and_the_same(surfaces, image):
    lazy = map_scene(surfaces, image.chunk(y=7, x=9))
    assert all(isinstance(array.data, da.Array) for array in lazy.data_vars.values())
    expected = map_scene(surfaces, image)
    for name, array in expected.data_vars.items():
        assert_allclose(lazy[name].values, array.values, atol=1e-5)


def test_a_given_legend_names_codes_and_colours_the_classes(surfaces, image):
    legend = Legend(
        ("snow", "open water", "land"),
        names=("ice", "sea", "soil"),
        codes=(30, 255, 10),
        colours=("#ffffff", "#0000ff", "#806040"),
    )
    result = map_scene(surfaces, image, legend=legend)["class"]
    assert_array_equal(result.attrs["flag_values"], [10, 255, 30])
    assert result.attrs["flag_meanings"] == "soil sea ice"
    assert result.attrs["flag_colors"] == "#806040 #0000ff #ffffff"
    assert result.attrs["_FillValue"] == result.values[3, 4] == 254
    plain = map_scene(surfaces, image)["class"].values
    assert_array_equal(result.values == 255, plain == 1)


@pytest.mark.parametrize("classes", [("land", "snow"), ("fog", *SURFACES)])
def test_a_legend_of_other_classes_is_refused(surfaces, image, classes):
    with pytest.raises(InputError, match=r"does not fit the model(.|\n)*'land', 'open water'"):
        map_scene(surfaces, image, legend=Legend(classes))


def test_a_stored_legend_names_the_classes_of_a_map(table, bright, image, tmp_path):
    model = small().fit(table, bright.astype(int))
    Legend((0, 1), names=("land", "water")).attach_to(model)
    save_model(model, tmp_path / "model")
    result = map_scene(load_model(tmp_path / "model"), image)
    assert result["class"].attrs["flag_meanings"] == "land water"


@pytest.mark.parametrize("blend", [0.0, 5.0])
def test_regimes_of_three_classes_are_mapped_as_the_model_predicts(table, image, rows, blend):
    angle = np.random.default_rng(3).uniform(0.0, 180.0, 600)
    X = table.assign(solar_zenith_angle=angle)
    y = np.array(SURFACES)[np.digitize(table["B02"] + table["B08"], [-0.5, 0.5])]
    regimes = (Regime("day", 0.0, 90.0), Regime("night", 90.0, 180.0))
    model = RegimeClassifier(small(), regimes, blend=blend).fit(X, y)
    sun = np.linspace(70.0, 110.0, 40)
    scene = image.to_dataset("band").assign(
        solar_zenith_angle=(("y", "x"), np.broadcast_to(sun, (30, 40)))
    )
    result = map_scene(model, scene)
    seen = known(image)
    given = rows.assign(solar_zenith_angle=np.tile(sun, 30))[seen]
    probability, variance = model.predict_proba_and_variance(given)
    found = result["class_probability"].values.reshape(3, -1)[:, seen].T
    assert_allclose(found, probability, atol=1e-5)
    found = result["class_latent_variance"].values.reshape(3, -1)[:, seen].T
    assert_allclose(found, variance, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("encoding", "name", "meanings"),
    [("cf", "cloud_binary_mask", "clear cloud"), ("pps", None, "cloud_free cloudy")],
)
def test_a_map_of_three_classes_one_of_which_is_cloud_also_has_a_cloud_mask(
    surfaces, image, encoding, name, meanings
):
    legend = Legend(SURFACES, names=("land", "open water", "white"), cloud="white")
    plain = map_scene(surfaces, image)
    result = map_scene(surfaces, image, legend=legend, encoding=encoding)
    assert set(result) == {*plain, "cloud_mask", "cloud_probability"}
    assert_array_equal(result["class"], plain["class"])
    probability = plain["class_probability"].sel(class_name="snow").values
    assert_array_equal(result["cloud_probability"].values, probability)
    assert_array_equal(result["cloud_mask"].values == 1, probability > 0.5)
    assert_array_equal(result["cloud_mask"].values == 255, np.isnan(probability))
    assert result["cloud_mask"].attrs["flag_meanings"].startswith(meanings)
    assert result["cloud_mask"].attrs.get("standard_name") == name
    assert result["quality_flag"].attrs["long_name"] == "quality of the classes"


# Files


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_flags_of_three_classes_are_read_back_with_xarray(surfaces, image, tmp_path, suffix):
    result = map_scene(surfaces, image.chunk(y=16))
    write_dataset(result, tmp_path / f"map{suffix}")
    engine = {".nc": "netcdf4", ".zarr": "zarr"}[suffix]
    with xr.open_dataset(tmp_path / f"map{suffix}", engine=engine) as found:
        if suffix == ".nc":
            found = found.set_xindex("class_name")
        codes = found["class"]
        assert list(codes.attrs["flag_values"]) == [0, 1, 2]
        assert codes.attrs["flag_meanings"].split() == ["land", "open_water", "snow"]
        assert np.isnan(codes.values[3, 4])
        water = found["class_probability"].sel(class_name="open water")
        assert_array_equal(water, result["class_probability"].sel(class_name="open water"))
    found = open_map(tmp_path / f"map{suffix}")["class_probability"]
    assert_array_equal(found["class_name"], result["class_name"])
    assert found.dims == result["class_probability"].dims


def test_three_classes_are_read_back_with_rasterio_as_bytes_with_colours(
    surfaces, image, tmp_path
):
    result = map_scene(surfaces, image.chunk(y=16)).compute()
    write_dataset(result, tmp_path / "map.tif")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "map.qml", "map.tif", "map.tif.aux.xml", "map_layers.tif", "map_quality_flag.tif",
    ]  # fmt: skip
    legend = Legend.of(surfaces)
    with rasterio.open(tmp_path / "map.tif") as found:
        assert found.dtypes == ("uint8",)
        assert found.nodata == 255
        assert found.descriptions == ("class",)
        assert_array_equal(found.read(1), result["class"].values)
        colours = found.colormap(1)
        assert found.tags(1)["flag_meanings"] == legend.flag_meanings
        assert found.crs.to_epsg() == 32629
    for code, colour in zip(legend.codes, legend.colours, strict=True):
        assert "#{:02x}{:02x}{:02x}".format(*colours[code][:3]) == colour
    with rasterio.open(tmp_path / "map_layers.tif") as found:
        assert set(found.dtypes) == {"float32"}
        bands = dict(zip(found.descriptions, found.read(), strict=True))
    for name in ("class_probability", "class_latent_variance"):
        for label in SURFACES:
            band = bands[f"{name}_{label.replace(' ', '_')}"]
            assert_array_equal(band, result[name].sel(class_name=label).values)
    assert_array_equal(bands["class_entropy"], result["class_entropy"].values)
    with rasterio.open(tmp_path / "map_quality_flag.tif") as found:
        assert found.dtypes == ("uint8",)
        assert_array_equal(found.read(1), result["quality_flag"].values)
