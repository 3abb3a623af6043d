"""What commands share: options, progress on standard error, tables on standard output."""

from __future__ import annotations

import math
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click


class PlainPath(click.Path):
    """A path of a file or folder, or of none yet: no pipe, device, or link to nowhere."""

    def __init__(self, **options: Any) -> None:
        super().__init__(path_type=Path, **options)

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> Any:
        """Return the path; reading a pipe would wait for ever, writing one would replace it."""
        path = Path(value)
        if not str(value):
            self.fail("the path is empty.")
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                status = os.stat(path)
        except FileNotFoundError:
            if path.is_symlink():
                self.fail(f"{path} is a link to {os.readlink(path)}, which does not exist.")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            self.fail(f"{_shorten(str(path))} cannot be used: {reason}.")
        else:
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                self.fail(f"{path} is neither a file nor a folder, but a pipe or a device.")
        return super().convert(value, param, ctx)


def _shorten(text: str, most: int = 100) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}...{text[-most // 2 :]}"


EXISTING_FILE = PlainPath(exists=True, dir_okay=False)

EXISTING_PATH = PlainPath(exists=True)

MODEL_PATH = PlainPath(exists=True)
"""A model; :func:`require_model` says what is wrong with another path."""

NEW_PATH = PlainPath()

FOLDER = PlainPath(file_okay=False)

INTERRUPTED = 130
"""Exit status after Ctrl-C, by custom of shells."""

SECONDS_BETWEEN_LINES = 60.0
"""Time between lines of progress where there is no terminal."""

_COLUMN_TITLES = {"nll": "NLL", "ece": "ECE", "auc": "AUC"}


# Options

seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the random numbers.",
)

ram_option = click.option(
    "--ram", metavar="SIZE", show_default="no limit", help="Memory to stay below, such as 2GB."
)


def split_span(span: str | None) -> tuple[str | None, str | None]:
    """Return START and END of ``START/END``; either is None if it is left out."""
    start, _, end = (span or "").partition("/")
    return start or None, end or None


def require_new(path: Path, *, overwrite: bool | None) -> None:
    """Raise an error if an output cannot be made: it exists, or its folder does not.

    ``overwrite`` says whether an existing one is replaced; None for commands that never do.
    """
    from undulatus._files import require_folder
    from undulatus.errors import SceneError

    require_folder(path)
    if path.is_dir() and overwrite:
        raise SceneError(f"{path} is a folder, which is not replaced. Give another name.")
    if path.exists() and not overwrite:
        remedy = "." if overwrite is None else ", or --overwrite to replace it."
        raise SceneError(f"{path} exists. Give another name{remedy}")


def require_model(model: Path, *others: Path) -> None:
    """Raise if MODEL is not a model, and say so if it was given in the place of another."""
    from undulatus._files import is_tensor_file

    if is_tensor_file(model):
        return
    swapped = next((path for path in others if is_tensor_file(path)), None)
    if swapped is not None:
        command = click.get_current_context().command_path
        raise click.UsageError(
            f"{swapped} is a model, and {model} is not: MODEL comes first. Write\n"
            f"  {command} {swapped} {model} ..."
        )
    if model.is_dir():
        raise click.UsageError(
            f"MODEL must be a file that undulatus fit wrote, but {model} is a folder."
        )


def printable(text: str) -> str:
    """Return text with control characters escaped, which could command a terminal."""
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


# Standard error


def say(line: str) -> None:
    """Print a line on standard error."""
    click.echo(printable(line), err=True)


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on standard error; give a function of (done, total)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn(task),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
    )
    with bar:
        shown = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(shown, completed=done, total=total)


@contextmanager
def trial_progress() -> Iterator[Callable[[Any], None]]:
    """Show how many trials are done, the last of them, and the time left, on standard error.

    In a terminal this is a bar; elsewhere, as in the log of a batch job, a line every minute.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("trials"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("about {task.fields[left]} left, {task.fields[last]}"),
        console=Console(stderr=True),
    )
    with bar:
        yield _TrialDisplay(bar).show


class _TrialDisplay:
    def __init__(self, bar: Any) -> None:
        self._bar = bar
        self._task = bar.add_task("trials", total=None, visible=False, left="", last="")
        self._last_line = -math.inf

    def show(self, progress: Any) -> None:
        """Show the progress of a run; ``progress.record`` is its last trial."""
        record = progress.record or {"id": "starting"}
        last = str(record["id"])
        if "accuracy" in record:
            last += f": accuracy {record['accuracy']:.4f}"
        elif "reason" in record:
            line = f"{last}: {record['status']}: {record['reason']}"
            self._bar.console.print(line, markup=False)
        left = _duration_text(progress.seconds_left)
        now = time.monotonic()
        if not self._bar.console.is_terminal and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            say(f"trials: {progress.done} of {progress.total}, about {left} left")
        self._bar.update(
            self._task,
            completed=progress.done,
            total=progress.total,
            visible=True,
            left=left,
            last=last,
        )


def _duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


# Standard output


def print_table(rows: list[dict[str, Any]]) -> None:
    """Print rows in aligned columns: text to the left, numbers to the right."""
    cells = [{name: _cell_text(value) for name, value in row.items()} for row in rows]
    head = {name: _COLUMN_TITLES.get(name, name.replace("_", " ")) for name in rows[0]}
    widths = {name: max(len(row[name]) for row in [head, *cells]) for name in head}
    for line in [head, *cells]:
        aligned = [
            line[name].ljust(width) if isinstance(rows[0][name], str) else line[name].rjust(width)
            for name, width in widths.items()
        ]
        click.echo(printable("  ".join(aligned).rstrip()))


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
