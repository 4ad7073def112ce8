"""The documentation as a site: it builds without a warning, and each of its links and anchors leads somewhere."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from guide_blocks import DOCS, ROOT

pytest.importorskip("material", reason="the extra [docs] is not installed: make docs")
pytest.importorskip("mkdocstrings", reason="the extra [docs] is not installed: make docs")


class _Page(HTMLParser):
    """The addresses and the anchors of a page of HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in {"script", "img", "iframe"} and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") in {"stylesheet", "icon", "preconnect"}:
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, _Page]:
    """Every page of the site by its file."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return {path: _Page(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}


def _find(page: Path, address: str) -> Path:
    return (page.parent / unquote(urlsplit(address).path)).resolve() if urlsplit(address).path else page


def test_every_page_is_there(site: dict[Path, _Page]) -> None:
    folder = next(path.parent for path in site if path.name == "404.html")
    expected = {path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")}
    expected = {name.replace("README.html", "index.html") for name in expected}
    found = {path.relative_to(folder).as_posix() for path in site}
    others = {"changelog.html", "contributing.html", "benchmark-notes.html", "notebook.html"}
    assert expected | others == found - {"404.html"}


def test_links_and_anchors_lead_somewhere(site: dict[Path, _Page]) -> None:
    broken, count = [], 0
    for path, page in site.items():
        if path.name == "404.html":  # its addresses are from the root of a server
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme in {"http", "https", "mailto"}:
                continue
            target = _find(path, link)
            count += 1
            lacks_anchor = parts.fragment and target in site and unquote(parts.fragment) not in site[target].anchors
            if not target.exists() or lacks_anchor:
                broken.append(f"{path.name}: {link}")
    assert count > 1000
    assert broken == []


def test_nothing_is_loaded_from_the_network(site: dict[Path, _Page]) -> None:
    for path, page in site.items():
        if path.name != "404.html":
            assert page.loaded
            assert [address for address in page.loaded if not _find(path, address).exists()] == []
            assert [address for address in page.loaded if urlsplit(address).scheme or address.startswith("//")] == []
