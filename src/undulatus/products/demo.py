"""The first thing a newcomer runs: a real image, three classifiers, a table and a picture."""

from __future__ import annotations

from collections.abc import Callable
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
from undulatus.products.figures import draw_cloud_panels
from undulatus.products.scores import Scores, score
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
