"""``undulatus browse``: a map as pages to look through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from undulatus.cli.console import ANY, NEW, progress, say


@click.command()
@click.argument("maps", type=ANY)
@click.option("--scene", type=ANY, help="What the map was made of, if the map does not tell.")
@click.option("-o", "--output", type=NEW, required=True, help="A new folder.")
@click.option("--span", metavar="START/END", help="Only this span (UTC).")
def browse(maps: Path, scene: Path | None, output: Path, span: str | None) -> None:
    """Make pages to look through a map, every acquisition of it; they open from disk."""
    from undulatus.products.browse import build_site
    from undulatus.scenes.stores import open_map

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
    from undulatus.scenes.stores import open_scene

    path = given or (Path(maps.attrs["scene"]) if "scene" in maps.attrs else None)
    if path is not None and path.exists():
        return open_scene(path)
    told = "does not tell its scene" if path is None else f"was made of {path}, which is not there"
    say(f"The map {told}: RGB, infrared and L2 mask are left out. Give --scene to have them.")
    return None
