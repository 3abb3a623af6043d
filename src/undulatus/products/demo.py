"""The demonstration: a real image and a synthetic month, classified, scored and put on a page.

The image is what most users have: an image, polygons, a model, a map, pages to look at it, and
scores beside two baselines. The month is the whole chain: images, a model, scores on held-out
days, maps, and pages to browse them.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import rasterio
import rasterio.features
from rasterio.errors import NotGeoreferencedWarning
from shapely.geometry import shape
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

from undulatus._files import write_text
from undulatus.datasets import load_sentinel2_clouds
from undulatus.errors import DatasetError
from undulatus.products.browse import browse_image, build_site
from undulatus.products.images import fit_image
from undulatus.products.landmarks import RegimeScores, fit_scene, score_scene
from undulatus.products.maps import map_scene
from undulatus.products.pictures import draw_acquisitions, draw_cloud_panels
from undulatus.products.scores import Scores, score
from undulatus.products.templates import render_template
from undulatus.products.views import disagreement, most_disputed
from undulatus.scenes import synthetic_landmark
from undulatus.scenes.files.geotiff import geotiff_paths
from undulatus.scenes.files.images import open_image
from undulatus.scenes.files.opening import open_map, open_raster_map, open_scene
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.scene import CLOUD_TRUTH
from undulatus.storage import save_model

Say = Callable[[str], None]

ProgressBar = Callable[[str], AbstractContextManager[Callable[[float, float], None]]]
"""Called with a step's name; the context manager it returns yields ``report(done, total)``."""

CELL, LEAST_AREA = 32, 20
"""Polygons of the image lie in squares of so many pixels, and have at least so many themselves."""

MONTH_DAYS = 30

MONTH_FREQUENCIES, MONTH_PIXELS = 100, 50_000
"""Frequencies, and training pixels for each regime: a fit takes a minute."""

PICTURED = 4
"""Daytime acquisitions in the picture of the month, those where the two masks differ most."""


@dataclass(frozen=True)
class ImageDemo:
    """What came of the image: its source, scores by classifier, and files by what they are."""

    source: str
    generated: bool
    """Whether the image is a stand-in for the real one."""
    scores: dict[str, Scores]
    written: dict[str, Path]
    page: Path
    """To browse the map."""


@dataclass(frozen=True)
class MonthDemo:
    """What came of the month: scores on the held-out days, files, and the page to browse maps."""

    days: int
    scores: list[RegimeScores]
    written: dict[str, Path]
    page: Path


def run_image_demo(
    folder: Path, say: Say, progress_bar: ProgressBar, *, verbose: int = 0
) -> ImageDemo:
    """Fit on polygons of the top half of an image, map all of it, score the bottom half.

    The same as the commands ``undulatus fit``, ``map`` and ``browse`` do with the files that are
    written first: ``image.tif``, and ``labels.gpkg`` with polygons of the top half. A folder that
    an earlier call wrote is replaced.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    data, source, generated = _load_image(say)
    say(f"Data: {source}.")
    written = dict(zip(("image", "labels"), write_example(folder, data), strict=True))
    endings = {"model": "clouds.undulatus", "map": "map.tif", "picture": "clouds.png"}
    written |= {name: folder / ending for name, ending in endings.items()}
    with _unplaced():
        image = open_image(written["image"])
        model = fit_image(image, written["labels"], verbose=verbose, progress=say)
        save_model(model, written["model"])
        with progress_bar("mapping") as progress:
            maps = map_scene(model, image)
            maps.attrs |= {"scene": written["image"].name}
            maps.attrs |= {"model": written["model"].name}
            write_dataset(maps, written["map"], progress)
        with progress_bar("making pages") as progress:
            page = browse_image(written["map"], folder / "site", progress=progress)
    layers = open_raster_map(geotiff_paths(maps, written["map"])[1])
    probability = layers["class_probability"].values
    draw_cloud_panels(
        written["picture"],
        data.X[:, [3, 2, 1]].reshape(*data.shape, 3),
        data.y.reshape(data.shape),
        probability,
        np.sqrt(layers["class_latent_variance"].values),
        title=f"Clouds by VFF-GPC on {source}",
        split_row=data.shape[0] // 2,
    )
    scores = _baseline_scores(data)
    scores["VFF-GPC"] = score(
        data.y[data.test] == 1, probability.ravel()[data.test].astype(np.float64)
    )
    return ImageDemo(source, generated, scores, written, page)


def write_example(folder: Path | str, data: Bunch | None = None) -> tuple[Path, Path]:
    """Write a real image and labels to try things on, and return the paths of the two files.

    ``image.tif`` is the image of :func:`undulatus.datasets.load_sentinel2_clouds`, 13 bands, and
    ``labels.gpkg`` has polygons of cloud and of clear sky in its upper half, with their class in
    the field ``class``. Neither says where on Earth it is.
    """
    data = load_sentinel2_clouds() if data is None else data
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    image, labels = folder / "image.tif", folder / "labels.gpkg"
    with _unplaced():
        _write_image(image, data)
        _label_polygons(data).to_file(labels)
    return image, labels


@contextmanager
def _unplaced() -> Iterator[None]:
    """Leave out the warnings that an image does not say where it was taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        warnings.filterwarnings("ignore", "'crs' was not provided")
        yield


def _baseline_scores(data: Bunch) -> dict[str, Scores]:
    baselines = {
        "majority": DummyClassifier(strategy="prior"),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
    }
    scores = {}
    for name, baseline in baselines.items():
        baseline.fit(data.X[data.train], data.y[data.train])
        likely = baseline.predict_proba(data.X[data.test])[:, 1]
        scores[name] = score(data.y[data.test] == 1, likely)
    return scores


def _write_image(path: Path, data: Bunch) -> None:
    """Write an image as a GeoTIFF whose bands have their names."""
    bands = data.X.reshape(*data.shape, -1).transpose(2, 0, 1)
    with rasterio.open(
        path, "w", driver="GTiff", count=len(bands), height=bands.shape[1], width=bands.shape[2],
        dtype="float32", tiled=True, compress="deflate",
    ) as file:  # fmt: skip
        file.write(bands)
        file.descriptions = tuple(data.feature_names)


def _label_polygons(data: Bunch) -> geopandas.GeoDataFrame:
    """Return polygons of cloud and of clear sky in the training half, cut along a grid."""
    rows = int(data.row[data.train].max()) + 1
    mask = data.y.reshape(data.shape)[:rows]
    row, column = np.indices(mask.shape)
    cell = row // CELL * (mask.shape[1] // CELL + 1) + column // CELL
    pieces = rasterio.features.shapes((2 * cell + mask).astype(np.int32))
    found = [(shape(geometry), int(value) % 2) for geometry, value in pieces]
    kept = [(polygon, cloudy) for polygon, cloudy in found if polygon.area >= LEAST_AREA]
    return geopandas.GeoDataFrame(
        {"class": [("clear", "cloud")[cloudy] for _, cloudy in kept]},
        geometry=[polygon for polygon, _ in kept],
    )


def _load_image(say: Say) -> tuple[Bunch, str, bool]:
    """Return an image, its source in words, and whether it is generated."""
    try:
        say("Fetching the Sentinel-2 image (22 MB, once) ...")
        data = load_sentinel2_clouds()
    except DatasetError as error:
        say(str(error))
        source = "a GENERATED image, since the real one could not be fetched"
        return generate_clouds(), source, True
    return data, "a real Sentinel-2 image, 856 x 512 pixels, 13 bands", False


def generate_clouds(height: int = 240, width: int = 160, seed: int = 0) -> Bunch:
    """Return a generated image with clouds, in the form of ``load_sentinel2_clouds``.

    A stand-in for machines without a package index: smooth random fields as cloud,
    brighter and whiter than the ground, with a blurred edge and sensor noise.
    """
    rng = np.random.default_rng(seed)
    spectrum = np.hypot(*np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij"))
    spectrum = (spectrum + 1.0 / max(height, width)) ** -1.6

    def smooth_field() -> Any:
        field = np.fft.ifft2(np.fft.fft2(rng.standard_normal((height, width))) * spectrum).real
        return (field - field.mean()) / field.std()

    thickness = smooth_field()
    cover = 1.0 / (1.0 + np.exp(-6.0 * (thickness - 0.2)))
    ground = 0.12 + 0.04 * smooth_field()
    bands = np.linspace(0.6, 1.4, 13)
    image = ground[..., None] * bands + cover[..., None] * (0.5 - 0.15 * bands)
    image += 0.02 * rng.standard_normal(image.shape)
    row, column = np.divmod(np.arange(height * width), width)
    return Bunch(
        X=image.reshape(-1, 13).astype(np.float32),
        feature_names=[f"B{band:02}" for band in range(1, 14)],
        y=(cover > 0.5).reshape(-1).astype(np.int64),
        train=np.flatnonzero(row < height // 2),
        test=np.flatnonzero(row >= height // 2),
        shape=(height, width),
        row=row,
        column=column,
    )


def run_month_demo(
    folder: Path,
    say: Say,
    progress_bar: ProgressBar,
    *,
    days: int = MONTH_DAYS,
    pixels: int = MONTH_PIXELS,
    verbose: int = 0,
) -> MonthDemo:
    """Make a month of synthetic images, fit, score and map them, and build pages to browse.

    A folder that an earlier call wrote is replaced.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    written = {
        "images": folder / "month.zarr",
        "model": folder / "month.undulatus",
        "maps": folder / "maps.zarr",
        "picture": folder / "maps.png",
    }
    with progress_bar(f"making {days} days of images") as progress:
        write_dataset(synthetic_landmark(days), written["images"], progress)
    scene = open_scene(written["images"])
    model = fit_scene(
        scene, n_frequencies=MONTH_FREQUENCIES, pixels=pixels, verbose=verbose, progress=say
    )
    save_model(model, written["model"])
    scores = score_scene(model, scene, progress=say)
    with progress_bar("mapping") as progress:
        write_dataset(map_scene(model, scene), written["maps"], progress)
    maps = open_map(written["maps"])
    in_daylight = scene["VIS006"].notnull().all(["y", "x"])
    times = most_disputed(disagreement(scene, maps).where(in_daylight), PICTURED)
    draw_acquisitions(written["picture"], scene, maps, times, title="Where the two masks differ")
    title = "A month of the synthetic landmark"
    with progress_bar("making pages") as progress:
        page = build_site(maps, scene, folder / "site", title=title, progress=progress)
    return MonthDemo(days, scores, written, page)


def write_demo_page(folder: Path, image: ImageDemo, month: MonthDemo) -> Path:
    """Write ``index.html`` into the folder of the demonstration, and return its path."""

    def link(path: Path) -> str:
        return path.relative_to(folder).as_posix()

    text = render_template(
        "undulatus.products",
        "demo.html.jinja",
        source=image.source,
        image=link(image.written["picture"]),
        image_site=link(image.page),
        image_scores=_image_rows(image),
        days=month.days,
        site=link(month.page),
        month_scores=_month_rows(month),
        picture=link(month.written["picture"]),
    )
    page = folder / "index.html"
    write_text(page, text)
    return page


def _image_rows(image: ImageDemo) -> list[dict[str, str]]:
    return [
        {"": name, "accuracy": f"{s.accuracy:.1%}", "NLL": f"{s.nll:.3f}", "ECE": f"{s.ece:.3f}",
         "Brier": f"{s.brier:.3f}"}
        for name, s in image.scores.items()
    ]  # fmt: skip


def _month_rows(month: MonthDemo) -> list[dict[str, str]]:
    return [
        {"sun": s.regime, "where": s.part, "pixels": f"{s.pixels:,}",
         "accuracy": f"{s.scores.accuracy:.1%}", "accuracy of the mask": f"{s.label_accuracy:.1%}",
         "ECE": f"{s.scores.ece:.3f}"}
        for s in month.scores
        if s.reference == CLOUD_TRUTH and s.label_accuracy is not None
    ]  # fmt: skip
