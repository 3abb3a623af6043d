"""Models that are made of models: the tensors of each part under its name and a slash."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from undulatus.storage.kinds import Misfit, Tensors


def join(parts: Mapping[str, Tensors]) -> Tensors:
    """Return the tensors of all parts.

    >>> join({"day": {"scale": 1}, "night": {"scale": 2}})
    {'day/scale': 1, 'night/scale': 2}
    """
    return {f"{name}/{key}": t for name, own in parts.items() for key, t in own.items()}


def split(tensors: Tensors, names: Iterable[str]) -> dict[str, Tensors]:
    """Return the tensors of each part by its name, which undoes :func:`join`."""
    parts: dict[str, Tensors] = {name: {} for name in names}
    for key, tensor in tensors.items():
        owners = [name for name in parts if key.startswith(f"{name}/")]
        if not owners:
            raise Misfit(f"holds a tensor that belongs to no part of the model: {key!r}.")
        # Of "day" and "day/haze", both of which the tensors of the second begin with.
        owner = max(owners, key=len)
        parts[owner][key.removeprefix(f"{owner}/")] = tensor
    return parts
