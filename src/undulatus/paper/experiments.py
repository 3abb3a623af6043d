"""Run the paper's two experiments: prepare the data, run the trials, go on where a run stopped."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from undulatus._files import atomic_write
from undulatus._system import available_memory, blas_libraries, count_cores, processor_name
from undulatus.errors import InputError
from undulatus.paper.best_maps import draw_maps
from undulatus.paper.claims import CLAIMS
from undulatus.paper.pool import Budgets, RunProgress, run_trials
from undulatus.paper.problems import (
    MANIFEST,
    open_landmark,
    open_sounder,
    prepare_landmarks,
    prepare_sounder,
    read_manifest,
)
from undulatus.paper.runs import DATA_FOLDER, FACTS_FILE, TRIALS_FILE, RunFacts, read_facts
from undulatus.paper.scales import (
    LANDMARK_SCALES,
    LANDMARKS,
    SOUNDER,
    SOUNDER_SCALES,
    Scale,
)
from undulatus.paper.trials import Trial, open_store

SIMULATOR_SOURCE = "undulatus synthetic"
"""How the ``source`` of a simulator begins."""

MEMORY_SHARE = 0.8
"""Share of the free memory that trials may take, unless a run is given its own limit."""


@dataclass(frozen=True)
class Experiment:
    """How an experiment gets its data, and how hard its simulator is."""

    scales: dict[str, Scale]
    open: Callable[[Path | None, Scale, int], Any]
    prepare: Callable[..., dict[str, Any]]
    difficulty: str
    """How hard the simulator was made, for the report."""
    draw: Callable[..., None] | None = None
    """Draws pictures that need more than the records, once all trials are done."""


EXPERIMENTS = {
    LANDMARKS: Experiment(
        LANDMARK_SCALES,
        open_landmark,
        prepare_landmarks,
        "the simulator's Level-2-like mask was made to err along the coast, and under each sun as "
        "real masks do; how hard its pixels are follows from its physics",
        draw_maps,
    ),
    SOUNDER: Experiment(
        SOUNDER_SCALES,
        open_sounder,
        prepare_sounder,
        "the simulator was made so hard that gradient boosting is right in 85 % of its spectra; "
        "no other classifier was used to set that",
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
    progress: Callable[[RunProgress], None] = lambda progress: None,
) -> dict[str, int]:
    """Run an experiment, or go on with one, and return how many trials have each status.

    Parameters
    ----------
    experiment : {"landmarks", "iavisa"}
    out : path
        Folder of the run. A run that was interrupted goes on where it stopped if it is started
        again with the same experiment, scale, data and seed.
    scale : {"quick", "medium", "paper"}
    data : path, optional
        A scene with ``cloud_mask_l2``, or spectra; by default a simulator.
    workers : int, optional
        Processes, one thread each; by default one for each core.
    seconds : float, optional
        Most CPU time of a trial; by default the scale's.
    memory : float, optional
        Bytes that trials may hold; by default four fifths of what is free.
    """
    recipe = EXPERIMENTS[experiment]
    size = recipe.scales[scale]
    out.mkdir(parents=True, exist_ok=True)
    budgets = Budgets(seconds or size.seconds, memory or MEMORY_SHARE * available_memory())
    with open_store(out / TRIALS_FILE) as store:
        facts = _begin(out, experiment, scale, data, seed)
        began = time.monotonic()
        try:
            manifest = _prepare(out, recipe, size, data, seed, say)
            facts = _with_data(facts, manifest)
            facts.write(out)
            trials = list_trials(experiment, size, manifest["parts"], seed)
            folder, processes = out / DATA_FOLDER, workers or count_cores()
            run_trials(
                trials, folder, store, workers=processes, budgets=budgets, progress=progress
            )
            if recipe.draw is not None:
                recipe.draw(out, folder, data, size, trials, store.records.values(), say)
        finally:
            spent = (facts.seconds or 0.0) + time.monotonic() - began
            replace(facts, seconds=spent).write(out)
        statuses = [store.records[trial.id]["status"] for trial in trials]
    return {status: statuses.count(status) for status in dict.fromkeys(statuses)}


def list_trials(
    experiment: str, scale: Scale, parts: dict[str, dict[str, Any]], seed: int
) -> list[Trial]:
    """Return the trials of a scale, each once, as far as there are enough rows."""
    trials = {}
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
                                trials[trial.id] = trial
    return list(trials.values())


def _begin(out: Path, experiment: str, scale: str, data: Path | None, seed: int) -> RunFacts:
    """Return the facts of a run; one that goes on keeps its start and the time it has taken."""
    path = None if data is None else str(data.resolve())
    facts = RunFacts(
        experiment,
        scale,
        seed,
        data={"synthetic": data is None, "path": path},
        environment=describe_environment(),
        grid=EXPERIMENTS[experiment].scales[scale].as_dict(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if not (out / FACTS_FILE).exists():
        facts.write(out)
        return facts
    earlier = read_facts(out)
    _require_same(out, earlier, facts)
    return replace(facts, started=earlier.started, seconds=earlier.seconds)


def _require_same(out: Path, earlier: RunFacts, now: RunFacts) -> None:
    pairs = [
        ("experiment", earlier.experiment, now.experiment),
        ("scale", earlier.scale, now.scale),
        ("seed", earlier.seed, now.seed),
        ("data", earlier.data["path"] or "a simulator", now.data["path"] or "a simulator"),
    ]
    other = [f"{name} {was}, not {wanted}" for name, was, wanted in pairs if was != wanted]
    if not other and earlier.grid != now.grid:
        other = ["the trials of another version of undulatus"]
    if other:
        raise InputError(
            f"{out} holds another run: {'; '.join(other)}. Write to another folder, or repeat "
            f"the earlier command to go on with that run."
        )


def _with_data(facts: RunFacts, manifest: dict[str, Any]) -> RunFacts:
    """Add what is known of the data, and whether they are simulated, also if read from a file."""
    data = facts.data | manifest
    data["synthetic"] |= str(data["source"]).startswith(SIMULATOR_SOURCE)
    if not data["synthetic"]:
        return replace(facts, data=data)
    data["difficulty"] = EXPERIMENTS[facts.experiment].difficulty
    built_in = (
        claim.id
        for claim in CLAIMS.values()
        if claim.experiment == facts.experiment and claim.built_in
    )
    return replace(facts, data=data, built_in=tuple(built_in))


def _prepare(
    out: Path,
    recipe: Experiment,
    scale: Scale,
    data: Path | None,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Prepare the data unless that was done before; return their manifest."""
    folder = out / DATA_FOLDER
    if folder.exists():
        return read_manifest(folder)
    say("making synthetic data: no satellite took them" if data is None else f"opening {data}")
    opened = recipe.open(data, scale, seed)
    with atomic_write(folder) as unfinished:
        unfinished.mkdir()
        manifest = recipe.prepare(opened, scale, seed, unfinished, say)
        (unfinished / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    return manifest


def describe_environment() -> dict[str, Any]:
    """Return the machine and the versions of libraries, on which times depend."""
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
