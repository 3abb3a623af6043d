"""How data enter the mathematics: in blocks of rows, wherever the data are stored.

Nothing in :mod:`undulatus.gp` sees a whole data set. A :class:`Pixels` reads rows from
anything that can be sliced (an array, a memory map), standardises one block at a time, and
reduces functions of blocks in a fixed order, so that neither the number of threads nor the
size of memory changes a result.

The arrays that blocks are computed in are reused, since fresh pages take longer to get than
BLAS takes to fill them. An array from :func:`scratch` belongs to its thread and name until the
next call for that name; one from :func:`borrow` belongs to its caller until :func:`give_back`,
which any thread may call. Both are uninitialised.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.linalg  # noqa: F401  (loads SciPy's BLAS, so that `single_threaded_blas` finds it)

from undulatus._system import single_threaded_blas
from undulatus.errors import InputError, NotFiniteError, PhaseTooLargeError

Array = npt.NDArray[Any]

Result = TypeVar("Result")

Parameters = ParamSpec("Parameters")

BLOCK_BYTES = 4 * 2**20
"""Bytes of features in a block: small enough for the cache, large enough for BLAS."""

PHASE_LIMIT = 1e6
"""Largest length of x times w for which a double-precision phase is good to 1e-9 radians."""

TINY = float(np.finfo(np.float64).tiny)
"""The smallest number with all its digits."""

FARTHEST = 1e15
"""Widths from the middle at which a warp ends."""

MOST_SPARE_ARRAYS = 16
"""Arrays of one shape that are kept for :func:`borrow`."""


# Pixels and their blocks


@dataclass(frozen=True)
class Block:
    """Rows of standardised pixels (n, d), signed targets v = y - 1/2 (n,), and weights (n,).

    With more than two classes there is a latent function a class, with targets of its own:
    :meth:`against_rest` returns them.
    """

    rows: slice
    x: Array
    v: Array
    weight: Array
    codes: Array | None = None
    """Number of each pixel's class, (n,), if there are more than two."""

    def against_rest(self, latent: int) -> Block:
        """Return the block with the targets of one latent function: its class against the rest."""
        if self.codes is None:
            return self
        v = np.where(self.codes == latent, 0.5, -0.5).astype(self.x.dtype)
        return replace(self, v=v, codes=None)


class PixelSource(Protocol):
    """Labelled pixels that passes are made over, wherever they are stored."""

    @property
    def n_rows(self) -> int:
        """Number of pixels."""

    @property
    def n_features(self) -> int:
        """Number of features d."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """The working precision of blocks."""

    @property
    def n_latents(self) -> int:
        """Number of latent functions: one for two classes, otherwise one a class."""

    def total(
        self,
        function: Callable[Concatenate[Block, Parameters], Result],
        add_up: Callable[[Iterator[Result]], Result],
        *parameters: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Return ``function(block, *parameters)`` of all blocks, added up in order.

        ``function`` and ``add_up`` may run in another process, and more than once. ``add_up``
        may overwrite the results it is given; two of its own results are added by ``+``.
        """

    def against_rest(self, latent: int) -> PixelSource:
        """Return the pixels of two classes that a latent function separates."""

    def take(self, chosen: Array) -> Pixels:
        """Return the pixels of the sorted row numbers ``chosen``, in memory."""

    def gather(self) -> Pixels:
        """Return all pixels, in memory."""


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
    dtype : dtype
        The working precision of blocks.
    rows_per_block, threads : int
        The edges of blocks depend on the model, never on the threads.
    groups : (n,) int array or None
        Pixels of one group are held back from learning together.
    n_classes : int
        Number of classes.
    """

    rows: Any
    codes: Array
    weight: Array | None
    standardisation: Standardisation | None
    dtype: np.dtype[Any]
    rows_per_block: int
    threads: int = 1
    groups: Array | None = None
    n_classes: int = 2

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

    @property
    def in_memory(self) -> bool:
        """Whether single rows can be picked, rather than only slices read."""
        return isinstance(self.rows, np.ndarray)

    def block(self, rows: slice) -> Block:
        """Return the standardised pixels of ``rows``."""
        return self._read(rows, rows)

    def pick(self, chosen: Array) -> Block:
        """Return the standardised pixels of the row numbers ``chosen``, in that order."""
        return self._read(chosen, slice(0, len(chosen)))

    def _read(self, chosen: slice | Array, rows: slice) -> Block:
        x = np.asarray(self.rows[chosen])
        if self.standardisation is not None:
            x = self.standardisation(x, self.dtype)
        codes = self.codes[chosen]
        v = np.where(codes, 0.5, -0.5).astype(self.dtype)
        if self.weight is None:
            weight = np.ones(len(x), dtype=self.dtype)
        else:
            weight = np.asarray(self.weight[chosen], dtype=self.dtype)
        return Block(rows, x, v, weight, codes if self.n_latents > 1 else None)

    def map(self, function: Callable[[Block], Result]) -> Iterator[Result]:
        """Yield ``function(block)`` of all blocks, in order."""
        return map_blocks(
            lambda rows: function(self.block(rows)), self.n_rows, self.rows_per_block, self.threads
        )

    def total(
        self,
        function: Callable[Concatenate[Block, Parameters], Result],
        add_up: Callable[[Iterator[Result]], Result],
        *parameters: Parameters.args,
        **named: Parameters.kwargs,
    ) -> Result:
        """Return ``function(block, *parameters)`` of all blocks, added up in order."""
        return add_up(self.map(lambda block: function(block, *parameters, **named)))

    def take(self, chosen: Array) -> Pixels:
        """Return the pixels of the sorted row numbers ``chosen``, in memory."""
        return replace(
            self,
            rows=read_rows(self.rows, chosen, self.rows_per_block),
            codes=self.codes[chosen],
            weight=None if self.weight is None else self.weight[chosen],
            groups=None if self.groups is None else self.groups[chosen],
        )

    def against_rest(self, latent: int) -> Pixels:
        """Return the same pixels with two classes: that of a latent function, and the rest."""
        if self.n_latents == 1:
            return self
        return replace(self, codes=self.codes == latent, n_classes=2)

    def gather(self) -> Pixels:
        """Return all pixels, in memory."""
        return self if self.in_memory else self.take(np.arange(self.n_rows))

    def standardised(self, dtype: npt.DTypeLike) -> Pixels:
        """Return the same pixels in memory, standardised once and for all, in ``dtype``."""
        dtype = np.dtype(dtype)
        rows = np.empty((self.n_rows, self.n_features), dtype=dtype)
        pixels = replace(self, dtype=dtype)

        def fill(block: Block) -> None:
            rows[block.rows] = block.x

        for _ in pixels.map(fill):
            pass
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

    def __call__(self, rows: Array, dtype: npt.DTypeLike) -> Array:
        """Return standardised rows in ``dtype``, each feature contiguous.

        Rows that are equal as numbers give the same result, whatever type they are stored in.
        """
        # Subtract in double, then round: a centre of 300 K in single is wrong by up to 15 µK.
        x = np.array(rows, dtype=np.float64, order="F")
        # Values that overflow become infinite, and `require_lengths` refuses them.
        with np.errstate(over="ignore"):
            if self.warp is not None:
                x = self.warp(x, dtype)
                x -= self.centre.astype(x.dtype)
                x /= self.scale.astype(x.dtype)
                return x
            x -= self.centre
            x /= self.scale
            return x.astype(dtype, copy=False)

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

    def __call__(self, x: Array, dtype: npt.DTypeLike) -> Array:
        """Return warped rows in ``dtype``; ``x`` is in double precision and is overwritten."""
        x -= self.middle
        x /= self.width
        # Beyond this single precision overflows, and nothing differs any more.
        np.clip(x, -FARTHEST, FARTHEST, out=x)
        warped = x.astype(dtype, copy=False)
        return np.asarray(np.arcsinh(warped, out=warped))


def count_latents(n_classes: int) -> int:
    """Return the number of latent functions: one for two classes, otherwise one a class."""
    return 1 if n_classes == 2 else n_classes


# Reading and mapping


def block_rows(n_features: int, itemsize: int) -> int:
    """Return the number of rows in a block of features; it depends on the model alone."""
    rows = BLOCK_BYTES // (n_features * itemsize)
    return int(min(max(rows // 256, 1), 32)) * 256


def map_blocks(
    function: Callable[[slice], Result],
    n_rows: int,
    rows_per_block: int,
    threads: int,
    pool: ThreadPoolExecutor | None = None,
) -> Iterator[Result]:
    """Yield ``function(rows)`` of each block, in order, computed on ``threads`` threads.

    At most two blocks per thread are in progress, so memory stays bounded. The threads are
    those of ``pool``; without one, a pool is made for this call.
    """
    edges = range(0, n_rows, rows_per_block)
    blocks = (slice(start, min(start + rows_per_block, n_rows)) for start in edges)
    with single_threaded_blas():
        if threads == 1 or len(edges) < 2:
            yield from map(function, blocks)
            return
        with ThreadPoolExecutor(threads) if pool is None else nullcontext(pool) as pool:
            pending: deque[Future[Result]] = deque()
            try:
                for block in blocks:
                    pending.append(pool.submit(function, block))
                    if len(pending) > 2 * threads:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()


def read_rows(rows: Any, chosen: Array, rows_per_block: int) -> Array:
    """Return the sorted row numbers ``chosen`` of ``rows``, read in slices unless in memory."""
    if isinstance(rows, np.ndarray):
        return np.asarray(rows[chosen])
    parts = [np.empty((0, rows.shape[1]), dtype=rows.dtype)]
    for start in range(0, rows.shape[0], rows_per_block):
        first, last = np.searchsorted(chosen, [start, start + rows_per_block])
        if last > first:
            block = unmasked(rows[start : start + rows_per_block])
            parts.append(block[chosen[first:last] - start])
    return np.concatenate(parts)


# Checks


def unmasked(values: Any, name: str = "X") -> Array:
    """Return values as an array; raise if some are masked, which would count as numbers there."""
    if np.ma.is_masked(values):
        raise InputError(
            f"{name} has {np.count_nonzero(np.ma.getmaskarray(values)):,} of its "
            f"{np.size(values):,} values masked.\nDrop these rows, or fill the values "
            f"(numpy.ma.filled) with something that is true of them."
        )
    return np.asarray(values)


def require_finite(rows: Array, columns: Callable[[int], str], first_row: int = 0) -> None:
    """Raise, naming row and column, if any value is NaN or infinite."""
    # A finite sum means finite values. If the sum overflows, look at each value.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum(dtype=np.float64)):
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
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", x, x)))


# Reused arrays

_thread = threading.local()

_recyclers: list[None] = []

_spare_arrays: dict[tuple[int, ...], deque[Array]] = defaultdict(
    lambda: deque(maxlen=MOST_SPARE_ARRAYS)
)


def scratch(name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Return this thread's array called ``name``; it still holds its last values."""
    buffers = _thread.__dict__
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    buffer = buffers.get(name)
    if buffer is None or len(buffer) < size:
        buffer = buffers[name] = np.empty(size, dtype=np.uint8)
    return buffer[:size].view(dtype).reshape(shape)


def borrow(shape: tuple[int, ...]) -> Array:
    """Return a double-precision array, one that was given back if there is one."""
    try:
        return _spare_arrays[shape].pop()
    except IndexError:
        return np.empty(shape)


def give_back(array: Array) -> None:
    """Let another caller borrow an array."""
    if _recyclers:
        _spare_arrays[array.shape].append(array)


@contextmanager
def recycling() -> Iterator[None]:
    """Keep arrays that are given back inside this context; outside of it they are freed."""
    _recyclers.append(None)
    try:
        yield
    finally:
        _recyclers.pop()
        if not _recyclers:
            _spare_arrays.clear()
