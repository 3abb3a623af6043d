"""What every classifier here has in common: input, labels, weights, and prediction by blocks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, column_or_1d

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.rows import column_namer, validate_rows
from undulatus.gp.blocks import (
    Standardisation,
    Summary,
    map_blocks,
    read_rows,
    require_finite,
    summarise,
)
from undulatus.gp.logistic import expected_sigmoid

Array = npt.NDArray[Any]

MERGE_ROWS, MERGE_VALUES = 100_000, 4_000_000
"""Up to this many rows, and values in them, equal rows are merged before a batch fit."""
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Levels of `feature_quantiles_`."""
QUANTILE_ROWS = 100_000


@dataclass(frozen=True)
class Training:
    """Data ready to fit: rows of positive weight, their class, and how to standardise them."""

    rows: Any
    positive: Array
    weight: Array | None
    summary: Summary
    standardisation: Standardisation
    source: Any
    """The rows as given, before any was dropped or merged: errors speak of these."""

    @property
    def variances(self) -> Array:
        """Variances of the standardised features, (d,)."""
        return np.asarray(self.summary.variance / self.standardisation.scale**2)


class BinaryGaussianProcess(ClassifierMixin, BaseEstimator):
    """Two-class Gaussian-process classifier with a logistic likelihood.

    Subclasses fit, and say how latent moments follow from standardised rows.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "standardize": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "tol": [Interval(Real, 0, None, closed="left")],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "prior_correction": [dict, "array-like", StrOptions({"training"}), None],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    # What a subclass provides

    def _latent_mean(self) -> Callable[[Array], Array]:
        """Return the function from standardised rows to latent means."""
        raise NotImplementedError

    def _latent_moments(self) -> Callable[[Array], tuple[Array, Array]]:
        """Return the function from standardised rows to latent means and variances."""
        raise NotImplementedError

    def _block_plan(self) -> tuple[np.dtype[Any], int, int]:
        """Return the working dtype, the rows in a block, and the number of threads."""
        raise NotImplementedError

    def _check_reach(self, x: Array, first_row: int) -> None:
        """Raise if standardised rows lie too far out to be classified."""
        raise NotImplementedError

    # Fitting

    def _prepare(
        self, X: Any, y: Any, sample_weight: Any, *, merge: bool, threads: int
    ) -> Training:
        with as_input_errors():
            self._validate_params()
            rows = validate_rows(self, X, reset=True)
            positive = self._encode(y, rows.shape[0])
            observed, weight = self._weigh(sample_weight, rows, positive)
        columns = column_namer(self)
        source = rows
        if weight is not None and not weight.all():
            # Rows of no weight are as good as absent, but must be finite like the others.
            used = np.flatnonzero(weight)
            summarise(rows, None, threads, columns)
            rows = read_rows(rows, used, QUANTILE_ROWS)
            positive, weight = positive[used], weight[used]
            if positive.all() or not positive.any():
                raise InputError(
                    f"{type(self).__name__} needs rows of both classes, but only one class "
                    f"has rows of positive weight. Check sample_weight and class_weight."
                )
        n, d = rows.shape
        if merge and n <= MERGE_ROWS and n * d <= MERGE_VALUES:
            rows = read_rows(rows, np.arange(n), MERGE_ROWS)
            require_finite(rows, columns)
            rows, positive, weight = _merge_equal_rows(rows, positive, weight)
        summary = summarise(rows, weight, threads, columns)
        if not np.isfinite(summary.variance).all():
            column = int(np.argmin(np.isfinite(summary.variance)))
            raise InputError(
                f"Values in column {columns(column)} are too large to be used: up to "
                f"{max(summary.high[column], -summary.low[column]):.3g}. Rescale the column."
            )
        self.standardisation_ = _standardise(summary, self.standardize)
        self.feature_quantiles_ = _quantiles(rows, weight, summary)
        with as_input_errors():
            self._prior_shift = self._shift(positive, weight, observed)
        return Training(rows, positive, weight, summary, self.standardisation_, source)

    def _encode(self, y: Any, n_rows: int) -> Array:
        if y is None:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None."
            )
        if hasattr(y, "isna") and bool(np.any(y.isna())):
            raise InputError("Input y contains NaN. Drop the rows without a label.")
        labels = np.asarray(y)
        if labels.ndim == 2 and labels.shape[1] == 1:
            labels = column_or_1d(labels, warn=True)
        if labels.shape[:1] != (n_rows,):
            raise InputError(
                f"Found input variables with inconsistent numbers of samples: "
                f"X has {n_rows} rows, y has {labels.shape[:1]}."
            )
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise InputError("Input y contains NaN or infinity. Drop the rows without a label.")
        if labels.ndim != 1:
            raise InputError(f"Unknown label type: y must be 1-D, got shape {labels.shape}.")
        self.classes_ = _distinct(labels)
        check_classification_targets(self.classes_)
        if len(self.classes_) > 2:
            raise InputError(
                "Only binary classification is supported. The type of the target is multiclass "
                f"({len(self.classes_)} classes). Use sklearn.multiclass.OneVsRestClassifier."
            )
        if len(self.classes_) < 2:
            raise InputError(
                f"{type(self).__name__} needs two classes to separate, but y holds one class "
                f"only: {self.classes_[0]!r}."
            )
        return np.asarray(labels == self.classes_[1])

    def _weigh(
        self, sample_weight: Any, rows: Any, positive: Array
    ) -> tuple[tuple[float, float], Array | None]:
        """Return the class shares under the sample weights, and the weights with the classes'."""
        weight: Array | None = None
        if sample_weight is not None:
            reference = np.empty((rows.shape[0], 1), dtype=np.float64)
            weight = np.asarray(
                _check_sample_weight(
                    sample_weight, reference, dtype=np.float64, ensure_non_negative=True
                )
            )
            if not weight.any():
                raise InputError("Sample weights must not all be zero: no row is left to fit.")
        observed = _class_shares(positive, weight)
        if self.class_weight is not None:
            of_class = compute_class_weight(
                self.class_weight,
                classes=self.classes_,
                y=self.classes_[positive.astype(int)],
                sample_weight=weight,
            )
            factor = of_class[positive.astype(int)]
            weight = factor if weight is None else weight * factor
        return observed, weight

    def _shift(
        self, positive: Array, weight: Array | None, observed: tuple[float, float]
    ) -> float:
        """Return the change of the latent mean that undoes a changed class prior.

        For a logistic model it is exact: the log odds of the real frequencies less
        those of the (weighted) training set.
        """
        if self.prior_correction is None:
            return 0.0
        real = _read_frequencies(self.prior_correction, self.classes_, observed)
        trained = _class_shares(positive, weight)
        return float(np.log(real[1] / real[0]) - np.log(trained[1] / trained[0]))

    def _generator(self) -> np.random.Generator:
        seed = check_random_state(self.random_state).randint(np.iinfo(np.int32).max, size=4)
        return np.random.default_rng(seed)

    def _warn_about(self, outcome: str) -> None:
        if outcome == "max_iter":
            warnings.warn(
                f"{type(self).__name__} stopped at max_iter={self.max_iter} before its bound "
                f"stalled. Increase max_iter, or tol (now {self.tol:g}) if this is good enough.",
                ConvergenceWarning,
                stacklevel=3,
            )
        elif outcome == "interrupted":
            go_on = (
                " Fit again with warm_start=True to go on." if hasattr(self, "warm_start") else ""
            )
            warnings.warn(
                f"Interrupted after {self.n_iter_} iterations: the model is the best found so "
                f"far.{go_on}",
                ConvergenceWarning,
                stacklevel=3,
            )

    # Prediction

    def decision_function(self, X: Any) -> Array:
        """Return the latent mean, (n,): positive where the second class is likelier."""

        def build() -> Callable[[Array], tuple[Array, ...]]:
            mean = self._latent_mean()
            return lambda x: (mean(x) + self._prior_shift,)

        return self._by_blocks(X, build, 1)[:, 0]

    def predict(self, X: Any) -> Array:
        """Return the likelier class of each row, (n,)."""
        positive = self.decision_function(X) > 0
        return np.asarray(self.classes_[positive.astype(int)])

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function at each row, (n,) each."""

        def build() -> Callable[[Array], tuple[Array, ...]]:
            moments = self._latent_moments()

            def shifted(x: Array) -> tuple[Array, Array]:
                mean, variance = moments(x)
                return mean + self._prior_shift, variance

            return shifted

        both = self._by_blocks(X, build, 2)
        return both[:, 0], both[:, 1]

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, 2), in the order of ``classes_``."""

        def build() -> Callable[[Array], tuple[Array, ...]]:
            moments = self._latent_moments()

            def probabilities(x: Array) -> tuple[Array, Array]:
                mean, variance = (moment.astype(np.float64) for moment in moments(x))
                # Each column from its own sigmoid: 1 - p would round a tiny probability away.
                mean += self._prior_shift
                return expected_sigmoid(-mean, variance), expected_sigmoid(mean, variance)

            return probabilities

        return self._by_blocks(X, build, 2)

    def _by_blocks(
        self, X: Any, build: Callable[[], Callable[[Array], tuple[Array, ...]]], width: int
    ) -> Array:
        """Return a function of standardised rows, evaluated block by block, (n, width)."""
        check_is_fitted(self, "posterior_")
        with as_input_errors():
            rows = validate_rows(self, X, reset=False)
        columns, evaluate = column_namer(self), build()
        dtype, rows_per_block, threads = self._block_plan()
        output = np.empty((rows.shape[0], width), order="F")

        def part(block: slice) -> None:
            raw = np.asarray(rows[block])
            require_finite(raw, columns, block.start)
            x = self.standardisation_(raw, dtype)
            self._check_reach(x, block.start)
            for column, values in enumerate(evaluate(x)):
                output[block, column] = values

        for _ in map_blocks(part, rows.shape[0], rows_per_block, threads):
            pass
        return output

    def _start_again(self) -> Self:
        """Forget what the last fit left, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)
        return self


def _distinct(labels: Array) -> Array:
    """Return the sorted distinct labels; memory does not grow with their number."""
    chunk = 1_000_000
    found = [np.unique(labels[i : i + chunk]) for i in range(0, len(labels), chunk)]
    return np.unique(np.concatenate(found))


def _class_shares(positive: Array, weight: Array | None) -> tuple[float, float]:
    share = float(np.average(positive, weights=weight))
    return 1.0 - share, share


def _read_frequencies(
    given: Any, classes: Array, observed: tuple[float, float]
) -> tuple[float, float]:
    if isinstance(given, str):
        return observed
    if isinstance(given, Mapping):
        missing = [label for label in classes.tolist() if label not in given]
        if missing or len(given) != len(classes):
            raise InputError(
                f"prior_correction must give the frequency of each class {classes.tolist()}, "
                f"got {dict(given)!r}."
            )
        given = [given[label] for label in classes.tolist()]
    values = np.asarray(given, dtype=float)
    if values.shape != (2,) or not np.all(values > 0) or not np.isclose(values.sum(), 1.0):
        raise InputError(
            f"prior_correction must hold two positive class frequencies that sum to 1, in the "
            f"order of classes_ {classes.tolist()}; got {given!r}."
        )
    return float(values[0]), float(values[1])


def _merge_equal_rows(
    rows: Array, positive: Array, weight: Array | None
) -> tuple[Array, Array, Array]:
    """Return distinct labelled rows in lexicographic order, each with its summed weight.

    A row given twice and a row of weight two then are the same data, bit for bit,
    and so is any order of rows.
    """
    table = np.column_stack([np.asarray(rows, dtype=np.float64), positive])
    distinct, index = np.unique(table, axis=0, return_inverse=True)
    total = np.bincount(index.ravel(), weights=weight, minlength=len(distinct))
    return distinct[:, :-1], distinct[:, -1] > 0.5, total.astype(np.float64)


def _standardise(summary: Summary, wanted: bool) -> Standardisation:
    if not wanted:
        return Standardisation(np.zeros_like(summary.mean), np.ones_like(summary.mean))
    scale = np.sqrt(summary.variance)
    # A column that only its rounding moves is constant.
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(summary.mean)
    return Standardisation(summary.mean, np.where(constant, 1.0, scale))


def _quantiles(rows: Any, weight: Array | None, summary: Summary) -> Array:
    chosen = np.arange(0, rows.shape[0], -(-rows.shape[0] // QUANTILE_ROWS))
    some = read_rows(rows, chosen, QUANTILE_ROWS).astype(np.float64)
    found = np.quantile(
        some,
        QUANTILES,
        axis=0,
        weights=None if weight is None else weight[chosen],
        method="inverted_cdf",
    )
    found[0], found[-1] = summary.low, summary.high
    return np.asarray(found)
