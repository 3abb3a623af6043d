"""Gaussian-process classification of satellite imagery, at the scale satellites deliver.

>>> from sklearn.datasets import make_moons
>>> from undulatus import VFFGPC
>>> X, y = make_moons(200, noise=0.3, random_state=0)
>>> model = VFFGPC(n_frequencies=20, random_state=0).fit(X, y)
>>> model.predict_proba(X).shape
(200, 2)

The classifiers need numpy, scipy, scikit-learn and safetensors. ``scenes`` (imagery and spectra,
their files, synthetic simulators), ``products`` (maps, scores, pictures, pages) and ``paper`` (the
experiments) need ``pip install "undulatus[eo]"`` and are imported when they are first used.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from undulatus._lazy import lazy_names
from undulatus.errors import UndulatusError

if TYPE_CHECKING:
    from undulatus.estimators import GPC, RFFGPC, VFFGPC, FourierFeatures, SpectralPCA, adapt
    from undulatus.regimes import RegimeClassifier
    from undulatus.storage import load_model, save_model

__version__ = version("undulatus")

__all__ = [
    "GPC",
    "RFFGPC",
    "VFFGPC",
    "FourierFeatures",
    "RegimeClassifier",
    "SpectralPCA",
    "UndulatusError",
    "adapt",
    "load_model",
    "save_model",
]

# scikit-learn alone takes a second to import, which `undulatus --version` should not take.
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("GPC", "RFFGPC", "VFFGPC", "FourierFeatures", "SpectralPCA", "adapt"), "estimators"
        ),
        "RegimeClassifier": "regimes",
        **dict.fromkeys(("load_model", "save_model"), "storage"),
        **{
            name: name
            for name in (
                "datasets",
                "errors",
                "estimators",
                "paper",
                "products",
                "regimes",
                "scenes",
                "storage",
            )
        },
    },
)
