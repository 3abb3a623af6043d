"""The first thing a newcomer runs: a real image, three classifiers, a table and a picture.

A month of the landmark twin, from images to a page: the chain in one call.

The page a demonstration ends with: what was classified, how well, and where to look on.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import Bunch

from undulatus.datasets import load_sentinel2_clouds
from undulatus.errors import DatasetError
from undulatus.estimators import VFFGPC
from undulatus.products.browse import build_site
from undulatus.products.landmarks import RegimeScores, fit_scene, score_scene
from undulatus.products.maps import map_scene
from undulatus.products.pictures import draw_acquisitions, draw_cloud_panels
from undulatus.products.scores import Scores, score
from undulatus.products.templates import render_template
from undulatus.products.views import disagreement, most_disputed
from undulatus.scenes import synthetic_landmark
from undulatus.scenes.files.opening import open_map, open_scene
from undulatus.scenes.files.writing import write_dataset
from undulatus.scenes.scene import CLOUD_TRUTH
from undulatus.storage import save_model


@dataclass(frozen=True)
class Demo:
    """What the demonstration found and wrote."""

    source: str
    generated: bool
    scores: dict[str, Scores]
    written: dict[str, Path]


def generate_clouds(height: int = 240, width: int = 160, seed: int = 0) -> Bunch:
    """Return a generated image with clouds, in the form of ``load_sentinel2_clouds``.

    A stand-in for machines without a package index: smooth random fields as cloud,
    brighter and whiter than the ground, with a blurred edge and sensor noise.
    """
    rng = np.random.default_rng(seed)
    spectrum = np.hypot(*np.meshgrid(np.fft.fftfreq(height), np.fft.fftfreq(width), indexing="ij"))
    spectrum = (spectrum + 1.0 / max(height, width)) ** -1.6

    def field() -> Any:
        wave = np.fft.ifft2(np.fft.fft2(rng.standard_normal((height, width))) * spectrum).real
        return (wave - wave.mean()) / wave.std()

    thickness = field()
    cover = 1.0 / (1.0 + np.exp(-6.0 * (thickness - 0.2)))
    ground = 0.12 + 0.04 * field()
    bands = np.linspace(0.6, 1.4, 13)
    image = ground[..., None] * bands + cover[..., None] * (0.5 - 0.15 * bands)
    image += 0.02 * rng.standard_normal(image.shape)
    row, column = np.divmod(np.arange(height * width), width)
    return Bunch(
        X=image.reshape(-1, 13).astype(np.float32),
        y=(cover > 0.5).reshape(-1).astype(np.int64),
        train=np.flatnonzero(row < height // 2),
        test=np.flatnonzero(row >= height // 2),
        shape=(height, width),
        row=row,
        column=column,
    )


def run_demo(folder: Path, report: Callable[[str], None], verbose: int = 0) -> Demo:
    """Fit on the top half of an image, map all of it, score the bottom half; write a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    generated = False
    try:
        report("Fetching the Sentinel-2 image (22 MB, once) ...")
        data = load_sentinel2_clouds()
        source = "a real Sentinel-2 image, 856 x 512 pixels, 13 bands"
    except DatasetError as error:
        data, generated = generate_clouds(), True
        source = "a GENERATED image, since the real one could not be fetched"
        report(str(error))
    report(f"Data: {source}.")
    train, test = data.train, data.test
    baselines = {
        "majority": DummyClassifier(strategy="prior"),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression()),
    }
    scores = {}
    for name, baseline in baselines.items():
        baseline.fit(data.X[train], data.y[train])
        scores[name] = score(data.y[test] == 1, baseline.predict_proba(data.X[test])[:, 1])
    report(f"Fitting VFF-GPC to {len(train):,} pixels ...")
    model = VFFGPC(random_state=0, verbose=verbose).fit(data.X[train], data.y[train])
    report(f"Mapping {len(data.X):,} pixels ...")
    probability = model.predict_proba(data.X)[:, 1]
    _, variance = model.latent_mean_and_variance(data.X)
    scores["VFF-GPC"] = score(data.y[test] == 1, probability[test])
    written = {"picture": folder / "clouds.png", "model": folder / "clouds.undulatus"}
    draw_cloud_panels(
        written["picture"],
        data.X[:, [3, 2, 1]].reshape(*data.shape, 3),
        data.y.reshape(data.shape),
        probability.reshape(data.shape),
        np.sqrt(variance).reshape(data.shape),
        title=f"Clouds by VFF-GPC on {source}",
        split_row=data.shape[0] // 2,
    )
    save_model(model, written["model"])
    return Demo(source, generated, scores, written)


Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]

DAYS = 30

FREQUENCIES, PIXELS = 100, 50_000
"""Waves, and training pixels a regime: a minute's fit."""

PICTURED = 4
"""Acquisitions in the picture: those where model and Level-2 mask differ most by day."""


@dataclass(frozen=True)
class Month:
    """What came of a month: scores on the days held out, the files, and the page to open."""

    scores: list[RegimeScores]
    written: dict[str, Path]
    page: Path


def run_month(
    folder: Path,
    report: Callable[[str], None],
    bar: Bar,
    *,
    days: int = DAYS,
    pixels: int = PIXELS,
    verbose: int = 0,
) -> Month:
    """Make, fit, score, map and lay out a month of synthetic images in a folder.

    What an earlier call left in the folder is made anew. ``bar`` gives a context whose value is
    told how much of how much is done.
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
    with bar(f"making {days} days of images") as track:
        write_dataset(synthetic_landmark(days), written["images"], track)
    scene = open_scene(written["images"])
    model = fit_scene(
        scene, n_frequencies=FREQUENCIES, pixels=pixels, verbose=verbose, progress=report
    )
    save_model(model, written["model"])
    scores = score_scene(model, scene, progress=report)
    with bar("mapping") as track:
        write_dataset(map_scene(model, scene), written["maps"], track)
    maps = open_map(written["maps"])
    lit = scene["VIS006"].notnull().all(["y", "x"])
    times = most_disputed(disagreement(scene, maps).where(lit), PICTURED)
    draw_acquisitions(written["picture"], scene, maps, times, title="Where the two masks differ")
    with bar("making pages") as track:
        page = build_site(
            maps, scene, folder / "site", title="A month of the synthetic landmark", progress=track
        )
    return Month(scores, written, page)


def write_page(folder: Path, demo: Demo, month: Month, days: int) -> Path:
    """Write ``index.html`` in the folder of a demonstration, and return its path."""

    def beside(path: Path) -> str:
        return path.relative_to(folder).as_posix()

    page = folder / "index.html"
    page.write_text(
        render_template(
            "undulatus.products",
            "demo.html.jinja",
            source=demo.source,
            image=beside(demo.written["picture"]),
            image_scores=_image_rows(demo),
            days=days,
            site=beside(month.page),
            month_scores=_month_rows(month.scores),
            picture=beside(month.written["picture"]),
        ),
        encoding="utf-8",
    )
    return page


def _image_rows(demo: Demo) -> list[dict[str, str]]:
    return [
        {"": name, "accuracy": f"{s.accuracy:.1%}", "NLL": f"{s.nll:.3f}", "ECE": f"{s.ece:.3f}",
         "Brier": f"{s.brier:.3f}"}
        for name, s in demo.scores.items()
    ]  # fmt: skip


def _month_rows(scores: Sequence[Any]) -> list[dict[str, str]]:
    found = [s for s in scores if s.reference == CLOUD_TRUTH and s.label_accuracy is not None]
    return [
        {"sun": s.regime, "where": s.part, "pixels": f"{s.pixels:,}",
         "accuracy": f"{s.scores.accuracy:.1%}", "of the mask": f"{s.label_accuracy:.1%}",
         "ECE": f"{s.scores.ece:.3f}"}
        for s in found
    ]  # fmt: skip
