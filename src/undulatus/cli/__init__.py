"""The command line: parse, call, print."""

from __future__ import annotations

from typing import Any

try:
    import click
except ModuleNotFoundError as error:
    raise SystemExit(
        'undulatus: the command line needs more packages. Install "undulatus[eo]".'
    ) from error

from undulatus.cli.models import explain, fit, info, map_command, score, twin
from undulatus.cli.pages import browse, demo, reproduce
from undulatus.errors import UndulatusError

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


class Commands(click.Group):
    """Commands whose user errors are told without a traceback, with exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and say what went wrong if a user can mend it."""
        try:
            return super().invoke(ctx)
        except UndulatusError as error:
            if ctx.params.get("debug"):
                raise
            _tell(ctx, str(error), error)
            ctx.exit(1)
        except KeyboardInterrupt as interrupt:
            _tell(ctx, "interrupted.", interrupt)
            ctx.exit(INTERRUPTED)
        except ModuleNotFoundError as error:
            if ctx.params.get("debug") or str(error.name).startswith("undulatus"):
                raise
            _tell(
                ctx,
                f"needs the package {error.name!r}. Install "
                f'"undulatus[eo]", and "undulatus[seviri]" for SEVIRI files.',
                error,
            )
            ctx.exit(1)


def _tell(ctx: click.Context, what: str, error: BaseException) -> None:
    """Say what went wrong, and what was noted about it on its way."""
    notes = getattr(error, "__notes__", [])
    click.echo("\n".join([f"undulatus {ctx.invoked_subcommand}: {what}", *notes]), err=True)


@click.group(cls=Commands)
@click.version_option(package_name="undulatus")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Gaussian-process classification of satellite imagery."""


for command in (demo, twin, fit, map_command, score, explain, browse, reproduce, info):
    main.add_command(command)
