"""``undulatus map``: every pixel of a scene or an image, or every spectrum."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import ANY, FILE, NEW, progress


@click.command(name="map")
@click.argument("model", type=FILE)
@click.argument("data", type=ANY)
@click.option("-o", "--output", type=NEW, required=True, help="A new .zarr, .nc or .tif.")
@click.option(
    "--encoding",
    type=click.Choice(["cf", "eumetsat-clm", "pps"]),
    default="cf",
    show_default=True,
    help="Codes of cloud_mask.",
)
@click.option("--picture", "pictures", multiple=True, metavar="TIME", help="Draw this time too.")
@click.option("--video", metavar="START/END", help="Film this span too (MP4).")
@click.option("--ram", metavar="SIZE", help="Memory to stay below, such as 2GB.")
@click.option("--resume", is_flag=True, help="Go on with a .zarr that was interrupted.")
def map_command(
    model: Path,
    data: Path,
    output: Path,
    encoding: str,
    pictures: tuple[str, ...],
    video: str | None,
    ram: str | None,
    resume: bool,
) -> None:
    """Classify every pixel of DATA: a scene, an image, or spectra.

    Writes mask, probability, variance and quality.
    """
    from undulatus.products.maps import map_scene
    from undulatus.products.memory import within
    from undulatus.scenes.spectra import is_spectra
    from undulatus.scenes.stores import open_data, open_map, write_dataset
    from undulatus.storage import load_model

    opened = open_data(data)
    if (pictures or video) and is_spectra(opened):
        raise click.UsageError("--picture and --video are for scenes, but DATA holds spectra.")
    with within(ram, opened) as fitting:
        result = map_scene(load_model(model), fitting, encoding=encoding)
        result.attrs["scene"] = str(data.absolute())
        made_of = f"{_digest(model)} {data.resolve()} {encoding}"
        with progress("mapping") as track:
            write_dataset(result, output, track, resume=resume, fingerprint=made_of)
    click.echo(f"map: {output.resolve()}")
    if pictures or video:
        _illustrate(opened, open_map(output), output, pictures, video)


def _digest(model: Path) -> str:
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _illustrate(
    scene: Any, result: Any, output: Path, pictures: tuple[str, ...], video: str | None
) -> None:
    from undulatus.products.acquisitions import draw_acquisitions
    from undulatus.products.video import write_video

    if pictures:
        path = output.with_suffix(".png")
        draw_acquisitions(path, scene, result, pictures, title=output.stem)
        click.echo(f"picture: {path.resolve()}")
    if video:
        start, _, end = video.partition("/")
        path = output.with_suffix(".mp4")
        with progress("filming") as track:
            write_video(path, scene, result, start=start, end=end or None, progress=track)
        click.echo(f"video: {path.resolve()}")
