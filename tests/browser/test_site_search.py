"""The site of the documentation from the disk: it loads nothing from elsewhere, and its search finds a page."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="the extra [docs] is not installed: make docs")
pytest.importorskip("mkdocstrings", reason="the extra [docs] is not installed: make docs")
pytestmark = pytest.mark.wide
ROOT = Path(__file__).resolve().parents[2]


def test_the_search_works_from_the_disk(chromium, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, check=True, capture_output=True)
    page = chromium.new_page()
    requested: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto((tmp_path / "guides/study.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("gradient noise scale")
    page.wait_for_selector(".md-search-result__item")
    found = page.locator(".md-search-result__link").evaluate_all("links => links.map((link) => link.href)")
    assert any("32-noise-scale.html" in address for address in found)
    assert [address for address in requested if not address.startswith(("file:", "data:"))] == []
    assert errors == []
    page.close()
