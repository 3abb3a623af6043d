"""Maps in a chain of pytroll: a worker of trollflow2.

In the list of workers it stands after ``create_scene`` and before ``load_composites``; the layers
of the map are then products like any other. ``docs/howto/pytroll.md`` shows a whole list.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from undulatus.products.map_files import ModelFile
from undulatus.products.maps import map_scene
from undulatus.scenes.files.satpy_scene import to_satpy
from undulatus.scenes.files.seviri import open_scene


def classify(
    job: dict[str, Any],
    model: str,
    *,
    layers: Iterable[str] | None = None,
    allow_outside: bool = False,
    **reading: Any,
) -> None:
    """Add the layers of a map to the Scene of a job.

    Parameters
    ----------
    job : dict
        Of trollflow2, with a Scene of SEVIRI as ``scene``. Bands that the map needs are loaded.
    model : str
        A model file, which is loaded once.
    layers : iterable of str, optional
        Those to add; by default all.
    allow_outside : bool
        As of :func:`undulatus.products.maps.map_scene`.
    reading
        Options of :func:`undulatus.scenes.files.seviri.open_scene`, such as ``calibration``.
    """
    path = Path(model)
    fitted = _loaded(path, path.stat().st_mtime_ns)
    maps = map_scene(fitted, open_scene(job["scene"], **reading), allow_outside=allow_outside)
    to_satpy(maps if layers is None else maps[list(layers)], job["scene"])


@lru_cache(2)
def _loaded(path: Path, modified: int) -> Any:
    return ModelFile.load(path).fitted
