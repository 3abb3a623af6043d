"""The command ``watch``: maps of every new file of a folder, unattended."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import (
    EXISTING_PATH,
    FOLDER,
    NEW_PATH,
    Duration,
    device_option,
    memory_limit_option,
    print_table,
    recorded_command,
    require_model,
    say,
    warn,
)
from undulatus.cli.data_options import (
    box_option,
    calibration_option,
    flags_text,
    sun_normalised_option,
)
from undulatus.cli.models import (
    allow_outside_option,
    encoding_option,
    legend_option,
    read_legend,
)
from undulatus.cli.session import Session, printable

MOST_LISTED = 10
"""Names that a line lists."""

OF_STATUS, OF_REPORT = ("max_age", "max_set_aside", "prometheus"), ("by", "picture")
"""Options that need ``--status`` or ``--report``; both take ``--json``."""


def _split_command(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> list[str] | None:
    """Return the words of a command whose program exists."""
    if value is None:
        return None
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} cannot be read: {error}.") from None
    if not words or shutil.which(words[0]) is None:
        raise click.BadParameter(f"{value!r} names no program that can be run.")
    return words


@click.command()
@click.argument("folder", metavar="IN", type=NEW_PATH, required=False)
@click.argument("model", metavar="MODEL", type=NEW_PATH, required=False)
@click.option("-o", "--output", type=FOLDER, help="Folder of the maps; made if need be.")
@click.option(
    "--suffix",
    type=click.Choice([".nc", ".zarr", ".tif"]),
    default=".nc",
    show_default=True,
    help="Format of the maps.",
)
@click.option(
    "--pattern",
    metavar="GLOB",
    default="*",
    show_default=True,
    help="What names in IN must match, such as '*.nc'.",
)
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Seconds between two looks into IN.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0.0),
    default=5.0,
    show_default=True,
    help="Seconds for which a file must not have changed before it is mapped.",
)
@click.option("--once", is_flag=True, help="Map what is there, and end.")
@click.option("--retry", is_flag=True, help="Try again what was set aside before.")
@click.option(
    "--new-model",
    is_flag=True,
    help="Go on although MODEL, --encoding, --legend or how data are read are not those of the "
    "maps in OUTPUT.",
)
@click.option(
    "--health",
    type=NEW_PATH,
    show_default="health.txt in OUTPUT",
    help="Text file with the state of the watcher and its counts.",
)
@click.option(
    "--metrics",
    type=NEW_PATH,
    help="Text file with the same for Prometheus, such as in the folder of node_exporter's "
    "textfile collector.",
)
@click.option(
    "--on-set-aside",
    metavar="COMMAND",
    callback=_split_command,
    help="Program to run for each item that is set aside, without a shell: its last arguments "
    "are the paths of the item and of the file with the reason, and UNDULATUS_ITEM, "
    "UNDULATUS_REASON_FILE and UNDULATUS_REASON are in its environment.",
)
@click.option(
    "--keep",
    type=Duration(),
    metavar="TIME",
    show_default="for ever",
    help="Remove maps that are older, such as 30d, and forget items that are gone from IN for so "
    "long. Only what the ledger says was made here is removed.",
)
@click.option(
    "--status",
    type=EXISTING_PATH,
    metavar="OUTPUT",
    help="Print the health of the watcher that writes to this folder (or of this health file), "
    "and end with 0 if all is well, 1 if not, 4 beyond --max-age, 5 beyond --max-set-aside.",
)
@click.option(
    "--max-age",
    type=Duration(),
    metavar="TIME",
    help="With --status: not well if the last map is older, such as 30min.",
)
@click.option(
    "--max-set-aside",
    type=click.IntRange(0),
    metavar="N",
    help="With --status: not well if more items are set aside.",
)
@click.option(
    "--prometheus", is_flag=True, help="With --status: print the text format of Prometheus."
)
@click.option(
    "--report",
    type=EXISTING_PATH,
    metavar="OUTPUT",
    help="Print what was mapped and set aside in each period, how long it took from arrival to "
    "map, and the shares of pixels that are missing, of low confidence and out of domain.",
)
@click.option(
    "--by",
    type=click.Choice(["hour", "day", "month"]),
    show_default="day",
    help="With --report: the periods (UTC).",
)
@click.option(
    "--picture",
    type=NEW_PATH,
    metavar="FILE",
    help="With --report: draw it over time, in a .png, .svg or .pdf; an earlier one is replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="With --status or --report: print JSON.")
@calibration_option
@box_option
@sun_normalised_option
@encoding_option
@legend_option
@allow_outside_option
@memory_limit_option
@device_option
@click.pass_context
def watch(
    ctx: click.Context,
    /,
    folder: Path | None,
    model: Path | None,
    output: Path | None,
    status: Path | None,
    report: Path | None,
    **options: Any,
) -> None:
    """Map every new file in the folder IN, until stopped.

    Each file or folder of data is mapped once, to OUTPUT/NAME.nc. What cannot be mapped is set
    aside: OUTPUT/set-aside/NAME.txt has the reason, IN stays as it is. OUTPUT/watch.jsonl lists
    all that was done; after a restart the watcher goes on where it was. Ends with 0 on SIGTERM,
    and with 130 on Ctrl-C; with --once, 0 if everything in IN is mapped, else 1.

    --status and --report tell of a watcher, need no IN, MODEL and -o, and map nothing.
    """
    asked = {name: options.pop(name) for name in (*OF_STATUS, *OF_REPORT, "as_json")}
    if status is not None and report is not None:
        raise click.UsageError("--status and --report are two questions: ask one at a time.")
    takes = OF_STATUS if status is not None else OF_REPORT if report is not None else ()
    given = {name for name, value in asked.items() if value not in (None, False)}
    if stray := sorted(given - {*takes, *(("as_json",) if takes else ())}):
        named = flags_text(name.removeprefix("as_") for name in stray)
        raise click.UsageError(
            f"{named}: --status takes {flags_text(OF_STATUS)}, --report {flags_text(OF_REPORT)}, "
            f"and both --json."
        )
    if status is not None:
        ctx.exit(_print_status(status, **asked))
    if report is not None:
        _print_report(report, **asked)
        return
    for param in ctx.command.params:
        if param.name in ("folder", "model", "output") and ctx.params[param.name] is None:
            raise click.MissingParameter(ctx=ctx, param=param)
    assert folder is not None
    assert model is not None
    assert output is not None
    _watch(folder, model, output, **options)


def _print_status(
    path: Path,
    max_age: float | None,
    max_set_aside: int | None,
    prometheus: bool,
    as_json: bool,
    **others: Any,
) -> int:
    """Print the health of a watcher; return the exit status."""
    from undulatus.products.watch import Limits, prometheus_text, read_health

    verdict = read_health(path, Limits(silent=max_age, set_aside=max_set_aside))
    if as_json:
        click.echo(json.dumps(verdict.as_dict(), indent=2))
    elif prometheus:
        click.echo(printable(prometheus_text(verdict.facts, verdict.status)), nl=False)
    else:
        click.echo(printable(verdict.text), nl=False)
    if verdict.problem:
        warn(f"not well: {verdict.problem}.")
    return verdict.status


def _print_report(
    path: Path, by: str | None, picture: Path | None, as_json: bool, **others: Any
) -> None:
    from undulatus.products.watch import draw_report, read_report

    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise click.UsageError(f"--picture must name a .png, .svg or .pdf file, not {picture}.")
    found = read_report(path, by or "day")
    if as_json:
        click.echo(json.dumps(found.as_dict(), indent=2))
    elif found.periods:
        print_table(found.rows())
        if found.drift:
            click.echo(found.drift)
    else:
        click.echo("nothing was mapped or set aside yet.")
    if picture is not None:
        draw_report(found, picture)
        (say if as_json else click.echo)(f"picture: {picture.resolve()}")


def _watch(
    folder: Path,
    model: Path,
    output: Path,
    pattern: str,
    every: float,
    settle: float,
    once: bool,
    on_set_aside: list[str] | None,
    legend: Path | None,
    device: str | None,
    **options: Any,
) -> None:
    """Map what arrives in a folder, until stopped."""
    from undulatus.errors import SceneError
    from undulatus.products.map_files import ModelFile
    from undulatus.products.watch import Alarm, Arrivals, MapOptions, watching

    if not folder.exists():
        # Not bad usage: a service is started again until a disk is there.
        raise SceneError(f"{folder} does not exist. Check its name, or whether its disk is there.")
    if not folder.is_dir():
        raise click.UsageError(
            f"IN must be a folder, but {folder} is a file: undulatus watch IN MODEL -o OUTPUT."
        )
    require_model(model)
    Session.of(click.get_current_context()).tells_progress = False
    names = ("health", "metrics", "retry", "new_model", "keep")
    of_watcher = {name: options.pop(name) for name in names}
    reading = {name: options.pop(name) for name in ("calibration", "box", "sun_normalised")}
    if on_set_aside is not None:
        of_watcher["on_set_aside"] = Alarm(on_set_aside, warn)
    with (
        _ending_on_sigterm(well=not once),
        watching(
            Arrivals(folder, pattern, settle),
            ModelFile.load(model, device),
            output,
            MapOptions(
                legend=None if legend is None else read_legend(legend),
                command=recorded_command(),
                reading={name: value for name, value in reading.items() if value is not None},
                **options,
            ),
            say=say,
            warn=warn,
            **of_watcher,
        ) as watcher,
    ):
        ledger = watcher.ledger
        before = f"{ledger.mapped:,} mapped and {ledger.set_aside:,} set aside before"
        say(f"watching {folder}, maps to {output} ({before})")
        left = watcher.run(every, once=once)
    counts = watcher.counts
    still = len(left.set_aside) - counts.set_aside
    earlier = f" ({still:,} more still set aside from before)" if still > 0 else ""
    click.echo(
        f"{counts.mapped:,} mapped, {counts.set_aside:,} set aside{earlier}: {output.resolve()}"
    )
    if left:
        _tell_unmapped(left, output)
        raise click.exceptions.Exit(1)


def _tell_unmapped(left: Any, output: Path) -> None:
    """Say what is not mapped, and so why the exit status is 1."""
    advice = {
        "set aside": f"{output / 'set-aside'} has the reasons, --retry tries them again",
        "failed": "they are tried again the next time",
        "not readable": "links to nowhere?",
    }
    names_of = (left.set_aside, left.failed, left.unreadable)
    for (kind, what), names in zip(advice.items(), names_of, strict=True):
        if names:
            more = f" and {len(names) - MOST_LISTED:,} more" if len(names) > MOST_LISTED else ""
            listed = ", ".join(names[:MOST_LISTED])
            warn(f"not everything is mapped: {len(names):,} {kind}: {listed}{more} ({what}).")


@contextmanager
def _ending_on_sigterm(*, well: bool) -> Iterator[None]:
    """End with status 0 on SIGTERM, which is how a service is stopped, if that is well."""
    try:
        yield
    except KeyboardInterrupt:
        if not (well and Session.of(click.get_current_context()).terminated):
            raise
        say("stopped.")
        raise click.exceptions.Exit(0) from None
