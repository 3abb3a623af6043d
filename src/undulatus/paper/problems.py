"""What trials are fitted on, as plain arrays on disk that processes share page by page.

A part (a regime, or all spectra) is a folder of ``.npy`` files: ``features`` (rows, d),
``labels`` (rows,), where known ``truth``, ``coast`` and ``groups`` (rows,), and for each run the
rows to learn from in order (``training-0``), so that a larger n contains a smaller, the rows to
test on (``test-0``), and the starting frequencies (``frequencies-0``), so that a larger D contains
a smaller.

The sounder experiment's data: components of spectra in folds.

The landmark experiment's data: four regimes, a fixed test set and training sets of each.
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
from undulatus.scenes.files.opening import open_scene
from undulatus.scenes.sampling import COAST_WIDTH, gather_pixels, on_days
from undulatus.scenes.scene import CLOUD_TRUTH, LEVEL2_MASK, check_scene
from undulatus.scenes.spectra import CLOUD_AMOUNT, CLOUDY, check_spectra, open_spectra
from undulatus.scenes.twins.landmark import DAYS, TIMES_A_DAY

Array = npt.NDArray[Any]

FACTS = "facts.json"

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Problem:
    """Rows, and which of them one run learns from and tests on."""

    features: Array
    labels: Array
    training: Array
    test: Array
    frequencies: Array
    """Unit frequencies of an RBF kernel, (largest D, d)."""
    truth: Array | None = None
    coast: Array | None = None
    groups: Array | None = None
    """What is held back together while frequencies are learned: the day of a pixel."""
    cloud_share: float | None = None
    """Real share of cloud, where training rows are balanced."""


def write_part(
    folder: Path,
    columns: dict[str, Array],
    runs: list[tuple[Array, Array]],
    *,
    most_frequencies: int,
    seed: int,
    cloud_share: float | None = None,
) -> None:
    """Write a part: its columns, and the rows to learn from and to test on of each run."""
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
    (folder / FACTS).write_text(json.dumps({"cloud_share": cloud_share}))


def open_problem(data: Path, part: str, run: int) -> Problem:
    """Open what a run of a part learns from and tests on, memory-mapped."""
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
        json.loads((folder / FACTS).read_text())["cloud_share"],
    )


def read_manifest(data: Path) -> dict[str, Any]:
    """Return what was prepared: parts with their rows and features, and facts of the data."""
    return dict(json.loads((data / MANIFEST).read_text(encoding="utf-8")))


COMPONENTS = 100


def open_sounder(path: Path | None, scale: Scale, seed: int) -> xr.Dataset:
    """Return the spectra at a path, or as many of the twin's as a scale asks for."""
    return open_spectra(path) if path is not None else synthetic_sounder(scale.amount, seed=seed)


def prepare_iavisa(
    spectra: xr.Dataset,
    scale: Scale,
    seed: int,
    folder: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write the components of spectra, in folds; return the facts of them.

    The components are those of all spectra, as in the paper: labels play no part in them. Folds
    are stratified by the label; their training rows are shuffled, so that the first n are n at
    random.
    """
    spectra = check_spectra(spectra)
    labels = read_labels(spectra, CLOUDY)
    whole = np.ones(len(labels), bool)
    if not spectra.attrs.get("sensor", "").endswith("(synthetic)"):
        progress("looking for spectra with missing values")
        whole = complete_spectra(spectra)
    chosen = np.flatnonzero(whole & (labels <= 1))
    y = labels[chosen].astype(np.uint8)
    if min(np.bincount(y, minlength=2)) < scale.runs:
        raise SceneError(
            f"{np.count_nonzero(y == 0)} clear and {np.count_nonzero(y == 1)} cloudy spectra are "
            f"too few for {scale.runs} folds. Use more."
        )
    rows = ChosenSpectra(spectra, chosen, progress)
    components = min(COMPONENTS, *rows.shape)
    reduced = SpectralPCA(components, noise=channel_noise(spectra)).fit_transform(rows)
    split = StratifiedKFold(scale.runs, shuffle=True, random_state=seed).split(reduced, y)
    rng = np.random.default_rng(seed)
    folds = [(rng.permutation(training), test) for training, test in split]
    # As many rows in every fold, or they would be trials of different n.
    least = min(len(training) for training, _ in folds)
    known = {"features": reduced, "labels": y}
    if CLOUD_AMOUNT in spectra:
        known["truth"] = (spectra[CLOUD_AMOUNT].values[chosen] > 0.0).astype(np.uint8)
    write_part(
        folder / "spectra",
        known,
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


HOLDOUT = 0.25
"""Share of whole days that are tested on."""

HELD_OUT = "held_out_days.json"
"""Which days these are."""

SPARE = 1.05
"""Pixels are drawn so many times over: some lack a feature."""

BLOCK = 5 * TIMES_A_DAY
"""Acquisitions whose features are computed together."""


def open_landmark(path: Path | None, scale: Scale, seed: int) -> xr.Dataset:
    """Return the scene at a path, or as many days of the twin as a scale asks for."""
    return open_scene(path) if path is not None else _made(_twin(scale, seed))


def open_held_out(path: Path | None, scale: Scale, seed: int, folder: Path) -> xr.Dataset:
    """Return the days of the same scene that the data prepared in a folder are tested on."""
    scene = check_scene(open_scene(path) if path is not None else _twin(scale, seed))
    days = json.loads((folder / HELD_OUT).read_text())
    held_out = scene.isel(time=np.flatnonzero(on_days(scene["time"].values, days)))
    return held_out if path is not None else _made(held_out)


def _twin(scale: Scale, seed: int) -> xr.Dataset:
    """Return days of the twin, spread over its year, so that few of them hold every season."""
    year = synthetic_landmark(seed=seed, chunk_days=1)
    days = np.linspace(0, DAYS, scale.amount, endpoint=False).astype(int)
    times = (days[:, None] * TIMES_A_DAY + np.arange(TIMES_A_DAY)).ravel()
    return year.isel(time=times)


def _made(twin: xr.Dataset) -> xr.Dataset:
    # BLAS would add its threads to those that make a day each.
    with single_threaded_blas():
        return twin.compute().chunk({"time": BLOCK})


def prepare_landmarks(
    scene: xr.Dataset,
    scale: Scale,
    seed: int,
    folder: Path,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write what trials of a scale learn from and test on; return the facts of it.

    The test set of a regime is drawn from held-out days at the natural share of cloud, coast and
    all. Training sets are balanced, drawn from the other days without the clouds that the label
    sees at the coast; each takes either class in turn, so that every even number of its first
    rows is balanced, and prior correction brings the natural share back.
    """
    scene = check_scene(require_times(scene))
    split = choose_pixels(scene, LEVEL2_MASK, HOLDOUT, seed, COAST_WIDTH)
    wanted = {name for grid in scale.grids for name in grid.regimes}
    regimes = [regime for regime in DAYLIGHT if regime.name in wanted]
    draws = {regime.name: _draw(split, regime.name, scale, seed) for regime in regimes}
    pixels = np.unique(np.concatenate([draw.pixels for draw in draws.values()]))
    columns = _columns(scene, split, pixels, progress)
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
        "share_of_cloud": "test sets have the natural one; training sets are balanced, which "
        "prior correction undoes",
    }


@dataclass(frozen=True)
class _Draw:
    """Flat indices of pixels: to test on, and for each run clear and cloudy ones to learn from."""

    test: Array
    runs: list[tuple[Array, Array]]

    @property
    def pixels(self) -> Array:
        return np.unique(np.concatenate([self.test, *(x for run in self.runs for x in run)]))


def _draw(split: LandmarkPixels, regime: str, scale: Scale, seed: int) -> _Draw:
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
    return _Draw(np.sort(test), runs)


def _columns(
    scene: xr.Dataset, split: LandmarkPixels, pixels: Array, progress: Callable[[str], None]
) -> dict[str, Array]:
    """Return what is known of pixels, by name; features are one column each."""
    features = landmark_features(scene, checked=True)
    values = gather_pixels(
        features, pixels, lambda done, total: progress(f"features: {done} of {total} blocks")
    )
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
    draw: _Draw,
    pixels: Array,
    columns: dict[str, Array],
    split: LandmarkPixels,
    scale: Scale,
    seed: int,
) -> dict[str, Any]:
    """Write the part of one regime; return its facts."""
    told = ("labels", "groups", "truth", "coast")
    names = regime.features or tuple(name for name in columns if name not in told)
    mine = np.searchsorted(pixels, draw.pixels)
    table = np.column_stack([columns[name][mine] for name in names])
    usable = np.isfinite(table).all(axis=1)
    kept = draw.pixels[usable]
    known = {name: columns[name][mine[usable]] for name in told if name in columns}
    test = _places(draw.test, kept)
    runs = [_in_turn(_places(clear, kept), _places(cloudy, kept)) for clear, cloudy in draw.runs]
    share = split.cloud_shares[regime.name]
    write_part(
        folder / regime.name,
        {"features": table[usable], **known},
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


def _places(wanted: Array, kept: Array) -> Array:
    """Return where pixels are among those kept, which are sorted; others are left out."""
    found = np.searchsorted(kept, wanted)
    found = np.minimum(found, len(kept) - 1)
    return found[kept[found] == wanted]


def _in_turn(clear: Array, cloudy: Array) -> Array:
    """Return as many of either class, one after the other."""
    each = min(len(clear), len(cloudy))
    return np.column_stack([clear[:each], cloudy[:each]]).ravel()
