"""Maps of the held-out days of a landmark, by the best classifiers of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from undulatus.errors import ModelFileError
from undulatus.paper.fitting import fit_trial
from undulatus.paper.problems import HELD_OUT, open_held_out, open_problem, read_manifest
from undulatus.paper.scales import Scale
from undulatus.paper.trials import DONE, Record, Trial
from undulatus.products.landmarks import daylight_regimes
from undulatus.products.maps import map_scene
from undulatus.products.pictures import draw_acquisitions
from undulatus.products.provenance import Provenance
from undulatus.products.views import disagreement
from undulatus.regimes import RegimeClassifier
from undulatus.scenes.features import FEATURES
from undulatus.scenes.scene import ANGLE, LEVEL2_MASK
from undulatus.storage import load_model, save_model

MODEL_FILE = "best.undulatus"

PICTURES = ("figures/maps.png", "figures/maps.pdf")

SOME_CLOUD = (0.2, 0.8)
"""Share of cloud, by the Level-2 mask, in an acquisition shown as a usual one."""


def draw_maps(
    out: Path,
    data: Path,
    scene_path: Path | None,
    scale: Scale,
    trials: Sequence[Trial],
    records: Iterable[Record],
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Draw ``OUT/figures/maps.png`` and ``.pdf``; keep their model as ``OUT/best.undulatus``.

    In each regime the setting of RFF-GPC or VFF-GPC with the highest mean accuracy is fitted again
    on the rows of its first completed run. Two acquisitions of each regime are shown: one in which
    the model's mask and the Level-2 mask differ by about the median, and the one in which they
    differ most. Nothing is drawn unless every regime has such a trial.
    """
    best = best_trials(trials, records)
    if set(best) != {trial.regime for trial in trials}:
        say("no maps: some regimes have no completed trial")
        return
    names = sorted(trial.id for trial in best.values())
    model = _load_model_of(names, out / MODEL_FILE)
    if model is not None and all((out / name).exists() for name in PICTURES):
        return
    scene = open_held_out(scene_path, scale, trials[0].seed, data)
    if model is None:
        model = _fit_again(best, data, say)
        model.provenance_["trials"] = names
        save_model(model, out / MODEL_FILE)
    say(f"maps: classifying {scene.sizes['time']:,} acquisitions of held-out days")
    result = map_scene(model, scene).compute()
    times = choose_acquisitions(model, scene, result)
    shown, mapped = scene.sel(time=times), result.sel(time=times)
    (out / "figures").mkdir(exist_ok=True)
    for name in PICTURES:
        draw_acquisitions(out / name, shown, mapped, title="Clouds on days held out")


def best_trials(trials: Iterable[Trial], records: Iterable[Record]) -> dict[str, Trial]:
    """Return, for each regime, the first completed run of the most accurate setting.

    GPC is left out: mapping with it takes too long.
    """
    by_id = {trial.id: trial for trial in trials if trial.method != "gpc"}
    done = [r for r in records if r["status"] == DONE and r["id"] in by_id]
    if not done:
        return {}
    table = pd.DataFrame(done)
    means = table.groupby(["regime", "method", "solver", "n", "D"])["accuracy"].mean()
    chosen = {}
    for regime, accuracies in means.groupby("regime"):
        alike = table.set_index(accuracies.index.names).loc[[accuracies.idxmax()]]
        chosen[str(regime)] = by_id[alike.loc[alike["run"] == alike["run"].min(), "id"].item()]
    return chosen


def _load_model_of(names: list[str], path: Path) -> RegimeClassifier | None:
    """Load the model of an earlier session, if it is that of these trials."""
    with suppress(OSError, ModelFileError):
        model = load_model(path)
        if model.provenance_.get("trials") == names:
            return model
    return None


def _fit_again(best: dict[str, Trial], data: Path, say: Callable[[str], None]) -> RegimeClassifier:
    manifest = read_manifest(data)
    fitted, shares = {}, {}
    for regime, trial in best.items():
        say(f"maps: fitting {trial.id} again")
        problem = open_problem(data, trial.part, trial.run)
        fitted[regime] = fit_trial(trial, problem).classifier
        shares[regime] = problem.cloud_share
    regimes = [
        replace(regime, features=regime.features or FEATURES)
        for regime in daylight_regimes(manifest["daytime_median_degrees"])
        if regime.name in fitted
    ]
    model = RegimeClassifier.from_fitted(fitted, regimes)
    model.provenance_ = Provenance(
        chain="landmarks",
        method=", ".join(sorted({trial.method for trial in best.values()})),
        label=LEVEL2_MASK,
        daytime_median_degrees=manifest["daytime_median_degrees"],
        held_out_days=json.loads((data / HELD_OUT).read_text()),
        training_pixels={name: trial.n for name, trial in best.items()},
        cloud_share=shares,
        seed=next(iter(best.values())).seed,
        source=manifest["source"],
    ).as_dict()
    return model


def choose_acquisitions(
    model: RegimeClassifier, scene: xr.Dataset, result: xr.Dataset
) -> np.ndarray[Any, Any]:
    """Return two times for each regime: where masks differ by the median, and where most."""
    table = pd.DataFrame(
        {
            "differ": disagreement(scene, result).values,
            "cloud": scene[LEVEL2_MASK].where(scene[LEVEL2_MASK] <= 1).mean(["y", "x"]).values,
            "regime": model.assign(scene[ANGLE].mean(["y", "x"]).values),
        },
        index=scene["time"].values,
    ).dropna()
    times = []
    for _, inside in table[table["regime"] >= 0].groupby("regime"):
        some = inside[inside["cloud"].between(*SOME_CLOUD)]
        ordered = (some if len(some) else inside)["differ"].sort_values(kind="stable")
        times += [ordered.index[len(ordered) // 2], inside["differ"].idxmax()]
    # With few acquisitions the two may be one.
    return np.array(list(dict.fromkeys(times)))
