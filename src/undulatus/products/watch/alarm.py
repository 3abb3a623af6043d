"""A command of the user's that is told of each item that was set aside."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_SECONDS = 60.0
"""For which a command may run, for nothing is mapped meanwhile."""

LONGEST_REASON = 10_000
"""Characters of a reason that are passed on; the file has all of it."""


@dataclass(frozen=True)
class Alarm:
    """A program and its arguments, which is run without a shell.

    It gets two more arguments, the absolute paths of the item and of the file with the reason, and
    in its environment ``UNDULATUS_ITEM``, ``UNDULATUS_REASON`` and ``UNDULATUS_REASON_FILE``: what
    names and reasons hold is never taken for a command or an option.

    Attributes
    ----------
    command : sequence of str
        The program and its first arguments.
    warn : callable
        Is told if it fails, which stops nothing.
    """

    command: Sequence[str]
    warn: Callable[[str], None]

    def __call__(self, item: Path, reason: str, file: Path) -> None:
        """Run the command, for a minute at most."""
        paths = [str(item.absolute()), str(file.absolute())]
        told = reason[:LONGEST_REASON].replace("\0", "")
        names = ("UNDULATUS_ITEM", "UNDULATUS_REASON_FILE", "UNDULATUS_REASON")
        more = dict(zip(names, [*paths, told.encode("utf-8", "backslashreplace").decode()],
                        strict=True))  # fmt: skip
        try:
            ended = subprocess.run(
                [*self.command, *paths],
                env=os.environ | more,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=MOST_SECONDS,
                check=False,
            )
        except (OSError, ValueError, subprocess.TimeoutExpired) as error:
            self.warn(f"--on-set-aside {self.command[0]}: {error}.")
            return
        if ended.returncode:
            lines = ended.stdout.decode("utf-8", "replace").strip().splitlines()
            said = f": {lines[-1]}" if lines else ""
            self.warn(
                f"--on-set-aside {self.command[0]} ended with status {ended.returncode}{said}."
            )
