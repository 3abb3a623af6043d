"""Suggested labels against random ones: what a model of an image gains by 50 more labels.

    python -m benchmarks.suggest [START ...] [--seeds 0,1,2,3,4] [--labels 50] [--draws 8]
    python -m benchmarks.suggest large IMAGE

Starts, both if none is named: ``polygons`` fits to ten squares of 7 x 7 pixels of the Sentinel-2
image, five cloudy and five clear, ``points`` to 100 random pixels. The image's own mask answers
for the labels that are suggested, or drawn at random; each is added by an update, and scored on
20,000 other pixels of the image. Random labels are drawn several times: their mean, best and
worst are printed. ``large`` prints time and peak memory of 50 suggestions for a large image of the
same bands in reflectances (``benchmarks.image_fit`` can make one).
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from undulatus import datasets
from undulatus._system import peak_memory
from undulatus.products.images import fit_image
from undulatus.products.new_labels import update_image
from undulatus.products.scores import score
from undulatus.products.suggest import suggest_labels

Array = np.ndarray[Any, Any]

SQUARES, SIDE, POINTS = 10, 7, 100
TESTED = 20_000
"""Pixels that are scored."""


class Trial:
    """The image, its mask, and a model fitted to few of its pixels."""

    def __init__(self, start: str, seed: int) -> None:
        data = datasets.load_sentinel2_clouds()
        self.height, self.width = data.shape
        self.mask, self.pixels, self.seed = data.y, data.X, seed
        self.image = xr.DataArray(
            data.X.reshape(*data.shape, -1).transpose(2, 0, 1),
            dims=("band", "y", "x"),
            coords={"band": list(data.feature_names)},
        )
        self.rng = np.random.default_rng([seed, 0 if start == "polygons" else 1])
        first = self._draw_squares() if start == "polygons" else self._draw_points()
        group = "square" if start == "polygons" else None
        self.model = fit_image(self.image, first, group=group, holdout=0.0, seed=seed)
        self.free = np.setdiff1d(
            np.arange(len(self.mask)), first["row"] * self.width + first["column"]
        )
        self.tested = self.rng.choice(self.free, TESTED, replace=False)

    def label(self, index: Array) -> pd.DataFrame:
        """Return pixels with their classes, as a table of labels."""
        row, column = np.divmod(index, self.width)
        return pd.DataFrame({"row": row, "column": column, "class": self.mask[index]})

    def _draw_points(self) -> pd.DataFrame:
        return self.label(self.rng.choice(len(self.mask), POINTS, replace=False))

    def _draw_squares(self) -> pd.DataFrame:
        """Return the pixels of squares of one class, as many of either."""
        found: list[pd.DataFrame] = []
        left = {0: SQUARES // 2, 1: SQUARES // 2}
        while sum(left.values()):
            top = self.rng.integers(self.height - SIDE)
            west = self.rng.integers(self.width - SIDE)
            rows, columns = np.mgrid[top : top + SIDE, west : west + SIDE]
            square = self.label((rows * self.width + columns).ravel())
            classes = square["class"].unique()
            if len(classes) == 1 and left[classes[0]]:
                left[classes[0]] -= 1
                found.append(square.assign(square=len(found)))
        return pd.concat(found, ignore_index=True)

    def scores(self, labels: pd.DataFrame | None = None) -> Array:
        """Return NLL, ECE and accuracy, of the model with these labels added."""
        model = self.model
        if labels is not None:
            model = update_image(model, self.image, labels)
        names = list(model.feature_names_in_)
        table = pd.DataFrame(self.pixels[self.tested], columns=names)
        found = score(self.mask[self.tested], model.predict_proba(table)[:, 1])
        return np.array([found.nll, found.ece, found.accuracy])

    def suggested(self, count: int) -> pd.DataFrame:
        """Return suggested pixels, labelled by the mask."""
        points = suggest_labels(self.model, self.image, count, seed=self.seed)
        return self.label(points["row"].to_numpy() * self.width + points["column"].to_numpy())


def compare(start: str, seeds: list[int], count: int, draws: int) -> None:
    """Print a line for each seed: before, after random labels, after suggested labels."""
    print(f"\n{start}, {count} labels: NLL, ECE, accuracy")
    print(f"{'seed':>4}  {'before':^22}  {'random, mean':^22}  NLL, best to worst  suggested")
    won = []
    for seed in seeds:
        trial = Trial(start, seed)
        rng = np.random.default_rng([seed, 2])
        random = np.array(
            [
                trial.scores(trial.label(rng.choice(trial.free, count, replace=False)))
                for _ in range(draws)
            ]
        )
        suggested = trial.scores(trial.suggested(count))
        nll = random[:, 0]
        won.append((suggested[0] < nll.mean(), np.mean(suggested[0] < nll)))
        print(
            f"{seed:4}  {_text(trial.scores())}  {_text(random.mean(axis=0))}  "
            f"{nll.min():.4f} to {nll.max():.4f}    {_text(suggested)}",
            flush=True,
        )
    below, beaten = np.array(won).T
    print(
        f"NLL below the mean of random labels: {int(below.sum())} of {len(seeds)} seeds; below "
        f"{beaten.mean():.0%} of the random draws"
    )


def _text(scores: Array) -> str:
    return "  ".join(f"{value:.4f}" for value in scores)


def measure_large(path: Path) -> None:
    """Print time and memory of suggestions for a large image."""
    model = Trial("points", 0).model
    before = peak_memory()
    began = time.perf_counter()
    points = suggest_labels(model, path, 50)
    print(
        f"{len(points)} points in {time.perf_counter() - began:.1f} s "
        f"({time.process_time():.1f} s of processors in all), peak {peak_memory() / 2**20:.0f} MB "
        f"({before / 2**20:.0f} MB before)"
    )


def main() -> None:
    """Run what is asked for."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--labels", type=int, default=50)
    parser.add_argument("--draws", type=int, default=8)
    options = parser.parse_args()
    if options.what[:1] == ["large"]:
        measure_large(Path(options.what[1]))
        return
    for start in options.what or ("polygons", "points"):
        compare(start, [int(s) for s in options.seeds.split(",")], options.labels, options.draws)


if __name__ == "__main__":
    main()
