"""Three synthetic days and made-up maps of them, an image and a made-up map of it, Chromium."""

import shutil

import numpy as np
import pytest
import rasterio
import rioxarray  # noqa: F401 (gives datasets their .rio)
import xarray as xr
from rasterio.windows import Window

from undulatus.scenes.files.writing import write_dataset


@pytest.fixture(scope="session")
def browser():
    """Chromium, steered by selenium, without a window."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("no chromium and chromedriver (apt-get install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--force-color-profile=srgb", "--hide-scrollbars"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Without the driver's path selenium would try to download one.
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture(scope="session")
def scene(days):
    """Three days of a scene, with a gap of ten acquisitions on the first."""
    kept = np.delete(np.arange(3 * 96), slice(20, 30))
    return days.isel(time=kept).compute()


@pytest.fixture(scope="session")
def maps(scene):
    """A made-up map of the three days: the truth, less certain, with one pixel missing."""
    probability = (0.1 + 0.8 * scene["cloud_truth"]).astype(np.float32)
    probability[:, 3, 4] = np.nan
    mask = (probability > 0.5).where(probability.notnull(), 255).astype(np.uint8)
    return xr.Dataset(
        {
            "cloud_mask": mask,
            "cloud_probability": probability,
            "cloud_latent_variance": 0.5 * probability,
        },
        attrs=scene.attrs,
    )


CLASSES = {2: "sea", 3: "land", 9: "cloud"}
"""Codes and names of a made-up map of classes."""


@pytest.fixture(scope="session")
def class_flags():
    """Attributes of the classes, in a map and in a label."""
    return {
        "flag_values": np.array(list(CLASSES), np.uint8),
        "flag_meanings": " ".join(CLASSES.values()),
        "flag_colors": "#0072b2 #c8a165 #f7f7f7",
    }


@pytest.fixture(scope="session")
def labelled_scene(scene, class_flags):
    """The three days with a label of three classes: the Level-2 mask over land and sea."""
    surface = scene["land_mask"].astype(int) + 2
    label = xr.where(scene["cloud_mask_l2"] == 1, 9, surface).transpose("time", "y", "x")
    return scene.assign(surface=label.astype(np.uint8).assign_attrs(class_flags))


@pytest.fixture(scope="session")
def class_maps(scene, class_flags):
    """A made-up map of three classes: the true clouds, with one pixel missing."""
    surface = scene["land_mask"].astype(int) + 2
    truth = xr.where(scene["cloud_truth"] == 1, 9, surface).transpose("time", "y", "x")
    names = xr.DataArray(list(CLASSES.values()), dims="class_name")
    each = xr.DataArray(list(CLASSES), dims="class_name", coords={"class_name": names})
    probability = xr.where(truth == each, 0.7, xr.where(each == 9, 0.25, 0.05))
    # Of a cloudy pixel, land and sea share the rest.
    probability = (probability / probability.sum("class_name")).astype(np.float32)
    probability = probability.transpose("class_name", "time", "y", "x")
    probability[:, :, 3, 4] = np.nan
    codes = truth.where(probability.isel(class_name=0).notnull(), 255).astype(np.uint8)
    return xr.Dataset(
        {
            "class": codes.drop_vars("class_name").assign_attrs(class_flags),
            "class_probability": probability,
            "class_latent_variance": 2.0 * probability,
        },
        attrs=scene.attrs,
    )


# One image

HEIGHT, WIDTH = 300, 1300
"""Two by six tiles, the last of them cut; three levels above them, and two blocks."""

BANDS = ("B02", "B03", "B04", "B08")

CRS = "EPSG:32630"


@pytest.fixture(scope="session")
def image(tmp_path_factory):
    """An image of digital numbers in a GeoTIFF; some pixels are missing."""
    path = tmp_path_factory.mktemp("image") / "image.tif"
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    bands = np.stack([1000 + 400 * n + x + 2 * y + 37 * n * (x % 7) for n in range(len(BANDS))])
    bands[:, 10:20, 30:60] = 0
    profile = {
        **{"driver": "GTiff", "height": HEIGHT, "width": WIDTH, "count": len(BANDS)},
        **{"dtype": "uint16", "nodata": 0, "crs": CRS},
        "transform": rasterio.Affine(10.0, 0.0, 500_000.0, 0.0, -10.0, 4_500_000.0),
    }
    with rasterio.open(path, "w", **profile) as file:
        file.descriptions = BANDS
        file.scales, file.offsets = (1e-4,) * len(BANDS), (-0.1,) * len(BANDS)
        file.write(bands.astype(np.uint16), window=Window(0, 0, WIDTH, HEIGHT))
    return path


@pytest.fixture(scope="session")
def classes(image):
    """A made-up map of the image with three classes, as ``map_scene`` returns it."""
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    latent = np.stack([np.sin(x / 90.0), np.cos(y / 50.0), np.sin((x + y) / 70.0)])
    p = np.exp(3.0 * latent)
    p = (p / p.sum(axis=0)).astype(np.float32)
    missing = np.zeros((HEIGHT, WIDTH), bool)
    missing[10:20, 30:60] = True
    codes = np.where(missing, 255, np.array([10, 20, 30])[np.argmax(p, axis=0)])
    p[:, missing] = np.nan
    variance = (0.05 + 0.5 * p * (1.0 - p)).astype(np.float32)
    quality = np.where(missing, 8, np.where(x > 1200, 2, 0)).astype(np.uint8)
    flags = {
        "flag_values": np.array([10, 20, 30], np.uint8),
        "flag_meanings": "open_water land ice",
        "flag_colors": "#0072b2 #c8a165 #7fc4e0",
        "_FillValue": np.uint8(255),
    }
    each = ("class_name", "y", "x")
    return xr.Dataset(
        {
            "class": (("y", "x"), codes.astype(np.uint8), flags),
            "class_probability": (each, p),
            "class_latent_variance": (each, variance),
            "quality_flag": (("y", "x"), quality),
        },
        coords={
            "y": 4_500_000.0 - 10.0 * np.arange(HEIGHT) - 5.0,
            "x": 500_000.0 + 10.0 * np.arange(WIDTH) + 5.0,
            "class_name": np.array(["open water", "land", "ice"], object),
        },
        attrs={"scene": str(image)},
    ).rio.write_crs(CRS)


@pytest.fixture(scope="session")
def class_map(classes, tmp_path_factory):
    """The map in a GeoTIFF, with its other layers beside it."""
    path = tmp_path_factory.mktemp("map") / "map.tif"
    write_dataset(classes, path)
    return path
