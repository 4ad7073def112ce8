"""Pages of the site that are no Markdown files under docs/: changelog, contributing, benchmark notes, the notebook."""

import re
from pathlib import Path

from generators.notebook import FILE, render_notebook
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# Page of the site, by the file of the repository that it shows.
OUTSIDE = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/NOTES.md": "benchmark-notes.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the outside files as pages; their links into docs/ become links between pages."""
    for source, page in OUTSIDE.items():
        text = (Path(config.config_file_path).parent / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text.replace("](docs/", "](")))
    content, pictures = render_notebook(FILE.read_text(encoding="utf-8"))
    files.append(File.generated(config, "notebook.md", content=content))
    for name, picture in pictures.items():
        files.append(File.generated(config, name, content=picture))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Links from a page under docs/ to an outside file or the notebook lead to its page."""
    up = "../" * page.file.src_uri.count("/")
    for source, target in OUTSIDE.items():
        markdown = re.sub(rf"\]\({up}\.\./{re.escape(source)}(#[^)]*)?\)", rf"]({up}{target}\1)", markdown)
    return re.sub(r"(\]\([^)]*)notebook\.ipynb\)", r"\1notebook.md)", markdown)
