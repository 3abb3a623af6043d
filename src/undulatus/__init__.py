"""Gaussian-process classification of satellite imagery, at the scale satellites deliver."""

from undulatus.errors import UndulatusError
from undulatus.estimators import GPC, RFFGPC, VFFGPC, FourierFeatures
from undulatus.storage import load_model, save_model

__version__ = "0.1.0"

__all__ = [
    "GPC",
    "RFFGPC",
    "VFFGPC",
    "FourierFeatures",
    "UndulatusError",
    "load_model",
    "save_model",
]
