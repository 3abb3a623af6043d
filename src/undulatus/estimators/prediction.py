"""From rows to predictions: blocks to columns, over a model that is weights or functions.

A :class:`Predictor` gives scikit-learn's methods, and more, to a classifier that can say what its
:class:`undulatus.gp.model.Model` is. Each method is a function of the model and a block.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from undulatus._progress import report_block
from undulatus._system import count_threads
from undulatus.errors import as_input_errors
from undulatus.estimators.validation import column_namer, into_memory, is_chunked, validate_rows
from undulatus.gp.backends import (
    Array,
    Backend,
    as_tensor,
    find_device,
    make_backend,
    on_host,
    same_library,
    to_host,
)
from undulatus.gp.data import (
    Standardisation,
    count_latents,
    map_blocks,
    require_finite,
    require_lengths,
    row_lengths,
    unmasked,
)
from undulatus.gp.model import Columns, Model


@dataclass(frozen=True)
class FullPrediction:
    """All that a classifier says of rows, from one evaluation of its latent functions."""

    probabilities: Array
    """Of each class, (n, k)."""
    mean: Array
    """Of the latent function, (n,), or with more than two classes of each class's, (n, k)."""
    variance: Array
    """Like ``mean``."""
    ensemble_std: Array
    """Standard deviation of the latent mean over the estimators, (n,); zero for a single model.
    With more than two classes, that of the likeliest."""


class Predictor(ClassifierMixin, BaseEstimator, ABC):
    """A fitted classifier, from latent functions of standardised rows to what users ask for."""

    n_jobs: int | None = 1
    classes_: Array
    standardisation_: Standardisation
    feature_quantiles_: Array
    fit_report_: dict[str, Any]

    @abstractmethod
    def _model(self, xp: Backend) -> Model:
        """Return the fitted model where blocks of rows are computed."""

    def _find_device(self, X: Any) -> str | None:
        """Return the device of torch to evaluate ``X`` on, if any."""
        return find_device(self.device, X) if hasattr(self, "device") else None

    def __sklearn_is_fitted__(self) -> bool:
        # Set last: a fit that fails leaves none.
        return hasattr(self, "fit_report_")

    @property
    def _n_latents(self) -> int:
        """Latent functions of an estimator: one for two classes, otherwise one a class."""
        return count_latents(len(self.classes_))

    @property
    def _prediction_dtype(self) -> np.dtype[Any]:
        # Models of 0.1.0 predict in the precision that they were trained in.
        report = self.fit_report_
        precision = report.get("prediction_precision", report["precision"])
        return np.dtype(np.float32 if precision == "single" else np.float64)

    def _at(self, X: Any) -> ModelAtRows:
        """Return the model at checked rows."""
        check_is_fitted(self)
        with as_input_errors():
            rows = validate_rows(self, X, reset=False)
        device, tf32 = self._find_device(X), getattr(self, "precision", None) == "tf32"
        return ModelAtRows(
            self._model,
            self._model(make_backend(self._prediction_dtype, device, tf32)),
            self.standardisation_,
            column_namer(self),
            count_threads(self.n_jobs),
            rows,
            X,
        )

    def decision_function(self, X: Any) -> Array:
        """Return scores by which classes compare.

        For two classes a score (n,) that is positive where the second class is likelier: the
        logit of the probability or, of a single model without a ``prior_correction``, the latent
        mean, which has its sign and is cheaper. For more, the logarithm of the probability of each
        class, (n, k).
        """
        return per_latent(self._at(X).columns(Model.scores, self._n_latents))

    def predict(self, X: Any) -> Any:
        """Return the likeliest class of each row, (n,); on a device if the rows are there."""
        at = self._at(X)
        if self._n_latents > 1:
            numbers = at.columns(Model.probabilities, len(self.classes_)).argmax(axis=1)
        else:
            numbers = at.columns(Model.signs, 1)[:, 0] > 0
        if as_tensor(X) is None:
            return self.classes_[numbers.astype(int)]
        if self.classes_.dtype.kind not in "biuf":
            return self.classes_[on_host(numbers).astype(int)]
        tensor = as_tensor(numbers)
        classes = make_backend(np.float64, str(tensor.device)).move(self.classes_)
        return same_library(classes[tensor.long()], X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of rows whose class is right, by weight if there are weights."""
        # Imported here, as scikit-learn does: it takes long, and only scores need it.
        from sklearn.metrics import accuracy_score

        y, sample_weight = on_host(y), on_host(sample_weight)
        return float(accuracy_score(y, on_host(self.predict(X)), sample_weight=sample_weight))

    def latent_mean(self, X: Any) -> Array:
        """Return the mean of the latent function at each row, (n,): far cheaper than both.

        With more than two classes, that of each class's against the rest, (n, k). Latent functions
        are those of the classes' shares in training: a ``prior_correction`` changes probabilities.
        """
        return per_latent(self._at(X).columns(Model.mean, self._n_latents))

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function at each row, (n,) each.

        With more than two classes there is a latent function a class, which tells it from the
        rest: (n, k) each. Of an ensemble, mean and variance are those of the mixture of its
        estimators: where they disagree, the variance is larger than theirs.
        """
        at, c = self._at(X), self._n_latents
        found = at.columns(Model.mean_and_variance, 2 * c)
        return per_latent(found[:, :c]), per_latent(found[:, c:])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, k), in the order of ``classes_``."""
        return self._at(X).columns(Model.probabilities, len(self.classes_))

    def predict_proba_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return ``predict_proba(X)``, (n, k), and the latent variance, (n,) or (n, k).

        Half the cost of two calls.
        """
        at, k = self._at(X), len(self.classes_)
        found = at.columns(Model.probabilities_and_variance, k + self._n_latents)
        return found[:, :k], per_latent(found[:, k:])

    def predict_in_full(self, X: Any) -> FullPrediction:
        """Return probabilities, latent mean and variance, and how far estimators are apart.

        As fast as ``predict_proba_and_variance(X)``.
        """
        at, k, c = self._at(X), len(self.classes_), self._n_latents
        found = at.columns(Model.everything, k + 2 * c + 1)
        mean, variance = found[:, k : k + c], found[:, k + c : k + 2 * c]
        return FullPrediction(found[:, :k], per_latent(mean), per_latent(variance), found[:, -1])

    def out_of_domain(self, X: Any) -> Array:
        """Return which rows lie too far from the training data to be classified, (n,) bool.

        Predictions of these raise a :class:`~undulatus.errors.PhaseTooLargeError`.
        """
        check_is_fitted(self)
        with as_input_errors():
            rows = into_memory(validate_rows(self, X, reset=False))
        model = self._model(make_backend(self._prediction_dtype))
        far = np.empty(rows.shape[0], dtype=bool)
        for start in range(0, len(far), model.rows_per_block):
            block = slice(start, start + model.rows_per_block)
            x = self.standardisation_(unmasked(to_host(rows[block])), model.xp.dtype)
            far[block] = ~(row_lengths(x) <= model.longest_row)
        return far


def per_latent(columns: Array) -> Array:
    """Return what there is of each latent function: (n,) for two classes, else (n, k)."""
    return columns[:, 0] if columns.shape[1] == 1 else columns


@dataclass(frozen=True)
class ModelAtRows:
    """A model and the rows to evaluate it at."""

    make: Callable[[Backend], Model]
    """Makes the model for another backend."""
    model: Model
    standardisation: Standardisation
    names: Callable[[int], str]
    """From a column's number to what the user calls it."""
    threads: int
    rows: Any
    """In memory, on a device, in chunks, or to be read in slices."""
    given: Any = None
    """The same as the user gave them: results are in arrays of their library."""
    first_row: int = 0

    def columns(self, function: Callable[[Any, Array], Columns], width: int) -> Array:
        """Return ``function(model, x)`` of all rows, (n, width), in double precision."""
        if is_chunked(self.rows):
            from undulatus.gp.dask_data import map_rows

            alone = replace(self, rows=None, given=None, threads=1)
            return map_rows(
                lambda rows, first_row: replace(alone, rows=rows, first_row=first_row).columns(
                    function, width
                ),
                self.rows,
                width,
            )
        model = self.model
        if model.xp.on_device:
            from undulatus.gp.backends.streaming import RowFunctionOnDevice

            on_device = RowFunctionOnDevice(
                lambda xp: partial(function, self.make(xp)),
                width,
                self.standardisation,
                model.xp,
                model.longest_row,
                self.standardised,
            )
            result = on_device(self.rows, model.rows_per_block, self.first_row)
            return same_library(result, self.given)
        output = np.empty((self.rows.shape[0], width), order="F")

        def evaluate(block: slice) -> None:
            x = self.standardised(self.first_row + block.start, unmasked(self.rows[block]))
            for column, values in enumerate(function(model, x)):
                output[block, column] = values

        for _ in map_blocks(evaluate, len(output), model.rows_per_block, self.threads):
            # An interrupt of a map ends its blocks here.
            report_block()
        return output

    def standardised(self, first_row: int, raw: Array) -> Array:
        """Return standardised rows; raise, naming row and column, if one cannot be classified."""
        require_finite(raw, self.names, first_row)
        x = self.standardisation(raw, self.model.xp.dtype)
        require_lengths(x, self.model.longest_row, self.names, first_row)
        return x
