"""What the classifiers share: scikit-learn's methods over a fitted model, and reading data."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from undulatus._progress import report_block
from undulatus._system import count_threads
from undulatus.errors import as_input_errors
from undulatus.estimators.training import DataOptions, Overview
from undulatus.estimators.updates import (
    Update,
    extended_range,
    find_update,
    read_rows,
    with_changes,
    without_update,
)
from undulatus.estimators.validation import column_namer, into_memory, is_chunked, validate_rows
from undulatus.gp.backends import (
    Array,
    as_tensor,
    is_tensor,
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
from undulatus.gp.ensemble import (
    pooled_log_odds,
    pooled_log_probabilities,
    pooled_moments,
    pooled_probabilities,
)
from undulatus.gp.kernels import KERNELS
from undulatus.gp.model import FunctionModel, Prepared, WeightModel
from undulatus.gp.posterior import scaled_mean

Columns = Callable[[Prepared, Array], tuple[Array, ...]]
"""A function of a model and standardised rows (n, d) to columns, (n,) each."""

SHARED_CONSTRAINTS: dict[str, list[Any]] = {
    "kernel": [StrOptions(set(KERNELS))],
    "standardize": ["boolean"],
    "warp": ["boolean"],
    "max_iter": [Interval(Integral, 1, None, closed="left")],
    "tol": [Interval(Real, 0, None, closed="left")],
    "posterior": [StrOptions({"variational", "bound"})],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "prior_correction": [dict, "array-like", StrOptions({"training"}), None],
    "random_state": ["random_state"],
    "verbose": ["verbose"],
    "on_interrupt": [StrOptions({"raise", "keep"})],
}
"""Values that the parameters of every classifier may have, as scikit-learn spells them."""

JOBS_CONSTRAINT: list[Any] = [
    Interval(Integral, 1, None, closed="left"),
    Interval(Integral, None, -1, closed="right"),
    None,
]
"""Values that ``n_jobs`` may have; see :func:`undulatus._system.count_threads`."""


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


class GaussianProcessClassifier(ClassifierMixin, BaseEstimator, ABC):
    """A classifier that has a model: latent functions of standardised rows.

    A subclass has the parameters in ``SHARED_CONSTRAINTS``, fits, and says what its model is.
    """

    n_jobs: int | None = 1
    class_weight: Any
    prior_correction: Any
    standardize: bool
    warp: bool
    max_iter: int
    tol: float
    posterior: str
    on_interrupt: str
    classes_: Array
    standardisation_: Standardisation
    feature_quantiles_: Array
    fit_report_: dict[str, Any]
    updates_: tuple[Update, ...]
    _prior_shift: Array
    """Of the log odds of the second class, (1,), or of the logarithm of each probability, (k,)."""
    _latent_shift: float = 0.0
    """Of the latent mean of two classes, in models that versions before 0.3 fitted."""

    @abstractmethod
    def _model(self) -> WeightModel | FunctionModel:
        """Return the fitted model."""

    @abstractmethod
    def _with_rows(self, rows: Array, signs: Array, weight: Array) -> tuple[dict[str, Any], Array]:
        """Return fitted attributes with new rows (n, d), and their sites, (2, M, C, n).

        Signs (C, n) are 1 where a row is of a latent function's class, and -1 elsewhere. The
        sites are precisions and these times the centres.
        """

    @abstractmethod
    def _without_rows(self, position: int) -> dict[str, Any]:
        """Return fitted attributes without the rows of the update at a position."""

    def _prediction_dtype(self) -> np.dtype[Any]:
        return np.dtype(np.float64)

    def _find_device(self, X: Any) -> str | None:
        """Return the device of torch to evaluate ``X`` on, if any."""
        return None

    def __sklearn_is_fitted__(self) -> bool:
        # Set last: a fit that fails leaves none.
        return hasattr(self, "fit_report_")

    @property
    def _keeps_on_interrupt(self) -> bool:
        return self.on_interrupt == "keep"

    @property
    def _n_classes(self) -> int:
        check_is_fitted(self)
        return len(self.classes_)

    @property
    def _n_latents(self) -> int:
        """Latent functions of an estimator: one for two classes, otherwise one a class."""
        return count_latents(self._n_classes)

    # Prediction

    def decision_function(self, X: Any) -> Array:
        """Return scores by which classes compare.

        For two classes a score (n,) that is positive where the second class is likelier: the
        logit of the probability or, of a single model without a ``prior_correction``, the latent
        mean, which has its sign and is cheaper. For more, the logarithm of the probability of each
        class, (n, k).
        """

        def columns(model: Prepared, x: Array) -> tuple[Array, ...]:
            if self._n_classes > 2:
                return pooled_log_probabilities(*model.moments(x), self._prior_shift, model.xp)
            if self._mean_decides(model):
                return (model.means(x)[0, 0],)
            return (pooled_log_odds(*model.moments(x), self._prior_shift, model.xp),)

        return self._per_latent(self._evaluate(X, columns, self._n_latents))

    def predict(self, X: Any) -> Array:
        """Return the likeliest class of each row, (n,)."""
        if self._n_classes > 2:
            return self._named(self.predict_proba(X).argmax(axis=1), X)
        return self._named(self._evaluate(X, self._sign, 1)[:, 0] > 0, X)

    def _named(self, numbers: Array, X: Any) -> Any:
        """Return the classes of their numbers, (n,): numbers on a device stay there."""
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

        def columns(model: Prepared, x: Array) -> tuple[Array, ...]:
            return tuple(model.xp.mean(model.means(x), axis=0))

        return self._per_latent(self._evaluate(X, columns, self._n_latents))

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function at each row, (n,) each.

        With more than two classes there is a latent function a class, which tells it from the
        rest: (n, k) each. Of an ensemble, mean and variance are those of the mixture of its
        estimators: where they disagree, the variance is larger than theirs.
        """
        c = self._n_latents

        def columns(model: Prepared, x: Array) -> tuple[Array, ...]:
            mean, variance = pooled_moments(*model.moments(x), model.xp)
            return (*mean, *variance)

        found = self._evaluate(X, columns, 2 * c)
        return self._per_latent(found[:, :c]), self._per_latent(found[:, c:])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, k), in the order of ``classes_``."""

        def columns(model: Prepared, x: Array) -> tuple[Array, ...]:
            second = model.tolerant_probability(x)
            if second is not None:
                return 1.0 - second, second
            return pooled_probabilities(*model.moments(x), self._prior_shift, model.xp)

        return self._evaluate(X, columns, self._n_classes)

    def predict_proba_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return ``predict_proba(X)``, (n, k), and the latent variance, (n,) or (n, k).

        Half the cost of two calls.
        """
        k = self._n_classes
        found = self._evaluate(X, self._probabilities_and_variance, k + self._n_latents)
        return found[:, :k], self._per_latent(found[:, k:])

    def predict_in_full(self, X: Any) -> FullPrediction:
        """Return probabilities, latent mean and variance, and how far estimators are apart.

        As fast as ``predict_proba_and_variance(X)``.
        """
        k, c = self._n_classes, self._n_latents

        def columns(model: Prepared, x: Array) -> tuple[Array, ...]:
            xp, (means, variances) = model.xp, model.moments(x)
            probabilities = pooled_probabilities(means, variances, self._prior_shift, xp)
            mean, variance = pooled_moments(means, variances, xp)
            apart = xp.std(means, axis=0)
            likeliest = xp.stack(probabilities).argmax(0) if c > 1 else 0 * (x[:, 0] > 0)
            apart = apart[likeliest, np.arange(len(x))] if c > 1 else apart[0]
            return (*probabilities, *mean, *variance, apart)

        found = self._evaluate(X, columns, k + 2 * c + 1)
        means, variances = found[:, k : k + c], found[:, k + c : k + 2 * c]
        latent = self._per_latent(means), self._per_latent(variances)
        return FullPrediction(found[:, :k], *latent, found[:, -1])

    def out_of_domain(self, X: Any) -> Array:
        """Return which rows lie too far from the training data to be classified, (n,) bool.

        Predictions of these raise a :class:`~undulatus.errors.PhaseTooLargeError`.
        """
        check_is_fitted(self)
        with as_input_errors():
            rows = into_memory(validate_rows(self, X, reset=False))
        model = self._model().on(make_backend(self._prediction_dtype()))
        far = np.empty(rows.shape[0], dtype=bool)
        for start in range(0, len(far), model.rows_per_block):
            block = slice(start, start + model.rows_per_block)
            x = self.standardisation_(unmasked(to_host(rows[block])), model.xp.dtype)
            far[block] = ~(row_lengths(x) <= model.longest_row)
        return far

    def _per_latent(self, columns: Array) -> Array:
        """Return what there is of each latent function: (n,) for two classes, else (n, k)."""
        return columns[:, 0] if self._n_latents == 1 else columns

    def _mean_decides(self, model: Prepared) -> bool:
        """Whether the latent mean of two classes has the sign of the log odds."""
        return model.n_estimators == 1 and not self._prior_shift.any()

    def _sign(self, model: Prepared, x: Array) -> tuple[Array, ...]:
        """Return numbers with the sign of the decision function of two classes, (n,)."""
        xp, means = model.xp, model.means(x)[:, 0]
        if self._mean_decides(model):
            return (means[0],)
        shift = float(self._prior_shift[0])
        # No variance is larger than the prior's, so an estimator's log odds lie between these.
        ends = [means + shift, scaled_mean(means, model.signal_variance[:, 0], xp) + shift]
        positive = xp.concatenate(ends) > 0
        # Probabilities on one side of 1/2 have their mean there: no variance is needed.
        result = 2.0 * xp.double(positive.all(0)) - 1.0
        unclear = xp.flatnonzero(positive.any(0) & ~positive.all(0))
        if len(unclear):
            moments = model.moments(x[unclear])
            result[unclear] = pooled_log_odds(*moments, self._prior_shift, xp)
        return (result,)

    def _probabilities_and_variance(self, model: Prepared, x: Array) -> tuple[Array, ...]:
        xp, (means, variances) = model.xp, model.moments(x)
        probabilities = pooled_probabilities(means, variances, self._prior_shift, xp)
        return (*probabilities, *pooled_moments(means, variances, xp)[1])

    def _evaluate(self, X: Any, columns: Columns, width: int) -> Array:
        """Return the columns of a function of standardised rows, (n, width), block by block."""
        check_is_fitted(self)
        with as_input_errors():
            rows = validate_rows(self, X, reset=False)
        device = self._find_device(X)
        tf32 = getattr(self, "precision", None) == "tf32"
        model = self._model().on(make_backend(self._prediction_dtype(), device, tf32))

        def evaluate(rows: Any, first_row: int, threads: int = 1) -> Array:
            if device is not None:
                return self._evaluate_on_device(rows, columns, width, model, first_row)
            output = np.empty((rows.shape[0], width), order="F")

            def evaluate_block(block: slice) -> None:
                raw = unmasked(rows[block])
                x = self._standardised(model, first_row + block.start, raw)
                for column, values in enumerate(columns(model, x)):
                    output[block, column] = values

            for _ in map_blocks(evaluate_block, rows.shape[0], model.rows_per_block, threads):
                # An interrupt of a map ends its blocks here.
                report_block()
            return output

        if is_tensor(rows):
            return same_library(evaluate(rows, 0), X)
        if not is_chunked(rows):
            return evaluate(rows, 0, count_threads(self.n_jobs))
        from undulatus.gp.dask_data import map_rows

        return map_rows(evaluate, rows, width)

    def _evaluate_on_device(
        self, rows: Any, columns: Columns, width: int, model: Prepared, first_row: int
    ) -> Array:
        from undulatus.gp.backends.streaming import RowFunctionOnDevice

        return RowFunctionOnDevice(
            lambda xp: partial(columns, self._model().on(xp)),
            width,
            self.standardisation_,
            model.xp,
            model.longest_row,
            model.far_row,
            partial(self._standardised, model),
        )(rows, model.rows_per_block, first_row)

    def _standardised(self, model: Prepared, first_row: int, raw: Array) -> Array:
        """Return standardised rows; raise, naming row and column, if one cannot be classified."""
        names = column_namer(self)
        require_finite(raw, names, first_row)
        x = self.standardisation_(raw, model.xp.dtype)
        require_lengths(x, model.longest_row, names, first_row)
        return x

    # Corrections

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Return a new model with labelled rows added, without a new fit; this one stays as it is.

        Hyperparameters and what stands for earlier rows stay as they are; the posterior gets the
        terms of the new rows. Where they lie outside the training range, the range grows. An
        update of many rows, or of another kind of scene, is worth a new fit. Both models share the
        arrays that do not differ.

        Parameters
        ----------
        X : (n, d) array or table
            Features, as in ``fit``.
        y : (n,) array
            Classes the model knows.
        sample_weight : (n,) array, optional
            Weights >= 0: a correction that should outweigh many rows may be given a large one.
            ``class_weight`` does not apply.
        """
        check_is_fitted(self)
        rows, codes, weight = read_rows(self, X, y, sample_weight)
        latents = [True] if codes.dtype == bool else range(len(self.classes_))
        signs = np.array([np.where(codes == code, 1.0, -1.0) for code in latents])
        fitted, (precision, projected) = self._with_rows(rows, signs, weight)
        range_before = self.feature_quantiles_[[0, -1]].copy()
        update = Update(rows, codes, weight, precision, projected, range_before)
        # Where rows were labelled is no longer outside what was learned.
        quantiles = extended_range(self.feature_quantiles_, range_before, [update])
        updates = (*getattr(self, "updates_", ()), update)
        return with_changes(self, fitted | {"feature_quantiles_": quantiles, "updates_": updates})

    def forget(self, update: int = -1) -> Self:
        """Return a new model without the rows of an update; this one stays as it is.

        By default it is the last one that is taken away; otherwise it is named by its number
        from 0.
        """
        check_is_fitted(self)
        updates: tuple[Update, ...] = getattr(self, "updates_", ())
        position = find_update(update, len(updates))
        fitted = self._without_rows(position)
        # The range is that before the first update, and of the rows that are left.
        first = updates[0].range_before
        left = without_update(updates, position)
        quantiles = extended_range(self.feature_quantiles_, first, left)
        changes = {"feature_quantiles_": quantiles, "updates_": tuple(left)}
        return with_changes(self, fitted | changes)

    # Fitting

    def _forget_last_fit(self) -> None:
        """Delete fitted attributes, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def _check_input(self, X: Any, *, merge: bool, threads: int) -> tuple[Any, DataOptions]:
        """Check the parameters and ``X``; return rows to slice, and how to prepare them."""
        with as_input_errors():
            self._validate_params()
            rows = validate_rows(self, X, reset=True)
        options = DataOptions(
            classifier=type(self).__name__,
            columns=column_namer(self),
            class_weight=self.class_weight,
            prior_correction=self.prior_correction,
            standardize=self.standardize,
            warp=self.warp,
            merge=merge,
            threads=threads,
        )
        return rows, options

    def _keep_overview(self, overview: Overview) -> None:
        self.classes_ = overview.classes
        self.standardisation_ = overview.standardisation
        self.feature_quantiles_ = overview.quantiles
        self._prior_shift = overview.prior_shift

    def _warn_unless_converged(
        self, outcome: str, n_iter: int, found: str = "the best found so far"
    ) -> None:
        if outcome == "max_iter":
            warnings.warn(
                f"{type(self).__name__} stopped at max_iter={self.max_iter} before its bound "
                f"stalled. Increase max_iter, or tol (now {self.tol:g}) if this is good enough.",
                ConvergenceWarning,
                stacklevel=3,
            )
        elif outcome == "interrupted":
            remedy = " Fit again with warm_start=True to continue."
            warnings.warn(
                f"Interrupted after {n_iter} iterations: the model is {found}."
                f"{remedy if hasattr(self, 'warm_start') else ''}",
                ConvergenceWarning,
                stacklevel=3,
            )


def worst_outcome(outcomes: set[str]) -> str:
    """Return the outcome of a fit that has parts."""
    return next(name for name in ("interrupted", "max_iter", "converged") if name in outcomes)


def make_generator(random_state: Any) -> np.random.Generator:
    """Return a generator seeded by scikit-learn's ``random_state``."""
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max, size=4)
    return np.random.default_rng(seed)
