"""From dask arrays to data ready to fit; nothing as long as the data comes to this process."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.class_frequencies import class_factors, class_totals, prior_shift
from undulatus.estimators.training import (
    QUANTILE_ROWS,
    DataOptions,
    Overview,
    RowData,
    dask_array,
    encode_labels,
    fingerprint_parts,
    is_chunked,
    is_small,
    log_odds,
    look_over,
    quantiles,
    read_groups,
    read_weights,
    require_classes,
    require_rows,
    require_weight,
    spread_out,
    standardise,
)
from undulatus.gp.backends import HOST, Array, Backend
from undulatus.gp.dask_data import ChunkedPixels, LabelledArrays, PixelReader, whole_rows
from undulatus.gp.data import Pixels, Standardisation
from undulatus.gp.moments import ClassMoments, FeatureSummary, require_weights


@dataclass(frozen=True)
class ChunkedData:
    """Labelled rows in dask chunks, and how to read them."""

    overview: Overview
    chunks: LabelledArrays
    labels: Array
    """The labels of the classes, sorted, as they are in the chunks."""
    factors: Array | None
    """Factor on the weight of each class's rows, (k,), if any."""
    used: tuple[int, ...]
    """Rows of positive weight in each chunk."""

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return sum(self.used)

    def pixels(self, xp: Backend, rows_per_block: int, threads: int) -> ChunkedPixels:
        """Return the pixels to fit on."""
        standardisation = self.overview.standardisation
        reader = PixelReader(self.labels, self.factors, standardisation, xp, rows_per_block)
        return ChunkedPixels(self.chunks, reader, self.used, threads)

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        self._double_pixels().require_phases(frequencies, columns)

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Yield a digest of each chunk: of some rows, all labels, weights and groups."""
        for digest in self._double_pixels().digests(_digest_pixels):
            yield digest.encode()

    def _double_pixels(self) -> ChunkedPixels:
        return self.pixels(HOST, QUANTILE_ROWS, 1)


@dataclass(frozen=True)
class GatheredData(RowData):
    """Labelled rows of positive weight that were taken into memory from chunks."""

    given: ChunkedData

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column as given, if a phase of any row has lost its digits."""
        self.given.require_phases(frequencies, columns)


def prepare_chunks(
    rows: Any, y: Any, sample_weight: Any, options: DataOptions, groups: Any = None
) -> ChunkedData | GatheredData:
    """Return a dask array that passed ``validate_rows``, with labels and weights, ready to fit.

    One pass over all chunks finds mistakes, the classes, and how to standardise. Few rows are
    then taken into memory, so that the model is that of the same rows in an array. Equal ones
    of many are not merged in either.
    """
    name = options.classifier
    with as_input_errors():
        rows = whole_rows(rows)
        n = rows.shape[0]
        labels, known = _read_labels(name, y, n)
        given_weight, given_groups = is_chunked(sample_weight), is_chunked(groups)
        weight = dask_array(sample_weight) if given_weight else read_weights(sample_weight, n)
        group = dask_array(groups) if given_groups else read_groups(groups, n)
        chunks = LabelledArrays.align(rows, labels, weight, group)
    by_class = chunks.class_moments(options.columns)
    if by_class.error is not None:
        raise by_class.error
    with as_input_errors():
        classes = by_class.labels if known is None else known
        require_classes(name, classes)
        totals = _require_weight(name, classes, by_class)
        factors = class_factors(options.class_weight, classes, totals)
    weighted = totals if factors is None else totals * factors
    require_weight(name, classes, weighted)
    require_weights(weighted)
    summary = _summary(by_class, factors, options.columns)
    # Rows are taken as they are: how they are standardised does not matter yet.
    as_given = Standardisation(np.zeros(rows.shape[1]), np.ones(rows.shape[1]))
    reader = PixelReader(by_class.labels, factors, as_given, HOST, 1)
    pixels = ChunkedPixels(chunks, reader, by_class.used)
    observed = totals / totals.sum()
    if is_small(options, pixels.n_rows, pixels.n_features):
        own = pixels.gather()
        require_rows(name, classes, class_totals(own.codes, None, len(classes)), totals)
        seen = look_over(own.rows, own.codes, own.weight, own.groups, classes, observed, options)
        in_chunks = ChunkedData(seen[0], chunks, by_class.labels, factors, by_class.used)
        return GatheredData(*seen, own.groups, own.rows, None, in_chunks)
    some = pixels.take(spread_out(pixels.n_rows, QUANTILE_ROWS))
    trained = weighted / weighted.sum()
    overview = Overview(
        summary,
        *standardise(summary, some.rows, some.weight, options),
        classes=classes,
        prior_shift=prior_shift(options.prior_correction, classes, observed, trained),
        quantiles=quantiles(some.rows, some.weight, summary),
        log_odds=log_odds(trained),
    )
    return ChunkedData(overview, chunks, by_class.labels, factors, by_class.used)


def _read_labels(classifier: str, y: Any, n_rows: int) -> tuple[Any, Array | None]:
    """Return the labels, and the classes if they are known; then the labels are their numbers."""
    if is_chunked(y):
        return dask_array(y), None
    classes, codes = encode_labels(classifier, y, n_rows)
    return codes, classes


def _require_weight(classifier: str, classes: Array, by_class: ClassMoments) -> Array:
    totals = np.array([moments.total_weight for moments in by_class.moments])
    if not totals.any():
        raise InputError("Sample weights must not all be zero: no row is left to fit.")
    require_weight(classifier, classes, totals)
    return totals


def _summary(
    by_class: ClassMoments, factors: Array | None, columns: Callable[[int], str]
) -> FeatureSummary:
    moments = by_class.moments
    if factors is not None:
        weighted = zip(moments, factors.tolist(), strict=True)
        moments = tuple(own.reweight(factor) for own, factor in weighted)
    return reduce(operator.add, moments).summary(columns)


def _digest_pixels(pixels: Pixels) -> str:
    digest = hashlib.sha256()
    groups = pixels.groups
    if groups is not None and groups.dtype.kind == "O":
        # Object arrays hold pointers, which differ between runs.
        groups = groups.astype(str)
    for part in fingerprint_parts(pixels.rows, pixels.codes, pixels.weight, groups):
        digest.update(part)
    return digest.hexdigest()
