"""Tables and plots of the benchmark, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.tasks import TASKS

MARKS = {"VFF": ("#0072b2", "o"), "RFF": ("#56b4e9", "s"), "Lig": ("#d55e00", "^")}
OTHER = ("#555555", "x")


def full_trials(found: dict[str, Any], task: str) -> list[dict[str, Any]]:
    """Return the trials of a task at full effort."""
    return [t for t in found["trials"] if t["task"] == task and t["effort"] == 1.0]


def curve_of(found: dict[str, Any], task: str, who: str) -> list[tuple[float, float]]:
    """Return the fit times and test NLL of a contender at each effort, sorted by time."""
    trials = [
        t for t in found["trials"] if (t["task"], t["contender"]) == (task, who) and "nll" in t
    ]
    points = [(t["fit_seconds"], t["nll"]) for t in trials]
    return sorted(points + [tuple(point) for t in trials for point in t.get("curve", [])])


def _cell(trial: dict[str, Any], name: str, form: str, scale: float = 1.0) -> str:
    return format(trial[name] * scale, form) if name in trial else "—"


def task_table(found: dict[str, Any], task: str) -> list[str]:
    """Return the lines of one task's table."""
    columns = (
        ("accuracy", "accuracy", ".4f", 1.0),
        ("NLL", "nll", ".4f", 1.0),
        ("ECE", "ece", ".4f", 1.0),
        ("Brier", "brier", ".4f", 1.0),
        ("AUC", "auc", ".4f", 1.0),
        ("fit s", "fit_seconds", ".1f", 1.0),
        ("fit CPU s", "fit_cpu_seconds", ".1f", 1.0),
        ("fit peak MB", "fit_peak_mb", ".0f", 1.0),
        ("labels Mpx/s", "labels_per_second", ".3f", 1e-6),
        ("probabilities Mpx/s", "probabilities_per_second", ".3f", 1e-6),
        ("at 1e-3", "probabilities_per_second_tolerant", ".3f", 1e-6),
    )
    lines = [
        "| | " + " | ".join(title for title, *_ in columns) + " |",
        "|---|" + "---:|" * len(columns),
    ]
    for trial in full_trials(found, task):
        if "failed" in trial:
            lines.append(f"| {trial['contender']} | {trial['failed']} |" + " |" * 10)
            continue
        cells = [_cell(trial, name, form, scale) for _, name, form, scale in columns]
        lines.append(f"| {trial['contender']} | " + " | ".join(cells) + " |")
    return lines


def ratio_lines(found: dict[str, Any]) -> list[str]:
    """Return lines of Markdown that compare our classifiers with the others."""
    lines = []
    for task in ("sentinel2", "covertype"):
        trials = {t["contender"]: t for t in full_trials(found, task) if "nll" in t}
        if not {"LightGBM 300", "GPyTorch SVGP M=400"} <= set(trials):
            continue
        trees, svgp = trials["LightGBM 300"], trials["GPyTorch SVGP M=400"]
        for who in (w for w in trials if w.startswith("VFF")):
            ours = trials[who]
            per_second = trees["probabilities_per_second"]
            tolerant = ours["probabilities_per_second_tolerant"] / per_second
            lines.append(
                f"- {task}, {who}: NLL {ours['nll'] / trees['nll']:.3f} x LightGBM's and "
                f"{ours['nll'] / svgp['nll']:.3f} x SVGP's, in "
                f"{ours['fit_seconds'] / svgp['fit_seconds']:.3f} of SVGP's fit time; labels at "
                f"{ours['labels_per_second'] / trees['labels_per_second']:.1f} x, probabilities "
                f"at {ours['probabilities_per_second'] / per_second:.1f} x "
                f"(tolerance 1e-3: {tolerant:.1f} x) LightGBM's rate."
            )
        reached = [
            (seconds, who)
            for who in trials
            if who.startswith("VFF")
            for seconds, nll in curve_of(found, task, who)
            if nll <= svgp["nll"]
        ]
        if reached:
            seconds, who = min(reached)
            lines.append(
                f"- {task}: SVGP's final NLL {svgp['nll']:.4f} is reached by {who} after "
                f"{seconds:.1f} s of fitting, {seconds / svgp['fit_seconds']:.4f} of SVGP's "
                f"{svgp['fit_seconds']:.0f} s."
            )
    return lines


def kernel_lines(found: dict[str, Any]) -> list[str]:
    """Return lines of Markdown about the hot loops and memory."""
    kernels = found["kernels"]
    if "failed" in kernels:
        return [f"- failed: {kernels['failed']}"]
    costs = kernels["nanoseconds_a_pixel"]
    lines = [
        f"- float32 matrix product: {kernels['product_gflops']:.0f} GFLOP/s; full pass at "
        f"D = 200, n = {kernels['hot_pass']['rows']:,}: {kernels['hot_pass']['gflops']:.0f} "
        f"GFLOP/s of useful operations, {100 * kernels['hot_pass_share']:.0f} % of it.",
        f"- growth of a full pass with n: exponent {kernels['pass_by_rows']['exponent']:.3f}; of "
        f"learning on minibatches with n: {kernels['minibatches_by_rows']['exponent']:.3f}; of a "
        f"full pass with D: {kernels['pass_by_frequencies']['exponent']:.3f}.",
        "- cost a pixel at D = 200, d = 16: "
        + ", ".join(f"{name} {value:.0f} ns" for name, value in costs.items())
        + ".",
    ]
    duel = kernels["rff_against_sampler"]
    lines.append(
        f"- Covertype, n = {kernels['hot_pass']['rows']:,}: "
        + "; ".join(
            f"{name}: fit {x['fit_seconds']:.1f} s, NLL {x['nll']:.4f}" for name, x in duel.items()
        )
        + "."
    )
    for memory in found["memory"]:
        if "failed" in memory:
            lines.append(f"- memory: failed: {memory['failed']}")
            continue
        lines.append(
            f"- memory map of {memory['rows']:,} x {memory['features']}, D = {memory['D']}, "
            f"{memory['solver']}: peak of anonymous memory {memory['fit_peak_mb']:.0f} MB in fit "
            f"({memory['fit_seconds']:.0f} s), {memory['predict_peak_mb']:.0f} MB in "
            f"predict_proba ({memory['predict_seconds']:.0f} s)."
        )
    return lines


def draw_curves(found: dict[str, Any], path: Path) -> None:
    """Draw test NLL against training time, a panel a task."""
    tasks = [task for task in TASKS if full_trials(found, task)]
    figure = Figure(figsize=(6 * len(tasks), 5), dpi=110, layout="constrained")
    for axis, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for who in dict.fromkeys(t["contender"] for t in full_trials(found, task)):
            points = curve_of(found, task, who)
            if not points:
                continue
            colour, mark = MARKS.get(who[:3], OTHER)
            seconds, nll = zip(*points, strict=True)
            line = {"color": colour, "marker": mark, "markersize": 5, "linewidth": 1}
            axis.plot(seconds, nll, **line)
            axis.annotate(
                who, (seconds[-1], nll[-1]), xytext=(5, 3), textcoords="offset points", fontsize=7
            )
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("fit time, seconds")
        axis.set_ylabel("test NLL, nats")
        axis.set_title(TASKS[task][0], fontsize=10)
        axis.margins(x=0.5)
        axis.grid(alpha=0.3, which="both")
    figure.savefig(path)


def draw_growth(found: dict[str, Any], path: Path) -> None:
    """Draw the time of a pass against rows and frequencies."""
    kernels = found["kernels"]
    figure = Figure(figsize=(11, 4.5), dpi=110, layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, label, colour, mark in (
        ("pass_by_rows", "full pass, D = 50", "#0072b2", "o"),
        ("minibatches_by_rows", "learning, 1,000 minibatches, D = 50", "#d55e00", "^"),
    ):
        curve = kernels[name]
        text = f"{label}: n^{curve['exponent']:.2f}"
        left.plot(curve["rows"], curve["seconds"], color=colour, marker=mark, label=text)
    left.set_xlabel("rows n")
    curve = kernels["pass_by_frequencies"]
    text = f"full pass: D^{curve['exponent']:.2f}"
    right.plot(curve["D"], curve["seconds"], color="#0072b2", marker="o", label=text)
    right.set_xlabel("frequencies D")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_ylabel("seconds")
        axis.legend(frameon=False)
        axis.grid(alpha=0.3, which="both")
    figure.savefig(path)


def write_report(found: dict[str, Any], folder: Path, name: str) -> list[Path]:
    """Write the table and the plots; return their paths."""
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    lines = [f"# Benchmark ({name})", "", f"Machine: {machine}.", ""]
    lines += [
        f"Made by `make bench{' QUICK=1' if found['quick'] else ''}` in "
        f"{found['minutes']:.0f} minutes (a resumed run: all sessions together). Compare "
        f"numbers only within this run.",
        "",
    ]
    for task, (title, *_) in TASKS.items():
        if full_trials(found, task):
            lines += [f"## {title}", "", *task_table(found, task), ""]
    lines += ["## Ratios", "", *ratio_lines(found), ""]
    lines += ["## Hot loops and memory", "", *kernel_lines(found), ""]
    written = [folder / f"{name}.md", folder / f"{name}-curves.png"]
    written[0].write_text("\n".join(lines))
    draw_curves(found, written[1])
    if "failed" not in found["kernels"]:
        written.append(folder / f"{name}-growth.png")
        draw_growth(found, written[-1])
    return written
