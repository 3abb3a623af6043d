"""The pages of the documentation, and what stands in their blocks of code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

DOCS = ROOT / "docs"

GENERATED = ("_build", "api", "lessons")
"""Folders of pages that a build writes."""

FENCE = re.compile(r"^```(\S*)[ \t]*\S*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A page by its path, and its text."""

    path: Path
    text: str

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    def blocks(self, *languages: str) -> Iterator[str]:
        """Yield the blocks in one of these languages."""
        for language, body in FENCE.findall(self.text):
            if language in languages:
                yield body

    def commands(self) -> list[str]:
        """Return the command lines, with lines joined that a backslash continues."""
        joined = "\n".join(self.blocks("sh")).replace("\\\n", " ")
        return [line.strip() for line in joined.splitlines() if line.strip()]


def _written() -> list[Page]:
    inside = (
        path
        for path in sorted(DOCS.rglob("*.md"))
        if not set(path.relative_to(DOCS).parts) & set(GENERATED)
    )
    outside = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"))
    return [Page(path, path.read_text()) for path in (*outside, *inside)]


PAGES = _written()
