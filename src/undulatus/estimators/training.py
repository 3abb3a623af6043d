"""From what a user passes to ``fit`` to data ready to fit: checks, scaling, merging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import as_input_errors
from undulatus.estimators.classes import (
    class_factors,
    class_shares,
    class_totals,
    encode,
    prior_shift,
    read_groups,
    read_weights,
    require_both,
)
from undulatus.estimators.rows import column_namer, validate_rows
from undulatus.gp.blocks import (
    Pixels,
    PixelSource,
    Standardisation,
    read_rows,
    require_finite,
)
from undulatus.gp.summary import Summary, summarise
from undulatus.gp.survey import require_phases_of_rows, weigh_classes

Array = npt.NDArray[Any]

MERGE_ROWS, MERGE_VALUES = 100_000, 4_000_000
"""Up to this many rows, and values in them, equal rows are merged before a batch fit."""
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Levels of `feature_quantiles_`."""
QUANTILE_ROWS = 100_000
FINGERPRINT_ROWS = 1000


@dataclass(frozen=True)
class Prepared:
    """Data ready to fit, wherever they are: what they are like, and how to standardise them.

    ``prior_shift`` is the change of the latent mean that undoes a changed class prior.
    """

    summary: Summary
    standardisation: Standardisation
    classes: Array
    prior_shift: float
    quantiles: Array

    @property
    def variances(self) -> Array:
        """Variances of the standardised features, (d,)."""
        return np.asarray(self.summary.variance / self.standardisation.scale**2)

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        raise NotImplementedError

    def pixels(self, dtype: np.dtype[Any], rows_per_block: int, threads: int) -> PixelSource:
        """Return the pixels to fit on."""
        raise NotImplementedError

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        raise NotImplementedError

    def marks(self) -> Iterator[bytes]:
        """Yield what tells these data from others: some rows, all labels, weights and groups."""
        raise NotImplementedError


@dataclass(frozen=True)
class Training(Prepared):
    """Rows of positive weight in memory, or to be sliced, and their class."""

    rows: Any
    positive: Array
    weight: Array | None
    groups: Array | None
    """Number of the group of each row, if there are groups."""
    source: Any
    """The rows as given, before any was dropped or merged: errors speak of these."""
    absent: Array | None
    """Which of those rows have no weight, (n,) bool, if any."""

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return int(self.rows.shape[0])

    def pixels(self, dtype: np.dtype[Any], rows_per_block: int, threads: int) -> Pixels:
        """Return the pixels to fit on."""
        return Pixels(
            self.rows,
            self.positive,
            self.weight,
            self.standardisation,
            dtype,
            rows_per_block,
            threads,
            self.groups,
        )

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        require_phases_of_rows(
            self.source, self.absent, self.standardisation, frequencies, columns
        )

    def marks(self) -> Iterator[bytes]:
        """Yield what tells these data from others: some rows, all labels, weights and groups."""
        yield from marks_of(self.rows, self.positive, self.weight, self.groups)


def marks_of(
    rows: Any, positive: Array, weight: Array | None, groups: Array | None
) -> Iterator[bytes]:
    """Yield the bytes of all labels, weights and groups, and of some rows."""
    yield np.packbits(positive).tobytes()
    for values in (weight, groups):
        if values is not None:
            yield np.ascontiguousarray(values).tobytes()
    some = spread_out(rows.shape[0], FINGERPRINT_ROWS)
    yield np.ascontiguousarray(read_rows(rows, some, FINGERPRINT_ROWS)).tobytes()


def prepare(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    merge: bool,
    threads: int,
    groups: Any = None,
) -> Training:
    """Return the data of ``fit``, checked against the parameters of ``model``."""
    with as_input_errors():
        rows = source = validate_rows(model, X, reset=True)
        classes, positive = encode(type(model).__name__, y, rows.shape[0])
        weight = read_weights(sample_weight, rows.shape[0])
        observed = class_shares(positive, weight)
        factors = class_factors(model.class_weight, classes, class_totals(positive, weight))
        weight = weigh_classes(factors, positive, weight)
    group = read_groups(groups, rows.shape[0])
    columns = column_namer(model)
    absent = None
    if weight is not None and not weight.all():
        absent = weight == 0
        # Rows of no weight are as good as absent, but must be finite like the others.
        used = np.flatnonzero(weight)
        summarise(rows, None, threads, columns)
        rows = read_rows(rows, used, QUANTILE_ROWS)
        positive, weight = positive[used], weight[used]
        group = None if group is None else read_groups(group[used], len(used))
        require_both(type(model).__name__, class_totals(positive, None))
    n, d = rows.shape
    # Equal rows of different groups are not one.
    if merge and group is None and n <= MERGE_ROWS and n * d <= MERGE_VALUES:
        rows = read_rows(rows, np.arange(n), MERGE_ROWS)
        require_finite(rows, columns)
        rows, positive, weight = merge_equal_rows(rows, positive, weight)
    summary = summarise(rows, weight, threads, columns)
    chosen = spread_out(rows.shape[0], QUANTILE_ROWS)
    some = read_rows(rows, chosen, QUANTILE_ROWS)
    return Training(
        summary=summary,
        standardisation=standardise(summary, model.standardize),
        classes=classes,
        prior_shift=prior_shift(
            model.prior_correction, classes, observed, class_shares(positive, weight)
        ),
        quantiles=quantiles(some, None if weight is None else weight[chosen], summary),
        rows=rows,
        positive=positive,
        weight=weight,
        groups=group,
        source=source,
        absent=absent,
    )


def merge_equal_rows(
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


def standardise(summary: Summary, wanted: bool) -> Standardisation:
    """Return how to centre and scale features, or that they stay as they are."""
    if not wanted:
        return Standardisation(np.zeros_like(summary.mean), np.ones_like(summary.mean))
    scale = np.sqrt(summary.variance)
    # A column that only its rounding moves is constant.
    constant = scale <= 10 * np.finfo(np.float64).eps * np.abs(summary.mean)
    return Standardisation(summary.mean, np.where(constant, 1.0, scale))


def spread_out(n_rows: int, most: int) -> Array:
    """Return at most so many row numbers, as far from each other as can be."""
    return np.arange(0, n_rows, -(-n_rows // most))


def quantiles(some: Array, weight: Array | None, summary: Summary) -> Array:
    """Return the quantiles of features, (7, d), from some rows and their weights."""
    found = np.quantile(
        some.astype(np.float64), QUANTILES, axis=0, weights=weight, method="inverted_cdf"
    )
    found[0], found[-1] = summary.low, summary.high
    return np.asarray(found)
