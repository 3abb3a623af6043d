"""Names of a package that are imported when they are first used.

``import undulatus`` should be quick, and should not need xarray or matplotlib for someone who only
wants a classifier. A package lists its names once, here as a mapping from a name to where it is
defined, and gets the two functions of PEP 562.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, places: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package.

    Parameters
    ----------
    package : str
        Its ``__name__``.
    places : mapping
        For each name the module that defines it; a module's own name stands for itself.
        Modules are relative to the package: ``{"maps": "maps", "map_scene": "maps"}``.

    ``__dir__`` lists these names and the package's ``__all__``, so that tab completion shows what
    users use and no internals.
    """

    def get(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f"{package}.{places[name]}")
        own_name = places[name].rpartition(".")[2]
        return module if own_name == name else getattr(module, name)

    def list_names() -> list[str]:
        return sorted({*places, *getattr(sys.modules[package], "__all__", ())})

    return get, list_names
