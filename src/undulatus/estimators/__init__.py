"""The scikit-learn contract around :mod:`undulatus.gp`.

The paper's classifiers by the names the command line has for them.
"""

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


def make_classifier(
    method: str,
    n_frequencies: int,
    *,
    seed: int,
    verbose: int = 0,
    checkpoint: Path | None = None,
    **more: Any,
) -> Any:
    """Return the classifier a name stands for, not yet fitted.

    GPC has no frequencies, and no checkpoints: it is for a few thousand rows.
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    params: dict[str, Any] = {"random_state": seed, "verbose": verbose, **more}
    if method != "gpc":
        params |= {"n_frequencies": n_frequencies, "checkpoint": checkpoint}
    return METHODS[method](**params)


def forget_checkpoint(classifier: Any) -> None:
    """Let a fitted classifier not write where this fit was kept, should it be fitted again."""
    if hasattr(classifier, "checkpoint"):
        classifier.set_params(checkpoint=None)
