"""Check every link between the pages that a build wrote: files, and places within them.

python docs/check_links.py docs/_build/html

Links to other hosts are counted, not followed. Ends with 1 if a link leads nowhere.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Links(HTMLParser):
    """The links of a page, and the places in it that a link may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links and places of a tag."""
        values = dict(attrs)
        self.places |= {value for name in ("id", "name") if (value := values.get(name))}
        for name in ("href", "src"):
            if value := values.get(name):
                self.links.append(value)


def broken_links(folder: Path) -> tuple[list[str], int, int]:
    """Return what leads nowhere, and how many links stay within the folder and leave it."""
    folder = folder.resolve()
    pages = {
        path: _Links(path.read_text())
        for path in sorted(folder.rglob("*.html"))
        if "_static" not in path.parts
    }
    broken, within, beyond = [], 0, 0
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                beyond += parts.scheme in ("http", "https")
                continue
            within += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = unquote(parts.fragment)
            missing = not target.exists()
            if missing or (place and target in pages and place not in pages[target].places):
                broken.append(f"{path.relative_to(folder)}: {link}")
    return broken, within, beyond


def main() -> None:
    """Check the folder that is named."""
    broken, within, beyond = broken_links(Path(sys.argv[1]))
    print(f"{within:,} links within the pages, {beyond:,} to other hosts (not followed)")
    for line in dict.fromkeys(broken):
        print(f"leads nowhere: {line}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
