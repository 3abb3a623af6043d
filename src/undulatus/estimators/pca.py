"""Exact principal components of more rows than fit in memory, in units of the noise."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from numbers import Integral
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh
from scipy.linalg.blas import dsymv, dsyrk
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from undulatus._progress import Work, working_on
from undulatus._system import count_threads
from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.base import JOBS_CONSTRAINT
from undulatus.estimators.validation import column_namer, validate_rows
from undulatus.gp.data import map_blocks, require_finite

Array = npt.NDArray[Any]

TASK = "principal components"
"""What is under way while components are found, to those who are told of progress."""


class SpectralPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Principal components of rows divided by their noise, from one pass over the data.

    The covariance of :math:`(x - \bar x) / \sigma` is summed block by block, and its leading
    eigenvectors are found by Lanczos' method: the components are those of a full
    decomposition. Memory is that of the covariance (573 MB for 8,461 channels) for any number
    of rows, and less if there are few. Sums are in double precision: the first component of
    spectra has a million times the variance of the last ones worth keeping.

    Parameters
    ----------
    n_components : int, default=100
        Number of components; at most the number of rows and of features.
    noise : (d,) array, default=None
        Standard deviation of the noise of each feature; ones if None.
    n_jobs : int, default=None
        Threads of ``transform``; None is all cores.

    Attributes
    ----------
    components_ : (n_components, d) array
        Unit vectors in units of the noise, the first with the largest variance.
    explained_variance_, explained_variance_ratio_ : (n_components,) arrays
        Variance along each component, and its share of the variance of all features.
    mean_, noise_ : (d,) arrays
        Mean of each feature, and the noise used.
    n_samples_seen_, n_components_ : int
        Rows fitted on, and number of components.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only if ``X`` has named columns.
    block_rows : int
        Rows read at a time: 512, which are 17 MB of IASI spectra.

    Examples
    --------
    >>> import numpy as np
    >>> from undulatus import SpectralPCA
    >>> spectra = np.random.default_rng(0).normal(size=(50, 8))
    >>> components = SpectralPCA(n_components=3, noise=np.full(8, 0.1)).fit(spectra)
    >>> components.transform(spectra).shape
    (50, 3)
    """

    block_rows: ClassVar[int] = 512

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "noise": ["array-like", None],
        "n_jobs": JOBS_CONSTRAINT,
    }

    def __init__(
        self,
        n_components: int = 100,
        *,
        noise: npt.ArrayLike | None = None,
        n_jobs: int | None = None,
    ) -> None:
        self.n_components = n_components
        self.noise = noise
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        """Number of outputs, which scikit-learn asks for to name them."""
        return self.n_components_

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the components of rows, (n, d): an array, or anything that can be sliced."""
        with as_input_errors():
            self._validate_params()
            rows = validate_rows(self, X, reset=True)
        n, d = rows.shape
        if self.n_components > min(n, d):
            raise InputError(
                f"n_components={self.n_components} is too many for {n} rows of {d} features. "
                f"Use at most {min(n, d)}."
            )
        self.noise_ = self._read_noise(d)
        # For few rows their products, (n, n), are the smaller matrix.
        if 4 * n <= d and d >= 200:
            values, vectors, total = self._decompose_rows(rows)
        else:
            with working_on(TASK):
                with working_on("covariance", 0, 2) as work:
                    covariance, self.mean_ = self._accumulate(rows, work)
                total = float(np.trace(covariance))
                with working_on("eigenvectors", 1, 2) as work:
                    values, vectors = _leading(covariance, self.n_components, work)
        # The sign of a vector is arbitrary: make its largest entry positive.
        largest = np.abs(vectors).argmax(axis=0)
        vectors *= np.sign(vectors[largest, np.arange(self.n_components)])
        self.components_ = vectors.T
        self.explained_variance_ = values
        self.explained_variance_ratio_ = values / max(total, np.finfo(np.float64).tiny)
        self.n_samples_seen_ = n
        self.n_components_ = self.n_components
        return self

    def transform(self, X: Any) -> Array:
        """Return the components of rows, (n, n_components); single precision if the rows are."""
        return self._transform(X, lambda done, total: None)

    def fit_transform(self, X: Any, y: Any = None) -> Array:
        """Find the components of rows, and return those of the rows, which are read twice."""
        with working_on(TASK):
            with working_on(TASK, 0, 2):
                self.fit(X)
            with working_on("reducing", 1, 2) as work:
                return self._transform(X, work.report)

    def _transform(self, X: Any, progress: Callable[[int, int], None]) -> Array:
        check_is_fitted(self, "components_")
        with as_input_errors():
            rows = validate_rows(self, X, reset=False)
        columns = column_namer(self)
        dtype = np.dtype(np.float32 if rows.dtype == np.float32 else np.float64)
        mean = self.mean_.astype(dtype)
        weights = np.ascontiguousarray((self.components_ / self.noise_).T, dtype=dtype)
        scores = np.empty((rows.shape[0], self.n_components_), dtype)

        def transform_block(block: slice) -> None:
            raw = np.asarray(rows[block])
            require_finite(raw, columns, block.start)
            scores[block] = (raw.astype(dtype) - mean) @ weights

        blocks = map_blocks(
            transform_block, rows.shape[0], self.block_rows, count_threads(self.n_jobs)
        )
        for done, _ in enumerate(blocks, 1):
            progress(min(done * self.block_rows, len(scores)), len(scores))
        return scores

    def _read_noise(self, d: int) -> Array:
        if self.noise is None:
            return np.ones(d)
        with as_input_errors("noise"):
            noise = np.asarray(self.noise, dtype=np.float64)
        if noise.shape != (d,) or not np.all(noise > 0.0) or not np.all(np.isfinite(noise)):
            raise InputError(
                f"noise must hold a positive number for each of {d} features, got shape "
                f"{noise.shape} with values from {noise.min(initial=np.inf):g}."
            )
        return noise

    def _decompose_rows(self, rows: Any) -> tuple[Array, Array, float]:
        """Return variances, vectors (d, n_components) and the total variance of a few rows."""
        raw = np.asarray(rows[: rows.shape[0]])
        require_finite(raw, column_namer(self), 0)
        self.mean_ = raw.mean(axis=0, dtype=np.float64)
        x = (raw - self.mean_) / self.noise_
        n, freedom = len(x), max(len(x) - 1, 1)
        products = x @ x.T / freedom
        values, turns = eigh(products, subset_by_index=[n - self.n_components, n - 1])
        vectors = x.T @ turns[:, ::-1]
        vectors /= np.maximum(np.linalg.norm(vectors, axis=0), np.finfo(np.float64).tiny)
        return np.maximum(values[::-1], 0.0), vectors, float(np.trace(products))

    def _accumulate(self, rows: Any, work: Work) -> tuple[Array, Array]:
        """Return the lower triangle of the covariance in units of the noise, and the mean."""
        n, d = rows.shape
        columns = column_namer(self)
        covariance = np.zeros((d, d), order="F")
        total = np.zeros(d)
        shift = np.zeros(0)
        for first in range(0, n, self.block_rows):
            raw = np.asarray(rows[first : first + self.block_rows])
            require_finite(raw, columns, first)
            if not shift.size:
                # Sums of squares about a point near the mean keep their digits.
                shift = raw.mean(axis=0, dtype=np.float64)
            x = np.asfortranarray((raw - shift) / self.noise_)
            total += x.sum(axis=0)
            covariance = dsyrk(1.0, x, beta=1.0, c=covariance, trans=1, lower=1, overwrite_c=1)
            work.report(min(first + self.block_rows, n), n)
        away = total / n
        for column in range(d):
            covariance[column:, column] -= n * away[column:] * away[column]
        covariance /= max(n - 1, 1)
        return covariance, shift + away * self.noise_


def _leading(covariance: Array, count: int, work: Work) -> tuple[Array, Array]:
    """Return the largest eigenvalues of a lower triangle, and their vectors (d, count)."""
    d = len(covariance)
    # Lanczos' method is the faster one for few vectors of a large matrix.
    if count >= d // 2 or d < 200:
        values, vectors = np.linalg.eigh(covariance, UPLO="L")
    else:
        calls = itertools.count(1)

        def multiply(x: Array) -> Array:
            work.report(next(calls))
            return np.asarray(dsymv(1.0, covariance, x, lower=1))

        product = LinearOperator((d, d), matvec=multiply, dtype=np.float64)
        # The same start each time, for the same result.
        start = np.random.default_rng(0).standard_normal(d)
        values, vectors = eigsh(product, count, which="LA", v0=start)
    order = np.argsort(values)[::-1][:count]
    return np.maximum(values[order], 0.0), vectors[:, order]
