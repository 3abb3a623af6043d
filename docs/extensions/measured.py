"""Directives that write tables from the records of the benchmarks and from the package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

DEFAULT_GPU_D = 200
"""Waves of the models of ``benchmarks.gpu``."""

COLUMNS = (
    ("accuracy", "accuracy", ".3f", 1.0),
    ("NLL", "nll", ".3f", 1.0),
    ("ECE", "ece", ".3f", 1.0),
    ("fit, s", "fit_seconds", ".1f", 1.0),
    ("labels, million a second", "labels_per_second", ".2f", 1e-6),
    ("probabilities, million a second", "probabilities_per_second", ".2f", 1e-6),
)


def make_table(rows: Iterable[Iterable[str]]) -> nodes.table:
    """Return a table whose first row is its head."""
    lines = [list(row) for row in rows]
    group = nodes.tgroup(cols=len(lines[0]))
    for _ in lines[0]:
        group += nodes.colspec(colwidth=1)
    built = [
        nodes.row("", *(nodes.entry("", nodes.paragraph("", cell)) for cell in line))
        for line in lines
    ]
    group += [nodes.thead("", built[0]), nodes.tbody("", *built[1:])]
    return nodes.table("", group)


def _cell(trial: dict[str, Any], name: str, form: str, scale: float) -> str:
    return format(trial[name] * scale, form) if name in trial else "-"


class BenchmarkDirective(Directive):
    """The table of one task, named by the argument, from the last full run."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the table."""
        found = json.loads((RESULTS / "benchmark.json").read_text())
        trials = [
            t for t in found["trials"] if t["task"] == self.arguments[0] and t["effort"] == 1.0
        ]
        head = ["", *(title for title, *_ in COLUMNS)]
        rows = [
            [trial["contender"], *(_cell(trial, *column[1:]) for column in COLUMNS)]
            for trial in trials
        ]
        return [make_table([head, *rows])]


class MachineDirective(Directive):
    """When and on what the last full run was made."""

    def run(self) -> list[nodes.Node]:
        """Return a paragraph."""
        found = json.loads((RESULTS / "benchmark.json").read_text())
        machine = found["machine"]
        packages = ("scikit-learn", "lightgbm", "gpytorch", "rfflearn", "numpy", "scipy", "torch")
        versions = ", ".join(f"{name} {machine[name]}" for name in packages)
        text = (
            f"Run of {machine['date']} on {machine['cores']} cores of an {machine['cpu']}, "
            f"{found['minutes']:.0f} minutes in all, with {versions}."
        )
        return [nodes.paragraph("", text)]


class GpuDirective(Directive):
    """What a GPU does, from the last run of ``benchmarks.gpu``."""

    def run(self) -> list[nodes.Node]:
        """Return a paragraph that says which GPU, and a table."""
        found = json.loads((RESULTS / "gpu.json").read_text())
        one_pass, predicted, svgp = (found[name] for name in ("passes", "predictions", "svgp"))
        single, tf32 = predicted["single"], predicted["tf32"]
        share = one_pass["operations_per_second"] / found["rates"]["single_matrix_rate"]
        rows = [
            ["", "measured"],
            [
                f"a pass over {one_pass['rows']:,} rows at D = {one_pass['frequencies']:,}",
                f"{one_pass['seconds']:.2f} s, {share:.0%} of the GPU's own rate of products of "
                f"matrices",
            ],
            [
                "probability and variance, rows on the GPU, million a second",
                f"{single['million_rows_a_second']:.0f}; TF32 {tf32['million_rows_a_second']:.0f}",
            ],
            ["labels, likewise", f"{single['million_labels_a_second']:.0f}"],
            [
                "largest error of a probability, against double precision on a processor",
                f"{single['error_of_probability']:.0e}; TF32 {tf32['error_of_probability']:.0e}",
            ],
            [
                "what TF32 changes in the NLL",
                f"{tf32['nll'] - single['nll']:.0e}",
            ],
            [
                "a full disc of SEVIRI from memory: mask, probability and variance back",
                f"{predicted['disc_seconds']:.2f} s",
            ],
            *self._fits(found["fits"]["seeds"]),
            [
                "GPyTorch's SVGP with 400 points, half of the Sentinel-2 image",
                f"{svgp['svgp_seconds']:.1f} s, NLL {svgp['svgp_nll']:.3f}",
            ],
            [
                "VFFGPC on the same, one estimator of 50 frequencies",
                f"{svgp['ours_1x50']['seconds']:.1f} s, NLL {svgp['ours_1x50']['nll']:.3f}",
            ],
            [
                "eight estimators of 100 frequencies",
                f"{svgp['ours_8x100']['seconds']:.1f} s, NLL {svgp['ours_8x100']['nll']:.3f}",
            ],
        ]
        text = (
            f"One {found['gpu']}, {found['date']}, torch {found['torch']}; D = {DEFAULT_GPU_D}, "
            f"{predicted['features']} features and single precision unless said."
        )
        return [nodes.paragraph("", text), make_table(rows)]

    def _fits(self, seeds: list[dict[str, Any]]) -> list[list[str]]:
        rows = []
        for n_estimators in sorted({own["n_estimators"] for own in seeds}):
            times = [own["seconds"] for own in seeds if own["n_estimators"] == n_estimators]
            name = "a fit to 300,000 pixels of the landmark simulator"
            rows.append(
                [
                    f"{name}, {n_estimators} estimator{'s' * (n_estimators > 1)}",
                    f"{min(times):.1f} to {max(times):.1f} s, {len(times)} seeds"
                    if len(times) > 1
                    else f"{times[0]:.1f} s",
                ]
            )
        return rows


class CoresDirective(Directive):
    """What more threads bring, from the last run of ``benchmarks.cores``."""

    def run(self) -> list[nodes.Node]:
        """Return a paragraph that says which machine, and a table."""
        found = json.loads((RESULTS / "cores.json").read_text())
        head = ["threads", "fit, s", "learning, s", "passes, s"]
        rows = [[*head, "labels, million a second", "probabilities, million a second"]]
        for threads, own in found["threads"].items():
            walls = (own["seconds"], own["parts"]["learning"][0], own["parts"]["passes"][0])
            rates = (own["labels_per_second"], own["probabilities_per_second"])
            rows.append(
                [
                    threads,
                    *(f"{wall:.1f}" for wall in walls),
                    *(f"{rate / 1e6:.2f}" for rate in rates),
                ]
            )
        text = f"{found['cores']} virtual cores of an {found['cpu']}, {found['date']}."
        return [nodes.paragraph("", text), make_table(rows)]


def setup(app: Any) -> dict[str, Any]:
    """Register the directives."""
    app.add_directive("gpu", GpuDirective)
    app.add_directive("cores", CoresDirective)
    app.add_directive("benchmark", BenchmarkDirective)
    app.add_directive("benchmark-machine", MachineDirective)
    return {"parallel_read_safe": True}
