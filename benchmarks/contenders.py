"""The classifiers compared: a function for each that fits it with a share of its full effort."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from undulatus import RFFGPC, VFFGPC

FitFunction = Callable[[np.ndarray, np.ndarray, float], Any]


def _ours(model: type, n_frequencies: int, n_estimators: int = 1) -> FitFunction:
    def fit(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
        max_iter = max(round(100 * effort), 1)
        ours = model(n_frequencies, n_estimators=n_estimators, max_iter=max_iter, random_state=0)
        return ours.fit(X, y)

    return fit


def _sklearn_gpc(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    chosen = np.random.default_rng(0).choice(len(y), min(2000, len(y)), replace=False)
    kernel = ConstantKernel(1.0) * RBF(np.sqrt(X.shape[1]))
    model = make_pipeline(StandardScaler(), GaussianProcessClassifier(kernel, random_state=0))
    return model.fit(X[chosen], y[chosen])


def _linear_on(sampler: str) -> FitFunction:
    def fit(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
        from sklearn import kernel_approximation
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        gamma = 1.0 / X.shape[1]
        features = getattr(kernel_approximation, sampler)(
            gamma=gamma, n_components=400, random_state=0
        )
        model = make_pipeline(
            StandardScaler(), features, LogisticRegression(max_iter=max(round(200 * effort), 1))
        )
        return model.fit(X, y)

    return fit


def _hist_boosting(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
    from sklearn.ensemble import HistGradientBoostingClassifier

    rounds = max(round(100 * effort), 1)
    return HistGradientBoostingClassifier(max_iter=rounds, random_state=0).fit(X, y)


def _lightgbm(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
    from lightgbm import LGBMClassifier

    trees = max(round(300 * effort), 1)
    return LGBMClassifier(n_estimators=trees, random_state=0, verbose=-1).fit(X, y)


def _svgp(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
    from benchmarks.svgp import SVGP

    return SVGP(n_inducing=400, steps=max(round(3000 * effort), 1), batch_size=2048).fit(X, y)


class _Rfflearn:
    """rfflearn's classifier after a scaler; scikit-learn pipelines do not take it."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        import rfflearn.cpu as rfflearn
        from sklearn.preprocessing import StandardScaler

        self._scaler = StandardScaler().fit(X)
        self._model = rfflearn.RFFGPC(dim_kernel=200, std_kernel=1.0 / np.sqrt(X.shape[1]))
        self._model.fit(self._scaler.transform(X), y)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self._model.predict(self._scaler.transform(X))


def _rfflearn(X: np.ndarray, y: np.ndarray, effort: float) -> Any:
    return _Rfflearn(X, y)


CONTENDERS: dict[str, FitFunction] = {
    "VFF-GPC D=50": _ours(VFFGPC, 50),
    "VFF-GPC D=75": _ours(VFFGPC, 75),
    "VFF-GPC D=100": _ours(VFFGPC, 100),
    "VFF-GPC D=200": _ours(VFFGPC, 200),
    "VFF-GPC 8 x D=71": _ours(VFFGPC, 71, 8),
    "RFF-GPC D=200": _ours(RFFGPC, 200),
    "LightGBM 300": _lightgbm,
    "HistGradientBoosting": _hist_boosting,
    "GPyTorch SVGP M=400": _svgp,
    "RBFSampler 400 + logistic": _linear_on("RBFSampler"),
    "Nystroem 400 + logistic": _linear_on("Nystroem"),
    "scikit-learn GPC n=2000": _sklearn_gpc,
    "rfflearn RFFGPC D=200": _rfflearn,
}

CURVES = {
    "VFF-GPC D=50": (0.04, 0.08, 0.16, 0.32),
    "VFF-GPC D=100": (0.08, 0.16, 0.32, 0.64),
    "VFF-GPC D=200": (0.16, 0.32, 0.64),
    "LightGBM 300": (0.1, 0.3),
}
"""Shares of the full effort at which a curve of loss against time is measured."""
