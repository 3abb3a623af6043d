"""What more threads bring, and what a change brings: fits, labels and probabilities a second.

    python -m benchmarks.cores [TASK | --data FILE.npz] [--threads 1,2,4,8,16]
    python -m benchmarks.cores [TASK | --data FILE.npz] --against FOLDER [--seeds 5] [--threads 2]
    python -m benchmarks.cores TASK --write FILE.npz

Without ``--against``, the same fit is made with each number of threads, and its model must be the
same to the last bit. With it, this checkout and the one in FOLDER take turns at the same fits and
predictions, so that both meet the same load. Fits and predictions run in processes of their own,
which need no more than the package needs. ``--write`` makes the file that ``--data`` reads on a
machine without a network: X, y, X_test, y_test of a task of :mod:`benchmarks.tasks`.

Shorter: ``--iterations 12`` (the first of an optimisation only), ``--rows 100000``, ``--threads
1,16``.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, Any]
Record = dict[str, Any]

HERE = Path(__file__).resolve().parent.parent
"""This checkout."""

PARTS = {
    "search": ("undulatus.estimators.classifier", "choose_lengthscale"),
    "learning": ("undulatus.gp.learning", "optimise"),
    "passes": ("undulatus.gp.learning", "fit_posteriors"),
}
"""Functions whose time is shown apart, where a checkout has them."""

LEAST_SECONDS = 1.5
"""A rate is the best of calls that take so long together, but for at least two calls."""


# One checkout, in a process of its own


class Checkout:
    """A process that fits and predicts with the package of one checkout, when asked."""

    def __init__(self, folder: Path, data: Path, options: argparse.Namespace) -> None:
        settings = {
            "data": str(data),
            "n_frequencies": options.frequencies,
            "n_estimators": options.n_estimators,
            "max_iter": options.iterations,
            "predicted_rows": options.predict_rows,
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(settings)],
            env=os.environ | {"PYTHONPATH": str(folder.resolve() / "src")},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str, **details: Any) -> Record:
        """Return what the process measured."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"what": what} | details) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"{what} failed: see the error above")
        result: Record = json.loads(answer)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()


def serve(settings: Record) -> None:
    """Fit and predict as standard input asks, a line of JSON each."""
    warnings.simplefilter("ignore")
    with np.load(settings["data"]) as file:
        data = {name: file[name] for name in ("X", "y", "X_test", "y_test")}
    repeats = -(-settings["predicted_rows"] // len(data["X"]))
    predicted = np.concatenate([data["X"]] * repeats)[: settings["predicted_rows"]]
    model: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["what"] == "fit":
            model, result = measure_fit(data, settings, asked["threads"], asked["seed"])
        else:
            model.set_params(n_jobs=asked["threads"])
            result = {"rate": rate(getattr(model, asked["what"]), predicted)}
        print(json.dumps(result), flush=True)


def measure_fit(
    data: dict[str, Array], settings: Record, threads: int, seed: int
) -> tuple[Any, Record]:
    """Return a fitted model, and its times, its test NLL and its checksum."""
    from undulatus import VFFGPC

    options = {name: settings[name] for name in ("n_frequencies", "n_estimators", "max_iter")}
    few = np.r_[tuple(np.flatnonzero(data["y"] == own)[:300] for own in (0, 1))]
    # A tiny fit first, so that imports and first calls are not timed.
    VFFGPC(5, n_estimators=1, max_iter=1, solver="stochastic").fit(data["X"][few], data["y"][few])
    model = VFFGPC(random_state=seed, n_jobs=threads, **options)
    with part_times() as parts:
        began, cpu = time.perf_counter(), time.process_time()
        model.fit(data["X"], data["y"])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    likelihood = np.take_along_axis(
        model.predict_proba(data["X_test"]), data["y_test"][:, None].astype(int), axis=1
    )
    return model, {
        "seconds": seconds,
        "cpu": cpu,
        "parts": parts,
        "nll": float(-np.mean(np.log(np.maximum(likelihood, 1e-12)))),
        "iterations": model.n_iter_,
        "passes": len(model.lower_bounds_),
        "model": checksum(model),
    }


@contextmanager
def part_times() -> Iterator[dict[str, tuple[float, float]]]:
    """Measure the wall and CPU seconds of the parts of a fit (of estimators at once, too much)."""
    found = dict.fromkeys(PARTS, (0.0, 0.0))
    originals = []

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            began, cpu = time.perf_counter(), time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                wall, own = found[name]
                wall += time.perf_counter() - began
                found[name] = wall, own + time.process_time() - cpu

        return call

    for part, (module_name, name) in PARTS.items():
        with suppress(ImportError, AttributeError):
            module = import_module(module_name)
            originals.append((module, name, getattr(module, name)))
            setattr(module, name, timed(part, getattr(module, name)))
    try:
        yield found
    finally:
        for module, name, function in originals:
            setattr(module, name, function)


def checksum(model: Any) -> str:
    """Return a digest of all numbers that a model predicts with."""
    digest = hashlib.sha256()
    for fit in model.estimators_:
        digest.update(np.ascontiguousarray(fit.frequencies).tobytes())
        for own in fit.latents:
            digest.update(np.array([own.signal_variance, own.prior_mean]).tobytes())
            for array in (own.posterior.mean, own.posterior.root):
                digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:12]


def rate(function: Callable[[Array], object], rows: Array) -> float:
    """Return the rows a second of a prediction, the best of several calls."""
    times: list[float] = []
    while len(times) < 2 or sum(times) < LEAST_SECONDS:
        began = time.perf_counter()
        function(rows)
        times.append(time.perf_counter() - began)
    return len(rows) / min(times)


# Tables


def compare_threads(data: Path, options: argparse.Namespace) -> Record:
    """Print a row for each number of threads, and what the last has over the first."""
    print(
        "threads   fit s  search  learns  passes    rest   CPU s      NLL  labels/s"
        "  probabilities/s  model"
    )
    found = []
    with Checkout(HERE, data, options) as own:
        for threads in options.threads:
            fit = own.ask("fit", threads=threads, seed=0)
            rates = [
                own.ask(what, threads=threads)["rate"] for what in ("predict", "predict_proba")
            ]
            found.append((fit, rates))
            walls = [wall for wall, _ in fit["parts"].values()]
            parts = "".join(f"{wall:8.2f}" for wall in (*walls, fit["seconds"] - sum(walls)))
            print(
                f"{threads:7}{fit['seconds']:8.2f}{parts}{fit['cpu']:8.1f}{fit['nll']:9.4f}"
                f"{rates[0]:10.3g}{rates[1]:17.3g}  {fit['model']}",
                flush=True,
            )
    (first, first_rates), (last, last_rates) = found[0], found[-1]
    print(
        f"{options.threads[-1]} threads against {options.threads[0]}: "
        f"whole fit {first['seconds'] / last['seconds']:.2f} x, "
        f"labels {last_rates[0] / first_rates[0]:.2f} x, "
        f"probabilities {last_rates[1] / first_rates[1]:.2f} x, "
        f"{'the same model' if len({fit['model'] for fit, _ in found}) == 1 else 'OTHER MODELS'}"
    )
    return {
        "threads": {
            str(threads): {name: fit[name] for name in ("seconds", "cpu", "parts", "nll", "model")}
            | {"labels_per_second": rates[0], "probabilities_per_second": rates[1]}
            for threads, (fit, rates) in zip(options.threads, found, strict=True)
        }
    }


def compare_checkouts(data: Path, options: argparse.Namespace) -> Record:
    """Print fits and rates of both checkouts with each number of threads, and their ratios."""
    folders = {"this": HERE, "other": options.against}
    with (
        Checkout(HERE, data, options) as this,
        Checkout(options.against, data, options) as other,
    ):
        checkouts = dict(zip(folders, (this, other), strict=True))
        return {
            "this_against_other": {
                str(threads): compare_at(checkouts, threads, options.seeds)
                for threads in options.threads
            }
        }


def compare_at(checkouts: dict[str, Checkout], threads: int, seeds: int) -> Record:
    """Print fits and rates of both checkouts with so many threads, and return their ratios.

    The parts of a fit are in CPU seconds.
    """
    whats = ("fit", "cpu", "nll", "predict", "predict_proba")
    found: dict[str, dict[str, list[float]]] = {
        name: {what: [] for what in whats} for name in checkouts
    }
    print(f"{threads} threads")
    print(
        "seed checkout    fit s   CPU s  search  learns  passes      NLL  labels/s"
        "  probabilities/s"
    )
    for seed in range(seeds):
        # Who is first alternates too: a machine may slow down as it gets warm.
        for name, own in list(checkouts.items())[:: 1 if seed % 2 else -1]:
            fit = own.ask("fit", threads=threads, seed=seed)
            rates = {what: own.ask(what, threads=threads)["rate"] for what in whats[3:]}
            for what, value in {**fit, **rates, "fit": fit["seconds"]}.items():
                if what in whats:
                    found[name][what].append(value)
            parts = "".join(f"{cpu:8.2f}" for _, cpu in fit["parts"].values())
            print(
                f"{seed:4} {name:8}{fit['seconds']:9.2f}{fit['cpu']:8.2f}{parts}{fit['nll']:9.4f}"
                f"{rates['predict']:10.3g}{rates['predict_proba']:17.3g}",
                flush=True,
            )
    this, other = found["this"], found["other"]
    ratio = {what: np.mean(this[what]) / np.mean(other[what]) for what in ("fit", "cpu")}
    ratio |= {what: max(this[what]) / max(other[what]) for what in whats[3:]}
    print(
        f"this against other: fit {ratio['fit']:.3f} of the time, {ratio['cpu']:.3f} of the CPU "
        f"time; labels {ratio['predict']:.2f} x, probabilities {ratio['predict_proba']:.2f} x; "
        f"mean NLL {np.mean(this['nll']):.4f} and {np.mean(other['nll']):.4f}"
    )
    return {"ratio": {what: float(own) for what, own in ratio.items()}, "found": found}


# Data


def write_data(task_name: str, rows: int | None, path: Path) -> None:
    """Write training and test rows of a task, compressed."""
    from benchmarks import tasks

    task = tasks.load(task_name, rows)
    np.savez_compressed(
        path,
        X=task.X,
        y=task.y.astype(np.int8),
        X_test=task.X_test,
        y_test=task.y_test.astype(np.int8),
    )
    print(f"Wrote {path}: {len(task.y):,} training rows, {len(task.y_test):,} test rows.")


def main() -> None:
    """Print the table asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", nargs="?", default="covertype")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--threads", type=lambda text: [int(own) for own in text.split(",")])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("-D", "--frequencies", type=int, default=200)
    parser.add_argument("--n-estimators", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--predict-rows", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", type=Path, help="keep what was measured, as JSON")
    parser.add_argument("--serve", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    if options.write:
        write_data(options.task, options.rows, options.write)
        return
    options.threads = options.threads or ([2] if options.against else [1, 2, 4, 8, 16])
    compare = compare_checkouts if options.against else compare_threads
    if options.data:
        found = compare(options.data, options)
    else:
        with tempfile.TemporaryDirectory() as folder:
            data = Path(folder) / "data.npz"
            write_data(options.task, options.rows, data)
            found = compare(data, options)
    if options.output:
        options.output.write_text(json.dumps(about(options) | found, indent=1) + "\n")


def about(options: argparse.Namespace) -> Record:
    """Return when and where this ran, and on what."""
    from undulatus._system import count_cores, processor_name

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": processor_name(),
        "cores": count_cores(),
        "data": options.data.stem if options.data else options.task,
        "n_frequencies": options.frequencies,
        "n_estimators": options.n_estimators,
    }


if __name__ == "__main__":
    main()
