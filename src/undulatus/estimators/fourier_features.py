"""Random Fourier features as a scikit-learn transformer, for any linear model."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from undulatus._system import available_memory
from undulatus.errors import NotEnoughMemoryError, as_input_errors
from undulatus.estimators.base import make_generator
from undulatus.estimators.validation import column_namer, into_memory, validate_rows
from undulatus.gp.backends import Array
from undulatus.gp.data import require_finite, require_phases, unmasked
from undulatus.gp.features import fourier_features
from undulatus.gp.kernels import KERNELS, find_kernel, mean_distance
from undulatus.gp.moments import summarise


class FourierFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Paired cosines and sines whose inner product approximates a stationary kernel.

    Unlike features with one cosine and a random offset, every row has norm 1 exactly.
    Put a ``StandardScaler`` before it when features differ in units.

    Parameters
    ----------
    n_frequencies : int, default=100
        Number D of frequencies; the output has 2 D columns.
    kernel : {"rbf", "matern32", "matern52"}, default="rbf"
        The kernel to approximate.
    lengthscale : float or "auto", default="auto"
        Lengthscale of the kernel; ``"auto"`` is half the root-mean-square distance between
        rows, the same as ``gamma="scale"`` of scikit-learn's RBF kernels.
    random_state : int, RandomState or None, default=None
        Seed of the frequencies.

    Attributes
    ----------
    frequencies_ : (D, d) array
        Radians per unit of the input.
    lengthscale_ : float
        The lengthscale used.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if ``X`` has named columns.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from undulatus import FourierFeatures
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = make_pipeline(FourierFeatures(50, random_state=0), LogisticRegression(C=100))
    >>> bool(model.fit(X, y).score(X, y) > 0.99)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_frequencies": [Interval(Integral, 1, None, closed="left")],
        "kernel": [StrOptions(set(KERNELS))],
        "lengthscale": [StrOptions({"auto"}), Interval(Real, 0, None, closed="neither")],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        n_frequencies: int = 100,
        *,
        kernel: str = "rbf",
        lengthscale: float | str = "auto",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.n_frequencies = n_frequencies
        self.kernel = kernel
        self.lengthscale = lengthscale
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the frequencies, and the lengthscale from the spread of ``X``."""
        with as_input_errors():
            self._validate_params()
            rows = validate_rows(self, X, reset=True)
        summary = summarise(rows, None, 1, column_namer(self))
        auto, given = 0.5 * mean_distance(summary.variance), self.lengthscale
        self.lengthscale_ = auto if isinstance(given, str) else float(given)
        # Drawn, and divided by the lengthscale.
        self._require_memory(2 * 8.0 * self.n_frequencies * self.n_features_in_)
        rng = make_generator(self.random_state)
        unit = find_kernel(self.kernel).draw(rng, self.n_frequencies, self.n_features_in_)
        self.frequencies_ = unit / self.lengthscale_
        return self

    def transform(self, X: Any) -> Array:
        """Return the features, (n, 2 D): all cosines first, then all sines."""
        check_is_fitted(self)
        with as_input_errors():
            rows = unmasked(into_memory(validate_rows(self, X, reset=False))[:])
        columns = column_namer(self)
        require_finite(rows, columns)
        x = np.ascontiguousarray(rows, dtype=np.promote_types(rows.dtype, np.float32))
        require_phases(x, self.frequencies_, columns)
        # Phases, and the cosines and sines.
        self._require_memory(3.0 * x.itemsize * len(x) * len(self.frequencies_))
        return fourier_features(x, self.frequencies_)

    def _require_memory(self, needed: float) -> None:
        available = available_memory()
        if needed > available:
            name = f"{type(self).__name__} with n_frequencies={self.n_frequencies}"
            advice = "Ask for fewer frequencies, or transform fewer rows at a time."
            raise NotEnoughMemoryError(name, needed, available, advice)

    @property
    def _n_features_out(self) -> int:
        return 2 * len(self.frequencies_)
