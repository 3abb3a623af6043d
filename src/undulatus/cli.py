"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from undulatus.errors import UndulatusError

try:
    import click
except ModuleNotFoundError as error:
    raise SystemExit(
        'undulatus: the command line needs more packages. Install "undulatus[eo]".'
    ) from error

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
ANY = click.Path(exists=True, path_type=Path)
NEW = click.Path(path_type=Path)


class _Commands(click.Group):
    """Commands whose user errors are told without a traceback, with exit status 1."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except UndulatusError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"undulatus {ctx.invoked_subcommand}: {error}", err=True)
            ctx.exit(1)
        except ModuleNotFoundError as error:
            if ctx.params.get("debug") or str(error.name).startswith("undulatus"):
                raise
            click.echo(
                f"undulatus {ctx.invoked_subcommand}: needs the package {error.name!r}. "
                f'Install "undulatus[eo]", and "undulatus[seviri]" for SEVIRI files.',
                err=True,
            )
            ctx.exit(1)


@click.group(cls=_Commands)
@click.version_option(package_name="undulatus")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Gaussian-process classification of satellite imagery."""


@main.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder to write to.",
)
def demo(output: Path) -> None:
    """Classify the clouds of a real Sentinel-2 image, and draw what came out."""
    from undulatus.products.demo import run_demo

    result = run_demo(output, _say, verbose=1)
    click.echo(f"\nTest half of {result.source}:")
    click.echo(f"{'':22}{'accuracy':>10}{'NLL':>10}{'ECE':>10}{'Brier':>10}")
    for name, scores in result.scores.items():
        click.echo(
            f"{name:22}{scores.accuracy:10.4f}{scores.nll:10.4f}{scores.ece:10.4f}"
            f"{scores.brier:10.4f}"
        )
    click.echo()
    for name, path in result.written.items():
        click.echo(f"{name}: {path.resolve()}")


@main.group()
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
    with _progress("making images") as track:
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

    with _progress("making spectra") as track:
        write_dataset(synthetic_sounder(samples, seed=seed), output, progress=track)
    click.echo(f"{samples:,} spectra: {output.resolve()}")


@main.command()
@click.argument("scene", type=ANY)
@click.option("-o", "--output", type=NEW, required=True, help="The model file to write.")
@click.option(
    "--method", type=click.Choice(["vff", "rff", "gpc"]), default="vff", show_default=True
)
@click.option("-D", "frequencies", type=click.IntRange(1), default=200, show_default=True)
@click.option("--label", default="cloud_mask_l2", show_default=True, help="What to learn from.")
@click.option(
    "--holdout",
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    default=0.25,
    show_default=True,
    help="Share of days kept for scoring.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def fit(
    scene: Path,
    output: Path,
    method: str,
    frequencies: int,
    label: str,
    holdout: float,
    seed: int,
) -> None:
    """Fit one classifier for each illumination on the training days of SCENE."""
    from undulatus.products.landmarks import fit_scene
    from undulatus.scenes.stores import open_scene
    from undulatus.storage import save_model

    model = fit_scene(
        open_scene(scene),
        method=method,
        n_frequencies=frequencies,
        label=label,
        holdout=holdout,
        seed=seed,
        verbose=1,
        progress=_say,
    )
    save_model(model, output)
    days = len(model.provenance_["held_out_days"])
    click.echo(f"model: {output.resolve()} ({days} days held out for undulatus score)")


@main.command(name="map")
@click.argument("model", type=FILE)
@click.argument("scene", type=ANY)
@click.option("-o", "--output", type=NEW, required=True, help="A new .zarr folder or .nc file.")
@click.option(
    "--encoding",
    type=click.Choice(["cf", "eumetsat-clm", "pps"]),
    default="cf",
    show_default=True,
    help="Codes of cloud_mask.",
)
@click.option("--picture", "pictures", multiple=True, metavar="TIME", help="Draw this time too.")
@click.option("--video", metavar="START/END", help="Film this span too (MP4).")
def map_command(
    model: Path,
    scene: Path,
    output: Path,
    encoding: str,
    pictures: tuple[str, ...],
    video: str | None,
) -> None:
    """Classify every pixel of SCENE: mask, probability, variance and quality."""
    from undulatus.products.maps import map_scene
    from undulatus.scenes.stores import open_scene, write_dataset
    from undulatus.storage import load_model

    opened = open_scene(scene)
    result = map_scene(load_model(model), opened, encoding=encoding)
    with _progress("mapping") as track:
        write_dataset(result, output, progress=track)
    click.echo(f"map: {output.resolve()}")
    if pictures or video:
        _illustrate(opened, open_scene(output), output, pictures, video)


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
        with _progress("filming") as track:
            write_video(path, scene, result, start=start, end=end or None, progress=track)
        click.echo(f"video: {path.resolve()}")


@main.command()
@click.argument("model", type=FILE)
@click.argument("scene", type=ANY)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def score(model: Path, scene: Path, as_json: bool) -> None:
    """Score MODEL on the days of SCENE that were held out when it was fitted."""
    from undulatus.products.landmarks import score_scene
    from undulatus.scenes.stores import open_scene
    from undulatus.storage import load_model

    found = score_scene(load_model(model), open_scene(scene), progress=_say)
    if as_json:
        rows = [
            {
                "regime": row.regime,
                "part": row.part,
                "reference": row.reference,
                "pixels": row.pixels,
                "label_accuracy": row.label_accuracy,
                **row.scores.as_dict(),
            }
            for row in found
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    click.echo(
        f"{'against':15}{'regime':8}{'part':17}{'pixels':>10}{'accuracy':>10}{'label':>8}"
        f"{'NLL':>8}{'ECE':>8}"
    )
    for row in found:
        label = "" if row.label_accuracy is None else f"{row.label_accuracy:.4f}"
        click.echo(
            f"{row.reference:15}{row.regime:8}{row.part:17}{row.pixels:10,}"
            f"{row.scores.accuracy:10.4f}{label:>8}{row.scores.nll:8.4f}{row.scores.ece:8.4f}"
        )


@main.command()
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
        _describe(fitted, getattr(fitted, "feature_names_in_", None))
        return
    for regime in fitted.regimes_:
        low, high = regime.edges
        member = members[regime.name]
        click.echo(f"\n{regime.name}: {fitted.by} from {low:g} to {high:g}")
        click.echo(f"classifier: {type(member).__name__}")
        _describe(member, regime.features)


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


def _say(line: str) -> None:
    click.echo(line, err=True)


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with the time left on standard error while something is made."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn(what),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=Console(stderr=True),
    )
    with bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


if __name__ == "__main__":
    sys.exit(main())
