"""Run every contender on every task, one after the other, each in its own process.

    python -m benchmarks.run [--quick] [--resume]

Writes ``benchmarks/results/benchmark.json`` (``quick.json``) after each trial, then a table and
plots. ``--resume`` continues an interrupted run.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.contenders import CONTENDERS, CURVES
from benchmarks.report import write_report
from benchmarks.tasks import TASKS
from undulatus._system import count_cores, processor_name, total_memory

RESULTS = Path(__file__).parent / "results"
QUICK_ROWS = 40_000  # enough for single precision, as in a full run
QUICK_CONTENDERS = (
    *("VFF-GPC D=100", "RFF-GPC D=200", "LightGBM 300", "HistGradientBoosting"),
    *("RBFSampler 400 + logistic", "Nystroem 400 + logistic"),
)


def describe_machine() -> dict[str, Any]:
    """Return the machine and the versions of packages, on which times depend."""
    packages = ("numpy", "scipy", "scikit-learn", "lightgbm", "torch", "gpytorch", "rfflearn")
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": processor_name(),
        "cores": count_cores(),
        "memory_gib": round(total_memory() / 2**30, 1),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def run_module(module: str, *arguments: str) -> dict[str, Any]:
    """Return the JSON that a module prints last, or its error."""
    # Every library uses the cores this process may use; `taskset` limits them for all.
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])


def trials(quick: bool) -> list[tuple[str, str, float]]:
    """Return the task, contender and effort of each trial: first full efforts, then curves."""
    names = QUICK_CONTENDERS if quick else tuple(CONTENDERS)
    with_curves = ("sentinel2",) if quick else ("sentinel2", "covertype")
    plan = []
    for task in TASKS:
        plan += [(task, who, 1.0) for who in names]
        if task in with_curves:
            plan += [(task, who, share) for who in names for share in CURVES.get(who, ())]
    return plan


def main(quick: bool, resume: bool) -> None:
    """Run all trials, and write the results after each."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("quick.json" if quick else "benchmark.json")
    found: dict[str, Any] = {
        "machine": describe_machine(),
        "quick": quick,
        "minutes": 0.0,
        "trials": [],
        "memory": [],
    }
    if resume and path.exists():
        found = json.loads(path.read_text())
    began = time.monotonic() - 60.0 * found["minutes"]

    def keep() -> None:
        found["minutes"] = (time.monotonic() - began) / 60.0
        path.write_text(json.dumps(found, indent=1))

    if "kernels" not in found:
        print("kernels ...", flush=True)
        found["kernels"] = run_module("benchmarks.kernels", *(["quick"] if quick else []))
        keep()
    full_sizes = ((2_000_000, 2, "batch"), (20_000_000, 4, "stochastic"))
    sizes = ((200_000, 4, "stochastic"),) if quick else full_sizes
    for size in sizes[len(found["memory"]) :]:
        print(f"memory of {size[0]:,} rows ...", flush=True)
        found["memory"].append(run_module("benchmarks.memory", *map(str, size)))
        keep()
    plan = trials(quick)
    done = {(t["task"], t["contender"], t["effort"]) for t in found["trials"]}
    for number, (task, who, effort) in enumerate(plan, 1):
        if (task, who, effort) in done:
            continue
        rows = QUICK_ROWS if quick else 0
        result = run_module("benchmarks.trial", task, who, str(effort), str(rows))
        found["trials"].append({"task": task, "contender": who, "effort": effort, **result})
        keep()
        outcome = result.get("failed") or (
            f"NLL {result.get('nll', float('nan')):.4f}, accuracy {result['accuracy']:.4f}, "
            f"fit {result['fit_seconds']:.1f} s"
        )
        print(
            f"[{number}/{len(plan)}, {found['minutes']:.1f} min] "
            f"{task}, {who}, effort {effort}: {outcome}",
            flush=True,
        )
    for written in write_report(found, RESULTS, path.stem):
        print(f"wrote {written}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:], resume="--resume" in sys.argv[1:])
