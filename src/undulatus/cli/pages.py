"""``undulatus demo``.

``undulatus browse``: a map as pages to look through.

``undulatus reproduce``: the paper's experiments.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import ANY, NEW, progress, say, trial_progress


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
    from undulatus.products.demo import DAYS, run_demo, run_month, write_page

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


@click.command()
@click.argument("maps", type=ANY)
@click.option("--scene", type=ANY, help="What the map was made of, if the map does not tell.")
@click.option("-o", "--output", type=NEW, required=True, help="A new folder.")
@click.option("--span", metavar="START/END", help="Only this span (UTC).")
def browse(maps: Path, scene: Path | None, output: Path, span: str | None) -> None:
    """Make pages to look through a map, every acquisition of it; they open from disk."""
    from undulatus.products.browse import build_site
    from undulatus.scenes.files.opening import open_map

    opened = open_map(maps)
    start, _, end = (span or "").partition("/")
    with progress("building pages") as track:
        page = build_site(
            opened,
            _scene_of(opened, scene),
            output,
            title=maps.name,
            start=start or None,
            end=end or None,
            progress=track,
        )
    click.echo(f"open in a browser: {page.resolve()}")


def _scene_of(maps: Any, given: Path | None) -> Any:
    """Return the scene given, or else the one the map was made of, if it is there."""
    from undulatus.scenes.files.opening import open_scene

    path = given or (Path(maps.attrs["scene"]) if "scene" in maps.attrs else None)
    if path is not None and path.exists():
        return open_scene(path)
    told = "does not tell its scene" if path is None else f"was made of {path}, which is not there"
    say(f"The map {told}: RGB, infrared and L2 mask are left out. Give --scene to have them.")
    return None


WIDEST = 99
"""Characters in a line of the claims."""

INTERRUPTED = 130
"""Exit status of what Ctrl-C ended, by custom of shells."""


@click.group()
def reproduce() -> None:
    """Repeat the paper's experiments: trials, figures, and what became of each claim."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "-o",
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            required=True,
            help="Folder of the run; one that was interrupted goes on.",
        ),
        click.option(
            "--memory-budget", "memory", metavar="SIZE",
            help="Memory trials may hold, such as 8GB.  [default: 4/5 of what is free]",
        ),
        click.option(
            "--time-budget", "seconds", type=click.FloatRange(0.0, min_open=True),
            help="CPU seconds a trial may take.  [default: the scale's]",
        ),
        click.option(
            "--workers", type=click.IntRange(1),
            help="Processes, one thread each.  [default: one a core]",
        ),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
        click.option("--data", type=ANY, help="Real data.  [default: a synthetic twin]"),
        click.option(
            "--scale",
            type=click.Choice(["quick", "medium", "paper"]),
            default="quick",
            show_default=True,
            help="5 minutes on two cores, an hour, or the paper's whole grid.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@reproduce.command()
@_options
def landmarks(**options: Any) -> None:
    """Clouds over a landmark: RFF-GPC, VFF-GPC and GPC, regime by regime.

    DATA is a scene of many days with cloud_mask_l2.
    """
    _run("landmarks", **options)


@reproduce.command()
@_options
def iavisa(**options: Any) -> None:
    """Clouds in spectra of IASI: RFF-GPC, VFF-GPC and GPC, in five folds.

    DATA are spectra with labels.
    """
    _run("iavisa", **options)


def _run(experiment: str, output: Path, memory: str | None, **options: Any) -> None:
    from undulatus.paper.claims import claims_lines, judge_claims
    from undulatus.paper.experiments import TRIALS, reproduce
    from undulatus.paper.report import write_report
    from undulatus.paper.trials import read_run
    from undulatus.products.memory_budget import parse_size

    options["memory"] = None if memory is None else parse_size(memory)
    try:
        with trial_progress() as progress:
            counts = reproduce(experiment, output, say=say, progress=progress, **options)
    except KeyboardInterrupt:
        again = shlex.join(["undulatus", *sys.argv[1:]])
        say(f"\nInterrupted; what is done is kept in {output}. To go on:\n  {again}")
        raise SystemExit(INTERRUPTED) from None
    width = min(shutil.get_terminal_size((WIDEST, 0)).columns, WIDEST)
    for line in claims_lines(judge_claims(read_run(output)), width):
        click.echo(line)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    click.echo(f"trials: {(output / TRIALS).resolve()} ({told})")
    click.echo(f"report: {write_report(output).resolve()}")
    if counts.get("failed"):
        say(f"{counts['failed']} trials failed; the same command tries them again.")
        raise SystemExit(1)
