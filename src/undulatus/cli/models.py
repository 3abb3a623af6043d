"""``undulatus fit`` and ``score``: models from data, and what they are worth."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import ANY, FILE, NEW, print_table, say


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
    from undulatus.products.memory import parse_size, within
    from undulatus.products.sounder import fit_spectra
    from undulatus.scenes.spectra import is_spectra
    from undulatus.scenes.stores import open_data
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
    with within(ram, opened) as fitting:
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
    kept = model.provenance_["held_out_cells" if spectral else "held_out_days"]
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
    from undulatus.scenes.spectra import is_spectra
    from undulatus.scenes.stores import open_data
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
