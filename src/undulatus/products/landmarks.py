"""Which pixels of a landmark's scene are learned from and which are tested on, by regime.

The landmark chain: from a year of scenes to a fitted model, and its scores by regime.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import xarray as xr

from undulatus._daylight import REGIMES
from undulatus.errors import SceneError
from undulatus.estimators import forget_checkpoint, make_classifier
from undulatus.products.maps import map_scene
from undulatus.products.memory_budget import BASE
from undulatus.products.scores import Scores, score
from undulatus.regimes import DAYLIGHT, Regime, RegimeClassifier
from undulatus.scenes.features import landmark_features
from undulatus.scenes.illumination import daytime_median, illumination
from undulatus.scenes.sampling import (
    COAST_WIDTH,
    balanced_sample,
    gather_pixels,
    hold_out_days,
    near_coast,
    on_days,
)
from undulatus.scenes.scene import ANGLE, CLOUD_TRUTH, LEVEL2_MASK, check_scene

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class LandmarkPixels:
    """Pixels of a scene by what they are for; arrays are (time, y, x) but for the acquisitions.

    ``regimes`` and ``learnable`` are bool arrays by regime: where it is, and what of it may be
    learned from. ``cloud_shares`` are those of the label on training days, away from the coast.
    """

    labels: Array
    angle: Array
    median: float
    held_out: Array
    """Acquisitions to test on, (time,) bool."""
    days: list[str]
    """The days they are of."""
    regimes: dict[str, Array]
    learnable: dict[str, Array]
    cloud_shares: dict[str, float]


def choose_pixels(
    scene: xr.Dataset, label: str, holdout: float, seed: int, coast_width: int
) -> LandmarkPixels:
    """Hold out whole days of a checked scene, and say which pixels of the others to learn from.

    Pixels within ``coast_width`` of the coast that the label calls cloudy are not learned from.
    The edge between high and mid is the median angle of the training days.
    """
    labels = read_labels(scene, label)
    training, held_out, days = hold_out_days(scene["time"].values, holdout, seed)
    coast = coast_of(scene, coast_width)[None]
    inland = training[:, None, None] & ~coast
    allowed = training[:, None, None] & ~(coast & (labels == 1))
    angle = np.asarray(scene[ANGLE].values)
    median = daytime_median(angle[training])
    codes = illumination(angle, median)
    regimes = {name: codes == index for index, name in enumerate(REGIMES)}
    return LandmarkPixels(
        labels,
        angle,
        median,
        held_out,
        days,
        regimes,
        {name: allowed & lit for name, lit in regimes.items()},
        {name: _cloud_share(name, labels[inland & lit]) for name, lit in regimes.items()},
    )


def require_times(scene: xr.Dataset) -> xr.Dataset:
    """Return the scene, or raise a :class:`SceneError` if it is a single acquisition."""
    if "time" not in scene.dims:
        raise SceneError(
            "To fit, a scene needs many acquisitions along the dimension time, but it has none. "
            "Open several files at once, or concatenate scenes along time."
        )
    return scene


def read_labels(scene: xr.Dataset, label: str) -> Array:
    """Return a mask of a scene, (time, y, x): 1 cloud, 0 clear, anything else missing."""
    if label not in scene:
        raise SceneError(
            f"The scene has no {label!r} to learn from. Found: "
            f"{', '.join(map(str, scene.data_vars))}. Open it with its mask "
            f"(undulatus.scenes.files.seviri.open_scene(..., mask=...)), or name another label."
        )
    return np.asarray(scene[label].transpose("time", "y", "x").values)


def coast_of(scene: xr.Dataset, width: int) -> Array:
    """Return which pixels lie so near the coast, (y, x) bool; none without a ``land_mask``."""
    if "land_mask" not in scene:
        return np.zeros((scene.sizes["y"], scene.sizes["x"]), bool)
    return near_coast(scene["land_mask"].transpose("y", "x").values, width)


def _cloud_share(regime: str, labels: Array) -> float:
    known = labels[(labels == 0) | (labels == 1)]
    clouds = np.count_nonzero(known == 1)
    if not 0 < clouds < known.size:
        raise SceneError(
            f"Regime {regime!r} has {clouds} cloudy and {known.size - clouds} clear training "
            f"pixels: it needs both to learn from. Use a scene of more days, or one that covers "
            f"this regime."
        )
    return clouds / known.size


Progress = Callable[[str], None]

PIXELS_A_REGIME = {"vff": 300_000, "rff": 300_000, "gpc": 5_000}
"""Training pixels a regime at most; the exact process cannot take more."""

SCENE_BYTES = 28
"""Memory of a pixel of the scene while training pixels are chosen: labels, sun, regimes."""

PIXEL_BYTES = 160
"""Memory of a training pixel: its features as read, by name, and as they are fitted."""

LEAST_PIXELS = 1_000


def fit_scene(
    scene: xr.Dataset,
    *,
    method: str = "vff",
    n_frequencies: int = 200,
    label: str = LEVEL2_MASK,
    holdout: float = 0.25,
    seed: int = 0,
    pixels: int | None = None,
    coast_width: int = COAST_WIDTH,
    ram: int | None = None,
    checkpoint: Path | None = None,
    verbose: int = 0,
    progress: Progress = lambda line: None,
) -> RegimeClassifier:
    """Return a model fitted on the training days of a scene, one classifier a regime.

    Parameters
    ----------
    scene : Dataset
        Many acquisitions, (time, y, x), with a mask to learn from.
    method : {"vff", "rff", "gpc"}
    n_frequencies : int
        Number D of waves of a classifier.
    label : str
        The variable to learn from: 1 cloud, 0 clear, anything else missing.
    holdout : float
        Share of whole days kept for :func:`score_scene`; they are recorded in the model.
    pixels : int, optional
        Training pixels a regime at most, half of either class: 300,000, for GPC 5,000.
    coast_width : int
        Pixels so near the coast that the mask calls cloudy are kept out of training, where
        the scene has a ``land_mask``: masks see clouds along coasts. Those it calls clear
        stay, or the model would never have seen a coast without cloud.
    ram : int, optional
        Bytes of memory to stay below: where they are few, fewer pixels are learned from.
    checkpoint : path, optional
        Where each classifier's fit is kept under way, by ``checkpoint.REGIME``; a fit of the same
        data goes on from there to the same model.
    """
    scene = check_scene(require_times(scene))
    most = _affordable(scene, pixels or PIXELS_A_REGIME.get(method, 0), ram)
    split = choose_pixels(scene, label, holdout, seed, coast_width)
    labels, angle, shares = split.labels, split.angle, split.cloud_shares
    # Training is balanced; the real share of cloud makes the probabilities right again.
    classifiers = {
        name: make_classifier(
            method,
            n_frequencies,
            seed=seed,
            verbose=verbose,
            checkpoint=None if checkpoint is None else checkpoint_of(checkpoint, name),
            prior_correction=[1 - share, share],
        )
        for name, share in shares.items()
    }
    drawn = balanced_sample(labels, split.learnable, most, np.random.default_rng(seed))
    progress(_tell({name: len(rows) for name, rows in drawn.items()}))
    table, y, day = _training_table(scene, labels, angle, drawn, progress)
    # Learning has gone far enough when it no longer carries over to other days.
    apart = {} if method == "gpc" else {"groups": day}
    model = RegimeClassifier(classifiers, regimes=daylight(split.median)).fit(table, y, **apart)
    for member in model.estimators_.values():
        forget_checkpoint(member)
    model.provenance_ = {
        "chain": "landmarks",
        "method": method,
        "label": label,
        "daytime_median_degrees": split.median,
        "held_out_days": split.days,
        "coast_width": coast_width,
        "training_pixels": {name: len(rows) for name, rows in drawn.items()},
        "cloud_share": shares,
        "seed": seed,
        "source": str(scene.attrs.get("source", "")),
        "platform_name": str(scene.attrs.get("platform_name", "")),
        "calibration_mode": scene.attrs.get("calibration_mode"),
    }
    return model


def checkpoint_of(checkpoint: Path, regime: str) -> Path:
    """Return where the fit of one regime's classifier is kept under way."""
    return checkpoint.with_name(f"{checkpoint.name}.{regime}")


def _affordable(scene: xr.Dataset, pixels: int, ram: int | None) -> int:
    """Return how many pixels a regime can be learned from in so much memory."""
    if ram is None:
        return pixels
    everything = BASE + SCENE_BYTES * int(np.prod([scene.sizes[d] for d in ("time", "y", "x")]))
    room = (ram - everything) // (PIXEL_BYTES * len(DAYLIGHT))
    if room < LEAST_PIXELS:
        least = everything + LEAST_PIXELS * PIXEL_BYTES * len(DAYLIGHT)
        raise SceneError(
            f"{ram / 1e9:.2g} GB of memory are too little to learn from this scene: allow "
            f"{least / 1e9:.2g} GB, or fit on fewer days (scene.isel(time=...))."
        )
    return min(pixels, room)


def daylight(median: float) -> tuple[Regime, ...]:
    """Return the four regimes with the median of the training pixels, degrees, as an edge."""
    high, mid, low, night = DAYLIGHT
    return (
        Regime(high.name, high.low, median, high.features),
        Regime(mid.name, median, mid.high, mid.features),
        low,
        night,
    )


def _training_table(
    scene: xr.Dataset, labels: Array, angle: Array, drawn: dict[str, Array], progress: Progress
) -> tuple[pd.DataFrame, Array, Array]:
    """Return features, labels and days (as numbers) of the pixels drawn."""
    features = landmark_features(scene, checked=True)
    chosen = np.sort(np.concatenate(list(drawn.values())))
    values = gather_pixels(
        features, chosen, lambda done, total: progress(f"features: {done} of {total} blocks")
    )
    table = pd.DataFrame(values, columns=[str(name) for name in features["feature"].values])
    table[ANGLE] = angle.ravel()[chosen]
    y = labels.ravel()[chosen].astype(np.int64)
    days = scene["time"].values.astype("datetime64[D]").astype(np.int64)
    day = days[chosen // labels[0].size]
    usable = _usable(table)
    return table[usable], y[usable], day[usable]


def _usable(table: pd.DataFrame) -> Array:
    """Return which rows have all the features that their regime needs."""
    night = DAYLIGHT[-1]
    dark = table[ANGLE].to_numpy() >= float(night.low)
    whole = np.isfinite(table.to_numpy()).all(axis=1)
    thermal = np.isfinite(table[list(night.features or ())].to_numpy()).all(axis=1)
    return np.where(dark, thermal, whole)


def _tell(counts: dict[str, int]) -> str:
    return "training pixels: " + ", ".join(f"{name} {n:,}" for name, n in counts.items())


@dataclass(frozen=True)
class RegimeScores:
    """Scores of one part of the held-out pixels against one reference.

    ``label_accuracy`` is that of the mask the model learned from, against the truth.
    """

    regime: str
    part: str
    reference: str
    pixels: int
    scores: Scores
    label_accuracy: float | None = None


def score_scene(
    model: Any, scene: xr.Dataset, *, progress: Progress = lambda line: None
) -> list[RegimeScores]:
    """Score a model on the held-out days of a scene, regime by regime.

    Against the label, and where the scene has the truth, against that; over all pixels, and,
    where there is a land mask, at the coast (one pixel to either side) and away from it.
    A scene that shares no day with the held-out ones is scored whole.
    """
    scene = check_scene(require_times(scene))
    provenance = getattr(model, "provenance_", {})
    label = provenance.get("label", LEVEL2_MASK)
    held_out = on_days(scene["time"].values, provenance.get("held_out_days", []))
    if held_out.any():
        scene = scene.isel(time=np.flatnonzero(held_out))
    progress(f"classifying {scene.sizes['time']:,} acquisitions")
    probability = np.asarray(map_scene(model, scene)["cloud_probability"].values)
    assigned = model.assign(np.asarray(scene[ANGLE].values))
    coast = coast_of(scene, 1)[None]
    parts = {"all": np.ones_like(coast)}
    if "land_mask" in scene:
        parts |= {"coast": coast, "away from coast": ~coast}
    references = [name for name in (label, CLOUD_TRUTH) if name in scene]
    if not references:
        raise SceneError(f"The scene has neither {label!r} nor {CLOUD_TRUTH!r} to score against.")
    masks = {name: read_labels(scene, name) for name in references}
    found = []
    for name in references:
        known = np.isfinite(probability) & ((masks[name] == 0) | (masks[name] == 1))
        for index, regime in enumerate(model.regimes_):
            for part, where in parts.items():
                chosen = known & (assigned == index) & where
                if chosen.any():
                    found.append(
                        _score_part(regime.name, part, name, chosen, probability, masks, label)
                    )
    return found


def _score_part(
    regime: str,
    part: str,
    reference: str,
    chosen: Array,
    probability: Array,
    masks: dict[str, Array],
    label: str,
) -> RegimeScores:
    real = masks[reference][chosen] == 1
    of_label = None
    if reference == CLOUD_TRUTH and label in masks:
        of_label = float(np.mean((masks[label][chosen] == 1) == real))
    return RegimeScores(
        regime,
        part,
        reference,
        int(chosen.sum()),
        score(real, probability[chosen].astype(np.float64)),
        of_label,
    )
