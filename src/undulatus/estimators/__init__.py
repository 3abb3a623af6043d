"""The scikit-learn contract around :mod:`undulatus.gp`."""

from undulatus.estimators.exact import GPC
from undulatus.estimators.fourier import RFFGPC, VFFGPC
from undulatus.estimators.transformer import FourierFeatures

__all__ = ["GPC", "RFFGPC", "VFFGPC", "FourierFeatures"]
