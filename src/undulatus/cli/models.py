"""``undulatus twin``: synthetic data.

``undulatus fit`` and ``score``: models from data, and what they are worth.

``undulatus map``: every pixel of a scene or an image, or every spectrum.

``undulatus info`` and ``explain``: what is in a model file, and what the model looks at.
"""

from __future__ import annotations

import glob
import hashlib
import json
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import ANY, FILE, NEW, print_table, progress, say


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
    from undulatus.scenes.files.writing import write_dataset

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
    from undulatus.scenes.files.writing import write_dataset

    with progress("making spectra") as track:
        write_dataset(synthetic_sounder(samples, seed=seed), output, progress=track)
    click.echo(f"{samples:,} spectra: {output.resolve()}")


@click.command()
@click.argument("data", type=ANY)
@click.option("-o", "--output", type=NEW, required=True, help="The model file to write.")
@click.option(
    "--method", type=click.Choice(["vff", "rff", "gpc"]), default="vff", show_default=True
)
@click.option(
    "-D",
    "frequencies",
    type=click.IntRange(1),
    help="Number of waves.  [default: 200 for scenes, 5 for spectra]",
)
@click.option(
    "--label",
    help="What to learn from.  [default: cloud_mask_l2 in scenes, cloudy in spectra]",
)
@click.option(
    "--components",
    type=click.IntRange(1),
    help="Principal components of spectra.  [default: 100]",
)
@click.option(
    "--holdout",
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    default=0.25,
    show_default=True,
    help="Share of days (scenes) or strata (spectra) kept for scoring.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--ram", metavar="SIZE", help="Memory to stay below, such as 2GB.")
@click.option("--resume", is_flag=True, help="Go on with a fit that was killed.")
def fit(
    data: Path,
    output: Path,
    method: str,
    frequencies: int | None,
    label: str | None,
    components: int | None,
    holdout: float,
    seed: int,
    ram: str | None,
    resume: bool,
) -> None:
    """Fit a model to DATA: a scene of many days, or spectra.

    Of a scene, one classifier for each illumination is fitted on the training days; of spectra,
    one on their principal components. A fit under way is kept beside OUTPUT until it is done.
    """
    from undulatus.products.landmarks import fit_scene
    from undulatus.products.memory_budget import parse_size, within_memory
    from undulatus.products.provenance import Provenance
    from undulatus.products.sounder import fit_spectra
    from undulatus.scenes.files.opening import open_data
    from undulatus.scenes.spectra import is_spectra
    from undulatus.storage import save_model

    opened = open_data(data)
    spectral = is_spectra(opened)
    if components is not None and not spectral:
        raise click.UsageError("--components is for spectra, but DATA holds a scene.")
    given: dict[str, Any] = {
        "n_frequencies": frequencies,
        "label": label,
        "components": components,
        "ram": None if ram is None else parse_size(ram),
    }
    checkpoint = output.with_name(f".{output.name}.checkpoint")
    if not resume:
        _forget(checkpoint)
    with within_memory(ram, opened) as fitting:
        model = (fit_spectra if spectral else fit_scene)(
            fitting,
            method=method,
            holdout=holdout,
            seed=seed,
            checkpoint=checkpoint,
            verbose=1,
            progress=say,
            **{name: value for name, value in given.items() if value is not None},
        )
    save_model(model, output)
    _forget(checkpoint)
    what = "cells of strata" if spectral else "days"
    provenance = Provenance.of(model)
    kept = (provenance.held_out_cells if spectral else provenance.held_out_days) or []
    click.echo(f"model: {output.resolve()} ({len(kept)} {what} held out for undulatus score)")


def _forget(checkpoint: Path) -> None:
    """Remove what a fit under way has left, of every regime."""
    for path in checkpoint.parent.glob(f"{glob.escape(checkpoint.name)}*"):
        path.unlink()


@click.command()
@click.argument("model", type=FILE)
@click.argument("data", type=ANY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score(model: Path, data: Path, as_json: bool) -> None:
    """Score MODEL on what of DATA was held out when it was fitted."""
    from undulatus.products.landmarks import score_scene
    from undulatus.products.sounder import score_spectra
    from undulatus.scenes.files.opening import open_data
    from undulatus.scenes.spectra import is_spectra
    from undulatus.storage import load_model

    opened = open_data(data)
    score_data = score_spectra if is_spectra(opened) else score_scene
    rows = [_as_row(part) for part in score_data(load_model(model), opened, progress=say)]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    else:
        print_table([{k: v for k, v in row.items() if k not in ("brier", "auc")} for row in rows])


def _as_row(part: Any) -> dict[str, Any]:
    """Return the scores of one part of the data with what the part is, one value a column."""
    return {k: v for k, v in vars(part).items() if k != "scores"} | part.scores.as_dict()


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
    from undulatus.products.memory_budget import within_memory
    from undulatus.scenes.files.opening import open_data, open_map
    from undulatus.scenes.files.writing import write_dataset
    from undulatus.scenes.spectra import is_spectra
    from undulatus.storage import load_model

    opened = open_data(data)
    if (pictures or video) and is_spectra(opened):
        raise click.UsageError("--picture and --video are for scenes, but DATA holds spectra.")
    with within_memory(ram, opened) as fitting:
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
    from undulatus.products.pictures import draw_acquisitions
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


@click.command()
@click.argument("model", type=FILE)
def info(model: Path) -> None:
    """Say what a model file holds."""
    from undulatus.storage import load_model

    fitted = load_model(model)
    click.echo(f"{model}: {type(fitted).__name__}")
    click.echo(f"classes: {', '.join(map(str, fitted.classes_))}")
    for name, value in getattr(fitted, "provenance_", {}).items():
        click.echo(f"{name.replace('_', ' ')}: {_brief(value)}")
    members = getattr(fitted, "estimators_", None)
    if members is None:
        _describe_steps(fitted)
        return
    for regime in fitted.regimes_:
        low, high = regime.edges
        member = members[regime.name]
        click.echo(f"\n{regime.name}: {fitted.by} from {low:g} to {high:g}")
        click.echo(f"classifier: {type(member).__name__}")
        _describe(member, regime.features)


def _describe_steps(model: Any) -> None:
    """Say what a model is made of: itself, or the steps of a Pipeline."""
    for name, step in getattr(model, "steps", []):
        click.echo(f"\n{name}: {type(step).__name__}")
        for attribute in ("n_features_in_", "n_components_", "n_samples_seen_"):
            if hasattr(step, attribute) and not hasattr(step, "signal_variance_"):
                click.echo(f"{attribute.strip('_').replace('_', ' ')}: {getattr(step, attribute)}")
        if hasattr(step, "explained_variance_ratio_"):
            click.echo(f"explained variance: {step.explained_variance_ratio_.sum():.6f}")
    member = model[-1] if hasattr(model, "steps") else model
    _describe(member, getattr(member, "feature_names_in_", None))


def _describe(member: Any, names: Any) -> None:
    click.echo(
        f"features: {member.n_features_in_}"
        + (f" ({', '.join(map(str, names))})" if names is not None else "")
    )
    click.echo(f"signal variance: {member.signal_variance_:.6g}")
    click.echo(f"lengthscale: {member.lengthscale_:.6g}")
    click.echo(f"bound: {member.bound_:.6g}")
    for name, value in member.fit_report_.items():
        click.echo(f"{name.replace('_', ' ')}: {_brief(value)}")


def _brief(value: Any) -> str:
    if isinstance(value, list) and len(value) > 6:
        return f"{len(value)}: {value[0]} to {value[-1]}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_brief(item)}" for key, item in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@click.command()
@click.argument("model", type=FILE)
@click.option(
    "-o",
    "--output",
    type=NEW,
    help="The picture to write, .png or .pdf, with a .csv beside it.  [default: MODEL's name]",
)
def explain(model: Path, output: Path | None) -> None:
    """Say, draw and tabulate what MODEL looks at: its learned waves, by channel or feature."""
    from undulatus.products.explain import draw_explanation, summary_lines, write_csv
    from undulatus.products.explain import explain as explain_model
    from undulatus.storage import load_model

    picture = output or model.with_suffix(".png")
    if picture.suffix not in (".png", ".pdf"):
        raise click.UsageError(f"-o {picture} is to be a .png or a .pdf: name it so.")
    table = picture.with_suffix(".csv")
    found = explain_model(load_model(model))
    draw_explanation(found, picture, title=model.name)
    write_csv(found, table)
    click.echo("\n".join(summary_lines(found)))
    click.echo(f"\npicture: {picture.resolve()}\ntable: {table.resolve()}")
