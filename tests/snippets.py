"""The code that README and docs print."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "examples/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
)

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A fenced block.

    Attributes
    ----------
    number : int
        Among the blocks of the page in its language, from 1 on.
    line : int
        Of the page: that of its first line of code.
    """

    page: str
    language: str
    number: int
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def text_of(page: str) -> str:
    """The page."""
    return (ROOT / page).read_text("utf-8")


def snippets(language: str, page: str | None = None) -> list[Snippet]:
    """All of a page, or of all pages, in their order."""
    found = []
    for each in PAGES if page is None else (page,):
        text, number = text_of(each), 0
        for block in _FENCED.finditer(text):
            if block[2] == language:
                number += 1
                line = text.count("\n", 0, block.start(3)) + 1
                found.append(Snippet(each, language, number, line, textwrap.dedent(block[3])))
    return found


def prose_of(page: str) -> str:
    """The page without its fenced blocks."""
    return _FENCED.sub("", text_of(page))
