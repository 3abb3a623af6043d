"""Where arrays are computed: numpy on the processor, or torch on a device.

The mathematics of a block is written once, with an ``xp`` that has numpy's names: a
:class:`~.numpy.NumpyBackend` or a :class:`~.torch.TorchBackend`. Besides these names each has the
few operations that are worth writing for the library: features, Gram matrices, latent moments,
the moments of the weights, reading rows, and repeating a step. :func:`make_backend` chooses; only
the modules of this folder know which library an array is of.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from undulatus.errors import InputError
from undulatus.gp.backends.numpy import NumpyBackend

Array = npt.NDArray[Any]
"""An array of numpy or, in the functions of a block, a tensor of torch."""

Backend = Any
"""A NumpyBackend or a TorchBackend."""

HOST = NumpyBackend(np.dtype(np.float64))
"""numpy in double precision."""


def make_backend(dtype: npt.DTypeLike, device: str | None = None, tf32: bool = False) -> Backend:
    """Return where to compute in a precision: on a device of torch, or by numpy if it is None.

    With ``tf32``, products of matrices on a device keep ten binary digits of each factor.
    """
    if device is None:
        return NumpyBackend(np.dtype(dtype))
    return _torch_module().TorchBackend(np.dtype(dtype), device, tf32)


def _torch_module() -> Any:
    try:
        import undulatus.gp.backends.torch as module
    except ImportError:
        raise InputError(
            "device needs torch, which is not installed. Install it with "
            'pip install "undulatus[gpu]", or leave device unset to compute on the processor.'
        ) from None
    return module


def find_device(device: Any, X: Any = None) -> str | None:
    """Return where to compute: the name of torch's device, or None for numpy.

    ``device`` is what the user asked for; without it, arrays on a device are followed there.
    """
    if device is not None and str(device) != "cpu":
        return str(_torch_module().find_device(device))
    tensor = as_tensor(X)
    return None if tensor is None or device is not None else str(tensor.device)


def as_tensor(values: Any) -> Any:
    """Return an array on a device, of any library, as a tensor; None for anything else.

    Tensors of torch are taken wherever they are, arrays of other libraries (CuPy, JAX) if they
    are not in the processor's memory; none is copied.
    """
    if isinstance(values, np.ndarray) or not hasattr(values, "__dlpack_device__"):
        return None
    if is_tensor(values):
        return values.detach()
    kind, _ = values.__dlpack_device__()
    # 1 and 3 are the processor's memory, ordinary and pinned.
    return None if int(kind) in (1, 3) else _torch_module().from_dlpack(values)


def is_tensor(values: Any) -> bool:
    """Whether this is a tensor of torch."""
    return type(values).__module__.partition(".")[0] == "torch" and hasattr(values, "detach")


def is_array(values: Any) -> bool:
    """Whether this is an array of numpy or a tensor of torch: single rows of it can be picked."""
    return isinstance(values, np.ndarray) or is_tensor(values)


def backend_of(values: Any) -> Backend:
    """Return where to compute with values in double precision: where they are."""
    return make_backend(np.float64, str(values.device)) if is_tensor(values) else HOST


def on_host(values: Any) -> Any:
    """Return an array on a device, of any library, as one of numpy; anything else as it is."""
    tensor = as_tensor(values)
    return values if tensor is None else to_host(tensor)


def same_library(result: Any, given: Any) -> Any:
    """Return a tensor as an array of the library that ``given`` is of; an array as it is."""
    if is_tensor(given) or not is_tensor(result):
        return result
    return given.__array_namespace__().from_dlpack(result.contiguous())


def to_host(values: Any) -> Any:
    """Return tensors, also those in dataclasses and tuples, as arrays or numbers; others as is."""
    if is_dataclass(values) and not isinstance(values, type):
        return replace(
            values, **{own.name: to_host(getattr(values, own.name)) for own in fields(values)}
        )
    if isinstance(values, tuple):
        return tuple(map(to_host, values))
    if not is_tensor(values):
        return values
    host = values.detach().cpu().numpy()
    return host if host.ndim else host.item()
