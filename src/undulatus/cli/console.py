"""What commands share: options, progress on standard error, tables on standard output."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import click

from undulatus._progress import LOGGER, working_on
from undulatus.cli.session import Session, as_command_line, printable


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


class Duration(click.ParamType[float]):
    """A time such as ``90s``, ``30min``, ``12h`` or ``30d``, in seconds."""

    name = "duration"

    _UNITS: ClassVar[dict[str, float]] = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is not a time such as 90s, 30min, 12h or 30d.")
        seconds = float(found[1]) * self._UNITS[found[2]]
        if seconds == 0.0:
            self.fail(f"{value!r} is no time at all. Give one above 0.")
        return seconds


EXISTING_FILE = PlainPath(exists=True, dir_okay=False)

EXISTING_PATH = PlainPath(exists=True)

MODEL_PATH = PlainPath(exists=True)
"""A model; :func:`require_model` says what is wrong with another path."""

NEW_PATH = PlainPath()

FOLDER = PlainPath(file_okay=False)

_COLUMN_TITLES = {"nll": "NLL", "ece": "ECE", "auc": "AUC"}


# Options

seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Seed of the random numbers.",
)

device_option = click.option(
    "--device",
    metavar="NAME",
    show_default="the processor",
    help="Where to compute: cuda, cuda:1 or another device of torch (needs undulatus[gpu]).",
)

memory_limit_option = click.option(
    "--memory-limit",
    metavar="SIZE",
    show_default="no limit",
    help="Memory to stay below, such as 2GB.",
)


def split_names(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[str, ...]:
    """Return the parts of a list with commas."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


rgb_option = click.option(
    "--rgb",
    callback=lambda *given: split_names(*given) or None,
    metavar="RED,GREEN,BLUE",
    show_default="by names or wavelengths",
    help="Bands of an image that its pages show as red, green and blue, or one in grey.",
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
    from undulatus.scenes.files.zarr_store import require_replaceable

    require_folder(path)
    if overwrite and path.suffix == ".zarr":
        require_replaceable(path)
    elif overwrite and path.is_dir():
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


# Standard error


def say(line: str) -> None:
    """Say a line on standard error and in logs, unless ``--quiet`` forbids the former."""
    LOGGER.info("%s", line)


def warn(line: str) -> None:
    """Say a line that ``--quiet`` does not forbid, and that logs have as a warning."""
    LOGGER.warning("%s", line)


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[float, float], None]]:
    """Show how far a task is, and the time left; give a function of (done, total)."""
    with working_on(task) as work:
        yield work.report


@contextmanager
def trial_progress() -> Iterator[Callable[[Any], None]]:
    """Show how many trials of a run are done, the last of them, and the time left."""
    with working_on("trials") as work:

        def show(progress: Any) -> None:
            record = progress.record or {"id": "starting"}
            last = str(record["id"])
            if "accuracy" in record:
                last += f": accuracy {record['accuracy']:.4f}"
            elif "reason" in record:
                say(f"{last}: {record['status']}: {record['reason']}")
            work.report(
                progress.done,
                progress.total,
                f"{progress.done} of {progress.total}, {last}",
                seconds_left=progress.seconds_left,
            )

        yield show


def command_line() -> str:
    """Return the command that runs as it was typed."""
    return Session.of(click.get_current_context()).command_line


def recorded_command() -> str:
    """Return the command that runs for what it makes to remember.

    Of an absolute path it has the name alone: where it was is the affair of whoever ran it.
    """
    arguments = Session.of(click.get_current_context()).arguments
    return as_command_line(list(map(_without_folder, arguments)))


def _without_folder(word: str) -> str:
    option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{option}{equals}{Path(value).name or value}" if Path(value).is_absolute() else word


def recipe() -> str:
    """Return the command that runs without what does not change a model.

    Two runs that make the same model then record the same, to the bit.
    """
    kept, words = [], iter(Session.of(click.get_current_context()).arguments)
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if name in ("-o", "--output", "--log", "--write-held-out"):
            if word == name:
                next(words, None)
        elif word not in ("--resume", "--restart", "--overwrite", "--quiet", "--debug"):
            kept.append(_without_folder(word))
    return as_command_line(kept)


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
