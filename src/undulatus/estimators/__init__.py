"""scikit-learn estimators around :mod:`undulatus.gp`, and their names on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from undulatus.errors import InputError
from undulatus.estimators.adaptation import adapt
from undulatus.estimators.classifier import RFFGPC, VFFGPC
from undulatus.estimators.exact import GPC
from undulatus.estimators.fourier_features import FourierFeatures
from undulatus.estimators.pca import SpectralPCA
from undulatus.gp.backends import find_device

__all__ = ["GPC", "RFFGPC", "VFFGPC", "FourierFeatures", "SpectralPCA", "adapt"]

METHODS: dict[str, Any] = {"vff": VFFGPC, "rff": RFFGPC, "gpc": GPC}
"""The paper's classifiers by their names on the command line."""


def make_classifier(
    method: str,
    n_frequencies: int,
    *,
    seed: int,
    n_estimators: int = 1,
    verbose: int = 0,
    checkpoint: Path | None = None,
    device: str | None = None,
) -> Any:
    """Return an unfitted classifier of ``METHODS``.

    ``n_frequencies``, ``n_estimators`` and ``checkpoint`` are ignored for GPC, which has none; it
    computes on no ``device`` either.
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")
    if method == "gpc":
        if find_device(device) is not None:
            raise InputError(
                f"The method gpc computes on the processor alone, not on {device!r}. Leave device "
                f"unset (undulatus fit without --device), or take the method vff or rff."
            )
        return GPC(random_state=seed, verbose=verbose)
    return METHODS[method](
        n_frequencies,
        n_estimators=n_estimators,
        random_state=seed,
        verbose=verbose,
        checkpoint=checkpoint,
        device=device,
    )


def compute_on(model: Any, device: str | None) -> None:
    """Let a fitted model predict on a device of torch, or on the processor (None).

    Of a Pipeline its classifier does so, of models of several regimes each of theirs; classifiers
    that compute on no device are left as they are.
    """
    find_device(device)
    parts = model.estimators_.values() if hasattr(model, "regimes_") else [model]
    for part in parts:
        classifier = part.steps[-1][1] if hasattr(part, "steps") else part
        if classifier is not model and hasattr(classifier, "regimes_"):
            compute_on(classifier, device)
        elif hasattr(classifier, "device"):
            classifier.device = device


def forget_checkpoint(classifier: Any) -> None:
    """Unset the checkpoint of a fitted classifier, so that another fit does not overwrite it."""
    if hasattr(classifier, "checkpoint"):
        classifier.set_params(checkpoint=None)
