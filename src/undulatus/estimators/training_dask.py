"""From dask arrays to data ready to fit: nothing as long as the data comes to this process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.training import (
    QUANTILE_ROWS,
    Prepared,
    bare,
    class_factors,
    column_namer,
    encode,
    is_chunked,
    marks_of,
    prior_shift,
    quantiles,
    read_groups,
    read_weights,
    require_both,
    require_two,
    spread_out,
    standardise,
    validate_rows,
)
from undulatus.gp.blocks import Pixels
from undulatus.gp.dask_blocks import ChunkedPixels, LabelledArrays, PixelReader, whole_rows
from undulatus.gp.moments import ClassMoments, FeatureSummary

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class ChunkedTraining(Prepared):
    """Rows in chunks, the label of the second class among theirs, and what each class weighs."""

    chunks: LabelledArrays
    second: Any
    factors: Array | None
    used: tuple[int, ...]
    """Rows of positive weight in each chunk."""

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return sum(self.used)

    def pixels(self, dtype: np.dtype[Any], rows_per_block: int, threads: int) -> ChunkedPixels:
        """Return the pixels to fit on."""
        reader = PixelReader(
            self.second, self.factors, self.standardisation, dtype, rows_per_block
        )
        return ChunkedPixels(self.chunks, reader, self.used, threads)

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        self._raw().require_phases(frequencies, columns)

    def marks(self) -> Iterator[bytes]:
        """Yield a digest of each chunk: of some rows, all labels, weights and groups."""
        for digest in self._raw().digests(_digest):
            yield digest.encode()

    def _raw(self) -> ChunkedPixels:
        return self.pixels(np.dtype(np.float64), QUANTILE_ROWS, 1)


def prepare_chunks(
    model: Any,
    X: Any,
    y: Any,
    sample_weight: Any,
    *,
    merge: bool,
    threads: int,
    groups: Any = None,
) -> ChunkedTraining:
    """Return the data of ``fit``, checked against the parameters of ``model``.

    One look at everything tells what is wrong, the classes, and how to standardise. Rows
    are not merged, whatever ``merge``: that needs them in memory.
    """
    name = type(model).__name__
    if model.solver == "batch":
        raise InputError(
            'solver="batch" needs the data in memory, but X is a dask array. Pass X.compute(), '
            'or set solver="stochastic".'
        )
    with as_input_errors():
        rows = whole_rows(validate_rows(model, X, reset=True))
        n = rows.shape[0]
        labels, known = _labels(name, y, n)
        weight = (
            bare(sample_weight) if is_chunked(sample_weight) else read_weights(sample_weight, n)
        )
        group = bare(groups) if is_chunked(groups) else read_groups(groups, n)
        chunks = LabelledArrays.align(rows, labels, weight, group)
    columns = column_namer(model)
    by_class = chunks.class_moments(columns)
    if by_class.error is not None:
        raise by_class.error
    with as_input_errors():
        classes = by_class.labels if known is None else known
        require_two(name, classes)
        totals = _require_weight(name, by_class)
        factors = class_factors(model.class_weight, classes, totals)
    weighed = totals if factors is None else totals * factors
    require_both(name, weighed)
    summary = _summary(by_class, factors, columns)
    standardisation = standardise(summary, model.standardize)
    reader = PixelReader(by_class.labels[1], factors, standardisation, np.dtype(np.float64), 1)
    pixels = ChunkedPixels(chunks, reader, by_class.used)
    some = pixels.take(spread_out(pixels.n_rows, QUANTILE_ROWS))
    return ChunkedTraining(
        summary=summary,
        standardisation=standardisation,
        classes=classes,
        prior_shift=prior_shift(
            model.prior_correction, classes, _shares(totals), _shares(weighed)
        ),
        quantiles=quantiles(some.rows, some.weight, summary),
        chunks=chunks,
        second=by_class.labels[1],
        factors=factors,
        used=by_class.used,
    )


def _labels(name: str, y: Any, n_rows: int) -> tuple[Any, Array | None]:
    """Return the labels, and the classes if they are known; then the labels are bool."""
    if is_chunked(y):
        return bare(y), None
    classes, positive = encode(name, y, n_rows)
    return positive, classes


def _require_weight(name: str, by_class: ClassMoments) -> Array:
    totals = np.array([moments.total_weight for moments in by_class.moments])
    if not totals.any():
        raise InputError("Sample weights must not all be zero: no row is left to fit.")
    require_both(name, totals)
    return totals


def _summary(
    by_class: ClassMoments, factors: Array | None, columns: Callable[[int], str]
) -> FeatureSummary:
    first, second = by_class.moments
    if factors is not None:
        first, second = first.reweight(float(factors[0])), second.reweight(float(factors[1]))
    return (first + second).summary(columns)


def _shares(totals: Array) -> tuple[float, float]:
    return float(totals[0] / totals.sum()), float(totals[1] / totals.sum())


def _digest(pixels: Pixels) -> str:
    digest = hashlib.sha256()
    groups = pixels.groups
    if groups is not None and groups.dtype.kind == "O":
        # The bytes of objects are their addresses.
        groups = groups.astype(str)
    for mark in marks_of(pixels.rows, pixels.positive, pixels.weight, groups):
        digest.update(mark)
    return digest.hexdigest()
