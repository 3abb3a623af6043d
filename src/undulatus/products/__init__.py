"""What people look at: maps, scores, figures, video."""

import importlib
from typing import Any

_MODULES = (
    "browse",
    "demo",
    "explain",
    "landmarks",
    "maps",
    "pictures",
    "scores",
    "sounder",
    "video",
)


def __getattr__(name: str) -> Any:
    """Import a module of the package when it is first asked for: each has its own needs."""
    if name in _MODULES:
        return importlib.import_module(f"undulatus.products.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
