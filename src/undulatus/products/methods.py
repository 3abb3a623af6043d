"""The paper's classifiers by the names the command line has for them."""

from __future__ import annotations

from typing import Any

from undulatus.errors import InputError
from undulatus.estimators import GPC, RFFGPC, VFFGPC

METHODS = {"vff": VFFGPC, "rff": RFFGPC, "gpc": GPC}


def make_classifier(
    method: str, n_frequencies: int, *, seed: int, verbose: int = 0, **more: Any
) -> Any:
    """Return the classifier a name stands for, not yet fitted; GPC has no frequencies."""
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    params: dict[str, Any] = {"random_state": seed, "verbose": verbose, **more}
    if method != "gpc":
        params["n_frequencies"] = n_frequencies
    return METHODS[method](**params)
