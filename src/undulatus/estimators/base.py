"""What the classifiers share: parameters, reading data, prediction by blocks."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from undulatus._progress import report_block
from undulatus.errors import as_input_errors
from undulatus.estimators.training import (
    DataOptions,
    Overview,
    column_namer,
    into_memory,
    is_chunked,
    validate_rows,
)
from undulatus.gp.arrays import (
    Array,
    Place,
    as_tensor,
    double,
    index_of,
    is_tensor,
    like,
    namespace,
    on_host,
    same_library,
    to_host,
)
from undulatus.gp.blocks import (
    Standardisation,
    count_latents,
    map_blocks,
    require_finite,
    require_lengths,
    row_lengths,
    unmasked,
)
from undulatus.gp.committee import (
    pooled_log_odds,
    pooled_log_probabilities,
    pooled_moments,
    pooled_probabilities,
)
from undulatus.gp.damping import Fading
from undulatus.gp.kernels import KERNELS
from undulatus.gp.posterior import predictive_log_odds
from undulatus.gp.streaming import RowFunctionOnDevice

RowFunction = Callable[[Array], tuple[Array, ...]]
"""A function from standardised rows (n, d) to columns, (n,) each."""

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
class Member:
    """How one member is evaluated on blocks of standardised rows.

    It has C latent functions: one for two classes, otherwise one a class. The functions of a block
    are made once per call, and only when needed: the variance takes an eigendecomposition first.
    """

    make_mean: Callable[[], Callable[[Array], Array]]
    """Returns the function from rows (n, d) to means of the waves (C, n)."""
    make_moments: Callable[[], Callable[[Array], tuple[Array, Array]]]
    """Returns the function from rows (n, d) to means and variances of the waves, (C, n) each."""


@dataclass(frozen=True)
class BlockFunctions:
    """How a fitted classifier evaluates its latent functions on blocks of standardised rows."""

    place: Place
    """Where standardised rows are, and in which precision."""
    rows_per_block: int
    threads: int
    longest_row: float
    """Standardised rows that are longer lie too far out to be classified."""
    far_row: float
    """Longer ones need phases in double precision."""
    members: tuple[Member, ...]
    """One, or those of a committee."""
    fading: Fading
    """How the members' waves, (M, C, n), become latent functions with a level that fade."""
    make_probability: Callable[[], Callable[[Array], Array] | None] = lambda: None
    """Returns a faster function to the probability of the second class, (n,), if there is one."""


@dataclass(frozen=True)
class FullPrediction:
    """All that a classifier says of rows, from one evaluation of its latent functions."""

    probabilities: Array
    """Of each class, (n, k)."""
    mean: Array
    """Of the latent function, (n,), or with more than two classes of each class's, (n, k)."""
    variance: Array
    """Like ``mean``."""
    disagreement: Array
    """Standard deviation of the latent mean over the members, (n,); zero for a single model. With
    more than two classes, that of the likeliest."""


class GaussianProcessMixin(ABC):
    """The parts of a Gaussian-process classifier that do not depend on how it is fitted.

    A class that uses it provides the parameters in ``SHARED_CONSTRAINTS``, ``fit``, and
    ``_block_functions``.
    """

    class_weight: Any
    prior_correction: Any
    standardize: bool
    warp: bool
    max_iter: int
    tol: float
    on_interrupt: str
    classes_: Array
    standardisation_: Standardisation
    feature_quantiles_: Array
    _prior_shift: Array
    """Of the log odds of the second class, (1,), or of the logarithm of each probability, (k,)."""
    _latent_shift: float = 0.0
    """Of the latent mean of two classes, in models that versions before 0.3 fitted."""

    @abstractmethod
    def _block_functions(self, device: str | None = None) -> BlockFunctions:
        """Return how the fitted latent function is evaluated, on a device of torch if given."""

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
        """Latent functions of a member: one for two classes, otherwise one a class."""
        return count_latents(self._n_classes)

    # Prediction

    def decision_function(self, X: Any) -> Array:
        """Return scores by which classes compare.

        For two classes a score (n,) that is positive where the second class is likelier: the
        logit of the probability or, of a single model without a ``prior_correction``, the latent
        mean, which has its sign and is cheaper. For more, the logarithm of the probability of each
        class, (n, k).
        """
        k = self._n_classes

        def make(blocks: BlockFunctions) -> RowFunction:
            if k == 2 and self._mean_decides(blocks):
                return self._make_mean_of_means(blocks)
            moments = self._make_member_moments(blocks)
            if k == 2:
                return lambda x: (pooled_log_odds(*moments(x), self._prior_shift),)
            return lambda x: pooled_log_probabilities(*moments(x), self._prior_shift)

        return self._per_latent(self._evaluate(X, make, self._n_latents))

    def predict(self, X: Any) -> Array:
        """Return the likeliest class of each row, (n,)."""
        if self._n_classes > 2:
            probabilities = self.predict_proba(X)
            return self._named(probabilities.argmax(axis=1), X)
        positive = self._evaluate(X, self._make_sign, 1)[:, 0] > 0
        return self._named(positive, X)

    def _named(self, numbers: Array, X: Any) -> Any:
        """Return the classes of their numbers, (n,): numbers on a device stay there."""
        if as_tensor(X) is None:
            return self.classes_[numbers.astype(int)]
        if self.classes_.dtype.kind not in "biuf":
            return self.classes_[on_host(numbers).astype(int)]
        tensor = as_tensor(numbers)
        found = Place(np.dtype(np.float64), str(tensor.device)).move(self.classes_)
        return same_library(found[index_of(tensor)], X)

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
        return self._per_latent(self._evaluate(X, self._make_mean_of_means, self._n_latents))

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function at each row, (n,) each.

        With more than two classes there is a latent function a class, which tells it from the
        rest: (n, k) each. Of a committee, mean and variance are those of the mixture of its
        members: where they disagree, the variance is larger than theirs.
        """
        c = self._n_latents

        def make(blocks: BlockFunctions) -> RowFunction:
            moments = self._make_member_moments(blocks)
            return lambda x: (*namespace(x).concatenate(pooled_moments(*moments(x))),)

        columns = self._evaluate(X, make, 2 * c)
        return self._per_latent(columns[:, :c]), self._per_latent(columns[:, c:])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, k), in the order of ``classes_``."""

        def make(blocks: BlockFunctions) -> RowFunction:
            faster = blocks.make_probability()
            if faster is None:
                moments = self._make_member_moments(blocks)
                return lambda x: self._pool(*moments(x))

            def probabilities(x: Array) -> tuple[Array, Array]:
                second = faster(x)
                return 1.0 - second, second

            return probabilities

        return self._evaluate(X, make, self._n_classes)

    def predict_proba_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return ``predict_proba(X)``, (n, k), and the latent variance, (n,) or (n, k).

        Half the cost of two calls.
        """
        k = self._n_classes
        columns = self._evaluate(X, self._make_probabilities_and_variance, k + self._n_latents)
        return columns[:, :k], self._per_latent(columns[:, k:])

    def predict_in_full(self, X: Any) -> FullPrediction:
        """Return probabilities, latent mean and variance, and the disagreement of members.

        As fast as ``predict_proba_and_variance(X)``.
        """
        k, c = self._n_classes, self._n_latents

        def make(blocks: BlockFunctions) -> RowFunction:
            moments = self._make_member_moments(blocks)

            def evaluate(x: Array) -> tuple[Array, ...]:
                means, variances = moments(x)
                probabilities = self._pool(means, variances)
                xp = namespace(x)
                pooled = xp.concatenate(pooled_moments(means, variances))
                apart = xp.std(means, axis=0)
                if c == 1:
                    return *probabilities, *pooled, apart[0]
                likeliest = xp.stack(probabilities).argmax(0)
                return *probabilities, *pooled, apart[likeliest, np.arange(len(x))]

            return evaluate

        columns = self._evaluate(X, make, k + 2 * c + 1)
        means, variances = columns[:, k : k + c], columns[:, k + c : k + 2 * c]
        latent = self._per_latent(means), self._per_latent(variances)
        return FullPrediction(columns[:, :k], *latent, columns[:, -1])

    def too_far(self, X: Any) -> Array:
        """Return which rows lie too far from the training data to be classified, (n,) bool.

        Predictions of these raise a :class:`~undulatus.errors.PhaseTooLargeError`.
        """
        check_is_fitted(self)
        with as_input_errors():
            rows = into_memory(validate_rows(self, X, reset=False))
        blocks = self._block_functions()
        far = np.empty(rows.shape[0], dtype=bool)
        for start in range(0, len(far), blocks.rows_per_block):
            block = slice(start, start + blocks.rows_per_block)
            x = self.standardisation_(unmasked(to_host(rows[block])), blocks.place.dtype)
            far[block] = ~(row_lengths(x) <= blocks.longest_row)
        return far

    def _pool(self, means: Array, variances: Array) -> tuple[Array, ...]:
        """Return the probability of each class, (n,) each, from the members' moments (M, C, n)."""
        return pooled_probabilities(means, variances, self._prior_shift)

    def _per_latent(self, columns: Array) -> Array:
        """Return what there is of each latent function: (n,) for two classes, else (n, k)."""
        return columns[:, 0] if self._n_latents == 1 else columns

    def _make_mean_of_means(self, blocks: BlockFunctions) -> RowFunction:
        means = self._make_member_means(blocks)
        return lambda x: (*namespace(x).mean(means(x), axis=0),)

    def _make_member_means(self, blocks: BlockFunctions) -> Callable[[Array], Array]:
        """Return the function from rows (n, d) to the members' latent means, (M, C, n)."""
        means = [member.make_mean() for member in blocks.members]
        return lambda x: blocks.fading.mean(x, namespace(x).stack([mean(x) for mean in means]))

    def _mean_decides(self, blocks: BlockFunctions) -> bool:
        """Whether the latent mean of two classes has the sign of the log odds."""
        return len(blocks.members) == 1 and not self._prior_shift.any()

    def _make_sign(self, blocks: BlockFunctions) -> RowFunction:
        """Return a function with the sign of the decision function."""
        if self._mean_decides(blocks):
            return self._make_mean_of_means(blocks)
        means, moments = self._make_member_means(blocks), self._make_member_moments(blocks)
        shift = float(self._prior_shift[0])

        def sign(x: Array) -> tuple[Array]:
            mean = means(x)[:, 0]
            # No variance is larger than the prior's, so a member's log odds lie between these.
            largest = like(blocks.fading.signal_variance[:, 0], mean)
            positive = namespace(x).stack(
                [mean + shift, predictive_log_odds(mean, largest, shift)]
            )
            positive = positive.reshape(-1, len(x)) > 0
            # Probabilities on one side of 1/2 have their mean there: no variance is needed.
            result = 2.0 * double(positive.all(axis=0)) - 1.0
            apart = positive.any(axis=0) & ~positive.all(axis=0)
            divided = namespace(x).flatnonzero(apart)
            if len(divided):
                result[divided] = pooled_log_odds(*moments(x[divided]), self._prior_shift)
            return (result,)

        return sign

    def _make_member_moments(
        self, blocks: BlockFunctions
    ) -> Callable[[Array], tuple[Array, Array]]:
        """Return the function from rows (n, d) to the members' moments, (M, C, n) each."""
        members = [member.make_moments() for member in blocks.members]

        def evaluate(x: Array) -> tuple[Array, Array]:
            xp = namespace(x)
            means, variances = zip(*[moments(x) for moments in members], strict=True)
            faded = blocks.fading.moments(x, xp.stack(means), xp.stack(variances))
            return double(faded[0]), double(faded[1])

        return evaluate

    def _make_probabilities_and_variance(self, blocks: BlockFunctions) -> RowFunction:
        moments = self._make_member_moments(blocks)

        def evaluate(x: Array) -> tuple[Array, ...]:
            means, variances = moments(x)
            return *self._pool(means, variances), *pooled_moments(means, variances)[1]

        return evaluate

    def _evaluate(
        self, X: Any, make: Callable[[BlockFunctions], RowFunction], width: int
    ) -> Array:
        """Return the columns of a function of standardised rows, (n, width), block by block."""
        check_is_fitted(self)
        with as_input_errors():
            rows = validate_rows(self, X, reset=False)
        device = self._find_device(X)
        blocks = self._block_functions(device)
        function = make(blocks)

        def evaluate(rows: Any, first_row: int, threads: int = 1) -> Array:
            if device is not None:
                on_device = RowFunctionOnDevice(
                    function,
                    width,
                    self.standardisation_.on(blocks.place),
                    blocks.place,
                    blocks.longest_row,
                    blocks.far_row,
                    partial(self._standardised, blocks),
                )
                return on_device(rows, blocks.rows_per_block, first_row)
            output = np.empty((rows.shape[0], width), order="F")

            def evaluate_block(block: slice) -> None:
                raw = unmasked(rows[block])
                x = self._standardised(blocks, first_row + block.start, raw)
                for column, values in enumerate(function(x)):
                    output[block, column] = values

            for _ in map_blocks(evaluate_block, rows.shape[0], blocks.rows_per_block, threads):
                # An interrupt of a map ends its blocks here.
                report_block()
            return output

        if is_tensor(rows):
            return same_library(evaluate(rows, 0), X)
        if not is_chunked(rows):
            return evaluate(rows, 0, blocks.threads)
        from undulatus.gp.dask_blocks import map_rows

        return map_rows(evaluate, rows, width)

    def _standardised(self, blocks: BlockFunctions, first_row: int, raw: Array) -> Array:
        """Return standardised rows; raise, naming row and column, if one cannot be classified."""
        columns = column_namer(self)
        require_finite(raw, columns, first_row)
        x = self.standardisation_(raw, blocks.place.dtype)
        require_lengths(x, blocks.longest_row, columns, first_row)
        return x

    # Fitting

    def _forget_last_fit(self) -> None:
        """Delete fitted attributes, so that a failed fit leaves no half-fitted model."""
        for name in [name for name in vars(self) if name.endswith("_") and name[0] != "_"]:
            delattr(self, name)

    def _check_input(self, X: Any, *, merge: bool, threads: int) -> tuple[Any, DataOptions]:
        """Check the parameters and ``X``; return rows to slice, and how to prepare them."""
        with as_input_errors():
            self._validate_params()  # type: ignore[attr-defined]
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


def make_generator(random_state: Any) -> np.random.Generator:
    """Return a generator seeded by scikit-learn's ``random_state``."""
    seed = check_random_state(random_state).randint(np.iinfo(np.int32).max, size=4)
    return np.random.default_rng(seed)
