"""One classifier for each regime of a condition, such as how high the sun stands.

Regimes of a condition: contiguous ranges, each with the features that make sense in it.

The classifier that is one classifier a regime.

One classifier for each regime of a condition, such as how high the sun stands.

What the condition means is not known here: a named column assigns each row to a regime, and each
regime has its own features and its own fitted classifier.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from undulatus._daylight import LOW_SUN, NIGHT, NIGHT_FEATURES, REGIMES
from undulatus.errors import InputError
from undulatus.estimators import VFFGPC

Array = npt.NDArray[Any]

MEDIAN = "median"
"""An edge found in ``fit``: the median of the rows in the two regimes that meet there."""


@dataclass(frozen=True)
class Regime:
    """Rows whose condition lies in [low, high), and the features that make sense there.

    ``features`` are names of columns; None is every column but the condition. An edge may be
    ``"median"``: it is then found in ``fit``.
    """

    name: str
    low: float | str
    high: float | str
    features: tuple[str, ...] | None = None

    @property
    def edges(self) -> tuple[float, float]:
        """Both edges as numbers."""
        return float(self.low), float(self.high)


_HIGH, _MID, _LOW, _NIGHT = REGIMES

DAYLIGHT = (
    Regime(_HIGH, 0.0, MEDIAN),
    Regime(_MID, MEDIAN, LOW_SUN),
    Regime(_LOW, LOW_SUN, NIGHT),
    Regime(_NIGHT, NIGHT, math.inf, NIGHT_FEATURES),
)
"""The paper's four regimes of illumination, by solar zenith angle in degrees."""


def resolve(
    regimes: tuple[Regime, ...], condition: Array, names: tuple[str, ...], by: str
) -> tuple[Regime, ...]:
    """Return regimes with every edge a number and every feature named.

    ``names`` are the columns there are; ``by`` names the one whose values are ``condition``.
    """
    _require_order(regimes)
    others = tuple(name for name in names if name != by)
    medians = [
        _median_between(condition, below, above) if below.high == MEDIAN else below.high
        for below, above in pairwise(regimes)
    ]
    edges = [regimes[0].low, *medians, regimes[-1].high]
    resolved = tuple(
        replace(
            regime,
            low=float(edges[index]),
            high=float(edges[index + 1]),
            features=others if regime.features is None else tuple(regime.features),
        )
        for index, regime in enumerate(regimes)
    )
    for regime in resolved:
        absent = [name for name in regime.features or () if name not in names]
        if absent:
            raise InputError(
                f"Regime {regime.name!r} needs columns that X does not have: "
                f"{', '.join(absent)}.\n  found: {', '.join(names)}"
            )
    return resolved


def _require_order(regimes: tuple[Regime, ...]) -> None:
    names = [regime.name for regime in regimes]
    if not regimes or len(set(names)) < len(names):
        raise InputError(f"regimes must have distinct names, got {names}.")
    for below, above in pairwise(regimes):
        if below.high != above.low:
            raise InputError(
                f"regimes must be contiguous from the lowest up, but {below.name!r} ends at "
                f"{below.high!r} and {above.name!r} begins at {above.low!r}."
            )
    known = [edge for regime in regimes for edge in (regime.low, regime.high) if edge != MEDIAN]
    if MEDIAN in (regimes[0].low, regimes[-1].high) or any(
        not later >= earlier for earlier, later in pairwise(map(float, known))
    ):
        raise InputError(f"regimes must have rising edges with numbers at the ends, got {known}.")


def _median_between(condition: Array, below: Regime, above: Regime) -> float:
    if MEDIAN in (below.low, above.high):
        raise InputError(f"Two edges in a row are {MEDIAN!r}: around {below.name!r}.")
    inside = condition[(condition >= float(below.low)) & (condition < float(above.high))]
    if not inside.size:
        raise InputError(
            f"Regimes {below.name!r} and {above.name!r} meet at the median of their rows, but "
            f"there are none from {below.low} to {above.high}. Use data that cover them."
        )
    return float(np.median(inside))


LEAST_ROWS = 10
"""Rows of either class that a regime needs."""


class RegimeClassifier(ClassifierMixin, BaseEstimator):
    """A classifier made of one classifier for each regime.

    Parameters
    ----------
    estimator : classifier, or mapping of classifiers, optional
        What is fitted in each regime, or in the regime of that name; ``VFFGPC()`` when absent. Any
        scikit-learn classifier.
    regimes : tuple of Regime
        Contiguous, from the lowest up; ``DAYLIGHT`` has the paper's four.
    by : str
        The column that assigns rows to regimes; it is not a feature.
    blend : float
        On so many units of ``by`` to either side of an edge the probabilities of both classifiers
        are mixed linearly; 0 switches between them at the edge. A row that lacks features
        of the regime beyond the edge keeps to its own.

    Attributes
    ----------
    classes_ : array
    regimes_ : tuple of Regime
        With every edge a number and every feature named.
    estimators_ : dict
        The fitted classifier of each regime, by its name.
    feature_names_in_ : array of str
        Columns that are needed to predict, ``by`` last.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from sklearn.linear_model import LogisticRegression
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **fit_params: Any) -> Self:
        """Fit one classifier a regime.

        Parameters
        ----------
        X : table with named columns
            A DataFrame, a structured array, or a mapping of columns; ``by`` is one of them.
        y : (n,) array
        sample_weight : (n,) array, optional
        **fit_params
            What else the classifiers' ``fit`` takes, one value a row, such as ``groups``.
        """
        condition = self._condition(X)
        y = np.asarray(y)
        if y.shape != condition.shape:
            raise InputError(f"y has shape {y.shape}, where {condition.shape} is due.")
        self.regimes_ = resolve(tuple(self.regimes), condition, _names(X), self.by)
        self._require_blend(self.regimes_)
        self.classes_ = np.unique(y)
        assigned = self.assign(condition)
        self._require_rows(assigned, y)
        given = {"sample_weight": sample_weight, **fit_params}
        extra = {name: np.asarray(v) for name, v in given.items() if v is not None}
        self.estimators_ = {}
        for index, regime in enumerate(self.regimes_):
            rows = np.flatnonzero(assigned == index)
            fitted = self._estimator_of(regime)
            own = {name: values[rows] for name, values in extra.items()}
            try:
                fitted.fit(_matrix(X, self._features(regime), rows), y[rows], **own)
            except ValueError as error:
                raise InputError(f"Regime {regime.name!r}: {error}") from error
            self.estimators_[regime.name] = fitted
        return self._named()

    @classmethod
    def from_fitted(
        cls,
        estimators: Mapping[str, Any],
        regimes: Iterable[Regime],
        by: str = "solar_zenith_angle",
        blend: float = 0.0,
    ) -> Self:
        """Return the classifier that fitted ones make, each for the regime of its name.

        All know the same classes. ``regimes`` have numbers for edges, and named features in the
        order of the columns that their classifiers were fitted on.
        """
        # The edges found in a fit are as good a recipe for another as the ones asked for.
        recipe = {name: clone(member) for name, member in estimators.items()}
        model = cls(recipe, tuple(regimes), by, blend)
        model.regimes_ = model.regimes
        model.estimators_ = {regime.name: estimators[regime.name] for regime in model.regimes_}
        model.classes_ = next(iter(model.estimators_.values())).classes_
        return model._named()

    def assign(self, condition: npt.ArrayLike) -> Array:
        """Return the number of the regime each value of the condition lies in, or -1."""
        values = np.asarray(condition, dtype=np.float64)
        found = np.full(values.shape, -1, dtype=np.int8)
        for index, regime in enumerate(self.regimes_):
            low, high = regime.edges
            found[(values >= low) & (values < high)] = index
        return found

    def predict(self, X: Any) -> Array:
        """Return the likelier class of each row, (n,)."""
        check_is_fitted(self, "estimators_")
        if self.blend:
            return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

        def codes(estimator: Any, rows: Array) -> Array:
            return np.asarray(np.searchsorted(self.classes_, estimator.predict(rows)))[:, None]

        return np.asarray(self.classes_[self._mix(X, codes, 1)[:, 0].astype(np.intp)])

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class, (n, classes), in the order of ``classes_``."""
        return self._mix(X, lambda estimator, rows: estimator.predict_proba(rows), self._classes())

    def decision_function(self, X: Any) -> Array:
        """Return the latent mean, (n,): positive where the second class is likelier."""
        return self._mix(X, lambda estimator, rows: estimator.decision_function(rows)[:, None], 1)[
            :, 0
        ]

    def latent_mean_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function, (n,) each.

        Where two regimes are blended they are those of the mixture.
        """

        def moments(estimator: Any, rows: Array) -> Array:
            mean, variance = estimator.latent_mean_and_variance(rows)
            return np.column_stack([mean, variance + mean**2])

        mixed = self._mix(X, moments, 2)
        mean = mixed[:, 0]
        return mean, np.maximum(mixed[:, 1] - mean**2, 0.0)

    def predict_proba_and_variance(self, X: Any) -> tuple[Array, Array]:
        """Return the probability of each class, (n, classes), and the latent variance, (n,).

        Half the cost of asking for one after the other.
        """
        width = self._classes()

        def all_of(estimator: Any, rows: Array) -> Array:
            probability, variance = estimator.predict_proba_and_variance(rows)
            if not self.blend:
                return np.column_stack([probability, variance, np.zeros(len(rows))])
            mean = estimator.decision_function(rows)
            return np.column_stack([probability, variance + mean**2, mean])

        mixed = self._mix(X, all_of, width + 2)
        variance = np.maximum(mixed[:, width] - mixed[:, width + 1] ** 2, 0.0)
        return mixed[:, :width], variance

    def shares(self, condition: Array, assigned: Array) -> Iterator[tuple[Regime, Array, Array]]:
        """Yield each regime, the rows that count in it, and how much each of them counts.

        A row's shares sum to 1 over the regimes: all of it in its own, or split linearly between
        two within ``blend`` of an edge. ``assigned`` is what :meth:`assign` returned for the
        condition, (n,) float64; rows outside every regime count in none.
        """
        for index, regime in enumerate(self.regimes_):
            share = np.where(assigned < 0, 0.0, self._share(condition, index, assigned))
            rows = np.flatnonzero(share)
            yield regime, rows, share[rows]

    # How rows and regimes meet

    def _mix(self, X: Any, of: Callable[[Any, Array], Array], width: int) -> Array:
        """Return what the classifiers give for their rows, mixed where regimes are blended."""
        check_is_fitted(self, "estimators_")
        condition = self._condition(X)
        assigned = self.assign(condition)
        self._require_assigned(condition, assigned)
        total = np.zeros((len(condition), width))
        weight = np.zeros(len(condition))
        for index, (regime, rows, share) in enumerate(self.shares(condition, assigned)):
            values = _matrix(X, self._features(regime), rows)
            if self.blend:
                usable = (assigned[rows] == index) | np.isfinite(values).all(axis=1)
                rows, share, values = rows[usable], share[usable], values[usable]
            if rows.size:
                total[rows] += share[:, None] * of(self.estimators_[regime.name], values)
                weight[rows] += share
        return total / weight[:, None]

    def _share(self, condition: Array, index: int, assigned: Array) -> Array:
        """Return how much one regime counts in each row: 1 inside, linear across its edges."""
        if not self.blend:
            return (assigned == index).astype(np.float64)
        low, high = self.regimes_[index].edges
        share = np.ones(len(condition))
        if index > 0:
            share = np.minimum(share, 0.5 + (condition - low) / (2.0 * self.blend))
        if index + 1 < len(self.regimes_):
            share = np.minimum(share, 0.5 + (high - condition) / (2.0 * self.blend))
        share = np.clip(share, 0.0, 1.0)
        # A row counts in its own regime however it is rounded.
        return np.where(assigned == index, np.maximum(share, 1e-12), share)

    def _condition(self, X: Any) -> Array:
        names = _names(X)
        if self.by not in names:
            raise InputError(
                f"X has no column {self.by!r}, which assigns rows to regimes.\n"
                f"  found: {', '.join(names)}\nAdd it, or name another with by=."
            )
        condition = np.asarray(X[self.by], dtype=np.float64)
        if np.isnan(condition).any():
            raise InputError(
                f"Column {self.by!r} is missing (NaN) in {np.isnan(condition).sum()} of "
                f"{len(condition)} rows, which belong to no regime. Drop them."
            )
        return condition

    def _require_blend(self, regimes: tuple[Regime, ...]) -> None:
        narrowest = min(high - low for low, high in (regime.edges for regime in regimes))
        if not 0.0 <= self.blend <= narrowest / 2.0:
            raise InputError(
                f"blend must lie between 0 and half of the narrowest regime ({narrowest / 2:g}), "
                f"got {self.blend!r}."
            )

    def _require_assigned(self, condition: Array, assigned: Array) -> None:
        if (assigned < 0).any():
            outside = condition[assigned < 0]
            low, high = self.regimes_[0].low, self.regimes_[-1].high
            raise InputError(
                f"{outside.size} rows lie in no regime: {self.by} is {outside[0]:g} in the first, "
                f"where the regimes reach from {low} to {high}. Drop them, or add a regime."
            )

    def _require_rows(self, assigned: Array, y: Array) -> None:
        if (assigned < 0).any():
            raise InputError(
                f"{np.count_nonzero(assigned < 0)} rows lie in no regime. "
                f"Drop them, or add a regime for them."
            )
        for index, regime in enumerate(self.regimes_):
            found = Counter(y[assigned == index].tolist())
            counts = {label: found.get(label, 0) for label in self.classes_.tolist()}
            if len(counts) < 2 or min(counts.values()) < LEAST_ROWS:
                low, high = regime.edges
                told = ", ".join(f"{count} of class {label!r}" for label, count in counts.items())
                raise InputError(
                    f"Regime {regime.name!r} ({self.by} from {low:g} to {high:g}) has too few "
                    f"rows to learn from: {told}; {LEAST_ROWS} of each are needed.\n"
                    f"Use data that cover it, or leave it out (regimes=...)."
                )

    def _estimator_of(self, regime: Regime) -> Any:
        if self.estimator is None:
            return VFFGPC()
        if not isinstance(self.estimator, Mapping):
            return clone(self.estimator)
        if regime.name not in self.estimator:
            raise InputError(
                f"estimator has none for the regime {regime.name!r}, only for "
                f"{', '.join(map(repr, self.estimator))}. Add one."
            )
        return clone(self.estimator[regime.name])

    def _features(self, regime: Regime) -> tuple[str, ...]:
        return regime.features or ()

    def _classes(self) -> int:
        check_is_fitted(self, "classes_")
        return len(self.classes_)

    def _named(self) -> Self:
        """Return itself, with the columns that are needed known."""
        needed = dict.fromkeys(name for regime in self.regimes_ for name in self._features(regime))
        self.feature_names_in_ = np.array([*needed, self.by], dtype=object)
        self.n_features_in_ = len(self.feature_names_in_)
        return self


def _names(X: Any) -> tuple[str, ...]:
    if isinstance(X, Mapping):
        return tuple(map(str, X))
    columns = getattr(X, "columns", None)
    if columns is None:
        columns = getattr(getattr(X, "dtype", None), "names", None)
    if columns is None:
        raise InputError(
            f"A RegimeClassifier needs a table with named columns (a DataFrame, a structured "
            f"array, a mapping of columns), but X is a {type(X).__name__}."
        )
    return tuple(map(str, columns))


def _matrix(X: Any, names: Iterable[str], rows: Array) -> Array:
    return np.column_stack([np.asarray(X[name])[rows] for name in names])


__all__ = ["DAYLIGHT", "MEDIAN", "Regime", "RegimeClassifier"]
