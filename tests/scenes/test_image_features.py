"""Features of images: bands by name, indices, windows; the same for any chunks."""

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from undulatus.errors import InputError, MissingBandsError
from undulatus.scenes.image_features import ImageFeatures, choose_bands


@pytest.fixture
def image(small_image):
    values = small_image.values.copy()
    values[1, 20, 30] = np.nan
    return xr.DataArray(
        values, dims=("band", "y", "x"), coords={"band": np.array(small_image.BANDS, object)}
    )


@pytest.fixture
def recipe(small_image):
    return ImageFeatures.choose(small_image.BANDS, indices=("ndvi", "NDWI"), windows=(3, 5))


def test_indices_are_those_of_their_formulas(image, recipe):
    assert recipe.names[:6] == ("B02", "B03", "B04", "B08", "NDVI", "NDWI")
    _, green, red, nir = image.values.astype(float)
    features = recipe.of(image)
    assert_allclose(features.sel(feature="NDVI"), (nir - red) / (nir + red), atol=1e-6)
    assert_allclose(features.sel(feature="NDWI"), (green - nir) / (green + nir), atol=1e-6)
    assert features.sizes["feature"] == len(recipe.names) == 4 + 2 + 2 * 2 * 4


@pytest.mark.parametrize("width", [3, 5])
def test_windows_are_means_and_deviations_of_what_is_there(image, recipe, width):
    features, half = recipe.of(image), width // 2
    for row, column in ((40, 50), (0, 0), (21, 31), (89, 119)):
        around = image.sel(band="B03").values[
            max(row - half, 0) : row + half + 1, max(column - half, 0) : column + half + 1
        ]
        place = {"y": row, "x": column}
        assert_allclose(
            features.sel(feature=f"B03_mean{width}").isel(place), np.nanmean(around), rtol=1e-5
        )
        assert_allclose(
            features.sel(feature=f"B03_std{width}").isel(place), np.nanstd(around), rtol=1e-4
        )
    assert np.isnan(features.sel(feature="B03_mean3").isel(y=20, x=30))


@given(st.integers(1, 90), st.integers(1, 120))
def test_features_do_not_depend_on_chunks(small_image, height, width):
    recipe = ImageFeatures.choose(small_image.BANDS, indices=("NDVI",), windows=(5,))
    image = xr.DataArray(
        small_image.values,
        dims=("band", "y", "x"),
        coords={"band": np.array(small_image.BANDS, object)},
    )
    # Few chunks only, so that examples are fast.
    chunks = {"y": max(height, 20), "x": max(width, 20), "band": 3}
    assert_array_equal(recipe.of(image.chunk(chunks)).values, recipe.of(image).values)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_some_pixels_have_the_features_that_they_have_in_the_whole(small_image, seed, lazy):
    recipe = ImageFeatures.choose(small_image.BANDS, indices=("NDVI",), windows=(3,))
    image = xr.DataArray(
        small_image.values,
        dims=("band", "y", "x"),
        coords={"band": np.array(small_image.BANDS, object)},
    )
    rng = np.random.default_rng(seed)
    row, column = rng.integers(0, 90, 40), rng.integers(0, 120, 40)
    gathered = recipe.gather(image.chunk({"y": 50, "x": 50}) if lazy else image, row, column)
    assert_array_equal(gathered, recipe.of(image).values[row, column])


def test_bands_are_taken_by_name_from_any_order(image, recipe):
    mixed = image.isel(band=[2, 0, 3, 1])
    assert_array_equal(recipe.of(mixed).values, recipe.of(image).values)
    with pytest.raises(MissingBandsError, match="missing: B04"):
        recipe.of(image.isel(band=[0, 1, 3]))


def test_a_recipe_is_kept_in_plain_values(recipe):
    assert ImageFeatures.from_dict(recipe.as_dict()) == recipe
    assert recipe.as_dict()["roles"] == {"N": "B08", "R": "B04", "G": "B03"}


@pytest.mark.parametrize(
    ("bands", "platform"),
    [
        (("red", "nir"), ""),
        (("Red", "NIR08"), ""),
        (("SR_B4", "SR_B5", "SR_B6"), ""),
        (("SR_B3", "SR_B4"), ""),  # Landsat 7
        (("B4", "B5"), "LANDSAT_8"),
        (("B4", "B8"), "Sentinel-2A"),
        (("B3", "B4"), "LANDSAT_5"),
    ],
)
def test_red_and_near_infrared_are_known_by_their_names(bands, platform):
    recipe = ImageFeatures.choose(bands, indices=("NDVI",), platform=platform)
    assert (recipe.roles["R"], recipe.roles["N"]) == bands[:2]


def test_what_cannot_be_computed_is_said(small_image):
    with pytest.raises(InputError, match="no spectral index 'ndvy'"):
        ImageFeatures.choose(small_image.BANDS, indices=("ndvy",))
    with pytest.raises(InputError, match=r"NDVI needs the band N(.|\n)*--role N=BAND"):
        ImageFeatures.choose(("band_1", "band_2"), indices=("NDVI",))
    with pytest.raises(InputError, match="N=B99: the image has no such band"):
        ImageFeatures.choose(("band_1",), indices=("NDVI",), roles={"N": "B99", "R": "band_1"})
    with pytest.raises(InputError, match="3, 5, 7"):
        ImageFeatures.choose(small_image.BANDS, windows=(4,))
    given = ImageFeatures.choose(
        ("band_1", "band_2"), indices=("NDVI",), roles={"N": "band_2", "R": "band_1"}
    )
    assert given.names[-1] == "NDVI"


SENTINEL = ("B1", "B2", "B3", "B8", "B8A", "B9", "B10", "B11")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("B3,B1", "B3,B1"),
        ("1-3,6", "B1,B2,B3,B9"),
        ("B2..B8", "B2,B3,B8"),
        ("B3..5", "B3,B8,B8A"),
        ("-B10,-B1", "B2,B3,B8,B8A,B9,B11"),
        ("-5-7", "B1,B2,B3,B8,B11"),
        ("B2..B9,-B8A", "B2,B3,B8,B9"),
        ("-B3,B2..B8", "B2,B8"),
        ("B2,1-3", "B2,B1,B3"),
    ],
)
def test_bands_are_named_by_names_numbers_ranges_and_what_to_leave_out(words, expected):
    assert ",".join(choose_bands(words.split(","), SENTINEL)) == expected


def test_a_name_is_a_name_before_it_is_a_number_or_a_range():
    assert choose_bands(["3", "1-2", "-1"], ("3", "1-2", "2", "-1", "x")) == ("3", "1-2", "-1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("B7", "missing: B7"),
        ("9", r"missing: 9\n  found: B1, B2.*numbers from 1 to 8"),
        ("0", "missing: 0"),
        ("B2..B7,-B12", r"missing: B2\.\.B7, B12"),
        ("B8..B2", "end before they begin: give B2 first"),
        ("B1,-B1", "No band is left"),
    ],
)
def test_bands_that_there_are_not_are_listed(words, said):
    with pytest.raises(InputError, match=f"(?s){said}"):
        choose_bands(words.split(","), SENTINEL)
