"""A month of the landmark twin, from images to a page: the chain in one call."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from undulatus.products.acquisitions import draw_acquisitions
from undulatus.products.browse import build_site
from undulatus.products.disagreement import disagreement, most_disputed
from undulatus.products.landmarks import RegimeScores, fit_scene, score_scene
from undulatus.products.maps import map_scene
from undulatus.scenes import synthetic_landmark
from undulatus.scenes.stores import open_map, open_scene, write_dataset
from undulatus.storage import save_model

Bar = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]

DAYS = 30
FREQUENCIES, PIXELS = 100, 50_000
"""Waves, and training pixels a regime: a minute's fit."""
PICTURED = 4
"""Acquisitions in the picture: those where model and Level-2 mask differ most by day."""


@dataclass(frozen=True)
class Month:
    """What came of a month: scores on the days held out, the files, and the page to open."""

    scores: list[RegimeScores]
    written: dict[str, Path]
    page: Path


def run_month(
    folder: Path,
    report: Callable[[str], None],
    bar: Bar,
    *,
    days: int = DAYS,
    pixels: int = PIXELS,
    verbose: int = 0,
) -> Month:
    """Make, fit, score, map and lay out a month of synthetic images in a folder.

    What an earlier call left in the folder is made anew. ``bar`` gives a context whose value is
    told how much of how much is done.
    """
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    written = {
        "images": folder / "month.zarr",
        "model": folder / "month.undulatus",
        "maps": folder / "maps.zarr",
        "picture": folder / "maps.png",
    }
    with bar(f"making {days} days of images") as track:
        write_dataset(synthetic_landmark(days), written["images"], track)
    scene = open_scene(written["images"])
    model = fit_scene(
        scene, n_frequencies=FREQUENCIES, pixels=pixels, verbose=verbose, progress=report
    )
    save_model(model, written["model"])
    scores = score_scene(model, scene, progress=report)
    with bar("mapping") as track:
        write_dataset(map_scene(model, scene), written["maps"], track)
    maps = open_map(written["maps"])
    lit = scene["VIS006"].notnull().all(["y", "x"])
    times = most_disputed(disagreement(scene, maps).where(lit), PICTURED)
    draw_acquisitions(written["picture"], scene, maps, times, title="Where the two masks differ")
    with bar("making pages") as track:
        page = build_site(
            maps, scene, folder / "site", title="A month of the synthetic landmark", progress=track
        )
    return Month(scores, written, page)
