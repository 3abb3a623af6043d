"""Arrays of numpy and of torch under the same names, and where they are.

The mathematics of a block is written once. :func:`namespace` returns numpy itself for numpy's
arrays, and torch's functions under numpy's names for its tensors; the other functions here do what
has no common name. A :class:`Place` says where arrays are computed, and in which precision.

The arrays that blocks are computed in are reused, since fresh pages take longer to get than
BLAS takes to fill them. An array from :func:`scratch` belongs to its thread and name until the
next call for that name; one from :func:`borrow` belongs to its caller until :func:`give_back`,
which any thread may call. Both are uninitialised. (torch reuses memory of a card by itself.)
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from itertools import cycle, pairwise
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.special

from undulatus.errors import InputError

Array = npt.NDArray[Any]
"""An array of numpy or, in the functions of a block, a tensor of torch."""

Value = TypeVar("Value")

MOST_SPARE_ARRAYS = 16
"""Arrays of one shape that are kept for :func:`borrow`."""

GRAM_ROWS = 4096
"""Rows whose products are added up in single precision on a card; sums of these are in double."""

MOST_STREAMS = 16
"""Things that are computed at a time on a card, such as factors of matrices: one of them takes
hardly a hundredth of it."""

STRIP_COLUMNS = 128
"""Columns of a triangle that are multiplied at a time on a card, by as many rows as they have: as
wide as the tiles that it computes products in."""


# One set of names


def is_tensor(values: Any) -> bool:
    """Whether this is a tensor of torch, which is imported if there can be any."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def namespace(array: Any) -> Any:
    """Return the functions for an array, under numpy's names: numpy itself, or torch's."""
    return _torch_functions() if is_tensor(array) else np


@lru_cache(maxsize=1)
def _torch_functions() -> _TorchFunctions:
    return _TorchFunctions(load_torch())


class _TorchFunctions:
    """torch's functions, with numpy's names and meaning where these differ."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def maximum(self, a: Any, b: Any) -> Any:
        return self._torch.maximum(a, b) if is_tensor(b) else self._torch.clamp(a, min=float(b))

    def minimum(self, a: Any, b: Any) -> Any:
        return self._torch.minimum(a, b) if is_tensor(b) else self._torch.clamp(a, max=float(b))

    def sqrt(self, a: Any) -> Any:
        return self._torch.sqrt(a) if is_tensor(a) else np.sqrt(a)

    def std(self, a: Any, axis: int) -> Any:
        return self._torch.std(a, dim=axis, correction=0)

    def flatnonzero(self, a: Any) -> Any:
        return self._torch.nonzero(a.ravel())[:, 0]


def load_torch() -> Any:
    """Return torch, or raise an error that says how to install it."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "device needs torch, which is not installed. Install it with "
            'pip install "undulatus[gpu]", or leave device unset to compute on the processor.'
        ) from None
    return torch


def expit(x: Array) -> Array:
    """Return 1 / (1 + exp(-x))."""
    return namespace(x).sigmoid(x) if is_tensor(x) else scipy.special.expit(x)


def log_expit(x: Array) -> Array:
    """Return log(1 / (1 + exp(-x)))."""
    if is_tensor(x):
        return load_torch().nn.functional.logsigmoid(x)
    return scipy.special.log_expit(x)


def log_sum_exp(x: Array, axis: int, *, keepdims: bool = False) -> Array:
    """Return the logarithm of the sum of exponentials along an axis."""
    if is_tensor(x):
        return namespace(x).logsumexp(x, dim=axis, keepdim=keepdims)
    total: Array = np.logaddexp.reduce(x, axis=axis, keepdims=keepdims)  # type: ignore[call-overload]
    return total


def is_single(array: Array) -> bool:
    """Whether an array is in single precision."""
    return array.itemsize == 4 if isinstance(array, np.ndarray) else array.element_size() == 4


def rounding(array: Array) -> float:
    """Return the distance from 1 to the next number in the precision of an array."""
    return float(np.finfo(np.float32 if is_single(array) else np.float64).eps)


def cast(array: Any, dtype: npt.DTypeLike) -> Any:
    """Return an array in the precision of numpy's ``dtype``."""
    if not is_tensor(array):
        return array.astype(dtype, copy=False)
    torch = load_torch()
    return array.to(torch.float32 if np.dtype(dtype) == np.float32 else torch.float64)


def double_copy(values: Any, *, lasts: bool = True) -> Any:
    """Return a copy of rows in double precision; of numpy, each column is contiguous.

    Standardising goes by column, and is faster so. A copy that need not last is this thread's
    scratch: the next call overwrites it.
    """
    if is_tensor(values):
        return values.to(load_torch().float64, copy=True).contiguous()
    if lasts:
        return np.array(values, dtype=np.float64, order="F")
    copy = scratch("double copy", values.shape[::-1], np.float64).T
    np.copyto(copy, values, casting="unsafe")
    return copy


def double(array: Any) -> Any:
    """Return an array in double precision."""
    return array.double() if is_tensor(array) else np.asarray(array, dtype=np.float64)


def like(values: Any, array: Array) -> Array:
    """Return values where ``array`` is, in its precision."""
    if is_tensor(array):
        return load_torch().as_tensor(values, dtype=array.dtype, device=array.device)
    return np.asarray(values).astype(array.dtype, copy=False)


def index_of(numbers: Any) -> Any:
    """Return whole numbers in a type that arrays beside them can be indexed by."""
    return numbers.long() if is_tensor(numbers) else numbers


def empty_like(name: str, shape: tuple[int, ...], array: Any) -> Any:
    """Return an uninitialised array where ``array`` is, in its precision: scratch, if numpy's."""
    if is_tensor(array):
        return array.new_empty(shape)
    return scratch(name, shape, array.dtype)


def to_host(values: Any) -> Any:
    """Return tensors, also those in dataclasses and tuples, as arrays or numbers; others as is."""
    if is_tensor(values):
        host = values.detach().cpu().numpy()
        return host if host.ndim else host.item()
    if is_dataclass(values) and not isinstance(values, type):
        return replace(
            values, **{own.name: to_host(getattr(values, own.name)) for own in fields(values)}
        )
    if isinstance(values, tuple):
        return tuple(map(to_host, values))
    return values


# Products


def row_dots(a: Array, b: Array) -> Array:
    """Return the product of each row of one array with that of the other, (n,) or (M, n)."""
    if is_tensor(a):
        return load_torch().linalg.vecdot(a, b)
    return np.einsum("ij,ij->i", a, b)


def dot(a: Array, b: Array) -> Any:
    """Return the sum of products over rows: a number, or a tensor of one a member."""
    return (a * b).sum(-1) if is_tensor(a) else float(np.dot(a, b))


def weighted_gram(z: Array, weights: Array) -> Array:
    """Return Zᵗ diag(weights) Z, (k, k), in double precision; in a borrowed array, if numpy's.

    Of tensors there may be several, (M, n, k).
    """
    # Square roots on both sides make the product symmetric, which halves the work for BLAS.
    scaled = empty_like("scaled", tuple(z.shape), z)
    xp = namespace(z)
    xp.multiply(z, xp.sqrt(weights)[..., None], out=scaled)
    if is_tensor(z):
        return _gram_of_tensor(scaled)
    product = scratch("product", (z.shape[1], z.shape[1]), z.dtype)
    np.matmul(scaled.T, scaled, out=product)
    gram = borrow(product.shape)
    gram[...] = product
    return gram


def _gram_of_tensor(scaled: Any) -> Any:
    """Return zᵗz in double precision, the sum of the products of a few thousand rows each."""
    *members, n, k = scaled.shape
    if n <= GRAM_ROWS:
        return double(scaled.mT @ scaled)
    whole = n - n % GRAM_ROWS
    total = scaled.new_zeros((*members, k, k), dtype=load_torch().float64)
    parts = [scaled[..., :whole, :].reshape(*members, -1, GRAM_ROWS, k)]
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


def _strip_edges(columns: int) -> list[int]:
    """Return the edges of strips of columns; the last ones, which have most rows, are full."""
    return [0, *range(columns % STRIP_COLUMNS or STRIP_COLUMNS, columns + 1, STRIP_COLUMNS)]


def mean_and_variance(z: Any, mean: Any, root: Any) -> tuple[Any, Any]:
    """Return the products of tensors zᵗm (n,) and |Rᵗz|² (n,).

    R (k, r) is upper triangular: entries below the diagonal that ends in its last row and column
    are zero. The fastest if columns of z (n, k) are contiguous.
    """
    torch, (k, r) = load_torch(), root.shape
    both = torch.cat([root.T, mean[None]])
    product = z.new_empty((r + 1, len(z)))
    for first, last in pairwise(_strip_edges(r + 1)):
        # Rounded up, since cards read aligned numbers several at a time; the rest are zeros.
        rows = k if last > r else min(k, -(-(last + k - r) // 16) * 16)
        torch.matmul(both[first:last, :rows], z.T[:rows], out=product[first:last])
    return product[r], torch.linalg.vector_norm(product[:r], dim=0) ** 2


# Where arrays are


@dataclass(frozen=True)
class Place:
    """Where blocks are computed and in which precision.

    ``device`` is None for numpy, or the name of a device of torch; with ``tf32``, products of
    matrices there keep ten binary digits of each factor.
    """

    dtype: np.dtype[Any]
    device: str | None = None
    tf32: bool = False

    @property
    def on_card(self) -> bool:
        """Whether blocks are tensors."""
        return self.device is not None

    def array(self, values: Any) -> Any:
        """Return values here, in this precision."""
        if self.device is None:
            return np.asarray(values).astype(self.dtype, copy=False)
        return self.move(values).to(self.torch_dtype)

    def fortran(self, values: Any) -> Any:
        """Return a matrix here; of numpy's, its columns are contiguous."""
        if self.device is None:
            return np.asarray(values).astype(self.dtype, order="F", copy=False)
        return self.array(np.ascontiguousarray(values))

    def move(self, values: Any) -> Any:
        """Return values here, in their own precision."""
        if self.device is None:
            return np.asarray(values)
        torch = load_torch()
        if isinstance(values, np.ndarray):
            values = for_torch(values)
        return torch.as_tensor(values, device=self.device)

    def ones(self, n: int) -> Any:
        """Return ones (n,)."""
        return self.array(np.ones(n))

    @property
    def torch_dtype(self) -> Any:
        """Torch's name of the precision."""
        torch = load_torch()
        return torch.float32 if self.dtype == np.float32 else torch.float64

    def products(self) -> AbstractContextManager[None]:
        """Return a context in which matrices are multiplied with the digits of this place."""
        return nullcontext() if self.device is None else _tf32(self.tf32)

    @property
    def spare_bytes(self) -> float:
        """Bytes of memory that can still be taken on the device."""
        from undulatus._system import available_memory

        if self.device is None or not self.device.startswith("cuda"):
            return available_memory()
        cuda = load_torch().cuda
        free, _ = cuda.mem_get_info(self.device)
        return float(free + cuda.memory_reserved(self.device) - cuda.memory_allocated(self.device))


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    matmul = load_torch().backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def all_digits() -> AbstractContextManager[None]:
    """Return a context in which matrices on cards are multiplied in full single precision."""
    return _tf32(False)


def for_torch(values: Array) -> Array:
    """Return an array as torch takes it: native byte order, no unsigned types but bytes."""
    dtype = values.dtype.newbyteorder("=")
    if dtype.kind == "u" and dtype.itemsize > 1:
        dtype = np.dtype(np.int64)
    if dtype.kind == "f" and dtype.itemsize not in (4, 8):
        dtype = np.dtype(np.float64 if dtype.itemsize > 8 else np.float32)
    array = np.ascontiguousarray(values, dtype=dtype)
    # torch warns of arrays that it could write to but must not.
    return array if array.flags.writeable else array.copy()


def find_device(device: Any, X: Any = None) -> str | None:
    """Return where to compute: the name of torch's device, or None for numpy.

    ``device`` is what the user asked for; without it, arrays on a device are followed there.
    """
    if device is not None and str(device) != "cpu":
        torch = load_torch()
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
        return str(found)
    tensor = as_tensor(X)
    return None if tensor is None or device is not None else str(tensor.device)


def as_tensor(values: Any) -> Any:
    """Return an array on a device, of any library, as a tensor; None for anything else.

    Tensors of torch are taken wherever they are, arrays of other libraries (CuPy, JAX) if they
    are not in the processor's memory; none is copied.
    """
    if is_tensor(values):
        return values.detach()
    if isinstance(values, np.ndarray) or not hasattr(values, "__dlpack_device__"):
        return None
    kind, _ = values.__dlpack_device__()
    # 1 and 3 are the processor's memory, ordinary and pinned.
    return None if int(kind) in (1, 3) else load_torch().from_dlpack(values)


def on_host(values: Any) -> Any:
    """Return an array on a device, of any library, as one of numpy; anything else as it is."""
    tensor = as_tensor(values)
    return values if tensor is None else to_host(tensor)


def same_library(result: Any, given: Any) -> Any:
    """Return a tensor as an array of the library that ``given`` is of."""
    if is_tensor(given):
        return result
    return given.__array_namespace__().from_dlpack(result.contiguous())


def pinned_empty(tensor: Any) -> Any:
    """Return memory for a copy that the card writes while the processor goes on."""
    return load_torch().empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def in_streams(
    function: Callable[[Any], Value], values: Iterable[Any], streams: Sequence[Any]
) -> list[Value]:
    """Return a function of each tensor; on a card, each is computed in another stream."""
    if not streams:
        return list(map(function, values))
    cuda, results = load_torch().cuda, []
    here = cuda.current_stream()
    for value, stream in zip(values, cycle(streams), strict=False):
        stream.wait_stream(here)
        with cuda.stream(stream):
            results.append(function(value))
    for stream in streams:
        here.wait_stream(stream)
    return results


def new_streams(tensor: Any, most: int) -> list[Any]:
    """Return streams of a card to compute so many things at once in; none elsewhere."""
    if not tensor.is_cuda or most == 1:
        return []
    cuda = load_torch().cuda
    return [cuda.Stream(tensor.device) for _ in range(min(most, MOST_STREAMS))]


class Recording:
    """A function of tensors that stay where they are, recorded on a card and played again.

    To record it, the function is called: ``state`` are the tensors that it changes, which are put
    back after that. Elsewhere than on a card it is called each time.
    """

    def __init__(self, function: Callable[[], None], state: Sequence[Any]) -> None:
        self._play = function
        if not state[0].is_cuda:
            return
        cuda = load_torch().cuda
        before = [tensor.clone() for tensor in state]
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            # What is loaded at the first call cannot be recorded.
            function()
        cuda.current_stream().wait_stream(aside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph, capture_error_mode="thread_local"):
            function()
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
        self._play = graph.replay

    def __call__(self) -> None:
        """Play the function."""
        self._play()


# Phases that need double precision


_far: ContextVar[bool | None] = ContextVar("far", default=None)


@contextmanager
def phases_in_double(needed: bool) -> Iterator[None]:
    """Compute phases of tensors in double precision inside this context, or do not.

    Outside of it every block is looked at, which on a card waits until the block is there.
    """
    token = _far.set(needed)
    try:
        yield
    finally:
        _far.reset(token)


def double_phases() -> bool | None:
    """Whether phases of tensors are computed in double precision; None if rows decide."""
    return _far.get()


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
    if _recyclers and isinstance(array, np.ndarray):
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
