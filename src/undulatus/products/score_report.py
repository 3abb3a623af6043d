"""Scores of images in files: all of them as JSON, a table as CSV, a page as HTML."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from undulatus._files import write_text
from undulatus._plain import cell_text
from undulatus.errors import InputError
from undulatus.products.area import AreaEstimates, SampleEstimate
from undulatus.products.comparison import Comparison, Difference
from undulatus.products.image_scores import ImageScores, Reliability
from undulatus.products.scores import ClassScores, Estimate
from undulatus.products.templates import render_template

LARGEST_DOT = 9.0
"""Radius of the dot of all rows in a reliability diagram of 100 x 100 units."""


Origin = Mapping[str, str]
"""What scores were made with, by name, such as the model and the command."""


def write_report(
    found: ImageScores, path: Path, title: str = "Scores", origin: Origin | None = None
) -> None:
    """Write scores to a file by its ending: ``.json``, ``.csv`` or ``.html``.

    ``origin`` is added to the page, and as ``origin`` to the JSON.
    """
    made = {"version": version("undulatus"), **(origin or {})}
    write_text(path, find_writer(path)(found, title, made))


def find_writer(path: Path) -> Callable[[ImageScores, str, Origin], str]:
    """Return what turns scores, a title and an origin into the text of a file, by its ending."""
    try:
        return WRITERS[path.suffix.lower()]
    except KeyError:
        raise InputError(
            f"{path} has a name of no known format: reports are written as {', '.join(WRITERS)}."
        ) from None


def _as_json(found: ImageScores, title: str, origin: Origin) -> str:
    return json.dumps(found.as_dict() | {"origin": dict(origin)}, indent=2) + "\n"


# A table


def _as_csv(found: ImageScores, title: str, origin: Origin) -> str:
    rows = table_rows(found)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(cell_text, rows[-1]))
    writer.writerows([cell_text(row.get(name)) for name in rows[-1]] for row in rows)
    return text.getvalue()


def table_rows(found: ImageScores) -> list[dict[str, Any]]:
    """Return a row for each class, and the last for all of them, whose columns are all there are.

    A value that does not exist is None; ``adjusted_`` are estimates for the whole map.
    """
    scores, areas = found.scores, found.areas
    rows = []
    for c, one in enumerate(scores.by_class):
        row = {"class": one.name, "rows": one.true, "predicted": one.predicted}
        for name in ("producers_accuracy", "users_accuracy", "f1", "ece"):
            row |= _columns(name, getattr(one, name))
        if areas is not None:
            row |= {"mapped_area": float(areas.mapped[c])}
            row |= _columns("area", areas.areas[c])
            row |= _columns("adjusted_users_accuracy", areas.users_accuracy[c])
            row |= _columns("adjusted_producers_accuracy", areas.producers_accuracy[c])
        if found.comparison is not None:
            differences = found.comparison.by_class[c]
            for name in ("producers_accuracy", "users_accuracy"):
                row |= _differences(name, getattr(differences, name))
        rows.append(row)
    last: dict[str, Any] = dict.fromkeys(rows[0])
    last |= {"class": "all", "rows": scores.confusion.sum().item(), "predicted": None}
    for name, estimate in scores.overall.items():
        # Of a class it is the error of that class's probability.
        last |= _columns("top_class_ece" if name == "ece" else name, estimate)
    if areas is not None:
        last |= {"mapped_area": float(areas.mapped.sum())}
        last |= _columns("adjusted_accuracy", areas.accuracy)
        last |= {"area_unit": areas.unit, "design": areas.design or "not given"}
    if found.comparison is not None:
        last |= {"against": found.comparison.names[1]}
        last |= _differences("accuracy", found.comparison.accuracy)
        if found.comparison.nll is not None:
            last |= _differences("nll", found.comparison.nll)
        last |= {"verdict": " ".join(found.comparison.verdicts)}
    last |= found.basis.as_dict()
    always = {name: last[name] for name in ("area_unit", "design", "against", "basis", "statement")
              if name in last}  # fmt: skip
    return [row | always for row in rows] + [last]


def _columns(name: str, estimate: Estimate | SampleEstimate) -> dict[str, float | None]:
    values = estimate.as_dict()
    return {name if key == "value" else f"{name}_{key}": v for key, v in values.items()}


def _differences(name: str, difference: Difference) -> dict[str, float | None]:
    values = difference.as_dict()
    kept = {"second": f"against_{name}", "value": f"{name}_difference"}
    kept |= {key: f"{name}_difference_{key}" for key in ("standard_error", "low", "high")}
    return {column: values[key] for key, column in kept.items()}


# A page


def _as_html(found: ImageScores, title: str, origin: Origin) -> str:
    scores = found.scores
    return render_template(
        "undulatus.products",
        "scores.html.jinja",
        title=title,
        basis=found.basis,
        notes=found.notes,
        counted=f"{scores.samples:,} pixels in {scores.groups or scores.samples:,} groups",
        confidence=f"{100 * scores.confidence:.4g} %",
        overall=[
            {"name": name, "text": str(value)}
            for name, value in zip(OVERALL, scores.overall.values(), strict=True)
        ],
        classes=[
            {"name": one.name, "colour": colour, "bars": _bars(one)}
            for one, colour in zip(scores.by_class, found.colours, strict=True)
        ],
        matrix=_matrix(found),
        diagrams=[_diagram(one) for one in found.reliability],
        areas=None if found.areas is None else _area_rows(found.areas),
        comparison=None if found.comparison is None else _comparison_rows(found.comparison),
        sources=[("images", ", ".join(found.images)), ("labels", found.labels),
                 *((name.replace("_", " "), value) for name, value in origin.items())],
    )  # fmt: skip


OVERALL = (
    "Accuracy", "Cohen's kappa", "NLL (nats, best at 0)", "Brier score (best at 0)",
    "Calibration error of the most probable class (best at 0)",
    "Calibration error, mean of classes (best at 0)",
)  # fmt: skip
"""What a page calls the overall scores, in their order."""


def _bars(one: ClassScores) -> list[dict[str, Any]]:
    """Return the bars of a class: widths and ends of intervals in percent."""
    named = (
        ("producer's", one.producers_accuracy),
        ("user's", one.users_accuracy),
        ("F1", one.f1),
    )
    return [
        {
            "name": name,
            "text": str(estimate),
            "short": "-" if math.isnan(estimate.value) else f"{estimate.value:.3f}",
            "width": None if math.isnan(estimate.value) else 100 * estimate.value,
            "low": None if math.isnan(estimate.low) else 100 * estimate.low,
            "length": None if math.isnan(estimate.low) else 100 * (estimate.high - estimate.low),
        }
        for name, estimate in named
    ]


def _matrix(found: ImageScores) -> list[dict[str, Any]]:
    """Return the rows of the confusion matrix, with the share of its row for the colour."""
    confusion = found.scores.confusion
    rows = []
    for c, (name, row) in enumerate(zip(found.scores.classes, confusion.tolist(), strict=True)):
        total = sum(row)
        cells = [
            {"text": f"{n:,.0f}", "share": n / total if total else 0.0, "right": c == j}
            for j, n in enumerate(row)
        ]
        rows.append({"name": name, "cells": cells, "total": f"{total:,.0f}"})
    return rows


def _diagram(one: Reliability) -> dict[str, Any]:
    """Return a reliability diagram of 100 x 100 units, with frequencies upwards."""
    most = max(int(one.rows.sum()), 1)
    dots = [
        {
            "x": 100 * p,
            "y": 100 * (1 - f),
            "r": max(1.5, LARGEST_DOT * math.sqrt(n / most)),
            "text": f"{n:,} pixels with a mean probability of {p:.3f}: {f:.3f} of them were so",
        }
        for p, f, n in zip(
            one.probability.tolist(), one.frequency.tolist(), one.rows.tolist(), strict=True
        )
        if n
    ]
    line = " ".join(f"{dot['x']:.2f},{dot['y']:.2f}" for dot in dots)
    return {"name": one.name, "dots": dots, "line": line}


def _area_rows(areas: AreaEstimates) -> dict[str, Any]:
    rows = [
        [name, f"{n:,.0f}", f"{mapped:,.{areas.digits}f}", area.text(areas.digits),
         area.ends_text(areas.digits), users.interval_text(3), producers.interval_text(3)]
        for name, n, mapped, area, users, producers in zip(
            areas.classes, areas.samples, areas.mapped, areas.areas, areas.users_accuracy,
            areas.producers_accuracy, strict=True,
        )
    ]  # fmt: skip
    head = ["class", "samples", f"mapped, {areas.unit}", f"estimated area, {areas.unit}"]
    head.append(f"{100 * areas.confidence:.4g} % interval")
    return {
        "statement": areas.statement,
        "notes": areas.notes,
        "accuracy": areas.accuracy.interval_text(3),
        "head": [*head, "user's accuracy", "producer's accuracy"],
        "rows": rows,
    }


def _comparison_rows(comparison: Comparison) -> dict[str, Any]:
    return {
        "heading": comparison.heading,
        "head": comparison.head,
        "rows": [[title, *difference.cells()] for title, difference in comparison.differences],
        "verdicts": comparison.verdicts,
    }


WRITERS: dict[str, Callable[[ImageScores, str, Origin], str]] = {
    ".json": _as_json,
    ".csv": _as_csv,
    ".html": _as_html,
}
