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

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import norm, t

from undulatus.errors import InputError
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
    does not say how far it varies.
    """

    value: float
    standard_error: float
    low: float
    high: float

    def as_dict(self) -> dict[str, float | None]:
        """Return the numbers by name; None for NaN, which JSON does not have."""
        return {name: None if np.isnan(v) else v for name, v in asdict(self).items()}

    def text(self, digits: int = 4) -> str:
        """Return the value and its standard error; - where there is none."""
        if np.isnan(self.value):
            return "-"
        error = "?" if np.isnan(self.standard_error) else f"{self.standard_error:,.{digits}f}"
        return f"{self.value:,.{digits}f} ± {error}"


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
             _interval_text(area, self.digits), users.text(), producers.text()]
            for name, n, mapped, area, users, producers in zip(
                self.classes, self.samples, self.mapped, self.areas, self.users_accuracy,
                self.producers_accuracy, strict=True,
            )
        ]  # fmt: skip
        return "\n".join(
            [
                self.statement,
                f"accuracy of the whole map {self.accuracy.text()} (± one standard error)",
                "",
                *align_columns([head, *rows]),
                *(f"Note: {note}" for note in self.notes),
            ]
        )


def _interval_text(estimate: SampleEstimate, digits: int) -> str:
    if np.isnan(estimate.low):
        return "-"
    return f"{estimate.low:,.{digits}f} to {estimate.high:,.{digits}f}"


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
    Every estimate is, to first order, a sum :math:`\sum_{ij} a_{ij} \hat r_{ij}` of the shares
    :math:`\hat r_{ij} = n_{ij} / n_{i\cdot}`, so that its variance follows from :math:`a`. For
    pixels drawn in each mapped class it is

    .. math:: \sum_i \frac{1}{n_{i\cdot} - 1}
        \Bigl[\sum_j a_{ij}^2 \hat r_{ij} - \bigl(\sum_j a_{ij} \hat r_{ij}\bigr)^2\Bigr],

    which gives Eqs. 5, 6, 7 and 10. The same holds for a simple random sample that is
    post-stratified by the map. For m clusters it is :math:`\frac{m}{m-1} \sum_c z_c^2` with the
    residuals :math:`z_c = \sum_{ij} a_{ij} (n_{cij} - \hat r_{ij} n_{ci\cdot}) / n_{i\cdot}` of
    ratio estimates, and Student's t with m - 1 degrees of freedom makes the intervals.

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
    shares, k = sample.shares, len(sample.weights)
    # Eq. 4; a class that is not mapped has no area, whether or not it was sampled.
    p = np.where(sample.weights[:, None] > 0.0, sample.weights[:, None] * shares, 0.0)
    true = p.sum(axis=0)  # Eq. 9
    right = np.diag(p)
    producers_value = np.full(k, np.nan)
    np.divide(right, true, out=producers_value, where=true > 0.0)
    total = float(sample.mapped.sum())

    def estimate(value: float, slopes: Array, scale: float = 1.0) -> SampleEstimate:
        # Within [0, 1], or the whole area.
        error = scale * float(np.sqrt(sample.variance(slopes))) if np.isfinite(value) else np.nan
        half = sample.quantile(confidence) * error
        low, high = max(scale * value - half, 0.0), min(scale * value + half, scale)
        ends = (np.nan, np.nan) if np.isnan(half) else (low, high)
        return SampleEstimate(scale * float(value), error, *ends)

    def cells_of(rows: Any, columns: Any, values: Any) -> Array:
        slopes = np.zeros((k, k))
        slopes[rows, columns] = values
        return slopes

    def producers(j: int) -> SampleEstimate:  # Eqs. 3 and 7
        if np.isnan(producers_value[j]):
            return SampleEstimate(np.nan, np.nan, np.nan, np.nan)
        slopes = cells_of(slice(None), j, -producers_value[j] * sample.weights / true[j])
        slopes[j, j] += sample.weights[j] / true[j]
        return estimate(producers_value[j], slopes)

    every = range(k)
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
        accuracy=estimate(right.sum(), cells_of(every, every, sample.weights)),  # Eqs. 1, 5
        users_accuracy=tuple(estimate(shares[i, i], cells_of(i, i, 1.0)) for i in every),
        producers_accuracy=tuple(map(producers, every)),
        areas=tuple(  # Eqs. 10 to 13
            estimate(true[j], cells_of(slice(None), j, sample.weights), total) for j in every
        ),
    )


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

    def variance(self, slopes: Array) -> float:
        """Return the variance of Σ slopes * shares; NaN where too few samples say it."""
        used = slopes.any(axis=1)
        if not self.varies[used].all():
            return np.nan
        shares, sizes = self.shares[used], self.sizes[used]
        a = slopes[used]
        if self.cells.ndim == 2:
            spread = np.sum(a**2 * shares, axis=1) - np.sum(a * shares, axis=1) ** 2
            return float(np.sum(np.maximum(spread, 0.0) / (sizes - 1.0)))
        own = self.cells[:, used]
        residual = own - shares * own.sum(axis=2, keepdims=True)
        z = np.einsum("cij,ij->c", residual, a / sizes[:, None])
        m = len(self.cells)
        return float(m / (m - 1) * np.sum(z**2))

    def quantile(self, confidence: float) -> float:
        """Return how many standard errors half an interval has."""
        tail = 0.5 + 0.5 * confidence
        if self.clusters is None:
            return float(norm.ppf(tail))
        return float(t.ppf(tail, self.clusters - 1)) if self.clusters > 1 else np.nan


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
            f"standard errors. That is no proof that the map has no other errors there."
        )
    if sample.clusters is not None and sample.clusters < FEW_CLUSTERS:
        notes.append(
            f"There are only {sample.clusters} clusters: standard errors are themselves uncertain."
        )
    return notes
