"""The notebook of the documentation: executed in a kernel of its own, and as a page of the site."""

import json
import re
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FILE = Path(__file__).resolve().parents[1] / "notebook.ipynb"
_CELL_SECONDS = 600


def execute_notebook(folder: Path) -> Any:
    """The notebook with the outputs of its cells, which ran one after the other in ``folder``. Raises nbclient's
    ``CellExecutionError`` with the traceback of the first cell that failed."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(FILE, as_version=4)
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=_CELL_SECONDS, resources=resources).execute()
    return notebook


def write_notebook() -> None:
    """Stores the notebook with the outputs of a run of now, without times of cells and versions of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        notebook = execute_notebook(Path(folder))
    for cell in notebook.cells:
        cell.metadata.clear()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    FILE.write_text(json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")


def render_notebook(text: str) -> tuple[str, dict[str, bytes]]:
    """The notebook ``text`` as Markdown: its texts, its code, and of each output the richest form; and its pictures by
    their file names."""
    pictures: dict[str, bytes] = {}
    parts = [part for cell in json.loads(text)["cells"] for part in _render_cell(cell, pictures)]
    return "\n\n".join(parts) + "\n", pictures


def _render_cell(cell: Json, pictures: dict[str, bytes]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source
        return
    yield f"```python\n{source}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "image/png" in data:
            name = f"notebook-figure-{len(pictures) + 1}.png"
            pictures[name] = b64decode("".join(data["image/png"]))
            text = re.sub(r"[^\w ,.]", " ", "".join(data.get("text/plain", "a figure")))
            yield f"![{text}]({name})"
        elif "text/html" in data:
            # on one line, because a blank line would end the block of HTML
            yield f'<div class="output">{_join_lines("".join(data["text/html"]))}</div>'
        else:
            text = "".join(data.get("text/plain", output.get("text", "")))
            yield f'<div class="output"><pre>{escape(text).replace(chr(10), "<br>")}</pre></div>'


def _join_lines(html: str) -> str:
    head, mark, rest = html.partition("<pre")
    if not mark:
        return " ".join(html.split())
    body, _, tail = rest.partition("</pre>")
    return f"{' '.join(head.split())}<pre{body.replace(chr(10), '<br>')}</pre>{' '.join(tail.split())}"
