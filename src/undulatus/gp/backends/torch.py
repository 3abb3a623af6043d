"""Blocks computed by torch, on a GPU or wherever torch computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle, pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

from undulatus.errors import InputError
from undulatus.gp.backends.numpy import SINGLE_PHASE_LIMIT

Array = npt.NDArray[Any]

GRAM_ROWS = 4096
"""Rows whose products are added up in single precision on a GPU; sums of these are in double."""

MOST_STREAMS = 16
"""Matrices that are factorised at a time on a GPU: one takes hardly a hundredth of it."""

STRIP_COLUMNS = 128
"""Columns of a triangle that are multiplied at a time on a GPU, by as many rows as they have: as
wide as the tiles that it computes products in."""

_DTYPES = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


@dataclass(frozen=True)
class TorchBackend:
    """torch, on one device and in one precision. Names that are not here are torch's.

    ``double_phases`` says whether phases are computed in double precision; if it is None the rows
    of each block decide, which on a GPU waits until the block is there.
    """

    dtype: np.dtype[Any]
    device: str
    tf32: bool = False
    double_phases: bool | None = None
    on_device: ClassVar[bool] = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(torch, name)

    # numpy's names, where torch means something else

    def maximum(self, a: Any, b: Any) -> Any:
        """Return the larger of both; ``b`` may be a number."""
        return torch.maximum(a, b) if isinstance(b, torch.Tensor) else torch.clamp(a, min=float(b))

    def minimum(self, a: Any, b: Any) -> Any:
        """Return the smaller of both; ``b`` may be a number."""
        return torch.minimum(a, b) if isinstance(b, torch.Tensor) else torch.clamp(a, max=float(b))

    def std(self, a: Any, axis: int) -> Any:
        """Return the standard deviation along an axis, of n and not n - 1 values."""
        return torch.std(a, dim=axis, correction=0)

    def flatnonzero(self, a: Any) -> Any:
        """Return the numbers of the entries that are not zero."""
        return torch.nonzero(a.ravel())[:, 0]

    def astype(self, a: Any, dtype: Any) -> Any:
        """Return values here, in a type of torch or a precision of numpy."""
        return self.move(a).to(
            dtype if isinstance(dtype, torch.dtype) else _DTYPES[np.dtype(dtype)]
        )

    expit = staticmethod(torch.sigmoid)
    log_expit = staticmethod(torch.nn.functional.logsigmoid)

    def logsumexp(self, x: Any, axis: int, keepdims: bool = False) -> Any:
        """Return the logarithm of the sum of exponentials along an axis."""
        return torch.logsumexp(x, dim=axis, keepdim=keepdims)

    # Arrays here

    def array(self, values: Any) -> Any:
        """Return values here, in this precision."""
        return self.astype(values, self.dtype)

    def move(self, values: Any) -> Any:
        """Return values here, in their own precision."""
        if not isinstance(values, torch.Tensor):
            values = _for_torch(values)
        return torch.as_tensor(values, device=self.device)

    def double(self, values: Any) -> Any:
        """Return values here, in double precision."""
        return self.move(values).to(torch.float64)

    def own_double(self, rows: Any, *, lasts: bool) -> Any:
        """Return a copy of rows in double precision."""
        return rows.to(torch.float64, copy=True).contiguous()

    def products(self) -> AbstractContextManager[None]:
        """Return a context in which matrices are multiplied with the digits asked for."""
        return _tf32(self.tf32)

    @property
    def spare_bytes(self) -> float:
        """Bytes of memory that can still be taken on the device."""
        from undulatus._system import available_memory

        if not self.device.startswith("cuda"):
            return available_memory()
        free, _ = torch.cuda.mem_get_info(self.device)
        reserved, used = (
            torch.cuda.memory_reserved(self.device),
            torch.cuda.memory_allocated(self.device),
        )
        return float(free + reserved - used)

    # Features

    def phases(
        self, x: Any, frequencies: Any, delays: Any = None, *, by_column: bool = False
    ) -> Any:
        """Return x Wᵗ (- delays), (n, D) or of several estimators (M, n, D)."""
        w, double = self.move(frequencies), self.double_phases
        if double is None:
            longest = float(torch.linalg.vector_norm(w, dim=-1).max())
            double = float((x * x).sum(-1).max()) > (SINGLE_PHASE_LIMIT / max(longest, 1e-12)) ** 2
        with _tf32(False):
            if x.dtype == torch.float32 and double:
                exact = _outer(x.double(), w.double(), by_column)
                phase = torch.remainder(exact, 2.0 * np.pi).to(x.dtype)
            else:
                phase = _outer(x, w.to(x.dtype), by_column)
        return phase if delays is None else phase - self.move(delays).to(x.dtype)

    def cosines_and_sines(self, phase: Any) -> Any:
        """Return [cos P, sin P], (..., n, 2D), in the order of the phases."""
        *rows, d = phase.shape
        by_column = phase.ndim == 2 and not phase.is_contiguous()
        out = phase.new_empty((2 * d, *rows)).T if by_column else phase.new_empty((*rows, 2 * d))
        torch.cos(phase, out=out[..., :d])
        torch.sin(phase, out=out[..., d:])
        return out

    def cosines(self, phase: Any) -> Any:
        """Overwrite phases by their cosines."""
        return torch.cos(phase, out=phase)

    def waves(self, x: Any, frequencies: Any, *, by_column: bool = False) -> Any:
        """Return [cos P, sin P], (n, 2D) or of several estimators (M, n, 2D)."""
        return self.cosines_and_sines(self.phases(x, frequencies, by_column=by_column))

    # Products

    def row_dots(self, a: Any, b: Any) -> Any:
        """Return the product of each row of one array with that of the other, (..., n)."""
        return torch.linalg.vecdot(a, b)

    def multiply(self, z: Any, matrix: Any) -> Any:
        """Return z M, (..., n, k)."""
        return z @ matrix

    def gram(self, z: Any, weights: Any) -> Any:
        """Return Zᵗ diag(weights) Z in double precision, (k, k) or (M, k, k).

        The sum of the products of a few thousand rows each.
        """
        scaled = z * torch.sqrt(weights)[..., None].to(z.dtype)
        *estimators, n, k = scaled.shape
        if n <= GRAM_ROWS:
            return (scaled.mT @ scaled).double()
        whole = n - n % GRAM_ROWS
        total = scaled.new_zeros((*estimators, k, k), dtype=torch.float64)
        parts = [scaled[..., :whole, :].reshape(*estimators, -1, GRAM_ROWS, k)]
        if n > whole:
            parts.append(scaled[..., None, whole:, :])
        strips = list(pairwise(_strip_edges(k)))
        for part in parts:
            for first, last in strips:
                # Of a symmetric product, the columns up to the diagonal do.
                strip = part[..., first:last].mT @ part[..., :last]
                total[..., first:last, :last] += strip.sum(dim=-3, dtype=total.dtype)
        for first, last in strips:
            total[..., :first, first:last] = total[..., first:last, :first].mT
        return total

    def moments(self, z: Any, mean: Any, root: Any, *, overwrite: bool = False) -> tuple[Any, Any]:
        """Return zᵗm (n,) and |Rᵗz|² (n,); the fastest if columns of z (n, k) are contiguous.

        R (k, r) is upper triangular: entries below the diagonal that ends in its last row and
        column are zero.
        """
        k, r = root.shape
        both = torch.cat([root.T, mean[None]])
        product = z.new_empty((r + 1, len(z)))
        for first, last in pairwise(_strip_edges(r + 1)):
            # Rounded up, since GPUs read aligned numbers several at a time; the rest are zeros.
            rows = k if last > r else min(k, -(-(last + k - r) // 16) * 16)
            torch.matmul(both[first:last, :rows], z.T[:rows], out=product[first:last])
        return product[r], torch.linalg.vector_norm(product[:r], dim=0) ** 2

    @cached_property
    def _streams(self) -> list[Any]:
        """Streams of a GPU to factorise matrices in; none elsewhere."""
        if not self.device.startswith("cuda"):
            return []
        return [torch.cuda.Stream(self.device) for _ in range(MOST_STREAMS)]

    def weight_moments(self, precisions: Any, projected: Any, jitter: Any) -> tuple[Any, Any]:
        """Return means A⁻¹b (M, C, k) and covariances A⁻¹ (M, C, k, k).

        ``jitter`` (1,) is the share of the mean diagonal that is added; a matrix that cannot be
        factorised gives NaN. Nothing waits for the device. There, each matrix is factorised in a
        stream of its own.
        """
        *estimators, k = projected.shape
        precision = precisions.reshape(-1, k, k)
        shift = jitter * precision.diagonal(0, -2, -1).mean(-1, keepdim=True)
        precision.diagonal(0, -2, -1).add_(shift)
        unit = torch.eye(k, dtype=precision.dtype, device=precision.device)

        def invert(matrix: Any) -> Any:
            factor, failed = torch.linalg.cholesky_ex(matrix)
            factor = torch.where(failed > 0, torch.nan, factor)
            return torch.linalg.solve_triangular(factor, unit, upper=False)

        roots = torch.stack(_in_streams(invert, precision, self._streams[: len(precision)]))
        covariance = roots.mT @ roots
        means = (covariance @ projected.reshape(-1, k, 1))[..., 0]
        return means.reshape(*estimators, k), covariance.reshape(*estimators, k, k)

    # Steps that are repeated

    def repeated(self, function: Callable[[], None], state: Sequence[Any]) -> Callable[[], None]:
        """Return a function of tensors that stay where they are, recorded to be played on a GPU.

        To record it, the function is called: ``state`` are the tensors that it changes, which are
        put back after that. Elsewhere than on a GPU it is called each time.
        """
        if not state[0].is_cuda:
            return function
        before = [tensor.clone() for tensor in state]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # What is loaded at the first call cannot be recorded.
            function()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            function()
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
        return graph.replay

    # Rows on their way to the device, and results on their way back

    def stream_rows(
        self, read: Callable[[slice], Any], blocks: Sequence[slice]
    ) -> Iterator[tuple[slice, Any]]:
        """Yield blocks of rows, and these rows as tensors on the device.

        The rows of the next block are on their way there while the last one is worked on: they
        go through memory that a GPU reads by itself.
        """
        if not self.device.startswith("cuda") or isinstance(read(slice(0, 0)), torch.Tensor):
            for block in blocks:
                yield block, self.move(read(block))
            return
        stream, waiting = torch.cuda.Stream(self.device), deque[tuple[slice, Any, Any]]()

        def hand_out() -> tuple[slice, Any]:
            block, tensor, arrived = waiting.popleft()
            here = torch.cuda.current_stream(self.device)
            here.wait_event(arrived)
            tensor.record_stream(here)
            return block, tensor

        for block in blocks:
            # torch keeps this memory from reuse until the GPU has read it.
            staged = torch.from_numpy(_for_torch(read(block))).pin_memory()
            with torch.cuda.stream(stream):
                tensor = staged.to(self.device, non_blocking=True)
                waiting.append((block, tensor, stream.record_event()))
            if len(waiting) > 1:
                yield hand_out()
        while waiting:
            yield hand_out()

    def bring_back(self, tensor: Any) -> tuple[Any, Any]:
        """Start to copy a tensor into memory; return the copy, and what to wait for, if any."""
        if not tensor.is_cuda:
            return tensor, None
        there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        there.copy_(tensor, non_blocking=True)
        return there, torch.cuda.current_stream(tensor.device).record_event()


def _outer(x: Any, w: Any, by_column: bool) -> Any:
    """Return x wᵗ, whose columns are contiguous if ``by_column``."""
    return (w @ x.mT).mT if by_column else x @ w.mT


def _strip_edges(columns: int) -> list[int]:
    """Return the edges of strips of columns; the last ones, which have most rows, are full."""
    return [0, *range(columns % STRIP_COLUMNS or STRIP_COLUMNS, columns + 1, STRIP_COLUMNS)]


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def _in_streams(
    function: Callable[[Any], Any], values: Iterable[Any], streams: Sequence[Any]
) -> list[Any]:
    """Return a function of each tensor; on a GPU, each is computed in another stream."""
    if len(streams) < 2:
        return list(map(function, values))
    results = []
    here = torch.cuda.current_stream()
    for value, stream in zip(values, cycle(streams), strict=False):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            results.append(function(value))
    for stream in streams:
        here.wait_stream(stream)
    return results


def _for_torch(values: Array) -> Array:
    """Return an array as torch takes it: native byte order, no unsigned types but bytes."""
    values = np.asarray(values)
    dtype = values.dtype.newbyteorder("=")
    if dtype.kind == "u" and dtype.itemsize > 1:
        dtype = np.dtype(np.int64)
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        dtype = np.dtype(np.float64 if dtype.itemsize > 8 else np.float32)
    array = np.ascontiguousarray(values, dtype=dtype)
    # torch warns of arrays that it could write to but must not.
    return array if array.flags.writeable else array.copy()


def find_device(device: Any) -> Any:
    """Return torch's device of that name, or raise an error that says what there is."""
    try:
        found = torch.device(str(device))
    except RuntimeError as error:
        raise InputError(
            f'device={device!r} is no device of torch, such as "cuda" or "cuda:1": {error}'
        ) from None
    if found.type == "cuda" and not torch.cuda.is_available():
        raise InputError(
            f"device={device!r} needs a CUDA device, but torch finds none (torch "
            f"{torch.__version__}, built for CUDA {torch.version.cuda}). Leave device unset "
            f"to compute on the processor."
        )
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device={device!r}: torch finds {torch.cuda.device_count()} CUDA device(s), "
            f"numbered from 0."
        )
    return found


from_dlpack = torch.from_dlpack
