"""Maps of one image as planes of bytes, whatever file they are in."""

import numpy as np
import pytest
import rasterio
import xarray as xr
from numpy.testing import assert_array_equal

from undulatus.errors import SceneError
from undulatus.products.browse.image_map import (
    colour_bands,
    dataset_map,
    deviation_bytes,
    open_picture,
    raster_map,
    sample_windows,
    scene_bands,
)
from undulatus.scenes.files.opening import open_map
from undulatus.scenes.files.windows import raster_bands
from undulatus.scenes.files.writing import write_dataset

WINDOW = slice(5, 300), slice(20, 1300)


@pytest.fixture(scope="module")
def clouds(classes):
    """A map of clouds on the same grid."""
    probability = classes["class_probability"].isel(class_name=2, drop=True)
    probability.attrs["long_name"] = "probability of cloud"
    mask = (probability > 0.5).where(probability.notnull(), 255).astype(np.uint8)
    return xr.Dataset(
        {
            "cloud_mask": mask,
            "cloud_probability": probability,
            "cloud_latent_variance": 0.5 * probability,
        }
    )


def values_of(byte):
    """Return deviations from their bytes, as the page computes them."""
    return 1e-3 * 1e5 ** (byte / 254.0)


def test_planes_are_classes_probabilities_deviation_and_outside(class_map, classes):
    maps = raster_map(class_map)
    assert maps.planes == ("class", *("probability",) * 3, "deviation", "outside")
    assert [each.name for each in maps.classes] == ["open water", "land", "ice"]
    assert [each.colour for each in maps.classes] == ["#0072b2", "#c8a165", "#7fc4e0"]
    planes = maps.read(*WINDOW)
    cut = classes.isel(y=WINDOW[0], x=WINDOW[1])
    missing = cut["class"].values == 255
    assert_array_equal(planes[0], np.where(missing, 255, cut["class"].values // 10 - 1))
    probability = cut["class_probability"].values
    # Half a step of the 254.
    assert np.abs(planes[1:4] / 254.0 - probability)[:, ~missing].max() <= 0.5 / 254 + 1e-6
    shown = np.take_along_axis(
        cut["class_latent_variance"].values, np.where(missing, 0, planes[0])[None], axis=0
    )[0]
    # Half a step of 254 on five decades is a factor of exp(0.0227).
    ratio = values_of(planes[4]) / np.sqrt(shown)
    assert np.abs(np.log(ratio[~missing])).max() <= 0.5 * np.log(1e5) / 254 + 1e-5
    outside = np.where(cut["quality_flag"].values & 2, 254, 0)
    assert_array_equal(planes[5][~missing], outside[~missing])
    assert (planes[:, missing] == 255).all()


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_map_has_the_same_planes_in_every_file_and_order(
    class_map, classes, tmp_path, suffix, turned
):
    path = tmp_path / f"map{suffix}"
    given = classes.isel(y=slice(None, None, -1)) if turned else classes.expand_dims(time=1)
    write_dataset(given, path)
    maps = dataset_map(open_map(path), path)
    expected = raster_map(class_map)
    assert maps.classes == expected.classes
    assert maps.planes == expected.planes
    assert_array_equal(maps.read(*WINDOW), expected.read(*WINDOW))
    assert maps.grid.almost_equals(expected.grid, maps.shape)


def test_two_classes_have_one_probability(classes, tmp_path):
    attrs = classes["class"].attrs
    two = classes.drop_dims("class_name").assign(
        {name: classes[name].isel(class_name=1, drop=True) for name in ("class_probability",)}
    )
    flags = {
        "flag_values": attrs["flag_values"][:2],
        "flag_meanings": "sea land",
        "flag_colors": "#000000 #ffffff",
    }
    two["class"] = two["class"].where(two["class"] != 30, 20).assign_attrs(attrs | flags)
    write_dataset(two, tmp_path / "map.tif")
    maps = raster_map(tmp_path / "map.tif")
    assert maps.planes == ("class", "probability", "outside")
    assert [each.name for each in maps.classes] == ["sea", "land"]


@pytest.mark.parametrize("suffix", [".tif", ".nc"])
def test_in_a_map_of_clouds_the_class_is_that_of_the_larger_probability(clouds, tmp_path, suffix):
    path = tmp_path / f"map{suffix}"
    write_dataset(clouds, path)
    maps = raster_map(path) if suffix == ".tif" else dataset_map(open_map(path), path)
    assert [each.name for each in maps.classes] == ["clear", "cloud"]
    assert maps.planes == ("class", "probability", "deviation")
    planes = maps.read(slice(0, 300), slice(0, 1300))
    assert_array_equal(planes[0], clouds["cloud_mask"].values)


def test_two_classes_of_which_neither_is_cloud_are_not_called_so(clouds, tmp_path):
    clouds = clouds.copy()
    named = clouds["cloud_probability"].assign_attrs(long_name="probability of class 1")
    write_dataset(clouds.assign(cloud_probability=named), tmp_path / "map.tif")
    names = [each.name for each in raster_map(tmp_path / "map.tif").classes]
    assert names == ["class 0", "class 1"]


def test_a_map_of_classes_may_have_the_probability_of_cloud_beside_them(
    classes, clouds, class_map, tmp_path
):
    both = classes.assign(clouds[["cloud_mask", "cloud_probability"]])
    write_dataset(both, tmp_path / "map.tif")
    maps = raster_map(tmp_path / "map.tif")
    expected = raster_map(class_map)
    assert maps.classes == expected.classes
    assert_array_equal(maps.read(*WINDOW), expected.read(*WINDOW))
    with pytest.raises(SceneError, match="the first file that it named"):
        raster_map(tmp_path / "map_layers.tif")


def test_a_map_without_its_layers_has_classes_alone(class_map, tmp_path):
    (tmp_path / "alone.tif").write_bytes(class_map.read_bytes())
    maps = raster_map(tmp_path / "alone.tif")
    assert maps.planes == ("class",)
    assert maps.read(*WINDOW).shape == (1, 295, 1280)


def test_what_is_not_a_map_is_an_error_that_says_what_to_give(image, class_map):
    with pytest.raises(SceneError, match=r"image\.tif is not a map: .*undulatus map"):
        raster_map(image)
    with pytest.raises(SceneError, match="the first file that it named"):
        raster_map(class_map.with_name("map_layers.tif"))
    spectra = xr.Dataset({"class": ("sample", [1, 2])})
    with pytest.raises(SceneError, match=r"not a map of an image: .* sample"):
        dataset_map(spectra, class_map)


def test_layers_of_another_map_are_refused(class_map, classes, tmp_path):
    write_dataset(classes.isel(y=slice(0, 100)), tmp_path / "small.tif")
    path = tmp_path / "map.tif"
    path.write_bytes(class_map.read_bytes())
    (tmp_path / "small_layers.tif").rename(tmp_path / "map_layers.tif")
    with pytest.raises(SceneError, match=r"map_layers\.tif is not on the grid"):
        raster_map(path)


def test_deviations_beyond_the_scale_are_its_ends_and_unknown_ones_missing():
    variance = np.array([0.0, 1e-9, 1e-6, 1e4, 1e9, np.nan, -1.0], np.float32)
    assert deviation_bytes(variance).tolist() == [0, 0, 0, 254, 254, 255, 255]


# The image


def test_the_picture_is_bright_between_the_percentiles_and_missing_at_nodata(image, class_map):
    maps = raster_map(class_map)
    picture = open_picture(image, maps)
    assert picture.shown == (2, 1, 0)
    values = picture.bands.read(slice(0, 300), slice(0, 1300))
    colours = picture.colours(values)
    missing = values[0] == 0
    assert ((colours == 255) == missing).all()
    for plane, band in enumerate(picture.shown):
        known = values[band][~missing]
        assert (colours[plane][values[band] > np.percentile(known, 99)] == 254).all()
        assert (colours[plane][~missing][known < np.percentile(known, 1)] == 0).all()
        order = np.argsort(known, kind="stable")
        assert (np.diff(colours[plane][~missing][order].astype(int)) >= 0).all()


def test_an_image_in_a_dataset_gives_the_picture_of_the_raster(image, class_map, tmp_path):
    maps = raster_map(class_map)
    picture = open_picture(image, maps)
    values = picture.bands.read(slice(0, 300), slice(0, 1300)).astype(np.float32)
    values[values == 0] = np.nan
    named = zip(picture.bands.names, values, strict=True)
    dataset = xr.Dataset({name: (("y", "x"), band) for name, band in named})
    dataset["land_mask"] = dataset["B02"]
    dataset["label"] = dataset["B02"].assign_attrs(flag_values=[1, 2])
    write_dataset(dataset, tmp_path / "image.nc")
    other = open_picture(tmp_path / "image.nc", maps)
    assert other.bands.names == picture.bands.names
    window = slice(0, 40), slice(0, 90)
    found, expected = (each.colours(each.bands.read(*window)) for each in (other, picture))
    assert_array_equal(found, expected)


def test_an_image_on_another_grid_is_refused(image, class_map, classes, tmp_path):
    write_dataset(classes.isel(x=slice(0, 900)), tmp_path / "cut.tif")
    with pytest.raises(SceneError, match="300 x 1300 pixels, but the map 300 x 900"):
        open_picture(image, raster_map(tmp_path / "cut.tif"))
    write_dataset(classes.assign_coords(x=classes["x"] + 500.0), tmp_path / "moved.tif")
    with pytest.raises(SceneError, match="lies elsewhere"):
        open_picture(image, raster_map(tmp_path / "moved.tif"))


def test_bands_may_be_in_one_variable(tmp_path):
    values = np.random.default_rng(0).random((3, 20, 30))
    image = xr.DataArray(values, dims=("band", "y", "x"), name="image")
    named = scene_bands(image.assign_coords(band=["a", "b", "c"]).to_dataset(), tmp_path)
    assert named.names == ("a", "b", "c")
    assert_array_equal(named.read(slice(0, 20), slice(5, 30)), values[:, :, 5:])
    numbered = scene_bands(image.assign_coords(band=[1, 2, 3]).to_dataset(), tmp_path)
    assert numbered.names == ("band_1", "band_2", "band_3")
    with pytest.raises(SceneError, match="no bands"):
        scene_bands(image.isel(y=0).to_dataset(), tmp_path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("B01", "B02", "B03", "B04"), (3, 2, 1)),
        (("SR_B2", "SR_B3", "SR_B4", "SR_B5"), (2, 1, 0)),
        (("B2", "B3", "B4"), (2, 1, 0)),
        (("Blue", "Green", "Red", "NIR"), (2, 1, 0)),
        (("a", "b", "c", "d"), (0, 1, 2)),
        (("VV", "VH"), (0,)),
    ],
)
def test_red_green_and_blue_are_known_by_name(names, expected):
    assert colour_bands(names) == expected


CENTRES = (418.2, 493.7, 558.8, 663.1, 806.6)


@pytest.mark.parametrize(
    "attrs",
    [
        [{"wavelength": value} for value in CENTRES],
        [{"wavelength": f"{value} nm"} for value in CENTRES],
        [{"wavelength": value / 1000} for value in CENTRES],
        [{"wavelength": str(v / 1000), "wavelength_units": "Micrometers"} for v in CENTRES],
        [{"wavelength": str(value), "wavelength_units": "Nanometers"} for value in CENTRES],
        [{"CENTRAL_WAVELENGTH_UM": f"{value / 1000:.4f}"} for value in CENTRES],
        [{"radiation_wavelength": np.float32(value)} for value in CENTRES],
    ],
)
def test_true_colour_is_chosen_by_wavelengths_in_any_unit(attrs):
    assert colour_bands(tuple("abcde"), attrs) == (3, 2, 1)


@pytest.mark.parametrize(
    "names",
    [
        tuple(f"Band {i} ({value} Nanometers)" for i, value in enumerate(CENTRES)),
        tuple(f"{value} nm" for value in CENTRES),
        tuple(f"{value / 1000:.4f} µm" for value in CENTRES),
    ],
)
def test_true_colour_is_chosen_by_wavelengths_in_names(names):
    assert colour_bands(names) == (3, 2, 1)


@pytest.mark.parametrize(
    "attrs",
    [
        [{"wavelength": value} for value in (1200, 1600, 2200)],
        [{"wavelength": value} for value in (490, 560, 850)],
        [{"wavelength": text} for text in ("red", "...", "")],
    ],
)
def test_bands_far_from_visible_light_are_shown_in_their_order(attrs):
    assert colour_bands(("a", "b", "c"), attrs) == (0, 1, 2)


def test_wavelengths_are_read_from_the_tags_of_a_file_and_the_coordinates_of_a_dataset(tmp_path):
    values = np.random.default_rng(0).normal(size=(5, 8, 9)).astype(np.float32)
    path = tmp_path / "image.tif"
    with rasterio.open(
        path, "w", driver="GTiff", height=8, width=9, count=5, dtype="float32",
        crs="EPSG:32632", transform=rasterio.Affine(10, 0, 5e5, 0, -10, 5e6),
    ) as file:  # fmt: skip
        file.write(values)
        for band, value in enumerate(CENTRES, 1):
            file.update_tags(band, ns="IMAGERY", CENTRAL_WAVELENGTH_UM=f"{value / 1000:.4f}")
    bands = raster_bands(path)
    assert colour_bands(bands.names, bands.band_attrs) == (3, 2, 1)
    cube = xr.Dataset({"reflectance": (("band", "y", "x"), values)})
    cube = cube.assign_coords(band=np.arange(5), wavelength=("band", list(CENTRES)))
    bands = scene_bands(cube.assign_coords(y=-np.arange(8.0), x=np.arange(9.0)), path)
    assert colour_bands(bands.names, bands.band_attrs) == (3, 2, 1)


def test_bands_to_show_are_chosen_by_name(class_map, image):
    maps = raster_map(class_map)
    names = raster_bands(image).names
    shown = open_picture(image, maps, (names[2], names[0], names[1])).shown
    assert shown == (2, 0, 1)
    assert open_picture(image, maps, (names[1],)).shown == (1,)
    for wrong in (("nowhere",), names[:2]):
        with pytest.raises(SceneError, match=r"Name three of these.*--rgb"):
            open_picture(image, maps, wrong)


@pytest.mark.parametrize("shape", [(1, 1), (100, 3000), (10_980, 10_980)])
def test_samples_are_spread_over_the_image_and_lie_within(shape):
    windows = sample_windows(shape)
    assert len(windows) <= 64
    for axis, size in enumerate(shape):
        edges = [(window[axis].start, window[axis].stop) for window in windows]
        assert all(0 <= start < stop <= size for start, stop in edges)
        assert min(edges)[0] == 0
        assert max(stop for _, stop in edges) == size
