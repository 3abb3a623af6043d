"""``undulatus reproduce``: the paper's experiments."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import ANY, say, trial_progress

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
    from undulatus.products.claims import claims_lines, judge_claims, read_run
    from undulatus.products.memory import parse_size
    from undulatus.products.report import write_report
    from undulatus.products.reproduction.runs import TRIALS, reproduce

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
