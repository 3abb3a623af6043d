"""What a model is worth away from its training rows: other places, few rows, other units.

    python -m benchmarks.elsewhere [TASK ...] [--seeds 0,1] [--n-estimators N] [-D N] [--rows N]
        [--data FILE --group-key KEY --folds N] [--figure PATH] [--json PATH]

Tasks, all but ``table`` if none is named:

areas      Covertype without one of its areas, tested there; the areas are the groups
few        3,000 and 5,000 pixels of the Sentinel-2 image, top half to bottom half, five draws
halves     Sentinel-2, top half to bottom half, by ensembles that predict at the cost of D=200
covertype  the same for 500,000 random rows of Covertype
far        latent variance and probability in other units and at a distance; exact GPC beside
table      folds of whole groups of any .npz with X, y (two classes) and an array of groups

VFF-GPC has its defaults but for ``--n-estimators`` and ``-D``. ``--rows`` limits the training rows
of a fit, for a quick look. Tables go to standard output, progress to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.contenders import CONTENDERS
from benchmarks.measure import Meter
from benchmarks.trial import rate
from undulatus import GPC, VFFGPC, datasets
from undulatus._system import count_cores, processor_name
from undulatus.products.scores import score

Array = np.ndarray[Any, Any]
Record = dict[str, Any]

OURS, BOOSTING, SHARES = "VFF-GPC", "HistGradientBoosting", "training shares"

AREAS = (0, 2, 3)
"""The areas of Covertype that are left out in turn; area 1 has few rows."""

FEW = (3_000, 5_000)
"""Training rows of ``few``."""

EQUAL_COST = ((1, 200), (2, 141), (4, 100), (5, 89), (8, 71))
"""Members and frequencies whose covariances have as many entries as one of D=200."""

FAR_ROWS, EXACT_ROWS = 20_000, 1_000
"""Training rows of ``far``, and of its exact GPC."""

FACTORS = (1.0, 2.0, 5.0, 10.0, 100.0, 1e-4)
"""What training pixels are multiplied by; 1e-4 makes reflectances of digital numbers."""

DISTANCES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)
"""How far pixels are moved, in training deviations."""


@dataclass(frozen=True)
class Options:
    """What is asked for; ``seeds`` None is each task's own choice, the others the model's."""

    seeds: tuple[int, ...] | None = None
    members: int | None = None
    frequencies: int | None = None
    rows: int | None = None
    data: Path | None = None
    group_key: str = "groups"
    folds: int = 5
    figure: Path | None = None

    def model(self, seed: int, **chosen: Any) -> VFFGPC:
        """Return an unfitted VFF-GPC with what is asked for, or else ``chosen``, or defaults."""
        asked = {"n_estimators": self.members, "n_frequencies": self.frequencies}
        given = {name: value for name, value in asked.items() if value is not None}
        return VFFGPC(random_state=seed, **(chosen | given))

    def draw(self, rows: Array, seed: int, most: int | None = None) -> Array:
        """Return the rows, or a sorted random draw of as many as ``most`` and ``--rows`` allow."""
        limits = [limit for limit in (most, self.rows) if limit is not None]
        if len(rows) <= min(limits, default=len(rows)):
            return rows
        return np.sort(np.random.default_rng(seed).choice(rows, min(limits), replace=False))


@dataclass(frozen=True)
class Step:
    """A part of a task that is measured at once: the table it belongs to, and what it does."""

    table: str
    label: str
    measure: Callable[[], list[Record]]


def timed_fit(model: Any, X: Array, y: Array, **more: Any) -> tuple[Any, float]:
    """Return a fitted model and the seconds its fit took."""
    with Meter() as meter:
        model.fit(X, y, **more)
    return model, meter.seconds


def timed_boosting(X: Array, y: Array) -> tuple[Any, float]:
    """Return HistGradientBoosting with its defaults, fitted, and the seconds that took."""
    with Meter() as meter:
        model = CONTENDERS[BOOSTING](X, y, 1.0)
    return model, meter.seconds


def warm_up() -> None:
    """Make tiny fits, so that imports and first calls are not timed."""
    X, y = np.random.default_rng(0).normal(size=(200, 2)), np.arange(200) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        VFFGPC(2, max_iter=1).fit(X, y)
    CONTENDERS[BOOSTING](X, y, 0.01)


def scores_of(positive: Array, probability: Array) -> Record:
    """Return NLL, calibration error and accuracy."""
    found = score(positive, probability)
    return {"NLL": found.nll, "ECE": found.ece, "accuracy": found.accuracy}


def test_scores(model: Any, X: Array, y: Array) -> Record:
    """Return the scores of a model on rows it has not seen."""
    return scores_of(y == 1, model.predict_proba(X)[:, 1])


def entropy(share: float) -> float:
    """Return the NLL of rows of which only the share of the positive class is known."""
    shares = np.array([share, 1.0 - share])
    return float(-np.sum(shares * np.log(np.maximum(shares, 1e-300))))


# Covertype without an area


@cache
def covertype_areas() -> tuple[Array, Array, Array]:
    """Return Covertype without the columns that tell the area, its classes, and the areas."""
    data = datasets.load_covertype()
    tells = np.array([name.startswith("Wilderness_Area") for name in data.feature_names])
    return data.X[:, ~tells], (data.y == 2).astype(np.int64), data.X[:, tells].argmax(axis=1)


def measure_area(left_out: int, seed: int, options: Options) -> list[Record]:
    """Train on the other areas, test on the one left out."""
    X, y, area = covertype_areas()
    train = options.draw(np.flatnonzero(area != left_out), seed)
    test = area == left_out
    fits = {
        OURS: timed_fit(options.model(seed), X[train], y[train], groups=area[train]),
        BOOSTING: timed_boosting(X[train], y[train]),
    }
    found = [
        (name, test_scores(model, X[test], y[test]), seconds)
        for name, (model, seconds) in fits.items()
    ]
    shares = np.full(np.count_nonzero(test), y[train].mean())
    found.append((SHARES, scores_of(y[test] == 1, shares), 0.0))
    known = entropy(float(y[test].mean()))
    return [
        {"area": left_out, "seed": seed, "rows": len(train), "model": name}
        | scores
        | {"entropy": known, "fit s": seconds}
        for name, scores, seconds in found
    ]


def plan_areas(options: Options) -> list[Step]:
    """Return a step for each area and seed."""
    table = "Covertype, class 2, tested in an area left out (entropy: of the shares there)"
    return [
        Step(
            table, f"without area {area}, seed {seed}", partial(measure_area, area, seed, options)
        )
        for area in AREAS
        for seed in options.seeds or (0, 1)
    ]


def summarise_areas(records: list[Record]) -> str:
    """Return the highest NLL of ours."""
    highest = max((r for r in records if r["model"] == OURS), key=lambda r: r["NLL"])
    return f"highest NLL of {OURS}: {highest['NLL']:.4f}, area {highest['area']}"


# Few rows


def measure_few(rows: int, seed: int, options: Options) -> list[Record]:
    """Train on a draw from the top half of the image, test on the bottom half."""
    task = load("sentinel2")
    chosen = options.draw(np.arange(len(task.y)), seed, rows)
    X, y = task.X[chosen], task.y[chosen]
    fits = {OURS: timed_fit(options.model(seed), X, y), BOOSTING: timed_boosting(X, y)}
    return [
        {"rows": len(y), "draw": seed, "model": name}
        | test_scores(model, task.X_test, task.y_test)
        | {"fit s": seconds}
        for name, (model, seconds) in fits.items()
    ]


def plan_few(options: Options) -> list[Step]:
    """Return a step for each number of rows and draw."""
    table = "Sentinel-2, few pixels of the top half, tested on the bottom half"
    return [
        Step(table, f"{rows} rows, draw {seed}", partial(measure_few, rows, seed, options))
        for rows in FEW
        for seed in options.seeds or range(5)
    ]


def summarise_few(records: list[Record]) -> str:
    """Return in how many draws ours has the lower NLL, and its longest fit."""
    ours = [r for r in records if r["model"] == OURS]
    trees = [r for r in records if r["model"] == BOOSTING]
    lower = sum(a["NLL"] < b["NLL"] for a, b in zip(ours, trees, strict=True))
    longest = max(r["fit s"] for r in ours)
    return (
        f"{OURS} has the lower NLL in {lower} of {len(ours)} draws; its fits take {longest:.1f} s "
        f"at most"
    )


# At the prediction cost of one model


@cache
def load(name: str) -> tasks.Task:
    """Return a task of the benchmark, read once."""
    return tasks.load(name)


def measure_ensemble(
    name: str, members: int, frequencies: int, seed: int, options: Options
) -> list[Record]:
    """Fit one ensemble, and score and time its probabilities."""
    task = load(name)
    train = options.draw(np.arange(len(task.y)), seed)
    model = options.model(seed, n_estimators=members, n_frequencies=frequencies)
    model, seconds = timed_fit(model, task.X[train], task.y[train])
    some = task.X_test[:: max(1, len(task.X_test) // 200_000)]
    return [
        {"members": model.n_estimators, "D": model.n_frequencies, "seed": seed, "rows": len(train)}
        | test_scores(model, task.X_test, task.y_test)
        | {"fit s": seconds, "probabilities Mpx/s": rate(model.predict_proba, some) / 1e6}
    ]


def plan_ensembles(name: str, options: Options) -> list[Step]:
    """Return a step for each ensemble and seed; only the ensemble asked for, if one is."""
    table = f"{tasks.TASKS[name][0]}: ensembles with the covariances of one model of D=200"
    configurations = EQUAL_COST
    if options.members or options.frequencies:
        table = tasks.TASKS[name][0]
        asked = options.model(0)
        configurations = ((asked.n_estimators, asked.n_frequencies),)
    return [
        Step(
            table,
            f"{members} x D={frequencies}, seed {seed}",
            partial(measure_ensemble, name, members, frequencies, seed, options),
        )
        for members, frequencies in configurations
        for seed in options.seeds or (0, 1)
    ]


def summarise_ensembles(records: list[Record]) -> str:
    """Return the ensemble with the lowest NLL, by the mean over seeds."""
    nll: dict[tuple[int, int], list[float]] = {}
    for r in records:
        nll.setdefault((r["members"], r["D"]), []).append(r["NLL"])
    means = {ensemble: float(np.mean(values)) for ensemble, values in nll.items()}
    members, frequencies = min(means, key=means.__getitem__)
    return f"lowest mean NLL: {means[members, frequencies]:.4f}, {members} x D={frequencies}"


# Other units, and at a distance


def digital_numbers(rows: int, seed: int, share: float | None = None) -> tuple[Array, Array]:
    """Return Sentinel-2 pixels of the top half as digital numbers, and which are cloud.

    The draw has the share of clouds of the image, or that which is asked for.
    """
    task, rng = load("sentinel2"), np.random.default_rng(seed)
    if share is None:
        chosen = rng.choice(len(task.y), rows, replace=False)
    else:
        clouds = round(share * rows)
        chosen = np.concatenate(
            [
                rng.choice(np.flatnonzero(task.y == label), count, replace=False)
                for label, count in ((1, clouds), (0, rows - clouds))
            ]
        )
    return task.X[chosen].astype(np.float64) * 10_000.0, task.y[chosen]


def measure_units(share: float | None, seed: int, options: Options) -> list[Record]:
    """Return latent variance and probability at training pixels times each factor."""
    found = []
    rows = min(FAR_ROWS, options.rows or FAR_ROWS)
    for name, model, n in (
        (OURS, options.model(seed), rows),
        ("GPC", GPC(), min(EXACT_ROWS, rows)),
    ):
        X, y = digital_numbers(n, seed, share)
        model.fit(X, y)
        for factor in FACTORS:
            relative = model.latent_mean_and_variance(factor * X)[1] / model.signal_variance_
            probability = model.predict_proba(factor * X)[:, 1]
            found.append(
                {"model": name, "rows": n, "seed": seed, "factor": f"{factor:g}"}
                | {"variance / gamma": float(np.median(relative))}
                | {"its smallest": float(relative.min()), "p mean": float(probability.mean())}
                | {"p min": float(probability.min()), "p max": float(probability.max())}
                | {"share": float(y.mean())}
            )
    return found


def move(X: Array, X_train: Array, distance: float, rng: np.random.Generator) -> Array:
    """Move rows by a distance, in training deviations, in random directions off the mean."""
    mean, deviation = X_train.mean(axis=0), X_train.std(axis=0)
    direction = rng.normal(size=X.shape)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    towards = np.sum(direction * (X - mean) / deviation, axis=1) < 0
    direction[towards] *= -1
    return X + distance * deviation * direction


def measure_distance(seed: int, options: Options) -> list[Record]:
    """Return the latent variances of ours and of exact GPC as test pixels move away."""
    n = min(EXACT_ROWS, options.rows or EXACT_ROWS)
    X, y = digital_numbers(n, seed)
    models = {OURS: options.model(seed).fit(X, y), "GPC": GPC().fit(X, y)}
    task, rng = load("sentinel2"), np.random.default_rng(seed)
    X_test = 10_000.0 * task.X_test[rng.choice(len(task.y_test), 1_000, replace=False)]
    found = []
    for distance in DISTANCES:
        moved = move(X_test.astype(np.float64), X, distance, np.random.default_rng(seed))
        record: Record = {"deviations": distance, "rows": n, "seed": seed}
        for name, model in models.items():
            relative = model.latent_mean_and_variance(moved)[1] / model.signal_variance_
            low, median, high = np.quantile(relative, (0.1, 0.5, 0.9))
            record |= {name: float(median), f"{name} 10 %": float(low)}
            record |= {f"{name} 90 %": float(high), f"{name} gamma": model.signal_variance_}
        found.append(record)
    if options.figure is not None:
        draw_distance(found, options.figure)
    return found


def draw_distance(records: list[Record], path: Path) -> None:
    """Draw latent variance against distance: its median, and 10 to 90 % of the pixels.

    Left as a share of the signal variance, right as it is.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), dpi=110, layout="constrained")
    relative, absolute = figure.subplots(1, 2)
    distance = [r["deviations"] for r in records]
    for name, label, colour, mark in (
        (OURS, OURS, "#0072b2", "o"),
        ("GPC", "exact GPC", "#d55e00", "^"),
    ):
        low, median, high = (
            np.array([r[name + suffix] for r in records]) for suffix in (" 10 %", "", " 90 %")
        )
        for axis, unit in ((relative, 1.0), (absolute, records[0][f"{name} gamma"])):
            axis.fill_between(distance, unit * low, unit * high, color=colour, alpha=0.15, lw=0)
            axis.plot(distance, unit * median, color=colour, marker=mark, label=label)
    relative.set_ylabel("latent variance / signal variance")
    relative.set_ylim(0.0, 1.05)
    absolute.set_ylabel("latent variance")
    absolute.set_yscale("log")
    for axis in (relative, absolute):
        axis.set_xlabel("distance moved, training deviations")
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    figure.suptitle(f"Sentinel-2, {records[0]['rows']:,} training pixels", fontsize=10)
    figure.savefig(path)
    print(f"wrote {path}", file=sys.stderr)


def plan_far(options: Options) -> list[Step]:
    """Return steps for the image's share of clouds, for one in ten, and for the distance."""
    units = "Sentinel-2 digital numbers: training pixels times a factor"
    distance = "Sentinel-2: latent variance / gamma of pixels moved away (median; 10 and 90 %)"
    steps = []
    for seed in options.seeds or (0,):
        for share, label in ((None, "clouds as in the image"), (0.1, "one cloud in ten")):
            measure = partial(measure_units, share, seed, options)
            steps.append(Step(f"{units}, {label}", f"units, {label}, seed {seed}", measure))
    seed = (options.seeds or (0,))[0]
    return [
        *steps,
        Step(distance, f"distance, seed {seed}", partial(measure_distance, seed, options)),
    ]


# Any labelled table


@cache
def read_table(path: Path, group_key: str) -> tuple[Array, Array, Array]:
    """Return features, 0/1 labels and group numbers of an .npz file."""
    with np.load(path) as arrays:
        missing = {"X", "y", group_key} - set(arrays)
        if missing:
            sys.exit(
                f"{path} lacks {', '.join(sorted(missing))}; it has {', '.join(sorted(arrays))}. "
                f"Name the array of groups with --group-key."
            )
        X, y, groups = (arrays[name] for name in ("X", "y", group_key))
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) != 2:
        sys.exit(f"y of {path} has {len(classes)} classes; it must have two.")
    return X.astype(np.float64), labels, np.unique(groups, return_inverse=True)[1]


def measure_table(
    name: str, fit: Callable[[Array, Array, Array], tuple[Any, float]], seed: int, options: Options
) -> list[Record]:
    """Fit on all folds but one in turn; score the probabilities of all rows together."""
    from sklearn.model_selection import GroupKFold

    assert options.data is not None
    X, y, groups = read_table(options.data, options.group_key)
    probability, took, losses = np.empty(len(y)), 0.0, []
    folds = GroupKFold(options.folds, shuffle=True, random_state=0)
    for rest, test in folds.split(X, y, groups):
        train = options.draw(rest, seed)
        model, seconds = fit(X[train], y[train], groups[train])
        probability[test] = model.predict_proba(X[test])[:, 1]
        losses.append(scores_of(y[test] == 1, probability[test])["NLL"])
        took += seconds
    return [
        {"model": name, "seed": seed}
        | scores_of(y == 1, probability)
        | {"folds": " ".join(f"{loss:.3f}" for loss in losses), "fit s": took}
    ]


def plan_table(options: Options) -> list[Step]:
    """Return a step for each seed with and without groups, and one for boosting."""
    if options.data is None:
        sys.exit("The task table needs --data FILE, an .npz with X, y and an array of groups.")
    table = f"{options.data.name}: {options.folds} folds of whole groups ({options.group_key})"

    def plain(seed: int) -> Callable[..., tuple[Any, float]]:
        return lambda X, y, groups: timed_fit(options.model(seed), X, y)

    def with_groups(seed: int) -> Callable[..., tuple[Any, float]]:
        return lambda X, y, groups: timed_fit(options.model(seed), X, y, groups=groups)

    fits = [
        (name, make(seed), seed)
        for name, make in ((f"{OURS}, groups=", with_groups), (OURS, plain))
        for seed in options.seeds or (0, 1)
    ]
    fits.append((BOOSTING, lambda X, y, groups: timed_boosting(X, y), 0))
    return [
        Step(table, f"{name}, seed {seed}", partial(measure_table, name, fit, seed, options))
        for name, fit, seed in fits
    ]


def summarise_table(records: list[Record]) -> str:
    """Return the mean NLL by model, and how far the seeds are apart."""
    parts = []
    for name in dict.fromkeys(r["model"] for r in records):
        nll = [r["NLL"] for r in records if r["model"] == name]
        apart = f", seeds within {100 * (max(nll) / min(nll) - 1):.1f} %" if len(nll) > 1 else ""
        parts.append(f"{name} {np.mean(nll):.4f}{apart}")
    return "mean NLL: " + "; ".join(parts)


# All tasks

PLANS: dict[str, Callable[[Options], list[Step]]] = {
    "areas": plan_areas,
    "few": plan_few,
    "halves": partial(plan_ensembles, "sentinel2"),
    "covertype": partial(plan_ensembles, "covertype"),
    "far": plan_far,
    "table": plan_table,
}

SUMMARIES: dict[str, Callable[[list[Record]], str]] = {
    "areas": summarise_areas,
    "few": summarise_few,
    "halves": summarise_ensembles,
    "covertype": summarise_ensembles,
    "table": summarise_table,
}


def cell(name: str, value: Any) -> str:
    """Return a value of a table as text."""
    if not isinstance(value, float):
        return f"{value:,}" if name == "rows" else str(value)
    return f"{value:.1f}" if name in ("fit s", "deviations") else f"{value:.4f}"


def table_lines(records: list[Record]) -> list[str]:
    """Return records with the same keys as the lines of a Markdown table."""
    rows = [list(records[0]), *([cell(*item) for item in r.items()] for r in records)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [" | ".join(map(str.rjust, row, widths)) for row in rows]
    rule = "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|"
    return [f"| {aligned[0]} |", rule, *(f"| {line} |" for line in aligned[1:])]


def run(names: list[str], options: Options, json_path: Path | None = None) -> None:
    """Measure the tasks; print a table when it is complete, and keep all records in a file."""
    plan = [(name, step) for name in names for step in PLANS[name](options)]
    machine = f"{processor_name()}, {count_cores()} cores"
    print(machine)
    warm_up()
    found: dict[str, dict[str, list[Record]]] = {}
    began = time.monotonic()
    for number, (name, step) in enumerate(plan, 1):
        minutes = (time.monotonic() - began) / 60.0
        print(
            f"[{number}/{len(plan)}, {minutes:.1f} min] {name}: {step.label} ...",
            file=sys.stderr,
            flush=True,
        )
        records = found.setdefault(name, {}).setdefault(step.table, [])
        records += step.measure()
        if json_path is not None:
            json_path.write_text(json.dumps({"machine": machine, "tasks": found}, indent=1))
        following = plan[number][1].table if number < len(plan) else None
        if following != step.table:
            print("", f"## {step.table}", "", *table_lines(records), sep="\n")
            if name in SUMMARIES:
                print("", SUMMARIES[name](records), sep="\n")
            sys.stdout.flush()
    if json_path is not None:
        print(f"wrote {json_path}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> None:
    """Run the tasks named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.elsewhere",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(number) for number in text.split(","))

    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(PLANS))
    parser.add_argument("--seeds", type=numbers, help="such as 0,1; the draws of few")
    parser.add_argument("--n-estimators", type=int, help="n_estimators of VFF-GPC")
    parser.add_argument("-D", type=int, dest="frequencies", help="n_frequencies of VFF-GPC")
    parser.add_argument("--rows", type=int, help="most training rows of a fit")
    parser.add_argument("--data", type=Path, help="the .npz file of table")
    parser.add_argument("--group-key", default="groups", help="its array of groups")
    parser.add_argument("--folds", type=int, default=5, help="its folds")
    parser.add_argument("--figure", type=Path, help="where far draws variance against distance")
    parser.add_argument("--json", type=Path, help="file for all records")
    asked = vars(parser.parse_args(arguments))
    names, json_path = asked.pop("tasks"), asked.pop("json")
    unknown = set(names) - set(PLANS)
    if unknown:
        parser.error(f"no task {', '.join(sorted(unknown))}; there are {', '.join(PLANS)}")
    run(names or [name for name in PLANS if name != "table"], Options(**asked), json_path)


if __name__ == "__main__":
    main()
