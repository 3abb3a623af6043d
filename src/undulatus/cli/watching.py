"""The command ``watch``: maps of every new file of a folder, unattended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import (
    EXISTING_PATH,
    FOLDER,
    NEW_PATH,
    device_option,
    ram_option,
    recorded_command,
    require_model,
    say,
    warn,
)
from undulatus.cli.models import (
    allow_outside_option,
    encoding_option,
    legend_option,
    read_legend,
)
from undulatus.cli.session import Session, printable

STUCK_SECONDS = 300.0
"""Age of the health file from which on a watcher counts as stuck."""


def _print_status(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Print the health of a watcher and end: 0 if all is well, 1 if not."""
    from undulatus.products.watch import read_health

    if path is None or ctx.resilient_parsing:
        return
    verdict = read_health(path, STUCK_SECONDS)
    click.echo(printable(verdict.text), nl=False)
    if verdict.problem:
        warn(f"not well: {verdict.problem}.")
    ctx.exit(1 if verdict.problem else 0)


@click.command()
@click.argument("folder", metavar="IN", type=NEW_PATH)
@click.argument("model", type=NEW_PATH)
@click.option(
    "-o", "--output", type=FOLDER, required=True, help="Folder of the maps; made if need be."
)
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
    help="Go on although MODEL, --encoding or --legend are not those of the maps in OUTPUT.",
)
@click.option(
    "--health",
    type=NEW_PATH,
    show_default="health.txt in OUTPUT",
    help="Text file with the state of the watcher and its counts.",
)
@click.option(
    "--status",
    type=EXISTING_PATH,
    metavar="OUTPUT",
    is_eager=True,
    expose_value=False,
    callback=_print_status,
    help="Print the health of the watcher that writes to this folder (or of this health file), "
    "and end with 0 if all is well, 1 if not.",
)
@encoding_option
@legend_option
@allow_outside_option
@ram_option
@device_option
def watch(
    folder: Path,
    model: Path,
    output: Path,
    pattern: str,
    every: float,
    settle: float,
    once: bool,
    retry: bool,
    new_model: bool,
    health: Path | None,
    legend: Path | None,
    device: str | None,
    **options: Any,
) -> None:
    """Map every new file in the folder IN, until stopped.

    Each file or folder of data is mapped once, to OUTPUT/NAME.nc. What cannot be mapped is set
    aside: OUTPUT/set-aside/NAME.txt has the reason, IN stays as it is. OUTPUT/watch.jsonl lists
    all that was done; after a restart the watcher goes on where it was. Ends with 0 on SIGTERM,
    and with 130 on Ctrl-C; with --once, 0 if everything in IN is mapped, else 1.
    """
    from undulatus.errors import SceneError
    from undulatus.products.map_files import ModelFile
    from undulatus.products.watch import Arrivals, MapOptions, watching

    if not folder.exists():
        # Not bad usage: a service is started again until a disk is there.
        raise SceneError(f"{folder} does not exist. Check its name, or whether its disk is there.")
    if not folder.is_dir():
        raise click.UsageError(
            f"IN must be a folder, but {folder} is a file: undulatus watch IN MODEL -o OUTPUT."
        )
    require_model(model)
    with (
        _ending_on_sigterm(well=not once),
        watching(
            Arrivals(folder, pattern, settle),
            ModelFile.load(model, device),
            output,
            MapOptions(
                legend=None if legend is None else read_legend(legend),
                command=recorded_command(),
                **options,
            ),
            health=health,
            retry=retry,
            new_model=new_model,
            say=say,
            warn=warn,
        ) as watcher,
    ):
        ledger = watcher.ledger
        before = f"{ledger.mapped:,} mapped and {ledger.set_aside:,} set aside before"
        say(f"watching {folder}, maps to {output} ({before})")
        all_mapped = watcher.run(every, once=once)
    counts = watcher.counts
    click.echo(f"{counts.mapped:,} mapped, {counts.set_aside:,} set aside: {output.resolve()}")
    if not all_mapped:
        raise click.exceptions.Exit(1)


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
