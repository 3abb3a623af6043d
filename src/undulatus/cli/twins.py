"""``undulatus twin``: synthetic data."""

from __future__ import annotations

from pathlib import Path

import click

from undulatus.cli.console import NEW, progress


@click.group()
def twin() -> None:
    """Make synthetic data with the truth known: no satellite took them."""


@twin.command()
@click.option("--days", type=click.IntRange(1, 365), default=365, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("-o", "--output", type=NEW, required=True, help="A new .zarr folder or .nc file.")
def landmarks(days: int, seed: int, output: Path) -> None:
    """Make a year of SEVIRI images over a coast like Dakhla's, or its first days."""
    from undulatus.scenes import synthetic_landmark
    from undulatus.scenes.stores import write_dataset

    scene = synthetic_landmark(days, seed=seed)
    with progress("making images") as track:
        write_dataset(scene, output, progress=track)
    click.echo(f"{scene.sizes['time']:,} acquisitions: {output.resolve()}")


@twin.command()
@click.option("--samples", type=click.IntRange(1), default=24_923, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("-o", "--output", type=NEW, required=True, help="A new .zarr folder or .nc file.")
def sounder(samples: int, seed: int, output: Path) -> None:
    """Make IASI-like spectra of 8,461 channels, clear and cloudy, over every kind of surface."""
    from undulatus.scenes import synthetic_sounder
    from undulatus.scenes.stores import write_dataset

    with progress("making spectra") as track:
        write_dataset(synthetic_sounder(samples, seed=seed), output, progress=track)
    click.echo(f"{samples:,} spectra: {output.resolve()}")
