"""What commands share: kinds of paths, progress on standard error, tables on standard output."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

ANY = click.Path(exists=True, path_type=Path)

NEW = click.Path(path_type=Path)

LINES_APART = 60.0
"""Seconds between lines of progress where there is no terminal."""

_TITLES = {"nll": "NLL", "ece": "ECE", "auc": "AUC"}


def say(line: str) -> None:
    """Print a line of progress on standard error."""
    click.echo(line, err=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on standard error while something is made."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def trial_progress() -> Iterator[Callable[[Any], None]]:
    """Show how many trials are done, the last of them, and the time left, on standard error.

    A bar in a terminal; elsewhere, as in the log of a batch job, a line now and then.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("trials"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("about {task.fields[left]} left, {task.fields[last]}"),
        console=console,
    )
    with bar:
        task = bar.add_task("trials", total=None, visible=False, left="", last="")

        told = -math.inf

        def show(standing: Any) -> None:
            nonlocal told
            record = standing.record or {"id": "starting"}
            last = str(record["id"])
            if "accuracy" in record:
                last += f": accuracy {record['accuracy']:.4f}"
            elif "reason" in record:
                bar.console.print(f"{last}: {record['status']}: {record['reason']}", markup=False)
            left = _duration(standing.seconds_left)
            if not console.is_terminal and time.monotonic() - told >= LINES_APART:
                told = time.monotonic()
                say(f"trials: {standing.done} of {standing.total}, about {left} left")
            bar.update(
                task,
                completed=standing.done,
                total=standing.total,
                visible=True,
                left=left,
                last=last,
            )

        yield show


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print columns as wide as they need, words to the left and numbers to the right."""
    shown = [{name: _cell(value) for name, value in row.items()} for row in rows]
    names = {name: _TITLES.get(name, name.replace("_", " ")) for name in shown[0]}
    widths = {name: max(len(row[name]) for row in [names, *shown]) for name in names}
    for line in [names, *shown]:
        cells = [
            line[name].ljust(width) if isinstance(rows[0][name], str) else line[name].rjust(width)
            for name, width in widths.items()
        ]
        click.echo("  ".join(cells).rstrip())


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
