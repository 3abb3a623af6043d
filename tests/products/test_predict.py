"""How the features of a model are found: in images of bands, named variables, GeoTIFF."""

import copy
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import rasterio
import rioxarray
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from undulatus import RFFGPC
from undulatus.errors import InputError, PhaseTooLargeError, SceneError
from undulatus.products.maps import map_scene
from undulatus.products.predict import (
    MISSING,
    MOST_REGIMES,
    predict_block,
    prepare_model,
    quality_attributes,
)
from undulatus.regimes import Regime, RegimeClassifier
from undulatus.scenes import synthetic_sounder
from undulatus.scenes.files.opening import open_map
from undulatus.scenes.files.writing import write_dataset

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
BANDS = ("B02", "B03", "B08")
NAMES = (
    "cloud_mask",
    "cloud_probability",
    "cloud_latent_variance",
    "cloud_training_distance",
    "quality_flag",
)


@pytest.fixture(scope="module")
def image():
    """Three bands of digital numbers, (band, y, x), in a projection."""
    rng = np.random.default_rng(0)
    values = rng.integers(1, 3000, (3, 40, 50)).astype(np.uint16)
    return xr.DataArray(
        values,
        dims=("band", "y", "x"),
        coords={"band": list(BANDS), "y": 40.0 - np.arange(40), "x": np.arange(50.0)},
    ).rio.write_crs("EPSG:32629")


@pytest.fixture(scope="module")
def table(image):
    X = pd.DataFrame(image.values.reshape(3, -1).T, columns=list(BANDS))
    return X, (X["B02"] + X["B08"] > 3000).to_numpy()


@pytest.fixture(scope="module")
def named(table):
    return RFFGPC(10, n_estimators=1, random_state=0).fit(*table)


@pytest.fixture(scope="module")
def nameless(table):
    return RFFGPC(10, n_estimators=1, random_state=0).fit(table[0].to_numpy(), table[1])


def assert_same_map(one, other):
    for name in NAMES:
        assert_allclose(one[name].values, other[name].values, atol=1e-6, rtol=1e-5)


def test_an_image_of_bands_has_the_probabilities_of_its_pixels_as_rows(image, named, table):
    result = map_scene(named, image)
    assert result["cloud_mask"].dims == ("y", "x")
    expected = named.predict_proba(table[0])[:, 1]
    assert_allclose(result["cloud_probability"].values.ravel(), expected, atol=1e-6)
    assert result.rio.crs == image.rio.crs
    assert "band" not in result.coords


def test_bands_are_matched_by_name_in_any_order(image, named):
    more = xr.concat([image, image[:1].assign_coords(band=["B12"])], "band")
    shuffled = more.isel(band=[3, 2, 0, 1])
    assert_same_map(map_scene(named, shuffled), map_scene(named, image))


def test_a_model_without_names_takes_bands_in_their_order(image, named, nameless):
    bare = image.assign_coords(band=[1, 2, 3])
    assert_same_map(map_scene(nameless, bare), map_scene(named, image))
    with pytest.raises(SceneError, match="fitted on 3 features, but was given an image of 2"):
        map_scene(nameless, bare[:2])
    with pytest.raises(SceneError, match=r"knows its bands by name \(B02, B03, B08\)"):
        map_scene(named, bare)


def test_a_missing_band_is_named(image, named):
    with pytest.raises(SceneError, match="missing: B08"):
        map_scene(named, image.sel(band=["B02", "B03"]))


def test_the_same_bands_as_variables_give_the_same_map(image, named):
    variables = image.to_dataset("band")
    assert_same_map(map_scene(named, variables), map_scene(named, image))
    described = xr.Dataset(
        {
            f"band_{i}": image.sel(band=name, drop=True).assign_attrs(long_name=name)
            for i, name in enumerate(BANDS)
        }
    )
    assert_same_map(map_scene(named, described), map_scene(named, image))


@pytest.mark.filterwarnings("ignore:Use `@` matmul:PendingDeprecationWarning")
@pytest.mark.parametrize("masked", [False, True], ids=["raw", "masked"])
def test_a_geotiff_is_mapped_by_its_descriptions_and_its_nodata_has_no_class(
    image, named, tmp_path, masked
):
    values = image.values.copy()
    values[:, :4] = 0
    with rasterio.open(
        tmp_path / "image.tif", "w", driver="GTiff", count=3, height=40, width=50, dtype="uint16",
        nodata=0, crs="EPSG:32629", transform=rasterio.transform.from_origin(0, 40, 1, 1),
    ) as file:  # fmt: skip
        file.write(values)
        file.descriptions = BANDS
    with rioxarray.open_rasterio(
        tmp_path / "image.tif", masked=masked, chunks={"y": 16}
    ) as opened:
        result = map_scene(named, opened).compute()
    assert (result["cloud_mask"].values[:4] == 255).all()
    assert np.isnan(result["cloud_probability"].values[:4]).all()
    assert (result["quality_flag"].values[:4] & MISSING).all()
    expected = map_scene(named, image)
    assert_array_equal(result["cloud_mask"].values[4:], expected["cloud_mask"].values[4:])


def test_masked_pixels_have_no_class(image, named):
    out = xr.DataArray(np.zeros((40, 50), bool), dims=("y", "x"))
    out[3, 4] = True
    result = map_scene(named, image, mask=out)
    assert result["cloud_mask"].values[3, 4] == 255
    assert np.count_nonzero(result["cloud_mask"] == 255) == 1
    lazy = map_scene(named, image.chunk(y=7), mask=out.chunk(x=9)).compute()
    assert_same_map(lazy, result)


def test_a_time_series_of_images_has_the_maps_of_its_images(image, named):
    series = xr.concat([image, image.copy(data=image.values[:, ::-1])], "time")
    result = map_scene(named, series.chunk(time=1))
    assert result["cloud_mask"].dims == ("time", "y", "x")
    assert_same_map(result.isel(time=0).compute(), map_scene(named, image))


def test_a_pipeline_and_a_forest_make_maps(image, table, named):
    pipeline = make_pipeline(
        StandardScaler(), RFFGPC(10, n_estimators=1, standardize=False, random_state=0)
    )
    result = map_scene(pipeline.fit(*table), image.chunk(x=11))
    expected = pipeline.predict_proba(table[0])[:, 1]
    assert_allclose(result["cloud_probability"].values.ravel(), expected, atol=1e-5)
    assert np.isfinite(result["cloud_latent_variance"].values).all()
    forest = RandomForestClassifier(10, random_state=0, n_jobs=2).fit(*table)
    result = map_scene(forest, image)
    expected = forest.predict_proba(table[0])[:, 1]
    assert_allclose(result["cloud_probability"].values.ravel(), expected, atol=1e-6)
    assert result["cloud_latent_variance"].isnull().all()
    # The user's model is not changed for the blocks.
    assert forest.n_jobs == 2
    assert list(forest.feature_names_in_) == list(BANDS)


def test_an_array_without_a_dimension_of_bands_is_refused_with_its_remedy(image, named):
    with pytest.raises(SceneError, match="rename"):
        map_scene(named, image.rename(band="wavelength"))


def test_variables_and_a_model_without_names_are_refused_with_the_remedy(image, nameless):
    with pytest.raises(InputError, match="DataFrame"):
        map_scene(nameless, image.to_dataset("band"))


def test_a_model_of_spectra_refuses_a_scene_and_the_other_way_round(image, nameless):
    model = copy.copy(nameless)
    model.provenance_ = {"chain": "sounder"}
    with pytest.raises(SceneError, match="fitted on spectra, but was given a scene"):
        map_scene(model, image.to_dataset("band"))
    model.provenance_ = {"chain": "landmarks"}
    with pytest.raises(SceneError, match="fitted on a scene, but was given spectra"):
        map_scene(model, synthetic_sounder(4))


def test_more_regimes_than_the_quality_flag_can_number_are_refused():
    regimes = [Regime(f"r{n}", n, n + 1, ("R1",)) for n in range(MOST_REGIMES + 1)]
    most = quality_attributes(SimpleNamespace(regimes_=regimes[:-1]))
    assert most["flag_values"][-1] == MOST_REGIMES << 4
    with pytest.raises(InputError, match=f"{MOST_REGIMES + 1} regimes"):
        quality_attributes(SimpleNamespace(regimes_=regimes))


def test_a_lazy_image_stays_lazy(image, named):
    lazy = map_scene(named, image.chunk(y=10))
    assert all(isinstance(lazy[name].data, da.Array) for name in NAMES)
    assert lazy["cloud_probability"].dtype == np.float32


# Ensembles


@pytest.fixture(scope="module")
def ensemble(table):
    return RFFGPC(5, n_estimators=3, random_state=0).fit(*table)


def test_the_map_of_an_ensemble_shows_where_its_members_disagree(ensemble, image, table):
    result = map_scene(ensemble, image)
    assert tuple(result) == (*NAMES[:3], "cloud_disagreement", *NAMES[3:])
    layer = result["cloud_disagreement"]
    assert layer.dtype == np.float32
    assert layer.attrs["units"] == "1"
    assert "members" in layer.attrs["long_name"]
    assert "cloud_disagreement" in result["cloud_mask"].attrs["ancillary_variables"]
    # The same waves, summed in another way, in single precision.
    expected = ensemble.ensemble_std(table[0])
    assert_allclose(layer.values.ravel(), expected, rtol=1e-4, atol=1e-5)
    probability, variance = ensemble.predict_proba_and_variance(table[0])
    assert_allclose(result["cloud_probability"].values.ravel(), probability[:, 1], atol=1e-5)
    assert_allclose(result["cloud_latent_variance"].values.ravel(), variance, rtol=1e-4)


@pytest.mark.parametrize("suffix", [".nc", ".zarr", ".tif"])
def test_the_disagreement_is_written_to_every_format(ensemble, image, tmp_path, suffix):
    result = map_scene(ensemble, image)
    path = tmp_path / f"map{suffix}"
    write_dataset(result, path)
    if suffix == ".tif":
        with rasterio.open(path.with_stem("map_layers")) as file:
            found = file.read(1 + file.descriptions.index("cloud_disagreement"))
    else:
        found = open_map(path)["cloud_disagreement"].values
    assert_allclose(found, result["cloud_disagreement"].values, rtol=1e-6)


def test_a_pixel_without_values_or_of_a_single_model_has_no_disagreement(ensemble, named, table):
    values = table[0].to_numpy(np.float32)[:4].copy()
    values[1, 0] = np.nan
    several, single = (
        predict_block(prepare_model(model), values, BANDS, None) for model in (ensemble, named)
    )
    assert_array_equal(np.isnan(several["disagreement"]), [False, True, False, False])
    assert np.isnan(single["disagreement"]).all()


def test_regimes_mix_the_disagreement_of_their_ensembles_by_their_shares(ensemble, table):
    values = table[0].to_numpy(np.float32)[:300]
    regimes = (Regime("day", 0.0, 90.0, BANDS), Regime("night", 90.0, 180.0, BANDS))
    other = RFFGPC(5, n_estimators=2, random_state=1).fit(*table)
    mixed = RegimeClassifier.from_fitted({"day": ensemble, "night": other}, regimes, blend=4.0)
    sun = np.linspace(80.0, 100.0, len(values))
    found = predict_block(prepare_model(mixed), values, BANDS, sun)["disagreement"]
    X = table[0][:300].astype(np.float32)
    night = np.clip((sun - 86.0) / 8.0, 0.0, 1.0)
    each = [model.ensemble_std(X) for model in (ensemble, other)]
    assert_allclose(found, (1.0 - night) * each[0] + night * each[1], rtol=1e-4, atol=1e-5)


# Names and order of bands


def test_a_model_without_names_refuses_named_bands_in_any_order(image, nameless):
    for shown in (image, image.isel(band=[2, 0, 1])):
        with pytest.raises(SceneError) as error:
            map_scene(nameless, shown)
        found = ", ".join(shown["band"].values)
        for words in (f"found: {found}", "RFFGPC of 3 features", "DataFrame", "drop_vars"):
            assert words in str(error.value)
    dropped = image.drop_vars("band")
    assert_array_equal(
        map_scene(nameless, dropped)["cloud_mask"],
        map_scene(nameless, image.assign_coords(band=[1, 2, 3]))["cloud_mask"],
    )


def test_a_model_without_names_refuses_the_descriptions_of_a_geotiff(image, nameless):
    described = image.assign_coords(band=[1, 2, 3]).assign_attrs(long_name=BANDS)
    with pytest.raises(SceneError, match=r'B02, B03, B08(.|\n)*del image.attrs\["long_name"\]'):
        map_scene(nameless, described)


def test_a_model_without_names_refuses_bands_in_another_order_than_their_numbers(image, nameless):
    turned = image.assign_coords(band=[1, 2, 3]).isel(band=[2, 1, 0])
    with pytest.raises(SceneError, match=r"found: 3, 2, 1\n.*sortby\(\"band\"\)"):
        map_scene(nameless, turned)


def test_two_bands_of_one_name_are_refused(image, named):
    twice = xr.concat([image, image[:1]], "band")
    with pytest.raises(SceneError, match=r"\(B02\)(.|\n)*found: B02, B03, B08, B02"):
        map_scene(named, twice)


def test_two_variables_of_one_description_are_refused(image, named):
    described = image.to_dataset("band").rename(B02="one")
    described["one"].attrs["long_name"] = "B02"
    map_scene(named, described)
    described["other"] = described["one"]
    with pytest.raises(SceneError, match=r"needs B02, but several .*: one, other"):
        map_scene(named, described)


# Pixels and masks that are not as they should be


@pytest.mark.parametrize("value", [1e20, -1e30, 1e100])
@pytest.mark.parametrize("n_estimators", [1, 2])
@pytest.mark.parametrize("regimes", [False, True], ids=["one classifier", "regimes"])
@pytest.mark.parametrize("warp", [False, True], ids=["linear", "warped"])
def test_a_value_too_large_to_classify_is_a_missing_pixel(
    image, table, value, n_estimators, regimes, warp
):
    model = RFFGPC(6, n_estimators=n_estimators, warp=warp, random_state=0).fit(*table)
    given = image.astype(np.float64).to_dataset("band")
    given["solar_zenith_angle"] = image[0] * 0.0 + 50.0
    if regimes:
        halves = (Regime("high", 0.0, 49.0, BANDS), Regime("low", 49.0, 90.0, BANDS))
        members = {regime.name: model for regime in halves}
        model = RegimeClassifier.from_fitted(members, halves, blend=5.0)
    expected = map_scene(model, given)
    given["B03"][7, 9] = value
    result = map_scene(model, given)
    for layer in ("cloud_probability", "cloud_latent_variance"):
        found, usual = result[layer].values.copy(), expected[layer].values.copy()
        assert np.isnan(found[7, 9])
        found[7, 9] = usual[7, 9] = 0.0
        # Rows are summed in other blocks of BLAS where one is left out.
        assert_allclose(found, usual, rtol=1e-5, atol=1e-6)
    assert result["cloud_mask"].values[7, 9] == 255
    assert result["quality_flag"].values[7, 9] & MISSING
    assert np.count_nonzero(result["quality_flag"].values & MISSING) == 1


def test_a_map_of_nothing_but_values_too_large_is_missing(image, table):
    model = RFFGPC(6, n_estimators=1, warp=False, random_state=0).fit(*table)
    result = map_scene(model, xr.full_like(image, 1e30, dtype=np.float32), allow_outside=True)
    assert np.all(result["quality_flag"].values & MISSING)


@pytest.mark.parametrize("far", [0, 3, 8])
def test_too_far_says_which_rows_cannot_be_predicted(table, far):
    X = table[0].to_numpy(dtype=np.float64)[:8].copy()
    model = RFFGPC(6, n_estimators=1, warp=False, random_state=0).fit(
        table[0].to_numpy(), table[1]
    )
    X[:far, 1] = 1e30
    assert_array_equal(model.out_of_domain(X), np.arange(8) < far)
    if far:
        with pytest.raises(PhaseTooLargeError):
            model.predict(X)


def test_bands_may_be_named_in_numpys_own_text(image, named):
    given = image.assign_coords(band=np.array(BANDS, dtype=np.dtypes.StringDType()))
    assert_same_map(map_scene(named, given), map_scene(named, image))


def test_a_map_numbers_more_regimes_than_eight_bits_can(image, table):
    edges = np.linspace(0.0, 90.0, 131)
    regimes = [Regime(f"r{i}", *edges[i : i + 2], BANDS) for i in range(130)]
    member = RFFGPC(4, n_estimators=1, random_state=0).fit(*table)
    model = RegimeClassifier.from_fitted({own.name: member for own in regimes}, regimes)
    given = image.to_dataset("band")
    given["solar_zenith_angle"] = image[0] * 0.0 + np.linspace(0.0, 89.9, 50)
    result = map_scene(model, given, allow_outside=True)
    assert result["quality_flag"].dtype == np.uint16
    assigned = model.assign(given["solar_zenith_angle"].values)
    assert_array_equal(result["quality_flag"].values >> 4, assigned + 1)
    alone = map_scene(member, given, allow_outside=True)
    assert_array_equal(result["cloud_mask"], alone["cloud_mask"])


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda mask: mask[:20].drop_vars("y"), "has 20 pixels along y, and the data 40"),
        (lambda mask: mask.assign_coords(x=mask.x + 0.5), "other coordinates along x"),
        (lambda mask: mask.expand_dims(scan=2), "a dimension 'scan'"),
    ],
)
def test_a_mask_of_other_pixels_is_refused(image, named, change, found):
    mask = xr.zeros_like(image[0], dtype=bool).drop_vars("band")
    with pytest.raises(SceneError, match=f"The mask .*{found}.* with their coordinates"):
        map_scene(named, image, mask=change(mask))


def test_a_mask_of_part_of_the_pixels_leaves_out_no_others(image, named):
    mask = xr.zeros_like(image[0], dtype=bool).drop_vars("band")
    mask[5:9, 10:20] = True
    expected = map_scene(named, image, mask=mask)
    assert np.count_nonzero(expected["quality_flag"].values & MISSING) == 40
    for part in (mask[:20], mask[3:9, 8:30], mask[::-1, ::-1]):
        assert_same_map(map_scene(named, image, mask=part), expected)


def test_a_mask_of_all_pixels_is_taken_though_coordinates_repeat(image, named):
    twice = image.assign_coords(y=image.y // 2)
    mask = xr.zeros_like(twice[0], dtype=bool).drop_vars("band")
    mask[:4] = True
    result = map_scene(named, twice, mask=mask)
    assert np.count_nonzero(result["quality_flag"].values & MISSING) == 200


def test_a_mask_that_is_no_data_array_is_refused_with_its_remedy(image, named):
    with pytest.raises(SceneError, match=r"xarray.DataArray\(mask, dims=\('y', 'x'\)\)"):
        map_scene(named, image, mask=np.zeros((40, 50), dtype=bool))


# Bands of other types and grids


@pytest.mark.parametrize("dtype", ["complex64", "U8", "O", "M8[s]"])
def test_bands_that_are_not_real_numbers_are_refused(image, named, dtype):
    with pytest.raises(SceneError, match=r"B02 holds .* not real numbers"):
        map_scene(named, image.to_dataset("band").astype(int).astype(dtype))


def test_a_band_on_a_coarser_grid_is_refused_with_both_grids(image, named):
    scene = image.to_dataset("band")
    coarse = scene["B08"][::2, ::2].rename(y="y20", x="x20").drop_vars(["y20", "x20"])
    with pytest.raises(SceneError, match=r"B08: 20 along y20, 25 along x20\n  B02: 40 along y"):
        map_scene(named, scene.assign(B08=coarse))


def test_bands_that_share_no_pixel_are_refused(image, named):
    bands = [image.sel(band=name, drop=True).rename(name) for name in BANDS]
    bands[2] = bands[2].assign_coords(x=bands[2].x + 0.5)
    joined = xr.merge(bands, join="outer")
    with pytest.raises(SceneError, match=r"No pixel has a value of every band.*B08 in 2,000"):
        map_scene(named, joined)
    missing = image.where(image.band != "B08").to_dataset("band")
    assert np.all(map_scene(named, missing)["quality_flag"].values & MISSING)


def test_the_bands_names_may_be_bytes(image, named):
    given = image.assign_coords(band=np.array(BANDS, dtype="S"))
    assert_same_map(map_scene(named, given), map_scene(named, image))


def test_a_band_may_be_the_same_number_everywhere(image, named):
    scene = image.to_dataset("band")
    constant = scene.assign(B02=((), np.float32(300.0)))
    spread = scene.assign(B02=xr.full_like(scene["B02"], 300.0))
    assert_same_map(map_scene(named, constant), map_scene(named, spread))


def test_a_mask_of_the_same_pixels_in_any_order_of_dimensions_leaves_them_out(image, named):
    mask = (image[0] * 0).astype(bool).drop_vars("band")
    mask[3, 4] = True
    result = map_scene(named, image, mask=mask.transpose("x", "y"))
    assert np.flatnonzero(result["quality_flag"].values & MISSING).tolist() == [3 * 50 + 4]
