"""A run of an experiment in its folder: prepared once, described in ``run.json``, resumed."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from undulatus._files import whole_or_not_at_all
from undulatus._system import available_memory, blas_libraries, count_cores, processor_name
from undulatus.errors import InputError
from undulatus.paper.best_maps import draw_maps
from undulatus.paper.pool import Standing, run_trials
from undulatus.paper.problems import (
    MANIFEST,
    open_landmark,
    open_sounder,
    prepare_iavisa,
    prepare_landmarks,
    read_manifest,
)
from undulatus.paper.scales import IAVISA, LANDMARKS, Scale
from undulatus.paper.trials import Budgets, Trial, TrialStore, write_synced

TRIALS, FACTS, DATA = "trials.jsonl", "run.json", "data"

TWINS = "undulatus synthetic"
"""How the sources of twins begin."""

MEMORY_SHARE = 0.8
"""Share of the memory that is free when a run starts which its trials may take."""


@dataclass(frozen=True)
class Experiment:
    """How the data of an experiment are had, and what of its findings a twin was made to show."""

    scales: dict[str, Scale]
    open: Callable[[Path | None, Scale, int], Any]
    prepare: Callable[..., dict[str, Any]]
    built_in: tuple[str, ...]
    """Claims that cannot but hold of the twin."""
    difficulty: str
    """How hard the twin was made, in words."""
    draw: Callable[..., None] | None = None
    """What is drawn when all trials are done, but for what the report draws from records."""


EXPERIMENTS = {
    "landmarks": Experiment(
        LANDMARKS,
        open_landmark,
        prepare_landmarks,
        ("coast",),
        "the twin's Level-2-like mask was made to err along the coast, and under each sun as "
        "real masks do; how hard its pixels are follows from its physics",
        draw_maps,
    ),
    "iavisa": Experiment(
        IAVISA,
        open_sounder,
        prepare_iavisa,
        (),
        "the twin was made so hard that gradient boosting is right in 85 % of its spectra; no "
        "other classifier was looked at",
    ),
}


def reproduce(
    experiment: str,
    out: Path,
    *,
    scale: str = "quick",
    data: Path | None = None,
    seed: int = 0,
    workers: int | None = None,
    seconds: float | None = None,
    memory: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    progress: Callable[[Standing], None] = lambda standing: None,
) -> dict[str, int]:
    """Run an experiment, or go on with one, and return how many trials ended in which status.

    Parameters
    ----------
    experiment : {"landmarks", "iavisa"}
    out : path
        Folder of the run. A run that was interrupted goes on where it stopped, if it is asked
        for the same.
    scale : {"quick", "medium", "paper"}
    data : path, optional
        A scene with ``cloud_mask_l2``, or spectra; a twin when absent.
    workers : int, optional
        Processes, one thread each; as many as there are cores when absent.
    seconds : float, optional
        CPU time of a trial at most; the scale has its own.
    memory : float, optional
        Bytes that trials may hold; four fifths of what is free when absent.
    """
    asked = EXPERIMENTS[experiment].scales[scale]
    out.mkdir(parents=True, exist_ok=True)
    budgets = Budgets(seconds or asked.seconds, memory or MEMORY_SHARE * available_memory())
    with TrialStore(out / TRIALS) as store:
        facts = _begin(out, experiment, scale, data, seed)
        began = time.monotonic()
        try:
            manifest = _prepare(out, experiment, asked, data, seed, say)
            facts["data"] |= manifest
            _tell_of_twin(facts, EXPERIMENTS[experiment])
            _write_facts(out, facts)
            trials = list_trials(experiment, asked, manifest["parts"], seed)
            run_trials(
                trials, out / DATA, store, workers=workers or count_cores(), budgets=budgets,
                progress=progress,
            )  # fmt: skip
            made = EXPERIMENTS[experiment]
            if made.draw is not None:
                made.draw(out, out / DATA, data, asked, trials, store.records.values(), say)
        finally:
            facts["seconds"] = (facts["seconds"] or 0.0) + time.monotonic() - began
            _write_facts(out, facts)
        statuses = [store.records[trial.id]["status"] for trial in trials]
    return {status: statuses.count(status) for status in dict.fromkeys(statuses)}


def list_trials(
    experiment: str, scale: Scale, parts: dict[str, dict[str, Any]], seed: int
) -> list[Trial]:
    """Return the trials a scale asks for, each once, as far as the data have rows for them."""
    found = {}
    for grid in scale.grids:
        for part in grid.regimes or tuple(parts):
            rows = parts[part]["rows"]
            for n in (rows if size is None else size for size in grid.sizes):
                for method in grid.methods:
                    for frequencies in grid.frequencies or (None,):
                        for run in range(grid.runs):
                            trial = Trial(
                                experiment, method, grid.solver, n, parts[part]["d"], run, seed,
                                frequencies, part if grid.regimes else None, n == rows,
                            )  # fmt: skip
                            if n <= rows:
                                found[trial.id] = trial
    return list(found.values())


def _begin(out: Path, experiment: str, scale: str, data: Path | None, seed: int) -> dict[str, Any]:
    """Return the facts of a run, those it began with if it goes on."""
    path = None if data is None else str(data.resolve())
    facts: dict[str, Any] = {
        "experiment": experiment,
        "scale": scale,
        "seed": seed,
        "data": {"synthetic": data is None, "path": path},
        "environment": describe_environment(),
        "grid": EXPERIMENTS[experiment].scales[scale].as_dict(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": None,
    }
    if not (out / FACTS).exists():
        _write_facts(out, facts)
        return facts
    earlier = json.loads((out / FACTS).read_text(encoding="utf-8"))
    _require_same(out, earlier, json.loads(json.dumps(facts)))
    return facts | {name: earlier[name] for name in ("started", "seconds")}


def _tell_of_twin(facts: dict[str, Any], made: Experiment) -> None:
    """Add what a twin was made to show, also if it was read from a file."""
    data = facts["data"]
    data["synthetic"] |= str(data["source"]).startswith(TWINS)
    facts["built_in"] = list(made.built_in) if data["synthetic"] else []
    if data["synthetic"]:
        data["difficulty"] = made.difficulty


def _require_same(out: Path, earlier: dict[str, Any], asked: dict[str, Any]) -> None:
    pairs = [(name, earlier.get(name), asked[name]) for name in ("experiment", "scale", "seed")]
    pairs.append(("data", earlier["data"]["path"] or "a twin", asked["data"]["path"] or "a twin"))
    other = [f"{name} {was}, not {now}" for name, was, now in pairs if was != now]
    if not other and earlier["grid"] != asked["grid"]:
        other = ["the trials of another version of undulatus"]
    if other:
        raise InputError(
            f"{out} holds another run: {'; '.join(other)}. Write to another folder, or ask for "
            f"the same again to go on with it."
        )


def _prepare(
    out: Path,
    experiment: str,
    scale: Scale,
    data: Path | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Return the manifest of the prepared data, which are prepared if they are not there yet."""
    if (out / DATA).exists():
        return read_manifest(out / DATA)
    made = EXPERIMENTS[experiment]
    say("making synthetic data: no satellite took them" if data is None else f"opening {data}")
    opened = made.open(data, scale, seed)
    with whole_or_not_at_all(out / DATA) as unfinished:
        unfinished.mkdir()
        manifest = made.prepare(opened, scale, seed, unfinished, say)
        write_synced(unfinished / MANIFEST, [json.dumps(manifest, indent=1)])
    return manifest


def _write_facts(out: Path, facts: dict[str, Any]) -> None:
    fresh = out / f".{FACTS}.new"
    write_synced(fresh, [json.dumps(facts, indent=1) + "\n"])
    fresh.replace(out / FACTS)


def describe_environment() -> dict[str, Any]:
    """Return what times depend on."""
    return {
        "undulatus": version("undulatus"),
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "scipy")},
        "sklearn": version("scikit-learn"),
        "blas": ", ".join(blas_libraries()),
        "cpu": processor_name(),
        "cores": count_cores(),
        "platform": platform.platform(),
    }
