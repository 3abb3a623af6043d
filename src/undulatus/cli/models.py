"""Commands for data and models: ``simulate``, ``subset``, ``map`` and ``explain``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import (
    EXISTING_FILE,
    MODEL_PATH,
    NEW_PATH,
    device_option,
    memory_limit_option,
    progress_bar,
    recorded_command,
    require_model,
    require_new,
    rgb_option,
    say,
    seed_option,
    split_names,
    split_span,
    warn,
)
from undulatus.cli.data_options import data_options, open_inputs
from undulatus.cli.session import printable

_new_dataset_option = click.option(
    "-o", "--output", type=NEW_PATH, required=True, help="New .zarr folder or .nc file to write."
)


# simulate


@click.group()
def simulate() -> None:
    """Make synthetic data, whose truth is known."""


@simulate.command()
@click.option(
    "--days",
    type=click.IntRange(1, 365),
    default=365,
    show_default=True,
    help="Days from 1 January 2010 on, with 96 images each.",
)
@seed_option
@_new_dataset_option
def landmarks(days: int, seed: int, output: Path) -> None:
    """Make SEVIRI-like images of a coast, every 15 minutes of a year.

    The images have 20 x 26 pixels and seven channels (reflectances in %, temperatures in K), the
    mask cloud_mask_l2 with the faults of a real one, and the true mask cloud_truth.
    """
    from undulatus.scenes import synthetic_landmark
    from undulatus.scenes.files.writing import write_dataset

    scene = synthetic_landmark(days, seed=seed)
    with progress_bar("making images") as progress:
        write_dataset(_with_history(scene), output, progress=progress)
    click.echo(f"{scene.sizes['time']:,} acquisitions: {output.resolve()}")


@simulate.command()
@click.option(
    "--samples",
    type=click.IntRange(1),
    default=24_923,
    show_default=True,
    help="Number of spectra.",
)
@seed_option
@_new_dataset_option
def sounder(samples: int, seed: int, output: Path) -> None:
    """Make IASI-like spectra, clear and cloudy.

    They cover all surfaces, climates and seasons. Each spectrum has 8,461 channels, from 645 to
    2760 per cm.
    """
    from undulatus.scenes import synthetic_sounder
    from undulatus.scenes.files.writing import write_dataset

    with progress_bar("making spectra") as progress:
        spectra = _with_history(synthetic_sounder(samples, seed=seed))
        write_dataset(spectra, output, progress=progress)
    click.echo(f"{samples:,} spectra: {output.resolve()}")


def _with_history(made: Any) -> Any:
    """Return data with the command that made them in their history."""
    from undulatus.scenes.files.writing import add_history

    return made.assign_attrs(add_history(made.attrs, recorded_command()))


# subset


@click.command()
@data_options
@_new_dataset_option
@click.option("--resume", is_flag=True, help="Continue a .zarr that was interrupted.")
def subset(inputs: Any, output: Path, resume: bool) -> None:
    """Write part of DATA, scenes, to one file.

    The pixels of a box and the acquisitions of some times, with their masks. Months of full-disc
    files are read once, and every other command reads OUTPUT, which holds what they need of them:
    calibrated bands, the solar zenith angle, position and mask.
    """
    from undulatus.errors import SceneError
    from undulatus.scenes.files.writing import write_dataset
    from undulatus.scenes.scene import check_scene

    if not resume:
        require_new(output, overwrite=None)
    scene = open_inputs(inputs)
    if not {"y", "x"} <= set(scene.dims) or "image" in scene:
        raise SceneError(
            f"{inputs.name} is not a scene: undulatus subset writes parts of scenes alone. A part "
            f"of an image is what gdal_translate -projwin writes."
        )
    check_scene(scene)
    with progress_bar("writing") as progress:
        write_dataset(
            _with_history(scene), output, progress, resume=resume, fingerprint=inputs.digest()
        )
    times = scene.sizes.get("time", 1)
    shape = f"{times:,} acquisition{'s' * (times != 1)} of {scene.sizes['y']:,} x "
    click.echo(f"{shape}{scene.sizes['x']:,} pixels: {output.resolve()}")


# map

encoding_option = click.option(
    "--encoding",
    type=click.Choice(["cf", "eumetsat-clm", "pps"]),
    default="cf",
    show_default=True,
    help="Codes of cloud_mask: cf (0 clear, 1 cloud, 255 missing), or those of EUMETSAT's CLM or "
    "of NWC SAF's PPS.",
)

legend_option = click.option(
    "--legend",
    type=EXISTING_FILE,
    show_default="that of MODEL",
    help="JSON file with the classes of MODEL, and their names, codes and colours, and which is "
    "cloud.",
)

allow_outside_option = click.option(
    "--allow-outside",
    is_flag=True,
    help="Map pixels even if most are unlike those that MODEL learned from.",
)


@click.command(name="map")
@click.argument("model", type=MODEL_PATH)
@data_options
@click.option(
    "-o",
    "--output",
    type=NEW_PATH,
    required=True,
    help="New folder (.zarr) or file (.nc, .nc4, .tif, .tiff, .gtif, .img, .dat) to write.",
)
@encoding_option
@click.option(
    "--layers",
    callback=split_names,
    metavar="NAME,NAME,...",
    show_default="all",
    help="Layers to write, such as class,class_probability.",
)
@click.option(
    "--sieve",
    type=click.IntRange(2),
    metavar="PIXELS",
    help="Smallest patch of a class: smaller ones take the class of their largest neighbour, as "
    "by GDAL's sieve. Maps every pixel twice unless only classes are written.",
)
@click.option(
    "--connected",
    type=click.Choice(["4", "8"]),
    default="4",
    show_default=True,
    help="For --sieve: pixels of a patch touch along their sides (4), or also at corners (8).",
)
@click.option(
    "--picture",
    "pictures",
    multiple=True,
    metavar="TIME",
    help="Draw this time (UTC) in a .png beside OUTPUT; may be given several times.",
)
@click.option(
    "--video",
    metavar="START/END",
    help="Film this span (UTC) in an .mp4 beside OUTPUT.",
)
@click.option(
    "--pages",
    type=NEW_PATH,
    help="New folder of pages to look through the map of an image, as by undulatus browse.",
)
@rgb_option
@legend_option
@allow_outside_option
@memory_limit_option
@device_option
@click.option("--resume", is_flag=True, help="Continue a .zarr that was interrupted.")
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
def map_command(
    model: Path,
    inputs: Any,
    output: Path,
    encoding: str,
    layers: tuple[str, ...],
    sieve: int | None,
    connected: str,
    pictures: tuple[str, ...],
    video: str | None,
    pages: Path | None,
    rgb: tuple[str, ...] | None,
    legend: Path | None,
    allow_outside: bool,
    memory_limit: str | None,
    device: str | None,
    resume: bool,
    overwrite: bool,
) -> None:
    """Classify every pixel of DATA: a scene, an image or spectra.

    Scenes are files of SEVIRI (native, HRIT segments or folders of them, netCDF, satpy's CF), Zarr
    or netCDF; several of one place are one scene with all their times. Files of spectra may be
    several, too.

    Writes the mask or the class, the probability, the latent variance, the distance from the
    training data and a quality flag of each pixel. In GeoTIFF (.tif, .gtif), HFA (.img) and ENVI
    (.dat) OUTPUT has the classes, bytes with names and colours; floats are in OUTPUT_layers.tif,
    the quality in OUTPUT_quality_flag.tif, and OUTPUT.qml is a style for QGIS. Prints how many
    pixels are mapped, missing, of low confidence (other classes have more than 0.2 together), and
    outside what MODEL learned from, and the share of each class.
    """
    from undulatus.products.browse import browse_image
    from undulatus.products.map_files import ModelFile, map_of_file
    from undulatus.products.sieve import Sieve
    from undulatus.scenes.files import NETCDF
    from undulatus.scenes.files.geotiff import files_of_map
    from undulatus.scenes.files.opening import open_map
    from undulatus.scenes.files.writing import GEOTIFF
    from undulatus.scenes.spectra import is_spectra

    if (pictures or video) and output.suffix not in (".zarr", *NETCDF):
        raise click.UsageError(
            f"--picture and --video need a map in .zarr or .nc, but OUTPUT is {output.name}."
        )
    if rgb is not None and pages is None:
        raise click.UsageError("--rgb is for --pages.")
    if resume and overwrite:
        raise click.UsageError("--resume continues a map and --overwrite replaces it: give one.")
    raster = output.suffix in GEOTIFF
    for path in () if resume else files_of_map(output)[:-1] if raster else (output,):
        require_new(path, overwrite=overwrite)
    for beside in (suffix for suffix, asked in ((".png", pictures), (".mp4", video)) if asked):
        require_new(output.with_suffix(beside), overwrite=None)
    require_model(model, *inputs.paths)
    opened = open_inputs(inputs)
    if (pictures or video) and (is_spectra(opened) or "image" in opened):
        found = "spectra" if is_spectra(opened) else "an image, of which --pages shows the map"
        raise click.UsageError(f"--picture and --video are for scenes, but DATA are {found}.")
    if pages is not None:
        if is_spectra(opened) or opened.sizes.get("time", 1) > 1:
            raise click.UsageError(
                "--pages is for images: undulatus browse makes pages of scenes, of spectra there "
                "are none."
            )
        require_new(pages, overwrite=None)
    with map_of_file(
        ModelFile.load(model, device),
        inputs,
        scene=opened,
        encoding=encoding,
        legend=None if legend is None else read_legend(legend),
        allow_outside=allow_outside,
        layers=layers,
        sieve=None if sieve is None else Sieve(sieve, int(connected)),
        memory_limit=memory_limit,
        command=recorded_command(),
        folder=output.parent,
    ) as mapped:
        _require_times(opened, mapped.maps, pictures, video)
        with progress_bar("mapping") as progress:
            written = mapped.write(output, progress, resume=resume, overwrite=overwrite, say=say)
    _print(f"map: {', '.join(str(path.resolve()) for path in written.paths)}")
    _print(str(written.summary))
    if written.summary.warning:
        warn(written.summary.warning)
    if pictures or video:
        _illustrate(opened, open_map(output), output, pictures, video)
    if pages is not None:
        with progress_bar("building pages") as progress:
            page = browse_image(output, pages, rgb=rgb, say=say, progress=progress)
        click.echo(f"open in a browser: {page.resolve()}")


def _print(line: str) -> None:
    """Print a line of what a file says, which may hold anything."""
    click.echo(printable(line))


def read_legend(path: Path) -> Any:
    """Return the legend in a JSON file."""
    from undulatus.products.legend import Legend

    try:
        values = json.loads(path.read_text())
    except ValueError as error:
        raise click.UsageError(f"--legend {path} is not JSON: {error}.") from error
    if not isinstance(values, dict):
        raise click.UsageError(
            f'--legend {path} must hold an object, such as {{"classes": [0, 1], "names": '
            f'["land", "cloud"], "cloud": "cloud"}}.'
        )
    return Legend.from_dict(values)


def _require_times(scene: Any, maps: Any, pictures: tuple[str, ...], video: str | None) -> None:
    """Raise if a picture or the video has no acquisitions to show, before they are mapped."""
    from undulatus.products.pictures import choose_acquisitions
    from undulatus.products.views import acquisitions_between, view_scene

    if pictures:
        choose_acquisitions(view_scene(scene, maps), pictures)
    if video:
        acquisitions_between(view_scene(scene, maps), *split_span(video))


def _illustrate(
    scene: Any, maps: Any, output: Path, pictures: tuple[str, ...], video: str | None
) -> None:
    from undulatus.products.pictures import draw_acquisitions
    from undulatus.products.video import write_video

    if pictures:
        path = output.with_suffix(".png")
        draw_acquisitions(path, scene, maps, pictures, title=output.stem)
        click.echo(f"picture: {path.resolve()}")
    if video:
        start, end = split_span(video)
        path = output.with_suffix(".mp4")
        with progress_bar("filming") as progress:
            write_video(path, scene, maps, start=start, end=end, progress=progress)
        click.echo(f"video: {path.resolve()}")


# explain


@click.command()
@click.argument("model", type=MODEL_PATH)
@click.option(
    "-o",
    "--output",
    type=NEW_PATH,
    show_default="MODEL with the ending .png",
    help="New .png or .pdf file to draw; a .csv of the same name is written beside it.",
)
def explain(model: Path, output: Path | None) -> None:
    """Show which channels or features MODEL looks at.

    Prints the cosines with the largest weights, draws them, and writes all of them to a table.
    With more than two classes: for each class, and the importance of channels or features for all.
    """
    from undulatus.products.explain import draw_explanation, summary_lines, write_csv
    from undulatus.products.explain import explain as explain_model
    from undulatus.storage import load_model

    picture = output or model.with_suffix(".png")
    if picture.suffix not in (".png", ".pdf"):
        raise click.UsageError(f"-o must name a .png or .pdf file, not {picture}.")
    table = picture.with_suffix(".csv")
    require_model(model)
    explanations = explain_model(load_model(model))
    draw_explanation(explanations, picture, title=model.name)
    write_csv(explanations, table)
    _print("\n".join(summary_lines(explanations)))
    click.echo(f"\npicture: {picture.resolve()}\ntable: {table.resolve()}")
