"""``undulatus demo``."""

from __future__ import annotations

from pathlib import Path

import click

from undulatus.cli.console import progress, say


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder to write to.",
)
def demo(output: Path) -> None:
    """Classify a real Sentinel-2 image and a month of synthetic ones; end with a page to open."""
    from undulatus.products.demo import run_demo
    from undulatus.products.demo_page import write_page
    from undulatus.products.month import DAYS, run_month

    result = run_demo(output, say, verbose=1)
    month = run_month(output / "month", say, progress, verbose=1)
    page = write_page(output, result, month, DAYS)
    click.echo(f"\nTest half of {result.source}:")
    click.echo(f"{'':22}{'accuracy':>10}{'NLL':>10}{'ECE':>10}{'Brier':>10}")
    for name, scores in result.scores.items():
        click.echo(
            f"{name:22}{scores.accuracy:10.4f}{scores.nll:10.4f}{scores.ece:10.4f}"
            f"{scores.brier:10.4f}"
        )
    click.echo()
    for name, path in [*result.written.items(), *month.written.items()]:
        click.echo(f"{name}: {path.resolve()}")
    click.echo(f"\nopen in a browser: {page.resolve()}")
