"""A line on standard error that says how far a fit has come.

What every classifier here has in common: parameters, outcomes, and prediction by blocks.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from undulatus.errors import as_input_errors
from undulatus.estimators.training import Prepared, column_namer, is_chunked, validate_rows
from undulatus.gp.blocks import map_blocks, require_finite
from undulatus.gp.posterior import expected_sigmoid


class ProgressLine:
    """Prints one line an iteration, or rewrites a single one on a terminal."""

    def __init__(self, name: str, verbose: int, total: int) -> None:
        self._name = name
        self._verbose = verbose
        self._total = total
        self._began = time.monotonic()
        self._rewrites = verbose == 1 and sys.stderr.isatty()

    def __call__(self, step: int, state: str) -> None:
        """Say that ``step`` is done, and the state it reached."""
        elapsed = time.monotonic() - self._began
        left = elapsed / step * (self._total - step)
        self._write(
            f"step {step} of at most {self._total}, {state}, {elapsed:.0f} s elapsed, "
            f"at most {left:.0f} s left"
        )

    def note(self, state: str) -> None:
        """Say what is being done after the last step."""
        self._write(f"{state}, {time.monotonic() - self._began:.0f} s elapsed")

    def close(self) -> None:
        """End the line."""
        if self._verbose and self._rewrites:
            sys.stderr.write("\n")

    def _write(self, text: str) -> None:
        if not self._verbose:
            return
        line = f"{self._name}: {text}"
        sys.stderr.write(f"\r{line}\x1b[K" if self._rewrites else f"{line}\n")
        sys.stderr.flush()


Array = npt.NDArray[Any]

Ready = TypeVar("Ready", bound=Prepared)


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
        self, read: Callable[..., Ready], X: Any, y: Any, sample_weight: Any, **options: Any
    ) -> Ready:
        """Return the data ready to fit, as ``read`` reads them; keep what prediction needs."""
        with as_input_errors():
            self._validate_params()
        training = read(self, X, y, sample_weight, **options)
        self.classes_ = training.classes
        self.standardisation_ = training.standardisation
        self.feature_quantiles_ = training.quantiles
        self._prior_shift = training.prior_shift
        return training

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
        return self._by_blocks(X, self._probabilities, 2)

    def predict_proba_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return what ``predict_proba`` gives, (n, 2), and the latent variance, (n,), in one go.

        Half the cost of asking for one after the other: what maps are made of.
        """

        def build() -> Callable[[Array], tuple[Array, ...]]:
            moments = self._latent_moments()

            def both(x: Array) -> tuple[Array, Array, Array]:
                mean, variance = (moment.astype(np.float64) for moment in moments(x))
                mean += self._prior_shift
                return *_both_classes(mean, variance), variance

            return both

        found = self._by_blocks(X, build, 3)
        return found[:, :2], found[:, 2]

    def _probabilities(self) -> Callable[[Array], tuple[Array, Array]]:
        """Return the function from standardised rows to the probabilities of both classes."""
        moments = self._latent_moments()

        def probabilities(x: Array) -> tuple[Array, Array]:
            mean, variance = (moment.astype(np.float64) for moment in moments(x))
            mean += self._prior_shift
            return _both_classes(mean, variance)

        return probabilities

    def _by_blocks(
        self, X: Any, build: Callable[[], Callable[[Array], tuple[Array, ...]]], width: int
    ) -> Array:
        """Return a function of standardised rows, evaluated block by block, (n, width)."""
        check_is_fitted(self, "posterior_")
        with as_input_errors():
            rows = validate_rows(self, X, reset=False)
        columns, evaluate = column_namer(self), build()
        dtype, rows_per_block, threads = self._block_plan()

        def found(rows: Any, first_row: int, threads: int = 1) -> Array:
            output = np.empty((rows.shape[0], width), order="F")

            def part(block: slice) -> None:
                raw = np.asarray(rows[block])
                require_finite(raw, columns, first_row + block.start)
                x = self.standardisation_(raw, dtype)
                self._check_reach(x, first_row + block.start)
                for column, values in enumerate(evaluate(x)):
                    output[block, column] = values

            for _ in map_blocks(part, rows.shape[0], rows_per_block, threads):
                pass
            return output

        if not is_chunked(rows):
            return found(rows, 0, threads)
        from undulatus.gp.dask_blocks import map_rows

        return map_rows(found, rows, width)

    def _start_again(self) -> Self:
        """Forget what the last fit left, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)
        return self


def _both_classes(mean: Array, variance: Array) -> tuple[Array, Array]:
    # Each from its own sigmoid: 1 - p would round a tiny probability away.
    return expected_sigmoid(-mean, variance), expected_sigmoid(mean, variance)
