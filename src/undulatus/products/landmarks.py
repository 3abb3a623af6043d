"""The landmark chain: from a year of scenes to one classifier a regime, and its scores.

:func:`choose_pixels` says which pixels of a scene are learned from and which are tested on;
:func:`fit_scene` fits a model to the first, :func:`score_scene` scores it on the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from undulatus._daylight import NIGHT, NIGHT_FEATURES, REGIMES
from undulatus._progress import working_on
from undulatus.errors import SceneError
from undulatus.estimators import forget_checkpoint, make_classifier
from undulatus.products.basis import scored_times
from undulatus.products.classes import (
    find_label,
    is_scored_as_mask,
    label_legend,
    label_shares,
    read_classes,
    require_dims,
    require_mask,
)
from undulatus.products.legend import Legend
from undulatus.products.maps import class_probabilities, cloud_probability
from undulatus.products.memory_budget import PROCESS_BYTES
from undulatus.products.predict import finite_rows
from undulatus.products.provenance import Provenance
from undulatus.products.scores import ManyClassScores, Scores, score, score_classes
from undulatus.regimes import DAYLIGHT, Regime, RegimeClassifier
from undulatus.scenes.features import FEATURES, landmark_features
from undulatus.scenes.illumination import daytime_median, illumination
from undulatus.scenes.sampling import (
    COAST_WIDTH,
    balanced_sample,
    gather_pixels,
    hold_out_days,
    near_coast,
)
from undulatus.scenes.scene import ANGLE, CLOUD_TRUTH, DIMS, LEVEL2_MASK, check_scene

Array = npt.NDArray[Any]

Progress = Callable[[str], None]

PIXELS_A_REGIME = {"vff": 300_000, "rff": 300_000, "gpc": 5_000}
"""The most training pixels of a regime, by method; the exact process cannot take more."""

SCENE_BYTES = 28
"""Memory of a pixel of the scene while training pixels are chosen: label, sun, regimes."""

PIXEL_BYTES = 160
"""Memory of a training pixel: its features as they are read and as they are fitted."""

LEAST_PIXELS = 1_000
"""The fewest training pixels of a regime that a memory limit may leave."""


def fit_scene(
    scene: xr.Dataset,
    *,
    method: str = "vff",
    n_frequencies: int = 200,
    n_estimators: int = 2,
    label: str = LEVEL2_MASK,
    holdout: float = 0.25,
    seed: int = 0,
    pixels: int | None = None,
    coast_width: int = COAST_WIDTH,
    memory_limit: int | None = None,
    checkpoint: Path | None = None,
    device: str | None = None,
    verbose: int = 0,
    progress: Progress = lambda line: None,
) -> RegimeClassifier:
    """Fit one classifier a regime to the training days of a scene.

    Parameters
    ----------
    scene : Dataset
        Many acquisitions, (time, y, x), with a mask or other classes to learn from.
    method : {"vff", "rff", "gpc"}
    n_frequencies : int
        Number D of frequencies of a classifier, or of each of its estimators.
    n_estimators : int
        Estimators of the ensemble in each regime, which validate on different days.
    label : str
        The variable to learn from, whose values are classes: two or more whole numbers, 255 and
        NaN and the attribute ``_FillValue`` missing. ``flag_values`` and ``flag_meanings`` name
        them. Of 0 and 1 the model records that 1 is cloud if the variable's name or its
        attributes mention cloud; of more, a class that the flags call cloud or cloudy is.
    holdout : float
        Share of whole days kept for :func:`score_scene`. The model records which.
    pixels : int, optional
        The most training pixels of a regime, equally many of each class: 300,000, for GPC 5,000.
    coast_width : int
        Pixels this close to the coast that the label calls cloudy are not learned from, where
        the scene has a ``land_mask``: masks see clouds along coasts that are not there. Those it
        calls clear stay, or the model would never have seen a coast without cloud. Without a
        class that is known to be cloud, all pixels are learned from.
    memory_limit : int, optional
        Memory limit in bytes: if it is small, fewer pixels are learned from.
    checkpoint : path, optional
        Each classifier's fit is saved as it goes in ``checkpoint.REGIME``; a fit of the same data
        resumes there and ends in the same model.
    device : str, optional
        Where to compute, such as ``"cuda"`` (see :class:`~undulatus.VFFGPC`).
    """
    scene = require_times(check_scene(scene))
    most = _affordable_pixels(scene, pixels or PIXELS_A_REGIME.get(method, 0), memory_limit)
    split = choose_pixels(scene, label, holdout, seed, coast_width)
    classifiers = {
        regime: make_classifier(
            method,
            n_frequencies,
            n_estimators=n_estimators,
            seed=seed,
            verbose=verbose,
            checkpoint=checkpoint and checkpoint.with_name(f"{checkpoint.name}.{regime}"),
            device=device,
            # Training is balanced; the real shares of classes correct the probabilities.
        ).set_params(prior_correction=list(shares))
        for regime, shares in split.shares.items()
    }
    rng = np.random.default_rng(seed)
    drawn = balanced_sample(split.labels, split.learnable, most, rng, split.legend.classes)
    counts = {regime: len(rows) for regime, rows in drawn.items()}
    progress("training pixels: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()))
    columns, y, day = _training_rows(scene, split, drawn)
    # Early stopping holds whole days back: learning should carry over to other days.
    groups = {} if method == "gpc" else {"groups": day}
    model = RegimeClassifier(classifiers, regimes=daylight_regimes(split.median))
    model.fit(columns, y, **groups)
    for classifier in model.estimators_.values():
        forget_checkpoint(classifier)
    model.provenance_ = Provenance(
        chain="landmarks",
        method=method,
        label=label,
        legend=split.legend.as_dict(),
        daytime_median_degrees=split.median,
        held_out_days=split.days,
        training_days=np.unique(day).astype("datetime64[D]").astype(str).tolist(),
        coast_width=coast_width,
        training_pixels=counts,
        cloud_share=split.cloud_shares,
        class_shares=split.class_shares,
        seed=seed,
        source=str(scene.attrs.get("source", "")),
        platform_name=str(scene.attrs.get("platform_name", "")),
        calibration_mode=scene.attrs.get("calibration_mode"),
    ).as_dict()
    return model


def require_times(scene: xr.Dataset) -> xr.Dataset:
    """Return a checked scene, or raise a :class:`SceneError` if it is a single acquisition.

    Acquisitions without times are refused too: they are held out by days.
    """
    if "time" not in scene.dims:
        raise SceneError(
            "The scene needs many acquisitions along the dimension time, but it has no such "
            "dimension. Open several files at once, or concatenate scenes along time."
        )
    if scene["time"].dtype.kind != "M":
        raise SceneError(
            f"The scene needs the time of each acquisition, by whose days it is split, but its "
            f"coordinate time holds {scene['time'].dtype}. Give the times in UTC "
            f"(scene.assign_coords(time=...))."
        )
    return scene


def daylight_regimes(median: float) -> tuple[Regime, ...]:
    """Return the four regimes of ``DAYLIGHT`` with the edge between high and mid in degrees."""
    high, mid, low, night = DAYLIGHT
    return (
        Regime(high.name, high.low, median, high.features),
        Regime(mid.name, median, mid.high, mid.features),
        low,
        night,
    )


def _affordable_pixels(scene: xr.Dataset, pixels: int, memory_limit: int | None) -> int:
    """Return how many pixels of a regime fit into the memory, at most ``pixels``."""
    if memory_limit is None:
        return pixels
    fixed = PROCESS_BYTES + SCENE_BYTES * int(
        np.prod([scene.sizes[d] for d in ("time", "y", "x")])
    )
    affordable = (memory_limit - fixed) // (PIXEL_BYTES * len(DAYLIGHT))
    if affordable < LEAST_PIXELS:
        least = fixed + LEAST_PIXELS * PIXEL_BYTES * len(DAYLIGHT)
        raise SceneError(
            f"{memory_limit / 1e9:.2g} GB of memory are too little to learn from this scene: "
            f"allow {least / 1e9:.2g} GB, or fit on fewer days or pixels (--time, --box; in "
            f"Python scene.isel(...))."
        )
    return min(pixels, affordable)


# Which pixels are learned from


@dataclass(frozen=True)
class LandmarkPixels:
    """Pixels of a scene by what they are used for; arrays are (time, y, x) unless noted."""

    labels: Array
    angle: Array
    """Solar zenith angle, degrees."""
    median: float
    """Edge between the regimes high and mid, degrees."""
    held_out: Array
    """Acquisitions to test on, (time,) bool."""
    days: list[str]
    """The held-out days, YYYY-MM-DD."""
    regimes: dict[str, Array]
    """The pixels of each regime, bool."""
    learnable: dict[str, Array]
    """Those of each regime that may be learned from, bool."""
    legend: Legend
    """The classes of the label."""
    shares: dict[str, tuple[float, ...]]
    """Share of each class in the label of each regime, on training days; of cloud masks, away from
    the coast."""

    @property
    def cloud_shares(self) -> dict[str, float | None] | None:
        """The share of cloud in each regime; None if no class is known to be cloud."""
        cloud = self.legend.cloud_index
        if cloud is None:
            return None
        return {regime: shares[cloud] for regime, shares in self.shares.items()}

    @property
    def class_shares(self) -> dict[str, dict[str, float]] | None:
        """The shares of each regime by name; None of cloud and clear alone."""
        if self.legend.cloud is not None and len(self.legend.classes) == 2:
            return None
        return {
            regime: dict(zip(self.legend.names, shares, strict=True))
            for regime, shares in self.shares.items()
        }


def choose_pixels(
    scene: xr.Dataset, label: str, holdout: float, seed: int, coast_width: int
) -> LandmarkPixels:
    """Hold out whole days of a checked scene, and choose the pixels of the others to learn from.

    Pixels within ``coast_width`` of the coast that the label calls cloudy are not learned from; if
    it is not known which class is cloud, all are.
    The edge between high and mid is the median angle of the training days.
    """
    labels = read_mask(scene, label)
    legend = label_legend(scene[label], labels)
    training, held_out, days = hold_out_days(scene["time"].values, holdout, seed)
    inland = allowed = training[:, None, None]
    if legend.cloud_index is not None:
        coast = coastal_pixels(scene, coast_width)[None]
        inland = inland & ~coast
        allowed = allowed & ~(coast & (labels == legend.classes[legend.cloud_index]))
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
        legend,
        {
            name: label_shares(
                legend,
                labels[inland & lit],
                f"Regime {name!r} has no training pixels",
                "Use a scene of more days, or one that covers this regime",
            )
            for name, lit in regimes.items()
        },
    )


def read_mask(scene: xr.Dataset, name: str) -> Array:
    """Return the values of a mask or another label of a scene, (time, y, x)."""
    if name not in scene:
        raise SceneError(
            f"The scene has no {name!r} to learn from. Found: "
            f"{', '.join(map(str, scene.data_vars))}. Give a sensor's files with their mask "
            f"(--mask, in Python undulatus.scenes.open_scene(..., mask=...)), or name another "
            f"label."
        )
    return np.asarray(require_dims(scene[name], *DIMS).values)


def coastal_pixels(scene: xr.Dataset, width: int) -> Array:
    """Return which pixels lie within ``width`` of the coast, (y, x) bool.

    Without a ``land_mask`` there are none.
    """
    if "land_mask" not in scene:
        return np.zeros((scene.sizes["y"], scene.sizes["x"]), bool)
    return near_coast(scene["land_mask"].transpose("y", "x").values, width)


def _training_rows(
    scene: xr.Dataset, split: LandmarkPixels, drawn: dict[str, Array]
) -> tuple[dict[str, Array], Array, Array]:
    """Return the pixels drawn as columns by name, with their labels and days (as numbers).

    Pixels that lack a feature of their regime are left out.
    """
    chosen = np.sort(np.concatenate(list(drawn.values())))
    with working_on("reading pixels") as work:
        values = gather_pixels(landmark_features(scene, checked=True), chosen, work.report)
    angle = split.angle.ravel()[chosen]
    usable = _has_its_features(values, angle)
    values, angle, chosen = values[usable], angle[usable], chosen[usable]
    columns = {name: values[:, column] for column, name in enumerate(FEATURES)}
    days = scene["time"].values.astype("datetime64[D]").astype(np.int64)
    y = split.labels.ravel()[chosen].astype(np.int64)
    return columns | {ANGLE: angle}, y, days[chosen // split.labels[0].size]


def _has_its_features(values: Array, angle: Array) -> Array:
    """Return which pixels have all the features that their regime needs, (n,) bool."""
    thermal = values[:, [FEATURES.index(name) for name in NIGHT_FEATURES]]
    complete = finite_rows(values) & np.isfinite(angle)
    return np.where(angle >= NIGHT, finite_rows(thermal), complete)


# Scores


@dataclass(frozen=True)
class RegimeScores:
    """Scores of some of the held-out pixels of a regime against one reference.

    ``part`` is ``"all"``, ``"coast"`` or ``"away from coast"``; ``regime`` is ``"all"`` of a model
    without regimes. ``label_accuracy`` is that of the mask the model learned from, where the
    reference is the truth. Models of other classes than a mask's have :class:`ManyClassScores`.
    """

    regime: str
    part: str
    reference: str
    pixels: int
    scores: Scores | ManyClassScores
    label_accuracy: float | None = None


def score_scene(
    model: Any,
    scene: xr.Dataset,
    *,
    label: str | None = None,
    progress: Progress = lambda line: None,
) -> list[RegimeScores]:
    """Score a model on the held-out days of a scene, regime by regime.

    The reference is the label, and the truth where the scene has it. Scored are all pixels and,
    where there is a land mask, those at the coast (one pixel to either side) and those away from
    it. A scene that shares no day with the held-out ones is scored on days that were not learned
    from, and if it has none, whole: :func:`undulatus.products.basis.scoring_basis` says which.

    A model of other classes than a mask's is scored against the label alone, class by class, with
    intervals from whole days; it may be one without regimes.

    Parameters
    ----------
    label : str, optional
        Variable of the scene to score against; the one that the model learned from if absent.
    """
    scene = require_times(check_scene(scene))
    provenance = Provenance.of(model)
    _, chosen = scored_times(model, scene)
    if not chosen.all():
        scene = scene.isel(time=np.flatnonzero(chosen))
    if not is_scored_as_mask(model):
        return _score_by_class(model, scene, find_label(model, scene, label), progress)
    if label is not None:
        require_mask(scene[find_label(model, scene, label)])
    label = label or provenance.label or LEVEL2_MASK
    masks = {name: read_mask(scene, name) for name in (label, CLOUD_TRUTH) if name in scene}
    if not masks:
        raise SceneError(f"The scene has neither {label!r} nor {CLOUD_TRUTH!r} to score against.")
    progress(f"classifying {scene.sizes['time']:,} acquisitions")
    probability = cloud_probability(model, scene)
    assigned = model.assign(np.asarray(scene[ANGLE].values))
    parts = _parts(scene)
    rows = []
    for reference, mask in masks.items():
        known = np.isfinite(probability) & ((mask == 0) | (mask == 1))
        learned = masks.get(label) if reference == CLOUD_TRUTH else None
        for index, regime in enumerate(model.regimes_):
            for part, inside in parts.items():
                chosen = known & (assigned == index) & inside
                if chosen.any():
                    scores = _score_pixels(chosen, probability, mask, learned)
                    rows.append(RegimeScores(regime.name, part, reference, *scores))
    return rows


def _parts(scene: xr.Dataset) -> dict[str, Array]:
    """Return the pixels of each part of a scene, (1, y, x) bool."""
    coast = coastal_pixels(scene, 1)[None]
    everywhere = {"all": np.ones_like(coast)}
    if "land_mask" not in scene:
        return everywhere
    return everywhere | {"coast": coast, "away from coast": ~coast}


def _score_pixels(
    chosen: Array, probability: Array, mask: Array, learned: Array | None
) -> tuple[int, Scores, float | None]:
    """Return how many pixels were chosen, their scores, and the accuracy of a learned mask."""
    cloudy = mask[chosen] == 1
    label_accuracy = None
    if learned is not None:
        label_accuracy = float(np.mean((learned[chosen] == 1) == cloudy))
    scores = score(cloudy, probability[chosen].astype(np.float64))
    return int(chosen.sum()), scores, label_accuracy


# Scores class by class


def _score_by_class(
    model: Any, scene: xr.Dataset, label: str, progress: Progress
) -> list[RegimeScores]:
    truth = read_classes(require_dims(scene[label], *DIMS), model.classes_)
    progress(f"classifying {scene.sizes['time']:,} acquisitions")
    probability = class_probabilities(model, scene)
    known = np.isfinite(probability[..., 0]) & (truth.codes >= 0)
    days = scene["time"].values.astype("datetime64[D]").astype(np.int64)
    day = np.broadcast_to(days[:, None, None], known.shape)
    regimes = {"all": np.ones_like(known)}
    if isinstance(model, RegimeClassifier):
        assigned = model.assign(np.asarray(scene[ANGLE].values))
        regimes = {r.name: assigned == index for index, r in enumerate(model.regimes_)}
    rows = []
    for regime, in_regime in regimes.items():
        for part, in_part in _parts(scene).items():
            chosen = known & in_regime & in_part
            if chosen.any():
                scores = score_classes(
                    model.classes_[truth.codes[chosen]],
                    probability[chosen],
                    model.classes_,
                    names=truth.names,
                    groups=day[chosen],
                )
                rows.append(RegimeScores(regime, part, label, int(chosen.sum()), scores))
    return rows
