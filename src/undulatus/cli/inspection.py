"""``undulatus info`` and ``explain``: what is in a model file, and what the model looks at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import FILE, NEW


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
