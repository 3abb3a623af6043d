"""Words that were retired, for those of the field, do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

RETIRED = re.compile(
    r"(?i:committee|\btwins?\b|\bwalk(s|ing|ed)?\b|_walk\b|\bwalk_|convoy|\bcrew\b|hopeless|unheard"
    r"|\bmembers_|n_members|held[_ -]back|\bholds? back|whole_or_not_at_all|--members|\bram\b"
    r"|undulatus cut|bound_history)|Walk[A-Z]"
)
"""Names of version 0.2 and before; ``CHANGELOG.md`` has the table of those of today."""

LIBRARIES = re.compile(r"\b(os|ast)\.walk\b")
"""Names of others."""
EARLIER = {"src/undulatus/storage/earlier.py"}
"""Reads the names of older model files."""

PAGES = sorted(
    path
    for folder, endings in {
        "src": (".py",),
        "docs": (".md", ".py"),
        "examples": (".py", ".rst"),
    }.items()
    for path in (ROOT / folder).rglob("*")
    if path.suffix in endings and "_build" not in path.parts
)


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *PAGES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_retired_word_is_left(path):
    if str(path.relative_to(ROOT)) in EARLIER or path.name == "changelog.md":
        return
    lines = LIBRARIES.sub("", path.read_text()).splitlines()
    found = [f"{number}: {line}" for number, line in enumerate(lines, 1) if RETIRED.search(line)]
    assert not found, "\n".join(found)
