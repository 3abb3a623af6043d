"""Functions of rows on a device: rows go there, and columns of results come back, in blocks.

While a block is computed, the next one is on its way to the card and the results of the last one
are on their way back. What a block needs to be looked at for (values that are not finite, rows too
far out) is computed one block ahead, so that nothing waits for it. A block that does not fit into
the memory of the card is halved.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from undulatus.gp.arrays import (
    Array,
    Place,
    is_tensor,
    load_torch,
    phases_in_double,
    pinned_empty,
    row_dots,
)
from undulatus.gp.blocks import Standardisation, rows_on_device

FEWEST_ROWS = 1024
"""A block is not halved any more if it would have fewer rows than this."""


@dataclass(frozen=True)
class RowFunctionOnDevice:
    """A function of standardised rows that is evaluated on a device.

    ``function`` returns columns, (n,) each, of ``width`` in all. ``check(first, raw)`` raises if
    something is wrong with rows as they were given, the first of which is number ``first``; it is
    called for blocks of which a value is not finite or a row longer than ``longest_row``. Phases
    of rows longer than ``far_row`` are computed in double precision.
    """

    function: Callable[[Any], tuple[Any, ...]]
    width: int
    standardisation: Standardisation
    place: Place
    longest_row: float
    far_row: float
    check: Callable[[int, Array], Any]

    def __call__(self, rows: Any, rows_per_block: int, first_row: int = 0) -> Any:
        """Return the columns of all rows, (n, width), in double precision.

        They are a tensor if the rows are, else an array of numpy whose columns are contiguous.
        """
        n, torch = rows.shape[0], load_torch()
        there = rows.device if is_tensor(rows) else None
        output = torch.empty((self.width, n), dtype=torch.float64, device=there)
        done, size = 0, min(rows_per_block, n)
        while done < n:
            try:
                for end in self._go_through(rows, output, done, size, first_row):
                    done = end
            except torch.OutOfMemoryError:
                if size < 2 * FEWEST_ROWS:
                    raise
                # Only now, outside of the loop, is the memory of the blocks under way free.
                size //= 2
                torch.cuda.empty_cache()
                warnings.warn(
                    f"Blocks of {2 * size:,} rows do not fit into the memory of "
                    f"{self.place.device}: going on with blocks of {size:,}.",
                    stacklevel=2,
                )
        return output.T if is_tensor(rows) else output.numpy().T

    def _go_through(
        self, rows: Any, output: Any, start: int, size: int, first_row: int
    ) -> Iterator[int]:
        """Write the results of rows from ``start`` on; yield how many rows are done."""
        blocks = [
            slice(i, min(i + size, rows.shape[0])) for i in range(start, rows.shape[0], size)
        ]
        looked_at: deque[tuple[slice, Any, Any]] = deque()
        coming: deque[tuple[slice, Any, Any]] = deque()
        for block, raw in rows_on_device(rows, blocks, self.place):
            x = self.standardisation(raw, self.place.dtype)
            looked_at.append((block, x, _bring_back(self._look(raw, x))))
            if len(looked_at) > 1:
                coming.append(self._evaluate(rows, first_row, *looked_at.popleft()))
            if len(coming) > 1:
                yield _write(output, *coming.popleft())
        while looked_at:
            coming.append(self._evaluate(rows, first_row, *looked_at.popleft()))
        while coming:
            yield _write(output, *coming.popleft())

    def _look(self, raw: Any, x: Any) -> Any:
        """Return the sum of the block, which is finite if all values are, and the longest row."""
        torch = load_torch()
        return torch.stack([raw.sum(dtype=torch.float64), row_dots(x, x).max().double().sqrt()])

    def _evaluate(
        self, rows: Any, first_row: int, block: slice, x: Any, looked: tuple[Any, Any]
    ) -> tuple[slice, Any, Any]:
        total, longest = _arrived(looked).tolist()
        if not (np.isfinite(total) and longest <= self.longest_row):
            raw = rows[block]
            self.check(first_row + block.start, raw.cpu().numpy() if is_tensor(raw) else raw)
        with phases_in_double(longest > self.far_row), self.place.products():
            columns = load_torch().stack([own.double() for own in self.function(x)])
        if is_tensor(rows):
            return block, columns, None
        return block, *_bring_back(columns)


def _bring_back(tensor: Any) -> tuple[Any, Any]:
    """Start to copy a tensor into memory; return the copy, and what to wait for if anything."""
    if not tensor.is_cuda:
        return tensor, None
    there = pinned_empty(tensor)
    there.copy_(tensor, non_blocking=True)
    return there, load_torch().cuda.current_stream(tensor.device).record_event()


def _arrived(copy: tuple[Any, Any]) -> Any:
    tensor, arrival = copy
    if arrival is not None:
        arrival.synchronize()
    return tensor


def _write(output: Any, block: slice, columns: Any, arrival: Any) -> int:
    """Write a block's columns to the output, (width, n) both; return where the block ends."""
    output[:, block].copy_(_arrived((columns, arrival)))
    return block.stop
