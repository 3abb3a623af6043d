"""How a watcher is: a text file of ``key: value`` lines that people and monitors read.

The file is replaced at once, so that a reader never sees half of it. Under systemd the same beats
tell the service manager that the watcher is ready and alive.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from undulatus._files import write_text
from undulatus._progress import duration_text
from undulatus.errors import InputError
from undulatus.products.watch.ledger import RECENT

HEALTH_NAME = "health.txt"

STARTING, WAITING, MAPPING = "starting", "waiting", "mapping"

TROUBLE, STOPPED = "trouble", "stopped"

FINISHED = "finished"
"""All that was there has been tried, and nothing more was asked for."""

HEALTHY = (STARTING, WAITING, MAPPING)

SECONDS_BETWEEN_BEATS = 1.0
"""Least time between two beats while an item is being mapped."""


@dataclass
class HealthFile:
    """The text file, which is written again and again.

    Parameters
    ----------
    path : path
        The file. If it cannot be written, its age shows it.
    metrics : path, optional
        A file with the same for Prometheus, such as in the folder of node_exporter's textfile
        collector.
    """

    path: Path
    metrics: Path | None = None
    _last: float = -1e9

    def write(self, facts: dict[str, Any]) -> None:
        """Replace the file, and tell systemd."""
        self._last = time.monotonic()
        told = {key: _one_line(value) for key, value in facts.items()}
        with suppress(OSError):
            write_text(self.path, "".join(f"{key}: {text}\n" for key, text in told.items()))
        if self.metrics is not None:
            status = NOT_WELL if _problem(told, math.inf) else WELL
            with suppress(OSError):
                write_text(self.metrics, prometheus_text(told, status))
        state = facts["state"]
        words = {STOPPED: "STOPPING=1", FINISHED: "STOPPING=1", STARTING: ""}.get(
            state, "READY=1\nWATCHDOG=1"
        )
        tell_service_manager(f"{words}\nSTATUS={_one_line(state)}".strip())

    def is_due(self) -> bool:
        """Return whether the last beat is long enough ago for another."""
        return time.monotonic() - self._last >= SECONDS_BETWEEN_BEATS


def _one_line(value: Any) -> str:
    text = " ".join(str(value).split())
    return text.encode("utf-8", "backslashreplace").decode()


def tell_service_manager(text: str) -> None:
    """Send a message of sd_notify(3), if systemd started this process and wants to hear it."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        # A leading @ stands for the zero byte of an abstract address.
        channel.connect(f"\0{address[1:]}" if address.startswith("@") else address)
        channel.sendall(text.encode())


def recent_facts(recent: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the last map, and what the last ones have in common, from their records."""
    if not recent:
        return {"last map": "none"}
    last = recent[-1]
    outputs = ", ".join(last["outputs"])
    facts = {"last map": f"{last['time']} {outputs}, {last['seconds']:.1f} s"}
    latencies = [record["latency"] for record in recent if "latency" in record]
    if latencies:
        facts["latency s"] = f"{latencies[-1]:.1f}"
        facts["median latency s"] = f"{median(latencies):.1f}"
    pixels = [record["pixels"] for record in recent]
    mapped = max(sum(each["mapped"] for each in pixels), 1)
    for name, key in (("out of domain %", "outside"), ("low confidence %", "low_confidence")):
        facts[name] = f"{100 * sum(each[key] for each in pixels) / mapped:.2f}"
    return facts


# Reading

WELL, NOT_WELL, SILENT, ROTTEN = 0, 1, 4, 5
"""Exit status for a watcher that is well, that is not, that has mapped nothing for too long, and
that has set too much aside."""


@dataclass(frozen=True)
class Limits:
    """From when on a watcher is not well.

    Attributes
    ----------
    stuck : float
        Seconds without a sign of the watcher.
    silent : float, optional
        Seconds without a new map.
    set_aside : int, optional
        Items that may be set aside.
    """

    stuck: float = 300.0
    silent: float | None = None
    set_aside: int | None = None


@dataclass(frozen=True)
class Verdict:
    """What a health file says, and whether all is well."""

    text: str
    facts: dict[str, str]
    problems: tuple[tuple[int, str], ...]
    """An exit status and a sentence each, the gravest first; none if all is well."""

    @property
    def problem(self) -> str:
        """All problems in one line; empty if all is well."""
        return "; ".join(text for _, text in self.problems)

    @property
    def status(self) -> int:
        """The exit status."""
        return self.problems[0][0] if self.problems else WELL

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON has it: counts as numbers."""
        named = {_identifier(key): _value(text) for key, text in self.facts.items()}
        problems = [text for _, text in self.problems]
        return {"well": not problems, "status": self.status, "problems": problems, **named}


def _identifier(key: str) -> str:
    for unit, name in ((" %", " percent"), (" s", " seconds")):
        key = key.removesuffix(unit) + name if key.endswith(unit) else key
    return key.replace(" ", "_")


def _value(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def read_health(path: Path, limits: Limits | None = None) -> Verdict:
    """Return what the health file of an output folder says, or the file itself.

    Parameters
    ----------
    path : path
        The folder, or the file.
    limits : Limits, optional
        From when on the watcher is not well.
    """
    file = path / HEALTH_NAME if path.is_dir() else path
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{file} cannot be read: {error}. Is it the folder that undulatus watch writes to?"
        ) from error
    facts = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    return Verdict(text, facts, tuple(_problems(facts, limits or Limits())))


def _problems(facts: Mapping[str, str], limits: Limits) -> Iterator[tuple[int, str]]:
    if stuck := _problem(facts, limits.stuck):
        yield NOT_WELL, stuck
    if limits.silent is not None:
        last = facts.get("last map", "none").split()[0]
        since = _seconds_since(last)
        if since is None:
            since = _seconds_since(facts.get("started", "")) or 0.0
        if since > limits.silent:
            what = "has mapped nothing yet" if last == "none" else f"mapped nothing since {last}"
            yield SILENT, f"it {what}, for {duration_text(since)}"
    if limits.set_aside is not None:
        count = int(facts.get("set aside", "0"))
        if count > limits.set_aside:
            yield ROTTEN, f"{count:,} items are set aside, more than {limits.set_aside:,}"


def _seconds_since(moment: str) -> float | None:
    try:
        then = datetime.strptime(moment, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None
    return (datetime.now(UTC) - then).total_seconds()


def _problem(facts: Mapping[str, str], most_seconds: float) -> str:
    state = facts.get("state", "")
    if state == FINISHED:
        return ""
    if state == TROUBLE:
        return f"it has trouble: {facts.get('last error', 'not known')}"
    if state not in HEALTHY:
        return f"it is {state}" if state else "its health file has no state"
    age = _seconds_since(facts.get("updated", ""))
    process = facts.get("process", "")
    if age is None or not process.isdigit():
        return "its health file lacks the time or the process"
    if facts.get("host") == socket.gethostname() and not psutil.pid_exists(int(process)):
        return f"its process {process} has ended without a word"
    return f"it has given no sign for {age:,.0f} s" if age > most_seconds else ""


# Prometheus

_MOMENTS = {"updated": "updated", "started": "started", "last map": "last_map"}

_NUMBERS = {
    "mapped": ("mapped", "Items with a map now or before."),
    "set aside": ("set_aside", "Items that are set aside."),
    "waiting": ("waiting", "Items that have no map yet."),
    "mapped since start": ("mapped_since_start", "Items mapped by this process."),
    "set aside since start": ("set_aside_since_start", "Items set aside by this process."),
    "failed since start": ("failed_since_start", "Attempts that failed and are made again."),
    "latency s": ("latency_seconds", "From the arrival of the last item to its map."),
    "median latency s": ("latency_median_seconds", f"Median over {RECENT} maps."),
    "out of domain %": ("out_of_domain_ratio", f"Of the pixels of {RECENT} maps."),
    "low confidence %": ("low_confidence_ratio", f"Of the pixels of {RECENT} maps."),
    "free disk": ("free_disk_bytes", "Where the maps are."),
}


def prometheus_text(facts: Mapping[str, str], status: int) -> str:
    """Return the facts of a health file in the text format of Prometheus."""
    found: list[tuple[str, str, float]] = [
        ("well", "1 if all is well.", float(status == WELL)),
        ("status", "Exit status of undulatus watch --status.", status),
    ]
    for key, name in _MOMENTS.items():
        age = _seconds_since(facts.get(key, "none").split()[0])
        if age is not None:
            moment = round(datetime.now(UTC).timestamp() - age)
            found.append((f"{name}_timestamp_seconds", "In seconds since 1970.", moment))
    for key, (name, what) in _NUMBERS.items():
        number, _, unit = facts.get(key, "").partition(" ")
        with suppress(ValueError):
            scale = 0.01 if key.endswith(" %") else 2.0**30 if unit == "GiB" else 1.0
            found.append((name, what, float(number) * scale))
    lines = []
    for name, what, value in found:
        full = f"undulatus_watch_{name}"
        shown = f"{value:.0f}" if value == int(value) else f"{value:.6g}"
        lines += [f"# HELP {full} {what}", f"# TYPE {full} gauge", f"{full} {shown}"]
    labels = {"state": facts.get("state", ""), "version": facts.get("version", "")}
    labels |= {"model_sha256": facts.get("model sha256", ""), "folder": facts.get("folder", "")}
    told = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
    full = "undulatus_watch_info"
    lines += [f"# HELP {full} What is watched.", f"# TYPE {full} gauge", f"{full}{{{told}}} 1"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
