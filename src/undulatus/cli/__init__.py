"""The command line: parse, call, print. The last lines list the commands."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

try:
    import click
except ModuleNotFoundError as error:
    raise SystemExit(
        'undulatus: the command line needs more packages. Install "undulatus[eo]".'
    ) from error

from undulatus.cli.info import info
from undulatus.cli.learning import adapt, fit, suggest, update
from undulatus.cli.models import explain, map_command, simulate, subset
from undulatus.cli.pages import browse, demo, reproduce
from undulatus.cli.scoring import score
from undulatus.cli.session import Session, drop_last_words
from undulatus.cli.watching import watch
from undulatus.errors import UndulatusError


class Commands(click.Group):
    """Commands that print a user's error without a traceback, and end with exit status 1.

    All take the options of :func:`_shared_options`, and so does the group before the command.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.extend(_shared_options())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a user needs them."""
        return list(self.commands)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command, or a group of them, with the options that all share."""
        for each in (cmd, *getattr(cmd, "commands", {}).values()):
            each.params.extend(_shared_options())
        super().add_command(cmd, name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Begin a session, which remembers the arguments as they were given."""
        ctx.meta["undulatus.session"] = Session(list(args))
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print what went wrong if the user can mend it."""
        with Session.of(ctx).running(ctx) as session:
            try:
                return super().invoke(ctx)
            except UndulatusError as error:
                if session.debug:
                    raise
                session.fail(str(error), error)
                ctx.exit(1)
            except KeyboardInterrupt as interrupt:
                session.fail("interrupted.", interrupt)
                atexit.register(drop_last_words)
                ctx.exit(session.interrupt_status)
            except OSError as error:
                # Here, since it imports numpy, and --version and --help need none of it.
                from undulatus._files import FULL

                if session.debug or error.errno not in FULL:
                    raise
                session.fail(f"the results cannot be printed: {error.strerror}.", error)
                ctx.exit(1)
            except ModuleNotFoundError as error:
                if session.debug or str(error.name).startswith("undulatus"):
                    raise
                session.fail(
                    f"needs the package {error.name!r}. Install "
                    f'"undulatus[eo]", "undulatus[images]" for labels of your own images, '
                    f'"undulatus[seviri]" for SEVIRI files, or "undulatus[sounder]" for BUFR.',
                    error,
                )
                ctx.exit(1)


def _be_quiet(context: click.Context, option: click.Parameter, value: bool) -> None:
    Session.of(context).display.quiet |= value


def _open_log(context: click.Context, option: click.Parameter, value: Path | None) -> None:
    if value is not None:
        Session.of(context).open_log(value)


def _debug(context: click.Context, option: click.Parameter, value: bool) -> None:
    Session.of(context).debug |= value


def _shared_options() -> list[click.Option]:
    """Return the options of every command; they act on its session."""
    return [
        click.Option(
            ["--quiet"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_be_quiet,
            help="Print nothing on standard error but warnings and errors.",
        ),
        click.Option(
            ["--log"],
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            expose_value=False,
            is_eager=True,
            callback=_open_log,
            help="Append times, progress, warnings and errors to FILE.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_debug,
            help="Show the traceback of an error.",
        ),
    ]


@click.group(cls=Commands)
@click.version_option(package_name="undulatus")
def main() -> None:
    """Classify satellite imagery with Gaussian processes."""


for command in (
    demo,
    simulate,
    subset,
    fit,
    score,
    suggest,
    adapt,
    update,
    map_command,
    watch,
    browse,
    info,
    explain,
    reproduce,
):
    main.add_command(command)
