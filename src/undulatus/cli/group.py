"""Commands whose user errors are told in words."""

from __future__ import annotations

from typing import Any

import click

from undulatus.errors import UndulatusError


class Commands(click.Group):
    """Commands whose user errors are told without a traceback, with exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and say what went wrong if a user can mend it."""
        try:
            return super().invoke(ctx)
        except UndulatusError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"undulatus {ctx.invoked_subcommand}: {error}", err=True)
            ctx.exit(1)
        except ModuleNotFoundError as error:
            if ctx.params.get("debug") or str(error.name).startswith("undulatus"):
                raise
            click.echo(
                f"undulatus {ctx.invoked_subcommand}: needs the package {error.name!r}. "
                f'Install "undulatus[eo]", and "undulatus[seviri]" for SEVIRI files.',
                err=True,
            )
            ctx.exit(1)
