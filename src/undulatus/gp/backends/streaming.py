"""Functions of rows on a device: rows go there, and columns of results come back, in blocks.

While a block is computed, the next one is on its way to the device and the results of the last one
are on their way back. What a block needs to be looked at for (values that are not finite, rows too
far out) is computed one block ahead, so that nothing waits for it. A block that does not fit into
the memory of the device is halved.
"""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from undulatus.gp.backends.numpy import SINGLE_PHASE_LIMIT
from undulatus.gp.backends.torch import TorchBackend
from undulatus.gp.data import PHASE_LIMIT, Standardisation, unmasked

Array = npt.NDArray[Any]

FEWEST_ROWS = 1024
"""A block is not halved any more if it would have fewer rows than this."""


@dataclass(frozen=True)
class RowFunctionOnDevice:
    """A function of standardised rows that is evaluated on a device.

    ``make(xp)`` returns a function to columns, (n,) each, of ``width`` in all. ``check(first,
    raw)`` raises if something is wrong with rows as they were given, the first of which is number
    ``first``; it is called for blocks of which a value is not finite or a row longer than
    ``longest_row``. Phases of rows nearly as long are computed in double precision.
    """

    make: Callable[[TorchBackend], Callable[[Any], tuple[Any, ...]]]
    width: int
    standardisation: Standardisation
    xp: TorchBackend
    longest_row: float
    check: Callable[[int, Array], Any]

    def __call__(self, rows: Any, rows_per_block: int, first_row: int = 0) -> Any:
        """Return the columns of all rows, (n, width), in double precision.

        They are a tensor if the rows are, else an array of numpy whose columns are contiguous.
        """
        n, resident = rows.shape[0], isinstance(rows, torch.Tensor)
        output = torch.empty(
            (self.width, n), dtype=torch.float64, device=rows.device if resident else None
        )
        # Of near rows and of far ones.
        functions = [self.make(replace(self.xp, double_phases=far)) for far in (False, True)]
        done, size = 0, min(rows_per_block, n)
        while done < n:
            try:
                for end in self._blocks(rows, functions, output, slice(done, n, size), first_row):
                    done = end
            except torch.OutOfMemoryError:
                if size < 2 * FEWEST_ROWS:
                    raise
                # Only now, outside of the loop, is the memory of the blocks under way free.
                size //= 2
                torch.cuda.empty_cache()
                warnings.warn(
                    f"Blocks of {2 * size:,} rows do not fit into the memory of "
                    f"{self.xp.device}: going on with blocks of {size:,}.",
                    stacklevel=2,
                )
        return output.T if resident else output.numpy().T

    def _blocks(
        self, rows: Any, functions: list[Any], output: Any, span: slice, first_row: int
    ) -> Iterator[int]:
        """Write the results of a span of rows, step by step; yield how many rows are done."""
        starts = range(span.start, span.stop, span.step)
        blocks = [slice(i, min(i + span.step, span.stop)) for i in starts]
        checked: deque[tuple[slice, Any, Any]] = deque()
        coming: deque[tuple[slice, Any, Any]] = deque()
        resident = isinstance(rows, torch.Tensor)
        far_row = self.longest_row * SINGLE_PHASE_LIMIT / PHASE_LIMIT

        def read(block: slice) -> Any:
            return rows[block] if resident else unmasked(rows[block])

        def evaluate(block: slice, x: Any, found: tuple[Any, Any]) -> tuple[slice, Any, Any]:
            total, longest = _arrived(*found).tolist()
            if not (np.isfinite(total) and longest <= self.longest_row):
                self.check(
                    first_row + block.start, rows[block].cpu().numpy() if resident else read(block)
                )
            with self.xp.products():
                columns = torch.stack([own.double() for own in functions[longest > far_row](x)])
            return block, *((columns, None) if resident else self.xp.bring_back(columns))

        def write() -> int:
            block, columns, arrival = coming.popleft()
            output[:, block].copy_(_arrived(columns, arrival))
            return int(block.stop)

        for block, raw in self.xp.stream_rows(read, blocks):
            x = self.standardisation(raw, self.xp.dtype, self.xp)
            # The sum of the block, which is finite if all values are, and the longest row.
            longest = self.xp.row_dots(x, x).max().double().sqrt()
            found = torch.stack([raw.sum(dtype=torch.float64), longest])
            checked.append((block, x, self.xp.bring_back(found)))
            if len(checked) > 1:
                coming.append(evaluate(*checked.popleft()))
            if len(coming) > 1:
                yield write()
        while checked:
            coming.append(evaluate(*checked.popleft()))
        while coming:
            yield write()


def _arrived(tensor: Any, arrival: Any) -> Any:
    if arrival is not None:
        arrival.synchronize()
    return tensor
