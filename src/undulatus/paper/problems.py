"""The data of trials, prepared once as plain arrays on disk that processes share page by page.

Data come in parts: the four regimes of a landmark, or one part of all spectra. A part is a folder
of ``.npy`` files: ``features`` (rows, d), ``labels`` (rows,), and where known ``truth``, ``coast``
and ``groups`` (rows,). Each run, 0 for the first, has the rows to learn from
in order (``training-0``), so that a larger n contains a smaller; the rows to test on (``test-0``);
and starting frequencies (``frequencies-0``), so that a larger D contains a smaller.

Landmarks have a fixed test set and a few training sets for each regime; spectra have folds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr
from sklearn.model_selection import StratifiedKFold

from undulatus._progress import working_on
from undulatus._system import single_threaded_blas
from undulatus.errors import SceneError
from undulatus.estimators.pca import SpectralPCA
from undulatus.paper.scales import Scale
from undulatus.products.landmarks import (
    LandmarkPixels,
    choose_pixels,
    coastal_pixels,
    read_mask,
    require_times,
)
from undulatus.products.sounder import (
    ChosenSpectra,
    channel_noise,
    complete_spectra,
    read_labels,
)
from undulatus.regimes import DAYLIGHT, Regime
from undulatus.scenes import synthetic_landmark, synthetic_sounder
from undulatus.scenes.features import landmark_features
from undulatus.scenes.files.opening import open_scene, open_spectra
from undulatus.scenes.sampling import COAST_WIDTH, gather_pixels, on_days
from undulatus.scenes.scene import CLOUD_TRUTH, LEVEL2_MASK, check_scene
from undulatus.scenes.simulators.landmark import DAYS, TIMES_A_DAY
from undulatus.scenes.spectra import CLOUD_AMOUNT, CLOUDY, check_spectra

Array = npt.NDArray[Any]

PART_FACTS, MANIFEST = "facts.json", "manifest.json"
"""What is known of a part, in its folder; and of all data, in theirs."""

HELD_OUT = "held_out_days.json"
"""The days of a landmark that are tested on."""

HOLDOUT = 0.25
"""Share of whole days that are tested on."""

SPARE = 1.05
"""Factor by which more pixels are drawn than are needed, because some lack a feature."""

BLOCK = 5 * TIMES_A_DAY
"""Acquisitions whose features are computed together."""

COMPONENTS = 100
"""Principal components of spectra, as in the paper."""


@dataclass(frozen=True)
class Problem:
    """The rows of a part, and which of them one run learns from and tests on."""

    features: Array
    labels: Array
    training: Array
    test: Array
    frequencies: Array
    """Unit frequencies of an RBF kernel, (largest D, d)."""
    truth: Array | None = None
    coast: Array | None = None
    groups: Array | None = None
    """Rows of one group are left out for validation together: a pixel's day."""
    cloud_share: float | None = None
    """The natural share of cloud, where training rows are balanced."""


def write_part(
    folder: Path,
    columns: dict[str, Array],
    runs: list[tuple[Array, Array]],
    *,
    most_frequencies: int,
    seed: int,
    cloud_share: float | None = None,
) -> None:
    """Write a part; ``runs`` are the rows to learn from and those to test on."""
    folder.mkdir(parents=True)
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    d = columns["features"].shape[1]
    for run, (training, test) in enumerate(runs):
        np.save(folder / f"training-{run}.npy", training)
        np.save(folder / f"test-{run}.npy", test)
        # The spectral density of an RBF kernel of lengthscale 1 is the standard normal.
        drawn = np.random.default_rng([seed, run]).standard_normal((most_frequencies, d))
        np.save(folder / f"frequencies-{run}.npy", drawn)
    (folder / PART_FACTS).write_text(json.dumps({"cloud_share": cloud_share}))


def open_problem(data: Path, part: str, run: int) -> Problem:
    """Open the problem of one run of a part, memory-mapped."""
    folder = data / part

    def read(name: str) -> Array:
        return np.load(folder / f"{name}.npy", mmap_mode="r")

    def read_if_known(name: str) -> Array | None:
        return read(name) if (folder / f"{name}.npy").exists() else None

    return Problem(
        read("features"),
        read("labels"),
        read(f"training-{run}"),
        read(f"test-{run}"),
        read(f"frequencies-{run}"),
        read_if_known("truth"),
        read_if_known("coast"),
        read_if_known("groups"),
        json.loads((folder / PART_FACTS).read_text())["cloud_share"],
    )


def read_manifest(data: Path) -> dict[str, Any]:
    """Return the facts about prepared data: their source, and the rows and features of parts."""
    return dict(json.loads((data / MANIFEST).read_text(encoding="utf-8")))


def open_landmark(path: Path | None, scale: Scale, seed: int) -> xr.Dataset:
    """Open the scene at a path, or make the scale's number of days of the simulator."""
    return open_scene(path) if path is not None else _computed(_simulator(scale, seed))


def open_held_out(path: Path | None, scale: Scale, seed: int, folder: Path) -> xr.Dataset:
    """Open the days of the same scene that the data in ``folder`` are tested on."""
    scene = check_scene(open_scene(path) if path is not None else _simulator(scale, seed))
    days = json.loads((folder / HELD_OUT).read_text())
    held_out = scene.isel(time=np.flatnonzero(on_days(scene["time"].values, days)))
    return held_out if path is not None else _computed(held_out)


def _simulator(scale: Scale, seed: int) -> xr.Dataset:
    """Return days spread over the simulator's year, so that even a few cover every season."""
    year = synthetic_landmark(seed=seed, chunk_days=1)
    days = np.linspace(0, DAYS, scale.amount, endpoint=False).astype(int)
    times = (days[:, None] * TIMES_A_DAY + np.arange(TIMES_A_DAY)).ravel()
    return year.isel(time=times)


def _computed(simulator: xr.Dataset) -> xr.Dataset:
    # Each thread makes a day; BLAS would start more threads within each.
    with single_threaded_blas():
        return simulator.compute().chunk({"time": BLOCK})


def prepare_landmarks(
    scene: xr.Dataset,
    scale: Scale,
    seed: int,
    folder: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the training and test sets of each regime; return the manifest.

    The test set of a regime is drawn from held-out days at the natural share of cloud, the coast
    included. Training sets are balanced, drawn from the other days without the clouds that the
    label sees at the coast. Their rows alternate between the classes, so that any even number of
    first rows is balanced; prior correction restores the natural share.
    """
    scene = require_times(check_scene(scene))
    split = choose_pixels(scene, LEVEL2_MASK, HOLDOUT, seed, COAST_WIDTH)
    if split.legend.classes != (0, 1):
        found = ", ".join(map(str, split.legend.classes))
        raise SceneError(
            f"{LEVEL2_MASK!r} has the values {found}, but a mask has 0 (clear) and 1 (cloud). Set "
            f"all others to 255 (missing)."
        )
    wanted = {name for grid in scale.grids for name in grid.regimes}
    regimes = [regime for regime in DAYLIGHT if regime.name in wanted]
    draws = {regime.name: _draw(split, regime.name, scale, seed) for regime in regimes}
    pixels = np.unique(np.concatenate([draw.pixels for draw in draws.values()]))
    columns = _columns(scene, split, pixels)
    parts = {
        regime.name: _write_regime(
            folder, regime, draws[regime.name], pixels, columns, split, scale, seed
        )
        for regime in regimes
    }
    (folder / HELD_OUT).write_text(json.dumps(split.days))
    return {
        "parts": parts,
        "source": str(scene.attrs.get("source", "")),
        "acquisitions": scene.sizes["time"],
        "held_out_days": len(split.days),
        "daytime_median_degrees": split.median,
        "share_of_cloud": "natural in test sets; training sets are balanced, which prior "
        "correction undoes",
    }


@dataclass(frozen=True)
class _DrawnPixels:
    """Flat indices of pixels: to test on, and for each run clear and cloudy ones to learn from."""

    test: Array
    runs: list[tuple[Array, Array]]

    @property
    def pixels(self) -> Array:
        return np.unique(np.concatenate([self.test, *(x for run in self.runs for x in run)]))


def _draw(split: LandmarkPixels, regime: str, scale: Scale, seed: int) -> _DrawnPixels:
    order = list(split.regimes).index(regime)
    known = split.labels <= 1
    held_out = np.flatnonzero(split.regimes[regime] & known & split.held_out[:, None, None])
    if not len(held_out):
        raise SceneError(
            f"No pixel of the held-out days is in the regime {regime!r}: there is nothing to "
            f"test on. Use a scene of more days, or one that covers this regime."
        )
    rng = np.random.default_rng([seed, order])
    count = min(scale.test_rows or len(held_out), len(held_out))
    test = rng.choice(held_out, count, replace=False, shuffle=False)
    classes = [
        np.flatnonzero(split.learnable[regime] & (split.labels == value)) for value in (0, 1)
    ]
    each = min(int(SPARE * scale.most_rows / 2) + 1, *map(len, classes))
    runs = []
    for run in range(scale.runs):
        rng = np.random.default_rng([seed, order, run])
        clear, cloudy = (rng.choice(which, each, replace=False) for which in classes)
        runs.append((clear, cloudy))
    return _DrawnPixels(np.sort(test), runs)


def _columns(scene: xr.Dataset, split: LandmarkPixels, pixels: Array) -> dict[str, Array]:
    """Return the features and labels of pixels, and where known truth and coast, by name."""
    features = landmark_features(scene)
    with working_on("reading pixels") as work:
        values = gather_pixels(features, pixels, work.report)
    names = [str(name) for name in features["feature"].values]
    columns = dict(zip(names, values.T, strict=True))
    coast = coastal_pixels(scene, 1).ravel()
    days = scene["time"].values.astype("datetime64[D]").astype(np.int64)
    columns["labels"] = split.labels.ravel()[pixels].astype(np.uint8)
    columns["groups"] = days[pixels // coast.size]
    if CLOUD_TRUTH in scene:
        columns["truth"] = read_mask(scene, CLOUD_TRUTH).ravel()[pixels].astype(np.uint8)
    if "land_mask" in scene:
        columns["coast"] = coast[pixels % coast.size]
    return columns


def _write_regime(
    folder: Path,
    regime: Regime,
    drawn: _DrawnPixels,
    pixels: Array,
    columns: dict[str, Array],
    split: LandmarkPixels,
    scale: Scale,
    seed: int,
) -> dict[str, Any]:
    """Write the part of one regime; return its facts."""
    others = ("labels", "groups", "truth", "coast")
    names = regime.features or tuple(name for name in columns if name not in others)
    rows = np.searchsorted(pixels, drawn.pixels)
    features = np.column_stack([columns[name][rows] for name in names])
    usable = np.isfinite(features).all(axis=1)
    kept = drawn.pixels[usable]
    test = _positions(drawn.test, kept)
    runs = [
        _alternate(_positions(clear, kept), _positions(cloudy, kept))
        for clear, cloudy in drawn.runs
    ]
    share = split.shares[regime.name][1]
    write_part(
        folder / regime.name,
        {
            "features": features[usable],
            **{name: columns[name][rows[usable]] for name in others if name in columns},
        },
        [(run, test) for run in runs],
        most_frequencies=scale.most_frequencies,
        seed=seed,
        cloud_share=share,
    )
    return {
        "d": len(names),
        "rows": min(map(len, runs)),
        "test_rows": len(test),
        "cloud_share": share,
    }


def _positions(wanted: Array, kept: Array) -> Array:
    """Return the positions of pixels in ``kept``, which is sorted; absent ones are left out."""
    positions = np.minimum(np.searchsorted(kept, wanted), len(kept) - 1)
    return positions[kept[positions] == wanted]


def _alternate(clear: Array, cloudy: Array) -> Array:
    """Return equally many of either class, a clear one and a cloudy one in turn."""
    each = min(len(clear), len(cloudy))
    return np.column_stack([clear[:each], cloudy[:each]]).ravel()


def open_sounder(path: Path | None, scale: Scale, seed: int) -> xr.Dataset:
    """Open the spectra at a path, or make the scale's number of the simulator's."""
    return open_spectra(path) if path is not None else synthetic_sounder(scale.amount, seed=seed)


def prepare_sounder(
    spectra: xr.Dataset,
    scale: Scale,
    seed: int,
    folder: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the components of spectra, in folds; return the manifest.

    The components are those of all spectra, as in the paper; they do not depend on labels. Folds
    are stratified by the label; their training rows are shuffled, so that the first n are a
    random choice.
    """
    spectra = check_spectra(spectra)
    labels = read_labels(spectra, CLOUDY)
    chosen = _usable_spectra(spectra, labels, scale.runs, progress)
    y = labels[chosen].astype(np.uint8)
    rows = ChosenSpectra(spectra, chosen)
    components = min(COMPONENTS, *rows.shape)
    reduced = SpectralPCA(components, noise=channel_noise(spectra)).fit_transform(rows)
    split = StratifiedKFold(scale.runs, shuffle=True, random_state=seed).split(reduced, y)
    rng = np.random.default_rng(seed)
    folds = [(rng.permutation(training), test) for training, test in split]
    # Every fold has the same n, so that folds are runs of one setting.
    least = min(len(training) for training, _ in folds)
    columns = {"features": reduced, "labels": y}
    if CLOUD_AMOUNT in spectra:
        columns["truth"] = (spectra[CLOUD_AMOUNT].values[chosen] > 0.0).astype(np.uint8)
    write_part(
        folder / "spectra",
        columns,
        [(training[:least], test) for training, test in folds],
        most_frequencies=scale.most_frequencies,
        seed=seed,
    )
    return {
        "parts": {
            "spectra": {
                "d": components,
                "rows": least,
                "test_rows": min(len(test) for _, test in folds),
                "cloud_share": float(np.mean(y)),
            }
        },
        "source": str(spectra.attrs.get("source", "")),
        "spectra": len(y),
        "left_out": int(len(labels) - len(y)),
        "folds": scale.runs,
    }


def _usable_spectra(
    spectra: xr.Dataset, labels: Array, folds: int, progress: Callable[[str], None]
) -> Array:
    """Return the indices of spectra without missing values that are labelled clear or cloudy."""
    complete = np.ones(len(labels), bool)
    if not spectra.attrs.get("sensor", "").endswith("(synthetic)"):
        progress("looking for spectra with missing values")
        complete = complete_spectra(spectra)
    chosen = np.flatnonzero(complete & (labels <= 1))
    clear, cloudy = (np.count_nonzero(labels[chosen] == value) for value in (0, 1))
    if min(clear, cloudy) < folds:
        raise SceneError(
            f"{clear} clear and {cloudy} cloudy spectra are too few for {folds} folds. Use more "
            f"spectra."
        )
    return chosen
