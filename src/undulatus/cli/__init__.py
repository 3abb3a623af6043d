"""The command line: parse, call, print. The last lines list the commands."""

from __future__ import annotations

from typing import Any

try:
    import click
except ModuleNotFoundError as error:
    raise SystemExit(
        'undulatus: the command line needs more packages. Install "undulatus[eo]".'
    ) from error

from undulatus.cli.console import INTERRUPTED, printable
from undulatus.cli.learning import fit, score, suggest, update
from undulatus.cli.models import cut, explain, info, map_command, twin
from undulatus.cli.pages import browse, demo, reproduce
from undulatus.errors import UndulatusError


class Commands(click.Group):
    """Commands that print a user's error without a traceback, and end with exit status 1."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which a user needs them."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print what went wrong if the user can mend it."""
        try:
            return super().invoke(ctx)
        except UndulatusError as error:
            if ctx.params.get("debug"):
                raise
            _print_error(ctx, str(error), error)
            ctx.exit(1)
        except KeyboardInterrupt as interrupt:
            _print_error(ctx, "interrupted.", interrupt)
            ctx.exit(INTERRUPTED)
        except ModuleNotFoundError as error:
            if ctx.params.get("debug") or str(error.name).startswith("undulatus"):
                raise
            _print_error(
                ctx,
                f"needs the package {error.name!r}. Install "
                f'"undulatus[eo]", "undulatus[images]" for labels of your own images, or '
                f'"undulatus[seviri]" for SEVIRI files.',
                error,
            )
            ctx.exit(1)


def _print_error(ctx: click.Context, message: str, error: BaseException) -> None:
    """Print a message, and the notes that were added to the error on its way."""
    notes = getattr(error, "__notes__", [])
    lines = [f"undulatus {ctx.invoked_subcommand}: {message}", *notes]
    click.echo(printable("\n".join(lines)), err=True)


@click.group(cls=Commands)
@click.version_option(package_name="undulatus")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Classify satellite imagery with Gaussian processes."""


for command in (
    demo,
    twin,
    cut,
    fit,
    score,
    suggest,
    update,
    map_command,
    browse,
    info,
    explain,
    reproduce,
):
    main.add_command(command)
