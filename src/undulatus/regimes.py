"""One classifier for each regime of a condition, such as the solar zenith angle.

A named column, the condition, assigns each row to a regime: a range of its values with its own
features and its own fitted classifier. ``DAYLIGHT`` has the paper's regimes; any others will do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from undulatus._daylight import LOW_SUN, NIGHT, NIGHT_FEATURES, REGIMES
from undulatus._progress import working_on
from undulatus.errors import InputError, NotFiniteError
from undulatus.estimators import VFFGPC
from undulatus.estimators.adaptation import (
    changed_by_labels,
    split_pipeline,
    with_classifier,
)
from undulatus.estimators.updates import find_update
from undulatus.estimators.validation import read_column, read_names

__all__ = ["DAYLIGHT", "MEDIAN", "Regime", "RegimeClassifier"]

Array = npt.NDArray[Any]

MEDIAN = "median"
"""An edge that ``fit`` sets to the median of the rows in the two regimes that meet there."""


@dataclass(frozen=True)
class Regime:
    """Rows whose condition lies in [low, high), and the features to use for them.

    ``features`` are names of columns; None is every column but the condition. An edge may be
    ``"median"``, and is then found in ``fit``.
    """

    name: str
    low: float | str
    high: float | str
    features: tuple[str, ...] | None = None

    @property
    def edges(self) -> tuple[float, float]:
        """Both edges as numbers."""
        return float(self.low), float(self.high)


DAYLIGHT = (
    Regime(REGIMES[0], 0.0, MEDIAN),
    Regime(REGIMES[1], MEDIAN, LOW_SUN),
    Regime(REGIMES[2], LOW_SUN, NIGHT),
    Regime(REGIMES[3], NIGHT, math.inf, NIGHT_FEATURES),
)
"""The paper's four regimes of daylight, by solar zenith angle in degrees."""


class RegimeClassifier(ClassifierMixin, BaseEstimator):
    """A classifier made of one classifier for each regime of a condition.

    Parameters
    ----------
    estimator : classifier or mapping of classifiers, default=None
        The scikit-learn classifier to fit in each regime, or one for each regime by its name;
        None is ``VFFGPC()``.
    regimes : tuple of Regime, default=DAYLIGHT
        Contiguous regimes, lowest first; ``DAYLIGHT`` has the paper's four.
    by : str, default="solar_zenith_angle"
        The column that assigns rows to regimes; it is not a feature.
    blend : float, default=0.0
        Within this distance of an edge, in units of ``by``, the probabilities of both
        classifiers are mixed linearly; 0 switches between them at the edge. A row without the
        features of the regime across the edge uses its own regime only.

    Attributes
    ----------
    classes_ : array
    regimes_ : tuple of Regime
        The regimes with all edges as numbers and all features named.
    estimators_ : dict
        The fitted classifier of each regime, by its name.
    feature_names_in_ : array of str
        Columns needed to predict, ``by`` last.
    n_features_in_ : int
        Number of these columns.
    updates_ : tuple of tuples of str
        The regimes whose classifiers got rows in each ``update``; only after an update.
    least_rows_per_class : int
        Rows of each class that a regime needs to be fitted: 10.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sklearn.linear_model import LogisticRegression
    >>> from undulatus.regimes import Regime, RegimeClassifier
    >>> rng = np.random.default_rng(0)
    >>> table = pd.DataFrame({"R1": rng.normal(size=400), "angle": rng.uniform(0, 90, 400)})
    >>> cloudy = (table["R1"] > 0) ^ (table["angle"] > 45)
    >>> model = RegimeClassifier(
    ...     LogisticRegression(),
    ...     regimes=(Regime("day", 0.0, 45.0), Regime("dusk", 45.0, 90.0)),
    ...     by="angle",
    ... ).fit(table, cloudy)
    >>> bool(model.score(table, cloudy) > 0.95)
    True
    """

    updates_: tuple[tuple[str, ...], ...]
    least_rows_per_class: ClassVar[int] = 10

    def __init__(
        self,
        estimator: Any = None,
        regimes: tuple[Regime, ...] = DAYLIGHT,
        by: str = "solar_zenith_angle",
        blend: float = 0.0,
    ) -> None:
        self.estimator = estimator
        self.regimes = regimes
        self.by = by
        self.blend = blend

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit one classifier for each regime.

        Parameters
        ----------
        X : table with named columns
            A DataFrame, a structured array, or a mapping of columns; ``by`` is one of them.
        y : (n,) array
        sample_weight : (n,) array, optional
        groups : (n,) array, optional
            For classifiers that take groups, such as :class:`~undulatus.VFFGPC`. Of a Pipeline,
            weights and groups are those of the last step.
        """
        condition = self._condition(X)
        y = _read_labels("y", y, len(condition))
        weight = _read_labels("sample_weight", sample_weight, len(condition))
        groups = _read_labels("groups", groups, len(condition))
        self.regimes_ = _resolve(tuple(self.regimes), condition, _column_names(X), self)
        self.classes_ = np.unique(y)
        assigned = self._assign_all(condition)
        rows_of = [np.flatnonzero(assigned == index) for index in range(len(self.regimes_))]
        for regime, rows in zip(self.regimes_, rows_of, strict=True):
            self._require_rows(regime, y[rows])
        # Set last: a fit that fails or is interrupted leaves none.
        for name in {"estimators_", "updates_"} & set(vars(self)):
            delattr(self, name)
        estimators, count = {}, len(self.regimes_)
        # What is the same for a regime of any size takes as long as 40,000 rows.
        costs = [40_000 + len(rows) for rows in rows_of]
        with working_on("learning"):
            for index, (regime, rows) in enumerate(zip(self.regimes_, rows_of, strict=True)):
                part = f"regime {regime.name} ({index + 1} of {count})"
                with (
                    working_on(part, sum(costs[:index]), sum(costs), costs[index]),
                    _naming(regime),
                ):
                    estimators[regime.name] = _fitted(
                        self._estimator_of(regime),
                        _select_finite(X, regime, rows),
                        y[rows],
                        None if weight is None else weight[rows],
                        None if groups is None else groups[rows],
                    )
        self.estimators_ = estimators
        self._set_feature_names()
        return self

    @classmethod
    def from_fitted(
        cls,
        estimators: Mapping[str, Any],
        regimes: Iterable[Regime],
        by: str = "solar_zenith_angle",
        blend: float = 0.0,
    ) -> Self:
        """Combine fitted classifiers, each for the regime of its name.

        All must have the same classes. ``regimes`` must have numbers as edges, and named
        features in the order of the columns that their classifiers were fitted on.
        """
        # With clones as parameter, the result can be fitted again.
        unfitted = {name: clone(own) for name, own in estimators.items()}
        model = cls(unfitted, tuple(regimes), by, blend)
        _require_rising(_edges(model.regimes), blend)
        model.regimes_ = model.regimes
        model.estimators_ = {regime.name: estimators[regime.name] for regime in model.regimes_}
        model.classes_ = _common_classes(model.estimators_)
        model._set_feature_names()
        return model

    def update(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Return a new model with labelled rows added, without a new fit; this one stays as it is.

        Each row goes to the classifier of the regime that it lies in, also within ``blend`` of an
        edge.

        Parameters
        ----------
        X : table with named columns
            As in ``fit``.
        y : (n,) array
            Classes the model knows.
        sample_weight : (n,) array, optional
        """
        changed = self._with_labels(X, y, sample_weight, "update")
        return self._changed(changed, (*getattr(self, "updates_", ()), tuple(changed)))

    def adapt(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Return the model of one new scene, from a few labelled rows of it; this one stays.

        The classifiers of the regimes that have rows are adapted
        (:meth:`undulatus.VFFGPC.adapt`); ``forget()`` returns the shared model.

        Parameters
        ----------
        X : table with named columns
            As in ``fit``.
        y : (n,) array
            Classes the model knows.
        sample_weight : (n,) array, optional
        """
        changed = self._with_labels(X, y, sample_weight, "adapt")
        return self._changed(changed, getattr(self, "updates_", ()))

    def _with_labels(self, X: Any, y: Any, sample_weight: Any, method: str) -> dict[str, Any]:
        """Return the classifiers of the regimes with rows, as a method makes them by these."""
        check_is_fitted(self, "estimators_")
        condition = self._condition(X)
        y = _read_labels("y", y, len(condition))
        weight = _read_labels("sample_weight", sample_weight, len(condition))
        assigned, changed = self._assign_all(condition), {}
        for index, regime in enumerate(self.regimes_):
            rows = np.flatnonzero(assigned == index)
            if rows.size:
                with _naming(regime):
                    changed[regime.name] = changed_by_labels(
                        self.estimators_[regime.name],
                        method,
                        _select_finite(X, regime, rows),
                        y[rows],
                        None if weight is None else weight[rows],
                    )
        return changed

    def forget(self, update: int = -1) -> Self:
        """Return a new model without the rows of an update; this one stays as it is.

        By default it is the last one that is taken away; otherwise it is named by its number
        from 0. Of a model that was adapted to a scene it is the shared model.
        """
        check_is_fitted(self, "estimators_")
        adapted = {
            name: with_classifier(estimator, split_pipeline(estimator)[1].forget())
            for name, estimator in self.estimators_.items()
            if hasattr(split_pipeline(estimator)[1], "adaptation_")
        }
        if adapted:
            return self._changed(adapted, getattr(self, "updates_", ()))
        updates = list(getattr(self, "updates_", ()))
        position = find_update(update, len(updates))
        # A classifier has a part in some updates only: its own are counted from the last.
        later = Counter(name for names in updates[position:] for name in names)
        changed = {}
        for name in updates.pop(position):
            _, classifier = split_pipeline(self.estimators_[name])
            forgotten = classifier.forget(-later[name])
            changed[name] = with_classifier(self.estimators_[name], forgotten)
        return self._changed(changed, tuple(updates))

    def _changed(self, estimators: dict[str, Any], updates: tuple[tuple[str, ...], ...]) -> Self:
        """Return a copy with other classifiers in some regimes."""
        changed = copy(self)
        changed.estimators_ = self.estimators_ | estimators
        changed.updates_ = updates
        return changed

    def assign(self, condition: npt.ArrayLike) -> Array:
        """Return the index of the regime that each value of the condition lies in, or -1."""
        values = np.asarray(condition, dtype=np.float64)
        assigned = np.full(values.shape, -1, dtype=np.int16)
        for index, regime in enumerate(self.regimes_):
            low, high = regime.edges
            assigned[(values >= low) & (values < high)] = index
        return assigned

    def predict(self, X: Any) -> Array:
        """Return the likelier class of each row, (n,)."""
        check_is_fitted(self, "estimators_")
        if self.blend:
            return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])
        codes = self._mix(X, lambda own, rows: np.searchsorted(self.classes_, own.predict(rows)))
        return np.asarray(self.classes_[codes[:, 0].astype(np.intp)])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, classes), in the order of ``classes_``."""
        return self._mix(X, lambda own, rows: own.predict_proba(rows))

    def decision_function(self, X: Any) -> Array:
        """Return a score, (n,), that is positive where the second class is likelier.

        It is that of the regime's classifier; where two regimes are blended, its mean. With more
        than two classes there is a score for each, (n, classes), the largest of the likeliest.
        """
        return _per_latent(self._mix(X, lambda own, rows: own.decision_function(rows)))

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function, (n,) each.

        Where two regimes are blended, these are the moments of the mixture. With more than two
        classes each has a latent function of its own: (n, classes).
        """

        def moments(own: Any, rows: Array) -> Array:
            mean, variance = own.latent_mean_and_variance(rows)
            return np.column_stack([mean, variance + mean**2])

        mean, second = np.split(self._mix(X, moments), 2, axis=1)
        return _per_latent(mean), _per_latent(np.maximum(second - mean**2, 0.0))

    def predict_proba_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the probability of each class, (n, classes), and the latent variance, (n,).

        With more than two classes the variance is that of each class, (n, classes). Half the cost
        of two calls.
        """

        def probability_and_moments(own: Any, rows: Array) -> Array:
            probability, variance = own.predict_proba_and_variance(rows)
            mean = own.latent_mean(rows) if self.blend else np.zeros_like(variance)
            return np.column_stack([probability, variance + mean**2, mean])

        mixed = self._mix(X, probability_and_moments)
        probability, moments = np.split(mixed, [len(self.classes_)], axis=1)
        second, mean = np.split(moments, 2, axis=1)
        return probability, _per_latent(np.maximum(second - mean**2, 0.0))

    def shares(self, condition: Array, assigned: Array) -> Iterator[tuple[Regime, Array, Array]]:
        """Yield each regime, the rows that it has a share in, and its share in each of them.

        The shares of a row sum to 1 over the regimes: 1 for its own, or split linearly between
        two within ``blend`` of an edge. ``assigned`` is the result of :meth:`assign` for the
        condition, (n,) float64; no regime has a share in rows outside all of them.
        """
        last = len(self.regimes_) - 1
        for index, regime in enumerate(self.regimes_):
            share = (assigned == index).astype(np.float64)
            if self.blend:
                low, high = regime.edges
                # Far from the edge of a narrow blend the share overflows, and is clipped.
                with np.errstate(over="ignore", invalid="ignore"):
                    above = (condition - low) / (2.0 * self.blend) if index > 0 else 0.5
                    below = (high - condition) / (2.0 * self.blend) if index < last else 0.5
                blended = np.clip(0.5 + np.minimum(above, below), 0.0, 1.0)
                # Rounding must not take a row's own regime away from it.
                share = np.maximum(np.where(assigned < 0, 0.0, blended), 1e-12 * share)
            rows = np.flatnonzero(share)
            yield regime, rows, share[rows]

    # Mixing the classifiers

    def _mix(self, X: Any, evaluate: Callable[[Any, Array], Array]) -> Array:
        """Return ``evaluate(classifier, rows)`` of all rows, a row each, blended at edges."""
        check_is_fitted(self, "estimators_")
        condition = self._condition(X)
        assigned = self._assign_all(condition)
        mixed, weight = np.zeros((len(condition), 0)), np.zeros((len(condition), 1))
        for index, (regime, rows, share) in enumerate(self.shares(condition, assigned)):
            values = _select_columns(X, regime, rows)
            if self.blend:
                usable = (assigned[rows] == index) | np.isfinite(values).all(axis=1)
                rows, share, values = rows[usable], share[usable], values[usable]
            _require_finite(values, regime, rows)
            if rows.size:
                found = evaluate(self.estimators_[regime.name], values).reshape(rows.size, -1)
                if not mixed.size:
                    mixed = np.zeros((len(condition), found.shape[1]))
                mixed[rows] += share[:, None] * found
                weight[rows, 0] += share
        return mixed / weight

    def _condition(self, X: Any) -> Array:
        names = _column_names(X)
        if self.by not in names:
            raise InputError(
                f"X has no column {self.by!r}, which assigns rows to regimes.\n"
                f"  found: {', '.join(names)}\nAdd it, or choose another column with by=."
            )
        given = read_column(X, self.by)
        try:
            condition = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"Column {self.by!r}, which assigns rows to regimes, must hold numbers: {error}."
            ) from error
        if not condition.size:
            raise InputError("X has no rows.")
        if np.isnan(condition).any():
            raise InputError(
                f"Column {self.by!r} is missing (NaN) in {np.isnan(condition).sum()} of "
                f"{len(condition)} rows, which belong to no regime. Drop them."
            )
        return condition

    def _assign_all(self, condition: Array) -> Array:
        """Return the regime of each row, or raise if one is in none."""
        assigned = self.assign(condition)
        if (assigned < 0).any():
            outside = condition[assigned < 0]
            low, high = self.regimes_[0].low, self.regimes_[-1].high
            raise InputError(
                f"{outside.size} rows lie in no regime: {self.by} is {outside[0]:g} in the first, "
                f"where the regimes reach from {low} to {high}. Drop them, or add a regime."
            )
        return assigned

    def _require_rows(self, regime: Regime, y: Array) -> None:
        counts = {label: int(np.sum(y == label)) for label in self.classes_.tolist()}
        if len(counts) < 2 or min(counts.values()) < self.least_rows_per_class:
            low, high = regime.edges
            counted = ", ".join(f"{count} of class {label!r}" for label, count in counts.items())
            raise InputError(
                f"Regime {regime.name!r} ({self.by} from {low:g} to {high:g}) has too few rows to "
                f"learn from: {counted}; {self.least_rows_per_class} of each are needed.\n"
                f"Use data that cover it (in Python, or leave it out: regimes=...)."
            )

    def _estimator_of(self, regime: Regime) -> Any:
        if self.estimator is None:
            return VFFGPC()
        if not isinstance(self.estimator, Mapping):
            return clone(self.estimator)
        if regime.name not in self.estimator:
            raise InputError(
                f"estimator has no classifier for the regime {regime.name!r}, only for "
                f"{', '.join(map(repr, self.estimator))}. Add one."
            )
        return clone(self.estimator[regime.name])

    def _set_feature_names(self) -> None:
        needed = dict.fromkeys(name for regime in self.regimes_ for name in regime.features or ())
        self.feature_names_in_ = np.array([*needed, self.by], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)


def _read_labels(name: str, given: Any, count: int) -> Any:
    """Return labels, weights or groups, (n,), or None if there are none."""
    if given is None and name != "y":
        return None
    values = read_names(given, name)
    if values.shape != (count,):
        raise InputError(f"{name} has shape {values.shape}, but {(count,)} is needed.")
    return values


def _fitted(estimator: Any, values: Array, y: Array, weight: Any, groups: Any) -> Any:
    """Fit a classifier, or a Pipeline, whose last step gets the weights and groups, if any."""
    if weight is None and groups is None:
        return estimator.fit(values, y)
    before, classifier = split_pipeline(estimator)
    if before is not None:
        values = before.fit_transform(values, y)
        estimator.steps[:-1] = before.steps
    if groups is None:
        classifier.fit(values, y, sample_weight=weight)
    else:
        classifier.fit(values, y, sample_weight=weight, groups=groups)
    return estimator


def _per_latent(columns: Array) -> Array:
    """Return the values of the only latent function, (n,), or of each, (n, classes)."""
    return columns[:, 0] if columns.shape[1] == 1 else columns


def _common_classes(estimators: Mapping[str, Any]) -> Array:
    """Return the classes of fitted classifiers, which must all have the same."""
    first = next(iter(estimators.values()))
    if any(not np.array_equal(e.classes_, first.classes_) for e in estimators.values()):
        found = "".join(
            f"\n  {name}: {', '.join(map(repr, estimator.classes_.tolist()))}"
            for name, estimator in estimators.items()
        )
        raise InputError(
            f"The classifiers of the regimes have different classes.{found}\n"
            f"Fit them on the same classes, or use one model for each."
        )
    return np.asarray(first.classes_)


def _resolve(
    regimes: tuple[Regime, ...], condition: Array, names: tuple[str, ...], model: RegimeClassifier
) -> tuple[Regime, ...]:
    """Return regimes with all edges as numbers and all features named.

    ``names`` are all columns; the model's ``by`` names the one whose values are ``condition``.
    """
    edges = _edges(regimes)
    for index in range(1, len(regimes)):
        if edges[index] == MEDIAN:
            low, high = edges[index - 1], edges[index + 1]
            edges[index] = _median_between(condition, low, high, regimes[index - 1].name)
    _require_rising(edges, model.blend)
    resolved = []
    others = tuple(name for name in names if name != model.by)
    for regime, (low, high) in zip(regimes, pairwise(edges), strict=True):
        features = others if regime.features is None else tuple(regime.features)
        absent = [name for name in features if name not in names]
        if absent:
            raise InputError(
                f"Regime {regime.name!r} needs columns that X does not have: "
                f"{', '.join(absent)}.\n  found: {', '.join(names)}"
            )
        resolved.append(Regime(regime.name, float(low), float(high), features))
    return tuple(resolved)


def _edges(regimes: tuple[Regime, ...]) -> list[float | str]:
    """Return where regimes begin and the last one ends."""
    names = [regime.name for regime in regimes]
    if not regimes or len(set(names)) < len(names):
        raise InputError(f"regimes must have distinct names, got {names}.")
    for below, above in pairwise(regimes):
        if below.high != above.low:
            raise InputError(
                f"regimes must be contiguous from the lowest up, but {below.name!r} ends at "
                f"{below.high!r} and {above.name!r} begins at {above.low!r}."
            )
    return [*(regime.low for regime in regimes), regimes[-1].high]


def _require_rising(edges: list[float | str], blend: float) -> None:
    # Medians between two numbers have been found.
    if MEDIAN in edges or not all(low < high for low, high in pairwise(map(float, edges))):
        raise InputError(f"regimes must have rising edges with numbers at the ends, got {edges}.")
    narrowest = min(np.diff(np.array(edges, dtype=np.float64)))
    if not 0.0 <= blend <= narrowest / 2.0:
        raise InputError(
            f"blend must lie between 0 and half of the narrowest regime ({narrowest / 2:g}), "
            f"got {blend!r}."
        )


def _median_between(condition: Array, low: float | str, high: float | str, name: str) -> float:
    """Return the median of the rows of two regimes, of which ``name`` is the lower one."""
    if high == MEDIAN:
        raise InputError(f"Two edges in a row are {MEDIAN!r}: around {name!r}.")
    inside = condition[(condition >= float(low)) & (condition < float(high))]
    if not inside.size:
        raise InputError(
            f"Regime {name!r} meets the next at the median of their rows, but there are none "
            f"from {low} to {high}. Use data that cover them."
        )
    return float(np.median(inside))


@contextmanager
def _naming(regime: Regime) -> Iterator[None]:
    """Let errors of a classifier name its regime."""
    try:
        yield
    except ValueError as error:
        raise InputError(f"Regime {regime.name!r}: {error}") from error


def _column_names(X: Any) -> tuple[str, ...]:
    columns = X if isinstance(X, Mapping) else getattr(X, "columns", None)
    if columns is None:
        columns = getattr(getattr(X, "dtype", None), "names", None)
    if columns is None:
        raise InputError(
            f"A RegimeClassifier needs a table with named columns (a DataFrame, a structured "
            f"array, a mapping of columns), but X is a {type(X).__name__}."
        )
    return tuple(map(str, columns))


def _select_columns(X: Any, regime: Regime, rows: Array) -> Array:
    return np.column_stack([read_column(X, name)[rows] for name in regime.features or ()])


def _select_finite(X: Any, regime: Regime, rows: Array) -> Array:
    values = _select_columns(X, regime, rows)
    _require_finite(values, regime, rows)
    return values


def _require_finite(values: Array, regime: Regime, rows: Array) -> None:
    """Raise, naming the user's row and column, if a value is NaN or infinite."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row, column = np.argwhere(~np.isfinite(values))[0]
        found = "NaN" if np.isnan(values[row, column]) else "infinity"
        raise NotFiniteError(found, int(rows[row]), repr((regime.features or ())[column]))
