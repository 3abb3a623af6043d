"""The command ``score``: of a model, and of two models or maps that are compared."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import (
    EXISTING_PATH,
    MODEL_PATH,
    NEW_PATH,
    print_table,
    progress_bar,
    recorded_command,
    require_model,
    require_new,
    say,
    split_names,
)
from undulatus.cli.data_options import data_options, flags_text, open_inputs, sound_images
from undulatus.cli.learning import all_touched_option, are_images, field_option, split_label
from undulatus.cli.session import printable


@click.command()
@click.argument("model", type=MODEL_PATH)
@data_options
@click.option(
    "--label",
    "--labels",
    "label",
    metavar="LABELS",
    show_default="what MODEL learned from",
    help="What to score against: a file of labels of images, as for undulatus fit, or a variable "
    "of DATA.",
)
@field_option
@click.option(
    "--group",
    show_default="as in the fit",
    help="Field of LABELS that says which places belong together, for images.",
)
@all_touched_option
@click.option(
    "--leave-out",
    callback=split_names,
    metavar="CLASS,CLASS,...",
    help="Classes of LABELS that MODEL does not have and that are not scored, for images.",
)
@click.option(
    "--design",
    type=click.Choice(["simple", "stratified", "clusters"]),
    show_default="not known",
    help="How the labelled places of images were drawn, for areas of classes: pixels at random "
    "from everywhere, pixels at random within each mapped class, or whole polygons at random. "
    "Leave it out if somebody chose the places.",
)
@click.option(
    "--map",
    "maps",
    type=EXISTING_PATH,
    multiple=True,
    help="Map of the image by MODEL, for areas; without it, the image is classified. Of several "
    "images, one for each.",
)
@click.option(
    "--against",
    type=MODEL_PATH,
    metavar="OTHER",
    help="Another model of the same classes, to compare MODEL with on the same pixels of images, "
    "which neither has learned from: differences of scores with their intervals. Where MODEL is "
    "a map, another map.",
)
@click.option("--no-areas", is_flag=True, help="Do not map images to estimate areas of classes.")
@click.option(
    "-o",
    "--output",
    "outputs",
    type=NEW_PATH,
    multiple=True,
    metavar="REPORT",
    help="Report to write, for images: .json, .csv or .html; may be given several times.",
)
@click.option("--overwrite", is_flag=True, help="Replace REPORT if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all scores.")
def score(
    model: Path,
    inputs: Any,
    label: str | None,
    against: Path | None,
    as_json: bool,
    outputs: tuple[Path, ...],
    overwrite: bool,
    **options: Any,
) -> None:
    """Score MODEL on the part of DATA that its fit held out.

    The first line says what is scored: data held out of the fit, data that MODEL has not seen, or,
    if there are no others, data that it was trained on.

    Of images, it prints accuracy, kappa, negative log likelihood (NLL, nats) and calibration error
    (ECE), the producer's and user's accuracy of each class with 95 % confidence intervals, the
    confusion matrix, and accuracies and areas of the whole map. Scenes and spectra of other
    classes than clear and cloud have the same but for the areas; those of clear and cloud have
    accuracy, NLL and ECE, against the label and, for synthetic data, against the truth.

    With --against, the last lines say which of two models is better in accuracy and NLL, and by
    how much, or that the difference is within what chance does.
    """
    from undulatus.products.map_files import ModelFile
    from undulatus.products.provenance import Provenance

    if against is not None and _is_map(model):
        given = {"outputs": outputs, **{name: options.pop(name) for name in ("maps", "no_areas")}}
        _refuse(given, "for scores of models, but MODEL is a map")
        _compare_maps((model, against), inputs, label, as_json, options)
        return
    require_model(model, *inputs.paths)
    if against is not None:
        _require_other(model, against)
    loaded = ModelFile.load(model)
    fitted = loaded.fitted
    known = Provenance.of(fitted)
    if known.chain == "image" or (known.chain is None and are_images(inputs, label)):
        if inputs.for_scenes:
            raise click.UsageError(f"{flags_text(inputs.for_scenes)}: for scenes, not for images.")
        for output in outputs:
            require_new(output, overwrite=overwrite)
        labelled = split_label(inputs, label or known.label)
        images, labels = (sound_images(inputs), label) if labelled is None else labelled
        other = None if against is None else ModelFile.load(against)
        _score_images(loaded, images, labels, other, as_json, outputs, options)
        return
    given = options | {"outputs": outputs, "against": against}
    _refuse(given, f"for images with labels, but DATA is {inputs.name}")
    _score_chain(fitted, inputs, label, as_json)


def _refuse(options: dict[str, Any], why: str) -> None:
    """Raise if one of some options was given, by their names in Python."""
    flags = {"maps": "--map", "outputs": "-o"}
    given = [flags.get(name, flags_text([name])) for name, value in options.items() if value]
    if given:
        raise click.UsageError(f"{', '.join(given)}: {why}.")


def _is_map(path: Path) -> bool:
    """Return whether a path may be a map, by its name and content."""
    from undulatus._files import is_tensor_file
    from undulatus.scenes.files import NETCDF
    from undulatus.scenes.files.writing import GEOTIFF

    return path.suffix.lower() in (*GEOTIFF, *NETCDF, ".zarr") and not is_tensor_file(path)


def _require_other(model: Path, against: Path) -> None:
    from undulatus._files import is_tensor_file

    if not is_tensor_file(against):
        raise click.UsageError(
            f"--against must be a model as MODEL is, but {against} is not a file that undulatus "
            f"fit wrote. Two maps are compared by: undulatus score MAP IMAGE --against OTHER_MAP."
        )
    if model.resolve() == against.resolve():
        raise click.UsageError(f"--against is MODEL itself, {model}. Give another model.")


def _names_of(first: Path, second: Path) -> tuple[str, str]:
    """Return what to call two files: by their names, unless these are the same."""
    if first.name == second.name:
        return str(first), str(second)
    return first.name, second.name


def _compare_maps(
    maps: tuple[Path, Path], inputs: Any, label: str | None, as_json: bool, options: dict[str, Any]
) -> None:
    from undulatus.products.map_comparison import compare_maps

    first, other = maps
    if label is None:
        raise click.UsageError(
            "two maps are compared on labels that are new to both: --label FILE."
        )
    if not _is_map(other):
        raise click.UsageError(
            f"MODEL is a map, {first}, so that --against must be one too (.tif, .nc or .zarr), "
            f"not {other}."
        )
    found = compare_maps(first, other, sound_images(inputs), label, progress=say, **options)
    found = replace(found, comparison=replace(found.comparison, names=_names_of(first, other)))
    if as_json:
        say(found.basis.statement)
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        click.echo(printable(found.table()))


def _score_images(
    model: Any,
    images: Any,
    label: Any,
    other: Any,
    as_json: bool,
    outputs: tuple[Path, ...],
    options: dict[str, Any],
) -> None:
    from undulatus.products.image_scores import score_image
    from undulatus.products.score_report import find_writer, write_report

    for output in outputs:
        find_writer(output)
    maps, areas = options.pop("maps"), not options.pop("no_areas")
    if maps and not areas:
        raise click.UsageError("--map is for areas, but --no-areas leaves them out.")
    with progress_bar("mapping") if areas else nullcontext() as mapping:
        found = score_image(
            model.fitted,
            images,
            label,
            areas=areas,
            maps=list(maps) or None,
            against=None if other is None else other.fitted,
            progress=say,
            mapping=mapping,
            **options,
        )
    origin = {"model": model.path.name, "model_sha256": model.sha256}
    if found.comparison is not None:
        names = _names_of(model.path, other.path)
        found = replace(found, comparison=replace(found.comparison, names=names))
        origin |= {"against": other.path.name, "against_sha256": other.sha256}
    origin["command"] = recorded_command()
    if as_json:
        say(found.basis.statement)
        click.echo(json.dumps(found.as_dict(), indent=2))
    else:
        click.echo(printable(found.table()))
    for output in outputs:
        write_report(found, output, f"Scores of {model.path.name}", origin)
        (say if as_json else click.echo)(f"report: {output.resolve()}")


def _score_chain(fitted: Any, inputs: Any, label: str | None, as_json: bool) -> None:
    """Score a model on a scene or spectra."""
    from undulatus.products.basis import scoring_basis
    from undulatus.products.classes import is_scored_as_mask
    from undulatus.products.landmarks import score_scene
    from undulatus.products.sounder import score_spectra
    from undulatus.scenes.spectra import is_spectra

    opened = open_inputs(inputs)
    score_data = score_spectra if is_spectra(opened) else score_scene
    parts = score_data(fitted, opened, label=label, progress=say)
    basis = scoring_basis(fitted, opened)
    if as_json:
        say(basis.statement)
        rows = [_part_columns(part) | basis.as_dict() | part.scores.as_dict() for part in parts]
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(basis.statement)
    if not is_scored_as_mask(fitted):
        _print_by_class(parts)
    else:
        shown = ("accuracy", "nll", "ece")
        print_table([_part_columns(p) | {k: getattr(p.scores, k) for k in shown} for p in parts])


def _part_columns(part: Any) -> dict[str, Any]:
    """Return what names a part of the data, and how large it is, a value for each column."""
    return {name: value for name, value in vars(part).items() if name != "scores"}


def _print_by_class(parts: list[Any]) -> None:
    """Print a line for each part of the data, then all scores of each regime or of all spectra."""
    shown = ("accuracy", "kappa", "nll", "ece")
    rows = [_part_columns(p) | {k: getattr(p.scores, k).value for k in shown} for p in parts]
    # There is no truth beside the label.
    print_table([{k: v for k, v in row.items() if k != "label_accuracy"} for row in rows])
    for part in parts:
        columns = _part_columns(part)
        if "all" in (columns.get("part"), columns.get("stratum")):
            regime = f", regime {part.regime}" if columns.get("regime", "all") != "all" else ""
            click.echo(printable(f"\n{part.reference}{regime}\n{part.scores.table()}"))
