"""What a watcher did over time, from its ledger: maps, latency, and how far they may be believed.

A share of pixels out of domain that grows says that the data drift away from what the model
learned from: a sensor that ages, another calibration, another season.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from undulatus._files import JsonLines, replacing
from undulatus.errors import InputError
from undulatus.products.watch.ledger import LEDGER_NAME, MAPPED, SET_ASIDE

PERIODS = {"hour": len("2026-01-01T00"), "day": len("2026-01-01"), "month": len("2026-01")}
"""How many characters of a time name a period."""

LATELY = 7
"""Periods at the end that are compared with those before."""


@dataclass(frozen=True)
class Period:
    """An hour, a day or a month (UTC) in which something was mapped or set aside.

    Shares are of the pixels that have a class, but ``missing``, which is of all pixels. None where
    there is nothing to take it of.
    """

    period: str
    mapped: int
    set_aside: int
    pixels: int
    missing: float | None
    low_confidence: float | None
    out_of_domain: float | None
    latency_median: float | None
    latency_max: float | None
    models: list[str] = field(default_factory=list)
    """SHA-256 of the models of its maps."""


@dataclass(frozen=True)
class Report:
    """All periods, the earliest first."""

    periods: list[Period]
    by: str

    def rows(self) -> list[dict[str, Any]]:
        """Return a row of a table for each period, shares in percent."""
        return [
            {
                self.by: each.period,
                "mapped": each.mapped,
                "set aside": each.set_aside,
                "pixels": each.pixels,
                "missing %": _percent(each.missing),
                "low confidence %": _percent(each.low_confidence),
                "out of domain %": _percent(each.out_of_domain),
                "latency s": _rounded(each.latency_median),
                "longest s": _rounded(each.latency_max),
            }
            for each in self.periods
        ]

    @property
    def drift(self) -> str:
        """A line that compares the last periods with those before; empty if there are too few."""
        before, lately = self.periods[:-LATELY], self.periods[-LATELY:]
        if not before:
            return ""
        said = []
        for name in ("out_of_domain", "low_confidence"):
            then, now = (_mean(each, name) for each in (before, lately))
            if then is not None and now is not None:
                said.append(f"{name.replace('_', ' ')} {now:.2%}, {then:.2%} before")
        return f"the last {LATELY} {self.by}s: {'; '.join(said)}" if said else ""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it, shares between 0 and 1."""
        return {"by": self.by, "periods": [asdict(each) for each in self.periods]}


def read_report(output: Path, by: str = "day") -> Report:
    """Return what the ledger of an output folder says of each period, by when maps were made."""
    path = output / LEDGER_NAME if output.is_dir() else output
    if not path.is_file():
        raise InputError(
            f"{path} does not exist. Is {output} the folder that undulatus watch writes to?"
        )
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in JsonLines(path).each():
        if record.get("result") in (MAPPED, SET_ASIDE):
            found[str(record["time"])[: PERIODS[by]]].append(record)
    return Report([_period(name, records) for name, records in sorted(found.items())], by)


def _period(name: str, records: list[dict[str, Any]]) -> Period:
    maps = [record for record in records if record["result"] == MAPPED]
    pixels = [record["pixels"] for record in maps]
    mapped, missing, doubtful, outside = (
        sum(each[key] for each in pixels)
        for key in ("mapped", "missing", "low_confidence", "outside")
    )
    latencies = [record["latency"] for record in maps if "latency" in record]
    return Period(
        period=name,
        mapped=len(maps),
        set_aside=len(records) - len(maps),
        pixels=mapped + missing,
        missing=_share(missing, mapped + missing),
        low_confidence=_share(doubtful, mapped),
        out_of_domain=_share(outside, mapped),
        latency_median=median(latencies) if latencies else None,
        latency_max=max(latencies, default=None),
        models=sorted({str(record["model"]) for record in maps}),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean(periods: list[Period], name: str) -> float | None:
    """Return the mean of a share, each period by its pixels."""
    known = [(getattr(each, name), each.pixels) for each in periods]
    known = [(share, pixels) for share, pixels in known if share is not None]
    whole = sum(pixels for _, pixels in known)
    return sum(share * pixels for share, pixels in known) / whole if whole else None


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f}"


def _rounded(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"


def draw_report(report: Report, path: Path) -> None:
    """Draw shares of pixels and latencies over time, as ``.png``, ``.svg`` or ``.pdf``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    names = [each.period for each in report.periods]
    for name in ("out_of_domain", "low_confidence", "missing"):
        shares = [getattr(each, name) for each in report.periods]
        values = [float("nan") if share is None else 100 * share for share in shares]
        above.plot(names, values, marker="o", markersize=3, label=name.replace("_", " "))
    above.set_ylabel("pixels, %")
    above.set_ylim(bottom=0.0)
    above.legend()
    for name in ("latency_median", "latency_max"):
        values = [getattr(each, name) or float("nan") for each in report.periods]
        below.plot(names, values, marker="o", markersize=3, label=name.replace("_", ", "))
    below.set_ylabel("arrival to map, s")
    below.legend()
    step = max(1, len(names) // 12)
    below.set_xticks(range(0, len(names), step), names[::step], rotation=45, ha="right")
    with replacing(path) as unfinished:
        figure.savefig(unfinished, dpi=120)
