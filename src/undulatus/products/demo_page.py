"""The page a demonstration ends with: what was classified, how well, and where to look on."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from undulatus.products.demo import Demo
from undulatus.products.month import Month

TEMPLATE = "demo.html.jinja"


def write_page(folder: Path, demo: Demo, month: Month, days: int) -> Path:
    """Write ``index.html`` in the folder of a demonstration, and return its path."""
    text = resources.files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(text)

    def beside(path: Path) -> str:
        return path.relative_to(folder).as_posix()

    page = folder / "index.html"
    page.write_text(
        template.render(
            source=demo.source,
            image=beside(demo.written["picture"]),
            image_scores=_image_rows(demo),
            days=days,
            site=beside(month.page),
            month_scores=_month_rows(month.scores),
            picture=beside(month.written["picture"]),
        ),
        encoding="utf-8",
    )
    return page


def _image_rows(demo: Demo) -> list[dict[str, str]]:
    return [
        {"": name, "accuracy": f"{s.accuracy:.1%}", "NLL": f"{s.nll:.3f}", "ECE": f"{s.ece:.3f}",
         "Brier": f"{s.brier:.3f}"}
        for name, s in demo.scores.items()
    ]  # fmt: skip


def _month_rows(scores: Sequence[Any]) -> list[dict[str, str]]:
    found = [s for s in scores if s.reference == "cloud_truth" and s.label_accuracy is not None]
    return [
        {"sun": s.regime, "where": s.part, "pixels": f"{s.pixels:,}",
         "accuracy": f"{s.scores.accuracy:.1%}", "of the mask": f"{s.label_accuracy:.1%}",
         "ECE": f"{s.scores.ece:.3f}"}
        for s in found
    ]  # fmt: skip
