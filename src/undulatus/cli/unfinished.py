"""The state of an unfinished ``undulatus fit``, kept beside its output until the model is saved.

A fit has a checkpoint for each classifier: for each regime, and each estimator of an ensemble.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from undulatus.cli.console import require_new, say


@dataclass(frozen=True)
class UnfinishedFit:
    """The checkpoints of a fit to ``output``."""

    output: Path

    @property
    def checkpoint(self) -> Path:
        """The checkpoint, to whose name ``.REGIME`` and ``.NUMBER`` are added."""
        return self.output.with_name(f".{self.output.name}.checkpoint")

    def files(self) -> list[Path]:
        """Return the checkpoints that there are."""
        name = glob.escape(self.checkpoint.name)
        return [path for end in ("", ".*") for path in self.checkpoint.parent.glob(f"{name}{end}")]

    def describe(self) -> list[str]:
        """Return a line for each checkpoint: its regime, its estimator, its iterations."""
        parts = {
            path: path.name.removeprefix(self.checkpoint.name).split(".")[1:]
            for path in self.files()
        }

        def order(path: Path) -> list[tuple[str, int]]:
            # Estimator 2 comes before estimator 10.
            return [("", int(word)) if word.isdigit() else (word, 0) for word in parts[path]]

        return [_named(parts[path]) + _progress(path) for path in sorted(parts, key=order)]

    def remove(self) -> None:
        """Remove all checkpoints, and those that a kill left under their temporary names."""
        unfinished = f".{glob.escape(self.checkpoint.stem)}.*unfinished-*"
        for path in (*self.files(), *self.checkpoint.parent.glob(unfinished)):
            path.unlink()


def _named(parts: list[str]) -> str:
    """Return the regime and estimator at the end of a file's name in words."""
    words = [f"estimator {word}" if word.isdigit() else word for word in parts]
    return ", ".join(words) + ": " if words else ""


def _progress(path: Path) -> str:
    from undulatus.errors import ModelFileError
    from undulatus.estimators.checkpoint import count_iterations

    try:
        count = count_iterations(path)
    except ModelFileError:
        return f"{path} cannot be read"
    return f"{count} iteration{'' if count == 1 else 's'}"


@contextmanager
def fitting(output: Path, *, overwrite: bool, resume: bool, restart: bool) -> Iterator[Path]:
    """Give the path of the checkpoints of a fit to ``output``; they are removed at the end.

    Other processes cannot fit to ``output`` meanwhile. Checkpoints of an earlier fit are an error
    unless they are to be used or discarded. After an error or an interrupt they stay.
    """
    from undulatus._files import as_scene_errors, locked, require_folder
    from undulatus.errors import InputError

    require_folder(output)
    with ExitStack() as held:
        with as_scene_errors(output):
            held.enter_context(locked(output))
        require_new(output, overwrite=overwrite)
        unfinished = UnfinishedFit(output)
        if restart:
            unfinished.remove()
        found = unfinished.describe()
        if found and not resume:
            raise InputError(
                f"An unfinished fit lies beside {output}.\n{_listed(found)}"
                "Give --resume to continue it, or --restart to discard it."
            )
        if resume:
            for line in found or ["nothing, from the beginning"]:
                say(f"resuming: {line}")
        try:
            yield unfinished.checkpoint
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(_how_to_resume(unfinished.describe(), restart))
            raise
        unfinished.remove()


def _listed(lines: list[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)


def _how_to_resume(found: list[str], restart: bool) -> str:
    if not found:
        return "Nothing was learned yet. Run the same command to start again."
    instead = " instead of --restart" if restart else ""
    return f"{_listed(found)}Run the same command with --resume{instead} to continue."
