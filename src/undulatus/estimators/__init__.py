"""scikit-learn estimators around :mod:`undulatus.gp`, and their names on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undulatus.errors import InputError
from undulatus.estimators.exact import GPC
from undulatus.estimators.fourier import RFFGPC, VFFGPC
from undulatus.estimators.fourier_features import FourierFeatures
from undulatus.estimators.pca import SpectralPCA

__all__ = ["GPC", "RFFGPC", "VFFGPC", "FourierFeatures", "SpectralPCA"]

METHODS = {"vff": VFFGPC, "rff": RFFGPC, "gpc": GPC}
"""The paper's classifiers by their names on the command line."""


def make_classifier(
    method: str,
    n_frequencies: int,
    *,
    seed: int,
    n_members: int = 1,
    verbose: int = 0,
    checkpoint: Path | None = None,
    **params: Any,
) -> Any:
    """Return an unfitted classifier of ``METHODS``, with further ``params``.

    ``n_frequencies``, ``n_members`` and ``checkpoint`` are ignored for GPC, which has none.
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    params = {"random_state": seed, "verbose": verbose, **params}
    if method != "gpc":
        params |= {
            "n_frequencies": n_frequencies,
            "n_members": n_members,
            "checkpoint": checkpoint,
        }
    return METHODS[method](**params)


def forget_checkpoint(classifier: Any) -> None:
    """Unset the checkpoint of a fitted classifier, so that another fit does not overwrite it."""
    if hasattr(classifier, "checkpoint"):
        classifier.set_params(checkpoint=None)
