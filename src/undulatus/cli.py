"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from undulatus.errors import UndulatusError

try:
    import click
except ModuleNotFoundError as error:
    raise SystemExit(
        'undulatus: the command line needs more packages. Install "undulatus[eo]".'
    ) from error


class _Commands(click.Group):
    """Commands whose user errors are told without a traceback, with exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UndulatusError as error:
            if ctx.params.get("debug"):
                raise
            command = f"undulatus {ctx.invoked_subcommand}"
            click.echo(f"{command}: {error}", err=True)
            ctx.exit(1)


@click.group(cls=_Commands)
@click.version_option(package_name="undulatus")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Gaussian-process classification of satellite imagery."""


@main.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder to write to.",
)
def demo(output: Path) -> None:
    """Classify the clouds of a real Sentinel-2 image, and draw what came out."""
    from undulatus.products.demo import run_demo

    result = run_demo(output, lambda line: click.echo(line, err=True), verbose=1)
    click.echo(f"\nTest half of {result.source}:")
    click.echo(f"{'':22}{'accuracy':>10}{'NLL':>10}{'ECE':>10}{'Brier':>10}")
    for name, scores in result.scores.items():
        click.echo(
            f"{name:22}{scores.accuracy:10.4f}{scores.nll:10.4f}{scores.ece:10.4f}"
            f"{scores.brier:10.4f}"
        )
    click.echo()
    for name, path in result.written.items():
        click.echo(f"{name}: {path.resolve()}")


@main.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def info(model: Path) -> None:
    """Say what a model file holds."""
    from undulatus.storage import load_model

    fitted = load_model(model)
    names = getattr(fitted, "feature_names_in_", None)
    click.echo(f"{model}: {type(fitted).__name__}")
    click.echo(f"classes: {', '.join(map(str, fitted.classes_))}")
    click.echo(
        f"features: {fitted.n_features_in_}"
        + (f" ({', '.join(names)})" if names is not None else "")
    )
    click.echo(f"signal variance: {fitted.signal_variance_:.6g}")
    click.echo(f"lengthscale: {fitted.lengthscale_:.6g}")
    click.echo(f"bound: {fitted.bound_:.6g}")
    for name, value in fitted.fit_report_.items():
        click.echo(f"{name.replace('_', ' ')}: {value}")


if __name__ == "__main__":
    sys.exit(main())
