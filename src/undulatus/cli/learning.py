"""Commands about labels: ``fit``, ``suggest``, ``adapt`` and ``update``."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import (
    EXISTING_FILE,
    EXISTING_PATH,
    MODEL_PATH,
    NEW_PATH,
    device_option,
    memory_limit_option,
    recipe,
    require_model,
    require_new,
    say,
    seed_option,
    split_names,
)
from undulatus.cli.data_options import data_options, flags_text, open_inputs, sound_images
from undulatus.cli.unfinished import fitting


def _split_numbers(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in split_names(context, option, value))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 3,5") from None


def _split_nodata(
    context: click.Context, option: click.Parameter, value: str | None
) -> tuple[float, ...] | None:
    """Return values, none of them, or None if the option was not given."""
    parts = None if value is None else split_names(context, option, value)
    if parts is None or parts == ("none",):
        return None if parts is None else ()
    try:
        return tuple(float(part) for part in parts)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers, nor none") from None


def _split_roles(
    context: click.Context, option: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if any(not (letter and equals and band) for letter, equals, band in pairs):
        raise click.BadParameter("give a letter and a band, such as N=B08")
    return {letter: band for letter, _, band in pairs}


field_option = click.option(
    "--field",
    show_default="the only one, class or label",
    help="Field or column of LABELS with the class, for images.",
)

all_touched_option = click.option(
    "--all-touched",
    is_flag=True,
    help="Take every pixel that a polygon touches, not only those whose centre it holds, for "
    "images.",
)


# fit


@click.command()
@data_options
@click.option("-o", "--output", type=NEW_PATH, required=True, help="Model file to write.")
@click.option(
    "--label",
    "--labels",
    "label",
    metavar="LABELS",
    show_default="cloud_mask_l2 in scenes, cloudy in spectra",
    help="What to learn from: polygons or points (.gpkg, .geojson, .shp, .parquet), a raster "
    "(.tif) or a table (.csv, .parquet) of labels of an image; or a variable of DATA, a whole "
    "number for each class, whose flag_values and flag_meanings name them.",
)
@field_option
@click.option(
    "--group",
    show_default="each polygon",
    help="Field of LABELS that says which places belong together and are held out together, "
    "for images.",
)
@click.option(
    "--bands",
    callback=split_names,
    metavar="BAND,BAND,...",
    show_default="all",
    help="Bands to learn from, for images: names, numbers from 1 in the order of the file, or "
    "ranges of either, such as B02,5-7,B11..B12; -B10,-B01 leaves these out.",
)
@click.option(
    "--indices",
    callback=split_names,
    metavar="NAME,NAME,...",
    help="Spectral indices as further features, such as ndvi,ndwi, for images.",
)
@click.option(
    "--windows",
    callback=_split_numbers,
    metavar="WIDTH,WIDTH,...",
    help="Mean and deviation of each band in windows of so many pixels as further features, such "
    "as 3,5, for images.",
)
@click.option(
    "--role",
    "roles",
    callback=_split_roles,
    metavar="LETTER=BAND",
    multiple=True,
    help="The band that an index needs, such as N=band_4, where names do not tell; may be given "
    "several times.",
)
@click.option(
    "--method",
    type=click.Choice(["vff", "rff", "gpc"]),
    default="vff",
    show_default=True,
    help="Classifier: vff learns its frequencies, rff keeps them as drawn, gpc is exact, and "
    "learns from at most 5,000 pixels (in each regime) or spectra.",
)
@click.option(
    "-D",
    "frequencies",
    type=click.IntRange(1),
    show_default="100 for images, 200 for scenes, 5 for spectra",
    help="Number of Fourier frequencies, for vff and rff.",
)
@click.option(
    "--n-estimators",
    type=click.IntRange(1),
    show_default="8 for images and spectra, 2 for scenes",
    help="Estimators of the ensemble, each with its own frequencies and with other polygons, days "
    "or strata left out for validation, for vff and rff.",
)
@click.option(
    "--components",
    type=click.IntRange(1),
    show_default="100",
    help="Number of principal components, for spectra.",
)
@click.option(
    "--holdout",
    type=click.FloatRange(0.0, 1.0, max_open=True),
    default=0.25,
    show_default=True,
    help="Share of the pixels of each class in whole polygons (images), of days (scenes) or of "
    "strata (spectra) kept for undulatus score; 0 for none.",
)
@click.option(
    "--split",
    metavar="FIELD",
    show_default="a share is drawn (--holdout)",
    help="Field of LABELS that says what is learned from and what is held out (train or test), "
    "for images.",
)
@click.option(
    "--write-held-out",
    type=NEW_PATH,
    metavar="FILE",
    help="File to write the polygons, points or rows of LABELS to that are held out, for images: "
    ".gpkg, .geojson, .fgb or .parquet; .csv or .parquet of a table.",
)
@click.option(
    "--balance",
    is_flag=True,
    help="Learn from as many pixels of each class, and correct the probabilities for the shares "
    "of the classes in LABELS, for images.",
)
@click.option(
    "--max-pixels",
    type=click.IntRange(10),
    show_default="50,000; 5,000 for gpc",
    help="Pixels to learn from, at most, for images.",
)
@click.option(
    "--nodata",
    callback=_split_nodata,
    metavar="VALUE,VALUE,...|none",
    show_default="what looks like it, which is said",
    help="Values that mark missing pixels in all bands though the files do not say so, for "
    "images; none if there are no such values.",
)
@all_touched_option
@seed_option
@memory_limit_option
@device_option
@click.option("--resume", is_flag=True, help="Continue a fit that was interrupted.")
@click.option("--restart", is_flag=True, help="Discard a fit that was interrupted.")
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
def fit(
    inputs: Any,
    output: Path,
    label: str | None,
    memory_limit: str | None,
    resume: bool,
    restart: bool,
    overwrite: bool,
    **options: Any,
) -> None:
    """Fit a model to DATA: labelled images, a scene, or spectra.

    Images are GeoTIFF, VRT, netCDF, Zarr, Sentinel-2 SAFE or Landsat folders; several may be
    given. Only their labelled pixels are read, and whole polygons are held out. Scenes are files
    of SEVIRI (native, HRIT segments or folders of them, netCDF, satpy's CF) with their --mask,
    Zarr or netCDF; several of one place are one scene with all their times. One classifier is
    fitted for each range of the solar zenith angle; for spectra, one on their principal
    components.

    The state of a fit by vff or rff is kept beside OUTPUT until it is finished: after Ctrl-C or a
    crash, --resume continues to the same model.
    """
    from undulatus.storage import save_model

    if resume and restart:
        raise click.UsageError("--resume continues a fit and --restart discards it: give one.")
    source = click.get_current_context().get_parameter_source("holdout")
    if options["split"] is not None and source is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--split says what is held out, and so does --holdout: give one.")
    if options["write_held_out"] is not None:
        require_new(options["write_held_out"], overwrite=overwrite)
    with fitting(output, overwrite=overwrite, resume=resume, restart=restart) as checkpoint:
        if are_images(inputs, label):
            images = sound_images(inputs)
            model, held_out, unit = _fit_images(images, label, checkpoint, memory_limit, options)
        elif (labelled := split_label(inputs, label)) is not None:
            model, held_out, unit = _fit_images(*labelled, checkpoint, memory_limit, options)
        else:
            model, held_out, unit = _fit_chain(inputs, label, checkpoint, memory_limit, options)
        model.provenance_ |= {"version": version("undulatus"), "command": recipe()}
        save_model(model, output)
    click.echo(f"model: {output.resolve()} ({held_out} {unit} held out for undulatus score)")
    if options.get("write_held_out") is not None:
        click.echo(f"held out: {options['write_held_out'].resolve()}")


FOR_IMAGES = (
    "field", "group", "bands", "indices", "windows", "roles", "balance", "max_pixels",
    "all_touched", "nodata", "split", "write_held_out",
)  # fmt: skip
"""Options of ``fit`` that are for images alone."""


def are_images(inputs: Any, label: str | None) -> bool:
    """Return whether DATA are images: by their format, or because LABELS are a file."""
    from undulatus.scenes.files.labels import is_label_file
    from undulatus.scenes.files.opening import SENSORS, is_image

    rasters = [path for path in inputs.paths if not inputs.reader and is_image(path)]
    labelled = label is not None and is_label_file(Path(label))
    if not rasters and not labelled:
        return False
    if given := inputs.for_scenes:
        raise click.UsageError(f"{flags_text(given)}: for scenes, but DATA are images.")
    for path in inputs.paths:
        sensor = next((each for each in SENSORS if each.recognises(path)), None)
        if rasters and sensor is not None and path not in rasters:
            raise click.UsageError(
                f"DATA are of several kinds: {rasters[0]} is an image, {path} of {sensor.name}. "
                f"Give those of one kind."
            )
    return True


def split_label(inputs: Any, label: str | None) -> tuple[Any, Any] | None:
    """Return the bands of an image in netCDF or Zarr, and the variable that labels them.

    None if it is another file, or has no such variable: scenes have times, spectra no rows.
    """
    from undulatus.scenes.files import NETCDF
    from undulatus.scenes.files.opening import open_map
    from undulatus.scenes.spectra import is_spectra

    path, *others = inputs.paths
    if label is None or path.suffix not in (".zarr", *NETCDF) or others or inputs.for_scenes:
        return None
    opened = open_map(path)
    if label not in opened or is_spectra(opened) or opened.sizes.get("time", 1) > 1:
        return None
    return opened.drop_vars(label), opened[label]


def _fit_images(
    images: Any,
    label: Any,
    checkpoint: Path,
    memory_limit: str | None,
    options: dict[str, Any],
) -> tuple[Any, int, str]:
    from undulatus.products.images import fit_image
    from undulatus.products.provenance import Provenance

    if label is None:
        raise click.UsageError(
            "an image needs labels: --label FILE, polygons or points (.gpkg, .geojson, .shp, "
            ".parquet), a raster (.tif) or a table (.csv, .parquet)."
        )
    if options.pop("components") is not None:
        raise click.UsageError("--components is for spectra, but DATA are images.")
    if memory_limit is not None:
        raise click.UsageError(
            "--memory-limit is for scenes and spectra: of images only labelled pixels are read. "
            "Use --max-pixels for fewer."
        )
    renamed = {
        "n_frequencies": options["frequencies"],
        "frequencies": None,
        "bands": options["bands"] or None,
        "held_out_file": options["write_held_out"],
        "write_held_out": None,
    }
    model = fit_image(
        images,
        label,
        checkpoint=checkpoint,
        progress=say,
        **{name: value for name, value in (options | renamed).items() if value is not None},
    )
    provenance = Provenance.of(model)
    unit = str(provenance.group_unit)
    return model, len(provenance.held_out_groups or ()), unit if "=" in unit else f"{unit}s"


def _fit_chain(
    inputs: Any,
    label: str | None,
    checkpoint: Path,
    memory_limit: str | None,
    options: dict[str, Any],
) -> tuple[Any, int, str]:
    """Fit a model to a scene or spectra."""
    from undulatus.products.landmarks import fit_scene
    from undulatus.products.memory_budget import parse_size, within_memory
    from undulatus.products.provenance import Provenance
    from undulatus.products.sounder import fit_spectra
    from undulatus.scenes.spectra import is_spectra

    given = [name for name in FOR_IMAGES if options.pop(name) not in (None, (), {}, False)]
    if given:
        raise click.UsageError(
            f"{flags_text(given)}: for images with labels, but DATA is {inputs.name}."
        )
    opened = open_inputs(inputs)
    spectral = is_spectra(opened)
    if options["components"] is not None and not spectral:
        raise click.UsageError("--components is for spectra, but DATA is a scene.")
    chosen = options | {
        "n_frequencies": options["frequencies"],
        "frequencies": None,
        "label": label,
        "memory_limit": None if memory_limit is None else parse_size(memory_limit),
    }
    with within_memory(memory_limit, opened) as chunked:
        model = (fit_spectra if spectral else fit_scene)(
            chunked,
            checkpoint=checkpoint,
            progress=say,
            **{name: value for name, value in chosen.items() if value is not None},
        )
    provenance = Provenance.of(model)
    held_out = provenance.held_out_cells if spectral else provenance.held_out_days
    return model, len(held_out or ()), "cells of strata" if spectral else "days"


# suggest, adapt and update


@click.command()
@click.argument("model", type=MODEL_PATH)
@click.argument("image", type=EXISTING_PATH)
@click.option(
    "-n", "count", type=click.IntRange(1), default=50, show_default=True, help="Points, at most."
)
@click.option(
    "-o",
    "--output",
    type=NEW_PATH,
    required=True,
    help="File of points to write: .gpkg, .geojson, or .csv with rows and columns.",
)
@click.option(
    "--label",
    "--labels",
    "label",
    type=EXISTING_FILE,
    metavar="LABELS",
    help="Labels that there are already: no points are near them.",
)
@field_option
@seed_option
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists.")
def suggest(
    model: Path,
    image: Path,
    count: int,
    output: Path,
    label: Path | None,
    field: str | None,
    seed: int,
    overwrite: bool,
) -> None:
    """Suggest where labels of IMAGE would help MODEL most.

    Writes points at pixels that stand for what MODEL is not sure of, with an empty field for the
    class: fill it in (in QGIS, for example), and give the file to undulatus update or fit. Beside
    it are the class that MODEL suggests and its probability, how far the estimators of an ensemble
    disagree, the entropy of the probabilities and the information that a label holds (nats), the
    distance from the training data, and a rank. None are where pixels were held out for scores.
    """
    from undulatus.products.suggest import SUFFIXES, suggest_labels, write_points
    from undulatus.storage import load_model

    if output.suffix.lower() not in SUFFIXES:
        raise click.UsageError(f"-o must name a {', '.join(SUFFIXES)} file, not {output}.")
    require_new(output, overwrite=overwrite)
    require_model(model, image)
    points = suggest_labels(
        load_model(model), image, count, labels=label, field=field, seed=seed, progress=say
    )
    write_points(points, output)
    click.echo(f"{len(points)} points: {output.resolve()} (field {points.columns[0]} to fill in)")


LABEL_OPTIONS: list[Callable[[Any], Any]] = [
    click.argument("model", type=MODEL_PATH),
    click.argument("image", type=EXISTING_PATH),
    click.option(
        "--label",
        "--labels",
        "label",
        type=EXISTING_FILE,
        required=True,
        metavar="LABELS",
        help="Polygons or points (.gpkg, .geojson, .shp, .parquet), a raster (.tif) or a table "
        "(.csv, .parquet) of classes that MODEL knows.",
    ),
    field_option,
    click.option(
        "--group",
        show_default="each polygon",
        help="Field of LABELS that says which places belong together.",
    ),
    all_touched_option,
    seed_option,
    click.option("-o", "--output", type=NEW_PATH, required=True, help="Model file to write."),
    click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it exists."),
]


def with_labels(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of labels that are added to a model."""
    return reduce(lambda made, option: option(made), reversed(LABEL_OPTIONS), command)


@click.command()
@with_labels
def adapt(
    model: Path, image: Path, label: Path, output: Path, overwrite: bool, **options: Any
) -> None:
    """Make MODEL right in a new scene, IMAGE, by a few LABELS of it.

    For a new place, day or sensor that MODEL has not seen: some ten labels make it right there.
    MODEL stays as it is, for other scenes. Labels of further calls add up. Of each polygon ten
    pixels at most are drawn; points and polygons without a class are left out.
    """
    from undulatus.products.new_labels import adapt_image
    from undulatus.storage import load_model, save_model

    require_new(output, overwrite=overwrite)
    require_model(model, image)
    adapted = adapt_image(load_model(model), image, label, progress=say, **options)
    adapted.provenance_["adaptations"][-1]["command"] = recipe()
    save_model(adapted, output)
    click.echo(f"model of this scene: {output.resolve()}")


@click.command()
@with_labels
def update(
    model: Path, image: Path, label: Path, output: Path, overwrite: bool, **options: Any
) -> None:
    """Add LABELS of IMAGE to MODEL without a new fit, in seconds.

    What MODEL learned before stays, and so do the bands and features it looks at. Points
    and polygons without a class are left out, as are pixels in polygons held out for scores.
    A new class, or a great many labels, need a new fit.
    """
    from undulatus.products.new_labels import update_image
    from undulatus.storage import load_model, save_model

    require_new(output, overwrite=overwrite)
    require_model(model, image)
    updated = update_image(load_model(model), image, label, progress=say, **options)
    updated.provenance_["updates"][-1]["command"] = recipe()
    save_model(updated, output)
    click.echo(f"model: {output.resolve()} (update {len(updated.provenance_['updates'])})")
