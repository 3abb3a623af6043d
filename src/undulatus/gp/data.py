"""How data enter the mathematics: in blocks of rows, wherever the data are stored.

Nothing in :mod:`undulatus.gp` sees a whole data set. A :class:`Pixels` reads rows from
anything that can be sliced (an array, a memory map), standardises one block at a time, and
reduces functions of blocks in a fixed order, so that neither the number of threads nor the
size of memory changes a result. Data enter the mathematics only through blocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError, NotFiniteError, PhaseTooLargeError
from undulatus.gp.backends import HOST, Array, Backend, backend_of, is_array, make_backend, to_host

if TYPE_CHECKING:
    from undulatus.gp.dask_data import ChunkedPixels

Result = TypeVar("Result")

BLOCK_BYTES = 16 * 2**20
"""Bytes of features in a block: large enough that threads on many cores, which take turns between
the operations on blocks, seldom wait for each other."""

DEVICE_BLOCK_BYTES = 256 * 2**20
"""Bytes of features in a block on a GPU: enough work for all of it at once."""

DEVICE_PREDICTION_BYTES, DEVICE_PREDICTION_SHARE = 2 * 2**30, 1.0 / 16.0
"""The same in predictions, which depend on blocks by rounding only; at most this share of the
memory that is free."""

RESIDENT_SHARE = 0.25
"""Pixels that take no more of a GPU's free memory are moved there once and for all."""

PHASE_LIMIT = 1e6
"""Largest length of x times w for which a double-precision phase is good to 1e-9 radians."""

TINY = float(np.finfo(np.float64).tiny)
"""The smallest number with all its digits."""

FARTHEST = 1e15
"""Widths from the middle at which a warp ends."""


# Pixels and their blocks


@dataclass(frozen=True)
class Block:
    """Rows of standardised pixels (n, d), the number of each one's class, and weights (n,)."""

    rows: slice
    x: Array
    codes: Array
    weight: Array
    xp: Backend
    n_latents: int

    def targets(self, latent: int) -> Array:
        """Return the signed targets v = y - 1/2 of a latent function, (n,).

        Of two classes, y is 1 in the second; of more, in the latent function's own.
        """
        own = self.codes if self.n_latents == 1 else self.codes == latent
        return self.xp.astype(own, self.x.dtype) - 0.5


PixelSource: TypeAlias = "Pixels | ChunkedPixels"
"""Labelled pixels that passes are made over, in memory or in dask chunks."""


@dataclass(frozen=True)
class Pixels:
    """Labelled pixels, read in blocks.

    Attributes
    ----------
    rows : (n, d) anything with ``shape``, ``dtype`` and slicing
        Features as the user passed them.
    codes : (n,) bool or integer array
        Number of each pixel's class; bool for two classes.
    weight : (n,) array or None
        Weight of each pixel; None means 1 for all.
    standardisation : Standardisation or None
        Applied to each block as it is read; None if the rows are standardised already.
    xp : Backend
        Where blocks are computed, and in which precision.
    rows_per_block, threads : int
        The edges of blocks depend on the model, never on the threads.
    groups : (n,) int array or None
        Pixels of one group are used for validation together.
    n_classes : int
        Number of classes.
    """

    rows: Any
    codes: Array
    weight: Array | None
    standardisation: Standardisation | None
    xp: Backend
    rows_per_block: int
    threads: int = 1
    groups: Array | None = None
    n_classes: int = 2

    @property
    def dtype(self) -> np.dtype[Any]:
        """The working precision of blocks."""
        return self.xp.dtype

    @property
    def n_rows(self) -> int:
        """Number of pixels."""
        return int(self.rows.shape[0])

    @property
    def n_latents(self) -> int:
        """Number of latent functions: one for two classes, otherwise one a class."""
        return count_latents(self.n_classes)

    @property
    def n_features(self) -> int:
        """Number of features d."""
        return int(self.rows.shape[1])

    def on(self, device: str, tf32: bool, n_frequencies: int) -> Pixels:
        """Return the same pixels, computed on a device; they are moved there if they fit."""
        xp = make_backend(self.dtype, device, tf32)
        size = device_block_rows(n_frequencies, self.dtype.itemsize)
        pixels = replace(self, xp=xp, rows_per_block=size)
        needed = self.n_rows * self.n_features * self.dtype.itemsize
        fits = needed <= RESIDENT_SHARE * xp.spare_bytes
        return pixels.standardised(self.dtype) if fits else pixels

    def _read(self, rows: slice) -> Any:
        return unmasked(self.rows[rows])

    def block(self, chosen: slice | Array, raw: Any = None) -> Block:
        """Return the standardised pixels of a slice, or of row numbers in their order.

        Numbers may be those of several estimators, (M, n), if the rows are standardised already.
        ``raw`` are the features as they were read, if they have been.
        """
        xp = self.xp
        if isinstance(chosen, slice):
            rows, there = chosen, chosen
            raw = self._read(rows) if raw is None else raw
        else:
            rows, there = slice(0, chosen.shape[-1]), xp.move(chosen)
            raw = self.rows[backend_of(self.rows).move(chosen)]
        x = xp.move(raw)
        if self.standardisation is not None:
            x = self.standardisation(x, self.xp.dtype, xp)
        codes, weight = self._there
        own = xp.ones_like(x[..., 0]) if weight is None else xp.array(weight[there])
        return Block(rows, x, codes[there], own, xp, self.n_latents)

    @cached_property
    def _there(self) -> tuple[Any, Any]:
        """Classes and weights where blocks are computed."""
        weight = None if self.weight is None else self.xp.move(self.weight)
        return self.xp.move(self.codes), weight

    def map(self, function: Callable[..., Result], *parameters: Any) -> Iterator[Result]:
        """Yield ``function(block, *parameters)`` of all blocks, in order."""
        if self.xp.on_device:
            return self._map_on_device(function, *parameters)
        return map_blocks(
            lambda rows: function(self.block(rows), *parameters),
            self.n_rows,
            self.rows_per_block,
            self.threads,
        )

    def _map_on_device(
        self, function: Callable[..., Result], *parameters: Any
    ) -> Iterator[Result]:
        edges = range(0, self.n_rows, self.rows_per_block)
        blocks = [slice(i, min(i + self.rows_per_block, self.n_rows)) for i in edges]
        with self.xp.products():
            for rows, raw in self.xp.stream_rows(self._read, blocks):
                yield function(self.block(rows, raw), *parameters)

    def total(self, function: Callable[..., list[Array]], *parameters: Any) -> list[Array]:
        """Return the sum over all blocks, in order, of the arrays ``function`` returns of each.

        It is called with a block and the parameters, maybe in another process and more than once.
        """
        parts = self.map(function, *parameters)
        totals = next(parts)
        for part in parts:
            for total, own in zip(totals, part, strict=True):
                total += own
        return [to_host(total) for total in totals]

    def take(self, chosen: Array) -> Pixels:
        """Return the pixels of the sorted row numbers ``chosen``, in memory."""
        return replace(
            self,
            rows=read_rows(self.rows, chosen, self.rows_per_block),
            codes=self.codes[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            groups=None if self.groups is None else self.groups[chosen],
        )

    def gather(self) -> Pixels:
        """Return all pixels, in memory."""
        return self if is_array(self.rows) else self.take(np.arange(self.n_rows))

    def standardised(self, dtype: npt.DTypeLike) -> Pixels:
        """Return the same pixels in memory, standardised once and for all, in ``dtype``."""
        dtype = np.dtype(dtype)
        pixels = replace(self, xp=replace(self.xp, dtype=dtype))
        blocks = pixels.map(lambda block: block)
        if self.xp.on_device:
            rows = self.xp.concatenate([block.x for block in blocks])
        else:
            rows = np.empty((self.n_rows, self.n_features), dtype=dtype)
            for block in blocks:
                rows[block.rows] = block.x
        return replace(pixels, rows=rows, standardisation=None)

    def keep_weight_of(self, chosen: Array) -> Pixels:
        """Return the same pixels, with weight zero for all but the row numbers ``chosen``."""
        weight = np.zeros(self.n_rows)
        weight[chosen] = 1.0 if self.weight is None else self.weight[chosen]
        return replace(self, weight=weight)


@dataclass(frozen=True)
class Standardisation:
    r"""How features enter a model: :math:`(x - c) / s`, in double precision, (d,) each.

    With a warp, x is :math:`\operatorname{asinh}((x_0 - a) / b)` of the raw feature
    :math:`x_0` first: linear around the middle a, logarithmic beyond the width b, so that a few
    extreme values do not push all others together.
    """

    centre: Array
    scale: Array
    warp: Warp | None = None

    def __call__(self, rows: Array, dtype: npt.DTypeLike, xp: Backend = HOST) -> Array:
        """Return standardised rows in ``dtype``, each feature contiguous.

        Rows that are equal as numbers give the same result, whatever type they are stored in.
        """
        # Subtract in double, then round: a centre of 300 K in single is wrong by up to 15 µK.
        x = xp.own_double(rows, lasts=np.dtype(dtype) == np.float64)
        # Values that overflow become infinite, and `require_lengths` refuses them.
        with np.errstate(over="ignore"):
            if self.warp is None:
                x -= xp.double(self.centre)
                x /= xp.double(self.scale)
                return xp.astype(x, dtype)
            x = self.warp(x, dtype, xp)
            x -= xp.astype(xp.double(self.centre), x.dtype)
            x /= xp.astype(xp.double(self.scale), x.dtype)
            return x

    def linear_at(self, point: Array) -> tuple[Array, Array]:
        """Return the centre and scale of the affine map that touches this one at a raw row."""
        if self.warp is None:
            return self.centre, self.scale
        scale = self.scale * np.hypot(point - self.warp.middle, self.warp.width)
        return point - scale * self(point[None], np.float64)[0], scale


@dataclass(frozen=True)
class Warp:
    """The map asinh((x - middle) / width) of each feature, (d,) each."""

    middle: Array
    width: Array

    def __call__(self, x: Array, dtype: npt.DTypeLike, xp: Backend = HOST) -> Array:
        """Return warped rows in ``dtype``; ``x`` is in double precision and is overwritten."""
        x -= xp.double(self.middle)
        x /= xp.double(self.width)
        # Beyond this single precision overflows, and nothing differs any more.
        xp.clip(x, -FARTHEST, FARTHEST, out=x)
        warped = xp.astype(x, dtype)
        return xp.arcsinh(warped, out=warped)


def count_latents(n_classes: int) -> int:
    """Return the number of latent functions: one for two classes, otherwise one a class."""
    return 1 if n_classes == 2 else n_classes


# Reading and mapping


def block_rows(n_features: int, itemsize: int) -> int:
    """Return the number of rows in a block of features; it depends on the model alone."""
    rows = BLOCK_BYTES // (n_features * itemsize)
    return int(min(max(rows // 256, 1), 64)) * 256


def device_block_rows(n_frequencies: int, itemsize: int) -> int:
    """Return the number of rows in a block on a GPU; it depends on the model alone."""
    return max(DEVICE_BLOCK_BYTES // (2 * n_frequencies * itemsize), 256)


def device_prediction_rows(n_frequencies: int, xp: Backend) -> int:
    """Return the number of rows in a block of predictions on a GPU."""
    most = min(DEVICE_PREDICTION_BYTES, DEVICE_PREDICTION_SHARE * xp.spare_bytes)
    rows = int(most / (2 * n_frequencies * xp.dtype.itemsize))
    # GPUs read aligned numbers several at a time.
    return max(rows - rows % 1024, 256)


def map_blocks(
    function: Callable[[slice], Result],
    n_rows: int,
    rows_per_block: int,
    threads: int,
) -> Iterator[Result]:
    """Yield ``function(rows)`` of each block, in order, computed on ``threads`` threads.

    At most two blocks per thread are in progress, so memory stays bounded.
    """
    edges = range(0, n_rows, rows_per_block)
    blocks = (slice(start, min(start + rows_per_block, n_rows)) for start in edges)
    with single_threaded_blas():
        if threads == 1 or len(edges) < 2:
            yield from map(function, blocks)
            return
        pool, pending = ThreadPoolExecutor(threads), deque[Future[Result]]()
        try:
            for block in blocks:
                pending.append(pool.submit(function, block))
                if len(pending) > 2 * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def read_rows(rows: Any, chosen: Array, rows_per_block: int) -> Array:
    """Return the sorted row numbers ``chosen`` of ``rows``, read in slices unless in memory."""
    if is_array(rows):
        return unmasked(rows[backend_of(rows).move(chosen)])
    parts = [np.empty((0, rows.shape[1]), dtype=rows.dtype)]
    for start in range(0, rows.shape[0], rows_per_block):
        first, last = np.searchsorted(chosen, [start, start + rows_per_block])
        if last > first:
            block = unmasked(rows[start : start + rows_per_block])
            parts.append(block[chosen[first:last] - start])
    return np.concatenate(parts)


# Checks


def unmasked(values: Any, name: str = "X") -> Any:
    """Return an array, or a tensor as it is; raise if values are masked, which would count."""
    if type(values) is np.ndarray:
        return values
    if np.ma.is_masked(values):
        raise InputError(
            f"{name} has {np.count_nonzero(np.ma.getmaskarray(values)):,} of its "
            f"{np.size(values):,} values masked.\nDrop these rows, or fill the values "
            f"(numpy.ma.filled) with something that is true of them."
        )
    return backend_of(values).move(values)


def require_finite(rows: Array, columns: Callable[[int], str], first_row: int = 0) -> None:
    """Raise, naming row and column, if any value is NaN or infinite."""
    # A finite sum means finite values. If the sum overflows, look at each value. In the rows' own
    # single precision it takes half the time.
    dtype = None if rows.dtype == np.float32 else np.float64
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum(dtype=dtype)):
            return
    bad = ~np.isfinite(rows)
    if bad.any():
        row, column = (int(i) for i in np.argwhere(bad)[0])
        value = "NaN" if np.isnan(rows[row, column]) else "infinity or a value too large"
        raise NotFiniteError(value, first_row + row, columns(column))


def require_phases(
    x: Array, frequencies: Array, columns: Callable[[int], str], first_row: int = 0
) -> None:
    """Raise, naming row and column, if a phase of standardised ``x`` has lost its digits."""
    require_lengths(x, longest_row(frequencies), columns, first_row)


def longest_row(frequencies: Array) -> float:
    """Return the length of a standardised row beyond which a phase has lost its digits."""
    return PHASE_LIMIT / max(float(np.linalg.norm(frequencies, axis=1).max()), TINY)


def require_lengths(
    x: Array, limit: float, columns: Callable[[int], str], first_row: int = 0
) -> None:
    """Raise, naming row and column, if a standardised row is longer than ``limit``."""
    length = row_lengths(x)
    worst = int(np.argmax(length))
    if not length[worst] <= limit:
        column = int(np.argmax(np.abs(x[worst])))
        raise PhaseTooLargeError(first_row + worst, columns(column), float(x[worst, column]))


def row_lengths(x: Array) -> Array:
    """Return the length of each row, (n,); infinite if it overflows."""
    with np.errstate(over="ignore"):
        return np.sqrt(HOST.row_dots(x, x))
