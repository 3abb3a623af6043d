"""From what a user passes to ``fit`` to data ready to fit: checked, weighted, standardised.

Rows are in memory, or read in slices, or in dask chunks; of these nothing as long as the data
comes to this process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from undulatus.errors import InputError, as_input_errors
from undulatus.estimators.validation import (
    dask_array,
    encode_labels,
    is_chunked,
    read_groups,
    read_weights,
)
from undulatus.gp.backends import HOST, Array, Backend, to_host
from undulatus.gp.data import (
    Pixels,
    Standardisation,
    Warp,
    count_latents,
    read_rows,
    require_finite,
    unmasked,
)
from undulatus.gp.moments import (
    MOST_LABELS,
    FeatureMoments,
    LabelledChunk,
    apply_class_weights,
    count_classes,
    require_phases_of_rows,
    require_weights,
    summarise,
)
from undulatus.gp.splits import number_groups

if TYPE_CHECKING:
    from undulatus.gp.dask_data import ChunkedPixels, PixelReader

MERGE_ROWS, MERGE_VALUES = 100_000, 4_000_000
"""Equal rows are merged before a batch fit up to this many rows, and values in them."""

QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)
"""Levels of ``feature_quantiles_``."""

QUANTILE_ROWS = 100_000
"""Quantiles are estimated from at most this many rows."""

SMALLEST_EXTENT, LARGEST_EXTENT, HEAVIEST = 1e-15, 1e15, 1e37
"""Features that are not standardised may vary by no less and no more, and by no more than the last
times the weight of all rows: squares and sums of others do not fit into single precision."""

FINGERPRINT_ROWS = 1000
"""Rows that enter a fingerprint of the data."""

ROUNDING = 10 * np.finfo(np.float64).eps
"""How far a constant may deviate from its mean by rounding, relative to the mean."""

# Data ready to fit


@dataclass(frozen=True)
class DataOptions:
    """How data are prepared for one fit: parameters of the classifier, and names for errors."""

    classifier: str
    columns: Callable[[int], str]
    """The function from a column's number to what the user calls it."""
    class_weight: Any
    prior_correction: Any
    standardize: bool
    warp: bool
    """Whether to compress the tails of features that are standardised."""
    merge: bool
    """Whether to merge equal rows."""
    threads: int


@dataclass(frozen=True)
class Overview:
    """What one look at the training data gives: their classes and the spread of each feature."""

    summary: FeatureMoments
    standardisation: Standardisation
    variances: Array
    """Variances of the standardised features, (d,)."""
    classes: Array
    prior_shift: Array
    """Change of the log odds that undoes a changed class prior: of the second class, (1,), or
    with more than two classes the logarithm of the factor on each one's probability, (k,)."""
    quantiles: Array
    log_odds: Array
    """Logarithm of the odds of each latent function's class in the weight of all rows: of the
    second class, (1,), or of each, (k,)."""


@dataclass(frozen=True)
class RowData:
    """Labelled rows of positive weight, in memory or to be read in slices."""

    overview: Overview
    rows: Any
    codes: Array
    """Number of each row's class, (n,); bool for two classes."""
    weight: Array | None
    groups: Array | None
    """Number of the group of each row, if there are groups."""
    source: Any
    """The rows as given, before any was dropped or merged: error messages refer to these."""
    dropped: Array | None
    """Which rows of ``source`` have no weight, (n,) bool, if any."""

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return int(self.rows.shape[0])

    def pixels(self, xp: Backend, rows_per_block: int, threads: int) -> Pixels:
        """Return the pixels to fit on."""
        return Pixels(
            self.rows,
            self.codes,
            self.weight,
            self.overview.standardisation,
            xp,
            rows_per_block,
            threads,
            self.groups,
            len(self.overview.classes),
        )

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        require_phases_of_rows(
            self.source, self.dropped, self.overview.standardisation, frequencies, columns
        )

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Yield bytes of some rows and of all labels, weights and groups."""
        return _bytes_of(self)


@dataclass(frozen=True)
class ChunkedData:
    """Labelled rows in dask chunks, and how to read them in double precision."""

    overview: Overview
    given: ChunkedPixels

    @property
    def n_rows(self) -> int:
        """Number of rows of positive weight."""
        return self.given.n_rows

    def pixels(self, xp: Backend, rows_per_block: int, threads: int) -> ChunkedPixels:
        """Return the pixels to fit on."""
        reader = replace(self.given.reader, xp=xp, rows_per_block=rows_per_block)
        return replace(self.given, reader=reader, threads=threads)

    def require_phases(self, frequencies: Array, columns: Callable[[int], str]) -> None:
        """Raise, naming row and column, if a phase of any row has lost its digits."""
        self.given.require_phases(frequencies, columns)

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Yield a digest of each chunk: of some rows, all labels, weights and groups."""
        from undulatus.gp.dask_data import compute

        for digest in compute(self.given.each(_digest_chunk)):
            yield digest.encode()


TrainingData = RowData | ChunkedData
"""Data ready to fit, in memory or in chunks elsewhere."""


def _bytes_of(data: RowData | Pixels) -> Iterator[bytes]:
    """Yield the bytes of all labels, weights and groups, and of some rows."""
    yield (np.packbits(data.codes) if data.codes.dtype == bool else data.codes).tobytes()
    for values in (data.weight, data.groups):
        if values is not None:
            # Object arrays hold pointers, which differ between runs.
            yield (values.astype(str) if values.dtype.kind == "O" else values).tobytes()
    some = spread_out(data.rows.shape[0], FINGERPRINT_ROWS)
    yield to_host(read_rows(data.rows, some, FINGERPRINT_ROWS)).tobytes()


def _digest_chunk(chunk: LabelledChunk, reader: PixelReader) -> str:
    digest = hashlib.sha256()
    for part in _bytes_of(reader(chunk)):
        digest.update(part)
    return digest.hexdigest()


# Preparing data


def prepare_rows(
    rows: Any, y: Any, sample_weight: Any, options: DataOptions, groups: Any = None
) -> RowData:
    """Return rows that passed :func:`validate_rows`, with labels and weights, ready to fit."""
    source, n, dropped = rows, rows.shape[0], None
    with as_input_errors():
        classes, codes = encode_labels(options.classifier, y, n)
        weight = read_weights(sample_weight, n)
        group = read_groups(groups, n)
        totals = np.bincount(codes, weight, len(classes))
        factors = weigh_classes(options.classifier, options.class_weight, classes, totals)
    weight = apply_class_weights(factors, codes, weight)
    if weight is not None and not weight.all():
        # Rows of zero weight are dropped, but must be finite like the others.
        summarise(rows, None, options.threads, options.columns)
        dropped, used = weight == 0, np.flatnonzero(weight)
        rows = read_rows(rows, used, QUANTILE_ROWS)
        codes, weight = codes[used], weight[used]
        group = None if group is None else number_groups(group[used])
    counts = np.bincount(codes, minlength=len(classes))
    single = (counts < 2) & (totals < 2)
    if len(classes) > 2 and single.any():
        raise InputError(
            f"{options.classifier} needs two rows or more of each of {len(classes)} classes, but "
            f"has one of {_name_some(classes[single])}. Add rows, merge these classes, or drop "
            f"them."
        )
    # Equal rows of different groups must stay apart.
    if group is None and is_small(options, *rows.shape):
        rows = to_host(read_rows(rows, np.arange(rows.shape[0]), MERGE_ROWS))
        require_finite(rows, options.columns)
        rows, codes, weight = merge_equal_rows(rows, codes, weight)
    chosen = spread_out(rows.shape[0], QUANTILE_ROWS)
    overview = look_over(
        summarise(rows, weight, options.threads, options.columns),
        to_host(read_rows(rows, chosen, QUANTILE_ROWS)),
        None if weight is None else weight[chosen],
        classes,
        totals,
        np.bincount(codes, weight, len(classes)),
        options,
    )
    return RowData(overview, rows, codes, weight, group, source, dropped)


def is_small(options: DataOptions, n_rows: int, n_features: int) -> bool:
    """Whether so many rows are taken into memory before the fit, to merge equal ones."""
    return options.merge and n_rows <= MERGE_ROWS and n_rows * n_features <= MERGE_VALUES


def prepare_chunks(
    rows: Any, y: Any, sample_weight: Any, options: DataOptions, groups: Any = None
) -> ChunkedData | RowData:
    """Return a dask array that passed ``validate_rows``, with labels and weights, ready to fit.

    Few rows are taken into memory, so that the model is that of the same rows in an array. Of
    many, one pass over labels and weights finds the classes, and one over the rows how to
    standardise; equal ones are not merged.
    """
    # Imported here: dask takes long to import, and only its arrays need it.
    from undulatus.gp.dask_data import ChunkedPixels, LabelledArrays, PixelReader, load, tree_sum

    name, n = options.classifier, rows.shape[0]
    if is_small(options, *rows.shape):
        rows, y, sample_weight, groups = load((rows, y, sample_weight, groups))
        return prepare_rows(unmasked(rows), y, sample_weight, options, groups)
    with as_input_errors():
        known, labels = (None, dask_array(y)) if is_chunked(y) else encode_labels(name, y, n)
        weighted, grouped = is_chunked(sample_weight), is_chunked(groups)
        weight = dask_array(sample_weight) if weighted else read_weights(sample_weight, n)
        group = dask_array(groups) if grouped else read_groups(groups, n)
        arrays = LabelledArrays.align(rows, labels, weight, group)
        seen = tree_sum(arrays.without_rows().each(count_classes))
        classes = seen.labels if known is None else known
        factors = weigh_classes(name, options.class_weight, classes, seen.totals)
    # Rows are taken as they are: how they are standardised does not matter yet.
    as_given = Standardisation(np.zeros(rows.shape[1]), np.ones(rows.shape[1]))
    reader = PixelReader(seen.labels, factors, as_given, HOST, QUANTILE_ROWS)
    pixels = ChunkedPixels(arrays, reader, seen.used)
    summary = tree_sum(arrays.each(_summarise_chunk, reader, options.columns))
    summary.require_moderate(options.columns)
    some = pixels.take(spread_out(pixels.n_rows, QUANTILE_ROWS))
    trained = seen.totals if factors is None else seen.totals * factors
    overview = look_over(summary, some.rows, some.weight, classes, seen.totals, trained, options)
    reader = replace(reader, standardisation=overview.standardisation)
    return ChunkedData(overview, replace(pixels, reader=reader))


def _summarise_chunk(
    chunk: LabelledChunk, reader: PixelReader, columns: Callable[[int], str]
) -> FeatureMoments:
    pixels = reader(chunk)
    # Rows of zero weight are left out, but must be finite like the others.
    if pixels.n_rows < len(chunk.rows):
        summarise(chunk.rows, None, 1, columns, chunk.first_row)
    return summarise(pixels.rows, pixels.weight, 1, columns, chunk.first_row)


def merge_equal_rows(
    rows: Array, codes: Array, weight: Array | None
) -> tuple[Array, Array, Array]:
    """Return distinct labelled rows in lexicographic order, each with its summed weight.

    A row given twice and a row of weight two are then the same data, bit for bit, and the
    order of rows does not matter.
    """
    table = np.column_stack([np.asarray(rows, dtype=np.float64), codes])
    distinct, index = np.unique(table, axis=0, return_inverse=True)
    total = np.bincount(index.ravel(), weights=weight, minlength=len(distinct))
    return distinct[:, :-1], distinct[:, -1].astype(codes.dtype), total.astype(np.float64)


def look_over(
    summary: FeatureMoments,
    some: Array,
    weight: Array | None,
    classes: Array,
    given: Array,
    trained: Array,
    options: DataOptions,
) -> Overview:
    """Return the overview of rows of positive weight.

    Quantiles are those of ``some`` rows (m, d) and their weights; ``given`` and ``trained`` (k,)
    are the weights of each class before and after class weights.
    """
    some = some.astype(np.float64)
    quantiles = np.quantile(some, QUANTILES, axis=0, weights=weight, method="inverted_cdf")
    middle = quantiles[QUANTILES.index(0.5)].copy()
    # The smallest and largest value are those of all rows.
    quantiles[0], quantiles[-1] = summary.low, summary.high
    observed, shares = given / given.sum(), trained / trained.sum()
    return Overview(
        summary,
        *_standardise(summary, some, weight, middle, options),
        classes=classes,
        prior_shift=prior_shift(options.prior_correction, classes, observed, shares),
        quantiles=quantiles,
        log_odds=log_odds(shares),
    )


def _standardise(
    summary: FeatureMoments,
    some: Array,
    weight: Array | None,
    middle: Array,
    options: DataOptions,
) -> tuple[Standardisation, Array]:
    """Return how features enter the model, and the variances they have then, (d,).

    A warp is found from ``some`` rows (m, d), which are overwritten, and their weights: it is
    around the median (``middle``), as wide as the mean distance from it.
    """
    mean, variance, warp = summary.mean, summary.variance, None
    if options.standardize and options.warp:
        distance = np.average(np.abs(some - middle), axis=0, weights=weight)
        warp = Warp(middle, np.where(distance <= ROUNDING * np.abs(middle), 1.0, distance))
        warped = warp(some, np.float64)
        mean = np.average(warped, axis=0, weights=weight)
        variance = np.average((warped - mean) ** 2, axis=0, weights=weight)
    scale = np.sqrt(variance)
    constant = scale <= ROUNDING * np.abs(mean)
    if options.standardize:
        scale = np.where(constant, 1.0, scale)
        return Standardisation(mean, scale, warp), variance / scale**2
    extent = float(np.sqrt(variance.sum()))
    heaviest = extent * max(summary.total_weight, 1.0)
    if extent > 0 and not (SMALLEST_EXTENT < extent < LARGEST_EXTENT and heaviest < HEAVIEST):
        raise InputError(
            f"The features vary by {extent:.3g} around their means, with weights of "
            f"{summary.total_weight:.3g} in total: too far from 1 to be used as they are. Rescale "
            f"them, or leave standardize=True."
        )
    # Kernels depend on differences alone, but phases of rows far from zero lose digits.
    return Standardisation(mean, np.ones_like(mean)), np.where(constant, 0.0, variance)


def spread_out(n_rows: int, most: int) -> Array:
    """Return at most ``most`` row numbers at equal distances, from the first on."""
    return np.arange(0, n_rows, -(-n_rows // most))


# How often classes occur


def weigh_classes(
    classifier: str, class_weight: Any, classes: Array, totals: Array
) -> Array | None:
    """Return the factor on the weight of each class's rows, (k,), or None if all are one.

    ``totals`` (k,) are the weights of the classes. Raise unless there are two classes or more, of
    a type that classes may have, and all have some weight, also times the factors.
    """
    # Repeated, or many classes would be taken for numbers to regress on.
    try:
        check_classification_targets(np.repeat(classes, 3))
    except TypeError as error:
        # Of labels that are bytes.
        raise InputError(str(error)) from error
    if len(classes) >= MOST_LABELS:
        raise InputError(
            f"y holds {len(classes)} different labels or more, such as {classes[0]!r} and "
            f"{classes[-1]!r}. {classifier} takes at most {MOST_LABELS - 1} classes. Is y a "
            f"number to regress on, or an identifier?"
        )
    if len(classes) < 2:
        raise InputError(
            f"{classifier} needs two classes to separate, but y holds one class only: "
            f"{_name_some(classes)}."
        )
    _require_weight_of_each(classifier, classes, totals)
    if class_weight is None:
        return None
    for label, factor in class_weight.items() if isinstance(class_weight, Mapping) else ():
        if not (isinstance(factor, Real) and 0 <= float(factor) < np.inf):
            raise InputError(
                f"class_weight gives the class {label!r} the weight {factor!r}. Weights of "
                f"classes are finite numbers from 0 on."
            )
    # One row per class, with the weight of the whole class, stands for all of its rows.
    factors: Array = compute_class_weight(
        class_weight, classes=classes, y=classes, sample_weight=totals
    )
    with np.errstate(over="ignore"):
        _require_weight_of_each(classifier, classes, totals * factors)
    return factors


def _require_weight_of_each(classifier: str, classes: Array, totals: Array) -> None:
    require_weights(totals)
    if not totals.all():
        raise InputError(
            f"{classifier} needs rows of {'both' if len(classes) == 2 else 'all'} classes, but "
            f"there are none of positive weight of {_name_some(classes[totals == 0])}. Check "
            f"sample_weight and class_weight."
        )


def _name_some(classes: Array, most: int = 5) -> str:
    """Return the names of classes for a message."""
    named = ", ".join(repr(label) for label in classes[:most].tolist())
    return named if len(classes) <= most else f"{named} and {len(classes) - most} more"


def log_odds(shares: Array) -> Array:
    """Return the logarithm of the odds of the second class, (1,), or with more of each, (k,)."""
    if len(shares) == 2:
        return np.asarray(np.log(shares[1:] / (1.0 - shares[1:])))
    return np.asarray(np.log(shares) - np.log1p(-shares))


def prior_shift(given: Any, classes: Array, observed: Array, trained: Array) -> Array:
    """Return the shift of the log odds to the class frequencies ``given``, if any.

    ``observed`` are the classes' shares in ``y``; ``trained`` those after class weights. It is
    that of the second class, (1,), or with more than two classes the logarithm of the factor on
    the probability of each, (k,).
    """
    k = len(classes)
    if given is None:
        return np.zeros(count_latents(k))
    real, names = observed, classes.tolist()
    if not isinstance(given, str):
        values = given
        if isinstance(given, Mapping):
            values = [given[label] for label in names] if set(given) == set(names) else []
        with as_input_errors("prior_correction"):
            real = np.asarray(values, dtype=float)
        if real.shape != (k,) or not np.all(real > 0) or not np.isclose(real.sum(), 1.0):
            raise InputError(
                f"prior_correction must hold {'two' if k == 2 else k} positive class frequencies "
                f"that sum to 1, of the classes {names}; got {given!r}."
            )
    if k > 2:
        return np.asarray(np.log(real) - np.log(trained))
    # For a logistic model a change of prior is exactly a shift of the log odds.
    return log_odds(real) - log_odds(trained)
