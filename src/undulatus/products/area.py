r"""Accuracies and class areas of a whole map, estimated from a sample of it.

A map has errors, so counting its pixels gives biased areas: what is counted is what was mapped. A
sample of reference labels corrects that. With :math:`W_i` the share of the map that is mapped as
class i, and :math:`n_{ij}` samples that are mapped as i and are of class j, the share of the area
that is so is :math:`\hat p_{ij} = W_i n_{ij} / n_{i\cdot}`, and the area of class j is that of the
map times :math:`\sum_i \hat p_{ij}` (Olofsson et al. 2014, doi:10.1016/j.rse.2014.02.015, whose
equations are cited by number here).

All of this holds for a probability sample alone, one in which chance chose the places. No formula
makes one of polygons that were drawn where somebody liked to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from undulatus.errors import InputError
from undulatus.products.intervals import effective_rows, jackknife, share_interval
from undulatus.products.scores import align_columns

Array = npt.NDArray[Any]

Design = Literal["simple", "stratified", "clusters"]
"""How samples were drawn: pixels from all of the map, pixels from each mapped class, or whole
groups of pixels such as polygons."""

DESIGNS: tuple[Design, ...] = ("simple", "stratified", "clusters")

FEW_CLUSTERS = 20
"""With fewer clusters, their standard errors are themselves uncertain."""


@dataclass(frozen=True)
class SampleEstimate:
    """An estimate from a sample, its standard error, and the ends of its confidence interval.

    All are NaN where the sample does not have what the estimate needs; the last three where it
    does not say how far it varies. Where it shows no error at all there is no standard error, as
    that would be zero, but an interval.
    """

    value: float
    standard_error: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float | None]:
        """Return the numbers by name; None for NaN, which JSON does not have."""
        return {name: None if np.isnan(v) else v for name, v in asdict(self).items()}

    def text(self, digits: int = 4) -> str:
        """Return the value and its standard error, ? if that is not known; - if there is none."""
        if np.isnan(self.value):
            return "-"
        error = "?" if np.isnan(self.standard_error) else f"{self.standard_error:,.{digits}f}"
        return f"{self.value:,.{digits}f} ± {error}"

    def ends_text(self, digits: int = 4) -> str:
        """Return the ends of the interval; - where there is none."""
        if np.isnan(self.low):
            return "-"
        return f"{self.low:,.{digits}f} to {self.high:,.{digits}f}"

    def interval_text(self, digits: int = 4) -> str:
        """Return the value and its interval; - where there is none."""
        if np.isnan(self.value):
            return "-"
        ends = "" if np.isnan(self.low) else f" ({self.ends_text(digits)})"
        return f"{self.value:,.{digits}f}{ends}"


@dataclass(frozen=True, eq=False)
class AreaEstimates:
    """Accuracies and areas of a map; tuples and arrays are in the order of ``classes``."""

    classes: tuple[str, ...]
    unit: str
    """Of areas."""
    design: Design | None
    statement: str
    """What the numbers assume, and what they hold for."""
    notes: tuple[str, ...]
    """What could not be estimated, and what to mind."""
    confidence: float
    samples: Array
    """Samples in each mapped class, (k,)."""
    clusters: int | None
    mapped: Array
    """Area that is mapped as each class, (k,)."""
    proportions: Array
    """Estimated share of the area by mapped class (row) and true class (column), (k, k)."""
    accuracy: SampleEstimate
    users_accuracy: tuple[SampleEstimate, ...]
    producers_accuracy: tuple[SampleEstimate, ...]
    areas: tuple[SampleEstimate, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON, in which NaN is None."""
        shares = [[None if np.isnan(p) else p for p in row] for row in self.proportions.tolist()]
        by_class = zip(
            self.classes, self.samples.tolist(), self.mapped.tolist(), self.users_accuracy,
            self.producers_accuracy, self.areas, strict=True,
        )  # fmt: skip
        return {
            "unit": self.unit,
            "design": self.design,
            "statement": self.statement,
            "notes": list(self.notes),
            "confidence": self.confidence,
            "clusters": self.clusters,
            "proportions": shares,
            "accuracy": self.accuracy.as_dict(),
            "by_class": [
                {
                    "name": name,
                    "samples": n,
                    "mapped_area": mapped,
                    "users_accuracy": users.as_dict(),
                    "producers_accuracy": producers.as_dict(),
                    "area": area.as_dict(),
                }
                for name, n, mapped, users, producers, area in by_class
            ],
        }

    @property
    def digits(self) -> int:
        """Decimals of areas in tables: none of pixels, one of hectares."""
        return 0 if self.unit == "pixels" else 1

    def table(self) -> str:
        """Return the estimates as aligned text, with what they assume above and notes below."""
        head = ["class", "samples", f"mapped, {self.unit}", f"area, {self.unit}"]
        head += [f"{self.confidence:.4g} interval", "user's accuracy", "producer's accuracy"]
        rows = [
            [name, f"{n:,.0f}", f"{mapped:,.{self.digits}f}", area.text(self.digits),
             area.ends_text(self.digits), users.interval_text(), producers.interval_text()]
            for name, n, mapped, area, users, producers in zip(
                self.classes, self.samples, self.mapped, self.areas, self.users_accuracy,
                self.producers_accuracy, strict=True,
            )
        ]  # fmt: skip
        return "\n".join(
            [
                self.statement,
                f"accuracy of the whole map {self.accuracy.interval_text()}; intervals of "
                f"{self.confidence:.4g} confidence, after ± one standard error",
                "",
                *align_columns([head, *rows]),
                *(f"Note: {note}" for note in self.notes),
            ]
        )


def estimate_areas(
    cells: npt.ArrayLike,
    mapped: npt.ArrayLike,
    classes: Sequence[str],
    *,
    design: Design | None = None,
    unit: str = "pixels",
    group: str = "cluster",
    confidence: float = 0.95,
    notes: Sequence[str] = (),
) -> AreaEstimates:
    r"""Estimate the accuracy of a map and the area of each class from a sample.

    Parameters
    ----------
    cells : (k, k) or (m, k, k) array
        Samples by mapped class (first) and true class; of each of m clusters, where these were
        drawn.
    mapped : (k,) array
        Area that is mapped as each class.
    classes : (k,) sequence of str
        Names of the classes.
    design : {"simple", "stratified", "clusters"}, optional
        How the samples were drawn. Without it, clusters count as drawn, and if there are none,
        samples do; the statement then says that this is an assumption.
    unit : str
        Of ``mapped``.
    group : str
        What a cluster is, for the statement.
    confidence : float
        Of the intervals.
    notes : sequence of str
        What else to mind, before what is found here.

    Notes
    -----
    Every estimate is, to first order, a sum :math:`\sum_i a_i \hat r_i` of shares
    :math:`\hat r_i = n_{ij} / n_{i\cdot}`, one of each mapped class. For pixels drawn in each
    mapped class its variance is :math:`\sum_i a_i^2 \hat r_i (1 - \hat r_i) / (n_{i\cdot} - 1)`,
    which gives Eqs. 5, 6, 7 and 10. The same holds for a simple random sample that is
    post-stratified by the map. For m clusters it is :math:`\frac{m}{m-1} \sum_c z_c^2` with the
    residuals :math:`z_c = \sum_i a_i (n_{cij} - \hat r_i n_{ci\cdot}) / n_{i\cdot}` of ratio
    estimates. Where no error was seen that is zero, which says nothing: there is no standard error
    then.

    Intervals are not made from standard errors, but from the intervals :math:`(l_i, u_i)` of the
    shares (:func:`undulatus.products.intervals.share_interval`), which hold for small counts too:
    for :math:`a_i > 0` they reach down to
    :math:`\hat\theta - \sqrt{\sum_i a_i^2 (\hat r_i - l_i)^2}` and up in the same way (Zou and
    Donner 2008, doi:10.1002/sim.3095). A producer's accuracy is the ratio of two such sums; its
    ends are where the interval of a difference begins at zero. The shares of clusters have
    effective numbers of samples and are correlated as their residuals are.

    Examples
    --------
    The example of Olofsson et al. (their Table 8), in hectares of pixels of 30 m:

    >>> cells = [[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]]
    >>> mapped = 0.09 * np.array([200_000, 150_000, 3_200_000, 6_450_000])
    >>> names = ["deforestation", "forest gain", "stable forest", "stable non-forest"]
    >>> found = estimate_areas(cells, mapped, names, design="stratified", unit="ha")
    >>> print(found.areas[0].text(0), "ha")
    21,158 ± 3,142 ha
    """
    sample = _check_sample(cells, mapped, classes, design)
    weights, k = sample.weights, len(sample.weights)
    total, every = float(sample.mapped.sum()), range(k)
    # Eq. 4; a class that is not mapped has no area, whether or not it was sampled.
    p = np.where(weights[:, None] > 0.0, weights[:, None] * sample.shares, 0.0)
    true = p.sum(axis=0)  # Eq. 9

    def estimate(shares: _Shares, slopes: Array, scale: float = 1.0) -> SampleEstimate:
        value, error = scale * shares.sum(slopes), scale * shares.standard_error(slopes)
        low, high = (scale * float(np.clip(end, 0.0, 1.0)) for end in shares.interval(slopes))
        return SampleEstimate(value, error, low, high)

    def producers(j: int) -> SampleEstimate:  # Eqs. 3 and 7
        if not true[j] > 0.0:
            return SampleEstimate(np.nan, np.nan, np.nan, np.nan)
        here, value = np.arange(k) == j, float(p[j, j] / true[j])
        shares = sample.shares_of(np.full(k, j), confidence)

        def difference(ratio: float) -> Array:
            return (here - ratio) * weights

        error = shares.standard_error(difference(value) / true[j])
        if np.isnan(shares.interval(difference(0.5))).any():
            return SampleEstimate(value, error, np.nan, np.nan)
        low = _root(lambda ratio: shares.interval(difference(ratio))[0], 0.0, value)
        high = _root(lambda ratio: shares.interval(difference(ratio))[1], value, 1.0)
        # Of a class that is nowhere on the map, or alone on it, the map says it without a sample.
        ends = (low, high) if high > low else (np.nan, np.nan)
        return SampleEstimate(value, error, *ends)

    return AreaEstimates(
        classes=tuple(map(str, classes)),
        unit=unit,
        design=design,
        statement=_statement(design, group, sample.clusters),
        notes=(*notes, *_notes(sample, [str(name) for name in classes])),
        confidence=confidence,
        samples=sample.sizes,
        clusters=sample.clusters,
        mapped=sample.mapped,
        proportions=p,
        accuracy=estimate(sample.shares_of(np.arange(k), confidence), weights),  # Eqs. 1, 5
        users_accuracy=tuple(
            estimate(sample.shares_of(np.arange(k), confidence), np.eye(k)[i]) for i in every
        ),
        producers_accuracy=tuple(map(producers, every)),
        areas=tuple(  # Eqs. 10 to 13
            estimate(sample.shares_of(np.full(k, j), confidence), weights, total) for j in every
        ),
    )


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is zero, or the end that it does not pass."""
    if function(low) <= 0.0:
        return low
    return high if function(high) >= 0.0 else float(brentq(function, low, high))


# Samples


@dataclass(frozen=True)
class _Sample:
    """A checked sample: of clusters, (m, k, k), or of pixels, (k, k)."""

    cells: Array
    mapped: Array

    @property
    def weights(self) -> Array:
        """The share of each mapped class, (k,)."""
        return np.asarray(self.mapped / self.mapped.sum())

    @property
    def clusters(self) -> int | None:
        return len(self.cells) if self.cells.ndim == 3 else None

    @property
    def summed(self) -> Array:
        return np.asarray(self.cells.sum(axis=0) if self.cells.ndim == 3 else self.cells)

    @property
    def sizes(self) -> Array:
        """Samples of each mapped class, (k,)."""
        return np.asarray(self.summed.sum(axis=1))

    @property
    def shares(self) -> Array:
        """Of the true classes in each mapped class, (k, k); NaN where it has no sample."""
        sizes = self.sizes[:, None]
        return np.where(sizes > 0.0, self.summed / np.where(sizes > 0.0, sizes, 1.0), np.nan)

    @property
    def varies(self) -> Array:
        """Whether two samples or more say how far those of a mapped class vary, (k,) bool."""
        if self.cells.ndim == 2:
            return np.asarray(self.sizes > 1.0)
        return np.asarray(np.count_nonzero(self.cells.sum(axis=2), axis=0) > 1)

    def shares_of(self, columns: Array, confidence: float) -> _Shares:
        """Return the share of one true class in each mapped class, ``columns`` (k,)."""
        every = np.arange(len(columns))
        shares, sizes = self.shares[every, columns], self.sizes
        spread = shares * (1.0 - shares)
        if self.cells.ndim == 2:
            error = np.sqrt(spread / np.where(self.varies, sizes - 1.0, np.nan))
            low, high = share_interval(shares, sizes, confidence)
            return _Shares(shares, low, high, error, np.eye(len(columns)))
        own = self.cells.sum(axis=2)
        residuals = self.cells[:, every, columns] - np.nan_to_num(shares) * own
        m = len(own)
        error = np.full(len(columns), np.nan)
        n = np.full(len(columns), np.nan)
        moved = np.zeros_like(residuals)
        for i in np.flatnonzero(self.varies):
            error[i] = np.sqrt(m / (m - 1) * np.sum(residuals[:, i] ** 2)) / sizes[i]
            n[i] = effective_rows(
                residuals[:, i], own[:, i], spread[i], sizes[i], confidence, shares[i]
            )
            moved[:, i] = jackknife(residuals[:, i], own[:, i])
        length = np.sqrt(np.sum(moved**2, axis=0))
        moved /= np.where(length > 0.0, length, 1.0)
        together = moved.T @ moved
        np.fill_diagonal(together, 1.0)
        return _Shares(shares, *share_interval(shares, n, confidence), error, together)


@dataclass(frozen=True)
class _Shares:
    """Shares of one true class in each mapped class, (k,), and how far they vary."""

    values: Array
    low: Array
    high: Array
    error: Array
    correlation: Array
    """(k, k)."""

    def sum(self, slopes: Array) -> float:
        """Return Σ slopes * shares."""
        used = slopes != 0.0
        return float(slopes[used] @ self.values[used])

    def standard_error(self, slopes: Array) -> float:
        """Return that of the sum; NaN where no sample varies."""
        length = self._length(slopes, np.abs(slopes) * self.error)
        return length if length > 0.0 else np.nan

    def interval(self, slopes: Array) -> tuple[float, float]:
        """Return the ends of the interval of the sum, each by the ends of its shares there."""
        up = slopes > 0.0
        down = np.where(up, self.values - self.low, self.high - self.values)
        above = np.where(up, self.high - self.values, self.values - self.low)
        value, size = self.sum(slopes), np.abs(slopes)
        return (
            value - self._length(slopes, size * down),
            value + self._length(slopes, size * above),
        )

    def _length(self, slopes: Array, parts: Array) -> float:
        """Return the length of a sum of parts that are correlated."""
        used = slopes != 0.0
        signed = np.sign(slopes[used]) * parts[used]
        return float(
            np.sqrt(np.maximum(signed @ self.correlation[np.ix_(used, used)] @ signed, 0))
        )


def _check_sample(cells: Any, mapped: Any, classes: Any, design: Design | None) -> _Sample:
    counted, area = np.asarray(cells, np.float64), np.asarray(mapped, np.float64)
    k = len(classes)
    if design is not None and design not in DESIGNS:
        raise InputError(f"design is one of {', '.join(DESIGNS)}, but {design!r} was given.")
    if counted.ndim not in (2, 3) or counted.shape[-2:] != (k, k) or area.shape != (k,):
        raise InputError(
            f"cells has shape {counted.shape} and mapped {area.shape}, but there are {k} classes. "
            f"Give samples by mapped and true class, ({k}, {k}) or (m, {k}, {k}), and ({k},) "
            f"areas."
        )
    if not (np.isfinite(counted).all() and np.isfinite(area).all()):
        raise InputError("cells and mapped must be finite. Count what is missing as zero.")
    if (counted < 0.0).any() or (area < 0.0).any() or counted.sum() == 0.0 or area.sum() == 0.0:
        raise InputError("cells and mapped are counts: none is negative, and some are above zero.")
    if design == "clusters" and counted.ndim == 2:
        raise InputError(f"The design is 'clusters': give the cells of each, (m, {k}, {k}).")
    if counted.ndim == 3:
        counted = counted[counted.any(axis=(1, 2))]
        counted = counted.sum(axis=0) if design in ("simple", "stratified") else counted
    return _Sample(counted, area)


def _statement(design: Design | None, group: str, clusters: int | None) -> str:
    if design == "simple":
        return (
            "Sampling design, as given: pixels drawn at random from the whole map, "
            "post-stratified by mapped class (Olofsson et al. 2014)."
        )
    if design == "stratified":
        return (
            "Sampling design, as given: pixels drawn at random within each mapped class (Olofsson "
            "et al. 2014)."
        )
    if design == "clusters":
        return (
            f"Sampling design, as given: every {group} is one of {clusters:,} clusters that were "
            f"drawn at random; ratio estimates, standard errors from how clusters differ."
        )
    drawn = "samples" if clusters is None else f"{group}s"
    taken = "by itself" if clusters is None else "as one cluster"
    return (
        f"No sampling design was given (--design), so these numbers assume a probability sample: "
        f"that chance chose the {drawn}, each {taken}. Places that somebody chose are no such "
        f"sample: accuracies and areas then hold for the labelled places alone, and no standard "
        f"error tells how far the whole map is from them."
    )


def _notes(sample: _Sample, names: list[str]) -> list[str]:
    notes = []
    on_map = sample.mapped > 0.0
    for i in np.flatnonzero(on_map & (sample.sizes == 0.0)):
        notes.append(
            f"{sample.weights[i]:.1%} of the map is {names[i]}, but no sample lies there, so the "
            f"accuracy of the map, producer's accuracies and areas are not known. Label places "
            f"that are mapped as {names[i]}."
        )
    few = on_map & (sample.sizes > 0.0) & ~sample.varies
    if few.any():
        what = "sample" if sample.clusters is None else "cluster"
        listed = ", ".join(names[i] for i in np.flatnonzero(few))
        notes.append(
            f"Only one {what} is mapped as {listed}: standard errors that depend on it are not "
            f"known."
        )
    exact = on_map & sample.varies & (np.nanmax(sample.shares, axis=1, initial=0.0) == 1.0)
    if exact.any():
        listed = ", ".join(names[i] for i in np.flatnonzero(exact))
        notes.append(
            f"All samples that are mapped as {listed} are of one class, so they add nothing to "
            f"standard errors. That is no proof that the map has no other errors there: intervals "
            f"allow for what so many samples can miss."
        )
    if sample.clusters is not None and sample.clusters < FEW_CLUSTERS:
        notes.append(
            f"There are only {sample.clusters} clusters: standard errors are themselves uncertain."
        )
    return notes
