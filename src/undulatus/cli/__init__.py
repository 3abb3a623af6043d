"""The command line: parse, call, print."""

try:
    import click
except ModuleNotFoundError as error:
    raise SystemExit(
        'undulatus: the command line needs more packages. Install "undulatus[eo]".'
    ) from error

from undulatus.cli.browse import browse
from undulatus.cli.demo import demo
from undulatus.cli.group import Commands
from undulatus.cli.inspection import explain, info
from undulatus.cli.maps import map_command
from undulatus.cli.models import fit, score
from undulatus.cli.reproduce import reproduce
from undulatus.cli.twins import twin


@click.group(cls=Commands)
@click.version_option(package_name="undulatus")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Gaussian-process classification of satellite imagery."""


for command in (demo, twin, fit, map_command, score, explain, browse, reproduce, info):
    main.add_command(command)
