"""The fenced blocks of the pages, and the commands of `sweep` in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
GUIDES = [DOCS / "tutorial.md", *sorted((DOCS / "guides").glob("*.md"))]
_FENCE = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?:^ {4}.*\n?)+", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block. ``title`` is the name of the file that it shows, "" without one."""

    language: str
    title: str
    text: str


def read_blocks(page: Path) -> list[Block]:
    """Every fenced block of the page, in order."""
    return [Block(*found) for found in _FENCE.findall(page.read_text(encoding="utf-8"))]


def list_commands(page: Path) -> Iterator[list[str]]:
    """The words of each command of `sweep` in shell blocks, fenced or indented, without comments and redirections."""
    text = page.read_text(encoding="utf-8")
    shell = [block.text for block in read_blocks(page) if block.language == "sh"]
    shell += _INDENTED.findall(_FENCE.sub("", text))
    for line in "".join(shell).replace("\\\n", " ").splitlines():
        if found := re.match(r"\s*(?:\.venv/bin/)?sweep ([^|&>]*)", line):
            yield shlex.split(found[1], comments=True)
